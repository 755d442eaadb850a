//! What a run is to look at, and what it has seen.
//!
//! Invariant: what is counted was looked at; what a run leaves out by its plan is not in the sums
//! as if it had been there.

use crate::history::History;
use crate::rig::Strategy;
use crate::units::Reach;
use cenote::HeapKind;
use cenote_medium::Durability;
use cenote_medium::planted::Bug;
use cenote_medium::sim::Fault;
use std::fmt;
use std::time::Duration;

/// What is looked at, and how closely.
#[derive(Clone, Debug)]
pub struct ExplorePlan {
    /// What the pools' heaps are.
    pub heap: HeapKind,
    /// Durability level of the medium.
    pub level: Durability,
    /// How histories write.
    pub strategy: Strategy,
    /// The histories.
    pub histories: Vec<History>,
    /// How far states of histories are enumerated, by the number of their operations: the first
    /// whose number is not smaller counts.
    pub reach: Vec<(usize, Reach)>,
    /// Crashes of the recovery are looked at too.
    pub recoveries: Recoveries,
    /// Of the images that have the canonical form of one that was recovered, but other bytes, one
    /// in so many is recovered too; 0: none.
    pub merged_every: u64,
    /// One image in so many is also written to, closed and opened again.
    pub thorough_every: u64,
    /// On one image in so many another session runs a short history, which is crashed everywhere
    /// too; 0: on none.
    pub again_every: u64,
    /// A bug that is planted, and where.
    pub bug: (Bug, ExploreWhen),
    /// A fault of the medium, from the first operation of a history on.
    pub fault: Option<Fault>,
    /// Look at the crash points of all operations, not only of the last: for single histories.
    pub all_operations: bool,
    /// Threads.
    pub threads: usize,
}

/// Which recoveries are crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recoveries {
    /// None.
    None,
    /// One of every shape of what replay is to do, and one of all that the open looks at.
    Shapes,
    /// All of those images that are recovered.
    All,
}

/// In which part of a history a bug is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExploreWhen {
    /// While the history runs; recovery is sound.
    Running,
    /// While an image is recovered.
    Recovering,
    /// All the time.
    Both,
}

/// What a run has visited.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExploreTally {
    /// Histories.
    pub histories: u64,
    /// Moments at which a crash was made.
    pub points: u64,
    /// Of them, those of which all combinations of units were visited.
    pub exhausted: u64,
    /// Of them, those with up to 12 undecided units.
    pub small: u64,
    /// Of the ones with up to 12 undecided units, those of which not all combinations were
    /// visited.
    pub small_sampled: u64,
    /// Images that were looked at.
    pub visited: u64,
    /// Images that were recovered and checked.
    pub images: u64,
    /// Images whose canonical form, or all of whose bytes, had been checked before.
    pub duplicates: u64,
    /// Images of which what a new puddle holds, and all else, had been checked before, but not
    /// both together.
    pub halves: u64,
    /// Of them, those that were recovered all the same, and found to hold what the first one
    /// holds.
    pub compared: u64,
    /// Undecided units of the largest state.
    pub units_max: usize,
    /// Recoveries whose own crash points were looked at.
    pub recoveries: u64,
    /// Moments of them at which a crash was made.
    pub recovery_points: u64,
    /// Of them, those of which all combinations of units were visited.
    pub recovery_exhausted: u64,
    /// Images of crashes of recoveries, looked at.
    pub recovery_visited: u64,
    /// Of them, those that were recovered again and checked.
    pub recovery_images: u64,
    /// Images on which another session went on and was crashed.
    pub sessions: u64,
    /// Images of crashes of those, checked.
    pub session_images: u64,
    /// Calls that a planted fault hit.
    pub fault_hits: u64,
    /// Time it took.
    pub took: Duration,
}

impl ExploreTally {
    /// Adds what another thread or run has visited.
    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.points += other.points;
        self.exhausted += other.exhausted;
        self.small += other.small;
        self.small_sampled += other.small_sampled;
        self.visited += other.visited;
        self.images += other.images;
        self.duplicates += other.duplicates;
        self.halves += other.halves;
        self.compared += other.compared;
        self.units_max = self.units_max.max(other.units_max);
        self.recoveries += other.recoveries;
        self.recovery_points += other.recovery_points;
        self.recovery_exhausted += other.recovery_exhausted;
        self.recovery_visited += other.recovery_visited;
        self.recovery_images += other.recovery_images;
        self.sessions += other.sessions;
        self.session_images += other.session_images;
        self.fault_hits += other.fault_hits;
        self.took += other.took;
    }
}

impl fmt::Display for ExploreTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            histories,
            points,
            exhausted,
            small,
            small_sampled,
            visited,
            images,
            duplicates,
            ..
        } = self;
        write!(
            f,
            "{histories} histories, {points} crash points ({exhausted} with every subset; of \
             {small} with up to 12 units all but {small_sampled}; \
             up to {} units), {visited} images, {images} recovered and checked, {duplicates} \
             merged with those ({} of them compared), {} by halves; ",
            self.units_max, self.compared, self.halves
        )?;
        write!(
            f,
            "{} recoveries crashed at {} points ({} with every subset), {} images, {} recovered \
             again; \
             {} times another session crashed with {} images; {:.1?}",
            self.recoveries,
            self.recovery_points,
            self.recovery_exhausted,
            self.recovery_visited,
            self.recovery_images,
            self.sessions,
            self.session_images,
            self.took
        )
    }
}

/// A crash after which something does not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The history.
    pub history: History,
    /// What happened, and in which image.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "history {}: {}", self.history, self.what)
    }
}
