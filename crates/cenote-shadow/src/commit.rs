//! A psync, from *held* to *applied*.

use crate::part::{PsyncState, ShadowPart};
use cenote_atrest::Change;
use cenote_atrest::view::SealedError;
use cenote_journal::{ApplyTarget, Changes, Delivered, Draft, Journal, Ticket};
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, Step, planted, reach};
use core::fmt;

/// A part on its way.
pub(crate) struct TakenPart<P> {
    pub(crate) part: P,
    /// What becomes of its protection.
    pub(crate) change: Option<Change>,
    /// Its number in the record.
    pub(crate) number: Option<u32>,
}

/// A psync in progress. If it is dropped before it is committed, nothing has happened.
pub struct Psync<P: ShadowPart> {
    pub(crate) taken: Vec<TakenPart<P>>,
    /// In the order of their numbers.
    targets: Vec<ApplyTarget>,
    /// Once it is committed: what it did.
    pub(crate) done: Option<Delivered>,
}

impl<P: ShadowPart> fmt::Debug for Psync<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psync({} parts, {:?})", self.taken.len(), self.done)
    }
}

impl<P: ShadowPart> Default for Psync<P> {
    fn default() -> Self {
        Self { taken: Vec::new(), targets: Vec::new(), done: None }
    }
}

impl<P: ShadowPart> Drop for Psync<P> {
    fn drop(&mut self) {
        if self.done.is_none() {
            self.taken.iter_mut().for_each(|taken| taken.part.note_again());
        }
    }
}

impl<P: ShadowPart> Psync<P> {
    /// *Held*: takes the written pages of parts.
    ///
    /// # Errors
    /// As [`ShadowPart::hold`]. The psync may be dropped then, and nothing has happened.
    pub fn hold(
        &mut self,
        host: &P::Host,
        parts: impl IntoIterator<Item = P>,
    ) -> Result<(), P::Error> {
        for part in parts {
            // From here on its pages are noted again if the psync fails.
            self.add(part);
            let Some(taken) = self.taken.last_mut() else { continue };
            taken.part.hold(host)?;
            if !P::NAMES_ALL && taken.part.pages().is_empty() {
                self.taken.pop();
            }
        }
        Ok(())
    }

    /// Adds a part without pages; where it is.
    pub fn add(&mut self, part: P) -> usize {
        self.taken.push(TakenPart { part, change: None, number: None });
        self.taken.len() - 1
    }

    /// What it did, once it is committed.
    #[must_use]
    pub fn done(&self) -> Option<Delivered> {
        self.done
    }

    /// Whether it has no part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Its parts, and what becomes of their protections.
    pub fn parts(&self) -> impl Iterator<Item = (&P, Option<&Change>)> {
        self.taken.iter().map(|taken| (&taken.part, taken.change.as_ref()))
    }

    /// What becomes of a part's protection, to be changed, and the part. While a record is
    /// drafted: the part has a number from then on.
    ///
    /// # Errors
    /// As [`ShadowPart::target`].
    pub fn changed(
        &mut self,
        host: &P::Host,
        at: usize,
    ) -> Result<(&P, &mut Option<Change>), P::Error> {
        let target = self.taken[at].part.target(host)?;
        self.name(at, target);
        let TakenPart { part, change, .. } = &mut self.taken[at];
        Ok((part, change))
    }

    /// *Drafted* to *applied*: makes what was taken durable. `complete` is called when all parts
    /// are drafted, and before the headers of protections are. What it did: nothing, with number 0,
    /// if nothing differs.
    ///
    /// # Errors
    /// Before *durable*: nothing has happened. After it: the record counts, and the host was told.
    pub fn commit(
        &mut self,
        host: &P::Host,
        journal: &Journal,
        complete: impl FnOnce(&mut Self) -> Result<(), P::Error>,
    ) -> Result<Delivered, P::Error> {
        let mut changes = journal.changes();
        let drafted = self.draft(host, journal, &mut changes, complete);
        let appended = drafted.and_then(|any| match any {
            true => self.append(host, journal, &changes).map(Some),
            false => Ok(None),
        });
        let (done, ticket) = match appended {
            Ok(Some(appended)) => appended,
            other => {
                journal.recycle(changes);
                other?;
                // The primaries hold what was taken.
                self.done = Some(Delivered::default());
                self.finish(host, None)?;
                return Ok(Delivered::default());
            }
        };
        // Before the primaries are written: from now on the new trees count, and nodes that change
        // are not read from there.
        self.commit_changes(host)?;
        let targets = core::mem::take(&mut self.targets);
        if let Err(error) = journal.apply_later(ticket, changes, targets)
            && let Some(first) = self.taken.first()
        {
            return Err(first.part.not_copied(error));
        }
        self.finish(host, Some(journal))?;
        Ok(done)
    }

    /// *Drafted*: whether anything differs.
    fn draft(
        &mut self,
        host: &P::Host,
        journal: &Journal,
        changes: &mut Changes,
        complete: impl FnOnce(&mut Self) -> Result<(), P::Error>,
    ) -> Result<bool, P::Error> {
        for at in 0..self.taken.len() {
            let (before, number) = (changes.runs.len(), self.targets.len() as u32);
            let taken = &mut self.taken[at];
            let target = taken.part.target(host)?;
            let primary = journal.primary(target.id, &target.file, target.data_offset);
            taken.change = taken.part.draft(number, &primary, changes)?;
            drop(primary);
            if P::NAMES_ALL || changes.runs.len() > before {
                self.name(at, target);
            }
        }
        complete(self)?;
        self.taken.iter().try_for_each(|taken| taken.seal_header(changes))?;
        Ok(!changes.runs.is_empty())
    }

    fn name(&mut self, at: usize, target: ApplyTarget) {
        if self.taken[at].number.is_none() {
            self.taken[at].number = Some(self.targets.len() as u32);
            self.targets.push(target);
        }
    }

    /// *Appended* and *durable*.
    fn append(
        &mut self,
        host: &P::Host,
        journal: &Journal,
        changes: &Changes,
    ) -> Result<(Delivered, Ticket), P::Error> {
        for taken in &mut self.taken {
            if let Some(number) = taken.number {
                taken.part.drafted(number, changes);
            }
        }
        let ids: Vec<Uuid> = self.targets.iter().map(|target| target.id).collect();
        let data_bytes = changes.data.len() as u64;
        let Some(draft) = Draft::new(&ids, changes) else {
            return Err(P::too_large(host, data_bytes));
        };
        self.tell(host, PsyncState::Drafted);
        let ticket = journal.append(&draft).inspect_err(|_| {
            self.tell(host, PsyncState::Held);
            if planted(Bug::PsyncForgetsPages) {
                self.taken.iter_mut().for_each(|taken| taken.part.forget());
            }
        })?;
        let (seq, pages, journal_bytes) = (ticket.seq, changes.pages, draft.total_len());
        if planted(Bug::PsyncAppliedEarly) {
            for (run, data) in changes.iter() {
                let target = &self.targets[run.object as usize];
                target.file.write_at(target.data_offset + run.offset(), data)?;
            }
        }
        reach(Step::PsyncWaits);
        journal.make_durable(&ticket)?;
        // Committed: the pages are not noted again, also if applying the record fails.
        let done = Delivered { seq, pages, data_bytes, journal_bytes };
        self.done = Some(done);
        self.tell(host, PsyncState::Durable);
        Ok((done, ticket))
    }

    fn tell(&self, host: &P::Host, state: PsyncState) {
        self.taken.iter().for_each(|taken| taken.part.tell(host, state));
    }

    /// From now on pages are checked against what was committed.
    pub(crate) fn commit_changes(&mut self, host: &P::Host) -> Result<(), P::Error> {
        for taken in &mut self.taken {
            let (Some(view), Some(change)) = (taken.part.view(), taken.change.take()) else {
                continue;
            };
            if planted(Bug::SealedNotCommitted) {
                continue;
            }
            view.protection().commit(change).map_err(|error| {
                // One psync of a part runs at a time, and nothing else changes its protection.
                let what = view.what();
                P::poison(host, &format!("the protection of {what} went out of step: {error}"));
                taken.part.sealed(SealedError::at_rest(what, error))
            })?;
        }
        Ok(())
    }

    /// Nodes that trees forget now are read from the primaries later, with the record laid over.
    pub(crate) fn finish(
        &mut self,
        host: &P::Host,
        journal: Option<&Journal>,
    ) -> Result<(), P::Error> {
        for taken in &mut self.taken {
            taken.part.finish(host, journal)?;
            taken.part.view().into_iter().for_each(cenote_atrest::view::settle);
        }
        Ok(())
    }
}

impl<P: ShadowPart> TakenPart<P> {
    /// Adds the header of its protection to the record.
    pub(crate) fn seal_header(&self, changes: &mut Changes) -> Result<(), P::Error> {
        let (Some(view), Some(change), Some(number)) =
            (self.part.view(), &self.change, self.number)
        else {
            return Ok(());
        };
        cenote_atrest::view::seal_header(view, number, change, changes)
            .map_err(|error| self.part.sealed(error))
    }
}
