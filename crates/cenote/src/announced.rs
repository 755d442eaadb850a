//! What programs do with pools whose data are write-protected ([`crate::protected_pool`]).

use crate::error::Result;
use crate::open_pool::{Pool, PoolInner};
use crate::session::Store;
use cenote_heap::Heap;
use cenote_protect::AttendedStores;
use cenote_store::DataProtection;
use core::marker::PhantomData;
use std::sync::{Arc, Weak};

/// Has stray writes described by what the pool knows of the place.
pub(crate) fn describe_strays(pool: &Arc<PoolInner>) {
    if let Some(service) = pool.protected.service() {
        let pool = Arc::downgrade(pool);
        service.describe_by(Box::new(move |address| describe(&pool, address as u64)));
    }
}

/// What a stray write would have changed.
fn describe(pool: &Weak<PoolInner>, address: u64) -> Option<String> {
    let pool = pool.upgrade()?;
    let name = pool.handle.name();
    let Some(block) = pool.heap.owner(address) else {
        return Some(format!(
            "a store to {address:#x}, in pool `{name}`, was announced by no transaction; no block \
             is allocated there"
        ));
    };
    let known = pool.store.store.type_record(block.type_id);
    let type_name = known.map_or_else(|| block.type_id.to_string(), |record| record.name.clone());
    Some(format!(
        "a store to byte {} of the block of {} bytes at {:#x}, in pool `{name}`, of type \
         `{type_name}`, was announced by no transaction",
        address - block.addr,
        block.size,
        block.addr,
    ))
}

/// Bytes of a pool are stored into without a transaction, until this is dropped. Where data are not
/// write-protected, nothing has to be announced, and this does nothing.
#[derive(Debug)]
#[must_use = "the bytes may be stored into only while it lives"]
pub struct Stores<'p> {
    stores: AttendedStores,
    _pool: PhantomData<&'p Pool>,
}

impl Drop for Stores<'_> {
    fn drop(&mut self) {
        self.stores.end();
    }
}

impl Pool {
    /// How the pool's data are write-protected as it is open now.
    #[must_use]
    pub fn data_protection(&self) -> DataProtection {
        self.inner.protected.how()
    }

    /// Announces stores into `len` bytes at `start` that no transaction makes, such as those of the
    /// raw interface. A store that nothing announces ends the process, if the pool's data are
    /// write-protected.
    pub fn announce_stores(&self, start: *const u8, len: usize) -> Stores<'_> {
        let mut stores = AttendedStores::default();
        stores.begin(start.addr(), len);
        Stores { stores, _pool: PhantomData }
    }

    /// Closes at once what pages no transaction stores into any more, instead of with the next
    /// batch, if the pool's data are write-protected.
    pub fn settle_protection(&self) {
        self.inner.protected.service().iter().for_each(|service| service.settle());
    }
}

impl Store {
    /// Has the data of a pool that is not open write-protected in another way, or not at all.
    /// Durable on return.
    ///
    /// # Errors
    /// [`WriteProtected`](crate::StoreError::WriteProtected): the pool cannot have that;
    /// [`PoolInUse`](crate::StoreError::PoolInUse); the name is not known.
    pub fn protect_pool(&self, name: &str, how: DataProtection) -> Result<()> {
        self.inner.refuse_forked()?;
        Ok(self.inner.store.protect_pool(name, how)?)
    }
}
