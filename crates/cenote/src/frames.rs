//! Transactions of the calling thread that are in progress, and locks of their pools.

use crate::error::Result;
use crate::had::{Had, LockMode};
use crate::open_pool::PoolInner;
use crate::session::Inner;
use core::cell::Cell;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::ptr::NonNull;
use std::sync::Arc;

/// The pools of a transaction.
#[derive(Clone, Copy)]
pub(crate) enum Covered<'p> {
    /// The usual case.
    One(&'p PoolInner),
    /// Several, by number.
    Many(&'p [&'p PoolInner]),
}

impl<'p> Covered<'p> {
    #[inline]
    pub(crate) fn all(&self) -> &[&'p PoolInner] {
        match self {
            Self::One(pool) => core::slice::from_ref(pool),
            Self::Many(pools) => pools,
        }
    }

    #[inline]
    pub(crate) fn first(&self) -> &'p PoolInner {
        match self {
            Self::One(pool) => pool,
            Self::Many(pools) => pools[0],
        }
    }
}

thread_local! {
    /// This thread's transaction in progress, the innermost: there may be one for each store.
    static CURRENT: Cell<Option<NonNull<Frame<'static>>>> = const { Cell::new(None) };
}

/// A transaction in progress, on the stack of `Tx::run`.
pub(crate) struct Frame<'p> {
    covered: Covered<'p>,
    outer: Option<NonNull<Frame<'static>>>,
}

impl<'p> Frame<'p> {
    /// Within the current one.
    #[inline]
    pub(crate) fn new(covered: Covered<'p>) -> Self {
        Self { covered, outer: CURRENT.with(Cell::get) }
    }
}

/// Makes a frame the current one as long as it lives.
pub(crate) struct Entered<'f, 'p>(&'f Frame<'p>);

impl<'f, 'p> Entered<'f, 'p> {
    #[inline]
    pub(crate) fn new(frame: &'f Frame<'p>) -> Self {
        CURRENT.with(|current| current.set(Some(NonNull::from(frame).cast())));
        Self(frame)
    }
}

impl Drop for Entered<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        CURRENT.with(|current| current.set(self.0.outer));
    }
}

/// Whether one of this thread's transactions in progress has the pool.
pub(crate) fn covers_here(pool: &PoolInner) -> bool {
    covered_here(|covered| core::ptr::eq(covered, pool)).is_some()
}

/// Whether this thread has a transaction in progress.
#[inline]
pub(crate) fn is_any_here() -> bool {
    CURRENT.with(Cell::get).is_some()
}

/// Whether one of them is on the store.
#[inline]
pub(crate) fn begun_here(store: &Inner) -> bool {
    CURRENT.with(Cell::get).is_some()
        && covered_here(|covered| core::ptr::eq(Arc::as_ptr(&covered.store), store)).is_some()
}

/// A pool of this thread's transactions in progress that is as wanted, if there is one. Its name.
pub(crate) fn covered_here(mut wanted: impl FnMut(&PoolInner) -> bool) -> Option<String> {
    // SAFETY: nothing is done with a frame but to look at its pools.
    unsafe { frames_here() }
        .find_map(|frame| frame.covered.all().iter().copied().find(|pool| wanted(pool)))
        .map(|pool| pool.handle.name().to_string())
}

/// The frames of this thread, the innermost first.
///
/// # Safety
/// The iterator, and what it gives, is not used any more when a frame ends.
unsafe fn frames_here<'f>() -> impl Iterator<Item = &'f Frame<'f>> {
    let mut at = CURRENT.with(Cell::get);
    core::iter::from_fn(move || {
        // SAFETY: `Entered` puts frames here only as long as they live, and each outlives those
        // within. A frame that `exit` left stays on the stack of this thread, and its pools stay in
        // memory (`PoolInner`).
        let frame: &Frame<'_> = unsafe { at?.as_ref() };
        at = frame.outer;
        Some(frame)
    })
}

/// The pools that this thread has by its transactions, without the innermost one if that begins
/// only now.
pub(crate) fn had_in_transactions(begins: bool) -> Vec<Had> {
    // SAFETY: nothing is done with a frame but to look at its pools.
    let frames = unsafe { frames_here() }.skip(usize::from(begins));
    let pools = frames.flat_map(|frame| frame.covered.all());
    pools.map(|pool| Had::new(core::ptr::from_ref(*pool), LockMode::Alone)).collect()
}

/// Locks several pools. No thread waits for one while it holds another: a thread with a view of one
/// of them can get at the others, and end it. They are those of this thread's innermost
/// transaction.
///
/// # Errors
/// As [`PoolInner::lock_to_write`].
pub(crate) fn lock_all<'p>(pools: &[&'p PoolInner]) -> Result<Vec<RwLockWriteGuard<'p, ()>>> {
    take_all(pools, PoolInner::lock_to_write, |pool| pool.lock.try_write())
}

/// The same as readers do, past writers that wait, for a psync that the gates of all of them let
/// in.
///
/// # Errors
/// As [`PoolInner::lock_to_read`].
pub(crate) fn hold_all<'p>(pools: &[&'p PoolInner]) -> Result<Vec<RwLockReadGuard<'p, ()>>> {
    take_all(pools, |pool| pool.lock_in_psync(pools), |pool| pool.lock.try_read_recursive())
}

/// All or none, waiting for one at a time with nothing in hand.
fn take_all<'p, G>(
    pools: &[&'p PoolInner],
    wait: impl Fn(&'p PoolInner) -> Result<G>,
    take: impl Fn(&'p PoolInner) -> Option<G>,
) -> Result<Vec<G>> {
    let mut awaited = 0;
    'again: while let Some(first) = pools.get(awaited) {
        let mut guards = vec![wait(first)?];
        for (at, pool) in pools.iter().enumerate().filter(|(at, _)| *at != awaited) {
            match take(pool) {
                Some(guard) => guards.push(guard),
                None => {
                    awaited = at;
                    continue 'again;
                }
            }
        }
        return Ok(guards);
    }
    Ok(Vec::new())
}
