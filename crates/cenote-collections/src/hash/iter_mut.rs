//! Iteration over values that are to be changed.
//!
//! All values are logged before the first is handed out: so iteration cannot fail, and takes one
//! fence for many entries. Where it is less to log a page as a whole than value by value, it is.
//! Each page is in one chain of one bucket, once, so no value is handed out twice. Pages are read
//! through raw pointers, field by field, since values of them are borrowed.

use super::page::{HashPage, Set};
use super::{HashHeader, HashMap};
use crate::shared::{self, Read, lines, log_many, open};
use cenote::persist::Persist;
use cenote::{Ptr, Result, Tx};
use core::fmt;
use core::iter::FusedIterator;
use core::marker::PhantomData;

/// All pages, bucket by bucket, each with its used slots. The first to go over them touches them.
struct Pages<K, V> {
    header: HashHeader<K, V>,
    /// The bucket after that of `next`.
    bucket: u64,
    next: Option<Ptr<HashPage<K, V>>>,
}

impl<K, V> Clone for Pages<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Pages<K, V> {}

/// A page, and its used slots.
type Step<K, V> = (Ptr<HashPage<K, V>>, Set);

impl<K, V> Pages<K, V> {
    fn step(&mut self) -> Read<Option<Step<K, V>>> {
        // SAFETY: what a live header says, in a transaction that is borrowed exclusively; links
        // lead to live pages, of which two words are copied out.
        unsafe {
            while self.next.is_none() && self.bucket < self.header.buckets {
                self.next = self.header.first_page(self.bucket)?;
                self.bucket += 1;
            }
            let Some(page) = self.next else { return Ok(None) };
            page.touch()?;
            self.next = (*page.as_ptr()).next;
            Ok(Some((page, (*page.as_ptr()).tags.used())))
        }
    }
}

impl<K, V> Iterator for Pages<K, V> {
    type Item = Read<Step<K, V>>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            (self.next, self.bucket) = (None, self.header.buckets);
        }
        step.transpose()
    }
}

/// All entries of a [`HashMap`], with values to be changed.
pub struct IterMut<'t, K, V> {
    pages: Pages<K, V>,
    page: Option<Ptr<HashPage<K, V>>>,
    /// Slots of `page` that are still to come.
    slots: Set,
    remaining: usize,
    values: PhantomData<&'t mut (K, V)>,
}

impl<K: Persist, V: Persist> HashMap<K, V> {
    /// All entries, with values to be changed. Logs all of them.
    ///
    /// # Errors
    /// As [`HashMap::get_mut`].
    pub fn iter_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<IterMut<'t, K, V>> {
        refuse_owners!(V);
        let header = *open(tx, self.header)?;
        let pages = Pages { header, bucket: 0, next: None };
        let ranges = pages.flat_map(|step| {
            let (lost, page, slots) = match step {
                Ok((page, slots)) => (None, Some(page), slots),
                Err(lost) => (Some(Err(lost)), None, Set::EMPTY),
            };
            let whole = lines(size_of::<HashPage<K, V>>()) < slots.len() * lines(size_of::<V>());
            let all = page.filter(|_| whole).map(|page| shared::range(page.as_ptr()));
            let each = if whole { Set::EMPTY } else { slots };
            // SAFETY: slots of a live page.
            let each = each.filter_map(move |slot| unsafe {
                Some(shared::range(&raw mut (*HashPage::place(page?, slot)).value))
            });
            lost.into_iter().chain(all.into_iter().chain(each).map(Ok))
        });
        // SAFETY: places of live pages, in a pool that the transaction holds.
        unsafe { log_many(tx, ranges)? };
        let remaining = header.len as usize;
        Ok(IterMut { pages, page: None, slots: Set::EMPTY, remaining, values: PhantomData })
    }

    /// All values, to be changed. Logs all of them.
    ///
    /// # Errors
    /// As [`HashMap::get_mut`].
    pub fn values_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<ValuesMut<'t, K, V>> {
        Ok(ValuesMut { iter: self.iter_mut(tx)? })
    }
}

impl<'t, K, V> Iterator for IterMut<'t, K, V> {
    type Item = (&'t K, &'t mut V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (Some(page), Some(slot)) = (self.page, self.slots.next()) {
                self.remaining = self.remaining.saturating_sub(1);
                // SAFETY: an entry of a live page, logged, which is handed out once (see the
                // module), while the transaction is borrowed exclusively.
                return Some(unsafe {
                    let entry = HashPage::place(page, slot);
                    (&(*entry).key, &mut (*entry).value)
                });
            }
            // All pages were touched when they were logged.
            let (page, slots) = self.pages.next()?.ok()?;
            (self.page, self.slots) = (Some(page), slots);
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<K, V> ExactSizeIterator for IterMut<'_, K, V> {}
impl<K, V> FusedIterator for IterMut<'_, K, V> {}

impl<K, V> fmt::Debug for IterMut<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterMut").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

/// All values of a [`HashMap`], to be changed.
#[derive(Debug)]
pub struct ValuesMut<'t, K, V> {
    iter: IterMut<'t, K, V>,
}

impl<'t, K, V> Iterator for ValuesMut<'t, K, V> {
    type Item = &'t mut V;

    fn next(&mut self) -> Option<Self::Item> {
        self.iter.next().map(|(_, value)| value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.iter.size_hint()
    }
}

impl<K, V> ExactSizeIterator for ValuesMut<'_, K, V> {}
impl<K, V> FusedIterator for ValuesMut<'_, K, V> {}
