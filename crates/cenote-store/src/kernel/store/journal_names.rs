//! Names the journals' headers in the superblock, and checks the journals by these names
//! ([`crate::kernel::catalog::journals`]).

use crate::kernel::catalog::journals::{JournalOf, of_opener, put_back, say, says, why_not};
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::{Damage, OpenReport};
use crate::kernel::store::{Control, Inner, Store};
use crate::kernel::superblock::about::about_control;
use cenote_journal::{FoundJournal, JournalScan, Tie, look, scan};
use cenote_layout::superblock::{JOURNAL_REFUSED, JOURNAL_SETTLED, JournalMark, Superblock};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};

impl Inner {
    /// Reports the journals that were put back, or are gone though something needs them. `clean`:
    /// the store was closed. Changes no file.
    pub(crate) fn expect_journals(
        &self,
        control: &mut Control,
        clean: bool,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        let whole = !report.damage.iter().any(|damage| matches!(damage, Damage::Superblock { .. }));
        for of in JournalOf::ALL.into_iter().filter(|_| report.copied || !whole) {
            say(&mut control.superblock, of, JOURNAL_SETTLED, false);
        }
        if report.copied {
            control.superblock.tied_from = control.superblock.generation + 1;
            control.superblock.tied_batch = control.catalog.batch();
        } else if !clean && !control.journals.read {
            // The superblock was put back, and the caller accepts that.
            control.journals.read(&self.medium, &control.superblock, self.writable)?;
        }
        JournalOf::ALL
            .into_iter()
            .try_for_each(|of| self.look_at_journal(control, of, whole, report))
    }

    /// Reports a journal that was put back, or is gone though something needs it.
    fn look_at_journal(
        &self,
        control: &mut Control,
        of: JournalOf,
        whole: bool,
        report: &mut OpenReport,
    ) -> Result<(), MediumError> {
        let named = control.superblock.journals[of as usize];
        if named == JournalMark::NONE || !self.medium.exists(of.file())? {
            return Ok(()); // the opener that needs it reports that it is missing
        }
        let looked = FileHandle::open(&self.medium, of.file()).and_then(|file| {
            let mut found = look(&file, self.uuid)?;
            let differs = |found: &FoundJournal| {
                found.mark != named || control.journals.tie(of).named().0 > found.last
            };
            if found.as_ref().is_ok_and(differs)
                && let Ok(scan) = scan(&file, self.uuid, false)?
            {
                found = Ok(scan.found());
            }
            Ok(found)
        });
        // One without a whole header is reported by its opener.
        let Some(Ok(found)) = of_opener(looked)? else { return Ok(()) };
        let Some(detail) = self.problem(control, of, &found) else { return Ok(()) };
        if whole && put_back(control.superblock.generation, false, &found).is_some() {
            say(&mut control.superblock, of, JOURNAL_REFUSED, !planted(Bug::RefusalForgotten));
        }
        let state = &control.catalog.state;
        let pools = match of {
            JournalOf::Objects => Vec::new(),
            JournalOf::Pools => {
                state.pools.keys().copied().filter(|pool| state.is_shadowed(*pool)).collect()
            }
        };
        report.damage.push(Damage::Journal { detail: format!("{}: {detail}", of.file()), pools });
        Ok(())
    }

    /// Why a journal is not the one that belongs to this superblock and to the other journal.
    pub(crate) fn problem(
        &self,
        control: &Control,
        of: JournalOf,
        found: &FoundJournal,
    ) -> Option<String> {
        let block = &control.superblock;
        let opened = control.journals.opened[of as usize];
        let settled = !opened && says(block, of, JOURNAL_SETTLED);
        let refused = || {
            (!opened && says(block, of, JOURNAL_REFUSED))
                .then(|| "the superblock was put back beside it, before an earlier session".into())
        };
        why_not(&block.journals[of as usize], found, settled)
            .or_else(|| put_back(block.generation, control.journals.next_lost, found))
            .or_else(refused)
            .or_else(|| control.journals.lacks(of, found.last))
    }

    /// Refuses a journal that is older than the superblock says.
    pub(crate) fn check_journal(
        &self,
        control: &Control,
        of: JournalOf,
        found: &FoundJournal,
    ) -> Result<(), StoreError> {
        match self.problem(control, of, found) {
            Some(detail) => Err(StoreError::JournalRolledBack { file: of.file(), detail }),
            None => Ok(()),
        }
    }

    /// Reads what journals name of each other, if the open has not: before one of them is made
    /// anew, which goes on behind all of that.
    pub(crate) fn learn_names(&self, control: &mut Control) -> Result<(), MediumError> {
        match control.journals.read {
            true => Ok(()),
            false => control.journals.read(&self.medium, &control.superblock, self.writable),
        }
    }

    /// Before a session changes a journal's header: from here on it is newer than the superblock
    /// says.
    pub(crate) fn journal_opens(&self, control: &mut Control, of: JournalOf) {
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
        say(&mut next, of, JOURNAL_SETTLED | JOURNAL_REFUSED, false);
        self.store_superblock(&mut next)?;
        control.superblock = next;
        control.journals.named[of as usize] = true;
        Ok(())
    }

    /// Puts the headers of the journals that this session has named into the superblock's copy that
    /// is about to say "clean". Nothing writes to them any more.
    pub(crate) fn name_closed_journals(&self, control: &mut Control) -> Result<(), StoreError> {
        let mut block = control.superblock;
        JournalOf::ALL.into_iter().try_for_each(|of| self.settle(control, &mut block, of))?;
        control.superblock = block;
        Ok(())
    }

    /// Makes a copy of the superblock that says "clean" name a journal, if this session has opened
    /// it. Nothing writes to it.
    fn settle(
        &self,
        control: &Control,
        block: &mut Superblock,
        of: JournalOf,
    ) -> Result<(), StoreError> {
        if !control.journals.named[of as usize] {
            let stranger =
                planted(Bug::SettledByStranger) && block.journals[of as usize] != JournalMark::NONE;
            say(block, of, JOURNAL_SETTLED, stranger || says(block, of, JOURNAL_SETTLED));
            return Ok(());
        }
        let file = FileHandle::open(&self.medium, of.file())?;
        let found = look(&file, self.uuid)?;
        let found =
            found.map_err(|detail| StoreError::JournalDamaged { file: of.file(), detail })?;
        block.journals[of as usize] = found.mark;
        // What is psynced and not trimmed: its user has given it up without a close.
        let all = found.mark.trimmed >= control.journals.tie(of).floor();
        say(block, of, JOURNAL_SETTLED, all);
        Ok(())
    }

    /// Makes the superblock of a backup name the copies of the journals, which are quiet. One that
    /// this session has not opened is copied with its mark, if it is the one of this store.
    pub(crate) fn name_copied_journals(
        &self,
        control: &Control,
        block: &mut Superblock,
    ) -> Result<(), StoreError> {
        for of in JournalOf::ALL {
            if !self.medium.exists(of.file())? {
                continue;
            }
            if !control.journals.named[of as usize] && !planted(Bug::BackupUnchecked) {
                let file = FileHandle::open(&self.medium, of.file())?;
                match scan(&file, self.uuid, false)? {
                    Ok(JournalScan { damage: Some(detail), .. }) | Err(detail) => {
                        return Err(StoreError::JournalDamaged { file: of.file(), detail });
                    }
                    Ok(scan) => self.check_journal(control, of, &scan.found())?,
                }
            }
            self.settle(control, block, of)?;
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
    pub fn check_objects_journal(&self, found: &FoundJournal) -> Result<(), StoreError> {
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

    /// The epoch of a journal of objects that is made now: later than that of every one before.
    ///
    /// # Errors
    /// The medium: the file that has its name cannot be read.
    pub fn next_objects_epoch(&self) -> Result<u64, StoreError> {
        self.inner().next_epoch(&self.inner().control(), JournalOf::Objects)
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

impl Inner {
    /// The epoch of a journal that is made now: later than that of every one before, and than that
    /// of the file that has its name, which the superblock may not know.
    pub(crate) fn next_epoch(&self, control: &Control, of: JournalOf) -> Result<u64, StoreError> {
        let named = control.superblock.journals[of as usize].epoch;
        let found = match self.medium.exists(of.file())? {
            true => {
                let file = FileHandle::open(&self.medium, of.file());
                let looked = file.and_then(|file| look(&file, self.uuid));
                looked.or_else(|error| about_control(error).map(Err))?.ok()
            }
            false => None,
        };
        Ok(found.map_or(0, |found| found.mark.epoch).max(named).saturating_add(1))
    }
}
