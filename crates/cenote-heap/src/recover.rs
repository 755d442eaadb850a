//! Recovery, check, walk and counts: whatever looks at the whole heap.
//!
//! Recovery replaces every mark by what tracing found, and then builds the volatile data from scratch, as at open. Marks are written only
//! after the whole heap was traced; each word is written independently and nothing is read back, so a recovery that stops anywhere is
//! repeated by the next. Descriptors change in one case: a taking that the crash interrupted is made free again.

use crate::bin::{Bin, State};
use crate::class::{blocks_per_superblock, class_size};
use crate::error::RecoverError;
use crate::ground::Ground;
use crate::grow::{Holds, adopt, contents, used_blocks};
use crate::heap::BlockInfo;
use crate::lock::Guard;
use crate::report::{BinStats, Damage, HeapReport, HeapStats, LISTED_MAX, RecoveryReport, TraceCounts};
use crate::superblock::{Claim, PLACE_NONE, PuddleHeap, Use, WORDS, classify};
use crate::trace::{Tracer, Types, Worker};
use crate::traced::{TracedHeap, lock};
use cenote_layout::heap::{Descriptor, ROOT_COUNT, SUPERBLOCK_SIZE};
use cenote_layout::id::TypeId;
use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError, RwLockWriteGuard};
use std::time::Instant;

/// Everything locked: no allocation, no free, no growth.
struct Stopped<'a> {
    bins: HashMap<(TypeId, u8), (&'a Bin, Guard<'a, State>)>,
    table: MutexGuard<'a, HashMap<(TypeId, u8), Box<Bin>>>,
    _growth: MutexGuard<'a, ()>,
    _transit: RwLockWriteGuard<'a, ()>,
}

impl<'a> Stopped<'a> {
    fn add(&mut self, type_id: TypeId, class: u8) {
        let bin = self.table.entry((type_id, class)).or_insert_with(|| Box::new(Bin::new(type_id, class)));
        self.bins.entry((type_id, class)).or_insert_with(|| {
            // SAFETY: bins are boxed and stay until the heap is dropped, which outlives `'a`.
            let bin: &'a Bin = unsafe { &*core::ptr::from_ref::<Bin>(bin) };
            (bin, bin.lock())
        });
    }
}

impl<G: Ground> TracedHeap<G> {
    fn stop(&self) -> Stopped<'_> {
        let transit = self.transit.write().unwrap_or_else(PoisonError::into_inner);
        let growth = lock(&self.growth);
        let table = lock(&self.bins);
        let keys: Vec<_> = table.keys().copied().collect();
        let mut stopped = Stopped { bins: HashMap::new(), table, _growth: growth, _transit: transit };
        keys.into_iter().for_each(|(type_id, class)| stopped.add(type_id, class));
        stopped
    }

    /// The attached puddles, by ordinal.
    fn attached(&self) -> Vec<Arc<PuddleHeap>> {
        lock(&self.space).puddles.iter().map(|a| Arc::clone(&a.puddle)).collect()
    }

    fn trace(&self, tracer: &Tracer<'_, G>, roots: &[u64]) -> TraceCounts {
        self.trace_with(tracer.worker(), tracer, roots).0
    }

    fn trace_with(
        &self,
        mut worker: Worker<'_, '_, G>,
        tracer: &Tracer<'_, G>,
        roots: &[u64],
    ) -> (TraceCounts, BTreeSet<u64>) {
        // The root puddle is looked up once: there are a thousand roots, and most are null.
        let puddle = self.root_puddle();
        for slot in
            puddle.iter().flat_map(|puddle| (0..ROOT_COUNT as u16).filter_map(|index| puddle.root(index)))
        {
            let root = crate::roots::load(slot);
            worker.root(slot.as_ptr().expose_provenance() as u64, root.addr, root.type_id);
        }
        for &addr in roots {
            worker.root(0, addr, TypeId::UNTYPED);
        }
        worker.run();
        let foreign = worker.foreign.take().unwrap_or_default();
        let mut counts = worker.finish();
        counts.unknown_types = tracer.unknown_types();
        (counts, foreign)
    }

    /// The addresses in other pools that something leads to which can be reached from this pool's roots and from `roots`. Changes nothing, and believes no
    /// mark. A pool whose values others point to is recovered with these as roots ([`Heap::recover`](crate::Heap::recover)): what only another pool
    /// leads to is allocated as well. The other pools must be open, or their addresses are not known to be theirs.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    pub fn foreign_pointers(&self, types: &dyn Types, roots: &[u64]) -> Result<BTreeSet<u64>, RecoverError> {
        self.attach_all()?;
        let stopped = self.stop();
        let puddles = self.attached();
        let tracer = Tracer::new(&self.ground, types, &puddles);
        let mut worker = tracer.worker();
        worker.foreign = Some(BTreeSet::new());
        let (_, foreign) = self.trace_with(worker, &tracer, roots);
        drop(stopped);
        Ok(foreign)
    }

    pub(crate) fn recover_heap(
        &self,
        types: &dyn Types,
        roots: &[u64],
    ) -> Result<RecoveryReport, RecoverError> {
        let began = Instant::now();
        if !self.writable {
            return Err(RecoverError::ReadOnly);
        }
        self.attach_all()?;
        let mut stopped = self.stop();
        let puddles = self.attached();
        let tracer = Tracer::new(&self.ground, types, &puddles);
        let mut report = RecoveryReport { trace: self.trace(&tracer, roots), ..RecoveryReport::default() };
        for (ordinal, puddle) in puddles.iter().enumerate() {
            for (number, claim) in tracer.claims(ordinal).iter().enumerate() {
                self.settle(&tracer, ordinal, puddle, number as u32, *claim, &mut report);
            }
        }
        if report.interrupted > 0 {
            self.ground.fence();
        }
        drop(tracer);
        for (_, state) in stopped.bins.values_mut() {
            state.reset();
        }
        for (ordinal, puddle) in puddles.iter().enumerate() {
            let free = adopt(puddle, &mut |type_id, class, fill| {
                stopped.add(type_id, class);
                if let Some((bin, state)) = stopped.bins.get_mut(&(type_id, class)) {
                    fill(bin, state);
                }
            });
            lock(&self.space).replace(ordinal, free);
        }
        report.took = began.elapsed();
        Ok(report)
    }

    /// Makes one superblock's marks what tracing found.
    fn settle(
        &self,
        tracer: &Tracer<'_, G>,
        ordinal: usize,
        puddle: &PuddleHeap,
        number: u32,
        claim: Claim,
        report: &mut RecoveryReport,
    ) {
        let blocks = match claim {
            Claim::Metadata => return,
            Claim::Small { class, .. } => blocks_per_superblock(class),
            Claim::Large { .. } => 1,
            Claim::Free | Claim::Stale => 0,
            Claim::Tail { distance, valid } => {
                let reached = tracer.reached(ordinal, number - distance, 0) & 1 != 0;
                if !valid && reached {
                    report.damage.push(damage(puddle, number, "checksum does not fit", 0, false));
                }
                0
            }
            Claim::Invalid(reason) => {
                let pointers = tracer.lost(ordinal, number);
                if pointers > 0 {
                    // A mark keeps it from being taken for an interrupted taking later.
                    puddle.bitmap_word(number, 0).fetch_or(1, Ordering::Relaxed);
                    report.damage.push(damage(puddle, number, reason, pointers, true));
                    return;
                }
                puddle.write_descriptor(number, &Descriptor::FREE);
                // SAFETY: a descriptor of the mapping.
                unsafe {
                    self.ground
                        .flush(puddle.descriptor_words(number).as_ptr().cast(), size_of::<Descriptor>());
                }
                report.interrupted += 1;
                puddle.clear_bitmap(number);
                return;
            }
        };
        for w in 0..WORDS {
            let word = puddle.bitmap_word(number, w);
            let (old, new) = (word.load(Ordering::Relaxed), tracer.reached(ordinal, number, w));
            if old != new {
                // Marks beyond the last block are no blocks.
                let real = u64::from(blocks).saturating_sub(w as u64 * 64);
                let mask = if real >= 64 { u64::MAX } else { (1 << real) - 1 };
                report.freed_blocks += u64::from((old & !new & mask).count_ones());
                report.revived_blocks += u64::from((new & !old & mask).count_ones());
                word.store(new, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn check_heap(&self, types: Option<&dyn Types>) -> Result<HeapReport, RecoverError> {
        self.attach_all()?;
        let stopped = self.stop();
        let puddles = self.attached();
        let mut report = HeapReport { stats: count(&puddles), ..HeapReport::default() };
        let tracer = types.map(|types| Tracer::new(&self.ground, types, &puddles));
        report.trace = tracer.as_ref().map(|tracer| self.trace(tracer, &[]));
        for (ordinal, puddle) in puddles.iter().enumerate() {
            let holds = contents(puddle);
            for (number, claim) in classify(puddle).into_iter().enumerate() {
                let (reason, lost) = match (claim, holds[number]) {
                    (_, Holds::Damaged(reason)) => (reason, true),
                    (Claim::Invalid(reason), _) => (reason, false),
                    (Claim::Tail { valid: false, .. }, Holds::Tail) => ("checksum does not fit", false),
                    _ => continue,
                };
                let pointers = tracer.as_ref().map_or(0, |t| t.lost(ordinal, number as u32));
                report.damage.push(damage(puddle, number as u32, reason, pointers, lost));
            }
            report.miscounted.extend(miscounted(puddle));
            if let Some(tracer) = &tracer {
                compare(tracer, ordinal, puddle, &holds, &mut report);
            }
        }
        drop(stopped);
        Ok(report)
    }

    pub(crate) fn count(&self) -> Result<HeapStats, RecoverError> {
        self.attach_all()?;
        Ok(count(&self.attached()))
    }

    pub(crate) fn walk_blocks(&self, visit: &mut dyn FnMut(BlockInfo)) -> Result<(), RecoverError> {
        self.attach_all()?;
        for puddle in self.attached() {
            for (number, holds) in contents(&puddle).into_iter().enumerate() {
                let words = |w| puddle.bitmap_word(number as u32, w).load(Ordering::Relaxed);
                each_block(&puddle, number as u32, holds, &words, visit);
            }
        }
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
    let base = puddle.entries[number as usize].base;
    match holds {
        Holds::Small { class, type_id, .. } => {
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
        Holds::Large { span, type_id } if words(0) & 1 != 0 => {
            visit(BlockInfo { addr: base, size: u64::from(span) * SUPERBLOCK_SIZE, type_id });
        }
        _ => {}
    }
}

/// Compares marks with what was reached.
fn compare<G: Ground>(
    tracer: &Tracer<'_, G>,
    ordinal: usize,
    puddle: &PuddleHeap,
    holds: &[Holds],
    report: &mut HeapReport,
) {
    for (number, claim) in tracer.claims(ordinal).iter().enumerate() {
        // Also superblocks without a mark: what is reached in them is not allocated.
        let as_claimed = match *claim {
            Claim::Small { class, type_id } => Holds::Small { class, type_id, used: 0 },
            Claim::Large { span, type_id } => Holds::Large { span, type_id },
            _ => continue,
        };
        if matches!(holds[number], Holds::Damaged(_)) {
            continue;
        }
        let marked = |w| puddle.bitmap_word(number as u32, w).load(Ordering::Relaxed);
        let reached = |w| tracer.reached(ordinal, number as u32, w);
        each_block(puddle, number as u32, as_claimed, &|w| marked(w) & !reached(w), &mut |block| {
            report.leaked_blocks += 1;
            report.leaked_bytes += block.size;
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

/// Small superblocks whose count differs from their marks, by address.
fn miscounted(puddle: &PuddleHeap) -> Vec<u64> {
    let differs = |number: usize| {
        let entry = &puddle.entries[number];
        // SAFETY: bins live as long as the heap, whose puddle this is.
        let Some(bin) = (unsafe { entry.bin().as_ref() }) else { return false };
        let used = used_blocks(puddle, number as u32, u32::from(bin.class));
        let marked_and_held = used + u32::from(entry.held.load(Ordering::Relaxed));
        // A superblock with room that no list has is memory that nobody gets.
        let unlisted = marked_and_held < bin.blocks && entry.place.load(Ordering::Relaxed) == PLACE_NONE;
        entry.use_() == Use::Small
            && (marked_and_held != u32::from(entry.used.load(Ordering::Relaxed)) || unlisted)
    };
    (0..puddle.entries.len()).filter(|&i| differs(i)).map(|i| puddle.entries[i].base).collect()
}

fn damage(puddle: &PuddleHeap, superblock: u32, reason: &'static str, pointers: u64, lost: bool) -> Damage {
    let addr = puddle.entries[superblock as usize].base;
    Damage { puddle: puddle.index, superblock, addr, reason, pointers, lost }
}

fn count(puddles: &[Arc<PuddleHeap>]) -> HeapStats {
    let mut stats = HeapStats::default();
    let mut bins: BTreeMap<(TypeId, u32), BinStats> = BTreeMap::new();
    for puddle in puddles {
        stats.puddles += 1;
        stats.bytes += puddle.size;
        for holds in contents(puddle) {
            stats.superblocks += 1;
            let (type_id, class, superblocks, blocks, bytes) = match holds {
                Holds::Free => {
                    stats.free_superblocks += 1;
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
                Holds::Small { class, type_id, used } => {
                    stats.small_superblocks += 1;
                    (type_id, class, 1, u64::from(used), u64::from(used) * class_size(class))
                }
                Holds::Large { span, type_id } => {
                    stats.large_superblocks += u64::from(span);
                    stats.large_blocks += 1;
                    (type_id, 0, u64::from(span), 1, u64::from(span) * SUPERBLOCK_SIZE)
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
