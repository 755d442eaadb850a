//! Types for logs that are set aside, and for the decision about them.

use cenote_layout::id::{PoolId, Uuid};

/// A client whose logs are set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecidedLogs {
    /// The client.
    pub client: Uuid,
    /// The pools that its logs may be about, by number and name: they are for looking at only.
    pub pools: Vec<(PoolId, String)>,
    /// What is wrong with its logs.
    pub why: Vec<String>,
}

/// What becomes of logs that are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDecision {
    /// They are replayed, if they pass their checks now.
    Apply,
    /// They are forgotten, and what they would have undone stays.
    Discard,
}
