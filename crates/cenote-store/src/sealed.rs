//! Pools that are protected at rest (PMO-7, PMO-8, PMO-9 for whole pools).
//!
//! Such a pool is in shadowed mode, and its *shadow has no file*: what a puddle holds is memory of this process ([`View`]), which goes with it. The
//! one file of a puddle is its primary, `puddles/<uuid>`, sealed by [`cenote_atrest`]:
//!
//! ```text
//! 0        4096                              size                                   size + regions
//! | header | sealed pages: the puddle's others | header of the protection, side data, tree |
//! ```
//!
//! The header page is plain: it says which puddle of which pool of which store this is, as the catalog does. Everything else of the puddle, heap and
//! all, is sealed. Logs of transactions on such pools, which hold what values were before, are memory too ([`crate::Store::acquire_hidden_log`]).
//!
//! # Keys
//!
//! The catalog says how a pool is protected ([`Record::PoolAtRest`]), so that this is known without a key, and a file of another mode is refused. The caller's key
//! wraps the data key of the *root puddle*, in the header of its protection; from that data key another key is derived, which wraps those of the
//! pool's other puddles. So one header is all that a change of the caller's key changes, however large the pool is.
//!
//! # Updates in several steps
//!
//! **Create a pool.** (1) the superblock says that the catalog may have such records, if it did not; (2) the root puddle's file is made with both
//! headers, and synced: an orphan; (3) one batch names pool, protection and puddle: **the catalog's batch commits**.
//!
//! **Take a puddle.** (1) its file, as above; (2) one batch names it: **the catalog's batch commits**. Its pages are all "never written", which no psync has changed: the tree over
//! them is zeros too.
//!
//! **Psync**: [`crate::psync`], with the crate `cenote-sealed` for what the record holds. **The sync of the journal commits** pages, trees and headers of all puddles of all its pools.
//!
//! **Rekey.** The root puddle's new header is a record of the journal, alone: **the sync of the journal commits**. Before it the old key opens the pool, after it the new one, and
//! recovery, which applies the record, needs neither.
//!
//! **After a crash**, of the process or of power, the last psync is the truth: recovery writes committed records to the primaries, as after a loss of power, and looks at no
//! log, because there is none. A read-only open reads the primaries with the journal laid over them.
//!
//! # What is noticed
//!
//! A page that was changed, moved or put back: in modes with a tree at its first touch. A file of another puddle, pool or store: by the header page, the protection's header, and
//! the keys, which no two puddles share. A whole file that was put back, its protection's header with it, is a state that was once right: within the file nothing can
//! tell, and who wants to know keeps [`PoolHandle::anchors`] elsewhere and gives them to [`PoolHandle::check_anchors`].

use crate::error::StoreError;
use crate::pool::{PoolCore, PoolHandle, find};
use crate::puddle::{DIR, Puddle, create_whole, file_name, make_header, text, verify_len};
use crate::store::{Control, Inner, Store};
use crate::superblock;
use cenote_atrest::{Anchor, Keyring, Mode, Protection};
use cenote_journal::{Draft, Target};
use cenote_layout::PAGE_SIZE;
use cenote_layout::at_rest::Regions;
use cenote_layout::catalog::{AtRest, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::superblock::INCOMPAT_POOLS_AT_REST;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError};
use cenote_sealed::{Patches, SealedError, Source, Verified, View};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Where the sealed pages begin: behind the header page.
pub(crate) const DATA_AT: u64 = PAGE_SIZE;

/// Pages of a puddle that are sealed.
fn pages_of(record: &PuddleRecord) -> u64 {
    record.size.saturating_sub(DATA_AT) / PAGE_SIZE
}

/// Bytes of a puddle's file; `None` for a size that no puddle has.
pub(crate) fn file_len(record: &PuddleRecord, at_rest: AtRest) -> Option<u64> {
    match at_rest {
        AtRest::None => Some(record.size),
        at_rest => record.size.checked_add(Regions::new(at_rest.mode(), pages_of(record))?.len),
    }
}

/// A puddle as messages name it.
fn named(pool: &str, record: &PuddleRecord) -> String {
    format!("puddle {} of pool \"{pool}\"", record.index)
}

/// What is wrong with a pool's protection or key.
pub(crate) fn at_rest(pool: &str, error: SealedError) -> StoreError {
    match error {
        SealedError::Medium(error) => error.into(),
        SealedError::AtRest { source, .. } => StoreError::AtRest { name: pool.into(), source },
        error => StoreError::Sealed { name: pool.into(), source: Box::new(error) },
    }
}

/// A puddle whose key fits.
pub(crate) struct Opened {
    pub(crate) record: PuddleRecord,
    protection: Protection,
    source: Source,
}

/// A puddle, or one that is damaged, with what is wrong.
pub(crate) type Unsealed = Result<Opened, (PuddleRecord, String)>;

/// What an open protected pool needs to grow, and to show who may have it.
#[derive(Debug)]
pub(crate) struct Sealed {
    mode: Mode,
    /// The key of all puddles but the root; none in modes without keys.
    subordinate: Option<Keyring>,
}

/// Pages of one puddle of a pool that were looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedPuddle {
    /// The puddle.
    pub uuid: Uuid,
    /// Its number in its pool.
    pub index: u32,
    /// What was found. Pages are counted from the puddle's second, the first being its header: page 0 is at offset 4096.
    pub found: Verified,
}

impl Inner {
    /// What is wrong with the file of a puddle of a protected pool; nothing is said of sealed pages.
    pub(crate) fn verify_sealed(
        &self,
        record: &PuddleRecord,
        protection: AtRest,
    ) -> Result<Option<String>, MediumError> {
        let Some(len) = file_len(record, protection) else {
            return Ok(Some("the catalog gives it a size that no puddle has".into()));
        };
        verify_len(&*self.medium, text(&file_name(record.uuid)), (record, len), self.uuid, self.writable)
    }

    /// Makes the file of a new puddle of a protected pool, and names it in one batch after the records `with`.
    pub(crate) fn add_sealed_puddle(
        &self,
        control: &mut Control,
        (pool, index, size): (PoolId, u32, u64),
        (name, mode, key): (&str, Mode, Option<&Keyring>),
        with: &[Record],
    ) -> Result<PuddleRecord, StoreError> {
        let wanted = PuddleRecord { uuid: Uuid::NIL, pool, role: Role::Heap, index, addr: 0, size };
        let record = self.new_puddle_by(control, None, wanted, &|record| {
            let made = Protection::create(record.uuid, pages_of(record), mode, key);
            let made = made.map_err(|error| at_rest(name, SealedError::at_rest(name, error)))?;
            let len = record.size + made.regions().len;
            let (header, mut protection) = (make_header(record, self.uuid), made.header().to_vec());
            if planted(Bug::PoolHeaderLate) {
                protection.clear();
            }
            let parts = [(0, header.as_bytes()), (record.size, protection.as_slice())];
            create_whole(&*self.medium, text(&file_name(record.uuid)), DIR, len, &parts)
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

    /// The superblock says that the catalog may have records of protected pools. On the medium before the first of them is.
    pub(crate) fn announce_at_rest(&self, control: &mut Control) -> Result<(), StoreError> {
        if control.superblock.prefix.incompat & INCOMPAT_POOLS_AT_REST != 0 {
            return Ok(());
        }
        let mut next = control.superblock;
        next.prefix.incompat |= INCOMPAT_POOLS_AT_REST;
        superblock::store_next(&*self.medium, &mut next).map_err(|error| self.failed(error))?;
        control.superblock = next;
        Ok(())
    }

    /// Opens the protection of one puddle: its key is checked, and no page is read.
    fn open_sealed(
        &self,
        control: &Control,
        name: &str,
        record: PuddleRecord,
        (mode, key, patches): (Mode, Option<&Keyring>, Patches),
    ) -> Result<Opened, StoreError> {
        let file = Arc::new(FileHandle::open(&self.medium, text(&file_name(record.uuid)))?);
        let journal = match self.writable {
            true => Some(Arc::clone(self.pool_journal(&control.catalog.state)?)),
            false => None,
        };
        let source =
            Source::new(mode, pages_of(&record), (record.uuid, file, DATA_AT), journal, patches).ok_or(
                StoreError::PuddleSize { size: record.size, reason: "no protection covers so many pages" },
            )?;
        let protection = cenote_sealed::open(&named(name, &record), mode, &source, key);
        Ok(Opened { record, protection: protection.map_err(|error| at_rest(name, error))?, source })
    }

    /// Opens the protection of puddles of a pool, in index order, with the caller's key. One that is damaged is returned with what is wrong; if it is the root puddle, nothing can be opened.
    pub(crate) fn unseal(
        &self,
        control: &mut Control,
        name: &str,
        (records, mode): (&[PuddleRecord], Mode),
        key: Option<&Keyring>,
    ) -> Result<(Sealed, Vec<Unsealed>), StoreError> {
        let mut patches = if self.writable { Default::default() } else { self.patches_if_any(control)? };
        let mut patches_of = |record: &PuddleRecord| patches.remove(&record.uuid).unwrap_or_default();
        let Some((root, others)) = records.split_first().filter(|(root, _)| root.index == 0) else {
            // Whose keys the others are under is lost with it.
            return Ok((Sealed { mode, subordinate: None }, Vec::new()));
        };
        let root = self.open_sealed(control, name, *root, (mode, key, patches_of(root)))?;
        let subordinate =
            root.protection.subordinate(key).map_err(|e| at_rest(name, SealedError::at_rest(name, e)))?;
        let mut opened = vec![Ok(root)];
        for record in others {
            let with = (mode, subordinate.as_ref(), patches_of(record));
            opened.push(match self.open_sealed(control, name, *record, with) {
                // The key is the pool's own, and fits: this file is not the one that belongs here, or damaged.
                Err(StoreError::AtRest { source, .. }) => Err((*record, source.to_string())),
                other => Ok(other?),
            });
        }
        Ok((Sealed { mode, subordinate }, opened))
    }

    /// Gives a puddle its memory.
    pub(crate) fn show_sealed(
        &self,
        name: &str,
        puddle: &Puddle,
        opened: Opened,
        writable: bool,
    ) -> Result<(), StoreError> {
        let medium = &*self.medium;
        puddle.give_view(|| {
            // SAFETY: the puddle's own range, where nothing is mapped: its state says so. The medium has the range from now on, and the
            // header page is seen there; the view comes over the others.
            unsafe {
                medium.map(puddle.file_name(), puddle.addr(), puddle.size(), MapMode::PrivateCopy)?;
            }
            let (what, base) = (named(name, &opened.record), (puddle.addr() + DATA_AT) as usize);
            // SAFETY: mapped just now, and given to nobody; the view is stopped before the puddle is unmapped.
            let view = unsafe { View::unregistered(&what, opened.protection, opened.source, base, writable) };
            view.map_err(|error| at_rest(name, error)).inspect_err(|_| {
                // SAFETY: mapped above; the view is gone.
                let _ = unsafe { medium.unmap(puddle.addr(), puddle.size()) };
            })
        })
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
        let mut patches = if self.writable { Default::default() } else { self.patches_if_any(control)? };
        let patches = patches.remove(&root.uuid).unwrap_or_default();
        self.open_sealed(control, &record.name, root, (sealed.mode, key, patches)).map(drop)
    }

    /// Takes a further puddle for an open pool, with its memory; not findable yet.
    pub(crate) fn take_sealed(
        &self,
        control: &mut Control,
        (pool, name): (PoolId, &str),
        (index, size): (u32, u64),
        sealed: &Sealed,
    ) -> Result<core::ptr::NonNull<Puddle>, StoreError> {
        let key = sealed.subordinate.as_ref();
        let record = self.add_sealed_puddle(control, (pool, index, size), (name, sealed.mode, key), &[])?;
        let opened = self.open_sealed(control, name, record, (sealed.mode, key, Patches::new()))?;
        let puddle = self.own(control, record, MapMode::Tracked);
        // SAFETY: puddles live until the store is dropped.
        self.show_sealed(name, unsafe { puddle.as_ref() }, opened, true)?;
        Ok(puddle)
    }
}

impl PoolHandle {
    /// How the pool is protected at rest.
    #[must_use]
    pub fn at_rest(&self) -> AtRest {
        self.core().sealed().map_or(AtRest::None, |sealed| AtRest::of(sealed.mode))
    }

    /// Copies bytes of the pool from `addr` on: what a load gives, with an error where a load would be a bus error because a page fails its check. Meanwhile nobody writes there.
    ///
    /// # Errors
    /// [`StoreError::Sealed`] with the first page that is damaged; a range that is not in one puddle of this pool.
    pub fn read_at(&self, addr: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        let puddle = self.holder_of(addr, bytes.len() as u64)?;
        self.store().ensure_mapped(puddle)?;
        let offset = addr - puddle.addr();
        match puddle.view() {
            Some(view) if offset >= DATA_AT => {
                let (from, end) = (offset - DATA_AT, offset - DATA_AT + bytes.len() as u64);
                view.load(from / PAGE_SIZE..end.div_ceil(PAGE_SIZE))
                    .map_err(|error| at_rest(self.name(), error))?;
                view.copy_out(from, bytes);
            }
            // SAFETY: mapped, and in the puddle.
            _ => unsafe {
                let from = core::ptr::with_exposed_provenance::<u8>(addr as usize);
                core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
            },
        }
        Ok(())
    }

    /// Checks every page of every puddle, as the last psync left them, and gives no contents out. `progress` is told pages done and pages altogether; if it says `false`, that is
    /// all. Of a pool without protection there is nothing to say; in modes without a tree nothing is covered.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Vec<VerifiedPuddle> {
        let puddles = self.puddles();
        let all: u64 = puddles.iter().filter_map(|p| p.view()).map(View::pages).sum();
        let (mut before, mut goes_on) = (0, true);
        let mut out = Vec::new();
        for puddle in puddles {
            let Some(view) = puddle.view().filter(|_| goes_on) else { continue };
            let found = cenote_sealed::verify(view, &mut |done, _| {
                goes_on = progress(before + done, all);
                goes_on
            });
            before += view.pages();
            let mut found = found;
            if !found.damaged.is_empty() {
                self.look_again(view, &mut found);
            }
            out.push(VerifiedPuddle { uuid: puddle.uuid(), index: puddle.index(), found });
        }
        out
    }

    /// Looks again at pages that seemed damaged, while nobody psyncs: one that was psynced between being read and being compared is whole.
    fn look_again(&self, view: &View, found: &mut cenote_sealed::Verified) {
        let shadow = self.store().inner().known_shadow(self.id());
        let entered = shadow.as_ref().map(|shadow| shadow.gate.alone());
        found.damaged.retain_mut(|(page, wrong)| match cenote_sealed::check_one(view, *page) {
            Ok(()) => false,
            Err(now) => {
                *wrong = now;
                true
            }
        });
        drop(entered);
    }

    /// What to remember elsewhere, so that putting back *everything* of the pool from earlier is noticed: one for each puddle. Not secret.
    #[must_use]
    pub fn anchors(&self) -> Vec<Anchor> {
        self.puddles().iter().filter_map(|p| p.view()).map(|view| view.protection().anchor()).collect()
    }

    /// Compares the pool with what [`PoolHandle::anchors`] said earlier.
    ///
    /// # Errors
    /// [`StoreError::AtRest`]: a puddle is gone, older than it was, or of another history.
    pub fn check_anchors(&self, anchors: &[Anchor]) -> Result<(), StoreError> {
        let puddles = self.puddles();
        for anchor in anchors {
            let view =
                puddles.iter().filter_map(|p| p.view()).find(|v| v.protection().object() == anchor.object);
            let checked = match view {
                Some(view) => view.protection().check_anchor(anchor),
                None => {
                    let detail =
                        format!("puddle {} of pool \"{}\" is not there any more", anchor.object, self.name());
                    return Err(StoreError::PoolRolledBack { name: self.name().into(), detail });
                }
            };
            checked.map_err(|error| at_rest(self.name(), SealedError::at_rest(self.name(), error)))?;
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

    /// Refuses what cannot be done with a pool that is protected at rest.
    pub(crate) fn refuse_protected(&self, name: &str, what: &'static str) -> Result<(), StoreError> {
        let control = self.inner().control();
        let id = find(&control, name)?;
        match control.catalog.state.is_protected(id) {
            true => Err(StoreError::Protected { name: name.into(), what }),
            false => Ok(()),
        }
    }

    /// Puts a pool that is not open under another key, durably, in constant time: none of its pages is written again. Who had the old key *and* a copy of what lay on the medium
    /// then can still read that copy: to end that, make a new pool. The journal keeps the header of before until its space is used again.
    ///
    /// # Errors
    /// [`StoreError::AtRest`]: the old key is wrong; [`StoreError::NotProtected`]: the pool has no key; it is open; as of a psync: nothing has changed then, or the store is poisoned.
    pub fn rekey_pool(&self, name: &str, old: &Keyring, new: &Keyring) -> Result<(), StoreError> {
        let inner = self.inner();
        let control = inner.begin_write("change the key of a pool")?;
        let id = find(&control, name)?;
        let mode = control.catalog.state.at_rest(id).mode();
        if !mode.has_key() {
            return Err(StoreError::NotProtected { name: name.into() });
        }
        if control.pools.get(&id).is_some_and(|core| Arc::strong_count(core) > 1) {
            return Err(StoreError::PoolInUse { name: name.into() });
        }
        let puddles = control.catalog.state.puddles_of(id);
        let Some(root) = puddles.first().copied().filter(|root| root.index == 0) else {
            return Err(StoreError::PoolDamaged { name: name.into(), damage: Vec::new() });
        };
        let opened = self.inner().open_sealed(&control, name, root, (mode, Some(old), Patches::new()))?;
        let (changes, header) =
            cenote_sealed::rekey(&named(name, &root), &opened.protection, &opened.source, new)
                .map_err(|error| at_rest(name, error))?;
        let file = Arc::clone(opened.source.file());
        if planted(Bug::PoolRekeyInPlace) {
            file.write_at(root.size, &header)?;
            return file.sync().map_err(|error| inner.failed(error));
        }
        let (ids, journal) = ([root.uuid], inner.pool_journal(&control.catalog.state)?);
        let Some(draft) = Draft::new(&ids, &changes) else {
            return Err(StoreError::PsyncTooLarge { needed: header.len() as u64, limit: 1 << 36 });
        };
        let ticket = journal.append(&draft)?;
        journal.make_durable(&ticket)?;
        let target = Target { id: root.uuid, file, data_offset: DATA_AT };
        journal.apply_later(ticket, changes, vec![target])?;
        journal.settle(root.uuid)?;
        // SAFETY: puddles live until the store is dropped.
        let known = control.puddles.get(&root.uuid).and_then(|known| unsafe { known.as_ref() }.view());
        known.map_or(Ok(()), |view| view.protection().rekeyed(&header)).map_err(|error| {
            inner.poison(&format!("the protection of pool \"{name}\" went out of step: {error}"));
            at_rest(name, SealedError::at_rest(name, error))
        })
    }
}
