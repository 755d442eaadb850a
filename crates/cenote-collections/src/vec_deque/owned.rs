//! What values of a queue own: a block is put into an edge of a value, in its place, or freed, also
//! before the queue removes the value.

use super::{DequeHeader, VecDeque};
use crate::shared::{OrLost, open, release, touch_places};
use cenote::persist::Persist;
use cenote::ptr::FieldOffset;
use cenote::{Error, OwningField, Result, Tx};

impl<T: Persist> VecDeque<T> {
    /// Frees what the values in places of the array own, and then does what removes them.
    ///
    /// # Safety
    /// `header` is a copy of the live header. The places lie in its array, and were touched.
    #[inline(always)]
    pub(super) unsafe fn released<'p, R>(
        self,
        tx: &mut Tx<'p>,
        header: &DequeHeader<T>,
        (first, len): (*mut T, usize),
        then: impl FnOnce(&mut Tx<'p>) -> Result<R>,
    ) -> Result<R> {
        match header.array {
            // SAFETY: passed on; the array of the live header.
            Some(array) if T::OWNS => unsafe {
                let values = (first.cast_const().cast(), len * size_of::<T>());
                release::<T, _, _, _>(tx, self.header, (array, values), then)
            },
            _ => then(tx),
        }
    }

    /// The edge `field` of the value at `index`.
    fn owning_edge<F>(self, tx: &Tx<'_>, index: usize, field: FieldOffset<T, F>) -> Result<*mut F> {
        let header = *open(tx, self.header)?;
        if index as u64 >= header.len {
            return Err(Error::OutOfBounds { index: index as u64, len: header.len });
        }
        // SAFETY: a place of a live header's array with a value.
        unsafe {
            let place = header.place(index);
            touch_places(place, 1).or_lost(tx)?;
            Ok(place.byte_add(field.offset()).cast())
        }
    }

    /// Makes a block with a value, in the pool of the queue, and has a field of the value at
    /// `index` own it, as [`Tx::put_owned`] does.
    ///
    /// # Errors
    /// As [`Tx::put_owned`]; [`Error::OutOfBounds`].
    pub fn put_owned<F: OwningField>(
        self,
        tx: &mut Tx<'_>,
        index: usize,
        field: FieldOffset<T, F>,
        value: F::Value<'_>,
    ) -> Result<F::Put> {
        let edge = self.owning_edge(tx, index, field)?;
        // SAFETY: an edge of a value in the array of the live header.
        unsafe { tx.put_owned_near(self.header, edge, value) }
    }

    /// Frees what a field of the value at `index` owns, as [`Tx::free_owned`] does; whether there
    /// was something.
    ///
    /// # Errors
    /// As [`Tx::free_owned`]; [`Error::OutOfBounds`].
    pub fn free_owned<F: OwningField>(
        self,
        tx: &mut Tx<'_>,
        index: usize,
        field: FieldOffset<T, F>,
    ) -> Result<bool> {
        let edge = self.owning_edge(tx, index, field)?;
        // SAFETY: an edge of a value in the array of the live header.
        unsafe { tx.free_owned_near(self.header, edge) }
    }
}
