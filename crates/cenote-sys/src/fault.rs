//! Resolves faults: a handler of SIGSEGV and SIGBUS that asks the [`Resolver`] of the address.
//!
//! Lazy mapping, relocation, decryption and write protection all need the same: on a fault in a
//! range of theirs, make the access possible and let the instruction run again. A process has one
//! handler. For a fault it asks
//!
//! 1. the resolver of the range;
//! 2. if that says no, or there is none: the earlier handler (Rust's own, which reports stack
//!    overflows, or an application's);
//! 3. if there is none: the kernel, which kills the process.
//!
//! # Rules for resolvers
//!
//! A resolver runs inside a signal handler, on any thread, at any instruction that touches the
//! range. It
//! * allocates nothing, takes no lock that a thread may hold while it touches the range, and calls
//!   only what is async-signal-safe (the functions of [`crate::memory`] are);
//! * uses at most [`STACK_BUDGET_BYTES`] of stack, since alternate signal stacks are small; more on
//!   a stack of [`crate::alt_stack`], where it may also allocate, and take locks whose holders
//!   never touch the range;
//! * does not fault itself: signals are blocked, a fault inside kills;
//! * returns true only if the access can succeed now. After [`RETRIES_MAX`] times of "true" for the
//!   same address in the same thread with no access taken away in between, the fault goes on as
//!   unresolved.
//!
//! "Taken away in between" is counted: [`crate::memory::protect`] and
//! [`crate::memory::unmap_to_reserved`] do so by themselves; code that revokes access in another
//! way (write protection through userfaultfd) calls [`note_revocation`].
//!
//! # Ranges inside ranges
//!
//! A range may lie inside another one, but not overlap it in part. Then the inner resolver is asked
//! first, and the outer one if that says no. A store answers for its whole window, and tracking of
//! one object's writes for a part of it.
//!
//! # Forked children
//!
//! A registration belongs to the process that made it ([`crate::fork_guard`]): in a child, faults
//! of the parent's ranges are unresolved, and resolvers never see them. A child may register ranges
//! of its own.
//!
//! # Safety argument
//!
//! *Async-signal safety.* The handler uses atomics in statics, `gettid`, `sigaction`,
//! `sigprocmask`, `write` and the resolver. It saves and restores `errno`. All signals are blocked
//! while a resolver runs.
//!
//! *The table.* A list of chunks of 64 slots (`table`): it grows, and never shrinks. Registering
//! and unregistering exclude each other by a lock that the handler never takes. The handler
//! announces itself in a slot (`visitors`) before it checks that the slot is `LIVE`; unregistering
//! makes it `FREE` before it waits for `visitors` to become 0. All four accesses are sequentially
//! consistent, so at least one side sees the other: a handler that goes on has a live slot whose
//! fields do not change and whose context exists until it leaves.
//!
//! *Previous actions* are read before ours is installed, and are written only then, under the same
//! lock.

mod access;
mod table;

pub use crate::revocations::note_revocation;
use crate::{fork_guard, peek, second_mapping};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::io;

pub use access::{is_bus_error, is_peek, is_store, place};
use access::{may_retry, note_access, note_resolved};
use table::{FREE, HandlerSlot, LIVE};

/// Makes an access to `addr` possible and returns true, or false: not mine, or impossible.
///
/// `ctx` is the registered context. See the module's rules; breaking them is undefined behaviour or
/// a deadlock.
pub type Resolver = unsafe fn(ctx: *const (), addr: usize) -> bool;

/// How often in a row one thread's access to one address is tried again, before it counts as
/// unresolved.
pub const RETRIES_MAX: u32 = 100;

/// Bytes of stack that a resolver may use: what surely remains of the smallest alternate signal
/// stack.
pub const STACK_BUDGET_BYTES: usize = 2048;

/// Why a range was not registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The length is zero or the end overflows.
    #[error(
        "cannot resolve faults in {len} bytes at {base:#x}: the range is empty or wraps around; \
         pass a mapped range"
    )]
    Range {
        /// First address.
        base: usize,
        /// Bytes.
        len: usize,
    },
    /// Part of it is registered already, or all of it under the same range.
    #[error(
        "cannot resolve faults in {len} bytes at {base:#x}: part of the range has a resolver \
         already; unregister that first"
    )]
    Overlap {
        /// First address.
        base: usize,
        /// Bytes.
        len: usize,
    },
    /// The signal handler could not be installed.
    #[error(
        "cannot install the handler of SIGSEGV and SIGBUS: {0}; check what restricts sigaction here"
    )]
    Install(#[source] io::Error),
}

/// A range whose faults are resolved, until this is dropped.
///
/// Dropping waits for handlers of other threads that are inside the resolver. So it must not happen
/// in a resolver, nor while holding something that a resolver waits for.
#[derive(Debug)]
#[must_use = "faults are resolved only while the registration lives"]
pub struct Registration {
    slot: &'static HandlerSlot,
    token: u64,
}

/// Installs the handler, if it is not in place. [`register`] does so too.
///
/// Call it before other parts of the program install handlers of their own if those should be asked
/// first; a handler that is installed later and does not chain to this one takes all faults away
/// from it.
///
/// # Errors
/// `sigaction` refuses.
pub fn install() -> io::Result<()> {
    let _lock = TableLock::take(fork_guard::token());
    install_locked()
}

/// Lets `resolver` answer for faults in `[base, base + len)` until the registration is dropped.
///
/// # Errors
/// See [`RegisterError`]; nothing is registered then.
///
/// # Safety
/// `resolver` keeps the module's rules when it is called with `ctx` and any address of the range,
/// at any time, on any thread, several at once, until the registration is dropped; `ctx` may be
/// shared between threads in that way.
pub unsafe fn register(
    base: usize,
    len: usize,
    resolver: Resolver,
    ctx: *const (),
) -> Result<Registration, RegisterError> {
    let Some(end) = base.checked_add(len).filter(|&end| end > base) else {
        return Err(RegisterError::Range { base, len });
    };
    let token = fork_guard::token();
    let _lock = TableLock::take(token);
    install_locked().map_err(RegisterError::Install)?;
    let mut free = None;
    for slot in table::slots() {
        if slot.is_available(token) {
            free = free.or(Some(slot));
            continue;
        }
        // Live, ours, and under the lock: the fields hold still.
        let (other, other_len) =
            (slot.base.load(Ordering::Relaxed), slot.len.load(Ordering::Relaxed));
        let other_end = other + other_len;
        let nested = (base, end) != (other, other_end)
            && ((base >= other && end <= other_end) || (other >= base && other_end <= end));
        if base < other_end && other < end && !nested {
            return Err(RegisterError::Overlap { base, len });
        }
    }
    let slot = free.unwrap_or_else(table::grow);
    // Left over by the process that forked this one: no handler of this process is inside, since
    // none has matched its token.
    slot.state.store(FREE, Ordering::SeqCst);
    if slot.token.load(Ordering::Relaxed) != token {
        slot.visitors.store(0, Ordering::SeqCst);
    }
    slot.base.store(base, Ordering::Relaxed);
    slot.len.store(len, Ordering::Relaxed);
    slot.resolver.store(resolver as *mut (), Ordering::Relaxed);
    slot.ctx.store(ctx.cast_mut(), Ordering::Relaxed);
    slot.token.store(token, Ordering::Release);
    slot.state.store(LIVE, Ordering::SeqCst);
    Ok(Registration { slot, token })
}

impl Drop for Registration {
    fn drop(&mut self) {
        // In a child that inherited the value, the slot may be in use again, and its visitors never
        // leave.
        if !fork_guard::is_current(self.token) {
            return;
        }
        let _lock = TableLock::take(self.token);
        self.slot.state.store(FREE, Ordering::SeqCst);
        while self.slot.visitors.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
    }
}

/// The lock that registering and unregistering take. It holds the token of the process whose thread
/// has it, so that a child is not stopped by a thread that it does not have.
struct TableLock;

static LOCK: AtomicU64 = AtomicU64::new(0);

impl TableLock {
    fn take(token: u64) -> Self {
        loop {
            let held = LOCK.load(Ordering::Relaxed);
            if held != token
                && LOCK.compare_exchange(held, token, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Self;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for TableLock {
    fn drop(&mut self) {
        LOCK.store(0, Ordering::Release);
    }
}

/// What a signal did before this module took it.
struct Previous {
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
    known: AtomicBool,
}

// SAFETY: written under the lock before `known` is set or before our handler can run; read after
// that only.
unsafe impl Sync for Previous {}

impl Previous {
    const fn new() -> Self {
        Self { action: UnsafeCell::new(MaybeUninit::uninit()), known: AtomicBool::new(false) }
    }

    fn get(&self) -> Option<&libc::sigaction> {
        if !self.known.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: initialised before `known` was set, and not written again.
        Some(unsafe { (*self.action.get()).assume_init_ref() })
    }
}

static PREVIOUS_SEGV: Previous = Previous::new();
static PREVIOUS_BUS: Previous = Previous::new();

fn install_locked() -> io::Result<()> {
    // Miri raises no signals.
    if cfg!(miri) {
        return Ok(());
    }
    install_one(libc::SIGSEGV, &PREVIOUS_SEGV)?;
    install_one(libc::SIGBUS, &PREVIOUS_BUS)
}

/// Under the lock.
fn install_one(signal: c_int, previous: &Previous) -> io::Result<()> {
    if previous.known.load(Ordering::Acquire) {
        return Ok(());
    }
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; the pointer is to a local of the right type.
    if unsafe { libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `known` is false, so no thread reads; the lock excludes other writers.
    unsafe { *previous.action.get() = old };
    previous.known.store(true, Ordering::Release);
    let mut ours = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zero is a valid sigaction; the fields are then set to what the call expects.
    // SA_ONSTACK: a handler for stack overflows may be behind us, and needs its own stack. All
    // signals are blocked meanwhile, so that no handler of the application's can fault inside
    // ours, which would kill.
    let failed = unsafe {
        let action = ours.assume_init_mut();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(signal, ours.as_ptr(), ptr::null_mut()) != 0
    };
    if failed {
        let error = io::Error::last_os_error();
        previous.known.store(false, Ordering::Release);
        return Err(error);
    }
    Ok(())
}

unsafe extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: errno's place is this thread's; the kernel passes a valid siginfo.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let addr = (*info).si_addr().addr();
        let peeks =
            may_give_up(signal, (*info).si_code) && peek::is_at(context, addr) && is_ours(addr);
        note_access(context, peeks, signal == libc::SIGBUS);
        let resolved = may_give_up(signal, (*info).si_code)
            && (resolve(addr) || signal == libc::SIGBUS && resolve_second(addr));
        *errno = saved;
        if !(resolved || peeks && peek::give_up(context)) {
            if signal == libc::SIGSEGV && is_resolvable(signal, (*info).si_code) {
                explain(addr);
            }
            if signal == libc::SIGBUS && is_resolvable(signal, (*info).si_code) {
                tell_bus_error((*info).si_addr().addr());
            }
            chain(signal, info, context);
            *errno = saved;
        }
    }
}

/// Whether a line on standard error has explained a bus error.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Says why a bus error follows, on standard error and without its lock, which a thread that waits
/// for the page may hold. The handler says nothing more about bus errors then.
pub fn tell(line: &str) {
    TOLD.store(true, Ordering::Relaxed);
    write_to_stderr(line.as_bytes());
}

/// Says what an address is for that a fault leads to which nothing resolves.
pub type Explainer = fn(addr: usize);

/// Null, or an [`Explainer`].
static EXPLAINER: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// From now on faults of SIGSEGV that nothing resolves are explained so, before the handler that
/// was there before is asked. One explainer at a time; installs the handler.
///
/// # Errors
/// As [`install`].
///
/// # Safety
/// The explainer is async-signal-safe, and does not fault.
pub unsafe fn explain_by(explainer: Explainer) -> io::Result<()> {
    EXPLAINER.store(explainer as *mut (), Ordering::Release);
    install()
}

fn explain(addr: usize) {
    let explainer = EXPLAINER.load(Ordering::Acquire);
    if !explainer.is_null() {
        // SAFETY: `explain_by` alone stores there.
        unsafe { core::mem::transmute::<*mut (), Explainer>(explainer)(addr) }
    }
}

/// Async-signal-safe.
fn write_to_stderr(line: &[u8]) {
    // SAFETY: writes from a slice. If standard error is closed, the line is lost and nothing else.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Says once a process what a bus error in a registered range means: the file under the mapping was
/// made shorter, or its device fails. No error can be returned to the instruction, so the process
/// ends.
fn tell_bus_error(addr: usize) {
    if !is_ours(addr) || TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let mut line = *b"cenote: bus error at 0x0000000000000000: the file that is mapped there was \
        made shorter, or its device fails: this process ends; run `cenote check` on the store\n";
    let digits = &mut line[23..39];
    for (i, digit) in digits.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(addr >> (4 * i)) & 15];
    }
    write_to_stderr(&line);
}

/// Whether faults at an address are resolved in this process.
fn is_ours(addr: usize) -> bool {
    let token = fork_guard::current();
    token != 0
        && table::slots()
            .any(|slot| slot.state.load(Ordering::SeqCst) == LIVE && slot.covers(token, addr))
}

/// A fault at an address that more than luck can cure: neither sent by a process nor a memory error
/// of the hardware.
fn is_resolvable(signal: c_int, code: c_int) -> bool {
    const SEGV_MAPERR: c_int = 1;
    const SEGV_ACCERR: c_int = 2;
    const SEGV_PKUERR: c_int = 4;
    const BUS_ADRERR: c_int = 2;
    match signal {
        libc::SIGSEGV => matches!(code, SEGV_MAPERR | SEGV_ACCERR | SEGV_PKUERR),
        libc::SIGBUS => code == BUS_ADRERR,
        _ => false,
    }
}

/// A fault that a load of [`peek`] or a resolver can answer for: those that may be resolved, and
/// memory that the hardware has lost.
fn may_give_up(signal: c_int, code: c_int) -> bool {
    const BUS_MCEERR_AR: c_int = 4;
    is_resolvable(signal, code) || signal == libc::SIGBUS && code == BUS_MCEERR_AR
}

fn resolve(addr: usize) -> bool {
    let token = fork_guard::current();
    if token == 0 {
        return false;
    }
    // The narrowest range first; `asked` is the length and address of the last slot that was.
    let mut asked = (0, 0);
    let mut may = None;
    loop {
        let mut narrowest: Option<((usize, usize), &'static HandlerSlot)> = None;
        for slot in table::slots() {
            let key = (slot.len.load(Ordering::Relaxed), ptr::from_ref(slot).addr());
            if slot.covers(token, addr)
                && key > asked
                && narrowest.is_none_or(|(other, _)| key < other)
            {
                narrowest = Some((key, slot));
            }
        }
        let Some((key, slot)) = narrowest else { return false };
        asked = key;
        slot.visitors.fetch_add(1, Ordering::SeqCst);
        let resolved = if slot.state.load(Ordering::SeqCst) == LIVE && slot.covers(token, addr) {
            // SAFETY: the slot is live and visited, so the two belong together and the context
            // exists; `register` put a Resolver there, and its caller vouched for it.
            unsafe {
                let resolver = core::mem::transmute::<*mut (), Resolver>(
                    slot.resolver.load(Ordering::Relaxed),
                );
                *may.get_or_insert_with(|| may_retry(addr))
                    && resolver(slot.ctx.load(Ordering::Relaxed), addr)
            }
        } else {
            // Unregistered under our hands; the address may be in another slot meanwhile.
            false
        };
        slot.visitors.fetch_sub(1, Ordering::SeqCst);
        if resolved {
            note_resolved();
            return true;
        }
    }
}

/// A bus error in a second mapping: it is resolved in the first one, and the second shows the same
/// again. By a thread that uses the second one.
fn resolve_second(addr: usize) -> bool {
    let Some(first) = second_mapping::first_of(addr) else { return false };
    // SAFETY: the fault is an access to the second mapping.
    resolve(first) && unsafe { second_mapping::follow(first, addr) }
}

/// Does what would have happened without this module.
///
/// # Safety
/// Called by the signal handler with its arguments.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = match signal {
        libc::SIGSEGV => PREVIOUS_SEGV.get(),
        _ => PREVIOUS_BUS.get(),
    };
    // SAFETY: the kernel passes a valid siginfo.
    let sent = unsafe { (*info).si_code } <= 0;
    match previous {
        // A signal that a process sent is ignored if the application said so; a fault cannot be.
        Some(previous) if previous.sa_sigaction == libc::SIG_IGN && sent => {}
        Some(previous)
            if previous.sa_sigaction != libc::SIG_DFL && previous.sa_sigaction != libc::SIG_IGN =>
        {
            // SAFETY: the action was valid when it was installed, and is called as the kernel
            // would: with the signals blocked that were at the fault and that it asks
            // for. The kernel restores the mask after our return.
            unsafe {
                let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
                union_kernel_mask(&mut mask, &previous.sa_mask);
                if previous.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&raw mut mask, signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
                if previous.sa_flags & libc::SA_SIGINFO != 0 {
                    type Action = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
                    core::mem::transmute::<usize, Action>(previous.sa_sigaction)(
                        signal, info, context,
                    );
                } else {
                    type Action = unsafe extern "C" fn(c_int);
                    core::mem::transmute::<usize, Action>(previous.sa_sigaction)(signal);
                }
            }
        }
        // The default: the instruction faults again after our return and kills, with the right
        // signal and a core.
        _ => {
            // SAFETY: a zeroed action is SIG_DFL; a sent signal is sent again, and arrives when
            // ours is unblocked.
            unsafe {
                let default = MaybeUninit::<libc::sigaction>::zeroed();
                libc::sigaction(signal, default.as_ptr(), ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
        }
    }
}

/// Adds `more` to `mask`: the first 8 bytes of each, which is all that the kernel wrote and reads.
///
/// # Safety
/// Both begin with 8 valid bytes.
unsafe fn union_kernel_mask(mask: *mut libc::sigset_t, more: *const libc::sigset_t) {
    // SAFETY: sigset_t is an array of words of at least 64 bits in all, a bit for each signal.
    unsafe { *mask.cast::<u64>() |= *more.cast::<u64>() }
}

#[cfg(test)]
mod tests;
