//! Adoption: what a puddle's descriptors and marks say together, and the volatile words that follow from it.
//!
//! A puddle is adopted when it is first touched, and again by recovery; nobody uses it meanwhile. What a former session left in volatile words is not
//! looked at. Marks are *normalised*: everything but "allocated" becomes free, so what was in caches of a dead process, held by a transaction that is over, or half spilled comes back here
//! without a record of it anywhere. Condemned marks are decided before ([`crate::condemn`]). A superblock with free blocks is LISTED from the start: in the hands of whoever adopts, who pushes it to its list once the puddle is
//! known to all. In a pool that is open for reading only, marks stay as they are, and volatile words are private.

use crate::anchor;
use crate::class::{blocks_per_superblock, class_size};
use crate::marks;
use crate::runs::Ground as _;
use crate::superblock::{Claim, PuddleHeap, classify};
use cenote_layout::heap::{SUPERBLOCK_SIZE, mark, marks_offset};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::sync::atomic::{AtomicU8, Ordering};

/// What descriptors and marks together say of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Free,
    Metadata,
    Small { class: u32, type_id: TypeId, used: u32 },
    Large { span: u32, bytes: u64, type_id: TypeId },
    Tail,
    Damaged(&'static str),
}

/// Reads descriptors and marks of a puddle.
pub(crate) fn contents(puddle: &PuddleHeap) -> Vec<Holds> {
    let claims = classify(puddle);
    let used = |i: usize, class| puddle.count_allocated(puddle.class_marks(i as u32, class));
    let mut holds = Vec::with_capacity(claims.len());
    for (i, claim) in claims.iter().enumerate() {
        holds.push(match *claim {
            Claim::Free | Claim::Stale => Holds::Free,
            Claim::Metadata => Holds::Metadata,
            Claim::Small { class, type_id } => match used(i, class) {
                0 => Holds::Free,
                used => Holds::Small { class, type_id, used },
            },
            Claim::Large { span, bytes, type_id } if used(i, 0) != 0 => Holds::Large { span, bytes, type_id },
            Claim::Large { .. } => Holds::Free,
            Claim::Tail { distance, valid } => match holds.get(i - distance as usize) {
                Some(Holds::Large { .. }) => Holds::Tail,
                Some(Holds::Damaged(_)) => {
                    Holds::Damaged("it belongs to a large block whose head is damaged")
                }
                _ if valid || !puddle.has_marks(i as u32) => Holds::Free,
                _ => Holds::Damaged("checksum does not fit"),
            },
            Claim::Invalid(_) if !puddle.has_marks(i as u32) => Holds::Free,
            Claim::Invalid(reason) => Holds::Damaged(reason),
        });
    }
    holds
}

/// Writes the volatile words of a puddle that nobody uses, and normalises its marks. Returns the superblocks that are to be pushed to their lists,
/// with type and class.
pub(crate) fn adopt(puddle: &PuddleHeap) -> Vec<(u32, TypeId, u32)> {
    let mut listed = Vec::new();
    let mut free = vec![0u64; puddle.superblocks().div_ceil(64) as usize];
    let mut head = 0;
    for (number, holds) in contents(puddle).into_iter().enumerate() {
        let number = number as u32;
        let line = puddle.line(number);
        match holds {
            Holds::Free => {
                // A counter that goes on keeps a new puddle's descriptors all zero.
                let before = line.anchor.load(Ordering::Relaxed);
                line.reset(anchor::with(anchor::FREE, anchor::value(before)), None);
                free[number as usize / 64] |= 1 << (number % 64);
                if puddle.writable {
                    puddle.clear_outer_marks(number);
                    reach(Step::FreeAdopted);
                }
            }
            Holds::Metadata => line.reset(anchor::METADATA, None),
            Holds::Damaged(_) => line.reset(anchor::DAMAGED, None),
            Holds::Tail => {
                line.reset(anchor::with(anchor::LARGE_TAIL, u64::from(number - head)), None);
                if puddle.writable {
                    puddle.clear_outer_marks(number);
                }
            }
            Holds::Large { span, .. } => {
                head = number;
                line.reset(anchor::with(anchor::LARGE_HEAD, u64::from(span)), Some(SUPERBLOCK_SIZE));
                if puddle.writable {
                    puddle.outer_marks(number)[1..].iter().for_each(|byte| marks::write(byte, mark::FREE));
                }
            }
            Holds::Small { class, type_id, used } => {
                let full = used == blocks_per_superblock(class);
                line.reset(if full { anchor::FULL } else { anchor::LISTED }, Some(class_size(class)));
                if puddle.writable {
                    normalise(puddle, number, class);
                }
                if !full {
                    listed.push((number, type_id, class));
                }
            }
        }
    }
    if puddle.writable {
        for (word, bits) in free.into_iter().enumerate() {
            let hints = puddle.hints(word as u32);
            if hints.load(Ordering::Relaxed) != bits {
                hints.store(bits, Ordering::Relaxed);
            }
        }
    }
    puddle.adopted.store(true, Ordering::Release);
    listed
}

/// Makes every mark that is neither "allocated" nor "condemned" free, and marks of no block zero.
fn normalise(puddle: &PuddleHeap, number: u32, class: u32) {
    let marks = puddle.class_marks(number, class);
    let kept = if planted(Bug::CachedKept) { mark::CACHED } else { mark::ALLOCATED };
    // Those that are condemned still are those of which nobody can tell.
    let is_kept =
        |byte: &AtomicU8| [mark::ALLOCATED, mark::CONDEMNED, kept].contains(&byte.load(Ordering::Relaxed));
    for chunk in marks.chunks(64).filter(|chunk| !marks::are_settled(chunk)) {
        for byte in chunk.iter().filter(|byte| !is_kept(byte)) {
            marks::write(byte, mark::FREE);
        }
        reach(Step::MarksNormalised);
    }
    let outer = puddle.outer_marks(number);
    let (first, rest) = if marks_offset(class_size(class)) == SUPERBLOCK_SIZE {
        (None, &outer[marks.len()..])
    } else {
        (outer.first(), &outer[1..])
    };
    // The first few, up to where words begin, and the rest.
    let (few, rest) = rest.split_at(rest.len() % 8);
    if few.iter().any(|byte| byte.load(Ordering::Relaxed) != mark::FREE) || !marks::all(rest, mark::FREE) {
        few.iter().chain(rest).for_each(|byte| marks::write(byte, mark::FREE));
    }
    if let Some(first) = first {
        marks::write(first, mark::TINY);
    }
}
