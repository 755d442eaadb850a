//! Formats the directory of a store, and keeps others out of it.

pub(crate) mod exclusion;
pub(crate) mod format;
