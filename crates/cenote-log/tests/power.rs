//! After a loss of power: for every word that was not durable, any of its values may be there.
//! Every event of a history is a place for the power to fail, inside recovery too.

use crate::common::*;
use cenote_log::{CrashKind, Outcome};

const A: u64 = DATA_ADDR;
const B: u64 = DATA_ADDR + 64;
const C: u64 = DATA_ADDR + 1024;

/// Recovers an image after a loss of power; then, at every event of that recovery, the power fails
/// again, or the process dies.
fn recover(image: &Image, random: &mut Random, depth: usize) -> (Outcome, Vec<u8>) {
    let mut world = World::from_image(image);
    if depth == 0 {
        let outcome = world.replay(CrashKind::Power);
        return (outcome, world.data());
    }
    world.record();
    let outcome = world.replay(CrashKind::Power);
    let data = world.data();
    assert!(
        !matches!(outcome, Outcome::Quarantined(_) | Outcome::AlreadyQuarantined),
        "{outcome:?}"
    );
    for cut in world.recorder().take_cuts() {
        cut.for_each_image(&mut Random(random.next()), 6, &mut |image| {
            let (again, result) = recover(image, &mut Random(1), depth - 1);
            assert!(!matches!(again, Outcome::Quarantined(_)), "repeated: {again:?}");
            assert_eq!(
                result, data,
                "a repeated recovery ends elsewhere; first {outcome:?}, then {again:?}"
            );
        });
    }
    (outcome, data)
}

/// Runs `history` and lets the power fail at every event; `allowed` are the states that may be
/// found after recovery.
fn every_power_cut(
    history: impl Fn(&World, &mut Vec<Vec<u8>>),
    samples: usize,
    depth: usize,
) -> (usize, Vec<(usize, Outcome)>) {
    let world = World::recorded();
    let mut allowed = vec![world.data()];
    history(&world, &mut allowed);
    let mut images = 0;
    let mut outcomes = Vec::new();
    let mut random = Random(42);
    for (event, cut) in world.recorder().take_cuts().iter().enumerate() {
        cut.for_each_image(&mut Random(event as u64), samples, &mut |image| {
            images += 1;
            let (outcome, data) = recover(image, &mut random, depth);
            assert!(
                allowed.contains(&data),
                "event {event}: {outcome:?} leaves neither old nor new"
            );
            outcomes.push((event, outcome));
            // A log that was recovered can be written, and what is written then is all that
            // recovery sees.
            let world = World::from_image(image);
            world.replay(CrashKind::Power);
            let before = world.data();
            let mut writer = world.writer();
            let after = World::from_image(&world.image());
            assert_eq!(
                after.replay(CrashKind::Process),
                Outcome::Idle,
                "event {event}: old entries came to life"
            );
            Tx::begin(&world, &mut writer).change(A, &[0xaa; 24]);
            assert_eq!(
                world.replay(CrashKind::Process),
                Outcome::RolledBack { entries: 1 },
                "event {event}"
            );
            assert_eq!(world.data(), before);
        });
    }
    (images, outcomes)
}

fn forward(outcomes: &[(usize, Outcome)]) -> usize {
    outcomes.iter().filter(|(_, o)| matches!(o, Outcome::RolledForward { .. })).count()
}

fn back(outcomes: &[(usize, Outcome)]) -> usize {
    outcomes.iter().filter(|(_, o)| matches!(o, Outcome::RolledBack { .. })).count()
}

#[test]
fn undo_commits_are_atomic() {
    for how in [Commit::Marked, Commit::Sealed, Commit::Lazy] {
        let (images, outcomes) = every_power_cut(
            |w, allowed| {
                let mut writer = w.writer();
                let mut tx = Tx::begin(w, &mut writer);
                tx.change(A, &[1; 24]);
                tx.change(C, &[2; 8]);
                tx.change(A + 8, &[3; 24]);
                tx.commit(how);
                allowed.push(w.data());
            },
            40,
            1,
        );
        assert!(images > 100 && back(&outcomes) > 0, "{how:?}");
        assert_eq!(how == Commit::Marked, forward(&outcomes) == 0, "{how:?}");
    }
}

#[test]
fn hybrid_commits_are_atomic() {
    for how in [Commit::Sealed, Commit::Lazy] {
        let (_, outcomes) = every_power_cut(
            |w, allowed| {
                let mut writer = w.writer();
                let mut tx = Tx::begin(w, &mut writer);
                tx.change(A, &[1; 16]);
                tx.set(B, &[2; 20]);
                tx.set(B + 8, &[3; 4]);
                tx.set(C, &[4; 8]);
                tx.commit(how);
                allowed.push(w.data());
            },
            40,
            1,
        );
        assert!(forward(&outcomes) > 0 && back(&outcomes) > 0, "{how:?}");
    }
}

#[test]
fn redo_alone_is_atomic() {
    every_power_cut(
        |w, allowed| {
            let mut writer = w.writer();
            let mut tx = Tx::begin(w, &mut writer);
            tx.set(A, &[1; 24]);
            tx.set(C, &[2; 8]);
            tx.commit(Commit::Sealed);
            allowed.push(w.data());
        },
        60,
        1,
    );
}

#[test]
fn transactions_that_follow_each_other_lazily_never_mix() {
    let (_, outcomes) = every_power_cut(
        |w, allowed| {
            let mut writer = w.writer();
            for round in 1..=4u8 {
                let mut tx = Tx::begin(w, &mut writer);
                tx.change(A, &[round; 8]);
                if round % 2 == 0 {
                    tx.set(B, &[round; 8]);
                }
                tx.change(C, &[round; 16]);
                tx.commit(Commit::Lazy);
                allowed.push(w.data());
            }
        },
        24,
        1,
    );
    assert!(forward(&outcomes) > 0 && back(&outcomes) > 0);
}

/// The range on media may be one transaction behind while entries of the next one are already
/// there. If they counted after recovery, they would undo what others have changed in the meantime.
#[test]
fn entries_of_the_transaction_after_the_one_recovered_do_not_come_to_life() {
    let w = World::recorded();
    let mut writer = w.writer();
    let mut tx = Tx::begin(&w, &mut writer);
    tx.change(A, &[1; 8]);
    tx.commit(Commit::Lazy);
    let mut tx = Tx::begin(&w, &mut writer);
    tx.log_undo(C, 8); // stored, not fenced
    let cuts = w.recorder().take_cuts();
    let cut = cuts.last().unwrap();
    let mut found = 0;
    cut.for_each_image(&mut Random(3), 4000, &mut |image| {
        let world = World::from_image(image);
        let outcome = world.replay(CrashKind::Power);
        found += usize::from(matches!(outcome, Outcome::RolledForward { .. }));
        // Another log changes C, and commits. Then this machine fails again.
        world.write(C, &[0x77; 8]);
        for crash in [CrashKind::Power, CrashKind::Process] {
            let again = World::from_image(&world.image());
            assert_eq!(again.replay(crash), Outcome::Idle);
            assert_eq!(again.read(C, 8), [0x77; 8]);
        }
    });
    assert!(found > 0, "no image had the old range");
}

#[test]
fn logs_that_overflow_are_atomic() {
    for how in [Commit::Marked, Commit::Sealed, Commit::Lazy] {
        let (_, outcomes) = every_power_cut(
            |w, allowed| {
                let mut writer = w.writer();
                for round in 1..=2u8 {
                    let mut tx = Tx::begin(w, &mut writer);
                    tx.change(A, &[round; 700]);
                    tx.change(C, &[round; 900]);
                    assert!(tx.writer.has_overflowed());
                    tx.commit(how);
                    allowed.push(w.data());
                }
            },
            10,
            0,
        );
        assert!(back(&outcomes) > 0, "{how:?}");
    }
}

#[test]
fn sequence_numbers_start_again_atomically() {
    let (_, outcomes) = every_power_cut(
        |w, allowed| {
            let mut writer = w.writer();
            for i in 0..2 {
                let mut tx = Tx::begin(w, &mut writer);
                tx.change(A + i * 8, &[9; 8]);
                tx.commit(Commit::Lazy);
                allowed.push(w.data());
            }
            writer.skip_to_last_base();
            for round in 1..=4u8 {
                let mut tx = Tx::begin(w, &mut writer);
                tx.change(A, &[round; 8]);
                tx.set(C, &[round; 8]);
                tx.commit(Commit::Lazy);
                allowed.push(w.data());
            }
        },
        16,
        2,
    );
    assert!(forward(&outcomes) > 0 && back(&outcomes) > 0);
}

/// After a crash of processes the evidence for "committed" has been seen, but need not be durable.
/// If the power fails while recovery applies redo data, the next recovery must come to the same
/// end.
#[test]
fn power_may_fail_while_recovery_from_a_crash_of_processes_rolls_forward() {
    for flushed in [true, false] {
        let w = World::recorded();
        let mut writer = w.writer();
        let before = w.data();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(A, &[1; 8]);
        tx.fresh(C + 64, &[5; 8]);
        tx.set(B, &[2; 8]);
        tx.set(C, &[3; 8]);
        if flushed {
            tx.flush_contents();
        }
        tx.seal();
        // Killed before the fence of commit: recovery runs in another process, on the same machine.
        w.recorder().take_cuts();
        assert_eq!(w.replay(CrashKind::Process), Outcome::RolledForward { entries: 2 });
        let after = w.data();
        let cuts = w.recorder().take_cuts();
        assert!(cuts.len() > 4);
        let mut both = [0, 0];
        for cut in cuts {
            cut.for_each_image(&mut Random(5), 300, &mut |image| {
                let world = World::from_image(image);
                let outcome = world.replay(CrashKind::Power);
                let mut data = world.data();
                if matches!(outcome, Outcome::RolledBack { .. }) {
                    // Fresh blocks are free then.
                    data[1024 + 64..1024 + 72].copy_from_slice(&before[1024 + 64..1024 + 72]);
                }
                assert!(data == before || data == after, "{outcome:?}");
                both[usize::from(data == after)] += 1;
            });
        }
        assert!(both[0] > 0 && both[1] > 0, "{both:?}");
    }
}

#[test]
fn a_fresh_block_that_is_not_whole_means_not_committed() {
    let w = World::recorded();
    let mut writer = w.writer();
    let before = w.read(A, 8);
    let mut tx = Tx::begin(&w, &mut writer);
    tx.fresh(C, &[5; 64]);
    tx.change(A, &[1; 8]); // points to the block, say
    tx.commit(Commit::Sealed);
    for cut in w.recorder().take_cuts() {
        cut.for_each_image(&mut Random(5), 300, &mut |image| {
            let world = World::from_image(image);
            world.replay(CrashKind::Power);
            assert!(world.read(A, 8) == before || world.read(C, 64) == [5; 64]);
        });
    }
}

/// A long list of parts, all logged before one fence: no torn end is taken for damage.
#[test]
fn torn_ends_of_any_shape_are_no_damage() {
    let w = World::recorded();
    let before = w.data();
    let mut writer = w.writer();
    let mut tx = Tx::begin(&w, &mut writer);
    tx.change(A, &[1; 8]);
    for i in 0..12 {
        tx.log_undo(B + i * 16, 9);
    }
    for (event, cut) in w.recorder().take_cuts().iter().enumerate() {
        cut.for_each_image(&mut Random(event as u64), 500, &mut |image| {
            let (outcome, data) = recover(image, &mut Random(1), 0);
            assert!(matches!(outcome, Outcome::Idle | Outcome::RolledBack { .. }), "{outcome:?}");
            assert_eq!(data, before);
        });
    }
}
