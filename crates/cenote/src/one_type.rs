//! One Rust type for each type id of this program.
//!
//! Invariant: [`one_rust_type`] answers when every open store that has another record of this id is
//! flagged. Threads that ask for one type meanwhile wait for that. A store that is opened later
//! compares by itself ([`crate::session::Inner::types_agree`]).

use crate::error::Result;
use crate::known::{KnownType, known_types};
use crate::persist::{DescribedType, TypeSetError};
use crate::session::for_each_open;
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_sys::process_lock::ProcessLock;

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
    for_each_open(&mut |open| {
        if open.store.type_record(known.record.id).is_some_and(|there| *there != known.record) {
            open.types_differ();
        }
    });
    Ok(known)
}
