//! Poseidon's microbenchmark: 100 allocations, then 100 frees in random order, of one size.

use crate::allocator::{Allocator, Fault, Numbers, give, take, verdict};
use crate::case::{Failure, Sample};
use crate::random::Random;
use crate::team::team;
use std::hint::black_box;

/// Operations of the paper, over all threads.
pub const OPERATIONS: u64 = 1_000_000;

/// Blocks that a thread holds at once.
const BLOCKS: usize = 100;

/// Orders in which they are freed.
const ORDERS: usize = 32;

/// The rows, with the bytes of their blocks.
pub const ROWS: [(&str, usize); 7] = [
    ("poseidon6_64B", 64),
    ("poseidon6_256B", 256),
    ("poseidon6_1K", 1 << 10),
    ("poseidon6_4K", 4 << 10),
    ("poseidon6_16K", 16 << 10),
    ("poseidon6_64K", 64 << 10),
    ("poseidon6_256K", 256 << 10),
];

/// At least `count` allocations and frees over all threads; each thread does a few hundred more
/// before the clock starts.
///
/// # Errors
/// No memory, or a block that is not as it should be.
pub fn run<A: Allocator>(
    allocator: &A,
    threads: u32,
    size: usize,
    count: u64,
) -> Result<Sample, Failure> {
    let turns = count.div_ceil(2 * BLOCKS as u64 * u64::from(threads)).max(1);
    team(threads, |member| {
        let mut random = Random::new(u64::from(member.index));
        let orders: Vec<[u8; BLOCKS]> = (0..ORDERS)
            .map(|_| {
                let mut order = core::array::from_fn(|i| i as u8);
                random.shuffle(&mut order);
                order
            })
            .collect();
        let mut numbers = Numbers::of_thread(member.index);
        let mut wrong = 0;
        let mut some = |turns: u64| -> Result<(), Fault> {
            for turn in 0..turns {
                wrong |= once(allocator, size, &orders[turn as usize % ORDERS], &mut numbers)?;
            }
            Ok(())
        };
        some((turns / 8).clamp(2, 1000))?;
        member.timed(|| some(turns))?;
        verdict(wrong)?;
        Ok(turns * 2 * BLOCKS as u64)
    })
}

#[inline(never)]
fn once<A: Allocator>(
    allocator: &A,
    size: usize,
    order: &[u8; BLOCKS],
    numbers: &mut Numbers,
) -> Result<u64, Fault> {
    let size = black_box(size);
    let mut held = [None; BLOCKS];
    for slot in &mut held {
        *slot = Some(take(allocator, size, numbers)?);
    }
    let mut wrong = 0;
    for &i in order {
        if let Some(held) = held[usize::from(i)] {
            // SAFETY: taken above; an order names each block once.
            wrong |= unsafe { give(allocator, held) };
        }
    }
    Ok(wrong)
}
