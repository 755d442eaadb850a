//! What an allocator has to offer to be measured, and how its blocks are checked.
//!
//! Every workload is generic over [`Allocator`]: each system gets its own copy of the loops, with
//! whatever the compiler can inline. Blocks are taken by [`take`], which writes a stamp that no
//! other live block has into the first and the last word, and given back by [`give`], which
//! compares both: two blocks that overlap, or a block that two owners have, are found. So every
//! system pays for touching what it hands out, and none can win by handing out what is in use.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Least bytes of a block that can be stamped.
pub const SIZE_MIN: usize = 16;

/// Bytes of a page.
const PAGE: usize = 4096;

const SIZE_BITS: u32 = 20;

/// Bytes that no block reaches.
pub const SIZE_END: usize = 1 << SIZE_BITS;

/// No block. Takes the error by value, so that nothing is left to drop where there is none.
#[cold]
#[inline(never)]
pub(crate) fn refused<E>(_: E) -> *mut u8 {
    std::ptr::null_mut()
}

/// An allocator that threads share.
///
/// # Safety
/// A block that [`Allocator::alloc`] returns is null, or begins at a multiple of 8 and is `size`
/// bytes of memory that stay readable and writable until it is freed. (That it overlaps no other is
/// checked, not believed.)
pub unsafe trait Allocator: Send + Sync + 'static {
    /// A block of at least `size` bytes, [`SIZE_MIN`] or more; null if there is none.
    fn alloc(&self, size: usize) -> *mut u8;

    /// Frees a block; whether that worked.
    ///
    /// # Safety
    /// The block is of this allocator, not freed since, and no code uses it.
    unsafe fn free(&self, block: *mut u8) -> bool;
}

/// An allocator behind a call: what one in Rust looks like from another language, and how the
/// others are called here.
#[derive(Debug)]
pub struct Called<A>(pub std::sync::Arc<A>);

// SAFETY: as the allocator inside.
unsafe impl<A: Allocator> Allocator for Called<A> {
    #[inline(never)]
    fn alloc(&self, size: usize) -> *mut u8 {
        self.0.alloc(size)
    }

    #[inline(never)]
    unsafe fn free(&self, block: *mut u8) -> bool {
        // SAFETY: as the caller promises.
        unsafe { self.0.free(block) }
    }
}

/// Why a workload stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No block of this many bytes.
    OutOfMemory(usize),
    /// A stamp was not there any more, or a block could not be freed.
    Wrong,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(size) => write!(f, "no block of {size} bytes"),
            Self::Wrong => f.write_str(
                "a block was given out twice, overlaps another, or was refused when it was freed",
            ),
        }
    }
}

impl std::error::Error for Fault {}

/// A block with the stamp that is in it.
#[derive(Clone, Copy, Debug)]
pub struct StampedBlock {
    block: NonNull<u8>,
    stamp: u64,
}

// SAFETY: an address and a number; using the address takes its own `unsafe`.
unsafe impl Send for StampedBlock {}

impl StampedBlock {
    /// Its address.
    #[inline(always)]
    #[must_use]
    pub fn addr(self) -> usize {
        self.block.addr().get()
    }

    /// Bytes that were asked for.
    #[inline(always)]
    #[must_use]
    pub fn size(self) -> usize {
        self.stamp as usize & (SIZE_END - 1)
    }

    /// Writes a word in every page of the block but the first and the last, which have the stamps.
    #[inline]
    pub fn touch(self) {
        for at in (PAGE..self.size().saturating_sub(PAGE)).step_by(PAGE) {
            // SAFETY: inside a block that is not freed before its owner passes this value to
            // `give`, at a multiple of 8; atomic as in `words`.
            unsafe { AtomicU64::from_ptr(self.block.as_ptr().add(at).cast()) }
                .store(self.stamp, Ordering::Relaxed);
        }
    }

    /// The whole words between the first and the last, which have the stamps.
    ///
    /// # Safety
    /// The block is not given back while the result is used.
    #[inline(always)]
    #[must_use]
    pub unsafe fn between(&self) -> &[AtomicU64] {
        let words = self.size() / 8 - 2;
        // SAFETY: inside the block, which begins at a multiple of 8 and is there, as the caller
        // promises; atomic as in `words`.
        unsafe { std::slice::from_raw_parts(self.block.as_ptr().add(8).cast(), words) }
    }

    /// The first word, and the last whole one.
    #[inline(always)]
    fn words(&self) -> (&AtomicU64, &AtomicU64) {
        let last = (self.size() & !7) - 8;
        // SAFETY: a block of `size` bytes, at least 16, that begins at a multiple of 8 and is not
        // freed before its owner passes this value to `give`. Shared access is atomic, so that even
        // blocks that overlap are only found, not undefined.
        unsafe {
            (
                AtomicU64::from_ptr(self.block.as_ptr().cast()),
                AtomicU64::from_ptr(self.block.as_ptr().add(last).cast()),
            )
        }
    }
}

/// Numbers for stamps: no two of one run are equal, whichever thread they are from.
#[derive(Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Numbers of one thread; up to 2^36 of them.
    #[must_use]
    pub fn of_thread(index: u32) -> Self {
        Self(u64::from(index) << 36)
    }

    /// The next.
    #[inline(always)]
    fn stamp(&mut self, size: usize) -> u64 {
        self.0 = self.0.wrapping_add(1);
        self.0 << SIZE_BITS | size as u64
    }
}

/// A stamped block of `size` bytes, from [`SIZE_MIN`] to [`SIZE_END`].
///
/// # Errors
/// [`Fault::OutOfMemory`].
#[inline(always)]
pub fn take<A: Allocator>(
    allocator: &A,
    size: usize,
    numbers: &mut Numbers,
) -> Result<StampedBlock, Fault> {
    debug_assert!((SIZE_MIN..SIZE_END).contains(&size));
    let Some(block) = NonNull::new(allocator.alloc(size)) else {
        return Err(Fault::OutOfMemory(size));
    };
    let held = StampedBlock { block, stamp: numbers.stamp(size) };
    let (first, last) = held.words();
    first.store(held.stamp, Ordering::Relaxed);
    last.store(held.stamp, Ordering::Relaxed);
    Ok(held)
}

/// Looks at the stamps of a block and frees it. Not 0 if something is wrong: to be collected by
/// `|=` and shown to [`verdict`] at the end, so that no branch is in the loop.
///
/// # Safety
/// The block is from [`take`] of the same allocator and is given back once.
#[inline(always)]
#[must_use]
pub unsafe fn give<A: Allocator>(allocator: &A, held: StampedBlock) -> u64 {
    let (first, last) = held.words();
    let wrong =
        (first.load(Ordering::Relaxed) ^ held.stamp) | (last.load(Ordering::Relaxed) ^ held.stamp);
    // SAFETY: as the caller promises.
    wrong | u64::from(!unsafe { allocator.free(held.block.as_ptr()) })
}

/// What all the [`give`]s of a part come to.
///
/// # Errors
/// [`Fault::Wrong`].
pub fn verdict(wrong: u64) -> Result<(), Fault> {
    if wrong == 0 { Ok(()) } else { Err(Fault::Wrong) }
}

/// Allocators for tests of the workloads.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::sync::Mutex;

    /// Memory that is never used again, so that nothing that happens to it is undefined.
    #[derive(Debug, Default)]
    pub(crate) struct Arena {
        /// Writes into the block before, each time: what an allocator with overlapping blocks
        /// leads to.
        pub(crate) scribbles: bool,
        /// Says, this often, that a block could not be freed.
        pub(crate) refuses: Option<u64>,
        /// Blocks that there are; then there are no more.
        pub(crate) limit: Option<u64>,
        pub(crate) state: Mutex<ArenaState>,
    }

    #[derive(Debug, Default)]
    pub(crate) struct ArenaState {
        last: usize,
        taken: u64,
        freed: u64,
    }

    impl Arena {
        pub(crate) fn counts(&self) -> (u64, u64) {
            let state = self.state.lock().expect("no thread panics with it");
            (state.taken, state.freed)
        }
    }

    // SAFETY: each block is leaked memory of its own, of whole words.
    unsafe impl Allocator for Arena {
        fn alloc(&self, size: usize) -> *mut u8 {
            let mut state = self.state.lock().expect("no thread panics with it");
            if self.limit == Some(state.taken) {
                return std::ptr::null_mut();
            }
            let words: Box<[AtomicU64]> =
                (0..size.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
            let block = Box::leak(words).as_mut_ptr();
            if self.scribbles && state.last != 0 {
                let before = std::ptr::with_exposed_provenance_mut::<u64>(state.last);
                // SAFETY: the last word of a leaked block.
                unsafe { AtomicU64::from_ptr(before) }.store(0, Ordering::Relaxed);
            }
            state.last = block.wrapping_add((size & !7) / 8 - 1).expose_provenance();
            state.taken += 1;
            block.cast()
        }

        unsafe fn free(&self, _: *mut u8) -> bool {
            let mut state = self.state.lock().expect("no thread panics with it");
            state.freed += 1;
            self.refuses.is_none_or(|every| !state.freed.is_multiple_of(every))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Arena;
    use super::*;

    #[test]
    fn whole_blocks_are_right_and_damaged_ones_are_found() {
        for size in [16, 17, 64, 400, 4096, SIZE_END - 1] {
            let (arena, numbers) = (Arena::default(), &mut Numbers::of_thread(3));
            let held = take(&arena, size, numbers).expect("there is memory");
            assert_eq!(held.size(), size);
            // SAFETY: freed once.
            assert_eq!(unsafe { give(&arena, held) }, 0);
            for word in 0..2 {
                let held = take(&arena, size, numbers).expect("there is memory");
                let (first, last) = held.words();
                [first, last][word].fetch_xor(1 << 40, Ordering::Relaxed);
                // SAFETY: as above.
                assert_ne!(unsafe { give(&arena, held) }, 0, "size {size} word {word}");
            }
        }
    }

    #[test]
    fn a_refused_free_is_wrong() {
        let arena = Arena { refuses: Some(1), ..Arena::default() };
        let held = take(&arena, 64, &mut Numbers::of_thread(0)).expect("there is memory");
        // SAFETY: freed once.
        assert_eq!(verdict(unsafe { give(&arena, held) }), Err(Fault::Wrong));
    }

    #[test]
    fn threads_never_have_the_same_stamps() {
        let mut stamps: Vec<u64> = (0..4)
            .flat_map(|thread| {
                let mut numbers = Numbers::of_thread(thread);
                (0..100).map(move |_| numbers.stamp(64)).collect::<Vec<_>>()
            })
            .collect();
        stamps.sort_unstable();
        stamps.dedup();
        assert_eq!(stamps.len(), 400);
    }
}
