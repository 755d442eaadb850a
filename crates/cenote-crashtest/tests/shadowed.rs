//! Every crash of histories of transactions and psyncs on pools in shadowed mode, through the safe
//! interface, heaps included.
//!
//! The oracle: after a crash of processes the pools are as the last transaction left them that was
//! acknowledged, or the one in flight; after a loss of power as the last psync left them, or the
//! one in flight, each pool's puddles together, and pools that were psynced together, together. A
//! heap is sound in both cases, without tracing. So also when recovery crashes, for read-only
//! opens, and for what is done afterwards.
//!
//! Pools with the logged heap go through the same histories: their metadata are stored through a
//! second mapping, of which no fault tells.
//!
//! Pools that are protected at rest go through the same histories. Their memory goes with their
//! process, so that a crash of processes is to them what a loss of power is.
//!
//! And every planted bug of this is found.

mod logged;
mod world;

use cenote::{
    Access, AtRest, HeapKind, Keyring, Locking, MasterKey, OpenOptions, PoolMode, PoolOptions,
    Store,
};
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_medium::sim::{CrashKind, Image, Limits, SimMedium};
use cenote_medium::{Durability, Medium};
use std::cell::Cell;
use std::sync::Arc;
use world::*;

thread_local! {
    /// How this test's pools in shadowed mode are protected.
    static AT_REST: Cell<AtRest> = const { Cell::new(AtRest::None) };
    /// The heap of this test's pools.
    static HEAP: Cell<HeapKind> = const { Cell::new(HeapKind::Traced) };
}

fn at_rest() -> AtRest {
    AT_REST.with(Cell::get)
}

fn key(number: u8) -> Arc<Keyring> {
    let mut bytes: [u8; 32] =
        core::array::from_fn(|i| number.wrapping_add((i as u8).wrapping_mul(31)));
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
    Arc::new(Keyring::new(key).locking(Locking::IfPossible))
}

fn own_key() -> Option<Arc<Keyring>> {
    at_rest().mode().has_key().then(|| key(1))
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    images: u64,
    power: u64,
    recovery: u64,
    read_only: u64,
    went_on: u64,
}

/// Whether a bug is planted in the history or in what recovers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Running,
    Recovering,
}

/// What protected pools do in memory is no event: in one session there are few of these, and each
/// is looked at more closely.
fn has_few_events(steps: &[Step]) -> bool {
    at_rest() != AtRest::None
        && !steps.iter().any(|step| matches!(step, Die | Reopen | Push(4..8, _)))
}

fn explore(steps: &[Step], level: Durability, bug: Bug, when: When) -> (Tally, Option<String>) {
    let mut tally = Tally::default();
    let base = match base_image(level) {
        Ok(base) => base,
        Err(error) => return (tally, Some(error)),
    };
    let sim = SimMedium::from_image(&base);
    plant(if when == When::Running { bug } else { Bug::None });
    let known = history(&sim, steps, level);
    plant(Bug::None);
    let known = match known {
        Ok(known) => known,
        Err(violation) => return (tally, Some(violation)),
    };
    let mut violation = None;
    let few = has_few_events(steps);
    let samples = if few { 40 } else { 10 };
    let limits = Limits { exhaustive_units: 6, samples, ..Limits::default() };
    let every = |images: u64| if few { images / 8 + 1 } else { images };
    sim.explore(.., limits, |crash, image| {
        if violation.is_some() {
            return;
        }
        tally.images += 1;
        tally.power += u64::from(image.kind() != CrashKind::Process);
        let note = image.note();
        if when == When::Recovering {
            plant(bug);
        }
        let mut found = known.verify(&image, note);
        if found.is_ok() && tally.images.is_multiple_of(every(17)) {
            tally.read_only += 1;
            found = known.verify_read_only(&image, note).or_else(logged::unless_broken_off);
        }
        if found.is_ok() && tally.images.is_multiple_of(every(41)) {
            tally.went_on += 1;
            found = known.go_on(&image);
        }
        if found.is_ok() && tally.images.is_multiple_of(every(199)) {
            found = crash_recovery(&known, &image, &mut tally);
        }
        plant(Bug::None);
        violation = found.err().map(|what| {
            format!(
                "crash after event {} ({:?}), note {note:#x}: {what}",
                crash.event(),
                image.kind()
            )
        });
    });
    (tally, violation)
}

/// Crashes of the recovery of an image.
fn crash_recovery(known: &History, image: &Image, tally: &mut Tally) -> Result<(), String> {
    let again = SimMedium::from_image(image);
    World::open(&again, &open_options(), known.level)?.die();
    let mut result = Ok(());
    let limits = Limits { exhaustive_units: 4, samples: 4, ..Limits::default() };
    again.explore(.., limits, |crash, inner| {
        if result.is_err() {
            return;
        }
        tally.recovery += 1;
        // What a loss of power has taken stays taken; what recovery has completed may be there.
        let kinds = [image.kind(), inner.kind()];
        let kind =
            if kinds.contains(&CrashKind::Power) { CrashKind::Power } else { CrashKind::Process };
        let sim = SimMedium::from_image_unrecorded(&inner);
        result = World::open(&sim, &open_options(), known.level)
            .and_then(|world| {
                let state = world.state(true);
                world.die();
                known.allows(&state?, kind, image.note())
            })
            .map_err(|what| {
                format!("in recovery, after event {} ({:?}): {what}", crash.event(), inner.kind())
            });
    });
    result
}

#[track_caller]
fn holds(name: &str, steps: &[Step], level: Durability) {
    let (tally, violation) = explore(steps, level, Bug::None, When::Running);
    let few = has_few_events(steps);
    println!("{name}, {level}: {tally:?}");
    assert!(violation.is_none(), "{name}: {}", violation.unwrap_or_default());
    assert!(
        tally.power > if few { 25 } else { 50 }
            && tally.read_only > 5
            && tally.went_on > 2
            && tally.recovery > 20,
        "{name}: {tally:?}"
    );
}

#[track_caller]
fn caught(bug: Bug, when: When, steps: &[Step], level: Durability) {
    let (tally, violation) = explore(steps, level, bug, when);
    let Some(violation) = violation else { panic!("{bug:?} was not found: {tally:?}") };
    println!("{bug:?}: found after {} images: {violation}", tally.images);
    let (tally, violation) = explore(steps, level, Bug::None, when);
    assert!(violation.is_none(), "without {bug:?}: {}", violation.unwrap_or_default());
    println!("without it: {tally:?}");
}

const ONE: [Step; 6] = [Push(1, 1), Push(1, 2), Psync(1), Push(1, 3), Pop(0), Psync(1)];

#[test]
fn one_pool_is_as_its_last_psync_or_its_last_transaction() {
    holds("one", &ONE, Durability::Process);
}

#[test]
fn pools_that_are_psynced_together_are_together() {
    let steps = [Push(3, 1), Psync(3), Push(3, 2), Psync(1), Push(3, 3), Psync(3)];
    holds("together", &steps, Durability::Process);
}

#[test]
fn a_pool_that_grew_goes_back_to_what_it_was() {
    let steps = [Push(1, 1), Psync(1), Grow(0), Push(1, 2), Psync(1), Push(1, 3)];
    holds("grew", &steps, Durability::Process);
}

#[test]
fn sessions_that_die_go_on_and_psync_what_the_dead_left() {
    let steps =
        [Push(1, 1), Psync(1), Push(3, 2), Die, Push(1, 3), Psync(3), Push(2, 4), Die, Psync(2)];
    holds("sessions", &steps, Durability::Process);
}

#[test]
fn a_store_that_was_closed_is_not_older_than_its_close() {
    let steps = [Push(3, 1), Reopen, Push(1, 2), Psync(1), Push(2, 3), Reopen, Push(3, 4)];
    holds("closed", &steps, Durability::Process);
}

/// Where commits survive loss of power, those of a pool in direct mode do, whatever becomes of one
/// in shadowed mode.
#[test]
fn pools_of_both_modes_are_each_as_their_mode_says() {
    let steps = [
        Push(1, 1),
        Push(4, 1),
        Psync(1),
        Push(1, 2),
        Push(4, 2),
        Push(1, 3),
        Die,
        Push(4, 3),
        Psync(1),
    ];
    holds("both modes", &steps, Durability::Power);
}

#[test]
fn pages_that_are_not_protected_again() {
    let steps = [Push(1, 1), Psync(1), Push(1, 2), Psync(1)];
    caught(Bug::PsyncNotProtected, When::Running, &steps, Durability::Process);
}

/// Metadata of a traced heap are stored through a second mapping, which tells of stores itself.
#[test]
fn pages_of_a_second_mapping_that_are_not_protected_again() {
    let steps = [Push(1, 1), Psync(1), Push(1, 2), Psync(1)];
    caught(Bug::Guard(GuardBug::TwinNotProtected), When::Running, &steps, Durability::Process);
}

#[test]
fn notes_of_a_dead_session_that_are_believed_complete() {
    // The second pool is not stored into again.
    let steps = [Push(3, 1), Psync(3), Push(2, 2), Die, Push(1, 3), Psync(3)];
    caught(Bug::PsyncTrustsLostNotes, When::Running, &steps, Durability::Process);
}

#[test]
fn a_shadow_that_is_believed_after_a_loss_of_power() {
    caught(
        Bug::ShadowNotRestored,
        When::Recovering,
        &[Push(1, 1), Psync(1), Push(1, 2)],
        Durability::Process,
    );
}

#[test]
fn logs_that_are_replayed_into_a_pool_that_went_back() {
    let steps = [Push(4, 1), Push(1, 1), Push(1, 2), Psync(1), Push(1, 3), Pop(0), Push(1, 4)];
    caught(Bug::VoidLogReplayed, When::Recovering, &steps, Durability::Power);
}

#[test]
fn a_close_without_a_psync() {
    let steps = [Push(1, 1), Reopen, Push(1, 2)];
    caught(Bug::CloseWithoutPsync, When::Running, &steps, Durability::Process);
}

#[test]
fn a_psync_that_changes_primaries_before_its_record_is_durable() {
    caught(Bug::PsyncAppliedEarly, When::Running, &ONE, Durability::Process);
}

#[test]
fn a_psync_without_a_sync() {
    caught(Bug::PsyncNotSynced, When::Running, &ONE, Durability::Process);
}

/// A psync whose journal cannot be written, and the next one, which must have its pages too.
fn failed_psync_then_again(bug: Bug) -> Result<(), String> {
    use cenote_medium::Operation;
    use cenote_medium::sim::{Fault, FaultEffect, FaultPoint};
    let sim = SimMedium::from_image(&base_image(Durability::Process)?);
    let world = World::open(&sim, &open_options(), Durability::Process)?;
    world.step(Push(3, 1)).map_err(text)?;
    let write = FaultPoint::Operation(Operation::Write);
    sim.inject(Fault::once(write, 0, FaultEffect::NoSpace).on("journal.pools"));
    plant(bug);
    let failed = world.step(Psync(3));
    plant(Bug::None);
    assert_eq!(sim.fault_hits(), 1, "{failed:?}");
    match failed {
        Err(cenote::Error::Store(error)) if error.is_no_space() => {}
        other => return Err(format!("a full disk is {other:?}")),
    }
    // The shadow is usable, and the next psync has all of it.
    world.step(Push(1, 2)).map_err(text)?;
    world.step(Psync(3)).map_err(text)?;
    let image = sim.state_now().image_oldest();
    world.die();
    let sim = SimMedium::from_image_unrecorded(&image);
    let world = World::open(&sim, &open_options(), Durability::Process)?;
    let state = world.state(true);
    world.die();
    let state = state?;
    if state == [(2, 3), (1, 1)] {
        Ok(())
    } else {
        Err(format!("pages of the failed psync are missing: {state:?}"))
    }
}

#[test]
fn a_failed_psync_that_forgets_its_pages() {
    failed_psync_then_again(Bug::None).expect("without the bug all pages come along");
    let lost = failed_psync_then_again(Bug::PsyncForgetsPages).expect_err("the bug was not found");
    println!("found: {lost}");
}

/// Every file operation of a psync may fail: then the psync fails, the pool goes on, and after a
/// loss of power the psync before is there, or this one; or the store is poisoned and acknowledges
/// nothing more.
#[test]
fn every_file_operation_of_a_psync_may_fail() {
    use cenote_medium::Operation;
    use cenote_medium::sim::{Fault, FaultEffect, FaultPoint, Rest};
    let base = base_image(Durability::Process).expect("a store");
    let (mut failed, mut poisoned) = (0, 0);
    let short = |eighths, then| FaultEffect::Short { eighths, then };
    for op in [Operation::Write, Operation::Sync, Operation::Read] {
        let mut effects = vec![FaultEffect::Io, FaultEffect::NoSpace];
        if op == Operation::Write {
            effects.extend([short(1, Rest::Io), short(4, Rest::NoSpace), short(7, Rest::NoSpace)]);
            effects.extend([short(8, Rest::Io), short(4, Rest::Written)]);
        }
        for effect in effects {
            for skip in 0..40 {
                let sim = SimMedium::from_image(&base);
                let world = World::open(&sim, &open_options(), Durability::Process).expect("open");
                world.step(Push(3, 5)).expect("a transaction");
                sim.inject(Fault::once(FaultPoint::Operation(op), skip, effect));
                let psynced = world.step(Psync(3));
                let hit = sim.fault_hits() > 0;
                sim.clear_faults();
                let states: &[Content] = match &psynced {
                    Ok(()) => &[(1, 5)],
                    Err(_) => &[(0, 0), (1, 5)],
                };
                failed += u64::from(psynced.is_err());
                assert!(
                    psynced.is_ok() || effect != short(4, Rest::Written),
                    "{op:?} {skip}: {psynced:?}"
                );
                let again = world.step(Psync(3));
                // What a failed sync has left is not known; of anything else the next psync has
                // all.
                assert_eq!(
                    again.is_err(),
                    hit && op == Operation::Sync,
                    "{op:?} {effect:?} {skip}: {psynced:?}, {again:?}"
                );
                poisoned += u64::from(again.is_err());
                assert!(
                    again.is_ok() || psynced.is_err(),
                    "{op:?} {skip}: {psynced:?}, then {again:?}"
                );
                let states = if again.is_ok() { &[(1, 5)] } else { states };
                let crashed = sim.state_now();
                world.die();
                for image in [crashed.image_oldest(), crashed.image_latest()] {
                    let sim = SimMedium::from_image_unrecorded(&image);
                    let world =
                        World::open(&sim, &open_options(), Durability::Process).expect("open");
                    let state = world.state(true).expect("a state");
                    world.die();
                    assert!(
                        states.contains(&state[0]) && state[0] == state[1],
                        "{op:?} {skip}: {state:?}, {psynced:?}"
                    );
                }
                if !hit {
                    break;
                }
            }
        }
    }
    assert!(
        failed > 6 && poisoned > 1 && poisoned < failed,
        "{failed} failed, {poisoned} poisoned"
    );
}

/// The same histories of pools that are protected at rest.
#[track_caller]
fn holds_at_rest(name: &str, steps: &[Step], level: Durability, modes: &[AtRest]) {
    for mode in modes {
        AT_REST.with(|at_rest| at_rest.set(*mode));
        holds(&format!("{name}, {mode:?}"), steps, level);
    }
    AT_REST.with(|at_rest| at_rest.set(AtRest::None));
}

#[test]
fn a_protected_pool_is_as_its_last_psync_after_every_crash() {
    let modes =
        [AtRest::Integrity, AtRest::Encryption, AtRest::EncryptionIntegrity, AtRest::Authenticated];
    holds_at_rest("one", &ONE, Durability::Process, &modes);
}

#[test]
fn protected_pools_that_are_psynced_together_are_together() {
    let steps = [Push(3, 1), Psync(3), Push(3, 2), Psync(1), Push(3, 3), Psync(3)];
    holds_at_rest("together", &steps, Durability::Process, &[AtRest::Authenticated]);
}

#[test]
fn a_protected_pool_that_grew_goes_back_to_what_it_was() {
    let steps = [Push(1, 1), Psync(1), Grow(0), Push(1, 2), Psync(1), Push(1, 3)];
    holds_at_rest("grew", &steps, Durability::Process, &[AtRest::EncryptionIntegrity]);
}

#[test]
fn sessions_of_protected_pools_that_die_begin_at_the_last_psync() {
    let steps =
        [Push(1, 1), Psync(1), Push(3, 2), Die, Push(1, 3), Psync(3), Push(2, 4), Die, Psync(2)];
    holds_at_rest("sessions", &steps, Durability::Process, &[AtRest::Authenticated]);
}

#[test]
fn a_store_with_protected_pools_that_was_closed_is_not_older_than_its_close() {
    let steps = [Push(3, 1), Reopen, Push(1, 2), Psync(1), Push(2, 3), Reopen, Push(3, 4)];
    holds_at_rest("closed", &steps, Durability::Process, &[AtRest::Authenticated]);
}

#[test]
fn protected_pools_beside_one_in_direct_mode_are_each_as_their_mode_says() {
    let steps = [
        Push(1, 1),
        Push(4, 1),
        Psync(1),
        Push(1, 2),
        Push(4, 2),
        Push(1, 3),
        Die,
        Push(4, 3),
        Psync(1),
    ];
    holds_at_rest("both modes", &steps, Durability::Power, &[AtRest::Authenticated]);
}

#[test]
fn a_psync_of_a_protected_pool_without_a_sync() {
    AT_REST.with(|at_rest| at_rest.set(AtRest::EncryptionIntegrity));
    caught(Bug::PsyncNotSynced, When::Running, &ONE, Durability::Process);
}

/// One change of a pool in a store of its own, with a pool "a" under key 1 that was psynced; and
/// what must be true in every image of a crash, told whether the change was acknowledged.
fn every_crash_of(
    change: impl Fn(&Store) -> Result<(), String>,
    holds: impl Fn(&Store, bool) -> Result<(), String>,
) -> Result<u64, String> {
    const BEFORE: u64 = 0;
    const BEGUN: u64 = 1;
    const DONE: u64 = 2;
    let sim = SimMedium::from_image(&base_image(Durability::Process)?);
    let world = World::open(&sim, &open_options(), Durability::Process)?;
    world.step(Push(3, 4)).map_err(text)?;
    world.step(Psync(3)).map_err(text)?;
    let World { store, pools } = world;
    drop(pools);
    sim.note(BEGUN);
    change(&store)?;
    sim.note(DONE);
    store.abandon();
    let (mut images, mut result) = (0, Ok(()));
    let limits = Limits { exhaustive_units: 6, samples: 8, ..Limits::default() };
    sim.explore(.., limits, |crash, image| {
        if result.is_err() || image.note() == BEFORE {
            return;
        }
        images += 1;
        let look = |image: &Image| -> Result<Arc<SimMedium>, String> {
            let sim = SimMedium::from_image(image);
            let medium: Arc<dyn Medium> = sim.clone();
            let store = Store::open_on(medium, &OpenOptions { key: None, ..open_options() })
                .map_err(text)?;
            let held = holds(&store, image.note() == DONE);
            store.abandon();
            held.map(|()| sim)
        };
        result = look(&image).and_then(|recovered| {
            // And after a crash of that.
            let state = recovered.state_now();
            [state.image_oldest(), state.image_latest()]
                .iter()
                .try_for_each(|image| look(image).map(drop))
        });
        result = core::mem::replace(&mut result, Ok(()))
            .map_err(|what| format!("after event {} ({:?}): {what}", crash.event(), image.kind()));
    });
    result.map(|()| images)
}

/// Under which of two keys a pool is, and that all that was psynced is there.
fn under(store: &Store, first: u8, second: u8) -> Result<u8, String> {
    let mut found = Vec::new();
    for number in [first, second] {
        match store.pool_with_key("a", Access::ReadOnly, &key(number)) {
            Ok(pool) => {
                if content(&pool, true)? != (1, 4) {
                    return Err("what was psynced is not there".into());
                }
                found.push(number);
            }
            Err(cenote::Error::Store(cenote_store::StoreError::AtRest { .. })) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    match found[..] {
        [number] => Ok(number),
        _ => Err(format!("of keys {first} and {second}, {found:?} open it")),
    }
}

fn rekey_crashes() -> Result<u64, String> {
    every_crash_of(
        |store| match store.rekey_pool("a", &key(1), &key(2)).map_err(text)? {
            cenote_store::Rekeyed::Done => Ok(()),
            cenote_store::Rekeyed::Unfinished(error) => Err(error.to_string()),
        },
        |store, done| match under(store, 1, 2)? {
            1 if done => Err("the old key opens it after the change was acknowledged".into()),
            _ => Ok(()),
        },
    )
}

#[test]
fn a_pool_is_under_the_old_key_or_the_new_one_whenever_rekey_crashes() {
    AT_REST.with(|at_rest| at_rest.set(AtRest::Authenticated));
    let images = rekey_crashes().expect("one of the two, and never none");
    assert!(images > 10, "{images}");
}

#[test]
fn a_pools_new_key_that_is_written_in_place() {
    AT_REST.with(|at_rest| at_rest.set(AtRest::Authenticated));
    plant(Bug::PoolRekeyInPlace);
    let found = rekey_crashes();
    plant(Bug::None);
    println!("found: {}", found.expect_err("the bug was not found"));
}

fn creation_crashes() -> Result<u64, String> {
    let create = |store: &Store| {
        let options = PoolOptions { key: Some(key(7)), ..pool_options(PoolMode::Shadowed) };
        store.add_pool("new", &options).map(drop).map_err(text)
    };
    every_crash_of(create, |store, done| {
        under(store, 1, 2)?;
        if !store.report().damage.is_empty() {
            return Err(format!("{:?}", store.report().damage));
        }
        match store.pools().iter().any(|pool| pool.record.name == "new") {
            false if done => Err("it is gone".into()),
            false => Ok(()),
            true => store.pool_with_key("new", Access::ReadWrite, &key(7)).map(drop).map_err(text),
        }
    })
}

#[test]
fn a_protected_pool_is_created_whole_or_not_at_all() {
    AT_REST.with(|at_rest| at_rest.set(AtRest::Authenticated));
    let images = creation_crashes().expect("whole, or not at all");
    assert!(images > 10, "{images}");
}

#[test]
fn a_protection_that_is_written_after_its_puddle_is_named() {
    AT_REST.with(|at_rest| at_rest.set(AtRest::Authenticated));
    plant(Bug::PoolHeaderLate);
    let found = creation_crashes();
    plant(Bug::None);
    println!("found: {}", found.expect_err("the bug was not found"));
}
