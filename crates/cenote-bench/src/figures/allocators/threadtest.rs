//! Threadtest (from Hoard): many objects of one size, nothing shared.

use crate::allocator::{Allocator, Fault, Numbers, StampedBlock, give, take, verdict};
use crate::case::{Failure, Sample};
use crate::team::team;
use std::hint::black_box;

/// Objects that a thread holds at once.
pub const OBJECTS: u64 = 100_000;

/// Iterations of the paper.
pub const ITERATIONS: u64 = 10_000;

/// Bytes of an object.
pub const SIZE: usize = 64;

/// At least `count` pairs over all threads, in whole iterations; each thread does one more before
/// the clock starts.
///
/// # Errors
/// No memory, or a block that is not as it should be.
pub fn run<A: Allocator>(
    allocator: &A,
    threads: u32,
    objects: u64,
    count: u64,
) -> Result<Sample, Failure> {
    let iterations = count.div_ceil(objects * u64::from(threads)).max(1);
    team(threads, |member| {
        let mut held = Vec::with_capacity(objects as usize);
        let mut numbers = Numbers::of_thread(member.index);
        let mut wrong = iteration(allocator, objects, &mut held, &mut numbers)?;
        member.timed(|| -> Result<(), Fault> {
            for _ in 0..iterations {
                wrong |= iteration(allocator, objects, &mut held, &mut numbers)?;
            }
            Ok(())
        })?;
        verdict(wrong)?;
        Ok(iterations * objects)
    })
}

#[inline(never)]
fn iteration<A: Allocator>(
    allocator: &A,
    objects: u64,
    held: &mut Vec<StampedBlock>,
    numbers: &mut Numbers,
) -> Result<u64, Fault> {
    let size = black_box(SIZE);
    for _ in 0..objects {
        held.push(take(allocator, size, numbers)?);
    }
    let mut wrong = 0;
    for held in held.drain(..) {
        // SAFETY: taken above, given back once.
        wrong |= unsafe { give(allocator, held) };
    }
    Ok(wrong)
}
