//! Ctrl-C in long work: the command says that it stopped, what stands, and how to go on.

use crate::common::{Fixture, Ran, cenote, empty};
use rustix::process::{Pid, Signal, kill_process};
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

/// A command that is interrupted as soon as it can say so.
fn interrupted(fixture: &Fixture, command: &str, arguments: &[&str]) -> Ran {
    let mut child = cenote();
    child.arg(command).arg(&fixture.store).args(arguments);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("begun");
    assert!(handles_interrupts(&mut child), "{command} had no handler");
    kill_process(Pid::from_child(&child), Signal::INT).expect("sent");
    child.wait_with_output().expect("ended").into()
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
    assert!(fixture.run("relocate", &[]).exits(0).out.contains("nothing is to be rewritten"));
    fixture.run("check", &[]).exits(0);
}
