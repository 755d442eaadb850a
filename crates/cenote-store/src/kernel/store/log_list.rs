//! The logs of a session: those that threads have, and those that were given back.

use crate::kernel::puddles::puddle::Puddle;
use cenote_layout::catalog::PuddleRecord;
use cenote_log::Body;
use cenote_protect::Guards;
use cenote_sys::memory::OwnedRegion;
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};

/// A log that one thread writes: its head segment, formatted and listed.
#[derive(Debug)]
#[must_use = "a log that is not given back keeps the store from closing"]
pub struct LogLease {
    // Private, so that only a lease that was handed out can be given back.
    pub(crate) body: Body,
    pub(crate) log_id: u64,
    pub(crate) addr: u64,
    pub(crate) hidden: bool,
}

impl LogLease {
    /// Whether it is memory without a file, for transactions on pools that are protected at rest:
    /// [`crate::Store::acquire_hidden_log`].
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.hidden
    }

    /// The head segment's body, mapped until the store is dropped.
    #[must_use]
    pub fn body(&self) -> Body {
        self.body
    }

    /// The log's identity.
    #[must_use]
    pub fn log_id(&self) -> u64 {
        self.log_id
    }

    /// Address of the head's puddle.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

/// The log space of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionSpace {
    pub(crate) puddle: NonNull<Puddle>,
    /// How many entries it has.
    pub(crate) used: u64,
    /// What is to be added to an address in it, wrapping around, for a store.
    pub(crate) distance: usize,
}

/// What the session has of logs.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) space: Option<SessionSpace>,
    /// Of log space and logs; gone before their mappings.
    pub(crate) guards: Option<Guards>,
    /// Given back.
    pub(crate) idle: Vec<LogLease>,
    /// Those of protected pools that were given back.
    pub(crate) hidden_idle: Vec<LogLease>,
    /// Their memory, and their identities.
    pub(crate) hidden: Vec<OwnedRegion>,
    pub(crate) hidden_ids: BTreeSet<u64>,
    /// Handed out.
    pub(crate) in_use: u64,
    /// Further segments by log and number.
    pub(crate) segments: BTreeMap<(u64, u32), (u64, Body)>,
    /// Head segments of all logs of this session.
    pub(crate) heads: Vec<Body>,
    /// Log and log space puddles that no session uses.
    pub(crate) spare: Vec<PuddleRecord>,
}

impl Logs {
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use
    }
}
