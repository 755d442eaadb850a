//! Steps: moments between the stores of an update, of which a test hears.

/// Places between two stores of an update, at which a process may stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// A superblock was popped from its list.
    Popped,
    /// Its free blocks were claimed.
    Claimed,
    /// A superblock was taken out of free space.
    Taken,
    /// Its descriptor was written.
    Described,
    /// Its blocks are the taker's, and it is not known to be full.
    SetUp,
    /// Blocks were made free, and not announced.
    Spilled,
    /// They were announced, and their superblock is not in its list.
    Announced,
    /// A list was swapped out by a scavenger.
    Scavenging,
    /// A superblock without blocks was retired, and is not free.
    Retired,
    /// The first superblock of several was given back.
    PutOne,
    /// A superblock is free, and its hint is not set.
    Unhinted,
    /// The tails of a large block are known, its head is not.
    LargeTails,
    /// So is its head, and the block is not marked.
    LargeHead,
    /// The mark of a large block was changed to free it.
    LargeFreed,
    /// A large block is free, and the run that is to stay together is in no list.
    LargeIdle,
    /// A puddle was taken, and no thread has looked at it.
    Grown,
    /// A puddle's words were written, and it does not count as adopted.
    Adopting,
    /// A puddle is adopted, and its superblocks are not in lists.
    Adopted,
    /// A member has its seat and nothing else.
    Joined,
    /// A sweeper has closed the gate.
    SweepClosed,
    /// A sweeper has put one superblock right.
    SweepHand,
    /// A sweeper has freed a dead member's blocks in one superblock, and not announced them.
    SweepFreed,
    /// A sweeper is done but for the seats.
    SweepDone,
    /// A superblock that was taken has no marks outside any more.
    MarksCleared,
    /// Its descriptor is durable.
    DescriptorDurable,
    /// It says that it uses tiny marks.
    TinyNoted,
    /// All its blocks are in the taker's cache.
    AllClaimed,
    /// A retired superblock has no geometry any more.
    Hidden,
    /// Nor does it say where its marks are.
    MarksGivenUp,
    /// One block of those that are spilled was made free.
    BlockSpilled,
    /// The descriptors of a large block are durable.
    LargeDescribed,
    /// What is behind blocks was given back.
    EndCut,
    /// A large block is known, and not marked.
    LargeKnown,
    /// A large block is free, and its superblocks are not.
    LargeUnmarked,
    /// Free superblocks were taken, to become holes.
    TrimTaken,
    /// One of them says durably that it is a hole.
    HoleDeclared,
    /// Their space was given back, and they were not.
    TrimPunched,
    /// A hole has space again, and says still that it is one.
    HoleFilled,
    /// A free superblock was adopted.
    FreeAdopted,
    /// Some marks of a puddle that is adopted were put right.
    MarksNormalised,
    /// A sweep is open: nothing is condemned.
    SweepOpened,
    /// Some blocks are condemned.
    BlocksCondemned,
    /// A sweep is committed.
    SweepCommitted,
    /// An opener has decided some condemned marks.
    SweepDecided,
    /// A sweep is over.
    SweepClosedAgain,
    /// Some marks were computed anew by tracing.
    MarksRecovered,
    /// All were.
    AllRecovered,
    /// A descriptor is about to be written.
    DescriptorBegun,
    /// Its span was.
    DescriptorSpan,
    /// So was its type.
    DescriptorType,
    /// So was its block size.
    DescriptorBlockSize,
    /// So was all but its checksum.
    DescriptorKind,
    /// The record of a psync of pools is in the journal, and the device is not asked for it yet.
    PsyncWaits,
    /// A daemon has seen that the identity of an object to be made is not that of one that is gone.
    IdentityLookedUp,
    /// A snapshot in the making has its object alone, and has not opened its file yet.
    SnapshotBegun,
    /// A type of the program is known, and no store was compared with it.
    TypeInserted,
    /// An object was looked up, and is not attached yet.
    ObjectLookedUp,
    /// What was looked for in an object's file was not found.
    ObjectLookFailed,
    /// The undo record of a change was stored, and no cell.
    UndoRecorded,
    /// One cell of a change was stored.
    CellStored,
    /// The bit of a slot was changed in place, and not the check of its slab.
    SlotStored,
    /// The check, too, and neither is durable.
    StepStored,
    /// A change is sealed.
    ChangeSealed,
    /// One cell of a change was undone.
    CellUndone,
    /// A level that is absent has space.
    LevelEnsured,
    /// A level that is present has no records.
    LevelEmpty,
    /// It is absent, and has its space.
    LevelAbsent,
    /// The word of a lane was stored.
    LaneStored,
    /// What one entry of a lane asks for was done.
    EntryDone,
    /// A block of a transaction is allocated, and in no entry.
    MicroEntryLate,
    /// A puddle was taken for a logged heap, and nothing names it.
    PartTaken,
    /// A sub-heap is made, and no word names it.
    SubHeapMade,
    /// The word of a sub-heap was stored.
    SubHeapNamed,
    /// A transaction is decided in several sub-heaps, and one lane has ended.
    LaneEnded,
    /// A transaction that has entries is about to commit.
    CommitBegun,
    /// Its range says that it is committed, and nothing was done that relies on that.
    CommitStored,
    /// Nothing is left of it but its end in the log.
    CommitEnds,
    /// What an abort puts back is about to be read from the log.
    AbortBegun,
    /// A log was read, and nothing of it is applied.
    LogRead,
    /// All of it is applied, and its range has not moved on.
    LogApplied,
    /// The rest behind a block of a wear heap has its headers, and the block has none.
    WearRestStored,
    /// The header that commits a change of a wear heap was stored.
    WearCommitted,
    /// The open end of a segment is a free block.
    WearEndClosed,
    /// A segment is in the table of its puddle, and no block is in it.
    WearSegmentStored,
    /// One word of a header was stored.
    WearWordStored,
}

/// What hears of steps.
#[cfg(feature = "planted-bugs")]
pub type Watcher = Box<dyn FnMut(Step)>;

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static WATCHER: core::cell::RefCell<Option<Watcher>> = const { core::cell::RefCell::new(None) };
}

/// This thread has come to a step: without the feature nothing at all. A test that calls `watch` in
/// this thread hears of it, and makes a crash point of it, or ends the process there.
#[inline(always)]
pub fn reach(step: Step) {
    #[cfg(feature = "planted-bugs")]
    {
        // Threads that end have no watcher any more.
        let _ = WATCHER.try_with(|watcher| {
            if let Some(watcher) = &mut *watcher.borrow_mut() {
                watcher(step);
            }
        });
    }
    #[cfg(not(feature = "planted-bugs"))]
    let _ = step;
}

/// Calls `watcher` at every step of this thread from now on; `None`: no more. It must not do
/// anything that has steps itself.
#[cfg(feature = "planted-bugs")]
pub fn watch(watcher: Option<Watcher>) {
    WATCHER.with(|place| *place.borrow_mut() = watcher);
}

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static BLOCKS_LEFT: core::cell::Cell<u64> = const { core::cell::Cell::new(u64::MAX) };
}

/// Whether a block that a transaction of this thread asks for is refused, as in a pool that is
/// full: without the feature never. A test says from which block on with `refuse`.
#[inline(always)]
#[must_use]
pub fn is_refused() -> bool {
    #[cfg(feature = "planted-bugs")]
    {
        BLOCKS_LEFT.with(|left| match left.get() {
            u64::MAX => false,
            0 => true,
            some => {
                left.set(some - 1);
                false
            }
        })
    }
    #[cfg(not(feature = "planted-bugs"))]
    {
        false
    }
}

/// Transactions of this thread get so many blocks more, and then none; `None`: as many as there
/// are.
#[cfg(feature = "planted-bugs")]
pub fn refuse(after: Option<u64>) {
    BLOCKS_LEFT.with(|left| left.set(after.unwrap_or(u64::MAX)));
}
