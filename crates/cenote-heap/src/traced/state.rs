//! The state of a traced heap in one process: its puddles, its caches, its seat among the members.
//!
//! The operations are in the modules above, one `impl` for each. Locks, in the order in which a
//! thread may hold several: the pool's (between processes), `trimming`, `growth`, the list of
//! caches. A thread inside the gate waits for none that another process holds.

use super::cache::HeapCaches;
use super::members::{Inside, Members, Turn};
use super::puddles::{Growth, Puddles};
use super::record::ReclaimSlot;
use super::slow::Slow;
use crate::backing::Backing;
use crate::error::{BackingError, OpenError, RecoverError};
use crate::pool_backing::PoolBacking;
use crate::report::Damage;
use cenote_layout::heap::LIST_COUNT;
use cenote_protect::HiddenWindow;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Words that have a bit for every list: set if there may be idle runs in it.
pub(crate) const IDLE_WORDS: usize = (LIST_COUNT / 64) as usize;

/// Numbers heaps, and the caches of one after the other: so that a puddle names its heap, and a
/// thread which caches are dead.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// The traced heap of one pool. Share it by reference or `Arc`; there is one per pool and process.
/// Several processes have one each on the same pool, if the backing says that they may
/// (`Backing::sharing`).
#[derive(Debug)]
pub struct TracedHeap<G: Backing = PoolBacking> {
    /// Under this number threads find their caches. Recovery takes another one: then all caches
    /// are dead.
    pub(crate) number: AtomicU64,
    /// The same, by which frees find them; a number that no cache has while changes are recorded,
    /// see [`super::reclaim`].
    pub(crate) free_number: AtomicU64,
    pub(crate) id: u64,
    /// The mark of a block in a cache or a transaction of this process.
    pub(crate) cached: u8,
    pub(crate) held: u8,
    pub(crate) writable: bool,
    pub(crate) members: Option<Members>,
    /// Puddles that this process has found, where others may take some.
    pub(crate) known: AtomicU64,
    pub(crate) shared: Arc<HeapCaches>,
    pub(crate) puddles: Puddles,
    /// Lists in which idle runs of large blocks may be.
    pub(crate) idle: [AtomicU64; IDLE_WORDS],
    /// Locked while a puddle is attached or taken, and by recovery and check.
    pub(crate) growth: Mutex<Growth>,
    /// Superblocks that were found to be out of use when their puddles were adopted. Locked after
    /// `growth`.
    pub(crate) damage: Mutex<Vec<Damage>>,
    /// Held by the thread that trims, a step at a time, and by recovery, which takes a superblock
    /// that is being trimmed for free. Before `growth`.
    pub(crate) trimming: Mutex<()>,
    pub(crate) reclaim: ReclaimSlot,
    /// The distance to add to an address in metadata, for a store ([`crate::stored`]).
    pub(crate) distance: usize,
    /// Where metadata are mapped a second time, if they are.
    pub(super) hidden: Option<HiddenWindow>,
    pub(crate) slow: Slow<Self>,
    /// Last: puddles take their guards away while they are mapped.
    pub(crate) backing: G,
}

impl<G: Backing> TracedHeap<G> {
    /// Goes inside the gate, if there is one: to where superblocks change hands.
    ///
    /// # Errors
    /// See [`Members::enter`].
    #[inline]
    pub(crate) fn enter(&self) -> Result<Inside<'_>, BackingError> {
        match (&self.members, self.backing.sharing()) {
            (Some(members), Some(sharing)) => members.enter(sharing),
            _ => Ok(Inside::ALONE),
        }
    }

    /// What the heap stands on.
    pub fn backing(&self) -> &G {
        &self.backing
    }

    /// The pool's lock, where there is one.
    pub(super) fn turn(&self) -> Result<Option<Turn<'_>>, OpenError> {
        match (&self.members, self.backing.sharing()) {
            (Some(members), Some(sharing)) => members.lock(sharing).map(Some),
            _ => Ok(None),
        }
    }

    /// The pool's lock for what only the last member may do.
    pub(crate) fn turn_alone(&self) -> Result<Option<Turn<'_>>, RecoverError> {
        let turn = self.turn()?;
        if let (Some(members), Some(sharing)) = (&self.members, self.backing.sharing()) {
            match members.others(sharing).count_ones() {
                0 => {}
                others => return Err(RecoverError::Shared { others }),
            }
        }
        Ok(turn)
    }

    /// All puddles have been adopted anew, under the pool's lock: nothing of dead members is left.
    pub(crate) fn forget_dead(&self) {
        if let (Some(members), Some(sharing)) = (&self.members, self.backing.sharing()) {
            members.clear(members.dead(sharing));
        }
    }

    /// Whether members of the pool have died and were not swept.
    pub(super) fn has_dead(&self) -> bool {
        match (&self.members, self.backing.sharing()) {
            (Some(members), Some(sharing)) => members.dead(sharing) != 0,
            _ => false,
        }
    }
}
