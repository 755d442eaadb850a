//! Faults of owning edges, and of the list of blocks that wait to be freed.

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnedBug {
    /// A step stores words that it has not logged.
    StepNotLogged,
    /// A block that goes behind the head forgets the rest of the list.
    RestForgotten,
    /// The head's block is freed although an edge before the cursor owns a block.
    CursorBelieved,
    /// Transactions do no steps.
    NotInProportion,
    /// What an edge owned is not freed when another block takes its place.
    ReplacedKept,
    /// What is taken out stays where it was, too.
    TakenStays,
    /// A block is freed, and what it owns is not.
    ChildrenKept,
    /// An entry of a collection is removed, and what its value owns is not freed.
    EntryKept,
    /// The edges of an entry of a collection are emptied without a log.
    EntryNotLogged,
}
