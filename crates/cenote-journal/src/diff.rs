//! Which lines of written pages differ from the primary.
//!
//! A written page is compared with the primary by lines of 64 bytes. Lines that differ become
//! *runs*. A run goes on over a few equal lines if those cost less than a further run. A page with
//! many changed lines is taken as a whole. Equal pages are not written: a page may be in the list
//! because it was read, or written with the value that it held.
//!
//! A psync of many pages that all changed as a whole compares only some of them: after 8 such pages
//! one in 5, then fewer, at least one in 65, until one comes that did not. A page that is taken
//! without a comparison is right too: it has the shadow's contents. At most half as many pages are
//! taken in vain as had changed as a whole before them.
//!
//! Invariant: no thread stores into a page while it is compared and copied. The journal and the
//! primary get that copy.

use crate::apply_queue::Primary;
use crate::changes::{Changes, LINE, LINES, PAGE, Pages};
use cenote_layout::PAGE_SIZE;
use cenote_medium::MediumError;

/// Equal lines that a run goes on over: 4 cost less to write than a run of its own costs to
/// describe and to apply.
const GAP_LINES: usize = 4;
/// Changed lines of a page from which on it is taken as a whole.
const LINES_MAX: usize = 48;
/// Pages that are read from the primary at once.
const BATCH: u64 = 16;

/// Pages that changed as a whole, one after the other, from which on not every page is compared.
const STREAK: u32 = 8;
/// Most pages that are taken between two that are compared.
const UNSEEN_MAX: u32 = 64;

impl Changes {
    /// Adds what differs in `pages` of primary number `object`, whose shadow begins at `shadow`.
    ///
    /// # Errors
    /// The primary cannot be read. What was added is incomplete.
    ///
    /// # Safety
    /// The pages of the shadow are mapped and the caller's to change, and no other thread uses them
    /// meanwhile.
    pub unsafe fn add(
        &mut self,
        object: u32,
        shadow: *mut u8,
        pages: &[Pages],
        primary: &Primary<'_>,
    ) -> Result<(), MediumError> {
        for range in pages {
            let (at, count) = (range.start as usize, (range.end - range.start) as usize);
            // SAFETY: the pages are mapped, and no other thread uses them, by the caller's promise.
            let ours = unsafe { cenote_sys::bytes::settled(shadow.add(at * PAGE), count * PAGE) };
            self.add_copy(object, range.start, ours, primary)?;
        }
        Ok(())
    }

    /// The same of whole pages from number `first` on that have been copied to `ours`.
    ///
    /// # Errors
    /// As [`Changes::add`].
    pub fn add_copy(
        &mut self,
        object: u32,
        first: u64,
        ours: &[u8],
        primary: &Primary<'_>,
    ) -> Result<(), MediumError> {
        self.add_copy_noting(object, first, ours, primary, |_| {})
    }

    /// The same, and says the number of every page in which something differs.
    ///
    /// # Errors
    /// As [`Changes::add`].
    pub fn add_copy_noting(
        &mut self,
        object: u32,
        first: u64,
        ours: &[u8],
        primary: &Primary<'_>,
        mut differs: impl FnMut(u64),
    ) -> Result<(), MediumError> {
        let mut theirs = core::mem::take(&mut self.theirs);
        theirs.resize(PAGE * BATCH as usize, 0);
        let mut page = first;
        let mut rest = ours;
        while !rest.is_empty() {
            let batch = if self.streak < STREAK { theirs.len() } else { PAGE };
            let (ours, behind) = rest.split_at(batch.min(rest.len()));
            rest = behind;
            if self.streak >= STREAK && self.streak < self.look_at {
                self.add_whole_page(object, page, ours);
                self.streak += 1;
                differs(page);
                page += 1;
                continue;
            }
            let theirs = &mut theirs[..ours.len()];
            primary.read(page * PAGE_SIZE, theirs)?;
            for (ours, theirs) in ours.chunks_exact(PAGE).zip(theirs.chunks_exact(PAGE)) {
                let before = self.pages;
                self.add_page(object, page, ours, theirs);
                if self.pages > before {
                    differs(page);
                }
                page += 1;
            }
        }
        self.theirs = theirs;
        Ok(())
    }

    fn add_page(&mut self, object: u32, page: u64, ours: &[u8], theirs: &[u8]) {
        let mut runs = [(0usize, 0usize); LINES];
        let (mut count, mut changed) = (0, 0);
        let lines = ours.chunks_exact(LINE).zip(theirs.chunks_exact(LINE));
        for (line, _) in lines.enumerate().filter(|(_, (ours, theirs))| ours != theirs) {
            changed += 1;
            match runs[..count].last_mut() {
                Some((_, end)) if line <= *end + GAP_LINES => *end = line + 1,
                _ => {
                    runs[count] = (line, line + 1);
                    count += 1;
                }
            }
        }
        self.streak = if changed >= LINES_MAX { self.streak.saturating_add(1) } else { 0 };
        self.look_at = self.streak.saturating_add((self.streak / 2).min(UNSEEN_MAX));
        if count == 0 {
            return;
        }
        self.pages += 1;
        if changed >= LINES_MAX {
            runs[0] = (0, LINES);
            count = 1;
        }
        let first = page * LINES as u64;
        for (from, to) in &runs[..count] {
            self.add_run(object, first + *from as u64, &ours[from * LINE..to * LINE]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_with(changed: &[usize]) -> (Vec<u8>, Vec<u8>) {
        let theirs = vec![7u8; PAGE];
        let mut ours = theirs.clone();
        changed.iter().for_each(|line| ours[line * LINE + 9] = 8);
        (ours, theirs)
    }

    fn runs(changed: &[usize]) -> Vec<(u64, u32)> {
        let (ours, theirs) = page_with(changed);
        let mut changes = Changes::default();
        changes.add_page(0, 0, &ours, &theirs);
        changes.runs.iter().map(|run| (run.first_line, run.lines)).collect()
    }

    #[test]
    fn only_lines_that_differ_are_taken() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[5]), [(5, 1)]);
        assert_eq!(runs(&[0, 63]), [(0, 1), (63, 1)]);
        assert_eq!(runs(&[5, 6, 7]), [(5, 3)]);
        assert_eq!(runs(&[5, 10]), [(5, 6)], "a short gap is cheaper than a run");
        assert_eq!(runs(&[5, 11]), [(5, 1), (11, 1)]);
        let many: Vec<usize> = (0..48).collect();
        assert_eq!(runs(&many), [(0, 64)]);
    }

    #[test]
    fn neighbouring_pages_become_one_run_and_objects_stay_apart() {
        let all: Vec<usize> = (0..LINES).collect();
        let (ours, theirs) = page_with(&all);
        let mut changes = Changes::default();
        changes.add_page(0, 3, &ours, &theirs);
        changes.add_page(0, 4, &ours, &theirs);
        changes.add_page(1, 5, &ours, &theirs);
        let runs: Vec<_> = changes.runs.iter().map(|r| (r.object, r.first_line, r.lines)).collect();
        assert_eq!(runs, [(0, 192, 128), (1, 320, 64)]);
        assert_eq!((changes.pages, changes.data.len()), (3, 3 * PAGE));
    }

    #[test]
    fn applying_the_runs_to_the_primary_gives_the_shadow() {
        let mut random = 1u64;
        for _ in 0..500 {
            let (mut ours, mut theirs) = page_with(&[]);
            for _ in 0..random % 40 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                ours[(random >> 33) as usize % PAGE] = (random >> 50) as u8;
            }
            random = random.wrapping_add(0x9e37_79b9);
            let mut changes = Changes::default();
            changes.add_page(0, 0, &ours, &theirs);
            for (run, data) in changes.iter() {
                assert_eq!(data.len() as u64, run.len_bytes());
                theirs[run.offset() as usize..][..data.len()].copy_from_slice(data);
            }
            assert!(ours == theirs);
        }
    }
}
