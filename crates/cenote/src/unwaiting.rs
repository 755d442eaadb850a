//! Lists threads that must not wait: they call code of the program's while they hold locks, or
//! while another thread waits for them, and no other list names that.

use cenote_heap::is_helper;
use core::cell::Cell;

thread_local! {
    /// How often this thread has begun to be one.
    static UNWAITING: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread must not wait, as long as this lives.
pub(crate) struct Unwaiting(());

impl Unwaiting {
    pub(crate) fn begin() -> Self {
        UNWAITING.set(UNWAITING.get() + 1);
        Self(())
    }
}

impl Drop for Unwaiting {
    fn drop(&mut self) {
        UNWAITING.set(UNWAITING.get() - 1);
    }
}

/// Whether the calling thread must not wait for any other.
pub(crate) fn must_not_wait() -> bool {
    is_helper() || UNWAITING.get() > 0
}
