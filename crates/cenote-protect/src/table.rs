//! The table of ranges and their owners.
//!
//! It has two sides. Fault handlers read a list of [`OwnerSlot`]s ([`cenote_sys::slots`]): no lock,
//! no allocation. Owners come and go under a lock that handlers never take ([`INDEX`]), which knows
//! the live slots by address.
//!
//! Invariants:
//! * [`OwnerSlot::sharers`] is the number of other live slots of this process whose ranges overlap.
//! * A slot that overlaps others changes only under both locks. So a thread that has the lock of
//!   rights, and finds a slot that overlaps its own, may use its fields until it gives the lock
//!   back.
//! * A reader without a lock copies a slot's fields between two equal, even versions.

use crate::lock::RightsLock;
use crate::right::Right;
use cenote_sys::fork_guard;
use cenote_sys::process_lock::ProcessLock;
use cenote_sys::slots::{CHUNK, SlotList, Slots};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::collections::BTreeMap;

/// Bytes of a name that are kept.
pub(crate) const NAME_LEN: usize = 128;
const NAME_WORDS: usize = NAME_LEN / 8;
/// How often a reader tries to copy a slot that changes.
const TRIES: usize = 100;

/// What a range of addresses is for. The crate's front page has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum RangeKind {
    /// The first store into a page is noted, for the next psync.
    Tracked = 1,
    /// Pages are verified and decrypted when they are touched.
    Sealed = 2,
    /// It is rewritten when it is touched.
    Pending = 3,
    /// It is open for reading.
    ReadOnly = 4,
    /// It describes a heap's blocks.
    Metadata = 5,
    /// A page beside such a range, which nothing uses.
    Guard = 6,
    /// It is a log of transactions, or says where logs are.
    Log = 7,
    /// Data of a program, where it stores in transactions, or says so before.
    Data = 8,
}

impl RangeKind {
    fn of(code: u8) -> Option<Self> {
        const ALL: [RangeKind; 8] = [
            RangeKind::Tracked,
            RangeKind::Sealed,
            RangeKind::Pending,
            RangeKind::ReadOnly,
            RangeKind::Metadata,
            RangeKind::Guard,
            RangeKind::Log,
            RangeKind::Data,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// The right that an owner allows for the page at an address; the first argument is the pointer
/// that the owner was placed with.
pub(crate) type Allows = unsafe fn(*const (), usize) -> Right;

/// What an owner is placed with.
pub(crate) struct OwnerEntry<'a> {
    pub(crate) range: Range<usize>,
    pub(crate) kind: RangeKind,
    pub(crate) what: &'a str,
    pub(crate) allows: Allows,
    pub(crate) context: *const (),
}

/// A place for one owner.
#[derive(Debug)]
pub(crate) struct OwnerSlot {
    /// Odd while the fields change.
    version: AtomicU64,
    /// 0: free.
    kind: AtomicU8,
    /// Other owners whose ranges overlap.
    sharers: AtomicU32,
    /// [`fork_guard`] token of the process whose owner this is.
    token: AtomicU64,
    base: AtomicUsize,
    len: AtomicUsize,
    /// An [`Allows`], never null while the slot is live.
    allows: AtomicPtr<()>,
    context: AtomicPtr<()>,
    name: [AtomicU64; NAME_WORDS],
}

/// A copy of a live slot.
pub(crate) struct Copied {
    pub(crate) kind: RangeKind,
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) name: [u8; NAME_LEN],
}

impl OwnerSlot {
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            kind: AtomicU8::new(0),
            sharers: AtomicU32::new(0),
            token: AtomicU64::new(0),
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            allows: AtomicPtr::new(ptr::null_mut()),
            context: AtomicPtr::new(ptr::null_mut()),
            name: [const { AtomicU64::new(0) }; NAME_WORDS],
        }
    }

    /// Whether an owner has its range alone.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.sharers.load(Ordering::Acquire) == 0
    }

    /// Changes fields, such that readers notice. Under the lock of the index.
    fn change(&self, fields: impl FnOnce()) {
        // Odd already: a thread of the process that forked this one was here.
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::Relaxed);
        fence(Ordering::Release);
        fields();
        self.version.store(version + 1, Ordering::Release);
    }

    fn fill(&self, token: u64, entry: &OwnerEntry<'_>) {
        let mut len = entry.what.len().min(NAME_LEN);
        while !entry.what.is_char_boundary(len) {
            len -= 1;
        }
        let mut name = [0; NAME_LEN];
        name[..len].copy_from_slice(&entry.what.as_bytes()[..len]);
        self.change(|| {
            self.token.store(token, Ordering::Relaxed);
            self.base.store(entry.range.start, Ordering::Relaxed);
            self.len.store(entry.range.len(), Ordering::Relaxed);
            self.allows.store(entry.allows as *mut (), Ordering::Relaxed);
            self.context.store(entry.context.cast_mut(), Ordering::Relaxed);
            for (word, bytes) in self.name.iter().zip(name.as_chunks::<8>().0) {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            self.kind.store(entry.kind as u8, Ordering::Relaxed);
        });
    }

    /// A copy, if it is live, of this process, and `wanted` says so of its range; `None` also if it
    /// changes all the time. Async-signal-safe.
    pub(crate) fn copy_if(
        &self,
        token: u64,
        wanted: impl Fn(usize, usize) -> bool,
    ) -> Option<Copied> {
        for _ in 0..TRIES {
            let version = self.version.load(Ordering::Acquire);
            let (base, len) = (self.base.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
            let kind = RangeKind::of(self.kind.load(Ordering::Relaxed));
            let is_own = self.token.load(Ordering::Relaxed) == token;
            let mut copied = kind.filter(|_| is_own && wanted(base, len)).map(|kind| Copied {
                kind,
                base,
                len,
                name: [0; NAME_LEN],
            });
            if let Some(copied) = &mut copied {
                for (word, bytes) in self.name.iter().zip(copied.name.as_chunks_mut::<8>().0) {
                    *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                }
            }
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return copied;
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Whether it is live, of this process, and overlaps a range.
    pub(crate) fn overlaps(&self, token: u64, range: &Range<usize>) -> bool {
        let meets =
            |base: usize, len: usize| base < range.end && range.start < base.saturating_add(len);
        self.copy_if(token, meets).is_some()
    }

    /// The right that its owner allows for the page at an address; for one outside its range, every
    /// right.
    ///
    /// # Safety
    /// It overlaps the range of another live slot, and the caller has had the lock of rights since
    /// it found that.
    pub(crate) unsafe fn allows(&self, address: usize) -> Right {
        let offset = address.wrapping_sub(self.base.load(Ordering::Relaxed));
        if offset >= self.len.load(Ordering::Relaxed) {
            return Right::Write;
        }
        // SAFETY: a live slot holds an `Allows` and its context, which `place`'s caller vouched
        // for; neither changes, nor ends, while the caller has the lock.
        unsafe {
            let allows =
                core::mem::transmute::<*mut (), Allows>(self.allows.load(Ordering::Relaxed));
            allows(self.context.load(Ordering::Relaxed), address)
        }
    }
}

static SLOTS: SlotList<OwnerSlot> = SlotList::new([const { OwnerSlot::new() }; CHUNK]);

/// All slots, in an order that does not change. Async-signal-safe.
#[inline]
pub(crate) fn slots() -> Slots<OwnerSlot> {
    SLOTS.iter()
}

/// The live slots of one process, by address, and the free ones.
struct Index {
    /// Of the process. In a forked child, all slots are free.
    token: u64,
    live: BTreeMap<(usize, usize), &'static OwnerSlot>,
    /// The longest range since the index was empty.
    longest: usize,
    free: Vec<&'static OwnerSlot>,
}

static INDEX: ProcessLock<Index> =
    ProcessLock::new(Index { token: 0, live: BTreeMap::new(), longest: 0, free: Vec::new() });

fn key(base: usize, slot: &'static OwnerSlot) -> (usize, usize) {
    (base, ptr::from_ref(slot).addr())
}

impl Index {
    fn be_of(&mut self, token: u64) {
        if self.token != token {
            self.token = token;
            self.live.clear();
            self.free = slots().collect();
        }
    }

    fn overlapping(&self, range: &Range<usize>) -> Vec<&'static OwnerSlot> {
        let from = range.start.saturating_sub(self.longest);
        self.live
            .range((from, 0)..(range.end, 0))
            .filter(|((base, _), slot)| base + slot.len.load(Ordering::Relaxed) > range.start)
            .map(|(_, slot)| *slot)
            .collect()
    }

    /// A free slot.
    fn take(&mut self) -> &'static OwnerSlot {
        if let Some(free) = self.free.pop() {
            return free;
        }
        let new = SLOTS.grow([const { OwnerSlot::new() }; CHUNK]);
        self.free.extend(&new[1..]);
        &new[0]
    }
}

/// Gives an owner a slot.
///
/// # Safety
/// Until [`displace`] has returned, `entry.allows` may be called with `entry.context` and any
/// address of the range, on any thread, in a signal handler.
pub(crate) unsafe fn place(entry: &OwnerEntry<'_>) -> &'static OwnerSlot {
    let token = fork_guard::token();
    let mut index = INDEX.lock();
    index.be_of(token);
    let others = index.overlapping(&entry.range);
    let slot = index.take();
    let rights = (!others.is_empty()).then(RightsLock::take);
    slot.sharers.store(others.len() as u32, Ordering::SeqCst);
    slot.fill(token, entry);
    for other in &others {
        other.sharers.fetch_add(1, Ordering::SeqCst);
    }
    drop(rights);
    index.live.insert(key(entry.range.start, slot), slot);
    index.longest = index.longest.max(entry.range.len());
    slot
}

/// Takes the slot of an owner back, which has this range.
pub(crate) fn displace(slot: &'static OwnerSlot, range: &Range<usize>) {
    let mut index = INDEX.lock();
    if index.live.remove(&key(range.start, slot)).is_none() {
        return;
    }
    let others = index.overlapping(range);
    let rights = (!others.is_empty()).then(RightsLock::take);
    slot.change(|| slot.kind.store(0, Ordering::Relaxed));
    slot.sharers.store(0, Ordering::Relaxed);
    for other in &others {
        other.sharers.fetch_sub(1, Ordering::SeqCst);
    }
    drop(rights);
    if index.live.is_empty() {
        index.longest = 0;
    }
    index.free.push(slot);
}
