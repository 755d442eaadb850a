//! A transaction from its begin to its end.
//!
//! Programs compile this for each of their closures: a short transaction consists of it, and a call
//! for each step would cost more than the step. Nothing in it may drop an [`Error`], which is much
//! code. What not every transaction comes to is elsewhere, compiled once.

use crate::error::{Error, Result};
use crate::frames::{Covered, Entered, Frame, begun_here, lock_all};
use crate::local;
use crate::open_pool::PoolInner;
use crate::process_lock::{WriteTurn, turns};
use crate::session::refuse_unusable;
use crate::thread_log::Active;
use crate::tx::Tx;
use cenote_store::StoreError;
use parking_lot::RwLockWriteGuard;

/// Locks, begins, runs, commits or aborts, unlocks; in this order, also when `body` panics.
#[inline]
pub(crate) fn run<R, E: From<Error>>(
    covered: Covered<'_>,
    body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
) -> Result<R, E> {
    let first = covered.first();
    refuse_unusable(&first.store.store)?;
    let log = local::thread_log(&first.store, first.hidden)?;
    // SAFETY: the log is this thread's, and lives as long as the store, which the pools keep open.
    let Some(active) = (unsafe { Active::new(log) }) else {
        return Err(would_deadlock(first, "a transaction").into());
    };
    if begun_here(&first.store) {
        // By the other of this thread's two logs.
        return Err(would_deadlock(first, "a transaction").into());
    }
    for pool in covered.all() {
        if pool.is_viewed_here() {
            return Err(would_deadlock(pool, "a view").into());
        }
        if !pool.changeable {
            return Err(pool.why_unchangeable().into());
        }
    }
    let frame = Frame::new(covered);
    let _entered = Entered::new(&frame);
    let _guards = match covered {
        Covered::One(pool) => Guards::One(pool.lock_to_write()?),
        Covered::Many(pools) => Guards::Many(lock_all(pools)?),
    };
    // Given back before the guards, after the transaction has ended.
    let _turns = match covered {
        Covered::One(pool) => Turns::One(pool.write_turn()?),
        Covered::Many(pools) => Turns::Many(turns(pools)?),
    };
    first.refuse_left()?;
    // SAFETY: `active` makes this the only user of the context.
    let Some(context) = (unsafe { &mut (*log.as_ptr()).context }) else {
        return Err(Error::from(StoreError::Forked).into());
    };
    // SAFETY: ended below by commit or by drop; it cannot be moved out of `Tx` by safe code.
    let mut tx = Tx::new(unsafe { context.begin() }, covered);
    match body(&mut tx) {
        Ok(value) => {
            tx.commit()?;
            drop(active);
            Ok(value)
        }
        Err(error) => {
            tx.abort();
            drop(active);
            Err(error)
        }
    }
}

enum Guards<'p> {
    One(#[allow(dead_code, reason = "held, not used")] RwLockWriteGuard<'p, ()>),
    Many(#[allow(dead_code, reason = "held, not used")] Vec<RwLockWriteGuard<'p, ()>>),
}

enum Turns<'p> {
    One(#[allow(dead_code, reason = "held, not used")] Option<WriteTurn<'p>>),
    Many(#[allow(dead_code, reason = "held, not used")] Vec<WriteTurn<'p>>),
}

#[cold]
#[inline(never)]
fn would_deadlock(pool: &PoolInner, by: &'static str) -> Error {
    Error::WouldDeadlock { pool: pool.handle.name().into(), by }
}
