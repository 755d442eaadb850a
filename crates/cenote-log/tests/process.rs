//! After a crash of processes: every store is there, the log decides alone.

use crate::common::*;
use cenote_layout::log::{ENTRIES_OFFSET, EntryKind, LAST_BASE, SequenceRange, Stage, TailWord};
use cenote_log::{CrashKind, LogError, Outcome};
use cenote_medium::Persistence;
use std::sync::atomic::Ordering;

fn world() -> World {
    World::new(Persistence::PROCESS)
}

/// Crashes, replays, and replays again: the second time must find nothing to do.
fn recover(world: &World) -> Outcome {
    let outcome = world.replay(CrashKind::Process);
    let data = world.data();
    assert_eq!(world.replay(CrashKind::Process), Outcome::Idle);
    assert_eq!(world.data(), data);
    outcome
}

#[test]
fn a_running_transaction_is_rolled_back() {
    let w = world();
    let before = w.data();
    let mut writer = w.writer();
    let mut tx = Tx::begin(&w, &mut writer);
    tx.change(DATA_ADDR + 3, &[1, 2, 3, 4, 5]);
    tx.change(DATA_ADDR + 1024, &[9; 200]);
    assert_ne!(w.data(), before);
    assert_eq!(recover(&w), Outcome::RolledBack { entries: 2 });
    assert_eq!(w.data(), before);
}

#[test]
fn undo_is_applied_last_first() {
    let w = world();
    let before = w.data();
    let mut writer = w.writer();
    let mut tx = Tx::begin(&w, &mut writer);
    for value in 1..=3 {
        tx.change(DATA_ADDR, &[value; 16]); // the same range logged three times
    }
    assert_eq!(recover(&w), Outcome::RolledBack { entries: 3 });
    assert_eq!(w.data(), before);
}

#[test]
fn redo_is_applied_first_to_last_once_committed_and_not_at_all_before() {
    for committed in [false, true] {
        let w = world();
        let before = w.data();
        let mut writer = w.writer();
        let mut tx = Tx::begin(&w, &mut writer);
        for value in 1..=3 {
            tx.set(DATA_ADDR, &[value; 16]);
        }
        if committed {
            tx.writer.mark_committed();
            assert_eq!(w.inspect(CrashKind::Process).unwrap().stage, Stage::Committed);
            assert_eq!(recover(&w), Outcome::RolledForward { entries: 3 });
            assert_eq!(w.read(DATA_ADDR, 16), [3; 16]);
        } else {
            assert_eq!(recover(&w), Outcome::RolledBack { entries: 0 });
            assert_eq!(w.data(), before);
        }
    }
}

#[test]
fn one_store_decides_a_hybrid_transaction() {
    for committed in [false, true] {
        let w = world();
        // A transaction frees only allocated blocks: the bits are set.
        w.write(DATA_ADDR + 136, &[0xff]);
        let before = w.data();
        let mut writer = w.writer();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(DATA_ADDR, &[1; 8]);
        tx.set(DATA_ADDR + 64, &[2; 8]);
        tx.set_bits(DATA_ADDR + 128, 0xf0);
        tx.write_bits_to_clear();
        // They may be cleared already, before anything decides.
        w.write(DATA_ADDR + 136, &[0xf0]);
        if committed {
            tx.writer.mark_committed();
        }
        let outcome = recover(&w);
        let word = |addr| u64::from_le_bytes(w.read(addr, 8).try_into().unwrap());
        let old = |at: usize| u64::from_le_bytes(before[at..at + 8].try_into().unwrap());
        if committed {
            assert_eq!(outcome, Outcome::RolledForward { entries: 2 });
            assert_eq!((w.read(DATA_ADDR, 8), w.read(DATA_ADDR + 64, 8)), (vec![1; 8], vec![2; 8]));
            assert_eq!(word(DATA_ADDR + 128), old(128) | 0xf0);
            assert_eq!(word(DATA_ADDR + 136), old(136) & !0x0f);
        } else {
            assert_eq!(outcome, Outcome::RolledBack { entries: 3 });
            assert_eq!(
                (w.read(DATA_ADDR, 8), w.read(DATA_ADDR + 64, 8)),
                (before[..8].to_vec(), before[64..72].to_vec())
            );
            assert_eq!(word(DATA_ADDR + 128), old(128) & !0xf0);
            assert_eq!(word(DATA_ADDR + 136), old(136));
        }
    }
}

trait MoreBits {
    fn write_bits_to_clear(&mut self);
}

impl MoreBits for Tx<'_> {
    fn write_bits_to_clear(&mut self) {
        self.clear_bits(DATA_ADDR + 136, 0x0f);
    }
}

#[test]
fn recovery_skips_volatile_entries_of_any_address() {
    let w = world();
    let before = w.data();
    let mut writer = w.writer();
    let mut tx = Tx::begin(&w, &mut writer);
    tx.volatile(0x7fff_0000_1234, &[1; 24]);
    tx.volatile(DATA_ADDR, &[1; 24]);
    assert_eq!(recover(&w), Outcome::RolledBack { entries: 0 });
    assert_eq!(w.data(), before);
}

#[test]
fn a_seal_commits_exactly_while_memory_holds_what_it_covers() {
    for (spoil, committed) in
        [(None, true), (Some(DATA_ADDR), false), (Some(DATA_ADDR + 1024 + 7), false)]
    {
        let w = world();
        let before = w.data();
        let mut writer = w.writer();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(DATA_ADDR, &[1; 8]);
        tx.set(DATA_ADDR + 64, &[2; 8]);
        tx.fresh(DATA_ADDR + 1024, &[3; 8]);
        tx.seal();
        let after = w.data();
        if let Some(addr) = spoil {
            w.write(addr, &[0xee]);
        }
        let outcome = recover(&w);
        if committed {
            assert_eq!(outcome, Outcome::RolledForward { entries: 1 });
            assert_eq!(w.read(DATA_ADDR + 64, 8), [2; 8]);
            assert_eq!(w.data()[..64], after[..64]);
        } else {
            assert_eq!(outcome, Outcome::RolledBack { entries: 1 });
            assert_eq!(w.data()[..1024], before[..1024]);
        }
    }
}

#[test]
fn one_entry_says_which_block_was_taken_and_how_to_give_it_back() {
    const WORD: u64 = DATA_ADDR + 512;
    for (sealed, spoil) in [(false, false), (true, false), (true, true)] {
        let w = world();
        w.write(WORD, &0x0fu64.to_le_bytes());
        let mut writer = w.writer();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.allocate(DATA_ADDR + 1024, &[3; 70], WORD, 0xf0);
        tx.change(DATA_ADDR, &[1; 8]);
        if sealed {
            tx.seal();
        }
        assert_eq!(w.read(WORD, 8), 0xffu64.to_le_bytes());
        if spoil {
            w.write(DATA_ADDR + 1024 + 69, &[0xee]);
        }
        if sealed {
            // The seal says nothing of marks: they are written again.
            w.write(WORD, &0x0fu64.to_le_bytes());
        }
        let committed = sealed && !spoil;
        let outcome = recover(&w);
        let (expected, mark) = match committed {
            true => (Outcome::RolledForward { entries: 1 }, 0xffu64),
            false => (Outcome::RolledBack { entries: 2 }, 0x0f),
        };
        assert_eq!(outcome, expected);
        assert_eq!(w.read(WORD, 8), mark.to_le_bytes());
    }
}

#[test]
fn a_finished_transaction_leaves_nothing_to_do_and_stale_entries_never_count() {
    let w = world();
    let mut writer = w.writer();
    // Many transactions of falling length: behind each stand whole entries, with the right index,
    // of earlier ones.
    for round in 0..20u8 {
        let mut tx = Tx::begin(&w, &mut writer);
        for i in 0..(20 - u64::from(round)) {
            tx.change(DATA_ADDR + i * 8, &[round; 8]);
        }
        tx.commit(Commit::Process);
        let copy = World::from_image(&w.image());
        assert_eq!(recover(&copy), Outcome::Idle);
        assert_eq!(copy.data(), w.data());
    }
    let before = w.data();
    let mut tx = Tx::begin(&w, &mut writer);
    tx.change(DATA_ADDR, &[99; 8]);
    assert_eq!(recover(&w), Outcome::RolledBack { entries: 1 });
    assert_eq!(w.data(), before);
}

#[test]
fn a_log_can_be_written_on_after_every_kind_of_recovery() {
    let w = world();
    for round in 0..12u8 {
        let before = w.data();
        let mut writer = w.writer();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(DATA_ADDR + 8, &[round + 100; 40]);
        tx.set(DATA_ADDR + 80, &[round + 50; 40]);
        match round % 3 {
            0 => assert_eq!(recover(&w), Outcome::RolledBack { entries: 1 }),
            1 => {
                tx.writer.mark_committed();
                assert_eq!(recover(&w), Outcome::RolledForward { entries: 1 });
                assert_eq!(w.read(DATA_ADDR + 80, 40), [round + 50; 40]);
                continue;
            }
            _ => {
                tx.commit(Commit::Process);
                assert_eq!(recover(&w), Outcome::Idle);
                continue;
            }
        }
        assert_eq!(w.data(), before);
    }
}

#[test]
fn a_log_with_an_unfinished_transaction_or_set_aside_cannot_be_written() {
    let w = world();
    let mut writer = w.writer();
    Tx::begin(&w, &mut writer).change(DATA_ADDR, &[1; 8]);
    drop(writer);
    assert!(matches!(w.attach(), Err(LogError::NotWritable(_))));
    w.replay(CrashKind::Process);
    assert!(w.attach().is_ok());
    // SAFETY: the world's own memory.
    unsafe { w.head().state() }.store(cenote_layout::log::LOG_QUARANTINED, Ordering::Relaxed);
    assert!(matches!(w.attach(), Err(LogError::NotWritable(_))));
}

#[test]
fn long_ranges_span_segments_and_come_back_whole() {
    for committed in [false, true] {
        let w = world();
        let before = w.data();
        let mut writer = w.writer();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(DATA_ADDR, &[1; 1024]);
        tx.change(DATA_ADDR + 1024, &[2; 1024]);
        tx.set(DATA_ADDR, &[3; 1021]);
        assert!(tx.writer.has_overflowed());
        if committed {
            tx.writer.mark_committed();
        }
        assert!(w.inspect(CrashKind::Process).unwrap().segments >= 3);
        match recover(&w) {
            Outcome::RolledForward { .. } if committed => {
                assert_eq!(w.read(DATA_ADDR, 1021), [3; 1021]);
                assert_eq!(w.read(DATA_ADDR + 1021, 3), [1; 3]);
                assert_eq!(w.read(DATA_ADDR + 1024, 1024), [2; 1024]);
            }
            Outcome::RolledBack { .. } if !committed => assert_eq!(w.data(), before),
            other => panic!("{other:?}"),
        }
        // The segments are used again by later transactions, whose old entries do not count.
        let before = w.data();
        let mut writer = w.writer();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(DATA_ADDR, &[7; 1000]);
        assert!(matches!(recover(&w), Outcome::RolledBack { .. }));
        assert_eq!(w.data(), before);
    }
}

#[test]
fn entries_that_end_anywhere_near_the_end_of_an_area_are_all_found() {
    // Half an area is 1024 bytes, 32 of them kept for a jump. Every way to come near its end, in
    // steps of a word. (Miri takes a second for each.)
    for first in (0..=960).step_by(if cfg!(miri) { 480 } else { 8 }) {
        for second in [0usize, 1, 8, 24] {
            let w = world();
            let before = w.data();
            let mut writer = w.writer();
            let tx = Tx::begin(&w, &mut writer);
            // SAFETY: the data is readable.
            unsafe {
                tx.writer
                    .append(EntryKind::Undo, DATA_ADDR, first as u32, w.at(DATA_ADDR, first))
                    .unwrap()
            };
            w.write(DATA_ADDR, &vec![1; first]);
            // SAFETY: the data is readable.
            unsafe {
                tx.writer
                    .append(
                        EntryKind::Undo,
                        DATA_ADDR + 1024,
                        second as u32,
                        w.at(DATA_ADDR + 1024, second),
                    )
                    .unwrap()
            };
            w.write(DATA_ADDR + 1024, &vec![2; second]);
            tx.writer.append_seal(0).unwrap(); // one that never fits
            let total = 3 + u64::from(tx.writer.has_overflowed());
            let summary = w.inspect(CrashKind::Process).unwrap();
            assert_eq!(
                (summary.entries.len() as u64, summary.sealed),
                (total, true),
                "{first} {second}"
            );
            assert_eq!(recover(&w), Outcome::RolledBack { entries: 2 }, "{first} {second}");
            assert_eq!(w.data(), before);
        }
    }
}

#[test]
fn a_log_that_cannot_grow_says_so_and_can_still_be_rolled_back() {
    let w = world();
    let before = w.data();
    let mut writer = w.writer();
    let tx = Tx::begin(&w, &mut writer);
    let mut full = false;
    for i in 0..1000u64 {
        let addr = DATA_ADDR + i % 100 * 8;
        // SAFETY: the data is readable.
        match unsafe { tx.writer.append(EntryKind::Undo, addr, 8, w.at(addr, 8)) } {
            Ok(_) => w.write(addr, &[i as u8; 8]),
            Err(LogError::Grow(_)) => {
                full = true;
                break;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(full);
    assert!(matches!(tx.writer.append_seal(0), Err(LogError::Grow(_)) | Ok(())));
    assert!(matches!(recover(&w), Outcome::RolledBack { .. }));
    assert_eq!(w.data(), before);
}

#[test]
fn an_entry_that_fits_no_segment_is_refused_and_changes_nothing() {
    let w = world();
    let mut writer = w.writer();
    let image = w.image();
    let data = vec![1u8; 4096];
    // SAFETY: the data is readable.
    assert!(matches!(
        // SAFETY: the data is readable.
        unsafe { writer.append(EntryKind::Undo, DATA_ADDR, 4096, data.as_ptr()) },
        Err(LogError::Grow(_))
    ));
    assert_eq!(w.image(), image);
    assert_eq!(writer.entries(), 0);
}

#[test]
fn a_segment_of_another_log_or_number_is_not_written() {
    let w = world();
    let mut writer = w.writer();
    // SAFETY: the world's own memory.
    unsafe { cenote_log::format_segment(w.segment(1), OWNER, LOG_ID + 1, 1, Persistence::PROCESS) };
    let mut tx = Tx::begin(&w, &mut writer);
    tx.change(DATA_ADDR, &[1; 900]);
    let image = w.image();
    let data = [0u8; 600];
    // SAFETY: the data is readable.
    assert!(matches!(
        // SAFETY: the data is readable.
        unsafe { tx.writer.append(EntryKind::Undo, DATA_ADDR, 600, data.as_ptr()) },
        Err(LogError::Grow(_))
    ));
    assert_eq!(w.image(), image);
}

#[test]
fn sequence_numbers_start_again_without_waking_old_entries() {
    let w = world();
    let mut writer = w.writer();
    // Entries of base 0 and 4 of the first epoch in both halves: just those that the new epoch's
    // first bases must not see.
    for value in 1..=2 {
        let mut tx = Tx::begin(&w, &mut writer);
        (0..10).for_each(|i| tx.change(DATA_ADDR + i * 8, &[value; 8]));
        tx.commit(Commit::Process);
    }
    let first_epoch = w.image();
    writer.skip_to_last_base();
    for round in 0..6u8 {
        let before = w.data();
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(DATA_ADDR + 100, &[round + 10; 8]);
        let copy = World::from_image(&w.image());
        assert_eq!(recover(&copy), Outcome::RolledBack { entries: 1 }, "round {round}");
        assert_eq!(copy.data(), before);
        tx.commit(Commit::Process);
        let copy = World::from_image(&w.image());
        assert_eq!(recover(&copy), Outcome::Idle, "round {round}");
        assert_eq!(copy.data(), w.data());
    }
    let summary = w.inspect(CrashKind::Process).unwrap();
    assert!(summary.range.base() < 100, "the numbers started again");
    // The old entries themselves, put back under the new epoch: they do not count.
    let mut image = w.image();
    let entries = ENTRIES_OFFSET as usize..SEGMENT;
    image[entries.clone()].copy_from_slice(&first_epoch[entries]);
    for base in [0, 4] {
        let copy = World::from_image(&image);
        // SAFETY: the world's own memory.
        unsafe {
            copy.head().range().store(SequenceRange::running(base).to_word(), Ordering::Relaxed);
            copy.head().tail().store(0, Ordering::Relaxed);
        }
        assert_eq!(recover(&copy), Outcome::Idle, "base {base}");
        assert_eq!(copy.data(), w.data());
    }
}

#[test]
fn a_tail_word_of_an_old_epoch_says_nothing_about_the_new_one() {
    let w = world();
    let mut writer = w.writer();
    let mut tx = Tx::begin(&w, &mut writer);
    tx.change(DATA_ADDR, &[1; 900]); // base 0
    tx.change(DATA_ADDR, &[2; 900]); // ... in a further segment
    assert!(tx.writer.has_overflowed());
    tx.commit(Commit::Process);
    writer.skip_to_last_base();
    (0..3).for_each(|_| writer.finish()); // no entries: the tail word still speaks of base 0
    assert_eq!(w.inspect(CrashKind::Process).unwrap().range.base(), 4);
    // SAFETY: the world's own memory.
    unsafe { w.head().range() }.store(SequenceRange::running(0).to_word(), Ordering::Relaxed);
    assert_eq!(recover(&w), Outcome::Idle);
}

#[test]
fn replays_near_the_end_of_the_numbers_go_on_for_ever() {
    let w = world();
    w.writer().skip_to_last_base();
    for round in 0..if cfg!(miri) { 10 } else { 40u8 } {
        let before = w.data();
        let mut writer = w.writer();
        if round % 8 == 7 {
            writer.skip_to_last_base();
        }
        let mut tx = Tx::begin(&w, &mut writer);
        tx.change(DATA_ADDR, &[round; 8]);
        assert_eq!(recover(&w), Outcome::RolledBack { entries: 1 }, "round {round}");
        assert_eq!(w.data(), before);
        assert!(w.inspect(CrashKind::Process).unwrap().range.base() < LAST_BASE);
    }
}

#[test]
fn the_tail_word_counts_entries_exactly() {
    let w = world();
    let mut writer = w.writer();
    let mut tx = Tx::begin(&w, &mut writer);
    for i in 0..5 {
        tx.change(DATA_ADDR + i * 8, &[1; 8]);
        // SAFETY: the world's own memory.
        let tail = TailWord::from_word(unsafe { w.head().tail() }.load(Ordering::Relaxed));
        assert_eq!(tail, TailWord { base: 0, entries: i as u32 + 1 });
    }
}
