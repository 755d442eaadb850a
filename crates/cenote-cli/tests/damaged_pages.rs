//! One damaged page of one pool, of every kind: no command dies of it, each names the pool, and the
//! other pools are dealt with.

use crate::common::{Ran, cenote, run};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;

const MODES: [&str; 4] = ["integrity", "encryption", "both", "authenticated"];
const PAGE: u64 = 4096;

/// A store with a plain pool, a shadowed one, and one of each kind of protection; all under one
/// key.
struct Store {
    _dir: tempfile::TempDir,
    path: PathBuf,
    key: PathBuf,
    /// The file of each pool's only puddle.
    files: BTreeMap<String, PathBuf>,
}

fn puddles(store: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(store.join("puddles")).expect("readable");
    all.map(|entry| entry.expect("an entry").path()).collect()
}

/// All files of a store.
fn contents(store: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let dirs = [store.to_owned(), store.join("puddles"), store.join("primary")];
    let entries =
        dirs.iter().flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    let files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
    files.map(|path| (path.clone(), std::fs::read(path).expect("readable"))).collect()
}

impl Store {
    fn make() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, key) = (dir.path().join("store"), dir.path().join("key"));
        let bytes: Vec<u8> = (0..32u8).map(|i| i.wrapping_mul(73) ^ 0x5a).collect();
        std::fs::write(&key, bytes).expect("a key");
        run(["format".as_ref(), path.as_os_str()]).exits(0);
        let mut store = Self { _dir: dir, path, key, files: BTreeMap::new() };
        let mut make = |name: &str, arguments: &[&str]| {
            let before = puddles(&store.path);
            let mut command = cenote();
            command.arg("create").arg(&store.path).arg(name).args(arguments);
            // Integrity alone takes no key.
            if arguments.contains(&"--at-rest") && name != "integrity" {
                command.arg("--key-file").arg(&store.key);
            }
            let ran: Ran = command.output().expect("it runs").into();
            ran.exits(0);
            let new = puddles(&store.path).into_iter().find(|file| !before.contains(file));
            store.files.insert(name.into(), new.expect("a puddle"));
        };
        make("direct", &["--mode", "direct"]);
        make("shadowed", &["--mode", "shadowed"]);
        MODES.iter().for_each(|mode| make(mode, &["--at-rest", mode]));
        store
    }

    /// Runs a command on the whole store, and refuses that it dies of a signal.
    fn run(&self, command: &str, arguments: &[&str]) -> Output {
        let mut child = cenote();
        child.arg(command).arg(&self.path).args(arguments).arg("--json");
        child.arg("--key-file").arg(&self.key);
        let output = child.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.signal(), None, "{command}: {said}");
        assert!(!said.contains("panicked"), "{command}: {said}");
        output
    }
}

/// What is done to a page.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip(u64),
    Zero,
    CutHere,
}

impl Harm {
    fn on(self, bytes: &mut Vec<u8>, page: u64) {
        let at = (page * PAGE) as usize;
        match self {
            Self::Flip(offset) => bytes[at + offset as usize] ^= 0x10,
            Self::Zero => bytes[at..at + PAGE as usize].fill(0),
            Self::CutHere => bytes.truncate(at),
        }
    }
}

/// Every command that looks at all pools, after one of them was harmed.
fn look_at_all(store: &Store, harmed: &str, what: &str) {
    let others: Vec<&String> = store.files.keys().filter(|name| *name != harmed).collect();
    let commands = ["check", "info", "ls", "dump", "show", "stats", "verify", "trim", "reclaim"];
    for command in commands {
        let dry: &[&str] = if ["trim", "reclaim"].contains(&command) { &["-n"] } else { &[] };
        let output = store.run(command, dry);
        let out = String::from_utf8_lossy(&output.stdout);
        let all = format!("{out}{}", String::from_utf8_lossy(&output.stderr));
        let status = output.status.code();
        assert!(matches!(status, Some(0 | 1 | 3)), "{command} after {what}: {all}");
        if status != Some(0) {
            assert!(all.contains(harmed), "{command} after {what} does not name the pool: {all}");
        }
        if status == Some(1) {
            for other in &others {
                let skips = command == "verify" && !MODES.contains(&other.as_str());
                assert!(
                    skips || out.contains(*other),
                    "{command} after {what} left out {other}: {all}"
                );
            }
        }
    }
    for name in store.files.keys() {
        store.run("export", &[name, "-"]);
        let looked = store.run("dump", &["--pool", name]);
        if name != harmed {
            assert_eq!(looked.status.code(), Some(0), "dump of {name} after {what}");
        }
    }
}

fn change_all(store: &Store) {
    let done = store.run("trim", &[]);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(store.files.keys().all(|name| said.contains(name.as_str())), "{said}");
    store.run("reclaim", &[]);
}

/// The byte of the finding: page 2 of the file is the first that is sealed.
#[test]
fn one_flipped_byte_of_a_protected_pool_is_reported_and_the_other_pools_are_checked() {
    let store = Store::make();
    for mode in MODES {
        let file = &store.files[mode];
        let whole = std::fs::read(file).expect("readable");
        let mut bytes = whole.clone();
        bytes[8300] ^= 1;
        std::fs::write(file, &bytes).expect("written");
        look_at_all(&store, mode, &format!("byte 8300 of {mode}"));
        if mode == "authenticated" {
            let all = contents(&store.path);
            // Those that change pools, too: of the damaged page they make nothing that passes.
            change_all(&store);
            let now = std::fs::read(file).expect("readable");
            assert!(now[8192..12288] == bytes[8192..12288], "damage was spread");
            // A page that decides about what they write: the pool stays as it is.
            bytes = whole.clone();
            bytes[4200] ^= 1;
            std::fs::write(file, &bytes).expect("written");
            change_all(&store);
            assert!(std::fs::read(file).expect("readable") == bytes, "damage was spread");
            // One file of before, beside a journal of after, would be found.
            all.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).expect("written"));
        }
        std::fs::write(file, &whole).expect("written");
    }
    let check = store.run("check", &[]);
    assert_eq!(
        check.status.code(),
        Some(0),
        "all is as it was: {}",
        String::from_utf8_lossy(&check.stdout)
    );
}

/// Every kind of page: headers, side data and tree, descriptors, marks, roots, and the first
/// superblock with blocks.
#[test]
fn no_page_of_any_pool_ends_a_command_that_looks_at_it() {
    let store = Store::make();
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    println!("CENOTE_SEED={seed}");
    let mut random = seed;
    let mut next = |below: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for (name, file) in &store.files {
        let whole = std::fs::read(file).expect("readable");
        let pages = whole.len() as u64 / PAGE;
        for page in [1, 2 + next(30.min(pages - 2)), pages - 1] {
            for harm in [Harm::Flip(next(PAGE)), Harm::Zero, Harm::CutHere] {
                let mut bytes = whole.clone();
                harm.on(&mut bytes, page);
                if bytes == whole {
                    continue;
                }
                std::fs::write(file, &bytes).expect("written");
                println!("{harm:?} of page {page} of {name}");
                for command in ["check", "verify"] {
                    store.run(command, &[]);
                }
                if page == 1 && matches!(harm, Harm::Flip(_)) {
                    look_at_all(&store, name, &format!("{harm:?} of page {page} of {name}"));
                }
            }
        }
        std::fs::write(file, &whole).expect("written");
    }
    let check = store.run("check", &[]);
    assert_eq!(
        check.status.code(),
        Some(0),
        "all is as it was: {}",
        String::from_utf8_lossy(&check.stdout)
    );
}
