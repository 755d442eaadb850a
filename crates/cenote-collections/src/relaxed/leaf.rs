//! A leaf: 32 slots in the order in which entries came.
//!
//! ```text
//! state | marks | prints (1 byte a slot)      one line
//! tags (1 word a slot)                        four lines
//! slots (key, value)
//! ```
//!
//! | word | says | believed after a crash |
//! | --- | --- | --- |
//! | `state` | epoch, and how many slots are published to this program's readers | no |
//! | `prints` | a byte of the hash of each key | no |
//! | `tags` | 0, or the checksum of the slot: the entry is valid | yes |
//! | `marks` | a bit for each slot whose entry is deleted | yes |
//!
//! Invariants:
//!
//! * A slot that is published, or has a tag, is not written again as long as the leaf is alive. So
//!   a reference to its entry is good as long as a reader that it was found with.
//! * Of valid entries with one key that are not marked the last slot counts.
//! * The leaf is reached by raw pointers and atomic accesses alone. No reference to a whole one is
//!   ever made, and no other crate can name its type.

use super::{PlainKey, PlainValue};
use crate::shared::Read;
use cenote::Ptr;
use cenote::lost::touch;
use cenote_medium::planted::{Bug, GroupBug, planted};
use core::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Slots of a leaf.
pub(super) const CAPACITY: usize = 32;
/// Bits of the state that count slots.
const LEN_BITS: u32 = 8;
/// The last epoch that a state can name.
pub(super) const EPOCH_MAX: u64 = u64::MAX >> LEN_BITS;
const PRINT_WORDS: usize = CAPACITY / 8;

/// An entry in its place.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Slot<K, V> {
    pub(super) key: K,
    pub(super) value: V,
}

persist_block!("cenote/RelaxedSlot", Slot<K, V> { key: K, value: V });

/// The block; see the module.
#[repr(C, align(64))]
pub(super) struct RelaxedLeaf<K, V> {
    state: u64,
    marks: u64,
    prints: [u64; PRINT_WORDS],
    spare: [u64; 2],
    tags: [u64; CAPACITY],
    slots: [Slot<K, V>; CAPACITY],
}

persist_block!("cenote/RelaxedLeaf", RelaxedLeaf<K, V> {
    state: u64,
    marks: u64,
    prints: [u64; PRINT_WORDS],
    spare: [u64; 2],
    tags: [u64; CAPACITY],
    slots: [Slot<K, V>; CAPACITY],
});

/// Bytes before the slots: what recovery believes lies in them.
pub(super) const HEAD_LEN: usize = 64 + 8 * CAPACITY;

/// A leaf that is alive, and mapped, as long as this is used.
pub(super) struct LeafAt<K, V>(Ptr<RelaxedLeaf<K, V>>);

impl<K, V> Clone for LeafAt<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for LeafAt<K, V> {}

/// The byte of a key.
#[inline]
pub(super) fn print_of<K: PlainKey>(key: &K) -> u64 {
    xxh3_64(key.as_bytes()) >> 56
}

/// The tag of an entry, which is not 0.
#[inline]
pub(super) fn tag_of<K: PlainKey, V: PlainValue>(key: &K, value: &V) -> u64 {
    xxh3_64_with_seed(value.as_bytes(), xxh3_64(key.as_bytes())) | 1
}

/// Bits of the slots below `len`.
const fn below(len: usize) -> u64 {
    (1 << len) - 1
}

/// The last slot of a set, if there is one.
#[inline]
fn last_of(slots: u64) -> Option<usize> {
    slots.checked_ilog2().map(|slot| slot as usize)
}

impl<K: PlainKey, V: PlainValue> LeafAt<K, V> {
    /// # Safety
    /// A live leaf, in a pool that is held by a view or a transaction as long as this, or what it
    /// returns, is used.
    #[inline]
    pub(super) unsafe fn new(leaf: Ptr<RelaxedLeaf<K, V>>) -> Self {
        const { assert!(core::mem::offset_of!(RelaxedLeaf<K, V>, slots) == HEAD_LEN) };
        const { assert!(align_of::<Slot<K, V>>() <= 8, "keys and values have words at most") };
        const { assert!(size_of::<V>() <= 4096, "values of relaxed maps have 4 KiB at most") };
        Self(leaf)
    }

    pub(super) fn ptr(self) -> Ptr<RelaxedLeaf<K, V>> {
        self.0
    }

    #[inline]
    fn word(&self, place: *mut u64) -> &AtomicU64 {
        // SAFETY: a word of a live leaf, which all threads access so.
        unsafe { AtomicU64::from_ptr(place) }
    }

    #[inline]
    fn state(&self) -> &AtomicU64 {
        // SAFETY: a field of a live leaf.
        self.word(unsafe { place!(self.0, state) })
    }

    #[inline]
    pub(super) fn marks(&self) -> &AtomicU64 {
        // SAFETY: as above.
        self.word(unsafe { place!(self.0, marks) })
    }

    #[inline]
    fn prints(&self, word: usize) -> &AtomicU64 {
        // SAFETY: as above; callers pass less than the number of words.
        self.word(unsafe { place!(self.0, prints).cast::<u64>().add(word) })
    }

    #[inline]
    pub(super) fn tag(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: as above; callers pass less than the capacity.
        self.word(unsafe { place!(self.0, tags).cast::<u64>().add(slot) })
    }

    #[inline]
    pub(super) fn slot(&self, slot: usize) -> *mut Slot<K, V> {
        // SAFETY: as above.
        unsafe { place!(self.0, slots).cast::<Slot<K, V>>().add(slot) }
    }

    /// That its words can be read.
    #[inline]
    pub(super) fn touch_head(&self) -> Read<()> {
        // SAFETY: a live leaf.
        unsafe { touch(self.0.addr() as usize, HEAD_LEN) }
    }

    /// That a slot can be read, and written.
    #[inline]
    pub(super) fn touch_slot(&self, slot: usize) -> Read<()> {
        // SAFETY: a live leaf.
        unsafe { touch(self.slot(slot).addr(), size_of::<Slot<K, V>>()) }
    }

    /// An entry that is published or valid.
    ///
    /// # Safety
    /// It is, and `'r` ends before the hold on the pool.
    #[inline]
    pub(super) unsafe fn entry<'r>(&self, slot: usize) -> &'r Slot<K, V> {
        // SAFETY: such a slot is not written again, by the invariant; its bytes are a value,
        // because any bytes are.
        unsafe { &*self.slot(slot) }
    }

    /// Slots that are published in this epoch; `None`: the leaf was not touched in it.
    #[inline]
    pub(super) fn published(&self, epoch: u64) -> Option<usize> {
        let state = self.state().load(Ordering::Acquire);
        (state >> LEN_BITS == epoch)
            .then_some((state & below(LEN_BITS as usize)) as usize)
            .filter(|len| *len <= CAPACITY)
    }

    /// Publishes the first `len` slots to readers of this program.
    pub(super) fn publish(&self, epoch: u64, len: usize) {
        self.state().store(epoch << LEN_BITS | len as u64, Ordering::Release);
    }

    /// Slots whose byte is `print`, and some others.
    #[inline]
    fn alike(&self, print: u64) -> u64 {
        const ONES: u64 = 0x0101_0101_0101_0101;
        let wanted = print.wrapping_mul(ONES);
        let mut slots = 0;
        for word in 0..PRINT_WORDS {
            let differs = self.prints(word).load(Ordering::Relaxed) ^ wanted;
            // The high bit of each byte that is zero; rarely that of one above it.
            let zero = differs.wrapping_sub(ONES) & !differs & (ONES << 7);
            // Gathers the eight bits in one byte.
            slots |= ((zero >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) << (8 * word);
        }
        slots
    }

    /// Whether a slot has a tag, and holds what the tag was made of.
    pub(super) fn is_valid(&self, slot: usize) -> Read<bool> {
        let tag = self.tag(slot).load(Ordering::Acquire);
        if tag == 0 {
            return Ok(false);
        }
        self.touch_slot(slot)?;
        // SAFETY: it has a tag.
        let entry = unsafe { self.entry(slot) };
        let is_whole = tag == tag_of(&entry.key, &entry.value);
        Ok(is_whole || planted(Bug::Group(GroupBug::TagUnchecked)))
    }

    /// How many slots have a tag that was not made of what they hold.
    pub(super) fn broken(&self) -> Read<usize> {
        self.touch_head()?;
        let mut broken = 0;
        for slot in 0..CAPACITY {
            if self.tag(slot).load(Ordering::Acquire) != 0 {
                broken += usize::from(!self.is_valid(slot)?);
            }
        }
        Ok(broken)
    }

    /// The slot of a key.
    #[inline]
    pub(super) fn find(&self, key: &K, epoch: u64) -> Read<Option<usize>> {
        self.touch_head()?;
        let Some(len) = self.published(epoch) else { return self.find_valid(key) };
        // After the state: a mark that was set before the last publication is seen.
        let mut slots = self.alike(print_of(key)) & below(len);
        slots &= !self.marks().load(Ordering::Acquire);
        while let Some(slot) = last_of(slots) {
            self.touch_slot(slot)?;
            // SAFETY: published.
            if unsafe { &(*self.slot(slot)).key } == key {
                return Ok(Some(slot));
            }
            slots &= !(1 << slot);
        }
        Ok(None)
    }

    /// The same in a leaf that no writer of this program has touched: what is valid counts.
    #[cold]
    fn find_valid(&self, key: &K) -> Read<Option<usize>> {
        let marks = self.marks().load(Ordering::Acquire);
        let mut found = None;
        for slot in (0..CAPACITY).rev().filter(|slot| marks >> slot & 1 == 0) {
            if self.tag(slot).load(Ordering::Acquire) == 0 {
                continue;
            }
            self.touch_slot(slot)?;
            // SAFETY: it has a tag.
            if unsafe { &(*self.slot(slot)).key } == key && self.is_valid(slot)? {
                found = Some(slot);
                if !planted(Bug::Group(GroupBug::OldestBelieved)) {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Slots of all entries, one a key, by rising key.
    pub(super) fn sorted(&self, epoch: u64) -> Read<Vec<usize>> {
        self.touch_head()?;
        let published = self.published(epoch);
        let marks = self.marks().load(Ordering::Acquire);
        let mut slots = Vec::with_capacity(CAPACITY);
        for slot in (0..published.unwrap_or(CAPACITY)).filter(|slot| marks >> slot & 1 == 0) {
            if published.is_some() || self.is_valid(slot)? {
                self.touch_slot(slot)?;
                slots.push(slot);
            }
        }
        // SAFETY: published or valid.
        let key = |slot: &usize| unsafe { &(*self.slot(*slot)).key };
        // The last of equal keys comes first, and the others go.
        slots.sort_unstable_by(|a, b| key(a).cmp(key(b)).then(b.cmp(a)));
        slots.dedup_by(|later, first| key(later) == key(first));
        Ok(slots)
    }

    /// Slots below `len` that have this key.
    pub(super) fn all_of(&self, key: &K, len: usize) -> Read<u64> {
        let mut slots = 0;
        let mut alike = self.alike(print_of(key)) & below(len);
        while let Some(slot) = last_of(alike) {
            // The lookup before has touched the last of them alone.
            self.touch_slot(slot)?;
            // SAFETY: published.
            if unsafe { &(*self.slot(slot)).key } == key {
                slots |= 1 << slot;
            }
            alike &= !(1 << slot);
        }
        Ok(slots)
    }

    /// Brings the words that are not believed up to date with those that are, in a leaf of an
    /// earlier epoch: how many slots are in use. By the writer alone.
    ///
    /// Slots without a valid entry below the last tag are marked, and marks above it go away:
    /// `set_marks` stores them, before anything that is appended becomes valid.
    pub(super) fn adopt(&self, epoch: u64, set_marks: impl FnOnce(u64)) -> Read<usize> {
        self.touch_head()?;
        if let Some(len) = self.published(epoch) {
            return Ok(len);
        }
        let has_tag = |slot: &usize| self.tag(*slot).load(Ordering::Relaxed) != 0;
        let len = (0..CAPACITY).rev().find(has_tag).map_or(0, |last| last + 1);
        let before = self.marks().load(Ordering::Relaxed);
        let mut marks = before & below(len);
        let mut prints = [0; PRINT_WORDS];
        for slot in 0..len {
            if self.is_valid(slot)? {
                // SAFETY: valid.
                let key = unsafe { &(*self.slot(slot)).key };
                prints[slot / 8] |= print_of(key) << (8 * (slot % 8));
            } else {
                marks |= 1 << slot;
            }
        }
        (0..PRINT_WORDS).for_each(|word| self.prints(word).store(prints[word], Ordering::Relaxed));
        if marks != before {
            set_marks(marks);
        }
        self.publish(epoch, len);
        Ok(len)
    }

    /// Sets the byte of a slot that is not published yet. By the writer alone.
    pub(super) fn set_print(&self, slot: usize, print: u64) {
        let (word, shift) = (self.prints(slot / 8), 8 * (slot % 8));
        let others = word.load(Ordering::Relaxed) & !(0xff << shift);
        word.store(others | print << shift, Ordering::Relaxed);
    }

    /// Fills a fresh leaf with entries of another one, all of them valid.
    ///
    /// # Safety
    /// This leaf is a fresh block that nothing leads to; the slots of the other one are published.
    pub(super) unsafe fn fill(&self, epoch: u64, from: Option<Self>, slots: &[usize]) {
        // SAFETY: fresh, of this thread alone.
        unsafe { self.0.as_ptr().cast::<u8>().write_bytes(0, HEAD_LEN) };
        for (to, slot) in slots.iter().enumerate() {
            let Some(from) = from else { break };
            // SAFETY: by contract; no more than the capacity.
            let entry = unsafe {
                self.slot(to).copy_from_nonoverlapping(from.slot(*slot), 1);
                self.entry(to)
            };
            // One that waits has none yet.
            let tag = match from.tag(*slot).load(Ordering::Relaxed) {
                0 => tag_of(&entry.key, &entry.value),
                tag => tag,
            };
            self.tag(to).store(tag, Ordering::Relaxed);
            self.set_print(to, print_of(&entry.key));
        }
        self.publish(epoch, slots.len());
    }
}
