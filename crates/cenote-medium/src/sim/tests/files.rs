//! Syncs, names, lengths and writes: what of files a crash may leave.

use super::*;
use cenote_sys::memory::{self, Access};
use cenote_sys::second_mapping::SecondMapping;

#[test]
fn a_sync_makes_mapped_stores_durable() {
    let rig = Rig::power();
    rig.store(3, 7);
    rig.sim.sync(FILE).unwrap();
    assert_eq!(rig.possible(&[3]), set(&[[7]]));
}

#[test]
fn the_process_sees_the_latest_of_everything_and_the_same_boot() {
    let rig = Rig::power();
    rig.store(3, 7);
    let state = rig.sim.state_now();
    assert_eq!(words_of(&state.image_process(), &[3]), [7]);
    let after = SimMedium::from_image(&state.image_process());
    assert_eq!(after.boot_id(), rig.sim.boot_id());
    let after = SimMedium::from_image(&state.image_oldest());
    assert_ne!(after.boot_id(), rig.sim.boot_id());
    assert_ne!(
        after.random_uuid().unwrap(),
        SimMedium::from_image(&state.image_process()).random_uuid().unwrap()
    );
}

#[test]
fn an_unsynced_create_may_vanish_or_be_short() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    sim.create("x", 512).unwrap();
    let lengths = |sim: &SimMedium| {
        let mut all = BTreeSet::new();
        sim.state_now().for_each_image(12, 0, 1, |image| {
            all.insert(image.file("x").map(|bytes| bytes.len()));
        });
        all
    };
    assert_eq!(lengths(&sim), BTreeSet::from([None, Some(0), Some(512)]));
    sim.sync("x").unwrap();
    assert_eq!(lengths(&sim), BTreeSet::from([None, Some(512)]));
    sim.sync_dir("").unwrap();
    assert_eq!(lengths(&sim), BTreeSet::from([Some(512)]));
    own(&*sim).remove("x").unwrap();
    assert_eq!(lengths(&sim), BTreeSet::from([None, Some(512)]));
    sim.sync_dir("").unwrap();
    assert_eq!(lengths(&sim), BTreeSet::from([None]));
}

#[test]
fn a_directory_that_is_not_durable_takes_its_files_with_it() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    sim.make_dir("puddles").unwrap();
    sim.create("puddles/a", 0).unwrap();
    sim.sync_dir("puddles").unwrap();
    assert!(sim.state_now().image_oldest().names().is_empty());
    sim.sync_dir("").unwrap();
    assert_eq!(sim.state_now().image_oldest().names(), ["puddles", "puddles/a"]);
}

#[test]
fn a_rename_is_old_or_new_and_never_neither() {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    for (name, byte) in [("a", b'a'), ("b", b'b')] {
        sim.create(name, 1).unwrap();
        own(&*sim).write_at(name, 0, &[byte]).unwrap();
        sim.sync(name).unwrap();
    }
    sim.sync_dir("").unwrap();
    own(&*sim).rename("a", "b").unwrap();
    let mut all = BTreeSet::new();
    sim.state_now().for_each_image(12, 0, 1, |image| {
        all.insert((image.file("a"), image.file("b")));
    });
    let a = || Some(b"a".to_vec());
    assert_eq!(all, BTreeSet::from([(a(), Some(b"b".to_vec())), (None, a())]));
    sim.sync_dir("").unwrap();
    assert_eq!(sim.state_now().image_oldest().names(), ["b"]);
}

#[test]
fn a_write_tears_between_sectors_and_not_inside() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    sim.create("x", 1024).unwrap();
    sim.sync("x").unwrap();
    sim.sync_dir("").unwrap();
    own(&*sim).write_at("x", 500, &[1; 24]).unwrap();
    let mut all = BTreeSet::new();
    sim.state_now().for_each_image(12, 0, 1, |image| {
        all.insert(image.file("x").unwrap()[500..524].to_vec());
    });
    let torn = |first: u8, second: u8| [[first; 12], [second; 12]].concat();
    assert_eq!(all, BTreeSet::from([torn(0, 0), torn(1, 0), torn(0, 1), torn(1, 1)]));
    sim.sync("x").unwrap();
    assert_eq!(sim.state_now().units(), 0);
}

#[test]
fn what_was_appended_may_be_longer_than_what_was_written() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    sim.create("x", 0).unwrap();
    sim.sync_dir("").unwrap();
    own(&*sim).write_at("x", 0, b"abc").unwrap();
    let mut all = BTreeSet::new();
    sim.state_now().for_each_image(12, 0, 1, |image| {
        all.insert(image.file("x").unwrap());
    });
    assert_eq!(all, BTreeSet::from([vec![], vec![0; 3], b"abc".to_vec()]));
}

#[test]
fn what_was_cut_off_may_come_back() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    sim.create("x", 2).unwrap();
    own(&*sim).write_at("x", 0, b"ab").unwrap();
    sim.sync("x").unwrap();
    sim.sync_dir("").unwrap();
    own(&*sim).truncate("x", 1).unwrap();
    own(&*sim).truncate("x", 2).unwrap();
    assert_eq!(sim.read("x").unwrap(), b"a\0");
    let mut all = BTreeSet::new();
    sim.state_now().for_each_image(12, 0, 1, |image| {
        all.insert(image.file("x").unwrap());
    });
    assert_eq!(all, BTreeSet::from([b"a".to_vec(), b"a\0".to_vec(), b"ab".to_vec()]));
    sim.sync("x").unwrap();
    assert_eq!(sim.state_now().image_oldest().file("x").unwrap(), b"a\0");
}

#[test]
fn after_a_failed_sync_a_good_one_does_not_help() {
    let rig = Rig::power();
    rig.sim.inject(Fault::once(FaultPoint::Operation(Operation::Sync), 0, FaultEffect::Io));
    rig.store(3, 7);
    assert!(matches!(rig.sim.sync(FILE), Err(MediumError::Io { .. })));
    rig.store(4, 8);
    rig.sim.sync(FILE).unwrap();
    assert_eq!(rig.possible(&[3, 4]), set(&[[0, 8], [7, 8]]));
    rig.store(3, 9);
    rig.sim.sync(FILE).unwrap();
    assert_eq!(rig.possible(&[3, 4]), set(&[[9, 8]]), "written again, it is dirty again");
    // Also if the same bytes are written again.
    rig.sim.inject(Fault::once(FaultPoint::Operation(Operation::Sync), 0, FaultEffect::Io));
    own(&*rig.sim).write_at(FILE, 24, &5u64.to_le_bytes()).unwrap();
    rig.sim.sync(FILE).unwrap_err();
    rig.sim.sync(FILE).unwrap();
    assert_eq!(rig.possible(&[3, 4]), set(&[[5, 8], [9, 8]]));
    own(&*rig.sim).write_at(FILE, 24, &5u64.to_le_bytes()).unwrap();
    rig.sim.sync(FILE).unwrap();
    assert_eq!(rig.possible(&[3, 4]), set(&[[5, 8]]));
}

#[test]
fn file_writes_and_stores_meet_in_the_same_bytes() {
    let rig = Rig::power();
    rig.store(0, 1);
    own(&*rig.sim).write_at(FILE, 8, &2u64.to_le_bytes()).unwrap();
    assert_eq!(rig.load(1), 2);
    rig.store(2, 3);
    let mut bytes = [0; 24];
    assert_eq!(rig.sim.read_at(FILE, 0, &mut bytes).unwrap(), 24);
    assert_eq!(
        bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(rig.possible(&[0, 1, 2]).len(), 8, "such a sector tears by words");
    rig.flush(1);
    rig.persistence.fence();
    assert_eq!(rig.possible(&[0, 1, 2]), set(&[[1, 2, 3]]));
}

#[test]
fn an_unsynced_sector_that_is_stored_to_keeps_its_history() {
    let rig = Rig::power();
    own(&*rig.sim).write_at(FILE, 1024, &[[1u8; 8], [2; 8]].concat()).unwrap();
    assert_eq!(rig.sim.state_now().units(), 1, "one sector");
    rig.store(128, 5);
    let (one, two) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
    assert_eq!(
        rig.possible(&[128, 129]),
        set(&[[0, 0], [one, 0], [5, 0], [0, two], [one, two], [5, two]])
    );
}

#[test]
fn the_page_cache_is_not_made_durable_by_flush_and_fence() {
    let rig = Rig::new(SimOptions::new(Durability::Process));
    assert!(!rig.persistence.is_power());
    rig.store(3, 7);
    rig.flush(3);
    rig.persistence.fence();
    rig.store(4, 8);
    rig.persistence.fence();
    assert_eq!(rig.possible(&[3, 4]).len(), 4);
    let mut seen = Vec::new();
    let limits = Limits { power: false, ..Limits::default() };
    rig.sim.explore(.., limits, |_, image| seen.push(words_of(&image, &[3, 4])));
    assert_eq!(seen, [[0, 0], [7, 0], [7, 8]], "every moment of the process, in order");
    let without = SimOptions { process_with_hooks: false, ..SimOptions::new(Durability::Process) };
    let rig = Rig::new(without);
    rig.store(3, 7);
    rig.persistence.fence();
    rig.store(3, 8);
    assert_eq!(rig.sim.trace_len(), 1, "seen at last, when the test asks");
    assert_eq!(rig.persistence, Persistence::PROCESS);
}

/// The rights of the memory at `addr`, as the kernel prints them.
fn rights(addr: u64) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |line: &&str| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&addr)
    };
    maps.lines().find(holds).map(|line| line.split(' ').nth(1).unwrap().into()).unwrap_or_default()
}

#[test]
#[cfg_attr(miri, ignore = "there is no /proc")]
fn memory_that_was_left_serves_every_mode() {
    let rig = Rig::power();
    let image = rig.sim.state_now().image_latest();
    let base = rig.base;
    drop(rig);
    let modes = [
        (MapMode::ReadWrite, "rw"),
        (MapMode::Tracked, "r-"),
        (MapMode::ReadOnly, "r-"),
        (MapMode::PrivateCopy, "rw"),
        (MapMode::Tracked, "r-"),
        (MapMode::ReadWrite, "rw"),
    ];
    for (mode, expected) in modes {
        let sim = SimMedium::from_image_unrecorded(&image);
        sim.reserve_window(base, WINDOW).unwrap();
        sim.map_at(FILE, base, LEN, mode).unwrap();
        for page in (base..base + LEN).step_by(4096) {
            assert_eq!(rights(page)[..2], *expected, "{mode:?}");
        }
        let rig = Rig { persistence: sim.persistence(Durability::Power), sim, base };
        assert!((0..LEN / 8).all(|word| rig.load(word) == 0), "{mode:?}");
        if mode == MapMode::Tracked {
            let (first, page) = (base as usize, 4096);
            // SAFETY: both are pages of the mapping, and nothing else reaches them.
            let second = unsafe { SecondMapping::new(first, LEN as usize) };
            second.expect("what is tracked can be mapped twice");
            // SAFETY: as above.
            unsafe { memory::protect(first + page, page, Some(Access::ReadWrite)) }.unwrap();
        }
        if mode != MapMode::ReadOnly {
            rig.store(4096 / 8, 7);
            assert_eq!(rig.load(4096 / 8), 7);
        }
        if mode == MapMode::PrivateCopy {
            // SAFETY: as above.
            unsafe { memory::protect(base as usize, 4096, Some(Access::ReadOnly)) }.unwrap();
        }
    }
}
