//! The address space as Miri has it: memory of the program's allocator, at addresses that Miri
//! chooses.
//!
//! Miri cannot map at a given address. So a mapping without an address allocates, and what it
//! allocated stays for ever; a mapping at an address succeeds within such an allocation only.
//! [`super::find_free`] therefore names addresses that [`super::reserve`] takes later. Protection
//! changes nothing, files cannot be mapped.

use core::ffi::c_void;
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::alloc::{Layout, alloc_zeroed};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

/// Address and length of what was allocated.
static ALLOCATED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn check(at: usize, len: usize) -> Result<()> {
    let allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    let inside = allocated.iter().any(|&(start, bytes)| at >= start && at + len <= start + bytes);
    if inside { Ok(()) } else { Err(Errno::NOMEM) }
}

/// # Safety
/// As the system call.
pub(super) unsafe fn mmap_anonymous(
    at: *mut c_void,
    len: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<*mut c_void> {
    if !flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE) {
        let layout = Layout::from_size_align(len, super::page_bytes()).map_err(|_| Errno::INVAL)?;
        // SAFETY: no caller asks for no bytes.
        let memory = unsafe { alloc_zeroed(layout) };
        let start = memory.expose_provenance();
        ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner).push((start, len));
        return Ok(memory.cast());
    }
    check(at.addr(), len)?;
    if !protection.is_empty() {
        let memory = core::ptr::with_exposed_provenance_mut::<u8>(at.addr());
        // SAFETY: allocated, see above; the caller owns the range.
        unsafe { memory.write_bytes(0, len) };
    }
    Ok(at)
}

/// # Safety
/// As the system call.
pub(super) unsafe fn mmap(
    _: *mut c_void,
    _: usize,
    _: ProtFlags,
    _: MapFlags,
    _: BorrowedFd<'_>,
    _: u64,
) -> Result<*mut c_void> {
    Err(Errno::NODEV)
}

/// # Safety
/// As the system call.
pub(super) unsafe fn munmap(_: *mut c_void, _: usize) -> Result<()> {
    Ok(())
}

/// # Safety
/// As the system call.
pub(super) unsafe fn mprotect(at: *mut c_void, len: usize, _: MprotectFlags) -> Result<()> {
    check(at.addr(), len)
}

/// # Safety
/// As the system call.
pub(super) unsafe fn madvise(at: *mut c_void, len: usize, _: Advice) -> Result<()> {
    check(at.addr(), len)
}
