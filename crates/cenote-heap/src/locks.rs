//! Locks that outlive the process that holds them: beside data in a pool, or in any memory that
//! processes share.
//!
//! A lock is used where it lies, by its address: 8 bytes for a mutex, 512 for readers and writers,
//! all zero to begin with. **No transaction adds a lock's bytes to its log**: an abort or a
//! recovery would bring a former owner back. Its users decide which data a lock protects.
//!
//! A lock does not make a change whole; a transaction does. So change the protected data in
//! transactions that begin and end while the lock is held. Then a thread that takes the lock over
//! from a dead process finds the data as the last commit left them, and [`LockTaken::Recovered`] is
//! news, not trouble. The [`OwnerLiveness`] ensures that: the one of a pool ([`PoolLiveness`])
//! counts a process as ended only when its logs are replayed.

pub use crate::robust::{LockTaken, OwnerLiveness};

use crate::robust;
use cenote_store::{PoolHandle, StoreError};
use cenote_sys::process;
use core::convert::Infallible;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::io;

/// Readers of one [`RobustRwLock`] at one time; more wait.
pub const READERS_MAX: usize = 63;

/// A mutex that dies with the process that has it. See the module.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct RobustMutex(AtomicU64);

/// A lock of one writer or many readers that dies with the processes that have it. See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RobustRwLock {
    writer: AtomicU64,
    readers: [AtomicU64; READERS_MAX],
}

const _: () = assert!(size_of::<RobustMutex>() == 8 && size_of::<RobustRwLock>() == 512);

impl Default for RobustRwLock {
    fn default() -> Self {
        Self { writer: AtomicU64::new(0), readers: [const { AtomicU64::new(0) }; READERS_MAX] }
    }
}

/// A mutex, held.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct MutexGuard<'a>(&'a AtomicU64);

/// A lock, held for writing.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct WriteGuard<'a>(&'a AtomicU64);

/// A lock, held for reading.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct ReadGuard<'a>(&'a AtomicU64);

impl Drop for MutexGuard<'_> {
    fn drop(&mut self) {
        robust::unlock(self.0);
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        robust::unlock(self.0);
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        robust::unlock(self.0);
    }
}

impl RobustMutex {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The mutex that lies there.
    ///
    /// # Safety
    /// The 8 bytes are mapped for writing during `'a`, were zero once, and since then all
    /// processes use them as a mutex only.
    #[must_use]
    pub unsafe fn at<'a>(place: NonNull<u64>) -> &'a Self {
        // SAFETY: the caller's; a word is aligned as an atomic one is.
        unsafe { place.cast().as_ref() }
    }

    /// Waits for the mutex; how it was found is said with it.
    ///
    /// # Errors
    /// That of [`OwnerLiveness`]: the owner has died, and what it left cannot be dealt with now.
    /// The lock stays the dead one's.
    pub fn lock<O: OwnerLiveness>(
        &self,
        owners: &O,
    ) -> Result<(MutexGuard<'_>, LockTaken), O::Error> {
        let taken = robust::lock(&self.0, owners)?;
        Ok((MutexGuard(&self.0), taken))
    }

    /// Takes the mutex if it is free, or its owner is dead.
    ///
    /// # Errors
    /// As [`RobustMutex::lock`].
    pub fn try_lock<O: OwnerLiveness>(
        &self,
        owners: &O,
    ) -> Result<Option<(MutexGuard<'_>, LockTaken)>, O::Error> {
        let taken = robust::try_lock(&self.0, owners)?;
        Ok(taken.map(|taken| (MutexGuard(&self.0), taken)))
    }
}

impl RobustRwLock {
    /// The lock that lies there.
    ///
    /// # Safety
    /// The 512 bytes are aligned to 64 and mapped for writing during `'a`, were zero once, and
    /// since then all processes use them as such a lock only.
    #[must_use]
    pub unsafe fn at<'a>(place: NonNull<[u64; 64]>) -> &'a Self {
        // SAFETY: the caller's.
        unsafe { place.cast().as_ref() }
    }

    /// Waits until the lock is free, and takes it for writing.
    ///
    /// # Errors
    /// As [`RobustMutex::lock`].
    pub fn write<O: OwnerLiveness>(
        &self,
        owners: &O,
    ) -> Result<(WriteGuard<'_>, LockTaken), O::Error> {
        let taken = robust::write(&self.writer, &self.readers, owners)?;
        Ok((WriteGuard(&self.writer), taken))
    }

    /// Takes the lock for writing if it is free, or its owners are dead.
    ///
    /// # Errors
    /// As [`RobustMutex::lock`].
    pub fn try_write<O: OwnerLiveness>(
        &self,
        owners: &O,
    ) -> Result<Option<(WriteGuard<'_>, LockTaken)>, O::Error> {
        let taken = robust::try_write(&self.writer, &self.readers, owners)?;
        Ok(taken.map(|taken| (WriteGuard(&self.writer), taken)))
    }

    /// Waits until no writer has the lock or waits for it, and takes it for reading. A thread that
    /// reads already waits for itself if a writer waits.
    ///
    /// # Errors
    /// As [`RobustMutex::lock`].
    pub fn read<O: OwnerLiveness>(
        &self,
        owners: &O,
    ) -> Result<(ReadGuard<'_>, LockTaken), O::Error> {
        // Threads begin at different places, so that they do not all look at the first.
        let first = cenote_sys::cpu_number::current() as usize % READERS_MAX;
        let (at, taken) = robust::read(&self.writer, &self.readers, first, owners)?;
        Ok((ReadGuard(&self.readers[at]), taken))
    }
}

/// Says which processes of this machine live, and nothing of what they left: for locks in memory
/// that no transaction changes.
#[derive(Clone, Copy, Debug)]
pub struct Processes(u64);

impl Processes {
    /// For this process.
    ///
    /// # Errors
    /// The system does not say which process it is.
    pub fn new() -> io::Result<Self> {
        process::own_name().map(Self)
    }
}

impl OwnerLiveness for Processes {
    type Error = Infallible;

    fn me(&self) -> u64 {
        self.0
    }

    fn has_ended(&self, owner: u64) -> Result<bool, Infallible> {
        Ok(process::is_named_earlier(owner) || !process::is_named_alive(owner))
    }
}

/// Says which processes that have a pool live, or have logs that are not replayed yet. In a store
/// of this process alone, there is no other.
#[derive(Clone, Debug)]
pub struct PoolLiveness {
    pool: PoolHandle,
    me: u64,
}

impl PoolLiveness {
    /// For this process and a pool that it has.
    ///
    /// # Errors
    /// The system does not say which process this is.
    pub fn new(pool: &PoolHandle) -> io::Result<Self> {
        let me = pool.member().map_or_else(process::own_name, Ok)?;
        Ok(Self { pool: pool.clone(), me })
    }
}

impl OwnerLiveness for PoolLiveness {
    type Error = StoreError;

    fn me(&self) -> u64 {
        self.me
    }

    fn has_ended(&self, owner: u64) -> Result<bool, StoreError> {
        self.pool.has_ended(owner)
    }
}
