//! The number of mappings is bounded: an object that is stored into page by page, here and there,
//! leaves the program its mappings, and every psync is exact. The limit is the process's, so these
//! tests have a program of their own, and run one after the other.

use cenote_medium::planted::{Bug, plant};
use cenote_medium::{MediumError, MediumOptions, RealMedium};
use cenote_object::{
    Attached, Mechanism, ObjectError, Objects, ObjectsOptions, Permission, Store, Trim,
};
use cenote_store::{FormatOptions, OpenOptions};
use cenote_sys::mappings;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

const PAGE: usize = 4096;
/// Pages of the object of the short parts.
const PAGES: usize = 16 << 10;
/// Stores between two counts: a count takes the kernel milliseconds.
const EVERY: usize = 1000;
/// How far the limit of the short parts lies beyond what the process has. At half of it, pages
/// change their protection in chunks; a count of other threads' mappings may be as old as 512.
const ROOM: u64 = 4000;

/// A directory in memory, if it can be had: a disk takes minutes to free scattered pages.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

fn open(dir: &Path) -> (Store, Objects) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let options = ObjectsOptions {
        mechanism: Some(Mechanism::Mprotect),
        trim: Trim::Background,
        ..ObjectsOptions::default()
    };
    let objects = Objects::open(&store, &options).expect("objects");
    (store, objects)
}

fn format(dir: &Path, pages: usize) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    cenote_store::format(medium, &FormatOptions::default()).expect("format");
    let (store, objects) = open(dir);
    objects.pcreate("object", (pages * PAGE) as u64, None, 0o600).expect("create");
    drop(objects);
    store.close().expect("close");
}

fn now() -> u64 {
    std::fs::read("/proc/self/maps")
        .expect("readable")
        .iter()
        .filter(|byte| **byte == b'\n')
        .count() as u64
}

/// Mappings that touch an object's memory: threads that begin meanwhile map elsewhere.
fn of_object(objects: &Objects) -> Vec<String> {
    let object = objects.info("object").expect("an object").object;
    let (from, to) = (object.data_addr(), object.data_addr() + object.record.data_len);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let touches = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        range.is_some_and(|(start, end)| number(start) < to && number(end) > from)
    };
    maps.lines().filter(touches).map(str::to_owned).collect()
}

/// What the kernel says when the program maps something that no neighbour joins.
fn host_maps() {
    let kept: Vec<_> = (0..64)
        .map(|number| {
            let region = cenote_sys::memory::anonymous(3 * PAGE).expect("the program may map");
            let at = region.as_ptr() as usize + PAGE;
            // SAFETY: a page of a region of this function, which is not touched.
            unsafe { cenote_sys::memory::protect(at, PAGE, None) }.expect("and protect");
            (number, region)
        })
        .collect();
    drop(kept);
}

/// Stores one byte into each of `pages`, and returns the most mappings that there were.
fn store(
    object: &mut Attached,
    pages: impl Iterator<Item = usize>,
    value: u8,
    model: &mut [u8],
) -> u64 {
    let mut most = 0;
    let bytes = object.as_mut_slice().expect("writable");
    for (number, page) in pages.enumerate() {
        bytes[page * PAGE + page % PAGE] = value;
        model[page] = value;
        if number % EVERY == 0 {
            most = most.max(now());
        }
    }
    most.max(now())
}

/// Another session reads what was psynced.
fn compare(dir: &Path, model: &[u8]) {
    let (store, objects) = open(dir);
    let object = objects.attach("object", Permission::Read, None).expect("attach");
    for (page, value) in model.iter().enumerate() {
        let bytes = &object.as_slice()[page * PAGE..][..PAGE];
        let rest = bytes.iter().enumerate().any(|(at, byte)| at != page % PAGE && *byte != 0);
        assert!(!rest && bytes[page % PAGE] == *value, "page {page}");
    }
    drop(object);
    drop(objects);
    store.close().expect("close");
}

/// Rounds of scattered stores and psyncs. Returns the most mappings beyond those at the beginning.
fn rounds(dir: &Path, rounds: u8, seed: u64) -> u64 {
    let (store_of_it, objects) = open(dir);
    let mut object = objects.attach("object", Permission::ReadWrite, None).expect("attach");
    let mut model: Vec<u8> =
        (0..PAGES).map(|page| object.as_slice()[page * PAGE + page % PAGE]).collect();
    let (before, mut most, mut random) = (now(), 0, seed);
    for round in 0..rounds {
        let mut next = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize
        };
        let value = round.wrapping_add(seed as u8) | 1;
        let pages: Vec<usize> = match round % 3 {
            0 => (usize::from(round) % 2..PAGES).step_by(2).collect(),
            1 => (0..3000).map(|_| next() % PAGES).collect(),
            _ => (0..40).map(|_| next() % PAGES).collect(),
        };
        most = most.max(store(&mut object, pages.iter().copied(), value, &mut model));
        host_maps();
        let done = object.psync().expect("psync");
        let mut distinct = pages;
        distinct.sort_unstable();
        distinct.dedup();
        assert!(done.pages as usize <= distinct.len(), "pages that did not change were written");
        most = most.max(now());
    }
    object.detach().expect("detach");
    drop(objects);
    store_of_it.close().expect("close");
    compare(dir, &model);
    most - before.min(most)
}

/// An object is attached, or refused before anything is mapped.
fn near_the_limit(dir: &Path) {
    let (store, objects) = open(dir);
    mappings::set_limit(now());
    let before = of_object(&objects);
    match objects.attach("object", Permission::ReadWrite, None) {
        Err(error @ ObjectError::Medium(MediumError::Mappings { .. })) => {
            let said = error.to_string();
            assert!(said.contains("vm.max_map_count") && said.contains("sysctl -w"), "{said}");
            assert_eq!(error.errno(), 12, "ENOMEM");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(of_object(&objects), before, "something is half mapped");
    mappings::set_limit(65_530);
    // The failure has left nothing: it is free to be written.
    let object = objects.attach("object", Permission::ReadWrite, None).expect("attached");
    drop(object);
    drop(objects);
    store.close().expect("close");
}

#[test]
fn stores_here_and_there_leave_the_program_its_mappings_and_every_psync_is_exact() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = directory();
    format(dir.path(), PAGES);
    let limit = now() + ROOM;
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("CENOTE_SEED={seed}, limit {limit}");
    mappings::set_limit(limit);
    let bounded = rounds(dir.path(), 9, seed);
    assert!(bounded <= limit / 4 * 3, "{bounded} mappings more, of {limit}");
    // Without the bound the same stores take two mappings a page.
    plant(Bug::MappingsUnbounded);
    let unbounded = rounds(dir.path(), 1, seed + 1);
    plant(Bug::None);
    assert!(unbounded > limit, "the bug was not found: {unbounded} mappings more, of {limit}");
    near_the_limit(dir.path());
}

/// The kernel's own limit, and more pages than it has mappings. Without the bound the process
/// aborts at the first allocation that needs a mapping.
#[test]
fn at_the_kernels_own_limit_the_program_goes_on() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("readable");
    let limit: usize = limit.trim().parse().expect("a number");
    if limit >= 200_000 {
        println!("skipped: vm.max_map_count is {limit}: coming near it takes too long");
        return;
    }
    mappings::set_limit(limit as u64);
    let pages = 2 * (limit + 6000);
    let dir = directory();
    format(dir.path(), pages);
    let (store_of_it, objects) = open(dir.path());
    let mut object = objects.attach("object", Permission::ReadWrite, None).expect("attach");
    let mut model = vec![0; pages];
    let most = store(&mut object, (0..pages).step_by(2), 3, &mut model);
    println!("{most} mappings of {limit} after stores into {} pages", pages / 2);
    assert!(most < limit as u64 / 4 * 3, "{most} mappings of {limit}");
    host_maps();
    let allocated: Vec<Vec<u8>> = (0..2000).map(|_| vec![1; 256 << 10]).collect();
    assert!(allocated.iter().all(|bytes| bytes[100 << 10] == 1));
    drop(allocated);
    assert_eq!(object.psync().expect("psync").pages as usize, pages / 2);
    object.detach().expect("detach");
    drop(objects);
    store_of_it.close().expect("close");
    compare(dir.path(), &model);
}
