//! Iteration over values that are to be changed.
//!
//! All values of the range are logged before the first is handed out: so iteration cannot fail, and
//! takes one fence for many entries. Where it is less to log a leaf's entries as a whole than value
//! by value, they are.
//!
//! Why no value is handed out twice, even if `Ord` lies about where a range begins and ends: the
//! iterators go forward only, and following the links of the leaves visits each leaf once. (From
//! both ends, two positions that a lie made pass each other would meet the same entries.) Leaves
//! are read through raw pointers, field by field, since values of them are borrowed.

use super::BTreeMap;
use super::iter::Range;
use super::node::{Leaf, NodeEntry, Slots};
use crate::shared::{self, Read, lines, log_many};
use cenote::persist::Persist;
use cenote::{Ptr, Result, Tx};
use core::borrow::Borrow;
use core::fmt;
use core::iter::FusedIterator;
use core::marker::PhantomData;
use core::ops::RangeBounds;

/// The leaves of a range, each with the positions that belong to it.
struct LeafParts<K, V> {
    /// What comes next, and from which position on.
    next: Option<(Ptr<Leaf<K, V>>, usize)>,
    /// The last leaf, and the position behind the last entry.
    end: Option<(Ptr<Leaf<K, V>>, usize)>,
}

impl<K, V> Clone for LeafParts<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for LeafParts<K, V> {}

/// A leaf, and positions in it.
type Part<K, V> = (Ptr<Leaf<K, V>>, core::ops::Range<usize>);

impl<K, V> LeafParts<K, V> {
    /// The same, each touched before it is read; the end after one that cannot be.
    fn touched(mut self) -> impl Iterator<Item = Read<Part<K, V>>> {
        core::iter::from_fn(move || {
            let (leaf, _) = self.next?;
            // SAFETY: a leaf of a live map.
            if let Err(lost) = unsafe { leaf.touch() } {
                self.next = None;
                return Some(Err(lost));
            }
            self.next().map(Ok)
        })
    }
}

/// All of them can be read: they were when they were logged.
impl<K, V> Iterator for LeafParts<K, V> {
    type Item = Part<K, V>;

    fn next(&mut self) -> Option<Self::Item> {
        let (leaf, from) = self.next?;
        // SAFETY: a leaf of a live map, in a transaction that is borrowed exclusively; two words
        // are copied out of it.
        let (len, next) =
            unsafe { ((*leaf.as_ptr()).entries.permutation.len(), (*leaf.as_ptr()).next) };
        if let Some((last, to)) = self.end
            && last == leaf
        {
            self.next = None;
            return Some((leaf, from..to.min(len)));
        }
        self.next = next.map(|next| (next, 0));
        Some((leaf, from..len))
    }
}

/// The entries of a [`BTreeMap`] in a range of keys, by rising key, with values to be changed.
pub struct RangeMut<'t, K, V> {
    parts: LeafParts<K, V>,
    leaf: Option<Ptr<Leaf<K, V>>>,
    positions: core::ops::Range<usize>,
    values: PhantomData<&'t mut (K, V)>,
}

impl<K: Persist, V: Persist> BTreeMap<K, V> {
    /// All entries by rising key, with values to be changed. Logs all of them.
    ///
    /// ```
    /// # use cenote_collections::BTreeMap;
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let pool = cenote::Store::open(directory.path())?.pool("prices")?;
    /// pool.write(|tx| -> cenote::Result<()> {
    ///     let prices = BTreeMap::from_iter(tx, [(1_u64, 100_u64), (2, 250)])?;
    ///     for (_, price) in prices.iter_mut(tx)? {
    ///         *price += *price / 10;
    ///     }
    ///     assert!(prices.values(tx)?.eq(&[110, 275]));
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`BTreeMap::get_mut`].
    pub fn iter_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<IterMut<'t, K, V>> {
        let iter = self.iter(tx)?;
        let remaining = iter.len();
        let parts = parts_of(&iter.range);
        Ok(IterMut { range: RangeMut::logged(tx, parts)?, remaining })
    }

    /// All values by rising key, to be changed. Logs all of them.
    ///
    /// # Errors
    /// As [`BTreeMap::get_mut`].
    pub fn values_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<ValuesMut<'t, K, V>> {
        Ok(ValuesMut { iter: self.iter_mut(tx)? })
    }

    /// The entries whose keys lie in a range, by rising key, with values to be changed. Logs all of
    /// them.
    ///
    /// # Errors
    /// As [`BTreeMap::get_mut`].
    pub fn range_mut<'t, Q: Ord + ?Sized>(
        self,
        tx: &'t mut Tx<'_>,
        range: impl RangeBounds<Q>,
    ) -> Result<RangeMut<'t, K, V>>
    where
        K: Borrow<Q>,
    {
        let parts = parts_of(&self.range(tx, range)?);
        RangeMut::logged(tx, parts)
    }
}

/// The leaves of a range, as places that can be written.
fn parts_of<K, V>(range: &Range<'_, K, V>) -> LeafParts<K, V> {
    // SAFETY: leaves of a live map; they are followed only while the transaction that the range was
    // borrowed from is.
    let place =
        |leaf: &Leaf<K, V>| unsafe { Ptr::from_addr(core::ptr::from_ref(leaf).addr() as u64) };
    match range.ends() {
        Some(((first, from), (last, to))) => LeafParts {
            next: place(first).map(|leaf| (leaf, from)),
            end: place(last).map(|leaf| (leaf, to)),
        },
        None => LeafParts { next: None, end: None },
    }
}

impl<'t, K: Persist, V: Persist> RangeMut<'t, K, V> {
    /// Logs the values of all parts.
    fn logged(tx: &'t mut Tx<'_>, parts: LeafParts<K, V>) -> Result<Self> {
        refuse_owners!(V);
        let ranges = parts.touched().flat_map(|part| {
            let (lost, leaf, positions) = match part {
                Ok((leaf, positions)) => (None, Some(leaf), positions),
                Err(lost) => (Some(Err(lost)), None, 0..0),
            };
            // SAFETY: a live leaf; `place!` makes no reference.
            let entries = leaf.map(|leaf| unsafe { place!(leaf, entries) });
            let whole = lines(size_of::<Slots<NodeEntry<K, V>>>())
                < positions.len() * lines(size_of::<V>());
            let all = entries.filter(|_| whole).map(shared::range);
            let each = if whole { 0..0 } else { positions };
            // SAFETY: positions below the leaf's length.
            let each = each.filter_map(move |at| unsafe {
                Some(shared::range(&raw mut (*Slots::place(entries?, at)).value))
            });
            lost.into_iter().chain(all.into_iter().chain(each).map(Ok))
        });
        // SAFETY: places of live leaves, in a pool that the transaction holds.
        unsafe { log_many(tx, ranges)? };
        Ok(Self { parts, leaf: None, positions: 0..0, values: PhantomData })
    }
}

impl<'t, K, V> Iterator for RangeMut<'t, K, V> {
    type Item = (&'t K, &'t mut V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let (Some(leaf), Some(at)) = (self.leaf, self.positions.next()) {
                // SAFETY: an entry of a live leaf, logged, which is handed out once (see the
                // module), while the transaction is borrowed exclusively.
                return Some(unsafe {
                    let entry = Slots::place(place!(leaf, entries), at);
                    (&(*entry).key, &mut (*entry).value)
                });
            }
            let (leaf, positions) = self.parts.next()?;
            (self.leaf, self.positions) = (Some(leaf), positions);
        }
    }
}

impl<K, V> FusedIterator for RangeMut<'_, K, V> {}

impl<K, V> fmt::Debug for RangeMut<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeMut").finish_non_exhaustive()
    }
}

/// All entries of a [`BTreeMap`], by rising key, with values to be changed.
#[derive(Debug)]
pub struct IterMut<'t, K, V> {
    range: RangeMut<'t, K, V>,
    remaining: usize,
}

impl<'t, K, V> Iterator for IterMut<'t, K, V> {
    type Item = (&'t K, &'t mut V);

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.range.next()?;
        self.remaining -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<K, V> ExactSizeIterator for IterMut<'_, K, V> {}
impl<K, V> FusedIterator for IterMut<'_, K, V> {}

/// All values of a [`BTreeMap`], by rising key, to be changed.
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
