//! A logged heap: sub-heaps by CPU (POS-1; sections 4.1, 5.1 and 5.7).
//!
//! A thread allocates from the sub-heap of the CPU that it runs on: number `cpu mod count`, where
//! `count` is the number of CPUs of this machine. A thread that migrates uses another sub-heap from
//! then on. A block is freed in the sub-heap that it lies in, under that one's lock. So no number
//! of CPUs is stored: on a machine with fewer CPUs the further sub-heaps serve when others are
//! full, and their blocks are freed as before.
//!
//! [`super::grow`] makes sub-heaps and adds parts. This file opens, finds and asks.
//!
//! Locks: a sub-heap's, and the growth lock. A thread holds one sub-heap's lock at a time, and may
//! take it while it has the growth lock, not the other way round.

use super::data::Region;
use super::error::{AllocRefused, Damage, FreeRefused, LoggedError};
use super::make::Recovered;
use super::members::{LoggedHeap, LoggedOptions, METADATA, SubHeapMember, UNKNOWN, hang};
use super::root::HeapRoot;
use super::spares::Growth;
use super::state::SubHeap;
use super::sub_heap::SubHeapStats;
use crate::backing::{Backing, Extent};
use crate::block::BlockInfo;
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::TypeId;
use cenote_layout::logged::{LaneLink, LaneState, SUB_HEAPS_MAX};
use cenote_medium::planted::{Bug, LoggedBug, planted};
use cenote_protect::Protection;
use cenote_sys::cpu_number;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

impl<G: Backing> LoggedHeap<G> {
    /// Makes a heap without sub-heaps in a pool that has its root puddle and no more, and opens it.
    ///
    /// # Errors
    /// The pool has a heap, or no root puddle that is large enough; it is shared or read-only.
    pub fn create(backing: G, options: &LoggedOptions) -> Result<Self, LoggedError> {
        if !backing.is_writable() {
            return Err(LoggedError::ReadOnly);
        }
        let (backing, root) = Self::claim(backing)?;
        let geometry = options.geometry().ok_or(LoggedError::RootSize { size: root.size });
        let made = geometry.and_then(|geometry| {
            // SAFETY: the root puddle is mapped, and this heap has claimed it.
            unsafe { HeapRoot::make(&backing, root, (geometry, options.guards.min(1))) }
        });
        let extents = backing.extents();
        Self::with(backing, made, root, options, extents)
    }

    /// Opens the heap of a pool: ends what a crash broke off. Nothing is traced, and the time does
    /// not depend on the number of blocks.
    ///
    /// # Errors
    /// There is no heap, its metadata are damaged, it is open, or it is shared or read-only.
    pub fn open(backing: G, options: &LoggedOptions) -> Result<(Self, Recovered), LoggedError> {
        if !backing.is_writable() {
            return Err(LoggedError::ReadOnly);
        }
        let (backing, root) = Self::claim(backing)?;
        let extents = backing.extents();
        // SAFETY: the root puddle is mapped, and this heap has claimed it.
        let opened = unsafe { HeapRoot::open(&backing, root) };
        let heap = Self::with(backing, opened, root, options, extents.clone())?;
        let mut recovered = Recovered::default();
        heap.attach_all(&extents, &mut recovered)?;
        heap.end_transactions(&mut recovered)?;
        Ok((heap, recovered))
    }

    /// Opens the heap of a pool as [`LoggedHeap::open`], and makes it if no program has. Where the
    /// pool is open for reading only, nothing is made and nothing is ended: blocks of transactions
    /// that a crash broke off count as free.
    ///
    /// # Errors
    /// As [`LoggedHeap::open`].
    pub fn open_pool(backing: G, options: &LoggedOptions) -> Result<Self, LoggedError> {
        let (backing, root) = Self::claim(backing)?;
        let (extents, is_writable) = (backing.extents(), backing.is_writable());
        let geometry = options.geometry().ok_or(LoggedError::RootSize { size: root.size })?;
        // SAFETY: the root puddle is mapped, and this heap has claimed it.
        let opened = unsafe {
            let unmade = match HeapRoot::is_unmade(root) {
                Ok(true) if extents.len() == 1 => true,
                Ok(true) if options.goes_back => Self::is_never_psynced(&backing, &extents)?,
                _ => false,
            };
            match unmade {
                true if is_writable => {
                    HeapRoot::make(&backing, root, (geometry, options.guards.min(1)))
                }
                true => HeapRoot::unmade(root, geometry),
                false => HeapRoot::open(&backing, root),
            }
        };
        let heap = Self::with(backing, opened, root, options, extents.clone())?;
        let mut recovered = Recovered::default();
        heap.attach_all(&extents, &mut recovered)?;
        match is_writable {
            true => heap.end_transactions(&mut recovered)?,
            false => heap.members().try_for_each(|(_, member)| member.heap.hide_tickets())?,
        }
        Ok(heap)
    }

    /// Whether there is nothing in the puddles of a pool in shadowed mode: each psync stores all or
    /// nothing, so none was made. One that lost its root alone is not taken for it.
    ///
    /// # Safety
    /// As for [`HeapRoot::open`], of all puddles.
    unsafe fn is_never_psynced(backing: &G, extents: &[Extent]) -> Result<bool, LoggedError> {
        for (number, extent) in extents.iter().enumerate() {
            backing.map(extent)?;
            let from = if number == 0 { PAGE_SIZE } else { 0 };
            // SAFETY: the caller's promise is the same, and the puddle is mapped now.
            if !unsafe { HeapRoot::is_zero(*extent, from) } {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the pool for this heap.
    fn claim(backing: G) -> Result<(Arc<G>, Extent), LoggedError> {
        if backing.sharing().is_some() {
            return Err(LoggedError::Shared);
        }
        let root = backing.extents().first().copied().filter(|root| root.index == 0);
        let root = root.ok_or(LoggedError::NoPuddle)?;
        backing.map(&root)?;
        let slot = backing.slot(root.addr).ok_or(LoggedError::NoPuddle)?;
        let mark = without_provenance_mut(METADATA);
        slot.compare_exchange(null_mut(), mark, Ordering::AcqRel, Ordering::Relaxed)
            .map_err(|_| LoggedError::Open)?;
        Ok((Arc::new(backing), root))
    }

    /// A heap whose sub-heaps are not attached yet.
    fn with(
        backing: Arc<G>,
        root: Result<HeapRoot, LoggedError>,
        extent: Extent,
        options: &LoggedOptions,
        extents: Vec<Extent>,
    ) -> Result<Self, LoggedError> {
        let mut root = root.inspect_err(|_| hang(&backing, extent.addr, 0))?;
        let cpus = cpu_number::available().get() as u32;
        let count = if options.sub_heaps == 0 { cpus } else { options.sub_heaps };
        let homes = (0..count.clamp(1, SUB_HEAPS_MAX)).map(|_| AtomicU32::new(UNKNOWN)).collect();
        let members = (0..SUB_HEAPS_MAX).map(|_| OnceLock::new()).collect();
        let growth = Mutex::new(Growth::new(extents, root.guards > 0));
        let (cpu, has_nodes) = (options.cpu, (options.nodes)() > 1);
        let protection = match backing.is_writable() {
            true => options.protection.within(backing.can_map_twice()),
            false => Protection::None,
        };
        let what = format!("pool `{}`", backing.name());
        // SAFETY: the root puddle is mapped as long as the heap lives, which ends the guards before
        // its backing, and is one file; all stores there are the root's own.
        unsafe { root.guard(&*backing, protection, &what) };
        Ok(Self { backing, root, members, homes, growth, cpu, has_nodes, protection, what })
    }

    /// Attaches all sub-heaps that have a word.
    fn attach_all(&self, extents: &[Extent], recovered: &mut Recovered) -> Result<(), LoggedError> {
        extents.iter().skip(1).try_for_each(|extent| self.backing.map(extent))?;
        for number in 0..SUB_HEAPS_MAX {
            let Some(word) = self.root.sub_heap(number)? else { continue };
            let damaged = LoggedError::Puddle { number, puddle: word.puddle };
            let from = u64::from(word.page) * PAGE_SIZE;
            let len = self.root.metadata_len();
            let extent = extents.iter().find(|extent| extent.index == word.puddle);
            let region_in =
                |extent: &Extent| Region { puddle: word.puddle, base: extent.addr, from, len };
            let fits = |extent: &&Extent| self.root.is_place(number, &region_in(extent), extent);
            let region = region_in(extent.filter(fits).ok_or(damaged)?);
            let backing = Arc::clone(&self.backing);
            // SAFETY: the pool is claimed for this heap, all its puddles are mapped, and each
            // sub-heap is opened once; that parts do not overlap, `adopt` looks at before any is
            // used.
            let (heap, undone) =
                unsafe { SubHeap::attach(backing, &region, extents, Some(number)) }
                    .map_err(|source| LoggedError::SubHeap { number, source })?;
            recovered.undone |= undone;
            self.adopt(&mut self.growth(), (number, region), heap)?;
        }
        Ok(())
    }

    /// Ends the transactions that a crash broke off: first the parts of those that another
    /// sub-heap's lane decides, then the deciding ones.
    fn end_transactions(&self, recovered: &mut Recovered) -> Result<(), LoggedError> {
        self.members().for_each(|(_, member)| member.heap.settle_lanes());
        let decide = &mut |link: &LaneLink| -> Option<LaneState> {
            let word = self.member(link.sub_heap)?.heap.lane_word(link.lane).ok()?;
            (word.sequence == link.sequence).then_some(word.state)
        };
        for (_, member) in self.members() {
            recovered.freed += member.heap.recover_linked(decide)?;
        }
        for (_, member) in self.members() {
            recovered.freed += member.heap.recover_own()? + member.heap.recover_tickets()?;
        }
        Ok(())
    }

    /// The sub-heap that a thread allocates from first.
    #[inline]
    pub(crate) fn home(&self) -> Result<(u32, &SubHeapMember<G>), AllocRefused> {
        let cpu = (self.cpu)() % self.homes.len() as u32;
        let number = self.homes[cpu as usize].load(Ordering::Acquire);
        let (number, member) = match self.member(number) {
            Some(member) => (number, member),
            None => self.settle_in(cpu)?,
        };
        if self.has_nodes && !member.near.swap(true, Ordering::Relaxed) {
            self.bring_near(member);
        }
        Ok((number, member))
    }

    /// Allocates at least `size` bytes (0 counts as 1) at a multiple of `align`, for values of
    /// `type_id`, from the sub-heap of this thread's CPU if that can be. Durable on return. The
    /// block holds the bytes that were there before.
    ///
    /// # Errors
    /// Why there is no block; nothing is allocated.
    pub fn alloc(&self, size: u64, align: u64, type_id: TypeId) -> Result<BlockInfo, AllocRefused> {
        let block = self
            .with_room(size.max(align), &mut |_, member| member.heap.alloc(size, align, type_id))?;
        // A page that was lost meanwhile may be the one that says so.
        self.backing.usable()?;
        Ok(block)
    }

    /// Frees the block that begins at `addr`, in the sub-heap that it lies in; 0 is nothing.
    /// Durable on return.
    ///
    /// # Errors
    /// Why the address cannot be freed; nothing has changed.
    pub fn free(&self, addr: u64) -> Result<(), FreeRefused> {
        if addr == 0 {
            return Ok(());
        }
        if planted(Bug::Logged(LoggedBug::FreedInOwnSubHeap)) {
            return self.home().ok().map_or(Ok(()), |(_, member)| member.heap.free(addr));
        }
        self.owner_of(addr)?.1.heap.free(addr)
    }

    /// The allocated block that begins at `addr`.
    ///
    /// # Errors
    /// What `addr` is instead.
    pub fn find(&self, addr: u64) -> Result<BlockInfo, FreeRefused> {
        self.owner_of(addr)?.1.heap.find(addr)
    }

    /// The allocated block that contains `addr`, if one does.
    ///
    /// # Errors
    /// The metadata are damaged where that would stand.
    pub fn owner(&self, addr: u64) -> Result<Option<BlockInfo>, Damage> {
        self.owner_of(addr).map_or(Ok(None), |(_, member)| member.heap.owner(addr))
    }

    /// Numbers and counts of all sub-heaps.
    ///
    /// # Errors
    /// The metadata are damaged.
    pub fn stats(&self) -> Result<Vec<(u32, SubHeapStats)>, Damage> {
        self.members().map(|(number, member)| Ok((number, member.heap.stats()?))).collect()
    }

    /// All sub-heaps, by number.
    pub fn sub_heaps(&self) -> impl Iterator<Item = (u32, &SubHeap<Arc<G>>)> {
        self.members().map(|(number, member)| (number, &member.heap))
    }
}
