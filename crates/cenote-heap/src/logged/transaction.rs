//! Transactions of a logged heap (POS-7; section 5.3): over all sub-heaps.
//!
//! A transaction has a lane in each sub-heap in which it allocates or frees. Its first lane
//! *decides*: the first entry in each other lane stores, in the same change, which lane that is
//! ([`LaneLink`]). States, and what recovery does:
//!
//! | word of the deciding lane | other lanes with a link to it | the store that leads there |
//! | --- | --- | --- |
//! | its number, running | give back what was allocated | that of the transaction before |
//! | its number, committed | free what was to be freed | **the commit** |
//! | the next number | have none any more | the end, after those of all other lanes |
//!
//! So the deciding word keeps its number as long as a lane is linked to it. A transaction with one
//! lane is that of [`super::micro`].

use super::error::{AllocRefused, Damage, FreeRefused, LogFull};
use super::members::{LoggedHeap, SubHeapMember};
use super::micro_entry::MicroHolder;
use super::sub_heap::Request;
use crate::backing::Backing;
use crate::block::BlockInfo;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{LaneLink, LaneState};
use cenote_medium::planted::{Bug, LoggedBug, Step, planted, reach};

/// A lane that a transaction has.
#[derive(Clone, Copy, Debug)]
struct HeldLane {
    sub_heap: u32,
    lane: u32,
}

/// Transactions of one thread, one after the other. The first operation begins one; a commit or an
/// abort ends it. One that runs when this is dropped is aborted.
#[derive(Debug)]
pub struct HeapLog<'h, G: Backing> {
    heap: &'h LoggedHeap<G>,
    /// The first decides.
    lanes: Vec<HeldLane>,
    /// A transaction could not be ended.
    stuck: bool,
}

impl<G: Backing> LoggedHeap<G> {
    /// Transactions for one thread.
    pub const fn log(&self) -> HeapLog<'_, G> {
        HeapLog { heap: self, lanes: Vec::new(), stuck: false }
    }

    /// The lane that a transaction has in a sub-heap; takes one if it has none.
    fn lane_in(
        &self,
        lanes: &mut Vec<HeldLane>,
        sub_heap: u32,
        member: &SubHeapMember<G>,
    ) -> Result<u32, LogFull> {
        if let Some(held) = lanes.iter().find(|held| held.sub_heap == sub_heap) {
            return Ok(held.lane);
        }
        let link = match lanes.first() {
            Some(first) => self.member(first.sub_heap).and_then(|member| {
                let state = member.heap.lock();
                let sequence = state.lanes.get(first.lane as usize)?.sequence;
                let (sub_heap, lane) = (first.sub_heap, first.lane);
                Some(LaneLink { sequence, sub_heap, lane, ..LaneLink::default() })
            }),
            None => None,
        };
        let mut state = member.heap.lock();
        let lane = member.heap.take_lane(&mut state)?;
        if let Some(held) = state.lanes.get_mut(lane as usize) {
            held.link = link;
        }
        lanes.push(HeldLane { sub_heap, lane });
        Ok(lane)
    }
}

impl<G: Backing> HeapLog<'_, G> {
    /// Allocates as [`LoggedHeap::alloc`], in the transaction: an abort or a crash before the
    /// commit gives the block back. `is_end` commits the transaction with this allocation.
    ///
    /// # Errors
    /// Why there is no block; the transaction goes on. Damage, if the commit met it.
    pub fn alloc(
        &mut self,
        size: u64,
        align: u64,
        type_id: TypeId,
        is_end: bool,
    ) -> Result<BlockInfo, AllocRefused> {
        let Self { heap, lanes, .. } = self;
        let block = heap.with_room(size.max(align), &mut |number, member| {
            let lane = heap.lane_in(lanes, number, member)?;
            let request = Request {
                size,
                align,
                type_id,
                holder: Some(MicroHolder::Lane(lane)),
                apart: false,
            };
            member.heap.alloc_locked(&mut member.heap.lock(), &request)
        })?;
        if is_end {
            self.commit()?;
        }
        Ok(block)
    }

    /// Frees a block when the transaction commits.
    ///
    /// # Errors
    /// Why the address cannot be freed; nothing has changed.
    pub fn free(&mut self, addr: u64) -> Result<(), FreeRefused> {
        let (number, member) = self.heap.owner_of(addr)?;
        // Before a lane is taken for it.
        member.heap.find(addr)?;
        let lane = self.heap.lane_in(&mut self.lanes, number, member)?;
        member.heap.free_in(&mut member.heap.lock(), lane, addr)
    }

    /// Commits: what was allocated stays, and what was to be freed is free. Durable on return.
    ///
    /// # Errors
    /// The metadata are damaged. The next open finishes what can be.
    pub fn commit(&mut self) -> Result<(), Damage> {
        self.end(LaneState::Committed)
    }

    /// Aborts: what was allocated is free, and what was to be freed stays.
    ///
    /// # Errors
    /// The metadata are damaged. The next open finishes what can be.
    pub fn abort(&mut self) -> Result<(), Damage> {
        self.end(LaneState::Running)
    }

    fn end(&mut self, end: LaneState) -> Result<(), Damage> {
        let ended = match *self.lanes.as_slice() {
            [] => Ok(()),
            [one] => self.each(&[one], |heap, state, lane| heap.end(state, lane, end)),
            _ => self.end_all(end),
        };
        self.stuck |= ended.is_err();
        if ended.is_ok() {
            self.give_lanes_back();
        }
        ended
    }

    /// Ends a transaction that has several lanes.
    fn end_all(&self, end: LaneState) -> Result<(), Damage> {
        let (first, others) = self.lanes.split_at(1);
        if end == LaneState::Committed {
            self.each(first, |heap, state, lane| {
                heap.decide(state, lane);
                Ok(())
            })?;
        }
        let early = planted(Bug::Logged(LoggedBug::DecidingLaneEndedFirst));
        for lanes in if early { [first, others] } else { [others, first] } {
            self.each(lanes, |heap, state, lane| {
                heap.end_decided(state, lane, end)?;
                reach(Step::LaneEnded);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn each(
        &self,
        lanes: &[HeldLane],
        mut act: impl FnMut(
            &super::SubHeap<std::sync::Arc<G>>,
            &mut super::state::SubHeapState,
            u32,
        ) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        lanes.iter().try_for_each(|held| match self.heap.member(held.sub_heap) {
            Some(member) => act(&member.heap, &mut member.heap.lock(), held.lane),
            None => Ok(()),
        })
    }

    fn give_lanes_back(&mut self) {
        for held in self.lanes.drain(..) {
            let Some(member) = self.heap.member(held.sub_heap) else { continue };
            if let Some(lane) = member.heap.lock().lanes.get_mut(held.lane as usize) {
                (lane.open, lane.link) = (false, None);
            }
        }
    }
}

impl<G: Backing> Drop for HeapLog<'_, G> {
    fn drop(&mut self) {
        // One that is stuck keeps its lanes: the next open ends it.
        let _ = (!self.stuck).then(|| self.end(LaneState::Running));
    }
}
