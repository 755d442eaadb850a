//! Seals of closes: an older file of one pool is refused, whatever was damaged before. Each close
//! has a seal of its own, also where a lost copy of the superblock had all stamps accepted; and a
//! damaged pool costs no other pool its proof.

use crate::hot_copies::{add, damaged, made, opened, shows, written};
use crate::support::directory;
use cenote::{CopyPolicy, Result, Store};
use cenote_layout::puddle::{PuddleHeader, Role};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::directories;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use zerocopy::FromBytes;

/// Contents of the files of heaps, by their paths within the store.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

pub(crate) fn files(dir: &Path) -> Files {
    let directories = ["puddles", "primary"].map(|name| dir.join(name));
    let there = directories.iter().filter(|of| of.exists());
    let entries = there.flat_map(|of| fs::read_dir(of).unwrap());
    let read = entries.map(|entry| entry.unwrap().path()).map(|path| {
        let bytes = fs::read(&path).unwrap();
        (path.strip_prefix(dir).unwrap().to_owned(), bytes)
    });
    read.filter(|(_, bytes)| bytes[104] == Role::Heap as u8).collect()
}

/// What the pools of copies of a closed store show, in each of which one file that has changed is
/// as it was before.
pub(crate) fn put_back(dir: &Path, older: &Files, policy: CopyPolicy) -> Vec<[Result<u64>; 3]> {
    let newer = files(dir);
    let changed = newer.iter().filter(|(path, bytes)| older.get(*path) != Some(bytes));
    let shown = changed.map(|(path, _)| {
        let keep = directory();
        directories::copy(dir, keep.path());
        let dir = keep.path().join("store");
        fs::write(dir.join(path), &older[path]).unwrap();
        let store = opened(&dir, policy).expect("a closed store");
        ["direct", "shadowed", "idle"].map(|name| shows(&store, name))
    });
    shown.collect()
}

pub(crate) fn refused(shown: &[[Result<u64>; 3]]) -> usize {
    shown.iter().filter(|pools| pools.iter().any(damaged)).count()
}

/// A session that is killed, loses a copy of the superblock, and is followed by one that closes.
fn closed_after_a_loss(dir: &Path, copy: usize) {
    let store = Store::open(dir).unwrap();
    drop(written(&store));
    store.abandon();
    let superblock = dir.join("superblock");
    let mut bytes = fs::read(&superblock).unwrap();
    let half = bytes.len() / 2;
    bytes[copy * half + 64] ^= 1;
    fs::write(&superblock, bytes).unwrap();
    let store = opened(dir, CopyPolicy::Refuse).expect("one copy is left");
    drop(written(&store));
    store.close().unwrap();
}

#[test]
fn a_file_of_an_earlier_close_is_refused_also_after_a_copy_of_the_superblock_was_lost() {
    for copy in [0, 1] {
        let keep = directory();
        let dir = made(keep.path());
        closed_after_a_loss(&dir, copy);
        let older = files(&dir);
        closed_after_a_loss(&dir, copy);
        let shown = put_back(&dir, &older, CopyPolicy::Refuse);
        assert!(shown.len() >= 3 && refused(&shown) == shown.len(), "{shown:?}");
    }
}

/// A session is killed; a copy of its store is accepted, with all stamps, written, and closed.
fn closed_after_a_copy(keep: &Path, dir: &Path, number: usize) -> PathBuf {
    opened(dir, CopyPolicy::CheckAndOpen).unwrap().abandon();
    let to = keep.join(number.to_string());
    fs::create_dir(&to).unwrap();
    directories::copy(dir, &to);
    let copy = to.join("store");
    let store = opened(&copy, CopyPolicy::CheckAndOpen).expect("a copy that is accepted");
    add(&store.pool("idle").unwrap());
    store.close().unwrap();
    copy
}

/// Files of a copy that are put back into a copy of that copy, and how many were refused.
fn copied_twice(bug: Bug) -> (usize, usize) {
    let keep = directory();
    let dir = made(keep.path());
    plant(bug);
    let first = closed_after_a_copy(keep.path(), &dir, 1);
    let older = files(&first);
    let second = closed_after_a_copy(keep.path(), &first, 2);
    plant(Bug::None);
    let shown = put_back(&second, &older, CopyPolicy::CheckAndOpen);
    (shown.len(), refused(&shown))
}

#[test]
fn closes_that_end_the_era_of_all_stamps_have_seals_of_their_own() {
    let (all, found) = copied_twice(Bug::None);
    assert!(all >= 1 && found == all, "{found} of {all}");
    let (all, found) = copied_twice(Bug::SealOfAny);
    assert!(found < all, "{found} of {all}");
}

/// The file of a pool that is in use.
pub(crate) fn root_file(dir: &Path, store: &Store, name: &str) -> PathBuf {
    let pool = store.pool(name).unwrap().id();
    let is_of = |bytes: &[u8]| PuddleHeader::read_from_prefix(bytes).unwrap().0.pool == pool;
    let mut files = files(dir).into_iter();
    dir.join(files.find(|(_, bytes)| is_of(bytes)).expect("its file").0)
}

/// The file of pool "direct" is away when its session ends, and while others are written. Files put
/// back and refused: while it is away, and after it came back and was written.
fn beside_a_damaged_pool(bug: Bug) -> [(usize, usize); 2] {
    let keep = directory();
    let dir = made(keep.path());
    let away = keep.path().join("away");
    let store = Store::open(&dir).unwrap();
    drop(written(&store));
    let direct = root_file(&dir, &store, "direct");
    fs::rename(&direct, &away).unwrap();
    plant(bug);
    store.close().unwrap();
    plant(Bug::None);
    let mut results = Vec::new();
    for back in [false, true] {
        if back {
            fs::rename(&away, &direct).unwrap();
            let store = opened(&dir, CopyPolicy::Refuse).unwrap();
            assert_eq!(shows(&store, "direct").unwrap(), 2, "it is whole again");
            store.close().unwrap();
        }
        let older = files(&dir);
        let store = opened(&dir, CopyPolicy::Refuse).unwrap();
        assert_eq!(shows(&store, "direct").is_ok(), back);
        let names = ["shadowed", "idle", "direct"];
        names.iter().take(2 + usize::from(back)).for_each(|name| add(&store.pool(name).unwrap()));
        plant(bug);
        store.close().unwrap();
        plant(Bug::None);
        let shown = put_back(&dir, &older, CopyPolicy::Refuse);
        results.push((shown.len(), refused(&shown)));
    }
    [results[0], results[1]]
}

#[test]
fn a_damaged_pool_costs_no_other_pool_its_proof_and_has_its_own_again_when_it_is_whole() {
    let [away, back] = beside_a_damaged_pool(Bug::None);
    assert!(away.0 >= 3 && away.0 == away.1, "{away:?}");
    assert!(back.0 >= 4 && back.0 == back.1, "{back:?}");
    let [away, _] = beside_a_damaged_pool(Bug::EraKept);
    assert!(away.1 < away.0, "{away:?}");
}
