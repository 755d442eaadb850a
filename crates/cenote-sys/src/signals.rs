//! Keeps signals from interrupting a thread that answers faults, or a thread that holds what such a
//! thread waits for.
//!
//! A handler of the application's may touch memory whose faults another thread answers. On a thread
//! that has to go on before the answer can come, the handler would wait for ever.
//!
//! # Safety argument
//!
//! The mask of the calling thread changes, and nothing else. Signals that an instruction raises by
//! itself are left alone where the thread may still touch memory: blocked, they would end the
//! process without any handler.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

/// Raised by instructions.
const BY_INSTRUCTIONS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Blocks all signals in this thread, for as long as it lives.
pub(crate) fn block_all() {
    if cfg!(miri) {
        return;
    }
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is used; the mask of this thread alone changes.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), core::ptr::null_mut());
    }
}

/// While it lives, this thread takes no signal but those that its own instructions raise, which it
/// takes even where it took none before; others wait.
#[derive(Debug)]
pub struct Blocked {
    before: libc::sigset_t,
    /// The mask is this thread's.
    _not_send: PhantomData<*const ()>,
}

impl Blocked {
    /// From now on.
    #[must_use]
    #[allow(clippy::new_without_default)] // it does something
    pub fn new() -> Self {
        // Miri raises no signals.
        if cfg!(miri) {
            // SAFETY: a set of bits; all zero is the empty set.
            return Self { before: unsafe { core::mem::zeroed() }, _not_send: PhantomData };
        }
        let (mut most, mut before) =
            (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
        // SAFETY: both sets are filled before they are used, the second one by the kernel or,
        // should that fail, here; the mask of this thread alone changes.
        unsafe {
            libc::sigemptyset(before.as_mut_ptr());
            libc::sigfillset(most.as_mut_ptr());
            for signal in BY_INSTRUCTIONS {
                libc::sigdelset(most.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, most.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init(), _not_send: PhantomData }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if cfg!(miri) {
            return;
        }
        // SAFETY: the set that was this thread's mask before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, core::ptr::null_mut())
        };
    }
}

/// The number of this thread, never 0. Async-signal-safe.
#[must_use]
pub fn thread_number() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    static HEARD: AtomicU32 = AtomicU32::new(0);

    extern "C" fn hear(_: libc::c_int) {
        HEARD.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_signal_waits_until_the_thread_takes_it_again() {
        let handler = hear as extern "C" fn(libc::c_int) as *const () as libc::sighandler_t;
        // SAFETY: a handler that counts; the signal goes to this thread.
        unsafe {
            libc::signal(libc::SIGUSR2, handler);
            let blocked = Blocked::new();
            let inner = Blocked::new();
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2);
            drop(inner);
            assert_eq!(HEARD.load(Ordering::SeqCst), 0, "the outer one still blocks it");
            drop(blocked);
        }
        assert_eq!(HEARD.load(Ordering::SeqCst), 1);
        assert!(thread_number() > 0);
    }
}
