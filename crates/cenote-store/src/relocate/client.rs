//! Copies, imports and exports pools as a daemon's client: asks the daemon for what an embedded
//! store does with files, or does it with descriptors that the daemon grants for reading.
//!
//! Invariant: what this process sends is data, and what it opens by itself is its own. The daemon
//! opens no path that a client names; the client reads and writes an archive itself, under the
//! caller's own rights.
//!
//! **An export** has the pool granted for reading, so that no client writes it until this session
//! ends, and reads its files puddle by puddle.

use crate::connection::Connection;
use crate::daemon_api::Granted;
use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::pool_rules::find;
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::Store;
use crate::manifest::{Imported, ImportedPool, QuiescentPool};
use cenote_layout::catalog::{AtRest, DataProtection, PuddleRecord};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::PoolId;
use cenote_medium::FileHandle;
use std::sync::{Arc, PoisonError};

impl Store {
    /// [`Store::clone_pool`] of a client.
    pub(super) fn clone_through(
        &self,
        connection: &Connection,
        name: &str,
        copy_name: &str,
    ) -> Result<Imported, StoreError> {
        self.inner().check_usable()?;
        let (id, moved, pending) = connection.daemon.clone_pool(name, copy_name)?;
        self.learn_pools()?;
        Ok(Imported {
            pools: vec![ImportedPool { id, name: copy_name.into(), moved, pending, shared: 0 }],
        })
    }

    /// [`Store::quiescent_pool`] of a client: the daemon grants the pool for reading, so no client
    /// writes it until this session ends.
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
        let record = connection.daemon.grant_to_read(name)?;
        let mut puddles: Vec<(PuddleRecord, String)> = Vec::new();
        loop {
            let first = puddles.last().map_or(0, |(last, _)| last.index + 1);
            let (page, more) = connection.daemon.page_of_puddles(record.id, first)?;
            // The loop ends with any answer of the daemon.
            let goes_on = page.iter().any(|granted| granted.record.index >= first);
            let named = |granted: Granted| {
                (granted.record, text(&file_name(granted.record.uuid)).to_owned())
            };
            puddles.extend(page.into_iter().map(named));
            if !more || !goes_on {
                break;
            }
        }
        self.learn_types()?;
        // A daemon grants no pool that is protected, and none that may be torn.
        let (at_rest, protect) = (AtRest::None, DataProtection::None);
        Ok(QuiescentPool { record, at_rest, protect, torn: false, puddles })
    }

    /// Opens the file of a puddle of a [`QuiescentPool`], to be read.
    ///
    /// # Errors
    /// The medium; the daemon does not hand it out.
    ///
    /// # Safety
    /// The caller reads, and writes nothing through the handle: the pool may be opened meanwhile.
    pub unsafe fn open_quiescent(
        &self,
        puddle: &PuddleRecord,
        file: &str,
    ) -> Result<FileHandle, StoreError> {
        let inner = self.inner();
        let Some(connection) = inner.connection() else {
            return Ok(FileHandle::open(&inner.medium, file)?);
        };
        let mut ahead = connection.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |granted: &Granted| granted.record == *puddle;
        if !ahead.iter().any(is_it) {
            // Not kept beside each other: descriptors are few.
            ahead.clear();
            (*ahead, _) = connection.daemon.page_of_puddles(puddle.pool, puddle.index)?;
        }
        let Some(at) = ahead.iter().position(is_it) else {
            ahead.clear();
            let detail = format!("the daemon does not hand out puddle {}", puddle.uuid);
            return Err(StoreError::Refused { kind: ErrorKind::Io, detail });
        };
        // SAFETY: the daemon has granted it as the file of this puddle.
        unsafe { self.admit_file(file, ahead.swap_remove(at).file) }?;
        let opened = FileHandle::open(&inner.medium, file);
        // SAFETY: it was admitted here, under the lock of `ahead`; no other thread maps this name.
        unsafe { self.dismiss(file) };
        Ok(opened?)
    }

    /// Where the puddles of all pools lie, also of those that this session may not read: where
    /// pointers lead.
    ///
    /// # Errors
    /// The daemon cannot be asked.
    pub fn places_of_pools(&self) -> Result<Vec<PuddleRecord>, StoreError> {
        match self.inner().connection() {
            Some(connection) => connection.daemon.places(),
            None => {
                let mut records = self.puddle_records();
                records.retain(|puddle| puddle.pool != PoolId(0));
                Ok(records)
            }
        }
    }
}
