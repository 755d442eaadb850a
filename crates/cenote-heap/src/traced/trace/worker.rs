//! One thread's part of a traversal: pending blocks, and what is done with each.
//!
//! A block that is reached for the first time goes to the end of a short queue, and its memory is
//! asked for at once; the block at the front is scanned. So while one is waited for, others are on
//! their way, if there are others: a list alone is followed at the speed of its own loads, many
//! lists side by side overlap. What has no place in the queue goes on a stack. A block with many
//! pointers is scanned in parts: after [`PART`] blocks that were new, the rest of it waits until
//! those, and all that they lead to, are done. So what is pending follows the depth of the data,
//! not the size of a block.

use super::program::{
    ANY, BlockScan, FAR, LEAF, Map, NUMBER, PointerSlot, PointerTarget, Program, copy_of, holds,
    load, prefetch,
};
use super::table::{FoundBlock, Miss, PuddleTable};
use super::{TraceRoot, Tracer};
use crate::backing::Backing;
use crate::report::{Fault, Finding, LISTED_MAX, TraceCounts};
use crate::trace::{Scanned, Visitor};
use crate::traced::superblock::PuddleHeap;
use cenote_layout::LINE_SIZE;
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_heap, decode_relative};
use cenote_medium::planted::{Bug, PointerBug, planted};
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;

/// New blocks that one block leads to before the rest of it is put off.
const PART: u64 = 256;

/// Blocks whose memory is asked for before it is looked at. A processor waits for a dozen lines at
/// a time, or some more.
const QUEUE: usize = 16;

/// Words, or pointers of a map, that are looked at before the rest of a block is put off all the
/// same: that bounds the wait of threads beside a traversal in slices.
const STRETCH: u64 = 1024;

/// Bytes between a pointer and its target that count as near.
const NEAR: u64 = 256;

/// Bytes beyond such a target that are asked for.
const AHEAD: i64 = 1024;

/// Bytes of a word: what is shorter holds no pointer.
const WORD: u64 = 8;

/// A block to be scanned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    addr: u64,
    /// Bytes, in words.
    words: u32,
    program: u32,
}

/// A block to be scanned from its pointer number `from` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockPart {
    addr: u64,
    size: u64,
    from: u64,
    program: u32,
}

/// Pending blocks that one worker gives to another.
#[derive(Debug, Default)]
pub(super) struct Gift {
    blocks: Vec<Pending>,
    parts: Vec<BlockPart>,
}

impl Gift {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.parts.is_empty()
    }
}

/// The queue: a ring.
#[derive(Debug, Default)]
struct Queue {
    slots: [Pending; QUEUE],
    first: usize,
    len: usize,
}

impl Queue {
    #[inline(always)]
    fn push(&mut self, pending: Pending) -> bool {
        if self.len == QUEUE {
            return false;
        }
        self.slots[(self.first + self.len) % QUEUE] = pending;
        self.len += 1;
        true
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Pending> {
        if self.len == 0 {
            return None;
        }
        let pending = self.slots[self.first % QUEUE];
        self.first = (self.first + 1) % QUEUE;
        self.len -= 1;
        Some(pending)
    }
}

/// Where an address leads that is in none of the heap's puddles.
enum Elsewhere {
    Nothing,
    Foreign,
    Outside,
}

/// One thread's part of a traversal.
pub(super) struct Worker<'t, 'g, G: Backing> {
    pub(super) tracer: &'t Tracer<'g, G>,
    queue: Queue,
    stack: Vec<Pending>,
    parts: Vec<BlockPart>,
    /// The puddle that the last pointer led to: the next one often leads there too.
    table: Option<&'t PuddleTable>,
    /// The last program whose pointers are always there, by number. A comparison predicts that a
    /// block has this program, and the worker scans by it. So the scan does not wait for the
    /// descriptor of each node of a list.
    fixed: (u32, &'t [PointerSlot]),
    pub(super) counts: TraceCounts,
    /// Where pointers into other pools lead, if the caller wants to know.
    pub(super) foreign: Option<BTreeSet<u64>>,
    /// An address that could not be read. The traversal goes on, and counts for nothing.
    pub(super) lost: Option<u64>,
}

impl<'t, 'g, G: Backing> Worker<'t, 'g, G> {
    pub(super) fn new(tracer: &'t Tracer<'g, G>, foreign: bool) -> Self {
        Self {
            tracer,
            queue: Queue::default(),
            stack: Vec::new(),
            parts: Vec::new(),
            table: None,
            fixed: (ANY, &[]),
            counts: TraceCounts::default(),
            foreign: foreign.then(BTreeSet::new),
            lost: None,
        }
    }

    pub(super) fn root(&mut self, root: &TraceRoot) {
        if root.to != 0 {
            self.counts.roots += 1;
            let target = PointerTarget::of(root.target, &self.tracer.numbers);
            self.follow::<false>(root.at, root.to, target, true);
        }
    }

    /// Scans up to `limit` blocks. Returns whether any are pending then. `ALONE`: no other worker
    /// traces meanwhile.
    pub(super) fn run<const ALONE: bool>(&mut self, limit: u64) -> bool {
        for _ in 0..limit {
            if let Some(pending) = self.next() {
                self.scan::<ALONE>(pending);
            } else if let Some(part) = self.parts.pop() {
                self.scan_part::<ALONE>(part);
            } else {
                return false;
            }
        }
        true
    }

    /// The block to be scanned now. One that waits on the stack takes its place in the queue.
    #[inline(always)]
    fn next(&mut self) -> Option<Pending> {
        let front = self.queue.pop();
        if let Some(pending) = self.stack.pop() {
            if front.is_none() {
                return Some(pending);
            }
            self.prefetch(pending.addr, pending.program);
            self.queue.push(pending);
        }
        front
    }

    #[inline(always)]
    fn prefetch(&self, addr: u64, program: u32) {
        let far = program & FAR != 0;
        prefetch(if far {
            addr + self.program(program).map_or(0, |program| program.first)
        } else {
            addr
        });
    }

    #[inline(always)]
    pub(super) fn program(&self, number: u32) -> Option<&'t Program> {
        self.tracer.programs.get((number & NUMBER) as usize)
    }

    /// Takes what another worker gave.
    pub(super) fn receive(&mut self, mut gift: Gift) {
        self.stack.append(&mut gift.blocks);
        self.parts.append(&mut gift.parts);
    }

    /// All that is pending.
    pub(super) fn rest(mut self) -> Gift {
        let mut blocks = self.stack;
        while let Some(pending) = self.queue.pop() {
            blocks.push(pending);
        }
        Gift { blocks, parts: self.parts }
    }

    /// The block that an address leads to.
    pub(super) fn find(&self, addr: u64) -> Option<FoundBlock> {
        self.table_of(addr).ok()?.find_other(addr).ok()
    }

    /// Gives half of what is pending to another worker, the older half, which is likely to lead to
    /// more. `few`: also if that is little.
    pub(super) fn give(&mut self, few: bool) -> Option<Gift> {
        let mut gift = Gift::default();
        let half = |len: usize| len / 2;
        if self.stack.len() >= QUEUE || few && self.stack.len() >= 2 {
            gift.blocks.extend(self.stack.drain(..half(self.stack.len())));
        }
        if self.parts.len() >= 2 {
            gift.parts.extend(self.parts.drain(..half(self.parts.len())));
        } else if gift.blocks.is_empty() && (self.queue.len > 0 || !self.stack.is_empty()) {
            // The rest of a large block, while this worker has something else to do.
            gift.parts.append(&mut self.parts);
        }
        if few && gift.blocks.is_empty() && gift.parts.is_empty() && self.queue.len >= 2 {
            for _ in 0..half(self.queue.len) {
                gift.blocks.extend(self.queue.pop());
            }
        }
        (!gift.blocks.is_empty() || !gift.parts.is_empty()).then_some(gift)
    }

    /// The puddle of an address that is not in the last one.
    #[cold]
    fn table_of(&self, addr: u64) -> Result<&'t PuddleTable, Elsewhere> {
        let backing = self.tracer.backing;
        let Some(slot) = backing.slot(addr) else {
            return Err(if backing.is_foreign(addr) {
                Elsewhere::Foreign
            } else {
                Elsewhere::Outside
            });
        };
        // SAFETY: a slot of this heap's pool; the tracer borrows the heap.
        let puddle = unsafe { PuddleHeap::from_slot(slot.load(Ordering::Acquire)) };
        let table = puddle.and_then(|puddle| self.tracer.tables.get(puddle.ordinal));
        table.filter(|table| table.contains(addr)).ok_or(Elsewhere::Nothing)
    }

    /// Follows a pointer. `known`: it is certainly a pointer, and one that leads nowhere is worth a
    /// word.
    #[inline(always)]
    pub(super) fn follow<const ALONE: bool>(
        &mut self,
        at: u64,
        to: u64,
        target: PointerTarget,
        known: bool,
    ) {
        let table = match self.table {
            Some(table) if table.contains(to) => table,
            _ => match self.table_of(to) {
                Ok(table) => {
                    self.table = Some(table);
                    table
                }
                Err(elsewhere) => return self.follow_out(at, to, target, known, &elsewhere),
            },
        };
        // What is usual: a small block's start, of the type that is expected.
        if let Some((found, 0)) = table.find_small(to)
            && (target.program == ANY || target.program == found.program)
        {
            if !table.note(found.bit, ALONE) {
                self.reached(at, found);
            }
            return;
        }
        self.follow_other::<ALONE>(table, at, to, target, known);
    }

    #[inline(never)]
    fn follow_other<const ALONE: bool>(
        &mut self,
        table: &'t PuddleTable,
        at: u64,
        to: u64,
        target: PointerTarget,
        known: bool,
    ) {
        match table.find_other(to) {
            Ok(found) => {
                if known && target.program != ANY {
                    let type_id = self.program(found.program).map(|program| program.type_id);
                    if found.start != to {
                        self.fault(Fault::Inexact, at, to, target);
                    } else if type_id != Some(target.type_id) {
                        self.fault(Fault::OtherType, at, to, target);
                    }
                }
                if !table.note(found.bit, ALONE) {
                    self.reached(at, found);
                }
            }
            Err(Miss::Nothing) if known => self.fault(Fault::Dangling, at, to, target),
            Err(Miss::Lost) if known => self.fault(Fault::Lost, at, to, target),
            Err(_) => {}
        }
    }

    #[inline(always)]
    fn reached(&mut self, at: u64, found: FoundBlock) {
        self.counts.blocks += 1;
        if found.program & LEAF != 0 {
            return;
        }
        let Ok(words) = u32::try_from(found.size / WORD) else { return self.put_off(found) };
        let pending = Pending { addr: found.start, words, program: found.program };
        if self.queue.push(pending) {
            self.prefetch(found.start, found.program);
            // Neighbours in the data are neighbours in memory, as after building a list: so the
            // next ones may be too.
            let step = found.start.wrapping_sub(at);
            if step.wrapping_add(NEAR) < 2 * NEAR {
                prefetch(found.start.wrapping_add_signed(if step <= NEAR {
                    AHEAD
                } else {
                    -AHEAD
                }));
            }
        } else {
            self.stack.push(pending);
        }
    }

    #[cold]
    fn put_off(&mut self, found: FoundBlock) {
        self.parts.push(BlockPart {
            addr: found.start,
            size: found.size,
            from: 0,
            program: found.program,
        });
    }

    #[cold]
    fn follow_out(
        &mut self,
        at: u64,
        to: u64,
        target: PointerTarget,
        known: bool,
        elsewhere: &Elsewhere,
    ) {
        match elsewhere {
            Elsewhere::Foreign => {
                self.counts.foreign_pointers += u64::from(known);
                if let Some(foreign) = &mut self.foreign {
                    foreign.insert(to);
                }
            }
            Elsewhere::Nothing if known => self.fault(Fault::Dangling, at, to, target),
            Elsewhere::Outside if known => self.fault(Fault::Outside, at, to, target),
            Elsewhere::Nothing | Elsewhere::Outside => {}
        }
    }

    /// Follows a word that is a pointer of a known kind, not null.
    #[inline(always)]
    pub(super) fn follow_word<const ALONE: bool>(
        &mut self,
        at: u64,
        word: u64,
        kind: PointerKind,
        target: PointerTarget,
    ) {
        if kind == PointerKind::NATIVE {
            return self.follow::<ALONE>(at, word, target, true);
        }
        self.follow_held::<ALONE>(at, word, kind, target);
    }

    /// Follows what is not a native pointer.
    #[inline(never)]
    fn follow_held<const ALONE: bool>(
        &mut self,
        at: u64,
        word: u64,
        kind: PointerKind,
        target: PointerTarget,
    ) {
        match kind {
            PointerKind::OWNED => self.follow::<ALONE>(at, word, target, true),
            PointerKind::RELATIVE => match decode_relative(at, word) {
                Some(to) => self.follow::<ALONE>(at, to, target, true),
                None => self.fault(Fault::Malformed, at, word, target),
            },
            PointerKind::REGION => match RegionAddress::decode(word) {
                Some(region) => match self.tracer.backing.region(&region) {
                    Some(to) => self.follow::<ALONE>(at, to, target, true),
                    None => self.fault(Fault::Outside, at, word, target),
                },
                None => self.fault(Fault::Malformed, at, word, target),
            },
            PointerKind::HEAP if !planted(Bug::Pointer(PointerBug::HeapPtrNotFollowed)) => {
                let place = self.word(at + WORD);
                self.follow_heap::<ALONE>(at, [word, place], target);
            }
            _ => self.follow_perhaps::<ALONE>(at, word),
        }
    }

    /// Follows a word that may be a pointer of any kind, or none.
    #[inline(always)]
    pub(super) fn follow_perhaps<const ALONE: bool>(&mut self, at: u64, word: u64) {
        let to = match word >> 48 {
            0 if word == 0 => return,
            0 => Some(word),
            _ => decode_relative(at, word)
                .or_else(|| self.tracer.backing.region(&RegionAddress::decode(word)?)),
        };
        if let Some(to) = to {
            self.follow::<ALONE>(at, to, PointerTarget::UNKNOWN, false);
        }
    }

    #[cold]
    pub(super) fn fault(&mut self, fault: Fault, at: u64, to: u64, target: PointerTarget) {
        self.counts.faults += 1;
        if self.counts.findings.len() < LISTED_MAX {
            self.counts.findings.push(Finding { fault, at, to, target: target.type_id });
        }
    }

    /// The word at an address in a block; 0 if it cannot be had.
    #[inline(always)]
    fn word(&mut self, at: u64) -> u64 {
        load(at).unwrap_or_else(|| self.lose(at))
    }

    #[cold]
    #[inline(never)]
    fn lose(&mut self, at: u64) -> u64 {
        self.lost.get_or_insert(at);
        0
    }

    #[inline(always)]
    fn scan<const ALONE: bool>(&mut self, block: Pending) {
        if block.program != self.fixed.0 {
            match self.program(block.program).map(|program| &program.scan) {
                Some(BlockScan::Fixed(slots)) => self.fixed = (block.program, slots),
                _ => {
                    return self.scan_part::<ALONE>(BlockPart {
                        addr: block.addr,
                        size: u64::from(block.words) * WORD,
                        from: 0,
                        program: block.program,
                    });
                }
            }
        }
        self.scan_fixed::<ALONE>(block.addr, self.fixed.1);
    }

    #[inline(always)]
    fn scan_fixed<const ALONE: bool>(&mut self, addr: u64, slots: &[PointerSlot]) {
        for slot in slots {
            let at = addr + slot.offset;
            let word = self.word(at) & slot.mask;
            if word != 0 {
                self.follow_word::<ALONE>(at, word, slot.kind, slot.target);
            }
        }
    }

    #[inline(never)]
    fn scan_part<const ALONE: bool>(&mut self, block: BlockPart) {
        let tracer = self.tracer;
        let Some(program) = self.program(block.program) else { return };
        let rest = match &program.scan {
            BlockScan::Map(map) => self.scan_map::<ALONE>(&block, map),
            BlockScan::Fixed(slots) => {
                // Only blocks come here that are too large for a `Pending`.
                self.scan_fixed::<ALONE>(block.addr, slots);
                None
            }
            BlockScan::Filter(filter) => {
                match copy_of(block.addr, block.size) {
                    Ok(bytes) => {
                        let (addr, type_id) = (block.addr, program.type_id);
                        let mut visit = |to, type_id| {
                            let target = PointerTarget::of(type_id, &tracer.numbers);
                            self.follow::<ALONE>(addr, to, target, true);
                        };
                        filter(
                            &Scanned { addr, type_id, bytes: &bytes },
                            &mut Visitor::new(&mut visit),
                        );
                    }
                    Err(at) => drop(self.lose(at)),
                }
                None
            }
            BlockScan::Nothing => None,
            BlockScan::Words => self.scan_words::<ALONE>(&block),
        };
        if let Some(from) = rest {
            self.parts.push(BlockPart { from, ..block });
        }
    }

    fn scan_words<const ALONE: bool>(&mut self, block: &BlockPart) -> Option<u64> {
        self.counts.conservative_blocks += u64::from(block.from == 0);
        let full = self.counts.blocks + PART;
        let end = block.size / 8;
        let stop = end.min(block.from + STRETCH);
        for number in block.from..stop {
            if self.counts.blocks >= full {
                return Some(number);
            }
            let at = block.addr + number * 8;
            if at.is_multiple_of(LINE_SIZE) {
                prefetch(at + 4 * LINE_SIZE);
            }
            let word = self.word(at);
            self.follow_perhaps::<ALONE>(at, word);
            if decode_heap(word).is_some() && number + 1 < end {
                let place = self.word(at + WORD);
                self.follow_heap_perhaps::<ALONE>(at, [word, place]);
            }
        }
        (stop < end).then_some(stop)
    }

    fn scan_map<const ALONE: bool>(&mut self, block: &BlockPart, map: &Map) -> Option<u64> {
        let Map { record, starts, per_value, targets } = map;
        let values = if record.repeats { block.size / record.size.max(1) } else { 1 };
        let full = self.counts.blocks + PART;
        // Where to go on: value, field and pointer of the field.
        let mut value = block.from / per_value;
        let within = block.from % per_value;
        let mut field = starts.partition_point(|&start| start <= within).saturating_sub(1);
        let mut k = within - starts[field];
        let mut left = STRETCH;
        while value < values {
            let start = block.addr + value * record.size;
            while let Some(at_field) = record.pointers.get(field) {
                if holds(at_field, start, record.size).unwrap_or_else(|at| self.lose(at) != 0) {
                    while k < at_field.count {
                        if self.counts.blocks >= full || left == 0 {
                            return Some(value * per_value + starts[field] + k);
                        }
                        left -= 1;
                        let at = start + at_field.offset + k * at_field.stride;
                        let word = self.word(at) & !at_field.tag_mask;
                        if word != 0 {
                            self.follow_word::<ALONE>(at, word, at_field.kind, targets[field]);
                        }
                        k += 1;
                    }
                }
                field += 1;
                k = 0;
            }
            field = 0;
            value += 1;
        }
        None
    }
}
