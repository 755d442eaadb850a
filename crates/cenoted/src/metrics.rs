//! What the daemon counts, and the text in which it says so: Prometheus' text format, version 0.0.4.
//!
//! Counters are words that threads add to without waiting for each other, so that counting costs a request a few nanoseconds. What is true at a moment (sessions, leases, pools) is asked when somebody wants
//! the text, of those who know it.
//!
//! **No label says what a client chose.** Labels are kinds of requests, reasons, states: their number is fixed, so a hostile client cannot make the text grow; names of pools and programs are for
//! [`Clients`](cenote_proto::Request::Clients).

use crate::server::Shared;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::puddle::Role;
use cenote_proto::{Refusal, Request};
use cenote_store::relocate::Rewritten;
use std::fmt::Write;
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
    const NAMES: [&str; 9] = [
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
const BUCKETS: [(u64, &str); 13] = [
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
    buckets: [Counter; BUCKETS.len()],
    count: Counter,
    nanoseconds: Counter,
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
    requests: [Counter; Request::KINDS.len()],
    refused: [Counter; Refusal::REASONS.len()],
    limits: [Counter; LimitHit::NAMES.len()],
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
    pointers_rewritten: Counter,
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

    /// Requests that were refused, for whatever reason.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.iter().map(Counter::get).sum()
    }
}

/// The text.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP cenoted_{name} {help}\n# TYPE cenoted_{name} {kind}");
    }

    fn sample(&mut self, name: &str, label: Option<(&str, &str)>, value: impl std::fmt::Display) {
        let _ = match label {
            None => writeln!(self.0, "cenoted_{name} {value}"),
            Some((label, of)) => writeln!(self.0, "cenoted_{name}{{{label}=\"{of}\"}} {value}"),
        };
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, None, value);
    }

    fn each(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.family(name, kind, help);
        for (of, value) in values {
            self.sample(name, Some((label, of)), value);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        // The count first: what is added meanwhile is in no bucket that is above it.
        let count = histogram.count.get();
        let mut sum = 0;
        for (bucket, (_, end)) in histogram.buckets.iter().zip(BUCKETS) {
            sum = (sum + bucket.get()).min(count);
            self.sample(&format!("{name}_bucket"), Some(("le", end)), sum);
        }
        self.sample(&format!("{name}_bucket"), Some(("le", "+Inf")), count);
        self.sample(&format!("{name}_sum"), None, histogram.nanoseconds.get() as f64 / 1e9);
        self.sample(&format!("{name}_count"), None, count);
    }
}

fn named<'n>(names: &[&'n str], counters: &[Counter]) -> Vec<(&'n str, u64)> {
    names.iter().copied().zip(counters.iter().map(Counter::get)).collect()
}

/// The text of this moment.
pub(crate) fn page(shared: &Shared) -> String {
    let (store, metrics) = (&shared.store, &shared.metrics);
    let mut page = Page(String::with_capacity(16 << 10));
    let states = shared.sessions.states();
    page.each("clients", "gauge", "Sessions, by what they are doing.", "state", &states);
    page.one("connections_total", "counter", "Connections that were accepted.", metrics.connections.get());
    let (mut writing, mut reading) = (0, 0);
    for lease in shared.sessions.leases_of_clients(store) {
        if lease.writable { writing += 1 } else { reading += 1 }
    }
    page.each(
        "leases",
        "gauge",
        "Pools that clients have, by what for.",
        "access",
        &[("write", writing), ("read", reading)],
    );
    let mut by_role = [("heap", 0, 0), ("log", 0, 0), ("log_space", 0, 0), ("object", 0, 0), ("spare", 0, 0)];
    for puddle in store.puddle_records() {
        let role = match puddle.role {
            Role::Heap => 0,
            Role::Log => 1,
            Role::LogSpace => 2,
            Role::Object => 3,
            Role::Spare => 4,
        };
        by_role[role].1 += 1;
        by_role[role].2 += puddle.size;
    }
    let count: Vec<(&str, u64)> = by_role.iter().map(|(role, count, _)| (*role, *count)).collect();
    let bytes: Vec<(&str, u64)> = by_role.iter().map(|(role, _, bytes)| (*role, *bytes)).collect();
    page.one("pools", "gauge", "Pools of the store.", store.pools().len());
    page.each("puddles", "gauge", "Puddles of the store, by role.", "role", &count);
    page.each("puddle_bytes", "gauge", "Bytes of those.", "role", &bytes);
    page.each(
        "requests_total",
        "counter",
        "Requests, by kind: each is one round trip.",
        "kind",
        &named(&Request::KINDS, &metrics.requests),
    );
    page.each(
        "refused_total",
        "counter",
        "Requests that were refused, by reason.",
        "reason",
        &named(&Refusal::REASONS, &metrics.refused),
    );
    page.each(
        "limit_hits_total",
        "counter",
        "Times that a client came to a limit.",
        "limit",
        &named(&LimitHit::NAMES, &metrics.limits),
    );
    let counters = [
        ("grants_total", "Pools that were granted.", &metrics.grants),
        ("puddles_granted_total", "Descriptors of puddles that were given away.", &metrics.puddles_granted),
        ("bytes_granted_total", "Bytes of those puddles.", &metrics.bytes_granted),
        (
            "recoveries_total",
            "Sessions that ended without a goodbye and were recovered.",
            &metrics.recoveries,
        ),
        (
            "logs_replayed_total",
            "Logs with a transaction that was undone or completed.",
            &metrics.logs_replayed,
        ),
        ("entries_replayed_total", "Entries of logs that were applied.", &metrics.entries_replayed),
        (
            "logs_set_aside_total",
            "Logs that failed their checks and were set aside.",
            &metrics.logs_set_aside,
        ),
        ("ends_failed_total", "Ends of sessions that failed and are tried again.", &metrics.ends_failed),
        (
            "pointers_rewritten_total",
            "Pointers of pools that were rewritten because what they lead to has moved.",
            &metrics.pointers_rewritten,
        ),
    ];
    for (name, help, counter) in counters {
        page.one(name, "counter", help, counter.get());
    }
    let aside = store.set_aside().map_or(0, |found| found.len());
    page.one("clients_set_aside", "gauge", "Clients whose logs wait for an operator's decision.", aside);
    let psyncs = store.psync_figures().map_or(0, |(_, records, _)| records);
    page.one("psyncs_total", "counter", "Psyncs of pools that the daemon has made.", psyncs);
    page.histogram(
        "replay_seconds",
        "From the end of a client's process being seen to its logs replayed and its leases ended.",
        &metrics.replay,
    );
    page.one(
        "uptime_seconds",
        "gauge",
        "Since the daemon began to listen.",
        shared.began.elapsed().as_secs(),
    );
    page.0
}
