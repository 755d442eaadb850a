//! The table of ranges whose faults are resolved: a list of slots that handlers read without a lock
//! ([`crate::slots`]). A process that had 1,000 ranges at once keeps 56 KiB.

use crate::slots::{CHUNK, SlotList, Slots};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub(super) const FREE: u32 = 0;
pub(super) const LIVE: u32 = 1;

#[derive(Debug)]
pub(super) struct HandlerSlot {
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

impl HandlerSlot {
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

static TABLE: SlotList<HandlerSlot> = SlotList::new([const { HandlerSlot::new() }; CHUNK]);

/// All slots, in an order that does not change. Async-signal-safe.
#[inline]
pub(super) fn slots() -> Slots<HandlerSlot> {
    TABLE.iter()
}

/// A free slot of a new chunk. Under the lock of the table, and not in a signal handler.
pub(super) fn grow() -> &'static HandlerSlot {
    &TABLE.grow([const { HandlerSlot::new() }; CHUNK])[0]
}
