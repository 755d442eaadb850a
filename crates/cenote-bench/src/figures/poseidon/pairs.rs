//! Figure 6: 100 allocations and 100 frees in random order, of one size, 10^6 operations in all.
//! Figure 7: Larson, for 10 seconds.
//!
//! Both are the workloads of the figure of allocators ([`crate::figures::allocators`]). Here an
//! operation is a pair, because that is what the project has a target for.

use super::{On, operations, part, threads};
use crate::allocator::Allocator;
use crate::case::{Case, Length};
use crate::figures::allocators::{larson, poseidon6};
use crate::place::Settings;

/// Milliseconds of the paper's run of Larson.
const LARSON_MS: u64 = 10_000;

/// Pairs of a short generation of threads.
const GENERATION: u64 = 10_000;

/// The rows of Figure 6: a size each.
pub(super) fn figure6<A: Allocator>(on: &On<A>, settings: &Settings) -> Vec<Case> {
    let mut cases = Vec::new();
    for threads in threads(settings) {
        for (row, size) in poseidon6::ROWS {
            let row = row.trim_start_matches("poseidon6_");
            let length = operations(poseidon6::OPERATIONS / 2, settings);
            cases.push(on.case(row, threads, length, move |allocator, count| {
                let mut sample = poseidon6::run(&**allocator, threads, size, 2 * count)?;
                sample.operations /= 2;
                Ok(sample)
            }));
        }
    }
    cases
}

/// The row of Figure 7.
pub(super) fn figure7<A: Allocator>(on: &On<A>, settings: &Settings) -> Vec<Case> {
    let length = part(LARSON_MS, settings).map_or(Length::Planned, Length::Milliseconds);
    let least = if settings.quick { 1000 } else { GENERATION };
    let generation = part(larson::GENERATION, settings).unwrap_or(0).max(least);
    let case = |threads| {
        on.case("larson", threads, length, move |allocator, count| {
            larson::run(&**allocator, threads, generation, count)
        })
    };
    threads(settings).into_iter().map(case).collect()
}
