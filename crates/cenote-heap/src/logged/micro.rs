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
//! An abort frees what was allocated and then stores the next number. Both do so under the lock, so
//! that no block that is freed on the way is given out before the word says that all are: recovery
//! finds a block of an entry allocated, or free because the crash came later, and nothing else.
//!
//! Recovery flushes the word before it believes it: its process may have died before the flush.
//!
//! Durability: words are flushed and fenced before the next step. An allocation has the two fences
//! of its change, a commit without frees has one.

use super::error::{AllocRefused, Damage, Fault, FreeRefused};
use super::plan::Plan;
use super::state::{Entry, State, SubHeap};
use crate::backing::Backing;
use crate::block::BlockInfo;
use cenote_layout::LINE_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{
    CELL_SIZE, LANE_ENTRIES, LANE_HEADER_SIZE, LANE_SIZE, LANES_OFFSET, LaneState, LaneWord,
    MicroEntry, MicroKind,
};
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::mem::size_of;

/// Where a lane begins.
const fn lane_at(lane: u32) -> u64 {
    LANES_OFFSET + lane as u64 * LANE_SIZE
}

/// Where an entry of a lane lies.
const fn entry_at(lane: u32, index: usize) -> u64 {
    lane_at(lane) + LANE_HEADER_SIZE + index as u64 * size_of::<MicroEntry>() as u64
}

/// An entry that a plan adds to a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry {
    pub(crate) lane: u32,
    pub(crate) index: usize,
    pub(crate) sequence: u64,
    pub(crate) kind: MicroKind,
}

impl NewEntry {
    /// Plans the entry, about the block at `unit`.
    pub(crate) fn plan(self, plan: &mut Plan<'_>, unit: u64) -> Result<(), Fault> {
        let at = entry_at(self.lane, self.index);
        let (cell, word) = (at / CELL_SIZE, (at % CELL_SIZE / 8) as usize);
        let entry = MicroEntry::new(self.lane, self.index, self.sequence, unit, self.kind);
        let mut raw = plan.change.get(plan.meta, cell);
        (raw[word], raw[word + 1]) = (entry.place, entry.tail);
        plan.change.put(plan.meta, cell, raw)
    }
}

impl State {
    /// The next entry of a lane; `None`: the lane is full.
    pub(crate) fn next_entry(&self, lane: u32, kind: MicroKind) -> Option<NewEntry> {
        let held = self.lanes.get(lane as usize)?;
        let (index, sequence) = (held.entries.len(), held.sequence);
        (index < LANE_ENTRIES).then_some(NewEntry { lane, index, sequence, kind })
    }

    /// Notes an entry that was made.
    pub(crate) fn note(&mut self, lane: u32, unit: u64, kind: MicroKind) {
        if let Some(held) = self.lanes.get_mut(lane as usize) {
            held.entries.push((unit, kind));
            self.pending.insert(unit, lane);
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
        state: &mut State,
        (lane, word): (u32, LaneWord),
        entries: &[Entry],
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
        for &(unit, _) in entries.iter().rev().filter(|(_, of)| *of == kind) {
            freed += self
                .change(state, |plan| match plan.find(unit)? {
                    Some(found) if !found.record.is_free() => plan.release(found).map(|()| 1),
                    Some(_) if repeated => Ok(0),
                    _ => Err(Fault::cell(lane_at(lane) / CELL_SIZE, "an entry names no block")),
                })
                .map_err(Fault::damage)?;
            reach(Step::EntryDone);
        }
        self.set_lane(lane, word.next());
        Ok(freed)
    }

    /// Ends what a crash left in a lane. Says the number of the lane's next transaction, and how
    /// many blocks were freed.
    pub(crate) fn recover_lane(&self, state: &mut State, lane: u32) -> Result<(u64, u64), Damage> {
        let damage = |offset, what| Damage { offset, what };
        if !planted(Bug::SealNotSettled) {
            let writer = self.meta.writer(&self.backing);
            writer.flush(lane_at(lane), LINE_SIZE);
            writer.fence();
        }
        let word = LaneWord::decode(self.meta.word(lane_at(lane)), lane)
            .ok_or(damage(lane_at(lane), "the word of a lane does not fit its check"))?;
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
                None => return Err(damage(at, "an entry of the micro log is damaged")),
            }
        }
        if entries.is_empty() && word.state == LaneState::Running || planted(Bug::LaneNotRecovered)
        {
            return Ok((word.sequence, 0));
        }
        let freed = self.finish(state, (lane, word), &entries, true)?;
        Ok((word.next().sequence, freed))
    }

    /// Commits or aborts the transaction of a lane.
    fn end(&self, state: &mut State, lane: u32, end: LaneState) -> Result<(), Damage> {
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
        let Some(held) = state.lanes.get_mut(lane as usize) else { return Ok(()) };
        match ended {
            Ok(_) => {
                held.sequence = running.next().sequence;
                state.pending.retain(|_, holder| *holder != lane);
                Ok(())
            }
            // The next open tries again; until then no transaction has the lane or the blocks.
            Err(damage) => {
                held.entries = entries;
                Err(damage)
            }
        }
    }

    /// A lane of the micro log for this thread. No transaction has begun.
    ///
    /// # Errors
    /// All lanes are taken.
    pub fn micro_log(&self) -> Result<MicroLog<'_, G>, AllocRefused> {
        let mut state = self.lock();
        let free = state.lanes.iter().position(|lane| !lane.open);
        let lane = free.ok_or(AllocRefused::Lanes { lanes: self.meta.geometry.lanes })?;
        state.lanes[lane].open = true;
        drop(state);
        Ok(MicroLog { heap: self, lane: lane as u32, stuck: false })
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
        let block = self.heap.alloc_locked(&mut state, size, align, type_id, Some(self.lane))?;
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
        let mut state = self.heap.lock();
        let found = self.heap.allocated(&mut state, addr)?;
        let unit = found.record.unit();
        let held = state.lanes.get(self.lane as usize);
        let is_freed = held.is_some_and(|lane| lane.entries.contains(&(unit, MicroKind::Free)));
        if is_freed || state.pending.get(&unit).is_some_and(|&lane| lane != self.lane) {
            return Err(FreeRefused::InTransaction { addr });
        }
        let entry = state
            .next_entry(self.lane, MicroKind::Free)
            .ok_or(FreeRefused::LaneFull { entries: LANE_ENTRIES })?;
        self.heap.change(&mut state, |plan| entry.plan(plan, unit)).map_err(Fault::damage)?;
        state.note(self.lane, unit, MicroKind::Free);
        Ok(())
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
