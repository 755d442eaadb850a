//! One lock for all that a pool's members read and write: many processes that read, or one that writes.
//!
//! The heap needs none: its own operations are safe beside those of other members. It is for the layer of values, whose transactions bring no isolation. It is the lock of [`crate::robust`]; its
//! words lie in the table of members ([`crate::members`]). A member's place as a reader is its seat's, so a process takes it once, and counts for itself how many of its threads read.
//!
//! Whoever has taken the lock sees all that its former holders stored, and has attached all puddles that they took.

use crate::error::{GroundError, OpenError};
use crate::ground::{Ground, Sharing};
use crate::members::Members;
use crate::robust::{self, Judge, Taken};
use crate::traced::TracedHeap;
use core::sync::atomic::Ordering;

/// The lock, for one member. Threads of this process exclude each other by other means: it does not tell them apart.
#[derive(Clone, Copy)]
pub struct Exclusion<'h> {
    members: &'h Members,
    sharing: &'h dyn Sharing,
}

impl core::fmt::Debug for Exclusion<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Exclusion").field("member", &self.members.number).finish_non_exhaustive()
    }
}

struct By<'h>(&'h dyn Sharing);

impl Judge for By<'_> {
    type Error = GroundError;

    fn me(&self) -> u64 {
        self.0.me()
    }

    fn has_ended(&self, owner: u64) -> Result<bool, GroundError> {
        self.0.has_ended(owner)
    }
}

fn failed(source: GroundError) -> OpenError {
    OpenError::Lock { source }
}

impl<G: Ground> TracedHeap<G> {
    /// The lock between the processes that have the pool; `None` if there is one process.
    #[inline]
    #[must_use]
    pub fn exclusion(&self) -> Option<Exclusion<'_>> {
        let members = self.members.as_ref()?;
        self.ground.sharing().map(|sharing| Exclusion { members, sharing })
    }
}

impl Exclusion<'_> {
    /// Waits until no other process reads or writes, and takes the lock for writing; to be given back by [`Exclusion::end_write`].
    ///
    /// # Errors
    /// [`OpenError::Lock`]: the owner has died, and what it left cannot be dealt with now.
    pub fn write(&self) -> Result<Taken, OpenError> {
        robust::write(self.members.writer(), self.members, &By(self.sharing)).map_err(failed)
    }

    /// The same, if no other process has it.
    ///
    /// # Errors
    /// As [`Exclusion::write`].
    pub fn try_write(&self) -> Result<Option<Taken>, OpenError> {
        robust::try_write(self.members.writer(), self.members, &By(self.sharing)).map_err(failed)
    }

    /// Gives the lock back.
    pub fn end_write(&self) {
        robust::unlock(self.members.writer());
    }

    /// Waits until no other process writes or waits to, and takes the lock for reading; once for a process, to be given back by [`Exclusion::end_read`].
    ///
    /// # Errors
    /// As [`Exclusion::write`].
    pub fn read(&self) -> Result<Taken, OpenError> {
        let own = self.members.own_place();
        let taken = robust::read(self.members.writer(), self.members, own, &By(self.sharing));
        let (at, taken) = taken.map_err(failed)?;
        debug_assert_eq!(at, own, "a member's place is its own");
        Ok(taken)
    }

    /// The same, if no other process writes or waits to.
    #[must_use]
    pub fn try_read(&self) -> bool {
        let own = self.members.own_place();
        robust::try_read(self.members.writer(), self.members, own, &By(self.sharing)).is_some()
    }

    /// Gives the lock back.
    pub fn end_read(&self) {
        robust::unlock(robust::Places::place(self.members, self.members.own_place()));
    }

    /// Whether some process writes, or waits for those who read to end.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.members.writer().load(Ordering::Relaxed) != 0
    }
}
