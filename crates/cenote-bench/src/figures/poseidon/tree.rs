//! A B+-tree for several threads, in the blocks of the allocator that is measured: what stands in
//! for the paper's FAST-FAIR tree, with its nodes of 512 bytes.
//!
//! Nodes of a level are linked to the right, and know where their keys end (Lehman and Yao). So a
//! reader that comes too late for a split goes on to the right, and a writer locks one node at a
//! time. A node's lock is also its version: inner nodes are read without a lock, and again if the
//! version has changed. A leaf is locked for each operation, because a value that is read must not
//! be freed meanwhile. Nodes are not removed.
//!
//! At level `power` an insertion flushes the lines of the entries that moved and the line of the
//! number of entries, and fences once; a split flushes and fences the new node before a link leads
//! to it. FAST-FAIR also fences between the lines of a node. For all systems it is the same code.
//!
//! Values are blocks of [`VALUE_BYTES`] with the key in the first and the last word, which is
//! compared whenever one is read or freed.

use crate::allocator::{Allocator, Fault};
use cenote_medium::Persistence;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a node.
const NODE_BYTES: usize = 512;

/// Bytes of a value.
pub const VALUE_BYTES: usize = 64;

/// Entries of a node. The last two words are not used.
const ENTRIES: usize = 28;

/// No key reaches this.
const END: u64 = u64::MAX;

/// Times that a thread looks at a lock before it lets others run.
const SPINS: u32 = 64;

/// Words of a node: lock (odd while it is held), level (0: leaf), number of entries, right
/// neighbour, where its keys end, the child before the first key; then a key and a child or value
/// each.
#[derive(Clone, Copy, PartialEq, Eq)]
struct TreeNode(NonNull<AtomicU64>);

const LOCK: usize = 0;
const LEVEL: usize = 1;
const COUNT: usize = 2;
const RIGHT: usize = 3;
const HIGH: usize = 4;
const FIRST: usize = 5;
const BEGIN: usize = 6;

impl TreeNode {
    /// # Safety
    /// A node of a tree that is not dropped as long as the result is used.
    unsafe fn at(addr: u64) -> Option<Self> {
        NonNull::new(with_exposed_provenance_mut(addr as usize)).map(Self)
    }

    fn addr(self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < NODE_BYTES / 8);
        // SAFETY: a node of a tree that is there (contract of `at`) has all its words.
        unsafe { self.0.add(index.min(NODE_BYTES / 8 - 1)).as_ref() }
    }

    fn get(self, index: usize) -> u64 {
        self.word(index).load(Relaxed)
    }

    fn set(self, index: usize, value: u64) {
        self.word(index).store(value, Relaxed);
    }

    fn count(self) -> usize {
        (self.get(COUNT) as usize).min(ENTRIES)
    }

    fn key(self, entry: usize) -> u64 {
        self.get(BEGIN + 2 * entry)
    }

    fn value(self, entry: usize) -> u64 {
        self.get(BEGIN + 2 * entry + 1)
    }

    fn put(self, entry: usize, key: u64, value: u64) {
        self.set(BEGIN + 2 * entry + 1, value);
        self.set(BEGIN + 2 * entry, key);
    }

    /// Number of entries with a key up to this one.
    fn position(self, key: u64) -> usize {
        let count = self.count();
        (0..count).find(|&entry| self.key(entry) > key).unwrap_or(count)
    }

    fn child(self, key: u64) -> u64 {
        match self.position(key) {
            0 => self.get(FIRST),
            after => self.value(after - 1),
        }
    }

    /// The entry of a key.
    fn find(self, key: u64) -> Option<usize> {
        let before = self.position(key).checked_sub(1)?;
        (self.key(before) == key).then_some(before)
    }

    /// The version of an unlocked state.
    fn version(self) -> u64 {
        let mut spins = 0;
        loop {
            let version = self.word(LOCK).load(Acquire);
            if version.is_multiple_of(2) {
                return version;
            }
            pause(&mut spins);
        }
    }

    fn is_still(self, version: u64) -> bool {
        fence(Acquire);
        self.get(LOCK) == version
    }

    fn lock(self) {
        let mut spins = 0;
        loop {
            let version = self.version();
            let lock = self.word(LOCK);
            if lock.compare_exchange(version, version + 1, Acquire, Relaxed).is_ok() {
                // What the holder stores is seen after the lock.
                fence(Release);
                return;
            }
            pause(&mut spins);
        }
    }

    fn unlock(self) {
        self.word(LOCK).store(self.get(LOCK) + 1, Release);
    }
}

fn pause(spins: &mut u32) {
    *spins += 1;
    match spins.is_multiple_of(SPINS) {
        true => std::thread::yield_now(),
        false => std::hint::spin_loop(),
    }
}

/// A tree in an allocator's blocks.
pub struct Tree<A: Allocator> {
    allocator: Arc<A>,
    persistence: Persistence,
    root: AtomicU64,
    growth: Mutex<()>,
}

impl<A: Allocator> Tree<A> {
    /// A tree without keys.
    ///
    /// # Errors
    /// There is no block.
    pub fn new(allocator: Arc<A>, persistence: Persistence) -> Result<Self, Fault> {
        let (root, growth) = (AtomicU64::new(0), Mutex::default());
        let tree = Self { allocator, persistence, root, growth };
        let root = tree.new_node(0)?;
        tree.persist(root, LOCK, BEGIN);
        tree.root.store(root.addr(), Release);
        Ok(tree)
    }

    /// Inserts a key that is between 1 and the greatest number, with a new value; or replaces the
    /// value of a key that is there. Not 0 if something is wrong.
    ///
    /// # Errors
    /// There is no block.
    pub fn put(&self, key: u64) -> Result<u64, Fault> {
        let value = self.new_value(key)?;
        let leaf = self.lock_node(key, 0);
        if let Some(entry) = leaf.find(key) {
            let old = leaf.value(entry);
            leaf.set(BEGIN + 2 * entry + 1, value);
            self.persist(leaf, BEGIN + 2 * entry + 1, BEGIN + 2 * entry + 2);
            leaf.unlock();
            // SAFETY: the entry was its only link, and is read under the leaf's lock.
            return Ok(unsafe { self.free_value(key, old) });
        }
        self.insert(leaf, key, value)?;
        Ok(0)
    }

    /// Reads the value of a key. Not 0 if something is wrong, or there is no such key.
    pub fn read(&self, key: u64) -> u64 {
        let leaf = self.lock_node(key, 0);
        // SAFETY: the value of an entry is not freed while the leaf is locked.
        let wrong = leaf.find(key).map_or(1, |entry| unsafe { compare(key, leaf.value(entry)) });
        leaf.unlock();
        wrong
    }

    /// Inserts an entry into a locked node, which is split if it is full; unlocks it.
    fn insert(&self, node: TreeNode, key: u64, value: u64) -> Result<(), Fault> {
        if node.count() < ENTRIES {
            self.insert_here(node, key, value);
            node.unlock();
            return Ok(());
        }
        let level = node.get(LEVEL);
        let (middle, right) = match self.split(node) {
            Ok(split) => split,
            Err(fault) => {
                node.unlock();
                return Err(fault);
            }
        };
        if key < middle {
            self.insert_here(node, key, value);
            node.unlock();
        } else {
            // No other thread can be on the way to the right node before this one unlocks.
            self.insert_here(right, key, value);
            node.unlock();
        }
        self.insert_above(level + 1, middle, right)
    }

    /// Inserts an entry into a locked node with room.
    fn insert_here(&self, node: TreeNode, key: u64, value: u64) {
        let (count, at) = (node.count(), node.position(key));
        for entry in (at..count).rev() {
            node.put(entry + 1, node.key(entry), node.value(entry));
        }
        node.put(at, key, value);
        node.set(COUNT, count as u64 + 1);
        self.flush(node, BEGIN + 2 * at, BEGIN + 2 * (count + 1));
        self.persist(node, COUNT, COUNT + 1);
    }

    /// Moves the upper half of a full, locked node to a new one: the first key there, and the node.
    fn split(&self, node: TreeNode) -> Result<(u64, TreeNode), Fault> {
        let right = self.new_node(node.get(LEVEL))?;
        let half = ENTRIES / 2;
        let middle = node.key(half);
        let is_inner = node.get(LEVEL) > 0;
        // The middle key of an inner node goes up, and its child is the first on the right.
        let from = if is_inner { half + 1 } else { half };
        if is_inner {
            right.set(FIRST, node.value(half));
        }
        for entry in from..ENTRIES {
            right.put(entry - from, node.key(entry), node.value(entry));
        }
        right.set(COUNT, (ENTRIES - from) as u64);
        right.set(RIGHT, node.get(RIGHT));
        right.set(HIGH, node.get(HIGH));
        self.persist(right, LOCK, NODE_BYTES / 8);
        node.set(RIGHT, right.addr());
        node.set(HIGH, middle);
        node.set(COUNT, half as u64);
        self.persist(node, LOCK, BEGIN);
        Ok((middle, right))
    }

    /// Tells the level above of a new node.
    fn insert_above(&self, level: u64, key: u64, node: TreeNode) -> Result<(), Fault> {
        if self.root().get(LEVEL) < level {
            let _growth = self.growth.lock().unwrap_or_else(PoisonError::into_inner);
            let old = self.root();
            if old.get(LEVEL) < level {
                let root = self.new_node(level)?;
                root.set(FIRST, old.addr());
                root.put(0, key, node.addr());
                root.set(COUNT, 1);
                self.persist(root, LOCK, NODE_BYTES / 8);
                self.root.store(root.addr(), Release);
                return Ok(());
            }
        }
        let above = self.lock_node(key, level);
        self.insert(above, key, node.addr())
    }

    fn root(&self) -> TreeNode {
        // SAFETY: the root is a node as long as the tree is there.
        let root = unsafe { TreeNode::at(self.root.load(Acquire)) };
        root.expect("a tree has a root from the beginning")
    }

    /// The node of a level that a key belongs in, locked.
    fn lock_node(&self, key: u64, level: u64) -> TreeNode {
        let mut node = self.root();
        loop {
            let version = node.version();
            let is_there = node.get(LEVEL) == level;
            let is_right = key >= node.get(HIGH);
            let next = if is_right { node.get(RIGHT) } else { node.child(key) };
            if !node.is_still(version) {
                continue;
            }
            if is_there && !is_right {
                node.lock();
                // It may have been split meanwhile.
                if key < node.get(HIGH) {
                    return node;
                }
                node.unlock();
                continue;
            }
            // SAFETY: a link of a state of the node in which it was not locked leads to a node.
            node = unsafe { TreeNode::at(next) }.expect("a link leads to a node");
        }
    }

    fn new_node(&self, level: u64) -> Result<TreeNode, Fault> {
        let block = NonNull::new(self.allocator.alloc(NODE_BYTES));
        let node = TreeNode(block.ok_or(Fault::OutOfMemory(NODE_BYTES))?.cast());
        for (word, value) in [(LOCK, 0), (LEVEL, level), (COUNT, 0), (RIGHT, 0), (FIRST, 0)] {
            node.set(word, value);
        }
        node.set(HIGH, END);
        node.addr();
        Ok(node)
    }

    fn new_value(&self, key: u64) -> Result<u64, Fault> {
        let block = NonNull::new(self.allocator.alloc(VALUE_BYTES));
        let value = block.ok_or(Fault::OutOfMemory(VALUE_BYTES))?;
        let addr = value.as_ptr().expose_provenance() as u64;
        // SAFETY: a block of that many bytes, at a multiple of 8, that no other thread knows.
        let words = unsafe { stamps(addr) };
        words.into_iter().flatten().for_each(|word| word.store(key, Relaxed));
        // SAFETY: the same block.
        unsafe { self.persistence.persist(value.as_ptr(), VALUE_BYTES) };
        Ok(addr)
    }

    /// # Safety
    /// A value that no link leads to any more.
    unsafe fn free_value(&self, key: u64, addr: u64) -> u64 {
        // SAFETY: the value is not freed yet.
        let wrong = unsafe { compare(key, addr) };
        let block = with_exposed_provenance_mut(addr as usize);
        // SAFETY: as the caller promises.
        wrong | u64::from(!unsafe { self.allocator.free(block) })
    }

    fn flush(&self, node: TreeNode, from: usize, to: usize) {
        let start = node.word(from.min(NODE_BYTES / 8 - 1));
        // SAFETY: words of the node, which is mapped.
        unsafe { self.persistence.flush(std::ptr::from_ref(start).cast(), (to - from) * 8) }
    }

    fn persist(&self, node: TreeNode, from: usize, to: usize) {
        self.flush(node, from, to);
        self.persistence.fence();
    }

    /// Frees all values and nodes. Not 0 if something is wrong.
    pub fn free_all(mut self) -> u64 {
        self.free_levels()
    }

    fn free_levels(&mut self) -> u64 {
        let mut wrong = 0;
        // SAFETY: nodes of this tree; each is freed after what leads on from it was read.
        let mut first = unsafe { TreeNode::at(std::mem::take(self.root.get_mut())) };
        while let Some(leftmost) = first {
            // SAFETY: as above.
            first = unsafe { TreeNode::at(leftmost.get(FIRST)) };
            let mut at = Some(leftmost);
            while let Some(node) = at {
                if node.get(LEVEL) == 0 {
                    for entry in 0..node.count() {
                        // SAFETY: no other thread uses the tree, and each value is of one entry.
                        wrong |= unsafe { self.free_value(node.key(entry), node.value(entry)) };
                    }
                }
                // SAFETY: as above.
                at = unsafe { TreeNode::at(node.get(RIGHT)) };
                // SAFETY: no link to it is followed any more.
                wrong |= u64::from(!unsafe { self.allocator.free(node.0.as_ptr().cast()) });
            }
        }
        wrong
    }
}

impl<A: Allocator> Drop for Tree<A> {
    fn drop(&mut self) {
        // What is wrong was to be asked before, by `free_all`.
        let _ = self.free_levels();
    }
}

/// The first and the last word of a value.
///
/// # Safety
/// A value that is not freed while the result is used, or 0.
unsafe fn stamps<'v>(addr: u64) -> [Option<&'v AtomicU64>; 2] {
    let first = with_exposed_provenance_mut::<AtomicU64>(addr as usize);
    // SAFETY: the first of its words, if there is a value; atomic, so that blocks that overlap are
    // only found.
    let word = |at: usize| unsafe { first.wrapping_add(at).as_ref() };
    if addr == 0 { [None, None] } else { [word(0), word(VALUE_BYTES / 8 - 1)] }
}

/// Not 0 if a value has another stamp than its key.
///
/// # Safety
/// As for [`stamps`].
unsafe fn compare(key: u64, addr: u64) -> u64 {
    // SAFETY: as the caller promises.
    let words = unsafe { stamps(addr) };
    words.iter().map(|word| word.map_or(1, |word| word.load(Relaxed) ^ key)).fold(0, |a, b| a | b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::testing::Arena;

    fn key(i: u64) -> u64 {
        (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn what_threads_put_is_read_and_freed_once() {
        let arena = Arc::new(Arena::default());
        let tree = Tree::new(Arc::clone(&arena), Persistence::PROCESS).expect("a block");
        let threads = 4;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let tree = &tree;
                scope.spawn(move || {
                    for i in (thread..20_000).step_by(threads as usize) {
                        assert_eq!(tree.put(key(i)).expect("a block"), 0);
                        // One of another thread, which may be there.
                        assert_eq!(tree.put(key(i / 2)).expect("a block"), 0);
                        assert_eq!(tree.read(key(i)), 0);
                    }
                });
            }
        });
        assert!((0..20_000).all(|i| tree.read(key(i)) == 0));
        assert_ne!(tree.read(key(20_000)), 0, "a key that is not there");
        assert!(tree.root().get(LEVEL) >= 2);
        assert_eq!(tree.free_all(), 0);
        let (taken, freed) = arena.counts();
        assert_eq!(taken, freed);
    }

    #[test]
    fn keys_in_order_from_either_end_are_all_there() {
        for up in [true, false] {
            let arena = Arc::new(Arena::default());
            let tree = Tree::new(Arc::clone(&arena), Persistence::PROCESS).expect("a block");
            for i in 1..=5000u64 {
                let key = if up { i } else { 5001 - i };
                assert_eq!(tree.put(key).expect("a block"), 0);
            }
            assert!((1..=5000).all(|key| tree.read(key) == 0));
            assert_ne!(tree.read(5001), 0);
        }
    }
}
