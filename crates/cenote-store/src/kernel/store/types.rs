//! The store's registry of types (PUD-7).

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::mismatch::TypeMismatch;
use crate::kernel::store::Store;
use cenote_layout::catalog::Record;
use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use core::sync::atomic::AtomicU64;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Store {
    /// Registers a type and its pointer map (PUD-7). Registering what is known already does nothing
    /// and takes no sync.
    ///
    /// # Errors
    /// The record makes no sense; the id is known with another layout; the store is read-only, and
    /// does not know the type.
    ///
    /// # Safety
    /// The record is true of the type of that id, in every program that uses the store: pointers
    /// are where it says, and nothing else is; bytes that it allows are a value. Pools that move
    /// are rewritten by it, and blocks are traced by it.
    pub unsafe fn register_type(&self, record: &TypeRecord) -> Result<(), StoreError> {
        // SAFETY: the caller's.
        unsafe { self.register_types(&[record]) }
    }

    /// Registers several types in one change of the catalog: all of them, or none.
    ///
    /// # Errors
    /// As [`Store::register_type`], of the first that is refused.
    ///
    /// # Safety
    /// As [`Store::register_type`], of each record.
    pub unsafe fn register_types(&self, records: &[&TypeRecord]) -> Result<(), StoreError> {
        self.inner().check_usable()?;
        let mut control = self.inner().control();
        let mut new: BTreeMap<TypeId, &TypeRecord> = BTreeMap::new();
        for offered in records {
            offered.check()?;
            let known = control.catalog.state.types.get(&offered.id).map(|known| &**known);
            match known.or_else(|| new.get(&offered.id).copied()) {
                Some(known) if known == *offered => {}
                Some(known) => {
                    let (known, offered) = (known.clone(), (*offered).clone());
                    return Err(Box::new(TypeMismatch { known, offered }).into());
                }
                None => {
                    new.insert(offered.id, offered);
                }
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        if !self.inner().writable {
            return Err(StoreError::ReadOnly { what: "register a type" });
        }
        self.inner().check_poisoned()?;
        if let Some(remote) = &self.inner().remote {
            remote.register_types(&new.values().copied().collect::<Vec<_>>())?;
        }
        let changes: Vec<Record> = new.into_values().cloned().map(Record::Type).collect();
        self.inner().commit(&mut control, &changes)
    }

    /// How many types the registry took in that a layer above has not compared with its own yet.
    /// Every way by which a type comes into the registry counts it before it can be found: open,
    /// registration, import, and what a daemon says. The layer above that compares sets it to zero.
    ///
    /// # Safety
    /// The caller sets it to zero only after it has compared all types that the store knows with
    /// those of this program. Pointers are followed without asking while it is zero.
    #[must_use]
    pub unsafe fn unsettled_types(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.inner().control().catalog.state.unsettled)
    }

    /// A registered type.
    #[must_use]
    pub fn type_record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.inner().control().catalog.state.types.get(&id).cloned()
    }

    /// All registered types, by id.
    #[must_use]
    pub fn types(&self) -> Vec<Arc<TypeRecord>> {
        self.inner().control().catalog.state.types.values().cloned().collect()
    }
}
