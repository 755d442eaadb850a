//! The logged heap (Poseidon): sub-heaps, whose metadata lie apart from all blocks, in a table of
//! block records that an undo log covers. Its recovery never traces. `docs/logged-heap.md` draws
//! it; the structures are [`cenote_layout::logged`].
//!
//! Invariant: metadata change only by *changes*: sets of cells that are planned in memory, and then
//! made all together or not at all by one protocol (`undo`). A crash leaves the state between two
//! changes. Each operation is one change, but for those that merge blocks or add levels on the way,
//! and the end of a transaction; after each change of these the sub-heap is whole, and the same
//! blocks are allocated.
//!
//! Modules, each of which imports earlier ones only:
//!
//! * `error`; `cells` (reads metadata, and alone writes them); `change` (cells to be); `undo`
//!   (makes a change; what a crash leaves of it);
//! * `plan`, and what is planned: `table` (records by offset), `lists` (free blocks by class),
//!   `buddy` (allocate, free, merge);
//! * `state` (a sub-heap under its lock), `levels` and `defrag` (room for blocks and records),
//!   `parts` (data and levels that come later), `micro` (transactions), `sub_heap` (allocate,
//!   free), `slab` (blocks under 256 bytes; `rooms` knows which slabs have room), `tickets` (blocks
//!   of transactions of pools), `make` (make, open), `check`;
//! * `root` (the root puddle), `heap` (sub-heaps by CPU), `grow` (sub-heaps and parts are made),
//!   `transaction` (over sub-heaps).
//!
//! * `blocks`: offers it as a [`crate::Heap`]; `trace` and `look` follow pointers for checks.

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
mod levels;
mod lists;
mod look;
mod make;
mod members;
mod micro;
mod micro_entry;
mod parts;
mod plan;
mod rooms;
mod root;
mod slab;
mod spares;
mod state;
mod sub_heap;
mod table;
mod tickets;
mod trace;
mod transaction;
mod undo;
mod used_tickets;

pub use cenote_protect::Protection;
pub use check::SubHeapReport;
pub use data::Region;
pub use error::{AllocRefused, Damage, FreeRefused, LogFull, LoggedError, SubHeapError};
pub use levels::RemoveFailed;
pub use make::{Place, Recovered};
pub use members::{LoggedHeap, LoggedOptions};
pub use micro::MicroLog;

pub use state::SubHeap;
pub use sub_heap::{SubHeapStats, block_size};
pub use transaction::HeapLog;
