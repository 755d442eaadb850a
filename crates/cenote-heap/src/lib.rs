//! Heaps of pools, behind one trait ([`Heap`]).
//!
//! The one there is so far is the *traced* heap (Ralloc, RAL-1 to RAL-7): superblocks of 64 KiB with blocks of one size and one
//! type each, described beside the blocks and never between them (POS-2), allocation marks of one byte a block that no
//! operation of the heap flushes (transactions do, at commit), and recovery by tracing from typed roots through the pointer maps that the store keeps
//! (PUD-7), without any application's code.
//!
//! A reader who follows one allocation goes through the files in this order: [`heap`] (what a caller sees), [`class`] (size to
//! class), [`traced`] (the fast path), `cache` (a thread's blocks), `refill` (a superblock's free blocks for a cache, and back), `grow` (no free block: a superblock, a puddle),
//! `superblock` (what lies on media about it, and the one store that decides), `adopt` (what an opener makes of it), `large` (runs of superblocks), `trim` (space given back to the file). Tracing is in
//! [`trace`] and `recover`; tracing beside a running program in [`reclaim`]; how what neither
//! reaches dies, and the invariant of all that, in `condemn`.
//!
//! Several processes on one heap (RAL-8): `members` (who they are, how one joins and leaves), `sweep` (what is done when one dies).
//!
//! The *kernel*, on which the rest stands, is five small files over atomic words: `anchor` (who has a superblock), `list` (superblocks with free blocks), `marks`
//! (who has a block), `runs` (free superblocks), `gate` (keeps all from slow paths for a moment). They name atomics through `sync`, so that a model checker runs the same code (the crate `cenote-heap-models`).
//!
//! What the heap stands on is the small trait [`Ground`]: puddles, flush, fence. A store's pool implements it;
//! [`MemoryGround`] is plain memory, for tests and measurements.
//!
//! Allocation, free, refill and spill are lock-free; where several processes share a heap, refill and spill wait while a dead one's superblocks are put right. Locks, in the order in which they
//! may be held together: the pool's (between processes), growth (calls the store), the list of caches. Inside the gate, nobody waits for the pool's lock.

mod adopt;
mod anchor;
mod cache;
pub mod class;
mod condemn;
pub mod error;
mod exclusion;
mod gate;
mod geometry;
pub mod ground;
mod grow;
pub mod heap;
mod large;
mod list;
pub mod locks;
mod marks;
mod members;
mod memory;
mod occupancy;
mod pool;
pub mod reclaim;
mod recover;
mod refill;
pub mod report;
mod robust;
mod roots;
mod runs;
mod superblock;
mod survey;
mod sweep;
mod sync;
pub mod trace;
pub mod traced;
mod trim;
mod values;

pub use error::{AllocError, FreeError, GroundError, OpenError, ReclaimError, RecoverError, RootError};
pub use exclusion::Exclusion;
pub use ground::{Ground, Plot, Sharing};
pub use heap::{Block, BlockInfo, Cancelled, Heap, Mark, Taking};
pub use memory::{Counts, MemoryGround, MemoryOptions};
pub use occupancy::{SuperblockInfo, Use, unused_end};
pub use reclaim::Marked;
pub use report::{BinStats, Damage, Finding, HeapReport, HeapStats, RecoveryReport, ValueReport};
pub use superblock::PuddleHeap;
pub use sweep::Swept;
pub use trace::{Progress, TraceOptions, Types};
pub use traced::TracedHeap;
pub use trim::{TrimProgress, TrimReport};
