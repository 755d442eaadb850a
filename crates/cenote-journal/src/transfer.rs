//! Transfers: lines of primaries, in a memory file, that one process sends to be psynced by
//! another, which keeps the journal.
//!
//! ```text
//! 0         Run x count     which lines: a Run counts primaries by their place in the request
//! count*16  their contents, one after the other
//! ```
//!
//! The sender ([`Transfer`]) writes pages that were stored into, whole, and lines of what is
//! sealed. The keeper ([`Receiver`]) reads the file once, and trusts nothing in it. It compares and
//! journals its own copy, so the sender may change the file meanwhile. The file is in memory, so
//! reading it never waits. The keeper compares pages with the primary as last committed, which the
//! sender does not know, and takes lines as they are, where that is allowed. A transfer that does
//! not fit ([`TransferError`]) changes nothing.

use crate::apply_queue::{ApplyTarget, Primary};
use crate::changes::{Changes, Pages};
use crate::journal::Journal;
use crate::record::Draft;
use crate::{JournalError, Stopped};
use cenote_layout::id::Uuid;
use cenote_layout::object::LineRun;
use cenote_layout::{LINE_SIZE, PAGE_SIZE};
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::bytes::write_by_kernel;
use cenote_sys::filesystem;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use zerocopy::IntoBytes;

/// Bytes that are read and compared at once.
const STEP: usize = 256 << 10;
/// Lines of a page.
const LINES: u64 = PAGE_SIZE / LINE_SIZE;

/// What is to be psynced, on its way to the process that keeps the journal.
#[derive(Debug)]
pub struct Transfer {
    file: File,
    runs: Vec<LineRun>,
    /// Bytes of contents so far.
    len: u64,
    /// Bytes that are kept for the list, before the contents.
    room: u64,
}

impl Transfer {
    /// An empty one, for at most so many runs.
    ///
    /// # Errors
    /// The system has no memory, or no descriptor.
    pub fn new(runs_max: usize) -> io::Result<Self> {
        let file = cenote_sys::dual_mapping::nameless_file("cenote-psync")?;
        Ok(Self { file, runs: Vec::new(), len: 0, room: (runs_max * size_of::<LineRun>()) as u64 })
    }

    /// Adds pages of primary number `object`, whose shadow begins at `shadow`.
    ///
    /// # Errors
    /// No memory.
    ///
    /// The kernel copies what is there: a store meanwhile may be in the copy, in part.
    pub fn add_pages(&mut self, object: u32, shadow: usize, pages: &[Pages]) -> io::Result<()> {
        for range in pages {
            let len = (range.end - range.start) * PAGE_SIZE;
            let addr = shadow + (range.start * PAGE_SIZE) as usize;
            self.add_by(object, range.start * LINES, len, |file, at| {
                write_by_kernel(file.as_fd(), at, addr, len as usize)
            })?;
        }
        Ok(())
    }

    /// Adds what was worked out already.
    ///
    /// # Errors
    /// No memory.
    pub fn add_changes(&mut self, changes: &Changes) -> io::Result<()> {
        changes.iter().try_for_each(|(run, data)| self.add(run.object, run.first_line, data))
    }

    fn add(&mut self, object: u32, first_line: u64, bytes: &[u8]) -> io::Result<()> {
        self.add_by(object, first_line, bytes.len() as u64, |file, at| file.write_all_at(bytes, at))
    }

    /// Adds a run of `len` bytes, which `write` writes into the file at the place that it is told.
    fn add_by(
        &mut self,
        object: u32,
        first_line: u64,
        len: u64,
        write: impl FnOnce(&File, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let lines = u32::try_from(len / LINE_SIZE).unwrap_or(u32::MAX);
        let table = (self.runs.len() + 1) * size_of::<LineRun>();
        if table as u64 > self.room || u64::from(lines) * LINE_SIZE != len {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "too many pages for one psync",
            ));
        }
        write(&self.file, self.room + self.len)?;
        self.runs.push(LineRun { object, lines, first_line });
        self.len += len;
        Ok(())
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Completes it: the file, and how many runs its list has room for. Behind those that are used
    /// it is zeros: runs of no lines.
    ///
    /// # Errors
    /// No memory.
    pub fn finish(self) -> io::Result<(File, u32)> {
        self.file.write_all_at(self.runs.as_bytes(), 0)?;
        Ok((
            self.file,
            u32::try_from(self.room as usize / size_of::<LineRun>()).unwrap_or(u32::MAX),
        ))
    }
}

/// Why a transfer is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// It says what cannot be.
    #[error("the psync's list of lines is not valid: {0}")]
    Nonsense(&'static str),
    /// It has less than it says.
    #[error("the psync's lines cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is larger than one psync may be.
    #[error("a psync has more than {limit} bytes: psync more often, or fewer objects at once")]
    TooLarge {
        /// Most bytes.
        limit: u64,
    },
    /// A primary cannot be read.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl From<Stopped> for TransferError {
    fn from(stopped: Stopped) -> Self {
        Self::Journal(stopped.into())
    }
}

/// What the psync of a transfer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Its number in the journal; 0 if nothing had changed.
    pub seq: u64,
    /// Pages in which something had changed.
    pub pages: u64,
    /// Bytes of lines that were journalled.
    pub data_bytes: u64,
    /// Bytes that the record took.
    pub journal_bytes: u64,
}

/// Checks which primaries a psync names, before anything is opened for it: at most so many, and
/// none twice.
///
/// # Errors
/// [`TransferError::Nonsense`].
pub fn distinct(ids: &[Uuid], most: usize) -> Result<(), TransferError> {
    if ids.len() > most {
        return Err(TransferError::Nonsense("more primaries than one psync has"));
    }
    let mut seen = BTreeSet::new();
    match ids.iter().all(|id| seen.insert(*id)) {
        true => Ok(()),
        false => Err(TransferError::Nonsense("a primary that is there twice")),
    }
}

/// What a keeper accepts for one primary.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Lines before this byte must not change: a header.
    pub from: u64,
    /// Bytes of its data.
    pub len: u64,
    /// Whether lines are taken as they are; else whole pages only, which are compared.
    pub lines: bool,
}

/// Reads transfers.
#[derive(Debug)]
pub struct Receiver {
    runs: Vec<LineRun>,
    data_at: u64,
}

impl Receiver {
    /// Reads the list of `count` runs, and checks it against what each primary may be changed in;
    /// none twice.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn read(file: &File, count: u32, limits: &[Limits]) -> Result<Self, TransferError> {
        const RUNS_MAX: u32 = 1 << 20;
        if count > RUNS_MAX {
            return Err(TransferError::TooLarge { limit: u64::from(RUNS_MAX) });
        }
        // Not from a pipe, nor from a file system whose server the sender is.
        match filesystem::kind(file.as_fd()) {
            Ok(kind) if kind.is_memory() => {}
            Ok(_) => return Err(TransferError::Nonsense("its file is none in memory")),
            Err(error) => return Err(TransferError::Unreadable(error)),
        }
        let mut runs = vec![LineRun { object: 0, lines: 0, first_line: 0 }; count as usize];
        let data_at = size_of_val(&runs[..]) as u64;
        file.read_exact_at(runs.as_mut_bytes(), 0).map_err(TransferError::Unreadable)?;
        runs.truncate(runs.iter().rposition(|run| run.lines != 0).map_or(0, |last| last + 1));
        let mut places = Vec::with_capacity(runs.len());
        for run in &runs {
            let limits = limits
                .get(run.object as usize)
                .ok_or(TransferError::Nonsense("no such primary"))?;
            let end = run
                .first_line
                .checked_mul(LINE_SIZE)
                .and_then(|from| from.checked_add(run.len_bytes()));
            let inside = end.is_some_and(|end| end <= limits.len) && run.offset() >= limits.from;
            if run.lines == 0 || !inside {
                return Err(TransferError::Nonsense("lines that the primary does not have"));
            }
            let whole =
                run.first_line.is_multiple_of(LINES) && u64::from(run.lines).is_multiple_of(LINES);
            if !limits.lines && !whole {
                return Err(TransferError::Nonsense("parts of pages"));
            }
            places.push((run.object, run.first_line, run.first_line + u64::from(run.lines)));
        }
        places.sort_unstable();
        if places.windows(2).any(|two| two[0].0 == two[1].0 && two[1].1 < two[0].2) {
            return Err(TransferError::Nonsense("lines that are there twice"));
        }
        Ok(Self { runs, data_at })
    }

    /// Bytes of all its lines.
    fn len_bytes(&self) -> u64 {
        self.runs.iter().map(LineRun::len_bytes).sum()
    }

    /// Adds what differs to `changes`, which may come to at most `most` bytes.
    ///
    /// # Errors
    /// [`TransferError`]. What was added is incomplete.
    pub fn add_to(
        &self,
        file: &File,
        changes: &mut Changes,
        primaries: &[(Limits, Primary<'_>)],
        most: u64,
    ) -> Result<(), TransferError> {
        let mut buffer = vec![0; STEP];
        let mut at = self.data_at;
        for run in &self.runs {
            let Some((limits, primary)) = primaries.get(run.object as usize) else { continue };
            let (mut line, end) = (run.first_line, run.first_line + u64::from(run.lines));
            while line < end {
                let len = ((end - line) * LINE_SIZE).min(STEP as u64);
                let bytes = &mut buffer[..len as usize];
                file.read_exact_at(bytes, at).map_err(TransferError::Unreadable)?;
                if limits.lines {
                    changes.add_lines(run.object, line, bytes);
                } else {
                    changes.add_copy(run.object, line / LINES, bytes, primary)?;
                }
                if changes.data.len() as u64 > most {
                    return Err(TransferError::TooLarge { limit: most });
                }
                (line, at) = (line + len / LINE_SIZE, at + len);
            }
        }
        Ok(())
    }
}

impl Journal {
    /// Psyncs what a transfer holds of these primaries, which no other thread psyncs meanwhile: one
    /// record, **whose sync commits**, and which is applied later. A transfer that was psynced
    /// before, and whose answer was lost, changes nothing.
    ///
    /// # Errors
    /// [`TransferError`]: nothing has changed, or, as with every psync, a sync failed and the guard
    /// was told.
    pub fn psync_transfer(
        &self,
        targets: Vec<(ApplyTarget, Limits)>,
        file: &File,
        count: u32,
        most: u64,
    ) -> Result<Delivered, TransferError> {
        let ids: Vec<_> = targets.iter().map(|(target, _)| target.id).collect();
        distinct(&ids, ids.len())?;
        let limits: Vec<_> = targets.iter().map(|(_, limits)| *limits).collect();
        let receiver = Receiver::read(file, count, &limits)?;
        let _room = self.transfers.enter(receiver.len_bytes());
        let mut changes = self.changes();
        let mut primaries = Vec::with_capacity(targets.len());
        for (target, limits) in &targets {
            primaries.push((*limits, self.primary(target.id, &target.file, target.data_offset)));
        }
        let added = receiver.add_to(file, &mut changes, &primaries, most);
        drop(primaries);
        if added.is_err() || changes.runs.is_empty() {
            self.recycle(changes);
            return added.map(|()| Delivered::default());
        }
        let Some(draft) = Draft::new(&ids, &changes) else {
            return Err(TransferError::TooLarge { limit: most });
        };
        let ticket = self.append(&draft)?;
        let done = Delivered {
            seq: ticket.seq,
            pages: changes.pages,
            data_bytes: changes.data.len() as u64,
            journal_bytes: draft.total_len(),
        };
        if !planted(Bug::TransferNotDurable)
            && let Some(error) = self.decide(&ticket)?
        {
            return Err(error.into());
        }
        self.apply_later(ticket, changes, targets.into_iter().map(|(target, _)| target).collect())?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::own;
    use cenote_medium::sim::{SimMedium, SimOptions};
    use cenote_medium::{Durability, FileHandle};

    const PAGE: usize = PAGE_SIZE as usize;

    fn limits(lines: bool) -> Limits {
        Limits { from: PAGE_SIZE, len: 8 * PAGE_SIZE, lines }
    }

    #[test]
    fn pages_come_as_the_lines_that_differ_and_lines_as_they_are() {
        let medium = own(SimMedium::new(SimOptions::new(Durability::Process)));
        medium.create("p", 8 * PAGE_SIZE).expect("a file");
        let file = FileHandle::open(&medium, "p").expect("it is there");
        let mut shadow = vec![0u8; 8 * PAGE];
        shadow[3 * PAGE + 130] = 7;
        let mut transfer = Transfer::new(4).expect("transfer");
        transfer.add_pages(0, shadow.as_ptr().addr(), &[2..4, 7..8]).expect("pages");
        let mut sealed = Changes::default();
        sealed.add_lines(1, 70, &[9; 64]);
        transfer.add_changes(&sealed).expect("lines");
        let (sent, count) = transfer.finish().expect("finish");
        assert_eq!(count, 4);
        let both = [limits(false), limits(true)];
        let receiver = Receiver::read(&sent, count, &both).expect("it makes sense");
        let primary = || Primary::settled(Uuid::NIL, &file, 0);
        let primaries = [(both[0], primary()), (both[1], primary())];
        let mut changes = Changes::default();
        receiver.add_to(&sent, &mut changes, &primaries, 1 << 20).expect("added");
        let found: Vec<_> =
            changes.runs.iter().map(|run| (run.object, run.first_line, run.lines)).collect();
        assert_eq!(found, [(0, 3 * 64 + 2, 1), (1, 70, 1)]);
        let small = receiver.add_to(&sent, &mut Changes::default(), &primaries, 64);
        assert!(matches!(small, Err(TransferError::TooLarge { limit: 64 })), "{small:?}");
        sent.set_len(5 * PAGE_SIZE / 2).expect("cut short");
        let cut = receiver.add_to(&sent, &mut Changes::default(), &primaries, 1 << 20);
        assert!(matches!(cut, Err(TransferError::Unreadable(_))), "{cut:?}");
    }

    #[test]
    fn lists_that_cannot_be_are_refused() {
        let run = |object, first_line, lines| LineRun { object, lines, first_line };
        for (runs, lines) in [
            (vec![run(1, 64, 64)], true),
            (vec![run(0, 0, 64)], true),
            (vec![run(0, 8 * 64, 1)], true),
            (vec![run(0, u64::MAX / 64, 64)], true),
            (vec![run(0, u64::MAX, u32::MAX)], true),
            (vec![run(0, 64, u32::MAX)], true),
            (vec![run(0, 65, 64)], false),
            (vec![run(0, 64, 65)], false),
            (vec![run(0, 64, 0), run(0, 64, 64)], true),
            (vec![run(0, 128, 64), run(0, 64, 65)], true),
            (vec![run(0, 64, 64), run(0, 64, 64)], false),
        ] {
            let file = cenote_sys::dual_mapping::nameless_file("test").expect("file");
            file.write_all_at(runs.as_bytes(), 0).expect("write");
            let read = Receiver::read(&file, runs.len() as u32, &[limits(lines)]);
            assert!(matches!(read, Err(TransferError::Nonsense(_))), "{runs:?}: {read:?}");
        }
        let file = cenote_sys::dual_mapping::nameless_file("test").expect("file");
        assert!(matches!(Receiver::read(&file, 1, &[]), Err(TransferError::Unreadable(_))));
        assert!(matches!(
            Receiver::read(&file, u32::MAX, &[]),
            Err(TransferError::TooLarge { .. })
        ));
        assert!(Receiver::read(&file, 0, &[]).is_ok());
    }

    #[test]
    fn primaries_that_are_there_twice_or_too_many_are_refused_before_anything_is_opened() {
        let ids: Vec<Uuid> = (0..5).map(|number| Uuid([number; 16])).collect();
        assert!(distinct(&ids, 5).is_ok() && distinct(&[], 0).is_ok());
        let twice = [&ids[..], &ids[2..3]].concat();
        for (ids, most) in [(&ids[..], 4), (&twice[..], 100)] {
            assert!(matches!(distinct(ids, most), Err(TransferError::Nonsense(_))));
        }
    }

    #[test]
    fn files_that_a_process_serves_are_not_read() {
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let read = Receiver::read(&pipe, 1, &[limits(true)]);
        assert!(matches!(read, Err(TransferError::Nonsense(_))), "{read:?}");
        let proc = File::open("/proc/self/maps").expect("open");
        let read = Receiver::read(&proc, 1, &[limits(true)]);
        assert!(matches!(read, Err(TransferError::Nonsense(_))), "{read:?}");
    }
}
