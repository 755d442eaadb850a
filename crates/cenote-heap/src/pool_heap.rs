//! Opens the heap of a store's pool, of the kind that the catalog names ([`HeapKind`]).
//!
//! Every operation of [`Heap`] and [`Inspect`] works on each kind. What only some kinds can do is
//! asked for by type ([`PoolHeap::capability`]).

use crate::block::{Block, BlockInfo, Cancelled, Taking};
use crate::capability::{Reclaim, Shared, Trace, Trim};
use crate::class::block_size;
use crate::error::{
    AllocError, FreeError, OpenError, PlaceError, RecoverError, RootError, WrongKind,
};
use crate::heap::{Heap, Inspect};
use crate::logged::{self, LoggedHeap, LoggedOptions, SubHeapStats};
use crate::pool_backing::PoolBacking;
use crate::reach::Followed;
use crate::report::{Damage, HeapReport, HeapStats, ValueReport};
use crate::roots::RootWay;
use crate::trace::{TraceOptions, Types};
use crate::traced::TracedHeap;
use crate::values::check_values;
use crate::wear::{self, ScannedHeap, WearDamage, WearHeap, WearOptions};
use cenote_layout::catalog::{HeapKind, PoolMode};
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;
use cenote_layout::values::Values;
use core::ptr::NonNull;
use std::collections::BTreeSet;

/// A pool's heap.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per open pool, and never moved afterwards")]
pub enum PoolHeap {
    /// Recoverable by tracing.
    Traced(TracedHeap),
    /// Recoverable by its logs.
    Logged(LoggedHeap<PoolBacking>),
    /// Spares its own locations.
    Wear(ScannedHeap<PoolBacking>),
}

/// Does the same to each kind.
macro_rules! each {
    ($heap:expr, $name:ident => $what:expr) => {
        match $heap {
            PoolHeap::Traced($name) => $what,
            PoolHeap::Logged($name) => $what,
            PoolHeap::Wear(scanned) => {
                let $name = &**scanned;
                $what
            }
        }
    };
}

impl PoolHeap {
    /// Opens the heap of a pool; makes it, if the pool is new and open for writing.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(backing: PoolBacking) -> Result<Self, OpenError> {
        match backing.record().heap {
            HeapKind::Traced => TracedHeap::open(backing).map(Self::Traced),
            HeapKind::Logged => {
                if backing.root_puddle().is_none() {
                    return Err(OpenError::NoPuddle);
                }
                let goes_back = backing.record().mode == PoolMode::Shadowed;
                let options = LoggedOptions::for_pool(backing.record().puddle_size);
                let options = LoggedOptions { goes_back, ..options };
                Ok(Self::Logged(LoggedHeap::open_pool(backing, &options)?))
            }
            HeapKind::Wear { wait_ms } => {
                let root = backing.root_puddle().ok_or(OpenError::NoPuddle)?;
                // No other puddle has its identity, so no heap that is made has its key.
                let identity = u128::from_le_bytes(root.uuid().0);
                let key = identity as u64 ^ (identity >> 64) as u64;
                let options = WearOptions { wait_ms, key, ..WearOptions::default() };
                Ok(Self::Wear(ScannedHeap::new(WearHeap::open_pool(backing, &options)?)))
            }
        }
    }

    /// The heap itself: its calls do not choose between kinds any more (decision 369).
    #[must_use]
    #[inline]
    pub fn as_kind(&self) -> &dyn Heap {
        match self {
            Self::Traced(heap) => heap,
            Self::Logged(heap) => heap,
            Self::Wear(heap) => &**heap,
        }
    }

    /// The heap, if it is a traced one.
    #[must_use]
    #[inline]
    pub const fn traced(&self) -> Option<&TracedHeap> {
        match self {
            Self::Traced(heap) => Some(heap),
            Self::Logged(_) | Self::Wear(_) => None,
        }
    }

    /// The heap, if it is a wear heap.
    #[must_use]
    pub fn wear(&self) -> Option<&WearHeap<PoolBacking>> {
        match self {
            Self::Wear(heap) => Some(heap),
            Self::Traced(_) | Self::Logged(_) => None,
        }
    }

    /// The heap, if it has a capability: `can::<dyn Trim>()`.
    #[inline]
    #[must_use]
    pub fn can<C: Capability + ?Sized>(&self) -> Option<&C> {
        C::of(self)
    }

    /// The heap as one that has a capability: `capability::<dyn Trim>()`.
    ///
    /// # Errors
    /// The heap is of a kind that has not.
    #[inline]
    pub fn capability<C: Capability + ?Sized>(&self) -> Result<&C, WrongKind> {
        C::of(self).ok_or_else(|| self.wrong_kind(C::WHAT, C::INSTEAD))
    }

    #[cold]
    fn wrong_kind(&self, what: &'static str, instead: &'static str) -> WrongKind {
        let (heap, pool) = match self {
            Self::Traced(heap) => ("traced", heap.backing().name()),
            Self::Logged(heap) => ("logged", heap.backing().name()),
            Self::Wear(heap) => ("wear", heap.backing().name()),
        };
        WrongKind { pool: pool.to_string(), heap, what, instead }
    }

    /// Bytes of the block that a request of `size` bytes at a multiple of `align` gets; `None` if
    /// no block can be that large. A logged heap without room for a slab gives more.
    #[must_use]
    pub fn block_size(&self, size: u64, align: u64) -> Option<u64> {
        match self {
            Self::Traced(_) => block_size(size, align),
            Self::Logged(_) => logged::block_size(size, align),
            Self::Wear(_) => wear::block_size(size),
        }
    }

    /// Whether a block may be larger than [`PoolHeap::block_size`] says: where a logged heap has no
    /// room for a slab, and in a wear heap.
    #[must_use]
    pub const fn may_give_more(&self) -> bool {
        !matches!(self, Self::Traced(_))
    }

    /// Numbers and counts of the sub-heaps of a logged heap; none of another kind.
    ///
    /// # Errors
    /// The metadata are damaged.
    pub fn sub_heaps(&self) -> Result<Vec<(u32, SubHeapStats)>, RecoverError> {
        match self {
            Self::Traced(_) | Self::Wear(_) => Ok(Vec::new()),
            Self::Logged(heap) => Ok(heap.stats()?),
        }
    }

    /// Whether a block of a type is allocated and begins at `addr`.
    #[must_use]
    #[inline(always)]
    pub fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        each!(self, heap => heap.is_live(addr, type_id))
    }

    /// Superblocks that are out of use. Heaps of other kinds have none: a logged heap that is
    /// damaged is refused when it is opened, or the operation that meets it; of a wear heap see
    /// [`PoolHeap::header_damage`].
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        self.traced().map(TracedHeap::damage).unwrap_or_default()
    }

    /// Whether anything of the heap is known to be damaged.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        !self.damage().is_empty() || !self.header_damage().is_empty()
    }

    /// Damaged headers of a wear heap, as far as they are known; none of another kind.
    #[must_use]
    pub fn header_damage(&self) -> Vec<WearDamage> {
        self.wear().map(WearHeap::damage).unwrap_or_default()
    }

    /// Looks at the values of all allocated blocks whose types have rules.
    ///
    /// # Errors
    /// A puddle cannot be mapped; [`RecoverError::Cancelled`].
    pub fn check_values(
        &self,
        values: &mut Values,
        options: TraceOptions<'_>,
    ) -> Result<ValueReport, RecoverError> {
        each!(self, heap => check_values(heap, values, options))
    }
}

/// An operation, or a few, that heaps of some kinds have; see [`crate::capability`].
pub trait Capability {
    /// What a heap without it cannot do.
    const WHAT: &'static str;
    /// What to do instead.
    const INSTEAD: &'static str;

    /// The pool's heap, if it is of a kind that can.
    fn of(heap: &PoolHeap) -> Option<&Self>;
}

/// Declares capabilities, with the kinds that have them.
macro_rules! capabilities {
    ($($name:ident: $($kind:ident)+, $what:literal, $instead:literal;)+) => {
        $(impl Capability for dyn $name {
            const WHAT: &'static str = $what;
            const INSTEAD: &'static str = $instead;

            #[inline]
            fn of(heap: &PoolHeap) -> Option<&Self> {
                match heap {
                    $(PoolHeap::$kind(heap) => Some(heap),)+
                    #[allow(unreachable_patterns, reason = "a capability may be of all kinds")]
                    _ => None,
                }
            }
        })+
    };
}

capabilities! {
    Trace: Traced, "be recovered by tracing",
        "opening it reads which blocks are allocated; free the leaks that `check` names by \
         transactions";
    Reclaim: Traced, "be traced while it changes, and may lead to any block of the store",
        "look for leaks with `check`, and free them by transactions";
    Trim: Traced, "give space back to the file system",
        "its free blocks serve the next allocations";
    Shared: Traced, "be written by several processes", "open it in one process";
}

impl Heap for PoolHeap {
    #[inline(always)]
    fn alloc_with(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<Taking, Cancelled>,
    ) -> Result<Block, AllocError> {
        each!(self, heap => heap.alloc_with(size, align, type_id, before))
    }

    fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<Block, AllocError> {
        each!(self, heap => Heap::alloc(heap, size, align, type_id))
    }

    #[inline(always)]
    fn find(&self, addr: u64) -> Result<Block, FreeError> {
        each!(self, heap => Heap::find(heap, addr))
    }

    #[inline(always)]
    fn find_to_free(&self, addr: u64) -> Result<Block, FreeError> {
        each!(self, heap => heap.find_to_free(addr))
    }

    fn free(&self, addr: u64) -> Result<(), FreeError> {
        each!(self, heap => Heap::free(heap, addr))
    }

    unsafe fn set_mark(&self, block: &Block) {
        // SAFETY: the caller's promise is the same.
        unsafe { each!(self, heap => heap.set_mark(block)) }
    }

    fn clear_mark(&self, block: &Block) {
        each!(self, heap => heap.clear_mark(block));
    }

    fn release(&self, block: &Block) {
        each!(self, heap => heap.release(block));
    }

    fn settle(&self, block: &Block) {
        each!(self, heap => heap.settle(block));
    }

    fn owner(&self, addr: u64) -> Option<BlockInfo> {
        each!(self, heap => Heap::owner(heap, addr))
    }

    fn place(&self, addr: u64) -> Result<RegionAddress, PlaceError> {
        each!(self, heap => heap.place(addr))
    }

    fn address(&self, place: &RegionAddress) -> Result<u64, PlaceError> {
        each!(self, heap => heap.address(place))
    }

    fn root(&self, index: u16) -> Result<RootEntry, RootError> {
        each!(self, heap => heap.root(index))
    }

    fn root_slot(&self, index: u16) -> Result<NonNull<RootSlot>, RootError> {
        each!(self, heap => heap.root_slot(index))
    }

    fn root_way(&self) -> RootWay {
        each!(self, heap => heap.root_way())
    }

    fn is_guarded(&self) -> bool {
        each!(self, heap => Heap::is_guarded(heap))
    }

    fn set_root(&self, index: u16, addr: u64, type_id: TypeId) -> Result<(), RootError> {
        each!(self, heap => heap.set_root(index, addr, type_id))
    }
}

impl Inspect for PoolHeap {
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        each!(self, heap => heap.walk(visit))
    }

    fn check_from(
        &self,
        types: Option<&dyn Types>,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError> {
        each!(self, heap => heap.check_from(types, roots, options))
    }

    fn foreign_pointers(
        &self,
        types: &dyn Types,
        roots: &[u64],
    ) -> Result<BTreeSet<u64>, RecoverError> {
        each!(self, heap => heap.foreign_pointers(types, roots))
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        each!(self, heap => Inspect::stats(heap))
    }
}
