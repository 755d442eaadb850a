//! The error for a type that the store knows otherwise.

use super::StoreError;
use crate::kernel::interface::mismatch::{TypeMismatch, VersionMismatch};
use cenote_layout::types::TypeRecord;

impl StoreError {
    /// The error for a type that is known with another layout, or with another version.
    #[must_use]
    pub fn mismatch(known: TypeRecord, offered: TypeRecord) -> Self {
        match known.id == offered.id {
            true => Box::new(TypeMismatch { known, offered }).into(),
            false => Box::new(VersionMismatch { known, offered }).into(),
        }
    }
}
