//! Memcached's own allocator, as an [`Allocator`]: classes of sizes, each 1.25 times the one
//! before, cut from pages of 1 MiB; a list of free chunks for each class, last in, first out, which
//! leads through the chunks; one lock. A word before each block names its class, as memcached's
//! items do.

use crate::allocator::Allocator;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Bytes that are cut into chunks of one class.
const PAGE_BYTES: usize = 1 << 20;

/// Bytes of the least chunk.
const CHUNK_MIN: usize = 96;

/// Bytes before a block.
const BEFORE: usize = 8;

/// A class of chunks.
#[derive(Debug)]
struct SlabClass {
    /// Bytes of a chunk, a multiple of 8.
    bytes: usize,
    /// The chunk that was freed last; its first word leads to the next.
    free: Option<NonNull<u64>>,
    /// Where the last page was not cut yet: the number of the page, and from which byte on.
    rest: Option<(usize, usize)>,
}

#[derive(Debug)]
struct SlabState {
    classes: Vec<SlabClass>,
    /// Words, so that chunks begin at multiples of 8.
    pages: Vec<Box<[u64]>>,
}

// SAFETY: the chunks that lists lead to lie in pages that the state owns.
unsafe impl Send for SlabState {}

/// The allocator.
#[derive(Debug)]
pub struct Slab(Mutex<SlabState>);

impl Default for Slab {
    fn default() -> Self {
        let sizes = std::iter::successors(Some(CHUNK_MIN), |bytes| {
            Some((bytes + bytes / 4).next_multiple_of(8)).filter(|&bytes| bytes <= PAGE_BYTES / 2)
        });
        let class = |bytes| SlabClass { bytes, free: None, rest: None };
        let classes = sizes.chain([PAGE_BYTES]).map(class).collect();
        Self(Mutex::new(SlabState { classes, pages: Vec::new() }))
    }
}

impl SlabState {
    fn take(&mut self, number: usize) -> Option<NonNull<u64>> {
        let Self { classes, pages } = self;
        let class = classes.get_mut(number)?;
        if let Some(chunk) = class.free {
            // SAFETY: a free chunk has been in use, and its first word leads to the next or is
            // null. It lies in a page that lives as long as this.
            class.free = NonNull::new(unsafe { chunk.cast::<*mut u64>().read() });
            return Some(chunk);
        }
        let (page, from) = class.rest.take().unwrap_or_else(|| {
            pages.push(vec![0; PAGE_BYTES / 8].into_boxed_slice());
            (pages.len() - 1, 0)
        });
        let end = from + class.bytes;
        class.rest = Some((page, end)).filter(|_| end + class.bytes <= PAGE_BYTES);
        let words = pages.get_mut(page)?.get_mut(from / 8..end / 8)?;
        NonNull::new(words.as_mut_ptr())
    }
}

// SAFETY: a block lies behind the first word of a chunk that is large enough, at a multiple of 8; a
// chunk is in the list of its class or handed out.
unsafe impl Allocator for Slab {
    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.classes.partition_point(|class| class.bytes < size + BEFORE);
        let Some(chunk) = state.take(number) else { return std::ptr::null_mut() };
        // SAFETY: the first word of a chunk that is this caller's now.
        unsafe {
            chunk.write(number as u64);
            chunk.add(1).cast().as_ptr()
        }
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: a block of this allocator (caller): the word before it names its class.
        let (chunk, number) = unsafe {
            let chunk = block.cast::<u64>().sub(1);
            (chunk, chunk.read() as usize)
        };
        let Some(class) = state.classes.get_mut(number) else { return false };
        let next = class.free.map_or(std::ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: the chunk is free now (caller), and begins at a multiple of 8.
        unsafe { chunk.cast::<*mut u64>().write(next) };
        class.free = NonNull::new(chunk);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::{Numbers, give, take, verdict};
    use crate::random::Random;

    #[test]
    fn blocks_overlap_nothing_and_chunks_are_used_again() {
        let (slab, mut random) = (Slab::default(), Random::new(1));
        let (mut held, mut wrong) = (Vec::new(), 0);
        let numbers = &mut Numbers::of_thread(0);
        for _ in 0..20_000 {
            if held.len() > 500 {
                let block = held.swap_remove(random.below(held.len()));
                // SAFETY: taken below, freed once.
                wrong |= unsafe { give(&slab, block) };
            }
            held.push(take(&slab, 16 + random.below(5000), numbers).expect("there is memory"));
        }
        verdict(wrong).expect("every stamp is there");
        let pages = slab.0.lock().expect("no thread panics with it").pages.len();
        assert!(pages < 60, "{pages} pages for 500 blocks");
        assert!(slab.alloc(PAGE_BYTES).is_null());
    }
}
