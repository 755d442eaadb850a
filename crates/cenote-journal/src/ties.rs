//! How the two journals of a store and its catalog name each other, so that none of the three goes
//! back to an earlier moment beside another.
//!
//! Each is a sequence of numbered *entries*: the records of a journal, the batches of the catalog.
//! Each record, each journal's header and each batch names, of the two others, the number of the
//! last entry that was *durable* when it was written. What lacks an entry that another one names
//! was put back.
//!
//! # The argument
//!
//! An entry has an interval: from the moment that it is appended to the moment that it is durable.
//! Take entries up to number a of one, up to b of the second, and up to c of the third.
//!
//! * *What passes is a state that the store had.* Say entry a + 1 was durable before entry b was
//!   appended: then b names a + 1, or a later one, and the mixture is refused. So no entry that is
//!   left out was over before one that is there began. Changes whose intervals overlap have no
//!   order, so an order of all changes exists in which exactly those that are there come first. The
//!   last entry names the most, since numbers of durable entries only grow.
//! * *No crash is refused.* What is named was durable, and nothing that is durable is lost: a
//!   record is overwritten only after a header, synced, has its number as trimmed; a batch is in
//!   both files of the catalog, synced, and in a snapshot with a later number before they are
//!   written anew. So in every image of a crash each ends with at least the number that the others
//!   name. That holds between any two steps, also between a batch and the next record: an entry
//!   that is not durable is named by none.
//!
//! *Numbers never go back.* They go on over halves, trims, growth, compaction and sessions. A
//! journal that is made anew goes on behind every number that is known of it ([`Tie::floor`]), and
//! so does a catalog that was put back, where the caller accepts that. A header has the name that
//! its records had: they may be overwritten, and a session may write none.
//!
//! *At level `process`*, and in memory that nothing is synced to, a record is durable once the
//! journal treats it so; a crash of processes loses nothing that was written. Batches are synced at
//! every level.
//!
//! *A journal that a session has not opened* does not change in it. After a crash the opener reads
//! it, and syncs it: then its last record is durable, and may be named. The catalog is read, and
//! what is torn is written anew, before a record is appended.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// How many name each other: two journals, and the catalog, which is the last.
pub const TIED: usize = 3;

/// What is known of the numbers of one of them. All only grow.
#[derive(Debug, Default)]
struct Numbers {
    /// Its last entry that is durable.
    durable: AtomicU64,
    /// The last one that each of the others names.
    named: [AtomicU64; TIED],
}

/// One of those that name each other.
#[derive(Clone, Debug, Default)]
pub struct Tie {
    all: Arc<[Numbers; TIED]>,
    which: usize,
}

impl Tie {
    /// Two journals, and the catalog.
    #[must_use]
    pub fn all() -> [Self; TIED] {
        let all = Arc::<[Numbers; TIED]>::default();
        core::array::from_fn(|which| Self { all: Arc::clone(&all), which })
    }

    fn of(&self, which: usize) -> &Numbers {
        &self.all[which % TIED]
    }

    fn floor_of(&self, which: usize) -> u64 {
        let Numbers { durable, named } = self.of(which);
        let named = named.iter().map(|number| number.load(Ordering::Acquire)).max();
        durable.load(Ordering::Acquire).max(named.unwrap_or_default())
    }

    /// The two others, in their order.
    fn others(&self) -> [usize; 2] {
        [usize::from(self.which == 0), if self.which == 2 { 1 } else { 2 }]
    }

    /// Its entries up to this number are durable, and stay so.
    pub fn reached(&self, number: u64) {
        self.of(self.which).durable.fetch_max(number, Ordering::AcqRel);
    }

    /// It names these numbers of the two others, in their order.
    pub fn names(&self, numbers: [u64; 2]) {
        for (other, number) in self.others().into_iter().zip(numbers) {
            self.of(other).named[self.which].fetch_max(number, Ordering::AcqRel);
        }
    }

    /// The number that the others name, and which of them names it: with fewer entries this one was
    /// put back.
    #[must_use]
    pub fn named(&self) -> (u64, usize) {
        let named = &self.of(self.which).named;
        let by = |by: usize| (named[by].load(Ordering::Acquire), by);
        self.others().map(by).into_iter().max().unwrap_or_default()
    }

    /// The highest number that is known of it: where it goes on if it is made anew.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor_of(self.which)
    }

    /// The numbers that it names of the two others, in their order: a journal names the other
    /// journal and the catalog; the catalog names the two journals.
    #[must_use]
    pub fn to_name(&self) -> [u64; 2] {
        self.others().map(|other| self.floor_of(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_names_the_two_others_in_their_order() {
        let ties = Tie::all();
        for (tie, number) in ties.iter().zip([5, 6, 7]) {
            tie.reached(number);
        }
        assert_eq!(ties.each_ref().map(Tie::to_name), [[6, 7], [5, 7], [5, 6]]);
        ties[2].names([9, 1]);
        ties[0].names([3, 8]);
        assert_eq!(ties.each_ref().map(Tie::named), [(9, 2), (3, 0), (8, 0)]);
        assert_eq!(ties.each_ref().map(Tie::floor), [9, 6, 8]);
        ties[1].names([9, 8]);
        assert_eq!(ties[1].to_name(), [9, 8]);
    }
}
