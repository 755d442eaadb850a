//! A pool that a thread has, or wants, and how.

/// How a pool is had, or wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    Shared,
    Alone,
}

impl LockMode {
    fn excludes(self, other: Self) -> bool {
        self == Self::Alone || other == Self::Alone
    }
}

/// What of a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockedPart {
    Lock,
    /// The gate that lets one psync in after the other.
    Gate,
}

/// A pool by its place, which is compared and not followed.
#[derive(Clone, Copy)]
pub(crate) struct Had {
    pool: *const (),
    what: LockedPart,
    how: LockMode,
}

// SAFETY: an address.
unsafe impl Send for Had {}

impl Had {
    /// The pool's lock.
    pub(crate) fn new<P>(pool: *const P, how: LockMode) -> Self {
        Self { pool: pool.cast(), what: LockedPart::Lock, how }
    }

    /// The pool's gate, by a psync.
    pub(crate) fn gate<P>(pool: *const P) -> Self {
        Self { pool: pool.cast(), what: LockedPart::Gate, how: LockMode::Alone }
    }

    /// Whether a thread that has this keeps it from a thread that wants `wanted`.
    pub(crate) fn keeps(self, wanted: Self) -> bool {
        core::ptr::eq(self.pool, wanted.pool)
            && self.what == wanted.what
            && self.how.excludes(wanted.how)
    }
}
