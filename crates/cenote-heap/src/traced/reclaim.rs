//! Reclaims blocks that were allocated and never attached: finds them by tracing beside a running
//! program, and gives them back.
//!
//! A *leak* is a block that is allocated and that no thread can reach: no root leads to it, and no
//! program has its address. It comes from a program that died, or forgot, between an allocation and
//! the store that was to attach it. Recovery by tracing gives leaks back too, but stops all
//! threads. Reclaim runs in slices, with transactions between them.
//!
//! # The promise, and why it holds
//!
//! *Reclaim gives back only leaks of the moment at which it began.* It is a
//! snapshot-at-the-beginning collector (Yuasa): it finds all blocks that could be reached **at the
//! beginning**, no matter what changes meanwhile. It gives back blocks that were allocated at the
//! beginning and are not among those.
//!
//! 1. *Candidates* are blocks whose mark said "allocated" when their puddle was adopted, before
//!    this session allocated in it. A block that is allocated later never is one. A
//!    program can have the address of a candidate that no root leads to: it has kept it in a
//!    variable over close and reopen, or in another store. Such a pointer finds its value until
//!    leaks are condemned, and is an error afterwards.
//! 2. *What is reached* is exact or too much. Every block that could be reached at the beginning is
//!    led to by a chain of pointers as they were then. A pointer of the chain stands in the heap
//!    still, where the tracer reads it; or its block was changed or freed since, and before that
//!    happened the whole block was copied for the tracer (`record`): transactions do that when they
//!    log what stands in a range (`add`, `set`), and when they free a block. The roots themselves
//!    are copied at the beginning. So by induction every block of the chain is found. Pointers that
//!    were moved behind the tracer, or taken into a program's memory and attached elsewhere, make
//!    no difference: they are found where they were.
//! 3. *The end* is a moment at which no block and no copy waits, in this heap or another that may
//!    lead here; [`Marked::changes`] tells whether that was one moment. Later copies can hold
//!    nothing new: every pointer of the snapshot has been followed.
//! 4. *Condemning* takes all candidates that were not reached and whose mark still says
//!    "allocated", in one moment, and only if no copy waits. A candidate that a program freed is
//!    none any more. What is condemned dies as a whole, for running programs and after a crash:
//!    `condemn.rs` has the invariant, the states and the store that commits.
//! 5. *Giving back* frees what is condemned, one block after the other. A run that is broken off
//!    then leaves the rest condemned: the next run of the session, collect, or the next opener
//!    frees it.
//!
//! Reads are never torn in a way that counts: a block that a transaction changes while the tracer
//! reads it has been copied, and what the tracer reads beside that only adds.
//!
//! # What the caller sees to
//!
//! * When [`Reclaim::begin_reclaim`] is called, every allocated block that a thread is going to
//!   use can be reached from a root; no thread allocates or frees during the call. (At the start of
//!   a session, before its first transaction, that is so.)
//! * Code that changes data by other means than transactions calls [`before_change`] before.
//! * No thread changes data while [`Reclaim::mark_slice`] runs: a lock that writers take and it
//!   does. It runs for as long as it is told; that is the longest wait of a writer.
//! * No thread uses the heap while [`Reclaim::condemn`] and [`Reclaim::give_back_slice`] run.
//! * The caller passes the targets of other pools to `mark_slice`; all pools are traced in the same
//!   way.
//!
//! # What it costs
//!
//! Not under way: one relaxed load in a transaction's `add`, nothing in allocation and free. Under
//! way: the first change of a block of the snapshot copies it, at most 64 KiB (all of it if it is
//! freed, or of a type with a filter); further changes and newer blocks cost a look-up under a
//! lock; freeing leaves the fast path. Memory: two bits for each block of the snapshot, one for 16
//! bytes of heap while it is traced, and copies that the tracer has not seen yet, 256 MiB at most:
//! then it gives up, and nothing has changed.

use super::claims::Claim;
use super::condemn::{Condemning, SWEEP_UNKNOWN, addresses};
use super::marks;
use super::mutex::lock;
use super::record::{ReclaimPhase, Recorder, Snapshot};
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use super::trace::{Marking, TraceRoot};
use crate::backing::Backing;
use crate::block::BlockInfo;
use crate::capability::Reclaim;
use crate::error::ReclaimError;
use crate::heap::Heap as _;
use crate::report::Marked;
use crate::trace::Types;
use cenote_layout::heap::mark;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use core::sync::atomic::Ordering;

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub use super::record::{before_change, is_recording};

/// Words of candidates that one slice looks at, at most; 64 blocks each.
const WORDS_A_SLICE: usize = 4096;

impl<G: Backing> Reclaim for TracedHeap<G> {
    fn begin_reclaim(&self, types: Arc<dyn Types + Send + Sync>) {
        let _growth = lock(&self.growth);
        let mut slot = self.reclaim.recorder.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() {
            return;
        }
        let recorder = Arc::new(Recorder::new(types, self.roots_now(), &self.backing.extents()));
        recorder.start();
        for puddle in self.puddles.all() {
            recorder.adopted(&puddle);
        }
        *slot = Some(recorder);
        // No cache has this number: frees go the slow way, where they are recorded.
        self.free_number.store(u64::MAX, Ordering::Release);
    }

    fn is_reclaiming(&self) -> bool {
        self.reclaim.recorder().is_some()
    }

    fn end_reclaim(&self) {
        let mut slot = self.reclaim.recorder.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(recorder) = slot.take() {
            recorder.stop();
            self.free_number.store(self.number.load(Ordering::Relaxed), Ordering::Release);
        }
        drop(slot);
        *lock(&self.reclaim.progress) = None;
    }

    fn prepare_reclaim(&self) -> Result<bool, ReclaimError> {
        if self.members.is_some() {
            return Err(ReclaimError::Shared);
        }
        let recorder = self.recorder()?;
        if lock(&self.reclaim.progress).is_some() {
            return Ok(false);
        }
        if self.attach_next()? {
            return Ok(true);
        }
        let growth = lock(&self.growth);
        let puddles = self.puddles.all();
        drop(growth);
        let state = recorder.lock();
        if let Some((addr, reason)) = state.damage {
            return Err(ReclaimError::Damaged { addr, reason });
        }
        let claims = |base: u64| -> Option<Vec<Claim>> {
            Some(state.puddles.get(&base)?.snapshot.as_ref()?.claims.clone())
        };
        let puddles: Option<Vec<_>> = puddles
            .into_iter()
            .map(|puddle| claims(puddle.base).map(|claims| (puddle, claims)))
            .collect();
        drop(state);
        // All that are attached were adopted since the beginning, or before it.
        let puddles = puddles.ok_or(ReclaimError::NotUnderWay)?;
        let marking = Marking::new(&*recorder.types, &puddles);
        *lock(&self.reclaim.progress) =
            Some(ReclaimPhase { marking, rooted: false, condemned: None, at: (0, 0, 0) });
        Ok(false)
    }

    fn mark_slice(&self, more: &[u64], at_most: Duration) -> Result<Marked, ReclaimError> {
        let until = Instant::now() + at_most;
        let recorder = self.recorder()?;
        let mut progress = lock(&self.reclaim.progress);
        let Some(progress) = &mut *progress else { return Err(ReclaimError::NotUnderWay) };
        let more = more.iter().map(|&to| TraceRoot { at: 0, to, target: TypeId::UNTYPED });
        let mut roots: Vec<TraceRoot> = more.collect();
        if !progress.rooted {
            if let Some(&index) = super::roots::all(self.root_puddle()).1.first() {
                return Err(ReclaimError::Root { index });
            }
            progress.rooted = true;
            if planted(Bug::ReclaimMissesRoot) {
                roots.extend(self.roots_now());
            } else {
                roots.extend(&recorder.roots);
            }
        }
        let marking = &mut progress.marking;
        let foreign = marking.slice(&self.backing, &roots, &mut || recorder.take(), until);
        let foreign = foreign.map_err(|addr| self.backing.unreadable(addr))?;
        let state = recorder.lock();
        if state.overrun {
            return Err(ReclaimError::Overrun);
        }
        if let Some((addr, reason)) = state.damage {
            return Err(ReclaimError::Damaged { addr, reason });
        }
        drop(state);
        let (waiting, changes) = recorder.pending();
        Ok(Marked {
            pending: waiting || progress.marking.is_pending(),
            changes,
            blocks: progress.marking.blocks,
            foreign: foreign.into_iter().collect(),
        })
    }

    fn changes(&self) -> Result<u64, ReclaimError> {
        Ok(self.recorder()?.pending().1)
    }

    fn condemn(&self) -> Result<bool, ReclaimError> {
        if !self.writable {
            return Err(ReclaimError::ReadOnly);
        }
        let recorder = self.recorder()?;
        let mut progress = lock(&self.reclaim.progress);
        let Some(ReclaimPhase { marking, rooted: true, condemned, .. }) = &mut *progress else {
            return Err(ReclaimError::NotUnderWay);
        };
        if condemned.is_some() {
            return Ok(true);
        }
        self.refuse_unfinished(marking, &recorder)?;
        if self.sweep_state().is_none() {
            let addr = self.root_puddle().map_or(0, |puddle| puddle.base);
            return Err(ReclaimError::Damaged { addr, reason: SWEEP_UNKNOWN });
        }
        // What an earlier run of this session has left; every puddle is attached.
        self.finish_sweep();
        let mut state = recorder.lock();
        // A copy that waits may hold the last pointer to what a program has taken over since.
        let unheard = state.is_waiting() && !planted(Bug::CondemnedUnheard);
        if marking.is_pending() || unheard {
            return Ok(false);
        }
        let mut sweep = Condemning::new(self);
        let mut count = 0;
        for known in state.puddles.values_mut() {
            let Some(snapshot) = &mut known.snapshot else { continue };
            let Some(puddle) = self.puddles.get(snapshot.ordinal) else { continue };
            count += condemn_puddle(&mut sweep, marking, snapshot, puddle);
        }
        // What was read from a page that was lost leads nowhere.
        self.backing.usable()?;
        sweep.commit();
        *condemned = Some(count);
        Ok(true)
    }

    fn give_back_slice(
        &self,
        limit: usize,
        dry_run: bool,
        visit: &mut dyn FnMut(BlockInfo),
    ) -> Result<bool, ReclaimError> {
        let recorder = self.recorder()?;
        let mut progress = lock(&self.reclaim.progress);
        let Some(ReclaimPhase { marking, rooted: true, condemned, at }) = &mut *progress else {
            return Err(ReclaimError::NotUnderWay);
        };
        if dry_run {
            self.refuse_unfinished(marking, &recorder)?;
        }
        if condemned.is_some() == dry_run || dry_run && marking.is_pending() {
            return Err(ReclaimError::NotUnderWay);
        }
        let (leaks, more) = self.next_leaks(marking, &recorder, limit, dry_run, at);
        if dry_run {
            for (addr, block) in
                leaks.into_iter().filter_map(|addr| Some((addr, self.find(addr).ok()?)))
            {
                visit(BlockInfo { addr, size: block.size, type_id: block.type_id });
            }
            return Ok(more);
        }
        self.free_condemned(&leaks, &mut |block| {
            *condemned = condemned.map(|left| left.saturating_sub(1));
            visit(block);
        });
        if *condemned == Some(0) {
            self.close_sweep();
        }
        Ok(more)
    }
}

impl<G: Backing> TracedHeap<G> {
    /// The numbered roots that lead somewhere.
    fn roots_now(&self) -> Vec<TraceRoot> {
        super::roots::all(self.root_puddle()).0
    }

    /// A puddle is being attached; growth is locked.
    pub(crate) fn record_adopted(&self, puddle: &super::superblock::PuddleHeap) {
        if let Some(recorder) = self.reclaim.recorder() {
            recorder.adopted(puddle);
        }
    }

    /// The allocated block that begins at `addr` is about to be freed.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_freed(&self, addr: u64) {
        // A block that is free or condemned already stays so: the caller will be refused.
        if let Some(recorder) = self.reclaim.recorder()
            && self.owner(addr).is_some_and(|block| block.addr == addr)
            && !planted(Bug::ReclaimMissesFree)
        {
            recorder.freed(addr);
        }
    }

    fn recorder(&self) -> Result<Arc<Recorder>, ReclaimError> {
        self.reclaim.recorder().ok_or(ReclaimError::NotUnderWay)
    }

    /// Refuses to judge by a marking that cannot have seen everything.
    fn refuse_unfinished(
        &self,
        marking: &Marking,
        recorder: &Recorder,
    ) -> Result<(), ReclaimError> {
        if !marking.is_whole() || recorder.lock().overrun {
            return Err(ReclaimError::NotUnderWay);
        }
        if let Some((ordinal, superblock)) = marking.lost() {
            let addr = self.puddles.get(ordinal).map_or(0, |puddle| puddle.address(superblock));
            return Err(ReclaimError::Damaged { addr, reason: "something leads into it" });
        }
        Ok(())
    }

    /// The next candidates that were not reached, which are none any more unless this is a dry run.
    /// Whether there may be more.
    fn next_leaks(
        &self,
        marking: &Marking,
        recorder: &Recorder,
        limit: usize,
        dry_run: bool,
        at: &mut (u64, usize, usize),
    ) -> (Vec<u64>, bool) {
        let mut leaks = Vec::new();
        let mut left = WORDS_A_SLICE;
        let mut state = recorder.lock();
        for (&base, known) in state.puddles.range_mut(at.0..) {
            let Some(snapshot) = &mut known.snapshot else { continue };
            let Some(puddle) = self.puddles.get(snapshot.ordinal) else { continue };
            if base != at.0 {
                *at = (base, 0, 0);
            }
            for number in at.1..snapshot.claims.len() {
                let skipped = if number == at.1 { at.2 } else { 0 };
                for (index, word) in snapshot.words(number).enumerate().skip(skipped) {
                    if left == 0 || leaks.len() >= limit {
                        *at = (base, number, index);
                        return (leaks, true);
                    }
                    left -= 1;
                    let found = match dry_run {
                        true => leaks_of(marking, snapshot, puddle, (number, index, word)),
                        false => snapshot.allocated(word),
                    };
                    if found == 0 {
                        continue;
                    }
                    if !dry_run {
                        snapshot.forget(word, found);
                    }
                    let words = core::iter::repeat_n(0, index).chain([found]);
                    let class = class_of_claim(snapshot.claims[number]);
                    leaks.extend(addresses(puddle, (number as u32, class), words));
                }
            }
        }
        (leaks, false)
    }
}

fn class_of_claim(claim: Claim) -> u32 {
    match claim {
        Claim::Small { class, .. } => class,
        _ => 0,
    }
}

/// Candidates of a word of a superblock that were not reached. `word` is the snapshot's.
fn leaks_of(
    marking: &Marking,
    snapshot: &Snapshot,
    puddle: &PuddleHeap,
    (number, index, word): (usize, usize, usize),
) -> u64 {
    let candidates = match planted(Bug::ReclaimTakesNew) {
        true => {
            let marks = puddle.class_marks(number as u32, class_of_claim(snapshot.claims[number]));
            let bits = |value| marks::bits(marks, index, value);
            bits(mark::ALLOCATED) | bits(mark::CONDEMNED)
        }
        false => snapshot.allocated(word),
    };
    candidates & !marking.reached(snapshot.ordinal, number as u32, index)
}

/// Condemns the leaks of a puddle; candidates are then those that are condemned. How many they are.
fn condemn_puddle<G: Backing>(
    sweep: &mut Condemning<'_, G>,
    marking: &Marking,
    snapshot: &mut Snapshot,
    puddle: &PuddleHeap,
) -> u64 {
    let mut count = 0;
    for number in 0..snapshot.claims.len() {
        let class = class_of_claim(snapshot.claims[number]);
        for (index, word) in snapshot.words(number).enumerate() {
            let mut leaks = leaks_of(marking, snapshot, puddle, (number, index, word));
            if leaks != 0 && !planted(Bug::GivenBackOneByOne) {
                let all = puddle.class_marks(number as u32, class);
                leaks = sweep.condemn(&all[index * 64..all.len().min(index * 64 + 64)], leaks);
            }
            count += u64::from(leaks.count_ones());
            snapshot.set(word, leaks);
        }
    }
    count
}
