//! Whatever a crash interrupts of what a daemon does for its clients, their transactions are over
//! or never were, and no client that was there is forgotten.

use ClientStep::{
    Commit, Create, CreateShadowed, Damage, Decide, End, Grant, Half, Kill, Log, Psync, Repair,
    Serve, Settle, Stop, Store,
};
use cenote_crashtest::explore::ExploreWhen;
use cenote_crashtest::hosted_clients::{ClientStep, run};
use cenote_crashtest::rig::window_base;
use cenote_crashtest::tier::Sampled;
use cenote_medium::Durability;
use cenote_medium::planted::Bug;
use cenote_store::Access::{ReadOnly, ReadWrite, Shared};
use cenote_store::LogDecision::{Apply, Discard};

/// Two clients come and go, one of them in the middle of a transaction.
const HOSTED_CLIENTS: &[ClientStep] = &[
    Serve,
    Create("a"),
    Create("b"),
    Grant(1, "a", ReadWrite),
    Log(1),
    Commit(1, "a"),
    Grant(2, "b", ReadWrite),
    Log(2),
    Commit(2, "b"),
    Half(1, "a"),
    End(1, false),
    Grant(3, "a", ReadOnly),
    End(3, true),
    Grant(4, "a", Shared),
    Grant(4, "a", ReadWrite),
    End(2, true),
    End(4, true),
    Stop,
];
/// The daemon is killed with clients, and another follows.
const KILLED: &[ClientStep] = &[
    Serve,
    Create("a"),
    Grant(1, "a", ReadWrite),
    Log(1),
    Commit(1, "a"),
    Half(1, "a"),
    Kill,
    Serve,
];
/// A log is set aside, and an operator brings back what was damaged.
const APPLIED: &[ClientStep] = &[
    Serve,
    Create("a"),
    Grant(1, "a", ReadWrite),
    Log(1),
    Half(1, "a"),
    Damage(1),
    End(1, false),
    Repair(1),
    Decide(1, Apply),
    Stop,
];
/// A log is set aside, and forgotten.
const DISCARDED: &[ClientStep] = &[
    Serve,
    Create("a"),
    Grant(1, "a", ReadWrite),
    Log(1),
    Commit(1, "a"),
    Half(1, "a"),
    Damage(1),
    End(1, false),
    Decide(1, Discard),
    Stop,
];

/// Two clients psync pools in shadowed mode, one of them two pools together; one dies with stores
/// that no psync has seen, and the next owner of its pool psyncs them.
const PSYNCS: &[ClientStep] = &[
    Serve,
    CreateShadowed("a"),
    CreateShadowed("b"),
    CreateShadowed("c"),
    Grant(1, "a", ReadWrite),
    Grant(1, "b", ReadWrite),
    Grant(2, "c", ReadWrite),
    Store(1, &["a", "b"], 1),
    Psync(1, &["a", "b"]),
    Store(2, &["c"], 2),
    Psync(2, &["c"]),
    Store(1, &["a", "b"], 3),
    Psync(1, &["a", "b"]),
    Settle(1, "b"),
    Store(2, &["c"], 4),
    Psync(2, &["c"]),
    Store(1, &["a"], 5),
    End(1, false),
    Grant(3, "a", ReadWrite),
    Psync(3, &["a"]),
    End(3, true),
    End(2, true),
    Stop,
];
/// More psyncs than both halves of the journal have room for.
const HALVES: &[ClientStep] = &[
    Serve,
    CreateShadowed("a"),
    Grant(1, "a", ReadWrite),
    Store(1, &["a"], 1),
    Psync(1, &["a"]),
    Store(1, &["a"], 2),
    Psync(1, &["a"]),
    Store(1, &["a"], 3),
    Psync(1, &["a"]),
    Store(1, &["a"], 4),
    Psync(1, &["a"]),
    Store(1, &["a"], 5),
    Psync(1, &["a"]),
];
/// The daemon is killed between psyncs, and another follows.
const PSYNCS_KILLED: &[ClientStep] = &[
    Serve,
    CreateShadowed("a"),
    Grant(1, "a", ReadWrite),
    Store(1, &["a"], 1),
    Psync(1, &["a"]),
    Store(1, &["a"], 2),
    Kill,
    Serve,
];

#[track_caller]
fn visit(
    what: &str,
    script: &[ClientStep],
    level: Durability,
    alive: bool,
    place: usize,
    every: u64,
) {
    match run(
        script,
        level,
        window_base(5200 + place),
        alive,
        (Bug::None, ExploreWhen::Both),
        Sampled::of_change(every),
    ) {
        Ok(tally) => println!("{level} level, {what}, {} steps: {tally}", script.len()),
        Err(what) => panic!("{level} level: {what}"),
    }
}

#[test]
fn clients_come_and_go() {
    visit("clients", HOSTED_CLIENTS, Durability::Power, false, 0, 40);
    visit("clients", HOSTED_CLIENTS, Durability::Process, false, 0, 40);
}

#[test]
fn clients_outlive_the_daemon() {
    visit("clients that live", KILLED, Durability::Power, true, 1, 20);
    visit("clients that live", KILLED, Durability::Process, true, 1, 20);
    visit("clients that died with it", KILLED, Durability::Power, false, 1, 20);
}

#[test]
fn logs_that_are_set_aside_are_applied_or_discarded() {
    visit("applied", APPLIED, Durability::Power, false, 2, 20);
    visit("discarded", DISCARDED, Durability::Power, false, 2, 4);
    visit("discarded", DISCARDED, Durability::Process, false, 2, 20);
}

#[test]
fn clients_psync_pools_in_shadowed_mode() {
    visit("psyncs", PSYNCS, Durability::Process, false, 10, 100);
    visit("psyncs in turns of the journal's halves", HALVES, Durability::Process, false, 10, 100);
    visit(
        "psyncs of clients that die with the daemon",
        PSYNCS_KILLED,
        Durability::Process,
        false,
        10,
        20,
    );
    visit("psyncs of clients that live", PSYNCS_KILLED, Durability::Process, true, 10, 20);
}

#[track_caller]
fn caught(bug: Bug, script: &[ClientStep], level: Durability, alive: bool, place: usize) {
    caught_in((bug, ExploreWhen::Running, 0), script, level, alive, place);
}

/// The same where the bug is in other places, and one in `every` recoveries is crashed in turn.
#[track_caller]
fn caught_in(
    (bug, when, every): (Bug, ExploreWhen, u64),
    script: &[ClientStep],
    level: Durability,
    alive: bool,
    place: usize,
) {
    match run(script, level, window_base(5200 + place), alive, (bug, when), Sampled::all(every)) {
        Err(what) => println!("{bug:?}: found: {what}"),
        Ok(tally) => panic!("{bug:?} was not found: {tally}"),
    }
}

#[test]
fn a_grant_that_no_batch_says_is_found() {
    caught(Bug::GrantNotRecorded, &HOSTED_CLIENTS[..10], Durability::Power, false, 3);
}

#[test]
fn a_client_that_no_record_introduces_is_found() {
    caught(Bug::ClientNotIntroduced, KILLED, Durability::Power, true, 4);
}

#[test]
fn a_log_space_that_is_named_before_it_is_durable_is_found() {
    caught(Bug::LogSpaceNotSynced, &HOSTED_CLIENTS[..5], Durability::Power, false, 5);
}

#[test]
fn logs_that_are_removed_before_their_client_are_found() {
    caught(Bug::ClientLogsRemovedEarly, &HOSTED_CLIENTS[..11], Durability::Power, false, 6);
}

#[test]
fn what_a_client_left_in_the_page_cache_without_a_lease_is_found() {
    caught(Bug::ClientLeaseNotInherited, &HOSTED_CLIENTS[..11], Durability::Process, false, 7);
}

#[test]
fn a_discarded_log_whose_pool_is_not_traced_is_found() {
    caught(Bug::DiscardNotTraced, DISCARDED, Durability::Power, false, 8);
}

#[test]
fn a_discarded_log_that_nothing_remembers_is_found() {
    caught(Bug::TornForgotten, DISCARDED, Durability::Power, false, 18);
}

#[test]
fn an_applied_log_that_was_not_replayed_is_found() {
    caught(Bug::ApplyNotReplayed, APPLIED, Durability::Power, false, 9);
}

#[test]
fn a_closed_store_that_is_recovered_before_it_says_open_is_found() {
    caught_in((Bug::OpenSaidLate, ExploreWhen::Both, 1), DISCARDED, Durability::Power, false, 16);
}

#[test]
fn a_clients_psync_that_is_answered_before_it_is_durable_is_found() {
    caught(Bug::TransferNotDurable, &PSYNCS[..11], Durability::Process, false, 11);
}

#[test]
fn a_grant_of_a_pool_in_shadowed_mode_that_no_batch_says_is_found() {
    caught(Bug::GrantNotRecorded, &PSYNCS[..11], Durability::Process, false, 12);
}

#[test]
fn a_clients_psync_whose_commit_record_comes_before_its_data_is_found() {
    caught(Bug::PsyncCommitBeforeData, &PSYNCS[..9], Durability::Process, false, 13);
}

#[test]
fn a_journal_half_that_clients_write_anew_too_early_is_found() {
    caught(Bug::JournalReusedEarly, HALVES, Durability::Process, false, 14);
}

#[test]
fn a_shadow_that_a_client_left_and_that_is_believed_after_a_loss_of_power_is_found() {
    caught_in(
        (Bug::ShadowNotRestored, ExploreWhen::Recovering, 0),
        &PSYNCS[..11],
        Durability::Process,
        false,
        15,
    );
}
