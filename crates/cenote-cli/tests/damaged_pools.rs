//! One file of one pool of a store is damaged, whichever and however: the store opens, that pool is
//! refused by name, every other pool is read in full and written, and no process dies of it.
//!
//! The store has pools of each kind, with every collection in them. It was closed, or its process
//! ended in the middle of a transaction over two pools, or power failed then. Each file of each
//! pool is harmed in each way; then a child opens the store and reads and writes every pool, and
//! commands look at it.

mod common;

#[path = "damaged_pools/filled.rs"]
mod filled;

use cenote_layout::header::{read, seal};
use cenote_layout::superblock::{COPY_SIZE, Superblock};
use cenote_testkit::child::again;
use cenote_testkit::directories::contents;
use common::run;
use filled::{POOLS, key_bytes};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use zerocopy::IntoBytes;

const PAGE: usize = 4096;

/// How the last process left the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Closed,
    Killed,
    PowerLost,
}

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Remove,
    /// Every read of it is an error.
    Directory,
    Empty,
    Longer,
    Cut(usize),
    Flip(usize),
    Zero(usize),
}

impl Harm {
    /// All of them, for a file of so many pages: header, metadata, data, and the last page.
    fn all(pages: usize) -> Vec<Self> {
        let mut all = vec![Self::Remove, Self::Directory, Self::Empty, Self::Longer];
        for page in [0, 2, pages - 1] {
            all.extend([Self::Cut(page), Self::Flip(page), Self::Zero(page)]);
        }
        all
    }

    fn on(self, path: &Path) {
        let mut bytes = std::fs::read(path).expect("readable");
        match self {
            Self::Remove => return std::fs::remove_file(path).expect("removed"),
            Self::Directory => {
                std::fs::remove_file(path).expect("removed");
                return std::fs::create_dir(path).expect("made");
            }
            Self::Empty => bytes.clear(),
            Self::Longer => bytes.resize(bytes.len() + PAGE, 0),
            Self::Cut(page) => bytes.truncate(page * PAGE + 17),
            Self::Flip(page) => bytes[page * PAGE + 80] ^= 0x10,
            Self::Zero(page) => bytes[page * PAGE..(page + 1) * PAGE].fill(0),
        }
        std::fs::write(path, bytes).expect("written");
    }

    /// Whether the page has no header and no checksum: what was changed there are values.
    fn is_in_values(self) -> bool {
        matches!(self, Self::Flip(page) | Self::Zero(page) if page > 0)
    }
}

/// A store, and its files as they were.
struct Store {
    _dir: tempfile::TempDir,
    path: PathBuf,
    _key: PathBuf,
    whole: BTreeMap<PathBuf, Vec<u8>>,
    /// Of each pool, which are some.
    files: Vec<(String, PathBuf)>,
}

/// This test program, to do one thing with a store.
fn child(what: &str, store: &Path) -> Command {
    let mut child = again("a_child_of_these_tests");
    child.arg("--test-threads=1");
    child.env(filled::STORE, store).env(filled::WHAT, what).env("RUST_BACKTRACE", "0");
    child.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    child
}

#[test]
fn a_child_of_these_tests() {
    if let Some(store) = std::env::var_os(filled::STORE) {
        filled::child(Path::new(&store), &std::env::var(filled::WHAT).expect("what to do"));
    }
}

impl Store {
    fn make(left: Left) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, key) = (dir.path().join("store"), dir.path().join("key"));
        std::fs::write(&key, key_bytes()).expect("a key");
        run(["format".as_ref(), path.as_os_str()]).exits(0);
        let output = child("make", &path).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let mut files = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if let Some((pool, name)) =
                line.strip_prefix("FILE ").and_then(|line| line.split_once(' '))
            {
                files.push((pool.to_owned(), path.join(name)));
            }
        }
        assert!(POOLS.iter().all(|pool| files.iter().any(|(of, _)| of == pool)), "{files:?}");
        if left != Left::Closed {
            let output = child("crash", &path).output().expect("it runs");
            assert_eq!(output.status.signal(), Some(6), "{output:?}");
        }
        if left == Left::PowerLost {
            let superblock = path.join("superblock");
            let mut bytes = std::fs::read(&superblock).expect("readable");
            for copy in bytes.chunks_exact_mut(COPY_SIZE as usize) {
                let Ok(mut block) = read::<Superblock>(copy, true) else { continue };
                block.boot_id.0[3] ^= 0x55;
                seal(&mut block);
                copy.copy_from_slice(block.as_bytes());
            }
            std::fs::write(&superblock, bytes).expect("written");
        }
        let whole = contents(&path);
        Self { _dir: dir, path, _key: key, whole, files }
    }

    /// Makes it what it was. Files keep their inodes, so that it does not pass for a copy.
    fn restore(&self) {
        let now = contents(&self.path);
        for path in now.keys().filter(|path| !self.whole.contains_key(*path)) {
            std::fs::remove_file(path).expect("removed");
        }
        for (path, bytes) in &self.whole {
            if path.is_dir() {
                std::fs::remove_dir(path).expect("removed");
            }
            if now.get(path) != Some(bytes) {
                std::fs::write(path, bytes).expect("written");
            }
        }
    }

    /// What a program finds that opens the store: of each pool "whole", or why it is refused.
    fn read(&self, what: &str) -> Result<BTreeMap<String, String>, String> {
        let output = child(what, &self.path).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(format!("{}: {said}{err}", output.status));
        }
        let lines = said.lines().filter_map(|line| line.strip_prefix("POOL ")?.split_once(": "));
        Ok(lines.map(|(pool, found)| (pool.to_owned(), found.to_owned())).collect())
    }
}

/// Whether a pool may be refused when another one is harmed: they share a transaction that is not
/// decided.
fn shares(left: Left, harmed: &str, other: &str) -> bool {
    left != Left::Closed
        && ["direct", "other"].contains(&harmed)
        && ["direct", "other"].contains(&other)
}

fn every_harm(left: Left) {
    let store = Store::make(left);
    let found = store.read("use").expect("it opens");
    assert_eq!(found.len(), POOLS.len());
    for (pool, found) in &found {
        // Direct pools are not covered by this machine's durability.
        let torn = left == Left::PowerLost && found.contains("power");
        assert!(found == "whole" || torn, "{pool}: {found}");
    }
    store.restore();
    let (mut refused, mut wrong) = (0, Vec::new());
    // Some of all, others each time: each takes a process.
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random = seed.unwrap_or(1_u64);
    println!("CENOTE_SEED={random}, CENOTE_ALL=1 for all");
    let all = std::env::var_os("CENOTE_ALL").is_some();
    for (harmed, file) in &store.files {
        for harm in Harm::all(store.whole[file].len() / PAGE) {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            if !all && random >> 62 != 0 {
                continue;
            }
            let place = file.strip_prefix(&store.path).expect("in the store").display();
            let case = format!("{left:?}, {harm:?} of {place} of {harmed}");
            harm.on(file);
            match store.read(if harm.is_in_values() { "open" } else { "use" }) {
                Err(died) => wrong.push(format!("{case}: {died}")),
                Ok(now) => {
                    for (pool, expected) in &found {
                        let now = now.get(pool).map_or("not tried", String::as_str);
                        if pool != harmed && !shares(left, harmed, pool) {
                            let fine =
                                now == expected || harm.is_in_values() && !now.contains("damaged");
                            wrong.extend((!fine).then(|| format!("{case}: {pool}: {now}")));
                        } else if now != "whole" && expected == "whole" {
                            refused += usize::from(pool == harmed);
                            let named = now.contains(harmed.as_str());
                            wrong.extend((!named).then(|| format!("{case}: {pool}: {now}")));
                        }
                    }
                }
            }
            store.restore();
        }
    }
    for line in &wrong {
        println!("{line}");
    }
    assert!(wrong.is_empty(), "{} cases", wrong.len());
    assert!(refused > store.files.len() / 2, "{refused}");
}

/// A backup has every other pool, and its exit status and its report say which one is damaged.
#[test]
fn a_backup_of_a_store_with_a_damaged_pool_has_all_others() {
    let store = Store::make(Left::Closed);
    let (target, number) = (store.path.with_file_name("copy"), |pool| {
        POOLS.iter().position(|known| known == pool).expect("a pool") + 1
    });
    for (harmed, file) in &store.files {
        // The copy of a pool in shadowed mode has the state that a psync left.
        let copied = !file.starts_with(store.path.join("puddles"))
            || !["shadowed", "second"].contains(&&**harmed);
        for harm in [Harm::Remove, Harm::Flip(0)] {
            harm.on(file);
            let ran = run([
                "backup".as_ref(),
                store.path.as_os_str(),
                target.as_os_str(),
                "--json".as_ref(),
            ]);
            let case = format!("{harm:?} of {} of {harmed}", file.display());
            assert_eq!(ran.status, Some(i32::from(copied)), "{case}: {}{}", ran.out, ran.err);
            let pool = format!("pool {}", number(harmed));
            assert_eq!(ran.out.contains(&pool), copied, "{case}: {}", ran.out);
            let moved = store.path.with_file_name("away");
            std::fs::rename(&store.path, &moved).expect("renamed");
            let found = child("use", &target).output().expect("it runs");
            let said = String::from_utf8_lossy(&found.stdout).into_owned();
            for name in POOLS {
                let whole = said.contains(&format!("POOL {name}: whole"));
                assert_eq!(whole, name != harmed || !copied, "{case}: {name}: {said}");
            }
            std::fs::rename(&moved, &store.path).expect("renamed");
            std::fs::remove_dir_all(&target).expect("removed");
            store.restore();
        }
    }
}

#[test]
fn a_closed_store_opens_and_refuses_the_damaged_pool_alone() {
    every_harm(Left::Closed);
}

#[test]
fn a_store_whose_process_was_killed_opens_and_refuses_the_damaged_pool_alone() {
    every_harm(Left::Killed);
}

#[test]
fn a_store_that_lost_power_opens_and_refuses_the_damaged_pool_alone() {
    every_harm(Left::PowerLost);
}
