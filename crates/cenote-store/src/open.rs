//! Opening a store.
//!
//! States of an open for writing: (1) the locks are taken, and a copy of an open store is refused
//! ([`crate::kernel::exclusion`]); (2) catalog files that are torn or damaged in one copy are
//! written anew; (3) recovery, with states of its own ([`crate::recovery`]); (4) files without a
//! record are removed, if nothing can be lost with them ([`crate::leftover`]), and what a crashed
//! session stored at level `process` is synced if this one is at `power`; (5) the superblock says
//! "open", with boot id, process and client: **its sync commits**. Only then is a handle given out.
//! A crash before leaves what the next open finds as it was before, or recovered. (6) A store whose
//! window is taken in this process moves to another one ([`crate::relocate::window`]); all before
//! is done at a distance.
//!
//! Where the store was closed, (5) comes before (2): recovery appends batches then, too, if logs
//! were set aside, and a crash in the middle of one is no damage only in a store that is open.
//! Where it was not, the boot under which its clients lived must stay in the superblock until they
//! have been recovered.

use crate::alive;
use crate::due::lazy_rewrite::LazyRewrite;
use crate::kernel::catalog::{self, Catalog};
use crate::kernel::error::{OpenError, StoreError};
use crate::kernel::exclusion;
use crate::kernel::fence::Fence;
use crate::kernel::journals::{JournalOf, Journals};
use crate::kernel::options::{DamagePolicy, OpenOptions};
use crate::kernel::origin::keeps_cache;
use crate::kernel::puddle::{DIR, file_name, text};
use crate::kernel::report::{Damage, DamageEffect, OpenReport};
use crate::kernel::stamps::Stamps;
use crate::kernel::store::{Control, Inner, LOCK, Store};
use crate::kernel::superblock::{self, FILE, NEW_FILE};
use crate::kernel::verify::missing as missing_file;
use crate::kernel::window::{Space, Window};
use crate::leftover::Leftovers;
use crate::parts;
use crate::relocate;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::Record;
use cenote_layout::header::read;
use cenote_layout::id::Uuid;
use cenote_layout::puddle::PuddleHeader;
use cenote_layout::superblock::{
    DURABILITY_POWER, DURABILITY_PROCESS, INCOMPAT_MOUNTING, ORIGIN_COPY, ORIGIN_OWN, STATE_OPEN,
    Superblock,
};
use cenote_log::CrashKind;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{
    Durability, Medium, MediumError, MediumInfo, MediumKind, Operation, OwnedMedium,
};
use cenote_sys::fork_guard;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

impl Store {
    /// Opens a store: recovers it first, if its last writer did not close it.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing was changed, except that recovery may have been done in part,
    /// which the next open completes.
    pub fn open(
        medium: Arc<dyn Medium>,
        options: OpenOptions,
    ) -> Result<(Self, OpenReport), OpenError> {
        // SAFETY: the store takes the lock before it changes a file that there is. From then on the
        // files are its own; each module argues for what it changes.
        let medium = unsafe { OwnedMedium::new(medium) };
        let info = medium.describe();
        let path = info.path.clone();
        let failed = |source| OpenError::Medium { path: path.clone(), source: Box::new(source) };
        check_options(&options, &info)?;
        let wants_write = options.access.writes();
        if wants_write && medium.read_only() {
            return Err(OpenError::ReadOnlyMedium { path });
        }
        if !medium.exists(FILE).map_err(failed)? {
            return Err(without_superblock(&medium, path.clone()).unwrap_or_else(failed));
        }
        // Before the lock, which may make a file: what is not a store stays as it is.
        superblock::load(&medium, wants_write)?;
        if !wants_write && !medium.exists(LOCK).map_err(failed)? {
            return Err(OpenError::LockMissing { path });
        }
        let (locks, site) = exclusion::take(&medium, wants_write, options.lock_timeout)?;

        let started = Instant::now();
        let found = superblock::load(&medium, wants_write)?;
        let now = (medium.boot_id(), medium.mounting());
        let copied = exclusion::recognise(&info, &found, site, now, options.copy)?;
        let journals = Journals::of(&medium, &found, (copied, wants_write)).map_err(failed)?;
        let at_least = journals.batch_at_least(&found.newest);
        let (merged, bytes) = catalog::load(&medium, at_least).map_err(failed)?;
        journals.catalog_names(merged.names, &found.newest);
        let mut report = OpenReport {
            clean: found.clean,
            copied,
            damage: found.damage,
            ..OpenReport::default()
        };
        report.damage.extend(merged.damage.iter().cloned());
        if let (true, Some(file)) = (found.clean, merged.torn) {
            report.damage.push(Damage::Catalog {
                file: catalog::FILES[file],
                offset: 0,
                len: 0,
                detail: "it ends in half a batch although the store was closed".into(),
                effect: DamageEffect::ReadFromOther,
            });
        }
        if !merged.usable {
            return Err(OpenError::CatalogLost { path, damage: merged.damage });
        }
        if merged.canonical.is_none() {
            match options.damage {
                DamagePolicy::Refuse => {
                    return Err(match merged.rolled_back {
                        Some(last) => OpenError::CatalogRolledBack { path, found: last, at_least },
                        None => OpenError::Catalog { path, damage: merged.damage },
                    });
                }
                DamagePolicy::ReadOnly => report.demoted = wants_write,
                DamagePolicy::SkipDamaged => {}
            }
        }
        refuse_older_superblock(&path, options.damage, &found.newest, &merged, &mut report)?;
        let clean = report.clean;
        let writable = wants_write && !report.demoted;
        let poisoned = Arc::default();
        let mut block = found.newest;
        let half_open = found.half_open && !copied;
        let begin = || Fence::begin(&medium, (site, half_open), (&mut block, &poisoned));
        let fence = writable.then(begin).transpose().map_err(failed)?.map(Arc::new);
        site.record(&mut block);
        block.origin = if copied { ORIGIN_COPY } else { ORIGIN_OWN };
        let catalog = Catalog::new(
            medium.clone(),
            (&merged, journals.catalog().clone()),
            &bytes,
            fence.clone(),
        );
        let same_boot = found.newest.boot_id == medium.boot_id();
        alive::refuse((&*medium, &path), &catalog.state, (options.hosting.is_some(), same_boot))?;
        let living = alive::seen(&catalog.state).next().is_some();
        let stays = match () {
            () if writable && merged.canonical.is_none() => Some("records of its catalog are lost"),
            () if same_boot && living => {
                Some("clients of an earlier daemon live, and have it mapped there")
            }
            () => None,
        };
        let home = relocate::window::home(&catalog.state, &block);
        let place =
            relocate::window::reserve(&*medium, block.store, home, (&options, writable), stays)?;
        let (base, len) = (place.base, place.len);

        // From here on `Inner` owns the window and the lock, and gives both back whatever happens.
        let durability = options.durability.unwrap_or(info.durability);
        let frontier = LazyRewrite::new(
            medium.clone(),
            block.store,
            (writable, info.kind == MediumKind::Simulated),
            options.relocation.clone(),
            Arc::clone(&poisoned),
        );
        let unchecked_objects = match copied {
            true => catalog.state.objects.keys().copied().collect(),
            false => BTreeSet::new(),
        };
        let space = Space::new(home.0, len);
        let store = Self::new(Arc::new(Inner {
            window: Window::of_store(base, len, place.distance, &path),
            persistence: medium.persistence(durability),
            medium,
            uuid: block.store,
            writable,
            eager: info.kind == MediumKind::Simulated,
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
        store.arc().bring_up(clean, &merged, &bytes, &mut report).map_err(failed)?;
        store.inner().move_home(&mut report)?;
        report.recovery = started.elapsed();
        Ok((store, report))
    }
}

/// Why a directory without a superblock is not opened.
fn without_superblock(medium: &OwnedMedium, path: String) -> Result<OpenError, MediumError> {
    let begun = medium.exists(NEW_FILE)?
        || catalog::FILES.iter().any(|name| medium.exists(name).unwrap_or(false));
    Ok(match crate::kernel::format::rest_of_store(&**medium)? {
        Some(found) => OpenError::SuperblockMissing { path, found },
        None if begun => OpenError::FormatInterrupted { path },
        None => OpenError::NotAStore { path },
    })
}

/// Takes the places of puddles out of the window's free space.
fn occupy(control: &mut Control, merged: &catalog::Merged, report: &OpenReport) {
    for puddle in merged.records.iter().filter_map(|r| match r {
        Record::Puddle(p) => Some(p),
        _ => None,
    }) {
        // Also what `check` has taken out: nothing new is put on top of it.
        if control.catalog.state.puddles.contains_key(&puddle.uuid) || control.catalog.is_damaged()
        {
            control.space.occupy(puddle.addr, puddle.size);
        }
    }
    for damage in &report.damage {
        if let Damage::Puddle { uuid, .. } = damage
            && let Some(Record::Puddle(p)) = merged
                .records
                .iter()
                .rev()
                .find(|r| matches!(r, Record::Puddle(p) if p.uuid == *uuid))
        {
            control.space.occupy(p.addr, p.size);
        }
    }
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

fn check_options(options: &OpenOptions, info: &MediumInfo) -> Result<(), OpenError> {
    let size = options.log_puddle_size;
    if size < 2 * PAGE_SIZE || !size.is_multiple_of(PAGE_SIZE) || size > 1 << 30 {
        return Err(OpenError::Options(
            "log_puddle_size is not a multiple of 4 KiB from 8 KiB to 1 GiB".into(),
        ));
    }
    let half = options.journal_half_len;
    if half < PAGE_SIZE || !half.is_multiple_of(PAGE_SIZE) || half > 1 << 36 {
        return Err(OpenError::Options(
            "journal_half_len is not a multiple of 4 KiB up to 64 GiB".into(),
        ));
    }
    if let Some(wanted) = options.durability
        && wanted > info.durability
    {
        return Err(OpenError::Durability {
            path: info.path.clone(),
            wanted,
            given: info.durability,
            note: info.note.clone(),
        });
    }
    Ok(())
}

impl Inner {
    /// Everything between lock and handle, in the order of the module's documentation.
    fn bring_up(
        self: &Arc<Self>,
        clean: bool,
        merged: &catalog::Merged,
        bytes: &catalog::Contents,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        let mut guard = self.control();
        let control = &mut *guard;
        let boot = self.medium.boot_id();
        let crash = match (clean, keeps_cache(&control.superblock, &*self.medium)) {
            (true, _) => None,
            // Its files are of different moments: nothing that its sessions stored is covered.
            (false, _) if report.copied => Some(CrashKind::Power),
            (false, true) => Some(CrashKind::Process),
            // Never opened for writing: nothing can be lost.
            (false, false) if control.superblock.boot_id.is_nil() => Some(CrashKind::Process),
            (false, false) => Some(CrashKind::Power),
        };
        report.crash = crash;
        self.expect_journals(control, clean, report)?;
        control.client = self.medium.random_uuid()?;
        self.begin_era(control, clean, merged.canonical.is_none(), report);
        // The medium says addresses at home.
        let home = self.window.base().wrapping_sub(self.window.distance());
        let impossible = control.catalog.state.check(home, self.window.len());
        if !impossible.is_empty() {
            // A snapshot would leave out what was taken out, and then its files would pass for
            // orphans.
            control.catalog.freeze();
        }
        report.damage.extend(impossible);
        occupy(control, merged, report);
        let said = clean && !planted(Bug::OpenSaidLate);
        if self.writable {
            if said {
                self.say_open(control, boot, false)?;
            }
            report.catalog_files_repaired = control.catalog.repair(merged, bytes)?;
        }
        let (leftovers, missing) = self.compare_files(control, (merged, !clean), report)?;
        *control.parts.get_mut() = self.load_kept(&control.catalog.state)?;
        if planted(Bug::MovedBeforeRecovery) && self.writable && self.window.distance() != 0 {
            self.move_before_recovery(control);
        }
        // Recovery answers for pages that are lost under it.
        let registration = crate::lazy::register(self).map_err(|error| {
            MediumError::from_io(Operation::Map, "the window", std::io::Error::other(error))
        })?;
        control.registration = Some(registration);
        crate::recovery::recover(self, control, crash, &missing, report)?;
        self.remove_leftovers(control, leftovers, report)?;
        if self.writable {
            let raised = control.superblock.durability == DURABILITY_PROCESS
                && self.durability == Durability::Power
                && crash.is_some();
            if raised {
                self.sync_inherited(control)?;
            }
            if !said {
                self.say_open(control, boot, raised)?;
            }
            self.silent.store(false, Ordering::Release);
        }
        control.damage = report.damage.clone();
        self.give_up_early(control)
    }

    /// Both copies of the superblock say that this session has the store open; `raised`: at a
    /// higher level than the one before, whose end it recovered.
    fn say_open(&self, control: &mut Control, boot: Uuid, raised: bool) -> Result<(), MediumError> {
        control.superblock.state = STATE_OPEN;
        (control.superblock.boot_id, control.superblock.mounting) = (boot, self.medium.mounting());
        if control.superblock.mounting != 0 {
            control.superblock.prefix.incompat |= INCOMPAT_MOUNTING;
        }
        control.superblock.durability = match self.durability {
            // A guest that an earlier daemon told `process` goes on as it was told; until the next
            // open nothing counts as covered, also of those that come later.
            Durability::Power if raised && !control.hosted().is_empty() => DURABILITY_PROCESS,
            Durability::Power => DURABILITY_POWER,
            Durability::Process => DURABILITY_PROCESS,
        };
        control.superblock.client = control.client;
        control.superblock.era = self.stamps.era();
        control.superblock.unclosed = self.stamps.unclosed();
        control.superblock.catalog_batch = control.catalog.batch();
        let pid = cenote_sys::process::pid();
        control.superblock.opener_pid = u64::from(pid);
        control.superblock.opener_start_ticks = cenote_sys::process::start_ticks(pid).unwrap_or(0);
        let Some(fence) = &self.fence else { return Ok(()) };
        fence.store_next(&mut control.superblock)?;
        match planted(Bug::OpenSaidOnce) {
            true => Ok(()),
            false => fence.store_next(&mut control.superblock),
        }
    }

    /// Compares the puddle files of a store, which may have `crashed`, with the catalog. Missing
    /// files are damage, and returned second; of files without a record those are returned first
    /// that are to be removed: none if records were lost, since such a file may hold a pool.
    fn compare_files<'m>(
        &self,
        control: &mut Control,
        (merged, crashed): (&'m catalog::Merged, bool),
        report: &mut OpenReport,
    ) -> Result<(Leftovers<'m>, BTreeSet<Uuid>), MediumError> {
        let files = match self.medium.list(DIR) {
            Err(error) if error.is_not_found() => Vec::new(),
            files => files?,
        };
        let ids: BTreeMap<Uuid, &String> = files
            .iter()
            .filter(|f| f.len() == 32)
            .filter_map(|f| Some((Uuid::parse(f)?, f)))
            .collect();
        let mut missing = BTreeSet::new();
        for record in control.catalog.state.puddles.values() {
            if !ids.contains_key(&record.uuid) {
                missing.insert(record.uuid);
                report.damage.push(Damage::Puddle {
                    uuid: record.uuid,
                    pool: record.pool,
                    index: record.index,
                    detail: missing_file(text(&file_name(record.uuid))),
                });
            }
        }
        let refused: Vec<Uuid> = report
            .damage
            .iter()
            .filter_map(|d| match d {
                Damage::Puddle { uuid, .. } => Some(*uuid),
                _ => None,
            })
            .collect();
        let mut leftovers = Leftovers::new(merged, control.superblock.catalog_batch, crashed);
        for (uuid, name) in ids {
            if control.catalog.state.puddles.contains_key(&uuid) || refused.contains(&uuid) {
                continue;
            }
            if merged.canonical.is_some() {
                leftovers.add(self, (DIR, name, uuid), &mut report.damage)?;
                continue;
            }
            let mut page = [0; PAGE_SIZE as usize];
            let len = self.medium.read_at(&format!("{DIR}/{name}"), 0, &mut page)?;
            let detail = match read::<PuddleHeader>(&page[..len], false) {
                Ok(header) if header.store == self.uuid => {
                    control.space.occupy(header.addr, header.size);
                    control.catalog.state.next_pool =
                        control.catalog.state.next_pool.max(header.pool.0.saturating_add(1));
                    format!(
                        "puddle {} of pool {}, {} bytes at {:#x}",
                        header.index, header.pool, header.size, header.addr
                    )
                }
                Ok(header) => format!("a puddle of store {}", header.store),
                Err(error) => error.to_string(),
            };
            report.damage.push(Damage::Orphan { name: format!("{DIR}/{name}"), detail });
        }
        Ok((leftovers, missing))
    }
}

impl Inner {
    /// At an open, after recovery: the journal of a store that has pools in shadowed mode is used,
    /// or given up, so that the caller sees the pools that may be torn.
    fn give_up_early(&self, control: &mut Control) -> Result<(), MediumError> {
        let state = &control.catalog.state;
        if !self.gives_up() || !state.pools.keys().any(|pool| state.is_shadowed(*pool)) {
            return Ok(());
        }
        let opened = self.pool_journal(control).map(drop);
        opened.map_err(|error| match error {
            StoreError::Medium(error) => error,
            other => {
                let other = std::io::Error::other(other.to_string());
                MediumError::from_io(Operation::Write, JournalOf::Pools.file(), other)
            }
        })?;
        let of_pools =
            |damage: &Damage| matches!(damage, Damage::Journal { pools, .. } if !pools.is_empty());
        // What was said of the old one does not concern the new one.
        control.damage.retain(|damage| !of_pools(damage));
        Ok(())
    }
}
