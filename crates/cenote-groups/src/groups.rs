//! [`UpdateGroups`]: groups, counters, and how lines leave.

use crate::drainer::Drainer;
use crate::lines::{CacheModel, Replacement};
use crate::shared::SharedGroups;
use cenote_layout::LINE_SIZE;
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, GroupBug, planted};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;

/// How lines leave the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// A thread writes them back, as soon as this time after the first of them was stored to.
    Drained {
        /// How long it waits; lines that are stored to meanwhile are written back once.
        after: Duration,
    },
    /// A modelled cache, for a simulated medium: a line leaves when its set is full, and at
    /// [`UpdateGroups::drain`]. On real memory, where no model decides what a cache keeps, a line
    /// that leaves is flushed.
    Modelled(CacheModel),
}

/// How groups are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOptions {
    /// Groups that are counted at one time; the others are written through.
    pub counters: u32,
    /// How lines leave the cache.
    pub leaving: Leaving,
}

impl Default for GroupOptions {
    /// 8,192 counters (NVMalloc, section 5.2), and lines that are written back after 200 µs.
    fn default() -> Self {
        let after = Duration::from_micros(200);
        Self { counters: 8192, leaving: Leaving::Drained { after } }
    }
}

/// The table where lines are drained: 64 Ki lines, or 4 MiB of dirty memory.
const DRAINED: CacheModel = CacheModel { sets: 8192, ways: 8, replacement: Replacement::First };

/// Counters of update groups, and the lines that they count; see the [crate].
///
/// Cheap to clone. When the last clone and the last group are gone, the lines that are left are not
/// written back: call [`UpdateGroups::drain`] first if their memory stays.
#[derive(Clone)]
pub struct UpdateGroups {
    shared: Arc<SharedGroups>,
    /// The thread ends with the last clone.
    _drainer: Option<Arc<Drainer>>,
}

/// A group of stores. It may be used by any thread, and by several.
///
/// Dropping it forgets the count; its lines are written back all the same.
pub struct UpdateGroup {
    shared: Arc<SharedGroups>,
    /// 0: none was free.
    counter: u32,
}

impl UpdateGroups {
    /// Counters for stores that `persistence` makes durable. At level `process` no thread is
    /// started and nothing is counted.
    #[must_use]
    pub fn new(persistence: Persistence, options: GroupOptions) -> Self {
        let (model, after) = match options.leaving {
            Leaving::Drained { after } => (DRAINED, Some(after)),
            Leaving::Modelled(model) => (model, None),
        };
        let counters = if persistence.is_power() { options.counters } else { 0 };
        let table = if counters == 0 { CacheModel { sets: 1, ways: 1, ..model } } else { model };
        let shared = SharedGroups::new(persistence, counters, table, after.is_none());
        let shared = Arc::new(shared);
        let after = after.filter(|_| counters > 0);
        let drainer = after.and_then(|after| Drainer::start(&shared, after)).map(Arc::new);
        Self { shared, _drainer: drainer }
    }

    /// Opens a group. Without a free counter it is C0: written through, its count always zero.
    ///
    /// Stores before the call are ordered before those of the group, as all stores of x86-64 are.
    #[must_use]
    pub fn sgroup(&self) -> UpdateGroup {
        UpdateGroup { shared: Arc::clone(&self.shared), counter: self.shared.take_counter() }
    }

    /// How many lines of the group have not reached memory. Zero says that its stores are in memory
    /// if all groups that were opened before it have zero too: a line counts for the first group
    /// that dirtied it.
    #[must_use]
    pub fn scheck(&self, group: &UpdateGroup) -> u32 {
        group.left()
    }

    /// Counters that no group has.
    #[must_use]
    pub fn free_counters(&self) -> usize {
        self.shared.free_counters()
    }

    /// Writes all lines back, and waits for it. Afterwards all stores that groups made before the
    /// call are in memory. At level `process` nothing.
    pub fn drain(&self) {
        while self.shared.write_back() {}
    }

    /// Forgets the lines that lie in a range whole: they are not written back, and their groups do
    /// not wait for them. For memory that is about to be freed.
    pub fn forget(&self, range: Range<usize>) {
        self.shared.forget(range);
    }
}

impl core::fmt::Debug for UpdateGroups {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let counters = self.shared.counts.len() - 1;
        write!(f, "UpdateGroups({counters} counters, {:?})", self.shared.persistence)
    }
}

impl UpdateGroup {
    /// Whether no counter was free, and the group's stores are written through.
    #[must_use]
    pub fn is_written_through(&self) -> bool {
        self.counter == 0
    }

    /// As [`UpdateGroups::scheck`].
    #[must_use]
    pub fn left(&self) -> u32 {
        self.shared.counts[self.counter as usize].load(Ordering::Acquire)
    }

    /// Stores a word, after all stores of this thread before it.
    ///
    /// # Safety
    /// `place` is a word of a mapping that is writable, and stays mapped until the group has
    /// drained or [`UpdateGroups::forget`] was told. Other threads access it by atomic loads and
    /// stores alone.
    #[inline]
    pub unsafe fn store(&self, place: *mut u64, value: u64) {
        // SAFETY: the caller's promise.
        unsafe {
            AtomicU64::from_ptr(place).store(value, Ordering::Release);
            self.note(place.cast_const().cast(), size_of::<u64>());
        }
    }

    /// Copies bytes to a place.
    ///
    /// # Safety
    /// As [`UpdateGroup::store`], for all of them; but no other thread reads or writes them
    /// meanwhile.
    #[inline]
    pub unsafe fn write(&self, place: *mut u8, bytes: &[u8]) {
        // SAFETY: the caller's promise; the bytes are borrowed, so they do not overlap.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len());
            self.note(place.cast_const(), bytes.len());
        }
    }

    /// Counts stores that this thread has made itself.
    ///
    /// # Safety
    /// The range stays mapped as [`UpdateGroup::store`] says.
    pub unsafe fn note(&self, place: *const u8, len: usize) {
        if len == 0 {
            return;
        }
        if self.counter == 0 {
            if !planted(Bug::Group(GroupBug::ExhaustedNotWritten)) {
                // SAFETY: the caller's promise.
                unsafe { self.shared.persistence.persist(place, len) };
            }
            return;
        }
        let (first, last) = (place.addr() as u64, (place.addr() + len - 1) as u64);
        self.shared.note(self.counter, first / LINE_SIZE, last / LINE_SIZE);
    }
}

impl Drop for UpdateGroup {
    fn drop(&mut self) {
        if self.counter != 0 {
            self.shared.give_back(self.counter);
        }
    }
}

impl core::fmt::Debug for UpdateGroup {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "UpdateGroup(counter {}, {} lines left)", self.counter, self.left())
    }
}
