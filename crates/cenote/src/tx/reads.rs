//! What a transaction reads: a [`Reader`] over its pools, in place.

use super::Tx;
use crate::error::{Error, Result};
use crate::lost::{Faults, Lost};
use crate::names;
use crate::open_pool::PoolInner;
use crate::persist::{ArrayOf, Persist};
use crate::ptr::Ptr;
use crate::reader::{NamedRoot, Reader, sealed};
use crate::shift::InPlace;
use cenote_layout::pointer::RegionAddress;

impl sealed::Sealed for Tx<'_> {
    fn region_of(&self, addr: u64) -> Option<RegionAddress> {
        self.covered.0.first().store.store.region_of(addr)
    }

    fn region_address(&self, region: &RegionAddress) -> Option<u64> {
        self.covered.0.first().store.store.region_address(region)
    }
}

impl Reader for Tx<'_> {
    type Shift = InPlace;

    #[inline(always)]
    fn shift(&self) -> InPlace {
        InPlace
    }

    #[inline]
    fn get<T: Persist>(&self, ptr: Ptr<T>) -> Result<&T> {
        self.owner_of::<T>(ptr.addr()).ok_or_else(|| self.dangling::<T>(ptr.addr()))?;
        // SAFETY: a live block of type `T`, in a mapping.
        unsafe { ptr.touch() }.map_err(|lost| self.unreadable(lost))?;
        // SAFETY: a live block of type `T` in a pool that is locked by this transaction, which is
        // borrowed shared as long as the reference lives, so nothing is written.
        Ok(unsafe { ptr.as_ref() })
    }

    #[inline]
    unsafe fn get_array<T: Persist>(&self, ptr: Ptr<ArrayOf<T>>, len: usize) -> Result<&[T]> {
        let pool = self
            .owner_of::<ArrayOf<T>>(ptr.addr())
            .ok_or_else(|| self.dangling::<ArrayOf<T>>(ptr.addr()))?;
        // SAFETY: the transaction is borrowed shared, so nothing is written; written values by
        // contract.
        unsafe { pool.array(ptr, len) }
    }

    #[inline]
    fn faults(&self) -> &Faults {
        &self.faults
    }

    #[cold]
    fn unreadable(&self, lost: Lost) -> Error {
        let first = self.covered.0.first();
        let owner = first.store.store.puddle_of(lost.0).map(cenote_store::Puddle::pool);
        let owns = |pool: &&&PoolInner| Some(pool.handle.id()) == owner;
        let pool = self.covered.0.all().iter().find(owns).map_or(first, |pool| *pool);
        pool.handle.unreadable(lost.0).into()
    }

    fn root_at<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>> {
        names::root(self.covered.0.first().into(), index)
    }

    fn named_root<T: Persist>(&self, name: &str) -> Result<Option<Ptr<T>>> {
        names::get(self, self.covered.0.first().into(), name)
    }

    fn named_roots(&self) -> Result<Vec<NamedRoot>> {
        names::list(self, self.covered.0.first().into())
    }
}
