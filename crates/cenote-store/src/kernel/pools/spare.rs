//! Keeps spare puddles for pools (PUD-11; Puddles paper, 4.3): a pool that is created or grows
//! takes one instead of making a file.
//!
//! A *spare* is a puddle of role `Spare`: the catalog names it, it has its file and its address,
//! and no pool. The puddles of a removed pool become spare. A thread that knows only the medium
//! makes the next puddle of a growing pool ahead of time, whole. Taking it is one batch of the
//! catalog. Both are bounded: [`OpenOptions::spare_bytes_max`](crate::OpenOptions::spare_bytes_max)
//! in all, [`COUNT_MAX`] in number, a sixteenth of what the disk has left. A spare is wanted by its
//! exact size.
//!
//! **Invariant.** If a spare's file has the header of that spare, the rest of the file is zeros,
//! durably. A spare with any other header holds anything: it is made zeros before it is taken, so
//! that nothing of a removed pool comes to another.
//!
//! # Updates in several steps
//!
//! **A removed pool's puddle becomes spare.** (1) the batch that removes the pool says that the
//! puddle is spare: **the catalog's batch commits**; (2) the file is made zeros in place, its space
//! taken, and synced; (3) the spare's header is written and synced: **this sync makes the contents
//! believed**.
//!
//! **A puddle is made ahead**, for one pool and index. (1) the file is made with the header that it
//! will have there, and synced, and so is the primary if the pool is in shadowed mode: orphans; (2)
//! one batch gives it to that pool: **the catalog's batch commits**. If another pool takes it, or a
//! close names it, it is an unnamed spare from there on: its primary is removed, its header written
//! anew and synced, and then **the catalog's batch commits**.
//!
//! **A spare is taken.** (1) if its header is not its own, the file is made zeros, and synced; (2)
//! the header of the new puddle is written and synced: by its record the file is spare still; (3)
//! one batch gives it to the pool: **the catalog's batch commits**.
//!
//! **Spares are given up**, for an operation that would have no space otherwise. (1) one batch
//! takes them out: **the catalog's batch commits**; (2) the files are removed: orphans.
//!
//! A crash leaves a spare, a pool's puddle or an orphan. No operation fails because a spare could
//! not be made, kept or taken; a sync that fails poisons the store, as everywhere. Where records of
//! the catalog were lost a spare may be a pool's by a record that is gone: then none is made, taken
//! or given up.

use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::heap_puddle::NewPuddle;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::puddles::prepared::{AheadPlan, Made, Maker, Order, Stage};
use crate::kernel::puddles::puddle::primary_name;
use crate::kernel::puddles::puddle::{DIR, file_name, first_page, make_header};
use crate::kernel::puddles::verify::verify_file;
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{MediumError, Operation};
use std::collections::BTreeSet;
use std::fs::File;

/// Most spare puddles.
pub(crate) const COUNT_MAX: usize = 16;
/// A puddle up to this size is made ahead for any pool, a larger one only for a pool of 16 times as
/// much.
const AHEAD_BYTES: u64 = 8 << 20;

/// A spare that is about to be taken.
pub(crate) struct Ready {
    pub(crate) record: PuddleRecord,
    /// A record names it.
    pub(crate) named: bool,
    /// Its files are just those of the puddle that is wanted.
    pub(crate) fits: bool,
    pub(crate) file: Option<File>,
}

/// A puddle's record as that of a spare.
fn as_spare(record: &PuddleRecord) -> PuddleRecord {
    PuddleRecord { pool: PoolId(0), role: Role::Spare, index: 0, ..*record }
}

/// Spare puddles that the catalog names.
fn named(control: &Control) -> Vec<PuddleRecord> {
    control.catalog.state.puddles.values().filter(|p| p.role == Role::Spare).copied().collect()
}

impl PoolHandle {
    /// Has a puddle of `size` bytes made in the background, because the pool will take one before
    /// long. Nothing is promised: not if there is such a spare already, or one is being made;
    /// not beyond the bounds on spares, nor out of proportion to the pool.
    pub fn expect_puddle(&self, size: u64) {
        let inner = self.store().inner();
        // A daemon looks ahead by itself.
        if !self.is_writable() || inner.is_client() {
            return;
        }
        if let Ok(mut control) = inner.begin_write("let a pool grow") {
            inner.make_ahead(&mut control, self.id(), size);
        }
    }
}

impl Inner {
    /// Whether spares may take `more` bytes in one more puddle.
    fn has_room_for_spare(&self, control: &Control, kept: &[PuddleRecord], more: u64) -> bool {
        let ahead = control.ahead.record();
        let bytes = kept.iter().chain(ahead).map(|p| p.size).sum::<u64>().saturating_add(more);
        !control.catalog.is_damaged()
            && kept.len() + usize::from(ahead.is_some()) < COUNT_MAX
            && bytes <= self.options.spare_bytes_max
            && bytes <= self.medium.free_bytes() / 16
    }

    /// Begins to make a puddle of `size` bytes before the pool asks for it.
    pub(crate) fn make_ahead(&self, control: &mut Control, pool: PoolId, size: u64) {
        let state = &control.catalog.state;
        // A protected pool's puddles have files of another kind.
        if control.ahead.plan().is_some() || state.is_protected(pool) {
            return;
        }
        let (mut held, mut index, mut kept) = (0, 0, Vec::new());
        for puddle in state.puddles.values() {
            if puddle.role == Role::Spare {
                kept.push(*puddle);
            } else if puddle.pool == pool {
                held += puddle.size;
                index = index.max(puddle.index + 1);
            }
        }
        if kept.iter().any(|p| p.size == size)
            || size > AHEAD_BYTES.max(held / 16)
            || !self.has_room_for_spare(control, &kept, size)
        {
            return;
        }
        let (Some(addr), Ok(uuid)) = (control.space.take(size), self.random_uuid()) else { return };
        let record = PuddleRecord { uuid, pool, role: Role::Heap, index, addr, size };
        let shadowed = control.catalog.state.is_shadowed(pool);
        let granted = self.options.hosting.is_some();
        let plan = AheadPlan { record, shadowed, granted, stamp: self.stamp_of(&record) };
        control.ahead.stage = if self.eager {
            // The simulated medium wants one order of events.
            let made = plan.make(&self.medium, self.uuid);
            self.made(control, plan, made)
        } else if self.order(control, plan) {
            Stage::Making(plan)
        } else {
            control.space.give_back(addr, size);
            Stage::Nothing
        };
    }

    /// Has the thread make it; false: there is no thread.
    fn order(&self, control: &mut Control, plan: AheadPlan) -> bool {
        let maker = &mut control.ahead.maker;
        if maker.is_none() {
            *maker = Maker::start(self.medium.clone(), self.uuid).ok();
        }
        maker.as_ref().is_some_and(|maker| maker.orders.send(Order::Make(plan)).is_ok())
    }

    /// What became of a puddle that was made ahead.
    fn made(&self, control: &mut Control, plan: AheadPlan, made: Made) -> Stage {
        match made {
            Ok(file) => Stage::Made(plan, file),
            Err(error) => {
                let _ = self.failed(error);
                control.space.give_back(plan.record.addr, plan.record.size);
                Stage::Nothing
            }
        }
    }

    /// Waits for the thread, if it is at work.
    fn settle_ahead(&self, control: &mut Control) {
        control.ahead.stage = match core::mem::take(&mut control.ahead.stage) {
            Stage::Making(plan) => {
                let made = control.ahead.maker.as_ref().and_then(|maker| {
                    maker.made.try_recv().ok().or_else(|| {
                        let _ = maker.orders.send(Order::Hurry);
                        maker.made.recv().ok()
                    })
                });
                let made = made.unwrap_or_else(|| {
                    control.ahead.maker = None;
                    let gone = std::io::Error::other("the thread is gone");
                    Err(MediumError::from_io(Operation::Create, DIR, gone))
                });
                self.made(control, plan, made)
            }
            other => other,
        };
    }

    /// Takes the puddle that was made ahead: for the one that is wanted, or as a spare that no
    /// record names.
    fn take_ahead(&self, control: &mut Control, wanted: Option<(PoolId, u32)>) -> Option<Ready> {
        self.settle_ahead(control);
        let Stage::Made(plan, file) = core::mem::take(&mut control.ahead.stage) else {
            return None;
        };
        let fits =
            wanted == Some((plan.record.pool, plan.record.index)) || planted(Bug::AheadOfAnother);
        if !fits && plan.shadowed {
            // An orphan at worst, which the next open removes.
            let _ = self.medium.remove(name(&primary_name(plan.record.uuid)));
        }
        Some(Ready { record: plan.record, named: false, fits, file })
    }

    /// Those of a pool's puddles that become spare when it is removed: the smallest, as many as
    /// there is room for.
    pub(crate) fn kept_as_spare(
        &self,
        control: &Control,
        puddles: &[PuddleRecord],
    ) -> BTreeSet<Uuid> {
        // A client that wrote a puddle may have it mapped still: no other pool gets it.
        if self.options.hosting.is_some() || self.is_client() {
            return BTreeSet::new();
        }
        let mut all = named(control);
        // The header of one that is still to be rewritten is that of another address.
        let pending = &control.catalog.state.pending;
        let mut by_size: Vec<&PuddleRecord> =
            puddles.iter().filter(|p| !pending.contains_key(&p.uuid)).collect();
        by_size.sort_by_key(|p| (p.size, p.index));
        let mut kept = BTreeSet::new();
        for record in by_size {
            let whole =
                self.medium.len(name(&file_name(record.uuid))).is_ok_and(|len| len == record.size);
            if whole && self.has_room_for_spare(control, &all, record.size) {
                kept.insert(record.uuid);
                all.push(*record);
            }
        }
        kept
    }

    /// What the catalog says of a removed puddle that is kept.
    pub(crate) fn spare_record(record: &PuddleRecord) -> Record {
        Record::Puddle(as_spare(record))
    }

    /// Makes the contents of a puddle that has just become spare believed. If that fails it is done
    /// when the spare is taken.
    pub(crate) fn clean_spare(&self, record: &PuddleRecord) {
        let record = as_spare(record);
        let _ = self
            .wipe(&record)
            .and_then(|()| self.write_header(&record))
            .map_err(|error| self.failed(error));
    }

    fn wipe(&self, record: &PuddleRecord) -> Result<(), MediumError> {
        let file = file_name(record.uuid);
        if planted(Bug::SpareNotCleared) {
            return Ok(());
        }
        self.medium.clear(name(&file))?;
        if planted(Bug::SpareHeaderEarly) {
            return Ok(());
        }
        self.medium.sync(name(&file))
    }

    pub(crate) fn write_header(&self, record: &PuddleRecord) -> Result<(), MediumError> {
        let file = file_name(record.uuid);
        let page = first_page(&make_header(record, self.uuid), self.stamp_of(record));
        self.medium.write_at(name(&file), 0, &page)?;
        self.medium.sync(name(&file))
    }

    /// The stamp of a new puddle's file: marked, if it may be handed out as it is made.
    fn stamp_of(&self, record: &PuddleRecord) -> u64 {
        if record.role.is_of_pool() && self.options.hosting.is_some() {
            self.stamps.claim(record.uuid)
        } else {
            0
        }
    }

    /// A spare of exactly `size` bytes whose contents are zeros: the one that was made ahead for
    /// this pool and index, else any.
    pub(crate) fn ready_spare(
        &self,
        control: &mut Control,
        NewPuddle { pool, index, size, role }: NewPuddle,
    ) -> Result<Option<Ready>, StoreError> {
        if control.catalog.is_damaged() {
            return Ok(None);
        }
        let right = |ahead: &PuddleRecord| {
            (ahead.pool, ahead.index, ahead.size, ahead.role) == (pool, index, size, role)
        };
        let spares =
            if control.ahead.record().is_some_and(right) { Vec::new() } else { named(control) };
        for spare in spares.into_iter().filter(|p| p.size == size) {
            let usable = match verify_file(&self.medium, &spare, self.uuid, true) {
                Ok(None) => true,
                // An operation took it and did not come to name it, or it is not wiped yet.
                Ok(Some(_)) => {
                    let whole =
                        self.medium.len(name(&file_name(spare.uuid))).is_ok_and(|len| len == size);
                    whole && self.wipe(&spare).map_err(|error| self.failed(error)).is_ok()
                }
                Err(_) => false,
            };
            self.check_poisoned()?;
            if usable {
                return Ok(Some(Ready { record: spare, named: true, fits: false, file: None }));
            }
            self.drop_spare(control, &spare, true);
        }
        if control.ahead.record().is_none_or(|p| p.size != size) {
            return Ok(None);
        }
        // What is made ahead is for blocks.
        let wanted = (role == Role::Heap).then_some((pool, index));
        let ready = self.take_ahead(control, wanted);
        self.check_poisoned()?;
        Ok(ready)
    }

    /// Gives up a spare that cannot be used. If its record cannot be taken out it stays, and is
    /// tried again.
    pub(crate) fn drop_spare(&self, control: &mut Control, spare: &PuddleRecord, is_named: bool) {
        if !is_named || self.commit(control, &[Record::PuddleRemoved(spare.uuid)]).is_ok() {
            let _ = self.medium.remove(name(&file_name(spare.uuid)));
            control.space.give_back(spare.addr, spare.size);
        }
    }

    /// Gives up all spares; whether there were any.
    pub(crate) fn give_up_spares(&self, control: &mut Control) -> bool {
        let ahead = self.take_ahead(control, None);
        let any = ahead.is_some();
        if let Some(spare) = ahead {
            self.drop_spare(control, &spare.record, false);
        }
        let spares = named(control);
        if spares.is_empty() || control.catalog.is_damaged() || self.check_poisoned().is_err() {
            return any;
        }
        let records: Vec<Record> = spares.iter().map(|p| Record::PuddleRemoved(p.uuid)).collect();
        if self.commit(control, &records).is_err() {
            return any;
        }
        for spare in spares {
            let _ = self.medium.remove(name(&file_name(spare.uuid)));
            control.space.give_back(spare.addr, spare.size);
        }
        true
    }

    /// At a close: what was made ahead is a spare from now on, and gets its record.
    pub(crate) fn name_ahead(&self, control: &mut Control) -> Option<Record> {
        let ahead = self.take_ahead(control, None)?;
        let spare = as_spare(&ahead.record);
        if let Err(error) = self.write_header(&spare) {
            let _ = self.failed(error);
            self.drop_spare(control, &spare, false);
            return None;
        }
        Some(Record::Puddle(spare))
    }
}

/// A puddle file's name as text.
fn name(file: &[u8; 40]) -> &str {
    core::str::from_utf8(file).unwrap_or_default()
}
