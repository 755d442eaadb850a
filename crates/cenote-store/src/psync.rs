//! Psyncs pools in shadowed mode (PMO-3 for pools). Invariant: after a loss of power every pool is,
//! with all its puddles, as its last psync left it; pools that were psynced together, as the last
//! psync of them together left them, or as a later one of each.
//!
//! # The argument
//!
//! A pool has *shadows* (its puddle files, mapped shared) and *primaries* ([`crate::shadow`]). One
//! psync, whose steps 2 to 6 are the engine's (`cenote-shadow`):
//!
//! 1. *Entered.* Psyncs of one pool follow each other ([`Gate`]); those of different pools overlap
//!    and share syncs of the journal.
//! 2. *Held.* No transaction runs on the pools, because the caller sees to that. The notes of
//!    stored pages are taken, these pages are protected again, then copied. That is all that
//!    writers wait for: system calls in memory, no device.
//! 3. *Drafted.* Writers go on. The copies are compared with the primaries by lines of 64 bytes.
//!    No other psync changes these primaries (1). If a pool is protected at rest, the same record
//!    gives the root puddle's header the list of the pool's puddles, as of this psync.
//! 4. *Appended.* One record, for all pools of the psync, is written to the journal
//!    `journal.pools`.
//! 5. *Durable.* The journal is synced: **this sync commits**.
//! 6. *Applied.* The psync returns. Later the lines are written to the primaries, and these synced;
//!    a psync that compares with a primary meanwhile lays over it what is not there yet (`apply.rs`
//!    of `cenote-journal`). The journal's space is used again only after those syncs (front page of
//!    `cenote-object`, states P and C, which are these).
//!
//! *What the record holds is a state of the pool between transactions.* Copies are taken while none
//! runs. Pages that were not noted equal their primaries: a page is noted before it can be written
//! and stays so until its copy is taken, and what is copied is in the primaries before the next
//! psync of the pool compares. A psync that fails before 5 notes its pages again. So primaries and
//! record together are the pool at that quiet moment: as after a crash of processes between two
//! transactions, which every heap is adopted from without tracing.
//!
//! *Before 5* the primaries are untouched; a torn record is none. *After 5* the record is whole
//! until it is in primaries that are synced.
//!
//! *A crash of processes* leaves shadows as they were at the last store, and logs that roll back
//! what was not committed: the pool goes on from its last transaction, and primaries and journal
//! are not looked at. Notes died with the process, so the first psync compares all pages that were
//! there, before it holds any writer (`unknown`): a page that is changed meanwhile is noted by its
//! fault.
//!
//! *A loss of power* makes shadows void, and what logs say about them; `shadow.rs` goes back to
//! primaries and journal.
//!
//! *The catalog* is durable before a psync relies on it: a puddle is named by a synced batch before
//! anything is stored into it, a type before a value of it is. A puddle that was taken after the
//! last psync is, after a loss of power, as it was made: zeros.
//!
//! *A close* psyncs first and then syncs the shadows. So the next opener may begin with the
//! shadows, and a loss of power before its first psync goes back to what the close left, not
//! further.
//!
//! *Failures.* Before 5, a full disk or an I/O error: pages are noted again, nothing has changed,
//! and the next psync has all of it. A sync that fails, or a primary that cannot be written: the
//! store is poisoned, and the next open decides.
//!
//! *Stores through another mapping* of a shadow, of which no fault tells, are noted by the code
//! that makes them, each before its operation returns: so before a quiet moment. Beside a psync,
//! none is missed ([`cenote_protect::StoreNotes`] has the argument). A daemon's client leaves out
//! pages that cannot be read where they are mapped: nothing has changed them.
//!
//! *Stray writes.* A store that comes between taking notes and protecting (2) is in the copy,
//! because that is made last; one after it faults and is noted. So a caller that breaks the rule
//! (2) loses no page, only the guarantee of a quiet moment.
//!
//! # Why pages are found by protection
//!
//! Userfaultfd in asynchronous mode would be cheaper (`cenote-object` uses it), but it keeps its
//! notes in page tables, and the kernel drops the page tables of a *shared file mapping* when
//! memory is short: a page that was written and then evicted would be reported as clean. Protection
//! is a property of the mapping and stays.

use crate::connection::Connection;
use crate::gate::{NotIn, Psync};
use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::store::{Control, Inner, Store};
use crate::psync_part::{TakenPages, list_members};
use crate::shadow::{PuddlePart, Shadow, note_unknown};
use cenote_journal::Delivered;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::PoolId;
use cenote_medium::planted::{Bug, planted};
use cenote_shadow::Packed;
use core::any::Any;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A psync that was let in.
#[derive(Debug)]
struct Work {
    shadows: Vec<(Arc<Shadow>, u64)>,
    psync: cenote_shadow::Psync<TakenPages>,
    /// Of a daemon's client: the copies, on their way.
    packed: Option<Packed>,
    held: Duration,
    /// There was nothing to be done.
    is_empty: bool,
}

impl Work {
    /// Enters pools, which are in the order of their numbers. `before_waiting` is told how many of
    /// them it has.
    fn enter<N>(
        shadows: Vec<Arc<Shadow>>,
        before_waiting: impl Fn(usize) -> Option<N>,
    ) -> Result<Self, NotIn> {
        let (entered, psync, held) = (Vec::new(), Default::default(), Duration::ZERO);
        let mut work = Self { shadows: entered, psync, packed: None, held, is_empty: false };
        let alone = shadows.len() == 1;
        for shadow in shadows {
            let number = shadow.gate.enter(alone, || before_waiting(work.shadows.len()))?;
            work.shadows.push((shadow, number));
        }
        Ok(work)
    }

    /// Notes the pages that earlier sessions left. No transaction waits for that.
    fn prepare(&self, inner: &Inner) -> Result<(), StoreError> {
        if let Some(connection) = inner.connection() {
            return self.prepare_through(inner, connection);
        }
        for (shadow, _) in &self.shadows {
            for part in shadow.parts() {
                note_unknown(inner, &part)?;
            }
        }
        Ok(())
    }

    /// The same by a daemon's client, which is granted the files for that.
    fn prepare_through(&self, inner: &Inner, connection: &Connection) -> Result<(), StoreError> {
        for (shadow, _) in &self.shadows {
            let parts = shadow.parts();
            let unknown = |part: &&Arc<PuddlePart>| part.unknown.load(Ordering::Acquire);
            let Some(pool) = parts.iter().find(unknown).map(|part| part.puddle().pool()) else {
                continue;
            };
            let names = connection.admit_files_of(pool)?;
            let noted = parts.iter().try_for_each(|part| note_unknown(inner, part));
            names.iter().for_each(|name| connection.dismiss(name));
            noted?;
        }
        Ok(())
    }

    /// Step 2.
    fn copy(&mut self, inner: &Inner) -> Result<(), StoreError> {
        let started = Instant::now();
        let result = self.take(inner);
        self.held = started.elapsed();
        result
    }

    fn take(&mut self, inner: &Inner) -> Result<(), StoreError> {
        let parts = self.shadows.iter().flat_map(|(shadow, _)| shadow.parts());
        self.psync.hold(inner, parts.map(TakenPages::new))?;
        if inner.is_client() && !self.psync.is_empty() {
            // No transaction runs. A store that comes all the same faults, and its page is noted
            // again.
            self.packed = Some(self.psync.pack(inner)?);
        }
        Ok(())
    }

    /// Steps 3 to 6; in a daemon's client, by the daemon.
    fn commit(&mut self, inner: &Inner) -> Result<Psync, StoreError> {
        inner.check_poisoned()?; // a page that was lost may be among the copies
        if let Some(packed) = self.packed.take()
            && let Some(connection) = inner.connection()
        {
            self.psync.send(inner, packed, |ids, runs, file| {
                let Psync { seq, pages, data_bytes, journal_bytes, .. } =
                    connection.daemon.psync_pools(ids, runs, file)?;
                Ok(Delivered { seq, pages, data_bytes, journal_bytes })
            })?;
        } else if !self.psync.is_empty() {
            let what = StoreError::ReadOnly { what: "psync" };
            let journal = inner.shadows().journal().ok_or(what)?;
            let shadows = &self.shadows;
            self.psync.commit(inner, journal, |psync| {
                shadows.iter().try_for_each(|(shadow, _)| list_members(psync, shadow, inner))
            })?;
        }
        self.is_empty = self.psync.is_empty();
        Ok(self.done().unwrap_or_default())
    }

    /// What it did, once it is committed.
    fn done(&self) -> Option<Psync> {
        let nothing = self.is_empty.then(Delivered::default);
        self.psync.done().or(nothing).map(|done| {
            let Delivered { seq, pages, data_bytes, journal_bytes } = done;
            Psync { seq, pages, data_bytes, journal_bytes, held: self.held }
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let done = self.done();
        // Pages are noted again before another psync of these pools is let in.
        drop(core::mem::take(&mut self.psync));
        for (shadow, number) in self.shadows.drain(..) {
            shadow.gate.leave(number, done);
        }
    }
}

/// What [`Store::begin_psync`] came to.
#[derive(Debug)]
pub enum Begun {
    /// This psync has to be done.
    Mine(Psyncing),
    /// While this one waited, another psync of the pool began and was committed.
    Done(Psync),
    /// It would have had to wait, and must not.
    Refused,
}

/// Asked before a psync waits for another one: how many of its pools, in the order of their
/// numbers, it has; the next one it waits for. The answer lives while it waits; without one it must
/// not.
pub type BeforeWaiting<'a> = &'a dyn Fn(usize) -> Option<Box<dyn Any>>;

/// A psync in progress: [`Psyncing::copy`] while no thread writes, then [`Psyncing::commit`]. If it
/// is dropped before that, nothing has happened.
#[derive(Debug)]
#[must_use = "nothing is durable before `commit`"]
pub struct Psyncing {
    // Before the store, which its puddles live as long as.
    work: Work,
    store: Store,
}

impl Psyncing {
    /// Copies what was stored since the last psync.
    ///
    /// # Errors
    /// The medium, or no further mapping. Nothing has happened then.
    ///
    /// # Safety
    /// No thread and no other process stores into the pools meanwhile: no transaction runs on them.
    pub unsafe fn copy(&mut self) -> Result<(), StoreError> {
        self.work.copy(self.store.inner())
    }

    /// Makes durable what was copied. On return it survives loss of power; on tmpfs, the end of the
    /// process.
    ///
    /// # Errors
    /// A full disk, an I/O error: the pools' last psync stays, and the next one has these stores
    /// too. A failed sync, or a primary that cannot be written: the store is poisoned, and the next
    /// open decides.
    pub fn commit(mut self) -> Result<Psync, StoreError> {
        self.work.commit(self.store.inner())
    }
}

impl Store {
    /// Begins a psync of pools that are open for writing: after a loss of power all of them are as
    /// this psync leaves them, or none is. Waits for psyncs of these pools that are in
    /// progress, if `before_waiting` lets it.
    ///
    /// # Errors
    /// A pool in direct mode, one of another store, a read-only handle; the medium, if pages of a
    /// session before this one have to be found.
    pub fn begin_psync(
        &self,
        pools: &[&PoolHandle],
        before_waiting: BeforeWaiting<'_>,
    ) -> Result<Begun, StoreError> {
        self.check_usable()?;
        let inner = self.inner();
        let mut ids = BTreeSet::new();
        for pool in pools {
            if !pool.store().is_same(self) {
                return Err(StoreError::NotTogether);
            }
            if pool.record().mode != PoolMode::Shadowed {
                return Err(StoreError::NotShadowed { name: pool.name().into() });
            }
            if !pool.is_writable() {
                return Err(StoreError::PoolReadOnly {
                    name: pool.name().into(),
                    what: "psync it",
                });
            }
            ids.insert(pool.id());
        }
        let shadows = ids.iter().filter_map(|id| inner.known_shadow(*id)).collect();
        let work = match Work::enter(shadows, before_waiting) {
            Ok(work) => work,
            Err(NotIn::Shared(done)) => return Ok(Begun::Done(done)),
            Err(NotIn::Refused) => return Ok(Begun::Refused),
        };
        work.prepare(inner)?;
        Ok(Begun::Mine(Psyncing { work, store: self.clone() }))
    }

    /// Bytes of the pools' journal, its records so far, and its syncs in this session; `None` if
    /// this session has not used it.
    #[must_use]
    pub fn psync_figures(&self) -> Option<(u64, u64, u64)> {
        self.inner().shadows().journal().map(|journal| journal.figures())
    }

    /// Bytes of pages of a pool that were stored into since its last psync; what earlier sessions
    /// left is not among them.
    #[must_use]
    pub fn unsynced_bytes(&self, pool: PoolId) -> u64 {
        let Some(shadow) = self.inner().known_shadow(pool) else { return 0 };
        shadow.parts().iter().map(|part| part.noted() * PAGE_SIZE).sum()
    }
}

/// Psyncs all pools in shadowed mode that this session holds. Part of closing: no thread writes
/// any more.
pub(crate) fn psync_leased(inner: &Inner, control: &mut Control) -> Result<(), StoreError> {
    let state = &control.catalog.state;
    let pools: Vec<PoolId> = state
        .writable_pools(control.client)
        .into_iter()
        .filter(|pool| state.is_shadowed(*pool))
        .collect();
    if pools.is_empty() || planted(Bug::CloseWithoutPsync) {
        return Ok(());
    }
    psync_quiet(inner, control, &pools)?;
    match inner.shadows().journal() {
        Some(journal) => Ok(journal.checkpoint()?),
        None => Ok(()),
    }
}

/// Psyncs pools in shadowed mode that are not open, one by one.
pub(crate) fn psync_quiet(
    inner: &Inner,
    control: &mut Control,
    pools: &[PoolId],
) -> Result<(), StoreError> {
    let mut shadows = Vec::new();
    for pool in pools {
        match control.catalog.state.is_protected(*pool) {
            // One that was not opened has no memory, and nothing in it.
            true => shadows.extend(inner.known_shadow(*pool)),
            false => shadows.push(inner.shadow_of(control, *pool)?),
        }
    }
    let mut first = Ok(());
    for shadow in shadows {
        // One by one: there is nothing to be kept together, and less to be in memory. One that
        // cannot be psynced keeps no other from it: what is in memory alone has no other chance.
        let Ok(mut work) = Work::enter(vec![shadow], |_| Some(())) else { continue };
        let done =
            work.prepare(inner).and_then(|()| work.copy(inner)).and_then(|()| work.commit(inner));
        first = first.and(done.map(drop));
    }
    first
}
