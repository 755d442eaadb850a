//! Planted bugs: deliberate faults that the tests must find (CONTRIBUTING.md, "Planted bugs").
//!
//! Production code asks [`planted`] where a fault would be plausible. Without the feature
//! `planted-bugs` the answer is the constant `false` and costs nothing. With it, a test plants one
//! bug in its own thread, and shows that crash enumeration, or another named test, fails. The same
//! feature lets a test see the moments between the stores of an update ([`reach`]), and refuse
//! blocks as a full pool does ([`is_refused`]).

mod active;
mod copies;
mod groups;
mod guards;
mod logged;
mod owners;
mod pointers;
mod steps;
mod wear;

#[cfg(feature = "planted-bugs")]
pub use active::plant;
pub use active::planted;
pub use copies::CopyBug;
pub use groups::GroupBug;
pub use guards::GuardBug;
pub use logged::LoggedBug;
pub use owners::OwnedBug;
pub use pointers::PointerBug;
pub use steps::{Step, is_refused, reach};
#[cfg(feature = "planted-bugs")]
pub use steps::{Watcher, refuse, watch};
pub use wear::WearBug;

/// Whether this build has the feature `planted-bugs`, as builds of the whole workspace do.
pub const COMPILED: bool = cfg!(feature = "planted-bugs");

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bug {
    /// No bug.
    None,
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
    /// A file is written without the era's stamp.
    NotMarked,
    /// Files without a record are removed, whosever they may be.
    LeftoversNotJudged,
    /// Names in a directory that is locked are looked up by its name.
    MountFollowed,
    /// A directory of primaries that is made in a session is not locked.
    NewDirectoryNotHeld,
    /// Files of unprotected objects have no stamps.
    ObjectsUnstamped,
    /// An object's file is written without the era's stamp.
    ObjectNotMarked,
    /// A close names a seal before the files that have it are synced.
    SealNotSynced,
    /// A close does not name the seal that files got.
    SealNotNamed,
    /// A session says "open" in one copy of the superblock alone.
    OpenSaidOnce,
    /// All closes that end the era of all stamps have one seal.
    SealOfAny,
    /// A close that finds a damaged puddle keeps the era for the whole store.
    EraKept,
    /// A file whose pointers are rewritten keeps the stamp of the last close.
    RewrittenUnmarked,
    /// A damaged puddle counts as written by a session that has a dead one's lease on its pool.
    LeftByLease,
    /// A pool that no close has sealed counts as untouched in a copy, without a look into its
    /// files.
    UntouchedNotRead,
    /// A backup does not tell that a file of kept psyncs is gone.
    KeptGoneNotTold,
    /// A close without a journal of pools ends leases on pools that it could not psync.
    LeaseEndedUnpsynced,
    /// A backup of a store that is open to look copies primaries without what the journal has.
    CopyWithoutJournal,
    /// A puddle that is away though its files were marked may have the seal of the last close.
    NamedStaysForMarked,
    /// A close after one that was not finished gives files the seal that this one gave them.
    SealOfUnfinished,
    /// A file of control data that cannot be read fails the open, although the other copy is whole.
    UnreadableNotRead,
    /// A session that finds one copy of the superblock open leaves the other one clean at first.
    OtherCopyClean,
    /// A close forgets which files were marked in pools that no session leased.
    MarkForgotten,
    /// Files are compared with the seals of a catalog that lost records.
    SealsLostRefused,
    /// Stamps of files are not compared with what the catalog names.
    StampNotCompared,
    /// Pools of an accepted copy that its catalog does not lease are believed.
    CopyNotProven,
    /// Recovery after a loss of power forgets to say that marks must be computed again.
    TraceDueForgotten,
    /// A refill calls a superblock full without looking whether blocks of it were freed meanwhile.
    RefillUnchecked,
    /// A free believes what its thread remembers of a superblock that has changed its kind since.
    RememberedUnchecked,
    /// A superblock is taken with the marks that its former blocks have left.
    MarksNotCleared,
    /// A large block's further superblocks are not described.
    TailsNotDescribed,
    /// A spill makes blocks free and does not say so.
    SpillNotAnnounced,
    /// The next opener takes blocks in caches of a dead process for taken.
    CachedKept,
    /// A large block is marked before its superblocks are described.
    MarkedBeforeDescribed,
    /// Recovery marks what is reached, and leaves the marks of what is not.
    RecoveryKeepsMarks,
    /// Space is given back before the descriptor says so durably.
    HoleBeforeDescriptor,
    /// What is behind a block is given back before its descriptors say so.
    CutBeforeDescriptor,
    /// A superblock without space is used without taking space for it.
    HoleNotEnsured,
    /// A psync syncs header and commit record before its data is written.
    PsyncCommitBeforeData,
    /// A psync is acknowledged without a sync of the journal.
    PsyncNotSynced,
    /// A psync changes the primary before its record is durable.
    PsyncAppliedEarly,
    /// A psync compares with a primary's file alone: what is committed and not there is forgotten.
    LaterNotLaidOver,
    /// An object is detached before what was psynced is in its primary.
    DetachNotSettled,
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
    /// A puddle that has moved is mapped as it is.
    PendingPuddleMapped,
    /// The primary of a puddle that has moved stays as it was.
    PrimaryNotRewritten,
    /// A puddle is rewritten in its file, also if it has words that change once.
    RewrittenInPlace,
    /// A puddle that is rewritten in its file says that it is before its words are durable.
    InPlaceHeaderEarly,
    /// A puddle that was rewritten in its file is used before its header is durable.
    InPlaceNotDurable,
    /// A puddle whose file shares blocks is rewritten in it.
    SharedInPlace,
    /// A rewritten puddle takes the old one's name before it is synced.
    RewrittenNotSynced,
    /// A rewritten puddle is used before its name is durable.
    RenameNotSynced,
    /// The batch of an import comes before its files are synced.
    ImportNotSynced,
    /// An import forgets to say that its puddles are to be rewritten.
    ImportNotPending,
    /// An import believes that an archive is whole as soon as it has what it wants of it.
    ArchiveEndUnread,
    /// An archive has its name before it is whole.
    ArchiveNamedEarly,
    /// An import registers types without asking how the program has them.
    ProgramNotAsked,
    /// A puddle of a protected pool that is sealed anew has its pages in its new file as they are.
    ResealedInPlain,
    /// A root puddle that is sealed anew forgets the key of the other puddles.
    NothingInherited,
    /// An import forgets whose identity its puddles are sealed under.
    SealedAsForgotten,
    /// A protected pool is copied without what is in memory alone.
    CopyNotPsynced,
    /// A pool moves while the journal of psyncs has records of it.
    MovedNotTrimmed,
    /// A window that is taken moves before the store is recovered.
    MovedBeforeRecovery,
    /// A window moves, and its puddles are not pending.
    MovedNotPending,
    /// A store that is open for reading writes into the catalog that its window moved.
    MovedByReader,
    /// Rewriting leaves out the roots.
    RootsNotRewritten,
    /// A psync that failed forgets which pages were dirty.
    PsyncForgetsPages,
    /// Remains of a removed pool stay in the spare puddle that another pool takes.
    SpareNotCleared,
    /// A spare puddle's header says that the rest is zeros before they are durable.
    SpareHeaderEarly,
    /// A puddle that was made ahead for one pool is given to another as it is.
    AheadOfAnother,
    /// A member of a heap works on although another one has closed the gate.
    GateIgnored,
    /// A sweep does not look for superblocks that dead members had in hands.
    SweepForgetsHands,
    /// A sweep frees what dead members had in caches, without a notice to other members.
    SweepNotAnnounced,
    /// A new member adopts puddles that others use.
    JoinAdoptsAgain,
    /// A member's number is given to another before its blocks were swept.
    SeatFreedEarly,
    /// A psync of a pool copies pages and does not protect them again.
    PsyncNotProtected,
    /// One owner of a page gives it a right that another one denies.
    OwnerUndone,
    /// A page that is protected after its psync counts as unchanged, although a thread stored
    /// before.
    ClosedNotCompared,
    /// Stores are let through page by page, however many mappings the process has.
    MappingsUnbounded,
    /// A psync of pools holds their writers until its record is durable.
    HeldThroughSync,
    /// The first psync after a crash of processes believes that only this session's pages differ.
    PsyncTrustsLostNotes,
    /// After a loss of power a pool in shadowed mode goes on with what its shadow happens to hold.
    ShadowNotRestored,
    /// After a loss of power logs are replayed into pools that went back to their last psync.
    VoidLogReplayed,
    /// A store is closed without a psync of its pools in shadowed mode.
    CloseWithoutPsync,
    /// Reclaim does not hear of what a transaction is about to change.
    ReclaimMissesAdd,
    /// Reclaim does not hear of what a block held that is freed.
    ReclaimMissesFree,
    /// Reclaim looks at roots when it begins to trace, and not at the beginning.
    ReclaimMissesRoot,
    /// Reclaim takes blocks of its own session for leaks.
    ReclaimTakesNew,
    /// Leaks are given back one by one, and not condemned before.
    GivenBackOneByOne,
    /// Leaks are condemned although the tracer has not seen what was changed since.
    CondemnedUnheard,
    /// Leaks are condemned, and no state says that they are being.
    SweepNotOpened,
    /// A sweep is committed when its first leak is condemned.
    SweepCommittedEarly,
    /// A sweep is committed before its condemned marks are durable.
    CondemnedNotFlushed,
    /// An opener takes the condemned blocks of a sweep that was not committed for free.
    OpenSweepIgnored,
    /// Pointers in condemned blocks are not rewritten.
    CondemnedNotRewritten,
    /// A psync of a protected object writes the protection's header beside its record.
    AtRestHeaderApart,
    /// A psync journals pages before they are sealed.
    PlainJournalled,
    /// A page is decrypted and not compared with the tree.
    PageNotVerified,
    /// Another key's header is written in place.
    RekeyNotJournalled,
    /// The protection of a puddle is written after the batch that names the puddle.
    PoolHeaderLate,
    /// The header of another key of a pool is written in place.
    PoolRekeyInPlace,
    /// A protected pool counts as written to by its logs after a crash of its process.
    ProtectedNotVoid,
    /// A program that asks for protection gets a pool or an object that has none.
    UnprotectedAccepted,
    /// A forked child looks at recorders of reclaims that it inherited.
    RecorderInherited,
    /// A journal that is older than the superblock says is replayed.
    OlderJournalAccepted,
    /// The superblock names a session of a journal before the journal does.
    JournalNamedEarly,
    /// The name and length in the header of a protection are not compared with the object's.
    BindingIgnored,
    /// A psync of a protected pool leaves the list of its puddles in the root's header as it was.
    MembersNotUpdated,
    /// The list of a pool's puddles in the root puddle's header is not compared.
    MembersIgnored,
    /// A journal of a later session than the superblock knows of is believed.
    SessionIgnored,
    /// A session that has not opened a journal calls it settled when it closes the store.
    SettledByStranger,
    /// A file that has several names is opened for writing.
    LinksAccepted,
    /// Recovery takes an error of the medium for damage of the file that it concerned.
    ErrorIsDamage,
    /// That a superblock was put back beside a journal is forgotten by sessions without that
    /// journal.
    RefusalForgotten,
    /// A backup takes a journal along that its session has not compared with anything.
    BackupUnchecked,
    /// Protected things are believed as they are although the journal's list of them is lost.
    LostListAccepted,
    /// What one journal names of the other is not compared.
    TieIgnored,
    /// A journal names records of the other that are not durable.
    TieEarly,
    /// A journal's header forgets, when a session begins, what the records before it named.
    TieNotInHeader,
    /// A batch of the catalog names no records of the journals.
    BatchNamesNothing,
    /// What journals name of the catalog is not compared with it.
    CatalogTieIgnored,
    /// A journal whose newest header is damaged passes, however far its records go.
    LostHeaderAccepted,
    /// A journal is compared with a superblock as if no copy of that were lost.
    LostCopyForgotten,
    /// What a journal lists of its protected primaries is not compared.
    RootsIgnored,
    /// A look at files without keys does not compare protected ones with a journal's list.
    ListNotLookedAt,
    /// A journal's list of protected primaries is written over the list that its header names.
    RootsInPlace,
    /// Recovery goes on with the list of protected primaries of before the records that it applies.
    RootsNotRecovered,
    /// A change of a key reports an error although it was committed before.
    RekeyUndecided,
    /// A puddle that a protected pool takes is in no psync.
    GrownNotPsynced,
    /// A psync of a protected pool forgets the trees that it committed.
    SealedNotCommitted,
    /// The logs of protected pools are files.
    HiddenLogInFile,
    /// A restored object is named before its data is durable.
    RestoreNotSynced,
    /// An object is restored under its identity while the journal holds records of what had it
    /// before.
    RestoreNotTrimmed,
    /// A snapshot is acknowledged before its file is durable.
    SnapshotNotSynced,
    /// A snapshot is acknowledged before its name is durable.
    SnapshotNameNotSynced,
    /// A restore believes a snapshot's contents without their checksum.
    SnapshotSumIgnored,
    /// A snapshot of an object is taken although the journal lists another state.
    SnapshotUnlisted,
    /// A restored object gets a new name, although it was bound to another.
    ReboundUnchecked,
    /// Commit changes marks before the entries that take them back are durable.
    MarkBeforeEntry,
    /// Commit does not flush the marks that it changes.
    MarkNotFlushed,
    /// A block that a transaction takes is marked as allocated at once.
    MarkedWhenTaken,
    /// Recovery that rolls a free back leaves the mark as the free made it.
    RollBackKeepsFree,
    /// Replay does not flush the marks that it changes.
    ReplayMarkNotFlushed,
    /// After a loss of power each reached block is taken for allocated.
    TraceBelievesReach,
    /// Tracing does not make durable which marks it cleared.
    TraceMarkNotFlushed,
    /// An opener takes a mark that no program writes for free.
    IllegalMarkIsFree,
    /// An opener believes a descriptor that says "free" where marks say otherwise.
    ZeroDescriptorBelieved,
    /// A root is read without its check.
    RootCheckSkipped,
    /// A reader of a lock between processes looks for a writer before it says that it reads, and
    /// not after.
    ReaderLooksFirst,
    /// A writer of a lock between processes does not wait for readers that were there before.
    ReadersNotAwaited,
    /// The thread that takes a lock over from a dead process is not told.
    TakenOverInSilence,
    /// A dead client's lock is taken over before the daemon has replayed its logs.
    DeadNotRecovered,
    /// A lock's owner is taken to live as long as its process, which has called `exec`.
    ImageTakenForProcess,
    /// A client of a pool that others write too leaves its last commit unfenced.
    LazyDespiteSharing,
    /// Which request made a pool is recorded in a batch of its own.
    PoolMadeApart,
    /// A daemon hands out what no batch of the catalog says that it was granted.
    GrantNotRecorded,
    /// The first grant of a client does not say which process it is.
    ClientNotIntroduced,
    /// A client's log space is named before its header is durable.
    LogSpaceNotSynced,
    /// The files of an ended client's logs are removed before the batch that ends it.
    ClientLogsRemovedEarly,
    /// A client's end does not say that what it wrote may be in the page cache only.
    ClientLeaseNotInherited,
    /// Logs are discarded, and their pools not traced.
    DiscardNotTraced,
    /// Logs are discarded, and no record says that their pools may be torn.
    TornForgotten,
    /// An import believes what headers of collections say.
    StructuresBelieved,
    /// A copy of a pool that may be torn counts as whole.
    TornNotCopied,
    /// The recovery of a store that was closed appends batches before the superblock says that it
    /// is open.
    OpenSaidLate,
    /// A puddle that was found rewritten is called done, although that may not be durable.
    FoundNewNotKept,
    /// Logs that are set aside are called applied, and were not replayed.
    ApplyNotReplayed,
    /// A daemon answers a psync before its record is durable.
    TransferNotDurable,
    /// A daemon grants a pool for writing while it copies it for another.
    CopyNotHeld,
    /// A daemon grants a pool whose pointers are not rewritten yet.
    GrantedWhilePending,
    /// The batch of an import does not say which request of which client it was.
    ImportNotRemembered,
    /// A store's directory and superblock are not locked: its file `lock` alone keeps others out.
    StoreNotHeld,
    /// A store's directories of puddles and primaries are not locked: another store may have them.
    DirectoriesNotHeld,
    /// A control write does not look whether the superblock still names its session.
    FenceNotChecked,
    /// A control write does not look whether its file still has its name.
    InodeNotCompared,
    /// An open does not look whether the store lies where its last writer opened it.
    CopyNotRecognised,
    /// A backup copies files while psyncs change them.
    BackupNotQuiet,
    /// A backup copies pools while transactions run.
    BackupNotHeld,
    /// A client says that its transactions stand still, and they run.
    ClientNotStill,
    /// A type that was learnt from a daemon or another process is not compared with the program's.
    LearntTypeBelieved,
    /// Bytes of values are not compared with the rules of their types.
    ValuesBelieved,
    /// Objects are attached although they were abandoned.
    AbandonedAttaches,
    /// An opener asks for the processes of a daemon's clients alone, and not for their bytes.
    ClientsSeenAlone,
    /// A store is closed over a transaction that `exit` left.
    LeftTransactionClosed,
    /// A filter is asked about every type that has the id of its own.
    FilterById,
    /// A type counts as known before the stores that have it otherwise are flagged.
    TypeKnownEarly,
    /// An object is attached where it was when it was looked up, wherever it is now.
    ObjectNotLookedUpAgain,
    /// Committed psyncs of a damaged primary are dropped with the journal's records.
    KeptNowhere,
    /// What the catalog says of a file of kept psyncs is not compared with it.
    KeptNotCompared,
    /// A session inherits leases of the dead on pools whose files are damaged.
    DamagedInherited,
    /// Of a log that waits for a damaged pool the other pools are used.
    WaitingLogIgnored,
    /// A transaction commits although an iterator of it has not shown all that there is.
    LostPageCommitted,
    /// An open does not compare the mounting of the file system with the recorded one.
    InstanceIgnored,
    /// Pools whose journal is given up count as torn when the new one is there, and not before.
    GivenUpLate,
    /// Pools are traced beside one that cannot be looked at as if it led nowhere.
    TracedWithoutLost,
    /// A puddle that is damaged when it moves counts as one that has never moved before.
    GenerationGuessed,
    /// A log that waits is read at its addresses, and not where its window has moved to.
    MovedLogAtHome,
    /// A pool is rewritten although a log about it waits at the addresses of before.
    WaitingRewritten,
    /// A pool that is still to be traced is rewritten as if its marks were right.
    MarksBelievedEarly,
    /// A reader takes what recovery made of a puddle that is rewritten for one that is not.
    RewrittenHeldAsOld,
    /// A shadow that is made anew long after its pool's session counts as durable at once.
    RestoredNotLeased,
    /// Kept psyncs of a primary that has moved count as written, and are not.
    KeptNotInMoved,
    /// Cells of a logged heap change before their undo record is durable.
    UndoRecordNotFenced,
    /// A change of a logged heap does not flush its cells.
    CellsNotFlushed,
    /// A change of a logged heap is sealed before its cells are stored.
    SealedEarly,
    /// All undo records of a logged heap go into one half.
    UndoHalvesNotSwapped,
    /// Recovery of a logged heap believes a seal without comparing cells.
    ChangeSealBelieved,
    /// Recovery of a logged heap leaves a change as it was broken off.
    ChangeNotUndone,
    /// Recovery of a logged heap calls a change undone before that is durable.
    UndoneNotFenced,
    /// Recovery of a logged heap relies on a change that may not be durable.
    SealNotSettled,
    /// Recovery of a logged heap believes an undo record without its checksum.
    UndoCheckIgnored,
    /// A level of a logged heap's table has no space taken for it.
    LevelNotEnsured,
    /// A level of a logged heap's table is given back before its entry says that it is absent.
    LevelPunchedEarly,
    /// A split leaves a part of the block in no record.
    SplitForgetsRest,
    /// A merge does not look whether the buddy is free.
    BuddyNotLookedAt,
    /// A freed block is the next that is given out.
    FreedToHead,
    /// A block of a logged heap is freed that is free.
    DoubleFreeAccepted,
    /// The entry of a transaction's block is made after the block is allocated.
    MicroEntryApart,
    /// The word of a lane is not flushed.
    LaneNotFlushed,
    /// A lane goes on to its next transaction before blocks of the last one are freed.
    LaneEndedEarly,
    /// Blocks are freed before the lane says that their transaction is committed.
    FreedBeforeCommit,
    /// Recovery of a logged heap does not look at lanes.
    LaneNotRecovered,
    /// A page of metadata that is lost is replaced, and the store goes on as before.
    LostPageNotPoisoned,
    /// An abort whose stores may have gone nowhere ends its transaction in the log.
    AbortForgotten,
    /// Zeros take the place of a page of metadata that is lost: free blocks, and no roots.
    LostPageOfZeros,
    /// Threads wait for each other's pools in a circle.
    CircleNotSeen,
    /// A psync that waits for another one of its pool is in no list of threads that wait.
    GateNotNoted,
    /// A move of the window forgets the stamps of the objects that move.
    MovedObjectUnsealed,
    /// A thread that has pools waits for another process as long as it takes.
    PatienceWithoutEnd,
    /// A thread with a view waits for a reclaim that waits for that view.
    ReclaimAwaitedWithView,
    /// A report of a check that asks the heap something waits for the end of the check.
    HeldNotSeen,
    /// A filter that a reclaim calls waits for the reclaim.
    SliceWaits,
    /// A pool is closed by code that its store calls with the list of open pools in hand.
    ClosedWithin,
    /// A transaction commits although an operation of it failed half way.
    HalfDoneCommitted,
    /// What an operation that failed had allocated stays allocated.
    FailedKeepsBlocks,
    /// A transaction goes on although a page of its log is lost.
    LostLogWritten,
    /// A page of a log that is lost is replaced, and the store goes on as before.
    LostLogNotPoisoned,
    /// An abort copies what stands in the place of a lost page of its log into the data.
    LostLogRestored,
    /// A replay believes what takes the place of a lost page, and ends.
    LostReplayBelieved,
    /// Values are shown after a page of a log was lost.
    LostLogRead,
    /// A transaction that stays in its log gives the lock between the processes back.
    LostTurnGivenBack,
    /// A transaction that has waited for a pool does not ask whether the store goes on.
    LostNotAskedAgain,
    /// A thread waits for a lock between processes although the page of that is lost.
    LostLockAwaited,
    /// A puddle counts as rewritten although a page of it was lost meanwhile.
    LostImageBelieved,
    /// One of the guards' of metadata, roots and logs.
    Guard(GuardBug),
    /// One of the logged heap's.
    Logged(LoggedBug),
    /// One of what reads pointers.
    Pointer(PointerBug),
    /// One of copies of pools.
    Copy(CopyBug),
    /// One of the wear heap's.
    Wear(WearBug),
    /// One of update groups' and of the tree on them.
    Group(GroupBug),
    /// One of owning edges.
    Owned(OwnedBug),
}
