//! Which pages of a mapping were written: the `PAGEMAP_SCAN` ioctl (Linux 6.7), alone and with
//! write protection through userfaultfd.
//!
//! Two questions about a *private* file mapping, both answered for swapped pages too:
//!
//! * [`Pagemap::copies`]: which pages are copies of this process, that is were written since they
//!   were mapped, or since [`discard_copies`]? Needs no privilege and no preparation.
//! * [`Pagemap::written`]: which copies were written since they were last asked for? Needs a
//!   [`WriteProtection`] over the range. Asking and protecting again are one step: a store comes
//!   before the answer, or is in the next one.
//!
//! Pages that are only read stay the file's and are in neither answer. A scan skips what has no
//! page tables and costs a few nanoseconds for each page that has.
//!
//! # Safety argument
//!
//! The ioctls get structures of the kernel's own layout, which outlive the call. Scanning reads
//! page tables and memory is only ever protected against writes that the kernel itself lets through
//! again (asynchronous mode), so neither can change what a program sees. [`discard_copies`] does,
//! and is `unsafe`.

use crate::probe::{Missing, handshake, ioctl, open_userfaultfd};
use core::ops::Range;
use linux_raw_sys::general as raw;
use linux_raw_sys::general::{page_region, pm_scan_arg, uffdio_range, uffdio_register};
use rustix::mm::Advice;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

const WRITTEN: u64 = 1 << 1;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 2;

/// Ranges that one call of the kernel may report.
const REGIONS: usize = 1024;

/// The page tables of this process, to be asked.
pub struct Pagemap {
    file: File,
    regions: Box<[page_region]>,
}

impl core::fmt::Debug for Pagemap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Pagemap")
    }
}

impl Pagemap {
    /// Opens `/proc/self/pagemap`.
    ///
    /// # Errors
    /// There is no `/proc`, or no descriptor is free.
    pub fn open() -> io::Result<Self> {
        let empty = page_region { start: 0, end: 0, categories: 0 };
        Ok(Self {
            file: File::open("/proc/self/pagemap")?,
            regions: vec![empty; REGIONS].into_boxed_slice(),
        })
    }

    /// Calls `f` with every range of addresses in `[start, start + len)`, in order, whose pages are
    /// copies of this process. Both numbers are multiples of the page size, and the range is a
    /// private mapping.
    ///
    /// # Errors
    /// The kernel is older than 6.7 (`ENOTTY`), or a sandbox refuses.
    pub fn copies(
        &mut self,
        start: usize,
        len: usize,
        f: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        self.scan(start, len, FILE, 0, f)
    }

    /// The same with those copies that were written since the last such call, and protects them
    /// again.
    ///
    /// # Errors
    /// As [`Pagemap::copies`]; the range has no [`WriteProtection`] (`EPERM`). Pages that were
    /// reported before the error are protected and will not be reported again.
    pub fn written(
        &mut self,
        start: usize,
        len: usize,
        f: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        self.scan(start, len, WRITTEN | FILE, PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC, f)
    }

    /// The same, and protects nothing: they will be reported again.
    ///
    /// # Errors
    /// As [`Pagemap::copies`].
    pub fn unprotected(
        &mut self,
        start: usize,
        len: usize,
        f: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        self.scan(start, len, WRITTEN | FILE, 0, f)
    }

    fn scan(
        &mut self,
        start: usize,
        len: usize,
        mask: u64,
        flags: u64,
        mut f: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let end = (start + len) as u64;
        let mut at = start as u64;
        while at < end {
            let mut request = pm_scan_arg {
                size: size_of::<pm_scan_arg>() as u64,
                flags,
                start: at,
                end,
                walk_end: 0,
                vec: self.regions.as_mut_ptr().expose_provenance() as u64,
                vec_len: self.regions.len() as u64,
                max_pages: 0,
                category_inverted: FILE,
                category_mask: mask,
                category_anyof_mask: PRESENT | SWAPPED,
                return_mask: mask,
            };
            let opcode = rustix::ioctl::opcode::read_write::<pm_scan_arg>(b'f', 16);
            // SAFETY: the structure that this ioctl reads and writes; `vec` names an array of
            // `vec_len` regions.
            let found = match unsafe { ioctl(&self.file, opcode.into(), (&raw mut request).cast()) }
            {
                Ok(found) => found,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for region in self.regions.iter().take(found) {
                f(region.start as usize..region.end as usize);
            }
            if request.walk_end <= at {
                return Err(io::Error::other("PAGEMAP_SCAN makes no progress"));
            }
            at = request.walk_end;
        }
        Ok(())
    }
}

/// Ranges whose writes the kernel notes for [`Pagemap::written`], until this is dropped.
#[derive(Debug)]
pub struct WriteProtection {
    fd: OwnedFd,
}

impl WriteProtection {
    /// A userfaultfd in asynchronous write-protect mode, for no range yet.
    ///
    /// # Errors
    /// The reason why there is none: a container refuses, or the kernel is older than 6.7.
    pub fn open() -> Result<Self, Missing> {
        let (fd, _) = open_userfaultfd()?;
        let wanted = raw::UFFD_FEATURE_WP_ASYNC | raw::UFFD_FEATURE_WP_UNPOPULATED;
        handshake(&fd, u64::from(wanted)).map_err(|e| {
            Missing::failed("userfaultfd refuses asynchronous write protection", &e)
        })?;
        Ok(Self { fd })
    }

    /// Notes writes to `[start, start + len)` from now on. Unmapping the range ends that.
    ///
    /// # Errors
    /// What the kernel says: the range is not mapped, or has another userfaultfd.
    ///
    /// # Safety
    /// The range is a mapping of the caller's.
    pub unsafe fn register(&self, start: usize, len: usize) -> io::Result<()> {
        let mut register = uffdio_register {
            range: uffdio_range { start: start as u64, len: len as u64 },
            mode: u64::from(raw::UFFDIO_REGISTER_MODE_WP),
            ioctls: 0,
        };
        // SAFETY: the structure that this ioctl reads and writes; the range is the caller's.
        unsafe {
            ioctl(
                &self.fd,
                linux_raw_sys::ioctl::UFFDIO_REGISTER.into(),
                (&raw mut register).cast(),
            )
        }
        .map(drop)
    }
}

/// Throws away this process's copies in `[addr, addr + len)`: the range shows the file again.
///
/// # Errors
/// What the kernel says; some copies may be gone.
///
/// # Safety
/// The range is a private mapping of the caller's, and no reference leads into it.
pub unsafe fn discard_copies(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: handed on to the caller.
    unsafe {
        rustix::mm::madvise(core::ptr::without_provenance_mut(addr), len, Advice::LinuxDontNeed)
    }?;
    crate::revocations::note_revocation();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{self, Access, Sharing};
    use std::os::fd::AsFd;

    const PAGES: usize = 64;

    /// A private mapping of a file of `PAGES` pages.
    struct Private {
        base: usize,
        page: usize,
        _file: File,
    }

    impl Private {
        fn new() -> Self {
            let page = memory::page_bytes();
            let file = tempfile::tempfile().expect("a file");
            file.set_len((PAGES * page) as u64).expect("a length");
            let base = memory::reserve_anywhere(PAGES * page, page).expect("address space");
            // SAFETY: inside our own reservation.
            unsafe {
                memory::map_file(
                    file.as_fd(),
                    base,
                    PAGES * page,
                    Access::ReadWrite,
                    Sharing::Private,
                )
            }
            .expect("map");
            Self { base, page, _file: file }
        }

        fn pointer(&self, index: usize) -> *mut u8 {
            core::ptr::with_exposed_provenance_mut(self.base + index * self.page)
        }

        fn write(&self, index: usize, value: u8) {
            // SAFETY: mapped and writable.
            unsafe { self.pointer(index).write_volatile(value) }
        }

        fn read(&self, index: usize) -> u8 {
            // SAFETY: mapped.
            unsafe { self.pointer(index).read_volatile() }
        }

        fn indices(&self, ranges: &[Range<usize>]) -> Vec<usize> {
            let of = |r: &Range<usize>| {
                (r.start - self.base) / self.page..(r.end - self.base) / self.page
            };
            ranges.iter().flat_map(of).collect()
        }
    }

    impl Drop for Private {
        fn drop(&mut self) {
            // SAFETY: our own reservation, no longer used.
            let _ = unsafe { memory::release(self.base, PAGES * self.page) };
        }
    }

    #[test]
    fn copies_are_exactly_the_written_pages_until_they_are_discarded() {
        let mapping = Private::new();
        let mut pagemap = Pagemap::open().expect("pagemap");
        (0..32).for_each(|i| assert_eq!(mapping.read(i), 0));
        for i in [0, 3, 4, 63] {
            mapping.write(i, 7);
        }
        let mut found = Vec::new();
        let scanned = pagemap.copies(mapping.base, PAGES * mapping.page, |r| found.push(r));
        if let Err(error) = scanned {
            println!("skipped: PAGEMAP_SCAN: {error}");
            return;
        }
        assert_eq!(mapping.indices(&found), [0, 3, 4, 63]);
        // SAFETY: no references into the mapping.
        unsafe { discard_copies(mapping.base + 3 * mapping.page, mapping.page) }.expect("discard");
        assert_eq!((mapping.read(3), mapping.read(4)), (0, 7));
        found.clear();
        pagemap.copies(mapping.base, PAGES * mapping.page, |r| found.push(r)).expect("scan");
        assert_eq!(mapping.indices(&found), [0, 4, 63]);
    }

    #[test]
    fn written_pages_are_reported_once_for_each_time_they_are_written() {
        let mapping = Private::new();
        let protection = match WriteProtection::open() {
            Ok(protection) => protection,
            Err(missing) => return println!("skipped: {missing}"),
        };
        // SAFETY: our own mapping.
        if let Err(error) = unsafe { protection.register(mapping.base, PAGES * mapping.page) } {
            return println!("skipped: private file mappings are not protected: {error}");
        }
        let mut pagemap = Pagemap::open().expect("pagemap");
        let mut ask = || {
            let mut found = Vec::new();
            pagemap.written(mapping.base, PAGES * mapping.page, |r| found.push(r)).expect("scan");
            mapping.indices(&found)
        };
        assert_eq!(ask(), [0usize; 0]);
        (0..PAGES).for_each(|i| assert_eq!(mapping.read(i), 0));
        mapping.write(5, 1);
        mapping.write(6, 1);
        assert_eq!(ask(), [5, 6], "pages that were only read are not written");
        assert_eq!(ask(), [0usize; 0], "nothing was written since");
        mapping.write(6, 2);
        mapping.write(40, 2);
        let mut open = Vec::new();
        let looked = Pagemap::open().expect("pagemap").unprotected(
            mapping.base,
            PAGES * mapping.page,
            |r| open.push(r),
        );
        looked.expect("scan");
        assert_eq!(mapping.indices(&open), [6, 40], "looking protects nothing");
        assert_eq!(ask(), [6, 40]);
        assert_eq!((mapping.read(5), mapping.read(6), mapping.read(40)), (1, 2, 2));
    }

    #[test]
    fn more_ranges_than_one_call_reports_are_all_found() {
        let page = memory::page_bytes();
        let count = 3 * REGIONS;
        let region = memory::anonymous(2 * count * page).expect("memory");
        let base = region.as_ptr().addr();
        for i in 0..count {
            // SAFETY: inside the region.
            unsafe { region.as_ptr().add(2 * i * page).write_volatile(1) };
        }
        let mut found = 0;
        match Pagemap::open()
            .expect("pagemap")
            .copies(base, 2 * count * page, |r| found += r.len() / page)
        {
            // A huge page may hold several of them.
            Ok(()) => assert!(found >= count, "{found} of {count} pages were reported"),
            Err(error) => println!("skipped: PAGEMAP_SCAN: {error}"),
        }
    }
}
