//! For processors without instructions that this crate knows: plain stores, no flush, the
//! language's release fence.
//!
//! Nothing written this way is known to reach persistent memory; [`super::flush_instruction`] says
//! `None` here, and the layers above then offer no `power` durability in direct mode.
//!
//! # Safety argument
//!
//! Stores are atomic 8-byte stores into memory that the caller vouches for.

use super::CpuFeatures;
use core::sync::atomic::{AtomicU64, Ordering};

pub(super) fn detect() -> CpuFeatures {
    CpuFeatures::default()
}

/// The processor's own name for itself, for a report.
#[must_use]
pub fn model_name() -> String {
    let from_cpuinfo = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        text.lines().find_map(|line| {
            line.strip_prefix("model name")?.split(':').nth(1).map(|v| v.trim().to_owned())
        })
    });
    from_cpuinfo.unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

/// Nothing: no flush instruction is known here.
///
/// # Safety
/// None needed; `unsafe` as on x86-64.
#[inline(always)]
pub unsafe fn clwb(_p: *const u8) {}

/// Nothing: no flush instruction is known here.
///
/// # Safety
/// None needed; `unsafe` as on x86-64.
#[inline(always)]
pub unsafe fn clflushopt(_p: *const u8) {}

/// Nothing: no flush instruction is known here.
///
/// # Safety
/// None needed; `unsafe` as on x86-64.
#[inline(always)]
pub unsafe fn clflush(_p: *const u8) {}

/// A release fence: earlier accesses before later stores.
#[inline(always)]
pub fn sfence() {
    core::sync::atomic::fence(Ordering::Release);
}

/// Writes `v` with a plain 8-byte store.
///
/// # Safety
/// `dst` is valid for a write, 8-byte aligned, and not accessed concurrently by other than atomic
/// means.
#[inline(always)]
pub unsafe fn stream_u64(dst: *mut u64, v: u64) {
    debug_assert!(dst.is_aligned(), "stream_u64 to an unaligned address");
    // SAFETY: the caller vouches for the address; an atomic store is never torn.
    unsafe { AtomicU64::from_ptr(dst) }.store(v, Ordering::Relaxed);
}

/// Copies `len` bytes with plain 8-byte stores, none of which is torn.
///
/// # Safety
/// * `src` is valid for reads and `dst` for writes of `len` bytes; they do not overlap;
/// * `dst` is 8-byte aligned and `len` a multiple of 8 (checked in debug builds).
#[inline(always)]
pub unsafe fn stream_copy(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(
        dst.addr().is_multiple_of(8),
        "stream_copy to an address that is not a multiple of 8"
    );
    debug_assert!(len.is_multiple_of(8), "stream_copy of a length that is not a multiple of 8");
    let mut at = 0;
    while at < len {
        // SAFETY: at + 8 <= len, since both are multiples of 8.
        unsafe { stream_u64(dst.add(at).cast(), src.add(at).cast::<u64>().read_unaligned()) };
        at += 8;
    }
}
