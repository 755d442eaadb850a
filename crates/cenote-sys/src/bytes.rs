//! Reads typed memory as bytes, for logs, hashes, comparisons and tracing.
//!
//! A value that was stored as its type leaves padding, which the language calls uninitialised. To
//! read such a byte as an integer is undefined, although every byte of mapped memory has some
//! value. Three ways avoid that:
//!
//! | way | for memory | cost |
//! | --- | --- | --- |
//! | [`settle`], then a slice | that the caller alone uses | no instruction |
//! | [`load_word`] | that others read too, word by word | a load |
//! | [`copy_by_kernel`], [`write_by_kernel`] | that other threads may write now | a system call |
//!
//! [`store_by_kernel`] stores where a page may be lost: it returns an error, where a plain store
//! would be `SIGBUS`.
//!
//! # Safety argument
//!
//! *Assembly has no uninitialised bytes.* A block of assembly counts as if it had done all that its
//! instructions could do. [`load_word`] is a load into a register, and a register holds a number.
//! [`settle`] has no instruction. It counts as having loaded every byte into a register and stored
//! it back, which changes nothing in the memory and leaves no byte uninitialised. It counts as a
//! store, so its caller must be allowed to store, and excludes readers. Of a byte that is a number
//! already there is nothing to store: other threads may load that one atomically meanwhile, as a
//! reclaim that begins loads roots.
//!
//! *The kernel's accesses are not the program's.* [`copy_by_kernel`] reads pages as a debugger
//! would: no load of this program takes part, so no load races with a store, or contradicts a
//! `&mut`. The copy may be torn where another thread stores meanwhile.
//!
//! Miri runs no assembly. There a test names the padding of its values (`interpreted`), and these
//! functions make numbers of those bytes alone. So Miri reports padding that is read otherwise.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

#[cfg(miri)]
pub mod interpreted;

/// Gives each of `len` bytes one value in the eyes of the language, the one that memory holds.
///
/// # Safety
/// The bytes are mapped. The caller may store into them, and no other thread accesses them
/// meanwhile, but for atomic loads of bytes that are numbers already.
#[inline(always)]
pub unsafe fn settle(at: *mut u8, len: usize) {
    #[cfg(not(miri))]
    // SAFETY: no instruction. What it counts as, a store of what is there, is the caller's to do.
    unsafe {
        core::arch::asm!(
            "/* {0} {1} */",
            in(reg) at,
            in(reg) len,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(miri)]
    // SAFETY: the caller may store into the bytes.
    unsafe {
        interpreted::settle(at.addr(), at, len);
    }
}

/// The bytes of typed memory.
///
/// # Safety
/// As [`settle`]; and no thread stores into them while the slice lives.
#[inline(always)]
#[must_use]
pub unsafe fn settled<'a>(at: *mut u8, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promises are those of both functions; settled bytes are initialised.
    unsafe {
        settle(at, len);
        core::slice::from_raw_parts(at, len)
    }
}

/// The 8 bytes at an address, also if they are padding, or a word that another thread stores
/// meanwhile.
///
/// # Safety
/// The bytes are mapped and readable. A concurrent store is one of a whole aligned word, and so is
/// this load then.
#[inline(always)]
#[must_use]
pub unsafe fn load_word(at: *const u8) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let word: u64;
        // SAFETY: readable by the caller's promise; one load, which changes nothing.
        unsafe {
            core::arch::asm!(
                "mov {0}, qword ptr [{1}]", out(reg) word, in(reg) at,
                options(nostack, preserves_flags, readonly)
            );
        }
        word
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: readable by the caller's promise. The copy takes uninitialised bytes along, and
    // `settle` makes numbers of them. Where the word is aligned its load is volatile: one
    // instruction.
    unsafe {
        let from = at.cast::<core::mem::MaybeUninit<u64>>();
        let mut word = if from.is_aligned() { from.read_volatile() } else { from.read_unaligned() };
        #[cfg(not(miri))]
        settle(word.as_mut_ptr().cast(), 8);
        #[cfg(miri)]
        interpreted::settle(at.addr(), word.as_mut_ptr().cast(), 8);
        word.assume_init()
    }
}

/// Has the kernel copy memory of this process into `to`. Others may store meanwhile: then the copy
/// has some of it.
///
/// # Errors
/// The kernel refuses the call (a sandbox may), or cannot read all of it: `EFAULT` where nothing is
/// mapped, or where the file of a page is cut short or cannot be read.
#[cfg(not(miri))]
pub fn copy_by_kernel(addr: usize, to: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec {
        iov_base: core::ptr::without_provenance_mut::<core::ffi::c_void>(addr),
        iov_len: to.len(),
    };
    // SAFETY: `local` is `to`, which is ours to write. Reading `remote` fails where it cannot be
    // read, and changes nothing.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    match usize::try_from(copied) {
        Ok(copied) if copied == to.len() => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Miri has no such call, and reports what the kernel would refuse.
///
/// # Errors
/// None.
#[cfg(miri)]
pub fn copy_by_kernel(addr: usize, to: &mut [u8]) -> io::Result<()> {
    let from = core::ptr::with_exposed_provenance::<u8>(addr);
    // SAFETY: if the bytes are no memory, Miri says so.
    unsafe {
        from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len());
        interpreted::settle(addr, to.as_mut_ptr(), to.len());
    }
    Ok(())
}

/// Has the kernel store bytes into memory of this process, where a page may be lost.
///
/// # Errors
/// `EIO`: a page cannot be had. Then some of the bytes may be there.
///
/// # Safety
/// `from.len()` bytes at `addr` are mapped to be written, and nothing else uses them.
pub unsafe fn store_by_kernel(addr: usize, from: &[u8]) -> io::Result<()> {
    #[cfg(not(miri))]
    {
        // The call does not write to what it names as its source.
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let at = core::ptr::without_provenance_mut::<core::ffi::c_void>(addr);
        let remote = libc::iovec { iov_base: at, iov_len: from.len() };
        // SAFETY: the caller may write there. Where that cannot be, nothing is written.
        let stored = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        };
        if usize::try_from(stored).is_ok_and(|stored| stored == from.len()) {
            return Ok(());
        }
        let is_lost = || io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
        if stored >= 0 || is_lost() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
    }
    // A sandbox may refuse the call.
    let at = core::ptr::with_exposed_provenance_mut::<u8>(addr);
    // SAFETY: by contract.
    unsafe { at.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    Ok(())
}

/// Has the kernel write memory of this process into a file.
///
/// # Errors
/// As [`copy_by_kernel`]; what the file system says.
pub fn write_by_kernel(
    fd: BorrowedFd<'_>,
    mut offset: u64,
    mut addr: usize,
    mut len: usize,
) -> io::Result<()> {
    while len != 0 {
        let at = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the call fails where memory cannot be read, and changes nothing in it.
        let written =
            unsafe { libc::pwrite64(fd.as_raw_fd(), core::ptr::without_provenance(addr), len, at) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                addr += written;
                len -= written;
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
