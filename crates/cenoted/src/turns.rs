//! The order of backups: a daemon makes one at a time.

use crate::sessions::Sessions;
use cenote_layout::id::Uuid;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How often a backup that waits looks: for its turn, and for answers of clients.
pub(crate) const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Whose turn it is: a daemon makes one backup at a time.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Held while a backup is made: its number.
    number: Mutex<u32>,
    /// The client of the newest backup.
    client: Mutex<Uuid>,
}

/// The turn of a backup, until it is dropped.
pub(crate) struct Turn<'t> {
    pub(crate) number: u32,
    _held: MutexGuard<'t, u32>,
}

impl Turns {
    /// Takes the turn. A backup whose client has left is about to end: this waits for its end.
    ///
    /// # Errors
    /// Why there is no turn: the client of another backup waits for its answer, or `more` is false.
    pub(crate) fn take(
        &self,
        client: Uuid,
        sessions: &Sessions,
        more: &impl Fn() -> bool,
    ) -> Result<Turn<'_>, &'static str> {
        loop {
            let held = match self.number.try_lock() {
                Ok(held) => Some(held),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let mut newest = self.client.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(mut held) = held {
                *held = held.wrapping_add(1);
                *newest = client;
                return Ok(Turn { number: *held, _held: held });
            }
            if sessions.get(*newest).is_some_and(|session| !session.is_leaving()) {
                return Err("another backup is running: wait for its end");
            }
            drop(newest);
            if !more() {
                return Err("it was stopped");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}
