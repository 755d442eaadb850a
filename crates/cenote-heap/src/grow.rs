//! Where superblocks come from: free ones, empty ones of other types, puddles not looked at yet, new puddles.
//!
//! Finding free superblocks takes no lock; everything that makes some takes the growth lock of this process, because it calls the store; and where processes share the heap, their
//! common lock, so that one takes or adopts a puddle for all. The others learn of it when a list names a superblock in it, when somebody hands them a block, or when they look for more themselves.
//!
//! A puddle is twice the largest so far in a pool of up to 32 MiB, and then a thirty-second of what there is, up to 64 MiB: so little of a file is there
//! before it is needed. It is never smaller than the first puddle; it is what one large block needs, if that is more; and at the end, what the limit still allows.
//!
//! Scavenging (see `refill`) looks at every superblock with free blocks, so it is not done at each shortage: the next one is due when
//! a quarter as many superblocks were taken as the last one looked at. Before the pool is said to be full it is always done.

use crate::adopt::adopt;
use crate::cache::Cache;
use crate::error::{GroundError, OpenError, RecoverError};
use crate::ground::{Ground, Plot};
use crate::members::{Members, Turn};
use crate::report::Damage;
use crate::runs;
use crate::superblock::PuddleHeap;
use crate::traced::{Shortage, TracedHeap, lock};
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{Descriptor, HeapGeometry, SUPERBLOCK_SIZE, SuperblockState, SweepState};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_sys::process_lock::ProcessLock;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// Most bytes of a puddle that is not larger for a reason.
pub(crate) const PUDDLE_SIZE_MAX: u64 = 64 << 20;

/// Puddles of smaller pools double.
const DOUBLING: u64 = 32 << 20;

/// Bytes of the next puddle of a pool with so many bytes, of whose puddles the largest has `largest` and the first `first`.
fn next_size(bytes: u64, largest: u64, first: u64) -> u64 {
    let size = match bytes < DOUBLING {
        true => largest.saturating_mul(2).min(DOUBLING / 2),
        false => (bytes / 32).next_multiple_of(SLOT_SIZE).min(PUDDLE_SIZE_MAX),
    };
    size.max(first)
}

/// How often a search is repeated that others have disturbed.
const DISTURBANCES: u32 = 100;

/// Superblocks that this thread owns, or "look again".
pub(crate) enum Taken<'a> {
    Run(&'a PuddleHeap, u32),
    Retry,
    /// Leave the gate, do this, and look again.
    Outside(Errand),
}

/// What a slow path has to do for which it may not be inside the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Another process takes a puddle, or looks at one: wait for it.
    Wait,
    /// Members of the pool may have died.
    Sweep,
}

/// What one slow path has done outside.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries {
    sweeps: u32,
}

/// Sweeps after which a slow path that finds no memory believes that there is none.
const SWEEPS_MAX: u32 = 3;

type Chunk = Box<[OnceLock<Arc<PuddleHeap>>]>;

/// Puddles that the heap has looked at, by ordinal: only ever added, so that readers need no lock.
#[derive(Debug)]
pub(crate) struct Puddles {
    /// Chunk `k` has `16 << k` places.
    chunks: [OnceLock<Chunk>; 28],
    len: AtomicUsize,
    /// Puddles before this one have no free superblock, or little luck is missed.
    first: AtomicUsize,
    /// Superblocks that were taken so far.
    taken: AtomicU64,
    /// Superblocks of idle runs, more or less.
    pub(crate) idle: AtomicI64,
}

impl Puddles {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; 28],
            len: AtomicUsize::new(0),
            first: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            idle: AtomicI64::new(0),
        }
    }

    /// Superblocks of idle runs that may be there while others take free ones: one in 64.
    fn idle_max(&self) -> i64 {
        let count: u64 =
            (0..self.len()).filter_map(|i| self.get(i)).map(|p| u64::from(p.superblocks())).sum();
        i64::try_from(count / 64).unwrap_or(i64::MAX)
    }

    fn place(&self, ordinal: usize) -> Option<&OnceLock<Arc<PuddleHeap>>> {
        let chunk = (ordinal / 16 + 1).ilog2() as usize;
        let places =
            self.chunks.get(chunk)?.get_or_init(|| (0..16usize << chunk).map(|_| OnceLock::new()).collect());
        places.get(ordinal - 16 * ((1 << chunk) - 1))
    }

    pub(crate) fn get(&self, ordinal: usize) -> Option<&PuddleHeap> {
        (ordinal < self.len()).then(|| self.place(ordinal)?.get().map(|puddle| &**puddle))?
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// All of them, by ordinal.
    pub(crate) fn all(&self) -> Vec<Arc<PuddleHeap>> {
        (0..self.len()).filter_map(|i| self.place(i)?.get().cloned()).collect()
    }

    /// Adds one; growth is locked.
    fn push(&self, puddle: Arc<PuddleHeap>) {
        let ordinal = self.len();
        if let Some(place) = self.place(ordinal)
            && place.set(puddle).is_ok()
        {
            self.len.store(ordinal + 1, Ordering::Release);
        }
    }

    /// A puddle has a free superblock again.
    pub(crate) fn has_free(&self, ordinal: usize) {
        if self.first.load(Ordering::Relaxed) > ordinal {
            self.first.fetch_min(ordinal, Ordering::Relaxed);
        }
    }

    /// Takes a run out of free space: first fit in order of puddles and addresses, which keeps the low part of a heap dense.
    fn take(&self, count: u32, align: u32, thorough: bool) -> Option<(&PuddleHeap, u32)> {
        for _ in 0..DISTURBANCES {
            let mut disturbed = false;
            let first = if thorough { 0 } else { self.first.load(Ordering::Relaxed) };
            for ordinal in first..self.len() {
                let Some(puddle) = self.get(ordinal) else { continue };
                match runs::take(puddle, count, align) {
                    runs::Taken::At(number) => {
                        if thorough {
                            self.has_free(ordinal);
                        }
                        self.taken.fetch_add(u64::from(count), Ordering::Relaxed);
                        return Some((puddle, number));
                    }
                    runs::Taken::Disturbed => disturbed = true,
                    runs::Taken::None if count == 1 && !disturbed => {
                        let next = ordinal + 1;
                        let _ =
                            self.first.compare_exchange(ordinal, next, Ordering::Relaxed, Ordering::Relaxed);
                    }
                    runs::Taken::None => {}
                }
            }
            if !disturbed {
                return None;
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Puddles {
    /// Takes a run all of which has space, wherever it is: when the disk is full.
    fn take_backed(&self, count: u32, align: u32) -> Option<(&PuddleHeap, u32)> {
        for ordinal in 0..self.len() {
            let Some(puddle) = self.get(ordinal) else { continue };
            let mut start = puddle.first_usable().next_multiple_of(align);
            while let Some(end) = start.checked_add(count).filter(|&end| end <= puddle.superblocks()) {
                match (start..end)
                    .rev()
                    .find(|&number| !puddle.is_free(number) || puddle.may_lack_space(number))
                {
                    Some(number) => start = (number + 1).next_multiple_of(align),
                    None if runs::claim(puddle, start, count).is_ok() => {
                        // It may have become a hole before it was ours.
                        if !(start..end).any(|number| puddle.may_lack_space(number)) {
                            self.taken.fetch_add(u64::from(count), Ordering::Relaxed);
                            return Some((puddle, start));
                        }
                        runs::put(puddle, start, count);
                        start = end.next_multiple_of(align);
                    }
                    None => start = (start + 1).next_multiple_of(align),
                }
            }
        }
        None
    }
}

/// What the growth lock covers.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Puddles that were not looked at yet, in order.
    pending: VecDeque<Plot>,
    /// Bytes of all puddles.
    bytes: u64,
    /// Bytes of the largest.
    largest: u64,
    /// Number of superblocks taken at which scavenging is due.
    due: u64,
    /// Highest number of a puddle that is known.
    last: u32,
    /// Superblocks that were found to be out of use when their puddles were adopted.
    pub(crate) damage: Vec<Damage>,
}

impl Growth {
    pub(crate) fn new(plots: Vec<Plot>) -> Self {
        Self {
            bytes: plots.iter().map(|p| p.size).sum(),
            largest: plots.iter().map(|p| p.size).max().unwrap_or(0),
            last: plots.last().map_or(0, |p| p.index),
            pending: plots.into(),
            due: 1,
            damage: Vec::new(),
        }
    }

    fn add(&mut self, plot: &Plot) {
        self.bytes += plot.size;
        self.largest = self.largest.max(plot.size);
        self.last = plot.index;
    }
}

/// Held while a root puddle is attached: of two heaps that are opened on one pool at a time, the second must not touch what the first one uses.
static OPENING: ProcessLock<()> = ProcessLock::new(());

impl<G: Ground> TracedHeap<G> {
    /// Takes `count` superblocks out of free space, making some if there are none. `cache` is this thread's: what it has may be given back.
    /// The caller is inside the gate.
    pub(crate) fn take_run(
        &self,
        cache: *mut Cache,
        count: u32,
        align: u32,
        tries: Tries,
    ) -> Result<Taken<'_>, Shortage> {
        if self.has_idle() && self.puddles.idle.load(Ordering::Relaxed) > self.puddles.idle_max() {
            self.release_idle(&mut lock(&self.growth));
        }
        let find = |thorough| match self.puddles.take(count, align, thorough) {
            Some((puddle, number)) => self.backed(puddle, number, count, align).map(Some),
            None => Ok(None),
        };
        // A full disk: what is free has no space. A superblock that becomes empty has.
        let mut full = match find(false) {
            Ok(Some(taken)) => return Ok(taken),
            Ok(None) => None,
            Err(full) => Some(full),
        };
        if self.has_idle() {
            self.release_idle(&mut lock(&self.growth));
        }
        let mut growth = lock(&self.growth);
        if full.is_none() {
            match find(true) {
                Ok(Some(taken)) => return Ok(taken),
                Ok(None) => {}
                Err(error) => full = Some(error),
            }
        }
        let scavenge = |growth: &mut Growth| {
            // SAFETY: the cache is this thread's (the callers'), and no reference into it is held here.
            unsafe { self.empty(cache) };
            let (_, examined) = self.scavenge(growth);
            growth.due = self.puddles.taken.load(Ordering::Relaxed) + (examined / 4).max(1);
            find(true)
        };
        if tries.sweeps == 0 && self.members.as_ref().is_some_and(Members::is_due) && self.has_dead() {
            return Ok(Taken::Outside(Errand::Sweep));
        }
        if full.is_some() || growth.due <= self.puddles.taken.load(Ordering::Relaxed) {
            match scavenge(&mut growth) {
                Ok(Some(taken)) => return Ok(taken),
                Ok(None) => {}
                Err(error) => full = Some(error),
            }
        }
        let turn = match (&self.members, self.ground.sharing()) {
            (Some(members), Some(sharing)) => {
                let Some(turn) = members.try_lock(sharing).map_err(Shortage::Ground)? else {
                    return Ok(Taken::Outside(Errand::Wait));
                };
                self.refresh(&mut growth);
                Some(turn)
            }
            _ => None,
        };
        // Puddles that are there already come before new ones; they may also have free blocks for a bin.
        if self.attach_locked(&mut growth, true).map_err(Shortage::Puddle)? {
            return Ok(Taken::Retry);
        }
        if let Some(full) = full {
            drop(turn);
            return match tries.sweeps < SWEEPS_MAX && self.has_dead() {
                true => Ok(Taken::Outside(Errand::Sweep)),
                false => Err(full),
            };
        }
        match self.grow(&mut growth, count, align) {
            Ok(()) => Ok(find(true)?.unwrap_or(Taken::Retry)),
            Err(shortage) => {
                drop(turn);
                if let Some(taken) = scavenge(&mut growth)? {
                    return Ok(taken);
                }
                if tries.sweeps < SWEEPS_MAX && self.has_dead() {
                    return Ok(Taken::Outside(Errand::Sweep));
                }
                Err(shortage)
            }
        }
    }

    /// Whether members of the pool have died and were not swept.
    fn has_dead(&self) -> bool {
        match (&self.members, self.ground.sharing()) {
            (Some(members), Some(sharing)) => members.dead(sharing) != 0,
            _ => false,
        }
    }

    /// Does what `take_run` asked for. The caller is outside the gate.
    pub(crate) fn step_out(&self, errand: Errand, tries: &mut Tries) -> Result<(), OpenError> {
        match errand {
            Errand::Wait => drop(self.turn()?),
            Errand::Sweep => {
                tries.sweeps += 1;
                // One that fails is tried again, or the shortage stands.
                let _ = self.sweep_dead();
            }
        }
        Ok(())
    }

    /// The pool's lock, where there is one.
    fn turn(&self) -> Result<Option<Turn<'_>>, OpenError> {
        match (&self.members, self.ground.sharing()) {
            (Some(members), Some(sharing)) => members.lock(sharing).map(Some),
            _ => Ok(None),
        }
    }

    /// The pool's lock for what only the last member may do.
    pub(crate) fn turn_alone(&self) -> Result<Option<Turn<'_>>, RecoverError> {
        let turn = self.turn()?;
        if let (Some(members), Some(sharing)) = (&self.members, self.ground.sharing()) {
            match members.others(sharing).count_ones() {
                0 => {}
                others => return Err(RecoverError::Shared { others }),
            }
        }
        Ok(turn)
    }

    /// All puddles have been adopted anew, under the pool's lock: nothing of dead members is left.
    pub(crate) fn forget_dead(&self) {
        if let (Some(members), Some(sharing)) = (&self.members, self.ground.sharing()) {
            members.clear(members.dead(sharing));
        }
    }

    /// Takes space for a run that was taken, where it has none; if there is no space, takes another run that has.
    fn backed<'a>(
        &'a self,
        puddle: &'a PuddleHeap,
        number: u32,
        count: u32,
        align: u32,
    ) -> Result<Taken<'a>, Shortage> {
        match self.fill_holes(puddle, number, count) {
            Ok(()) => Ok(Taken::Run(puddle, number)),
            Err(error) => {
                self.put_run(puddle, number, count);
                let other = self.puddles.take_backed(count, align);
                other.map(|(puddle, number)| Taken::Run(puddle, number)).ok_or(Shortage::Ground(error))
            }
        }
    }

    /// Takes a new puddle in which `count` superblocks fit at a multiple of `align`.
    fn grow(&self, growth: &mut Growth, count: u32, align: u32) -> Result<(), Shortage> {
        let size_max = self.ground.size_max();
        let bytes = growth.bytes;
        let least = size_for(count, align).ok_or(Shortage::TooLarge)?;
        let size = self.next_size(growth, least);
        if size < least {
            return Err(Shortage::Ground(GroundError::Limit { requested: least, bytes, size_max }));
        }
        let mut taken = self.ground.take(size);
        if taken.is_err() && least < size {
            // A full disk may still have room for less.
            taken = self.ground.take(least);
        }
        let plot = taken.map_err(Shortage::Ground)?;
        reach(Step::Grown);
        if self.members.is_some() && plot.index > growth.last + 1 {
            // A process that is dead had asked for one, and got it only now.
            self.refresh(growth);
            self.attach_holding(growth, plot.addr, true).map_err(Shortage::Puddle)?;
        } else {
            growth.add(&plot);
            self.attach(growth, &plot, How::New).map_err(Shortage::Puddle)?;
        }
        if let Some(members) = &self.members {
            // It is adopted: whoever sees the number can attach it.
            self.known.store(u64::from(growth.last) + 1, Ordering::Release);
            members.set_puddles(u64::from(growth.last) + 1);
        }
        let next = self.next_size(growth, 0);
        if next != 0 {
            self.ground.expect(next);
        }
        Ok(())
    }

    /// Bytes of the puddle that is taken next, if `least` are needed; fewer if the pool may not take so many.
    fn next_size(&self, growth: &Growth, least: u64) -> u64 {
        let left = self.ground.size_max().saturating_sub(growth.bytes) / SUPERBLOCK_SIZE * SUPERBLOCK_SIZE;
        next_size(growth.bytes, growth.largest, self.ground.puddle_size())
            .max(least)
            .next_multiple_of(SUPERBLOCK_SIZE)
            .min(left)
    }

    /// Learns of puddles that other processes took.
    pub(crate) fn refresh(&self, growth: &mut Growth) {
        if self.members.is_none() {
            return;
        }
        for plot in self.ground.plots() {
            if plot.index > growth.last {
                growth.add(&plot);
                growth.pending.push_back(plot);
            }
        }
        self.known.store(u64::from(growth.last) + 1, Ordering::Release);
    }

    /// Attaches the puddles that other processes have taken since, so that every address which they could store anywhere is mapped here. One load if there are none.
    ///
    /// # Errors
    /// They cannot be mapped, or not be learned of.
    pub fn catch_up(&self) -> Result<(), OpenError> {
        let Some(members) = &self.members else { return Ok(()) };
        if self.sweep_state() == Some(SweepState::Open) {
            self.discard_sweep()?;
        }
        let puddles = members.puddles();
        if puddles <= self.known.load(Ordering::Acquire) {
            return Ok(());
        }
        self.attach_adopted(&mut lock(&self.growth))?;
        match self.known.load(Ordering::Acquire) {
            known if known < puddles => Err(OpenError::Behind { known, puddles }),
            _ => Ok(()),
        }
    }

    /// Discards the sweep of a member that died while it condemned ([`crate::condemn`]).
    #[cold]
    fn discard_sweep(&self) -> Result<(), OpenError> {
        // The one that condemns is alone, and has this lock.
        let _turn = self.turn()?;
        let mut growth = lock(&self.growth);
        self.refresh(&mut growth);
        while self.attach_locked(&mut growth, true)? {}
        if self.sweep_state() == Some(SweepState::Open) {
            self.decide_all();
        }
        Ok(())
    }

    /// Attaches a puddle that was not looked at yet; `false` if there is none.
    pub(crate) fn attach_next(&self) -> Result<bool, OpenError> {
        let _turn = self.turn()?;
        let mut growth = lock(&self.growth);
        self.refresh(&mut growth);
        self.attach_locked(&mut growth, true)
    }

    /// The root puddle first, because the lists lie there. Then the newest: it is the likeliest to have room, so that after a crash the first
    /// allocation in a large heap looks at one puddle and not at all.
    /// `adopt`: whether this process may look at one that nobody has looked at; see `attach`.
    pub(crate) fn attach_locked(&self, growth: &mut Growth, adopt: bool) -> Result<bool, OpenError> {
        let at = if self.puddles.len() == 0 { 0 } else { growth.pending.len().saturating_sub(1) };
        self.attach_pending(growth, at, adopt)
    }

    fn attach_pending(&self, growth: &mut Growth, at: usize, adopt: bool) -> Result<bool, OpenError> {
        let Some(plot) = growth.pending.get(at).copied() else { return Ok(false) };
        let how = if adopt { How::Adopting } else { How::Joining };
        if !self.attach(growth, &plot, how)? {
            return Ok(false);
        }
        growth.pending.remove(at);
        Ok(true)
    }

    /// Attaches all puddles that some member of the pool has adopted.
    pub(crate) fn attach_adopted(&self, growth: &mut Growth) -> Result<(), OpenError> {
        self.refresh(growth);
        let mut at = 0;
        while at < growth.pending.len() {
            if !self.attach_pending(growth, at, false)? {
                at += 1;
            }
        }
        Ok(())
    }

    /// A superblock that a list names, in a puddle that this process has not met: another one took or adopted it.
    #[cold]
    pub(crate) fn meet(&self, reference: u32) -> Option<(&PuddleHeap, u32)> {
        self.members.as_ref()?;
        self.meet_locked(&mut lock(&self.growth), reference)
    }

    #[cold]
    pub(crate) fn meet_locked(&self, growth: &mut Growth, reference: u32) -> Option<(&PuddleHeap, u32)> {
        if reference == 0 || self.members.is_none() {
            return None;
        }
        self.refresh(growth);
        // One that is in a list was adopted before. Another thread may have attached it a moment ago.
        let _ = self.attach_holding(growth, u64::from(reference) * SUPERBLOCK_SIZE, false);
        self.superblock(reference)
    }

    /// Attaches the puddle that `addr` is in, if it was not looked at yet.
    pub(crate) fn attach_of(&self, addr: u64) -> Result<bool, OpenError> {
        let _turn = self.turn()?;
        let mut growth = lock(&self.growth);
        self.refresh(&mut growth);
        self.attach_holding(&mut growth, addr, true)
    }

    fn attach_holding(&self, growth: &mut Growth, addr: u64, adopt: bool) -> Result<bool, OpenError> {
        let holds = |plot: &Plot| addr.wrapping_sub(plot.addr) < plot.size;
        match growth.pending.iter().position(holds) {
            Some(at) => self.attach_pending(growth, at, adopt),
            None => Ok(false),
        }
    }

    /// Attaches all puddles.
    pub(crate) fn attach_all(&self) -> Result<(), RecoverError> {
        while self.attach_next()? {}
        Ok(())
    }

    /// Looks at a puddle: which superblocks are free, which have blocks. Where processes share the
    /// heap, one adopts the puddle for all. `false`: no process has adopted it, and this one may
    /// not.
    fn attach(&self, growth: &mut Growth, plot: &Plot, how: How) -> Result<bool, OpenError> {
        let (index, addr, size) = (plot.index, plot.addr, plot.size);
        self.ground.map(plot).map_err(|source| OpenError::Ground { index, addr, source })?;
        let ordinal = self.puddles.len();
        let _opening = (ordinal == 0).then(|| OPENING.lock());
        let Some(slot) = self.ground.slot(addr) else { return Err(OpenError::NoPuddle) };
        if !slot.load(Ordering::Acquire).is_null() {
            return Err(OpenError::AlreadyOpen);
        }
        let readable = |lost: Option<u64>| match lost {
            None => Ok(()),
            Some(at) => {
                let source = self.ground.unreadable(at);
                Err(OpenError::Ground { index, addr, source })
            }
        };
        // SAFETY: just mapped; it stays so as long as the ground lives, which the heap owns.
        let puddle = unsafe {
            readable(PuddleHeap::lost_metadata(addr, size, index))?;
            PuddleHeap::new(addr, size, index, ordinal, self.id, self.writable)
        };
        let mut puddle = puddle.ok_or(OpenError::TooSmall { index, addr, size })?;
        // Before anything is changed: damage is not spread.
        readable(puddle.lost_tiny_marks())?;
        puddle.restores |= self.root_puddle().is_some_and(|root| root.restores);
        let puddle = Arc::new(puddle);
        let session = self.members.as_ref().map(|members| members.session);
        let adopted = session.is_some_and(|session| session == puddle.session());
        let mut listed = Vec::new();
        if adopted && !planted(Bug::JoinAdoptsAgain) {
            puddle.adopted.store(true, Ordering::Release);
        } else if session.is_some() && how == How::Joining {
            return Ok(false);
        } else {
            if self.writable {
                self.label(&puddle, how);
                for list in puddle.lists() {
                    reset_list(list);
                }
                let root = self.root_puddle().unwrap_or(&puddle);
                if let Some(state) = root.sweep_state() {
                    self.decide(&puddle, state);
                }
            }
            let adopted = adopt(&puddle);
            listed = adopted.listed;
            growth.damage.extend(adopted.damage);
            reach(Step::Adopting);
            if let Some(session) = session {
                puddle.set_session(session);
            }
            // Whoever took it may have died before it said so to the others.
            if let Some(members) =
                self.members.as_ref().filter(|members| members.puddles() <= u64::from(index))
            {
                members.set_puddles(u64::from(index) + 1);
            }
            reach(Step::Adopted);
        }
        self.record_adopted(&puddle);
        self.puddles.push(Arc::clone(&puddle));
        let pointer = Arc::as_ptr(&puddle).cast_mut().cast::<()>();
        // Whoever frees a block of the puddle before this waits for the growth lock.
        if slot.compare_exchange(null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(OpenError::AlreadyOpen);
        }
        self.publish_listed(&puddle, &listed);
        Ok(true)
    }

    /// Pushes adopted superblocks to their lists, so that lower addresses come out first.
    pub(crate) fn publish_listed(&self, puddle: &PuddleHeap, listed: &[(u32, TypeId, u32)]) {
        if self.writable {
            listed
                .iter()
                .rev()
                .for_each(|&(number, type_id, class)| self.push(puddle, number, type_id, class));
            self.puddles.has_free(puddle.ordinal);
        }
    }

    /// Forgets what lists hold: recovery fills them again.
    pub(crate) fn reset_lists(&self) {
        self.lists().iter().for_each(|list| {
            if list.head.load(Ordering::Relaxed) as u32 != 0 {
                crate::list::take_all(&list.head);
            }
        });
    }

    /// Gives the superblocks of a puddle's own metadata their descriptors, if they do not have
    /// them: it is new, or they are damaged. They say nothing that the puddle's size does not, but
    /// for descriptor 0: whether the file may have no space for tiny marks. It says "no" at level
    /// `power` only, where taking space costs a sync, and of a puddle that is new.
    ///
    /// A new puddle at level `process` gives the space of its tiny marks back: after the descriptor
    /// says so, and before any thread knows the puddle.
    fn label(&self, puddle: &PuddleHeap, how: How) {
        let is_metadata = |number: u32| {
            let descriptor = puddle.descriptor(number);
            descriptor.is_valid() && descriptor.state == SuperblockState::Metadata as u32
        };
        let count = puddle.first_usable();
        if (0..count).all(is_metadata) {
            return;
        }
        let is_new = (0..puddle.superblocks()).all(|number| puddle.descriptor(number) == Descriptor::FREE);
        let metadata = Descriptor::metadata(!self.ground.is_power() || !is_new);
        (0..count).for_each(|number| puddle.write_descriptor(number, &metadata));
        // The fence of the first superblock taken makes them durable.
        let first = core::ptr::from_ref(puddle.line(0));
        // SAFETY: descriptors of the mapping, one after the other: a writable pool's.
        unsafe { self.ground.flush(first.cast(), count as usize * size_of::<Descriptor>()) };
        if how == How::New && is_new && self.cuts() {
            let layout = &puddle.layout;
            // SAFETY: the tiny marks of a puddle that no thread knows yet, and in which no
            // superblock is in use.
            let released =
                unsafe { self.ground.release(puddle.base + layout.tiny, layout.marks - layout.tiny) };
            // Space that stays is no fault: the descriptor says that it may be missing.
            let _ = released;
        }
    }

    /// Superblocks that are out of use in the puddles that were looked at so far: because bits of
    /// their descriptors or marks have flipped. A puddle is looked at when it is first touched;
    /// [`Heap::check`](crate::Heap::check) looks at all.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        lock(&self.growth).damage.clone()
    }
}

/// What a process may do with a puddle that it attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It has taken the puddle a moment ago, and has the pool's lock, where there is one.
    New,
    /// It may adopt the puddle: it has the pool's lock, where there is one.
    Adopting,
    /// It may use what another process has adopted.
    Joining,
}

fn reset_list(list: &crate::superblock::List) {
    for word in [&list.key, &list.head] {
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// Bytes of the smallest puddle, not a root puddle, in which `count` superblocks fit at a multiple of `align`.
fn size_for(count: u32, align: u32) -> Option<u64> {
    let mut superblocks = u64::from(count) + 1;
    loop {
        let size = superblocks.checked_mul(SUPERBLOCK_SIZE)?;
        match HeapGeometry::new(size, false) {
            Some(g)
                if g.first_usable.next_multiple_of(u64::from(align)) + u64::from(count) <= superblocks =>
            {
                return Some(size);
            }
            Some(g) => superblocks = g.first_usable.next_multiple_of(u64::from(align)) + u64::from(count),
            None => superblocks += 1,
        }
    }
}
