//! Lists of slots that signal handlers read. They grow by chunks of [`CHUNK`] slots, and never
//! shrink.
//!
//! Invariant: a chunk that a reader can reach is whole and stays where it is for ever.
//! [`SlotList::grow`] gets a filled chunk, and links it behind the last one by one store (release).
//! Readers follow links with acquire loads, take no lock and allocate nothing. So a signal handler
//! may read the list at any instruction, also one that interrupts [`SlotList::grow`]. The first
//! chunk is part of the list, which is a static: a process with few slots reads one array.
//!
//! Chunks are never freed, because a handler may be inside one at any time. A forked child has a
//! copy of all chunks, as of the static one.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Slots of one chunk.
pub const CHUNK: usize = 64;

#[derive(Debug)]
struct Chunk<S> {
    slots: [S; CHUNK],
    /// Null, or a chunk that is never freed.
    next: AtomicPtr<Chunk<S>>,
}

impl<S> Chunk<S> {
    fn next(&'static self) -> Option<&'static Self> {
        // SAFETY: null, or linked by `grow` after it was filled, and never freed.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }
}

/// A list of slots, in a static.
#[derive(Debug)]
pub struct SlotList<S>(Chunk<S>);

impl<S: Sync> SlotList<S> {
    /// A list with its first slots.
    #[must_use]
    pub const fn new(slots: [S; CHUNK]) -> Self {
        Self(Chunk { slots, next: AtomicPtr::new(ptr::null_mut()) })
    }

    /// All slots, in an order that does not change. Async-signal-safe.
    #[inline]
    pub const fn iter(&'static self) -> Slots<S> {
        Slots { chunk: &self.0, at: 0 }
    }

    /// Adds a chunk of slots behind the others, and returns them. Not for signal handlers. Callers
    /// take one lock: of two chunks that are added at once, one is lost.
    pub fn grow(&'static self, slots: [S; CHUNK]) -> &'static [S; CHUNK] {
        let new: &'static Chunk<S> =
            Box::leak(Box::new(Chunk { slots, next: AtomicPtr::new(ptr::null_mut()) }));
        let mut last = &self.0;
        while let Some(next) = last.next() {
            last = next;
        }
        last.next.store(ptr::from_ref(new).cast_mut(), Ordering::Release);
        &new.slots
    }
}

/// See [`SlotList::iter`]. Written out, because adaptors of iterators that are not inlined take
/// more of an alternate signal stack than there is.
#[derive(Debug)]
pub struct Slots<S: 'static> {
    chunk: &'static Chunk<S>,
    at: usize,
}

impl<S> Iterator for Slots<S> {
    type Item = &'static S;

    #[inline]
    fn next(&mut self) -> Option<&'static S> {
        if self.at == CHUNK {
            self.chunk = self.chunk.next()?;
            self.at = 0;
        }
        self.at += 1;
        Some(&self.chunk.slots[self.at - 1])
    }
}
