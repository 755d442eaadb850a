//! Every crash leaves a protected object whose pages and tree fit, under one key.

use crate::common::Step::{Die, Psync, PsyncAll, Reopen, Write};
use crate::common::{self, Reach, Step, When, base_image, explore, key_of, protect, the_key};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{Limits, SimMedium};
use cenote_object::{Keyring, Mode, Permission};
use std::sync::Arc;

const LIMITS: Limits =
    Limits { exhaustive_units: 5, samples: 12, seed: 1, process: true, power: true };

fn reach() -> Reach {
    Reach { limits: LIMITS, recovery_every: 61, read_only_every: 37 }
}

#[track_caller]
fn survives(mode: Mode, steps: &[Step], half_len: u64) {
    protect(mode);
    let (tally, violation) = explore(steps, half_len, reach(), Bug::None, When::Running);
    println!("{mode}: {tally:?}");
    assert!(violation.is_none(), "{mode}: {}", violation.unwrap_or_default());
    assert!(
        tally.images > 20 && tally.recovery_images > 0 && tally.read_only > 0,
        "{mode}: {tally:?}"
    );
}

const STEPS: [Step; 10] = [
    Write(0, 0, 8, 1),
    Write(0, 8000, 8, 1),
    Psync(0),
    Write(1, 0, 100, 2),
    Write(0, 4096, 70, 3),
    PsyncAll,
    Die,
    Write(0, 0, 8, 4),
    Psync(0),
    Reopen,
];

/// Every crash of psyncs of protected objects: pages, side data, nodes and header are of one psync.
#[test]
fn every_crash_leaves_pages_and_tree_of_one_psync_encrypted() {
    survives(Mode::EncryptionIntegrity, &STEPS, 12288);
}

#[test]
fn every_crash_leaves_pages_and_tree_of_one_psync_authenticated() {
    survives(Mode::Authenticated, &STEPS, 32768);
}

/// What an image shows under the old key and under the new one, if a crash after note `note` may
/// leave that.
fn keys_of(sim: Arc<SimMedium>, new: &Keyring, note: u64) -> Result<(), String> {
    let (store, objects) = common::open(&sim, 32768)?;
    let mut seen = Vec::new();
    for key in [the_key(), new] {
        if let Ok(a) = objects.attach("a", Permission::Read, Some(key)) {
            seen.push(common::bytes_of(&a)?[5000]);
        } else {
            seen.push(99);
        }
    }
    objects.abandon();
    store.abandon();
    let allowed: &[[u8; 2]] = match note {
        0 => &[[0, 99], [1, 99]],
        1 => &[[1, 99], [99, 1]],
        2 => &[[99, 1], [99, 2]],
        _ => &[[99, 2]],
    };
    let seen = [seen[0], seen[1]];
    if allowed.contains(&seen) { Ok(()) } else { Err(format!("note {note}: {seen:?}")) }
}

/// A key that is changed between two psyncs: after every crash the object opens under the key that
/// was acknowledged last, or the one in flight, with all that was psynced.
fn rekey_crashes(bug: Bug) -> Result<u64, String> {
    protect(Mode::Authenticated);
    let base = base_image(32768);
    let sim = SimMedium::from_image(&base);
    let new = key_of(2);
    plant(bug);
    let ran = || -> Result<(), String> {
        let (store, objects) = common::open(&sim, 32768)?;
        let write = |key: &Keyring, value: u8| -> Result<(), String> {
            let a = objects.attach("a", Permission::ReadWrite, Some(key));
            let mut a = a.map_err(|error| format!("attach: {error}"))?;
            a.as_mut_slice().expect("writable")[5000] = value;
            a.psync().map(drop).map_err(|error| format!("psync: {error}"))
        };
        write(the_key(), 1)?;
        sim.note(1);
        objects.rekey("a", &key_of(3), &new).expect_err("a wrong key");
        objects.rekey("a", the_key(), &new).expect("rekey");
        sim.note(2);
        objects.attach("a", Permission::Read, Some(the_key())).expect_err("the old key");
        write(&new, 2)?;
        sim.note(3);
        objects.abandon();
        store.abandon();
        Ok(())
    };
    let ran = ran();
    plant(Bug::None);
    ran?;
    let (mut images, mut violation) = (0, None);
    sim.explore(.., LIMITS, |crash, image| {
        if violation.is_some() {
            return;
        }
        images += 1;
        let look = || keys_of(SimMedium::from_image_unrecorded(&image), &new, image.note());
        violation = look().err().map(|what| format!("crash after event {}: {what}", crash.event()));
    });
    violation.map_or(Ok(images), Err)
}

#[test]
fn a_crash_of_rekey_leaves_the_old_key_or_the_new_one() {
    let images = rekey_crashes(Bug::None).expect("one key opens it");
    assert!(images > 20, "{images}");
    let found = rekey_crashes(Bug::RekeyNotJournalled).expect_err("the bug was not found");
    println!("found: {found}");
}

#[test]
fn a_header_that_is_written_beside_its_record_is_found() {
    protect(Mode::EncryptionIntegrity);
    let reach = Reach { recovery_every: 0, read_only_every: 0, ..reach() };
    let steps = [Write(0, 0, 8, 1), Psync(0), Write(0, 0, 8, 2), Psync(0)];
    let (_, violation) = explore(&steps, 16384, reach, Bug::AtRestHeaderApart, When::Running);
    println!("found: {}", violation.expect("the bug was not found"));
}
