//! Guards of metadata: only code that has entered them writes the ranges.
//!
//! | [`Protection`] | who can write a range, other than through the guards |
//! | --- | --- |
//! | `None` | every store |
//! | `Hidden` | a store to the second mapping, which no pointer in memory leads to |
//! | `Mprotect` | every store, as long as any thread is inside the guards |
//! | `Keys` | a store to the second mapping, by a thread that is inside the guards |
//!
//! With `Hidden` and `Keys` the range at its own address is read-only from [`Guards::add`] on.
//! Stores go through a second mapping of the same pages
//! ([`cenote_sys::second_mapping`]), [`Guards::add`] says how far away. Where stores are noted, the
//! code that makes them notes them ([`crate::StoreNotes`]): no fault does. With `Keys` that mapping
//! has a protection key too, which only a thread inside the guards has opened. So neither takes a
//! right away from a load, and neither changes rights of pages in an operation.
//!
//! With `Mprotect` the first thread that enters opens all ranges, and the last one that leaves
//! closes them. Where the kernel refuses that, the store faults.
//!
//! Beside a range lie *guard pages* ([`Guards::close_off`]), which nothing uses: no access to them
//! succeeds, so what runs over its end stops before it comes to metadata.

use crate::explain::tell_of_faults;
use crate::owner::{Owner, Whole};
use crate::right::Right;
use crate::table::RangeKind;
use cenote_medium::planted::{Bug, GuardBug, planted};
use cenote_sys::fork_guard;
use cenote_sys::mappings;
use cenote_sys::protection_keys::{Before, Key};
use cenote_sys::second_mapping::SecondMapping;
use core::ops::Range;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

/// Mappings that a guard page may add.
const MAPPINGS: u64 = 2;

/// How metadata are protected against stray writes. The module's table compares them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protection {
    /// Not at all.
    None,
    /// Stores go through a second mapping at a random address.
    #[default]
    Hidden,
    /// Pages are writable while a thread is inside. For tests and comparison: two system calls for
    /// each operation.
    Mprotect,
    /// As `Hidden`, and the second mapping has a protection key.
    Keys,
}

impl Protection {
    /// The protection that this machine has: keys where the processor has them, second mappings
    /// where the memory can have one (`twice`).
    #[must_use]
    pub fn within(self, twice: bool) -> Self {
        match self {
            Self::Hidden | Self::Keys if !twice => Self::None,
            Self::Keys if Key::of_process().is_none() => Self::Hidden,
            other => other,
        }
    }
}

/// Ranges of metadata of one owner, and the way in.
#[derive(Debug)]
pub struct Guards {
    protection: Protection,
    /// With [`Protection::Keys`].
    key: Option<Key>,
    /// What ranges are for.
    kind: RangeKind,
    /// What explanations name: `pool "x"`.
    what: String,
    /// Guard pages keep their access.
    leaves_open: bool,
    token: u64,
    state: Mutex<GuardState>,
}

#[derive(Debug, Default)]
struct GuardState {
    /// How often guards were entered and not left: with [`Protection::Mprotect`].
    inside: u32,
    ranges: Vec<Guarded>,
    closed_off: Vec<Guarded>,
}

#[derive(Debug)]
struct Guarded {
    owner: Owner<Whole>,
    _second: Option<SecondMapping>,
}

impl Guarded {
    /// Gives the whole range a right.
    fn give(&self, right: Right) -> io::Result<()> {
        self.owner.rights().change(right);
        let pages = (self.owner.range().len() / PAGE) as u64;
        // SAFETY: the range is the guards' (contract of `Guards::add`), and all code that stores
        // there is inside them.
        unsafe { self.owner.set(0..pages, right) }.map(drop)
    }
}

impl Guards {
    /// Without ranges yet. `what` as in [`Owner::new`].
    #[must_use]
    pub fn new(protection: Protection, what: &str) -> Self {
        Self::of(RangeKind::Metadata, protection, what)
    }

    /// The same for ranges of another kind.
    #[must_use]
    pub fn of(kind: RangeKind, protection: Protection, what: &str) -> Self {
        let key = if protection == Protection::Keys { Key::of_process() } else { None };
        let (what, token) = (what.to_owned(), fork_guard::token());
        Self { protection, key, kind, what, leaves_open: false, token, state: Mutex::default() }
    }

    /// The same, and guard pages keep their access: where other code reads the whole memory at its
    /// own address.
    #[must_use]
    pub fn leaving_pages_open(mut self) -> Self {
        self.leaves_open = true;
        self
    }

    /// How ranges are protected.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        self.protection
    }

    /// Guards a range of whole pages. Returns what is to be added to an address in it, wrapping
    /// around, for a store.
    ///
    /// # Errors
    /// What the kernel says. The range is not guarded.
    ///
    /// # Safety
    /// The range is mapped and writable, until the guards end. From now on all stores there are
    /// made by code that has entered, at the distance that was returned. For a second mapping one
    /// file is mapped there, shared, from the first byte of the range to the last.
    pub unsafe fn add(&self, range: Range<usize>) -> io::Result<usize> {
        if self.protection == Protection::None || range.is_empty() {
            return Ok(0);
        }
        tell_of_faults()?;
        let twice = matches!(self.protection, Protection::Hidden | Protection::Keys);
        let second = match twice {
            // SAFETY: the caller's promise.
            true => Some(unsafe { SecondMapping::new(range.start, range.len()) }?),
            false => None,
        };
        if let (Some(second), Some(key)) = (&second, self.key) {
            second.lock_by(key)?;
        }
        let distance = second.as_ref().map_or(0, SecondMapping::distance);
        let whole = Whole::new(Right::Write);
        let owner = Owner::new(range, self.kind, &self.what, whole);
        let guarded = Guarded { owner, _second: second };
        let mut state = self.state();
        if state.inside == 0 && !planted(Bug::Guard(GuardBug::GuardsOpen)) {
            let closed = guarded.give(Right::Read);
            closed.inspect_err(|_| {
                // It may have closed a part, where stores at no distance would fault.
                let _ = guarded.give(Right::Write);
            })?;
        }
        state.ranges.push(guarded);
        Ok(distance)
    }

    /// Takes away all access to pages beside ranges: guard pages. Nothing, if nothing is protected.
    ///
    /// # Errors
    /// What the kernel says, or the process has no room for more mappings. The pages may have lost
    /// their access all the same, until the guards end.
    ///
    /// # Safety
    /// The pages are mapped and writable, until the guards end; nothing uses them meanwhile.
    pub unsafe fn close_off(&self, pages: Range<usize>) -> io::Result<()> {
        if self.protection == Protection::None || self.leaves_open || pages.is_empty() {
            return Ok(());
        }
        tell_of_faults()?;
        mappings::room(MAPPINGS)?;
        let owner = Owner::new(pages, RangeKind::Guard, &self.what, Whole::new(Right::Write));
        let guarded = Guarded { owner, _second: None };
        let closed = match planted(Bug::Guard(GuardBug::GuardPagesOpen)) {
            true => Ok(()),
            false => guarded.give(Right::Nothing),
        };
        self.state().closed_off.push(guarded);
        closed
    }

    /// Lets this thread store into the ranges, until the result is dropped.
    #[inline]
    pub fn enter(&self) -> Inside<'_> {
        match self.protection {
            Protection::None | Protection::Hidden => Inside::Nothing,
            Protection::Keys => {
                self.key.map_or(Inside::Nothing, |key| Inside::Keyed(key, key.open()))
            }
            Protection::Mprotect => {
                self.open();
                Inside::Counted(self)
            }
        }
    }

    #[cold]
    fn open(&self) {
        let mut state = self.state();
        state.inside += 1;
        if state.inside == 1 {
            // A range that stays closed lets the store fault, and that is told.
            state.ranges.iter().for_each(|guarded| drop(guarded.give(Right::Write)));
        }
    }

    #[cold]
    fn close(&self) {
        let mut state = self.state();
        state.inside -= 1;
        if state.inside == 0 {
            state.ranges.iter().for_each(|guarded| drop(guarded.give(Right::Read)));
        }
    }

    fn state(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        // A child does not have the ranges.
        if fork_guard::is_current(self.token) {
            let GuardState { ranges, closed_off, .. } = core::mem::take(&mut *self.state());
            // Where that is refused, what comes after finds read-only pages, and says so.
            ranges.iter().chain(&closed_off).for_each(|of| drop(of.give(Right::Write)));
        }
    }
}

/// A thread is inside guards. The thread that entered leaves.
#[derive(Debug)]
#[must_use = "leaves at once"]
pub enum Inside<'a> {
    /// Nothing is to be done.
    Nothing,
    /// Pages are open.
    Counted(&'a Guards),
    /// The key is open; what it was before.
    Keyed(Key, Before),
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        match self {
            Self::Nothing => {}
            Self::Counted(guards) => guards.close(),
            Self::Keyed(key, before) => key.close(*before),
        }
    }
}
