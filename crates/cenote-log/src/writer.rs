//! Appends to a log.
//!
//! Invariants of a [`LogWriter`]:
//!
//! * it is the only writer of its log;
//! * between transactions the log's range is `running(base)`, and no entry of `base` exists
//!   anywhere in the log; the range in memory may be ahead of the durable one by one transaction,
//!   never by two;
//! * entries of the transaction in progress stand one after the other from the start of half `(base
//!   / 4) & 1`, numbered from 0, through further segments where an [`EntryKind::Jump`] says so;
//! * an entry's bytes are stored before the tail word counts it;
//! * a jump, and everything before it, is durable before the overflow word names it: a further
//!   segment costs one fence.
//!
//! At `power`, entries are streamed past the cache: a log is written once and read only after a
//! crash. The next fence makes them durable; it is issued where that is needed. The writer counts
//! how many are not durable yet (`EntryHeader::unfenced`), so recovery tells a torn end from
//! damage.
//!
//! # Pages of the log that are lost
//!
//! A page is lost when its file was cut short or its device fails. A store into it goes to memory
//! that takes the page's place ([`SegmentSource::lost`]). So after each store on which a later one
//! relies, the writer asks whether a page was lost, which costs one load. If so, it returns
//! [`LogError::Lost`]: an entry that it returns stands in the file. The answer for one log of a
//! session holds for all of them, because a range that another log left to a later fence may be in
//! the lost page.
//!
//! # Two mappings
//!
//! A body may be mapped twice ([`Body::distance`]), so that a stray write finds it read-only. All
//! pointers of the writer are into the first mapping; a store adds the distance at the very moment.
//! What is read and flushed is the first mapping.

mod segments;

use crate::body::{Body, next_epoch, stored};
use crate::entry_checksum::INLINE_DATA_LEN;
use crate::line::{EntryLine, HEADER_WORDS, LINE_LEN, LINE_WORDS, word};
use crate::log_error::LogError;
use crate::scan::read_head;
use crate::source::SegmentSource;
use cenote_layout::checksum::checksum;
use cenote_layout::log::{
    ENTRIES_OFFSET, ENTRY_HEADER_SIZE, EntryKind, LAST_BASE, LogHeader, Seal, SequenceRange, Stage,
    TailWord, entry_seed, entry_size,
};
use cenote_medium::Persistence;
use cenote_medium::planted::{Bug, planted};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Appends the entries of one transaction after the other to one log.
pub struct LogWriter {
    cursor: *mut u8,
    /// End of the room for entries in the current segment: one entry without data (a jump) before
    /// the area's end.
    end: *mut u8,
    /// Of the body that the cursor is in.
    distance: usize,
    tail: *const AtomicU64,
    last: *const AtomicU64,
    seed: u64,
    /// Base and number of entries of the transaction in progress, as the tail word has them.
    count: u64,
    unfenced: u32,
    /// Whether the range word was stored since it was flushed.
    range_unflushed: bool,
    entries_checksum: u64,
    persistence: Persistence,
    segment: u32,
    header: LogHeader,
    head: Body,
    /// Puddle address and body of segments 1, 2, ...; each body is as long as its header says.
    further: Vec<(u64, Body)>,
    source: Box<dyn SegmentSource>,
    /// [`SegmentSource::lost`].
    lost: Arc<AtomicBool>,
}

// SAFETY: the writer owns its log; its pointers are into mappings that outlive it (contract of
// `attach`), and nothing in them is tied to a thread.
unsafe impl Send for LogWriter {}

/// The least room worth filling with a part of a long range before going to the next segment.
const PART_LEN_MIN: usize = 256;

/// What an entry says of itself, beside its data.
#[derive(Clone, Copy)]
struct EntryHead {
    kind: EntryKind,
    addr: u64,
    size: u32,
}

impl LogWriter {
    /// Takes up a formatted, recovered log.
    ///
    /// # Errors
    /// [`LogError::NotWritable`] if the header is not that of a head segment, the log is set aside,
    /// its range is not "running", or it holds entries of an unfinished transaction.
    ///
    /// # Safety
    /// `head` and every body that `source` gives are mapped for writing (where their stores go) for
    /// as long as the writer lives, and no other thread writes to them.
    pub unsafe fn attach(
        head: Body,
        persistence: Persistence,
        source: Box<dyn SegmentSource>,
    ) -> Result<Self, LogError> {
        let refuse = |why: String| LogError::NotWritable(why);
        // SAFETY: mapped by contract; no thread writes during the look.
        let (bytes, state) = unsafe { (head.bytes(), head.state().load(Ordering::Relaxed)) };
        let lines =
            read_head(bytes, head.capacity(), true).map_err(|damage| refuse(damage.to_string()))?;
        if state != 0 {
            return Err(refuse("it is set aside".into()));
        }
        let (range, header) = (lines.range, lines.header);
        if range.stage() != Stage::Running || range.base() >= LAST_BASE {
            return Err(refuse(format!("its sequence range is {:#x}", range.to_word())));
        }
        if lines.has_entries(bytes) {
            return Err(refuse(
                "it holds a transaction that was not finished, which the next open recovers".into(),
            ));
        }
        // SAFETY: mapped by contract, for as long as the writer lives.
        let (tail, last) =
            unsafe { (core::ptr::from_ref(head.tail()), core::ptr::from_ref(head.last())) };
        let mut writer = Self {
            cursor: core::ptr::null_mut(),
            end: core::ptr::null_mut(),
            distance: head.distance,
            tail,
            last,
            seed: entry_seed(header.log_id, lines.epoch),
            count: TailWord { base: range.base(), entries: 0 }.to_word(),
            unfenced: 0,
            range_unflushed: false,
            entries_checksum: 0,
            persistence,
            segment: 0,
            header,
            head: Body { len: ENTRIES_OFFSET + header.capacity, ..head },
            further: Vec::new(),
            lost: source.lost(),
            source,
        };
        writer.rewind();
        Ok(writer)
    }

    /// [`SegmentSource::is_halted`].
    #[must_use]
    pub fn is_halted(&self) -> bool {
        self.source.is_halted()
    }

    /// Whether a page of a log of this session was lost ([`SegmentSource::lost`]): then nothing
    /// that relies on an earlier store to the log may happen.
    #[inline(always)]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        // The handler that sets it runs in the thread whose store it answers for.
        cenote_sys::cpu::compiler_barrier();
        self.lost.load(Ordering::Relaxed) && !planted(Bug::LostLogWritten)
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
        TailWord::from_word(self.count).entries
    }

    /// The transaction's base.
    #[inline]
    fn base(&self) -> u32 {
        TailWord::from_word(self.count).base
    }

    /// Whether entries have been written that no fence has made durable yet.
    #[inline]
    #[must_use]
    pub fn has_unfenced(&self) -> bool {
        self.unfenced != 0
    }

    /// Whether the transaction in progress has left the head segment. Further segments have no
    /// halves: the range that finishes such a transaction must be durable before the next one
    /// writes.
    #[inline]
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.segment != 0
    }

    /// Bytes that entries of the transaction in progress can take before it leaves the head;
    /// 0 after that.
    #[must_use]
    pub fn head_room_bytes(&self) -> u64 {
        if self.has_overflowed() { 0 } else { self.room() as u64 }
    }

    /// Number of the half that the transaction in progress began in.
    fn half(&self) -> u64 {
        if planted(Bug::HalvesNotSwapped) { 0 } else { u64::from(self.base() / 4) & 1 }
    }

    /// Puts the cursor to where the first entry of `base` goes.
    fn rewind(&mut self) {
        let half_len = self.head.capacity() / 2;
        let start = ENTRIES_OFFSET + self.half() * half_len;
        // SAFETY: both halves lie in the head's entry area.
        unsafe {
            self.cursor = self.head.ptr.add(start as usize);
            self.end = self.cursor.add((half_len - entry_size(0)) as usize);
        }
        self.distance = self.head.distance;
        self.count = TailWord { base: self.base(), entries: 0 }.to_word();
        self.unfenced = 0;
        self.entries_checksum = 0;
        self.segment = 0;
    }

    /// Where a word of the head is stored.
    #[inline(always)]
    fn stored(&self, word: *const AtomicU64) -> *const AtomicU64 {
        stored(word.cast_mut().cast(), self.head.distance).cast()
    }

    #[inline]
    fn room(&self) -> usize {
        self.end as usize - self.cursor as usize
    }

    /// Appends one entry and returns where its data stands in the log. `data` is copied for kinds
    /// that have data. The entry is not durable before [`LogWriter::fence`].
    ///
    /// # Errors
    /// [`LogError::Grow`] if the log is full; then nothing was appended. [`LogError::Lost`].
    ///
    /// # Safety
    /// As many bytes from `data` as [`EntryKind::data_len`] says are readable, and none is
    /// uninitialised (`cenote_sys::bytes::settle`). The data fits into a segment: callers split
    /// with [`LogWriter::append_range`].
    #[inline]
    pub unsafe fn append(
        &mut self,
        kind: EntryKind,
        addr: u64,
        size: u32,
        data: *const u8,
    ) -> Result<*const u8, LogError> {
        let data_len = kind.data_len(size) as usize;
        let total = entry_size(data_len as u64) as usize;
        if total > self.room() {
            self.next_segment(total)?;
        }
        // SAFETY: the room was checked; `data` is readable by contract.
        let place = unsafe { self.put(EntryHead { kind, addr, size }, data, data_len, total) };
        if self.is_lost() { Err(self.take_back(total)) } else { Ok(place) }
    }

    /// Makes room for entries that take `bytes` together (see [`entry_size`]), so that appending
    /// them next cannot fail: for entries of which one alone would say something wrong. May go
    /// on in the next segment, which says nothing.
    ///
    /// # Errors
    /// [`LogError::Grow`] if the log is full, or no segment has so much room; then nothing was
    /// appended.
    #[inline]
    pub fn reserve(&mut self, bytes: u64) -> Result<(), LogError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > self.room() { self.next_segment(bytes) } else { Ok(()) }
    }

    /// As [`LogWriter::append`] for an entry of one line, inlined, so that the compiler knows the
    /// caller's kind and size here. Its data has at most
    /// [`ENTRY_INLINE_DATA_MAX`](cenote_layout::log::ENTRY_INLINE_DATA_MAX) bytes. `None`, and
    /// nothing has happened, if the segment is full; or if a page is lost: [`LogWriter::append`]
    /// says so then.
    ///
    /// # Safety
    /// As [`LogWriter::append`].
    #[inline(always)]
    pub unsafe fn append_line(
        &mut self,
        kind: EntryKind,
        addr: u64,
        size: u32,
        data: *const u8,
    ) -> Option<*const u8> {
        let data_len = kind.data_len(size) as usize;
        if data_len > INLINE_DATA_LEN || self.room() < LINE_LEN {
            return None;
        }
        // SAFETY: the room was checked; `data` is readable by contract.
        let place = unsafe { self.put(EntryHead { kind, addr, size }, data, data_len, LINE_LEN) };
        if self.is_lost() {
            self.take_back(LINE_LEN);
            return None;
        }
        Some(place)
    }

    /// The tail does not count the entry that was put last, which may have gone nowhere: a replay
    /// would take it for one that is damaged. Nothing relies on it yet.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, total: usize) -> LogError {
        self.count -= 1 << 32;
        self.cursor = self.cursor.wrapping_sub(total);
        // SAFETY: the head is mapped as long as the writer lives.
        unsafe { (*self.stored(self.tail)).store(self.count, Ordering::Relaxed) };
        LogError::Lost
    }

    /// Appends entries for a range of any length: `len` bytes at `addr`, old or new contents at
    /// `data`. Long ranges are split so that each part fits; `logged` is told address, length
    /// and place in the log of each part.
    ///
    /// # Errors
    /// [`LogError::Grow`]; entries of earlier parts stay, which is harmless: they log more than is
    /// changed.
    ///
    /// # Safety
    /// `len` bytes from `data` are readable, and none is uninitialised.
    #[inline]
    pub unsafe fn append_range(
        &mut self,
        kind: EntryKind,
        mut addr: u64,
        mut len: usize,
        mut data: *const u8,
        logged: &mut impl FnMut(u64, usize, *const u8),
    ) -> Result<(), LogError> {
        while len > 0 {
            let room = self.room().saturating_sub(ENTRY_HEADER_SIZE as usize);
            let part = if len <= room {
                len
            } else if room >= PART_LEN_MIN {
                room
            } else {
                self.next_segment(entry_size(PART_LEN_MIN.min(len) as u64) as usize)?;
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
    /// `total <= room`, `data_len` bytes readable and initialised at `data`.
    #[inline(always)]
    unsafe fn put(
        &mut self,
        EntryHead { kind, addr, size }: EntryHead,
        data: *const u8,
        data_len: usize,
        total: usize,
    ) -> *const u8 {
        // The header's fields as words, put together in registers: see the assertions at `word`.
        let words = [
            0,
            addr,
            u64::from(size) | (u64::from(self.entries()) << 32),
            word(self.base() + kind.class(), kind, self.unfenced.min(u32::from(u16::MAX))),
        ];
        // SAFETY: `total` bytes from the cursor are ours (checked by the caller) and begin a line;
        // the data is readable.
        let checksum = unsafe {
            if data_len <= INLINE_DATA_LEN {
                self.put_line(words, data, data_len)
            } else {
                self.put_long(words, data, data_len, total)
            }
        };
        self.entries_checksum ^= checksum;
        self.count += 1 << 32;
        self.unfenced += 1;
        // SAFETY: the cursor stays in the area; the head is mapped as long as the writer lives.
        unsafe {
            let place = self.cursor;
            self.cursor = place.add(total);
            cenote_sys::cpu::compiler_barrier();
            (*self.stored(self.last)).store(place as u64, Ordering::Relaxed);
            (*self.stored(self.tail)).store(self.count, Ordering::Relaxed);
            // The caller's stores to what the entry covers come after the entry counts.
            cenote_sys::cpu::compiler_barrier();
            place.add(ENTRY_HEADER_SIZE as usize)
        }
    }

    /// An entry of one line: put together in registers, then written whole.
    ///
    /// # Safety
    /// The line at the cursor is ours; `data_len`, at most [`INLINE_DATA_LEN`], bytes are readable
    /// and initialised at `data`.
    #[inline(always)]
    unsafe fn put_line(
        &mut self,
        words: [u64; HEADER_WORDS],
        data: *const u8,
        data_len: usize,
    ) -> u64 {
        let mut line = EntryLine { words: [0; LINE_WORDS] };
        line.words[..HEADER_WORDS].copy_from_slice(&words);
        // SAFETY: the data is readable and fits into the line; its source is memory of a store or a
        // value, not this line.
        unsafe {
            if data_len.is_multiple_of(8) {
                // Without a call of a memory copy, which costs more than the four words.
                for i in 0..INLINE_DATA_LEN / 8 {
                    if i < data_len / 8 {
                        line.words[HEADER_WORDS + i] = data.cast::<u64>().add(i).read_unaligned();
                    }
                }
            } else {
                let room = line.words.as_mut_ptr().add(HEADER_WORDS).cast::<u8>();
                room.copy_from_nonoverlapping(data, data_len);
            }
            line.words[0] = checksum(
                self.seed,
                &line.words.as_bytes()[8..ENTRY_HEADER_SIZE as usize + data_len],
            );
            let to = stored(self.cursor, self.distance);
            self.persistence.stream(to, line.words.as_ptr().cast(), LINE_LEN);
        }
        line.words[0]
    }

    /// An entry of several lines: the data from its second line on goes straight from where it is
    /// to the log.
    ///
    /// # Safety
    /// `total` bytes at the cursor are ours; `data_len`, more than [`INLINE_DATA_LEN`], bytes are
    /// readable and initialised at `data`.
    #[inline(never)]
    unsafe fn put_long(
        &mut self,
        words: [u64; HEADER_WORDS],
        data: *const u8,
        data_len: usize,
        total: usize,
    ) -> u64 {
        // SAFETY: all parts lie in `total` bytes at the cursor, and in the data.
        unsafe {
            let from = data.add(INLINE_DATA_LEN);
            let first = stored(self.cursor, self.distance);
            let to = first.add(LINE_LEN);
            let (rest, room) = (data_len - INLINE_DATA_LEN, total - LINE_LEN);
            let whole = rest / LINE_LEN * LINE_LEN;
            self.persistence.stream(to, from, whole);
            if whole != rest {
                let mut last = EntryLine { words: [0; LINE_WORDS] };
                last.words
                    .as_mut_ptr()
                    .cast::<u8>()
                    .copy_from_nonoverlapping(from.add(whole), rest - whole);
                self.persistence.stream(to.add(whole), last.words.as_ptr().cast(), room - whole);
            }
            // Hashed while those lines are on their way. (Hashing first, or piece by piece, was
            // slower wherever the range is written afterwards.)
            let header = checksum(self.seed, words[1..].as_bytes());
            let sum = checksum(header, core::slice::from_raw_parts(data, data_len));
            let mut line = EntryLine { words: [0; LINE_WORDS] };
            line.words[..HEADER_WORDS].copy_from_slice(&words);
            line.words[0] = sum;
            let inline = line.words.as_mut_ptr().add(HEADER_WORDS).cast::<u8>();
            inline.copy_from_nonoverlapping(data, INLINE_DATA_LEN);
            self.persistence.stream(first, line.words.as_ptr().cast(), LINE_LEN);
            line.words[0]
        }
    }

    /// Appends the seal: "if this is whole and memory's contents hash to `contents`, the
    /// transaction is committed".
    ///
    /// # Errors
    /// [`LogError::Grow`].
    pub fn append_seal(&mut self, contents: u64) -> Result<(), LogError> {
        let total = entry_size(size_of::<Seal>() as u64) as usize;
        if total > self.room() {
            self.next_segment(total)?; // before the count is taken: a jump is an entry
        }
        let seal = Seal {
            entries: u64::from(self.entries()),
            entries_checksum: self.entries_checksum,
            contents,
        };
        // SAFETY: the seal's bytes are readable, and there is room.
        unsafe {
            self.append(EntryKind::Seal, 0, size_of::<Seal>() as u32, seal.as_bytes().as_ptr())?
        };
        Ok(())
    }

    /// Makes every entry so far, the range, and everything flushed before durable at the level of
    /// the medium: one fence, none at `process`.
    #[inline]
    pub fn fence(&mut self) {
        if self.range_unflushed {
            self.flush_range();
        }
        self.persistence.fence();
        self.unfenced = 0;
    }

    /// Not inlined: at `process` it is never called.
    #[inline(never)]
    fn flush_range(&mut self) {
        // SAFETY: the head is mapped as long as the writer lives.
        unsafe { self.persistence.flush(self.range_word().cast(), 8) };
        self.range_unflushed = false;
    }

    /// The range word. Its flush waits for the next fence: until then nothing is promised about it,
    /// and a flush on its way makes locked instructions wait, and stores to the same line, as
    /// every entry's to the tail word.
    #[inline]
    fn store_range(&mut self, range: SequenceRange) {
        cenote_sys::cpu::compiler_barrier();
        // SAFETY: the head is mapped as long as the writer lives.
        unsafe { self.head.stored().range() }.store(range.to_word(), Ordering::Release);
        cenote_sys::cpu::compiler_barrier();
        self.range_unflushed = self.persistence.is_power();
    }

    /// From "running" to "committed": redo-class entries count from now on. Durable with the next
    /// fence. For a transaction that has entries, all of them fenced (at `power`, redo data
    /// sealed).
    pub fn mark_committed(&mut self) {
        self.store_range(SequenceRange::committed(self.base()));
    }

    /// Finishes the transaction: none of its entries counts any more, and the next
    /// one may begin. Durable with the next fence; the caller fences where the next transaction
    /// could otherwise be mistaken (see `cenote-tx`).
    pub fn finish(&mut self) {
        let base = self.base();
        let next = if base >= LAST_BASE - 4 {
            // SAFETY: the head is mapped as long as the writer lives, and ours; callers finish only
            // what is durable.
            let epoch = unsafe { next_epoch(self.head, self.persistence) };
            self.range_unflushed = false;
            self.seed = entry_seed(self.header.log_id, epoch);
            0
        } else {
            self.store_range(SequenceRange::running(base + 4));
            base + 4
        };
        self.count = TailWord { base: next, entries: 0 }.to_word();
        self.rewind();
    }

    /// Address of the range word, for code that flushes it on another thread's behalf.
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
        assert_eq!(self.entries(), 0);
        let base = LAST_BASE - 8;
        self.count = TailWord { base, entries: 0 }.to_word();
        self.store_range(SequenceRange::running(base));
        self.fence();
        self.rewind();
    }
}
