//! Finds and frees blocks.
//!
//! A free is one change of the block's header, which commits it: "free", with the time and with the
//! block that was freed before. It is durable before the call returns. The block waits then.

use super::lists::FreeRange;
use super::state::{WaitingBlock, WearGuard, WearHeap, WearState};
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::FreeError;
use cenote_layout::id::TypeId;
use cenote_layout::wear::{WEAR_LINE, WearRecord};
use cenote_medium::planted::{Bug, Step, WearBug, planted, reach};

impl<G: Backing> WearHeap<G> {
    /// Frees the block that begins at `addr`; 0 is nothing. Durable on return.
    ///
    /// # Errors
    /// Why the address cannot be freed; nothing has changed, but what is damaged is out of use.
    pub fn free(&self, addr: u64) -> Result<(), FreeError> {
        if addr == 0 {
            return Ok(());
        }
        if !self.backing.is_writable() {
            return Err(FreeError::ReadOnly);
        }
        let (mut state, place) = self.scanned_at(addr);
        let freed = place.and_then(|place| self.free_at(&mut state, place, addr));
        self.end(state);
        freed
    }

    fn free_at(
        &self,
        state: &mut WearState,
        (puddle, line): (usize, u32),
        addr: u64,
    ) -> Result<(), FreeError> {
        let now_ms = self.clock.now_ms();
        state.move_waiting(now_ms, self.wait_ms);
        let block = block_at(state, (puddle, line), addr)?;
        if state.in_transaction.contains(&(puddle, block)) {
            return Err(FreeError::InTransaction { addr });
        }
        if !self.is_header_right(state, puddle, block, WearRecord::is_allocated) {
            return Err(FreeError::DamagedHeader { addr });
        }
        let end = state.puddles.get(puddle).map_or(0, |at| at.end_of(block));
        if !planted(Bug::Wear(WearBug::NextNotLookedAt)) {
            self.look_at_next(state, puddle, end);
        }
        let Some(at) = state.puddles.get_mut(puddle) else { return Ok(()) };
        let (lines, time_ms) = (end - block, now_ms as u32);
        let free = WearRecord::Free { lines, link: at.last_freed, time_ms };
        at.lines.store_next(block, &free, &*self.backing);
        reach(Step::WearCommitted);
        if !planted(Bug::Wear(WearBug::FreeNotFenced)) {
            self.backing.fence();
        }
        at.live.put(block, false);
        at.last_freed = block;
        let range = FreeRange { puddle, line: block, lines };
        self.wait_or_free(state, WaitingBlock { range, time_ms }, now_ms);
        Ok(())
    }

    /// The allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    pub fn find(&self, addr: u64) -> Result<BlockInfo, FreeError> {
        let (mut state, place) = self.scanned_at(addr);
        let found = place.and_then(|(puddle, line)| {
            let block = block_at(&state, (puddle, line), addr)?;
            let found = self.info(&mut state, puddle, block);
            found.ok_or(FreeError::DamagedHeader { addr })
        });
        self.end(state);
        found
    }

    /// The allocated block that contains `addr`, if one does.
    #[must_use]
    pub fn owner(&self, addr: u64) -> Option<BlockInfo> {
        let (mut state, place) = self.scanned_at(addr);
        let found = place.ok().and_then(|(puddle, line)| {
            let at = state.puddles.get(puddle)?;
            let block = at.start_of(line).filter(|&block| at.live.get(block) && block < line)?;
            self.info(&mut state, puddle, block)
        });
        self.end(state);
        found
    }

    /// Whether a block of a type is allocated and begins at `addr`.
    #[must_use]
    pub fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        self.find(addr).is_ok_and(|block| block.type_id == type_id)
    }

    /// What the header of an allocated block says; `None`: it is damaged.
    pub(crate) fn info(
        &self,
        state: &mut WearState,
        puddle: usize,
        block: u32,
    ) -> Option<BlockInfo> {
        if !self.is_header_right(state, puddle, block, WearRecord::is_allocated) {
            return None;
        }
        let at = state.puddles.get(puddle)?;
        let Some(WearRecord::Allocated { lines, type_id }) = at.lines.says(block) else {
            return None;
        };
        let size = u64::from(lines - 1) * WEAR_LINE;
        Some(BlockInfo { addr: at.addr_of(block + 1), size, type_id })
    }

    /// Puddle and line of an address, whose segment is scanned then.
    pub(crate) fn scanned_at(&self, addr: u64) -> (WearGuard<'_>, Result<(usize, u32), FreeError>) {
        let state = self.lock();
        let Some(slot) = self.backing.slot(addr) else {
            let error = match self.backing.is_foreign(addr) {
                true => FreeError::OtherPool { addr },
                false => FreeError::NotInHeap { addr },
            };
            return (state, Err(error));
        };
        let puddle = slot.load(core::sync::atomic::Ordering::Acquire).addr().wrapping_sub(1);
        let Some(at) = state.puddles.get(puddle) else {
            return (state, Err(FreeError::NotInHeap { addr }));
        };
        let line = u32::try_from(addr.wrapping_sub(at.addr) / WEAR_LINE).unwrap_or(u32::MAX);
        match at.segment_of(line) {
            Some(segment) => (self.with_scanned(state, puddle, segment), Ok((puddle, line))),
            None => (state, Err(FreeError::NotABlock { addr })),
        }
    }
}

/// The first line of the allocated block whose bytes begin at `addr`.
pub(crate) fn block_at(
    state: &WearState,
    (puddle, line): (usize, u32),
    addr: u64,
) -> Result<u32, FreeError> {
    let nothing = FreeError::NotABlock { addr };
    let at = state.puddles.get(puddle).ok_or(nothing.clone())?;
    let block = at.start_of(line).ok_or(nothing.clone())?;
    let body = at.addr_of(block + 1);
    if at.damaged.contains_key(&block) {
        return Err(FreeError::DamagedHeader { addr });
    }
    match (at.live.get(block), body == addr) {
        (true, true) => Ok(block),
        (false, true) => Err(FreeError::NotAllocated { addr }),
        (true, false) if addr > body => Err(FreeError::InsideBlock { addr, block: body }),
        _ => Err(nothing),
    }
}
