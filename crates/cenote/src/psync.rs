//! Psync of pools: [`Pool::psync`], [`Store::psync`] of several together, and [`AutoPsync`], which
//! psyncs by itself.
//!
//! In a pool in shadowed mode ([`crate::PoolMode::Shadowed`]) transactions survive any crash of
//! processes, as everywhere; a loss of power goes back to the last psync, on any disk. The states
//! and the argument are in `cenote_store`, module `psync`. This module adds the quiet moment: a
//! psync holds the pools' locks as a view does while it copies, so no transaction runs on them. It
//! gives the locks back before it waits for a device.
//!
//! **Order of waiting.** A psync waits
//!
//! 1. for other psyncs of its pools, in the order of the pools' numbers;
//! 2. for transactions on its pools. It holds no pool's lock then, so that a transaction on one
//!    pool can take a view of another.
//!
//! A psync of several pools that waits in 2 keeps others waiting in 1. So a thread must not wait in
//! 1 while it holds what a psync waits for in 2, or what such a transaction may wait for in turn.
//! That is any transaction at all, on any pools: it is refused (`refuse_inside`). A thread with a
//! view may wait: psyncs hold pools as readers do, and pass writers that wait. But a transaction on
//! another store may wait for that view and keep a pool that the psync in 2 waits for: both waits
//! are noted ([`crate::waits`]), and the last thread of such a circle is refused.

use crate::background::{Background, Job};
use crate::error::{Error, Result};
use crate::frames::{covered_here, hold_all};
use crate::open_pool::{Pool, PoolInner};
use crate::session::{Inner, Store};
use cenote_medium::planted::{Bug, planted};
use cenote_store::{Begun, Psync};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Pool {
    /// Makes everything that was committed in this pool durable, all of it or nothing: on return it
    /// survives loss of power. (On tmpfs nothing does; there, the end of the process.)
    ///
    /// Waits for transactions of other threads on the pool and holds them while stored pages are
    /// copied, which [`Psync::held`] measures; views go on. Threads that psync one pool at a
    /// time share the work.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in any transaction of this thread, and if threads would wait for
    /// each other in a circle; [`Error::Store`]: the pool is in direct mode or read-only, the
    /// disk is full or fails (the last psync stays, and the next one includes everything since),
    /// the store is poisoned (a sync failed: the next open decides).
    pub fn psync(&self) -> Result<Psync> {
        run(&self.inner.store, &[&self.inner])
    }

    /// Psyncs the pool by itself from now on, until the answer is dropped.
    ///
    /// # Errors
    /// As [`Pool::psync`], which is done once at the start; [`Error::Policy`] for a policy that
    /// would never psync; no thread could be made.
    pub fn psync_by(&self, policy: PsyncPolicy) -> Result<AutoPsync> {
        AutoPsync::start(self, policy)
    }

    /// Bytes of pages that programs stored into since the last psync; 0 in direct mode. Does not
    /// count stores of earlier sessions.
    #[must_use]
    pub fn unsynced_bytes(&self) -> u64 {
        self.inner.store.store.unsynced_bytes(self.inner.handle.id())
    }
}

impl Store {
    /// Psyncs several pools of this store together: after a loss of power all of them are as after
    /// this psync, or none is. Otherwise as [`Pool::psync`].
    ///
    /// # Errors
    /// [`Error::Pools`] if there is no pool, or one of another store; else as [`Pool::psync`].
    pub fn psync(&self, pools: &[&Pool]) -> Result<Psync> {
        let mut pools: Vec<&PoolInner> = pools.iter().map(|pool| &*pool.inner).collect();
        if pools.is_empty() || pools.iter().any(|pool| !Arc::ptr_eq(&pool.store, &self.inner)) {
            return Err(Error::Pools);
        }
        pools.sort_by_key(|pool| pool.handle.id());
        pools.dedup_by_key(|pool| pool.handle.id());
        run(&self.inner, &pools)
    }
}

/// `pools` are in the order of their numbers.
fn run(store: &Inner, pools: &[&PoolInner]) -> Result<Psync> {
    store.refuse_forked()?;
    refuse_inside()?;
    let handles: Vec<_> = pools.iter().map(|pool| &pool.handle).collect();
    let before_waiting = |entered: usize| pools[entered].before_gate(&pools[..entered]);
    let mut psyncing = match store.store.begin_psync(&handles, &before_waiting)? {
        Begun::Done(psync) => return Ok(psync),
        Begun::Refused => {
            let pool = pools[0].handle.name().to_string();
            return Err(Error::WouldDeadlock { pool, by: "what that waits for" });
        }
        Begun::Mine(psyncing) => psyncing,
    };
    // As a reader, so that views go on; past writers that wait, because the thread that waits for
    // this psync may be one whose view they wait for.
    let held = hold_all(pools)?;
    // SAFETY: `held` keeps writers out of all of the pools, of this process and of others.
    unsafe { psyncing.copy() }?;
    // Not while the device is waited for.
    let held = planted(Bug::HeldThroughSync).then_some(held);
    let done = psyncing.commit();
    drop(held);
    Ok(done?)
}

/// Fails in a transaction of this thread: another psync may wait for it, or for one that waits for
/// its pools.
fn refuse_inside() -> Result<()> {
    match covered_here(|_| true) {
        Some(pool) => Err(Error::WouldDeadlock { pool, by: "a transaction" }),
        None => Ok(()),
    }
}

/// The pools of a committed transaction that are to be safe from loss of power before it is
/// acknowledged.
#[cold]
pub(crate) fn after_commit(pools: &[&PoolInner]) -> Result<()> {
    let pools: Vec<&PoolInner> = pools
        .iter()
        .copied()
        .filter(|pool| pool.psync_on_commit.load(Ordering::Relaxed) > 0)
        .collect();
    let Some(first) = pools.first() else { return Ok(()) };
    run(&first.store, &pools)
        .map(drop)
        .map_err(|source| Error::NotPsynced { source: Box::new(source) })
}

/// When a pool is psynced by itself: at each of these that is given. It belongs to an [`AutoPsync`]
/// of this process, and not to the pool: no file has it, so another program's `cenote info` does
/// not show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PsyncPolicy {
    /// So long after the last one, if anything was stored since.
    pub every: Option<Duration>,
    /// Psyncs when programs have stored into pages of so many bytes since the last psync. The
    /// thread checks that every few milliseconds.
    pub bytes: Option<u64>,
    /// Before a transaction is acknowledged. Transactions that commit at the same time share one.
    pub on_commit: bool,
}

/// What an [`AutoPsync`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AutoFigures {
    /// Psyncs by the background thread that had something to do.
    pub psyncs: u64,
    /// Of those, the longest time that writers were held.
    pub held_max: Duration,
    /// Psyncs that failed. The next one tries again.
    pub failures: u64,
}

/// Psyncs a pool by itself, as a [`PsyncPolicy`] says, until it is dropped. It keeps the pool open.
/// Dropping it does not psync, and waits for its thread, except in a transaction that the thread
/// may be waiting for.
#[derive(Debug)]
#[must_use = "the pool is psynced by itself only while this lives"]
pub struct AutoPsync {
    thread: Background<AutoFigures>,
    /// Whether it is one of those that ask for a psync before a transaction is acknowledged.
    on_commit: bool,
}

/// How often the bytes that were stored into are looked at.
const LOOK: Duration = Duration::from_millis(5);

impl AutoPsync {
    fn start(pool: &Pool, policy: PsyncPolicy) -> Result<Self> {
        if policy == PsyncPolicy::default() {
            return Err(Error::Policy("it would never psync: set a time, bytes or commits"));
        }
        if policy.every == Some(Duration::ZERO) || policy.bytes == Some(0) {
            return Err(Error::Policy(
                "the time or the bytes are zero: ask for every commit instead",
            ));
        }
        // Says at once what would fail each time.
        pool.psync()?;
        let by_itself = policy.every.is_some() || policy.bytes.is_some();
        let job = by_itself.then(|| Psyncs { policy, last: Instant::now() });
        let thread = Background::start(pool, "cenote-psync", AutoFigures::default(), job)?;
        if policy.on_commit {
            pool.inner.psync_on_commit.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Self { thread, on_commit: policy.on_commit })
    }

    /// What it has done so far.
    #[must_use]
    pub fn figures(&self) -> AutoFigures {
        self.thread.figures()
    }

    /// Ends the thread. Returns the error of its newest psync, if that failed.
    ///
    /// # Errors
    /// That failure. [`Error::WouldDeadlock`] in a transaction that its thread may be waiting for:
    /// the thread ends soon after the transaction, and what it came to is not heard.
    pub fn stop(mut self) -> Result<()> {
        self.end()?;
        self.thread.failure()
    }

    fn end(&mut self) -> Result<()> {
        let pool = &self.thread.pool.inner;
        if pool.refuse_forked().is_ok() {
            if core::mem::take(&mut self.on_commit) {
                pool.psync_on_commit.fetch_sub(1, Ordering::Relaxed);
            }
            // The thread may be waiting for this one's transaction.
            if let Err(refused) = refuse_inside() {
                return if self.thread.leave() { Err(refused) } else { Ok(()) };
            }
        }
        self.thread.end()
    }
}

impl Drop for AutoPsync {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

struct Psyncs {
    policy: PsyncPolicy,
    /// The end of the last one, or when nothing had been stored since.
    last: Instant,
}

impl Job for Psyncs {
    type Figures = AutoFigures;

    fn rest(&self) -> Duration {
        let until = self.policy.every.map(|every| every.saturating_sub(self.last.elapsed()));
        let rest = match (until, self.policy.bytes) {
            (Some(until), Some(_)) => until.min(LOOK),
            (Some(until), None) => until,
            (None, _) => LOOK,
        };
        // At least a little, so that a psync that fails at once is not tried without end.
        rest.max(Duration::from_millis(1))
    }

    fn turn(
        &mut self,
        pool: &Pool,
        figures: &mut AutoFigures,
        _ends: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let unsynced = pool.unsynced_bytes();
        let due =
            unsynced > 0 && self.policy.every.is_some_and(|every| self.last.elapsed() >= every);
        if !due && self.policy.bytes.is_none_or(|bytes| unsynced < bytes) {
            if unsynced == 0 {
                self.last = Instant::now();
            }
            return Ok(false);
        }
        let psynced = pool.psync();
        self.last = Instant::now();
        let psync = psynced.inspect_err(|_| figures.failures += 1)?;
        figures.psyncs += u64::from(psync.seq != 0);
        figures.held_max = figures.held_max.max(psync.held);
        Ok(true)
    }
}
