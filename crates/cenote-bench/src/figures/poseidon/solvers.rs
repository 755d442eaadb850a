//! Figure 8: programs that compute in memory which they allocate and free each time.
//!
//! * `ackermann`: a block of 1 GiB is the cache of a computation of Ackermann's function. The rows
//!   of the cache lie a quarter of the block apart. The paper says "results up to (4, 5)"; A(4, 2)
//!   has 19,729 digits, so here it is all A(m, n) with m below 4 and n below 5, the last of which
//!   is 125. What the cache is to hold is cleared first. `--live-mib N` sets the size of the block:
//!   16 MiB without it, because each of 16 threads has one in each system, in memory.
//! * `kruskal`: three blocks of 512 bytes hold the edges of a complete graph of 5 vertices with
//!   random weights, the sets of vertices, and the minimum spanning tree.
//! * `queens`: a block of 32 bytes holds the board, on which the first solution for 8 queens is
//!   found.
//!
//! An operation is one repetition: allocate, compute, free. The paper has 100,000.

use super::{On, operations, threads};
use crate::allocator::{Allocator, Fault, Numbers, give, take, verdict};
use crate::case::{Case, Failure, Sample};
use crate::place::Settings;
use crate::random::Random;
use crate::team::team;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Repetitions of the paper.
const REPETITIONS: u64 = 100_000;

/// MiB of the block of `ackermann`, if nothing else is asked for. The paper: 1,024.
const CACHE_MIB: u64 = 16;

/// The rows of Figure 8.
pub(super) fn figure8<A: Allocator>(on: &On<A>, settings: &Settings) -> Vec<Case> {
    let bytes = cache_bytes(settings);
    let length = operations(REPETITIONS, settings);
    let mut cases = Vec::new();
    for threads in threads(settings) {
        cases.push(on.case("ackermann", threads, length, move |allocator, count| {
            repeat(threads, count, |_, _| ackermann(&**allocator, bytes))
        }));
        cases.push(on.case("kruskal", threads, length, move |allocator, count| {
            repeat(threads, count, |numbers, random| kruskal(&**allocator, numbers, random))
        }));
        cases.push(on.case("queens", threads, length, move |allocator, count| {
            repeat(threads, count, |numbers, _| queens(&**allocator, numbers))
        }));
    }
    cases
}

/// Bytes of the block of `ackermann`.
#[must_use]
pub fn cache_bytes(settings: &Settings) -> usize {
    let bytes = match settings.live_mib {
        Some(mib) => mib << 20,
        None if settings.quick => 1 << 16,
        None => CACHE_MIB << 20,
    };
    bytes as usize
}

/// At least `count` repetitions over all threads.
fn repeat(
    threads: u32,
    count: u64,
    once: impl Fn(&mut Numbers, &mut Random) -> Result<u64, Fault> + Sync,
) -> Result<Sample, Failure> {
    let each = count.div_ceil(u64::from(threads)).max(1);
    team(threads, |member| {
        let mut numbers = Numbers::of_thread(member.index);
        let mut random = Random::new(u64::from(member.index));
        let mut wrong = 0;
        let mut some = |count: u64| -> Result<(), Fault> {
            for _ in 0..count {
                wrong |= once(&mut numbers, &mut random)?;
            }
            Ok(())
        };
        some((each / 8).clamp(1, 1000))?;
        member.timed(|| some(each))?;
        verdict(wrong)?;
        Ok(each)
    })
}

/// A(m, n) with m and n below these.
const ACKERMANN_ENDS: (u64, u64) = (4, 5);

/// No n of the computation reaches this.
const COLUMNS: usize = 128;

/// The cache: results by m and n; 0 is none.
struct Cache {
    block: NonNull<u8>,
    row_bytes: usize,
}

impl Cache {
    fn cell(&self, m: u64, n: u64) -> &AtomicU64 {
        let at = m as usize * self.row_bytes + (n as usize % COLUMNS) * 8;
        // SAFETY: rows of at least `COLUMNS` words lie in the block, which is not freed before
        // this value is dropped; atomic, so that blocks that overlap are only found.
        unsafe { AtomicU64::from_ptr(self.block.as_ptr().add(at).cast()) }
    }

    fn compute(&self, m: u64, n: u64) -> u64 {
        if m == 0 {
            return n + 1;
        }
        let known = self.cell(m, n).load(Relaxed);
        if known != 0 {
            return known;
        }
        let value = match n {
            0 => self.compute(m - 1, 1),
            _ => self.compute(m - 1, self.compute(m, n - 1)),
        };
        self.cell(m, n).store(value, Relaxed);
        value
    }
}

fn ackermann<A: Allocator>(allocator: &A, bytes: usize) -> Result<u64, Fault> {
    let block = NonNull::new(allocator.alloc(bytes)).ok_or(Fault::OutOfMemory(bytes))?;
    let cache = Cache { block, row_bytes: bytes / ACKERMANN_ENDS.0 as usize };
    for m in 1..ACKERMANN_ENDS.0 {
        (0..COLUMNS as u64).for_each(|n| cache.cell(m, n).store(0, Relaxed));
    }
    let mut last = 0;
    for m in 0..ACKERMANN_ENDS.0 {
        for n in 0..ACKERMANN_ENDS.1 {
            last = cache.compute(m, n);
        }
    }
    // SAFETY: allocated above; the cache is not used any more.
    Ok((last ^ 125) | u64::from(!unsafe { allocator.free(block.as_ptr()) }))
}

/// Vertices of the graph.
const ORDER: u64 = 5;
const EDGES: usize = (ORDER * (ORDER - 1) / 2) as usize;

/// Bytes of each of its three blocks.
const GRAPH_BYTES: usize = 512;

fn kruskal<A: Allocator>(
    allocator: &A,
    numbers: &mut Numbers,
    random: &mut Random,
) -> Result<u64, Fault> {
    let held = [
        take(allocator, GRAPH_BYTES, numbers)?,
        take(allocator, GRAPH_BYTES, numbers)?,
        take(allocator, GRAPH_BYTES, numbers)?,
    ];
    // SAFETY: given back below, where none of the three is used any more.
    let [edges, sets, tree] = unsafe { [held[0].between(), held[1].between(), held[2].between()] };
    let mut at = 0;
    for from in 0..ORDER {
        for to in from + 1..ORDER {
            let weight = random.below(1000) as u64;
            edges[at].store(weight << 16 | from << 8 | to, Relaxed);
            at += 1;
        }
        sets[from as usize].store(from, Relaxed);
    }
    let taken = spanning_tree(&edges[..EDGES], sets, tree);
    let mut wrong = u64::from(taken != ORDER as usize - 1);
    for held in held {
        // SAFETY: taken above, given back once.
        wrong |= unsafe { give(allocator, held) };
    }
    Ok(wrong)
}

/// Sorts the edges and moves those of the minimum spanning tree into `tree`: how many.
fn spanning_tree(edges: &[AtomicU64], sets: &[AtomicU64], tree: &[AtomicU64]) -> usize {
    for end in 1..edges.len() {
        let edge = edges[end].load(Relaxed);
        let mut at = end;
        while at > 0 && edges[at - 1].load(Relaxed) > edge {
            edges[at].store(edges[at - 1].load(Relaxed), Relaxed);
            at -= 1;
        }
        edges[at].store(edge, Relaxed);
    }
    let mut taken = 0;
    for edge in edges {
        let edge = edge.load(Relaxed);
        let (from, to) = ((edge >> 8 & 0xff) as usize, (edge & 0xff) as usize);
        let (of_from, of_to) = (sets[from].load(Relaxed), sets[to].load(Relaxed));
        if of_from != of_to {
            tree[taken].store(edge, Relaxed);
            taken += 1;
            for set in &sets[..ORDER as usize] {
                if set.load(Relaxed) == of_to {
                    set.store(of_from, Relaxed);
                }
            }
        }
    }
    taken
}

/// Rows and columns of the board.
const BOARD: u64 = 8;

/// Bytes of its block.
const BOARD_BYTES: usize = 32;

/// The first solution: the column of the queen in each row, a byte each.
const SOLUTION: u64 = 0x0301_0602_0507_0400;

fn queens<A: Allocator>(allocator: &A, numbers: &mut Numbers) -> Result<u64, Fault> {
    let held = take(allocator, BOARD_BYTES, numbers)?;
    // SAFETY: given back below, where it is not used any more.
    let board = unsafe { &held.between()[0] };
    board.store(0, Relaxed);
    let found = place_queens(board);
    // SAFETY: taken above, given back once.
    Ok((found ^ SOLUTION) | unsafe { give(allocator, held) })
}

/// The board with the first solution.
fn place_queens(board: &AtomicU64) -> u64 {
    let (mut row, mut column) = (0, 0);
    while row < BOARD {
        let now = board.load(Relaxed);
        let beats = |other: u64| {
            let queen = now >> (8 * other) & 0xff;
            queen == column || queen.abs_diff(column) == row - other
        };
        if column == BOARD {
            // No column of this row: the queen of the row before moves on.
            let Some(before) = row.checked_sub(1) else { break };
            row = before;
            column = (now >> (8 * row) & 0xff) + 1;
        } else if (0..row).any(beats) {
            column += 1;
        } else {
            board.store((now & !(0xff << (8 * row))) | column << (8 * row), Relaxed);
            (row, column) = (row + 1, 0);
        }
    }
    board.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_queens_are_placed_as_in_the_books() {
        let board = AtomicU64::new(0);
        assert_eq!(place_queens(&board).to_le_bytes(), [0, 4, 7, 5, 2, 6, 1, 3]);
    }

    #[test]
    fn a_spanning_tree_is_the_lightest() {
        let words = || [const { AtomicU64::new(0) }; EDGES];
        // The path 0-1-2-3-4 is light, all else heavy.
        let (edges, sets, tree) = (words(), words(), words());
        let mut at = 0;
        for from in 0..ORDER {
            for to in from + 1..ORDER {
                let weight = if to == from + 1 { 10 - to } else { 500 + to };
                edges[at].store(weight << 16 | from << 8 | to, Relaxed);
                at += 1;
            }
            sets[from as usize].store(from, Relaxed);
        }
        assert_eq!(spanning_tree(&edges, &sets, &tree), 4);
        let sum: u64 = tree[..4].iter().map(|edge| edge.load(Relaxed) >> 16).sum();
        assert_eq!(sum, 9 + 8 + 7 + 6);
    }

    #[test]
    fn ackermann_is_computed_inside_the_columns() {
        let mut words = vec![0u64; 4 * COLUMNS];
        let block = NonNull::new(words.as_mut_ptr().cast()).expect("a vector");
        let cache = Cache { block, row_bytes: COLUMNS * 8 };
        assert_eq!([cache.compute(1, 1), cache.compute(2, 3), cache.compute(3, 4)], [3, 9, 125]);
    }
}
