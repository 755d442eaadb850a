//! An import that the daemon makes for this client: a manifest, pieces of puddles, and an end.
//!
//! All but the last change nothing that another process sees. The last is sent again if its answer
//! is lost, and does nothing the second time.

use crate::connection::Connection;
use crate::kernel::interface::error::StoreError;
use crate::kernel::store::Store;
use crate::manifest::{ImportManifest, Imported, ImportedPool};

/// Bytes that are sent together.
const PIECES_LEN: usize = 4 << 20;

/// Stretches that are sent together.
const PIECES: usize = 1024;

/// An import that the daemon makes. Dropped, it leaves nothing.
#[derive(Debug)]
pub(super) struct RemoteImport {
    number: u64,
    /// Stretches that are still to be sent, all of one slot: offset, length and bytes.
    slot: usize,
    pieces: Vec<(u64, u32)>,
    bytes: Vec<u8>,
    store: Store,
    /// It has come to its end.
    over: bool,
}

impl RemoteImport {
    pub(super) fn begin(
        store: &Store,
        connection: &Connection,
        manifest: &ImportManifest,
    ) -> Result<Self, StoreError> {
        let number = connection.daemon.begin_import(manifest)?;
        let (pieces, bytes) = (Vec::new(), Vec::new());
        Ok(Self { number, slot: 0, pieces, bytes, store: store.clone(), over: false })
    }

    pub(super) fn write(
        &mut self,
        slot: usize,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
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
        let Some(daemon) = self.store.own_daemon() else { return Ok(()) };
        daemon.fill_import(self.number, self.slot as u32, &self.pieces, &self.bytes)?;
        self.pieces.clear();
        self.bytes.clear();
        Ok(())
    }

    pub(super) fn commit(mut self, manifest: &ImportManifest) -> Result<Imported, StoreError> {
        if !self.pieces.is_empty() {
            self.send()?;
        }
        let Some(daemon) = self.store.own_daemon() else { return Ok(Imported::default()) };
        let made = daemon.commit_import(self.number, manifest.pools.len() as u32)?;
        self.over = true;
        self.store.learn_types()?;
        self.store.learn_pools()?;
        let names = manifest.pools.iter().map(|pool| pool.name.clone());
        let pools = made.into_iter().zip(names);
        let pools = pools.map(|((id, moved, pending), name)| ImportedPool {
            id,
            name,
            moved,
            pending,
            shared: 0,
        });
        Ok(Imported { pools: pools.collect() })
    }
}

impl Drop for RemoteImport {
    fn drop(&mut self) {
        // The daemon drops it too when the connection ends, and knows it no more if it failed.
        if let Some(daemon) = self.store.own_daemon().filter(|_| !self.over) {
            let _ = daemon.abandon_import(self.number);
        }
    }
}
