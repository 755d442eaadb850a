//! Faults in the wear heap.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WearBug {
    /// A header that changes is not flushed.
    HeaderNotFlushed,
    /// A header changes where it stands, and not in the slot that is not in use.
    HeaderInPlace,
    /// What a block leaves over gets its header after the block has its own.
    RestAfterBlock,
    /// That header is not durable before the one of the block.
    RestNotFenced,
    /// A block is in a segment that the table does not have durably.
    SegmentNotFenced,
    /// A free returns before it is durable.
    FreeNotFenced,
    /// The part of a header that a crash left stays where the next header comes.
    TornLineKept,
    /// A freed block is given out at once.
    WaitIgnored,
    /// A free does not look at the header behind its block.
    NextNotLookedAt,
    /// The scan goes on at any header behind a damaged one.
    FreeHeaderBelieved,
    /// A header is stored before the entry that takes its block back is durable.
    EntryNotFenced,
    /// A block that a transaction gives back is so in memory alone.
    ReturnNotFlushed,
    /// A free range is taken as it was listed.
    StaleRangeBelieved,
}
