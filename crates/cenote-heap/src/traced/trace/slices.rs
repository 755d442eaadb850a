//! Tracing in slices, while threads change the pool: one worker keeps its pending blocks between
//! slices. It also looks at copies of blocks from before a thread changed them. What makes that
//! right is in [`crate::traced::reclaim`].
//!
//! The tables are of the descriptors as they were at the beginning. A superblock that has been
//! given to others since is still looked at as what it was: what is found so keeps a block too
//! many, never one too few.

use super::program::{BlockScan, PointerTarget, Program, copy_of};
use super::table::{FoundBlock, PuddleTable};
use super::worker::{Gift, Worker};
use super::{Kinds, TraceRoot, Tracer};
use crate::backing::Backing;
use crate::trace::{Scanned, Types, Visitor};
use crate::traced::claims::Claim;
use crate::traced::superblock::PuddleHeap;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::{PointerKind, decode_heap};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Blocks between two looks at the clock.
const STEP: u64 = 16;

/// What stood somewhere in the heap before it was changed.
pub(crate) struct Old {
    /// A multiple of 8, as is the length.
    pub(crate) addr: u64,
    pub(crate) bytes: Box<[u8]>,
    /// The words before and behind, where a pointer of two words may have its other one. What
    /// stands in them alone was not changed.
    pub(crate) around: [Option<u64>; 2],
}

impl Old {
    fn end(&self) -> u64 {
        self.addr + self.bytes.len() as u64
    }

    /// The word at an address, if all of it was copied.
    fn word(&self, at: u64) -> Option<u64> {
        let offset = usize::try_from(at.checked_sub(self.addr)?).ok()?;
        self.bytes.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// The two words at an address, if both were copied, and one of them in the range.
    fn pair(&self, at: u64) -> Option<[u64; 2]> {
        let wide = |at: u64| match self.word(at) {
            None if at + 8 == self.addr => self.around[0],
            None if at == self.end() => self.around[1],
            word => word,
        };
        let in_range = at < self.end() && at + 16 > self.addr;
        if in_range { Some([wide(at)?, wide(at + 8)?]) } else { None }
    }
}

/// What of a block has to be copied before a part of it is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// There are no pointers in it.
    Nothing,
    /// The part.
    Parts,
    /// Everything: only a function can say where its pointers are.
    Whole,
}

/// See [`Content`].
pub(crate) fn content_of(types: &dyn Types, type_id: TypeId) -> Content {
    match BlockScan::of(types, type_id) {
        BlockScan::Nothing => Content::Nothing,
        BlockScan::Filter(_) => Content::Whole,
        _ => Content::Parts,
    }
}

/// A traversal between two slices.
pub(crate) struct Marking {
    /// By ordinal.
    tables: Vec<PuddleTable>,
    programs: Vec<Program>,
    numbers: HashMap<TypeId, u32>,
    pending: Gift,
    /// Whether the last slice ended: not if a filter panicked in it.
    whole: bool,
    pub(crate) blocks: u64,
}

impl Marking {
    /// `puddles` are in order of their ordinals, with what their descriptors said at the beginning.
    pub(crate) fn new(types: &dyn Types, puddles: &[(Arc<PuddleHeap>, Vec<Claim>)]) -> Self {
        let mut kinds = Kinds { types, known: HashMap::new(), scans: Vec::new() };
        kinds.number(TypeId::UNTYPED, 0);
        let table = |(puddle, claims): &(Arc<PuddleHeap>, Vec<Claim>)| {
            PuddleTable::of_claims(puddle.base, claims.clone(), &mut kinds)
        };
        let tables = puddles.iter().map(table).collect();
        let (programs, numbers) = kinds.finish();
        Self { tables, programs, numbers, pending: Gift::default(), whole: true, blocks: 0 }
    }

    /// Whether something is left to be looked at that is known of.
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// `false` after a panic: then what is not reached may only not have been looked at.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// As [`Tracer::reached`].
    pub(crate) fn reached(&self, ordinal: usize, superblock: u32, word: usize) -> u64 {
        self.tables.get(ordinal).map_or(u64::MAX, |table| table.reached(superblock, word))
    }

    /// A superblock with a damaged descriptor that something leads into.
    pub(crate) fn lost(&self) -> Option<(usize, u32)> {
        let lost =
            |table: &PuddleTable| (0..table.claims().len() as u32).find(|&i| table.lost(i) > 0);
        self.tables.iter().enumerate().find_map(|(ordinal, table)| Some((ordinal, lost(table)?)))
    }

    /// Follows what leads from `roots`, and from copies, until nothing is left or it is `until`; at
    /// least [`STEP`] blocks. Returns the addresses in other pools that something led to. The
    /// caller keeps writers out meanwhile. `Err`: an address that cannot be read.
    pub(crate) fn slice<G: Backing>(
        &mut self,
        backing: &G,
        roots: &[TraceRoot],
        next_old: &mut dyn FnMut() -> Option<Old>,
        until: Instant,
    ) -> Result<BTreeSet<u64>, u64> {
        self.whole = false;
        let tracer = Tracer {
            backing,
            tables: core::mem::take(&mut self.tables),
            programs: core::mem::take(&mut self.programs),
            numbers: core::mem::take(&mut self.numbers),
        };
        let mut worker = Worker::new(&tracer, true);
        worker.receive(core::mem::take(&mut self.pending));
        roots.iter().for_each(|root| worker.root(root));
        loop {
            let mut busy = worker.run::<true>(STEP);
            if let Some(old) = next_old() {
                worker.old(&old);
                busy = true;
            }
            if !busy || Instant::now() >= until {
                break;
            }
        }
        self.blocks += worker.counts.blocks;
        let foreign = worker.foreign.take().unwrap_or_default();
        let lost = worker.lost;
        self.pending = worker.rest();
        Tracer { tables: self.tables, programs: self.programs, numbers: self.numbers, .. } = tracer;
        self.whole = lost.is_none();
        lost.map_or(Ok(foreign), Err)
    }
}

impl<G: Backing> Worker<'_, '_, G> {
    /// Follows what stood in a range.
    fn old(&mut self, old: &Old) {
        let mut at = old.addr;
        while at < old.end() {
            match self.find(at) {
                Some(found) => {
                    self.old_block(&found, old);
                    at = old.end().min(found.start + found.size).next_multiple_of(8);
                }
                // Roots, or what was no block.
                None => {
                    if let Some(word) = old.word(at) {
                        self.follow_perhaps::<true>(at, word);
                    }
                    at += 8;
                }
            }
        }
    }

    /// Follows what stood at an address, if that is a pointer of a known kind that was copied.
    fn old_pointer(
        &mut self,
        old: &Old,
        at: u64,
        mask: u64,
        (kind, target): (PointerKind, PointerTarget),
    ) {
        if kind == PointerKind::HEAP {
            if let Some(pair) = old.pair(at).filter(|pair| pair[0] != 0) {
                self.follow_heap::<true>(at, pair, target);
            }
        } else if let Some(word) = old.word(at).map(|word| word & mask).filter(|&word| word != 0) {
            self.follow_word::<true>(at, word, kind, target);
        }
    }

    /// Follows what stood in a part of a block. Conditions are not asked: what they would be asked
    /// about need not have been copied.
    fn old_block(&mut self, block: &FoundBlock, old: &Old) {
        let Some(program) = self.program(block.program) else { return };
        let (from, to) = (old.addr.max(block.start), old.end().min(block.start + block.size));
        match &program.scan {
            BlockScan::Nothing => {}
            BlockScan::Words => {
                for at in (from.next_multiple_of(8)..to).step_by(8) {
                    if let Some(word) = old.word(at) {
                        self.follow_perhaps::<true>(at, word);
                    }
                }
                let first = from.next_multiple_of(8).saturating_sub(8).max(block.start);
                for at in (first..to).step_by(8) {
                    if let Some(pair) = old.pair(at).filter(|pair| decode_heap(pair[0]).is_some()) {
                        self.follow_heap_perhaps::<true>(at, pair);
                    }
                }
            }
            BlockScan::Fixed(slots) => {
                for slot in slots {
                    let at = block.start + slot.offset;
                    self.old_pointer(old, at, slot.mask, (slot.kind, slot.target));
                }
            }
            BlockScan::Map(map) => {
                let size = map.record.size.max(1);
                let values = if map.record.repeats { block.size / size } else { 1 };
                let first = from.saturating_sub(block.start + 15) / size;
                for value in first..values {
                    let start = block.start + value * size;
                    if start >= to {
                        break;
                    }
                    for (field, target) in map.record.pointers.iter().zip(&map.targets) {
                        let base = start + field.offset;
                        let first = from.saturating_sub(base + 8) / field.stride.max(1);
                        for k in first..field.count {
                            let at = base + k * field.stride;
                            if at >= to {
                                break;
                            }
                            self.old_pointer(old, at, !field.tag_mask, (field.kind, *target));
                        }
                    }
                }
            }
            BlockScan::Filter(filter) => {
                // In a puddle that was not adopted then, only a part is copied; the rest is as it
                // was, or copied too.
                let mut all = match copy_of(block.start, block.size) {
                    Ok(all) => all,
                    Err(at) => return self.lost = self.lost.or(Some(at)),
                };
                let (a, b) = ((from - block.start) as usize, (to - block.start) as usize);
                let source = (from - old.addr) as usize;
                all[a..b].copy_from_slice(&old.bytes[source..source + (b - a)]);
                let scanned = Scanned { addr: block.start, type_id: program.type_id, bytes: &all };
                filter(
                    &scanned,
                    &mut Visitor::new(&mut |to, _| {
                        self.follow::<true>(block.start, to, PointerTarget::UNKNOWN, false);
                    }),
                );
            }
        }
    }
}
