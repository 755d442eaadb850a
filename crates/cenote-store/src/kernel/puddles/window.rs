//! The window: finds the puddle of an address, and room for another puddle.
//!
//! **Slot table.** One word for every 2 MiB of the window points to the puddle that begins or goes
//! on there. Looking up an address is a subtraction, a shift, a load and a comparison; no lock. The
//! table is zeroed memory that the kernel provides page by page, so 4 MiB for a window of 1 TiB
//! cost what is used of them. A puddle is entered after it is complete (release) and its memory
//! lives until the store is dropped, so a reader never sees half of one.
//!
//! **Distance.** While a store is opened whose window is taken, its puddles are mapped in another
//! window, at a distance from the addresses that the catalog, logs and pointers say
//! ([`crate::relocate::window`]). A [`Puddle`] has its address in *this* window always. When the
//! open is done the catalog says these addresses, and the distance is 0.
//!
//! **Space.** Free ranges of slots by position; first fit, so that the window stays dense at its
//! start.

use crate::kernel::puddles::puddle::Puddle;
use cenote_layout::SLOT_SIZE;
use cenote_sys::process_lock::ProcessLock;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeMap;

/// The slot table.
#[derive(Debug)]
pub(crate) struct StoreWindow {
    base: u64,
    len: u64,
    slots: Box<[AtomicUsize]>,
    /// The same of puddles that are watched ([`crate::kernel::store::watch`]).
    watched: Box<[AtomicUsize]>,
    distance: AtomicU64,
    _named: Option<Named>,
}

impl StoreWindow {
    /// A table for the window at `base`; both are multiples of [`SLOT_SIZE`].
    pub(crate) fn new(base: u64, len: u64) -> Self {
        let count = usize::try_from(len / SLOT_SIZE).unwrap_or(0);
        let (slots, watched) = (empty_slots(count), empty_slots(count));
        Self { base, len, slots, watched, distance: AtomicU64::new(0), _named: None }
    }

    /// The same for the store in `path`, whose catalog says addresses that lie lower by `distance`.
    pub(crate) fn of_store(base: u64, len: u64, distance: u64, path: &str) -> Self {
        let _named = Some(Named::new(base, len, path));
        Self { distance: AtomicU64::new(distance), _named, ..Self::new(base, len) }
    }

    /// What is to be added to an address of the catalog: its place in this window.
    pub(crate) fn distance(&self) -> u64 {
        self.distance.load(Ordering::Acquire)
    }

    /// The catalog says where puddles are from now on.
    pub(crate) fn arrived(&self) {
        self.distance.store(0, Ordering::Release);
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The puddle that holds the byte at `addr`.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<&Puddle> {
        // SAFETY: an entry is null or a puddle entered by `insert`, which lives as long as the
        // window is used.
        unsafe { self.find_in(&self.slots, addr) }
    }

    /// The puddle that is watched, and holds the byte at `addr`.
    pub(crate) fn watched(&self, addr: u64) -> Option<&Puddle> {
        // SAFETY: an entry is null or a puddle that is watched, and lives meanwhile. A thread asks
        // for an address that it is using.
        unsafe { self.find_in(&self.watched, addr) }
    }

    /// # Safety
    /// Entries are null, or of puddles that live.
    #[inline]
    unsafe fn find_in(&self, slots: &[AtomicUsize], addr: u64) -> Option<&Puddle> {
        let slot = (addr.wrapping_sub(self.base) / SLOT_SIZE) as usize;
        let entry = slots.get(slot)?.load(Ordering::Acquire) as *const Puddle;
        // SAFETY: the caller's.
        let puddle = unsafe { entry.as_ref()? };
        (addr - puddle.addr() < puddle.size()).then_some(puddle)
    }

    /// Makes `puddle` findable.
    ///
    /// # Safety
    /// It must live as long as `self` is used, and its range must lie in the window.
    pub(crate) unsafe fn insert(&self, puddle: &Puddle) {
        self.fill(&self.slots, puddle, core::ptr::from_ref(puddle) as usize);
    }

    /// Makes `puddle` unfindable; references that were found before stay valid.
    pub(crate) fn remove(&self, puddle: &Puddle) {
        self.fill(&self.slots, puddle, 0);
    }

    /// Lists `puddle` as one that is watched, or no more. It stays where it is as long as it is
    /// listed.
    pub(crate) fn watch(&self, puddle: &Puddle, watched: bool) {
        let entry = if watched { core::ptr::from_ref(puddle) as usize } else { 0 };
        self.fill(&self.watched, puddle, entry);
    }

    fn fill(&self, slots: &[AtomicUsize], puddle: &Puddle, value: usize) {
        let first = ((puddle.addr() - self.base) / SLOT_SIZE) as usize;
        let count = puddle.size().div_ceil(SLOT_SIZE) as usize;
        for slot in slots.iter().skip(first).take(count) {
            slot.store(value, Ordering::Release);
        }
    }
}

/// Entries that are null, zeroed by the kernel, page by page, on first use.
fn empty_slots(count: usize) -> Box<[AtomicUsize]> {
    let zeroes = vec![0usize; count].into_boxed_slice();
    // SAFETY: `AtomicUsize` has the size and alignment of `usize`, and any value is valid; the box
    // is ours.
    unsafe { Box::from_raw(Box::into_raw(zeroes) as *mut [AtomicUsize]) }
}

/// The window's free slots.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    base: u64,
    /// First slot to number of slots.
    free: BTreeMap<u64, u64>,
}

impl Space {
    pub(crate) fn new(base: u64, len: u64) -> Self {
        Self { base, free: BTreeMap::from([(0, len / SLOT_SIZE)]) }
    }

    /// Bytes that are free.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free.values().sum::<u64>() * SLOT_SIZE
    }

    /// Whether `size` bytes fit into one piece.
    pub(crate) fn has_room(&self, size: u64) -> bool {
        self.free.values().any(|room| *room >= size.div_ceil(SLOT_SIZE))
    }

    /// The lowest address with room for `size` bytes.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let count = size.div_ceil(SLOT_SIZE);
        let (&first, &room) = self.free.iter().find(|(_, room)| **room >= count)?;
        self.free.remove(&first);
        if room > count {
            self.free.insert(first + count, room - count);
        }
        Some(self.base + first * SLOT_SIZE)
    }

    /// Takes `size` bytes at one of the places that have room for them, by a random number.
    pub(crate) fn take_random(&mut self, size: u64, random: u64) -> Option<u64> {
        let count = size.div_ceil(SLOT_SIZE);
        let choices = |room: u64| (room + 1).saturating_sub(count);
        let all: u64 = self.free.values().map(|room| choices(*room)).sum();
        let mut choice = random.checked_rem(all)?;
        for (first, room) in &self.free {
            if choice < choices(*room) {
                let addr = self.base + (first + choice) * SLOT_SIZE;
                self.occupy(addr, size);
                return Some(addr);
            }
            choice -= choices(*room);
        }
        None
    }

    /// Takes `size` bytes at `addr`, if all of them are free.
    pub(crate) fn take_at(&mut self, addr: u64, size: u64) -> bool {
        let Some(offset) =
            addr.checked_sub(self.base).filter(|offset| offset.is_multiple_of(SLOT_SIZE))
        else {
            return false;
        };
        let (from, count) = (offset / SLOT_SIZE, size.div_ceil(SLOT_SIZE));
        let before = self.free.range(..=from).next_back();
        if before.is_none_or(|(first, room)| (first + room).saturating_sub(from) < count) {
            return false;
        }
        self.occupy(addr, size);
        true
    }

    /// Marks what a puddle of the catalog takes; parts that are taken already stay so.
    pub(crate) fn occupy(&mut self, addr: u64, size: u64) {
        let (Some(offset), Some(_)) = (addr.checked_sub(self.base), addr.checked_add(size)) else {
            return;
        };
        let (from, to) = (offset / SLOT_SIZE, (offset + size).div_ceil(SLOT_SIZE));
        let touched: Vec<(u64, u64)> = self
            .free
            .range(..to)
            .rev()
            .take_while(|(first, room)| **first + **room > from)
            .map(|(first, room)| (*first, *room))
            .collect();
        for (first, room) in touched {
            self.free.remove(&first);
            if first < from {
                self.free.insert(first, from - first);
            }
            if first + room > to {
                self.free.insert(to, first + room - to);
            }
        }
    }

    /// Gives back what [`Space::take`] gave.
    pub(crate) fn give_back(&mut self, addr: u64, size: u64) {
        let (mut first, mut count) = ((addr - self.base) / SLOT_SIZE, size.div_ceil(SLOT_SIZE));
        if let Some((&before, &room)) = self.free.range(..first).next_back()
            && before + room == first
        {
            self.free.remove(&before);
            first = before;
            count += room;
        }
        if let Some(room) = self.free.remove(&(first + count)) {
            count += room;
        }
        self.free.insert(first, count);
    }
}

/// Windows of the stores that are open in this process: base to bytes and directory.
static OPEN: ProcessLock<BTreeMap<u64, (u64, String)>> = ProcessLock::new(BTreeMap::new());

/// An entry of [`OPEN`], taken out when it is dropped.
#[derive(Debug)]
struct Named(u64);

impl Named {
    fn new(base: u64, len: u64, path: &str) -> Self {
        let mut open = OPEN.lock();
        open.insert(base, (len, path.to_owned()));
        Self(base)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        OPEN.lock().remove(&self.0);
    }
}

/// What lies in a range of this process's address space, in words.
pub(crate) fn who_is_at(base: u64, len: u64) -> String {
    let end = base.saturating_add(len);
    let open = OPEN.lock();
    let is_there =
        |(at, (len, _)): &(&u64, &(u64, String))| **at < end && base < at.saturating_add(*len);
    if let Some((at, (len, path))) = open.iter().find(is_there) {
        return format!("the store in {path}, at {at:#x}..{:#x}", at.saturating_add(*len));
    }
    drop(open);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let Some((from, to)) = fields.next().and_then(|range| range.split_once('-')) else {
            continue;
        };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        else {
            continue;
        };
        if from < end && base < to {
            let what = fields.nth(4).unwrap_or("memory without a name");
            return format!("{from:#x}..{to:#x} ({what})");
        }
    }
    "nothing, but the system refuses so much address space: raise the limit (ulimit -v)".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::catalog::PuddleRecord;
    use cenote_layout::id::{PoolId, Uuid};
    use cenote_layout::puddle::Role;
    use cenote_medium::MapMode;

    const BASE: u64 = 1 << 40;

    fn puddle(addr: u64, size: u64) -> Puddle {
        let record = PuddleRecord {
            uuid: Uuid([1; 16]),
            pool: PoolId(1),
            role: Role::Heap,
            index: 0,
            addr,
            size,
        };
        Puddle::new(record, MapMode::ReadOnly, crate::kernel::puddles::puddle::MappingKind::Direct)
    }

    #[test]
    fn every_address_of_a_puddle_finds_it_and_no_other_does() {
        let window = StoreWindow::new(BASE, 64 << 20);
        let (small, large) = (puddle(BASE, 8192), puddle(BASE + (4 << 20), 5 << 20));
        // SAFETY: both outlive the window's last use here.
        unsafe {
            window.insert(&small);
            window.insert(&large);
        }
        assert_eq!(window.find(BASE + 8191).map(Puddle::addr), Some(BASE));
        assert!(
            window.find(BASE + 8192).is_none(),
            "behind the end of a puddle that does not fill its slot"
        );
        assert!(
            window.find(BASE - 1).is_none()
                && window.find(0).is_none()
                && window.find(u64::MAX).is_none()
        );
        assert!(window.find(BASE + (64 << 20)).is_none());
        for at in [0, 1, 2 << 20, (5 << 20) - 1] {
            assert_eq!(
                window.find(large.addr() + at).map(Puddle::addr),
                Some(large.addr()),
                "{at}"
            );
        }
        assert!(window.find(large.addr() + (5 << 20)).is_none());
        window.remove(&large);
        assert!(window.find(large.addr()).is_none());
    }

    #[test]
    fn space_is_first_fit_and_given_back_space_is_used_again() {
        let mut space = Space::new(BASE, 20 << 20);
        let a = space.take(1).unwrap();
        let b = space.take(3 << 20).unwrap();
        let c = space.take(2 << 20).unwrap();
        assert_eq!((a, b, c), (BASE, BASE + (2 << 20), BASE + (6 << 20)));
        space.give_back(b, 3 << 20);
        assert_eq!(space.take(2 << 20), Some(b));
        space.give_back(b, 2 << 20);
        space.give_back(a, 1);
        space.give_back(c, 2 << 20);
        assert_eq!(space.free.len(), 1, "neighbours join: {:?}", space.free);
        assert_eq!(space.free_bytes(), 20 << 20);
        assert_eq!((space.take(22 << 20), space.has_room(22 << 20)), (None, false));
        assert!(space.has_room(20 << 20));
        space.occupy(BASE + (4 << 20), 3 << 20);
        space.occupy(BASE + (4 << 20), 1);
        assert_eq!(space.free_bytes(), 16 << 20);
        assert_eq!(space.take(6 << 20), Some(BASE + (8 << 20)));
        assert_eq!(space.take(4 << 20), Some(BASE));
        // 14 to 20 MiB are free, rounded to slots: [14, 20).
        assert!(
            !space.take_at(BASE + (12 << 20), 4 << 20)
                && !space.take_at(BASE + (18 << 20), 3 << 20)
        );
        assert!(!space.take_at(BASE + (14 << 20) + 4096, 4096) && !space.take_at(0, 4096));
        assert!(space.take_at(BASE + (16 << 20), 1) && !space.take_at(BASE + (16 << 20), 1));
        assert_eq!(space.free_bytes(), 4 << 20);
    }

    #[test]
    fn a_random_place_is_any_that_is_free() {
        let space = {
            let mut space = Space::new(BASE, 16 << 20);
            assert!(space.take_at(BASE + (6 << 20), 1));
            space
        };
        // Of three and four free slots, two in a row: five places.
        let mut seen = std::collections::BTreeSet::new();
        for random in 0..5 {
            let mut space = space.clone();
            let at = space.take_random(3 << 20, random).unwrap();
            assert!(!space.take_at(at, 1) && !space.take_at(at + (2 << 20), 1));
            assert_eq!(space.free_bytes(), 10 << 20);
            seen.insert((at - BASE) >> 21);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 4, 5, 6]);
        assert_eq!(space.clone().take_random(9 << 20, 1), None);
    }
}
