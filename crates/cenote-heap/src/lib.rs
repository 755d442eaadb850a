//! Heaps of pools, behind one trait ([`Heap`]).
//!
//! The one there is so far is the *traced* heap (Ralloc, RAL-1 to RAL-7): superblocks of 64 KiB with blocks of one size and one
//! type each, described beside the blocks and never between them (POS-2), allocation marks in bitmaps that no
//! operation flushes, and recovery by tracing from typed roots through the pointer maps that the store keeps
//! (PUD-7), without any application's code.
//!
//! A reader who follows one allocation goes through the files in this order: [`heap`] (what a caller sees), [`class`] (size to
//! class), [`traced`] (the fast path), `bin` (a free bit in a bitmap), `grow` (no free bit: a superblock, a puddle),
//! `superblock` (what lies on media about it, and the one store that decides), `large` (runs of superblocks). Tracing is in
//! [`trace`] and `recover`.
//!
//! What the heap stands on is the small trait [`Ground`]: puddles, flush, fence. A store's pool implements it;
//! [`MemoryGround`] is plain memory, for tests and measurements.
//!
//! Locks, in the order in which they may be held together: transit, growth, the table of bins, a bin, free space. A bin's lock is the only one that the
//! fast path takes.

mod bin;
pub mod class;
pub mod error;
pub mod ground;
mod grow;
pub mod heap;
mod large;
mod lock;
mod memory;
mod pool;
mod recover;
pub mod report;
mod roots;
mod superblock;
pub mod trace;
pub mod traced;

pub use error::{AllocError, FreeError, GroundError, OpenError, RecoverError, RootError};
pub use ground::{Ground, Plot};
pub use heap::{Block, BlockInfo, Cancelled, Heap, Mark};
pub use memory::{Counts, MemoryGround, MemoryOptions};
pub use report::{BinStats, Damage, Finding, HeapReport, HeapStats, RecoveryReport};
pub use superblock::PuddleHeap;
pub use trace::Types;
pub use traced::TracedHeap;
