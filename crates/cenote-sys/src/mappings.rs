//! How many mappings the process may have, and how many of them protections may make (PMO-5).
//!
//! The kernel allows a process `vm.max_map_count` mappings, some 65,000; beyond that `mmap` fails,
//! and with it the program's own allocations. Where pages change their protection one by one, each
//! call may split one mapping into three. So every such call asks first how finely it may go, and
//! what maps a file asks whether there is room.
//!
//! ```text
//! mappings of the process      protections change by      a file is mapped
//! up to 1/2 of the limit       page                       yes
//! up to 3/4                    chunk of 2 MiB             yes
//! up to 7/8                    whole range                yes
//! beyond                       whole range                no: an error
//! ```
//!
//! A coarser change is as correct: more pages count as written, and are compared.
//!
//! # How they are counted
//!
//! *Estimate* = mappings at the last count + two for each call of [`crate::memory`] since. It is
//! not less than what is there, but for mappings that the program makes itself in between. The
//! process is counted, by reading `/proc/self/maps`, when the estimate passes a bound, and every
//! `COUNT_EVERY` mappings: not at all in a process with few. Where `/proc` cannot be read the
//! estimate only grows, and protections become coarser early.
//!
//! # In a fault handler
//!
//! [`fineness`] is async-signal-safe: it uses atomics, `open`, `read` and `close`, and a static
//! buffer under a flag that is only ever tried.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;

/// Mappings that may be made before the process is counted again.
const COUNT_EVERY: u64 = 16_384;
/// Mappings that may be made before it is counted for the first time.
const FIRST_COUNT: u64 = 1024;
/// Mappings that are made, at least, between two counts.
const COUNT_AFTER: u64 = 512;
/// What the kernel's limit is where it cannot be read: its default.
const LIMIT_DEFAULT: u64 = 65_530;

/// 0: not read yet.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Mappings at the last count.
static COUNTED: AtomicU64 = AtomicU64::new(0);
/// Mappings that calls since may have made.
static MADE: AtomicU64 = AtomicU64::new(0);
/// [`MADE`] at which the mappings are counted, with any estimate.
static NEXT: AtomicU64 = AtomicU64::new(FIRST_COUNT);

/// How finely protections may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fineness {
    /// A range at a time.
    Whole,
    /// 2 MiB at a time.
    Chunk,
    /// Page by page.
    Page,
}

/// There is no room for another mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process has about {mappings} mappings of the {limit} that the kernel allows it \
     (vm.max_map_count): close pools, objects or stores, or raise the limit with \
     `sysctl -w vm.max_map_count={}`",
    limit.saturating_mul(4)
)]
pub struct Full {
    /// Mappings of the process, about.
    pub mappings: u64,
    /// How many it may have.
    pub limit: u64,
}

impl From<Full> for io::Error {
    fn from(full: Full) -> Self {
        Self::new(io::ErrorKind::OutOfMemory, full)
    }
}

/// Most mappings of a process, by the kernel. Async-signal-safe.
#[must_use]
pub fn limit() -> u64 {
    match LIMIT.load(Ordering::Relaxed) {
        0 => {
            let mut digits = [0u8; 24];
            let mut value = None;
            read(c"/proc/sys/vm/max_map_count", &mut digits, |bytes| {
                let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit());
                value = Some(digits.fold(0u64, |sum, byte| {
                    sum.saturating_mul(10).saturating_add(u64::from(byte - b'0'))
                }));
            });
            let limit = value.filter(|limit| *limit != 0).unwrap_or(LIMIT_DEFAULT);
            // A limit that a test has set meanwhile stays.
            match LIMIT.compare_exchange(0, limit, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => limit,
                Err(set) => set,
            }
        }
        limit => limit,
    }
}

/// For tests: another limit than the kernel's. The process is counted anew.
#[doc(hidden)]
pub fn set_limit(limit: u64) {
    LIMIT.store(limit, Ordering::Relaxed);
    NEXT.store(0, Ordering::Relaxed);
}

/// Notes that a call of this crate may have made two mappings of one. Async-signal-safe.
#[inline]
pub(crate) fn made() {
    MADE.fetch_add(2, Ordering::Relaxed);
}

/// Before the protection of a part of a range changes, which may make two mappings: how finely it
/// may. Async-signal-safe.
#[must_use]
pub fn fineness() -> Fineness {
    let limit = limit();
    let estimate = estimate(2, limit / 2);
    if estimate <= limit / 2 {
        Fineness::Page
    } else if estimate <= limit / 4 * 3 {
        Fineness::Chunk
    } else {
        Fineness::Whole
    }
}

/// Before something is mapped, which makes as many mappings as `more`: nothing is half mapped then.
///
/// # Errors
/// There is no room for them beside what the program needs itself.
pub fn room(more: u64) -> Result<(), Full> {
    let limit = limit();
    let most = limit / 8 * 7;
    let mut mappings = estimate(more, most);
    if mappings > most {
        // A call is refused by what is there now.
        mappings = recount().map_or(mappings, |now| now.saturating_add(more));
    }
    if mappings <= most { Ok(()) } else { Err(Full { mappings, limit }) }
}

/// Mappings of the process with `more`; counted anew if that would be more than `enough`, or the
/// last count is old.
fn estimate(more: u64, enough: u64) -> u64 {
    let made = MADE.load(Ordering::Relaxed);
    let estimate = COUNTED.load(Ordering::Relaxed).saturating_add(made).saturating_add(more);
    let next = NEXT.load(Ordering::Relaxed);
    if made < next.min(COUNT_AFTER) || (made < next && estimate <= enough) {
        return estimate;
    }
    recount().map_or(estimate, |mappings| mappings.saturating_add(more))
}

/// Counts anew; `None` as of [`count`].
fn recount() -> Option<u64> {
    static BUSY: AtomicBool = AtomicBool::new(false);
    if BUSY.swap(true, Ordering::Acquire) {
        return None;
    }
    let made = MADE.load(Ordering::Relaxed);
    let mappings = count();
    if let Some(mappings) = mappings {
        COUNTED.store(mappings, Ordering::Relaxed);
        // What was made while it was counted stays, and may count twice.
        MADE.fetch_sub(made, Ordering::Relaxed);
        NEXT.store(COUNT_EVERY, Ordering::Relaxed);
    }
    BUSY.store(false, Ordering::Release);
    mappings
}

/// Mappings of the process, counted; `None` if they cannot be, or another thread is doing it.
/// Async-signal-safe.
#[must_use]
pub fn count() -> Option<u64> {
    struct Buffer(UnsafeCell<[u8; 16 << 10]>);
    // SAFETY: used only by the thread that has set `BUSY`.
    unsafe impl Sync for Buffer {}
    static BUFFER: Buffer = Buffer(UnsafeCell::new([0; 16 << 10]));
    static BUSY: AtomicBool = AtomicBool::new(false);
    if BUSY.swap(true, Ordering::Acquire) {
        return None;
    }
    // SAFETY: this thread has set `BUSY`, so no other uses the buffer, and no handler on this one.
    let buffer = unsafe { &mut *BUFFER.0.get() };
    let mut lines = 0;
    let whole = read(c"/proc/self/maps", buffer, |bytes| {
        lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    });
    BUSY.store(false, Ordering::Release);
    (whole && lines > 0).then_some(lines)
}

/// Reads a file, piece by piece; `false`: not to its end. Allocates nothing.
fn read(path: &core::ffi::CStr, buffer: &mut [u8], mut piece: impl FnMut(&[u8])) -> bool {
    // SAFETY: a path that ends with zero; the descriptor is closed below.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return false;
    }
    let whole = loop {
        // SAFETY: the buffer is this call's to write.
        let got = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(got) {
            Ok(0) => break true,
            Ok(got) => piece(&buffer[..got]),
            // SAFETY: errno's place is this thread's.
            Err(_) if unsafe { *libc::__errno_location() } == libc::EINTR => {}
            Err(_) => break false,
        }
    };
    // SAFETY: opened above, and used by nothing else.
    unsafe { libc::close(fd) };
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> u64 {
        std::fs::read_to_string("/proc/self/maps").expect("readable").lines().count() as u64
    }

    #[test]
    fn the_process_is_counted_as_the_kernel_lists_it() {
        // Other tests map and unmap meanwhile.
        let near = |count: u64| count.abs_diff(lines()) < 64;
        assert!((0..100).any(|_| count().is_some_and(near)), "{:?} {}", count(), lines());
        let kernels = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("readable");
        assert_eq!(limit(), kernels.trim().parse::<u64>().expect("a number"));
    }

    #[test]
    fn a_full_process_is_told_what_to_do() {
        let said = io::Error::from(Full { mappings: 60_000, limit: 65_530 }).to_string();
        assert!(
            said.contains("60000") && said.contains("sysctl -w vm.max_map_count=262120"),
            "{said}"
        );
    }
}
