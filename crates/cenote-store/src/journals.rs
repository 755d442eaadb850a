//! What the superblock says about the two journals of psyncs, so that a journal that was put back
//! is refused.
//!
//! A journal's header and records are whole by themselves: an older copy of the file passes every
//! check in it, and would be replayed. So the superblock names the header of each journal
//! ([`JournalMark`]): when a session opens the journal, and when it closes the store.
//!
//! # States
//!
//! **Open a journal.** (1) The journal's header is compared with the superblock; an older one is
//! refused and nothing is replayed. (2) Its records are brought to the primaries. (3) Its header
//! says a new epoch: **the sync of the header commits the recovery**. (4) The superblock names that
//! epoch: **the sync of the superblock's copy commits**. Only then a record is appended.
//!
//! **Close.** (1) The journal is trimmed, and nothing writes to it any more; (2) the superblock
//! that says "clean" names its header: **that sync commits both**.
//!
//! | a crash | the superblock names | the journal has | the next open |
//! | --- | --- | --- | --- |
//! | before 3 | what the last session left | the same | opens it |
//! | between 3 and 4 | what the last session left | a newer epoch, and no record of it | opens it |
//! | after 4, before the close | this session's epoch | this epoch, records, trims | opens it |
//! | after the close | the header | the same header | opens it |
//!
//! So the journal is never older than the superblock says, and in a store that was closed it is
//! exactly what the superblock says. A journal that is newer than the superblock of a *closed*
//! store tells that the superblock was put back.
//!
//! A journal's header names the generation of the superblock's copy that names it (4): a superblock
//! that is older was put back, unless the crash came between 3 and 4, when the journal has no
//! record of its session. This ties the two journals of a store that was not closed:
//! one of them cannot go back to an earlier session, with the superblock of that, beside the other.
//!
//! If one of a journal's two headers is damaged, the predecessor of the one that is named is
//! accepted: it may be the newest that is left, and recovery by it is right (it applies records
//! again).
//!
//! A copy of a journal that was made in the session that crashed has this session's epoch. It is
//! told by the other journal, which names records that it lacks (`ties.rs` of `cenote-journal`):
//! after a crash both journals are read before either is opened. If no record of the other journal
//! came later, the copy is a state that the store had. What is protected at rest is compared with
//! the journal's list as well (`roots.rs` of `cenote-journal`).
//!
//! *Files of different moments that the caller accepts* ([`crate::CopyPolicy`]) are not compared
//! so. What their journals name of each other does not count from then on: the superblock says from
//! which session on names count (`tied_from`), and the sync of that copy, with which the session
//! begins, commits that too.

use crate::error::StoreError;
use crate::report::{Damage, OpenReport};
use crate::store::{Control, Inner, Store};
use cenote_journal::{Found, Tie, look, scan};
use cenote_layout::superblock::JournalMark;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};

/// Which journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalOf {
    /// That of the objects.
    Objects,
    /// That of the pools in shadowed mode.
    Pools,
}

impl JournalOf {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Objects, Self::Pools];

    /// The journal's file.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Objects => "journal",
            Self::Pools => "journal.pools",
        }
    }
}

/// What a session knows of the journals.
#[derive(Debug)]
pub(crate) struct Journals {
    /// What they name of each other.
    ties: [Tie; 2],
    /// The store was closed: a journal that this session has not opened is exactly what the
    /// superblock says.
    exact: [bool; 2],
    /// This session has begun to open it: its header may be a newer one than the superblock names.
    opened: [bool; 2],
}

impl Default for Journals {
    fn default() -> Self {
        Self { ties: Tie::both(), exact: [false; 2], opened: [false; 2] }
    }
}

impl Journals {
    /// What one journal and the other know of each other.
    pub(crate) fn tie(&self, of: JournalOf) -> &Tie {
        &self.ties[of as usize]
    }

    /// Why a journal that ends with this record is not the one that the other names.
    fn lacks(&self, of: JournalOf, last: u64) -> Option<String> {
        let named = self.tie(of).named();
        let other = JournalOf::ALL[1 - of as usize].file();
        (last < named && !planted(Bug::TieIgnored)).then(|| {
            format!(
                "it was put back: it ends with record {last}, and {other} says that record {named} was durable"
            )
        })
    }
}

/// Why a superblock of this generation is older than a journal.
fn put_back(generation: u64, found: &Found) -> Option<String> {
    // As long as nothing was done in its session the superblock may not name it yet.
    let at_least = found.session - u64::from(!found.used && found.session > 0);
    let older = generation < at_least && !planted(Bug::SessionIgnored);
    older.then(|| {
        format!(
            "the superblock was put back: it is of generation {generation}, and the journal is of a session \
             that generation {} names",
            found.session
        )
    })
}

/// Why a journal with this header is not the one that the superblock names.
fn why_not(named: &JournalMark, found: &Found, exact: bool) -> Option<String> {
    let Found { mark: found, alone, .. } = found;
    // The header that is named may be the one that is damaged: its predecessor is good enough to
    // recover by.
    let lost = *alone && found.generation + 1 == named.generation;
    if *named == JournalMark::NONE || lost || planted(Bug::OlderJournalAccepted) {
        return None;
    }
    let older = found.epoch < named.epoch
        || (found.epoch == named.epoch
            && (found.generation < named.generation || found.trimmed < named.trimmed));
    if older {
        return Some(format!(
            "it was put back: it is of epoch {}, trimmed up to record {}, and there was epoch {}, trimmed up to record {}",
            found.epoch, found.trimmed, named.epoch, named.trimmed
        ));
    }
    (exact && found != named).then(|| {
        format!(
            "it is not the one that the store was closed with: it is of epoch {}, generation {}, and the superblock \
             names epoch {}, generation {}; one of the two files was put back",
            found.epoch, found.generation, named.epoch, named.generation
        )
    })
}

impl Inner {
    /// Notes whether the superblock's copy is that of a closed store, and how far each journal got.
    /// The first thing that an open does about journals. `copied`: their files are of different
    /// moments, and the caller knows.
    pub(crate) fn expect_journals(
        &self,
        control: &mut Control,
        clean: bool,
        copied: bool,
    ) -> Result<(), MediumError> {
        control.journals.exact = [clean; 2];
        for of in JournalOf::ALL {
            // A header is durable before a superblock names it.
            control.journals.tie(of).reached(control.superblock.journals[of as usize].trimmed);
        }
        if copied {
            control.superblock.tied_from = control.superblock.generation + 1;
        } else if !clean {
            JournalOf::ALL.into_iter().try_for_each(|of| self.read_tie(control, of))?;
        }
        Ok(())
    }

    /// Reads how far a journal got in the session that crashed, and what it names of the other.
    fn read_tie(&self, control: &Control, of: JournalOf) -> Result<(), MediumError> {
        if !self.medium.exists(of.file())? {
            return Ok(()); // it has no record that the other could lack
        }
        let file = FileHandle::open(&self.medium, of.file())?;
        // What is wrong with it is said by its opener.
        let Ok(scan) = scan(&file, self.uuid, false)? else { return Ok(()) };
        let found = scan.found();
        if found.session >= control.superblock.tied_from {
            control.journals.tie(JournalOf::ALL[1 - of as usize]).is_named(found.other);
        }
        if self.writable && scan.damage.is_none() {
            // Its last record may be in the page cache alone, and this session's records name it.
            file.sync()?;
            control.journals.tie(of).reached(found.last);
        }
        Ok(())
    }

    /// Reports journals that were put back, or are gone though something needs them. Changes
    /// nothing.
    pub(crate) fn look_at_journals(
        &self,
        control: &Control,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        for of in JournalOf::ALL {
            let named = control.superblock.journals[of as usize];
            if named == JournalMark::NONE || !self.medium.exists(of.file())? {
                continue; // the opener that needs it reports that it is missing
            }
            let file = FileHandle::open(&self.medium, of.file())?;
            // One without a whole header is reported by its opener.
            let Ok(mut found) = look(&file, self.uuid)? else { continue };
            if control.journals.tie(of).named() > found.last
                && let Ok(scan) = scan(&file, self.uuid, false)?
            {
                found = scan.found();
            }
            let problem = why_not(&named, &found, control.journals.exact[of as usize])
                .or_else(|| put_back(control.superblock.generation, &found))
                .or_else(|| control.journals.lacks(of, found.last));
            let Some(detail) = problem else { continue };
            let state = &control.catalog.state;
            let pools = match of {
                JournalOf::Objects => Vec::new(),
                JournalOf::Pools => {
                    state.pools.keys().copied().filter(|pool| state.is_shadowed(*pool)).collect()
                }
            };
            report.damage.push(Damage::Journal { detail: format!("{}: {detail}", of.file()), pools });
        }
        Ok(())
    }

    /// Refuses a journal that is older than the superblock says.
    pub(crate) fn check_journal(
        &self,
        control: &Control,
        of: JournalOf,
        found: &Found,
    ) -> Result<(), StoreError> {
        let named = &control.superblock.journals[of as usize];
        let problem = why_not(named, found, control.journals.exact[of as usize])
            .or_else(|| put_back(control.superblock.generation, found))
            .or_else(|| control.journals.lacks(of, found.last));
        match problem {
            Some(detail) => Err(StoreError::JournalRolledBack { file: of.file(), detail }),
            None => Ok(()),
        }
    }

    /// Before a session changes a journal's header: from here on it is newer than the superblock
    /// says.
    pub(crate) fn journal_opens(&self, control: &mut Control, of: JournalOf) {
        control.journals.exact[of as usize] = false;
        control.journals.opened[of as usize] = true;
    }

    /// The superblock names the header of a journal that this session has opened. **Its sync
    /// commits.**
    pub(crate) fn name_journal(
        &self,
        control: &mut Control,
        of: JournalOf,
        mark: JournalMark,
    ) -> Result<(), StoreError> {
        let mut next = control.superblock;
        next.journals[of as usize] = mark;
        self.store_superblock(&mut next)?;
        control.superblock = next;
        Ok(())
    }

    /// Puts the headers of the journals that this session has opened, or failed to, into the
    /// superblock's copy that is about to say "clean". Nothing writes to them any more.
    pub(crate) fn name_closed_journals(&self, control: &mut Control) -> Result<(), StoreError> {
        if let Some(journal) = self.shadows.journal() {
            journal.checkpoint()?;
            self.shadows.stop(false);
        }
        for of in JournalOf::ALL.into_iter().filter(|of| control.journals.opened[*of as usize]) {
            // It was to be made, and that failed.
            if !self.medium.exists(of.file())? {
                continue;
            }
            let file = FileHandle::open(&self.medium, of.file())?;
            let found = look(&file, self.uuid)?;
            let found = found.map_err(|detail| StoreError::JournalDamaged { detail })?;
            control.superblock.journals[of as usize] = found.mark;
        }
        Ok(())
    }
}

impl Store {
    /// Refuses a journal of objects that is older than the superblock says: for recovery of
    /// objects, before anything is replayed.
    ///
    /// # Errors
    /// [`StoreError::JournalRolledBack`].
    pub fn check_objects_journal(&self, found: &Found) -> Result<(), StoreError> {
        self.inner().check_journal(&self.inner().control(), JournalOf::Objects, found)
    }

    /// Generation of the superblock's copy that will name a journal of objects whose session begins
    /// now.
    #[must_use]
    pub fn next_session(&self) -> u64 {
        self.inner().control().superblock.generation + 1
    }

    /// What the journal of objects and that of pools know of each other.
    #[must_use]
    pub fn objects_tie(&self) -> Tie {
        self.inner().control().journals.tie(JournalOf::Objects).clone()
    }

    /// The epoch of a journal of objects that is made now: newer than every one before.
    #[must_use]
    pub fn next_objects_epoch(&self) -> u64 {
        self.inner().control().superblock.journals[JournalOf::Objects as usize].epoch + 1
    }

    /// Before the objects' journal gets a new header in this session.
    pub fn objects_journal_opens(&self) {
        self.inner().journal_opens(&mut self.inner().control(), JournalOf::Objects);
    }

    /// The superblock names the header of the objects' journal, durably: before a record is
    /// appended to it.
    ///
    /// # Errors
    /// The medium. A failed sync poisons the store.
    pub fn name_objects_journal(&self, mark: JournalMark) -> Result<(), StoreError> {
        self.inner().name_journal(&mut self.inner().control(), JournalOf::Objects, mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of small headers: what is older is refused, what is newer in a closed store too,
    /// and nothing else.
    #[test]
    fn older_is_refused_and_in_a_closed_store_everything_else() {
        let marks = || {
            (1..4u64).flat_map(|epoch| {
                (1..4u64).flat_map(move |generation| {
                    (0..3u64).map(move |trimmed| JournalMark { epoch, generation, trimmed, chain: trimmed })
                })
            })
        };
        for named in marks() {
            for found in marks() {
                let why_not = |named: &JournalMark, found: &JournalMark, exact: bool| {
                    let of = |alone| Found {
                        mark: *found,
                        alone,
                        session: 0,
                        used: false,
                        last: found.trimmed,
                        other: 0,
                    };
                    let (alone, told) = (why_not(named, &of(true), exact), why_not(named, &of(false), exact));
                    // Beside a damaged header its predecessor passes, and nothing else.
                    assert!(alone == told || found.generation + 1 == named.generation);
                    told
                };
                let newer = found.epoch > named.epoch
                    || (found.epoch == named.epoch
                        && found.generation >= named.generation
                        && found.trimmed >= named.trimmed);
                assert_eq!(why_not(&named, &found, false).is_none(), newer, "{named:?} {found:?}");
                assert_eq!(why_not(&named, &found, true).is_none(), named == found, "{named:?} {found:?}");
                assert_eq!(why_not(&JournalMark::NONE, &found, true), None);
            }
        }
    }
}
