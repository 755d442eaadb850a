//! Planted bugs: deliberate faults that the tests must find (DESIGN 13).
//!
//! Production code asks [`planted`] at the places where a fault would be plausible. Without the feature `planted-bugs` the answer is the constant
//! `false` and the question costs nothing; with it, a test plants one bug in its own thread and shows that crash enumeration, or another named
//! test, turns red.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Bug {
    /// No bug.
    None = 0,
    /// Data is changed before its undo entry is fenced.
    UndoNotFenced,
    /// Commit does not flush what was logged.
    DataNotFlushed,
    /// Commit does not flush fresh allocations.
    FreshNotFlushed,
    /// Commit does not fence data before the range moves on.
    DataNotFenced,
    /// The range moves on before data is flushed.
    RangeMovedEarly,
    /// The finishing store is left unfenced where another log could change the same data.
    FinishNotFenced,
    /// Redo data is copied in place before the seal is durable.
    RedoAppliedEarly,
    /// The next transaction starts in the same half of the log.
    HalvesNotSwapped,
    /// Recovery takes a whole seal for a commit without comparing contents.
    SealContentsIgnored,
    /// Recovery applies undo entries first to last.
    UndoAppliedForward,
    /// Recovery moves the range on before what it wrote is durable.
    ReplayNotFenced,
    /// Recovery believes entries without their checksum.
    ChecksumIgnored,
    /// Recovery writes where the log's owner had no lease.
    LeaseIgnored,
    /// A superblock's descriptor is not flushed before its blocks are used.
    DescriptorNotFlushed,
    /// A freed block is given out again before the transaction that freed it is over.
    FreedEarly,
    /// An aborted allocation keeps its mark.
    AbortKeepsAllocation,
    /// A puddle is handed out before its catalog record is durable.
    CatalogNotSynced,
    /// The superblock copy in use is overwritten instead of the other one.
    SuperblockSameCopy,
    /// The range moves on before deferred writes are durable in place.
    RedoNotFenced,
    /// A transaction is finished lazily although a block that its seal covers is given out again.
    LazyDespiteFreed,
    /// A second log comes into use while the first one's range is not durable.
    JoinNotFlushed,
    /// The overflow word names a segment before the jump into it is durable.
    OverflowEarly,
    /// Recovery after a loss of power forgets to say that marks must be computed again.
    TraceDueForgotten,
    /// A refill calls a superblock full without looking whether blocks of it were freed meanwhile.
    RefillUnchecked,
    /// A free believes what its thread remembers of a superblock that has become another kind's since.
    RememberedUnchecked,
    /// A psync syncs header and commit record before its data is written.
    PsyncCommitBeforeData,
    /// A psync is acknowledged without a sync of the journal.
    PsyncNotSynced,
    /// A psync changes the primary before its record is durable.
    PsyncAppliedEarly,
    /// A half of the journal is written anew before what it holds is durable in the primaries.
    JournalReusedEarly,
    /// Recovery believes the data of a record without its checksum.
    JournalSumIgnored,
    /// Recovery trims the journal before what it wrote is durable in the primaries.
    JournalReplayNotSynced,
    /// Recovery does not see where records of an earlier session begin.
    JournalEpochIgnored,
    /// A psync of several objects makes a record for each.
    PsyncNotTogether,
    /// A psync that failed forgets which pages were dirty.
    PsyncForgetsPages,
    /// What is left of a removed pool stays in the spare puddle that another pool takes.
    SpareNotCleared,
    /// A spare puddle's header says that the rest is zeros before they are durable.
    SpareHeaderEarly,
    /// Reclaim does not hear of what a transaction is about to change.
    ReclaimMissesAdd,
    /// Reclaim does not hear of what a block held that is freed.
    ReclaimMissesFree,
    /// Reclaim looks at roots when it begins to trace, and not at the beginning.
    ReclaimMissesRoot,
    /// Reclaim takes blocks of its own session for leaks.
    ReclaimTakesNew,
}

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static ACTIVE: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// Whether this bug is planted in this thread.
#[inline(always)]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    #[cfg(feature = "planted-bugs")]
    {
        ACTIVE.with(|active| active.get() == bug as u32)
    }
    #[cfg(not(feature = "planted-bugs"))]
    {
        let _ = bug;
        false
    }
}

/// Plants a bug in this thread; [`Bug::None`] takes it out again.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Bug) {
    ACTIVE.with(|active| active.set(bug as u32));
}
