//! Locks of the whole process that no thread has while the process forks.
//!
//! A child has one thread, and copies of all locks. One that another thread had at that moment
//! would be waited for without end, and what it guards might be half changed. So a fork handler of
//! the C library takes all of these locks before a fork, and gives them back behind it, in parent
//! and child: the child finds each free, and what it guards whole.
//!
//! # States of a fork
//!
//! 1. *Announced.* A counter is not 0. A thread that has none of these locks waits before it
//!    takes one; a thread that has one may take others, and goes on until it has none. So the locks
//!    become free, however busy they are. A thread waits 100 ms at most: it may have another
//!    lock, for which a thread waits that has one of these.
//! 2. *Taken.* The handler has all locks. It waits for none of them while it has another: it tries
//!    all, and starts again if one is taken. After five seconds it gives up, for the case that the
//!    thread that forks has one itself.
//! 3. *Over.* Behind the fork, the handler gives the locks back, and ends the announcement.
//!
//! A raw `clone` runs no handler.
//!
//! # Safety argument
//!
//! `kept` of a lock is touched by the handlers alone, which exclude each other by the lock of the
//! list: the first handler takes that, and the one behind the fork gives it back.

use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a fork waits for the locks.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a thread lets an announced fork go first.
const GATE: Duration = Duration::from_millis(100);

/// How long a thread sleeps before it looks again.
const PAUSE: Duration = Duration::from_micros(50);

/// Forks that are announced and not over.
static FORKING: AtomicU32 = AtomicU32::new(0);

std::thread_local! {
    /// How many of these locks this thread has.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A lock in a static.
#[derive(Debug)]
pub struct ProcessLock<T: 'static> {
    mutex: Mutex<T>,
    listed: AtomicBool,
    kept: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: the mutex guards the value; the module says which threads touch `kept`. A guard that one
// thread made is dropped by the same, which in a child is its only one.
unsafe impl<T: Send> Sync for ProcessLock<T> {}

/// A lock that this thread has, until it drops this.
#[derive(Debug)]
pub struct ProcessGuard<T: 'static> {
    guard: MutexGuard<'static, T>,
    counted: Counted,
}

impl<T> ProcessGuard<T> {
    /// Gives the lock back while it waits for a condition, as [`Condvar::wait`] does.
    #[must_use]
    pub fn wait(self, condition: &Condvar) -> Self {
        let Self { guard, counted } = self;
        drop(counted);
        let guard = condition.wait(guard).unwrap_or_else(PoisonError::into_inner);
        Self { guard, counted: Counted::new() }
    }
}

impl<T> Deref for ProcessGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for ProcessGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// One of the locks that [`HELD`] counts.
#[derive(Debug)]
struct Counted;

impl Counted {
    fn new() -> Self {
        HELD.set(HELD.get() + 1);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

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
    pub fn lock(&'static self) -> ProcessGuard<T> {
        if !self.listed.load(Ordering::Acquire) {
            self.list();
        }
        if HELD.get() == 0 && FORKING.load(Ordering::Relaxed) > 0 {
            Self::let_forks_go_first();
        }
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        ProcessGuard { guard, counted: Counted::new() }
    }

    #[cold]
    fn let_forks_go_first() {
        let begin = Instant::now();
        while FORKING.load(Ordering::Relaxed) > 0 && begin.elapsed() < GATE {
            std::thread::sleep(PAUSE);
        }
    }

    #[cold]
    fn list(&'static self) {
        static ARMED: Once = Once::new();
        // Miri does not fork.
        if !cfg!(miri) {
            ARMED.call_once(|| {
                // SAFETY: plain functions, which live as long as the process.
                let _ = unsafe {
                    libc::pthread_atfork(Some(take_all), Some(give_back), Some(give_back_in_child))
                };
            });
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
    FORKING.fetch_add(1, Ordering::Relaxed);
    loop {
        let list = LIST.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: with the list.
        let taken = list.iter().take_while(|lock| unsafe { lock.keep() }).count();
        if taken < list.len() {
            // SAFETY: with the list.
            list.iter().take(taken).for_each(|lock| unsafe { lock.give_back() });
            if begin.elapsed() < PATIENCE {
                drop(list);
                std::thread::sleep(PAUSE);
                continue;
            }
        }
        // SAFETY: this thread has the list from here to `give_back`.
        unsafe { *DURING.0.get() = Some(list) };
        return;
    }
}

/// Behind the fork, in the same thread.
extern "C" fn give_back() {
    give_back_all();
    FORKING.fetch_sub(1, Ordering::Relaxed);
}

/// Behind the fork, in the copy of the thread in the child, which no other fork is about.
extern "C" fn give_back_in_child() {
    give_back_all();
    FORKING.store(0, Ordering::Relaxed);
}

fn give_back_all() {
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

    /// Stops the threads also when the test fails.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// This thread, and those that it makes, run on one processor: a lock that is free for a moment
    /// is seen free by no thread that was interrupted for it.
    fn on_one_processor() {
        // SAFETY: a set of the caller's own, of the size that it has; any bytes are a set.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            let size = size_of::<libc::cpu_set_t>();
            assert_eq!(libc::sched_getaffinity(0, size, &raw mut set), 0);
            let one = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &set));
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(one.expect("a processor"), &mut set);
            assert_eq!(libc::sched_setaffinity(0, size, &raw const set), 0);
        }
    }

    #[test]
    fn a_child_finds_the_locks_of_busy_threads_free_and_their_values_whole() {
        // In a thread of its own, whose processor is its own matter.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                on_one_processor();
                forks_beside_busy_threads(40);
            });
        });
        assert!(BUSY.lock()[0] > 0);
    }

    fn forks_beside_busy_threads(count: usize) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
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
                // SAFETY: a system call; a child that waits without end dies of the signal.
                unsafe { libc::alarm(10) };
                let both = BUSY.lock();
                i32::from(both[0] != both[1] || OTHER.mutex.try_lock().is_err())
            };
            for fork in 0..count {
                assert_eq!(in_child(whole), 0, "fork {fork}");
            }
        });
    }
}
