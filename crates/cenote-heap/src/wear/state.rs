//! What a wear heap keeps in memory, under its lock.

use super::clock::{WearClock, has_waited, is_to_come};
use super::error::WearDamage;
use super::lists::{FreeLists, FreeRange};
use super::puddle::WearPuddle;
use crate::backing::{Backing, Extent};
use cenote_medium::planted::{Bug, WearBug, planted};
use core::fmt;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What is told of damage.
pub type DamageCallback = Arc<dyn Fn(&WearDamage) + Send + Sync>;

/// How a wear heap is made and used.
#[derive(Clone)]
pub struct WearOptions {
    /// Milliseconds that a freed block waits. Used when a heap is made; an existing heap keeps its
    /// own.
    pub wait_ms: u32,
    /// Binary logarithm of the bytes of a chunk; 0: by the size of the puddle. Used when a heap is
    /// made.
    pub chunk_log: u32,
    /// Key of the checks of a heap that is made; 0: a random one.
    pub key: u64,
    /// The clock.
    pub clock: WearClock,
    /// Called with each damaged header that is found, by the thread that finds it, which holds no
    /// lock of the heap.
    pub on_damage: Option<DamageCallback>,
}

impl Default for WearOptions {
    fn default() -> Self {
        Self { wait_ms: 100, chunk_log: 0, key: 0, clock: WearClock::default(), on_damage: None }
    }
}

impl fmt::Debug for WearOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wait_ms, chunk_log, clock, .. } = self;
        let clock = clock.now_ms();
        write!(f, "WearOptions {{ wait_ms: {wait_ms}, chunk_log: {chunk_log}, now: {clock} }}")
    }
}

/// A free block in the don't-allocate list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingBlock {
    pub(crate) range: FreeRange,
    /// Since when, modulo 2^32.
    pub(crate) time_ms: u32,
}

/// All that changes.
#[derive(Debug, Default)]
pub(crate) struct WearState {
    pub(crate) puddles: Vec<WearPuddle>,
    pub(crate) lists: FreeLists,
    /// Oldest first. On media each block names the one before it.
    pub(crate) waiting: VecDeque<WaitingBlock>,
    pub(crate) waiting_lines: u64,
    /// Blocks that a transaction has allocated, or is to free, by puddle and line.
    pub(crate) in_transaction: BTreeSet<(usize, u32)>,
    /// Blocks that were given back, and do not wait yet: a log speaks of them.
    pub(crate) held: BTreeSet<(usize, u32)>,
    /// All damage that was found.
    pub(crate) damage: Vec<WearDamage>,
    /// How much of it was told.
    pub(crate) told: usize,
    /// Segments that are not scanned, or being scanned.
    pub(crate) unscanned: u64,
    /// All segments of the puddles before this one are scanned, or being scanned.
    pub(crate) scan_at: usize,
}

/// Blocks that one operation moves from the don't-allocate list at most.
const MOVES: usize = 64;

impl WearState {
    /// Adds a block to the don't-allocate list: one that is freed now, or one that a scan has
    /// found, which calls [`WearState::sort_waiting`] then.
    pub(crate) fn wait(&mut self, block: WaitingBlock, now_ms: u64) {
        let mut block = block;
        if is_to_come(now_ms, block.time_ms) {
            block.time_ms = now_ms as u32;
        }
        self.waiting.push_back(block);
        self.waiting_lines += u64::from(block.range.lines);
    }

    /// Puts the oldest blocks of the don't-allocate list first.
    pub(crate) fn sort_waiting(&mut self, now_ms: u64) {
        let age = |block: &WaitingBlock| (now_ms as u32).wrapping_sub(block.time_ms);
        self.waiting.make_contiguous().sort_by_key(|block| core::cmp::Reverse(age(block)));
    }

    /// Makes some of the blocks available that have waited; whether there were any.
    pub(crate) fn move_waiting(&mut self, now_ms: u64, wait_ms: u32) -> bool {
        let before = self.waiting.len();
        for _ in 0..MOVES {
            let Some(block) = self.waiting.front().copied() else { break };
            if !has_waited(now_ms, block.time_ms, wait_ms) {
                break;
            }
            self.waiting.pop_front();
            self.waiting_lines -= u64::from(block.range.lines);
            self.make_free(&block.range);
        }
        let Self { lists, puddles, .. } = self;
        lists.purge(|range| puddles.get(range.puddle).is_some_and(|p| is_current(p, range)));
        self.waiting.len() < before
    }

    /// Makes a block available, with its free neighbours.
    pub(crate) fn make_free(&mut self, range: &FreeRange) {
        let FreeRange { puddle, line, lines } = *range;
        if let Some(at) = self.puddles.get_mut(puddle)
            && !at.damaged.contains_key(&line)
        {
            at.free.fill(line, line + lines, true);
            let (line, lines) = at.range_around(line);
            self.lists.add(FreeRange { puddle, line, lines });
        }
    }
}

/// Whether a range is free, and neither longer nor shorter. A longer one has an entry of its own.
pub(crate) fn is_current(puddle: &WearPuddle, range: &FreeRange) -> bool {
    puddle.free.get(range.line) && puddle.range_around(range.line) == (range.line, range.lines)
}

/// A heap whose headers are spared (NVMalloc, section 3).
pub struct WearHeap<G: Backing> {
    pub(crate) backing: Arc<G>,
    pub(crate) root: Extent,
    pub(crate) key: u64,
    pub(crate) wait_ms: u32,
    pub(crate) chunk_log: u32,
    pub(crate) clock: WearClock,
    pub(crate) on_damage: Option<DamageCallback>,
    pub(crate) state: Mutex<WearState>,
    /// A segment was scanned.
    pub(crate) scanned: Condvar,
}

/// The state, locked.
pub(crate) type WearGuard<'h> = MutexGuard<'h, WearState>;

impl<G: Backing> WearHeap<G> {
    pub(crate) fn lock(&self) -> WearGuard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_for_scan<'h>(&'h self, state: WearGuard<'h>) -> WearGuard<'h> {
        self.scanned.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a block wait that is free now.
    pub(crate) fn wait_or_free(&self, state: &mut WearState, block: WaitingBlock, now_ms: u64) {
        let ignored = planted(Bug::Wear(WearBug::WaitIgnored));
        if ignored || has_waited(now_ms, block.time_ms, self.wait_ms) {
            state.make_free(&block.range);
        } else {
            state.wait(block, now_ms);
        }
    }

    /// Lets go of the lock, and tells of damage that was found.
    pub(crate) fn end(&self, mut state: WearGuard<'_>) {
        if state.told == state.damage.len() {
            return;
        }
        let new: Vec<WearDamage> = state.damage.iter().skip(state.told).copied().collect();
        state.told = state.damage.len();
        drop(state);
        if let Some(tell) = &self.on_damage {
            new.iter().for_each(|damage| tell(damage));
        }
    }

    /// Damage that was found since the heap was opened, and what earlier openers had found.
    #[must_use]
    pub fn damage(&self) -> Vec<WearDamage> {
        self.lock().damage.clone()
    }

    /// Milliseconds that a freed block waits.
    #[must_use]
    pub fn wait_ms(&self) -> u32 {
        self.wait_ms
    }
}

impl<G: Backing> fmt::Debug for WearHeap<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WearHeap").field("root", &self.root).finish_non_exhaustive()
    }
}
