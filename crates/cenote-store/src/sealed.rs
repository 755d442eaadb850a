//! Opens, grows and verifies pools that are protected at rest (PMO-7, PMO-8, PMO-9 for whole
//! pools).
//!
//! Invariant: such a pool is in shadowed mode, and its *shadow has no file*: what a puddle holds is
//! memory of this process ([`View`]), which ends with it. The one file of a puddle is its primary,
//! `puddles/<uuid>`, sealed by [`cenote_atrest`]:
//!
//! ```text
//! 0        4096                              size                                   size + regions
//! | header | sealed pages: the puddle's others | header of the protection, side data, tree |
//! ```
//!
//! The header page is plain: it says which puddle of which pool of which store this is, as the
//! catalog does. Everything else of the puddle, heap and all, is sealed. Logs of transactions on
//! such pools, which hold what values were before, are memory too
//! ([`crate::Store::acquire_hidden_log`]).
//!
//! # Keys
//!
//! The catalog says how a pool is protected ([`Record::PoolAtRest`]), so that this is known without
//! a key, and a file of another mode is refused. The caller's key wraps the data key of the *root
//! puddle*, in the header of its protection; from that data key another key is derived, which wraps
//! those of the pool's other puddles. So one header is all that a change of the caller's key
//! changes, however large the pool is.
//!
//! # Updates in several steps
//!
//! **Create a pool.** (1) the superblock says that the catalog may have such records, if it did
//! not; (2) the root puddle's file is made with both headers, and synced: an orphan; (3) one batch
//! names pool, protection and puddle: **the catalog's batch commits**.
//!
//! **Take a puddle.** (1) its file, as above; (2) one batch names it: **the catalog's batch
//! commits**. Its pages are all "never written", which no psync has changed: the tree over
//! them is zeros too.
//!
//! **Psync**: [`crate::psync`], with [`cenote_atrest::view`] for what the record holds. **The
//! sync of the journal commits** pages, trees and headers of all puddles of all its pools.
//!
//! **Rekey.** The root puddle's new header is a record of the journal, alone: **the sync of the
//! journal commits**. Before it the old key opens the pool, after it the new one, and
//! recovery, which applies the record, needs neither.
//!
//! **After a crash**, of the process or of power, the last psync is the truth: recovery writes
//! committed records to the primaries, as after a loss of power, and looks at no log, because there
//! is none. A read-only open reads the primaries with the journal laid over them.
//!
//! # What is noticed
//!
//! * A page that was changed, moved or put back: in modes with a tree, at its first touch.
//! * A file of another puddle, pool or store: by the header page, the protection's header, and the
//!   keys, which no two puddles share.
//! * A puddle's whole file that was put back: in modes with a tree, by the list of puddles in the
//!   root puddle's header; the root puddle's, by the list in the journal (`roots.rs` of
//!   `cenote-journal`). Both when the pool is opened. A root puddle that has moved, and is looked
//!   at in a store that is open for reading, is not compared with the journal.
//! * A whole store that was put back is a state that was once right: a program that has to find
//!   that keeps [`PoolHandle::anchors`] elsewhere and gives them to [`PoolHandle::check_anchors`].

use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::heap_puddle::NewPuddle;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::pools::pool_rules::find;
use crate::kernel::puddles::puddle::{
    DATA_AT, DIR, Puddle, create_whole, file_name, first_page, make_header, text,
};
use crate::kernel::store::pool_core::PoolCore;
use crate::kernel::store::{Control, Inner, Store};
use crate::pending_rewrite::reseal::SealedFile;
use crate::sealed_files::{Opened, at_rest, binding_of, named, pages_of, show_view};
use crate::sealed_parts::SealedPool;
use cenote_atrest::view::{self, Patches, SealedError, Source, Verified, View};
use cenote_atrest::{Anchor, Keyring, Mode, Protection};
use cenote_journal::Journal;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode};
use std::sync::Arc;

/// Pages of one puddle of a pool that were looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPuddle {
    /// The puddle.
    pub uuid: Uuid,
    /// Its number in its pool.
    pub index: u32,
    /// What was found. Pages are counted from the puddle's second, the first being its header:
    /// page 0 is at offset 4096.
    pub found: Verified,
}

impl Inner {
    /// Makes the file of a new puddle of a protected pool, and names it in one batch after the
    /// records `with`.
    pub(crate) fn add_sealed_puddle(
        &self,
        control: &mut Control,
        NewPuddle { pool, index, size, role }: NewPuddle,
        (name, mode, key): (&str, Mode, Option<&Keyring>),
        with: &[Record],
    ) -> Result<PuddleRecord, StoreError> {
        self.announce_role(control, role)?;
        let wanted = PuddleRecord { uuid: Uuid::NIL, pool, role, index, addr: 0, size };
        let record = self.new_puddle_by(control, None, wanted, &|record| {
            let made = Protection::create(record.uuid, pages_of(record), mode, key);
            let made = made.map_err(|error| at_rest(name, SealedError::at_rest(name, error)))?;
            made.bind(binding_of(self.uuid, name, record));
            let len = record.size + made.regions().len;
            let page = first_page(&make_header(record, self.uuid), self.stamps.made(true));
            let mut protection = made.header().to_vec();
            if planted(Bug::PoolHeaderLate) {
                protection.clear();
            }
            let parts = [(0, page.as_slice()), (record.size, protection.as_slice())];
            create_whole(&self.medium, text(&file_name(record.uuid)), DIR, len, &parts)
                .map_err(|error| self.failed(error))
        })?;
        self.commit_new_puddle(control, &record, with)?;
        if planted(Bug::PoolHeaderLate) {
            let made = Protection::create(record.uuid, pages_of(&record), mode, key);
            let made = made.map_err(|error| at_rest(name, SealedError::at_rest(name, error)))?;
            self.medium.write_at(text(&file_name(record.uuid)), record.size, &made.header())?;
        }
        Ok(record)
    }

    /// The journal of pools, in a store that is open for writing.
    pub(crate) fn journal_to_write(
        &self,
        control: &mut Control,
    ) -> Result<Option<Arc<Journal>>, StoreError> {
        match self.writable {
            true => Ok(Some(Arc::clone(self.pool_journal(control)?))),
            false => Ok(None),
        }
    }

    /// Opens the protection of one puddle: its key is checked, and no page is read.
    pub(crate) fn open_sealed(
        &self,
        control: &mut Control,
        name: &str,
        record: PuddleRecord,
        (mode, key, patches): (Mode, Option<&Keyring>, Patches),
    ) -> Result<Opened, StoreError> {
        let file = Arc::new(FileHandle::open(&self.medium, text(&file_name(record.uuid)))?);
        let journal = self.journal_to_write(control)?;
        let source =
            Source::new(mode, pages_of(&record), (record.uuid, file, DATA_AT), journal, patches)
                .ok_or(StoreError::PuddleSize {
                    size: record.size,
                    reason: "no protection covers so many pages",
                })?;
        let binding = binding_of(self.uuid, name, &record);
        let protection = view::open(&named(name, &record), mode, &source, (binding, key));
        Ok(Opened { record, protection: protection.map_err(|error| at_rest(name, error))?, source })
    }

    /// Whether a key opens a pool that is open already.
    pub(crate) fn check_key(
        &self,
        control: &mut Control,
        core: &PoolCore,
        key: Option<&Keyring>,
    ) -> Result<(), StoreError> {
        let (record, sealed) = (core.record(), core.sealed());
        let Some(sealed) = sealed else { return Ok(()) };
        let puddles = control.catalog.state.puddles_of(record.id);
        let root = puddles.first().copied().filter(|root| root.index == 0);
        let Some(root) = root else { return Ok(()) };
        let mut patches =
            if self.writable { Default::default() } else { self.patches_if_any(control)? };
        let patches = patches.remove(&root.uuid).unwrap_or_default();
        if let SealedFile::Pending(_) =
            self.look_at_sealed(control, &root, AtRest::of(sealed.mode))?
        {
            // Of a store that is open for reading only: it is as it was.
            let as_what = (sealed.mode, self.identity_of(control, root.uuid));
            let opened = self.frontier().open_pending((&record.name, &root), as_what, key);
            return opened
                .map(drop)
                .map_err(|e| self.frontier().explain(e, root.uuid, &record.name));
        }
        self.open_sealed(control, &record.name, root, (sealed.mode, key, patches)).map(drop)
    }

    /// Takes a further puddle for an open pool, with its memory; not findable yet.
    pub(crate) fn take_sealed(
        &self,
        control: &mut Control,
        wanted: NewPuddle,
        name: &str,
        sealed: &SealedPool,
    ) -> Result<core::ptr::NonNull<Puddle>, StoreError> {
        let key = sealed.keys.own.as_ref();
        let record = self.add_sealed_puddle(control, wanted, (name, sealed.mode, key), &[])?;
        let opened = self.open_sealed(control, name, record, (sealed.mode, key, Patches::new()));
        let shown = opened.and_then(|opened| {
            let puddle = self.own(control, record, MapMode::Tracked);
            // SAFETY: puddles live until the store is dropped.
            show_view(&self.medium, name, unsafe { puddle.as_ref() }, opened, true).map(|()| puddle)
        });
        shown.inspect_err(|_| {
            // No caller has seen the puddle, so it is removed. If that cannot be recorded it stays,
            // empty, for the next opener of the pool.
            if self.commit(control, &[Record::PuddleRemoved(record.uuid)]).is_ok() {
                self.forget(control, &record);
                let _ = self.medium.remove(text(&file_name(record.uuid)));
            }
        })
    }
}

impl PoolHandle {
    /// How the pool is protected at rest.
    #[must_use]
    pub fn at_rest(&self) -> AtRest {
        self.core().sealed().map_or(AtRest::None, |sealed| AtRest::of(sealed.mode))
    }

    /// Copies bytes of the pool from `addr` on: what a load gives, with an error where a load would
    /// be a bus error because a page fails its check.
    ///
    /// # Errors
    /// [`StoreError::Sealed`] with the first page that is damaged; a page that cannot be read; a
    /// range that is not in one puddle of this pool.
    ///
    /// # Safety
    /// No thread of this process, and no other process, stores there meanwhile.
    pub unsafe fn read_at(&self, addr: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let puddle = self.holder_of(addr, bytes.len() as u64)?;
        self.store().ensure_mapped(puddle)?;
        let offset = addr - puddle.addr();
        match puddle.view() {
            Some(view) if offset >= DATA_AT => {
                let (from, end) = (offset - DATA_AT, offset - DATA_AT + bytes.len() as u64);
                view.load(from / PAGE_SIZE..end.div_ceil(PAGE_SIZE))
                    .map_err(|error| at_rest(self.name(), error))?;
                // SAFETY: in the puddle, which the view is the memory of; the caller's promise.
                unsafe { view.copy_out(from, bytes) };
            }
            // SAFETY: mapped, and in the puddle. The copy takes padding along; `bytes` is the
            // caller's alone, and settled.
            _ => unsafe {
                // A page may be lost, or be closed off beside metadata.
                let start = addr as usize;
                if let Some(at) = cenote_sys::peek::lost(start..start + bytes.len()) {
                    return Err(self.unreadable(at as u64));
                }
                let from = core::ptr::with_exposed_provenance::<u8>(start);
                core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
                cenote_sys::bytes::settle(bytes.as_mut_ptr(), bytes.len());
            },
        }
        Ok(())
    }

    /// Checks every page of every puddle, as the last psync left them, and gives no contents out.
    /// `progress` is told pages done and pages altogether; if it says `false`, that is
    /// all. Of a pool without protection there is nothing to say; in modes without a tree nothing
    /// is covered.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Vec<VerifiedPuddle> {
        let puddles = self.puddles();
        if self.at_rest() == AtRest::None {
            return Vec::new();
        }
        let all: u64 = puddles.iter().map(|p| pages_of(p.record())).sum();
        let (mut before, mut goes_on) = (0, true);
        let mut out = Vec::new();
        for puddle in puddles {
            if !goes_on {
                break;
            }
            let mut tell = |done, _| {
                goes_on = progress(before + done, all);
                goes_on
            };
            let found = match (puddle.view(), puddle.job().and_then(|job| job.sealing())) {
                (Some(view), _) => {
                    let mut found = view::verify(view, &mut tell);
                    if !found.damaged.is_empty() {
                        self.look_again(view, &mut found);
                    }
                    found
                }
                (None, Some(sealing)) => {
                    sealing.verify(self.store().inner().frontier(), puddle, &mut tell)
                }
                // Opened as a whole when the pool was, so every page was checked; its memory is an
                // image.
                (None, None) => {
                    let pages = pages_of(puddle.record());
                    tell(pages, pages);
                    Verified {
                        covered: self.at_rest().mode().has_tree(),
                        pages,
                        damaged: Vec::new(),
                    }
                }
            };
            before += pages_of(puddle.record());
            out.push(VerifiedPuddle { uuid: puddle.uuid(), index: puddle.index(), found });
        }
        // What opening the pool found is not in pages.
        for damage in self.damage() {
            if let crate::kernel::interface::report::Damage::Puddle {
                uuid, index, detail, ..
            } = damage
            {
                let damaged = vec![(0, detail.clone())];
                let found =
                    Verified { covered: self.at_rest().mode().has_tree(), pages: 0, damaged };
                out.push(VerifiedPuddle { uuid: *uuid, index: *index, found });
            }
        }
        out
    }

    /// Looks again at pages that seemed damaged, while no psync runs: one that was psynced between
    /// being read and being compared is whole.
    fn look_again(&self, view: &View, found: &mut Verified) {
        let shadow = self.store().inner().known_shadow(self.id());
        let entered = shadow.as_ref().map(|shadow| shadow.gate.alone());
        found.damaged.retain_mut(|(page, wrong)| match view::check_one(view, *page) {
            Ok(()) => false,
            Err(now) => {
                *wrong = now;
                true
            }
        });
        drop(entered);
    }

    /// The records to keep elsewhere, to notice a pool that was put back with *all* of its files:
    /// one for each puddle. Not secret. Of a pool that was copied or has moved, puddles that are
    /// still pending have none: see [`PoolHandle::finish_relocation`].
    #[must_use]
    pub fn anchors(&self) -> Vec<Anchor> {
        self.puddles()
            .iter()
            .filter_map(|p| p.view())
            .map(|view| view.protection().anchor())
            .collect()
    }

    /// Compares the pool with what [`PoolHandle::anchors`] said earlier.
    ///
    /// # Errors
    /// [`StoreError::AtRest`]: a puddle is gone, older than it was, or of another history.
    pub fn check_anchors(&self, anchors: &[Anchor]) -> Result<(), StoreError> {
        let puddles = self.puddles();
        for anchor in anchors {
            let view = puddles
                .iter()
                .filter_map(|p| p.view())
                .find(|v| v.protection().object() == anchor.object);
            let checked = match view {
                Some(view) => view.protection().check_anchor(anchor),
                // It was not touched since it moved or was copied: what is there is as it is sealed
                // now.
                None if let Some((puddle, sealing)) = puddles
                    .iter()
                    .find(|puddle| puddle.uuid() == anchor.object)
                    .and_then(|puddle| Some((puddle, puddle.job()?.sealing()?))) =>
                {
                    let frontier = self.store().inner().frontier();
                    let as_what = (sealing.mode, sealing.identity);
                    frontier
                        .open_pending(
                            (self.name(), puddle.record()),
                            as_what,
                            sealing.keys.before.as_ref(),
                        )
                        .map_err(|error| frontier.explain(error, puddle.uuid(), self.name()))?
                        .protection
                        .check_anchor(anchor)
                }
                None => {
                    let detail = format!(
                        "puddle {} of pool \"{}\" is not there any more",
                        anchor.object,
                        self.name()
                    );
                    return Err(StoreError::PoolRolledBack { name: self.name().into(), detail });
                }
            };
            checked
                .map_err(|error| at_rest(self.name(), SealedError::at_rest(self.name(), error)))?;
        }
        Ok(())
    }
}

impl Store {
    /// How a pool is protected at rest; [`AtRest::None`] too for one that is not there.
    #[must_use]
    pub fn pool_at_rest(&self, pool: PoolId) -> AtRest {
        self.inner().control().catalog.state.at_rest(pool)
    }

    /// Whether a pool that is protected so can be opened with nothing but the store's options: it
    /// has no key, or there is one. Whether that fits is another question.
    #[must_use]
    pub fn has_key_for(&self, at_rest: AtRest) -> bool {
        !at_rest.mode().has_key() || self.inner().options.key.is_some()
    }

    /// Whether the program gave the store a key and accepts nothing that has none
    /// ([`crate::OpenOptions::key`]).
    #[must_use]
    pub fn asks_for_protection(&self) -> bool {
        self.inner().options.asks_for_protection() && !planted(Bug::UnprotectedAccepted)
    }

    /// Refuses a pool of a mode without a key, if the program asks for protection.
    pub(crate) fn refuse_unprotected(&self, name: &str, mode: Mode) -> Result<(), StoreError> {
        match self.asks_for_protection() && !mode.has_key() {
            true => Err(StoreError::NotProtected { name: name.into() }),
            false => Ok(()),
        }
    }

    /// Refuses what cannot be done with a pool that is protected at rest.
    pub(crate) fn refuse_protected(
        &self,
        name: &str,
        what: &'static str,
    ) -> Result<(), StoreError> {
        let control = self.inner().control();
        let id = find(&control, name)?;
        match control.catalog.state.is_protected(id) {
            true => Err(StoreError::Protected { name: name.into(), what }),
            false => Ok(()),
        }
    }
}
