//! The entries of maps: leaves of an ordered map, pages of a hash map, leaves of a map of relaxed
//! durability.

use super::collections::{CollectionItem, CollectionWalk, VisitItem, field_in};
use super::form::{CollectionKind, TypeForm};
use super::{Arc, ShownPlace, String, ValueWalker, Vec, format};
use crate::id::TypeId;
use crate::types::TypeRecord;
use crate::values::structures::{
    DESTROYED, FAN_OUT, HASH_HEIGHT_MAX, HashMapShape, SLOTS, field, slots_in_order, table, word_at,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Slots of a leaf of a map of relaxed durability.
const RELAXED_SLOTS: u64 = 32;

/// Leaves of an ordered map.
struct LeafShape {
    id: TypeId,
    record: Arc<TypeRecord>,
    permutation: u64,
    slots: u64,
    size: u64,
    entry: Arc<TypeRecord>,
}

/// Keys and values of an entry at an address.
fn pair(entry: &TypeRecord, addr: u64) -> Option<(ShownPlace, ShownPlace)> {
    Some((field_in(addr, &field(entry, "key")?), field_in(addr, &field(entry, "value")?)))
}

impl<'w> ValueWalker<'w> {
    fn tell_entry(
        &mut self,
        entry: &TypeRecord,
        addr: u64,
        walk: &mut CollectionWalk,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let Some((key, value)) = pair(entry, addr) else {
            return Err(format!("{} has no key and value", entry.name));
        };
        self.tell(CollectionItem::Pair(key, value), walk, visit);
        Ok(())
    }

    fn leaf_shape(&self, header: u64, record: &TypeRecord) -> Result<LeafShape, String> {
        let (id, leaf) = self.link(header, record, "root_leaf")?;
        let made = || {
            let entries = field(&leaf, "entries")?;
            let slots = self.values.record_of(entries.type_id)?;
            let list = field(&slots, "slots").filter(|list| list.size % SLOTS == 0)?;
            let fits = slots.size == entries.size;
            let entry = self.values.record_of(self.values.declared(&list)?)?;
            fits.then_some(())?;
            Some(LeafShape {
                id,
                permutation: entries.offset + word_at(&slots, "permutation")?,
                slots: entries.offset + list.offset,
                size: list.size / SLOTS,
                record: Arc::clone(&leaf),
                entry,
            })
        };
        made().ok_or_else(|| format!("nothing is known of the entries of {}", leaf.name))
    }

    pub(super) fn ordered(
        &mut self,
        header: u64,
        record: &TypeRecord,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let [len, first] = self.words(header, record, ["len", "first"])?;
        if len == DESTROYED {
            visit(self, CollectionItem::Destroyed);
            return Ok(());
        }
        let leaf = self.leaf_shape(header, record)?;
        let (mut walk, mut at) = (CollectionWalk::default(), first);
        while at != 0 && !walk.stopped {
            self.enter(at, leaf.id, &mut walk)?;
            let word = self.word(at.saturating_add(leaf.permutation))?;
            let Some(order) = slots_in_order(word) else {
                return Err(format!("{at:#x}: {word:#x} is no permutation of the slots of a leaf"));
            };
            for slot in order.into_iter().filter(|slot| *slot < SLOTS) {
                let addr = at.saturating_add(leaf.slots + slot * leaf.size);
                self.tell_entry(&leaf.entry, addr, &mut walk, visit)?;
            }
            [at] = self.words(at, &leaf.record, ["next"])?;
        }
        self.tell_rest(len, &walk, visit)
    }

    pub(super) fn hashed(
        &mut self,
        header: u64,
        record: &TypeRecord,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let names = ["len", "buckets", "height", "segment", "directory"];
        let [len, buckets, height, segment, directory] = self.words(header, record, names)?;
        if len == DESTROYED {
            visit(self, CollectionItem::Destroyed);
            return Ok(());
        }
        if height > HASH_HEIGHT_MAX {
            return Err(format!("its header says a height of {height}, which no map has"));
        }
        let root = if height == 0 { segment } else { directory };
        let (mut walk, mut broken) = (CollectionWalk::default(), false);
        if root != 0 {
            let ids = (
                self.link(header, record, "segment")?.0,
                self.link(header, record, "directory")?.0,
            );
            let shape = table(self.values, header, ids, buckets).map_err(|broken| broken.text())?;
            self.parts(&shape, root, height, (&mut walk, &mut broken), visit);
        }
        match broken {
            true if !walk.stopped => Ok(()),
            _ => self.tell_rest(len, &walk, visit),
        }
    }

    /// A segment, or a directory with `height` levels.
    fn parts(
        &mut self,
        shape: &HashMapShape,
        at: u64,
        height: u64,
        (walk, broken): (&mut CollectionWalk, &mut bool),
        visit: VisitItem<'_, 'w>,
    ) {
        let (id, list) = match height {
            0 => (shape.segment, shape.pages),
            _ => (shape.directory, shape.children),
        };
        let entered = self.enter(at, id, walk);
        let links = entered.and_then(|()| self.bytes(at.saturating_add(list), 8 * FAN_OUT));
        let links = match links {
            Ok(links) => links,
            Err(why) => {
                *broken = true;
                visit(self, CollectionItem::Broken(why));
                return;
            }
        };
        let links = links.as_chunks::<8>().0.iter().map(|link| u64::from_le_bytes(*link));
        for link in links.filter(|link| *link != 0) {
            if walk.stopped {
                return;
            }
            if height > 0 {
                self.parts(shape, link, height - 1, (walk, broken), visit);
            } else if let Err(why) = self.chain(shape, link, walk, visit) {
                *broken = true;
                visit(self, CollectionItem::Broken(why));
            }
        }
    }

    /// The pages of a bucket.
    fn chain(
        &mut self,
        shape: &HashMapShape,
        mut page: u64,
        walk: &mut CollectionWalk,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let entry = self.values.record_of(shape.element).ok_or("its entries have no record")?;
        while page != 0 && !walk.stopped {
            self.enter(page, shape.page, walk)?;
            let tags = self.word(page.saturating_add(shape.tags))?.to_le_bytes();
            if tags[7] != 0 || tags.iter().any(|tag| (1..0x80).contains(tag)) {
                let tags = u64::from_le_bytes(tags);
                return Err(format!("{page:#x}: {tags:#x} are tags that no page has"));
            }
            for slot in (0..7).filter(|slot| tags[*slot as usize] != 0) {
                if !walk.stopped {
                    let addr = page.saturating_add(shape.slots + slot * shape.size);
                    self.tell_entry(&entry, addr, walk, visit)?;
                }
            }
            page = self.word(page.saturating_add(shape.next))?;
        }
        Ok(())
    }

    pub(super) fn relaxed(
        &mut self,
        header: u64,
        record: &TypeRecord,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let [closed, first] = self.words(header, record, ["closed", "first"])?;
        if closed == DESTROYED {
            visit(self, CollectionItem::Destroyed);
            return Ok(());
        }
        let (id, leaf) = self.link(header, record, "first")?;
        let mut walk = CollectionWalk::default();
        if first != 0 {
            self.relaxed_leaf((first, id), &leaf, &mut walk, visit)?;
        }
        let index = field(record, "index").ok_or("its header has no index")?;
        let mut leaves = Vec::new();
        self.index_of(&field_in(header, &index), &mut leaves)?;
        for at in leaves {
            match at {
                Ok(at) => {
                    self.relaxed_leaf((at, id), &leaf, &mut walk, visit)?;
                }
                Err(why) => {
                    visit(self, CollectionItem::Broken(why));
                }
            }
        }
        if walk.stopped {
            visit(self, CollectionItem::More(walk.skipped));
        }
        Ok(())
    }

    /// Where the leaves are that the index of a map leads to.
    fn index_of(
        &mut self,
        index: &ShownPlace,
        leaves: &mut Vec<Result<u64, String>>,
    ) -> Result<(), String> {
        let Some(header) = self.solid(index)? else { return Ok(()) };
        // Any other, such as the map itself, may have no end.
        let TypeForm::Collection(CollectionKind::Ordered, _) = self.values.form(&header) else {
            return Err("the index of a map is no ordered map".into());
        };
        self.each_item(&header, &mut |this, item| {
            match item {
                CollectionItem::Pair(_, link) => leaves.push(match this.values.form(&link) {
                    TypeForm::Pointer(form) => match this.target(&link, &form) {
                        Ok(Some(leaf)) => Ok(leaf.addr),
                        Ok(None) => Err("null in the index of a map".into()),
                        Err(why) => Err(why),
                    },
                    _ => Err("the index of a map leads nowhere".into()),
                }),
                CollectionItem::Broken(why) => leaves.push(Err(why)),
                _ => {}
            }
            true
        });
        Ok(())
    }

    /// The valid entries of a leaf, in the order in which they came. What has no valid tag was not
    /// durable.
    fn relaxed_leaf(
        &mut self,
        (at, id): (u64, TypeId),
        leaf: &TypeRecord,
        walk: &mut CollectionWalk,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        self.enter(at, id, walk)?;
        let unknown = || format!("nothing is known of the entries of {}", leaf.name);
        let tags = field(leaf, "tags").filter(|tags| tags.size == 8 * RELAXED_SLOTS);
        let slots = field(leaf, "slots").filter(|slots| slots.size % RELAXED_SLOTS == 0);
        let (tags, slots) = tags.zip(slots).ok_or_else(unknown)?;
        let entry = self.values.declared(&slots).and_then(|id| self.values.record_of(id));
        let entry = entry.ok_or_else(unknown)?;
        let size = slots.size / RELAXED_SLOTS;
        let [marks] = self.words(at, leaf, ["marks"])?;
        // The last one of a key counts.
        let mut valid: Vec<(u64, Vec<u8>)> = Vec::new();
        for slot in (0..RELAXED_SLOTS).filter(|slot| marks >> slot & 1 == 0) {
            let tag = self.word(at.saturating_add(tags.offset + 8 * slot))?;
            let addr = at.saturating_add(slots.offset + slot * size);
            let (key, value) = pair(&entry, addr).ok_or_else(unknown)?;
            if tag == 0 || key.size.max(value.size) > size {
                continue;
            }
            let (key, value) =
                (self.bytes(key.addr, key.size)?, self.bytes(value.addr, value.size)?);
            if tag == xxh3_64_with_seed(&value, xxh3_64(&key)) | 1 {
                valid.retain(|(_, other)| *other != key);
                valid.push((addr, key));
            }
        }
        for (addr, _) in valid {
            self.tell_entry(&entry, addr, walk, visit)?;
        }
        Ok(())
    }
}
