//! One error type for users: each variant is a family, and its message says what, where and what to do.

use cenote_layout::id::TypeId;

/// What a call of this crate returns when it fails.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why something failed. Nothing has happened then, unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The directory could not be used at all.
    #[error(transparent)]
    Medium(#[from] cenote_medium::MediumError),
    /// A directory was not formatted.
    #[error(transparent)]
    Format(#[from] cenote_store::FormatError),
    /// A store was not opened.
    #[error(transparent)]
    Open(#[from] cenote_store::OpenError),
    /// An operation on an open store failed.
    #[error(transparent)]
    Store(#[from] cenote_store::StoreError),
    /// A pool's heap could not be opened.
    #[error(transparent)]
    HeapOpen(#[from] cenote_heap::OpenError),
    /// A pool's heap could not be recovered or looked at.
    #[error(transparent)]
    HeapRecover(#[from] cenote_heap::RecoverError),
    /// There is no such root.
    #[error(transparent)]
    RootIndex(#[from] cenote_heap::RootError),
    /// A step of a transaction failed; the transaction can go on or be aborted.
    #[error(transparent)]
    Tx(#[from] cenote_tx::TxError),
    /// The types of the program cannot be kept.
    #[error(transparent)]
    Types(#[from] crate::persist::TypeSetError),
    /// A pointer does not lead to a live value of its type in a pool that this access covers: it was freed, belongs to another pool or store, or was
    /// kept from a transaction that was aborted.
    #[error(
        "no live value of type {type_name} at {addr:#x} in the pools of this access: was it freed, or is it of another pool?"
    )]
    Dangling {
        /// Where the pointer leads.
        addr: u64,
        /// The type that it expects there.
        type_name: String,
    },
    /// The root is of another type.
    #[error("root {index} of pool \"{pool}\" has type {found}, not {expected} ({expected_name})")]
    RootType {
        /// The pool.
        pool: String,
        /// Which root.
        index: u16,
        /// Type id of the root object.
        found: TypeId,
        /// Type id that was expected.
        expected: TypeId,
        /// Its name.
        expected_name: String,
    },
    /// This thread holds a view or a transaction of the pool: waiting for it would never end.
    #[error(
        "pool \"{pool}\" is already in use by this thread ({by}): end that before, or use it instead of a new one"
    )]
    WouldDeadlock {
        /// The pool.
        pool: String,
        /// By what.
        by: &'static str,
    },
    /// The transaction does not cover the pool.
    #[error("pool \"{pool}\" is not part of this transaction: name it when the transaction is begun")]
    NotInTransaction {
        /// The pool.
        pool: String,
    },
    /// Pools of two stores cannot be in one transaction.
    #[error("a transaction covers pools of one store, and at least one")]
    Pools,
    /// An index is beyond the end.
    #[error("index {index} is out of bounds: there are {len}")]
    OutOfBounds {
        /// What was asked for.
        index: u64,
        /// How many there are.
        len: u64,
    },
    /// Power failed while the pool was in use, and nobody has opened it for writing since.
    #[error("pool \"{pool}\" must be recovered by tracing after a loss of power: open it for writing once")]
    TraceDue {
        /// The pool.
        pool: String,
    },
    /// A text cannot be cut there.
    #[error("byte {index} of the text is inside a character")]
    CharBoundary {
        /// Where.
        index: u64,
    },
    /// Torn data would be taken for values.
    #[error("PowerLossPolicy::AsIs may show torn values, which safe code must not see: use Store::open_torn")]
    AsIs,
    /// The caller's own reason to abort a transaction.
    #[error("the transaction was aborted: {0}")]
    Aborted(String),
}
