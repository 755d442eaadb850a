//! [`BTreeSet`]: a [`BTreeMap`] without values.

use crate::btree::{BTreeMap, Entry, Keys, Range};
use crate::shared::build;
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result, Tx};
use core::borrow::Borrow;
use core::fmt;
use core::iter::FusedIterator;
use core::ops::RangeBounds;

/// An ordered set; see [`std::collections::BTreeSet`] for what the methods mean and the [crate] for
/// handles.
///
/// ```
/// use cenote::Store;
/// use cenote_collections::BTreeSet;
///
/// # fn main() -> cenote::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// let pool = Store::open(directory.path())?.pool("primes")?;
/// pool.write(|tx| -> cenote::Result<()> {
///     let primes = BTreeSet::from_iter(tx, [7_u64, 2, 5, 3])?;
///     assert!(primes.range(tx, 3..7)?.eq(&[3, 5]));
///     assert_eq!(primes.pop_first(tx)?, Some(2));
///     Ok(())
/// })
/// # }
/// ```
#[repr(transparent)]
pub struct BTreeSet<T> {
    map: BTreeMap<T, ()>,
}

persist_over!("cenote/BTreeSet", BTreeSet<T>, map: BTreeMap<T, ()>);

impl<T: Persist> BTreeSet<T> {
    /// An empty set in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { map: BTreeMap::new(tx)? })
    }

    /// An empty set in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { map: BTreeMap::new_beside(tx, neighbour)? })
    }

    /// Number of values.
    ///
    /// # Errors
    /// [`cenote::Error::Dangling`] if the handle is stale; so it is with every method.
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        self.map.len(reader)
    }

    /// Whether there is no value.
    ///
    /// # Errors
    /// As [`BTreeSet::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        self.map.is_empty(reader)
    }

    /// The value as it is in the set.
    ///
    /// # Errors
    /// As [`BTreeSet::len`].
    pub fn get<'r, Q: Ord + ?Sized>(
        self,
        reader: &'r impl Reader,
        value: &Q,
    ) -> Result<Option<&'r T>>
    where
        T: Borrow<Q>,
    {
        Ok(self.map.get_key_value(reader, value)?.map(|(value, ())| value))
    }

    /// Whether the value is there.
    ///
    /// # Errors
    /// As [`BTreeSet::len`].
    pub fn contains<Q: Ord + ?Sized>(self, reader: &impl Reader, value: &Q) -> Result<bool>
    where
        T: Borrow<Q>,
    {
        self.map.contains_key(reader, value)
    }

    /// All values, rising.
    ///
    /// # Errors
    /// As [`BTreeSet::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<Keys<'r, T, ()>> {
        self.map.keys(reader)
    }

    /// Removes a value; whether it was there. Costs what [`BTreeMap::remove`] does.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`].
    pub fn remove<Q: Ord + ?Sized>(self, tx: &mut Tx<'_>, value: &Q) -> Result<bool>
    where
        T: Borrow<Q>,
    {
        Ok(self.map.remove(tx, value)?.is_some())
    }

    /// Removes a value and returns it as it was in the set.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`].
    pub fn take<Q: Ord + ?Sized>(self, tx: &mut Tx<'_>, value: &Q) -> Result<Option<T>>
    where
        T: Borrow<Q>,
    {
        Ok(self.map.remove_entry(tx, value)?.map(|(value, ())| value))
    }

    /// Keeps the values for which `keep` says so, as [`BTreeMap::retain`] does.
    ///
    /// # Errors
    /// As [`BTreeMap::retain`].
    pub fn retain(self, tx: &mut Tx<'_>, mut keep: impl FnMut(&T) -> bool) -> Result<()>
    where
        T: Ord,
    {
        self.map.retain(tx, |value, ()| keep(value))
    }

    /// Removes all values, as [`BTreeMap::clear`] does.
    ///
    /// # Errors
    /// As [`BTreeMap::clear`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.map.clear(tx)
    }

    /// Frees the set. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`BTreeMap::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.map.destroy(tx)
    }
}

impl<T: Persist + Ord> BTreeSet<T> {
    /// Adds a value; whether it was not there. Costs what [`BTreeMap::insert`] of a new key does. A
    /// value that is there stays as it is, and nothing is logged.
    ///
    /// # Errors
    /// As [`BTreeMap::insert`].
    pub fn insert(self, tx: &mut Tx<'_>, value: T) -> Result<bool> {
        match self.map.entry(tx, value)? {
            Entry::Occupied(_) => Ok(false),
            Entry::Vacant(entry) => entry.insert(()).map(|()| true),
        }
    }

    /// Adds what the iterator yields, one after the other.
    ///
    /// # Errors
    /// As [`BTreeSet::insert`]; values before the one that failed are in the set.
    pub fn extend(self, tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<()> {
        values.into_iter().try_for_each(|value| self.insert(tx, value).map(drop))
    }

    /// A set of what the iterator yields, in the transaction's first pool.
    ///
    /// # Errors
    /// As [`BTreeSet::insert`]; then there is no set.
    pub fn from_iter(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, values), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// A set of what the iterator yields, in the transaction's first pool, for rising values: as
    /// [`BTreeMap::from_sorted`].
    ///
    /// # Errors
    /// As [`BTreeSet::insert`]; then there is no set.
    pub fn from_sorted(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let map = BTreeMap::from_sorted(tx, values.into_iter().map(|value| (value, ())))?;
        Ok(Self { map })
    }
}

impl<T: Persist> BTreeSet<T> {
    /// The least value.
    ///
    /// # Errors
    /// As [`BTreeSet::len`].
    pub fn first(self, reader: &impl Reader) -> Result<Option<&T>> {
        Ok(self.map.first_key_value(reader)?.map(|(value, ())| value))
    }

    /// The greatest value.
    ///
    /// # Errors
    /// As [`BTreeSet::len`].
    pub fn last(self, reader: &impl Reader) -> Result<Option<&T>> {
        Ok(self.map.last_key_value(reader)?.map(|(value, ())| value))
    }

    /// Removes the least value and returns it.
    ///
    /// # Errors
    /// As [`BTreeMap::pop_first`].
    pub fn pop_first(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        Ok(self.map.pop_first(tx)?.map(|(value, ())| value))
    }

    /// Removes the greatest value and returns it.
    ///
    /// # Errors
    /// As [`BTreeMap::pop_last`].
    pub fn pop_last(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        Ok(self.map.pop_last(tx)?.map(|(value, ())| value))
    }

    /// The values in a range, rising, from both ends. A range that ends before it starts is empty.
    ///
    /// # Errors
    /// As [`BTreeSet::len`].
    pub fn range<'r, Q: Ord + ?Sized>(
        self,
        reader: &'r impl Reader,
        range: impl RangeBounds<Q>,
    ) -> Result<RangeOfSet<'r, T>>
    where
        T: Borrow<Q>,
    {
        Ok(RangeOfSet { range: self.map.range(reader, range)? })
    }
}

/// The values of a [`BTreeSet`] in a range, rising.
pub struct RangeOfSet<'r, T> {
    range: Range<'r, T, ()>,
}

impl<'r, T> Iterator for RangeOfSet<'r, T> {
    type Item = &'r T;

    fn next(&mut self) -> Option<&'r T> {
        self.range.next().map(|(value, ())| value)
    }
}

impl<T> DoubleEndedIterator for RangeOfSet<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.range.next_back().map(|(value, ())| value)
    }
}

impl<T> FusedIterator for RangeOfSet<'_, T> {}

impl<T> fmt::Debug for RangeOfSet<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeOfSet").finish_non_exhaustive()
    }
}
