//! Pages of this process, and what the kernel says may be done with them.

use cenote_protect::Right;
use cenote_sys::memory;
use core::ops::Range;

pub(crate) const PAGE: usize = 4096;

/// See [`Pages::apart`]; for one test.
const APART: usize = 0x2100_0000_0000;

/// Anonymous pages, readable and writable at first.
pub(crate) struct Pages {
    pub(crate) base: usize,
    pub(crate) count: usize,
}

impl Pages {
    pub(crate) fn new(count: usize) -> Self {
        Self::at(memory::reserve_anywhere(count * PAGE, PAGE).expect("address space"), count)
    }

    /// Where the kernel maps nothing of its own accord. A test that takes a page away has its pages
    /// here: elsewhere the memory of another test comes into the hole, and goes with these pages.
    pub(crate) fn apart(count: usize) -> Self {
        memory::reserve(APART, count * PAGE).expect("address space");
        Self::at(APART, count)
    }

    fn at(base: usize, count: usize) -> Self {
        // SAFETY: our own reservation.
        unsafe { memory::map_anonymous(base, count * PAGE) }.expect("mapped");
        Self { base, count }
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.base..self.base + self.count * PAGE
    }

    pub(crate) fn address(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    /// What the kernel says of a page.
    pub(crate) fn right(&self, page: usize) -> Right {
        let (at, maps) = (self.address(page), std::fs::read("/proc/self/maps").expect("maps"));
        for line in String::from_utf8_lossy(&maps).lines() {
            let (range, rest) = line.split_once(' ').expect("a range");
            let (from, to) = range.split_once('-').expect("two addresses");
            let number = |text| usize::from_str_radix(text, 16).expect("hexadecimal");
            if (number(from)..number(to)).contains(&at) {
                return match &rest[..2] {
                    "rw" => Right::Write,
                    "r-" => Right::Read,
                    _ => Right::Nothing,
                };
            }
        }
        panic!("no mapping at {at:#x}");
    }

    pub(crate) fn rights(&self) -> Vec<Right> {
        (0..self.count).map(|page| self.right(page)).collect()
    }

    pub(crate) fn store(&self, page: usize) {
        // SAFETY: our own page, into which no reference leads.
        unsafe {
            core::ptr::with_exposed_provenance_mut::<u8>(self.address(page)).write_volatile(1);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own reservation, no longer used.
        unsafe { memory::release(self.base, self.count * PAGE) }.expect("released");
    }
}
