//! Files in memory that a session's psyncs come in ([`cenote_journal::Transfer`]).
//!
//! The daemon makes them and hands them out. It takes no descriptor that a client opened: closing
//! that could give up the daemon's lock on its store, or wait for a file system that the client
//! serves. Each transfer is for one psync. The client fills it, and it counts as the client's
//! memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Transfers of a session that are not used up: as many threads may be on their way to a psync.
const MOST: usize = 64;

/// A session's transfers, by number.
#[derive(Debug, Default)]
pub(crate) struct Transfers(Mutex<(u64, BTreeMap<u64, File>)>);

impl Transfers {
    /// Makes one: its number, and the descriptor for the client. The oldest goes if there are too
    /// many.
    pub(crate) fn add(&self) -> io::Result<(u64, OwnedFd)> {
        let file = cenote_sys::dual_mapping::nameless_file("cenote-psync")?;
        let theirs = file.try_clone()?.into();
        let mut transfers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, open) = &mut *transfers;
        *last += 1;
        open.insert(*last, file);
        if open.len() > MOST {
            open.pop_first();
        }
        Ok((*last, theirs))
    }

    /// Gives one for its psync.
    pub(crate) fn take(&self, number: u64) -> Option<File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_transfer_is_used_once_and_the_oldest_goes() {
        let transfers = Transfers::default();
        let (first, theirs) = transfers.add().expect("made");
        File::from(theirs).write_all_at(b"contents", 0).expect("written");
        let mut bytes = [0; 8];
        transfers.take(first).expect("there").read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"contents");
        assert!(transfers.take(first).is_none() && transfers.take(99).is_none());
        let numbers: Vec<u64> = (0..=MOST).map(|_| transfers.add().expect("made").0).collect();
        assert!(transfers.take(numbers[0]).is_none() && transfers.take(numbers[1]).is_some());
    }
}
