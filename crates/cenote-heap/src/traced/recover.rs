//! Recovery, check, walk and counts: the operations that look at the whole heap.
//!
//! Recovery replaces every mark by what tracing found, and then adopts every puddle anew, as at
//! open. Marks are written only after the whole heap was traced. Unreached blocks are condemned
//! first, all of them ([`super::condemn`]): a recovery that stops anywhere has freed all of them or
//! none, so no opener has to repeat it. After a loss of power blocks are revived too; there the
//! caller's record makes the next opener trace again. Descriptors change in one case: a taking that
//! the crash interrupted is made free again. All caches are dead afterwards: the heap gets another
//! number, under which no thread has one.
//!
//! Where marks are believed ([`TraceOptions::believe_marks`]), a block is allocated if it is
//! reached *and* marked. So no dangling pointer makes a value of a free block. Blocks that a free
//! block's bytes lead to are reached all the same: that only keeps what is allocated anyway. Marks
//! that were cleared are durable before recovery returns, so before their places are given out: a
//! later loss of power brings none of them back, although a program may know the address and have
//! put it into its data.
//!
//! *Illegal marks* ([`super::adopt`], quarantine) are repaired here: such a block is allocated if
//! it is reached and, where marks are believed, most bits of its mark say so. *A damaged root* may
//! have led to any block: then no block that was allocated is made free. So it is where another
//! pool cannot be looked at ([`TraceOptions::keep_unreached`]).
//!
//! Only growth stops meanwhile; other threads go on. While they allocate and free, check, walk and
//! counts may see a block or not. Recovery is for a heap that no other thread uses: where processes
//! share a heap, it is refused as long as another one is there.

use super::adopt::{Adopted, Holds, adopt, contents};
use super::anchor;
use super::claims::{Claim, classify};
use super::condemn::SWEEP_UNKNOWN;
use super::held::HeldHeap;
use super::marks;
use super::mutex::lock;
use super::occupancy::cached;
use super::roots;
use super::state::{TracedHeap, next_number};
use super::superblock::PuddleHeap;
use super::survey;
use super::trace::{TraceRoot, Traced, Tracer};
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::capability::{Reclaim as _, Trace};
use crate::class::{blocks_per_superblock, class_size};
use crate::error::RecoverError;
use crate::heap::Inspect;
use crate::report::{BinStats, Damage, HeapReport, HeapStats, LISTED_MAX, RecoveryReport};
use crate::trace::{TraceOptions, Types};
use cenote_layout::heap::{Descriptor, mark};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::sync::atomic::{AtomicU8, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// A superblock.
#[derive(Clone, Copy)]
struct At<'a> {
    /// Which of the puddles that are traced.
    ordinal: usize,
    puddle: &'a PuddleHeap,
    /// Which of its superblocks.
    number: u32,
}

impl<G: Backing> Inspect for TracedHeap<G> {
    fn walk(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        self.attach_all()?;
        for puddle in self.puddles.all() {
            for (number, holds) in contents(&puddle).into_iter().enumerate() {
                each_block(
                    &puddle,
                    number as u32,
                    holds,
                    &|w| marked(&puddle, number, holds, w),
                    visit,
                );
            }
        }
        Ok(())
    }

    fn check_from(
        &self,
        types: Option<&dyn Types>,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<HeapReport, RecoverError> {
        self.attach_all()?;
        let growth = lock(&self.growth);
        let held = HeldHeap::new(&self.growth);
        let puddles = self.puddles.all();
        let mut report = HeapReport { stats: count(&puddles), ..HeapReport::default() };
        report.damaged_roots = roots::all(self.root_puddle()).1;
        let tracer = types.map(|types| Tracer::new(&self.backing, types, &puddles));
        if let Some(tracer) = &tracer {
            let traced = self.trace(tracer, roots, false, options)?;
            report.trace = Some(traced.counts);
        }
        let mut leaks = Vec::new();
        if let (Some(root), None) = (self.root_puddle(), self.sweep_state()) {
            report.damage.push(Damage::harmless(root, 0, SWEEP_UNKNOWN, 0));
        }
        for (ordinal, puddle) in puddles.iter().enumerate() {
            let holds = contents(puddle);
            for (number, claim) in classify(puddle).into_iter().enumerate() {
                let at = number as u32;
                let pointers = || tracer.as_ref().map_or(0, |t| t.lost(ordinal, at));
                report.damage.push(match (claim, holds[number]) {
                    (_, Holds::Damaged(reason)) => Damage::lost(puddle, at, reason, pointers()),
                    (_, Holds::Quarantined { class, survey, .. }) => {
                        Damage::quarantined(puddle, at, class, survey)
                    }
                    (Claim::Invalid(reason), _) => Damage::harmless(puddle, at, reason, pointers()),
                    (Claim::Tail { valid: false, .. }, Holds::Tail) => {
                        Damage::harmless(puddle, at, "checksum does not fit", pointers())
                    }
                    _ => continue,
                });
            }
            report.miscounted.extend(miscounted(puddle));
            if let Some(tracer) = &tracer {
                compare(tracer, ordinal, puddle, &holds, &mut report, &mut leaks);
            }
        }
        if let Some(tracer) = tracer.filter(|_| !leaks.is_empty()) {
            self.check_leaks(&tracer, &puddles, &leaks, &mut report)?;
        }
        drop(held);
        drop(growth);
        Ok(report)
    }

    fn foreign_pointers(
        &self,
        types: &dyn Types,
        roots: &[u64],
    ) -> Result<BTreeSet<u64>, RecoverError> {
        self.attach_all()?;
        let growth = lock(&self.growth);
        let held = HeldHeap::new(&self.growth);
        let puddles = self.puddles.all();
        let tracer = Tracer::new(&self.backing, types, &puddles);
        let traced = self.trace(&tracer, roots, true, TraceOptions::default())?;
        drop(held);
        drop(growth);
        Ok(traced.foreign)
    }

    fn stats(&self) -> Result<HeapStats, RecoverError> {
        self.attach_all()?;
        Ok(count(&self.puddles.all()))
    }
}

impl<G: Backing> Trace for TracedHeap<G> {
    fn recover_with(
        &self,
        types: &dyn Types,
        roots: &[u64],
        options: TraceOptions<'_>,
    ) -> Result<RecoveryReport, RecoverError> {
        let began = Instant::now();
        if !self.writable {
            return Err(RecoverError::ReadOnly);
        }
        // What it has seen is no longer so.
        self.end_reclaim();
        self.attach_all()?;
        if options.believe_marks && self.sweep_state().is_none() {
            let addr = self.root_puddle().map_or(0, |puddle| puddle.base);
            return Err(RecoverError::Sweep { addr });
        }
        // No member joins meanwhile.
        let _alone = self.turn_alone()?;
        let _trimming = lock(&self.trimming);
        let _held = (lock(&self.growth), HeldHeap::new(&self.growth));
        let puddles = self.puddles.all();
        let tracer = Tracer::new(&self.backing, types, &puddles);
        let believe = options.believe_marks && !planted(Bug::TraceBelievesReach);
        let keep = options.keep_unreached;
        // Nothing is changed by what a page said that could not be had.
        let traced = self.trace(&tracer, roots, false, options)?;
        self.backing.usable()?;
        let (trace, damaged_roots) = (traced.counts, traced.damaged_roots);
        let mut report = RecoveryReport { trace, damaged_roots, ..RecoveryReport::default() };
        // What an earlier sweep has left is decided first, also if roots are damaged.
        self.decide_all();
        let keep = keep || !report.damaged_roots.is_empty();
        self.condemn_unreached(&tracer, &puddles, keep)?;
        for (ordinal, puddle) in puddles.iter().enumerate() {
            for (number, claim) in tracer.claims(ordinal).iter().enumerate() {
                let at = At { ordinal, puddle, number: number as u32 };
                self.settle(&tracer, at, *claim, (believe, keep), &mut report);
            }
        }
        if report.interrupted > 0 || report.freed_blocks > 0 || report.repaired_marks > 0 {
            self.backing.fence();
        }
        self.close_sweep();
        drop(tracer);
        reach(Step::AllRecovered);
        // Blocks that were in caches, or held, are computed anew: all caches are dead from here on.
        let number = next_number();
        self.number.store(number, Ordering::Release);
        self.free_number.store(number, Ordering::Release);
        self.shared.renew(number);
        self.reset_lists();
        lock(&self.damage).clear();
        for puddle in &puddles {
            let Adopted { listed, damage } = adopt(puddle);
            lock(&self.damage).extend(damage);
            if let Some(members) = &self.members {
                puddle.set_session(members.session);
            }
            self.publish_listed(puddle, &listed);
        }
        self.forget_dead();
        report.took = began.elapsed();
        Ok(report)
    }
}

impl<G: Backing> TracedHeap<G> {
    /// Traces from the numbered roots and from `roots`.
    pub(crate) fn trace(
        &self,
        tracer: &Tracer<'_, G>,
        roots: &[u64],
        foreign: bool,
        options: TraceOptions<'_>,
    ) -> Result<Traced, RecoverError> {
        let (mut all, damaged) = crate::traced::roots::all(self.root_puddle());
        all.extend(roots.iter().map(|&to| TraceRoot { at: 0, to, target: TypeId::UNTYPED }));
        let mut traced = tracer.run(&all, foreign, options)?;
        traced.damaged_roots = damaged;
        Ok(traced)
    }

    /// Makes one superblock's marks what tracing found; where marks are to be believed, what is
    /// reached and marked; where all is kept, what was allocated stays so.
    fn settle(
        &self,
        tracer: &Tracer<'_, G>,
        At { ordinal, puddle, number }: At<'_>,
        claim: Claim,
        (believe, keep): (bool, bool),
        report: &mut RecoveryReport,
    ) {
        let class = match claim {
            Claim::Metadata => return,
            Claim::Small { class, .. } => Some(class),
            Claim::Large { .. } => Some(0),
            Claim::Free | Claim::Stale => None,
            Claim::Tail { distance, valid } => {
                let reached = tracer.reached(ordinal, number - distance, 0) & 1 != 0;
                if !valid && reached {
                    report.damage.push(Damage::harmless(
                        puddle,
                        number,
                        "checksum does not fit",
                        0,
                    ));
                }
                None
            }
            Claim::Invalid(reason) => {
                let pointers = tracer.lost(ordinal, number);
                if pointers > 0 || (keep && puddle.has_marks(number)) {
                    // A mark keeps it from being taken for an interrupted taking later.
                    marks::write(&puddle.outer_marks(number)[0], mark::ALLOCATED);
                    report.damage.push(Damage::lost(puddle, number, reason, pointers));
                    return;
                }
                // What it was before is not known: perhaps a hole.
                puddle.write_descriptor(number, &Descriptor::hole());
                // SAFETY: a descriptor of the mapping.
                unsafe {
                    self.backing.flush(
                        core::ptr::from_ref(puddle.line(number)).cast(),
                        size_of::<Descriptor>(),
                    );
                }
                report.interrupted += 1;
                puddle.clear_outer_marks(number);
                return;
            }
        };
        match class {
            Some(class) => {
                let reached = |word| tracer.reached(ordinal, number, word);
                self.settle_marks(
                    puddle.class_marks(number, class),
                    reached,
                    (believe, keep),
                    report,
                );
            }
            None => puddle.clear_outer_marks(number),
        }
    }

    /// Makes all marks of a superblock what tracing found: `reached` has a bit for each of 64.
    fn settle_marks(
        &self,
        all: &[AtomicU8],
        reached: impl Fn(usize) -> u64,
        (believe, keep): (bool, bool),
        report: &mut RecoveryReport,
    ) {
        for (w, marks) in all.chunks(64).enumerate() {
            let (old, illegal) = survey::allocated(all, w);
            let condemned = marks::bits(all, w, mark::CONDEMNED);
            let reached = reached(w);
            let keep = keep || planted(Bug::RecoveryKeepsMarks);
            // Without a sweep of its own it finds condemned marks only where the state cannot be
            // read.
            let new = if keep { reached | old | condemned } else { reached };
            let new = if believe {
                report.dangling_blocks += u64::from((new & !old).count_ones());
                new & old
            } else {
                new
            };
            report.kept_blocks += u64::from((new & !reached).count_ones());
            report.repaired_marks += u64::from(illegal);
            if old != new || illegal != 0 || condemned != 0 {
                report.freed_blocks += u64::from(((old | condemned) & !new).count_ones());
                report.revived_blocks += u64::from((new & !(old | condemned)).count_ones());
                for (k, byte) in marks.iter().enumerate() {
                    let reached = new >> k & 1 != 0;
                    marks::write(byte, if reached { mark::ALLOCATED } else { mark::FREE });
                }
                if !planted(Bug::TraceMarkNotFlushed) {
                    // SAFETY: marks in the mapping of a writable pool.
                    unsafe { self.backing.flush(marks.as_ptr().cast(), marks.len()) };
                }
                reach(Step::MarksRecovered);
            }
        }
    }

    /// Verifies the links of leaks: a program may have kept the address of one, and links inside a
    /// collection are followed without a check ([`super::condemn`]).
    fn check_leaks(
        &self,
        tracer: &Tracer<'_, G>,
        puddles: &[Arc<PuddleHeap>],
        leaks: &[u64],
        report: &mut HeapReport,
    ) -> Result<(), RecoverError> {
        let unallocated = |report: &mut dyn FnMut(BlockInfo)| {
            for (ordinal, puddle) in puddles.iter().enumerate() {
                unallocated(tracer, ordinal, puddle, report);
            }
        };
        // Those that something else leads to are counted already.
        let mut known = BTreeSet::new();
        unallocated(&mut |block| {
            known.insert(block.addr);
        });
        report.leak_trace = Some(self.trace(tracer, leaks, false, TraceOptions::default())?.counts);
        unallocated(&mut |block| {
            if !known.contains(&block.addr) {
                report.dangling_blocks += 1;
                if report.dangling.len() < LISTED_MAX {
                    report.dangling.push(block);
                }
            }
        });
        Ok(())
    }
}

/// Calls `visit` for the blocks of a superblock whose bits are set in `words`.
fn each_block(
    puddle: &PuddleHeap,
    number: u32,
    holds: Holds,
    words: &dyn Fn(usize) -> u64,
    visit: &mut dyn FnMut(BlockInfo),
) {
    let base = puddle.address(number);
    match holds {
        Holds::Small { class, type_id, .. } | Holds::Quarantined { class, type_id, .. } => {
            let (blocks, size) = (blocks_per_superblock(class), class_size(class));
            for w in 0..blocks.div_ceil(64) as usize {
                let mut word = words(w);
                while word != 0 {
                    let index = w as u64 * 64 + u64::from(word.trailing_zeros());
                    word &= word - 1;
                    if index < u64::from(blocks) {
                        visit(BlockInfo { addr: base + index * size, size, type_id });
                    }
                }
            }
        }
        Holds::Large { bytes, type_id, .. } if words(0) & 1 != 0 => {
            visit(BlockInfo { addr: base, size: bytes, type_id });
        }
        _ => {}
    }
}

/// Bit `k` for block `64 * word + k` of a superblock, if it is allocated.
fn marked(puddle: &PuddleHeap, number: usize, holds: Holds, word: usize) -> u64 {
    let class = match holds {
        Holds::Small { class, .. } | Holds::Quarantined { class, .. } => class,
        _ => 0,
    };
    let marks = puddle.class_marks(number as u32, class);
    let illegal = match holds {
        // Live to a writer: what is in them is looked at, too.
        Holds::Quarantined { .. } => live_illegal(marks, word),
        _ => 0,
    };
    puddle.allocated_bits(marks, word) | illegal
}

/// Bit `k` for block `64 * word + k` of a quarantined superblock, if its mark is illegal and the
/// block is live.
fn live_illegal(marks: &[AtomicU8], word: usize) -> u64 {
    let some = marks.iter().skip(64 * word).take(64).zip(0..);
    some.fold(0, |bits, (mark, k)| {
        let mark = mark.load(Ordering::Relaxed);
        bits | u64::from(mark::is_illegal(mark) && mark::is_live(mark)) << k
    })
}

/// Calls `visit` for the blocks of a puddle that were reached and are not allocated.
fn unallocated<G: Backing>(
    tracer: &Tracer<'_, G>,
    ordinal: usize,
    puddle: &PuddleHeap,
    visit: &mut dyn FnMut(BlockInfo),
) {
    for (number, claim) in tracer.claims(ordinal).iter().enumerate() {
        // Also superblocks without a mark: what is reached in them is not allocated.
        let Some(holds) = as_claimed(*claim) else { continue };
        let reached = |w| tracer.reached(ordinal, number as u32, w);
        let free = |w| reached(w) & !marked(puddle, number, holds, w);
        each_block(puddle, number as u32, holds, &free, visit);
    }
}

/// What a superblock holds, if its descriptor is right.
fn as_claimed(claim: Claim) -> Option<Holds> {
    match claim {
        Claim::Small { class, type_id } => Some(Holds::Small { class, type_id, used: 0 }),
        Claim::Large { span, bytes, type_id } => Some(Holds::Large { span, bytes, type_id }),
        _ => None,
    }
}

/// Compares marks with what was reached. Addresses of all leaks are added to `leaks`.
fn compare<G: Backing>(
    tracer: &Tracer<'_, G>,
    ordinal: usize,
    puddle: &PuddleHeap,
    holds: &[Holds],
    report: &mut HeapReport,
    leaks: &mut Vec<u64>,
) {
    for (number, claim) in tracer.claims(ordinal).iter().enumerate() {
        // Also superblocks without a mark: what is reached in them is not allocated.
        let Some(as_claimed) = as_claimed(*claim) else { continue };
        if matches!(holds[number], Holds::Damaged(_)) {
            continue;
        }
        let marked = |w| marked(puddle, number, as_claimed, w);
        let reached = |w| tracer.reached(ordinal, number as u32, w);
        each_block(puddle, number as u32, as_claimed, &|w| marked(w) & !reached(w), &mut |block| {
            report.leaked_blocks += 1;
            report.leaked_bytes += block.size;
            leaks.push(block.addr);
            if report.leaks.len() < LISTED_MAX {
                report.leaks.push(block);
            }
        });
        each_block(puddle, number as u32, as_claimed, &|w| reached(w) & !marked(w), &mut |block| {
            report.unallocated_blocks += 1;
            if report.unallocated.len() < LISTED_MAX {
                report.unallocated.push(block);
            }
        });
    }
}

/// Small superblocks with free blocks that no list has, and free ones with marks, by address.
fn miscounted(puddle: &PuddleHeap) -> Vec<u64> {
    if !puddle.writable {
        return Vec::new();
    }
    let differs = |number: u32| {
        let line = puddle.line(number);
        let before = line.anchor.load(Ordering::Acquire);
        let wrong = match anchor::state(before) {
            anchor::FULL => marks::count(puddle.class_marks(number, line.class()), mark::FREE) != 0,
            anchor::FREE => !marks::all(puddle.outer_marks(number), mark::FREE),
            _ => false,
        };
        // It may have changed hands meanwhile.
        wrong && line.anchor.load(Ordering::Acquire) == before
    };
    (0..puddle.superblocks()).filter(|&i| differs(i)).map(|i| puddle.address(i)).collect()
}

fn count(puddles: &[Arc<PuddleHeap>]) -> HeapStats {
    let mut stats = HeapStats::default();
    let mut bins: BTreeMap<(TypeId, u32), BinStats> = BTreeMap::new();
    for puddle in puddles {
        stats.puddles += 1;
        stats.bytes += puddle.size;
        for (number, holds) in contents(puddle).into_iter().enumerate() {
            stats.superblocks += 1;
            let blocks = cached(puddle, number as u32);
            stats.cached_blocks += blocks;
            stats.cached_bytes += blocks * puddle.line(number as u32).geometry().size();
            let (type_id, class, superblocks, blocks, bytes) = match holds {
                Holds::Free => {
                    stats.free_superblocks += 1;
                    stats.hole_superblocks += u64::from(puddle.may_be_hole(number as u32));
                    continue;
                }
                Holds::Metadata => {
                    stats.metadata_superblocks += 1;
                    continue;
                }
                Holds::Damaged(_) => {
                    stats.damaged_superblocks += 1;
                    continue;
                }
                Holds::Tail => continue,
                Holds::Quarantined { class, type_id, survey } => {
                    stats.damaged_superblocks += 1;
                    (
                        type_id,
                        class,
                        1,
                        u64::from(survey.used),
                        u64::from(survey.used) * class_size(class),
                    )
                }
                Holds::Small { class, type_id, used } => {
                    stats.small_superblocks += 1;
                    (type_id, class, 1, u64::from(used), u64::from(used) * class_size(class))
                }
                Holds::Large { span, bytes, type_id } => {
                    stats.large_superblocks += u64::from(span);
                    stats.large_blocks += 1;
                    (type_id, 0, u64::from(span), 1, bytes)
                }
            };
            stats.blocks += blocks;
            stats.block_bytes += bytes;
            let bin = bins.entry((type_id, class)).or_insert(BinStats {
                type_id,
                class,
                block_size: class_size(class),
                superblocks: 0,
                blocks: 0,
                capacity: 0,
            });
            bin.superblocks += superblocks;
            bin.blocks += blocks;
            bin.capacity += u64::from(blocks_per_superblock(class)).max(u64::from(class == 0));
        }
    }
    stats.bins = bins.into_values().collect();
    stats
}
