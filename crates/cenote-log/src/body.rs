//! The body of a log puddle as memory: where header, control line, range line and entries lie.

use cenote_layout::header::{HeaderPrefix, seal};
use cenote_layout::id::Uuid;
use cenote_layout::log::{
    CONTROL_OFFSET, END_BASE, ENTRIES_OFFSET, LogControl, LogHeader, LogRange, MIN_HALF,
    RANGE_OFFSET, SequenceRange, epoch_from_word, epoch_to_word,
};
use cenote_medium::Persistence;
use core::mem::offset_of;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// The mapped body of one log segment.
///
/// Code that makes one promises that `len` bytes from `ptr` are mapped and stay mapped while the
/// body is used, that `ptr` is aligned to a cache line, and that `len` is at least
/// [`Body::LEN_MIN`]. If `distance` is not 0, the same bytes are mapped a second time, so far away,
/// for writing; then the mapping at `ptr` may be read-only.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: u64,
    /// The distance to add to an address in the body, wrapping around, for a store.
    pub distance: usize,
}

// SAFETY: a `Body` is an address and a length; what is done through it is `unsafe` at the place
// that does it.
unsafe impl Send for Body {}

impl Body {
    /// Least bytes of a body.
    pub const LEN_MIN: u64 = ENTRIES_OFFSET + 2 * MIN_HALF;

    /// `len` bytes at `ptr`, where stores go too.
    #[must_use]
    pub const fn new(ptr: *mut u8, len: u64) -> Self {
        Self { ptr, len, distance: 0 }
    }

    /// The body where stores go. For the time of a store: no memory keeps it.
    #[inline(always)]
    #[must_use]
    pub fn stored(self) -> Self {
        Self { ptr: stored(self.ptr, self.distance), len: self.len, distance: 0 }
    }

    /// The sequence range word.
    ///
    /// # Safety
    /// The body must be mapped for as long as the reference lives.
    #[must_use]
    pub unsafe fn range<'a>(self) -> &'a AtomicU64 {
        // SAFETY: inside the body, aligned (the body is aligned to a line), and only ever accessed
        // as an atomic.
        unsafe {
            &*self.ptr.add(RANGE_OFFSET as usize + offset_of!(LogRange, range)).cast::<AtomicU64>()
        }
    }

    /// The tail word.
    ///
    /// # Safety
    /// As [`Body::range`].
    #[must_use]
    pub unsafe fn tail<'a>(self) -> &'a AtomicU64 {
        // SAFETY: as in `range`.
        unsafe {
            &*self.ptr.add(RANGE_OFFSET as usize + offset_of!(LogRange, tail)).cast::<AtomicU64>()
        }
    }

    /// The word that holds the address of the last entry.
    ///
    /// # Safety
    /// As [`Body::range`].
    #[must_use]
    pub unsafe fn last<'a>(self) -> &'a AtomicU64 {
        // SAFETY: as in `range`.
        unsafe {
            &*self.ptr.add(RANGE_OFFSET as usize + offset_of!(LogRange, last)).cast::<AtomicU64>()
        }
    }

    /// The word that says in how many further segments the log has gone on.
    ///
    /// # Safety
    /// As [`Body::range`].
    #[must_use]
    pub unsafe fn overflow<'a>(self) -> &'a AtomicU64 {
        // SAFETY: as in `range`.
        unsafe {
            &*self
                .ptr
                .add(RANGE_OFFSET as usize + offset_of!(LogRange, overflow))
                .cast::<AtomicU64>()
        }
    }

    /// The epoch word.
    ///
    /// # Safety
    /// As [`Body::range`].
    #[must_use]
    pub unsafe fn epoch<'a>(self) -> &'a AtomicU64 {
        // SAFETY: as in `range`.
        unsafe {
            &*self
                .ptr
                .add(CONTROL_OFFSET as usize + offset_of!(LogControl, epoch))
                .cast::<AtomicU64>()
        }
    }

    /// The word that says whether the log is set aside.
    ///
    /// # Safety
    /// As [`Body::range`].
    #[must_use]
    pub unsafe fn state<'a>(self) -> &'a AtomicU64 {
        // SAFETY: as in `range`.
        unsafe {
            &*self
                .ptr
                .add(CONTROL_OFFSET as usize + offset_of!(LogControl, state))
                .cast::<AtomicU64>()
        }
    }

    /// All bytes, to read.
    ///
    /// # Safety
    /// The body must be mapped, and no thread may write to it, while the slice lives.
    #[must_use]
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { core::slice::from_raw_parts(self.ptr, self.len as usize) }
    }

    /// Bytes of the entry area that a body of this length has room for.
    #[must_use]
    pub const fn capacity(self) -> u64 {
        self.len.saturating_sub(ENTRIES_OFFSET) / 128 * 128
    }
}

/// Where a byte is stored that is read at `at`.
#[inline(always)]
pub(crate) fn stored(at: *mut u8, distance: usize) -> *mut u8 {
    with_exposed_provenance_mut(at.expose_provenance().wrapping_add(distance))
}

/// Makes a fresh segment: range `running(0)`, epoch 1, no entries. Durable on return at the level
/// of `persistence`. No code looks at it until the log space names it, so no single store commits
/// it.
///
/// The entry area is left as it is. Old entries in it never count, because `log_id` is mixed into
/// every checksum: give a `log_id` that no log has had before in this memory.
///
/// # Safety
/// The body is mapped for writing (where its stores go), at least [`Body::LEN_MIN`] long, and no
/// other thread uses it.
pub unsafe fn format_segment(
    body: Body,
    owner: Uuid,
    log_id: u64,
    segment: u32,
    persistence: Persistence,
) {
    debug_assert!(body.len >= Body::LEN_MIN);
    let mut header = LogHeader {
        prefix: HeaderPrefix::new(*b"CENOTLOG", size_of::<LogHeader>() as u32),
        owner,
        log_id,
        capacity: body.capacity(),
        segment,
        reserved: [0; 44],
    };
    seal(&mut header);
    let control = LogControl { epoch: epoch_to_word(1), state: 0, reserved: [0; 6] };
    let range = LogRange {
        range: SequenceRange::running(0).to_word(),
        tail: 0,
        last: 0,
        overflow: 0,
        reserved: [0; 4],
    };
    // SAFETY: the caller promises a mapped, unshared body of at least 256 bytes; offsets are inside
    // it.
    unsafe {
        let to = body.stored().ptr;
        to.copy_from_nonoverlapping(header.as_bytes().as_ptr(), size_of::<LogHeader>());
        to.add(CONTROL_OFFSET as usize)
            .copy_from_nonoverlapping(control.as_bytes().as_ptr(), size_of::<LogControl>());
        to.add(RANGE_OFFSET as usize)
            .copy_from_nonoverlapping(range.as_bytes().as_ptr(), size_of::<LogRange>());
        persistence.flush(body.ptr, ENTRIES_OFFSET as usize);
    }
    persistence.fence();
}

/// Starts a log's sequence numbers again, in the next epoch, which is returned. States, each fenced
/// before the next: the range of the transaction that ended; (epoch e, `running(END_BASE)`), idle
/// because no entry ever has that base; (e + 1, `running(END_BASE)`), idle too; (e + 1,
/// `running(0)`), idle because no entry has this epoch. **The first store ends the transaction**;
/// each later state is as idle as the one before. Tail and overflow words go back to nothing in the
/// second step, so that they say nothing about base 0.
///
/// # Safety
/// The head's first lines are mapped for writing (where its stores go), no other thread uses them,
/// and the transaction's changes are durable.
pub(crate) unsafe fn next_epoch(head: Body, persistence: Persistence) -> u32 {
    // SAFETY: mapped for writing by contract.
    unsafe {
        let to = head.stored();
        let store = |(read, word): (&AtomicU64, &AtomicU64), value: u64| {
            cenote_sys::cpu::compiler_barrier();
            word.store(value, Ordering::Release);
            persistence.flush(core::ptr::from_ref(read).cast(), 8);
        };
        store((head.range(), to.range()), SequenceRange::running(END_BASE).to_word());
        persistence.fence();
        let epoch = epoch_from_word(head.epoch().load(Ordering::Relaxed))
            .unwrap_or_default()
            .wrapping_add(1);
        store((head.tail(), to.tail()), 0);
        store((head.overflow(), to.overflow()), 0);
        store((head.epoch(), to.epoch()), epoch_to_word(epoch));
        persistence.fence();
        store((head.range(), to.range()), SequenceRange::running(0).to_word());
        persistence.fence();
        epoch
    }
}
