//! The atomics of the kernel, and how marks are read many at a time. The model checker has its own
//! version of this file.
//!
//! Eight marks are read as one word. The language's memory model says nothing of atomic accesses of
//! different sizes to one place. Every machine that this project runs on reads each byte of an
//! aligned word as some value that was stored to that byte, no older than what the reader has
//! synchronised with. The kernel asks for no more.

pub(crate) use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// How often a thread that waits for a lock between processes looks before it sleeps.
pub(crate) const LOOKS: u32 = 100;
/// How long it sleeps at most before it asks whether the owner lives.
const PATIENCE: core::time::Duration = core::time::Duration::from_millis(5);

/// Sleeps while the word is as it was seen. Whether it is time to ask.
pub(crate) fn sleep(word: &AtomicU64, seen: u64) -> bool {
    cenote_sys::futex::sleep(word, seen, PATIENCE)
}

pub(crate) use cenote_sys::futex::wake_all;

/// Looks again soon.
pub(crate) fn pause() {
    core::hint::spin_loop();
}

/// Marks that are read together.
pub(crate) const STEP: usize = 8;

const ONES: u64 = 0x0101_0101_0101_0101;

/// Bit `i` for each mark `at + i` that has this value, `STEP` of them. `at` is a multiple of that;
/// marks begin at a multiple of 64, and padding up to a multiple of 8 follows.
#[inline]
pub(crate) fn equal(marks: &[AtomicU8], at: usize, value: u8) -> u64 {
    let place = &raw const marks[at];
    debug_assert!(place.addr().is_multiple_of(8));
    // SAFETY: the word is aligned and mapped, see above. About mixed sizes see the file's head.
    let word = unsafe { (*place.cast::<AtomicU64>()).load(Ordering::Acquire) };
    let x = word ^ ONES.wrapping_mul(u64::from(value));
    // The high bit of each byte that is zero in `x`, exactly; then those bits side by side.
    let zero = !(((x & !(ONES << 7)) + !(ONES << 7)) | x) & (ONES << 7);
    (zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// Stores a value to `STEP` marks that all belong to this thread; `at` as above, and all of them
/// exist.
#[inline]
pub(crate) fn fill(marks: &[AtomicU8], at: usize, value: u8) {
    let place = &raw const marks[at];
    // SAFETY: as in `equal`.
    unsafe {
        (*place.cast::<AtomicU64>()).store(ONES.wrapping_mul(u64::from(value)), Ordering::Relaxed)
    }
}
