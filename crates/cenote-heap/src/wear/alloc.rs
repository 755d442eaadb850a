//! Allocates blocks.
//!
//! An allocation takes, in this order: free lines; the open end of a segment; a new segment; what
//! another segment has that is not scanned yet; a new puddle. Lines that a block leaves over wait
//! as freed blocks do: their header was written now, and is to be written again only after that
//! time.
//!
//! *States and commits.* `R` is the header of what is left over behind the block, `F` that of the
//! free block in which the new one begins, `A` that of the new block. The last store commits.
//!
//! | case | stores | after a crash before the last |
//! | --- | --- | --- |
//! | from the start of a free block | `R`, fence; **`A`** over `F` | `R` inside a free block |
//! | from inside a free block | `A` and `R`, fence; **`F`**, shorter | the same of `A` and `R` |
//! | open end | **`A`** | the end is open: zeros, or a part of `A` |
//! | open end, aligned | **`F`** before it, fence; then **`A`** | a free block more |
//! | new segment | **`F`** over the last open end, fence; **its line of the table** | the same |
//!
//! No reader looks inside a free block. Each commit is the change of one line, which counts when
//! all its words are there; it is durable before the block is given out. Free blocks that lie in
//! the lines of `A` get no new header.

use super::lists::{FreeRange, LOOKS};
use super::puddle::{OpenEnd, SegmentScan, WearPuddle, WearSegment};
use super::state::{WaitingBlock, WearGuard, WearHeap, WearState, is_current};
use crate::backing::{Backing, BackingError};
use crate::block::{Block, BlockInfo, Cancelled, Mark, Taking};
use crate::error::AllocError;
use cenote_layout::id::TypeId;
use cenote_layout::puddle::header_space;
use cenote_layout::wear::{COMMIT_BITS, WEAR_LINE, WEAR_SIZE_MAX, WearRecord};
use cenote_medium::planted::{Bug, Step, WearBug, planted, reach};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::AtomicU64;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
struct WearRequest {
    /// Lines of the block, its header among them.
    lines: u32,
    align: u64,
    type_id: TypeId,
    /// Read under the lock of the heap: a block that was freed later has not waited.
    now_ms: u64,
    /// Entries of a list of free ranges that are looked at.
    looks: usize,
}

/// Most bytes of a block.
pub const WEAR_BLOCK_MAX: u64 = (WEAR_SIZE_MAX as u64 - 1) * WEAR_LINE;
/// Largest alignment.
const ALIGN_MAX: u64 = 2 << 20;
/// A rest smaller than 1/8 of the block becomes part of the block.
const SLACK: u32 = 8;
/// Pieces of what is left over.
const PIECES: usize = 26;

/// Bytes of the block that a request of `size` bytes gets at least.
#[must_use]
pub fn block_size(size: u64) -> Option<u64> {
    let bytes = size.max(1).checked_next_multiple_of(WEAR_LINE)?;
    (bytes <= WEAR_BLOCK_MAX).then_some(bytes)
}

/// What is asked before a block is allocated, if something is.
pub(crate) type AskBefore<'b> = Option<&'b mut dyn FnMut(&Block) -> Result<Taking, Cancelled>>;

/// Lines that a block takes: from there on, so many.
#[derive(Clone, Copy, Debug)]
struct TakenLines {
    puddle: usize,
    line: u32,
    lines: u32,
}

impl<G: Backing> WearHeap<G> {
    /// Allocates at least `size` bytes (0 counts as 1) at a multiple of `align`, a power of two up
    /// to 2 MiB, for values of `type_id`. Durable on return. The block holds the bytes that were
    /// there before.
    ///
    /// # Errors
    /// Why there is no block; nothing is allocated.
    pub fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<BlockInfo, AllocError> {
        self.alloc_asking(size, align, type_id, &mut None).map(|(block, _)| block)
    }

    /// [`WearHeap::alloc`]. Before anything of the block is stored, `before` is asked with it, and
    /// what it flushed is made durable; then the word of its mark is returned too.
    pub(crate) fn alloc_asking(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut AskBefore<'_>,
    ) -> Result<(BlockInfo, Option<NonNull<AtomicU64>>), AllocError> {
        if !self.backing.is_writable() {
            return Err(AllocError::ReadOnly);
        }
        if !align.is_power_of_two() || align > ALIGN_MAX {
            return Err(AllocError::Align { align });
        }
        let size_max = self.backing.size_max().min(WEAR_BLOCK_MAX);
        let bytes = block_size(size).filter(|&bytes| bytes <= size_max);
        let bytes = bytes.ok_or(AllocError::Size { size, size_max })?;
        let lines = (bytes / WEAR_LINE) as u32 + 1;
        let mut state = self.lock();
        let (now_ms, looks) = (self.clock.now_ms(), LOOKS);
        let mut request = WearRequest { lines, align, type_id, now_ms, looks };
        state.move_waiting(request.now_ms, self.wait_ms);
        let taken = loop {
            match self.take(&mut state, &request, before) {
                Ok(Some(taken)) => break taken,
                Ok(None) => {}
                Err(Cancelled) => {
                    self.end(state);
                    return Err(AllocError::Cancelled);
                }
            }
            if state.move_waiting(request.now_ms, self.wait_ms) {
                continue;
            }
            let (next, more) = self.scan_more(state);
            state = next;
            // Other threads may have freed blocks meanwhile.
            request.now_ms = self.clock.now_ms();
            if more {
                continue;
            }
            if request.looks == LOOKS {
                request.looks = usize::MAX;
                continue;
            }
            if let Err(source) = self.grow(&mut state, &request) {
                let error = self.full(&state, size, type_id, source);
                self.end(state);
                return Err(error);
            }
        };
        let at = state.puddles.get(taken.puddle);
        let addr = at.map_or(0, |at| at.addr_of(taken.line + 1));
        let mut word = None;
        if before.is_some() {
            word = at.and_then(|at| at.lines.commit_word(taken.line, false));
            state.in_transaction.insert((taken.puddle, taken.line));
        }
        self.end(state);
        let size = u64::from(taken.lines - 1) * WEAR_LINE;
        Ok((BlockInfo { addr, size, type_id }, word))
    }

    /// A block in what is known; `None`: there is none.
    fn take(
        &self,
        state: &mut WearState,
        request: &WearRequest,
        before: &mut AskBefore<'_>,
    ) -> Result<Option<TakenLines>, Cancelled> {
        if let Some(taken) = self.take_free(state, request, before)? {
            return Ok(Some(taken));
        }
        if let Some(taken) = self.take_open(state, request, before)? {
            return Ok(Some(taken));
        }
        match self.begin_segment(state, request) {
            Some(()) => self.take_open(state, request, before),
            None => Ok(None),
        }
    }

    /// Asks `before` about a block, whose header is to be stored in a line next.
    fn ask(
        &self,
        at: &WearPuddle,
        taken: TakenLines,
        word: Option<NonNull<AtomicU64>>,
        type_id: TypeId,
        before: &mut AskBefore<'_>,
    ) -> Result<(), Cancelled> {
        let Some(before) = before else { return Ok(()) };
        let addr = with_exposed_provenance_mut(at.addr_of(taken.line + 1) as usize);
        let (Some(addr), Some(word)) = (NonNull::new(addr), word) else { return Err(Cancelled) };
        let size = u64::from(taken.lines - 1) * WEAR_LINE;
        let mark = Mark { word, mask: COMMIT_BITS };
        before(&Block { addr, size, mark, type_id, has_ticket: true })?;
        // The entry that takes the block back is durable before anything says that the block is
        // allocated.
        if !planted(Bug::Wear(WearBug::EntryNotFenced)) {
            self.backing.fence();
        }
        Ok(())
    }

    fn full(
        &self,
        state: &WearState,
        size: u64,
        type_id: TypeId,
        source: BackingError,
    ) -> AllocError {
        let waiting = state.waiting_lines * WEAR_LINE;
        match waiting {
            0 => AllocError::Full { size, type_id, source },
            _ => AllocError::Waits { size, type_id, waiting, wait_ms: self.wait_ms, source },
        }
    }

    /// A block in free lines.
    fn take_free(
        &self,
        state: &mut WearState,
        request: &WearRequest,
        before: &mut AskBefore<'_>,
    ) -> Result<Option<TakenLines>, Cancelled> {
        loop {
            let WearState { lists, puddles, .. } = &mut *state;
            let range = lists.take(request.lines, request.looks, |range| {
                let at = puddles.get(range.puddle)?;
                if !planted(Bug::Wear(WearBug::StaleRangeBelieved)) && !is_current(at, range) {
                    return None;
                }
                let begin = at.aligned(range.line, request.align)?;
                Some(begin.saturating_add(request.lines) <= range.line + range.lines)
            });
            let Some(range) = range else { return Ok(None) };
            match self.take_from(state, &range, request, before) {
                Ok(Some(taken)) => return Ok(Some(taken)),
                // A header there was damaged, and is out of use now: what is left can be listed.
                Ok(None) => self.list_again(state, &range),
                Err(Cancelled) => {
                    self.list_again(state, &range);
                    return Err(Cancelled);
                }
            }
        }
    }

    /// Lists the parts of a range that are free still.
    fn list_again(&self, state: &mut WearState, range: &FreeRange) {
        let FreeRange { puddle, line: first, lines } = *range;
        let Some(at) = state.puddles.get(puddle) else { return };
        let (mut from, end) = (first, first + lines);
        while let Some(line) = at.free.next(from, end, true) {
            let behind = at.free.next(line, end, false).unwrap_or(end);
            state.lists.add(FreeRange { puddle, line, lines: behind - line });
            from = behind;
        }
    }

    /// A block in a range that is free; `None`: a header there is damaged.
    fn take_from(
        &self,
        state: &mut WearState,
        range: &FreeRange,
        request: &WearRequest,
        before: &mut AskBefore<'_>,
    ) -> Result<Option<TakenLines>, Cancelled> {
        let puddle = range.puddle;
        let Some((begin, first, last_end)) = self.free_blocks(state, range, request) else {
            return Ok(None);
        };
        self.look_at_next(state, puddle, last_end);
        let left = last_end - (begin + request.lines);
        let absorbed = if left < 2 || left <= request.lines / SLACK { left } else { 0 };
        let absorbed = absorbed.min(WEAR_SIZE_MAX - request.lines);
        let taken = TakenLines { puddle, line: begin, lines: request.lines + absorbed };
        let Some(at) = state.puddles.get(puddle) else { return Ok(None) };
        // Finding the word of a header that is there takes reading it.
        let word = match (begin > first, before.is_some()) {
            (true, _) => at.lines.first_commit_word(begin),
            (false, true) => at.lines.commit_word(begin, true),
            (false, false) => None,
        };
        self.ask(at, taken, word, request.type_id, before)?;
        self.write_block(state, taken, (first, last_end), request);
        let behind = range.line + range.lines;
        let parts = [(range.line, first), (last_end, behind)];
        for (line, end) in parts.into_iter().filter(|(line, end)| line < end) {
            state.lists.add(FreeRange { puddle, line, lines: end - line });
        }
        Ok(Some(taken))
    }

    /// Where a block begins in a free range, and the free blocks that have its lines: the first one
    /// and the end of the last. Their headers are right; `None`: one is not.
    fn free_blocks(
        &self,
        state: &mut WearState,
        range: &FreeRange,
        request: &WearRequest,
    ) -> Option<(u32, u32, u32)> {
        let at = state.puddles.get(range.puddle)?;
        let begin = at.aligned(range.line, request.align)?;
        let first = at.start_of(begin)?;
        let mut end = first;
        while end < begin + request.lines {
            if !self.is_header_right(state, range.puddle, end, WearRecord::is_free) {
                return None;
            }
            end = state.puddles.get(range.puddle)?.end_of(end);
        }
        Some((begin, first, end))
    }

    /// Writes the headers of a block in the free blocks `first..end`, and what they leave over.
    fn write_block(
        &self,
        state: &mut WearState,
        taken: TakenLines,
        (first, end): (u32, u32),
        request: &WearRequest,
    ) {
        let TakenLines { puddle, line, lines } = taken;
        let Some(at) = state.puddles.get_mut(puddle) else { return };
        let backing = &*self.backing;
        let time_ms = request.now_ms as u32;
        let block = WearRecord::Allocated { lines, type_id: request.type_id };
        let pieces = pieces_of(line + lines, end, request.lines);
        let write_pieces = |at: &WearPuddle| {
            let mut link = at.last_freed;
            for &(from, lines) in &pieces {
                let piece = WearRecord::Free { lines, link, time_ms };
                at.lines.store_first(from, &piece, backing);
                link = from;
            }
        };
        let late = planted(Bug::Wear(WearBug::RestAfterBlock));
        if !late {
            write_pieces(at);
        }
        if line > first {
            at.lines.store_first(line, &block, backing);
        }
        if (line > first || !pieces.is_empty()) && !planted(Bug::Wear(WearBug::RestNotFenced)) {
            backing.fence();
        }
        reach(Step::WearRestStored);
        if line > first {
            let link = pieces.last().map_or(at.last_freed, |&(from, _)| from);
            let front = WearRecord::Free { lines: line - first, link, time_ms };
            at.lines.store_next(first, &front, backing);
        } else {
            at.lines.store_next(line, &block, backing);
        }
        reach(Step::WearCommitted);
        backing.fence();
        if late {
            write_pieces(at);
            backing.fence();
        }
        at.starts.fill(line, end, false);
        at.free.fill(first, end, false);
        at.starts.put(line, true);
        at.live.put(line, true);
        let front = (line > first).then_some(first);
        for from in pieces.into_iter().map(|(from, _)| from).chain(front) {
            at.starts.put(from, true);
            at.last_freed = from;
        }
        self.let_wait(state, puddle, (first, end), time_ms);
    }

    /// Lets the blocks of a range that are not allocated wait, and nothing for the time 0.
    fn let_wait(
        &self,
        state: &mut WearState,
        puddle: usize,
        (first, end): (u32, u32),
        time_ms: u32,
    ) {
        let now_ms = self.clock.now_ms();
        let mut next = Some(first);
        while let Some(line) = next.filter(|&line| line < end) {
            let Some(at) = state.puddles.get(puddle) else { return };
            let range = FreeRange { puddle, line, lines: at.end_of(line) - line };
            next = Some(line + range.lines);
            if !at.live.get(line) {
                self.wait_or_free(state, WaitingBlock { range, time_ms }, now_ms);
            }
        }
    }

    /// A block at the open end of a segment.
    fn take_open(
        &self,
        state: &mut WearState,
        request: &WearRequest,
        before: &mut AskBefore<'_>,
    ) -> Result<Option<TakenLines>, Cancelled> {
        let fits = |at: &WearPuddle| -> Option<(u32, OpenEnd)> {
            let open = at.open.filter(|open| open.from_ms <= request.now_ms)?;
            let begin = at.aligned(open.from, request.align)?;
            (begin.checked_add(request.lines)? <= open.end).then_some((begin, open))
        };
        let found = state.puddles.iter().enumerate().rev();
        let found = found.filter_map(|(puddle, at)| Some((puddle, fits(at)?))).next();
        let Some((puddle, (begin, open))) = found else { return Ok(None) };
        if begin > open.from {
            self.close_open(state, puddle, begin, request.now_ms as u32);
        }
        let left = open.end - (begin + request.lines);
        let absorbed = if left < 2 { left } else { 0 };
        let lines = request.lines + absorbed.min(WEAR_SIZE_MAX - request.lines);
        let taken = TakenLines { puddle, line: begin, lines };
        let Some(at) = state.puddles.get_mut(puddle) else { return Ok(None) };
        self.ask(at, taken, at.lines.first_commit_word(begin), request.type_id, before)?;
        let block = WearRecord::Allocated { lines, type_id: request.type_id };
        at.lines.store_first(begin, &block, &*self.backing);
        reach(Step::WearCommitted);
        self.backing.fence();
        at.starts.put(begin, true);
        at.live.put(begin, true);
        let from = begin + lines;
        at.open = at.open.map(|open| OpenEnd { from, ..open }).filter(|open| from < open.end);
        Ok(Some(taken))
    }

    /// Makes free blocks of an open end up to a line; they wait. One, if a header can say so many
    /// lines.
    fn close_open(&self, state: &mut WearState, puddle: usize, to: u32, time_ms: u32) {
        let open = |state: &WearState| state.puddles.get(puddle)?.open;
        while let Some(open) = open(state).filter(|open| open.from < to) {
            let to = to.min(open.from.saturating_add(WEAR_SIZE_MAX));
            self.close_part(state, (puddle, open), to, time_ms);
        }
    }

    fn close_part(
        &self,
        state: &mut WearState,
        (puddle, open): (usize, OpenEnd),
        to: u32,
        time_ms: u32,
    ) {
        let Some(at) = state.puddles.get_mut(puddle) else { return };
        let (lines, link) = (to - open.from, at.last_freed);
        let free = WearRecord::Free { lines, link, time_ms };
        at.lines.store_first(open.from, &free, &*self.backing);
        reach(Step::WearEndClosed);
        self.backing.fence();
        at.starts.put(open.from, true);
        at.last_freed = open.from;
        at.open = Some(OpenEnd { from: to, ..open }).filter(|open| to < open.end);
        let range = FreeRange { puddle, line: open.from, lines };
        self.wait_or_free(state, WaitingBlock { range, time_ms }, self.clock.now_ms());
    }

    /// Begins a segment with room for a request, if a puddle has chunks for it.
    fn begin_segment(&self, state: &mut WearState, request: &WearRequest) -> Option<()> {
        let needed = |at: &WearPuddle| -> Option<u32> {
            let is_scanned = at.segments.last().is_none_or(|last| last.scan == SegmentScan::Done);
            let quiet = at.open.is_none_or(|open| open.from_ms <= request.now_ms);
            let ready = is_scanned && quiet && at.begin_ms <= request.now_ms;
            let first = at.chunk_at(at.begun);
            let end = at.aligned(first, request.align)?.checked_add(request.lines)?;
            let chunks = (end - first).div_ceil(at.geometry.chunk_lines);
            let left = at.geometry.chunks - at.begun;
            // Segments grow with what is there, so that large blocks find room again.
            (ready && chunks <= left).then_some(chunks.max((at.begun / 4).min(left)))
        };
        let puddle = state.puddles.iter().position(|at| needed(at).is_some())?;
        let chunks = state.puddles.get(puddle).and_then(needed)?;
        if let Some(open) = state.puddles.get(puddle)?.open {
            self.close_open(state, puddle, open.end, request.now_ms as u32);
        }
        let at = state.puddles.get_mut(puddle)?;
        let begins = WearRecord::Segment { chunks };
        at.lines.store_first(at.geometry.table + at.begun, &begins, &*self.backing);
        reach(Step::WearSegmentStored);
        if !planted(Bug::Wear(WearBug::SegmentNotFenced)) {
            self.backing.fence();
        }
        let (first, end) = (at.chunk_at(at.begun), at.chunk_at(at.begun + chunks));
        at.begun += chunks;
        at.segments.push(WearSegment { first, end, scan: SegmentScan::Done });
        at.open = Some(OpenEnd { from: first, end, from_ms: 0 });
        Some(())
    }

    /// Takes a puddle that has room for a request.
    fn grow(&self, state: &mut WearGuard<'_>, request: &WearRequest) -> Result<(), BackingError> {
        let chunk_lines = 1u64 << (self.chunk_log - WEAR_LINE.trailing_zeros());
        let slack = if request.align > WEAR_LINE { request.align / WEAR_LINE } else { 0 };
        let chunks = (u64::from(request.lines) + slack).div_ceil(chunk_lines);
        let body = (chunks * (chunk_lines + 1) + 1) * WEAR_LINE;
        let size = (body + header_space(2 * body)).next_multiple_of(64 << 10);
        let extent = self.backing.take(size.max(self.backing.puddle_size()))?;
        self.attach(state, &extent, true)
    }
}

/// The free blocks that lines are made of which a block leaves over: halves, down to a few times
/// the lines that were asked for, so that several such requests find one each.
fn pieces_of(from: u32, end: u32, asked: u32) -> Vec<(u32, u32)> {
    let (mut from, mut pieces) = (from, Vec::new());
    while from < end {
        let left = end - from;
        let is_small = left / 4 <= asked || pieces.len() >= PIECES;
        let lines = if is_small { left } else { left / 2 };
        pieces.push((from, lines));
        from += lines;
    }
    pieces
}
