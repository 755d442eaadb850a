//! The puddles that a heap has looked at, and what is known of the others.
//!
//! Invariants: [`Puddles`] only grows, so readers need no lock. [`Growth`] is behind the growth
//! lock and counts every puddle of the pool that this process knows, attached or not.

use super::runs;
use super::superblock::PuddleHeap;
use crate::backing::Extent;
use crate::error::{AllocError, BackingError, OpenError};
use cenote_layout::id::TypeId;
use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// How often a search is repeated that others have disturbed.
const DISTURBANCES: u32 = 100;

/// Superblocks that this thread owns, or "look again".
pub(crate) enum TakenSuperblocks<'a> {
    Run(&'a PuddleHeap, u32),
    Retry,
    /// Leave the gate, do this, and look again.
    Outside(Errand),
}

/// What a slow path has to do for which it may not be inside the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Another process takes a puddle, or looks at one: wait for it.
    Wait,
    /// Members of the pool may have died.
    Sweep,
}

/// What one slow path has done outside.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries {
    pub(super) sweeps: u32,
}

type Chunk = Box<[OnceLock<Arc<PuddleHeap>>]>;

/// Puddles that the heap has looked at, by ordinal: only ever added, so that readers need no lock.
#[derive(Debug)]
pub(crate) struct Puddles {
    /// Chunk `k` has `16 << k` places.
    pub(super) chunks: [OnceLock<Chunk>; 28],
    pub(super) len: AtomicUsize,
    /// Puddles before this one have no free superblock, or little luck is missed.
    pub(super) first: AtomicUsize,
    /// Superblocks that were taken so far.
    pub(super) taken: AtomicU64,
    /// Superblocks of idle runs, more or less.
    pub(crate) idle: AtomicI64,
}

impl Puddles {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; 28],
            len: AtomicUsize::new(0),
            first: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            idle: AtomicI64::new(0),
        }
    }

    /// Superblocks of idle runs that may be there while others take free ones: one in 64.
    pub(super) fn idle_max(&self) -> i64 {
        let count: u64 =
            (0..self.len()).filter_map(|i| self.get(i)).map(|p| u64::from(p.superblocks())).sum();
        i64::try_from(count / 64).unwrap_or(i64::MAX)
    }

    fn place(&self, ordinal: usize) -> Option<&OnceLock<Arc<PuddleHeap>>> {
        let chunk = (ordinal / 16 + 1).ilog2() as usize;
        let places = self
            .chunks
            .get(chunk)?
            .get_or_init(|| (0..16usize << chunk).map(|_| OnceLock::new()).collect());
        places.get(ordinal - 16 * ((1 << chunk) - 1))
    }

    pub(crate) fn get(&self, ordinal: usize) -> Option<&PuddleHeap> {
        (ordinal < self.len()).then(|| self.place(ordinal)?.get().map(|puddle| &**puddle))?
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// All of them, by ordinal.
    pub(crate) fn all(&self) -> Vec<Arc<PuddleHeap>> {
        (0..self.len()).filter_map(|i| self.place(i)?.get().cloned()).collect()
    }

    /// Adds one; growth is locked.
    pub(super) fn push(&self, puddle: Arc<PuddleHeap>) {
        let ordinal = self.len();
        if let Some(place) = self.place(ordinal)
            && place.set(puddle).is_ok()
        {
            self.len.store(ordinal + 1, Ordering::Release);
        }
    }

    /// A puddle has a free superblock again.
    pub(crate) fn has_free(&self, ordinal: usize) {
        if self.first.load(Ordering::Relaxed) > ordinal {
            self.first.fetch_min(ordinal, Ordering::Relaxed);
        }
    }

    /// Takes a run out of free space: first fit in order of puddles and addresses, which keeps the
    /// low part of a heap dense.
    pub(super) fn take(
        &self,
        count: u32,
        align: u32,
        thorough: bool,
    ) -> Option<(&PuddleHeap, u32)> {
        for _ in 0..DISTURBANCES {
            let mut disturbed = false;
            let first = if thorough { 0 } else { self.first.load(Ordering::Relaxed) };
            for ordinal in first..self.len() {
                let Some(puddle) = self.get(ordinal) else { continue };
                match runs::take(puddle, count, align) {
                    runs::TakenRun::At(number) => {
                        if thorough {
                            self.has_free(ordinal);
                        }
                        self.taken.fetch_add(u64::from(count), Ordering::Relaxed);
                        return Some((puddle, number));
                    }
                    runs::TakenRun::Disturbed => disturbed = true,
                    runs::TakenRun::None if count == 1 && !disturbed => {
                        let next = ordinal + 1;
                        let _ = self.first.compare_exchange(
                            ordinal,
                            next,
                            Ordering::Relaxed,
                            Ordering::Relaxed,
                        );
                    }
                    runs::TakenRun::None => {}
                }
            }
            if !disturbed {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Puddles {
    /// Takes a run all of which has space, wherever it is: when the disk is full.
    pub(super) fn take_backed(&self, count: u32, align: u32) -> Option<(&PuddleHeap, u32)> {
        for ordinal in 0..self.len() {
            let Some(puddle) = self.get(ordinal) else { continue };
            let mut start = puddle.first_usable().next_multiple_of(align);
            while let Some(end) =
                start.checked_add(count).filter(|&end| end <= puddle.superblocks())
            {
                match (start..end)
                    .rev()
                    .find(|&number| !puddle.is_free(number) || puddle.may_lack_space(number))
                {
                    Some(number) => start = (number + 1).next_multiple_of(align),
                    None if runs::claim(puddle, start, count).is_ok() => {
                        // It may have become a hole before it was ours.
                        if !(start..end).any(|number| puddle.may_lack_space(number)) {
                            self.taken.fetch_add(u64::from(count), Ordering::Relaxed);
                            return Some((puddle, start));
                        }
                        runs::put(puddle, start, count);
                        start = end.next_multiple_of(align);
                    }
                    None => start = (start + 1).next_multiple_of(align),
                }
            }
        }
        None
    }
}

/// What the growth lock covers.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Puddles that were not looked at yet, in order.
    pub(super) pending: VecDeque<Extent>,
    /// Bytes of all puddles.
    pub(super) bytes: u64,
    /// Bytes of the largest.
    pub(super) largest: u64,
    /// Number of superblocks taken at which scavenging is due.
    pub(super) due: u64,
    /// Highest number of a puddle that is known.
    pub(super) last: u32,
}

impl Growth {
    pub(crate) fn new(extents: Vec<Extent>) -> Self {
        Self {
            bytes: extents.iter().map(|p| p.size).sum(),
            largest: extents.iter().map(|p| p.size).max().unwrap_or(0),
            last: extents.last().map_or(0, |p| p.index),
            pending: extents.into(),
            due: 1,
        }
    }

    pub(super) fn add(&mut self, extent: &Extent) {
        self.bytes += extent.size;
        self.largest = self.largest.max(extent.size);
        self.last = extent.index;
    }
}

/// Why the slow path found no superblock, before it is known for what.
#[derive(Debug)]
pub(crate) enum Shortage {
    Backing(BackingError),
    Puddle(OpenError),
    TooLarge,
}

impl Shortage {
    #[cold]
    pub(crate) fn for_block(self, size: u64, type_id: TypeId, size_max: u64) -> AllocError {
        match self {
            Self::Backing(source) => AllocError::Full { size, type_id, source },
            Self::Puddle(error) => AllocError::Puddle(error),
            Self::TooLarge => AllocError::Size { size, size_max },
        }
    }
}
