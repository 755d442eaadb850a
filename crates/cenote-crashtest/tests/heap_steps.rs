//! Every step of the heap is crashed at every moment, with every subset of up to 12 units of what
//! was not durable, at both levels; and so is the recovery. No block is there twice, what is
//! committed is there, nothing is lost, and the heap goes on.

use Do::{Chain, Cut, Trim};
use cenote_crashtest::explore::ExploreWhen;
use cenote_crashtest::heap_steps::{Do, Script, run, told};
use cenote_crashtest::rig::window_base;
use cenote_crashtest::tier::Sampled;
use cenote_medium::Durability;
use cenote_medium::planted::Bug;

const fn chain(slot: u16, count: u64, size: u64, kind: u64) -> Do {
    Chain { slot, count, size, kind }
}

/// A free superblock becomes one of small blocks: marks beside it, marks inside, and one that had
/// other blocks before.
const TAKEN: Script = Script {
    puddle_size: 384 << 10,
    before: &[],
    crashed: &[chain(0, 1, 64, 1), chain(1, 2, 16, 2), chain(2, 1, 8192, 3), Cut(1)],
};
/// The pool is full of empty superblocks, whose blocks were all ones; they become those of other
/// types.
const CHANGES_HANDS: Script = Script {
    puddle_size: 256 << 10,
    before: &[
        chain(0, 1024, 64, 1),
        chain(1, 8, 8192, 2),
        chain(2, 64, 1000, 3),
        Cut(0),
        Cut(1),
        Cut(2),
    ],
    crashed: &[chain(3, 1, 16, 4), chain(4, 1, 64, 5), chain(5, 1, 130_000, 6)],
};
/// Blocks are freed, one after the other, until half of the cache goes back.
const SPILL: Script = Script {
    puddle_size: 1 << 20,
    before: &[chain(0, 20, 8192, 1), chain(1, 20, 8192, 1), chain(2, 5, 8192, 1)],
    crashed: &[Cut(1), Cut(0)],
};
/// Blocks come from superblocks that have some again.
const REFILL: Script = Script {
    puddle_size: 1 << 20,
    before: &[chain(0, 20, 8192, 1), chain(1, 20, 8192, 1), chain(2, 40, 8192, 1), Cut(0), Cut(2)],
    crashed: &[chain(3, 36, 8192, 1)],
};
/// Large blocks come, go, and are replaced by smaller ones.
const LARGE: Script = Script {
    puddle_size: 512 << 10,
    before: &[],
    crashed: &[
        chain(0, 1, 130_000, 1),
        Cut(0),
        chain(1, 1, 65_536, 2),
        chain(2, 1, 130_000, 3),
        Cut(1),
    ],
};
/// No superblock is free: the store gives a puddle.
const GROWTH: Script = Script {
    puddle_size: 192 << 10,
    before: &[chain(0, 2, 65_536, 1)],
    crashed: &[chain(1, 1, 8192, 2), chain(2, 1, 400_000, 3)],
};
/// Free superblocks become holes, and are taken again.
const TRIMMED: Script = Script {
    puddle_size: 512 << 10,
    before: &[
        chain(0, 9, 8192, 1),
        chain(1, 1, 130_000, 2),
        chain(2, 1024, 64, 3),
        Cut(0),
        Cut(1),
        Cut(2),
    ],
    crashed: &[
        chain(3, 1, 8192, 4),
        Trim,
        chain(4, 2, 64, 5),
        chain(5, 1, 130_000, 6),
        Cut(3),
        Trim,
    ],
};

/// What is behind blocks is given back, and taken again for blocks of other sizes.
const CUT_ENDS: Script = Script {
    puddle_size: 384 << 10,
    before: &[chain(0, 1, 130_000, 1), Cut(0)],
    crashed: &[
        chain(1, 1, 70_000, 2),
        chain(2, 1, 18_000, 3),
        Cut(1),
        chain(3, 1, 130_000, 4),
        Cut(2),
        chain(4, 1, 60_000, 5),
    ],
};

/// `recoveries`: which are crashed at level `power`. Of few, all are.
#[track_caller]
fn visit(what: &str, script: &Script, place: usize, recoveries: Sampled) {
    for level in [Durability::Power, Durability::Process] {
        // There are fewer images where nothing is lost.
        let recoveries = if level == Durability::Power { recoveries } else { Sampled::all(4) };
        match run(
            script,
            level,
            window_base(7000 + place),
            (Bug::None, ExploreWhen::Both),
            recoveries,
        ) {
            Ok(tally) => {
                println!("{level} level, {what}: {}", told(&tally));
                assert!(tally.points > 20 && tally.images > 20 && tally.recoveries > 0);
            }
            Err(what) => panic!("{level} level: {what}"),
        }
    }
}

#[test]
fn superblocks_are_taken() {
    visit("superblocks taken", &TAKEN, 0, Sampled::all(16));
}

#[test]
fn superblocks_change_hands() {
    visit("superblocks change hands", &CHANGES_HANDS, 1, Sampled::of_change(16));
}

#[test]
fn caches_spill() {
    visit("spill", &SPILL, 2, Sampled::all(16));
}

#[test]
fn caches_are_refilled() {
    visit("refill", &REFILL, 3, Sampled::all(16));
}

#[test]
fn large_blocks_come_and_go() {
    visit("large blocks", &LARGE, 4, Sampled::of_change(64));
}

#[test]
fn the_heap_grows() {
    visit("growth", &GROWTH, 5, Sampled::of_change(16));
}

#[test]
fn space_is_given_back_and_taken_again() {
    visit("trim", &TRIMMED, 6, Sampled::of_change(64));
}

#[test]
fn what_is_behind_blocks_is_given_back_and_taken_again() {
    visit("cut ends", &CUT_ENDS, 17, Sampled::all(64));
}

#[track_caller]
fn caught(bug: Bug, when: ExploreWhen, script: &Script, level: Durability, place: usize) {
    match run(script, level, window_base(7000 + place), (bug, when), Sampled::default()) {
        Err(what) => println!("{bug:?}: found: {what}"),
        Ok(tally) => panic!("{bug:?} was not found: {}", told(&tally)),
    }
}

#[test]
fn a_descriptor_that_is_not_flushed_is_found() {
    caught(Bug::DescriptorNotFlushed, ExploreWhen::Running, &TAKEN, Durability::Power, 8);
}

#[test]
fn tails_without_descriptors_are_found() {
    caught(Bug::TailsNotDescribed, ExploreWhen::Running, &LARGE, Durability::Process, 9);
}

#[test]
fn a_large_block_that_is_marked_early_is_found() {
    caught(Bug::MarkedBeforeDescribed, ExploreWhen::Running, &LARGE, Durability::Process, 10);
}

#[test]
fn a_spill_that_is_not_announced_is_found() {
    caught(Bug::SpillNotAnnounced, ExploreWhen::Running, &SPILL, Durability::Process, 11);
}

#[test]
fn blocks_that_stay_in_caches_of_the_dead_are_found() {
    caught(Bug::CachedKept, ExploreWhen::Recovering, &TAKEN, Durability::Process, 12);
}

#[test]
fn marks_that_recovery_leaves_are_found() {
    caught(Bug::RecoveryKeepsMarks, ExploreWhen::Recovering, &SPILL, Durability::Power, 13);
}

#[test]
fn a_puddle_that_the_catalog_does_not_know_is_found() {
    caught(Bug::CatalogNotSynced, ExploreWhen::Running, &GROWTH, Durability::Power, 14);
}

#[test]
fn a_hole_that_no_descriptor_names_is_found() {
    caught(Bug::HoleBeforeDescriptor, ExploreWhen::Running, &TRIMMED, Durability::Power, 15);
}

#[test]
fn an_end_that_no_descriptor_names_is_found() {
    caught(Bug::CutBeforeDescriptor, ExploreWhen::Running, &CUT_ENDS, Durability::Process, 18);
}

#[test]
fn a_store_into_a_hole_is_found() {
    caught(Bug::HoleNotEnsured, ExploreWhen::Running, &TRIMMED, Durability::Process, 16);
}
