//! Reads headers, and learns from them which lines are allocated, free or damaged.
//!
//! Segments are scanned one by one, by any number of threads, without the lock of the heap: a
//! segment that is not scanned has no block that changes. Allocations do not wait for the scan; an
//! address in a segment that is not scanned lets its segment be scanned first.
//!
//! **Damage.** Where a block should begin and no whole header stands, the scan looks at each line
//! behind, for the next header of an *allocated* block: one that says so is always right, because a
//! free overwrites it. A free header may be one of an earlier time, inside the block whose header
//! is damaged, and is not believed. If the size of the block is left in its header, its end is
//! known.

use super::clock::{has_waited, is_to_come};
use super::lines::PuddleLines;
use super::lists::FreeRange;
use super::puddle::{OpenEnd, SegmentScan, WearPuddle, WearSegment};
use super::state::{WaitingBlock, WearGuard, WearHeap, WearState};
use crate::backing::Backing;
use cenote_layout::wear::{WearLine, WearRecord};
use cenote_medium::planted::{Bug, WearBug, planted};
use core::ops::ControlFlow;

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WearProgress {
    /// Segments that are scanned.
    pub scanned: u64,
    /// Segments that there are.
    pub segments: u64,
}

/// What a segment has.
#[derive(Debug, Default)]
struct SegmentFound {
    /// First line and record of each block.
    blocks: Vec<(u32, WearRecord)>,
    /// First line and lines of what is damaged now, and why.
    damaged: Vec<(u32, u32, &'static str)>,
    /// First line of the end that is not used, and whether a part of a header is there.
    open: Option<(u32, bool)>,
}

/// Reads a segment; only the last one of a puddle may have an end that is not used.
fn read_segment(lines: &PuddleLines, first: u32, end: u32, is_last: bool) -> SegmentFound {
    let (mut found, mut at) = (SegmentFound::default(), first);
    while at < end {
        let line = lines.read(at);
        let what = match line {
            WearLine::Says { record: WearRecord::Segment { .. }, .. } => {
                "the header of a block says that it is none"
            }
            WearLine::Says { record, .. } if record.size() > 0 && record.size() <= end - at => {
                let next = at + record.size();
                let doubtful = record.is_free() && !found.damaged.is_empty();
                if !doubtful || !(at + 1..next).any(|line| is_sure(lines, line)) {
                    found.blocks.push((at, record));
                    at = next;
                    continue;
                }
                "a free header of an earlier time stands where a block was"
            }
            WearLine::Says { .. } => "a block reaches beyond its segment",
            WearLine::Unused if is_last && (at + 1..end).all(|line| lines.is_zero(line)) => {
                found.open = Some((at, !lines.is_zero(at)));
                break;
            }
            WearLine::Unused => "the header of a block is gone",
            WearLine::Damaged { .. } => "the header of a block is damaged",
        };
        let left = if let WearLine::Damaged { lines } = line { lines } else { None };
        let known = left.and_then(|size| at.checked_add(size)).filter(|&next| next > at);
        let next = next_block(lines, at, end, (known, is_last));
        found.damaged.push((at, next - at, what));
        at = next;
    }
    found
}

/// Whether a line is the header of a block of which no earlier header can say that.
fn is_sure(lines: &PuddleLines, line: u32) -> bool {
    let said = lines.says(line);
    matches!(said, Some(WearRecord::Allocated { .. } | WearRecord::Damaged { .. }))
}

/// Where the next block begins behind a damaged header, as far as that is certain: `known` is where
/// the block of that header ended.
fn next_block(
    lines: &PuddleLines,
    at: u32,
    end: u32,
    (known, is_last): (Option<u32>, bool),
) -> u32 {
    let begins = |&line: &u32| match lines.read(line) {
        WearLine::Says { record, .. } if record.is_free() => {
            Some(line) == known || planted(Bug::Wear(WearBug::FreeHeaderBelieved))
        }
        WearLine::Says { .. } => is_sure(lines, line),
        WearLine::Unused => Some(line) == known && is_last,
        WearLine::Damaged { .. } => false,
    };
    (at + 1..end).find(begins).unwrap_or(end)
}

impl<G: Backing> WearHeap<G> {
    /// Scans what is not scanned yet, with so many threads. `progress` is called after each segment
    /// of the calling thread, and may break off. Returns whether all is scanned.
    pub fn scan(
        &self,
        threads: usize,
        progress: &mut dyn FnMut(&WearProgress) -> ControlFlow<()>,
    ) -> bool {
        let stop = core::sync::atomic::AtomicBool::new(false);
        let is_stopped = || stop.load(core::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 1..threads.max(1) {
                scope.spawn(|| while !is_stopped() && self.scan_one() {});
            }
            while self.scan_one() {
                if progress(&self.progress()).is_break() {
                    stop.store(true, core::sync::atomic::Ordering::Relaxed);
                    break;
                }
            }
        });
        let at = self.progress();
        at.scanned == at.segments
    }

    /// How far the scan is.
    #[must_use]
    pub fn progress(&self) -> WearProgress {
        let state = self.lock();
        let segments = state.puddles.iter().map(|puddle| puddle.segments.len() as u64).sum();
        WearProgress { scanned: segments - state.unscanned, segments }
    }

    /// Scans one segment that no thread has begun; `false`: there is none.
    fn scan_one(&self) -> bool {
        let mut state = self.lock();
        let Some((puddle, segment)) = pending(&mut state) else { return false };
        let state = self.scan_segment(state, puddle, segment);
        self.end(state);
        true
    }

    /// Scans one segment, or waits for threads that scan. `false`: all is scanned.
    pub(crate) fn scan_more<'h>(&'h self, mut state: WearGuard<'h>) -> (WearGuard<'h>, bool) {
        if state.unscanned == 0 {
            return (state, false);
        }
        match pending(&mut state) {
            Some((puddle, segment)) => (self.scan_segment(state, puddle, segment), true),
            None => (self.wait_for_scan(state), true),
        }
    }

    /// Scans all that is not scanned.
    pub(crate) fn scan_all<'h>(&'h self, mut state: WearGuard<'h>) -> WearGuard<'h> {
        loop {
            let (next, more) = self.scan_more(state);
            state = next;
            if !more {
                return state;
            }
        }
    }

    /// Lets a segment be scanned, by this thread if no other one does.
    pub(crate) fn with_scanned<'h>(
        &'h self,
        mut state: WearGuard<'h>,
        puddle: usize,
        segment: usize,
    ) -> WearGuard<'h> {
        loop {
            let at = state.puddles.get(puddle).and_then(|at| at.segments.get(segment));
            match at.map_or(SegmentScan::Done, |segment| segment.scan) {
                SegmentScan::Done => return state,
                SegmentScan::Claimed => state = self.wait_for_scan(state),
                SegmentScan::Pending => state = self.scan_segment(state, puddle, segment),
            }
        }
    }

    fn scan_segment<'h>(
        &'h self,
        mut state: WearGuard<'h>,
        puddle: usize,
        segment: usize,
    ) -> WearGuard<'h> {
        let Some(at) = state.puddles.get_mut(puddle) else { return state };
        let is_last = segment + 1 == at.segments.len();
        let Some(range) = at.segments.get_mut(segment) else { return state };
        range.scan = SegmentScan::Claimed;
        let (lines, range) = (at.lines, *range);
        drop(state);
        let found = read_segment(&lines, range.first, range.end, is_last);
        if self.backing.is_writable() {
            // Their process may have died before they were durable.
            found.blocks.iter().for_each(|&(line, _)| lines.flush(line, &*self.backing));
            self.backing.fence();
        }
        let mut state = self.lock();
        self.take_over(&mut state, puddle, segment, &found);
        state.unscanned -= 1;
        self.scanned.notify_all();
        state
    }

    fn take_over(
        &self,
        state: &mut WearState,
        puddle: usize,
        segment: usize,
        found: &SegmentFound,
    ) {
        let now_ms = self.clock.now_ms();
        let Some(at) = state.puddles.get_mut(puddle) else { return };
        let Some(range) = at.segments.get_mut(segment) else { return };
        range.scan = SegmentScan::Done;
        let end = range.end;
        if let Some((from, is_torn)) = found.open {
            let writable = self.backing.is_writable();
            if is_torn && writable && !planted(Bug::Wear(WearBug::TornLineKept)) {
                at.lines.store_zeros(from, &*self.backing);
                self.backing.fence();
            }
            let wait = if is_torn { u64::from(self.wait_ms) + 1 } else { 0 };
            at.open = Some(OpenEnd { from, end, from_ms: now_ms + wait });
        }
        for &(line, record) in &found.blocks {
            at.starts.put(line, true);
            at.live.put(line, record.is_allocated());
        }
        for &(line, lines, what) in &found.damaged {
            self.contain(state, (puddle, line, lines), what);
        }
        for &(line, record) in &found.blocks {
            let range = FreeRange { puddle, line, lines: record.size() };
            match record {
                WearRecord::Free { time_ms, .. } => {
                    self.take_over_free(state, WaitingBlock { range, time_ms }, now_ms);
                }
                // Since when it is free is not known: it waits from now on.
                WearRecord::Returned { .. } => {
                    let block = WaitingBlock { range, time_ms: now_ms as u32 };
                    self.wait_or_free(state, block, now_ms);
                }
                WearRecord::Damaged { .. } => {
                    self.put_out_of_use(state, range, "its header was found damaged before");
                }
                _ => {}
            }
        }
        let free = state.puddles.get(puddle).map(|at| free_ranges(at, puddle, segment));
        free.into_iter().flatten().for_each(|range| state.lists.add(range));
    }

    /// Takes over a free block: it is available, or waits.
    fn take_over_free(&self, state: &mut WearState, block: WaitingBlock, now_ms: u64) {
        let FreeRange { puddle, line, lines } = block.range;
        let Some(at) = state.puddles.get_mut(puddle) else { return };
        let age = (now_ms as u32).wrapping_sub(block.time_ms);
        if has_waited(now_ms, block.time_ms, self.wait_ms) && !is_to_come(now_ms, block.time_ms) {
            at.free.fill(line, line + lines, true);
            return;
        }
        let last = at.last_freed;
        let is_newer = match at.lines.says(last) {
            Some(WearRecord::Free { time_ms, .. }) if last != 0 => {
                age <= (now_ms as u32).wrapping_sub(time_ms)
            }
            _ => true,
        };
        if is_newer {
            at.last_freed = line;
        }
        state.wait(block, now_ms);
    }
}

/// The free ranges of a segment.
fn free_ranges(at: &WearPuddle, puddle: usize, segment: usize) -> Vec<FreeRange> {
    let mut ranges = Vec::new();
    let Some(filled) = at.segments.get(segment).map(|segment| at.filled(segment.first)) else {
        return ranges;
    };
    let mut from = filled.start;
    while let Some(line) = at.free.next(from, filled.end, true) {
        let end = at.free.next(line, filled.end, false).unwrap_or(filled.end);
        ranges.push(FreeRange { puddle, line, lines: end - line });
        from = end;
    }
    ranges
}

/// A segment that no thread has begun to scan.
fn pending(state: &mut WearState) -> Option<(usize, usize)> {
    let is_pending = |segment: &WearSegment| segment.scan == SegmentScan::Pending;
    while let Some(at) = state.puddles.get(state.scan_at) {
        if let Some(segment) = at.segments.iter().position(is_pending) {
            return Some((state.scan_at, segment));
        }
        state.scan_at += 1;
    }
    None
}
