//! Snapshots of protected objects are bound to object, name, length and store. With forged trailers
//! and exchanged headers, whose sums fit, a restore with the key gives the contents under the name
//! that they had, or tells whose they are, or gives nothing.

use crate::common::{self, key, own, protect, the_key, window_base};
use cenote_layout::header::seal;
use cenote_layout::id::Uuid;
use cenote_layout::object::object_data_offset;
use cenote_layout::snapshot::{SNAPSHOT_PIECE_LEN, SnapshotSum, SnapshotTrailer};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_object::{
    Blocks, Mode, ObjectOptions, Objects, Permission, Restored, SnapshotOf, Store,
};
use cenote_store::FormatOptions;
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

const PROTECTED: [Mode; 4] =
    [Mode::Integrity, Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];
const HALF: u64 = 1 << 16;
const SPAN: usize = 3 * 4096;
/// Names, and lengths of as many pages.
const NAMES: [(&str, u64); 2] = [("a", 9000), ("b", 8500)];

/// A snapshot, and what it is of.
struct Taken {
    bytes: Vec<u8>,
    of: SnapshotOf,
    len: u64,
    value: u8,
}

/// A store of this number: snapshots of its objects, and the store without the objects.
fn taken(mode: Mode, number: u8) -> (Vec<Taken>, Image) {
    protect(mode);
    let options = SimOptions { seed: u64::from(number), ..SimOptions::new(Durability::Process) };
    let sim = SimMedium::new(options);
    let uuid = Some(Uuid([number; 16]));
    let format = FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid };
    cenote_store::format(sim.clone(), &format).expect("format");
    let (store, objects) = common::open(&sim, HALF).expect("open");
    let dir = tempfile::tempdir().expect("a directory");
    let mut all = Vec::new();
    for (index, (name, len)) in (0..).zip(NAMES) {
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        objects.pcreate_with(name, len, key(), &options).expect("create");
        for age in [1, 2] {
            let value = number * 16 + index * 4 + age;
            let mut object = objects.attach(name, Permission::ReadWrite, key()).expect("attach");
            object.as_mut_slice().expect("writable").fill(value);
            object.psync().expect("psync");
            object.detach().expect("detach");
            let path = dir.path().join(format!("{name}{age}"));
            objects.snapshot(name, &path, Blocks::Copied).expect("a snapshot");
            let (object, bytes) = (store.object(name).expect("there").id(), std::fs::read(&path));
            let of = SnapshotOf { store: store.uuid(), object, name: name.into(), taken_at_s: 0 };
            all.push(Taken { bytes: bytes.expect("read"), of, len, value });
        }
        objects.pdestroy(name, key()).expect("destroyed");
    }
    drop(objects);
    store.close().expect("close");
    (all, sim.image_now(CrashKind::Process))
}

fn trailer_of(bytes: &[u8]) -> SnapshotTrailer {
    SnapshotTrailer::read_from_bytes(&bytes[bytes.len() - 512..]).expect("a trailer")
}

/// The file with another trailer, and a sum that fits.
fn forged(bytes: &[u8], change: &dyn Fn(&mut SnapshotTrailer)) -> Vec<u8> {
    let (body, _) = bytes.split_at(bytes.len() - 512);
    let mut sum = SnapshotSum::default();
    body.chunks(SNAPSHOT_PIECE_LEN).for_each(|piece| sum.add(piece));
    let mut trailer = trailer_of(bytes);
    change(&mut trailer);
    trailer.sum = sum.value();
    seal(&mut trailer);
    [body, trailer.as_bytes()].concat()
}

fn rename(trailer: &mut SnapshotTrailer, name: &str) {
    trailer.name = [0; 256];
    trailer.name[..name.len()].copy_from_slice(name.as_bytes());
    trailer.name_len = name.len() as u32;
}

/// What an attacker makes of a snapshot who has others.
fn forgeries(one: &Taken, others: &[Taken]) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![("as it is".into(), one.bytes.clone())];
    let mut add = |what: String, bytes: &[u8], change: &dyn Fn(&mut SnapshotTrailer)| {
        all.push((what, forged(bytes, change)));
    };
    for name in ["a", "b", "z"] {
        add(format!("called {name}"), &one.bytes, &|trailer| rename(trailer, name));
    }
    for len in [8193, 8999, 12288] {
        add(format!("{len} bytes"), &one.bytes, &|trailer| trailer.data_len = len);
    }
    for (number, other) in others.iter().enumerate() {
        let theirs = trailer_of(&other.bytes);
        let what = |what: &str| format!("{what} of {number}");
        add(what("store"), &one.bytes, &|trailer| trailer.store = theirs.store);
        add(what("identity"), &one.bytes, &|trailer| trailer.object = theirs.object);
        add(what("trailer"), &one.bytes, &|trailer| *trailer = theirs);
        add(what("name and length"), &one.bytes, &|trailer| {
            rename(trailer, &other.of.name);
            trailer.data_len = theirs.data_len;
        });
        // The header of the protection, or all behind the pages, with either trailer.
        let header = object_data_offset(theirs.size) as usize + SPAN;
        for end in [header + 512, one.bytes.len() - 512] {
            let mut bytes = one.bytes.clone();
            bytes[header..end].copy_from_slice(&other.bytes[header..end]);
            add(what(&format!("header up to {end}")), &bytes, &|_| {});
            add(what(&format!("header up to {end}, and trailer")), &bytes, &|trailer| {
                *trailer = theirs
            });
        }
    }
    all
}

/// How a snapshot is restored.
#[derive(Clone, Copy, Debug)]
enum Call {
    Plain,
    Named(&'static str),
    WithKey(&'static str),
}

const CALLS: [Call; 5] =
    [Call::Plain, Call::Named("a"), Call::Named("n"), Call::WithKey("a"), Call::WithKey("n")];

/// What a restore and an attachment give: what the restore said, the name, and the bytes.
fn served(image: &Image, path: &Path, call: Call) -> Result<(Restored, String, Vec<u8>), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = common::open(&sim, HALF).expect("open");
    let restore = || -> Result<(Restored, String, Vec<u8>), String> {
        let restored = match call {
            Call::Plain => objects.restore(path, None),
            Call::Named(name) => objects.restore(path, Some(name)),
            Call::WithKey(name) => objects.restore_as(path, name, the_key()),
        };
        let restored = restored.map_err(|error| error.to_string())?;
        let name = restored.object.record.name.clone();
        let object =
            objects.attach(&name, Permission::Read, key()).map_err(|error| error.to_string())?;
        let bytes = common::bytes_of(&object)?;
        Ok((restored, name, bytes))
    };
    let served = restore();
    objects.abandon();
    store.abandon();
    served
}

/// Every forgery of every snapshot, by every call. How many were served, and refused.
fn every(mode: Mode) -> Result<[u64; 2], String> {
    let ((mut all, image), (others, _)) = (taken(mode, 1), taken(mode, 2));
    all.extend(others);
    let home = all[0].of.store;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("snapshot");
    let mut counts = [0; 2];
    for one in &all {
        for (what, bytes) in forgeries(one, &all) {
            std::fs::write(&path, &bytes).expect("written");
            for call in CALLS {
                let Ok((restored, name, bytes)) = served(&image, &path, call) else {
                    counts[1] += 1;
                    continue;
                };
                counts[0] += 1;
                let of = SnapshotOf { taken_at_s: 0, ..restored.of };
                // The pages may be those of another one of the two, if its tree came along.
                let is_true = |truth: &Taken| {
                    let same = of == truth.of && bytes.len() as u64 == truth.len;
                    let contents = bytes.iter().all(|byte| *byte == truth.value);
                    let place = name == truth.of.name && truth.of.store == home;
                    same && (contents || !mode.has_tree())
                        && (place || !matches!(call, Call::Plain))
                };
                if !all.iter().any(is_true) {
                    let found = (bytes.len(), bytes[0]);
                    return Err(format!(
                        "{mode}, {call:?}, {:?} {what}: \"{name}\" is served, {found:?}, {of:?}",
                        one.of
                    ));
                }
            }
        }
    }
    Ok(counts)
}

#[test]
fn a_snapshot_that_says_another_object_name_length_or_store_is_refused_or_told() {
    for mode in PROTECTED {
        let [served, refused] = every(mode).unwrap_or_else(|error| panic!("{error}"));
        println!("{mode}: {served} are served, {refused} are refused");
        assert!(served > 20 && refused > 500, "{mode}: {served} {refused}");
    }
    protect(Mode::None);
}

#[test]
fn a_new_name_for_what_was_bound_to_another_one_is_found() {
    plant(Bug::ReboundUnchecked);
    let found = every(Mode::Authenticated);
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}

/// The file of object "a" is put back in a closed store; a snapshot is taken of it, restored in its
/// place, and served: that would make a state of its own out of the mixture.
fn laundered(mode: Mode) -> Result<u8, String> {
    protect(mode);
    let sim = SimMedium::from_image_unrecorded(&common::base_image(HALF));
    let mut files = Vec::new();
    let open = || -> (Store, Objects) { common::open(&sim, HALF).expect("open") };
    for value in [1, 2] {
        let (store, objects) = open();
        let mut object = objects.attach("a", Permission::ReadWrite, key()).expect("attach");
        object.as_mut_slice().expect("writable").fill(value);
        object.psync().expect("psync");
        object.detach().expect("detach");
        let file = store.object("a").expect("there").file();
        drop(objects);
        store.close().expect("close");
        files.push((file.clone(), sim.read(&file).expect("read")));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.snap");
    let (file, old) = &files[0];
    own(&*sim).write_at(file, 0, old).expect("put back");
    let (store, objects) = open();
    let result = objects.snapshot("a", &path, Blocks::Copied).map_err(|error| error.to_string());
    let result = result.and_then(|_| {
        objects.pdestroy("a", None).expect("destroyed");
        objects.restore(&path, None).expect("restored");
        let object =
            objects.attach("a", Permission::Read, key()).map_err(|error| error.to_string())?;
        Ok(common::bytes_of(&object)?[0])
    });
    objects.abandon();
    store.abandon();
    protect(Mode::None);
    result
}

#[test]
fn no_snapshot_is_taken_of_an_object_whose_file_was_put_back() {
    for mode in [Mode::Integrity, Mode::EncryptionIntegrity, Mode::Authenticated] {
        let refused = laundered(mode).expect_err("it was put back");
        assert!(refused.contains("put back"), "{mode}: {refused}");
    }
}

#[test]
fn a_snapshot_of_what_the_journal_does_not_list_is_found() {
    plant(Bug::SnapshotUnlisted);
    let served = laundered(Mode::Authenticated);
    plant(Bug::None);
    assert_eq!(served, Ok(1), "the bug was not found");
}
