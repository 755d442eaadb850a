//! Runs a function on another stack, for a signal handler whose own stack is too small.
//!
//! A handler runs on an alternate stack of a few KiB. For work that needs more there are two ways:
//!
//! | way | runs on | cost |
//! | --- | --- | --- |
//! | [`crate::fault_queue`] | a thread that waits for questions | two switches of context |
//! | [`run`] | a stack of this module, in the thread of the signal | none |
//!
//! The function still runs inside the handler: all signals are blocked, a fault kills, and its
//! thread is interrupted. It may take locks and allocate only if the interrupted instruction cannot
//! be inside the allocator, nor its thread hold one of these locks. That holds for a *fault* in a
//! range that neither the allocator nor a holder of such a lock ever touches. The caller knows
//! whether that is so. (A signal handler of the application's own, which may have interrupted the
//! allocator, must not touch such a range either.)
//!
//! # Safety argument
//!
//! A stack is a mapping of its own, with a page without access below it, made once and never
//! unmapped. One compare-and-swap takes it for one run; it is given back when the function has
//! returned, or unwound: a panic ends in [`run`]. The stack pointer is exchanged in a register that
//! every callee keeps, and is the old one again afterwards. Stacks are not in forked children, nor
//! in core dumps: the process that made a stack is noted with it, and a child makes its own. A
//! stack that another thread used at the moment of the fork stays taken in the child.

use crate::{fork_guard, memory};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Threads that run something aside at once.
const STACKS: usize = 16;
/// Bytes of a stack, and of what lies without access below it.
const LEN: usize = 256 << 10;
const GUARD: usize = 64 << 10;
/// Zeros above its top, where a walk of the stack (for a panic's message) finds the end: the frame
/// of [`switch`] does not say where it came from.
const ABOVE: usize = 4096;

struct Stack {
    taken: AtomicBool,
    /// The first address above it; 0: not made yet.
    top: AtomicUsize,
    /// The process that has made it.
    owner: AtomicU64,
}

static ALL: [Stack; STACKS] = [const {
    Stack { taken: AtomicBool::new(false), top: AtomicUsize::new(0), owner: AtomicU64::new(0) }
}; STACKS];

/// Takes a stack as long as it lives.
struct TakenStack(&'static Stack);

impl Drop for TakenStack {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

impl TakenStack {
    fn any() -> Option<Self> {
        let free = |stack: &&Stack| {
            stack.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        ALL.iter().find(free).map(Self)
    }

    /// Its top, a multiple of 16. The first user makes it.
    fn top(&self) -> Option<usize> {
        // 0 in a child that has not asked for a token of its own yet.
        let me = fork_guard::current();
        if me == 0 {
            return None;
        }
        let top = self.0.top.load(Ordering::Relaxed);
        if top != 0 && self.0.owner.load(Ordering::Relaxed) == me {
            return Some(top);
        }
        let base = memory::reserve_anywhere(GUARD + LEN, memory::page_bytes()).ok()?;
        // SAFETY: the upper part of our own reservation, which is not in use yet.
        unsafe { memory::map_anonymous(base + GUARD, LEN) }.ok()?;
        let top = base + GUARD + LEN - ABOVE;
        // Pages are decrypted there. A kernel that cannot leave them out of dumps dumps more.
        let _ = memory::leave_out_of_dumps(base + GUARD, LEN);
        self.0.owner.store(me, Ordering::Relaxed);
        self.0.top.store(top, Ordering::Relaxed);
        Some(top)
    }
}

/// Makes one stack, so that a handler finds it ready.
pub fn prepare() {
    let _ = fork_guard::token();
    if let Some(stack) = TakenStack::any() {
        let _ = stack.top();
    }
}

/// Calls `f` on another stack, and gives its answer; `None`: there is none to be had here, or `f`
/// has panicked. See the module for what `f` may do in a signal handler.
pub fn run<R>(f: impl FnOnce() -> R) -> Option<R> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let stack = TakenStack::any()?;
    let top = stack.top()?;
    let mut call = Call { f: Some(f), answer: None };
    // SAFETY: the stack is ours until `stack` is dropped, below; `enter` gets the call that it is
    // made for, and does not unwind.
    unsafe { switch(top, call.entry(), (&raw mut call).cast()) };
    call.answer
}

struct Call<F, R> {
    f: Option<F>,
    answer: Option<R>,
}

impl<F: FnOnce() -> R, R> Call<F, R> {
    /// What it is entered by.
    fn entry(&self) -> unsafe extern "C" fn(*mut ()) {
        enter::<F, R>
    }
}

/// # Safety
/// `call` is a [`Call`] of these types, which no other code uses meanwhile.
unsafe extern "C" fn enter<F: FnOnce() -> R, R>(call: *mut ()) {
    // SAFETY: by the caller's promise.
    let call = unsafe { &mut *call.cast::<Call<F, R>>() };
    if let Some(f) = call.f.take() {
        // If `f` panics, it leaves half-done work only behind its own locks, which it poisons.
        call.answer = catch_unwind(AssertUnwindSafe(f)).ok();
    }
}

/// Calls `enter(call)` with the stack pointer at `top`.
///
/// # Safety
/// Below `top`, a multiple of 16, lies a stack that is not in use and is large enough; `enter` may
/// be called so, and does not unwind.
#[cfg(target_arch = "x86_64")]
unsafe fn switch(top: usize, enter: unsafe extern "C" fn(*mut ()), call: *mut ()) {
    // SAFETY: `r12` is kept by every function, so it has the old stack pointer when the call comes
    // back. Everything that a call may change is said to be changed. The stack is aligned as a call
    // wants it.
    unsafe {
        core::arch::asm!(
            "xchg rsp, r12",
            "call r13",
            "mov rsp, r12",
            inout("r12") top => _,
            in("r13") enter,
            inout("rdi") call => _,
            clobber_abi("C"),
        );
    }
}

/// No other stack is had where this has no way to get there: [`run`] does not come here.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn switch(_top: usize, _enter: unsafe extern "C" fn(*mut ()), _call: *mut ()) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// The stacks are the process's, and one test takes all of them: each test has them alone.
    fn alone() -> MutexGuard<'static, ()> {
        static STACKS: Mutex<()> = Mutex::new(());
        STACKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses more than 48 KiB of stack.
    #[inline(never)]
    fn deep(seed: u8) -> u64 {
        let mut bytes = [seed; 48 << 10];
        black_box(&mut bytes);
        bytes.iter().map(|byte| u64::from(*byte)).sum()
    }

    #[test]
    fn a_function_runs_on_another_stack_and_comes_back_to_this_one() {
        let _alone = alone();
        if !cfg!(target_arch = "x86_64") {
            println!("skipped: this module knows no other stacks on this processor");
            return;
        }
        prepare();
        let here = 0u8;
        let text = String::from("moved in");
        let (sum, there, text) = run(move || {
            let local = 0u8;
            (deep(3), (&raw const local).addr(), text + " and out")
        })
        .expect("it ran");
        assert_eq!((sum, text.as_str()), (3 * (48 << 10), "moved in and out"));
        assert!(there.abs_diff((&raw const here).addr()) > LEN, "it was this stack");
        // Within each other, as many as there are, by many threads; and then again, because all
        // were given back.
        fn nested() -> usize {
            run(|| 1 + nested()).unwrap_or(0)
        }
        for _ in 0..3 {
            assert!((1..=STACKS).contains(&nested()));
        }
        std::thread::scope(|scope| {
            for thread in 0..40u8 {
                scope.spawn(move || {
                    for _ in 0..200 {
                        assert!(
                            run(|| deep(thread))
                                .is_none_or(|sum| sum == u64::from(thread) * (48 << 10))
                        );
                    }
                });
            }
        });
        assert!(run(|| ()).is_some());
    }

    #[test]
    fn a_child_makes_stacks_of_its_own() {
        let _alone = alone();
        prepare();
        assert_eq!(run(|| 7).is_some(), cfg!(target_arch = "x86_64"));
        let in_child = crate::testing::in_child(|| {
            let _ = fork_guard::token();
            run(|| deep(2)).map_or(1, |sum| i32::from(sum != 2 * (48 << 10)))
        });
        assert_eq!(in_child, i32::from(!cfg!(target_arch = "x86_64")));
    }

    #[test]
    fn a_panic_ends_there() {
        let _alone = alone();
        prepare();
        // More often than there are stacks: a panic gives its own back.
        for round in 1..=2 * STACKS {
            let mut ran = 0;
            let answer = run(|| -> u32 {
                ran = round;
                panic!("on purpose")
            });
            assert_eq!((answer, ran), (None, if cfg!(target_arch = "x86_64") { round } else { 0 }));
        }
        assert_eq!(run(|| 7).is_some(), cfg!(target_arch = "x86_64"));
    }
}
