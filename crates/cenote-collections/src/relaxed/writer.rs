//! The one writer of an open map.
//!
//! Invariant: the lock is held while keys are compared, which is the program's code. A thread that
//! holds it and asks again, because `Ord` or `Eq` of the keys changes the map, is refused: it would
//! wait for itself.

use super::pending::PendingSteps;
use super::{PlainKey, PlainValue};
use cenote::Result;
use cenote::unlogged::refused;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

thread_local! {
    /// Its address is that of no other thread that lives.
    static HERE: u8 = const { 0 };
}

/// What one thread at a time has.
pub(super) struct RelaxedWriter<K, V> {
    pub(super) pending: PendingSteps<K, V>,
    /// A split is committed, and its log did not let go of it.
    pub(super) is_stuck: bool,
}

/// A writer, for one thread after the other.
pub(super) struct WriterLock<K, V> {
    writer: Mutex<RelaxedWriter<K, V>>,
    /// The thread that has it; 0: none.
    holder: AtomicUsize,
}

/// The writer, as long as this lives.
pub(super) struct WriterTurn<'m, K, V> {
    writer: MutexGuard<'m, RelaxedWriter<K, V>>,
    holder: &'m AtomicUsize,
}

impl<K: PlainKey, V: PlainValue> WriterLock<K, V> {
    pub(super) fn new() -> Self {
        let writer = RelaxedWriter { pending: PendingSteps::new(), is_stuck: false };
        Self { writer: Mutex::new(writer), holder: AtomicUsize::new(0) }
    }

    /// Waits for other threads.
    ///
    /// # Errors
    /// [`cenote::Error::Store`] if this thread has it already, or a split was not ended.
    pub(super) fn lock(&self) -> Result<WriterTurn<'_, K, V>> {
        // In a destructor of thread-locals too: this one has none.
        let here = HERE.with(|here| core::ptr::from_ref(here).addr());
        // Another thread never stores this one's number.
        if self.holder.load(Ordering::Relaxed) == here {
            return Err(refused(
                "`Ord` or `Eq` of the keys changes the map that compares them".into(),
            ));
        }
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if writer.is_stuck {
            return Err(refused("the log of a split did not let go of it: reopen the map".into()));
        }
        self.holder.store(here, Ordering::Relaxed);
        Ok(WriterTurn { writer, holder: &self.holder })
    }
}

impl<K, V> Deref for WriterTurn<'_, K, V> {
    type Target = RelaxedWriter<K, V>;

    fn deref(&self) -> &RelaxedWriter<K, V> {
        &self.writer
    }
}

impl<K, V> DerefMut for WriterTurn<'_, K, V> {
    fn deref_mut(&mut self) -> &mut RelaxedWriter<K, V> {
        &mut self.writer
    }
}

impl<K, V> Drop for WriterTurn<'_, K, V> {
    fn drop(&mut self) {
        // Before the lock is given back.
        self.holder.store(0, Ordering::Relaxed);
    }
}
