//! Taking puddles in that were another store's, or another pool's of this one: one batch, whatever
//! is in them.
//!
//! States of an import: (1) files of the puddles are made, under the identities that they will
//! have, and filled by the caller: orphans; (2) their headers are written, in shadowed
//! mode the primaries are made, all files are synced, and their directories; (3) one batch
//! registers types, pools, puddles, where they went and which are due: **the catalog's
//! batch commits**. What a crash before leaves is orphans, and goes at the next writable open;
//! after it the pools are there, and each puddle is rewritten when it is touched.
//!
//! # Addresses
//!
//! A pool whose addresses are all free in this window keeps them. One that cannot moves as a whole,
//! by one distance, if there is room for it in one piece; if not, each puddle goes where there is
//! room. So off-holders inside a pool usually stay right as they are; but nothing relies on it,
//! because the rewriter corrects them where two puddles moved by different distances.
//!
//! # Pools that are protected at rest
//!
//! come sealed, as they were, and no key is needed: the headers of the puddles' protections are
//! compared with the manifest, pages are checked when they are opened. Every such puddle is due,
//! wherever it lies: what it is sealed under is another's, and **is not sealed under again**
//! (reseal.rs). The batch says whose. There are no primaries; the file is all that there is.
//!
//! # What is due
//!
//! If every pool keeps its addresses, and no registered type has region pointers to a pool that has
//! another number now, nothing is due: no rewriting, no fault. Else all puddles of the import are
//! due, also those that did not move: what they point to may have. Those of protected pools always
//! are.

use super::neighbours::add_neighbours;
use super::remote::RemoteImport;
use crate::due::replace::copy;
use crate::kernel::pool_rules::{check_size, why_no_name};
use crate::kernel::puddle::{
    DIR, PRIMARY_DIR, file_name, first_page, make_header, primary_name, text,
};
use crate::kernel::rewriter::TypeTable;
use crate::kernel::store::{Control, Inner, Store};
use crate::kernel::{error::StoreError, mismatch::TypeMismatch, window::Space};
use crate::manifest::{
    ImportManifest, ImportPool, ImportPuddle, ImportSlot, Imported, ImportedPool,
};
use cenote_layout::at_rest::AtRestHeader;
use cenote_layout::catalog::{
    AtRest, DueRecord, MoveRecord, PoolMode, PoolRecord, PuddleRecord, RELOCATION_MOVES_MAX,
    Record, RelocationRecord,
};
use cenote_layout::header::{read, seal};
use cenote_layout::heap::{HeapGeometry, MEMBERS_SIZE};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::pointer::PointerKind;
use cenote_layout::puddle::{COMPAT_SHARES_BLOCKS, Role};
use cenote_layout::superblock::{INCOMPAT_POOLS_AT_REST, INCOMPAT_SEALED_AS};
use cenote_layout::types::TypeRecord;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Addresses of programs lie below this.
const ADDRESS_END: u64 = 1 << 47;
/// A pool moves as a whole if the room that takes is at most so many times its size.
const SPREAD_MAX: u64 = 4;

/// An import that has begun. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Import {
    store: Store,
    manifest: ImportManifest,
    slots: Vec<ImportSlot>,
    ids: Vec<Uuid>,
    /// Files that are there, to be removed if nothing comes of it.
    made: BTreeSet<String>,
    /// The file that was written last.
    open: Option<(usize, FileHandle)>,
    /// Slots whose files share blocks with others.
    shared: BTreeSet<usize>,
    uid: u32,
    gid: u32,
    /// The guest that asked for it, and by which request.
    by: Option<(Uuid, Uuid)>,
    /// It is made by the daemon that keeps the store.
    remote: Option<RemoteImport>,
}

fn refused(detail: impl Into<String>) -> StoreError {
    StoreError::Import { detail: detail.into() }
}

/// Checks what does not depend on the store. Manifests come from archives, so nothing in them is
/// believed.
fn check(manifest: &ImportManifest) -> Result<(), StoreError> {
    let count: usize = manifest.pools.iter().map(|pool| pool.puddles.len()).sum();
    if manifest.pools.is_empty() {
        return Err(refused("there is no pool in it"));
    }
    if count > RELOCATION_MOVES_MAX || manifest.pools.len() > RELOCATION_MOVES_MAX {
        return Err(refused(format!(
            "it has {count} puddles, and at most {RELOCATION_MOVES_MAX} are imported together: \
             import fewer pools at once"
        )));
    }
    let (mut names, mut numbers, mut ranges) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    for pool in &manifest.pools {
        let name = || pool.name.chars().take(80).collect::<String>();
        why_no_name(&pool.name).map_err(|reason| StoreError::PoolName { name: name(), reason })?;
        if !names.insert(&pool.name) || !numbers.insert(pool.old_id) {
            return Err(refused(format!("pool \"{}\" is in it twice, by name or number", name())));
        }
        if pool.at_rest != AtRest::None && pool.mode != PoolMode::Shadowed {
            return Err(StoreError::Protected { name: name(), what: "a pool in direct mode" });
        }
        if pool.puddles.is_empty() {
            return Err(refused(format!("pool \"{}\" has no puddle", name())));
        }
        let mut sum = 0u64;
        for (index, puddle) in pool.puddles.iter().enumerate() {
            check_size(puddle.size, index == 0)?;
            sum = sum.saturating_add(puddle.size);
            let end = puddle.old_addr.checked_add(puddle.size).filter(|end| *end <= ADDRESS_END);
            if puddle.old_addr == 0 || !puddle.old_addr.is_multiple_of(SLOT_SIZE) || end.is_none() {
                return Err(refused(format!(
                    "a puddle was at {:#x}, where none can be",
                    puddle.old_addr
                )));
            }
            if ranges.insert(puddle.old_addr, end.unwrap_or(0)).is_some() {
                return Err(refused(format!("two puddles were at {:#x}", puddle.old_addr)));
            }
            if pool.at_rest != AtRest::None && puddle.identity.is_nil() {
                return Err(refused(format!("no file says what pool \"{}\" is sealed as", name())));
            }
            if pool.at_rest.stored_len(puddle.size).is_none() {
                return Err(refused(format!(
                    "a puddle of {} bytes is longer than any can be",
                    puddle.size
                )));
            }
        }
        check_size(pool.puddle_size, true)?;
        if sum > pool.size_max {
            return Err(StoreError::PoolFull {
                name: name(),
                wanted: 0,
                used: sum,
                size_max: pool.size_max,
            });
        }
    }
    let ends = ranges.values().zip(ranges.keys().skip(1));
    if let Some((_, addr)) = ends.into_iter().find(|(end, next)| end > next) {
        return Err(refused(format!("the puddle at {addr:#x} lay on top of another")));
    }
    Ok(())
}

/// Finds places: new addresses of all puddles of a pool. Those are taken then; `None`, and nothing
/// is, if there is no room.
fn place(space: &mut Space, puddles: &[ImportPuddle]) -> Option<Vec<u64>> {
    let take_all =
        |space: &mut Space, at: &mut dyn FnMut(&mut Space, &ImportPuddle) -> Option<u64>| {
            let mut taken = Vec::with_capacity(puddles.len());
            for puddle in puddles {
                match at(space, puddle) {
                    Some(addr) => taken.push(addr),
                    None => {
                        for (addr, puddle) in taken.iter().zip(puddles) {
                            space.give_back(*addr, puddle.size);
                        }
                        return None;
                    }
                }
            }
            Some(taken)
        };
    let take_at = |space: &mut Space, addr: u64, size| space.take_at(addr, size).then_some(addr);
    if let Some(kept) =
        take_all(space, &mut |space, puddle| take_at(space, puddle.old_addr, puddle.size))
    {
        return Some(kept);
    }
    let first = puddles.iter().map(|puddle| puddle.old_addr).min()?;
    let last = puddles.iter().map(|puddle| puddle.old_addr + puddle.size).max()?;
    let sum: u64 = puddles.iter().map(|puddle| puddle.size.next_multiple_of(SLOT_SIZE)).sum();
    if (last - first) / SPREAD_MAX <= sum
        && let Some(base) = space.take(last - first)
    {
        space.give_back(base, last - first);
        let together = take_all(space, &mut |space, puddle| {
            take_at(space, base + (puddle.old_addr - first), puddle.size)
        });
        if together.is_some() {
            return together;
        }
    }
    take_all(space, &mut |space, puddle| space.take(puddle.size))
}

impl Store {
    /// Checks all that [`Store::begin_import`] checks, in a store that may be open to look.
    ///
    /// # Errors
    /// As [`Store::begin_import`].
    pub fn check_import(&self, manifest: &ImportManifest) -> Result<(), StoreError> {
        check(manifest)?;
        let inner = self.inner();
        inner.check_usable()?;
        if let Some(connection) = inner.connection() {
            refuse_protected(manifest)?;
            return connection.keeper.check_import(manifest);
        }
        let control = inner.control();
        new_types(&control, manifest)?;
        free_names(&control, manifest)?;
        let mut space = control.space.clone();
        for pool in &manifest.pools {
            place(&mut space, &pool.puddles).ok_or_else(|| no_room(inner, &control, pool))?;
        }
        Ok(())
    }

    /// Begins to import pools: checks what can be checked, and changes nothing. What is in the
    /// puddles comes next ([`Import::create`]), and then [`Import::commit`].
    ///
    /// # Errors
    /// A manifest that cannot be; a name that is taken; a type with another layout here; no room in
    /// the window; a store that is read-only.
    pub fn begin_import(&self, manifest: ImportManifest) -> Result<Import, StoreError> {
        self.begin_import_for(manifest, crate::credentials::us())
    }

    /// The same for the user and the group that the pools are to belong to.
    pub(super) fn begin_import_for(
        &self,
        manifest: ImportManifest,
        (uid, gid): (u32, u32),
    ) -> Result<Import, StoreError> {
        let inner = self.inner();
        let mut remote = None;
        if let Some(connection) = inner.connection() {
            check(&manifest)?;
            inner.check_usable()?;
            refuse_protected(&manifest)?;
            remote = Some(RemoteImport::begin(self, connection, &manifest)?);
        } else {
            self.check_import(&manifest)?;
            drop(inner.begin_write("import a pool")?);
        }
        let (mut slots, mut ids) = (Vec::new(), Vec::new());
        for (pool, from) in manifest.pools.iter().enumerate() {
            for (puddle, image) in from.puddles.iter().enumerate() {
                let id = inner.random_uuid()?;
                ids.push(id);
                let size = from.at_rest.stored_len(image.size).unwrap_or(image.size);
                slots.push(ImportSlot { file: text(&file_name(id)).into(), size, pool, puddle });
            }
        }
        let (store, made, shared, open, by) =
            (self.clone(), BTreeSet::new(), BTreeSet::new(), None, None);
        Ok(Import { store, manifest, slots, ids, made, shared, open, uid, gid, by, remote })
    }
}

/// A daemon keeps no pools that are protected.
fn refuse_protected(manifest: &ImportManifest) -> Result<(), StoreError> {
    match manifest.pools.iter().find(|pool| pool.at_rest != AtRest::None) {
        Some(pool) => Err(StoreError::Protected {
            name: pool.name.clone(),
            what: "a pool that a daemon keeps",
        }),
        None => Ok(()),
    }
}

fn no_room(inner: &Inner, control: &Control, pool: &ImportPool) -> StoreError {
    StoreError::WindowFull {
        wanted: pool.puddles.iter().map(|puddle| puddle.size).sum(),
        window_len: inner.window.len(),
        free: control.space.free_bytes(),
    }
}

/// Whether values of a type may say the number of a pool.
pub(super) fn says_numbers(record: &TypeRecord) -> bool {
    record.pointers.iter().any(|pointer| pointer.kind == PointerKind::REGION)
}

/// The types of a manifest that the store does not know yet.
fn new_types(control: &Control, manifest: &ImportManifest) -> Result<Vec<Record>, StoreError> {
    let mut new: BTreeMap<TypeId, &TypeRecord> = BTreeMap::new();
    for offered in &manifest.types {
        offered.check()?;
        let known = control.catalog.state.types.get(&offered.id).map(|known| &**known);
        match known.or_else(|| new.get(&offered.id).copied()) {
            Some(known) if known == offered => {}
            Some(known) => {
                return Err(Box::new(TypeMismatch {
                    known: known.clone(),
                    offered: offered.clone(),
                })
                .into());
            }
            None => {
                new.insert(offered.id, offered);
            }
        }
    }
    Ok(new.into_values().cloned().map(Record::Type).collect())
}

fn free_names(control: &Control, manifest: &ImportManifest) -> Result<(), StoreError> {
    match manifest.pools.iter().find(|pool| control.catalog.state.names.contains_key(&pool.name)) {
        Some(pool) => Err(StoreError::PoolExists { name: pool.name.clone() }),
        None => Ok(()),
    }
}

/// What an import comes to, when its addresses are known.
struct Plan {
    records: Vec<PuddleRecord>,
    pools: Vec<PoolId>,
    relocation: Option<RelocationRecord>,
    /// Whether it concerns the pools that are not protected, too.
    all_due: bool,
}

impl Plan {
    /// What the puddles of a pool need, if they are due.
    fn due(&self, pool: &ImportPool) -> Option<&RelocationRecord> {
        let due = self.all_due || pool.at_rest != AtRest::None;
        self.relocation.as_ref().filter(|_| due)
    }
}

impl Import {
    /// One for each puddle, in the manifest's order.
    #[must_use]
    pub fn slots(&self) -> &[ImportSlot] {
        &self.slots
    }

    /// Makes the file of a slot: zeros, with its space taken. [`Import::write`] fills it; the
    /// puddle's first page, which is the old header, and zeros may be left out.
    ///
    /// # Errors
    /// There is no such slot, or its file was made before; a full disk; the medium.
    pub fn create(&mut self, slot: usize) -> Result<(), StoreError> {
        self.make(slot).map(drop)
    }

    /// As [`Import::create`], with the file. It is written before the import commits, and not
    /// later.
    pub(super) fn make(&mut self, slot: usize) -> Result<FileHandle, StoreError> {
        let inner = self.store.inner();
        let slot = self.slots.get(slot).ok_or_else(|| refused("there is no such slot"))?;
        inner.medium.create(&slot.file, slot.size).map_err(|error| inner.failed(error))?;
        self.made.insert(slot.file.clone());
        Ok(FileHandle::open(&inner.medium, &slot.file)?)
    }

    /// Writes a part of what a slot's puddle holds, at the offset where it was. Its file is made by
    /// the first.
    ///
    /// # Errors
    /// As [`Import::create`]; the part does not lie behind the first page of the puddle and before
    /// its end.
    pub fn write(&mut self, slot: usize, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let place = self.slots.get(slot).ok_or_else(|| refused("there is no such slot"))?;
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= place.size);
        if offset < PAGE_SIZE || end.is_none() {
            return Err(refused(format!(
                "{} bytes at {offset:#x} are not in the puddle's body",
                bytes.len()
            )));
        }
        if let Some(remote) = &mut self.remote {
            return remote.write(slot, offset, bytes);
        }
        let known = self.open.as_ref().is_some_and(|(open, _)| *open == slot);
        if !known {
            let file = match self.made.contains(&place.file) {
                true => FileHandle::open(&self.store.inner().medium, &place.file)?,
                false => self.make(slot)?,
            };
            self.open = Some((slot, file));
        }
        match &self.open {
            Some((_, file)) => {
                file.write_at(offset, bytes).map_err(|error| self.store.inner().failed(error))
            }
            None => Ok(()),
        }
    }

    /// Makes the files of all slots that nothing was written to.
    ///
    /// # Errors
    /// As [`Import::create`].
    pub fn create_rest(&mut self) -> Result<(), StoreError> {
        if self.remote.is_some() {
            return Ok(());
        }
        let missing = |(slot, place): (usize, &ImportSlot)| {
            (!self.made.contains(&place.file)).then_some(slot)
        };
        let rest: Vec<usize> = self.slots.iter().enumerate().filter_map(missing).collect();
        rest.into_iter().try_for_each(|slot| self.create(slot))
    }

    /// The file of a slot, to be read. `None` if a daemon makes it: then the daemon reads it.
    ///
    /// # Errors
    /// The file was not made; the medium.
    ///
    /// # Safety
    /// The caller reads, and writes nothing through the handle: the import may commit meanwhile.
    pub unsafe fn file(&self, slot: usize) -> Result<Option<FileHandle>, StoreError> {
        if self.remote.is_some() {
            return Ok(None);
        }
        let slot = self.slots.get(slot).ok_or_else(|| refused("there is no such slot"))?;
        Ok(Some(FileHandle::open(&self.store.inner().medium, &slot.file)?))
    }

    /// All types that its values may have: those of the manifest, and the store's.
    #[must_use]
    pub fn types(&self) -> TypeTable {
        let offered = self.manifest.types.iter().map(|record| Arc::new(record.clone()));
        self.store.types().into_iter().chain(offered).map(|record| (record.id, record)).collect()
    }

    /// What its puddles are, by bytes.
    #[must_use]
    pub fn manifest(&self) -> &ImportManifest {
        &self.manifest
    }

    /// As [`Import::commit`], at the request of a guest, by its token: the batch says so, too.
    ///
    /// # Errors
    /// As [`Import::commit`]; there is no such guest.
    ///
    /// # Safety
    /// As [`Import::commit`].
    pub unsafe fn commit_for(mut self, client: Uuid, token: Uuid) -> Result<Imported, StoreError> {
        self.by = Some((client, token));
        self.create_rest()?;
        // SAFETY: the caller's.
        unsafe { self.commit() }
    }

    /// Makes the file of a slot by sharing the blocks of another, if it can be shared and will be
    /// rewritten before it is mapped. `false`: it is still to be made.
    pub(super) fn share(&mut self, number: usize, source: &FileHandle) -> Result<bool, StoreError> {
        let inner = self.store.inner();
        let slot = self.slots.get(number).ok_or_else(|| refused("there is no such slot"))?;
        let failed = |error| inner.failed(error);
        // An empty file: what is shared needs no space of its own.
        inner.medium.create(&slot.file, 0).map_err(failed)?;
        self.made.insert(slot.file.clone());
        let target = inner.medium.descriptor(&slot.file).map_err(failed)?;
        if target.is_some_and(|target| source.share_blocks_with(&target)) {
            self.shared.insert(number);
            return Ok(true);
        }
        inner.medium.remove(&slot.file).map_err(failed)?;
        self.made.remove(&slot.file);
        Ok(false)
    }

    /// Makes the pools part of the store. Durable on return; no time is spent on what is in the
    /// puddles, but for making it durable and for copying it where a pool is in shadowed mode.
    ///
    /// # Errors
    /// A file that was not made; a name that was taken meanwhile; no room in the window any more; a
    /// full disk; the medium. Nothing was imported then, and the files are gone.
    ///
    /// # Safety
    /// The files were checked as they are now, or are copies of a pool's: blocks that are live hold
    /// values of their types. Programs show them as such without another look.
    pub unsafe fn commit(mut self) -> Result<Imported, StoreError> {
        let store = self.store.clone();
        if let Some(remote) = self.remote.take() {
            return remote.commit(&self.manifest);
        }
        let inner = store.inner();
        self.open = None;
        if let Some(slot) = self.slots.iter().find(|slot| !self.made.contains(&slot.file)) {
            return Err(refused(format!("the file {} of a puddle was not made", slot.file)));
        }
        let plan = self.plan(&mut *inner.begin_write("import a pool")?)?;
        let committed = self.prepare(&plan).and_then(|()| self.register(&plan));
        if committed.is_err() {
            // Where the batch may have been made after all the store is poisoned, and the files
            // have to stay.
            if inner.check_poisoned().is_ok() {
                let mut control = inner.control();
                plan.records
                    .iter()
                    .for_each(|record| control.space.give_back(record.addr, record.size));
            } else {
                self.made.clear();
            }
        }
        committed
    }

    /// Takes addresses and numbers; only this process knows of it.
    fn plan(&self, control: &mut Control) -> Result<Plan, StoreError> {
        let inner = self.store.inner();
        free_names(control, &self.manifest)?;
        let mut space = control.space.clone();
        let (mut records, mut moves, mut pools) = (Vec::new(), Vec::new(), Vec::new());
        let mut ids = self.ids.iter();
        for (number, pool) in self.manifest.pools.iter().enumerate() {
            let addrs =
                place(&mut space, &pool.puddles).ok_or_else(|| no_room(inner, control, pool))?;
            let id = PoolId(control.catalog.state.next_pool + number as u64);
            pools.push(id);
            for (index, (addr, old)) in addrs.into_iter().zip(&pool.puddles).enumerate() {
                let uuid = ids.next().copied().unwrap_or_default();
                let (role, index, size) = (Role::Heap, index as u32, old.size);
                records.push(PuddleRecord { uuid, pool: id, role, index, addr, size });
                if addr != old.old_addr {
                    moves.push(MoveRecord { from: old.old_addr, to: addr, size });
                }
            }
        }
        if !moves.is_empty() {
            let all = self.manifest.pools.iter().flat_map(|pool| &pool.puddles);
            add_neighbours(&mut moves, all.map(|puddle| (puddle.old_addr, puddle.size)));
        }
        let renumbered: Vec<(PoolId, PoolId)> = self
            .manifest
            .pools
            .iter()
            .map(|pool| pool.old_id)
            .zip(pools.iter().copied())
            .filter(|(old, new)| old != new)
            .collect();
        let all_due = !moves.is_empty()
            || !renumbered.is_empty() && self.manifest.types.iter().any(says_numbers);
        let protected = self.manifest.pools.iter().any(|pool| pool.at_rest != AtRest::None);
        let relocation = match all_due || protected {
            true => Some(RelocationRecord { id: inner.random_uuid()?, moves, pools: renumbered }),
            false => None,
        };
        control.space = space;
        control.catalog.state.next_pool += self.manifest.pools.len() as u64;
        Ok(Plan { records, pools, relocation, all_due })
    }

    /// The pool of a slot.
    fn pool_of(&self, number: usize) -> &ImportPool {
        &self.manifest.pools[self.slots[number].pool]
    }

    fn old(&self, number: usize) -> ImportPuddle {
        let slot = &self.slots[number];
        self.manifest.pools[slot.pool].puddles[slot.puddle]
    }

    /// Step 2.
    fn prepare(&mut self, plan: &Plan) -> Result<(), StoreError> {
        let store = self.store.clone();
        let inner = store.inner();
        let failed = |error| inner.failed(error);
        let mut shadowed = false;
        for (number, record) in plan.records.iter().enumerate() {
            let pool = self.pool_of(number);
            let said = match plan.due(pool) {
                Some(_) => PuddleRecord { addr: self.old(number).old_addr, ..*record },
                None => *record,
            };
            let file = FileHandle::open(&inner.medium, &self.slots[number].file).map_err(failed)?;
            let mut header = make_header(&said, inner.uuid);
            if self.shared.contains(&number) {
                header.prefix.compat |= COMPAT_SHARES_BLOCKS;
                seal(&mut header);
            }
            let sealed = pool.at_rest != AtRest::None;
            let page = first_page(&header, inner.stamps.made(sealed));
            file.write_at(0, &page).map_err(failed)?;
            if sealed {
                check_protection(&file, record.size, self.old(number).identity, pool)?;
            } else if let Some(geometry) =
                HeapGeometry::new(record.size, true).filter(|_| record.index == 0)
            {
                // Who had the pool open elsewhere has not this one.
                file.write_at(geometry.members, &[0; MEMBERS_SIZE as usize]).map_err(failed)?;
            }
            if self.pool_of(number).mode == PoolMode::Shadowed && !sealed {
                shadowed = true;
                let primary = primary_name(record.uuid);
                inner.make_primary(&said)?;
                self.made.insert(text(&primary).into());
                let primary = FileHandle::open(&inner.medium, text(&primary)).map_err(failed)?;
                copy(&file, &primary, PAGE_SIZE, record.size).map_err(failed)?;
                inner.medium.sync(primary.name()).map_err(failed)?;
            }
            if !planted(Bug::ImportNotSynced) {
                inner.medium.sync(file.name()).map_err(failed)?;
            }
        }
        if shadowed {
            inner.medium.sync_dir(PRIMARY_DIR).map_err(failed)?;
        }
        inner.medium.sync_dir(DIR).map_err(failed)
    }

    /// Step 3.
    fn register(&mut self, plan: &Plan) -> Result<Imported, StoreError> {
        let store = self.store.clone();
        let inner = store.inner();
        let mut control = inner.begin_write("import a pool")?;
        free_names(&control, &self.manifest)?;
        let mut records = new_types(&control, &self.manifest)?;
        if let (Some((client, token)), Some(pool)) = (self.by, plan.pools.first().copied()) {
            records.extend(control.introduce(client)?);
            if !planted(Bug::ImportNotRemembered) {
                records.push(Record::PoolMade { client, token, pool });
            }
        }
        if self.manifest.pools.iter().any(|pool| pool.mode == PoolMode::Shadowed) {
            // Before the pool, so that there is none without a journal.
            inner.pool_journal(&mut control)?;
        }
        let mut imported = Imported::default();
        for (pool, id) in self.manifest.pools.iter().zip(&plan.pools) {
            records.push(Record::Pool(PoolRecord {
                id: *id,
                name: pool.name.clone(),
                mode: pool.mode,
                heap: pool.heap,
                puddle_size: pool.puddle_size,
                size_max: pool.size_max,
                uid: self.uid,
                gid: self.gid,
                permissions: pool.permissions,
                created_at_s: inner.medium.now_s(),
            }));
            if pool.at_rest != AtRest::None {
                inner.announce(&mut control, INCOMPAT_POOLS_AT_REST | INCOMPAT_SEALED_AS)?;
                records.push(Record::PoolAtRest(*id, pool.at_rest));
            }
            if pool.torn && !planted(Bug::TornNotCopied) {
                records.push(Record::PoolTorn(*id));
            }
            // It is not as a pool is when it is created.
            records.push(Record::PoolUsed(*id));
            let own = plan.records.iter().filter(|record| record.pool == *id);
            let moved = own.zip(&pool.puddles).any(|(record, old)| record.addr != old.old_addr);
            let due = plan.due(pool).map_or(0, |_| pool.puddles.len() as u64);
            let of_pool =
                |slot: &&usize| plan.records.get(**slot).is_some_and(|record| record.pool == *id);
            let shared = self.shared.iter().filter(of_pool).count() as u64;
            imported.pools.push(ImportedPool {
                id: *id,
                name: pool.name.clone(),
                moved,
                due,
                shared,
            });
        }
        records.extend(plan.records.iter().map(|record| Record::Puddle(*record)));
        if let Some(relocation) = &plan.relocation {
            records.push(Record::Relocation(relocation.clone()));
            for (number, record) in
                plan.records.iter().enumerate().filter(|_| !planted(Bug::ImportNotDue))
            {
                let (pool, old, puddle) = (self.pool_of(number), self.old(number), record.uuid);
                if plan.due(pool).is_none() {
                    continue;
                }
                let (relocation, from) = (relocation.id, old.old_addr);
                records.push(Record::Due(DueRecord { puddle, relocation, from, generation: 2 }));
                if pool.at_rest != AtRest::None && !planted(Bug::SealedAsForgotten) {
                    records.push(Record::SealedAs { puddle, identity: old.identity });
                }
            }
        }
        inner.commit(&mut control, &records)?;
        self.made.clear();
        if let Some((client, _)) = self.by {
            control.introduced(client);
        }
        Ok(imported)
    }
}

/// Refuses a file whose protection is not the one that the manifest says.
fn check_protection(
    file: &FileHandle,
    size: u64,
    identity: Uuid,
    pool: &ImportPool,
) -> Result<(), StoreError> {
    let mut bytes = [0; size_of::<AtRestHeader>()];
    file.read_exact_at(size, &mut bytes)?;
    let not_it =
        |detail: String| refused(format!("a puddle of pool \"{}\" is not it: {detail}", pool.name));
    let header: AtRestHeader = read(&bytes, true).map_err(|error| not_it(error.to_string()))?;
    let mode = pool.at_rest.mode();
    if header.object != identity {
        return Err(not_it(format!("it is sealed as {}, not as {identity}", header.object)));
    }
    if header.mode != mode as u32 {
        return Err(not_it(format!("its protection is not \"{mode}\"")));
    }
    if header.pages != (size - PAGE_SIZE) / PAGE_SIZE {
        return Err(not_it(format!("its protection is of {} pages", header.pages)));
    }
    Ok(())
}

impl Drop for Import {
    fn drop(&mut self) {
        let inner = self.store.inner();
        if inner.check_usable().is_err() {
            return;
        }
        for file in &self.made {
            // What stays is an orphan; the next writable open removes it.
            let _ = inner.medium.remove(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 40;

    fn puddles(list: &[(u64, u64)]) -> Vec<ImportPuddle> {
        list.iter()
            .map(|&(slot, slots)| ImportPuddle {
                old_addr: BASE + slot * SLOT_SIZE,
                size: slots * SLOT_SIZE,
                identity: Uuid::NIL,
            })
            .collect()
    }

    fn slots(placed: Option<Vec<u64>>) -> Option<Vec<u64>> {
        Some(placed?.into_iter().map(|addr| (addr - BASE) / SLOT_SIZE).collect())
    }

    #[test]
    fn addresses_are_kept_if_all_are_free_and_else_moved_together_and_at_last_one_by_one() {
        let mut space = Space::new(BASE, 16 * SLOT_SIZE);
        let pool = puddles(&[(2, 1), (4, 2)]);
        assert_eq!(slots(place(&mut space, &pool)), Some(vec![2, 4]), "free: kept");
        assert_eq!(
            slots(place(&mut space, &pool)),
            Some(vec![6, 8]),
            "taken: both by one distance"
        );
        assert_eq!(slots(place(&mut space, &puddles(&[(2, 1), (4, 2)]))), Some(vec![10, 12]));
        let free = space.free_bytes();
        assert_eq!(free, 7 * SLOT_SIZE);
        // 0, 1, 3, 7, 11, 14 and 15 are left: no room for four in a row.
        assert_eq!(slots(place(&mut space, &pool)), Some(vec![0, 14]), "one by one");
        assert_eq!(space.free_bytes(), 4 * SLOT_SIZE);
        assert_eq!(place(&mut space, &pool), None, "no room");
        assert_eq!(space.free_bytes(), 4 * SLOT_SIZE, "and nothing is taken");
    }
}
