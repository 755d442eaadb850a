//! Adopts a puddle: reads its descriptors and marks together, and writes the volatile words that
//! follow.
//!
//! The heap adopts a puddle when it first touches it, and again after recovery; no thread uses the
//! puddle meanwhile. It does not read what a former session left in volatile words. It *normalises*
//! marks: every legal mark but "allocated" becomes free. So blocks in caches of a dead process,
//! held by a transaction that is over, or half spilled, are free again without a record. Condemned
//! marks are decided before ([`super::condemn`]). A superblock with free blocks is LISTED from the
//! start, in the hands of the adopter, which pushes it to its list once the puddle is known to all.
//! In a pool that is open for reading only, marks stay as they are, and volatile words are private.
//!
//! **Quarantine.** One flipped bit of a legal mark makes it illegal ([`cenote_layout::mark`]). A
//! superblock whose descriptor is whole and which has an illegal mark is *quarantined*: its anchor
//! says DAMAGED, so no block is handed out or freed there; its geometry stays, so its allocated
//! blocks can be read and written. Its marks stay as they are, as evidence, and for tracing, which
//! can repair them ([`super::recover`]). A large block whose only mark is illegal is damaged as if
//! its descriptor were.

use super::anchor;
use super::claims::{Claim, classify};
use super::damage::ILLEGAL;
use super::marks;
use super::runs::RunWords as _;
use super::superblock::{PuddleHeap, clear, is_tiny_class};
use super::survey::{Survey, survey};
use crate::class::{blocks_per_superblock, class_size};
use crate::report::Damage;
use cenote_layout::heap::{SUPERBLOCK_SIZE, mark};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::sync::atomic::Ordering;

/// What descriptors and marks together say of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Free,
    Metadata,
    Small {
        class: u32,
        type_id: TypeId,
        used: u32,
    },
    Large {
        span: u32,
        bytes: u64,
        type_id: TypeId,
    },
    Tail,
    /// Blocks that can be read, among them some with illegal marks.
    Quarantined {
        class: u32,
        type_id: TypeId,
        survey: Survey,
    },
    Damaged(&'static str),
}

/// Reads descriptors and marks of a puddle.
pub(crate) fn contents(puddle: &PuddleHeap) -> Vec<Holds> {
    let claims = classify(puddle);
    let marks = |i: usize, class| {
        let mut survey = survey(puddle.class_marks(i as u32, class));
        survey.used += if puddle.restores { survey.condemned } else { 0 };
        survey
    };
    let mut holds = Vec::with_capacity(claims.len());
    for (i, claim) in claims.iter().enumerate() {
        holds.push(match *claim {
            Claim::Free | Claim::Stale => Holds::Free,
            Claim::Metadata => Holds::Metadata,
            Claim::Small { class, type_id } => match marks(i, class) {
                survey if survey.illegal != 0 => Holds::Quarantined { class, type_id, survey },
                Survey { used: 0, .. } => Holds::Free,
                Survey { used, .. } => Holds::Small { class, type_id, used },
            },
            Claim::Large { span, bytes, type_id } => match marks(i, 0) {
                survey if survey.illegal != 0 => Holds::Damaged(ILLEGAL),
                Survey { used: 0, .. } => Holds::Free,
                _ => Holds::Large { span, bytes, type_id },
            },
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

/// What adoption found in a puddle.
pub(crate) struct Adopted {
    /// Superblocks that are to be pushed to their lists, with type and class.
    pub(crate) listed: Vec<(u32, TypeId, u32)>,
    /// Superblocks that are not used.
    pub(crate) damage: Vec<Damage>,
}

/// Writes the volatile words of a puddle that no thread uses, and normalises its marks.
pub(crate) fn adopt(puddle: &PuddleHeap) -> Adopted {
    let (mut listed, mut damage) = (Vec::new(), Vec::new());
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
            Holds::Metadata => {
                line.reset(anchor::METADATA, None);
                if puddle.writable {
                    puddle.clear_outer_marks(number);
                }
            }
            Holds::Damaged(reason) => {
                line.reset(anchor::DAMAGED, None);
                damage.push(Damage::lost(puddle, number, reason, 0));
            }
            Holds::Quarantined { class, survey, .. } => {
                line.reset(anchor::DAMAGED, Some(class_size(class)));
                damage.push(Damage::quarantined(puddle, number, class, survey));
            }
            Holds::Tail => {
                line.reset(anchor::with(anchor::LARGE_TAIL, u64::from(number - head)), None);
                if puddle.writable {
                    puddle.clear_outer_marks(number);
                }
            }
            Holds::Large { span, .. } => {
                head = number;
                line.reset(
                    anchor::with(anchor::LARGE_HEAD, u64::from(span)),
                    Some(SUPERBLOCK_SIZE),
                );
                if puddle.writable {
                    clear_from(puddle.outer_marks(number), 1);
                }
            }
            Holds::Small { class, type_id, used } => {
                let full = used == blocks_per_superblock(class);
                line.reset(
                    if full { anchor::FULL } else { anchor::LISTED },
                    Some(class_size(class)),
                );
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
        hint_at(puddle, &free);
    }
    puddle.adopted.store(true, Ordering::Release);
    Adopted { listed, damage }
}

/// Writes the hints of which superblocks are free: a bit for each.
fn hint_at(puddle: &PuddleHeap, free: &[u64]) {
    for (word, bits) in free.iter().enumerate() {
        let hints = puddle.hints(word as u32);
        if hints.load(Ordering::Relaxed) != *bits {
            hints.store(*bits, Ordering::Relaxed);
        }
    }
}

/// Makes every mark that is neither "allocated" nor "condemned" free, and marks of no block zero.
/// None is illegal.
fn normalise(puddle: &PuddleHeap, number: u32, class: u32) {
    let marks = puddle.class_marks(number, class);
    let kept = if planted(Bug::CachedKept) { mark::CACHED } else { mark::ALLOCATED };
    // Of those that are still condemned no opener can tell what they are.
    let kept = [mark::ALLOCATED, mark::CONDEMNED, kept];
    for chunk in marks.chunks(64).filter(|chunk| !marks::are_settled(chunk)) {
        for byte in chunk {
            if !kept.contains(&byte.load(Ordering::Relaxed)) {
                marks::write(byte, mark::FREE);
            }
        }
        reach(Step::MarksNormalised);
    }
    let outer = puddle.outer_marks(number);
    if is_tiny_class(class) {
        clear_from(outer, 1);
        marks::write(&outer[0], mark::TINY);
    }
    clear_from(puddle.room_of_marks(number, class), marks.len());
}

/// Makes marks from number `from` on zero.
fn clear_from(marks: &[core::sync::atomic::AtomicU8], from: usize) {
    // The first few, up to where words begin, and the rest.
    let (few, rest) = marks[from..].split_at((marks.len() - from) % 8);
    few.iter().for_each(|byte| marks::write(byte, mark::FREE));
    clear(rest);
}
