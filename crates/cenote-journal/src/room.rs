//! Memory for transfers: how much of it is taken at once.

use std::sync::{Condvar, Mutex, PoisonError};

/// Bytes of transfers that are worked on at once, by all threads together; a larger one is alone.
const ROOM: u64 = 64 << 20;

/// Keeps the memory of transfers within [`ROOM`]. They come in in the order in which they ask.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Whose turn it is to come in.
    door: Mutex<()>,
    taken: Mutex<u64>,
    left: Condvar,
}

/// A transfer that was let in.
pub(crate) struct Inside<'a>(&'a Room, u64);

impl Room {
    /// Waits until `bytes` fit.
    pub(crate) fn enter(&self, bytes: u64) -> Inside<'_> {
        let _turn = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |taken: &mut u64| *taken > 0 && taken.saturating_add(bytes) > ROOM;
        let mut taken = self.left.wait_while(taken, full).unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_add(bytes);
        Inside(self, bytes)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_sub(self.1);
        drop(taken);
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_transfers_wait_for_each_other_and_none_for_ever() {
        let room = Room::default();
        let (now, most) =
            (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (room, now, most) = (&room, &now, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes = if (thread + round) % 5 == 0 { 3 * ROOM } else { ROOM / 3 };
                        let inside = room.enter(bytes);
                        let sum =
                            now.fetch_add(bytes, core::sync::atomic::Ordering::Relaxed) + bytes;
                        most.fetch_max(sum, core::sync::atomic::Ordering::Relaxed);
                        assert!(sum <= ROOM || sum == bytes, "{sum} with {bytes} among them");
                        std::thread::yield_now();
                        now.fetch_sub(bytes, core::sync::atomic::Ordering::Relaxed);
                        drop(inside);
                    }
                });
            }
        });
        assert!(most.into_inner() >= 3 * ROOM);
    }
}
