//! Faults in what a store knows of types.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TypeBug {
    /// A type that a pool uses is taken for unused, where a changed one of its name comes.
    UsedReplaced,
    /// A type is registered although the store has another version of it.
    OtherVersionsIgnored,
    /// Where a type has a version, the id in a pointer map is compared with that in a descriptor.
    LogicalIdsNotResolved,
    /// A type that was learnt from a daemon or another process is not compared with the program's.
    LearntTypeBelieved,
    /// A type counts as known before the stores that have it otherwise are flagged.
    TypeKnownEarly,
}
