//! What a program can do about the errors of heaps. [`BackingError::Store`] has an error of the
//! store under a heap, without its type: a caller that knows the store asks it first.

use crate::backing::BackingError;
use crate::error::{AllocError, FreeError, OpenError, PlaceError};
use crate::error::{ReclaimError, RecoverError, RootError};
use crate::logged_error::{AllocRefused, LoggedError, SubHeapError};
use crate::wear_error::WearError;
use cenote_layout::error_kind::ErrorKind;

impl BackingError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Limit { .. } => ErrorKind::Full,
            Self::Store { .. } => ErrorKind::Io,
        }
    }
}

impl OpenError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoPuddle | Self::TooSmall { .. } => ErrorKind::Damaged,
            Self::Members { .. } | Self::Behind { .. } | Self::AlreadyOpen => ErrorKind::Busy,
            Self::Lock { source } | Self::Backing { source, .. } => source.kind(),
            Self::Logged(error) => error.kind(),
            Self::Wear(error) => error.kind(),
        }
    }
}

impl AllocError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Align { .. } | Self::ReadOnly => ErrorKind::Misuse,
            Self::Size { .. } | Self::Full { .. } => ErrorKind::Full,
            Self::Waits { .. } => ErrorKind::Busy,
            Self::Puddle(error) => error.kind(),
            Self::Cancelled => ErrorKind::Aborted,
            Self::Logged(error) => error.kind(),
        }
    }
}

impl FreeError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::OtherPool { .. }
            | Self::NotInHeap { .. }
            | Self::NotABlock { .. }
            | Self::InsideBlock { .. }
            | Self::NotAllocated { .. }
            | Self::ReadOnly => ErrorKind::Misuse,
            Self::Damaged { .. } | Self::DamagedHeader { .. } | Self::Metadata(_) => {
                ErrorKind::Damaged
            }
            Self::InTransaction { .. } => ErrorKind::Busy,
            Self::LogFull(_) => ErrorKind::Full,
        }
    }
}

impl PlaceError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Nowhere(_) => ErrorKind::Misuse,
            Self::NoBlock(error) => error.kind(),
        }
    }
}

impl RootError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Index { .. } | Self::Address { .. } | Self::ReadOnly => ErrorKind::Misuse,
            Self::Damaged { .. } => ErrorKind::Damaged,
        }
    }
}

impl ReclaimError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Puddle(error) => error.kind(),
            Self::Unreadable(error) => error.kind(),
            Self::Damaged { .. } | Self::Root { .. } => ErrorKind::Damaged,
            Self::Overrun | Self::Shared => ErrorKind::Busy,
            Self::NotUnderWay => ErrorKind::Aborted,
            Self::ReadOnly => ErrorKind::Misuse,
            Self::Kind(_) => ErrorKind::Unsupported,
        }
    }
}

impl RecoverError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Puddle(error) => error.kind(),
            Self::ReadOnly => ErrorKind::Misuse,
            Self::Shared { .. } | Self::NotQuiet { .. } => ErrorKind::Busy,
            Self::Unreadable(_) | Self::Sweep { .. } | Self::Metadata(_) => ErrorKind::Damaged,
            Self::Kind(_) => ErrorKind::Unsupported,
            Self::Cancelled => ErrorKind::Aborted,
            Self::Trim { source, .. } => source.kind(),
        }
    }
}

impl SubHeapError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Header(error) => error.kind(),
            Self::Shape { .. } | Self::Region { .. } | Self::Damaged(_) => ErrorKind::Damaged,
            Self::ReadOnly => ErrorKind::Unfinished,
            Self::Backing(error) => error.kind(),
        }
    }
}

impl LoggedError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoPuddle | Self::RootSize { .. } | Self::Puddle { .. } | Self::Damaged(_) => {
                ErrorKind::Damaged
            }
            Self::Exists => ErrorKind::Exists,
            Self::Open => ErrorKind::Busy,
            Self::ReadOnly => ErrorKind::Unfinished,
            Self::Shared => ErrorKind::Unsupported,
            Self::Header(error) => error.kind(),
            Self::SubHeap { source, .. } => source.kind(),
            Self::Backing(error) => error.kind(),
        }
    }
}

impl AllocRefused {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Align { .. } | Self::ReadOnly => ErrorKind::Misuse,
            Self::Full { .. } | Self::TableFull | Self::Parts { .. } | Self::LogFull(_) => {
                ErrorKind::Full
            }
            Self::Backing(error) => error.kind(),
            Self::Damaged(_) => ErrorKind::Damaged,
        }
    }
}

impl WearError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoPuddle | Self::Size { .. } => ErrorKind::Damaged,
            Self::Options { .. } | Self::ReadOnly => ErrorKind::Misuse,
            Self::Exists => ErrorKind::Exists,
            Self::Open => ErrorKind::Busy,
            Self::Shared => ErrorKind::Unsupported,
            Self::Header(error) => error.kind(),
            Self::Backing(error) => error.kind(),
        }
    }
}
