//! The table of ranges whose faults are resolved: a list of chunks of slots, which grows and never
//! shrinks.
//!
//! Invariant: a chunk that a reader can reach is whole and stays where it is for ever. [`grow`]
//! fills a chunk before one store (release) links it behind the last one; readers follow links with
//! acquire loads, take no lock and allocate nothing, so a signal handler may read the table at any
//! instruction, also one that interrupts [`grow`]. The first chunk is static: a process of up to 64
//! ranges reads what it read when the table had that many places and no more.
//!
//! Chunks are never freed, because a handler may be inside one at any time: a process that had
//! 1,000 ranges at once keeps 56 KiB. A forked child has a copy of all chunks, as of the static
//! one.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub(super) const FREE: u32 = 0;
pub(super) const LIVE: u32 = 1;

/// Slots of one chunk.
const CHUNK: usize = 64;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) state: AtomicU32,
    /// Handlers that may be using the other fields.
    pub(super) visitors: AtomicU32,
    /// [`crate::fork_guard`] token of the process that registered.
    pub(super) token: AtomicU64,
    pub(super) base: AtomicUsize,
    pub(super) len: AtomicUsize,
    /// A [`super::Resolver`], never null while the slot is live.
    pub(super) resolver: AtomicPtr<()>,
    pub(super) ctx: AtomicPtr<()>,
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            visitors: AtomicU32::new(0),
            token: AtomicU64::new(0),
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            resolver: AtomicPtr::new(ptr::null_mut()),
            ctx: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Whether `addr` lies in the range of a registration of the process with `token`. Only surely
    /// true while the slot is live and visited.
    pub(super) fn covers(&self, token: u64, addr: usize) -> bool {
        self.token.load(Ordering::Acquire) == token
            && addr.wrapping_sub(self.base.load(Ordering::Relaxed))
                < self.len.load(Ordering::Relaxed)
    }

    /// A slot that this process may fill: free, or left over from the process that forked this one.
    pub(super) fn is_available(&self, token: u64) -> bool {
        self.state.load(Ordering::Relaxed) == FREE || self.token.load(Ordering::Relaxed) != token
    }
}

struct Chunk {
    slots: [Slot; CHUNK],
    /// Null, or a chunk that is never freed.
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Self {
        Self { slots: [const { Slot::new() }; CHUNK], next: AtomicPtr::new(ptr::null_mut()) }
    }

    fn next(&self) -> Option<&'static Self> {
        // SAFETY: null, or linked by `grow` after it was filled, and never freed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

static FIRST: Chunk = Chunk::new();

/// All slots, in an order that does not change. Async-signal-safe.
pub(super) fn slots() -> Slots {
    Slots { chunk: &FIRST, at: 0 }
}

/// See [`slots`]. Written out, because adaptors of iterators that are not inlined take more of an
/// alternate signal stack than there is.
pub(super) struct Slots {
    chunk: &'static Chunk,
    at: usize,
}

impl Iterator for Slots {
    type Item = &'static Slot;

    #[inline]
    fn next(&mut self) -> Option<&'static Slot> {
        if self.at == CHUNK {
            self.chunk = self.chunk.next()?;
            self.at = 0;
        }
        self.at += 1;
        Some(&self.chunk.slots[self.at - 1])
    }
}

/// A free slot of a new chunk. Under the lock of the table, and not in a signal handler.
pub(super) fn grow() -> &'static Slot {
    let new: &'static Chunk = Box::leak(Box::new(Chunk::new()));
    let mut last = &FIRST;
    while let Some(next) = last.next() {
        last = next;
    }
    last.next.store(ptr::from_ref(new).cast_mut(), Ordering::Release);
    &new.slots[0]
}
