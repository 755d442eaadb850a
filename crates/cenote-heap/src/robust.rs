//! Locks in shared memory that die with their owner: a mutex, and a lock for readers and writers.
//!
//! A lock is a word, or a word and a place for each reader. A word is 0, or the name of the
//! *process* that has the lock ([`OwnerLiveness::me`]), with bit 31 set while a thread sleeps on
//! it. One store takes the lock and names its owner. So a process may be killed between any two
//! instructions, and the next thread finds a free lock or a dead owner's name. The words outlive a
//! loss of power, and no thread trusts them then: no process of another boot lives.
//!
//! # States, and what commits
//!
//! | state | the words | the one store that leads there |
//! | --- | --- | --- |
//! | mutex, free | 0 | the owner's store of 0 |
//! | mutex, taken | a name | the swap of 0, or of a dead owner's name, for the name |
//! | writer, *coming* | its name in the word, a reader's in a place | as for a mutex |
//! | writer, *in* | its name in the word, none in a place | the last reader clears its place |
//! | reader, *coming* | its name in a place | the store of the name |
//! | reader, *in* | its name in a place; after that store the word was 0 | the same store |
//!
//! **A writer and a reader are never in together.** Each first stores its name, and then looks for
//! the other, with a sequentially consistent fence in between; so one of them sees the other. A
//! reader that sees a writer goes out again and waits; a writer that sees a reader waits.
//!
//! **No thread waits for the dead.** A waiter sleeps for some milliseconds at most. Then it asks
//! [`OwnerLiveness`] whether the owner has ended *and what it left was dealt with*. If so, it swaps
//! a writer's word for its own name and returns [`LockTaken::Recovered`]; a dead reader's place it
//! only clears, because a reader leaves nothing half done. A waiter that dies leaves nothing but
//! bit 31. If an error comes before a dead writer's next holder returns, the lock is *abandoned*:
//! the word has a name that no process has, which counts as dead.
//!
//! **Writers come first**: a reader waits while a writer waits. So a thread that reads must not
//! take the lock again as a reader: it would wait for itself.

use crate::sync::{AtomicU64, LOOKS, Ordering, fence, pause, sleep, wake_all};
use cenote_medium::planted::{Bug, planted};

/// A thread sleeps on the word.
pub(crate) const WAITED: u64 = 1 << 31;
/// A name that no process has: its number would be 0.
const ABANDONED: u64 = 1 << 32;

/// Names this process, and tells which owners have ended.
pub trait OwnerLiveness {
    /// Why that cannot be known.
    type Error;

    /// This process's name: not 0, bit 31 clear; that of no other process which uses the same
    /// locks.
    fn me(&self) -> u64;

    /// Whether that owner has ended, for ever, and what it left was dealt with: the thread that
    /// asks takes its lock over then. Asked by waiters only.
    ///
    /// # Errors
    /// It cannot be known now, or what it left cannot be dealt with.
    fn has_ended(&self, owner: u64) -> Result<bool, Self::Error>;

    /// Whether the thread may wait longer. Asked in each round, before it sleeps; a thread that may
    /// not asks [`OwnerLiveness::has_ended`] once more.
    ///
    /// # Errors
    /// It may not.
    fn in_time(&self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// How a lock was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LockTaken {
    /// Its last holder gave it back, or there was none.
    Clean,
    /// Its last holder died with it. Its transactions were taken back or completed; its other
    /// changes may be half done.
    Recovered,
}

/// The places of readers.
pub(crate) trait ReaderSlots: Sync {
    fn len(&self) -> usize;

    fn place(&self, at: usize) -> &AtomicU64;
}

impl<const N: usize> ReaderSlots for [AtomicU64; N] {
    fn len(&self) -> usize {
        N
    }

    fn place(&self, at: usize) -> &AtomicU64 {
        &self[at]
    }
}

fn is_over<O: OwnerLiveness>(owners: &O, owner: u64) -> Result<bool, O::Error> {
    Ok(owner == ABANDONED || owners.has_ended(owner)?)
}

/// Says on the word that a thread sleeps on it, and sleeps; whether it is time to ask for the
/// owner. False also if the word has changed.
fn doze(word: &AtomicU64, seen: u64) -> bool {
    let marked = seen & WAITED != 0
        || word.compare_exchange(seen, seen | WAITED, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    marked && sleep(word, seen | WAITED)
}

/// Sleeps on the word, unless the thread may wait no longer. The word then, if it is time to ask
/// for the owner.
fn wait_for<O: OwnerLiveness>(word: &AtomicU64, seen: u64, owners: &O) -> Option<u64> {
    if owners.in_time().is_err() {
        return Some(seen);
    }
    doze(word, seen).then_some(seen | WAITED)
}

/// Waits until the word is 0, and takes it if `take`; or takes it over from the dead, in any case.
fn acquire<O: OwnerLiveness>(
    word: &AtomicU64,
    owners: &O,
    take: bool,
) -> Result<LockTaken, O::Error> {
    let mut looks = 0;
    loop {
        let seen = word.load(Ordering::SeqCst);
        if seen == 0 {
            if !take
                || word
                    .compare_exchange(0, owners.me(), Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            {
                return Ok(LockTaken::Clean);
            }
            continue;
        }
        looks += 1;
        if looks < LOOKS {
            pause();
            continue;
        }
        let known = wait_for(word, seen, owners);
        if let Some(known) = known
            && is_over(owners, seen & !WAITED)?
        {
            // Threads that slept before sleep on, and then ask about this owner.
            let over = owners.me() | WAITED;
            if word.compare_exchange(known, over, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return Ok(LockTaken::Recovered);
            }
        } else if known == Some(seen) {
            owners.in_time()?;
        }
    }
}

/// Takes a mutex.
pub(crate) fn lock<O: OwnerLiveness>(word: &AtomicU64, owners: &O) -> Result<LockTaken, O::Error> {
    let taken = acquire(word, owners, true)?;
    Ok(if planted(Bug::TakenOverInSilence) { LockTaken::Clean } else { taken })
}

/// Takes a mutex that is free, or whose owner is dead.
pub(crate) fn try_lock<O: OwnerLiveness>(
    word: &AtomicU64,
    owners: &O,
) -> Result<Option<LockTaken>, O::Error> {
    let me = owners.me();
    match word.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Ok(Some(LockTaken::Clean)),
        Err(seen) if is_over(owners, seen & !WAITED)? => {
            let over = me | (seen & WAITED);
            let swapped = word.compare_exchange(seen, over, Ordering::SeqCst, Ordering::Relaxed);
            Ok(swapped.is_ok().then_some(LockTaken::Recovered))
        }
        Err(_) => Ok(None),
    }
}

/// Gives a word back: a mutex, a writer's, a reader's place.
pub(crate) fn unlock(word: &AtomicU64) {
    if word.swap(0, Ordering::SeqCst) & WAITED != 0 {
        wake_all(word);
    }
}

/// Gives a word back so that the next holder is told that its last one died.
fn abandon(word: &AtomicU64) {
    if word.swap(ABANDONED, Ordering::SeqCst) & WAITED != 0 {
        wake_all(word);
    }
}

fn give_back(word: &AtomicU64, taken: LockTaken) {
    match taken {
        LockTaken::Clean => unlock(word),
        LockTaken::Recovered => abandon(word),
    }
}

/// Waits until a reader's place is free.
fn wait_out<O: OwnerLiveness>(place: &AtomicU64, owners: &O) -> Result<(), O::Error> {
    let mut looks = 0;
    loop {
        let seen = place.load(Ordering::SeqCst);
        if seen == 0 {
            return Ok(());
        }
        looks += 1;
        if looks < LOOKS {
            pause();
            continue;
        }
        let known = wait_for(place, seen, owners);
        if let Some(known) = known
            && is_over(owners, seen & !WAITED)?
        {
            let _ = place.compare_exchange(known, 0, Ordering::SeqCst, Ordering::Relaxed);
        } else if known == Some(seen) {
            owners.in_time()?;
        }
    }
}

/// Takes a lock for writing: waits for the writer that is there, then for readers.
pub(crate) fn write<P: ReaderSlots + ?Sized, O: OwnerLiveness>(
    word: &AtomicU64,
    places: &P,
    owners: &O,
) -> Result<LockTaken, O::Error> {
    let taken = lock(word, owners)?;
    if planted(Bug::ReadersNotAwaited) {
        return Ok(taken);
    }
    fence(Ordering::SeqCst);
    for at in 0..places.len() {
        if let Err(error) = wait_out(places.place(at), owners) {
            give_back(word, taken);
            return Err(error);
        }
    }
    Ok(taken)
}

/// The same without waiting, if the lock is free or its owners are dead.
pub(crate) fn try_write<P: ReaderSlots + ?Sized, O: OwnerLiveness>(
    word: &AtomicU64,
    places: &P,
    owners: &O,
) -> Result<Option<LockTaken>, O::Error> {
    let Some(taken) = try_lock(word, owners)? else { return Ok(None) };
    fence(Ordering::SeqCst);
    for at in 0..places.len() {
        let seen = places.place(at).load(Ordering::SeqCst);
        let over = if seen == 0 { Ok(true) } else { is_over(owners, seen & !WAITED) };
        match over {
            Ok(true) if seen == 0 => {}
            Ok(true) => {
                // The place stays the dead reader's: no other takes a place that is not 0.
                let _ =
                    places.place(at).compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
            Ok(false) => {
                give_back(word, taken);
                return Ok(None);
            }
            Err(error) => {
                give_back(word, taken);
                return Err(error);
            }
        }
    }
    Ok(Some(taken))
}

/// A place of a reader, taken: the first that is free from `first` on.
fn claim<P: ReaderSlots + ?Sized>(places: &P, first: usize, me: u64) -> Option<usize> {
    (first..places.len()).chain(0..first).find(|&at| {
        let place = places.place(at);
        place.load(Ordering::Relaxed) == 0
            && place.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    })
}

/// Takes a lock for reading; the place that it has then. `first`: where to look for one first.
pub(crate) fn read<P: ReaderSlots + ?Sized, O: OwnerLiveness>(
    word: &AtomicU64,
    places: &P,
    first: usize,
    owners: &O,
) -> Result<(usize, LockTaken), O::Error> {
    let first = if first < places.len() { first } else { 0 };
    let mut full = 0;
    loop {
        // A dead writer's word is this thread's now: no other thread comes in, and readers that
        // come go out again.
        let taken = acquire(word, owners, false)?;
        let claimed = claim(places, first, owners.me());
        if taken == LockTaken::Recovered {
            match claimed {
                Some(at) => {
                    unlock(word);
                    return Ok((at, taken));
                }
                None => abandon(word),
            }
        } else if let Some(at) = claimed {
            fence(Ordering::SeqCst);
            if word.load(Ordering::SeqCst) == 0 || planted(Bug::ReaderLooksFirst) {
                return Ok((at, LockTaken::Clean));
            }
            unlock(places.place(at));
            owners.in_time()?;
            continue;
        }
        if claimed.is_none() {
            owners.in_time()?;
            // As many readers as can be: some of them may be dead.
            full += 1;
            pause();
            if full % LOOKS == 0 {
                for at in 0..places.len() {
                    let seen = places.place(at).load(Ordering::SeqCst);
                    if seen != 0 && is_over(owners, seen & !WAITED)? {
                        let place = places.place(at);
                        let _ =
                            place.compare_exchange(seen, 0, Ordering::SeqCst, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// The same, if no writer is there or waits, and a place is free.
pub(crate) fn try_read<P: ReaderSlots + ?Sized, O: OwnerLiveness>(
    word: &AtomicU64,
    places: &P,
    first: usize,
    owners: &O,
) -> Option<usize> {
    if word.load(Ordering::SeqCst) != 0 {
        return None;
    }
    let at = claim(places, if first < places.len() { first } else { 0 }, owners.me())?;
    fence(Ordering::SeqCst);
    if word.load(Ordering::SeqCst) == 0 {
        return Some(at);
    }
    unlock(places.place(at));
    None
}
