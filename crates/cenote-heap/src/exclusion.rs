//! Excludes a pool's members from each other: many processes read, or one writes.
//!
//! A heap does not need this lock: its own operations are safe beside those of other members. The
//! layer of values does, whose transactions bring no isolation. The lock is that of
//! [`crate::robust`]. The heap's kind says where the words lie. A member has one place as a reader,
//! so a process takes the lock once for all its threads that read.
//!
//! Invariant: a process that has taken the lock sees all that its former holders stored, and has
//! attached all puddles that they took.

use crate::backing::Sharing;
use crate::error::{BackingError, OpenError};
use crate::robust::{self, LockTaken, OwnerLiveness, ReaderSlots};
use core::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The lock, for one member. Threads of this process exclude each other by other means: it does not
/// tell them apart.
#[derive(Clone, Copy)]
pub struct Exclusion<'h> {
    writer: &'h AtomicU64,
    places: &'h dyn ReaderSlots,
    /// This member's place.
    own: usize,
    sharing: &'h dyn Sharing,
}

impl core::fmt::Debug for Exclusion<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Exclusion").field("place", &self.own).finish_non_exhaustive()
    }
}

/// Waits for owners that live until a moment, if there is one.
struct LiveUntil<'h>(&'h dyn Sharing, Option<Instant>);

/// Why a thread waits no longer.
enum Ended {
    /// The moment has come.
    Late,
    Failed(BackingError),
}

impl OwnerLiveness for LiveUntil<'_> {
    type Error = Ended;

    fn me(&self) -> u64 {
        self.0.me()
    }

    fn has_ended(&self, owner: u64) -> Result<bool, Ended> {
        let ended = self.0.has_ended(owner).map_err(Ended::Failed)?;
        let late = !ended && self.1.is_some_and(|until| Instant::now() >= until);
        if late { Err(Ended::Late) } else { Ok(ended) }
    }

    fn in_time(&self) -> Result<(), Ended> {
        match self.1.is_some_and(|until| Instant::now() >= until) {
            true => Err(Ended::Late),
            false => Ok(()),
        }
    }
}

fn failed(source: BackingError) -> OpenError {
    OpenError::Lock { source }
}

/// `None`: it was waited for until the moment that was given.
fn in_time<T>(taken: Result<T, Ended>) -> Result<Option<T>, OpenError> {
    match taken {
        Ok(taken) => Ok(Some(taken)),
        Err(Ended::Late) => Ok(None),
        Err(Ended::Failed(source)) => Err(failed(source)),
    }
}

impl<'h> Exclusion<'h> {
    /// The lock whose words are `writer` and `places`, for the member with place `own`.
    pub(crate) fn new(
        writer: &'h AtomicU64,
        places: &'h dyn ReaderSlots,
        own: usize,
        sharing: &'h dyn Sharing,
    ) -> Self {
        Self { writer, places, own, sharing }
    }

    /// Waits until no other process reads or writes, and takes the lock for writing; to be given
    /// back by [`Exclusion::end_write`]. `None`: others have it at the moment `until`.
    ///
    /// # Errors
    /// [`OpenError::Lock`]: the owner has died, and what it left cannot be dealt with now.
    pub fn write(&self, until: Option<Instant>) -> Result<Option<LockTaken>, OpenError> {
        let taken = robust::write(self.writer, self.places, &LiveUntil(self.sharing, until));
        in_time(taken)?.map(|taken| self.intact(taken, Self::end_write)).transpose()
    }

    /// The same, if no other process has it.
    ///
    /// # Errors
    /// As [`Exclusion::write`].
    pub fn try_write(&self) -> Result<Option<LockTaken>, OpenError> {
        let taken = robust::try_write(self.writer, self.places, &LiveUntil(self.sharing, None));
        let taken = in_time(taken)?.flatten();
        taken.map(|taken| self.intact(taken, Self::end_write)).transpose()
    }

    /// A lock that was taken excludes others, and does not lie in memory of this process that
    /// replaces a lost page.
    fn intact(
        &self,
        taken: LockTaken,
        give_back: impl FnOnce(&Self),
    ) -> Result<LockTaken, OpenError> {
        self.sharing.intact().map_err(failed).inspect_err(|_| give_back(self))?;
        Ok(taken)
    }

    /// Gives the lock back.
    pub fn end_write(&self) {
        robust::unlock(self.writer);
    }

    /// Waits until no other process writes or waits to, and takes the lock for reading; once for a
    /// process, to be given back by [`Exclusion::end_read`]. `None`: as for [`Exclusion::write`].
    ///
    /// # Errors
    /// As [`Exclusion::write`].
    pub fn read(&self, until: Option<Instant>) -> Result<Option<LockTaken>, OpenError> {
        let taken =
            robust::read(self.writer, self.places, self.own, &LiveUntil(self.sharing, until));
        let Some((at, taken)) = in_time(taken)? else { return Ok(None) };
        debug_assert_eq!(at, self.own, "a member's place is its own");
        self.intact(taken, Self::end_read).map(Some)
    }

    /// The same, if no other process writes or waits to.
    #[must_use]
    pub fn try_read(&self) -> bool {
        robust::try_read(self.writer, self.places, self.own, &LiveUntil(self.sharing, None))
            .is_some()
            && self.intact(LockTaken::Clean, Self::end_read).is_ok()
    }

    /// Gives the lock back.
    pub fn end_read(&self) {
        robust::unlock(self.places.place(self.own));
    }

    /// Whether a process writes, or waits for the end of readers.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.writer.load(Ordering::Relaxed) != 0
    }
}
