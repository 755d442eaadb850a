//! Reads headers, and learns from them which lines are allocated, free or damaged.
//!
//! Segments are scanned one by one, by any number of threads, without the lock of the heap: a
//! segment that is not scanned has no block that changes. Allocations do not wait for the scan; an
//! address in a segment that is not scanned lets its segment be scanned first.
//! How headers are read, damaged ones too, is in [`super::headers`].

use super::clock::{has_waited, is_to_come};
use super::headers::{SegmentFound, read_segment};
use super::lists::FreeRange;
use super::puddle::{OpenEnd, SegmentScan, WearPuddle, WearSegment};
use super::state::{WaitingBlock, WearGuard, WearHeap, WearState};
use crate::backing::Backing;
use cenote_layout::wear::{WEAR_LINE, WearRecord};
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
        let mut state = self.lock();
        if !is_stopped() {
            // Segments that other threads scan, because they need them.
            state = self.scan_all(state);
        }
        let is_done = state.unscanned == 0;
        self.end(state);
        is_done
    }

    /// How far the scan is.
    #[must_use]
    pub fn progress(&self) -> WearProgress {
        let state = self.lock();
        let segments = state.puddles.iter().map(|puddle| puddle.segments.len() as u64).sum();
        WearProgress { scanned: segments - state.unscanned, segments }
    }

    /// Bytes of the segments that no thread has begun to scan.
    pub(crate) fn bytes_to_scan(&self) -> u64 {
        let state = self.lock();
        let segments = state.puddles.iter().flat_map(|puddle| &puddle.segments);
        let pending = segments.filter(|segment| segment.scan == SegmentScan::Pending);
        pending.map(|segment| u64::from(segment.end - segment.first) * WEAR_LINE).sum()
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
        let waiting = state.waiting.len();
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
        if state.waiting.len() > waiting {
            state.sort_waiting(now_ms);
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
