//! Iteration over all entries, bucket by bucket, in no order that means anything.

use super::page::{HashPage, PageEntry, Set};
use super::{HashHeader, HashMap};
use crate::shared::open;
use cenote::lost::Faults;
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result};
use core::fmt;
use core::iter::FusedIterator;

/// The entries of a [`HashMap`].
pub struct Iter<'r, K, V> {
    header: &'r HashHeader<K, V>,
    /// The bucket after that of `page`.
    bucket: u64,
    page: Option<&'r HashPage<K, V>>,
    /// Slots of `page` that are still to come.
    slots: Set,
    remaining: usize,
    faults: &'r Faults,
}

impl<K: Persist, V: Persist> HashMap<K, V> {
    /// All entries.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<Iter<'r, K, V>> {
        let header = open(reader, self.header)?;
        let (remaining, faults) = (header.len as usize, reader.faults());
        Ok(Iter { header, bucket: 0, page: None, slots: Set::EMPTY, remaining, faults })
    }

    /// All keys.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn keys<'r>(self, reader: &'r impl Reader) -> Result<Keys<'r, K, V>> {
        Ok(Keys { iter: self.iter(reader)? })
    }

    /// All values.
    ///
    /// # Errors
    /// As [`HashMap::len`].
    pub fn values<'r>(self, reader: &'r impl Reader) -> Result<Values<'r, K, V>> {
        Ok(Values { iter: self.iter(reader)? })
    }
}

/// A page; `None`, and noted, if it cannot be read.
///
/// # Safety
/// A live page, which does not change as long as `'r` lasts.
#[inline(always)]
unsafe fn readable<'r, K, V>(
    page: Ptr<HashPage<K, V>>,
    faults: &Faults,
) -> Option<&'r HashPage<K, V>> {
    // SAFETY: passed on.
    faults.noted(unsafe { page.follow() })
}

/// The first page of a bucket, if it has one; `None`, and noted, if that cannot be read.
///
/// # Safety
/// A live header, and nothing changes as long as `'r` lasts.
#[inline(always)]
unsafe fn first_readable<'r, K, V>(
    header: &'r HashHeader<K, V>,
    bucket: u64,
    faults: &Faults,
) -> Option<Option<&'r HashPage<K, V>>> {
    // SAFETY: passed on; links lead to live pages.
    faults.noted(unsafe { header.first_page(bucket) }.and_then(|page| match page {
        // SAFETY: as above.
        Some(page) => unsafe { page.follow() }.map(Some),
        None => Ok(None),
    }))
}

impl<'r, K, V> Iter<'r, K, V> {
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
                let next = page.next.map(|next| unsafe { readable(next, self.faults) });
                let Some(next) = next.map_or(Some(None), |page| page.map(Some)) else { break };
                self.page = next;
            } else {
                if self.bucket >= self.header.buckets || self.remaining == 0 {
                    return None;
                }
                // SAFETY: a live header, borrowed from the reader.
                let first = unsafe { first_readable(self.header, self.bucket, self.faults) };
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

impl<'r, K, V> Iterator for Iter<'r, K, V> {
    type Item = (&'r K, &'r V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.step().map(|entry| (&entry.key, &entry.value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}
impl<K, V> FusedIterator for Iter<'_, K, V> {}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.clone()).finish()
    }
}

/// The keys of a [`HashMap`].
pub struct Keys<'r, K, V> {
    iter: Iter<'r, K, V>,
}

/// The values of a [`HashMap`].
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
