//! Counts stores by line of 64 bytes, each one, exactly: what NVMalloc's authors did with Pin.
//!
//! The range is made read-only. A store there faults: the handler counts the line of the address,
//! opens the page and lets one instruction run (trap flag); the trap that follows closes the page.
//! So each storing instruction is counted, of whatever code, once for each line and page where it
//! faults. Stores that follow each other in one line count once, as in the paper.
//!
//! For a process of its own, and for one thread: while a page is open, stores of other threads into
//! it are not seen. An instruction whose bytes lie in two lines of a page counts for the first.
//! x86-64 alone has the flag.

use crate::case::Failure;
use cenote_protect::{Owner, RangeKind, Right, Whole};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Bytes of a line.
pub const LINE: usize = 64;

const PAGE: usize = 4096;

/// Pages that one instruction may store to.
const OPEN: usize = 4;

/// What is counted, and how the handlers find it.
#[derive(Debug)]
struct TracedRange {
    owner: Owner<Whole>,
    counts: Box<[AtomicU32]>,
    /// Lines at the beginning that do not count.
    skipped: usize,
    /// The line that was stored to last, and 1; 0: none.
    last: AtomicUsize,
    /// Numbers of open pages, and 1; 0: none.
    open: [AtomicUsize; OPEN],
    is_on: AtomicBool,
}

static RANGE: OnceLock<TracedRange> = OnceLock::new();

impl TracedRange {
    fn count(&self, line: usize) {
        if line < self.skipped {
            return;
        }
        if self.last.swap(line + 1, Ordering::Relaxed) != line + 1
            && let Some(count) = self.counts.get(line)
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn pages(&self) -> Range<u64> {
        0..(self.owner.range().len() / PAGE) as u64
    }

    /// The store into an address may run. `false`: it is not of the range.
    fn let_store(&self, addr: usize) -> bool {
        let range = self.owner.range();
        if !range.contains(&addr) || !self.is_on.load(Ordering::Relaxed) {
            return false;
        }
        let page = (addr - range.start) / PAGE;
        let place = self.open.iter().find(|place| place.load(Ordering::Relaxed) == 0);
        let Some(place) = place else { return false };
        self.count((addr - range.start) / LINE);
        place.store(page + 1, Ordering::Relaxed);
        // SAFETY: the range is the caller's of `start`, who lets this change its rights.
        unsafe { self.owner.set(page as u64..page as u64 + 1, Right::Write) }.is_ok()
    }

    /// Closes what is open; whether anything was.
    fn close(&self) -> bool {
        let mut was_open = false;
        for place in &self.open {
            let page = place.swap(0, Ordering::Relaxed) as u64;
            if page != 0 && self.is_on.load(Ordering::Relaxed) {
                // SAFETY: as above; a store there faults, and the handler opens it again.
                was_open |= unsafe { self.owner.set(page - 1..page, Right::Read) }.is_ok();
            }
        }
        was_open
    }
}

/// Room for the counts of a range: made before the range is chosen, if that is part of the memory
/// that such room is allocated from.
#[derive(Debug)]
pub struct LineCounts(Box<[AtomicU32]>);

impl LineCounts {
    /// For a range of so many bytes.
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        let zeros = Box::into_raw(vec![0u32; bytes.div_ceil(LINE)].into_boxed_slice());
        // SAFETY: the same memory, of a type with the same layout.
        Self(unsafe { Box::from_raw(zeros as *mut [AtomicU32]) })
    }
}

/// Counts from now on, once in a process: whole pages, of which so many lines do not count.
///
/// # Errors
/// No handler can be installed, rights cannot change, or stores were counted before.
///
/// # Safety
/// The range is mapped for reading and writing until the process ends, no system call writes into
/// it before [`finish`], and nothing else changes its rights. The counts do not lie there.
pub unsafe fn start(
    range: Range<usize>,
    skipped: usize,
    counts: LineCounts,
) -> Result<(), Failure> {
    if counts.0.len() < range.len() / LINE {
        return Err("there is no room for the counts of all lines".into());
    }
    let traced = TracedRange {
        owner: Owner::new(range, RangeKind::Data, "stores", Whole::new(Right::Write)),
        counts: counts.0,
        skipped,
        last: AtomicUsize::new(0),
        open: [const { AtomicUsize::new(0) }; OPEN],
        is_on: AtomicBool::new(true),
    };
    RANGE.set(traced).map_err(|_| "stores of this process were counted before")?;
    let traced = RANGE.get().ok_or("it was set")?;
    handlers::install()?;
    // SAFETY: the caller's promise; stores fault, and the handlers let them through.
    unsafe { traced.owner.set(traced.pages(), Right::Read) }?;
    Ok(())
}

/// The program wrote these bytes once, from the first line to the last, without executing it.
pub fn wrote(bytes: Range<usize>) {
    let Some(traced) = RANGE.get() else { return };
    let range = traced.owner.range();
    let bytes = bytes.start.max(range.start)..bytes.end.min(range.end);
    let end = bytes.end.saturating_sub(range.start).div_ceil(LINE);
    for line in (bytes.start - range.start) / LINE..end {
        traced.count(line);
    }
}

/// Ends counting: the writes of each line that was written, in order of their number.
///
/// # Errors
/// Rights cannot change.
pub fn finish() -> Result<Vec<u32>, Failure> {
    let traced = RANGE.get().ok_or("no stores were counted")?;
    traced.is_on.store(false, Ordering::Relaxed);
    // SAFETY: the range is open again, as it was.
    unsafe { traced.owner.set(traced.pages(), Right::Write) }?;
    let counts = traced.counts.iter().map(|count| count.load(Ordering::Relaxed));
    let mut written: Vec<u32> = counts.filter(|&count| count > 0).collect();
    written.sort_unstable();
    Ok(written)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod handlers {
    use super::RANGE;
    use crate::case::Failure;
    use core::ffi::{c_int, c_void};
    use std::sync::OnceLock;

    /// The flag in the processor's flags that asks for a trap behind one instruction.
    const TRAP: i64 = 1 << 8;

    /// What was there before, for faults that are not of the range.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

    pub(super) fn install() -> Result<(), Failure> {
        let before = set(libc::SIGSEGV, faulted)?;
        BEFORE.set(before).map_err(|_| "handlers are there already")?;
        set(libc::SIGTRAP, trapped)?;
        Ok(())
    }

    fn set(signal: c_int, handler: Handler) -> Result<libc::sigaction, Failure> {
        // SAFETY: a structure of numbers, for which zeros are values.
        let (mut action, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both structures are whole. The handlers use atomics of statics, and change rights
        // by `Owner::set`, which is async-signal-safe.
        match unsafe {
            libc::sigfillset(&mut action.sa_mask);
            libc::sigaction(signal, &action, &mut before)
        } {
            0 => Ok(before),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// Changes the processor's flags with which the interrupted code goes on.
    ///
    /// # Safety
    /// `context` is that of a handler.
    unsafe fn set_trap(context: *mut c_void, is_on: bool) {
        // SAFETY: by contract, it is a `ucontext_t` that this handler alone uses.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        let flags = &mut context.uc_mcontext.gregs[libc::REG_EFL as usize];
        *flags = if is_on { *flags | TRAP } else { *flags & !TRAP };
    }

    extern "C" fn faulted(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes what it says to a handler that was installed with SA_SIGINFO.
        let addr = unsafe { (*info).si_addr() }.addr();
        if RANGE.get().is_some_and(|range| range.let_store(addr)) {
            // SAFETY: this handler's context.
            unsafe { set_trap(context, true) };
            return;
        }
        match BEFORE.get() {
            Some(before) if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the address of a handler of this type, as the flag says.
                let handler: Handler = unsafe { core::mem::transmute(before.sa_sigaction) };
                handler(signal, info, context);
            }
            // SAFETY: the fault comes again, and ends the process.
            _ => unsafe {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            },
        }
    }

    extern "C" fn trapped(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        if RANGE.get().is_some_and(super::TracedRange::close) {
            // SAFETY: this handler's context.
            unsafe { set_trap(context, false) };
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod handlers {
    use crate::case::Failure;

    pub(super) fn install() -> Result<(), Failure> {
        Err("stores are counted on x86-64 alone".into())
    }
}
