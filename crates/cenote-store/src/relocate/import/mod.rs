//! Takes puddles in that were another store's, or another pool's of this one, by one batch.
//!
//! States of an import:
//!
//! 1. Files of the puddles are made, under the identities that they will have, and the caller fills
//!    them: orphans.
//! 2. Their headers are written, in shadowed mode the primaries are made, and all files and their
//!    directories are synced.
//! 3. One batch registers types, pools, puddles, where they went and which are pending: **the
//!    catalog's batch commits**.
//!
//! A crash before 3 leaves orphans, which the next writable open removes. After it the pools are
//! there, and each puddle is rewritten when it is touched.
//!
//! # Addresses
//!
//! A pool whose addresses are all free in this window keeps them. Another moves as a whole, by one
//! distance, if there is room for it in one piece; else each puddle goes where there is room. So
//! off-holders inside a pool usually stay right. Nothing relies on that: the rewriter corrects them
//! where two puddles moved by different distances.
//!
//! # Pools that are protected at rest
//!
//! They come sealed, and no key is needed: the headers of the puddles' protections are compared
//! with the manifest, and pages are checked when they are opened. Every such puddle is pending,
//! wherever it lies: its key is another pool's, and **nothing more is sealed under it**
//! (reseal.rs). The batch says whose. There are no primaries, only the file.
//!
//! # Roles
//!
//! Puddles that hold metadata of a heap and nothing else get that role in the batch. An archive
//! does not say which they are: the heap's metadata do, in the files that were made (roles.rs).
//!
//! # What is pending
//!
//! Nothing is pending if every pool keeps its addresses, and no registered type has region pointers
//! to a pool that has another number now. Else all puddles of the import are pending, also those
//! that did not move: their targets may have. Those of protected pools always are.

mod check;
mod place;
mod plan;
mod roles;
mod steps;

use super::remote::RemoteImport;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::rewriter::TypeTable;
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::Store;
use crate::manifest::{ImportManifest, ImportSlot, Imported};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::AtRest;
use cenote_layout::id::Uuid;
use cenote_medium::FileHandle;
use std::collections::BTreeSet;
use std::sync::Arc;

use check::check;
use place::place;
use plan::{free_names, new_types, no_room};

pub(super) use plan::says_numbers;

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
    /// The client that asked for it, and by which request.
    by: Option<(Uuid, Uuid)>,
    /// It is made by the daemon that keeps the store.
    remote: Option<RemoteImport>,
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
            return connection.daemon.check_import(manifest);
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

    /// Begins to import pools: checks what can be checked, and changes nothing. The contents of the
    /// puddles come next ([`Import::create`]), and then [`Import::commit`].
    ///
    /// # Errors
    /// A manifest that cannot be; a name that is taken; a type with another layout here; no room in
    /// the window; a store that is read-only.
    pub fn begin_import(&self, manifest: ImportManifest) -> Result<Import, StoreError> {
        self.begin_import_for(manifest, crate::credentials::us())
    }

    /// The same for the user and the group that the pools are to belong to.
    pub(crate) fn begin_import_for(
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

    /// As [`Import::commit`], at the request of a client, by its token: the batch says so, too.
    ///
    /// # Errors
    /// As [`Import::commit`]; there is no such client.
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
        let roles = self.roles()?;
        let plan = self.plan(&mut *inner.begin_write("import a pool")?, &roles)?;
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

fn refused(detail: impl Into<String>) -> StoreError {
    StoreError::Import { detail: detail.into() }
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
