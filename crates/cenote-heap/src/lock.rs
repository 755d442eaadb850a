//! The lock of a bin: one locked instruction to take it, a plain store to give it back.
//!
//! A waiter spins for a moment and then gives its processor away; there is no queue and no system call for the holder. Held for tens of
//! nanoseconds on the fast path; a transaction's undo entry (a fence at most) is written under it.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

const SPINS: u32 = 100;

/// A value that one thread at a time may touch.
#[derive(Debug)]
pub(crate) struct SpinLock<T> {
    taken: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and there is one guard at a time.
unsafe impl<T: Send> Send for SpinLock<T> {}
// SAFETY: as above; `&SpinLock` hands out `&mut T` to one thread at a time, which needs `T: Send` only.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Gives the lock back when dropped, also by a panic: nothing under the lock is half done when foreign code runs.
pub(crate) struct Guard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> SpinLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { taken: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut spins = 0;
        loop {
            if self.taken.load(Ordering::Relaxed) == 0
                && self.taken.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            if spins < SPINS {
                spins += 1;
                core::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists and is borrowed mutably, so nobody else touches the value.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.taken.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_of_many_threads_are_all_counted() {
        let lock = SpinLock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 400_000);
    }

    #[test]
    fn a_panic_under_the_lock_gives_it_back() {
        let lock = SpinLock::new(());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("on purpose");
        }));
        assert!(result.is_err());
        drop(lock.lock());
    }
}
