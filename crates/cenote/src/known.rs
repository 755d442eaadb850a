//! The types of this program that a store was asked about, and what stores know of them.
//!
//! Invariants:
//!
//! * One Rust type for each type id, for as long as the process lives.
//! * [`one_rust_type`] answers when every open store that has another record of this id is flagged.
//!   Threads that ask for one type meanwhile wait for that. A store that is opened later compares
//!   by itself ([`crate::store::Inner::types_agree`]).

use crate::error::Result;
use crate::persist::{DescribedType, TypeSetError};
use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_sys::process_lock::ProcessLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A type of this program that some store was asked about. There is one for each, for as long as the process lives.
#[derive(Debug)]
pub(crate) struct KnownType {
    pub(crate) rust_type: core::any::TypeId,
    rust_name: &'static str,
    pub(crate) record: TypeRecord,
}

pub(crate) fn known_types() -> std::sync::MutexGuard<'static, BTreeMap<TypeId, &'static KnownType>> {
    static KNOWN: ProcessLock<BTreeMap<TypeId, &'static KnownType>> = ProcessLock::new(BTreeMap::new());
    KNOWN.lock()
}

/// Which Rust type each type id of this program stands for. Two types with one id would be taken
/// for each other, so the second is refused.
///
/// Locks, in this order: `LEARNING`, the list of open stores, what a store compares with, the
/// types. The types are not locked while stores are asked, because a store that compares locks
/// them.
pub(crate) fn one_rust_type(described: &DescribedType) -> Result<&'static KnownType> {
    static LEARNING: ProcessLock<()> = ProcessLock::new(());
    let learning = LEARNING.lock();
    let _learning = (!planted(Bug::TypeKnownEarly)).then_some(learning);
    let DescribedType { record, rust_type, rust_name, .. } = described;
    let mut types = known_types();
    let known = types.get(&record.id).copied();
    if let Some(known) = known {
        if known.rust_type == *rust_type {
            return Ok(known);
        }
        let (first, second, name) = (known.rust_name, *rust_name, record.name.clone());
        return Err(TypeSetError::SameName { first, second, name }.into());
    }
    let known: &'static KnownType =
        Box::leak(Box::new(KnownType { rust_type: *rust_type, rust_name, record: record.clone() }));
    types.insert(record.id, known);
    drop(types);
    reach(Step::TypeInserted);
    // No pointer of this type is made before this is done: no caller has its answer.
    crate::local::for_each_open(&mut |open| {
        if open.store.type_record(known.record.id).is_some_and(|there| *there != known.record) {
            open.types_differ();
        }
    });
    Ok(known)
}

/// Whether a store knows a type of this program with another layout.
pub(crate) fn layouts_contradict(store: &cenote_store::Store) -> bool {
    let types: Vec<&'static KnownType> = known_types().values().copied().collect();
    types.iter().any(|known| store.type_record(known.record.id).is_some_and(|there| *there != known.record))
}

/// How this program has a type, if any store was asked about it.
pub(crate) fn of_this_program(id: TypeId) -> Option<TypeRecord> {
    known_types().get(&id).map(|known| known.record.clone())
}

/// Pointer maps from the store's registry.
pub(crate) struct StoreTypes<'a>(pub(crate) &'a cenote_store::Store);

impl cenote_heap::Types for StoreTypes<'_> {
    fn record(&self, id: TypeId) -> Option<Arc<cenote_layout::types::TypeRecord>> {
        let known = self.0.type_record(id);
        if known.is_some() || !self.0.is_connected() {
            return known;
        }
        // Another process may have registered it since.
        self.0.learn_types().ok()?;
        self.0.type_record(id)
    }

    fn filter(&self, id: TypeId) -> Option<cenote_heap::trace::Filter> {
        crate::filter::of(id, || self.record(id))
    }
}
