//! Where padding is, for Miri.
//!
//! Miri runs no assembly, and the language has no other way to give an uninitialised byte a value
//! without knowing which one it is. So a test names the padding of its values. What makes numbers
//! of bytes stores zeros there, and nowhere else. Miri reports a path that reads padding without
//! that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Address and length.
static PADDING: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
/// Whether there is any. Relaxed, so that no thread waits for another where no test names padding:
/// that would hide races.
static ANY: AtomicBool = AtomicBool::new(false);

/// From now on these bytes count as padding.
///
/// # Safety
/// As long as the program runs, they hold values that have padding there.
pub unsafe fn name_padding(at: *const u8, len: usize) {
    PADDING.lock().unwrap_or_else(PoisonError::into_inner).push((at.addr(), len));
    ANY.store(true, Ordering::Relaxed);
}

/// Gives padding of `[addr, addr + len)` a value, in that memory or in a copy, which begins at
/// `place`.
///
/// # Safety
/// The caller may store `len` bytes at `place`.
pub(super) unsafe fn settle(addr: usize, place: *mut u8, len: usize) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    for &(start, bytes) in &*PADDING.lock().unwrap_or_else(PoisonError::into_inner) {
        let (first, end) = (start.max(addr), (start + bytes).min(addr + len));
        if first < end {
            // SAFETY: inside the `len` bytes.
            unsafe { place.add(first - addr).write_bytes(0, end - first) };
        }
    }
}
