//! Locks of the whole process that no thread has while the process forks.
//!
//! A child has one thread, and copies of all locks. One that another thread had at that moment
//! would be waited for without end, and what it guards might be half changed. So a fork handler of
//! the C library takes all of these locks before a fork, and gives them back behind it, in parent
//! and child: the child finds each free, and what it guards whole.
//!
//! The handler waits for none of them while it has another: it tries all, and starts again if one
//! is taken. It gives up after five seconds, for the case that the thread that forks has one
//! itself. A raw `clone` runs no handler.
//!
//! # Safety argument
//!
//! `kept` of a lock is touched by the handlers alone, which exclude each other by the lock of the
//! list: the first handler takes that, and the one behind the fork gives it back.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a fork waits for the locks.
const PATIENCE: Duration = Duration::from_secs(5);

/// A lock in a static.
#[derive(Debug)]
pub struct ProcessLock<T: 'static> {
    mutex: Mutex<T>,
    listed: AtomicBool,
    kept: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: the mutex guards the value; the module says who touches `kept`. A guard that one thread
// made is dropped by the same, which in a child is its only one.
unsafe impl<T: Send> Sync for ProcessLock<T> {}

impl<T: Send> ProcessLock<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self {
            mutex: Mutex::new(value),
            listed: AtomicBool::new(false),
            kept: UnsafeCell::new(None),
        }
    }

    /// Waits for the lock. A thread that panicked with it left the value as it was then.
    pub fn lock(&'static self) -> MutexGuard<'static, T> {
        if !self.listed.load(Ordering::Acquire) {
            self.list();
        }
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn list(&'static self) {
        static ARMED: AtomicBool = AtomicBool::new(false);
        // Miri does not fork.
        if !cfg!(miri) && !ARMED.swap(true, Ordering::SeqCst) {
            // SAFETY: plain functions, which live as long as the process.
            let _ =
                unsafe { libc::pthread_atfork(Some(take_all), Some(give_back), Some(give_back)) };
        }
        let mut list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.listed.swap(true, Ordering::AcqRel) {
            list.push(self);
        }
    }
}

/// What the handlers do with a lock.
trait Keep: Sync {
    /// Takes it, if it is free.
    ///
    /// # Safety
    /// From a handler that has the list.
    unsafe fn keep(&'static self) -> bool;

    /// Gives it back, if it was taken.
    ///
    /// # Safety
    /// From a handler that has the list.
    unsafe fn give_back(&'static self);
}

impl<T: Send> Keep for ProcessLock<T> {
    unsafe fn keep(&'static self) -> bool {
        let guard = match self.mutex.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // SAFETY: by contract nothing else touches it now.
        unsafe { *self.kept.get() = Some(guard) };
        true
    }

    unsafe fn give_back(&'static self) {
        // SAFETY: by contract nothing else touches it now.
        drop(unsafe { (*self.kept.get()).take() });
    }
}

type List = Vec<&'static dyn Keep>;

static LIST: Mutex<List> = Mutex::new(Vec::new());

/// The guard of [`LIST`] during a fork.
struct During(UnsafeCell<Option<MutexGuard<'static, List>>>);

// SAFETY: touched by the thread that has the lock of the list, and by no other.
unsafe impl Sync for During {}

static DURING: During = During(UnsafeCell::new(None));

/// Before a fork, in the thread that forks.
extern "C" fn take_all() {
    let begin = Instant::now();
    loop {
        let list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: with the list.
        let taken = list.iter().take_while(|lock| unsafe { lock.keep() }).count();
        if taken < list.len() {
            // SAFETY: with the list.
            list.iter().take(taken).for_each(|lock| unsafe { lock.give_back() });
            if begin.elapsed() < PATIENCE {
                drop(list);
                std::thread::yield_now();
                continue;
            }
        }
        // SAFETY: this thread has the list from here to `give_back`.
        unsafe { *DURING.0.get() = Some(list) };
        return;
    }
}

/// Behind the fork, in the same thread or its copy in the child.
extern "C" fn give_back() {
    // SAFETY: `take_all` put the list there, and this thread has it.
    let Some(list) = (unsafe { (*DURING.0.get()).take() }) else { return };
    // SAFETY: with the list.
    list.iter().for_each(|lock| unsafe { lock.give_back() });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    static BUSY: ProcessLock<[u64; 2]> = ProcessLock::new([0; 2]);
    static OTHER: ProcessLock<u64> = ProcessLock::new(0);

    #[test]
    fn a_child_finds_the_locks_of_busy_threads_free_and_their_values_whole() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let mut both = BUSY.lock();
                        both[0] += 1;
                        // One inside the other, which the handler never waits for.
                        *OTHER.lock() += 1;
                        std::thread::sleep(Duration::from_micros(200));
                        both[1] += 1;
                    }
                });
            }
            let whole = || {
                let both = BUSY.lock();
                i32::from(both[0] != both[1] || OTHER.mutex.try_lock().is_err())
            };
            let ended: Vec<i32> = (0..40).map(|_| in_child(whole)).collect();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(ended, [0; 40]);
        });
        assert!(BUSY.lock()[0] > 0);
    }
}
