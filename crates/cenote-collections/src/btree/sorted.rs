//! A map of sorted entries, made from the leaves up.
//!
//! Each entry goes behind the last one, into a leaf that is filled whole. A new leaf's branch goes
//! to the last node of the level above; where that is full, its last child begins a node to its
//! right, and so upwards. So every node has an entry, and each node is written once. All of them
//! are fresh: the log has their allocations, and the header, and no entry. Nothing leads to them
//! before the header is written, which cannot fail.

use super::node::{Branch, CAPACITY, Child, InnerNode, Leaf, NodeEntry, Slots};
use super::{BTreeHeader, BTreeMap, branches, copy_of, refuse_height};
use crate::shared::{build, log, range};
use cenote::persist::Persist;
use cenote::{Ptr, Result, Tx};

/// The first and the last leaf of a tree.
type EdgeLeaves<K, V> = (Ptr<Leaf<K, V>>, Ptr<Leaf<K, V>>);

/// A tree that grows at its right edge. All its nodes are fresh.
struct GrowingTree<K, V> {
    map: Ptr<BTreeHeader<K, V>>,
    leaves: Option<EdgeLeaves<K, V>>,
    /// The last node of each level, lowest first.
    levels: Vec<Ptr<InnerNode<K, V>>>,
    len: u64,
}

impl<K: Persist + Ord, V: Persist> BTreeMap<K, V> {
    /// A map with what the iterator yields, in the transaction's first pool. It is for entries by
    /// rising key: they fill whole leaves, and none is looked up. It costs 1 allocation for each 15
    /// entries and some for inner nodes, and logs the header; that is what insertion of rising keys
    /// by one transaction logs, too. From the first entry on whose key is not greater than that
    /// before, the rest is inserted as by [`BTreeMap::extend`].
    ///
    /// ```
    /// # use cenote_collections::BTreeMap;
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let pool = cenote::Store::open(directory.path())?.pool("squares")?;
    /// pool.write(|tx| -> cenote::Result<()> {
    ///     let squares = BTreeMap::from_sorted(tx, (0..1000_u64).map(|n| (n, n * n)))?;
    ///     assert_eq!(squares.get(tx, &30)?, Some(&900));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`BTreeMap::insert`]; then there is no map.
    pub fn from_sorted(tx: &mut Tx<'_>, entries: impl IntoIterator<Item = (K, V)>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.fill(tx, entries), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Fills a map that is empty.
    fn fill(self, tx: &mut Tx<'_>, entries: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        let mut entries = entries.into_iter();
        let (header, next) = tx.attempt(|tx| {
            let mut tree =
                GrowingTree { map: self.header, leaves: None, levels: Vec::new(), len: 0 };
            let mut next = None;
            for (key, value) in entries.by_ref() {
                if !tree.is_behind(&key) {
                    next = Some((key, value));
                    break;
                }
                tree.push(tx, NodeEntry { key, value })?;
            }
            // SAFETY: the header was just made.
            unsafe { log(tx, &[range(self.header.as_ptr())])? };
            Ok((tree.header(), next))
        })?;
        // SAFETY: a live header of a map without nodes, which was logged.
        unsafe { self.header.as_ptr().write(header) };
        match next {
            Some(next) => self.extend(tx, core::iter::once(next).chain(entries)),
            None => Ok(()),
        }
    }
}

impl<K: Persist + Ord, V: Persist> GrowingTree<K, V> {
    /// Whether a key is greater than all that are there.
    fn is_behind(&self, key: &K) -> bool {
        let Some((_, last)) = self.leaves else { return true };
        // SAFETY: a fresh leaf, which has an entry.
        let last = unsafe { last.as_ref() };
        // SAFETY: as above.
        last.len().checked_sub(1).is_none_or(|end| unsafe { last.entry(end) }.key < *key)
    }

    /// Adds an entry behind the others.
    fn push(&mut self, tx: &mut Tx<'_>, entry: NodeEntry<K, V>) -> Result<()> {
        // SAFETY: fresh leaves; the one that is pushed to is not full.
        unsafe {
            match self.leaves {
                Some((_, last)) if last.as_ref().len() < CAPACITY => {
                    Slots::push(place!(last, entries), entry);
                }
                leaves => {
                    let leaf = tx.alloc_near(self.map, Leaf::new())?;
                    let place = Slots::push(place!(leaf, entries), entry);
                    let first = leaves.map_or(leaf, |(first, _)| first);
                    self.leaves = Some((first, leaf));
                    if let Some((_, last)) = leaves {
                        (*leaf.as_ptr()).previous = Some(last);
                        (*last.as_ptr()).next = Some(leaf);
                        let key = copy_of(&raw const (*place).key);
                        self.branch(tx, Some(last), Branch { key, child: Some(leaf) })?;
                    }
                }
            }
        }
        self.len += 1;
        Ok(())
    }

    /// Adds a branch at the end of the lowest level, whose last child so far is `before`.
    ///
    /// # Safety
    /// Its child is fresh, and nothing leads to it.
    unsafe fn branch(
        &mut self,
        tx: &mut Tx<'_>,
        mut before: Child<K, V>,
        mut branch: Branch<K, Leaf<K, V>>,
    ) -> Result<()> {
        // SAFETY: fresh nodes; those that are pushed to are not full.
        unsafe {
            for level in 0.. {
                let Some(node) = self.levels.get(level).copied() else {
                    refuse_height(level as u64)?;
                    let root = tx.alloc_near(self.map, InnerNode::new(level == 0, before))?;
                    Slots::push(branches!(root), branch);
                    self.levels.push(root);
                    break;
                };
                if node.as_ref().len() < CAPACITY {
                    Slots::push(branches!(node), branch);
                    break;
                }
                let Branch { key, child } = Slots::remove(branches!(node), CAPACITY - 1);
                let right = tx.alloc_near(self.map, InnerNode::new(level == 0, child))?;
                Slots::push(branches!(right), branch);
                self.levels[level] = right;
                before = Some(node.cast());
                branch = Branch { key, child: Some(right.cast()) };
            }
        }
        Ok(())
    }

    /// The header that leads to the tree.
    fn header(&self) -> BTreeHeader<K, V> {
        let (first, last) = self.leaves.unzip();
        let root_inner = self.levels.last().copied();
        BTreeHeader {
            len: self.len,
            height: self.levels.len() as u64,
            root_leaf: if root_inner.is_none() { first } else { None },
            root_inner,
            first,
            last,
        }
    }
}
