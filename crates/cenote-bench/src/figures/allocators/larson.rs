//! Larson: a server's pattern. Blocks bleed from thread to thread.
//!
//! Each thread begins with 10^3 blocks that the main thread allocated and dealt out at random. It
//! frees a random one and allocates one of random size in its place, again and again. After a
//! generation a new thread goes on with the blocks of the one before, which ends; starting threads
//! is part of what is timed.

use crate::allocator::{Allocator, Fault, Numbers, StampedBlock, give, take, verdict};
use crate::case::{Failure, Sample};
use crate::random::Random;
use crate::team::team;
use cenote_medium::counters::{self, Counts};
use std::sync::{Mutex, PoisonError};

/// Blocks of a thread.
pub const BLOCKS: usize = 1000;

/// Least bytes of a block.
pub const SIZE_MIN: usize = 64;

/// Most bytes of a block.
pub const SIZE_MAX: usize = 400;

/// Pairs that a thread of the paper does before the next goes on: 10^4 iterations over its 10^3
/// blocks.
pub const GENERATION: u64 = 10_000_000;

/// The same of a short run.
pub const GENERATION_MIN: u64 = 100_000;

/// Milliseconds of the paper's run.
pub const LENGTH_MS: u64 = 30_000;

/// At least `count` pairs over all threads, and at least one generation; `generation` of them by
/// each thread.
///
/// # Errors
/// No memory, or a block that is not as it should be.
pub fn run<A: Allocator>(
    allocator: &A,
    threads: u32,
    generation: u64,
    count: u64,
) -> Result<Sample, Failure> {
    let each = count.div_ceil(u64::from(threads)).max(generation.min(GENERATION_MIN));
    let mut random = Random::new(count);
    // The main thread's numbers are those of a thread that is not in the team.
    let mut numbers = Numbers::of_thread(threads);
    let mut dealt: Vec<StampedBlock> = Vec::new();
    for _ in 0..BLOCKS * threads as usize {
        dealt.push(take(allocator, random_size(&mut random), &mut numbers)?);
    }
    random.shuffle(&mut dealt);
    let hands: Vec<Mutex<Vec<StampedBlock>>> =
        dealt.chunks(BLOCKS).map(|hand| Mutex::new(hand.to_vec())).collect();
    team(threads, |member| {
        let hand = core::mem::take(
            &mut *hands[member.index as usize].lock().unwrap_or_else(PoisonError::into_inner),
        );
        let mut part = LarsonPart {
            allocator,
            blocks: hand,
            random: Random::new(u64::from(member.index) << 32 | count),
            numbers: Numbers::of_thread(member.index),
            wrong: 0,
        };
        member.timed(|| -> Result<(), Fault> {
            let mut left = each;
            while left > 0 {
                let pairs = left.min(generation);
                // The thread that waits here stands for no thread: the next generation begins when
                // this one has ended.
                member.count(std::thread::scope(|scope| {
                    let thread = scope.spawn(|| part.generation(pairs));
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })?);
                left -= pairs;
            }
            Ok(())
        })?;
        for held in part.blocks.drain(..) {
            // SAFETY: taken, given back once.
            part.wrong |= unsafe { give(allocator, held) };
        }
        verdict(part.wrong)?;
        Ok(each)
    })
}

fn random_size(random: &mut Random) -> usize {
    SIZE_MIN + random.below(SIZE_MAX - SIZE_MIN + 1)
}

struct LarsonPart<'a, A> {
    allocator: &'a A,
    blocks: Vec<StampedBlock>,
    random: Random,
    numbers: Numbers,
    wrong: u64,
}

impl<A: Allocator> LarsonPart<'_, A> {
    #[inline(never)]
    fn generation(&mut self, pairs: u64) -> Result<Counts, Fault> {
        let before = counters::snapshot();
        for _ in 0..pairs {
            let victim = self.random.below(self.blocks.len());
            // SAFETY: taken before; its place gets another block at once, or the test ends.
            self.wrong |= unsafe { give(self.allocator, self.blocks[victim]) };
            self.blocks[victim] =
                take(self.allocator, random_size(&mut self.random), &mut self.numbers)?;
        }
        Ok(counters::snapshot() - before)
    }
}
