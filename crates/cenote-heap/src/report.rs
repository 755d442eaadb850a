//! Reports of recovery, check and statistics. Plain data; `Display` of the parts is for people.

use crate::block::BlockInfo;
use crate::wear_error::WearDamage;
use cenote_layout::id::TypeId;
use cenote_layout::values::InvalidValue;
use core::fmt;
use core::time::Duration;

/// Findings and blocks that a report lists at most; all are counted.
pub const LISTED_MAX: usize = 1000;

/// A superblock that is not used, because its descriptor or marks cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Number of the heap puddle in its pool.
    pub puddle: u32,
    /// Number of the superblock in the puddle.
    pub superblock: u32,
    /// Address of the superblock.
    pub addr: u64,
    /// What is wrong with it.
    pub reason: &'static str,
    /// Pointers that lead into it, if that was looked at: what they point to is lost.
    pub pointers: u64,
    /// Whether the superblock is lost. If not, a whole descriptor says what it is, or nothing was
    /// in it.
    pub lost: bool,
    /// Of a superblock whose descriptor is whole: what its marks say. Its blocks can be read, and
    /// none is handed out or freed.
    pub quarantine: Option<Quarantine>,
}

/// Marks of a superblock that no program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// Type of its blocks.
    pub type_id: TypeId,
    /// Bytes of each.
    pub block_size: u64,
    /// Allocated blocks, whose marks are right.
    pub blocks: u32,
    /// Blocks whose marks are wrong.
    pub marks: u32,
    /// Address of the first of these.
    pub first: u64,
    /// Its mark.
    pub found: u8,
}

impl Damage {
    /// Whether the superblock is out of use.
    #[must_use]
    pub fn is_out_of_use(&self) -> bool {
        self.lost || self.quarantine.is_some()
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { puddle, superblock, addr, reason, pointers, .. } = self;
        write!(f, "superblock {superblock} of heap puddle {puddle} (address {addr:#x}): ")?;
        if let Some(Quarantine { type_id, block_size, blocks, marks, first, found }) =
            self.quarantine
        {
            return write!(
                f,
                "{reason}: {marks} of blocks of {block_size} bytes of type {type_id}, the first \
                 {found:#04x} at {first:#x}; {blocks} blocks can be read, none is handed out or \
                 freed there until the pool is recovered by tracing"
            );
        }
        write!(f, "descriptor damaged: {reason}; ")?;
        if self.lost {
            write!(f, "its 64 KiB are not used, {pointers} pointers lead into it")
        } else {
            f.write_str("nothing is lost, and nothing has to be done")
        }
    }
}

/// Metadata of a logged heap that are not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataDamage {
    /// Number of the sub-heap.
    pub sub_heap: u32,
    /// Offset in its metadata, in bytes.
    pub offset: u64,
    /// What is wrong there.
    pub what: &'static str,
}

impl fmt::Display for MetadataDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sub_heap, offset, what } = self;
        write!(f, "metadata of sub-heap {sub_heap}, offset {offset:#x}: {what}")
    }
}

/// What is wrong with a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// It leads to no block: free space, metadata, the unused end of a superblock.
    Dangling,
    /// It leads into a superblock whose descriptor is damaged.
    Lost,
    /// It leads inside a block, although its type says that it leads to the start. The block is
    /// kept.
    Inexact,
    /// The block that it leads to has another type. The block is kept.
    OtherType,
    /// It leads to no puddle of this store.
    Outside,
    /// It is no pointer of the kind that its type says: an off-holder or a region pointer without
    /// the bits that make it one.
    Malformed,
}

/// A pointer that is not as its type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub fault: Fault,
    /// Where the pointer stands; 0 for a root that the caller gave.
    pub at: u64,
    /// Where it leads; the word itself, if that cannot be told.
    pub to: u64,
    /// Type that it should lead to.
    pub target: TypeId,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            Fault::Dangling => "leads to no block",
            Fault::Lost => "leads into a damaged superblock",
            Fault::Inexact => "leads inside a block, not to its start",
            Fault::OtherType => "leads to a block of another type",
            Fault::Outside => "leads out of the store",
            Fault::Malformed => "is no pointer of the kind that its type says",
        };
        write!(f, "pointer at {:#x} to {:#x} (type {}) {what}", self.at, self.to, self.target)
    }
}

/// What tracing saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceCounts {
    /// Roots that are not null, those that the caller gave included.
    pub roots: u64,
    /// Reachable blocks.
    pub blocks: u64,
    /// Usable bytes of reachable blocks.
    pub bytes: u64,
    /// Blocks that were scanned word by word, for want of a type.
    pub conservative_blocks: u64,
    /// Pointers into other pools: not followed.
    pub foreign_pointers: u64,
    /// Pointers that are not as their types say; words of untyped blocks are not counted.
    pub faults: u64,
    /// The first of them, up to [`LISTED_MAX`].
    pub findings: Vec<Finding>,
    /// Types of reachable blocks that the store does not know; they were scanned conservatively.
    pub unknown_types: Vec<TypeId>,
}

/// What a look at the values of a heap found: [`crate::PoolHeap::check_values`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueReport {
    /// Blocks that were looked at: those whose types have rules.
    pub blocks: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Blocks among them that were not looked at to their end, because a page cannot be had.
    pub unreadable: u64,
    /// Bytes that break a rule of their type: bools, characters, discriminants and the like.
    pub invalid: u64,
    /// The first of them, up to [`LISTED_MAX`].
    pub findings: Vec<InvalidValue>,
    /// Blocks that are owned no more and wait to be freed ([`cenote_layout::frees`]).
    pub waiting: u64,
}

/// What [`crate::Trace::recover`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// What tracing saw.
    pub trace: TraceCounts,
    /// Blocks that were marked and are not reachable: free now.
    pub freed_blocks: u64,
    /// Blocks that were not marked and are reachable: allocated now. None where marks are
    /// believed.
    pub revived_blocks: u64,
    /// Blocks that are not marked and that something leads to, where marks are believed: free, and
    /// what leads there dangles.
    pub dangling_blocks: u64,
    /// Superblocks whose taking the crash had interrupted: free now, nothing lost.
    pub interrupted: u64,
    /// Damaged descriptors that something pointed into, or that belong to a reachable large block.
    pub damage: Vec<Damage>,
    /// Illegal marks that were made what tracing found.
    pub repaired_marks: u64,
    /// Numbered roots that are damaged. Their targets are not known: then no block that was
    /// allocated is made free.
    pub damaged_roots: Vec<u16>,
    /// Blocks that are allocated and not reached, and stay allocated: what is damaged, here or in
    /// another pool, may lead to them.
    pub kept_blocks: u64,
    /// How long it took.
    pub took: Duration,
}

/// What [`crate::Inspect::check`] saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapReport {
    /// Counts.
    pub stats: HeapStats,
    /// Damaged descriptors, and superblocks that are out of use because of their marks.
    pub damage: Vec<Damage>,
    /// Damaged metadata of a logged heap.
    pub metadata: Vec<MetadataDamage>,
    /// Damaged headers of a wear heap, and what is out of use because of them.
    pub headers: Vec<WearDamage>,
    /// Numbered roots that are damaged: bits of them have flipped, and what they led to is not
    /// known.
    pub damaged_roots: Vec<u16>,
    /// What tracing saw, if types were given.
    pub trace: Option<TraceCounts>,
    /// Blocks that are allocated and not reachable (not yet attached, or leaked).
    pub leaked_blocks: u64,
    /// Their usable bytes.
    pub leaked_bytes: u64,
    /// The first of them, up to [`LISTED_MAX`].
    pub leaks: Vec<BlockInfo>,
    /// Blocks that are reachable and not allocated: they will be given out again while something
    /// points to them.
    pub unallocated_blocks: u64,
    /// The first of them, up to [`LISTED_MAX`].
    pub unallocated: Vec<BlockInfo>,
    /// Findings of tracing from the leaks, if there are any: a program may have kept the address of
    /// one.
    pub leak_trace: Option<TraceCounts>,
    /// Blocks that only leaks lead to and that are not allocated.
    pub dangling_blocks: u64,
    /// The first of them, up to [`LISTED_MAX`].
    pub dangling: Vec<BlockInfo>,
    /// Superblocks whose marks do not fit what they are used for in this session: a stray write
    /// wrote over the heap's metadata, or a member of the pool died and no member has swept. May
    /// name a superblock wrongly that others use meanwhile.
    pub miscounted: Vec<u64>,
    /// Values, if they were looked at: `cenote::Pool::check` does so, [`crate::Inspect::check`]
    /// not.
    pub values: Option<ValueReport>,
}

impl HeapReport {
    /// Whether nothing is wrong. Leaks are no damage, but they are not right either.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damage.iter().all(|d| !d.is_out_of_use())
            && self.metadata.is_empty()
            && self.headers.is_empty()
            && self.damaged_roots.is_empty()
            && self.leaked_blocks == 0
            && self.unallocated_blocks == 0
            && self.miscounted.is_empty()
            && self.trace.as_ref().is_none_or(|t| t.faults == 0)
            && self.values.as_ref().is_none_or(|v| v.invalid == 0)
    }
}

/// Counts of a heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeapStats {
    /// Heap puddles.
    pub puddles: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Superblocks, those with metadata included.
    pub superblocks: u64,
    /// Superblocks without an allocated block, those among them that blocks in caches are of.
    pub free_superblocks: u64,
    /// Those among them whose space was given back to the file system (or may have been).
    pub hole_superblocks: u64,
    /// Superblocks with blocks of one size and type.
    pub small_superblocks: u64,
    /// Superblocks of large blocks.
    pub large_superblocks: u64,
    /// Superblocks that hold metadata.
    pub metadata_superblocks: u64,
    /// Superblocks that are not used because their descriptors are damaged.
    pub damaged_superblocks: u64,
    /// Allocated blocks, large ones included.
    pub blocks: u64,
    /// Usable bytes of them.
    pub block_bytes: u64,
    /// Allocated large blocks.
    pub large_blocks: u64,
    /// Free blocks that caches of threads have ready.
    pub cached_blocks: u64,
    /// Usable bytes of them.
    pub cached_bytes: u64,
    /// By type and class, in that order.
    pub bins: Vec<BinStats>,
}

/// Counts of the blocks of one type and class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BinStats {
    /// The type.
    pub type_id: TypeId,
    /// The class; 0 stands for large blocks.
    pub class: u32,
    /// Bytes of a block; 0 for large ones.
    pub block_size: u64,
    /// Superblocks that hold them.
    pub superblocks: u64,
    /// Allocated blocks.
    pub blocks: u64,
    /// Blocks that there is room for, allocated ones included.
    pub capacity: u64,
}

/// How far a trim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimProgress {
    /// Bytes of the heap that were looked at.
    pub looked_at_bytes: u64,
    /// Bytes of the heap.
    pub bytes: u64,
    /// Bytes given back so far.
    pub released_bytes: u64,
}

/// What a trim did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimReport {
    /// Bytes that were given back to the file system.
    pub released_bytes: u64,
    /// Bytes of free superblocks that had been given back before.
    pub hole_bytes: u64,
    /// The file system cannot take space back; nothing was given.
    pub unsupported: bool,
}

/// What [`crate::Reclaim::mark_slice`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marked {
    /// Something is left to be looked at.
    pub pending: bool,
    /// How often changes were recorded so far. If that is the same before and after all heaps of a
    /// store were found with nothing pending, there was a moment at which none had.
    pub changes: u64,
    /// Blocks that were reached so far.
    pub blocks: u64,
    /// Addresses in other pools that this slice was led to.
    pub foreign: Vec<u64>,
}
