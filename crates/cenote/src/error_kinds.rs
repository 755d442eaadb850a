//! What a program can do about an error of this crate.

use crate::copy_refused::CopyRefused;
use crate::error::{Error, ReclaimRefused};
use cenote_layout::error_kind::ErrorKind;
use cenote_medium::MediumError;
use cenote_store::StoreError;
use std::error::Error as StdError;

impl Error {
    /// What a program can do about it, in one of a few kinds.
    ///
    /// ```
    /// use cenote::{ErrorKind, OpenOptions, Store};
    ///
    /// # fn main() -> cenote::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a directory");
    /// let store = Store::open(dir.path().join("store"))?;
    /// let error = store.remove_pool("ledger").expect_err("there is none");
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// assert_eq!(error.kind().code(), "not-found");
    /// # store.close()
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Medium(error) => error.kind(),
            Self::Format(error) => error.kind(),
            Self::Open(error) => error.kind(),
            Self::Store(error) => error.kind(),
            Self::HeapOpen(error) => beneath(error, error.kind()),
            Self::HeapRecover(error) => beneath(error, error.kind()),
            Self::RootIndex(error) => error.kind(),
            Self::Tx(error) => beneath(error, error.kind()),
            Self::NoRoom { source, .. } => beneath(source, source.kind()),
            Self::Reclaim(error) => error.kind(),
            Self::Archive(error) => error.kind(),
            Self::Copy(error) => error.kind(),
            Self::NotWhole { .. } | Self::InvalidValues { .. } => ErrorKind::Damaged,
            Self::WaitedLong { .. } | Self::NotFree { .. } | Self::StoreBusy { .. } => {
                ErrorKind::Busy
            }
            Self::TraceDue { .. } | Self::NotPsynced { .. } => ErrorKind::Unfinished,
            Self::HalfDone { .. } | Self::Aborted(_) => ErrorKind::Aborted,
            Self::Types(_)
            | Self::Dangling { .. }
            | Self::RootType { .. }
            | Self::NamedRootType { .. }
            | Self::WouldDeadlock { .. }
            | Self::NotInTransaction { .. }
            | Self::NoRegion { .. }
            | Self::NoPlace { .. }
            | Self::OtherPool { .. }
            | Self::Pools
            | Self::Modes { .. }
            | Self::OutOfBounds { .. }
            | Self::CharBoundary { .. }
            | Self::RootName { .. }
            | Self::Policy(_)
            | Self::AsIs => ErrorKind::Misuse,
        }
    }
}

/// The kind of an error of a heap: what the store or the medium says beneath it, if it is one of
/// theirs. A heap that waits says so, not why the pool does not grow.
fn beneath(error: &(dyn StdError + 'static), of_heap: ErrorKind) -> ErrorKind {
    let mut next = Some(error).filter(|_| of_heap != ErrorKind::Busy);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<StoreError>() {
            return error.kind();
        }
        if let Some(error) = error.downcast_ref::<MediumError>() {
            return error.kind();
        }
        next = error.source();
    }
    of_heap
}

impl ReclaimRefused {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Late | Self::Closed { .. } => ErrorKind::Misuse,
            Self::OtherPool { .. } | Self::Heap { .. } => ErrorKind::Unsupported,
            Self::Cancelled => ErrorKind::Aborted,
            Self::UnderWay => ErrorKind::Busy,
            Self::NoThread { .. } => ErrorKind::Full,
        }
    }
}

impl CopyRefused {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Unfinished { .. } | Self::Changed { .. } => ErrorKind::Unfinished,
            Self::OtherSource { .. } | Self::Kind { .. } => ErrorKind::Misuse,
            Self::Open { .. } => ErrorKind::Busy,
            Self::NoRecord { .. } | Self::Unclear { .. } | Self::OutOfReach { .. } => {
                ErrorKind::Unsupported
            }
            Self::Dangling { .. } | Self::Root { .. } => ErrorKind::Damaged,
            Self::TooMany { .. } => ErrorKind::Full,
            Self::Stopped { .. } => ErrorKind::Aborted,
        }
    }
}
