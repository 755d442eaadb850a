//! The logs of one store that are in use in this process, and whether one of them may leave its
//! last range unfenced.
//!
//! Invariant: at most one log has a range word that is stored but not known to be durable, and then
//! it is the only log of the group.
//!
//! A log that joins raises the count, makes every running thread see that, flushes all range words
//! and fences. A thread that commits stores its range first and reads the count then: after
//! `membarrier` it has either stored its range, which is then visible and flushed here, or
//! will read the new count and fence itself. Where several processes change the data of a store, no
//! log is lazy either ([`LogGroup::never_lazy`]). Where `membarrier` is missing no log is ever
//! lazy.

use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, planted};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// See the module. One per open store.
#[derive(Debug)]
pub struct LogGroup {
    count: AtomicUsize,
    /// Addresses of range words.
    members: Mutex<Vec<usize>>,
    lazy_supported: AtomicBool,
}

impl LogGroup {
    /// A group without logs.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            count: AtomicUsize::new(0),
            members: Mutex::new(Vec::new()),
            lazy_supported: AtomicBool::new(cenote_sys::membarrier::register_private_expedited()),
        })
    }

    /// Whether the range of the log that asks, which is a member, may stay unfenced. Decides only
    /// after the range is stored; before, it is a guess.
    #[inline]
    pub(crate) fn lazy_allowed(&self) -> bool {
        // The asking thread's store of its range is before this load, for the compiler too:
        // `membarrier` orders the processor.
        cenote_sys::cpu::compiler_barrier();
        self.lazy_supported.load(Ordering::Relaxed) && self.count.load(Ordering::Relaxed) == 1
    }

    /// From now on no log leaves its range unfenced: other processes change data of the store too,
    /// and a range that is not durable would let a loss of power compare what they wrote with a
    /// seal of this process.
    pub fn never_lazy(&self, persistence: Persistence) {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if planted(Bug::LazyDespiteSharing)
            || !self.lazy_supported.swap(false, Ordering::SeqCst)
            || !persistence.is_power()
        {
            return;
        }
        // A thread that commits has stored its range, and that is visible now, or will read that it
        // may not be lazy.
        let _ = cenote_sys::membarrier::private_expedited();
        for &word in members.iter() {
            // SAFETY: members' range words are mapped until they leave, and leaving takes the mutex
            // that we hold.
            unsafe { persistence.flush(word as *const u8, 8) };
        }
        persistence.fence();
    }

    /// Adds the log with this range word.
    ///
    /// The words of all members stay mapped until they leave (contract of
    /// [`crate::TxContext::new`]).
    pub(crate) fn join(&self, range_word: usize, persistence: Persistence) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_add(1, Ordering::SeqCst);
        if persistence.is_power() && !members.is_empty() && !planted(Bug::JoinNotFlushed) {
            // Registered at the start, it does not fail any more. Should it fail, the flush below
            // still orders what is visible, and no commit is lazy from now on.
            if self.lazy_supported.load(Ordering::Relaxed)
                && !cenote_sys::membarrier::private_expedited()
            {
                self.lazy_supported.store(false, Ordering::SeqCst);
            }
            for &word in members.iter() {
                // SAFETY: members' range words are mapped until they leave, and leaving takes the
                // mutex that we hold.
                unsafe { persistence.flush(word as *const u8, 8) };
            }
            persistence.fence();
        }
        members.push(range_word);
    }

    /// Removes a log whose range is durable.
    pub(crate) fn leave(&self, range_word: usize) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|&word| word != range_word);
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}
