//! The sweep: repairs what dead members of a pool had, while the others go on.
//!
//! A dead member leaves one or more of these states. For each there is a rule that looks at the
//! heap alone, never at what the member meant to do:
//!
//! | state | the rule | it died |
//! | --- | --- | --- |
//! | marks with its number | FREE; announced | with blocks in caches, or held by a transaction |
//! | FREE marks in a FULL superblock | announced | between freeing blocks and announcing them |
//! | LISTED, in no list | pushed | between announcing and pushing, |
//! | | | between popping and settling, or pushing back, |
//! | | | scavenging, or adopting |
//! | TAKEN | given back | between taking and FULL, or LARGE, |
//! | | | or between retiring and giving back |
//! | head without a mark and in no list; | given back | while it made or freed a large block, |
//! | head with its mark; tails without a head | | or used a run that had stayed together |
//! | FREE, no hint | hint set | between giving back and its hint |
//!
//! The rules need two things. *No living member is in one of these states*: the gate is closed
//! ([`super::gate`]), and all of these states are inside it. *The caller tells which members
//! are dead*, by [`crate::backing::Sharing`]. A log of the dead member is replayed before
//! it is said to be dead, so what a transaction held or took is decided: a mark that replay cleared
//! is FREE in a FULL superblock, or of a large head, and the rules above cover it.
//!
//! **No superblock is in two lists**: one is pushed by the sweep only if a walk through all lists,
//! which no thread changes meanwhile, did not meet it. **None is lost**: after the first closing
//! each superblock is FREE with its hint, LISTED in its list, FULL, part of a large block that a
//! thread has, or in use by no thread for ever (metadata, damaged).
//!
//! **A sweep that dies is repeated**: each rule's last store takes the superblock out of the rule's
//! state, and the stores before it do no harm there. The dead sweeper's own hands (a superblock
//! that it announced and did not push) are such states too. Seats are cleared at the end, so the
//! numbers in marks mean the same dead members to the thread that goes on.
//!
//! **How long others wait.** The fast paths, never. The slow paths, while the gate is closed: once
//! for all lists and descriptors (64 bytes for each 64 KiB), then once for each puddle (1 KiB for
//! each 64 KiB, at most 1 MiB in a puddle of 64 MiB). The gate is open in between. A sweeper waits
//! for others to come out for a quarter of a second at most, and opens the gate again if they do
//! not: one that is stopped inside delays the sweep only. A sweeper that is stopped while the gate
//! is closed stops the slow paths of all until it goes on, or is killed.
//!
//! Until a sweep, a dead member's blocks and superblocks are out of use; nothing else suffers.

use super::anchor;
use super::marks;
use super::members::Members;
use super::mutex::lock;
use super::runs::RunWords as _;
use super::state::TracedHeap;
use super::superblock::PuddleHeap;
use crate::backing::{Backing, Sharing};
use crate::error::RecoverError;
use cenote_layout::heap::{Descriptor, mark};
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Dead members whose seats are free now.
    pub members: u32,
    /// Blocks that they had, small ones.
    pub blocks: u64,
    /// Superblocks that they had in hands, and those of large blocks.
    pub superblocks: u64,
    /// The longest time for which the slow paths of others could not begin.
    pub longest_pause: Duration,
}

impl<G: Backing> TracedHeap<G> {
    /// Number of this process among those that have the pool open; `None` if they cannot be
    /// several.
    #[must_use]
    pub fn member(&self) -> Option<u8> {
        self.members.as_ref().map(|members| members.number)
    }

    /// Looks for members that died, and gives back what they had in caches and hands. Slow paths do
    /// it by themselves when they find no free superblock, and a member that joins does; call it
    /// when a process is known to have died. Others go on meanwhile, see the module's head for how
    /// long they may wait.
    ///
    /// Nothing is flushed but what a superblock's taking had left half written: after a loss of
    /// power, tracing decides.
    ///
    /// # Errors
    /// [`RecoverError::NotQuiet`]: a living member did not leave its slow path in time (it is
    /// stopped, perhaps); nothing is lost, try again. A puddle cannot be mapped, or the pool's lock
    /// not be had.
    pub fn sweep_dead(&self) -> Result<Swept, RecoverError> {
        let (Some(members), Some(sharing)) = (&self.members, self.backing.sharing()) else {
            return Ok(Swept::default());
        };
        if members.dead(sharing) == 0 {
            return Ok(Swept::default());
        }
        let _turn = members.lock(sharing)?;
        self.sweep_locked(members, sharing)
    }

    /// The same. The caller has the lock and is outside the gate.
    fn sweep_locked(
        &self,
        members: &Members,
        sharing: &dyn Sharing,
    ) -> Result<Swept, RecoverError> {
        let dead = members.dead(sharing);
        let mut swept = Swept { members: dead.count_ones(), ..Swept::default() };
        if dead == 0 {
            return Ok(swept);
        }
        // Adopting or taking a puddle needs the lock: after this there are no others.
        self.attach_adopted(&mut lock(&self.growth))?;
        let puddles = self.puddles.all();
        if !planted(Bug::SweepForgetsHands) {
            let began = Instant::now();
            let _closed = members.close(sharing)?;
            reach(Step::SweepClosed);
            self.empty_hands(&puddles, dead, &mut swept);
            self.backing.fence();
            swept.longest_pause = began.elapsed();
        }
        for puddle in &puddles {
            let began = Instant::now();
            let _closed = members.close(sharing)?;
            self.empty_caches(puddle, dead, &mut swept);
            swept.longest_pause = swept.longest_pause.max(began.elapsed());
        }
        reach(Step::SweepDone);
        members.clear(dead);
        Ok(swept)
    }

    /// Leaves the pool, when the heap is closed: what this process has is as a dead member's.
    pub(crate) fn leave(&self) {
        let (Some(members), Some(sharing)) = (&self.members, self.backing.sharing()) else {
            return;
        };
        // Without the lock nothing can be done, and nothing has to: once the process has ended, it
        // is found dead.
        let Ok(_turn) = members.lock(sharing) else { return };
        members.leave();
        if members.others(sharing) != 0 {
            // If it fails, others do it.
            let _ = self.sweep_locked(members, sharing);
        }
    }

    /// The superblocks that are in lists: a bit for each, by puddle.
    fn listed(&self, puddles: &[Arc<PuddleHeap>]) -> Vec<Vec<u64>> {
        let mut listed: Vec<Vec<u64>> = puddles
            .iter()
            .map(|puddle| vec![0; puddle.superblocks().div_ceil(64) as usize])
            .collect();
        for list in self.lists() {
            let mut reference = list.head.load(Ordering::Acquire) as u32;
            while let Some((puddle, number)) = self.superblock(reference) {
                let Some(word) =
                    listed.get_mut(puddle.ordinal).and_then(|l| l.get_mut(number as usize / 64))
                else {
                    break;
                };
                let bit = 1 << (number % 64);
                // A ring: the list was overwritten.
                if *word & bit != 0 {
                    break;
                }
                *word |= bit;
                reference = puddle.line(number).next.load(Ordering::Acquire) as u32;
            }
        }
        listed
    }

    /// Puts superblocks right that are in no thread's hands. The gate is closed.
    fn empty_hands(&self, puddles: &[Arc<PuddleHeap>], dead: u64, swept: &mut Swept) {
        let listed = self.listed(puddles);
        for puddle in puddles {
            for number in puddle.first_usable()..puddle.superblocks() {
                let line = puddle.line(number);
                let seen = line.anchor.load(Ordering::Acquire);
                let value = anchor::value(seen);
                let in_list =
                    listed[puddle.ordinal][number as usize / 64] >> (number % 64) & 1 != 0;
                match anchor::state(seen) {
                    // As it should be; so are idle runs.
                    anchor::LISTED | anchor::LARGE_HEAD if in_list => continue,
                    anchor::LISTED => {
                        self.push(puddle, number, line.type_id(), line.class());
                        swept.superblocks += 1;
                    }
                    anchor::TAKEN => {
                        self.give_back(puddle, number);
                        swept.superblocks += 1;
                    }
                    anchor::LARGE_HEAD => {
                        let mark = puddle.outer_marks(number)[0].load(Ordering::Acquire);
                        if mark != mark::FREE && !marks::is_of(mark, dead) {
                            continue;
                        }
                        // The tails follow in this loop: they have no head then.
                        self.give_back(puddle, number);
                        swept.superblocks += 1;
                    }
                    anchor::LARGE_TAIL => {
                        let head =
                            number.checked_sub(value as u32).filter(|_| value <= u64::from(number));
                        let whole = head.is_some_and(|head| {
                            let head = puddle.line(head).anchor.load(Ordering::Acquire);
                            anchor::state(head) == anchor::LARGE_HEAD && anchor::value(head) > value
                        });
                        if whole {
                            continue;
                        }
                        self.give_back(puddle, number);
                        swept.superblocks += 1;
                    }
                    anchor::FREE => {
                        puddle.hints(number / 64).fetch_or(1 << (number % 64), Ordering::Release);
                        continue;
                    }
                    _ => continue,
                }
                reach(Step::SweepHand);
            }
        }
    }

    /// Makes a superblock that no thread has free: blocks, marks and an unfinished descriptor are
    /// gone before its anchor says so.
    fn give_back(&self, puddle: &PuddleHeap, number: u32) {
        let line = puddle.line(number);
        line.hide();
        if !puddle.descriptor(number).is_valid() {
            // Perhaps it was becoming a hole, or had been one.
            puddle.write_descriptor(number, &Descriptor::hole());
            // SAFETY: a descriptor of the mapping; only writable pools have members.
            unsafe {
                self.backing.flush(core::ptr::from_ref(line).cast(), size_of::<Descriptor>())
            };
        }
        puddle.clear_outer_marks(number);
        self.put_run(puddle, number, 1);
    }

    /// Makes the small blocks free that dead members have, and announces all that are free. The
    /// gate is closed.
    fn empty_caches(&self, puddle: &PuddleHeap, dead: u64, swept: &mut Swept) {
        for number in puddle.first_usable()..puddle.superblocks() {
            let line = puddle.line(number);
            let state = anchor::state(line.anchor.load(Ordering::Acquire));
            if state != anchor::FULL && state != anchor::LISTED {
                continue;
            }
            let (freed, any) = marks::free_dead(puddle.class_marks(number, line.class()), dead);
            swept.blocks += freed;
            if freed != 0 {
                reach(Step::SweepFreed);
            }
            // One that is LISTED is in its list.
            if any
                && state == anchor::FULL
                && !planted(Bug::SweepNotAnnounced)
                && anchor::announce(&line.anchor)
            {
                self.push(puddle, number, line.type_id(), line.class());
            }
        }
    }
}
