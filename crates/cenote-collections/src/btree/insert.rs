//! Insertion: where it fits, one slot and the permutation; else the leaf splits, and with it every
//! full node above.

use super::node::{Branch, CAPACITY, InnerNode, Leaf, NodeEntry, Slots};
use super::{BTreeHeader, BTreeMap, Path, Step, branches, copy_of, refuse_height, whole};
use crate::shared::{OrLost, Range, build, log, log_with, open, range, release, touch_any};
use cenote::persist::Persist;
use cenote::{Ptr, Result, Tx};

/// A full inner node that splits: the node, the number of the child that split below it, the fresh
/// node to its right.
struct Split<K, V> {
    node: Ptr<InnerNode<K, V>>,
    at: usize,
    right: Ptr<InnerNode<K, V>>,
    /// Whether node and child are the last of their level: then nearly all stays left.
    at_end: bool,
}

/// What a split of a leaf writes.
struct Prepared<K, V> {
    /// The leaf behind the one that splits.
    next: Option<Ptr<Leaf<K, V>>>,
    /// The entry goes behind all others.
    append: bool,
    /// Inner nodes that split too, upwards.
    splits: Vec<Split<K, V>>,
    /// The node that takes the last branch, and the number of the child below it; or the new root.
    parent: Option<Step<K, V>>,
    /// The new leaf.
    right: Ptr<Leaf<K, V>>,
    root: Option<Ptr<InnerNode<K, V>>>,
}

impl<K: Persist + Ord, V: Persist> BTreeMap<K, V> {
    /// Sets the value of a key and returns the old one. Logs 3 entries; 1 if the key is
    /// there; where a leaf splits, the leaf whole and 1 or 2 allocations. What the old value owned
    /// is freed.
    ///
    /// A key that is there stays as it is, as in std.
    ///
    /// # Errors
    /// As [`BTreeMap::len`], and [`cenote::Error::Tx`] if the pool or the log is full.
    pub fn insert(self, tx: &mut Tx<'_>, key: K, value: V) -> Result<Option<V>> {
        let header = *open(tx, self.header)?;
        // SAFETY: a live header, whose links lead to live nodes in a pool that is held. What is
        // written was logged, or is fresh.
        unsafe {
            let Some(path) = Path::find::<K>(&header, &key).or_lost(tx)? else {
                return self.add(tx, &header, None, NodeEntry { key, value }).map(|_| None);
            };
            match path.leaf.as_ref().search::<K>(&key) {
                Ok(at) => {
                    let place = &raw mut (*Slots::place(place!(path.leaf, entries), at)).value;
                    let block = (path.leaf, range(place));
                    let old = release::<V, _, _, _>(tx, self.header, block, |tx| {
                        log(tx, &[range(place)])?;
                        Ok(place.replace(value))
                    });
                    old.map(Some)
                }
                Err(at) => {
                    self.add(tx, &header, Some((&path, at)), NodeEntry { key, value }).map(|_| None)
                }
            }
        }
    }

    /// Adds an entry whose key is not there: at a position of the leaf at the end of a path, or, if
    /// there is no leaf, in the first one. Returns its place. None of the caller's code runs.
    ///
    /// # Safety
    /// `header` is a copy of the live header, the path leads through its nodes, and the position is
    /// at most the leaf's length.
    #[inline]
    pub(super) unsafe fn add(
        self,
        tx: &mut Tx<'_>,
        header: &BTreeHeader<K, V>,
        to: Option<(&Path<K, V>, usize)>,
        entry: NodeEntry<K, V>,
    ) -> Result<*mut NodeEntry<K, V>> {
        // SAFETY: live nodes in a pool that is held, by contract. What is written was logged, or is
        // fresh.
        unsafe {
            let Some((path, at)) = to else {
                let leaf = tx.alloc_near(self.header, Leaf::new())?;
                log_with(tx, leaf, &[range(self.header.as_ptr())])?;
                let place = Slots::push(place!(leaf, entries), entry);
                let (root_leaf, first, last) = (Some(leaf), Some(leaf), Some(leaf));
                self.header.as_ptr().write(BTreeHeader {
                    len: 1,
                    root_leaf,
                    first,
                    last,
                    ..BTreeHeader::EMPTY
                });
                return Ok(place);
            };
            let leaf = path.leaf;
            if leaf.as_ref().len() == CAPACITY {
                return self.split(tx, header, path, at, entry);
            }
            let entries = place!(leaf, entries);
            let [slot, permutation] = Slots::insert_ranges(entries);
            log(tx, &[slot, permutation, range(place!(self.header, len))])?;
            let place = Slots::insert(entries, at, entry);
            (*self.header.as_ptr()).len += 1;
            Ok(place)
        }
    }

    /// A map with what the iterator yields, in the transaction's first pool. Of entries with one
    /// key the last counts.
    ///
    /// # Errors
    /// As [`BTreeMap::insert`]; then there is no map.
    pub fn from_iter(tx: &mut Tx<'_>, entries: impl IntoIterator<Item = (K, V)>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, entries), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Adds what the iterator yields, one entry after the other.
    ///
    /// # Errors
    /// As [`BTreeMap::insert`]; entries before the one that failed are in the map.
    pub fn extend(self, tx: &mut Tx<'_>, entries: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        entries.into_iter().try_for_each(|(key, value)| self.insert(tx, key, value).map(drop))
    }

    /// Inserts at position `at` of the full leaf at the end of the path, and returns the entry's
    /// place.
    ///
    /// # Safety
    /// `header` is a copy of the live header, and the path leads through its nodes.
    #[cold]
    unsafe fn split(
        self,
        tx: &mut Tx<'_>,
        header: &BTreeHeader<K, V>,
        path: &Path<K, V>,
        at: usize,
        entry: NodeEntry<K, V>,
    ) -> Result<*mut NodeEntry<K, V>> {
        let leaf = path.leaf;
        let prepared = tx.attempt(|tx| {
            // SAFETY: passed on.
            unsafe { self.prepare(tx, header, path, at) }
        })?;
        let Prepared { next, append, splits, parent, right, root } = prepared;
        // SAFETY: live nodes; fresh ones are written freely, others were logged. Between the first
        // write and the last nothing fails.
        unsafe {
            // The leaf.
            let place = split_slots(
                place!(leaf, entries),
                place!(right, entries),
                at,
                entry,
                if append { CAPACITY } else { 8 },
            );
            (*right.as_ptr()).next = next;
            (*right.as_ptr()).previous = Some(leaf);
            (*leaf.as_ptr()).next = Some(right);
            let header = self.header.as_ptr();
            match next {
                Some(next) => (*next.as_ptr()).previous = Some(right),
                None => (*header).last = Some(right),
            }
            (*header).len += 1;

            // The branch to the new leaf goes up, through nodes that split, to one that has room or
            // to a new root.
            let key = copy_of(&raw const (*Slots::place(place!(right, entries), 0)).key);
            let mut branch = Branch { key, child: Some(right) };
            for split in &splits {
                let (node, fresh) = (branches!(split.node), branches!(split.right));
                split_slots(
                    node,
                    fresh,
                    split.at,
                    branch,
                    if split.at_end { CAPACITY - 1 } else { 8 },
                );
                // The first branch of the right node goes up: its child becomes that node's first.
                let Branch { key, child } = Slots::remove(fresh, 0);
                (*split.right.as_ptr()).first = child;
                branch = Branch { key, child: Some(split.right.cast()) };
            }
            match (parent, root) {
                (Some((parent, at)), _) => {
                    Slots::insert(branches!(parent), at, branch);
                }
                (None, Some(root)) => {
                    Slots::push(branches!(root), branch);
                    (*header).height += 1;
                    (*header).root_leaf = None;
                    (*header).root_inner = Some(root);
                }
                (None, None) => unreachable!("without a parent there is a new root"),
            }
            Ok(place)
        }
    }

    /// Allocates and logs for [`BTreeMap::split`]: changes nothing that is there.
    ///
    /// # Safety
    /// As `split`.
    #[cold]
    unsafe fn prepare(
        self,
        tx: &mut Tx<'_>,
        header: &BTreeHeader<K, V>,
        path: &Path<K, V>,
        at: usize,
    ) -> Result<Prepared<K, V>> {
        let leaf = path.leaf;
        // SAFETY: live nodes; fresh ones are written freely.
        unsafe {
            // 1. Which inner nodes split, and whether the tree becomes higher.
            let next = leaf.as_ref().next;
            touch_any(next).or_lost(tx)?;
            let append = at == CAPACITY && next.is_none();
            let mut splits: Vec<Split<K, V>> = Vec::new();
            let mut level = header.height as usize;
            let parent = loop {
                let Some((node, at)) = level.checked_sub(1).and_then(|above| path.step(above))
                else {
                    break None;
                };
                if node.as_ref().len() < CAPACITY {
                    break Some((node, at));
                }
                level -= 1;
                let over_leaves = splits.is_empty();
                let right = tx.alloc_near(self.header, InnerNode::new(over_leaves, None))?;
                splits.push(Split { node, at, right, at_end: append && at == CAPACITY });
            };
            let right = tx.alloc_near(self.header, Leaf::new())?;
            let root = match parent {
                Some(_) => None,
                None => {
                    refuse_height(header.height)?;
                    Some(tx.alloc_near(
                        self.header,
                        InnerNode::new(header.height == 0, header.root()),
                    )?)
                }
            };

            // 2. What is going to be written.
            let mut ranges: Vec<Range> = Vec::with_capacity(8);
            ranges.push(range(place!(leaf, next)));
            if !append {
                ranges.push(whole(place!(leaf, entries)));
            }
            ranges.push(match (next, root) {
                (Some(_), None) => range(place!(self.header, len)),
                _ => range(self.header.as_ptr()),
            });
            if let Some(next) = next {
                ranges.push(range(place!(next, previous)));
            }
            ranges.extend(splits.iter().map(|split| whole(branches!(split.node))));
            if let Some((parent, _)) = parent {
                ranges.extend(Slots::insert_ranges(branches!(parent)));
            }
            log(tx, &ranges)?;
            Ok(Prepared { next, append, splits, parent, right, root })
        }
    }
}

/// Inserts `entry` at position `at` of a full node, of which the first `keep` entries, the new one
/// counted, stay, and the others go to the empty node `right`. Returns its place.
///
/// # Safety
/// Both are live and logged or fresh; where `keep` is 15 and `at` too, `left` need not be, since it
/// is not written.
unsafe fn split_slots<S>(
    left: *mut Slots<S>,
    right: *mut Slots<S>,
    at: usize,
    entry: S,
    keep: usize,
) -> *mut S {
    // SAFETY: positions below the length of a full node; `right` gets at most 15.
    unsafe {
        let stay = if at < keep { keep - 1 } else { keep };
        for _ in stay..CAPACITY {
            Slots::push(right, Slots::remove(left, stay));
        }
        if at < keep {
            Slots::insert(left, at, entry)
        } else {
            Slots::insert(right, at - keep, entry)
        }
    }
}
