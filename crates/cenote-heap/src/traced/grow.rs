//! Superblocks for slow paths: free ones, empty ones of other types, puddles not looked at yet, new
//! puddles, in this order.
//!
//! Invariant: finding a free superblock takes no lock. Making some takes the growth lock of this
//! process, because that calls the store, and where processes share the heap their common lock: one
//! process takes or adopts a puddle for all. Another process learns of the puddle when a list names
//! a superblock in it, when it frees a block there, or when it looks for more itself.
//!
//! While the pool has up to 32 MiB, a new puddle has twice the bytes of the largest one so far;
//! then a thirty-second of the pool, 64 MiB at most. It has at least the bytes of the first puddle,
//! more if one large block needs them, and at the end what the limit allows.
//!
//! Scavenging (see `refill`) looks at every superblock with free blocks. So it does not run at each
//! shortage: it is due again after a quarter as many takings as it looked at superblocks. It always
//! runs before an allocation fails because the pool is full.
use super::attach::AttachMode;
use super::cache::Cache;
use super::members::{Members, Turn};
use super::mutex::lock;
use super::puddles::{Errand, Growth, Shortage, TakenSuperblocks, Tries};
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::Backing;
use crate::error::{BackingError, OpenError};
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{HeapGeometry, SUPERBLOCK_SIZE};
use cenote_medium::planted::{Step, reach};
use cenote_protect::HiddenWindow;
use core::sync::atomic::Ordering;

/// Most bytes of a puddle that is not larger for a reason.
pub(crate) const PUDDLE_SIZE_MAX: u64 = 64 << 20;

/// Puddles of smaller pools double.
const DOUBLING: u64 = 32 << 20;

/// Bytes of the next puddle of a pool with so many bytes, of whose puddles the largest has
/// `largest` and the first `first`.
fn next_size(bytes: u64, largest: u64, first: u64) -> u64 {
    let size = match bytes < DOUBLING {
        true => largest.saturating_mul(2).min(DOUBLING / 2),
        false => (bytes / 32).next_multiple_of(SLOT_SIZE).min(PUDDLE_SIZE_MAX),
    };
    size.max(first)
}

/// Sweeps after which a slow path that finds no memory believes that there is none.
const SWEEPS_MAX: u32 = 3;

/// Whether this process may take or adopt a puddle now.
enum MayGrow<'a> {
    /// No other process uses the heap.
    Alone,
    /// It has the pool's lock, until this is dropped.
    Turn(#[expect(dead_code, reason = "held for its drop")] Turn<'a>),
    /// Another process has the lock.
    Not,
}

impl<G: Backing> TracedHeap<G> {
    /// Takes `count` superblocks out of free space, making some if there are none. `cache` is this
    /// thread's: what it has may be given back. The caller is inside the gate.
    pub(crate) fn take_run(
        &self,
        cache: *mut Cache,
        count: u32,
        align: u32,
        tries: Tries,
    ) -> Result<TakenSuperblocks<'_>, Shortage> {
        if self.has_idle() && self.puddles.idle.load(Ordering::Relaxed) > self.puddles.idle_max() {
            self.release_idle(&mut lock(&self.growth));
        }
        let find = |thorough| self.find_run(count, align, thorough);
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
            // SAFETY: the cache is this thread's (the callers'), and no reference into it is held
            // here.
            unsafe { self.scavenge_all(growth, cache) };
            find(true)
        };
        if tries.sweeps == 0 && self.is_sweep_due() {
            return Ok(TakenSuperblocks::Outside(Errand::Sweep));
        }
        if full.is_some() || growth.due <= self.puddles.taken.load(Ordering::Relaxed) {
            match scavenge(&mut growth) {
                Ok(Some(taken)) => return Ok(taken),
                Ok(None) => {}
                Err(error) => full = Some(error),
            }
        }
        let turn = match self.may_grow(&mut growth)? {
            MayGrow::Not => return Ok(TakenSuperblocks::Outside(Errand::Wait)),
            turn => turn,
        };
        // Puddles that are there already come before new ones; they may also have free blocks for a
        // bin.
        if self.attach_locked(&mut growth, true).map_err(Shortage::Puddle)? {
            return Ok(TakenSuperblocks::Retry);
        }
        if let Some(full) = full {
            drop(turn);
            return self.give_up(full, tries);
        }
        match self.grow(&mut growth, count, align) {
            Ok(()) => Ok(find(true)?.unwrap_or(TakenSuperblocks::Retry)),
            Err(shortage) => {
                drop(turn);
                if let Some(taken) = scavenge(&mut growth)? {
                    return Ok(taken);
                }
                self.give_up(shortage, tries)
            }
        }
    }

    /// Whether members of the pool are to be asked for, and one has died.
    fn is_sweep_due(&self) -> bool {
        self.members.as_ref().is_some_and(Members::is_due) && self.has_dead()
    }

    /// Takes the pool's lock, where processes share the heap, and learns of the puddles that others
    /// took.
    fn may_grow(&self, growth: &mut Growth) -> Result<MayGrow<'_>, Shortage> {
        let (Some(members), Some(sharing)) = (&self.members, self.backing.sharing()) else {
            return Ok(MayGrow::Alone);
        };
        let Some(turn) = members.try_lock(sharing).map_err(Shortage::Backing)? else {
            return Ok(MayGrow::Not);
        };
        self.refresh(growth);
        Ok(MayGrow::Turn(turn))
    }

    /// Takes a run out of free space, with space in the file; `None`: there is no free run.
    fn find_run(
        &self,
        count: u32,
        align: u32,
        thorough: bool,
    ) -> Result<Option<TakenSuperblocks<'_>>, Shortage> {
        match self.puddles.take(count, align, thorough) {
            Some((puddle, number)) => self.backed(puddle, number, count, align).map(Some),
            None => Ok(None),
        }
    }

    /// Gives back what `cache` has, looks at all superblocks with free blocks, and says when to do
    /// so next.
    ///
    /// # Safety
    /// The cache is this thread's, and the caller holds no reference into it.
    unsafe fn scavenge_all(&self, growth: &mut Growth, cache: *mut Cache) {
        // SAFETY: the caller's promise is the one that `empty` asks for.
        unsafe { self.empty(cache) };
        let (_, examined) = self.scavenge(growth);
        growth.due = self.puddles.taken.load(Ordering::Relaxed) + (examined / 4).max(1);
    }

    /// The shortage; or, if members have died, a sweep before it is believed.
    fn give_up(&self, shortage: Shortage, tries: Tries) -> Result<TakenSuperblocks<'_>, Shortage> {
        match tries.sweeps < SWEEPS_MAX && self.has_dead() {
            true => Ok(TakenSuperblocks::Outside(Errand::Sweep)),
            false => Err(shortage),
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

    /// Takes space for a run that was taken, where it has none; if there is no space, takes another
    /// run that has.
    fn backed<'a>(
        &'a self,
        puddle: &'a PuddleHeap,
        number: u32,
        count: u32,
        align: u32,
    ) -> Result<TakenSuperblocks<'a>, Shortage> {
        match self.fill_holes(puddle, number, count) {
            Ok(()) => Ok(TakenSuperblocks::Run(puddle, number)),
            Err(error) => {
                self.put_run(puddle, number, count);
                let other = self.puddles.take_backed(count, align);
                other
                    .map(|(puddle, number)| TakenSuperblocks::Run(puddle, number))
                    .ok_or(Shortage::Backing(error))
            }
        }
    }

    /// Takes a new puddle in which `count` superblocks fit at a multiple of `align`.
    fn grow(&self, growth: &mut Growth, count: u32, align: u32) -> Result<(), Shortage> {
        let size_max = self.backing.size_max();
        let bytes = growth.bytes;
        let least = size_for(count, align).ok_or(Shortage::TooLarge)?;
        let size = self.next_size(growth, least);
        if size < least {
            return Err(Shortage::Backing(BackingError::Limit {
                requested: least,
                bytes,
                size_max,
            }));
        }
        // One that cannot be guarded cannot be used: it would be one for nothing each time.
        if let Some(Err(error)) = self.hidden.as_ref().map(HiddenWindow::has_room) {
            let doing = "mapping metadata a second time";
            return Err(Shortage::Backing(BackingError::Store { doing, source: Box::new(error) }));
        }
        let mut taken = self.backing.take(size);
        if taken.is_err() && least < size {
            // A full disk may still have room for less.
            taken = self.backing.take(least);
        }
        let extent = taken.map_err(Shortage::Backing)?;
        reach(Step::Grown);
        if self.members.is_some() && extent.index > growth.last + 1 {
            // A process that is dead had asked for one, and got it only now.
            self.refresh(growth);
            self.attach_holding(growth, extent.addr, true).map_err(Shortage::Puddle)?;
        } else {
            growth.add(&extent);
            self.attach(growth, &extent, AttachMode::New).map_err(Shortage::Puddle)?;
        }
        if let Some(members) = &self.members {
            // It is adopted: the thread that sees the number can attach it.
            self.known.store(u64::from(growth.last) + 1, Ordering::Release);
            members.set_puddles(u64::from(growth.last) + 1);
        }
        let next = self.next_size(growth, 0);
        if next != 0 {
            self.backing.expect(next);
        }
        Ok(())
    }

    /// Bytes of the puddle that is taken next, if `least` are needed; fewer if the pool may not
    /// take so many.
    fn next_size(&self, growth: &Growth, least: u64) -> u64 {
        let left = self.backing.size_max().saturating_sub(growth.bytes) / SUPERBLOCK_SIZE
            * SUPERBLOCK_SIZE;
        next_size(growth.bytes, growth.largest, self.backing.puddle_size())
            .max(least)
            .next_multiple_of(SUPERBLOCK_SIZE)
            .min(left)
    }
}

/// Bytes of the smallest puddle, not a root puddle, in which `count` superblocks fit at a multiple
/// of `align`.
fn size_for(count: u32, align: u32) -> Option<u64> {
    let mut superblocks = u64::from(count) + 1;
    loop {
        let size = superblocks.checked_mul(SUPERBLOCK_SIZE)?;
        match HeapGeometry::new(size, false) {
            Some(g)
                if g.first_usable.next_multiple_of(u64::from(align)) + u64::from(count)
                    <= superblocks =>
            {
                return Some(size);
            }
            Some(g) => {
                superblocks = g.first_usable.next_multiple_of(u64::from(align)) + u64::from(count)
            }
            None => superblocks += 1,
        }
    }
}
