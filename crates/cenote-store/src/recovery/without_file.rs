//! Forgets puddles that hold nothing any more: log puddles that no client uses, and records whose
//! files are gone.

use crate::kernel::catalog::{AppendError, CatalogState};
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::Uuid;
use cenote_layout::puddle::Role;
use cenote_medium::MediumError;
use std::collections::BTreeSet;

/// Spare puddles, and log puddles that no client uses, whose files are gone, or that have moved:
/// nothing was in them, so they are reported once and forgotten. No log where it is not known which
/// are used; none at all where records were lost.
pub(super) fn unused_and_missing(
    control: &Control,
    used: Option<&BTreeSet<Uuid>>,
    missing: &BTreeSet<Uuid>,
) -> Vec<PuddleRecord> {
    if control.catalog.is_damaged() {
        return Vec::new();
    }
    let unused = |puddle: &&PuddleRecord| match puddle.role {
        Role::Log | Role::LogSpace => used.is_some_and(|used| !used.contains(&puddle.uuid)),
        Role::Spare => true,
        Role::Heap | Role::Metadata | Role::Object => false,
    };
    // One that has moved says the addresses of before, and is no log for another client.
    let state = &control.catalog.state;
    let gone = |puddle: &&PuddleRecord| {
        missing.contains(&puddle.uuid)
            || (puddle.role != Role::Spare && state.pending.contains_key(&puddle.uuid))
    };
    state.puddles.values().filter(gone).filter(unused).copied().collect()
}

/// Puddles that were named as missing are in the catalog no more: their places are free, and the
/// report says so.
pub(super) fn forget_missing(
    control: &mut Control,
    gone: Vec<PuddleRecord>,
    report: &mut OpenReport,
) {
    for puddle in gone {
        control.space.give_back(puddle.addr, puddle.size);
        for damage in &mut report.damage {
            if let Damage::Puddle { uuid, detail, .. } = damage
                && *uuid == puddle.uuid
            {
                let what =
                    if puddle.role == Role::Spare { "nothing" } else { "no log that is in use" };
                *detail =
                    format!("its file is missing; {what} was in it, and its record was removed");
            }
        }
    }
}

/// Log puddles that no client has, and that have not moved: they are empty.
pub(super) fn spare_logs(state: &CatalogState, used: &BTreeSet<Uuid>) -> Vec<PuddleRecord> {
    let spare = |log: &&PuddleRecord| {
        matches!(log.role, Role::Log | Role::LogSpace)
            && !used.contains(&log.uuid)
            && !state.pending.contains_key(&log.uuid)
    };
    state.puddles.values().filter(spare).copied().collect()
}

/// Removes log puddles that are in no use. The clients that wrote them may have them mapped still,
/// so no other client gets them.
pub(super) fn drop_spare_logs(inner: &Inner, control: &mut Control) -> Result<(), MediumError> {
    let spare = core::mem::take(&mut control.logs.spare);
    let records: Vec<Record> =
        spare.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)).collect();
    if control.catalog.is_damaged() || records.is_empty() {
        return Ok(());
    }
    control.catalog.append(&records).map_err(AppendError::into_cause)?;
    for puddle in &spare {
        let file = file_name(puddle.uuid);
        let _ = inner.medium.remove(text(&file));
        control.space.give_back(puddle.addr, puddle.size);
    }
    Ok(())
}
