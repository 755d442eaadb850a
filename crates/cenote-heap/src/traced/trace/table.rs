//! A tracer's table of a puddle: 16 bytes for each superblock, from its descriptor, and one bit
//! for each block that was reached.
//!
//! The invariant that makes lookups safe: a cell of kind `TAIL` at index `i` has a distance of at
//! most `i`, and the cell that far before is no tail (`classify` sees to both). Bits of a
//! superblock are counted from its own first word, so no block of 16 bytes or more needs a bit
//! beyond its superblock's 64 words.

use super::Kinds;
use super::program::NUMBER;
use crate::class::{blocks_per_superblock, class_size};
use crate::traced::claims::{Claim, classify};
use crate::traced::line::{pack, split};
use crate::traced::superblock::{PuddleHeap, zeroed_words};
use cenote_layout::heap::SUPERBLOCK_SIZE;
use cenote_layout::id::TypeId;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words of bits for one superblock: one bit for 16 bytes.
const WORDS: usize = (SUPERBLOCK_SIZE / 16 / 64) as usize;

const SMALL: u32 = 0;
const LARGE: u32 = 1;
const TAIL: u32 = 2;
const OTHER: u32 = 3;
const KIND_SHIFT: u32 = 30;
/// What `OTHER` is: nothing, or something that cannot be read.
const NOTHING: u32 = 0;
const INVALID: u32 = 1;

/// A superblock.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// [`pack`]ed block size and reciprocal; bytes of a large block.
    geometry: u64,
    /// Number of the program for its blocks, with its flags.
    program: u32,
    /// Kind, above; below, blocks (small), superblocks (large), superblocks back to the head
    /// (tail).
    extent: u32,
}

const _: () = assert!(size_of::<Cell>() == 16);

/// A puddle.
#[derive(Debug)]
pub(super) struct PuddleTable {
    pub(super) base: u64,
    /// Bytes, of whole superblocks.
    pub(super) size: u64,
    cells: Box<[Cell]>,
    reached: Box<[AtomicU64]>,
    /// Pointers into superblocks that are invalid, by superblock.
    lost: Box<[AtomicU32]>,
    claims: Vec<Claim>,
}

/// A block.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundBlock {
    pub(super) start: u64,
    pub(super) size: u64,
    /// With its flags.
    pub(super) program: u32,
    /// Number of its bit in the puddle.
    pub(super) bit: usize,
}

/// Why an address in a puddle leads to no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    Nothing,
    /// Into a superblock whose descriptor is damaged.
    Lost,
}

impl PuddleTable {
    /// Reads the descriptors of a puddle.
    pub(super) fn new(puddle: &PuddleHeap, kinds: &mut Kinds<'_>) -> Self {
        Self::of_claims(puddle.base, classify(puddle), kinds)
    }

    /// A puddle whose descriptors say `claims`.
    pub(super) fn of_claims(base: u64, claims: Vec<Claim>, kinds: &mut Kinds<'_>) -> Self {
        let mut cell = |claim: &Claim| {
            let (kind, extent, type_id, block_size) = match *claim {
                Claim::Small { class, type_id } => {
                    (SMALL, blocks_per_superblock(class), type_id, class_size(class))
                }
                Claim::Large { span, type_id, .. } => (LARGE, span, type_id, SUPERBLOCK_SIZE),
                Claim::Tail { distance, .. } => (TAIL, distance, TypeId::UNTYPED, SUPERBLOCK_SIZE),
                Claim::Invalid(_) => (OTHER, INVALID, TypeId::UNTYPED, SUPERBLOCK_SIZE),
                Claim::Free | Claim::Stale | Claim::Metadata => {
                    (OTHER, NOTHING, TypeId::UNTYPED, SUPERBLOCK_SIZE)
                }
            };
            let (size, geometry) = match *claim {
                Claim::Large { bytes, .. } => (bytes, bytes),
                _ => (block_size, pack(block_size)),
            };
            // A puddle has less than 2^30 superblocks: the address space has no more.
            Cell {
                geometry,
                program: kinds.number(type_id, size),
                extent: kind << KIND_SHIFT | (extent & ((1 << KIND_SHIFT) - 1)),
            }
        };
        let cells: Box<[Cell]> = claims.iter().map(&mut cell).collect();
        Self {
            base,
            size: cells.len() as u64 * SUPERBLOCK_SIZE,
            reached: zeroed_words(cells.len() * WORDS),
            lost: cells.iter().map(|_| AtomicU32::new(0)).collect(),
            cells,
            claims,
        }
    }

    pub(super) fn claims(&self) -> &[Claim] {
        &self.claims
    }

    pub(super) fn reached(&self, superblock: u32, word: usize) -> u64 {
        self.reached[superblock as usize * WORDS + word].load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self, superblock: u32) -> u64 {
        u64::from(self.lost[superblock as usize].load(Ordering::Relaxed))
    }

    /// Superblocks that hold blocks.
    pub(super) fn in_use(&self) -> u64 {
        self.cells.iter().filter(|cell| cell.extent >> KIND_SHIFT != OTHER).count() as u64
    }

    /// Usable bytes of the blocks that were reached.
    pub(super) fn reached_bytes(&self) -> u64 {
        let superblocks = self.cells.iter().zip(self.reached.chunks_exact(WORDS));
        let bytes = |(cell, words): (&Cell, &[AtomicU64])| {
            let blocks: u32 =
                words.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
            let size = match cell.extent >> KIND_SHIFT {
                LARGE => cell.geometry,
                _ => cell.geometry >> 32,
            };
            u64::from(blocks) * size
        };
        superblocks.map(bytes).sum()
    }

    /// Whether a block was reached whose type has this program.
    pub(super) fn has_reached(&self, program: u32) -> bool {
        let heads = |cell: &Cell| matches!(cell.extent >> KIND_SHIFT, SMALL | LARGE);
        self.cells.iter().zip(self.reached.chunks_exact(WORDS)).any(|(cell, words)| {
            cell.program & NUMBER == program & NUMBER
                && heads(cell)
                && words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
        })
    }

    /// Whether `addr` is in this puddle.
    #[inline(always)]
    pub(super) fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.size
    }

    /// The small block that an address leads to, and the offset of the address in it; `None`: ask
    /// [`PuddleTable::find_other`].
    #[inline(always)]
    pub(super) fn find_small(&self, addr: u64) -> Option<(FoundBlock, u64)> {
        let offset = addr.wrapping_sub(self.base);
        let superblock = (offset / SUPERBLOCK_SIZE) as usize;
        let cell = self.cells.get(superblock)?;
        let within = offset % SUPERBLOCK_SIZE;
        let (index, start) = split(cell.geometry, within);
        // Kind and count in one comparison of what is small: only `SMALL` is 0.
        if cell.extent >> KIND_SHIFT != SMALL || index >= cell.extent as usize {
            return None;
        }
        let bit = superblock * WORDS * 64 + index;
        Some((
            FoundBlock { start: addr, size: cell.geometry >> 32, program: cell.program, bit },
            within - start,
        ))
    }

    /// The block that any address leads to.
    ///
    /// # Errors
    /// Why it leads to none.
    pub(super) fn find_other(&self, addr: u64) -> Result<FoundBlock, Miss> {
        if let Some((found, within)) = self.find_small(addr) {
            return Ok(FoundBlock { start: addr - within, ..found });
        }
        let superblock = (addr.wrapping_sub(self.base) / SUPERBLOCK_SIZE) as usize;
        let at = |superblock: usize| {
            let cell = self.cells.get(superblock).ok_or(Miss::Nothing)?;
            Ok((cell, cell.extent >> KIND_SHIFT, cell.extent & ((1 << KIND_SHIFT) - 1)))
        };
        let (_, kind, extent) = at(superblock)?;
        let head =
            if kind == TAIL { superblock.saturating_sub(extent as usize) } else { superblock };
        let (cell, kind, extent) = at(head)?;
        match kind {
            LARGE => Ok(FoundBlock {
                start: self.base + head as u64 * SUPERBLOCK_SIZE,
                size: cell.geometry,
                program: cell.program,
                bit: head * WORDS * 64,
            }),
            OTHER if extent == INVALID => Err(self.found_lost(head)),
            _ => Err(Miss::Nothing),
        }
    }

    fn found_lost(&self, superblock: usize) -> Miss {
        // Not beyond the end: how many there are is for people.
        let add = |count: u32| count.checked_add(1);
        let _ = self.lost[superblock].fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        Miss::Lost
    }

    /// Notes that a block was reached. Returns whether it had been before. `alone`: no other thread
    /// notes blocks now.
    #[inline(always)]
    pub(super) fn note(&self, bit: usize, alone: bool) -> bool {
        let Some(word) = self.reached.get(bit / 64) else { return true };
        let mask = 1 << (bit % 64);
        let old = word.load(Ordering::Relaxed);
        if old & mask != 0 {
            return true;
        }
        if alone {
            // A locked instruction would hold back the loads that follow it, which tracing waits
            // for anyway.
            word.store(old | mask, Ordering::Relaxed);
            return false;
        }
        word.fetch_or(mask, Ordering::Relaxed) & mask != 0
    }
}
