//! Scans a heap puddle, by its file, or by an open pool that is protected at rest: for the types of
//! its blocks, and for pointers to other pools.
//!
//! Nothing is mapped, and the application is not asked: the heap says where blocks of which type
//! lie ([`PoolImages`]), and the types' pointer maps where the pointers are. Blocks without a type
//! are not looked at: what is in them may be pointers or not.
//!
//! Blocks that lie side by side are read together, and of a large block as many values as fit into
//! [`STEP`], so memory is bounded by that and by the size of one value.

use super::ArchivingError;
use cenote_heap::PoolImages;
use cenote_heap::image::{HeldBlocks, ReadImage};
use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_layout::heap::{ROOT_COUNT, RootSlot};
use cenote_layout::id::{PoolId, TypeId};
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_heap, decode_relative};
use cenote_layout::types::{PointerField, TypeRecord};
use cenote_layout::values::Values;
use cenote_medium::planted::{Bug, PointerBug, planted};
use cenote_store::relocate::{PoolBlocks, TypeTable};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::FromBytes;

/// Bytes that are read at once.
const STEP: u64 = 1 << 20;

/// Reads bytes of a puddle's body.
pub(super) type ReadAt<'a> = cenote_heap::image::ReadAt<'a, ArchivingError>;

/// The list of the blocks of a pool whose puddles do not describe their own. `read` reads what the
/// puddle of a number holds.
pub(super) fn described_apart(
    (pool, heap): (&str, HeapKind),
    puddles: &[PuddleRecord],
    read: ReadImage<'_, ArchivingError>,
) -> Result<Option<PoolBlocks>, ArchivingError> {
    let damaged = |detail: String| ArchivingError::Damaged { pool: pool.into(), detail };
    PoolImages::blocks(heap, puddles, read)?.map_err(damaged)
}

/// What the scan needs to know of a store.
pub(super) struct ScanWorld<'a> {
    /// A type's record.
    pub(super) type_of: &'a dyn Fn(TypeId) -> Option<Arc<TypeRecord>>,
    /// Puddles of pools, by address: first address, first behind it, pool.
    places: Vec<(u64, u64, PoolId)>,
}

impl<'a> ScanWorld<'a> {
    pub(super) fn new(
        type_of: &'a dyn Fn(TypeId) -> Option<Arc<TypeRecord>>,
        puddles: &[PuddleRecord],
    ) -> Self {
        let pools = puddles.iter().filter(|puddle| puddle.pool.0 != 0);
        let mut places: Vec<_> = pools
            .map(|puddle| (puddle.addr, puddle.addr.saturating_add(puddle.size), puddle.pool))
            .collect();
        places.sort_unstable();
        Self { type_of, places }
    }

    /// The pool in which an address lies; the first one behind a puddle, where a pointer past the
    /// end of its last block leads, is its own, also where another puddle begins there: see
    /// [`cenote_layout::moves`].
    fn pool_at(&self, addr: u64) -> Option<PoolId> {
        let at = self.places.partition_point(|place| place.0 < addr);
        let before =
            at.checked_sub(1).and_then(|at| self.places.get(at)).filter(|place| addr <= place.1);
        let place = before.or_else(|| self.places.get(at).filter(|place| place.0 == addr));
        place.map(|place| place.2)
    }
}

/// Where pointers lead that leave their pool.
#[derive(Clone, Debug, Default)]
pub(super) struct FoundReferences {
    /// Types of allocated blocks.
    pub(super) types: BTreeSet<TypeId>,
    /// By pool: pointers, and the type of a block that has one.
    pub(super) foreign: BTreeMap<PoolId, (u64, TypeId)>,
}

/// The heap puddle that is looked at, in a file or in an open pool.
pub(super) struct Body<'a> {
    /// Reads what the puddle holds, from an offset on.
    pub(super) bytes: ReadAt<'a>,
    pub(super) puddle: &'a PuddleRecord,
    /// Where blocks lie in it.
    pub(super) images: PoolImages<'a>,
}

impl Body<'_> {
    fn read(&self, offset: u64, len: u64, bytes: &mut Vec<u8>) -> Result<(), ArchivingError> {
        bytes.resize(len as usize, 0);
        (self.bytes)(offset, bytes)
    }

    /// Calls `visit` for all that is allocated, as the heap says. What `visit` gets lies in the
    /// puddle.
    pub(super) fn each_held(
        &self,
        visit: &mut dyn FnMut(&HeldBlocks<'_>) -> Result<(), ArchivingError>,
    ) -> Result<(), ArchivingError> {
        self.images.each_held(self.puddle, self.bytes, visit)
    }

    /// Calls `visit` with the bytes of the allocated blocks: the block's offset in the puddle, the
    /// offset of the bytes in the block, and the bytes. Of a block that `repeats` values of
    /// `value` bytes, as many whole values at a time as fit into [`STEP`]; of a large one that does
    /// not, its value.
    pub(super) fn each_block(
        &self,
        held: &HeldBlocks<'_>,
        value: u64,
        repeats: bool,
        bytes: &mut Vec<u8>,
        visit: &mut dyn FnMut(u64, u64, &[u8]),
    ) -> Result<(), ArchivingError> {
        let HeldBlocks { base, size, .. } = *held;
        // One by itself may have any size.
        if held.kept.len() > 1 {
            self.read(base, held.kept.len() as u64 * size, bytes)?;
            for ((block, kept), bytes) in
                (0u64..).zip(held.kept).zip(bytes.chunks_exact(size as usize))
            {
                if *kept {
                    visit(base + block * size, 0, bytes);
                }
            }
            return Ok(());
        }
        let step = if repeats { (STEP / value.max(1)).max(1) * value } else { value };
        let mut at = 0;
        while step > 0 && at < size {
            let len = step.min(size - at);
            self.read(base + at, len, bytes)?;
            visit(base, at, bytes);
            if !repeats {
                break;
            }
            at += len;
        }
        Ok(())
    }
}

/// One puddle that is looked at.
pub(super) struct PuddleScan<'a> {
    pub(super) body: Body<'a>,
    pub(super) world: &'a ScanWorld<'a>,
    /// Whether pointers are looked at, not just types.
    pub(super) pointers: bool,
}

impl PuddleScan<'_> {
    /// Adds what is in the puddle to `found`.
    pub(super) fn run(&self, found: &mut FoundReferences) -> Result<(), ArchivingError> {
        if let Some(roots) = self.body.images.roots(self.body.puddle, self.body.bytes)? {
            self.roots(roots, found)?;
        }
        let mut bytes = Vec::new();
        self.body.each_held(&mut |held| {
            found.types.insert(held.type_id);
            let record =
                (self.world.type_of)(held.type_id).filter(|_| held.type_id != TypeId::UNTYPED);
            let Some(record) = record.filter(|record| self.pointers && !record.pointers.is_empty())
            else {
                return Ok(());
            };
            self.body.each_block(
                held,
                record.size,
                record.repeats,
                &mut bytes,
                &mut |block, at, bytes| {
                    self.values(block + at, bytes, &record, found);
                },
            )
        })
    }

    fn roots(&self, roots: u64, found: &mut FoundReferences) -> Result<(), ArchivingError> {
        let mut bytes = Vec::new();
        self.body.read(roots, ROOT_COUNT * size_of::<RootSlot>() as u64, &mut bytes)?;
        for slot in bytes.chunks_exact(size_of::<RootSlot>()) {
            let Some(entry) = RootSlot::read_from_bytes(slot).ok().and_then(|slot| slot.read())
            else {
                continue;
            };
            if entry.addr != 0 {
                self.leads(self.world.pool_at(entry.addr), entry.type_id, found);
            }
        }
        Ok(())
    }

    fn values(&self, offset: u64, bytes: &[u8], record: &TypeRecord, found: &mut FoundReferences) {
        let addr = self.body.puddle.addr.saturating_add(offset);
        record.for_each_pointer(bytes, &mut |at, field| {
            let Some(word) = bytes.get(at..at + 8).and_then(|word| word.try_into().ok()) else {
                return;
            };
            let word = u64::from_le_bytes(word);
            if word != 0 {
                self.leads(self.target(addr + at as u64, word, field), record.id, found);
            }
        });
    }

    /// The pool that a word leads to.
    fn target(&self, at: u64, word: u64, field: &PointerField) -> Option<PoolId> {
        let tag =
            if planted(Bug::Pointer(PointerBug::TagsKeptInScan)) { 0 } else { field.tag_mask };
        let native = || self.world.pool_at(word & !tag);
        let relative = || self.world.pool_at(decode_relative(at, word)?);
        let region = || RegionAddress::decode(word).map(|place| place.pool);
        match field.kind.followed() {
            PointerKind::NATIVE => native(),
            PointerKind::RELATIVE => relative(),
            PointerKind::REGION => {
                region().filter(|_| !planted(Bug::Pointer(PointerBug::RegionsLeftOut)))
            }
            PointerKind::HEAP => decode_heap(word),
            _ => region().or(decode_heap(word)).or_else(relative).or_else(native),
        }
    }

    fn leads(&self, pool: Option<PoolId>, from: TypeId, found: &mut FoundReferences) {
        if let Some(pool) = pool.filter(|pool| *pool != self.body.puddle.pool) {
            found.foreign.entry(pool).or_insert((0, from)).0 += 1;
        }
    }
}

/// The types, and all that they lead to by pointers, fields and arrays, as far as the store knows
/// them.
pub(super) fn closure(types: &BTreeSet<TypeId>, known: &TypeTable) -> Vec<TypeRecord> {
    let names = Values::new(known.values().cloned());
    let mut done = BTreeMap::new();
    let mut todo: Vec<TypeId> = types.iter().copied().collect();
    while let Some(id) = todo.pop() {
        if done.contains_key(&id) {
            continue;
        }
        let Some(record) = known.get(&id) else { continue };
        let fields =
            record.fields.iter().chain(record.variants.iter().flat_map(|variant| &variant.fields));
        todo.extend(fields.filter_map(|field| names.declared(field)));
        todo.extend(record.pointers.iter().map(|pointer| pointer.target));
        done.insert(id, (**record).clone());
    }
    done.into_values().collect()
}

/// Whether a stretch is all zeros.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|line| line.iter().fold(0, |sum, byte| sum | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::puddle::Role;

    fn puddle(pool: u64, addr: u64) -> PuddleRecord {
        PuddleRecord {
            uuid: cenote_layout::id::Uuid([1; 16]),
            pool: PoolId(pool),
            role: Role::Heap,
            index: 0,
            addr,
            size: 0x10_0000,
        }
    }

    #[test]
    fn an_address_is_in_the_pool_of_its_puddle_and_the_one_behind_too() {
        let puddles = [
            puddle(1, 0x40_0000),
            puddle(0, 0x80_0000),
            puddle(2, 0x20_0000),
            puddle(3, 0x50_0000),
        ];
        let world = ScanWorld::new(&|_| None, &puddles);
        for (addr, pool) in [
            (0x1f_ffff, None),
            (0x20_0000, Some(2)),
            (0x30_0000, Some(2)),
            (0x30_0001, None),
            (0x40_0000, Some(1)),
            (0x50_0000, Some(1)),
            (0x50_0001, Some(3)),
            (0x60_0000, Some(3)),
            (0x60_0001, None),
            (0x80_0010, None),
            (u64::MAX, None),
        ] {
            assert_eq!(world.pool_at(addr), pool.map(PoolId), "{addr:#x}");
        }
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        let mut page = vec![0; 4096];
        assert!(is_zero(&page));
        for at in [0, 63, 64, 1000, 4095] {
            page[at] = 0x10;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }
}
