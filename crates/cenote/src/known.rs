//! The types of this program that stores were asked about.
//!
//! Invariant: one Rust type for each type id, for as long as the process lives
//! ([`crate::one_type`] keeps it).

use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use cenote_sys::process_lock::{ProcessGuard, ProcessLock};
use std::collections::BTreeMap;

/// A type of this program that some store was asked about. There is one for each, for as long as
/// the process lives.
#[derive(Debug)]
pub(crate) struct KnownType {
    pub(crate) rust_type: core::any::TypeId,
    pub(crate) rust_name: &'static str,
    pub(crate) record: TypeRecord,
}

pub(crate) fn known_types() -> ProcessGuard<BTreeMap<TypeId, &'static KnownType>> {
    static KNOWN: ProcessLock<BTreeMap<TypeId, &'static KnownType>> =
        ProcessLock::new(BTreeMap::new());
    KNOWN.lock()
}

/// Whether a store knows a type of this program with another layout.
pub(crate) fn layouts_contradict(store: &cenote_store::Store) -> bool {
    let types: Vec<&'static KnownType> = known_types().values().copied().collect();
    types
        .iter()
        .any(|known| store.type_record(known.record.id).is_some_and(|there| *there != known.record))
}

/// How this program has a type, if any store was asked about it.
pub(crate) fn of_this_program(id: TypeId) -> Option<TypeRecord> {
    known_types().get(&id).map(|known| known.record.clone())
}
