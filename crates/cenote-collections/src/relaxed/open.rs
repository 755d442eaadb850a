//! [`OpenRelaxedMap`]: reading, appending and deleting, beside readers.
//!
//! Invariants:
//!
//! * A map is open once in a program, in one epoch, which no other program had.
//! * Locks are taken in the order *pool, writer*. An append holds the pool as a reader, so views go
//!   on beside it, and no transaction runs; a split holds it as a writer, so no view is there. A
//!   split holds the writer lock until its log no longer covers the new leaves ([`Pool::settle`]).
//!   Nothing is appended before.
//! * Memory that groups count stays mapped: the map keeps its pool open, and drains at its end.

use super::leaf::{EPOCH_MAX, HEAD_LEN, LeafAt, RelaxedLeaf, print_of, tag_of};
use super::writer::{RelaxedWriter, WriterLock, WriterTurn};
use super::{PlainKey, PlainValue, RelaxedDurabilityMap, RelaxedHeader};
use crate::shared::{DESTROYED, OrLost, log, range};
use cenote::unlogged::refused;
use cenote::{Error, Pool, Ptr, Reader, Result};
use cenote_groups::{GroupOptions, UpdateGroup, UpdateGroups};
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, GroupBug, planted};
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Headers of the maps that this program has open.
static OPEN: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// The place of a map in [`OPEN`].
struct OpenPlace(u64);

impl OpenPlace {
    fn take(header: u64) -> Result<Self> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        match open.insert(header) {
            true => Ok(Self(header)),
            false => Err(refused(format!(
                "the map at {header:#x} is open already in this program: clone that one"
            ))),
        }
    }
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// A [`RelaxedDurabilityMap`] that is open. Clones are cheap, and for other threads. When the last
/// one is dropped, all is flushed, in a transaction too. Where the drop cannot have the pool,
/// because threads would wait for each other in a circle, it is as a crash: flush before.
pub struct OpenRelaxedMap<K: PlainKey, V: PlainValue> {
    pub(super) core: Arc<MapCore<K, V>>,
}

impl<K: PlainKey, V: PlainValue> Clone for OpenRelaxedMap<K, V> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

pub(super) struct MapCore<K: PlainKey, V: PlainValue> {
    pub(super) map: RelaxedDurabilityMap<K, V>,
    /// Of this opening; 0: the map is read alone.
    pub(super) epoch: u64,
    pub(super) persistence: Persistence,
    /// Dropped before the pool, and not in a forked child, whose other threads are gone.
    pub(super) groups: ManuallyDrop<UpdateGroups>,
    writer: ManuallyDrop<WriterLock<K, V>>,
    pid: u32,
    _place: OpenPlace,
    pub(super) pool: Pool,
}

impl<K: PlainKey, V: PlainValue> OpenRelaxedMap<K, V> {
    pub(super) fn open(
        map: RelaxedDurabilityMap<K, V>,
        pool: &Pool,
        options: GroupOptions,
    ) -> Result<Self> {
        map.header(&pool.read()?)?;
        let place = OpenPlace::take(map.header.addr())?;
        let (epoch, persistence) = match pool.is_writable() {
            false => (0, Persistence::PROCESS),
            true => {
                let persistence = pool.unlogged()?;
                keep_found(map, pool, persistence)?;
                (next_epoch(map, pool)?, persistence)
            }
        };
        let core = MapCore {
            map,
            epoch,
            persistence,
            groups: ManuallyDrop::new(UpdateGroups::new(persistence, options)),
            writer: ManuallyDrop::new(WriterLock::new()),
            pid: std::process::id(),
            _place: place,
            pool: pool.clone(),
        };
        Ok(Self { core: Arc::new(core) })
    }

    /// The map that is open.
    #[must_use]
    pub fn map(&self) -> RelaxedDurabilityMap<K, V> {
        self.core.map
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Error::Dangling`] if the reader is none of the map's pool, or the map is gone;
    /// [`Error::Store`] if a page cannot be read.
    #[inline]
    pub fn get<'r>(&self, reader: &'r impl Reader, key: &K) -> Result<Option<&'r V>> {
        let header = self.core.map.header(reader)?;
        let Some((_, leaf)) = header.leaf_for(reader, key)? else { return Ok(None) };
        // SAFETY: a live header leads to live leaves; the reader holds the pool. What is found is
        // published or valid.
        unsafe {
            let leaf = LeafAt::new(leaf);
            let found = leaf.find(key, self.core.epoch).or_lost(reader)?;
            Ok(found.map(|slot| &leaf.entry(slot).value))
        }
    }

    /// Number of entries, which are counted one by one.
    ///
    /// # Errors
    /// As [`OpenRelaxedMap::get`].
    pub fn count(&self, reader: &impl Reader) -> Result<usize> {
        Ok(self.iter(reader)?.count())
    }

    /// Number of entries that are not shown because their bytes are not what they were when they
    /// became durable. A crash leaves none; damage does, and a copy of files that were written
    /// meanwhile. Reads the whole map.
    ///
    /// # Errors
    /// As [`OpenRelaxedMap::get`].
    pub fn broken(&self, reader: &impl Reader) -> Result<usize> {
        let header = self.core.map.header(reader)?;
        let others = header.index.values(reader)?.copied();
        let mut broken = 0;
        for leaf in header.first.into_iter().chain(others) {
            // SAFETY: a live leaf, which the reader holds.
            broken += unsafe { LeafAt::new(leaf) }.broken().or_lost(reader)?;
        }
        Ok(broken)
    }

    /// Sets the value of a key, and returns the old one. No thread waits for memory; a full leaf is
    /// split by a transaction.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in a transaction of this thread on the pool, or if a leaf is full
    /// and this thread has a view of it; [`Error::NoRoom`] if the pool is full; [`Error::Store`] if
    /// the map is open for reading alone, or `Ord` of the keys contradicts itself or changes the
    /// map; [`Error::Dangling`] if it is gone.
    pub fn insert(&self, key: &K, value: &V) -> Result<Option<V>> {
        loop {
            if let Some(old) = self.core.append(key, value)? {
                return Ok(old);
            }
            self.core.make_room(key)?;
        }
    }

    /// Removes a key, and returns its value: by a mark.
    ///
    /// # Errors
    /// As [`OpenRelaxedMap::insert`], but that no leaf is ever full.
    pub fn remove(&self, key: &K) -> Result<Option<V>> {
        let core = &*self.core;
        let view = core.pool.read()?;
        let header = core.header(&view)?;
        let mut writer = core.writer()?;
        // SAFETY: the view holds the pool, so leaves are alive.
        unsafe { writer.pending.advance(&core.groups) };
        let Some((_, leaf)) = header.leaf_for(&view, key)? else { return Ok(None) };
        // SAFETY: as above.
        let leaf = unsafe { LeafAt::new(leaf) };
        let len = core.adopt(&mut writer, leaf).or_lost(&view)?;
        let Some(slot) = leaf.find(key, core.epoch).or_lost(&view)? else { return Ok(None) };
        // SAFETY: published.
        let old = unsafe { leaf.entry(slot) }.value;
        let of_key = leaf.all_of(key, len).or_lost(&view)?;
        let marks = leaf.marks().load(Ordering::Relaxed) | of_key;
        core.set_marks(&mut writer, leaf, marks);
        Ok(Some(old))
    }

    /// Makes all changes durable that returned before the call, of all threads. At level `process`
    /// they are, and nothing is done.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in a transaction of this thread on the pool; [`Error::Store`] if
    /// the store acknowledges nothing any more, or the map is open for reading alone.
    pub fn flush(&self) -> Result<()> {
        self.core.flush()
    }

    /// How many update groups are free: a map whose counters are all in use writes through.
    #[must_use]
    pub fn free_counters(&self) -> usize {
        self.core.groups.free_counters()
    }
}

impl<K: PlainKey, V: PlainValue> core::fmt::Debug for OpenRelaxedMap<K, V> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "OpenRelaxedMap({:?}, epoch {})", self.core.map, self.core.epoch)
    }
}

/// Makes durable what the map shows: a program that was killed may have left it in the cache, and
/// what this program has shown must not be lost when power fails later.
fn keep_found<K: PlainKey, V: PlainValue>(
    map: RelaxedDurabilityMap<K, V>,
    pool: &Pool,
    persistence: Persistence,
) -> Result<()> {
    if !persistence.is_power() || planted(Bug::Group(GroupBug::FoundNotKept)) {
        return Ok(());
    }
    let view = pool.read()?;
    let header = map.header(&view)?;
    let others = header.index.values(&view)?.copied();
    for leaf in header.first.into_iter().chain(others) {
        // SAFETY: a live leaf, which the view holds.
        unsafe {
            LeafAt::new(leaf).touch_head().or_lost(&view)?;
            persistence.flush(leaf.as_ptr().cast_const().cast(), HEAD_LEN);
        }
    }
    persistence.fence();
    view.finish()
}

/// Begins an epoch: **the commit makes all that is not believed after a crash void**.
fn next_epoch<K: PlainKey, V: PlainValue>(
    map: RelaxedDurabilityMap<K, V>,
    pool: &Pool,
) -> Result<u64> {
    let epoch = pool.write(|tx| -> Result<u64> {
        let epoch = map.header(tx)?.epoch.saturating_add(1);
        if epoch > EPOCH_MAX {
            return Err(refused(format!("the map's epoch is {epoch}: its header is damaged")));
        }
        if planted(Bug::Group(GroupBug::EpochKept)) && epoch > 1 {
            return Ok(epoch - 1);
        }
        // SAFETY: a word of a live header in a pool that is held, which was just read.
        unsafe {
            let place = place!(map.header, epoch);
            log(tx, &[range(place)])?;
            place.write(epoch);
        }
        Ok(epoch)
    })?;
    pool.settle()?;
    Ok(epoch)
}

impl<K: PlainKey, V: PlainValue> MapCore<K, V> {
    /// The header, if it is still that of the map which was opened.
    pub(super) fn header<'r>(&self, reader: &'r impl Reader) -> Result<&'r RelaxedHeader<K, V>> {
        let header = self.map.header(reader)?;
        // An archive may say that the map was never opened, and still have leaves.
        if self.epoch != 0 && header.epoch == self.epoch {
            return Ok(header);
        }
        let detail = match self.epoch {
            0 => "the pool was opened for reading alone, and so was the map",
            _ => "the map that was opened is gone, and another one has its place",
        };
        Err(refused(detail.into()))
    }

    pub(super) fn writer(&self) -> Result<WriterTurn<'_, K, V>> {
        self.writer.lock()
    }

    /// As [`LeafAt::adopt`]; marks that change go into a group, so that they are in memory before
    /// an entry that is appended later becomes valid.
    pub(super) fn adopt(
        &self,
        writer: &mut RelaxedWriter<K, V>,
        leaf: LeafAt<K, V>,
    ) -> crate::shared::Read<usize> {
        leaf.adopt(self.epoch, |marks| self.set_marks(writer, leaf, marks))
    }

    /// One store: **it commits the deletion of all slots that it marks**.
    fn set_marks(&self, writer: &mut RelaxedWriter<K, V>, leaf: LeafAt<K, V>, marks: u64) {
        if !self.persistence.is_power() || planted(Bug::Group(GroupBug::MarkNotCounted)) {
            leaf.marks().store(marks, Ordering::Release);
            return;
        }
        let group = self.groups.sgroup();
        // SAFETY: a word of a live leaf, mapped as long as the map is open, which drains at its
        // end.
        unsafe { group.store(leaf.marks().as_ptr(), marks) };
        writer.pending.stored(group);
    }

    /// Appends an entry, and returns the old value of its key. `None`: the leaf is full, or there
    /// is none.
    fn append(&self, key: &K, value: &V) -> Result<Option<Option<V>>> {
        let view = self.pool.read()?;
        let header = self.header(&view)?;
        let mut writer = self.writer()?;
        // SAFETY: the view holds the pool, so leaves are alive.
        unsafe { writer.pending.advance(&self.groups) };
        let Some((_, leaf)) = header.leaf_for(&view, key)? else { return Ok(None) };
        // SAFETY: as above.
        let leaf = unsafe { LeafAt::new(leaf) };
        let len = self.adopt(&mut writer, leaf).or_lost(&view)?;
        if len == super::leaf::CAPACITY {
            return Ok(None);
        }
        let old = leaf.find(key, self.epoch).or_lost(&view)?;
        // SAFETY: published.
        let old = old.map(|slot| unsafe { leaf.entry(slot) }.value);
        leaf.touch_slot(len).or_lost(&view)?;
        let tag = tag_of(key, value);
        if self.persistence.is_power() {
            let group = self.groups.sgroup();
            // SAFETY: a slot of a live leaf that is not published and has no tag, so no other
            // thread reads it; mapped as long as the map is open, which drains at its end.
            unsafe {
                write_slot(&group, leaf, len, (key, value));
                if planted(Bug::Group(GroupBug::TagBeforeDrained)) {
                    group.store(leaf.tag(len).as_ptr(), tag);
                }
            }
            writer.pending.written(group, leaf, (len, tag));
        } else {
            // SAFETY: as above.
            unsafe {
                (&raw mut (*leaf.slot(len)).key).write(*key);
                (&raw mut (*leaf.slot(len)).value).write(*value);
            }
            leaf.tag(len).store(tag, Ordering::Release);
        }
        leaf.set_print(len, print_of(key));
        leaf.publish(self.epoch, len + 1);
        Ok(Some(old))
    }

    /// Drains, makes what waited valid, and drains again: **the second drain's fence commits all
    /// that was appended or deleted before the call**.
    pub(super) fn flush(&self) -> Result<()> {
        self.pool.unlogged()?;
        let view = self.pool.read()?;
        // What waits for leaves of a map that is gone waits for good.
        self.header(&view)?;
        if !self.persistence.is_power() {
            return Ok(());
        }
        self.groups.drain();
        // SAFETY: the view holds the pool, so leaves are alive.
        unsafe { self.writer()?.pending.advance(&self.groups) };
        self.groups.drain();
        view.finish()
    }

    /// As [`MapCore::flush`], in a transaction of this thread on the pool: in it the map is dropped
    /// for good, and what it has taken must not be lost. The log has nothing of a leaf that is
    /// appended to, so an abort changes none.
    fn end_in_transaction(&self) {
        if !self.pool.has_here(self.map.header) {
            return;
        }
        let header = self.map.header.as_ptr();
        // SAFETY: a live header in a mapping, of a pool that this thread has alone.
        let (closed, epoch) = unsafe {
            if self.map.header.touch().is_err() {
                return;
            }
            ((&raw const (*header).closed).read(), (&raw const (*header).epoch).read())
        };
        if closed == DESTROYED || epoch != self.epoch {
            return;
        }
        self.groups.drain();
        if let Ok(mut writer) = self.writer() {
            // SAFETY: the transaction holds the pool; the map is alive, and so are its leaves.
            unsafe { writer.pending.advance(&self.groups) };
        }
    }

    /// Memory of a leaf.
    pub(super) fn range_of(leaf: Ptr<RelaxedLeaf<K, V>>) -> core::ops::Range<usize> {
        let start = leaf.addr() as usize;
        start..start + size_of::<RelaxedLeaf<K, V>>()
    }
}

/// Writes key and value.
///
/// # Safety
/// As [`UpdateGroup::write`], for the slot.
unsafe fn write_slot<K: PlainKey, V: PlainValue>(
    group: &UpdateGroup,
    leaf: LeafAt<K, V>,
    slot: usize,
    (key, value): (&K, &V),
) {
    let place = leaf.slot(slot);
    // SAFETY: passed on.
    unsafe {
        (&raw mut (*place).key).write(*key);
        (&raw mut (*place).value).write(*value);
        group.note(place.cast_const().cast(), size_of_val(&*place));
    }
}

impl<K: PlainKey, V: PlainValue> Drop for MapCore<K, V> {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        let waits = self.epoch != 0 && self.persistence.is_power();
        if waits && self.flush().is_err() {
            self.end_in_transaction();
            // Memory of the pool is about to go away.
            self.groups.drain();
        }
        // SAFETY: this is the only place that drops them, and nothing uses them afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.writer);
            ManuallyDrop::drop(&mut self.groups);
        }
    }
}

/// The error of an operation for which the map must be open once.
pub(super) fn is_cloned() -> Error {
    refused("clones of the map are in use: drop them first".into())
}
