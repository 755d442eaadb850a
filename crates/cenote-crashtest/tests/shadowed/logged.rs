//! Pools with the logged heap: what they store into metadata goes through a second mapping, and
//! they note it themselves.
//!
//! A change visits one of each two histories, which follows from the commit; `scripts/histories.sh`
//! visits both.

use super::world::{Die, Grow, Pop, Psync, Push, Step};
use super::{AT_REST, HEAP, ONE, When, caught, holds, holds_at_rest};
use cenote::{AtRest, HeapKind};
use cenote_crashtest::tier::number_of_change;
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, GuardBug};

/// Whether a look was refused as it is documented: a change of a logged heap that a crash broke off
/// is undone by a writer.
pub(super) fn unless_broken_off(violation: String) -> Result<(), String> {
    let is_logged = HEAP.with(|heap| heap.get() == HeapKind::Logged);
    match is_logged && violation.contains("a crash interrupted a change of the heap") {
        true => Ok(()),
        false => Err(violation),
    }
}

/// Those of two histories that this change visits; both if `CENOTE_CRASH_DEPTH` is set.
/// `CENOTE_CRASH_PART` repeats the run of another change.
fn visited(histories: [&[Step]; 2]) -> Vec<&[Step]> {
    if std::env::var_os("CENOTE_CRASH_DEPTH").is_some() {
        return histories.to_vec();
    }
    let part = number_of_change("CENOTE_CRASH_PART");
    println!("CENOTE_CRASH_PART={part} repeats this run");
    vec![histories[part as usize % 2]]
}

/// The histories of pools with the logged heap.
fn with_logged_heaps(test: impl FnOnce()) {
    HEAP.with(|heap| heap.set(HeapKind::Logged));
    test();
    HEAP.with(|heap| heap.set(HeapKind::Traced));
}

#[test]
fn a_logged_pool_is_as_its_last_psync_or_its_last_transaction() {
    let grew = [Push(1, 1), Psync(1), Grow(0), Psync(1), Pop(0)];
    with_logged_heaps(|| {
        for steps in visited([&ONE, &grew]) {
            holds("logged", steps, Durability::Process);
        }
    });
}

#[test]
fn sessions_of_logged_pools_that_die_go_on_and_psync_what_the_dead_left() {
    let steps = [Push(1, 1), Psync(1), Push(1, 2), Die, Pop(0), Psync(1)];
    with_logged_heaps(|| holds("sessions, logged", &steps, Durability::Process));
}

#[test]
fn a_protected_logged_pool_is_as_its_last_psync_after_every_crash() {
    let steps = [Push(1, 1), Psync(1), Grow(0), Psync(1), Push(1, 2)];
    with_logged_heaps(|| {
        for steps in visited([&ONE, &steps]) {
            holds_at_rest("logged", steps, Durability::Process, &[AtRest::EncryptionIntegrity]);
        }
    });
}

#[test]
fn a_pool_with_a_wear_heap_is_as_its_last_psync_or_its_last_transaction() {
    let steps = [Push(1, 1), Psync(1), Grow(0), Psync(1), Push(1, 2), Die, Pop(0), Psync(1)];
    HEAP.with(|heap| heap.set(HeapKind::Wear { wait_ms: 0 }));
    for steps in visited([&ONE, &steps]) {
        holds("wear", steps, Durability::Process);
    }
    HEAP.with(|heap| heap.set(HeapKind::Traced));
}

#[test]
fn stores_through_a_second_mapping_that_no_psync_learns_of() {
    let steps = [Push(1, 1), Psync(1), Push(1, 2), Psync(1)];
    with_logged_heaps(|| {
        let bug = Bug::Guard(GuardBug::ShadowedStoreNotNoted);
        caught(bug, When::Running, &steps, Durability::Process);
        AT_REST.with(|at_rest| at_rest.set(AtRest::Integrity));
        caught(bug, When::Running, &steps, Durability::Process);
        AT_REST.with(|at_rest| at_rest.set(AtRest::None));
    });
}
