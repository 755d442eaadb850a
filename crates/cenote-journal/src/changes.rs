//! What one psync changes: runs of lines, and their contents.
//!
//! Invariant: `data` holds the contents of `runs`, one after the other, in the order of the runs.
//! The runs of a primary that came from pages in order are in order.

use cenote_layout::object::LineRun;
use cenote_layout::{LINE_SIZE, PAGE_SIZE};
use core::ops::Range;

/// Pages of a primary's data, by number.
pub type Pages = Range<u64>;

pub(crate) const PAGE: usize = PAGE_SIZE as usize;
pub(crate) const LINE: usize = LINE_SIZE as usize;
/// Lines of a page.
pub(crate) const LINES: usize = PAGE / LINE;

/// What one psync changes, of any number of primaries.
#[derive(Debug, Default)]
pub struct Changes {
    /// Lines that differ, in order.
    pub runs: Vec<LineRun>,
    /// Contents of the runs, one after the other.
    pub data: Vec<u8>,
    /// Pages in which something differs.
    pub pages: u64,
    /// Pages that changed as a whole since one that did not.
    pub(crate) streak: u32,
    /// How many they are when the next one is compared.
    pub(crate) look_at: u32,
    /// Contents of pages of the primary that are being compared.
    pub(crate) theirs: Vec<u8>,
}

impl Changes {
    /// Forgets all, but keeps the memory.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.data.clear();
        self.pages = 0;
        (self.streak, self.look_at) = (0, 0);
    }

    /// Adds whole lines from number `first_line` on without a comparison: lines of side data, which
    /// are no pages.
    pub fn add_lines(&mut self, object: u32, first_line: u64, lines: &[u8]) {
        debug_assert!(lines.len().is_multiple_of(LINE));
        self.add_run(object, first_line, lines);
    }

    /// Adds a whole page without a comparison.
    pub fn add_whole_page(&mut self, object: u32, page: u64, ours: &[u8]) {
        debug_assert_eq!(ours.len(), PAGE);
        self.pages += 1;
        self.add_run(object, page * LINES as u64, ours);
    }

    pub(crate) fn add_run(&mut self, object: u32, first_line: u64, data: &[u8]) {
        self.data.extend_from_slice(data);
        let lines = (data.len() / LINE) as u32;
        if let Some(last) = self.runs.last_mut()
            && last.object == object
            && last.first_line + u64::from(last.lines) == first_line
            && let Some(sum) = last.lines.checked_add(lines)
        {
            last.lines = sum;
            return;
        }
        self.runs.push(LineRun { object, lines, first_line });
    }

    /// The pages of primary number `object` that the runs lie in, if the runs came in order: of
    /// primaries, and of lines.
    #[must_use]
    pub fn pages_of(&self, object: u32) -> Vec<Pages> {
        let mut pages: Vec<Pages> = Vec::new();
        let from = self.runs.partition_point(|run| run.object < object);
        for run in self.runs.iter().skip(from).take_while(|run| run.object == object) {
            let (first, end) = (run.first_line, run.first_line + u64::from(run.lines));
            let (first, end) = (first / LINES as u64, end.div_ceil(LINES as u64));
            match pages.last_mut() {
                Some(last) if first <= last.end => last.end = last.end.max(end),
                _ => pages.push(first..end),
            }
        }
        pages
    }

    /// The runs with their contents.
    pub fn iter(&self) -> impl Iterator<Item = (&LineRun, &[u8])> {
        let mut rest = self.data.as_slice();
        self.runs.iter().map(move |run| {
            let (data, behind) = rest.split_at((run.len_bytes() as usize).min(rest.len()));
            rest = behind;
            (run, data)
        })
    }
}
