//! The word of each page ([`super`], "States of a page").

use crate::owner::Rights;
use crate::right::Right;
use cenote_medium::planted::{Bug, GuardBug, planted};
use core::sync::atomic::{AtomicU32, Ordering};

/// The page is writable, or is being made so.
const OPEN: u32 = 1 << 31;
/// A batch is to look at the page.
const QUEUED: u32 = 1 << 30;
/// Writers.
const WRITERS: u32 = QUEUED - 1;

/// The words of a range.
#[derive(Debug)]
pub(super) struct PageWords(Box<[AtomicU32]>);

/// What a batch does about a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageVerdict {
    /// It is to be closed: its word says so already.
    Close,
    /// It is to be opened: its word says so already.
    Open,
    /// Nothing: a pair of requests has cancelled itself, or another batch was faster.
    Nothing,
}

impl PageWords {
    pub(super) fn new(pages: u64) -> Self {
        // Zeroed by the kernel, page by page, on first use.
        let words = vec![0u32; pages as usize].into_boxed_slice();
        // SAFETY: `AtomicU32` has the size and alignment of `u32`, and any value is valid; the box
        // is ours.
        Self(unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU32]) })
    }

    fn word(&self, page: u64) -> &AtomicU32 {
        &self.0[page as usize]
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// A writer comes. Whether it is the first one of a page that is closed.
    #[inline]
    pub(super) fn enter(&self, page: u64) -> bool {
        let before = self.word(page).fetch_add(1, Ordering::SeqCst);
        debug_assert!(before & WRITERS < WRITERS);
        before & (WRITERS | OPEN) == 0
    }

    /// A writer goes. Whether it is to make a request that the page is closed.
    #[inline]
    pub(super) fn leave(&self, page: u64) -> bool {
        let before = self.word(page).fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before & WRITERS != 0);
        // If the mark is there as the last writer goes, the batch that takes it finds no writer.
        if before & WRITERS != 1 || before & OPEN == 0 || before & QUEUED != 0 {
            return false;
        }
        if planted(Bug::Guard(GuardBug::LeaveNotQueued)) {
            return false;
        }
        self.word(page).fetch_or(QUEUED, Ordering::SeqCst) & QUEUED == 0
    }

    pub(super) fn has_writer(&self, page: u64) -> bool {
        self.word(page).load(Ordering::SeqCst) & WRITERS != 0
    }

    pub(super) fn is_open(&self, page: u64) -> bool {
        self.word(page).load(Ordering::SeqCst) & OPEN != 0
    }

    pub(super) fn open(&self, page: u64) {
        self.word(page).fetch_or(OPEN, Ordering::SeqCst);
    }

    /// Opens a page that may have no writer, so that a batch is to look at it. Whether it was
    /// closed.
    pub(super) fn open_queued(&self, page: u64) -> bool {
        self.word(page).fetch_or(OPEN | QUEUED, Ordering::SeqCst) & OPEN == 0
    }

    /// A request to open the page, which its writer made.
    pub(super) fn judge_open(&self, page: u64) -> PageVerdict {
        let word = self.word(page).load(Ordering::SeqCst);
        if word & OPEN != 0 || word & WRITERS == 0 {
            return PageVerdict::Nothing;
        }
        // The writer may have gone: then nothing else has the page closed.
        if self.open_queued(page) { PageVerdict::Open } else { PageVerdict::Nothing }
    }

    /// A request to close the page: takes the mark that it is queued.
    pub(super) fn judge_close(&self, page: u64) -> PageVerdict {
        let word = self.word(page);
        let mut now = word.load(Ordering::SeqCst);
        loop {
            if now & QUEUED == 0 {
                return PageVerdict::Nothing;
            }
            let writers = now & WRITERS;
            let ignored = planted(Bug::Guard(GuardBug::WriterIgnored));
            let (new, verdict) = match writers {
                0 => (0, PageVerdict::Close),
                _ if ignored => (0, PageVerdict::Close),
                _ => (now & !QUEUED, PageVerdict::Nothing),
            };
            match word.compare_exchange(now, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return verdict,
                Err(other) => now = other,
            }
        }
    }

    /// A page was not closed after all.
    pub(super) fn reopen(&self, page: u64) {
        self.open_queued(page);
    }
}

// SAFETY: one load.
unsafe impl Rights for PageWords {
    fn allows(&self, page: u64) -> Right {
        if self.is_open(page) { Right::Write } else { Right::Read }
    }
}
