//! Splits: the one part of the map that is made of transactions.
//!
//! A full leaf is replaced by one or two new ones, which are filled before anything leads to them.
//! **The commit links them, and frees the old leaf.** A crash before it leaves the old leaf with
//! its valid entries; a crash after it leaves the new ones, in which all entries are valid that the
//! old one had, valid or waiting. So what was recoverable stays so.
//!
//! Lines of the old leaf are forgotten before the commit, because its memory may be given away as
//! soon as that is done; if it fails, the leaf is flushed whole.

use super::leaf::{CAPACITY, LeafAt, RelaxedLeaf};
use super::open::{MapCore, OpenRelaxedMap, is_cloned};
use super::writer::RelaxedWriter;
use super::{PlainKey, PlainValue, RelaxedHeader};
use crate::shared::{DESTROYED, OrLost, log, range};
use cenote::unlogged::refused;
use cenote::{Ptr, Result, Tx};
use cenote_medium::planted::{Bug, GroupBug, planted};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Entries that a leaf keeps when one behind all others starts a leaf of its own.
const NEARLY_FULL: usize = CAPACITY - CAPACITY / 8;

type LeafPtr<K, V> = Ptr<RelaxedLeaf<K, V>>;

/// That the index had for a key what a lookup has just found. It has not if the key's `Ord` changes
/// its mind: then the old leaf still has its place, and must not be freed, or another one has lost
/// its own. Each leaf has one place, even if `Ord` lies.
fn is_as_said<K, V>(had: Option<LeafPtr<K, V>>, said: Option<LeafPtr<K, V>>) -> Result<()> {
    if had == said {
        return Ok(());
    }
    Err(refused("keys of the map are in no order: `Ord` of their type contradicts itself".into()))
}

impl<K: PlainKey, V: PlainValue> MapCore<K, V> {
    /// Sees to it that the leaf of a key has a free slot.
    pub(super) fn make_room(&self, key: &K) -> Result<()> {
        self.pool.unlogged()?;
        let mut held = None;
        let mut replaced = None;
        let done = self.pool.write(|tx| -> Result<()> {
            let writer = held.insert(self.writer()?);
            replaced = self.split(tx, writer, key)?;
            if let Some(old) = replaced {
                self.groups.forget(Self::range_of(old.ptr()));
            }
            Ok(())
        });
        let Some(mut writer) = held else { return done };
        match (done, replaced) {
            (Ok(()), old) => {
                if let Some(old) = old {
                    writer.pending.forget(old);
                }
                if planted(Bug::Group(GroupBug::SplitNotQuiesced)) {
                    return Ok(());
                }
                let settled = self.pool.settle();
                writer.is_stuck = settled.is_err();
                settled
            }
            (Err(error), Some(old)) => {
                let old = Self::range_of(old.ptr());
                let start = core::ptr::with_exposed_provenance(old.start);
                // SAFETY: the leaf was not freed, and is mapped.
                unsafe { self.persistence.persist(start, old.len()) };
                Err(error)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Splits the leaf of a key, if it is full; returns it if others have taken its place.
    fn split(
        &self,
        tx: &mut Tx<'_>,
        writer: &mut RelaxedWriter<K, V>,
        key: &K,
    ) -> Result<Option<LeafAt<K, V>>> {
        let RelaxedHeader { first, index, .. } = *self.header(tx)?;
        let Some((least, leaf)) = self.header(tx)?.leaf_for(tx, key)? else {
            let leaf = self.fresh(tx, None, &[])?;
            // SAFETY: a field of a live header, which was just read; the leaf has a value.
            unsafe {
                log(tx, &[range(place!(self.map.header, first))])?;
                place!(self.map.header, first).write(Some(leaf));
            }
            return Ok(None);
        };
        // SAFETY: a live leaf; the transaction holds the pool.
        let old = unsafe { LeafAt::new(leaf) };
        if self.adopt(writer, old).or_lost(tx)? < CAPACITY {
            // Another thread was faster.
            return Ok(None);
        }
        let mut slots = old.sorted(self.epoch).or_lost(tx)?;
        if planted(Bug::Group(GroupBug::SplitForgetsPending)) {
            slots.retain(|slot| old.tag(*slot).load(Ordering::Relaxed) != 0);
        }
        // SAFETY: published.
        let key_of = |slot: usize| unsafe { old.entry(slot) }.key;
        let is_last = index.last_key_value(tx)?.is_none_or(|(last, _)| least == Some(*last));
        let greatest = slots.last().map(|slot| key_of(*slot));
        if slots.len() >= NEARLY_FULL && is_last && greatest.is_some_and(|last| last < *key) {
            let right = self.fresh(tx, None, &[])?;
            tx.all_or_abort(|tx| is_as_said(index.insert(tx, *key, right)?, None))?;
            return Ok(None);
        }
        let middle = if slots.len() <= CAPACITY / 2 { slots.len() } else { slots.len() / 2 };
        let (lower, upper) = slots.split_at(middle);
        tx.all_or_abort(|tx| {
            let left = self.fresh(tx, Some(old), lower)?;
            if let Some(slot) = upper.first() {
                let right = self.fresh(tx, Some(old), upper)?;
                is_as_said(index.insert(tx, key_of(*slot), right)?, None)?;
            }
            match least {
                Some(least) => is_as_said(index.insert(tx, least, left)?, Some(leaf))?,
                None => {
                    debug_assert!(first == Some(leaf));
                    // SAFETY: as above.
                    unsafe {
                        log(tx, &[range(place!(self.map.header, first))])?;
                        place!(self.map.header, first).write(Some(left));
                    }
                }
            }
            // SAFETY: a live header and a live leaf, in one pool; nothing leads there any more,
            // because each leaf has one place, and that place has another one now.
            unsafe { tx.free_near(self.map.header, leaf) }
        })?;
        Ok(Some(old))
    }

    /// A leaf that nothing leads to, with entries of another one.
    fn fresh(
        &self,
        tx: &mut Tx<'_>,
        from: Option<LeafAt<K, V>>,
        slots: &[usize],
    ) -> Result<LeafPtr<K, V>> {
        // SAFETY: the header is alive. The block is fresh and filled here; slots are published.
        unsafe {
            let leaf = tx.alloc_unwritten::<_, RelaxedLeaf<K, V>>(self.map.header)?;
            LeafAt::new(leaf).fill(self.epoch, from, slots);
            Ok(leaf)
        }
    }
}

impl<K: PlainKey, V: PlainValue> OpenRelaxedMap<K, V> {
    /// Frees the map with all its nodes. Its handles are stale from now on.
    ///
    /// # Errors
    /// [`cenote::Error::Store`] if clones are in use, or the map is open for reading alone;
    /// otherwise as [`crate::BTreeMap::destroy`]. The map is closed then.
    pub fn destroy(self) -> Result<()> {
        let core = Arc::into_inner(self.core).ok_or_else(is_cloned)?;
        // Nothing waits for a leaf, and no line of one is written back later.
        core.flush()?;
        let header = core.map.header;
        core.pool.write(|tx| -> Result<()> {
            let RelaxedHeader { first, index, .. } = *core.header(tx)?;
            let leaves: Vec<LeafPtr<K, V>> =
                first.into_iter().chain(index.values(tx)?.copied()).collect();
            tx.all_or_abort(|tx| {
                // SAFETY: a live header in a pool that is held; leaves are live, and nothing leads
                // to them after the header is gone.
                unsafe {
                    log(tx, &[range(header.as_ptr())])?;
                    (*header.as_ptr()).closed = DESTROYED;
                    leaves.iter().try_for_each(|leaf| tx.free_near(header, *leaf))?;
                }
                index.destroy(tx)?;
                tx.free(header)
            })
        })
    }
}
