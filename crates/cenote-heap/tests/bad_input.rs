//! Bad input is answered with a typed error and changes nothing.

use crate::common::{A, backing, heap, room_for};
use cenote_heap::{
    AllocError, BackingError, Cancelled, FreeError, Heap as _, Inspect as _, OpenError,
    RecoverError, RootError, Trace, TracedHeap,
};
use cenote_layout::id::TypeId;

fn addr(block: cenote_heap::Block) -> u64 {
    block.addr.as_ptr() as u64
}

#[test]
fn freeing_null_is_nothing() {
    let heap = heap(1 << 20, 1 << 20);
    let before = heap.stats().unwrap();
    heap.free(0).unwrap();
    assert_eq!(heap.stats().unwrap(), before);
}

#[test]
fn every_wrong_address_is_named_and_nothing_changes() {
    let backing = backing(1 << 20, 4 << 20);
    let foreign = backing.foreign_puddle();
    let heap = TracedHeap::open(backing.clone()).unwrap();
    let small = addr(heap.alloc(100, 16, A).unwrap());
    let freed = addr(heap.alloc(100, 16, A).unwrap());
    heap.free(freed).unwrap();
    let large = addr(heap.alloc(150_000, 16, A).unwrap());
    let base = backing_base(&backing);
    let before = heap.stats().unwrap();
    let cases = [
        (small + 1, FreeError::InsideBlock { addr: small + 1, block: small }),
        (small + 111, FreeError::InsideBlock { addr: small + 111, block: small }),
        (large + 16, FreeError::InsideBlock { addr: large + 16, block: large }),
        (large + 65_536, FreeError::InsideBlock { addr: large + 65_536, block: large }),
        (large + 196_607, FreeError::InsideBlock { addr: large + 196_607, block: large }),
        (large + 196_608, FreeError::NotABlock { addr: large + 196_608 }),
        (freed, FreeError::NotAllocated { addr: freed }),
        (base, FreeError::NotABlock { addr: base }),
        (base + 8192, FreeError::NotABlock { addr: base + 8192 }),
        // The 16 bytes after the last block of 112 in a superblock.
        (
            small / 65_536 * 65_536 + 585 * 112,
            FreeError::NotABlock { addr: small / 65_536 * 65_536 + 585 * 112 },
        ),
        (foreign + 64, FreeError::OtherPool { addr: foreign + 64 }),
        (base + (1 << 20), FreeError::NotInHeap { addr: base + (1 << 20) }),
        (16, FreeError::NotInHeap { addr: 16 }),
        (u64::MAX, FreeError::NotInHeap { addr: u64::MAX }),
    ];
    for (wrong, expected) in cases {
        assert_eq!(heap.free(wrong), Err(expected.clone()), "{wrong:#x}");
        assert_eq!(heap.find(wrong), Err(expected.clone()), "{wrong:#x}");
        assert_eq!(heap.usable_size(wrong), Err(expected), "{wrong:#x}");
        assert!(!heap.is_live(wrong, A));
    }
    assert_eq!(heap.stats().unwrap(), before);
    heap.free(small).unwrap();
    assert_eq!(heap.free(small), Err(FreeError::NotAllocated { addr: small }));
    heap.free(large).unwrap();
    assert_eq!(heap.free(large), Err(FreeError::NotAllocated { addr: large }));
    assert_eq!(heap.stats().unwrap().blocks, 0);
}

fn backing_base(backing: &cenote_heap::MemoryBacking) -> u64 {
    use cenote_heap::Backing as _;
    backing.extents()[0].addr
}

#[test]
fn impossible_sizes_and_alignments_are_refused() {
    let heap = heap(1 << 20, 8 << 20);
    for align in [0, 3, 24, 4 << 20, u64::MAX] {
        assert!(matches!(heap.alloc(8, align, A), Err(AllocError::Align { .. })), "{align}");
    }
    for size in [(8 << 20) + 1, 1 << 40, u64::MAX - 1, u64::MAX] {
        assert!(matches!(heap.alloc(size, 8, A), Err(AllocError::Size { .. })), "{size}");
    }
    assert!(matches!(
        heap.alloc(8 << 20, 8, A),
        Err(AllocError::Full { source: BackingError::Limit { .. }, .. })
    ));
    assert_eq!(heap.stats().unwrap().puddles, 1);
}

#[test]
fn every_alignment_up_to_2_mib_is_kept_with_every_size() {
    let heap = heap(2 << 20, 256 << 20);
    for shift in 0..=21 {
        let align = 1u64 << shift;
        for size in [0, 1, 17, 100, 8192, 14_336, 14_337, 65_536, 70_000] {
            let block = heap.alloc(size, align, A).unwrap();
            assert!(
                addr(block).is_multiple_of(align) && block.size >= size.max(1),
                "{size} at {align}"
            );
            assert_eq!(heap.usable_size(addr(block)), Ok(block.size));
            heap.free(addr(block)).unwrap();
            assert!(heap.free(addr(block)).is_err(), "{size} at {align}: freed twice");
        }
    }
    assert_eq!(heap.stats().unwrap().blocks, 0);
}

#[test]
fn zero_bytes_are_a_block_of_their_own() {
    let heap = heap(1 << 20, 1 << 20);
    let (a, b) = (heap.alloc(0, 1, A).unwrap(), heap.alloc(0, 1, A).unwrap());
    assert_eq!(a.size, 16);
    assert_ne!(a.addr, b.addr);
    heap.free(addr(a)).unwrap();
    heap.free(addr(b)).unwrap();
}

#[test]
fn a_cancelled_allocation_leaves_nothing() {
    let heap = heap(1 << 20, 1 << 20);
    heap.alloc(64, 16, A).unwrap();
    let before = heap.stats().unwrap();
    for size in [64, 100_000] {
        let mut seen = None;
        let result = heap.alloc_with(size, 16, A, &mut |block| {
            // The mark is not set yet.
            seen = Some(heap.backing().clone());
            // SAFETY: the mark's word lies in the heap.
            let word =
                unsafe { block.mark.word.as_ref() }.load(std::sync::atomic::Ordering::Relaxed);
            assert_ne!(word & block.mark.mask, block.mark.mask);
            Err(Cancelled)
        });
        assert!(matches!(result, Err(AllocError::Cancelled)) && seen.is_some());
    }
    assert_eq!(heap.stats().unwrap(), before);
}

#[test]
fn a_panic_in_before_leaves_a_working_heap() {
    let heap = heap(room_for(15), room_for(15));
    for size in [64, 100_000] {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = heap.alloc_with(size, 16, A, &mut |_| panic!("on purpose"));
        }));
        assert!(result.is_err());
        assert_eq!(heap.stats().unwrap().blocks, 0);
        heap.free(addr(heap.alloc(size, 16, A).unwrap())).unwrap();
    }
    // The superblocks of the large one are not lost.
    let mut superblocks = 0;
    while heap.alloc(65_536, 16, A).is_ok() {
        superblocks += 1;
    }
    assert_eq!(superblocks, 15);
}

#[test]
fn a_read_only_heap_answers_and_refuses_changes() {
    let backing = backing(1 << 20, 1 << 20);
    let block = {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        heap.set_root(3, 77, A).unwrap();
        addr(heap.alloc(64, 16, A).unwrap())
    };
    let heap = TracedHeap::open(backing.read_only()).unwrap();
    assert!(heap.is_live(block, A));
    assert_eq!(heap.root(3).unwrap().addr, 77);
    assert_eq!(heap.stats().unwrap().blocks, 1);
    assert!(matches!(heap.alloc(64, 16, A), Err(AllocError::ReadOnly)));
    assert_eq!(heap.free(block), Err(FreeError::ReadOnly));
    heap.clear_mark(&heap.find(block).unwrap());
    assert!(heap.is_live(block, A));
    assert_eq!(heap.set_root(3, 0, A), Err(RootError::ReadOnly));
    assert!(matches!(
        heap.recover(&crate::common::TypeMap::new(), &[]),
        Err(RecoverError::ReadOnly)
    ));
    assert!(heap.check(None).unwrap().is_sound());
}

#[test]
fn a_heap_is_open_once_and_needs_a_puddle() {
    let backing = backing(1 << 20, 1 << 20);
    let first = TracedHeap::open(backing.clone()).unwrap();
    let block = addr(first.alloc(64, 16, A).unwrap());
    assert!(matches!(TracedHeap::open(backing.clone()), Err(OpenError::AlreadyOpen)));
    // The failed open has not taken the puddle from the first.
    assert!(first.is_live(block, A));
    first.free(block).unwrap();
    drop(first);
    TracedHeap::open(backing).unwrap();
    assert!(matches!(
        TracedHeap::open(crate::common::backing(2 << 20, 1 << 20)),
        Err(OpenError::NoPuddle)
    ));
    assert!(matches!(
        TracedHeap::open(crate::common::backing(64 << 10, 1 << 20)),
        Err(OpenError::TooSmall { .. })
    ));
}

#[test]
fn roots_are_typed_and_numbered_to_1023() {
    let backing = backing(1 << 20, 1 << 20);
    {
        let heap = TracedHeap::open(backing.clone()).unwrap();
        for index in 0..1024 {
            assert_eq!(heap.root(index).unwrap().addr, 0);
            heap.set_root(index, u64::from(index) + 1, TypeId(u64::from(index) + 2)).unwrap();
        }
    }
    let heap = TracedHeap::open(backing).unwrap();
    for index in 0..1024 {
        let root = heap.root(index).unwrap();
        assert_eq!((root.addr, root.type_id), (u64::from(index) + 1, TypeId(u64::from(index) + 2)));
    }
    assert_eq!(heap.root(1024), Err(RootError::Index { index: 1024 }));
    assert!(heap.root_slot(u16::MAX).is_err());
    assert!(heap.set_root(1024, 1, A).is_err());
}
