//! Every command beside every ordinary mistake: the same exit statuses, and texts that name what
//! the user named, say what to do, and speak of commands and options.
//!
//! `cargo test ... table:: -- --nocapture` prints them, to be read.

use crate::common::{Fixture, Ran, cenote, empty, run};
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// What a row of the table does with a store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    Looks,
    Changes,
}
use Does::{Changes, Looks};

/// Commands with what they take. `S` is a store, `P` a pool, `O` an object, `N` a name or a file
/// that is not there; `K` a key.
const COMMANDS: [(&str, Does); 38] = [
    ("ls S", Looks),
    ("info S", Looks),
    ("info S --heap P", Looks),
    ("check S", Looks),
    ("check S --pool P", Looks),
    ("dump S", Looks),
    ("dump S --pool P", Looks),
    ("stats S", Looks),
    ("stats S P", Looks),
    ("verify S", Looks),
    ("verify S P", Looks),
    ("verify S O", Looks),
    ("object ls S", Looks),
    ("object info S O", Looks),
    ("object export S O --output N", Looks),
    ("snapshot S O N", Looks),
    ("logs list S", Looks),
    ("export S P N", Looks),
    ("reclaim S P -n", Looks),
    ("trim S P -n", Looks),
    ("create S n -n", Looks),
    ("rm S P -n", Looks),
    ("create S n", Changes),
    ("chmod S P 640", Changes),
    ("chown S P 0", Changes),
    ("logs declare-whole S P", Changes),
    ("reclaim S P", Changes),
    ("trim S P", Changes),
    ("relocate S P", Changes),
    ("clone S P n2", Changes),
    ("copy S P n3", Changes),
    ("randomize S P", Changes),
    ("object create S n --size 8K", Changes),
    ("object import S O --input /dev/null", Changes),
    ("rekey S P --key-file K --new-key-file K", Changes),
    ("adopt S", Changes),
    ("object rm S O -y", Changes),
    ("rm S P -y", Changes),
];

/// Words of programs, which no user of commands knows.
const OF_PROGRAMS: [&str; 12] = [
    "::",
    "Some(",
    "Ok(",
    "Err(",
    "handles",
    "lock_timeout",
    "open_torn",
    "accept_",
    "window_len",
    "half_len",
    "os error",
    "create it first",
];

struct Table {
    fixture: Fixture,
    store: String,
    pool: &'static str,
    object: &'static str,
    more: Vec<String>,
}

/// A store with a pool and an object.
fn table() -> Table {
    let fixture = empty();
    let dir = fixture.dir.path();
    for (name, seed) in [("key", 1_u8), ("other", 2)] {
        let key: Vec<u8> = (0..32).map(|at| at * 5 + seed).collect();
        std::fs::write(dir.join(name), key).expect("written");
    }
    let store = text(&fixture.store);
    fixture.run("create", &["p"]).exits(0);
    run(["object", "create", &store, "o", "--size", "8K"]).exits(0);
    Table { fixture, store, pool: "p", object: "o", more: Vec::new() }
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").into()
}

impl Table {
    fn file(&self, name: &str) -> String {
        text(&self.fixture.dir.path().join(name))
    }

    fn words(&self, row: &str) -> Vec<String> {
        let word = |word: &str| match word {
            "S" => self.store.clone(),
            "P" => self.pool.into(),
            "O" => self.object.into(),
            "N" => self.file("new"),
            "K" => self.file("key"),
            word => word.into(),
        };
        row.split(' ').map(word).chain(self.more.iter().cloned()).collect()
    }

    /// Runs a row; what it says is read for words of programs.
    fn row(&self, row: &str) -> Ran {
        let _ = std::fs::remove_file(self.file("new"));
        let ran = run(self.words(row));
        println!("{row}: {:?}\n  {}{}", ran.status, ran.out.replace('\n', "\n  "), ran.err);
        for word in OF_PROGRAMS {
            let said = format!("{}{}", ran.err, ran.out);
            assert!(!said.contains(word), "{row}: {word:?} is in {said}");
        }
        assert!(ran.err.lines().count() <= 1, "{row}: {}", ran.err);
        ran
    }
}

#[test]
fn a_directory_that_is_missing_and_a_file_in_its_place_are_said_to_be_that() {
    let mut table = table();
    let (missing, file) = (table.file("missing"), table.file("key"));
    for (row, _) in COMMANDS {
        table.store = missing.clone();
        table.row(row).complains(3, &[&missing, "there is no directory", "cenote format"]);
        table.store = file.clone();
        table.row(row).complains(3, &[&file, "is no directory"]);
    }
    table.store = format!("{missing}/below");
    table.row("format S").complains(3, &[&missing, "mkdir"]);
}

#[test]
fn a_pool_or_an_object_that_is_not_there_is_named() {
    let mut table = table();
    (table.pool, table.object) = ("nope", "nope");
    for (row, _) in COMMANDS.iter().filter(|(row, _)| row.contains(" P") || row.contains(" O")) {
        table.row(row).complains(3, &["\"nope\"", "there is no "]);
    }
}

/// Rows that read what is sealed, and say whose key is missing.
const UNDER_KEY: [&str; 9] = [
    "info S --heap P",
    "check S --pool P",
    "dump S --pool P",
    "stats S P",
    "verify S O",
    "object export S O --output N",
    "reclaim S P",
    "trim S P",
    "object import S O --input /dev/null",
];

#[test]
fn what_lacks_its_key_is_said_with_the_options_that_name_it() {
    let mut table = table();
    let key = table.file("key");
    table.fixture.run("create", &["locked", "--key-file", &key]).exits(0);
    run(["object", "create", &table.store, "sealed", "--size", "8K", "--key-file", &key]).exits(0);
    (table.pool, table.object) = ("locked", "sealed");
    for row in UNDER_KEY {
        table.row(row).complains(3, &["--key-file or --passphrase-file"]);
    }
    table.more = vec!["--key-file".into(), table.file("other")];
    for row in UNDER_KEY {
        table.row(row).complains(3, &["is not its key"]);
    }
    table.more.clear();
    let (old, new) = (table.file("other"), table.file("key"));
    run(["rekey", &table.store, "locked", "--key-file", &old, "--new-key-file", &new])
        .complains(3, &["pool \"locked\"", "is not its key"]);
    run(["rekey", &table.store, "p", "--key-file", &old, "--new-key-file", &new])
        .complains(3, &["\"p\"", "key"]);
    let make = |more: &[&str]| {
        let key = ["create", &table.store, "n", "--key-file", &new];
        run([&key[..], more].concat())
    };
    make(&["--at-rest", "none"]).complains(2, &["--at-rest", "leave out"]);
    make(&["--mode", "direct"]).complains(2, &["--mode shadowed"]);
}

/// Where a read-only file system can be had: what looks works, what changes says why not.
#[test]
fn a_read_only_file_system_is_looked_at_and_not_changed() {
    let mut table = table();
    let mounted = table.file("mounted");
    std::fs::create_dir(&mounted).expect("made");
    let mount = |arguments: &[&str]| {
        Command::new("mount").args(arguments).output().is_ok_and(|done| done.status.success())
    };
    if !mount(&["--bind", &table.store, &mounted]) {
        return println!("skipped: this user may not mount file systems");
    }
    let read_only = mount(&["-o", "remount,bind,ro", &mounted]);
    table.store = mounted.clone();
    let ran: Vec<(Does, Ran)> = match read_only {
        true => COMMANDS.iter().map(|(row, does)| (*does, table.row(row))).collect(),
        false => Vec::new(),
    };
    assert!(Command::new("umount").arg(&mounted).status().expect("umount").success());
    for (does, ran) in ran {
        match does {
            Looks => drop(ran.exits(0)),
            Changes => drop(ran.complains(3, &[&mounted, "mounted read-only"])),
        }
    }
}

#[test]
fn an_output_that_cannot_be_written_ends_with_3() {
    let table = table();
    let into_full = |words: &[String]| {
        let full = File::options().write(true).open("/dev/full").expect("it is there");
        let ran: Ran = cenote().args(words).stdout(full).output().expect("runs").into();
        ran.complains(3, &["cannot write the output", "No space left"]);
    };
    for (row, _) in COMMANDS.iter().filter(|(row, _)| !row.starts_with("rekey")) {
        let _ = std::fs::remove_file(table.file("new"));
        into_full(&table.words(row));
    }
    for words in [&["--help"][..], &["--version"], &["rm", "--help"], &["doctor"]] {
        into_full(&words.iter().map(|word| (*word).into()).collect::<Vec<String>>());
    }
}
