//! A short run of each harness; `just adversary` has the long ones.

use std::process::Command;

/// Runs so many rounds of a harness; what it has found fails the test.
fn short(harness: &str, rounds: u64) {
    let ran = Command::new(env!("CARGO_BIN_EXE_cenote-adversary"))
        .args([harness, "--seed", "1", "--rounds", &rounds.to_string()])
        .output()
        .expect("the harness runs");
    let out = String::from_utf8_lossy(&ran.stdout);
    print!("{out}");
    assert!(ran.status.success(), "{}: {out}{}", ran.status, String::from_utf8_lossy(&ran.stderr));
    assert!(out.starts_with(&format!("{harness}: {rounds} rounds")) || out.starts_with("skipped: "), "{out}");
}

#[test]
fn a_killed_program_loses_nothing_that_it_acknowledged() {
    short("kill", 6);
}

#[test]
fn killed_daemons_and_clients_lose_nothing_that_was_acknowledged() {
    short("clients", 4);
}

#[test]
fn racing_processes_write_one_at_a_time_and_lose_nothing() {
    short("races", 3);
}

#[test]
fn a_fault_at_one_system_call_leaves_the_state_before_or_after() {
    short("faults", 6);
}
