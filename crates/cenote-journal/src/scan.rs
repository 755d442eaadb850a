//! Reading a journal after its session ended, however it ended.
//!
//! A reader needs the records behind the newest known *trim*: that of the header, or of the last
//! record. They lie in one half, or in the older one and go on in the other. They must be there
//! without a gap; the first place where none follows is the end if nothing later relies on it, and
//! damage if a later record says that one was durable there.

use super::file::{FoundJournal, found_in, read_header};
use super::record::{Read, Record, read};
use super::roots::Roots;
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::Uuid;
use cenote_layout::object::{JournalHeader, PSYNC_MAGIC, RecordHeader};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use zerocopy::FromBytes;

/// What a journal holds.
#[derive(Debug)]
pub struct JournalScan {
    pub(crate) header: JournalHeader,
    alone: bool,
    /// Of the newest record that is whole.
    newest: Option<RecordHeader>,
    /// The last session.
    pub(crate) epoch: u64,
    /// Committed records whose contents may be missing in the primaries, in order.
    pub records: Vec<Record>,
    /// Objects of records that are not whole and were never acknowledged: they were in state P.
    pub torn: Vec<Uuid>,
    /// Number and checksum of the last record that counts.
    pub last: (u64, u64),
    /// Why records are lost, if some are.
    pub damage: Option<String>,
    /// Protected primaries as they were before these records. `None`: the header that knew is
    /// damaged, and a later record says so. Without it a primary that was put back is not found,
    /// so the opener of a store with protected primaries goes on only if its caller accepts
    /// that.
    pub roots: Option<Roots>,
}

impl JournalScan {
    /// The header.
    #[must_use]
    pub fn found(&self) -> FoundJournal {
        found_in(&self.header, self.alone, self.last.0, self.newest.as_ref())
    }

    /// Number of the last record that counts.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.last.0
    }
}

/// Records of one half from its start, without a gap, and where they end.
struct Chain {
    records: Vec<Record>,
    end: u64,
    torn: Option<Record>,
}

fn chain(file: &FileHandle, header: &JournalHeader, number: usize) -> Result<Chain, MediumError> {
    let (start, end) = header.half(number);
    let mut found = Chain { records: Vec::new(), end: start, torn: None };
    loop {
        let next = read(file, found.end, end)?;
        let (record, committed) = match next {
            Read::Committed(record) => (record, true),
            Read::Torn(record) => (record, false),
            Read::Nothing => return Ok(found),
        };
        let this = &record.header;
        let ours = this.store == header.store;
        let follows = found.records.last().is_none_or(|last| {
            let last = &last.header;
            let epoch_fits = this.epoch >= last.epoch && this.chain == last.checksum;
            this.seq == last.seq + 1 && (epoch_fits || planted(Bug::JournalEpochIgnored))
        });
        if !ours || !follows {
            return Ok(found);
        }
        if !committed {
            found.torn = Some(record);
            return Ok(found);
        }
        found.end += this.total_len;
        found.records.push(record);
    }
}

/// Whether a record behind the end of a chain says that record `seq` was durable.
fn relied_on(
    file: &FileHandle,
    header: &JournalHeader,
    number: usize,
    from: u64,
    seq: u64,
) -> Result<bool, MediumError> {
    let (_, end) = header.half(number);
    let mut chunk = vec![0; (64 * PAGE_SIZE) as usize];
    let mut at = from;
    while at < end {
        let want = (end - at).min(chunk.len() as u64) as usize;
        let got = file.read_at(at, &mut chunk[..want])?;
        for (index, page) in chunk[..got].chunks(PAGE_SIZE as usize).enumerate() {
            if !page.starts_with(&PSYNC_MAGIC) {
                continue;
            }
            let Ok((later, _)) = RecordHeader::read_from_prefix(page) else { continue };
            let relies = later.seq > seq
                && later.durable >= seq
                && later.trimmed < seq
                && later.store == header.store;
            // Believed only with its checksum.
            if relies && !matches!(read(file, at + index as u64 * PAGE_SIZE, end)?, Read::Nothing) {
                return Ok(true);
            }
        }
        if got < want {
            break;
        }
        at += want as u64;
    }
    Ok(false)
}

/// What is wrong with a journal of which [`JournalScan::roots`] is lost.
pub const ROOTS_LOST: &str =
    "its newest header is damaged, and with it the list of the states of what is protected at rest";

/// Reads a journal. `Err` in the answer: why nothing of it can be believed.
///
/// # Errors
/// The file cannot be read.
pub fn scan(
    file: &FileHandle,
    store: Uuid,
    writing: bool,
) -> Result<Result<JournalScan, String>, MediumError> {
    let (header, alone, roots) = match read_header(file, store, writing)? {
        Ok(found) => (found.header, found.alone, Some(found.roots)),
        Err(problem) => return Ok(Err(problem)),
    };
    let chains = [chain(file, &header, 0)?, chain(file, &header, 1)?];
    let newest = chains.iter().filter_map(|c| c.records.last()).map(|record| record.header);
    let newest = newest.max_by_key(|newest| newest.seq);
    // A record of a later session than the header's means that a later header is damaged: the
    // record is believed all the same.
    let epoch = newest.map_or(0, |newest| newest.epoch).max(header.epoch);
    let trimmed = newest.map_or(0, |newest| newest.trimmed).max(header.trimmed);
    let mut last = (header.trimmed, header.chain);
    let mut records: Vec<Record> = Vec::new();
    let mut damage = None;
    let mut all: Vec<Record> = chains.iter().flat_map(|c| c.records.iter().cloned()).collect();
    all.sort_by_key(|record| record.header.seq);
    for record in all {
        let this = record.header;
        if this.seq <= trimmed {
            if this.seq >= last.0 {
                last = (this.seq, this.checksum);
            }
            continue;
        }
        let expected = records.last().map_or(trimmed, |before| before.header.seq) + 1;
        if this.seq != expected {
            damage = Some(format!("records {expected} to {} are missing", this.seq - 1));
        }
        last = (this.seq, this.checksum);
        records.push(record);
    }
    let mut torn = Vec::new();
    for (number, chain) in chains.iter().enumerate() {
        let next = chain.records.last().map_or(last.0, |record| record.header.seq) + 1;
        // The half that the last record is in, or an empty one.
        let ends_here = next == last.0 + 1;
        if ends_here && damage.is_none() && relied_on(file, &header, number, chain.end, next)? {
            damage = Some(format!("record {next} was durable and is not whole"));
        }
        if let Some(record) = chain.torn.as_ref().filter(|record| record.header.seq == last.0 + 1) {
            torn.extend_from_slice(&record.objects);
        }
    }
    Ok(Ok(JournalScan {
        header,
        alone,
        newest,
        epoch,
        records,
        torn,
        last,
        damage,
        roots: roots.filter(|_| trimmed == header.trimmed),
    }))
}
