//! Removal: one slot and the permutation; where that leaves a node with few entries, it and a
//! neighbour become one node, or even out.
//!
//! The lengths of the nodes decide first which change each level gets. Then everything is logged,
//! then freed, then written.

use super::node::{Branch, CAPACITY, InnerNode, Leaf, NodeEntry, Slots};
use super::{BTreeHeader, BTreeMap, Path, branches, copy_of, whole};
use crate::shared::{OrLost, Range, Read, log, log_and_free, open, range, release, touch_any};
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result, Tx};
use core::borrow::Borrow;

/// A node (not the root) that falls below this many entries or keys is merged or evened out.
const LEN_MIN: usize = 4;

/// Two neighbours below one parent.
struct Pair<K, V> {
    parent: Ptr<InnerNode<K, V>>,
    /// Position of the key between them.
    key_at: usize,
    left: Ptr<Leaf<K, V>>,
    right: Ptr<Leaf<K, V>>,
    /// Whether they become one, `left`; else they even out.
    merge: bool,
}

impl<K, V> Pair<K, V> {
    /// The pair of child `at` of `parent` and a neighbour.
    ///
    /// # Safety
    /// A node of a live tree, above leaves if `leaves` says so. It was touched.
    unsafe fn of(parent: Ptr<InnerNode<K, V>>, at: usize, leaves: bool) -> Read<Option<Self>> {
        let key_at = at.saturating_sub(1);
        // SAFETY: a node of a live tree.
        let node = unsafe { parent.as_ref() };
        if node.len() == 0 {
            return Ok(None);
        }
        let Some((left, right)) = node.child(key_at).zip(node.child(key_at + 1)) else {
            return Ok(None);
        };
        let pair = Self { parent, key_at, left, right, merge: false };
        // SAFETY: children of a live node, and the leaf that a merge writes to.
        unsafe {
            if leaves {
                left.touch()?;
                touch_any(right.follow()?.next)?;
            } else {
                let (left, right) = pair.inner();
                left.touch().and_then(|()| right.touch())?;
            }
        }
        Ok(Some(pair))
    }

    /// Both as inner nodes.
    ///
    /// # Safety
    /// They are inner nodes.
    #[allow(clippy::type_complexity, reason = "two pointers")]
    unsafe fn inner(&self) -> (Ptr<InnerNode<K, V>>, Ptr<InnerNode<K, V>>) {
        // SAFETY: by contract.
        unsafe { (self.left.cast(), self.right.cast()) }
    }
}

/// What a removal does to the nodes above the entry.
struct RemovalPlan<K, V> {
    /// The leaf and its neighbour first, then pairs of inner nodes, upwards.
    pairs: Vec<Pair<K, V>>,
    /// The root, if its last key goes: its only child becomes the root.
    old_root: Option<Ptr<InnerNode<K, V>>>,
}

impl<K, V> RemovalPlan<K, V> {
    /// # Safety
    /// `header` is a copy of a live header, and the path leads through its nodes.
    unsafe fn of(header: &BTreeHeader<K, V>, path: &Path<K, V>) -> Read<Self> {
        let mut plan = Self { pairs: Vec::new(), old_root: None };
        // SAFETY: live nodes.
        unsafe {
            // Length after the removal, of the leaf first, then of the node above that has lost a
            // key.
            let mut len = path.leaf.as_ref().len() - 1;
            for level in (0..header.height as usize).rev() {
                if len >= LEN_MIN {
                    break;
                }
                let Some((parent, at)) = path.step(level) else { break };
                let leaves = plan.pairs.is_empty();
                let Some(mut pair) = Pair::of(parent, at, leaves)? else { break };
                // Of a pair of inner nodes the key between them comes down.
                let total = match plan.pairs.is_empty() {
                    true => pair.left.as_ref().len() + pair.right.as_ref().len() - 1,
                    false => {
                        let (left, right) = pair.inner();
                        left.as_ref().len() + right.as_ref().len()
                    }
                };
                pair.merge = total <= CAPACITY;
                let merge = pair.merge;
                plan.pairs.push(pair);
                if !merge {
                    break;
                }
                len = parent.as_ref().len() - 1;
                if level == 0 && len == 0 {
                    plan.old_root = Some(parent);
                }
            }
        }
        Ok(plan)
    }
}

impl<K: Persist, V: Persist> BTreeMap<K, V> {
    /// Removes the entry of a key and returns its value. Logs 3 entries; where nodes merge, those
    /// whole, and 1 free each. What the value owned is freed.
    ///
    /// # Errors
    /// As [`BTreeMap::get_mut`].
    pub fn remove<Q: Ord + ?Sized>(self, tx: &mut Tx<'_>, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
    {
        Ok(self.remove_entry(tx, key)?.map(|(_, value)| value))
    }

    /// Removes the entry of a key and returns it.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`].
    pub fn remove_entry<Q: Ord + ?Sized>(self, tx: &mut Tx<'_>, key: &Q) -> Result<Option<(K, V)>>
    where
        K: Borrow<Q>,
    {
        let header = *open(tx, self.header)?;
        // SAFETY: a live header; the path leads to a leaf of it, and the position is less than its
        // length.
        unsafe {
            let Some(path) = Path::find(&header, key).or_lost(tx)? else { return Ok(None) };
            let Ok(at) = path.leaf.as_ref().search(key) else { return Ok(None) };
            self.take_out(tx, &header, &path, at).map(Some)
        }
    }

    /// Removes the entry with the smallest key and returns it.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`].
    pub fn pop_first(self, tx: &mut Tx<'_>) -> Result<Option<(K, V)>> {
        self.pop(tx, false)
    }

    /// Removes the entry with the greatest key and returns it.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`].
    pub fn pop_last(self, tx: &mut Tx<'_>) -> Result<Option<(K, V)>> {
        self.pop(tx, true)
    }

    fn pop(self, tx: &mut Tx<'_>, last: bool) -> Result<Option<(K, V)>> {
        let header = *open(tx, self.header)?;
        // SAFETY: a live header; the path leads to a leaf of it, and no leaf is empty.
        unsafe {
            let Some(path) = Path::edge(&header, last).or_lost(tx)? else { return Ok(None) };
            let Some(end) = path.leaf.as_ref().len().checked_sub(1) else { return Ok(None) };
            self.take_out(tx, &header, &path, if last { end } else { 0 }).map(Some)
        }
    }

    /// Keeps the entries for which `keep` says so. All of them are looked at before the first is
    /// removed.
    ///
    /// # Errors
    /// As [`BTreeMap::remove`]; some of the entries may have been removed.
    pub fn retain(self, tx: &mut Tx<'_>, mut keep: impl FnMut(&K, &V) -> bool) -> Result<()>
    where
        K: Ord,
    {
        let doomed: Vec<K> = self
            .iter(tx)?
            .filter(|(key, value)| !keep(key, value))
            // SAFETY: a key in the map.
            .map(|(key, _)| unsafe { copy_of(key) })
            .collect();
        tx.faults().first().map_or(Ok(()), Err).or_lost(tx)?;
        for key in doomed {
            self.remove_entry(tx, &key)?;
        }
        Ok(())
    }

    /// Frees what the entry at position `at` of the leaf at the end of the path owns, and takes it
    /// out.
    ///
    /// # Safety
    /// `header` is a copy of the live header, the path leads through its nodes, and `at` is less
    /// than the leaf's length.
    pub(super) unsafe fn take_out(
        self,
        tx: &mut Tx<'_>,
        header: &BTreeHeader<K, V>,
        path: &Path<K, V>,
        at: usize,
    ) -> Result<(K, V)> {
        // SAFETY: passed on.
        unsafe {
            let entry = range(Slots::place(place!(path.leaf, entries), at));
            release::<V, _, _, _>(tx, self.header, (path.leaf, entry), |tx| {
                self.unlink(tx, header, path, at)
            })
        }
    }

    /// Takes an entry that owns nothing out.
    ///
    /// # Safety
    /// As [`BTreeMap::take_out`].
    #[inline]
    unsafe fn unlink(
        self,
        tx: &mut Tx<'_>,
        header: &BTreeHeader<K, V>,
        path: &Path<K, V>,
        at: usize,
    ) -> Result<(K, V)> {
        let leaf = path.leaf;
        // SAFETY: live nodes of a pool that is held. Everything that is written was logged; freed
        // nodes stay as they are until commit, and nothing leads to them after the writes.
        // Between the first write and the last nothing fails.
        unsafe {
            let entries = place!(leaf, entries);
            let plan = RemovalPlan::of(header, path).or_lost(tx)?;
            if plan.pairs.is_empty() && (header.height > 0 || leaf.as_ref().len() > 1) {
                let [slot, permutation] = Slots::remove_ranges(entries, at);
                log(tx, &[slot, permutation, range(place!(self.header, len))])?;
                (*self.header.as_ptr()).len -= 1;
                let NodeEntry { key, value } = Slots::remove(entries, at);
                return Ok((key, value));
            }
            if header.height == 0 {
                log_and_free(tx, self.header, leaf, &[range(self.header.as_ptr())])?;
                self.header.as_ptr().write(BTreeHeader::EMPTY);
                let NodeEntry { key, value } = Slots::place(entries, at).read();
                return Ok((key, value));
            }
            self.log_plan(tx, &plan)?;
            Ok(self.carry_out(&plan, leaf, at))
        }
    }

    /// Logs what [`BTreeMap::carry_out`] will write, and frees what will be unlinked.
    ///
    /// # Safety
    /// The plan is of this map, whose header is live.
    unsafe fn log_plan(self, tx: &mut Tx<'_>, plan: &RemovalPlan<K, V>) -> Result<()> {
        let mut ranges: Vec<Range> = Vec::with_capacity(12);
        // SAFETY: live nodes.
        unsafe {
            let mut header = range(place!(self.header, len));
            for (i, pair) in plan.pairs.iter().enumerate() {
                let is_leaf = i == 0;
                if is_leaf {
                    ranges.push(whole(place!(pair.left, entries)));
                    if pair.merge {
                        ranges.push(range(place!(pair.left, next)));
                        match pair.right.as_ref().next {
                            Some(next) => ranges.push(range(place!(next, previous))),
                            None => header = range(self.header.as_ptr()),
                        }
                    } else {
                        ranges.push(whole(place!(pair.right, entries)));
                    }
                } else {
                    let (left, right) = pair.inner();
                    ranges.push(whole(branches!(left)));
                    if !pair.merge {
                        ranges.extend([range(place!(right, first)), whole(branches!(right))]);
                    }
                }
                if !pair.merge {
                    ranges.push(range(
                        &raw mut (*Slots::place(branches!(pair.parent), pair.key_at)).key,
                    ));
                } else if plan.old_root != Some(pair.parent) {
                    ranges.extend(Slots::remove_ranges(branches!(pair.parent), pair.key_at));
                }
            }
            if plan.old_root.is_some() {
                header = range(self.header.as_ptr());
            }
            ranges.push(header);
            log(tx, &ranges)?;
        }
        // A block that is going to be freed must not stay linked: if the first free fails nothing
        // happens, and once it has worked all are freed. Leaves come first.
        let mut merged = plan.pairs.iter().filter(|pair| pair.merge);
        let Some(leaves) = merged.next() else { return Ok(()) };
        // SAFETY: the right node of a pair is live, and of this level's type.
        unsafe { tx.free_near(self.header, leaves.right)? };
        tx.all_or_abort(|tx| {
            for pair in merged {
                // SAFETY: as above.
                unsafe { tx.free_near(self.header, pair.right.cast::<InnerNode<K, V>>())? };
            }
            match plan.old_root {
                Some(root) => tx.free(root),
                None => Ok(()),
            }
        })
    }

    /// Removes the entry at position `at` of `leaf`, and carries out the plan.
    ///
    /// # Safety
    /// The plan is of this map and was logged.
    unsafe fn carry_out(
        self,
        plan: &RemovalPlan<K, V>,
        leaf: Ptr<Leaf<K, V>>,
        at: usize,
    ) -> (K, V) {
        // SAFETY: live nodes, logged where they are written.
        unsafe {
            (*self.header.as_ptr()).len -= 1;
            let removed = Slots::place(place!(leaf, entries), at).read();
            for (i, pair) in plan.pairs.iter().enumerate() {
                match (i, pair.merge) {
                    (0, true) => self.merge_leaves(pair, leaf, at),
                    (0, false) => even_leaves(pair, leaf, at),
                    (_, true) => merge_inner(pair),
                    (_, false) => even_inner(pair),
                }
                if !pair.merge {
                    break;
                }
                if plan.old_root == Some(pair.parent) {
                    let header = &mut *self.header.as_ptr();
                    header.height -= 1;
                    (header.root_leaf, header.root_inner) = match header.height {
                        0 => (Some(pair.left), None),
                        _ => (None, Some(pair.left.cast())),
                    };
                } else {
                    Slots::remove(branches!(pair.parent), pair.key_at);
                }
            }
            (removed.key, removed.value)
        }
    }

    /// Moves the right leaf's entries to the left one, except the one to be removed, and takes the
    /// right leaf out of the chain. The right one is not written.
    ///
    /// # Safety
    /// As [`BTreeMap::carry_out`].
    unsafe fn merge_leaves(self, pair: &Pair<K, V>, leaf: Ptr<Leaf<K, V>>, at: usize) {
        // SAFETY: as above; both leaves' entries fit into one.
        unsafe {
            let (left, right) = (place!(pair.left, entries), place!(pair.right, entries));
            if leaf == pair.left {
                Slots::remove(left, at);
            }
            for i in (0..pair.right.as_ref().len()).filter(|&i| leaf != pair.right || i != at) {
                Slots::push(left, Slots::place(right, i).read());
            }
            let next = pair.right.as_ref().next;
            (*pair.left.as_ptr()).next = next;
            match next {
                Some(next) => (*next.as_ptr()).previous = Some(pair.left),
                None => (*self.header.as_ptr()).last = Some(pair.left),
            }
        }
    }
}

/// Removes the entry and makes both leaves about equally long.
///
/// # Safety
/// As [`BTreeMap::carry_out`].
unsafe fn even_leaves<K, V>(pair: &Pair<K, V>, leaf: Ptr<Leaf<K, V>>, at: usize) {
    // SAFETY: as above; together they have more than one leaf's entries, so neither gets full or
    // empty.
    unsafe {
        let (left, right) = (place!(pair.left, entries), place!(pair.right, entries));
        Slots::remove(place!(leaf, entries), at);
        while pair.left.as_ref().len() + 1 < pair.right.as_ref().len() {
            Slots::push(left, Slots::remove(right, 0));
        }
        while pair.right.as_ref().len() + 1 < pair.left.as_ref().len() {
            Slots::insert(right, 0, Slots::remove(left, pair.left.as_ref().len() - 1));
        }
        let key = &raw mut (*Slots::place(branches!(pair.parent), pair.key_at)).key;
        key.write(copy_of(&raw const (*Slots::place(right, 0)).key));
    }
}

/// Moves the key between them and all of the right node to the left one.
///
/// # Safety
/// As [`BTreeMap::carry_out`].
unsafe fn merge_inner<K, V>(pair: &Pair<K, V>) {
    // SAFETY: as above; both nodes' keys and the one between fit into one.
    unsafe {
        let (left, right) = pair.inner();
        let key = copy_of(&raw const (*Slots::place(branches!(pair.parent), pair.key_at)).key);
        Slots::push(branches!(left), Branch { key, child: right.as_ref().first });
        for i in 0..right.as_ref().len() {
            Slots::push(branches!(left), Slots::place(branches!(right), i).read());
        }
    }
}

/// Makes both nodes about equally long; keys go from one to the other through the parent.
///
/// # Safety
/// As [`BTreeMap::carry_out`].
unsafe fn even_inner<K, V>(pair: &Pair<K, V>) {
    // SAFETY: as above.
    unsafe {
        let (left, right) = pair.inner();
        let between = &raw mut (*Slots::place(branches!(pair.parent), pair.key_at)).key;
        while left.as_ref().len() + 1 < right.as_ref().len() {
            Slots::push(
                branches!(left),
                Branch { key: between.read(), child: right.as_ref().first },
            );
            let Branch { key, child } = Slots::remove(branches!(right), 0);
            between.write(key);
            (*right.as_ptr()).first = child;
        }
        while right.as_ref().len() + 1 < left.as_ref().len() {
            Slots::insert(
                branches!(right),
                0,
                Branch { key: between.read(), child: right.as_ref().first },
            );
            let Branch { key, child } = Slots::remove(branches!(left), left.as_ref().len() - 1);
            between.write(key);
            (*right.as_ptr()).first = child;
        }
    }
}
