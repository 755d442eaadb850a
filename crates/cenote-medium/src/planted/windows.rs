//! Faults in snapshots, which read a pool through a second window while writers go on.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowBug {
    /// No page is kept.
    NotKept,
    /// Of a range that goes on in another group of pages, only the first group is kept.
    NeighbourMissed,
    /// A range is kept after it was changed.
    RangeKeptLate,
    /// The mark of a block that is allocated is not kept.
    AllocationNotKept,
    /// The mark of a block that is freed is not kept.
    FreedMarkNotKept,
    /// The bytes of a block that is freed are not kept.
    FreedBlockNotKept,
    /// Descriptors are not kept when a window begins.
    DescriptorsNotKept,
    /// A snapshot looks through a window that began before the last commit.
    StaleShared,
    /// More is kept than may be.
    LimitIgnored,
    /// The kernel has no memory for a copy.
    CopyFails,
    /// A transaction goes on after a copy failed.
    CopyFailureIgnored,
    /// A snapshot begins while a transaction runs.
    BegunWithin,
    /// Roots are read where writers change them.
    LiveRoots,
    /// What is alive is asked of the pool.
    LiveMarks,
    /// A reclaim frees blocks that a snapshot may look at.
    ReclaimNotRefused,
}
