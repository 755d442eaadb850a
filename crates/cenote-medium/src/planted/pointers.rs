//! Faults in what reads pointers.

/// Each fault, by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PointerBug {
    /// An export takes the tag of a pointer for a part of its address.
    TagsKeptInScan,
    /// An export does not look where region pointers lead.
    RegionsLeftOut,
    /// A heap pointer keeps the number of its pool where an import has given the pool another.
    HeapIdKept,
    /// A heap pointer is converted to an address without a look at what is there.
    HeapPtrUnchecked,
    /// A trace does not follow heap pointers.
    HeapPtrNotFollowed,
    /// A puddle is rewritten in its file although something came to where something else was.
    OverlapRepeated,
}
