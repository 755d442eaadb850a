//! What values of a map own: a block is put into an edge of a value, in its place, or freed.

use super::BTreeMap;
use cenote::persist::Persist;
use cenote::ptr::FieldOffset;
use cenote::{OwningField, Result, Tx};
use core::borrow::Borrow;
use core::ptr::with_exposed_provenance_mut;

impl<K: Persist, V: Persist> BTreeMap<K, V> {
    /// The edge `field` of a key's value.
    fn owning_edge<Q: Ord + ?Sized, F>(
        self,
        tx: &Tx<'_>,
        key: &Q,
        field: FieldOffset<V, F>,
    ) -> Result<Option<*mut F>>
    where
        K: Borrow<Q>,
    {
        let value = self.get(tx, key)?;
        Ok(value.map(|value| {
            with_exposed_provenance_mut(core::ptr::from_ref(value).addr() + field.offset())
        }))
    }

    /// Makes a block with a value, in the pool of the map, and has a field of a key's value own it,
    /// as [`Tx::put_owned`] does; `None`: the key is not there.
    ///
    /// ```
    /// use cenote::{Owned, Persist, Ptr, Reader, Store, field, ptr::FieldOffset};
    /// use cenote_collections::{BTreeMap, InlineStr};
    ///
    /// #[derive(Persist)]
    /// #[persist(owned)]
    /// struct Contact { born: Option<u16>, phones: Owned<Phone> }
    ///
    /// #[derive(Persist)]
    /// #[persist(owned)]
    /// struct Phone { number: InlineStr<15>, next: Owned<Phone> }
    ///
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// let pool = Store::open(directory.path())?.pool("contacts")?;
    /// let contacts = pool.write(|tx| -> cenote::Result<_> {
    ///     let contacts = BTreeMap::<InlineStr<23>, Owned<Contact>>::new(tx)?;
    ///     contacts.insert(tx, InlineStr::truncated("ada"), Owned::EMPTY)?;
    ///     let ada = Contact { born: Some(1815), phones: Owned::EMPTY };
    ///     let ada = contacts.put_owned(tx, "ada", FieldOffset::whole(), ada)?.expect("inserted");
    ///     let phone = Phone { number: InlineStr::truncated("36000"), next: Owned::EMPTY };
    ///     tx.put_owned(ada, field!(Contact, phones), phone)?;
    ///     Ok(contacts)
    /// })?;
    /// # let blocks = pool.stats()?.blocks;
    /// // The contact goes with its phones.
    /// pool.write(|tx| contacts.remove(tx, "ada").map(drop))?;
    /// # pool.finish_frees()?;
    /// # assert_eq!(pool.stats()?.blocks, blocks - 3, "leaf, contact, phone");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tx::put_owned`].
    pub fn put_owned<Q: Ord + ?Sized, F: OwningField>(
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
        // SAFETY: an edge of a value in a leaf of the live header, which was touched.
        unsafe { tx.put_owned_near(self.header, edge, value).map(Some) }
    }

    /// Frees what a field of a key's value owns, as [`Tx::free_owned`] does; whether there was
    /// something.
    ///
    /// # Errors
    /// As [`Tx::free_owned`].
    pub fn free_owned<Q: Ord + ?Sized, F: OwningField>(
        self,
        tx: &mut Tx<'_>,
        key: &Q,
        field: FieldOffset<V, F>,
    ) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        let Some(edge) = self.owning_edge(tx, key, field)? else { return Ok(false) };
        // SAFETY: an edge of a value in a leaf of the live header, which was touched.
        unsafe { tx.free_owned_near(self.header, edge) }
    }
}
