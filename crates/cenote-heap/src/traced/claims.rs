//! Claims: what all descriptors of a puddle say of its superblocks.
//!
//! Invariant: of two large blocks whose descriptors overlap, at most one is whole. A head counts
//! only while each superblock behind it is a tail of it, or invalid. The states of a superblock are
//! the variants of [`Claim`].

use super::anchor;
use super::descriptor::SaidUse;
use super::superblock::{PuddleHeap, is_tiny_class};
use cenote_layout::heap::Descriptor;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::peek;
use core::sync::atomic::Ordering;

/// The contents of a superblock by its descriptor, and by its marks if the descriptor says free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Never used, or a hole.
    Free,
    Metadata,
    Small {
        class: u32,
        type_id: TypeId,
    },
    /// A large block of `bytes` in `span` superblocks, this one included, all of which say so or
    /// are invalid.
    Large {
        span: u32,
        bytes: u64,
        type_id: TypeId,
    },
    /// Covered by the large block that begins `distance` before. `valid`: its own descriptor says
    /// so.
    Tail {
        distance: u32,
        valid: bool,
    },
    /// A head that has lost its superblocks to others since, or a tail without its block: free.
    Stale,
    Invalid(&'static str),
}

/// What one descriptor says by itself.
fn claim_of(puddle: &PuddleHeap, i: u32) -> Claim {
    if i < puddle.first_usable() {
        return Claim::Metadata;
    }
    let Some(d) = puddle.settled_descriptor(i) else { return Claim::Free };
    let usable = u64::from(puddle.first_usable())..u64::from(puddle.superblocks());
    match SaidUse::of(&d, u64::from(i), &usable) {
        SaidUse::Free | SaidUse::Hole => match is_marked_all_the_same(puddle, i, &d) {
            true => Claim::Invalid("it says that nothing is here, and marks say otherwise"),
            false => Claim::Free,
        },
        SaidUse::Small { class, type_id } => Claim::Small { class, type_id },
        SaidUse::Head { span, bytes, type_id } => {
            Claim::Large { span: span as u32, bytes, type_id }
        }
        SaidUse::Tail { distance } => Claim::Tail { distance: distance as u32, valid: true },
        SaidUse::Invalid(reason) => Claim::Invalid(reason),
    }
}

/// Reads all descriptors of a puddle, and decides which large blocks are whole.
pub(crate) fn classify(puddle: &PuddleHeap) -> Vec<Claim> {
    let count = puddle.superblocks();
    let mut claims: Vec<Claim> = (0..count).map(|i| claim_of(puddle, i)).collect();
    let mut i = 0;
    let mut covered = vec![false; count as usize];
    while i < claims.len() {
        if let Claim::Large { span, .. } = claims[i] {
            let end = i + span as usize;
            let whole = (i + 1..end).all(|k| match claims[k] {
                Claim::Tail { distance, .. } => distance as usize == k - i,
                Claim::Invalid(_) => true,
                _ => false,
            });
            if whole {
                for k in i + 1..end {
                    covered[k] = true;
                    let valid = matches!(claims[k], Claim::Tail { .. });
                    claims[k] = Claim::Tail { distance: (k - i) as u32, valid };
                }
                i = end;
                continue;
            }
            claims[i] = Claim::Stale;
        }
        i += 1;
    }
    for i in 0..claims.len() {
        if let Claim::Tail { distance, .. } = claims[i]
            && !covered[i]
            && !matches!(claims[i - distance as usize], Claim::Invalid(_))
        {
            claims[i] = Claim::Stale;
        }
    }
    claims
}

impl PuddleHeap {
    /// The descriptor; `None` if a thread of this session is just writing it.
    fn settled_descriptor(&self, number: u32) -> Option<Descriptor> {
        loop {
            let descriptor = self.descriptor(number);
            if descriptor.is_valid() || !self.adopted.load(Ordering::Relaxed) {
                return Some(descriptor);
            }
            if anchor::state(self.line(number).anchor.load(Ordering::Acquire)) == anchor::TAKEN {
                return None;
            }
            // It may have been finished since it was read.
            if self.descriptor(number) == descriptor {
                return Some(descriptor);
            }
        }
    }

    /// The same of the tiny marks of superblocks that use them. The file may have no space for
    /// others, and a touch would take it.
    pub(crate) fn lost_tiny_marks(&self) -> Option<u64> {
        let mut claims = classify(self).into_iter().zip(0..);
        claims.find_map(|(claim, number)| match claim {
            Claim::Small { class, .. } if is_tiny_class(class) => {
                let marks = self.tiny_marks(number);
                let from = marks.as_ptr().addr();
                // SAFETY: marks lie in the mapping.
                unsafe { peek::lost(from..from + marks.len()) }.map(|at| at as u64)
            }
            _ => None,
        })
    }
}

/// Whether marks contradict a descriptor that says "free" or "hole". While the puddle is in use,
/// marks may be of a taking that has begun since the descriptor was read: its descriptor was there
/// before them.
fn is_marked_all_the_same(puddle: &PuddleHeap, number: u32, descriptor: &Descriptor) -> bool {
    !planted(Bug::ZeroDescriptorBelieved)
        && puddle.has_marks(number)
        && puddle.descriptor(number) == *descriptor
        && (!puddle.adopted.load(Ordering::Relaxed)
            || anchor::state(puddle.line(number).anchor.load(Ordering::Acquire)) != anchor::TAKEN)
}
