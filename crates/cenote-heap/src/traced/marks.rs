//! Marks: one byte a block ([`cenote_layout::heap::mark`]).
//!
//! Every byte has one owner at any time, so plain stores suffice:
//!
//! | mark | its owner |
//! | --- | --- |
//! | ALLOCATED, TAKEN, HELD | the owner of the block |
//! | CACHED | the cache that holds the block; it names the cache's member ([`super::members`]) |
//! | FREE | the thread that has the superblock in its hands ([`super::anchor`]) |
//!
//! Every step hands the byte on. FREE is stored with release and claimed with acquire: the thread
//! that gets a block sees all that was done to it before.
//!
//! Scans read [`STEP`] marks at a time, see [`crate::sync`].

use crate::sync;
use crate::sync::{AtomicU8, Ordering, STEP};
use cenote_layout::mark::{ALLOCATED, FREE, Meaning, meaning};

/// Words that have a bit for every mark of a superblock.
pub(crate) const WORDS: usize = 64;

/// Bits of the `STEP` marks from `at` on that have this value and exist.
#[inline]
fn equal(marks: &[AtomicU8], at: usize, value: u8) -> u64 {
    let left = marks.len() - at;
    let found = sync::equal(marks, at, value);
    if left < STEP { found & ((1 << left) - 1) } else { found }
}

/// By the thread that has the superblock in its hands: makes every FREE mark `cached`, its member's
/// CACHED, and sets its bit in `claimed`. How many they were.
pub(crate) fn claim(marks: &[AtomicU8], cached: u8, claimed: &mut [u64; WORDS]) -> u32 {
    let mut count = 0;
    for (word, claimed) in claimed.iter_mut().enumerate().take(marks.len().div_ceil(64)) {
        let mut all = 0;
        for at in (word * 64..(word * 64 + 64).min(marks.len())).step_by(STEP) {
            let found = equal(marks, at, FREE);
            all |= found << (at % 64);
            if found.count_ones() as usize == STEP {
                sync::fill(marks, at, cached);
            } else {
                let mut rest = found;
                while rest != 0 {
                    marks[at + rest.trailing_zeros() as usize].store(cached, Ordering::Relaxed);
                    rest &= rest - 1;
                }
            }
        }
        *claimed |= all;
        count += all.count_ones();
    }
    count
}

/// Whether all marks have this value.
pub(crate) fn all(marks: &[AtomicU8], value: u8) -> bool {
    (0..marks.len()).step_by(STEP).all(|at| {
        let left = (marks.len() - at).min(STEP);
        equal(marks, at, value).count_ones() as usize == left
    })
}

/// Whether all marks are FREE or ALLOCATED.
pub(crate) fn are_settled(marks: &[AtomicU8]) -> bool {
    (0..marks.len()).step_by(STEP).all(|at| {
        let left = (marks.len() - at).min(STEP);
        (equal(marks, at, FREE) | equal(marks, at, ALLOCATED)).count_ones() as usize == left
    })
}

/// How many marks have this value.
pub(crate) fn count(marks: &[AtomicU8], value: u8) -> u32 {
    (0..marks.len()).step_by(STEP).map(|at| equal(marks, at, value).count_ones()).sum()
}

/// Bit `i` for each of the 64 marks from `64 * word` on that has this value.
pub(crate) fn bits(marks: &[AtomicU8], word: usize, value: u8) -> u64 {
    let (first, end) = ((word * 64).min(marks.len()), (word * 64 + 64).min(marks.len()));
    (first..end).step_by(STEP).fold(0, |bits, at| bits | equal(marks, at, value) << (at % 64))
}

/// Makes marks that one of the members has whose bits are set in `dead` FREE: how many. Whether any
/// mark is FREE then.
pub(crate) fn free_dead(marks: &[AtomicU8], dead: u64) -> (u64, bool) {
    let (mut freed, mut any) = (0, false);
    for at in (0..marks.len()).step_by(STEP) {
        let left = (marks.len() - at).min(STEP);
        let free = equal(marks, at, FREE);
        any |= free != 0;
        if (free | equal(marks, at, ALLOCATED)).count_ones() as usize == left {
            continue;
        }
        for mark in &marks[at..at + left] {
            if is_of(mark.load(Ordering::Acquire), dead) {
                mark.store(FREE, Ordering::Release);
                freed += 1;
                any = true;
            }
        }
    }
    (freed, any)
}

/// Whether a mark says that one of these members has the block, in a cache or held.
pub(crate) fn is_of(mark: u8, members: u64) -> bool {
    match meaning(mark) {
        Some(Meaning::Cached(number) | Meaning::Held(number)) => members >> number & 1 != 0,
        _ => false,
    }
}

/// Makes marks that have one value have another; whether there were any.
pub(crate) fn replace(marks: &[AtomicU8], from: u8, to: u8) -> bool {
    let mut found = false;
    for at in (0..marks.len()).step_by(STEP) {
        let mut rest = equal(marks, at, from);
        found |= rest != 0;
        while rest != 0 {
            marks[at + rest.trailing_zeros() as usize].store(to, Ordering::Release);
            rest &= rest - 1;
        }
    }
    found
}

/// How many blocks are in caches, of all members together.
pub(crate) fn count_cached(marks: &[AtomicU8]) -> u32 {
    let in_cache = |mark: &&AtomicU8| {
        matches!(meaning(mark.load(Ordering::Relaxed)), Some(Meaning::Cached(_)))
    };
    marks.iter().filter(in_cache).count() as u32
}

/// Writes what is not there yet.
#[inline]
pub(crate) fn write(mark: &AtomicU8, value: u8) {
    if mark.load(Ordering::Relaxed) != value {
        mark.store(value, Ordering::Relaxed);
    }
}
