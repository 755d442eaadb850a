//! A memory barrier on all threads of this process at once. With it a frequent path needs no fence,
//! at the cost of a rare path.
//!
//! The frequent side has a compiler fence only; the rare side calls [`private_expedited`], which
//! makes every thread of the process execute a full barrier before it returns (a few microseconds).
//!
//! # Safety argument
//!
//! No `unsafe` code. A refused barrier is reported and never taken for done.

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

/// Announces that this process will use [`private_expedited`]. False: the kernel or a sandbox does
/// not let it; the frequent side must then use real fences. Survives neither `exec` nor, in the
/// child's eyes, `fork`: call it anew.
#[must_use]
pub fn register_private_expedited() -> bool {
    // Miri knows no such call.
    !cfg!(miri)
        && membarrier_query().contains(
            MembarrierQuery::PRIVATE_EXPEDITED | MembarrierQuery::REGISTER_PRIVATE_EXPEDITED,
        )
        && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// A full memory barrier on every running thread of this process. False: it did not happen (not
/// registered, or refused), and nothing may be concluded.
#[must_use]
pub fn private_expedited() -> bool {
    membarrier(MembarrierCommand::PrivateExpedited).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;

    #[test]
    fn a_barrier_happens_only_after_registration() {
        // In a child: registration belongs to the whole process, and other tests may have done it.
        let seen = in_child(|| {
            if !register_private_expedited() {
                return 2;
            }
            i32::from(!private_expedited())
        });
        if seen == 2 {
            println!("skipped: the kernel or a sandbox refuses membarrier");
            return;
        }
        assert_eq!(seen, 0, "registered, and yet refused");
    }
}
