//! Owners of ranges: what each allows, and how the rights of pages change.

use crate::lock::RightsLock;
use crate::right::Right;
use crate::table::{self, OwnerEntry, OwnerSlot, RangeKind};
use cenote_medium::planted::{Bug, planted};
use cenote_sys::fork_guard;
use cenote_sys::memory;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::io;

const PAGE: usize = 4096;
/// Most other owners of a range that are looked for once; of more, all are looked for again at each
/// page. A root puddle has two for each sub-heap whose metadata lie in it, and four of its own.
const OTHERS: usize = 32;

/// What an owner allows, page by page. Its state changes before [`Owner::set`] is called for the
/// change.
///
/// # Safety
/// [`Rights::allows`] may be called in a signal handler, by a thread that has the lock of rights:
/// it neither allocates, nor waits, nor touches memory of a range.
pub unsafe trait Rights: Send + Sync + 'static {
    /// What it allows of a page of the range, by its number.
    fn allows(&self, page: u64) -> Right;
}

/// One right for a whole range.
#[derive(Debug)]
pub struct Whole(AtomicU8);

impl Whole {
    /// This right.
    #[must_use]
    pub fn new(right: Right) -> Self {
        Self(AtomicU8::new(right as u8))
    }

    /// From now on this one. [`Owner::set`] is to follow.
    pub fn change(&self, right: Right) {
        self.0.store(right as u8, Ordering::SeqCst);
    }
}

// SAFETY: one load.
unsafe impl Rights for Whole {
    fn allows(&self, _: u64) -> Right {
        Right::of(self.0.load(Ordering::SeqCst))
    }
}

/// What the slot of an owner points to.
struct Placed<R> {
    base: usize,
    rights: R,
}

/// # Safety
/// `context` is a `Placed<R>`, and `address` lies in the range of its owner.
unsafe fn allows<R: Rights>(context: *const (), address: usize) -> Right {
    // SAFETY: by contract.
    let placed = unsafe { &*context.cast::<Placed<R>>() };
    placed.rights.allows(((address - placed.base) / PAGE) as u64)
}

/// The use of a range of addresses, and the way to change its rights, as far as the other owners of
/// its pages allow. Until it is dropped.
pub struct Owner<R: Rights> {
    slot: &'static OwnerSlot,
    token: u64,
    range: Range<usize>,
    retired: AtomicBool,
    /// In a place of its own: the slot points to it.
    placed: Box<Placed<R>>,
}

impl<R: Rights> fmt::Debug for Owner<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:#x}..{:#x})", self.range.start, self.range.end)
    }
}

impl<R: Rights> Owner<R> {
    /// Of `range`, whole pages of 4096 bytes, which is for `kind`; `what` names it in explanations:
    /// `pool "x"`. Changes no right: the pages have what `rights` allows already, or the first
    /// [`Owner::set`] gives it to them. Not for signal handlers.
    #[must_use]
    pub fn new(range: Range<usize>, kind: RangeKind, what: &str, rights: R) -> Self {
        let placed = Box::new(Placed { base: range.start, rights });
        let context = (&raw const *placed).cast();
        let entry = OwnerEntry { range: range.clone(), kind, what, allows: allows::<R>, context };
        // SAFETY: `R` keeps the rules of `Rights`, and `placed` stays where it is until after
        // `retire`, which `drop` calls.
        let slot = unsafe { table::place(&entry) };
        let token = fork_guard::token();
        Self { slot, token, range, retired: AtomicBool::new(false), placed }
    }

    /// What it allows by itself.
    #[must_use]
    pub fn rights(&self) -> &R {
        &self.placed.rights
    }

    /// The addresses.
    #[must_use]
    pub fn range(&self) -> &Range<usize> {
        &self.range
    }

    /// Gives pages, by number, this right, which its [`Rights`] allow, as far as the other owners
    /// do. Whether all pages have all of it now. Async-signal-safe.
    ///
    /// # Errors
    /// As [`memory::protect`]; some pages may have it.
    ///
    /// # Safety
    /// As [`memory::protect`]: the pages are the caller's, and what is taken away no code keeps
    /// using, except where a resolver of faults gives it back.
    pub unsafe fn set(&self, pages: Range<u64>, right: Right) -> io::Result<bool> {
        if self.retired.load(Ordering::Acquire) {
            return Ok(false);
        }
        if self.slot.is_alone() {
            // SAFETY: handed on to the caller.
            unsafe { self.change(pages.clone(), right) }?;
            // An owner that came meanwhile has not seen this change.
            if self.slot.is_alone() {
                return Ok(true);
            }
        }
        // SAFETY: handed on to the caller.
        unsafe { self.set_shared(pages, right) }
    }

    /// The right that a page has by all its owners. Async-signal-safe.
    #[must_use]
    pub fn right_of(&self, page: u64) -> Right {
        let own = self.placed.rights.allows(page);
        own.min(self.others_allow(page))
    }

    /// Whether another owner denies a page what this one allows. Async-signal-safe.
    #[must_use]
    pub fn is_denied(&self, page: u64) -> bool {
        let own = self.placed.rights.allows(page);
        self.others_allow(page) < own
    }

    /// Whether another owner denies stores into a page. Async-signal-safe.
    #[must_use]
    pub fn others_deny(&self, page: u64) -> bool {
        self.others_allow(page) < Right::Write
    }

    fn others_allow(&self, page: u64) -> Right {
        if self.slot.is_alone() {
            return Right::Write;
        }
        let address = self.range.start + page as usize * PAGE;
        let lock = RightsLock::take();
        if self.retired.load(Ordering::Acquire) {
            return Right::Write;
        }
        Others::of(self, &lock).allow(address)
    }

    /// Of these pages, those that have a right, or more, by all owners. Not for signal handlers.
    #[must_use]
    pub fn with_right(&self, right: Right, pages: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut with = Vec::with_capacity(pages.len());
        let lock = RightsLock::take();
        let others = Others::of(self, &lock);
        let has = |page: &u64| {
            let address = self.range.start + *page as usize * PAGE;
            self.placed.rights.allows(*page).min(others.allow(address)) >= right
        };
        for range in pages {
            let mut from = range.start;
            while let Some(first) = (from..range.end).find(has) {
                from = (first..range.end).find(|page| !has(page)).unwrap_or(range.end);
                with.push(first..from);
            }
        }
        with
    }

    /// The range is no longer its: nothing is explained by it, and nothing denied. From now on no
    /// call of it changes a right. Not for signal handlers.
    pub fn retire(&self) {
        // In a forked child, the slot may be in use again.
        if !self.retired.swap(true, Ordering::AcqRel) && fork_guard::is_current(self.token) {
            table::displace(self.slot, &self.range);
        }
    }

    #[cold]
    unsafe fn set_shared(&self, pages: Range<u64>, right: Right) -> io::Result<bool> {
        let lock = RightsLock::take();
        // Looked at under the lock: while an owner is live that shares its range, no other one of
        // these comes or goes without the lock.
        if self.retired.load(Ordering::Acquire) {
            return Ok(false);
        }
        let others = Others::of(self, &lock);
        let (mut all, mut from) = (true, pages.start);
        while from < pages.end {
            let of = |page: u64| right.min(others.allow(self.range.start + page as usize * PAGE));
            let given = of(from);
            let to = (from + 1..pages.end).find(|page| of(*page) != given).unwrap_or(pages.end);
            // SAFETY: handed on to the caller.
            unsafe { self.change(from..to, given) }?;
            all &= given == right;
            from = to;
        }
        Ok(all)
    }

    /// # Safety
    /// As [`Owner::set`].
    #[inline]
    unsafe fn change(&self, pages: Range<u64>, right: Right) -> io::Result<()> {
        let (at, len) = (pages.start as usize * PAGE, (pages.end - pages.start) as usize * PAGE);
        debug_assert!(at + len <= self.range.len());
        // SAFETY: handed on to the caller.
        unsafe { memory::protect(self.range.start + at, len, right.access()) }
    }
}

impl<R: Rights> Drop for Owner<R> {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The other owners of a range, under the lock of rights.
struct Others<'a> {
    some: [Option<&'static OwnerSlot>; OTHERS],
    /// How many these are.
    count: usize,
    /// There are more.
    more: bool,
    own: &'static OwnerSlot,
    token: u64,
    range: &'a Range<usize>,
    _lock: &'a RightsLock,
}

impl<'a> Others<'a> {
    fn of<R: Rights>(owner: &'a Owner<R>, lock: &'a RightsLock) -> Self {
        let (own, token, range) = (owner.slot, owner.token, &owner.range);
        let (some, count, more, _lock) = ([None; OTHERS], 0, false, lock);
        let mut others = Self { some, count, more, own, token, range, _lock };
        for slot in table::slots() {
            if others.has(slot) {
                match others.some.get_mut(others.count) {
                    Some(place) => {
                        *place = Some(slot);
                        others.count += 1;
                    }
                    None => others.more = true,
                }
            }
        }
        others
    }

    fn has(&self, slot: &'static OwnerSlot) -> bool {
        !core::ptr::eq(slot, self.own) && slot.overlaps(self.token, self.range)
    }

    /// The least of what they allow of the page at an address.
    fn allow(&self, address: usize) -> Right {
        if planted(Bug::OwnerUndone) {
            return Right::Write;
        }
        let mut least = Right::Write;
        if self.more {
            for slot in table::slots() {
                if self.has(slot) {
                    // SAFETY: it overlaps the owner's slot, which is live, under the lock.
                    least = least.min(unsafe { slot.allows(address) });
                }
            }
            return least;
        }
        for slot in self.some[..self.count].iter().flatten() {
            // SAFETY: as above.
            least = least.min(unsafe { slot.allows(address) });
        }
        least
    }
}
