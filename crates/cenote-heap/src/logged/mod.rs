//! The logged heap (Poseidon): sub-heaps, whose metadata lie apart from all blocks, in a table of
//! block records that an undo log covers. Recovery does not trace. `docs/logged-heap.md` draws the
//! heap; [`cenote_layout::logged`] has the structures.
//!
//! Invariant: metadata change only by *changes*. A change is a set of cells that is planned in
//! memory; one protocol (`undo`) makes all of it or nothing. A crash leaves the state between two
//! changes. An operation is one change. Exceptions are operations that merge blocks or add levels
//! on the way, and the end of a transaction: after each of their changes the sub-heap is whole, and
//! the same blocks are allocated.
//!
//! Modules, each of which imports earlier ones only:
//!
//! * `error`; `stored_pages` (which pages one operation stored into); `cells` (reads metadata, and
//!   alone writes them); `change` (cells to be); `undo` (makes a change; what a crash leaves of
//!   it);
//! * `plan`, and what is planned: `table` (records by offset), `lists` (free blocks by class),
//!   `buddy` (allocate, free, merge);
//! * `state` (a sub-heap under its lock), `levels` and `defrag` (room for blocks and records),
//!   `parts` (data and levels that come later), `micro` (transactions), `sub_heap` (allocate,
//!   free), `slab` (blocks under 256 bytes; `rooms` knows which slabs have room), `tickets` (blocks
//!   of transactions of pools), `make` (make, open), `check`;
//! * `root` (the root puddle), `heap` (sub-heaps by CPU), `grow` (sub-heaps and parts are made),
//!   `transaction` (over sub-heaps).
//!
//! * `blocks`: offers it as a [`crate::Heap`]; `look` answers checks;
//!   `image`: which blocks are allocated, of puddles that no heap uses.

mod blocks;
mod buddy;
mod cells;
mod change;
mod check;
mod data;
mod defrag;
mod error;
mod grow;
mod heap;
mod image;
mod levels;
mod lists;
mod look;
mod make;
mod members;
mod micro;
mod micro_entry;
mod parts;
mod plan;
mod quick;
mod rooms;
mod root;
mod slab;
mod spares;
mod state;
mod step;
mod stored_pages;
mod sub_heap;
mod table;
mod tickets;
mod transaction;
mod undo;
mod used_tickets;

pub use cenote_protect::Protection;
pub use check::SubHeapReport;
pub use data::Region;
pub use error::{AllocRefused, Damage, FreeRefused, LogFull, LoggedError, SubHeapError};
pub(crate) use image::LoggedImages;
pub use image::blocks_in;
pub use levels::RemoveFailed;
pub use make::{Recovered, SubHeapPlace};
pub use members::{LoggedHeap, LoggedOptions};
pub use micro::MicroLog;

pub use state::SubHeap;
pub use sub_heap::{SubHeapStats, block_size};
pub use transaction::HeapLog;
