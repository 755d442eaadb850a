//! A second window: files that are mapped shared in one window are mapped privately at a distance
//! from it. A page there shows the file until it is *kept*; from then on it stays as it was.
//!
//! Keeping is `madvise(MADV_POPULATE_WRITE)` (Linux 5.14): the kernel copies the page before any
//! store of this process into it, if the caller keeps it first. When the call returns, the copy is
//! in the page tables of all threads, so no load in the second window sees a later store into the
//! file. A page that no thread has kept shows the file's bytes of the moment, which `mmap` leaves
//! open and Linux does.
//!
//! The window is left out of forked children, as the first one is. Touches ([`crate::peek`]) answer
//! for it: a page of a file that was cut short is an error of the touch.
//!
//! # Safety argument
//!
//! The place is reserved by the value, where nothing lay, and is given back with it, in the process
//! that made it. Mappings go into the reservation alone.

use crate::fault::{self, Registration};
use crate::memory::{self, Access, Sharing};
use crate::{fork_guard, mappings};
use core::ops::Range;
use core::ptr;
use rustix::mm::Advice;
use std::io;
use std::os::fd::BorrowedFd;

/// See the module.
#[derive(Debug)]
pub struct PrivateWindow {
    first: usize,
    len: usize,
    distance: usize,
    token: u64,
    /// `None`: it is being dropped.
    registration: Option<Registration>,
}

/// No fault in the window can be resolved.
unsafe fn resolve(_: *const (), _: usize) -> bool {
    false
}

impl PrivateWindow {
    /// For the addresses `window`, whole pages, in which so many `files` are to be mapped.
    ///
    /// # Errors
    /// What the kernel says; there is no room for so many addresses, or mappings.
    pub fn new(window: Range<usize>, files: u64) -> io::Result<Self> {
        if cfg!(miri) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        mappings::room(files.saturating_mul(2).saturating_add(1))?;
        let (first, len, token) = (window.start, window.len(), fork_guard::token());
        let place = memory::reserve_anywhere(len, 2 << 20).map_err(io::Error::other)?;
        mappings::made();
        let distance = place.wrapping_sub(first);
        let mut this = Self { first, len, distance, token, registration: None };
        // SAFETY: the resolver touches nothing.
        let registered = unsafe { fault::register(place, len, resolve, ptr::null()) };
        this.registration = Some(registered.map_err(io::Error::other)?);
        Ok(this)
    }

    /// What is to be added to an address of the first window, wrapping around.
    #[must_use]
    #[inline]
    pub const fn distance(&self) -> usize {
        self.distance
    }

    /// Whether a range of the first window's addresses lies in it.
    fn has(&self, at: usize, len: usize) -> bool {
        let start = at.checked_sub(self.first);
        len != 0 && start.and_then(|at| at.checked_add(len)).is_some_and(|end| end <= self.len)
    }

    /// Maps the first `len` bytes of a file that is mapped at `at` in the first window, whole
    /// pages, at the distance from there.
    ///
    /// # Errors
    /// What the kernel says; the range does not lie in the window.
    ///
    /// # Safety
    /// Nothing uses what was mapped there.
    pub unsafe fn map(&self, file: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<()> {
        if !self.has(at, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let to = at.wrapping_add(self.distance);
        // SAFETY: in our reservation; the rest is the caller's promise.
        unsafe { memory::map_file(file, to, len, Access::ReadWrite, Sharing::Private) }?;
        mappings::made();
        Ok(())
    }

    /// Keeps the pages of a range of the first window's addresses, whole pages that are mapped.
    /// Those that are kept already stay as they are.
    ///
    /// # Errors
    /// What the kernel says: no memory, a page of the file that cannot be had; before Linux 5.14,
    /// that it does not know this. Pages before the one that failed may be kept.
    pub fn keep(&self, at: usize, len: usize) -> io::Result<()> {
        if !self.has(at, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let to = ptr::without_provenance_mut(at.wrapping_add(self.distance));
        // SAFETY: a part of our own mapping; the advice changes no byte that can be read there.
        Ok(unsafe { rustix::mm::madvise(to, len, Advice::LinuxPopulateWrite) }?)
    }
}

impl Drop for PrivateWindow {
    fn drop(&mut self) {
        self.registration = None;
        // A child may have something else there.
        if fork_guard::is_current(self.token) {
            // SAFETY: our reservation, and all that is mapped in it; the owner uses it no more.
            let _ = unsafe { memory::release(self.first.wrapping_add(self.distance), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_kept_stays_and_what_is_not_follows_the_file() {
        let (page, file) = (memory::page_bytes(), tempfile::tempfile().unwrap());
        file.set_len(4 * page as u64).unwrap();
        let first = memory::reserve_anywhere(4 * page, page).unwrap();
        // SAFETY: reserved just now.
        unsafe {
            memory::map_file(file.as_fd(), first, 4 * page, Access::ReadWrite, Sharing::Shared)
        }
        .unwrap();
        let byte = |at: usize| ptr::with_exposed_provenance_mut::<u8>(at);
        let window = PrivateWindow::new(first..first + 4 * page, 1).unwrap();
        // SAFETY: nothing is there; the bytes are mapped in both windows.
        unsafe {
            window.map(file.as_fd(), first, 4 * page).unwrap();
            let there =
                |at: usize| byte((first + at).wrapping_add(window.distance())).read_volatile();
            assert_eq!(there(page), 0, "read before it is kept");
            window.keep(first + page, page).unwrap();
            for at in 0..4 {
                byte(first + at * page).write_volatile(7);
            }
            assert_eq!((there(page), there(0), there(2 * page)), (0, 7, 7));
            assert!(window.keep(first + 3 * page, 2 * page).is_err(), "beyond the window");
            file.set_len(3 * page as u64).unwrap();
            assert!(window.keep(first + 3 * page, page).is_err(), "beyond the file");
            assert!(!crate::peek::touch((first + 3 * page).wrapping_add(window.distance())));
            drop(window);
            memory::release(first, 4 * page).unwrap();
        }
    }
}
