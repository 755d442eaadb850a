//! Says which pools may have write-protected data ([`DataProtection`]), and records it.
//!
//! The store only knows what was asked for. The heap has its data puddles protected
//! ([`crate::Puddle::guard_data`]), and transactions say where they store
//! (`cenote_protect::AttendedStores`).
//!
//! A pool that is to be protected and cannot be is refused, when it is made and when it is opened
//! for writing: no program goes on without what it was promised.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::PoolOptions;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::pools::pool_rules::find;
use crate::kernel::store::{Control, Inner, Store};
use crate::manifest::{ImportPool, QuiescentPool};
use cenote_layout::catalog::{AtRest, DataProtection, HeapKind, Record};
use cenote_layout::id::PoolId;
use cenote_layout::superblock::INCOMPAT_PROTECTED_DATA;
use std::sync::Arc;

/// What says whether a pool's data can be write-protected.
pub(crate) struct Protectable<'a> {
    name: &'a str,
    heap: HeapKind,
    at_rest: AtRest,
}

impl Protectable<'_> {
    /// Refuses protection that a pool like this cannot have.
    pub(crate) fn refuse(&self, how: DataProtection) -> Result<(), StoreError> {
        if !how.is_on() {
            return Ok(());
        }
        let (what, instead) = match (self.heap, self.at_rest) {
            _ if !how.is_valid() => {
                ("a wait of more than a minute", "choose a shorter one, such as 40 ms")
            }
            (HeapKind::Traced, _) => (
                "a traced heap, which links free blocks in their own memory",
                "choose the logged heap, or no protection",
            ),
            (HeapKind::Wear { .. }, _) => (
                "a wear heap, whose headers lie beside blocks",
                "choose the logged heap, or no protection",
            ),
            (HeapKind::Logged, AtRest::None) => return Ok(()),
            (HeapKind::Logged, _) => (
                "protection at rest, whose pages are filled at the first touch",
                "choose one of the two",
            ),
        };
        Err(refused(self.name, what, instead))
    }
}

fn refused(name: &str, what: &'static str, instead: &'static str) -> StoreError {
    StoreError::WriteProtected { name: name.into(), what, instead }
}

/// Refuses what a daemon does not do: its clients do not know of protection.
pub(crate) fn refuse_hosted(name: &str, how: DataProtection) -> Result<(), StoreError> {
    if how.is_on() { Err(hosted(name)) } else { Ok(()) }
}

fn hosted(name: &str) -> StoreError {
    let instead = "open the store in this process, or take the protection away there";
    refused(name, "a daemon that keeps its store", instead)
}

impl PoolOptions {
    pub(crate) fn protectable<'a>(&self, name: &'a str) -> Protectable<'a> {
        Protectable { name, heap: self.heap, at_rest: self.at_rest }
    }
}

impl ImportPool {
    pub(crate) fn refuse_protection(&self) -> Result<(), StoreError> {
        let Self { name, heap, at_rest, .. } = self;
        Protectable { name, heap: *heap, at_rest: *at_rest }.refuse(self.protect)
    }
}

impl QuiescentPool {
    /// Refuses to put a pool into an archive, which does not say that data are write-protected: an
    /// import would lose it without a word.
    ///
    /// # Errors
    /// [`StoreError::WriteProtected`].
    pub fn refuse_to_archive(&self) -> Result<(), StoreError> {
        if !self.protect.is_on() {
            return Ok(());
        }
        let what = "an archive, which does not say so";
        Err(refused(&self.record.name, what, "take the protection away first"))
    }
}

impl Inner {
    /// The record of a new pool's protection, if it is to have one; before, the superblock says
    /// that there may be such records, so that no older release meets one.
    pub(crate) fn protected_from_now(
        &self,
        control: &mut Control,
        pool: PoolId,
        how: DataProtection,
    ) -> Result<Option<Record>, StoreError> {
        if !how.is_on() {
            return Ok(None);
        }
        self.announce(control, INCOMPAT_PROTECTED_DATA)?;
        Ok(Some(Record::PoolProtected(pool, how)))
    }
}

impl PoolHandle {
    /// How the pool's data are to be write-protected while it is open for writing.
    ///
    /// # Errors
    /// [`StoreError::WriteProtected`]: that cannot be done here, and the pool is open for writing.
    pub fn data_protection(&self) -> Result<DataProtection, StoreError> {
        let how = self.store().inner().control().catalog.state.data_protection(self.id());
        if !how.is_on() || !self.is_writable() {
            return Ok(DataProtection::None);
        }
        let (heap, at_rest) = (self.record().heap, self.at_rest());
        Protectable { name: self.name(), heap, at_rest }.refuse(how)?;
        if self.store().is_connected() || self.member().is_some() {
            refuse_hosted(self.name(), how)?;
        }
        if !self.is_real() {
            let instead = "use a directory, or a pool without protection";
            return Err(refused(self.name(), "a simulated medium", instead));
        }
        Ok(how)
    }
}

impl Store {
    /// Has the data of a pool write-protected in another way, or not at all, from the next open for
    /// writing on. Durable on return.
    ///
    /// # Errors
    /// [`StoreError::WriteProtected`]: the pool cannot have that; [`StoreError::PoolInUse`]; the
    /// name is not known; an error of the medium.
    pub fn protect_pool(&self, name: &str, how: DataProtection) -> Result<(), StoreError> {
        let inner = self.inner();
        if inner.connection().is_some() {
            return Err(hosted(name));
        }
        let mut control = inner.begin_write("write-protect the data of a pool")?;
        let id = find(&control, name)?;
        if control.pools.get(&id).is_some_and(|core| Arc::strong_count(core) > 1) {
            return Err(StoreError::PoolInUse { name: name.into() });
        }
        let state = &control.catalog.state;
        let heap = state.pools.get(&id).map_or(HeapKind::Traced, |record| record.heap);
        let at_rest = state.at_rest(id);
        Protectable { name, heap, at_rest }.refuse(how)?;
        if state.data_protection(id) == how {
            return Ok(());
        }
        inner.announce(&mut control, INCOMPAT_PROTECTED_DATA)?;
        inner.commit(&mut control, &[Record::PoolProtected(id, how)])
    }
}
