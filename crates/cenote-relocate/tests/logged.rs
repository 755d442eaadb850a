//! Pools with a logged heap of several sub-heaps, whose tables have grown: to a machine with one
//! CPU, with what a crash left in them, with damage, and with planted bugs.

use crate::graph::{Random, blank, files, get, put, record, store_on};
use cenote_heap::logged::{LoggedHeap, LoggedOptions, Protection, blocks_in};
use cenote_heap::{Heap as _, PoolBacking, Taking};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::superblock::{INCOMPAT_LOGGED_HEAPS, Superblock};
use cenote_layout::types::PointerField;
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, LoggedBug, plant};
use cenote_relocate::archiving::{self, ArchivingError, ExportOptions, ImportOptions};
use cenote_store::{Access, HeapKind, PoolOptions, Store, StoreError};
use std::cell::Cell;
use std::sync::Arc;
use zerocopy::FromBytes as _;

const SIZE: u64 = 256 << 10;
const LINK: TypeId = TypeId(0x20);
const CPUS: u32 = 4;
const LINKS: u64 = 4000;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    /// Of heaps that are made.
    static GUARDS: Cell<u32> = const { Cell::new(1) };
}

fn opened(store: &Store, name: &str, cpus: u32) -> LoggedHeap<PoolBacking> {
    let handle = store.open_pool(name, Access::ReadWrite).unwrap();
    let options = LoggedOptions {
        sub_heaps: cpus,
        cpu: || CPU.get(),
        protection: Protection::None,
        guards: GUARDS.get(),
        ..LoggedOptions::for_pool(SIZE)
    };
    // SAFETY: no other heap of the pool is open, and the test gives out no reference.
    LoggedHeap::open_pool(unsafe { PoolBacking::of(handle) }, &options).unwrap()
}

/// A chain through blocks of all CPUs, each a slot of a slab or a block by itself; and a block that
/// a transaction has not committed, whose bytes are no value.
fn built(store: Store) {
    let native = PointerField {
        offset: 8,
        stride: 8,
        count: 1,
        kind: PointerKind::NATIVE,
        tag_mask: 0,
        target: LINK,
        conditions: Vec::new(),
    };
    // SAFETY: the test lays its values out by this record.
    unsafe { store.register_types(&[&record(LINK, 16, false, vec![native])]) }.unwrap();
    let options =
        PoolOptions { puddle_size: SIZE, heap: HeapKind::Logged, ..PoolOptions::default() };
    store.create_pool("chain", &options).unwrap();
    let heap = opened(&store, "chain", CPUS);
    let mut last = 0;
    for number in 0..LINKS {
        CPU.set(number as u32 % CPUS);
        let size = if number % 8 < 4 { 16 } else { 256 };
        let addr = heap.alloc(size, 16, LINK).unwrap().addr;
        put(addr, number);
        put(addr + 8, last);
        last = addr;
    }
    heap.set_root(3, last, LINK).unwrap();
    let taken = heap.alloc_with(16, 16, TypeId(0x77), &mut |_| Ok(Taking::Taken)).unwrap();
    put(taken.addr.as_ptr() as u64, u64::MAX);
    drop(heap);
    store.close().unwrap();
}

/// Follows the chain on a machine with so many CPUs; blocks are freed and allocated by them.
fn followed(store: &Store, name: &str, cpus: u32) -> Result<(), String> {
    CPU.set(0);
    let heap = opened(store, name, cpus);
    let mut at = heap.root(3).map_err(|error| error.to_string())?.addr;
    let mut chain = Vec::new();
    while at != 0 {
        if !heap.is_live(at, LINK) || get(at) != LINKS - 1 - chain.len() as u64 {
            return Err(format!("{} links, and {at:#x}", chain.len()));
        }
        chain.push(at);
        at = get(at + 8);
    }
    let mut blocks = 0;
    for (number, sub_heap) in heap.sub_heaps() {
        let report = sub_heap.check();
        if let Some(damage) = report.damage.first() {
            return Err(format!("sub-heap {number}: {damage}"));
        }
        blocks += report.blocks.len();
    }
    if (chain.len(), blocks) != (LINKS as usize, LINKS as usize) {
        return Err(format!("{} links, {blocks} blocks", chain.len()));
    }
    assert_eq!(heap.sub_heaps().count(), CPUS as usize);
    chain.iter().try_for_each(|addr| heap.free(*addr)).map_err(|error| error.to_string())?;
    heap.alloc(256, 16, LINK).map(drop).map_err(|error| error.to_string())
}

fn archive(store: &Store) -> Vec<u8> {
    // SAFETY: this thread alone has the store.
    unsafe { archiving::export(store, &["chain"], Vec::new(), ExportOptions::default()) }.unwrap().0
}

fn imported(store: &Store, archive: &[u8]) -> Result<(), ArchivingError> {
    let options = ImportOptions { names: vec!["there".into()], ..ImportOptions::default() };
    archiving::unpack(store, archive, options, &|_| None)?.commit(store, &|_| None).map(drop)
}

/// Whether the superblock says that the store has a logged heap.
fn is_said(medium: &Arc<dyn Medium>) -> bool {
    let bytes = medium.read("superblock").unwrap();
    let blocks = bytes.chunks_exact(4096).map(Superblock::read_from_bytes);
    blocks.flatten().any(|block| block.prefix.incompat & INCOMPAT_LOGGED_HEAPS != 0)
}

#[test]
fn a_pool_of_four_cpus_comes_to_a_machine_with_one() {
    comes_to_a_machine_with_one();
}

#[test]
fn a_heap_of_an_earlier_build_comes_to_another_machine() {
    GUARDS.set(0);
    comes_to_a_machine_with_one();
}

fn comes_to_a_machine_with_one() {
    let (medium, source) = store_on(&blank(0));
    built(source);
    let source = crate::graph::open(&medium);
    let puddles = source.puddle_records().into_iter().filter(|p| p.pool.0 != 0).count();
    assert!(puddles > 2 * CPUS as usize, "tables have grown: {puddles} puddles");
    let before = files(&source);
    source.clone_pool("chain", "clone").unwrap();
    followed(&source, "clone", 1).unwrap();
    let archive = archive(&source);
    let now = files(&source);
    assert!(before.iter().all(|(uuid, bytes)| now[uuid] == *bytes), "the original has changed");
    source.randomize_pool("chain").unwrap();
    followed(&source, "chain", 1).unwrap();
    for (number, cpus) in [(0, 1), (1, 1), (1, 9)] {
        let (there, target) = store_on(&blank(number));
        assert!(!is_said(&there));
        imported(&target, &archive).unwrap();
        assert!(is_said(&there));
        followed(&target, "there", cpus).unwrap();
    }
}

#[test]
fn an_import_that_says_nothing_or_clears_what_is_not_members() {
    // Where the words of members would be, a heap without guard pages has something.
    GUARDS.set(0);
    let (medium, source) = store_on(&blank(0));
    built(source);
    let source = crate::graph::open(&medium);
    let archive = archive(&source);
    let root = |store: &Store| {
        let all = files(store);
        let root = |puddle: &PuddleRecord| puddle.pool.0 != 0 && puddle.index == 0;
        all[&store.puddle_records().into_iter().find(root).unwrap().uuid][4096..].to_vec()
    };
    for bug in
        [Bug::None, Bug::Logged(LoggedBug::ImportUnsaid), Bug::Logged(LoggedBug::MembersCleared)]
    {
        // Where addresses are free, so that nothing is rewritten.
        let (there, target) = store_on(&blank(0));
        plant(bug);
        let done = imported(&target, &archive);
        plant(Bug::None);
        done.unwrap();
        assert_eq!(is_said(&there), bug != Bug::Logged(LoggedBug::ImportUnsaid));
        let same = root(&target) == root(&source);
        assert_eq!(same, bug != Bug::Logged(LoggedBug::MembersCleared), "{bug:?}");
    }
}

#[test]
fn a_block_of_a_type_that_nothing_describes_is_not_imported() {
    let (medium, source) = store_on(&blank(0));
    built(source);
    let source = crate::graph::open(&medium);
    let heap = opened(&source, "chain", CPUS);
    heap.alloc(16, 16, TypeId(0x77)).unwrap();
    drop(heap);
    let archive = archive(&source);
    let (_there, target) = store_on(&blank(1));
    let refused = imported(&target, &archive).unwrap_err();
    assert!(matches!(refused, ArchivingError::Values { count: 1, .. }), "{refused}");
    assert!(target.pools().is_empty());
}

/// Any byte of the metadata: a pool is copied as it is, or not, and the reason names the place.
#[test]
fn damaged_metadata_are_named_or_mean_nothing() {
    let (medium, source) = store_on(&blank(0));
    built(source);
    let source = crate::graph::open(&medium);
    let mut puddles: Vec<PuddleRecord> =
        source.puddle_records().into_iter().filter(|p| p.pool.0 != 0).collect();
    puddles.sort_unstable_by_key(|puddle| puddle.index);
    let original = files(&source);
    let blocks = |files: &std::collections::BTreeMap<_, Vec<u8>>| {
        blocks_in::<StoreError>(&puddles, &mut |puddle, at, bytes| {
            bytes.copy_from_slice(&files[&puddle.uuid][at as usize..][..bytes.len()]);
            Ok(())
        })
        .unwrap()
    };
    let whole = blocks(&original).unwrap();
    let (random, mut refused) = (&mut Random(5), 0);
    for round in 0..300 {
        let mut damaged = original.clone();
        // Of the puddles that are metadata alone and of the root puddle.
        let puddle =
            puddles[if round % 3 == 0 { random.below(puddles.len() as u64) } else { 0 } as usize];
        let bytes = damaged.get_mut(&puddle.uuid).unwrap();
        for _ in 0..1 + random.below(4) {
            let at = 4096 + random.below(bytes.len() as u64 - 4096) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        match blocks(&damaged) {
            // A byte that nothing covers, or a block's.
            Ok(found) => assert!(found == whole, "round {round}"),
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
        // And anything at all.
        let noise = damaged.get_mut(&puddle.uuid).unwrap();
        noise[4096..].iter_mut().for_each(|byte| *byte = random.next() as u8);
        if puddle.index == 0 {
            assert!(blocks(&damaged).is_err());
        }
    }
    assert!(refused > 20, "{refused}");
}
