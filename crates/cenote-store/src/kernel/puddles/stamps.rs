//! Stamps: they tell whether files of unprotected pools and objects are of one moment
//! ([`cenote_layout::puddle`]).
//!
//! A copy of a store is made file by file, and an operator may put back one file alone. Protected
//! files show that themselves. Files of unprotected pools and objects have no checksum over their
//! contents. Each has a *stamp*: an *era*, if a session may write it, or a *seal*, if none has
//! since a close. The catalog names the seal of each puddle, and the superblock the era.
//!
//! # States
//!
//! | | superblock | files, shadow and primary alike |
//! | --- | --- | --- |
//! | closed | era 0 | the seal that the catalog names; 0 where it names none |
//! | open, or ended without a close | an era | the named seal, the era, or one of its seals |
//!
//! # The order of writes
//!
//! 1. *Open.* The superblock's copies that say "open" name the era: a new random one after a close,
//!    the same as before if the last session did not close the store. They also name how many
//!    sessions of that era have ended without a close: so each session has a seal of its own.
//! 2. *Marked.* A session writes the era into a file before the first store or write into it: when
//!    a puddle is mapped for writing, a descriptor is granted for writing, a primary is opened for
//!    a psync or by recovery, a shadow is brought back, an object is attached for writing, a psync
//!    of it is replayed. No sync, no flush: a copy reads what the kernel has, and after a loss of
//!    power either stamp is right, since the store is open.
//! 3. *Sealed*, by a close, after psyncs, before the puddles are synced. A file gets the session's
//!    seal if its pool was leased since the era began, or it was marked without a lease, and if it
//!    has not the stamp which the catalog names. The sync that the close makes of that file anyway
//!    covers the seal; a primary has a sync of its own. A close of this era that did not finish has
//!    given files another seal: they pass until this close, and no longer.
//!
//!    **Every mark is known to the close**, with or without a lease on its pool: [`Stamps::claim`]
//!    and [`Stamps::mark_file`] note the puddle before the stamp is written; a [`crate::Puddle`]
//!    that is mapped says it by itself.
//! 4. *Named.* The batch that ends the leases names the seal for those puddles.
//! 5. *Closed.* The superblock says "clean" and era 0: **its sync commits**, as that of any close.
//!    Where records of the catalog are lost, nothing is sealed or named, and it keeps the era.
//!
//! A puddle whose files are damaged at step 3 is *left*: step 4 names the era for it, and it keeps
//! that until a session writes the files again. When they are whole again, they have the stamp that
//! was named before, that era, or one of its seals. The next close that finds them whole seals
//! them. So damage of one pool costs the proof of that pool alone. If this session has written the
//! era into all files of the puddle, none is as the last close left it: step 4 names this session's
//! seal before the era, and a file with the earlier seal is refused.
//!
//! # Crash points
//!
//! * Before 1: as before. Between 1 and 5 the superblock has the era, and accepts the results of 2
//!   and 3 in any order and in part. After 4 the seal is named, and the era is still accepted. The
//!   next session of the era counts one more, and seals by another seal.
//! * A stamp is one word, and is never half there. If a loss of power takes one back, the file has
//!   that of the last close, which the catalog names.
//! * After 5 all that is named is on the medium, because 3 has synced it.
//!
//! # What a reader of a file decides
//!
//! A stamp that is neither the named one nor of the superblock's era is of another moment than the
//! catalog: the puddle is damaged, which costs its pool. So a superblock that was copied after a
//! close condemns files that were copied before it. In a closed store any file of another session
//! is refused. Recovery replays nothing into such a file.
//!
//! A lost copy of the superblock hides no era: both name it while the store is open. If records of
//! the catalog are lost, the seals that it named are unknown: [`ERA_ANY`] accepts all, until a
//! close has sealed all. So does it after [`UNCLOSED_MAX`] sessions without a close. A puddle that
//! was left twice, in two eras, is left in [`ERA_ANY`].
//!
//! *A copy of an open store that the caller accepts* ([`crate::CopyPolicy`]):
//!
//! | the files of an unprotected pool | the pool |
//! | --- | --- |
//! | all have the seals that the copied catalog names | was not in use when it was copied |
//! | all are zeros behind their headers, and were never sealed | is as it was made |
//! | any other | counts as torn; its stamps are accepted |
//!
//! A puddle that is pending is marked before it is rewritten, in its file or by a new one: its
//! header may say the same address before and after, and a file of before must not pass. Files of
//! new puddles have no stamp.
//!
//! Not found by stamps: two moments of one era, in a store that was not closed; and the halves of
//! one file that was copied while a session began to write it, beside a catalog and a superblock
//! that were copied before.

use crate::kernel::catalog::CatalogState;
use cenote_layout::catalog::{AtRest, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{ERA_ANY, Role, STAMP_AT, UNCLOSED_MAX, era_of, is_stamp_of, seal_of};
use cenote_layout::superblock::Superblock;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// What a session knows of stamps.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// The superblock's era; 0 where it names none.
    era: AtomicU64,
    /// Whether this session marks files.
    marks: AtomicBool,
    /// Sessions of this era that have ended without a close.
    unclosed: AtomicU64,
    /// Whether there are any, or it is not known what files have.
    continued: AtomicBool,
    /// Whether the store is a copy of an open one that no session has opened yet.
    new_copy: AtomicBool,
    /// Pools that were leased for writing in this session.
    leased: Mutex<BTreeSet<PoolId>>,
    /// Files that may have the mark, but for those that are mapped: puddles, and whether the
    /// primary. The value: whether it is known to be there.
    marked: Mutex<BTreeMap<(Uuid, bool), bool>>,
}

/// The stamps that a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// What the catalog names.
    pub(crate) named: u64,
    /// Of the superblock; 0: none.
    pub(crate) era: u64,
    /// In which a close left the puddle, because it was damaged; 0: none did.
    pub(crate) left: u64,
}

impl Expected {
    pub(crate) fn allows(self, stamp: u64) -> bool {
        let is_of = |era: u64| era == ERA_ANY || era != 0 && is_stamp_of(era, stamp);
        stamp == self.named || is_of(self.era) || is_of(self.left) || planted(Bug::StampNotCompared)
    }

    pub(crate) fn is_of_era(self, stamp: u64) -> bool {
        self.era != 0 && is_stamp_of(self.era, stamp)
    }

    /// Why a file with this stamp is refused.
    pub(crate) fn problem(self, name: &str, stamp: u64) -> Option<String> {
        (!self.allows(stamp)).then(|| {
            format!(
                "its file {name} is of another moment than the catalog: it was copied while it was \
                 written, or an older one was put back; restore the whole store from one copy"
            )
        })
    }
}

/// The era of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Era {
    era: u64,
    /// Sessions of it that have ended without a close.
    unclosed: u64,
    /// It began before this session.
    continued: bool,
}

/// The era that a session goes on in, or begins; `unknown`: what the files may have is not known.
pub(crate) fn era(found: &Superblock, clean: bool, unknown: bool, client: Uuid) -> Era {
    let continued = |era: u64, unclosed: u64| Era { era, unclosed, continued: true };
    match found.era {
        _ if unknown => continued(ERA_ANY, 0),
        0 if clean || found.boot_id.is_nil() => {
            Era { era: era_by(client), unclosed: 0, continued: false }
        }
        0 | ERA_ANY => continued(ERA_ANY, 0),
        _ if found.unclosed >= UNCLOSED_MAX => continued(ERA_ANY, 0),
        era if planted(Bug::SealOfUnfinished) => continued(era, 0),
        era => continued(era, found.unclosed + 1),
    }
}

/// The era that a session begins.
fn era_by(client: Uuid) -> u64 {
    era_of(u128::from_le_bytes(client.0) as u64)
}

/// Whether a puddle has a stamp: a heap's of an unprotected pool, or an unprotected object.
pub(crate) fn is_stamped(state: &CatalogState, record: &PuddleRecord) -> bool {
    match record.role {
        Role::Heap | Role::Metadata => !state.is_protected(record.pool),
        Role::Object => {
            let object = state.objects.get(&record.uuid);
            object.is_some_and(|object| object.at_rest == AtRest::None)
                && !planted(Bug::ObjectsUnstamped)
        }
        Role::Log | Role::LogSpace | Role::Spare => false,
    }
}

pub(crate) fn read_stamp(file: &FileHandle) -> Result<u64, MediumError> {
    let mut stamp = [0; 8];
    file.read_exact_at(STAMP_AT, &mut stamp)?;
    Ok(u64::from_le_bytes(stamp))
}

/// Puts a stamp into the image of a file; 0: it keeps its own.
pub(crate) fn stamp_image(image: &mut [u8], stamp: u64) {
    let at = STAMP_AT as usize;
    if let (true, Some(word)) = (stamp != 0, image.get_mut(at..at + size_of::<u64>())) {
        word.copy_from_slice(&stamp.to_le_bytes());
    }
}

pub(crate) fn write_stamp(file: &FileHandle, stamp: u64) -> Result<(), MediumError> {
    file.write_at(STAMP_AT, &stamp.to_le_bytes())
}

impl Stamps {
    /// A session begins, which `writes`, in this era.
    pub(crate) fn begin(&self, Era { era, unclosed, continued }: Era, writes: bool) {
        self.era.store(era, Ordering::Release);
        self.unclosed.store(unclosed, Ordering::Release);
        self.continued.store(continued, Ordering::Release);
        self.marks.store(writes, Ordering::Release);
    }

    pub(crate) fn set_new_copy(&self, is: bool) {
        self.new_copy.store(is && !planted(Bug::CopyNotProven), Ordering::Release);
    }

    pub(crate) fn is_new_copy(&self) -> bool {
        self.new_copy.load(Ordering::Acquire)
    }

    /// Whether sessions of this era have ended without a close.
    pub(crate) fn is_continued(&self) -> bool {
        self.continued.load(Ordering::Acquire)
    }

    /// Pools that were leased for writing in this session.
    pub(crate) fn leased(&self) -> BTreeSet<PoolId> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The mark of a new file that is given away as it is made; 0: it has none. The close knows it,
    /// so any thread may write it at any time.
    pub(crate) fn claim(&self, uuid: Uuid) -> u64 {
        let (mark, mut marked) =
            (self.mark(), self.marked.lock().unwrap_or_else(PoisonError::into_inner));
        if mark != 0 && !planted(Bug::MarkForgotten) {
            marked.insert((uuid, false), true);
        }
        mark
    }

    /// A puddle that was marked is forgotten: its file may have the mark.
    pub(crate) fn note_marked(&self, uuid: Uuid) {
        let mut marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        marked.entry((uuid, false)).or_default();
    }

    /// Puddles of which a file was marked, but for those that were mapped.
    pub(crate) fn marked(&self) -> BTreeSet<Uuid> {
        let marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        marked.keys().map(|(puddle, _)| *puddle).collect()
    }

    /// Whether it is known that a puddle's file, or its primary, has the mark.
    pub(crate) fn has_mark(&self, uuid: Uuid, primary: bool) -> bool {
        let marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        marked.get(&(uuid, primary)).is_some_and(|known| *known)
    }

    /// What the superblock says while the store is open.
    pub(crate) fn era(&self) -> u64 {
        self.era.load(Ordering::Acquire)
    }

    /// The same: sessions of that era before this one.
    pub(crate) fn unclosed(&self) -> u64 {
        self.unclosed.load(Ordering::Acquire)
    }

    /// The seal of this session's close. Each close has one of its own: a file of an earlier close
    /// has another. [`ERA_ANY`] may end more than once.
    pub(crate) fn seal(&self, client: Uuid) -> u64 {
        match self.era() {
            ERA_ANY if !planted(Bug::SealOfAny) => seal_of(era_by(client), 0),
            era => seal_of(era, self.unclosed()),
        }
    }

    /// What a puddle that is mapped for writing is marked with; 0: it is not. The caller remembers
    /// that it was.
    pub(crate) fn mark(&self) -> u64 {
        if !self.marks.load(Ordering::Acquire) || planted(Bug::NotMarked) {
            return 0;
        }
        self.era.load(Ordering::Acquire)
    }

    /// The stamp of a new file. If it is compared with none (`apart`), the era in which the file
    /// was made, if that says something ([`crate::leftover`]).
    pub(crate) fn made(&self, apart: bool) -> u64 {
        Some(self.mark()).filter(|era| apart && *era != ERA_ANY).unwrap_or(0)
    }

    /// Leases that there are when a session begins: those of sessions that have not ended well.
    pub(crate) fn note_leases(&self, state: &CatalogState) {
        let pools =
            state.leases.iter().filter(|(_, writable)| **writable).map(|((_, pool), _)| *pool);
        self.leased.lock().unwrap_or_else(PoisonError::into_inner).extend(pools);
    }

    /// A batch is to be made of these records.
    pub(crate) fn note(&self, records: &[Record]) {
        let pools = records.iter().filter_map(|record| match record {
            Record::Lease(lease) if lease.writable => Some(lease.pool),
            Record::LeaseShared { pool, .. } => Some(*pool),
            _ => None,
        });
        self.leased.lock().unwrap_or_else(PoisonError::into_inner).extend(pools);
    }

    /// A batch was made of them. Files of a puddle that became spare are made anew. An object may
    /// have a new file, or its window has moved.
    pub(crate) fn note_made(&self, records: &[Record]) {
        for record in records {
            let Record::Puddle(puddle) = record else { continue };
            let mut marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
            match puddle.role {
                Role::Heap | Role::Metadata => {}
                Role::Object => {
                    marked.entry((puddle.uuid, false)).and_modify(|known| *known = false);
                }
                _ => marked.retain(|(uuid, _), _| *uuid != puddle.uuid),
            }
        }
    }

    /// Marks a shadow that was brought back, with any earlier stamp.
    pub(crate) fn mark_anew(&self, file: &FileHandle, uuid: Uuid) -> Result<(), MediumError> {
        let mut marked = self.marked.lock().unwrap_or_else(PoisonError::into_inner);
        marked.entry((uuid, false)).and_modify(|known| *known = false);
        drop(marked);
        self.mark_file(file, uuid, false)
    }

    /// Marks a file that is about to be written.
    pub(crate) fn mark_file(
        &self,
        file: &FileHandle,
        uuid: Uuid,
        primary: bool,
    ) -> Result<(), MediumError> {
        let (mark, mut marked) =
            (self.mark(), self.marked.lock().unwrap_or_else(PoisonError::into_inner));
        if mark == 0 {
            return Ok(());
        }
        if planted(Bug::MarkForgotten) {
            return write_stamp(file, mark);
        }
        let known = marked.entry((uuid, primary)).or_default();
        if !*known {
            write_stamp(file, mark)?;
            *known = true;
        }
        Ok(())
    }
}
