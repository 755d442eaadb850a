//! The elements of Cenote's collections, in their order.
//!
//! Fields are found by their names in the records of headers and nodes, as a check finds them
//! ([`crate::values::Structures`]). A walk ends at the first link that does not fit, and says so
//! behind the elements before it; of a hash map the bucket ends, and the next one comes.

use super::form::{CollectionKind, TypeForm};
use super::{Arc, BTreeSet, ShownPlace, String, ValueWalker, format};
use crate::id::TypeId;
use crate::types::{FieldRecord, TypeRecord};
use crate::values::structures::{DESTROYED, field, places, target};
use crate::values::{ELEMENT, UTF8};

/// What a walk along a collection finds.
#[derive(Debug)]
pub(super) enum CollectionItem {
    /// The collection is no more.
    Destroyed,
    /// Its elements are a text: where, and how many bytes.
    Text(u64, u64),
    /// Its elements are bytes.
    Bytes(u64, u64),
    /// An element.
    Element(ShownPlace),
    /// A key and its value.
    Pair(ShownPlace, ShownPlace),
    /// After the visitor has stopped the walk: so many more there are.
    More(u64),
    /// What is wrong.
    Broken(String),
}

/// Told of items; `false`: it needs no more of them.
pub(super) type VisitItem<'v, 'w> = &'v mut dyn FnMut(&mut ValueWalker<'w>, CollectionItem) -> bool;

/// The array of a vector.
pub(super) struct VectorParts {
    /// Its first element.
    pub(super) first: ShownPlace,
    /// Elements that are there.
    pub(super) len: u64,
    /// What its header says that is not so.
    pub(super) wrong: Option<String>,
}

/// Blocks that a walk has entered, and what it has found.
#[derive(Debug, Default)]
pub(super) struct CollectionWalk {
    visited: BTreeSet<u64>,
    /// Items that the visitor was told of.
    pub(super) found: u64,
    /// Items behind the one with which it has stopped the walk.
    pub(super) skipped: u64,
    pub(super) stopped: bool,
}

/// The place of a field in a value at `addr`.
pub(super) fn field_in(addr: u64, field: &FieldRecord) -> ShownPlace {
    let (size, type_id) = (field.size, field.type_id);
    let type_name = field.type_name.clone();
    let addr = addr.saturating_add(field.offset);
    ShownPlace { addr, size, type_id, type_name, is_block: false }
}

impl<'w> ValueWalker<'w> {
    /// Tells of all items of the collection with this header. Whether it is a map.
    pub(super) fn each_item(&mut self, header: &ShownPlace, visit: VisitItem<'_, 'w>) -> bool {
        let TypeForm::Collection(kind, record) = self.values.form(header) else { return false };
        let at = header.addr;
        let done = match kind {
            CollectionKind::Vector => self.vector(at, &record, visit),
            CollectionKind::Deque => self.deque(at, &record, visit),
            CollectionKind::List | CollectionKind::ForwardList => self.list(at, &record, visit),
            CollectionKind::Ordered => self.ordered(at, &record, visit),
            CollectionKind::Hashed => self.hashed(at, &record, visit),
            CollectionKind::Texts => self.texts(at, &record, visit),
            CollectionKind::Relaxed => self.relaxed(at, &record, visit),
        };
        if let Err(why) = done {
            visit(self, CollectionItem::Broken(why));
        }
        kind.is_map()
    }

    /// Words that are fields of a block.
    pub(super) fn words<const N: usize>(
        &mut self,
        block: u64,
        record: &TypeRecord,
        names: [&str; N],
    ) -> Result<[u64; N], String> {
        let mut words = places(block, record, names).map_err(|broken| broken.text())?;
        for word in &mut words {
            *word = self.word(*word)?;
        }
        Ok(words)
    }

    /// The type of what a word of a block leads to.
    pub(super) fn link(
        &self,
        block: u64,
        record: &TypeRecord,
        name: &str,
    ) -> Result<(TypeId, Arc<TypeRecord>), String> {
        let [at] = places(block, record, [name]).map_err(|broken| broken.text())?;
        let id = target(record, at - block, block).map_err(|broken| broken.text())?;
        match self.values.record_of(id) {
            Some(record) => Ok((id, record)),
            None => Err(format!("nothing is known of the type {id} of `{name}`")),
        }
    }

    /// Enters a node of a type.
    pub(super) fn enter(
        &mut self,
        to: u64,
        id: TypeId,
        walk: &mut CollectionWalk,
    ) -> Result<(), String> {
        let place = self.block_at(to)?;
        if place.type_id != id {
            let (is, should) = (place.type_name, self.name_of(id));
            return Err(format!("{to:#x}: a link leads to a block of type {is}, and not {should}"));
        }
        match walk.visited.insert(to) {
            true => Ok(()),
            false => Err(format!("{to:#x}: two links lead to one block")),
        }
    }

    /// Tells of an item. After the first that is not wanted, no more are.
    pub(super) fn tell(
        &mut self,
        item: CollectionItem,
        walk: &mut CollectionWalk,
        visit: VisitItem<'_, 'w>,
    ) {
        if walk.stopped {
            walk.skipped += 1;
        } else {
            walk.found += 1;
            walk.stopped = !visit(self, item);
        }
    }

    /// Tells of how many there are beside those that were found; an error if that is another
    /// number than the header says.
    pub(super) fn tell_rest(
        &mut self,
        len: u64,
        walk: &CollectionWalk,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        if walk.stopped {
            visit(self, CollectionItem::More(len.saturating_sub(walk.found)));
            return Ok(());
        }
        match walk.found == len {
            true => Ok(()),
            false => Err(format!("its header says {len} elements, and there are {}", walk.found)),
        }
    }

    /// The array of a vector; `None`: it was destroyed.
    pub(super) fn vector_parts(
        &mut self,
        header: u64,
        record: &TypeRecord,
    ) -> Result<Option<VectorParts>, String> {
        let [array, len, capacity] = self.words(header, record, ["array", "len", "capacity"])?;
        if len == DESTROYED {
            return Ok(None);
        }
        let (id, of) = self.link(header, record, "array")?;
        let Some(element) = of.fields.iter().find(|field| field.name == ELEMENT) else {
            return Err(format!("nothing is known of the elements of {}", of.name));
        };
        let size = if of.repeats { of.size } else { 0 };
        let room = match array {
            0 => 0,
            array => {
                self.enter(array, id, &mut CollectionWalk::default())?;
                self.block_at(array)?.size
            }
        };
        let fits = room.checked_div(size).unwrap_or(u64::MAX);
        let wrong = if size > 0 && capacity > fits {
            Some(format!("its header says room for {capacity}, and its array has room for {fits}"))
        } else if size > 0 && len > capacity {
            Some(format!("its header says {len} elements, and room for {capacity}"))
        } else {
            None
        };
        let there = if size > 0 { len.min(capacity).min(fits) } else { len };
        let first = ShownPlace { addr: array, size, ..field_in(array, element) };
        Ok(Some(VectorParts { first, len: there, wrong }))
    }

    fn vector(
        &mut self,
        header: u64,
        record: &TypeRecord,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let Some(VectorParts { first, len, wrong }) = self.vector_parts(header, record)? else {
            visit(self, CollectionItem::Destroyed);
            return Ok(());
        };
        if first.size == 1 && first.type_name == UTF8 {
            visit(self, CollectionItem::Text(first.addr, len));
        } else if first.size == 1 && first.type_name == "u8" {
            visit(self, CollectionItem::Bytes(first.addr, len));
        } else {
            for number in 0..len {
                if !visit(self, CollectionItem::Element(first.element(number))) {
                    visit(self, CollectionItem::More(len - number - 1));
                    break;
                }
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    /// The entries that a map from hashes owns: a text and a value each.
    fn texts(
        &mut self,
        header: u64,
        record: &TypeRecord,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let [len] = self.words(header, record, ["len"])?;
        if len == DESTROYED {
            visit(self, CollectionItem::Destroyed);
            return Ok(());
        }
        let map = field(record, "map").ok_or("it has no map")?;
        let map = self.solid(&field_in(header, &map))?.ok_or("its map is null")?;
        let mut walk = CollectionWalk::default();
        self.each_item(&map, &mut |this, item| {
            let item = match item {
                CollectionItem::Pair(_, owner) => match this.text_entry(&owner) {
                    Ok(Some((key, value))) => CollectionItem::Pair(key, value),
                    // The place of an entry that was removed.
                    Ok(None) => return true,
                    Err(why) => CollectionItem::Broken(why),
                },
                // It counts places.
                CollectionItem::More(_) => return true,
                other => other,
            };
            match item {
                CollectionItem::Broken(_) => visit(this, item),
                item => {
                    this.tell(item, &mut walk, visit);
                    !walk.stopped
                }
            }
        });
        self.tell_rest(len, &walk, visit)
    }

    /// Key and value of an entry that a map of texts owns; `None`: there is none.
    #[allow(clippy::type_complexity, reason = "two places")]
    fn text_entry(
        &mut self,
        owner: &ShownPlace,
    ) -> Result<Option<(ShownPlace, ShownPlace)>, String> {
        let addr = self.word(owner.addr)?;
        if addr == 0 {
            return Ok(None);
        }
        let entry = self.block_at(addr)?;
        let record = self.values.record_of(entry.type_id).ok_or("nothing is known of its type")?;
        match (field(&record, "key"), field(&record, "value")) {
            (Some(key), Some(value)) => Ok(Some((field_in(addr, &key), field_in(addr, &value)))),
            _ => Err(format!("{addr:#x}: a block of type {}, and no entry", entry.type_name)),
        }
    }

    fn deque(
        &mut self,
        header: u64,
        record: &TypeRecord,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let Some(VectorParts { first, len, wrong }) = self.vector_parts(header, record)? else {
            visit(self, CollectionItem::Destroyed);
            return Ok(());
        };
        let [head, capacity] = self.words(header, record, ["head", "capacity"])?;
        if first.size > 0 && (wrong.is_some() || head >= capacity.max(1)) {
            let why = format!("its header says place {head} of {capacity}");
            return Err(wrong.unwrap_or(why));
        }
        for number in 0..len {
            let slot = if first.size > 0 { (head + number) % capacity.max(1) } else { 0 };
            if !visit(self, CollectionItem::Element(first.element(slot))) {
                visit(self, CollectionItem::More(len - number - 1));
                break;
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        header: u64,
        record: &TypeRecord,
        visit: VisitItem<'_, 'w>,
    ) -> Result<(), String> {
        let [first, len] = self.words(header, record, ["first", "len"])?;
        if len == DESTROYED {
            visit(self, CollectionItem::Destroyed);
            return Ok(());
        }
        let (id, node) = self.link(header, record, "first")?;
        let value = field(&node, "value").ok_or("its nodes have no values")?;
        let (mut walk, mut at) = (CollectionWalk::default(), first);
        while at != 0 && !walk.stopped {
            self.enter(at, id, &mut walk)?;
            self.tell(CollectionItem::Element(field_in(at, &value)), &mut walk, visit);
            [at] = self.words(at, &node, ["next"])?;
        }
        self.tell_rest(len, &walk, visit)
    }
}
