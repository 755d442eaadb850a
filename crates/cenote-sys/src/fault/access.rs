//! The last fault of each thread: what the access was, and how often it was resolved in vain.
//!
//! The handler notes the access before it asks a resolver, which may ask what it is
//! ([`is_store`], [`is_peek`], [`is_bus_error`]). Everything is an atomic in a static, so all of it
//! is async-signal-safe.

use super::RETRIES_MAX;
use crate::revocations;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The last fault of one thread. Threads whose numbers are equal in the low bits share a place and
/// push each other out, which makes the count too low and never too high.
struct LastFault {
    /// The thread that was here last, and what the access was: bit 0, a store; bit 1, a load of
    /// [`crate::peek`]; bit 2, of a page that is mapped and cannot be had.
    access: AtomicU64,
    thread: AtomicU32,
    times: AtomicU32,
    addr: AtomicUsize,
    revocations: AtomicU64,
    /// The instruction that faulted, and its thread's stack pointer; 0: not known.
    at: AtomicUsize,
    stack: AtomicUsize,
}

const PLACES: usize = 256;

static LAST_FAULTS: [LastFault; PLACES] = [const {
    LastFault {
        access: AtomicU64::new(0),
        thread: AtomicU32::new(0),
        times: AtomicU32::new(0),
        addr: AtomicUsize::new(0),
        revocations: AtomicU64::new(0),
        at: AtomicUsize::new(0),
        stack: AtomicUsize::new(0),
    }
}; PLACES];

fn last_fault() -> (u32, &'static LastFault) {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    (thread, &LAST_FAULTS[thread as usize % PLACES])
}

const STORE: u64 = 1;
const PEEK: u64 = 2;
const BUS: u64 = 4;
/// Bits of an access that say what it was.
const ACCESS_BITS: u32 = 3;

/// Notes whether this thread's fault was a store, a load that may fail, or a bus error.
///
/// # Safety
/// Called by the signal handler with the context that it was given.
pub(super) unsafe fn note_access(context: *mut c_void, peeks: bool, is_bus: bool) {
    let (thread, last) = last_fault();
    // SAFETY: handed on to the caller.
    let store = if unsafe { stores(context) } { STORE } else { 0 };
    let peek = if peeks { PEEK } else { 0 };
    let bus = if is_bus { BUS } else { 0 };
    last.access.store(u64::from(thread) << ACCESS_BITS | bus | peek | store, Ordering::Relaxed);
    // SAFETY: handed on to the caller.
    let (at, stack) = unsafe { place_of(context) };
    last.at.store(at, Ordering::Relaxed);
    last.stack.store(stack, Ordering::Relaxed);
}

/// The instruction that faulted, and the stack pointer.
///
/// # Safety
/// As [`note_access`].
unsafe fn place_of(context: *mut c_void) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the kernel passes a valid context to the handler.
        let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let of = |register: i32| registers[register as usize].cast_unsigned() as usize;
        (of(libc::REG_RIP), of(libc::REG_RSP))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        (0, 0)
    }
}

/// For resolvers and explainers: the instruction of this thread's fault, and its stack pointer; 0
/// where that is not known.
#[must_use]
pub fn place() -> (usize, usize) {
    let (_, last) = last_fault();
    (last.at.load(Ordering::Relaxed), last.stack.load(Ordering::Relaxed))
}

/// Whether an access that faulted is a store, as far as the processor says.
///
/// # Safety
/// As [`note_access`].
unsafe fn stores(context: *mut c_void) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        /// In the error code of a page fault: the access was a store.
        const STORE: i64 = 2;
        // SAFETY: the kernel passes a valid context to the handler.
        let code = unsafe {
            (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize]
        };
        code & STORE != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        false
    }
}

fn noted(what: u64) -> bool {
    let (thread, last) = last_fault();
    let access = last.access.load(Ordering::Relaxed);
    access >> ACCESS_BITS == u64::from(thread) && access & what != 0
}

/// For resolvers: whether the access that this thread is in is a store, as far as is known here.
/// `false` may be wrong: the access faults once more then.
#[must_use]
pub fn is_store() -> bool {
    noted(STORE)
}

/// For resolvers: whether the access that this thread is in is a load of [`crate::peek`], which
/// needs no signal if it cannot be. `false` may be wrong.
#[must_use]
pub fn is_peek() -> bool {
    noted(PEEK)
}

/// For resolvers: whether the access that this thread is in is to a page that is mapped and cannot
/// be had: its file was cut short, its device fails, or the hardware has lost it. `false` may be
/// wrong.
#[must_use]
pub fn is_bus_error() -> bool {
    noted(BUS)
}

/// Counts a fault of this thread; false if the same one was "resolved" too often without any access
/// in between that could have succeeded.
pub(super) fn may_retry(addr: usize) -> bool {
    let (thread, last) = last_fault();
    let same = last.thread.swap(thread, Ordering::Relaxed) == thread
        && last.addr.load(Ordering::Relaxed) == addr
        && last.revocations.load(Ordering::Relaxed) == revocations::count();
    if same {
        return last.times.fetch_add(1, Ordering::Relaxed) < RETRIES_MAX;
    }
    last.addr.store(addr, Ordering::Relaxed);
    last.times.store(1, Ordering::Relaxed);
    true
}

/// Revocations by the resolver itself do not count: remembered after it has run.
pub(super) fn note_resolved() {
    last_fault().1.revocations.store(revocations::count(), Ordering::Relaxed);
}
