//! Traces: finds the blocks that roots lead to (RAL-2, RAL-9, Ralloc 4.5.1).
//!
//! The store's pointer maps say where a block's pointers are (PUD-7); they are Ralloc's filter
//! functions, written as data. A type that data cannot describe may have a [`Filter`] in this
//! process. Blocks of types with neither, and blocks without a type, are scanned word by word:
//! every word that leads into a block keeps that block, interior pointers and off-holders (RAL-5)
//! included. The tracer believes descriptors that pass their checksum, and nothing else in the
//! heap: no mark, no pointer.
//!
//! Reached blocks are noted in a table of one bit per 16 bytes of heap (`table`), apart from the
//! heap's own marks. So `check` can trace and change nothing, and so does a recovery that is
//! interrupted or cancelled while it traces.
//!
//! `program` says where a block's pointers are, compiled once for each type; `worker` follows them.
//! Tracing mostly waits for memory, so a worker prefetches some pending blocks before it looks at
//! the first of them. Several workers share their pending blocks (`share`); they start only when a
//! heap turns out to be large.

mod heap_pointers;
mod program;
mod share;
mod slices;
mod table;
mod worker;

use crate::backing::Backing;
use crate::report::TraceCounts;
use crate::trace::Types;
use crate::traced::claims::Claim;
use crate::traced::superblock::PuddleHeap;
use cenote_layout::id::TypeId;
use program::{BlockScan, NUMBER, Program};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use table::PuddleTable;

pub(crate) use slices::{Content, Marking, Old, content_of};

/// Where tracing begins: a pointer that stands at `at` (0: nowhere in the heap) to a value of
/// `target`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceRoot {
    pub(crate) at: u64,
    pub(crate) to: u64,
    pub(crate) target: TypeId,
}

/// What a traversal found.
#[derive(Debug, Default)]
pub(crate) struct Traced {
    pub(crate) counts: TraceCounts,
    /// Where pointers into other pools lead, if that was asked for.
    pub(crate) foreign: BTreeSet<u64>,
    /// Numbered roots that are damaged.
    pub(crate) damaged_roots: Vec<u16>,
}

/// One traversal of a heap: what is known before, and which blocks were reached.
pub(crate) struct Tracer<'a, G: Backing> {
    backing: &'a G,
    /// By ordinal.
    tables: Vec<PuddleTable>,
    /// Number 0 is for blocks without a type.
    programs: Vec<Program>,
    /// Number of each type's program, with its flags.
    numbers: HashMap<TypeId, u32>,
}

impl<'a, G: Backing> Tracer<'a, G> {
    /// Reads the descriptors of all puddles, which must be in order of their ordinals.
    pub(crate) fn new(backing: &'a G, types: &dyn Types, puddles: &[Arc<PuddleHeap>]) -> Self {
        // Types first: a program says which programs the blocks have that its pointers lead to.
        let mut kinds = Kinds { types, known: HashMap::new(), scans: Vec::new() };
        kinds.number(TypeId::UNTYPED, 0);
        let tables = puddles.iter().map(|puddle| PuddleTable::new(puddle, &mut kinds)).collect();
        let (programs, numbers) = kinds.finish();
        Self { backing, tables, programs, numbers }
    }

    /// Word `word` of the reached blocks of a superblock: bit `k` of word `w` is block `64 * w +
    /// k`.
    pub(crate) fn reached(&self, ordinal: usize, superblock: u32, word: usize) -> u64 {
        self.tables[ordinal].reached(superblock, word)
    }

    /// Number of pointers found into an invalid superblock.
    pub(crate) fn lost(&self, ordinal: usize, superblock: u32) -> u64 {
        self.tables[ordinal].lost(superblock)
    }

    pub(crate) fn claims(&self, ordinal: usize) -> &[Claim] {
        self.tables[ordinal].claims()
    }

    /// Types of reached blocks with neither a record nor a filter.
    fn unknown_types(&self) -> Vec<TypeId> {
        let unknown = |(type_id, number): &(&TypeId, &u32)| {
            let scan = self.programs.get((**number & NUMBER) as usize).map(|program| &program.scan);
            **type_id != TypeId::UNTYPED
                && matches!(scan, Some(BlockScan::Words))
                && self.tables.iter().any(|table| table.has_reached(**number))
        };
        let mut ids: Vec<TypeId> =
            self.numbers.iter().filter(unknown).map(|(type_id, _)| *type_id).collect();
        ids.sort_unstable();
        ids
    }
}

/// Numbers the programs of the types that superblocks have.
struct Kinds<'a> {
    types: &'a dyn Types,
    known: HashMap<TypeId, TracedType>,
    /// By number.
    scans: Vec<(TypeId, BlockScan)>,
}

/// A type.
struct TracedType {
    /// Bytes of a value; 0 if that is not known.
    size: u64,
    number: u32,
    /// The program of blocks that are smaller than a value.
    small: Option<u32>,
}

impl Kinds<'_> {
    /// The programs, by number, and the number of each type's.
    fn finish(self) -> (Vec<Program>, HashMap<TypeId, u32>) {
        let numbers =
            self.known.into_iter().map(|(type_id, known)| (type_id, known.number)).collect();
        let program = |(type_id, scan)| Program::new(type_id, scan, &numbers);
        (self.scans.into_iter().map(program).collect(), numbers)
    }

    /// Number of the program for blocks of `size` bytes of a type.
    fn number(&mut self, type_id: TypeId, size: u64) -> u32 {
        let scans = &mut self.scans;
        let mut add = |scan: BlockScan| {
            let flags = scan.flags();
            scans.push((type_id, scan));
            (scans.len() as u32 - 1) | flags
        };
        let known = self.known.entry(type_id).or_insert_with(|| {
            let scan = BlockScan::of(self.types, type_id);
            TracedType { size: scan.value_size(), number: add(scan), small: None }
        });
        if size >= known.size {
            return known.number;
        }
        // No value can be there. What is there is looked at all the same.
        *known.small.get_or_insert_with(|| add(BlockScan::Words))
    }
}
