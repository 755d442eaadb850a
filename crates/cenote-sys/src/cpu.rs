//! Processor features, cache-line flushes, store fences and non-temporal stores.
//!
//! The persistency argument of the layers above rests on these facts (x86-64):
//!
//! * a line is in the persistence domain once a flush ([`clwb`], [`clflushopt`], [`clflush`]) of
//!   it, issued after the store, is followed by [`sfence`];
//! * a non-temporal store ([`stream_copy`], [`stream_u64`]) needs no flush, only the [`sfence`];
//! * an aligned 8-byte store, temporal or not, is never torn. [`stream_copy`] writes with stores of
//!   8 bytes or wider at addresses aligned to their width, so no 8-byte word of it is torn either.
//!
//! # Safety argument
//!
//! Flushes and streams take raw pointers and are `unsafe`: the caller vouches that the bytes are
//! mapped (and, for a stream, writable and not otherwise accessed at the time). Wide registers are
//! used only after the CPU *and* the operating system were seen to support them. The flush
//! instructions beyond `clflush` must only be executed where [`features`] names them;
//! [`flush_instruction`] chooses. Non-temporal stores lie outside the language's memory model until
//! the next [`sfence`] of the same thread, hence the contract of [`stream_copy`]. The assembly
//! carries memory clobbers, so that the compiler moves no store across a flush or a fence.

use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

/// Bytes of a cache line on every processor with a flush instruction that is used here.
pub const LINE_BYTES: usize = 64;

/// An instruction that writes a cache line back to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FlushInstruction {
    /// `clwb`: writes the line back and may keep it in the cache. Weakly ordered.
    Clwb,
    /// `clflushopt`: writes the line back and drops it. Weakly ordered.
    ClflushOpt,
    /// `clflush`: writes the line back and drops it, one after the other.
    Clflush,
    /// No instruction of which this crate knows that it reaches persistent memory: not x86-64.
    None,
}

impl FlushInstruction {
    /// The instruction's mnemonic, or `"none"`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::None => "none",
        }
    }
}

impl core::fmt::Display for FlushInstruction {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// What the processor can do, as far as Cenote cares. All false on other processors than x86-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuFeatures {
    /// `clwb` exists.
    pub clwb: bool,
    /// `clflushopt` exists.
    pub clflushopt: bool,
    /// `clflush` exists.
    pub clflush: bool,
    /// `movdir64b` exists: a 64-byte store that is never torn.
    pub movdir64b: bool,
    /// AVX2 exists and the operating system saves its registers.
    pub avx2: bool,
    /// AVX-512F exists and the operating system saves its registers.
    pub avx512f: bool,
    /// The processor has protection keys for user pages.
    pub pku: bool,
    /// The operating system has switched protection keys on.
    pub ospke: bool,
    /// `rdpid` exists.
    pub rdpid: bool,
}

impl CpuFeatures {
    /// Name and presence of every feature, for a report.
    #[must_use]
    pub const fn list(&self) -> [(&'static str, bool); 9] {
        [
            ("clwb", self.clwb),
            ("clflushopt", self.clflushopt),
            ("clflush", self.clflush),
            ("movdir64b", self.movdir64b),
            ("avx2", self.avx2),
            ("avx512f", self.avx512f),
            ("pku", self.pku),
            ("ospke", self.ospke),
            ("rdpid", self.rdpid),
        ]
    }
}

/// Keeps the compiler from leaving out a store before this, and from moving one across. No
/// instruction is executed. Stronger than a compiler fence, which may still drop a plain store that
/// a later one overwrites.
#[inline(always)]
pub fn compiler_barrier() {
    // Miri runs no assembly, and reorders nothing.
    #[cfg(not(miri))]
    // SAFETY: no instruction; without options the assembler block counts as reading and writing
    // all memory.
    unsafe {
        core::arch::asm!("", options(nostack, preserves_flags))
    };
}

/// The features of this processor, looked up once.
pub fn features() -> &'static CpuFeatures {
    static FEATURES: OnceLock<CpuFeatures> = OnceLock::new();
    FEATURES.get_or_init(detect)
}

/// The best flush instruction of this processor; one load after the first call.
#[must_use]
#[inline]
pub fn flush_instruction() -> FlushInstruction {
    match FLUSH.load(Ordering::Relaxed) {
        1 => FlushInstruction::Clwb,
        2 => FlushInstruction::ClflushOpt,
        3 => FlushInstruction::Clflush,
        4 => FlushInstruction::None,
        _ => choose_flush_instruction(),
    }
}

/// 0: not chosen yet; otherwise the position in [`FlushInstruction`] plus one.
static FLUSH: AtomicU8 = AtomicU8::new(0);

#[cold]
fn choose_flush_instruction() -> FlushInstruction {
    let features = features();
    let (code, choice) = if features.clwb {
        (1, FlushInstruction::Clwb)
    } else if features.clflushopt {
        (2, FlushInstruction::ClflushOpt)
    } else if features.clflush {
        (3, FlushInstruction::Clflush)
    } else {
        (4, FlushInstruction::None)
    };
    FLUSH.store(code, Ordering::Relaxed);
    choice
}

#[cfg(target_arch = "x86_64")]
use x86_64::detect;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{clflush, clflushopt, clwb, model_name, sfence, stream_copy, stream_u64};

#[cfg(not(target_arch = "x86_64"))]
use portable::detect;
#[cfg(not(target_arch = "x86_64"))]
pub use portable::{clflush, clflushopt, clwb, model_name, sfence, stream_copy, stream_u64};

#[cfg(any(test, not(target_arch = "x86_64")))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code, unreachable_pub))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(test)]
mod tests;
