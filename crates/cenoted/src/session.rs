//! A session: a process, its connection, and what it has made.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::id::Uuid;
use cenote_proto::Channel;
use cenote_sys::peer;

use crate::images::{Images, Sign};
use crate::pending::{Imports, Pending};
use crate::transfers::Transfers;

/// A session's process and counters.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Uuid,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) start_ticks: u64,
    /// When this daemon began to serve it.
    pub(crate) known: Instant,
    /// The process; `None` if it was gone before it could be held.
    process: Option<OwnedFd>,
    /// What tells whether its program is gone.
    sign: Sign,
    /// The connection that serves it.
    line: Mutex<Option<Arc<Channel>>>,
    /// What it can be called by; see `cenote_proto::Call`.
    ear: Mutex<Option<Arc<Channel>>>,
    pub(crate) messages: AtomicU64,
    pub(crate) puddles: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) transfers: Transfers,
    pub(crate) imports: Imports,
}

impl Session {
    /// A session that has made nothing. `process`: `None` if it has ended already.
    pub(crate) fn new(who: &HostedClientRecord, process: Option<OwnedFd>, sign: Sign) -> Self {
        Self {
            client: who.client,
            pid: who.pid,
            uid: who.uid,
            start_ticks: who.start_ticks,
            known: Instant::now(),
            process,
            sign,
            line: Mutex::default(),
            ear: Mutex::default(),
            messages: AtomicU64::new(0),
            puddles: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            transfers: Transfers::default(),
            imports: Imports::default(),
        }
    }

    /// Counts puddles no more: they were not made.
    pub(crate) fn uncount(&self, puddles: u64, bytes: u64) {
        self.puddles.fetch_sub(puddles, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Ends the imports that it has begun: its connection is over.
    pub(crate) fn end_imports(&self) {
        self.imports.take_all().for_each(|pending| self.give_up(pending));
    }

    /// Ends an import without a pool. It counts no more.
    pub(crate) fn give_up(&self, pending: Pending) {
        self.uncount(pending.puddles, pending.bytes);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.process.as_ref().is_none_or(|process| peer::has_ended(process.as_fd()))
    }

    /// Whether the client has hung up: what that means is about to be found out.
    pub(crate) fn has_hung_up(&self) -> bool {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.as_ref().is_some_and(|line| peer::has_hung_up(line.as_fd()))
    }

    /// Whether its program is gone, or its process has ended: nothing of it stores into a mapping
    /// any more.
    pub(crate) fn is_over(&self, images: &Images) -> bool {
        self.has_ended() || images.is_gone(self.client, self.sign)
    }

    /// Which connection serves it from now on, if any.
    pub(crate) fn serve_by(&self, line: Option<Arc<Channel>>) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }

    /// What the client is called by from now on.
    pub(crate) fn hear_by(&self, ear: Channel) {
        *self.ear.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(ear));
    }

    pub(crate) fn ear(&self) -> Option<Arc<Channel>> {
        self.ear.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the client waits for no answer any more.
    pub(crate) fn is_leaving(&self) -> bool {
        self.has_ended() || self.has_hung_up()
    }

    pub(crate) fn process(&self) -> Option<&OwnedFd> {
        self.process.as_ref()
    }
}
