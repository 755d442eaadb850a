//! Moves pools inside their store: copies them, and gives them new addresses.
//!
//! **A clone** is an import of the pool's own files: copied or, if the caller asks for it and the
//! file system can do it, shared block by block ([`super::import`]). A pending file is only read
//! and replaced, never mapped, so a store into the clone cannot find the disk full. A store into
//! the *original* can, where blocks are shared, until the clone is rewritten
//! ([`crate::PoolHandle::finish_relocation`]) or removed: the write copies the block, and a full
//! disk is `SIGBUS` then.
//!
//! **New addresses.** States:
//!
//! 1. All pending puddles are rewritten, pools in shadowed mode are psynced, and the journal is
//!    trimmed: no record is left about old contents at a place in a file.
//! 2. One batch gives the pool's puddles their addresses and says that every puddle of the store's
//!    pools is pending: **the catalog's batch commits**. No file is touched. Other pools may point
//!    into the one that moved, so they are pending as well; they stay where they are.

use super::import::Import;
use super::neighbours::add_neighbours;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::Access;
use crate::kernel::interface::report::Damage;
use crate::kernel::interface::report::concerns;
use crate::kernel::pools::pool_rules::find;
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::puddles::window::Space;
use crate::kernel::store::{Control, Inner, Store};
use crate::manifest::{ImportManifest, ImportPool, ImportPuddle, Imported, QuiescentPool};
use crate::pending_rewrite::replace::copy;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{
    AtRest, MoveRecord, PendingRewriteRecord, PoolMode, PoolRecord, PuddleRecord,
    RELOCATION_MOVES_MAX, Record, RelocationRecord,
};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, LoggedBug, planted};
use core::ops::ControlFlow;
use std::sync::Arc;

impl Store {
    /// Looks at a pool that is to be copied as its files are: no process has it open, nothing about
    /// it is in doubt, and no puddle of it is pending. It stays so until it is opened, which the
    /// caller prevents.
    ///
    /// # Errors
    /// It is open, in this process or by a client; it is protected at rest, has moved, and there is
    /// no key; it is damaged, torn or to be traced; a log that names it is set aside; it has moved
    /// and cannot be rewritten.
    pub fn quiescent_pool(&self, name: &str) -> Result<QuiescentPool, StoreError> {
        let inner = self.inner();
        if let Some(connection) = inner.connection() {
            return self.quiescent_through(connection, name);
        }
        let (at_rest, pending) = {
            let control = inner.control();
            refuse_open(&control, name)?;
            let state = &control.catalog.state;
            let id = find(&control, name)?;
            // By the catalog: what a session rewrites that may only look is in its memory, and in
            // no file.
            let pending =
                state.puddles_of(id).iter().any(|puddle| state.pending.contains_key(&puddle.uuid));
            if pending && !inner.writable {
                return Err(StoreError::ReadOnly { what: "finish a pool that has moved" });
            }
            (state.at_rest(id), pending)
        };
        if at_rest != AtRest::None && !pending {
            // No key is needed: nothing is to be rewritten.
            return self.quiescent_sealed(name, at_rest);
        }
        // Verifies every puddle, and rewrites what is pending.
        let handle = self.open_pool(name, Access::ReadOnly)?;
        handle.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
        let doubts = handle.doubts();
        if !doubts.is_empty() {
            return Err(StoreError::PoolDamaged { name: name.into(), damage: doubts });
        }
        let record = handle.record().clone();
        drop(handle);
        if at_rest != AtRest::None {
            return self.quiescent_sealed(name, at_rest);
        }
        let control = inner.control();
        refuse_open(&control, name)?;
        if !planted(Bug::Logged(LoggedBug::CopiedDamaged)) {
            inner.refuse_damaged_heap(&control, record.id)?;
        }
        Ok(QuiescentPool::new(&control, record, at_rest))
    }

    /// The same for a pool that is protected at rest, and not pending. Brings its files to what the
    /// next opener would see: psyncs what this session wrote, and writes what the journal has to
    /// the files.
    fn quiescent_sealed(&self, name: &str, at_rest: AtRest) -> Result<QuiescentPool, StoreError> {
        let inner = self.inner();
        let mut control = inner.control();
        refuse_open(&control, name)?;
        let id = find(&control, name)?;
        let Some(record) = control.catalog.state.pools.get(&id).cloned() else {
            return Err(StoreError::PoolUnknown { name: name.into() });
        };
        let puddles = control.catalog.state.puddles_of(id);
        if inner.writable {
            inner.check_poisoned()?;
            if !planted(Bug::CopyNotPsynced) {
                crate::psync::psync_quiet(inner, &mut control, &[id])?;
            }
            let journal = inner.pool_journal(&mut control)?;
            for puddle in &puddles {
                journal.settle(puddle.uuid)?;
            }
        } else {
            let left = inner.patches_if_any(&control)?;
            if puddles.iter().any(|puddle| left.contains_key(&puddle.uuid)) {
                return Err(StoreError::ReadOnly {
                    what: "bring a protected pool's last psync into its files",
                });
            }
        }
        let mut damage = concerns(&control.damage, id);
        for puddle in &puddles {
            if let Some(detail) = inner.verify_sealed(puddle, at_rest)? {
                let (uuid, index) = (puddle.uuid, puddle.index);
                damage.push(Damage::Puddle { uuid, pool: id, index, detail });
            }
        }
        damage.extend(
            control
                .damage
                .iter()
                .filter(|d| matches!(d, Damage::Catalog { .. }) && d.is_lost())
                .cloned(),
        );
        if !damage.is_empty() {
            return Err(StoreError::PoolDamaged { name: name.into(), damage });
        }
        Ok(QuiescentPool::new(&control, record, at_rest))
    }

    /// Makes a copy of a pool of any contents under another name, in this store: its pointers are
    /// rewritten when they are first touched. Of a pool that is protected at rest its sealed files
    /// are copied, for which no key is needed; the copy has the original's key until it is given
    /// another, and is sealed under new data keys when it is first touched. Pointers into other
    /// pools stay. Durable on return.
    ///
    /// # Errors
    /// As [`Store::quiescent_pool`] and [`Store::begin_import`]; a full disk. There is no copy
    /// then.
    pub fn clone_pool(&self, name: &str, copy_name: &str) -> Result<Imported, StoreError> {
        self.clone_by(name, copy_name, false)
    }

    /// The same, with blocks that both have once, where the file system can do that: no bytes are
    /// copied now. Until the copy is rewritten or removed, a store into the original may need
    /// space, and end the process with `SIGBUS` if the disk is full.
    ///
    /// # Errors
    /// As [`Store::clone_pool`].
    pub fn clone_pool_sharing(&self, name: &str, copy_name: &str) -> Result<Imported, StoreError> {
        self.clone_by(name, copy_name, true)
    }

    fn clone_by(&self, name: &str, copy_name: &str, share: bool) -> Result<Imported, StoreError> {
        if let Some(connection) = self.inner().connection() {
            if share {
                return Err(StoreError::NotHosted { what: "blocks are shared with a copy".into() });
            }
            return self.clone_through(connection, name, copy_name);
        }
        let from = self.quiescent_pool(name)?;
        let copy = self.copy_of(&from, copy_name, share, crate::credentials::us())?;
        // SAFETY: a copy of a pool that nothing writes, byte by byte.
        unsafe { copy.commit() }
    }

    /// The files of a copy, which belongs to that user and group when it is committed. The caller
    /// keeps the source unchanged meanwhile.
    pub(crate) fn copy_of(
        &self,
        from: &QuiescentPool,
        copy_name: &str,
        share: bool,
        owner: (u32, u32),
    ) -> Result<Import, StoreError> {
        let inner = self.inner();
        let pool = ImportPool {
            name: copy_name.into(),
            old_id: from.record.id,
            mode: from.record.mode,
            heap: from.record.heap,
            puddle_size: from.record.puddle_size,
            size_max: from.record.size_max,
            permissions: from.record.permissions,
            at_rest: from.at_rest,
            protect: from.protect,
            torn: from.torn,
            puddles: from
                .puddles
                .iter()
                .map(|(p, _)| ImportPuddle {
                    old_addr: p.addr,
                    size: p.size,
                    identity: p.uuid,
                    role: p.role,
                })
                .collect(),
        };
        // The store knows all of them; an import asks no more of those that come with it than
        // whether they can say a number of a pool.
        let says_numbers = |record: &Arc<TypeRecord>| super::import::says_numbers(record);
        let types =
            self.types().into_iter().filter(says_numbers).map(|record| (*record).clone()).collect();
        let mut import =
            self.begin_import_for(ImportManifest { pools: vec![pool], types }, owner)?;
        for (slot, (record, file)) in from.puddles.iter().enumerate() {
            let source = FileHandle::open(&inner.medium, file)?;
            if !(share && import.share(slot, &source)?) {
                let target = import.make(slot)?;
                let len = from.stored_len(record);
                copy(&source, &target, PAGE_SIZE, len).map_err(|error| inner.failed(error))?;
            }
        }
        Ok(import)
    }

    /// Gives a pool addresses that are chosen afresh, at random. Pointers into it, its own and
    /// those of the store's other pools, are rewritten when they are first touched. Durable on
    /// return. Addresses that are kept outside the store, and in objects, lead nowhere afterwards.
    ///
    /// # Errors
    /// As [`Store::quiescent_pool`], for every pool of the store; no room in the window. Nothing
    /// has moved then.
    pub fn randomize_pool(&self, name: &str) -> Result<(), StoreError> {
        let inner = self.inner();
        if let Some(connection) = inner.connection() {
            inner.check_usable()?;
            return connection.daemon.randomize_pool(name);
        }
        find(&inner.control(), name)?;
        let names: Vec<String> = inner.control().catalog.state.names.keys().cloned().collect();
        for other in &names {
            self.quiescent_pool(other)?;
        }
        self.move_pool(name)
    }

    /// The move itself, of a pool in a store in which nothing is pending and all pools are sound.
    pub(crate) fn move_pool(&self, name: &str) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("move a pool")?;
        let names: Vec<String> = control.catalog.state.names.keys().cloned().collect();
        for other in &names {
            refuse_open(&control, other)?;
        }
        let id = find(&control, name)?;
        inner.record_done(&mut control)?;
        // Logs that have moved are about none of these pools any more.
        let of_heap = |id: &&Uuid| {
            control.catalog.state.puddles.get(*id).is_none_or(|puddle| puddle.role.is_of_pool())
        };
        if let Some(pending) = control.catalog.state.pending.keys().find(of_heap) {
            // Of a pool that has come or moved since it was looked at: what is left to do of one
            // move is not known after another.
            let pool =
                control.catalog.state.puddles.get(pending).map_or(PoolId(0), |puddle| puddle.pool);
            let puddles = control.catalog.state.pending.len() as u64;
            let record = control.catalog.state.pools.get(&pool);
            let name = record.map_or_else(|| pool.to_string(), |record| record.name.clone());
            return Err(StoreError::RelocationPending { name, puddles });
        }
        inner.settle_logs(&control)?;
        let shadowed = |pool: &PoolRecord| pool.mode == PoolMode::Shadowed;
        if control.catalog.state.pools.values().any(shadowed) && !planted(Bug::MovedNotTrimmed) {
            crate::psync::psync_leased(inner, &mut control)?;
            inner.pool_journal(&mut control)?.trim_all()?;
        }
        let mut space = control.space.clone();
        let (records, old) = inner.move_records(&control, id, &mut space)?;
        inner.commit(&mut control, &records)?;
        control.space = space;
        for puddle in old {
            control.space.give_back(puddle.addr, puddle.size);
        }
        // The next opener of a pool looks at its puddles anew.
        let pools: Vec<PoolId> = control.catalog.state.pools.keys().copied().collect();
        for pool in pools {
            control.pools.remove(&pool);
            inner.forget_parts(pool);
            for puddle in control.catalog.state.puddles_of(pool) {
                inner.let_go(&mut control, &puddle);
            }
        }
        Ok(())
    }
}

/// Refuses a pool that is open, or about which something is in doubt.
fn refuse_open(control: &Control, name: &str) -> Result<(), StoreError> {
    let id = find(control, name)?;
    control.refuse_held(id, name)?;
    refuse_doubtful(control, id, name)
}

/// Refuses a pool about which something is open.
pub(crate) fn refuse_doubtful(control: &Control, id: PoolId, name: &str) -> Result<(), StoreError> {
    let state = &control.catalog.state;
    if state.not_covered.contains(&id) {
        return Err(StoreError::PoolNotCovered { name: name.into() });
    }
    if state.trace_due.contains(&id) {
        return Err(StoreError::Import {
            detail: format!(
                "pool \"{name}\" was in use when power failed: open it once, so that its blocks \
                 are traced"
            ),
        });
    }
    let damage: Vec<Damage> = concerns(&control.damage, id);
    let of_log = |damage: &Damage| matches!(damage, Damage::Log { .. } | Damage::LogSpace { .. });
    match damage.iter().all(of_log) {
        _ if damage.is_empty() => Ok(()),
        true => Err(StoreError::PoolLogDamaged { name: name.into(), damage }),
        false => Err(StoreError::PoolDamaged { name: name.into(), damage }),
    }
}

impl Inner {
    /// The batch that moves a pool, and its puddles as they were. New places are taken in `space`.
    fn move_records(
        &self,
        control: &Control,
        id: PoolId,
        space: &mut Space,
    ) -> Result<(Vec<Record>, Vec<PuddleRecord>), StoreError> {
        let state = &control.catalog.state;
        let relocation = self.random_uuid()?;
        let (mut moves, mut records, mut old) = (Vec::new(), Vec::new(), Vec::new());
        for pool in state.pools.keys() {
            for puddle in state.puddles_of(*pool) {
                let generation = self.generation_of(&puddle)? + 1;
                let pending = PendingRewriteRecord {
                    puddle: puddle.uuid,
                    relocation,
                    from: puddle.addr,
                    generation,
                };
                records.push(Record::PendingRewrite(pending));
                if *pool == id {
                    let to = space.take_random(puddle.size, self.random_u64()?);
                    let to = to.ok_or_else(|| StoreError::WindowFull {
                        wanted: puddle.size,
                        window_len: self.window.len(),
                        free: control.space.free_bytes(),
                    })?;
                    moves.push(MoveRecord { from: puddle.addr, to, size: puddle.size });
                    records.push(Record::Puddle(PuddleRecord { addr: to, ..puddle }));
                    old.push(puddle);
                }
            }
        }
        let all = state.pools.keys().flat_map(|pool| state.puddles_of(*pool));
        add_neighbours(&mut moves, all.map(|puddle| (puddle.addr, puddle.size)));
        if moves.len() > RELOCATION_MOVES_MAX {
            let puddles = moves.len();
            return Err(StoreError::Import {
                detail: format!(
                    "the pool has {puddles} puddles or more, and at most {RELOCATION_MOVES_MAX} \
                     are moved together: copy its values into a pool with larger puddles"
                ),
            });
        }
        records.insert(
            0,
            Record::Relocation(RelocationRecord { id: relocation, moves, pools: Vec::new() }),
        );
        Ok((records, old))
    }

    /// The generation that a puddle's header says.
    pub(super) fn generation_of(&self, puddle: &PuddleRecord) -> Result<u64, StoreError> {
        self.generation_in(text(&file_name(puddle.uuid)), puddle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_where_something_moved_away_is_said_to_stay() {
        let moved = |from, to| MoveRecord { from, to, size: 0x1000 };
        let mut moves = vec![moved(0x8000, 0x9_0000), moved(0x3000, 0x7_0000)];
        let all = [0x1000, 0x2000, 0x3000, 0x5000, 0x7000, 0x8000].map(|addr| (addr, 0x1000));
        add_neighbours(&mut moves, all.into_iter());
        let stays = |addr| moved(addr, addr);
        assert_eq!(
            moves,
            [stays(0x2000), moved(0x3000, 0x7_0000), stays(0x7000), moved(0x8000, 0x9_0000)]
        );
    }
}
