//! Nodes of the B+-tree.
//!
//! ```text
//! Slots<S>:  permutation (8) | 15 slots
//! Leaf:      next | previous | Slots<key, value>
//! Inner:     level is 1? (8) | first child | Slots<key, child>
//! ```
//!
//! Slots hold a node's entries, in any order; the permutation gives the used slots and their order.
//!
//! The *permutation* is one 64-bit word (as in Masstree, Mao et al., EuroSys 2012): nibble 0 counts
//! the used slots, nibbles 1 to 15 are a permutation of the slot numbers 0 to 14, the used ones
//! first, by rising key. So nothing moves when an entry comes or goes: a transaction logs one slot
//! and one word.
//!
//! Invariants: a used slot holds an entry; an unused one is zero (the pointer map sees it too).
//! Every node but the root holds at least one entry. Child `i` of an inner node has the keys from
//! key `i - 1` on and below key `i` (as far as `Ord` tells the truth; nothing but results depends
//! on that).

use crate::shared::{Range, range};
use cenote::persist::{__applied, LayoutBuilder, Persist, TypeId};
use cenote::{Ptr, Result};
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::mem::{MaybeUninit, offset_of};

/// Entries of a node.
pub(crate) const CAPACITY: usize = 15;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Permutation(u64);

/// The lowest `nibbles` nibbles.
#[inline]
const fn below(nibbles: usize) -> u64 {
    if nibbles >= 16 { u64::MAX } else { (1 << (4 * nibbles)) - 1 }
}

impl Permutation {
    /// No slot is used.
    pub(crate) const EMPTY: Self = Self(0xEDCB_A987_6543_2100);

    /// Used slots.
    #[inline]
    pub(crate) const fn len(self) -> usize {
        (self.0 & 15) as usize
    }

    /// The slot at position `at`, which is less than 15.
    #[inline]
    pub(crate) const fn slot(self, at: usize) -> usize {
        ((self.0 >> (4 * (at + 1))) & 15) as usize
    }

    /// With an unused slot (the second value) put at position `at`. There is one, and `at` is at
    /// most the length.
    #[inline]
    pub(crate) const fn insert(self, at: usize) -> (Self, usize) {
        let (word, len) = (self.0, self.len());
        let slot = self.slot(len);
        let shifted = (word & below(len + 1) & !below(at + 1)) << 4;
        let kept = (word & below(at + 1)) | (word & !below(len + 2));
        (Self((kept | shifted | ((slot as u64) << (4 * (at + 1)))) + 1), slot)
    }

    /// Without the slot at position `at`, which is less than the length; the second value is that
    /// slot.
    #[inline]
    pub(crate) const fn remove(self, at: usize) -> (Self, usize) {
        let (word, len) = (self.0, self.len());
        let slot = self.slot(at);
        let shifted = (word & below(len + 1) & !below(at + 2)) >> 4;
        let kept = (word & below(at + 1)) | (word & !below(len + 1));
        (Self((kept | shifted | ((slot as u64) << (4 * len))) - 1), slot)
    }
}

/// The entries of a node.
#[repr(C)]
pub(crate) struct Slots<S> {
    pub(crate) permutation: Permutation,
    slots: [MaybeUninit<S>; CAPACITY],
}

impl<S> Slots<S> {
    pub(crate) const fn new() -> Self {
        Self { permutation: Permutation::EMPTY, slots: [const { MaybeUninit::zeroed() }; CAPACITY] }
    }

    /// The entry at position `at`.
    ///
    /// # Safety
    /// `this` is live, and `at` is less than 15.
    #[inline]
    pub(crate) unsafe fn place(this: *mut Self, at: usize) -> *mut S {
        // SAFETY: a permutation has slot numbers below 15.
        unsafe { (&raw mut (*this).slots).cast::<S>().add((*this).permutation.slot(at)) }
    }

    /// What [`Slots::insert`] will write.
    ///
    /// # Safety
    /// `this` is live and not full.
    #[inline]
    pub(crate) unsafe fn insert_ranges(this: *mut Self) -> [Range; 2] {
        // SAFETY: the next unused slot is at the position behind the used ones.
        unsafe {
            [
                range(Self::place(this, (*this).permutation.len())),
                range(&raw mut (*this).permutation),
            ]
        }
    }

    /// Puts an entry at position `at`, and returns its place, where it stays until it is taken out.
    ///
    /// # Safety
    /// `this` is live, logged or fresh, and not full; `at` is at most its length.
    #[inline]
    pub(crate) unsafe fn insert(this: *mut Self, at: usize, entry: S) -> *mut S {
        // SAFETY: an unused slot of a live node.
        unsafe {
            let (permutation, slot) = (*this).permutation.insert(at);
            let place = (&raw mut (*this).slots).cast::<S>().add(slot);
            place.write(entry);
            (*this).permutation = permutation;
            place
        }
    }

    /// As [`Slots::insert`], behind all others.
    ///
    /// # Safety
    /// As [`Slots::insert`].
    pub(crate) unsafe fn push(this: *mut Self, entry: S) -> *mut S {
        // SAFETY: passed on.
        unsafe { Self::insert(this, (*this).permutation.len(), entry) }
    }

    /// What [`Slots::remove`] will write.
    ///
    /// # Safety
    /// `this` is live, and `at` is less than its length.
    #[inline]
    pub(crate) unsafe fn remove_ranges(this: *mut Self, at: usize) -> [Range; 2] {
        // SAFETY: by contract.
        unsafe { [range(Self::place(this, at)), range(&raw mut (*this).permutation)] }
    }

    /// Takes the entry at position `at` out.
    ///
    /// # Safety
    /// `this` is live, and logged or fresh; `at` is less than its length.
    #[inline]
    pub(crate) unsafe fn remove(this: *mut Self, at: usize) -> S {
        // SAFETY: a used slot of a live node.
        unsafe {
            let (permutation, slot) = (*this).permutation.remove(at);
            let place = (&raw mut (*this).slots).cast::<S>().add(slot);
            let entry = place.read();
            place.write_bytes(0, 1);
            (*this).permutation = permutation;
            entry
        }
    }
}

// SAFETY: described where they are; unused slots are zero. The name belongs to this crate, see
// `shared`.
unsafe impl<S: Persist> Persist for Slots<S> {
    const TYPE_ID: TypeId = TypeId::of_name("cenote/Slots").apply(S::TYPE_ID.0);
    const OWNS: bool = S::OWNS;

    fn type_name() -> String {
        __applied("cenote/Slots", &[S::type_name])
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<u64>("permutation", offset_of!(Self, permutation));
        layout.field::<[S; CAPACITY]>("slots", offset_of!(Self, slots));
    }
}

/// A key with its value.
#[repr(C)]
pub(crate) struct NodeEntry<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
}

// A key cannot own: inner nodes have copies of keys.
persist_block!(
    "cenote/BTreeEntry",
    NodeEntry<K, V> { key: K, value: V },
    owns: V::OWNS && !K::OWNS
);

/// A key with the child that begins there.
#[repr(C)]
pub(crate) struct Branch<K, C> {
    pub(crate) key: K,
    pub(crate) child: Option<Ptr<C>>,
}

persist_block!("cenote/BTreeBranch", Branch<K, C> { key: K, child: Option<Ptr<C>> });

/// Entries of the map, linked in their order.
#[repr(C)]
pub(crate) struct Leaf<K, V> {
    pub(crate) next: Option<Ptr<Leaf<K, V>>>,
    pub(crate) previous: Option<Ptr<Leaf<K, V>>>,
    pub(crate) entries: Slots<NodeEntry<K, V>>,
}

persist_block!(
    "cenote/BTreeLeaf",
    Leaf<K, V> {
        next: Option<Ptr<Leaf<K, V>>>,
        previous: Option<Ptr<Leaf<K, V>>>,
        entries: Slots<NodeEntry<K, V>>
    },
    owns: NodeEntry::<K, V>::OWNS
);

impl<K, V> Leaf<K, V> {
    pub(crate) const fn new() -> Self {
        Self { next: None, previous: None, entries: Slots::new() }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.permutation.len()
    }

    /// The entry at a position.
    ///
    /// # Safety
    /// `at` is less than the length.
    #[inline]
    pub(crate) unsafe fn entry(&self, at: usize) -> &NodeEntry<K, V> {
        // SAFETY: a used slot holds an entry.
        unsafe {
            &*self
                .entries
                .slots
                .as_ptr()
                .cast::<NodeEntry<K, V>>()
                .add(self.entries.permutation.slot(at))
        }
    }

    /// Position of the first entry that is not less than `key`; `Ok` if it is equal. At most the
    /// length, also with a wrong `Ord`.
    #[inline]
    pub(crate) fn search<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            // SAFETY: less than the length.
            match unsafe { self.entry(middle) }.key.borrow().cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}

/// Keys and the children between them. All children are leaves, or all are inner nodes.
#[repr(C)]
pub(crate) struct InnerNode<K, V> {
    /// 1 if the children are leaves, else 0: what the pointer map goes by.
    over_leaves: u64,
    /// The child before the first key. This and the slots' children have the type that
    /// `over_leaves` says.
    pub(crate) first: Child<K, V>,
    pub(crate) branches: Slots<Branch<K, Leaf<K, V>>>,
}

/// A child of an inner node, or the root: whether it is a leaf is known from where it stands.
pub(crate) type Child<K, V> = Option<Ptr<Leaf<K, V>>>;

// SAFETY: described field by field. The children are pointers to leaves or to inner nodes as
// `over_leaves` says, which is written once, and `repr(C)` puts the fields where a variant's fields
// are counted. The name belongs to this crate, see `shared`.
unsafe impl<K: Persist, V: Persist> Persist for InnerNode<K, V> {
    const TYPE_ID: TypeId =
        TypeId::of_name("cenote/BTreeInner").apply(K::TYPE_ID.0).apply(V::TYPE_ID.0);

    fn type_name() -> String {
        __applied("cenote/BTreeInner", &[K::type_name, V::type_name])
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.variant("OverInner", 8, 0, |variant| {
            variant.field::<Option<Ptr<Self>>>("first");
            variant.field::<Slots<Branch<K, Self>>>("branches");
        });
        layout.variant("OverLeaves", 8, 1, |variant| {
            variant.field::<Option<Ptr<Leaf<K, V>>>>("first");
            variant.field::<Slots<Branch<K, Leaf<K, V>>>>("branches");
        });
    }
}

impl<K, V> InnerNode<K, V> {
    pub(crate) const fn new(over_leaves: bool, first: Child<K, V>) -> Self {
        Self { over_leaves: over_leaves as u64, first, branches: Slots::new() }
    }

    /// Keys; there is one more child.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.branches.permutation.len()
    }

    #[inline]
    fn branch(&self, at: usize) -> &Branch<K, Leaf<K, V>> {
        debug_assert!(at < self.len());
        // SAFETY: called for positions below the length only; a used slot holds a branch.
        unsafe {
            &*self
                .branches
                .slots
                .as_ptr()
                .cast::<Branch<K, Leaf<K, V>>>()
                .add(self.branches.permutation.slot(at))
        }
    }

    /// Child `at`, which is at most the number of keys.
    #[inline]
    pub(crate) fn child(&self, at: usize) -> Child<K, V> {
        if at == 0 { self.first } else { self.branch(at - 1).child }
    }

    /// Number of the child where `key` belongs: keys that are not greater. At most the number of
    /// keys, also with a wrong `Ord`.
    #[inline]
    pub(crate) fn search<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.branch(middle).key.borrow().cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All positions at all lengths, and long random histories, against a plain vector.
    #[test]
    fn a_permutation_is_a_list_of_slots() {
        let mut seed = 1u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        let (mut permutation, mut model) = (Permutation::EMPTY, Vec::new());
        for _ in 0..20_000 {
            if model.len() < CAPACITY && (model.is_empty() || random(2) == 0) {
                let at = random(model.len() + 1);
                let (new, slot) = permutation.insert(at);
                assert!(!model.contains(&slot) && slot < CAPACITY, "an unused slot");
                model.insert(at, slot);
                permutation = new;
            } else {
                let at = random(model.len());
                let (new, slot) = permutation.remove(at);
                assert_eq!(slot, model.remove(at));
                permutation = new;
            }
            assert_eq!(permutation.len(), model.len());
            assert_eq!((0..model.len()).map(|at| permutation.slot(at)).collect::<Vec<_>>(), model);
            let mut all: Vec<_> = (0..CAPACITY).map(|at| permutation.slot(at)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..CAPACITY), "every slot once");
        }
    }

    #[test]
    fn records_are_accepted_and_follow_the_level() {
        for record in [
            Leaf::<u64, Ptr<u64>>::record(),
            InnerNode::<u64, u8>::record(),
            InnerNode::<[u8; 3], u64>::record(),
        ] {
            record.check().unwrap();
        }
        let record = InnerNode::<u64, u8>::record();
        assert_eq!(record.size as usize, size_of::<InnerNode<u64, u8>>());
        let variant = &record.variants[1];
        assert_eq!(variant.fields[0].offset as usize, offset_of!(InnerNode<u64, u8>, first));
        assert_eq!(variant.fields[1].offset as usize, offset_of!(InnerNode<u64, u8>, branches));
    }

    #[test]
    fn a_leaf_of_words_takes_few_cache_lines() {
        assert_eq!(size_of::<Leaf<u64, u64>>(), 264);
        assert_eq!(size_of::<InnerNode<u64, u64>>(), 264);
    }
}
