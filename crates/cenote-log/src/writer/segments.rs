//! How a log goes on in further segments.

use super::{EntryHead, LogWriter};
use crate::body::Body;
use crate::log_error::LogError;
use crate::scan::check_segment;
use cenote_layout::log::{ENTRIES_OFFSET, EntryKind, TailWord, entry_size};
use cenote_medium::planted::{Bug, planted};
use core::sync::atomic::Ordering;

impl LogWriter {
    /// Goes on in the next segment, which gets room for at least `total` bytes.
    #[cold]
    pub(super) fn next_segment(&mut self, total: usize) -> Result<(), LogError> {
        let number = self.segment + 1;
        if self.further.len() < number as usize {
            let segment = self.take_segment(number)?;
            self.further.push(segment);
        }
        let (addr, body) = self.further[self.segment as usize];
        let area = (body.capacity() - entry_size(0)) as usize;
        if total > area {
            return Err(LogError::Grow(
                format!("an entry of {total} bytes does not fit into a segment of {area} bytes")
                    .into(),
            ));
        }
        let jump = EntryHead { kind: EntryKind::Jump, addr, size: 0 };
        // SAFETY: room is kept free at the end of every segment for the jump.
        unsafe { self.put(jump, core::ptr::null(), 0, entry_size(0) as usize) };
        if self.is_lost() {
            return Err(self.take_back(entry_size(0) as usize));
        }
        // The overflow word is true only of a durable jump. It becomes durable with what follows.
        if !planted(Bug::OverflowEarly) {
            self.fence();
        }
        // SAFETY: the head is mapped as long as the writer lives; the body was checked.
        unsafe {
            let word = TailWord { base: self.base(), entries: number }.to_word();
            self.head.stored().overflow().store(word, Ordering::Release);
            self.persistence.flush(core::ptr::from_ref(self.head.overflow()).cast(), 8);
            self.cursor = body.ptr.add(ENTRIES_OFFSET as usize);
            self.end = self.cursor.add(area);
            self.distance = body.distance;
        }
        self.segment = number;
        Ok(())
    }

    /// A segment from the source, if recovery would accept it.
    fn take_segment(&mut self, number: u32) -> Result<(u64, Body), LogError> {
        let (addr, body) = self.source.segment(number).map_err(LogError::Grow)?;
        // SAFETY: bodies that the source gives are mapped, and the writer alone writes to them
        // (contract of `attach`).
        let bytes = unsafe { body.bytes() };
        let capacity =
            check_segment(bytes, body.capacity(), &self.header, number).map_err(|why| {
                LogError::Grow(format!("segment {number} at {addr:#x}: {why}").into())
            })?;
        Ok((addr, Body { len: ENTRIES_OFFSET + capacity, ..body }))
    }
}
