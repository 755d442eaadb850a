//! Tells a process from the child that it forked.
//!
//! A store's mappings and locks do not follow `fork`: windows are left out of the child and record
//! locks stay with the parent. A child that goes on using the parent's handles must be refused, on
//! every operation, for the price of one load. So a word lives in a page that the kernel empties in
//! a child (`MADV_WIPEONFORK`, Linux 4.14); it holds a *token*, a random non-zero number of the
//! process that armed it.
//!
//! A handle remembers the token of its process and compares. A child may arm the guard anew, gets a
//! token of its own, and handles that it inherited still do not match.
//!
//! Where the kernel cannot empty the page, a fork handler of the C library does it; children made
//! by a raw `clone` without the C library then go unnoticed.
//!
//! # Safety argument
//!
//! The page is mapped once, never unmapped, read-write and zero at first, so a `&'static AtomicU64`
//! into it is valid for ever. The kernel's emptying happens in the child before its first
//! instruction, so no thread sees it midway.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Used where there is no page; emptied by the fork handler.
static FALLBACK: AtomicU64 = AtomicU64::new(0);

/// The word before one was asked for; stays zero.
static UNARMED: AtomicU64 = AtomicU64::new(0);

/// Where the word is. No `OnceLock`: a child forked while another thread is inside its
/// initialisation would wait for ever.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const UNARMED).cast_mut());

#[inline]
fn word() -> &'static AtomicU64 {
    // SAFETY: a word that lives for ever; accessed as an atomic alone.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// The word: non-zero (the token) in the process that armed it, zero in a forked child that has not
/// armed it anew.
///
/// Arms it if it is not armed. Not public: a program that stores to the word makes inherited
/// handles those of the child.
fn armed() -> &'static AtomicU64 {
    let word = if ptr::eq(word(), &UNARMED) { make_word() } else { word() };
    if word.load(Ordering::Acquire) == 0 {
        // Two threads may race: the first one's token stands.
        let _ = word.compare_exchange(0, fresh_token(), Ordering::AcqRel, Ordering::Acquire);
    }
    word
}

/// Arms the guard if need be and returns this process's token: neither zero nor `u64::MAX`.
#[must_use]
pub fn token() -> u64 {
    armed().load(Ordering::Acquire)
}

/// Whether this process is the one that got `token` (two dependent loads). Arms nothing,
/// allocates nothing: may be called in a signal handler.
#[must_use]
#[inline]
pub fn is_current(token: u64) -> bool {
    token != 0 && current() == token
}

/// This process's token, or zero if it has not armed the guard. May be called in a signal handler.
#[must_use]
#[inline]
pub fn current() -> u64 {
    word().load(Ordering::Acquire)
}

/// Whether the guard is emptied by the kernel (and not by the C library's fork handler). For a
/// report.
#[must_use]
pub fn is_kernel_backed() -> bool {
    !ptr::eq(armed(), &FALLBACK)
}

#[cold]
fn make_word() -> &'static AtomicU64 {
    // Miri does not fork.
    let mine = if cfg!(miri) { Some(&FALLBACK) } else { wiped_page() }.unwrap_or_else(|| {
        // SAFETY: the handler is a plain function that stores to a static; it may run in a child of
        // any thread.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(empty_fallback)) };
        &FALLBACK
    });
    let offered = ptr::from_ref(mine).cast_mut();
    let unarmed = (&raw const UNARMED).cast_mut();
    match WORD.compare_exchange(unarmed, offered, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => mine,
        // Another thread was first; the page that lost stays mapped, once in the life of a process.
        Err(_) => word(),
    }
}

extern "C" fn empty_fallback() {
    FALLBACK.store(0, Ordering::Release);
}

fn wiped_page() -> Option<&'static AtomicU64> {
    let len = rustix::param::page_size();
    // SAFETY: a new private anonymous mapping wherever the kernel likes disturbs no other memory.
    let page = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .ok()?;
    // SAFETY: the page was mapped just now; nothing lives in it.
    if unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: mapped just now, not handed out.
        let _ = unsafe { rustix::mm::munmap(page, len) };
        return None;
    }
    Some(word_in(page))
}

fn word_in(page: *mut c_void) -> &'static AtomicU64 {
    // SAFETY: page-aligned, zero filled, readable and writable, and never unmapped from here on.
    unsafe { AtomicU64::from_ptr(page.cast()) }
}

/// Random, so that a grandchild with a recycled process number still differs from its ancestors.
fn fresh_token() -> u64 {
    let mut bytes = [0; 8];
    let random = crate::random::fill_random(&mut bytes).is_ok();
    let token = if random {
        u64::from_le_bytes(bytes)
    } else {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| u64::from(since.subsec_nanos()) ^ since.as_secs().rotate_left(32));
        nanos ^ u64::from(std::process::id()).rotate_left(40)
    };
    token.clamp(1, u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    #[test]
    fn a_forked_child_sees_zero_and_its_parent_does_not() {
        let token = token();
        assert_ne!(token, 0);
        assert!(is_current(token));
        let word = armed();
        let seen = in_child(|| {
            i32::from(word.load(Ordering::Acquire) != 0) + 2 * i32::from(is_current(token))
        });
        assert_eq!(seen, 0, "the child took itself for its parent");
        assert_eq!(word.load(Ordering::Acquire), token);
    }

    #[test]
    fn a_child_that_arms_anew_gets_another_token() {
        let before = token();
        let seen = in_child(|| {
            let mine = token();
            i32::from(mine == 0 || mine == before || is_current(before) || !is_current(mine))
        });
        assert_eq!(seen, 0);
        assert!(is_current(before));
    }

    #[test]
    fn zero_is_nobodys_token() {
        assert!(!is_current(0));
    }
}
