//! Iteration along the leaves.
//!
//! A [`Range`] has a front position, that of the next entry, and a back position, behind the last
//! one; each is a leaf and an index in it. They are found by descending once; then the links of the
//! leaves are followed. It ends where both meet, or, should an inconsistent `Ord` have made them
//! pass each other, where the leaves end.

use super::node::{Leaf, NodeEntry};
use super::{BTreeHeader, BTreeMap};
use crate::shared::{OrLost, Read, open};
use cenote::lost::Faults;
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result};
use core::borrow::Borrow;
use core::fmt;
use core::iter::FusedIterator;
use core::ops::{Bound, RangeBounds};

/// A place between two entries: before entry `index` of the leaf.
struct Position<'r, K, V> {
    leaf: &'r Leaf<K, V>,
    index: usize,
}

impl<K, V> Clone for Position<'_, K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Position<'_, K, V> {}

/// The entries of a [`BTreeMap`] in a range of keys, by rising key.
pub struct Range<'r, K, V> {
    /// `None` if there is nothing left.
    ends: Option<(Position<'r, K, V>, Position<'r, K, V>)>,
    faults: &'r Faults,
}

impl<K: Persist, V: Persist> BTreeMap<K, V> {
    /// All entries by rising key, from both ends.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<Iter<'r, K, V>> {
        let header = open(reader, self.header)?;
        let (ends, faults) = (ends_of(header).or_lost(reader)?, reader.faults());
        Ok(Iter { range: Range { ends, faults }, remaining: header.len as usize })
    }

    /// All keys, rising.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn keys<'r>(self, reader: &'r impl Reader) -> Result<Keys<'r, K, V>> {
        Ok(Keys { iter: self.iter(reader)? })
    }

    /// All values by rising key.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn values<'r>(self, reader: &'r impl Reader) -> Result<Values<'r, K, V>> {
        Ok(Values { iter: self.iter(reader)? })
    }

    /// The entries whose keys lie in a range, from both ends. A range that ends before it starts is
    /// empty.
    ///
    /// # Errors
    /// As [`BTreeMap::len`].
    pub fn range<'r, Q: Ord + ?Sized>(
        self,
        reader: &'r impl Reader,
        range: impl RangeBounds<Q>,
    ) -> Result<Range<'r, K, V>>
    where
        K: Borrow<Q>,
    {
        let (header, faults) = (open(reader, self.header)?, reader.faults());
        let (start, end) = (range.start_bound(), range.end_bound());
        if let (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) =
            (start, end)
            && a > b
        {
            return Ok(Range { ends: None, faults });
        }
        let ends = ends_of(header).or_lost(reader)?;
        let Some((first, last)) = ends else { return Ok(Range { ends: None, faults }) };
        // SAFETY: a live header; the reader is borrowed as long as the range.
        let (front, back) = unsafe {
            let front = match start {
                Bound::Unbounded => Some(first),
                Bound::Included(key) => position(header, key, false).or_lost(reader)?,
                Bound::Excluded(key) => position(header, key, true).or_lost(reader)?,
            };
            let back = match end {
                Bound::Unbounded => Some(last),
                Bound::Included(key) => position(header, key, true).or_lost(reader)?,
                Bound::Excluded(key) => position(header, key, false).or_lost(reader)?,
            };
            (front, back)
        };
        Ok(Range { ends: front.zip(back), faults })
    }
}

/// Before the first entry and behind the last one.
#[allow(clippy::type_complexity, reason = "two positions")]
fn ends_of<K, V>(
    header: &BTreeHeader<K, V>,
) -> Read<Option<(Position<'_, K, V>, Position<'_, K, V>)>> {
    let Some((first, last)) = header.first.zip(header.last) else { return Ok(None) };
    // SAFETY: links of a live header, which is borrowed from a reader, lead to live nodes.
    let (first, last) = unsafe { (first.follow()?, last.follow()?) };
    Ok(Some((Position { leaf: first, index: 0 }, Position { leaf: last, index: last.len() })))
}

/// The place before the entry of `key`, or behind it; where it would be if there is none.
///
/// # Safety
/// What a live header says, and nothing changes as long as `'r` lasts.
unsafe fn position<'r, K: Borrow<Q>, V, Q: Ord + ?Sized>(
    header: &'r BTreeHeader<K, V>,
    key: &Q,
    behind: bool,
) -> Read<Option<Position<'r, K, V>>> {
    // SAFETY: passed on.
    let Some(leaf) = (unsafe { header.leaf_for(key)? }) else { return Ok(None) };
    let index = match leaf.search(key) {
        Ok(index) => index + usize::from(behind),
        Err(index) => index,
    };
    Ok(Some(Position { leaf, index }))
}

/// A leaf; `None`, and noted, if it cannot be read.
///
/// # Safety
/// A live leaf, which does not change as long as `'r` lasts.
#[inline(always)]
unsafe fn readable<'r, K, V>(leaf: Ptr<Leaf<K, V>>, faults: &Faults) -> Option<&'r Leaf<K, V>> {
    // SAFETY: passed on.
    faults.noted(unsafe { leaf.follow() })
}

/// A leaf and an index in it.
type End<'r, K, V> = (&'r Leaf<K, V>, usize);

impl<'r, K, V> Range<'r, K, V> {
    /// Where the range begins and where it ends; `None` if there is nothing in it.
    pub(super) fn ends(&self) -> Option<(End<'r, K, V>, End<'r, K, V>)> {
        self.ends.map(|(front, back)| ((front.leaf, front.index), (back.leaf, back.index)))
    }

    /// The next entry.
    #[inline]
    fn step(&mut self) -> Option<&'r NodeEntry<K, V>> {
        let (front, back) = self.ends.as_mut()?;
        loop {
            if core::ptr::eq(front.leaf, back.leaf) && front.index >= back.index {
                break;
            }
            if front.index < front.leaf.len() {
                // SAFETY: less than the length.
                let entry = unsafe { front.leaf.entry(front.index) };
                front.index += 1;
                return Some(entry);
            }
            let Some(next) = front.leaf.next else { break };
            // SAFETY: links lead to live nodes; nothing changes as long as the reader is borrowed.
            let Some(leaf) = (unsafe { readable(next, self.faults) }) else { break };
            *front = Position { leaf, index: 0 };
        }
        self.ends = None;
        None
    }

    /// The last entry.
    #[inline]
    fn step_back(&mut self) -> Option<&'r NodeEntry<K, V>> {
        let (front, back) = self.ends.as_mut()?;
        loop {
            if core::ptr::eq(front.leaf, back.leaf) && front.index >= back.index {
                break;
            }
            if back.index > 0 {
                back.index -= 1;
                // SAFETY: less than the length.
                return Some(unsafe { back.leaf.entry(back.index) });
            }
            let Some(previous) = back.leaf.previous else { break };
            // SAFETY: as in `step`.
            let Some(leaf) = (unsafe { readable(previous, self.faults) }) else { break };
            *back = Position { leaf, index: leaf.len() };
        }
        self.ends = None;
        None
    }
}

impl<'r, K, V> Iterator for Range<'r, K, V> {
    type Item = (&'r K, &'r V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.step().map(|entry| (&entry.key, &entry.value))
    }
}

impl<K, V> DoubleEndedIterator for Range<'_, K, V> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step_back().map(|entry| (&entry.key, &entry.value))
    }
}

impl<K, V> FusedIterator for Range<'_, K, V> {}

impl<K, V> Clone for Range<'_, K, V> {
    fn clone(&self) -> Self {
        Self { ends: self.ends, faults: self.faults }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Range<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.clone()).finish()
    }
}

/// All entries of a [`BTreeMap`], by rising key.
pub struct Iter<'r, K, V> {
    pub(super) range: Range<'r, K, V>,
    remaining: usize,
}

impl<'r, K, V> Iterator for Iter<'r, K, V> {
    type Item = (&'r K, &'r V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let next = self.range.next();
        self.remaining = if next.is_some() { self.remaining - 1 } else { 0 };
        next
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        let next = self.range.next_back();
        self.remaining = if next.is_some() { self.remaining - 1 } else { 0 };
        next
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}
impl<K, V> FusedIterator for Iter<'_, K, V> {}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { range: self.range.clone(), remaining: self.remaining }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.clone()).finish()
    }
}

/// The keys of a [`BTreeMap`], rising.
pub struct Keys<'r, K, V> {
    iter: Iter<'r, K, V>,
}

/// The values of a [`BTreeMap`], by rising key.
pub struct Values<'r, K, V> {
    iter: Iter<'r, K, V>,
}

macro_rules! half {
    ($type:ident, $item:ident, $index:tt) => {
        impl<'r, K, V> Iterator for $type<'r, K, V> {
            type Item = &'r $item;

            #[inline]
            fn next(&mut self) -> Option<Self::Item> {
                self.iter.next().map(|entry| entry.$index)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.iter.size_hint()
            }
        }

        impl<K, V> DoubleEndedIterator for $type<'_, K, V> {
            #[inline]
            fn next_back(&mut self) -> Option<Self::Item> {
                self.iter.next_back().map(|entry| entry.$index)
            }
        }

        impl<K, V> ExactSizeIterator for $type<'_, K, V> {}
        impl<K, V> FusedIterator for $type<'_, K, V> {}

        impl<K, V> Clone for $type<'_, K, V> {
            fn clone(&self) -> Self {
                Self { iter: self.iter.clone() }
            }
        }

        impl<K, V> fmt::Debug for $type<'_, K, V>
        where
            $item: fmt::Debug,
        {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_list().entries(self.clone()).finish()
            }
        }
    };
}

half!(Keys, K, 0);
half!(Values, V, 1);
