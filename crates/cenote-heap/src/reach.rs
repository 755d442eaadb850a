//! Follows the pointers of a logged heap, or of a wear heap, from its roots: for checks, and for
//! what leads into other pools. Their recovery never does. (A traced heap has its own tracer.)
//!
//! Invariant: each block is looked at once, by its type's record or filter; one of no known type
//! word by word. Bytes are copied before they are judged: no padding is read in place.

use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::copied::copy_into;
use crate::error::{FreeError, RecoverError};
use crate::heap::Heap;
use crate::report::{BinStats, HeapReport, HeapStats};
use crate::report::{Fault, Finding, LISTED_MAX, TraceCounts};
use crate::roots;
use crate::trace::{Scanned, TraceOptions, TraceProgress, Types, Visitor};
use cenote_layout::heap::{ROOT_COUNT, RootEntry};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_relative};
use cenote_layout::types::{PointerField, TypeRecord};
use core::ops::ControlFlow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are copied at once of a block that holds many values.
const STEP: u64 = 64 << 10;
/// Blocks between two looks at the clock.
const BLOCKS: u64 = 1024;

/// A heap whose pointers are followed here.
pub(crate) trait Followed: Heap {
    /// What the heap is on.
    type Backing: Backing;

    /// The same.
    fn backing(&self) -> &Self::Backing;

    /// What is at an address.
    ///
    /// # Errors
    /// It is in no puddle of this heap, or where no block can be.
    fn holder(&self, addr: u64) -> Result<Holder, FreeError>;
}

/// What is at an address of a heap.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holder {
    /// An allocated block, at its start or inside.
    Block(BlockInfo),
    /// No allocated block.
    Nothing,
    /// That is not known: metadata are damaged.
    Lost,
}

/// What a traversal found.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) counts: TraceCounts,
    /// Addresses of the blocks that were reached.
    pub(crate) blocks: HashSet<u64>,
    /// Where pointers into other pools lead.
    pub(crate) foreign: BTreeSet<u64>,
    /// Numbered roots that are damaged.
    pub(crate) damaged_roots: Vec<u16>,
    /// Address of a page that cannot be had.
    lost: Option<u64>,
}

/// Where a pointer stands, where it leads, and to a value of what type.
#[derive(Clone, Copy, Debug)]
struct Pointer {
    at: u64,
    to: u64,
    target: TypeId,
    /// Whether it certainly is one.
    known: bool,
}

/// A traversal.
struct Walk<'a, H: Followed> {
    heap: &'a H,
    types: &'a dyn Types,
    records: HashMap<TypeId, Option<Arc<TypeRecord>>>,
    queue: Vec<BlockInfo>,
    found: Reached,
}

/// Everything that the numbered roots and the addresses `more` lead to. No thread changes data
/// meanwhile.
///
/// # Errors
/// A page cannot be had; the caller broke off.
pub(crate) fn reach<H: Followed>(
    heap: &H,
    types: &dyn Types,
    more: &[u64],
    options: TraceOptions<'_>,
) -> Result<Reached, RecoverError> {
    let mut walk = Walk::new(heap, types);
    walk.begin();
    walk.begin_at(more);
    walk.all(options)
}

/// What `more` lead to that was not reached before.
///
/// # Errors
/// As [`reach`].
fn reach_further<H: Followed>(
    heap: &H,
    (types, before): (&dyn Types, &Reached),
    more: &[u64],
    options: TraceOptions<'_>,
) -> Result<Reached, RecoverError> {
    let mut walk = Walk::new(heap, types);
    walk.found.blocks.clone_from(&before.blocks);
    walk.begin_at(more);
    walk.all(options)
}

/// Adds to a report of a heap that has these blocks what following its pointers says.
///
/// # Errors
/// As [`reach`].
pub(crate) fn check_reached<H: Followed>(
    heap: &H,
    (blocks, report): (&[BlockInfo], HeapReport),
    types: &dyn Types,
    roots: &[u64],
    options: TraceOptions<'_>,
) -> Result<HeapReport, RecoverError> {
    let (mut report, mut options) = (report, options);
    let reached = reach(heap, types, roots, options.again())?;
    report.damaged_roots.clone_from(&reached.damaged_roots);
    let mut leaks = Vec::new();
    for block in blocks.iter().filter(|block| !reached.blocks.contains(&block.addr)) {
        report.leaked_blocks += 1;
        report.leaked_bytes += block.size;
        leaks.push(block.addr);
        if report.leaks.len() < LISTED_MAX {
            report.leaks.push(*block);
        }
    }
    if !leaks.is_empty() {
        let further = reach_further(heap, (types, &reached), &leaks, options)?;
        report.leak_trace = Some(further.counts);
    }
    report.trace = Some(reached.counts);
    Ok(report)
}

/// Counts of `blocks`, which are all that a heap without superblocks has.
pub(crate) fn count_blocks<G: Backing>(backing: &G, blocks: &[BlockInfo]) -> HeapStats {
    let extents = backing.extents();
    let mut stats = HeapStats {
        puddles: extents.len() as u64,
        bytes: extents.iter().map(|extent| extent.size).sum(),
        ..HeapStats::default()
    };
    let mut bins: BTreeMap<(TypeId, u64), u64> = BTreeMap::new();
    for block in blocks {
        stats.blocks += 1;
        stats.block_bytes += block.size;
        *bins.entry((block.type_id, block.size)).or_default() += 1;
    }
    let bin = |((type_id, block_size), blocks): ((TypeId, u64), u64)| BinStats {
        type_id,
        // The power of two that a block's size is, or is below.
        class: block_size.next_power_of_two().trailing_zeros(),
        block_size,
        superblocks: 0,
        blocks,
        capacity: blocks,
    };
    stats.bins = bins.into_iter().map(bin).collect();
    stats
}

impl<'a, H: Followed> Walk<'a, H> {
    fn new(heap: &'a H, types: &'a dyn Types) -> Self {
        let (records, queue, found) = (HashMap::new(), Vec::new(), Reached::default());
        Self { heap, types, records, queue, found }
    }

    fn all(mut self, options: TraceOptions<'_>) -> Result<Reached, RecoverError> {
        let TraceOptions { mut progress, interval, .. } = options;
        let mut told = Instant::now();
        while let Some(block) = self.queue.pop() {
            self.scan(&block);
            if let Some(addr) = self.found.lost {
                return Err(RecoverError::Unreadable(self.heap.backing().unreadable(addr)));
            }
            let blocks = self.found.counts.blocks;
            if blocks.is_multiple_of(BLOCKS)
                && let Some(progress) = progress.as_mut().filter(|_| told.elapsed() >= interval)
            {
                if let ControlFlow::Break(()) = progress(&TraceProgress { blocks, superblocks: 0 })
                {
                    return Err(RecoverError::Cancelled);
                }
                told = Instant::now();
            }
        }
        Ok(self.found)
    }

    fn begin(&mut self) {
        for index in 0..ROOT_COUNT as u16 {
            let Ok(slot) = self.heap.root_slot(index) else { continue };
            match roots::load(slot) {
                Some(RootEntry { addr: 0, .. }) => {}
                Some(RootEntry { addr, type_id }) => {
                    self.found.counts.roots += 1;
                    let at = slot.as_ptr().expose_provenance() as u64;
                    self.follow(Pointer { at, to: addr, target: type_id, known: true });
                }
                None => self.found.damaged_roots.push(index),
            }
        }
    }

    fn begin_at(&mut self, more: &[u64]) {
        for &to in more {
            self.found.counts.roots += 1;
            self.follow(Pointer { at: 0, to, target: TypeId::UNTYPED, known: true });
        }
    }

    fn fault(&mut self, fault: Fault, pointer: Pointer) {
        let Pointer { at, to, target, known } = pointer;
        if !known {
            return;
        }
        let counts = &mut self.found.counts;
        counts.faults += 1;
        if counts.findings.len() < LISTED_MAX {
            counts.findings.push(Finding { fault, at, to, target });
        }
    }

    fn follow(&mut self, pointer: Pointer) {
        let Pointer { to, target, known, .. } = pointer;
        let holder = match self.heap.holder(to) {
            Ok(holder) => holder,
            Err(FreeError::OtherPool { .. }) => {
                self.found.counts.foreign_pointers += u64::from(known);
                self.found.foreign.insert(to);
                return;
            }
            Err(FreeError::NotInHeap { .. }) => return self.fault(Fault::Outside, pointer),
            Err(_) => return self.fault(Fault::Dangling, pointer),
        };
        match holder {
            Holder::Block(block) => {
                if target != TypeId::UNTYPED && block.addr != to {
                    self.fault(Fault::Inexact, pointer);
                } else if target != TypeId::UNTYPED && block.type_id != target {
                    self.fault(Fault::OtherType, pointer);
                }
                if self.found.blocks.insert(block.addr) {
                    self.found.counts.blocks += 1;
                    self.found.counts.bytes += block.size;
                    self.queue.push(block);
                }
            }
            Holder::Nothing => self.fault(Fault::Dangling, pointer),
            Holder::Lost => self.fault(Fault::Lost, pointer),
        }
    }

    fn record(&mut self, id: TypeId) -> Option<Arc<TypeRecord>> {
        let types = self.types;
        let known = self.records.entry(id).or_insert_with(|| {
            types.record(id).filter(|record| id != TypeId::UNTYPED && record.check().is_ok())
        });
        known.clone()
    }

    fn scan(&mut self, block: &BlockInfo) {
        if let Some(filter) = self.types.filter(block.type_id) {
            let mut bytes = Vec::new();
            if !self.copy(block.addr, block.size, &mut bytes) {
                return;
            }
            let (addr, type_id) = (block.addr, block.type_id);
            let mut visit = |to, target| self.follow(Pointer { at: addr, to, target, known: true });
            let mut visitor = Visitor::new(&mut visit);
            return filter(&Scanned { addr, type_id, bytes: &bytes }, &mut visitor);
        }
        match self.record(block.type_id) {
            Some(record) if record.pointers.is_empty() => {}
            Some(record) => self.scan_typed(block, &record),
            None => self.scan_words(block),
        }
    }

    fn scan_typed(&mut self, block: &BlockInfo, record: &TypeRecord) {
        let value = record.size.max(1);
        let (step, end) = match record.repeats {
            true => ((STEP / value).max(1) * value, block.size / value * value),
            false => (value, value.min(block.size)),
        };
        let (mut copy, mut at) = (Vec::new(), 0);
        while at < end {
            let base = block.addr + at;
            if !self.copy(base, step.min(end - at), &mut copy) {
                return;
            }
            record.for_each_pointer(&copy, &mut |offset, field| {
                let word = word_at(&copy, offset) & !field.tag_mask;
                let pair = [word, word_at(&copy, offset + 8)];
                self.follow_pair(base + offset as u64, pair, field);
            });
            at += step;
        }
    }

    fn scan_words(&mut self, block: &BlockInfo) {
        let counts = &mut self.found.counts;
        counts.conservative_blocks += 1;
        if block.type_id != TypeId::UNTYPED && !counts.unknown_types.contains(&block.type_id) {
            counts.unknown_types.push(block.type_id);
        }
        let mut copy = Vec::new();
        for from in (0..block.size).step_by(STEP as usize) {
            let base = block.addr + from;
            if !self.copy(base, STEP.min(block.size - from), &mut copy) {
                return;
            }
            for offset in (0..copy.len()).step_by(8) {
                let pair = [word_at(&copy, offset), word_at(&copy, offset + 8)];
                self.follow_perhaps(base + offset as u64, pair);
            }
        }
    }

    fn copy(&mut self, addr: u64, len: u64, copy: &mut Vec<u8>) -> bool {
        let read = copy_into(addr, len, copy);
        if !read {
            self.found.lost.get_or_insert(addr);
        }
        read
    }

    /// Follows a word that is a pointer of a known kind, or the first of its two.
    fn follow_pair(&mut self, at: u64, pair: [u64; 2], field: &PointerField) {
        let word = pair[0];
        if word == 0 {
            return;
        }
        // A block that waits to be freed may lead to one of another type.
        let owned = field.kind == PointerKind::OWNED;
        let (target, known) = (if owned { TypeId::UNTYPED } else { field.target }, true);
        let (to, fault) = match field.kind.followed() {
            PointerKind::NATIVE => (Some(word), Fault::Dangling),
            PointerKind::RELATIVE => (decode_relative(at, word), Fault::Malformed),
            PointerKind::REGION => match RegionAddress::decode(word) {
                Some(region) => (self.heap.backing().region(&region), Fault::Outside),
                None => (None, Fault::Malformed),
            },
            PointerKind::HEAP => match RegionAddress::from_pair(pair) {
                Some(place) => (self.heap.backing().region(&place), Fault::Outside),
                None => (None, Fault::Malformed),
            },
            _ => return self.follow_perhaps(at, pair),
        };
        match to {
            Some(to) => self.follow(Pointer { at, to, target, known }),
            None => self.fault(fault, Pointer { at, to: word, target, known }),
        }
    }

    /// Follows a word that may be a pointer of any kind, or none, by the one behind it too.
    fn follow_perhaps(&mut self, at: u64, pair: [u64; 2]) {
        let word = pair[0];
        let to = match word >> 48 {
            0 if word == 0 => None,
            0 => Some(word),
            _ => decode_relative(at, word).or_else(|| {
                let region = RegionAddress::decode(word).or(RegionAddress::from_pair(pair));
                self.heap.backing().region(&region?)
            }),
        };
        if let Some(to) = to {
            self.follow(Pointer { at, to, target: TypeId::UNTYPED, known: false });
        }
    }
}

/// The word at an offset; 0 if it is not there.
fn word_at(bytes: &[u8], offset: usize) -> u64 {
    let word = bytes.get(offset..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}
