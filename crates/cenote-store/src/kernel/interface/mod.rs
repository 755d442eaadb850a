//! What callers of a store say and learn: options, errors, reports.

pub(crate) mod error;
pub(crate) mod lost_page;
pub(crate) mod mismatch;
pub(crate) mod options;
pub(crate) mod pool_blocks;
pub(crate) mod report;
pub(crate) mod rewriter;
