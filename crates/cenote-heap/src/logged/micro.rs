//! The micro log of a sub-heap (POS-6, POS-7; section 5.3): which blocks a transaction allocated,
//! and which it is to free.
//!
//! The log has *lanes*; a thread holds one ([`MicroLog`]), and its transactions follow each other
//! in it. An entry is a part of the change that allocates its block, so there is no moment at which
//! a block is allocated and in no entry. Entries with the number in the lane's word count; all
//! others are those of earlier transactions. States of a transaction, and what recovery does:
//!
//! | word of the lane | a crash here | the store that leads there |
//! | --- | --- | --- |
//! | its number, running | blocks that it allocated are freed | that of the transaction before |
//! | its number, committed | blocks that it is to free are freed | **the commit**, if it frees |
//! | the next number | nothing is left of it | **the commit**, if it frees none; else the end |
//!
//! An abort frees what was allocated and then stores the next number. Both hold the lock until the
//! word is stored, so no freed block is given out before. Recovery finds a block of an entry
//! allocated, or free because the crash came later.
//!
//! Recovery flushes the word before it believes it: its process may have died before the flush.
//!
//! Durability: words are flushed and fenced before the next step. An allocation has the two fences
//! of its change, a commit without frees has one.

use super::error::{AllocRefused, Damage, Fault, FreeRefused, LogFull};
use super::micro_entry::{MicroHolder, NewEntry, entry_at, lane_at};
use super::slab::GRAIN;
use super::state::{Lane, LaneEntry, SubHeap, SubHeapState};
use super::sub_heap::Request;
use crate::backing::Backing;
use crate::block::BlockInfo;
use cenote_layout::LINE_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    CELL_SIZE, Cell, EMPTY, LANE_ENTRIES, LaneLink, LaneState, LaneWord, MicroEntry, MicroKind,
};
use cenote_medium::planted::{Bug, LoggedBug, Step, planted, reach};

impl SubHeapState {
    /// The next entry of a lane; `None`: the lane is full.
    pub(crate) fn next_entry(&self, lane: u32, kind: MicroKind) -> Option<NewEntry> {
        let held = self.lanes.get(lane as usize)?;
        let (index, sequence) = (held.entries.len(), held.sequence);
        let link = held.link.map(|link| LaneLink { own: sequence, ..link });
        let holder = MicroHolder::Lane(lane);
        (index < LANE_ENTRIES).then_some(NewEntry { holder, index, sequence, kind, link })
    }

    /// Notes an entry that was made.
    pub(crate) fn note_for(&mut self, holder: MicroHolder, grain: u64, kind: MicroKind) {
        match holder {
            MicroHolder::Lane(lane) => self.note(lane, grain, kind),
            MicroHolder::Ticket(ticket) => self.note_ticket(ticket, grain),
        }
    }

    /// Notes an entry that was made in a lane.
    pub(crate) fn note(&mut self, lane: u32, grain: u64, kind: MicroKind) {
        if let Some(held) = self.lanes.get_mut(lane as usize) {
            held.entries.push((grain, kind));
            self.pending.insert(grain, MicroHolder::Lane(lane));
        }
    }
}

impl<G: Backing> SubHeap<G> {
    /// Stores the word of a lane, durably.
    pub(crate) fn set_lane(&self, lane: u32, word: LaneWord) {
        let writer = self.meta.writer(&self.backing);
        writer.store(lane_at(lane), word.encode(lane));
        reach(Step::LaneStored);
        if !planted(Bug::LaneNotFlushed) {
            writer.flush(lane_at(lane), LINE_SIZE);
        }
        writer.fence();
    }

    /// Ends the transaction of a lane whose entries these are: frees those of one kind and lets no
    /// entry count. `repeated`: a crash may have come after some of the frees.
    fn finish(
        &self,
        state: &mut SubHeapState,
        (lane, word): (u32, LaneWord),
        entries: &[LaneEntry],
        repeated: bool,
    ) -> Result<u64, Damage> {
        let kind = match word.state {
            LaneState::Running => MicroKind::Alloc,
            LaneState::Committed => MicroKind::Free,
        };
        if planted(Bug::LaneEndedEarly) {
            self.set_lane(lane, word.next());
        }
        let mut freed = 0;
        // All are looked at before the first is free: a damaged one leaves all of them allocated.
        for is_last_look in [false, true] {
            for &(grain, _) in entries.iter().rev().filter(|(_, of)| *of == kind) {
                let located = state.plan(&self.meta).locate(grain * GRAIN, false);
                match located.map_err(Fault::damage)? {
                    Some(located) if located.is_allocated() && is_last_look => {
                        // A slab stays, so that recovery finds the slot if it comes here again.
                        self.free_located(state, &located, true)?;
                        freed += 1;
                        reach(Step::EntryDone);
                    }
                    Some(located) if located.is_allocated() || repeated => {}
                    _ => {
                        let what = "an entry names no block";
                        return Err(Damage { offset: lane_at(lane), what });
                    }
                }
            }
        }
        self.set_lane(lane, word.next());
        Ok(freed)
    }

    /// The word of a lane, durably: its process may have died before it was.
    pub(crate) fn lane_word(&self, lane: u32) -> Result<LaneWord, Damage> {
        let what = "the word of a lane does not fit its check";
        let damage = Damage { offset: lane_at(lane), what };
        LaneWord::decode(self.meta.word(lane_at(lane)), lane).ok_or(damage)
    }

    /// Makes all words of lanes durable, which recovery believes.
    pub(crate) fn settle_lanes(&self) {
        if planted(Bug::SealNotSettled) {
            return;
        }
        let writer = self.meta.writer(&self.backing);
        for lane in 0..self.meta.geometry.lanes {
            writer.flush(lane_at(lane), LINE_SIZE);
        }
        writer.fence();
    }

    /// The link of a lane whose transaction has entries and is a part of another sub-heap's.
    fn link_of(&self, lane: u32, word: LaneWord) -> Result<Option<LaneLink>, Damage> {
        let cell = LaneLink::cell(lane);
        let raw = self.meta.cell(cell);
        if raw == EMPTY {
            return Ok(None);
        }
        let what = "the link of a lane does not fit its check";
        let link = LaneLink::from_raw(raw, cell);
        let link = link.ok_or(Damage { offset: cell * CELL_SIZE, what })?;
        Ok((link.own == word.sequence).then_some(link))
    }

    /// What a lane's transaction did, after a crash.
    fn entries_of(&self, lane: u32, word: LaneWord) -> Result<Vec<LaneEntry>, Damage> {
        let mut entries = Vec::new();
        for index in 0..LANE_ENTRIES {
            let at = entry_at(lane, index);
            let entry = MicroEntry { place: self.meta.word(at), tail: self.meta.word(at + 8) };
            if (entry.place, entry.tail) == (0, 0) {
                break;
            }
            match entry.read(lane, index) {
                Some((sequence, unit, kind)) if sequence == word.sequence => {
                    entries.push((unit, kind));
                }
                Some(_) => break,
                None => {
                    let what = "an entry of the micro log is damaged";
                    return Err(Damage { offset: at, what });
                }
            }
        }
        Ok(entries)
    }

    /// Ends what a crash left in the lanes whose transactions are parts of others'. `decide` says
    /// how the deciding lane's ended. Says how many blocks were freed.
    pub(crate) fn recover_linked(
        &self,
        decide: &mut dyn FnMut(&LaneLink) -> Option<LaneState>,
    ) -> Result<u64, Damage> {
        let mut state = self.lock();
        let mut freed = 0;
        for lane in 0..self.meta.geometry.lanes {
            let word = self.lane_word(lane)?;
            let entries = self.entries_of(lane, word)?;
            let link = self.link_of(lane, word)?.filter(|_| !entries.is_empty());
            let Some(link) = link.filter(|_| !planted(Bug::Logged(LoggedBug::LinkIgnored))) else {
                continue;
            };
            let what = "a lane is linked to one that has another transaction";
            let offset = LaneLink::cell(lane) * CELL_SIZE;
            let decided = decide(&link).ok_or(Damage { offset, what })?;
            let word = LaneWord { state: decided, ..word };
            freed += self.finish(&mut state, (lane, word), &entries, true)?;
        }
        Ok(freed)
    }

    /// Ends what a crash left in all lanes. Says how many blocks were freed.
    pub(crate) fn recover_lanes(
        &self,
        decide: &mut dyn FnMut(&LaneLink) -> Option<LaneState>,
    ) -> Result<u64, Damage> {
        self.settle_lanes();
        let freed = self.recover_linked(decide)?;
        Ok(freed + self.recover_own()?)
    }

    /// Ends what a crash left in the lanes that decide themselves. Says how many blocks were freed.
    pub(crate) fn recover_own(&self) -> Result<u64, Damage> {
        let mut state = self.lock();
        let mut all = 0;
        for lane in 0..self.meta.geometry.lanes {
            let word = self.lane_word(lane)?;
            let entries = self.entries_of(lane, word)?;
            let is_idle = entries.is_empty() && word.state == LaneState::Running;
            let mut sequence = word.sequence;
            if !is_idle && !planted(Bug::LaneNotRecovered) {
                all += self.finish(&mut state, (lane, word), &entries, true)?;
                sequence = word.next().sequence;
            }
            state.lanes.push(Lane::new(sequence));
        }
        Ok(all)
    }

    /// Commits or aborts the transaction of a lane.
    pub(crate) fn end(
        &self,
        state: &mut SubHeapState,
        lane: u32,
        end: LaneState,
    ) -> Result<(), Damage> {
        let Some(held) = state.lanes.get_mut(lane as usize) else { return Ok(()) };
        let entries = std::mem::take(&mut held.entries);
        let running = LaneWord { sequence: held.sequence, state: LaneState::Running };
        if entries.is_empty() {
            return Ok(());
        }
        let frees = entries.iter().any(|(_, kind)| *kind == MicroKind::Free);
        let word = LaneWord { state: end, ..running };
        let ended = if end == LaneState::Committed && !frees {
            self.set_lane(lane, running.next());
            Ok(0)
        } else {
            if end == LaneState::Committed && !planted(Bug::FreedBeforeCommit) {
                self.set_lane(lane, word);
            }
            self.finish(state, (lane, word), &entries, false)
        };
        self.ended(state, lane, entries, ended)
    }

    /// Commits, before anything else of a transaction that has lanes in several sub-heaps ends:
    /// this lane decides.
    pub(crate) fn decide(&self, state: &SubHeapState, lane: u32) {
        if let Some(held) = state.lanes.get(lane as usize) {
            let word = LaneWord { sequence: held.sequence, state: LaneState::Committed };
            self.set_lane(lane, word);
        }
    }

    /// Ends the part of a transaction that a lane has, once it is decided; of the deciding lane the
    /// last of all.
    pub(crate) fn end_decided(
        &self,
        state: &mut SubHeapState,
        lane: u32,
        end: LaneState,
    ) -> Result<(), Damage> {
        let Some(held) = state.lanes.get_mut(lane as usize) else { return Ok(()) };
        let entries = std::mem::take(&mut held.entries);
        if entries.is_empty() && held.link.is_some() {
            return Ok(());
        }
        let word = LaneWord { sequence: held.sequence, state: end };
        let ended = self.finish(state, (lane, word), &entries, false);
        self.ended(state, lane, entries, ended)
    }

    /// Notes that the transaction of a lane has ended, or could not be.
    fn ended(
        &self,
        state: &mut SubHeapState,
        lane: u32,
        entries: Vec<LaneEntry>,
        ended: Result<u64, Damage>,
    ) -> Result<(), Damage> {
        let Some(held) = state.lanes.get_mut(lane as usize) else { return Ok(()) };
        match ended {
            Ok(freed) => {
                let word = LaneWord { sequence: held.sequence, state: LaneState::Running };
                held.sequence = word.next().sequence;
                state.pending.retain(|_, holder| *holder != MicroHolder::Lane(lane));
                state.barren = if freed == 0 { state.barren } else { u8::MAX };
                Ok(())
            }
            // The next open tries again; until then no transaction has the lane or the blocks.
            Err(damage) => {
                held.entries = entries;
                Err(damage)
            }
        }
    }

    /// Takes a lane for a thread's transactions.
    pub(crate) fn take_lane(&self, state: &mut SubHeapState) -> Result<u32, LogFull> {
        let free = state.lanes.iter().position(|lane| !lane.open);
        let lane = free.ok_or(LogFull::Lanes { lanes: self.meta.geometry.lanes })?;
        state.lanes[lane].open = true;
        Ok(lane as u32)
    }

    /// Frees a block when the transaction of a lane commits.
    pub(crate) fn free_in(
        &self,
        state: &mut SubHeapState,
        lane: u32,
        addr: u64,
    ) -> Result<(), FreeRefused> {
        let grain = self.allocated(state, addr)?.grain();
        let held = state.lanes.get(lane as usize);
        let is_freed = held.is_some_and(|held| held.entries.contains(&(grain, MicroKind::Free)));
        if is_freed
            || state.pending.get(&grain).is_some_and(|&holder| holder != MicroHolder::Lane(lane))
        {
            return Err(FreeRefused::InTransaction { addr });
        }
        let entry = state
            .next_entry(lane, MicroKind::Free)
            .ok_or(LogFull::Lane { entries: LANE_ENTRIES })?;
        self.change(state, |plan| entry.plan(plan, grain)).map_err(Fault::damage)?;
        state.note(lane, grain, MicroKind::Free);
        Ok(())
    }

    /// A lane of the micro log for this thread. No transaction has begun.
    ///
    /// # Errors
    /// All lanes are taken.
    pub fn micro_log(&self) -> Result<MicroLog<'_, G>, LogFull> {
        let lane = self.take_lane(&mut self.lock())?;
        Ok(MicroLog { heap: self, lane, stuck: false })
    }
}

/// A lane of a sub-heap's micro log. Its first operation begins a transaction; a commit or an abort
/// ends it, and the next operation begins another. A transaction that runs when this is dropped is
/// aborted.
#[derive(Debug)]
pub struct MicroLog<'h, G: Backing> {
    heap: &'h SubHeap<G>,
    lane: u32,
    /// Its transaction could not be ended.
    stuck: bool,
}

impl<G: Backing> MicroLog<'_, G> {
    /// Allocates as [`SubHeap::alloc`], in the transaction: an abort or a crash before the commit
    /// gives the block back. `is_end` commits the transaction with this allocation.
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
        let mut state = self.heap.lock();
        let request = Request {
            size,
            align,
            type_id,
            holder: Some(MicroHolder::Lane(self.lane)),
            apart: false,
        };
        let block = self.heap.alloc_locked(&mut state, &request)?;
        if is_end {
            self.heap.end(&mut state, self.lane, LaneState::Committed).inspect_err(|_| {
                self.stuck = true;
            })?;
        }
        Ok(block)
    }

    /// Frees a block when the transaction commits.
    ///
    /// # Errors
    /// Why the address cannot be freed; nothing has changed.
    pub fn free(&mut self, addr: u64) -> Result<(), FreeRefused> {
        self.heap.free_in(&mut self.heap.lock(), self.lane, addr)
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
        let ended = self.heap.end(&mut self.heap.lock(), self.lane, end);
        self.stuck |= ended.is_err();
        ended
    }
}

impl<G: Backing> Drop for MicroLog<'_, G> {
    fn drop(&mut self) {
        let _ = (!self.stuck).then(|| self.end(LaneState::Running));
        if let Some(lane) = self.heap.lock().lanes.get_mut(self.lane as usize) {
            lane.open = self.stuck;
        }
    }
}
