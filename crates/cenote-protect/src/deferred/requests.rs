//! Requests to open and to close pages, in bounded queues without locks.

use crossbeam_queue::ArrayQueue;

/// A page of a range of the service, by numbers: ranges and pages in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageRequest(u64);

const PAGE_BITS: u32 = 48;

impl PageRequest {
    pub(super) const fn new(number: u16, page: u64) -> Self {
        Self((number as u64) << PAGE_BITS | page)
    }

    pub(super) const fn number(self) -> u16 {
        (self.0 >> PAGE_BITS) as u16
    }

    pub(super) const fn page(self) -> u64 {
        self.0 & ((1 << PAGE_BITS) - 1)
    }
}

/// The queues.
#[derive(Debug)]
pub(super) struct RequestQueues {
    pub(super) open: ArrayQueue<PageRequest>,
    pub(super) close: ArrayQueue<PageRequest>,
}

impl RequestQueues {
    /// For so many requests of each kind; one at least.
    pub(super) fn new(len: usize) -> Self {
        let queue = || ArrayQueue::new(len.max(1));
        Self { open: queue(), close: queue() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.close.is_empty()
    }
}

/// What is in a queue now, in order, each once.
pub(super) fn drained(queue: &ArrayQueue<PageRequest>) -> Vec<PageRequest> {
    let mut taken: Vec<_> = core::iter::from_fn(|| queue.pop()).take(queue.capacity()).collect();
    taken.sort_unstable();
    taken.dedup();
    taken
}
