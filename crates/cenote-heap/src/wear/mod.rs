//! The wear heap (NVMalloc; NVM-1 to NVM-3): an allocator that spares its own locations, and
//! survives damage of them. `docs/wear-heap.md` has the design; [`cenote_layout::wear`] the bytes.
//!
//! Invariants:
//!
//! * On media there are headers, one line before each block, and a line for each segment. All else
//!   is in memory of the process and is rebuilt from headers.
//! * A header that a free block has got waits for the time of the heap before a block is allocated
//!   there. So no line of the heap is written more than twice in that time.
//! * Each change of a header is one line that counts when all of it is there.
//!
//! Modules, each of which imports earlier ones only: `error`; `clock`; `bits`, `lists` (memory of
//! the process); `lines` (reads and writes headers); `headers` (what tables and headers say);
//! `puddle`, `state` (what is known); `damage`; `scan`; `heap` (make, open); `alloc`; `free`;
//! `blocks` (offers it as a [`crate::Heap`]); `look` (check, counts); `beside` (threads that scan
//! the heap of a pool); `image` (which blocks are allocated, of puddles that no heap uses).

mod alloc;
mod beside;
mod bits;
mod blocks;
mod clock;
mod damage;
mod error;
mod free;
mod headers;
mod heap;
mod image;
mod lines;
mod lists;
mod look;
mod puddle;
mod scan;
mod state;

pub use alloc::{WEAR_BLOCK_MAX, block_size};
pub use beside::ScannedHeap;
pub use clock::WearClock;
pub use error::{WearDamage, WearError};
pub(crate) use image::WearImages;
pub use image::blocks_in;
pub use look::{WearReport, WearStats};
pub use scan::WearProgress;
pub use state::{DamageCallback, WearHeap, WearOptions};
