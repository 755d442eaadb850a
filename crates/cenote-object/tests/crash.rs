//! Every crash of a few histories of psyncs: after each, every object is exactly what the last
//! acknowledged psync left, or the psync in flight, and never a mixture; other objects are
//! untouched; so also when recovery crashes.

use crate::common::Step::{Die, Psync, PsyncAll, Reopen, Write};
use crate::common::{Reach, Step, When, explore};
use cenote_medium::planted::Bug;

#[track_caller]
fn holds(name: &str, steps: &[Step], half_len: u64) {
    let (tally, violation) = explore(steps, half_len, Reach::default(), Bug::None, When::Running);
    println!("{name}: {tally:?}");
    assert!(violation.is_none(), "{name}: {}", violation.unwrap_or_default());
    assert!(tally.images > 20, "{name}: hardly anything was looked at: {tally:?}");
    assert!(tally.recovery_images > 0 && tally.read_only > 0, "{name}: {tally:?}");
}

/// Scattered lines, whole pages, several objects, in a journal that holds a few records only.
#[test]
fn psyncs_that_reuse_the_journal_again_and_again() {
    let steps = [
        Write(0, 0, 8, 1),
        Write(0, 8000, 8, 1),
        Psync(0),
        Write(1, 0, 100, 2),
        Psync(1),
        Write(0, 0, 8, 3),
        Write(0, 4096, 70, 3),
        Psync(0),
        Write(0, 0, 8, 4),
        Write(0, 12000, 8, 4),
        Psync(0),
        Write(1, 50, 1, 5),
        Psync(1),
        Write(0, 64, 8, 6),
        Psync(0),
        Write(0, 0, 200, 7),
        Psync(0),
    ];
    holds("reuse", &steps, 8192);
}

#[test]
fn a_psync_of_whole_pages_is_torn_anywhere() {
    let steps =
        [Write(0, 0, 4096, 1), Psync(0), Write(0, 4096, 8192, 2), Write(0, 0, 1, 2), Psync(0)];
    holds("pages", &steps, 16384);
}

#[test]
fn objects_that_are_psynced_together_change_together() {
    let steps = [
        Write(0, 100, 8, 1),
        Write(1, 0, 8, 1),
        PsyncAll,
        Write(0, 9000, 8, 2),
        Write(1, 90, 8, 2),
        PsyncAll,
        Write(0, 100, 8, 3),
        Write(1, 0, 8, 3),
        Psync(1),
        PsyncAll,
    ];
    holds("together", &steps, 8192);
}

#[test]
fn sessions_that_end_well_or_not_follow_each_other() {
    let steps = [
        Write(0, 0, 8, 1),
        Psync(0),
        Write(0, 0, 8, 2),
        Die,
        Write(0, 64, 8, 3),
        Psync(0),
        Write(1, 0, 8, 4),
        Psync(1),
        Reopen,
        Write(0, 8, 8, 5),
        Psync(0),
        Die,
        Write(0, 16, 8, 6),
        Psync(0),
    ];
    holds("sessions", &steps, 8192);
}

#[test]
fn a_psync_that_is_larger_than_the_journal_makes_it_grow() {
    let steps = [
        Write(1, 0, 8, 1),
        Psync(1),
        Write(0, 0, 12288, 2),
        Psync(0),
        Write(1, 0, 8, 3),
        Psync(1),
        Write(0, 0, 64, 4),
        Psync(0),
    ];
    holds("growth", &steps, 4096);
}

#[test]
fn what_is_not_psynced_is_never_there() {
    let steps = [
        Write(0, 0, 8, 1),
        Psync(0),
        Write(0, 0, 12288, 2),
        Write(2, 0, 4096, 2),
        Write(1, 0, 8, 3),
        Psync(1),
    ];
    holds("unsynced", &steps, 8192);
}
