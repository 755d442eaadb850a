//! Reads superblock and catalog of a directory, before anything is recovered.

use crate::alive;
use crate::kernel::catalog::journals::Journals;
use crate::kernel::catalog::{self, Catalog};
use crate::kernel::directory::exclusion::{self, Locks};
use crate::kernel::interface::error::OpenError;
use crate::kernel::interface::options::{DamagePolicy, OpenOptions};
use crate::kernel::interface::report::{Damage, DamageEffect, OpenReport};
use crate::kernel::puddles::stamps::Stamps;
use crate::kernel::puddles::window::{Space, StoreWindow};
use crate::kernel::store::{Control, Inner, LOCK, Store};
use crate::kernel::superblock::fence::Fence;
use crate::kernel::superblock::origin::StorePlace;
use crate::kernel::superblock::poison::Poisoned;
use crate::kernel::superblock::{self, FILE, FoundSuperblock, NEW_FILE};
use crate::parts;
use crate::pending_rewrite::lazy_rewrite::LazyRewrite;
use crate::relocate;
use cenote_layout::id::Uuid;
use cenote_layout::superblock::{ORIGIN_COPY, ORIGIN_OWN, Superblock};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{MediumError, MediumInfo, MediumKind, OwnedMedium};
use cenote_sys::fork_guard;
use core::sync::atomic::AtomicBool;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Refuses what can be told before the lock, which may make a file: what is not a store stays as it
/// is.
pub(super) fn refuse_no_store(
    medium: &OwnedMedium,
    options: &OpenOptions,
) -> Result<(), OpenError> {
    let path = medium.describe().path;
    let failed = |source| OpenError::Medium { path: path.clone(), source: Box::new(source) };
    let writes = options.access.writes();
    if writes && medium.read_only() {
        return Err(OpenError::ReadOnlyMedium { path });
    }
    if !medium.exists(FILE).map_err(failed)? {
        return Err(without_superblock(medium, path.clone()).unwrap_or_else(failed));
    }
    superblock::load(medium, writes)?;
    if !writes && !medium.exists(LOCK).map_err(failed)? {
        return Err(OpenError::LockMissing { path });
    }
    Ok(())
}

/// Why a directory without a superblock is not opened.
fn without_superblock(medium: &OwnedMedium, path: String) -> Result<OpenError, MediumError> {
    let begun = medium.exists(NEW_FILE)?
        || catalog::FILES.iter().any(|name| medium.exists(name).unwrap_or(false));
    Ok(match crate::kernel::directory::format::rest_of_store(&**medium)? {
        Some(found) => OpenError::SuperblockMissing { path, found },
        None if begun => OpenError::FormatInterrupted { path },
        None => OpenError::NotAStore { path },
    })
}

/// Superblock and catalog as they were read under the locks.
pub(super) struct Loaded {
    medium: OwnedMedium,
    info: MediumInfo,
    site: StorePlace,
    found: FoundSuperblock,
    /// The files are a copy of an open store's.
    copied: bool,
    journals: Journals,
    /// A batch that the catalog had once.
    at_least: u64,
    merged: catalog::Merged,
    bytes: catalog::Contents,
}

impl Loaded {
    /// Reads superblock and catalog. Refuses a copy of an open store, unless the options say
    /// otherwise.
    pub(super) fn read(
        medium: OwnedMedium,
        info: MediumInfo,
        site: StorePlace,
        options: &OpenOptions,
    ) -> Result<Self, OpenError> {
        let path = || info.path.clone();
        let failed = |source| OpenError::Medium { path: path(), source: Box::new(source) };
        let writes = options.access.writes();
        let found = superblock::load(&medium, writes)?;
        let now = (medium.boot_id(), medium.mounting());
        let copied = exclusion::recognise(&info, &found, site, now, options.copy)?;
        let journals = Journals::of(&medium, &found, (copied, writes)).map_err(failed)?;
        let at_least = journals.batch_at_least(&found.newest);
        let (merged, bytes) = catalog::load(&medium, at_least).map_err(failed)?;
        journals.catalog_names(merged.names, &found.newest);
        Ok(Self { medium, info, site, found, copied, journals, at_least, merged, bytes })
    }

    /// What the caller learns of it. Refuses damage, or makes the store read-only, as the options
    /// say.
    pub(super) fn report(&mut self, options: &OpenOptions) -> Result<OpenReport, OpenError> {
        let path = self.info.path.clone();
        let mut report = OpenReport {
            clean: self.found.clean,
            copied: self.copied,
            damage: core::mem::take(&mut self.found.damage),
            ..OpenReport::default()
        };
        report.damage.extend(self.merged.damage.iter().cloned());
        if let (true, Some(file)) = (self.found.clean, self.merged.torn) {
            report.damage.push(Damage::Catalog {
                file: catalog::FILES[file],
                offset: 0,
                len: 0,
                detail: "its last batch is incomplete, but the store was closed".into(),
                effect: DamageEffect::ReadFromOther,
            });
        }
        if !self.merged.usable {
            return Err(OpenError::CatalogLost { path, damage: self.merged.damage.clone() });
        }
        if self.merged.canonical.is_none() {
            match options.damage {
                DamagePolicy::Refuse => {
                    let at_least = self.at_least;
                    return Err(match self.merged.rolled_back {
                        Some(last) => OpenError::CatalogRolledBack { path, found: last, at_least },
                        None => OpenError::Catalog { path, damage: self.merged.damage.clone() },
                    });
                }
                DamagePolicy::ReadOnly => report.demoted = options.access.writes(),
                DamagePolicy::SkipDamaged => {}
            }
        }
        let newest = &self.found.newest;
        refuse_older_superblock(&path, options.damage, newest, &self.merged, &mut report)?;
        Ok(report)
    }

    /// The superblock of this session, which says "open" later; and the fence, if it writes.
    fn begin_session(
        &self,
        writable: bool,
        poisoned: &Arc<Poisoned>,
    ) -> Result<(Superblock, Option<Arc<Fence>>), OpenError> {
        let mut block = self.found.newest;
        let half_open = self.found.half_open && !self.copied;
        let begin = || Fence::begin(&self.medium, (self.site, half_open), (&mut block, poisoned));
        let fence = writable.then(begin).transpose().map_err(|source| OpenError::Medium {
            path: self.info.path.clone(),
            source: Box::new(source),
        })?;
        self.site.record(&mut block);
        block.origin = if self.copied { ORIGIN_COPY } else { ORIGIN_OWN };
        Ok((block, fence.map(Arc::new)))
    }

    /// The store, with its window reserved, before recovery; and what its catalog files held.
    pub(super) fn into_store(
        self,
        options: OpenOptions,
        locks: Locks,
        writable: bool,
    ) -> Result<(Store, catalog::Merged, catalog::Contents), OpenError> {
        let poisoned = Arc::default();
        let (block, fence) = self.begin_session(writable, &poisoned)?;
        let Self { medium, info, found, copied, journals, merged, bytes, .. } = self;
        let tie = journals.catalog().clone();
        let catalog = Catalog::new(medium.clone(), (&merged, tie), &bytes, fence.clone());
        let same_boot = found.newest.boot_id == medium.boot_id();
        let opener = (options.hosting.is_some(), same_boot);
        alive::refuse((&*medium, &info.path), &catalog.state, opener)?;
        let stays = why_it_stays(&catalog, writable && merged.canonical.is_none(), same_boot);
        let home = relocate::window::home(&catalog.state, &block);
        let place =
            relocate::window::reserve(&*medium, block.store, home, (&options, writable), stays)?;

        // From here on `Inner` owns the window and the lock, and gives both back in any case.
        let durability = options.durability.unwrap_or(info.durability);
        let simulated = info.kind == MediumKind::Simulated;
        let frontier = LazyRewrite::new(
            medium.clone(),
            block.store,
            (writable, simulated),
            options.relocation.clone(),
            Arc::clone(&poisoned),
        );
        let unchecked_objects = match copied {
            true => catalog.state.objects.keys().copied().collect(),
            false => BTreeSet::new(),
        };
        let space = Space::new(home.0, place.len);
        let store = Store::new(Arc::new(Inner {
            window: StoreWindow::of_store(place.base, place.len, place.distance, &info.path),
            persistence: medium.persistence(durability),
            medium,
            uuid: block.store,
            writable,
            eager: simulated,
            info,
            options,
            durability,
            token: fork_guard::token(),
            poisoned,
            stamps: Stamps::default(),
            parts: parts::of_store(frontier),
            replaying: Mutex::default(),
            silent: AtomicBool::new(true),
            remote: None,
            fence,
            journals: Mutex::default(),
            files_moving: Mutex::default(),
            primaries: locks.1.into(),
            control: Mutex::new(Control {
                journals,
                unchecked_objects,
                lock: Some(locks.0),
                ..Control::new(block, catalog, space, Uuid::NIL, parts::under_lock())
            }),
        }));
        store.inner().stamps.set_new_copy(copied && found.newest.origin == ORIGIN_OWN);
        Ok((store, merged, bytes))
    }
}

/// Why a store whose window is taken must not move to another one.
fn why_it_stays(catalog: &Catalog, records_lost: bool, same_boot: bool) -> Option<&'static str> {
    if records_lost {
        return Some("records of its catalog are lost");
    }
    let living = || alive::seen(&catalog.state).next().is_some();
    (same_boot && living()).then_some("clients of an earlier daemon live, and have it mapped there")
}

/// Refuses a superblock that was put back: it says that the store was closed, and the catalog has
/// batches that came later. A session says "open" before its first batch, so no crash leaves that.
/// By another policy the store counts as open.
fn refuse_older_superblock(
    path: &str,
    policy: DamagePolicy,
    newest: &Superblock,
    merged: &catalog::Merged,
    report: &mut OpenReport,
) -> Result<(), OpenError> {
    let (named, found) = (newest.catalog_batch, merged.last_batch);
    if !report.clean || found <= named || planted(Bug::OlderJournalAccepted) {
        return Ok(());
    }
    if policy == DamagePolicy::Refuse {
        return Err(OpenError::SuperblockRolledBack { path: path.into(), named, found });
    }
    report.clean = false;
    let detail =
        format!("it was put back: it names batch {named} of the catalog, which has batch {found}");
    report.damage.push(Damage::Superblock { copy: (newest.generation % 2) as u8, detail });
    Ok(())
}
