//! Histories, and the walks over what crashes at their moments leave.

use super::*;

#[test]
fn recovery_records_a_history_of_its_own() {
    let rig = Rig::power();
    rig.store(3, 7);
    let image = rig.sim.state_now().image_oldest();
    rig.sim.let_go(rig.base, WINDOW).unwrap();
    let second = SimMedium::from_image(&image);
    second.reserve_window(rig.base, WINDOW).unwrap();
    second.map_at(FILE, rig.base, LEN, MapMode::ReadWrite).unwrap();
    let rig =
        Rig { base: rig.base, persistence: second.persistence(Durability::Power), sim: second };
    assert_eq!(rig.load(3), 0);
    rig.store(3, 8);
    assert_eq!(rig.possible(&[3]), set(&[[0], [8]]));
    rig.flush(3);
    rig.persistence.fence();
    assert_eq!(rig.possible(&[3]), set(&[[8]]));
    let quiet = SimMedium::from_image_unrecorded(&rig.sim.state_now().image_process());
    rig.sim.let_go(rig.base, WINDOW).unwrap();
    quiet.reserve_window(rig.base, WINDOW).unwrap();
    quiet.map_at(FILE, rig.base, LEN, MapMode::ReadWrite).unwrap();
    rig.store(5, 1);
    quiet.unmap_at(rig.base, LEN).unwrap();
    assert_eq!(words_of(&quiet.image_now(CrashKind::Process), &[3, 5]), [8, 1]);
    assert_eq!(quiet.trace_len(), 0);
}

#[test]
fn images_are_told_apart_by_what_the_test_demands_of_them() {
    let rig = Rig::power();
    rig.store(3, 7);
    rig.persistence.fence(); // The flush was forgotten.
    rig.sim.note(1); // Acknowledged.
    let mut lost_after_acknowledgement = 0;
    let visited = rig.sim.explore(.., Limits::default(), |state, image| {
        assert_eq!(state.note(), image.note());
        lost_after_acknowledgement += u32::from(image.note() == 1 && words_of(&image, &[3]) == [0]);
        let again = state.image_of(image.picks());
        assert!(image.kind() == CrashKind::Process || again.hash() == image.hash());
    });
    assert!(lost_after_acknowledgement > 0, "{visited:?}");
    assert!(visited.duplicates > 0 && visited.states == visited.exhausted, "{visited:?}");
}

#[test]
fn a_walk_leaves_out_no_image_of_any_state() {
    // Miri takes minutes for what takes the processor milliseconds.
    let (seeds, steps, units) = if cfg!(miri) { (2, 8, 6) } else { (20, 30, 14) };
    let mut compared = 0;
    for seed in 0..seeds {
        let rig = Rig::power();
        let mut random = random::Random::new(seed);
        for step in 1..steps {
            let word = random.below(4) as u64 * 5;
            match random.below(8) {
                0 | 1 => rig.store(word, step),
                2 => rig.flush(word),
                3 => rig.persistence.fence(),
                4 => own(&*rig.sim).write_at(FILE, 8 * word, &step.to_le_bytes()).unwrap(),
                5 if step % 3 == 0 => rig.sim.sync(FILE).unwrap(),
                6 => rig.sim.create(&format!("f{step}"), 0).unwrap(),
                7 if step % 3 == 0 => rig.sim.sync_dir("").unwrap(),
                _ => rig.sim.note(step / 10),
            }
        }
        let mut all = BTreeSet::new();
        for events in 0..rig.sim.crash_points() {
            let state = rig.sim.state_after(events);
            all.insert((state.note(), state.image_process().hash()));
            state.for_each_image(units, 0, 1, |image| {
                all.insert((state.note(), image.hash()));
            });
        }
        let mut walked = BTreeSet::new();
        let limits = Limits { exhaustive_units: units, samples: 0, ..Limits::default() };
        let visited = rig.sim.explore(.., limits, |state, image| {
            assert!(walked.insert((state.note(), image.hash())), "twice");
        });
        if visited.exhausted == visited.states {
            compared += 1;
            assert_eq!(walked, all, "seed {seed}");
        }
    }
    assert!(compared >= seeds / 2, "only {compared} histories were small enough");
}

#[test]
fn larger_states_are_sampled_with_both_extremes_and_every_single_loss() {
    let rig = Rig::power();
    let count = if cfg!(miri) { 8 } else { 40 };
    let exhaustive = if cfg!(miri) { 4 } else { 12 };
    let samples = if cfg!(miri) { 40 } else { 400 };
    let words: Vec<u64> = (0..count as u64).map(|i| i * 3).collect();
    words.iter().for_each(|&w| rig.store(w, 1));
    let state = rig.sim.state_now();
    assert_eq!((state.units(), state.images()), (count, 1 << count));
    let collect = |seed| {
        let mut all = BTreeSet::new();
        let visited = state.for_each_image(exhaustive, samples, seed, |image| {
            assert!(all.insert(words_of(&image, &words)), "no image comes twice");
        });
        assert_eq!((visited.images, visited.exhausted), (all.len() as u64, 0));
        all
    };
    let all = collect(1);
    assert_eq!(all, collect(1), "the seed decides");
    assert_ne!(all, collect(2));
    assert!(all.contains(&vec![0; count]) && all.contains(&vec![1; count]));
    for odd_one in 0..count {
        for value in [0, 1] {
            let mut image = vec![1 - value; count];
            image[odd_one] = value;
            assert!(all.contains(&image), "only word {odd_one} is {value}");
        }
    }
}

#[test]
fn one_seed_gives_one_history() {
    let run = |seed| {
        let sim = SimMedium::new(SimOptions { seed, ..SimOptions::new(Durability::Power) });
        (sim.boot_id(), sim.random_uuid().unwrap(), sim.random_uuid().unwrap(), sim.now_s())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_ne!(run(1).1, run(1).2);
}

#[test]
fn forgotten_history_stays_undecided() {
    let rig = Rig::power();
    rig.store(3, 7);
    rig.flush(3);
    rig.sim.forget_trace();
    assert_eq!((rig.sim.trace_len(), rig.possible(&[3])), (0, set(&[[0], [7]])));
    rig.persistence.fence();
    assert_eq!(rig.possible(&[3]), set(&[[7]]), "the flush counts");
}
