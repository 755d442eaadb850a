//! Objects in a backup of their store: each as a psync left it, and objects that are psynced
//! together, together.

use crate::common::{raw, the_key, window_base};
use cenote_atrest::Mode;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::{MediumOptions, RealMedium};
use cenote_object::{
    Attached, ObjectOptions, Objects, ObjectsOptions, Permission, Store, psync_all,
};
use cenote_store::{BackedUp, FormatOptions, OpenOptions};
use cenote_testkit::directories::directory;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const LEN: u64 = 32 << 10;

/// What is wrong with the store, if something is.
fn open(dir: &Path) -> Result<(Store, Objects), String> {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let (store, report) = Store::open(medium, OpenOptions::default()).expect("open");
    if !report.clean || !report.damage.is_empty() {
        return Err(format!("{report:?}"));
    }
    // Each psync takes half of the journal: what a copy of the journal lacks is in no copy of an
    // object that came before.
    let options = ObjectsOptions { half_len: 112 << 10, ..ObjectsOptions::default() };
    let objects = Objects::open(&store, &options).map_err(|error| error.to_string())?;
    Ok((store, objects))
}

fn key(name: &str) -> Option<&'static cenote_object::Keyring> {
    (name == "sealed").then(the_key)
}

/// The number that fills all objects; they are psynced together.
fn number_in(dir: &Path) -> Result<u64, String> {
    let (_store, objects) = open(dir)?;
    let mut numbers = Vec::new();
    for name in ["a", "b", "sealed"] {
        let object =
            objects.attach(name, Permission::Read, key(name)).map_err(|error| error.to_string())?;
        object.load(0, LEN).map_err(|error| error.to_string())?;
        let words: Vec<u64> = object
            .as_slice()
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        numbers.push(words[0]);
        if words.iter().any(|word| *word != words[0]) {
            return Err(format!("{name} has halves of two psyncs"));
        }
        object.detach().map_err(|error| error.to_string())?;
    }
    if numbers.iter().any(|number| *number != numbers[0]) {
        return Err(format!("{numbers:?}"));
    }
    Ok(numbers[0])
}

/// Psyncs in one thread, backups in this one. What is wrong with the copies.
fn copies(bug: Bug, rounds: u32) -> Vec<String> {
    let keep = directory();
    let dir = keep.path().join("store");
    std::fs::create_dir(&dir).expect("made");
    let medium = Arc::new(RealMedium::open(&dir, &MediumOptions::default()).expect("medium"));
    let format =
        FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid: None };
    cenote_store::format(medium, &format).expect("format");
    let (store, objects) = open(&dir).expect("a new store");
    for name in ["a", "b", "sealed"] {
        let at_rest = if key(name).is_some() { Mode::Authenticated } else { Mode::None };
        let options = ObjectOptions { at_rest, permissions: 0o600 };
        objects.pcreate_with(name, LEN, key(name), &options).expect("created");
    }
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut bounds = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let attach =
                |name| objects.attach(name, Permission::ReadWrite, key(name)).expect("attached");
            let mut all: Vec<Attached> = ["a", "b", "sealed"].map(attach).into_iter().collect();
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                for object in &mut all {
                    let words = object.as_mut_slice().expect("writable").chunks_exact_mut(8);
                    words.for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
                }
                let mut refs: Vec<&mut Attached> = all.iter_mut().collect();
                psync_all(&mut refs).expect("psynced");
                done.store(number, Ordering::SeqCst);
            }
        });
        for round in 0..rounds {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let from = done.load(Ordering::SeqCst);
            let mut backup =
                raw(&store).begin_backup(&keep.path().join(format!("copy{round}"))).expect("begun");
            backup.copy_ahead(&mut |_, _| true).expect("copied");
            plant(bug);
            let held = backup.copy_held();
            plant(Bug::None);
            held.expect("held");
            backup.finish().and_then(BackedUp::durable).expect("finished");
            bounds.push((from, done.load(Ordering::SeqCst)));
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(objects);
    store.close().expect("closed");
    let mut wrong = Vec::new();
    for (round, (from, to)) in bounds.into_iter().enumerate() {
        match number_in(&keep.path().join(format!("copy{round}"))) {
            Ok(found) if from <= found && found <= to + 1 => {}
            other => wrong.push(format!("copy {round}: {from} <= {other:?} <= {to}")),
        }
    }
    wrong
}

#[test]
fn objects_in_a_backup_are_as_one_psync_left_them() {
    let wrong = copies(Bug::None, 6);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_backup_that_does_not_wait_for_psyncs_is_found() {
    // A race: on a machine that does other work, most copies are whole.
    assert!((0..60).any(|_| !copies(Bug::BackupNotQuiet, 12).is_empty()));
}

/// A store whose journal of objects was put back, after the records in it had been recovered.
fn put_back(dir: &Path) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let format =
        FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid: None };
    cenote_store::format(medium, &format).expect("format");
    let journal = dir.join("journal");
    let mut old = Vec::new();
    for value in [1, 2] {
        let (store, objects) = open(dir).expect("open");
        if value == 1 {
            objects.pcreate_with("a", LEN, None, &ObjectOptions::default()).expect("created");
        }
        let mut object = objects.attach("a", Permission::ReadWrite, None).expect("attached");
        object.as_mut_slice().expect("writable").fill(value);
        object.psync().expect("psync");
        if value == 1 {
            old = std::fs::read(&journal).expect("read");
        }
        object.detach().expect("detached");
        drop(objects);
        store.close().expect("close");
    }
    std::fs::write(&journal, old).expect("put back");
}

/// A backup by a session without objects.
fn back_up(dir: &Path, copy: &Path) -> Result<(), String> {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let mut backup = raw(&store).begin_backup(copy).expect("begun");
    backup.copy_ahead(&mut |_, _| true).map_err(|error| error.to_string())?;
    backup.copy_held().map_err(|error| error.to_string())?;
    backup.finish().map(drop).map_err(|error| error.to_string())
}

#[test]
fn a_journal_that_was_put_back_is_in_no_backup() {
    let keep = tempfile::tempdir().expect("a directory");
    let (dir, copy) = (keep.path().join("store"), keep.path().join("copy"));
    std::fs::create_dir(&dir).expect("made");
    put_back(&dir);
    let refused = back_up(&dir, &copy).expect_err("a journal that was put back");
    assert!(refused.contains("put back"), "{refused}");
    assert!(!copy.exists());
    plant(Bug::BackupUnchecked);
    let made = back_up(&dir, &copy);
    plant(Bug::None);
    assert_eq!(made, Ok(()), "the bug was not found");
    // Not even that copy serves it.
    assert!(open(&copy).expect_err("a journal that was put back").contains("put back"));
}

#[test]
fn a_store_whose_journal_of_objects_is_missing_is_in_no_backup() {
    let keep = tempfile::tempdir().expect("a directory");
    let (dir, copy) = (keep.path().join("store"), keep.path().join("copy"));
    std::fs::create_dir(&dir).expect("made");
    put_back(&dir);
    std::fs::remove_file(dir.join("journal")).expect("removed");
    let refused = back_up(&dir, &copy).expect_err("a journal that is missing");
    assert!(refused.contains("journal") && refused.contains("missing"), "{refused}");
    assert!(!copy.exists());
    plant(Bug::BackupUnchecked);
    let made = back_up(&dir, &copy);
    plant(Bug::None);
    assert_eq!(made, Ok(()), "the bug was not found");
    // Its objects could not be opened.
    assert!(open(&copy).expect_err("a journal that is missing").contains("missing"));
}
