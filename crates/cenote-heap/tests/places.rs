//! Places of blocks (POS-9): an address and its place say the same, in heaps of every kind, and
//! what is no block has no place.

use crate::common::A;
use cenote_heap::logged::{LoggedHeap, LoggedOptions};
use cenote_heap::{FreeError, Heap, MemoryBacking, MemoryOptions, PlaceError, TracedHeap};
use cenote_layout::id::PoolId;
use cenote_layout::pointer::RegionAddress;

fn memory() -> MemoryBacking {
    let options = MemoryOptions { puddle_size: 512 << 10, size_max: 64 << 20, writable: true };
    MemoryBacking::new(options)
}

/// What is true of a heap of every kind. `reopen` drops it and opens the next one on its memory.
fn there_and_back<H: Heap>(backing: &MemoryBacking, open: impl Fn(&MemoryBacking) -> H) {
    let heap = open(backing);
    let foreign = backing.foreign_puddle();
    let mut blocks = Vec::new();
    for size in [16, 64, 100, 4096, 200_000].into_iter().cycle().take(60) {
        let addr = heap.alloc(size, 16, A).expect("room").addr.as_ptr().addr() as u64;
        blocks.push((addr, heap.place(addr).expect("a place")));
    }
    let mut puddles: Vec<u32> = blocks.iter().map(|(_, place)| place.puddle).collect();
    puddles.sort_unstable();
    puddles.dedup();
    assert!(puddles.len() > 1, "several puddles: {puddles:?}");
    for (addr, place) in &blocks {
        assert_eq!(heap.address(place), Ok(*addr));
        assert_eq!(RegionAddress::from_pair(place.to_pair().expect("it fits")), Some(*place));
        for by in 1..16 {
            let inside = RegionAddress { offset: place.offset + by, ..*place };
            let refused = heap.address(&inside);
            let named = FreeError::InsideBlock { addr: addr + by, block: *addr };
            assert_eq!(refused, Err(PlaceError::NoBlock(named.clone())));
            assert_eq!(heap.place(addr + by), Err(PlaceError::NoBlock(named)));
        }
    }
    drop(heap);
    let heap = open(backing);
    assert!(blocks.iter().all(|(addr, place)| heap.address(place) == Ok(*addr)), "opened again");
    let (addr, place) = blocks[7];
    heap.free(addr).expect("freed");
    let freed = PlaceError::NoBlock(FreeError::NotAllocated { addr });
    assert_eq!((heap.address(&place), heap.place(addr)), (Err(freed.clone()), Err(freed)));
    for nowhere in [
        RegionAddress { pool: PoolId(2), ..place },
        RegionAddress { puddle: 999, ..place },
        RegionAddress { offset: 1 << 40, ..place },
        RegionAddress { offset: u64::MAX, ..place },
    ] {
        assert_eq!(heap.address(&nowhere), Err(PlaceError::Nowhere(nowhere)));
    }
    let header = RegionAddress { puddle: 0, offset: 0, ..place };
    assert!(matches!(heap.address(&header), Err(PlaceError::NoBlock(FreeError::NotABlock { .. }))));
    let other = FreeError::OtherPool { addr: foreign };
    assert_eq!(heap.place(foreign), Err(PlaceError::NoBlock(other)));
    assert!(matches!(heap.place(64), Err(PlaceError::NoBlock(FreeError::NotInHeap { .. }))));
}

#[test]
fn an_address_in_a_traced_heap_and_its_place_say_the_same() {
    there_and_back(&memory(), |backing| TracedHeap::open(backing.clone()).expect("a heap"));
}

#[test]
fn an_address_in_a_logged_heap_and_its_place_say_the_same() {
    let backing = memory();
    let options = LoggedOptions { levels: 2, ..LoggedOptions::default() };
    drop(LoggedHeap::create(backing.clone(), &options).expect("a heap"));
    there_and_back(&backing, |backing| {
        LoggedHeap::open(backing.clone(), &options).expect("a heap").0
    });
}
