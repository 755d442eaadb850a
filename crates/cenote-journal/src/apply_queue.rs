//! Committed psyncs that are not in the primaries yet, and primaries read through them.
//!
//! Invariant: the journal's queue has them in the order of their records. [`Primary::read`] lays
//! them over the file in that order, so the last one counts. `apply.rs` has the argument.

use crate::changes::Changes;
use crate::roots::{ROOT_HEADER_LEN, Root, Rooted};
use cenote_layout::id::Uuid;
use cenote_medium::{FileHandle, MediumError};
use std::sync::Arc;

/// A primary that a record changes.
#[derive(Clone, Debug)]
pub struct ApplyTarget {
    /// Its id.
    pub id: Uuid,
    /// Its file.
    pub file: Arc<FileHandle>,
    /// Where its data begins there.
    pub data_offset: u64,
    /// Of a protected one that the journal lists.
    pub rooted: Option<Rooted>,
}

/// A primary that cannot be written or read, and why.
pub(crate) type Untouchable = (String, Box<MediumError>);

/// Where the contents of a run lie.
#[derive(Clone, Copy, Debug)]
struct RunPart {
    object: u32,
    /// Bytes from the start of the primary's data.
    from: u64,
    to: u64,
    /// Place in the record's data.
    data: usize,
}

/// A committed psync that is not in the primaries yet.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) half: usize,
    pub(crate) targets: Vec<ApplyTarget>,
    pub(crate) changes: Changes,
    /// By primary and place.
    parts: Vec<RunPart>,
}

impl Queued {
    pub(crate) fn new(half: usize, changes: Changes, targets: Vec<ApplyTarget>) -> Self {
        let mut data = 0;
        let mut parts: Vec<RunPart> = Vec::with_capacity(changes.runs.len());
        for run in &changes.runs {
            let len = run.len_bytes();
            parts.push(RunPart {
                object: run.object,
                from: run.offset(),
                to: run.offset() + len,
                data,
            });
            data += len as usize;
        }
        // They mostly are in order.
        if !parts.is_sorted_by_key(|part| (part.object, part.from)) {
            parts.sort_by_key(|part| (part.object, part.from));
        }
        Self { half, targets, changes, parts }
    }

    pub(crate) fn has(&self, id: Uuid) -> bool {
        self.targets.iter().any(|target| target.id == id)
    }

    /// Lays what this psync wrote over bytes that were read from `offset` of a primary's data on.
    fn lay_over(&self, id: Uuid, offset: u64, bytes: &mut [u8]) {
        let end = offset + bytes.len() as u64;
        let Some(object) = self.targets.iter().position(|target| target.id == id) else { return };
        let object = object as u32;
        let first = self.parts.partition_point(|part| (part.object, part.to) <= (object, offset));
        for part in
            self.parts[first..].iter().take_while(|part| part.object == object && part.from < end)
        {
            let (from, to) = (part.from.max(offset), part.to.min(end));
            let (start, len) = (part.data + (from - part.from) as usize, (to - from) as usize);
            if let Some(new) = self.changes.data.get(start..start + len) {
                bytes[(from - offset) as usize..][..len].copy_from_slice(new);
            }
        }
    }

    /// Writes all of it to the primaries. If one cannot be written: its name, and why.
    pub(crate) fn apply(&self) -> Result<(), Untouchable> {
        for (run, data) in self.changes.iter() {
            let Some(target) = self.targets.get(run.object as usize) else { continue };
            let written = target.file.write_in_pieces(target.data_offset + run.offset(), data);
            written.map_err(|source| (target.file.name().to_owned(), Box::new(source)))?;
        }
        Ok(())
    }
}

impl Queued {
    /// The roots that this psync gives to its primaries, from its own lines where they hold a whole
    /// header, and else from the file, in which they are by now.
    pub(crate) fn roots(&self) -> Result<Vec<(Uuid, Option<Root>)>, Untouchable> {
        let mut roots = Vec::new();
        for (number, target) in (0..).zip(&self.targets) {
            let Some(Rooted { at, root }) = target.rooted else { continue };
            let end = at + ROOT_HEADER_LEN as u64;
            let first = self.parts.partition_point(|part| (part.object, part.to) <= (number, at));
            let Some(part) =
                self.parts.get(first).filter(|part| part.object == number && part.from < end)
            else {
                continue;
            };
            let mut header = [0; ROOT_HEADER_LEN];
            if part.from <= at && part.to >= end {
                self.lay_over(target.id, at, &mut header);
            } else {
                let read = target.file.read_exact_at(target.data_offset + at, &mut header);
                read.map_err(|source| (target.file.name().to_owned(), Box::new(source)))?;
            }
            roots.push((target.id, root(&header)));
        }
        Ok(roots)
    }
}

/// A primary as the last committed psync left it: its file, and over that what is not there yet.
#[derive(Debug)]
pub struct Primary<'a> {
    pub(crate) file: &'a FileHandle,
    pub(crate) id: Uuid,
    pub(crate) data_offset: u64,
    pub(crate) later: Vec<Arc<Queued>>,
}

impl<'a> Primary<'a> {
    /// A primary whose file has all that is committed: of an object that another process keeps, for
    /// example, and has settled.
    #[must_use]
    pub fn settled(id: Uuid, file: &'a FileHandle, data_offset: u64) -> Self {
        Self { file, id, data_offset, later: Vec::new() }
    }

    /// Reads bytes of its data.
    ///
    /// # Errors
    /// As [`FileHandle::read_exact_at`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediumError> {
        self.file.read_exact_at(self.data_offset + offset, bytes)?;
        self.later.iter().for_each(|later| later.lay_over(self.id, offset, bytes));
        Ok(())
    }
}
