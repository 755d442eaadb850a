//! What values of a map own: a block is put into an edge of a value, in its place, or freed.

use super::HashMap;
use super::page::HashPage;
use crate::shared::{OrLost, open};
use cenote::persist::Persist;
use cenote::ptr::FieldOffset;
use cenote::{OwningField, Result, Tx};
use core::borrow::Borrow;
use core::hash::Hash;

impl<K: Persist, V: Persist> HashMap<K, V> {
    /// The edge `field` of a key's value.
    fn owning_edge<Q: Hash + Eq + ?Sized, F>(
        self,
        tx: &Tx<'_>,
        key: &Q,
        field: FieldOffset<V, F>,
    ) -> Result<Option<*mut F>>
    where
        K: Borrow<Q>,
    {
        let header = *open(tx, self.header)?;
        // SAFETY: a live header, and a slot in use.
        unsafe {
            let found = header.find(header.hash(key), key).or_lost(tx)?;
            let Some((page, slot)) = found else { return Ok(None) };
            let value = &raw mut (*HashPage::place(page, slot)).value;
            Ok(Some(value.byte_add(field.offset()).cast()))
        }
    }

    /// Makes a block with a value, in the pool of the map, and has a field of a key's value own it,
    /// as [`Tx::put_owned`] does; `None`: the key is not there.
    ///
    /// # Errors
    /// As [`Tx::put_owned`].
    pub fn put_owned<Q: Hash + Eq + ?Sized, F: OwningField>(
        self,
        tx: &mut Tx<'_>,
        key: &Q,
        field: FieldOffset<V, F>,
        value: F::Value<'_>,
    ) -> Result<Option<F::Put>>
    where
        K: Borrow<Q>,
    {
        let Some(edge) = self.owning_edge(tx, key, field)? else { return Ok(None) };
        // SAFETY: an edge of a value on a page of the live header, which was touched.
        unsafe { tx.put_owned_near(self.header, edge, value).map(Some) }
    }

    /// Frees what a field of a key's value owns, as [`Tx::free_owned`] does; whether there was
    /// something.
    ///
    /// # Errors
    /// As [`Tx::free_owned`].
    pub fn free_owned<Q: Hash + Eq + ?Sized, F: OwningField>(
        self,
        tx: &mut Tx<'_>,
        key: &Q,
        field: FieldOffset<V, F>,
    ) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        let Some(edge) = self.owning_edge(tx, key, field)? else { return Ok(false) };
        // SAFETY: an edge of a value on a page of the live header, which was touched.
        unsafe { tx.free_owned_near(self.header, edge) }
    }
}
