//! Insertion, and the split of one bucket that goes with it when the map is full enough.
//!
//! A split is decided and hashed first (the caller's code runs here), then the new bucket is built
//! of fresh pages, then everything is logged with one fence, then the entries that moved are
//! cleared in the old bucket and the new bucket is linked.

use super::page::{
    Directory, FAN_OUT, FAN_OUT_BITS, HashPage, PageEntry, SLOTS, Segment, Set, Tags,
};
use super::{HashHeader, HashMap, Slot, bucket_of, child_of};
use crate::shared::{OrLost, Range, Read, build, log, log_with, open, range, release, span};
use cenote::persist::Persist;
use cenote::{Ptr, Result, Tx};
use core::hash::Hash;

/// Entries of a page up to this size are logged with their page, larger ones one by one.
const WHOLE_SIZE_MAX: usize = 64;

/// A bucket that is going to be split.
struct Split<K, V> {
    /// Number of the new bucket.
    bucket: u64,
    /// Pages of the old bucket, with the slots whose entries move.
    moves: Vec<(Ptr<HashPage<K, V>>, Set)>,
}

/// Where the new entry goes.
enum InsertTarget<K, V> {
    /// An unused slot.
    Slot(Ptr<HashPage<K, V>>, usize),
    /// A fresh page, in front of those that this link leads to.
    Page(Ptr<HashPage<K, V>>, *mut Option<Ptr<HashPage<K, V>>>),
    /// The new bucket; it is there already, at this place.
    Done(*mut PageEntry<K, V>),
}

/// The first page of a new bucket, and the place of the entry that was put there last.
type Built<K, V> = (Option<Ptr<HashPage<K, V>>>, *mut PageEntry<K, V>);

/// How the new bucket gets into the tree.
struct Grown<K, V> {
    /// Its pages.
    first: Option<Ptr<HashPage<K, V>>>,
    attach: Attach<K, V>,
}

/// Where a new bucket is linked.
enum Attach<K, V> {
    /// In a segment that is there.
    Segment(*mut Option<Ptr<HashPage<K, V>>>),
    /// In a fresh segment, with fresh directories above it, linked here.
    Child(*mut Option<Ptr<Segment<K, V>>>, Ptr<Segment<K, V>>),
    /// The same, as second child of a fresh root.
    Root(Ptr<Directory<K, V>>),
}

impl<K: Persist + Hash + Eq, V: Persist> HashMap<K, V> {
    /// Sets the value of a key and returns the old one. Logs 3 entries; 1 if the key is
    /// there; more where a bucket splits, or its pages are full (1 allocation). What the old value
    /// owned is freed.
    ///
    /// A key that is there stays as it is, as in std.
    ///
    /// # Errors
    /// As [`HashMap::len`], and [`cenote::Error::Tx`] if the pool or the log is full.
    pub fn insert(self, tx: &mut Tx<'_>, key: K, value: V) -> Result<Option<V>> {
        let header = *open(tx, self.header)?;
        let hash = header.hash(&key);
        // SAFETY: a live header, whose links lead to live blocks of a pool that is held; logged
        // before it is written.
        unsafe {
            if let Some((page, slot)) = header.find::<K>(hash, &key).or_lost(tx)? {
                let place = &raw mut (*HashPage::place(page, slot)).value;
                let old = release::<V, _, _, _>(tx, self.header, (page, range(place)), |tx| {
                    log(tx, &[range(place)])?;
                    Ok(place.replace(value))
                });
                return old.map(Some);
            }
            self.add(tx, &header, hash, PageEntry { key, value }).map(|_| None)
        }
    }

    /// Adds an entry whose key is not there, and returns its place.
    ///
    /// # Safety
    /// `header` is a copy of the live header, and `hash` is the key's hash by it.
    #[inline]
    pub(super) unsafe fn add(
        self,
        tx: &mut Tx<'_>,
        header: &HashHeader<K, V>,
        hash: u64,
        entry: PageEntry<K, V>,
    ) -> Result<*mut PageEntry<K, V>> {
        // SAFETY: live blocks of a pool that is held, by contract. What is written was logged, or
        // is fresh.
        unsafe {
            if (header.len + 1) * 2 > header.buckets * SLOTS as u64 && header.root().is_some() {
                return self.insert_and_split(tx, header, hash, entry);
            }
            let len = place!(self.header, len);
            let place = match header.link(bucket_of(hash, header.buckets)).or_lost(tx)? {
                Some(link) => match unused(*link).or_lost(tx)? {
                    Some((page, slot)) => {
                        log(
                            tx,
                            &[
                                range(HashPage::place(page, slot)),
                                range(place!(page, tags)),
                                range(len),
                            ],
                        )?;
                        HashPage::put(page, slot, Tags::of(hash), entry)
                    }
                    None => {
                        let page = self.fresh_page(tx, *link, hash, entry)?;
                        log_with(tx, page, &[range(link), range(len)])?;
                        *link = Some(page);
                        HashPage::place(page, 0)
                    }
                },
                None => {
                    // The first entry ever: bucket 0.
                    let (page, segment) = tx.attempt(|tx| {
                        let page = self.fresh_page(tx, None, hash, entry)?;
                        let mut pages = [None; FAN_OUT];
                        pages[0] = Some(page);
                        let segment = tx.alloc_near(self.header, Segment { pages })?;
                        log(tx, &[range(self.header.as_ptr())])?;
                        Ok((page, segment))
                    })?;
                    (*self.header.as_ptr()).segment = Some(segment);
                    HashPage::place(page, 0)
                }
            };
            *len += 1;
            Ok(place)
        }
    }

    /// A map with what the iterator yields, in the transaction's first pool. Of entries with one
    /// key the last counts.
    ///
    /// # Errors
    /// As [`HashMap::insert`]; then there is no map.
    pub fn from_iter(tx: &mut Tx<'_>, entries: impl IntoIterator<Item = (K, V)>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, entries), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Adds what the iterator yields, one entry after the other.
    ///
    /// # Errors
    /// As [`HashMap::insert`]; entries before the one that failed are in the map.
    pub fn extend(self, tx: &mut Tx<'_>, entries: impl IntoIterator<Item = (K, V)>) -> Result<()> {
        entries.into_iter().try_for_each(|(key, value)| self.insert(tx, key, value).map(drop))
    }

    /// A fresh page with one entry.
    ///
    /// # Safety
    /// The header is live.
    unsafe fn fresh_page(
        self,
        tx: &mut Tx<'_>,
        next: Option<Ptr<HashPage<K, V>>>,
        hash: u64,
        entry: PageEntry<K, V>,
    ) -> Result<Ptr<HashPage<K, V>>> {
        // SAFETY: the header is live by contract; the page is fresh and empty.
        unsafe {
            let page = tx.alloc_near(self.header, HashPage::new(next))?;
            HashPage::put(page, 0, Tags::of(hash), entry);
            Ok(page)
        }
    }

    /// Inserts an entry whose key is not there, splits one bucket, and returns the entry's place.
    ///
    /// # Safety
    /// `header` is a copy of the live header; the map has its first segment.
    unsafe fn insert_and_split(
        self,
        tx: &mut Tx<'_>,
        header: &HashHeader<K, V>,
        hash: u64,
        entry: PageEntry<K, V>,
    ) -> Result<*mut PageEntry<K, V>> {
        // SAFETY: live blocks of a pool that is held. Written bytes were logged before, or are
        // fresh; between the first write and the last nothing fails.
        unsafe {
            // What moves. The caller's `Hash` runs here for the last time.
            let split = plan(header).or_lost(tx)?;
            let home = bucket_of(hash, header.buckets + 1);
            let is_new = home == split.bucket;
            let (newcomer, entry) = if is_new { (Some(entry), None) } else { (None, Some(entry)) };
            let newcomer = newcomer.map(|entry| (Tags::of(hash), entry));
            let (grown, target) =
                tx.attempt(|tx| self.prepare(tx, header, &split, home, newcomer))?;

            // Pages of which nothing moves are not logged.
            for &(page, moved) in split.moves.iter().filter(|(_, moved)| !moved.is_empty()) {
                for slot in moved {
                    HashPage::place(page, slot).write_bytes(0, 1);
                }
                (*page.as_ptr()).tags = page.as_ref().tags.without(moved);
            }
            let place = match (target, entry) {
                (InsertTarget::Slot(page, slot), Some(entry)) => {
                    HashPage::put(page, slot, Tags::of(hash), entry)
                }
                (InsertTarget::Page(page, link), Some(entry)) => {
                    *link = Some(page);
                    HashPage::put(page, 0, Tags::of(hash), entry)
                }
                (InsertTarget::Done(place), _) => place,
                (_, None) => unreachable!("an entry that is in the new bucket has no other target"),
            };
            let header = &mut *self.header.as_ptr();
            match grown.attach {
                Attach::Segment(link) => *link = grown.first,
                Attach::Child(link, child) => *link = Some(child),
                Attach::Root(root) => {
                    header.height += 1;
                    header.segment = None;
                    header.directory = Some(root);
                }
            }
            header.buckets += 1;
            header.len += 1;
            Ok(place)
        }
    }

    /// Allocates and logs for a split and the entry that comes with it, whose bucket is `home`:
    /// changes nothing that is there.
    ///
    /// # Safety
    /// As [`HashMap::insert_and_split`]; the split is of this map.
    unsafe fn prepare(
        self,
        tx: &mut Tx<'_>,
        header: &HashHeader<K, V>,
        split: &Split<K, V>,
        home: u64,
        newcomer: Option<(u8, PageEntry<K, V>)>,
    ) -> Result<(Grown<K, V>, InsertTarget<K, V>)> {
        // SAFETY: live blocks of a pool that is held; those written to are fresh.
        unsafe {
            // 1. Fresh blocks.
            let is_new = newcomer.is_some();
            let (first, last_put) = self.build_bucket(tx, split, newcomer)?;
            let grown = Grown { first, attach: self.build_link(tx, header, split.bucket, first)? };
            let target = if is_new {
                InsertTarget::Done(last_put)
            } else if let Some((page, slot)) = self.find_target(header, split, home).or_lost(tx)? {
                InsertTarget::Slot(page, slot)
            } else {
                let Some(link) = header.link(home).or_lost(tx)? else {
                    unreachable!("every bucket but the first has a segment")
                };
                InsertTarget::Page(tx.alloc_near(self.header, HashPage::new(*link))?, link)
            };

            // 2. The log.
            let mut ranges: Vec<Range> = Vec::with_capacity(12);
            for &(page, moved) in split.moves.iter().filter(|(_, moved)| !moved.is_empty()) {
                if size_of::<PageEntry<K, V>>() <= WHOLE_SIZE_MAX {
                    ranges.push(range(page.as_ptr()));
                } else {
                    ranges.push(range(place!(page, tags)));
                    ranges.extend(moved.map(|slot| range(HashPage::place(page, slot))));
                }
            }
            match target {
                InsertTarget::Slot(page, slot) => {
                    ranges.extend([range(HashPage::place(page, slot)), range(place!(page, tags))]);
                }
                InsertTarget::Page(_, link) => ranges.push(range(link)),
                InsertTarget::Done(_) => {}
            }
            match grown.attach {
                Attach::Segment(link) => ranges.push(range(link)),
                Attach::Child(link, _) => ranges.push(range(link)),
                Attach::Root(_) => ranges.push(range(self.header.as_ptr())),
            }
            ranges.push(span(place!(self.header, len), place!(self.header, buckets)));
            log(tx, &ranges)?;
            Ok((grown, target))
        }
    }

    /// The pages of the new bucket: copies of what moves, and behind them the new entry if it
    /// belongs there.
    ///
    /// # Safety
    /// The split is of this map.
    unsafe fn build_bucket(
        self,
        tx: &mut Tx<'_>,
        split: &Split<K, V>,
        newcomer: Option<(u8, PageEntry<K, V>)>,
    ) -> Result<Built<K, V>> {
        let mut first: Option<Ptr<HashPage<K, V>>> = None;
        let mut last_put = core::ptr::null_mut();
        // SAFETY: slots in use of live pages; pages written to are fresh.
        unsafe {
            let moved = split.moves.iter().flat_map(|&(page, moved)| {
                moved.map(move |slot| {
                    (page.as_ref().tags.tag(slot), HashPage::place(page, slot).read())
                })
            });
            for (tag, entry) in moved.chain(newcomer) {
                let (page, slot) = match first
                    .and_then(|page| Some((page, page.as_ref().tags.unused().first()?)))
                {
                    Some(place) => place,
                    None => (tx.alloc_near(self.header, HashPage::new(first))?, 0),
                };
                last_put = HashPage::put(page, slot, tag, entry);
                first = Some(page);
            }
        }
        Ok((first, last_put))
    }

    /// Where the new bucket will be linked: fresh segment and directories, if it is the first below
    /// them.
    ///
    /// # Safety
    /// `header` is a copy of the live header; `bucket` is its number of buckets.
    unsafe fn build_link(
        self,
        tx: &mut Tx<'_>,
        header: &HashHeader<K, V>,
        bucket: u64,
        first: Option<Ptr<HashPage<K, V>>>,
    ) -> Result<Attach<K, V>> {
        // SAFETY: live blocks of the levels that the height says; those written to are fresh.
        unsafe {
            let height = header.height as u32;
            let Some(mut node) = header.root() else {
                unreachable!("a map that grows has a segment")
            };
            if bucket >> (FAN_OUT_BITS * (height + 1)) != 0 {
                let subtree = self.fresh_subtree(tx, bucket, height, first)?;
                let mut root = Directory::new(height == 0);
                root.children[0] = Some(node);
                root.children[1] = Some(subtree);
                return Ok(Attach::Root(tx.alloc_near(self.header, root)?));
            }
            for level in (1..=height).rev() {
                let directory = node.cast::<Directory<K, V>>();
                directory.touch().or_lost(tx)?;
                let link = &raw mut (*directory.as_ptr()).children[child_of(bucket, level)];
                match *link {
                    Some(child) => node = child,
                    None => {
                        return Ok(Attach::Child(
                            link,
                            self.fresh_subtree(tx, bucket, level - 1, first)?,
                        ));
                    }
                }
            }
            node.touch().or_lost(tx)?;
            Ok(Attach::Segment(&raw mut (*node.as_ptr()).pages[child_of(bucket, 0)]))
        }
    }

    /// A fresh segment with one bucket, below `height` fresh directories.
    ///
    /// # Safety
    /// The header is live.
    unsafe fn fresh_subtree(
        self,
        tx: &mut Tx<'_>,
        bucket: u64,
        height: u32,
        first: Option<Ptr<HashPage<K, V>>>,
    ) -> Result<Ptr<Segment<K, V>>> {
        let mut pages = [None; FAN_OUT];
        pages[child_of(bucket, 0)] = first;
        // SAFETY: the header is live by contract.
        let mut node = unsafe { tx.alloc_near(self.header, Segment { pages })? };
        for level in 1..=height {
            let mut directory = Directory::new(level == 1);
            directory.children[child_of(bucket, level)] = Some(node);
            // SAFETY: as above; the pointer is followed only as what its level says.
            node = unsafe { tx.alloc_near(self.header, directory)?.cast() };
        }
        Ok(node)
    }

    /// A slot of bucket `home` that is unused, or will be after the split.
    ///
    /// # Safety
    /// `header` is a copy of the live header, and the split is of this map.
    unsafe fn find_target(
        self,
        header: &HashHeader<K, V>,
        split: &Split<K, V>,
        home: u64,
    ) -> Read<Option<Slot<K, V>>> {
        // SAFETY: live pages; those of the split were touched.
        unsafe {
            if home != source_of(split.bucket) {
                return unused(header.first_page(home)?);
            }
            Ok(split.moves.iter().find_map(|&(page, moved)| {
                Some((page, page.as_ref().tags.unused().and(moved).first()?))
            }))
        }
    }
}

/// The bucket that splits when `bucket` comes.
fn source_of(bucket: u64) -> u64 {
    bucket ^ (1 << bucket.ilog2())
}

/// What moves when the next bucket comes.
///
/// # Safety
/// `header` is a copy of a live header.
unsafe fn plan<K: Hash, V>(header: &HashHeader<K, V>) -> Read<Split<K, V>> {
    let bucket = header.buckets;
    let bit = 1 << bucket.ilog2();
    let mut moves = Vec::with_capacity(4);
    // SAFETY: live pages; only used slots are looked at.
    unsafe {
        let mut next = header.first_page(source_of(bucket))?;
        while let Some(page) = next {
            let content = page.follow()?;
            let moved = content
                .tags
                .used()
                .filter(|&slot| header.hash(&content.entry(slot).key) & bit != 0);
            moves.push((page, moved.fold(Set::EMPTY, Set::with)));
            next = content.next;
        }
    }
    Ok(Split { bucket, moves })
}

/// An unused slot in a chain of pages.
///
/// # Safety
/// Live pages.
unsafe fn unused<K, V>(mut next: Option<Ptr<HashPage<K, V>>>) -> Read<Option<Slot<K, V>>> {
    while let Some(page) = next {
        // SAFETY: by contract.
        let content = unsafe { page.follow()? };
        if let Some(slot) = content.tags.unused().first() {
            return Ok(Some((page, slot)));
        }
        next = content.next;
    }
    Ok(None)
}
