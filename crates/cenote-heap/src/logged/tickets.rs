//! Tickets (POS-7, over the logs of transactions of pools): one for each block that a transaction
//! allocated, or is to free, until it has ended.
//!
//! A transaction of a pool has a log that any program replays, and which knows no heaps: it names
//! *marks*, bytes that say whether a block is allocated. A block of this heap gets its mark with
//! its ticket, and only for that long. States of a ticket's number, and what an opener does:
//!
//! | entry | mark | an opener | the store that leads there |
//! | --- | --- | --- | --- |
//! | of an earlier number | TAKEN or ALLOCATED | nothing | the word of the next number |
//! | of this number | TAKEN, HELD, FREE | frees the block | the change that allocates it |
//! | of this number | ALLOCATED | nothing | **the mark, which the transaction's log covers** |
//! | none | any | nothing | the change that frees the block |
//!
//! * *Allocation.* The word of the next number is stored with TAKEN and flushed; the change that
//!   allocates the block has the entry, so its first fence makes the word durable before the entry
//!   counts. Then the transaction logs the mark, and sets it when it commits.
//! * *Free.* The word of the next number is stored with ALLOCATED; a change stores the entry. The
//!   transaction clears the mark when it commits. Once its log is finished, the change that frees
//!   the block also takes the entry away: so no opener frees a block that was given out again.
//! * *End.* A ticket whose mark says ALLOCATED ends without a store. It says "keep" until it is
//!   used again.
//!
//! Replay of a log stores marks again as long as the log's range is not durable. So a ticket ends
//! when that is: a transaction with tickets is not finished lazily.
//!
//! Tickets are first used in the order of their numbers, and the word of each is durable before the
//! lock is free. So the first word that is zero ends what an opener reads.

use super::cells::Metadata;
use super::error::{AllocRefused, Damage, Fault, FreeRefused, LogFull};
use super::micro_entry::{MicroHolder, NewEntry, ticket_entry_at};
use super::slab::{GRAIN, Located};
use super::state::{SubHeap, SubHeapState};
use super::sub_heap::{Request, info};
use crate::backing::Backing;
use crate::block::{BlockInfo, Mark};
use crate::error::FreeError;
use cenote_layout::LINE_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{CELL_SIZE, EMPTY, MicroEntry, MicroKind, TICKET_SIZE, TicketWord};
use cenote_layout::mark::{ALLOCATED, HELD, TAKEN};
use cenote_medium::planted::{Bug, LoggedBug, planted};

impl SubHeapState {
    /// The entry that a ticket's use stores.
    pub(crate) fn ticket_entry(&self, ticket: u32, kind: MicroKind) -> NewEntry {
        let sequence = self.tickets.sequences.get(ticket as usize).copied().unwrap_or(0);
        NewEntry { holder: MicroHolder::Ticket(ticket), index: 0, sequence, kind, link: None }
    }

    /// Notes that a ticket is about a block.
    pub(crate) fn note_ticket(&mut self, ticket: u32, grain: u64) {
        self.pending.insert(grain, MicroHolder::Ticket(ticket));
    }

    /// No transaction has the ticket any more.
    fn end_ticket(&mut self, ticket: u32, grain: u64) {
        self.pending.remove(&grain);
        self.tickets.free.push(ticket);
    }
}

impl<G: Backing> SubHeap<G> {
    fn ticket_damage(&self, ticket: u32, what: &'static str) -> Damage {
        Damage { offset: self.meta.geometry.ticket_at(ticket), what }
    }

    /// Takes a ticket, and stores the word of its next use; `None`: transactions have them all.
    fn take_ticket(&self, state: &mut SubHeapState, mark: u8) -> Option<u32> {
        let tickets = &mut state.tickets;
        let ticket = match tickets.free.pop() {
            Some(ticket) => ticket,
            None if tickets.sequences.len() < self.meta.geometry.tickets as usize => {
                tickets.sequences.push(0);
                tickets.sequences.len() as u32 - 1
            }
            None => return None,
        };
        let last = tickets.sequences.get_mut(ticket as usize)?;
        let word = TicketWord { sequence: *last, mark }.next(mark);
        *last = word.sequence;
        let at = self.meta.geometry.ticket_at(ticket);
        let writer = self.meta.writer(&self.backing);
        writer.store(at, word.encode(ticket));
        if !planted(Bug::Logged(LoggedBug::TicketNotFlushed)) {
            writer.flush(at, LINE_SIZE);
        }
        Some(ticket)
    }

    /// Allocates a block with a ticket: free for the next opener until the mark is set.
    pub(crate) fn alloc_with_ticket(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
    ) -> Result<(BlockInfo, u32), AllocRefused> {
        let mut state = self.lock();
        let tickets = self.meta.geometry.tickets;
        let early = planted(Bug::Logged(LoggedBug::TicketMarkedEarly));
        let mark = if early { ALLOCATED } else { TAKEN };
        let ticket = self.take_ticket(&mut state, mark).ok_or(LogFull::Tickets { tickets })?;
        let holder = Some(MicroHolder::Ticket(ticket));
        let request = Request { size, align, type_id, holder, apart: false };
        match self.alloc_locked(&mut state, &request) {
            Ok(block) => Ok((block, ticket)),
            Err(refused) => {
                state.tickets.free.push(ticket);
                Err(refused)
            }
        }
    }

    /// The allocated block at an address, with a ticket for its free.
    pub(crate) fn ticket_to_free(&self, addr: u64) -> Result<(BlockInfo, u32), FreeRefused> {
        let mut state = self.lock();
        let located = self.allocated(&mut state, addr)?;
        let (grain, block) = (located.grain(), info(&state.data, &located));
        match state.pending.get(&grain) {
            // Its own transaction frees it again: one mark decides.
            Some(MicroHolder::Ticket(ticket)) => return Ok((block, *ticket)),
            Some(MicroHolder::Lane(_)) => return Err(FreeRefused::InTransaction { addr }),
            None => {}
        }
        let tickets = self.meta.geometry.tickets;
        let ticket = self.take_ticket(&mut state, ALLOCATED).ok_or(LogFull::Tickets { tickets })?;
        let entry = state.ticket_entry(ticket, MicroKind::Free);
        match self.change(&mut state, |plan| entry.plan(plan, grain)) {
            Ok(()) => {
                state.note_ticket(ticket, grain);
                Ok((block, ticket))
            }
            Err(fault) => {
                state.tickets.free.push(ticket);
                Err(fault.damage().into())
            }
        }
    }

    /// The mark of a ticket's block.
    pub(crate) fn ticket_mark(&self, ticket: u32) -> Option<Mark> {
        let word = self.meta.pointer(self.meta.geometry.ticket_at(ticket))?;
        Some(Mark { word, mask: TicketWord::MARK })
    }

    /// The ticket whose mark that is.
    pub(crate) fn ticket_of(&self, mark: &Mark) -> Option<u32> {
        let first = self.meta.pointer(self.meta.geometry.ticket_at(0))?;
        let behind = (mark.word.as_ptr() as u64).checked_sub(first.as_ptr() as u64)?;
        let ticket = u32::try_from(behind / TICKET_SIZE).ok()?;
        (behind.is_multiple_of(TICKET_SIZE) && ticket < self.meta.geometry.tickets)
            .then_some(ticket)
    }

    /// Changes the mark of a ticket, if it is one of those; not flushed.
    pub(crate) fn change_ticket(&self, ticket: u32, from: &[u8], mark: u8) {
        let at = self.meta.geometry.ticket_at(ticket);
        if let Some(word) = TicketWord::decode(self.meta.word(at), ticket)
            && from.contains(&word.mark)
        {
            let word = TicketWord { mark, ..word };
            self.meta.writer(&self.backing).store(at, word.encode(ticket));
        }
    }

    /// Ends a ticket whose mark says that its block is allocated; leaves any other alone.
    pub(crate) fn settle_ticket(&self, ticket: u32, addr: u64) {
        let mut state = self.lock();
        if self.mark_in(ticket) == Some(ALLOCATED)
            && let Some(grain) = grain_of(&state, addr)
            && state.pending.get(&grain) == Some(&MicroHolder::Ticket(ticket))
        {
            state.end_ticket(ticket, grain);
        }
    }

    /// Frees the block of a ticket whose mark says so, and ends it; leaves any other alone.
    pub(crate) fn release_ticket(&self, ticket: u32, addr: u64) -> Result<(), Damage> {
        let mut state = self.lock();
        let is_free = self.mark_in(ticket).is_some_and(|mark| mark != ALLOCATED);
        if let Some(grain) = grain_of(&state, addr).filter(|_| is_free)
            && state.pending.get(&grain) == Some(&MicroHolder::Ticket(ticket))
        {
            self.free_by_ticket(&mut state, ticket, grain)?;
            state.end_ticket(ticket, grain);
            state.barren = u8::MAX;
        }
        Ok(())
    }

    fn mark_in(&self, ticket: u32) -> Option<u8> {
        let bits = self.meta.word(self.meta.geometry.ticket_at(ticket));
        TicketWord::decode(bits, ticket).map(|word| word.mark)
    }

    /// Frees a block, and takes the entry about it away.
    fn free_by_ticket(
        &self,
        state: &mut SubHeapState,
        ticket: u32,
        grain: u64,
    ) -> Result<(), Damage> {
        let located = state.plan(&self.meta).locate(grain * GRAIN, false);
        let located = located.map_err(Fault::damage)?.filter(Located::is_allocated);
        let none = "a ticket names no block";
        let located = located.ok_or(self.ticket_damage(ticket, none))?;
        let entry = ticket_entry_at(&self.meta.geometry, ticket) / CELL_SIZE;
        let stays = self.change(state, |plan| {
            let stays = plan.put_back(&located, false)?;
            if !planted(Bug::Logged(LoggedBug::TicketKeepsEntry)) {
                plan.change.put(plan.meta, entry, EMPTY)?;
            }
            Ok(stays)
        });
        state.slabs.slot_freed(&located, stays.map_err(Fault::damage)?);
        Ok(())
    }

    /// Ends what a crash left in tickets; the logs of transactions were replayed before. Says how
    /// many blocks were freed.
    pub(crate) fn recover_tickets(&self) -> Result<u64, Damage> {
        let mut state = self.lock();
        let used = used_tickets(&self.meta)?;
        // Their process may have died before they were durable.
        let writer = self.meta.writer(&self.backing);
        for ticket in 0..used.len() as u32 {
            writer.flush(self.meta.geometry.ticket_at(ticket), LINE_SIZE);
        }
        if !used.is_empty() {
            writer.fence();
        }
        let mut freed = 0;
        for (ticket, (word, entry)) in (0u32..).zip(used) {
            state.tickets.sequences.push(word.sequence);
            state.tickets.free.push(ticket);
            let Some(grain) = entry else { continue };
            if word.mark != ALLOCATED && !planted(Bug::Logged(LoggedBug::TicketNotRecovered)) {
                self.free_by_ticket(&mut state, ticket, grain)?;
                freed += 1;
            }
        }
        // Low numbers first.
        state.tickets.free.reverse();
        Ok(freed)
    }

    /// In a pool that is open for reading, blocks that [`SubHeap::recover_tickets`] would free
    /// count as free.
    pub(crate) fn hide_tickets(&self) -> Result<(), Damage> {
        let used = used_tickets(&self.meta)?;
        let freed =
            |(word, entry): (TicketWord, Option<u64>)| entry.filter(|_| word.mark != ALLOCATED);
        self.lock().hidden = used.into_iter().filter_map(freed).collect();
        Ok(())
    }

    /// Damage of tickets.
    pub(crate) fn check_tickets(meta: &Metadata) -> Option<Damage> {
        used_tickets(meta).err()
    }
}

/// What commits and aborts change a mark from.
pub(crate) const TO_SET: &[u8] = &[TAKEN];
/// See [`TO_SET`].
pub(crate) const TO_CLEAR: &[u8] = &[ALLOCATED, TAKEN];
/// What they clear it to.
pub(crate) const CLEARED: u8 = HELD;

fn grain_of(state: &SubHeapState, addr: u64) -> Option<u64> {
    state.data.offset_of(addr).map(|offset| offset / GRAIN)
}

/// The words of the tickets that were used, and the grain that each one's entry names, if it
/// counts.
fn used_tickets(meta: &Metadata) -> Result<Vec<(TicketWord, Option<u64>)>, Damage> {
    let mut used = Vec::new();
    for ticket in 0..meta.geometry.tickets {
        let offset = meta.geometry.ticket_at(ticket);
        let bits = meta.word(offset);
        if bits == 0 {
            break;
        }
        let what = "the word of a ticket does not fit its check";
        let word = TicketWord::decode(bits, ticket).ok_or(Damage { offset, what })?;
        let at = ticket_entry_at(&meta.geometry, ticket);
        let entry = MicroEntry { place: meta.word(at), tail: meta.word(at + 8) };
        if (entry.place, entry.tail) == (0, 0) {
            used.push((word, None));
            continue;
        }
        let what = "the entry of a ticket is damaged";
        let read = entry.read(MicroHolder::Ticket(ticket).number(), 0);
        let (sequence, grain, _) = read.ok_or(Damage { offset: at, what })?;
        used.push((word, (sequence == word.sequence).then_some(grain)));
    }
    Ok(used)
}

impl From<FreeRefused> for FreeError {
    fn from(refused: FreeRefused) -> Self {
        match refused {
            FreeRefused::NoBlock(error) => error,
            FreeRefused::InTransaction { addr } => Self::InTransaction { addr },
            FreeRefused::Damaged(damage) => Self::Metadata(damage),
            FreeRefused::LogFull(full) => Self::LogFull(full),
        }
    }
}
