//! The directory of a store: formatting it, and keeping others out of it.

pub(crate) mod exclusion;
pub(crate) mod format;
