//! A session's work with stamps ([`crate::kernel::puddles::stamps`]): it compares them, marks
//! files, and seals them.

use crate::Puddle;
use crate::kernel::catalog::CatalogState;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::puddles::puddle::{file_name, primary_name, text};
use crate::kernel::puddles::stamps::{self, Expected, is_stamped, read_stamp, write_stamp};
use crate::kernel::puddles::verify::{of_file, verify_stamped};
use crate::kernel::store::{Control, Inner};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{ERA_ANY, seal_of};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError, Operation};
use std::collections::{BTreeMap, BTreeSet};

/// Whether a file has nothing but zeros in this range.
fn is_zero(file: &FileHandle, from: u64, to: u64) -> Result<bool, MediumError> {
    let mut piece = vec![0; 1 << 16];
    let mut at = from;
    while let Some((start, end)) = file.next_data(at, to)? {
        let end = end.min(start + piece.len() as u64);
        let bytes = &mut piece[..(end - start) as usize];
        file.read_exact_at(start, bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

impl Inner {
    /// A session begins: the superblock's era goes on, or a new one begins. `lost`: records of the
    /// catalog are lost.
    pub(crate) fn begin_era(
        &self,
        control: &Control,
        clean: bool,
        lost: bool,
        report: &OpenReport,
    ) {
        let seals_lost = lost && !planted(Bug::SealsLostRefused);
        let unknown = seals_lost || !clean && report.copied;
        let era = stamps::era(&control.superblock, clean, unknown, control.client);
        self.stamps.begin(era, self.writable);
        self.stamps.note_leases(&control.catalog.state);
    }

    /// The stamps that the files of a puddle may have; `None`: it has none.
    pub(crate) fn expected(&self, state: &CatalogState, record: &PuddleRecord) -> Option<Expected> {
        let named = state.seals.get(&record.uuid).copied().unwrap_or(0);
        let left = state.left.get(&record.uuid).copied().unwrap_or(0);
        let era = self.stamps.era();
        // A client's files are looked at by its daemon.
        let looks = !self.is_client() && is_stamped(state, record);
        looks.then_some(Expected { named, era, left })
    }

    /// [`crate::kernel::puddles::verify::verify_file`], and the stamp.
    pub(crate) fn check_file(
        &self,
        state: &CatalogState,
        record: &PuddleRecord,
    ) -> Result<Option<String>, MediumError> {
        self.check_named(state, record, text(&file_name(record.uuid)), self.writable)
    }

    /// The same of its primary.
    pub(crate) fn check_primary(
        &self,
        state: &CatalogState,
        record: &PuddleRecord,
    ) -> Result<Option<String>, MediumError> {
        self.check_named(state, record, text(&primary_name(record.uuid)), self.writable)
    }

    /// The same of the one of these files that has this name.
    pub(crate) fn check_named(
        &self,
        state: &CatalogState,
        record: &PuddleRecord,
        name: &str,
        writing: bool,
    ) -> Result<Option<String>, MediumError> {
        let expected = self.expected(state, record);
        verify_stamped(&self.medium, name, record, self.uuid, writing, expected)
    }

    /// The stamp alone, of the one of these files that has this name, and a header of another
    /// place.
    pub(crate) fn check_stamp(
        &self,
        state: &CatalogState,
        record: &PuddleRecord,
        name: &str,
    ) -> Result<Option<String>, MediumError> {
        let Some(expected) = self.expected(state, record) else { return Ok(None) };
        let file = FileHandle::open(&self.medium, name)?;
        Ok(expected.problem(name, read_stamp(&file)?))
    }

    /// Marks a primary before it is written.
    pub(crate) fn mark_primary(&self, uuid: Uuid, file: &FileHandle) -> Result<(), MediumError> {
        self.stamps.mark_file(file, uuid, true)
    }

    /// Marks an object's file before it is written.
    pub(crate) fn mark_object(&self, object: Uuid, file: &FileHandle) -> Result<(), MediumError> {
        if self.is_client() || planted(Bug::ObjectNotMarked) {
            return Ok(());
        }
        self.stamps.mark_file(file, object, false)
    }

    /// Marks a puddle's file before a descriptor of it is given away.
    pub(crate) fn mark_granted(&self, record: &PuddleRecord) -> Result<(), MediumError> {
        let is_marked = || self.stamps.has_mark(record.uuid, false);
        if !record.role.is_of_pool() || self.is_client() || is_marked() {
            return Ok(());
        }
        let file = FileHandle::open(&self.medium, text(&file_name(record.uuid)))?;
        self.stamps.mark_file(&file, record.uuid, false)
    }

    /// Of a copy of an open store: the unprotected pools that sessions may have written while it
    /// was made.
    pub(crate) fn unproven(&self, state: &CatalogState) -> BTreeSet<PoolId> {
        let stamped = state.puddles.values().filter(|record| is_stamped(state, record));
        // Objects of a copy are checked one by one.
        let stamped = stamped.filter(|record| record.role.is_of_pool());
        let unproven = stamped.filter(|record| {
            let named = state.seals.get(&record.uuid).copied().unwrap_or(0);
            let has = |name: &str| {
                FileHandle::open(&self.medium, name).and_then(|file| read_stamp(&file))
            };
            let proves = |name: &str| has(name).is_ok_and(|stamp| stamp == named);
            let primary = || proves(text(&primary_name(record.uuid)));
            !(proves(text(&file_name(record.uuid)))
                && (!state.is_shadowed(record.pool) || primary()))
        });
        let mut unproven: BTreeSet<PoolId> = unproven.map(|record| record.pool).collect();
        unproven.retain(|pool| !self.is_untouched(state, *pool));
        unproven
    }

    /// Whether all files of a pool are as they were made, so that nothing in them is of any moment:
    /// no close has sealed one, and behind their headers are zeros. A daemon makes them with the
    /// mark of a session, for the client that is to have them.
    fn is_untouched(&self, state: &CatalogState, pool: PoolId) -> bool {
        let is_new = |record: &PuddleRecord| {
            let is_zero = |name: &str| {
                let file = FileHandle::open(&self.medium, name)?;
                is_zero(&file, PAGE_SIZE, record.size)
            };
            let zeros = |name: &str| is_zero(name).unwrap_or(false);
            !state.seals.contains_key(&record.uuid)
                && zeros(text(&file_name(record.uuid)))
                && (!state.is_shadowed(pool) || zeros(text(&primary_name(record.uuid))))
        };
        planted(Bug::UntouchedNotRead) || state.puddles_of(pool).iter().all(is_new)
    }

    /// Of a backup: the files whose copies get the seal of a new era, but for those that are
    /// damaged, and the records that name it.
    pub(crate) fn sealed_copies(
        &self,
        state: &CatalogState,
        damage: &[Damage],
        era: u64,
    ) -> (BTreeSet<String>, Vec<Record>) {
        let stamped: Vec<&PuddleRecord> =
            state.puddles.values().filter(|r| is_stamped(state, r)).collect();
        let is_damaged = |puddle: &PuddleRecord| {
            damage.iter().any(|damage| match damage {
                Damage::Puddle { uuid, .. } => *uuid == puddle.uuid,
                Damage::Object { name, .. } => state.object_names.get(name) == Some(&puddle.uuid),
                _ => false,
            })
        };
        let copied = |puddle: &&PuddleRecord| match state.is_shadowed(puddle.pool) {
            true => text(&primary_name(puddle.uuid)).to_owned(),
            false => text(&file_name(puddle.uuid)).to_owned(),
        };
        let names = stamped.iter().filter(|puddle| !is_damaged(puddle)).map(copied).collect();
        let ids: Vec<Uuid> = stamped.iter().map(|puddle| puddle.uuid).collect();
        (names, Record::sealed(seal_of(era, 0), &ids))
    }

    /// Step 3 of [`crate::kernel::puddles::stamps`], and the syncs of a close. The records of step
    /// 4, and the era of step 5.
    pub(crate) fn seal(&self, control: &Control) -> Result<(Vec<Record>, u64), StoreError> {
        let state = &control.catalog.state;
        let leased = state.writable_pools(control.client);
        let (era, seal) = (self.stamps.era(), self.stamps.seal(control.client));
        let (scanned, mut marked) = (self.stamps.leased(), self.stamps.marked());
        // SAFETY: they live until the store is dropped.
        let mapped =
            control.puddles.values().chain(&control.graveyard).map(|p| unsafe { p.as_ref() });
        marked.extend(mapped.filter(|puddle| puddle.is_marked()).map(Puddle::uuid));
        // A catalog that lost records is not believed later, and one that is put back names others.
        let names = !control.catalog.is_damaged();
        let all = self.stamps.is_continued();
        let (mut sealed, mut left) = (Vec::new(), BTreeMap::<u64, Vec<Uuid>>::new());
        let mut damaged = false;
        for record in state.puddles.values() {
            let synced = leased.contains(&record.pool);
            // A lease alone may be that of a session which wrote the pool before its file was
            // damaged, and waits for it.
            let written = all || marked.contains(&record.uuid);
            let held = scanned.contains(&record.pool);
            let known = written || held || state.left.contains_key(&record.uuid);
            let looked = names && known && is_stamped(state, record);
            if !synced && !looked {
                continue;
            }
            match self.seal_and_sync(state, record, (looked, synced), seal) {
                Ok(true) => sealed.push(record.uuid),
                Ok(false) => {}
                // A puddle that is damaged is reported where it is missed. Its pool's lease stays
                // with the session that stored into it.
                Err(error) => {
                    if self.is_whole(state, record).map_err(|error| self.failed(error))? {
                        return Err(self.failed(error));
                    }
                    if !looked {
                        continue;
                    }
                    damaged = true;
                    let written = written || held && planted(Bug::LeftByLease);
                    let surely = era != ERA_ANY && self.is_surely_marked(control, record);
                    match state.left.get(&record.uuid) {
                        _ if surely => {
                            // None of its files is as the last close left it.
                            sealed.push(record.uuid);
                            left.entry(era).or_default().push(record.uuid);
                        }
                        None => left.entry(era).or_default().push(record.uuid),
                        Some(before) if !written || [era, ERA_ANY].contains(before) => {}
                        Some(_) => left.entry(ERA_ANY).or_default().push(record.uuid),
                    }
                }
            }
        }
        if planted(Bug::SealNotNamed) {
            sealed.clear();
        }
        let mut records = Record::sealed(seal, &sealed);
        records.extend(left.iter().flat_map(|(era, puddles)| Record::sealed(*era, puddles)));
        let kept = !names || damaged && planted(Bug::EraKept);
        Ok((records, if kept { era } else { 0 }))
    }

    /// Whether it is known of all files of a puddle that this session has marked them.
    fn is_surely_marked(&self, control: &Control, record: &PuddleRecord) -> bool {
        let has_mark = |primary: bool| self.stamps.has_mark(record.uuid, primary);
        // SAFETY: they live until the store is dropped.
        let mapped = control.puddles.get(&record.uuid).map(|puddle| unsafe { puddle.as_ref() });
        let file = has_mark(false) || mapped.is_some_and(Puddle::has_stamp);
        let shadowed = control.catalog.state.is_shadowed(record.pool);
        file && (!shadowed || has_mark(true)) && !planted(Bug::NamedStaysForMarked)
    }

    /// Seals the files of a puddle that have not the stamp which is named, and syncs them; whether
    /// it did. A file of another moment stays one.
    fn seal_and_sync(
        &self,
        state: &CatalogState,
        record: &PuddleRecord,
        (looked, synced): (bool, bool),
        seal: u64,
    ) -> Result<bool, MediumError> {
        let file = FileHandle::open(&self.medium, text(&file_name(record.uuid)))?;
        let expected = self.expected(state, record).filter(|_| looked);
        let Some(expected) = expected else { return file.sync().map(|()| false) };
        let primary = match state.is_shadowed(record.pool) {
            true => Some(FileHandle::open(&self.medium, text(&primary_name(record.uuid)))?),
            false => None,
        };
        let mut stamps = vec![read_stamp(&file)?];
        if let Some(primary) = &primary {
            stamps.push(read_stamp(primary)?);
        }
        let marked = stamps.iter().any(|stamp| *stamp != expected.named);
        let allowed = stamps.iter().all(|stamp| expected.allows(*stamp));
        let whole = || match state.pending.contains_key(&record.uuid) {
            true => Ok(true),
            false => self.is_whole(state, record),
        };
        let damaged = match allowed {
            true => (marked || expected.left != 0) && !whole()?,
            // The other one may have to be accepted later.
            false => stamps.iter().any(|stamp| expected.is_of_era(*stamp)),
        };
        if damaged {
            // It may be brought back as it was, and is not named until then.
            let error = std::io::Error::other("it is damaged");
            return Err(MediumError::from_io(Operation::Write, file.name(), error));
        }
        let changed = (marked || expected.left != 0) && allowed;
        if changed {
            write_stamp(&file, seal)?;
            if let Some(primary) = &primary {
                write_stamp(primary, seal)?;
                primary.sync()?;
            }
        }
        if (changed || synced) && !planted(Bug::SealNotSynced) {
            file.sync()?;
        }
        Ok(changed)
    }

    /// Whether what went wrong with a puddle's files is not that they are damaged.
    fn is_whole(&self, state: &CatalogState, record: &PuddleRecord) -> Result<bool, MediumError> {
        let primary = is_stamped(state, record) && state.is_shadowed(record.pool);
        Ok(of_file(self.check_file(state, record))?.is_none()
            && (!primary || of_file(self.check_primary(state, record))?.is_none()))
    }
}
