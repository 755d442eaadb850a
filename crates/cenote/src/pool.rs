//! What a program does with a pool that it has opened.

use crate::check;
use crate::checking::{Checking, refuse_within};
use crate::error::{Error, Result};
use crate::frames::{Covered, Entered, Frame, covers_here, lock_all};
use crate::local;
use crate::names;
use crate::open_pool::{Pool, PoolInner};
use crate::open_pools::{Authority, pools_of};
use crate::patience::is_late;
use crate::persist::Persist;
use crate::process_lock::turns;
use crate::psync::after_commit;
use crate::ptr::Ptr;
use crate::reached::{Heaps, reached_from_elsewhere};
use crate::reader::{NamedRoot, Reader};
use crate::registry::StoreTypes;
use crate::running::run;
use crate::tx::Tx;
use cenote_heap::logged::SubHeapStats;
use cenote_heap::wear::{WearDamage, WearStats};
use cenote_heap::{
    BlockInfo, Damage as HeapDamage, Heap, HeapReport, HeapStats, Inspect as _, RecoveryReport,
    SuperblockInfo, Trace, TraceOptions, Trim, TrimProgress, TrimReport,
};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::heap::RootEntry;
use cenote_layout::id::PoolId;
use cenote_store::{Access, Anchor, AtRest, PoolInfo, PoolStart, StoreError, VerifiedPuddle};
use core::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Pool {
    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.handle.name()
    }

    /// How the pool is protected at rest.
    #[must_use]
    pub fn at_rest(&self) -> AtRest {
        self.inner.handle.at_rest()
    }

    /// Checks every page of a protected pool against its hash trees, as the last psync left it.
    /// `progress` gets the number of checked pages and of all pages; if it returns `false`, the
    /// check stops. Modes without a tree have no check. A pool without protection has an empty
    /// answer.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Vec<VerifiedPuddle> {
        self.inner.handle.verify(progress)
    }

    /// Copies bytes of the pool from `addr` on, as loads would. Where a load would be a bus error,
    /// because a page of a protected pool fails its check, this returns an error.
    ///
    /// # Errors
    /// [`StoreError::Sealed`] with the first page that is damaged; a range that does not lie in one
    /// of the pool's puddles; [`Error::WouldDeadlock`] in a transaction of this thread on the pool.
    pub fn read_at(&self, addr: u64, bytes: &mut [u8]) -> Result<()> {
        let _view = self.view()?;
        // SAFETY: the view keeps writers out, of this process and of others.
        Ok(unsafe { self.inner.handle.read_at(addr, bytes) }?)
    }

    /// The records to keep elsewhere, to notice a protected pool that was put back with *all* of
    /// its files; [`Pool::check_anchors`] compares. Not secret.
    #[must_use]
    pub fn anchors(&self) -> Vec<Anchor> {
        self.inner.handle.anchors()
    }

    /// Compares a protected pool with anchors that [`Pool::anchors`] returned earlier.
    ///
    /// # Errors
    /// [`Error::Store`]: it is older than that, or of another history.
    pub fn check_anchors(&self, anchors: &[Anchor]) -> Result<()> {
        Ok(self.inner.handle.check_anchors(anchors)?)
    }

    /// The pool's number in its store.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.inner.handle.id()
    }

    /// Runs a transaction. All of its changes happen, or none: none if `body` returns an error or
    /// panics, or the process dies in it. On return of `Ok` they are durable at the store's
    /// level.
    ///
    /// To abort, `body` returns an error: [`Error::Aborted`] with a reason, or one of a type that
    /// is `From<Error>`. If the compiler asks for that type, write `|tx| -> cenote::Result<_>`.
    ///
    /// Waits for views and transactions of other threads on this pool; of other processes too, if
    /// they share it ([`Access::Shared`]).
    ///
    /// # Errors
    /// What `body` returns; [`Error::WouldDeadlock`] if this thread holds a view or a transaction
    /// of the pool, or threads would wait for each other's views and transactions in a circle;
    /// [`Error::Store`] if the pool is read-only, the store poisoned, or the
    /// process a fork; [`Error::NotWhole`] if the pool is damaged; [`Error::Tx`] if the log cannot
    /// take the commit; [`Error::NotPsynced`], alone of all, *after* the commit, where a
    /// [`crate::PsyncPolicy`] asks for a psync of each.
    #[inline]
    pub fn write<R, E: From<Error>>(
        &self,
        body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let result = run(Covered::One(&self.inner), body);
        if self.inner.psync_on_commit.load(Ordering::Relaxed) > 0 && result.is_ok() {
            after_commit(&[&self.inner])?;
        }
        result
    }

    /// How this session found the pool: as it was created, closed properly, or in use when its last
    /// writer ended (RAL-6).
    #[must_use]
    pub fn start(&self) -> PoolStart {
        self.inner.handle.start()
    }

    /// The result of tracing, if this session traced the pool because power failed while it was
    /// open for writing. `freed_blocks` were allocated, but no root led to them. `dangling_blocks`
    /// are free, although a pointer leads to them.
    #[must_use]
    pub fn traced(&self) -> Option<RecoveryReport> {
        self.inner.store.traced(self.id())
    }

    /// Whether the pool was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.inner.handle.is_writable() && self.inner.wanted.writes()
    }

    /// Whether other processes may read and write the pool too, through the daemon that keeps it.
    /// Then views and transactions wait for theirs.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.handle.member().is_some()
    }

    /// Says which processes live that have the pool, and are done with if they do not: for
    /// [`locks`](cenote_heap::locks) that lie in it.
    ///
    /// # Errors
    /// [`Error::Store`]: the system does not tell this process's number, start or boot; the pool's
    /// data are write-protected, and locks are stored to without a transaction.
    pub fn owner_liveness(&self) -> Result<cenote_heap::locks::PoolLiveness> {
        self.inner.protected.refuse_locks(self.name())?;
        let failed = |error: std::io::Error| StoreError::Refused {
            kind: ErrorKind::of_system(&error),
            detail: error.to_string(),
        };
        Ok(cenote_heap::locks::PoolLiveness::new(&self.inner.handle).map_err(failed)?)
    }

    /// Its puddles that cannot be used, as opening the pool found them.
    #[must_use]
    pub fn damage(&self) -> Vec<cenote_store::Damage> {
        self.inner.handle.damage().to_vec()
    }

    /// Counts of the pool's heap.
    ///
    /// # Errors
    /// [`Error::HeapRecover`] if a puddle cannot be mapped.
    pub fn stats(&self) -> Result<HeapStats> {
        self.inner.refuse_forked()?;
        Ok(self.inner.heap.stats()?)
    }

    /// Superblocks of the pool's heap that are out of use, because their descriptors or marks are
    /// damaged. Lists those that the opening and later operations found; [`Pool::check`] checks
    /// all.
    #[must_use]
    pub fn heap_damage(&self) -> Vec<HeapDamage> {
        self.inner.heap.damage()
    }

    /// Damaged headers of the pool's heap, if it is a wear heap, and what is out of use because of
    /// them. Lists those that the opening, earlier openers and later operations found;
    /// [`Pool::check`] looks at all.
    #[must_use]
    pub fn header_damage(&self) -> Vec<WearDamage> {
        self.inner.heap.header_damage()
    }

    /// Looks for damage, leaks, dangling pointers, and bytes that are invalid for their type (a
    /// `bool` of 2, a `NonZero` of 0, a discriminant of no variant). Changes nothing. Waits for
    /// transactions; views may go on.
    ///
    /// A block that only another pool leads to is no leak. So if a block looks like a leak, the
    /// check also reads all pools of the store that it can open, and waits for transactions on
    /// them. A block counts as a leak if only a pool leads to it that cannot be opened, or on which
    /// this thread has a transaction.
    ///
    /// The check follows the links of leaks too, inside the pool: a program may have kept the
    /// handle of one.
    ///
    /// # Errors
    /// [`Error::HeapRecover`] if a puddle cannot be mapped; [`Error::WouldDeadlock`] in a
    /// transaction of this thread on this pool.
    pub fn check(&self) -> Result<HeapReport> {
        self.check_with(TraceOptions::default())
    }

    /// [`Pool::check`] by as many threads as `options` allow, with reports of progress. Progress
    /// begins anew if the check has to read other pools too.
    ///
    /// # Errors
    /// As [`Pool::check`]; [`Error::HeapRecover`] if `progress` breaks it off.
    pub fn check_with(&self, mut options: TraceOptions<'_>) -> Result<HeapReport> {
        self.inner.handle.ensure_readable()?;
        let _checking = Checking::begin(&self.inner.store, self.name())?;
        {
            let _view = self.view()?;
            let types = StoreTypes(&self.inner.store.store);
            let mut report = self.inner.heap.check_from(Some(&types), &[], options.again())?;
            if report.leaked_blocks == 0 {
                report.values = Some(self.inner.check_values(options)?);
                return Ok(report);
            }
        }
        check::with_other_pools(self, options)
    }

    /// Gives the space of the pool's free superblocks (64 KiB each) back to the file system. The
    /// pool's size and its addresses stay; an allocation that needs the space again takes it,
    /// or fails as on any full disk. Transactions go on meanwhile, and none waits.
    ///
    /// Free blocks in superblocks with allocated ones keep their space, and so do the puddles' own
    /// metadata.
    ///
    /// # Errors
    /// [`Error::Store`] if the pool is read-only, the store poisoned, or the process a fork;
    /// [`Error::NotWhole`] if it is damaged; [`Error::HeapRecover`] if the file system reports
    /// an error.
    pub fn trim(&self) -> Result<TrimReport> {
        self.trim_with(&mut |_| ControlFlow::Continue(()))
    }

    /// [`Pool::trim`] with reports of progress, which can end it early.
    ///
    /// # Errors
    /// As [`Pool::trim`].
    pub fn trim_with(
        &self,
        progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
    ) -> Result<TrimReport> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner.store, self.name())?;
        if !self.inner.changeable {
            return Err(self.inner.why_unchangeable());
        }
        let heap = self.inner.heap.capability::<dyn Trim>();
        Ok(heap.map_err(cenote_heap::RecoverError::from)?.trim_with(progress)?)
    }

    /// Frees the leaks of this pool: allocated blocks that no root of any pool leads to. Opens all
    /// pools of the store, and waits for views and transactions on all of them.
    ///
    /// A block that is not allocated stays free, even if a pointer leads to it.
    ///
    /// All leaks are freed at one moment. If the process dies meanwhile, the next opener finds all
    /// of them, or none.
    ///
    /// # Errors
    /// [`Error::HeapRecover`]; [`Error::WouldDeadlock`]; [`Error::NotWhole`] if some pool is
    /// damaged, because what it has lost may lead to values of this one; as
    /// [`crate::Store::pool_with`], if some pool cannot be opened.
    pub fn collect(&self) -> Result<RecoveryReport> {
        self.inner.refuse_forked()?;
        let store = &self.inner.store;
        let pools = store.store.pools();
        let open = |info: &PoolInfo| {
            let name = &info.record.name;
            match pools_of(store).find_or_open(store, name, Access::ReadWrite, Authority::Internal)
            {
                // Another thread has removed it meanwhile: nothing there leads here any more.
                Err(Error::Store(StoreError::PoolUnknown { .. })) => None,
                opened => Some(opened),
            }
        };
        let pools: Vec<Arc<PoolInner>> = pools.iter().filter_map(open).collect::<Result<_>>()?;
        if let Some(pool) = pools.iter().find(|pool| covers_here(pool) || pool.is_viewed_here()) {
            return Err(Error::WouldDeadlock {
                pool: pool.handle.name().to_string(),
                by: "a view or a transaction",
            });
        }
        pools.iter().try_for_each(|pool| pool.refuse_doubt())?;
        // Marks are computed from what is reached: not from half of a pool.
        pools.iter().try_for_each(|pool| pool.handle.ensure_readable())?;
        let all: Vec<&PoolInner> = pools.iter().map(|pool| &**pool).collect();
        // Filters are the program's code: their calls are refused as in a transaction, and so are
        // calls that wait for the heap.
        let _within = Checking::begin(&self.inner.store, self.name())?;
        let frame = Frame::new(Covered::Many(&all));
        let _entered = Entered::new(&frame);
        let _guards = lock_all(&all)?;
        let _turns = turns(&all)?;
        let heaps: Heaps<'_> = all.iter().map(|pool| (pool.handle.id(), &pool.heap)).collect();
        let reached = reached_from_elsewhere(&store.store, &StoreTypes(&store.store), &heaps)
            .map_err(|(_, error)| error)?;
        let roots: Vec<u64> = reached.get(&self.id()).into_iter().flatten().copied().collect();
        let heap = self.inner.heap.capability::<dyn Trace>();
        let heap = heap.map_err(cenote_heap::RecoverError::from)?;
        let mut options = TraceOptions::default();
        options.believe_marks = true;
        Ok(heap.recover_with(&StoreTypes(&store.store), &roots, options)?)
    }

    /// The root of this name; see [`Reader::named_root`].
    ///
    /// # Errors
    /// As [`Pool::read`] and [`Reader::named_root`].
    pub fn named_root<T: Persist>(&self, name: &str) -> Result<Option<Ptr<T>>> {
        self.read()?.named_root(name)
    }

    /// The roots that have names, in the order of the names. Works for pools whose values are not
    /// shown, too: a name and an address are good for people, not for programs to follow.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in a transaction of this thread on this pool; [`Error::Store`] in a
    /// forked process.
    pub fn named_roots(&self) -> Result<Vec<NamedRoot>> {
        let view = self.view()?;
        names::list(&view, &self.inner)
    }

    /// The pool as blocks and roots, for tools.
    #[must_use]
    pub fn heap(&self) -> Blocks<'_> {
        Blocks(&self.inner)
    }

    /// The heap, for the raw interface.
    ///
    /// # Safety
    /// The caller keeps what safe code relies on:
    ///
    /// * a block that a pointer or a root leads to holds a value of its type before the pool's lock
    ///   is free;
    /// * a block that a reference leads to is not freed. (Allocation and roots are safe functions
    ///   of [`Heap`] because they alone break nothing; but values are read from the blocks and
    ///   roots that they leave.)
    /// * while leaks are looked for ([`crate::Store::reclaim_in_background`]), a change without a
    ///   transaction is announced by [`cenote_heap::reclaim::before_change`], and made under the
    ///   pool's lock.
    ///
    /// At `power`, an allocation or a free without a transaction survives a loss of power only if
    /// its mark was flushed and fenced before anything leads to the block, or before its place is
    /// given out: see [`Heap::alloc_with`]. A transaction does that.
    #[must_use]
    #[inline]
    pub unsafe fn raw_heap(&self) -> &dyn Heap {
        local::note_used(&self.inner.store);
        self.inner.heap.as_kind()
    }
}

/// A pool as blocks and roots, none of which can be changed; see [`Pool::heap`].
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'p>(&'p PoolInner);

impl Blocks<'_> {
    /// Calls `visit` for every allocated block, in order of addresses within a puddle; see
    /// [`cenote_heap::Inspect::walk`].
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    pub fn walk(
        &self,
        visit: &mut dyn FnMut(BlockInfo),
    ) -> core::result::Result<(), cenote_heap::RecoverError> {
        self.0.heap.walk(visit)
    }

    /// Calls `visit` for every superblock, in order of addresses within a puddle: what it is used
    /// for, and how full it is.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    pub fn superblocks(
        &self,
        visit: &mut dyn FnMut(&SuperblockInfo),
    ) -> core::result::Result<(), cenote_heap::RecoverError> {
        self.0.heap.traced().map_or(Ok(()), |heap| heap.superblocks(visit))
    }

    /// Counts of a wear heap, and the milliseconds that a freed block waits there; `None`: it is of
    /// another kind. All of it is scanned.
    #[must_use]
    pub fn wear(&self) -> Option<(WearStats, u32)> {
        self.0.heap.wear().map(|heap| (heap.stats(), heap.wait_ms()))
    }

    /// Numbers and counts of the sub-heaps of a logged heap; none of a traced one.
    ///
    /// # Errors
    /// The metadata are damaged.
    pub fn sub_heaps(
        &self,
    ) -> core::result::Result<Vec<(u32, SubHeapStats)>, cenote_heap::RecoverError> {
        self.0.heap.sub_heaps()
    }

    /// The allocated block that contains `addr`, if one does.
    #[must_use]
    pub fn owner(&self, addr: u64) -> Option<BlockInfo> {
        self.0.heap.owner(addr)
    }

    /// Numbered root `index` of 1,024, of any type. Waits for a transaction of another thread on
    /// the pool, which may be changing it.
    ///
    /// # Errors
    /// There is no such root.
    pub fn root(&self, index: u16) -> core::result::Result<RootEntry, cenote_heap::RootError> {
        let Self(pool) = self;
        loop {
            // This thread's own transaction has the lock. One that waits for this thread does not
            // go on meanwhile.
            let held = (!covers_here(pool)).then(|| (pool.lock_past_writers(), pool.read_turn()));
            let late = held.as_ref().is_some_and(|(guard, turn)| is_late(guard) || is_late(turn));
            let root = pool.heap.root(index);
            // A transaction that waits for no other one may be setting it.
            if !late || !matches!(root, Err(cenote_heap::RootError::Damaged { .. })) {
                return root;
            }
        }
    }
}
