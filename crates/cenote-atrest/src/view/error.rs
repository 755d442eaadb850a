//! What can go wrong with sealed memory. `what` names it as it is to be read in a message: `object
//! "matrix"`, `puddle 2 of pool "ledger"`.

use crate::crypto::{AtRestError, PageError, PageFault};
use cenote_layout::error_kind::ErrorKind;
use cenote_medium::MediumError;
use std::io;

/// Why sealed pages cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedError {
    /// The medium.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// The key or the protection: no key, a wrong one, one that is not needed, a header that was
    /// changed.
    #[error("{what}: {source}")]
    AtRest {
        /// Which memory.
        what: String,
        /// What is wrong.
        source: Box<AtRestError>,
    },
    /// A page fails its check. Other pages are not concerned.
    #[error(
        "page {page} of {what} is damaged: {fault}; other pages can be read; restore the whole \
         store from one copy"
    )]
    PageDamaged {
        /// Which memory.
        what: String,
        /// The page.
        page: u64,
        /// What is wrong.
        fault: Box<PageFault>,
    },
    /// There is no memory for it, no thread, or no further mapping.
    #[error("no memory for {what}: {source}")]
    Memory {
        /// Which memory.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl SealedError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Medium(error) => error.kind(),
            Self::AtRest { source, .. } => source.kind(),
            Self::PageDamaged { fault, .. } => fault.kind(),
            Self::Memory { .. } => ErrorKind::Full,
        }
    }

    /// What is wrong with a protection or its key.
    #[must_use]
    pub fn at_rest(what: &str, source: AtRestError) -> Self {
        match source {
            AtRestError::Page(fault) => Self::page(what, fault),
            source => Self::AtRest { what: what.into(), source: Box::new(source) },
        }
    }

    pub(crate) fn page(what: &str, fault: PageError) -> Self {
        Self::PageDamaged { what: what.into(), page: fault.page, fault: Box::new(fault.fault) }
    }
}
