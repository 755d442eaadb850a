//! A second log that comes into use while the first is in the middle of a commit: what was
//! committed survives a loss of power.
//!
//! A single log leaves the store that finishes its transaction unfenced (`cenote_tx`, "lazy"). That
//! is right only if no other log can change what it covers; here another one joins between the
//! moment at which the commit begins and the one at which it finishes.

use cenote::raw::{Block, Heap, TxContext};
use cenote::{MediumOptions, OpenOptions, Persist, Pool, RealMedium, Result, Store, TypeId};
use cenote_heap::{
    AllocError, BlockInfo, Cancelled, FreeError, PlaceError, RootError, RootWay, Taking,
};
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::pointer::RegionAddress;
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_medium::counters;
use cenote_store::LogLease;
use cenote_tx::LogGroup;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// A heap that does something when a commit clears the mark of a block.
struct Interrupting<'h> {
    heap: &'h dyn Heap,
    interrupt: Mutex<Option<Box<dyn FnOnce() + Send + 'h>>>,
}

impl Heap for Interrupting<'_> {
    fn alloc_with(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> std::result::Result<Taking, Cancelled>,
    ) -> std::result::Result<Block, AllocError> {
        self.heap.alloc_with(size, align, type_id, before)
    }
    fn find(&self, addr: u64) -> std::result::Result<Block, FreeError> {
        self.heap.find(addr)
    }
    fn free(&self, addr: u64) -> std::result::Result<(), FreeError> {
        self.heap.free(addr)
    }
    unsafe fn set_mark(&self, block: &Block) {
        // SAFETY: the caller's.
        unsafe { self.heap.set_mark(block) };
    }
    fn clear_mark(&self, block: &Block) {
        if let Some(interrupt) = self.interrupt.lock().unwrap().take() {
            interrupt();
        }
        self.heap.clear_mark(block);
    }
    fn release(&self, block: &Block) {
        self.heap.release(block);
    }
    fn owner(&self, addr: u64) -> Option<BlockInfo> {
        self.heap.owner(addr)
    }
    fn place(&self, addr: u64) -> std::result::Result<RegionAddress, PlaceError> {
        self.heap.place(addr)
    }
    fn address(&self, place: &RegionAddress) -> std::result::Result<u64, PlaceError> {
        self.heap.address(place)
    }
    fn root(&self, index: u16) -> std::result::Result<RootEntry, RootError> {
        self.heap.root(index)
    }
    fn root_slot(&self, index: u16) -> std::result::Result<NonNull<RootSlot>, RootError> {
        self.heap.root_slot(index)
    }
    fn root_way(&self) -> RootWay {
        self.heap.root_way()
    }
    fn is_guarded(&self) -> bool {
        self.heap.is_guarded()
    }
    fn set_root(
        &self,
        index: u16,
        addr: u64,
        type_id: TypeId,
    ) -> std::result::Result<(), RootError> {
        self.heap.set_root(index, addr, type_id)
    }
}

struct NoSegments;

impl SegmentSource for NoSegments {
    fn segment(
        &mut self,
        _: u32,
    ) -> std::result::Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Err("one segment is enough here".into())
    }
}

fn writer(store: &Store, lease: &LogLease) -> LogWriter {
    // SAFETY: the log is leased, used by this writer alone, and mapped until the store is closed.
    unsafe {
        LogWriter::attach(
            lease.body(),
            crate::support::underneath(store).persistence(),
            Box::new(NoSegments),
        )
        .unwrap()
    }
}

/// A transaction that changes `word` and frees a block; then the fences that are still due.
fn fences_due_after(
    context: &mut TxContext,
    pool: &Pool,
    word: NonNull<u64>,
    interrupt: Option<Box<dyn FnOnce() + Send + '_>>,
) -> u64 {
    // SAFETY: a block without a type, of this thread alone.
    let heap = unsafe { pool.raw_heap() };
    let heap = Interrupting { heap, interrupt: Mutex::new(interrupt) };
    let block = heap.alloc(64, 8, TypeId::UNTYPED).unwrap();
    // SAFETY: the word is allocated and this thread's; the transaction is committed here.
    unsafe {
        let mut tx = context.begin();
        tx.add(word.as_ptr().cast(), 8).unwrap();
        *word.as_ptr() += 1;
        tx.free(&heap, block.addr.as_ptr() as u64).unwrap();
        tx.commit().unwrap();
    }
    let before = counters::snapshot();
    context.quiesce();
    counters::snapshot().fences - before.fences
}

#[test]
fn a_log_that_joins_during_a_commit_finds_the_commit_durable() -> Result<()> {
    let dir = crate::support::directory();
    let medium = RealMedium::open(
        dir.path(),
        &MediumOptions { create: true, force_power: true, ..MediumOptions::default() },
    )?;
    cenote_store::format(Arc::new(medium), &cenote::FormatOptions::default())?;
    let medium = RealMedium::open(
        dir.path(),
        &MediumOptions { force_power: true, ..MediumOptions::default() },
    )?;
    let store = Store::open_on(Arc::new(medium), &OpenOptions::default())?;
    let pool = store.pool("p")?;
    let leases = [(); 2].map(|()| crate::support::underneath(&store).acquire_log().unwrap());
    let group = LogGroup::new();
    // SAFETY: the heap's block is this test's; both logs are leased and of this group.
    let (word, mut first) = unsafe {
        let word = pool.raw_heap().alloc(8, 8, u64::TYPE_ID).unwrap().addr.cast::<u64>();
        word.write(0);
        (word, TxContext::new(writer(&store, &leases[0]), group.clone()))
    };
    if fences_due_after(&mut first, &pool, word, None) == 0 {
        println!("skipped: commits are never finished lazily here (no membarrier)");
    } else {
        let second = Mutex::new(None);
        let its_writer = writer(&store, &leases[1]);
        let join: Box<dyn FnOnce() + Send + '_> = Box::new(|| {
            // SAFETY: as above.
            *second.lock().unwrap() = Some(unsafe { TxContext::new(its_writer, group.clone()) });
        });
        let due = fences_due_after(&mut first, &pool, word, Some(join));
        assert!(second.lock().unwrap().is_some());
        assert_eq!(
            due, 0,
            "the second log may change what the first has committed, and nothing makes that durable"
        );
    }
    drop(first);
    for lease in leases {
        crate::support::underneath(&store).release_log(lease);
    }
    drop(pool);
    store.close()
}
