//! Heaps of pools: several kinds behind two traits ([`Heap`], [`Inspect`]). What only some kinds
//! can do are traits too ([`capability`]), asked for by their type.
//!
//! A kind is a folder: [`traced`] (Ralloc, RAL-1 to RAL-7), [`logged`] (Poseidon) and [`wear`]
//! (NVMalloc). [`PoolHeap`] opens the kind that the catalog names for a pool.
//! Beside the folders lies what every kind needs:
//!
//! * [`backing`]: what a heap uses below it, as a small trait: puddles, flush, fence. `pool`
//!   implements it for a store's pool; [`MemoryBacking`] is plain memory, for tests and
//!   measurements;
//! * [`block`], [`class`], [`heap`], [`capability`], [`trace`], [`report`], [`error`]: a
//!   caller's interface;
//! * [`image`], and `image_codec` ([`PoolImages`]): what puddles hold that no heap uses;
//! * `robust`, [`locks`], `exclusion`: locks between processes, which die with their owner;
//! * `sync`: the atomics, so that a model checker runs the same code (`tests/interleavings.rs`).
//!
//! To follow one allocation, begin with [`heap`], then [`class`] (size to class), then
//! `traced/alloc.rs`.

pub mod backing;
pub mod block;
pub mod capability;
pub mod class;
mod copied;
pub mod error;
mod error_kinds;
mod exclusion;
pub mod heap;
pub mod image;
mod image_codec;
pub mod locks;
pub mod logged;
mod logged_error;
mod memory;
mod owners;
mod pool;
mod pool_backing;
mod pool_heap;
mod reach;
pub mod report;
mod robust;
mod roots;
mod stored;
mod sync;
pub mod trace;
pub mod traced;
mod values;
pub mod wear;
mod wear_error;

pub use backing::{Backing, Extent, Sharing};
pub use block::{Block, BlockInfo, Cancelled, Mark, Taking};
pub use capability::{Reclaim, Shared, Trace, Trim};
pub use error::{
    AllocError, BackingError, FreeError, OpenError, PlaceError, ReclaimError, RecoverError,
    RootError, WrongKind,
};
pub use exclusion::Exclusion;
pub use heap::{Heap, Inspect};
pub use image_codec::PoolImages;
pub use memory::{DurabilityCounts, MemoryBacking, MemoryOptions};
pub use pool_backing::PoolBacking;
pub use pool_heap::{Capability, PoolHeap};
pub use report::{
    BinStats, Damage, Finding, HeapReport, HeapStats, Marked, MetadataDamage, RecoveryReport,
    TrimProgress, TrimReport, ValueReport,
};
pub use roots::RootWay;
pub use trace::{TraceOptions, TraceProgress, Types};
pub use traced::reclaim;
pub use traced::{PuddleHeap, SuperblockInfo, Swept, TracedHeap, Use, is_helper, unused_end};
