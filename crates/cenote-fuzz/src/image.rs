//! Images of puddles that have moved: superblocks with descriptors whose checksums fit and whose
//! fields need not, marks and words of all kinds, pointer maps that point anywhere, ranges that
//! any program may have written; or bytes of nothing but chance.
//!
//! What is asserted: nothing panics; an image that is refused is as it was; of one that is
//! rewritten no more words have changed than are counted, all of them in superblocks with blocks or
//! among the roots; looking changes nothing; values that are none are found inside the puddle. A
//! walk over values ends, and reads inside of blocks alone.

use crate::input::{Input, Random};
use cenote_layout::catalog::{HeapKind, MoveRecord, PuddleRecord, RelocationRecord};
use cenote_layout::heap::{Descriptor, HeapGeometry, SUPERBLOCK_SIZE, SuperblockState, mark};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::moves::Moves;
use cenote_layout::pointer::{PointerKind, RegionAddress};
use cenote_layout::puddle::Role;
use cenote_layout::types::{
    Condition, FieldRecord, PointerField, RECORD_VERSION, TypeRecord, VariantRecord,
};
use cenote_layout::values::Values;
use cenote_layout::values::shown::{PathStep, ShownBlocks, ShownLimits, ValueWalker};
use cenote_relocate::archiving::values_in;
use cenote_relocate::image;
use cenote_store::relocate::{RewriteJob, TypeTable};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Where the puddle was, and where it is.
const OLD: u64 = 0x6000_0020_0000;
const NEW: u64 = 0x6100_0040_0000;

/// Superblocks of a puddle.
const SUPERBLOCKS: u64 = 6;

fn a_type(input: &mut Input<'_>, id: u64) -> TypeRecord {
    let size = input.number(64);
    let kinds = [
        PointerKind::NATIVE,
        PointerKind::RELATIVE,
        PointerKind::REGION,
        PointerKind::PERHAPS,
        PointerKind::HEAP,
        PointerKind::OWNED,
    ];
    let pointers = (0..input.below(4))
        .map(|_| PointerField {
            offset: input.number(8),
            stride: input.number(8),
            count: input.number(4),
            kind: kinds[input.below(kinds.len())],
            tag_mask: if input.one_in(3) { input.number(7) } else { 0 },
            target: TypeId(u64::from(input.byte())),
            conditions: (0..input.below(3))
                .map(|_| Condition {
                    offset: input.number(0),
                    size: [1, 2, 4, 8, 3][input.below(5)],
                    value: u64::from(input.byte()),
                })
                .collect(),
        })
        .collect();
    let (fields, variants) = match input.below(3) {
        0 => (Vec::new(), Vec::new()),
        1 => ((0..input.below(4)).map(|_| a_field(input, size)).collect(), Vec::new()),
        _ => (Vec::new(), (0..3).map(|tag| a_variant(input, size, tag)).collect()),
    };
    TypeRecord {
        version: RECORD_VERSION,
        id: TypeId(id),
        name: format!("fuzz::{id}"),
        size,
        align: 8,
        repeats: input.one_in(2),
        fields,
        variants,
        pointers,
    }
}

/// A field of a built-in type, of one of the types, or an array of either.
fn a_field(input: &mut Input<'_>, size: u64) -> FieldRecord {
    let own = 1 + input.below(3) as u64;
    let (mut type_name, mut type_id, mut bytes) = match input.below(5) {
        0 => ("bool".to_string(), TypeId::of_name("bool"), 1),
        1 => ("char".to_string(), TypeId::of_name("char"), 4),
        2 => ("NonZeroU16".to_string(), TypeId::of_name("NonZeroU16"), 2),
        3 => ("Ptr<fuzz::1>".to_string(), TypeId::of_name("Ptr").apply(1), 8),
        _ => (format!("fuzz::{own}"), TypeId(own), input.number(8)),
    };
    if input.one_in(3) {
        let count = input.below(5) as u64;
        type_name = format!("[{type_name}; {count}]");
        type_id = TypeId::of_name("[;]").apply(type_id.0).apply(count);
        bytes = bytes.saturating_mul(count);
    }
    let offset = input.below(1 + size.min(1 << 20) as usize) as u64;
    FieldRecord { name: "field".into(), offset, size: bytes, type_id, type_name }
}

fn a_variant(input: &mut Input<'_>, size: u64, tag: u64) -> VariantRecord {
    let tag = Condition { offset: 0, size: 1, value: tag * 3 };
    let fields = (0..input.below(2)).map(|_| a_field(input, size)).collect();
    VariantRecord { name: "Variant".into(), tag, fields }
}

/// Looking at values finds what lies in the puddle, whatever types and bytes there are.
fn values(image: &[u8], puddle: &PuddleRecord, types: &TypeTable) {
    let read = |offset: u64, bytes: &mut [u8]| {
        // What is asked for lies in the puddle; a file that is too short reads as zeros here.
        assert!(offset + bytes.len() as u64 <= puddle.size);
        bytes.fill(0);
        let from = (offset as usize).min(image.len());
        let len = bytes.len().min(image.len() - from);
        bytes[..len].copy_from_slice(&image[from..from + len]);
        Ok(())
    };
    let found = values_in(types.clone(), puddle, &read).expect("reading does not fail");
    for value in found.0.first.iter().chain(&found.1.first) {
        let inside = |addr| (puddle.addr..puddle.addr + puddle.size).contains(&addr);
        assert!(inside(value.block) && inside(value.at) && value.at >= value.block, "{value}");
    }
}

/// Blocks of the types in turn, at each multiple of 64 of the image.
struct ImageBlocks<'i> {
    image: &'i [u8],
    types: &'i TypeTable,
}

impl ShownBlocks for ImageBlocks<'_> {
    fn block(&mut self, addr: u64) -> Result<(TypeId, u64), String> {
        let at = addr.checked_sub(NEW).filter(|at| at.is_multiple_of(64)).ok_or("outside")?;
        let room = (self.image.len() as u64).checked_sub(at).ok_or("behind the end")?;
        let number = at / 64 % self.types.len() as u64;
        let id = self.types.keys().nth(number as usize).ok_or("no type")?;
        Ok((*id, room.min(4096)))
    }

    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        let at = addr.checked_sub(NEW).expect("in the image") as usize;
        bytes.copy_from_slice(self.image.get(at..at + bytes.len()).expect("in a block"));
        true
    }

    fn address(&mut self, place: &RegionAddress) -> Option<u64> {
        Some(NEW + place.offset)
    }
}

/// Values are shown, whatever types and bytes there are.
fn shown(image: &[u8], types: &TypeTable) {
    let values = Values::new(types.values().cloned());
    let mut blocks = ImageBlocks { image, types };
    let limits = ShownLimits { depth: 40, values: 2000, ..ShownLimits::default() };
    let mut walker = ValueWalker::new(&values, &mut blocks, limits);
    for (number, id) in (0..16).zip(types.keys().cycle()) {
        let Ok(place) = walker.root(NEW + number * 64, *id) else { continue };
        walker.show(&place, "root");
        for step in [PathStep::Field("field".into()), PathStep::Position(1)] {
            if let Ok(next) = walker.step(&place, &step) {
                walker.show(&next, "next");
            }
        }
    }
}

fn ranges(input: &mut Input<'_>) -> RelocationRecord {
    let mut moves = vec![MoveRecord { from: OLD, to: NEW, size: SUPERBLOCKS * SUPERBLOCK_SIZE }];
    for _ in 0..input.below(4) {
        let (from, to, size) =
            (input.number(OLD), input.number(NEW), input.number(SUPERBLOCK_SIZE));
        moves.insert(input.below(moves.len() + 1), MoveRecord { from, to, size });
    }
    let pools =
        (0..input.below(3)).map(|_| (PoolId(input.number(1)), PoolId(input.number(2)))).collect();
    RelocationRecord { id: Uuid([1; 16]), moves, pools }
}

/// An image whose descriptors are believed, whatever they say.
fn made(input: &mut Input<'_>, geometry: &HeapGeometry) -> Vec<u8> {
    let mut image = vec![0; (SUPERBLOCKS * SUPERBLOCK_SIZE) as usize];
    let mut random = Random(input.word());
    // Words that lead to what moved, and others, everywhere behind the metadata.
    let first = (geometry.first_usable * SUPERBLOCK_SIZE) as usize;
    for word in image[first..].chunks_exact_mut(8) {
        let value = random.next_word();
        let value = match value % 4 {
            0 => OLD + value % (SUPERBLOCKS * SUPERBLOCK_SIZE + 1),
            1 => value,
            _ => 0,
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    let metadata = geometry.tiny as usize..first;
    for byte in &mut image[metadata] {
        *byte = [0, mark::ALLOCATED, mark::TINY, 7][(random.next_word() % 4) as usize];
    }
    for number in geometry.first_usable..SUPERBLOCKS {
        let states = [
            SuperblockState::Small,
            SuperblockState::SmallCut,
            SuperblockState::LargeHead,
            SuperblockState::LargeHeadCut,
            SuperblockState::LargeTail,
            SuperblockState::Hole,
            SuperblockState::Free,
        ];
        let state = states[input.below(states.len())];
        let class = input.below(64) as u32;
        let block_size = match input.below(3) {
            0 => input.number(SUPERBLOCK_SIZE),
            1 => cenote_heap::class::class_size(class),
            _ => SUPERBLOCK_SIZE * (1 + input.below(3) as u64),
        };
        let (type_id, span) = (TypeId(input.below(5) as u64), input.number(1));
        let descriptor = Descriptor::new(state, class, block_size, type_id, span);
        let at = (geometry.descriptors + number * size_of::<Descriptor>() as u64) as usize;
        image[at..at + size_of::<Descriptor>()].copy_from_slice(descriptor.as_bytes());
    }
    image
}

pub(crate) fn run(input: &mut Input<'_>) {
    let root = input.one_in(2);
    let size = SUPERBLOCKS * SUPERBLOCK_SIZE;
    let geometry = HeapGeometry::new(size, root).expect("large enough");
    let types: TypeTable = (1..4).map(|id| (TypeId(id), Arc::new(a_type(input, id)))).collect();
    let Ok(moves) = Moves::new(&ranges(input)) else { return };
    let mut image = match input.below(4) {
        0 => {
            let len = input.below(60_000);
            Random(input.word()).bytes(len)
        }
        1 => {
            let mut image = made(input, &geometry);
            for _ in 0..input.below(20) {
                input.damage(&mut image);
            }
            image
        }
        _ => made(input, &geometry),
    };
    let puddle = PuddleRecord {
        uuid: Uuid([2; 16]),
        pool: PoolId(1),
        role: Role::Heap,
        index: u32::from(!root),
        addr: NEW,
        size,
    };
    let all_blocks = puddle.index == 0;
    let (moves, types) = (Arc::new(moves), Arc::new(types));
    let (heap, blocks) = (HeapKind::Traced, None);
    let job = RewriteJob { puddle, heap, from: OLD, moves, types, all_blocks, blocks };
    let before = image.clone();
    values(&image, &puddle, &job.types);
    shown(&image, &job.types);
    let looked = image::for_each_pointer(&mut image, &puddle, &job.types, &mut |found| {
        assert!(found.offset + 8 <= size);
    });
    assert!(image == before, "looking changed it");
    let Ok(done) = image::rewrite(&mut image, &job) else {
        assert!(looked.is_err() && image == before, "refused, and changed");
        return;
    };
    assert!(looked.is_ok());
    let rewritten = done.native + done.relative + done.region;
    let changed = |at: usize| image[at..at + 8] != before[at..at + 8];
    // A pointer that no word's place holds changes two.
    let words = (0..image.len() / 8).filter(|word| changed(word * 8)).count() as u64;
    assert!(words <= 2 * rewritten, "{words} words: {done:?}");
    let (roots, first) =
        (geometry.roots as usize, (geometry.first_usable * SUPERBLOCK_SIZE) as usize);
    let outside = (0..first / 8 * 8).step_by(8).find(|at| changed(*at) && !(root && *at >= roots));
    assert_eq!(outside, None, "metadata was changed");
}
