//! The table of a copy: which block of the source has which copy. It lies in the copy's own pool
//! ([`crate::copying`]), and a transaction that allocates a copy also enters it.
//!
//! Entries stand in the order in which blocks were found, so they are the queue of those whose
//! pointers are still to be written, too. An index with linear probing finds an entry by its
//! address in the source. It has at least two slots for each block, so it never fills up. Parts of
//! both are made when they are needed.

use crate::copying::{COPYING, CopyEntry, CopyRoots, Copying};
use crate::copying::{ENTRIES, SLOTS};
use crate::error::{Error, Result};
use crate::names::DIRECTORY_ROOT;
use crate::open_pool::PoolInner;
use crate::persist::{ArrayOf, Persist};
use crate::ptr::Ptr;
use crate::tx::Tx;
use cenote_layout::heap::{ROOT_COUNT, RootEntry};
use cenote_layout::id::PoolId;
use cenote_medium::planted::{Bug, CopyBug, planted};

/// Most blocks that one copy keeps track of: their numbers have 32 bits.
pub(super) const BLOCKS_MAX: u64 = u32::MAX as u64 - 1;

/// Parts of a table, or of its index.
type Parts<T> = ArrayOf<Option<Ptr<T>>>;

/// What a new table is told.
pub(super) struct Begin<'a> {
    pub(super) store: [u8; 16],
    pub(super) source: PoolId,
    pub(super) name: &'a str,
    /// Blocks that the source has.
    pub(super) blocks: u64,
    pub(super) roots: &'a [RootEntry],
}

/// The table of one copy. The pool is this copy's alone: nothing else reads or writes it.
pub(super) struct Table<'p> {
    pool: &'p PoolInner,
    header: Ptr<Copying>,
    /// Entries from here on were made by this session.
    own_from: u64,
}

/// Logs a value and writes another one in its place.
///
/// # Safety
/// The place lies in a live block of a pool of the transaction, and nothing refers to it.
pub(super) unsafe fn put<T: Copy>(tx: &mut Tx<'_>, place: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller's.
    unsafe {
        tx.raw_mut().add(place.cast(), size_of::<T>())?;
        place.write(value);
    }
    Ok(())
}

/// A block of zeros. All types of this module take zeros for a value.
fn zeroed<T: Persist>(tx: &mut Tx<'_>) -> Result<Ptr<T>> {
    let pool = tx.first_pool();
    pool.know::<T>()?;
    let layout = (size_of::<T>() as u64, align_of::<T>() as u64);
    let place = tx.alloc_block(pool, layout, T::TYPE_ID)?.cast::<T>();
    // SAFETY: a fresh block of this size, of this transaction alone, which can be written.
    unsafe {
        place.write_bytes(0, 1);
        Ok(Ptr::from_non_null(place))
    }
}

/// Room for parts, none of which is there.
fn no_parts<T: Persist>(tx: &mut Tx<'_>, parts: u64) -> Result<Ptr<Parts<T>>> {
    let pool = tx.first_pool();
    pool.know::<Parts<T>>()?;
    let (place, _) = tx.alloc_zeroed(pool, (8, 8), parts as usize, Parts::<T>::TYPE_ID)?;
    // SAFETY: the address of a block of this type.
    Ok(unsafe { Ptr::from_non_null(place.cast()) })
}

/// Makes a pool an unfinished copy: **the commit of this transaction begins it**.
pub(super) fn begin(tx: &mut Tx<'_>, with: &Begin<'_>) -> Result<()> {
    let slots = (2 * with.blocks).next_power_of_two().max(SLOTS);
    let header = zeroed::<Copying>(tx)?;
    let roots = zeroed::<CopyRoots>(tx)?;
    let entries = no_parts(tx, with.blocks.div_ceil(ENTRIES))?;
    let index = no_parts(tx, slots / SLOTS)?;
    // SAFETY: fresh blocks, zeroed, of this transaction alone.
    let (header_in, roots_in) = unsafe { (header.as_mut(), roots.as_mut()) };
    for (number, root) in with.roots.iter().enumerate() {
        roots_in.roots[2 * number] = root.addr;
        roots_in.roots[2 * number + 1] = root.type_id.0;
    }
    *header_in = Copying {
        state: COPYING,
        store: with.store,
        source: with.source.0,
        capacity: with.blocks,
        count: 0,
        scanned: 0,
        bytes: 0,
        slots,
        last: RootEntry::NONE.into(),
        roots: Some(roots),
        entries: Some(entries),
        index: Some(index),
        name_len: with.name.len() as u64,
        name: core::array::from_fn(|at| with.name.as_bytes().get(at).copied().unwrap_or(0)),
    };
    let entry = RootEntry { addr: header.addr(), type_id: Copying::TYPE_ID };
    let pool = tx.first_pool();
    tx.write_root_slot(pool, DIRECTORY_ROOT, entry)
}

/// Which field of the header is changed.
#[derive(Clone, Copy)]
pub(super) enum Count {
    State,
    Scanned,
    Bytes,
}

impl<'p> Table<'p> {
    /// The table of a pool that is an unfinished copy.
    pub(super) fn new(pool: &'p PoolInner, header: Ptr<Copying>) -> Self {
        let mut table = Self { pool, header, own_from: 0 };
        table.own_from = table.header().count;
        table
    }

    pub(super) fn header(&self) -> &Copying {
        // SAFETY: a live block, as the constructor's caller has seen; only this copy changes it, by
        // calls that borrow no header.
        unsafe { self.header.as_ref() }
    }

    /// A value that the table refers to, or why its page cannot be read.
    fn follow<T>(&self, ptr: Ptr<T>) -> Result<&T> {
        // SAFETY: a live block that the header leads to, which only this copy changes.
        unsafe { ptr.follow() }.map_err(|lost| Error::from(self.pool.handle.unreadable(lost.0)))
    }

    /// Where the pointer to a part lies.
    fn part_slot<T>(parts: Option<Ptr<Parts<T>>>, number: u64) -> Option<*mut Option<Ptr<T>>> {
        let first = parts?.as_ptr().cast::<Option<Ptr<T>>>();
        Some(first.wrapping_add(number as usize))
    }

    /// A part, if it was made.
    fn part<T>(&self, parts: Option<Ptr<Parts<T>>>, number: u64) -> Option<Ptr<T>> {
        // SAFETY: the header's blocks have room for as many parts as its counts say.
        Self::part_slot(parts, number).and_then(|slot| unsafe { slot.read() })
    }

    /// A part, which is made now if it is not there.
    fn made<T: Persist>(
        &self,
        tx: &mut Tx<'_>,
        parts: Option<Ptr<Parts<T>>>,
        number: u64,
    ) -> Result<Ptr<T>> {
        if let Some(part) = self.part(parts, number) {
            return Ok(part);
        }
        let part = zeroed::<T>(tx)?;
        if let Some(slot) = Self::part_slot(parts, number) {
            // SAFETY: as in `part`; no reference to it lives.
            unsafe { put(tx, slot, Some(part))? };
        }
        Ok(part)
    }

    /// Entry `number`, which is less than the count.
    pub(super) fn entry(&self, number: u64) -> Result<CopyEntry> {
        match self.part(self.header().entries, number / ENTRIES) {
            Some(part) => Ok(self.follow(part)?.entries[(number % ENTRIES) as usize]),
            None => Ok(CopyEntry { from: 0, to: 0 }),
        }
    }

    /// The source's root `number` as it was when the copy began.
    pub(super) fn root(&self, number: u16) -> Result<RootEntry> {
        let Some(roots) = self.header().roots else { return Ok(RootEntry::NONE) };
        let at = 2 * usize::from(number);
        let roots = &self.follow(roots)?.roots;
        Ok(RootEntry { addr: roots[at], type_id: cenote_layout::id::TypeId(roots[at + 1]) })
    }

    fn first_slot(&self, from: u64) -> u64 {
        let hash = from.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash >> (64 - self.header().slots.trailing_zeros())
    }

    /// What slot `at` of the index says; 0: nothing.
    fn slot(&self, at: u64) -> Result<u32> {
        match self.part(self.header().index, at / SLOTS) {
            Some(part) => Ok(self.follow(part)?.slots[(at % SLOTS) as usize]),
            None => Ok(0),
        }
    }

    /// The copy of the block at an address of the source, and otherwise the slot for it.
    fn probe(&self, from: u64) -> Result<core::result::Result<u64, u64>> {
        let mask = self.header().slots - 1;
        let mut at = self.first_slot(from);
        loop {
            let number = u64::from(self.slot(at)?);
            if number == 0 {
                return Ok(Err(at));
            }
            let forgotten = planted(Bug::Copy(CopyBug::TableForgotten)) && number <= self.own_from;
            let entry = self.entry(number - 1)?;
            if entry.from == from && !forgotten {
                return Ok(Ok(entry.to));
            }
            at = (at + 1) & mask;
        }
    }

    /// The copy of the block at an address of the source.
    pub(super) fn copy_of(&self, from: u64) -> Result<Option<u64>> {
        Ok(self.probe(from)?.ok())
    }

    /// Whether there is room for one more entry.
    pub(super) fn has_room(&self) -> bool {
        self.header().count < self.header().capacity
    }

    /// Enters a copy that the transaction has made. There is room, and none for this block.
    pub(super) fn enter(&self, tx: &mut Tx<'_>, from: u64, to: u64) -> Result<()> {
        let number = self.header().count;
        let Err(at) = self.probe(from)? else { return Ok(()) };
        let entries = self.made(tx, self.header().entries, number / ENTRIES)?.as_ptr();
        let index = self.made(tx, self.header().index, at / SLOTS)?.as_ptr();
        // SAFETY: places of live blocks of the transaction's pool, to which no reference lives: the
        // table gives copies of its values out, and counts alone.
        unsafe {
            let entry = &raw mut (*entries).entries[(number % ENTRIES) as usize];
            put(tx, entry, CopyEntry { from, to })?;
            put(tx, &raw mut (*index).slots[(at % SLOTS) as usize], number as u32 + 1)?;
            put(tx, &raw mut (*self.header.as_ptr()).count, number + 1)
        }
    }

    /// Changes a field of the header.
    pub(super) fn set(&self, tx: &mut Tx<'_>, count: Count, value: u64) -> Result<()> {
        let header = self.header.as_ptr();
        // SAFETY: a field of a live block, to which no reference lives.
        unsafe {
            let place = match count {
                Count::State => &raw mut (*header).state,
                Count::Scanned => &raw mut (*header).scanned,
                Count::Bytes => &raw mut (*header).bytes,
            };
            put(tx, place, value)
        }
    }

    /// Says where the last numbered root leads in the end.
    pub(super) fn set_last(&self, tx: &mut Tx<'_>, root: RootEntry) -> Result<()> {
        // SAFETY: a field of a live block, to which no reference lives.
        unsafe { put(tx, &raw mut (*self.header.as_ptr()).last, root.into()) }
    }

    /// Frees parts of the table, at most so many; whether there were any.
    pub(super) fn free_parts(&self, tx: &mut Tx<'_>, most: usize) -> Result<bool> {
        let header = self.header();
        let (entries, index) = (header.entries, header.index);
        let parts = header.capacity.div_ceil(ENTRIES);
        let left = free_some(tx, self, (entries, parts), most)?;
        let parts = header.slots / SLOTS;
        Ok(free_some(tx, self, (index, parts), left)? < most)
    }

    /// Ends the copy: the last numbered root leads where the source's did, and nothing is left of
    /// the table. **The commit of this transaction finishes it.**
    pub(super) fn end(self, tx: &mut Tx<'_>) -> Result<()> {
        let Copying { last, roots, entries, index, .. } = *self.header();
        let pool = tx.first_pool();
        tx.write_root_slot(pool, DIRECTORY_ROOT, last.into())?;
        roots.map_or(Ok(()), |roots| tx.free(roots))?;
        entries.map_or(Ok(()), |entries| tx.free(entries))?;
        index.map_or(Ok(()), |index| tx.free(index))?;
        tx.free(self.header)
    }
}

/// Frees up to `most` parts; how many more it could have freed.
fn free_some<T: Persist>(
    tx: &mut Tx<'_>,
    table: &Table<'_>,
    (parts, count): (Option<Ptr<Parts<T>>>, u64),
    most: usize,
) -> Result<usize> {
    let mut left = most;
    for number in 0..count {
        if left == 0 {
            break;
        }
        let Some(part) = table.part(parts, number) else { continue };
        tx.free(part)?;
        if let Some(slot) = Table::part_slot(parts, number) {
            // SAFETY: a place of a live block, to which no reference lives.
            unsafe { put(tx, slot, None)? };
        }
        left -= 1;
    }
    Ok(left)
}

const _: () = assert!(ROOT_COUNT <= u16::MAX as u64 + 1);
