//! Producer and consumer: one thread allocates, another frees, with a Michael-Scott queue between
//! them.
//!
//! The objects, of 64 bytes, are the queue's nodes, so that nothing but the allocator under test is
//! asked for memory. A node's first word is the link; the second and the last are the stamp. The
//! queue always holds one node more than objects: its head, whose object was taken already; the
//! consumer frees it when it takes the next.
//!
//! With one producer and one consumer no node is freed while a thread may still look at it. The
//! producer dereferences only what it read from `tail`, and the consumer frees a node only after
//! `tail` has left it: it helps `tail` on first, as every consumer of this queue does. `tail` never
//! comes back to a freed node, because only new nodes are linked. So neither hazard pointers nor
//! counters are needed.

use crate::allocator::{Allocator, Fault, verdict};
use crate::case::{Failure, Sample};
use crate::team::{Member, team};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Objects of the paper, over all pairs.
pub const OBJECTS: u64 = 10_000_000;

/// Bytes of an object.
pub const SIZE: usize = 64;

#[repr(C)]
struct Node {
    next: AtomicPtr<Node>,
    stamp: AtomicU64,
    between: [u64; 5],
    last: AtomicU64,
}

const _: () = assert!(size_of::<Node>() == SIZE);

/// A word with a cache line of its own, and the one that is fetched with it.
#[repr(align(128))]
struct Alone<T>(T);

struct Queue {
    head: Alone<AtomicPtr<Node>>,
    tail: Alone<AtomicPtr<Node>>,
    /// The producer has no more memory.
    broken: AtomicBool,
}

/// At least `count` objects over all pairs of threads. An odd thread has nothing to do.
///
/// # Errors
/// No memory, or a block that is not as it should be.
pub fn run<A: Allocator>(allocator: &A, threads: u32, count: u64) -> Result<Sample, Failure> {
    let pairs = (threads / 2).max(1);
    let each = count.div_ceil(u64::from(pairs)).max(1);
    let mut queues = Vec::new();
    for _ in 0..pairs {
        queues.push(Queue::new(allocator)?);
    }
    let sample = team(pairs * 2, |member| {
        let queue = &queues[member.index as usize / 2];
        match member.index % 2 {
            0 => queue.produce(allocator, each, member),
            _ => queue.consume(allocator, each, member),
        }
    });
    for queue in &queues {
        // SAFETY: the threads have ended.
        unsafe { queue.free_rest(allocator) }
    }
    sample
}

/// A node with a stamp. No other thread sees it yet.
#[inline(always)]
fn node<A: Allocator>(allocator: &A, stamp: u64) -> Result<*mut Node, Fault> {
    let node = allocator.alloc(black_box(SIZE)).cast::<Node>();
    // SAFETY: null, or a block of 64 bytes at a multiple of 8. Atomic, so that a block which
    // another owner has too is only found, not undefined.
    let Some(fresh) = (unsafe { node.as_ref() }) else { return Err(Fault::OutOfMemory(SIZE)) };
    fresh.next.store(null_mut(), Ordering::Relaxed);
    fresh.stamp.store(stamp, Ordering::Relaxed);
    fresh.last.store(stamp, Ordering::Relaxed);
    Ok(node)
}

impl Queue {
    fn new<A: Allocator>(allocator: &A) -> Result<Self, Fault> {
        let first = node(allocator, 0)?;
        Ok(Self {
            head: Alone(AtomicPtr::new(first)),
            tail: Alone(AtomicPtr::new(first)),
            broken: AtomicBool::new(false),
        })
    }

    fn produce<A: Allocator>(
        &self,
        allocator: &A,
        count: u64,
        member: &Member<'_>,
    ) -> Result<u64, Fault> {
        member.timed(|| {
            for number in 1..=count {
                match node(allocator, number) {
                    Ok(node) => self.push(node),
                    Err(fault) => {
                        self.broken.store(true, Ordering::Release);
                        return Err(fault);
                    }
                }
            }
            Ok(count)
        })
    }

    #[inline(always)]
    fn push(&self, node: *mut Node) {
        loop {
            let tail = self.tail.0.load(Ordering::Acquire);
            // SAFETY: the consumer frees no node that `tail` leads to, and only the consumer and
            // this thread move `tail`.
            let next = unsafe { &(*tail).next };
            match next.compare_exchange(null_mut(), node, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let _ = self.tail.0.compare_exchange(
                        tail,
                        node,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    return;
                }
                Err(ahead) => {
                    let _ = self.tail.0.compare_exchange(
                        tail,
                        ahead,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                }
            }
        }
    }

    fn consume<A: Allocator>(
        &self,
        allocator: &A,
        count: u64,
        member: &Member<'_>,
    ) -> Result<u64, Fault> {
        member.timed(|| {
            let mut wrong = 0;
            for number in 1..=count {
                let mut idle = 0u32;
                let (old, new) = loop {
                    if let Some(popped) = self.pop() {
                        break popped;
                    }
                    if self.broken.load(Ordering::Acquire) {
                        return Ok(0);
                    }
                    idle += 1;
                    if idle.is_multiple_of(1024) {
                        std::thread::yield_now()
                    } else {
                        std::hint::spin_loop()
                    }
                };
                // SAFETY: the queue's head, which only this thread frees.
                let object = unsafe { &*new };
                wrong |= object.stamp.load(Ordering::Relaxed) ^ number;
                wrong |= object.last.load(Ordering::Relaxed) ^ number;
                // SAFETY: the head before: out of the queue, `tail` has left it, and its object was
                // looked at.
                wrong |= u64::from(!unsafe { allocator.free(old.cast()) });
            }
            verdict(wrong)?;
            // An object counts once, where it was made.
            Ok(0)
        })
    }

    /// The node that was the head, and the one that is it now, whose object is the next.
    #[inline(always)]
    fn pop(&self) -> Option<(*mut Node, *mut Node)> {
        let head = self.head.0.load(Ordering::Acquire);
        // SAFETY: only this thread moves `head` and frees nodes.
        let next = unsafe { &*head }.next.load(Ordering::Acquire);
        if next.is_null() {
            return None;
        }
        if self.tail.0.load(Ordering::Acquire) == head {
            let _ = self.tail.0.compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed);
        }
        // One consumer: this does not fail. A queue for many would try again.
        self.head
            .0
            .compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| (head, next))
    }

    /// Frees the nodes that are left: the head, and after a fault what was not taken.
    ///
    /// # Safety
    /// No thread uses the queue.
    unsafe fn free_rest<A: Allocator>(&self, allocator: &A) {
        let mut node = self.head.0.load(Ordering::Acquire);
        while !node.is_null() {
            // SAFETY: a node of the queue, freed after it was looked at.
            unsafe {
                let next = (*node).next.load(Ordering::Relaxed);
                let _ = allocator.free(node.cast());
                node = next;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::testing::Arena;

    #[test]
    fn a_producer_without_memory_keeps_no_consumer_waiting() {
        let arena = Arena { limit: Some(700), ..Arena::default() };
        let error = run(&arena, 2, 5000).expect_err("700 objects are not enough");
        assert!(error.to_string().contains("no block of 64 bytes"), "{error}");
        assert_eq!(arena.counts(), (700, 700));
    }

    #[test]
    fn objects_come_out_in_order_and_the_last_node_stays() {
        let arena = Arena::default();
        let queue = Queue::new(&arena).expect("there is memory");
        assert!(queue.pop().is_none());
        let nodes: Vec<_> =
            (1..=5).map(|number| node(&arena, number).expect("there is memory")).collect();
        nodes.iter().for_each(|&node| queue.push(node));
        let mut taken = Vec::new();
        while let Some((old, new)) = queue.pop() {
            assert_ne!(old, new);
            taken.push(new);
        }
        assert_eq!(taken, nodes);
        assert_eq!(queue.tail.0.load(Ordering::Relaxed), nodes[4]);
    }
}
