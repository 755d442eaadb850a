//! Keeps in memory which tickets were used, and which no transaction has.

/// The tickets of a sub-heap that were used.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// Number of each one's last use; those behind were never used.
    pub(crate) sequences: Vec<u64>,
    /// Those among them that no transaction has.
    pub(crate) free: Vec<u32>,
}
