//! A short run of each harness; `just adversary` has the long ones.

use std::process::Command;

/// Runs so many rounds of a harness; what it has found fails the test.
fn short(harness: &str, rounds: u64) {
    short_from(harness, 1, rounds);
}

fn short_from(harness: &str, seed: u64, rounds: u64) {
    let ran = Command::new(env!("CARGO_BIN_EXE_cenote-adversary"))
        .args([harness, "--seed", &seed.to_string(), "--rounds", &rounds.to_string()])
        .output()
        .expect("the harness runs");
    let out = String::from_utf8_lossy(&ran.stdout);
    print!("{out}");
    assert!(ran.status.success(), "{}: {out}{}", ran.status, String::from_utf8_lossy(&ran.stderr));
    assert!(out.starts_with(&format!("{harness}: {rounds} rounds")) || out.starts_with("skipped: "), "{out}");
}

/// Runs rounds with a planted bug, which must be found.
fn finds(harness: &str, bug: &str) {
    let ran = Command::new(env!("CARGO_BIN_EXE_cenote-adversary"))
        .args([harness, "--seed", "1", "--rounds", "12"])
        .env("CENOTE_ADVERSARY_PLANT", bug)
        .output()
        .expect("the harness runs");
    let out = String::from_utf8_lossy(&ran.stdout);
    print!("{out}");
    if out.starts_with("skipped: ") {
        return;
    }
    assert!(out.contains("FOUND in seed"), "{bug} was not found: {out}");
    let kept = out.lines().find_map(|line| line.strip_prefix("files are kept in ")?.split_once(';'));
    std::fs::remove_dir_all(kept.expect("the files are named").0).expect("they are there");
}

#[test]
fn kills_find_a_heap_that_keeps_what_was_aborted() {
    finds("kill", "AbortKeepsAllocation");
}

#[test]
fn losses_of_power_find_a_psync_without_a_sync() {
    finds("power", "PsyncNotSynced");
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

/// The last of the operations: an I/O error, a full disk and a kill, each at some calls.
#[test]
fn a_fault_in_a_backup_leaves_no_copy_or_a_whole_one() {
    for seed in [27, 55, 83] {
        short_from("faults", seed, 1);
    }
}

#[test]
fn after_a_loss_of_power_every_acknowledged_psync_is_there() {
    short("power", 4);
}

#[test]
fn damage_under_right_checksums_kills_nothing_and_stays_where_it_is() {
    short("mutate", 2);
}
