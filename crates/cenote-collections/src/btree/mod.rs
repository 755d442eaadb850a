//! [`BTreeMap`], an ordered map: a B+-tree of 15 entries a node, with leaves linked both ways.
//!
//! ```text
//! header:  len | height | root leaf or root node | first leaf | last leaf
//! ```
//!
//! Invariants: a map without entries has no node. Any other has `height` levels of inner nodes
//! above the leaves, each child of each node on the level below it. `first`, `next` and `last`,
//! `previous` visit all leaves in order. Module `node` describes a node.
//!
//! * [`insert`](BTreeMap::insert) (`insert`) splits full nodes; an entry behind all others starts a
//!   leaf of its own, so that ascending keys fill leaves.
//! * [`remove`](BTreeMap::remove) (`remove`) merges a node that falls below 4 entries with a
//!   neighbour. If both do not fit into one node, it evens them out.

mod entry;
mod insert;
mod iter;
mod iter_mut;
mod node;
mod owned;
mod remove;
mod sorted;

pub use entry::{Entry, OccupiedEntry, VacantEntry};
pub use iter::{Iter, Keys, Range, Values};
pub use iter_mut::{IterMut, RangeMut, ValuesMut};

use crate::shared::{DESTROYED, Header, OrLost, Read, free_destroyed, log, open, range};
use cenote::persist::Persist;
use cenote::{Error, Ptr, Reader, Result, Tx};
use core::borrow::Borrow;
use node::{Child, InnerNode, Leaf, Slots};

/// Levels of inner nodes at most: a node has two children at least, and but for those along the
/// right edge many more.
const HEIGHT_MAX: usize = 24;

#[repr(C)]
pub(crate) struct BTreeHeader<K, V> {
    len: u64,
    /// Levels of inner nodes.
    height: u64,
    /// If the height is 0.
    root_leaf: Option<Ptr<Leaf<K, V>>>,
    /// Otherwise.
    root_inner: Option<Ptr<InnerNode<K, V>>>,
    first: Option<Ptr<Leaf<K, V>>>,
    last: Option<Ptr<Leaf<K, V>>>,
}

impl<K, V> Clone for BTreeHeader<K, V> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for BTreeHeader<K, V> {}

impl<K: Persist, V: Persist> Header for BTreeHeader<K, V> {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }
}

persist_block!("cenote/BTreeHeader", BTreeHeader<K, V> {
    len: u64,
    height: u64,
    root_leaf: Option<Ptr<Leaf<K, V>>>,
    root_inner: Option<Ptr<InnerNode<K, V>>>,
    first: Option<Ptr<Leaf<K, V>>>,
    last: Option<Ptr<Leaf<K, V>>>,
});

impl<K, V> BTreeHeader<K, V> {
    const EMPTY: Self =
        Self { len: 0, height: 0, root_leaf: None, root_inner: None, first: None, last: None };

    /// The root.
    #[inline]
    fn root(&self) -> Child<K, V> {
        match self.root_inner {
            // SAFETY: only followed as what its level says.
            Some(inner) => Some(unsafe { inner.cast() }),
            None => self.root_leaf,
        }
    }

    /// The leaf where `key` belongs.
    ///
    /// # Safety
    /// What a live header says, and nothing changes as long as `'r` lasts.
    #[inline]
    unsafe fn leaf_for<'r, Q: Ord + ?Sized>(&self, key: &Q) -> Read<Option<&'r Leaf<K, V>>>
    where
        K: Borrow<Q> + 'r,
        V: 'r,
    {
        // SAFETY: links of a live header lead to live nodes, inner ones on the first `height`
        // levels.
        unsafe {
            let Some(mut child) = self.root() else { return Ok(None) };
            for _ in 0..self.height {
                let inner: &InnerNode<K, V> = child.cast().follow()?;
                match inner.child(inner.search(key)) {
                    Some(next) => child = next,
                    None => return Ok(None),
                }
            }
            child.follow().map(Some)
        }
    }
}

/// An inner node and the number of the child that a path goes through.
type Step<K, V> = (Ptr<InnerNode<K, V>>, usize);

/// The way from the root to a leaf. All nodes on it were touched.
struct Path<K, V> {
    /// Root first.
    steps: [Option<Step<K, V>>; HEIGHT_MAX],
    leaf: Ptr<Leaf<K, V>>,
}

impl<K, V> Path<K, V> {
    /// The way to the leaf where `key` belongs; `None` if there is no leaf.
    ///
    /// # Safety
    /// `header` is a copy of a live header.
    unsafe fn find<Q: Ord + ?Sized>(header: &BTreeHeader<K, V>, key: &Q) -> Read<Option<Self>>
    where
        K: Borrow<Q>,
    {
        // SAFETY: passed on.
        unsafe { Self::descend(header, |node| node.search(key)) }
    }

    /// The way that `choose` takes: of each inner node the number of a child.
    ///
    /// # Safety
    /// `header` is a copy of a live header.
    #[inline(always)]
    unsafe fn descend(
        header: &BTreeHeader<K, V>,
        choose: impl Fn(&InnerNode<K, V>) -> usize,
    ) -> Read<Option<Self>> {
        let mut steps = [None; HEIGHT_MAX];
        let Some(mut child) = header.root() else { return Ok(None) };
        for step in &mut steps[..header.height as usize] {
            // SAFETY: links of a live header lead to live nodes, inner ones on the first `height`
            // levels.
            let inner = unsafe { child.cast::<InnerNode<K, V>>() };
            // SAFETY: as above.
            let node = unsafe { inner.follow()? };
            let at = choose(node);
            *step = Some((inner, at));
            match node.child(at) {
                Some(next) => child = next,
                None => return Ok(None),
            }
        }
        // SAFETY: as above, and behind the last level there is a leaf.
        unsafe { child.touch()? };
        Ok(Some(Self { steps, leaf: child }))
    }

    /// The way to the first or the last leaf; `None` if there is none.
    ///
    /// # Safety
    /// `header` is a copy of a live header.
    unsafe fn edge(header: &BTreeHeader<K, V>, last: bool) -> Read<Option<Self>> {
        // SAFETY: passed on.
        unsafe { Self::descend(header, |node| if last { node.len() } else { 0 }) }
    }

    /// Step `level`, counted from the root.
    fn step(&self, level: usize) -> Option<Step<K, V>> {
        self.steps.get(level).copied().flatten()
    }
}

/// An ordered map; see [`std::collections::BTreeMap`] for what the methods mean and the [crate] for
/// handles.
#[repr(transparent)]
pub struct BTreeMap<K, V> {
    header: Ptr<BTreeHeader<K, V>>,
}

persist_handle!("cenote/BTreeMap", BTreeMap<K, V>, BTreeHeader<K, V>);

impl<K: Persist, V: Persist> BTreeMap<K, V> {
    /// An empty map in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { header: tx.alloc(BTreeHeader::EMPTY)? })
    }

    /// An empty map in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { header: tx.alloc_beside(neighbour, BTreeHeader::EMPTY)? })
    }

    /// Number of entries.
    ///
    /// # Errors
    /// [`Error::Dangling`] if the handle is stale; so it is with every method.
    #[inline]
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        Ok(open(reader, self.header)?.len as usize)
    }

    /// Whether there is no entry.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        Ok(self.len(reader)? == 0)
    }

    /// The entry of a key.
    #[inline]
    fn find<'r, Q: Ord + ?Sized>(
        self,
        reader: &'r impl Reader,
        key: &Q,
    ) -> Result<Option<&'r node::NodeEntry<K, V>>>
    where
        K: Borrow<Q>,
    {
        let header = open(reader, self.header)?;
        // SAFETY: a live header; the reader is borrowed as long as the reference. A position that
        // is found is less than the length.
        let leaf = unsafe { header.leaf_for(key) }.or_lost(reader)?;
        // SAFETY: as above.
        Ok(leaf.and_then(|leaf| Some(unsafe { leaf.entry(leaf.search(key).ok()?) })))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    #[inline]
    pub fn get<'r, Q: Ord + ?Sized>(self, reader: &'r impl Reader, key: &Q) -> Result<Option<&'r V>>
    where
        K: Borrow<Q>,
    {
        Ok(self.find(reader, key)?.map(|entry| &entry.value))
    }

    /// The entry with the greatest key that is not greater than this one.
    #[inline]
    pub(crate) fn floor<'r>(
        self,
        reader: &'r impl Reader,
        key: &K,
    ) -> Result<Option<(&'r K, &'r V)>>
    where
        K: Ord,
    {
        let header = open(reader, self.header)?;
        // SAFETY: a live header, whose links lead to live nodes; the reader is borrowed as long as
        // the references. The position is less than the length.
        unsafe {
            let Some(leaf) = header.leaf_for::<K>(key).or_lost(reader)? else { return Ok(None) };
            let behind = leaf.search::<K>(key).map_or_else(|at| at, |at| at + 1);
            let found = match behind.checked_sub(1) {
                Some(at) => Some((leaf, at)),
                None => match leaf.previous {
                    None => None,
                    Some(previous) => {
                        let leaf = previous.follow().or_lost(reader)?;
                        leaf.len().checked_sub(1).map(|at| (leaf, at))
                    }
                },
            };
            Ok(found.map(|(leaf, at)| leaf.entry(at)).map(|entry| (&entry.key, &entry.value)))
        }
    }

    /// The key as it is in the map, and its value.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn get_key_value<'r, Q: Ord + ?Sized>(
        self,
        reader: &'r impl Reader,
        key: &Q,
    ) -> Result<Option<(&'r K, &'r V)>>
    where
        K: Borrow<Q>,
    {
        Ok(self.find(reader, key)?.map(|entry| (&entry.key, &entry.value)))
    }

    /// Whether there is an entry of this key.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn contains_key<Q: Ord + ?Sized>(self, reader: &impl Reader, key: &Q) -> Result<bool>
    where
        K: Borrow<Q>,
    {
        Ok(self.find(reader, key)?.is_some())
    }

    /// The value of a key, to be changed: logged whole, as 1 entry.
    ///
    /// # Errors
    /// As [`BTreeMap::len`], and [`Error::Tx`] if the log is full.
    pub fn get_mut<'t, Q: Ord + ?Sized>(
        self,
        tx: &'t mut Tx<'_>,
        key: &Q,
    ) -> Result<Option<&'t mut V>>
    where
        K: Borrow<Q>,
    {
        refuse_owners!(V);
        let Some(entry) = self.find(tx, key)? else { return Ok(None) };
        let leaf_entry = core::ptr::from_ref(entry).addr();
        // SAFETY: the entry just found, of a live leaf in a pool that is held; logged first, and
        // the transaction is borrowed exclusively.
        unsafe {
            let entry = core::ptr::with_exposed_provenance_mut::<node::NodeEntry<K, V>>(leaf_entry);
            let value = &raw mut (*entry).value;
            log(tx, &[range(value)])?;
            Ok(Some(&mut *value))
        }
    }

    /// The entry with the smallest key.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn first_key_value(self, reader: &impl Reader) -> Result<Option<(&K, &V)>> {
        Ok(self.iter(reader)?.next())
    }

    /// The entry with the greatest key.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn last_key_value(self, reader: &impl Reader) -> Result<Option<(&K, &V)>> {
        Ok(self.iter(reader)?.next_back())
    }

    /// Removes all entries. 1 entry in the log, and 1 free for each node.
    ///
    /// # Errors
    /// As [`BTreeMap::get_mut`]. If the log has no room for all nodes, the transaction can only
    /// abort.
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, 0)
    }

    /// Frees the map with all its nodes. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`BTreeMap::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, DESTROYED)
    }

    /// Unlinks all nodes, with `len` in the header, and then frees them, and the header of a map
    /// that is destroyed.
    fn empty_to(self, tx: &mut Tx<'_>, len: u64) -> Result<()> {
        let header = *open(tx, self.header)?;
        // SAFETY: the header is live; nodes are reachable only through it, so nothing leads to them
        // after the write. Freed blocks stay as they are until commit.
        unsafe {
            log(tx, &[range(self.header.as_ptr())])?;
            tx.all_or_abort(|tx| {
                self.header.as_ptr().write(BTreeHeader { len, ..BTreeHeader::EMPTY });
                if let Some(root) = header.root() {
                    free_subtree(tx, self.header, root, header.height)?;
                }
                free_destroyed(tx, self.header, len)
            })
        }
    }
}

/// Frees a node and all below it.
///
/// # Safety
/// A live node, with `height` levels below it, in the pool of the live header, which is held;
/// nothing leads to it any more.
unsafe fn free_subtree<K: Persist, V: Persist>(
    tx: &mut Tx<'_>,
    header: Ptr<BTreeHeader<K, V>>,
    node: Ptr<Leaf<K, V>>,
    height: u64,
) -> Result<()> {
    // SAFETY: an inner node, unless the height is 0; freed blocks stay as they are until commit.
    unsafe {
        if height == 0 {
            if V::OWNS {
                node.touch().or_lost(tx)?;
                tx.free_within(header, node.addr(), range(node.as_ptr()))?;
            }
            return tx.free_near(header, node);
        }
        let inner: Ptr<InnerNode<K, V>> = node.cast();
        inner.touch().or_lost(tx)?;
        for at in 0..=inner.as_ref().len() {
            if let Some(child) = inner.as_ref().child(at) {
                free_subtree(tx, header, child, height - 1)?;
            }
        }
        tx.free_near(header, inner)
    }
}

/// The branches of an inner node, as a raw pointer.
macro_rules! branches {
    ($inner:expr) => {
        place!($inner, branches)
    };
}
pub(crate) use branches;

/// Bytes of a key, to be written to a second place: persistent values have no destructor and are
/// never the only one of their bytes (see the crate).
///
/// # Safety
/// A place that holds a value.
unsafe fn copy_of<K>(key: *const K) -> K {
    // SAFETY: by contract.
    unsafe { key.read() }
}

/// Ensures a map is not higher than a path is long.
fn refuse_height(height: u64) -> Result<()> {
    if height as usize >= HEIGHT_MAX {
        return Err(Error::OutOfBounds { index: height, len: HEIGHT_MAX as u64 });
    }
    Ok(())
}

/// The range of a node's entries.
fn whole<S>(slots: *mut Slots<S>) -> crate::shared::Range {
    range(slots)
}
