//! The state of a logged heap in one process: its sub-heaps, and what belongs to its puddles.
//!
//! Locks: a sub-heap's, and the growth lock. A thread holds one sub-heap's lock at a time, and may
//! take it while it has the growth lock, not the other way round.

use super::cells::GuardPages;
use super::data::Region;
use super::error::{FreeRefused, LoggedError};
use super::root::HeapRoot;
use super::spares::Growth;
use super::state::SubHeap;
use crate::backing::{Backing, Extent};
use crate::error::FreeError;
use cenote_layout::logged::SubHeapGeometry;
use cenote_protect::Protection;
use cenote_sys::{cpu_number, numa};
use core::ptr::without_provenance_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What a logged heap is like.
#[derive(Clone, Copy, Debug)]
pub struct LoggedOptions {
    /// Sub-heaps that threads of this process allocate from first; 0: one for each CPU.
    pub sub_heaps: u32,
    /// Lanes of the micro log of each sub-heap; of a heap that is made.
    pub lanes: u32,
    /// Tickets of each sub-heap, a multiple of 64: blocks that running transactions of pools
    /// allocate or free; of a heap that is made.
    pub tickets: u32,
    /// Levels of the table in the first part of a sub-heap's metadata; of a heap that is made.
    pub levels: u32,
    /// Pages on both sides of metadata that are never used, 0 or 1; of a heap that is made. Earlier
    /// builds made heaps without.
    pub guards: u32,
    /// Tells the number of the CPU that a thread runs on.
    pub cpu: fn() -> u32,
    /// Tells how many nodes of memory the machine has. Of one, memory is asked for nowhere.
    pub nodes: fn() -> u32,
    /// How metadata are protected against stray writes, as far as that can be had here.
    pub protection: Protection,
    /// Whether a crash may take the pool back to before its heap was made, and leave it puddles
    /// that it took since: a pool in shadowed mode. It counts as that only if there is nothing in
    /// its puddles.
    pub goes_back: bool,
}

impl Default for LoggedOptions {
    fn default() -> Self {
        let protection = Protection::default();
        let cpu = cpu_number::current;
        Self {
            sub_heaps: 0,
            lanes: 16,
            tickets: 8192,
            levels: 5,
            guards: 1,
            cpu,
            nodes: numa::nodes,
            protection,
            goes_back: false,
        }
    }
}

impl LoggedOptions {
    /// Those of a pool whose first puddle has so many bytes: metadata take a small part of it.
    #[must_use]
    pub fn for_pool(puddle_size: u64) -> Self {
        let tickets = (puddle_size / 512 / 64 * 64).clamp(64, 8192) as u32;
        let levels = if puddle_size < 1 << 20 { 2 } else { 5 };
        Self { lanes: 1, tickets, levels, ..Self::default() }
    }

    /// How the sub-heaps of a heap that is made are laid out; `None`: they cannot be so.
    pub(crate) const fn geometry(&self) -> Option<SubHeapGeometry> {
        SubHeapGeometry::new(self.lanes, self.tickets, self.levels)
    }
}

/// A sub-heap of a heap, in this process.
#[derive(Debug)]
pub(crate) struct SubHeapMember<G: Backing> {
    pub(crate) heap: SubHeap<Arc<G>>,
    /// Whether its memory was asked to be near the CPU, where that means anything.
    pub(crate) near: AtomicBool,
}

impl<G: Backing> SubHeapMember<G> {
    pub(crate) const fn new(heap: SubHeap<Arc<G>>) -> Self {
        Self { heap, near: AtomicBool::new(false) }
    }
}

/// The logged heap of one pool: one per pool and process. All calls may come from any thread.
#[derive(Debug)]
pub struct LoggedHeap<G: Backing> {
    pub(crate) backing: Arc<G>,
    pub(crate) root: HeapRoot,
    pub(crate) members: Box<[OnceLock<SubHeapMember<G>>]>,
    /// By CPU: the sub-heap that its threads use; [`UNKNOWN`] before the first allocation there.
    pub(crate) homes: Box<[AtomicU32]>,
    pub(crate) growth: Mutex<Growth>,
    pub(crate) cpu: fn() -> u32,
    pub(crate) has_nodes: bool,
    /// How metadata are protected.
    pub(crate) protection: Protection,
    /// What explanations of faults name.
    pub(crate) what: String,
}

/// The CPU has no sub-heap yet.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// What hangs on a puddle of metadata. On one of data hangs the number of its sub-heap and
/// [`FIRST_DATA`].
pub(crate) const METADATA: usize = 1;
const FIRST_DATA: usize = 2;

impl<G: Backing> LoggedHeap<G> {
    /// Makes a sub-heap one of this heap, and hangs its number on its puddles. Under the growth
    /// lock: until then its puddles are spares.
    pub(crate) fn adopt(
        &self,
        growth: &mut Growth,
        (number, metadata): (u32, Region),
        heap: SubHeap<Arc<G>>,
    ) -> Result<(), LoggedError> {
        let of_metadata = (metadata.puddle != 0).then_some((metadata.puddle, false));
        for (puddle, is_data) in of_metadata.into_iter().chain(heap.puddles()) {
            let extent = growth.use_up(puddle).ok_or(LoggedError::Puddle { number, puddle })?;
            // Metadata may lie in a puddle for blocks: an import of a sealed archive gives all
            // puddles that role.
            if is_data && self.backing.is_for_metadata(&extent) == Some(true) {
                return Err(LoggedError::Puddle { number, puddle });
            }
            self.mark(&extent, is_data.then_some(number));
            if is_data {
                let body = Region::body(&extent);
                self.backing.begin_data(body.addr(), body.len)?;
            }
        }
        // SAFETY: its metadata are mapped as long as the heap lives, which ends the guards before
        // its backing, and each part lies in one puddle; all stores are those of writers.
        unsafe { heap.guard(self.protection, &self.what, self.pages_beside(&metadata)) };
        if let Some(place) = self.members.get(number as usize) {
            let _ = place.set(SubHeapMember::new(heap));
        }
        Ok(())
    }

    /// The guard pages of the first part of a sub-heap's metadata. In the root puddle, that before
    /// it is the root's, or the one behind another sub-heap's.
    fn pages_beside(&self, metadata: &Region) -> GuardPages {
        if self.root.guards == 0 {
            return GuardPages::default();
        }
        let mut pages = vec![metadata.page_behind()];
        if metadata.puddle != 0 {
            pages.push(metadata.page_before());
        }
        GuardPages { pages, further: true }
    }

    /// Hangs on a puddle whose it is.
    pub(crate) fn mark(&self, extent: &Extent, data_of: Option<u32>) {
        let mark = data_of.map_or(METADATA, |number| FIRST_DATA + number as usize);
        hang(&self.backing, extent.addr, mark);
    }

    pub(crate) fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for memory of this thread's node, for all of a sub-heap, where there are several.
    pub(crate) fn bring_near(&self, member: &SubHeapMember<G>) {
        if self.has_nodes {
            member.heap.prefer_node(numa::current());
        }
    }

    /// All sub-heaps.
    pub(crate) fn members(&self) -> impl Iterator<Item = (u32, &SubHeapMember<G>)> {
        (0u32..).zip(&self.members).filter_map(|(number, place)| Some((number, place.get()?)))
    }

    #[inline]
    pub(crate) fn member(&self, number: u32) -> Option<&SubHeapMember<G>> {
        self.members.get(number as usize)?.get()
    }

    /// How metadata are protected: what was asked for, or what of it can be had here.
    #[must_use]
    pub fn protection(&self) -> Protection {
        let all = self.members().map(|(_, member)| member.heap.meta.protection());
        match all.chain([self.root.protection()]).all(|of| of == self.protection) {
            true => self.protection,
            false => Protection::None,
        }
    }

    /// The sub-heap in whose data an address lies.
    pub(crate) fn owner_of(&self, addr: u64) -> Result<(u32, &SubHeapMember<G>), FreeRefused> {
        let mark = self.backing.slot(addr).map(|slot| slot.load(Ordering::Acquire).addr());
        let error = match mark {
            None if self.backing.is_foreign(addr) => FreeError::OtherPool { addr },
            None => FreeError::NotInHeap { addr },
            Some(mark) => {
                let number = mark.checked_sub(FIRST_DATA).and_then(|n| u32::try_from(n).ok());
                match number.and_then(|number| Some((number, self.member(number)?))) {
                    Some(owner) => return Ok(owner),
                    None => FreeError::NotABlock { addr },
                }
            }
        };
        Err(error.into())
    }
}

/// Hangs a mark on a puddle.
pub(crate) fn hang<G: Backing>(backing: &G, addr: u64, mark: usize) {
    if let Some(slot) = backing.slot(addr) {
        slot.store(without_provenance_mut(mark), Ordering::Release);
    }
}

impl<G: Backing> Drop for LoggedHeap<G> {
    fn drop(&mut self) {
        // Before the backing: the last reference to it may be a sub-heap's.
        self.root.unguard();
        for member in self.members.iter_mut().filter_map(OnceLock::get_mut) {
            member.heap.meta.unguard();
        }
        for extent in self.backing.extents() {
            self.backing.end_data(extent.addr);
            hang(&self.backing, extent.addr, 0);
        }
    }
}
