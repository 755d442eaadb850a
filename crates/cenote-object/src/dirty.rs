//! Finds the pages of a shadow that were written, without the application's help (PMO-5).
//!
//! | mechanism | a first store into a page costs | finding the pages |
//! | --- | --- | --- |
//! | `WriteProtect` | a fault that the kernel resolves by itself | a scan of page tables, which |
//! | | | protects again in the same step |
//! | `PrivateCopy` | the copy on write of a private mapping | a scan of page tables; after the |
//! | | | psync the copies are given back |
//! | `Mprotect` | a signal; its handler notes and opens the page | reading a bitmap |
//! | `Compare` | nothing | comparing all pages with the primary |
//!
//! `WriteProtect` needs userfaultfd and Linux 6.7, `PrivateCopy` Linux 6.7. The others need
//! nothing.
//!
//! With `Mprotect`, a page that was not stored into yet cannot be written by the kernel either: a
//! `read` from a file into the object fails with `EFAULT` there. Read into a buffer and copy.
//!
//! Invariant: between two calls of [`Tracker::collect`], every page that was stored into is in the
//! second one's answer; an answer may hold pages that were not. The caller keeps what was answered
//! until it is durable: a page is answered again only if it is written again, except by
//! `PrivateCopy` and `Compare`.
//!
//! Where there is a thread for it, `WriteProtect` and `Mprotect` protect pages after the psync that
//! committed them, and those that change all the time not at all: `write_protector.rs`. Such a page
//! is answered again until it is protected.
//!
//! How `Mprotect` notes pages, and what it does where the process has many mappings:
//! `cenote_protect` and `cenote_sys::mappings`.

use crate::write_protector::{Close, Committed, WriteProtector};
use cenote_journal::Pages;
use cenote_layout::PAGE_SIZE;
use cenote_medium::planted::{Bug, planted};
use cenote_protect::Tracked;
use cenote_sys::fault::{self, Registration};
use cenote_sys::mappings::{self, Fineness};
use cenote_sys::memory;
use cenote_sys::pagemap::{Pagemap, WriteProtection, discard_copies};
use core::fmt;
use core::ops::Range;
use std::io;
use std::sync::Arc;

const PAGE: usize = PAGE_SIZE as usize;

/// How written pages are found. Each is correct everywhere; they differ in what a first store and a
/// psync cost.
///
/// `WriteProtect` is taken where it works: a first store costs least, and the kernel may write into
/// the object, too. Its psync scans page tables, 0.1 to 0.2 ms for 1 GiB: for psyncs of a few pages
/// of a large object `Mprotect` is two to three times as fast (`docs/figures.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// userfaultfd in asynchronous write-protect mode, and `PAGEMAP_SCAN`.
    WriteProtect,
    /// Private pages that `PAGEMAP_SCAN` reports.
    PrivateCopy,
    /// `mprotect` and a handler of faults.
    Mprotect,
    /// Comparing everything.
    Compare,
}

impl Mechanism {
    /// All, best first.
    pub const ALL: [Self; 4] =
        [Self::WriteProtect, Self::PrivateCopy, Self::Mprotect, Self::Compare];
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WriteProtect => "write-protect",
            Self::PrivateCopy => "private-copy",
            Self::Mprotect => "mprotect",
            Self::Compare => "compare",
        })
    }
}

enum Means {
    WriteProtect { pagemap: Pagemap, _protection: WriteProtection },
    PrivateCopy { pagemap: Pagemap },
    Mprotect { _registration: Registration, tracked: Arc<Tracked> },
    Compare,
}

/// Finds written pages of one shadow, until it is dropped; which must be before the shadow is
/// unmapped.
pub(crate) struct Tracker {
    base: usize,
    len: usize,
    /// Of what is protected after a psync. Dropped first.
    protector: Option<WriteProtector>,
    means: Means,
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracker({})", self.mechanism())
    }
}

impl Tracker {
    /// Tracks `[base, base + len)`, whole pages of `what`, by `mechanism`.
    ///
    /// # Errors
    /// Why the mechanism does not work here.
    ///
    /// # Safety
    /// The range is a private writable mapping of the caller's, which stays until the tracker is
    /// dropped.
    pub(crate) unsafe fn new(
        mechanism: Mechanism,
        (base, len): (usize, usize),
        what: &str,
    ) -> Result<Self, String> {
        if mechanism != Mechanism::Compare && memory::page_bytes() != PAGE {
            return Err(format!("pages of this machine have {} bytes", memory::page_bytes()));
        }
        let text = |error: io::Error| error.to_string();
        let means = match mechanism {
            Mechanism::WriteProtect => {
                let protection = WriteProtection::open().map_err(|missing| missing.to_string())?;
                // SAFETY: the caller's mapping.
                unsafe { protection.register(base, len) }.map_err(text)?;
                let mut pagemap = Pagemap::open().map_err(text)?;
                // Works now, or never will.
                pagemap.written(base, PAGE, |_| {}).map_err(text)?;
                Means::WriteProtect { pagemap, _protection: protection }
            }
            Mechanism::PrivateCopy => {
                let mut pagemap = Pagemap::open().map_err(text)?;
                pagemap.copies(base, PAGE, |_| {}).map_err(text)?;
                Means::PrivateCopy { pagemap }
            }
            Mechanism::Mprotect => {
                let tracked = Arc::new(Tracked::new(base..base + len, what));
                // SAFETY: `note_store` keeps the rules of resolvers; `tracked` stays at one address
                // until the registration is dropped, which its place before it in
                // `Means` sees to.
                let registered =
                    unsafe { fault::register(base, len, note_store, Arc::as_ptr(&tracked).cast()) };
                let registration = registered.map_err(|error| error.to_string())?;
                // SAFETY: the caller's mapping; the resolver stands ready to give writing back.
                unsafe { tracked.protect(0..(len / PAGE) as u64) }.map_err(text)?;
                Means::Mprotect { _registration: registration, tracked }
            }
            Mechanism::Compare => Means::Compare,
        };
        Ok(Self { base, len, protector: None, means })
    }

    /// The best mechanism that works.
    ///
    /// # Safety
    /// As [`Tracker::new`].
    pub(crate) unsafe fn best((base, len): (usize, usize), what: &str) -> Self {
        for mechanism in Mechanism::ALL {
            // SAFETY: handed on to the caller.
            if let Ok(tracker) = unsafe { Self::new(mechanism, (base, len), what) } {
                return tracker;
            }
        }
        Self { base, len, protector: None, means: Means::Compare }
    }

    /// Pages of a psync are protected again after it, where that helps; `committed` reads what was
    /// committed last.
    pub(crate) fn close_later(&mut self, committed: Committed) {
        let close = match &self.means {
            Means::WriteProtect { .. } => Close::WriteProtect,
            Means::Mprotect { tracked, .. } => Close::Mprotect(Arc::clone(tracked)),
            Means::PrivateCopy { .. } | Means::Compare => return,
        };
        // SAFETY: the mapping of `new`, which stays as long as this.
        self.protector = Some(unsafe { WriteProtector::new(self.base, close, committed) });
    }

    pub(crate) fn mechanism(&self) -> Mechanism {
        match &self.means {
            Means::WriteProtect { .. } => Mechanism::WriteProtect,
            Means::PrivateCopy { .. } => Mechanism::PrivateCopy,
            Means::Mprotect { .. } => Mechanism::Mprotect,
            Means::Compare => Mechanism::Compare,
        }
    }

    /// Adds the pages that were stored into since the last call to `pages`, in order. No thread
    /// stores meanwhile.
    ///
    /// # Errors
    /// What the system says; what was added counts all the same.
    pub(crate) fn collect(&mut self, pages: &mut Vec<Pages>) -> io::Result<()> {
        let (base, len) = (self.base, self.len);
        let number = |addr: usize| ((addr - base) / PAGE) as u64;
        let closes_later =
            self.protector.as_mut().map(|protector| protector.finish(pages)).is_some();
        let add = |range: Range<usize>| pages.push(number(range.start)..number(range.end));
        match &mut self.means {
            Means::WriteProtect { pagemap, .. } if closes_later => {
                pagemap.unprotected(base, len, add)
            }
            Means::Mprotect { tracked, .. } if closes_later => {
                tracked.notes().look(pages);
                Ok(())
            }
            Means::WriteProtect { pagemap, .. } => pagemap.written(base, len, add),
            Means::PrivateCopy { pagemap } => pagemap.copies(base, len, add),
            Means::Mprotect { tracked, .. } => {
                let notes = tracked.notes();
                if notes.is_empty() {
                    return Ok(());
                }
                let known = pages.len();
                notes.take(pages);
                // SAFETY: the mapping of `new`; the resolver gives writing back.
                unsafe { tracked.protect(0..(len / PAGE) as u64) }.inspect_err(|_| {
                    // They may be written still.
                    pages[known..].iter().for_each(|range| notes.note(range.clone()));
                })
            }
            Means::Compare => {
                pages.push(0..(len / PAGE) as u64);
                Ok(())
            }
        }
    }

    /// Whether a page that was cleaned shows the primary's file from then on.
    pub(crate) fn reads_primary(&self) -> bool {
        matches!(self.means, Means::PrivateCopy { .. })
    }

    /// The contents of `pages`, in order, are committed; those in `changed` differed from the
    /// commit before.
    ///
    /// # Safety
    /// So it is, and it is in the primary's file if [`Tracker::reads_primary`]. No thread has a
    /// reference into the shadow, or stores into it.
    pub(crate) unsafe fn clean(&mut self, pages: &[Pages], changed: Vec<Pages>) -> io::Result<()> {
        if let Some(protector) = &mut self.protector {
            protector.committed(pages, changed);
        }
        if let Means::PrivateCopy { .. } = &self.means {
            for range in pages {
                let (at, count) = (range.start as usize * PAGE, (range.end - range.start) as usize);
                // SAFETY: the mapping of `new`, and the caller's promise.
                unsafe { discard_copies(self.base + at, count * PAGE) }?;
            }
        }
        Ok(())
    }
}

/// Resolver of faults: notes the page, then lets it be written.
///
/// # Safety
/// `context` is the [`Tracked`] of a range, and `address` lies in it.
unsafe fn note_store(context: *const (), address: usize) -> bool {
    let fineness =
        if planted(Bug::MappingsUnbounded) { Fineness::Page } else { mappings::fineness() };
    // SAFETY: registered with what outlives the registration, for the tracked mapping.
    unsafe { (*context.cast::<Tracked>()).allow_by(address, fineness) }
}

/// Brings page ranges into order, joined where they touch.
pub(crate) fn normalise(pages: &mut Vec<Pages>) {
    pages.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Pages> = Vec::with_capacity(pages.len());
    for range in pages.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *pages = joined;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_ranges_are_joined_and_none_is_lost() {
        let mut pages = vec![5..6, 1..2, 2..4, 3..5, 9..10, 6..7, 9..10];
        normalise(&mut pages);
        assert_eq!(pages, [1..7, 9..10]);
        let mut none = Vec::new();
        normalise(&mut none);
        assert!(none.is_empty());
    }

    const CHUNK: usize = 2 << 20;

    /// A private mapping of a file of 4 MiB, tracked.
    fn tracked(mechanism: Mechanism, test: impl FnOnce(&mut Tracker, &dyn Fn(u64, u8))) {
        use std::os::fd::AsFd;
        let len = 2 * CHUNK;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(len as u64).expect("a length");
        let base = memory::reserve_anywhere(len, PAGE).expect("address space");
        // SAFETY: inside our own reservation.
        unsafe {
            memory::map_file(
                file.as_fd(),
                base,
                len,
                memory::Access::ReadWrite,
                memory::Sharing::Private,
            )
        }
        .expect("map");
        let write = |page: u64, value: u8| {
            // SAFETY: inside the mapping.
            unsafe {
                core::ptr::with_exposed_provenance_mut::<u8>(base + page as usize * PAGE)
                    .write_volatile(value);
            }
        };
        // SAFETY: our own mapping, which outlives the tracker.
        match unsafe { Tracker::new(mechanism, (base, len), "object \"x\"") } {
            Ok(mut tracker) => test(&mut tracker, &write),
            Err(reason) => println!("skipped: {mechanism}: {reason}"),
        }
        // SAFETY: our own reservation.
        unsafe { memory::release(base, len) }.expect("release");
    }

    #[test]
    fn every_mechanism_finds_every_written_page() {
        for mechanism in Mechanism::ALL {
            tracked(mechanism, |tracker, write| {
                let mut pages = Vec::new();
                for round in 0..4u64 {
                    let written: Vec<u64> =
                        (0..20).map(|i| (i * i * 3 + round * 7) % 1024).collect();
                    written.iter().for_each(|page| write(*page, round as u8 + 1));
                    pages.clear();
                    tracker.collect(&mut pages).expect("found");
                    normalise(&mut pages);
                    for page in &written {
                        assert!(
                            pages.iter().any(|range| range.contains(page)),
                            "{mechanism}: {page}"
                        );
                    }
                    let count: u64 = pages.iter().map(|range| range.end - range.start).sum();
                    if matches!(mechanism, Mechanism::WriteProtect | Mechanism::Mprotect) {
                        assert_eq!(count, 20, "{mechanism}: pages without a store");
                    }
                }
            });
        }
    }
}
