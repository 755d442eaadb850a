//! [`BTreeMap::entry`]: look a key up once, then read, change, insert or remove at that place.
//!
//! Invariant: an entry borrows the transaction exclusively, so the header and the path that it was
//! made with stay true until it is used or dropped. Where the caller gets the transaction in
//! between ([`VacantEntry::try_insert_with`]), the key is looked up again.

use super::node::{NodeEntry as Pair, Slots};
use super::{BTreeHeader, BTreeMap, Path};
use crate::shared::{OrLost, log, make_and_insert, open, range, release};
use cenote::persist::Persist;
use cenote::{Result, Tx};
use core::fmt;

/// The place of a key in a [`BTreeMap`]; see [`std::collections::btree_map::Entry`].
pub enum Entry<'t, 'p, K, V> {
    /// The key is not there.
    Vacant(VacantEntry<'t, 'p, K, V>),
    /// It is.
    Occupied(OccupiedEntry<'t, 'p, K, V>),
}

/// The place where a key would be.
pub struct VacantEntry<'t, 'p, K, V> {
    tx: &'t mut Tx<'p>,
    map: BTreeMap<K, V>,
    header: BTreeHeader<K, V>,
    /// The leaf where the key belongs and its position there; `None` if there is no leaf.
    to: Option<(Path<K, V>, usize)>,
    key: K,
}

/// A key that is there, and its value.
pub struct OccupiedEntry<'t, 'p, K, V> {
    tx: &'t mut Tx<'p>,
    map: BTreeMap<K, V>,
    header: BTreeHeader<K, V>,
    path: Path<K, V>,
    /// Position in the leaf, less than its length.
    at: usize,
}

impl<K: Persist + Ord, V: Persist> BTreeMap<K, V> {
    /// The place of a key, to look at and to change. Costs nothing until something is changed.
    ///
    /// ```
    /// # use cenote_collections::BTreeMap;
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let pool = cenote::Store::open(directory.path())?.pool("counts")?;
    /// pool.write(|tx| -> cenote::Result<()> {
    ///     let counts = BTreeMap::<u64, u64>::new(tx)?;
    ///     for n in [3, 1, 3] {
    ///         *counts.entry(tx, n)?.or_insert(0)? += 1;
    ///     }
    ///     assert!(counts.iter(tx)?.eq([(&1, &1), (&3, &2)]));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn entry<'t, 'p>(self, tx: &'t mut Tx<'p>, key: K) -> Result<Entry<'t, 'p, K, V>> {
        let header = *open(tx, self.header)?;
        // SAFETY: a live header, whose links lead to live nodes.
        unsafe {
            let Some(path) = Path::find::<K>(&header, &key).or_lost(tx)? else {
                return Ok(Entry::Vacant(VacantEntry { tx, map: self, header, to: None, key }));
            };
            Ok(match path.leaf.as_ref().search::<K>(&key) {
                Ok(at) => Entry::Occupied(OccupiedEntry { tx, map: self, header, path, at }),
                Err(at) => {
                    Entry::Vacant(VacantEntry { tx, map: self, header, to: Some((path, at)), key })
                }
            })
        }
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn first_entry<'t, 'p>(
        self,
        tx: &'t mut Tx<'p>,
    ) -> Result<Option<OccupiedEntry<'t, 'p, K, V>>> {
        self.edge(tx, false)
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn last_entry<'t, 'p>(
        self,
        tx: &'t mut Tx<'p>,
    ) -> Result<Option<OccupiedEntry<'t, 'p, K, V>>> {
        self.edge(tx, true)
    }

    fn edge<'t, 'p>(
        self,
        tx: &'t mut Tx<'p>,
        last: bool,
    ) -> Result<Option<OccupiedEntry<'t, 'p, K, V>>> {
        let header = *open(tx, self.header)?;
        // SAFETY: a live header, whose links lead to live nodes.
        unsafe {
            let Some(path) = Path::edge(&header, last).or_lost(tx)? else { return Ok(None) };
            let Some(end) = path.leaf.as_ref().len().checked_sub(1) else { return Ok(None) };
            let at = if last { end } else { 0 };
            Ok(Some(OccupiedEntry { tx, map: self, header, path, at }))
        }
    }
}

impl<'t, 'p, K: Persist + Ord, V: Persist> Entry<'t, 'p, K, V> {
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
    /// As [`BTreeMap::insert`].
    pub fn or_insert(self, value: V) -> Result<&'t mut V> {
        self.or_insert_with(|| value)
    }

    /// As [`Entry::or_insert`], with a value that is made only if there was none.
    ///
    /// # Errors
    /// As [`BTreeMap::insert`].
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
    /// As [`BTreeMap::insert`], and those of `make`; then nothing is inserted.
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
    /// As [`BTreeMap::insert`].
    pub fn or_default(self) -> Result<&'t mut V>
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    /// Changes the value, if there is one.
    ///
    /// # Errors
    /// As [`BTreeMap::get_mut`].
    pub fn and_modify(mut self, change: impl FnOnce(&mut V)) -> Result<Self> {
        if let Self::Occupied(entry) = &mut self {
            change(entry.get_mut()?);
        }
        Ok(self)
    }
}

impl<'t, 'p, K: Persist + Ord, V: Persist> VacantEntry<'t, 'p, K, V> {
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

    /// Inserts the key with a value. Costs what [`BTreeMap::insert`] does.
    ///
    /// # Errors
    /// As [`BTreeMap::insert`].
    pub fn insert(self, value: V) -> Result<&'t mut V> {
        refuse_owners!(V);
        let Self { tx, map, header, to, key } = self;
        // SAFETY: header and path are as they were, see the module. The place was logged, or is
        // fresh; the transaction stays borrowed exclusively.
        unsafe {
            let to = to.as_ref().map(|(path, at)| (path, *at));
            let place = map.add(tx, &header, to, Pair { key, value })?;
            Ok(&mut (*place).value)
        }
    }

    /// Inserts the key with a value that takes the transaction to be made. Should `make` insert the
    /// key itself, its value is replaced.
    ///
    /// # Errors
    /// As [`BTreeMap::insert`], and those of `make`; then nothing is inserted. If `make` has
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

impl<'t, K: Persist + Ord, V: Persist> OccupiedEntry<'t, '_, K, V> {
    fn place(&self) -> *mut Pair<K, V> {
        // SAFETY: the path is as it was, see the module; the position is less than the leaf's
        // length.
        unsafe { Slots::place(place!(self.path.leaf, entries), self.at) }
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
            let (header, block) = (self.map.header, self.path.leaf);
            release::<V, _, _, _>(self.tx, header, (block, range(place)), |tx| {
                log(tx, &[range(place)])?;
                Ok(place.replace(value))
            })
        }
    }

    /// Removes the entry and returns its value. Costs what [`BTreeMap::remove`] does.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`].
    pub fn remove(self) -> Result<V> {
        Ok(self.remove_entry()?.1)
    }

    /// Removes the entry and returns it.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`].
    pub fn remove_entry(self) -> Result<(K, V)> {
        let Self { tx, map, header, path, at } = self;
        // SAFETY: header, path and position are as they were, see the module.
        unsafe { map.take_out(tx, &header, &path, at) }
    }
}

impl<K: Persist + Ord + fmt::Debug, V: Persist + fmt::Debug> fmt::Debug for Entry<'_, '_, K, V> {
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

impl<K: Persist + Ord + fmt::Debug, V: Persist + fmt::Debug> fmt::Debug
    for OccupiedEntry<'_, '_, K, V>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OccupiedEntry").field("key", self.key()).field("value", self.get()).finish()
    }
}
