//! Allocators: Ralloc's Figure 5 a-d and the microbenchmark of Poseidon's Figure 6.
//!
//! Unit: million operations a second, of all threads together; a row says what an operation is.
//! Every block is stamped and checked ([`crate::allocator`]), in the timed part, for every system
//! alike.
//!
//! The rows, each with its unit and a thread's part:
//!
//! * [`threadtest`] (pairs: an allocation and a free): again and again: allocate 10^5 blocks of 64
//!   bytes, then free them in the same order.
//! * [`shbench`] (pairs): sizes from 64 to 400 bytes, small ones more often, over 10^5 slots; a
//!   moving fifth of the slots is kept while the others are freed.
//! * [`larson`] (pairs): 10^3 blocks of 64 to 400 bytes, which another thread allocated; free a
//!   random one and allocate another in its place; after a while a new thread goes on with the
//!   blocks.
//! * [`prodcon`] (objects): pairs of threads: one allocates objects of 64 bytes and sends them
//!   through a Michael-Scott queue, the other frees them.
//! * [`poseidon6`]`_SIZE` (operations: an allocation or a free): 100 allocations of SIZE bytes,
//!   then 100 frees in random order.
//!
//! A run is as long as any other figure's, or with `--scale X` that part of the paper's: 10^4
//! iterations of threadtest and 10^5 of shbench a thread, 30 s of Larson with 10^7 pairs a
//! generation of threads (10^5 without `--scale`), 10^7 objects of prodcon and 10^6 operations of
//! Poseidon's test in all.
//!
//! Systems: `cenote` is the heap of a pool in a store ([`crate::traced`]), called as transactions
//! call it, so that the compiler can inline. `cenote (call)` is the same heap behind a function
//! call, as malloc is for every program. The peers are in `peers`. Threads are not
//! pinned.

pub mod larson;
pub mod poseidon6;
pub mod prodcon;
pub mod shbench;
pub mod threadtest;

use crate::allocator::{Allocator, Called};
use crate::case::{Case, Failure, Length, Sample, Unit};
use crate::figures::{Body, Figure};
use crate::place::Settings;
use crate::traced::Traced;
use cenote::Durability;
use std::sync::Arc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "allocators",
    title: "Ralloc, Figure 5 a-d, and Poseidon, Figure 6: allocators",
    body: Body::Cases(cases),
};

/// Unit of rows that count an allocation and a free as one.
pub const PAIRS: Unit = Unit::Millions("Mpairs/s");

/// Unit of rows that count objects that are passed on.
pub const OBJECTS: Unit = Unit::Millions("Mobjects/s");

/// Unit of rows that count allocations and frees.
pub const OPERATIONS: Unit = Unit::Millions("Mops/s");

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for durability in [Durability::Process, Durability::Power] {
        let traced = Traced::open(settings, durability)?;
        let mut add = |mut more: Vec<Case>| {
            more.iter_mut().for_each(|case| case.counted = true);
            cases.extend(more);
        };
        add(cases_of(&traced, "cenote", traced.level, settings));
        if durability == Durability::Process {
            let called = Arc::new(Called(traced.clone()));
            add(cases_of(&called, "cenote (call)", traced.level, settings));
        }
    }
    Ok(cases)
}

/// All rows for one system. Flushes and fences are not counted unless the caller says so in each
/// case.
pub fn cases_of<A: Allocator>(
    allocator: &Arc<A>,
    system: &'static str,
    level: &'static str,
    settings: &Settings,
) -> Vec<Case> {
    let mut cases = Vec::new();
    let part = |whole: u64| settings.scale.map(|scale| ((whole as f64 * scale) as u64).max(1));
    let operations = |whole: u64| part(whole).map_or(Length::Planned, Length::Operations);
    for threads in settings.threads() {
        let case = |row, unit, length, work: WorkOn<A>| {
            let allocator = allocator.clone();
            let mut case =
                Case::new(row, system, level, move |count| work(&*allocator, threads, count));
            (case.threads, case.unit, case.length, case.warms_itself) =
                (threads, unit, length, true);
            case.uncounted()
        };
        let all = u64::from(threads);
        let objects = if settings.quick { 2000 } else { threadtest::OBJECTS };
        let whole = threadtest::OBJECTS * threadtest::ITERATIONS * all;
        cases.push(case(
            "threadtest",
            PAIRS,
            operations(whole),
            Box::new(move |a, threads, count| threadtest::run(a, threads, objects, count)),
        ));
        let slots = if settings.quick { 2000 } else { shbench::SLOTS };
        let whole = shbench::PAIRS_PER_ITERATION * shbench::ITERATIONS * all;
        cases.push(case(
            "shbench",
            PAIRS,
            operations(whole),
            Box::new(move |a, threads, count| shbench::run(a, threads, slots, count)),
        ));
        let least = if settings.quick { 5000 } else { larson::GENERATION_MIN };
        let generation = part(larson::GENERATION).unwrap_or(0).max(least);
        cases.push(case(
            "larson",
            PAIRS,
            part(larson::LENGTH_MS).map_or(Length::Planned, Length::Milliseconds),
            Box::new(move |a, threads, count| larson::run(a, threads, generation, count)),
        ));
        if threads > 1 {
            cases.push(case(
                "prodcon",
                OBJECTS,
                operations(prodcon::OBJECTS),
                Box::new(|a, threads, count| prodcon::run(a, threads, count)),
            ));
        }
        for (row, size) in poseidon6::ROWS {
            cases.push(case(
                row,
                OPERATIONS,
                operations(poseidon6::OPERATIONS),
                Box::new(move |a, threads, count| poseidon6::run(a, threads, size, count)),
            ));
        }
    }
    cases
}

type WorkOn<A> = Box<dyn Fn(&A, u32, u64) -> Result<Sample, Failure>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::testing::Arena;

    /// Row, result, blocks allocated and freed.
    type Ran = (&'static str, Result<Sample, Failure>, (u64, u64));

    fn runs(arena: Arena) -> Vec<Ran> {
        let settings = Settings { quick: true, threads: vec![2], ..Settings::default() };
        let arena = Arc::new(arena);
        let mut before = (0, 0);
        let runs = cases_of(&arena, "arena", "none", &settings).into_iter().map(|mut case| {
            let result = (case.work)(3000);
            let after = arena.counts();
            let counts = (after.0 - before.0, after.1 - before.1);
            before = after;
            (case.row, result, counts)
        });
        runs.collect()
    }

    #[test]
    fn every_workload_frees_what_it_allocates_and_says_how_much_it_did() {
        let runs = runs(Arena::default());
        assert_eq!(runs.len(), 4 + poseidon6::ROWS.len());
        for (row, result, (taken, freed)) in runs {
            let sample = result.expect(row);
            assert!(sample.operations >= 3000 && !sample.elapsed.is_zero(), "{row}: {sample:?}");
            assert_eq!(taken, freed, "{row}");
            assert!(taken >= 1500, "{row}: {taken}");
        }
    }

    #[test]
    fn every_workload_finds_blocks_that_overlap() {
        for (row, result, _) in runs(Arena { scribbles: true, ..Arena::default() }) {
            let error = result.expect_err(row).to_string();
            assert!(error.contains("overlaps"), "{row}: {error}");
        }
    }

    #[test]
    fn every_workload_finds_a_refused_free() {
        for (row, result, _) in runs(Arena { refuses: Some(1000), ..Arena::default() }) {
            let error = result.expect_err(row).to_string();
            assert!(error.contains("refused"), "{row}: {error}");
        }
    }

    #[test]
    fn no_workload_hangs_when_there_is_no_memory() {
        for limit in [0, 1, 700] {
            for (row, result, _) in runs(Arena { limit: Some(limit), ..Arena::default() }) {
                let error = result.expect_err(row).to_string();
                assert!(error.contains("no block of"), "{row}: {error}");
            }
        }
    }
}
