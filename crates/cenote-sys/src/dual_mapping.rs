//! One piece of memory at two addresses:
//!
//! * the first is for the program, which may use pages as they are opened;
//! * the *alias* is for the code that fills the pages.
//!
//! A page that is to appear with contents that were computed (decrypted, verified) cannot be filled
//! where the program sees it: another thread would see half of it. It is filled through the alias,
//! and then the page of the first address is opened.
//!
//! The memory has no name and no file: it is an anonymous memory file whose descriptor is closed as
//! soon as it is mapped, so that no process can open it, no child inherits it, and it goes with
//! this process. It is left out of core dumps. It may be swapped out, as all memory that is not
//! locked.
//!
//! # Safety argument
//!
//! [`DualMapping::map`] replaces what lies at the first address, which the caller answers for. The
//! alias lies in a reservation of the mapping's own, which is released when it is dropped; the
//! pointer to it is good until then.

use crate::memory::{self, Access, ReserveError, Sharing};
use rustix::fs::MemfdFlags;
use rustix::mm::Advice;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// Memory that is mapped twice; see the module. The mapping at the first address is the caller's to
/// take away.
#[derive(Debug)]
pub struct DualMapping {
    alias: usize,
    len: usize,
}

impl DualMapping {
    /// Maps `len` bytes of zeros, whole pages, at `addr`, over anything there and inaccessible,
    /// and at an alias, readable and writable. Memory is taken when it is touched.
    ///
    /// # Errors
    /// What the kernel says. What lies at `addr` is then what it was, or a reservation.
    ///
    /// # Safety
    /// The range lies in a reservation of the caller's, and nothing uses what is mapped there.
    pub unsafe fn map(addr: usize, len: usize) -> io::Result<Self> {
        let make = |flags| rustix::fs::memfd_create("cenote", flags);
        // Kernels before 6.3 do not know the second flag.
        let file = make(MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| make(MemfdFlags::CLOEXEC))
            .map_err(io::Error::from)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let alias =
            memory::reserve_anywhere(len, memory::page_bytes()).map_err(|error| match error {
                ReserveError::System { source, .. } => source,
                other => io::Error::other(other.to_string()),
            })?;
        let dual = Self { alias, len };
        // SAFETY: our own reservation, which is not in use yet.
        unsafe { memory::map_file(file.as_fd(), alias, len, Access::ReadWrite, Sharing::Shared) }?;
        // SAFETY: the caller's range.
        unsafe { memory::map_file_closed(file.as_fd(), addr, len) }?;
        [alias, addr].into_iter().for_each(|at| drop(memory::leave_out_of_dumps(at, len)));
        Ok(dual)
    }

    /// The first byte of the alias: readable and writable for [`DualMapping::len`] bytes while
    /// `self` lives.
    #[must_use]
    pub fn alias(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.alias)
    }

    /// Bytes, a multiple of the page size.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DualMapping {
    fn drop(&mut self) {
        // SAFETY: our own reservation; the alias's pointer is good only while the mapping lives.
        let _ = unsafe { memory::release(self.alias, self.len) };
    }
}

/// Maps `len` bytes of zeros, whole pages, at `addr`, over anything there, readable and
/// writable, with no second address. As that of a [`DualMapping`] it is not in children and not in
/// core dumps. All of it is there at once, where the kernel can do that.
///
/// # Errors
/// What the kernel says. What lies at `addr` is then what it was, or a reservation.
///
/// # Safety
/// As [`DualMapping::map`].
pub unsafe fn map_alone(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { memory::map_anonymous(addr, len) }?;
    // A kernel without that advice dumps more.
    let _ = memory::leave_out_of_dumps(addr, len);
    // SAFETY: mapped just now. Without it every page is a fault.
    let _ = unsafe {
        rustix::mm::madvise(
            core::ptr::without_provenance_mut(addr),
            len,
            Advice::LinuxPopulateWrite,
        )
    };
    Ok(())
}

/// A file in memory that no directory has, which goes with its last descriptor and mapping. `what`
/// shows in lists of open files.
///
/// # Errors
/// What the kernel says: no memory, say, or too many descriptors.
pub fn nameless_file(what: &str) -> io::Result<std::fs::File> {
    Ok(rustix::fs::memfd_create(what, MemfdFlags::CLOEXEC)?.into())
}

/// Maps memory with these contents at `addr`, over anything there, to be read: all of it at
/// once, so that no thread sees half. It has no file, and parts that are zero take no memory.
///
/// # Errors
/// What the kernel says. What lies at `addr` is then what it was.
///
/// # Safety
/// The range, whole pages, lies in a reservation of the caller's, and nothing relies on what is
/// mapped there.
pub unsafe fn map_image(addr: usize, image: &[u8]) -> io::Result<()> {
    let file = nameless_file("cenote-image")?;
    file.set_len(image.len() as u64)?;
    for (number, bytes) in image.chunks(STEP).enumerate() {
        if bytes.iter().any(|byte| *byte != 0) {
            file.write_all_at(bytes, (number * STEP) as u64)?;
        }
    }
    // SAFETY: handed on to the caller.
    unsafe { memory::map_file(file.as_fd(), addr, image.len(), Access::ReadOnly, Sharing::Shared) }
}

/// Bytes that are looked at, and written, at once.
const STEP: usize = 64 << 10;

/// Maps a page at `addr`, over anything there, that nothing is behind: every access to it is
/// `SIGBUS`.
///
/// # Errors
/// What the kernel says; the page is then what it was, or reserved.
///
/// # Safety
/// The page lies in a reservation of the caller's, and nothing uses what is mapped there.
pub unsafe fn map_bus_error(addr: usize) -> io::Result<()> {
    let nothing = rustix::fs::memfd_create("cenote-nothing", MemfdFlags::CLOEXEC)?;
    // SAFETY: handed on to the caller. The file ends before the page.
    unsafe {
        memory::map_file(
            nothing.as_fd(),
            addr,
            memory::page_bytes(),
            Access::ReadOnly,
            Sharing::Shared,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_through_the_alias_is_seen_once_the_page_is_opened() {
        const PAGE: usize = 4096;
        let base = memory::reserve_anywhere(4 * PAGE, PAGE).expect("address space");
        // SAFETY: our own reservation.
        let dual = unsafe { DualMapping::map(base, 4 * PAGE) }.expect("mapped");
        // SAFETY: inside the alias.
        unsafe { dual.alias().add(PAGE + 5).write(7) };
        // SAFETY: our own mapping.
        unsafe { memory::protect(base + PAGE, PAGE, Some(Access::ReadWrite)) }.expect("opened");
        let seen: *mut u8 = core::ptr::with_exposed_provenance_mut(base + PAGE);
        // SAFETY: opened just now; the page is mapped twice, and this thread is alone with both.
        unsafe {
            assert_eq!((seen.read(), seen.add(5).read()), (0, 7));
            seen.write(9);
            assert_eq!(dual.alias().add(PAGE).read(), 9);
        }
        drop(dual);
        // SAFETY: our own reservation.
        unsafe { memory::release(base, 4 * PAGE) }.expect("released");
    }
}
