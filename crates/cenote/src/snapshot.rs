//! [`Snapshot`]: reading a pool as its last commit left it, while writers go on.

use crate::error::{Error, Result};
use crate::lost::{Faults, Lost, touch};
use crate::names::{self, Rooted};
use crate::open_pool::{Pool, PoolInner};
use crate::persist::{ArrayOf, Persist};
use crate::ptr::Ptr;
use crate::reader::{NamedRoot, Reader, sealed};
use crate::shift::Shifted;
use cenote_heap::window::{SnapshotHolder, Window};
use cenote_layout::pointer::RegionAddress;
use cenote_medium::planted::{Bug, WindowBug, planted};
use core::cell::Cell;
use core::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A pool as one commit left it; see [`Pool::snapshot`].
///
/// It keeps the pool and its store open, and may be sent to another thread. Threads that read one
/// moment have a clone each:
///
/// ```compile_fail,E0277
/// fn is_shared_by_threads<T: Sync>() {}
/// is_shared_by_threads::<cenote::Snapshot>();
/// ```
pub struct Snapshot {
    // The window goes before the pool.
    window: Arc<Window>,
    /// This snapshot among those that look through the window.
    number: u64,
    /// What an iterator could not read.
    faults: Faults,
    pool: Pool,
    /// The faults are one thread's.
    _not_sync: PhantomData<Cell<()>>,
}

impl core::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Snapshot").field("pool", &self.pool.name()).finish_non_exhaustive()
    }
}

impl Pool {
    /// A snapshot: the pool as its last commit left it. It stays like that, as long as it lives;
    /// transactions go on, and none waits for it.
    ///
    /// Waits for a transaction of another thread on this pool, as [`Pool::read`] does, and not
    /// longer. Reading it waits for nothing. Snapshots of the same commit share what they need, and
    /// snapshots see four different commits at a time.
    ///
    /// Before a transaction changes a page for the first time, the page is copied for the snapshots
    /// that live. These copies are limited to 1 GiB, or what [`Pool::limit_snapshots`] says. At the
    /// limit the transaction fails with an error that names the oldest snapshot
    /// ([`crate::SnapshotError::Full`]). A snapshot never fails later. So drop a snapshot when you
    /// have read it.
    ///
    /// ```
    /// use cenote::{Ptr, Reader, Store};
    ///
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// let pool = Store::open(directory.path())?.pool("counters")?;
    /// let counter = pool.write(|tx| -> cenote::Result<Ptr<u64>> {
    ///     let counter = tx.alloc(1_u64)?;
    ///     tx.set_root(counter)?;
    ///     Ok(counter)
    /// })?;
    /// let snapshot = pool.snapshot()?;
    /// pool.write(|tx| -> cenote::Result<()> {
    ///     *tx.get_mut(counter)? = 2; // does not wait
    ///     Ok(())
    /// })?;
    /// assert_eq!(*snapshot.get(counter)?, 1);
    /// assert_eq!(*pool.read()?.get(counter)?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Pool::read`]. [`Error::Snapshot`]: the pool is shared with other processes, open for
    /// reading only, protected at rest, or of a kind of heap that has no snapshots; snapshots see
    /// four commits already; the kernel cannot map the files a second time (Linux before 5.14).
    pub fn snapshot(&self) -> Result<Snapshot> {
        let window = if planted(Bug::Window(WindowBug::BegunWithin)) {
            self.inner.window_now()?
        } else {
            let _view = self.read()?;
            self.inner.window_now()?
        };
        Ok(Snapshot::new(self.clone(), window))
    }

    /// Limits the bytes of old pages that are kept for snapshots of this pool, of all its handles.
    /// What is kept already stays.
    pub fn limit_snapshots(&self, bytes: u64) {
        self.inner.windows.limit.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of old pages that are kept for snapshots of this pool.
    #[must_use]
    pub fn snapshot_bytes(&self) -> u64 {
        self.inner.windows.limit.bytes.load(Ordering::Relaxed)
    }
}

impl Snapshot {
    fn new(pool: Pool, window: Arc<Window>) -> Self {
        let number = window.hold();
        Self { window, number, faults: Faults::default(), pool, _not_sync: PhantomData }
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Which thread took it, how long it has lived, and the bytes of old pages that are kept for
    /// it and for others of the same commit.
    #[must_use]
    pub fn info(&self) -> SnapshotHolder {
        self.window.holder(self.number).unwrap_or_else(|| self.window.oldest())
    }

    /// Ends the snapshot. Returns an error if one of its iterators ended early: as
    /// [`View::finish`](crate::View::finish).
    ///
    /// # Errors
    /// [`Error::Store`] with the first page that an iterator could not read.
    pub fn finish(mut self) -> Result<()> {
        match core::mem::take(&mut self.faults).first() {
            Some(lost) => Err(self.unreadable(lost)),
            None => Ok(()),
        }
    }

    #[inline]
    fn inner(&self) -> &PoolInner {
        &self.pool.inner
    }

    /// Where the window has what lies at an address of the pool.
    #[inline]
    fn place<T>(&self, addr: u64) -> *const T {
        let at = addr.wrapping_add(self.window.distance()) as usize;
        core::ptr::with_exposed_provenance(at)
    }

    /// Whether the store agrees about a type, and a value of it was alive at an address.
    #[inline]
    fn is_live<T: Persist>(&self, addr: u64) -> bool {
        if planted(Bug::Window(WindowBug::LiveMarks)) {
            return self.inner().is_live::<T>(addr);
        }
        self.window.is_live(addr, T::TYPE_ID) && self.inner().is_settled::<T>()
    }

    fn rooted(&self) -> Rooted<'_> {
        let is_live = planted(Bug::Window(WindowBug::LiveRoots));
        Rooted { pool: self.inner(), window: (!is_live).then_some(&*self.window) }
    }

    /// See [`Snapshot::finish`].
    #[cold]
    fn dropped_unfinished(&self, lost: Lost) {
        assert!(
            std::thread::panicking(),
            "a snapshot was dropped after one of its iterators had ended early: {}. \
             `Snapshot::finish` returns this as an error",
            self.unreadable(lost)
        );
    }
}

impl Clone for Snapshot {
    /// The same moment, for another thread.
    fn clone(&self) -> Self {
        Self::new(self.pool.clone(), Arc::clone(&self.window))
    }
}

impl Drop for Snapshot {
    /// In a forked child nothing is dropped: the window is the parent's.
    fn drop(&mut self) {
        if self.inner().refuse_forked().is_err() {
            core::mem::forget(Arc::clone(&self.window));
            return;
        }
        self.window.let_go(self.number);
        if let Some(lost) = self.faults.untold() {
            self.dropped_unfinished(lost);
        }
    }
}

impl sealed::Sealed for Snapshot {
    fn region_of(&self, addr: u64) -> Option<RegionAddress> {
        self.inner().store.store.region_of(self.window.home(addr))
    }

    fn region_address(&self, region: &RegionAddress) -> Option<u64> {
        self.inner().store.store.region_address(region)
    }
}

impl Reader for Snapshot {
    type Shift = Shifted;

    #[inline]
    fn shift(&self) -> Shifted {
        Shifted(self.window.distance() as usize)
    }

    #[inline]
    fn get<T: Persist>(&self, ptr: Ptr<T>) -> Result<&T> {
        let addr = self.window.home(ptr.addr());
        if !self.is_live::<T>(addr) {
            return Err(self.inner().dangling::<T>(addr));
        }
        // SAFETY: a value of type `T` that was alive when the window began, where the window has
        // it. Its pages are kept before they change, and mapped as long as the snapshot lives.
        unsafe {
            let there = Ptr::from_non_null(core::ptr::NonNull::new_unchecked(
                self.place::<T>(addr).cast_mut(),
            ));
            there.follow().map_err(|lost| self.unreadable(lost))
        }
    }

    unsafe fn get_array<T: Persist>(&self, ptr: Ptr<ArrayOf<T>>, len: usize) -> Result<&[T]> {
        let addr = self.window.home(ptr.addr());
        let size = self.window.live_size(addr, ArrayOf::<T>::TYPE_ID);
        let Some(bytes) = size.filter(|_| self.is_live::<ArrayOf<T>>(addr)) else {
            return Err(self.inner().dangling::<ArrayOf<T>>(addr));
        };
        let room = if size_of::<T>() == 0 { u64::MAX } else { bytes / size_of::<T>() as u64 };
        if len as u64 > room {
            return Err(Error::OutOfBounds { index: len as u64, len: room });
        }
        let place = self.place::<T>(addr);
        // SAFETY: room for as many values in a block that was alive when the window began, which
        // were written by contract; as in `get`.
        unsafe {
            touch(place.addr(), len * size_of::<T>()).map_err(|lost| self.unreadable(lost))?;
            Ok(core::slice::from_raw_parts(place, len))
        }
    }

    #[inline]
    fn faults(&self) -> &Faults {
        &self.faults
    }

    #[cold]
    fn unreadable(&self, lost: Lost) -> Error {
        self.faults.tell();
        self.inner().handle.unreadable(self.window.home(lost.0)).into()
    }

    fn root_at<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>> {
        names::root(self.rooted(), index)
    }

    fn named_root<T: Persist>(&self, name: &str) -> Result<Option<Ptr<T>>> {
        names::get(self, self.rooted(), name)
    }

    fn named_roots(&self) -> Result<Vec<NamedRoot>> {
        names::list(self, self.rooted())
    }
}
