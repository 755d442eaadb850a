//! Filter functions (RAL-2): finding the pointers of types that a pointer map cannot describe.
//!
//! A type whose links are packed into fewer bits, or computed from two words, says in [`Persist::describe`] which words it has
//! ([`LayoutBuilder::possible_pointers`](crate::persist::LayoutBuilder::possible_pointers)) and registers a [`Filter`]. Recovery and `check` in this process
//! use the function; every other program, which does not have it, looks at where those words would lead. What neither finds is
//! lost after a loss of power, so a type whose words do not lead to its targets as they are must be recovered by a program that registers its filter.
//! Register filters before a store is opened: opening may recover.

use crate::persist::Persist;
use cenote_layout::id::TypeId;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

pub use cenote_heap::trace::{Filter, Scanned, Visitor};

static FILTERS: RwLock<BTreeMap<TypeId, Filter>> = RwLock::new(BTreeMap::new());

/// From now on `filter` finds the pointers in values of type `T`, in all stores of this process, in place of the type's pointer map. Returns the filter that did before.
pub fn register<T: Persist>(filter: Filter) -> Option<Filter> {
    FILTERS.write().unwrap_or_else(PoisonError::into_inner).insert(T::TYPE_ID, filter)
}

/// The filter of a type.
pub(crate) fn of(id: TypeId) -> Option<Filter> {
    FILTERS.read().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
}
