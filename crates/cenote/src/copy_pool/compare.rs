//! Compares the source with what an earlier call copied: whether the source has changed since.
//!
//! Two things are compared: the roots, and each copied block with its copy, pointer by pointer. If
//! all are equal, the source's roots lead to the same blocks with the same values as before, as far
//! as the copy has come. If the pointers of a copy are not written yet, its other bytes are
//! compared.

use super::blocks::{piece, read, set_word, within, word as word_at};
use super::pointers::{Fate, Within, Word, words_of};
use super::scan::Copier;
use crate::error::Result;
use cenote_heap::{BlockInfo, Heap};
use cenote_layout::heap::ROOT_COUNT;
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, CopyBug, planted};

/// A block of the source, and its copy.
struct Pair<'a> {
    block: BlockInfo,
    record: &'a TypeRecord,
    to: u64,
    /// Whether its pointers are written.
    is_scanned: bool,
}

/// What a word of a copy is to be.
enum Expected {
    Stands(u64),
    /// A pointer to a copy; `None`: what it would lead to has none.
    Leads(Option<u64>),
}

impl Copier<'_> {
    /// Compares roots.
    ///
    /// # Errors
    /// One has changed.
    pub(super) fn compare_roots(&self) -> Result<()> {
        if planted(Bug::Copy(CopyBug::RootsNotCompared)) {
            return Ok(());
        }
        for index in 0..ROOT_COUNT as u16 {
            if self.blocks.source.root_entry(index)? != self.table.root(index)? {
                return Err(self.changed("a root", index.into()));
            }
        }
        Ok(())
    }

    /// Compares the block of an entry.
    ///
    /// # Errors
    /// It has changed.
    pub(super) fn compare(&self, number: u64) -> Result<()> {
        if planted(Bug::Copy(CopyBug::NotCompared)) {
            return Ok(());
        }
        let entry = self.table.entry(number)?;
        let Some(block) = self.blocks.block(entry.from) else {
            return Err(self.changed("a block is gone", entry.from));
        };
        let copy = self.new.heap.owner(entry.to);
        let fits = |copy: &BlockInfo| copy.type_id == block.type_id && copy.size >= block.size;
        if !copy.as_ref().is_some_and(fits) {
            return Err(self.changed("another block", block.addr));
        }
        let record = self.blocks.record(&block)?;
        let is_scanned = number < self.table.header().scanned;
        self.compare_pair(&Pair { block, record: &record, to: entry.to, is_scanned })
    }

    fn compare_pair(&self, pair: &Pair<'_>) -> Result<()> {
        let Pair { block, record, to, .. } = pair;
        let (mut bytes, mut copy, mut number) = (Vec::new(), Vec::new(), 0);
        while let Some(piece) = piece(record, block.size, number) {
            self.blocks.bytes(block, piece, &mut bytes)?;
            copy.clear();
            copy.resize(bytes.len(), 0);
            // SAFETY: inside the copy, which has as many bytes and which only this call changes.
            unsafe { read(self.new, to + piece.offset, &mut copy)? };
            let words = if piece.has_pointers { words_of(record, &bytes) } else { Vec::new() };
            for (offset, form) in words {
                let at = piece.offset + offset as u64;
                let value = word_at(&bytes, offset);
                let word = Word { form, value, from: block.addr + at, to: to + at };
                let is_there = word_at(&copy, offset) != 0;
                let expected = self.expected(within(block, record), word)?;
                match expected {
                    Expected::Stands(stands) => set_word(&mut bytes, offset, stands),
                    Expected::Leads(Some(leads)) if is_there || pair.is_scanned => {
                        set_word(&mut bytes, offset, leads);
                    }
                    Expected::Leads(_) if is_there || pair.is_scanned => {
                        return Err(self.changed("a pointer", block.addr));
                    }
                    // It is not written yet.
                    Expected::Leads(_) => set_word(&mut bytes, offset, 0),
                }
            }
            if bytes != copy {
                return Err(self.changed("a value", block.addr));
            }
            number += 1;
        }
        Ok(())
    }

    /// What a word of the copy is to be.
    fn expected(&self, within: Within<'_>, word: Word) -> Result<Expected> {
        let target = match self.pointers.fate(within, word)? {
            Fate::Stands(stands) => return Ok(Expected::Stands(stands)),
            Fate::Leads(target) => target,
        };
        let block = self.pointers.block_at(within, word.from, target)?;
        let Some(to) = self.table.copy_of(block.addr)? else { return Ok(Expected::Leads(None)) };
        let leads = self.pointers.encoded(within, word, to + (target - block.addr))?;
        Ok(Expected::Leads(Some(leads)))
    }
}
