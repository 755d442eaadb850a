//! Appending to a log.
//!
//! Invariants of a [`LogWriter`]:
//!
//! * it is the only writer of its log;
//! * between transactions the log's range is `running(base)` and no entry of `base` exists anywhere in the log;
//!   what is in memory of it may be ahead of what is durable by one transaction, never by two;
//! * entries of the transaction in progress stand one after the other from the start of half `(base / 4) & 1`, numbered from 0,
//!   through further segments where a [`Kind::Jump`] says so;
//! * an entry's bytes are stored before the tail word counts it;
//! * a jump, and everything before it, is durable before the overflow word names it: a further segment costs one fence.
//!
//! Entries are streamed past the cache at `power` (a log is written once and read only after a crash), and made durable by the
//! fence of whoever needs them durable: the writer counts how many are not yet ([`EntryHeader::unfenced`]), which is how recovery tells a
//! torn end from damage.

use crate::body::{Body, next_epoch};
use crate::scan::{check_segment, read_head};
use cenote_layout::checksum::checksum;
use cenote_layout::log::{
    ENTRIES_OFFSET, ENTRY_HEADER_SIZE, EntryHeader, Kind, LAST_BASE, LogHeader, Seal, SequenceRange, Stage, TailWord,
    entry_seed, entry_size,
};
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, planted};
use core::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Where a log gets further segments from.
pub trait SegmentSource: Send {
    /// The address of the puddle, and the body, of segment `number` (from 1) of the log: formatted with
    /// [`crate::format_segment`] and listed in the log space, durably.
    ///
    /// # Errors
    /// Whatever kept it from having one: a full disk, say.
    fn segment(&mut self, number: u32) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>>;
}

/// Why an entry could not be written. The log is as it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log is full and could not grow.
    #[error("the log is full and cannot grow: {0}")]
    Grow(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The head segment is not a log that can be written.
    #[error("the log cannot be written: {0}")]
    NotWritable(String),
}

/// Appends the entries of one transaction after the other to one log.
pub struct LogWriter {
    cursor: *mut u8,
    /// End of the room for entries in the current segment: one entry header (for a jump) before the area's end.
    end: *mut u8,
    tail: *const AtomicU64,
    last: *const AtomicU64,
    seed: u64,
    base: u32,
    entries: u32,
    unfenced: u32,
    entries_checksum: u64,
    persistence: Persistence,
    segment: u32,
    header: LogHeader,
    head: Body,
    /// Puddle address and body of segments 1, 2, ...; each body is as long as its header says.
    further: Vec<(u64, Body)>,
    source: Box<dyn SegmentSource>,
}

// SAFETY: the writer owns its log; its pointers are into mappings that outlive it (contract of `attach`), and nothing in them is tied to a
// thread.
unsafe impl Send for LogWriter {}

/// Data up to this many bytes is put together with its header before it is streamed.
const SMALL_DATA_LEN: usize = 96;

/// The least room worth filling with a part of a long range before going to the next segment.
const PART_LEN_MIN: usize = 256;

impl LogWriter {
    /// Takes up a formatted, recovered log.
    ///
    /// # Errors
    /// [`LogError::NotWritable`] if the header is not that of a head segment, the log is set aside, its range is not "running", or it
    /// holds entries of a transaction that nobody finished.
    ///
    /// # Safety
    /// `head` and every body that `source` gives are mapped for writing for as long as the writer lives, and nobody else writes to them.
    pub unsafe fn attach(
        head: Body,
        persistence: Persistence,
        source: Box<dyn SegmentSource>,
    ) -> Result<Self, LogError> {
        let refuse = |why: String| LogError::NotWritable(why);
        // SAFETY: mapped by contract; nobody writes while we look.
        let (bytes, state) = unsafe { (head.bytes(), head.state().load(Ordering::Relaxed)) };
        let lines = read_head(bytes, head.capacity(), true).map_err(|damage| refuse(damage.to_string()))?;
        if state != 0 {
            return Err(refuse("it is set aside".into()));
        }
        let (range, header) = (lines.range, lines.header);
        if range.stage() != Stage::Running || range.base() >= LAST_BASE {
            return Err(refuse(format!("its sequence range is {:#x}", range.to_word())));
        }
        if lines.has_entries(bytes) {
            return Err(refuse("it holds a transaction that was not finished, which the next open recovers".into()));
        }
        // SAFETY: mapped by contract, for as long as the writer lives.
        let (tail, last) = unsafe { (core::ptr::from_ref(head.tail()), core::ptr::from_ref(head.last())) };
        let mut writer = Self {
            cursor: core::ptr::null_mut(),
            end: core::ptr::null_mut(),
            tail,
            last,
            seed: entry_seed(header.log_id, lines.epoch),
            base: range.base(),
            entries: 0,
            unfenced: 0,
            entries_checksum: 0,
            persistence,
            segment: 0,
            header,
            head: Body { ptr: head.ptr, len: ENTRIES_OFFSET + header.capacity },
            further: Vec::new(),
            source,
        };
        writer.rewind();
        Ok(writer)
    }

    /// The log's identity.
    #[must_use]
    pub fn log_id(&self) -> u64 {
        self.header.log_id
    }

    /// Entries written in the transaction in progress.
    #[inline]
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether entries have been written that no fence has made durable yet.
    #[inline]
    #[must_use]
    pub fn has_unfenced(&self) -> bool {
        self.unfenced != 0
    }

    /// Whether the transaction in progress has left the head segment. Further segments have no halves: the range that finishes
    /// such a transaction must be durable before the next one writes.
    #[inline]
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.segment != 0
    }

    /// Number of the half that the transaction in progress began in.
    fn half(&self) -> u64 {
        if planted(Bug::HalvesNotSwapped) { 0 } else { u64::from(self.base / 4) & 1 }
    }

    /// Puts the cursor to where the first entry of `base` goes.
    fn rewind(&mut self) {
        let half_len = self.head.capacity() / 2;
        let start = ENTRIES_OFFSET + self.half() * half_len;
        // SAFETY: both halves lie in the head's entry area.
        unsafe {
            self.cursor = self.head.ptr.add(start as usize);
            self.end = self.cursor.add((half_len - ENTRY_HEADER_SIZE) as usize);
        }
        self.entries = 0;
        self.unfenced = 0;
        self.entries_checksum = 0;
        self.segment = 0;
    }

    #[inline]
    fn room(&self) -> usize {
        self.end as usize - self.cursor as usize
    }

    /// Appends one entry and returns where its data stands in the log. `data` is copied for kinds that have data. The entry is not durable
    /// before [`LogWriter::fence`].
    ///
    /// # Errors
    /// [`LogError::Grow`] if the log is full; then nothing was appended.
    ///
    /// # Safety
    /// For kinds with data, `size` bytes from `data` are readable. The data fits into a segment: callers split with
    /// [`LogWriter::append_range`].
    #[inline]
    pub unsafe fn append(
        &mut self,
        kind: Kind,
        addr: u64,
        size: u32,
        data: *const u8,
    ) -> Result<*const u8, LogError> {
        let data_len = if kind.has_data() { size as usize } else { 0 };
        let total = entry_size(data_len as u64) as usize;
        if total > self.room() {
            self.next_segment(total)?;
        }
        // SAFETY: the room was checked; `data` is readable by contract.
        Ok(unsafe { self.put(kind, addr, size, data, data_len, total) })
    }

    /// Appends entries for a range of any length: `len` bytes at `addr`, old or new contents at `data`. Long ranges are split so that each
    /// part fits; `logged` is told address, length and place in the log of each part.
    ///
    /// # Errors
    /// [`LogError::Grow`]; entries of earlier parts stay, which is harmless: they log more than is changed.
    ///
    /// # Safety
    /// `len` bytes from `data` are readable.
    #[inline]
    pub unsafe fn append_range(
        &mut self,
        kind: Kind,
        mut addr: u64,
        mut len: usize,
        mut data: *const u8,
        logged: &mut impl FnMut(u64, usize, *const u8),
    ) -> Result<(), LogError> {
        while len > 0 {
            let room = self.room().saturating_sub(ENTRY_HEADER_SIZE as usize) & !7;
            let part = if len <= room {
                len
            } else if room >= PART_LEN_MIN {
                room
            } else {
                self.next_segment(ENTRY_HEADER_SIZE as usize + PART_LEN_MIN.min((len + 7) & !7))?;
                continue;
            };
            let part = part.min(1 << 30);
            // SAFETY: `part <= len` bytes are readable by contract, and fit.
            unsafe {
                let place = self.append(kind, addr, part as u32, data)?;
                logged(addr, part, place);
                data = data.add(part);
            }
            addr = addr.wrapping_add(part as u64);
            len -= part;
        }
        Ok(())
    }

    /// Writes an entry that fits.
    ///
    /// # Safety
    /// `total <= room`, `data_len` bytes readable at `data`.
    #[inline]
    unsafe fn put(
        &mut self,
        kind: Kind,
        addr: u64,
        size: u32,
        data: *const u8,
        data_len: usize,
        total: usize,
    ) -> *const u8 {
        let mut header = EntryHeader {
            checksum: 0,
            addr,
            size,
            index: self.entries,
            seq: self.base + kind.class(),
            kind: kind as u8,
            order: kind.order() as u8,
            unfenced: self.unfenced.min(u32::from(u16::MAX)) as u16,
        };
        // SAFETY: readable by contract.
        let data_bytes: &[u8] = if data_len == 0 { &[] } else { unsafe { core::slice::from_raw_parts(data, data_len) } };
        header.checksum = header.compute(self.seed, data_bytes);
        self.entries_checksum ^= header.checksum;
        // SAFETY: `total` bytes from the cursor are ours (checked by the caller), aligned to 8; sources are readable.
        unsafe {
            if data_len <= SMALL_DATA_LEN {
                #[repr(C, align(16))]
                struct Buffer([u8; ENTRY_HEADER_SIZE as usize + SMALL_DATA_LEN]);
                let mut buffer = core::mem::MaybeUninit::<Buffer>::uninit();
                let bytes = buffer.as_mut_ptr().cast::<u8>();
                bytes.cast::<EntryHeader>().write(header);
                if data_len == 8 {
                    bytes.add(32).cast::<u64>().write(data.cast::<u64>().read_unaligned());
                } else if data_len > 0 {
                    // Zero the last word first: it may be filled only in part.
                    bytes.add(total - 8).cast::<u64>().write(0);
                    bytes.add(32).copy_from_nonoverlapping(data, data_len);
                }
                self.persistence.stream(self.cursor, bytes, total);
            } else {
                self.persistence.stream(self.cursor, header.as_bytes().as_ptr(), ENTRY_HEADER_SIZE as usize);
                let whole = data_len & !7;
                let target = self.cursor.add(ENTRY_HEADER_SIZE as usize);
                self.persistence.stream(target, data, whole);
                if whole != data_len {
                    let mut rest = [0u8; 8];
                    rest.as_mut_ptr().copy_from_nonoverlapping(data.add(whole), data_len - whole);
                    self.persistence.stream(target.add(whole), rest.as_ptr(), 8);
                }
            }
            let place = self.cursor;
            self.cursor = self.cursor.add(total);
            self.entries += 1;
            self.unfenced += 1;
            cenote_sys::cpu::compiler_barrier();
            (*self.last).store(place as u64, Ordering::Relaxed);
            (*self.tail).store(TailWord { base: self.base, entries: self.entries }.to_word(), Ordering::Relaxed);
            // The caller's stores to what the entry covers come after the entry counts.
            cenote_sys::cpu::compiler_barrier();
            place.add(ENTRY_HEADER_SIZE as usize)
        }
    }

    /// Goes on in the next segment, which gets room for at least `total` bytes.
    #[cold]
    fn next_segment(&mut self, total: usize) -> Result<(), LogError> {
        let number = self.segment + 1;
        if self.further.len() < number as usize {
            let segment = self.take_segment(number)?;
            self.further.push(segment);
        }
        let (addr, body) = self.further[self.segment as usize];
        let area = body.capacity() as usize - ENTRY_HEADER_SIZE as usize;
        if total > area {
            return Err(LogError::Grow(
                format!("an entry of {total} bytes does not fit into a segment of {area} bytes").into(),
            ));
        }
        // SAFETY: one header's room is kept free at the end of every segment for the jump.
        unsafe { self.put(Kind::Jump, addr, 0, core::ptr::null(), 0, ENTRY_HEADER_SIZE as usize) };
        // The overflow word is true only of a durable jump. It becomes durable with what follows.
        self.fence();
        // SAFETY: the head is mapped as long as the writer lives; the body was checked.
        unsafe {
            let overflow = self.head.overflow();
            overflow.store(TailWord { base: self.base, entries: number }.to_word(), Ordering::Release);
            self.persistence.flush(core::ptr::from_ref(overflow).cast(), 8);
            self.cursor = body.ptr.add(ENTRIES_OFFSET as usize);
            self.end = self.cursor.add(area);
        }
        self.segment = number;
        Ok(())
    }

    /// A segment from the source, if recovery would accept it.
    fn take_segment(&mut self, number: u32) -> Result<(u64, Body), LogError> {
        let (addr, body) = self.source.segment(number).map_err(LogError::Grow)?;
        // SAFETY: bodies that the source gives are mapped, and nobody else writes to them (contract of `attach`).
        let bytes = unsafe { body.bytes() };
        let capacity = check_segment(bytes, body.capacity(), &self.header, number)
            .map_err(|why| LogError::Grow(format!("segment {number} at {addr:#x}: {why}").into()))?;
        Ok((addr, Body { ptr: body.ptr, len: ENTRIES_OFFSET + capacity }))
    }

    /// Appends the seal: "if this is whole and memory's contents hash to `contents`, the transaction is committed".
    ///
    /// # Errors
    /// [`LogError::Grow`].
    pub fn append_seal(&mut self, contents: u64) -> Result<(), LogError> {
        let total = entry_size(size_of::<Seal>() as u64) as usize;
        if total > self.room() {
            self.next_segment(total)?; // before the count is taken: a jump is an entry
        }
        let seal =
            Seal { entries: u64::from(self.entries), entries_checksum: self.entries_checksum, contents };
        // SAFETY: the seal's bytes are readable, and there is room.
        unsafe { self.append(Kind::Seal, 0, size_of::<Seal>() as u32, seal.as_bytes().as_ptr())? };
        Ok(())
    }

    /// Makes every entry so far (and everything flushed before) durable at the level of the medium: one fence, none at `process`.
    #[inline]
    pub fn fence(&mut self) {
        self.persistence.fence();
        self.unfenced = 0;
    }

    /// The range word, and its flush, without a fence.
    fn store_range(&self, range: SequenceRange) {
        // SAFETY: the head is mapped as long as the writer lives.
        unsafe {
            let word = self.head.range();
            cenote_sys::cpu::compiler_barrier();
            word.store(range.to_word(), Ordering::Release);
            cenote_sys::cpu::compiler_barrier();
            self.persistence.flush(core::ptr::from_ref(word).cast(), 8);
        }
    }

    /// From "running" to "committed": redo-class entries count from now on. Flushed, not fenced.
    pub fn mark_committed(&mut self) {
        self.store_range(SequenceRange::committed(self.base));
    }

    /// Finishes the transaction, whatever its entries: none of them counts any more, and the next one may begin. Flushed, not fenced;
    /// the caller fences where the next transaction could otherwise be mistaken (see `cenote-tx`).
    pub fn finish(&mut self) {
        if self.base >= LAST_BASE - 4 {
            // SAFETY: the head is mapped as long as the writer lives, and ours; callers finish only what is durable.
            let epoch = unsafe { next_epoch(self.head, self.persistence) };
            self.base = 0;
            self.seed = entry_seed(self.header.log_id, epoch);
        } else {
            self.base += 4;
            self.store_range(SequenceRange::running(self.base));
        }
        self.rewind();
    }

    /// Address of the range word, for those who flush it on another thread's behalf.
    #[must_use]
    pub fn range_word(&self) -> *const AtomicU64 {
        // SAFETY: the head is mapped as long as the writer lives.
        unsafe { core::ptr::from_ref(self.head.range()) }
    }

    /// How the log's medium makes stores durable.
    #[inline]
    #[must_use]
    pub fn persistence(&self) -> Persistence {
        self.persistence
    }

    /// Puts the sequence numbers near their end, so that a test sees them start again.
    #[doc(hidden)]
    pub fn skip_to_last_base(&mut self) {
        assert_eq!(self.entries, 0);
        self.base = LAST_BASE - 8;
        self.store_range(SequenceRange::running(self.base));
        self.persistence.fence();
        self.rewind();
    }
}

/// Checksum of an entry: header after the checksum field, then data.
pub(crate) trait EntryChecksum {
    fn compute(&self, seed: u64, data: &[u8]) -> u64;
}

impl EntryChecksum for EntryHeader {
    #[inline]
    fn compute(&self, seed: u64, data: &[u8]) -> u64 {
        let sum = checksum(seed, &self.as_bytes()[8..]);
        if data.is_empty() { sum } else { checksum(sum, data) }
    }
}
