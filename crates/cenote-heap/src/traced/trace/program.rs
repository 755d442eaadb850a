//! Finds the pointers of a block: makes each type's record, or its filter, ready to be run over
//! many blocks.

pub(super) use crate::copied::load;
use crate::trace::{Filter, Types};
use cenote_layout::LINE_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{PointerField, TypeRecord};
use cenote_sys::peek;
use core::ptr::with_exposed_provenance;
use std::collections::HashMap;
use std::sync::Arc;

/// Set in the number of a program without pointers: blocks of its type are noted and not looked at.
pub(super) const LEAF: u32 = 1 << 31;
/// Set in the number of a program whose blocks' first line has no pointer: [`Program::first`] says
/// which has.
pub(super) const FAR: u32 = 1 << 30;
/// The bits that number programs.
pub(super) const NUMBER: u32 = FAR - 1;
/// In place of a program's number: any.
pub(super) const ANY: u32 = u32::MAX;
/// In place of a program's number: one that no block has.
const NONE: u32 = NUMBER;

/// Most pointers of a type that is written out pointer by pointer.
const FIXED_MAX: u64 = 32;

/// How a block is scanned.
pub(super) enum BlockScan {
    /// Every word may be a pointer.
    Words,
    /// There are none.
    Nothing,
    /// One value, whose pointers are always there.
    Fixed(Box<[PointerSlot]>),
    /// Anything else.
    Map(Box<Map>),
    Filter(Filter),
}

/// A pointer map.
pub(super) struct Map {
    pub(super) record: Arc<TypeRecord>,
    /// Pointers before each field.
    pub(super) starts: Vec<u64>,
    /// Pointers of all fields.
    pub(super) per_value: u64,
    /// What each field's pointers should lead to.
    pub(super) targets: Vec<PointerTarget>,
}

/// A pointer of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointerSlot {
    pub(super) offset: u64,
    /// Bits of the address.
    pub(super) mask: u64,
    pub(super) target: PointerTarget,
    pub(super) kind: PointerKind,
}

/// What a pointer should lead to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointerTarget {
    pub(super) type_id: TypeId,
    /// The number of that type's program, [`ANY`] or [`NONE`].
    pub(super) program: u32,
}

impl PointerTarget {
    pub(super) const UNKNOWN: Self = Self { type_id: TypeId::UNTYPED, program: ANY };

    pub(super) fn of(type_id: TypeId, numbers: &HashMap<TypeId, u32>) -> Self {
        let program = if type_id == TypeId::UNTYPED {
            ANY
        } else {
            numbers.get(&type_id).copied().unwrap_or(NONE)
        };
        Self { type_id, program }
    }
}

/// A type's program.
pub(super) struct Program {
    pub(super) scan: BlockScan,
    pub(super) type_id: TypeId,
    /// Byte of a block that is looked at first.
    pub(super) first: u64,
}

/// Byte of the first pointer of a value.
fn first_pointer(record: &TypeRecord) -> u64 {
    record.pointers.iter().map(|field| field.offset).min().unwrap_or(0)
}

impl BlockScan {
    pub(super) fn of(types: &dyn Types, type_id: TypeId) -> Self {
        if let Some(filter) = types.filter(type_id) {
            return Self::Filter(filter);
        }
        match types.record(type_id).filter(|record| record.check().is_ok()) {
            None => Self::Words,
            Some(record) if record.pointers.is_empty() => Self::Nothing,
            // Made whole by `Program::new`.
            Some(record) => Self::Map(Box::new(Map {
                record,
                starts: Vec::new(),
                per_value: 0,
                targets: Vec::new(),
            })),
        }
    }
}

impl BlockScan {
    /// Bytes of a value, if pointers are looked for by its record. To be asked before
    /// [`Program::new`].
    pub(super) fn value_size(&self) -> u64 {
        match self {
            Self::Map(map) => map.record.size,
            _ => 0,
        }
    }

    /// What is set in the number of such a program. To be asked before [`Program::new`].
    pub(super) fn flags(&self) -> u32 {
        match self {
            Self::Nothing => LEAF,
            Self::Map(map) if first_pointer(&map.record) >= LINE_SIZE => FAR,
            _ => 0,
        }
    }
}

impl Program {
    pub(super) fn new(type_id: TypeId, scan: BlockScan, numbers: &HashMap<TypeId, u32>) -> Self {
        let BlockScan::Map(mut map) = scan else {
            return Self { scan, type_id, first: 0 };
        };
        let record = &map.record;
        for field in &record.pointers {
            map.starts.push(map.per_value);
            // A value has less than 2^61 words, and a checked map at most 4,096 fields inside it.
            map.per_value = map.per_value.saturating_add(field.count);
            // A block that waits to be freed may lead to one of another type.
            let owned = field.kind == PointerKind::OWNED;
            let target = if owned { TypeId::UNTYPED } else { field.target };
            map.targets.push(PointerTarget::of(target, numbers));
        }
        let first = first_pointer(record);
        let always = record.pointers.iter().all(|field| field.conditions.is_empty());
        if record.repeats || !always || map.per_value > FIXED_MAX {
            return Self { scan: BlockScan::Map(map), type_id, first };
        }
        let slots = |(field, target): (&PointerField, &PointerTarget)| {
            let slot = PointerSlot {
                offset: field.offset,
                mask: !field.tag_mask,
                target: *target,
                kind: field.kind.followed(),
            };
            let stride = field.stride;
            (0..field.count).map(move |k| PointerSlot { offset: slot.offset + k * stride, ..slot })
        };
        let slots = record.pointers.iter().zip(&map.targets).flat_map(slots).collect();
        Self { scan: BlockScan::Fixed(slots), type_id, first }
    }
}

/// Whether the pointers of a field are there in the value at `value`, an address in a block.
/// `Err`: the address of a tag that cannot be read.
pub(super) fn holds(field: &PointerField, value: u64, size: u64) -> Result<bool, u64> {
    for condition in &field.conditions {
        let (at, len) = (condition.offset, u64::from(condition.size));
        if at.checked_add(len).is_none_or(|end| end > size)
            || !condition.is_tag(tag(value + at, len)?)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The `len` bytes of a tag at `addr`, in a block. A tag has no padding.
fn tag<'a>(addr: u64, len: u64) -> Result<&'a [u8], u64> {
    // SAFETY: the range lies in a block (the caller saw to that), and blocks lie in mappings. It
    // can be read. No thread changes data while it is traced; the tracer uses the slice at once.
    unsafe {
        if !peek::is_readable(addr as usize, len as usize) {
            return Err(addr);
        }
        Ok(core::slice::from_raw_parts(with_exposed_provenance(addr as usize), len as usize))
    }
}

/// A copy of a block, for a function that looks at all of it: padding has the value that memory
/// has. `addr` and `len` are multiples of 8. `Err`: the address of what cannot be read.
pub(super) fn copy_of(addr: u64, len: u64) -> Result<Vec<u8>, u64> {
    let mut copy = Vec::with_capacity(len as usize);
    for at in (addr..addr + len / 8 * 8).step_by(8) {
        copy.extend_from_slice(&load(at).ok_or(at)?.to_le_bytes());
    }
    Ok(copy)
}

/// Asks for the cache line of an address: a hint, which never faults.
#[inline(always)]
pub(super) fn prefetch(addr: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction, and any address will do.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(core::ptr::without_provenance(addr as usize));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = addr;
}
