//! Faults in update groups, and in the tree of relaxed durability.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupBug {
    /// Lines count as in memory before the fence behind their flushes.
    DrainNotFenced,
    /// What is stored without a counter stays in the cache.
    ExhaustedNotWritten,
    /// The counter of a dropped group is given to the next one while its lines are in the cache.
    CounterFreedEarly,
    /// A line that another group counts is counted again.
    KnownLineCounted,
    /// A line that is being written back still counts as in its group.
    LineKeptWhileWritten,
    /// An entry becomes valid before its group has drained.
    TagBeforeDrained,
    /// An entry becomes valid although a group before its own has not drained.
    OrderIgnored,
    /// A mark of a deletion is in no group.
    MarkNotCounted,
    /// A split copies valid entries alone.
    SplitForgetsPending,
    /// What waits for a leaf goes on after the leaf was freed.
    FreedLeafTagged,
    /// Entries are appended before the log of the split says durably that it is done.
    SplitNotQuiesced,
    /// An opener works with the epoch of the program that died.
    EpochKept,
    /// An opener shows what it finds, and does not make it durable.
    FoundNotKept,
    /// Of two entries with one key an opener believes the first.
    OldestBelieved,
    /// A valid entry is shown without a look at its checksum.
    TagUnchecked,
}
