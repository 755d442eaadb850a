//! How the two journals of a store name each other, so that none of them goes back to an earlier
//! moment beside the other.
//!
//! Each record, and each header, names the number of the other journal's last record that was
//! *durable* when it was written. A journal that lacks records that the other names was put back.
//!
//! # The argument
//!
//! A record has an interval: from the moment that it is appended to the moment that it is durable.
//! Take records up to number a of one journal, and up to b of the other.
//!
//! * *What passes is a state that the store had.* Say record a + 1 was durable before record b was
//!   appended: then b names a + 1, or a later one, and the pair is refused. So no record that is
//!   left out was over before one that is there began. Psyncs whose intervals overlap have no
//!   order, so an order of all psyncs exists in which exactly those that are there come first. The
//!   last record names the most, since numbers of durable records only grow.
//! * *No crash is refused.* What is named was durable, and a journal loses no durable record: a
//!   record is overwritten only after a header, synced, has its number as trimmed. So in every
//!   image of a crash each journal ends with at least the number that the other names.
//!
//! *Numbers never go back.* They go on over halves, trims, growth and sessions. A journal that is
//! made anew goes on behind every number that is known of it ([`Tie::floor`]). A header has the
//! name that its records had: they may be overwritten, and a session may write none.
//!
//! *At level `process`*, and in memory that nothing is synced to, a record is durable once the
//! journal treats it so; a crash of processes loses nothing that was written.
//!
//! *A journal that a session has not opened* does not change in it. After a crash the opener reads
//! it, and syncs it: then its last record is durable, and may be named.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// What is known of the numbers of one journal. Both only grow.
#[derive(Debug, Default)]
struct Numbers {
    /// Its last record that is durable.
    durable: AtomicU64,
    /// The last one that the other journal names.
    named: AtomicU64,
}

/// One of two journals that name each other.
#[derive(Clone, Debug, Default)]
pub struct Tie {
    both: Arc<[Numbers; 2]>,
    which: usize,
}

impl Tie {
    /// Two journals.
    #[must_use]
    pub fn both() -> [Self; 2] {
        let both = Arc::<[Numbers; 2]>::default();
        [0, 1].map(|which| Self { both: Arc::clone(&both), which })
    }

    fn of(&self, which: usize) -> &Numbers {
        &self.both[which & 1]
    }

    /// Its records up to this number are durable, and stay so.
    pub fn reached(&self, number: u64) {
        self.of(self.which).durable.fetch_max(number, Ordering::AcqRel);
    }

    /// The other journal names this number of it.
    pub fn is_named(&self, number: u64) {
        self.of(self.which).named.fetch_max(number, Ordering::AcqRel);
    }

    /// The number that the other journal names: with fewer records this one was put back.
    #[must_use]
    pub fn named(&self) -> u64 {
        self.of(self.which).named.load(Ordering::Acquire)
    }

    /// The highest number that is known of it: where it goes on if it is made anew.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.of(self.which).durable.load(Ordering::Acquire).max(self.named())
    }

    /// What it names of the other journal.
    #[must_use]
    pub fn other(&self) -> u64 {
        Self { both: Arc::clone(&self.both), which: 1 - self.which }.floor()
    }
}
