//! Checks that collections are as their headers say.
//!
//! Safe code follows the links of a collection and believes its lengths without a check, because
//! only transactions write them. After damage, and in an archive, any bytes may stand there. So
//! each header is compared with all that it leads to:
//!
//! * *Vector, text:* `len <= capacity`, and the array has room for that; a text ends between two
//!   characters. *Deque:* the same, and `head` is a place of the array.
//! * *List:* `next` visits `len` nodes from `first` to `last`; `previous` leads the same way back.
//! * *Ordered map:* `height` levels of inner nodes, each over the level below; permutations; leaves
//!   linked in their order; `len` entries.
//! * *Hash map:* a segment for each bucket, and none beyond; directories by level; tags; chains
//!   that end; `len` entries.
//! * *Map of relaxed durability:* its first leaf, and the leaves that its index leads to; any bytes
//!   in a leaf are good.
//!
//! For all of them: a link leads to the start of an allocated block of the link's type, in the
//! header's pool, and the block has room and alignment for that type. *Each block has one link*: so
//! there is no cycle, and no two collections share a block that one of them would free. A place in
//! use is a value of its type, also where it is zero.
//!
//! *Not checked:* the order of keys, and in which bucket an entry lies. If those are wrong, lookups
//! miss entries and touch no other memory.
//!
//! *Bounds.* Nothing in a block is believed before it is checked. Each block is read once, so a
//! check ends. It keeps a bit for each 8 bytes of superblocks that have such blocks.

use super::{ELEMENT, InvalidValue, Rule, UTF8, Values, is_own};
use crate::id::TypeId;
use crate::pointer::PointerKind;
use crate::types::{FieldRecord, TypeRecord};

extern crate alloc;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

mod deque;
mod hash_map;
mod relaxed;
pub(super) use hash_map::{FAN_OUT, HASH_HEIGHT_MAX, HashMapShape, table};

/// In a header's `len`: the collection was destroyed, and its header is gone or a leak.
pub(super) const DESTROYED: u64 = u64::MAX;
/// Slots of a node of an ordered map.
pub(super) const SLOTS: u64 = 15;
/// Most levels of inner nodes.
const TREE_HEIGHT_MAX: u64 = 24;
/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Bytes that one set of bits is about.
const SPAN: u64 = 64 << 10;

/// The blocks of one pool, and what is in them.
pub trait Blocks {
    /// The allocated block that begins at an address: its type, and its usable bytes. `None`: none
    /// begins there, in this pool.
    fn block(&mut self, addr: u64) -> Option<(TypeId, u64)>;

    /// Copies bytes that lie in such a block; `false` if they cannot be read.
    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool;
}

/// What is wrong: where, in which field, and what stands there.
pub(super) struct Broken {
    at: u64,
    field: String,
    why: &'static str,
    found: u64,
}

type Checked<T = ()> = Result<T, Broken>;

impl Broken {
    /// The same, for a message.
    pub(super) fn text(&self) -> String {
        let Self { at, field, why, found } = self;
        format!("{at:#x}: {field}{}{why} ({found:#x})", if field.is_empty() { "" } else { ": " })
    }
}

fn broken<T>(at: u64, field: &str, why: &'static str, found: u64) -> Checked<T> {
    Err(Broken { at, field: field.into(), why, found })
}

/// A check of all collections of a pool, or of an archive.
#[derive(Debug)]
pub struct Structures<'v> {
    values: &'v mut Values,
    /// Whether zeros are a value of a type.
    zeros: BTreeMap<TypeId, bool>,
    /// Blocks that a link leads to.
    seen: BTreeMap<u64, Box<[u64; (SPAN / 8 / 64) as usize]>>,
}

/// Where the parts of a node with slots lie.
struct Slotted {
    permutation: u64,
    slots: u64,
    element: TypeId,
    size: u64,
}

/// How far the leaves of an ordered map were followed.
#[derive(Default)]
struct Leaves {
    entries: u64,
    /// The leaf before, or 0.
    last: u64,
    /// Where the next one is linked, and what that says.
    link: (u64, u64),
}

/// What the nodes of a map are.
struct Tree {
    leaf: TypeId,
    inner: TypeId,
    leaf_slots: Slotted,
    /// Links in an entry that own what they lead to.
    owning: Vec<(u64, TypeId)>,
    inner_slots: Slotted,
    next: u64,
    previous: u64,
    first: u64,
    child: u64,
}

impl<'v> Structures<'v> {
    /// Nothing was looked at yet.
    pub fn new(values: &'v mut Values) -> Self {
        Self { values, zeros: BTreeMap::new(), seen: BTreeMap::new() }
    }

    /// Looks at the collection whose header is at `header`, an allocated block of type `id` with
    /// room for it. Nothing happens for blocks that are no headers of collections.
    pub fn check(
        &mut self,
        header: u64,
        id: TypeId,
        blocks: &mut dyn Blocks,
        found: &mut dyn FnMut(InvalidValue),
    ) {
        let Some(record) = self.values.record_of(id) else { return };
        let result = match constructor(&record.name) {
            "cenote/VecHeader" => self.array(header, &record, blocks),
            "cenote/DequeHeader" => self.deque(header, &record, blocks),
            "cenote/ListHeader" => self.list(header, &record, true, blocks),
            "cenote/ForwardListHeader" => self.list(header, &record, false, blocks),
            "cenote/BTreeHeader" => self.ordered(header, &record, blocks),
            "cenote/RelaxedHeader" => self.relaxed(header, &record, blocks),
            "cenote/HashHeader" => self.hashed(header, &record, blocks),
            _ => return,
        };
        if let Err(Broken { at, field, why, found: number }) = result {
            found(InvalidValue {
                block: header,
                type_id: id,
                type_name: record.name.clone(),
                field,
                at,
                rule: Rule::Structure(why),
                found: u128::from(number),
            });
        }
    }

    /// The block that a link leads to, and its bytes. `from`: where the link is.
    fn enter(&mut self, from: u64, to: u64, id: TypeId, blocks: &mut dyn Blocks) -> Checked<u64> {
        let Some((type_id, size)) = blocks.block(to) else {
            return broken(from, "", "a link leads to no block of the pool", to);
        };
        let Some(record) = self.values.record_of(id).filter(|_| type_id == id) else {
            return broken(from, "", "a link leads to a block of another type", to);
        };
        if (!record.repeats && size < record.size) || !to.is_multiple_of(record.align.max(1)) {
            return broken(from, "", "a link leads to a block that cannot hold its type", to);
        }
        let bits =
            self.seen.entry(to / SPAN).or_insert_with(|| Box::new([0; (SPAN / 8 / 64) as usize]));
        let bit = to % SPAN / 8;
        let word = &mut bits[(bit / 64) as usize];
        if core::mem::replace(word, *word | 1 << (bit % 64)) >> (bit % 64) & 1 != 0 {
            return broken(from, "", "two links lead to one block", to);
        }
        Ok(size)
    }

    /// Whether zeros are a value of this type, or an element of it.
    fn zero_is_value(&mut self, id: TypeId) -> bool {
        if let Some(known) = self.zeros.get(&id) {
            return *known;
        }
        let is_value = self.values.rules(id).is_none_or(|rules| {
            let (mut valid, size) = (true, rules.shape.size as usize);
            rules.shape.run(&vec![0; size], 0, super::Path::Value, &mut |_, _, _, _| valid = false);
            valid
        });
        self.zeros.insert(id, is_value);
        is_value
    }

    /// Refuses places in use that are zero where no value is: the check of a block passes over
    /// them.
    fn in_use(&mut self, id: TypeId, at: u64, size: u64, blocks: &mut dyn Blocks) -> Checked {
        if size == 0 || self.zero_is_value(id) || !all_zero(at, size, blocks)? {
            return Ok(());
        }
        broken(at, "", "a place in use holds zeros, which are no value", 0)
    }

    fn array(&mut self, header: u64, record: &TypeRecord, blocks: &mut dyn Blocks) -> Checked {
        let [array_at, len_at, capacity_at] = places(header, record, ["array", "len", "capacity"])?;
        let [array, len, capacity] = words([array_at, len_at, capacity_at], blocks)?;
        let id = target(record, array_at - header, header)?;
        let Some(of) = self.values.record_of(id) else {
            return broken(header, "array", "its type has no record", id.0);
        };
        if len == DESTROYED {
            return Ok(());
        }
        if !of.repeats || of.size == 0 {
            // Values of no bytes: nothing is read, and sums of lengths do not overflow.
            return if len <= u64::MAX >> 1 {
                Ok(())
            } else {
                broken(len_at, "len", "too many values", len)
            };
        }
        let room = if array == 0 { 0 } else { self.enter(array_at, array, id, blocks)? };
        if capacity.checked_mul(of.size).is_none_or(|bytes| bytes > room) {
            return broken(capacity_at, "capacity", "more places than its array has", capacity);
        }
        if len > capacity {
            return broken(len_at, "len", "more values than there are places", len);
        }
        if of.size == 1
            && of.fields.iter().any(|field| field.name == ELEMENT && field.type_name == UTF8)
        {
            let mut byte = [0];
            if len < room && (!blocks.read(array + len, &mut byte) || byte[0] & 0xc0 == 0x80) {
                return broken(len_at, "len", "a text that ends inside a character", len);
            }
            return Ok(());
        }
        if self.zero_is_value(id) {
            return Ok(());
        }
        for index in 0..len {
            let at = array + index * of.size;
            if all_zero(at, of.size, blocks)? {
                return broken(
                    at,
                    "array",
                    "a place in use holds zeros, which are no value",
                    index,
                );
            }
        }
        Ok(())
    }

    fn list(
        &mut self,
        header: u64,
        record: &TypeRecord,
        both: bool,
        blocks: &mut dyn Blocks,
    ) -> Checked {
        let [first_at, len_at, last_at] = places(header, record, ["first", "len", "last"])?;
        let [first, len, last] = words([first_at, len_at, last_at], blocks)?;
        if len == DESTROYED {
            return Ok(());
        }
        let id = target(record, first_at - header, header)?;
        let Some(node) = self.values.record_of(id) else {
            return broken(header, "first", "its type has no record", id.0);
        };
        let (mut link, mut at, mut before, mut count) = (first_at, first, 0, 0);
        while at != 0 {
            self.enter(link, at, id, blocks)?;
            count += 1;
            if both {
                let [place] = places(at, &node, ["previous"])?;
                let [previous] = words([place], blocks)?;
                if previous != before {
                    return broken(
                        place,
                        "",
                        "a node leads back to another than leads to it",
                        previous,
                    );
                }
            }
            before = at;
            [link] = places(at, &node, ["next"])?;
            [at] = words([link], blocks)?;
        }
        if before != last {
            return broken(last_at, "last", "another node than the last one", last);
        }
        if count == len {
            Ok(())
        } else {
            broken(len_at, "len", "another number than there are nodes", len)
        }
    }

    fn ordered(&mut self, header: u64, record: &TypeRecord, blocks: &mut dyn Blocks) -> Checked {
        let at =
            places(header, record, ["len", "height", "root_leaf", "root_inner", "first", "last"])?;
        let [len, height, root_leaf, root_inner, first, last] = words(at, blocks)?;
        if len == DESTROYED {
            return Ok(());
        }
        let empty = root_leaf == 0 && root_inner == 0;
        if height > TREE_HEIGHT_MAX || empty && height != 0 {
            return broken(at[1], "height", "no tree has this height", height);
        }
        if !empty && ((height == 0) != (root_inner == 0) || (height == 0) == (root_leaf == 0)) {
            return broken(at[2], "root_leaf", "a root that the height does not say", root_leaf);
        }
        let mut leaves = Leaves { link: (at[4], first), ..Leaves::default() };
        if !empty {
            let leaf = target(record, at[2] - header, header)?;
            let inner = target(record, at[3] - header, header)?;
            let tree = self.tree(header, leaf, inner)?;
            let (from, root) = if height == 0 { (at[2], root_leaf) } else { (at[3], root_inner) };
            self.below(&tree, (from, root), (height, true), &mut leaves, blocks)?;
        }
        if leaves.link.1 != 0 {
            return broken(leaves.link.0, "", "a link behind the last leaf", leaves.link.1);
        }
        if leaves.last != last {
            return broken(at[5], "last", "another leaf than the last one", last);
        }
        if leaves.entries == len {
            return Ok(());
        }
        broken(at[0], "len", "another number than there are entries", len)
    }

    fn tree(&mut self, header: u64, leaf: TypeId, inner: TypeId) -> Checked<Tree> {
        let unknown =
            || Broken { at: header, field: String::new(), why: "nodes of no known type", found: 0 };
        let record = |id| self.values.record_of(id).ok_or_else(unknown);
        let (of_leaf, of_inner) = (record(leaf)?, record(inner)?);
        let slotted = |record: &TypeRecord, name: &str| {
            let field = field(record, name)?;
            let slots = self.values.record_of(field.type_id)?;
            let list = slots.fields.iter().find(|field| field.name == "slots")?;
            let permutation = word_at(&slots, "permutation")?;
            let fits =
                field.offset.checked_add(slots.size)? <= record.size && list.size % SLOTS == 0;
            fits.then_some(())?;
            Some(Slotted {
                permutation: field.offset + permutation,
                slots: field.offset + list.offset,
                element: self.values.declared(list)?,
                size: list.size / SLOTS,
            })
        };
        let made = || {
            let inner_slots = slotted(&of_inner, "branches")?;
            let branch = self.values.record_of(inner_slots.element)?;
            let child = word_at(&branch, "child").filter(|_| branch.size <= inner_slots.size)?;
            Some(Tree {
                leaf,
                inner,
                owning: slotted(&of_leaf, "entries")
                    .map(|slots| self.owning(slots.element))
                    .unwrap_or_default(),
                leaf_slots: slotted(&of_leaf, "entries")?,
                next: word_at(&of_leaf, "next")?,
                previous: word_at(&of_leaf, "previous")?,
                first: word_at(&of_inner, "first")?,
                child,
                inner_slots,
            })
        };
        made().ok_or_else(unknown)
    }

    /// Looks at a node with `height` levels below it.
    fn below(
        &mut self,
        tree: &Tree,
        (from, node): (u64, u64),
        (height, root): (u64, bool),
        leaves: &mut Leaves,
        blocks: &mut dyn Blocks,
    ) -> Checked {
        let (id, slots) = match height {
            0 => (tree.leaf, &tree.leaf_slots),
            _ => (tree.inner, &tree.inner_slots),
        };
        self.enter(from, node, id, blocks)?;
        let order = permutation(node + slots.permutation, blocks)?;
        if order.is_empty() && (height == 0 || !root) {
            return broken(node + slots.permutation, "", "a node without entries", 0);
        }
        if height == 0 {
            let [previous, next] = words([node + tree.previous, node + tree.next], blocks)?;
            if leaves.link.1 != node {
                return broken(
                    leaves.link.0,
                    "",
                    "a link to another leaf than the next one",
                    leaves.link.1,
                );
            }
            if previous != leaves.last {
                return broken(
                    node + tree.previous,
                    "",
                    "a leaf leads back to another one",
                    previous,
                );
            }
            for slot in &order {
                self.in_use(
                    slots.element,
                    node + slots.slots + slot * slots.size,
                    slots.size,
                    blocks,
                )?;
                for (offset, id) in &tree.owning {
                    let at = node + slots.slots + slot * slots.size + offset;
                    let [to] = words([at], blocks)?;
                    self.enter(at, to, *id, blocks)?;
                }
            }
            leaves.entries = leaves.entries.saturating_add(order.len() as u64);
            (leaves.last, leaves.link) = (node, (node + tree.next, next));
            return Ok(());
        }
        let [over] = words([node], blocks)?;
        if over != u64::from(height == 1) {
            return broken(node, "", "a node says another level than it is on", over);
        }
        let of_slot = |slot: &u64| node + slots.slots + slot * slots.size + tree.child;
        let children = core::iter::once(node + tree.first).chain(order.iter().map(of_slot));
        for link in children.collect::<Vec<_>>() {
            let [child] = words([link], blocks)?;
            self.below(tree, (link, child), (height - 1, false), leaves, blocks)?;
        }
        Ok(())
    }
}

impl Values {
    /// The record of a type, if it passes its check.
    #[must_use]
    pub fn record_of(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.records.get(&id).cloned()
    }
}

/// Whether [`Structures::check`] looks at blocks of a type of this name.
#[must_use]
pub fn is_header(name: &str) -> bool {
    is_own(name) && constructor(name).ends_with("Header")
}

/// The damage of a block that cannot hold a value of its type: it is too small, or misplaced.
#[must_use]
pub fn no_room(record: &TypeRecord, block: u64, size: u64) -> Option<InvalidValue> {
    let small = size < record.size && !record.repeats;
    if !small && block.is_multiple_of(record.align.max(1)) {
        return None;
    }
    let why = if small { "its block has no room for a value" } else { "its block is not aligned" };
    Some(InvalidValue {
        block,
        type_id: record.id,
        type_name: record.name.clone(),
        field: String::new(),
        at: block,
        rule: Rule::Structure(why),
        found: u128::from(size),
    })
}

pub(super) fn constructor(name: &str) -> &str {
    name.split('<').next().unwrap_or_default()
}

/// A field of this name; of an enum, of its first variant.
pub(super) fn field(record: &TypeRecord, name: &str) -> Option<FieldRecord> {
    let inside = record.variants.first().map(|variant| &variant.fields).into_iter().flatten();
    record.fields.iter().chain(inside).find(|field| field.name == name).cloned()
}

/// The offset of a field that is one word.
pub(super) fn word_at(record: &TypeRecord, name: &str) -> Option<u64> {
    field(record, name).filter(|field| field.size == 8).map(|field| field.offset)
}

/// Where words lie that are fields of a block.
pub(super) fn places<const N: usize>(
    block: u64,
    record: &TypeRecord,
    names: [&str; N],
) -> Checked<[u64; N]> {
    let mut out = [0; N];
    for (out, name) in out.iter_mut().zip(names) {
        match word_at(record, name).and_then(|offset| block.checked_add(offset)) {
            Some(at) => *out = at,
            None => return broken(block, name, "its type has no such field", 0),
        }
    }
    Ok(out)
}

/// The type of what the word at this offset of a block leads to.
pub(super) fn target(record: &TypeRecord, offset: u64, block: u64) -> Checked<TypeId> {
    let of_word = |offset: u64| {
        record.pointers.iter().find(|pointer| {
            pointer.offset == offset
                && pointer.kind == PointerKind::NATIVE
                && pointer.tag_mask == 0
                && pointer.conditions.is_empty()
        })
    };
    match of_word(offset) {
        Some(pointer) => Ok(pointer.target),
        None => broken(block, "", "its type has no link there", offset),
    }
}

fn read(at: u64, bytes: &mut [u8], blocks: &mut dyn Blocks) -> Checked {
    if blocks.read(at, bytes) { Ok(()) } else { broken(at, "", "it cannot be read", 0) }
}

fn words<const N: usize>(at: [u64; N], blocks: &mut dyn Blocks) -> Checked<[u64; N]> {
    let mut out = [0; N];
    for (out, at) in out.iter_mut().zip(at) {
        let mut bytes = [0; 8];
        read(at, &mut bytes, blocks)?;
        *out = u64::from_le_bytes(bytes);
    }
    Ok(out)
}

/// Whether all of these bytes are zero.
fn all_zero(at: u64, size: u64, blocks: &mut dyn Blocks) -> Checked<bool> {
    let mut bytes = vec![0; PIECE.min(size as usize)];
    let mut from = 0;
    while from < size {
        let piece = &mut bytes[..PIECE.min((size - from) as usize)];
        read(at + from, piece, blocks)?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        from += piece.len() as u64;
    }
    Ok(true)
}

/// The slots in use of a node, in order.
fn permutation(at: u64, blocks: &mut dyn Blocks) -> Checked<Vec<u64>> {
    let [word] = words([at], blocks)?;
    match slots_in_order(word) {
        Some(slots) => Ok(slots),
        None => broken(at, "", "no permutation of the slots", word),
    }
}

/// The slots in use that a permutation says, in order; `None`: it is none.
pub(super) fn slots_in_order(word: u64) -> Option<Vec<u64>> {
    let slots: Vec<u64> = (1..=SLOTS).map(|nibble| word >> (4 * nibble) & 15).collect();
    let all = slots.iter().fold(0_u64, |all, slot| all | 1 << slot);
    (all == (1 << SLOTS) - 1).then(|| slots.into_iter().take((word & 15) as usize).collect())
}
