//! The image of a heap puddle: its allocated blocks, the pointers in them, and the same image for
//! another address.
//!
//! Everything here is a function of bytes. An image may come from a hostile archive, so the code
//! believes nothing in it: descriptors count by their checksums, spans and classes are checked, and
//! no word is read or written that is not inside a block inside the image.
//!
//! Where blocks and roots lie, the heap says ([`PoolImages`]): each kind has a codec for its
//! images.
//!
//! Conditions of a pointer map look at the bytes of the value as it was: all pointers of a value
//! are found before the first of them is changed.

use cenote_heap::PoolImages;
use cenote_heap::image::{ImageContents, ImageExtent};
use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_layout::heap::{ROOT_COUNT, RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_layout::moves::Cursor;
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_relative};
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, PointerBug, planted};
use cenote_store::relocate::{RewriteJob, Rewritten, TypeTable};
use std::collections::HashMap;
use std::sync::Arc;

/// Most pointers of a value that are written out one by one; a type with more is gone through by
/// its map.
const FIXED_MAX: u64 = 1024;

/// Stretches that lie nearer to each other than that are one. Between blocks of one type there is
/// less, as a rule.
const GAP_MAX: u64 = 64 << 10;

/// Bytes of all roots.
const ROOTS_LEN: usize = ROOT_COUNT as usize * size_of::<RootSlot>();

/// What the image of a job's puddle holds.
fn contents_of(image: &[u8], job: &RewriteJob) -> Result<ImageContents, String> {
    PoolImages::new(job.heap, job.blocks.as_deref()).contents(image, &job.puddle)
}

/// Where each of the numbered roots lies in an image.
fn roots_of(contents: &ImageContents) -> impl Iterator<Item = usize> + use<> {
    let roots = contents.roots.map(|roots| roots as usize..roots as usize + ROOTS_LEN);
    roots.into_iter().flat_map(|roots| roots.step_by(size_of::<RootSlot>()))
}

/// A pointer of a value.
#[derive(Clone, Copy)]
struct ImageSlot {
    offset: usize,
    kind: PointerKind,
    tag_mask: u64,
}

/// How the pointers in a block of a type are found.
enum Program {
    /// There are none.
    Nothing,
    /// In each value of so many bytes, always the same.
    Fixed { size: usize, repeats: bool, slots: Box<[ImageSlot]> },
    /// By the map.
    Map(Arc<TypeRecord>),
    /// Any word may be one.
    Words,
}

impl Program {
    fn of(types: &TypeTable, id: TypeId) -> Self {
        let Some(record) = types.get(&id).filter(|record| record.check().is_ok()) else {
            return Self::Words;
        };
        if record.pointers.is_empty() {
            return Self::Nothing;
        }
        let count: u64 =
            record.pointers.iter().fold(0, |sum, field| field.count.saturating_add(sum));
        if count > FIXED_MAX || record.pointers.iter().any(|field| !field.conditions.is_empty()) {
            return Self::Map(Arc::clone(record));
        }
        let slots = record.pointers.iter().flat_map(|field| {
            let slot = move |k| ImageSlot {
                offset: (field.offset + k * field.stride) as usize,
                kind: field.kind.followed(),
                tag_mask: field.tag_mask,
            };
            (0..field.count).map(slot)
        });
        Self::Fixed { size: record.size as usize, repeats: record.repeats, slots: slots.collect() }
    }

    /// Values in a block of so many bytes. Asked once for all blocks that lie side by side, because
    /// it divides.
    fn values(&self, block: usize) -> usize {
        let (size, repeats) = match self {
            Self::Fixed { size, repeats, .. } => (*size, *repeats),
            Self::Map(record) => {
                (usize::try_from(record.size).unwrap_or(usize::MAX), record.repeats)
            }
            Self::Nothing | Self::Words => return 0,
        };
        if repeats { block / size.max(1) } else { usize::from(block >= size) }
    }

    /// Calls `visit` with the block and the place in it of every pointer that its values have.
    /// `found` is room for what is found before it is visited.
    #[inline]
    fn run(
        &self,
        (block, values): (&mut [u8], usize),
        found: &mut Vec<ImageSlot>,
        visit: &mut impl FnMut(&mut [u8], ImageSlot),
    ) {
        match self {
            Self::Nothing => {}
            Self::Fixed { size, slots, .. } => {
                for value in 0..values {
                    for slot in slots {
                        visit(block, ImageSlot { offset: value * size + slot.offset, ..*slot });
                    }
                }
            }
            Self::Map(record) => {
                let size = usize::try_from(record.size).unwrap_or(usize::MAX).max(1);
                for value in 0..values {
                    let start = value * size;
                    found.clear();
                    record.for_each_pointer(&block[start..start + size], &mut |offset, field| {
                        // No value has more pointers than words, even if its map has.
                        if found.len() < size / 8 {
                            found.push(ImageSlot {
                                offset: start + offset,
                                kind: field.kind.followed(),
                                tag_mask: field.tag_mask,
                            });
                        }
                    });
                    for slot in found.iter() {
                        visit(block, *slot);
                    }
                }
            }
            Self::Words => {
                for offset in (0..block.len() / 8 * 8).step_by(8) {
                    visit(block, ImageSlot { offset, kind: PointerKind::PERHAPS, tag_mask: 0 });
                }
            }
        }
    }
}

/// The numbered root at an offset; `None`: it is damaged.
fn root(image: &[u8], at: usize) -> Option<RootEntry> {
    RootSlot { word: word(image, at), type_id: TypeId(word(image, at + 8)) }.read()
}

/// The word at an offset of a block, which the caller has seen to lie in it; 0 otherwise.
#[inline]
fn word(block: &[u8], offset: usize) -> u64 {
    block
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Where the heap pointer at an offset leads.
fn heap_pointer(block: &[u8], offset: usize) -> Option<RegionAddress> {
    RegionAddress::from_pair([word(block, offset), word(block, offset + 8)])
}

#[inline]
fn set_word(block: &mut [u8], offset: usize, value: u64) {
    if let Some(bytes) = block.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        *bytes = value.to_le_bytes();
    }
}

/// Calls `visit` with the offset of every block that is allocated, or may be, its bytes and how
/// many values it has, and the program of its type; but not with those of an extent of which `all`
/// says that it has seen to it.
fn each_block(
    image: &mut [u8],
    contents: &ImageContents,
    (types, all_blocks): (&TypeTable, bool),
    mut all: impl FnMut(&mut [u8], &ImageExtent, &Program) -> bool,
    mut visit: impl FnMut(usize, (&mut [u8], usize), &Program),
) {
    let mut programs: HashMap<TypeId, Program> = HashMap::new();
    for extent in &contents.extents {
        let program =
            programs.entry(extent.type_id).or_insert_with(|| Program::of(types, extent.type_id));
        if matches!(program, Program::Nothing) || all(image, extent, program) {
            continue;
        }
        let values = program.values(extent.size as usize);
        for number in 0..extent.count {
            // Words of which no type says what they are stay as they are, so they are not counted
            // either where they may be no value.
            let any = all_blocks && !matches!(program, Program::Words);
            if !extent.is_kept(image, number, any) {
                continue;
            }
            let range = extent.range_of(number);
            let start = range.start;
            if let Some(block) = image.get_mut(range) {
                visit(start, (block, values), program);
            }
        }
    }
}

/// A pointer, as it stands in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundPointer {
    /// Bytes from the puddle's start to the word.
    pub offset: u64,
    /// How it says where it leads. [`PointerKind::PERHAPS`]: only a program's filter tells whether
    /// it is one.
    pub kind: PointerKind,
    /// The address that it leads to, without tag bits; 0 for region pointers and heap pointers.
    pub target: u64,
    /// Where a region pointer or a heap pointer leads to.
    pub region: Option<RegionAddress>,
}

/// Calls `visit` with every pointer that is not null of the allocated blocks, and of the roots, of
/// the image of a traced heap's puddle. Words that may be pointers are among them. The image is as
/// it was on return.
///
/// # Errors
/// The bytes are no heap puddle of that size.
pub fn for_each_pointer(
    image: &mut [u8],
    puddle: &PuddleRecord,
    types: &TypeTable,
    visit: &mut dyn FnMut(FoundPointer),
) -> Result<(), String> {
    let contents = PoolImages::new(HeapKind::Traced, None).contents(image, puddle)?;
    for at in roots_of(&contents) {
        // A damaged root leads nowhere that is known.
        let target = root(image, at).map_or(0, |root| root.addr);
        if target != 0 {
            visit(FoundPointer {
                offset: at as u64,
                kind: PointerKind::NATIVE,
                target,
                region: None,
            });
        }
    }
    let mut room = Vec::new();
    each_block(
        image,
        &contents,
        (types, false),
        |_, _, _| false,
        |start, block, program| {
            program.run(block, &mut room, &mut |block, slot| {
                let (value, offset) = (word(block, slot.offset), (start + slot.offset) as u64);
                let (target, region) = match slot.kind {
                    PointerKind::RELATIVE => {
                        (decode_relative(puddle.addr + offset, value).unwrap_or(0), None)
                    }
                    PointerKind::REGION => (0, RegionAddress::decode(value)),
                    PointerKind::HEAP => (0, heap_pointer(block, slot.offset)),
                    _ => (value & !slot.tag_mask, None),
                };
                if target != 0 || region.is_some() {
                    visit(FoundPointer { offset, kind: slot.kind, target, region });
                }
            });
        },
    );
    Ok(())
}

/// Makes an image right for the address that its puddle has now. Its header page is not touched.
///
/// # Errors
/// The bytes are no heap puddle of that size; they are as they were.
pub fn rewrite(image: &mut [u8], job: &RewriteJob) -> Result<Rewritten, String> {
    let contents = contents_of(image, job)?;
    let mut done = Rewritten {
        damaged: contents.damaged,
        holes: contents.holes.clone(),
        ..Rewritten::default()
    };
    let mut cursor = Cursor::default();
    if !planted(Bug::RootsNotRewritten) {
        done.native += rewrite_roots(image, &contents, job, &mut cursor);
    }
    let mut room = Vec::new();
    let (mut blocks, mut native) = (0, 0);
    let short = |image: &mut [u8], extent: &ImageExtent, program: &Program| {
        let counts = rewrite_native(image, extent, program, job).unwrap_or_default();
        (blocks, native) = (blocks + counts.0, native + counts.1);
        counts.0 > 0
    };
    each_block(image, &contents, (&job.types, job.all_blocks), short, |start, block, program| {
        done.blocks += 1;
        program.run(block, &mut room, &mut |block, slot| {
            rewrite_slot((block, start), slot, job, &mut cursor, &mut done);
        });
    });
    done.blocks += blocks;
    done.native += native;
    Ok(done)
}

/// Rewrites the numbered roots. How many have another value now.
fn rewrite_roots(
    image: &mut [u8],
    contents: &ImageContents,
    job: &RewriteJob,
    cursor: &mut Cursor,
) -> u64 {
    let mut changed = 0;
    for at in roots_of(contents) {
        // A damaged root stays as it is, and is found when it is read.
        let Some(old) = root(image, at).filter(|root| root.addr != 0) else { continue };
        let addr = job.moves.native(old.addr, 0, cursor);
        if let Some(slot) = RootSlot::new(RootEntry { addr, ..old }).filter(|_| addr != old.addr) {
            set_word(image, at, slot.word);
            changed += 1;
        }
    }
    changed
}

/// Rewrites one pointer of a block, which begins at `start` of the image.
fn rewrite_slot(
    (block, start): (&mut [u8], usize),
    slot: ImageSlot,
    job: &RewriteJob,
    cursor: &mut Cursor,
    done: &mut Rewritten,
) {
    let old = word(block, slot.offset);
    if old == 0 {
        return;
    }
    match slot.kind {
        PointerKind::NATIVE => {
            let new = job.moves.native(old, slot.tag_mask, cursor);
            if new != old {
                set_word(block, slot.offset, new);
                done.native += 1;
            }
        }
        PointerKind::RELATIVE => {
            let at = (start + slot.offset) as u64;
            if decode_relative(job.from + at, old).is_none() {
                return;
            }
            match job.moves.relative(old, job.from + at, job.puddle.addr + at, cursor) {
                Some(new) if new != old => {
                    set_word(block, slot.offset, new);
                    done.relative += 1;
                }
                Some(_) => {}
                None => done.out_of_reach += 1,
            }
        }
        PointerKind::REGION | PointerKind::HEAP => match job.moves.numbered(old, slot.kind) {
            Some(_) if planted(Bug::Pointer(PointerBug::HeapIdKept)) => {}
            Some(new) if new != old => {
                set_word(block, slot.offset, new);
                done.region += 1;
            }
            Some(_) => {}
            None => done.out_of_reach += u64::from(RegionAddress::decode(old).is_some()),
        },
        _ => {
            if may_lead_to_moved(old, start + slot.offset, job, cursor) {
                done.kept += 1;
                if done.first_kept == 0 {
                    done.first_kept = job.puddle.addr + (start + slot.offset) as u64;
                }
            }
        }
    }
}

/// Where [`rewrite`] may change words of this image, if it may be run over it again after any of
/// them were changed: [`cenote_store::relocate::Rewriter::repeatable`] says what that is for. So it
/// is for native pointers where nothing came to where something was, if what says that a value has
/// them is not among them. Off-holders say what they say by where they stand, so they are changed
/// once only, and so are numbers of pools.
#[must_use]
pub fn repeatable(image: &[u8], job: &RewriteJob) -> Option<Vec<(u64, u64)>> {
    let contents = contents_of(image, job).ok()?;
    if !job.moves.is_repeatable() && !planted(Bug::Pointer(PointerBug::OverlapRepeated)) {
        return None;
    }
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    if let Some(roots) = contents.roots {
        stretches.push((roots, roots + ROOTS_LEN as u64));
    }
    let mut known: HashMap<TypeId, (bool, bool)> = HashMap::new();
    for extent in &contents.extents {
        let says =
            known.entry(extent.type_id).or_insert_with(|| match job.types.get(&extent.type_id) {
                Some(record) if record.check().is_ok() => {
                    (is_repeatable(record), !record.pointers.is_empty())
                }
                // Of such blocks no word is changed.
                _ => (true, false),
            });
        match *says {
            (false, _) => return None,
            (true, false) => {}
            (true, true) => {
                let from = extent.offset;
                let to = from + extent.count * extent.size;
                match stretches.last_mut() {
                    Some((_, end)) if from.checked_sub(*end).is_some_and(|gap| gap < GAP_MAX) => {
                        *end = to
                    }
                    _ => stretches.push((from, to)),
                }
            }
        }
    }
    Some(stretches)
}

/// Whether a type's pointers are native, or words that are kept, and no discriminant is one of
/// them.
fn is_repeatable(record: &TypeRecord) -> bool {
    let native = |kind| {
        let kind: PointerKind = kind;
        matches!(kind.followed(), PointerKind::NATIVE | PointerKind::PERHAPS)
    };
    let conditions = || record.pointers.iter().flat_map(|field| &field.conditions);
    record.pointers.iter().all(|field| {
        let end = field.offset + (field.count - 1) * field.stride + 8;
        native(field.kind)
            && conditions().all(|c| c.offset >= end || c.offset + u64::from(c.size) <= field.offset)
    })
}

/// Rewrites the blocks of an extent whose values have native pointers at fixed places and no
/// others. Most blocks are such. How many there are, and how many pointers have another value now;
/// `None`, and nothing is done, if they are not of that kind or do not lie in the image.
fn rewrite_native(
    image: &mut [u8],
    extent: &ImageExtent,
    program: &Program,
    job: &RewriteJob,
) -> Option<(u64, u64)> {
    let Program::Fixed { size, slots, .. } = program else { return None };
    if slots.iter().any(|slot| slot.kind != PointerKind::NATIVE) {
        return None;
    }
    let kept = extent.kept(image, job.all_blocks)?;
    let (blocks, block) = (image.get_mut(extent.range())?, extent.size as usize);
    let (values, mut cursor, mut counts) = (program.values(block), Cursor::default(), (0, 0));
    let blocks = blocks.chunks_exact_mut(block).zip(&kept);
    let moves = &job.moves;
    for (block, _) in blocks.filter(|(_, kept)| **kept) {
        counts.0 += 1;
        let mut rest = block;
        for _ in 0..values {
            let (value, behind) = rest.split_at_mut_checked(*size)?;
            for slot in slots {
                let old = word(value, slot.offset);
                let new = if old == 0 { 0 } else { moves.native(old, slot.tag_mask, &mut cursor) };
                if new != old {
                    set_word(value, slot.offset, new);
                    counts.1 += 1;
                }
            }
            rest = behind;
        }
    }
    Some(counts)
}

/// Whether a word, if it is a pointer, would have to be another one now.
fn may_lead_to_moved(old: u64, offset: usize, job: &RewriteJob, cursor: &mut Cursor) -> bool {
    let at = offset as u64;
    job.moves.delta(old, cursor) != 0
        || job.moves.region(old).or(job.moves.heap(old)).is_some_and(|new| new != old)
        || job
            .moves
            .relative(old, job.from + at, job.puddle.addr + at, cursor)
            .is_some_and(|new| new != old)
}
