//! Entries by rising key: leaf after leaf, each sorted when the iterator comes to it.
//!
//! Invariant: the leaves and the index do not change as long as the reader lives. What a writer
//! appends meanwhile is seen or not, leaf by leaf.

use super::leaf::{LeafAt, RelaxedLeaf};
use super::open::OpenRelaxedMap;
use super::{PlainKey, PlainValue};
use crate::btree;
use crate::shared::Read;
use cenote::lost::Faults;
use cenote::{Ptr, Reader, Result};
use core::ops::{Bound, RangeBounds};

/// Entries of a map in a range of keys, by rising key.
pub struct RelaxedRange<'r, K: PlainKey, V: PlainValue> {
    epoch: u64,
    /// The leaf that comes next, and those behind it.
    next: Option<Ptr<RelaxedLeaf<K, V>>>,
    rest: btree::Range<'r, K, Ptr<RelaxedLeaf<K, V>>>,
    bounds: (Bound<K>, Bound<K>),
    entries: std::vec::IntoIter<(&'r K, &'r V)>,
    faults: &'r Faults,
}

impl<K: PlainKey, V: PlainValue> OpenRelaxedMap<K, V> {
    /// All entries, by rising key.
    ///
    /// # Errors
    /// As [`OpenRelaxedMap::get`].
    pub fn iter<'r>(&self, reader: &'r impl Reader) -> Result<RelaxedRange<'r, K, V>> {
        self.range(reader, ..)
    }

    /// The entries whose keys lie in a range, by rising key. A range that ends before it starts is
    /// empty.
    ///
    /// # Errors
    /// As [`OpenRelaxedMap::get`].
    pub fn range<'r>(
        &self,
        reader: &'r impl Reader,
        range: impl RangeBounds<K>,
    ) -> Result<RelaxedRange<'r, K, V>> {
        let header = self.core.map.header(reader)?;
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let at = match &bounds.0 {
            Bound::Unbounded => header.first.map(|leaf| (None, leaf)),
            Bound::Included(key) | Bound::Excluded(key) => header.leaf_for(reader, key)?,
        };
        let least = at.and_then(|(least, _)| least);
        let behind = least.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = header.index.range::<K>(reader, (behind, Bound::Unbounded))?;
        let entries = Vec::new().into_iter();
        let next = at.map(|(_, leaf)| leaf);
        let (epoch, faults) = (self.core.epoch, reader.faults());
        Ok(RelaxedRange { epoch, next, rest, bounds, entries, faults })
    }
}

impl<'r, K: PlainKey, V: PlainValue> RelaxedRange<'r, K, V> {
    /// Entries of a leaf that lie in the range.
    fn entries_of(&self, leaf: Ptr<RelaxedLeaf<K, V>>) -> Read<Vec<(&'r K, &'r V)>> {
        // SAFETY: a live leaf, because a live header led here; the reader is borrowed as long as
        // the entries.
        let leaf = unsafe { LeafAt::new(leaf) };
        let slots = leaf.sorted(self.epoch)?;
        // SAFETY: published or valid.
        let entries = slots.into_iter().map(|slot| unsafe { leaf.entry(slot) });
        let inside = entries.filter(|entry| self.bounds.contains(&entry.key));
        Ok(inside.map(|entry| (&entry.key, &entry.value)).collect())
    }

    fn is_past(&self, least: &K) -> bool {
        match &self.bounds.1 {
            Bound::Unbounded => false,
            Bound::Included(end) => least > end,
            Bound::Excluded(end) => least >= end,
        }
    }
}

impl<'r, K: PlainKey, V: PlainValue> Iterator for RelaxedRange<'r, K, V> {
    type Item = (&'r K, &'r V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(entry);
            }
            let leaf = self.next.take()?;
            self.entries = self.faults.noted(self.entries_of(leaf))?.into_iter();
            let behind = self.rest.next().filter(|(least, _)| !self.is_past(least));
            self.next = behind.map(|(_, leaf)| *leaf);
        }
    }
}

impl<K: PlainKey, V: PlainValue> core::iter::FusedIterator for RelaxedRange<'_, K, V> {}

impl<K: PlainKey, V: PlainValue> core::fmt::Debug for RelaxedRange<'_, K, V> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RelaxedRange").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}
