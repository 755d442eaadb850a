//! The bug that is planted in this thread.

use super::Bug;

#[cfg(feature = "planted-bugs")]
std::thread_local! {
    static ACTIVE: core::cell::Cell<Bug> = const { core::cell::Cell::new(Bug::None) };
}

/// Whether this bug is planted in this thread.
#[inline(always)]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    #[cfg(feature = "planted-bugs")]
    let is_planted = ACTIVE.with(|active| active.get() == bug);
    #[cfg(not(feature = "planted-bugs"))]
    let (is_planted, _) = (false, bug);
    is_planted
}

/// Plants a bug in this thread; [`Bug::None`] takes it out again.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Bug) {
    ACTIVE.with(|active| active.set(bug));
}
