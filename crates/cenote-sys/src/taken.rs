//! Address space that stays taken in forked children.
//!
//! Mappings in a reservation do not go over to a child ([`crate::memory`]), which leaves a hole
//! there. Were it left open, the child could have other memory in it: a store of its own in the
//! same window, or what its allocator maps. A reference from before the fork would lead into that.
//! So a fork handler of the C library reserves the holes again before the child runs on: a
//! reference from before leads to nothing, and faults.
//!
//! The table is fixed, and free of locks and of allocation: a fork may come at any moment. Each
//! slot is free (base 0), claimed (base, length 0), or in force. Ranges that do not fit into the
//! table, and children of a raw `clone`, keep their holes.
//!
//! # Safety argument
//!
//! The handler maps inaccessible memory only where nothing is mapped (`MAP_FIXED_NOREPLACE`).

use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use rustix::mm::{MapFlags, ProtFlags};

/// Reservations that are noted at once.
const SLOTS: usize = 4096;

struct ReservationSlot {
    base: AtomicUsize,
    len: AtomicUsize,
}

static TABLE: [ReservationSlot; SLOTS] =
    [const { ReservationSlot { base: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; SLOTS];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
static ARMED: AtomicBool = AtomicBool::new(false);

/// Notes a reservation of this process.
pub(crate) fn note(base: usize, len: usize) {
    // Miri does not fork.
    if cfg!(miri) {
        return;
    }
    if !ARMED.swap(true, Ordering::SeqCst) {
        // SAFETY: a plain function, which does what a child may do after a fork.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(take_again)) };
    }
    let claimed = TABLE.iter().enumerate().find(|(_, slot)| {
        slot.base.load(Ordering::Relaxed) == 0
            && slot.base.compare_exchange(0, base, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    });
    if let Some((at, slot)) = claimed {
        USED.fetch_max(at + 1, Ordering::SeqCst);
        slot.len.store(len, Ordering::SeqCst);
    }
}

/// Forgets those that lie in what was released.
pub(crate) fn forget(base: usize, len: usize) {
    for slot in TABLE.iter().take(USED.load(Ordering::SeqCst)) {
        let (at, bytes) = (slot.base.load(Ordering::SeqCst), slot.len.load(Ordering::SeqCst));
        if bytes != 0 && at >= base && bytes <= len && at - base <= len - bytes {
            slot.len.store(0, Ordering::SeqCst);
            slot.base.store(0, Ordering::SeqCst);
        }
    }
}

/// In a child, before anything else of it runs.
extern "C" fn take_again() {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    for slot in TABLE.iter().take(USED.load(Ordering::SeqCst)) {
        let (base, len) = (slot.base.load(Ordering::SeqCst), slot.len.load(Ordering::SeqCst));
        if len == 0 {
            continue;
        }
        // SAFETY: inaccessible memory, and nothing is replaced.
        let got = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::without_provenance_mut(base),
                len,
                ProtFlags::empty(),
                flags,
            )
        };
        if let Ok(at) = got
            && at.addr() != base
        {
            // A kernel before 4.17 took the address for a wish.
            // SAFETY: mapped just now, not handed out.
            let _ = unsafe { rustix::mm::munmap(at, len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::{self, Access, Sharing};
    use crate::testing::in_child;
    use std::os::fd::AsFd;

    const LEN: usize = 1 << 21;

    /// Whether the child can have memory there.
    fn is_free_in_child(base: usize) -> bool {
        in_child(|| i32::from(memory::reserve(base, LEN).is_ok())) != 0
    }

    #[test]
    fn a_hole_of_a_forked_child_is_taken() {
        let file = tempfile::tempfile().expect("temporary file");
        file.set_len(LEN as u64).expect("length");
        let base = memory::reserve_anywhere(LEN, LEN).expect("address space");
        assert!(!is_free_in_child(base), "reserved");
        // SAFETY: our reservation, which nothing uses.
        unsafe { memory::map_file(file.as_fd(), base, LEN, Access::ReadWrite, Sharing::Shared) }
            .expect("map");
        assert!(!is_free_in_child(base), "mapped");
        // SAFETY: as above.
        unsafe { memory::unmap_to_reserved(base, LEN) }.expect("unmap");
        assert!(!is_free_in_child(base), "reserved again");
        // SAFETY: nothing uses it.
        unsafe { memory::release(base, LEN) }.expect("release");
        assert!(is_free_in_child(base), "released");
    }

    #[test]
    fn slots_are_used_again() {
        for _ in 0..3 * super::SLOTS {
            let base = memory::reserve_anywhere(4096, 4096).expect("address space");
            // SAFETY: nothing uses it.
            unsafe { memory::release(base, 4096) }.expect("release");
        }
        assert!(super::USED.load(super::Ordering::SeqCst) < super::SLOTS);
    }
}
