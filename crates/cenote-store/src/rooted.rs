//! Finds, without a key, protected files that are not the ones which a journal lists: those of
//! objects, and of the root puddles of pools ([`cenote_journal::Roots`]).
//!
//! An attach and an open of a pool compare them too. This is for programs that look at a store and
//! have no key, or open nothing: [`crate::Store::damaged_files`], and a backup. Invariant: it
//! changes no file, and what it says of one makes an attach, or an open of the pool, fail.
//!
//! *In a session that has the journal open*, the list is in memory, and a psync may change a file
//! while it is read. Then it changes the list, too, when it is in the file. So a header that does
//! not fit is looked at again, with what is listed then.

use crate::kernel::catalog::journals::JournalOf;
use crate::kernel::puddles::puddle::{DATA_AT, file_name, text};
use crate::kernel::puddles::verify::{RESTORE, about_file};
use crate::kernel::store::{Control, Inner};
use crate::kernel::superblock::about::about_control;
use crate::primaries::rooted;
use cenote_journal::{Journal, ROOT_HEADER_LEN, Root, Rooted, Roots, scan};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::Uuid;
use cenote_layout::object::object_data_offset;
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, Weak};

/// How often a file is looked at that a psync may have changed meanwhile. One that is psynced all
/// the time was compared when it was attached.
const LOOKS: u32 = 8;

/// The list of a journal.
enum JournalList {
    /// This session has the journal open.
    Open(Arc<Journal>),
    /// As its file has it. Records that may not be in their files are of those that are `behind`.
    File { roots: Roots, behind: BTreeSet<Uuid> },
}

/// The lists of both journals. One that cannot be believed is not there: its opener says so.
pub(crate) struct Lists([Option<JournalList>; 2]);

/// Which journal lists a puddle, and where in its file the header lies that is listed.
fn listed_by(control: &Control, puddle: &PuddleRecord) -> Option<(JournalOf, Rooted)> {
    let state = &control.catalog.state;
    match puddle.role {
        Role::Object => {
            let object = state.objects.get(&puddle.uuid)?;
            let Rooted { at, root } =
                cenote_atrest::view::rooted(object.at_rest.mode(), object.span())?;
            let at = object_data_offset(puddle.size) + at;
            Some((JournalOf::Objects, Rooted { at, root }))
        }
        // One that is pending is listed as it will be.
        Role::Heap | Role::Metadata if !state.pending.contains_key(&puddle.uuid) => {
            let Rooted { at, root } = rooted(puddle, state.at_rest(puddle.pool))?;
            Some((JournalOf::Pools, Rooted { at: DATA_AT + at, root }))
        }
        _ => None,
    }
}

impl Inner {
    /// What the journals list now.
    pub(crate) fn lists(&self, control: &Control) -> Result<Lists, MediumError> {
        let mut lists = Lists([None, None]);
        for of in JournalOf::ALL {
            lists.0[of as usize] = self.list_of(control, of)?;
        }
        Ok(lists)
    }

    fn list_of(
        &self,
        control: &Control,
        of: JournalOf,
    ) -> Result<Option<JournalList>, MediumError> {
        let mut all = control.catalog.state.puddles.values();
        if !all.any(|puddle| listed_by(control, puddle).is_some_and(|(by, _)| by == of)) {
            return Ok(None);
        }
        let open = match of {
            JournalOf::Objects => {
                let known = self.journals.lock().unwrap_or_else(PoisonError::into_inner);
                known.iter().find_map(Weak::upgrade)
            }
            JournalOf::Pools => self.shadows().journal().map(Arc::clone),
        };
        if open.is_some() || !self.medium.exists(of.file())? {
            return Ok(open.map(JournalList::Open));
        }
        let scanned = FileHandle::open(&self.medium, of.file())
            .and_then(|file| scan(&file, self.uuid, false));
        let scan = match scanned {
            Err(error) => return about_control(error).map(|_| None),
            Ok(Err(_)) => return Ok(None),
            Ok(Ok(scan)) => scan,
        };
        if scan.damage.is_some() || self.problem(control, of, &scan.found()).is_some() {
            return Ok(None);
        }
        let behind = scan.records.iter().flat_map(|record| record.objects.iter().copied());
        let behind = behind.collect();
        Ok(scan.roots.map(|roots| JournalList::File { roots, behind }))
    }

    /// Why a protected file is not the one that is listed. For one that cannot be read: the text of
    /// the error.
    pub(crate) fn not_listed(
        &self,
        lists: &Lists,
        control: &Control,
        puddle: &PuddleRecord,
    ) -> Result<Option<String>, MediumError> {
        let Some((of, rooted)) = listed_by(control, puddle) else { return Ok(None) };
        let Some(list) = &lists.0[of as usize] else { return Ok(None) };
        let name = file_name(puddle.uuid);
        let name = text(&name);
        let found = || -> Result<Option<Root>, MediumError> {
            let mut header = [0; ROOT_HEADER_LEN];
            FileHandle::open(&self.medium, name)?.read_exact_at(rooted.at, &mut header)?;
            Ok((rooted.root)(&header))
        };
        let fits = match fits(list, puddle.uuid, found) {
            Ok(fits) => fits,
            Err(error) => return about_file(error).map(Some),
        };
        Ok((!fits && !planted(Bug::RootsIgnored) && !planted(Bug::ListNotLookedAt)).then(|| {
            format!(
                "its file {name} has a protection that is not the one which {} lists: one of the \
                 two files was put back; {RESTORE}",
                of.file()
            )
        }))
    }
}

/// Whether a file has the root that is listed, or it cannot be said.
fn fits(
    list: &JournalList,
    puddle: Uuid,
    found: impl Fn() -> Result<Option<Root>, MediumError>,
) -> Result<bool, MediumError> {
    match list {
        JournalList::File { behind, .. } if behind.contains(&puddle) => Ok(true),
        JournalList::File { roots, .. } => Ok(found()? == roots.get(puddle)),
        JournalList::Open(journal) => {
            let mut before = None;
            for _ in 0..LOOKS {
                // A journal that has stopped lists nothing.
                let Ok(listed) = journal.root_of(puddle) else { return Ok(true) };
                match found()? == listed {
                    true => return Ok(true),
                    // No psync of it came between the two looks.
                    false if before == Some(listed) => return Ok(false),
                    false => before = Some(listed),
                }
            }
            Ok(true)
        }
    }
}
