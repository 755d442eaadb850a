//! [`Vec`], a growable array.
//!
//! ```text
//! header:  array | len | capacity            array block:  capacity times T
//! ```
//!
//! Invariant: the first `len` places of the array hold values; the others are zero, as the pointer
//! map of an array block sees them too. Without an array `capacity` is 0, except that values of no
//! size need none and `capacity` says nothing.

mod owned;
mod shrink;
mod sift;

use crate::shared::{Header, OrLost, Range, build, log, log_and_free, open, range, touch_places};
use cenote::persist::{ArrayOf, Persist};
use cenote::{Error, Ptr, Reader, Result, Tx};
use core::ptr::{NonNull, copy, copy_nonoverlapping};
use core::slice;

/// Values that the first array has room for, at least.
const CAPACITY_MIN: usize = 4;

/// Most values that `extend` makes room for before it sees them.
const EXTEND_RESERVE_MAX: usize = 4096;

#[repr(C)]
pub(crate) struct VecHeader<T> {
    array: Option<Ptr<ArrayOf<T>>>,
    len: u64,
    capacity: u64,
}

impl<T> Clone for VecHeader<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for VecHeader<T> {}

impl<T: Persist> Header for VecHeader<T> {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }
}

impl<T> VecHeader<T> {
    /// The first place.
    #[inline]
    fn places(&self) -> *mut T {
        self.array.map_or(NonNull::dangling().as_ptr(), |array| array.as_ptr().cast())
    }

    /// Values that there is room for.
    #[inline]
    fn room(&self) -> usize {
        if size_of::<T>() == 0 { usize::MAX >> 1 } else { self.capacity as usize }
    }
}

persist_block!(
    "cenote/VecHeader",
    VecHeader<T> { array: Option<Ptr<ArrayOf<T>>>, len: u64, capacity: u64 }
);

/// A growable array; see [`std::vec::Vec`] for what the methods mean and the [crate] for handles.
/// An index that is out of bounds is an error or `None`, never a panic.
#[repr(transparent)]
pub struct Vec<T> {
    header: Ptr<VecHeader<T>>,
}

persist_handle!("cenote/Vec", Vec<T>, VecHeader<T>);

impl<T: Persist> Vec<T> {
    /// An empty vector in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { header: tx.alloc(VecHeader { array: None, len: 0, capacity: 0 })? })
    }

    /// An empty vector in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self {
            header: tx.alloc_beside(neighbour, VecHeader { array: None, len: 0, capacity: 0 })?,
        })
    }

    /// An empty vector with room for `capacity` values.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn with_capacity(tx: &mut Tx<'_>, capacity: usize) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.reserve(tx, capacity), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Number of values.
    ///
    /// # Errors
    /// [`Error::Dangling`] if the handle is stale; so it is with every method.
    #[inline]
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        Ok(open(reader, self.header)?.len as usize)
    }

    /// Whether there is no value.
    ///
    /// # Errors
    /// As [`Vec::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        Ok(self.len(reader)? == 0)
    }

    /// Values that fit without a new array.
    ///
    /// # Errors
    /// As [`Vec::len`].
    pub fn capacity(self, reader: &impl Reader) -> Result<usize> {
        Ok(open(reader, self.header)?.room())
    }

    /// All values. The first call of a view or transaction touches every page of them; for single
    /// values of a vector that is large, use [`Vec::get`].
    ///
    /// # Errors
    /// As [`Vec::len`]; [`Error::Store`] if a page of them cannot be read.
    #[inline]
    pub fn as_slice(self, reader: &impl Reader) -> Result<&[T]> {
        let header = open(reader, self.header)?;
        let (start, len) = (header.places().addr(), header.len as usize * size_of::<T>());
        // SAFETY: places of a live header's array.
        unsafe { reader.faults().touch_once(start, len) }.or_lost(reader)?;
        // SAFETY: the first `len` places of a live header's array hold values; nothing changes
        // while the reader is borrowed.
        Ok(unsafe { slice::from_raw_parts(header.places(), header.len as usize) })
    }

    /// All values, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn as_mut_slice<'t>(self, tx: &'t mut Tx<'_>) -> Result<&'t mut [T]> {
        refuse_owners!(T);
        let header = *open(tx, self.header)?;
        // SAFETY: as in `as_slice`; logged first, and the transaction is borrowed exclusively.
        unsafe {
            touch_places(header.places(), header.len as usize).or_lost(tx)?;
            log(tx, &[places(header.places(), header.len as usize)])?;
            Ok(slice::from_raw_parts_mut(header.places(), header.len as usize))
        }
    }

    /// All values, from both ends.
    ///
    /// # Errors
    /// As [`Vec::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<slice::Iter<'r, T>> {
        Ok(self.as_slice(reader)?.iter())
    }

    /// All values, from both ends, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn iter_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<slice::IterMut<'t, T>> {
        Ok(self.as_mut_slice(tx)?.iter_mut())
    }

    /// The value at `index`.
    ///
    /// # Errors
    /// As [`Vec::len`].
    #[inline]
    pub fn get(self, reader: &impl Reader, index: usize) -> Result<Option<&T>> {
        let header = open(reader, self.header)?;
        if index as u64 >= header.len {
            return Ok(None);
        }
        // SAFETY: a place of a live header's array with a value; nothing changes while the reader
        // is borrowed.
        unsafe {
            let place = header.places().add(index);
            touch_places(place, 1).or_lost(reader)?;
            Ok(Some(&*place))
        }
    }

    /// The first value.
    ///
    /// # Errors
    /// As [`Vec::len`].
    pub fn first(self, reader: &impl Reader) -> Result<Option<&T>> {
        self.get(reader, 0)
    }

    /// The last value.
    ///
    /// # Errors
    /// As [`Vec::len`].
    pub fn last(self, reader: &impl Reader) -> Result<Option<&T>> {
        match self.len(reader)?.checked_sub(1) {
            Some(last) => self.get(reader, last),
            None => Ok(None),
        }
    }

    /// The value at `index`, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn get_mut<'t>(self, tx: &'t mut Tx<'_>, index: usize) -> Result<Option<&'t mut T>> {
        refuse_owners!(T);
        let header = *open(tx, self.header)?;
        if index as u64 >= header.len {
            return Ok(None);
        }
        // SAFETY: a place with a value; logged first, and the transaction is borrowed exclusively.
        unsafe {
            let place = header.places().add(index);
            touch_places(place, 1).or_lost(tx)?;
            log(tx, &[range(place)])?;
            Ok(Some(&mut *place))
        }
    }

    /// The first value, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn first_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<Option<&'t mut T>> {
        self.get_mut(tx, 0)
    }

    /// The last value, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn last_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<Option<&'t mut T>> {
        match self.len(tx)?.checked_sub(1) {
            Some(last) => self.get_mut(tx, last),
            None => Ok(None),
        }
    }

    /// Replaces the value at `index` and returns the old one. 1 entry. What the old one owned is
    /// freed.
    ///
    /// # Errors
    /// As [`Vec::push`]; [`Error::OutOfBounds`].
    pub fn replace(self, tx: &mut Tx<'_>, index: usize, value: T) -> Result<T> {
        let header = *open(tx, self.header)?;
        if index as u64 >= header.len {
            return Err(out_of_bounds(index, header.len as usize));
        }
        // SAFETY: a place with a value, logged before it is written.
        unsafe {
            let place = header.places().add(index);
            touch_places(place, 1).or_lost(tx)?;
            self.released(tx, &header, (index, 1), |tx| {
                log(tx, &[range(place)])?;
                Ok(place.replace(value))
            })
        }
    }

    /// Exchanges two values. 2 entries.
    ///
    /// # Errors
    /// As [`Vec::push`]; [`Error::OutOfBounds`].
    pub fn swap(self, tx: &mut Tx<'_>, a: usize, b: usize) -> Result<()> {
        let header = *open(tx, self.header)?;
        if let Some(&index) = [a, b].iter().find(|&&index| index as u64 >= header.len) {
            return Err(out_of_bounds(index, header.len as usize));
        }
        // SAFETY: places with values, logged first.
        unsafe {
            let (a, b) = (header.places().add(a), header.places().add(b));
            touch_places(a, 1).and_then(|()| touch_places(b, 1)).or_lost(tx)?;
            log(tx, &[range(a), range(b)])?;
            a.swap(b);
        }
        Ok(())
    }

    /// Makes room for `additional` more values, at least. If that takes a new array: 1 allocation,
    /// 1 entry, 1 free of the old one.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn reserve(self, tx: &mut Tx<'_>, additional: usize) -> Result<()> {
        let header = *open(tx, self.header)?;
        // SAFETY: the header is checked.
        unsafe { self.room_for(tx, header, additional)? };
        Ok(())
    }

    /// Adds a value at the end. 2 entries; where the array is full, 1 for the new one, which has
    /// twice the room.
    ///
    /// # Errors
    /// As [`Vec::len`], and [`Error::Tx`] if the pool or the log is full.
    #[inline]
    pub fn push(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        let mut header = *open(tx, self.header)?;
        // SAFETY: the header is checked; there is room; both places are logged before they are
        // written.
        unsafe {
            if header.len as usize == header.room() {
                header = self.room_for(tx, header, 1)?;
            }
            let place = header.places().add(header.len as usize);
            touch_places(place, 1).or_lost(tx)?;
            log(tx, &[range(place), range(place!(self.header, len))])?;
            place.write(value);
            (*self.header.as_ptr()).len += 1;
        }
        Ok(())
    }

    /// Removes the last value. 2 entries. What it owned is freed, as in each removal.
    ///
    /// # Errors
    /// As [`Vec::push`].
    #[inline]
    pub fn pop(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let header = *open(tx, self.header)?;
        match header.len {
            0 => Ok(None),
            // SAFETY: the header is checked, and the place holds a value.
            len => unsafe { self.take_out(tx, header, len as usize - 1).map(Some) },
        }
    }

    /// Inserts a value before the one at `index`; those behind it move. 2 entries: what moves, and
    /// the length.
    ///
    /// # Errors
    /// As [`Vec::push`]; [`Error::OutOfBounds`] if `index` is greater than the length.
    pub fn insert(self, tx: &mut Tx<'_>, index: usize, value: T) -> Result<()> {
        let header = *open(tx, self.header)?;
        let len = header.len as usize;
        if index > len {
            return Err(out_of_bounds(index, len));
        }
        // SAFETY: the header is checked; there is room for one more; logged before it is written.
        unsafe {
            let header = self.room_for(tx, header, 1)?;
            let place = header.places().add(index);
            touch_places(place, len - index + 1).or_lost(tx)?;
            log(tx, &[places(place, len - index + 1), range(place!(self.header, len))])?;
            copy(place, place.add(1), len - index);
            place.write(value);
            (*self.header.as_ptr()).len += 1;
        }
        Ok(())
    }

    /// Removes the value at `index`; those behind it move. 2 entries: what moves, and the length.
    ///
    /// # Errors
    /// As [`Vec::push`]; [`Error::OutOfBounds`].
    pub fn remove(self, tx: &mut Tx<'_>, index: usize) -> Result<T> {
        let header = *open(tx, self.header)?;
        if index as u64 >= header.len {
            return Err(out_of_bounds(index, header.len as usize));
        }
        // SAFETY: the header is checked, and the place holds a value.
        unsafe { self.take_out(tx, header, index) }
    }

    /// Removes the value at `index` and puts the last one there. 3 entries.
    ///
    /// # Errors
    /// As [`Vec::push`]; [`Error::OutOfBounds`].
    pub fn swap_remove(self, tx: &mut Tx<'_>, index: usize) -> Result<T> {
        let header = *open(tx, self.header)?;
        if index as u64 >= header.len {
            return Err(out_of_bounds(index, header.len as usize));
        }
        // SAFETY: places with values, logged before they are written.
        unsafe {
            let (place, last) =
                (header.places().add(index), header.places().add(header.len as usize - 1));
            touch_places(place, 1).and_then(|()| touch_places(last, 1)).or_lost(tx)?;
            self.released(tx, &header, (index, 1), |tx| {
                log(tx, &[range(place), range(last), range(place!(self.header, len))])?;
                place.swap(last);
                let value = last.read();
                last.write_bytes(0, 1);
                (*self.header.as_ptr()).len -= 1;
                Ok(value)
            })
        }
    }

    /// Adds copies of values at the end. 2 entries, however many.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn extend_from_slice(self, tx: &mut Tx<'_>, values: &[T]) -> Result<()>
    where
        T: Copy,
    {
        let header = *open(tx, self.header)?;
        // SAFETY: the header is checked; there is room; logged before it is written. `values`
        // cannot be borrowed from the transaction, so they do not overlap.
        unsafe {
            let header = self.room_for(tx, header, values.len())?;
            let place = header.places().add(header.len as usize);
            touch_places(place, values.len()).or_lost(tx)?;
            log(tx, &[places(place, values.len()), range(place!(self.header, len))])?;
            copy_nonoverlapping(values.as_ptr(), place, values.len());
            (*self.header.as_ptr()).len += values.len() as u64;
        }
        Ok(())
    }

    /// Adds what the iterator yields at the end, one after the other.
    ///
    /// # Errors
    /// As [`Vec::push`]; values before the one that failed are in the vector.
    pub fn extend(self, tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<()> {
        let mut values = values.into_iter();
        // A hint is a hint: nothing large is taken for it.
        self.reserve(tx, values.size_hint().0.min(EXTEND_RESERVE_MAX))?;
        values.try_for_each(|value| self.push(tx, value))
    }

    /// A vector of what the iterator yields, in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Vec::push`]; then there is no vector.
    pub fn from_iter(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, values), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Makes room for `additional` more values; the header as it is then.
    ///
    /// # Safety
    /// `header` is a copy of the live header.
    unsafe fn room_for(
        self,
        tx: &mut Tx<'_>,
        header: VecHeader<T>,
        additional: usize,
    ) -> Result<VecHeader<T>> {
        let len = header.len as usize;
        let Some(needed) = len.checked_add(additional) else {
            return Err(out_of_bounds(additional, usize::MAX - len));
        };
        if needed <= header.room() {
            return Ok(header);
        }
        if size_of::<T>() == 0 {
            return Err(out_of_bounds(needed, header.room()));
        }
        let capacity = needed.max(header.room().saturating_mul(2)).max(CAPACITY_MIN);
        // SAFETY: places without values stay zero. The old array is left as it is, and nothing
        // leads to it once the header is written.
        unsafe {
            let grown = tx.attempt(|tx| {
                let (array, capacity) = tx.alloc_array::<_, T>(self.header, capacity)?;
                let grown = VecHeader { array: Some(array), capacity: capacity as u64, ..header };
                touch_places(header.places(), len).or_lost(tx)?;
                copy_nonoverlapping(header.places(), grown.places(), len);
                let ranges = [range(self.header.as_ptr())];
                match header.array {
                    Some(old) => log_and_free(tx, self.header, old, &ranges)?,
                    None => log(tx, &ranges)?,
                }
                Ok(grown)
            })?;
            self.header.as_ptr().write(grown);
            Ok(grown)
        }
    }

    /// Removes the value at `index`.
    ///
    /// # Safety
    /// `header` is a copy of the live header, and `index` is less than its length.
    unsafe fn take_out(self, tx: &mut Tx<'_>, header: VecHeader<T>, index: usize) -> Result<T> {
        // SAFETY: places with values by contract, logged before they are written.
        unsafe {
            let behind = header.len as usize - index - 1;
            let place = header.places().add(index);
            touch_places(place, behind + 1).or_lost(tx)?;
            self.released(tx, &header, (index, 1), |tx| {
                log(tx, &[places(place, behind + 1), range(place!(self.header, len))])?;
                let value = place.read();
                copy(place.add(1), place, behind);
                place.add(behind).write_bytes(0, 1);
                (*self.header.as_ptr()).len -= 1;
                Ok(value)
            })
        }
    }
}

/// The range of `len` places.
#[inline]
fn places<T>(first: *mut T, len: usize) -> Range {
    (first.cast_const().cast(), len * size_of::<T>())
}

#[cold]
fn out_of_bounds(index: usize, len: usize) -> Error {
    Error::OutOfBounds { index: index as u64, len: len as u64 }
}
