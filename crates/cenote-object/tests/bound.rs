//! What the catalog says of a protected object is under the object's key: names that were swapped,
//! lengths, modes and identities that were changed, each with checksums that fit, are refused in
//! every mode that has a key, and where hashes are all there is.

use crate::common::{self, base_image, bytes_of, key_of, own, protect, the_key};
use cenote_layout::catalog::{Record, decode_frame, encode_frame};
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium};
use cenote_object::{Mode, Permission};

const PROTECTED: [Mode; 4] =
    [Mode::Integrity, Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];

/// A store with objects of one mode under one key, each full of a value of its own, closed.
fn filled(mode: Mode) -> Image {
    protect(mode);
    let sim = SimMedium::from_image_unrecorded(&base_image(1 << 16));
    let mut world = common::World::open(&sim, 1 << 16).expect("open");
    for (object, value) in world.attached.iter_mut().zip(1..) {
        object.as_mut_slice().expect("writable").fill(value);
        object.psync().expect("psync");
    }
    world.close().expect("close");
    sim.image_now(CrashKind::Process)
}

/// Changes the catalog's records, in both files, with checksums that fit. How many records were
/// changed.
fn forge(sim: &SimMedium, change: &mut dyn FnMut(&mut Record) -> bool) -> u64 {
    let mut changed = 0;
    for file in ["catalog.0", "catalog.1"] {
        let bytes = sim.read(file).expect("read");
        let (mut at, mut out) = (0, Vec::new());
        while at < bytes.len() {
            let mut frame = decode_frame(&bytes[at..]).expect("a frame");
            at += frame.len;
            changed += u64::from(change(&mut frame.record));
            let place = (frame.index, frame.last);
            encode_frame((frame.batch, frame.journals), place, &frame.record, &mut out);
        }
        own(sim).truncate(file, out.len() as u64).expect("truncate");
        own(sim).write_at(file, 0, &out).expect("write");
    }
    changed
}

/// What a forged catalog gives of an object: refused, or its contents.
fn taken(sim: &std::sync::Arc<SimMedium>, name: &str) -> Result<Vec<u8>, String> {
    let (store, objects) = common::open(sim, 1 << 16).expect("open");
    let got = objects.attach(name, Permission::Read, common::key());
    let got = got.map_err(|error| error.to_string()).and_then(|object| bytes_of(&object));
    objects.abandon();
    store.abandon();
    got
}

/// What a forged catalog says, the name that is asked for then, and what changes its records.
type Change = (&'static str, &'static str, Box<dyn FnMut(&mut Record) -> bool>);

fn changes(mode: Mode) -> Vec<Change> {
    let other = |mode: Mode| match mode {
        Mode::Encryption => Mode::EncryptionIntegrity,
        _ => Mode::Encryption,
    };
    let swap = |record: &mut Record| match record {
        Record::Object(object) if object.name == "a" => {
            object.name = "b".into();
            true
        }
        Record::Object(object) if object.name == "b" => {
            object.name = "a".into();
            true
        }
        _ => false,
    };
    let of_a = |change: fn(&mut cenote_store::ObjectRecord)| {
        move |record: &mut Record| match record {
            Record::Object(object) if object.name == "a" => {
                change(object);
                true
            }
            _ => false,
        }
    };
    vec![
        ("names swapped", "a", Box::new(swap)),
        ("names swapped", "b", Box::new(swap)),
        ("another name", "z", Box::new(of_a(|object| object.name = "z".into()))),
        ("one byte shorter", "a", Box::new(of_a(|object| object.data_len -= 1))),
        ("most of a page shorter", "a", Box::new(of_a(|object| object.data_len -= 4000))),
        (
            "another mode",
            "a",
            Box::new(move |record| match record {
                Record::Object(object) if object.name == "a" => {
                    object.at_rest = cenote_store::AtRest::of(other(mode));
                    true
                }
                _ => false,
            }),
        ),
        (
            "no protection",
            "a",
            Box::new(of_a(|object| object.at_rest = cenote_store::AtRest::None)),
        ),
    ]
}

/// Each file in the place of the other, with the right header page.
fn other_file(image: &Image, mode: Mode) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = common::open(&sim, 1 << 16).expect("open");
    let infos: Vec<_> = ["b", "still"].map(|name| store.object(name).expect("it is there")).into();
    objects.abandon();
    store.abandon();
    drop(objects);
    let (from, to) = (&infos[1], &infos[0]);
    let bytes = sim.read(&from.file()).expect("read");
    own(&*sim)
        .write_at(&to.file(), to.data_offset(), &bytes[from.data_offset() as usize..])
        .expect("write");
    match taken(&sim, "b") {
        Err(_) => Ok(()),
        Ok(bytes) => {
            Err(format!("{mode}: another file in its place is served, {} bytes", bytes.len()))
        }
    }
}

/// Every forgery of records of objects `a` and `b`. The first that is not refused.
fn forgeries(mode: Mode) -> Result<(), String> {
    let image = filled(mode);
    for (what, name, mut change) in changes(mode) {
        let sim = SimMedium::from_image_unrecorded(&image);
        if forge(&sim, &mut change) == 0 {
            return Err(format!("{mode}, {what}: there was nothing to forge"));
        }
        // Only the length of the file tells a mode without a key from none.
        if let Ok(bytes) = taken(&sim, name) {
            return Err(format!(
                "{mode}, {what}: \"{name}\" is served, {} bytes of {}",
                bytes.len(),
                bytes[0]
            ));
        }
    }
    other_file(&image, mode)
}

#[test]
fn names_lengths_modes_and_identities_are_bound() {
    for mode in PROTECTED {
        forgeries(mode).unwrap_or_else(|error| panic!("{error}"));
    }
    protect(Mode::None);
}

#[test]
fn a_binding_that_is_not_compared_is_found() {
    plant(Bug::BindingIgnored);
    let found = forgeries(Mode::Authenticated);
    plant(Bug::None);
    println!("{}", found.expect_err("the bug was not found"));
    protect(Mode::None);
}

/// The name follows the object only with its key: see `snapshot.rs` for the way.
#[test]
fn a_restored_object_is_bound_to_its_new_name() {
    let image = filled(Mode::Authenticated);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snap");
    let sim = SimMedium::from_image_unrecorded(&image);
    let (store, objects) = common::open(&sim, 1 << 16).expect("open");
    objects.snapshot("a", &path, cenote_object::Blocks::Copied).expect("a snapshot");
    objects.pdestroy("a", None).expect("destroyed");
    objects.restore_as(&path, "c", &key_of(9)).expect_err("a wrong key");
    objects.restore_as(&path, "c", the_key()).expect("restored");
    assert!(objects.attach("c", Permission::Read, Some(the_key())).is_ok());
    objects.abandon();
    store.abandon();
    drop(objects);
    let renamed = &mut |record: &mut Record| match record {
        Record::Object(object) if object.name == "c" => {
            object.name = "a".into();
            true
        }
        _ => false,
    };
    assert!(forge(&sim, renamed) > 0);
    assert!(taken(&sim, "a").is_err(), "the name that it had");
    protect(Mode::None);
}
