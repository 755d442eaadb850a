//! Compares the two journals of psyncs with the superblock, and refuses one that was put back.
//!
//! A journal's header and records are whole by themselves: an older copy of the file passes every
//! check in it, and would be replayed. So the superblock names the header of each journal
//! ([`JournalMark`]): when a session opens the journal, and when it closes the store. Invariant: a
//! journal is never older than the superblock says, unless it was put back.
//!
//! # States
//!
//! **Open a journal.** (1) The journal's header is compared with the superblock; an older one is
//! refused and nothing is replayed. (2) Its records are brought to the primaries. (3) Its header
//! says a new epoch: **the sync of the header commits the recovery**. (4) The superblock names that
//! epoch: **the sync of the superblock's copy commits**. Only then a record is appended.
//!
//! **Close.** (1) The journal is trimmed, and nothing writes to it any more; (2) the superblock
//! that says "clean" names its header: **that sync commits both**. It calls the journal *settled*
//! if nothing is behind that header.
//!
//! | a crash | the superblock names | settled | the journal has | the next opener |
//! | --- | --- | --- | --- | --- |
//! | before 3 | what the last opener left | as it left it | the same | opens it |
//! | after 3 | what the last opener left | as it was | a newer epoch, no record of it | opens it |
//! | after 4, not closed | this session's epoch | no | this epoch, records, trims | opens it |
//! | after the close | the header | yes | the same header | opens it |
//!
//! So the journal is never older than the superblock says, and a settled one has nothing that the
//! superblock does not name. A settled journal that is newer and has records shows that the
//! superblock was put back.
//!
//! # Who names a journal
//!
//! Only a session that opens it, at 4 and at its close. Other sessions write copies of the
//! superblock with the same mark and the same bits, whether they close the store or die. So a
//! journal that a crash left with records stays unsettled until a session opens it, and "clean"
//! says nothing about a journal that is not settled. Every open until then finds the same:
//!
//! * it is older than its mark: the mark stays;
//! * it lacks what the other journal names: the other one's header keeps the name, and names are
//!   read at every open of a store that crashed or has a journal that is not settled;
//! * the superblock is older than it: generations grow, so the bit *refused* keeps that.
//!
//! A caller that accepts the loss has a new journal made, and its naming (4) clears both bits; for
//! pools the module `given_up` has the states. The bits do not count, and no journal is settled,
//! where a copy of the superblock is lost, or put back and accepted, or the files are of different
//! moments.
//!
//! A journal's header names the generation of the superblock's copy that names it (4). A superblock
//! that is older was put back, unless the crash came between 3 and 4, when the journal has no
//! record of its session. This ties the two journals of a store that was not closed: one of them
//! cannot go back to an earlier session, with the superblock of that, beside the other.
//!
//! If one of a journal's two headers is damaged, the predecessor of the named one is accepted. It
//! may be the newest that is left, and recovery by it is right (it applies records again). The
//! file's records go at least as far as the named header: those of a copy that was put back end
//! earlier.
//!
//! If one of the superblock's two copies is damaged, it may have been the next one after the other.
//! Then the other is older than the journals by one copy at most. So journals of the session that
//! the lost copy named pass, and nothing is lost. Entries of the other files say what the copy that
//! is left does not: a journal that was put back beside it lacks what they name.
//!
//! A copy of a journal that was made in the session that crashed has this session's epoch. The
//! other journal, or the catalog, shows that it is a copy: they name records that it lacks
//! (`ties.rs` of `cenote-journal`). The journals show a copy of the catalog in the same way. So
//! after a crash both journals are read, then the catalog, before anything is opened. If no record
//! of the other journal and no batch came later, the copy is a state that the store had. Protected
//! things are compared with the journal's list as well (`roots.rs` of `cenote-journal`).
//!
//! *Files of different moments that the caller accepts* ([`crate::CopyPolicy`]) are not compared
//! so. Their names of each other do not count from then on: the superblock says from which session
//! and from which batch on names count (`tied_from`, `tied_batch`). The sync of that copy, with
//! which the session begins, commits that too.

use crate::kernel::interface::error::StoreError;
use crate::kernel::superblock;
use crate::kernel::superblock::about::about_control;
use cenote_journal::{FoundJournal, TIED, Tie, scan};
use cenote_layout::superblock::{JOURNAL_BITS, JOURNAL_SETTLED, JournalMark, Superblock};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError, OwnedMedium};

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
    /// What they and the catalog, which is the last, name of each other.
    ties: [Tie; TIED],
    /// They were read when the store was opened, so that names are known.
    pub(crate) read: bool,
    /// The superblock that was read is perhaps not the newest one: its next copy is damaged.
    pub(crate) next_lost: bool,
    /// This session has begun to open it: its header may be a newer one than the superblock names.
    pub(crate) opened: [bool; 2],
    /// This session has opened it, and named it.
    pub(crate) named: [bool; 2],
}

impl Default for Journals {
    fn default() -> Self {
        Self {
            ties: Tie::all(),
            read: false,
            next_lost: false,
            opened: [false; 2],
            named: [false; 2],
        }
    }
}

/// Whether the superblock says this of a journal.
pub(crate) fn says(block: &Superblock, of: JournalOf, bit: u64) -> bool {
    block.journal_states >> (of as u32 * JOURNAL_BITS) & bit != 0
}

/// Makes the superblock say it, or not.
pub(crate) fn say(block: &mut Superblock, of: JournalOf, bit: u64, on: bool) {
    let bit = bit << (of as u32 * JOURNAL_BITS);
    block.journal_states =
        if on { block.journal_states | bit } else { block.journal_states & !bit };
}

/// What was read of a journal; `None` where its file cannot be read, which its opener says, and
/// which costs those alone that need it.
pub(crate) fn of_opener<T>(read: Result<T, MediumError>) -> Result<Option<T>, MediumError> {
    match read {
        Err(error) if !planted(Bug::UnreadableNotRead) => about_control(error).map(|_| None),
        read => read.map(Some),
    }
}

/// What was read of the journal of pools. One that cannot be read is damaged.
pub(crate) fn readable<T>(read: Result<T, MediumError>) -> Result<T, StoreError> {
    let file = JournalOf::Pools.file();
    read.or_else(|error| Err(StoreError::JournalDamaged { file, detail: about_control(error)? }))
}

impl Journals {
    /// What one journal and the other, and the catalog, know of each other.
    pub(crate) fn tie(&self, of: JournalOf) -> &Tie {
        &self.ties[of as usize]
    }

    /// The same of the catalog.
    pub(crate) fn catalog(&self) -> &Tie {
        &self.ties[TIED - 1]
    }

    /// What there is to know before the catalog is read. Names count in a store that was not
    /// closed, or of which a journal is not settled. Changes no file.
    pub(crate) fn of(
        medium: &OwnedMedium,
        found: &superblock::FoundSuperblock,
        (copied, writes): (bool, bool),
    ) -> Result<Self, MediumError> {
        let next_lost = found.lost && !planted(Bug::LostCopyForgotten);
        let (mut journals, block) = (Self { next_lost, ..Self::default() }, &found.newest);
        let unsettled = |of: JournalOf| {
            block.journals[of as usize] != JournalMark::NONE && !says(block, of, JOURNAL_SETTLED)
        };
        for of in JournalOf::ALL {
            // A header is durable before a superblock names it.
            journals.tie(of).reached(block.journals[of as usize].trimmed);
        }
        if !copied && (!found.clean || JournalOf::ALL.into_iter().any(unsettled)) {
            journals.read(medium, block, writes)?;
        }
        Ok(journals)
    }

    /// Reads how far each journal got in the session that crashed, and what it names of the other
    /// and of the catalog.
    pub(crate) fn read(
        &mut self,
        medium: &OwnedMedium,
        block: &Superblock,
        writes: bool,
    ) -> Result<(), MediumError> {
        self.read = true;
        for of in JournalOf::ALL {
            if !medium.exists(of.file())? {
                continue; // it has no record that another one could lack
            }
            let scanned = FileHandle::open(medium, of.file())
                .and_then(|file| Ok((scan(&file, block.store, false)?, file)));
            // What is wrong with it is said by its opener.
            let Some((Ok(scan), file)) = of_opener(scanned)? else { continue };
            let found = scan.found();
            if found.session >= block.tied_from {
                self.tie(of).names(found.names);
            }
            if writes && scan.damage.is_none() {
                // Its last record may be in the page cache alone, and this session's records name
                // it.
                file.sync()?;
                self.tie(of).reached(found.last);
            }
        }
        Ok(())
    }

    /// The batch that the catalog has, if it is not older than this superblock and the journals.
    pub(crate) fn batch_at_least(&self, block: &Superblock) -> u64 {
        let (named, _) = self.catalog().named();
        if planted(Bug::CatalogTieIgnored) {
            block.catalog_batch
        } else {
            named.max(block.catalog_batch)
        }
    }

    /// The last whole batch of the catalog names these records of the journals.
    pub(crate) fn catalog_names(&self, (batch, records): (u64, [u64; 2]), block: &Superblock) {
        if self.read && batch > block.tied_batch {
            self.catalog().names(records);
        }
    }

    /// Why a journal that ends with this record is not the one that the others name.
    pub(crate) fn lacks(&self, of: JournalOf, last: u64) -> Option<String> {
        let (named, by) = self.tie(of).named();
        let other = JournalOf::ALL.get(by).map_or("the catalog", |by| by.file());
        (last < named && !planted(Bug::TieIgnored)).then(|| {
            format!(
                "an older copy was put back: it ends with record {last}, and {other} says that \
                 record {named} was durable"
            )
        })
    }
}

/// Why a superblock of this generation is older than a journal. `next_lost`: there may have been a
/// next one.
pub(crate) fn put_back(generation: u64, next_lost: bool, found: &FoundJournal) -> Option<String> {
    // As long as nothing was done in its session the superblock may not name it yet.
    let at_least = found.session.saturating_sub(u64::from(!found.used));
    let older =
        generation.saturating_add(u64::from(next_lost)) < at_least && !planted(Bug::SessionIgnored);
    older.then(|| {
        format!(
            "the superblock was put back: it is of generation {generation}, and the journal is of \
             a session that generation {} names",
            found.session
        )
    })
}

/// Why a journal with this header is not the one that the superblock names.
pub(crate) fn why_not(named: &JournalMark, found: &FoundJournal, settled: bool) -> Option<String> {
    let FoundJournal { mark, alone, used, .. } = found;
    // The header that is named may be the one that is damaged: its predecessor is good enough to
    // recover by.
    let lost = *alone && mark.generation + 1 == named.generation;
    let reaches = found.last >= named.trimmed || planted(Bug::LostHeaderAccepted);
    if *named == JournalMark::NONE || (lost && reaches) || planted(Bug::OlderJournalAccepted) {
        return None;
    }
    if lost {
        return Some(format!(
            "its newest header is damaged, and what is left ends with record {}, and there was \
             record {}",
            found.last, named.trimmed
        ));
    }
    let older = mark.epoch < named.epoch
        || (mark.epoch == named.epoch
            && (mark.generation < named.generation || mark.trimmed < named.trimmed));
    if older {
        return Some(format!(
            "it was put back: it is of epoch {}, trimmed up to record {}, and there was epoch {}, \
             trimmed up to record {}",
            mark.epoch, mark.trimmed, named.epoch, named.trimmed
        ));
    }
    // A session died between the two steps of opening it.
    let begun = mark.epoch > named.epoch && !used;
    (settled && mark != named && !begun).then(|| {
        format!(
            "it is not the one that the store was closed with: it is of epoch {}, generation {}, \
             and the superblock names epoch {}, generation {}; one of the two files was put back",
            mark.epoch, mark.generation, named.epoch, named.generation
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of small headers: what is older is refused, of a settled journal everything else
    /// too that has records, and nothing else.
    #[test]
    fn older_is_refused_and_of_a_settled_journal_everything_else() {
        let marks = || {
            (1..4u64).flat_map(|epoch| {
                (1..4u64).flat_map(move |generation| {
                    (0..3u64).map(move |trimmed| JournalMark {
                        epoch,
                        generation,
                        trimmed,
                        chain: trimmed,
                    })
                })
            })
        };
        for (named, mark) in marks().flat_map(|named| marks().map(move |mark| (named, mark))) {
            for used in [false, true] {
                let why_not = |named: &JournalMark, settled: bool| {
                    let (session, last, names) = (0, mark.trimmed, [0; 2]);
                    let of = |alone| FoundJournal { mark, alone, session, used, last, names };
                    let (alone, told) =
                        (why_not(named, &of(true), settled), why_not(named, &of(false), settled));
                    // Beside a damaged header its predecessor passes, as far as its records go.
                    let before = mark.generation + 1 == named.generation;
                    assert!(alone == told || before);
                    assert!(!before || alone.is_none() == (mark.trimmed >= named.trimmed));
                    told
                };
                let newer = mark.epoch > named.epoch
                    || (mark.epoch == named.epoch
                        && mark.generation >= named.generation
                        && mark.trimmed >= named.trimmed);
                assert_eq!(why_not(&named, false).is_none(), newer, "{named:?} {mark:?}");
                let settled = named == mark || mark.epoch > named.epoch && !used;
                assert_eq!(why_not(&named, true).is_none(), settled, "{named:?} {mark:?}");
                assert_eq!(why_not(&JournalMark::NONE, true), None);
            }
        }
    }
}
