//! Files that another process opened and handed over, as a medium: what a daemon's client has of a
//! store.
//!
//! There is no directory behind it. A file is known from [`GrantedMedium::admit`] until it is
//! mapped: then its descriptor is closed, because the mapping keeps the file, and a client of a
//! large pool would run out of descriptors. So a file that is to be mapped once more is
//! granted once more. Nothing can be created, read, written or synced by name: the owner of the
//! files does that.
//!
//! The descriptor decides the rights of a mapping: the kernel maps a file that was opened for
//! reading for reading only.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cenote_layout::id::Uuid;

use crate::{
    Durability, FileName, FileWord, LockGuard, LockHolder, LockKind, MapMode, Medium, MediumError,
    MediumInfo, MediumKind, Operation, Persistence,
};

use super::window::{How, Windows};

type Result<T> = core::result::Result<T, MediumError>;

/// Files that were handed over, and the windows they are mapped in.
#[derive(Debug)]
pub struct GrantedMedium {
    info: MediumInfo,
    windows: Windows,
    /// Granted and not mapped yet.
    files: Mutex<HashMap<String, File>>,
}

impl GrantedMedium {
    /// A medium without files. `info` says what the owner's directory is.
    #[must_use]
    pub fn new(info: MediumInfo) -> Self {
        Self { info, windows: Windows::default(), files: Mutex::default() }
    }

    /// Takes a file that was handed over, for the next mapping of this name.
    ///
    /// # Errors
    /// [`MediumError::BadName`].
    pub fn admit(&self, name: &str, file: File) -> Result<()> {
        FileName::check(Operation::Map, name)?;
        self.files().insert(name.to_owned(), file);
        Ok(())
    }

    /// Forgets a file that will not be mapped.
    pub fn dismiss(&self, name: &str) {
        self.files().remove(name);
    }

    fn files(&self) -> MutexGuard<'_, HashMap<String, File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to all that only the owner of the files can do.
fn owners<T>(op: Operation, name: &str) -> Result<T> {
    Err(MediumError::Denied {
        op,
        name: FileName::new(name),
        source: std::io::Error::new(
            std::io::ErrorKind::PermissionDenied,
            "the files are the daemon's",
        ),
    })
}

// SAFETY: what is said to be mapped is mapped, inside windows that `windows` reserved and at no
// other address.
unsafe impl Medium for GrantedMedium {
    fn describe(&self) -> MediumInfo {
        self.info.clone()
    }

    fn persistence(&self, level: Durability) -> Persistence {
        match level {
            Durability::Process => Persistence::PROCESS,
            Durability::Power
                if self.info.kind == MediumKind::Dax
                    && super::detect::caches_survive_power_loss() =>
            {
                Persistence::fence_only()
            }
            Durability::Power => Persistence::power(),
        }
    }

    fn read_only(&self) -> bool {
        false
    }

    fn boot_id(&self) -> Uuid {
        super::boot_id()
    }

    fn now_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    fn exists(&self, name: &str) -> Result<bool> {
        Ok(self.files().contains_key(name))
    }

    fn len(&self, name: &str) -> Result<u64> {
        let op = Operation::Examine;
        match self.files().get(name) {
            None => Err(MediumError::NotFound { op, name: FileName::new(name) }),
            Some(file) => match file.metadata() {
                Ok(metadata) => Ok(metadata.len()),
                Err(source) => Err(MediumError::from_io(op, name, source)),
            },
        }
    }

    /// For reading what was granted and is not mapped yet, or is mapped elsewhere.
    unsafe fn descriptor(&self, name: &str) -> Result<Option<File>> {
        let files = self.files();
        let Some(file) = files.get(name) else { return Ok(None) };
        file.try_clone()
            .map(Some)
            .map_err(|source| MediumError::from_io(Operation::Examine, name, source))
    }

    fn read_at(&self, name: &str, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        owners(Operation::Read, name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        owners(Operation::Read, name)
    }

    unsafe fn write_at(&self, name: &str, _offset: u64, _data: &[u8]) -> Result<()> {
        owners(Operation::Write, name)
    }

    fn create(&self, name: &str, _len_bytes: u64) -> Result<()> {
        owners(Operation::Create, name)
    }

    unsafe fn truncate(&self, name: &str, _len_bytes: u64) -> Result<()> {
        owners(Operation::Truncate, name)
    }

    unsafe fn clear(&self, name: &str) -> Result<()> {
        owners(Operation::Write, name)
    }

    fn ensure(&self, name: &str, _offset: u64, _len: u64) -> Result<()> {
        owners(Operation::Ensure, name)
    }

    fn sync(&self, name: &str) -> Result<()> {
        owners(Operation::Sync, name)
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        owners(Operation::SyncDirectory, dir)
    }

    unsafe fn rename(&self, from: &str, _to: &str) -> Result<()> {
        owners(Operation::Rename, from)
    }

    unsafe fn remove(&self, name: &str) -> Result<()> {
        owners(Operation::Remove, name)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        owners(Operation::List, dir)
    }

    fn make_dir(&self, name: &str) -> Result<()> {
        owners(Operation::MakeDirectory, name)
    }

    fn lock(
        &self,
        name: &str,
        _kind: LockKind,
    ) -> Result<core::result::Result<LockGuard, LockHolder>> {
        owners(Operation::Lock, name)
    }

    fn reserve_window(&self, base: u64, len: u64) -> Result<()> {
        self.windows.reserve(base, len)
    }

    unsafe fn release_window(&self, base: u64, len: u64) -> Result<()> {
        self.windows.release(base, len)
    }

    /// Uses the descriptor up. It takes a lock, and frees memory: so puddles of this medium are
    /// mapped when they are granted, and never by the fault handler.
    unsafe fn map_written(
        &self,
        name: &str,
        addr: u64,
        len: u64,
        mode: MapMode,
        word: Option<FileWord>,
    ) -> Result<()> {
        let op = Operation::Map;
        let Some((name, file)) = self.files().remove_entry(name) else {
            return Err(MediumError::NotFound { op, name: FileName::new(name) });
        };
        let found =
            file.metadata().map_err(|source| MediumError::from_io(op, &name, source))?.len();
        let how = How { mode, synchronous: self.info.kind == MediumKind::Dax, word };
        self.windows.map_file((&file, found), &name, addr, len, how)
    }

    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        self.windows.unmap(addr, len)
    }
}
