//! The report of a backup.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::Damage;
use std::time::Duration;

/// What a backup did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupReport {
    /// Pools in the copy.
    pub pools: u64,
    /// Objects in the copy.
    pub objects: u64,
    /// Bytes of its files, holes included.
    pub bytes: u64,
    /// Bytes that had changed since they were copied, and were copied again while writers waited.
    pub again_bytes: u64,
    /// How long writers waited.
    pub held: Duration,
    /// What of the store is damaged: in the copy, too. A daemon does not say it.
    pub damage: Vec<Damage>,
}

/// What a backup came to, where there is a copy: whole, under its name. An *error* of the call says
/// the contrary: there is none.
#[derive(Debug)]
#[must_use = "a copy that is not synced may be lost after a loss of power"]
pub enum BackedUp {
    /// The copy survives loss of power.
    Durable(BackupReport),
    /// The copy is there, and the sync of its parent directory failed. After a loss of power it is
    /// there or is not; it is never there in part.
    Unsynced(BackupReport, StoreError),
}

impl BackedUp {
    /// What was copied.
    #[must_use]
    pub fn report(&self) -> &BackupReport {
        match self {
            Self::Durable(report) | Self::Unsynced(report, _) => report,
        }
    }

    /// The report of a copy that survives loss of power.
    ///
    /// # Errors
    /// The error of [`BackedUp::Unsynced`]. The copy is there.
    pub fn durable(self) -> Result<BackupReport, StoreError> {
        match self {
            Self::Durable(report) => Ok(report),
            Self::Unsynced(_, error) => Err(error),
        }
    }
}
