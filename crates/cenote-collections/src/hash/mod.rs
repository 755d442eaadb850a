//! [`HashMap`], a hash map that grows by one bucket at a time.
//!
//! ```text
//! header:  len | buckets | height | segment or directory | hash key (16)
//! ```
//!
//! Linear hashing (Litwin, VLDB 1980): there are `n` buckets, `n` between 2^k and 2^(k+1). A hash
//! belongs to the bucket of its lowest `k + 1` bits or, where there is no such bucket yet, of its
//! lowest `k`. When there are more than 3.5 entries a bucket, the map splits bucket `n - 2^k` into
//! itself and bucket `n`. So no insertion moves the entries of more than one bucket, and no lookup
//! looks into two tables. Buckets hang in a tree of fan-out 128 that grows at its end, so no table
//! is ever copied or zeroed as a whole. The longest pause of the map itself is a split, a segment
//! of 1 KiB and a directory of 1 KiB for each level. (The pool takes a new superblock now and then,
//! and seldom a new puddle: that file is made with its space taken, synced, and named in the
//! catalog.)
//!
//! Invariants: there is at least one bucket (`buckets` is 1 in an empty map, whose segment may be
//! missing). Every other bucket has its segment. Each bucket's pages form a chain that ends. An
//! entry lies where the hash put it that `Hash` gave when it was inserted or last moved; if `Hash`
//! gives another one later, lookups miss the entry, and nothing else happens.

mod entry;
mod hasher;
mod insert;
mod iter;
mod iter_mut;
mod owned;
mod page;
mod remove;

pub use entry::{Entry, OccupiedEntry, VacantEntry};
pub use iter::{Iter, Keys, Values};
pub use iter_mut::{IterMut, ValuesMut};

use crate::shared::{DESTROYED, Header, OrLost, Read, free_destroyed, log, open, range};
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result, Tx};
use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use page::{Directory, FAN_OUT, FAN_OUT_BITS, HashPage, Segment, Tags};

#[repr(C)]
pub(crate) struct HashHeader<K, V> {
    len: u64,
    buckets: u64,
    /// Levels of directories.
    height: u64,
    /// If the height is 0.
    segment: Option<Ptr<Segment<K, V>>>,
    /// Otherwise.
    directory: Option<Ptr<Directory<K, V>>>,
    hash_key: [u64; 2],
}

impl<K, V> Clone for HashHeader<K, V> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for HashHeader<K, V> {}

impl<K: Persist, V: Persist> Header for HashHeader<K, V> {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }
}

persist_block!("cenote/HashHeader", HashHeader<K, V> {
    len: u64,
    buckets: u64,
    height: u64,
    segment: Option<Ptr<Segment<K, V>>>,
    directory: Option<Ptr<Directory<K, V>>>,
    hash_key: [u64; 2],
});

/// The bucket that a hash belongs to.
#[inline]
fn bucket_of(hash: u64, buckets: u64) -> u64 {
    let mask = u64::MAX >> buckets.leading_zeros();
    let bucket = hash & mask;
    if bucket < buckets { bucket } else { bucket & (mask >> 1) }
}

/// Where the first page of a bucket is linked.
type Link<K, V> = *mut Option<Ptr<HashPage<K, V>>>;

/// A page, and a slot of it.
type Slot<K, V> = (Ptr<HashPage<K, V>>, usize);

impl<K, V> HashHeader<K, V> {
    const fn empty(hash_key: [u64; 2]) -> Self {
        Self { len: 0, buckets: 1, height: 0, segment: None, directory: None, hash_key }
    }

    #[inline]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        hasher::hash(self.hash_key, key)
    }

    /// The root of the tree of buckets, whose type is known from the height.
    #[inline]
    fn root(&self) -> Option<Ptr<Segment<K, V>>> {
        match self.directory {
            // SAFETY: only followed as what its level says.
            Some(directory) => Some(unsafe { directory.cast() }),
            None => self.segment,
        }
    }

    /// Where the first page of a bucket is linked; `None` if its segment is missing.
    ///
    /// # Safety
    /// What a live header says.
    #[inline]
    unsafe fn link(&self, bucket: u64) -> Read<Option<Link<K, V>>> {
        // SAFETY: links of a live header lead to live blocks, directories on the first `height`
        // levels.
        unsafe {
            let Some(mut child) = self.root() else { return Ok(None) };
            for level in (1..=self.height as u32).rev() {
                let directory: Ptr<Directory<K, V>> = child.cast();
                directory.touch()?;
                match (*directory.as_ptr()).children[child_of(bucket, level)] {
                    Some(next) => child = next,
                    None => return Ok(None),
                }
            }
            child.touch()?;
            Ok(Some(&raw mut (*child.as_ptr()).pages[child_of(bucket, 0)]))
        }
    }

    /// The first page of a bucket.
    ///
    /// # Safety
    /// What a live header says.
    #[inline]
    unsafe fn first_page(&self, bucket: u64) -> Read<Option<Ptr<HashPage<K, V>>>> {
        // SAFETY: passed on; a link is live.
        unsafe { Ok(self.link(bucket)?.and_then(|link| *link)) }
    }

    /// Page and slot of a key.
    ///
    /// # Safety
    /// What a live header says.
    #[inline]
    unsafe fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Read<Option<Slot<K, V>>>
    where
        K: Borrow<Q>,
    {
        let tag = Tags::of(hash);
        // SAFETY: pages of a live header; a slot with a tag is in use.
        unsafe {
            let mut next = self.first_page(bucket_of(hash, self.buckets))?;
            while let Some(page) = next {
                let content = page.follow()?;
                if let Some(slot) =
                    content.tags.matches(tag).find(|&slot| content.entry(slot).key.borrow() == key)
                {
                    return Ok(Some((page, slot)));
                }
                next = content.next;
            }
        }
        Ok(None)
    }
}

/// Number of the child that leads to a bucket, in a node with `level` levels below it.
#[inline]
fn child_of(bucket: u64, level: u32) -> usize {
    (bucket >> (FAN_OUT_BITS * level)) as usize % FAN_OUT
}

/// A hash map; see [`std::collections::HashMap`] for what the methods mean and the [crate] for
/// handles.
///
/// Hashes are SipHash-1-3 of what the key's `Hash` feeds to a hasher, with a random key that the
/// map keeps. They must be the same in every process, so a key's `Hash` must not depend on
/// addresses or on the process.
#[repr(transparent)]
pub struct HashMap<K, V> {
    header: Ptr<HashHeader<K, V>>,
}

persist_handle!("cenote/HashMap", HashMap<K, V>, HashHeader<K, V>);

/// 16 random bytes.
fn random_key() -> [u64; 2] {
    let state = std::hash::RandomState::new();
    [state.hash_one(0), state.hash_one(1)]
}

impl<K: Persist, V: Persist> HashMap<K, V> {
    /// An empty map in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Self::with_hash_key(tx, random_key())
    }

    /// As [`HashMap::new`], with a hash key of choice: for histories that can be repeated exactly.
    /// An attacker who knows it can choose keys that collide.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn with_hash_key(tx: &mut Tx<'_>, hash_key: [u64; 2]) -> Result<Self> {
        Ok(Self { header: tx.alloc(HashHeader::empty(hash_key))? })
    }

    /// An empty map in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { header: tx.alloc_beside(neighbour, HashHeader::empty(random_key()))? })
    }

    /// The hash of a key of any type under the map's hash key.
    pub(crate) fn hash_of<Q: Hash + ?Sized>(self, reader: &impl Reader, key: &Q) -> Result<u64> {
        Ok(open(reader, self.header)?.hash(key))
    }

    /// Number of entries.
    ///
    /// # Errors
    /// [`cenote::Error::Dangling`] if the handle is stale; so it is with every method.
    #[inline]
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        Ok(open(reader, self.header)?.len as usize)
    }

    /// Whether there is no entry.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        Ok(self.len(reader)? == 0)
    }

    #[inline]
    fn entry_of<'r, Q: Hash + Eq + ?Sized>(
        self,
        reader: &'r impl Reader,
        key: &Q,
    ) -> Result<Option<&'r page::PageEntry<K, V>>>
    where
        K: Borrow<Q>,
    {
        let header = open(reader, self.header)?;
        // SAFETY: a live header, and a slot in use; the reader is borrowed as long as the
        // reference.
        unsafe {
            let found = header.find(header.hash(key), key).or_lost(reader)?;
            Ok(found.map(|(page, slot)| page.as_ref().entry(slot)))
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    #[inline]
    pub fn get<'r, Q: Hash + Eq + ?Sized>(
        self,
        reader: &'r impl Reader,
        key: &Q,
    ) -> Result<Option<&'r V>>
    where
        K: Borrow<Q>,
    {
        Ok(self.entry_of(reader, key)?.map(|entry| &entry.value))
    }

    /// The key as it is in the map, and its value.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn get_key_value<'r, Q: Hash + Eq + ?Sized>(
        self,
        reader: &'r impl Reader,
        key: &Q,
    ) -> Result<Option<(&'r K, &'r V)>>
    where
        K: Borrow<Q>,
    {
        Ok(self.entry_of(reader, key)?.map(|entry| (&entry.key, &entry.value)))
    }

    /// Whether there is an entry of this key.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn contains_key<Q: Hash + Eq + ?Sized>(self, reader: &impl Reader, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        Ok(self.entry_of(reader, key)?.is_some())
    }

    /// The value of a key, to be changed: logged whole, as 1 entry.
    ///
    /// # Errors
    /// As [`HashMap::len`], and [`cenote::Error::Tx`] if the log is full.
    pub fn get_mut<'t, Q: Hash + Eq + ?Sized>(
        self,
        tx: &'t mut Tx<'_>,
        key: &Q,
    ) -> Result<Option<&'t mut V>>
    where
        K: Borrow<Q>,
    {
        refuse_owners!(V);
        let header = *open(tx, self.header)?;
        // SAFETY: a live header, and a slot in use, of a pool that is held; logged first, and the
        // transaction is borrowed exclusively.
        unsafe {
            let found = header.find(header.hash(key), key).or_lost(tx)?;
            let Some((page, slot)) = found else { return Ok(None) };
            let value = &raw mut (*HashPage::place(page, slot)).value;
            log(tx, &[range(value)])?;
            Ok(Some(&mut *value))
        }
    }

    /// Removes all entries and gives all buckets back. 1 entry in the log, and 1 free for each
    /// block.
    ///
    /// # Errors
    /// As [`HashMap::get_mut`]. If the log has no room for all blocks, the transaction can only
    /// abort.
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, 0)
    }

    /// Frees the map with all its blocks. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`HashMap::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, DESTROYED)
    }

    /// Unlinks all blocks, with `len` in the header, and then frees them, and the header of a map
    /// that is destroyed.
    fn empty_to(self, tx: &mut Tx<'_>, len: u64) -> Result<()> {
        let header = *open(tx, self.header)?;
        // SAFETY: the header is live; blocks are reachable only through it, so nothing leads to
        // them after the write. Freed ones stay as they are until commit.
        unsafe {
            log(tx, &[range(self.header.as_ptr())])?;
            tx.all_or_abort(|tx| {
                let emptied = HashHeader { len, ..HashHeader::empty(header.hash_key) };
                self.header.as_ptr().write(emptied);
                if let Some(root) = header.root() {
                    free_tree(tx, self.header, root, header.height as u32)?;
                }
                free_destroyed(tx, self.header, len)
            })
        }
    }
}

/// Frees a segment or directory and all below it.
///
/// # Safety
/// A live block with `height` levels of directories, itself included, in the pool of the live
/// header, which is held; nothing leads to it any more.
unsafe fn free_tree<K: Persist, V: Persist>(
    tx: &mut Tx<'_>,
    header: Ptr<HashHeader<K, V>>,
    node: Ptr<Segment<K, V>>,
    height: u32,
) -> Result<()> {
    // SAFETY: of the type that the height says; freed blocks stay as they are until commit.
    unsafe {
        if height > 0 {
            let directory: Ptr<Directory<K, V>> = node.cast();
            for child in directory.follow().or_lost(tx)?.children.into_iter().flatten() {
                free_tree(tx, header, child, height - 1)?;
            }
            return tx.free_near(header, directory);
        }
        for first in node.follow().or_lost(tx)?.pages {
            let mut next = first;
            while let Some(page) = next {
                next = page.follow().or_lost(tx)?.next;
                if V::OWNS {
                    tx.free_within(header, page.addr(), range(page.as_ptr()))?;
                }
                tx.free_near(header, page)?;
            }
        }
        tx.free_near(header, node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A split moves only entries of the bucket that splits, to the new one.
    #[test]
    fn a_new_bucket_takes_from_one_bucket_only() {
        for buckets in 1..600u64 {
            let source = buckets ^ (1 << buckets.ilog2());
            for hash in (0..5000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
                let (before, after) = (bucket_of(hash, buckets), bucket_of(hash, buckets + 1));
                assert!(before < buckets);
                assert!(
                    after == before || (before == source && after == buckets),
                    "{buckets}: {before} to {after}"
                );
            }
        }
    }
}
