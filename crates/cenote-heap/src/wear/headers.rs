//! Reads segment tables and headers: of a puddle that is mapped ([`super::scan`]), and of one that
//! no heap uses ([`super::image`]). Nothing is changed.
//!
//! **Damage.** If a block's header is damaged, the reader goes to the next header of an allocated
//! block. Such a header is always current, because a free overwrites it. A free header may be old
//! and lie inside the damaged block, so the reader does not believe it. If the size of the block is
//! left in its header, its end is known.

use super::lines::LineSource;
use cenote_layout::wear::{WearGeometry, WearLine, WearRecord};
use cenote_medium::planted::{Bug, WearBug, planted};

/// The table line of the next chunk that belongs to no segment yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableLine {
    /// A segment of this many chunks begins.
    Begins(u32),
    /// The same, but the line is damaged and does not say so.
    Damaged(u32),
    /// No further segment begins. True: a part of a line is there.
    End(bool),
}

/// Reads the table line of chunk `begun`.
pub(crate) fn read_table_line(
    lines: &impl LineSource,
    geometry: &WearGeometry,
    begun: u32,
) -> TableLine {
    let WearGeometry { table, first, chunks, chunk_lines } = *geometry;
    let begins = |chunk: u32| match lines.look_for(table + chunk) {
        Some(WearRecord::Segment { chunks }) => Some(chunks),
        _ => None,
    };
    let left = chunks - begun;
    if let Some(count) = begins(begun).filter(|&count| (1..=left).contains(&count)) {
        return TableLine::Begins(count);
    }
    let next = (begun + 1..chunks).find(|&chunk| begins(chunk).is_some());
    let is_unused = lines.look(table + begun) == WearLine::Unused;
    if is_unused && next.is_none() && lines.is_empty(first + begun * chunk_lines) {
        return TableLine::End(!lines.is_empty(table + begun));
    }
    TableLine::Damaged(next.map_or(left, |next| next - begun))
}

/// What a segment has.
#[derive(Debug, Default)]
pub(crate) struct SegmentFound {
    /// First line and record of each block.
    pub(crate) blocks: Vec<(u32, WearRecord)>,
    /// First line and lines of what is damaged now, and why.
    pub(crate) damaged: Vec<(u32, u32, &'static str)>,
    /// First line of the end that is not used, and whether a part of a header is there.
    pub(crate) open: Option<(u32, bool)>,
}

/// Reads a segment; only the last one of a puddle may have an end that is not used.
pub(crate) fn read_segment(
    lines: &impl LineSource,
    first: u32,
    end: u32,
    is_last: bool,
) -> SegmentFound {
    let (mut found, mut at) = (SegmentFound::default(), first);
    while at < end {
        let line = lines.look(at);
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
            WearLine::Unused if is_last && (at + 1..end).all(|line| lines.is_empty(line)) => {
                found.open = Some((at, !lines.is_empty(at)));
                break;
            }
            WearLine::Unused => "the header of a block is gone",
            WearLine::Damaged { .. } if lines.words(at).is_none() => {
                "the page of the header of a block cannot be read"
            }
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
fn is_sure(lines: &impl LineSource, line: u32) -> bool {
    let said = lines.look_for(line);
    matches!(said, Some(WearRecord::Allocated { .. } | WearRecord::Damaged { .. }))
}

/// Where the next block begins behind a damaged header, as far as that is certain: `known` is where
/// the block of that header ended.
fn next_block(
    lines: &impl LineSource,
    at: u32,
    end: u32,
    (known, is_last): (Option<u32>, bool),
) -> u32 {
    let begins = |&line: &u32| match lines.look(line) {
        WearLine::Says { record, .. } if record.is_free() => {
            Some(line) == known || planted(Bug::Wear(WearBug::FreeHeaderBelieved))
        }
        WearLine::Says { .. } => is_sure(lines, line),
        WearLine::Unused => Some(line) == known && is_last,
        WearLine::Damaged { .. } => false,
    };
    (at + 1..end).find(begins).unwrap_or(end)
}
