//! The gate: one member of a pool keeps all others from the slow path for a moment. It may be
//! killed at any time.
//!
//! A thread in a slow path, where superblocks change hands, is *inside*; each member counts its
//! threads that are. The fast paths know nothing of it. A member that has the pool's lock
//! ([`crate::backing::Sharing`]) may *close* the gate. When the counts of all living members are
//! zero, no superblock is in living hands.
//!
//! **Invariant.** *After `close`, and a `is_quiet` about a member, no thread of that member is
//! inside until `open`.* Proof. `enter` counts first and looks at the gate after it; `is_quiet` is
//! a read-modify-write of the same count. If the counting comes first, `is_quiet` sees it (an
//! atomic read-modify-write reads the latest value), and says no unless that thread has left, and
//! what it did inside is seen then (release and acquire). If it comes second, it reads what
//! `is_quiet` wrote, or a later count, so it synchronises with it, and sees the gate closed or what
//! came after that.
//!
//! A thread that dies inside leaves its count behind: counts of dead members are not asked. The
//! thread that has the lock next opens a gate that a dead member closed: its lock proves that no
//! thread is at work behind the gate.

use crate::sync::{AtomicU64, Ordering};
use cenote_medium::planted::{Bug, planted};

/// Goes inside; false: the gate is closed, and the caller outside.
#[must_use]
pub(crate) fn enter(closed: &AtomicU64, inside: &AtomicU64) -> bool {
    inside.fetch_add(1, Ordering::AcqRel);
    if closed.load(Ordering::Acquire) == 0 || planted(Bug::GateIgnored) {
        return true;
    }
    leave(inside);
    false
}

/// Goes outside.
pub(crate) fn leave(inside: &AtomicU64) {
    inside.fetch_sub(1, Ordering::Release);
}

/// Closes the gate; the caller has the lock.
pub(crate) fn close(closed: &AtomicU64) {
    closed.store(1, Ordering::Relaxed);
}

/// Whether no thread of a member is inside; the caller has closed the gate.
pub(crate) fn is_quiet(inside: &AtomicU64) -> bool {
    inside.fetch_add(0, Ordering::AcqRel) == 0
}

/// Whether it is closed.
pub(crate) fn is_closed(closed: &AtomicU64) -> bool {
    closed.load(Ordering::Acquire) != 0
}

/// Opens the gate; the caller has the lock. All threads that enter see the changes that were made
/// behind it.
pub(crate) fn open(closed: &AtomicU64) {
    closed.store(0, Ordering::Release);
}
