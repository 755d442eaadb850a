//! A handle of a store for programs: it answers questions, and gives no way to mapped memory.
//!
//! [`Store`] serves the layers above: some of its functions rely on what only these know (which
//! process has an object attached, which blocks are values). [`Handle`] is for programs. Invariant:
//! no call here by a program without `unsafe` changes a byte under a reference, or gives back an
//! address that a reference leads to. So it hands out no [`Store`], no file that can be written,
//! and no heap.

use crate::kernel::interface::error::{OpenError, StoreError};
use crate::kernel::interface::options::OpenOptions;
use crate::kernel::interface::report::{Damage, OpenReport, StoreInfo};
use crate::kernel::store::Store;
use crate::object_info::ObjectInfo;
use cenote_layout::id::Uuid;
use cenote_medium::{Durability, Medium};
use core::fmt;
use std::sync::Arc;

/// An open store, for programs. Cloning is cheap; the store is closed when the last handle of it
/// and of what is open in it is dropped, or by [`Handle::close`].
#[derive(Clone)]
pub struct Handle(Store);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Handle {
    /// Opens the store that lies on a medium, and recovers it if its last session did not close it.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(
        medium: Arc<dyn Medium>,
        options: OpenOptions,
    ) -> Result<(Self, OpenReport), OpenError> {
        let (store, report) = Store::open(medium, options)?;
        Ok((Self(store), report))
    }

    /// A handle of a store that is open.
    ///
    /// # Safety
    /// The caller keeps the contract of [`Handle::as_raw`] for `store`, and for every other handle
    /// of it that it has or gives away.
    #[must_use]
    pub unsafe fn of(store: &Store) -> Self {
        Self(store.clone())
    }

    /// The store underneath.
    ///
    /// # Safety
    /// What safe code believes of the store stays true. While an object is attached the caller does
    /// not remove it, change its file, or give it to a client. The caller opens no heap that
    /// changes pools which safe code has open, registers no type that is not as its record says,
    /// changes no mapping of the window, says [`crate::PoolHandle::trace_done`] only of a pool that
    /// it has traced, and does not end the session of a daemon's client
    /// ([`crate::DaemonApi::goodbye`]) or admit a file that is not the object's
    /// ([`Store::admit_file`]).
    #[must_use]
    pub unsafe fn as_raw(&self) -> &Store {
        &self.0
    }

    /// Closes the store: what was written is on the medium, and the next open recovers nothing.
    ///
    /// # Errors
    /// As [`Store::close`].
    pub fn close(self) -> Result<(), StoreError> {
        self.0.close()
    }

    /// Lets go of the store as a crash of this process would; see [`Store::abandon`].
    pub fn abandon(self) {
        self.0.abandon();
    }

    /// Fails if the store acknowledges nothing any more.
    ///
    /// # Errors
    /// [`StoreError::Forked`], [`StoreError::Poisoned`].
    pub fn check_usable(&self) -> Result<(), StoreError> {
        self.0.check_usable()
    }

    /// The store's identity.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.0.uuid()
    }

    /// What the store is: sizes, counts, where it lies.
    #[must_use]
    pub fn info(&self) -> StoreInfo {
        self.0.info()
    }

    /// The durability level of this session's commits.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.0.durability()
    }

    /// Whether this session may write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.0.is_writable()
    }

    /// Whether a daemon keeps the store.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.is_connected()
    }

    /// Whether this is a copy of an open store of which something was not found whole yet.
    #[must_use]
    pub fn is_unchecked_copy(&self) -> bool {
        self.0.is_unchecked_copy()
    }

    /// What is damaged.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        self.0.damage()
    }

    /// All objects, by name; see [`Store::objects`].
    #[must_use]
    pub fn objects(&self) -> Vec<ObjectInfo> {
        self.0.objects()
    }

    /// The object of this name.
    ///
    /// # Errors
    /// As [`Store::object`].
    pub fn object(&self, name: &str) -> Result<ObjectInfo, StoreError> {
        self.0.object(name)
    }
}
