//! The address space: reserving windows, mapping files and memory into them, taking mappings away.
//!
//! A *reservation* is address space that nothing else can be mapped into: inaccessible anonymous
//! memory that takes no memory. A window is reserved where nothing lies (never over something), and
//! mappings are placed inside. Unmapping makes the range reserved again, so no other part of the
//! process ever gets into a window.
//!
//! A forked child inherits none of it (`MADV_DONTFORK`): a child that touches a window faults, and
//! does not change a store that its parent has open. The address space stays taken there (module
//! `taken`). A fork in another thread, between the placing of a mapping and its marking, may carry
//! it over; [`crate::fork_guard`] catches the rest.
//!
//! Addresses are plain numbers here, because they name address space and not objects.
//!
//! Nothing here allocates, so a signal handler that resolves a fault may call all of it
//! ([`crate::fault`]).
//!
//! # Safety argument
//!
//! [`reserve`], [`reserve_anywhere`] and [`anonymous`] make new mappings and never replace one, so
//! they are safe. Functions that replace, remove or protect existing mappings are `unsafe`: the
//! caller owns the range (it lies in a reservation of the caller's) and no reference to what was
//! there is used again.

use crate::mappings;
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::io;
use std::os::fd::BorrowedFd;

#[cfg(miri)]
mod interpreted;
#[cfg(miri)]
use interpreted as kernel;
#[cfg(not(miri))]
use rustix::mm as kernel;

/// What may be done through a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Access {
    /// Loads; a store faults.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

impl Access {
    const fn protection(self) -> ProtFlags {
        match self {
            Self::ReadOnly => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ.union(ProtFlags::WRITE),
        }
    }
}

/// Where stores through a mapping go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Sharing {
    /// Into the file, through the page cache or directly.
    Shared,
    /// Into the file, and refused with `EOPNOTSUPP` unless flush and fence alone make a store
    /// durable (DAX, `MAP_SYNC`).
    SharedSync,
    /// Into a copy of each page that is written; the file stays as it is.
    Private,
}

/// Why address space could not be reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Base or length is not a multiple of the page size, the length is zero, or the end overflows.
    #[error(
        "cannot reserve {len} bytes of address space at {base:#x}: base and length must be \
         multiples of the page size, and the length not zero; choose others"
    )]
    Range {
        /// First address asked for.
        base: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// Something of this process lies there.
    #[error(
        "cannot reserve {len} bytes of address space at {base:#x}: this process uses a part of \
         them already; open the store in another process, or move it to another window"
    )]
    Taken {
        /// First address asked for.
        base: usize,
        /// Bytes asked for.
        len: usize,
    },
    /// The kernel refused; `ENOMEM` may mean a limit on address space (`ulimit -v`).
    #[error(
        "cannot reserve {len} bytes of address space at {base:#x}: {source}; check the limit of \
         address space (ulimit -v)"
    )]
    System {
        /// First address asked for; 0: anywhere.
        base: usize,
        /// Bytes asked for.
        len: usize,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Bytes of the kernel's page.
#[must_use]
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Reserves `[base, base + len)`: inaccessible, taking no memory; taken in forked children too.
///
/// # Errors
/// [`ReserveError::Taken`] if anything is mapped in the range; nothing has changed then.
pub fn reserve(base: usize, len: usize) -> Result<(), ReserveError> {
    let page = page_bytes();
    if base == 0
        || len == 0
        || !base.is_multiple_of(page)
        || !len.is_multiple_of(page)
        || base.checked_add(len).is_none()
    {
        return Err(ReserveError::Range { base, len });
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: with FIXED_NOREPLACE (and on kernels without it: as a mere wish) no existing mapping
    // is replaced.
    let got = unsafe {
        kernel::mmap_anonymous(ptr::without_provenance_mut(base), len, ProtFlags::empty(), flags)
    };
    match got {
        Ok(at) if at.addr() == base => finish_reservation(base, len),
        Ok(at) => {
            // A kernel before 4.17 took the address for a wish, and it was not free.
            // SAFETY: mapped just now, not handed out.
            let _ = unsafe { kernel::munmap(at, len) };
            Err(ReserveError::Taken { base, len })
        }
        Err(rustix::io::Errno::EXIST) => Err(ReserveError::Taken { base, len }),
        Err(errno) => Err(ReserveError::System { base, len, source: errno.into() }),
    }
}

/// Reserves `len` bytes at some multiple of `align` (a power of two) that the kernel likes, and
/// returns the address.
///
/// # Errors
/// [`ReserveError::Range`] for a bad length or alignment; [`ReserveError::System`] if there is no
/// such space.
pub fn reserve_anywhere(len: usize, align: usize) -> Result<usize, ReserveError> {
    let page = page_bytes();
    let align = align.max(page);
    let padded = len.checked_add(align - page);
    let (Some(padded), true) =
        (padded, len != 0 && len.is_multiple_of(page) && align.is_power_of_two())
    else {
        return Err(ReserveError::Range { base: 0, len });
    };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping wherever the kernel likes replaces nothing.
    let start =
        unsafe { kernel::mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), flags) }
            .map_err(|errno| ReserveError::System { base: 0, len, source: errno.into() })?
            .addr();
    let base = start.next_multiple_of(align);
    // SAFETY: both ends were mapped just now and are not handed out.
    unsafe {
        let _ = release(start, base - start);
        let _ = release(base + len, start + padded - (base + len));
    }
    finish_reservation(base, len)?;
    Ok(base)
}

/// An address, a multiple of `align` (a power of two), at which `len` bytes were free just now.
/// Another thread may map something there before the caller does: only [`reserve`] decides.
///
/// # Errors
/// As [`reserve_anywhere`].
pub fn find_free(len: usize, align: usize) -> Result<usize, ReserveError> {
    let base = reserve_anywhere(len, align)?;
    // SAFETY: reserved just now, not handed out.
    unsafe { release(base, len) }.map_err(|source| ReserveError::System { base, len, source })?;
    Ok(base)
}

fn finish_reservation(base: usize, len: usize) -> Result<(), ReserveError> {
    // SAFETY: changes only what a fork does with the range, which is ours.
    unsafe { leave_out_of_children(base, len) }.map_err(|source| {
        // SAFETY: reserved just now, not handed out.
        let _ = unsafe { release(base, len) };
        ReserveError::System { base, len, source }
    })?;
    crate::taken::note(base, len);
    Ok(())
}

/// Gives address space back to the process, with everything that is mapped in it. Nothing for `len`
/// 0.
///
/// # Errors
/// What the kernel says, for instance `EINVAL` for an address that is not a multiple of the page
/// size.
///
/// # Safety
/// The range belongs to the caller, and nothing uses what is mapped there.
pub unsafe fn release(base: usize, len: usize) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    crate::taken::forget(base, len);
    // SAFETY: handed on to the caller.
    Ok(unsafe { kernel::munmap(ptr::without_provenance_mut(base), len) }?)
}

/// Maps the first `len` bytes of a file at `addr`, over anything there; see [`map_file_at`].
///
/// # Errors
/// As [`map_file_at`].
///
/// # Safety
/// As [`map_file_at`].
pub unsafe fn map_file(
    fd: BorrowedFd<'_>,
    addr: usize,
    len: usize,
    access: Access,
    sharing: Sharing,
) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { map_file_at(fd, 0, addr, len, access, sharing) }
}

/// Maps `len` bytes of a file, from byte `offset` on, at `addr`, over anything there; absent in
/// forked children. `addr` and `offset` are multiples of the page size. Touching a page beyond the
/// file's end is SIGBUS: check its length first.
///
/// # Errors
/// `EOPNOTSUPP` for [`Sharing::SharedSync`] where the file is not on DAX; `EACCES` if the
/// descriptor is not open for `access`; otherwise what the kernel says. The range is then reserved,
/// or what it was.
///
/// # Safety
/// The range lies in a reservation of the caller's, and nothing uses what is mapped there. Others
/// may change a shared file at any time: treat its bytes as such.
pub unsafe fn map_file_at(
    fd: BorrowedFd<'_>,
    offset: u64,
    addr: usize,
    len: usize,
    access: Access,
    sharing: Sharing,
) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { map_protected(fd, offset, (addr, len), access.protection(), sharing) }
}

/// Maps the first `len` bytes of a shared file at `addr`, over anything there, without access:
/// until [`protect`] opens them, every touch faults.
///
/// # Errors
/// As [`map_file_at`].
///
/// # Safety
/// As [`map_file_at`]; but threads may try to touch the range meanwhile, if they wait for that.
pub unsafe fn map_file_closed(fd: BorrowedFd<'_>, addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { map_protected(fd, 0, (addr, len), ProtFlags::empty(), Sharing::Shared) }
}

/// # Safety
/// As [`map_file_at`].
unsafe fn map_protected(
    fd: BorrowedFd<'_>,
    offset: u64,
    (addr, len): (usize, usize),
    protection: ProtFlags,
    sharing: Sharing,
) -> io::Result<()> {
    let flags = MapFlags::FIXED
        | match sharing {
            Sharing::Shared => MapFlags::SHARED,
            Sharing::SharedSync => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Sharing::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
    // SAFETY: the caller owns the range that is replaced.
    unsafe { kernel::mmap(ptr::without_provenance_mut(addr), len, protection, flags, fd, offset) }?;
    // SAFETY: the caller owns the range.
    unsafe { finish_mapping(addr, len) }
}

/// Maps zero-filled private memory, readable and writable, at `addr`, over anything there;
/// absent in forked children. Memory is taken when it is touched.
///
/// # Errors
/// What the kernel says. The range is then reserved, or what it was.
///
/// # Safety
/// The range lies in a reservation of the caller's, and nothing uses what is mapped there.
pub unsafe fn map_anonymous(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { map_zeros(addr, len, MapFlags::PRIVATE) }
}

/// The same of shared memory, which can be mapped twice ([`crate::second_mapping`]).
///
/// # Errors
/// As [`map_anonymous`].
///
/// # Safety
/// As [`map_anonymous`].
pub unsafe fn map_shared(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe { map_zeros(addr, len, MapFlags::SHARED) }
}

/// # Safety
/// As [`map_anonymous`].
unsafe fn map_zeros(addr: usize, len: usize, sharing: MapFlags) -> io::Result<()> {
    let flags = sharing | MapFlags::NORESERVE | MapFlags::FIXED;
    let (at, access) = (ptr::without_provenance_mut(addr), Access::ReadWrite.protection());
    // SAFETY: the caller owns the range that is replaced.
    unsafe { kernel::mmap_anonymous(at, len, access, flags) }?;
    // SAFETY: the caller owns the range.
    unsafe { finish_mapping(addr, len) }
}

/// Maps memory that `fill` has written at `addr`, over what is there, readable and writable; absent
/// in forked children. It is shared, so that it can be mapped a second time. All of it is there at
/// once: no thread sees it half filled, or nothing in its place.
///
/// # Errors
/// What the kernel says. The range is then what it was, or reserved.
///
/// # Safety
/// The range, whole pages, lies in a reservation of the caller's, and nothing relies on what is
/// mapped there. `fill` writes `len` bytes from its argument on, and no others.
pub unsafe fn replace(addr: usize, len: usize, fill: impl FnOnce(*mut u8)) -> io::Result<()> {
    let (flags, access) = (MapFlags::SHARED, Access::ReadWrite.protection());
    // SAFETY: a new mapping wherever the kernel likes replaces nothing.
    let new = unsafe { kernel::mmap_anonymous(ptr::null_mut(), len, access, flags) }?;
    fill(new.cast());
    let to = ptr::without_provenance_mut(addr);
    // SAFETY: `new` was mapped just now, and nothing uses it but the lines above; the caller owns
    // the range that is replaced.
    let moved = unsafe { rustix::mm::mremap_fixed(new, len, len, MremapFlags::MAYMOVE, to) };
    if let Err(errno) = moved {
        // SAFETY: still where it was mapped, and used by nothing.
        let _ = unsafe { kernel::munmap(new, len) };
        return Err(errno.into());
    }
    // SAFETY: the caller owns the range.
    unsafe { finish_mapping(addr, len) }
}

/// Turns a range back into a reservation: what was mapped there is gone, and touching it faults.
///
/// # Errors
/// What the kernel says; the range is then what it was.
///
/// # Safety
/// The range belongs to the caller, and nothing uses what is mapped there.
pub unsafe fn unmap_to_reserved(addr: usize, len: usize) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller owns the range that is replaced.
    unsafe {
        kernel::mmap_anonymous(ptr::without_provenance_mut(addr), len, ProtFlags::empty(), flags)
    }?;
    crate::revocations::note_revocation();
    mappings::made();
    // SAFETY: the caller owns the range.
    unsafe { leave_out_of_children(addr, len) }
}

/// Changes what may be done with a range; `None`: nothing, every access faults. Crates above go
/// through `cenote-protect`: see there.
///
/// # Errors
/// `EACCES` where the file is not open for it, `ENOMEM` where nothing is mapped, or for too many
/// mappings; part of the range may have changed.
///
/// # Safety
/// The range belongs to the caller; nothing keeps using it in a way that is taken away, except
/// where a fault resolver ([`crate::fault`]) stands ready to give it back.
pub unsafe fn protect(addr: usize, len: usize, access: Option<Access>) -> io::Result<()> {
    let flags = match access {
        None => MprotectFlags::empty(),
        Some(Access::ReadOnly) => MprotectFlags::READ,
        Some(Access::ReadWrite) => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    mappings::made();
    // SAFETY: handed on to the caller.
    unsafe { kernel::mprotect(ptr::without_provenance_mut(addr), len, flags) }?;
    if access != Some(Access::ReadWrite) {
        crate::revocations::note_revocation();
    }
    Ok(())
}

/// # Safety
/// The caller owns the range, and it was mapped just now.
unsafe fn finish_mapping(addr: usize, len: usize) -> io::Result<()> {
    mappings::made();
    // SAFETY: handed on to the caller.
    unsafe { leave_out_of_children(addr, len) }.inspect_err(|_| {
        // SAFETY: mapped just now, not handed out.
        let _ = unsafe { unmap_to_reserved(addr, len) };
    })
}

/// # Safety
/// The caller owns the range.
pub(crate) unsafe fn leave_out_of_children(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: this advice changes nothing in this process.
    Ok(unsafe { kernel::madvise(ptr::without_provenance_mut(addr), len, Advice::LinuxDontFork) }?)
}

/// Memory of this process alone, wherever the kernel likes, unmapped when dropped: zero-filled
/// private memory ([`anonymous`]), taken page by page when touched, for big volatile tables, of
/// which a forked child has a copy; or a file that this process alone knows ([`whole_file`]).
#[derive(Debug)]
pub struct OwnedRegion {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is plain memory that the value owns alone; access goes through raw pointers,
// whose users answer for it.
unsafe impl Send for OwnedRegion {}
// SAFETY: as above; shared references give out nothing but the address.
unsafe impl Sync for OwnedRegion {}

impl OwnedRegion {
    /// The first byte; page-aligned. Valid for reads and writes of [`OwnedRegion::len`] bytes while
    /// `self` lives.
    #[must_use]
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes, a multiple of the page size.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.len
    }
}

impl OwnedRegion {
    /// Makes the pages of a part present and writable, so that stores into them cannot fail: what a
    /// store would run into, no space on the file system say, is the error.
    ///
    /// # Errors
    /// What the kernel says; one before 5.14 that it does not know this. The part does not lie in
    /// the region.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        self.have(offset, len, Advice::LinuxPopulateWrite)
    }

    /// Makes them present to be read: what a load would run into, a disk that cannot be read say,
    /// is the error.
    ///
    /// # Errors
    /// As [`OwnedRegion::populate`].
    pub fn populate_to_read(&self, offset: usize, len: usize) -> io::Result<()> {
        self.have(offset, len, Advice::LinuxPopulateRead)
    }

    fn have(&self, offset: usize, len: usize, advice: Advice) -> io::Result<()> {
        let page = page_bytes();
        let (from, to) = (offset / page * page, offset.saturating_add(len).next_multiple_of(page));
        if to > self.len || from >= to {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = self.base.as_ptr().wrapping_add(from).cast::<c_void>();
        // SAFETY: a part of this region; the advice changes no byte.
        Ok(unsafe { kernel::madvise(at, to - from, advice) }?)
    }
}

impl Drop for OwnedRegion {
    fn drop(&mut self) {
        // SAFETY: mapped when the value was made, owned by it alone.
        let _ = unsafe { kernel::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// Maps `len` bytes (rounded up to pages, at least one) of zero-filled memory wherever the kernel
/// likes.
///
/// # Errors
/// `ENOMEM` where there is no such address space, or a limit on it.
pub fn anonymous(len: usize) -> io::Result<OwnedRegion> {
    let page = page_bytes();
    let len = len
        .max(1)
        .checked_next_multiple_of(page)
        .ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::NOMEM.raw_os_error()))?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping wherever the kernel likes replaces nothing.
    let base = unsafe {
        kernel::mmap_anonymous(ptr::null_mut(), len, Access::ReadWrite.protection(), flags)
    }?;
    let base = NonNull::new(base.cast())
        .ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::NOMEM.raw_os_error()))?;
    Ok(OwnedRegion { base, len })
}

/// Maps the first `len` bytes (rounded up to pages) of a file wherever the kernel likes, readable
/// and writable; absent in forked children. What is stored goes into the file.
///
/// # Errors
/// What the kernel says; the descriptor is not open for reading and writing.
///
/// # Safety
/// Nothing else writes the file or makes it shorter while the region lives.
pub unsafe fn whole_file(fd: BorrowedFd<'_>, len: usize) -> io::Result<OwnedRegion> {
    let len = len.max(1).next_multiple_of(page_bytes());
    let protection = Access::ReadWrite.protection();
    // SAFETY: a new mapping wherever the kernel likes replaces nothing.
    let base = unsafe { kernel::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0) }?;
    let base = NonNull::new(base.cast())
        .ok_or_else(|| io::Error::from_raw_os_error(rustix::io::Errno::NOMEM.raw_os_error()))?;
    let region = OwnedRegion { base, len };
    // SAFETY: the region was mapped just now.
    unsafe { leave_out_of_children(region.base.as_ptr().expose_provenance(), len) }?;
    Ok(region)
}

/// Leaves mapped memory out of core dumps.
///
/// # Errors
/// What the kernel says: it does not know the advice, or nothing is mapped there.
pub fn leave_out_of_dumps(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: the advice changes nothing but dumps, in any memory.
    Ok(unsafe { kernel::madvise(ptr::without_provenance_mut(addr), len, Advice::LinuxDontDump) }?)
}

/// The same for what must not come to light: left out of core dumps, and not there in a forked
/// child.
///
/// # Errors
/// As [`anonymous`]; a kernel that cannot leave it out of children.
pub fn hidden(len: usize) -> io::Result<OwnedRegion> {
    let region = anonymous(len)?;
    // A kernel that cannot dumps more.
    let _ = leave_out_of_dumps(region.as_ptr().addr(), region.len());
    // SAFETY: as above.
    unsafe { leave_out_of_children(region.as_ptr().addr(), region.len()) }?;
    Ok(region)
}

#[cfg(test)]
mod tests;
