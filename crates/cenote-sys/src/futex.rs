//! Puts a thread to sleep on a word that several processes share, and wakes the threads that sleep
//! there.
//!
//! The words are 64 bits wide, and the kernel compares 32: the lower half, which is the one at the
//! word's address on every machine that this compiles for. Every sleep has a time limit, because
//! the process that should end it may be dead.
//!
//! # Safety argument
//!
//! Only the address of the word goes to the kernel, which reads it as it reads any memory of this
//! process. The narrower reference is not read through here.
//!
//! Under Miri the calls are made by the C library, with the types that Miri wants.

use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use rustix::io::Errno;
#[cfg(not(miri))]
use rustix::thread::futex as kernel;
use rustix::thread::futex::{Flags, Timespec};

#[cfg(target_endian = "big")]
compile_error!("the lower half of a word is at its address on little-endian machines only");

fn half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: aligned and as long-lived as the word that it is half of; nothing is accessed through
    // it in this process, see the module's head.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

/// Sleeps while the lower half of the word is that of `seen`, for `patience` at most. Returns
/// whether that time is over, or a signal came; it may also return early.
#[must_use]
pub fn sleep(word: &AtomicU64, seen: u64, patience: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    // Without `PRIVATE`: the sleeper and the waker may be different processes.
    let slept = kernel::wait(half(word), Flags::empty(), seen as u32, Some(&timeout));
    matches!(slept, Err(Errno::TIMEDOUT | Errno::INTR))
}

/// Wakes all threads that sleep on the word, in any process.
pub fn wake_all(word: &AtomicU64) {
    let _ = kernel::wake(half(word), Flags::empty(), i32::MAX as u32);
}

/// Sleeps while the word is `seen`; for words of one process. Woken, changed meanwhile, or
/// interrupted by a signal: the caller looks again in all cases.
pub(crate) fn sleep_here(word: &AtomicU32, seen: u32) {
    let _ = kernel::wait(word, Flags::PRIVATE, seen, None);
}

/// Wakes all threads of this process that sleep on the word.
pub(crate) fn wake_here(word: &AtomicU32) {
    let _ = kernel::wake(word, Flags::PRIVATE, i32::MAX as u32);
}

/// The system calls, with the types that Miri wants.
#[cfg(miri)]
mod kernel {
    use super::{AtomicU32, Errno, Flags, Timespec};

    fn answer(result: libc::c_long) -> Result<(), Errno> {
        if result >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error().raw_os_error();
        Err(Errno::from_raw_os_error(error.unwrap_or(0)))
    }

    pub(super) fn wait(
        word: &AtomicU32,
        flags: Flags,
        seen: u32,
        timeout: Option<&Timespec>,
    ) -> Result<(), Errno> {
        let until =
            timeout.map(|time| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
        let until = until.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let operation = libc::FUTEX_WAIT | flags.bits() as libc::c_int;
        // SAFETY: a word and a time that live through the call.
        answer(unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, until) })
    }

    pub(super) fn wake(word: &AtomicU32, flags: Flags, count: u32) -> Result<(), Errno> {
        let operation = libc::FUTEX_WAKE | flags.bits() as libc::c_int;
        // SAFETY: a word that lives through the call.
        answer(unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering;
    use std::time::Instant;

    #[test]
    fn a_sleeper_is_woken_or_wakes_when_its_time_is_over() {
        let word = AtomicU64::new(1 << 40 | 7);
        let began = Instant::now();
        assert!(sleep(&word, 1 << 40 | 7, Duration::from_millis(20)), "it was woken");
        assert!(began.elapsed() >= Duration::from_millis(20));
        assert!(!sleep(&word, 8, Duration::from_secs(60)), "the word is another one already");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::SeqCst) == 1 << 40 | 7 {
                    let _ = sleep(&word, 7, Duration::from_secs(60));
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            word.store(0, Ordering::SeqCst);
            wake_all(&word);
        });
    }
}
