//! Thread caches: with them allocation and free take no locked instructions.
//!
//! Each thread has one [`Cache`] for each heap that it uses, with a [`Bin`] for each type and class
//! that it allocates or frees. A bin is a stack of blocks, and the *current* superblock, from which
//! the stack is filled in batches. All of them are CACHED and belong to this cache.
//!
//! A free first asks what is in the superblock of this address. The answers for the superblocks
//! used last are [`Hot`] entries of the cache: marks, reciprocal and bin, side by side in one line.
//! An entry is still true if the descriptor's checksum is the same: all of the entry follows from
//! class and type, and two kinds of blocks with one checksum of 64 bits are no likelier than two
//! types with one number. A descriptor stays when its superblock is given back, but then no mark
//! says "allocated", so nothing is freed there. Before anything else is, the descriptor changes.
//!
//! A cache is in process memory and is owned by its heap's [`HeapCaches`]. One thread at a time
//! uses it: the one whose thread-local entry names it. The thread finds that entry by the heap's
//! number, which no other heap ever gets, so it never follows an entry of a closed heap. The thread
//! also keeps the `HeapCaches` alive until it ends, or looks again after the heap was closed. A
//! thread that ends makes its caches *orphans*; the next slow path of any thread gives their blocks
//! back first.

use super::bin::Bin;
use super::geometry::{Geometry, divide};
use super::line::{DescriptorLine, PuddleLines};
use super::superblock::PuddleHeap;
use crate::class::CLASS_COUNT;
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{SUPERBLOCK_SIZE, blocks_of};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::fork_guard;
use core::cell::{Cell, RefCell};
use core::ptr::{NonNull, null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Types whose bins are found at once, if the last bits of their numbers, which are hashes, differ.
const TYPES: usize = 8;
/// Places for bins of one type: more than there are classes.
const CLASSES: usize = 64;
const HOT: usize = 256;
const PUDDLES: usize = 64;
const HEAPS: usize = 8;

const _: () = assert!(CLASS_COUNT <= CLASSES);

/// What is in a superblock of small blocks, for the fast path of a free.
#[derive(Debug)]
#[repr(C, align(64))]
struct Hot {
    base: u64,
    /// Bytes of all blocks.
    len: u64,
    line: *const DescriptorLine,
    checksum: u64,
    reciprocal: u32,
    /// The mark of its first block.
    marks: NonNull<AtomicU8>,
    /// This cache's bin for them.
    bin: *mut Bin,
}

const _: () = assert!(size_of::<Hot>() == 64);

impl Hot {
    /// No address is in it.
    const NONE: Self = Self {
        base: 0,
        len: 0,
        line: null(),
        checksum: 0,
        reciprocal: 0,
        marks: NonNull::dangling(),
        bin: null_mut(),
    };
}

/// One thread's blocks of one heap.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Cache {
    /// Superblocks that blocks were freed in, by their number. First, so that finding one adds
    /// nothing to the cache's address.
    hot: [Hot; HOT],
    /// Bins by type and class: some of `bins`, and `nothing` elsewhere.
    table: [[*mut Bin; CLASSES]; TYPES],
    /// Puddles of this heap by a hash of slots.
    places: [PuddleLines; PUDDLES],
    bins: HashMap<(TypeId, u32), *mut Bin>,
    /// A bin of no blocks.
    _nothing: Box<Bin>,
}

impl Cache {
    fn new() -> Box<Self> {
        let mut nothing = Box::new(Bin::new(TypeId::UNTYPED, 0, 0));
        let pointer = &raw mut *nothing;
        Box::new(Self {
            hot: [const { Hot::NONE }; HOT],
            table: [[pointer; CLASSES]; TYPES],
            places: [PuddleLines::NOWHERE; PUDDLES],
            bins: HashMap::new(),
            _nothing: nothing,
        })
    }

    /// The bin for a class (not 0) and, if its type is this one, for that; else of another type, or
    /// of no blocks.
    ///
    /// # Safety
    /// The class is one of [`CLASS_COUNT`].
    #[inline(always)]
    pub(crate) unsafe fn guess(&self, type_id: TypeId, class: u8) -> *mut Bin {
        debug_assert!(usize::from(class) < CLASS_COUNT);
        // SAFETY: there are no more classes than places.
        unsafe { *self.table[type_id.0 as usize % TYPES].get_unchecked(usize::from(class)) }
    }

    /// The bin for a type and class; `list` says which list it has if it must be made.
    pub(crate) fn bin(
        &mut self,
        type_id: TypeId,
        class: u32,
        list: impl FnOnce() -> u32,
    ) -> *mut Bin {
        let known = self.table[type_id.0 as usize % TYPES][class as usize % CLASSES];
        // SAFETY: bins live as long as the cache; `nothing` is of class 0.
        if class != 0 && unsafe { ((*known).type_id, (*known).class) == (type_id, class) } {
            return known;
        }
        let bin = *self
            .bins
            .entry((type_id, class))
            .or_insert_with(|| Box::into_raw(Box::new(Bin::new(type_id, class, list()))));
        self.table[type_id.0 as usize % TYPES][class as usize % CLASSES] = bin;
        bin
    }

    pub(crate) fn bins(&self) -> impl Iterator<Item = *mut Bin> {
        self.bins.values().copied()
    }

    /// The mark of the small block that begins at `addr`, and this cache's bin for it, if blocks of
    /// the same superblock were freed here before.
    ///
    /// # Safety
    /// The heap of this cache is alive.
    #[inline(always)]
    pub(crate) unsafe fn hot(&self, addr: u64) -> Option<(&AtomicU8, *mut Bin)> {
        let hot = &self.hot[(addr / SUPERBLOCK_SIZE) as usize % HOT];
        let within = addr.wrapping_sub(hot.base);
        if within >= hot.len {
            return None;
        }
        // SAFETY: an entry with a length has a line, which is there as long as the heap.
        let line = unsafe { &*hot.line };
        if line.checksum() != hot.checksum && !planted(Bug::RememberedUnchecked) {
            return None;
        }
        let index = divide(within, hot.reciprocal)?;
        // SAFETY: `within` lies in one of the blocks, so this is the mark of one; marks of a
        // superblock, used or not, are mapped as long as the heap.
        Some((unsafe { hot.marks.add(index as usize).as_ref() }, hot.bin))
    }

    /// Remembers what is in a superblock. `line`, `geometry` and `marks` are of the one that begins
    /// at `base`, in which this cache has a block, so that nothing of it can change; and `bin` is
    /// this cache's for blocks of its type and class.
    pub(crate) fn warm(
        &mut self,
        base: u64,
        line: &DescriptorLine,
        geometry: Geometry,
        marks: NonNull<AtomicU8>,
        bin: *mut Bin,
    ) {
        let size = geometry.size();
        let len = if geometry.is_small() { blocks_of(size) * size } else { 0 };
        self.hot[(base / SUPERBLOCK_SIZE) as usize % HOT] = Hot {
            base,
            len,
            line,
            checksum: line.checksum(),
            reciprocal: geometry.reciprocal(),
            marks,
            bin,
        };
    }

    /// The place of the puddle of this heap that covers the slot of `addr`, if this cache has seen
    /// it. Else any place of this heap's, or none: the thread that asks it about `addr` is told so.
    #[inline]
    pub(crate) fn place_of(&self, addr: u64) -> &PuddleLines {
        &self.places[(addr / SLOT_SIZE) as usize % PUDDLES]
    }

    /// Remembers a puddle of this heap, which `addr` is in.
    pub(crate) fn remember(&mut self, addr: u64, puddle: &PuddleHeap) {
        self.places[(addr / SLOT_SIZE) as usize % PUDDLES] = puddle.place();
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        for (_, bin) in self.bins.drain() {
            // SAFETY: made by `Box::into_raw` in `bin`, dropped here only.
            drop(unsafe { Box::from_raw(bin) });
        }
    }
}

/// A cache by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owned(pub(crate) *mut Cache);
// SAFETY: an address; only the thread that takes it off a list uses it.
unsafe impl Send for Owned {}

/// The caches of one heap.
#[derive(Debug)]
pub(crate) struct HeapCaches {
    /// The heap's number now; 0 once it is closed. Caches under an earlier number are dead.
    number: AtomicU64,
    lists: Mutex<Lists>,
    /// Whether there are orphans.
    orphaned: AtomicBool,
    /// Of the process that opened the heap.
    token: u64,
}

#[derive(Debug, Default)]
struct Lists {
    /// All that were made, boxed.
    all: Vec<Owned>,
    /// Caches of ended threads, with blocks.
    orphans: Vec<Owned>,
    /// Caches without a thread and without blocks.
    idle: Vec<Owned>,
}

impl HeapCaches {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(number: u64) -> Self {
        let (number, token) = (AtomicU64::new(number), fork_guard::token());
        Self { number, lists: Mutex::default(), orphaned: AtomicBool::new(false), token }
    }

    /// All caches are dead from now on: what was in them is computed anew, or the heap is closed
    /// (0). Their memory stays, for a thread may be in the middle of something.
    pub(crate) fn renew(&self, number: u64) {
        let mut lists = self.lists();
        self.number.store(number, Ordering::Release);
        lists.orphans.clear();
        lists.idle.clear();
        self.orphaned.store(false, Ordering::Relaxed);
    }

    fn take(&self) -> *mut Cache {
        let mut lists = self.lists();
        if let Some(idle) = lists.idle.pop() {
            return idle.0;
        }
        let cache = Box::into_raw(Cache::new());
        lists.all.push(Owned(cache));
        cache
    }

    fn orphan(&self, number: u64, cache: *mut Cache) {
        if !fork_guard::is_current(self.token) {
            // In a forked child the heap is its parent's, and a thread that is not there may have
            // the lock.
            return;
        }
        let mut lists = self.lists();
        if self.number.load(Ordering::Relaxed) == number {
            lists.orphans.push(Owned(cache));
            self.orphaned.store(true, Ordering::Release);
        }
    }

    /// A cache whose thread has ended: the caller's, until it says `rest`.
    #[inline]
    pub(crate) fn take_orphan(&self) -> Option<*mut Cache> {
        if !self.orphaned.load(Ordering::Relaxed) {
            return None;
        }
        let mut lists = self.lists();
        let orphan = lists.orphans.pop();
        self.orphaned.store(!lists.orphans.is_empty(), Ordering::Relaxed);
        orphan.map(|owned| owned.0)
    }

    /// Keeps an emptied cache for another thread.
    pub(crate) fn rest(&self, cache: *mut Cache) {
        self.lists().idle.push(Owned(cache));
    }
}

impl Drop for HeapCaches {
    fn drop(&mut self) {
        for owned in self.lists.get_mut().unwrap_or_else(PoisonError::into_inner).all.drain(..) {
            // SAFETY: made by `Box::into_raw` in `take`. No thread's entry names it any more: each
            // keeps `self` alive.
            drop(unsafe { Box::from_raw(owned.0) });
        }
    }
}

thread_local! {
    /// The cache of the heap used last.
    static LAST: Cell<(u64, *mut Cache)> = const { Cell::new((0, null_mut())) };
    /// Caches of heaps used last, by a hash of the number. No destructor: reading is one load.
    static FAST: [Cell<(u64, *mut Cache)>; HEAPS] =
        const { [const { Cell::new((0, null_mut())) }; HEAPS] };
    static ALL: RefCell<Caches> = const { RefCell::new(Caches(Vec::new())) };
}

/// All caches of a thread, with their heaps' numbers.
struct Caches(Vec<(u64, Arc<HeapCaches>, Owned)>);

impl Drop for Caches {
    fn drop(&mut self) {
        LAST.set((0, null_mut()));
        FAST.with(|fast| fast.iter().for_each(|entry| entry.set((0, null_mut()))));
        for (number, shared, owned) in self.0.drain(..) {
            shared.orphan(number, owned.0);
        }
    }
}

/// This thread's cache of the heap with this number (never 0), if it was used a moment ago.
#[inline(always)]
pub(crate) fn current(number: u64) -> Option<NonNull<Cache>> {
    let (known, cache) = LAST.get();
    if known == number {
        // SAFETY: null goes with number 0 only.
        return Some(unsafe { NonNull::new_unchecked(cache) });
    }
    another(number)
}

/// [`current`], if the thread used another heap since.
#[cold]
#[inline(never)]
fn another(number: u64) -> Option<NonNull<Cache>> {
    let entry = FAST.with(|fast| fast[number as usize % HEAPS].get());
    let cache = NonNull::new(entry.1).filter(|_| entry.0 == number)?;
    LAST.set(entry);
    Some(cache)
}

/// A cache for the slow path: this thread's, or one for this call alone if the thread is about to
/// end.
pub(crate) struct Lease {
    pub(crate) cache: *mut Cache,
    passing: Option<(u64, Arc<HeapCaches>)>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((number, shared)) = self.passing.take() {
            shared.orphan(number, self.cache);
        }
    }
}

/// Finds or makes this thread's cache of the heap that has this number now.
pub(crate) fn lease(number: u64, shared: &Arc<HeapCaches>) -> Lease {
    if let Some(cache) = current(number) {
        return Lease { cache: cache.as_ptr(), passing: None };
    }
    let find = |all: &RefCell<Caches>| {
        let mut all = all.borrow_mut();
        all.0.retain(|(number, shared, _)| shared.number.load(Ordering::Acquire) == *number);
        let found = all.0.iter().find(|(known, _, _)| *known == number).map(|(_, _, owned)| *owned);
        let owned = found.unwrap_or_else(|| {
            let owned = Owned(shared.take());
            all.0.push((number, Arc::clone(shared), owned));
            owned
        });
        FAST.with(|fast| fast[number as usize % HEAPS].set((number, owned.0)));
        LAST.set((number, owned.0));
        owned.0
    };
    match ALL.try_with(find) {
        Ok(cache) => Lease { cache, passing: None },
        // Destructors of thread-locals that run after ours.
        Err(_) => Lease { cache: shared.take(), passing: Some((number, Arc::clone(shared))) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_of_ended_threads_are_orphans_and_serve_others_again() {
        let number = u64::MAX - 1;
        let shared = Arc::new(HeapCaches::new(number));
        let cache = std::thread::scope(|scope| {
            scope.spawn(|| lease(number, &shared).cache.addr()).join().unwrap_or_default()
        });
        let orphan = shared.take_orphan().unwrap();
        assert_eq!(orphan.addr(), cache);
        assert!(shared.take_orphan().is_none());
        shared.rest(orphan);
        assert_eq!(lease(number, &shared).cache.addr(), cache);
        assert_eq!(current(number).unwrap().addr().get(), cache);
        assert!(current(number - 1).is_none());
        // After the heap was renewed, nothing of it is used any more.
        shared.renew(number - 1);
        assert_ne!(lease(number - 1, &shared).cache.addr(), cache);
    }
}
