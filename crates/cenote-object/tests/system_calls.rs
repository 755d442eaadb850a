//! How many system calls it takes to attach, use and detach a small object, with and without
//! protection: counted by `strace`, where there is one. A child does it some times, and then more
//! often; the difference gives the calls of one operation, without those of the rest of the
//! program.

use crate::common::the_key;
use cenote_atrest::Mode;
use cenote_medium::{MediumOptions, RealMedium};
use cenote_object::{ObjectOptions, Objects, ObjectsOptions, Permission, Store};
use cenote_store::{FormatOptions, OpenOptions};
use cenote_testkit::directories::directory;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// What the child is to do: mode, row, how often.
const CHILD: &str = "CENOTE_SYSTEM_CALLS_CHILD";
const FEW: u64 = 20;
const MANY: u64 = 60;

fn child_does(mode: Mode, row: &str, times: u64) {
    let dir = directory();
    let medium = Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
    cenote_store::format(medium.clone(), &FormatOptions::default()).expect("format");
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let objects = Objects::open(&store, &ObjectsOptions::default()).expect("objects");
    let key = mode.has_key().then(the_key);
    let options = ObjectOptions { at_rest: mode, permissions: 0o600 };
    objects.pcreate_with("o", 32 << 10, key, &options).expect("create");
    for number in 0..times {
        let permission = if row == "read" { Permission::Read } else { Permission::ReadWrite };
        let mut object = objects.attach("o", permission, key).expect("attach");
        object.load(0, 32 << 10).expect("loaded");
        if row == "write" {
            object.as_mut_slice().expect("writable")[..16 << 10].fill(number as u8 + 1);
            assert_eq!(object.psync().expect("psync").pages, 4);
        }
        assert_eq!(object.as_slice().iter().step_by(64).count(), 512);
        object.detach().expect("detach");
    }
}

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let mut words = what.split(' ');
    let mut word = || words.next().expect("mode, row, times");
    let named = word();
    let mode = [
        Mode::None,
        Mode::Integrity,
        Mode::Encryption,
        Mode::EncryptionIntegrity,
        Mode::Authenticated,
    ]
    .into_iter()
    .find(|mode| mode.to_string() == named)
    .expect("a mode");
    let row = word();
    child_does(mode, row, word().parse().expect("a number"));
}

/// All calls of all threads of a child; `None` without `strace`.
fn counted(mode: Mode, row: &str, times: u64) -> Option<u64> {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("calls");
    let program = std::env::current_exe().expect("this program");
    let done = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(&out)
        .arg(program)
        .args(["--exact", "system_calls::child", "--test-threads", "1"])
        .env(CHILD, format!("{mode} {row} {times}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !done.is_ok_and(|status| status.success()) {
        return None;
    }
    let text = std::fs::read_to_string(&out).ok()?;
    // Waiting and waking depend on who is first.
    let counts = text.lines().filter(|line| !line.contains("futex") && !line.ends_with("total"));
    Some(counts.filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok()).sum())
}

#[test]
fn attaching_a_small_object_takes_few_system_calls() {
    let mut found = Vec::new();
    for (mode, row, most) in MOST {
        let (Some(few), Some(many)) = (counted(mode, row, FEW), counted(mode, row, MANY)) else {
            return println!("skipped: no strace, or it may not trace");
        };
        let each = (many - few) as f64 / (MANY - FEW) as f64;
        println!("{row}, {mode}: {each:.2}");
        found.push((mode, row, each, most));
    }
    for (mode, row, each, most) in found {
        assert!(each <= most as f64 + 0.5, "{row}, {mode}: {each:.2} system calls, not {most}");
    }
}

/// The rows, and how many calls one operation takes at most, those that wait and wake not counted.
const MOST: [(Mode, &str, u64); 6] = [
    (Mode::None, "read", 22),
    (Mode::Encryption, "read", 36),
    (Mode::Authenticated, "read", 37),
    (Mode::None, "write", 55),
    (Mode::Encryption, "write", 55),
    (Mode::Authenticated, "write", 64),
];
