//! Damage of a heap's metadata is found when the puddle is adopted, or it changes nothing; no block
//! is handed out twice, and none that lives is written over.
//!
//! The oracle of a flipped bit: the heap that opens names the superblock, or the metadata is, byte
//! for byte, what it is after an open of the heap without the flip. In the second case nothing that
//! happens later can be different.

use crate::common::{A, B, Heap, Random, TypeMap, backing, field, record, zero};
use cenote_heap::{
    Backing as _, Cancelled, FreeError, Heap as _, Inspect as _, MemoryBacking, RootError, Trace,
    TraceOptions, TracedHeap,
};
use cenote_layout::heap::{
    Descriptor, HeapGeometry, MEMBERS_SIZE, ROOT_COUNT, SUPERBLOCK_SIZE, SuperblockState,
};
use cenote_layout::id::TypeId;
use cenote_layout::mark;
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::environment::stride;
use std::ops::Range;
use zerocopy::FromBytes;

const PUDDLE: u64 = 256 << 10;

/// Blocks that are allocated together: sizes that use tiny marks, others, and large ones.
const KINDS: [&[u64]; 3] = [&[16, 64], &[48, 4096], &[100_000, 32]];

/// All of the puddle: tests play the part of stray writes.
#[allow(clippy::mut_from_ref)]
fn bytes(backing: &MemoryBacking) -> &mut [u8] {
    let extent = backing.extents()[0];
    let start = std::ptr::with_exposed_provenance_mut::<u8>(extent.addr as usize);
    // SAFETY: the only puddle; no other thread uses it, and the caller keeps no reference into it.
    unsafe { std::slice::from_raw_parts_mut(start, extent.size as usize) }
}

fn believing(marks: bool) -> TraceOptions<'static> {
    let mut options = TraceOptions::default();
    options.believe_marks = marks;
    options
}

/// A heap of one puddle that no process has open, and what is allocated in it.
struct Left {
    backing: MemoryBacking,
    image: Vec<u8>,
    live: Vec<(u64, u64, TypeId)>,
    kinds: Vec<u64>,
}

impl Left {
    /// Blocks of these sizes, some of them freed. Half of the heaps are left as a dead process
    /// leaves them: with blocks in caches, held and taken.
    fn new(puddle: u64, kinds: &[u64]) -> Self {
        let backing = backing(puddle, puddle);
        let heap = TracedHeap::open(backing.clone()).unwrap();
        let mut live = Vec::new();
        for (i, &size) in kinds.iter().enumerate() {
            let type_id = TypeId(A.0 + i as u64);
            let many = if size > 32 << 10 { 1 } else { 5 };
            let blocks: Vec<_> =
                (0..many).map(|_| heap.alloc(size, 16, type_id).unwrap()).collect();
            for (n, block) in blocks.iter().enumerate() {
                match n {
                    3 => heap.free(block.addr.as_ptr() as u64).unwrap(),
                    4 => heap.clear_mark(block),
                    _ => live.push((block.addr.as_ptr() as u64, block.size, type_id)),
                }
            }
        }
        heap.set_root(0, live[0].0, A).unwrap();
        drop(heap);
        Self { image: bytes(&backing).to_vec(), backing, live, kinds: kinds.to_vec() }
    }

    fn geometry(&self) -> HeapGeometry {
        HeapGeometry::new(self.image.len() as u64, true).unwrap()
    }

    fn metadata(&self) -> Range<usize> {
        let g = self.geometry();
        g.descriptors as usize..(g.first_usable * SUPERBLOCK_SIZE) as usize
    }

    /// All metadata as it was. (What is in blocks does not change meanwhile, or is of no account.)
    fn restore(&self) {
        let metadata = self.metadata();
        bytes(&self.backing)[metadata.clone()].copy_from_slice(&self.image[metadata]);
    }

    /// Whether the metadata is what it is in `opened`, but for words that tell one life of a
    /// superblock from another, and for descriptors of metadata, which openers write again.
    fn is_as(&self, opened: &[u8]) -> bool {
        let (g, now) = (self.geometry(), &*bytes(&self.backing));
        let line = |image: &[u8], i: u64| {
            let (d, _) =
                Descriptor::read_from_prefix(&image[(g.descriptors + 64 * i) as usize..]).unwrap();
            // The state of the anchor; the geometry without its generation.
            Descriptor {
                anchor: d.anchor & 0xff,
                next: 0,
                geometry: d.geometry & !(0x1_ffff << 46),
                ..d
            }
        };
        let same = |i: u64| match i < g.first_usable {
            true => {
                line(now, i).is_valid() && line(now, i).state == SuperblockState::Metadata as u32
            }
            false => line(now, i) == line(opened, i),
        };
        let rest = g.tiny as usize..(g.first_usable * SUPERBLOCK_SIZE) as usize;
        (0..g.superblocks).all(same) && now[rest.clone()] == opened[rest]
    }

    fn flip(&self, bit: u64) {
        bytes(&self.backing)[bit as usize / 8] ^= 1 << (bit % 8);
    }

    fn open(&self) -> Heap {
        TracedHeap::open(self.backing.clone()).unwrap()
    }

    /// Allocates all that there is: how many blocks overlap with one that lives, or with each
    /// other.
    fn overlaps(&self, heap: &Heap) -> usize {
        let mut all: Vec<(u64, u64)> =
            self.live.iter().map(|(addr, size, _)| (*addr, *size)).collect();
        for (i, &size) in self.kinds.iter().enumerate() {
            while let Ok(block) = heap.alloc(size, 16, TypeId(A.0 + i as u64)) {
                all.push((block.addr.as_ptr() as u64, block.size));
            }
        }
        while let Ok(block) = heap.alloc(SUPERBLOCK_SIZE, 16, B) {
            all.push((block.addr.as_ptr() as u64, block.size));
        }
        all.sort_unstable();
        all.windows(2).filter(|w| w[0].0 + w[0].1 > w[1].0).count()
    }

    /// The superblock of which byte `at` of the metadata says something, if it is a descriptor or a
    /// mark.
    fn superblock_of(&self, at: u64) -> Option<u64> {
        let g = self.geometry();
        let of = |range: Range<u64>, size| range.contains(&at).then(|| (at - range.start) / size);
        of(g.descriptors..g.descriptors + 64 * g.superblocks, 64)
            .or_else(|| of(g.tiny..g.marks, mark_room(16)))
            .or_else(|| of(g.marks..g.hints, mark_room(64)))
    }
}

fn mark_room(size: u64) -> u64 {
    SUPERBLOCK_SIZE / size
}

/// What flips of these bits came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    harmless: usize,
    named: usize,
    silent: usize,
    handed_out_twice: usize,
}

fn flip_each(left: &Left, bits: impl Iterator<Item = u64>) -> Counts {
    left.restore();
    drop(left.open());
    let opened = bytes(&left.backing).to_vec();
    let mut counts = Counts::default();
    for (n, bit) in bits.enumerate() {
        left.restore();
        left.flip(bit);
        let heap = left.open();
        let mut damage = heap.damage();
        if left.is_as(&opened) {
            assert!(damage.is_empty(), "bit {bit}: {damage:?}");
            counts.harmless += 1;
            continue;
        }
        // A free superblock with a broken descriptor stays free: check names it.
        if damage.is_empty() {
            damage = heap.check(None).unwrap().damage;
        }
        let named =
            damage.iter().any(|d| Some(u64::from(d.superblock)) == left.superblock_of(bit / 8));
        counts.named += usize::from(named);
        counts.silent += usize::from(!named);
        // Of those that are named a part, because it takes long.
        if !named || n % 101 == 0 {
            counts.handed_out_twice += left.overlaps(&heap);
        }
    }
    counts
}

/// All bits of descriptors and marks, those of tiny marks that are in use.
fn described(left: &Left) -> impl Iterator<Item = u64> {
    let g = left.geometry();
    let image = &left.image;
    let used = (0..g.superblocks).map(|i| g.marks_at(i, 16)..g.marks_at(i + 1, 16));
    let used = used
        .filter(|page| image[page.start as usize..page.end as usize].iter().any(|byte| *byte != 0));
    let parts: Vec<Range<u64>> = std::iter::once(g.descriptors..g.tiny)
        .chain(used)
        .chain(std::iter::once(g.marks..g.hints))
        .collect();
    parts.into_iter().flat_map(|part| part.start * 8..part.end * 8)
}

/// Every bit of each kind of block if `CENOTE_FLIPS` says `all`; otherwise every bit of the first
/// kind, and one in 37 of the others.
#[test]
fn every_flipped_bit_of_descriptors_and_marks_is_named_or_harmless() {
    let all = std::env::var("CENOTE_FLIPS").is_ok_and(|flips| flips == "all");
    let others = if all { 1 } else { 37 };
    let steps = [stride(1), others, others].map(|step| step as usize);
    for (kinds, step) in KINDS.into_iter().zip(steps) {
        let left = Left::new(PUDDLE, kinds);
        let counts = flip_each(&left, described(&left).step_by(step));
        println!("blocks of {kinds:?} bytes, one bit in {step}: {counts:?}");
        assert_eq!((counts.silent, counts.handed_out_twice), (0, 0), "{kinds:?}: {counts:?}");
        assert!(
            counts.named > 8000 / step && counts.harmless > 1000 / step,
            "{kinds:?}: {counts:?}"
        );
    }
}

#[test]
fn what_members_left_is_named_if_a_bit_of_it_flips() {
    let left = Left::new(PUDDLE, &[64]);
    let first = left.geometry().marks
        + (left.live[0].0 - left.backing.extents()[0].addr) / SUPERBLOCK_SIZE * 1024;
    let marks =
        (1..=56).flat_map(|member| [mark::cached(member), mark::held(member)]).chain([mark::TAKEN]);
    for mark in marks {
        let mut left = Left {
            image: left.image.clone(),
            backing: left.backing.clone(),
            ..Left::new(PUDDLE, &[64])
        };
        left.image[first as usize + 100] = mark;
        let at = (first + 100) * 8;
        let counts = flip_each(&left, at..at + 8);
        assert_eq!(counts, Counts { named: 8, ..Counts::default() }, "{mark:#x}");
    }
}

#[test]
fn what_only_running_processes_read_is_written_anew_over_any_bytes() {
    let left = Left::new(PUDDLE, KINDS[0]);
    let g = left.geometry();
    let volatile = [g.hints..g.hints + 8, g.lists..g.members];
    let mut random = Random(11);
    let bits: Vec<u64> = volatile.iter().flat_map(|part| part.start * 8..part.end * 8).collect();
    let some =
        (0..3000).map(|_| bits[random.below(bits.len() as u64) as usize]).collect::<Vec<_>>();
    let counts = flip_each(&left, some.into_iter());
    assert_eq!((counts.named, counts.silent), (0, 0), "{counts:?}");
    // The table of members means nothing to a process that has the pool alone: the heap neither
    // reads nor writes it.
    let mut members = flip_each(&left, g.members * 8..(g.members + 64) * 8);
    members.harmless += members.silent;
    assert_eq!((members.named, members.handed_out_twice, MEMBERS_SIZE % 64), (0, 0, 0));
}

#[test]
fn every_flipped_bit_of_a_root_is_found_when_the_root_is_read() {
    let left = Left::new(PUDDLE, &[64]);
    let heap = left.open();
    let (addr, _, type_id) = left.live[0];
    for index in 1..ROOT_COUNT as u16 {
        let addr = if index % 2 == 0 { addr } else { 0 };
        heap.set_root(index, addr, type_id).unwrap();
    }
    let roots = left.geometry().roots;
    let mut found = [0; 2];
    for bit in 0..ROOT_COUNT * 128 {
        let index = (bit / 128) as u16;
        let before = heap.root(index).unwrap();
        left.flip(roots * 8 + bit);
        match heap.root(index) {
            Err(RootError::Damaged { index: named, .. }) => {
                assert_eq!(named, index);
                found[0] += 1;
            }
            // Of a root that leads nowhere the type says nothing.
            Ok(root) => {
                assert!(root.addr == 0 && before.addr == 0 && bit % 128 >= 64, "bit {bit}");
                found[1] += 1;
            }
            Err(error) => panic!("{error}"),
        }
        left.flip(roots * 8 + bit);
    }
    assert_eq!(found, [512 * 128 + 512 * 64, 512 * 64]);
}

#[test]
fn what_a_damaged_root_led_to_is_kept_by_recovery() {
    let types = TypeMap::from([(A, record(A, 64, false, vec![field(0, 8, A)]))]);
    for believe in [false, true] {
        let left = Left::new(PUDDLE, &[64]);
        left.flip(left.geometry().roots * 8 + 21);
        let heap = left.open();
        let report = heap.check(Some(&types)).unwrap();
        assert_eq!((report.damaged_roots, report.trace.unwrap().roots), (vec![0], 0));
        let options = believing(believe);
        let report = heap.recover_with(&types, &[], options).unwrap();
        assert_eq!((report.damaged_roots, report.freed_blocks), (vec![0], 0));
        assert!(left.live.iter().all(|(addr, _, type_id)| heap.is_live(*addr, *type_id)));
        heap.set_root(0, left.live[0].0, A).unwrap();
        let report = heap.recover(&types, &[]).unwrap();
        assert_eq!(
            (report.damaged_roots.len(), report.freed_blocks as usize),
            (0, left.live.len() - 1)
        );
    }
}

#[test]
fn blocks_of_a_quarantined_superblock_can_be_read_and_are_not_freed_until_tracing_repairs_it() {
    let types = TypeMap::from([(A, record(A, 64, false, vec![field(0, 8, A)]))]);
    for size in [16, 64] {
        let left = Left::new(PUDDLE, &[size]);
        let (hit, other) = (left.live[1].0, left.live[2].0);
        let extent = left.backing.extents()[0];
        let number = (hit - extent.addr) / SUPERBLOCK_SIZE;
        let at = left.geometry().marks_at(number, size) + hit % SUPERBLOCK_SIZE / size;
        for bit in 0..8 {
            left.restore();
            left.flip(at * 8 + bit);
            let heap = left.open();
            let [damage] = heap.damage()[..] else { panic!("{:?}", heap.damage()) };
            let found = damage.quarantine.unwrap();
            assert_eq!(
                (found.type_id, found.block_size, found.blocks, found.marks),
                (A, size, 2, 1)
            );
            assert_eq!((found.first, found.found), (hit, 0xff ^ 1 << bit));
            for text in [format!("{hit:#x}"), A.to_string(), format!("{:#04x}", found.found)] {
                assert!(damage.to_string().contains(&text), "{damage}");
            }
            assert!(!heap.check(None).unwrap().is_sound());
            assert!(heap.is_live(other, A));
            for addr in [hit, other] {
                assert_eq!(heap.free(addr), Err(FreeError::Damaged { addr }));
                assert_eq!(heap.find(addr).unwrap_err(), FreeError::Damaged { addr });
            }
            heap.set_root(1, hit, A).unwrap();
            heap.set_root(2, other, A).unwrap();
            let options = believing(true);
            let report = heap.recover_with(&types, &[], options).unwrap();
            assert_eq!(
                (report.repaired_marks, report.freed_blocks, report.dangling_blocks),
                (1, 0, 0)
            );
            assert!(heap.damage().is_empty() && heap.check(None).unwrap().is_sound());
            assert!(heap.is_live(hit, A) && heap.is_live(other, A));
            heap.free(hit).unwrap();
            heap.free(other).unwrap();
        }
    }
}

/// Writes over what is behind the last block of a superblock with blocks of `size` bytes; all of
/// them but one are allocated.
fn overflow(size: u64, len: usize) -> Left {
    let backing = backing(PUDDLE, PUDDLE);
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let mut live: Vec<(u64, u64, TypeId)> = Vec::new();
    loop {
        let block = heap.alloc(size, 16, A).unwrap();
        let addr = block.addr.as_ptr() as u64;
        zero(addr, size);
        if live.first().is_some_and(|(first, ..)| first & !0xffff != addr & !0xffff) {
            break;
        }
        live.push((addr, block.size, A));
    }
    let last = live.iter().map(|(addr, ..)| *addr).max().unwrap();
    drop(heap);
    let at = (last + size - backing.extents()[0].addr) as usize;
    bytes(&backing)[at..at + len].fill(0x5a);
    let image = bytes(&backing).to_vec();
    Left { backing, image, live, kinds: vec![size] }
}

#[test]
fn a_store_behind_the_last_block_changes_no_mark() {
    for size in [16, 32, 48, 64, 4096] {
        for len in [1, 8, 400] {
            let left = overflow(size, len);
            let heap = left.open();
            assert!(heap.damage().is_empty() && heap.check(None).unwrap().is_sound());
            assert!(left.live.iter().all(|(addr, ..)| heap.is_live(*addr, A)), "{size} {len}");
            assert_eq!(left.overlaps(&heap), 0, "{size} {len}");
        }
    }
}

#[test]
fn garbage_in_marks_is_named_and_nothing_is_handed_out_there() {
    let mut random = Random(7);
    for kinds in KINDS {
        let left = Left::new(PUDDLE, kinds);
        let (addr, size, _) = left.live[random.below(left.live.len() as u64) as usize];
        let number = (addr - left.backing.extents()[0].addr) / SUPERBLOCK_SIZE;
        let first = left.geometry().marks_at(number, size) as usize;
        for len in 1..=64 {
            left.restore();
            let garbage: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            bytes(&left.backing)[first..first + len].copy_from_slice(&garbage);
            let heap = left.open();
            let legal = |mark: &u8| !mark::is_illegal(*mark);
            if garbage.iter().any(|mark| !legal(mark)) {
                assert!(
                    heap.damage().iter().any(|d| u64::from(d.superblock) == number),
                    "{garbage:?}"
                );
                assert_eq!(left.overlaps(&heap), 0, "{garbage:?}");
            }
        }
    }
}

#[test]
fn random_bits_of_a_large_heap_are_named_and_nothing_is_handed_out_twice() {
    let left = Left::new(4 << 20, &[16, 32, 48, 64, 200, 1000, 4096, 20_000, 100_000]);
    let mut random = Random(0x51);
    let g = left.geometry();
    let parts = [g.descriptors..g.tiny, g.marks..g.hints];
    let bits: Vec<u64> = (0..400)
        .map(|i| {
            let (addr, size, _) = left.live[random.below(left.live.len() as u64) as usize];
            let number = (addr - left.backing.extents()[0].addr) / SUPERBLOCK_SIZE;
            match i % 2 {
                0 => (g.marks_at(number, size) + random.below(8)) * 8 + random.below(8),
                _ => {
                    let part = &parts[random.below(2) as usize];
                    part.start * 8 + random.below((part.end - part.start) * 8)
                }
            }
        })
        .collect();
    let counts = flip_each(&left, bits.into_iter());
    assert_eq!((counts.silent, counts.handed_out_twice), (0, 0), "{counts:?}");
    assert!(counts.named > 180, "{counts:?}");
}

#[test]
fn a_zeroed_descriptor_with_marks_behind_it_is_damage() {
    for kinds in KINDS {
        let left = Left::new(PUDDLE, kinds);
        for (addr, ..) in &left.live {
            left.restore();
            let number = (addr - left.backing.extents()[0].addr) / SUPERBLOCK_SIZE;
            let at = (left.geometry().descriptors + number * 64) as usize;
            bytes(&left.backing)[at..at + 64].fill(0);
            let heap = left.open();
            assert!(heap.damage().iter().any(|d| d.lost && u64::from(d.superblock) == number));
            assert_eq!(heap.free(*addr), Err(FreeError::Damaged { addr: *addr }));
            assert_eq!(left.overlaps(&heap), 0);
        }
    }
}

#[test]
fn tiny_marks_that_a_dead_process_left_take_no_block_from_the_next() {
    for bug in [Bug::None, Bug::MarksNotCleared] {
        // One superblock for blocks.
        let backing = backing(128 << 10, 128 << 10);
        let heap = TracedHeap::open(backing.clone()).unwrap();
        // All its blocks are in a cache, and none is allocated.
        assert!(heap.alloc_with(16, 16, A, &mut |_| Err(Cancelled)).is_err());
        drop(heap);
        let heap = TracedHeap::open(backing).unwrap();
        plant(bug);
        let blocks = std::iter::from_fn(|| heap.alloc(16, 16, B).ok()).take(5000).count();
        plant(Bug::None);
        assert_eq!(blocks == 4096, bug == Bug::None, "{bug:?}: {blocks}");
    }
}

#[test]
fn faults_that_are_planted_are_caught() {
    let left = Left::new(PUDDLE, KINDS[0]);
    let (addr, _, _) = left.live[0];
    let number = (addr - left.backing.extents()[0].addr) / SUPERBLOCK_SIZE;
    let g = left.geometry();
    for (bug, at, len) in [
        (Bug::IllegalMarkIsFree, g.marks_at(number, 16), 1),
        (Bug::ZeroDescriptorBelieved, g.descriptors + number * 64, 64),
    ] {
        left.restore();
        let part = at as usize..at as usize + len;
        match bug {
            Bug::IllegalMarkIsFree => bytes(&left.backing)[part][0] ^= 0x10,
            _ => bytes(&left.backing)[part].fill(0),
        }
        plant(bug);
        let heap = left.open();
        assert!(heap.damage().is_empty() && left.overlaps(&heap) > 0, "{bug:?}");
        plant(Bug::None);
    }
    left.restore();
    let heap = left.open();
    left.flip(g.roots * 8 + 20);
    plant(Bug::RootCheckSkipped);
    assert!(heap.root(0).is_ok_and(|root| root.addr != addr));
    plant(Bug::None);
}
