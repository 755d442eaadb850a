//! Looks at the values of an import before it is committed: bytes that are no value of their type,
//! pointers that lead to no block of theirs, and collections that are not what they say.
//!
//! *What is refused:* what safe code believes without a check. That is every broken rule
//! ([`cenote_layout::values`]), every broken link of one of Cenote's own structures, every
//! collection that is not what its header says ([`Structures`]), and every block that has no room
//! for its type, or a type that neither the archive nor the store describes: a program could
//! describe it later. *What is reported:* a pointer of the program that leads to a block of another
//! type, or inside one. It is checked whenever it is followed, and a program may leave one behind
//! when it frees its target. One that leads to no block, or out of the archive, is not looked at
//! further.
//!
//! Two passes read each file: one learns which blocks there are, the other looks at values. The
//! first keeps a bit for each place of a block, at most 1/128 of the pools' bytes. Then collections
//! are followed from header to header, by pieces that are kept in memory, [`KEPT_MAX`] at a time.
//!
//! A pool that is protected at rest is sealed: its values are not looked at. Nor is a value of more
//! than [`VALUE_MAX`] bytes, because a daemon reads it into memory at the word of a client.

use super::ArchivingError;
use super::scan::{Body, ReadAt, described_apart};
use cenote_heap::PoolImages;
use cenote_heap::image::HeldBlocks;
use cenote_layout::catalog::{AtRest, HeapKind, PuddleRecord};
use cenote_layout::id::{PoolId, TypeId};
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_relative};
use cenote_layout::puddle::Role;
use cenote_layout::types::{PointerField, TypeRecord};
use cenote_layout::values::{
    self as structures, InvalidValue, Rule, Rules, Structures, Values, field_at, is_header,
    is_link, no_room,
};
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, planted};
use cenote_store::relocate::{Import, PoolBlocks, TypeTable};
use std::collections::BTreeMap;

/// Findings that are listed; all are counted.
const LISTED_MAX: usize = 1000;

/// Most bytes of a value that is looked at; of an array those of an element.
const VALUE_MAX: u64 = 64 << 20;

/// Pointers of an import that lead to blocks of other types, or inside blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stale {
    /// How many.
    pub count: u64,
    /// The first of them, with addresses as in the archive.
    pub first: Vec<InvalidValue>,
}

impl Stale {
    fn add(&mut self, value: InvalidValue) {
        self.count += 1;
        if self.first.len() < LISTED_MAX {
            self.first.push(value);
        }
    }
}

/// Looks at all values of an import whose files are made. Where a daemon makes it, the daemon
/// looks.
///
/// # Errors
/// [`ArchivingError::Values`]: there are some that safe code must not see. A file cannot be read.
pub fn check_values(import: &Import) -> Result<Stale, ArchivingError> {
    let (manifest, mut files) = (import.manifest(), Vec::new());
    let mut slots = 0..;
    for pool in &manifest.pools {
        for (index, (image, slot)) in (0u32..).zip(pool.puddles.iter().zip(slots.by_ref())) {
            if pool.at_rest != AtRest::None {
                continue;
            }
            // SAFETY: it is read only, below, and dropped before this returns.
            let Some(file) = (unsafe { import.file(slot) })? else { return Ok(Stale::default()) };
            let (addr, size, uuid) = (image.old_addr, image.size, image.identity);
            let puddle =
                PuddleRecord { uuid, pool: pool.old_id, role: Role::Heap, index, addr, size };
            files.push((puddle, pool.name.as_str(), file));
        }
    }
    let types = import.types();
    let (blocks, rules, pools) = (Blocks::default(), rules(&types), BTreeMap::new());
    let mut look = Look { types, rules, blocks, pools };
    for pool in &manifest.pools {
        look.learn((pool.name.as_str(), pool.heap, pool.old_id), &files)?;
    }
    let mut found = FoundValues::default();
    for (number, (puddle, pool, file)) in files.iter().enumerate() {
        let before = found.refused.count;
        look.at((number, puddle), &read(file), &mut found)?;
        if found.refused.count > before && found.pool.is_empty() {
            found.pool = (*pool).to_owned();
        }
    }
    look.structures(&files, &mut found)?;
    if found.refused.count == 0 {
        return Ok(found.stale);
    }
    let Stale { count, first } = found.refused;
    Err(ArchivingError::Values { pool: found.pool, count, first })
}

/// The broken rules in one puddle of a traced heap, of any content: for tests, which have no
/// archive.
///
/// # Errors
/// What `read` says.
#[doc(hidden)]
pub fn values_in(
    types: TypeTable,
    puddle: &PuddleRecord,
    read: ReadAt<'_>,
) -> Result<(Stale, Stale), ArchivingError> {
    let (blocks, rules, pools) = (Blocks::default(), rules(&types), BTreeMap::new());
    let mut look = Look { types, rules, blocks, pools };
    let images = PoolImages::new(HeapKind::Traced, None);
    look.blocks.learn(&Body { bytes: read, puddle, images })?;
    let mut found = FoundValues::default();
    look.at((0, puddle), read, &mut found)?;
    Ok((found.refused, found.stale))
}

/// Files of puddles, with the pools' names.
type Files<'f> = [(PuddleRecord, &'f str, FileHandle)];

#[derive(Default)]
struct FoundValues {
    /// Headers of collections, by puddle.
    headers: Vec<(usize, u64, TypeId)>,
    /// The first pool with something that is refused.
    pool: String,
    refused: Stale,
    stale: Stale,
}

fn read(file: &FileHandle) -> impl Fn(u64, &mut [u8]) -> Result<(), ArchivingError> + '_ {
    |offset, bytes| Ok(file.read_exact_at(offset, bytes)?)
}

fn rules(types: &TypeTable) -> BTreeMap<TypeId, Rules> {
    let mut values = Values::new(types.values().cloned());
    types.keys().filter_map(|id| Some((*id, values.rules(*id)?))).collect()
}

/// What is known of an import.
struct Look {
    types: TypeTable,
    rules: BTreeMap<TypeId, Rules>,
    blocks: Blocks,
    /// The kind of each pool's heap, and the list of its blocks, if puddles do not describe their
    /// own.
    pools: BTreeMap<PoolId, (HeapKind, Option<PoolBlocks>)>,
}

impl Look {
    /// Learns which blocks a pool has.
    fn learn(
        &mut self,
        (name, heap, pool): (&str, HeapKind, PoolId),
        files: &Files<'_>,
    ) -> Result<(), ArchivingError> {
        let own: Vec<_> = files.iter().filter(|(puddle, ..)| puddle.pool == pool).collect();
        if own.is_empty() {
            return Ok(());
        }
        let puddles: Vec<PuddleRecord> = own.iter().map(|(puddle, ..)| *puddle).collect();
        let list = described_apart((name, heap), &puddles, &mut |puddle, offset, bytes| {
            let file = own.iter().find(|(own, ..)| own.index == puddle.index);
            file.map_or(Ok(()), |(_, _, file)| read(file)(offset, bytes))
        })?;
        let images = PoolImages::new(heap, list.as_ref());
        for (puddle, _, file) in own {
            self.blocks.learn(&Body { bytes: &read(file), puddle, images })?;
        }
        self.pools.insert(pool, (heap, list));
        Ok(())
    }

    /// Where blocks lie in the puddles of a pool.
    fn images(&self, pool: PoolId) -> PoolImages<'_> {
        let known = self.pools.get(&pool);
        known.map_or(PoolImages::new(HeapKind::Traced, None), |(heap, list)| {
            PoolImages::new(*heap, list.as_ref())
        })
    }

    fn at(
        &self,
        (number, puddle): (usize, &PuddleRecord),
        read: ReadAt<'_>,
        found: &mut FoundValues,
    ) -> Result<(), ArchivingError> {
        let body = Body { bytes: read, puddle, images: self.images(puddle.pool) };
        let mut bytes = Vec::new();
        body.each_held(&mut |held| {
            let blocks = (0..).zip(held.kept).filter(|(_, kept)| **kept);
            let blocks =
                blocks.map(|(block, _)| puddle.addr.saturating_add(held.base + block * held.size));
            let record = self.types.get(&held.type_id).filter(|record| record.check().is_ok());
            let Some(record) = record else {
                if held.type_id != TypeId::UNTYPED && !planted(Bug::StructuresBelieved) {
                    blocks.for_each(|block| found.refused.add(no_type(held.type_id, block)));
                }
                return Ok(());
            };
            for block in blocks.filter(|_| !planted(Bug::StructuresBelieved)) {
                match no_room(record, block, held.size) {
                    Some(invalid) => found.refused.add(invalid),
                    None if is_header(&record.name) => {
                        found.headers.push((number, block, held.type_id))
                    }
                    None => {}
                }
            }
            let rules = self.rules.get(&held.type_id).filter(|_| !planted(Bug::ValuesBelieved));
            if rules.is_none() && record.pointers.is_empty() || record.size > VALUE_MAX {
                return Ok(());
            }
            body.each_block(
                held,
                record.size,
                record.repeats,
                &mut bytes,
                &mut |block, at, bytes| {
                    let block = puddle.addr.saturating_add(block);
                    if let Some(rules) = rules {
                        rules.check(block, at, bytes, &mut |invalid| found.refused.add(invalid));
                    }
                    self.pointers(record, BlockBytes { block, at, bytes }, found);
                },
            )
        })
    }

    /// Follows all collections.
    fn structures(&self, files: &Files<'_>, found: &mut FoundValues) -> Result<(), ArchivingError> {
        let mut values = Values::new(self.types.values().cloned());
        let mut structures = Structures::new(&mut values);
        let mut reader =
            Reader { look: self, files, pool: PoolId(0), kept: BTreeMap::new(), failed: None };
        for (number, header, id) in core::mem::take(&mut found.headers) {
            let Some((puddle, pool, _)) = files.get(number) else { continue };
            reader.pool = puddle.pool;
            let before = found.refused.count;
            structures.check(header, id, &mut reader, &mut |invalid| found.refused.add(invalid));
            if let Some(error) = reader.failed.take() {
                return Err(error);
            }
            if found.refused.count > before && found.pool.is_empty() {
                found.pool = (*pool).to_owned();
            }
        }
        Ok(())
    }

    fn pointers(&self, record: &TypeRecord, part: BlockBytes<'_>, found: &mut FoundValues) {
        let BlockBytes { block, at, bytes } = part;
        record.for_each_pointer(bytes, &mut |offset, field| {
            let Some(word) = bytes.get(offset..offset + 8).and_then(|word| word.try_into().ok())
            else {
                return;
            };
            let place = block.saturating_add(at).saturating_add(offset as u64);
            let next = bytes.get(offset + 8..offset + 16).and_then(|word| word.try_into().ok());
            let pair = [u64::from_le_bytes(word), next.map_or(0, u64::from_le_bytes)];
            let Some(to) = self.target(place, pair, field) else { return };
            let link = || {
                let target = self.types.get(&field.target);
                target.is_some_and(|target| is_link(&record.name, &target.name))
            };
            let invalid = || part.invalid(record, offset, to);
            match self.blocks.at(to) {
                At::Block(start, type_id) if start == to && type_id == field.target => {}
                At::Elsewhere => {}
                _ if link() => found.refused.add(invalid()),
                At::Block(..) => found.stale.add(invalid()),
                At::Nothing => {}
            }
        });
    }

    /// Where a typed pointer leads, by its word and the one behind it.
    fn target(&self, at: u64, pair: [u64; 2], field: &PointerField) -> Option<u64> {
        let word = pair[0];
        if field.target == TypeId::UNTYPED {
            return None;
        }
        let to = match field.kind {
            PointerKind::NATIVE => word & !field.tag_mask,
            PointerKind::RELATIVE => decode_relative(at, word)?,
            PointerKind::REGION => self.blocks.region(&RegionAddress::decode(word)?)?,
            PointerKind::HEAP => self.blocks.region(&RegionAddress::from_pair(pair)?)?,
            _ => return None,
        };
        (to != 0).then_some(to)
    }
}

/// Bytes of a block, from `at` on.
#[derive(Clone, Copy)]
struct BlockBytes<'a> {
    block: u64,
    at: u64,
    bytes: &'a [u8],
}

impl BlockBytes<'_> {
    /// A pointer at `offset` of these bytes that leads to `to`, where it must not.
    fn invalid(self, record: &TypeRecord, offset: usize, to: u64) -> InvalidValue {
        let Self { block, at, bytes } = self;
        let size = (record.size as usize).max(1);
        let value = offset / size * size;
        let own = bytes.get(value..value + size).unwrap_or_default();
        let mut field = field_at(record, own, (offset - value) as u64).unwrap_or_default();
        if record.repeats {
            field = format!("[{}]", (at + value as u64) / size as u64);
        }
        InvalidValue {
            block,
            type_id: record.id,
            type_name: record.name.clone(),
            field,
            at: block.saturating_add(at).saturating_add(offset as u64),
            rule: Rule::Reference,
            found: u128::from(to),
        }
    }
}

/// A block of a type that nothing describes.
fn no_type(type_id: TypeId, block: u64) -> InvalidValue {
    InvalidValue {
        block,
        type_id,
        type_name: format!("type {type_id}"),
        field: String::new(),
        at: block,
        rule: Rule::Structure("neither the archive nor the store has a record of its type"),
        found: type_id.0.into(),
    }
}

/// Bytes of a piece of a puddle that is kept in memory.
const PIECE: u64 = 64 << 10;
/// Most pieces that are kept.
const KEPT_MAX: usize = 256;

/// The blocks of one pool of an import, in its files.
struct Reader<'a> {
    look: &'a Look,
    files: &'a Files<'a>,
    pool: PoolId,
    /// By address.
    kept: BTreeMap<u64, Vec<u8>>,
    failed: Option<ArchivingError>,
}

impl structures::Blocks for Reader<'_> {
    fn block(&mut self, addr: u64) -> Option<(TypeId, u64)> {
        let (start, type_id, size, pool) = self.look.blocks.find(addr)?;
        (start == addr && pool == self.pool).then_some((type_id, size))
    }

    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let at = addr.saturating_add(done as u64);
            let (base, within) = (at - at % PIECE, (at % PIECE) as usize);
            if !self.kept.contains_key(&base) {
                let Some(loaded) = self.load(base) else { return false };
                if self.kept.len() >= KEPT_MAX {
                    self.kept.clear();
                }
                self.kept.insert(base, loaded);
            }
            let kept = self.kept.get(&base).and_then(|kept| kept.get(within..)).unwrap_or_default();
            let step = kept.len().min(bytes.len() - done);
            if step == 0 {
                return false;
            }
            bytes[done..done + step].copy_from_slice(&kept[..step]);
            done += step;
        }
        true
    }
}

impl Reader<'_> {
    fn load(&mut self, base: u64) -> Option<Vec<u8>> {
        let here = |(puddle, ..): &&(PuddleRecord, &str, FileHandle)| {
            (puddle.addr..puddle.addr.saturating_add(puddle.size)).contains(&base)
        };
        let (puddle, _, file) = self.files.iter().find(here)?;
        let len = PIECE.min(puddle.addr + puddle.size - base);
        let mut bytes = vec![0; len as usize];
        match file.read_exact_at(base - puddle.addr, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) => {
                self.failed = Some(error.into());
                None
            }
        }
    }
}

/// Which blocks are allocated in the puddles of an import.
#[derive(Default)]
struct Blocks {
    /// By address.
    puddles: BTreeMap<u64, Puddle>,
    /// By pool and number in it.
    numbers: BTreeMap<(PoolId, u32), u64>,
}

struct Puddle {
    size: u64,
    pool: PoolId,
    /// By the offset of the first.
    spans: BTreeMap<u64, Span>,
}

/// Blocks that lie side by side.
struct Span {
    size: u64,
    type_id: TypeId,
    /// A bit for each.
    kept: Vec<u64>,
}

/// What is at an address.
enum At {
    /// An allocated block begins there or before, and has this type.
    Block(u64, TypeId),
    Nothing,
    /// Nothing is known about it.
    Elsewhere,
}

impl Blocks {
    fn learn(&mut self, body: &Body<'_>) -> Result<(), ArchivingError> {
        let mut spans = BTreeMap::new();
        body.each_held(&mut |held| {
            let HeldBlocks { base, size, type_id, kept } = *held;
            let mut bits = vec![0; kept.len().div_ceil(64)];
            for (block, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
                bits[block / 64] |= 1 << (block % 64);
            }
            spans.insert(base, Span { size, type_id, kept: bits });
            Ok(())
        })?;
        let PuddleRecord { pool, index, addr, size, .. } = *body.puddle;
        self.puddles.insert(addr, Puddle { size, pool, spans });
        self.numbers.insert((pool, index), addr);
        Ok(())
    }

    fn region(&self, region: &RegionAddress) -> Option<u64> {
        let base = self.numbers.get(&(region.pool, region.puddle))?;
        base.checked_add(region.offset)
    }

    fn at(&self, addr: u64) -> At {
        let puddle = self.puddles.range(..=addr).next_back();
        match puddle.filter(|(base, puddle)| addr - *base < puddle.size) {
            None => At::Elsewhere,
            Some(_) => match self.find(addr) {
                Some((start, type_id, ..)) => At::Block(start, type_id),
                None => At::Nothing,
            },
        }
    }

    /// The allocated block around an address: its start, type, bytes and pool.
    fn find(&self, addr: u64) -> Option<(u64, TypeId, u64, PoolId)> {
        let (base, puddle) = self.puddles.range(..=addr).next_back()?;
        let offset = addr - base;
        if offset >= puddle.size {
            return None;
        }
        let (first, span) = puddle.spans.range(..=offset).next_back()?;
        let within = offset - first;
        let block = within / span.size;
        let word = span.kept.get((block / 64) as usize)?;
        let start = (word >> (block % 64) & 1 == 1).then_some(addr - within % span.size)?;
        Some((start, span.type_id, span.size, puddle.pool))
    }
}
