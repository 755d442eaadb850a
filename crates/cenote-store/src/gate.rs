//! Runs the psyncs of one pool one after the other, and keeps the result of each.

use crate::kernel::puddles::locked::locked;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What one psync of pools did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psync {
    /// Its number in the journal; 0 if nothing had changed.
    pub seq: u64,
    /// Pages in which something had changed.
    pub pages: u64,
    /// Bytes of lines that were journalled.
    pub data_bytes: u64,
    /// Bytes that the record took in the journal.
    pub journal_bytes: u64,
    /// How long writers were held.
    pub held: Duration,
}

/// Lets psyncs of one pool in one after the other, and tells those that waited whether another
/// psync has done their work.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    busy: bool,
    /// Psyncs that were let in.
    begun: u64,
    /// The newest of them that was committed, and what it did.
    done: u64,
    last: Psync,
}

/// Why a psync was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotIn {
    /// Another psync, which did this.
    Shared(Psync),
    /// The caller must not wait.
    Refused,
}

impl Gate {
    /// Lets the caller in, with the psync's number; or, if it `may_share`, tells it what a psync
    /// did that was let in after this call. Before it waits it asks `before_waiting`, whose answer
    /// lives while it waits.
    pub(crate) fn enter<N>(
        &self,
        may_share: bool,
        before_waiting: impl FnOnce() -> Option<N>,
    ) -> Result<u64, NotIn> {
        let mut state = locked(&self.state);
        let wanted = state.begun + 1;
        let _noted = match state.busy {
            true => Some(before_waiting().ok_or(NotIn::Refused)?),
            false => None,
        };
        while state.busy {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            if may_share && state.done >= wanted {
                return Err(NotIn::Shared(state.last));
            }
        }
        state.busy = true;
        state.begun += 1;
        Ok(state.begun)
    }

    /// Keeps psyncs out until the answer is dropped.
    pub(crate) fn alone(&self) -> Alone<'_> {
        // It does not share, so it is let in.
        Alone(self, self.enter(false, || Some(())).unwrap_or_default())
    }

    pub(crate) fn leave(&self, number: u64, done: Option<Psync>) {
        let mut state = locked(&self.state);
        state.busy = false;
        if let Some(done) = done {
            (state.done, state.last) = (number, done);
        }
        drop(state);
        self.changed.notify_all();
    }
}

/// No psync is under way.
pub(crate) struct Alone<'a>(&'a Gate, u64);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(gate: &Gate) -> u64 {
        gate.enter(true, || None::<()>).expect("no psync is in")
    }

    #[test]
    fn who_waits_shares_a_psync_that_began_later_and_no_other() {
        let gate = Gate::default();
        let first = entered(&gate);
        let done = |seq| Psync { seq, ..Psync::default() };
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        gate.enter(true, || Some(())).inspect(|&number| {
                            std::thread::sleep(Duration::from_millis(20));
                            gate.leave(number, Some(done(number)));
                        })
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(50));
            gate.leave(first, Some(done(first)));
            let answers: Vec<_> =
                waiters.into_iter().map(|waiter| waiter.join().expect("no panic")).collect();
            // One of them became the second psync, and did the work of those that had waited before
            // it began.
            assert!(answers.contains(&Ok(2)), "{answers:?}");
            assert!(
                answers
                    .iter()
                    .all(|answer| !matches!(answer, Err(NotIn::Shared(done)) if done.seq == first)),
                "{answers:?}"
            );
        });
    }

    #[test]
    fn who_must_not_wait_is_refused_and_leaves_the_gate_as_it_is() {
        let gate = Gate::default();
        let first = entered(&gate);
        assert_eq!(gate.enter(true, || None::<()>), Err(NotIn::Refused));
        gate.leave(first, None);
        assert_eq!(entered(&gate), first + 1);
    }

    #[test]
    fn a_psync_that_failed_does_no_work_of_others() {
        let gate = Gate::default();
        let first = entered(&gate);
        gate.leave(first, None);
        let second = entered(&gate);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| gate.enter(true, || Some(())));
            std::thread::sleep(Duration::from_millis(30));
            gate.leave(second, None);
            assert_eq!(waiter.join().expect("no panic"), Ok(3));
        });
    }
}
