//! Finds for an address its puddle, its block and the block's mark.
//!
//! Invariant: an answer [`Resolved::Block`] names a block of the superblock that the descriptor
//! describes at that moment. A puddle that this process has not met is attached first.

use super::anchor;
use super::geometry::Geometry;
use super::held::is_held;
use super::line::DescriptorLine;
use super::mutex::lock;
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::Backing;
use crate::block::Mark;
use crate::error::{FreeError, OpenError};
use cenote_layout::id::TypeId;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

impl<G: Backing> TracedHeap<G> {
    /// The puddle that `addr` is in.
    #[inline]
    pub(crate) fn puddle_at(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        match self.known_puddle(addr) {
            Some(puddle) => Ok(puddle),
            None => (self.slow.puddle_at)(self, addr),
        }
    }

    /// The puddle that `addr` is in, if the heap has looked at it.
    #[inline]
    pub(crate) fn known_puddle(&self, addr: u64) -> Option<&PuddleHeap> {
        let slot = self.backing.slot(addr)?;
        // SAFETY: a slot of this pool; what hangs there is this heap's and lives as long as `self`,
        // or another heap's of the same pool, which `attach` excludes.
        let puddle = unsafe { PuddleHeap::from_slot(slot.load(Ordering::Acquire)) }?;
        debug_assert_eq!(puddle.heap, self.id);
        Some(puddle)
    }

    #[cold]
    pub(super) fn puddle_at_first_touch(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        if self.backing.slot(addr).is_none()
            && self.members.is_some()
            && !self.backing.is_foreign(addr)
            && !is_held(&self.growth)
        {
            // Another process may have taken a puddle there.
            self.refresh(&mut lock(&self.growth));
        }
        if self.backing.slot(addr).is_none() {
            return Err(match self.backing.is_foreign(addr) {
                true => FreeError::OtherPool { addr },
                false => FreeError::NotInHeap { addr },
            });
        }
        // Another thread may have attached it a moment ago. If it cannot be attached, `unattached`
        // says why.
        let _ = self.attach_of(addr);
        self.known_puddle(addr).ok_or(FreeError::NotInHeap { addr })
    }

    /// Why the heap cannot look at the puddle that contains `addr`, where values may be alive;
    /// `None`: it is no puddle of the heap, or can be looked at.
    #[cold]
    pub fn unattached(&self, addr: u64) -> Option<OpenError> {
        let is_unknown = self.backing.slot(addr).is_some() && self.known_puddle(addr).is_none();
        if is_unknown { self.attach_of(addr).err() } else { None }
    }

    /// Makes the heap look at the puddle that contains `addr`, so that its slot is filled.
    ///
    /// # Errors
    /// The address is in no puddle of this pool.
    pub fn touch(&self, addr: u64) -> Result<&PuddleHeap, FreeError> {
        self.puddle_at(addr)
    }

    /// Why no allocated block begins at `addr`, which is in `puddle`.
    #[cold]
    pub(crate) fn explain(&self, puddle: &PuddleHeap, addr: u64) -> FreeError {
        if puddle.line_at(addr).is_some_and(|(line, ..)| is_out_of_use(line)) {
            return FreeError::Damaged { addr };
        }
        match self.resolve(puddle, addr) {
            Resolved::Block { block, .. } if block != addr => {
                FreeError::InsideBlock { addr, block }
            }
            Resolved::Block { allocated: false, .. } => FreeError::NotAllocated { addr },
            Resolved::Damaged => FreeError::Damaged { addr },
            Resolved::Outside => FreeError::NotInHeap { addr },
            _ => FreeError::NotABlock { addr },
        }
    }

    /// The block that contains `addr`, allocated or not.
    pub(crate) fn resolve(&self, puddle: &PuddleHeap, addr: u64) -> Resolved {
        let Some((line, mut number, within)) = puddle.line_at(addr) else {
            return Resolved::Outside;
        };
        let mut anchor = line.anchor.load(Ordering::Acquire);
        if anchor::state(anchor) == anchor::LARGE_TAIL {
            let distance = anchor::value(anchor);
            if distance == 0 || distance > u64::from(number) {
                return Resolved::Nothing;
            }
            number -= distance as u32;
            anchor = puddle.line(number).anchor.load(Ordering::Acquire);
            if anchor::state(anchor) != anchor::LARGE_HEAD || anchor::value(anchor) <= distance {
                return Resolved::Nothing;
            }
        }
        let line = puddle.line(number);
        let geometry = line.geometry();
        let (block, size) = match anchor::state(anchor) {
            anchor::DAMAGED if geometry.size() == 0 => return Resolved::Damaged,
            anchor::LARGE_HEAD if geometry.size() != 0 => {
                (puddle.address(number), line.block_size())
            }
            _ if geometry.is_small() => {
                let (_, start) = geometry.split(within);
                if !holds_block(geometry, start) {
                    return Resolved::Nothing;
                }
                (puddle.address(number) + start, geometry.size())
            }
            _ => return Resolved::Nothing,
        };
        let Some(mark) = puddle.mark(geometry, block) else { return Resolved::Nothing };
        Resolved::Block {
            block,
            size,
            type_id: line.type_id(),
            allocated: puddle.place().is_live(mark.load(Ordering::Acquire)),
            mark: mark_of(mark),
        }
    }
}

/// Whether no block of a superblock may be handed out or freed: its descriptor or its marks are
/// damaged.
#[inline]
pub(super) fn is_out_of_use(line: &DescriptorLine) -> bool {
    anchor::state(line.anchor.load(Ordering::Acquire)) == anchor::DAMAGED
}

/// Whether a block begins at `start`, a multiple of the block size.
pub(super) fn holds_block(geometry: Geometry, start: u64) -> bool {
    let size = geometry.size();
    size != 0 && start / size < cenote_layout::heap::blocks_of(size)
}

/// Stores a mark if the present one is as the caller says. The block is the caller's, so no other
/// thread changes the mark meanwhile; of two that both say so one is wrong, and in debug builds
/// always noticed.
#[inline(always)]
pub(crate) fn change(mark: &AtomicU8, from: u8, to: u8) -> bool {
    if cfg!(debug_assertions) {
        return mark.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    }
    if mark.load(Ordering::Relaxed) != from {
        return false;
    }
    mark.store(to, Ordering::Relaxed);
    true
}

/// A mark as transactions log it, by where it is read: the aligned word that holds it, and its byte
/// of that.
#[inline]
pub(crate) fn mark_of(mark: *const AtomicU8) -> Mark {
    let pointer = mark.cast_mut();
    let word = pointer.map_addr(|addr| addr & !7).cast::<AtomicU64>();
    Mark {
        word: NonNull::new(word).unwrap_or(NonNull::dangling()),
        mask: 0xff << (pointer.addr() % 8 * 8),
    }
}

/// What [`TracedHeap::resolve`] finds.
pub(crate) enum Resolved {
    Block { block: u64, size: u64, type_id: TypeId, allocated: bool, mark: Mark },
    Nothing,
    Damaged,
    Outside,
}

/// A pointer to a block; blocks are never at address 0.
#[inline]
pub(crate) fn pointer_to(addr: u64) -> NonNull<u8> {
    debug_assert_ne!(addr, 0);
    // SAFETY: no puddle lies at address 0, and `addr` is of a block in one.
    unsafe { NonNull::new_unchecked(with_exposed_provenance_mut(addr as usize)) }
}
