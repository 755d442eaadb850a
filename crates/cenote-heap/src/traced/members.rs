//! Members: the processes that have one pool open for writing at the same time (RAL-8).
//!
//! All that a heap needs from one operation to the next lies in the mapping: descriptors with their
//! volatile words, marks, hints, lists. So several processes can work on one heap as several
//! threads do, by the same kernel. This table in the root puddle lets a member die anywhere.
//!
//! | word of line 0 | meaning |
//! | --- | --- |
//! | epoch | boot and store: the rest has a meaning in this epoch only |
//! | session | its number |
//! | gate | [`super::gate`] |
//! | turn | the pool's lock, if the backing has no other |
//! | writer | of the lock for readers and writers |
//! | puddles | how many puddles the pool has at least |
//! | 2 words | reserved |
//!
//! | word of a seat (56 follow) | meaning |
//! | --- | --- |
//! | who | 0: the seat is free; else an identity that the backing gives and judges |
//! | inside | threads on a slow path |
//! | reading | of the lock for readers and writers |
//! | 1 word | reserved |
//!
//! `writer` and each seat's `reading` are a lock ([`crate::robust`]) for users of the pool: this
//! module only keeps its words. By one load `puddles` shows a member that others took some.
//!
//! A member's *number* is its seat's, 1 to 56. Every mark of a block that its caches have, or that
//! its transactions hold, contains it ([`cenote_layout::heap::mark`]). So a dead member leaves two
//! things: marks with its number; and superblocks that it had in hands, which [`super::sweep`]
//! finds at a moment when no living member is on a slow path ([`super::gate`]).
//!
//! **Writers.** The thread that has the pool's lock ([`Sharing::lock`]) writes all of the table but
//! `inside`. The kernel of the operating system takes that lock from a dead process.
//!
//! ## Joining, under the lock
//!
//! 1. The table is of another epoch, or no process in it lives: this is the first member of a new
//!    *session*. The gate is opened, the session gets a number that none had, the epoch is written,
//!    seats are cleared. A crash in between leaves a table in which no process lives.
//! 2. **A seat's `who` commits.** From then on a number may be in marks.
//! 3. The root puddle is attached. A puddle is *adopted* once in a session, under the lock: marks
//!    are normalised, volatile words are written, and at last **the session's number in the
//!    puddle's first descriptor (`next`, which metadata has no use for) commits**. The thread that
//!    attaches a puddle with that number there leaves it as it is. Only after that superblocks are
//!    pushed to lists; one that is not is found by a sweep, as any that a dead member had in hands.
//!
//! ## Dying, and leaving
//!
//! The backing decides whether a member lives, and "no" is for ever. A dead member keeps its seat
//! until a sweep is done with its blocks: **clearing the seat ends the sweep**, and another member
//! can repeat each step before. A member that leaves marks its seat as dead, and sweeps itself. The
//! last one does nothing, because the next one is a first member.

use super::gate;
use super::mutex::lock;
use crate::backing::Sharing;
use crate::error::{BackingError, OpenError, RecoverError};
use crate::robust::ReaderSlots;
use cenote_layout::heap::{HeapGeometry, MEMBER_COUNT, MEMBERS_SIZE};
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A member that has left, in place of its identity.
const GONE: u64 = u64::MAX;
/// A sweep gives up when others do not leave their slow paths within this time; they wait as long.
const QUIET_WITHIN: Duration = Duration::from_millis(250);
/// Slow paths look for dead members this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
#[repr(C, align(64))]
struct MemberTable {
    epoch: AtomicU64,
    session: AtomicU64,
    gate: AtomicU64,
    turn: AtomicU64,
    writer: AtomicU64,
    puddles: AtomicU64,
    _reserved: [AtomicU64; 2],
    seats: [Seat; MEMBER_COUNT as usize],
}

#[derive(Debug)]
#[repr(C)]
struct Seat {
    who: AtomicU64,
    inside: AtomicU64,
    reading: AtomicU64,
    _reserved: AtomicU64,
}

const _: () = assert!(size_of::<MemberTable>() as u64 == MEMBERS_SIZE && MEMBER_COUNT < 63);

/// This process as a member of a pool.
#[derive(Debug)]
pub(crate) struct Members {
    table: NonNull<MemberTable>,
    /// Seat and number.
    pub(crate) number: u8,
    pub(crate) session: u64,
    /// The pool's lock excludes other members; this one other threads.
    threads: Mutex<()>,
    looked: Mutex<Instant>,
}

// SAFETY: the table is atomics, in the root puddle's mapping, which outlives this (see `join`).
unsafe impl Send for Members {}
// SAFETY: as above.
unsafe impl Sync for Members {}

/// The pool's lock, held.
pub(crate) struct Locked<'a>(&'a dyn Sharing);

impl<'a> Locked<'a> {
    pub(crate) fn new(sharing: &'a dyn Sharing) -> Result<Self, OpenError> {
        sharing.lock().map_err(|source| OpenError::Lock { source })?;
        Ok(Self(sharing))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// The pool's lock, held by one thread of this process. Fields are dropped in this order.
pub(crate) struct Turn<'a> {
    _locked: Locked<'a>,
    _threads: MutexGuard<'a, ()>,
}

/// A thread inside the gate.
pub(crate) struct Inside<'a>(Option<&'a AtomicU64>);

impl Inside<'_> {
    /// Where there is one process, there is no gate.
    pub(crate) const ALONE: Self = Self(None);
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(inside) = self.0 {
            gate::leave(inside);
        }
    }
}

/// The gate, closed, and no member inside.
pub(crate) struct Closed<'a>(&'a AtomicU64);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        gate::open(self.0);
    }
}

impl Members {
    /// Takes a seat in the pool whose root puddle, of `size` bytes, is mapped at `base`. The caller
    /// has the lock. `None`: the puddle is too small for a heap.
    ///
    /// # Safety
    /// The mapping is writable and stays as long as this lives.
    pub(crate) unsafe fn join(
        sharing: &dyn Sharing,
        base: u64,
        size: u64,
    ) -> Result<Option<Self>, OpenError> {
        let Some(layout) = HeapGeometry::new(size, true) else { return Ok(None) };
        let table = with_exposed_provenance_mut::<MemberTable>((base + layout.members) as usize);
        let Some(table) = NonNull::new(table) else { return Ok(None) };
        // SAFETY: in the mapping by the geometry, aligned to 64; all accesses are atomic.
        let words = unsafe { table.as_ref() };
        let same = words.epoch.load(Ordering::Acquire) == sharing.epoch();
        let living = |seat: &Seat| is_living(sharing, seat.who.load(Ordering::Acquire));
        if !same || !words.seats.iter().any(living) {
            words.epoch.store(0, Ordering::Relaxed);
            for seat in &words.seats {
                seat.who.store(0, Ordering::Release);
                seat.inside.store(0, Ordering::Relaxed);
                seat.reading.store(0, Ordering::Relaxed);
            }
            // Of members that are dead and recovered, or of another boot.
            words.writer.store(0, Ordering::Relaxed);
            words.puddles.store(0, Ordering::Relaxed);
            gate::open(&words.gate);
            // Another one than all before: puddles remember them.
            words.session.store(RandomState::new().hash_one(sharing.me()) | 1, Ordering::Relaxed);
            words.epoch.store(sharing.epoch(), Ordering::Release);
        }
        let free = words.seats.iter().position(|seat| seat.who.load(Ordering::Acquire) == 0);
        let Some(at) = free else { return Err(OpenError::Members { most: MEMBER_COUNT as u32 }) };
        words.seats[at].inside.store(0, Ordering::Relaxed);
        words.seats[at].reading.store(0, Ordering::Relaxed);
        words.seats[at].who.store(sharing.me(), Ordering::Release);
        reach(Step::Joined);
        Ok(Some(Self {
            table,
            number: at as u8 + 1,
            session: words.session.load(Ordering::Relaxed),
            threads: Mutex::new(()),
            looked: Mutex::new(Instant::now()),
        }))
    }

    fn table(&self) -> &MemberTable {
        // SAFETY: as in `join`.
        unsafe { self.table.as_ref() }
    }

    fn seat(&self) -> &Seat {
        &self.table().seats[usize::from(self.number) - 1]
    }

    /// Waits for the pool's lock. Never inside the gate: the thread that has the lock may be
    /// waiting for all to come out.
    pub(crate) fn lock<'a>(&'a self, sharing: &'a dyn Sharing) -> Result<Turn<'a>, OpenError> {
        let threads = lock(&self.threads);
        let locked = Locked::new(sharing)?;
        Ok(self.turn(locked, threads))
    }

    /// The pool's lock, if it is free.
    pub(crate) fn try_lock<'a>(
        &'a self,
        sharing: &'a dyn Sharing,
    ) -> Result<Option<Turn<'a>>, BackingError> {
        let Ok(threads) = self.threads.try_lock() else { return Ok(None) };
        Ok(match sharing.try_lock()? {
            true => Some(self.turn(Locked(sharing), threads)),
            false => None,
        })
    }

    fn turn<'a>(&'a self, locked: Locked<'a>, threads: MutexGuard<'a, ()>) -> Turn<'a> {
        // The member that closed it had the lock, and has died.
        if gate::is_closed(&self.table().gate) {
            gate::open(&self.table().gate);
        }
        Turn { _locked: locked, _threads: threads }
    }

    /// Goes inside the gate, as soon as it is open.
    ///
    /// # Errors
    /// The gate is lost, and with it what it keeps apart ([`Sharing::intact`]).
    pub(crate) fn enter<'a>(
        &'a self,
        sharing: &'a dyn Sharing,
    ) -> Result<Inside<'a>, BackingError> {
        let mut tries = 0u32;
        while !gate::enter(&self.table().gate, &self.seat().inside) {
            tries += 1;
            if tries < 100 {
                std::thread::yield_now();
                continue;
            }
            // The thread that closed the gate is at work, or dead: then the lock is free, and
            // taking it opens the gate.
            if !matches!(self.try_lock(sharing), Ok(Some(_))) {
                std::thread::sleep(Duration::from_micros(100));
            }
            sharing.intact()?;
        }
        Ok(Inside(Some(&self.seat().inside)))
    }

    /// Closes the gate and waits until no living member is inside. The caller has the lock.
    pub(crate) fn close<'a>(&'a self, sharing: &dyn Sharing) -> Result<Closed<'a>, RecoverError> {
        let table = self.table();
        gate::close(&table.gate);
        let closed = Closed(&table.gate);
        let began = Instant::now();
        for (at, seat) in table.seats.iter().enumerate() {
            let mut tries = 0u32;
            while !gate::is_quiet(&seat.inside)
                && is_living(sharing, seat.who.load(Ordering::Acquire))
            {
                if began.elapsed() > QUIET_WITHIN {
                    return Err(RecoverError::NotQuiet { member: at as u32 + 1 });
                }
                tries += 1;
                match tries {
                    0..100 => std::thread::yield_now(),
                    _ => std::thread::sleep(Duration::from_micros(100)),
                }
            }
        }
        Ok(closed)
    }

    /// Bit `n` for each member `n` that has died and has its seat still.
    pub(crate) fn dead(&self, sharing: &dyn Sharing) -> u64 {
        *lock(&self.looked) = Instant::now();
        self.numbers(|who| !is_living(sharing, who))
    }

    /// Bit `n` for each other member `n` that lives.
    pub(crate) fn others(&self, sharing: &dyn Sharing) -> u64 {
        self.numbers(|who| is_living(sharing, who)) & !(1 << self.number)
    }

    fn numbers(&self, is: impl Fn(u64) -> bool) -> u64 {
        let bit = |(at, seat): (usize, &Seat)| {
            let who = seat.who.load(Ordering::Acquire);
            if who != 0 && is(who) { 2 << at } else { 0 }
        };
        self.table().seats.iter().enumerate().map(bit).sum()
    }

    /// Whether it is time for a slow path to look for dead members.
    pub(crate) fn is_due(&self) -> bool {
        lock(&self.looked).elapsed() >= LOOK_EVERY
    }

    /// Ends a sweep: these seats are free. The caller has the lock.
    pub(crate) fn clear(&self, dead: u64) {
        for (at, seat) in self.table().seats.iter().enumerate() {
            if dead >> (at + 1) & 1 != 0 {
                seat.inside.store(0, Ordering::Relaxed);
                seat.reading.store(0, Ordering::SeqCst);
                seat.who.store(0, Ordering::Release);
            }
        }
    }

    /// The writer's word.
    pub(crate) fn writer(&self) -> &AtomicU64 {
        &self.table().writer
    }

    /// This member's place among the readers.
    pub(crate) fn own_place(&self) -> usize {
        usize::from(self.number) - 1
    }

    /// How many puddles the pool has at least.
    pub(crate) fn puddles(&self) -> u64 {
        self.table().puddles.load(Ordering::Acquire)
    }

    /// The pool has so many. The caller has the lock.
    pub(crate) fn set_puddles(&self, count: u64) {
        self.table().puddles.store(count, Ordering::Release);
    }

    /// This member is as good as dead. The caller has the lock, and no thread is in the heap.
    pub(crate) fn leave(&self) {
        self.seat()
            .who
            .store(if planted(Bug::SeatFreedEarly) { 0 } else { GONE }, Ordering::Release);
    }
}

impl ReaderSlots for Members {
    fn len(&self) -> usize {
        MEMBER_COUNT as usize
    }

    fn place(&self, at: usize) -> &AtomicU64 {
        &self.table().seats[at].reading
    }
}

/// The word of the pool's lock in a root puddle of `size` bytes that is mapped at `base`; `None` if
/// it is too small for a heap.
///
/// # Safety
/// The mapping is writable and stays as it is during `'a`.
pub(crate) unsafe fn turn_word<'a>(base: u64, size: u64) -> Option<&'a AtomicU64> {
    let layout = HeapGeometry::new(size, true)?;
    let table =
        NonNull::new(with_exposed_provenance_mut::<MemberTable>((base + layout.members) as usize))?;
    // SAFETY: as in `join`.
    Some(unsafe { &table.as_ref().turn })
}

fn is_living(sharing: &dyn Sharing, who: u64) -> bool {
    who != 0 && who != GONE && sharing.lives(who)
}
