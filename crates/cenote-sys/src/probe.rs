//! What this machine lets Cenote use: the facts that `cenote doctor` prints.
//!
//! Every mechanism that needs a privilege, a recent kernel or a certain processor has a fallback,
//! chosen at run time. A probe tries the mechanism itself, on memory of its own, instead of
//! comparing version numbers, and says why it is missing. Probes change nothing that outlives them.
//!
//! # Safety argument
//!
//! The ioctls are given structures of the kernel's own layout (`linux-raw-sys`), and ranges of
//! [`memory::anonymous`] regions or of reservations that live until the descriptor is closed. What
//! the test mappings hold is only touched by volatile accesses.

use crate::cpu::{self, CpuFeatures, FlushInstruction};
use crate::memory::{self, Access, Sharing};
use core::ffi::c_void;
use core::fmt;
use core::ptr;
use linux_raw_sys::general as raw;
use linux_raw_sys::general::{page_region, pm_scan_arg, uffdio_api, uffdio_range, uffdio_register};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::UserfaultfdFlags;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Something that is there, or the reason why it is not.
pub type Availability<T> = Result<T, Missing>;

/// Why a mechanism cannot be used here: what was tried, what the system said, and what may help.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
#[non_exhaustive]
pub struct Missing {
    /// One sentence without a full stop.
    pub reason: String,
}

impl Missing {
    pub(crate) fn because(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }

    pub(crate) fn failed(what: &str, error: &io::Error) -> Self {
        Self { reason: format!("{what}: {error}") }
    }
}

/// Everything that is probed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Name and release of the kernel, such as `Linux 6.12.1`.
    pub kernel: String,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// The processor's name.
    pub cpu_model: String,
    /// The processor's features.
    pub cpu_features: CpuFeatures,
    /// The instruction that writes cache lines back.
    pub flush_instruction: FlushInstruction,
    /// Processors that this process may run on.
    pub cpus: usize,
    /// userfaultfd.
    pub userfaultfd: Availability<Userfaultfd>,
    /// Dirty pages by userfaultfd's asynchronous write protection and `PAGEMAP_SCAN`.
    pub dirty_by_write_protection: Availability<()>,
    /// Dirty pages of private file mappings by `PAGEMAP_SCAN`, which needs no privilege.
    pub dirty_by_private_copy: Availability<()>,
    /// Memory protection keys can be had.
    pub protection_keys: Availability<()>,
    /// A second mapping of shared memory, for metadata of heaps.
    pub second_mapping: Availability<()>,
    /// Memory files can be sealed against change.
    pub memfd_seals: Availability<()>,
    /// Barriers on all threads of a process.
    pub membarrier: Availability<()>,
    /// Forked children are noticed by the kernel's emptying of a page.
    pub wipe_on_fork: Availability<()>,
    /// When the kernel uses huge pages for anonymous memory: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Availability<String>,
    /// The same for shared memory (tmpfs).
    pub shared_huge_pages: Availability<String>,
    /// Limits of this process.
    pub limits: Limits,
}

impl Report {
    /// Probes everything. Takes some milliseconds.
    #[must_use]
    pub fn collect() -> Self {
        let uname = rustix::system::uname();
        Self {
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            page_bytes: memory::page_bytes(),
            cpu_model: cpu::model_name(),
            cpu_features: *cpu::features(),
            flush_instruction: cpu::flush_instruction(),
            cpus: crate::cpu_number::available().get(),
            userfaultfd: userfaultfd(),
            dirty_by_write_protection: dirty_by_write_protection(),
            dirty_by_private_copy: dirty_by_private_copy(),
            protection_keys: protection_keys(),
            second_mapping: second_mapping(),
            memfd_seals: memfd_seals(),
            membarrier: membarrier(),
            wipe_on_fork: wipe_on_fork(),
            transparent_huge_pages: transparent_huge_pages("enabled"),
            shared_huge_pages: transparent_huge_pages("shmem_enabled"),
            limits: limits(),
        }
    }
}

/// Which faults a process may have reported to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserfaultfdMode {
    /// All, those inside system calls too.
    Full,
    /// Only those of the program's own instructions; a system call on a missing page fails with
    /// `EFAULT`.
    UserModeOnly,
}

impl fmt::Display for UserfaultfdMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "privileged",
            Self::UserModeOnly => "user mode only",
        })
    }
}

/// What userfaultfd offers here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Userfaultfd {
    /// What this process is allowed.
    pub mode: UserfaultfdMode,
    /// Write protection of anonymous memory.
    pub write_protect: bool,
    /// Write protection of shared memory (tmpfs) too.
    pub write_protect_shared: bool,
    /// Asynchronous write protection: the kernel resolves faults itself and notes the page (Linux
    /// 6.7).
    pub write_protect_async: bool,
    /// All features, as the kernel's bits.
    pub features: u64,
}

/// Limits of this process; `None`: unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// `RLIMIT_AS`: bytes of address space. A window of 1 TiB has to fit.
    pub address_space_bytes: Limit,
    /// `RLIMIT_NOFILE`: open descriptors.
    pub open_files: Limit,
    /// `RLIMIT_MEMLOCK`: bytes of locked memory; keys live there.
    pub locked_memory_bytes: Limit,
    /// `vm.max_map_count`: mappings of one process; `None`: not known.
    pub mappings: Option<u64>,
}

/// One limit: what holds, and how far the process may raise it. `None`: unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// What holds.
    pub soft: Option<u64>,
    /// How far it can be raised.
    pub hard: Option<u64>,
}

/// Opens a userfaultfd, privileged if possible, and asks for its features.
///
/// # Errors
/// The reason why there is none.
pub fn userfaultfd() -> Availability<Userfaultfd> {
    let (fd, mode) = open_userfaultfd()?;
    // Asked for none, the kernel names all.
    let features = handshake(&fd, 0)
        .map_err(|e| Missing::failed("userfaultfd does not name its features", &e))?;
    let has = |bit: u32| features & u64::from(bit) != 0;
    Ok(Userfaultfd {
        mode,
        write_protect: has(raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP),
        write_protect_shared: has(raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM),
        write_protect_async: has(raw::UFFD_FEATURE_WP_ASYNC),
        features,
    })
}

/// Finds a dirty page of a test mapping by asynchronous write protection and `PAGEMAP_SCAN`.
///
/// # Errors
/// The reason why that does not work.
pub fn dirty_by_write_protection() -> Availability<()> {
    let offered = userfaultfd()?;
    if !offered.write_protect_async {
        return Err(Missing::because(
            "userfaultfd has no asynchronous write protection; Linux 6.7 brought it",
        ));
    }
    let page = memory::page_bytes();
    let region =
        memory::anonymous(PAGES * page).map_err(|e| Missing::failed("no memory for a test", &e))?;
    let start = region.as_ptr().addr();
    let (fd, _) = open_userfaultfd()?;
    let wanted = raw::UFFD_FEATURE_WP_ASYNC | raw::UFFD_FEATURE_WP_UNPOPULATED;
    handshake(&fd, u64::from(wanted))
        .map_err(|e| Missing::failed("userfaultfd refuses asynchronous write protection", &e))?;
    let mut register = uffdio_register {
        range: uffdio_range { start: start as u64, len: region.len() as u64 },
        mode: u64::from(raw::UFFDIO_REGISTER_MODE_WP),
        ioctls: 0,
    };
    // SAFETY: the structure that this ioctl reads and writes; the range is our region, which
    // outlives the test.
    unsafe { ioctl(&fd, linux_raw_sys::ioctl::UFFDIO_REGISTER.into(), (&raw mut register).cast()) }
        .map_err(|e| Missing::failed("userfaultfd refuses to protect memory", &e))?;
    touch(start, page, 0..PAGES);
    let written = PagemapScan { mask: raw_page::WRITTEN, inverted: 0, protect: true };
    // The first scan protects everything, the second finds what was written since.
    scan(start, PAGES * page, &written)?;
    touch(start, page, DIRTY..DIRTY + 1);
    expect_dirty(&scan(start, PAGES * page, &written)?, start, page)
}

/// Finds the modified page of a private mapping of a test file by `PAGEMAP_SCAN`.
///
/// # Errors
/// The reason why that does not work.
pub fn dirty_by_private_copy() -> Availability<()> {
    let page = memory::page_bytes();
    let len = PAGES * page;
    let fd = memfd_create(c"cenote-probe", MemfdFlags::CLOEXEC)
        .and_then(|fd| ftruncate(&fd, len as u64).map(|()| fd))
        .map_err(|e| Missing::failed("no memory file for a test", &e.into()))?;
    let base = memory::reserve_anywhere(len, page).map_err(|e| Missing::because(e.to_string()))?;
    // SAFETY: inside our own reservation, released below; nothing else knows the address.
    let found =
        unsafe { memory::map_file(fd.as_fd(), base, len, Access::ReadWrite, Sharing::Private) }
            .map_err(|e| Missing::failed("no private mapping for a test", &e))
            .and_then(|()| {
                for i in 0..PAGES {
                    // SAFETY: mapped just now.
                    let _ = unsafe {
                        ptr::with_exposed_provenance::<u8>(base + i * page).read_volatile()
                    };
                }
                touch(base, page, DIRTY..DIRTY + 1);
                // Pages that are present and no longer the file's.
                let changed = PagemapScan {
                    mask: raw_page::PRESENT | raw_page::FILE,
                    inverted: raw_page::FILE,
                    protect: false,
                };
                expect_dirty(&scan(base, len, &changed)?, base, page)
            });
    // SAFETY: our own reservation, no longer used.
    let _ = unsafe { memory::release(base, len) };
    found
}

/// Takes a memory protection key and gives it back.
///
/// # Errors
/// The reason why there is none.
pub fn protection_keys() -> Availability<()> {
    let features = cpu::features();
    // SAFETY: system calls without pointers; the key is unused when it is given back.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0_usize, 0_usize) };
    if key >= 0 {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_pkey_free, key) };
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(if cfg!(target_arch = "x86_64") && !features.pku {
        Missing::because("the processor has no protection keys (PKU), or a hypervisor hides them")
    } else if cfg!(target_arch = "x86_64") && !features.ospke {
        Missing::because("the kernel has not switched protection keys on")
    } else {
        Missing::failed("no protection key is free, or a sandbox refuses pkey_alloc", &error)
    })
}

/// Maps a memory file, and its mapping a second time.
///
/// # Errors
/// The reason why that does not work.
pub fn second_mapping() -> Availability<()> {
    let file = crate::dual_mapping::nameless_file("cenote-probe")
        .and_then(|file| file.set_len(memory::page_bytes() as u64).map(|()| file))
        .map_err(|e| Missing::failed("no memory file", &e))?;
    // SAFETY: nothing else has the file.
    let region = unsafe { memory::whole_file(file.as_fd(), memory::page_bytes()) }
        .map_err(|e| Missing::failed("a memory file cannot be mapped", &e))?;
    let first = region.as_ptr().expose_provenance();
    // SAFETY: a shared mapping of one file.
    unsafe { crate::second_mapping::SecondMapping::new(first, memory::page_bytes()) }
        .map(drop)
        .map_err(|e| Missing::failed("the kernel maps no memory twice", &e))
}

/// Seals a memory file and sees that its length cannot change any more.
///
/// # Errors
/// The reason why that does not work.
pub fn memfd_seals() -> Availability<()> {
    let fd = memfd_create(c"cenote-probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(|e| Missing::failed("memfd_create", &e.into()))?;
    ftruncate(&fd, 4096).map_err(|e| Missing::failed("no memory for a memory file", &e.into()))?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|e| Missing::failed("the kernel refuses seals", &e.into()))?;
    if ftruncate(&fd, 0).is_ok() {
        return Err(Missing::because("a sealed memory file could still be shortened"));
    }
    Ok(())
}

/// Registers for barriers on all threads and makes one. The registration stays.
///
/// # Errors
/// The reason why that does not work.
pub fn membarrier() -> Availability<()> {
    if crate::membarrier::register_private_expedited() && crate::membarrier::private_expedited() {
        Ok(())
    } else {
        Err(Missing::because("the kernel (before Linux 4.14) or a sandbox refuses membarrier"))
    }
}

fn wipe_on_fork() -> Availability<()> {
    if crate::fork_guard::is_kernel_backed() {
        Ok(())
    } else {
        Err(Missing::because(
            "the kernel (before Linux 4.14) does not empty pages in forked children",
        ))
    }
}

/// Limits of this process.
#[must_use]
pub fn limits() -> Limits {
    let limit = |resource| {
        let found = getrlimit(resource);
        Limit { soft: found.current, hard: found.maximum }
    };
    Limits {
        address_space_bytes: limit(Resource::As),
        open_files: limit(Resource::Nofile),
        locked_memory_bytes: limit(Resource::Memlock),
        mappings: std::fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|t| t.trim().parse().ok()),
    }
}

/// The chosen word of a setting such as `always [madvise] never`.
fn transparent_huge_pages(which: &str) -> Availability<String> {
    let path = format!("/sys/kernel/mm/transparent_hugepage/{which}");
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Missing::failed(&format!("cannot read {path}"), &e))?;
    chosen(&text)
        .map(str::to_owned)
        .ok_or_else(|| Missing::because(format!("{path} names no chosen setting")))
}

fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// Pages of a test mapping, and the one that is written after the others.
const PAGES: usize = 8;
const DIRTY: usize = 5;

/// Categories of pages of `PAGEMAP_SCAN`.
mod raw_page {
    pub(super) const WRITTEN: u64 = 1 << 1;
    pub(super) const FILE: u64 = 1 << 2;
    pub(super) const PRESENT: u64 = 1 << 3;
}

struct PagemapScan {
    /// Categories that a page must have (or, if inverted, lack) to be reported.
    mask: u64,
    inverted: u64,
    /// Protects what it reports again, in the same step.
    protect: bool,
}

fn touch(start: usize, page: usize, pages: core::ops::Range<usize>) {
    for i in pages {
        // SAFETY: callers pass mappings of their own of PAGES pages, which they exposed by their
        // address.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(start + i * page).write_volatile(1) };
    }
}

/// The ranges of pages in `[start, start + len)` that match.
fn scan(start: usize, len: usize, what: &PagemapScan) -> Availability<Vec<(u64, u64)>> {
    const PM_SCAN_WP_MATCHING: u64 = 1;
    const PM_SCAN_CHECK_WPASYNC: u64 = 2;
    let pagemap = std::fs::File::open("/proc/self/pagemap")
        .map_err(|e| Missing::failed("cannot open /proc/self/pagemap", &e))?;
    let mut regions = [const { page_region { start: 0, end: 0, categories: 0 } }; PAGES];
    let mut request = pm_scan_arg {
        size: size_of::<pm_scan_arg>() as u64,
        flags: if what.protect { PM_SCAN_WP_MATCHING | PM_SCAN_CHECK_WPASYNC } else { 0 },
        start: start as u64,
        end: (start + len) as u64,
        walk_end: 0,
        vec: regions.as_mut_ptr().expose_provenance() as u64,
        vec_len: regions.len() as u64,
        max_pages: 0,
        category_inverted: what.inverted,
        category_mask: what.mask,
        category_anyof_mask: 0,
        return_mask: what.mask,
    };
    let opcode = rustix::ioctl::opcode::read_write::<pm_scan_arg>(b'f', 16);
    // SAFETY: the structure that this ioctl reads and writes; `vec` names an array of `vec_len`
    // regions.
    let found = unsafe { ioctl(&pagemap, opcode.into(), (&raw mut request).cast()) }
        .map_err(|e| Missing::failed("PAGEMAP_SCAN refused (Linux 6.7 brought it)", &e))?;
    Ok(regions.iter().take(found).map(|r| (r.start, r.end)).collect())
}

fn expect_dirty(found: &[(u64, u64)], start: usize, page: usize) -> Availability<()> {
    let first = (start + DIRTY * page) as u64;
    if found == [(first, first + page as u64)] {
        Ok(())
    } else {
        Err(Missing::because(format!(
            "PAGEMAP_SCAN reported {} ranges of a test mapping with one dirty page, and not that \
             page",
            found.len()
        )))
    }
}

pub(crate) fn open_userfaultfd() -> Availability<(OwnedFd, UserfaultfdMode)> {
    let user_mode_only = UserfaultfdFlags::from_bits_retain(raw::UFFD_USER_MODE_ONLY);
    // SAFETY: a descriptor that is registered for no range, or for one of ours, does nothing to
    // other memory.
    let full = unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC) };
    if let Ok(fd) = full {
        return Ok((fd, UserfaultfdMode::Full));
    }
    // SAFETY: as above.
    match unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | user_mode_only) } {
        Ok(fd) => Ok((fd, UserfaultfdMode::UserModeOnly)),
        Err(errno) => Err(Missing::failed(
            "userfaultfd refused; a container's seccomp profile may forbid it",
            &errno.into(),
        )),
    }
}

/// Agrees on features; returns those that the kernel has.
pub(crate) fn handshake(fd: &OwnedFd, features: u64) -> io::Result<u64> {
    let mut api = uffdio_api { api: u64::from(raw::UFFD_API), features, ioctls: 0 };
    // SAFETY: the structure that this ioctl reads and writes.
    unsafe { ioctl(fd, linux_raw_sys::ioctl::UFFDIO_API.into(), (&raw mut api).cast()) }?;
    Ok(api.features)
}

/// # Safety
/// `argument` points to what `opcode` expects.
pub(crate) unsafe fn ioctl(
    fd: &impl AsRawFd,
    opcode: u64,
    argument: *mut c_void,
) -> io::Result<usize> {
    // SAFETY: handed on to the caller. The type of the number differs between C libraries, its bits
    // do not.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), opcode as _, argument) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show<T: fmt::Debug>(name: &str, found: &Availability<T>) {
        match found {
            Ok(what) => println!("{name}: {what:?}"),
            Err(missing) => {
                assert!(!missing.reason.is_empty(), "{name} is missing for no reason");
                println!("skipped: {name}: {missing}");
            }
        }
    }

    #[test]
    fn a_report_says_what_is_there_or_why_not() {
        let report = Report::collect();
        assert!(report.kernel.starts_with("Linux "), "{}", report.kernel);
        assert!(report.page_bytes.is_power_of_two() && report.page_bytes >= 4096);
        assert!(!report.cpu_model.is_empty() && report.cpus > 0);
        show("userfaultfd", &report.userfaultfd);
        show("dirty pages by write protection", &report.dirty_by_write_protection);
        show("dirty pages by private copy", &report.dirty_by_private_copy);
        show("protection keys", &report.protection_keys);
        show("second mapping", &report.second_mapping);
        show("memfd seals", &report.memfd_seals);
        show("membarrier", &report.membarrier);
        show("wipe on fork", &report.wipe_on_fork);
        show("transparent huge pages", &report.transparent_huge_pages);
        show("shared huge pages", &report.shared_huge_pages);
        println!("{:?}", report.limits);
    }

    #[test]
    fn probes_leave_no_descriptor_open() {
        let count = || std::fs::read_dir("/proc/self/fd").map(Iterator::count).unwrap_or(0);
        // In a child, where no other test opens files.
        let seen = crate::testing::in_child(|| {
            let before = count();
            let _ = Report::collect();
            i32::from(count() != before)
        });
        assert_eq!(seen, 0, "a probe leaks descriptors");
    }

    #[test]
    fn a_wrong_set_of_dirty_pages_is_no_working_mechanism() {
        let page = 4096;
        let right = ((DIRTY * page) as u64, ((DIRTY + 1) * page) as u64);
        assert_eq!(expect_dirty(&[right], 0, page), Ok(()));
        assert!(expect_dirty(&[], 0, page).is_err());
        assert!(expect_dirty(&[(0, right.1)], 0, page).is_err());
        assert!(expect_dirty(&[right, right], 0, page).is_err());
    }

    #[test]
    fn a_refused_mechanism_comes_with_the_reason() {
        // No descriptors at all: code that needs one must say so, and nothing may panic.
        let seen = crate::testing::in_child(|| {
            let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
            if rustix::process::setrlimit(Resource::Nofile, none).is_err() {
                return 1;
            }
            let report = Report::collect();
            let missing = [
                report.userfaultfd.err(),
                report.dirty_by_write_protection.err(),
                report.dirty_by_private_copy.err(),
                report.memfd_seals.err(),
            ];
            i32::from(!missing.iter().all(|m| m.as_ref().is_some_and(|m| !m.reason.is_empty()))) * 2
        });
        assert_eq!(seen, 0);
    }

    #[test]
    fn the_chosen_word_of_a_setting_is_found() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("[always] madvise never"), Some("always"));
        assert_eq!(chosen("always"), None);
        assert_eq!(chosen("]["), None);
    }
}
