//! Update groups: a program stores as usual, and asks later how many lines of a group of stores
//! have not reached memory (NVMalloc, sections 5 and 7.3: cache line counters).
//!
//! [`UpdateGroups::sgroup`] opens a group, [`UpdateGroup::store`] and [`UpdateGroup::write`] store
//! and count, [`UpdateGroups::scheck`] says how many lines are left. No store is flushed by the
//! thread that makes it. The paper proposes a counter in the processor's cache; here
//!
//! * on real memory a thread writes lines back in the background ([`Leaving::Drained`]): it takes
//!   lines out of the table, flushes them, fences, and only then counts them;
//! * on the simulated medium a modelled cache ([`Leaving::Modelled`]) decides when a line leaves.
//!
//! Invariants:
//!
//! * *A line that is in the table will be written back as a whole later than each store that found
//!   it there.* A store comes first, then the table's lock; and a line leaves the table before it
//!   is flushed. So a line that is stored to while it is being written back is counted again.
//! * *A line counts for one group, the first that dirtied it.* So the stores of a group are in
//!   memory when its count is zero **and** the counts of all groups opened before it are.
//! * *A group without a counter (C0) is written through*: its stores are flushed and fenced before
//!   the call returns, and its count is always zero. So is a line for which the table has no room.
//! * *A counter is given out again when its last line has left*, and its group was dropped.
//!
//! At level `process` there is nothing to wait for: each group is C0, no instruction is executed.
//! Groups belong to no thread: it may move, and others may store into one group.

mod drainer;
mod groups;
mod lines;
mod shared;

pub use groups::{GroupOptions, Leaving, UpdateGroup, UpdateGroups};
pub use lines::{CacheModel, Replacement};
