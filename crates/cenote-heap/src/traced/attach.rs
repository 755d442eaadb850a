//! Attaches puddles: this process looks at one, and adopts it if no member of the session has.
//!
//! States of a puddle: *pending* (known, not looked at), *adopted* (marks are normalised and
//! volatile words are written, once in a session, under the pool's lock), *attached* (its slot
//! leads to its [`PuddleHeap`], so this process uses it). The store of the session's number into
//! the puddle's first descriptor commits the adoption; the swap of the slot commits the attaching.
//! A crash before either leaves a puddle that the next opener adopts from the start.

use super::adopt::adopt;
use super::held::is_held;
use super::line::BlockList;
use super::list;
use super::mutex::lock;
use super::puddles::Growth;
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::{Backing, Extent};
use crate::capability::Shared;
use crate::error::{OpenError, RecoverError};
use crate::exclusion::Exclusion;
use crate::report::Damage;
use cenote_layout::heap::{Descriptor, SUPERBLOCK_SIZE, SuperblockState, SweepState};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_sys::process_lock::ProcessLock;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Held while a root puddle is attached: of two heaps that are opened on one pool at a time, the
/// second must not touch what the first one uses.
static OPENING: ProcessLock<()> = ProcessLock::new(());

/// What a process may do with a puddle that it attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachMode {
    /// It has taken the puddle a moment ago, and has the pool's lock, where there is one.
    New,
    /// It may adopt the puddle: it has the pool's lock, where there is one.
    Adopting,
    /// It may use what another process has adopted.
    Joining,
}

impl<G: Backing> Shared for TracedHeap<G> {
    #[inline]
    fn exclusion(&self) -> Option<Exclusion<'_>> {
        let members = self.members.as_ref()?;
        let sharing = self.backing.sharing()?;
        Some(Exclusion::new(members.writer(), members, members.own_place(), sharing))
    }

    fn catch_up(&self) -> Result<(), OpenError> {
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
}

impl<G: Backing> TracedHeap<G> {
    /// Learns of puddles that other processes took.
    pub(crate) fn refresh(&self, growth: &mut Growth) {
        if self.members.is_none() {
            return;
        }
        for extent in self.backing.extents() {
            if extent.index > growth.last {
                growth.add(&extent);
                growth.pending.push_back(extent);
            }
        }
        self.known.store(u64::from(growth.last) + 1, Ordering::Release);
    }

    /// Discards the sweep of a member that died while it condemned ([`super::condemn`]).
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
        if is_held(&self.growth) {
            return Ok(false);
        }
        let _turn = self.turn()?;
        let mut growth = lock(&self.growth);
        self.refresh(&mut growth);
        self.attach_locked(&mut growth, true)
    }

    /// The root puddle first, because the lists lie there. Then the newest: it is the likeliest to
    /// have room, so that after a crash the first allocation in a large heap looks at one puddle
    /// and not at all. `adopt`: whether this process may look at one that no thread has looked at;
    /// see `attach`.
    pub(crate) fn attach_locked(
        &self,
        growth: &mut Growth,
        adopt: bool,
    ) -> Result<bool, OpenError> {
        let at = if self.puddles.len() == 0 { 0 } else { growth.pending.len().saturating_sub(1) };
        self.attach_pending(growth, at, adopt)
    }

    fn attach_pending(
        &self,
        growth: &mut Growth,
        at: usize,
        adopt: bool,
    ) -> Result<bool, OpenError> {
        let Some(extent) = growth.pending.get(at).copied() else { return Ok(false) };
        let how = if adopt { AttachMode::Adopting } else { AttachMode::Joining };
        if !self.attach(growth, &extent, how)? {
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

    /// A superblock that a list names, in a puddle that this process has not met: another one took
    /// or adopted it.
    #[cold]
    pub(crate) fn meet(&self, reference: u32) -> Option<(&PuddleHeap, u32)> {
        self.members.as_ref()?;
        self.meet_locked(&mut lock(&self.growth), reference)
    }

    #[cold]
    pub(crate) fn meet_locked(
        &self,
        growth: &mut Growth,
        reference: u32,
    ) -> Option<(&PuddleHeap, u32)> {
        if reference == 0 || self.members.is_none() {
            return None;
        }
        self.refresh(growth);
        // One that is in a list was adopted before. Another thread may have attached it a moment
        // ago.
        let _ = self.attach_holding(growth, u64::from(reference) * SUPERBLOCK_SIZE, false);
        self.superblock(reference)
    }

    /// Attaches the puddle that `addr` is in, if it was not looked at yet.
    pub(crate) fn attach_of(&self, addr: u64) -> Result<bool, OpenError> {
        if is_held(&self.growth) {
            return Ok(false);
        }
        let _turn = self.turn()?;
        let mut growth = lock(&self.growth);
        self.refresh(&mut growth);
        self.attach_holding(&mut growth, addr, true)
    }

    pub(super) fn attach_holding(
        &self,
        growth: &mut Growth,
        addr: u64,
        adopt: bool,
    ) -> Result<bool, OpenError> {
        let holds = |extent: &Extent| addr.wrapping_sub(extent.addr) < extent.size;
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
    pub(super) fn attach(
        &self,
        _locked: &mut Growth,
        extent: &Extent,
        how: AttachMode,
    ) -> Result<bool, OpenError> {
        let (index, addr) = (extent.index, extent.addr);
        self.backing.map(extent).map_err(|source| OpenError::Backing { index, addr, source })?;
        let ordinal = self.puddles.len();
        let _opening = (ordinal == 0).then(|| OPENING.lock());
        let Some(slot) = self.backing.slot(addr) else { return Err(OpenError::NoPuddle) };
        if !slot.load(Ordering::Acquire).is_null() {
            return Err(OpenError::AlreadyOpen);
        }
        // SAFETY: just mapped; it stays so as long as the backing lives, which the heap owns.
        let mut puddle = unsafe { self.mapped(extent, ordinal) }?;
        self.guard(&mut puddle)?;
        let puddle = Arc::new(puddle);
        let session = self.members.as_ref().map(|members| members.session);
        let adopted = session.is_some_and(|session| session == puddle.session());
        let mut listed = Vec::new();
        if adopted && !planted(Bug::JoinAdoptsAgain) {
            puddle.adopted.store(true, Ordering::Release);
        } else if session.is_some() && how == AttachMode::Joining {
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
            lock(&self.damage).extend(adopted.damage);
            reach(Step::Adopting);
            if let Some(session) = session {
                puddle.set_session(session);
            }
            // The thread that took it may have died before it said so to the others.
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
        // The thread that frees a block of the puddle before this waits for the growth lock.
        if slot.compare_exchange(null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return Err(OpenError::AlreadyOpen);
        }
        self.publish_listed(&puddle, &listed);
        Ok(true)
    }

    /// A puddle that was just mapped, if all of its metadata can be read.
    ///
    /// # Safety
    /// The extent is mapped, and stays so as long as the backing.
    unsafe fn mapped(&self, extent: &Extent, ordinal: usize) -> Result<PuddleHeap, OpenError> {
        let (index, addr, size) = (extent.index, extent.addr, extent.size);
        let readable = |lost: Option<u64>| match lost {
            None => Ok(()),
            Some(at) => {
                let source = self.backing.unreadable(at);
                Err(OpenError::Backing { index, addr, source })
            }
        };
        // SAFETY: the caller's.
        let puddle = unsafe {
            readable(PuddleHeap::lost_metadata(addr, size, index))?;
            PuddleHeap::new(addr, size, index, ordinal, self.id, self.writable)
        };
        let mut puddle = puddle.ok_or(OpenError::TooSmall { index, addr, size })?;
        // Before anything is changed: damage is not spread.
        readable(puddle.lost_tiny_marks())?;
        puddle.restores |= self.root_puddle().is_some_and(|root| root.restores);
        Ok(puddle)
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
                list::take_all(&list.head);
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
    fn label(&self, puddle: &PuddleHeap, how: AttachMode) {
        let is_metadata = |number: u32| {
            let descriptor = puddle.descriptor(number);
            descriptor.is_valid() && descriptor.state == SuperblockState::Metadata as u32
        };
        let count = puddle.first_usable();
        if (0..count).all(is_metadata) {
            return;
        }
        let is_new =
            (0..puddle.superblocks()).all(|number| puddle.descriptor(number) == Descriptor::FREE);
        let metadata = Descriptor::metadata(!self.backing.is_power() || !is_new);
        (0..count).for_each(|number| puddle.write_descriptor(number, &metadata));
        // The fence of the first superblock taken makes them durable.
        let first = core::ptr::from_ref(puddle.line(0));
        // SAFETY: descriptors of the mapping, one after the other: a writable pool's.
        unsafe { self.backing.flush(first.cast(), count as usize * size_of::<Descriptor>()) };
        if how == AttachMode::New && is_new && self.cuts() {
            let layout = &puddle.layout;
            // SAFETY: the tiny marks of a puddle that no thread knows yet, and in which no
            // superblock is in use.
            let released = unsafe {
                self.backing.release(puddle.base + layout.tiny, layout.marks - layout.tiny)
            };
            // Space that stays is no fault: the descriptor says that it may be missing.
            let _ = released;
        }
    }

    /// Superblocks that are out of use in the puddles that were looked at so far: because bits of
    /// their descriptors or marks have flipped. A puddle is looked at when it is first touched;
    /// [`Inspect::check`](crate::Inspect::check) looks at all.
    #[must_use]
    pub fn damage(&self) -> Vec<Damage> {
        lock(&self.damage).clone()
    }
}

fn reset_list(list: &BlockList) {
    for word in [&list.key, &list.head] {
        if word.load(Ordering::Relaxed) != 0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}
