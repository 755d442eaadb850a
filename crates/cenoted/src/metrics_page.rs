//! The text that says what the daemon has counted, in Prometheus' text format, version 0.0.4.
//!
//! Figures of a moment (sessions, leases, pools) are read when the text is asked for.

use std::fmt::Write;

use cenote_layout::puddle::Role;
use cenote_proto::{Refusal, Request};

use crate::metrics::{BUCKETS, Counter, Histogram, LimitHit};
use crate::shared::Shared;

/// The text.
struct MetricsPage(String);

impl MetricsPage {
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
    let mut page = MetricsPage(String::with_capacity(16 << 10));
    page.sessions(shared);
    page.space(shared);
    page.requests(shared);
    page.counters(shared);
    page.recovery(shared);
    let up = shared.began.elapsed().as_secs();
    page.one("uptime_seconds", "gauge", "Since the daemon began to listen.", up);
    page.0
}

impl MetricsPage {
    /// Clients, and what they have.
    fn sessions(&mut self, shared: &Shared) {
        let states = shared.sessions.states();
        self.each("clients", "gauge", "Sessions, by state.", "state", &states);
        let connections = shared.metrics.connections.get();
        self.one("connections_total", "counter", "Connections that were accepted.", connections);
        let (mut writing, mut reading) = (0, 0);
        for lease in shared.sessions.leases_of_clients(&shared.store) {
            if lease.writable { writing += 1 } else { reading += 1 }
        }
        let leases = [("write", writing), ("read", reading)];
        self.each("leases", "gauge", "Pools that clients have, by access.", "access", &leases);
    }

    /// What the store holds.
    fn space(&mut self, shared: &Shared) {
        const ROLES: [&str; 6] = ["heap", "log", "log_space", "object", "spare", "metadata"];
        let (mut count, mut bytes) = (ROLES.map(|role| (role, 0)), ROLES.map(|role| (role, 0)));
        for puddle in shared.store.puddle_records() {
            let role = match puddle.role {
                Role::Heap => 0,
                Role::Log => 1,
                Role::LogSpace => 2,
                Role::Object => 3,
                Role::Spare => 4,
                Role::Metadata => 5,
            };
            count[role].1 += 1;
            bytes[role].1 += puddle.size;
        }
        self.one("pools", "gauge", "Pools of the store.", shared.store.pools().len());
        self.each("puddles", "gauge", "Puddles of the store, by role.", "role", &count);
        self.each("puddle_bytes", "gauge", "Bytes of those.", "role", &bytes);
    }

    /// Requests, and what became of them.
    fn requests(&mut self, shared: &Shared) {
        let metrics = &shared.metrics;
        let requests = named(&Request::KINDS, &metrics.requests);
        let help = "Requests, by kind: each is one round trip.";
        self.each("requests_total", "counter", help, "kind", &requests);
        let refused = named(&Refusal::REASONS, &metrics.refused);
        let help = "Requests that were refused, by reason.";
        self.each("refused_total", "counter", help, "reason", &refused);
        let limits = named(&LimitHit::NAMES, &metrics.limits);
        let help = "Times that a client reached a limit.";
        self.each("limit_hits_total", "counter", help, "limit", &limits);
    }

    /// What was counted since the beginning.
    fn counters(&mut self, shared: &Shared) {
        let metrics = &shared.metrics;
        let counters = [
            ("grants_total", "Pools that were granted.", &metrics.grants),
            (
                "puddles_granted_total",
                "Descriptors of puddles that were granted.",
                &metrics.puddles_granted,
            ),
            ("bytes_granted_total", "Bytes of those puddles.", &metrics.bytes_granted),
            (
                "recoveries_total",
                "Sessions that ended without a close and were recovered.",
                &metrics.recoveries,
            ),
            (
                "logs_replayed_total",
                "Logs with a transaction that was undone or completed.",
                &metrics.logs_replayed,
            ),
            (
                "entries_replayed_total",
                "Entries of logs that were applied.",
                &metrics.entries_replayed,
            ),
            (
                "logs_set_aside_total",
                "Logs that failed their checks and were set aside.",
                &metrics.logs_set_aside,
            ),
            (
                "ends_failed_total",
                "Ends of sessions that failed and will be tried again.",
                &metrics.ends_failed,
            ),
            (
                "pointers_rewritten_total",
                "Pointers of pools that were rewritten because what they lead to has moved.",
                &metrics.pointers_rewritten,
            ),
        ];
        for (name, help, counter) in counters {
            self.one(name, "counter", help, counter.get());
        }
    }

    /// What waits for an operator, psyncs, and how long replays took.
    fn recovery(&mut self, shared: &Shared) {
        let aside = shared.store.undecided_logs().map_or(0, |found| found.len());
        let help = "Clients whose logs wait for an operator's decision.";
        self.one("clients_set_aside", "gauge", help, aside);
        let psyncs = shared.store.psync_figures().map_or(0, |(_, records, _)| records);
        self.one("psyncs_total", "counter", "Psyncs of pools that the daemon has made.", psyncs);
        let help = "From the moment the daemon sees the end of a client's process to the replay of \
                    its logs and the end of its leases.";
        self.histogram("replay_seconds", help, &shared.metrics.replay);
    }
}
