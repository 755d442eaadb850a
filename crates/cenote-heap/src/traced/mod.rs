//! The traced heap (Ralloc): superblocks of 64 KiB with blocks of one size and one type each,
//! described beside the blocks and never between them (POS-2).
//!
//! Invariant: a block is allocated if and only if its mark says so, in a superblock whose
//! descriptor is valid. The heap flushes no mark; transactions flush marks at commit. After a loss
//! of power, tracing computes the marks again from typed roots and pointer maps (RAL-1, PUD-7).
//!
//! Modules, each of which imports earlier ones only:
//!
//! * the kernel over atomic words, which a model checker runs too: `anchor` (who has a superblock),
//!   `list` (superblocks with free blocks), `marks` (who has a block), `runs` (free superblocks),
//!   `gate` (keeps all from slow paths for a moment);
//! * what lies on media: `descriptor` (what one says), `geometry`, `line` (a descriptor in use),
//!   `superblock` (a puddle, and the one store that decides), `claims` (what descriptors say
//!   together), `survey` (what marks say together), `adopt` (what an opener makes of both), `image`
//!   (the same of puddles that no heap uses);
//! * `members`: the processes that share the heap (RAL-8);
//! * `held` (what a thread that traces has locked), `cache` (a thread's blocks), `puddles`, `trace`
//!   (what roots reach), `record` (what stood in blocks before they changed), and `state`, which
//!   holds these;
//! * operations: `resolve` (address to block), `alloc` (the fast path), `refill` (a superblock's
//!   free blocks for a cache, and back), `large` (runs of superblocks), `attach` and `grow`
//!   (puddles), `roots`, `trim` (space given back to the file), `sweep` (after a member's death);
//! * `condemn` (how unreachable blocks die, and the invariant of that), `recover`, `reclaim`,
//!   `values`, `occupancy`, `unreached`;
//! * `open`: opens and closes the heap, and offers it as a [`crate::Heap`].
//!
//! Allocation, free, refill and spill are lock-free. Where several processes share a heap, refill
//! and spill wait while a member repairs a dead member's superblocks.

mod adopt;
mod alloc;
mod anchor;
mod attach;
mod bin;
mod cache;
mod claims;
mod condemn;
mod damage;
mod descriptor;
mod gate;
mod geometry;
mod grow;
mod guarding;
mod held;
mod image;
mod large;
mod line;
mod list;
mod marks;
mod members;
mod mutex;
mod occupancy;
mod open;
mod puddles;
pub mod reclaim;
mod record;
mod recover;
mod refill;
mod resolve;
mod roots;
mod runs;
mod slow;
mod state;
mod superblock;
mod survey;
mod sweep;
mod trace;
mod trim;
mod unreached;

pub use alloc::ALIGN_MAX;
pub use held::is_helper;
pub(crate) use image::TracedImages;
pub(crate) use members::turn_word;
pub use occupancy::{SuperblockInfo, Use, unused_end};
pub use state::TracedHeap;
pub use superblock::PuddleHeap;
pub use sweep::Swept;
