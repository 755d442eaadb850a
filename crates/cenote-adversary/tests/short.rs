//! A short run of each harness; `just adversary` has the long ones.

use cenote_testkit::environment;
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
    assert!(
        out.starts_with(&format!("{harness}: {rounds} rounds")) || out.starts_with("skipped: "),
        "{out}"
    );
}

/// The seed of this commit, the same wherever its tests run: over many commits the short runs come
/// to every operation, fault and place. `CENOTE_ADVERSARY_SEED` repeats the run of another commit.
fn seed_of_commit() -> u64 {
    let ran = Command::new("git").args(["rev-parse", "--short=8", "HEAD"]).output();
    let id =
        ran.map(|ran| String::from_utf8_lossy(&ran.stdout).trim().to_owned()).unwrap_or_default();
    environment::number("CENOTE_ADVERSARY_SEED", u64::from_str_radix(&id, 16).unwrap_or(1))
}

/// Runs so many rounds from the commit's seed.
fn short_of_commit(harness: &str, rounds: u64) {
    let seed = seed_of_commit();
    println!("CENOTE_ADVERSARY_SEED={seed} repeats this run");
    short_from(harness, seed, rounds);
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
    let kept =
        out.lines().find_map(|line| line.strip_prefix("files are kept in ")?.split_once(';'));
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
    short("kill", 4);
    short_of_commit("kill", 2);
}

#[test]
fn killed_daemons_and_clients_lose_nothing_that_was_acknowledged() {
    short("clients", 2);
    short_of_commit("clients", 2);
}

#[test]
fn racing_processes_write_one_at_a_time_and_lose_nothing() {
    short("races", 2);
    short_of_commit("races", 1);
}

#[test]
fn a_fault_at_one_system_call_leaves_the_state_before_or_after() {
    short("faults", 3);
    short_of_commit("faults", 3);
}

#[test]
fn a_fault_in_an_export_or_a_snapshot_leaves_no_file_or_a_whole_one() {
    for seed in [60, 30] {
        short_from("faults", seed, 1);
    }
}

#[test]
fn sessions_without_objects_leave_what_a_killed_one_psynced() {
    short("others", 2);
    short_of_commit("others", 1);
}

#[test]
fn killed_sessions_find_a_stranger_that_settles_a_journal() {
    finds("others", "SettledByStranger");
}

/// One operation: an I/O error, a full disk and a kill, each at some calls.
#[test]
fn a_fault_in_a_backup_leaves_no_copy_or_a_whole_one() {
    for seed in [27, 59, 91] {
        short_from("faults", seed, 1);
    }
}

#[test]
fn after_a_loss_of_power_every_acknowledged_psync_is_there() {
    short("power", 4);
}

#[test]
fn damage_under_right_checksums_kills_nothing_and_stays_where_it_is() {
    short("mutate", 1);
    short_of_commit("mutate", 1);
}
