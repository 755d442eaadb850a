//! A store's pool as the backing of a heap.
//!
//! Processes share a pool that a daemon has granted to several writers. Then the daemon says which
//! of them live: it has replayed the logs of all others. The pool's lock is a word in its root
//! puddle, of the kind that dies with its owner.

use crate::backing::{Backing, Extent, Sharing};
use crate::error::BackingError;
use crate::pool_backing::PoolBacking;
use crate::robust::{self, OwnerLiveness, WAITED};
use crate::traced::turn_word;
use cenote_layout::catalog::{HeapKind, PoolMode};
use cenote_layout::heap::LOST_BYTE;
use cenote_layout::pointer::RegionAddress;
use cenote_layout::puddle::{Role, header_space};
use cenote_layout::wear::WearHeader;
use cenote_medium::planted::{Bug, planted};
use cenote_protect::StoreNotes;
use cenote_store::{MetadataPages, PoolHandle, PoolOptions, Puddle};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU64};
use std::io;

// SAFETY: puddles stay in the store's window, at their address, as long as the store is open, which
// a handle keeps it; only the heap uses a heap puddle's body (contract of `PoolBacking::of`), and
// it hangs its data on `heap_slot`. A puddle that is refused is not among the extents.
unsafe impl Backing for PoolBacking {
    fn extents(&self) -> Vec<Extent> {
        if self.member().is_some() {
            // What cannot be learned now is learned later: `catch_up` says so.
            let _ = self.learn_puddles();
        }
        self.puddles()
            .into_iter()
            .filter(|puddle| puddle.role().is_of_pool() && !puddle.is_refused())
            .map(|puddle| Extent {
                index: puddle.index(),
                addr: puddle.addr(),
                size: puddle.size(),
            })
            .collect()
    }

    fn map(&self, extent: &Extent) -> Result<(), BackingError> {
        let failed = |source| BackingError::Store { doing: "mapping a puddle", source };
        match self.store().puddle_of(extent.addr) {
            Some(puddle) => {
                note_kind(self, puddle);
                self.store().ensure_mapped(puddle).map_err(|error| failed(Box::new(error)))
            }
            None => Err(failed("the store has no such puddle any more".into())),
        }
    }

    fn note_metadata(&self, extent: &Extent, bytes: u64) {
        if let Some(puddle) = self.store().puddle_of(extent.addr) {
            puddle.note_metadata(MetadataPages::Until(bytes));
        }
    }

    fn unreadable(&self, addr: u64) -> BackingError {
        let source = Box::new(PoolHandle::unreadable(self, addr));
        BackingError::Store { doing: "reading a puddle", source }
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        take_for(self, Role::Heap, size)
    }

    fn take_for_metadata(&self, size: u64) -> Result<Extent, BackingError> {
        take_for(self, Role::Metadata, size)
    }

    fn is_for_metadata(&self, extent: &Extent) -> Option<bool> {
        self.store().puddle_of(extent.addr).map(|puddle| puddle.role() == Role::Metadata)
    }

    fn expect(&self, size: u64) {
        self.expect_puddle(size);
    }

    /// Not for a daemon's client, which has mappings and no files.
    fn releases(&self) -> bool {
        !self.store().is_connected()
    }

    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, BackingError> {
        // SAFETY: the caller's.
        let released = unsafe { self.release_space(addr, len) };
        released.map_err(|error| BackingError::Store {
            doing: "giving back space",
            source: Box::new(error),
        })
    }

    fn ensure(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        self.ensure_space(addr, len).map_err(|error| BackingError::Store {
            doing: "taking space for a part of a puddle that has none",
            source: Box::new(error),
        })
    }

    #[inline]
    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        let puddle = self.store().puddle_of(addr)?;
        // Log puddles belong to no pool. SAFETY: this is the pool's heap; should there be two, the
        // second finds the slot of the root puddle taken and is not opened.
        (puddle.pool() == self.id()).then(|| unsafe { puddle.heap_slot() })
    }

    fn is_foreign(&self, addr: u64) -> bool {
        self.store().is_of_another(self.id(), addr)
    }

    fn region(&self, region: &RegionAddress) -> Option<u64> {
        self.store().region_address(region)
    }

    fn place(&self, addr: u64) -> Option<RegionAddress> {
        self.store().region_of(addr)
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        self.member().map(|_| self as &dyn Sharing)
    }

    fn usable(&self) -> Result<(), BackingError> {
        let failed =
            |error| BackingError::Store { doing: "changing a pool", source: Box::new(error) };
        self.store().check_usable().map_err(failed)
    }

    fn is_writable(&self) -> bool {
        PoolHandle::is_writable(self)
    }

    fn name(&self) -> String {
        PoolHandle::name(self).into()
    }

    fn can_map_twice(&self) -> bool {
        PoolHandle::can_map_twice(self)
    }

    fn store_notes(&self, addr: u64) -> io::Result<Option<StoreNotes>> {
        if self.record().mode == PoolMode::Direct {
            return Ok(None);
        }
        let notes = self.store().puddle_of(addr).and_then(Puddle::store_notes);
        notes.map(Some).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn can_close_off(&self) -> bool {
        PoolHandle::can_close_off(self)
    }

    fn begin_data(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        let (Some(service), Some(puddle)) = (self.protects(), self.store().puddle_of(addr)) else {
            return Ok(());
        };
        let failed = |error| BackingError::Store { doing: "protecting data", source: error };
        // SAFETY: the extent is mapped, and its slot is this heap's alone, which has metadata
        // elsewhere; programs store by transactions and guards of stores, which announce it.
        let guarded = unsafe { puddle.guard_data(service, addr, len, PoolHandle::name(self)) };
        guarded.map_err(|error| failed(Box::new(error)))
    }

    fn end_data(&self, addr: u64) {
        if self.protects().is_some()
            && let Some(puddle) = self.store().puddle_of(addr)
        {
            puddle.unguard_data();
        }
    }

    fn guarded_window(&self) -> Option<Range<usize>> {
        PoolHandle::guarded_window(self)
    }

    fn puddle_size(&self) -> u64 {
        self.record().puddle_size
    }

    fn size_max(&self) -> u64 {
        self.record().size_max
    }

    #[inline]
    fn is_power(&self) -> bool {
        self.store().persistence().is_power()
    }

    #[inline]
    unsafe fn flush(&self, start: *const u8, len: usize) {
        // SAFETY: the caller's.
        unsafe { self.store().persistence().flush(start, len) }
    }

    #[inline]
    fn fence(&self) {
        self.store().persistence().fence();
    }
}

/// Notes which pages of a puddle are metadata, as far as the kind of its heap says it.
fn note_kind(pool: &PoolBacking, puddle: &Puddle) {
    match pool.record().heap {
        HeapKind::Traced => {}
        HeapKind::Logged => puddle.note_metadata(MetadataPages::Logged),
        // Header and roots; the heap says where its table ends.
        HeapKind::Wear { .. } => {
            let roots = if puddle.index() == 0 { WearHeader::ROOTS_END } else { 0 };
            let known = header_space(puddle.size()) + roots;
            puddle.note_metadata(MetadataPages::Until(known));
        }
    }
}

fn take_for(pool: &PoolBacking, role: Role, size: u64) -> Result<Extent, BackingError> {
    // The parts of a logged heap may be smaller than what the store has.
    let size = size.max(PoolOptions::PUDDLE_SIZE_MIN);
    let failed = |error| BackingError::Store { doing: "growing the pool", source: Box::new(error) };
    let puddle = pool.take_puddle_for(role, size).map_err(failed)?;
    note_kind(pool, puddle);
    Ok(Extent { index: puddle.index(), addr: puddle.addr(), size: puddle.size() })
}

impl Sharing for PoolBacking {
    fn epoch(&self) -> u64 {
        self.store().epoch()
    }

    fn me(&self) -> u64 {
        self.member().unwrap_or_default()
    }

    fn lives(&self, who: u64) -> bool {
        // Where it is not known, it may.
        !self.has_ended(who).unwrap_or(false)
    }

    fn intact(&self) -> Result<(), BackingError> {
        match self.usable() {
            Err(error) if !planted(Bug::LostLockAwaited) => Err(error),
            _ => Ok(()),
        }
    }

    fn has_ended(&self, who: u64) -> Result<bool, BackingError> {
        if who | WAITED == LOST_NAME | WAITED {
            // Of no process: the page of the lock is lost.
            return self.intact().map(|()| false);
        }
        PoolHandle::has_ended(self, who).map_err(|error| BackingError::Store {
            doing: "asking whether a process that had the pool has ended, and its logs are \
                    replayed",
            source: Box::new(error),
        })
    }

    fn lock(&self) -> Result<(), BackingError> {
        turn(self, |word, owners| robust::lock(word, owners).map(|_| true))?;
        // Not one that another thread gave back in memory of this process.
        self.intact().inspect_err(|_| self.unlock())
    }

    fn try_lock(&self) -> Result<bool, BackingError> {
        let taken = turn(self, |word, owners| Ok(robust::try_lock(word, owners)?.is_some()))?;
        if taken {
            self.intact().inspect_err(|_| self.unlock())?;
        }
        Ok(taken)
    }

    fn unlock(&self) {
        let _ = turn(self, |word, _| {
            robust::unlock(word);
            Ok(true)
        });
    }
}

/// What stands in the place of a name whose page is lost.
const LOST_NAME: u64 = u64::from_ne_bytes([LOST_BYTE; 8]);

/// The pool's members judge each other through [`Sharing`].
struct ByHandle<'p>(&'p PoolBacking);

impl OwnerLiveness for ByHandle<'_> {
    type Error = BackingError;

    fn me(&self) -> u64 {
        Sharing::me(self.0)
    }

    fn has_ended(&self, owner: u64) -> Result<bool, BackingError> {
        Sharing::has_ended(self.0, owner)
    }
}

/// Does something with the word of the pool's lock.
fn turn(
    pool: &PoolBacking,
    act: impl FnOnce(&AtomicU64, &ByHandle<'_>) -> Result<bool, BackingError>,
) -> Result<bool, BackingError> {
    let root = pool.root_puddle().filter(|root| !root.is_refused());
    let word = root.and_then(|root| {
        // SAFETY: a daemon's client has puddles mapped when they are granted, those of shared pools
        // for writing; they stay so until the store is dropped.
        unsafe { turn_word(root.addr(), root.size()) }
    });
    let none = || BackingError::Store {
        doing: "locking the pool",
        source: "it has no root puddle".into(),
    };
    act(word.ok_or_else(none)?, &ByHandle(pool))
}
