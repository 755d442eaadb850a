//! Opens a store.
//!
//! States of an open for writing:
//!
//! 1. The locks are taken, and a copy of an open store is refused
//!    ([`crate::kernel::directory::exclusion`]).
//! 2. Catalog files that are torn or damaged in one copy are written anew.
//! 3. Recovery, with states of its own ([`crate::recovery`]).
//! 4. Files without a record are removed, if nothing can be lost with them ([`crate::leftover`]).
//!    Stores of a crashed session at level `process` are synced if this session is at `power`.
//! 5. The superblock says "open", with boot id, process and client: **its sync commits**. Only then
//!    the caller gets a handle.
//! 6. A store whose window is taken in this process moves to another one
//!    ([`crate::relocate::window`]); until then all is done at a distance.
//!
//! A crash before 5 leaves the store as it was, or recovered.
//! (6) A store whose window is taken in this process moves to another one
//! ([`crate::relocate::window`]); all before is done at a distance.
//!
//! If the store was closed, 5 comes before 2: recovery may append batches then, if logs were set
//! aside, and a crash in the middle of one is no damage only in a store that is open. If it was
//! open, the boot of its clients must stay in the superblock until they are recovered.

mod files;
mod loaded;

use crate::kernel::catalog;
use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::directory::exclusion;
use crate::kernel::interface::error::{OpenError, StoreError};
use crate::kernel::interface::options::OpenOptions;
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::store::{Control, Inner, Store};
use crate::kernel::superblock::origin::keeps_cache;
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::Uuid;
use cenote_layout::superblock::{
    DURABILITY_POWER, DURABILITY_PROCESS, INCOMPAT_MOUNTING, STATE_OPEN,
};
use cenote_log::CrashKind;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{Durability, Medium, MediumError, MediumInfo, Operation, OwnedMedium};
use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use files::occupy;
use loaded::{Loaded, refuse_no_store};

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
        check_options(&options, &info)?;
        refuse_no_store(&medium, &options)?;
        let (locks, site) =
            exclusion::take(&medium, options.access.writes(), options.lock_timeout)?;

        let started = Instant::now();
        let mut loaded = Loaded::read(medium, info, site, &options)?;
        let mut report = loaded.report(&options)?;
        let clean = report.clean;
        let writable = options.access.writes() && !report.demoted;
        let (store, merged, bytes) = loaded.into_store(options, locks, writable)?;
        store
            .arc()
            .bring_up(clean, &merged, &bytes, &mut report)
            .map_err(|source| OpenError::Medium { path, source: Box::new(source) })?;
        store.inner().move_home(&mut report)?;
        report.recovery = started.elapsed();
        Ok((store, report))
    }
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
        let crash = self.crash_before(control, clean, report.copied);
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

    /// How the last session ended, if it did not close the store.
    fn crash_before(&self, control: &Control, clean: bool, copied: bool) -> Option<CrashKind> {
        match (clean, keeps_cache(&control.superblock, &*self.medium)) {
            (true, _) => None,
            // Its files are of different moments: nothing that its sessions stored is covered.
            (false, _) if copied => Some(CrashKind::Power),
            (false, true) => Some(CrashKind::Process),
            // Never opened for writing: nothing can be lost.
            (false, false) if control.superblock.boot_id.is_nil() => Some(CrashKind::Process),
            (false, false) => Some(CrashKind::Power),
        }
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
            // A client that an earlier daemon told `process` goes on as it was told; until the next
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
