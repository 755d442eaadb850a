//! What a program can do about the errors of the store.

use super::{FormatError, OpenError, StoreError};
use cenote_layout::error_kind::ErrorKind;

impl FormatError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists { .. } | Self::NotEmpty { .. } => ErrorKind::Exists,
            Self::SuperblockMissing { .. } => ErrorKind::Damaged,
            Self::Options(_) => ErrorKind::Misuse,
            Self::Locked { .. } => ErrorKind::Busy,
            Self::NoWindow { .. } => ErrorKind::Full,
            Self::Medium { source, .. } => source.kind(),
        }
    }
}

impl OpenError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAStore { .. } => ErrorKind::NotFound,
            Self::FormatInterrupted { .. } => ErrorKind::Unfinished,
            Self::Superblock { source, .. } => source.kind(),
            Self::SuperblockMissing { .. }
            | Self::SuperblockLost { .. }
            | Self::Copied { .. }
            | Self::Catalog { .. }
            | Self::CatalogRolledBack { .. }
            | Self::SuperblockRolledBack { .. }
            | Self::CatalogLost { .. } => ErrorKind::Damaged,
            Self::Locked { .. }
            | Self::CopyOfOpen { .. }
            | Self::Clients { .. }
            | Self::DaemonSilent { .. }
            | Self::WindowTaken { .. }
            | Self::WindowStays { .. }
            | Self::WindowOfDaemon { .. } => ErrorKind::Busy,
            Self::LockMissing { .. } => ErrorKind::Unfinished,
            Self::Daemon { kind, .. } => *kind,
            Self::ReadOnlyMedium { .. } => ErrorKind::Denied,
            Self::Durability { .. } => ErrorKind::Unsupported,
            Self::Options(_) => ErrorKind::Misuse,
            Self::Medium { source, .. } => source.kind(),
        }
    }
}

impl StoreError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { kind, .. } | Self::Backup { kind, .. } => *kind,
            Self::Medium(error) => error.kind(),
            Self::AtRest { source, .. } => source.kind(),
            Self::Sealed { source, .. } => source.kind(),
            Self::PoolUnknown { .. } | Self::ObjectUnknown { .. } => ErrorKind::NotFound,
            Self::PoolExists { .. } | Self::ObjectExists { .. } => ErrorKind::Exists,
            Self::Permission { .. } | Self::ObjectDenied { .. } | Self::NotProtected { .. } => {
                ErrorKind::Denied
            }
            Self::DaemonSilent { .. }
            | Self::PoolBusy { .. }
            | Self::NotStill { .. }
            | Self::Hosting { .. }
            | Self::PoolInUse { .. }
            | Self::PoolHeld { .. }
            | Self::ObjectBusy { .. }
            | Self::LogsInUse { .. }
            | Self::InUse { .. } => ErrorKind::Busy,
            Self::PoolFull { .. }
            | Self::WindowFull { .. }
            | Self::PsyncTooLarge { .. }
            | Self::TooManyLogs { .. } => ErrorKind::Full,
            Self::NotRewritten { .. }
            | Self::ObjectDamaged { .. }
            | Self::PoolDamaged { .. }
            | Self::PoolLogDamaged { .. }
            | Self::PoolNotCovered { .. }
            | Self::PoolTorn { .. }
            | Self::HeapDamaged { .. }
            | Self::Unreadable { .. }
            | Self::PoolRolledBack { .. }
            | Self::JournalDamaged { .. }
            | Self::JournalRolledBack { .. }
            | Self::PuddleDamaged(_) => ErrorKind::Damaged,
            Self::Fenced { .. }
            | Self::NoClient { .. }
            | Self::Poisoned { .. }
            | Self::MetadataLost(_)
            | Self::LogLost(_)
            | Self::Forked => ErrorKind::Ended,
            Self::RelocationPending { .. }
            | Self::BackupUnsynced { .. }
            | Self::NotCopied { .. } => ErrorKind::Unfinished,
            Self::NotHosted { .. }
            | Self::NotShadowed { .. }
            | Self::Protected { .. }
            | Self::WriteProtected { .. } => ErrorKind::Unsupported,
            Self::Import { .. }
            | Self::ReadOnly { .. }
            | Self::PoolReadOnly { .. }
            | Self::PoolName { .. }
            | Self::ObjectName { .. }
            | Self::ObjectLen { .. }
            | Self::NotTogether
            | Self::PuddleSize { .. }
            | Self::WearWait { .. }
            | Self::TypeMismatch(_)
            | Self::TypeTooLong { .. }
            | Self::Type(_) => ErrorKind::Misuse,
        }
    }
}
