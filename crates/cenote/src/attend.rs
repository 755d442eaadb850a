//! Keeps transactions from running while the daemon that keeps the store makes a backup: the
//! client's side of [`cenote_proto::Call`].
//!
//! A transaction asks the daemon nothing, so one thread, the *ear*, does that for all of them. It
//! runs from the first pool in direct mode on that the process writes, waits for a call, and takes
//! the locks that transactions take:
//!
//! * of a pool that this process has alone, the lock of its threads, for reading;
//! * of a pool that it shares, the lock between the processes ([`crate::process_lock`]), for
//!   reading, and no other: a thread that waits for that lock has the one of its threads already,
//!   and has begun nothing. One process that has it keeps the transactions of all others out;
//! * of a pool that is closed, the name: no thread opens it meanwhile
//!   ([`crate::open_pools::HeldPools`]).
//!
//! Views go on. *Order of waiting:* the ear waits for running transactions while it holds pools
//! that others wait for. No transaction waits for the ear: all take process locks in pool order,
//! and none holds a lock between processes while it waits for another. The daemon asks first for
//! pools that one process has alone. If that is not enough, the wait ends after a time.
//!
//! States:
//!
//! | state | ends when |
//! | --- | --- |
//! | *waiting* for a call | the daemon calls |
//! | *taking* locks | it has all of them, or the time that the call gives is over |
//! | *holding* locks | the daemon says `Resume`, its socket closes, or the longest time is over |
//!
//! If the longest time is over, the thread says `WentOn` **before** it gives the locks back. When
//! the daemon has ended, it connects to the next one, so that this one can call it, too.
//!
//! Raw transactions ([`crate::raw`]) take no lock, and are not kept from running.

use crate::extensions::Extension;
use crate::open_pool::{PoolInner, PoolWatcher};
use crate::open_pools::pools_of;
use crate::process_lock::ReadTurn;
use crate::session::Inner;
use cenote_layout::catalog::PoolMode;
use cenote_medium::planted::{Bug, planted};
use cenote_proto::{Call, Channel, MESSAGE_LEN_MAX, Stance, decode, encode};
use parking_lot::RwLockReadGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How soon a daemon that has ended is looked for; twice that the next time.
const LOOK_FIRST: Duration = Duration::from_millis(5);
/// How late at most.
const LOOK_LATEST: Duration = Duration::from_secs(1);
/// How often a lock between processes is tried.
const TRY_EVERY: Duration = Duration::from_micros(50);
/// Stack of the thread, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Whether there is such a thread, and its turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attending(Arc<Turns>);

#[derive(Debug, Default)]
struct Turns {
    begun: AtomicBool,
    /// Held by the thread while it has a handle of the store.
    turn: Mutex<()>,
}

/// The thread of a store that stands still for the daemon.
pub(crate) fn attending(store: &Inner) -> &Attending {
    store.extensions.get()
}

impl Attending {
    /// Waits until the thread has no handle of the store, and keeps it from taking one.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Extension for Attending {}

impl PoolWatcher for Attending {
    /// If transactions on the pool ask no daemon, there is a thread from now on that the daemon can
    /// ask. Without it backups fail, and nothing else.
    fn listed(&self, store: &Arc<Inner>, pool: &PoolInner) {
        // SAFETY: it is asked to say when this client is needed, which changes nothing.
        let Some(daemon) = (unsafe { store.store.daemon() }) else { return };
        let commits = pool.handle.is_writable() && pool.handle.record().mode == PoolMode::Direct;
        if !commits || self.0.begun.swap(true, Ordering::SeqCst) {
            return;
        }
        let (store, attending) = (Arc::downgrade(store), self.clone());
        let thread =
            std::thread::Builder::new().name("cenote-attends".into()).stack_size(STACK_BYTES);
        let begun = daemon.attend(true).is_ok_and(|ear| {
            let ear = Ear { channel: ear.into(), honest: !planted(Bug::ClientNotStill) };
            thread.spawn(move || listen(&store, &attending, ear)).is_ok()
        });
        self.0.begun.store(begun, Ordering::SeqCst);
    }
}

/// No transaction runs on a pool as long as this lives.
enum Still<'p> {
    Alone { _guard: RwLockReadGuard<'p, ()> },
    Shared { _turn: Option<ReadTurn<'p>> },
}

impl PoolInner {
    fn still_until(&self, until: Instant) -> Option<Still<'_>> {
        if self.exclusion().is_none() {
            let left = until.saturating_duration_since(Instant::now());
            return self.lock.try_read_recursive_for(left).map(|_guard| Still::Alone { _guard });
        }
        loop {
            match self.try_read_turn() {
                Ok(_turn) => return Some(Still::Shared { _turn }),
                Err(None) if Instant::now() < until => std::thread::sleep(TRY_EVERY),
                Err(_) => return None,
            }
        }
    }
}

/// What the daemon calls by.
struct Ear {
    channel: Channel,
    /// False if a planted bug makes it say that it stands still, and go on.
    honest: bool,
}

/// The backup that a call is about, and until when.
#[derive(Clone, Copy)]
struct Terms {
    number: u32,
    within: Duration,
    longest: Duration,
}

/// How standing still ended.
#[derive(PartialEq, Eq)]
enum Stood {
    /// It did not begin.
    Not,
    /// The daemon let it end, has ended, or has taken too long.
    Over,
}

/// Keeps transactions from these pools as long as the daemon wants it.
fn stand(store: &Inner, ear: &Ear, pools: &[String], terms: Terms, buffer: &mut [u8]) -> Stood {
    let until = Instant::now() + terms.within;
    loop {
        let mut open: Vec<Arc<PoolInner>> = {
            let list = pools_of(store).locked();
            let called = list.iter().filter(|(name, _)| ear.honest && pools.contains(name));
            called.filter_map(|(_, pool)| pool.upgrade()).collect()
        };
        open.sort_by_key(|pool| pool.handle.id());
        let still: Option<Vec<Still<'_>>> =
            open.iter().map(|pool| pool.still_until(until)).collect();
        // A transaction may have opened one of them meanwhile.
        let names = if ear.honest { pools } else { &[] };
        let closed = still.as_ref().and_then(|_| pools_of(store).hold_closed(names, &open));
        match (still, closed) {
            (Some(_still), Some(_closed)) => return stay(store, ear, terms, buffer),
            (Some(_), None) if Instant::now() < until => std::thread::sleep(TRY_EVERY),
            _ => {
                say(ear, terms.number, Stance::Failed);
                return Stood::Not;
            }
        }
    }
}

/// Says that they stand still, and waits for what ends that. The caller keeps them from
/// running.
fn stay(store: &Inner, ear: &Ear, terms: Terms, buffer: &mut [u8]) -> Stood {
    if !say(ear, terms.number, Stance::Held) {
        return Stood::Over;
    }
    let end = Instant::now() + terms.longest;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || !ear.channel.readable_within(left).is_ok_and(|readable| readable) {
            // Before a transaction begins.
            say(ear, terms.number, Stance::WentOn);
            return Stood::Over;
        }
        match hear(ear, buffer) {
            Some((_, Call::Resume)) | None => return Stood::Over,
            Some((number, Call::Hold { pools, within_ms, longest_ms })) => {
                let terms = terms_of(number, within_ms, longest_ms);
                if stand(store, ear, &pools, terms, buffer) == Stood::Over {
                    return Stood::Over;
                }
            }
        }
    }
}

fn terms_of(number: u32, within_ms: u32, longest_ms: u32) -> Terms {
    let [within, longest] = [within_ms, longest_ms].map(|ms| Duration::from_millis(ms.into()));
    Terms { number, within, longest }
}

/// The next call; `None`: the daemon has ended, or speaks another language.
fn hear(ear: &Ear, buffer: &mut [u8]) -> Option<(u32, Call)> {
    let received = ear
        .channel
        .receive_bytes(buffer)
        .ok()
        .filter(|received| received.len > 0 && !received.cut)?;
    decode(buffer.get(..received.len)?).ok()
}

/// Whether it could be said.
fn say(ear: &Ear, number: u32, stance: Stance) -> bool {
    encode(number, &stance).is_ok_and(|packet| ear.channel.send(&packet, &[]).is_ok())
}

/// The thread: until the store is closed.
fn listen(store: &Weak<Inner>, attending: &Attending, mut ear: Ear) {
    let mut buffer = vec![0; MESSAGE_LEN_MAX];
    loop {
        match hear(&ear, &mut buffer) {
            Some((number, Call::Hold { pools, within_ms, longest_ms })) => {
                let _turn = attending.pause();
                let Some(store) = store.upgrade() else { return };
                stand(&store, &ear, &pools, terms_of(number, within_ms, longest_ms), &mut buffer);
                drop(store);
            }
            Some((_, Call::Resume)) => {}
            None => match next_ear(store, attending) {
                Some(next) => ear.channel = next,
                None => return,
            },
        }
    }
}

/// An ear of the next daemon; `None`: the store is closed.
fn next_ear(store: &Weak<Inner>, attending: &Attending) -> Option<Channel> {
    let mut pause = LOOK_FIRST;
    loop {
        std::thread::sleep(pause);
        pause = (2 * pause).min(LOOK_LATEST);
        let _turn = attending.pause();
        let store = store.upgrade()?;
        // SAFETY: it is asked to say when this client is needed, which changes nothing.
        if let Ok(ear) = unsafe { store.store.daemon() }?.attend(false) {
            return Some(ear.into());
        }
        drop(store);
    }
}
