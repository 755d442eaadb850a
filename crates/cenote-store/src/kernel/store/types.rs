//! The store's registry of types (PUD-7).

use crate::kernel::interface::error::StoreError;
use crate::kernel::store::{Control, Store};
use cenote_layout::catalog::Record;
use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, TypeBug, planted};
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
        let new = new_types(&control, records.iter().copied())?;
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

    /// The registered types of another version than this one: of the same logical id.
    #[must_use]
    pub fn other_versions(&self, record: &TypeRecord) -> Vec<Arc<TypeRecord>> {
        let control = self.inner().control();
        let state = &control.catalog.state;
        let others = state.versions.physical(record.logical()).filter(|id| *id != record.id);
        others.filter_map(|id| state.types.get(&id).cloned()).collect()
    }

    /// A registered type by the id that descriptors say, or by that of roots and pointers, if one
    /// version of it is known: for messages.
    #[must_use]
    pub fn type_called(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        let control = self.inner().control();
        let state = &control.catalog.state;
        state.types.get(&id).or_else(|| state.types.get(&state.versions.target(id))).cloned()
    }

    /// Takes types out of the registry and registers others, in one change of the catalog: **its
    /// batch commits**. A crash before it leaves the old records, one after it the new ones. What
    /// the registry does not know is not taken out.
    ///
    /// # Errors
    /// A record makes no sense, or its id is known with another layout and not taken out; the store
    /// is read-only, or a daemon keeps it: its other clients may use these types.
    ///
    /// # Safety
    /// For the records as [`Store::register_type`]. No pool holds a block of a type that is taken
    /// out, or of one whose values hold values of it; no crash brings such a block back, and no
    /// code of this process uses the old records any more.
    pub unsafe fn exchange_types(
        &self,
        removed: &[TypeId],
        records: &[&TypeRecord],
    ) -> Result<(), StoreError> {
        self.inner().check_usable()?;
        if !self.inner().writable || self.inner().remote.is_some() {
            return Err(StoreError::ReadOnly { what: "remove a type" });
        }
        let mut control = self.inner().control();
        let state = &control.catalog.state;
        let known = &state.types;
        let mut changes: Vec<Record> = Vec::new();
        let removals = removed.iter().filter(|id| known.contains_key(id));
        changes.extend(removals.map(|id| Record::TypeRemoved(*id)));
        for offered in records {
            offered.check()?;
            match known.get(&offered.id).filter(|known| !removed.contains(&known.id)) {
                Some(known) if **known == **offered => continue,
                Some(known) => {
                    return Err(StoreError::mismatch((**known).clone(), (*offered).clone()));
                }
                None => changes.push(Record::Type((*offered).clone())),
            }
        }
        self.inner().check_poisoned()?;
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

/// Those of `records` that the registry does not have, by id.
///
/// # Errors
/// A record makes no sense, or its type is known with another layout or another version.
pub(crate) fn new_types<'r>(
    control: &Control,
    records: impl IntoIterator<Item = &'r TypeRecord>,
) -> Result<BTreeMap<TypeId, &'r TypeRecord>, StoreError> {
    let state = &control.catalog.state;
    let mut new: BTreeMap<TypeId, &TypeRecord> = BTreeMap::new();
    let mut versions: BTreeMap<TypeId, &TypeRecord> = BTreeMap::new();
    for offered in records {
        offered.check()?;
        let other = state.versions.physical(offered.logical()).find(|id| *id != offered.id);
        let other = other.and_then(|id| state.types.get(&id)).map(|known| &**known);
        let other = other.filter(|_| !planted(Bug::Type(TypeBug::OtherVersionsIgnored)));
        let known = state.types.get(&offered.id).map(|known| &**known);
        let earlier = versions.insert(offered.logical(), offered);
        match other.or(known).or(earlier) {
            Some(known) if known == offered => {}
            Some(known) => return Err(StoreError::mismatch(known.clone(), offered.clone())),
            None => {
                new.insert(offered.id, offered);
            }
        }
    }
    Ok(new)
}
