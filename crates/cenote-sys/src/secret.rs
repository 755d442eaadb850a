//! Memory for secrets: keys, and what they are derived from.
//!
//! What lies in a [`Secret`]
//!
//! * is never swapped out (`mlock`), unless the caller allowed that with [`Locking::IfPossible`];
//! * is in no core dump (`MADV_DONTDUMP`);
//! * is not there in a forked child (`MADV_DONTFORK`): a child that touches it faults, one that
//!   drops it does nothing;
//! * lies between two pages that cannot be accessed, so that an overrun of a neighbour neither
//!   reads nor writes it;
//! * is overwritten with zeros before its memory goes back to the kernel.
//!
//! All of this is in force before the first byte of the secret is there: make a `Secret` of zeros,
//! and fill it in place. A value that is moved in leaves its copy where it came from, usually on
//! the stack; [`scrub_stack`] is for that. A `Secret` takes whole pages of locked memory, of which
//! a process may have few (`RLIMIT_MEMLOCK`): put what belongs together into one.
//!
//! It does not help against programs that may read this process's memory (a debugger, root).
//!
//! # Safety argument
//!
//! The region is a reservation of our own with one anonymous mapping in its middle, which is big
//! enough and aligned for the value (checked before the value is moved in). The `Secret` owns value
//! and region alone; references to the value are borrowed from it. The value is dropped first, then
//! the bytes are overwritten, then the region is released.

use crate::memory;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};
use rustix::mm::Advice;
use std::io;

/// Whether secrets must be kept from swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Locking {
    /// No locked memory: an error.
    #[default]
    Required,
    /// Where the limit of locked memory is reached (`RLIMIT_MEMLOCK`), go on without;
    /// [`Secret::is_locked`] says so.
    IfPossible,
}

/// A value in memory for secrets; see the module's page for what that is.
pub struct Secret<T> {
    /// The whole reservation, guard pages included.
    base: usize,
    total: usize,
    value: ptr::NonNull<T>,
    /// Bytes of the mapping in the middle.
    len: usize,
    locked: bool,
    /// The process that has it.
    token: u64,
}

// SAFETY: the value is owned alone, as by a Box.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: shared references give out shared references to the value and nothing else.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    /// Moves a value into memory for secrets. For a value that is already secret prefer a neutral
    /// one, and fill it through the reference.
    ///
    /// # Errors
    /// `ENOMEM`, `EAGAIN` or `EPERM` if the memory cannot be locked and `locking` requires it:
    /// raise the limit of locked memory (`ulimit -l`). What the kernel says if there is no
    /// memory, or it knows the advice not.
    pub fn new(locking: Locking, value: T) -> io::Result<Self> {
        let page = memory::page_bytes();
        if align_of::<T>() > page {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a secret cannot be aligned to more than a page",
            ));
        }
        let len = size_of::<T>().max(1).next_multiple_of(page);
        let total = len + 2 * page;
        let base = memory::reserve_anywhere(total, page).map_err(|error| match error {
            memory::ReserveError::System { source, .. } => source,
            other => io::Error::other(other.to_string()),
        })?;
        let at = base + page;
        let locked = prepare(at, len, locking).inspect_err(|_| {
            // SAFETY: reserved just now, not handed out.
            let _ = unsafe { memory::release(base, total) };
        })?;
        // The address was given as a number by the kernel's mapping; the mapping is exposed by
        // construction.
        let Some(pointer) = ptr::NonNull::new(ptr::with_exposed_provenance_mut::<T>(at)) else {
            // SAFETY: reserved just now, not handed out.
            let _ = unsafe { memory::release(base, total) };
            return Err(io::Error::other("the kernel mapped the zero page"));
        };
        // SAFETY: `len` bytes at `at` are mapped readable and writable, page-aligned, and their
        // address is known here only.
        unsafe { pointer.write(value) };
        Ok(Self { base, total, value: pointer, len, locked, token: crate::fork_guard::token() })
    }

    /// Whether the memory is kept from swap.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }
}

/// Maps, locks and marks the middle of a reservation; says whether it is locked.
fn prepare(at: usize, len: usize, locking: Locking) -> io::Result<bool> {
    // SAFETY: inside a reservation of the caller's, where nothing lies yet.
    unsafe { memory::map_anonymous(at, len) }?;
    let start = ptr::with_exposed_provenance_mut::<core::ffi::c_void>(at);
    // SAFETY: this advice changes nothing but what goes into a core dump.
    unsafe { rustix::mm::madvise(start, len, Advice::LinuxDontDump) }?;
    // SAFETY: locking keeps the pages in memory and changes nothing in them.
    match unsafe { rustix::mm::mlock(start, len) } {
        Ok(()) => Ok(true),
        Err(errno) if locking == Locking::Required => Err(errno.into()),
        Err(_) => Ok(false),
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: written in `new`, owned by this value; see the module's argument.
        unsafe { self.value.as_ref() }
    }
}

impl<T> DerefMut for Secret<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and borrowed mutably.
        unsafe { self.value.as_mut() }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        if !crate::fork_guard::is_current(self.token) {
            // A forked child: nothing of it is there, and something else may lie at its address by
            // now.
            return;
        }
        let bytes = self.value.cast::<u8>();
        // SAFETY: the value is valid and not used again; then its bytes are ours, all `len` of them
        // are mapped, and the region is released by its only owner.
        unsafe {
            self.value.drop_in_place();
            wipe(bytes.as_ptr(), self.len);
            #[cfg(test)]
            tests::note_release(bytes.as_ptr(), self.len);
            let _ = memory::release(self.base, self.total);
        }
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.locked { "Secret(locked)" } else { "Secret(not locked)" })
    }
}

/// Overwrites bytes with zeros in a way that the compiler does not leave out.
///
/// # Safety
/// `len` bytes at `at` are valid for writes and belong to the caller.
unsafe fn wipe(at: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: inside the range that the caller answers for.
        unsafe { at.add(i).write_volatile(0) };
    }
    compiler_fence(Ordering::SeqCst);
}

/// Overwrites bytes that held a secret with zeros, for buffers that are not a [`Secret`].
pub fn wipe_bytes(bytes: &mut [u8]) {
    // SAFETY: the slice is borrowed mutably.
    unsafe { wipe(bytes.as_mut_ptr(), bytes.len()) };
}

/// Overwrites 16 KiB of stack below the caller with zeros: what functions that have returned left
/// there. To be called after a key was derived or wrapped by code that keeps working copies on the
/// stack. An effort, no guarantee: a compiler may spill a register anywhere.
#[inline(never)]
pub fn scrub_stack() {
    let mut area = [0xa5u8; 16 << 10];
    wipe_bytes(&mut area);
    core::hint::black_box(&area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;
    use core::cell::Cell;

    thread_local! {
        static RELEASED: Cell<Option<(usize, bool)>> = const { Cell::new(None) };
    }

    /// Called between wiping and releasing: notes how long the region was, and whether it was all
    /// zero.
    pub(super) fn note_release(at: *const u8, len: usize) {
        // SAFETY: called by Drop, while the region is still mapped.
        let zero = (0..len).all(|i| unsafe { at.add(i).read_volatile() } == 0);
        RELEASED.set(Some((len, zero)));
    }

    /// The flags of the mapping that an address lies in, as the kernel shows them.
    fn flags_of(addr: usize) -> Vec<String> {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in text.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let number = |digits| usize::from_str_radix(digits, 16).ok();
            if let Some((Some(start), Some(end))) =
                range.map(|(start, end)| (number(start), number(end)))
            {
                inside = (start..end).contains(&addr);
            }
            if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
                return flags.split_whitespace().map(str::to_owned).collect();
            }
        }
        panic!("no mapping at {addr:#x}");
    }

    #[test]
    fn a_secret_is_locked_and_neither_dumped_nor_inherited() {
        let mut secret = Secret::new(Locking::Required, [0u8; 32]).unwrap();
        secret.fill(0x5a);
        assert!(secret.is_locked());
        let flags = flags_of(secret.as_ptr().addr());
        for wanted in ["lo", "dd", "dc"] {
            assert!(flags.iter().any(|f| f == wanted), "{wanted} is missing in {flags:?}");
        }
        assert_eq!(format!("{secret:?}"), "Secret(locked)");
    }

    #[test]
    fn a_forked_child_does_not_have_it() {
        let mut secret = Secret::new(Locking::Required, [0u8; 32]).unwrap();
        secret.fill(0x5a);
        let at = secret.as_ptr();
        let readable = || {
            let mut ends = [0; 2];
            // SAFETY: a system call with a pointer to a local of two integers.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            // SAFETY: the kernel reads the bytes, and answers EFAULT where there are none.
            let n = unsafe { libc::write(ends[1], at.cast(), 32) };
            for end in ends {
                // SAFETY: our own descriptors, not used again.
                unsafe { libc::close(end) };
            }
            n == 32
        };
        assert!(readable(), "the parent cannot read it: the test shows nothing");
        assert_eq!(in_child(|| i32::from(readable())), 0, "the child can read its parent's secret");
        // A child that drops what its parent gave it does not fault, and takes no memory of others
        // away.
        let dropped = in_child(move || {
            drop(secret);
            0
        });
        assert_eq!(dropped, 0);
    }

    #[test]
    fn dropping_overwrites_every_byte_before_the_memory_goes_back() {
        let mut secret = Secret::new(Locking::Required, [0u8; 5000]).unwrap();
        secret.fill(0xff);
        RELEASED.set(None);
        drop(secret);
        assert_eq!(RELEASED.get(), Some((8192, true)));
    }

    #[test]
    fn the_value_is_dropped_once_and_before_its_bytes_are_overwritten() {
        struct Counts(u64, std::rc::Rc<Cell<u64>>);
        impl Drop for Counts {
            fn drop(&mut self) {
                self.1.set(self.1.get() + self.0);
            }
        }
        let sum = std::rc::Rc::new(Cell::new(0));
        drop(Secret::new(Locking::Required, Counts(7, sum.clone())).unwrap());
        assert_eq!(sum.get(), 7);
    }

    #[test]
    fn the_pages_beside_it_cannot_be_touched() {
        let secret = Secret::new(Locking::Required, [1u8; 64]).unwrap();
        let page = memory::page_bytes();
        let at = secret.as_ptr().addr();
        for neighbour in [at - 1, at + page] {
            let flags = flags_of(neighbour);
            assert!(!flags.iter().any(|f| f == "rd" || f == "wr"), "{flags:?}");
        }
    }

    #[test]
    fn where_the_limit_is_reached_locking_fails_or_goes_on_without_as_asked() {
        let outcome = in_child(|| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a system call with a pointer to a local; and for a child that ends soon.
            let limited = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) } == 0;
            // Root has no limit, and user 65534 has one. SAFETY: a system call without pointers, in
            // a child of one thread.
            let _ = unsafe { libc::setuid(65534) };
            let refused = Secret::new(Locking::Required, [0u8; 32]);
            let allowed = Secret::new(Locking::IfPossible, [0u8; 32]);
            match (limited, refused, allowed) {
                (true, Err(_), Ok(secret)) if !secret.is_locked() => 0,
                // Privileged processes have no limit.
                (_, Ok(_), Ok(secret)) if secret.is_locked() => 1,
                _ => 2,
            }
        });
        match outcome {
            0 => {}
            1 => eprintln!("skipped: this process may lock any amount of memory"),
            other => panic!("neither refused nor allowed: {other}"),
        }
    }

    #[test]
    fn bytes_are_wiped() {
        let mut bytes = [7u8; 100];
        wipe_bytes(&mut bytes);
        assert_eq!(bytes, [0; 100]);
        scrub_stack();
    }
}
