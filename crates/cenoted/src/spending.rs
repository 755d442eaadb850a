//! Counts what a session makes against its limits and its user's, before it is made.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_layout::types::TypeRecord;
use cenote_proto::Refusal;

use crate::log::say;
use crate::metrics::LimitHit;
use crate::quotas::{Promise, Promised};
use crate::session::Session;
use crate::shared::Shared;

/// Puddles that a session may make. What is not made is not counted.
#[must_use]
pub(crate) struct Spent<'s> {
    session: &'s Session,
    puddles: u64,
    bytes: u64,
    kept: bool,
    _turn: Option<MutexGuard<'s, Promised>>,
}

impl<'s> Spent<'s> {
    /// The count that was made ahead: a drop without [`Spent::keep`] takes it back.
    pub(crate) fn of(session: &'s Session, puddles: u64, bytes: u64) -> Self {
        Self { session, puddles, bytes, kept: false, _turn: None }
    }

    /// It has been made.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.session.uncount(self.puddles, self.bytes);
        }
    }
}

/// Looks whether a user may have so much more, and takes the turn; `None`: there is nothing that it
/// could come to.
fn within<'s>(
    shared: &'s Shared,
    session: &Session,
    uid: u32,
    (more, more_bytes): (u64, u64),
) -> Result<Option<MutexGuard<'s, Promised>>, Refusal> {
    let limits = &shared.limits;
    if uid == 0 || (limits.user_puddles == u64::MAX && limits.user_bytes == u64::MAX) {
        return Ok(None);
    }
    let turn = shared.quotas.turn();
    let (puddles, bytes) = shared.store.use_of(uid);
    let promised = turn.get(&uid).copied().unwrap_or_default();
    let fits = |had: u64, promised: u64, more: u64, most: u64| {
        had.checked_add(promised)
            .and_then(|sum| sum.checked_add(more))
            .is_some_and(|sum| sum <= most)
    };
    let user = if uid == session.uid { "this user" } else { "the pool's owner" };
    let (what, limit, most) = if !fits(puddles, promised.0, more, limits.user_puddles) {
        ("puddles", LimitHit::PuddlesOfUser, limits.user_puddles)
    } else if !fits(bytes, promised.1, more_bytes, limits.user_bytes) {
        ("bytes of puddles", LimitHit::BytesOfUser, limits.user_bytes)
    } else {
        return Ok(Some(turn));
    };
    drop(turn);
    Err(hit(shared, session, limit, user, what, most))
}

/// Says that a limit was come to, and refuses.
fn hit(
    shared: &Shared,
    session: &Session,
    limit: LimitHit,
    who: &str,
    what: &str,
    most: u64,
) -> Refusal {
    shared.metrics.limit(limit);
    let (pid, uid) = (session.pid, session.uid);
    say!(
        shared,
        Refusals,
        WARN,
        pid,
        uid,
        "a client has reached the limit of {most} {what} of {who}"
    );
    let detail = format!("the limit of {most} {what} for {who} is reached");
    Refusal::Limit { detail }
}

/// Counts a puddle that a session makes, before it is made. It will be the user's with this number.
pub(crate) fn spend<'s>(
    shared: &'s Shared,
    session: &'s Session,
    uid: u32,
    bytes: u64,
) -> Result<Spent<'s>, Refusal> {
    // From here on dropping it takes it back.
    let mut spent = count(shared, session, 1, bytes)?;
    spent._turn = within(shared, session, uid, (1, bytes))?;
    Ok(spent)
}

/// Counts several, of so many bytes in all, which take long to be made: they are promised to the
/// session's user.
pub(crate) fn spend_many<'s>(
    shared: &'s Shared,
    session: &'s Session,
    puddles: u64,
    bytes: u64,
) -> Result<(Spent<'s>, Option<Promise>), Refusal> {
    let spent = count(shared, session, puddles, bytes)?;
    let uid = session.uid;
    let promise = within(shared, session, uid, (puddles, bytes))?
        .map(|turn| shared.quotas.promise(turn, uid, (puddles, bytes)));
    Ok((spent, promise))
}

/// Against the session's limits.
fn count<'s>(
    shared: &Shared,
    session: &'s Session,
    puddles: u64,
    bytes: u64,
) -> Result<Spent<'s>, Refusal> {
    let limits = &shared.limits;
    let add = |counter: &AtomicU64, more: u64, most: u64| {
        let fits = |now: u64| now.checked_add(more).filter(|sum| *sum <= most);
        counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    };
    let this = "this session";
    if !add(&session.puddles, puddles, limits.puddles) {
        return Err(hit(shared, session, LimitHit::Puddles, this, "puddles", limits.puddles));
    }
    if !add(&session.bytes, bytes, limits.bytes) {
        session.puddles.fetch_sub(puddles, Ordering::Relaxed);
        return Err(hit(shared, session, LimitHit::Bytes, this, "bytes of puddles", limits.bytes));
    }
    Ok(Spent::of(session, puddles, bytes))
}

/// Counts types that a session registers and that the store does not know, before they are
/// registered. Requests that the store then refuses are counted all the same: a client that repeats
/// them comes to its limit.
pub(crate) fn spend_types(
    shared: &Shared,
    session: &Session,
    records: &[TypeRecord],
) -> Result<(), Refusal> {
    let new = records.iter().filter(|record| shared.store.type_record(record.id).is_none());
    // What cannot be encoded did not come in a message.
    let len = |record| cenote_proto::encode(0, record).map_or(0, |packet| packet.len() as u64);
    let (more, more_bytes) =
        new.fold((0, 0), |(types, bytes), record| (types + 1, bytes + len(record)));
    if more == 0 {
        return Ok(());
    }
    let (most, most_bytes) = (shared.limits.user_types, shared.limits.user_type_bytes);
    let mut users = shared.quotas.types();
    let (types, bytes) = users.get(&session.uid).copied().unwrap_or_default();
    let (what, limit) = match () {
        () if types + more > most => ("types", most),
        () if bytes + more_bytes > most_bytes => ("bytes of types", most_bytes),
        () => {
            users.insert(session.uid, (types + more, bytes + more_bytes));
            return Ok(());
        }
    };
    drop(users);
    Err(hit(shared, session, LimitHit::Types, "this user, while this daemon runs,", what, limit))
}
