//! Makes a consistent copy of a store that is in use: [`Store::begin_backup`].
//!
//! # What the copy is
//!
//! A closed store of the same identity (decision 103). It holds
//!
//! | what | as it was |
//! | --- | --- |
//! | pools in direct mode | at one moment between transactions, the same for all of them |
//! | pools in shadowed mode, objects | after all psyncs up to one moment, and none after it |
//! | protected ones | the same, sealed |
//!
//! Logs and leases of living sessions stay behind: between transactions they say nothing. A session
//! that ended badly, and whose logs are set aside, goes along.
//!
//! # Clients
//!
//! A daemon's clients store into mappings and ask no process. The caller asks those that write
//! pools in direct mode to stand between two transactions ([`Store::pools_at_work`]). The others
//! change files only by psyncs, which the daemon makes. The copy is of the moment of 3 in which the
//! control lock is held: each pool that clients write then has one that keeps transactions from it
//! ([`Backup::copy_standing`]), nothing is granted, and no client is ended until the lock is
//! released. A client that has died does not count as standing until its logs are replayed.
//!
//! # Steps
//!
//! 1. *Begun*: a directory beside the target, under a name that no store has, locked by this
//!    process.
//! 2. *Ahead* ([`Backup::copy_ahead`]): every file is copied while all writers go on. The copies
//!    are of different moments.
//! 3. *Held* ([`Backup::copy_held`]): the caller keeps transactions from running; journals are
//!    quiet ([`cenote_journal::Quiet`]); the catalog's lock is held. Files are compared with their
//!    copies, and differences are written again. Writers wait for this step only: reading, and
//!    writing what changed since 2.
//! 4. *Finished* ([`Backup::finish`]): the catalog and the superblock of the copy are written, all
//!    is synced, and **the renaming of the directory to the target commits**.
//! 5. *Named*: the parent of the target is synced: from now on the copy survives loss of power. If
//!    this sync fails, the copy is there all the same ([`BackedUp::Unsynced`]).
//!
//! A crash before 4 leaves the target as it was, and the directory of 1, which the next backup
//! beside it removes. After an error, a full disk, or a stop by the caller, that directory is
//! removed at once.
//!
//! # Why the files of 3 are of one moment
//!
//! Stores into a direct pool are part of a transaction. Primaries, and files of protected pools and
//! of objects, change when records are applied, and a quiet journal has none. Files are made,
//! renamed and removed under the catalog's lock. The exception is a puddle that has moved and is
//! rewritten at its first touch: its file is as good before, in the middle and afterwards
//! ([`crate::relocate`]), and the copy's catalog says that it is pending.
//!
//! In the copy, blocks in caches of the living session have the marks that a crash of its process
//! would leave. So the copy's catalog has leases of a session that is gone on pools that are in
//! use, and the first opener adopts their heaps as after such a crash. There is no log to replay.

mod files;

use crate::backed_up::{BackedUp, BackupReport};
use crate::kernel::catalog;
use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::{primary_name, text};
use crate::kernel::store::{Control, Inner, LOCK, Store};
use crate::kernel::superblock;
use cenote_layout::catalog::{LeaseRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{Role, STAMP_AT, era_of, seal_of};
use cenote_layout::superblock::{ORIGIN_COPY, STATE_CLEAN, Superblock};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{LockGuard, LockKind, Medium, MediumOptions, OwnedMedium, RealMedium};
use files::{BackupProgress, Copied, Planned};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// Superblock and catalog of a copy.
#[derive(Debug)]
struct Head {
    block: Superblock,
    records: Vec<Record>,
    /// Which records of the journals the catalog names.
    names: [u64; 2],
}

/// A backup that is being made. Dropped before [`Backup::finish`], it leaves nothing.
#[derive(Debug)]
pub struct Backup {
    store: Store,
    target: PathBuf,
    temporary: PathBuf,
    medium: OwnedMedium,
    /// Keeps others from taking the directory for one that a crash left.
    _held: LockGuard,
    copied: BTreeMap<String, Copied>,
    /// Files whose copies get this stamp ([`crate::kernel::puddles::stamps`]).
    sealed: (BTreeSet<String>, u64),
    control: Option<Head>,
    report: BackupReport,
    finished: bool,
}

impl Store {
    /// Begins a copy of the store into `target`: a directory that is not there, or is empty. No
    /// transaction waits for that.
    ///
    /// # Errors
    /// [`StoreError::Backup`]: the target is not empty, or its parent cannot be written; the store
    /// is a daemon's, or is open to look and was not closed.
    pub fn begin_backup(&self, target: &Path) -> Result<Backup, StoreError> {
        self.check_usable()?;
        let inner = self.inner();
        if inner.is_client() {
            return Err(StoreError::Backup {
                kind: ErrorKind::Misuse,
                detail: "the daemon that keeps the store copies it".into(),
            });
        }
        if !inner.writable {
            inner.refuse_unless_closed()?;
        }
        let temporary = files::make_directory(target, Path::new(&inner.info.path))?;
        let failed = |kind, detail: String| {
            let _ = std::fs::remove_dir_all(&temporary);
            StoreError::Backup { kind, detail }
        };
        let medium = RealMedium::open(&temporary, &MediumOptions::default());
        let medium: Arc<dyn Medium> =
            Arc::new(medium.map_err(|error| failed(error.kind(), error.to_string()))?);
        // SAFETY: a directory that was just made, under a name that only this backup has. Its files
        // are mapped by nothing, and no store is opened there before it is renamed.
        let medium = unsafe { OwnedMedium::new(medium) };
        let held = match medium.hold("", LockKind::Exclusive) {
            Ok(Ok((guard, _))) => guard,
            Ok(Err(holder)) => {
                return Err(failed(
                    ErrorKind::Busy,
                    format!("{} is in use by {holder}", temporary.display()),
                ));
            }
            Err(error) => return Err(failed(error.kind(), error.to_string())),
        };
        files::mark_unfinished(&medium).map_err(|error| failed(error.kind(), error.to_string()))?;
        Ok(Backup {
            store: self.clone(),
            target: target.to_owned(),
            temporary,
            medium,
            _held: held,
            copied: BTreeMap::new(),
            sealed: (BTreeSet::new(), 0),
            control: None,
            report: BackupReport::default(),
            finished: false,
        })
    }

    /// Keeps backups from copying files as long as the answer lives: for callers that bring a
    /// journal into primaries.
    #[must_use]
    pub fn exclude_backups(&self) -> impl Drop + '_ {
        Excluded(self.inner().files_moving.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A journal whose records backups have to wait for. Of pools it is known already.
    pub fn note_journal(&self, journal: &Arc<cenote_journal::Journal>) {
        let mut known = self.inner().journals.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|journal| journal.strong_count() > 0);
        known.push(Arc::downgrade(journal));
    }
}

/// A pool in direct mode that clients write.
#[derive(Clone, Debug)]
pub struct PoolAtWork {
    /// The pool.
    pub pool: PoolId,
    /// Its name.
    pub name: String,
    /// Whether several may have it: then one of them can keep transactions of all from it.
    pub shared: bool,
    /// Those that have it, and their processes.
    pub hosted_clients: Vec<(Uuid, u32)>,
    /// Clients of it whose logs are being replayed.
    ending: bool,
}

impl PoolAtWork {
    /// Whether no transaction runs on it, as one of its clients says.
    #[must_use]
    pub fn stands(&self, standing: &BTreeSet<(PoolId, Uuid)>) -> bool {
        !self.ending
            && self
                .hosted_clients
                .iter()
                .any(|(hosted_client, _)| standing.contains(&(self.pool, *hosted_client)))
    }
}

impl Store {
    /// The pools in direct mode that clients write: what has to stand still for a backup.
    #[must_use]
    pub fn pools_at_work(&self) -> Vec<PoolAtWork> {
        self.inner().control().at_work()
    }
}

impl Control {
    fn at_work(&self) -> Vec<PoolAtWork> {
        let state = &self.catalog.state;
        let mut found: BTreeMap<PoolId, PoolAtWork> = BTreeMap::new();
        for ((client, pool), writable) in &state.leases {
            let Some(record) = state.pools.get(pool).filter(|_| *writable) else { continue };
            let Some(hosted) = self.hosted().get(client).filter(|_| !state.is_shadowed(*pool))
            else {
                continue;
            };
            let new = || PoolAtWork {
                pool: *pool,
                name: record.name.clone(),
                shared: false,
                hosted_clients: Vec::new(),
                ending: false,
            };
            let at_work = found.entry(*pool).or_insert_with(new);
            at_work.shared |= state.shared.contains(&(*client, *pool));
            at_work.ending |= hosted.is_ending();
            at_work.hosted_clients.push((*client, hosted.pid()));
        }
        found.into_values().collect()
    }
}

struct Excluded<'a>(
    #[expect(dead_code, reason = "held for its destructor")] std::sync::MutexGuard<'a, ()>,
);

impl Drop for Excluded<'_> {
    fn drop(&mut self) {}
}

impl Backup {
    /// Copies every file as it is now. `progress` is told bytes done and bytes altogether, and may
    /// end it.
    ///
    /// # Errors
    /// A full disk, an I/O error, a caller that stopped it.
    pub fn copy_ahead(
        &mut self,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(), StoreError> {
        let plan = {
            let inner = self.store.inner();
            let control = inner.control();
            files::plan(inner, &control)?.0
        };
        let all = plan.iter().map(|planned| planned.len).sum();
        let mut progress = BackupProgress { done: 0, all, tell: progress };
        for planned in plan {
            // One that was removed since is in no catalog that counts.
            match self.copy_whole(&planned, &mut progress) {
                Err(StoreError::Medium(error)) if error.is_not_found() => {}
                copied => copied?,
            }
        }
        Ok(())
    }

    fn copy_whole(
        &mut self,
        planned: &Planned,
        progress: &mut BackupProgress<'_>,
    ) -> Result<(), StoreError> {
        let copied =
            files::copy_whole(&self.store.inner().medium, &self.medium, planned, progress)?;
        self.copied.insert(planned.from.clone(), copied);
        Ok(())
    }

    /// Brings the copies to one moment. Meanwhile no transaction runs on any pool of the store: the
    /// caller's part.
    ///
    /// # Errors
    /// As [`Backup::copy_ahead`]; the store is poisoned; clients have pools of it.
    pub fn copy_held(&mut self) -> Result<(), StoreError> {
        if self.copy_standing(&BTreeSet::new(), &mut |_, _| true)? {
            return Ok(());
        }
        Err(StoreError::Backup {
            kind: ErrorKind::Busy,
            detail: "clients of this daemon have pools of the store: wait until they have closed \
                     them, or back up through the daemon"
                .into(),
        })
    }

    /// The same in a store that has clients. Clients that are `standing` have no transaction on
    /// that pool, and begin none until the caller lets them: of a pool that several share, one is
    /// enough that keeps the others out. `false`, and nothing is copied: there is a pool of which
    /// none is.
    ///
    /// # Errors
    /// As [`Backup::copy_held`].
    pub fn copy_standing(
        &mut self,
        standing: &BTreeSet<(PoolId, Uuid)>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<bool, StoreError> {
        let started = Instant::now();
        let store = self.store.clone();
        let inner = store.inner();
        inner.check_poisoned()?;
        let _still = store.exclude_backups();
        let mut control = inner.control();
        // From here on nothing is granted, and no client is ended.
        if control.at_work().iter().any(|pool| !pool.stands(standing)) {
            return Ok(false);
        }
        let _quiet = inner.quiet_journals(&mut control)?;
        let (plan, damage) = files::plan(inner, &control)?;
        self.report.damage = damage;
        let mut progress = BackupProgress { done: 0, all: 0, tell: progress };
        let mut wanted: BTreeSet<String> = BTreeSet::new();
        for planned in &plan {
            wanted.insert(planned.from.clone());
            let known = self.copied.get(&planned.from).filter(|copied| copied.len == planned.len);
            match known {
                Some(copied) => {
                    self.report.again_bytes +=
                        files::copy_changed(&inner.medium, &planned.from, copied, &mut progress)?;
                }
                None => self.copy_whole(planned, &mut progress)?,
            }
        }
        for (name, copied) in core::mem::take(&mut self.copied) {
            if wanted.contains(&name) {
                self.copied.insert(name, copied);
            } else {
                self.medium.remove(copied.file.name())?;
            }
        }
        self.lay_journal_over(inner, &control)?;
        let mut head = self.control_of(inner, &control)?;
        let era = era_of(u128::from_le_bytes(inner.random_uuid()?.0) as u64);
        let (names, sealed) = inner.sealed_copies(&control.catalog.state, &self.report.damage, era);
        head.records.extend(sealed);
        self.sealed = (names, seal_of(era, 0));
        self.control = Some(head);
        self.report.held = started.elapsed();
        Ok(true)
    }

    /// Of a store that is open to look, and was closed: lays psyncs that the journal of pools alone
    /// has over the copies of primaries, from which the copies of shadows are made. A session that
    /// wrote would have brought them into the primaries before. The copy's journal has them, too:
    /// the opener of the copy writes the same again.
    fn lay_journal_over(&self, inner: &Inner, control: &Control) -> Result<(), StoreError> {
        let state = &control.catalog.state;
        let any = state.pools.keys().any(|pool| state.is_shadowed(*pool));
        if inner.writable || !any || planted(Bug::CopyWithoutJournal) {
            return Ok(());
        }
        for (puddle, runs) in inner.patches_if_any(control)? {
            let copied = self.copied.get(text(&primary_name(puddle)));
            // What is kept of one goes along in a file of its own.
            let Some(copied) = copied.filter(|_| !control.kept().contains_key(&puddle)) else {
                continue;
            };
            for (offset, bytes) in &runs {
                copied.file.write_at(*offset, bytes)?;
            }
        }
        Ok(())
    }

    /// Superblock and catalog of the copy. The catalog is one batch, of the number that the store's
    /// has now: the journals name batches up to that.
    fn control_of(&self, inner: &Inner, control: &Control) -> Result<Head, StoreError> {
        let state = &control.catalog.state;
        let aside = files::undecided_logs(control);
        let logs_go = !aside.is_empty();
        let mut records = state.snapshot();
        records.retain(|record| match record {
            Record::Client(client) => aside.contains(&client.client),
            Record::Lease(lease) => aside.contains(&lease.client),
            Record::Puddle(puddle) => match puddle.role {
                Role::Log | Role::LogSpace => logs_go,
                Role::Spare => false,
                Role::Heap | Role::Metadata | Role::Object => true,
            },
            Record::HostedClient(_)
            | Record::Sealed { .. }
            | Record::PoolMade { .. }
            | Record::LeaseShared { .. }
            | Record::ObjectLease { .. } => false,
            _ => true,
        });
        let client = inner.random_uuid()?;
        let mut used: BTreeSet<_> = control.dirty.keys().copied().collect();
        used.extend(
            state.leases.iter().filter(|(_, writable)| **writable).map(|((_, pool), _)| *pool),
        );
        used.retain(|pool| state.pools.contains_key(pool));
        records.extend(
            used.into_iter()
                .map(|pool| Record::Lease(LeaseRecord { client, pool, writable: true })),
        );
        let mut block = control.superblock;
        block.state = STATE_CLEAN;
        (block.boot_id, block.mounting) = (Uuid::NIL, 0);
        (block.opener_pid, block.opener_start_ticks, block.client) = (0, 0, Uuid::NIL);
        (block.device, block.directory_inode, block.superblock_inode) = (0, 0, 0);
        (block.era, block.unclosed) = (0, 0);
        block.catalog_batch = control.catalog.batch();
        if inner.writable {
            inner.name_copied_journals(control, &mut block)?;
        }
        Ok(Head { block, records, names: control.catalog.names() })
    }

    /// Makes the copy a store, under its name. **The renaming commits.**
    ///
    /// # Errors
    /// As [`Backup::copy_ahead`]; something has come to lie at the target. There is no copy then.
    pub fn finish(mut self) -> Result<BackedUp, StoreError> {
        let Some(Head { block, records, names }) = self.control.take() else {
            return Err(StoreError::Backup {
                kind: ErrorKind::Misuse,
                detail: "the files were not copied at one moment: copy them held before".into(),
            });
        };
        let (stamped, seal) = &self.sealed;
        for (name, copied) in &self.copied {
            if stamped.contains(name) {
                copied.file.write_at(STAMP_AT, &seal.to_le_bytes())?;
            }
            copied.finish(&self.medium)?;
            self.report.bytes += copied.len;
        }
        let medium = &self.medium;
        let write = |name: &str, contents: &[u8]| {
            medium.create(name, contents.len() as u64)?;
            medium.write_at(name, 0, contents)?;
            medium.sync(name)
        };
        for name in catalog::FILES {
            write(name, &catalog::encode(block.catalog_batch, names, &records))?;
        }
        medium.create(LOCK, 0)?;
        write(superblock::FILE, &superblock::initial(block))?;
        for dir in files::DIRS {
            if !medium.exists(dir)? {
                medium.make_dir(dir)?;
            }
            medium.sync_dir(dir)?;
        }
        medium.sync_dir("")?;
        let state = |record: &&Record| matches!(record, Record::Pool(_));
        self.report.pools = records.iter().filter(state).count() as u64;
        self.report.objects =
            records.iter().filter(|r| matches!(r, Record::Object(_))).count() as u64;
        files::rename_directory(&self.temporary, &self.target)?;
        self.finished = true;
        files::unmark(&self.target);
        let report = core::mem::take(&mut self.report);
        Ok(match files::sync_parent(&self.target) {
            Ok(()) => BackedUp::Durable(report),
            Err(error) => BackedUp::Unsynced(report, error),
        })
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        if !self.finished {
            let _ = std::fs::remove_dir_all(&self.temporary);
        }
    }
}

impl Inner {
    /// A store that is open to look can be copied if its last writer closed it: then no log is to
    /// be replayed, and the superblock says of both journals what is so. Primaries may be behind
    /// the journal of pools, if sessions have closed the store since that did not use it. Its lock
    /// keeps writers out.
    fn refuse_unless_closed(&self) -> Result<(), StoreError> {
        let control = self.control();
        let block = &control.superblock;
        if block.state == STATE_CLEAN && block.origin != ORIGIN_COPY {
            return Ok(());
        }
        let detail =
            "the store is open read-only and was not closed, so its copy would lack what recovery \
             writes: open it for writing, or copy its pools out (`cenote export`)"
                .into();
        Err(StoreError::Backup { kind: ErrorKind::Unfinished, detail })
    }

    /// Keeps all journals of the store quiet. Under the control lock.
    fn quiet_journals(
        &self,
        control: &mut Control,
    ) -> Result<Vec<cenote_journal::Quiet>, StoreError> {
        if planted(Bug::BackupNotQuiet) || !self.writable {
            return Ok(Vec::new());
        }
        let state = &control.catalog.state;
        let mut journals: Vec<Arc<cenote_journal::Journal>> = Vec::new();
        if state.pools.keys().any(|pool| state.is_shadowed(*pool)) {
            journals.push(Arc::clone(self.pool_journal(control)?));
        }
        let known = self.journals.lock().unwrap_or_else(PoisonError::into_inner);
        journals.extend(known.iter().filter_map(std::sync::Weak::upgrade));
        drop(known);
        journals.iter().map(|journal| Ok(journal.quiet()?)).collect()
    }
}
