//! Contains a damaged header: the lines of its block go out of use, for good, and are reported.
//!
//! The header is made to say "damaged" in two steps, each durable before the next
//! ([`cenote_layout::wear::WearLine::mended`]): first the slot that was whole, then the other. The
//! second commits; until then every opener finds the damage again, with the same lines.

use super::error::WearDamage;
use super::lines::LineSource;
use super::lists::FreeRange;
use super::state::{WearHeap, WearState};
use crate::backing::Backing;
use cenote_layout::wear::{WEAR_LINE, WearRecord};

impl<G: Backing> WearHeap<G> {
    /// Puts lines out of use whose first is a damaged header.
    pub(crate) fn contain(
        &self,
        state: &mut WearState,
        (puddle, line, lines): (usize, u32, u32),
        what: &'static str,
    ) {
        let Some(at) = state.puddles.get_mut(puddle) else { return };
        // A page that is lost stays so, and each opener finds that.
        if self.backing.is_writable() && at.lines.can_be_read(line) {
            at.lines.store_mended(line, &WearRecord::Damaged { lines }, &*self.backing);
        }
        self.put_out_of_use(state, FreeRange { puddle, line, lines }, what);
    }

    /// The same, where the header says so already.
    pub(crate) fn put_out_of_use(
        &self,
        state: &mut WearState,
        range: FreeRange,
        what: &'static str,
    ) {
        let FreeRange { puddle, line, lines } = range;
        let Some(at) = state.puddles.get_mut(puddle) else { return };
        at.starts.fill(line, line + lines, false);
        at.live.fill(line, line + lines, false);
        at.free.fill(line, line + lines, false);
        at.starts.put(line, true);
        let is_new = at.damaged.insert(line, lines).is_none();
        let bytes = u64::from(lines) * WEAR_LINE;
        let damage = WearDamage { puddle: at.index, addr: at.addr_of(line), bytes, what };
        if is_new {
            state.damage.push(damage);
        }
    }

    /// Checks that a block's header still says "block". Puts its lines out of use if not.
    pub(crate) fn is_header_right(
        &self,
        state: &mut WearState,
        puddle: usize,
        line: u32,
        fits: impl FnOnce(&WearRecord) -> bool,
    ) -> bool {
        let Some(at) = state.puddles.get(puddle) else { return false };
        if at.damaged.contains_key(&line) {
            return false;
        }
        let lines = at.end_of(line) - line;
        let said = at.lines.look_for(line);
        let what = match said {
            Some(record) if record.size() == lines && fits(&record) => return true,
            Some(_) => "the header of a block says something else than was written there",
            None => "the header of a block is damaged",
        };
        self.contain(state, (puddle, line, lines), what);
        false
    }

    /// Looks at the header behind a block: an overflow of the block by a byte has changed it.
    pub(crate) fn look_at_next(&self, state: &mut WearState, puddle: usize, line: u32) {
        let next = state
            .puddles
            .get(puddle)
            .is_some_and(|at| at.has_header(line) && !at.damaged.contains_key(&line));
        if next {
            let live = state.puddles.get(puddle).is_some_and(|at| at.live.get(line));
            self.is_header_right(state, puddle, line, |record| record.is_allocated() == live);
        }
    }
}
