//! Tracing: which blocks can be reached from the roots (RAL-2, Ralloc 4.5.1).
//!
//! Pointer maps that the store keeps say where a block's pointers are (PUD-7); they are Ralloc's filter functions, written as data. Blocks without a
//! type, and of types that the store does not know, are scanned word by word: every word that leads into a block keeps that block, interior pointers
//! included. The tracer believes descriptors that pass their checksum, and nothing else that lies in the heap: no mark, no pointer.
//!
//! Reached blocks are noted in a table of one bit per 16 bytes of heap, beside the heap's own bitmaps, so that `check` can
//! trace without changing anything, and an interrupted recovery has changed nothing yet. Pending blocks wait on a stack of our own. A block with many pointers is
//! scanned in parts of 256 pushed pointers, with the rest of it below them on the stack: the stack's height follows the depth of the data, not
//! the size of a block.
//!
//! `Tracer` is shared and its bits are set atomically; a `Worker` has its own stack and counts. There is one worker so far.

use crate::ground::Ground;
use crate::report::{Fault, Finding, LISTED_MAX, TraceCounts};
use crate::superblock::{Claim, PuddleHeap, WORDS, classify, pack, split, zeroed_words};
use cenote_layout::heap::SUPERBLOCK_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::types::{PointerField, TypeRecord};
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Pointers of one block that are pushed before the scan of the block is put off.
const PART: usize = 256;

/// What knows types: the store, or a map in tests.
pub trait Types: Sync {
    /// The record of a type, if it is registered.
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>>;
}

impl Types for HashMap<TypeId, Arc<TypeRecord>> {
    fn record(&self, id: TypeId) -> Option<Arc<TypeRecord>> {
        self.get(&id).cloned()
    }
}

/// How a block is scanned.
#[derive(Debug)]
enum Program {
    /// Every word may be a pointer.
    Words,
    /// There are none.
    Nothing,
    /// A pointer map. `starts[f]` is the number of pointers before field `f`; `per_value` that of all.
    Map { record: Arc<TypeRecord>, starts: Vec<u64>, per_value: u64 },
}

/// What the tracer knows of a superblock, from its descriptor.
#[derive(Clone, Copy, Debug)]
struct Cell {
    kind: Kind,
    /// Number of the program of its type.
    program: u32,
    geometry: u64,
    type_id: TypeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    Small {
        blocks: u32,
    },
    Large {
        span: u32,
    },
    /// `distance` superblocks after the head.
    Tail {
        distance: u32,
    },
    Invalid,
}

struct TracePuddle {
    claims: Vec<Claim>,
    cells: Vec<Cell>,
    /// As the bitmaps: 64 words a superblock.
    marks: Box<[AtomicU64]>,
    /// Pointers into superblocks that are invalid, by superblock.
    lost: Vec<AtomicU64>,
}

/// One traversal of a heap.
pub(crate) struct Tracer<'a, G: Ground> {
    ground: &'a G,
    puddles: Vec<TracePuddle>,
    programs: Vec<Program>,
    unknown: BTreeSet<TypeId>,
}

/// A block to be scanned from its pointer number `from` on.
#[derive(Clone, Copy, Debug)]
struct Pending {
    addr: u64,
    size: u64,
    from: u64,
    program: u32,
}

/// Where a pointer leads.
enum Lead {
    Block { ordinal: usize, superblock: usize, index: usize, start: u64, size: u64 },
    Nothing,
    Lost,
    Foreign,
    Outside,
}

impl<'a, G: Ground> Tracer<'a, G> {
    /// Reads the descriptors of all puddles, which must be in order of their ordinals.
    pub(crate) fn new(ground: &'a G, types: &dyn Types, puddles: &[Arc<PuddleHeap>]) -> Self {
        let mut tracer =
            Self { ground, puddles: Vec::new(), programs: vec![Program::Words], unknown: BTreeSet::new() };
        let mut numbers = HashMap::from([(TypeId::UNTYPED, 0u32)]);
        for puddle in puddles {
            let claims = classify(puddle);
            let cells = claims.iter().map(|claim| tracer.cell(claim, types, &mut numbers)).collect();
            let words = claims.len() * WORDS;
            let marks = zeroed_words(words);
            let lost = claims.iter().map(|_| AtomicU64::new(0)).collect();
            tracer.puddles.push(TracePuddle { claims, cells, marks, lost });
        }
        tracer
    }

    fn cell(&mut self, claim: &Claim, types: &dyn Types, numbers: &mut HashMap<TypeId, u32>) -> Cell {
        let (kind, type_id, block_size) = match *claim {
            Claim::Small { class, type_id } => {
                let blocks = crate::class::blocks_per_superblock(class);
                (Kind::Small { blocks }, type_id, crate::class::class_size(class))
            }
            Claim::Large { span, type_id } => (Kind::Large { span }, type_id, SUPERBLOCK_SIZE),
            Claim::Tail { distance, .. } => (Kind::Tail { distance }, TypeId::UNTYPED, SUPERBLOCK_SIZE),
            Claim::Invalid(_) => (Kind::Invalid, TypeId::UNTYPED, SUPERBLOCK_SIZE),
            Claim::Free | Claim::Stale | Claim::Metadata => (Kind::Nothing, TypeId::UNTYPED, SUPERBLOCK_SIZE),
        };
        let program = *numbers.entry(type_id).or_insert_with(|| {
            self.programs.push(Program::of(types.record(type_id).filter(|record| record.check().is_ok())));
            if matches!(self.programs.last(), Some(Program::Words)) {
                self.unknown.insert(type_id);
            }
            self.programs.len() as u32 - 1
        });
        Cell { kind, program, geometry: pack(block_size), type_id }
    }

    /// Word `word` of the reached blocks of a superblock.
    pub(crate) fn reached(&self, ordinal: usize, superblock: u32, word: usize) -> u64 {
        self.puddles[ordinal].marks[superblock as usize * WORDS + word].load(Ordering::Relaxed)
    }

    /// Number of pointers found into an invalid superblock.
    pub(crate) fn lost(&self, ordinal: usize, superblock: u32) -> u64 {
        self.puddles[ordinal].lost[superblock as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn claims(&self, ordinal: usize) -> &[Claim] {
        &self.puddles[ordinal].claims
    }

    /// Types of reached blocks without a record.
    pub(crate) fn unknown_types(&self) -> Vec<TypeId> {
        let is_reached = |id: &TypeId| {
            self.puddles.iter().any(|p| {
                p.cells.iter().enumerate().any(|(i, cell)| {
                    cell.type_id == *id
                        && matches!(cell.kind, Kind::Small { .. } | Kind::Large { .. })
                        && p.marks[i * WORDS..(i + 1) * WORDS].iter().any(|w| w.load(Ordering::Relaxed) != 0)
                })
            })
        };
        self.unknown.iter().filter(|id| is_reached(id)).copied().collect()
    }

    pub(crate) fn worker(&self) -> Worker<'_, 'a, G> {
        Worker { tracer: self, stack: Vec::new(), counts: TraceCounts::default(), foreign: None }
    }

    #[inline]
    fn lead(&self, addr: u64) -> Lead {
        let Some(slot) = self.ground.slot(addr) else {
            return if self.ground.is_foreign(addr) { Lead::Foreign } else { Lead::Outside };
        };
        // SAFETY: a slot of this heap's pool; the heap is borrowed by whoever traces.
        let Some(puddle) = (unsafe { PuddleHeap::from_slot(slot.load(Ordering::Acquire)) }) else {
            return Lead::Nothing;
        };
        let Some(trace) = self.puddles.get(puddle.ordinal) else { return Lead::Nothing };
        let offset = addr.wrapping_sub(puddle.base);
        let mut superblock = (offset / SUPERBLOCK_SIZE) as usize;
        let within = offset % SUPERBLOCK_SIZE;
        let Some(mut cell) = trace.cells.get(superblock) else { return Lead::Nothing };
        if let Kind::Tail { distance } = cell.kind {
            // `classify` lets no tail begin before the first superblock.
            superblock -= distance as usize;
            cell = &trace.cells[superblock];
        }
        let base = puddle.base + superblock as u64 * SUPERBLOCK_SIZE;
        match cell.kind {
            Kind::Small { blocks } => {
                let (index, start) = split(cell.geometry, within);
                if index >= blocks as usize {
                    return Lead::Nothing;
                }
                let size = cell.geometry >> 32;
                Lead::Block { ordinal: puddle.ordinal, superblock, index, start: base + start, size }
            }
            Kind::Large { span } => {
                let size = u64::from(span) * SUPERBLOCK_SIZE;
                Lead::Block { ordinal: puddle.ordinal, superblock, index: 0, start: base, size }
            }
            Kind::Invalid => {
                trace.lost[superblock].fetch_add(1, Ordering::Relaxed);
                Lead::Lost
            }
            Kind::Nothing | Kind::Tail { .. } => Lead::Nothing,
        }
    }
}

impl Program {
    fn of(record: Option<Arc<TypeRecord>>) -> Self {
        let Some(record) = record else { return Self::Words };
        if record.pointers.is_empty() {
            return Self::Nothing;
        }
        let mut per_value = 0u64;
        let mut starts = Vec::with_capacity(record.pointers.len());
        for field in &record.pointers {
            starts.push(per_value);
            per_value += field.count;
        }
        Self::Map { record, starts, per_value }
    }
}

/// One thread's part of a traversal.
pub(crate) struct Worker<'t, 'g, G: Ground> {
    tracer: &'t Tracer<'g, G>,
    stack: Vec<Pending>,
    counts: TraceCounts,
    /// Where pointers into other pools lead, if somebody wants to know.
    pub(crate) foreign: Option<BTreeSet<u64>>,
}

impl<G: Ground> Worker<'_, '_, G> {
    /// A root: a pointer that stands at `at` (0: nowhere in the heap) to a value of `target`.
    pub(crate) fn root(&mut self, at: u64, to: u64, target: TypeId) {
        if to != 0 {
            self.counts.roots += 1;
            self.follow(at, to, target, true);
        }
    }

    /// Scans until nothing is pending.
    pub(crate) fn run(&mut self) {
        while let Some(pending) = self.stack.pop() {
            self.scan(pending);
        }
    }

    pub(crate) fn finish(self) -> TraceCounts {
        self.counts
    }

    /// Follows a pointer. `known`: it is certainly a pointer, and one that leads nowhere is worth a word.
    #[inline]
    fn follow(&mut self, at: u64, to: u64, target: TypeId, known: bool) {
        match self.tracer.lead(to) {
            Lead::Block { ordinal, superblock, index, start, size } => {
                let puddle = &self.tracer.puddles[ordinal];
                let cell = &puddle.cells[superblock];
                if known && target != TypeId::UNTYPED {
                    if start != to {
                        self.fault(Fault::Inexact, at, to, target);
                    } else if cell.type_id != target {
                        self.fault(Fault::OtherType, at, to, target);
                    }
                }
                let word = &puddle.marks[superblock * WORDS + index / 64];
                let mask = 1 << (index % 64);
                if word.load(Ordering::Relaxed) & mask != 0
                    || word.fetch_or(mask, Ordering::Relaxed) & mask != 0
                {
                    return;
                }
                self.counts.blocks += 1;
                self.counts.bytes += size;
                self.stack.push(Pending { addr: start, size, from: 0, program: cell.program });
            }
            Lead::Foreign => {
                self.counts.foreign_pointers += u64::from(known);
                if let Some(foreign) = &mut self.foreign {
                    foreign.insert(to);
                }
            }
            Lead::Lost if known => self.fault(Fault::Lost, at, to, target),
            Lead::Nothing if known => self.fault(Fault::Dangling, at, to, target),
            Lead::Outside if known => self.fault(Fault::Outside, at, to, target),
            _ => {}
        }
    }

    #[cold]
    fn fault(&mut self, fault: Fault, at: u64, to: u64, target: TypeId) {
        self.counts.faults += 1;
        if self.counts.findings.len() < LISTED_MAX {
            self.counts.findings.push(Finding { fault, at, to, target });
        }
    }

    fn scan(&mut self, block: Pending) {
        let base = self.stack.len();
        let tracer = self.tracer;
        let rest = match &tracer.programs[block.program as usize] {
            Program::Nothing => None,
            Program::Words => self.scan_words(&block, base),
            Program::Map { record, starts, per_value } => {
                if record.size > block.size {
                    // Allocated smaller than its type: no value can be there. Look at what is.
                    self.scan_words(&block, base)
                } else {
                    self.scan_map(&block, base, record, starts, *per_value)
                }
            }
        };
        if let Some(from) = rest {
            self.stack.insert(base, Pending { from, ..block });
        }
    }

    fn scan_words(&mut self, block: &Pending, base: usize) -> Option<u64> {
        self.counts.conservative_blocks += u64::from(block.from == 0);
        for number in block.from..block.size / 8 {
            if self.stack.len() - base >= PART {
                return Some(number);
            }
            let at = block.addr + number * 8;
            let word = load(at);
            if word != 0 {
                self.follow(at, word, TypeId::UNTYPED, false);
            }
        }
        None
    }

    fn scan_map(
        &mut self,
        block: &Pending,
        base: usize,
        record: &TypeRecord,
        starts: &[u64],
        per_value: u64,
    ) -> Option<u64> {
        let values = if record.repeats { block.size / record.size.max(1) } else { 1 };
        // Where to go on: value, field and pointer of the field.
        let mut value = block.from / per_value;
        let within = block.from % per_value;
        let mut field = starts.partition_point(|&start| start <= within).saturating_sub(1);
        let mut k = within - starts[field];
        while value < values {
            let start = block.addr + value * record.size;
            while let Some(map) = record.pointers.get(field) {
                if holds(map, start, record.size) {
                    while k < map.count {
                        if self.stack.len() - base >= PART {
                            return Some(value * per_value + starts[field] + k);
                        }
                        let at = start + map.offset + k * map.stride;
                        let to = load(at) & !map.tag_mask;
                        if to != 0 {
                            self.follow(at, to, map.target, true);
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

fn holds(field: &PointerField, value: u64, size: u64) -> bool {
    if field.conditions.is_empty() {
        return true;
    }
    // SAFETY: the value lies in a block (the caller saw to that), blocks lie in mapped memory, and nobody changes data while it is traced.
    let bytes =
        unsafe { core::slice::from_raw_parts(with_exposed_provenance::<u8>(value as usize), size as usize) };
    field.conditions.iter().all(|condition| condition.holds(bytes))
}

/// The word at `addr`, in a block.
#[inline]
fn load(addr: u64) -> u64 {
    let pointer = with_exposed_provenance::<u64>(addr as usize);
    // SAFETY: as in `holds`. Values of a repeating type need not be aligned to 8.
    unsafe { pointer.read_unaligned() }
}
