//! [`HashMap::entry`]: look a key up once, then read, change, insert or remove at that place.
//!
//! Invariant: an entry borrows the transaction exclusively, so the header and the page that it was
//! made with stay true until it is used or dropped. Where the caller gets the transaction in
//! between ([`VacantEntry::try_insert_with`]), the key is looked up again.

use super::page::{HashPage, PageEntry as Pair};
use super::{HashHeader, HashMap};
use crate::shared::{OrLost, log, make_and_insert, open, range, release};
use cenote::persist::Persist;
use cenote::{Ptr, Result, Tx};
use core::fmt;
use core::hash::Hash;

/// The place of a key in a [`HashMap`]; see [`std::collections::hash_map::Entry`].
pub enum Entry<'t, 'p, K, V> {
    /// The key is not there.
    Vacant(VacantEntry<'t, 'p, K, V>),
    /// It is.
    Occupied(OccupiedEntry<'t, 'p, K, V>),
}

/// A key that is not there.
pub struct VacantEntry<'t, 'p, K, V> {
    tx: &'t mut Tx<'p>,
    map: HashMap<K, V>,
    header: HashHeader<K, V>,
    hash: u64,
    key: K,
}

/// A key that is there, and its value.
pub struct OccupiedEntry<'t, 'p, K, V> {
    tx: &'t mut Tx<'p>,
    map: HashMap<K, V>,
    header: HashHeader<K, V>,
    hash: u64,
    /// A page of the hash's bucket, and a slot of it that is in use.
    page: Ptr<HashPage<K, V>>,
    slot: usize,
}

impl<K: Persist + Hash + Eq, V: Persist> HashMap<K, V> {
    /// The place of a key, to look at and to change. Costs nothing until something is changed.
    ///
    /// ```
    /// # use cenote_collections::HashMap;
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let pool = cenote::Store::open(directory.path())?.pool("counts")?;
    /// pool.write(|tx| -> cenote::Result<()> {
    ///     let counts = HashMap::<u64, u64>::new(tx)?;
    ///     for n in [3, 1, 3] {
    ///         *counts.entry(tx, n)?.or_insert(0)? += 1;
    ///     }
    ///     assert_eq!((counts.get(tx, &1)?, counts.get(tx, &3)?), (Some(&1), Some(&2)));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn entry<'t, 'p>(self, tx: &'t mut Tx<'p>, key: K) -> Result<Entry<'t, 'p, K, V>> {
        let header = *open(tx, self.header)?;
        let hash = header.hash(&key);
        // SAFETY: a live header.
        Ok(match unsafe { header.find::<K>(hash, &key) }.or_lost(tx)? {
            Some((page, slot)) => {
                Entry::Occupied(OccupiedEntry { tx, map: self, header, hash, page, slot })
            }
            None => Entry::Vacant(VacantEntry { tx, map: self, header, hash, key }),
        })
    }
}

impl<'t, 'p, K: Persist + Hash + Eq, V: Persist> Entry<'t, 'p, K, V> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &K {
        match self {
            Self::Vacant(entry) => entry.key(),
            Self::Occupied(entry) => entry.key(),
        }
    }

    /// The value, which is `value` if there was none; to be changed.
    ///
    /// # Errors
    /// As [`HashMap::insert`].
    pub fn or_insert(self, value: V) -> Result<&'t mut V> {
        self.or_insert_with(|| value)
    }

    /// As [`Entry::or_insert`], with a value that is made only if there was none.
    ///
    /// # Errors
    /// As [`HashMap::insert`].
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> Result<&'t mut V> {
        match self {
            Self::Vacant(entry) => entry.insert(make()),
            Self::Occupied(entry) => entry.into_mut(),
        }
    }

    /// As [`Entry::or_insert_with`], for values that take the transaction to be made, as
    /// collections do.
    ///
    /// # Errors
    /// As [`HashMap::insert`], and those of `make`; then nothing is inserted.
    pub fn or_try_insert_with(
        self,
        make: impl FnOnce(&mut Tx<'p>) -> Result<V>,
    ) -> Result<&'t mut V> {
        match self {
            Self::Vacant(entry) => entry.try_insert_with(make),
            Self::Occupied(entry) => entry.into_mut(),
        }
    }

    /// As [`Entry::or_insert`] with the default value.
    ///
    /// # Errors
    /// As [`HashMap::insert`].
    pub fn or_default(self) -> Result<&'t mut V>
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Changes the value, if there is one.
    ///
    /// # Errors
    /// As [`HashMap::get_mut`].
    pub fn and_modify(mut self, change: impl FnOnce(&mut V)) -> Result<Self> {
        if let Self::Occupied(entry) = &mut self {
            change(entry.get_mut()?);
        }
        Ok(self)
    }
}

impl<'t, 'p, K: Persist + Hash + Eq, V: Persist> VacantEntry<'t, 'p, K, V> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The key, back.
    #[must_use]
    pub fn into_key(self) -> K {
        self.key
    }

    /// Inserts the key with a value. Costs what [`HashMap::insert`] does.
    ///
    /// # Errors
    /// As [`HashMap::insert`].
    pub fn insert(self, value: V) -> Result<&'t mut V> {
        refuse_owners!(V);
        let Self { tx, map, header, hash, key } = self;
        // SAFETY: the header is as it was, see the module. The place was logged, or is fresh; the
        // transaction stays borrowed exclusively.
        unsafe {
            let place = map.add(tx, &header, hash, Pair { key, value })?;
            Ok(&mut (*place).value)
        }
    }

    /// Inserts the key with a value that takes the transaction to be made. Should `make` insert the
    /// key itself, its value is replaced.
    ///
    /// # Errors
    /// As [`HashMap::insert`], and those of `make`; then nothing is inserted. If `make` has
    /// allocated something, and its value cannot be inserted, the transaction can only abort.
    pub fn try_insert_with(self, make: impl FnOnce(&mut Tx<'p>) -> Result<V>) -> Result<&'t mut V> {
        let Self { tx, map, key, .. } = self;
        // One that destroys the map knows what becomes of the value.
        let make = |tx: &mut Tx<'p>| make(tx).and_then(|value| map.len(tx).map(|_| value));
        let place = make_and_insert(tx, make, |tx, value| match map.entry(tx, key)? {
            Entry::Vacant(entry) => Ok(core::ptr::from_mut(entry.insert(value)?)),
            Entry::Occupied(mut entry) => {
                entry.insert(value)?;
                Ok(core::ptr::from_mut(entry.into_mut()?))
            }
        })?;
        // SAFETY: the reference that it was, for as long as the transaction is borrowed.
        Ok(unsafe { &mut *place })
    }
}

impl<'t, K: Persist + Hash + Eq, V: Persist> OccupiedEntry<'t, '_, K, V> {
    fn place(&self) -> *mut Pair<K, V> {
        // SAFETY: the page is as it was, see the module.
        unsafe { HashPage::place(self.page, self.slot) }
    }

    /// The key as it is in the map.
    #[must_use]
    pub fn key(&self) -> &K {
        // SAFETY: an entry of the map; it is not changed as long as this is borrowed.
        unsafe { &(*self.place()).key }
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> &V {
        // SAFETY: as in `key`.
        unsafe { &(*self.place()).value }
    }

    /// The value, to be changed: logged whole. 1 entry in the log.
    ///
    /// # Errors
    /// [`cenote::Error::Tx`] if the log is full.
    pub fn get_mut(&mut self) -> Result<&mut V> {
        refuse_owners!(V);
        // SAFETY: an entry of the map, in a pool that is held; logged first, and this is borrowed
        // exclusively.
        unsafe {
            let value = &raw mut (*self.place()).value;
            log(self.tx, &[range(value)])?;
            Ok(&mut *value)
        }
    }

    /// As [`OccupiedEntry::get_mut`], for as long as the transaction is borrowed.
    ///
    /// # Errors
    /// As [`OccupiedEntry::get_mut`].
    pub fn into_mut(self) -> Result<&'t mut V> {
        refuse_owners!(V);
        // SAFETY: as in `get_mut`; the transaction stays borrowed exclusively.
        unsafe {
            let value = &raw mut (*self.place()).value;
            log(self.tx, &[range(value)])?;
            Ok(&mut *value)
        }
    }

    /// Replaces the value and returns the old one. 1 entry in the log. What the old one owned is
    /// freed.
    ///
    /// # Errors
    /// As [`OccupiedEntry::get_mut`].
    pub fn insert(&mut self, value: V) -> Result<V> {
        // SAFETY: an entry of the map, in a pool that is held; logged before it is written.
        unsafe {
            let place = &raw mut (*self.place()).value;
            let (header, block) = (self.map.header, self.page);
            release::<V, _, _, _>(self.tx, header, (block, range(place)), |tx| {
                log(tx, &[range(place)])?;
                Ok(place.replace(value))
            })
        }
    }

    /// Removes the entry and returns its value. Costs what [`HashMap::remove`] does.
    ///
    /// # Errors
    /// As [`HashMap::remove`].
    pub fn remove(self) -> Result<V> {
        Ok(self.remove_entry()?.1)
    }

    /// Removes the entry and returns it.
    ///
    /// # Errors
    /// As [`HashMap::remove`].
    pub fn remove_entry(self) -> Result<(K, V)> {
        let Self { tx, map, header, hash, page, slot } = self;
        // SAFETY: header, page and slot are as they were, see the module.
        unsafe { map.take_out(tx, &header, hash, page, slot) }
    }
}

impl<K: Persist + Hash + Eq + fmt::Debug, V: Persist + fmt::Debug> fmt::Debug
    for Entry<'_, '_, K, V>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vacant(entry) => entry.fmt(f),
            Self::Occupied(entry) => entry.fmt(f),
        }
    }
}

impl<K: fmt::Debug, V> fmt::Debug for VacantEntry<'_, '_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VacantEntry").field(&self.key).finish()
    }
}

impl<K: Persist + Hash + Eq + fmt::Debug, V: Persist + fmt::Debug> fmt::Debug
    for OccupiedEntry<'_, '_, K, V>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OccupiedEntry").field("key", self.key()).field("value", self.get()).finish()
    }
}
