//! A log of three segments, and memory around what its owner may write, so that a write anywhere
//! else is seen.

use cenote_layout::id::{PoolId, Uuid};
use cenote_log::{
    Body, CrashKind, LogDamage, LogError, LogSummary, LogWriter, Outcome, Refusal, ReplayTarget,
    SegmentSource, format_segment, inspect, replay,
};
use cenote_medium::Persistence;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

pub(crate) const OWNER: Uuid = Uuid([7; 16]);
pub(crate) const LOG_ID: u64 = 0x1234_5678_9abc_def0;
pub(crate) const SEGMENTS: usize = 3;
/// Bytes from one segment to the next; a segment is as long or shorter.
pub(crate) const SEGMENT_MAX: usize = 4096;
pub(crate) const DATA: usize = 512;
/// Puddles 1 and 2 are leased to the owner, 0 and 3 around them are not.
pub(crate) const PUDDLES: usize = 4;
pub(crate) const LEASED: core::ops::Range<usize> = 1..3;
pub(crate) const DATA_ADDR: u64 = 0x2000_0000_0000;
pub(crate) const SEGMENT_ADDR: u64 = 0x3000_0000_0000;
pub(crate) const SEGMENT_STEP: u64 = 0x1000_0000;
pub(crate) const DATA_AT: usize = SEGMENTS * SEGMENT_MAX;
const SIZE: usize = DATA_AT + PUDDLES * DATA;

pub(crate) struct World {
    memory: *mut u8,
    lens: [usize; SEGMENTS],
}

fn layout() -> Layout {
    // SAFETY: the alignment is a power of two, and the size far from overflowing.
    unsafe { Layout::from_size_align_unchecked(SIZE, 4096) }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory, layout()) }
    }
}

impl Clone for World {
    fn clone(&self) -> Self {
        let copy = Self::empty(self.lens);
        copy.bytes_mut().copy_from_slice(&self.image());
        copy
    }
}

impl World {
    fn empty(lens: [usize; SEGMENTS]) -> Self {
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout()) };
        if memory.is_null() {
            handle_alloc_error(layout());
        }
        Self { memory, lens }
    }

    /// Fresh segments of these lengths; data bytes that count up.
    pub(crate) fn new(lens: [usize; SEGMENTS]) -> Self {
        let world = Self::empty(lens);
        for (i, byte) in world.bytes_mut()[DATA_AT..].iter_mut().enumerate() {
            *byte = (i * 7 + i / 256) as u8;
        }
        for number in 0..SEGMENTS {
            // SAFETY: the world's own memory.
            unsafe {
                format_segment(
                    world.segment(number),
                    OWNER,
                    LOG_ID,
                    number as u32,
                    Persistence::PROCESS,
                )
            };
        }
        world
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        self.bytes_mut().to_vec()
    }

    /// All bytes. One thread uses a world, and never holds this while a writer or a replay works.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: the world's own memory, used by one thread; callers let go at once.
        unsafe { core::slice::from_raw_parts_mut(self.memory, SIZE) }
    }

    pub(crate) fn segment(&self, number: usize) -> Body {
        // SAFETY: inside the memory: there are `SEGMENTS`.
        let ptr = unsafe { self.memory.add(number.min(SEGMENTS - 1) * SEGMENT_MAX) };
        Body::new(ptr, self.lens[number.min(SEGMENTS - 1)] as u64)
    }

    /// Where an invented data address really is. The range is inside the puddles.
    pub(crate) fn at(&self, addr: u64, len: usize) -> *mut u8 {
        let offset = (addr - DATA_ADDR) as usize;
        assert!(offset + len <= PUDDLES * DATA, "a write outside of all puddles");
        // SAFETY: inside the memory.
        unsafe { self.memory.add(DATA_AT + offset) }
    }

    pub(crate) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        // SAFETY: `at` checks the range.
        unsafe { core::slice::from_raw_parts(self.at(addr, len), len) }.to_vec()
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        // SAFETY: `at` checks the range.
        unsafe { self.at(addr, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    pub(crate) fn attach(&self) -> Result<LogWriter, LogError> {
        let source = Segments((0..SEGMENTS).map(|n| self.segment(n)).collect());
        // SAFETY: the memory outlives the writer in all uses, and only the writer writes to the
        // log.
        unsafe { LogWriter::attach(self.segment(0), Persistence::PROCESS, Box::new(source)) }
    }

    pub(crate) fn replay(&self, crash: CrashKind) -> Outcome {
        // SAFETY: the world's own memory.
        unsafe { replay(self.segment(0), crash, &mut Guard(self)) }
    }

    pub(crate) fn inspect(&self, crash: CrashKind) -> Result<LogSummary, LogDamage> {
        // SAFETY: the world's own memory.
        unsafe {
            inspect(self.segment(0), crash, &mut |owner, addr| Guard(self).segment(owner, addr))
        }
    }
}

struct Segments(Vec<Body>);

impl SegmentSource for Segments {
    fn segment(
        &mut self,
        number: u32,
    ) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        let body = self.0.get(number as usize).ok_or("no further segment")?;
        Ok((SEGMENT_ADDR + u64::from(number) * SEGMENT_STEP, *body))
    }
}

/// What the store would be.
struct Guard<'w>(&'w World);

impl ReplayTarget for Guard<'_> {
    fn writable(&mut self, owner: Uuid, addr: u64, len: u64) -> Result<*mut u8, Refusal> {
        let end = addr.checked_add(len).ok_or(Refusal::Outside)?;
        if addr < DATA_ADDR || end > DATA_ADDR + (PUDDLES * DATA) as u64 {
            return Err(Refusal::Outside);
        }
        let puddle = (addr - DATA_ADDR) as usize / DATA;
        if end > DATA_ADDR + ((puddle + 1) * DATA) as u64 {
            return Err(Refusal::Outside);
        }
        if owner != OWNER || !LEASED.contains(&puddle) {
            return Err(Refusal::NotLeased(PoolId(puddle as u64)));
        }
        Ok(self.0.at(addr, len as usize))
    }

    fn segment(&mut self, owner: Uuid, addr: u64) -> Option<Body> {
        let offset = addr.checked_sub(SEGMENT_ADDR)?;
        let known =
            owner == OWNER && offset % SEGMENT_STEP == 0 && offset / SEGMENT_STEP < SEGMENTS as u64;
        known.then(|| self.0.segment((offset / SEGMENT_STEP) as usize))
    }

    fn persistence(&self) -> Persistence {
        Persistence::PROCESS
    }
}
