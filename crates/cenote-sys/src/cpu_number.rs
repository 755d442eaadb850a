//! Tells the number of the processor that this thread runs on, for per-CPU data. It is a hint: the
//! thread may run on another one by the time the number is used. And tells how many processors this
//! process may use.
//!
//! The first way that works is taken:
//!
//! 1. a load: the kernel keeps the number in the thread's restartable-sequence area, which glibc
//!    (2.35 and later) registers and whose place it exports;
//! 2. the instruction `rdpid`;
//! 3. a call of the C library.
//!
//! # Safety argument
//!
//! `__rseq_offset` and `__rseq_size` are constants of glibc's interface once the program runs: the
//! area of every thread lies at the thread pointer plus the offset and lives as long as the thread.
//! It is read, never written, and only if its size says that it is registered. The kernel writes it
//! while the thread is not running, so a volatile read of an aligned word suffices.

#[cfg(target_arch = "x86_64")]
use core::sync::atomic::{AtomicIsize, Ordering};
use std::num::NonZero;
use std::sync::OnceLock;

/// Not looked up yet. Offsets are far smaller in size than these two.
#[cfg(target_arch = "x86_64")]
const UNKNOWN: isize = isize::MIN;
/// There is no area.
#[cfg(target_arch = "x86_64")]
const NONE: isize = isize::MAX;

/// From the thread pointer to the area.
#[cfg(target_arch = "x86_64")]
static AREA_OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);

/// The number of the processor that this thread runs on; 0 where it is unknown. It is below the
/// number of possible processors, which may be larger than the number that this process may use.
#[must_use]
#[inline]
pub fn current() -> u32 {
    // Miri has neither the area nor the instruction.
    if cfg!(miri) {
        return 0;
    }
    #[cfg(target_arch = "x86_64")]
    {
        let offset = AREA_OFFSET.load(Ordering::Relaxed);
        if offset != UNKNOWN && offset != NONE {
            // SAFETY: a known offset is that of a registered area; see the module's argument.
            if let Some(number) = unsafe { x86_64::from_area(offset) } {
                return number;
            }
        }
    }
    slow()
}

/// How many processors this process might use when it first asked; 1 where that is unknown. Asked
/// once: the answer comes from files, which takes longer than opening a small heap.
#[must_use]
pub fn available() -> NonZero<usize> {
    static KNOWN: OnceLock<NonZero<usize>> = OnceLock::new();
    *KNOWN.get_or_init(|| std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN))
}

#[cold]
fn slow() -> u32 {
    #[cfg(target_arch = "x86_64")]
    if AREA_OFFSET.load(Ordering::Relaxed) == UNKNOWN {
        AREA_OFFSET.store(find_area().unwrap_or(NONE), Ordering::Relaxed);
    }
    #[cfg(target_arch = "x86_64")]
    if crate::cpu::features().rdpid {
        // SAFETY: the processor has the instruction.
        return unsafe { x86_64::from_rdpid() };
    }
    u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(0)
}

/// glibc's offset, if its area is there and registered.
#[cfg(target_arch = "x86_64")]
fn find_area() -> Option<isize> {
    let symbol = |name: &core::ffi::CStr| {
        // SAFETY: looks a name up among the loaded libraries; the name is a C string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    };
    let offset = symbol(c"__rseq_offset")?.cast::<isize>();
    let size = symbol(c"__rseq_size")?.cast::<u32>();
    // SAFETY: glibc defines them as constants of these types; the names are reserved, so no other
    // library may define them.
    let (offset, size) = unsafe { (offset.read(), size.read()) };
    (size >= 8 && offset != UNKNOWN).then_some(offset)
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use core::arch::asm;

    /// # Safety
    /// `offset` leads from the thread pointer to this thread's registered area.
    #[inline]
    pub(super) unsafe fn from_area(offset: isize) -> Option<u32> {
        let number: i32;
        // SAFETY: fs is the thread pointer; the field cpu_id lies 4 bytes into the area. Read anew
        // each time: no `pure`.
        unsafe {
            asm!(
                "mov {0:e}, fs:[{1} + 4]",
                out(reg) number,
                in(reg) offset,
                options(nostack, preserves_flags, readonly),
            );
        }
        // Negative: not registered for this thread.
        u32::try_from(number).ok()
    }

    /// # Safety
    /// The processor has `rdpid`.
    pub(super) unsafe fn from_rdpid() -> u32 {
        let value: u64;
        // SAFETY: the instruction reads a register that Linux sets to the node (from bit 12 on) and
        // the processor.
        unsafe { asm!("rdpid {}", out(reg) value, options(nomem, nostack, preserves_flags)) }
        (value & 0xfff) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_names_the_processor_that_the_thread_is_bound_to() {
        let allowed = rustix::thread::sched_getaffinity(None).expect("affinity");
        for cpu in (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
            std::thread::spawn(move || {
                let mut only = rustix::thread::CpuSet::new();
                only.set(cpu);
                rustix::thread::sched_setaffinity(None, &only).expect("bind the thread");
                assert_eq!(current() as usize, cpu);
                assert_eq!(slow() as usize, cpu);
            })
            .join()
            .expect("thread");
        }
    }
}
