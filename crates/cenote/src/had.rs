//! A pool that a thread has, or wants, and how.

/// How a pool is had, or wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Shared,
    Alone,
}

impl How {
    pub(crate) fn excludes(self, other: Self) -> bool {
        self == Self::Alone || other == Self::Alone
    }
}

/// A pool by its place, which is compared and not followed.
#[derive(Clone, Copy)]
pub(crate) struct Had {
    pub(crate) pool: *const (),
    pub(crate) how: How,
}

// SAFETY: an address.
unsafe impl Send for Had {}

impl Had {
    pub(crate) fn new<P>(pool: *const P, how: How) -> Self {
        Self { pool: pool.cast(), how }
    }
}
