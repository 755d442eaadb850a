//! Changes under right checksums: what a writer leaves that knows the format and does not keep its
//! rules.
//!
//! Each function takes the bytes of one kind of file, changes something that the input chooses, and
//! puts the checksums right again. The targets of this crate give the result to readers in memory;
//! `cenote-adversary` writes it into stores.

use crate::input::Input;
use cenote_layout::PAGE_SIZE;
use cenote_layout::archive::{ArchiveHeader, SectionHeader, section_sum};
use cenote_layout::at_rest::AtRestHeader;
use cenote_layout::catalog::{FRAME_HEADER_LEN, RecordHeader as FrameHeader, decode_frame};
use cenote_layout::checksum::{checksum, seed};
use cenote_layout::header::{Header, seal};
use cenote_layout::log::{
    CONTROL_OFFSET, ENTRIES_OFFSET, ENTRY_INLINE_DATA_MAX, EntryHeader, EntryKind, LogHeader,
    RANGE_OFFSET, SequenceRange, entry_seed, entry_size, epoch_from_word,
};
use cenote_layout::log_space::LogSpaceHeader;
use cenote_layout::object::{JOURNAL_HALVES_OFFSET, JournalHeader, ObjectHeader, RecordHeader};
use cenote_layout::puddle::PuddleHeader;
use cenote_layout::snapshot::SnapshotTrailer;
use cenote_layout::superblock::Superblock;
use zerocopy::{FromBytes, IntoBytes};

/// Most forged batch numbers stay below this, so that they meet others; the rest are anything at
/// all.
const BATCH_MAX: u64 = 1000;

type Section = (SectionHeader, Vec<u8>);

/// Kinds of headers: magic, bytes, seed of the checksum.
const HEADERS: [([u8; 8], usize, u64); 8] = [
    of::<Superblock>(),
    of::<PuddleHeader>(),
    of::<LogHeader>(),
    of::<LogSpaceHeader>(),
    of::<ObjectHeader>(),
    of::<JournalHeader>(),
    of::<AtRestHeader>(),
    of::<SnapshotTrailer>(),
];

const fn of<H: Header>() -> ([u8; 8], usize, u64) {
    (H::MAGIC, size_of::<H>(), H::SEED)
}

/// Changes one of the headers that a file has, of any kind, and puts its checksum right. Whether
/// there is one.
pub fn header(input: &mut Input<'_>, bytes: &mut [u8]) -> bool {
    let mut found = Vec::new();
    for at in (0..bytes.len()).step_by(64) {
        let kind = HEADERS
            .iter()
            .find(|(magic, len, _)| bytes[at..].starts_with(magic) && bytes.len() - at >= *len);
        found.extend(kind.map(|(_, len, seed)| (at, *len, *seed)));
    }
    if found.is_empty() {
        return false;
    }
    let (at, len, seed) = found[input.below(found.len())];
    let header = &mut bytes[at..at + len];
    for _ in 0..1 + input.below(2) {
        // Most of a header is reserved: fields lie in its first part. What readers look at first
        // stays, mostly.
        let reach = if input.one_in(8) { len } else { len.min(256) };
        let from = if input.one_in(8) { 0 } else { 48 };
        input.damage(&mut header[from..reach]);
    }
    header[40..48].fill(0);
    let sum = checksum(seed, header);
    header[40..48].copy_from_slice(&sum.to_le_bytes());
    true
}

/// Changes an entry of a log, or the number of its transaction, and puts the checksum right.
/// `bytes` is the file of a log's segment; one that is none stays.
pub fn log(input: &mut Input<'_>, bytes: &mut [u8]) {
    let start = (0..bytes.len())
        .step_by(PAGE_SIZE as usize)
        .find(|at| bytes[*at..].starts_with(&LogHeader::MAGIC));
    let Some(start) = start else { return };
    let segment = &mut bytes[start..];
    let word = |segment: &[u8], at: u64| {
        let bytes =
            segment.get(at as usize..at as usize + 8).and_then(|bytes| bytes.try_into().ok());
        u64::from_le_bytes(bytes.unwrap_or_default())
    };
    let Ok((header, _)) = LogHeader::read_from_prefix(segment) else { return };
    let base = SequenceRange::from_word(word(segment, RANGE_OFFSET)).map_or(0, SequenceRange::base);
    if input.one_in(4) {
        let value = input.number(word(segment, RANGE_OFFSET)).to_le_bytes();
        segment[RANGE_OFFSET as usize..][..8].copy_from_slice(&value);
        return;
    }
    let seed =
        entry_seed(header.log_id, epoch_from_word(word(segment, CONTROL_OFFSET)).unwrap_or(1));
    let half = u64::from(base) / 4 % 2 * (header.capacity / 2);
    let mut at = (ENTRIES_OFFSET + half) as usize;
    for _ in 0..input.below(8) {
        let Some((entry, _)) =
            segment.get(at..).and_then(|rest| EntryHeader::read_from_prefix(rest).ok())
        else {
            return;
        };
        let len = EntryKind::from_u8(entry.kind).map_or(0, |kind| kind.data_len(entry.size));
        at += entry_size(u64::from(len)) as usize;
    }
    let Some((mut entry, _)) =
        segment.get(at..).and_then(|rest| EntryHeader::read_from_prefix(rest).ok())
    else {
        return;
    };
    match input.below(6) {
        0 => entry.addr = input.number(entry.addr),
        1 => entry.size = input.number(u64::from(entry.size)) as u32,
        2 => entry.index = input.number(u64::from(entry.index)) as u32,
        3 => entry.seq = base.wrapping_add(input.below(8) as u32),
        4 => entry.kind = input.below(12) as u8,
        _ => entry.order = input.below(3) as u8,
    }
    let len = EntryKind::from_u8(entry.kind).map_or(0, |kind| kind.data_len(entry.size)) as usize;
    let Some(data) = segment.get(at + 32..(at + 32).saturating_add(len)) else { return };
    let covered = &entry.as_bytes()[8..];
    entry.checksum = if len as u64 <= ENTRY_INLINE_DATA_MAX {
        checksum(seed, &[covered, data].concat())
    } else {
        checksum(checksum(seed, covered), data)
    };
    segment[at..at + 32].copy_from_slice(entry.as_bytes());
}

/// Changes a frame of a catalog and puts its checksum right.
pub fn catalog(input: &mut Input<'_>, bytes: &mut [u8]) {
    let mut starts = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match decode_frame(&bytes[at..]) {
            Ok(frame) => {
                starts.push((at, frame.len));
                at += frame.len;
            }
            Err(_) => at += 8,
        }
    }
    if starts.is_empty() {
        return;
    }
    let (start, len) = starts[input.below(starts.len())];
    let frame = &mut bytes[start..start + len];
    if input.one_in(2) {
        input.damage(frame);
    } else {
        input.damage(&mut frame[FRAME_HEADER_LEN..]);
    }
    let Ok((mut header, rest)) = FrameHeader::read_from_prefix(frame) else {
        return;
    };
    if input.one_in(4) {
        header.batch = header.batch.wrapping_add(u64::from(input.byte())).wrapping_sub(32);
    }
    if !input.one_in(8) {
        header.batch %= BATCH_MAX;
    }
    let payload_len = (header.payload_len as usize).min(rest.len());
    header.checksum = 0;
    let covered = [header.as_bytes(), &rest[..payload_len]].concat();
    header.checksum = checksum(seed::CATALOG, &covered);
    frame[..FRAME_HEADER_LEN].copy_from_slice(header.as_bytes());
}

/// Changes a header of the journal or a record, and puts its checksums right again. Whether
/// anything was there to be changed.
pub fn journal(input: &mut Input<'_>, bytes: &mut [u8]) -> bool {
    let page = PAGE_SIZE as usize;
    if input.one_in(3) {
        let at = input.below(2) * page;
        let Some(place) = bytes.get_mut(at..at + size_of::<JournalHeader>()) else { return false };
        input.damage(place);
        let Ok(mut header) = JournalHeader::read_from_bytes(place) else { return false };
        cenote_layout::header::seal(&mut header);
        place.copy_from_slice(header.as_bytes());
        return true;
    }
    let first = JOURNAL_HALVES_OFFSET as usize / page;
    let count = (bytes.len() / page).saturating_sub(first).max(1);
    let at = (first + input.below(count)) * page;
    let Some(place) = bytes.get_mut(at..) else { return false };
    if place.len() < size_of::<RecordHeader>() {
        return false;
    }
    input.damage(&mut place[8..size_of::<RecordHeader>()]);
    let Ok((header, _)) = RecordHeader::read_from_prefix(place) else { return false };
    if !header.is_plausible() {
        return false;
    }
    let head = RecordHeader::head_len(header.objects, header.runs) as usize;
    if head.saturating_add(header.data_len as usize) > place.len() {
        return false;
    }
    if input.one_in(2) {
        // The tables too.
        input.damage(&mut place[size_of::<RecordHeader>()..head]);
    }
    let sum = checksum(seed::PSYNC, &place[head..head + header.data_len as usize]);
    let at = core::mem::offset_of!(RecordHeader, data_sum);
    place[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    let sum = RecordHeader::checksum_of(&mut place[..head].to_vec());
    let at = core::mem::offset_of!(RecordHeader, checksum);
    place[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    // Its commit record does not fit any more, unless that is put right too.
    if input.one_in(2) {
        let commit = cenote_layout::object::CommitRecord::new(header.seq, sum);
        let end = header.total_len as usize;
        if let Some(place) = place.get_mut(end.saturating_sub(size_of_val(&commit))..end) {
            place.copy_from_slice(commit.as_bytes());
        }
    }
    true
}

/// An archive that is taken apart, changed and put together. `None`: it is none.
pub fn archive(input: &mut Input<'_>, bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut header, mut rest) = ArchiveHeader::read_from_prefix(bytes).ok()?;
    let mut sections: Vec<Section> = Vec::new();
    while let Ok((section, tail)) = SectionHeader::read_from_prefix(rest) {
        let Some((payload, tail)) = tail.split_at_checked(section.stored_len as usize) else {
            break;
        };
        sections.push((section, payload.to_vec()));
        rest = tail;
    }
    for _ in 0..=input.below(4) {
        if sections.is_empty() {
            break;
        }
        let at = input.below(sections.len());
        match input.below(8) {
            0 => drop(sections.remove(at)),
            1 => sections.insert(at, sections[at].clone()),
            2 => {
                let other = input.below(sections.len());
                sections.swap(at, other);
            }
            3 => {
                let section = &mut sections[at].0;
                match input.below(6) {
                    0 => section.kind = input.below(5) as u32,
                    1 => section.flags = input.below(3) as u32,
                    2 => section.puddle = input.number(2) as u32,
                    3 => section.offset = input.number(4096),
                    4 => section.len = input.number(4096) as u32,
                    _ => section.codec = input.below(3) as u32,
                }
            }
            4 => {
                let field = [48, 80, 88, 104, 108, 112, 116, 120][input.below(8)];
                let word = input.number(2).to_le_bytes();
                header.as_mut_bytes()[field..field + 4].copy_from_slice(&word[..4]);
            }
            _ => {
                let payload = &mut sections[at].1;
                if input.one_in(8) {
                    payload.truncate(input.below(payload.len() + 1));
                }
                input.damage(payload);
                // Most changes are about what is in a section, not about its length.
                sections[at].0.len = match sections[at].0.kind {
                    2 => sections[at].0.len,
                    _ => sections[at].1.len() as u32,
                };
            }
        }
    }
    if !input.one_in(6) {
        seal(&mut header);
        let mut chain = header.prefix.checksum;
        for (number, (section, payload)) in sections.iter_mut().enumerate() {
            section.number = number as u64;
            section.chain = chain;
            section.stored_len = payload.len() as u32;
            section.checksum = section_sum(section, payload);
            chain = section.checksum;
        }
    }
    let mut out = header.as_bytes().to_vec();
    for (section, payload) in &sections {
        out.extend_from_slice(section.as_bytes());
        out.extend_from_slice(payload);
    }
    Some(out)
}
