//! The image of a puddle of a traced heap: descriptors and marks in it say which blocks it has.
//!
//! Their meaning together is decided as the heap decides it when it adopts a puddle
//! (`cenote_heap`, adoption): a block is allocated if its superblock's descriptor is whole and its
//! mark says ALLOCATED, and nothing else.

use super::contents::{Contents, Extent, Marks};
use cenote_heap::class::{blocks_per_superblock, class_size};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::heap::{Descriptor, HeapGeometry, MARKS_SIZE, SUPERBLOCK_SIZE, SuperblockState};
use cenote_layout::id::TypeId;
use cenote_layout::mark;
use zerocopy::FromBytes;

/// What a descriptor says, before its neighbours are asked.
#[derive(Clone, Copy)]
enum Says {
    Free,
    Hole,
    Small(u32, TypeId),
    /// Superblocks, bytes of the block.
    Head(usize, usize, TypeId),
    Tail(usize),
    Invalid,
}

fn says(image: &[u8], layout: &HeapGeometry, number: usize) -> Says {
    let at = layout.descriptors as usize + number * size_of::<Descriptor>();
    let bytes = image.get(at..at + size_of::<Descriptor>());
    let Some(Ok(d)) = bytes.map(Descriptor::read_from_bytes) else { return Says::Invalid };
    if !d.is_valid() {
        return Says::Invalid;
    }
    let (first, count) = (layout.first_usable as usize, layout.superblocks as usize);
    let span = usize::try_from(d.span).unwrap_or(usize::MAX);
    match SuperblockState::from_u32(d.state) {
        Some(SuperblockState::Free) => Says::Free,
        Some(SuperblockState::Hole) => Says::Hole,
        Some(SuperblockState::Small | SuperblockState::SmallCut)
            if blocks_per_superblock(d.class) != 0 && class_size(d.class) == d.block_size =>
        {
            Says::Small(d.class, d.type_id)
        }
        Some(SuperblockState::LargeHead | SuperblockState::LargeHeadCut)
            if span >= 1
                && span <= count - number
                && d.block_size.div_ceil(SUPERBLOCK_SIZE) == d.span =>
        {
            Says::Head(span, d.block_size as usize, d.type_id)
        }
        Some(SuperblockState::LargeTail | SuperblockState::LargeTailCut)
            if span >= 1 && span <= number - first =>
        {
            Says::Tail(span)
        }
        _ => Says::Invalid,
    }
}

/// Reads the descriptors of a puddle's image.
pub(super) fn contents(image: &[u8], puddle: &PuddleRecord) -> Result<Contents, String> {
    let layout = HeapGeometry::new(puddle.size, puddle.index == 0)
        .filter(|_| image.len() as u64 == puddle.size)
        .ok_or_else(|| format!("{} bytes are no heap puddle of {}", image.len(), puddle.size))?;
    let (first, count) = (layout.first_usable as usize, layout.superblocks as usize);
    let all: Vec<Says> = (0..count)
        .map(|number| if number < first { Says::Free } else { says(image, &layout, number) })
        .collect();
    let superblock = SUPERBLOCK_SIZE as usize;
    let outer = |number: usize| layout.marks as usize + number * MARKS_SIZE as usize;
    let mut out = Contents {
        extents: Vec::new(),
        damaged: 0,
        holes: Vec::new(),
        roots: (puddle.index == 0).then_some(layout.roots as usize),
    };
    let mut number = first;
    while number < count {
        let (start, outer) = (number * superblock, outer(number));
        number += 1;
        // As the heap decides when it adopts the puddle: such a descriptor, or such marks, are
        // damaged.
        let is_used = |image: &[u8]| {
            let marks = image.get(outer..outer + MARKS_SIZE as usize).unwrap_or_default();
            marks.iter().any(|mark| match mark::meaning(*mark) {
                Some(mark::Meaning::Allocated | mark::Meaning::Condemned | mark::Meaning::Tiny)
                | None => true,
                Some(_) => false,
            })
        };
        match all[number - 1] {
            Says::Free | Says::Hole | Says::Invalid if is_used(image) => out.damaged += 1,
            Says::Free | Says::Tail(_) | Says::Invalid => {}
            Says::Hole => match out.holes.last_mut() {
                Some((offset, len)) if *offset + *len == start as u64 => *len += SUPERBLOCK_SIZE,
                _ => out.holes.push((start as u64, SUPERBLOCK_SIZE)),
            },
            Says::Small(class, type_id) => {
                let block = class_size(class);
                let marks = layout.marks_at(number as u64 - 1, block) as usize;
                let (block, count) = (block as usize, blocks_per_superblock(class) as usize);
                let marks = Marks::Bytes(marks);
                out.extents.push(Extent { start, block, marks, count, type_id });
            }
            Says::Head(span, block, type_id) => {
                let tails = &all[number..number - 1 + span];
                let whole = tails.iter().zip(1..).all(|(tail, distance)| match tail {
                    Says::Tail(says) => *says == distance,
                    Says::Invalid => true,
                    _ => false,
                });
                if whole {
                    number += span - 1;
                    let marks = Marks::Bytes(outer);
                    out.extents.push(Extent { start, block, marks, count: 1, type_id });
                }
            }
        }
    }
    Ok(out)
}
