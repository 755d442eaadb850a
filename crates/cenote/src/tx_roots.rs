//! Roots that a transaction sets: by number, and by name.

use crate::error::{Error, Result};
use crate::field;
use crate::heap_ptr::HeapPtr;
use crate::names::{
    self, CHAINS, DIRECTORY_ROOT, Directory, NAME_LEN_MAX, NameEntry, chain_field, chain_of,
    checked, directory, find, is_hidden,
};
use crate::open_pool::{Pool, PoolInner};
use crate::persist::Persist;
use crate::ptr::Ptr;
use crate::reader::Reader;
use crate::tx::Tx;
use cenote_heap::Heap;
use cenote_layout::heap::{RootEntry, RootSlot};
use core::sync::atomic::{AtomicU64, Ordering};

impl<'p> Tx<'p> {
    /// Sets root `index` (0 to 1023) of the transaction's first pool. What the root led to before
    /// is not freed.
    ///
    /// # Errors
    /// [`Error::RootIndex`]; [`Error::Dangling`] if the value is not alive in a pool of this
    /// transaction; [`Error::Tx`].
    pub fn set_root_at<T: Persist>(&mut self, index: u16, root: Option<Ptr<T>>) -> Result<()> {
        let pool = self.first_pool();
        self.write_root(pool, index, root)
    }

    /// Sets root 0 of the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::set_root_at`].
    pub fn set_root<T: Persist>(&mut self, root: Ptr<T>) -> Result<()> {
        self.set_root_at(0, Some(root))
    }

    /// As [`Tx::set_root_at`], of a heap pointer; null takes the root away.
    ///
    /// # Errors
    /// As [`Tx::set_root_at`] and [`Reader::ptr_of`].
    pub fn set_heap_root_at<T: Persist>(&mut self, index: u16, root: HeapPtr<T>) -> Result<()> {
        let root = self.ptr_of(root)?;
        self.set_root_at(index, root)
    }

    /// As [`Tx::set_heap_root_at`], of root 0.
    ///
    /// # Errors
    /// As [`Tx::set_heap_root_at`].
    pub fn set_heap_root<T: Persist>(&mut self, root: HeapPtr<T>) -> Result<()> {
        self.set_heap_root_at(0, root)
    }

    /// Sets root `index` of a pool of choice.
    ///
    /// # Errors
    /// As [`Tx::set_root_at`]; [`Error::NotInTransaction`].
    pub fn set_root_in<T: Persist>(
        &mut self,
        pool: &Pool,
        index: u16,
        root: Option<Ptr<T>>,
    ) -> Result<()> {
        let pool = self.covered_pool(pool)?;
        self.write_root(pool, index, root)
    }

    /// Root `index` of a pool of choice.
    ///
    /// # Errors
    /// As [`Reader::root_at`]; [`Error::NotInTransaction`].
    pub fn root_in<T: Persist>(&self, pool: &Pool, index: u16) -> Result<Option<Ptr<T>>> {
        names::root(self.covered_pool(pool)?, index)
    }

    /// What a root entry says that leads to `root`, which is checked.
    fn root_entry<T: Persist>(&self, pool: &PoolInner, root: Option<Ptr<T>>) -> Result<RootEntry> {
        Ok(match root {
            Some(ptr) => {
                if self.owner_of::<T>(ptr.addr()).is_none() {
                    return Err(self.dangling::<T>(ptr.addr()));
                }
                pool.know::<T>()?;
                RootEntry { addr: ptr.addr(), type_id: T::TYPE_ID }
            }
            None => RootEntry::NONE,
        })
    }

    fn write_root<T: Persist>(
        &mut self,
        pool: &PoolInner,
        index: u16,
        root: Option<Ptr<T>>,
    ) -> Result<()> {
        let entry = self.root_entry(pool, root)?;
        if set_numbered(self, pool, index, entry)? {
            return Ok(());
        }
        self.write_root_slot(pool, index, entry)
    }

    /// Gives a value a name, by which [`Reader::named_root`] finds it in the transaction's first
    /// pool; `None` takes the name away. What the name led to before is not freed. Any number of
    /// roots can have names of 1 to 231 bytes, beside the 1,024 that have numbers (RAL-6).
    ///
    /// ```
    /// # use cenote::{Reader, Store};
    /// # fn main() -> cenote::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let pool = Store::open(dir.path())?.pool("p")?;
    /// pool.write(|tx| -> cenote::Result<()> {
    ///     let counter = tx.alloc(7u64)?;
    ///     tx.set_named_root("counter", Some(counter))
    /// })?;
    /// let view = pool.read()?;
    /// let counter = view.named_root::<u64>("counter")?.expect("set above");
    /// assert_eq!(*view.get(counter)?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::RootName`]; [`Error::Dangling`] if the value is not alive in a pool of this
    /// transaction; [`Error::Tx`] if the pool or the log is full.
    pub fn set_named_root<T: Persist>(&mut self, name: &str, root: Option<Ptr<T>>) -> Result<()> {
        let pool = self.first_pool();
        let entry = self.root_entry(pool, root)?;
        set(self, pool, name, entry)
    }

    /// As [`Tx::set_named_root`], in a pool of choice.
    ///
    /// # Errors
    /// As [`Tx::set_named_root`]; [`Error::NotInTransaction`].
    pub fn set_named_root_in<T: Persist>(
        &mut self,
        pool: &Pool,
        name: &str,
        root: Option<Ptr<T>>,
    ) -> Result<()> {
        let pool = self.covered_pool(pool)?;
        let entry = self.root_entry(pool, root)?;
        set(self, pool, name, entry)
    }

    /// The root of this name of a pool of choice.
    ///
    /// # Errors
    /// As [`Reader::named_root`]; [`Error::NotInTransaction`].
    pub fn named_root_in<T: Persist>(&self, pool: &Pool, name: &str) -> Result<Option<Ptr<T>>> {
        names::get(self, self.covered_pool(pool)?, name)
    }

    /// Takes a name away, of a root of any type; whether there was one. The value stays allocated.
    ///
    /// # Errors
    /// [`Error::Tx`] if the log is full.
    pub fn remove_named_root(&mut self, name: &str) -> Result<bool> {
        let pool = self.first_pool();
        remove(self, pool, name)
    }

    /// Writes the heap's own root.
    pub(crate) fn write_root_slot(
        &mut self,
        pool: &PoolInner,
        index: u16,
        entry: RootEntry,
    ) -> Result<()> {
        let slot = pool.heap.root_slot(index)?;
        let addr = entry.addr;
        let way = pool.heap.root_way();
        let sealed = RootSlot::new(entry).ok_or(cenote_heap::RootError::Address { index, addr })?;
        // SAFETY: a root slot of a pool that is locked for writing: two aligned words, and where
        // the heap has them stored. A reclaim that begins in another thread may load them
        // meanwhile, atomically.
        let words = unsafe {
            let (at, len) = (slot.as_ptr().cast::<u8>(), size_of_val(&sealed));
            self.raw_mut().add_roots(at, len, &way).map_err(Error::from)?;
            let stored = at.expose_provenance().wrapping_add(way.distance);
            &*core::ptr::with_exposed_provenance::<[AtomicU64; 2]>(stored)
        };
        words[1].store(sealed.type_id.0, Ordering::Relaxed);
        words[0].store(sealed.word, Ordering::Release);
        way.note_stored(slot.as_ptr().addr(), size_of_val(&sealed));
        Ok(())
    }
}

/// Sets the numbered root that the directory keeps; `false` if this one is not kept there.
fn set_numbered(tx: &mut Tx<'_>, pool: &PoolInner, index: u16, entry: RootEntry) -> Result<bool> {
    if index != DIRECTORY_ROOT {
        return Ok(false);
    }
    let Some(directory) = directory(pool)? else { return Ok(false) };
    tx.set(directory, field!(Directory, numbered), entry.into())?;
    Ok(true)
}

/// Gives a name to what `root` says, or takes the name away.
fn set<'p>(tx: &mut Tx<'p>, pool: &'p PoolInner, name: &str, root: RootEntry) -> Result<()> {
    let bytes = checked(name)?;
    if root.addr == 0 {
        return remove(tx, pool, name).map(drop);
    }
    set_bytes(tx, pool, bytes, root)
}

/// Gives a name that is fit to be one, or one of this crate's own.
pub(crate) fn set_bytes<'p>(
    tx: &mut Tx<'p>,
    pool: &'p PoolInner,
    bytes: &[u8],
    root: RootEntry,
) -> Result<()> {
    let directory = match directory(pool)? {
        Some(directory) => directory,
        None => make(tx, pool)?,
    };
    if let Some(found) = find(tx, directory, bytes)? {
        return tx.set(found.entry, field!(NameEntry, target), root.into());
    }
    let chain = chain_of(bytes);
    let Some(place) = chain_field(chain) else { return Ok(()) };
    let next = tx.get(directory)?.chains.get(chain).copied().flatten();
    let mut entry =
        NameEntry { next, target: root.into(), len: bytes.len() as u8, name: [0; NAME_LEN_MAX] };
    entry.name[..bytes.len()].copy_from_slice(bytes);
    tx.attempt(|tx| {
        let entry = tx.alloc_covered(pool, entry)?;
        tx.set(directory, place, Some(entry))
    })?;
    tx.note_linked();
    Ok(())
}

/// A directory that takes over the last numbered root.
fn make<'p>(tx: &mut Tx<'p>, pool: &'p PoolInner) -> Result<Ptr<Directory>> {
    let numbered = pool.root_entry(DIRECTORY_ROOT)?.into();
    let directory = tx.attempt(|tx| {
        let directory = tx.alloc_covered(pool, Directory { numbered, chains: [None; CHAINS] })?;
        let entry = RootEntry { addr: directory.addr(), type_id: Directory::TYPE_ID };
        tx.write_root_slot(pool, DIRECTORY_ROOT, entry)?;
        Ok(directory)
    })?;
    tx.note_linked();
    Ok(directory)
}

/// Takes a name away; whether there was one.
fn remove(tx: &mut Tx<'_>, pool: &PoolInner, name: &str) -> Result<bool> {
    if is_hidden(name.as_bytes()) {
        return Ok(false);
    }
    let Some(directory) = directory(pool)? else { return Ok(false) };
    let Some(found) = find(tx, directory, name.as_bytes())? else { return Ok(false) };
    let next = tx.get(found.entry)?.next;
    match (found.before, chain_field(chain_of(name.as_bytes()))) {
        (Some(before), _) => tx.set(before, field!(NameEntry, next), next)?,
        (None, Some(place)) => tx.set(directory, place, next)?,
        (None, None) => return Ok(false),
    }
    tx.all_or_abort(|tx| tx.free(found.entry))?;
    Ok(true)
}
