//! Seals anew puddles of protected pools that are pending: copies that are still sealed as what
//! they were copied from, and those whose pointers are to be rewritten.
//!
//! A copy of a protected pool is made of its files, sealed as they are, so that it needs no key;
//! the catalog says under whose identity each puddle is sealed
//! ([`Record::SealedAs`](cenote_layout::catalog::Record)). Invariant: **nothing is ever sealed
//! under a key of the original's again.** A puddle that is pending is only read. When a thread
//! first touches it, with the pool's key at hand, all its pages are opened into memory, its
//! pointers are rewritten there, and all of it is sealed under a new data key, as its own, into a
//! new file, which takes the name of the old one: states and commit are those of
//! [`crate::relocate`], and **the renaming commits**. A puddle that moved inside its store is
//! sealed anew in the same way, which keeps its identity and goes on with its generation.
//!
//! # Keys
//!
//! A pool's root puddle wraps the data keys of the others, by a key that is derived from its own
//! data key. So it is sealed anew first, when the pool is opened. The others are still under the
//! old root's key, which goes with the old root's file. So the new root's header holds that key,
//! encrypted under the new root's data key (`inherited_key`): the same renaming that takes the old
//! key away brings it along. A change of the caller's key finishes the copy first, and takes the
//! inherited key away, because that opens the original too.
//!
//! States of a pool, each a file's name:
//!
//! 1. All are pending: the caller's key opens the old root, and that the others.
//! 2. The root is new: it opens the new ones by its own key, the pending ones by the inherited one.
//! 3. All are new.
//!
//! A crash leaves one of them. The next header that is written in state 3 has no inherited key
//! ([`Protection::disinherit`]).
//!
//! In a store that is open for reading only, puddles that are pending are opened into memory, and
//! no file changes.

use super::failed::Failed;
use super::lazy_rewrite::LazyRewrite;
use super::replace::NewFile;
use super::{FoundRewrite, Needs, look_at_len};
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::rewriter::{RewriteJob, Rewriter, Rewritten};
use crate::kernel::puddles::opaque_part::OpaquePart;
use crate::kernel::puddles::pending_job::Job;
use crate::kernel::puddles::puddle::{DATA_AT, DIR, Puddle, file_name, text};
use crate::kernel::store::{Control, Inner};
use crate::sealed_files::{Opened, binding_of, file_len, named, pages_of, show_view};
use crate::sealed_parts::{PoolKeys, Sealing};
use cenote_atrest::tree::Digest;
use cenote_atrest::view::{self, SealedError, Source, Verified};
use cenote_atrest::{Keyring, Mode, Protection};
use cenote_journal::Journal;
use cenote_layout::catalog::{AtRest, PendingRewriteRecord, PuddleRecord};
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError, Operation};
use cenote_sys::memory::{self, OwnedRegion};
use std::sync::Arc;

/// Memory for plaintext: in no core dump, and in no child.
pub(crate) struct Plain(OwnedRegion);

impl Plain {
    pub(crate) fn new(len: u64) -> Result<Self, MediumError> {
        let region = memory::hidden(len as usize);
        Ok(Self(region.map_err(|error| MediumError::from_io(Operation::Read, "memory", error))?))
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: memory of this value's alone.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

/// A puddle that is pending, opened.
pub(crate) struct OpenedDue {
    pub(crate) protection: Protection,
    pub(crate) source: Source,
}

impl LazyRewrite {
    /// Opens the protection of a puddle that is pending, as it is sealed now. No page is read.
    pub(crate) fn open_pending(
        &self,
        (pool, record): (&str, &PuddleRecord),
        (mode, identity): (Mode, Uuid),
        key: Option<&Keyring>,
    ) -> Result<OpenedDue, Failed> {
        // No psync has written to it since it is pending: no journal speaks of it, unless the
        // window moved for a reader.
        let source = self.source(record, mode, None)?;
        let protection = view::open_as(&named(pool, record), mode, &source, (identity, key))?;
        Ok(OpenedDue { protection, source })
    }

    /// Opens all pages of a puddle that is pending, and makes the pointers in them right. Which
    /// pages were ever written comes along.
    pub(crate) fn open_image(
        &self,
        (pool, work, generation): (&str, &RewriteJob, u64),
        opened: &OpenedDue,
        rewriter: &dyn Rewriter,
    ) -> Result<(Plain, Vec<bool>, Rewritten), Failed> {
        let record = &work.puddle;
        let mut image = Plain::new(record.size)?;
        let OpenedDue { protection, source } = opened;
        let pages = image.bytes().get_mut(DATA_AT as usize..).unwrap_or_default();
        let written = view::open_all(&named(pool, record), protection, source, pages)?;
        let rewritten = self.change(image.bytes(), work, generation, rewriter)?;
        Ok((image, written, rewritten))
    }

    /// Seals a puddle that is pending anew, as its own: on return its file is the new one. The
    /// protection is that of the new file.
    pub(crate) fn reseal(
        &self,
        (pool, work, generation): (&str, &RewriteJob, u64),
        opened: &OpenedDue,
        (key, inherits): (Option<&Keyring>, bool),
        rewriter: &dyn Rewriter,
    ) -> Result<(Rewritten, Protection), Failed> {
        let (record, what) = (&work.puddle, named(pool, &work.puddle));
        let (mut image, written, mut rewritten) =
            self.open_image((pool, work, generation), opened, rewriter)?;
        // A hole would be a sealed page that was never written.
        rewritten.holes.clear();
        let inherits = inherits && !planted(Bug::NothingInherited);
        let made = Protection::create_after(record.uuid, &opened.protection, inherits, key);
        let made = made.map_err(|error| SealedError::at_rest(&what, error))?;
        made.bind(binding_of(self.store, pool, record));
        let len = file_len(record, AtRest::of(made.mode()));
        let len = len.ok_or_else(|| Failed::Image("no protection covers so many pages".into()))?;
        let name = file_name(record.uuid);
        let new = NewFile::create(&self.medium, (DIR, text(&name)), len)?;
        let file = new.open()?;
        let (header, pages) = image.bytes().split_at(DATA_AT as usize);
        let write = &mut |offset, bytes: &[u8]| file.write_at(DATA_AT + offset, bytes);
        let change = view::seal_all(&what, &made, (pages, &written), write)?;
        file.write_at(0, header)?;
        new.take_name(&[])?;
        made.commit(change).map_err(|error| SealedError::at_rest(&what, error))?;
        Ok((rewritten, made))
    }

    /// The same for a puddle that a thread touches, which then has its memory.
    pub(crate) fn reseal_touched(
        &self,
        puddle: &Puddle,
        sealing: &Sealing,
        job: &Job,
        rewriter: &dyn Rewriter,
    ) -> Result<Rewritten, Failed> {
        let (record, pool, mode) = (&job.work.puddle, sealing.pool.as_str(), sealing.mode);
        let (work, own) = ((pool, &job.work, job.pending.generation), sealing.keys.own.as_ref());
        let open = |identity, key| self.open_pending((pool, record), (mode, identity), key);
        let before = || open(sealing.identity, sealing.keys.before.as_ref());
        if !self.writable {
            let (mut image, _, rewritten) = self.open_image(work, &before()?, rewriter)?;
            self.show_plain(puddle, &mut image)?;
            return Ok(rewritten);
        }
        let (name, len) = (file_name(record.uuid), file_len(record, AtRest::of(mode)).unwrap_or(0));
        let found = look_at_len(
            &self.medium,
            text(&name),
            (self.store, true),
            (record, len),
            &job.pending,
        )?;
        let (rewritten, protection) = match found {
            // Its memory could not be made the last time.
            FoundRewrite::New => (Rewritten::default(), open(record.uuid, own)?.protection),
            _ => self.reseal(work, &before()?, (own, false), rewriter)?,
        };
        let source = self.source(record, mode, sealing.journal.clone())?;
        let opened = Opened { record: *record, protection, source };
        show_view(&self.medium, pool, puddle, opened, puddle.is_writable())?;
        if puddle.is_writable() {
            // Another thread may have opened the pool for writing while its memory was made.
            puddle.view().iter().for_each(|view| view.allow_stores());
        }
        puddle.set_done();
        self.note_done(puddle.uuid());
        Ok(rewritten)
    }

    /// Shows an opened image, in a store that is open for reading only.
    fn show_plain(&self, puddle: &Puddle, image: &mut Plain) -> Result<(), MediumError> {
        self.show(puddle, image.bytes())?;
        // A kernel that cannot dumps more.
        let _ = memory::leave_out_of_dumps(puddle.addr() as usize, puddle.size() as usize);
        Ok(())
    }

    /// What the pages of a puddle are read from.
    fn source(
        &self,
        record: &PuddleRecord,
        mode: Mode,
        journal: Option<Arc<Journal>>,
    ) -> Result<Source, Failed> {
        let file = Arc::new(FileHandle::open(&self.medium, text(&file_name(record.uuid)))?);
        let place = (record.uuid, file, DATA_AT);
        Source::new(mode, pages_of(record), place, journal, self.patches_of(record.uuid))
            .ok_or_else(|| Failed::Image("no protection covers so many pages".into()))
    }
}

impl Sealing {
    /// Checks every page of a puddle that is pending, as it is sealed now.
    pub(crate) fn verify(
        &self,
        frontier: &LazyRewrite,
        puddle: &Puddle,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Verified {
        let (record, key) = (puddle.record(), self.keys.before.as_ref());
        match frontier.open_pending((&self.pool, record), (self.mode, self.identity), key) {
            Ok(opened) => view::verify_all(&opened.protection, &opened.source, progress),
            Err(failed) => {
                let wrong = frontier.explain(failed, record.uuid, &self.pool).to_string();
                Verified { covered: self.mode.has_tree(), pages: 0, damaged: vec![(0, wrong)] }
            }
        }
    }
}

/// What the file of a puddle of a protected pool is.
pub(crate) enum SealedFile {
    /// Sealed as its own.
    Own,
    /// To be sealed anew.
    Pending(PendingRewriteRecord),
    Damaged(String),
}

impl SealedFile {
    /// What is wrong with it.
    pub(crate) fn damage(self) -> Option<String> {
        match self {
            Self::Own | Self::Pending(_) => None,
            Self::Damaged(detail) => Some(detail),
        }
    }
}

impl Inner {
    /// Looks at the file of a puddle of a protected pool; nothing is said of sealed pages.
    pub(crate) fn look_at_sealed(
        &self,
        control: &Control,
        record: &PuddleRecord,
        protection: AtRest,
    ) -> Result<SealedFile, MediumError> {
        let Some(pending) = control.catalog.state.pending.get(&record.uuid).copied() else {
            let problem = self.verify_sealed(record, protection)?;
            return Ok(problem.map_or(SealedFile::Own, SealedFile::Damaged));
        };
        let Some(len) = file_len(record, protection) else {
            return Ok(SealedFile::Damaged(
                "the catalog gives it a size that no puddle has".into(),
            ));
        };
        let name = file_name(record.uuid);
        let store = (self.uuid, self.writable);
        Ok(match look_at_len(&self.medium, text(&name), store, (record, len), &pending)? {
            FoundRewrite::New => {
                self.keep_new(record, None)?;
                self.frontier().note_done(record.uuid);
                SealedFile::Own
            }
            FoundRewrite::Old => SealedFile::Pending(pending),
            FoundRewrite::Damaged(problem) => SealedFile::Damaged(problem),
        })
    }

    /// The same, before the pool is opened: the generation of one that was damaged when it moved is
    /// known on return.
    pub(crate) fn look_and_learn(
        &self,
        control: &mut Control,
        record: &PuddleRecord,
        protection: AtRest,
    ) -> Result<SealedFile, StoreError> {
        match self.look_at_sealed(control, record, protection)? {
            SealedFile::Pending(pending) if pending.is_unknown() => {
                let name = file_name(record.uuid);
                self.learn_from(control, record, pending, text(&name)).map(SealedFile::Pending)
            }
            found => Ok(found),
        }
    }

    /// Under which identity a puddle that is pending is sealed.
    pub(crate) fn identity_of(&self, control: &Control, puddle: Uuid) -> Uuid {
        control.catalog.state.sealed_as.get(&puddle).copied().unwrap_or(puddle)
    }

    /// The root puddle of a pool that is opened and pending: sealed anew, or, in a store that may
    /// only be looked at, shown as an image. Returns the key of the puddles that are still pending
    /// then, where it is not in the root's header, and the list of the pool's puddles.
    pub(crate) fn reseal_root(
        &self,
        control: &mut Control,
        (pool, mode): (&str, Mode),
        (record, pending): (&PuddleRecord, PendingRewriteRecord),
        (key, inherits): (Option<&Keyring>, bool),
        needs: &mut Needs,
    ) -> Result<(Option<Keyring>, Digest), StoreError> {
        let failed = |error: Failed| self.frontier().explain(error, record.uuid, pool);
        let not_rewritten =
            |detail: String| StoreError::NotRewritten { puddle: record.uuid, detail };
        let work = self.work_of(control, record, &pending, needs).map_err(not_rewritten)?;
        let identity = self.identity_of(control, record.uuid);
        let frontier = self.frontier();
        let Some(rewriter) = &frontier.options.rewriter else {
            return Err(not_rewritten("this program cannot rewrite pointers".into()));
        };
        let opened =
            frontier.open_pending((pool, record), (mode, identity), key).map_err(failed)?;
        let job = (pool, &work, pending.generation);
        let members = opened.protection.members();
        if self.writable {
            self.check_poisoned()?;
            let resealed = frontier.reseal(job, &opened, (key, inherits), &**rewriter);
            let (rewritten, _) = resealed.map_err(failed)?;
            frontier.add(&rewritten);
            frontier.note_done(record.uuid);
            return Ok((None, members));
        }
        let before = opened.protection.subordinate(key);
        let before = before.map_err(|error| failed(SealedError::at_rest(pool, error).into()))?;
        let (mut image, _, rewritten) =
            frontier.open_image(job, &opened, &**rewriter).map_err(failed)?;
        let puddle = self.own(control, *record, MapMode::ReadOnly);
        // SAFETY: puddles live until the store is dropped.
        let shown = frontier.show_plain(unsafe { puddle.as_ref() }, &mut image);
        shown.map_err(|error| failed(error.into()))?;
        frontier.add(&rewritten);
        Ok((before, members))
    }

    /// Lets a puddle that is pending wait for its first touch; what stands for it in its pool's
    /// list. `Err` in the answer: why it cannot be used.
    pub(crate) fn expect_sealed(
        &self,
        control: &mut Control,
        (pool, mode, keys, journal): (&str, Mode, &Arc<PoolKeys>, Option<Arc<Journal>>),
        record: &PuddleRecord,
        pending: PendingRewriteRecord,
        needs: &mut Needs,
    ) -> Result<Result<Option<Digest>, String>, StoreError> {
        let work = match self.work_of(control, record, &pending, needs) {
            Ok(work) => work,
            Err(detail) => return Ok(Err(detail)),
        };
        let identity = self.identity_of(control, record.uuid);
        let entry = match self.frontier().open_pending(
            (pool, record),
            (mode, identity),
            keys.before.as_ref(),
        ) {
            Ok(opened) => opened.protection.entry(None),
            Err(failed) => {
                return Ok(Err(self.frontier().explain(failed, record.uuid, pool).to_string()));
            }
        };
        let sealing =
            Sealing { pool: pool.into(), mode, identity, keys: Arc::clone(keys), journal, entry };
        let puddle = self.own(control, *record, MapMode::ReadOnly);
        // SAFETY: puddles live until the store is dropped.
        let this = unsafe { puddle.as_ref() };
        if this.job().is_none() {
            let (what, part) = (format!("pool \"{pool}\""), OpaquePart::of(sealing));
            this.set_pending(Job { work, pending, shadowed: false, part, hosting: false }, &what);
            self.frontier().expect(puddle);
        }
        Ok(Ok(entry))
    }
}
