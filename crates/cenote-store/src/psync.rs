//! Psyncs pools in shadowed mode (PMO-3 for pools). Invariant: after a loss of power every pool is,
//! with all its puddles, as its last psync left it; pools that were psynced together, as the last
//! psync of them together left them, or as a later one of each.
//!
//! # The argument
//!
//! A pool has *shadows* (its puddle files, mapped shared) and *primaries* ([`crate::shadow`]). One
//! psync:
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
//! *Stray stores.* A store that comes between taking notes and protecting (2) is in the copy,
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
use crate::gate::Psync;
use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::store::{Control, Inner, Store};
use crate::primaries::rooted;
use crate::sealed_files::at_rest as not_sealed;
use crate::shadow::{Part, Shadow, note_unknown};
use cenote_atrest::tree::Digest;
use cenote_atrest::{Change, binding};
use cenote_journal::{Changes, Draft, JournalError, Pages, Target, Transfer};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, PoolMode};
use cenote_layout::id::{PoolId, Uuid};
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_medium::{FileHandle, MediumError, Operation};
use cenote_sealed::SealedError;
use cenote_sys::memory::{self, OwnedRegion};
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ranges of pages from which on all between the first and the last are protected by one call. Each
/// call has its own flush of address translations, which interrupts every processor that runs the
/// process and takes ten times as long as the rest; what is protected already costs a call nothing.
const RANGES_MAX: usize = 2;

/// Pages of one puddle on their way.
#[derive(Debug)]
struct Taken {
    part: Arc<Part>,
    pages: Vec<Pages>,
    /// Their contents, one after the other.
    bytes: Copies,
    /// What becomes of the protection, if the pool has one.
    change: Option<Change>,
    /// Its number in the record, if the record has anything of it.
    number: Option<u32>,
}

impl Taken {
    /// Of pages that are not copied yet.
    fn new(part: Arc<Part>, pages: Vec<Pages>) -> Self {
        Self { part, pages, bytes: Copies::Plain(Vec::new()), change: None, number: None }
    }
}

/// What a record is made of, beside the lines.
#[derive(Default)]
struct Contents {
    ids: Vec<Uuid>,
    targets: Vec<Target>,
}

/// Copies of pages.
#[derive(Debug)]
enum Copies {
    /// Of pages that lie in a file as they are.
    Plain(Vec<u8>),
    /// Of pages that no file may hold, nor a core dump.
    Hidden(OwnedRegion),
}

impl Copies {
    fn get(&mut self) -> &mut [u8] {
        match self {
            Self::Plain(bytes) => bytes,
            // SAFETY: memory of this value alone.
            Self::Hidden(region) => unsafe {
                core::slice::from_raw_parts_mut(region.as_ptr(), region.len())
            },
        }
    }
}

impl Taken {
    fn bytes_len(&self) -> usize {
        self.pages.iter().map(|range| (range.end - range.start) as usize).sum::<usize>()
            * PAGE_SIZE as usize
    }

    /// Copies pages out of a memory without a file.
    fn copy_hidden(&mut self) -> std::io::Result<()> {
        let Some(view) = self.part.puddle().view() else { return Ok(()) };
        let mut region = Copies::Hidden(memory::hidden(self.bytes_len())?);
        let mut rest = region.get();
        for range in &self.pages {
            let (this, behind) =
                rest.split_at_mut(((range.end - range.start) * PAGE_SIZE) as usize);
            // SAFETY: pages of the view that were stored into, so they are loaded; a psync's caller
            // keeps writers of the pool out.
            unsafe { view.copy_out(range.start * PAGE_SIZE, this) };
            rest = behind;
        }
        self.bytes = region;
        Ok(())
    }
}

/// A psync that was let in.
#[derive(Debug)]
struct Work {
    shadows: Vec<(Arc<Shadow>, u64)>,
    taken: Vec<Taken>,
    /// Of a daemon's client: the copies, on their way.
    transfer: Option<Transfer>,
    held: Duration,
    done: Option<Psync>,
}

impl Work {
    /// Enters pools, which are in the order of their numbers.
    fn enter(shadows: Vec<Arc<Shadow>>) -> Result<Self, Psync> {
        let (shadows_in, taken, held) = (Vec::new(), Vec::new(), Duration::ZERO);
        let mut work = Self { shadows: shadows_in, taken, transfer: None, held, done: None };
        let alone = shadows.len() == 1;
        for shadow in shadows {
            let number = shadow.gate.enter(alone)?;
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
            let unknown = |part: &&Arc<Part>| part.unknown.load(Ordering::Acquire);
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

    /// Step 2 of a daemon's client: the kernel copies from the mappings into the transfer.
    fn pack(&mut self) -> Result<(), MediumError> {
        for (shadow, _) in &self.shadows {
            for part in shadow.parts() {
                let mut pages = Vec::new();
                part.puddle().notes().into_iter().for_each(|notes| notes.take(&mut pages));
                if !pages.is_empty() {
                    self.taken.push(Taken::new(part, pages));
                }
            }
        }
        let failed = |error| MediumError::from_io(Operation::Write, "transfer", error);
        let ranges = self.taken.iter().map(|taken| taken.pages.len()).sum();
        let mut transfer = Transfer::new(ranges).map_err(failed)?;
        for (number, taken) in (0..).zip(&self.taken) {
            protect(&taken.part, &taken.pages)?;
            // No transaction runs. A store that comes all the same faults, and its page is noted
            // again.
            let shadow = taken.part.puddle().addr() as usize;
            transfer.add_pages(number, shadow, &taken.pages).map_err(failed)?;
        }
        self.transfer = Some(transfer);
        Ok(())
    }

    /// Steps 3 to 6, by the daemon.
    fn send(&mut self, connection: &Connection) -> Result<Psync, StoreError> {
        let held = self.held;
        let mut done = Psync { held, ..Psync::default() };
        if let Some(transfer) = self.transfer.take().filter(|transfer| !transfer.is_empty()) {
            let failed = |error| {
                StoreError::Medium(MediumError::from_io(Operation::Write, "transfer", error))
            };
            let ids: Vec<Uuid> =
                self.taken.iter().map(|taken| taken.part.puddle().uuid()).collect();
            let (file, runs) = transfer.finish().map_err(failed)?;
            done = Psync { held, ..connection.keeper.psync_pools(&ids, runs, &file)? };
        }
        self.done = Some(done);
        Ok(done)
    }

    /// Step 2.
    fn copy(&mut self, inner: &Inner) -> Result<(), MediumError> {
        let started = Instant::now();
        let result = if inner.is_client() { self.pack() } else { self.copy_all(inner) };
        self.held = started.elapsed();
        result
    }

    fn copy_all(&mut self, inner: &Inner) -> Result<(), MediumError> {
        for (shadow, _) in &self.shadows {
            for part in shadow.parts() {
                let mut pages = Vec::new();
                let protected = match part.puddle().view() {
                    Some(view) => view.collect(&mut pages),
                    None => {
                        part.puddle().notes().into_iter().for_each(|notes| notes.take(&mut pages));
                        Ok(())
                    }
                };
                if pages.is_empty() && protected.is_ok() {
                    continue;
                }
                // From here on they are noted again if the psync fails.
                self.taken.push(Taken::new(part, pages));
                let Some(taken) = self.taken.last_mut() else { continue };
                if taken.part.puddle().view().is_some() {
                    let copied = protected.and_then(|()| taken.copy_hidden());
                    let name = taken.part.puddle().file_name();
                    copied.map_err(|error| MediumError::from_io(Operation::Map, name, error))?;
                    continue;
                }
                if !planted(Bug::PsyncNotProtected) {
                    protect(&taken.part, &taken.pages)?;
                }
                let file = taken.part.shadow(inner)?;
                taken.bytes = Copies::Plain(vec![0; taken.bytes_len()]);
                let mut rest = taken.bytes.get();
                for range in &taken.pages {
                    let len = (range.end - range.start) * PAGE_SIZE;
                    let (this, behind) = rest.split_at_mut(len as usize);
                    file.read_exact_at(range.start * PAGE_SIZE, this)?;
                    rest = behind;
                }
            }
        }
        Ok(())
    }

    /// Puts the list of its puddles into the root puddle's header of every protected pool that this
    /// psync changes. Psyncs of a pool follow each other, so no other header of it changes
    /// meanwhile; a puddle that is sealed anew keeps its entry.
    fn list_members(&mut self, inner: &Inner, contents: &mut Contents) -> Result<(), StoreError> {
        for (shadow, _) in &self.shadows {
            let mut parts = shadow.parts();
            parts.sort_by_key(|part| part.puddle().index());
            let is_root =
                |taken: &Taken| parts.first().is_some_and(|root| Arc::ptr_eq(root, &taken.part));
            let of = |taken: &&Taken| parts.iter().any(|part| Arc::ptr_eq(part, &taken.part));
            let changed =
                self.taken.iter().filter(of).any(|taken| {
                    taken.change.as_ref().is_some_and(|change| change.header.is_some())
                });
            let Some(root) = parts.first().filter(|_| changed && !planted(Bug::MembersNotUpdated))
            else {
                continue;
            };
            let members = binding::members(parts[1..].iter().map(|part| self.entry_of(part)));
            let at = self.taken.iter().position(is_root).unwrap_or_else(|| {
                self.taken.push(Taken::new(Arc::clone(root), Vec::new()));
                self.taken.len() - 1
            });
            let Some(taken) = self.taken.get_mut(at) else { continue };
            let (id, file) = (root.puddle().uuid(), root.primary(inner)?);
            if taken.number.is_none() {
                taken.number = Some(contents.ids.len() as u32);
                contents.ids.push(id);
                contents.targets.push(target(root, file));
            }
            let Some(view) = root.puddle().view() else { continue };
            let mut change = match taken.change.take() {
                Some(change) => change,
                None => view.protection().prepare(&[], view.source()).map_err(|error| {
                    not_sealed(view.what(), SealedError::at_rest(view.what(), error))
                })?,
            };
            view.protection().list_members(&mut change, members);
            taken.change = Some(change);
        }
        Ok(())
    }

    /// What stands for a puddle in its pool's list once this psync is committed.
    fn entry_of(&self, part: &Arc<Part>) -> (u32, Option<Digest>) {
        let puddle = part.puddle();
        let taken = self.taken.iter().find(|taken| Arc::ptr_eq(part, &taken.part));
        let change = taken.and_then(|taken| taken.change.as_ref());
        let entry = match (puddle.view(), puddle.job().and_then(|job| job.sealing.as_ref())) {
            (Some(view), _) => view.protection().entry(change),
            (None, sealing) => sealing.and_then(|sealing| sealing.entry),
        };
        (puddle.index(), entry)
    }

    /// Adds the headers of protections to the record.
    fn seal_headers(&self, changes: &mut Changes) -> Result<(), StoreError> {
        for taken in &self.taken {
            let (Some(view), Some(change), Some(number)) =
                (taken.part.puddle().view(), &taken.change, taken.number)
            else {
                continue;
            };
            cenote_sealed::seal_header(view, number, change, changes)
                .map_err(|error| not_sealed(view.what(), error))?;
        }
        Ok(())
    }

    /// Steps 3 to 6.
    fn commit(&mut self, inner: &Inner) -> Result<Psync, StoreError> {
        inner.check_poisoned()?; // a page that was lost may be among the copies
        if let Some(connection) = inner.connection() {
            return self.send(connection);
        }
        let held = self.held;
        if self.taken.is_empty() {
            return Ok(*self.done.insert(Psync { held, ..Psync::default() }));
        }
        let journal = inner.shadows().journal().ok_or(StoreError::ReadOnly { what: "psync" })?;
        let mut changes = journal.changes();
        let mut contents = Contents::default();
        for taken in &mut self.taken {
            let (before, number) = (changes.runs.len(), contents.ids.len() as u32);
            let (id, file) = (taken.part.puddle().uuid(), taken.part.primary(inner)?);
            let data_offset = taken.part.data_at();
            let primary = journal.primary(id, file, data_offset);
            let mut bytes = core::mem::replace(&mut taken.bytes, Copies::Plain(Vec::new()));
            let mut rest = &*bytes.get();
            if let Some(view) = taken.part.puddle().view() {
                let mut next = |_: u64, to: &mut [u8]| {
                    let (this, behind) = rest.split_at(to.len());
                    to.copy_from_slice(this);
                    rest = behind;
                };
                taken.change = cenote_sealed::seal(
                    view,
                    number,
                    &taken.pages,
                    &mut next,
                    &primary,
                    &mut changes,
                )
                .map_err(|error| not_sealed(view.what(), error))?;
            } else {
                for range in &taken.pages {
                    let (this, behind) =
                        rest.split_at(((range.end - range.start) * PAGE_SIZE) as usize);
                    changes.add_copy(number, range.start, this, &primary)?;
                    rest = behind;
                }
            }
            if changes.runs.len() > before {
                contents.ids.push(id);
                contents.targets.push(target(&taken.part, file));
                taken.number = Some(number);
            }
        }
        self.list_members(inner, &mut contents)?;
        self.seal_headers(&mut changes)?;
        let Contents { ids, targets } = contents;
        if changes.runs.is_empty() {
            journal.recycle(changes);
            let done = Psync { held, ..Psync::default() };
            self.done = Some(done);
            return Ok(done);
        }
        let Some(draft) = Draft::new(&ids, &changes) else {
            return Err(StoreError::PsyncTooLarge {
                needed: changes.data.len() as u64,
                limit: 1 << 36,
            });
        };
        let ticket = journal.append(&draft).inspect_err(|_| {
            if planted(Bug::PsyncForgetsPages) {
                self.taken.clear();
            }
        })?;
        let done = Psync {
            seq: ticket.seq,
            pages: changes.pages,
            data_bytes: changes.data.len() as u64,
            journal_bytes: draft.total_len(),
            held,
        };
        if planted(Bug::PsyncAppliedEarly) {
            for (run, data) in changes.iter() {
                let target = &targets[run.object as usize];
                target.file.write_at(target.data_offset + run.offset(), data)?;
            }
        }
        reach(Step::PsyncWaits);
        journal.make_durable(&ticket)?;
        // Committed: whatever becomes of applying it, the pages are not noted again.
        self.done = Some(done);
        // Before the primaries are written: from now on the new trees count, and nodes that change
        // are not read from there.
        for taken in &mut self.taken {
            let (Some(view), Some(change)) = (taken.part.puddle().view(), taken.change.take())
            else {
                continue;
            };
            if planted(Bug::SealedNotCommitted) {
                continue;
            }
            view.protection().commit(change).map_err(|error| {
                inner.poison(&format!(
                    "the protection of {} went out of step: {error}",
                    view.what()
                ));
                not_sealed(view.what(), SealedError::at_rest(view.what(), error))
            })?;
        }
        journal.apply_later(ticket, changes, targets).map_err(|error| match error {
            JournalError::NotCopied { name, source } => StoreError::NotCopied { name, source },
            error => error.into(),
        })?;
        // What trees forget now is read from the primaries, with the record laid over.
        self.taken
            .iter()
            .filter_map(|taken| taken.part.puddle().view())
            .for_each(cenote_sealed::settle);
        Ok(done)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.done.is_none() {
            for taken in &self.taken {
                taken.pages.iter().for_each(|range| taken.part.note(range.clone()));
            }
        }
        for (shadow, number) in self.shadows.drain(..) {
            shadow.gate.leave(number, self.done);
        }
    }
}

/// What a record changes of a puddle.
fn target(part: &Part, file: &Arc<FileHandle>) -> Target {
    let (puddle, data_offset) = (part.puddle(), part.data_at());
    let at_rest = puddle.view().map_or(AtRest::None, |view| AtRest::of(view.protection().mode()));
    let rooted = rooted(puddle.record(), at_rest);
    Target { id: puddle.uuid(), file: Arc::clone(file), data_offset, rooted }
}

/// From here on a store into these pages faults.
fn protect(part: &Part, pages: &[Pages]) -> Result<(), MediumError> {
    let puddle = part.puddle();
    if !puddle.is_mapped() {
        return Ok(()); // noted by comparison; when it is mapped its pages are protected
    }
    let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return Ok(()) };
    let span = first.start..last.end;
    let ranges = if pages.len() > RANGES_MAX { core::slice::from_ref(&span) } else { pages };
    for range in ranges {
        puddle.protect(range.clone())?;
    }
    Ok(())
}

/// What [`Store::begin_psync`] came to.
#[derive(Debug)]
pub enum Begun {
    /// This psync has to be done.
    Mine(Psyncing),
    /// While this one waited, another psync of the pool began and was committed.
    Done(Psync),
}

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
        Ok(self.work.copy(self.store.inner())?)
    }

    /// Makes durable what was copied. On return it survives loss of power; on tmpfs, the end of the
    /// process.
    ///
    /// # Errors
    /// A full disk, an I/O error: the pools' last psync is what it was, and the next one has these
    /// stores too. A failed sync, or a primary that cannot be written: the store is poisoned,
    /// and the next open decides.
    pub fn commit(mut self) -> Result<Psync, StoreError> {
        self.work.commit(self.store.inner())
    }
}

impl Store {
    /// Begins a psync of pools that are open for writing: after a loss of power all of them are as
    /// this psync leaves them, or none is. Waits for psyncs of these pools that are in
    /// progress.
    ///
    /// # Errors
    /// A pool in direct mode, one of another store, a read-only handle; the medium, if pages of a
    /// session before this one have to be found.
    pub fn begin_psync(&self, pools: &[&PoolHandle]) -> Result<Begun, StoreError> {
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
        let work = match Work::enter(shadows) {
            Ok(work) => work,
            Err(done) => return Ok(Begun::Done(done)),
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
        let Ok(mut work) = Work::enter(vec![shadow]) else { continue };
        let done = work
            .prepare(inner)
            .and_then(|()| Ok(work.copy(inner)?))
            .and_then(|()| work.commit(inner));
        first = first.and(done.map(drop));
    }
    first
}
