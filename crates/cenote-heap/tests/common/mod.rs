//! What the tests share: pools in plain memory, and types.

#![allow(dead_code, unreachable_pub)] // each test program uses its own part

pub mod shared;

use cenote_heap::{Backing as _, MemoryBacking, MemoryOptions, TracedHeap};
use cenote_layout::heap::{Descriptor, HeapGeometry, SUPERBLOCK_SIZE};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{PointerField, RECORD_VERSION, TypeRecord};
use std::collections::HashMap;
use std::sync::Arc;

pub type Heap = TracedHeap<MemoryBacking>;
pub type TypeMap = HashMap<TypeId, Arc<TypeRecord>>;

pub const A: TypeId = TypeId(0xa);
pub const B: TypeId = TypeId(0xb);

pub fn backing(puddle_size: u64, size_max: u64) -> MemoryBacking {
    MemoryBacking::new(MemoryOptions { puddle_size, size_max, writable: true })
}

/// Bytes of the smallest root puddle with so many superblocks for blocks.
pub fn room_for(superblocks: u64) -> u64 {
    let room = |size: &u64| {
        HeapGeometry::new(*size, true)
            .is_some_and(|g| g.superblocks - g.first_usable >= superblocks)
    };
    (2..).map(|count| count * SUPERBLOCK_SIZE).find(room).unwrap()
}

pub fn heap(puddle_size: u64, size_max: u64) -> Heap {
    TracedHeap::open(backing(puddle_size, size_max)).unwrap()
}

pub fn record(
    id: TypeId,
    size: u64,
    repeats: bool,
    pointers: Vec<PointerField>,
) -> Arc<TypeRecord> {
    let record = TypeRecord {
        version: RECORD_VERSION,
        id,
        name: format!("test::{id}"),
        size,
        align: 8,
        repeats,
        pointers,
        fields: Vec::new(),
        variants: Vec::new(),
    };
    record.check().unwrap();
    Arc::new(record)
}

/// Pointers at `offset`, one after the other.
pub fn field(offset: u64, count: u64, target: TypeId) -> PointerField {
    pointers(offset, count, target, PointerKind::NATIVE)
}

/// Pointers of any kind at `offset`, one after the other.
pub fn pointers(offset: u64, count: u64, target: TypeId, kind: PointerKind) -> PointerField {
    PointerField { offset, stride: 8, count, kind, tag_mask: 0, target, conditions: Vec::new() }
}

pub fn write(addr: u64, offset: u64, value: u64) {
    // SAFETY: tests write into blocks that they allocated, at offsets inside.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>((addr + offset) as usize).write(value) }
}

pub fn read(addr: u64, offset: u64) -> u64 {
    // SAFETY: as in `write`.
    unsafe { std::ptr::with_exposed_provenance::<u64>((addr + offset) as usize).read() }
}

pub fn zero(addr: u64, len: u64) {
    // SAFETY: as in `write`.
    unsafe {
        std::ptr::with_exposed_provenance_mut::<u8>(addr as usize).write_bytes(0, len as usize)
    }
}

/// Flips a bit in the descriptor of the superblock that `addr` is in.
pub fn damage_descriptor(backing: &MemoryBacking, addr: u64) {
    let extent =
        backing.extents().into_iter().find(|p| addr >= p.addr && addr < p.addr + p.size).unwrap();
    let geometry = HeapGeometry::new(extent.size, extent.index == 0).unwrap();
    let number = (addr - extent.addr) / SUPERBLOCK_SIZE;
    let at = extent.addr + geometry.descriptors + number * size_of::<Descriptor>() as u64;
    write(at, 8, read(at, 8) ^ 1);
}

/// A small generator of repeatable random numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
