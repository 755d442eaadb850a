//! One error type for users: each variant is a family, and its message says what, where and what to
//! do.

use crate::copy_refused::CopyRefused;
use crate::persist::TypeSetError;
use cenote_layout::id::TypeId;
use cenote_layout::values::InvalidValue;
use core::fmt;

/// What a call of this crate returns when it fails.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// Why something failed. Nothing has happened then, unless the variant says otherwise.
#[derive(thiserror::Error)]
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
    /// Leaks were not given back, or not all.
    #[error(transparent)]
    Reclaim(#[from] ReclaimRefused),
    /// Pools were not exported, or an archive not imported.
    #[error(transparent)]
    Archive(#[from] cenote_relocate::archiving::ArchivingError),
    /// A pool was not copied into another, or is an unfinished copy.
    #[error(transparent)]
    Copy(#[from] CopyRefused),
    /// There is no such root.
    #[error(transparent)]
    RootIndex(#[from] cenote_heap::RootError),
    /// A step of a transaction failed; the transaction can go on or be aborted.
    #[error(transparent)]
    Tx(#[from] cenote_tx::TxError),
    /// A pool has no room for a value. The transaction can go on or be aborted.
    #[error("pool \"{pool}\" has no room for a value of type {type_name}: {source}")]
    NoRoom {
        /// Name of the pool.
        pool: String,
        /// Name of the value's type.
        type_name: String,
        /// [`AllocError::Full`](cenote_heap::AllocError::Full), or
        /// [`AllocError::Waits`](cenote_heap::AllocError::Waits).
        source: cenote_heap::AllocError,
    },
    /// The types of the program cannot be kept.
    #[error(transparent)]
    Types(#[from] TypeSetError),
    /// A pointer does not lead to a live value of its type in a pool that this access covers: it
    /// was freed, belongs to another pool or store, or was kept from a transaction that was
    /// aborted.
    #[error(
        "the pools of this access have no live value of type {type_name} at {addr:#x}: was it \
         freed, or is it in another pool?"
    )]
    Dangling {
        /// Where the pointer leads.
        addr: u64,
        /// The type that it expects there.
        type_name: String,
    },
    /// The root is of another type.
    #[error(
        "root {index} of pool \"{pool}\" has type {found_name}, not {expected_name}: read it as \
         that type, or take another root"
    )]
    RootType {
        /// The pool.
        pool: String,
        /// Which root.
        index: u16,
        /// Type id of the root object.
        found: TypeId,
        /// Its name; the number again if the store has no record of it.
        found_name: String,
        /// Type id that was expected.
        expected: TypeId,
        /// Its name.
        expected_name: String,
    },
    /// Waiting would never end: this thread has the pool, runs inside a check or export of it, or
    /// closes a circle of waits.
    #[error(
        "waiting for pool \"{pool}\" would never end, because this thread has {by}: end it first, \
         or use it instead of a new one"
    )]
    WouldDeadlock {
        /// The pool.
        pool: String,
        /// By what.
        by: &'static str,
    },
    /// This thread has a view or a transaction, and waited for the pool, where other processes
    /// share pools: one of them may be waiting for what this thread has, in a circle; or a
    /// transaction takes so long. Nothing was done.
    #[error(
        "pool \"{pool}\" was not free within {after} s, and this thread has others, for which \
         its holder may be waiting: end those and try again; take shared pools in one order"
    )]
    WaitedLong {
        /// The pool.
        pool: String,
        /// For how many seconds.
        after: u64,
    },
    /// Views or transactions of other threads or processes had the pool as long as the call was to
    /// wait: [`Pool::try_write`](crate::Pool::try_write),
    /// [`Pool::write_timeout`](crate::Pool::write_timeout) and the same for reading. Nothing was
    /// done.
    #[error(
        "pool \"{pool}\" was not free within {} s: another thread or process reads or writes it; \
         try again, or wait longer",
        timeout.as_secs_f64()
    )]
    NotFree {
        /// The pool.
        pool: String,
        /// How long the call was to wait.
        timeout: core::time::Duration,
    },
    /// Other threads had the store as long as the call was to wait, and this thread had no log yet
    /// for its transaction: [`Pool::try_write`](crate::Pool::try_write) and
    /// [`Pool::write_timeout`](crate::Pool::write_timeout). Nothing was done.
    #[error(
        "the store was not free within {} s for the first transaction of this thread: a backup, \
         say, has it; try again, or wait longer",
        timeout.as_secs_f64()
    )]
    StoreBusy {
        /// How long the call was to wait.
        timeout: core::time::Duration,
    },
    /// The transaction does not cover the pool.
    #[error(
        "pool \"{pool}\" is not part of this transaction: name it when the transaction is begun"
    )]
    NotInTransaction {
        /// The pool.
        pool: String,
    },
    /// A region pointer cannot lead there, or leads nowhere.
    #[error(
        "{place} is in no puddle of this store that region pointers may lead to: was its pool \
         removed?"
    )]
    NoRegion {
        /// An address, or what the pointer says.
        place: String,
    },
    /// No place for a [`HeapPtr`](crate::HeapPtr): it leads to a puddle that the store does not
    /// have (any more), or behind its end; or the value's puddle has a number of more than 16 bits.
    #[error("{place} is no place in this store that heap pointers lead to: was its pool removed?")]
    NoPlace {
        /// The pointer, or what it says.
        place: String,
    },
    /// A [`RelPtr`](crate::RelPtr) leads to values of its own pool only.
    #[error(
        "the value at {to:#x} is not in the pool of the pointer at {at:#x}: use a RegionPtr for \
         that"
    )]
    OtherPool {
        /// Where the pointer lies.
        at: u64,
        /// Where it was to lead.
        to: u64,
    },
    /// Pools of two stores cannot be in one transaction.
    #[error("a transaction covers pools of one store, and at least one")]
    Pools,
    /// After a loss of power pools of the two modes go back to different moments: no transaction
    /// could be whole. The same holds for pools that are protected at rest, after any crash,
    /// and for others beside them.
    #[error(
        "pools \"{first}\" and \"{other}\" cannot be in one transaction: a transaction covers \
         pools of one mode, and pools that are all protected at rest or all not; use one \
         transaction for each"
    )]
    Modes {
        /// A pool.
        first: String,
        /// One of the other mode.
        other: String,
    },
    /// An index is beyond the end.
    #[error("index {index} is out of bounds: there are {len}")]
    OutOfBounds {
        /// What was asked for.
        index: u64,
        /// How many there are.
        len: u64,
    },
    /// Power failed while the pool was in use, or an operator decided about logs that concern it,
    /// and it was not opened for writing since.
    #[error(
        "pool \"{pool}\" needs recovery by tracing, after a loss of power or a decision about \
         logs: open it for writing once"
    )]
    TraceDue {
        /// The pool.
        pool: String,
    },
    /// A text cannot be cut there.
    #[error("byte {index} of the text is inside a character: cut at the beginning of one")]
    CharBoundary {
        /// Where.
        index: u64,
    },
    /// The pool is damaged, or something that may have been about it is: its values need not be
    /// what transactions made them, so safe code gets to see none.
    #[error(
        "pool \"{pool}\" is not whole, so programs cannot read its values: {}; look at it as \
         blocks (Pool::check, Pool::heap, `cenote check` and `cenote dump`), restore the whole \
         store from one copy (`cenote backup` makes one), or read its values at your own risk with \
         the unsafe Store::open_torn",
        listed(why)
    )]
    NotWhole {
        /// The pool.
        pool: String,
        /// All that speaks against it.
        why: Vec<cenote_store::Damage>,
    },
    /// The pool was looked at when it was opened, because something was damaged or the caller asked
    /// for it, and holds bytes that are no value of their type, or links that lead astray.
    #[error(
        "pool \"{pool}\" has {count} values that are invalid for their types, so programs cannot \
         read it: {}; look at it as blocks (`cenote check` and `cenote dump`), import it from an \
         archive under another name (`cenote import`), restore the whole store from one copy, or \
         read its values at your own risk with the unsafe Store::open_torn",
        first_of(first)
    )]
    InvalidValues {
        /// The pool.
        pool: String,
        /// How many there are.
        count: u64,
        /// The first of them.
        first: Vec<InvalidValue>,
    },
    /// A name that no root can have.
    #[error("{name:?} cannot name a root: {reason}")]
    RootName {
        /// The name, or its beginning.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// The root of this name is of another type.
    #[error(
        "root {name:?} of pool \"{pool}\" has type {found_name}, not {expected_name}: read it as \
         that type, or take another root"
    )]
    NamedRootType {
        /// The pool.
        pool: String,
        /// Which root.
        name: String,
        /// Type id of the root object.
        found: TypeId,
        /// Its name; the number again if the store has no record of it.
        found_name: String,
        /// Type id that was expected.
        expected: TypeId,
        /// Its name.
        expected_name: String,
    },
    /// The transaction is committed and survives any crash of processes; the psync that was to make
    /// it safe from loss of power failed.
    #[error(
        "the transaction is committed, but does not survive a loss of power yet: {source}; \
             psync again"
    )]
    NotPsynced {
        /// Why.
        source: Box<Error>,
    },
    /// A policy of background work ([`Pool::psync_by`](crate::Pool::psync_by),
    /// [`Pool::trim_by`](crate::Pool::trim_by)) that cannot be followed.
    #[error("invalid policy: {0}")]
    Policy(&'static str),
    /// Torn data would be taken for values.
    #[error(
        "PowerLossPolicy::AsIs may show torn values, which safe code must not see: use \
         Store::open_torn"
    )]
    AsIs,
    /// An operation of the transaction failed after it had changed something, and the program went
    /// on: the transaction was aborted.
    #[error(
        "the transaction was aborted, because one of its operations failed half way ({why}): \
         return the error of an operation to `write`, and try again with less in one transaction"
    )]
    HalfDone {
        /// What the operation said.
        why: String,
    },
    /// The caller's own reason to abort a transaction.
    #[error("the transaction was aborted: {0}")]
    Aborted(String),
}

/// As `main` shows it: the message.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Why a run was not begun, or not ended. What it gave back before, if anything, were leaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReclaimRefused {
    /// A program may hold pointers that are older than the run.
    #[error(
        "a transaction has run on this store in this session, so the program may hold pointers to \
         values that no root leads to: reclaim before the first transaction, or stop everything \
         and use Pool::collect"
    )]
    Late,
    /// What another pool leads to is not known.
    #[error("pool \"{other}\" may lead to values of the pools that are to be reclaimed, and {why}")]
    OtherPool {
        /// Which.
        other: String,
        /// Why it cannot be asked.
        why: String,
    },
    /// The heap of a pool cannot be traced.
    #[error("pool \"{pool}\" cannot be reclaimed: {why}")]
    Heap {
        /// Which pool.
        pool: String,
        /// What the heap says.
        why: String,
    },
    /// A pool was closed meanwhile, and with it what it leads to.
    #[error(
        "pool \"{pool}\" was closed while its values, or those of other pools, were traced: keep \
         it open, and reclaim again"
    )]
    Closed {
        /// Which.
        pool: String,
    },
    /// The caller broke it off, or the store was closed.
    #[error("reclaiming was cancelled")]
    Cancelled,
    /// Another run of this store is for something else.
    #[error("another reclaim is running on this store: wait for its end")]
    UnderWay,
    /// The system has no thread for it.
    #[error("no thread can be started: {why}")]
    NoThread {
        /// What the system says.
        why: String,
    },
}

/// A pointer that leads to no live value.
pub(crate) fn dangling(addr: u64, type_name: fn() -> String) -> Error {
    Error::Dangling { addr, type_name: type_name() }
}

/// The first few values, for a message.
fn first_of(values: &[InvalidValue]) -> String {
    values.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The first few of a list, for a message.
fn listed(damage: &[cenote_store::Damage]) -> String {
    const SHOWN: usize = 3;
    let mut text =
        damage.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if damage.len() > SHOWN {
        text += &format!("; and {} more", damage.len() - SHOWN);
    }
    text
}
