//! A second mapping of memory that is mapped shared already, at an address that chance chose.
//!
//! The kernel makes it from the first one (`mremap` of length 0), so that no descriptor of a file
//! is needed. It can be read and written, also if the first one cannot.
//!
//! # Where it lies
//!
//! In 24 TiB of addresses ([`PLACES`]): windows of stores lie below. With the kernel's default of
//! 28 random bits (`vm.mmap_rnd_bits`) programs lie below too, and what the kernel places above,
//! more than 1 TiB away. With 32 bits either may lie in it. Nothing that is there is replaced. Its
//! address is the first one's modulo 2 MiB, so that large pages can serve both. On each side is a
//! page without access.
//!
//! If advice leaves the first one out of forked children or core dumps, the second one is left out,
//! too: the kernel copies that.
//!
//! A value of [`SecondMapping`] holds the *distance* of the two mappings, which is no address: no
//! word of memory leads to the second one but while it is used. The list of reservations does not
//! have it either.
//!
//! # Pages that are lost
//!
//! A page of the file may be lost while it is mapped. A bus error in the second mapping is resolved
//! as one in the first (`first_of`). The page there then, or memory in its place, is mapped in the
//! second one too (`follow`), so that both show the same again. The handler of faults finds the
//! second mapping in a list of first mappings and distances (`SLOTS`).
//!
//! # Safety argument
//!
//! The place is reserved first, where nothing lies; the second mapping replaces the reservation.
//! It belongs to the value, and ends with it, in the process that made it.

use crate::fork_guard;
use crate::mappings;
use crate::memory;
use crate::process;
use crate::process_lock::ProcessLock;
use crate::slots::{CHUNK, SlotList};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::io;
use std::sync::{Arc, Weak};

/// Where second mappings lie.
pub const PLACES: Range<usize> = 0x5800_0000_0000..0x7000_0000_0000;
/// They lie as the first one does, modulo this.
const STEP: usize = 2 << 20;
/// Mappings that it adds to the process: itself, the page on each side, and two pieces of the first
/// one.
const MAPPINGS: u64 = 5;
/// How often another place is tried: a second mapping may lie there.
const TRIES: u32 = 16;

/// How often a reader tries to copy a slot that changes.
const READS: u32 = 100;

/// A second mapping, for the handler of faults. Writers have the lock of [`FREE`].
#[derive(Debug)]
struct SecondSlot {
    /// Odd while the fields change.
    version: AtomicU64,
    /// Of the process that has it; 0: free.
    token: AtomicU64,
    first: AtomicUsize,
    len: AtomicUsize,
    distance: AtomicUsize,
}

impl SecondSlot {
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            token: AtomicU64::new(0),
            first: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            distance: AtomicUsize::new(0),
        }
    }

    fn fill(&self, token: u64, first: usize, len: usize, distance: usize) {
        // Odd already: a thread of the process that forked this one was here.
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::Relaxed);
        fence(Ordering::Release);
        self.token.store(token, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.distance.store(distance, Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Release);
    }

    /// The address in the first mapping, if `addr` is in this second one.
    fn first_of(&self, token: u64, addr: usize) -> Option<usize> {
        for _ in 0..READS {
            let version = self.version.load(Ordering::Acquire);
            let (first, len) =
                (self.first.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
            let at = addr.wrapping_sub(self.distance.load(Ordering::Relaxed));
            let is_own = self.token.load(Ordering::Relaxed) == token;
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                return (is_own && at.wrapping_sub(first) < len).then_some(at);
            }
            core::hint::spin_loop();
        }
        None
    }
}

static SLOTS: SlotList<SecondSlot> = SlotList::new([const { SecondSlot::new() }; CHUNK]);

/// Free slots, and the process whose they are: in a forked child, all are free.
static FREE: ProcessLock<(u64, Vec<&'static SecondSlot>)> = ProcessLock::new((0, Vec::new()));

/// A slot with these fields.
fn listed(token: u64, first: usize, len: usize, distance: usize) -> &'static SecondSlot {
    let mut free = FREE.lock();
    if free.0 != token {
        *free = (token, SLOTS.iter().collect());
    }
    let slot = free.1.pop().unwrap_or_else(|| {
        let new = SLOTS.grow([const { SecondSlot::new() }; CHUNK]);
        free.1.extend(&new[1..]);
        &new[0]
    });
    slot.fill(token, first, len, distance);
    slot
}

/// The address in the first mapping that an address in a second one of this process is the same
/// byte as. Async-signal-safe.
pub(crate) fn first_of(addr: usize) -> Option<usize> {
    let token = fork_guard::current();
    if token == 0 {
        return None;
    }
    for slot in SLOTS.iter() {
        if let Some(first) = slot.first_of(token, addr) {
            return Some(first);
        }
    }
    None
}

/// Maps what lies at the page of `first` at that of `addr` too, where it is the second mapping's.
/// Whether it is there. Async-signal-safe.
///
/// # Safety
/// `first` is what [`first_of`] says of `addr`, and the calling thread is using the second mapping,
/// so that it is there.
pub(crate) unsafe fn follow(first: usize, addr: usize) -> bool {
    let len = memory::page_bytes();
    let (from, to) = (first & !(len - 1), addr & !(len - 1));
    let old = ptr::without_provenance_mut(from);
    let new = ptr::without_provenance_mut(to);
    // SAFETY: the old mapping stays as it is (its length is given as 0); what is replaced is a page
    // of the second mapping, by the page that it should show.
    let mapped = unsafe { rustix::mm::mremap_fixed(old, 0, len, MremapFlags::MAYMOVE, new) };
    mappings::made();
    // SAFETY: mapped just now, for the users of the second mapping.
    mapped.is_ok()
        && unsafe {
            memory::leave_out_of_children(to, len).is_ok()
                && memory::protect(to, len, Some(memory::Access::ReadWrite)).is_ok()
        }
}

/// A reserved range at an address by chance, for second mappings of what lies in one window: all at
/// one distance from it. Its pages have no access where nothing is mapped. It costs address space:
/// so there is one of each window at a time.
#[derive(Debug)]
pub struct SecondWindow {
    first: usize,
    len: usize,
    distance: usize,
    token: u64,
}

/// Those of this process, and which process that is: a forked child has none.
static WINDOWS: ProcessLock<(u64, Vec<Weak<SecondWindow>>)> = ProcessLock::new((0, Vec::new()));

impl SecondWindow {
    /// For a window, whole pages, in which so many more `ranges` are to be mapped twice. While a
    /// result lives, others for the same window are that one.
    ///
    /// # Errors
    /// What the kernel says; there is no room for so many addresses, or mappings.
    pub fn new(window: Range<usize>, ranges: u64) -> io::Result<Arc<Self>> {
        if cfg!(miri) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        mappings::room(MAPPINGS.saturating_mul(ranges.saturating_add(1)))?;
        let (first, len, token) = (window.start, window.len(), fork_guard::token());
        let mut windows = WINDOWS.lock();
        if windows.0 != token {
            *windows = (token, Vec::new());
        }
        windows.1.retain(|known| known.strong_count() != 0);
        let same = |known: &Arc<Self>| (known.first, known.len) == (first, len);
        if let Some(known) = windows.1.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(known);
        }
        let place = reserve(first, len)?;
        mappings::made();
        let new = Arc::new(Self { first, len, distance: place.wrapping_sub(first), token });
        windows.1.push(Arc::downgrade(&new));
        Ok(new)
    }

    /// The distance to add to an address of the window, wrapping around, where it is mapped twice.
    #[must_use]
    pub const fn distance(&self) -> usize {
        self.distance
    }

    /// Maps `len` bytes at `first` a second time, whole pages of the window.
    ///
    /// # Errors
    /// As [`SecondMapping::new`]; the range does not lie in the window.
    ///
    /// # Safety
    /// As [`SecondMapping::new`]; no part of it is mapped twice already.
    pub unsafe fn map(self: &Arc<Self>, first: usize, len: usize) -> io::Result<SecondMapping> {
        let at = first.checked_sub(self.first).and_then(|at| at.checked_add(len));
        if at.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        mappings::room(MAPPINGS)?;
        // SAFETY: handed on to the caller; the place is in our reservation, where nothing is.
        unsafe { SecondMapping::map(first, len, self.distance, Some(Arc::clone(self))) }
    }
}

impl Drop for SecondWindow {
    fn drop(&mut self) {
        // A child may have something else there.
        if fork_guard::is_current(self.token) {
            give_up(self.first.wrapping_add(self.distance), self.len);
        }
    }
}

/// Gives back what [`reserve`] gave.
fn give_up(place: usize, len: usize) {
    let page = memory::page_bytes();
    // SAFETY: the callers' own, with its two pages without access.
    let _ =
        unsafe { rustix::mm::munmap(ptr::without_provenance_mut(place - page), len + 2 * page) };
}

/// See the module.
pub struct SecondMapping {
    first: usize,
    len: usize,
    distance: usize,
    token: u64,
    slot: &'static SecondSlot,
    /// That it lies in, if it has no reservation of its own.
    window: Option<Arc<SecondWindow>>,
}

impl core::fmt::Debug for SecondMapping {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SecondMapping(of {:#x}, {} bytes)", self.first, self.len)
    }
}

impl SecondMapping {
    /// Of `len` bytes at `first`, whole pages.
    ///
    /// # Errors
    /// What the kernel says: the memory is not shared (`EINVAL`). There are so many mappings that
    /// the program needs the rest ([`mappings::room`]).
    ///
    /// # Safety
    /// The range is mapped, and one file lies there from its first byte to its last.
    pub unsafe fn new(first: usize, len: usize) -> io::Result<Self> {
        if cfg!(miri) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        mappings::room(MAPPINGS)?;
        let place = reserve(first, len)?;
        // SAFETY: handed on to the caller; the place is reserved.
        unsafe { Self::map(first, len, place.wrapping_sub(first), None) }
    }

    /// # Safety
    /// As `new`; at that distance is a reservation, which the result may replace.
    unsafe fn map(
        first: usize,
        len: usize,
        distance: usize,
        window: Option<Arc<SecondWindow>>,
    ) -> io::Result<Self> {
        let (token, place) = (fork_guard::token(), first.wrapping_add(distance));
        let (from, to) = (ptr::without_provenance_mut(first), ptr::without_provenance_mut(place));
        // SAFETY: the old mapping stays as it is (its length is given as 0), and what is replaced
        // is our reservation.
        let mapped = unsafe { rustix::mm::mremap_fixed(from, 0, len, MremapFlags::MAYMOVE, to) };
        let slot = listed(token, first, len, distance);
        let second = Self { first, len, distance, token, slot, window };
        mappings::made();
        mappings::made();
        // SAFETY: mapped just now.
        let kept = unsafe { memory::leave_out_of_children(place, len) };
        mapped.map_err(io::Error::from).and(kept)?;
        // With any rights of the first one at this moment. SAFETY: the value's own, which nothing
        // uses yet.
        unsafe { memory::protect(place, len, Some(memory::Access::ReadWrite)) }?;
        Ok(second)
    }

    /// What is to be added to an address of the first mapping, wrapping around.
    #[must_use]
    pub const fn distance(&self) -> usize {
        self.distance
    }

    /// Gives the second mapping a protection key: see [`crate::protection_keys`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn lock_by(&self, key: crate::protection_keys::Key) -> io::Result<()> {
        // SAFETY: the value's own mapping; its users open the key.
        unsafe { key.assign(self.first.wrapping_add(self.distance), self.len) }
    }
}

impl Drop for SecondMapping {
    fn drop(&mut self) {
        // A child does not have it, and may have something else there.
        if fork_guard::is_current(self.token) {
            let mut free = FREE.lock();
            self.slot.fill(0, 0, 0, 0);
            free.1.push(self.slot);
            drop(free);
            let place = self.first.wrapping_add(self.distance);
            match self.window {
                None => give_up(place, self.len),
                // SAFETY: the value's own.
                Some(_) => drop(unsafe { memory::unmap_to_reserved(place, self.len) }),
            }
        }
    }
}

/// Reserves a place by chance, with a page on each side.
fn reserve(first: usize, len: usize) -> io::Result<usize> {
    let page = memory::page_bytes();
    let steps = ((PLACES.end - PLACES.start).saturating_sub(len) / STEP).saturating_sub(2);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    for _ in 0..TRIES {
        let random = u128::from_ne_bytes(process::random_bytes16()?);
        // 2^128 is so much more than the number of places that none is likelier than another by
        // more than 2^-100.
        let step = (random % steps.max(1) as u128) as usize + 1;
        let place = PLACES.start + step * STEP + first % STEP;
        let start = ptr::without_provenance_mut(place - page);
        // SAFETY: with FIXED_NOREPLACE (and on kernels without it: as a mere wish) no existing
        // mapping is replaced.
        let got =
            unsafe { rustix::mm::mmap_anonymous(start, len + 2 * page, ProtFlags::empty(), flags) };
        match got {
            Ok(at) if at == start => return Ok(place),
            Ok(at) => {
                // SAFETY: mapped just now, not handed out.
                let _ = unsafe { rustix::mm::munmap(at, len + 2 * page) };
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::dual_mapping::nameless_file;
    use crate::memory::{Access, OwnedRegion, protect, whole_file};
    use std::os::fd::AsFd;

    fn shared(pages: usize) -> OwnedRegion {
        let file = nameless_file("second").expect("a file");
        file.set_len((pages * 4096) as u64).expect("its length");
        // SAFETY: nothing else has the file.
        unsafe { whole_file(file.as_fd(), pages * 4096) }.expect("mapped")
    }

    #[test]
    fn a_store_through_the_second_mapping_is_seen_through_the_first_which_is_read_only() {
        let region = shared(4);
        let first = region.as_ptr().expose_provenance();
        // SAFETY: a shared mapping of one file.
        let second = unsafe { SecondMapping::new(first + 4096, 2 * 4096) }.expect("mapped twice");
        // SAFETY: our own; stores go through the second mapping from now on.
        unsafe { protect(first, 4 * 4096, Some(Access::ReadOnly)) }.expect("protected");
        let to = (first + 4096 + 8).wrapping_add(second.distance());
        assert!(PLACES.contains(&to));
        assert_eq!(to % STEP, (first + 4096 + 8) % STEP);
        // SAFETY: inside the second mapping, which is writable; loads from the first.
        unsafe {
            core::ptr::with_exposed_provenance_mut::<u64>(to).write_volatile(7);
            assert_eq!(region.as_ptr().add(4096 + 8).cast::<u64>().read_volatile(), 7);
        }
        assert!(!format!("{second:?}").contains(&format!("{:x}", to & !4095)));
    }

    #[test]
    fn it_is_writable_although_the_first_one_is_read_only() {
        let region = shared(1);
        let first = region.as_ptr().expose_provenance();
        // SAFETY: our own.
        unsafe { protect(first, 4096, Some(Access::ReadOnly)) }.expect("protected");
        // SAFETY: a shared mapping of one file.
        let second = unsafe { SecondMapping::new(first, 4096) }.expect("mapped twice");
        let to = core::ptr::with_exposed_provenance_mut::<u64>(first.wrapping_add(second.distance));
        // SAFETY: inside the second mapping.
        unsafe { to.write_volatile(9) };
        // SAFETY: inside the first one.
        assert_eq!(unsafe { region.as_ptr().cast::<u64>().read_volatile() }, 9);
    }

    /// What lies in the place of a page that is lost: as a store does it.
    fn stand_in(_: *const (), addr: usize) -> bool {
        let page = addr & !4095;
        // SAFETY: a page of a mapping of the test's, of a file that is too short.
        unsafe { memory::map_shared(page, 4096) }.is_ok()
    }

    #[test]
    fn a_page_that_is_lost_is_resolved_in_the_first_mapping_and_both_show_the_same() {
        let file = nameless_file("lost").expect("a file");
        file.set_len(3 * 4096).expect("its length");
        // SAFETY: nothing else has the file.
        let region = unsafe { whole_file(file.as_fd(), 3 * 4096) }.expect("mapped");
        let first = region.as_ptr().expose_provenance();
        // SAFETY: a shared mapping of one file.
        let second = unsafe { SecondMapping::new(first, 3 * 4096) }.expect("mapped twice");
        // SAFETY: the resolver maps, in memory of the test's.
        let registered = unsafe { crate::fault::register(first, 3 * 4096, stand_in, ptr::null()) };
        let _registered = registered.expect("registered");
        file.set_len(4096).expect("cut short");
        for page in [1, 2] {
            let here = ptr::with_exposed_provenance_mut::<u64>(first + page * 4096 + 16);
            let there = here.map_addr(|addr| addr.wrapping_add(second.distance()));
            let there = ptr::with_exposed_provenance_mut::<u64>(there.addr());
            // SAFETY: words of both mappings.
            unsafe {
                there.write_volatile(7 + page as u64);
                assert_eq!(here.read_volatile(), 7 + page as u64);
                here.write_volatile(1);
                assert_eq!(there.read_volatile(), 1);
            }
        }
        assert_eq!(file.metadata().expect("its length").len(), 4096);
    }

    #[test]
    fn a_window_has_one_distance_and_ranges_of_it_come_and_go() {
        let region = shared(8);
        let first = region.as_ptr().expose_provenance();
        let window = SecondWindow::new(first..first + 8 * 4096, 2).expect("reserved");
        for _ in 0..2 {
            // SAFETY: shared mappings of one file; two parts of it.
            let (low, high) = unsafe {
                let low = window.map(first, 4096).expect("mapped twice");
                (low, window.map(first + 4 * 4096, 2 * 4096).expect("mapped twice"))
            };
            assert_eq!((low.distance(), high.distance()), (window.distance(), window.distance()));
            let at = (first + 5 * 4096).wrapping_add(window.distance());
            // SAFETY: inside the second mapping, and the first one.
            unsafe {
                ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(5);
                let here = ptr::with_exposed_provenance::<u64>(first + 5 * 4096);
                assert_eq!(here.read_volatile(), 5);
            }
            drop((low, high));
            assert!(crate::bytes::copy_by_kernel(at, &mut [0; 8]).is_err(), "reserved again");
        }
        // SAFETY: refused.
        assert!(unsafe { window.map(first + 7 * 4096, 2 * 4096) }.is_err());
        let again = || SecondWindow::new(first..first + 8 * 4096, 2).expect("reserved");
        assert_eq!(again().distance(), window.distance(), "one of each window");
        let other = SecondWindow::new(first..first + 4 * 4096, 2).expect("reserved");
        assert_ne!(other.distance(), window.distance());
        let before = window.distance();
        drop(window);
        assert_ne!(again().distance(), before, "a new one by chance");
    }

    #[test]
    fn private_memory_is_not_mapped_twice() {
        let region = memory::anonymous(4096).expect("memory");
        // SAFETY: mapped; the kernel refuses.
        let refused = unsafe { SecondMapping::new(region.as_ptr().expose_provenance(), 4096) };
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn it_is_left_out_of_core_dumps_if_the_first_one_is() {
        let flags = |at: usize| {
            let maps = std::fs::read_to_string("/proc/self/smaps").expect("readable");
            let from = maps.find(&format!("\n{at:x}-")).expect("a mapping") + 1;
            let flags = maps[from..].find("VmFlags:").expect("flags");
            let line = maps[from + flags..].lines().next().unwrap_or_default();
            ["dd", "dc"].map(|flag| line.split(' ').any(|set| set == flag))
        };
        let region = shared(2);
        let first = region.as_ptr().expose_provenance();
        memory::leave_out_of_dumps(first, 2 * 4096).expect("advised");
        // SAFETY: a shared mapping of one file.
        let second = unsafe { SecondMapping::new(first, 2 * 4096) }.expect("mapped twice");
        assert_eq!(flags(first.wrapping_add(second.distance())), [true, true]);
    }

    #[test]
    fn places_differ() {
        let region = shared(1);
        let first = region.as_ptr().expose_provenance();
        // SAFETY: a shared mapping of one file.
        let again = || unsafe { SecondMapping::new(first, 4096) }.expect("mapped twice");
        let all: Vec<SecondMapping> = (0..8).map(|_| again()).collect();
        let places: std::collections::BTreeSet<usize> = all.iter().map(|s| s.distance).collect();
        assert_eq!(places.len(), 8);
    }
}
