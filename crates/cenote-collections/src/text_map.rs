//! [`TextMap`], a hash map whose keys are texts of any length.
//!
//! ```text
//! header:  len | mask | map of hashes         entry:  key (an owned text) | value
//! ```
//!
//! The map under it leads from the hash of a text, a number, to the entry, which it owns. Two texts
//! of one hash take numbers that follow each other: a text is looked for from its hash on, until a
//! number has no place. An entry that is removed while the next number has a place leaves its own
//! place without an entry; the next text that looks there takes it.
//!
//! Invariants: from the hash of an entry's key to its place all numbers have a place. `len` counts
//! entries. Entries and texts are followed as every program follows pointers, with a check; no
//! memory depends on an invariant.

use crate::hash::HashMap;
use crate::shared::{DESTROYED, Header, open};
use cenote::persist::{LayoutBuilder, Persist, TypeId, owned_type_id};
use cenote::ptr::FieldOffset;
use cenote::{Owned, OwnedStr, OwningField, Ptr, Reader, Result, Tx, field};
use core::mem::offset_of;

#[repr(C)]
pub(crate) struct TextMapHeader<V> {
    len: u64,
    /// The bits of hashes that count: all but in tests.
    mask: u64,
    map: HashMap<u64, Owned<TextEntry<V>>>,
}

impl<V> Clone for TextMapHeader<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for TextMapHeader<V> {}

impl<V: Persist> Header for TextMapHeader<V> {
    fn len(&self) -> u64 {
        self.len
    }
}

persist_block!("cenote/TextMapHeader", TextMapHeader<V> {
    len: u64,
    mask: u64,
    map: HashMap<u64, Owned<TextEntry<V>>>,
});

/// See the module.
#[repr(C)]
pub(crate) struct TextEntry<V> {
    key: OwnedStr,
    value: V,
}

// SAFETY: both fields are described where they are; the name belongs to this crate, see `shared`.
unsafe impl<V: Persist> Persist for TextEntry<V> {
    const TYPE_ID: TypeId = owned_type_id(TypeId::of_name("cenote/TextEntry").apply(V::TYPE_ID.0));
    const OWNS: bool = true;
    const IS_OWNED: bool = true;

    fn type_name() -> String {
        cenote::persist::__applied("cenote/TextEntry", &[V::type_name])
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<OwnedStr>("key", offset_of!(Self, key));
        layout.field::<V>("value", offset_of!(Self, value));
    }
}

/// Where a text is, or goes.
enum TextPlace<V> {
    /// Its number, and its entry.
    There(u64, Ptr<TextEntry<V>>),
    /// A number that has no entry.
    Free(u64),
}

/// A hash map whose keys are texts of any length: URLs, paths, titles. A text is looked up by
/// `&str`, without a copy of it. See the [crate] for handles.
///
/// Each entry has a block with the value and a block with the text, which the map owns, and frees
/// when the entry is removed.
///
/// ```
/// use cenote::Store;
/// use cenote::ptr::FieldOffset;
/// use cenote_collections::TextMap;
///
/// # fn main() -> cenote::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// let pool = Store::open(directory.path())?.pool("visits")?;
/// pool.write(|tx| -> cenote::Result<()> {
///     let visits = TextMap::<u64>::new(tx)?;
///     let url = format!("gemini://example.org/{}", "long/".repeat(100));
///     assert!(visits.insert(tx, &url, 1)?);
///     visits.set(tx, &url, FieldOffset::whole(), 2)?;
///     assert_eq!(visits.get(tx, &url)?, Some(&2));
///     assert!(visits.remove(tx, &url)? && visits.is_empty(tx)?);
///     Ok(())
/// })
/// # }
/// ```
#[repr(transparent)]
pub struct TextMap<V> {
    header: Ptr<TextMapHeader<V>>,
}

persist_handle!("cenote/TextMap", TextMap<V>, TextMapHeader<V>);

impl<V: Persist> TextMap<V> {
    const KEY: FieldOffset<TextEntry<V>, OwnedStr> = field!(TextEntry<V>, key);
    const VALUE: FieldOffset<TextEntry<V>, V> = field!(TextEntry<V>, value);
    const LEN: FieldOffset<TextMapHeader<V>, u64> = field!(TextMapHeader<V>, len);

    /// An empty map in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Self::with_mask(tx, u64::MAX)
    }

    /// As [`TextMap::new`], where only some bits of a hash count: for tests of texts with one hash.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    #[doc(hidden)]
    pub fn with_mask(tx: &mut Tx<'_>, mask: u64) -> Result<Self> {
        tx.attempt(|tx| {
            let map = HashMap::new(tx)?;
            Ok(Self { header: tx.alloc(TextMapHeader { len: 0, mask, map })? })
        })
    }

    /// An empty map in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        tx.attempt(|tx| {
            let map = HashMap::new_beside(tx, neighbour)?;
            let header = TextMapHeader { len: 0, mask: u64::MAX, map };
            Ok(Self { header: tx.alloc_beside(neighbour, header)? })
        })
    }

    /// Number of entries.
    ///
    /// # Errors
    /// [`cenote::Error::Dangling`] if the handle is stale; so it is with every method.
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        Ok(open(reader, self.header)?.len as usize)
    }

    /// Whether there is no entry.
    ///
    /// # Errors
    /// As [`TextMap::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        Ok(self.len(reader)? == 0)
    }

    /// Where a text is, or goes.
    fn find(self, reader: &impl Reader, key: &str) -> Result<TextPlace<V>> {
        let TextMapHeader { mask, map, .. } = *open(reader, self.header)?;
        let (mut number, mut free) = (map.hash_of(reader, key)? & mask, None);
        while let Some(owner) = map.get(reader, &number)? {
            match owner.get() {
                Some(entry) if reader.get(entry)?.key.as_str(reader)? == key => {
                    return Ok(TextPlace::There(number, entry));
                }
                Some(_) => {}
                None => free = free.or(Some(number)),
            }
            number = number.wrapping_add(1);
        }
        Ok(TextPlace::Free(free.unwrap_or(number)))
    }

    fn entry(self, reader: &impl Reader, key: &str) -> Result<Option<Ptr<TextEntry<V>>>> {
        Ok(match self.find(reader, key)? {
            TextPlace::There(_, entry) => Some(entry),
            TextPlace::Free(_) => None,
        })
    }

    /// The value of a text.
    ///
    /// # Errors
    /// As [`TextMap::len`].
    pub fn get<'r>(self, reader: &'r impl Reader, key: &str) -> Result<Option<&'r V>> {
        match self.entry(reader, key)? {
            Some(entry) => Ok(Some(&reader.get(entry)?.value)),
            None => Ok(None),
        }
    }

    /// Whether there is an entry of this text.
    ///
    /// # Errors
    /// As [`TextMap::len`].
    pub fn contains_key(self, reader: &impl Reader, key: &str) -> Result<bool> {
        Ok(self.entry(reader, key)?.is_some())
    }

    /// Sets the value of a text; whether the text is new. An entry that is there is removed first,
    /// with what its value owns. 2 allocations, and what [`HashMap::insert`] costs. If it fails
    /// after the first step, the transaction can only abort.
    ///
    /// # Errors
    /// As [`HashMap::insert`].
    pub fn insert(self, tx: &mut Tx<'_>, key: &str, value: V) -> Result<bool> {
        let is_new = self.entry(tx, key)?.is_none();
        tx.all_or_abort(|tx| {
            if !is_new {
                self.remove(tx, key)?;
            }
            let TextMapHeader { len, map, .. } = *open(tx, self.header)?;
            let number = match self.find(tx, key)? {
                TextPlace::Free(number) | TextPlace::There(number, _) => number,
            };
            map.insert(tx, number, Owned::EMPTY)?;
            let entry = TextEntry { key: OwnedStr::EMPTY, value };
            if let Some(entry) = map.put_owned(tx, &number, FieldOffset::whole(), entry)? {
                tx.put_owned(entry, Self::KEY, key)?;
            }
            tx.set(self.header, Self::LEN, len + 1)
        })?;
        Ok(is_new)
    }

    /// Changes a field of the value of a text, or all of it ([`FieldOffset::whole`]); whether the
    /// text is there. 1 entry in the log.
    ///
    /// # Errors
    /// As [`Tx::set`].
    pub fn set<F: Persist>(
        self,
        tx: &mut Tx<'_>,
        key: &str,
        field: FieldOffset<V, F>,
        value: F,
    ) -> Result<bool> {
        let Some(entry) = self.entry(tx, key)? else { return Ok(false) };
        tx.set(entry, Self::VALUE.then(field), value)?;
        Ok(true)
    }

    /// Makes a block with a value, in the pool of the map, and has a field of a text's value own
    /// it, as [`Tx::put_owned`] does; `None`: the text is not there.
    ///
    /// # Errors
    /// As [`Tx::put_owned`].
    pub fn put_owned<F: OwningField>(
        self,
        tx: &mut Tx<'_>,
        key: &str,
        field: FieldOffset<V, F>,
        value: F::Value<'_>,
    ) -> Result<Option<F::Put>> {
        let Some(entry) = self.entry(tx, key)? else { return Ok(None) };
        tx.put_owned(entry, Self::VALUE.then(field), value).map(Some)
    }

    /// Frees what a field of a text's value owns, as [`Tx::free_owned`] does; whether there was
    /// something.
    ///
    /// # Errors
    /// As [`Tx::free_owned`].
    pub fn free_owned<F: OwningField>(
        self,
        tx: &mut Tx<'_>,
        key: &str,
        field: FieldOffset<V, F>,
    ) -> Result<bool> {
        let Some(entry) = self.entry(tx, key)? else { return Ok(false) };
        tx.free_owned(entry, Self::VALUE.then(field))
    }

    /// Removes the entry of a text, and frees what its value owns; whether it was there. If it
    /// fails after the first step, the transaction can only abort.
    ///
    /// # Errors
    /// As [`HashMap::remove`].
    pub fn remove(self, tx: &mut Tx<'_>, key: &str) -> Result<bool> {
        let TextMapHeader { len, map, .. } = *open(tx, self.header)?;
        let TextPlace::There(number, _) = self.find(tx, key)? else { return Ok(false) };
        let goes_on = map.contains_key(tx, &number.wrapping_add(1))?;
        tx.all_or_abort(|tx| {
            match goes_on {
                true => map.insert(tx, number, Owned::EMPTY).map(|_| ())?,
                false => map.remove(tx, &number).map(|_| ())?,
            }
            tx.set(self.header, Self::LEN, len.saturating_sub(1))
        })?;
        Ok(true)
    }

    /// Calls `visit` with each text and its value, in no order.
    ///
    /// # Errors
    /// As [`TextMap::len`]; those of `visit`, which ends with the first.
    pub fn for_each<'r>(
        self,
        reader: &'r impl Reader,
        mut visit: impl FnMut(&'r str, &'r V) -> Result<()>,
    ) -> Result<()> {
        let map = open(reader, self.header)?.map;
        for entry in map.values(reader)?.filter_map(Owned::get) {
            let entry = reader.get(entry)?;
            visit(entry.key.as_str(reader)?, &entry.value)?;
        }
        Ok(())
    }

    /// Removes all entries, as [`HashMap::clear`] does.
    ///
    /// # Errors
    /// As [`HashMap::clear`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        let map = open(tx, self.header)?.map;
        tx.all_or_abort(|tx| {
            map.clear(tx)?;
            tx.set(self.header, Self::LEN, 0)
        })
    }

    /// Frees the map with all its blocks. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`HashMap::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        let map = open(tx, self.header)?.map;
        tx.all_or_abort(|tx| {
            map.destroy(tx)?;
            tx.set(self.header, Self::LEN, DESTROYED)?;
            tx.free(self.header)
        })
    }
}
