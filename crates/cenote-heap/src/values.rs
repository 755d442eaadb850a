//! Looks for bytes that are no value of their type, in all allocated blocks of a heap, for
//! collections that are not what their headers say ([`Structures`]), and for blocks with two owners
//! ([`Owners`]).
//!
//! *What is read:* blocks that their marks call allocated, of types that have rules
//! ([`cenote_layout::values`]); blocks that nothing leads to as well, because a program may have
//! kept the address of one. *What is believed:* descriptors and marks, as far as every other user
//! of the heap believes them. Nothing is changed.
//!
//! Bytes are copied, and the copy is judged: padding is no byte that the language lets be read in
//! place. The copy takes at most [`STEP`] bytes, or one value.

use crate::block::BlockInfo;
use crate::copied::copy_into;
use crate::error::RecoverError;
use crate::heap::Inspect;
use crate::owners::Owners;
use crate::report::{LISTED_MAX, ValueReport};
use crate::trace::{TraceOptions, TraceProgress};
use cenote_layout::id::TypeId;
use cenote_layout::types::TypeRecord;
use cenote_layout::values::{Blocks, InvalidValue, Rules, Structures, Values, is_header, no_room};
use cenote_medium::planted::{Bug, planted};
use core::ops::ControlFlow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are copied at once of a block that holds many values.
const STEP: u64 = 64 << 10;

/// Blocks between two looks at the clock.
const BLOCKS: u64 = 1024;

/// Looks at the values of all allocated blocks whose types have rules. The caller keeps them from
/// being changed meanwhile. Of `options`, progress alone counts: it is told blocks that were looked
/// at.
///
/// # Errors
/// A puddle cannot be mapped; [`RecoverError::Cancelled`].
pub(crate) fn check_values<H: Inspect>(
    heap: &H,
    values: &mut Values,
    options: TraceOptions<'_>,
) -> Result<ValueReport, RecoverError> {
    let TraceOptions { mut progress, interval, .. } = options;
    let superblocks = progress.as_ref().map_or(Ok(0), |_| heap.stats().map(used))?;
    let mut known: HashMap<TypeId, (Option<Rules>, Option<Arc<TypeRecord>>)> = HashMap::new();
    let (mut report, mut copy) = (ValueReport::default(), Vec::new());
    let (mut told, mut cancelled) = (Instant::now(), false);
    let (mut headers, mut owners) = (Vec::new(), Owners::default());
    heap.walk(&mut |block| {
        let (rules, record) = known
            .entry(block.type_id)
            .or_insert_with(|| (values.rules(block.type_id), values.record_of(block.type_id)));
        if planted(Bug::ValuesBelieved) || cancelled {
            return;
        }
        if let Some(record) = record.as_ref().filter(|_| !planted(Bug::StructuresBelieved)) {
            if let Some(invalid) = no_room(record, block.addr, block.size) {
                note(&mut report, invalid);
            } else if is_header(&record.name) {
                headers.push((block.addr, block.type_id));
            }
            owners.look(&block, record);
        }
        let Some(rules) = rules else { return };
        report.blocks += 1;
        let bytes = look(&block, rules, &mut copy, &mut |invalid| note(&mut report, invalid));
        report.bytes += bytes.unwrap_or(0);
        report.unreadable += u64::from(bytes.is_none());
        if report.blocks.is_multiple_of(BLOCKS)
            && let Some(progress) = progress.as_mut().filter(|_| told.elapsed() >= interval)
        {
            let at = TraceProgress { blocks: report.blocks, superblocks };
            cancelled = matches!(progress(&at), ControlFlow::Break(()));
            told = Instant::now();
        }
    })?;
    report.waiting = owners.judge(heap, &mut |invalid| note(&mut report, invalid));
    let mut structures = Structures::new(values);
    for (number, (header, id)) in headers.into_iter().enumerate() {
        let mut blocks = InMemory { heap, copy: Vec::new() };
        structures.check(header, id, &mut blocks, &mut |invalid| note(&mut report, invalid));
        if (number as u64).is_multiple_of(BLOCKS)
            && let Some(progress) = progress.as_mut().filter(|_| told.elapsed() >= interval)
        {
            let at = TraceProgress { blocks: report.blocks, superblocks };
            cancelled |= matches!(progress(&at), ControlFlow::Break(()));
            told = Instant::now();
        }
        if cancelled {
            break;
        }
    }
    if cancelled { Err(RecoverError::Cancelled) } else { Ok(report) }
}

fn note(report: &mut ValueReport, invalid: InvalidValue) {
    report.invalid += 1;
    if report.findings.len() < LISTED_MAX {
        report.findings.push(invalid);
    }
}

/// A heap whose blocks do not change.
struct InMemory<'h, H> {
    heap: &'h H,
    copy: Vec<u8>,
}

impl<H: Inspect> Blocks for InMemory<'_, H> {
    fn block(&mut self, addr: u64) -> Option<(TypeId, u64)> {
        let block = self.heap.owner(addr).filter(|block| block.addr == addr)?;
        Some((block.type_id, block.size))
    }

    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        let read = copy_into(addr, bytes.len() as u64, &mut self.copy);
        if read {
            bytes.copy_from_slice(&self.copy);
        }
        read
    }
}

fn used(stats: crate::report::HeapStats) -> u64 {
    stats.small_superblocks + stats.large_superblocks
}

/// Looks at one block. Returns how many of its bytes were looked at; `None` if a page of it cannot
/// be had.
fn look(
    block: &BlockInfo,
    rules: &Rules,
    copy: &mut Vec<u8>,
    found: &mut dyn FnMut(InvalidValue),
) -> Option<u64> {
    let size = rules.size();
    let values = if rules.repeats() { block.size / size } else { u64::from(block.size >= size) };
    let step = if rules.repeats() { (STEP / size).max(1) } else { 1 };
    let mut at = 0;
    while at < values {
        let many = step.min(values - at);
        if !copy_into(block.addr + at * size, many * size, copy) {
            return None;
        }
        rules.check(block.addr, at * size, copy, found);
        at += many;
    }
    Some(values * size)
}
