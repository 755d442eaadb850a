//! Media that lie, and clients that do: a log that fails a check changes nothing, and stays as it
//! is.

use crate::common::*;
use crate::forged::Forger;
use cenote_layout::checksum::checksum;
use cenote_layout::log::{
    CONTROL_OFFSET, ENTRIES_OFFSET, EntryKind, LOG_QUARANTINED, RANGE_OFFSET, SequenceRange,
    TailWord, entry_size,
};
use cenote_log::{CrashKind, LogDamage, Outcome};
use cenote_medium::Persistence;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) fn quarantined(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Quarantined(_) | Outcome::AlreadyQuarantined)
}

/// Bytes of a segment: where they lie in an image, and what they are.
fn segment_bytes(number: usize, range: Range<u64>) -> Range<usize> {
    number * SEGMENT + range.start as usize..number * SEGMENT + range.end as usize
}

fn range_word() -> Range<usize> {
    segment_bytes(0, RANGE_OFFSET..RANGE_OFFSET + 8)
}

/// Words that may be anything without any harm: hints.
fn hints() -> Vec<Range<usize>> {
    // tail, last, overflow
    let mut hints = vec![segment_bytes(0, RANGE_OFFSET + 8..RANGE_OFFSET + 32)];
    // Control and range line of further segments are not used.
    hints.extend((1..SEGMENTS).map(|n| segment_bytes(n, CONTROL_OFFSET..ENTRIES_OFFSET)));
    hints
}

/// Where the entries of an image's transaction stand, padding excluded.
fn entries(image: &[u8]) -> Vec<Range<usize>> {
    let world = World::from_image(image);
    let range =
        SequenceRange::from_word(u64::from_le_bytes(image[range_word()].try_into().unwrap()))
            .unwrap();
    let mut at = ENTRIES_OFFSET as usize + (range.base() as usize / 4 % 2) * 1024;
    let mut found = Vec::new();
    for entry in world.inspect(CrashKind::Process).unwrap().entries {
        let len = u64::from(entry.kind.data_len(entry.size));
        found.push(at..at + 32 + len as usize);
        at += entry_size(len) as usize;
        if entry.kind == EntryKind::Jump {
            at = (entry.addr - SEGMENT_ADDR) as usize / 0x1000_0000 * SEGMENT
                + ENTRIES_OFFSET as usize;
        }
    }
    found
}

/// Crashed logs of every kind.
fn crashed() -> Vec<(&'static str, Image)> {
    let mut out = Vec::new();
    let mut make = |name, f: &dyn Fn(&World)| {
        let w = World::new(Persistence::PROCESS);
        // An earlier transaction in each half, so that stale entries stand behind.
        let mut writer = w.writer();
        for round in 0..3u8 {
            let mut tx = Tx::begin(&w, &mut writer);
            (0..6).for_each(|i| tx.change(DATA_ADDR + i * 16, &[round; 12]));
            tx.commit(Commit::Process);
        }
        drop(writer);
        f(&w);
        out.push((name, w.image()));
    };
    make("running", &|w| {
        let mut writer = w.writer();
        let mut tx = Tx::begin(w, &mut writer);
        tx.change(DATA_ADDR, &[0xa1; 8]);
        tx.set_bits(DATA_ADDR + 512, 0xff00);
        tx.allocate(DATA_ADDR + 600, &[0xa3; 20], DATA_ADDR + 520, 0xff00);
        tx.volatile(0x1000, &[1; 5]);
        tx.change(DATA_ADDR + 1024, &[0xa2; 13]);
        tx.log_undo(DATA_ADDR + 100, 8); // the last one: its range is not changed yet
    });
    make("committed", &|w| {
        let mut writer = w.writer();
        let mut tx = Tx::begin(w, &mut writer);
        tx.change(DATA_ADDR, &[0xb1; 8]);
        tx.set(DATA_ADDR + 200, &[0xb2; 11]);
        tx.clear_bits(DATA_ADDR + 512, 0xff);
        tx.set(DATA_ADDR + 1024, &[0xb3; 8]);
        tx.flush_contents();
        tx.seal();
        tx.writer.fence();
        tx.writer.mark_committed();
        w.write(DATA_ADDR + 200, &[0xb2; 4]); // half applied
    });
    make("committed without a seal", &|w| {
        let mut writer = w.writer();
        let mut tx = Tx::begin(w, &mut writer);
        tx.change(DATA_ADDR, &[0xb1; 8]);
        tx.set(DATA_ADDR + 200, &[0xb2; 11]);
        tx.writer.mark_committed();
        w.write(DATA_ADDR + 200, &[0xb2; 4]);
    });
    make("sealed", &|w| {
        let mut writer = w.writer();
        let mut tx = Tx::begin(w, &mut writer);
        tx.change(DATA_ADDR, &[0xc1; 8]);
        tx.allocate(DATA_ADDR + 600, &[0xc4; 20], DATA_ADDR + 520, 0xff00);
        tx.change(DATA_ADDR + 64, &[0xc2; 8]);
        tx.set(DATA_ADDR + 200, &[0xc3; 8]);
        tx.seal();
        tx.writer.fence();
    });
    make("overflowed", &|w| {
        let mut writer = w.writer();
        let mut tx = Tx::begin(w, &mut writer);
        tx.change(DATA_ADDR, &[0xd1; 600]);
        tx.change(DATA_ADDR + 1024, &[0xd2; 800]);
        tx.change(DATA_ADDR + 700, &[0xd3; 16]);
        tx.log_undo(DATA_ADDR + 1024 + 900, 16);
    });
    out
}

/// Data after recovery.
fn recovered(image: &[u8], crash: CrashKind) -> (Outcome, Vec<u8>) {
    let world = World::from_image(image);
    let outcome = world.replay(crash);
    (outcome, world.data())
}

fn in_any(ranges: &[Range<usize>], at: usize) -> bool {
    ranges.iter().any(|r| r.contains(&at))
}

#[test]
fn after_a_crash_of_processes_every_flipped_bit_is_harmless_or_sets_the_log_aside() {
    for (name, image) in crashed() {
        let (outcome, expected) = recovered(&image, CrashKind::Process);
        assert!(!quarantined(&outcome), "{name}: {outcome:?}");
        let entries = entries(&image);
        let mut harmless = BTreeSet::new();
        for bit in 0..DATA_AT * 8 {
            let mut bad = image.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let world = World::from_image(&bad);
            let outcome = world.replay(CrashKind::Process);
            if quarantined(&outcome) {
                assert!(
                    untouched(&world, &image),
                    "{name}: bit {bit}: {outcome:?} but something was applied"
                );
                // All bytes but the mark are as they were, so that the log can be repaired.
                let mut kept = world.image();
                kept[128 + 8..128 + 16].copy_from_slice(&bad[128 + 8..128 + 16]);
                assert!(kept == bad, "{name}: bit {bit}: the log was changed");
                assert!(
                    quarantined(&world.replay(CrashKind::Process)),
                    "{name}: bit {bit}: did not stay set aside"
                );
                assert!(untouched(&world, &image));
            } else {
                assert!(
                    world.data() == expected,
                    "{name}: bit {bit}: {outcome:?}, and another state"
                );
                harmless.insert(bit / 8);
            }
        }
        // (The tail word is no hint for a committed log: there every bit of it counts, which is
        // allowed too.) Which bits may be anything: hints, what is no part of an entry, and
        // nothing else.
        let covered = |at: usize| {
            (at < ENTRIES_OFFSET as usize && !in_any(&hints(), at)) || in_any(&entries, at)
        };
        let wrong: Vec<_> = harmless.iter().filter(|&&at| covered(at)).collect();
        assert!(wrong.is_empty(), "{name}: bytes {wrong:?} are not covered");
    }
}

#[test]
fn after_a_loss_of_power_every_flipped_bit_is_harmless_or_sets_the_log_aside_or_looks_torn() {
    for (name, image) in crashed() {
        let (outcome, expected) = recovered(&image, CrashKind::Power);
        let without_seal = name == "committed without a seal";
        assert_eq!(quarantined(&outcome), without_seal, "{name}: {outcome:?}");
        // A seal that looks torn counts as never acknowledged: the transaction is rolled back as a
        // whole.
        let mut allowed = vec![expected];
        if name == "sealed" {
            let mut unsealed = image.clone();
            unsealed[entries(&image).last().unwrap().start] ^= 1;
            allowed.push(recovered(&unsealed, CrashKind::Power).1);
            assert_ne!(allowed[0], allowed[1]);
        }
        for bit in 0..DATA_AT * 8 {
            let mut bad = image.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let world = World::from_image(&bad);
            let outcome = world.replay(CrashKind::Power);
            if quarantined(&outcome) {
                assert!(
                    untouched(&world, &image),
                    "{name}: bit {bit}: {outcome:?} but something was applied"
                );
            } else {
                assert!(
                    allowed.contains(&world.data()),
                    "{name}: bit {bit}: {outcome:?}, and another state"
                );
            }
        }
    }
}

#[test]
fn pairs_of_flipped_bits_are_harmless_or_set_the_log_aside() {
    let mut random = Random(11);
    for (name, image) in crashed() {
        let (_, expected) = recovered(&image, CrashKind::Process);
        for _ in 0..30_000 {
            let mut bad = image.clone();
            for _ in 0..2 {
                // Mostly where it hurts.
                let at = if random.below(3) == 0 {
                    random.below(256)
                } else {
                    random.below(3 * SEGMENT)
                };
                bad[at] ^= 1 << random.below(8);
            }
            let world = World::from_image(&bad);
            let outcome = world.replay(CrashKind::Process);
            // The one thing that two flips can do: a tail that no longer tells, and an entry that
            // then looks torn.
            let tail = segment_bytes(0, RANGE_OFFSET + 8..RANGE_OFFSET + 16);
            if quarantined(&outcome) {
                assert!(untouched(&world, &image), "{name}: {outcome:?}");
            } else if bad[tail.clone()] == image[tail] {
                assert!(world.data() == expected, "{name}: {outcome:?}");
            }
        }
    }
}

#[test]
fn a_log_set_aside_stays_so_when_the_reason_is_gone() {
    let (_, image) = crashed().swap_remove(0);
    let mut bad = image.clone();
    bad[entries(&image)[0].start + 40 - 8] ^= 1;
    let world = World::from_image(&bad);
    assert!(matches!(
        world.replay(CrashKind::Process),
        Outcome::Quarantined(LogDamage::Entry { index: 0, .. })
    ));
    // The damage is undone: the log stays set aside, and replay applies nothing.
    let mut healed = world.image();
    healed[ENTRIES_OFFSET as usize..SEGMENT]
        .copy_from_slice(&image[ENTRIES_OFFSET as usize..SEGMENT]);
    for crash in [CrashKind::Process, CrashKind::Power] {
        let world = World::from_image(&healed);
        assert_eq!(world.replay(crash), Outcome::AlreadyQuarantined);
        assert!(untouched(&world, &image));
        assert!(world.attach().is_err());
        assert!(world.inspect(crash).unwrap().quarantined);
    }
    // Even if the mark itself is damaged.
    for bit in 0..64 {
        let world = World::from_image(&healed);
        // SAFETY: the world's own memory.
        unsafe { world.head().state() }.fetch_xor(1 << bit, Ordering::Relaxed);
        assert!(quarantined(&world.replay(CrashKind::Process)), "bit {bit}");
        assert!(untouched(&world, &image));
    }
}

#[test]
fn a_log_of_a_newer_release_is_neither_applied_nor_marked() {
    let (_, image) = crashed().swap_remove(0);
    for (offset, value) in [(8, 2u8), (24, 1), (32, 1)] {
        // version, ro_compat, incompat
        let mut newer = image.clone();
        newer[offset] = value;
        newer[40..48].fill(0);
        let sum = checksum(cenote_layout::checksum::seed::LOG, &newer[..128]);
        newer[40..48].copy_from_slice(&sum.to_le_bytes());
        let world = World::from_image(&newer);
        assert!(
            matches!(
                world.replay(CrashKind::Process),
                Outcome::Quarantined(LogDamage::Unsupported(_))
            ),
            "{offset}"
        );
        assert_eq!(world.image(), newer, "{offset}");
    }
}

/// A committed log is applied only if it is complete, and only the tail word or a seal can say so.
#[test]
fn a_committed_log_whose_count_is_lost_is_not_applied() {
    let (_, image) =
        crashed().into_iter().find(|(name, _)| *name == "committed without a seal").unwrap();
    for tail in [
        TailWord { base: 0, entries: 0 },
        TailWord { base: 12, entries: 1 },
        TailWord { base: 16, entries: 2 },
    ] {
        let world = World::from_image(&image);
        // SAFETY: the world's own memory.
        unsafe { world.head().tail() }.store(tail.to_word(), Ordering::Relaxed);
        assert_eq!(
            world.replay(CrashKind::Process),
            Outcome::Quarantined(LogDamage::Uncounted),
            "{tail:?}"
        );
        assert!(untouched(&world, &image));
    }
}

/// A write to the range line that never reached the medium: entries of later transactions tell.
#[test]
fn a_range_older_than_its_entries_is_not_believed() {
    for (name, image) in crashed() {
        let base = u32::from_le_bytes(image[range_word()][..4].try_into().unwrap()) & !3;
        for old in (0..base).step_by(4) {
            for crash in [CrashKind::Process, CrashKind::Power] {
                if crash == CrashKind::Power && old + 4 == base {
                    // That is how a loss of power may leave it.
                    continue;
                }
                let world = World::from_image(&image);
                // SAFETY: the world's own memory.
                unsafe { world.head().range() }
                    .store(SequenceRange::running(old).to_word(), Ordering::Relaxed);
                let outcome = world.replay(crash);
                assert!(
                    matches!(outcome, Outcome::Quarantined(LogDamage::Stale(_))),
                    "{name}: {old}: {outcome:?}"
                );
                assert!(untouched(&world, &image));
            }
        }
    }
}

#[test]
fn segments_that_lead_in_a_circle_or_to_others_are_refused() {
    let (_, image) = crashed().pop().unwrap();
    assert!(!quarantined(&recovered(&image, CrashKind::Process).0));
    for change in 0..4 {
        let world = World::from_image(&image);
        // SAFETY: the world's own memory; headers only.
        unsafe {
            use cenote_layout::header::seal;
            use cenote_layout::log::LogHeader;
            let body = world.segment(1);
            let (mut header, _) = LogHeader::read_from_prefix(body.bytes()).unwrap();
            match change {
                0 => header.owner = cenote_layout::id::Uuid([8; 16]),
                1 => header.log_id += 1,
                2 => header.segment = 0,
                _ => header.capacity += 128,
            }
            seal(&mut header);
            body.ptr.copy_from_nonoverlapping(header.as_bytes().as_ptr(), 128);
        }
        assert!(matches!(
            world.replay(CrashKind::Power),
            Outcome::Quarantined(LogDamage::Segment { number: 1, .. })
        ));
        assert!(untouched(&world, &image));
    }
}

/// A tail or overflow word that is damaged says nothing about the transactions after recovery.
#[test]
fn damaged_hints_do_not_outlive_recovery() {
    for base in (0..64).step_by(4) {
        for offset in [8, 24] {
            let world = World::new(Persistence::PROCESS);
            let hint = TailWord { base, entries: 3 }.to_word();
            let mut image = world.image();
            let at = RANGE_OFFSET as usize + offset;
            image[at..at + 8].copy_from_slice(&hint.to_le_bytes());
            let world = World::from_image(&image);
            for _ in 0..10 {
                match world.replay(CrashKind::Process) {
                    Outcome::Idle => {}
                    Outcome::Quarantined(_) if base == 0 => break, /* it is about the
                    * transaction in hand */
                    other => panic!("{base} {offset}: {other:?}"),
                }
            }
        }
    }
}

/// Words that look like entry headers at every place must not make recovery slow: the work is
/// limited.
#[test]
fn bytes_that_look_like_entries_everywhere_are_refused_in_time() {
    // 4 MiB of memory as one head, every word "sequence number 1, kind undo, backward", so that
    // sizes fit too.
    const LEN: usize = 16 << 20;
    let mut memory = vec![0u64; LEN / 8 + 8];
    let offset = memory.as_ptr().align_offset(64);
    // SAFETY: inside the vector, which no other code uses.
    let ptr = unsafe { memory.as_mut_ptr().add(offset).cast() };
    let body = cenote_log::Body::new(ptr, LEN as u64);
    let size = 1 << 20 | 1u64; // also an index: above the missing one
    let base = size as u32 - 1;
    // SAFETY: the body is memory of ours.
    unsafe {
        cenote_log::format_segment(body, OWNER, LOG_ID, 0, Persistence::PROCESS);
        body.range().store(SequenceRange::running(base & !3).to_word(), Ordering::Relaxed);
        let word = size | (1 << 32) | (1 << 40);
        for at in (ENTRIES_OFFSET as usize..LEN).step_by(8) {
            body.ptr.add(at).cast::<u64>().write(word);
        }
    }
    let start = std::time::Instant::now();
    let world = World::new(Persistence::PROCESS);
    // SAFETY: the body is memory of ours.
    let outcome = unsafe { cenote_log::replay(body, CrashKind::Power, &mut Target(&world)) };
    assert!(matches!(outcome, Outcome::Quarantined(LogDamage::Entry { .. })), "{outcome:?}");
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}

#[test]
fn the_mark_is_the_only_change_to_a_log_that_is_set_aside() {
    let mut forger = Forger::new();
    forger.undo(0x10, &[1; 8]);
    let before = forger.world.image();
    assert!(quarantined(&forger.world.replay(CrashKind::Process)));
    let mut expected = before;
    expected[CONTROL_OFFSET as usize + 8..CONTROL_OFFSET as usize + 16]
        .copy_from_slice(&LOG_QUARANTINED.to_le_bytes());
    assert_eq!(forger.world.image(), expected);
}
