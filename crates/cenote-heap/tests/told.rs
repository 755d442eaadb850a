//! The word of the last step tells which change is made: damage of that change's record, or of its
//! cells, is an error, and takes nothing back.

use cenote_heap::logged::{Region, SubHeap, SubHeapError, SubHeapPlace};
use cenote_heap::{Backing, MemoryBacking, MemoryOptions};
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    LAST_STEP_OFFSET, LastStep, SubHeapGeometry, UNDO_HALF_SIZE, UNDO_OFFSET,
};
use cenote_medium::planted::{Bug, LoggedBug, plant};

type Heap = SubHeap<MemoryBacking>;
/// Blocks: address, bytes, type.
type Blocks = Vec<(u64, u64, u64)>;

const DATA_LEN: u64 = 256 << 10;
/// Word of a record's header with its number, and that with its seal.
const SEQUENCE: usize = 1;
const SEAL: usize = 3;
/// Bytes of a header and of an entry, in words, and where the cell of the first entry is named.
const FIRST_ENTRY: usize = 8;

/// A closed sub-heap in memory.
struct Closed {
    backing: MemoryBacking,
    place: SubHeapPlace,
    blocks: Blocks,
}

fn blocks(heap: &Heap) -> Result<Blocks, String> {
    let report = heap.check();
    match report.damage.first() {
        Some(damage) => Err(damage.to_string()),
        None => Ok(report.blocks.iter().map(|b| (b.addr, b.size, b.type_id.0)).collect()),
    }
}

/// A sub-heap that made some changes by its undo log, and then so many steps.
fn closed(power: bool, steps: u64) -> Closed {
    let levels = SubHeapGeometry::levels_for(DATA_LEN);
    let len = SubHeapGeometry::new(2, 0, levels).expect("a geometry").metadata_len;
    let backing = MemoryBacking::new(MemoryOptions::default());
    let backing = if power { backing } else { backing.at_process() };
    let base = backing.take(len.next_multiple_of(64 << 10)).expect("memory").addr;
    let metadata = Region { puddle: 1, base, from: 0, len };
    let base = backing.extents()[0].addr;
    let data = Region { puddle: 0, base, from: 0, len: DATA_LEN };
    let place = SubHeapPlace { data, metadata };
    // SAFETY: two puddles of memory that nothing else uses; the backing keeps them.
    let heap = unsafe { SubHeap::format(backing.clone(), &place, 0, 2) }.expect("a sub-heap");
    let alloc = |size, kind| heap.alloc(size, 1, TypeId(kind)).expect("room").addr;
    let _ = (alloc(500, 1), alloc(64, 2));
    // Slots of the slab that the last change made.
    let slots: Vec<u64> = (0..steps).map(|_| alloc(64, 2)).collect();
    if let [first, _, _, ..] = slots[..] {
        heap.free(first).expect("allocated");
    }
    let blocks = blocks(&heap).expect("whole");
    drop(heap);
    Closed { backing, place, blocks }
}

impl Closed {
    fn words(&self) -> &'static mut [u64] {
        let at = self.place.metadata.addr() as usize;
        let at = core::ptr::with_exposed_provenance_mut(at);
        // SAFETY: the test's memory, which lives as long as `self`, and which no heap uses while
        // the test does.
        unsafe { core::slice::from_raw_parts_mut(at, self.place.metadata.len as usize / 8) }
    }

    /// Where the record of the last change begins, in words.
    fn last_record(&self) -> usize {
        let halves = [UNDO_OFFSET / 8, (UNDO_OFFSET + UNDO_HALF_SIZE) / 8].map(|at| at as usize);
        halves.into_iter().max_by_key(|half| self.words()[half + SEQUENCE]).expect("two")
    }

    /// The blocks after `damage`, or the error of the open.
    fn after(&self, damage: impl FnOnce(&mut [u64])) -> Result<Blocks, String> {
        let kept = self.words().to_vec();
        damage(self.words());
        // SAFETY: the sub-heap that was open there is dropped.
        let heap = unsafe { SubHeap::open(self.backing.clone(), &self.place.metadata) };
        let found = match heap {
            Ok((heap, _)) => blocks(&heap),
            Err(SubHeapError::Damaged(damage)) => Err(damage.to_string()),
            Err(other) => panic!("{other}"),
        };
        self.words().copy_from_slice(&kept);
        found
    }
}

/// In how many of the cases a seal that is gone takes the last change back.
fn taken_back() -> usize {
    let mut count = 0;
    for (power, steps) in [(false, 0), (false, 1), (false, 9), (true, 0), (true, 1), (true, 9)] {
        let closed = closed(power, steps);
        assert_eq!(closed.after(|_| ()).as_ref(), Ok(&closed.blocks));
        let record = closed.last_record();
        let before = closed.words()[(record ^ (UNDO_HALF_SIZE as usize / 8)) + SEAL];
        for seal in [0, before] {
            match closed.after(|words| words[record + SEAL] = seal) {
                Err(text) => assert!(text.contains("seal"), "{text}"),
                Ok(found) => {
                    assert_ne!(found, closed.blocks, "power: {power}, {steps} steps");
                    count += 1;
                }
            }
        }
    }
    count
}

#[test]
fn a_seal_that_is_gone_takes_nothing_back() {
    assert_eq!(taken_back(), 0);
    plant(Bug::Logged(LoggedBug::MadeChangeUndone));
    let count = taken_back();
    plant(Bug::None);
    assert!(count >= 6, "{count}: {:?} was not found", LoggedBug::MadeChangeUndone);
}

/// At `power` the seal is a hash over the cells. No crash leaves two bits of one that are others.
#[test]
fn damaged_cells_of_the_last_change_take_nothing_back() {
    let closed = closed(true, 0);
    let cell = closed.words()[closed.last_record() + FIRST_ENTRY] as usize;
    for word in 0..4 {
        let found = closed.after(|words| words[cell * 4 + word] ^= 0b101 << 7);
        assert!(found.is_err(), "{found:?}");
    }
}

/// A record that is damaged at rest is needed no more. Its number is used again, and a crash of
/// the change that does so is a crash.
#[test]
fn a_damaged_record_of_a_change_that_is_made_costs_nothing() {
    let closed = closed(false, 5);
    let record = closed.last_record();
    let last = closed.words()[record + SEQUENCE];
    closed.words()[record + FIRST_ENTRY + 1] ^= 1 << 9;
    assert_eq!(closed.after(|_| ()).as_ref(), Ok(&closed.blocks));
    let told = |closed: &Closed| LastStep::from_word(closed.words()[LAST_STEP_OFFSET as usize / 8]);
    assert!(told(&closed).says_made(last));
    // SAFETY: the sub-heap that was open there is dropped.
    let heap = unsafe { SubHeap::open(closed.backing.clone(), &closed.place.metadata) };
    let (heap, _) = heap.expect("its change is made");
    assert_eq!(told(&closed).change, 0, "the number is free again");
    assert_ne!(told(&closed).cell, 0);
    heap.alloc(700, 1, TypeId(3)).expect("room");
    assert!(told(&closed).says_made(last));
    let found = blocks(&heap).expect("whole");
    assert_eq!(found.len(), closed.blocks.len() + 1);
}

#[test]
fn the_word_of_the_last_step_tells_what_it_was_told() {
    for sequence in [1, 2, 77, u64::from(u32::MAX), 1 << 32, (1 << 32) + 5, 1 << 40] {
        let step = LastStep::after((1 << 31) + 7, sequence);
        assert_eq!(LastStep::from_word(step.to_word()), step);
        assert_eq!(step.says_made(sequence), sequence as u32 != 0);
        assert!(!step.says_made(sequence + 1) && !step.is_later_than(sequence));
        assert_eq!(step.is_later_than(sequence - 1), sequence as u32 != 0);
    }
    // A word of an earlier build tells of no change.
    let old = LastStep::from_word(900);
    assert!(old.cell == 900 && !old.says_made(0) && !old.says_made(1) && !old.is_later_than(0));
}
