//! A puddle in a psync of its pool: how its pages are held and copied, and what its record has.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::DATA_AT;
use crate::kernel::store::Inner;
use crate::primaries::rooted;
use crate::sealed_files::at_rest as not_sealed;
use crate::shadow::{PuddlePart, Shadow};
use cenote_atrest::tree::Digest;
use cenote_atrest::view::{SealedError, View};
use cenote_atrest::{Change, binding};
use cenote_journal::{ApplyTarget, Changes, JournalError, Pages, Primary};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::AtRest;
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{MediumError, Operation};
use cenote_sys::memory::{self, OwnedRegion};
use std::io;
use std::sync::Arc;

/// Ranges of pages from which on all between the first and the last are protected by one call. Each
/// call has its own flush of address translations, which interrupts every processor that runs the
/// process and takes ten times as long as the rest; what is protected already costs a call nothing.
const RANGES_MAX: usize = 2;

/// Pages of one puddle on their way.
#[derive(Debug)]
pub(crate) struct TakenPages {
    part: Arc<PuddlePart>,
    pages: Vec<Pages>,
    /// Their contents, one after the other.
    bytes: Copies,
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

impl TakenPages {
    /// Of no page yet.
    pub(crate) fn new(part: Arc<PuddlePart>) -> Self {
        Self { part, pages: Vec::new(), bytes: Copies::Plain(Vec::new()) }
    }

    fn is_of(&self, part: &Arc<PuddlePart>) -> bool {
        Arc::ptr_eq(part, &self.part)
    }

    fn bytes_len(&self) -> usize {
        self.pages.iter().map(|range| (range.end - range.start) as usize).sum::<usize>()
            * PAGE_SIZE as usize
    }

    /// Takes pages of a memory without a file, and copies them.
    fn hold_hidden(&mut self, view: &View) -> io::Result<()> {
        view.collect(&mut self.pages)?;
        if self.pages.is_empty() {
            return Ok(());
        }
        let mut region = Copies::Hidden(memory::hidden(self.bytes_len())?);
        each_range(&self.pages, region.get(), |range, to| {
            // SAFETY: pages of the view that were stored into, so they are loaded; a psync's caller
            // keeps writers of the pool out.
            unsafe { view.copy_out(range.start * PAGE_SIZE, to) };
            Ok::<_, io::Error>(())
        })?;
        self.bytes = region;
        Ok(())
    }
}

/// Calls `f` with each range and its part of `bytes`, which are of all of them.
fn each_range<E>(
    pages: &[Pages],
    bytes: &mut [u8],
    mut f: impl FnMut(&Pages, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = bytes;
    for range in pages {
        let len = ((range.end - range.start) * PAGE_SIZE) as usize;
        let (this, behind) = rest.split_at_mut(len);
        f(range, this)?;
        rest = behind;
    }
    Ok(())
}

impl cenote_shadow::ShadowPart for TakenPages {
    type Host = Inner;
    type Error = StoreError;

    const NAMES_ALL: bool = false;

    fn hold(&mut self, inner: &Inner) -> Result<(), StoreError> {
        let part = Arc::clone(&self.part);
        let puddle = part.puddle();
        if let Some(view) = puddle.view() {
            return Ok(self.hold_hidden(view).map_err(|error| {
                MediumError::from_io(Operation::Map, puddle.file_name(), error)
            })?);
        }
        puddle.notes().into_iter().for_each(|notes| notes.take(&mut self.pages));
        if self.pages.is_empty() {
            return Ok(());
        }
        if inner.is_client() || !planted(Bug::PsyncNotProtected) {
            protect(&part, &self.pages)?;
        }
        // It is noted where mappings run short, with all pages around. It is the store's.
        leave_out_header(&mut self.pages);
        if inner.is_client() {
            // The kernel copies from the mapping into the transfer. A guard page is noted where
            // mappings run short: nothing can read it there, and nothing has changed it.
            self.pages = puddle.readable(core::mem::take(&mut self.pages));
            return Ok(());
        }
        let file = part.shadow(inner)?;
        let mut bytes = vec![0; self.bytes_len()];
        each_range(&self.pages, &mut bytes, |range, to| {
            file.read_exact_at(range.start * PAGE_SIZE, to)
        })?;
        self.bytes = Copies::Plain(bytes);
        Ok(())
    }

    fn id(&self) -> Uuid {
        self.part.puddle().uuid()
    }

    fn pages(&self) -> &[Pages] {
        &self.pages
    }

    fn view(&self) -> Option<&View> {
        self.part.puddle().view()
    }

    fn target(&self, inner: &Inner) -> Result<ApplyTarget, StoreError> {
        let file = Arc::clone(self.part.primary(inner)?);
        let (record, data_offset) = (self.part.puddle().record(), self.part.data_at());
        let mode = self.view().map_or(AtRest::None, |view| AtRest::of(view.protection().mode()));
        Ok(ApplyTarget { id: record.uuid, file, data_offset, rooted: rooted(record, mode) })
    }

    fn draft(
        &mut self,
        number: u32,
        primary: &Primary<'_>,
        changes: &mut Changes,
    ) -> Result<Option<Change>, StoreError> {
        let mut bytes = core::mem::replace(&mut self.bytes, Copies::Plain(Vec::new()));
        let Some(view) = self.view() else {
            each_range(&self.pages, bytes.get(), |range, this| {
                changes.add_copy(number, range.start, this, primary)
            })?;
            return Ok(None);
        };
        let mut rest = &*bytes.get();
        let mut next = |_: u64, to: &mut [u8]| {
            let (this, behind) = rest.split_at(to.len());
            to.copy_from_slice(this);
            rest = behind;
        };
        cenote_atrest::view::seal(view, number, &self.pages, &mut next, primary, changes)
            .map_err(|error| self.sealed(error))
    }

    fn address(&self) -> usize {
        self.part.puddle().addr() as usize
    }

    fn note_again(&mut self) {
        self.pages.drain(..).for_each(|range| self.part.note(range));
    }

    fn forget(&mut self) {
        self.pages.clear();
    }

    fn poison(inner: &Inner, reason: &str) {
        inner.poison(reason);
    }

    fn too_large(_: &Inner, needed: u64) -> StoreError {
        StoreError::PsyncTooLarge { needed, limit: 1 << 36 }
    }

    fn sealed(&self, error: SealedError) -> StoreError {
        not_sealed(self.view().map_or("", View::what), error)
    }

    fn not_copied(&self, error: JournalError) -> StoreError {
        match error {
            JournalError::NotCopied { name, source } => StoreError::NotCopied { name, source },
            error => error.into(),
        }
    }

    fn unpacked(&self, error: io::Error) -> StoreError {
        MediumError::from_io(Operation::Write, "transfer", error).into()
    }
}

/// Leaves the page of a puddle's header out.
fn leave_out_header(pages: &mut Vec<Pages>) {
    let Some(first) = pages.first_mut() else { return };
    first.start = first.start.max(DATA_AT / PAGE_SIZE);
    if first.is_empty() {
        pages.remove(0);
    }
}

/// From here on a store into these pages faults.
fn protect(part: &PuddlePart, pages: &[Pages]) -> Result<(), MediumError> {
    let puddle = part.puddle();
    if !puddle.is_mapped() {
        return Ok(()); // noted by comparison; when it is mapped its pages are protected
    }
    let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return Ok(()) };
    let span = first.start..last.end;
    let ranges = if pages.len() > RANGES_MAX { core::slice::from_ref(&span) } else { pages };
    ranges.iter().try_for_each(|range| puddle.protect(range.clone()))
}

/// Puts the list of its puddles into the root puddle's header of a protected pool, if the psync
/// changes the pool. Psyncs of a pool follow each other, so no other header of it changes
/// meanwhile; a puddle that is sealed anew keeps its entry.
pub(crate) fn list_members(
    psync: &mut cenote_shadow::Psync<TakenPages>,
    shadow: &Shadow,
    inner: &Inner,
) -> Result<(), StoreError> {
    let mut parts = shadow.parts();
    parts.sort_by_key(|part| part.puddle().index());
    let is_changed = psync.parts().any(|(taken, change)| {
        parts.iter().any(|part| taken.is_of(part))
            && change.is_some_and(|change| change.header.is_some())
    });
    let Some(root) = parts.first().filter(|_| is_changed && !planted(Bug::MembersNotUpdated))
    else {
        return Ok(());
    };
    let members = binding::members(parts[1..].iter().map(|part| entry_of(psync, part)));
    let known = psync.parts().position(|(taken, _)| taken.is_of(root));
    let at = known.unwrap_or_else(|| psync.add(TakenPages::new(Arc::clone(root))));
    let (_, change) = psync.changed(inner, at)?;
    let Some(view) = root.puddle().view() else { return Ok(()) };
    let mut made = match change.take() {
        Some(made) => made,
        None => view
            .protection()
            .prepare(&[], view.source())
            .map_err(|error| not_sealed(view.what(), SealedError::at_rest(view.what(), error)))?,
    };
    view.protection().list_members(&mut made, members);
    *change = Some(made);
    Ok(())
}

/// What stands for a puddle in its pool's list once this psync is committed.
fn entry_of(
    psync: &cenote_shadow::Psync<TakenPages>,
    part: &Arc<PuddlePart>,
) -> (u32, Option<Digest>) {
    let puddle = part.puddle();
    let change = psync.parts().find(|(taken, _)| taken.is_of(part)).and_then(|(_, change)| change);
    let entry = match (puddle.view(), puddle.job().and_then(|job| job.sealing())) {
        (Some(view), _) => view.protection().entry(change),
        (None, sealing) => sealing.and_then(|sealing| sealing.entry),
    };
    (puddle.index(), entry)
}
