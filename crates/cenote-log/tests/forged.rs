//! Logs whose entries have right checksums and say what no writer says: refused whole.

use crate::common::*;
use crate::damage::quarantined;
use cenote_layout::checksum::checksum;
use cenote_layout::log::{
    AllocationMark, ENTRIES_OFFSET, EntryHeader, EntryKind, SequenceRange, TailWord, entry_seed,
    entry_size,
};
use cenote_log::{CrashKind, LogDamage, Outcome, Refusal};
use cenote_medium::Persistence;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

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
pub(crate) struct Forger {
    pub(crate) world: World,
    at: usize,
    count: u32,
}

impl Forger {
    pub(crate) fn new() -> Self {
        Self { world: World::new(Persistence::PROCESS), at: ENTRIES_OFFSET as usize, count: 0 }
    }

    pub(crate) fn put(&mut self, mut header: EntryHeader, data: &[u8]) {
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

    pub(crate) fn undo(&mut self, addr: u64, data: &[u8]) {
        self.put(self.header(EntryKind::Undo, addr, data.len() as u32), data);
    }

    pub(crate) fn header(&self, kind: EntryKind, addr: u64, size: u32) -> EntryHeader {
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
    pub(crate) fn refused(&self, what: &str) -> LogDamage {
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

/// A log whose second entry is about a range.
fn about(kind: EntryKind, addr: u64, len: usize) -> Forger {
    let mut forger = Forger::new();
    forger.undo(DATA_ADDR, &[0xee; 8]); // harmless, and not to be applied either
    let header = forger.header(kind, addr, len as u32);
    let mark = AllocationMark { word: DATA_ADDR + 64, mask: 1 };
    forger.put(
        header,
        match kind {
            EntryKind::Fresh => &[],
            EntryKind::Allocation => mark.as_bytes(),
            _ => &[0xff; 8][..len],
        },
    );
    let forward = kind.class() == 3;
    if matches!(kind, EntryKind::Fresh | EntryKind::Allocation) || forward {
        // A seal, so that fresh ranges are looked at, and redo counts.
        let image = forger.world.image();
        let sums =
            [256, 256 + 64].map(|at| u64::from_le_bytes(image[at..at + 8].try_into().unwrap()));
        let seal = [2, sums[0] ^ sums[1], 0];
        let header = forger.header(EntryKind::Seal, 0, 24);
        forger.put(header, seal.as_bytes());
    }
    if forward {
        // SAFETY: the world's own memory.
        unsafe { forger.world.head().range() }
            .store(SequenceRange::committed(0).to_word(), Ordering::Relaxed);
    }
    forger
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
            EntryKind::Undo,
            EntryKind::Redo,
            EntryKind::ClearBitsOnAbort,
            EntryKind::ClearBitsOnCommit,
            EntryKind::Fresh,
            EntryKind::Allocation,
        ] {
            let bits = matches!(kind, EntryKind::ClearBitsOnAbort | EntryKind::ClearBitsOnCommit);
            if bits && (len != 8 || addr % 8 != 0) {
                continue;
            }
            let forger = about(kind, addr, len);
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
        let header = forger.header(EntryKind::Allocation, DATA_ADDR + 64, 100);
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
    let cases: &[(&str, EntryKind, Change)] = &[
        ("kind 0", EntryKind::Undo, |h| h.kind = 0),
        ("kind 10", EntryKind::Undo, |h| h.kind = 10),
        ("kind 255", EntryKind::Undo, |h| h.kind = 255),
        ("an unknown kind of huge size", EntryKind::Fresh, |h| h.kind = 77),
        ("undo forward", EntryKind::Undo, |h| h.order = 0),
        ("redo backward", EntryKind::Redo, |h| h.order = 1),
        ("order 7", EntryKind::Undo, |h| h.order = 7),
        ("undo with redo's sequence number", EntryKind::Undo, |h| h.seq = 3),
        ("redo with undo's sequence number", EntryKind::Redo, |h| h.seq = 1),
        ("a number too high", EntryKind::Undo, |h| h.index += 1),
        ("a number too low", EntryKind::Undo, |h| h.index -= 1),
        ("bits of an odd address", EntryKind::ClearBitsOnAbort, |h| h.addr += 1),
        // Eight bytes of 0xff, and eight of zero: no multiple of 8.
        ("an allocation with an odd mark", EntryKind::Allocation, |_| ()),
        ("a seal of 8 bytes", EntryKind::Seal, |_| ()),
        ("a jump to nowhere", EntryKind::Jump, |_| ()),
        ("a jump to the head", EntryKind::Jump, |h| h.addr = SEGMENT_ADDR),
        ("a jump to segment 2", EntryKind::Jump, |h| h.addr = SEGMENT_ADDR + 0x2000_0000),
        ("a fresh range that wraps", EntryKind::Undo, |h| h.addr = u64::MAX - 6),
    ];
    for &(what, kind, change) in cases {
        let mut forger = Forger::new();
        forger.undo(DATA_ADDR, &[0xee; 8]);
        let mut header = forger.header(kind, DATA_ADDR + 64, 8);
        change(&mut header);
        let len = EntryKind::from_u8(header.kind).map_or(kind.data_len(8), |kind| kind.data_len(8));
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
        let header = forger.header(EntryKind::Undo, DATA_ADDR, size);
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

/// Ranges that overlap, each with its offset and length.
///
/// They are no damage. An entry holds the bytes that were there when it was logged, as earlier
/// entries' transactions had changed them. So only replay from the last entry to the first leads
/// back to the old bytes. A client that forges such a log gets what its entries say in that order,
/// and no other byte changes.
type Shape = Vec<(u64, usize)>;

fn shapes() -> Vec<(String, Shape)> {
    let mut shapes: Vec<(String, Shape)> = [
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
    shapes
}

#[test]
fn overlapping_ranges_are_rolled_back_last_first() {
    let shapes = shapes();
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
                        .append_range(EntryKind::Undo, DATA_ADDR + at, len, data, &mut |_, _, _| {
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
        let header = forger.header(EntryKind::Seal, 0, 24);
        forger.put(header, seal.as_bytes());
        assert!(
            matches!(forger.refused("seal"), LogDamage::Seal { .. } | LogDamage::Entry { .. }),
            "{seal:?}"
        );
    }
}
