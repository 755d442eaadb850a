//! [`VecDeque`], a queue with two ends.
//!
//! ```text
//! header:  array | len | head | capacity            array block:  capacity times T
//! ```
//!
//! Invariant: the places from `head` on hold `len` values; behind the last place comes the first
//! one. The other places are zero, as the pointer map of an array block sees them too. Without an
//! array `capacity` and `head` are 0. Values of no size need no array, and have no place of their
//! own.

mod iter;
mod owned;

pub use iter::DequeIter;

use crate::shared::{
    DESTROYED, Header, OrLost, build, free_destroyed, log, log_and_free, open, range, span,
    touch_places,
};
use cenote::persist::{ArrayOf, Persist};
use cenote::{Error, Ptr, Reader, Result, Tx};
use core::ptr::{NonNull, copy_nonoverlapping};

/// Values that the first array has room for, at least.
const CAPACITY_MIN: usize = 4;

#[repr(C)]
pub(crate) struct DequeHeader<T> {
    array: Option<Ptr<ArrayOf<T>>>,
    len: u64,
    head: u64,
    capacity: u64,
}

impl<T> Clone for DequeHeader<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DequeHeader<T> {}

impl<T: Persist> Header for DequeHeader<T> {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }
}

persist_block!(
    "cenote/DequeHeader",
    DequeHeader<T> { array: Option<Ptr<ArrayOf<T>>>, len: u64, head: u64, capacity: u64 }
);

impl<T> DequeHeader<T> {
    const fn empty(len: u64) -> Self {
        Self { array: None, len, head: 0, capacity: 0 }
    }

    /// The first place of the array.
    #[inline]
    fn places(&self) -> *mut T {
        self.array.map_or(NonNull::dangling().as_ptr(), |array| array.as_ptr().cast())
    }

    /// Values that there is room for.
    #[inline]
    fn room(&self) -> usize {
        if size_of::<T>() == 0 { usize::MAX >> 1 } else { self.capacity as usize }
    }

    /// Which place has the value at `index`, which is at most the length.
    #[inline]
    fn slot(&self, index: usize) -> usize {
        let (slot, capacity) = (self.head as usize + index, self.capacity as usize);
        if slot < capacity { slot } else { slot.saturating_sub(capacity) }
    }

    /// Its address.
    ///
    /// # Safety
    /// What a live header says; `index` is less than the room.
    #[inline]
    unsafe fn place(&self, index: usize) -> *mut T {
        // SAFETY: inside the array by contract; of values of no size all have one place.
        unsafe { self.places().add(if size_of::<T>() == 0 { 0 } else { self.slot(index) }) }
    }

    /// The place before the first value.
    #[inline]
    fn head_before(&self) -> u64 {
        self.head.checked_sub(1).unwrap_or(self.capacity.saturating_sub(1))
    }

    /// The place behind the first value.
    #[inline]
    fn head_behind(&self) -> u64 {
        if self.head + 1 < self.capacity { self.head + 1 } else { 0 }
    }

    /// The values as they lie: how many from `head` on to the end of the array, and how many from
    /// its beginning on.
    #[inline]
    fn halves(&self) -> (usize, usize) {
        let len = self.len as usize;
        match size_of::<T>() {
            0 => (len, 0),
            _ => {
                let first = len.min((self.capacity - self.head) as usize);
                (first, len - first)
            }
        }
    }
}

/// A queue with two ends; see [`std::collections::VecDeque`] for what the methods mean and the
/// [crate] for handles. An index that is out of bounds is an error or `None`, never a panic.
///
/// ```
/// use cenote::Store;
/// use cenote_collections::VecDeque;
///
/// # fn main() -> cenote::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// let pool = Store::open(directory.path())?.pool("jobs")?;
/// pool.write(|tx| -> cenote::Result<()> {
///     let jobs = VecDeque::from_iter(tx, [1_u64, 2, 3])?;
///     jobs.push_front(tx, 0)?;
///     assert_eq!(jobs.pop_back(tx)?, Some(3));
///     assert!(jobs.iter(tx)?.eq(&[0, 1, 2]));
///     Ok(())
/// })
/// # }
/// ```
#[repr(transparent)]
pub struct VecDeque<T> {
    header: Ptr<DequeHeader<T>>,
}

persist_handle!("cenote/VecDeque", VecDeque<T>, DequeHeader<T>);

impl<T: Persist> VecDeque<T> {
    /// An empty queue in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { header: tx.alloc(DequeHeader::empty(0))? })
    }

    /// An empty queue in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { header: tx.alloc_beside(neighbour, DequeHeader::empty(0))? })
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
    /// As [`VecDeque::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        Ok(self.len(reader)? == 0)
    }

    /// Values that fit without a new array.
    ///
    /// # Errors
    /// As [`VecDeque::len`].
    pub fn capacity(self, reader: &impl Reader) -> Result<usize> {
        Ok(open(reader, self.header)?.room())
    }

    /// The value at `index`, counted from the front.
    ///
    /// # Errors
    /// As [`VecDeque::len`].
    pub fn get(self, reader: &impl Reader, index: usize) -> Result<Option<&T>> {
        let header = open(reader, self.header)?;
        if index as u64 >= header.len {
            return Ok(None);
        }
        // SAFETY: a place of a live header's array with a value; nothing changes while the reader
        // is borrowed.
        unsafe {
            let place = header.place(index);
            touch_places(place, 1).or_lost(reader)?;
            Ok(Some(&*place))
        }
    }

    /// The first value.
    ///
    /// # Errors
    /// As [`VecDeque::len`].
    pub fn front(self, reader: &impl Reader) -> Result<Option<&T>> {
        self.get(reader, 0)
    }

    /// The last value.
    ///
    /// # Errors
    /// As [`VecDeque::len`].
    pub fn back(self, reader: &impl Reader) -> Result<Option<&T>> {
        match self.len(reader)?.checked_sub(1) {
            Some(last) => self.get(reader, last),
            None => Ok(None),
        }
    }

    /// The value at `index`, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`].
    pub fn get_mut<'t>(self, tx: &'t mut Tx<'_>, index: usize) -> Result<Option<&'t mut T>> {
        refuse_owners!(T);
        let header = *open(tx, self.header)?;
        if index as u64 >= header.len {
            return Ok(None);
        }
        // SAFETY: a place with a value; logged first, and the transaction is borrowed exclusively.
        unsafe {
            let place = header.place(index);
            touch_places(place, 1).or_lost(tx)?;
            log(tx, &[range(place)])?;
            Ok(Some(&mut *place))
        }
    }

    /// Adds a value at the end. 2 entries; where the array is full, 1 for the new one, which has
    /// twice the room.
    ///
    /// # Errors
    /// As [`VecDeque::len`], and [`Error::Tx`] if the pool or the log is full.
    pub fn push_back(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        // SAFETY: there is room; both places are logged before they are written.
        unsafe {
            let header = self.with_room(tx)?;
            let place = header.place(header.len as usize);
            touch_places(place, 1).or_lost(tx)?;
            log(tx, &[range(place), range(place!(self.header, len))])?;
            place.write(value);
            (*self.header.as_ptr()).len += 1;
        }
        Ok(())
    }

    /// Adds a value before the first one. Costs what [`VecDeque::push_back`] does.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`].
    pub fn push_front(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        // SAFETY: as in `push_back`.
        unsafe {
            let mut header = self.with_room(tx)?;
            header.head = header.head_before();
            let place = header.place(0);
            touch_places(place, 1).or_lost(tx)?;
            let ends = span(place!(self.header, len), place!(self.header, head));
            log(tx, &[range(place), ends])?;
            place.write(value);
            (*self.header.as_ptr()).len += 1;
            (*self.header.as_ptr()).head = header.head;
        }
        Ok(())
    }

    /// Removes the last value. 2 entries. What it owned is freed.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`].
    pub fn pop_back(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let header = *open(tx, self.header)?;
        let Some(last) = (header.len as usize).checked_sub(1) else { return Ok(None) };
        // SAFETY: a place with a value, logged before it is written.
        unsafe {
            let place = header.place(last);
            touch_places(place, 1).or_lost(tx)?;
            self.released(tx, &header, (place, 1), |tx| {
                log(tx, &[range(place), range(place!(self.header, len))])?;
                let value = place.read();
                place.write_bytes(0, 1);
                (*self.header.as_ptr()).len -= 1;
                Ok(Some(value))
            })
        }
    }

    /// Removes the first value. 2 entries. What it owned is freed.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`].
    pub fn pop_front(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let header = *open(tx, self.header)?;
        if header.len == 0 {
            return Ok(None);
        }
        // SAFETY: a place with a value, logged before it is written.
        unsafe {
            let place = header.place(0);
            touch_places(place, 1).or_lost(tx)?;
            self.released(tx, &header, (place, 1), |tx| {
                let ends = span(place!(self.header, len), place!(self.header, head));
                log(tx, &[range(place), ends])?;
                let value = place.read();
                place.write_bytes(0, 1);
                (*self.header.as_ptr()).len -= 1;
                (*self.header.as_ptr()).head = header.head_behind();
                Ok(Some(value))
            })
        }
    }

    /// Adds what the iterator yields at the end, one after the other.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`]; values before the one that failed are in the queue.
    pub fn extend(self, tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<()> {
        values.into_iter().try_for_each(|value| self.push_back(tx, value))
    }

    /// A queue of what the iterator yields, in the transaction's first pool.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`]; then there is no queue.
    pub fn from_iter(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, values), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Removes all values and gives the array back. 1 entry, 1 free. Of values that own, 1 entry
    /// for each block that they own; if the log has no room for them, the transaction can only
    /// abort.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, 0)
    }

    /// Frees the queue with its array. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`VecDeque::push_back`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, DESTROYED)
    }

    fn empty_to(self, tx: &mut Tx<'_>, len: u64) -> Result<()> {
        let header = *open(tx, self.header)?;
        // SAFETY: the header is live; only it leads to the array, and after the write nothing does.
        unsafe {
            // Places without a value own nothing.
            let whole = (header.places(), if T::OWNS { header.capacity as usize } else { 0 });
            touch_places(whole.0, whole.1).or_lost(tx)?;
            self.released(tx, &header, whole, |tx| {
                let ranges = [range(self.header.as_ptr())];
                match header.array {
                    Some(array) => log_and_free(tx, self.header, array, &ranges)?,
                    None => log(tx, &ranges)?,
                }
                tx.all_or_abort(|tx| {
                    self.header.as_ptr().write(DequeHeader::empty(len));
                    free_destroyed(tx, self.header, len)
                })
            })
        }
    }

    /// Makes room for one more value; the header as it is then. In a new array the first value has
    /// the first place.
    fn with_room(self, tx: &mut Tx<'_>) -> Result<DequeHeader<T>> {
        let header = *open(tx, self.header)?;
        if (header.len as usize) < header.room() {
            return Ok(header);
        }
        if size_of::<T>() == 0 {
            return Err(Error::OutOfBounds { index: header.len, len: header.len });
        }
        let capacity = header.room().saturating_mul(2).max(CAPACITY_MIN);
        // SAFETY: places without values stay zero. The old array is left as it is, and nothing
        // leads to it once the header is written.
        unsafe {
            let grown = tx.attempt(|tx| {
                let (array, capacity) = tx.alloc_array::<_, T>(self.header, capacity)?;
                let grown = DequeHeader {
                    array: Some(array),
                    head: 0,
                    capacity: capacity as u64,
                    ..header
                };
                touch_places(header.places(), header.room()).or_lost(tx)?;
                let (first, second) = header.halves();
                copy_nonoverlapping(header.place(0), grown.places(), first);
                copy_nonoverlapping(header.places(), grown.places().add(first), second);
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
}
