//! Where superblocks come from when a bin has none: free ones, empty ones of other bins, puddles not looked at yet, new puddles.
//!
//! Taking superblocks: they leave the free map (nobody else can have them), their bitmaps are cleared, their descriptors written, one flush, one fence, and only
//! then blocks in them can be marked. A crash before the fence completes leaves superblocks that nothing points into, see
//! [`crate::superblock`]. No bin is locked meanwhile.
//!
//! A puddle grows the pool by the size of the largest so far, doubled, up to 64 MiB; or by what one large block needs; at the end by what the
//! limit still allows.

use crate::bin::{Bin, State};
use crate::class::class_size;
use crate::error::{AllocError, GroundError, OpenError, RecoverError};
use crate::ground::{Ground, Plot};
use crate::heap::{Block, Cancelled, Mark};
use crate::large::{Attached, FreeMap};
use crate::superblock::{Claim, PuddleHeap, Use, WORDS, classify};
use crate::traced::{Shortage, TracedHeap, lock, pointer_to};
use cenote_layout::heap::{Descriptor, HeapGeometry, SUPERBLOCK_SIZE, SuperblockState};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Puddles do not double beyond this many bytes.
pub(crate) const PUDDLE_SIZE_MAX: u64 = 64 << 20;

/// A run of superblocks that this thread owns, or "look again".
enum Taken {
    Run(Arc<PuddleHeap>, u32),
    Retry,
}

impl<G: Ground> TracedHeap<G> {
    /// Gives `bin` a superblock with free blocks.
    #[cold]
    #[inline(never)]
    pub(crate) fn refill(&self, bin: &Bin) -> Result<(), Shortage> {
        let _transit = self.in_transit();
        let Taken::Run(puddle, number) = self.take_run(1, 1)? else { return Ok(()) };
        let class = u32::from(bin.class);
        puddle.clear_bitmap(number);
        puddle.write_descriptor(
            number,
            &Descriptor::new(SuperblockState::Small, class, class_size(class), bin.type_id, 0),
        );
        self.persist_descriptors(&puddle, number, 1);
        let entry = &puddle.entries[number as usize];
        let pointer = core::ptr::from_ref(bin).cast_mut();
        let mut state = bin.lock();
        entry.publish(Use::Small, class_size(class), bin.type_id, pointer, 0, puddle.bitmap(number));
        state.push(entry);
        Ok(())
    }

    /// Allocates whole superblocks.
    #[cold]
    #[inline(never)]
    pub(crate) fn alloc_large(
        &self,
        size: u64,
        align: u64,
        type_id: TypeId,
        before: &mut dyn FnMut(&Block) -> Result<(), Cancelled>,
    ) -> Result<Block, AllocError> {
        let size_max = self.ground.size_max();
        if size > size_max {
            return Err(AllocError::Size { size, size_max });
        }
        let Ok(span) = u32::try_from(size.div_ceil(SUPERBLOCK_SIZE).max(1)) else {
            return Err(AllocError::Size { size, size_max });
        };
        let _transit = self.in_transit();
        let align = align.div_ceil(SUPERBLOCK_SIZE) as u32;
        let (puddle, number) = loop {
            match self.take_run(span, align).map_err(|e| e.for_block(size, type_id, size_max))? {
                Taken::Run(puddle, number) => break (puddle, number),
                Taken::Retry => {}
            }
        };
        // Whatever happens before the mark is set, a panic of `before` included, gives the run back.
        let run = Run { heap: self, puddle: &puddle, number, span };
        let bytes = u64::from(span) * SUPERBLOCK_SIZE;
        for k in 0..span {
            puddle.clear_bitmap(number + k);
            let (state, field) = match k {
                0 => (SuperblockState::LargeHead, span),
                _ => (SuperblockState::LargeTail, k),
            };
            puddle.write_descriptor(number + k, &Descriptor::new(state, 0, bytes, type_id, u64::from(field)));
        }
        self.persist_descriptors(&puddle, number, span);
        let head = &puddle.entries[number as usize];
        let block = Block {
            addr: pointer_to(head.base),
            size: bytes,
            mark: Mark { word: puddle.bitmap(number), mask: 1 },
            type_id,
        };
        if before(&block).is_err() {
            return Err(AllocError::Cancelled);
        }
        core::mem::forget(run);
        publish_large(&puddle, number, span, type_id);
        puddle.bitmap_word(number, 0).fetch_or(1, Ordering::Release);
        Ok(block)
    }

    fn persist_descriptors(&self, puddle: &PuddleHeap, number: u32, count: u32) {
        if planted(Bug::DescriptorNotFlushed) {
            return;
        }
        let first = puddle.descriptor_words(number).as_ptr();
        // SAFETY: descriptors `number` to `number + count` lie in the mapping one after the other.
        unsafe { self.ground.flush(first.cast(), count as usize * size_of::<Descriptor>()) };
        self.ground.fence();
    }

    /// Takes `count` superblocks out of free space, making some if there are none.
    fn take_run(&self, count: u32, align: u32) -> Result<Taken, Shortage> {
        let find = || lock(&self.space).take(count, align).map(|(puddle, number)| Taken::Run(puddle, number));
        if let Some(taken) = find() {
            return Ok(taken);
        }
        let growth = lock(&self.growth);
        if let Some(taken) = find() {
            return Ok(taken);
        }
        if self.reclaim_empty()
            && let Some(taken) = find()
        {
            return Ok(taken);
        }
        // Puddles that are there already come before new ones; they may also have free blocks for the bin.
        if self.attach_locked().map_err(Shortage::Puddle)? {
            return Ok(Taken::Retry);
        }
        self.grow(count, align)?;
        drop(growth);
        find().map_or(Ok(Taken::Retry), Ok)
    }

    /// Collects the empty superblocks that bins keep as their current ones.
    fn reclaim_empty(&self) -> bool {
        let mut found = false;
        let bins = lock(&self.bins);
        for bin in bins.values() {
            let mut state = bin.lock();
            if let Some(entry) = state.give_up_empty() {
                // SAFETY: entries live as long as the heap.
                let entry = unsafe { entry.as_ref() };
                if let Ok(puddle) = self.puddle_at(entry.base) {
                    self.retire(puddle, entry);
                    found = true;
                }
            }
        }
        found
    }

    /// Takes a new puddle in which `count` superblocks fit at a multiple of `align`. Growth is locked.
    fn grow(&self, count: u32, align: u32) -> Result<(), Shortage> {
        let size_max = self.ground.size_max();
        let (bytes, largest) = {
            let space = lock(&self.space);
            (space.bytes, space.largest)
        };
        let left = size_max.saturating_sub(bytes) / SUPERBLOCK_SIZE * SUPERBLOCK_SIZE;
        let least = size_for(count, align).ok_or(Shortage::TooLarge)?;
        let doubled = largest.saturating_mul(2).min(PUDDLE_SIZE_MAX.max(self.ground.puddle_size()));
        let size = doubled.max(least).next_multiple_of(SUPERBLOCK_SIZE).min(left);
        if size < least {
            return Err(Shortage::Ground(GroundError::Limit { requested: least, bytes, size_max }));
        }
        let mut taken = self.ground.take(size);
        if taken.is_err() && least < size {
            // A full disk may still have room for less.
            taken = self.ground.take(least);
        }
        let plot = taken.map_err(Shortage::Ground)?;
        {
            let mut space = lock(&self.space);
            space.bytes += plot.size;
            space.largest = space.largest.max(plot.size);
        }
        self.attach(&plot).map_err(Shortage::Puddle)
    }

    /// Attaches the next puddle that was not looked at yet; `false` if there is none.
    pub(crate) fn attach_next(&self) -> Result<bool, OpenError> {
        let _growth = lock(&self.growth);
        self.attach_locked()
    }

    pub(crate) fn attach_locked(&self) -> Result<bool, OpenError> {
        let Some(plot) = lock(&self.space).pending.pop_front() else { return Ok(false) };
        if let Err(error) = self.attach(&plot) {
            lock(&self.space).pending.push_front(plot);
            return Err(error);
        }
        Ok(true)
    }

    /// Attaches all puddles.
    pub(crate) fn attach_all(&self) -> Result<(), RecoverError> {
        while self.attach_next()? {}
        Ok(())
    }

    /// Looks at a puddle: which superblocks are free, which have blocks. Growth is locked.
    fn attach(&self, plot: &Plot) -> Result<(), OpenError> {
        let (index, addr, size) = (plot.index, plot.addr, plot.size);
        self.ground.map(plot).map_err(|source| OpenError::Ground { index, addr, source })?;
        let ordinal = lock(&self.space).puddles.len();
        // SAFETY: just mapped; it stays so as long as the ground lives, which the heap owns.
        let puddle = unsafe { PuddleHeap::new(addr, size, index, ordinal, self.number) };
        let puddle = Arc::new(puddle.ok_or(OpenError::TooSmall { index, addr, size })?);
        let Some(slot) = self.ground.slot(addr) else { return Err(OpenError::NoPuddle) };
        if !slot.load(Ordering::Acquire).is_null() {
            return Err(OpenError::AlreadyOpen);
        }
        if self.writable && puddle.descriptor(0) == Descriptor::FREE {
            let metadata = Descriptor::new(SuperblockState::Metadata, 0, 0, TypeId::UNTYPED, 0);
            let count = puddle.first_usable();
            (0..count).for_each(|i| puddle.write_descriptor(i, &metadata));
            // They say nothing that the puddle's size does not: the fence of the first superblock taken makes them durable.
            // SAFETY: descriptors of the mapping, one after the other.
            unsafe {
                self.ground.flush(
                    puddle.descriptor_words(0).as_ptr().cast(),
                    count as usize * size_of::<Descriptor>(),
                );
            }
        }
        // Blocks first, then free space, then the slot: whoever frees a block of the puddle before that waits for the growth lock.
        let free = adopt(&puddle, &mut |type_id, class, fill| {
            let bin = self.bin(type_id, class);
            fill(bin, &mut bin.lock());
        });
        lock(&self.space).puddles.push(Attached { puddle: Arc::clone(&puddle), free });
        let pointer = Arc::as_ptr(&puddle).cast_mut().cast::<()>();
        match slot.compare_exchange(null_mut(), pointer, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            // Only the root puddle can be somebody else's here, and then the heap is not opened.
            Err(_) => Err(OpenError::AlreadyOpen),
        }
    }
}

/// Superblocks that were taken and are used by nobody yet; dropped, they are free again.
struct Run<'a, G: Ground> {
    heap: &'a TracedHeap<G>,
    puddle: &'a PuddleHeap,
    number: u32,
    span: u32,
}

impl<G: Ground> Drop for Run<'_, G> {
    fn drop(&mut self) {
        lock(&self.heap.space).put(self.puddle.ordinal, self.number, self.span);
    }
}

/// Finds the bin for a type and class, and runs the callback on it, locked.
pub(crate) type WithBin<'a> = dyn FnMut(TypeId, u8, &mut dyn FnMut(&Bin, &mut State)) + 'a;

/// Fills the entries of a puddle, and the bins, from descriptors and marks; returns what is free. Nobody else uses the puddle's superblocks.
pub(crate) fn adopt(puddle: &PuddleHeap, with_bin: &mut WithBin<'_>) -> FreeMap {
    let mut free = FreeMap::new(puddle.superblocks());
    for (number, holds) in contents(puddle).into_iter().enumerate() {
        let (number, entry) = (number as u32, &puddle.entries[number]);
        match holds {
            Holds::Free => {
                entry.hide(Use::Free, 0);
                free.put(number, 1);
            }
            Holds::Metadata => entry.hide(Use::Metadata, 0),
            Holds::Damaged(_) => entry.hide(Use::Damaged, 0),
            Holds::Large { span, type_id } => publish_large(puddle, number, span, type_id),
            Holds::Tail => {}
            Holds::Small { class, type_id, used } => with_bin(type_id, class as u8, &mut |bin, state| {
                let pointer = core::ptr::from_ref(bin).cast_mut();
                entry.hide(Use::Free, 0);
                entry.used.store(used as u16, Ordering::Relaxed);
                entry.publish(Use::Small, class_size(class), type_id, pointer, 0, puddle.bitmap(number));
                if used < bin.blocks {
                    state.push(entry);
                }
            }),
        }
    }
    free
}

/// Makes a large block's superblocks known, tails first.
fn publish_large(puddle: &PuddleHeap, number: u32, span: u32, type_id: TypeId) {
    for k in (1..span).rev() {
        puddle.entries[(number + k) as usize].hide(Use::LargeTail, k);
    }
    let head = &puddle.entries[number as usize];
    head.hide(Use::Free, 0);
    head.publish(Use::LargeHead, SUPERBLOCK_SIZE, type_id, null_mut(), span, puddle.bitmap(number));
}

/// What descriptors and marks together say of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Free,
    Metadata,
    Small { class: u32, type_id: TypeId, used: u32 },
    Large { span: u32, type_id: TypeId },
    Tail,
    Damaged(&'static str),
}

/// Reads descriptors and marks of a puddle.
pub(crate) fn contents(puddle: &PuddleHeap) -> Vec<Holds> {
    let claims = classify(puddle);
    let marked = |i: usize| puddle.bitmap_word(i as u32, 0).load(Ordering::Relaxed) & 1 != 0;
    let mut holds = Vec::with_capacity(claims.len());
    for (i, claim) in claims.iter().enumerate() {
        holds.push(match *claim {
            Claim::Free | Claim::Stale => Holds::Free,
            Claim::Metadata => Holds::Metadata,
            Claim::Small { class, type_id } => match used_blocks(puddle, i as u32, class) {
                0 => Holds::Free,
                used => Holds::Small { class, type_id, used },
            },
            Claim::Large { span, type_id } if marked(i) => Holds::Large { span, type_id },
            Claim::Large { .. } => Holds::Free,
            Claim::Tail { distance, valid } => match holds.get(i - distance as usize) {
                Some(Holds::Large { .. }) => Holds::Tail,
                Some(Holds::Damaged(_)) => {
                    Holds::Damaged("it belongs to a large block whose head is damaged")
                }
                _ if valid || puddle.bitmap_is_empty(i as u32) => Holds::Free,
                _ => Holds::Damaged("checksum does not fit"),
            },
            Claim::Invalid(_) if puddle.bitmap_is_empty(i as u32) => Holds::Free,
            Claim::Invalid(reason) => Holds::Damaged(reason),
        });
    }
    holds
}

/// Marks that are set, those beyond the last block not counted.
pub(crate) fn used_blocks(puddle: &PuddleHeap, number: u32, class: u32) -> u32 {
    let blocks = crate::class::blocks_per_superblock(class) as usize;
    (0..WORDS.min(blocks.div_ceil(64)))
        .map(|w| {
            let word = puddle.bitmap_word(number, w).load(Ordering::Relaxed);
            let rest = blocks - w * 64;
            (if rest < 64 { word & ((1 << rest) - 1) } else { word }).count_ones()
        })
        .sum()
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
