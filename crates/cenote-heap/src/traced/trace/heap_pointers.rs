//! Follows heap pointers: two words, which name a pool, a puddle and an offset there.

use super::program::PointerTarget;
use super::worker::Worker;
use crate::backing::Backing;
use crate::report::Fault;
use cenote_layout::pointer::RegionAddress;

impl<G: Backing> Worker<'_, '_, G> {
    /// Follows the two words of a heap pointer.
    #[inline(never)]
    pub(super) fn follow_heap<const ALONE: bool>(
        &mut self,
        at: u64,
        pair: [u64; 2],
        target: PointerTarget,
    ) {
        match RegionAddress::from_pair(pair) {
            Some(place) => match self.tracer.backing.region(&place) {
                Some(to) => self.follow::<ALONE>(at, to, target, true),
                None => self.fault(Fault::Outside, at, pair[1], target),
            },
            None => self.fault(Fault::Malformed, at, pair[0], target),
        }
    }

    /// Follows two words that may be a heap pointer.
    #[cold]
    pub(super) fn follow_heap_perhaps<const ALONE: bool>(&mut self, at: u64, pair: [u64; 2]) {
        let place = RegionAddress::from_pair(pair);
        if let Some(to) = place.and_then(|place| self.tracer.backing.region(&place)) {
            self.follow::<ALONE>(at, to, PointerTarget::UNKNOWN, false);
        }
    }
}
