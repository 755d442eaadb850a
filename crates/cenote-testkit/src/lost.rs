//! Pages that cannot be read any more, as of a file that was cut short or of memory that the
//! hardware has lost.

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Maps a file without bytes over a page: from now on every access to it is `SIGBUS`.
///
/// # Safety
/// No reference leads into the page, and only code that expects to lose it uses it.
pub unsafe fn lose(addr: usize) {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the caller's page; the file is this function's.
    unsafe {
        let file = libc::memfd_create(c"lost".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0, "no memory file");
        let at = core::ptr::without_provenance_mut(addr);
        assert!(libc::mmap(at, PAGE, access, flags, file, 0) != libc::MAP_FAILED, "not mapped");
        libc::close(file);
    }
}
