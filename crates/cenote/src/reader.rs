//! What a [`View`](crate::View) and a transaction ([`Tx`](crate::Tx)) have in common: reading.

use crate::error::Result;
use crate::persist::{ArrayOf, Persist};
use crate::ptr::Ptr;

pub(crate) mod sealed {
    /// Only this crate's accesses read: their locks are what makes references sound.
    pub trait Sealed {}
}

/// Read access to pools. References live as long as the access, and nothing that they lead to changes meanwhile: a view excludes
/// writers, a transaction gives out shared references only while it is not used to write.
pub trait Reader: sealed::Sealed {
    /// The value that a pointer leads to, after a check that there is a live value of this type: a few instructions.
    ///
    /// # Errors
    /// [`crate::Error::Dangling`].
    fn get<T: Persist>(&self, ptr: Ptr<T>) -> Result<&T>;

    /// The first `len` values of an array, for collections.
    ///
    /// # Errors
    /// [`crate::Error::Dangling`]; [`crate::Error::OutOfBounds`] if the block is shorter.
    ///
    /// # Safety
    /// The first `len` values have been written.
    #[doc(hidden)]
    unsafe fn get_array<T: Persist>(&self, ptr: Ptr<ArrayOf<T>>, len: usize) -> Result<&[T]>;

    /// Root `index` (0 to 1023) of the pool, of a transaction's first pool.
    ///
    /// # Errors
    /// [`crate::Error::RootType`] if it is of another type, [`crate::Error::RootIndex`] if there is no such root.
    fn root_at<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>>;

    /// Root 0.
    ///
    /// # Errors
    /// As [`Reader::root_at`].
    fn root<T: Persist>(&self) -> Result<Option<Ptr<T>>> {
        self.root_at(0)
    }
}
