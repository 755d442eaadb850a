//! What commands that look tell of a damaged store. If damage makes a program's open fail, `check`
//! has a finding that names the file; `info`, `stats`, `ls` and `verify` do not pass over it.

use crate::common::{Fixture, Ran, empty, run};
use cenote::{
    Access, AtRest, Keyring, Locking, MasterKey, OpenOptions, Persist, PoolMode, PoolOptions, Ptr,
    Reader, Store,
};
use cenote_layout::header::{read, seal};
use cenote_layout::puddle::PuddleHeader;
use cenote_object::{ObjectsOptions, Permission};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zerocopy::IntoBytes as _;

#[derive(Persist, Clone, Copy)]
#[persist(name = "told::Link")]
struct Link {
    next: Option<Ptr<Link>>,
    numbers: [u64; 500],
}

fn key_bytes() -> [u8; 32] {
    core::array::from_fn(|i| (i as u8).wrapping_mul(73) ^ 0x5a)
}

fn keyring() -> Keyring {
    let key = MasterKey::with_locking(&mut key_bytes(), Locking::IfPossible).expect("a key");
    Keyring::new(key).locking(Locking::IfPossible)
}

fn options() -> OpenOptions {
    let key = Some(Arc::new(keyring()));
    OpenOptions { key, accept_unprotected: true, spare_bytes_max: 0, ..OpenOptions::default() }
}

/// A closed store with a pool of each kind and an object of each kind; the first pool has several
/// puddles.
fn filled() -> Fixture {
    let fixture = empty();
    let store = Store::open_with(&fixture.store, &options()).expect("a store");
    for (name, mode, at_rest) in [
        ("direct", PoolMode::Direct, AtRest::None),
        ("shadowed", PoolMode::Shadowed, AtRest::None),
        ("integrity", PoolMode::Shadowed, AtRest::Integrity),
        ("keyed", PoolMode::Shadowed, AtRest::Authenticated),
    ] {
        let key = (name == "keyed").then(|| Arc::new(keyring()));
        let options =
            PoolOptions { mode, at_rest, key, puddle_size: 256 << 10, ..PoolOptions::default() };
        let pool = store.create_pool(name, &options).expect("a pool");
        for number in 0..if name == "direct" { 150 } else { 3 } {
            pool.write(|tx| {
                let next = tx.root::<Link>()?;
                let link = tx.alloc(Link { next, numbers: [number; 500] })?;
                tx.set_root(link)
            })
            .expect("written");
        }
    }
    store.close().expect("closed");
    std::fs::write(fixture.dir.path().join("key"), key_bytes()).expect("written");
    let (dir, key) = (text(&fixture.store), text(&fixture.dir.path().join("key")));
    run(["object", "create", &dir, "plain", "--size", "40K"]).exits(0);
    run(["object", "create", &dir, "whole", "--size", "40K", "--at-rest", "integrity"]).exits(0);
    run(["object", "create", &dir, "secret", "--size", "40K", "--key-file", &key]).exits(0);
    fixture
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

fn check(fixture: &Fixture, more: &[&str]) -> Ran {
    let key = text(&fixture.dir.path().join("key"));
    fixture.run("check", &[&["--key-file", &key], more].concat())
}

/// Why a program cannot use the store, a pool or an object; none: it can.
fn refused(dir: &Path) -> Option<String> {
    let store = match Store::open_with(dir, &options()) {
        Ok(store) => store,
        Err(error) => return Some(error.to_string()),
    };
    let pools = ["direct", "shadowed", "integrity", "keyed"];
    for name in pools {
        if let Err(error) = store.pool_with(name, Access::ReadWrite).map(drop) {
            return Some(error.to_string());
        }
    }
    let objects = match cenote_object::Objects::open(&store.handle(), &ObjectsOptions::default()) {
        Ok(objects) => objects,
        Err(error) => return Some(error.to_string()),
    };
    for (name, key) in [("plain", None), ("whole", None), ("secret", Some(keyring()))] {
        if let Err(error) = objects.attach(name, Permission::ReadWrite, key.as_ref()).map(drop) {
            return Some(error.to_string());
        }
    }
    None
}

fn files(fixture: &Fixture) -> Vec<(PathBuf, Vec<u8>)> {
    let all = fixture.files().into_iter().map(|(path, (bytes, _))| (path, bytes));
    all.filter(|(path, _)| !path.ends_with("lock")).collect()
}

#[derive(Clone, Copy, Debug)]
enum Harm {
    Remove,
    Cut,
    Flip(usize),
}

impl Harm {
    const ALL: [Self; 7] = [
        Self::Remove,
        Self::Cut,
        Self::Flip(0),
        Self::Flip(8),
        Self::Flip(16),
        Self::Flip(40),
        Self::Flip(80),
    ];

    fn on(self, path: &Path, mut bytes: Vec<u8>) {
        match self {
            Self::Remove => return std::fs::remove_file(path).expect("removed"),
            Self::Cut => bytes.truncate(bytes.len() / 4),
            Self::Flip(at) => bytes[at] ^= 0x40,
        }
        std::fs::write(path, bytes).expect("written");
    }
}

/// Where a generator begins: said, so that a failure can be repeated.
fn seed() -> u64 {
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(1);
    println!("CENOTE_SEED={seed}, CENOTE_ALL=1 for all");
    seed
}

/// The next number of a generator.
fn step(random: &mut u64) -> usize {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

/// Makes all files what they were. They keep their inodes, so that it does not pass for a copy.
fn restore(fixture: &Fixture, whole: &[(PathBuf, Vec<u8>)]) {
    for path in fixture.files().keys().filter(|path| !whole.iter().any(|(known, _)| known == *path))
    {
        if !path.ends_with("lock") {
            std::fs::remove_file(path).expect("removed");
        }
    }
    for (path, bytes) in whole {
        if std::fs::read(path).ok().as_ref() != Some(bytes) {
            std::fs::write(path, bytes).expect("written");
        }
    }
}

#[test]
fn what_makes_a_programs_open_fail_is_a_finding() {
    let fixture = filled();
    let whole = files(&fixture);
    assert!(check(&fixture, &[]).exits(0).out.contains("sound: 4 pools and 3 objects checked"));
    let mut random = seed();
    let all = std::env::var_os("CENOTE_ALL").is_some();
    let (mut wrong, mut harmed) = (Vec::new(), 0);
    for (path, bytes) in whole.iter().filter(|(_, bytes)| bytes.len() > 80) {
        for harm in Harm::ALL {
            if !all && !step(&mut random).is_multiple_of(4) {
                continue;
            }
            harm.on(path, bytes.clone());
            let case = format!("{harm:?} of {}", path.display());
            let ran = check(&fixture, &[]);
            let name = path.file_name().and_then(|name| name.to_str()).expect("text");
            let in_pools = path.parent().is_some_and(|parent| parent != fixture.store);
            if let Some(why) = refused(&fixture.store) {
                harmed += 1;
                if ran.status == Some(0) || in_pools && !ran.out.contains(name) {
                    wrong.push(format!("{case}: {why}; check says: {}{}", ran.out, ran.err));
                }
            }
            if ran.out.contains("look with `cenote check")
                || ran.out.contains("restore it from a copy")
            {
                wrong.push(format!("{case}: advice that leads in a circle: {}", ran.out));
            }
            restore(&fixture, &whole);
        }
    }
    assert!(wrong.is_empty(), "{} cases: {}", wrong.len(), wrong.join("\n"));
    assert!(harmed > 5, "{harmed}");
    assert!(refused(&fixture.store).is_none());
}

/// Kinds of findings that are in the range of `dump`, of `dump --pool`, and of `verify`. Other
/// kinds take a look at values, which these do not.
const OF_STORE: [&str; 2] = ["damage", "journal"];
const OF_POOL: [&str; 4] = ["damage", "heap", "root", "unreadable"];
const OF_PROTECTED: [&str; 5] = ["damage", "journal", "object", "page", "unreadable"];

/// Where a finding of `check` is in the range of `dump` or `verify`, they do not end with 0.
#[test]
fn what_check_finds_in_files_is_found_by_dump_and_verify() {
    let fixture = filled();
    let whole = files(&fixture);
    let key = text(&fixture.dir.path().join("key"));
    for command in ["dump", "verify"] {
        fixture.run(command, &["--key-file", &key]).exits(0);
    }
    let mut random = seed();
    let (mut wrong, mut ranges) = (Vec::new(), [0; 3]);
    for (path, bytes) in whole.iter().filter(|(_, bytes)| bytes.len() > 80) {
        for number in 0..4 {
            // Headers of files, and the pages behind them: geometry, roots, descriptors, marks.
            let harm = match number {
                0 => Harm::Remove,
                1 => Harm::Cut,
                2 => Harm::Flip(step(&mut random) % 128 % bytes.len()),
                _ => Harm::Flip(step(&mut random) % bytes.len().min(64 << 10)),
            };
            if std::env::var_os("CENOTE_ALL").is_none() && !step(&mut random).is_multiple_of(8) {
                continue;
            }
            harm.on(path, bytes.clone());
            let ran = check(&fixture, &["--json"]);
            let case = format!("{harm:?} of {}: check says {}", path.display(), ran.out);
            // It could not look: a looker that says so ends with 3, as `check` has.
            let listed = if ran.out.is_empty() { None } else { Some(ran.json()) };
            let findings = listed.as_ref().and_then(|listed| listed["findings"].as_array());
            let findings: Vec<_> = findings.into_iter().flatten().collect();
            let of = |finding: &serde_json::Value, kinds: &[&str]| {
                finding["kind"].as_str().is_some_and(|kind| kinds.contains(&kind))
            };
            let is_protected = |finding: &serde_json::Value| match finding["pool"].as_str() {
                Some(pool) => ["integrity", "keyed"].contains(&pool),
                None => !finding["text"].as_str().is_some_and(|text| text.contains("\"plain\"")),
            };
            let mut ends = |range: usize, command: &str, more: &[&str]| {
                ranges[range] += 1;
                let ran = fixture.run(command, &[&["--key-file", &key], more].concat());
                if ran.status == Some(0) || ran.status.is_none() {
                    wrong.push(format!("{command} {more:?}: {:?}: {case}", ran.status));
                }
            };
            if listed.is_none() || findings.iter().any(|finding| of(finding, &OF_STORE)) {
                ends(0, "dump", &[]);
            }
            let of_protected =
                |finding: &&serde_json::Value| of(finding, &OF_PROTECTED) && is_protected(finding);
            if listed.is_none() || findings.iter().any(of_protected) {
                ends(1, "verify", &[]);
            }
            // A page of a protected pool is in the range of `verify`: `dump` reads no other pages
            // than those of the heap's metadata.
            let is_page =
                |finding: &serde_json::Value| of(finding, &["unreadable"]) && is_protected(finding);
            let of_pools =
                findings.iter().filter(|finding| of(finding, &OF_POOL) && !is_page(finding));
            let pools: BTreeSet<&str> =
                of_pools.filter_map(|finding| finding["pool"].as_str()).collect();
            for pool in pools {
                ends(2, "dump", &["--pool", pool]);
            }
            restore(&fixture, &whole);
        }
    }
    assert!(wrong.is_empty(), "{} cases: {}", wrong.len(), wrong.join("\n"));
    assert!(ranges[0] > 0 && ranges[1] > 0, "{ranges:?}");
}

/// The second puddle of a pool: its header, or its end.
#[test]
fn a_damaged_puddle_is_told_by_each_command_with_its_file() {
    let fixture = filled();
    let whole = files(&fixture);
    let second = whole.iter().find(|(_, bytes)| {
        read::<PuddleHeader>(bytes, false)
            .is_ok_and(|header| header.index == 1 && header.pool.0 == 1)
    });
    let (path, bytes) = second.expect("a second puddle");
    let name = path.file_name().and_then(|name| name.to_str()).expect("text");
    for harm in Harm::ALL {
        harm.on(path, bytes.clone());
        for command in ["check", "info", "show", "stats"] {
            let ran = fixture.run(command, &[]).exits(1);
            let said = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(said.contains(name), "{harm:?}, {command}: {said}");
            assert!(said.contains("pool \"direct\""), "{harm:?}, {command}: {said}");
            assert!(
                said.contains("restore the whole store from one copy"),
                "{harm:?}, {command}: {said}"
            );
        }
        restore(&fixture, &whole);
    }
}

#[test]
fn what_has_no_key_here_is_no_finding() {
    let fixture = filled();
    let out = fixture.run("check", &[]).exits(0).out;
    assert!(
        out.contains("sound: 3 pools and 2 objects checked; 1 pool and 1 object not looked at"),
        "{out}"
    );
    for what in ["pool \"keyed\"", "object \"secret\""] {
        let line = out.lines().find(|line| line.contains(what)).expect("a line");
        assert!(line.contains("--key-file") && line.contains("not verified"), "{line}");
    }
    // A damaged header needs no key.
    let dir = text(&fixture.store);
    let info = run(["object", "info", &dir, "secret", "--json"]).exits(0).json();
    let puddle = info["puddle"].as_str().expect("text").replace('-', "");
    let path = fixture.store.join("puddles").join(puddle);
    Harm::Flip(8).on(&path, std::fs::read(&path).expect("readable"));
    assert!(fixture.run("check", &[]).exits(1).out.contains("object \"secret\""));
}

#[test]
fn a_page_of_a_protected_object_and_the_journals_are_looked_at() {
    let fixture = filled();
    let whole = files(&fixture);
    let dir = text(&fixture.store);
    let info = run(["object", "info", &dir, "whole", "--json"]).exits(0).json();
    let puddle = info["puddle"].as_str().expect("text").replace('-', "");
    let path = fixture.store.join("puddles").join(puddle);
    let mut bytes = std::fs::read(&path).expect("readable");
    bytes[4 * 4096 + 5] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    let out = check(&fixture, &[]).exits(1).out;
    assert!(out.contains("of object \"whole\""), "{out}");
    restore(&fixture, &whole);
    for journal in ["journal", "journal.pools"] {
        let path = fixture.store.join(journal);
        let mut bytes = std::fs::read(&path).expect("readable");
        bytes[..8].fill(0x55);
        std::fs::write(&path, bytes).expect("written");
        // The second header may be whole; then nothing is lost, and a program opens it.
        let ran = check(&fixture, &[]);
        assert_eq!(
            ran.status == Some(0),
            refused(&fixture.store).is_none(),
            "{journal}: {}",
            ran.out
        );
        restore(&fixture, &whole);
        std::fs::write(fixture.store.join(journal), [0x55; 65536]).expect("written");
        assert!(check(&fixture, &[]).exits(1).out.contains("journal"));
        restore(&fixture, &whole);
    }
}

#[test]
fn a_store_without_protection_is_not_said_to_be_verified() {
    let fixture = crate::common::with_pool();
    let ran = fixture.run("verify", &[]).exits(0);
    assert!(ran.out.contains("nothing is covered"), "{}", ran.out);
    assert_eq!(
        fixture.run("verify", &["--json"]).exits(0).json()["covered"].as_bool(),
        Some(false)
    );
}

/// A batch that is lost in both files: `ls` and `stats` say so, and exit as `check` does.
#[test]
fn a_lost_batch_of_the_catalog_is_told_by_all() {
    let fixture = filled();
    for file in ["catalog.0", "catalog.1"] {
        let path = fixture.store.join(file);
        let mut bytes = std::fs::read(&path).expect("readable");
        let at =
            bytes.windows(6).position(|text| text == b"direct").expect("the record of the pool");
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).expect("written");
    }
    for command in ["check", "info", "ls", "show", "stats"] {
        let ran = fixture.run(command, &[]).exits(1);
        let said = ran.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            said.contains("catalog.") && said.contains("no record names this file"),
            "{command}: {said}"
        );
    }
}

/// A newer release is told from damage by the checksum.
#[test]
fn a_header_of_a_newer_release_is_not_called_damaged_and_a_damaged_one_not_newer() {
    type Change = fn(&mut PuddleHeader);
    let fixture = filled();
    let whole = files(&fixture);
    let is_root = |bytes: &Vec<u8>| {
        read::<PuddleHeader>(bytes, false)
            .is_ok_and(|header| header.index == 0 && header.pool.0 == 1)
    };
    let (path, bytes) = whole.iter().find(|(_, bytes)| is_root(bytes)).expect("a puddle");
    let changes: [Change; 4] = [
        |header| header.prefix.version = 65,
        |header| header.prefix.incompat = 1 << 50,
        |header| header.prefix.ro_compat = 1,
        |header| header.reserved[0] = 1,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for whole_header in [true, false] {
            let mut header = read::<PuddleHeader>(bytes, false).expect("a header");
            change(&mut header);
            if whole_header {
                seal(&mut header);
            }
            let mut changed = bytes.clone();
            changed[..size_of::<PuddleHeader>()].copy_from_slice(header.as_bytes());
            std::fs::write(path, changed).expect("written");
            let said = fixture.run("check", &[]).exits(1).out;
            assert_eq!(said.contains("made by a newer release"), whole_header, "{number}: {said}");
            assert_eq!(said.contains("restore the whole store"), !whole_header, "{number}: {said}");
        }
    }
}

/// Every way to meet a store without its superblock gives one message.
#[test]
fn a_missing_superblock_is_one_message() {
    let fixture = filled();
    std::fs::remove_file(fixture.store.join("superblock")).expect("removed");
    let wanted = ["holds files of a store", "no file \"superblock\"", "whole store from one copy"];
    for command in ["check", "ls", "info", "dump", "show", "stats", "verify", "format"] {
        fixture.run(command, &[]).complains(3, &wanted);
    }
    fixture.run("create", &["more"]).complains(3, &wanted);
    let error = Store::open(&fixture.store).expect_err("no superblock").to_string();
    assert!(wanted.iter().all(|part| error.contains(part)), "{error}");
}

/// What a missing file led to passes for leaks; none is told, and a copy says what is missing.
#[test]
fn a_missing_puddle_is_one_finding_and_no_log() {
    let fixture = filled();
    let whole = files(&fixture);
    let second = whole.iter().find(|(_, bytes)| {
        read::<PuddleHeader>(bytes, false)
            .is_ok_and(|header| header.index == 1 && header.pool.0 == 1)
    });
    std::fs::remove_file(&second.expect("a second puddle").0).expect("removed");
    let found = check(&fixture, &["--json"]).exits(1).json();
    let findings = found["findings"].as_array().expect("a list");
    assert!(findings.iter().all(|finding| finding["kind"] != "leak"), "{found}");
    let out = check(&fixture, &[]).exits(1).out;
    assert!(out.contains("may be because of the damage"), "{out}");
    assert!(out.contains("pool \"direct\": puddle 1 (") && !out.contains("of pool 1"), "{out}");
    for command in ["clone", "randomize"] {
        let more: &[&str] = if command == "clone" { &["direct", "copy"] } else { &["direct"] };
        let ran = fixture.run(command, more).complains(3, &["\"direct\"", "is missing"]);
        assert!(!ran.err.contains("a log is set aside"), "{}", ran.err);
    }
}

/// A leak has a command that gives it back, and `check` names it.
#[test]
fn leaks_are_told_with_the_command_that_gives_them_back() {
    let fixture = filled();
    let store = Store::open_with(&fixture.store, &options()).expect("a store");
    let pool = store.pool("direct").expect("a pool");
    pool.write(|tx| tx.alloc(Link { next: None, numbers: [7; 500] }).map(drop)).expect("written");
    drop(pool);
    store.close().expect("closed");
    let out = check(&fixture, &[]).exits(1).out;
    assert!(out.contains("leak:") && out.contains("`cenote reclaim "), "{out}");
    let key = text(&fixture.dir.path().join("key"));
    // A pool that is locked may lead there, and says so with its own name.
    fixture
        .run("reclaim", &["direct"])
        .complains(3, &["\"keyed\"", "has to be read", "--key-file"]);
    fixture.run("reclaim", &["--key-file", &key]).exits(0);
    assert!(check(&fixture, &[]).exits(0).out.contains("sound:"));
}
