//! Every crash of clones, of new addresses, and of the rewriting at first touch, through the safe
//! interface; also in the recovery after it.
//!
//! The oracle: a clone is there whole or not at all; whatever pool is there leads to its own values
//! and, where it did so before, to another pool's; transactions and psyncs count as in any pool. A
//! puddle that is half rewritten, or rewritten twice, leads elsewhere.
//!
//! The same with a pool in shadowed mode that is protected at rest: copied sealed, and sealed anew
//! when it is touched. Its memory goes with its process, so that a crash of processes is to it what
//! a loss of power is.
//!
//! And every planted bug of this is found.

mod logged;
mod windows;
mod world;

use cenote::{Access, AtRest, HeapKind, Keyring, Locking, MasterKey};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, Image, Limits, SimMedium};
use cenote_medium::{Durability, Operation};
use std::cell::Cell;
use std::sync::Arc;
use world::*;

thread_local! {
    /// How this test's pool in shadowed mode is protected.
    static AT_REST: Cell<AtRest> = const { Cell::new(AtRest::None) };
    /// The heap of this test's pools.
    static HEAP: Cell<HeapKind> = const { Cell::new(HeapKind::Traced) };
    /// Whether images are opened where their window is taken, too.
    static MEETING: Cell<bool> = const { Cell::new(false) };
}

fn is_protected() -> bool {
    AT_REST.with(Cell::get) != AtRest::None
}

/// The key of what is protected.
fn own_key() -> Option<Arc<Keyring>> {
    let mut bytes: [u8; 32] = core::array::from_fn(|i| (i as u8).wrapping_mul(37) ^ 0x5a);
    is_protected().then(|| {
        let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
        Arc::new(Keyring::new(key).locking(Locking::IfPossible))
    })
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    images: u64,
    power: u64,
    recovery: u64,
    met: u64,
}

fn explore(steps: &[Step], level: Durability, bug: Bug, every: u64) -> (Tally, Option<String>) {
    let mut tally = Tally::default();
    let base = match base_image(level) {
        Ok(base) => base,
        Err(error) => return (tally, Some(error)),
    };
    let sim = SimMedium::from_image(&base);
    plant(bug);
    let states = history(&sim, steps);
    plant(Bug::None);
    let states = match states {
        Ok(states) => states,
        Err(violation) => return (tally, Some(violation)),
    };
    let mut violation = None;
    let mut seen = 0u64;
    let limits = Limits { exhaustive_units: 3, samples: 6, ..Limits::default() };
    sim.explore(.., limits, |crash, image| {
        seen += 1;
        // Spread over extremes and samples alike.
        if violation.is_some() || (every > 1 && !(seen * 7 + seen / 5).is_multiple_of(every)) {
            return;
        }
        tally.images += 1;
        tally.power += u64::from(image.kind() != CrashKind::Process);
        plant(bug);
        let mut found = verify(
            &SimMedium::from_image_unrecorded(&image),
            &states,
            image.kind(),
            image.note(),
            level,
        );
        if found.is_ok() && MEETING.get() && tally.images.is_multiple_of(3) {
            tally.met += 1;
            found = verify_where_taken(&image, &states, image.kind(), level);
        }
        plant(Bug::None);
        if found.is_ok() && tally.images.is_multiple_of(41) {
            found = crash_recovery(&states, &image, level, &mut tally);
        }
        violation = found.err().map(|what| {
            format!(
                "crash after event {} ({:?}), note {}: {what}",
                crash.event(),
                image.kind(),
                image.note()
            )
        });
    });
    println!("{seen} images in all");
    (tally, violation)
}

/// Crashes of the recovery of an image, and of the rewriting that follows it.
fn crash_recovery(
    states: &[ExpectedState],
    image: &Image,
    level: Durability,
    tally: &mut Tally,
) -> Result<(), String> {
    let again = SimMedium::from_image(image);
    verify(&again, states, image.kind(), image.note(), level)?;
    let mut result = Ok(());
    let mut seen = 0u64;
    let limits = Limits { exhaustive_units: 1, samples: 1, ..Limits::default() };
    again.explore(.., limits, |crash, inner| {
        seen += 1;
        if result.is_err() || !seen.is_multiple_of(5) {
            return;
        }
        tally.recovery += 1;
        let kinds = [image.kind(), inner.kind()];
        let kind =
            if kinds.contains(&CrashKind::Power) { CrashKind::Power } else { CrashKind::Process };
        let sim = SimMedium::from_image_unrecorded(&inner);
        result = verify(&sim, states, kind, image.note(), level).map_err(|what| {
            format!("in recovery, after event {} ({:?}): {what}", crash.event(), inner.kind())
        });
    });
    result
}

/// Of so many images one is verified; `CENOTE_RELOCATION_EVERY=1`: all.
fn every(default: u64) -> u64 {
    std::env::var("CENOTE_RELOCATION_EVERY")
        .ok()
        .map_or(default, |text| text.parse().expect("a number"))
}

#[track_caller]
fn holds(name: &str, steps: &[Step], level: Durability, thin: u64) {
    let (tally, violation) = explore(steps, level, Bug::None, every(thin));
    println!("{name}, {level}: {tally:?}");
    assert!(violation.is_none(), "{name}: {}", violation.unwrap_or_default());
    assert!(tally.power > 100 && tally.recovery > 20, "{name}: {tally:?}");
}

#[track_caller]
fn caught(bug: Bug, steps: &[Step], level: Durability) {
    let (tally, violation) = explore(steps, level, bug, 1);
    let Some(violation) = violation else { panic!("{bug:?} was not found: {tally:?}") };
    println!("{bug:?}: found after {} images: {violation}", tally.images);
    let (tally, violation) = explore(steps, level, Bug::None, 3);
    assert!(violation.is_none(), "without {bug:?}: {}", violation.unwrap_or_default());
    println!("without it: {tally:?}");
}

const CLONES: [Step; 14] = [
    DualMapping("direct", "copy"),
    Write("copy"),
    Push("copy", 2),
    Read("direct"),
    Lead("copy", "direct"),
    Release,
    DualMapping("shadowed", "twin"),
    Write("twin"),
    Push("twin", 3),
    Psync("twin"),
    Push("twin", 4),
    Die,
    Write("twin"),
    Psync("twin"),
];

const MOVES: [Step; 13] = [
    Randomize("direct"),
    Read("beside"),
    Write("direct"),
    Push("direct", 2),
    Release,
    Write("shadowed"),
    Push("shadowed", 3),
    Psync("shadowed"),
    Push("shadowed", 4),
    Release,
    Randomize("shadowed"),
    Write("shadowed"),
    Push("shadowed", 5),
];

#[test]
fn clones_at_level_power() {
    holds("clones", &CLONES, Durability::Power, 5);
}

#[test]
fn moves_at_level_power() {
    holds("moves", &MOVES, Durability::Power, 9);
}

#[test]
fn clones_and_moves_at_level_process() {
    let steps = [
        DualMapping("direct", "copy"),
        Read("copy"),
        Release,
        DualMapping("shadowed", "twin"),
        Write("twin"),
        Push("twin", 3),
        Psync("twin"),
        Release,
        Die,
        Randomize("direct"),
        Read("beside"),
        Read("copy"),
        Release,
    ];
    holds("both", &steps, Durability::Process, 4);
}

#[test]
fn a_puddle_that_is_rewritten_in_its_file_whatever_is_in_it() {
    caught(Bug::RewrittenInPlace, &CLONES[..2], Durability::Power);
}

#[test]
fn a_header_that_is_written_before_the_words_are_durable() {
    caught(Bug::InPlaceHeaderEarly, &CLONES[..2], Durability::Power);
}

/// Rewritten once more, what leads to the original would lead to the copy.
#[test]
fn a_puddle_that_is_used_before_its_header_is_durable() {
    let steps =
        [DualMapping("direct", "copy"), Write("copy"), Read("direct"), Lead("copy", "direct")];
    caught(Bug::InPlaceNotDurable, &steps, Durability::Power);
}

/// A puddle's header is written in its file, and its sync fails, or its writer is killed
/// before. The next session finds the puddle rewritten, a batch says so, and power is lost.
fn found_rewritten(level: Durability, bug: Bug) -> Result<(), String> {
    let sim = SimMedium::from_image(&base_image(level)?);
    let mut world = World::open(&sim)?;
    world.step(DualMapping("direct", "copy")).map_err(text)?;
    let copies = world.store.pools().into_iter().find(|info| info.record.name == "copy");
    let id = copies.ok_or("no copy")?.record.id;
    let puddle = world
        .store
        .puddle_records()
        .into_iter()
        .find(|puddle| puddle.pool == id)
        .ok_or("no puddle")?;
    let file = String::from_utf8_lossy(&puddle.uuid.to_hex()).into_owned();
    sim.inject(Fault::once(FaultPoint::Operation(Operation::Sync), 1, FaultEffect::Io).on(&file));
    let failed = world.step(Read("copy")).is_err();
    assert!(failed && sim.fault_hits() == 1, "the header's sync");
    world.die();
    sim.clear_faults();
    plant(bug);
    let opened = World::open(&sim).and_then(|mut world| {
        for step in [Read("copy"), Release, DualMapping("beside", "later")] {
            world.step(step).map_err(text)?;
        }
        Ok(world)
    });
    plant(Bug::None);
    let world = opened?;
    let image = sim.state_now().image_oldest();
    world.die();
    let world = World::open(&SimMedium::from_image(&image))?;
    let pool = world.store.pool_with("copy", Access::ReadOnly);
    let content = pool.map_err(text).and_then(|pool| world.content(&pool));
    world.die();
    match content? {
        (1, 1, _) => Ok(()),
        other => Err(format!("the copy is {other:?}")),
    }
}

#[test]
fn a_puddle_that_is_found_rewritten_is_made_durable_before_it_counts() {
    for level in [Durability::Power, Durability::Process] {
        found_rewritten(level, Bug::None).unwrap();
        let lost = found_rewritten(level, Bug::FoundNewNotKept);
        println!("{level}: {}", lost.expect_err("it is believed, and not there"));
    }
}

#[test]
fn a_rewritten_puddle_that_is_not_synced_before_it_is_renamed() {
    caught(
        Bug::RewrittenNotSynced,
        &[DualMapping("direct", "copy"), Read("copy"), Release],
        Durability::Process,
    );
}

#[test]
fn a_name_that_is_not_durable_before_the_puddle_is_used() {
    caught(Bug::RenameNotSynced, &CLONES[..3], Durability::Power);
}

#[test]
fn an_import_whose_files_are_not_synced() {
    caught(Bug::ImportNotSynced, &CLONES[..1], Durability::Power);
}

#[test]
fn an_import_that_forgets_what_is_due() {
    caught(Bug::ImportNotPending, &CLONES[..2], Durability::Power);
}

#[test]
fn a_puddle_that_is_mapped_as_it_is() {
    caught(Bug::PendingPuddleMapped, &CLONES[..2], Durability::Power);
}

#[test]
fn a_primary_that_stays_as_it_was() {
    let steps = [DualMapping("shadowed", "twin"), Write("twin"), Push("twin", 3), Psync("twin")];
    caught(Bug::PrimaryNotRewritten, &steps, Durability::Process);
}

#[test]
fn a_pool_that_moves_while_the_journal_speaks_of_it() {
    let steps = [
        Write("shadowed"),
        Push("shadowed", 3),
        Psync("shadowed"),
        Release,
        Randomize("shadowed"),
        Write("shadowed"),
        Push("shadowed", 4),
        Psync("shadowed"),
    ];
    caught(Bug::MovedNotTrimmed, &steps, Durability::Process);
}

/// A protected pool is written, copied with what only memory has, and the copy written; then it
/// dies, and goes on.
const SEALED: [Step; 12] = [
    Write("shadowed"),
    Push("shadowed", 3),
    Psync("shadowed"),
    Push("shadowed", 4),
    Release,
    DualMapping("shadowed", "twin"),
    Write("twin"),
    Push("twin", 5),
    Psync("twin"),
    Die,
    Write("twin"),
    Psync("twin"),
];

fn protected(at_rest: AtRest, test: impl FnOnce()) {
    AT_REST.with(|mode| mode.set(at_rest));
    test();
    AT_REST.with(|mode| mode.set(AtRest::None));
}

#[test]
fn copies_of_protected_pools_at_level_power() {
    protected(AtRest::Authenticated, || holds("sealed", &SEALED, Durability::Power, 3));
}

#[test]
fn copies_of_pools_without_a_tree_at_level_process() {
    protected(AtRest::Encryption, || holds("sealed", &SEALED, Durability::Process, 1));
}

#[test]
fn moves_of_protected_pools_at_level_power() {
    let steps = [
        Write("shadowed"),
        Push("shadowed", 3),
        Release,
        Randomize("shadowed"),
        Read("beside"),
        Write("shadowed"),
        Push("shadowed", 5),
        Psync("shadowed"),
        Release,
        Randomize("direct"),
        Read("shadowed"),
    ];
    protected(AtRest::EncryptionIntegrity, || holds("sealed moves", &steps, Durability::Power, 1));
}

#[test]
fn a_sealed_puddle_that_is_sealed_anew_in_its_file() {
    protected(AtRest::Authenticated, || {
        caught(Bug::RewrittenInPlace, &SEALED[5..7], Durability::Power)
    });
}

#[test]
fn a_sealed_puddle_that_is_not_synced_before_it_is_renamed() {
    protected(AtRest::Authenticated, || {
        caught(Bug::RewrittenNotSynced, &SEALED[5..7], Durability::Power)
    });
}

#[test]
fn an_import_that_forgets_whose_seals_are_on_its_puddles() {
    protected(AtRest::Authenticated, || {
        caught(Bug::SealedAsForgotten, &SEALED[5..7], Durability::Power)
    });
}

#[test]
fn a_root_puddle_that_takes_the_key_of_the_others_with_it() {
    protected(AtRest::Authenticated, || {
        caught(Bug::NothingInherited, &SEALED[5..7], Durability::Power)
    });
}

#[test]
fn a_copy_without_what_only_memory_has() {
    protected(AtRest::Authenticated, || {
        caught(Bug::CopyNotPsynced, &SEALED[..6], Durability::Process)
    });
}

#[test]
fn a_sealed_copy_that_is_taken_for_its_own() {
    protected(AtRest::Authenticated, || {
        caught(Bug::ImportNotPending, &SEALED[5..7], Durability::Power)
    });
}

fn meeting(test: impl FnOnce()) {
    MEETING.set(true);
    test();
    MEETING.set(false);
}

/// A window is taken after a crash, in the middle of an earlier move, and after a close; and moves
/// again before all is touched.
const MEETINGS: [Step; 12] = [
    Write("direct"),
    Push("direct", 2),
    Meet,
    Write("shadowed"),
    Push("shadowed", 3),
    Psync("shadowed"),
    Push("shadowed", 4),
    Meet,
    Write("shadowed"),
    CloseAndMeet,
    Read("beside"),
    Read("shadowed"),
];

#[test]
fn windows_that_are_taken_at_level_power() {
    meeting(|| holds("windows", &MEETINGS, Durability::Power, 9));
}

#[test]
fn windows_that_are_taken_at_level_process() {
    meeting(|| holds("windows", &MEETINGS, Durability::Process, 9));
}

#[test]
fn windows_that_are_taken_in_the_middle_of_another_move() {
    let steps = [
        DualMapping("direct", "copy"),
        Read("copy"),
        DualMapping("shadowed", "twin"),
        CloseAndMeet,
        Write("twin"),
        Push("twin", 3),
        Meet,
        Read("copy"),
    ];
    meeting(|| holds("windows and clones", &steps, Durability::Process, 6));
}

#[test]
fn windows_of_protected_pools_that_are_taken() {
    let steps = [
        Write("shadowed"),
        Push("shadowed", 3),
        Psync("shadowed"),
        Push("shadowed", 4),
        CloseAndMeet,
        Write("shadowed"),
        Push("shadowed", 5),
        Psync("shadowed"),
    ];
    protected(AtRest::Authenticated, || {
        meeting(|| holds("sealed windows", &steps, Durability::Process, 2));
    });
}

#[test]
fn a_window_that_moves_before_the_store_is_recovered() {
    meeting(|| {
        caught(Bug::MovedBeforeRecovery, &[Write("direct"), Push("direct", 2)], Durability::Power)
    });
}

#[test]
fn a_window_that_moves_and_forgets_what_is_due() {
    meeting(|| {
        caught(Bug::MovedNotPending, &[Write("direct"), Push("direct", 2)], Durability::Process)
    });
}

#[test]
fn a_reader_that_moves_a_window_for_others() {
    meeting(|| {
        caught(Bug::MovedByReader, &[Write("direct"), Push("direct", 2)], Durability::Process)
    });
}
