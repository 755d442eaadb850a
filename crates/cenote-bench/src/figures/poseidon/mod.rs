//! Poseidon's Figures 6 to 9, over the traced and the logged heap, with the paper's parameters.
//!
//! | figure | module | rows | an operation |
//! | --- | --- | --- | --- |
//! | `poseidon6` | [`pairs`] | `64B` to `256K` | an allocation and a free |
//! | `poseidon7` | [`pairs`] | `larson` | a free and an allocation |
//! | `poseidon8` | [`solvers`] | `ackermann`, `kruskal`, `queens` | a repetition |
//! | `poseidon9` | [`ycsb`] | `load`, `a` | an operation on a B+-tree |
//!
//! Unit: nanoseconds of wall clock, divided by the operations of all threads: two threads that do
//! not disturb each other halve it. Threads: 1, 2, 4, 8 and 16, or those of `--threads`, not
//! pinned. A run is as long as any other figure's, or with `--scale X` that part of the paper's.
//!
//! Systems: `traced` is called as transactions call it; `logged` with each protection of its
//! metadata ([`LOGGED`]). Both are heaps of pools in stores, at both levels. libpmemobj and
//! mimalloc are in `peers`. Every block is stamped and checked, as in the figure of
//! allocators.

pub mod pairs;
pub mod solvers;
pub mod tree;
pub mod ycsb;

use crate::allocator::Allocator;
use crate::case::{Case, Failure, Length, POWER, PROCESS, Sample};
use crate::figures::figure::{Body, Figure};
use crate::logged::Logged;
use crate::place::Settings;
use crate::traced::Traced;
use cenote::Durability;
use cenote_heap::logged::{LoggedOptions, Protection};
use cenote_medium::Persistence;
use std::sync::Arc;

/// Figure 6.
pub const FIGURE6: Figure = Figure {
    name: "poseidon6",
    title: "Poseidon, Figure 6: 100 allocations, 100 frees in random order",
    body: Body::Cases(|settings| ours("poseidon6", settings)),
};

/// Figure 7.
pub const FIGURE7: Figure = Figure {
    name: "poseidon7",
    title: "Poseidon, Figure 7: Larson",
    body: Body::Cases(|settings| ours("poseidon7", settings)),
};

/// Figure 8.
pub const FIGURE8: Figure = Figure {
    name: "poseidon8",
    title: "Poseidon, Figure 8: Ackermann, Kruskal, N-Queens",
    body: Body::Cases(|settings| ours("poseidon8", settings)),
};

/// Figure 9.
pub const FIGURE9: Figure = Figure {
    name: "poseidon9",
    title: "Poseidon, Figure 9: YCSB over a B+-tree",
    body: Body::Cases(|settings| ours("poseidon9", settings)),
};

/// The logged heap in the rows, by the protection of its metadata. The first is the default.
pub const LOGGED: [(&str, Protection); 4] = [
    ("logged", Protection::Hidden),
    ("logged-open", Protection::None),
    ("logged-keys", Protection::Keys),
    ("logged-mprotect", Protection::Mprotect),
];

/// Those of [`LOGGED`] that are measured: all that this machine has; in a quick run, in Figure 6
/// alone.
fn logged(figure: &str, settings: &Settings) -> impl Iterator<Item = (&'static str, Protection)> {
    let count = if settings.quick && figure != "poseidon6" { 1 } else { LOGGED.len() };
    LOGGED.into_iter().take(count).filter(|(_, protection)| protection.within(true) == *protection)
}

/// A system at one level.
#[derive(Clone, Debug)]
pub struct On<A> {
    /// What allocates.
    pub allocator: Arc<A>,
    /// Its name in the rows.
    pub system: &'static str,
    /// `process`, `power` or `none`.
    pub level: &'static str,
    /// Whether `cenote-medium` counts its flushes and fences.
    pub counted: bool,
}

impl<A: Allocator> On<A> {
    /// A case that warms itself up.
    pub fn case(
        &self,
        row: &'static str,
        threads: u32,
        length: Length,
        work: impl Fn(&Arc<A>, u64) -> Result<Sample, Failure> + 'static,
    ) -> Case {
        let allocator = Arc::clone(&self.allocator);
        let mut case =
            Case::new(row, self.system, self.level, move |count| work(&allocator, count));
        (case.threads, case.length) = (threads, length);
        (case.warms_itself, case.counted) = (true, self.counted);
        case
    }

    /// How a data structure makes durable what it stores itself, in the memory of this system.
    #[must_use]
    pub fn persistence(&self) -> Persistence {
        if self.level == POWER { Persistence::power() } else { Persistence::PROCESS }
    }
}

/// All rows of a figure for one system; none of other figures.
#[must_use]
pub fn cases_of<A: Allocator>(figure: &str, on: &On<A>, settings: &Settings) -> Vec<Case> {
    match figure {
        "poseidon6" => pairs::figure6(on, settings),
        "poseidon7" => pairs::figure7(on, settings),
        "poseidon8" => solvers::figure8(on, settings),
        "poseidon9" => ycsb::figure9(on, settings),
        _ => Vec::new(),
    }
}

/// The rows for the heaps of this project.
fn ours(figure: &str, settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for (level, durability) in [(PROCESS, Durability::Process), (POWER, Durability::Power)] {
        let allocator = Traced::open(settings, durability)?;
        let on = On { allocator, system: "traced", level, counted: true };
        cases.extend(cases_of(figure, &on, settings));
        for (system, protection) in logged(figure, settings) {
            let options = LoggedOptions { protection, ..LoggedOptions::default() };
            let allocator = Logged::open(settings, durability, &options)?;
            let on = On { allocator, system, level, counted: true };
            cases.extend(cases_of(figure, &on, settings));
        }
    }
    Ok(cases)
}

/// The numbers of threads of these figures.
pub(crate) fn threads(settings: &Settings) -> Vec<u32> {
    match (settings.threads.is_empty(), settings.quick) {
        (false, _) => settings.threads.clone(),
        (true, true) => vec![1, 2],
        (true, false) => vec![1, 2, 4, 8, 16],
    }
}

/// The length of a run, of which the paper's has `whole` operations.
pub(crate) fn operations(whole: u64, settings: &Settings) -> Length {
    part(whole, settings).map_or(Length::Planned, Length::Operations)
}

/// That part of the paper's number which `--scale` asks for.
pub(crate) fn part(whole: u64, settings: &Settings) -> Option<u64> {
    settings.scale.map(|scale| ((whole as f64 * scale) as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::testing::Arena;

    const FIGURES: [(&str, usize); 4] =
        [("poseidon6", 7), ("poseidon7", 1), ("poseidon8", 3), ("poseidon9", 2)];

    fn settings() -> Settings {
        let (threads, objects) = (vec![2], Some(2000));
        Settings { quick: true, threads, objects, ..Settings::default() }
    }

    /// A row and its result.
    type Ran = (&'static str, Result<Sample, Failure>);

    /// Rows and results over an arena.
    fn run(figure: &str, arena: Arena) -> (Vec<Ran>, Arc<Arena>) {
        let arena = Arc::new(arena);
        let on =
            On { allocator: Arc::clone(&arena), system: "arena", level: "none", counted: false };
        let cases = cases_of(figure, &on, &settings());
        let ran = cases.into_iter().map(|mut case| (case.row, (case.work)(300))).collect();
        (ran, arena)
    }

    #[test]
    fn every_workload_frees_what_it_allocates_and_says_how_much_it_did() {
        for (figure, rows) in FIGURES {
            let (ran, arena) = run(figure, Arena::default());
            assert_eq!(ran.len(), rows, "{figure}");
            for (row, result) in ran {
                let sample = result.expect(row);
                assert!(sample.operations >= 300 && !sample.elapsed.is_zero(), "{row}: {sample:?}");
            }
            let (taken, freed) = arena.counts();
            assert_eq!(taken, freed, "{figure}");
            assert!(taken > 0, "{figure}");
        }
    }

    #[test]
    fn every_workload_finds_blocks_that_overlap_and_a_refused_free() {
        for (figure, _) in FIGURES {
            for (row, result) in run(figure, Arena { refuses: Some(100), ..Arena::default() }).0 {
                let error = result.expect_err(row).to_string();
                assert!(error.contains("refused"), "{row}: {error}");
            }
            let scribbling = run(figure, Arena { scribbles: true, ..Arena::default() }).0;
            // Those that hold one block at a time have none before it that another could damage.
            for (row, result) in scribbling {
                if !matches!(row, "ackermann" | "queens") {
                    let error = result.expect_err(row).to_string();
                    assert!(error.contains("overlaps"), "{row}: {error}");
                }
            }
        }
    }

    #[test]
    fn no_workload_hangs_when_there_is_no_memory() {
        for (figure, _) in FIGURES {
            for limit in [0, 1, 150] {
                for (row, result) in run(figure, Arena { limit: Some(limit), ..Arena::default() }).0
                {
                    let error = result.expect_err(row).to_string();
                    assert!(error.contains("no block of"), "{row}: {error}");
                }
            }
        }
    }

    #[test]
    fn every_row_is_measured_over_both_heaps_at_both_levels() {
        let settings = settings();
        for (figure, rows) in FIGURES {
            let cases = ours(figure, &settings).expect("stores");
            let protections = logged(figure, &settings).count();
            assert_eq!(cases.len(), 2 * (1 + protections) * rows, "{figure}");
            for mut case in cases {
                (case.work)(300).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            }
        }
    }
}
