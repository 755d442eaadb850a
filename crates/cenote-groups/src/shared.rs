//! The state that all clones of [`UpdateGroups`](crate::UpdateGroups), their groups and the thread
//! share.

use crate::lines::{CacheModel, DirtyLine, Entered, LineTable};
use cenote_layout::LINE_SIZE;
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, GroupBug, planted};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lines that a program may be ahead of the thread that writes them back before it is woken early.
const BACKLOG: usize = 16 << 10;

pub(crate) struct SharedGroups {
    pub(crate) persistence: Persistence,
    /// Lines of each group; of counter 0 never any.
    pub(crate) counts: Box<[AtomicU32]>,
    is_modelled: bool,
    dirty: Mutex<DirtyLines>,
    /// Held while lines are written back that are in no table.
    writing: Mutex<()>,
    pub(crate) wake: Condvar,
}

/// What the lock protects.
pub(crate) struct DirtyLines {
    table: LineTable,
    /// Numbers of lines, oldest first. Some may have left.
    queue: VecDeque<u64>,
    /// Counters that no group has.
    free: Vec<u32>,
    /// Counters of dropped groups that have lines.
    orphans: Vec<bool>,
    /// The thread waits for the first line.
    pub(crate) asleep: bool,
    pub(crate) stopped: bool,
}

impl DirtyLines {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_pressing(&self) -> bool {
        self.queue.len() >= BACKLOG
    }
}

impl SharedGroups {
    pub(crate) fn new(
        persistence: Persistence,
        counters: u32,
        model: CacheModel,
        is_modelled: bool,
    ) -> Self {
        Self {
            persistence,
            counts: (0..=counters).map(|_| AtomicU32::new(0)).collect(),
            is_modelled,
            dirty: Mutex::new(DirtyLines {
                table: LineTable::new(model),
                queue: VecDeque::new(),
                free: (1..=counters).rev().collect(),
                orphans: vec![false; counters as usize + 1],
                asleep: false,
                stopped: false,
            }),
            writing: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Forgets the lines that lie in a range whole.
    pub(crate) fn forget(&self, range: Range<usize>) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dirty = self.dirty();
        let line = LINE_SIZE as usize;
        for number in range.start.div_ceil(line)..range.end / line {
            if let Some(left) = dirty.table.remove(number as u64) {
                self.count_left(&mut dirty, left);
            }
        }
    }

    /// Takes a counter; 0: none is free.
    pub(crate) fn take_counter(&self) -> u32 {
        self.dirty().free.pop().unwrap_or(0)
    }

    /// Gives a counter back, now or when its last line leaves.
    pub(crate) fn give_back(&self, counter: u32) {
        let mut dirty = self.dirty();
        let left = self.counts[counter as usize].load(Ordering::Acquire);
        if left == 0 || planted(Bug::Group(GroupBug::CounterFreedEarly)) {
            dirty.free.push(counter);
        } else {
            dirty.orphans[counter as usize] = true;
        }
    }

    pub(crate) fn free_counters(&self) -> usize {
        self.dirty().free.len()
    }

    pub(crate) fn dirty(&self) -> MutexGuard<'_, DirtyLines> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line is in memory.
    fn count_left(&self, dirty: &mut DirtyLines, line: DirtyLine) {
        let counter = line.counter as usize;
        let before = self.counts[counter].fetch_sub(1, Ordering::Release);
        if before == 1 && core::mem::take(&mut dirty.orphans[counter]) {
            dirty.free.push(line.counter);
        }
    }

    /// Writes the lines back that are in the table now; whether there were any.
    ///
    /// A line is taken out first, then flushed, then the fence, then it counts: **the fence makes
    /// the group's stores durable**, and a store that comes between finds the line in no group.
    pub(crate) fn write_back(&self) -> bool {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<DirtyLine> = {
            let mut dirty = self.dirty();
            let DirtyLines { table, queue, .. } = &mut *dirty;
            let numbers: Vec<u64> = queue.drain(..).collect();
            let numbers = if self.is_modelled { table.numbers() } else { numbers };
            numbers.into_iter().filter_map(|number| take(table, number)).collect()
        };
        for line in &lines {
            // SAFETY: its memory is mapped until the group has drained, by the contract of its
            // stores.
            unsafe { self.persistence.flush(pointer(line.number), LINE_SIZE as usize) };
        }
        if !lines.is_empty() && !planted(Bug::Group(GroupBug::DrainNotFenced)) {
            self.persistence.fence();
        }
        let mut dirty = self.dirty();
        for line in &lines {
            if planted(Bug::Group(GroupBug::LineKeptWhileWritten)) {
                dirty.table.remove(line.number);
            }
            self.count_left(&mut dirty, *line);
        }
        !lines.is_empty()
    }

    /// Counts lines for a group that has a counter, after the stores into them.
    pub(crate) fn note(&self, counter: u32, first: u64, last: u64) {
        let mut full = false;
        let mut dirty = self.dirty();
        for number in first..=last {
            if planted(Bug::Group(GroupBug::KnownLineCounted))
                && let Some(other) = dirty.table.counter_of(number)
                && other != counter
            {
                self.counts[counter as usize].fetch_add(1, Ordering::Relaxed);
            }
            loop {
                match dirty.table.enter(number, counter) {
                    Entered::Known => {}
                    Entered::Counted => {
                        self.counts[counter as usize].fetch_add(1, Ordering::Relaxed);
                        if !self.is_modelled {
                            dirty.queue.push_back(number);
                        }
                    }
                    Entered::Full if self.is_modelled => {
                        let victim = dirty.table.victim(number);
                        if self.persistence.is_simulated() {
                            self.persistence.write_back(pointer(victim.number));
                        } else {
                            // SAFETY: its memory is mapped until its group has drained.
                            unsafe {
                                self.persistence.persist(pointer(victim.number), LINE_SIZE as usize)
                            };
                        }
                        self.count_left(&mut dirty, victim);
                        continue;
                    }
                    Entered::Full => {
                        full = true;
                        // SAFETY: the caller has stored into the line.
                        unsafe { self.persistence.flush(pointer(number), LINE_SIZE as usize) };
                    }
                }
                break;
            }
        }
        let wake = dirty.asleep || dirty.is_pressing();
        dirty.asleep = false;
        drop(dirty);
        if wake {
            self.wake.notify_one();
        }
        if full {
            self.persistence.fence();
        }
    }
}

/// Takes a line out of the table, before it is written back.
fn take(table: &mut LineTable, number: u64) -> Option<DirtyLine> {
    if planted(Bug::Group(GroupBug::LineKeptWhileWritten)) {
        let counter = table.counter_of(number)?;
        return Some(DirtyLine { number, counter, ..DirtyLine::default() });
    }
    table.remove(number)
}

/// The line with this number.
fn pointer(number: u64) -> *const u8 {
    core::ptr::with_exposed_provenance((number * LINE_SIZE) as usize)
}
