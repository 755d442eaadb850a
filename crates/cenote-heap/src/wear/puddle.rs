//! One puddle as this process knows it: three bits for each line, segments, and the end that is not
//! used yet.
//!
//! Invariants, of segments that were scanned:
//!
//! * `starts` has the first line of each block, free or not; blocks fill the segment up to its
//!   open end. A header on media stands in each of these lines.
//! * `live` has the first lines of allocated blocks.
//! * `free` has all lines of blocks that can be given out. Neighbours that are free are one range
//!   without a change on media: nothing else merges them.

use super::bits::LineBits;
use super::lines::PuddleLines;
use cenote_layout::wear::{WEAR_LINE, WearGeometry};
use std::collections::BTreeMap;

/// How far the scan of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentScan {
    /// No thread has begun it.
    Pending,
    /// A thread reads it.
    Claimed,
    /// Its bits are right.
    Done,
}

/// A run of chunks that blocks fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WearSegment {
    /// Its first line.
    pub(crate) first: u32,
    /// The line behind it.
    pub(crate) end: u32,
    /// Whether its bits are right.
    pub(crate) scan: SegmentScan,
}

/// The end of the last segment that no block has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenEnd {
    /// Its first line.
    pub(crate) from: u32,
    /// The line behind it.
    pub(crate) end: u32,
    /// Nothing is allocated there before that time: a crash left a part of a header.
    pub(crate) from_ms: u64,
}

/// A puddle of the heap.
#[derive(Debug)]
pub(crate) struct WearPuddle {
    pub(crate) lines: PuddleLines,
    pub(crate) addr: u64,
    /// Number in the pool.
    pub(crate) index: u32,
    pub(crate) geometry: WearGeometry,
    pub(crate) starts: LineBits,
    pub(crate) live: LineBits,
    pub(crate) free: LineBits,
    /// In order.
    pub(crate) segments: Vec<WearSegment>,
    /// Chunks that are in segments.
    pub(crate) begun: u32,
    pub(crate) open: Option<OpenEnd>,
    /// No segment begins before that time.
    pub(crate) begin_ms: u64,
    /// The block that was freed last; 0: none.
    pub(crate) last_freed: u32,
    /// First lines and lengths of what is out of use.
    pub(crate) damaged: BTreeMap<u32, u32>,
}

impl WearPuddle {
    /// Without segments.
    pub(crate) fn new(lines: PuddleLines, addr: u64, index: u32, geometry: WearGeometry) -> Self {
        let bits = || LineBits::new(geometry.end());
        Self {
            lines,
            addr,
            index,
            geometry,
            starts: bits(),
            live: bits(),
            free: bits(),
            segments: Vec::new(),
            begun: 0,
            open: None,
            begin_ms: 0,
            last_freed: 0,
            damaged: BTreeMap::new(),
        }
    }

    /// The address of a line.
    pub(crate) fn addr_of(&self, line: u32) -> u64 {
        self.addr + u64::from(line) * WEAR_LINE
    }

    /// The first line of a chunk.
    pub(crate) fn chunk_at(&self, chunk: u32) -> u32 {
        self.geometry.first + chunk * self.geometry.chunk_lines
    }

    /// The segment that a line lies in.
    pub(crate) fn segment_of(&self, line: u32) -> Option<usize> {
        let behind = self.segments.partition_point(|segment| segment.first <= line);
        let number = behind.checked_sub(1)?;
        (line < self.segments.get(number)?.end).then_some(number)
    }

    /// The lines of a line's segment that blocks fill.
    pub(crate) fn filled(&self, line: u32) -> core::ops::Range<u32> {
        let Some(segment) = self.segment_of(line).and_then(|number| self.segments.get(number))
        else {
            return 0..0;
        };
        let open = self.open.filter(|open| open.end == segment.end);
        segment.first..open.map_or(segment.end, |open| open.from)
    }

    /// The line behind the block that begins at a line.
    pub(crate) fn end_of(&self, line: u32) -> u32 {
        let end = self.filled(line).end;
        self.starts.next(line + 1, end, true).unwrap_or(end)
    }

    /// The first line of the block that a line lies in.
    pub(crate) fn start_of(&self, line: u32) -> Option<u32> {
        let filled = self.filled(line);
        filled.contains(&line).then(|| self.starts.last(filled.start, line + 1, true))?
    }

    /// Whether a header stands in a line that the heap believes in.
    pub(crate) fn has_header(&self, line: u32) -> bool {
        self.filled(line).contains(&line) && self.starts.get(line)
    }

    /// The largest free range around a line that is free.
    pub(crate) fn range_around(&self, line: u32) -> (u32, u32) {
        let filled = self.filled(line);
        let before = self.free.last(filled.start, line, false);
        let start = before.map_or(filled.start, |before| before + 1);
        let end = self.free.next(line, filled.end, false).unwrap_or(filled.end);
        (start, end - start)
    }

    /// The first line from `from` on at which a block begins whose bytes for the program lie at a
    /// multiple of `align`.
    pub(crate) fn aligned(&self, from: u32, align: u64) -> Option<u32> {
        let body = self.addr_of(from + 1).checked_next_multiple_of(align.max(WEAR_LINE))?;
        u32::try_from((body - self.addr) / WEAR_LINE - 1).ok()
    }
}
