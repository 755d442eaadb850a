//! Heaps of pools, behind one trait ([`Heap`]).
//!
//! The one there is so far is the *traced* heap (Ralloc, RAL-1 to RAL-7): superblocks of 64 KiB with blocks of one size and one
//! type each, described beside the blocks and never between them (POS-2), allocation marks of one byte a block that no
//! operation flushes, and recovery by tracing from typed roots through the pointer maps that the store keeps
//! (PUD-7), without any application's code.
//!
//! A reader who follows one allocation goes through the files in this order: [`heap`] (what a caller sees), [`class`] (size to
//! class), [`traced`] (the fast path), `cache` (a thread's blocks), `refill` (a superblock's free blocks for a cache, and back), `grow` (no free block: a superblock, a puddle),
//! `superblock` (what lies on media about it, and the one store that decides), `adopt` (what an opener makes of it), `large` (runs of superblocks). Tracing is in
//! [`trace`] and `recover`; tracing beside a running program in [`reclaim`].
//!
//! The *kernel*, on which the rest stands, is four small files over atomic words: `anchor` (who has a superblock), `list` (superblocks with free blocks), `marks`
//! (who has a block), `runs` (free superblocks). They name atomics through `sync`, so that a model checker runs the same code (`tests/loom_kernel.rs`).
//!
//! What the heap stands on is the small trait [`Ground`]: puddles, flush, fence. A store's pool implements it;
//! [`MemoryGround`] is plain memory, for tests and measurements.
//!
//! Allocation, free, refill and spill are lock-free. Locks, in the order in which they may be held together: growth (calls the store), the list of caches.

mod adopt;
mod anchor;
mod cache;
pub mod class;
pub mod error;
mod geometry;
pub mod ground;
mod grow;
pub mod heap;
mod large;
mod list;
mod marks;
mod memory;
mod pool;
pub mod reclaim;
mod recover;
mod refill;
pub mod report;
mod roots;
mod runs;
mod superblock;
mod sync;
pub mod trace;
pub mod traced;

pub use error::{AllocError, FreeError, GroundError, OpenError, ReclaimError, RecoverError, RootError};
pub use ground::{Ground, Plot};
pub use heap::{Block, BlockInfo, Cancelled, Heap, Mark};
pub use memory::{Counts, MemoryGround, MemoryOptions};
pub use reclaim::Marked;
pub use report::{BinStats, Damage, Finding, HeapReport, HeapStats, RecoveryReport};
pub use superblock::PuddleHeap;
pub use trace::{TraceOptions, Types};
pub use traced::TracedHeap;
