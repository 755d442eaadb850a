//! A store of the smallest kind: one log of three segments and three puddles of data in one piece
//! of memory, a transaction as `cenote-tx` writes it, and a recorder that knows what a loss of
//! power may leave.
//!
//! Addresses are invented (the replay goes through [`Target`]), so that an image can be copied and
//! replayed elsewhere.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::log::{AllocationMark, ContentHash, EntryKind};
use cenote_log::{
    Body, CrashKind, LogDamage, LogSummary, LogWriter, Outcome, Refusal, ReplayTarget,
    SegmentSource, format_segment, inspect, replay,
};
use cenote_medium::{Durability, Persistence, SimHook, SimSlot};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub const OWNER: Uuid = Uuid([7; 16]);
pub const LOG_ID: u64 = 0x1234_5678_9abc_def0;
/// Bytes of a segment's body: the least that there is.
pub const SEGMENT: usize = Body::LEN_MIN as usize;
pub const SEGMENTS: usize = 4;
/// Bytes of one data puddle.
pub const DATA: usize = 1024;
/// Puddles 0 and 1 are the owner's; 2, next to them, is not.
pub const PUDDLES: usize = 3;
pub const DATA_ADDR: u64 = 0x2000_0000_0000;
pub const FOREIGN_ADDR: u64 = DATA_ADDR + 2 * DATA as u64;
pub const SEGMENT_ADDR: u64 = 0x3000_0000_0000;
const SIZE: usize = SEGMENTS * SEGMENT + PUDDLES * DATA;

/// Where in an image the data begins.
pub const DATA_AT: usize = SEGMENTS * SEGMENT;

pub type Image = Vec<u8>;

/// Seeded numbers, the same everywhere (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// The memory.
pub struct World {
    memory: *mut u8,
    pub persistence: Persistence,
    recorder: Option<(Arc<Recorder>, SimSlot)>,
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `raw`.
        unsafe { dealloc(self.memory, layout()) }
    }
}

fn layout() -> Layout {
    Layout::from_size_align(SIZE, 4096).unwrap()
}

impl World {
    fn raw(persistence: Persistence) -> Self {
        // SAFETY: the size is not zero.
        Self { memory: unsafe { alloc_zeroed(layout()) }, persistence, recorder: None }
    }

    /// A fresh world whose data bytes count up.
    pub fn new(persistence: Persistence) -> Self {
        let world = Self::raw(persistence);
        for i in 0..PUDDLES * DATA {
            // SAFETY: inside the memory.
            unsafe { world.memory.add(DATA_AT + i).write((i * 7 + i / 256) as u8) };
        }
        for segment in 0..SEGMENTS {
            // SAFETY: the body is memory of ours that no other thread uses.
            unsafe {
                format_segment(world.segment(segment), OWNER, LOG_ID, segment as u32, persistence)
            };
        }
        world
    }

    /// A world whose flushes, fences and streams at `power` are recorded.
    pub fn recorded() -> Self {
        let mut world = Self::new(Persistence::PROCESS);
        world.record();
        world
    }

    /// Starts recording: everything so far is durable.
    pub fn record(&mut self) {
        let recorder = Arc::new(Recorder::new(self.memory as usize));
        let slot = SimSlot::take(recorder.clone()).expect("a free simulation slot");
        self.persistence = Persistence::simulated(&slot, Durability::Power);
        self.recorder = Some((recorder, slot));
    }

    pub fn from_image(image: &[u8]) -> Self {
        let world = Self::raw(Persistence::PROCESS);
        assert_eq!(image.len(), SIZE);
        // SAFETY: both are `SIZE` bytes.
        unsafe { world.memory.copy_from_nonoverlapping(image.as_ptr(), SIZE) };
        world
    }

    pub fn image(&self) -> Image {
        // SAFETY: no thread writes meanwhile: one thread uses a world.
        unsafe { core::slice::from_raw_parts(self.memory, SIZE) }.to_vec()
    }

    /// The owner's puddles and the foreign one, as they are.
    pub fn data(&self) -> Vec<u8> {
        self.image()[DATA_AT..].to_vec()
    }

    pub fn segment(&self, number: usize) -> Body {
        assert!(number < SEGMENTS);
        // SAFETY: inside the memory.
        Body::new(unsafe { self.memory.add(number * SEGMENT) }, SEGMENT as u64)
    }

    pub fn head(&self) -> Body {
        self.segment(0)
    }

    /// Where an invented data address really is.
    pub fn at(&self, addr: u64, len: usize) -> *mut u8 {
        let offset = usize::try_from(addr - DATA_ADDR).unwrap();
        assert!(offset + len <= PUDDLES * DATA);
        // SAFETY: inside the memory.
        unsafe { self.memory.add(DATA_AT + offset) }
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        // SAFETY: `at` checks the range.
        unsafe { core::slice::from_raw_parts(self.at(addr, len), len) }.to_vec()
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) {
        // SAFETY: `at` checks the range.
        unsafe { self.at(addr, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    pub fn attach(&self) -> Result<LogWriter, cenote_log::LogError> {
        let source = Segments((0..SEGMENTS).map(|n| self.segment(n)).collect());
        // SAFETY: the memory outlives the writer in all tests, and only the writer writes to the
        // log.
        unsafe { LogWriter::attach(self.head(), self.persistence, Box::new(source)) }
    }

    pub fn writer(&self) -> LogWriter {
        self.attach().expect("a log that can be written")
    }

    pub fn replay(&self, crash: CrashKind) -> Outcome {
        // SAFETY: all memory is ours.
        unsafe { replay(self.head(), crash, &mut Target(self)) }
    }

    pub fn inspect(&self, crash: CrashKind) -> Result<LogSummary, LogDamage> {
        // SAFETY: all memory is ours.
        unsafe { inspect(self.head(), crash, &mut |owner, addr| Target(self).segment(owner, addr)) }
    }

    pub fn recorder(&self) -> &Recorder {
        &self.recorder.as_ref().expect("a recorded world").0
    }
}

struct Segments(Vec<Body>);

impl SegmentSource for Segments {
    fn segment(
        &mut self,
        number: u32,
    ) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        let body = self.0.get(number as usize).ok_or("no further segment")?;
        Ok((SEGMENT_ADDR + u64::from(number) * 0x1000_0000, *body))
    }
}

/// What the store would be.
pub struct Target<'w>(pub &'w World);

impl ReplayTarget for Target<'_> {
    fn writable(&mut self, owner: Uuid, addr: u64, len: u64) -> Result<*mut u8, Refusal> {
        let end = addr.checked_add(len).ok_or(Refusal::Outside)?;
        if addr < DATA_ADDR || end > DATA_ADDR + (PUDDLES * DATA) as u64 {
            return Err(Refusal::Outside);
        }
        let puddle = (addr - DATA_ADDR) / DATA as u64;
        if end > DATA_ADDR + (puddle + 1) * DATA as u64 {
            return Err(Refusal::Outside);
        }
        if owner != OWNER || puddle == 2 {
            return Err(Refusal::NotLeased(PoolId(puddle)));
        }
        Ok(self.0.at(addr, len as usize))
    }

    fn segment(&mut self, owner: Uuid, addr: u64) -> Option<Body> {
        let offset = addr.checked_sub(SEGMENT_ADDR)?;
        let known =
            owner == OWNER && offset % 0x1000_0000 == 0 && offset / 0x1000_0000 < SEGMENTS as u64;
        known.then(|| self.0.segment((offset / 0x1000_0000) as usize))
    }

    fn persistence(&self) -> Persistence {
        self.0.persistence
    }
}

/// How a transaction commits at `power`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Process,
    Marked,
    Sealed,
    /// Sealed, and the finishing range is left unfenced.
    Lazy,
}

/// A transaction as `cenote-tx` writes it, step by step.
pub struct Tx<'a> {
    pub world: &'a World,
    pub writer: &'a mut LogWriter,
    pub redo: Vec<(u64, Vec<u8>)>,
    pub covered: Vec<(u64, usize)>,
    pub marks: Vec<(u64, u64)>,
}

impl<'a> Tx<'a> {
    pub fn begin(world: &'a World, writer: &'a mut LogWriter) -> Self {
        Self { world, writer, redo: Vec::new(), covered: Vec::new(), marks: Vec::new() }
    }

    /// Logs without a fence.
    pub fn log_undo(&mut self, addr: u64, len: usize) {
        let covered = &mut self.covered;
        // SAFETY: `at` checks the range.
        unsafe {
            let data = self.world.at(addr, len);
            self.writer
                .append_range(EntryKind::Undo, addr, len, data, &mut |a, l, _| covered.push((a, l)))
                .unwrap();
        }
    }

    /// Logs, fences, changes in place.
    pub fn change(&mut self, addr: u64, new: &[u8]) {
        self.log_undo(addr, new.len());
        self.writer.fence();
        self.world.write(addr, new);
    }

    pub fn set(&mut self, addr: u64, new: &[u8]) {
        // SAFETY: the data is readable.
        unsafe {
            self.writer
                .append_range(EntryKind::Redo, addr, new.len(), new.as_ptr(), &mut |_, _, _| {})
                .unwrap()
        };
        self.redo.push((addr, new.to_vec()));
    }

    /// A fresh allocation without a bitmap.
    pub fn fresh(&mut self, addr: u64, new: &[u8]) {
        // SAFETY: fresh entries have no data.
        unsafe {
            self.writer.append(EntryKind::Fresh, addr, new.len() as u32, core::ptr::null()).unwrap()
        };
        self.covered.push((addr, new.len()));
        self.world.write(addr, new);
    }

    /// An allocation: the block at `addr`, and bits that are set now and cleared on abort.
    pub fn allocate(&mut self, addr: u64, new: &[u8], word: u64, mask: u64) {
        let mark = AllocationMark { word, mask };
        // SAFETY: the mark is readable.
        unsafe {
            let data = (&raw const mark).cast();
            self.writer.append(EntryKind::Allocation, addr, new.len() as u32, data).unwrap();
        }
        let old = u64::from_le_bytes(self.world.read(word, 8).try_into().unwrap());
        self.world.write(word, &(old | mask).to_le_bytes());
        self.covered.push((addr, new.len()));
        self.world.write(addr, new);
    }

    /// Sets bits now, cleared on abort.
    pub fn set_bits(&mut self, addr: u64, mask: u64) {
        // SAFETY: the mask is readable.
        unsafe {
            self.writer
                .append(EntryKind::ClearBitsOnAbort, addr, 8, (&raw const mask).cast())
                .unwrap()
        };
        let word = u64::from_le_bytes(self.world.read(addr, 8).try_into().unwrap());
        self.world.write(addr, &(word | mask).to_le_bytes());
    }

    /// Clears bits on commit.
    pub fn clear_bits(&mut self, addr: u64, mask: u64) {
        // SAFETY: the mask is readable.
        unsafe {
            self.writer
                .append(EntryKind::ClearBitsOnCommit, addr, 8, (&raw const mask).cast())
                .unwrap()
        };
        self.marks.push((addr, mask));
    }

    pub fn volatile(&mut self, addr: u64, old: &[u8]) {
        // SAFETY: the data is readable.
        unsafe {
            self.writer.append(EntryKind::Volatile, addr, old.len() as u32, old.as_ptr()).unwrap()
        };
    }

    pub fn flush_contents(&self) {
        for &(addr, len) in &self.covered {
            // SAFETY: `at` checks the range.
            unsafe { self.world.persistence.flush(self.world.at(addr, len), len) };
        }
    }

    pub fn seal(&mut self) {
        let hash = self
            .covered
            .iter()
            .fold(ContentHash::EMPTY, |h, &(a, l)| h.with(&self.world.read(a, l)));
        self.writer.append_seal(hash.0).unwrap();
    }

    pub fn apply_redo(&self) {
        for (addr, new) in &self.redo {
            self.world.write(*addr, new);
            // SAFETY: `at` checks the range.
            unsafe { self.world.persistence.flush(self.world.at(*addr, new.len()), new.len()) };
        }
    }

    pub fn clear_marks(&self) {
        for &(addr, mask) in &self.marks {
            let word = u64::from_le_bytes(self.world.read(addr, 8).try_into().unwrap());
            self.world.write(addr, &(word & !mask).to_le_bytes());
        }
    }

    /// The order of steps of `cenote-tx`.
    pub fn commit(mut self, how: Commit) {
        let redo_class = !self.redo.is_empty() || !self.marks.is_empty();
        if how == Commit::Process {
            if redo_class {
                self.writer.mark_committed();
                self.apply_redo();
                self.clear_marks();
            }
            self.writer.finish();
            return;
        }
        let sealed = how != Commit::Marked || !self.redo.is_empty();
        self.flush_contents();
        if sealed {
            self.seal();
        }
        self.writer.fence();
        if redo_class {
            self.writer.mark_committed();
            self.apply_redo();
            if !self.redo.is_empty() {
                self.writer.fence();
            }
            self.clear_marks();
        }
        let lazy = how == Commit::Lazy && !self.writer.has_overflowed();
        self.writer.finish();
        if !lazy {
            self.writer.fence();
        }
    }
}

/// What a loss of power may leave: for every word that is not durable, each value since the last
/// durable one.
#[derive(Clone)]
pub struct PowerCut {
    /// What the processor sees.
    pub latest: Image,
    /// Words (by offset) with every value that may be on media.
    pub undecided: Vec<(usize, Vec<u64>)>,
}

impl PowerCut {
    /// An image with one value of each undecided word.
    pub fn image(&self, choose: &mut dyn FnMut(usize) -> usize) -> Image {
        let mut image = self.latest.clone();
        for (at, values) in &self.undecided {
            let value = values[choose(values.len()) % values.len()];
            image[*at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        image
    }

    /// Everything old, everything new, and `samples` in between; small ones completely.
    pub fn for_each_image(
        &self,
        random: &mut Random,
        samples: usize,
        visit: &mut dyn FnMut(&Image),
    ) {
        visit(&self.image(&mut |_| 0));
        visit(&self.latest);
        let combinations: usize =
            self.undecided.iter().fold(1, |n, (_, v)| n.saturating_mul(v.len()));
        if combinations <= samples {
            for number in 0..combinations {
                let mut rest = number;
                visit(&self.image(&mut |n| {
                    let choice = rest % n;
                    rest /= n;
                    choice
                }));
            }
        } else {
            for i in 0..samples {
                // Mostly-old and mostly-new images find other things than even ones.
                let bias = i % 4;
                visit(&self.image(&mut |n| match bias {
                    0 if random.below(8) != 0 => 0,
                    1 if random.below(8) != 0 => n - 1,
                    _ => random.below(n),
                }));
            }
        }
    }
}

/// Follows every flush, fence and stream, and notes what a crash just after it could leave.
pub struct Recorder {
    base: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    seen: Vec<u64>,
    /// Word number to its values, the durable one first.
    history: BTreeMap<usize, Vec<u64>>,
    /// Word number to how many of its values a fence makes durable.
    flushed: BTreeMap<usize, usize>,
    cuts: Vec<PowerCut>,
}

impl Recorder {
    fn new(base: usize) -> Self {
        let recorder = Self { base, state: Mutex::default() };
        recorder.state.lock().unwrap().seen = recorder.words();
        recorder
    }

    fn words(&self) -> Vec<u64> {
        let words = self.base as *const u64;
        // SAFETY: the world's memory, which outlives its recorder; one thread uses it.
        (0..SIZE / 8).map(|i| unsafe { words.add(i).read_volatile() }).collect()
    }

    /// Cuts so far, one for each event; takes them away.
    pub fn take_cuts(&self) -> Vec<PowerCut> {
        core::mem::take(&mut self.state.lock().unwrap().cuts)
    }

    /// How many cuts there are.
    pub fn events(&self) -> usize {
        self.state.lock().unwrap().cuts.len()
    }

    fn notice(&self, state: &mut State) {
        let now = self.words();
        for (i, (old, new)) in state.seen.iter().zip(&now).enumerate() {
            if old != new {
                state.history.entry(i).or_insert_with(|| vec![*old]).push(*new);
            }
        }
        state.seen = now;
    }

    fn cut(&self, state: &mut State) {
        let latest = state.seen.iter().flat_map(|w| w.to_le_bytes()).collect();
        let undecided = state.history.iter().map(|(i, v)| (i * 8, v.clone())).collect();
        state.cuts.push(PowerCut { latest, undecided });
    }

    fn offsets(&self, ptr: *const u8, len: usize, round: usize) -> Range<usize> {
        let start = ptr as usize;
        if start < self.base || start + len > self.base + SIZE {
            return 0..0;
        }
        (start - self.base) / round * round / 8
            ..(start - self.base + len).next_multiple_of(round).min(SIZE) / 8
    }
}

impl SimHook for Recorder {
    fn flush(&self, ptr: *const u8, len: usize) {
        let state = &mut *self.state.lock().unwrap();
        self.notice(state);
        for word in self.offsets(ptr, len, 64) {
            if let Some(values) = state.history.get(&word) {
                state.flushed.insert(word, values.len());
            }
        }
        self.cut(state);
    }

    fn fence(&self) {
        let state = &mut *self.state.lock().unwrap();
        self.notice(state);
        for (word, count) in core::mem::take(&mut state.flushed) {
            if let Some(values) = state.history.get_mut(&word) {
                values.drain(..count - 1);
                if values.len() == 1 {
                    state.history.remove(&word);
                }
            }
        }
        self.cut(state);
    }

    unsafe fn stream(&self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { dst.copy_from_nonoverlapping(src, len) };
        let state = &mut *self.state.lock().unwrap();
        self.notice(state);
        for word in self.offsets(dst, len, 8) {
            if let Some(values) = state.history.get(&word) {
                state.flushed.insert(word, values.len());
            }
        }
        self.cut(state);
    }
}

/// Whether nothing at all was applied: the data is as in the image.
pub fn untouched(world: &World, image: &[u8]) -> bool {
    world.data() == image[DATA_AT..]
}
