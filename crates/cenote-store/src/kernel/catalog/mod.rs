//! Reads the catalog once, when a store is opened, and appends its changes.
//!
//! # A change
//!
//! | state | the files |
//! | --- | --- |
//! | 1 | both end with batch n |
//! | 2 | `catalog.0` ends in a torn batch, which readers discard |
//! | 3 | `catalog.0` is synced with batch n + 1: **this sync commits** |
//! | 4 | `catalog.1` ends in a torn batch |
//! | 5 | both end with n + 1; the journals are told the batch |
//!
//! Each batch names the records of the journals that were durable when it was written, and records
//! name batches that are durable (`ties.rs` of `cenote-journal`). If a write fails for lack of
//! space, the files are cut back, the second first, and the change has not happened. If a sync or
//! the cutting fails, the state is unknown: the caller poisons the store.
//!
//! Both files stay open from the first change on. So a change takes one write and one sync of each,
//! and the descriptor that wrote learns of an error of an earlier write-back. Code that renames a
//! file over one of them closes both first.
//!
//! # Writing a file anew (compaction, repair)
//!
//! The new contents go to `catalog.N.new`, which is synced and renamed over `catalog.N`; then the
//! directory is synced: file 0 first. **The rename commits**, for each file by itself. At any time
//! both files say the same, or file 0 begins with a snapshot of what file 1 says in more words.

mod file;
pub(crate) mod journals;
mod possible;
#[cfg(test)]
mod samples;
mod seals;
mod snapshot;
mod state;
mod waiting;

pub(crate) use file::{FILES, Merged, NEW_FILES, merge};
pub(crate) use state::CatalogState;

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::Damage;
use crate::kernel::superblock::about::about_control;
use crate::kernel::superblock::fence::Fence;
use cenote_journal::Tie;
use cenote_layout::catalog::{Record, encode_frame};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, FileId, MediumError, OwnedMedium};
use std::sync::Arc;

/// Files below this size are not worth compacting.
const COMPACT_MIN_BYTES: u64 = 64 << 10;

/// What the two files hold; `None` for one that is not there.
pub(crate) type Contents = [Option<Vec<u8>>; 2];

/// A change of the catalog failed.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// It has not happened.
    Undone(MediumError),
    /// Whether it has happened is not known: poison the store.
    Unknown(MediumError),
}

impl AppendError {
    pub(crate) fn into_cause(self) -> MediumError {
        match self {
            Self::Undone(error) | Self::Unknown(error) => error,
        }
    }
}

/// The catalog of an open store.
#[derive(Debug)]
pub(crate) struct Catalog {
    medium: OwnedMedium,
    pub(crate) state: CatalogState,
    /// Number of the last batch.
    batch: u64,
    /// What it and the journals know of each other.
    tie: Tie,
    /// Bytes of each file.
    lens: [u64; 2],
    /// Records were lost in both files: they are appended to, never written anew, so that nothing
    /// more gets lost.
    damaged: bool,
    /// Size at which compaction is tried next.
    compact_at: u64,
    /// There are no files: it says what a daemon has said.
    mirror: bool,
    /// Both files, as soon as something was appended to them, until they are written anew.
    open: Option<[(FileHandle, FileId); 2]>,
    /// What is asked before anything is written; `None` where nothing is.
    fence: Option<Arc<Fence>>,
}

/// The encoded frames of one batch, which names these records of the journals.
pub(crate) fn encode(batch: u64, journals: [u64; 2], records: &[Record]) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let place = (index as u32, index + 1 == records.len());
        encode_frame((batch, journals), place, record, &mut out);
    }
    out
}

/// Number of the only batch of a new store.
pub(crate) const INITIAL_BATCH: u64 = 1;

/// Contents of a new store's files.
pub(crate) fn initial() -> Vec<u8> {
    encode(
        INITIAL_BATCH,
        [0; 2],
        &CatalogState { next_pool: 1, ..CatalogState::default() }.snapshot(),
    )
}

/// Reads both files, of which one at least has had batch `at_least`. A file that is not there, or
/// cannot be read, is damage, not an error.
pub(crate) fn load(medium: &OwnedMedium, at_least: u64) -> Result<(Merged, Contents), MediumError> {
    let (mut bytes, mut unread) = ([None, None], [None, None]);
    for (file, name) in FILES.into_iter().enumerate() {
        match medium.read(name) {
            Ok(read) => bytes[file] = Some(read),
            Err(error) if error.is_not_found() => {}
            Err(error) if planted(Bug::UnreadableNotRead) => return Err(error),
            Err(error) => unread[file] = Some(about_control(error)?),
        }
    }
    let mut merged = merge([bytes[0].as_deref(), bytes[1].as_deref()], at_least);
    for (name, why) in FILES.into_iter().zip(unread) {
        let is_it =
            |damage: &&mut Damage| matches!(damage, Damage::Catalog { file, .. } if *file == name);
        if let (Some(why), Some(Damage::Catalog { detail, .. })) =
            (why, merged.damage.iter_mut().find(is_it))
        {
            *detail = why;
        }
    }
    Ok((merged, bytes))
}

impl Catalog {
    /// The catalog that [`load`] read. The caller repairs it before a record is appended to a
    /// journal.
    pub(crate) fn new(
        medium: OwnedMedium,
        (merged, tie): (&Merged, Tie),
        bytes: &Contents,
        fence: Option<Arc<Fence>>,
    ) -> Self {
        tie.reached(merged.last_batch);
        let mut state = CatalogState { next_pool: 1, ..CatalogState::default() };
        for record in &merged.records {
            state.apply(record);
        }
        let lens = [0, 1].map(|i| match &merged.canonical {
            Some(canonical) => canonical.len() as u64,
            None => bytes[i].as_ref().map_or(0, |b| (b.len() as u64).next_multiple_of(8)),
        });
        Self {
            medium,
            state,
            batch: merged.last_batch,
            tie,
            lens,
            damaged: merged.canonical.is_none(),
            compact_at: COMPACT_MIN_BYTES,
            mirror: false,
            open: None,
            fence,
        }
    }

    /// A catalog without files, and without records.
    pub(crate) fn mirror(medium: OwnedMedium) -> Self {
        let state = CatalogState { next_pool: 1, ..CatalogState::default() };
        Self {
            medium,
            state,
            batch: 0,
            tie: Tie::default(),
            lens: [0; 2],
            damaged: false,
            compact_at: u64::MAX,
            mirror: true,
            open: None,
            fence: None,
        }
    }

    pub(crate) fn batch(&self) -> u64 {
        self.batch
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.lens[0]
    }

    /// Whether records were lost.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// From now on the files are only appended to, never written anew.
    pub(crate) fn freeze(&mut self) {
        self.compact_at = u64::MAX;
    }

    /// Writes anew every file that is not as it should be, and removes what an interrupted rewrite
    /// left. Returns how many were written.
    pub(crate) fn repair(&mut self, merged: &Merged, bytes: &Contents) -> Result<u32, MediumError> {
        self.check_fence()?;
        for name in NEW_FILES {
            remove_if_there(&self.medium, name)?;
        }
        let Some(canonical) = &merged.canonical else {
            // Appending needs both files to be there.
            for (name, bytes) in FILES.iter().zip(bytes) {
                if bytes.is_none() && !self.medium.exists(name)? {
                    self.medium.create(name, 0)?;
                    self.medium.sync_dir("")?;
                }
            }
            return Ok(0);
        };
        self.open = None;
        let mut written = 0;
        for (file, bytes) in bytes.iter().enumerate() {
            if bytes.as_deref() != Some(canonical) {
                replace(&self.medium, file, canonical)?;
                written += 1;
            }
        }
        Ok(written)
    }

    /// Makes one change: all `records` or none.
    pub(crate) fn append(&mut self, records: &[Record]) -> Result<(), AppendError> {
        if records.is_empty() {
            return Ok(());
        }
        if self.mirror {
            records.iter().for_each(|record| self.state.apply(record));
            return Ok(());
        }
        let frames = encode(self.batch + 1, self.names(), records);
        if self.open.is_none() {
            let open = |name| {
                let handle = FileHandle::open(&self.medium, name)?;
                let id = handle.id()?;
                Ok((handle, id))
            };
            let [first, second] = FILES.map(open);
            self.open =
                Some([first.map_err(AppendError::Undone)?, second.map_err(AppendError::Undone)?]);
        }
        // After the files were opened: the files that have these names now are the ones written.
        self.check_fence().map_err(AppendError::Undone)?;
        for (file, (open, _)) in self.open.iter().flatten().enumerate() {
            if let Err(error) = open.write_at(self.lens[file], &frames) {
                return Err(self.cut_back(file, error));
            }
            if !planted(Bug::CatalogNotSynced) {
                open.sync().map_err(AppendError::Unknown)?;
            }
        }
        self.batch += 1;
        self.tie.reached(self.batch);
        self.lens = self.lens.map(|len| len + frames.len() as u64);
        for record in records {
            self.state.apply(record);
        }
        Ok(())
    }

    /// What a batch names that is written now.
    pub(crate) fn names(&self) -> [u64; 2] {
        if planted(Bug::BatchNamesNothing) { [0; 2] } else { self.tie.to_name() }
    }

    /// Fails, and poisons the store, unless the store and both files are still this session's.
    fn check_fence(&self) -> Result<(), MediumError> {
        let Some(fence) = &self.fence else { return Ok(()) };
        fence.check()?;
        self.open
            .iter()
            .flatten()
            .zip(FILES)
            .try_for_each(|((_, id), name)| fence.check_named(name, *id))
    }

    /// Undoes a batch whose write to `failed` went wrong: the later file first, so that at any time
    /// the files read as "batch made" or "batch not made".
    fn cut_back(&self, failed: usize, error: MediumError) -> AppendError {
        for file in (0..=failed).rev() {
            let cut = self
                .medium
                .truncate(FILES[file], self.lens[file])
                .and_then(|()| self.medium.sync(FILES[file]));
            if cut.is_err() {
                return AppendError::Unknown(error);
            }
        }
        AppendError::Undone(error)
    }

    /// Writes both files anew if that makes them much smaller. A failure for lack of space leaves
    /// them as they are.
    pub(crate) fn compact_if_it_pays(&mut self) -> Result<bool, AppendError> {
        if self.damaged || self.lens[0] < self.compact_at {
            return Ok(false);
        }
        let snapshot = encode(self.batch + 1, self.names(), &self.state.snapshot());
        let len = snapshot.len() as u64;
        if len * 2 > self.lens[0] {
            self.compact_at = self.lens[0] * 2;
            return Ok(false);
        }
        self.check_fence().map_err(AppendError::Undone)?;
        // Both new files first: a full disk is noticed before anything changes.
        for file in 0..2 {
            if let Err(error) = prepare(&self.medium, file, &snapshot) {
                for name in NEW_FILES {
                    let _ = remove_if_there(&self.medium, name);
                }
                self.compact_at = self.lens[0] * 2;
                return Err(AppendError::Undone(error));
            }
        }
        self.open = None;
        for file in 0..2 {
            let renamed = self
                .medium
                .rename(NEW_FILES[file], FILES[file])
                .and_then(|()| self.medium.sync_dir(""));
            renamed.map_err(AppendError::Unknown)?;
        }
        self.batch += 1;
        self.tie.reached(self.batch);
        self.lens = [len; 2];
        self.compact_at = COMPACT_MIN_BYTES.max(len * 4);
        Ok(true)
    }
}

/// Writes `contents` to the new file, synced.
fn prepare(medium: &OwnedMedium, file: usize, contents: &[u8]) -> Result<(), MediumError> {
    remove_if_there(medium, NEW_FILES[file])?;
    medium.create(NEW_FILES[file], contents.len() as u64)?;
    medium.write_at(NEW_FILES[file], 0, contents)?;
    medium.sync(NEW_FILES[file])
}

fn replace(medium: &OwnedMedium, file: usize, contents: &[u8]) -> Result<(), MediumError> {
    prepare(medium, file, contents)?;
    medium.rename(NEW_FILES[file], FILES[file])?;
    medium.sync_dir("")
}

pub(crate) fn remove_if_there(medium: &OwnedMedium, name: &str) -> Result<(), MediumError> {
    match medium.remove(name) {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

impl AppendError {
    /// The error for the caller, and whether the store is to be poisoned.
    pub(crate) fn split(self) -> (StoreError, bool) {
        match self {
            Self::Undone(error) => (error.into(), false),
            Self::Unknown(error) => (error.into(), true),
        }
    }
}
