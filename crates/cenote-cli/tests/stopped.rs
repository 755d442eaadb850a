//! Ctrl-C in long work: the command says that it stopped, what stands, and how to go on.

use crate::common::{Fixture, Ran, cenote, empty};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A store with a pool of many small blocks, none of them a leak.
fn many() -> Fixture {
    let fixture = empty();
    let store = cenote::Store::open(&fixture.store).expect("a store");
    let pool = store.create_pool("many", &cenote::PoolOptions::default()).expect("a pool");
    let filled = pool.write(|tx| -> cenote::Result<()> {
        let list = cenote_collections::List::new(tx)?;
        for value in 0..8000_u64 {
            list.push_back(tx, value)?;
        }
        let root = tx.alloc(list)?;
        tx.set_root(root)
    });
    filled.expect("written");
    drop(pool);
    store.close().expect("closed");
    fixture
}

/// Waits until a process handles SIGINT itself; whether it came to that.
fn handles_interrupts(child: &mut Child) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    let interrupt = 1_u64 << (Signal::INT.as_raw() - 1);
    while child.try_wait().expect("asked").is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        if caught.is_some_and(|mask| mask & interrupt != 0) {
            return true;
        }
        assert!(Instant::now() < end, "no handler within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// A command that is interrupted as soon as it can say so. One that ends before the signal comes is
/// run again.
fn interrupted(fixture: &Fixture, command: &str, arguments: &[&str]) -> Ran {
    for _ in 0..50 {
        let mut child = cenote();
        child.args(command.split(' ')).arg(&fixture.store).args(arguments);
        // Its other end stays open until the command has ended.
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().expect("begun");
        let _input = child.stdin.take();
        if handles_interrupts(&mut child) {
            kill_process(Pid::from_child(&child), Signal::INT).expect("sent");
        }
        let ran: Ran = child.wait_with_output().expect("ended").into();
        if ran.status != Some(0) {
            return ran;
        }
        let _ = std::fs::remove_file(exported(fixture));
    }
    panic!("{command} ended 50 times before the signal came");
}

/// Where an object is exported to.
fn exported(fixture: &Fixture) -> PathBuf {
    fixture.store.with_file_name("numbers")
}

#[test]
fn long_work_that_is_interrupted_says_what_stands_and_how_to_go_on() {
    let fixture = many();
    interrupted(&fixture, "check", &[])
        .complains(130, &["stopped after 0 of 1 pool", "nothing was changed", "cenote check"]);
    interrupted(&fixture, "dump", &["--pool", "many", "--blocks"])
        .complains(130, &["stopped", "nothing was changed"]);
    interrupted(&fixture, "reclaim", &[])
        .complains(130, &["stopped at pool \"many\"", "`cenote reclaim` goes on"]);
    let ran = interrupted(&fixture, "randomize", &["many", "--eager"])
        .complains(130, &["stopped:", "still to be rewritten", "`cenote relocate` goes on"]);
    assert!(ran.out.contains("has new addresses"), "{}", ran.out);
    fixture.run("relocate", &[]).exits(0);
    assert!(fixture.run("relocate", &[]).exits(0).out.contains("nothing to rewrite"));
    fixture.run("check", &[]).exits(0);
}

/// Stopped again and again, a copy ends; until then no command opens it.
#[test]
fn a_copy_that_is_interrupted_goes_on_and_is_no_pool_until_then() {
    let fixture = many();
    let copy = ["many", "copy", "--heap", "logged"];
    interrupted(&fixture, "copy", &copy)
        .complains(130, &["stopped", "unfinished copy", "`cenote copy` goes on", "`cenote rm`"]);
    let says = ["\"copy\" is an unfinished copy of pool \"many\"", "`cenote copy ", " many copy`"];
    let checked = fixture.run("check", &["--pool", "copy"]).exits(1).out;
    assert!(says.iter().all(|says| checked.contains(says)), "{checked}");
    for (command, arguments) in [
        ("dump", ["--pool", "copy"].as_slice()),
        ("stats", &["copy"]),
        ("reclaim", &["many"]),
        ("copy", &["copy", "another"]),
    ] {
        fixture.run(command, arguments).complains(3, &says);
    }
    fixture
        .run("copy", &["many", "copy", "--heap", "traced"])
        .complains(3, &["has a logged heap", "leave out --heap"]);
    assert!(fixture.run("ls", &[]).exits(0).out.contains("unfinished copy"));
    assert_eq!(fixture.run("ls", &["--json"]).exits(0).json_lines()[0]["state"], "unfinished copy");
    let done = fixture.run("copy", &["many", "copy", "--json"]).exits(0).json();
    assert_eq!((&done["resumed"], &done["heap"]), (&true.into(), &"logged".into()));
    fixture.run("check", &[]).exits(0);
    fixture.run("rm", &["copy", "-y"]).exits(0);
    interrupted(&fixture, "copy", &copy).complains(130, &["stopped"]);
    fixture.run("rm", &["copy", "-y"]).exits(0);
    fixture.run("check", &[]).exits(0);
}

#[test]
fn trim_verify_and_the_ways_of_objects_say_what_stands() {
    let fixture = many();
    interrupted(&fixture, "trim", &[]).complains(130, &["stopped in pool \"many\"", "the rest"]);
    let object = ["numbers", "--size", "64M", "--at-rest", "integrity"];
    fixture.run("object create", &object).exits(0);
    interrupted(&fixture, "verify", &[]).complains(130, &["stopped", "nothing was changed"]);
    let file = exported(&fixture);
    let name = file.to_str().expect("text");
    interrupted(&fixture, "object export", &["numbers", "--output", name])
        .complains(130, &["stopped", "nothing was kept"]);
    assert!(!file.exists());
    interrupted(&fixture, "snapshot", &["numbers", name, "--copy"])
        .complains(130, &["stopped", "nothing was kept"]);
    assert!(!file.exists());
    interrupted(&fixture, "object import", &["numbers"])
        .complains(130, &["stopped", "nothing of the input is in object \"numbers\""]);
    fixture.run("check", &[]).exits(0);
}
