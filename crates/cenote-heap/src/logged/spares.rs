//! Puddles that no sub-heap names: those that a crash left, and one that was just taken.
//!
//! Invariant: under the growth lock, a puddle is a spare until a sub-heap names it. One that was
//! taken and not used, because of an error, is a spare for the next that needs one.

use crate::backing::{Backing, Extent};
use crate::error::BackingError;
use cenote_medium::planted::{Bug, LoggedBug, Step, planted, reach};

/// Sizes of puddles are multiples of this.
pub(crate) const PUDDLE_UNIT: u64 = 64 << 10;
/// What the growth lock covers.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Puddles that no sub-heap names.
    spares: Vec<Extent>,
    /// Bytes of all puddles.
    bytes: u64,
    /// Whether metadata have puddles of their own role.
    apart: bool,
}

/// What a puddle is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenFor {
    Data,
    Metadata,
}

impl Growth {
    /// `extents` are all puddles, the root puddle first.
    pub(crate) fn new(mut extents: Vec<Extent>, apart: bool) -> Self {
        let bytes = extents.iter().map(|extent| extent.size).sum();
        extents.retain(|extent| extent.index != 0);
        Self { spares: extents, bytes, apart }
    }

    /// A sub-heap names a puddle; `None`: another one does, or there is none.
    pub(crate) fn use_up(&mut self, puddle: u32) -> Option<Extent> {
        let at = self.spares.iter().position(|extent| extent.index == puddle)?;
        Some(self.spares.swap_remove(at))
    }

    /// Takes [`Growth::use_up`] back.
    pub(crate) fn give_back(&mut self, puddle: Option<Extent>) {
        self.spares.extend(puddle);
    }

    /// A puddle of at least `least` bytes for that: one that a crash left, or a new one of `size`
    /// bytes, or of fewer if the pool may have no more.
    pub(crate) fn take<G: Backing>(
        &mut self,
        backing: &G,
        what: TakenFor,
        (least, size): (u64, u64),
    ) -> Result<Extent, BackingError> {
        let is_metadata = self.apart && what == TakenFor::Metadata;
        let fitting = |extent: &&Extent| {
            extent.size >= least
                && backing.is_for_metadata(extent).is_none_or(|is| is == is_metadata)
                && !planted(Bug::Logged(LoggedBug::SparesForgotten))
        };
        let take = |size| match is_metadata {
            true => backing.take_for_metadata(size),
            false => backing.take(size),
        };
        let spare = self.spares.iter().filter(fitting).min_by_key(|extent| extent.size).copied();
        if let Some(spare) = spare {
            return Ok(spare);
        }
        let left = backing.size_max().saturating_sub(self.bytes) / PUDDLE_UNIT * PUDDLE_UNIT;
        let size = size.min(left).max(least);
        let taken = take(size);
        let extent = match taken {
            // A full disk may still have room for less.
            Err(_) if least < size => take(least)?,
            taken => taken?,
        };
        reach(Step::PartTaken);
        self.bytes += extent.size;
        self.spares.push(extent);
        Ok(extent)
    }
}
