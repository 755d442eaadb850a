//! How stores into a medium are made durable: flush, fence, stream.
//!
//! At `power` a store is durable once its line was flushed (or written by a streaming store) and a
//! fence followed. At `process` the kernel keeps the pages when the process dies. So order alone
//! counts: a compiler barrier, and no instruction at all. Which of the two is one byte, tested
//! inline; everything else is out of line, because what it does takes a hundred times as long as
//! the call.

use core::fmt;
use core::str::FromStr;

use cenote_layout::LINE_SIZE;

use crate::counters;
use crate::hook::{self, SimSlot};

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Any crash of processes, `SIGKILL` included. Not loss of power, nor a crash of the kernel.
    Process,
    /// Loss of power and kernel crashes as well.
    Power,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Process => "process",
            Self::Power => "power",
        })
    }
}

/// A text that names no durability level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a durability level: use `process` or `power`")]
pub struct UnknownDurability {
    text: String,
}

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(text: &str) -> Result<Self, UnknownDurability> {
        match text {
            "process" => Ok(Self::Process),
            "power" => Ok(Self::Power),
            _ => Err(UnknownDurability { text: text.to_owned() }),
        }
    }
}

/// Instructions that a [`Persistence`] executes. Ordered: everything from `Fences` on is `power`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Mode {
    /// Order only, kept by the compiler.
    Process,
    /// Nothing but calls to the simulation.
    SimulatedProcess,
    /// Caches are in the power-fail domain (eADR): fences, no flushes.
    Fences,
    /// Flush by the best instruction of this processor.
    Flushes,
    /// Calls to the simulation, counted.
    SimulatedPower,
}

/// How stores into one medium are made durable at one level. Two bytes, `Copy`; made by
/// [`Medium::persistence`](crate::Medium::persistence).
///
/// Any thread may use a copy, and a fence covers the flushes and streams of the thread that
/// executes it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Persistence {
    mode: Mode,
    slot: u8,
}

/// Streams up to this length are copied word by word at `process`: shorter than the call of a
/// memory copy.
const WORD_COPY_MAX: usize = 256;

impl Persistence {
    /// Never flushes and never fences: order of stores is all that a crash of processes needs.
    pub const PROCESS: Self = Self { mode: Mode::Process, slot: 0 };

    /// Flushes with the best instruction of this processor, and fences. Where this build knows no
    /// flush instruction (another architecture than x86-64) only fences: such a medium does not
    /// claim `power`.
    #[must_use]
    pub fn power() -> Self {
        match cenote_sys::cpu::flush_instruction() {
            cenote_sys::cpu::FlushInstruction::None => Self::fence_only(),
            _ => Self { mode: Mode::Flushes, slot: 0 },
        }
    }

    /// For machines whose caches survive loss of power (eADR): fences, no flushes.
    #[must_use]
    pub fn fence_only() -> Self {
        Self { mode: Mode::Fences, slot: 0 }
    }

    /// For a simulated medium: every call reaches the hook that took `slot`. Counted at `power`,
    /// not at `process`.
    #[must_use]
    pub fn simulated(slot: &SimSlot, level: Durability) -> Self {
        let mode = match level {
            Durability::Process => Mode::SimulatedProcess,
            Durability::Power => Mode::SimulatedPower,
        };
        Self { mode, slot: slot.number() }
    }

    /// The level that these instructions are for.
    #[inline]
    #[must_use]
    pub fn durability(&self) -> Durability {
        if self.is_power() { Durability::Power } else { Durability::Process }
    }

    /// Whether the level is `power`.
    #[inline]
    #[must_use]
    pub fn is_power(&self) -> bool {
        self.mode >= Mode::Fences
    }

    /// Starts writing back all cache lines of `ptr..ptr + len`; they are durable after the next
    /// [`fence`](Self::fence) of this thread. Nothing at `process`; nothing if `len` is zero.
    ///
    /// # Safety
    ///
    /// The range is mapped (a flush of an unmapped line faults).
    #[inline]
    pub unsafe fn flush(&self, ptr: *const u8, len: usize) {
        if self.mode != Mode::Process {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.flush_executed(ptr, len) }
        }
    }

    /// Everything that this thread flushed or streamed is durable before anything that it stores
    /// later. At `process`: earlier stores are executed before later ones, and no instruction
    /// is.
    #[inline]
    pub fn fence(&self) {
        if self.mode == Mode::Process {
            cenote_sys::cpu::compiler_barrier();
        } else {
            self.fence_executed();
        }
    }

    /// Copies to `dst` so that the copy is durable after the next [`fence`](Self::fence), without a
    /// flush: streaming stores at `power`, ordinary ones at `process`. In both, a crash before
    /// that fence may leave any part of it. Until then other threads may not see the copy.
    ///
    /// # Safety
    ///
    /// `src` is readable and `dst` writable for `len` bytes, and they do not overlap; `dst` is a
    /// multiple of 8 and so is `len`.
    #[inline]
    pub unsafe fn stream(&self, dst: *mut u8, src: *const u8, len: usize) {
        debug_assert!(dst.addr().is_multiple_of(8) && len.is_multiple_of(8));
        if self.mode == Mode::Process {
            // SAFETY: the caller's promise, passed on.
            unsafe { copy_words(dst, src, len) }
        } else {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.stream_executed(dst, src, len) }
        }
    }

    /// [`flush`](Self::flush), then [`fence`](Self::fence): when it returns the range is durable at
    /// this level.
    ///
    /// # Safety
    ///
    /// As for [`flush`](Self::flush).
    #[inline]
    pub unsafe fn persist(&self, ptr: *const u8, len: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.flush(ptr, len) };
        self.fence();
    }

    /// Tells a simulation that the line of `ptr` left the modelled cache by itself: it is durable,
    /// and nothing else is. No instruction, and no count. Elsewhere nothing: there a cache decides.
    pub fn write_back(&self, ptr: *const u8) {
        if matches!(self.mode, Mode::SimulatedProcess | Mode::SimulatedPower)
            && let Some(hook) = hook::hook(self.slot)
        {
            hook.write_back(ptr);
        }
    }

    /// Whether a simulation is told of everything.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        matches!(self.mode, Mode::SimulatedProcess | Mode::SimulatedPower)
    }

    #[inline(never)]
    unsafe fn flush_executed(&self, ptr: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        match self.mode {
            // The compiler must not move the stores past this point either way.
            Mode::Process | Mode::Fences => cenote_sys::cpu::compiler_barrier(),
            Mode::Flushes => {
                counters::count_flush(line_count(ptr, len));
                // SAFETY: the caller promises that the range is mapped, and lines do not cross
                // pages.
                unsafe { flush_lines(ptr, len) }
            }
            Mode::SimulatedProcess | Mode::SimulatedPower => {
                if self.mode == Mode::SimulatedPower {
                    counters::count_flush(line_count(ptr, len));
                }
                if let Some(hook) = hook::hook(self.slot) {
                    hook.flush(ptr, len);
                }
            }
        }
    }

    #[inline(never)]
    fn fence_executed(&self) {
        match self.mode {
            Mode::Process => cenote_sys::cpu::compiler_barrier(),
            Mode::Fences | Mode::Flushes => {
                counters::count_fence();
                cenote_sys::cpu::sfence();
            }
            Mode::SimulatedProcess | Mode::SimulatedPower => {
                if self.mode == Mode::SimulatedPower {
                    counters::count_fence();
                }
                if let Some(hook) = hook::hook(self.slot) {
                    hook.fence();
                }
            }
        }
    }

    #[inline(never)]
    unsafe fn stream_executed(&self, dst: *mut u8, src: *const u8, len: usize) {
        if self.is_power() {
            counters::count_stream(len as u64);
        }
        match self.mode {
            // With eADR a store is durable where it is: it may as well stay in the cache.
            // SAFETY: the caller's promise, passed on.
            Mode::Process | Mode::Fences => unsafe { copy_words(dst, src, len) },
            // SAFETY: the caller's promise, passed on.
            Mode::Flushes => unsafe { cenote_sys::cpu::stream_copy(dst, src, len) },
            Mode::SimulatedProcess | Mode::SimulatedPower => match hook::hook(self.slot) {
                // SAFETY: the caller's promise, passed on.
                Some(hook) => unsafe { hook.stream(dst, src, len) },
                // SAFETY: the caller's promise, passed on. The simulation is gone, the copy is
                // still wanted.
                None => unsafe { copy_words(dst, src, len) },
            },
        }
    }
}

impl fmt::Debug for Persistence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mode {
            Mode::SimulatedProcess | Mode::SimulatedPower => {
                write!(f, "Persistence({}, simulation {})", self.durability(), self.slot)
            }
            mode => write!(f, "Persistence({}, {mode:?})", self.durability()),
        }
    }
}

/// Lines that a range touches. `len` is not zero.
fn line_count(ptr: *const u8, len: usize) -> u64 {
    let first = ptr.addr() as u64 / LINE_SIZE;
    let last = (ptr.addr() as u64).saturating_add(len as u64 - 1) / LINE_SIZE;
    last - first + 1
}

/// Flushes every line of a range with the best instruction of this processor.
///
/// # Safety
///
/// The range is mapped. `len` is not zero.
unsafe fn flush_lines(ptr: *const u8, len: usize) {
    use cenote_sys::cpu::{self, FlushInstruction};

    let line = LINE_SIZE as usize;
    let start = ptr.map_addr(|addr| addr & !(line - 1));
    let count = line_count(ptr, len) as usize;
    macro_rules! each_line {
        ($flush:path) => {
            for i in 0..count {
                // SAFETY: the line holds a byte of the range, which is mapped, and a line does not
                // cross a page; the instruction is one that this processor has, as
                // `flush_instruction` found.
                unsafe { $flush(start.wrapping_add(i * line)) }
            }
        };
    }
    match cpu::flush_instruction() {
        FlushInstruction::Clwb => each_line!(cpu::clwb),
        FlushInstruction::ClflushOpt => each_line!(cpu::clflushopt),
        FlushInstruction::Clflush => each_line!(cpu::clflush),
        FlushInstruction::None => {}
    }
}

/// An ordinary copy whose stores the compiler may not drop, and in whose short form every aligned
/// word is written by one store.
///
/// # Safety
///
/// As for [`Persistence::stream`].
#[inline]
unsafe fn copy_words(dst: *mut u8, src: *const u8, len: usize) {
    if len > WORD_COPY_MAX {
        // SAFETY: the caller promises that both ranges are valid for `len` bytes and do not
        // overlap.
        unsafe { core::ptr::copy_nonoverlapping(src, dst, len) };
        return;
    }
    for offset in (0..len / 8).map(|i| i * 8) {
        // SAFETY: `offset + 8` is at most `len`; `dst` is a multiple of 8 by the caller's promise,
        // and the source is read without asking for alignment.
        unsafe {
            let word = src.add(offset).cast::<u64>().read_unaligned();
            dst.add(offset).cast::<u64>().write_volatile(word);
        }
    }
}
