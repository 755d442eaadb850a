//! Reading a log without believing it.
//!
//! `scan` collects the entries of the transaction that the range is about, in order, until the
//! first that does not check. Every entry is an allegation until its checksum, sequence number,
//! place, kind and size fit. An entry with a right checksum and other fields that make no sense is
//! damage at once. A missing part was torn by the crash, which is legal; or it had been durable and
//! is gone. Then the log is damaged, and none of it is used. Evidence of damage is, in this order:
//!
//! * a whole first entry of a later transaction than the range allows: the range is an old one;
//! * the tail word, after a crash of processes: it counts the entries exactly;
//! * the overflow word: everything up to the jump that it names had been durable;
//! * a whole entry further on that says that the missing one was durable when it was written
//!   ([`EntryHeader::unfenced`]); where the range says "committed", any whole entry further on.
//!
//! One case remains: after a loss of power, damage to an entry looks like a torn end if no entry
//! was written behind it after its fence.

use crate::body::Body;
use crate::damage::{CrashKind, LogDamage};
use crate::entry_checksum::EntryChecksum;
use cenote_layout::LINE_SIZE;
use cenote_layout::header;
use cenote_layout::id::Uuid;
use cenote_layout::log::{
    AllocationMark, CONTROL_OFFSET, ENTRIES_OFFSET, ENTRY_HEADER_SIZE, EntryHeader, EntryKind,
    LOG_QUARANTINED, LogControl, LogHeader, LogRange, RANGE_OFFSET, Seal, SequenceRange, Stage,
    TailWord, entry_seed, entry_size, epoch_from_word,
};
use cenote_medium::planted::{Bug, planted};
use core::sync::atomic::Ordering;
use zerocopy::FromBytes;

/// One entry that passed its checks.
#[derive(Clone, Copy, Debug)]
pub struct ScannedEntry {
    /// Its kind.
    pub kind: EntryKind,
    /// Address of its range.
    pub addr: u64,
    /// Bytes of its range.
    pub size: u32,
    /// Its data, in the log's mapping; null for kinds without data.
    pub(crate) data: *const u8,
}

impl ScannedEntry {
    /// The data that the entry carries.
    ///
    /// # Safety
    /// The segment that the entry was found in must still be mapped, and unchanged.
    pub(crate) unsafe fn data<'a>(&self) -> &'a [u8] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: `scan` checked that all its data lies in the segment; mapped by contract.
        unsafe { core::slice::from_raw_parts(self.data, self.kind.data_len(self.size) as usize) }
    }

    /// The data as one word (bit masks).
    ///
    /// # Safety
    /// As [`ScannedEntry::data`]; `scan` only passes bit entries with 8 bytes of data.
    unsafe fn word(&self) -> u64 {
        // SAFETY: as `data`.
        let bytes = unsafe { self.data() };
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    }

    /// The word of which applying this entry clears bits, and which.
    ///
    /// # Safety
    /// As [`ScannedEntry::data`].
    pub(crate) unsafe fn bits(&self) -> Option<AllocationMark> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.kind {
                EntryKind::ClearBitsOnAbort | EntryKind::ClearBitsOnCommit => {
                    Some(AllocationMark { word: self.addr, mask: self.word() })
                }
                EntryKind::Allocation => AllocationMark::read_from_bytes(self.data()).ok(),
                _ => None,
            }
        }
    }
}

/// What a scan found.
#[derive(Clone, Debug)]
pub(crate) struct LogScan {
    pub(crate) owner: Uuid,
    pub(crate) log_id: u64,
    pub(crate) capacity: u64,
    pub(crate) range: SequenceRange,
    pub(crate) entries: Vec<ScannedEntry>,
    /// The seal's content hash, if the log ends with a seal that fits its entries.
    pub(crate) seal: Option<u64>,
    /// Segments visited, the head included.
    pub(crate) segments: u32,
    /// Where the entries lie: start and bytes, one pair for each segment.
    pub(crate) areas: Vec<(*const u8, usize)>,
}

/// Gives the body of a further segment, if the log's owner has one at this puddle address.
pub(crate) type FindSegment<'a> = &'a mut dyn FnMut(Uuid, u64) -> Option<Body>;

/// The three lines at the start of a head segment, checked.
pub(crate) struct Head {
    pub(crate) header: LogHeader,
    pub(crate) epoch: u32,
    pub(crate) range: SequenceRange,
    tail: TailWord,
    overflow: TailWord,
}

/// Reads and checks a head segment's header, control line and range line. `writing` also refuses
/// what only may be read.
pub(crate) fn read_head(bytes: &[u8], capacity: u64, writing: bool) -> Result<Head, LogDamage> {
    let header: LogHeader = header::read(bytes, writing).map_err(|error| match error {
        error if error.is_newer() => LogDamage::Unsupported(error.to_string()),
        error => LogDamage::Header(error.to_string()),
    })?;
    if header.segment != 0 || header.capacity > capacity {
        return Err(LogDamage::Header(format!(
            "segment {}, capacity {}",
            header.segment, header.capacity
        )));
    }
    let short = |_| LogDamage::Header("it is cut short".into());
    let line = |offset: u64| bytes.get(offset as usize..).unwrap_or_default();
    let control =
        LogControl::read_from_prefix(line(CONTROL_OFFSET)).map_err(|e| short(e.to_string()))?.0;
    let range = LogRange::read_from_prefix(line(RANGE_OFFSET)).map_err(|e| short(e.to_string()))?.0;
    let bad = |field, value| Err(LogDamage::Control { field, value });
    let Some(epoch) = epoch_from_word(control.epoch) else { return bad("epoch", control.epoch) };
    if control.state != 0 && control.state != LOG_QUARANTINED {
        return bad("state", control.state);
    }
    for reserved in [&control.reserved[..], &range.reserved[..]] {
        if let Some(&value) = reserved.iter().find(|&&word| word != 0) {
            return bad("reserved", value);
        }
    }
    Ok(Head {
        header,
        epoch,
        range: SequenceRange::from_word(range.range).ok_or(LogDamage::Range(range.range))?,
        tail: TailWord::from_word(range.tail),
        overflow: TailWord::from_word(range.overflow),
    })
}

impl Head {
    /// Where the first entry of the range's transaction stands, and the end of the room for it.
    fn first_area(&self) -> core::ops::Range<usize> {
        let half_len = self.header.capacity / 2;
        let half =
            if planted(Bug::HalvesNotSwapped) { 0 } else { u64::from(self.range.base() / 4) & 1 };
        let start = ENTRIES_OFFSET + half * half_len;
        start as usize..(start + half_len) as usize
    }

    /// Whether an entry is newer than any that can be there, so that the range is not the last one
    /// that was written. A loss of power may leave the range one transaction behind, a crash of
    /// processes never.
    fn is_stale(&self, bytes: &[u8], crash: CrashKind) -> bool {
        let half_len = self.header.capacity / 2;
        let newest = self.range.base() + if crash == CrashKind::Power { 4 } else { 0 };
        [ENTRIES_OFFSET, ENTRIES_OFFSET + half_len].into_iter().any(|start| {
            let area = bytes.get(start as usize..(start + half_len) as usize).unwrap_or_default();
            let Ok((header, rest)) = EntryHeader::read_from_prefix(area) else { return false };
            header.seq & !3 > newest && self.check().is_whole(&header, rest)
        })
    }

    fn check(&self) -> EntryCheck {
        EntryCheck { seed: entry_seed(self.header.log_id, self.epoch), base: self.range.base() }
    }

    /// Whether a transaction has begun to write entries: no other may begin then.
    pub(crate) fn has_entries(&self, bytes: &[u8]) -> bool {
        bytes
            .get(self.first_area())
            .is_some_and(|area| !matches!(self.check().read(area, 0), FoundEntry::Nothing))
    }
}

/// Reads the log whose head segment is `head`.
///
/// # Safety
/// `head` and what `segment` gives are mapped and not written to meanwhile.
pub(crate) unsafe fn scan(
    head: Body,
    crash: CrashKind,
    writing: bool,
    segment: FindSegment<'_>,
) -> Result<LogScan, LogDamage> {
    // SAFETY: mapped and unchanging by contract.
    let bytes = unsafe { head.bytes() };
    let lines = read_head(bytes, head.capacity(), writing)?;
    let (header, range, check) = (lines.header, lines.range, lines.check());
    if lines.is_stale(bytes, crash) {
        return Err(LogDamage::Stale(range.to_word()));
    }
    let mut found = LogScan {
        owner: header.owner,
        log_id: header.log_id,
        capacity: header.capacity,
        range,
        entries: Vec::new(),
        seal: None,
        segments: 1,
        areas: Vec::new(),
    };
    let mut area = &bytes[lines.first_area()];
    let mut start = area.as_ptr();
    let mut entries_checksum = 0;
    loop {
        let index = found.entries.len() as u32;
        let (entry, sum) = match check.read(area, index) {
            FoundEntry::Nothing => break,
            FoundEntry::Nonsense(why) => return Err(LogDamage::Entry { index, why }),
            FoundEntry::Whole(entry, sum) => (entry, sum),
        };
        found.entries.push(entry);
        area = &area[entry_size(u64::from(entry.kind.data_len(entry.size))) as usize..];
        match entry.kind {
            EntryKind::Seal => {
                // SAFETY: the data lies in the log, unchanged by contract.
                let seal = Seal::read_from_bytes(unsafe { entry.data() })
                    .map_err(|_| LogDamage::Entry { index, why: "it is a seal of another size" })?;
                if seal.entries != u64::from(index) || seal.entries_checksum != entries_checksum {
                    return Err(LogDamage::Seal { entries: seal.entries, found: u64::from(index) });
                }
                found.seal = Some(seal.contents);
                break;
            }
            EntryKind::Jump => {
                // SAFETY: by contract.
                let next = unsafe { follow(entry.addr, &header, found.segments, segment) }?;
                found.areas.push((start, area.as_ptr() as usize - start as usize));
                area = next;
                start = area.as_ptr();
                found.segments += 1;
            }
            _ => {}
        }
        entries_checksum ^= sum;
    }
    found.areas.push((start, area.as_ptr() as usize - start as usize));

    found.refuse_missing(&lines, area, crash)?;
    Ok(found)
}

impl LogScan {
    /// Refuses a log of which entries are missing: damaged, and not torn. `rest` follows the last
    /// entry that was found.
    fn refuse_missing(&self, head: &Head, rest: &[u8], crash: CrashKind) -> Result<(), LogDamage> {
        let (range, tail, overflow) = (self.range, &head.tail, &head.overflow);
        let base = range.base();
        let count = self.entries.len() as u32;
        let damage = |why| Err(LogDamage::Entry { index: count, why });
        if crash == CrashKind::Process && tail.base == base && tail.entries > count {
            return damage("the log's tail says that it was written");
        }
        if overflow.base == base && overflow.entries >= self.segments {
            return damage("the log had gone on in a further segment");
        }
        if self.seal.is_some() {
            return Ok(());
        }
        let committed = range.stage() == Stage::Committed;
        match head.check().finds_later(rest, count, committed) {
            Later::No => {}
            Later::Yes => return damage("a later entry says that it was durable"),
            Later::Unclear => return damage("what follows it looks like entries everywhere"),
        }
        let counted = tail.base == base && tail.entries == count;
        if committed && crash == CrashKind::Process && !counted {
            return Err(LogDamage::Uncounted);
        }
        Ok(())
    }
}

/// The entry area of the segment that a jump leads to, which is segment `number` of its log.
///
/// # Safety
/// The memory that `segment` gives is mapped and not written to as long as the area is used.
unsafe fn follow<'a>(
    addr: u64,
    head: &LogHeader,
    number: u32,
    segment: &mut dyn FnMut(Uuid, u64) -> Option<Body>,
) -> Result<&'a [u8], LogDamage> {
    let damage = |why: String| LogDamage::Segment { number, addr, why };
    let body = segment(head.owner, addr).ok_or_else(|| damage("it is not the owner's".into()))?;
    // SAFETY: mapped and unchanging by contract.
    let bytes = unsafe { body.bytes() };
    let capacity = check_segment(bytes, body.capacity(), head, number).map_err(damage)?;
    Ok(&bytes[ENTRIES_OFFSET as usize..(ENTRIES_OFFSET + capacity) as usize])
}

/// Checks the header of a further segment; gives the bytes of its entry area.
pub(crate) fn check_segment(
    bytes: &[u8],
    capacity: u64,
    head: &LogHeader,
    number: u32,
) -> Result<u64, String> {
    let segment: LogHeader = header::read(bytes, false).map_err(|e| e.to_string())?;
    if (segment.log_id, segment.owner) != (head.log_id, head.owner) {
        return Err("it is of another log".into());
    }
    if segment.segment != number {
        return Err(format!("it is segment {}", segment.segment));
    }
    if segment.capacity > capacity {
        return Err(format!(
            "it says that it has {} bytes for entries, and has {capacity}",
            segment.capacity
        ));
    }
    Ok(segment.capacity)
}

/// The checks of one entry.
struct EntryCheck {
    seed: u64,
    base: u32,
}

/// What stands at a place where an entry could.
enum FoundEntry {
    /// No entry of the transaction, or not all of one.
    Nothing,
    /// All of one, with the right checksum, but it makes no sense: no writer has ever written it.
    Nonsense(&'static str),
    /// An entry and its checksum.
    Whole(ScannedEntry, u64),
}

/// Whether an entry was found behind a missing one.
enum Later {
    No,
    Yes,
    /// Looking took too long.
    Unclear,
}

impl EntryCheck {
    /// The entry header at the start of `area`, if its sequence number is one of the transaction's,
    /// and what follows it.
    fn header<'a>(&self, area: &'a [u8]) -> Option<(EntryHeader, &'a [u8])> {
        let (header, rest) = EntryHeader::read_from_prefix(area).ok()?;
        let class = header.seq.wrapping_sub(self.base);
        (class == 1 || class == 3).then_some((header, rest))
    }

    /// The data of `len` bytes behind a header, if the checksum fits.
    fn data<'a>(&self, header: &EntryHeader, rest: &'a [u8], len: u32) -> Option<&'a [u8]> {
        let padded = entry_size(u64::from(len)) - ENTRY_HEADER_SIZE;
        let data = &rest.get(..padded as usize)?[..len as usize];
        (header.compute(self.seed, data) == header.checksum || planted(Bug::ChecksumIgnored))
            .then_some(data)
    }

    /// Whether a writer of this log wrote header and data in this epoch. They may say anything.
    fn is_whole(&self, header: &EntryHeader, rest: &[u8]) -> bool {
        match EntryKind::from_u8(header.kind) {
            Some(kind) => self.data(header, rest, kind.data_len(header.size)).is_some(),
            None => {
                self.data(header, rest, 0).is_some()
                    || self.data(header, rest, header.size).is_some()
            }
        }
    }

    /// What stands at the start of `area`, where entry number `index` belongs.
    fn read(&self, area: &[u8], index: u32) -> FoundEntry {
        let Some((header, rest)) = self.header(area) else { return FoundEntry::Nothing };
        let Some(kind) = EntryKind::from_u8(header.kind) else {
            let whole = self.is_whole(&header, rest);
            return if whole {
                FoundEntry::Nonsense("it is of no known kind")
            } else {
                FoundEntry::Nothing
            };
        };
        let Some(data) = self.data(&header, rest, kind.data_len(header.size)) else {
            return FoundEntry::Nothing;
        };
        if header.index != index {
            return FoundEntry::Nonsense("another entry stands in its place");
        }
        if header.seq != self.base.wrapping_add(kind.class()) {
            return FoundEntry::Nonsense("its sequence number is not that of its kind");
        }
        if header.order != kind.order() as u8 {
            return FoundEntry::Nonsense("its order is not that of its kind");
        }
        let bits = matches!(kind, EntryKind::ClearBitsOnAbort | EntryKind::ClearBitsOnCommit);
        if bits && header.size != 8 {
            return FoundEntry::Nonsense("it is about bits, but not of one word");
        }
        let data = if data.is_empty() { core::ptr::null() } else { data.as_ptr() };
        let entry = ScannedEntry { kind, addr: header.addr, size: header.size, data };
        // SAFETY: the data was found in the log a moment ago.
        if unsafe { entry.bits() }.is_some_and(|bits| bits.word % 8 != 0) {
            return FoundEntry::Nonsense("it is about bits, but not of one word");
        }
        FoundEntry::Whole(entry, header.checksum)
    }

    /// Whether somewhere in `area`, behind the missing entry number `missing`, there is a whole
    /// entry of the same transaction that was written after `missing` had become durable; with
    /// `any`, whether there is any later one. Sizes of what is missing are unknown, so
    /// every line is tried; the cheap checks come first. Work is limited: only an
    /// attacker writes bytes that look like entry headers everywhere.
    fn finds_later(&self, area: &[u8], missing: u32, any: bool) -> Later {
        let mut budget = 8 * area.len() + (16 << 20);
        for at in (0..area.len()).step_by(LINE_SIZE as usize) {
            let Some((header, rest)) = self.header(&area[at..]) else { continue };
            let Some(kind) = EntryKind::from_u8(header.kind) else { continue };
            let fenced = header.unfenced != u16::MAX
                && header.index.saturating_sub(u32::from(header.unfenced)) > missing;
            let later = header.index > missing && (any || fenced);
            if !later || header.order != kind.order() as u8 {
                continue;
            }
            let len = kind.data_len(header.size);
            if len as usize > rest.len() {
                continue;
            }
            let Some(left) = budget.checked_sub(len as usize) else { return Later::Unclear };
            budget = left;
            if self.data(&header, rest, len).is_some() {
                return Later::Yes;
            }
        }
        Later::No
    }
}

/// What a log looks like to a reader that changes nothing.
#[derive(Clone, Debug)]
pub struct LogSummary {
    /// The client that writes it.
    pub owner: Uuid,
    /// Its identity.
    pub log_id: u64,
    /// Bytes of the head's entry area.
    pub capacity: u64,
    /// Segments in use by the transaction in progress.
    pub segments: u32,
    /// Its sequence range.
    pub range: SequenceRange,
    /// What the range says.
    pub stage: Stage,
    /// Entries of the transaction that the range is about.
    pub entries: Vec<ScannedEntry>,
    /// Whether the log ends in a seal that fits its entries.
    pub sealed: bool,
    /// Whether recovery has set it aside.
    pub quarantined: bool,
}

/// Looks at a log without changing it.
///
/// # Errors
/// What is damaged.
///
/// # Safety
/// As [`crate::replay()`], but the mapping need not be writable.
pub unsafe fn inspect(
    head: Body,
    crash: CrashKind,
    segment: &mut dyn FnMut(Uuid, u64) -> Option<Body>,
) -> Result<LogSummary, LogDamage> {
    // SAFETY: the caller's promise.
    let (scan, state) =
        unsafe { (scan(head, crash, false, segment)?, head.state().load(Ordering::Relaxed)) };
    Ok(LogSummary {
        owner: scan.owner,
        log_id: scan.log_id,
        capacity: scan.capacity,
        segments: scan.segments,
        range: scan.range,
        stage: scan.range.stage(),
        sealed: scan.seal.is_some(),
        entries: scan.entries,
        quarantined: state == LOG_QUARANTINED,
    })
}
