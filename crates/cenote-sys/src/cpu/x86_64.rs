//! The x86-64 versions: `clwb` and its elders, `sfence`, and stores past the caches.
//!
//! # Safety argument
//!
//! See [`super`]. 256- and 512-bit stores are behind the detection of the standard library, which
//! also asks the operating system; the flush instructions are the caller's to choose by
//! [`features`].

use super::{CpuFeatures, LINE_BYTES, features};
use core::arch::asm;
use core::arch::x86_64::{
    __cpuid, __cpuid_count, __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si64,
    _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512,
    _mm512_stream_si512,
};
use core::sync::atomic::{AtomicU8, Ordering};

/// From this length on, [`stream_copy`] uses the widest registers; below, 8-byte stores are
/// inlined.
pub(super) const WIDE_FROM_BYTES: usize = 256;

// `__cpuid` became a safe function after the oldest compiler that is supported.
#[allow(unused_unsafe)]
fn cpuid(leaf: u32, subleaf: u32) -> core::arch::x86_64::CpuidResult {
    // SAFETY: every x86-64 processor has the instruction; a leaf beyond the last one yields some
    // other leaf's values, which the callers exclude by asking for the last one first.
    unsafe { __cpuid_count(leaf, subleaf) }
}

pub(super) fn detect() -> CpuFeatures {
    #[allow(unused_unsafe)]
    // SAFETY: leaf 0 exists wherever the instruction does.
    let last = unsafe { __cpuid(0) }.eax;
    let one = cpuid(1, 0);
    let bit = |register: u32, n: u32| register & (1 << n) != 0;
    let mut found = CpuFeatures { clflush: bit(one.edx, 19), ..CpuFeatures::default() };
    if last >= 7 {
        let seven = cpuid(7, 0);
        found.clwb = bit(seven.ebx, 24);
        found.clflushopt = bit(seven.ebx, 23);
        found.pku = bit(seven.ecx, 3);
        found.ospke = bit(seven.ecx, 4);
        found.rdpid = bit(seven.ecx, 22);
        found.movdir64b = bit(seven.ecx, 28);
    }
    // The library's detection also asks whether the operating system saves the registers.
    found.avx2 = std::arch::is_x86_feature_detected!("avx2");
    found.avx512f = std::arch::is_x86_feature_detected!("avx512f");
    found
}

/// The processor's own name for itself, for a report.
#[must_use]
pub fn model_name() -> String {
    if cpuid(0x8000_0000, 0).eax < 0x8000_0004 {
        return String::from("x86-64 processor without a name");
    }
    let mut bytes = Vec::with_capacity(48);
    for leaf in 0x8000_0002..=0x8000_0004_u32 {
        let part = cpuid(leaf, 0);
        for register in [part.eax, part.ebx, part.ecx, part.edx] {
            bytes.extend_from_slice(&register.to_le_bytes());
        }
    }
    bytes.retain(|&b| b != 0);
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// Starts writing back the line that holds `p`, and may keep it cached. Done at the next
/// [`sfence`].
///
/// # Safety
/// `p` is mapped readable, and [`features`] names `clwb` (elsewhere the instruction may be
/// undefined, or do nothing).
#[inline(always)]
pub unsafe fn clwb(p: *const u8) {
    // SAFETY: the caller vouches for the address and the feature; the instruction changes no data.
    unsafe { asm!("clwb [{}]", in(reg) p, options(nostack, preserves_flags)) }
}

/// Starts writing back the line that holds `p` and drops it from the caches. Done at the next
/// [`sfence`].
///
/// # Safety
/// `p` is mapped readable, and [`features`] names `clflushopt`.
#[inline(always)]
pub unsafe fn clflushopt(p: *const u8) {
    // SAFETY: the caller vouches for the address and the feature; the instruction changes no data.
    unsafe { asm!("clflushopt [{}]", in(reg) p, options(nostack, preserves_flags)) }
}

/// Writes back the line that holds `p` and drops it from the caches; ordered with stores and other
/// `clflush`.
///
/// # Safety
/// `p` is mapped readable, and [`features`] names `clflush` (every x86-64 processor that was ever
/// sold does).
#[inline(always)]
pub unsafe fn clflush(p: *const u8) {
    // SAFETY: the caller vouches for the address; the instruction changes no data.
    unsafe { asm!("clflush [{}]", in(reg) p, options(nostack, preserves_flags)) }
}

/// Orders every earlier store, flush and non-temporal store of this thread before every later
/// store, for the processor and for the compiler. After flush and fence, a line is in the
/// persistence domain.
#[inline(always)]
pub fn sfence() {
    // SAFETY: a fence has no operands. Not `nomem`: the compiler must keep memory accesses on their
    // side.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}

/// Writes `v` past the caches; durable after the next [`sfence`].
///
/// # Safety
/// `dst` is valid for a write, 8-byte aligned, not accessed concurrently; and this thread executes
/// [`sfence`] before anything reads the word (see [`stream_copy`]).
#[inline(always)]
pub unsafe fn stream_u64(dst: *mut u64, v: u64) {
    debug_assert!(dst.is_aligned(), "stream_u64 to an unaligned address");
    // SAFETY: the caller vouches for the address; SSE2 is part of x86-64.
    unsafe { _mm_stream_si64(dst.cast(), v.cast_signed()) }
}

/// Copies `len` bytes past the caches with non-temporal stores; durable after the next [`sfence`].
/// No fence inside.
///
/// Short copies are an inlined loop of 8-byte stores; from 256 bytes on the widest stores of the
/// processor are used: 512, 256 or 128 bits.
///
/// # Safety
/// * `src` is valid for reads and `dst` for writes of `len` bytes; they do not overlap; no other
///   thread accesses `dst` at the time;
/// * `dst` is 8-byte aligned and `len` a multiple of 8 (checked in debug builds); `src` needs no
///   alignment;
/// * this thread executes [`sfence`] before it reads the bytes again and before it lets another
///   thread know of them: non-temporal stores are not ordered with other stores.
#[inline(always)]
pub unsafe fn stream_copy(dst: *mut u8, src: *const u8, len: usize) {
    debug_assert!(
        dst.addr().is_multiple_of(8),
        "stream_copy to an address that is not a multiple of 8"
    );
    debug_assert!(len.is_multiple_of(8), "stream_copy of a length that is not a multiple of 8");
    if len < WIDE_FROM_BYTES {
        // SAFETY: handed on to the caller.
        unsafe { stream_words(dst, src, len) }
    } else {
        // SAFETY: handed on to the caller.
        unsafe { stream_wide(dst, src, len) }
    }
}

/// # Safety
/// As [`stream_copy`].
#[inline(always)]
unsafe fn stream_words(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at + 8 <= len, since both are multiples of 8; dst + at is aligned as dst is.
        unsafe { _mm_stream_si64(dst.add(at).cast(), src.add(at).cast::<i64>().read_unaligned()) };
        at += 8;
    }
}

/// 0: not chosen; 1: 128-bit; 2: 256-bit; 3: 512-bit.
static WIDTH: AtomicU8 = AtomicU8::new(0);

/// # Safety
/// As [`stream_copy`].
#[inline(never)]
unsafe fn stream_wide(dst: *mut u8, src: *const u8, len: usize) {
    // Words up to the next line, whole lines, words again.
    let head = dst.addr().wrapping_neg() % LINE_BYTES;
    let head = head.min(len);
    let lines = (len - head) / LINE_BYTES * LINE_BYTES;
    // SAFETY: the three parts lie one after the other in [0, len); each is a multiple of 8 long;
    // the middle begins at a line of dst. Each wide version is called only where its registers
    // exist.
    unsafe {
        stream_words(dst, src, head);
        let (middle_dst, middle_src) = (dst.add(head), src.add(head));
        match WIDTH.load(Ordering::Relaxed) {
            3 => stream_lines_512(middle_dst, middle_src, lines),
            2 => stream_lines_256(middle_dst, middle_src, lines),
            1 => stream_lines_128(middle_dst, middle_src, lines),
            _ => match choose_width() {
                3 => stream_lines_512(middle_dst, middle_src, lines),
                2 => stream_lines_256(middle_dst, middle_src, lines),
                _ => stream_lines_128(middle_dst, middle_src, lines),
            },
        }
        let done = head + lines;
        stream_words(dst.add(done), src.add(done), len - done);
    }
}

#[cold]
fn choose_width() -> u8 {
    let features = features();
    let width = if features.avx512f {
        3
    } else if features.avx2 {
        2
    } else {
        1
    };
    WIDTH.store(width, Ordering::Relaxed);
    width
}

/// # Safety
/// As [`stream_copy`]; `dst` is line-aligned, `len` a multiple of a line, and AVX-512F is there.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn stream_lines_512(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: at + what is copied never exceeds len; dst + at is a multiple of 64.
    unsafe {
        while at + 4 * LINE_BYTES <= len {
            let from = src.add(at).cast::<__m512i>();
            let to = dst.add(at).cast::<__m512i>();
            let (a, b, c, d) = (
                _mm512_loadu_si512(from),
                _mm512_loadu_si512(from.add(1)),
                _mm512_loadu_si512(from.add(2)),
                _mm512_loadu_si512(from.add(3)),
            );
            _mm512_stream_si512(to, a);
            _mm512_stream_si512(to.add(1), b);
            _mm512_stream_si512(to.add(2), c);
            _mm512_stream_si512(to.add(3), d);
            at += 4 * LINE_BYTES;
        }
        while at < len {
            _mm512_stream_si512(dst.add(at).cast(), _mm512_loadu_si512(src.add(at).cast()));
            at += LINE_BYTES;
        }
    }
}

/// # Safety
/// As [`stream_copy`]; `dst` is line-aligned, `len` a multiple of a line, and AVX2 is there.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn stream_lines_256(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: at + a line never exceeds len; dst + at is a multiple of 64.
    unsafe {
        while at < len {
            let from = src.add(at).cast::<__m256i>();
            let to = dst.add(at).cast::<__m256i>();
            let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            _mm256_stream_si256(to, a);
            _mm256_stream_si256(to.add(1), b);
            at += LINE_BYTES;
        }
    }
}

/// # Safety
/// As [`stream_copy`]; `dst` is line-aligned and `len` a multiple of a line.
pub(super) unsafe fn stream_lines_128(dst: *mut u8, src: *const u8, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: at + 16 never exceeds len; dst + at is a multiple of 16; SSE2 is part of x86-64.
        unsafe {
            let value = _mm_loadu_si128(src.add(at).cast::<__m128i>());
            _mm_stream_si128(dst.add(at).cast(), value);
        }
        at += 16;
    }
}
