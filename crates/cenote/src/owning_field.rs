//! [`OwningField`]: what the types of fields that own a block have in common.

use crate::error::Result;
use crate::open_pool::PoolInner;
use crate::owned::Owned;
use crate::persist::Persist;
use crate::ptr::Ptr;
use crate::tx::Tx;

/// An owning edge of a live value. No program gets one.
#[doc(hidden)]
#[derive(Debug)]
pub struct OwningEdge<'p> {
    pub(crate) pool: &'p PoolInner,
    pub(crate) at: u64,
    pub(crate) word: u64,
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// Types of fields that own a block: [`Owned`], [`OwnedStr`](crate::OwnedStr) and
/// [`OwnedBytes`](crate::OwnedBytes), each one word. Nothing but these.
pub trait OwningField: Persist + sealed::Sealed {
    /// What [`Tx::put_owned`] puts there.
    type Value<'v>;
    /// What it returns: the pointer to a value.
    type Put;

    /// Makes a block, and has an edge own it.
    ///
    /// # Errors
    /// As [`Tx::put_owned`].
    #[doc(hidden)]
    fn put_into<'p>(
        tx: &mut Tx<'p>,
        edge: &OwningEdge<'p>,
        value: Self::Value<'_>,
    ) -> Result<Self::Put>;
}

impl<U: Persist> sealed::Sealed for Owned<U> {}

impl<U: Persist> OwningField for Owned<U> {
    type Value<'v> = U;
    type Put = Ptr<U>;

    fn put_into<'p>(tx: &mut Tx<'p>, edge: &OwningEdge<'p>, value: U) -> Result<Ptr<U>> {
        tx.put_into(edge, |tx| tx.alloc_covered(edge.pool, value))
    }
}
