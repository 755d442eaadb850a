//! One psync as bytes: written in three parts, read believing nothing.

use crate::changes::Changes;
use cenote_layout::checksum::{checksum, seed};
use cenote_layout::id::Uuid;
use cenote_layout::object::{COMMIT_MAGIC, CommitRecord, LineRun, PSYNC_MAGIC, RecordHeader};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of data from which on a record is not put together in memory first.
const GATHER_MAX: usize = 256 << 10;

/// What a record says about its place among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordPlace {
    pub(crate) seq: u64,
    pub(crate) epoch: u64,
    pub(crate) chain: u64,
    pub(crate) durable: u64,
    pub(crate) trimmed: u64,
    /// As [`crate::Tie::to_name`] has it.
    pub(crate) names: [u64; 2],
    pub(crate) store: Uuid,
}

/// A record that only lacks its place.
#[derive(Debug)]
pub struct Draft<'a> {
    objects: &'a [Uuid],
    changes: &'a Changes,
    /// Of little data. The sum of much is made while the device writes it.
    data_sum: Option<u64>,
    total_len: u64,
}

impl<'a> Draft<'a> {
    /// The record of `changes`, whose runs count primaries by their place in `objects`. `None` if
    /// it is larger than any journal, or has more objects or runs than a record can count.
    #[must_use]
    pub fn new(objects: &'a [Uuid], changes: &'a Changes) -> Option<Self> {
        let count = u32::try_from(objects.len()).ok()?;
        let runs = u32::try_from(changes.runs.len()).ok()?;
        let total_len = RecordHeader::total_len(count, runs, changes.data.len() as u64)?;
        if count > cenote_layout::object::RECORD_OBJECTS_MAX {
            return None;
        }
        let data_sum =
            (changes.data.len() <= GATHER_MAX).then(|| checksum(seed::PSYNC, &changes.data));
        Some(Self { objects, changes, data_sum, total_len })
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn total_len(&self) -> u64 {
        self.total_len
    }

    /// Bytes of the header with its tables.
    fn head_len(&self) -> u64 {
        RecordHeader::head_len(self.objects.len() as u32, self.changes.runs.len() as u32)
    }

    /// The header with its tables, and their checksum.
    fn head(&self, place: &RecordPlace) -> (Vec<u8>, u64) {
        let header = RecordHeader {
            magic: PSYNC_MAGIC,
            seq: place.seq,
            epoch: place.epoch,
            chain: place.chain,
            durable: place.durable,
            trimmed: place.trimmed,
            other: place.names[0],
            catalog: place.names[1],
            store: place.store,
            objects: self.objects.len() as u32,
            runs: self.changes.runs.len() as u32,
            data_len: self.changes.data.len() as u64,
            total_len: self.total_len,
            data_sum: self.data_sum.unwrap_or_else(|| checksum(seed::PSYNC, &self.changes.data)),
            checksum: 0,
        };
        let mut head = header.as_bytes().to_vec();
        self.objects.iter().for_each(|id| head.extend_from_slice(id.as_bytes()));
        self.changes.runs.iter().for_each(|run| head.extend_from_slice(run.as_bytes()));
        let sum = RecordHeader::checksum_of(&mut head);
        let at = core::mem::offset_of!(RecordHeader, checksum);
        head[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        (head, sum)
    }

    /// Writes the record at `offset` and returns its checksum. Nothing of it counts before a sync,
    /// so parts are written in the order in which they are ready: much data first, and the
    /// device begins with it while it is summed.
    pub(crate) fn write(
        &self,
        file: &FileHandle,
        offset: u64,
        place: &RecordPlace,
    ) -> Result<u64, MediumError> {
        let data = &self.changes.data;
        let data_at = offset + self.head_len();
        let tail_at = data_at + data.len() as u64;
        let first = data.len() > GATHER_MAX && !planted(Bug::PsyncCommitBeforeData);
        if first {
            file.write_at(data_at, data)?;
            file.start_writing(data_at, data.len() as u64);
        }
        let (head, sum) = self.head(place);
        let mut tail = vec![0; (offset + self.total_len - tail_at) as usize];
        let commit_at = tail.len() - size_of::<CommitRecord>();
        tail[commit_at..].copy_from_slice(CommitRecord::new(place.seq, sum).as_bytes());
        if planted(Bug::PsyncCommitBeforeData) {
            file.write_at(offset, &head)?;
            file.write_at(tail_at, &tail)?;
            file.sync()?;
            file.write_at(data_at, data)?;
        } else if first {
            file.write_at(offset, &head)?;
            file.write_at(tail_at, &tail)?;
        } else {
            let mut whole = head;
            whole.extend_from_slice(data);
            whole.extend_from_slice(&tail);
            file.write_at(offset, &whole)?;
        }
        Ok(sum)
    }
}

/// A record that was read.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its head.
    pub header: RecordHeader,
    /// The primaries that it changes.
    pub objects: Vec<Uuid>,
    /// What it changes of them.
    pub runs: Vec<LineRun>,
    /// Where its data lies in the file.
    pub(crate) data_at: u64,
}

/// What stands at some place of the journal.
#[derive(Debug)]
pub(crate) enum Read {
    /// A whole record.
    Committed(Record),
    /// Header and tables of a record whose data or commit record is not whole: a psync in state P,
    /// or damage.
    Torn(Record),
    /// No record.
    Nothing,
}

/// Reads what stands at `offset`; nothing beyond `end` counts.
pub(crate) fn read(file: &FileHandle, offset: u64, end: u64) -> Result<Read, MediumError> {
    let mut bytes = [0; size_of::<RecordHeader>()];
    if offset.saturating_add(bytes.len() as u64) > end
        || file.read_at(offset, &mut bytes)? < bytes.len()
    {
        return Ok(Read::Nothing);
    }
    let Ok(header) = RecordHeader::read_from_bytes(&bytes) else { return Ok(Read::Nothing) };
    if !header.is_plausible() || header.total_len > end - offset {
        return Ok(Read::Nothing);
    }
    // Plausible: the length is below that of the half, which is there.
    let head_len = RecordHeader::head_len(header.objects, header.runs);
    let mut head = vec![0; head_len as usize];
    if file.read_at(offset, &mut head)? < head.len()
        || RecordHeader::checksum_of(&mut head) != header.checksum
    {
        return Ok(Read::Nothing);
    }
    let tables = &head[size_of::<RecordHeader>()..];
    let (objects, runs) = tables.split_at(header.objects as usize * size_of::<Uuid>());
    let objects: Vec<Uuid> =
        objects.chunks_exact(16).filter_map(|bytes| Uuid::read_from_bytes(bytes).ok()).collect();
    let runs: Vec<LineRun> = runs
        .chunks_exact(size_of::<LineRun>())
        .filter_map(|bytes| LineRun::read_from_bytes(bytes).ok())
        .collect();
    let sum: u64 = runs.iter().map(LineRun::len_bytes).sum();
    if sum != header.data_len
        || runs.iter().any(|run| run.lines == 0 || run.object >= header.objects)
    {
        return Ok(Read::Nothing);
    }
    let record = Record { header, objects, runs, data_at: offset + head_len };
    let mut commit = [0; size_of::<CommitRecord>()];
    file.read_at(offset + header.total_len - commit.len() as u64, &mut commit)?;
    let expected = CommitRecord::new(header.seq, header.checksum);
    if commit != expected.as_bytes() || expected.magic != COMMIT_MAGIC {
        return Ok(Read::Torn(record));
    }
    if planted(Bug::JournalSumIgnored) {
        return Ok(Read::Committed(record));
    }
    let data = record.read_data(file)?;
    if data.len() as u64 == header.data_len && checksum(seed::PSYNC, &data) == header.data_sum {
        Ok(Read::Committed(record))
    } else {
        Ok(Read::Torn(record))
    }
}

impl Record {
    /// Its data, as far as the file has it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read_data(&self, file: &FileHandle) -> Result<Vec<u8>, MediumError> {
        let mut data = vec![0; self.header.data_len as usize];
        let got = file.read_at(self.data_at, &mut data)?;
        data.truncate(got);
        Ok(data)
    }

    /// Calls `f` with primary, offset in its data, and contents of every run.
    ///
    /// # Errors
    /// The first that `f` returns.
    pub fn for_each_run<E>(
        &self,
        data: &[u8],
        mut f: impl FnMut(Uuid, u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = data;
        for run in &self.runs {
            let (bytes, behind) = rest.split_at((run.len_bytes() as usize).min(rest.len()));
            rest = behind;
            if let Some(object) = self.objects.get(run.object as usize) {
                f(*object, run.offset(), bytes)?;
            }
        }
        Ok(())
    }
}
