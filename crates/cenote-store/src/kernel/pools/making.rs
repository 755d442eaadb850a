//! Makes, maps and forgets puddles: the steps that creating, growing, importing and removing have
//! in common.
//!
//! Invariant: the catalog names a puddle only after its file is whole. Until the batch that names
//! it, its file is an orphan, which the next writable open removes. [`crate::kernel::pools::pool`]
//! and [`crate::pools`] say which batch commits.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::{
    MappingKind, Puddle, create_primary, create_stamped, file_name, primary_name, text,
};
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_medium::{MapMode, MediumError};
use core::ptr::NonNull;

impl Inner {
    /// Creates the file of a new puddle; no record names it yet. Spare puddles are given up if the
    /// file needs their space.
    pub(crate) fn new_puddle(
        &self,
        control: &mut Control,
        pool: PoolId,
        role: Role,
        index: u32,
        size: u64,
    ) -> Result<PuddleRecord, StoreError> {
        let wanted = PuddleRecord { uuid: Uuid::NIL, pool, role, index, addr: 0, size };
        self.new_puddle_as(control, None, wanted, matches!(role, Role::Log | Role::LogSpace))
    }

    /// The same for a puddle that was somewhere before: at `wanted.addr` if that is free, and of
    /// the identity `id` if that is given. `apart`: its stamp is compared with none, and says in
    /// which era its file was made ([`crate::leftover`]).
    pub(crate) fn new_puddle_as(
        &self,
        control: &mut Control,
        id: Option<Uuid>,
        wanted: PuddleRecord,
        apart: bool,
    ) -> Result<PuddleRecord, StoreError> {
        let stamp = self.stamps.made(apart);
        self.new_puddle_by(control, id, wanted, &|record| {
            create_stamped(&self.medium, record, self.uuid, stamp)
                .map_err(|error| self.failed(error))
        })
    }

    /// The same, with a file that `make` makes, which is gone if that fails.
    pub(crate) fn new_puddle_by(
        &self,
        control: &mut Control,
        id: Option<Uuid>,
        wanted: PuddleRecord,
        make: &dyn Fn(&PuddleRecord) -> Result<(), StoreError>,
    ) -> Result<PuddleRecord, StoreError> {
        match self.try_new_puddle(control, id, wanted, make) {
            Err(
                StoreError::WindowFull { .. } | StoreError::Medium(MediumError::NoSpace { .. }),
            ) if self.give_up_spares(control) => self.try_new_puddle(control, id, wanted, make),
            other => other,
        }
    }

    fn try_new_puddle(
        &self,
        control: &mut Control,
        id: Option<Uuid>,
        wanted: PuddleRecord,
        make: &dyn Fn(&PuddleRecord) -> Result<(), StoreError>,
    ) -> Result<PuddleRecord, StoreError> {
        let size = wanted.size;
        let addr = match control.space.take_at(wanted.addr, size) {
            true => Some(wanted.addr),
            false => control.space.take(size),
        };
        let Some(addr) = addr else {
            return Err(StoreError::WindowFull {
                wanted: size,
                window_len: self.window.len(),
                free: control.space.free_bytes(),
            });
        };
        let made = id.map_or_else(|| self.random_uuid(), Ok).and_then(|uuid| {
            let record = PuddleRecord { uuid, addr, ..wanted };
            make(&record)?;
            Ok(record)
        });
        if made.is_err() {
            control.space.give_back(addr, size);
        }
        made
    }

    /// Makes a primary, in its directory.
    pub(crate) fn make_primary(&self, record: &PuddleRecord) -> Result<(), StoreError> {
        self.hold_primaries()?;
        create_primary(&self.medium, record, self.uuid).map_err(|error| self.failed(error))
    }

    /// Creates the primary of a new puddle. On failure the puddle is gone again.
    pub(crate) fn new_primary(
        &self,
        control: &mut Control,
        record: &PuddleRecord,
    ) -> Result<(), StoreError> {
        self.make_primary(record).inspect_err(|_| {
            let _ = self.medium.remove(text(&file_name(record.uuid)));
            control.space.give_back(record.addr, record.size);
        })
    }

    /// Names a new puddle, and all that belongs to it, in one batch. On failure the file is removed
    /// again.
    pub(crate) fn commit_new_puddle(
        &self,
        control: &mut Control,
        record: &PuddleRecord,
        with: &[Record],
    ) -> Result<(), StoreError> {
        let mut records = vec![Record::Puddle(*record)];
        records.splice(0..0, with.iter().cloned());
        self.commit(control, &records).inspect_err(|_| {
            // Where the batch may have been made after all the store is poisoned, and the file has
            // to stay.
            if self.check_poisoned().is_ok() {
                let _ = self.medium.remove(text(&file_name(record.uuid)));
                let _ = self.medium.remove(text(&primary_name(record.uuid)));
                control.space.give_back(record.addr, record.size);
            }
        })
    }

    /// The [`Puddle`] of a record, made if need be; it lives until the store is dropped.
    pub(crate) fn own(
        &self,
        control: &mut Control,
        record: PuddleRecord,
        mode: MapMode,
    ) -> NonNull<Puddle> {
        let state = &control.catalog.state;
        let kind = match (state.is_protected(record.pool), state.is_shadowed(record.pool)) {
            (true, _) => MappingKind::Sealed,
            (false, true) => MappingKind::Shadow,
            (false, false) => MappingKind::Direct,
        };
        let addr = record.addr.wrapping_add(self.window.distance());
        let record = PuddleRecord { addr, ..record };
        let mark = if record.role.is_of_pool() && kind != MappingKind::Sealed {
            self.stamps.mark()
        } else {
            0
        };
        *control.puddles.entry(record.uuid).or_insert_with(|| {
            let puddle = Puddle::new(record, mode, kind);
            puddle.set_mark(mark);
            NonNull::from(Box::leak(Box::new(puddle)))
        })
    }

    /// Takes a removed puddle out of the window. Its memory stays until the store is dropped.
    pub(crate) fn forget(&self, control: &mut Control, record: &PuddleRecord) {
        if self.let_go(control, record) {
            control.space.give_back(record.addr, record.size);
        }
    }

    /// The same, and keeps its addresses; whether nothing is mapped there now.
    pub(crate) fn let_go(&self, control: &mut Control, record: &PuddleRecord) -> bool {
        let mut unmapped = true;
        if let Some(puddle) = control.puddles.remove(&record.uuid) {
            // SAFETY: owned by `control` until the store is dropped.
            let puddle_ref = unsafe { puddle.as_ref() };
            self.window.remove(puddle_ref);
            unmapped = puddle_ref.refuse(&self.medium).is_ok();
            self.parts.let_go(puddle_ref);
            control.graveyard.push(puddle);
        }
        unmapped
    }
}
