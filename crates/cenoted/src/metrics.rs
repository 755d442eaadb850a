//! What the daemon counts.
//!
//! Counters are words that threads add to without waiting for each other, so counting costs a
//! request a few nanoseconds.
//!
//! **No label says what a client chose.** Labels are kinds of requests, reasons and states: their
//! number is fixed, so a hostile client cannot make the text of `metrics_page.rs` grow. Names of
//! pools and programs are for [`Clients`](cenote_proto::Request::Clients).

use cenote_layout::catalog::PuddleRecord;
use cenote_proto::{Refusal, Request};
use cenote_store::relocate::Rewritten;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Limits that a client can come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitHit {
    /// Connections in all.
    Connections,
    /// Connections of one user.
    ConnectionsOfUser,
    /// Sessions in all, or of one user.
    Sessions,
    /// Puddles that a session may make.
    Puddles,
    /// Bytes of those.
    Bytes,
    /// Puddles that a user may have.
    PuddlesOfUser,
    /// Bytes of those.
    BytesOfUser,
    /// Types that a user may register, or bytes of them.
    Types,
    /// Imports that are under way.
    Imports,
}

impl LimitHit {
    pub(crate) const NAMES: [&str; 9] = [
        "connections",
        "connections_of_user",
        "sessions",
        "puddles",
        "bytes",
        "puddles_of_user",
        "bytes_of_user",
        "types",
        "imports",
    ];
}

/// Upper ends of the buckets of replay times, in microseconds, as they are written in seconds.
pub(crate) const BUCKETS: [(u64, &str); 13] = [
    (250, "0.00025"),
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (1_000_000, "1"),
    (2_500_000, "2.5"),
    (10_000_000, "10"),
];

/// How often something took how long.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// By bucket; what took longer than the last one is in the count only.
    pub(crate) buckets: [Counter; BUCKETS.len()],
    pub(crate) count: Counter,
    pub(crate) nanoseconds: Counter,
}

impl Histogram {
    pub(crate) fn note(&self, took: Duration) {
        let us = took.as_micros();
        if let Some(bucket) = BUCKETS.iter().position(|(most, _)| us <= u128::from(*most)) {
            self.buckets[bucket].add(1);
        }
        self.count.add(1);
        self.nanoseconds.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) requests: [Counter; Request::KINDS.len()],
    pub(crate) refused: [Counter; Refusal::REASONS.len()],
    pub(crate) limits: [Counter; LimitHit::NAMES.len()],
    pub(crate) connections: Counter,
    /// Pools that were granted.
    pub(crate) grants: Counter,
    /// Descriptors of puddles that were given away, and bytes of those.
    pub(crate) puddles_granted: Counter,
    pub(crate) bytes_granted: Counter,
    /// Sessions that ended without a goodbye and were recovered.
    pub(crate) recoveries: Counter,
    pub(crate) logs_replayed: Counter,
    pub(crate) entries_replayed: Counter,
    pub(crate) logs_set_aside: Counter,
    /// Ends of sessions that could not be done, and are tried again.
    pub(crate) ends_failed: Counter,
    /// Pointers that were rewritten because what they lead to has moved.
    pub(crate) pointers_rewritten: Counter,
    pub(crate) replay: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: std::array::from_fn(|_| Counter::default()),
            refused: std::array::from_fn(|_| Counter::default()),
            limits: std::array::from_fn(|_| Counter::default()),
            connections: Counter::default(),
            grants: Counter::default(),
            puddles_granted: Counter::default(),
            bytes_granted: Counter::default(),
            recoveries: Counter::default(),
            logs_replayed: Counter::default(),
            entries_replayed: Counter::default(),
            logs_set_aside: Counter::default(),
            ends_failed: Counter::default(),
            pointers_rewritten: Counter::default(),
            replay: Histogram::default(),
        }
    }
}

impl Metrics {
    /// Puddles whose descriptors are given away.
    pub(crate) fn granted(&self, puddles: &[PuddleRecord]) {
        self.puddles_granted.add(puddles.len() as u64);
        self.bytes_granted.add(puddles.iter().map(|puddle| puddle.size).sum());
    }

    pub(crate) fn request(&self, request: &Request) {
        if let Some(counter) = self.requests.get(request.kind()) {
            counter.add(1);
        }
    }

    pub(crate) fn refusal(&self, refusal: &Refusal) {
        if let Some(counter) = self.refused.get(refusal.reason()) {
            counter.add(1);
        }
    }

    /// Pointers of a pool were rewritten.
    pub(crate) fn rewritten(&self, rewritten: &Rewritten) {
        self.pointers_rewritten.add(rewritten.native + rewritten.relative + rewritten.region);
    }

    pub(crate) fn limit(&self, hit: LimitHit) {
        if let Some(counter) = self.limits.get(hit as usize) {
            counter.add(1);
        }
    }

    /// Requests that were refused, for any reason.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.iter().map(Counter::get).sum()
    }
}
