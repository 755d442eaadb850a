//! The slow path of small blocks: a bin that is empty is refilled, one that is full spills.
//! Lock-free but for the taking of puddles.
//!
//! **Refill.** From the current superblock if it has blocks left. Else a superblock is popped from
//! the list of its type and class (first swap), all its FREE marks become CACHED, and its anchor is
//! settled to FULL (second swap); see [`super::anchor`] for why nothing is lost. Else a free
//! superblock is taken.
//!
//! **Spill.** The older half of the stack: what belongs to the current superblock goes back there;
//! the marks of the rest become FREE, and each of their superblocks is announced, and pushed to its
//! list if it was FULL.
//!
//! **Lists.** 384 heads in the root puddle; a type and class gets one of its own, at one of eight
//! places that its hash says, as long as there is one. Types that come when all eight are others'
//! share one: the thread that pops a superblock of another kind keeps it aside for a moment and
//! pushes it where it belongs. Idle runs of large blocks are in these lists too ([`super::large`]).
//!
//! A superblock is set up as small in these steps, each after the one before: space taken for tiny
//! marks, if it needs them; marks zero; descriptor written, flushed and fenced; TINY if it uses
//! tiny marks; marks CACHED; geometry; anchor FULL. A crash in between leaves it free. (Marks are
//! not flushed: no mark of a superblock that is free says "allocated" on the medium, since the free
//! of its last block made that durable.)
//!
//! Where processes share the heap, all of this happens inside the gate ([`super::gate`]).

use super::anchor;
use super::bin::{Bin, BinEntry};
use super::cache::Cache;
use super::large::large_kind;
use super::line::{BlockList, DescriptorLine};
use super::list;
use super::marks;
use super::marks::WORDS;
use super::puddles::Shortage;
use super::puddles::{Growth, TakenSuperblocks, Tries};
use super::state::TracedHeap;
use super::superblock::{PuddleHeap, clear, is_tiny_class};
use crate::backing::Backing;
use crate::class::{blocks_per_superblock, class_size, small_end};
use crate::error::BackingError;
use crate::stored::stored;
use cenote_layout::heap::{Descriptor, SUPERBLOCK_SIZE, SuperblockState, TINY_MARKS_SIZE, mark};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::sync::atomic::{AtomicU8, Ordering};

/// Places where the list of a type and class may be.
const PLACES: u64 = 8;
/// Superblocks of other kinds that a refill looks at.
const STRANGERS: usize = 8;

impl<G: Backing> TracedHeap<G> {
    /// Puts blocks on the stack of an empty bin.
    ///
    /// # Safety
    /// `cache` is this thread's, and `bin` one of its bins, with an empty stack.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn refill(&self, cache: *mut Cache, bin: *mut Bin) -> Result<(), Shortage> {
        let mut tries = Tries::default();
        let mut inside = self.enter().map_err(Shortage::Backing)?;
        self.take_in_orphans();
        // SAFETY: the caller's. Nothing below but `take_run` reaches the cache by itself, and no
        // reference is held across it.
        unsafe {
            while (*bin).current.left == 0 {
                let kind = ((*bin).type_id, (*bin).class);
                if let Some((puddle, number)) = self.pop((*bin).list, kind) {
                    reach(Step::Popped);
                    self.claim(&mut *bin, puddle, number);
                    continue;
                }
                match self.take_run(cache, 1, 1, tries)? {
                    TakenSuperblocks::Run(puddle, number) => {
                        if let Err(error) = self.set_up(&mut *bin, puddle, number) {
                            self.put_run(puddle, number, 1);
                            return Err(Shortage::Backing(error));
                        }
                    }
                    TakenSuperblocks::Retry => {}
                    TakenSuperblocks::Outside(errand) => {
                        drop(inside);
                        self.step_out(errand, &mut tries).map_err(Shortage::Puddle)?;
                        inside = self.enter().map_err(Shortage::Backing)?;
                    }
                }
            }
            (*bin).fill();
        }
        drop(inside);
        Ok(())
    }

    /// Makes all FREE blocks of a superblock that is in our hands the bin's.
    fn claim(&self, bin: &mut Bin, puddle: &PuddleHeap, number: u32) {
        let line = puddle.line(number);
        let seen = line.anchor.load(Ordering::Acquire);
        let marks = puddle.class_marks(number, bin.class);
        bin.current.bits = [0; WORDS];
        let left = marks::claim(marks, self.cached, &mut bin.current.bits);
        reach(Step::Claimed);
        if !anchor::settle(&line.anchor, seen) {
            // More was announced meanwhile: it stays listed.
            list::push(&self.lists()[bin.list as usize].head, puddle.reference(number), &line.next);
        }
        set_current(bin, puddle.address(number), puddle.read_at(&marks[0]), left);
    }

    /// Makes a superblock that this thread has taken one of the bin's kind, with all its blocks the
    /// bin's. If there is no space for its marks, it is as it was.
    fn set_up(&self, bin: &mut Bin, puddle: &PuddleHeap, number: u32) -> Result<(), BackingError> {
        reach(Step::Taken);
        let size = class_size(bin.class);
        let line = puddle.line(number);
        let tiny = is_tiny_class(bin.class);
        if tiny && puddle.may_lack_tiny() && !planted(Bug::HoleNotEnsured) {
            let page = puddle.base + puddle.layout.marks_at(number.into(), size);
            self.backing.ensure(page, TINY_MARKS_SIZE)?;
        }
        puddle.clear_outer_marks(number);
        reach(Step::MarksCleared);
        let marks = puddle.class_marks(number, bin.class);
        if tiny && !planted(Bug::MarksNotCleared) {
            clear(puddle.tiny_marks(number));
        }
        let cut = small_end(size).filter(|_| self.cuts());
        let state = if cut.is_some() { SuperblockState::SmallCut } else { SuperblockState::Small };
        let descriptor = Descriptor::new(state, bin.class, size, bin.type_id, 0);
        puddle.write_descriptor(number, &descriptor);
        reach(Step::Described);
        self.persist_descriptors(puddle, number, 1);
        reach(Step::DescriptorDurable);
        if let Some(end) = cut {
            self.cut(puddle, number, 1, end);
        }
        if tiny {
            puddle.outer_marks(number)[0].store(mark::TINY, Ordering::Release);
            reach(Step::TinyNoted);
        }
        bin.current.bits = [0; WORDS];
        let left = marks::claim(marks, self.cached, &mut bin.current.bits);
        reach(Step::AllClaimed);
        line.publish(size);
        reach(Step::SetUp);
        anchor::leave(&line.anchor, anchor::FULL);
        set_current(bin, puddle.address(number), puddle.read_at(&marks[0]), left);
        Ok(())
    }

    pub(crate) fn persist_descriptors(&self, puddle: &PuddleHeap, number: u32, count: u32) {
        if planted(Bug::DescriptorNotFlushed) {
            return;
        }
        let first = core::ptr::from_ref(puddle.line(number));
        // SAFETY: descriptors `number` to `number + count` lie in the mapping one after the other:
        // only writable pools come here.
        unsafe { self.backing.flush(first.cast(), count as usize * size_of::<Descriptor>()) };
        self.backing.fence();
    }

    /// Gives the older half of a full stack back.
    ///
    /// # Safety
    /// `bin` is a bin of this thread's cache.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn spill(&self, bin: *mut Bin) {
        let inside = self.enter();
        // SAFETY: the caller's; nothing below reaches the bin by another way.
        let bin = unsafe { &mut *bin };
        let count = bin.len.div_ceil(2);
        let Ok(_inside) = inside else {
            // They stay this member's until a sweep: it does nothing more that counts.
            return bin.forget(count as usize);
        };
        self.take_in_orphans();
        let mut freed = Freed::new(self, bin.list);
        let (entries, current) = bin.oldest(count);
        for entry in entries {
            if freed.is_next(entry) {
                freed.free(entry);
            } else if !current.keep(entry) {
                freed.add(entry);
            }
        }
        freed.announce_all();
        bin.forget(count as usize);
    }

    fn announce(&self, reference: u32, list: u32) {
        if planted(Bug::SpillNotAnnounced) {
            return;
        }
        if let Some((puddle, number)) = self.superblock(reference) {
            let line = puddle.line(number);
            if anchor::announce(&line.anchor) {
                reach(Step::Announced);
                list::push(&self.lists()[list as usize].head, reference, &line.next);
            }
        }
    }

    /// Makes all blocks of a cache free for all.
    ///
    /// # Safety
    /// The cache is this thread's, or no thread's.
    pub(crate) unsafe fn empty(&self, cache: *mut Cache) {
        // SAFETY: the caller's.
        let bins: Vec<*mut Bin> = unsafe { &*cache }.bins().collect();
        for bin in bins {
            // SAFETY: bins live as long as their cache.
            let bin = unsafe { &mut *bin };
            let mut freed = Freed::new(self, bin.list);
            bin.oldest(bin.len).0.for_each(|entry| freed.add(entry));
            freed.announce_all();
            bin.forget(bin.len as usize);
            if bin.current.left != 0 {
                for (w, bits) in bin.current.bits.iter_mut().enumerate() {
                    let mut rest = core::mem::take(bits);
                    while rest != 0 {
                        let index = w * 64 + rest.trailing_zeros() as usize;
                        rest &= rest - 1;
                        // SAFETY: a mark of the current superblock, where it is stored.
                        unsafe {
                            let mark = stored(bin.current.marks.add(index), self.distance);
                            (*mark).store(mark::FREE, Ordering::Release);
                        }
                    }
                }
                bin.current.left = 0;
                self.announce((bin.current.base / SUPERBLOCK_SIZE) as u32, bin.list);
            }
        }
    }

    /// Gives back what ended threads had in their caches.
    #[inline]
    pub(crate) fn take_in_orphans(&self) {
        while let Some(orphan) = self.shared.take_orphan() {
            // SAFETY: an orphan belongs to the thread that took it off the list.
            unsafe { self.empty(orphan) };
            self.shared.rest(orphan);
        }
    }

    /// The pool's lists.
    pub(crate) fn lists(&self) -> &[BlockList] {
        self.puddles.get(0).map_or(&[], PuddleHeap::lists)
    }

    /// A superblock by its reference.
    pub(crate) fn superblock(&self, reference: u32) -> Option<(&PuddleHeap, u32)> {
        // Only attached puddles have listed superblocks.
        let puddle = self.known_puddle(u64::from(reference) * SUPERBLOCK_SIZE)?;
        let (_, number, _) = puddle.line_at(u64::from(reference) * SUPERBLOCK_SIZE)?;
        Some((puddle, number))
    }

    /// The list of a type and class.
    pub(crate) fn list_of(&self, type_id: TypeId, class: u32) -> u32 {
        let lists = self.lists();
        let len = lists.len().max(1) as u64;
        let mut key = (type_id.0 ^ u64::from(class) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        key = ((key ^ key >> 29) ^ u64::from(class)).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
        let first = key >> 40;
        for place in 0..PLACES {
            let at = ((first + place) % len) as usize;
            let Some(list) = lists.get(at) else { break };
            let known = list.key.load(Ordering::Relaxed);
            let mine = known == key
                || known == 0
                    && match list.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed)
                    {
                        Ok(_) => true,
                        Err(now) => now == key,
                    };
            if mine {
                return at as u32;
            }
        }
        (first % len) as u32
    }

    fn pop_any(&self, list: u32) -> Option<(&PuddleHeap, u32)> {
        let head = &self.lists().get(list as usize)?.head;
        let link = |reference| {
            let (puddle, number) = self.superblock(reference).or_else(|| self.meet(reference))?;
            Some(&puddle.line(number).next)
        };
        self.superblock(list::pop(head, link)?)
    }

    /// Pops a superblock of this type and class.
    pub(crate) fn pop(&self, list: u32, kind: (TypeId, u32)) -> Option<(&PuddleHeap, u32)> {
        let mut strangers = [None; STRANGERS];
        let mut found = None;
        for place in &mut strangers {
            let Some((puddle, number)) = self.pop_any(list) else { break };
            if kind_of(puddle.line(number)) == kind {
                found = Some((puddle, number));
                break;
            }
            *place = Some((puddle, number));
        }
        for (puddle, number) in strangers.into_iter().flatten() {
            let (type_id, class) = kind_of(puddle.line(number));
            self.push(puddle, number, type_id, class);
        }
        found
    }

    /// Pushes a LISTED superblock, or an idle run, that is in our hands to its list.
    pub(crate) fn push(&self, puddle: &PuddleHeap, number: u32, type_id: TypeId, class: u32) {
        self.push_to(self.list_of(type_id, class), puddle, number);
    }

    pub(crate) fn push_to(&self, list: u32, puddle: &PuddleHeap, number: u32) {
        if let Some(list) = self.lists().get(list as usize) {
            list::push(&list.head, puddle.reference(number), &puddle.line(number).next);
        }
    }

    /// Gives back those superblocks of the lists that have no block any more: how many, of how
    /// many. Others find the lists shorter meanwhile, never wrong.
    pub(crate) fn scavenge(&self, growth: &mut Growth) -> (u64, u64) {
        let (mut freed, mut examined) = (0, 0);
        for list in 0..self.lists().len() {
            let (some, of) =
                self.take_apart(growth, list, |puddle, number| self.retire(puddle, number));
            (freed, examined) = (freed + some, examined + of);
        }
        (freed, examined)
    }

    /// Takes a list apart: those superblocks that `retire` gives back do not return to it. How
    /// many, of how many.
    pub(crate) fn take_apart(
        &self,
        growth: &mut Growth,
        list: usize,
        retire: impl Fn(&PuddleHeap, u32) -> bool,
    ) -> (u64, u64) {
        let Some(list) = self.lists().get(list) else { return (0, 0) };
        let (mut freed, mut examined) = (0, 0);
        let mut reference = list::take_all(&list.head);
        let (mut first, mut last): (u32, Option<&DescriptorLine>) = (0, None);
        while let Some((puddle, number)) =
            self.superblock(reference).or_else(|| self.meet_locked(growth, reference))
        {
            let line = puddle.line(number);
            let this = reference;
            reference = line.next.load(Ordering::Relaxed) as u32;
            examined += 1;
            reach(Step::Scavenging);
            if retire(puddle, number) {
                freed += 1;
                continue;
            }
            match last {
                Some(last) => last.next.store(u64::from(this), Ordering::Relaxed),
                None => first = this,
            }
            last = Some(line);
        }
        if let Some(last) = last {
            list::push(&list.head, first, &last.next);
        }
        (freed, examined)
    }

    /// Gives a LISTED superblock that is in our hands back if all its blocks are FREE. Its
    /// descriptor stays as it is: without marks it says "free". An idle run is always given back.
    fn retire(&self, puddle: &PuddleHeap, number: u32) -> bool {
        let line = puddle.line(number);
        let class = line.class();
        if blocks_per_superblock(class) == 0 {
            return self.retire_large(puddle, number);
        }
        let marks = puddle.class_marks(number, class);
        // Only the holder turns FREE into something else: once all are, they stay so.
        if !marks::all(marks, mark::FREE) {
            return false;
        }
        anchor::retire(&line.anchor);
        reach(Step::Retired);
        line.hide();
        reach(Step::Hidden);
        marks::write(&puddle.outer_marks(number)[0], mark::FREE);
        reach(Step::MarksGivenUp);
        self.put_run(puddle, number, 1);
        true
    }
}

/// Type and class of a listed superblock; of an idle run, as lists call it.
fn kind_of(line: &DescriptorLine) -> (TypeId, u32) {
    let anchor = line.anchor.load(Ordering::Acquire);
    match anchor::state(anchor) {
        anchor::LARGE_HEAD => (line.type_id(), large_kind(line.block_size())),
        _ => (line.type_id(), line.class()),
    }
}

/// Cached blocks on their way to be free for all, and the superblocks to be announced: each after
/// all its marks, and seldom more than once.
struct Freed<'a, G: Backing> {
    heap: &'a TracedHeap<G>,
    list: u32,
    /// The superblock of the block before.
    last: u32,
    /// Places of `references` in use.
    used: u64,
    references: [u32; 64],
}

impl<'a, G: Backing> Freed<'a, G> {
    fn new(heap: &'a TracedHeap<G>, list: u32) -> Self {
        Self { heap, list, last: 0, used: 0, references: [0; 64] }
    }

    /// Whether the block is of the same superblock as the one before it.
    #[inline]
    fn is_next(&self, entry: BinEntry) -> bool {
        (entry.addr / SUPERBLOCK_SIZE) as u32 == self.last
    }

    #[inline(always)]
    fn free(&self, entry: BinEntry) {
        // SAFETY: the mark of a block that a cache of this heap has, where it is stored.
        let mark = unsafe { &*stored(entry.mark, self.heap.distance) };
        mark.store(mark::FREE, Ordering::Release);
        reach(Step::BlockSpilled);
    }

    #[inline(never)]
    fn add(&mut self, entry: BinEntry) {
        self.free(entry);
        let reference = (entry.addr / SUPERBLOCK_SIZE) as u32;
        self.last = reference;
        let place = &mut self.references[reference as usize % 64];
        if *place == reference {
            return;
        }
        let before = core::mem::replace(place, reference);
        self.used |= 1 << (reference % 64);
        if before != 0 {
            self.heap.announce(before, self.list);
        }
    }

    fn announce_all(&mut self) {
        reach(Step::Spilled);
        let mut used = core::mem::take(&mut self.used);
        while used != 0 {
            self.heap.announce(self.references[used.trailing_zeros() as usize], self.list);
            used &= used - 1;
        }
    }
}

fn set_current(bin: &mut Bin, base: u64, marks: *const AtomicU8, left: u32) {
    let current = &mut bin.current;
    (current.base, current.marks, current.left, current.word) = (base, marks, left, 0);
}
