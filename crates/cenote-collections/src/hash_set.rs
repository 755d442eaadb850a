//! [`HashSet`]: a [`HashMap`] without values.

use crate::hash::{Entry, HashMap, Keys};
use crate::shared::build;
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result, Tx};
use core::borrow::Borrow;
use core::hash::Hash;

/// A set; see [`std::collections::HashSet`] for what the methods mean, [`HashMap`] for hashes, and
/// the [crate] for handles.
///
/// ```
/// use cenote::Store;
/// use cenote_collections::{HashSet, InlineStr};
///
/// # fn main() -> cenote::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// let pool = Store::open(directory.path())?.pool("seen")?;
/// pool.write(|tx| -> cenote::Result<()> {
///     let seen = HashSet::<InlineStr<23>>::new(tx)?;
///     assert!(seen.insert(tx, InlineStr::truncated("ada"))?);
///     assert!(!seen.insert(tx, InlineStr::truncated("ada"))?);
///     assert!(seen.contains(tx, "ada")? && seen.remove(tx, "ada")?);
///     Ok(())
/// })
/// # }
/// ```
#[repr(transparent)]
pub struct HashSet<T> {
    map: HashMap<T, ()>,
}

persist_over!("cenote/HashSet", HashSet<T>, map: HashMap<T, ()>);

impl<T: Persist> HashSet<T> {
    /// An empty set in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { map: HashMap::new(tx)? })
    }

    /// An empty set in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { map: HashMap::new_beside(tx, neighbour)? })
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
    /// As [`HashSet::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        self.map.is_empty(reader)
    }

    /// The value as it is in the set.
    ///
    /// # Errors
    /// As [`HashSet::len`].
    pub fn get<'r, Q: Hash + Eq + ?Sized>(
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
    /// As [`HashSet::len`].
    pub fn contains<Q: Hash + Eq + ?Sized>(self, reader: &impl Reader, value: &Q) -> Result<bool>
    where
        T: Borrow<Q>,
    {
        self.map.contains_key(reader, value)
    }

    /// All values, in the order of the buckets.
    ///
    /// # Errors
    /// As [`HashSet::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<Keys<'r, T, ()>> {
        self.map.keys(reader)
    }

    /// Removes a value; whether it was there. Costs what [`HashMap::remove`] does.
    ///
    /// # Errors
    /// As [`HashMap::remove`].
    pub fn remove<Q: Hash + Eq + ?Sized>(self, tx: &mut Tx<'_>, value: &Q) -> Result<bool>
    where
        T: Borrow<Q>,
    {
        Ok(self.map.remove(tx, value)?.is_some())
    }

    /// Removes a value and returns it as it was in the set.
    ///
    /// # Errors
    /// As [`HashMap::remove`].
    pub fn take<Q: Hash + Eq + ?Sized>(self, tx: &mut Tx<'_>, value: &Q) -> Result<Option<T>>
    where
        T: Borrow<Q>,
    {
        Ok(self.map.remove_entry(tx, value)?.map(|(value, ())| value))
    }

    /// Keeps the values for which `keep` says so, as [`HashMap::retain`] does.
    ///
    /// # Errors
    /// As [`HashMap::retain`].
    pub fn retain(self, tx: &mut Tx<'_>, mut keep: impl FnMut(&T) -> bool) -> Result<()> {
        self.map.retain(tx, |value, ()| keep(value))
    }

    /// Removes all values, as [`HashMap::clear`] does.
    ///
    /// # Errors
    /// As [`HashMap::clear`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.map.clear(tx)
    }

    /// Frees the set. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`HashMap::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.map.destroy(tx)
    }
}

impl<T: Persist + Hash + Eq> HashSet<T> {
    /// Adds a value; whether it was not there. Costs what [`HashMap::insert`] of a new key does. A
    /// value that is there stays as it is, and nothing is logged.
    ///
    /// # Errors
    /// As [`HashMap::insert`].
    pub fn insert(self, tx: &mut Tx<'_>, value: T) -> Result<bool> {
        match self.map.entry(tx, value)? {
            Entry::Occupied(_) => Ok(false),
            Entry::Vacant(entry) => entry.insert(()).map(|()| true),
        }
    }

    /// Adds what the iterator yields, one after the other.
    ///
    /// # Errors
    /// As [`HashSet::insert`]; values before the one that failed are in the set.
    pub fn extend(self, tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<()> {
        values.into_iter().try_for_each(|value| self.insert(tx, value).map(drop))
    }

    /// A set of what the iterator yields, in the transaction's first pool.
    ///
    /// # Errors
    /// As [`HashSet::insert`]; then there is no set.
    pub fn from_iter(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, values), |tx| this.destroy(tx))?;
        Ok(this)
    }
}
