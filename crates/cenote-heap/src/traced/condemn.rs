//! Condemns leaks: blocks that no root leads to die together, at one store.
//!
//! # The invariant
//!
//! **What is live leads to what is live.** *If safe code finds a block live, then every block that
//! it leads to by a link which is followed without a check is live too, and is of the type that the
//! link says.* It holds whenever safe code can read the pool, and for what the next opener makes of
//! the marks after any crash. Links that are followed without a check lead from a collection's
//! header or node to a node of the same collection, so within one pool (`cenote-collections`). All
//! other pointers are checked where they are followed: one that dangles is an error.
//!
//! Transactions keep the invariant by themselves: what a transaction frees dies at its commit, and
//! it has taken the links out. This module keeps it for blocks that are given back because no root
//! leads to them: by reclaim ([`super::reclaim`]) and by collect ([`super::recover`]). A program
//! may have their addresses all the same: a handle is `Copy`, and lies in a variable over close and
//! reopen, or in another store. So they may not die one by one.
//!
//! 1. *The set is closed.* No live block outside of it leads into it by such a link. Collect traces
//!    the heap as it is, with all threads stopped: what it reached leads to blocks that it reached.
//!    Reclaim traces what was there at its beginning, and all that a transaction has changed since,
//!    as it was before the change. A collection that takes a node over changes a block that led to
//!    the node, so the node was reached ([`super::reclaim`], 2). Copies that the tracer has not
//!    seen keep reclaim from condemning.
//! 2. *It dies at one moment.* The whole set is condemned while no view and no transaction of the
//!    pool is open. [`mark::CONDEMNED`] is not live to any program, so each of them, in every
//!    thread, finds all of the set live before that, and none of it after.
//! 3. *A crash leaves all of it or none.* The state in the root puddle decides, see below.
//! 4. *Blocks are given out again only after that.* They are freed one by one, in any order.
//!
//! A header whose place was given to a header of the same type names that one: of the right type,
//! and whole.
//!
//! # States
//!
//! | state | marks of the set | the next opener |
//! | --- | --- | --- |
//! | `Closed` | all allocated | leaves them |
//! | `Open`, durable | some condemned | makes them allocated again: the sweep is discarded |
//! | `Open` | all condemned, durable | the same |
//! | `Committed`, durable | condemned, or freed | makes them free: the sweep is finished |
//! | `Closed` | all freed, durable | nothing is left |
//!
//! **The store of `Committed` commits.** An opener decides puddle by puddle, when it adopts one,
//! and leaves the state as it is: a crash there repeats it. The state is `Closed` again, and may
//! become `Open` again, only after every puddle was adopted and every mark is decided, durably: so
//! no condemned mark of one sweep is taken for one of another.
//!
//! After a loss of power marks are decided first, and then believed by tracing: a set that is
//! discarded counts as marked, one that is committed does not. So a stale pointer that a program
//! has put into its data finds all of a structure, or nothing.
//!
//! A state that cannot be read is damage, which `check` tells. Condemned blocks are then neither
//! live nor given out, so what leads to one finds what was written there; and nothing is condemned.
//!
//! A process that reads only decides nothing. Condemned blocks are not live to it, and no process
//! writes to them: a live header leads to the values that were written there.
//!
//! Where processes share the pool, one that is alone condemns ([`super::recover`]). If it dies, the
//! next one that gets its turn decides, before it looks at a value ([`crate::Shared`]).

use super::claims::{Claim, classify};
use super::marks;
use super::resolve::{Resolved, change};
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::Backing;
use crate::block::BlockInfo;
use cenote_layout::heap::{SweepState, mark};
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::sync::atomic::{AtomicU8, Ordering, compiler_fence};

/// What is wrong with a state that cannot be read.
pub(crate) const SWEEP_UNKNOWN: &str = "it does not say how far the last sweep has come";

/// Superblocks of a puddle that hold blocks, with the marks of each.
fn marked(puddle: &PuddleHeap) -> impl Iterator<Item = (u32, u32)> {
    classify(puddle).into_iter().zip(0..).filter_map(|(claim, number)| match claim {
        Claim::Small { class, .. } => Some((number, class)),
        Claim::Large { .. } => Some((number, 0)),
        _ => None,
    })
}

impl<G: Backing> TracedHeap<G> {
    /// How far the last sweep has come; `None` if it cannot be read.
    pub(crate) fn sweep_state(&self) -> Option<SweepState> {
        self.root_puddle().map_or(Some(SweepState::Closed), PuddleHeap::sweep_state)
    }

    /// Earlier stores are durable before the state, and the state before later stores.
    fn set_sweep_state(&self, state: SweepState) {
        let Some(line) = self.root_puddle().and_then(PuddleHeap::sweep_line) else { return };
        self.backing.fence();
        // Without a loss of power the order of instructions alone counts.
        compiler_fence(Ordering::SeqCst);
        line[0].store(state as u64, Ordering::Release);
        // What is reserved is zero but for damage.
        for word in line[1..].iter().filter(|word| word.load(Ordering::Relaxed) != 0) {
            word.store(0, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        // SAFETY: a line of the root puddle, which is mapped as long as the heap lives.
        unsafe { self.backing.flush(line.as_ptr().cast(), size_of_val(line)) };
        self.backing.fence();
    }

    fn flush_marks(&self, marks: &[AtomicU8]) {
        // SAFETY: marks in the mapping of a pool that is open for writing.
        unsafe { self.backing.flush(marks.as_ptr().cast(), marks.len()) };
    }

    /// Makes of a puddle's condemned marks what the state says. No thread uses the blocks.
    pub(crate) fn decide(&self, puddle: &PuddleHeap, state: SweepState) {
        let to = match state {
            SweepState::Closed => return,
            SweepState::Open if planted(Bug::OpenSweepIgnored) => mark::FREE,
            SweepState::Open => mark::ALLOCATED,
            SweepState::Committed => mark::FREE,
        };
        for (number, class) in marked(puddle) {
            for some in puddle.class_marks(number, class).chunks(64) {
                if marks::replace(some, mark::CONDEMNED, to) {
                    self.flush_marks(some);
                    reach(Step::SweepDecided);
                }
            }
        }
        self.backing.fence();
    }

    /// Decides all marks, and closes the sweep. Every puddle is attached, and no thread uses the
    /// heap; if a sweep of this session was committed, the caller adopts all puddles anew.
    pub(crate) fn decide_all(&self) {
        match self.sweep_state() {
            None | Some(SweepState::Closed) => return,
            Some(state) => self.puddles.all().iter().for_each(|puddle| self.decide(puddle, state)),
        }
        self.close_sweep();
    }

    /// Every condemned block is free, and its mark flushed.
    pub(crate) fn close_sweep(&self) {
        if self.sweep_state() != Some(SweepState::Closed) {
            self.set_sweep_state(SweepState::Closed);
            reach(Step::SweepClosedAgain);
        }
    }

    /// Frees what an earlier sweep of this session has condemned and not freed, and closes it.
    /// Every puddle is attached.
    pub(crate) fn finish_sweep(&self) {
        if self.sweep_state() == Some(SweepState::Committed) {
            for puddle in self.puddles.all() {
                for (number, class) in marked(&puddle) {
                    let all = puddle.class_marks(number, class);
                    let words = 0..all.len().div_ceil(64);
                    let found = words.map(|word| marks::bits(all, word, mark::CONDEMNED));
                    let blocks = addresses(&puddle, (number, class), found);
                    self.free_condemned(&blocks, &mut |_| ());
                }
                // Those of quarantined superblocks are not handed out, and stay there.
                self.decide(&puddle, SweepState::Committed);
            }
        }
        self.close_sweep();
    }

    /// Frees condemned blocks; at `power` durably, before their places can be given out.
    pub(crate) fn free_condemned(&self, blocks: &[u64], visit: &mut dyn FnMut(BlockInfo)) {
        let from = if planted(Bug::GivenBackOneByOne) { mark::ALLOCATED } else { mark::CONDEMNED };
        let mut held: Vec<BlockInfo> = Vec::with_capacity(blocks.len());
        for &addr in blocks {
            let Ok(puddle) = self.puddle_at(addr) else { continue };
            let Resolved::Block { block, size, type_id, mark, .. } = self.resolve(puddle, addr)
            else {
                continue;
            };
            // SAFETY: a mark of this heap, in the mapping; all accesses to marks in a running
            // process are atomic bytes, or words of them.
            let mark = unsafe { AtomicU8::from_ptr(mark.byte().as_ptr()) };
            if block == addr && change(self.at_store(mark), from, self.held) {
                self.flush_marks(core::slice::from_ref(mark));
                held.push(BlockInfo { addr, size, type_id });
            }
        }
        self.backing.fence();
        for block in held {
            // A block that is held is this thread's: it cannot be refused.
            if self.release_held(block.addr) {
                visit(block);
            }
        }
    }
}

/// Addresses of the blocks of a superblock whose bits are set.
pub(crate) fn addresses(
    puddle: &PuddleHeap,
    (number, class): (u32, u32),
    words: impl Iterator<Item = u64>,
) -> Vec<u64> {
    let mut out = Vec::new();
    for (index, mut bits) in words.enumerate() {
        while bits != 0 {
            let block = index as u64 * 64 + u64::from(bits.trailing_zeros());
            bits &= bits - 1;
            out.push(puddle.address(number) + block * crate::class::class_size(class));
        }
    }
    out
}

/// A sweep that is being condemned. Dropped before [`Condemning::commit`], it is discarded by the
/// next opener, as a crash would have it.
pub(crate) struct Condemning<'h, G: Backing> {
    heap: &'h TracedHeap<G>,
    open: bool,
}

impl<'h, G: Backing> Condemning<'h, G> {
    /// No sweep is under way: the state is `Closed`, and no mark says "condemned". Until the end no
    /// view and no transaction of the pool is open.
    pub(crate) fn new(heap: &'h TracedHeap<G>) -> Self {
        Self { heap, open: false }
    }

    /// Condemns those of up to 64 blocks whose bits are set and that are allocated: which they
    /// were.
    pub(crate) fn condemn(&mut self, marks: &[AtomicU8], doomed: u64) -> u64 {
        let doomed = doomed & marks::bits(marks, 0, mark::ALLOCATED);
        if doomed == 0 {
            return 0;
        }
        if !self.open {
            self.open = true;
            if !planted(Bug::SweepNotOpened) {
                self.heap.set_sweep_state(SweepState::Open);
                reach(Step::SweepOpened);
            }
            if planted(Bug::SweepCommittedEarly) {
                self.heap.set_sweep_state(SweepState::Committed);
            }
        }
        for (at, mark) in marks.iter().enumerate().filter(|(at, _)| doomed >> at & 1 != 0) {
            debug_assert!(at < 64);
            mark.store(mark::CONDEMNED, Ordering::Relaxed);
        }
        if !planted(Bug::CondemnedNotFlushed) && !planted(Bug::TraceMarkNotFlushed) {
            self.heap.flush_marks(marks);
        }
        reach(Step::BlocksCondemned);
        doomed
    }

    /// All of the set is condemned: it is dead from here on. Nothing if nothing was.
    pub(crate) fn commit(self) {
        if self.open {
            self.heap.set_sweep_state(SweepState::Committed);
            reach(Step::SweepCommitted);
        }
    }
}
