//! The members of a run, and the turnstile.

use super::{Outcome, ReclaimPolicy};
use crate::checking::{drop_left, refuse_within};
use crate::error::{ReclaimRefused, Result};
use crate::extensions::Extension;
use crate::open_pool::{PoolInner, PoolWatcher};
use crate::open_pools::pools_of;
use crate::registry::StoreTypes;
use crate::session::Inner;
use crate::unwaiting::Unwaiting;
use cenote_heap::{Reclaim, ReclaimError};
use cenote_layout::id::{PoolId, TypeId};
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, planted};
use cenote_store::PoolStart;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use core::time::Duration;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How long a slice waits for a pool's lock: long enough for the lock to be handed over where many
/// want it.
const WAIT: Duration = Duration::from_millis(10);

/// What is counted over all pools.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) slices: u64,
    pub(super) longest_hold: Duration,
    pub(super) reached: BTreeMap<PoolId, u64>,
}

impl Totals {
    /// Runs something, and then lets go of a lock.
    pub(super) fn timed<T>(&mut self, body: impl FnOnce() -> T, release: impl FnOnce()) -> T {
        let began = Instant::now();
        let result = body();
        release();
        self.slices += 1;
        self.longest_hold = self.longest_hold.max(began.elapsed());
        result
    }
}

/// The store's registry, for a heap that must not keep the store open.
struct TypesOf(Weak<Inner>);

impl cenote_heap::Types for TypesOf {
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        StoreTypes(&self.0.upgrade()?.store).record(id)
    }

    fn filter(&self, id: TypeId) -> Option<cenote_heap::trace::Filter> {
        StoreTypes(&self.0.upgrade()?.store).filter(id)
    }
}

/// A pool of a run.
pub(super) struct RunMember {
    pub(super) pool: *const PoolInner,
    pub(super) id: PoolId,
    name: String,
    /// Whether its leaks are given back.
    pub(super) target: bool,
}
// SAFETY: the pool is used under the turnstile only, by which it leaves before it goes away;
// `PoolInner` is `Sync`.
unsafe impl Send for RunMember {}

#[derive(Default)]
pub(super) struct Members {
    pub(super) list: Vec<RunMember>,
    sealed: bool,
    over: bool,
    /// A member that left before the run was over.
    left: Option<String>,
    outcomes: BTreeMap<PoolId, Outcome>,
}

impl Members {
    /// A pool of the store that is no member.
    pub(super) fn missing(&self) -> Option<String> {
        // SAFETY: a member; the caller has the turnstile.
        let pools = unsafe { &*self.list.first()?.pool }.store.store.pools();
        let is_member = |id: PoolId| self.list.iter().any(|member| member.id == id);
        pools
            .into_iter()
            .map(|info| info.record)
            .find(|pool| !is_member(pool.id))
            .map(|pool| pool.name)
    }
}

/// See the module's head.
pub(crate) struct ReclaimRun {
    /// The turnstile.
    pub(super) members: Mutex<Members>,
    ended: Condvar,
    pub(super) cancelled: AtomicBool,
    pub(super) policy: Option<ReclaimPolicy>,
    pub(super) dry_run: bool,
}

/// Of a store.
#[derive(Default)]
pub(crate) struct Reclaims {
    /// Whether a transaction may have run in this session.
    used: AtomicBool,
    /// The last run.
    pub(super) run: Mutex<Option<Arc<ReclaimRun>>>,
}

/// The runs of a store.
pub(super) fn reclaims(store: &Inner) -> &Reclaims {
    store.extensions.get()
}

impl Extension for Reclaims {
    /// Two locked instructions.
    fn used(&self) {
        self.used.store(true, Ordering::SeqCst);
        // Either the thread that begins a run sees this, or the transactions of this thread see
        // that changes are recorded.
        fence(Ordering::SeqCst);
    }

    fn closing(&self) {
        if let Some(run) = self.run.lock().take() {
            run.cancelled.store(true, Ordering::Relaxed);
        }
    }
}

impl PoolWatcher for Reclaims {
    fn opened(&self, pool: &PoolInner) {
        let Some(run) = self.run.lock().clone() else { return };
        let target = match run.policy {
            Some(ReclaimPolicy::Always) => true,
            Some(ReclaimPolicy::AfterCrash) => matches!(pool.handle.start(), PoolStart::Dirty(_)),
            None => false,
        };
        run.join(pool, target && pool.changeable);
    }

    fn closing(&self, pool: &PoolInner) {
        let Some(run) = self.run.lock().clone() else { return };
        let mut members = run.members.lock();
        if let Some(at) = members.list.iter().position(|member| core::ptr::eq(member.pool, pool)) {
            let member = members.list.swap_remove(at);
            members.left.get_or_insert(member.name);
        }
    }
}

/// Ends a run, also if its thread panics.
pub(super) struct Ending<'r> {
    pub(super) run: &'r ReclaimRun,
    pub(super) outcomes: BTreeMap<PoolId, Outcome>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut members = self.run.members.lock();
        for member in members.list.drain(..) {
            // SAFETY: a member, under the turnstile.
            let pool = unsafe { &*member.pool };
            if let Some(heap) = pool.heap.can::<dyn Reclaim>() {
                heap.end_reclaim();
            }
            if member.target {
                self.outcomes.entry(member.id).or_insert(Err(ReclaimRefused::Cancelled));
            }
        }
        members.outcomes = core::mem::take(&mut self.outcomes);
        members.over = true;
        self.run.ended.notify_all();
    }
}

/// How a slice ended.
pub(super) enum Slice<T> {
    Done(T),
    /// The pool was in use all the time.
    Busy,
}

/// How a pool's lock is held in a slice.
#[derive(Clone, Copy)]
pub(super) enum Hold {
    No,
    Shared,
    Exclusive,
}

impl ReclaimRun {
    fn new(policy: Option<ReclaimPolicy>, dry_run: bool) -> Arc<Self> {
        Arc::new(Self {
            members: Mutex::default(),
            ended: Condvar::new(),
            cancelled: AtomicBool::new(false),
            policy,
            dry_run,
        })
    }

    fn join(&self, pool: &PoolInner, target: bool) {
        let mut members = self.members.lock();
        if members.over
            || members.sealed
            || members.list.iter().any(|other| core::ptr::eq(other.pool, pool))
        {
            return;
        }
        if let Some(heap) = pool.heap.can::<dyn Reclaim>() {
            heap.begin_reclaim(Arc::new(TypesOf(Arc::downgrade(&pool.store))));
        }
        let (id, name) = (pool.handle.id(), pool.handle.name().to_string());
        members.list.push(RunMember { pool, id, name, target });
    }

    /// Why it cannot go on.
    fn refusal(&self, members: &Members) -> Option<ReclaimRefused> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Some(ReclaimRefused::Cancelled);
        }
        members.left.clone().map(|pool| ReclaimRefused::Closed { pool })
    }

    /// Waits until every pool of the store is a member, and seals the run. `Ok(None)`: not yet.
    pub(super) fn seal(&self) -> core::result::Result<Option<Vec<PoolId>>, ReclaimRefused> {
        let mut members = self.members.lock();
        if let Some(refused) = self.refusal(&members) {
            return Err(refused);
        }
        if members.list.is_empty() {
            return Ok(None);
        }
        for member in &members.list {
            // SAFETY: a member, under the turnstile.
            if let Err(error) = unsafe { &*member.pool }.refuse_doubt() {
                let (pool, why) = (member.name.clone(), error.to_string());
                return Err(ReclaimRefused::Heap { pool, why });
            }
        }
        if let Some(other) = members.missing() {
            let why = "it is not open: open it too".into();
            let waits = self.policy.is_some();
            return if waits { Ok(None) } else { Err(ReclaimRefused::OtherPool { other, why }) };
        }
        members.sealed = true;
        Ok(Some(members.list.iter().map(|member| member.id).collect()))
    }

    /// Does something with a member.
    pub(super) fn slice<T>(
        &self,
        id: PoolId,
        hold: Hold,
        totals: &mut Totals,
        body: impl FnOnce(&PoolInner) -> core::result::Result<T, ReclaimError>,
    ) -> core::result::Result<Slice<T>, ReclaimRefused> {
        // Filters are the program's code. Until the end of the slice this thread has the turnstile.
        let unwaiting = (!planted(Bug::SliceWaits)).then(Unwaiting::begin);
        let members = self.members.lock();
        if let Some(refused) = self.refusal(&members) {
            return Err(refused);
        }
        let Some(member) = members.list.iter().find(|member| member.id == id) else {
            return Err(ReclaimRefused::Cancelled);
        };
        // SAFETY: a member, under the turnstile.
        let pool = unsafe { &*member.pool };
        let done = |result: core::result::Result<T, ReclaimError>| {
            result.map(Slice::Done).map_err(|error| {
                let (pool, why) = (member.name.clone(), error.to_string());
                ReclaimRefused::Heap { pool, why }
            })
        };
        let result = match hold {
            Hold::No => done(body(pool)),
            Hold::Shared => match pool.lock.try_read_for(WAIT) {
                Some(guard) => totals.timed(|| done(body(pool)), || drop(guard)),
                None => Ok(Slice::Busy),
            },
            Hold::Exclusive => match pool.lock.try_write_for(WAIT) {
                Some(guard) => totals.timed(|| done(body(pool)), || drop(guard)),
                None => Ok(Slice::Busy),
            },
        };
        // A thread that closes a pool gets the lock before the next slice.
        MutexGuard::unlock_fair(members);
        drop(unwaiting);
        drop_left();
        result
    }

    /// Waits for the end, and tells what came of it for one pool.
    pub(super) fn outcome(&self, id: PoolId) -> Option<Outcome> {
        let mut members = self.members.lock();
        while !members.over {
            self.ended.wait(&mut members);
        }
        members.outcomes.get(&id).cloned()
    }
}

/// A run of which all open pools are members. Changes are recorded when this returns.
pub(super) fn begin_run(
    store: &Inner,
    policy: Option<ReclaimPolicy>,
    dry_run: bool,
    target: Option<PoolId>,
) -> Result<Arc<ReclaimRun>> {
    refuse_within(store, "that is reclaimed")?;
    // No thread opens a pool meanwhile.
    let list = pools_of(store).locked();
    let open: Vec<Arc<PoolInner>> = list.iter().filter_map(|(_, pool)| pool.upgrade()).collect();
    let run = {
        let mut current = reclaims(store).run.lock();
        if current.as_ref().is_some_and(|run| !run.members.lock().over) {
            return Err(ReclaimRefused::UnderWay.into());
        }
        let run = ReclaimRun::new(policy, dry_run);
        *current = Some(Arc::clone(&run));
        run
    };
    for pool in &open {
        reclaims(store).opened(pool);
    }
    if let Some(target) = target {
        let mut members = run.members.lock();
        members.list.iter_mut().for_each(|member| member.target |= member.id == target);
    }
    drop(list);
    // Handles go after the list: if one of these is the last, dropping it takes the list.
    drop(open);
    // With no pool open, nothing was made visible to others yet.
    fence(Ordering::SeqCst);
    if reclaims(store).used.load(Ordering::SeqCst) {
        drop(Ending { run: &run, outcomes: BTreeMap::new() });
        return Err(ReclaimRefused::Late.into());
    }
    Ok(run)
}
