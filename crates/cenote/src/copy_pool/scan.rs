//! The steps of a copy, each within a transaction on the new pool: blocks are allocated and filled,
//! pointers are written.
//!
//! Invariant: when a transaction commits, each entry of the table is a block of the new pool with
//! the source's bytes. Its pointers into the source lead to copies, or are zero; of entries before
//! `scanned` none is zero that should not be.

use super::blocks::{Blocks, piece, set_word, within, word};
use super::pointers::{Fate, Pointers, Within, Word, words_of};
use super::table::{Count, Table};
use super::{CopyProgress, Names};
use crate::copy_refused::CopyRefused;
use crate::error::{Error, Result};
use crate::open_pool::PoolInner;
use crate::tx::Tx;
use cenote_heap::{BlockInfo, Heap};
use cenote_layout::heap::RootEntry;
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, CopyBug, planted};

/// Pointers that one transaction writes, at most.
const WORDS: usize = 4096;
/// Bytes after which a transaction allocates no more.
const BYTES: u64 = 4 << 20;

/// How much a transaction may still do.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    blocks: usize,
    words: usize,
    bytes: u64,
}

impl Budget {
    pub(super) fn new(batch: usize) -> Self {
        Self { blocks: batch.max(1), words: WORDS, bytes: 0 }
    }

    fn is_spent(&self) -> bool {
        self.blocks == 0 || self.words == 0 || self.bytes >= BYTES
    }
}

/// The next pointer that is to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) entry: u64,
    piece: u64,
    pointer: usize,
}

/// A copy between a source and a new pool.
pub(super) struct Copier<'p> {
    pub(super) blocks: Blocks<'p>,
    pub(super) pointers: Pointers<'p>,
    pub(super) new: &'p PoolInner,
    pub(super) table: Table<'p>,
    pub(super) at: Position,
}

impl<'p> Copier<'p> {
    pub(super) fn new(
        source: &'p PoolInner,
        new: &'p PoolInner,
        table: Table<'p>,
        names: Names<'p>,
    ) -> Self {
        let at = Position { entry: table.header().scanned, ..Position::default() };
        let (blocks, pointers) = (Blocks::new(source, names), Pointers { source, names });
        Self { blocks, pointers, new, table, at }
    }

    pub(super) fn changed(&self, what: &'static str, at: u64) -> Error {
        let Names { from, pool } = self.blocks.names;
        CopyRefused::Changed { pool: pool.into(), from: from.into(), what, at }.into()
    }

    /// How far it has come.
    pub(super) fn progress(&self) -> CopyProgress {
        let found = self.table.header().count;
        CopyProgress { blocks: self.at.entry, found, ..CopyProgress::default() }
    }

    /// The copy of a block, which is made now if there is none.
    fn copied(&self, tx: &mut Tx<'_>, block: &BlockInfo, budget: &mut Budget) -> Result<u64> {
        if let Some(to) = self.table.copy_of(block.addr)? {
            return Ok(to);
        }
        if !self.table.has_room() {
            return Err(self.changed("a block is new", block.addr));
        }
        let record = self.blocks.record(block)?;
        let (pool, layout) = (tx.first_pool(), (block.size, record.align));
        let (place, _) = tx.alloc_whole(pool, layout, block.size, block.type_id)?;
        let to = place.as_ptr().addr() as u64;
        self.fill(block, &record, to)?;
        self.table.enter(tx, block.addr, to)?;
        let bytes = self.table.header().bytes + block.size;
        self.table.set(tx, Count::Bytes, bytes)?;
        budget.blocks = budget.blocks.saturating_sub(1);
        budget.bytes += block.size;
        Ok(to)
    }

    /// Writes a block's bytes into a fresh copy: pointers into the source are zero there.
    fn fill(&self, block: &BlockInfo, record: &TypeRecord, to: u64) -> Result<()> {
        let (mut bytes, mut number) = (Vec::new(), 0);
        while let Some(piece) = piece(record, block.size, number) {
            self.blocks.bytes(block, piece, &mut bytes)?;
            if piece.has_pointers {
                for (offset, form) in words_of(record, &bytes) {
                    let at = piece.offset + offset as u64;
                    let value = word(&bytes, offset);
                    let word = Word { form, value, from: block.addr + at, to: to + at };
                    let fate = self.pointers.fate(within(block, record), word)?;
                    let stands = if let Fate::Stands(stands) = fate { stands } else { 0 };
                    set_word(&mut bytes, offset, stands);
                }
            }
            let place = core::ptr::with_exposed_provenance_mut::<u8>((to + piece.offset) as usize);
            // SAFETY: inside the fresh block, which has as many bytes as the source's and is the
            // transaction's alone.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            number += 1;
        }
        Ok(())
    }

    /// Where a pointer to `target` in the source is to lead.
    fn target(
        &self,
        tx: &mut Tx<'_>,
        (block, target): (&BlockInfo, u64),
        budget: &mut Budget,
    ) -> Result<u64> {
        Ok(self.copied(tx, block, budget)? + (target - block.addr))
    }

    /// Makes copies of what some roots lead to.
    pub(super) fn find_roots(
        &self,
        tx: &mut Tx<'_>,
        roots: core::ops::Range<u16>,
        budget: &mut Budget,
    ) -> Result<()> {
        for index in roots {
            if let Some(block) = self.root_block(index)? {
                self.copied(tx, &block, budget)?;
            }
        }
        Ok(())
    }

    /// The block of the source that a root leads to; `None`: it leads nowhere, or to another pool.
    fn root_block(&self, index: u16) -> Result<Option<BlockInfo>> {
        let root = self.table.root(index)?;
        if root.addr == 0 || !self.pointers.leads_inside(root.addr) {
            return Ok(None);
        }
        let from = || self.blocks.names.from.to_owned();
        let found = self.blocks.source.heap.owner(root.addr);
        let block =
            found.ok_or_else(|| CopyRefused::Root { from: from(), index, to: root.addr })?;
        Ok(Some(block))
    }

    /// What a root of the new pool is to say.
    pub(super) fn new_root(&self, index: u16) -> Result<RootEntry> {
        let root = self.table.root(index)?;
        let Some(block) = self.root_block(index)? else { return Ok(root) };
        match self.table.copy_of(block.addr)? {
            Some(to) => Ok(RootEntry { addr: to + (root.addr - block.addr), ..root }),
            None => Err(self.changed("a root", index.into())),
        }
    }

    /// Writes pointers until the budget is spent, and makes copies of what they lead to. Whether
    /// all pointers of all copies are written.
    pub(super) fn scan(&mut self, tx: &mut Tx<'_>, mut budget: Budget) -> Result<bool> {
        let before = self.at.entry;
        let mut all = true;
        while self.at.entry < self.table.header().count {
            if budget.is_spent() || !self.scan_entry(tx, &mut budget)? {
                all = false;
                break;
            }
        }
        let mut scanned = self.at.entry;
        if planted(Bug::Copy(CopyBug::ScannedEarly)) {
            scanned = self.table.header().count;
        }
        if scanned != before {
            self.table.set(tx, Count::Scanned, scanned)?;
        }
        Ok(all)
    }

    /// The same of the entry that is next; whether it is done.
    fn scan_entry(&mut self, tx: &mut Tx<'_>, budget: &mut Budget) -> Result<bool> {
        let entry = self.table.entry(self.at.entry)?;
        let found = self.blocks.block(entry.from);
        let block = found.ok_or_else(|| self.changed("a block is gone", entry.from))?;
        let record = self.blocks.record(&block)?;
        let mut bytes = Vec::new();
        while let Some(piece) = piece(&record, block.size, self.at.piece) {
            if !piece.has_pointers {
                break;
            }
            self.blocks.bytes(&block, piece, &mut bytes)?;
            let words = words_of(&record, &bytes);
            let mut writes = Vec::new();
            while let Some(&(offset, form)) = words.get(self.at.pointer) {
                if budget.is_spent() && !form.goes_on() {
                    break;
                }
                let at = piece.offset + offset as u64;
                let (from, to) = (block.addr + at, entry.to + at);
                let word = Word { form, value: word(&bytes, offset), from, to };
                if let Some(value) = self.written(tx, within(&block, &record), word, budget)? {
                    writes.push((to, value));
                    budget.words = budget.words.saturating_sub(1);
                }
                self.at.pointer += 1;
            }
            write_all(tx, &writes)?;
            if self.at.pointer < words.len() {
                return Ok(false);
            }
            (self.at.piece, self.at.pointer) = (self.at.piece + 1, 0);
        }
        self.at = Position { entry: self.at.entry + 1, ..Position::default() };
        Ok(true)
    }

    /// What is to be written for a pointer into the source; `None` for any other word.
    fn written(
        &self,
        tx: &mut Tx<'_>,
        within: Within<'_>,
        word: Word,
        budget: &mut Budget,
    ) -> Result<Option<u64>> {
        let Fate::Leads(target) = self.pointers.fate(within, word)? else { return Ok(None) };
        let block = self.pointers.block_at(within, word.from, target)?;
        let target = self.target(tx, (&block, target), budget)?;
        self.pointers.encoded(within, word, target).map(Some)
    }
}

/// Logs words of the new pool with one fence, and writes them.
fn write_all(tx: &mut Tx<'_>, writes: &[(u64, u64)]) -> Result<()> {
    let place = |to: u64| core::ptr::with_exposed_provenance_mut::<u64>(to as usize);
    let ranges: Vec<_> = writes.iter().map(|(to, _)| (place(*to).cast_const().cast(), 8)).collect();
    // SAFETY: aligned words of live blocks of the transaction's pool, which only this copy uses.
    unsafe {
        tx.raw_mut().add_all(&ranges)?;
        for (to, value) in writes {
            place(*to).write(*value);
        }
    }
    Ok(())
}
