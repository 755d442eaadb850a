//! Pages that cannot be read, for collections: what follows a link touches the node first.
//!
//! * A call that returns a `Result` returns the error, with pool, puddle and page.
//! * An iterator of a view ends. [`View::finish`](crate::View::finish) returns the error, and a
//!   view that is dropped without panics.
//! * An iterator or a cursor of a transaction ends. The transaction aborts, and its `write` returns
//!   the error.
//!
//! Invariant: a reference that the library hands out leads to bytes whose pages were read just
//! before; [`cenote_sys::peek`] says what that is worth later.

use crate::ptr::Ptr;
use cenote_heap::class::CLASS_SIZES;
use cenote_sys::peek;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// This address cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost(pub(crate) u64);

/// Notes addresses that a view or a transaction could not read, where no call could say so.
///
/// Atomic for the sake of iterators, which may be sent to other threads.
#[derive(Debug, Default)]
pub struct Faults {
    /// The first address; 0: there is none.
    first: AtomicU64,
    /// Whether a call has returned an error about an address since.
    told: AtomicBool,
    /// The range that was touched last, of those of several pages. Of this thread alone.
    touched: (AtomicUsize, AtomicUsize),
}

impl Faults {
    /// Notes an address; the first one counts.
    #[cold]
    #[inline(never)]
    pub fn note(&self, lost: Lost) {
        let _ = self.first.compare_exchange(0, lost.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The first one.
    #[inline]
    #[must_use]
    pub fn first(&self) -> Option<Lost> {
        let addr = self.first.load(Ordering::Relaxed);
        (addr != 0).then_some(Lost(addr))
    }

    /// A call is going to return an error that names an address.
    pub(crate) fn tell(&self) {
        self.told.store(self.first().is_some(), Ordering::Relaxed);
    }

    /// What no call has told the caller, not even that there is something.
    #[inline]
    pub(crate) fn untold(&self) -> Option<Lost> {
        self.first().filter(|_| !self.told.load(Ordering::Relaxed))
    }

    /// As [`touch`], for values that a program may ask for again and again: a range of several
    /// pages is touched again only if another one was since.
    ///
    /// # Errors
    /// As [`touch`].
    ///
    /// # Safety
    /// As [`touch`].
    #[inline(always)]
    pub unsafe fn touch_once(&self, addr: usize, len: usize) -> Result<(), Lost> {
        if len <= 4096 {
            // SAFETY: handed on to the caller.
            unsafe { touch(addr, len) }
        } else {
            // SAFETY: handed on to the caller.
            unsafe { self.touch_long(addr, len) }
        }
    }

    /// # Safety
    /// As [`touch`].
    unsafe fn touch_long(&self, addr: usize, len: usize) -> Result<(), Lost> {
        let (start, end) = &self.touched;
        if start.load(Ordering::Relaxed) <= addr && addr + len <= end.load(Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: handed on to the caller.
        unsafe { touch(addr, len)? };
        start.store(addr, Ordering::Relaxed);
        end.store(addr + len, Ordering::Relaxed);
        Ok(())
    }

    /// What was read; `None`, and noted, if it could not be.
    #[inline(always)]
    pub fn noted<T>(&self, read: Result<T, Lost>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(lost) => {
                self.note(lost);
                None
            }
        }
    }
}

/// Whether a block for `size` bytes lies in one page: blocks whose size is a power of two begin at
/// multiples of it (`cenote_heap::class`).
#[must_use]
pub const fn in_one_page(size: usize, align: usize) -> bool {
    let mut class = 1;
    while (CLASS_SIZES[class] as usize) < size && CLASS_SIZES[class] < 4096 {
        class += 1;
    }
    let block = CLASS_SIZES[class] as usize;
    align <= 16 && size <= block && block.is_power_of_two()
}

impl<T> Ptr<T> {
    /// The value, if it can be read. Two instructions where the block lies in one page.
    ///
    /// # Errors
    /// The first address that cannot be read.
    ///
    /// # Safety
    /// As [`Ptr::as_ref`], and the value is a block of its own.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn follow<'a>(self) -> Result<&'a T, Lost> {
        // SAFETY: handed on to the caller.
        unsafe {
            self.touch()?;
            Ok(self.as_ref())
        }
    }

    /// That the value can be read: for one that is read or written through a raw pointer.
    ///
    /// # Errors
    /// As [`Ptr::follow`].
    ///
    /// # Safety
    /// As [`Ptr::follow`], but for the value.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn touch(self) -> Result<(), Lost> {
        let addr = self.addr() as usize;
        if const { in_one_page(size_of::<T>(), align_of::<T>()) } {
            // SAFETY: a block, in a mapping, by contract; blocks begin at multiples of 16.
            return if unsafe { peek::touch(addr) } { Ok(()) } else { Err(lost_in(addr, 1)) };
        }
        // SAFETY: handed on to the caller.
        unsafe { touch(addr, size_of::<T>()) }
    }
}

/// That `len` bytes can be read.
///
/// # Errors
/// The first address that cannot be.
///
/// # Safety
/// They lie in a live block.
#[inline(always)]
pub unsafe fn touch(addr: usize, len: usize) -> Result<(), Lost> {
    // SAFETY: blocks lie in mappings.
    if unsafe { peek::is_readable(addr, len) } { Ok(()) } else { Err(lost_in(addr, len)) }
}

/// That `len` bytes of a fresh block can be written. Changes some of them.
///
/// # Errors
/// The first address that cannot be.
///
/// # Safety
/// They are a live block of this thread's alone, which holds no value, or the beginning of one.
#[inline(always)]
pub(crate) unsafe fn claim(addr: usize, len: usize) -> Result<(), Lost> {
    // SAFETY: blocks lie in mappings.
    match unsafe { peek::unwritable(addr..addr + len) } {
        None => Ok(()),
        Some(at) => Err(Lost(at as u64)),
    }
}

#[cold]
#[inline(never)]
fn lost_in(addr: usize, len: usize) -> Lost {
    // SAFETY: called by `touch` for bytes of a mapping.
    Lost(unsafe { peek::lost(addr..addr + len) }.unwrap_or(addr) as u64)
}
