//! How a simulation is set up.

use crate::Durability;
use cenote_layout::id::Uuid;

/// How a simulated medium behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// The level that a direct mapping reaches. `Power`: persistent memory, a flush and a fence
    /// make stores durable. `Process`: the page cache, only a sync does.
    pub durability: Durability,
    /// Boot id, clock, identifiers: everything that is drawn is drawn from this.
    pub seed: u64,
    /// At `Process`: fences and streams (and flushes, should there be any) are recorded as moments
    /// at which the process may die. Without it only file operations are, and
    /// `SimMedium::crash_point`. Production code does not see a difference: the level that it
    /// is told is `process` either way.
    pub process_with_hooks: bool,
    /// Whether a history is recorded. Without it there are no crash states, and stores cost
    /// nothing.
    pub record: bool,
    /// Whether the medium refuses every change, like a file system that is mounted read-only.
    pub read_only: bool,
}

impl SimOptions {
    /// Records everything, with crash points at every fence.
    #[must_use]
    pub fn new(durability: Durability) -> Self {
        Self { durability, seed: 1, process_with_hooks: true, record: true, read_only: false }
    }
}

/// What a history began with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) options: SimOptions,
    pub(crate) boot: Uuid,
    /// How often the file system was mounted.
    pub(crate) mounting: u64,
}
