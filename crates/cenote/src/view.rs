//! [`View`]: reading a pool while no transaction changes it.

use crate::error::{Error, Result};
use crate::frames::covers_here;
use crate::lost::{Faults, Lost};
use crate::names;
use crate::open_pool::{Pool, PoolInner};
use crate::persist::{ArrayOf, Persist};
use crate::process_lock::ReadTurn;
use crate::ptr::Ptr;
use crate::reader::{NamedRoot, Reader, sealed};
use crate::viewed;
use cenote_layout::pointer::RegionAddress;
use cenote_medium::planted::{Bug, planted};
use core::marker::PhantomData;
use parking_lot::RwLockReadGuard;

/// A pool as it is, read-only; see [`Pool::read`].
#[derive(Debug)]
pub struct View<'p> {
    pool: &'p PoolInner,
    /// What an iterator could not read.
    faults: Faults,
    _turn: Option<ReadTurn<'p>>,
    _guard: RwLockReadGuard<'p, ()>,
    /// Counted in a thread-local.
    _not_send: PhantomData<*const ()>,
}

impl<'p> View<'p> {
    /// A view for as long as the guard is held.
    pub(crate) fn new(
        pool: &'p PoolInner,
        guard: RwLockReadGuard<'p, ()>,
        turn: Option<ReadTurn<'p>>,
    ) -> Self {
        viewed::begin(pool);
        Self { pool, faults: Faults::default(), _turn: turn, _guard: guard, _not_send: PhantomData }
    }

    /// Ends the view. Returns an error if one of its iterators ended early.
    ///
    /// An iterator cannot return an error. If it reaches a page that cannot be read (the file was
    /// cut short, the disk fails, the page fails its check), it ends there, and this function
    /// returns the error. If the view is dropped instead, the drop panics with the error.
    ///
    /// ```
    /// # use cenote::{Reader, Store};
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let pool = Store::open(directory.path())?.pool("p")?;
    /// let view = pool.read()?;
    /// let roots = view.named_roots()?; // and iterators of collections
    /// view.finish()?;
    /// # assert!(roots.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] with the first page that an iterator could not read.
    pub fn finish(mut self) -> Result<()> {
        match core::mem::take(&mut self.faults).first() {
            Some(lost) => Err(self.unreadable(lost)),
            None => Ok(()),
        }
    }

    /// See [`View::finish`].
    #[cold]
    fn dropped_unfinished(&self, lost: Lost) {
        assert!(
            std::thread::panicking(),
            "a view was dropped after one of its iterators had ended early: {}. `View::finish` \
             returns this as an error",
            self.unreadable(lost)
        );
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        viewed::end(self.pool);
        if let Some(lost) = self.faults.untold() {
            self.dropped_unfinished(lost);
        }
    }
}

/// Fails if a transaction may be half done in memory, because a page of its log was lost.
#[inline]
fn refuse_unreadable(pool: &PoolInner) -> Result<()> {
    if planted(Bug::LostLogRead) {
        return Ok(());
    }
    Ok(pool.store.store.check_readable()?)
}

impl Pool {
    /// Begins a view: the pool does not change as long as the view lives. Waits for a transaction
    /// of another thread on this pool.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in a transaction of this thread on this pool: read through the
    /// transaction; and where a transaction is waited for that waits, over others, for what this
    /// thread has; [`Error::Store`] in a forked process, if a loss of power may have torn the
    /// pool's values, and after a page of a log was lost; [`Error::NotWhole`] if it is damaged.
    pub fn read(&self) -> Result<View<'_>> {
        self.inner.refuse_doubt()?;
        self.view()
    }

    /// A view of values or of blocks.
    pub(crate) fn view(&self) -> Result<View<'_>> {
        self.inner.refuse_forked()?;
        refuse_unreadable(&self.inner)?;
        if covers_here(&self.inner) {
            return Err(Error::WouldDeadlock {
                pool: self.inner.handle.name().to_string(),
                by: "a transaction",
            });
        }
        // Where this thread has a view already, of any pool, a waiting writer must not keep it from
        // another one: the writer may wait for that view. Nor where it has a transaction on another
        // pool: a psync may wait for that, whose thread has a view that the writer waits for.
        let guard = self.inner.lock_to_read()?;
        // The transaction that this thread has waited for may have ended so.
        refuse_unreadable(&self.inner)?;
        let turn = self.inner.read_turn()?;
        Ok(View::new(&self.inner, guard, turn))
    }
}

impl sealed::Sealed for View<'_> {
    fn region_of(&self, addr: u64) -> Option<RegionAddress> {
        self.pool.store.store.region_of(addr)
    }

    fn region_address(&self, region: &RegionAddress) -> Option<u64> {
        self.pool.store.store.region_address(region)
    }
}

impl Reader for View<'_> {
    #[inline]
    fn get<T: Persist>(&self, ptr: Ptr<T>) -> Result<&T> {
        if !self.pool.is_live::<T>(ptr.addr()) {
            return Err(self.pool.dangling::<T>(ptr.addr()));
        }
        // SAFETY: a live block of type `T`, in a mapping.
        unsafe { ptr.touch() }.map_err(|lost| self.unreadable(lost))?;
        // SAFETY: a live block of type `T`; no thread writes to the pool while the view's lock is
        // held, which outlives the reference.
        Ok(unsafe { ptr.as_ref() })
    }

    #[inline]
    unsafe fn get_array<T: Persist>(&self, ptr: Ptr<ArrayOf<T>>, len: usize) -> Result<&[T]> {
        // SAFETY: the view's lock keeps writers out for as long as the slice lives; written values
        // by contract.
        unsafe { self.pool.array(ptr, len) }
    }

    #[inline]
    fn faults(&self) -> &Faults {
        &self.faults
    }

    #[cold]
    fn unreadable(&self, lost: Lost) -> Error {
        self.faults.tell();
        self.pool.handle.unreadable(lost.0).into()
    }

    fn root_at<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>> {
        names::root(self.pool, index)
    }

    fn named_root<T: Persist>(&self, name: &str) -> Result<Option<Ptr<T>>> {
        names::get(self, self.pool, name)
    }

    fn named_roots(&self) -> Result<Vec<NamedRoot>> {
        names::list(self, self.pool)
    }
}
