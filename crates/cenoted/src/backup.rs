//! A backup of the store, made while clients use it ([`cenote_store::Backup`]).
//!
//! Clients store into mappings and commit without asking, so they are asked to stand still, each
//! over its *ear* ([`cenote_proto::Call`]): no transaction runs then, and none begins.
//!
//! # States
//!
//! 1. *Ahead*: files are copied as they are, while clients go on.
//! 2. *Calling*: pools that one process has alone are called for first, and then those that
//!    processes share, of which one process is enough: it has the lock between them. A pool of a
//!    client that has died is waited for until the client's logs are replayed. A client has the
//!    time `within`; one that misses it ends the backup with an error that names its process.
//! 3. *Standing*: under the store's lock each pool is looked at once more, and changed pages are
//!    copied. **The copy stands for this moment.** It has a bound, [`LONGEST`], because clients
//!    wait.
//! 4. *Confirmed*: no ear says that its client went on, and none is closed, unless the client is
//!    dead: what a dead client had stood still until its end, and its logs are replayed only when
//!    the store's lock is free. Only then the copy counts.
//! 5. *Resumed*: clients go on; the copy is synced, and its renaming commits.
//!
//! An error, the end of the command that asked, and the end of the daemon leave no copy before 5.
//! Clients go on after each: [`Crowd`] says so when it is dropped, and a client whose ear is closed
//! by the daemon's end needs no word. One that hears nothing goes on after [`LONGEST`].
//!
//! *A client that misses the time stays.* A mapping cannot be taken from a process that lives, so
//! the only way would be to kill it, and with that a program that is only slow loses its work. A
//! backup can be tried again.
//!
//! *Who may ask:* the superuser and the daemon's own user, because a copy has every pool of every
//! user, and is written with the daemon's rights.

use crate::answers::{Answer, refusal};
use crate::session::Session;
use crate::shared::Shared;
use crate::turns::LOOK_EVERY;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_proto::{Call, Channel, Refusal, Reply, Stance, decode, encode};
use cenote_store::{BackedUp, PoolAtWork, StoreError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long clients stand still at most.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// For how long of that files are copied: so that a client never goes on before the daemon stops.
const COPYING: Duration = Duration::from_secs(50);
/// How much later than its time a client's answer may come.
const LATE: Duration = Duration::from_millis(200);
/// How long a process whose ear has closed may take to be known as dead.
const DYING: Duration = Duration::from_secs(1);
/// Bytes of an answer, at most.
const ANSWER_LEN_MAX: usize = 64;

fn failed(kind: ErrorKind, detail: impl Into<String>) -> Refusal {
    Refusal::Backup { kind: kind.code().into(), detail: detail.into() }
}

fn refused(error: StoreError) -> Refusal {
    match error {
        StoreError::Backup { kind, detail } => {
            failed(kind, detail.chars().take(2000).collect::<String>())
        }
        error => refusal(error),
    }
}

/// Gives a client its ear.
pub(crate) fn attend(session: &Session) -> Result<Answer, Refusal> {
    let failed = |error: std::io::Error| Refusal::Other {
        kind: ErrorKind::of_system(&error).code().into(),
        detail: format!("no socket can be made: {error}"),
    };
    let (own, ear) = Channel::pair().map_err(failed)?;
    // One that is stopped reads nothing.
    own.set_send_timeout(LATE).map_err(failed)?;
    session.hear_by(own);
    Ok((Reply::Ear, vec![ear.into()]))
}

/// Makes a copy of the store. By itself, because each connection's thread keeps the stack that a
/// request has taken once.
#[inline(never)]
pub(crate) fn make(
    shared: &Shared,
    session: &Session,
    (target, within_ms): (&str, u32),
) -> Result<Answer, Refusal> {
    let target = Path::new(target);
    if !target.is_absolute() {
        return Err(failed(ErrorKind::Misuse, "the target is named from the root"));
    }
    let more = || !session.is_leaving() && !shared.sessions.is_stopping();
    let turn = shared
        .backups
        .take(session.client, &shared.sessions, &more)
        .map_err(|why| failed(ErrorKind::Busy, why))?;
    let within = match within_ms {
        0 => shared.limits.standstill,
        ms => Duration::from_millis(ms.into()),
    };
    // Of the two stores, only the copy is written.
    let refused = |error| match error {
        StoreError::Medium(full) if full.is_no_space() => failed(
            ErrorKind::Full,
            format!("{}: {full}, or name a directory on another file system", target.display()),
        ),
        error => refused(error),
    };
    let mut backup = shared.store.begin_backup(target).map_err(refused)?;
    backup.copy_ahead(&mut |_, _| more()).map_err(refused)?;
    let mut crowd = Crowd::new(shared, turn.number, within.min(COPYING / 2));
    loop {
        crowd.call(&more)?;
        let began = crowd.began;
        let mut in_time = |_: u64, _: u64| began.elapsed() < COPYING && more();
        if backup.copy_standing(&crowd.standing, &mut in_time).map_err(refused)? {
            break;
        }
    }
    crowd.confirm()?;
    drop(crowd);
    let made = backup.finish().map_err(refused)?;
    let unsynced = match &made {
        BackedUp::Unsynced(_, StoreError::BackupUnsynced { detail }) => Some(detail.clone()),
        BackedUp::Unsynced(_, other) => Some(other.to_string()),
        BackedUp::Durable(_) => None,
    };
    let report = made.report();
    let held_us = report.held.as_micros() as u64;
    tracing::info!(target = %target.display(), held_us, "backed up");
    let reply = Reply::BackedUp {
        pools: report.pools,
        objects: report.objects,
        bytes: report.bytes,
        again_bytes: report.again_bytes,
        held_us: report.held.as_micros() as u64,
        unsynced,
    };
    Ok((reply, Vec::new()))
}

/// A client that was called.
struct Called {
    session: Arc<Session>,
    ear: Arc<Channel>,
    /// Pools of calls that it has not answered, in the order of the calls.
    open: VecDeque<Vec<PoolId>>,
    /// It answered that it could not.
    gave_up: bool,
}

/// Clients that stand still, or are asked to. Dropped, it lets them go on.
struct Crowd<'s> {
    shared: &'s Shared,
    number: u32,
    within: Duration,
    began: Instant,
    called: BTreeMap<Uuid, Called>,
    /// Clients and pools that stand still.
    standing: BTreeSet<(PoolId, Uuid)>,
}

impl<'s> Crowd<'s> {
    fn new(shared: &'s Shared, number: u32, within: Duration) -> Self {
        let (called, standing) = (BTreeMap::new(), BTreeSet::new());
        Self { shared, number, within, began: Instant::now(), called, standing }
    }

    /// Returns when each pool that clients write has one that keeps transactions from it.
    fn call(&mut self, more: &impl Fn() -> bool) -> Result<(), Refusal> {
        loop {
            self.listen()?;
            let mut missing = self.shared.store.pools_at_work();
            missing.retain(|pool| !pool.stands(&self.standing));
            if missing.is_empty() {
                return Ok(());
            }
            if missing.iter().any(|pool| !pool.shared) {
                missing.retain(|pool| !pool.shared);
            }
            if self.began.elapsed() > self.within + LATE {
                return Err(self.late(&missing));
            }
            if !more() {
                return Err(failed(ErrorKind::Aborted, "it was stopped"));
            }
            self.call_for(&missing)?;
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Calls the clients that have not been called for these pools: of a shared one the first that
    /// has an ear, and if a quarter of the time is over, all.
    fn call_for(&mut self, missing: &[PoolAtWork]) -> Result<(), Refusal> {
        let hurried = self.began.elapsed() > self.within / 4;
        let mut calls: BTreeMap<Uuid, Vec<&PoolAtWork>> = BTreeMap::new();
        for pool in missing {
            let mut asked = pool
                .hosted_clients
                .iter()
                .any(|(hosted_client, _)| self.is_called(*hosted_client, pool.pool));
            for (hosted_client, _) in &pool.hosted_clients {
                if (asked && !hurried) || self.is_called(*hosted_client, pool.pool) {
                    continue;
                }
                let gave_up = self.called.get(hosted_client).is_some_and(|called| called.gave_up);
                if !gave_up && self.knows(*hosted_client) {
                    calls.entry(*hosted_client).or_default().push(pool);
                    asked = true;
                }
            }
        }
        for (hosted_client, pools) in calls {
            let Some(called) = self.called.get_mut(&hosted_client) else { continue };
            let left = self.within.saturating_sub(self.began.elapsed());
            let call = Call::Hold {
                pools: pools.iter().map(|pool| pool.name.clone()).collect(),
                within_ms: left.as_millis() as u32,
                longest_ms: LONGEST.as_millis() as u32,
            };
            let packet = encode(self.number, &call)
                .map_err(|error| failed(ErrorKind::Misuse, error.to_string()))?;
            if called.ear.send(&packet, &[]).is_ok() {
                called.open.push_back(pools.iter().map(|pool| pool.pool).collect());
            }
        }
        Ok(())
    }

    fn is_called(&self, hosted_client: Uuid, pool: PoolId) -> bool {
        let called = self.called.get(&hosted_client);
        called.is_some_and(|called| called.open.iter().flatten().any(|open| *open == pool))
    }

    /// Whether a client has an ear; it is among those that are called then.
    fn knows(&mut self, hosted_client: Uuid) -> bool {
        if self.called.contains_key(&hosted_client) {
            return true;
        }
        let Some(session) = self.shared.sessions.get(hosted_client) else { return false };
        let Some(ear) = session.ear() else { return false };
        self.called
            .insert(hosted_client, Called { session, ear, open: VecDeque::new(), gave_up: false });
        true
    }

    /// Hears what clients have answered, and waits for none.
    fn listen(&mut self) -> Result<(), Refusal> {
        let mut closed = Vec::new();
        for (hosted_client, called) in &mut self.called {
            loop {
                match heard(&called.ear, self.number) {
                    Heard::Nothing => break,
                    Heard::Old => {}
                    Heard::Now(Stance::Held) => {
                        let pools = called.open.pop_front().unwrap_or_default();
                        self.standing.extend(pools.into_iter().map(|pool| (pool, *hosted_client)));
                    }
                    Heard::Now(Stance::Failed) => {
                        called.open.pop_front();
                        called.gave_up = true;
                    }
                    Heard::Now(Stance::WentOn) => return Err(went_on(called)),
                    Heard::Closed => {
                        closed.push(*hosted_client);
                        break;
                    }
                }
            }
        }
        for hosted_client in closed {
            // One that stood still and has died stands still for ever.
            let stood = self.standing.iter().any(|(_, standing)| *standing == hosted_client);
            if !stood {
                self.called.remove(&hosted_client);
            } else if let Some(called) = self.called.get(&hosted_client)
                && !self.is_dead(called)
            {
                return Err(went_on(called));
            }
        }
        Ok(())
    }

    fn is_dead(&self, called: &Called) -> bool {
        let began = Instant::now();
        while !called.session.is_over(self.shared.sessions.images()) {
            if began.elapsed() > DYING {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// Whether all stood still until now.
    fn confirm(&mut self) -> Result<(), Refusal> {
        self.listen()
    }

    /// Refuses, and names the clients that have kept it waiting: those that do not answer, or else
    /// those that could not.
    fn late(&self, missing: &[PoolAtWork]) -> Refusal {
        let hosted_clients: BTreeMap<Uuid, u32> =
            missing.iter().flat_map(|pool| pool.hosted_clients.iter().copied()).collect();
        let silent = |hosted_client: &Uuid| {
            self.called.get(hosted_client).is_none_or(|called| !called.gave_up)
        };
        let mut pids: Vec<u32> = hosted_clients
            .iter()
            .filter(|(hosted_client, _)| silent(hosted_client))
            .map(|(_, pid)| *pid)
            .collect();
        if pids.is_empty() {
            pids = hosted_clients.into_values().collect();
        }
        pids.truncate(64);
        Refusal::NotStill { pids, waited_ms: self.within.as_millis() as u32 }
    }
}

impl Drop for Crowd<'_> {
    fn drop(&mut self) {
        let Ok(packet) = encode(self.number, &Call::Resume) else { return };
        for called in self.called.values() {
            let _ = called.ear.send(&packet, &[]);
        }
    }
}

fn went_on(called: &Called) -> Refusal {
    failed(
        ErrorKind::Busy,
        format!("process {} continued before its files were copied", called.session.pid),
    )
}

enum Heard {
    Nothing,
    /// About an earlier backup, or nonsense.
    Old,
    Now(Stance),
    Closed,
}

fn heard(ear: &Channel, number: u32) -> Heard {
    match ear.readable_within(Duration::ZERO) {
        Ok(false) => return Heard::Nothing,
        Ok(true) => {}
        Err(_) => return Heard::Closed,
    }
    let mut buffer = [0; ANSWER_LEN_MAX];
    let Ok(received) = ear.receive_bytes(&mut buffer) else { return Heard::Closed };
    if received.len == 0 {
        return Heard::Closed;
    }
    match decode(buffer.get(..received.len).unwrap_or_default()) {
        Ok((of, stance)) if of == number => Heard::Now(stance),
        _ => Heard::Old,
    }
}
