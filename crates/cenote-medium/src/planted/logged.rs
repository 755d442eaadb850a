//! Faults in the heap of sub-heaps. Those in one sub-heap are among the others.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoggedBug {
    /// A merge takes a block of another part of the data for a buddy.
    BuddyOfOtherPart,
    /// Recovery of a logged heap lets each lane decide for itself.
    LinkIgnored,
    /// The deciding lane of a transaction ends before its other lanes.
    DecidingLaneEndedFirst,
    /// A sub-heap is named before it is made.
    SubHeapNamedEarly,
    /// A logged heap uses a puddle that a crash left, as if it were new.
    SpareBelievedZero,
    /// A logged heap does not look for puddles that a crash left.
    SparesForgotten,
    /// The free blocks of a part of a logged heap have records after its entry is stored.
    PartEntryApart,
    /// A block is freed in the sub-heap of the freeing thread.
    FreedInOwnSubHeap,
    /// A slab serves requests of another type.
    SlabOfAnyType,
    /// A slab is a free block while a slot of it is used.
    SlabReleasedEarly,
    /// The word of a ticket is not flushed before its entry counts.
    TicketNotFlushed,
    /// A ticket says that its block is allocated before the transaction commits.
    TicketMarkedEarly,
    /// The entry of a ticket stays when its block is freed.
    TicketKeepsEntry,
    /// A ticket serves another block before the log of its transaction is durably finished.
    LazyTicket,
    /// The ticket of a transaction's own block ends when its free fails.
    OwnTicketSettled,
    /// An opener frees no block of a transaction that a crash broke off.
    TicketNotRecovered,
    /// A change whose seal is damaged passes for one that a crash broke off.
    SealDamageUndone,
    /// A change goes on after a page of metadata was lost.
    LostPageChanged,
    /// A commit ends although the marks of its tickets went to a page that was lost.
    LostMarkBelieved,
    /// A change that is told to be made is taken back if its seal is gone.
    MadeChangeUndone,
    /// A change is told to be made before it is durable.
    ChangeToldEarly,
    /// A step of a slab is not flushed.
    StepNotFlushed,
    /// A step of a slab is not flushed if its record lies in a level behind the first part.
    FarStepNotFlushed,
    /// A step changes a cell about which the seal of the last change is a hash.
    StepOverSeal,
    /// The seal that no step can break is not durable before a step.
    ClosingNotFenced,
    /// Recovery does not make the last step durable.
    StepNotSettled,
    /// A flipped bit of a cell of the last change passes for a change that was broken off.
    FlippedBitUndone,
    /// Roots of a logged heap stay writable at their addresses.
    RootsOpen,
    /// A root that is stored through the second mapping is not noted for a psync.
    RootNotNoted,
    /// Of blocks of one type that lie side by side, only the first is rewritten in a moved puddle.
    FirstOfRunRewritten,
    /// The roots of a logged heap are looked for where a traced heap has its own.
    RootsOfTracedHeap,
    /// An import makes zeros of the words that only the root puddle of a traced heap has.
    MembersCleared,
    /// An import of a logged heap does not say in the superblock that the store has one.
    ImportUnsaid,
    /// All puddles of an imported logged heap get the role of blocks.
    ImportedRolesForgotten,
    /// A pool is copied although its heap is damaged.
    CopiedDamaged,
    /// Which blocks a pool has is not known where a crash broke off a change of its heap.
    BrokenOffRefused,
}
