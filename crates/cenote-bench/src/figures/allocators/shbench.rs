//! Shbench (MicroQuill's): sizes from 64 to 400 bytes, smaller ones more often, freed in another
//! order than allocated.
//!
//! The blocks fill an array of slots, except for a saved area, a fifth of it. When the end is
//! reached, the saved area moves on by its own length, all blocks outside it are freed (the lower
//! ones upwards, the upper ones downwards), and filling begins again. So some blocks stay for
//! several rounds, and what is freed is not in the order in which it was allocated.

use crate::allocator::{Allocator, Fault, Numbers, StampedBlock, give, take, verdict};
use crate::case::{Failure, Sample};
use crate::team::team;

/// Slots of a thread.
pub const SLOTS: usize = 100_000;

/// Iterations of the paper.
pub const ITERATIONS: u64 = 100_000;

/// Sizes of one iteration, with the number of blocks of each: the test's own rule. A size begins at
/// 64 and grows by half each time while it is below 400, and each is halved as long as it is at
/// least 64; of sizes below 100 there are 250 blocks each, of the others 50.
const SIZES: [(u16, u16); 9] = [
    (64, 250),
    (97, 250),
    (146, 50),
    (73, 250),
    (220, 50),
    (110, 50),
    (331, 50),
    (165, 50),
    (82, 250),
];

/// Blocks of one iteration.
pub const PAIRS_PER_ITERATION: u64 = {
    let (mut sum, mut i) = (0, 0);
    while i < SIZES.len() {
        sum += SIZES[i].1 as u64;
        i += 1;
    }
    sum
};

/// At least `count` pairs over all threads, in whole iterations, and so many that the slots are
/// filled several times; each thread fills them once before the clock starts.
///
/// # Errors
/// No memory, or a block that is not as it should be.
pub fn run<A: Allocator>(
    allocator: &A,
    threads: u32,
    slots: usize,
    count: u64,
) -> Result<Sample, Failure> {
    let filled = slots as u64 / PAIRS_PER_ITERATION + 1;
    let iterations = count.div_ceil(PAIRS_PER_ITERATION * u64::from(threads)).max(4 * filled);
    team(threads, |member| {
        let mut part = ShbenchPart {
            allocator,
            slots: vec![None; slots],
            at: 0,
            saved: (slots, slots),
            numbers: Numbers::of_thread(member.index),
            wrong: 0,
        };
        part.iterate(filled)?;
        part.free_all();
        member.timed(|| -> Result<(), Fault> {
            part.iterate(iterations)?;
            part.free_all();
            Ok(())
        })?;
        verdict(part.wrong)?;
        Ok(iterations * PAIRS_PER_ITERATION)
    })
}

struct ShbenchPart<'a, A> {
    allocator: &'a A,
    slots: Vec<Option<StampedBlock>>,
    /// The next slot to fill; empty.
    at: usize,
    /// First slot of the saved area, and the one after it.
    saved: (usize, usize),
    numbers: Numbers,
    wrong: u64,
}

impl<A: Allocator> ShbenchPart<'_, A> {
    #[inline(never)]
    fn iterate(&mut self, iterations: u64) -> Result<(), Fault> {
        for _ in 0..iterations {
            for &(size, blocks) in &SIZES {
                for _ in 0..blocks {
                    self.slots[self.at] =
                        Some(take(self.allocator, usize::from(size), &mut self.numbers)?);
                    self.at += 1;
                    self.skip_saved();
                    if self.at >= self.slots.len() {
                        self.turn();
                    }
                }
            }
        }
        Ok(())
    }

    fn skip_saved(&mut self) {
        if self.at == self.saved.0 {
            self.at = self.saved.1;
        }
    }

    /// All slots are full: moves the saved area and frees what is outside.
    fn turn(&mut self) {
        let len = self.slots.len();
        let start = if self.saved.1 >= len { 0 } else { self.saved.1 };
        self.saved = (start, (start + len / 5).min(len));
        for slot in (0..self.saved.0).chain((self.saved.1..len).rev()) {
            self.free(slot);
        }
        self.at = 0;
        self.skip_saved();
    }

    #[inline(always)]
    fn free(&mut self, slot: usize) {
        if let Some(held) = self.slots[slot].take() {
            // SAFETY: it was taken, and is in no slot any more.
            self.wrong |= unsafe { give(self.allocator, held) };
        }
    }

    fn free_all(&mut self) {
        for slot in 0..self.slots.len() {
            self.free(slot);
        }
        (self.at, self.saved) = (0, (self.slots.len(), self.slots.len()));
    }
}
