//! Stray writes that do not end the process: the handler of faults that nothing resolves steps over
//! the store.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

thread_local! {
    /// Strays of this thread, and the address of the last one.
    static STRAYS: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

static ONE: Mutex<()> = Mutex::new(());

/// Whether these bytes are a store of a whole register to where another one points: the
/// instruction of [`stray_store`], as compilers make it. It has three bytes.
fn is_plain_store([prefix, operation, registers]: [u8; 3]) -> bool {
    let target = registers & 7;
    prefix & 0xf8 == 0x48 && operation == 0x89 && registers >> 6 == 0 && ![4, 5].contains(&target)
}

/// Stray writes of this thread are counted, as long as this lives.
#[derive(Debug)]
pub struct Strays(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Strays {
    /// From now on. Not of stores that are made otherwise than by [`stray_store`].
    pub fn catch() -> Self {
        static INSTALLED: Once = Once::new();
        // It is asked after the library's own handler: so it is there before that.
        INSTALLED.call_once(install);
        let strays = Self(ONE.lock().unwrap_or_else(PoisonError::into_inner));
        STRAYS.set((0, 0));
        strays
    }

    /// How many there were, and the address of the last one.
    pub fn last(&self) -> (u64, usize) {
        STRAYS.get()
    }
}

/// Stores a word.
#[inline(never)]
pub fn stray_store(address: usize, value: u64) {
    // SAFETY: a word of a test's own pages, or a fault, which the handler steps over: nothing
    // relies on the store.
    unsafe { core::ptr::with_exposed_provenance_mut::<u64>(address).write_volatile(value) }
}

fn install() {
    let mut action = core::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zero is a valid sigaction; the handler is one with SA_SIGINFO, which touches its
    // arguments and this thread's count.
    let failed = unsafe {
        let ours = action.assume_init_mut();
        ours.sa_sigaction = step_over as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGSEGV, action.as_ptr(), core::ptr::null_mut())
    };
    assert_eq!(failed, 0, "installed");
}

extern "C" fn step_over(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own arguments of a handler with SA_SIGINFO.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = core::ptr::with_exposed_provenance::<[u8; 3]>(
            registers[libc::REG_RIP as usize] as usize,
        );
        if !is_plain_store(*at) {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            return;
        }
        STRAYS.set((STRAYS.get().0 + 1, (*info).si_addr().addr()));
        registers[libc::REG_RIP as usize] += size_of_val(&*at) as i64;
    }
}
