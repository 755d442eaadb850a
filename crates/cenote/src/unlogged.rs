//! For a collection that stores into its own nodes outside transactions
//! (`cenote_collections::relaxed`): whether the pool takes such stores, how they become durable,
//! blocks that it fills itself, and a log that no longer covers them.
//!
//! Why it is sound: such a collection's nodes are of a type that no program can name, so no
//! reference of safe code leads into them. It stores while it has a [`View`](crate::View), so no
//! transaction runs meanwhile, and it reads by atomic loads what another thread may be storing.

use crate::error::{Error, Result};
use crate::frames::covers_here;
use crate::open_pool::Pool;
use crate::persist::Persist;
use crate::ptr::Ptr;
use crate::session::{Store, refuse_unusable};
use crate::tx::Tx;
use cenote_layout::error_kind::ErrorKind;
use cenote_medium::Persistence;
use cenote_store::{AtRest, PoolMode, StoreError};
use std::sync::Arc;

/// An operation that the state of things does not allow, and why.
#[doc(hidden)]
#[cold]
#[must_use]
pub fn refused(detail: String) -> Error {
    StoreError::Refused { kind: ErrorKind::Misuse, detail }.into()
}

impl Pool {
    /// How stores into the pool outside transactions become durable.
    ///
    /// # Errors
    /// The pool is read-only, shared with other processes, in shadowed mode or protected at rest,
    /// where such stores would be seen, copied or sealed half done; the store acknowledges nothing
    /// any more.
    #[doc(hidden)]
    pub fn unlogged(&self) -> Result<Persistence> {
        refuse_unusable(&self.inner.store.store)?;
        if !self.inner.changeable {
            return Err(self.inner.why_unchangeable());
        }
        let why = if self.is_shared() {
            "is shared with other processes"
        } else if self.inner.handle.record().mode == PoolMode::Shadowed {
            "is in shadowed mode"
        } else if self.at_rest() != AtRest::None {
            "is protected at rest"
        } else if self.data_protection().is_on() {
            "has write-protected data"
        } else {
            return Ok(self.inner.store.store.persistence());
        };
        let name = self.name();
        Err(refused(format!(
            "pool `{name}` {why}, and collections of relaxed durability take neither: use a direct \
             pool of this process, or another collection"
        )))
    }

    /// Whether a transaction of this thread has the pool, and a block of this type is alive there:
    /// for destructors, which no transaction is passed to.
    #[doc(hidden)]
    #[must_use]
    pub fn has_here<T: Persist>(&self, ptr: Ptr<T>) -> bool {
        covers_here(&self.inner) && self.inner.is_live::<T>(ptr.addr())
    }

    /// As [`Store::quiesce`]: from now on blocks that this thread's last transaction made may be
    /// stored to outside transactions. Until then recovery may compare them with its log.
    ///
    /// # Errors
    /// As [`Store::quiesce`].
    #[doc(hidden)]
    pub fn settle(&self) -> Result<()> {
        Store { inner: Arc::clone(&self.inner.store) }.quiesce()
    }
}

impl Tx<'_> {
    /// As [`Tx::alloc_near`], of a block that holds no value yet, but earlier bytes.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    ///
    /// # Safety
    /// [`crate::Reader::get`] gives `neighbour` in this transaction. The caller writes a value
    /// before anything leads to the block.
    #[doc(hidden)]
    pub unsafe fn alloc_unwritten<N: Persist, T: Persist>(
        &mut self,
        neighbour: Ptr<N>,
    ) -> Result<Ptr<T>> {
        let pool = self
            .owner_of::<N>(neighbour.addr())
            .ok_or_else(|| self.dangling::<N>(neighbour.addr()))?;
        pool.know::<T>()?;
        let layout = (size_of::<T>() as u64, align_of::<T>() as u64);
        let place = self.alloc_block(pool, layout, T::TYPE_ID)?;
        // SAFETY: the address of a block of this type.
        Ok(unsafe { Ptr::from_non_null(place.cast()) })
    }
}
