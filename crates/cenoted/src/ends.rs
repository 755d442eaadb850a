//! Ends of sessions: the store replays a dead client's logs, and the undertaker waits for deaths.

use std::time::{Duration, Instant};

use cenote_log::Outcome;
use cenote_store::{ClientEnd, LogReport, StoreError};

use crate::log::say;
use crate::session::Session;
use crate::shared::Shared;

/// Ends a session that was claimed, and says what was found. If that fails it is tried again later.
pub(crate) fn end(shared: &Shared, session: &Session, well: bool) -> Result<(), StoreError> {
    let began = Instant::now();
    let sessions = &shared.sessions;
    match shared.store.client_end(session.client, well) {
        Ok(end) => {
            note(shared, session, well, &end, began.elapsed());
            sessions.forget(session.client);
            Ok(())
        }
        // It has been.
        Err(StoreError::NoClient { .. }) => {
            sessions.forget(session.client);
            Ok(())
        }
        Err(error) => {
            shared.metrics.ends_failed.add(1);
            let again = sessions.fail(session.client, well);
            say!(
                shared, Ends, ERROR, pid = session.pid, client = %session.client,
                "the logs of a client that has ended cannot be replayed, and other clients cannot \
                 have its pools: {error}; the daemon tries again in {again:?}"
            );
            if matches!(error, StoreError::Poisoned { .. }) {
                shared.give_up(&error.to_string());
            }
            Err(error)
        }
    }
}

/// Counts and says how a session has ended.
fn note(shared: &Shared, session: &Session, well: bool, end: &ClientEnd, took: Duration) {
    let metrics = &shared.metrics;
    let applied = |log: &LogReport| match log.outcome {
        Outcome::RolledBack { entries } | Outcome::RolledForward { entries } => Some(entries),
        _ => None,
    };
    let replayed: Vec<u64> = end.logs.iter().filter_map(applied).collect();
    let (logs, entries) = (replayed.len() as u64, replayed.iter().sum::<u64>());
    metrics.logs_replayed.add(logs);
    metrics.entries_replayed.add(entries);
    metrics.logs_set_aside.add(end.damage.len() as u64);
    if well {
        say!(
            shared,
            Ends,
            DEBUG,
            pid = session.pid,
            uid = session.uid,
            "a client has closed its session"
        );
    } else {
        metrics.replay.note(took);
        metrics.recoveries.add(1);
        say!(
            shared,
            Ends,
            INFO,
            pid = session.pid,
            uid = session.uid,
            "a client has ended without closing its session: {logs} of its {} logs were replayed, \
             {entries} entries, in {took:?}",
            end.logs.len()
        );
    }
    for damage in &end.damage {
        let client = session.client;
        say!(shared, SetAside, WARN, pid = session.pid, %client, "set aside: {damage}");
    }
}

/// Waits for the processes of detached sessions and ends their sessions. Tries failed ends again.
pub(crate) fn undertake(shared: &Shared) {
    /// Without this thread no client that dies is recovered: its end is the daemon's.
    struct Needed<'s>(&'s Shared);
    impl Drop for Needed<'_> {
        fn drop(&mut self) {
            if !self.0.sessions.is_stopping() {
                self.0.give_up("the thread that recovers clients has ended");
            }
        }
    }
    let _needed = Needed(shared);
    let sessions = &shared.sessions;
    let mut found = sessions.tokens_of_the_lost();
    loop {
        for token in found.drain(..) {
            if sessions.is_stopping() {
                return;
            }
            if let Some(session) = sessions.claim_dead(token) {
                let _ = end(shared, &session, false);
            }
        }
        while let Some(session) = sessions.claim_gone() {
            if sessions.is_stopping() {
                return;
            }
            let _ = end(shared, &session, false);
        }
        for (session, well) in sessions.claim_failed(Instant::now()) {
            if sessions.is_stopping() {
                return;
            }
            let _ = end(shared, &session, well);
        }
        if let Err(error) = sessions.wait(&mut found) {
            tracing::error!("cannot wait for the ends of processes: {error}");
            return;
        }
    }
}
