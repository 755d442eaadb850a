//! A daemon's sessions, as a list shows them.
//!
//! Names of states are for programs that read figures: once one is in a release it stays.

use cenote_layout::id::Uuid;
use serde::{Deserialize, Serialize};

/// What a session is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientState {
    /// A connection serves it.
    Attached,
    /// Its connection was closed, and its process lives.
    Detached,
    /// It has ended, and its logs are being replayed.
    Ending,
    /// It has ended, that could not be done yet, and is tried again.
    Failed,
}

impl ClientState {
    /// All of them, in the order of [`ClientState::name`]s in figures.
    pub const ALL: [Self; 4] = [Self::Attached, Self::Detached, Self::Ending, Self::Failed];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::Ending => "ending",
            Self::Failed => "failed",
        }
    }
}

/// A pool that a client has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldPool {
    /// Its name.
    pub name: String,
    /// Whether for writing.
    pub writable: bool,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientItem {
    /// The session.
    pub client: Uuid,
    /// Its process, as the daemon sees it.
    pub pid: u32,
    /// The user that it acts for.
    pub uid: u32,
    /// What its program calls itself: to be shown, and not to be believed.
    pub program: String,
    /// What it is doing.
    pub state: ClientState,
    /// Seconds since this daemon knows it.
    pub known_s: u64,
    /// Messages that it has sent.
    pub messages: u64,
    /// Puddles that it has made.
    pub puddles: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Pools that it has, the first few of them.
    pub pools: Vec<HeldPool>,
    /// How many it has.
    pub pools_held: u64,
}
