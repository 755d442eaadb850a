//! Gives leaks back beside a running program. [`cenote_heap::reclaim`] says how a heap does it and
//! why that is right; this module runs it on all pools of a store together, and keeps the promises
//! that a heap asks of its caller.
//!
//! A *run* has members: every pool of the store, because any of them may lead to values of any
//! other. Its states:
//!
//! | state | what happens | ends when |
//! | --- | --- | --- |
//! | gathering | pools become members, whose changes are recorded | all are members |
//! | marking | slices mark what roots and recorded changes lead to | nothing is pending anywhere |
//! | condemning | one slice for each pool condemns its leaks | all pools had theirs |
//! | giving back | slices give condemned blocks back | no condemned block is left |
//!
//! It begins before the first transaction of the session. So a program can only know values that a
//! root leads to, and the run reaches these. When all pools are members the run is *sealed*: a pool
//! that is created later can hold nothing old. Values that a leak of another pool leads to may be
//! gone afterwards: pointers between pools are checked where they are followed.
//!
//! *The order of locks.* A slice takes the turnstile (the members' lock), then one pool's lock:
//! shared to mark, exclusive to condemn and give back. It waits 10 ms at most for the pool, then
//! gives both back and tries again. It waits for nothing else while it holds them. A filter is the
//! program's code, so calls from it that would wait are refused. A pool that is closed passes the
//! turnstile before anything of it goes away. So a member lives as long as the turnstile is held,
//! and closing waits for one slice, never for a run. A run has no handle of store or pools.

mod driver;
mod run;

use crate::checking::refuse_within;
use crate::error::{Error, ReclaimRefused, Result};
use crate::frames::covers_here;
use crate::open_pool::{Pool, PoolInner};
use crate::open_pools::{Authority, pools_of};
use crate::session::Store;
use cenote_heap::BlockInfo;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use cenote_store::Access;
use core::fmt;
use core::ops::ControlFlow;
use core::time::Duration;
use driver::{Driver, LOOK};
use run::{Ending, begin_run, reclaims};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use run::Reclaims;

/// Which pools are reclaimed in the background; see [`Store::reclaim_in_background`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReclaimPolicy {
    /// Those whose last session ended without closing them:
    /// [`PoolStart::Dirty`](cenote_store::PoolStart::Dirty).
    AfterCrash,
    /// All that are opened for writing.
    Always,
}

/// How a pool is reclaimed; see [`Pool::reclaim_with`].
#[non_exhaustive]
pub struct ReclaimOptions<'a> {
    /// Only say what would be given back; works for pools that are open for reading only.
    pub dry_run: bool,
    /// How long transactions are made to wait at most for one slice of tracing, more or less: a
    /// slice ends after a few blocks more. 100 microseconds by default.
    pub hold: Duration,
    /// Called between slices, with no lock held. If it breaks, the run ends with
    /// [`ReclaimRefused::Cancelled`]: no leak is given back then, or all are dead, and the next
    /// run, collect or opener goes on to free them.
    pub progress: Option<&'a mut OnReclaimProgress<'a>>,
}

/// Hears how far a run has come, and may break it off.
pub type OnReclaimProgress<'a> = dyn FnMut(&ReclaimProgress) -> ControlFlow<()> + 'a;

impl Default for ReclaimOptions<'_> {
    fn default() -> Self {
        Self { dry_run: false, hold: Duration::from_micros(100), progress: None }
    }
}

impl fmt::Debug for ReclaimOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReclaimOptions")
            .field("dry_run", &self.dry_run)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimProgress {
    /// Blocks reached so far, in all pools.
    pub reached_blocks: u64,
    /// Whether marking is over, and leaks are given back.
    pub marked: bool,
    /// Leaks found so far.
    pub blocks: u64,
}

/// What a run gave back in one pool, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimReport {
    /// Blocks that were leaks.
    pub blocks: u64,
    /// Their usable bytes.
    pub bytes: u64,
    /// By type.
    pub types: Vec<ReclaimedType>,
    /// The first of them, up to [`LISTED_MAX`](cenote_heap::report::LISTED_MAX).
    pub listed: Vec<BlockInfo>,
    /// Whether it only said so.
    pub dry_run: bool,
    /// Blocks that were reached, in all pools of the store.
    pub reached_blocks: u64,
    /// How often a pool's lock was held, of any pool.
    pub slices: u64,
    /// The longest of these times: no thread waited longer for this run.
    pub longest_hold: Duration,
    /// From beginning to end, waiting included.
    pub took: Duration,
}

/// Leaks of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimedType {
    /// The type.
    pub type_id: TypeId,
    /// Blocks.
    pub blocks: u64,
    /// Their usable bytes.
    pub bytes: u64,
}

type Outcome = core::result::Result<ReclaimReport, ReclaimRefused>;

impl Store {
    /// Starts a thread that finds and frees the leaks of all pools that are open for writing, once
    /// in this session. A leak is a value that was allocated and never attached, say because a
    /// program died between the two. Call this before the first transaction, best right after the
    /// store was opened. Pools that are open already take part.
    ///
    /// The thread begins when all pools of the store are open, because each pool may lead to values
    /// of each other pool. If they are not open 10 seconds after the first one, the thread gives
    /// up. Transactions wait for the thread about 100 microseconds at a time. Once they wait while
    /// all leaks of a pool are condemned, some nanoseconds for each leak
    /// ([`ReclaimReport::longest_hold`]). While the thread works, the first change of each value is
    /// a little slower. The thread ends when a pool is closed. It never frees a value that a
    /// transaction of this session has allocated, attached or not.
    ///
    /// [`Pool::reclaim`] waits for the thread and returns its report. A pointer or handle that the
    /// program has kept from before it opened the pool protects no value: if no root leads to the
    /// value, the thread frees it, with all values that only it leads to, at one moment. Before
    /// that moment the program reads whole values through it, afterwards it gets
    /// [`Error::Dangling`].
    ///
    /// # Errors
    /// [`Error::Reclaim`]: a transaction has run already; a run is under way; there is no thread.
    pub fn reclaim_in_background(&self, policy: ReclaimPolicy) -> Result<()> {
        self.inner.refuse_forked()?;
        let run = begin_run(&self.inner, Some(policy), false, None)?;
        let worker = Arc::clone(&run);
        let spawned = std::thread::Builder::new().name("cenote-reclaim".into()).spawn(move || {
            // Nothing is recorded before the first pool is there.
            while worker.members.lock().list.is_empty() && !worker.cancelled.load(Ordering::Relaxed)
            {
                std::thread::sleep(LOOK);
            }
            Driver::new(&worker, ReclaimOptions::default().hold, None).drive();
        });
        if let Err(error) = spawned {
            drop(Ending { run: &run, outcomes: BTreeMap::new() });
            return Err(ReclaimRefused::NoThread { why: error.to_string() }.into());
        }
        Ok(())
    }
}

impl Pool {
    /// Frees the values that were allocated in this pool before this session and never attached.
    /// Other threads may go on with transactions. If [`Store::reclaim_in_background`] was called,
    /// this waits for that run and returns its report.
    ///
    /// # Errors
    /// As [`Pool::reclaim_with`].
    pub fn reclaim(&self) -> Result<ReclaimReport> {
        self.reclaim_with(ReclaimOptions::default())
    }

    /// As [`Pool::reclaim`], with options. Opens all pools of the store: for reading only, if this
    /// is a dry run in a pool that is open for reading only.
    ///
    /// A run must begin before the first transaction of the session: at that time a root leads to
    /// every value that the program can find. [`Pool::collect`] can be called at any time. It stops
    /// all threads, and frees also values to which only the program's own memory has pointers.
    ///
    /// A type with a filter function is copied and scanned as a whole, so a very large block of
    /// such a type makes a slice longer.
    ///
    /// # Errors
    /// [`Error::Reclaim`] says why there was no run, or why it ended; [`Error::WouldDeadlock`] if
    /// this thread has a view or a transaction of a pool; [`Error::NotWhole`] and [`Error::Store`]
    /// if values of some pool are not known; as [`Store::pool_with`] if a pool cannot be opened.
    /// What was given back before an error were leaks.
    pub fn reclaim_with(&self, options: ReclaimOptions<'_>) -> Result<ReclaimReport> {
        let inner = &self.inner;
        inner.refuse_forked()?;
        inner.refuse_doubt()?;
        if !options.dry_run && !inner.changeable {
            return Err(inner.why_unchangeable());
        }
        let store = &inner.store;
        let current = reclaims(store).run.lock().clone();
        if let Some(run) = current.filter(|run| run.policy.is_some() && !options.dry_run) {
            self.refuse_waiting(&[])?;
            refuse_within(store, self.name())?;
            let mut members = run.members.lock();
            // The run waits for all of them.
            // SAFETY: members, under the turnstile.
            let all = members.list.iter().map(|member| unsafe { &*member.pool });
            if !planted(Bug::ReclaimAwaitedWithView) {
                refuse_having(all)?;
            }
            members.list.iter_mut().for_each(|member| member.target |= member.id == self.id());
            drop(members);
            if let Some(outcome) = run.outcome(self.id()) {
                return Ok(outcome?);
            }
        }
        let access = if inner.handle.is_writable() { Access::ReadWrite } else { Access::ReadOnly };
        let others: Vec<Arc<PoolInner>> = store
            .store
            .pools()
            .iter()
            .filter(|info| info.record.id != self.id())
            .map(|info| {
                pools_of(store).find_or_open(store, &info.record.name, access, Authority::Internal)
            })
            .collect::<Result<_>>()?;
        self.refuse_waiting(&others)?;
        let run = begin_run(store, None, options.dry_run, Some(self.id()))?;
        let ReclaimOptions { hold, progress, .. } = options;
        Driver::new(&run, hold, progress).drive();
        match run.outcome(self.id()) {
            Some(outcome) => Ok(outcome?),
            None => Err(Error::from(ReclaimRefused::Cancelled)),
        }
    }

    /// Refuses to wait for this thread's own views and transactions.
    fn refuse_waiting(&self, others: &[Arc<PoolInner>]) -> Result<()> {
        refuse_having(others.iter().map(|pool| &**pool).chain([&*self.inner]))
    }
}

/// Refuses to wait for pools that this thread has.
fn refuse_having<'p>(pools: impl IntoIterator<Item = &'p PoolInner>) -> Result<()> {
    match pools.into_iter().find(|pool| covers_here(pool) || pool.is_viewed_here()) {
        Some(pool) => Err(Error::WouldDeadlock {
            pool: pool.handle.name().to_string(),
            by: "a view or a transaction",
        }),
        None => Ok(()),
    }
}
