//! Filter functions (RAL-2): finding the pointers of types that a pointer map cannot describe.
//!
//! A type whose links are packed into fewer bits, or computed from two words, says in
//! [`Persist::describe`] which words it has
//! ([`LayoutBuilder::possible_pointers`](crate::persist::LayoutBuilder::possible_pointers)) and
//! registers a [`Filter`]. Recovery and `check` in this process use the function. Other programs do
//! not have it, and look at where those words would lead. A target that neither finds is lost after
//! a loss of power. So a type with pointers in another form must be recovered by a program that
//! registers its filter. Register filters before a store is opened: opening may recover.
//!
//! Invariant: a filter is asked about blocks of its own type alone. What it leaves out may be
//! freed. A pointer of the program is checked when it is followed, so that does no harm; the
//! collections follow the links of their own types unchecked. Ids are 64-bit hashes, for which a
//! collision can be computed. So the id does not decide: this program uses the id for that type and
//! no other ([`register`] fails otherwise), and the store's whole record of the id is that type's.

use crate::error::Result;
use crate::known::KnownType;
use crate::one_type::one_rust_type;
use crate::persist::{Persist, TypeSetError, described};
use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::process_lock::ProcessLock;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use cenote_heap::trace::{Filter, Scanned, Visitor};

type Registered = (Filter, &'static KnownType);

static FILTERS: ProcessLock<BTreeMap<TypeId, Registered>> = ProcessLock::new(BTreeMap::new());

/// From now on `filter` finds the pointers in values of type `T`, in place of the type's pointer
/// map: in all stores of this process that have `T` as this program has it. Returns the filter that
/// did before.
///
/// # Errors
/// [`Error::Types`](crate::Error::Types): the program has used the id of `T` for another type, or
/// the description of `T` is refused.
pub fn register<T: Persist>(filter: Filter) -> Result<Option<Filter>> {
    let described = described::<T>();
    described.record.check().map_err(TypeSetError::from)?;
    let known = one_rust_type(&described)?;
    Ok(FILTERS.lock().insert(known.record.id, (filter, known)).map(|(before, _)| before))
}

/// The filter of the type that a store has under this id, by the store's record of it.
pub(crate) fn of(id: TypeId, record: impl FnOnce() -> Option<Arc<TypeRecord>>) -> Option<Filter> {
    let (filter, known) = FILTERS.lock().get(&id).copied()?;
    let is_same = planted(Bug::FilterById) || record().is_some_and(|there| *there == known.record);
    is_same.then_some(filter)
}
