//! Media that lie, and clients that do: a log that fails a check changes nothing, and stays as it
//! is.

use crate::common::*;
use cenote_layout::checksum::checksum;
use cenote_layout::log::{
    AllocationMark, CONTROL_OFFSET, ENTRIES_OFFSET, EntryHeader, Kind, LOG_QUARANTINED,
    RANGE_OFFSET, SequenceRange, TailWord, entry_seed, entry_size,
};
use cenote_log::{CrashKind, LogDamage, Outcome, Refusal};
use cenote_medium::Persistence;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

fn quarantined(outcome: &Outcome) -> bool {
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
        if entry.kind == Kind::Jump {
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

/// The checksum as the format says, computed from its words, not by the production code.
fn entry_checksum(header: &EntryHeader, data: &[u8]) -> u64 {
    let (seed, header) = (entry_seed(LOG_ID, 1), &header.as_bytes()[8..]);
    if data.len() <= 32 {
        checksum(seed, &[header, data].concat())
    } else {
        checksum(checksum(seed, header), data)
    }
}

/// Writes entries of any content with right checksums, as an attacker would.
struct Forger {
    world: World,
    at: usize,
    count: u32,
}

impl Forger {
    fn new() -> Self {
        Self { world: World::new(Persistence::PROCESS), at: ENTRIES_OFFSET as usize, count: 0 }
    }

    fn put(&mut self, mut header: EntryHeader, data: &[u8]) {
        header.checksum = entry_checksum(&header, data);
        let head = self.world.head().ptr;
        // SAFETY: the tests write few entries, all inside the first half.
        unsafe {
            head.add(self.at).copy_from_nonoverlapping(header.as_bytes().as_ptr(), 32);
            head.add(self.at + 32).copy_from_nonoverlapping(data.as_ptr(), data.len());
            self.count += 1;
            self.world
                .head()
                .tail()
                .store(TailWord { base: 0, entries: self.count }.to_word(), Ordering::Relaxed);
        }
        self.at += entry_size(data.len() as u64) as usize;
    }

    fn undo(&mut self, addr: u64, data: &[u8]) {
        self.put(self.header(Kind::Undo, addr, data.len() as u32), data);
    }

    fn header(&self, kind: Kind, addr: u64, size: u32) -> EntryHeader {
        EntryHeader {
            checksum: 0,
            addr,
            size,
            index: self.count,
            seq: kind.class(),
            kind: kind as u8,
            order: kind.order() as u8,
            unfenced: 0,
        }
    }

    /// Replays after both kinds of crash; nothing may change. The log's damage.
    fn refused(&self, what: &str) -> LogDamage {
        let image = self.world.image();
        let mut damage = None;
        for crash in [CrashKind::Power, CrashKind::Process] {
            let world = World::from_image(&image);
            match world.replay(crash) {
                Outcome::Quarantined(why) => damage = Some(why),
                other => panic!("{what}: {crash}: {other:?}"),
            }
            assert!(untouched(&world, &image), "{what}: something was applied");
        }
        damage.unwrap()
    }
}

#[test]
fn foreign_ranges_are_refused_with_all_else_unchanged() {
    let cases: &[(&str, u64, usize, Refusal)] = &[
        ("outside", 0x1000, 8, Refusal::Outside),
        ("null", 0, 8, Refusal::Outside),
        ("end of the address space", u64::MAX - 3, 8, Refusal::Outside),
        ("the last byte there is", u64::MAX, 1, Refusal::Outside),
        (
            "a puddle without a lease",
            FOREIGN_ADDR,
            8,
            Refusal::NotLeased(cenote_layout::id::PoolId(2)),
        ),
        ("from a leased puddle into a foreign one", FOREIGN_ADDR - 4, 8, Refusal::Outside),
        (
            "from a leased puddle into another leased one",
            DATA_ADDR + DATA as u64 - 4,
            8,
            Refusal::Outside,
        ),
        ("the log itself", SEGMENT_ADDR, 8, Refusal::Outside),
        ("from before a puddle", DATA_ADDR - 1, 8, Refusal::Outside),
    ];
    for &(what, addr, len, ref refusal) in cases {
        for kind in [
            Kind::Undo,
            Kind::Redo,
            Kind::ClearBitsOnAbort,
            Kind::ClearBitsOnCommit,
            Kind::Fresh,
            Kind::Allocation,
        ] {
            let bits = matches!(kind, Kind::ClearBitsOnAbort | Kind::ClearBitsOnCommit);
            if bits && (len != 8 || addr % 8 != 0) {
                continue;
            }
            let mut forger = Forger::new();
            forger.undo(DATA_ADDR, &[0xee; 8]); // harmless, and not to be applied either
            let header = forger.header(kind, addr, len as u32);
            let mark = AllocationMark { word: DATA_ADDR + 64, mask: 1 };
            forger.put(
                header,
                match kind {
                    Kind::Fresh => &[],
                    Kind::Allocation => mark.as_bytes(),
                    _ => &[0xff; 8][..len],
                },
            );
            let forward = kind.class() == 3;
            if matches!(kind, Kind::Fresh | Kind::Allocation) || forward {
                // A seal, so that fresh ranges are looked at, and redo counts.
                let image = forger.world.image();
                let sums = [256, 256 + 64]
                    .map(|at| u64::from_le_bytes(image[at..at + 8].try_into().unwrap()));
                let seal = [2, sums[0] ^ sums[1], 0];
                let header = forger.header(Kind::Seal, 0, 24);
                forger.put(header, seal.as_bytes());
            }
            if forward {
                // SAFETY: the world's own memory.
                unsafe { forger.world.head().range() }
                    .store(SequenceRange::committed(0).to_word(), Ordering::Relaxed);
            }
            match forger.refused(what) {
                LogDamage::ForeignRange { index: 1, addr: found, refusal: why, .. } => {
                    assert_eq!((found, &why), (addr, refusal), "{what} {kind:?}");
                }
                other => panic!("{what} {kind:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn an_allocation_whose_mark_is_not_the_owners_is_refused_with_all_else_unchanged() {
    for word in [0, 0x1000, FOREIGN_ADDR, DATA_ADDR - 8, SEGMENT_ADDR, u64::MAX - 7] {
        let mut forger = Forger::new();
        forger.undo(DATA_ADDR, &[0xee; 8]);
        let header = forger.header(Kind::Allocation, DATA_ADDR + 64, 100);
        forger.put(header, AllocationMark { word, mask: u64::MAX }.as_bytes());
        match forger.refused("a mark elsewhere") {
            LogDamage::ForeignRange { index: 1, addr, size: 8, .. } => assert_eq!(addr, word),
            other => panic!("{word:#x}: {other:?}"),
        }
    }
}

#[test]
fn right_checksums_over_nonsense_set_the_log_aside() {
    type Change = fn(&mut EntryHeader);
    let cases: &[(&str, Kind, Change)] = &[
        ("kind 0", Kind::Undo, |h| h.kind = 0),
        ("kind 10", Kind::Undo, |h| h.kind = 10),
        ("kind 255", Kind::Undo, |h| h.kind = 255),
        ("an unknown kind of huge size", Kind::Fresh, |h| h.kind = 77),
        ("undo forward", Kind::Undo, |h| h.order = 0),
        ("redo backward", Kind::Redo, |h| h.order = 1),
        ("order 7", Kind::Undo, |h| h.order = 7),
        ("undo with redo's sequence number", Kind::Undo, |h| h.seq = 3),
        ("redo with undo's sequence number", Kind::Redo, |h| h.seq = 1),
        ("a number too high", Kind::Undo, |h| h.index += 1),
        ("a number too low", Kind::Undo, |h| h.index -= 1),
        ("bits of an odd address", Kind::ClearBitsOnAbort, |h| h.addr += 1),
        // Eight bytes of 0xff, and eight of zero: no multiple of 8.
        ("an allocation with an odd mark", Kind::Allocation, |_| ()),
        ("a seal of 8 bytes", Kind::Seal, |_| ()),
        ("a jump to nowhere", Kind::Jump, |_| ()),
        ("a jump to the head", Kind::Jump, |h| h.addr = SEGMENT_ADDR),
        ("a jump to segment 2", Kind::Jump, |h| h.addr = SEGMENT_ADDR + 0x2000_0000),
        ("a fresh range that wraps", Kind::Undo, |h| h.addr = u64::MAX - 6),
    ];
    for &(what, kind, change) in cases {
        let mut forger = Forger::new();
        forger.undo(DATA_ADDR, &[0xee; 8]);
        let mut header = forger.header(kind, DATA_ADDR + 64, 8);
        change(&mut header);
        let len = Kind::from_u8(header.kind).map_or(kind.data_len(8), |kind| kind.data_len(8));
        let data = [[0xff; 8], [0; 8]].concat();
        let data = &data[..len as usize];
        forger.put(header, data);
        forger.refused(what);
    }
}

#[test]
fn sizes_that_lead_out_of_the_log_are_no_entries() {
    for size in [1024, 2048, 4096, 1 << 20, u32::MAX - 7, u32::MAX] {
        let mut forger = Forger::new();
        forger.undo(DATA_ADDR, &[0xee; 8]);
        let header = forger.header(Kind::Undo, DATA_ADDR, size);
        forger.put(header, &[]);
        let image = forger.world.image();
        let world = World::from_image(&image);
        assert!(quarantined(&world.replay(CrashKind::Process)), "{size}");
        assert!(untouched(&world, &image));
        // After a loss of power it is a torn end.
        let world = World::from_image(&image);
        assert_eq!(world.replay(CrashKind::Power), Outcome::RolledBack { entries: 1 }, "{size}");
    }
}

/// Ranges that overlap are no damage: an entry holds what was there when it was logged, which is
/// what earlier entries' ranges had been changed to. Only the last first leads back to the old
/// bytes; a client that forges such a log gets what its entries say in that order, and nothing
/// beside them.
#[test]
fn overlapping_ranges_are_rolled_back_last_first() {
    let mut shapes: Vec<(String, Vec<(u64, usize)>)> = [
        ("the second behind the first", vec![(0, 16), (8, 16)]),
        ("the second before the first", vec![(8, 16), (0, 16)]),
        ("one byte in common", vec![(0, 9), (8, 9)]),
        ("the second inside the first", vec![(0, 40), (13, 5)]),
        ("the second around the first", vec![(13, 5), (0, 40)]),
        ("the same start", vec![(4, 8), (4, 30), (4, 3)]),
        ("the same end", vec![(4, 30), (30, 4), (10, 24)]),
        ("stairs up", (0..9).map(|step| (step * 5, 12)).collect()),
        ("stairs down", (0..9).rev().map(|step| (step * 5, 12)).collect()),
        ("over two that do not touch", vec![(0, 8), (20, 8), (4, 20)]),
        ("to the last byte of a puddle", vec![(DATA as u64 - 30, 30), (DATA as u64 - 40, 20)]),
        ("some that need further segments", vec![(0, 700), (300, 700), (100, 500), (650, 350)]),
    ]
    .map(|(name, ranges)| (name.to_owned(), ranges))
    .into();
    let mut random = Random(5);
    for number in 0..200 {
        let ranges =
            (0..2 + random.below(7)).map(|_| (random.below(60) as u64, 1 + random.below(24)));
        shapes.push((format!("random shape {number}"), ranges.collect()));
    }
    for (name, ranges) in &shapes {
        for crash in [CrashKind::Process, CrashKind::Power] {
            let world = World::new(Persistence::PROCESS);
            let old = world.data();
            let mut writer = world.writer();
            let mut tx = Tx::begin(&world, &mut writer);
            let mut entries = 0;
            for (value, &(at, len)) in (0x80..).zip(ranges) {
                let mut logged = 0;
                // SAFETY: `at` checks the range.
                unsafe {
                    let data = world.at(DATA_ADDR + at, len);
                    let writer = &mut tx.writer;
                    writer
                        .append_range(Kind::Undo, DATA_ADDR + at, len, data, &mut |_, _, _| {
                            logged += 1
                        })
                        .unwrap();
                }
                entries += logged;
                tx.writer.fence();
                world.write(DATA_ADDR + at, &vec![value; len]);
            }
            drop(writer);
            assert_ne!(world.data(), old, "{name}");
            assert_eq!(world.replay(crash), Outcome::RolledBack { entries }, "{name} {crash}");
            assert!(world.data() == old, "{name} {crash}: not the old bytes");
        }
    }
    // Forged: what the entries hold never was there.
    for (name, ranges) in
        shapes.iter().filter(|(_, ranges)| ranges.iter().all(|(_, len)| *len <= 40))
    {
        let mut forger = Forger::new();
        let mut expected = forger.world.data();
        for (number, &(at, len)) in ranges.iter().enumerate() {
            forger.undo(DATA_ADDR + at, &vec![0xc0 + number as u8; len]);
        }
        for (number, &(at, len)) in ranges.iter().enumerate().rev() {
            expected[at as usize..at as usize + len].fill(0xc0 + number as u8);
        }
        let image = forger.world.image();
        for crash in [CrashKind::Process, CrashKind::Power] {
            let world = World::from_image(&image);
            let entries = ranges.len() as u64;
            assert_eq!(world.replay(crash), Outcome::RolledBack { entries }, "{name} {crash}");
            assert!(world.data() == expected, "{name} {crash}: not what the first entries say");
        }
    }
}

#[test]
fn a_seal_over_other_entries_sets_the_log_aside() {
    for seal in [[1, 0, 0], [2, 0, 0], [0, 0, 0], [u64::MAX, 1, 2]] {
        let mut forger = Forger::new();
        forger.undo(DATA_ADDR, &[0xee; 8]);
        let header = forger.header(Kind::Seal, 0, 24);
        forger.put(header, seal.as_bytes());
        assert!(
            matches!(forger.refused("seal"), LogDamage::Seal { .. } | LogDamage::Entry { .. }),
            "{seal:?}"
        );
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
    let body = cenote_log::Body {
        // SAFETY: inside the vector, which no other code uses.
        ptr: unsafe { memory.as_mut_ptr().add(offset).cast() },
        len: LEN as u64,
    };
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
