//! Removal: one slot and the tags. A page that gets empty leaves a chain of several; the number of
//! buckets stays.

use super::page::{HashPage, PageEntry, Set};
use super::{HashHeader, HashMap, bucket_of};
use crate::shared::{OrLost, log, log_and_free, open, range, release};
use cenote::persist::Persist;
use cenote::{Ptr, Result, Tx};
use core::borrow::Borrow;
use core::hash::Hash;

impl<K: Persist, V: Persist> HashMap<K, V> {
    /// Removes the entry of a key and returns its value. Logs 3 entries; where a page of a chain
    /// gets empty, 2, and 1 free. What the value owned is freed.
    ///
    /// # Errors
    /// As [`HashMap::get_mut`].
    pub fn remove<Q: Hash + Eq + ?Sized>(self, tx: &mut Tx<'_>, key: &Q) -> Result<Option<V>>
    where
        K: Borrow<Q>,
    {
        Ok(self.remove_entry(tx, key)?.map(|(_, value)| value))
    }

    /// Removes the entry of a key and returns it.
    ///
    /// # Errors
    /// As [`HashMap::remove`].
    pub fn remove_entry<Q: Hash + Eq + ?Sized>(
        self,
        tx: &mut Tx<'_>,
        key: &Q,
    ) -> Result<Option<(K, V)>>
    where
        K: Borrow<Q>,
    {
        let header = *open(tx, self.header)?;
        let hash = header.hash(key);
        // SAFETY: a live header; a key that is found is in a slot in use, of the bucket of its
        // hash.
        unsafe {
            match header.find(hash, key).or_lost(tx)? {
                Some((page, slot)) => self.take_out(tx, &header, hash, page, slot).map(Some),
                None => Ok(None),
            }
        }
    }

    /// Frees what the entry in a slot owns, and takes it out.
    ///
    /// # Safety
    /// `header` is a copy of the live header; the slot is in use, on a page of the bucket of
    /// `hash`.
    pub(super) unsafe fn take_out(
        self,
        tx: &mut Tx<'_>,
        header: &HashHeader<K, V>,
        hash: u64,
        page: Ptr<HashPage<K, V>>,
        slot: usize,
    ) -> Result<(K, V)> {
        // SAFETY: passed on.
        unsafe {
            let entry = range(HashPage::place(page, slot));
            release::<V, _, _, _>(tx, self.header, (page, entry), |tx| {
                self.unlink(tx, header, hash, page, slot)
            })
        }
    }

    /// Takes an entry that owns nothing out.
    ///
    /// # Safety
    /// As [`HashMap::take_out`].
    #[inline]
    unsafe fn unlink(
        self,
        tx: &mut Tx<'_>,
        header: &HashHeader<K, V>,
        hash: u64,
        page: Ptr<HashPage<K, V>>,
        slot: usize,
    ) -> Result<(K, V)> {
        // SAFETY: live blocks of a pool that is held, by contract; what is written was logged. A
        // freed page stays as it is until commit, and nothing leads to it after the write.
        unsafe {
            let len = range(place!(self.header, len));
            let Some(first) = header.link(bucket_of(hash, header.buckets)).or_lost(tx)? else {
                unreachable!("a bucket with a page has a segment")
            };
            let is_alone = *first == Some(page) && page.as_ref().next.is_none();
            if page.as_ref().tags.used().len() == 1 && !is_alone {
                let mut link = first;
                while let Some(other) = *link
                    && other != page
                {
                    other.touch().or_lost(tx)?;
                    link = place!(other, next);
                }
                log_and_free(tx, self.header, page, &[range(link), len])?;
                *link = page.as_ref().next;
                (*self.header.as_ptr()).len -= 1;
                let PageEntry { key, value } = HashPage::place(page, slot).read();
                return Ok((key, value));
            }
            log(tx, &[range(HashPage::place(page, slot)), range(place!(page, tags)), len])?;
            (*self.header.as_ptr()).len -= 1;
            let PageEntry { key, value } = HashPage::take(page, slot);
            Ok((key, value))
        }
    }

    /// Keeps the entries for which `keep` says so. All entries of a page are looked at before one
    /// of them is removed; a page that changes is logged whole, and stays, even if empty.
    ///
    /// # Errors
    /// As [`HashMap::remove`]; pages up to the one that failed have been looked at.
    pub fn retain(self, tx: &mut Tx<'_>, mut keep: impl FnMut(&K, &V) -> bool) -> Result<()> {
        let header = *open(tx, self.header)?;
        for bucket in 0..header.buckets {
            // SAFETY: a live header. The pages stay: `keep` has no access to the transaction.
            let mut next = unsafe { header.first_page(bucket) }.or_lost(tx)?;
            while let Some(page) = next {
                // SAFETY: a live page, logged before it is written; only used slots are looked at.
                unsafe {
                    self.retain_in(tx, page, &mut keep)?;
                    next = page.as_ref().next;
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// A live page of this map.
    unsafe fn retain_in(
        self,
        tx: &mut Tx<'_>,
        page: Ptr<HashPage<K, V>>,
        keep: &mut impl FnMut(&K, &V) -> bool,
    ) -> Result<()> {
        // SAFETY: by contract; logged before it is written.
        unsafe {
            let content = page.follow().or_lost(tx)?;
            let doomed = content.tags.used().filter(|&slot| {
                let entry = content.entry(slot);
                !keep(&entry.key, &entry.value)
            });
            let doomed = doomed.fold(Set::EMPTY, Set::with);
            if doomed.is_empty() {
                return Ok(());
            }
            let mut free_next = doomed;
            let take = |tx: &mut Tx<'_>| {
                log(tx, &[range(page.as_ptr()), range(place!(self.header, len))])?;
                for slot in doomed {
                    HashPage::take(page, slot);
                }
                (*self.header.as_ptr()).len -= doomed.len() as u64;
                Ok(())
            };
            match free_next.next() {
                Some(first) if V::OWNS => {
                    let entry = range(HashPage::place(page, first));
                    release::<V, _, _, _>(tx, self.header, (page, entry), |tx| {
                        for slot in free_next {
                            let entry = range(HashPage::place(page, slot));
                            tx.free_within(self.header, page.addr(), entry)?;
                        }
                        take(tx)
                    })
                }
                _ => take(tx),
            }
        }
    }
}
