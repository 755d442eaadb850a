//! The blocks of a hash map.
//!
//! ```text
//! Page:       tags (8) | next | 7 slots
//! Segment:    128 first pages of buckets
//! Directory:  over segments? (8) | 128 children
//! ```
//!
//! A page holds entries of one bucket; more than 7 go to further pages. Directories are a tree of
//! fan-out 128 by bucket number, with as many levels as the map needs.
//!
//! Byte `i` of `tags` belongs to slot `i`: 0 if it is unused, else 0x80 and 7 bits of the hash,
//! which tells nearly all keys apart without looking at them. Byte 7 is 0. Invariant: a used slot
//! holds an entry, an unused one is zero (the pointer map sees it too).

use cenote::Ptr;
use cenote::persist::{__applied, LayoutBuilder, Persist, TypeId};
use core::mem::{MaybeUninit, offset_of};

/// Entries of a page.
pub(crate) const SLOTS: usize = 7;
/// Children of a segment and of a directory: 2 to the power of this.
pub(crate) const FAN_OUT_BITS: u32 = 7;
/// Children of a segment and of a directory.
pub(crate) const FAN_OUT: usize = 1 << FAN_OUT_BITS;

/// The tags of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Tags(u64);

const USED: u64 = 0x0080_8080_8080_8080;

impl Tags {
    pub(crate) const EMPTY: Self = Self(0);

    /// The tag of a hash: its upper 7 bits, which choose no bucket.
    #[inline]
    pub(crate) const fn of(hash: u64) -> u8 {
        0x80 | (hash >> 57) as u8
    }

    /// Slots whose tag is `tag`.
    #[inline]
    pub(crate) const fn matches(self, tag: u8) -> Set {
        let difference = self.0 ^ (tag as u64 * 0x0101_0101_0101_0101);
        // A byte's upper bit becomes 0 if any of its bits is 1; no carry leaves a byte.
        let lower = 0x7f7f_7f7f_7f7f_7f7f;
        Set(!(((difference & lower) + lower) | difference) & USED)
    }

    /// Slots in use.
    #[inline]
    pub(crate) const fn used(self) -> Set {
        Set(self.0 & USED)
    }

    /// Slots not in use.
    #[inline]
    pub(crate) const fn unused(self) -> Set {
        Set(!self.0 & USED)
    }

    /// The tag of a slot.
    #[inline]
    pub(crate) const fn tag(self, slot: usize) -> u8 {
        (self.0 >> (8 * slot)) as u8
    }

    #[inline]
    pub(crate) const fn with(self, slot: usize, tag: u8) -> Self {
        Self(self.0 & !(0xff << (8 * slot)) | (tag as u64) << (8 * slot))
    }

    #[inline]
    pub(crate) const fn without(self, slots: Set) -> Self {
        // 0x80 in each byte to 0xff.
        Self(self.0 & !((slots.0 >> 7) * 0xff))
    }
}

/// Slots of a page; iterates over their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Set(u64);

impl Set {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    #[inline]
    pub(crate) const fn with(self, slot: usize) -> Self {
        Self(self.0 | 0x80 << (8 * slot))
    }

    #[inline]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The lowest one.
    #[inline]
    pub(crate) fn first(self) -> Option<usize> {
        let mut rest = self;
        rest.next()
    }
}

impl Iterator for Set {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

/// A key with its value.
#[repr(C)]
pub(crate) struct PageEntry<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
}

// A key cannot own.
persist_block!(
    "cenote/HashEntry",
    PageEntry<K, V> { key: K, value: V },
    owns: V::OWNS && !K::OWNS
);

/// See the module.
#[repr(C)]
pub(crate) struct HashPage<K, V> {
    pub(crate) tags: Tags,
    pub(crate) next: Option<Ptr<HashPage<K, V>>>,
    slots: [MaybeUninit<PageEntry<K, V>>; SLOTS],
}

impl<K, V> HashPage<K, V> {
    pub(crate) const fn new(next: Option<Ptr<Self>>) -> Self {
        Self { tags: Tags::EMPTY, next, slots: [const { MaybeUninit::zeroed() }; SLOTS] }
    }

    /// Where a slot is.
    ///
    /// # Safety
    /// `this` is live, and `slot` less than 7.
    #[inline]
    pub(crate) unsafe fn place(this: Ptr<Self>, slot: usize) -> *mut PageEntry<K, V> {
        // SAFETY: inside the page.
        unsafe { (&raw mut (*this.as_ptr()).slots).cast::<PageEntry<K, V>>().add(slot) }
    }

    /// The entry in a slot.
    ///
    /// # Safety
    /// The slot is in use.
    #[inline]
    pub(crate) unsafe fn entry(&self, slot: usize) -> &PageEntry<K, V> {
        // SAFETY: a used slot holds an entry.
        unsafe { &*self.slots.as_ptr().cast::<PageEntry<K, V>>().add(slot) }
    }

    /// Puts an entry into an unused slot, and returns its place.
    ///
    /// # Safety
    /// `this` is live, logged or fresh; `slot` is less than 7.
    #[inline]
    pub(crate) unsafe fn put(
        this: Ptr<Self>,
        slot: usize,
        tag: u8,
        entry: PageEntry<K, V>,
    ) -> *mut PageEntry<K, V> {
        // SAFETY: a slot of a live page.
        unsafe {
            let place = Self::place(this, slot);
            place.write(entry);
            (*this.as_ptr()).tags = (*this.as_ptr()).tags.with(slot, tag);
            place
        }
    }

    /// Takes an entry out.
    ///
    /// # Safety
    /// `this` is live, logged or fresh; the slot is in use.
    #[inline]
    pub(crate) unsafe fn take(this: Ptr<Self>, slot: usize) -> PageEntry<K, V> {
        // SAFETY: a used slot of a live page.
        unsafe {
            let place = Self::place(this, slot);
            let entry = place.read();
            place.write_bytes(0, 1);
            (*this.as_ptr()).tags = (*this.as_ptr()).tags.without(Set::EMPTY.with(slot));
            entry
        }
    }
}

// SAFETY: described where they are; unused slots are zero. The name belongs to this crate, see
// `shared`.
unsafe impl<K: Persist, V: Persist> Persist for HashPage<K, V> {
    const TYPE_ID: TypeId =
        TypeId::of_name("cenote/HashPage").apply(K::TYPE_ID.0).apply(V::TYPE_ID.0);
    const OWNS: bool = PageEntry::<K, V>::OWNS;

    fn type_name() -> String {
        __applied("cenote/HashPage", &[K::type_name, V::type_name])
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<u64>("tags", offset_of!(Self, tags));
        layout.field::<Option<Ptr<Self>>>("next", offset_of!(Self, next));
        layout.field::<[PageEntry<K, V>; SLOTS]>("slots", offset_of!(Self, slots));
    }
}

/// First pages of buckets that follow each other.
#[repr(C)]
pub(crate) struct Segment<K, V> {
    pub(crate) pages: [Option<Ptr<HashPage<K, V>>>; FAN_OUT],
}

persist_block!(
    "cenote/HashSegment",
    Segment<K, V> { pages: [Option<Ptr<HashPage<K, V>>>; FAN_OUT] }
);

/// A level above segments, or above directories.
#[repr(C)]
pub(crate) struct Directory<K, V> {
    /// 1 if the children are segments, else 0: what the pointer map goes by.
    over_segments: u64,
    /// Of the type that `over_segments` says.
    pub(crate) children: [Option<Ptr<Segment<K, V>>>; FAN_OUT],
}

impl<K, V> Directory<K, V> {
    pub(crate) const fn new(over_segments: bool) -> Self {
        Self { over_segments: over_segments as u64, children: [None; FAN_OUT] }
    }
}

// SAFETY: described field by field. The children are pointers to segments or to directories as
// `over_segments` says, which is written once, and `repr(C)` puts the field where a variant's
// fields are counted. The name belongs to this crate, see `shared`.
unsafe impl<K: Persist, V: Persist> Persist for Directory<K, V> {
    const TYPE_ID: TypeId =
        TypeId::of_name("cenote/HashDirectory").apply(K::TYPE_ID.0).apply(V::TYPE_ID.0);

    fn type_name() -> String {
        __applied("cenote/HashDirectory", &[K::type_name, V::type_name])
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.variant("OverDirectories", 8, 0, |variant| {
            variant.field::<[Option<Ptr<Self>>; FAN_OUT]>("children");
        });
        layout.variant("OverSegments", 8, 1, |variant| {
            variant.field::<[Option<Ptr<Segment<K, V>>>; FAN_OUT]>("children");
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_find_exactly_their_slots() {
        let tags = [0x80, 0x81, 0, 0xff, 0x81, 0x01 | 0x80, 0];
        let mut word = Tags::EMPTY;
        for (slot, &tag) in tags.iter().enumerate() {
            word = word.with(slot, tag);
        }
        for tag in 0x80..=0xff {
            let expected: Vec<_> = (0..SLOTS).filter(|&slot| tags[slot] == tag).collect();
            assert_eq!(word.matches(tag).collect::<Vec<_>>(), expected);
            assert_eq!(word.matches(tag).len(), expected.len());
        }
        assert_eq!(word.used().collect::<Vec<_>>(), [0, 1, 3, 4, 5]);
        assert_eq!(word.unused().collect::<Vec<_>>(), [2, 6]);
        assert_eq!(word.without(word.used()), Tags::EMPTY);
        assert_eq!(word.without(Set::EMPTY.with(3)).used().collect::<Vec<_>>(), [0, 1, 4, 5]);
        assert_eq!(Tags::of(u64::MAX), 0xff);
        assert_eq!(Tags::of(0), 0x80);
    }

    #[test]
    fn records_are_accepted_and_sizes_fill_size_classes() {
        HashPage::<[u8; 3], Ptr<u64>>::record().check().unwrap();
        Segment::<u64, u64>::record().check().unwrap();
        let record = Directory::<u64, u64>::record();
        record.check().unwrap();
        assert_eq!(
            record.variants[0].fields[0].offset as usize,
            offset_of!(Directory<u64, u64>, children)
        );
        assert_eq!((size_of::<HashPage<u64, u64>>(), size_of::<Segment<u64, u64>>()), (128, 1024));
    }
}
