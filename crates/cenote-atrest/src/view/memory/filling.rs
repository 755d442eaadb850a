//! Fills closed pages: reads them sealed, verifies and decrypts them, and opens them.
//!
//! Invariant: a page is filled under the lock of filling, and only while it is closed: what is open
//! may hold stores.

use super::{CHUNK, RUN, SMALL, SMALL_UNHASHED, ViewInner};
use crate::crypto::{PAGE_LEN, Page};
use crate::view::SealedError;
use crate::view::fault_worker::Filled;
use cenote_journal::Pages;
use cenote_layout::at_rest::{PageSide, SIDE_LEN};
use cenote_medium::planted::{Bug, planted};
use cenote_protect::Right;
use cenote_sys::fault;
use cenote_sys::mappings::{self, Fineness};
use cenote_sys::secret::wipe_bytes;
use std::io;
use zerocopy::FromBytes;

impl Filled for ViewInner {
    fn answer(&self, question: u64) -> bool {
        let (page, store) = (question >> 1, question & 1 == 1);
        if store {
            let _filling = self.lock();
            return self.widen(page);
        }
        if page >= self.pages {
            return false;
        }
        let in_order = page > 0 && self.states().loaded.has(page - 1);
        let end = if in_order { (page / RUN + 1) * RUN } else { page + 1 };
        if self.pages <= SMALL && self.load(0..self.pages).is_ok() {
            return true;
        }
        // What is behind the page is a help, and its faults concern no access yet.
        let run = page..(page + 1..end.min(self.pages))
            .find(|p| self.states().loaded.has(*p))
            .unwrap_or(end.min(self.pages));
        if self.load(run).is_ok() || self.states().loaded.has(page) {
            return true;
        }
        match self.load(page..page + 1) {
            Ok(()) => true,
            Err(_) if self.is_stopped() => false,
            // The reader takes an error. The page stays closed, and is tried again when it is
            // touched again.
            Err(_) if fault::is_peek() => false,
            Err(error) => {
                self.break_page(page, &error);
                true
            }
        }
    }
}

impl ViewInner {
    /// See [`super::View::load`].
    pub(super) fn load(&self, pages: Pages) -> Result<(), SealedError> {
        let mut page = pages.start;
        while page < pages.end.min(self.pages) {
            if self.states().loaded.has(page) {
                page += 1;
                continue;
            }
            let end = (page + RUN).min(pages.end).min(self.pages);
            let end = (page + 1..end).find(|page| self.states().loaded.has(*page)).unwrap_or(end);
            self.fill(page..end)?;
            page = end;
        }
        Ok(())
    }

    /// Fills at most [`RUN`] pages and opens them for loads; those before the first that fails,
    /// too.
    fn fill(&self, pages: Pages) -> Result<(), SealedError> {
        let mut buffer = self.lock();
        if self.is_stopped() {
            let source = io::Error::other("it is being closed");
            return Err(SealedError::Memory { what: self.what.clone(), source });
        }
        let count = (pages.end - pages.start) as usize;
        let (sealed, sides) = buffer.split_at_mut(RUN as usize * PAGE_LEN);
        let (sealed, sides) = (&mut sealed[..count * PAGE_LEN], &mut sides[..count * SIDE_LEN]);
        self.source.read_pages(pages.start, sealed)?;
        let has_side = self.protection.mode().has_side();
        if has_side {
            self.source.read_sides(pages.start, sides)?;
        }
        let (sealed, sides) = (sealed.as_chunks::<PAGE_LEN>().0, sides.as_chunks::<SIDE_LEN>().0);
        let mut failed = None;
        let mut page = pages.start;
        for (sealed, side) in sealed.iter().zip(sides) {
            let side = has_side.then(|| PageSide::read_from_bytes(side).ok()).flatten();
            // Another thread may have been first: what is open may hold stores, and is not filled
            // again.
            if !self.states().loaded.has(page)
                && let Err(error) = self.fill_one(page, sealed, side.as_ref())
            {
                failed = Some(error);
                break;
            }
            page += 1;
        }
        let good = pages.start..page;
        if !good.is_empty() {
            // A page that is written already loses that for one more fault: it stays noted.
            let fine = mappings::fineness() == Fineness::Page;
            if fine && self.open(good.clone(), Right::Read).is_ok() {
                self.states().loaded.note(good);
            } else if !self.widen(pages.start) {
                let source =
                    io::Error::other("the kernel allows no more mappings (vm.max_map_count)");
                return Err(SealedError::Memory { what: self.what.clone(), source });
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Opens more than one page at once, because the process has too many mappings to do it for
    /// one. Under the lock of filling: no thread fills a page that is open and not yet called
    /// loaded.
    fn widen(&self, page: u64) -> bool {
        if self.is_stopped() {
            return false;
        }
        let chunk = page / CHUNK * CHUNK;
        let coarse = [chunk..(chunk + CHUNK).min(self.pages), 0..self.pages];
        let first = usize::from(mappings::fineness() == Fineness::Whole);
        coarse.into_iter().skip(first).any(|pages| {
            let opened = self.fill_closed(pages.clone()).is_ok()
                && if self.is_writable() {
                    self.let_write(pages.clone())
                } else {
                    self.open(pages.clone(), Right::Read).is_ok()
                };
            if opened {
                self.states().loaded.note(pages);
            }
            opened
        })
    }

    /// Fills pages that are closed, and leaves them so; the caller opens them all.
    pub(super) fn fill_closed(&self, pages: Pages) -> Result<(), SealedError> {
        let mut at = pages.start;
        // A loaded page is not read again: it may hold stores, and reading it may fail.
        while let Some(first) = (at..pages.end).find(|page| !self.states().loaded.has(*page)) {
            at = (first..pages.end)
                .find(|page| self.states().loaded.has(*page))
                .unwrap_or(pages.end);
            self.each_sealed(first..at, |page, sealed, side| self.fill_one(page, sealed, side))?;
        }
        Ok(())
    }

    /// Reads pages as they were psynced last, many at once, and gives each to `f`.
    pub(super) fn each_sealed(
        &self,
        pages: Pages,
        mut f: impl FnMut(u64, &Page, Option<&PageSide>) -> Result<(), SealedError>,
    ) -> Result<(), SealedError> {
        let most = (pages.end - pages.start).min(SMALL_UNHASHED) as usize;
        let (mut sealed, mut sides) = (vec![0; most * PAGE_LEN], vec![0; most * SIDE_LEN]);
        let has_side = self.protection.mode().has_side();
        let mut first = pages.start;
        while first < pages.end {
            let count = ((pages.end - first) as usize).min(most);
            self.source.read_pages(first, &mut sealed[..count * PAGE_LEN])?;
            if has_side {
                self.source.read_sides(first, &mut sides[..count * SIDE_LEN])?;
            }
            let each = sealed.as_chunks::<PAGE_LEN>().0.iter().zip(sides.as_chunks::<SIDE_LEN>().0);
            for (page, (sealed, side)) in (first..).zip(each).take(count) {
                let side = has_side.then(|| PageSide::read_from_bytes(side).ok()).flatten();
                f(page, sealed, side.as_ref())?;
            }
            first += count as u64;
        }
        Ok(())
    }

    /// Verifies and decrypts a closed page into its place, under the lock of filling.
    fn fill_one(
        &self,
        page: u64,
        sealed: &Page,
        side: Option<&PageSide>,
    ) -> Result<(), SealedError> {
        let mut plain = [0; PAGE_LEN];
        let opened = if planted(Bug::PageNotVerified) {
            self.protection.sealer().open(page, sealed, side, &mut plain)
        } else {
            self.protection.open_page(page, sealed, side, &self.source, &mut plain)
        };
        opened.map_err(|fault| SealedError::page(&self.what, fault))?;
        // SAFETY: inside the alias; the page is closed, or no code has the memory yet, so that this
        // is the only access to it, under the lock of filling.
        unsafe {
            let to = self.alias().add(page as usize * PAGE_LEN);
            core::ptr::copy_nonoverlapping(plain.as_ptr(), to, PAGE_LEN);
        }
        wipe_bytes(&mut plain);
        Ok(())
    }
}
