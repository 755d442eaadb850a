//! Iteration over all entries, bucket by bucket, in no order that means anything.

use super::page::{HashPage, PageEntry, Set};
use super::{HashHeader, HashMap};
use crate::shared::open;
use cenote::lost::Faults;
use cenote::persist::Persist;
use cenote::shift::{InPlace, Shift};
use cenote::{Ptr, Reader, Result};
use core::fmt;
use core::iter::FusedIterator;

/// The entries of a [`HashMap`].
pub struct Iter<'r, K, V, S = InPlace> {
    header: &'r HashHeader<K, V>,
    /// The bucket after that of `page`.
    bucket: u64,
    page: Option<&'r HashPage<K, V>>,
    /// Slots of `page` that are still to come.
    slots: Set,
    remaining: usize,
    faults: &'r Faults,
    shift: S,
}

impl<K: Persist, V: Persist> HashMap<K, V> {
    /// All entries.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn iter<'r, R: Reader>(self, reader: &'r R) -> Result<Iter<'r, K, V, R::Shift>> {
        let header = open(reader, self.header)?;
        let (remaining, faults, shift) = (header.len as usize, reader.faults(), reader.shift());
        Ok(Iter { header, bucket: 0, page: None, slots: Set::EMPTY, remaining, faults, shift })
    }

    /// All keys.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn keys<'r, R: Reader>(self, reader: &'r R) -> Result<Keys<'r, K, V, R::Shift>> {
        Ok(Keys { iter: self.iter(reader)? })
    }

    /// All values.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn values<'r, R: Reader>(self, reader: &'r R) -> Result<Values<'r, K, V, R::Shift>> {
        Ok(Values { iter: self.iter(reader)? })
    }
}

/// A page; `None`, and noted, if it cannot be read.
///
/// # Safety
/// A live page, which does not change as long as `'r` lasts.
#[inline(always)]
unsafe fn readable<'r, K, V, S: Shift>(
    page: Ptr<HashPage<K, V>>,
    (faults, shift): (&Faults, S),
) -> Option<&'r HashPage<K, V>> {
    // SAFETY: passed on.
    faults.noted(unsafe { page.follow_at(shift) })
}

/// The first page of a bucket, if it has one; `None`, and noted, if that cannot be read.
///
/// # Safety
/// A live header, and nothing changes as long as `'r` lasts.
#[inline(always)]
unsafe fn first_readable<'r, K, V, S: Shift>(
    header: &'r HashHeader<K, V>,
    bucket: u64,
    (faults, shift): (&Faults, S),
) -> Option<Option<&'r HashPage<K, V>>> {
    // SAFETY: passed on; links lead to live pages.
    faults.noted(unsafe { header.first_page(bucket, shift) }.and_then(|page| match page {
        // SAFETY: as above.
        Some(page) => unsafe { page.follow_at(shift) }.map(Some),
        None => Ok(None),
    }))
}

impl<'r, K, V, S: Shift> Iter<'r, K, V, S> {
    #[inline]
    fn step(&mut self) -> Option<&'r PageEntry<K, V>> {
        loop {
            if let Some(page) = self.page {
                if let Some(slot) = self.slots.next() {
                    self.remaining = self.remaining.saturating_sub(1);
                    // SAFETY: a slot in use; nothing changes as long as the reader is borrowed.
                    return Some(unsafe { page.entry(slot) });
                }
                // SAFETY: links lead to live pages.
                let next =
                    page.next.map(|next| unsafe { readable(next, (self.faults, self.shift)) });
                let Some(next) = next.map_or(Some(None), |page| page.map(Some)) else { break };
                self.page = next;
            } else {
                if self.bucket >= self.header.buckets || self.remaining == 0 {
                    return None;
                }
                // SAFETY: a live header, borrowed from the reader.
                let first =
                    unsafe { first_readable(self.header, self.bucket, (self.faults, self.shift)) };
                let Some(first) = first else { break };
                self.page = first;
                self.bucket += 1;
            }
            self.slots = self.page.map_or(Set::EMPTY, |page| page.tags.used());
        }
        // A page cannot be read.
        (self.page, self.slots, self.remaining) = (None, Set::EMPTY, 0);
        None
    }
}

impl<'r, K, V, S: Shift> Iterator for Iter<'r, K, V, S> {
    type Item = (&'r K, &'r V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.step().map(|entry| (&entry.key, &entry.value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<K, V, S: Shift> ExactSizeIterator for Iter<'_, K, V, S> {}
impl<K, V, S: Shift> FusedIterator for Iter<'_, K, V, S> {}

impl<K, V, S: Shift> Clone for Iter<'_, K, V, S> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S: Shift> fmt::Debug for Iter<'_, K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.clone()).finish()
    }
}

/// The keys of a [`HashMap`].
pub struct Keys<'r, K, V, S = InPlace> {
    iter: Iter<'r, K, V, S>,
}

/// The values of a [`HashMap`].
pub struct Values<'r, K, V, S = InPlace> {
    iter: Iter<'r, K, V, S>,
}

macro_rules! half {
    ($type:ident, $item:ident, $index:tt) => {
        impl<'r, K, V, S: Shift> Iterator for $type<'r, K, V, S> {
            type Item = &'r $item;

            #[inline]
            fn next(&mut self) -> Option<Self::Item> {
                self.iter.next().map(|entry| entry.$index)
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                self.iter.size_hint()
            }
        }

        impl<K, V, S: Shift> ExactSizeIterator for $type<'_, K, V, S> {}
        impl<K, V, S: Shift> FusedIterator for $type<'_, K, V, S> {}

        impl<K, V, S: Shift> Clone for $type<'_, K, V, S> {
            fn clone(&self) -> Self {
                Self { iter: self.iter.clone() }
            }
        }

        impl<K, V, S: Shift> fmt::Debug for $type<'_, K, V, S>
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
