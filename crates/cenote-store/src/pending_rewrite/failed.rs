//! Errors of rewriting a puddle.

use crate::kernel::interface::error::StoreError;
use cenote_atrest::view::SealedError;
use cenote_medium::MediumError;

/// Why a puddle was not rewritten.
pub(crate) enum Failed {
    Medium(MediumError),
    Sealed(SealedError),
    Store(Box<StoreError>),
    Image(String),
    Panicked,
}

impl From<SealedError> for Failed {
    fn from(error: SealedError) -> Self {
        Self::Sealed(error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

impl From<MediumError> for Failed {
    fn from(error: MediumError) -> Self {
        Self::Medium(error)
    }
}
