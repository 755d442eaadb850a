//! The interface for callers of a store: options, errors, reports.

pub(crate) mod error;
pub(crate) mod lost_page;
pub(crate) mod mismatch;
pub(crate) mod options;
pub(crate) mod pool_blocks;
pub(crate) mod report;
pub(crate) mod rewriter;
