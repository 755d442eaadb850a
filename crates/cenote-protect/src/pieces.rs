//! How much of a range opens at once: a page, or more where mappings are short
//! ([`cenote_sys::mappings`]).

use crate::dirty_bitmap::{CHUNK, PAGE};
use cenote_sys::mappings::Fineness;
use core::ops::Range;

/// The pieces of a range of `len` bytes that have the byte at `offset`, which lies in it: its page,
/// its chunk, the whole range. The first one is as fine as allowed; the others are for when the
/// kernel refuses one. In pages of the range.
pub(crate) fn pieces(offset: usize, len: usize, fineness: Fineness) -> [Option<Range<u64>>; 3] {
    let page = offset / PAGE * PAGE;
    let chunk = offset / CHUNK * CHUNK;
    let piece = |least: Fineness, from: usize, to: usize| {
        (fineness >= least).then_some((from / PAGE) as u64..(to / PAGE) as u64)
    };
    [
        piece(Fineness::Page, page, page + PAGE),
        piece(Fineness::Chunk, chunk, (chunk + CHUNK).min(len)),
        piece(Fineness::Whole, 0, len),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_get_larger_and_begin_as_fine_as_allowed() {
        let len = 2 * CHUNK + 3 * PAGE;
        let all = |offset, fineness| pieces(offset, len, fineness).into_iter().flatten();
        let of_page = all(CHUNK + 5 * PAGE + 9, Fineness::Page).collect::<Vec<_>>();
        assert_eq!(of_page, [517..518, 512..1024, 0..1027]);
        let of_chunk = all(2 * CHUNK, Fineness::Chunk).collect::<Vec<_>>();
        assert_eq!(of_chunk, [1024..1027, 0..1027], "the last chunk is shorter");
        assert_eq!(all(7, Fineness::Whole).next(), Some(0..1027));
        assert_eq!(all(7, Fineness::Whole).count(), 1);
    }
}
