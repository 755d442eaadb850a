//! [`BinaryHeap`], a priority queue: a [`Vec`] whose first value is the greatest.

use crate::shared::build;
use crate::vec::Vec;
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result, Tx};
use core::slice;

/// A priority queue, the greatest value first; see [`std::collections::BinaryHeap`] for what the
/// methods mean and the [crate] for handles. With [`core::cmp::Reverse`] the least value is first.
///
/// ```
/// use cenote::Store;
/// use cenote_collections::BinaryHeap;
/// use std::cmp::Reverse;
///
/// # fn main() -> cenote::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// let pool = Store::open(directory.path())?.pool("work")?;
/// pool.write(|tx| -> cenote::Result<()> {
///     let due = BinaryHeap::<Reverse<(u64, u32)>>::new(tx)?;
///     for (at, job) in [(30, 1), (10, 2), (20, 3)] {
///         due.push(tx, Reverse((at, job)))?;
///     }
///     assert_eq!(due.pop(tx)?, Some(Reverse((10, 2))));
///     assert_eq!(due.peek(tx)?, Some(&Reverse((20, 3))));
///     Ok(())
/// })
/// # }
/// ```
#[repr(transparent)]
pub struct BinaryHeap<T> {
    vec: Vec<T>,
}

persist_over!("cenote/BinaryHeap", BinaryHeap<T>, vec: Vec<T>);

impl<T: Persist> BinaryHeap<T> {
    /// An empty queue in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { vec: Vec::new(tx)? })
    }

    /// An empty queue in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { vec: Vec::new_beside(tx, neighbour)? })
    }

    /// Number of values.
    ///
    /// # Errors
    /// [`cenote::Error::Dangling`] if the handle is stale; so it is with every method.
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        self.vec.len(reader)
    }

    /// Whether there is no value.
    ///
    /// # Errors
    /// As [`BinaryHeap::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        self.vec.is_empty(reader)
    }

    /// The greatest value.
    ///
    /// # Errors
    /// As [`BinaryHeap::len`].
    pub fn peek(self, reader: &impl Reader) -> Result<Option<&T>> {
        self.vec.first(reader)
    }

    /// All values, in no order.
    ///
    /// # Errors
    /// As [`BinaryHeap::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<slice::Iter<'r, T>> {
        self.vec.iter(reader)
    }

    /// Removes all values and gives the array back, as [`Vec::clear`] does.
    ///
    /// # Errors
    /// As [`Vec::clear`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.vec.clear(tx)
    }

    /// Frees the queue. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`BinaryHeap::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.vec.destroy(tx)
    }
}

impl<T: Persist + Ord> BinaryHeap<T> {
    /// Adds a value. 2 entries, and 1 for each value that it passes: at most one for each doubling
    /// of the length.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn push(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        self.vec.heap_push(tx, value)
    }

    /// Removes the greatest value and returns it. 3 entries, and 1 for each value that moves up: at
    /// most one for each doubling of the length. What the value owned is freed.
    ///
    /// # Errors
    /// As [`Vec::pop`].
    pub fn pop(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        self.vec.heap_pop(tx)
    }

    /// Adds what the iterator yields, one after the other.
    ///
    /// # Errors
    /// As [`BinaryHeap::push`]; values before the one that failed are in the queue.
    pub fn extend(self, tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<()> {
        values.into_iter().try_for_each(|value| self.push(tx, value))
    }

    /// A queue of what the iterator yields, in the transaction's first pool.
    ///
    /// # Errors
    /// As [`BinaryHeap::push`]; then there is no queue.
    pub fn from_iter(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, values), |tx| this.destroy(tx))?;
        Ok(this)
    }
}
