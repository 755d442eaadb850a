//! Threads that wait for pools while they have others, and circles of them.
//!
//! A thread that has no pool may wait: the holder of the pool that it wants waits for others, not
//! for it. One that has pools (views, transactions that it is in, or gates that let its psync in)
//! is noted, with what it has and what it wants, **before** it waits. If those that are noted would
//! then wait for each other in a circle, it is refused. *No circle is missed:* each begins with the
//! last of its threads to be noted, and what a thread has does not change while it waits. *None is
//! seen that is not there:* a thread has what it has noted, and cannot have got what it waits for
//! as long as another one noted that it has that.
//!
//! *A thread whose call has a limit is not noted*: its wait ends by itself, and so does each circle
//! that it is in.
//!
//! *A second view passes writers that wait.* A thread with a view that waited behind a writer would
//! wait for a thread that has nothing, and so is not noted; that one waits for views.
//!
//! Only threads of this process are seen: a circle over the locks between processes that share a
//! pool ([`crate::process_lock`]) ends by time ([`crate::patience`]).

use crate::error::{Error, Result};
use crate::frames::{had_in_transactions, is_any_here};
use crate::had::{Had, LockMode};
use crate::open_pool::PoolInner;
use crate::patience::patience;
use crate::unwaiting::must_not_wait;
use crate::viewed::{had_in_views, is_any_viewed_here};
use crate::wait_limit::wait_limit;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::process_lock::ProcessLock;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

/// A thread that waits for a pool and has others.
struct Waiter {
    number: u64,
    wants: Had,
    has: Vec<Had>,
}

impl Waiter {
    /// Whether `other` waits until this one goes on.
    fn keeps(&self, other: &Self) -> bool {
        self.has.iter().any(|had| had.keeps(other.wants))
    }
}

static WAITERS: ProcessLock<Vec<Waiter>> = ProcessLock::new(Vec::new());

/// A thread that is noted, as long as this lives.
struct Noted(u64);

impl Drop for Noted {
    fn drop(&mut self) {
        WAITERS.lock().retain(|waiter| waiter.number != self.0);
    }
}

/// Notes that the calling thread waits; `None`: it would close a circle.
fn note(wants: Had, has: Vec<Had>) -> Option<Noted> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let new = Waiter { number: NEXT.fetch_add(1, Ordering::Relaxed), wants, has };
    let mut waiters = WAITERS.lock();
    if !planted(Bug::CircleNotSeen) && closes_circle(&waiters, &new) {
        return None;
    }
    let noted = Noted(new.number);
    waiters.push(new);
    Some(noted)
}

/// Whether `new` waits, over others, for itself.
fn closes_circle(waiters: &[Waiter], new: &Waiter) -> bool {
    let mut awaited: Vec<&Waiter> = vec![new];
    let mut seen = vec![false; waiters.len()];
    while let Some(at) = awaited.pop() {
        for (other, seen) in waiters.iter().zip(&mut seen) {
            if !*seen && other.keeps(at) {
                if new.keeps(other) {
                    return true;
                }
                *seen = true;
                awaited.push(other);
            }
        }
    }
    false
}

impl PoolInner {
    /// The pool's lock, shared. Waits; a thread that has a pool already goes past writers that
    /// wait.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`]: threads would wait for each other. [`Error::WaitedLong`].
    #[inline]
    pub(crate) fn lock_to_read(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let nested = is_any_viewed_here() || is_any_here();
        let taken = if nested { self.lock.try_read_recursive() } else { self.lock.try_read() };
        match taken {
            Some(guard) => Ok(guard),
            None => self.wait_for_read_lock(nested, &[]),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_read_lock(&self, nested: bool, gates: &[&Self]) -> Result<RwLockReadGuard<'_, ()>> {
        let _noted = self.before_waiting(LockMode::Shared, false, gates)?;
        match patience(false) {
            Some(until) if nested => self.in_time(self.lock.try_read_recursive_until(until)),
            Some(until) => self.in_time(self.lock.try_read_until(until)),
            None if nested => Ok(self.lock.read_recursive()),
            None => Ok(self.lock.read()),
        }
    }

    /// As [`PoolInner::lock_to_read`], past writers that wait in any case.
    ///
    /// # Errors
    /// As [`PoolInner::lock_to_read`].
    pub(crate) fn lock_past_writers(&self) -> Result<RwLockReadGuard<'_, ()>> {
        self.lock_in_psync(&[])
    }

    /// The same for a psync, which the gates of these pools let in.
    ///
    /// # Errors
    /// As [`PoolInner::lock_to_read`].
    pub(crate) fn lock_in_psync(&self, gates: &[&Self]) -> Result<RwLockReadGuard<'_, ()>> {
        match self.lock.try_read_recursive() {
            Some(guard) => Ok(guard),
            None => self.wait_for_read_lock(true, gates),
        }
    }

    /// Notes that a psync waits for the pool's gate, which the gates of others let in; the answer
    /// lives while it waits. `None`: it would close a circle.
    pub(crate) fn before_gate(&self, others: &[&Self]) -> Option<Box<dyn Any>> {
        if planted(Bug::GateNotNoted) {
            return Some(Box::new(()));
        }
        let noted = self.noted(Had::gate(self), false, others).ok()?;
        Some(Box::new(noted))
    }

    /// The pool's lock, alone, for this thread's innermost transaction, which has nothing yet.
    /// Waits.
    ///
    /// # Errors
    /// As [`PoolInner::lock_to_read`].
    #[inline]
    pub(crate) fn lock_to_write(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        match self.lock.try_write() {
            Some(guard) => Ok(guard),
            None => self.wait_for_write_lock(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for_write_lock(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let _noted = self.before_waiting(LockMode::Alone, true, &[])?;
        match patience(true) {
            Some(until) => self.in_time(self.lock.try_write_until(until)),
            None => Ok(self.lock.write()),
        }
    }

    fn before_waiting(
        &self,
        how: LockMode,
        begins: bool,
        gates: &[&Self],
    ) -> Result<Option<Noted>> {
        self.noted(Had::new(self, how), begins, gates)
    }

    /// `begins`: for the innermost transaction, which has nothing yet. `gates`: that let this
    /// thread's psync in.
    fn noted(&self, wants: Had, begins: bool, gates: &[&Self]) -> Result<Option<Noted>> {
        let refused = || {
            let pool = self.handle.name().to_string();
            Err(Error::WouldDeadlock { pool, by: "what that waits for" })
        };
        if must_not_wait() {
            return refused();
        }
        if wait_limit().is_some() {
            return Ok(None);
        }
        let mut has = had_in_views();
        has.extend(had_in_transactions(begins));
        has.extend(gates.iter().map(|pool| Had::gate(core::ptr::from_ref(*pool))));
        if has.is_empty() {
            return Ok(None);
        }
        match note(wants, has) {
            Some(noted) => Ok(Some(noted)),
            None => refused(),
        }
    }
}
