//! Why a copy of a pool ([`crate::Store::copy_pool`]) was not made, or is not finished.

use cenote_layout::catalog::HeapKind;
use cenote_layout::id::TypeId;

/// A kind of heap in words.
fn named(kind: HeapKind) -> String {
    match kind {
        HeapKind::Wear { wait_ms } => format!("wear heap that waits for {wait_ms} ms"),
        HeapKind::Traced | HeapKind::Logged => format!("{} heap", kind.name()),
    }
}

/// Why a pool was not copied into another. The source is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyRefused {
    /// The pool is an unfinished copy, and no program uses it before it is finished.
    #[error(
        "pool \"{pool}\" is an unfinished copy of pool \"{from}\": finish it with Store::copy_pool \
         from there, or remove it"
    )]
    Unfinished {
        /// The copy.
        pool: String,
        /// Its source.
        from: String,
    },
    /// The copy that is to be finished is one of another pool.
    #[error("pool \"{pool}\" is an unfinished copy of another pool, which was named \"{from}\"")]
    OtherSource {
        /// The copy.
        pool: String,
        /// How its source was named when the copy began.
        from: String,
    },
    /// The pool that is to be filled has another kind of heap than was asked for.
    #[error(
        "pool \"{pool}\" has a {}, and a {} was asked for: ask for the first, or copy into another \
         pool",
        named(*.found),
        named(*.asked)
    )]
    Kind {
        /// The copy.
        pool: String,
        /// What it has.
        found: HeapKind,
        /// What the caller wants.
        asked: HeapKind,
    },
    /// The pool that is to be filled is open in this process.
    #[error("pool \"{pool}\" is open in this process: close it first")]
    Open {
        /// Which.
        pool: String,
    },
    /// The source is not as it was when the copy began: what is there would be a mixture.
    #[error(
        "pool \"{from}\" has changed since the copy \"{pool}\" was begun ({what} at {at:#x}): \
         remove the copy, and copy again"
    )]
    Changed {
        /// The copy.
        pool: String,
        /// Its source.
        from: String,
        /// What differs.
        what: &'static str,
        /// Address of the block in the source, or number of the root.
        at: u64,
    },
    /// No record says where the pointers of a block are, so its bytes may hold some.
    #[error(
        "the block at {block:#x} of pool \"{from}\" has type {type_id}, whose pointers no record \
         describes: it cannot be copied"
    )]
    NoRecord {
        /// The source.
        from: String,
        /// The block.
        block: u64,
        /// Its type; 0 is none.
        type_id: TypeId,
    },
    /// A word of a block may be a pointer, or hold several: only the program's code can tell.
    #[error(
        "the block at {block:#x} of pool \"{from}\", a {type_name}, has words that only the \
         program's own code can follow (the first at {at:#x}): it cannot be copied"
    )]
    Unclear {
        /// The source.
        from: String,
        /// The block.
        block: u64,
        /// The name of its type.
        type_name: String,
        /// Where the word is.
        at: u64,
    },
    /// A pointer leads into the source, to no block.
    #[error(
        "the block at {block:#x} of pool \"{from}\", a {type_name}, has a pointer at {at:#x} to \
         {to:#x}, where no block is: set it to another value first"
    )]
    Dangling {
        /// The source.
        from: String,
        /// The block.
        block: u64,
        /// The name of its type.
        type_name: String,
        /// Where the pointer is.
        at: u64,
        /// Where it leads.
        to: u64,
    },
    /// A root leads into the source, to no block.
    #[error("root {index} of pool \"{from}\" leads to {to:#x}, where no block is: set it first")]
    Root {
        /// The source.
        from: String,
        /// Which root.
        index: u16,
        /// Where it leads.
        to: u64,
    },
    /// A pointer of the copy cannot say where it should lead.
    #[error(
        "the block at {block:#x} of pool \"{from}\", a {type_name}, has a pointer at {at:#x} that \
         cannot lead as far as its copy would have to"
    )]
    OutOfReach {
        /// The source.
        from: String,
        /// The block.
        block: u64,
        /// The name of its type.
        type_name: String,
        /// Where the pointer is.
        at: u64,
    },
    /// The pool has more blocks than one copy keeps track of.
    #[error("pool \"{from}\" has {blocks} blocks, and a copy can have at most {most}")]
    TooMany {
        /// The source.
        from: String,
        /// How many it has.
        blocks: u64,
        /// How many are possible.
        most: u64,
    },
    /// The caller stopped it. What was copied stays for the next call.
    #[error(
        "the copy \"{pool}\" of pool \"{from}\" was stopped: the same call goes on, or remove the \
         pool"
    )]
    Stopped {
        /// The copy.
        pool: String,
        /// Its source.
        from: String,
    },
}
