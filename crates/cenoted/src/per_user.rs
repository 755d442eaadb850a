//! Counts live values, in all and by user: connections, imports that are under way.
//!
//! **A value counts until it is dropped**, on every path. The superuser has no limit of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The counts. Users who have nothing are not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerUser(Arc<Mutex<HashMap<u32, usize>>>);

/// It counts as long as this lives.
#[derive(Debug)]
pub(crate) struct Counted {
    counts: PerUser,
    uid: u32,
}

/// Why there cannot be one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// How many there are.
    pub(crate) all: usize,
    /// How many of these are the user's.
    pub(crate) his: usize,
    /// Whether it is the limit of all that was come to, and not the user's.
    pub(crate) of_all: bool,
}

impl PerUser {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more, if there are fewer than `most` in all and fewer than `most_of_user` of this
    /// user.
    pub(crate) fn add(&self, uid: u32, most: usize, most_of_user: usize) -> Result<Counted, Full> {
        let mut counts = self.lock();
        let (all, his) = (counts.values().sum(), counts.get(&uid).copied().unwrap_or(0));
        let of_all = all >= most;
        if of_all || (uid != 0 && his >= most_of_user) {
            return Err(Full { all, his, of_all });
        }
        counts.insert(uid, his + 1);
        Ok(Counted { counts: self.clone(), uid })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_counts_no_more_and_the_superuser_has_the_limit_of_all_alone() {
        let counts = PerUser::default();
        let mine =
            [counts.add(7, 4, 2).expect("the first"), counts.add(7, 4, 2).expect("the second")];
        assert_eq!(counts.add(7, 4, 2).err(), Some(Full { all: 2, his: 2, of_all: false }));
        let roots =
            [counts.add(0, 4, 1).expect("it has no limit"), counts.add(0, 4, 1).expect("nor here")];
        assert_eq!(counts.add(8, 4, 2).err(), Some(Full { all: 4, his: 0, of_all: true }));
        drop(mine);
        drop(counts.add(8, 4, 2).expect("there is room"));
        drop(roots);
        assert!(counts.lock().is_empty(), "users who have nothing are forgotten");
    }
}
