//! Pools that move: copies beside the original, and new addresses (PUD-8).
//!
//! A pool that was cloned, imported or given new addresses is used as any other. Its puddles are
//! made right one by one, each at its first touch by any instruction of any thread. The types'
//! pointer maps find the pointers in it, and each gets the new address of its target.
//! [`cenote_relocate`] says what is rewritten and what cannot be; `cenote_store::relocate` why no
//! crash leaves half of it.
//!
//! ```
//! use cenote::{Persist, Ptr, Reader, Store};
//!
//! #[derive(Persist)]
//! struct Node { value: u64, next: Option<Ptr<Node>> }
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! let store = Store::open(directory.path())?;
//! let pool = store.pool("original")?;
//! pool.write(|tx| -> cenote::Result<()> {
//!     let last = tx.alloc(Node { value: 2, next: None })?;
//!     let first = tx.alloc(Node { value: 1, next: Some(last) })?;
//!     tx.set_root(first)
//! })?;
//! drop(pool);
//! store.clone_pool("original", "copy")?;
//! // Both at once: the copy's pointers lead into the copy.
//! let (original, copy) = (store.pool("original")?, store.pool("copy")?);
//! for pool in [&original, &copy] {
//!     let view = pool.read()?;
//!     let first = view.get(view.root::<Node>()?.expect("set"))?;
//!     assert_eq!(view.get(first.next.expect("a second"))?.value, 2);
//! }
//! # Ok(())
//! # }
//! ```

use crate::checking::refuse_within;
use crate::error::Result;
use crate::open_pool::Pool;
use crate::open_pools::pools_of;
use crate::session::Store;
use cenote_store::StoreError;
use cenote_store::relocate::{Backend, Imported, ImportedPool, RelocationProgress, Rewritten};
use core::ops::ControlFlow;

impl Store {
    /// Makes a copy of a pool that is not open, under another name. Its pointers lead into the
    /// copy, and into other pools where they did before. It takes the time of copying the files;
    /// pointers are rewritten when they are touched. A pool that is protected at rest needs no key
    /// for that, unless it is pending itself ([`Pool::pending_rewrites`]); the copy has the
    /// original's key, and is sealed under new data keys when it is touched.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): the pool is open, damaged or in doubt; the name is
    /// taken or impossible; there is no space, on the disk or in the window. There is no copy then.
    pub fn clone_pool(&self, name: &str, copy: &str) -> Result<ImportedPool> {
        self.clone_by(name, copy, || self.inner.store.clone_pool(name, copy))
    }

    /// The same by sharing blocks, where the file system can do that; then no bytes are copied now.
    /// Until the copy is rewritten or removed, a store into the *original* may need space, and ends
    /// the process with `SIGBUS` where the disk is full.
    ///
    /// # Errors
    /// As [`Store::clone_pool`].
    pub fn clone_pool_sharing(&self, name: &str, copy: &str) -> Result<ImportedPool> {
        self.clone_by(name, copy, || self.inner.store.clone_pool_sharing(name, copy))
    }

    fn clone_by(
        &self,
        name: &str,
        copy: &str,
        make: impl FnOnce() -> core::result::Result<Imported, StoreError>,
    ) -> Result<ImportedPool> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, name)?;
        let cloned = pools_of(&self.inner).while_closed(|other| other == name, make)?;
        Ok(cloned.pools.into_iter().next().unwrap_or(ImportedPool {
            id: cenote_layout::id::PoolId(0),
            name: copy.into(),
            moved: false,
            pending: 0,
            shared: 0,
        }))
    }

    /// Counts of rewritten pointers in this session, in all pools: also of puddles that opening a
    /// pool touches.
    #[must_use]
    pub fn rewritten(&self) -> Rewritten {
        self.inner.store.rewritten()
    }

    /// When puddles that have moved are rewritten in this session: what
    /// [`OpenOptions::relocation`](crate::OpenOptions) asks for, or what there is instead.
    #[must_use]
    pub fn relocation_backend(&self) -> Backend {
        self.inner.store.relocation_backend()
    }

    /// Gives a pool addresses that are chosen afresh, at random. No pool of the store may be open;
    /// pointers into the pool, from wherever in the store's pools, are rewritten when they are
    /// touched. Addresses that are kept elsewhere, in objects or as a [`Ptr`](crate::Ptr) in
    /// this process, lead nowhere afterwards: following one is refused.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): some pool of the store is open, damaged or in doubt;
    /// there is no room in the window. Nothing has moved then.
    pub fn randomize_pool(&self, name: &str) -> Result<()> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, name)?;
        Ok(pools_of(&self.inner)
            .while_closed(|_| true, || self.inner.store.randomize_pool(name))?)
    }
}

impl Pool {
    /// Puddles of the pool whose pointers are still to be rewritten, each when it is first touched.
    #[must_use]
    pub fn pending_rewrites(&self) -> u64 {
        self.inner.handle.pending_rewrites()
    }

    /// Rewrites all pending puddles now, and reports what it did. It calls `progress` before each
    /// puddle and at the end. If `progress` returns "no", the rewriting stops: the other puddles
    /// are rewritten at first touch, as before.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store): a puddle could not be rewritten, for want of space or
    /// because it is damaged. That puddle and the later ones stay pending, unchanged.
    pub fn finish_relocation(
        &self,
        progress: &mut dyn FnMut(RelocationProgress) -> ControlFlow<()>,
    ) -> Result<Rewritten> {
        self.inner.refuse_forked()?;
        Ok(self.inner.handle.finish_relocation(progress)?)
    }
}
