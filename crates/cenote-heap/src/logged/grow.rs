//! Makes sub-heaps, and adds parts to those that are full (POS-1; sections 4.1 and 5.6).
//!
//! **A sub-heap** is made at the first allocation on a CPU. States, and what a crash leaves:
//!
//! 1. Puddles are taken for its data and, if the root puddle has no room, its metadata. *Puddles
//!    that nothing names: the next open finds them, and the next part uses them.*
//! 2. Its metadata are stored, flushed and fenced ([`super::make`]). *The same; what was stored is
//!    overwritten by zeros before the room is used again.*
//! 3. **The store of its word commits.** *The sub-heap is there.*
//!
//! **A full sub-heap grows** by a puddle until the pool is at its limit. Then other sub-heaps are
//! asked, by number. Asking them first would make threads wait for each other's locks. The price:
//! until the pool is at its limit, up to one puddle for each CPU has free blocks that other CPUs do
//! not use.
//!
//! A data puddle has as many bytes as the sub-heap has data, up to 32 MiB; then a quarter of that.
//! So a sub-heap has few parts.

use super::buddy::class_for;
use super::data::Region;
use super::error::{AllocRefused, LoggedError, SubHeapError};
use super::make::SubHeapPlace;
use super::members::{LoggedHeap, SubHeapMember, UNKNOWN, hang};
use super::root::zero;
use super::spares::{PUDDLE_UNIT, TakenFor};
use super::state::SubHeap;
use crate::backing::Backing;
use crate::block::BlockInfo;
use cenote_layout::logged::SubHeapWord;
use cenote_layout::puddle::header_space;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};
use cenote_medium::planted::{Bug, LoggedBug, Step, planted, reach};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Sub-heaps with less data double.
const DOUBLING: u64 = 32 << 20;
/// How often an allocation grows its sub-heap: other threads may take what it added.
const TRIES: u32 = 8;

/// What needs room in a sub-heap, of which it is told the number.
pub(crate) type Act<'a, G> =
    dyn FnMut(u32, &SubHeapMember<G>) -> Result<BlockInfo, AllocRefused> + 'a;

/// Bytes of the smallest puddle that has a block of a class.
fn puddle_for(class: u8) -> u64 {
    let block = 1u64 << class;
    if block < SLOT_SIZE {
        return (2 * block).max(PUDDLE_UNIT);
    }
    let mut before = SLOT_SIZE;
    while header_space(block + before) > before {
        before += SLOT_SIZE;
    }
    block + before
}

impl<G: Backing> LoggedHeap<G> {
    /// Finds a CPU its sub-heap: the one with its number, which is made if it is not there; if it
    /// cannot be made, another.
    #[cold]
    pub(crate) fn settle_in(&self, cpu: u32) -> Result<(u32, &SubHeapMember<G>), AllocRefused> {
        let made = match self.member(cpu) {
            Some(_) => Ok(()),
            None => self.make_sub_heap(cpu),
        };
        let number = match made {
            Ok(()) => cpu,
            Err(error) => {
                let numbers: Vec<u32> = self.members().map(|(number, _)| number).collect();
                match numbers.len() {
                    0 => return Err(error),
                    count => numbers[cpu as usize % count],
                }
            }
        };
        self.homes[cpu as usize].store(number, Ordering::Release);
        let none = AllocRefused::Full { size: UNKNOWN.into() };
        Ok((number, self.member(number).ok_or(none)?))
    }

    /// Makes sub-heap `number`, if no other thread has.
    fn make_sub_heap(&self, number: u32) -> Result<(), AllocRefused> {
        let mut growth = self.growth();
        if self.member(number).is_some() {
            return Ok(());
        }
        let first = self.backing.puddle_size().next_multiple_of(PUDDLE_UNIT);
        let data = growth.take(&*self.backing, TakenFor::Data, (PUDDLE_UNIT, first))?;
        let metadata = match self.root.room(number) {
            Some(region) => region,
            None => {
                let (len, guards) = (self.root.metadata_len(), self.root.guards);
                let size = Region::puddle_len(len, guards).next_multiple_of(PUDDLE_UNIT);
                let used = growth.use_up(data.index);
                let taken = growth.take(&*self.backing, TakenFor::Metadata, (size, size));
                growth.give_back(used);
                Region::for_metadata(&taken?, len, guards)
            }
        };
        let word =
            SubHeapWord { puddle: metadata.puddle, page: (metadata.from / PAGE_SIZE) as u32 };
        let bits = word.encode(number).ok_or(AllocRefused::TableFull)?;
        if planted(Bug::Logged(LoggedBug::SubHeapNamedEarly)) {
            self.root.name(number, bits, &*self.backing);
        }
        if !planted(Bug::Logged(LoggedBug::SpareBelievedZero)) {
            // SAFETY: the region is in a puddle of the pool, mapped, and no sub-heap names it.
            unsafe { zero(metadata.addr(), metadata.len, &*self.backing) };
        }
        let place = SubHeapPlace { data: Region::body(&data), metadata };
        let (backing, geometry) = (Arc::clone(&self.backing), self.root.geometry);
        // SAFETY: both regions lie in puddles of the pool that no sub-heap names, or are this
        // sub-heap's part of the root puddle; the metadata are zeros.
        let made = unsafe { SubHeap::make(backing, &place, number, geometry) };
        let heap = made.map_err(|error| match error {
            SubHeapError::Backing(error) => AllocRefused::Backing(error),
            SubHeapError::Damaged(damage) => AllocRefused::Damaged(damage),
            _ => AllocRefused::TableFull,
        })?;
        reach(Step::SubHeapMade);
        if !planted(Bug::Logged(LoggedBug::SubHeapNamedEarly)) {
            self.root.name(number, bits, &*self.backing);
        }
        reach(Step::SubHeapNamed);
        self.adopt(&mut growth, (number, metadata), heap).map_err(|error| match error {
            LoggedError::Backing(error) => AllocRefused::Backing(error),
            _ => AllocRefused::TableFull,
        })
    }

    /// Does something that needs room for a block of `size` bytes in a sub-heap: in this thread's,
    /// which grows if it is full; when the pool may not grow, in another.
    pub(crate) fn with_room(
        &self,
        size: u64,
        act: &mut Act<'_, G>,
    ) -> Result<BlockInfo, AllocRefused> {
        let (number, member) = self.home()?;
        match act(number, member) {
            Err(refused) if refused.is_full() => self.with_more(size, number, refused, act),
            done => done,
        }
    }

    #[cold]
    fn with_more(
        &self,
        size: u64,
        home: u32,
        mut refused: AllocRefused,
        act: &mut Act<'_, G>,
    ) -> Result<BlockInfo, AllocRefused> {
        for _ in 0..TRIES {
            let Some(member) = self.member(home) else { break };
            let wants_data = matches!(refused, AllocRefused::Full { .. });
            let grown = match refused {
                AllocRefused::Full { .. } => self.add_data_to(home, member, size),
                AllocRefused::TableFull => self.add_levels_to(member),
                other => Err(other),
            };
            match grown {
                Ok(()) => {}
                // Levels first: more data have free blocks, which need records.
                Err(AllocRefused::TableFull) if wants_data => {
                    refused = AllocRefused::TableFull;
                    continue;
                }
                Err(error) => {
                    refused = error;
                    break;
                }
            }
            match act(home, member) {
                Err(error) if error.is_full() => refused = error,
                done => return done,
            }
        }
        let others = self.members().filter(|(number, _)| *number > home);
        for (number, member) in others.chain(self.members().filter(|(number, _)| *number < home)) {
            match act(number, member) {
                Err(error) if error.is_full() => {}
                done => return done,
            }
        }
        Err(refused)
    }

    /// Adds data to a sub-heap that has no block of `size` bytes, unless another thread just did.
    fn add_data_to(
        &self,
        number: u32,
        member: &SubHeapMember<G>,
        size: u64,
    ) -> Result<(), AllocRefused> {
        let class = class_for(size).ok_or(AllocRefused::Full { size })?;
        let before = member.heap.data_bytes();
        let mut growth = self.growth();
        if member.heap.data_bytes() != before {
            return Ok(());
        }
        let more = if before < DOUBLING { before } else { before / 4 };
        let wanted = more.next_multiple_of(SLOT_SIZE).max(self.backing.puddle_size());
        let least = puddle_for(class);
        let extent = growth.take(&*self.backing, TakenFor::Data, (least, wanted.max(least)))?;
        let body = Region::body(&extent);
        self.backing.begin_data(body.addr(), body.len)?;
        // Before another thread can get a block there, and free it.
        self.mark(&extent, Some(number));
        // SAFETY: a puddle of the pool, mapped, that no sub-heap names; its body is of the data of
        // this sub-heap from now on.
        let added = unsafe { member.heap.add_data(&body) };
        added.inspect_err(|_| {
            hang(&self.backing, extent.addr, 0);
            self.backing.end_data(extent.addr);
        })?;
        growth.use_up(extent.index);
        self.bring_near(member);
        Ok(())
    }

    /// Adds levels to the table of a sub-heap.
    fn add_levels_to(&self, member: &SubHeapMember<G>) -> Result<(), AllocRefused> {
        let before = member.heap.next_levels().ok_or(AllocRefused::TableFull)?;
        let mut growth = self.growth();
        if member.heap.next_levels() != Some(before) {
            return Ok(());
        }
        let (first, count, len) = before;
        let size = Region::puddle_len(len, self.root.guards).next_multiple_of(PUDDLE_UNIT);
        let extent = growth.take(&*self.backing, TakenFor::Metadata, (size, size))?;
        let region = Region::for_metadata(&extent, len, self.root.guards);
        // SAFETY: a range of a puddle of the pool, mapped, that no sub-heap names.
        unsafe {
            zero(region.addr(), region.len, &*self.backing);
            member.heap.add_levels(&region, &extent, (first, count))?;
        }
        growth.use_up(extent.index);
        self.bring_near(member);
        self.mark(&extent, None);
        Ok(())
    }
}
