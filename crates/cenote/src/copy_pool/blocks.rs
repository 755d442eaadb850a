//! The source's blocks: their types, and their bytes piece by piece.
//!
//! A block is copied whole, also what lies behind its value: a program of the raw interface may
//! keep something there. A piece is as much as is looked at together: whole values, or bytes
//! without pointers.

use super::Names;
use super::pointers::Within;
use crate::copy_refused::CopyRefused;
use crate::error::Result;
use crate::lost::touch;
use crate::open_pool::PoolInner;
use crate::registry::StoreTypes;
use cenote_heap::{BlockInfo, Heap, Types};
use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use cenote_sys::bytes::settle;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a piece that holds many values.
const STEP: u64 = 64 << 10;

/// A part of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Whether it holds values with pointers.
    pub(super) has_pointers: bool,
}

/// Piece `number` of a block of `size` bytes; `None` behind the last one.
pub(super) fn piece(record: &TypeRecord, size: u64, number: u64) -> Option<Piece> {
    // Values with pointers come first, in pieces of `step` bytes.
    let value = record.size.max(1);
    let (step, values) = match record.repeats {
        _ if record.pointers.is_empty() || size < record.size => (STEP, 0),
        true => ((STEP / value).max(1) * value, size / value * value),
        false => (value, value),
    };
    let pieces = values.div_ceil(step);
    if number < pieces {
        let offset = number * step;
        return Some(Piece { offset, len: step.min(values - offset), has_pointers: true });
    }
    let offset = values + (number - pieces).checked_mul(STEP)?;
    let len = size.checked_sub(offset).filter(|len| *len > 0)?.min(STEP);
    Some(Piece { offset, len, has_pointers: false })
}

/// Copies bytes of a block.
///
/// # Errors
/// They lie on a page that cannot be read.
///
/// # Safety
/// They are bytes of a live block of the pool, which no thread changes meanwhile.
pub(super) unsafe fn read(pool: &PoolInner, addr: u64, bytes: &mut [u8]) -> Result<()> {
    // SAFETY: the caller's. What the copy takes along of padding is settled.
    unsafe {
        touch(addr as usize, bytes.len()).map_err(|lost| pool.handle.unreadable(lost.0))?;
        let from = core::ptr::with_exposed_provenance::<u8>(addr as usize);
        core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        settle(bytes.as_mut_ptr(), bytes.len());
    }
    Ok(())
}

/// The blocks of the source. A view keeps writers out of it.
pub(super) struct Blocks<'p> {
    pub(super) source: &'p PoolInner,
    pub(super) names: Names<'p>,
    records: RefCell<HashMap<TypeId, Arc<TypeRecord>>>,
}

impl<'p> Blocks<'p> {
    pub(super) fn new(source: &'p PoolInner, names: Names<'p>) -> Self {
        Self { source, names, records: RefCell::default() }
    }

    /// How a block's type is described. One of a type with a filter of this program has pointers
    /// that its record need not name.
    pub(super) fn record(&self, block: &BlockInfo) -> Result<Arc<TypeRecord>> {
        let id = block.type_id;
        if let Some(record) = self.records.borrow().get(&id) {
            return Ok(Arc::clone(record));
        }
        let types = StoreTypes(&self.source.store.store);
        let known = types.record(id).filter(|record| {
            id != TypeId::UNTYPED && record.check().is_ok() && types.filter(id).is_none()
        });
        let Some(record) = known else {
            let from = self.names.from.into();
            return Err(CopyRefused::NoRecord { from, block: block.addr, type_id: id }.into());
        };
        self.records.borrow_mut().insert(id, Arc::clone(&record));
        Ok(record)
    }

    /// The block that was copied, as it is now; `None`: none begins there any more.
    pub(super) fn block(&self, addr: u64) -> Option<BlockInfo> {
        self.source.heap.owner(addr).filter(|block| block.addr == addr)
    }

    /// The bytes of a piece, at the end of `bytes`.
    pub(super) fn bytes(&self, block: &BlockInfo, piece: Piece, into: &mut Vec<u8>) -> Result<()> {
        into.clear();
        into.resize(piece.len as usize, 0);
        // SAFETY: inside a live block; the copy's view of the source keeps writers out.
        unsafe { read(self.source, block.addr + piece.offset, into) }
    }
}

/// A block for messages.
pub(super) fn within<'a>(block: &BlockInfo, record: &'a TypeRecord) -> Within<'a> {
    Within { block: block.addr, type_name: &record.name }
}

/// The word at an offset of a piece.
pub(super) fn word(bytes: &[u8], offset: usize) -> u64 {
    let found = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |word| u64::from_le_bytes(*word))
}

/// Writes one.
pub(super) fn set_word(bytes: &mut [u8], offset: usize, value: u64) {
    if let Some(place) = bytes.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value.to_le_bytes();
    }
}
