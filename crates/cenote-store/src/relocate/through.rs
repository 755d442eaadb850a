//! Copying, importing and exporting as a daemon's client: what an embedded store does with files is asked of the daemon, or done with descriptors that it hands out for reading.
//!
//! Invariant: what this process sends is data, and what it opens by itself is its own. The daemon opens no path that a client names; an archive is read and written here, under the caller's own rights.
//!
//! **An import** is a manifest, pieces of puddles, and an end. All but the last change nothing that anybody sees. The last is sent again if its answer is lost, and does nothing the second time.
//!
//! **An export** has the pool granted for reading, which keeps it from being written until this session ends, and reads its files puddle by puddle.

use super::import::{ImportManifest, Imported, ImportedPool};
use super::moving::QuiescentPool;
use crate::connection::{Connection, Granted};
use crate::error::StoreError;
use crate::pools::find;
use crate::puddle::{file_name, text};
use crate::store::Store;
use cenote_layout::catalog::{AtRest, PuddleRecord};
use cenote_layout::id::PoolId;
use cenote_medium::FileHandle;
use std::sync::{Arc, PoisonError};

/// Bytes that are sent together.
const PIECES_LEN: usize = 4 << 20;
/// Stretches that are sent together.
const PIECES: usize = 1024;

/// An import that the daemon makes. Dropped, it leaves nothing.
#[derive(Debug)]
pub(super) struct Remote {
    number: u64,
    /// What is still to be sent, all of one slot: offset and length of stretches, and their bytes.
    slot: usize,
    pieces: Vec<(u64, u32)>,
    bytes: Vec<u8>,
    store: Store,
    /// It has come to its end.
    over: bool,
}

impl Remote {
    pub(super) fn begin(
        store: &Store,
        connection: &Connection,
        manifest: &ImportManifest,
    ) -> Result<Self, StoreError> {
        let number = connection.keeper.begin_import(manifest)?;
        let (pieces, bytes) = (Vec::new(), Vec::new());
        Ok(Self { number, slot: 0, pieces, bytes, store: store.clone(), over: false })
    }

    pub(super) fn write(&mut self, slot: usize, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut at = offset;
        for piece in bytes.chunks(PIECES_LEN) {
            let full = self.bytes.len() + piece.len() > PIECES_LEN || self.pieces.len() >= PIECES;
            if (slot != self.slot || full) && !self.pieces.is_empty() {
                self.send()?;
            }
            self.slot = slot;
            match self.pieces.last_mut() {
                Some((last, len)) if *last + u64::from(*len) == at => *len += piece.len() as u32,
                _ => self.pieces.push((at, piece.len() as u32)),
            }
            self.bytes.extend_from_slice(piece);
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), StoreError> {
        let Some(keeper) = self.store.keeper() else { return Ok(()) };
        keeper.fill_import(self.number, self.slot as u32, &self.pieces, &self.bytes)?;
        self.pieces.clear();
        self.bytes.clear();
        Ok(())
    }

    pub(super) fn commit(mut self, manifest: &ImportManifest) -> Result<Imported, StoreError> {
        if !self.pieces.is_empty() {
            self.send()?;
        }
        let Some(keeper) = self.store.keeper() else { return Ok(Imported::default()) };
        let made = keeper.commit_import(self.number, manifest.pools.len() as u32)?;
        self.over = true;
        self.store.learn_types()?;
        self.store.learn_pools()?;
        let names = manifest.pools.iter().map(|pool| pool.name.clone());
        let pools = made.into_iter().zip(names);
        let pools = pools.map(|((id, moved, due), name)| ImportedPool { id, name, moved, due, shared: 0 });
        Ok(Imported { pools: pools.collect() })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // The daemon drops it too when the connection ends, and does not know it any more if it failed.
        if let Some(keeper) = self.store.keeper().filter(|_| !self.over) {
            let _ = keeper.abandon_import(self.number);
        }
    }
}

impl Store {
    /// [`Store::clone_pool`] of a client.
    pub(super) fn clone_through(
        &self,
        connection: &Connection,
        name: &str,
        copy_name: &str,
    ) -> Result<Imported, StoreError> {
        self.inner().check_usable()?;
        let (id, moved, due) = connection.keeper.clone_pool(name, copy_name)?;
        self.learn_pools()?;
        Ok(Imported { pools: vec![ImportedPool { id, name: copy_name.into(), moved, due, shared: 0 }] })
    }

    /// [`Store::quiescent_pool`] of a client: the pool is granted for reading, so nobody writes it until this session ends.
    pub(super) fn quiescent_through(
        &self,
        connection: &Connection,
        name: &str,
    ) -> Result<QuiescentPool, StoreError> {
        let inner = self.inner();
        inner.check_usable()?;
        {
            let control = inner.control();
            let core = find(&control, name).ok().and_then(|id| control.pools.get(&id));
            if core.is_some_and(|core| Arc::strong_count(core) > 1) {
                return Err(StoreError::PoolInUse { name: name.into() });
            }
        }
        let record = connection.keeper.grant_to_read(name)?;
        let mut puddles: Vec<(PuddleRecord, String)> = Vec::new();
        loop {
            let first = puddles.last().map_or(0, |(last, _)| last.index + 1);
            let (page, more) = connection.keeper.page_of_puddles(record.id, first)?;
            // Whatever it sends, this ends.
            let goes_on = page.iter().any(|granted| granted.record.index >= first);
            let named = |granted: Granted| (granted.record, text(&file_name(granted.record.uuid)).to_owned());
            puddles.extend(page.into_iter().map(named));
            if !more || !goes_on {
                break;
            }
        }
        self.learn_types()?;
        // A daemon grants no pool that is protected, and none that may be torn.
        Ok(QuiescentPool { record, at_rest: AtRest::None, torn: false, puddles })
    }

    /// Opens the file of a puddle of a [`QuiescentPool`], to be read.
    ///
    /// # Errors
    /// The medium; the daemon does not hand it out.
    ///
    /// # Safety
    /// The caller reads, and writes nothing through the handle: the pool may be opened meanwhile.
    pub unsafe fn open_quiescent(&self, puddle: &PuddleRecord, file: &str) -> Result<FileHandle, StoreError> {
        let inner = self.inner();
        let Some(connection) = &inner.connection else {
            return Ok(FileHandle::open(&inner.medium, file)?);
        };
        let mut ahead = connection.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |granted: &Granted| granted.record == *puddle;
        if !ahead.iter().any(is_it) {
            // Not kept beside each other: descriptors are few.
            ahead.clear();
            (*ahead, _) = connection.keeper.page_of_puddles(puddle.pool, puddle.index)?;
        }
        let Some(at) = ahead.iter().position(is_it) else {
            ahead.clear();
            let detail = format!("the daemon does not hand out puddle {}", puddle.uuid);
            return Err(StoreError::Refused { detail });
        };
        // SAFETY: the daemon has granted it as the file of this puddle.
        unsafe { self.admit_file(file, ahead.swap_remove(at).file) }?;
        let opened = FileHandle::open(&inner.medium, file);
        self.dismiss(file);
        Ok(opened?)
    }

    /// Where the puddles of all pools lie, also of those that this session may not read: where pointers lead.
    ///
    /// # Errors
    /// The daemon cannot be asked.
    pub fn places_of_pools(&self) -> Result<Vec<PuddleRecord>, StoreError> {
        match &self.inner().connection {
            Some(connection) => connection.keeper.places(),
            None => {
                let mut records = self.puddle_records();
                records.retain(|puddle| puddle.pool != PoolId(0));
                Ok(records)
            }
        }
    }
}
