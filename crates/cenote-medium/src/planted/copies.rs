//! Faults in copies of pools into pools of another heap.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyBug {
    /// A block counts as scanned before its pointers are written.
    ScannedEarly,
    /// A copy that goes on does not compare its source with what was copied.
    NotCompared,
    /// An unfinished copy opens like any other pool.
    OpensUnfinished,
    /// Off-holders are copied as they stand.
    RelativeAsItStands,
    /// Roots are set after the state says that the source is not needed any more.
    RootsLate,
    /// What an earlier session copied is not found again.
    TableForgotten,
    /// A copy goes on although the roots of its source have changed.
    RootsNotCompared,
    /// A copy ends without a psync.
    EndNotPsynced,
    /// The end of an array's block that a logged heap adds keeps what stood there.
    EndNotCleared,
}
