//! The state that the handles of one open pool share.

use crate::kernel::interface::report::{Damage, PoolStart};
use crate::kernel::puddles::opaque_part::OpaquePart;
use crate::kernel::puddles::puddle::Puddle;
use cenote_layout::catalog::PoolRecord;
use core::ptr::NonNull;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// What the handles of one pool share.
#[derive(Debug)]
pub(crate) struct PoolCore {
    record: PoolRecord,
    /// In index order. They live until the store is dropped, and every handle holds the store.
    puddles: RwLock<Vec<NonNull<Puddle>>>,
    damage: Vec<Damage>,
    start: PoolStart,
    /// What else its opener knows of it.
    part: OpaquePart,
    /// Once a daemon has granted the pool to this process beside others.
    sharing: OnceLock<Sharing>,
}

/// A pool that other processes write too.
#[derive(Debug)]
pub(crate) struct Sharing {
    /// What the daemon calls this process.
    pub(crate) me: u64,
    /// Names of images that have ended, and whose logs are replayed: for ever.
    pub(crate) ended: Mutex<BTreeSet<u64>>,
    /// Until when images whose processes live are believed to live, without asking the daemon.
    believed: Mutex<BTreeMap<u64, Instant>>,
}

/// How often the daemon is asked at most about images whose processes live.
const ASK_EVERY: Duration = Duration::from_millis(250);

impl Sharing {
    fn believed(&self) -> MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.believed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is time to ask about an image whose process lives.
    pub(crate) fn is_due(&self, who: u64) -> bool {
        let now = Instant::now();
        let mut believed = self.believed();
        let until = believed.entry(who).or_insert(now + ASK_EVERY);
        let due = now >= *until;
        if due {
            *until = now + ASK_EVERY;
        }
        due
    }

    /// The daemon says that these live.
    pub(crate) fn believe(&self, living: &[u64]) {
        let until = Instant::now() + ASK_EVERY;
        *self.believed() = living.iter().map(|who| (*who, until)).collect();
    }
}

// SAFETY: the pointers are to `Puddle`s, which are `Sync` and outlive every handle.
unsafe impl Send for PoolCore {}

// SAFETY: as above.
unsafe impl Sync for PoolCore {}

impl PoolCore {
    /// What a daemon granted of a pool.
    pub(crate) fn granted(
        record: PoolRecord,
        puddles: Vec<NonNull<Puddle>>,
        start: PoolStart,
    ) -> Self {
        Self::opened(record, puddles, start, Vec::new(), OpaquePart::default())
    }

    /// What this process opened itself.
    pub(crate) fn opened(
        record: PoolRecord,
        puddles: Vec<NonNull<Puddle>>,
        start: PoolStart,
        damage: Vec<Damage>,
        part: OpaquePart,
    ) -> Self {
        Self {
            record,
            puddles: RwLock::new(puddles),
            damage,
            start,
            part,
            sharing: OnceLock::new(),
        }
    }

    /// From now on others write the pool too; `me` is this process.
    pub(crate) fn share(&self, me: u64) {
        let _ =
            self.sharing.set(Sharing { me, ended: Mutex::default(), believed: Mutex::default() });
    }

    pub(crate) fn sharing(&self) -> Option<&Sharing> {
        self.sharing.get()
    }

    pub(crate) fn puddles(&self) -> RwLockReadGuard<'_, Vec<NonNull<Puddle>>> {
        self.puddles.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.get().is_some()
    }

    pub(crate) fn add_puddle(&self, puddle: NonNull<Puddle>) {
        self.puddles.write().unwrap_or_else(PoisonError::into_inner).push(puddle);
    }

    pub(crate) fn record(&self) -> &PoolRecord {
        &self.record
    }

    pub(crate) fn damage(&self) -> &[Damage] {
        &self.damage
    }

    pub(crate) fn start(&self) -> PoolStart {
        self.start
    }

    /// What its opener has given with it.
    pub(crate) fn part(&self) -> &OpaquePart {
        &self.part
    }

    /// The pool has been granted once more.
    pub(crate) fn set_puddles(&self, puddles: Vec<NonNull<Puddle>>) {
        *self.puddles.write().unwrap_or_else(PoisonError::into_inner) = puddles;
    }
}
