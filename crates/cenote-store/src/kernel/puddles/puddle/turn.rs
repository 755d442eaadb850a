//! The turn to change what is mapped of a puddle, for the fault handler.
//!
//! Invariant: while a puddle is in state MAPPING, one thread maps or unmaps it, and others wait.

use super::{ABSENT, MAPPED, MAPPING, Puddle};
use core::sync::atomic::Ordering;

impl Puddle {
    /// Calls `f` if it is mapped, and keeps others from mapping or unmapping it meanwhile; `false`
    /// if it is not. May be called by the fault handler.
    pub(crate) fn while_mapped(&self, f: impl FnOnce() -> bool) -> bool {
        while let Err(state) =
            self.state.compare_exchange(MAPPED, MAPPING, Ordering::AcqRel, Ordering::Acquire)
        {
            if state != MAPPING {
                return false;
            }
            std::thread::yield_now();
        }
        let done = f();
        self.state.store(MAPPED, Ordering::Release);
        done
    }

    /// Calls `f` if it is not mapped, and keeps others from mapping it meanwhile.
    pub(crate) fn while_absent(&self, f: impl FnOnce()) {
        if self.state.compare_exchange(ABSENT, MAPPING, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            f();
            self.state.store(ABSENT, Ordering::Release);
        }
    }
}
