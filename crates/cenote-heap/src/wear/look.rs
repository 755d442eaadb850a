//! Answers about a whole heap: all blocks, counts, and what is damaged. Headers are read again, and
//! nothing is changed.

use super::error::WearDamage;
use super::lines::LineSource;
use super::puddle::WearPuddle;
use super::state::{WearHeap, WearState};
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::error::{FreeError, RecoverError};
use crate::heap::Inspect;
use crate::reach::{Followed, Holder, check_reached, count_blocks, reach};
use crate::report::{HeapReport, HeapStats};
use crate::trace::{TraceOptions, Types};
use cenote_layout::wear::{WEAR_LINE, WearLine, WearRecord};
use std::collections::BTreeSet;

/// All that a wear heap has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WearReport {
    /// Allocated blocks, by puddle and address.
    pub blocks: Vec<BlockInfo>,
    /// Damage that is known, and damage of headers that was found now.
    pub damage: Vec<WearDamage>,
    /// Counts.
    pub stats: WearStats,
}

/// Counts of a wear heap. All bytes are those of lines, headers among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WearStats {
    /// Puddles with chunks.
    pub puddles: u64,
    /// Segments.
    pub segments: u64,
    /// Allocated blocks.
    pub blocks: u64,
    /// Their bytes.
    pub block_bytes: u64,
    /// Bytes that can be given out.
    pub free_bytes: u64,
    /// Blocks in the don't-allocate list.
    pub waiting_blocks: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Bytes that no block has used.
    pub unused_bytes: u64,
    /// Bytes that are out of use because headers were damaged.
    pub damaged_bytes: u64,
}

impl<G: Backing> WearHeap<G> {
    /// Looks at all headers; scans what is not scanned.
    #[must_use]
    pub fn check(&self) -> WearReport {
        let state = self.scan_all(self.lock());
        let mut report = WearReport { stats: count(&state), ..WearReport::default() };
        report.damage.clone_from(&state.damage);
        for at in &state.puddles {
            look_at(at, &mut report);
        }
        self.end(state);
        report
    }

    /// Addresses of all headers: of blocks, free ones too, and of segments. For tests, which damage
    /// them.
    #[must_use]
    pub fn header_addresses(&self) -> Vec<u64> {
        let (state, mut all) = (self.scan_all(self.lock()), Vec::new());
        for at in &state.puddles {
            let table = at.geometry.table;
            let mut chunk = 0;
            for segment in &at.segments {
                all.push(at.addr_of(table + chunk));
                chunk += (segment.end - segment.first) / at.geometry.chunk_lines;
            }
            for_each_block(at, &mut |line, _| all.push(at.addr_of(line)));
        }
        self.end(state);
        all
    }

    /// Counts; scans what is not scanned.
    #[must_use]
    pub fn stats(&self) -> WearStats {
        let state = self.scan_all(self.lock());
        let stats = count(&state);
        self.end(state);
        stats
    }
}

impl<G: Backing> Followed for WearHeap<G> {
    type Backing = G;

    fn backing(&self) -> &G {
        &self.backing
    }

    fn holder(&self, addr: u64) -> Result<Holder, FreeError> {
        let (mut state, place) = self.scanned_at(addr);
        let holder = place.map(|(puddle, line)| {
            let Some(at) = state.puddles.get(puddle) else { return Holder::Nothing };
            let Some(block) = at.start_of(line) else { return Holder::Nothing };
            if at.damaged.contains_key(&block) {
                return Holder::Lost;
            }
            if !at.live.get(block) || block == line {
                return Holder::Nothing;
            }
            self.info(&mut state, puddle, block).map_or(Holder::Lost, Holder::Block)
        });
        self.end(state);
        holder
    }
}

impl<G: Backing> Inspect for WearHeap<G> {
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        self.check().blocks.into_iter().for_each(visit);
        Ok(())
    }

    fn check_from(
        &self,
        types: Option<&dyn Types>,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError> {
        let WearReport { blocks, damage, .. } = self.check();
        let stats = count_blocks(&*self.backing, &blocks);
        let report = HeapReport { stats, headers: damage, ..HeapReport::default() };
        let Some(types) = types else { return Ok(report) };
        check_reached(self, (&blocks, report), types, roots, options)
    }

    fn foreign_pointers(
        &self,
        types: &dyn Types,
        roots: &[u64],
    ) -> Result<BTreeSet<u64>, RecoverError> {
        Ok(reach(self, types, roots, TraceOptions::default())?.foreign)
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        Ok(count_blocks(&*self.backing, &self.check().blocks))
    }
}

/// All blocks of a puddle, in order.
fn for_each_block(at: &WearPuddle, visit: &mut dyn FnMut(u32, u32)) {
    for segment in &at.segments {
        let filled = at.filled(segment.first);
        let mut next = at.starts.next(filled.start, filled.end, true);
        while let Some(line) = next {
            let end = at.end_of(line);
            visit(line, end);
            next = at.starts.next(end, filled.end, true);
        }
    }
}

fn look_at(at: &WearPuddle, report: &mut WearReport) {
    for_each_block(at, &mut |line, end| {
        let (live, lines) = (at.live.get(line), end - line);
        if at.damaged.contains_key(&line) {
            return;
        }
        let bytes = u64::from(lines) * WEAR_LINE;
        let (puddle, addr) = (at.index, at.addr_of(line));
        let damage = |what| WearDamage { puddle, addr, bytes, what };
        match at.lines.look(line) {
            WearLine::Says { record, .. } if record.size() != lines => {
                report.damage.push(damage("the header of a block has another size"));
            }
            WearLine::Says { record: WearRecord::Allocated { type_id, .. }, .. } if live => {
                let (addr, size) = (at.addr_of(line + 1), bytes - WEAR_LINE);
                report.blocks.push(BlockInfo { addr, size, type_id });
            }
            WearLine::Says { record, .. } if record.is_free() && !live => {}
            WearLine::Says { .. } => {
                report.damage.push(damage("the header of a block says something else"));
            }
            _ => report.damage.push(damage("the header of a block is damaged")),
        }
    });
}

fn count(state: &WearState) -> WearStats {
    let mut stats = WearStats {
        puddles: state.puddles.len() as u64,
        waiting_blocks: state.waiting.len() as u64,
        waiting_bytes: state.waiting_lines * WEAR_LINE,
        ..WearStats::default()
    };
    for at in &state.puddles {
        stats.segments += at.segments.len() as u64;
        let open = at.open.map_or(0, |open| u64::from(open.end - open.from));
        let left = u64::from(at.geometry.chunks - at.begun) * u64::from(at.geometry.chunk_lines);
        stats.unused_bytes += (open + left) * WEAR_LINE;
        stats.damaged_bytes +=
            at.damaged.values().map(|&lines| u64::from(lines)).sum::<u64>() * WEAR_LINE;
        for_each_block(at, &mut |line, end| {
            let bytes = u64::from(end - line) * WEAR_LINE;
            if at.live.get(line) {
                stats.blocks += 1;
                stats.block_bytes += bytes;
            } else if at.free.get(line) {
                stats.free_bytes += bytes;
            }
        });
    }
    stats
}
