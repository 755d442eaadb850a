//! One call: what is there already, and the way from its state to the end.

use super::scan::{Budget, Copier};
use super::table::{self, BLOCKS_MAX, Begin, Count, Table};
use super::{CopiedPool, CopyOptions, CopyPhase, CopyProgress, Names, OnCopyProgress};
use crate::copy_refused::CopyRefused;
use crate::copying::{self, CLEARING, Copying};
use crate::error::{Error, Result};
use crate::frames::Covered;
use crate::names::DIRECTORY_ROOT;
use crate::open_pool::{Pool, PoolInner};
use crate::open_pools::{Authority, pools_of};
use crate::ptr::Ptr;
use crate::running::run;
use crate::session::Inner;
use crate::tx::Tx;
use cenote_heap::logged::LoggedError;
use cenote_heap::{Inspect as _, OpenError};
use cenote_layout::catalog::PoolMode;
use cenote_layout::heap::{ROOT_COUNT, RootEntry};
use cenote_medium::planted::{Bug, CopyBug, planted};
use cenote_store::{Access, PoolOptions, StoreError};
use std::sync::Arc;

/// Roots that one transaction looks at, and parts of the table that one frees.
const STEP: u16 = 64;
/// Bytes of stores after which a pool in shadowed mode is psynced.
const PSYNC_BYTES: u64 = 16 << 20;
/// Blocks between two reports of a comparison.
const COMPARED: u64 = 256;

/// Makes a copy, or goes on with one.
pub(super) fn copy(
    store: &Arc<Inner>,
    names: Names<'_>,
    options: CopyOptions<'_>,
) -> Result<CopiedPool> {
    let pools = pools_of(store);
    // No other thread opens the new pool before it says that it is a copy.
    let held = pools.hold(vec![names.pool.into()]);
    if pools.has(names.pool) {
        return Err(CopyRefused::Open { pool: names.pool.into() }.into());
    }
    let CopyOptions { pool: wanted, batch, progress } = options;
    let there = store.store.pools().iter().any(|info| info.record.name == names.pool);
    let there = if there { Some(fillable(store, names, &wanted)?) } else { None };
    if let Some((new, Some(header))) = &there {
        // SAFETY: a live block, which only a copy changes: this one.
        if unsafe { header.as_ref() }.state == CLEARING {
            drop(held);
            // The source is not needed, and may be gone.
            return Run { names, new, batch, progress, resumed: true }.clear();
        }
    }
    let source = source(store, names.from)?;
    // Until the end: all that this call reads is of one moment.
    let view = source.read()?;
    let is_new = there.is_none();
    let (new, header) = match there {
        Some(there) => there,
        None => {
            store.store.create_pool(names.pool, &wanted)?;
            (opened(store, names, &wanted)?, None)
        }
    };
    let mut run = Run { names, new: &new, batch, progress, resumed: header.is_some() };
    let header = match header.map_or_else(|| run.begin(&source.inner), Ok) {
        Ok(header) => header,
        Err(error) => {
            // An empty pool that this call has made is of no use.
            drop(new);
            if is_new {
                let _ = store.store.remove_pool(names.pool);
            }
            return Err(error);
        }
    };
    drop(held);
    let done = run.copy(&source.inner, header).and_then(|()| run.clear());
    drop(view);
    done
}

/// The pool to be copied. A change of a logged heap that a crash broke off is undone first, which
/// takes a writer.
fn source(store: &Arc<Inner>, name: &str) -> Result<Pool> {
    let open = |access| pools_of(store).find_or_open(store, name, access, Authority::Key(None));
    let inner = match open(Access::ReadOnly) {
        Err(Error::HeapOpen(OpenError::Logged(LoggedError::ReadOnly))) => open(Access::ReadWrite),
        opened => opened,
    }?;
    Ok(Pool { inner })
}

fn opened(store: &Arc<Inner>, names: Names<'_>, wanted: &PoolOptions) -> Result<Pool> {
    let by = Authority::Copying(wanted.key.as_deref());
    let inner = pools_of(store).find_or_open(store, names.pool, Access::ReadWrite, by)?;
    Ok(Pool { inner })
}

/// A pool that is there, if a copy can go on in it or begin in it.
fn fillable(
    store: &Arc<Inner>,
    names: Names<'_>,
    wanted: &PoolOptions,
) -> Result<(Pool, Option<Ptr<Copying>>)> {
    let pool = opened(store, names, wanted)?;
    pool.inner.refuse_doubt()?;
    let header = copying::unfinished(&pool.inner)?;
    if header.is_none() && !is_empty(&pool.inner)? {
        return Err(StoreError::PoolExists { name: names.pool.into() }.into());
    }
    let (found, asked) = (pool.inner.handle.record().heap, wanted.heap);
    if found != asked {
        return Err(CopyRefused::Kind { pool: names.pool.into(), found, asked }.into());
    }
    Ok((pool, header))
}

/// Whether a pool has no block and no root.
fn is_empty(pool: &PoolInner) -> Result<bool> {
    for index in 0..ROOT_COUNT as u16 {
        if pool.root_entry(index)? != RootEntry::NONE {
            return Ok(false);
        }
    }
    Ok(pool.heap.stats()?.blocks == 0)
}

/// A copy on its way.
struct Run<'a, 'o> {
    names: Names<'a>,
    new: &'a Pool,
    batch: usize,
    progress: Option<&'o mut OnCopyProgress<'o>>,
    resumed: bool,
}

impl Run<'_, '_> {
    fn transaction<R>(&self, body: impl FnOnce(&mut Tx<'_>) -> Result<R>) -> Result<R> {
        run(Covered::One(&self.new.inner), body)
    }

    fn is_shadowed(&self) -> bool {
        self.new.inner.handle.record().mode == PoolMode::Shadowed
    }

    /// Between two transactions.
    fn between(&mut self, phase: CopyPhase, at: CopyProgress) -> Result<()> {
        let stops = self
            .progress
            .as_mut()
            .is_some_and(|progress| progress(&CopyProgress { phase, ..at }).is_break());
        if self.is_shadowed() && (stops || self.new.unsynced_bytes() >= PSYNC_BYTES) {
            self.new.psync()?;
        }
        if !stops {
            return Ok(());
        }
        let Names { from, pool } = self.names;
        Err(CopyRefused::Stopped { pool: pool.into(), from: from.into() }.into())
    }

    /// Makes the new pool an unfinished copy.
    fn begin(&self, source: &PoolInner) -> Result<Ptr<Copying>> {
        let blocks = source.heap.stats()?.blocks;
        if blocks > BLOCKS_MAX {
            let from = self.names.from.into();
            return Err(CopyRefused::TooMany { from, blocks, most: BLOCKS_MAX }.into());
        }
        let roots: Vec<RootEntry> =
            (0..ROOT_COUNT as u16).map(|index| source.root_entry(index)).collect::<Result<_>>()?;
        let begin = Begin {
            store: source.store.store.uuid().0,
            source: source.handle.id(),
            name: self.names.from,
            blocks,
            roots: &roots,
        };
        self.transaction(|tx| table::begin(tx, &begin))?;
        self.header()
    }

    fn header(&self) -> Result<Ptr<Copying>> {
        let header = copying::unfinished(&self.new.inner)?;
        header.ok_or_else(|| self.new.inner.dangling::<Copying>(0))
    }

    /// From *copying* to *clearing*.
    fn copy(&mut self, source: &PoolInner, header: Ptr<Copying>) -> Result<()> {
        let table = Table::new(&self.new.inner, header);
        let known = table.header();
        if known.source != source.handle.id().0 || known.store != source.store.store.uuid().0 {
            let (pool, from) = (self.names.pool.into(), known.source_name());
            return Err(CopyRefused::OtherSource { pool, from }.into());
        }
        let mut copier = Copier::new(source, &self.new.inner, table, self.names);
        if self.resumed {
            self.compare(&copier)?;
        }
        for first in (0..ROOT_COUNT as u16).step_by(STEP.into()) {
            let mut budget = Budget::new(self.batch);
            self.transaction(|tx| copier.find_roots(tx, first..first + STEP, &mut budget))?;
        }
        self.between(CopyPhase::Copying, copier.progress())?;
        loop {
            // An error takes the transaction back, and ends the call.
            let budget = Budget::new(self.batch);
            let all = self.transaction(|tx| copier.scan(tx, budget))?;
            self.between(CopyPhase::Copying, copier.progress())?;
            if all {
                break;
            }
        }
        if planted(Bug::Copy(CopyBug::RootsLate)) {
            self.transaction(|tx| copier.table.set(tx, Count::State, CLEARING))?;
        }
        for first in (0..ROOT_COUNT as u16).step_by(STEP.into()) {
            self.transaction(|tx| set_roots(tx, &copier, first..first + STEP))?;
        }
        self.transaction(|tx| copier.table.set(tx, Count::State, CLEARING))
    }

    /// Looks whether the source is as an earlier call saw it.
    fn compare(&mut self, copier: &Copier<'_>) -> Result<()> {
        copier.compare_roots()?;
        let found = copier.table.header().count;
        for number in 0..found {
            if number.is_multiple_of(COMPARED) {
                let at = CopyProgress { blocks: number, found, ..CopyProgress::default() };
                self.between(CopyPhase::Comparing, at)?;
            }
            copier.compare(number)?;
        }
        Ok(())
    }

    /// From *clearing* to the end.
    fn clear(&mut self) -> Result<CopiedPool> {
        let table = Table::new(&self.new.inner, self.header()?);
        let (blocks, bytes) = (table.header().count, table.header().bytes);
        while self.transaction(|tx| table.free_parts(tx, STEP.into()))? {
            let at = CopyProgress { blocks, found: blocks, ..CopyProgress::default() };
            self.between(CopyPhase::Clearing, at)?;
        }
        self.transaction(|tx| table.end(tx))?;
        if self.is_shadowed() && !planted(Bug::Copy(CopyBug::EndNotPsynced)) {
            let done = self.new.psync();
            done.map_err(|source| Error::NotPsynced { source: Box::new(source) })?;
        }
        let handle = &self.new.inner.handle;
        Ok(CopiedPool {
            id: handle.id(),
            name: self.names.pool.into(),
            heap: handle.record().heap,
            blocks,
            bytes,
            resumed: self.resumed,
        })
    }
}

/// Sets some roots of the new pool. Where the last one leads, the work header keeps until the end.
fn set_roots(tx: &mut Tx<'_>, copier: &Copier<'_>, indexes: core::ops::Range<u16>) -> Result<()> {
    let pool = tx.first_pool();
    for index in indexes {
        let root = copier.new_root(index)?;
        if index == DIRECTORY_ROOT {
            copier.table.set_last(tx, root)?;
        } else if pool.root_entry(index)? != root {
            tx.write_root_slot(pool, index, root)?;
        }
    }
    Ok(())
}
