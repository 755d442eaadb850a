//! Keeps the lines of committed psyncs for a primary that cannot be written now
//! (`cenote_layout::kept`).
//!
//! A record of the journal may be about several pools, because pools are psynced together. It is
//! committed, so each of these pools goes on from it. If one of their files is damaged, the others
//! must not wait for it, and the journal is used again. So the record's lines for the damaged file
//! are *kept* in a file of its own, `primary/<uuid>.kept`, and the pool is refused meanwhile.
//!
//! # States
//!
//! 1. *Committed.* The journal has records of a psync, and a primary that they change is damaged.
//!    The superblock says that there may be kept files, before the first is there.
//! 2. *Kept.* What they say of that primary is in the kept file, whose name is synced; then a batch
//!    of the catalog says so, with the file's checksum: **that batch commits**. Nothing of the
//!    journal has changed. A crash before finds state 1 and a file without a record, which counts
//!    as none, and does the same again, with the same runs.
//! 3. *Resumed.* The other primaries are written and synced, and the journal begins a new epoch.
//!    The runs are in the kept file alone. No psync of the pool happens, because the pool is
//!    refused, so they stay the newest that there is of it.
//! 4. *Brought back.* The next open for writing finds the primary whole again, writes the runs, and
//!    syncs it.
//! 5. *Ended.* A batch says that nothing is kept: **that batch commits**, before any psync of the
//!    pool, so that the runs are never written over a later one. A crash before starts again at 4,
//!    which writes the same. Then the kept file is removed; one that a crash leaves has no record.
//!
//! Where the window moves meanwhile, the puddle becomes pending as it is, and is not rewritten
//! before state 5: the runs say offsets, and bytes that are right where the file's are.
//!
//! Removing the pool discards them. A reader lays the runs over the primary, before what the
//! journal says.
//!
//! # A kept file that was put back
//!
//! The catalog says of which puddles psyncs are kept, and in a file of which checksum. A file
//! without a record is of an earlier time, and counts as none; a record whose file is missing, or
//! has another checksum, refuses the pool. The catalog itself is tied to the journals (`ties.rs` of
//! `cenote-journal`).

use crate::kept_files::{Kept, name_of};
use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::{PRIMARY_DIR, file_name, primary_name, text};
use crate::kernel::puddles::verify::of_file;
use crate::kernel::store::{Control, Inner};
use crate::primaries::{check_run, of_shadowed_pool};
use cenote_journal::JournalScan;
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::header::{read, seal};
use cenote_layout::id::Uuid;
use cenote_layout::kept::{KeptHeader, add_run, runs};
use cenote_layout::superblock::INCOMPAT_KEPT;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

impl Inner {
    /// Reads the kept files of which the catalog has records.
    ///
    /// # Errors
    /// One that passes ([`MediumError::is_passing`]): nothing is known then. Others are of the
    /// file.
    pub(crate) fn load_kept(&self, state: &CatalogState) -> Result<Kept, MediumError> {
        let mut kept = Kept::default();
        for (puddle, sum) in &state.kept {
            if of_shadowed_pool(state, *puddle).is_none() {
                continue;
            }
            let found = match self.read_kept(*puddle, *sum) {
                Err(error) if error.is_passing() => return Err(error),
                found => found.unwrap_or_else(|error| Err(error.to_string())),
            };
            kept.0.insert(*puddle, found);
        }
        Ok(kept)
    }

    fn read_kept(&self, puddle: Uuid, sum: u64) -> Result<Result<Vec<u8>, String>, MediumError> {
        let name = name_of(puddle);
        let file = FileHandle::open(&self.medium, &name)?;
        let mut head = [0; size_of::<KeptHeader>()];
        let got = file.read_at(0, &mut head)?;
        let damaged = |why: String| Ok(Err(format!("{name}: {why}")));
        let header = match read::<KeptHeader>(&head[..got], self.writable) {
            Ok(header) => header,
            Err(error) => return damaged(error.to_string()),
        };
        if (header.store, header.puddle) != (self.uuid, puddle) {
            return damaged(format!("it is of puddle {} of store {}", header.puddle, header.store));
        }
        if header.sum != sum && !planted(Bug::KeptNotCompared) {
            return damaged("it was put back: the catalog names one with another checksum".into());
        }
        if file.len_bytes()? != (head.len() as u64).saturating_add(header.len) {
            return damaged("it was cut short, or made longer".into());
        }
        let mut all = vec![0; header.len as usize];
        file.read_exact_at(head.len() as u64, &mut all)?;
        let whole = header.fits(&all) && runs(&all).all(|run| run.is_some());
        if whole { Ok(Ok(all)) } else { damaged("its checksum does not fit".into()) }
    }

    /// From state 1 to state 2: keeps what records say of these puddles.
    pub(crate) fn keep(
        &self,
        control: &mut Control,
        (file, scan): (&FileHandle, &JournalScan),
        puddles: &BTreeSet<Uuid>,
    ) -> Result<(), StoreError> {
        let mut all: BTreeMap<Uuid, Vec<u8>> = puddles.iter().map(|id| (*id, Vec::new())).collect();
        for record in &scan.records {
            let data = record.read_data(file)?;
            record.for_each_run(&data, |id, offset, bytes| {
                if let Some(runs) = all.get_mut(&id) {
                    add_run(runs, offset, bytes);
                }
                Ok::<(), StoreError>(())
            })?;
        }
        if planted(Bug::KeptNowhere) {
            return Ok(());
        }
        self.announce(control, INCOMPAT_KEPT)?;
        self.hold_primaries()?;
        let mut records = Vec::new();
        for (puddle, runs) in &all {
            let (name, mut header) = (name_of(*puddle), KeptHeader::new(self.uuid, *puddle, runs));
            let new = format!("{name}.new");
            seal(&mut header);
            records.push(Record::Kept { puddle: *puddle, sum: header.sum });
            crate::kernel::catalog::remove_if_there(&self.medium, &new)?;
            self.medium.create(&new, size_of::<KeptHeader>() as u64 + runs.len() as u64)?;
            let mut made = FileHandle::open(&self.medium, &new)?;
            made.write_at(0, header.as_bytes())?;
            made.write_in_pieces(size_of::<KeptHeader>() as u64, runs)?;
            made.sync().map_err(|error| self.failed(error))?;
            made.rename(&name)?;
        }
        self.medium.sync_dir(PRIMARY_DIR).map_err(|error| self.failed(error))?;
        self.commit(control, &records)?;
        control.kept_mut().extend(all.into_iter().map(|(puddle, runs)| (puddle, Ok(runs))));
        Ok(())
    }

    /// States 4 and 5, for every primary that is whole again: those that were written.
    pub(crate) fn bring_back(&self, control: &mut Control) -> Result<BTreeSet<Uuid>, StoreError> {
        let mut done = BTreeSet::new();
        for (puddle, kept) in control.kept() {
            let state = &control.catalog.state;
            let Some(record) = of_shadowed_pool(state, *puddle) else { continue };
            let pending = state.pending.get(puddle);
            let (Ok(all), Ok(primary)) = (kept, self.open_kept_primary(state, record)?) else {
                continue;
            };
            let skipped = pending.is_some() && planted(Bug::KeptNotInMoved);
            for (offset, bytes) in runs(all).flatten().filter(|_| !skipped) {
                let offset = check_run(0, record, state.at_rest(record.pool), offset, bytes.len())?;
                primary.write_in_pieces(offset, bytes)?;
            }
            primary.sync().map_err(|error| self.failed(error))?;
            done.insert(*puddle);
        }
        self.forget_kept(control, &done)?;
        Ok(done)
    }

    /// The primary, if it is whole. A puddle that has moved is not rewritten, because its pool is
    /// refused. So it is as it was, and the runs are right for it.
    fn open_kept_primary(
        &self,
        state: &CatalogState,
        record: &PuddleRecord,
    ) -> Result<Result<FileHandle, String>, StoreError> {
        let Some(pending) = state.pending.get(&record.uuid) else {
            return self.open_primary(state, record);
        };
        if let Some(problem) = of_file(self.problem_of_old(state, record, pending))? {
            return Ok(Err(problem));
        }
        let protected = state.is_protected(record.pool);
        let name = if protected { file_name(record.uuid) } else { primary_name(record.uuid) };
        let file = FileHandle::open(&self.medium, text(&name))?;
        if !protected {
            self.mark_primary(record.uuid, &file)?;
        }
        Ok(Ok(file))
    }

    /// State 5; also what becomes of the kept files of pools that are removed. Of these the catalog
    /// has no records any more.
    pub(crate) fn forget_kept(
        &self,
        control: &mut Control,
        puddles: &BTreeSet<Uuid>,
    ) -> Result<(), StoreError> {
        let named =
            puddles.iter().filter(|puddle| control.catalog.state.kept.contains_key(*puddle));
        let ended: Vec<Record> = named.map(|puddle| Record::KeptEnded(*puddle)).collect();
        self.commit(control, &ended)?;
        let mut gone = false;
        for puddle in puddles {
            if control.kept_mut().remove(puddle).is_some() {
                crate::kernel::catalog::remove_if_there(&self.medium, &name_of(*puddle))?;
                gone = true;
            }
        }
        if gone {
            self.medium.sync_dir(PRIMARY_DIR).map_err(|error| self.failed(error))?;
        }
        Ok(())
    }
}
