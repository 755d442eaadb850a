//! Recovery by a program that knows nothing of what it recovers (PUD-2).

use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_store::{Access, FormatOptions, OpenOptions, PoolOptions, Store};

fn recover<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cenote-recover")).args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Requires an exit status and one line on standard error with all of `parts`.
#[track_caller]
fn complains(output: &Output, status: i32, parts: &[&str]) {
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{err}");
    assert!(err.starts_with("cenote-recover: ") && err.lines().count() == 1, "{err}");
    for part in parts {
        assert!(err.contains(part), "{part:?} is not in {err}");
    }
}

fn medium(dir: &Path) -> Arc<dyn Medium> {
    Arc::new(
        RealMedium::open(dir, &MediumOptions { create: true, ..MediumOptions::default() })
            .expect("a medium"),
    )
}

/// A store with a pool, opened.
fn open(dir: &Path) -> Store {
    cenote_store::format(medium(dir), &FormatOptions::default()).expect("formatted");
    let (store, _) = Store::open(medium(dir), OpenOptions::default()).expect("opened");
    store.create_pool("data", &PoolOptions::default()).expect("created");
    store
}

#[test]
fn the_dependencies_know_nothing_of_heaps_transactions_or_applications() {
    let Some(cargo) = std::env::var_os("CARGO") else {
        println!("skipped: cargo does not run this test, so it cannot be asked");
        return;
    };
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--manifest-path",
            manifest,
        ])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tree = text(&output.stdout);
    let mut own: Vec<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| name.starts_with("cenote"))
        .collect();
    own.sort_unstable();
    own.dedup();
    // The journal of psyncs is pages and lines of files, and protection at rest seals pages: they
    // know nothing of what is in them. Page rights change for stores that are open.
    let allowed = [
        "cenote-atrest",
        "cenote-journal",
        "cenote-layout",
        "cenote-log",
        "cenote-medium",
        "cenote-protect",
        "cenote-recover",
        "cenote-shadow",
        "cenote-store",
        "cenote-sys",
    ];
    assert_eq!(own, allowed);
    // A key is made and used by other programs: no password hash and no cipher is here.
    let others: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    for cipher in ["argon2", "aegis", "aes-gcm-siv", "aws-lc-sys", "hkdf", "hmac"] {
        assert!(!others.contains(&cipher), "{cipher} is linked");
    }
}

#[test]
fn a_store_whose_writer_vanished_is_recovered_and_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let pool = store.open_pool("data", Access::ReadWrite).expect("opened");
    // A log that is in use, as a process leaves it that is killed.
    let log = store.acquire_log().expect("a log");
    drop((pool, log));
    store.abandon();
    let output = recover([OsStr::new("--json"), dir.path().as_os_str()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (report["clean"].as_bool(), report["crash"].as_str()),
        (Some(false), Some("process")),
        "{report}"
    );
    assert_eq!(report["logs"][0]["outcome"], "idle", "{report}");
    assert!(
        report["recovery_us"].is_u64() && report["damage"].as_array().is_some_and(Vec::is_empty)
    );
    // Once more: there is nothing to do.
    let output = recover([dir.path()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("nothing to recover"), "{}", text(&output.stdout));
}

#[test]
fn damage_is_exit_status_1_and_is_listed() {
    let dir = tempfile::tempdir().expect("a directory");
    open(dir.path()).close().expect("closed");
    let puddles: Vec<_> =
        std::fs::read_dir(dir.path().join("puddles")).expect("readable").flatten().collect();
    std::fs::remove_file(puddles[0].path()).expect("removed");
    let output = recover([OsStr::new("--json"), dir.path().as_os_str()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        report["damage"][0].as_str().is_some_and(|damage| damage.contains("missing")),
        "{report}"
    );
    assert!(text(&recover([dir.path()]).stdout).contains("damaged:"));
}

#[test]
fn a_store_in_use_needs_no_recovery() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    complains(&recover([dir.path()]), 4, &["in use", &std::process::id().to_string()]);
    store.close().expect("closed");
}

#[test]
fn wrong_arguments_and_places_are_named() {
    let nothing: [&str; 0] = [];
    complains(&recover(nothing), 2, &["no directory"]);
    complains(&recover(["a", "b"]), 2, &["more than one"]);
    complains(&recover(["--jsn", "a"]), 2, &["--jsn"]);
    complains(&recover(["/no/such/place"]), 3, &["/no/such/place"]);
    let dir = tempfile::tempdir().expect("a directory");
    complains(&recover([dir.path()]), 3, &["not a store"]);
    complains(&recover([OsStr::new("--"), OsStr::new("--json")]), 3, &["--json"]);
    let help = recover(["--help"]);
    assert!(help.status.success() && text(&help.stdout).contains("Exit status:"));
    assert!(text(&recover(["--version"]).stdout).starts_with("cenote-recover "));
}

#[test]
fn a_path_with_any_characters_is_proper_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let odd = dir.path().join("a\"b\\c\nd");
    open(&odd).close().expect("closed");
    let output = recover([OsStr::new("--json"), odd.as_os_str()]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["path"].as_str(), odd.to_str());
    assert_eq!(output.stdout.iter().filter(|b| **b == b'\n').count(), 1, "one object, one line");
}
