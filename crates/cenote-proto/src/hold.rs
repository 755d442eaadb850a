//! What a daemon says to a client that it has not asked: *stand still*, for a backup.
//!
//! It goes over a socket of its own, the client's *ear*, that the client asks for
//! ([`Request::Attend`](crate::Request::Attend)) when it first writes a pool in direct mode. The
//! number of a packet ([`encode`](crate::encode)) is that of the backup.
//!
//! ```text
//! daemon  Hold{pools} ----> client   keeps transactions from running on these pools
//!         <---- Held                 none runs, and none begins
//!         Resume ---->               they go on
//!         <---- Failed               instead of Held: not within the time
//!         <---- WentOn               after Held: the daemon took too long, they go on
//! ```
//!
//! A client sends `WentOn` before it lets a transaction begin. So a daemon that finds no `WentOn`
//! behind a `Held`, and the ear not closed, knows that none has begun until then.

use serde::{Deserialize, Serialize};

/// What the daemon says. The order of variants is part of the protocol: add at the end only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// No transaction is to run on these pools. Said again with other pools, both lists count.
    Hold {
        /// Their names.
        pools: Vec<String>,
        /// How long the client tries, in milliseconds.
        within_ms: u32,
        /// How long it holds them at most, in milliseconds.
        longest_ms: u32,
    },
    /// Transactions go on.
    Resume,
}

/// What the client answers. The order of variants is part of the protocol: add at the end only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stance {
    /// No transaction runs on the pools of the last call, and none begins.
    Held,
    /// They could not be had in time. Nothing is held of the last call.
    Failed,
    /// Transactions go on, without a request to go on.
    WentOn,
}
