//! Whatever update of the store itself a crash interrupts, the next open works, what was
//! acknowledged is there, what was in flight is there whole or not at all, and nothing is left
//! over.

use Update::{
    Close, Compact, Create, Expect, Fill, Format, Grow, GrowLog, Kill, Lease, Open, Register,
    Release, Remove, ReturnLog, TakeLog,
};
use cenote_crashtest::explore::ExploreWhen;
use cenote_crashtest::rig::window_base;
use cenote_crashtest::tier::Sampled;
use cenote_crashtest::updates::{Update, run};
use cenote_medium::Durability;
use cenote_medium::planted::Bug;

/// One session does everything.
const ALL: &[Update] = &[
    Format,
    Open,
    Create("a"),
    Lease("a"),
    Grow("a"),
    Register,
    TakeLog,
    GrowLog,
    ReturnLog,
    Create("b"),
    Remove("b"),
    Release("a"),
    Close,
];
/// Later sessions, after a close and after a kill: the open itself is crashed.
const AGAIN: &[Update] = &[
    Format,
    Open,
    Create("a"),
    Lease("a"),
    TakeLog,
    ReturnLog,
    Release("a"),
    Close,
    Open,
    Lease("a"),
    TakeLog,
    Kill,
    Open,
    Lease("a"),
    Grow("a"),
    Kill,
    Open,
    Lease("a"),
    Release("a"),
    Remove("a"),
    Close,
    Open,
    Close,
];
/// The catalog is written anew.
const COMPACTION: &[Update] = &[Format, Open, Create("a"), Register, Compact, Create("b"), Close];

/// Puddles of a removed pool become spare and are taken; others are made ahead, taken, and named by
/// a close.
const SPARES: &[Update] = &[
    Format,
    Open,
    Create("a"),
    Lease("a"),
    Fill("a"),
    Grow("a"),
    Fill("a"),
    Release("a"),
    Remove("a"),
    Create("b"),
    Lease("b"),
    Grow("b"),
    Expect("b"),
    Grow("b"),
    Expect("b"),
    Kill,
    Open,
    Lease("b"),
    Fill("b"),
    Expect("b"),
    Release("b"),
    Close,
    Open,
    Remove("b"),
    Kill,
    Open,
    Create("c"),
    Close,
];

/// What is made ahead for one pool is taken by another, or named by a close.
const AHEAD: &[Update] = &[
    Format,
    Open,
    Create("a"),
    Lease("a"),
    Create("b"),
    Lease("b"),
    Expect("a"),
    Grow("b"),
    Expect("b"),
    Grow("b"),
    Expect("b"),
    Grow("a"),
    Grow("a"),
    Expect("a"),
    Release("a"),
    Release("b"),
    Close,
    Open,
    Lease("b"),
    Grow("b"),
    Kill,
    Open,
];

#[track_caller]
fn visit(what: &str, script: &[Update], level: Durability, place: usize, every: u64) {
    match run(
        script,
        level,
        window_base(5000 + place),
        (Bug::None, ExploreWhen::Both),
        Sampled::all(every),
    ) {
        Ok(tally) => println!("{level} level, {what}, {} updates: {tally}", script.len()),
        Err(what) => panic!("{level} level: {what}"),
    }
}

#[test]
fn one_session() {
    visit("one session", ALL, Durability::Power, 0, 1);
    visit("one session", ALL, Durability::Process, 0, 4);
}

#[test]
fn later_sessions() {
    visit("later sessions", AGAIN, Durability::Power, 1, 2);
    visit("later sessions", AGAIN, Durability::Process, 1, 4);
}

#[test]
fn compaction_of_the_catalog() {
    visit("compaction", COMPACTION, Durability::Power, 2, 1);
    visit("compaction", COMPACTION, Durability::Process, 2, 1);
}

#[test]
fn spare_puddles() {
    visit("spare puddles", SPARES, Durability::Power, 5, 4);
    visit("spare puddles", SPARES, Durability::Process, 5, 8);
}

#[test]
fn puddles_made_ahead() {
    visit("puddles made ahead", AHEAD, Durability::Power, 8, 4);
    visit("puddles made ahead", AHEAD, Durability::Process, 8, 8);
}

#[track_caller]
fn caught(bug: Bug, script: &[Update], place: usize) {
    let found = run(
        script,
        Durability::Power,
        window_base(5000 + place),
        (bug, ExploreWhen::Running),
        Sampled::default(),
    );
    match found {
        Err(what) => println!("{bug:?}: found: {what}"),
        Ok(tally) => panic!("{bug:?} was not found: {tally}"),
    }
}

#[test]
fn a_catalog_that_is_not_synced_is_found() {
    caught(Bug::CatalogNotSynced, &[Format, Open, Create("a")], 3);
}

#[test]
fn a_superblock_that_is_overwritten_in_place_is_found() {
    caught(Bug::SuperblockSameCopy, &[Format, Open], 4);
}

#[test]
fn a_spare_puddle_that_keeps_what_a_removed_pool_held_is_found() {
    caught(Bug::SpareNotCleared, &SPARES[..10], 6);
}

#[test]
fn a_spare_puddle_that_is_called_zeros_too_early_is_found() {
    caught(Bug::SpareHeaderEarly, &SPARES[..9], 7);
}

#[test]
fn a_puddle_that_says_it_is_another_pools_is_found() {
    caught(Bug::AheadOfAnother, &AHEAD[..8], 9);
}
