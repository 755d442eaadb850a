//! Protected objects that were changed behind their back: it is found, page by page, and everything
//! else stays readable.

use crate::at_rest::{PATTERN, holds, key_for, random, real, simulated};
use crate::common::{self, own, the_key};
use cenote_layout::at_rest::Regions;
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::SimMedium;
use cenote_object::{Attached, Mode, ObjectError, ObjectInfo, ObjectOptions, Objects, Permission};
use cenote_testkit::child::again;
use std::path::Path;

/// Where an object's pages, side data and header lie in its file.
struct Places {
    file: String,
    data: u64,
    regions: u64,
    inner: Regions,
}

fn places(info: &ObjectInfo) -> Places {
    let pages = info.record.data_len.div_ceil(4096);
    let inner = Regions::new(info.record.at_rest.mode(), pages).expect("regions");
    Places {
        file: info.file(),
        data: info.data_offset(),
        regions: info.data_offset() + info.regions_offset(),
        inner,
    }
}

fn flip(sim: &SimMedium, file: &str, at: u64, mask: u8) {
    let mut byte = [0];
    sim.read_at(file, at, &mut byte).expect("read");
    own(sim).write_at(file, at, &[byte[0] ^ mask]).expect("written");
}

#[test]
fn a_damaged_page_is_named_and_the_others_stay_readable() {
    for mode in [Mode::Integrity, Mode::EncryptionIntegrity, Mode::Authenticated] {
        let (sim, _store, objects) = simulated(64 << 20);
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        let info = objects.pcreate_with("a", 40 * 4096, key_for(mode), &options).expect("create");
        let mut a = objects.attach("a", Permission::ReadWrite, key_for(mode)).expect("attach");
        a.as_mut_slice().expect("writable").fill(7);
        a.psync().expect("psync");
        a.detach().expect("detach");
        let at = places(&info);
        flip(&sim, &at.file, at.data + 17 * 4096 + 99, 4);
        flip(&sim, &at.file, at.data + 30 * 4096, 128);
        let a = objects
            .attach("a", Permission::Read, key_for(mode))
            .expect("attach does not look at pages");
        let mut page = [0; 4096];
        for number in 0..40 {
            let read = a.read_at(number * 4096, &mut page);
            match read {
                Err(ObjectError::PageDamaged { name, page, .. }) => {
                    assert_eq!(name, "a");
                    assert!(page == number && [17, 30].contains(&number), "{mode}: {number}");
                }
                Ok(()) => {
                    assert!(page == [7; 4096] && ![17, 30].contains(&number), "{mode}: {number}")
                }
                other => panic!("{other:?}"),
            }
        }
        let error = a.load(16 * 4096, 4 * 4096).expect_err("page 17");
        assert!(error.to_string().contains("page 17 of object \"a\""), "{error}");
        assert_eq!(error.errno(), 5);
        let found = a.verify(&mut |_, _| true);
        assert_eq!((found.covered, found.pages), (true, 40));
        assert_eq!(found.damaged.iter().map(|(page, _)| *page).collect::<Vec<_>>(), [17, 30]);
        assert_eq!(a.verify(&mut |done, _| done < 16).pages, 16, "stopped");
        a.load(40 * 4096, 1).expect_err("behind the end");
    }
}

const CHILD: &str = "CENOTE_AT_REST_CHILD";

/// Not a test of its own: touches page 3 of an object of which that page is damaged.
#[test]
fn child_touches_a_damaged_page() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let (_store, objects) = real(Path::new(&dir), false);
    let object = objects.attach("a", Permission::Read, Some(the_key())).expect("attach");
    println!("whole: {}", object.as_slice()[2 * 4096]);
    println!("damaged: {}", object.as_slice()[3 * 4096]);
}

#[test]
fn a_load_from_a_damaged_page_is_a_bus_error_with_a_message() {
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().expect("a directory");
    let (store, objects) = real(dir.path(), true);
    let info = objects.pcreate("a", 8 * 4096, Some(the_key()), 0o600).expect("create");
    let mut a = objects.attach("a", Permission::ReadWrite, Some(the_key())).expect("attach");
    a.as_mut_slice().expect("writable").fill(42);
    a.psync().expect("psync");
    drop(a);
    drop(objects);
    store.close().expect("close");
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).open(dir.path().join(info.file())).expect("file");
    let (mut byte, at) = ([0], info.data_offset() + 3 * 4096);
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("written");
    let ran = again("at_rest_damage::child_touches_a_damaged_page")
        .arg("--test-threads=1")
        .env(CHILD, dir.path())
        .output()
        .expect("ran");
    let (out, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(out.contains("whole: 42") && !out.contains("damaged:"), "{out}");
    assert_eq!(ran.status.signal(), Some(7), "{:?} {errors}", ran.status);
    assert!(errors.contains("page 3 of object \"a\" is damaged"), "{errors}");
}

const COUNT: usize = 1000;
const MODES: [Mode; 3] = [Mode::EncryptionIntegrity, Mode::Authenticated, Mode::Integrity];

fn mode_of(number: usize) -> Mode {
    MODES[number % MODES.len()]
}

/// Psyncs the pattern and something else in every page.
fn fill(object: &mut Attached, version: u8) {
    let bytes = object.as_mut_slice().expect("writable");
    for (page, bytes) in (0u8..).zip(bytes.chunks_mut(4096)) {
        bytes.fill(page + 3 * version);
        bytes[..PATTERN.len()].copy_from_slice(PATTERN);
    }
    object.psync().expect("psync");
}

/// Page 0 of an object and its side data, as an earlier psync left them.
type Older = (Vec<u8>, Vec<u8>);

/// Makes [`COUNT`] objects that were psynced twice.
fn make(sim: &SimMedium, objects: &Objects) -> Vec<(ObjectInfo, Older)> {
    let one = |number| {
        let (name, mode) = (format!("object {number}"), mode_of(number));
        let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
        let info = objects.pcreate_with(&name, 2 * 4096, key_for(mode), &options).expect("create");
        let mut object =
            objects.attach(&name, Permission::ReadWrite, key_for(mode)).expect("attach");
        fill(&mut object, 1);
        // What is rolled back to later has to be in the file.
        objects.checkpoint().expect("checkpoint");
        let at = places(&info);
        let (mut page, mut side) = (vec![0; 4096], vec![0; 64]);
        sim.read_at(&at.file, at.data, &mut page).expect("read");
        sim.read_at(&at.file, at.regions + at.inner.side, &mut side).expect("read");
        fill(&mut object, 2);
        (info, (page, side))
    };
    (0..COUNT).map(one).collect()
}

/// One change of each: a bit of a page, of a node, of the header, of side data; or a page moved; or
/// one rolled back.
fn change(sim: &SimMedium, made: &[(ObjectInfo, Older)]) {
    let mut seed = 5;
    for (number, (info, older)) in made.iter().enumerate() {
        let (at, has_side) = (places(info), info.record.at_rest.mode().has_side());
        let side_at = at.regions + at.inner.side;
        let bit = 1u8 << (random(&mut seed) % 8);
        match number / 3 % 6 {
            0 | 1 => flip(sim, &at.file, at.data + random(&mut seed) % 8192, bit),
            2 => flip(sim, &at.file, at.regions + at.inner.tree + random(&mut seed) % 64, bit),
            3 => flip(sim, &at.file, at.regions + random(&mut seed) % 512, bit),
            4 => {
                let (mut page, mut side) = (vec![0; 4096], [0; 64]);
                sim.read_at(&at.file, at.data, &mut page).expect("read");
                own(sim).write_at(&at.file, at.data + 4096, &page).expect("written");
                if has_side {
                    sim.read_at(&at.file, side_at, &mut side).expect("read");
                    own(sim).write_at(&at.file, side_at + 64, &side).expect("written");
                }
            }
            _ => {
                let (page, side) = older;
                own(sim).write_at(&at.file, at.data, page).expect("written");
                if has_side {
                    own(sim).write_at(&at.file, side_at, side).expect("written");
                }
            }
        }
    }
}

/// The paper's security test: of 1,000 objects none is disclosed with encryption, and all without;
/// every change is found. Then pages that were moved, and pages that were rolled back with
/// everything that belongs to them but header and tree.
#[test]
fn of_a_thousand_objects_none_is_disclosed_and_every_change_is_found() {
    let (sim, store, objects) = simulated(8 << 30);
    let made = make(&sim, &objects);
    drop(objects);
    store.close().expect("close");

    let mut disclosed = [0usize; 3];
    for (number, (info, _)) in made.iter().enumerate() {
        disclosed[number % 3] +=
            usize::from(holds(&sim.read(&info.file()).expect("read"), PATTERN));
    }
    assert_eq!(disclosed, [0, 0, COUNT / 3], "disclosed of {MODES:?}");
    assert!(
        holds(&sim.read("journal").expect("read"), PATTERN),
        "those without encryption are there"
    );

    change(&sim, &made);
    let (_store, objects) = common::open(&sim, 1 << 16).expect("open");
    let (mut found, mut said) = (0, std::collections::BTreeMap::<String, usize>::new());
    for (number, (info, _)) in made.iter().enumerate() {
        let name = &info.record.name;
        let what = match objects.attach(name, Permission::Read, key_for(mode_of(number))) {
            Err(_) => Some("header".to_owned()),
            Ok(object) => {
                object.verify(&mut |_, _| true).damaged.first().map(|(_, what)| what.clone())
            }
        };
        found += usize::from(what.is_some());
        *said.entry(what.unwrap_or_else(|| format!("not found: {number}"))).or_default() += 1;
    }
    assert_eq!(found, COUNT, "{said:?}");
    let of = |text: &str| {
        said.iter().filter(|(what, _)| what.contains(text)).map(|(_, n)| *n).sum::<usize>()
    };
    assert!(of("rolled back") >= COUNT / 3 / 6 && of("moved here") >= COUNT / 3 / 6, "{said:?}");
    println!("{said:?}");
}

#[test]
fn pages_that_are_not_compared_with_the_tree_are_found() {
    let damaged = |bug| {
        let (sim, _store, objects) = simulated(64 << 20);
        let options = ObjectOptions { at_rest: Mode::EncryptionIntegrity, permissions: 0o600 };
        let info = objects.pcreate_with("a", 4096, Some(the_key()), &options).expect("create");
        let mut a = objects.attach("a", Permission::ReadWrite, Some(the_key())).expect("attach");
        a.as_mut_slice().expect("writable").fill(1);
        a.psync().expect("psync");
        drop(a);
        flip(&sim, &info.file(), info.data_offset() + 9, 1);
        let a = objects.attach("a", Permission::Read, Some(the_key())).expect("attach");
        plant(bug);
        let read = a.read_at(0, &mut [0; 4096]);
        plant(Bug::None);
        read.is_err()
    };
    assert!(damaged(Bug::None));
    assert!(!damaged(Bug::PageNotVerified), "the test would not see the bug");
}
