//! The record that an unfinished copy of a pool keeps in itself ([`crate::copy_pool`]), and the
//! refusal to use such a pool.
//!
//! They are ordinary typed data of the pool. The last numbered root leads to a *work header*, which
//! keeps where that root is to lead when the copy is finished:
//!
//! ```text
//! root 1023 --> Copying:  state | source | counts | last root
//!                           |--> CopyRoots: the source's numbered roots
//!                           |--> entries:   [--> CopyEntries: 1,024 of (address there, copy)] ...
//!                           +--> index:     [--> CopyIndex: 4,096 numbers of entries] ...
//! ```
//!
//! Addresses in the source are numbers here, and no pointers. Those of copies are pointers, so
//! tracing finds all copies.

use crate::copy_refused::CopyRefused;
use crate::error::Result;
use crate::names::{DIRECTORY_ROOT, RootTarget, persist};
use crate::open_pool::PoolInner;
use crate::persist::{ArrayOf, LayoutBuilder, Persist, TypeId};
use crate::ptr::Ptr;
use cenote_heap::Heap;
use cenote_layout::catalog::POOL_NAME_LEN_MAX;
use cenote_layout::heap::ROOT_COUNT;
use cenote_medium::planted::{Bug, CopyBug, planted};
use core::mem::offset_of;

/// Entries of a part of the table.
pub(crate) const ENTRIES: u64 = 1024;
/// Slots of a part of the index.
pub(crate) const SLOTS: u64 = 4096;
const NAME_ROOM: usize = POOL_NAME_LEN_MAX + 1;

/// The state of a copy: values and pointers are being copied.
pub(crate) const COPYING: u64 = 1;
/// All is copied, and the table goes away.
pub(crate) const CLEARING: u64 = 2;

/// What is known of a copy.
#[repr(C)]
pub(crate) struct Copying {
    pub(crate) state: u64,
    /// The source's store and number.
    pub(crate) store: [u8; 16],
    pub(crate) source: u64,
    /// Most blocks: as many as the source had.
    pub(crate) capacity: u64,
    /// Blocks that have a copy.
    pub(crate) count: u64,
    /// Those of them, from the first on, whose pointers are written.
    pub(crate) scanned: u64,
    /// Bytes that were copied.
    pub(crate) bytes: u64,
    /// Slots of the index, a power of two.
    pub(crate) slots: u64,
    /// Where the last numbered root leads in the end.
    pub(crate) last: RootTarget,
    pub(crate) roots: Option<Ptr<CopyRoots>>,
    pub(crate) entries: Option<Ptr<ArrayOf<Option<Ptr<CopyEntries>>>>>,
    pub(crate) index: Option<Ptr<ArrayOf<Option<Ptr<CopyIndex>>>>>,
    /// The source's name.
    pub(crate) name_len: u64,
    pub(crate) name: [u8; NAME_ROOM],
}

/// Address and type of each numbered root of the source.
#[repr(C)]
pub(crate) struct CopyRoots {
    pub(crate) roots: [u64; 2 * ROOT_COUNT as usize],
}

/// A block that has a copy. 0: none.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CopyEntry {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Part of the table, in the order in which blocks were found.
#[repr(C)]
pub(crate) struct CopyEntries {
    pub(crate) entries: [CopyEntry; ENTRIES as usize],
}

/// Part of the index: numbers of entries, from 1 on, by a hash of their addresses in the source.
#[repr(C)]
pub(crate) struct CopyIndex {
    pub(crate) slots: [u32; SLOTS as usize],
}

const _: () = assert!(size_of::<CopyEntries>() == 16 << 10 && size_of::<CopyIndex>() == 16 << 10);

persist!("cenote/Copying", Copying, |layout| {
    layout.field::<u64>("state", offset_of!(Self, state));
    layout.field::<[u8; 16]>("store", offset_of!(Self, store));
    layout.field::<u64>("source", offset_of!(Self, source));
    layout.field::<u64>("capacity", offset_of!(Self, capacity));
    layout.field::<u64>("count", offset_of!(Self, count));
    layout.field::<u64>("scanned", offset_of!(Self, scanned));
    layout.field::<u64>("bytes", offset_of!(Self, bytes));
    layout.field::<u64>("slots", offset_of!(Self, slots));
    layout.field::<RootTarget>("last", offset_of!(Self, last));
    layout.field::<Option<Ptr<CopyRoots>>>("roots", offset_of!(Self, roots));
    layout.field::<Option<Ptr<ArrayOf<Option<Ptr<CopyEntries>>>>>>(
        "entries",
        offset_of!(Self, entries),
    );
    layout.field::<Option<Ptr<ArrayOf<Option<Ptr<CopyIndex>>>>>>("index", offset_of!(Self, index));
    layout.field::<u64>("name_len", offset_of!(Self, name_len));
    layout.field::<[u8; NAME_ROOM]>("name", offset_of!(Self, name));
});
persist!("cenote/CopyRoots", CopyRoots, |layout| {
    layout.field::<[u64; 2 * ROOT_COUNT as usize]>("roots", offset_of!(Self, roots));
});
persist!("cenote/CopyEntry", CopyEntry, |layout| {
    layout.field::<u64>("from", offset_of!(Self, from));
    layout.field::<u64>("to", offset_of!(Self, to));
    layout.untyped_pointer(offset_of!(Self, to));
});
persist!("cenote/CopyEntries", CopyEntries, |layout| {
    layout.field::<[CopyEntry; ENTRIES as usize]>("entries", offset_of!(Self, entries));
});
persist!("cenote/CopyIndex", CopyIndex, |layout| {
    layout.field::<[u32; SLOTS as usize]>("slots", offset_of!(Self, slots));
});

impl Copying {
    /// The source's name, as far as it is text.
    pub(crate) fn source_name(&self) -> String {
        let len = (self.name_len as usize).min(NAME_ROOM);
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }
}

/// The work header of a pool that is an unfinished copy.
///
/// # Errors
/// The header is damaged, or no live block.
pub(crate) fn unfinished(pool: &PoolInner) -> Result<Option<Ptr<Copying>>> {
    let Ok(entry) = pool.heap.root(DIRECTORY_ROOT) else { return Ok(None) };
    if entry.addr == 0 || entry.type_id != Copying::TYPE_ID {
        return Ok(None);
    }
    pool.know::<Copying>()?;
    if !pool.is_live::<Copying>(entry.addr) {
        return Err(pool.dangling::<Copying>(entry.addr));
    }
    pool.readable(entry.addr, size_of::<Copying>())?;
    // SAFETY: a live block of this type, whose layout the store has confirmed.
    Ok(unsafe { Ptr::from_addr(entry.addr) })
}

/// Refuses to open a pool that is an unfinished copy. A root that cannot be read is for those that
/// read roots.
///
/// # Errors
/// It is one, of the named pool.
pub(crate) fn refuse_unfinished(pool: &PoolInner) -> Result<()> {
    if planted(Bug::Copy(CopyBug::OpensUnfinished)) {
        return Ok(());
    }
    if unfinished(pool)?.is_none() {
        return Ok(());
    }
    // The copy may be under way in another thread, and end meanwhile. This thread has no
    // transaction on such a pool, so it does not wait for itself.
    let _held = pool.lock.read_recursive();
    let Some(header) = unfinished(pool)? else { return Ok(()) };
    // SAFETY: a live block of this type, as `unfinished` has seen, which no thread changes while
    // the pool's lock is held.
    let from = unsafe { header.as_ref() }.source_name();
    Err(CopyRefused::Unfinished { pool: pool.handle.name().into(), from }.into())
}
