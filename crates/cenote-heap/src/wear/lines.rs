//! Reads and writes the lines of a puddle that are headers. All stores of the heap into puddles,
//! but for those that make the heap and set roots, are here.

use crate::backing::Backing;
use crate::copied;
use cenote_layout::wear::{COMMIT_BITS, LineWords, WEAR_LINE, WearLine, WearRecord, place_of};
use cenote_medium::planted::{Bug, Step, WearBug, planted, reach};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU64, Ordering};

/// Words of a line.
const WORDS: usize = (WEAR_LINE / 8) as usize;

/// Where lines are read that no program changes meanwhile.
pub(crate) trait LineSource {
    /// The key of the heap, and the number of the puddle.
    fn key(&self) -> (u64, u32);

    /// The words of a line; `None`: they cannot be read.
    fn words(&self, line: u32) -> Option<LineWords>;

    /// What a line is. One that cannot be read is damaged.
    fn look(&self, line: u32) -> WearLine {
        let (key, puddle) = self.key();
        match self.words(line) {
            Some(words) => WearLine::read(key, place_of(puddle, line), &words),
            None => WearLine::Damaged { lines: None },
        }
    }

    /// What a line says, if it is whole.
    fn look_for(&self, line: u32) -> Option<WearRecord> {
        match self.look(line) {
            WearLine::Says { record, .. } => Some(record),
            _ => None,
        }
    }

    /// Whether nothing is in a line.
    fn is_empty(&self, line: u32) -> bool {
        self.words(line) == Some([0; WORDS])
    }
}

/// The lines of one puddle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PuddleLines {
    base: NonNull<[AtomicU64; WORDS]>,
    lines: u32,
    puddle: u32,
    key: u64,
}

// SAFETY: the puddle stays mapped as long as the heap lives (contract of `new`), and headers are
// accessed by atomics alone.
unsafe impl Send for PuddleLines {}
// SAFETY: as above.
unsafe impl Sync for PuddleLines {}

impl PuddleLines {
    /// The lines of the puddle with a number, at an address; `None` if that is no address.
    ///
    /// # Safety
    /// They are mapped as long as this is used, for writing if this writes. All accesses to lines
    /// that this is asked for are atomic meanwhile.
    pub(crate) unsafe fn new(addr: u64, lines: u32, puddle: u32, key: u64) -> Option<Self> {
        let base = NonNull::new(with_exposed_provenance_mut(addr as usize))?;
        Some(Self { base, lines, puddle, key })
    }

    fn line(&self, line: u32) -> Option<&[AtomicU64; WORDS]> {
        // SAFETY: the line is one of those that are mapped (contract of `new`).
        (line < self.lines).then(|| unsafe { self.base.add(line as usize).as_ref() })
    }

    fn place(&self, line: u32) -> u64 {
        place_of(self.puddle, line)
    }

    pub(crate) fn load(&self, line: u32) -> LineWords {
        let words = self.line(line);
        core::array::from_fn(|i| words.map_or(0, |words| words[i].load(Ordering::Acquire)))
    }

    /// What a line is.
    pub(crate) fn read(&self, line: u32) -> WearLine {
        WearLine::read(self.key, self.place(line), &self.load(line))
    }

    /// Whether a line can be read: its page may be lost.
    pub(crate) fn can_be_read(&self, line: u32) -> bool {
        self.words(line).is_some()
    }

    /// What a line says, if it is whole.
    pub(crate) fn says(&self, line: u32) -> Option<WearRecord> {
        match self.read(line) {
            WearLine::Says { record, .. } => Some(record),
            _ => None,
        }
    }

    fn store<G: Backing>(&self, line: u32, from: usize, words: &[u64], backing: &G) {
        let Some(to) = self.line(line) else { return };
        for (to, &word) in to.iter().skip(from).zip(words) {
            to.store(word, Ordering::Release);
            reach(Step::WearWordStored);
        }
        if planted(Bug::Wear(WearBug::HeaderNotFlushed)) {
            return;
        }
        // SAFETY: the line lies in mapped memory.
        unsafe { backing.flush(to.as_ptr().cast(), WEAR_LINE as usize) };
    }

    /// Flushes a line.
    pub(crate) fn flush<G: Backing>(&self, line: u32, backing: &G) {
        if let Some(at) = self.line(line) {
            // SAFETY: the line lies in mapped memory.
            unsafe { backing.flush(at.as_ptr().cast(), WEAR_LINE as usize) };
        }
    }

    /// Writes a line that says nothing yet, and flushes it.
    pub(crate) fn store_first<G: Backing>(&self, line: u32, record: &WearRecord, backing: &G) {
        self.store(line, 0, &WearLine::first(self.key, self.place(line), record), backing);
    }

    /// Makes a line zeros that a crash left half written, and flushes it.
    pub(crate) fn store_zeros<G: Backing>(&self, line: u32, backing: &G) {
        self.store(line, 0, &[0; WORDS], backing);
    }

    /// Changes what a line says, and flushes it. `false`: it is damaged, and nothing has changed.
    pub(crate) fn store_next<G: Backing>(
        &self,
        line: u32,
        record: &WearRecord,
        backing: &G,
    ) -> bool {
        let words = self.load(line);
        let Some((slot, new)) = WearLine::next(self.key, self.place(line), &words, record) else {
            return false;
        };
        if planted(Bug::Wear(WearBug::HeaderInPlace)) {
            let words = WearLine::first(self.key, self.place(line), record);
            self.store(line, 0, &words, backing);
            return true;
        }
        self.store(line, slot * 4, &new, backing);
        true
    }

    /// The word with the commit bits of the line's current slot; with `next`, of the slot that is
    /// written next.
    pub(crate) fn commit_word(&self, line: u32, next: bool) -> Option<NonNull<AtomicU64>> {
        let slot = match self.read(line) {
            WearLine::Says { slot, .. } => slot ^ usize::from(next),
            _ => return None,
        };
        self.line(line)?.get(WearLine::commit_word(slot)).map(NonNull::from)
    }

    /// The same of the slot that [`PuddleLines::store_first`] makes say something.
    pub(crate) fn first_commit_word(&self, line: u32) -> Option<NonNull<AtomicU64>> {
        self.line(line)?.get(WearLine::commit_word(1)).map(NonNull::from)
    }

    /// Gives an allocated block back by the commit bits of its header; durable on return.
    pub(crate) fn give_back<G: Backing>(&self, line: u32, backing: &G) {
        let Some(word) = self.commit_word(line, false) else { return };
        // SAFETY: a word of a header, which is accessed by atomics alone.
        unsafe { word.as_ref() }.fetch_and(!COMMIT_BITS, Ordering::AcqRel);
        if !planted(Bug::Wear(WearBug::ReturnNotFlushed)) {
            self.flush(line, backing);
        }
        backing.fence();
    }

    /// Makes a damaged line say that it is; durable on return.
    pub(crate) fn store_mended<G: Backing>(&self, line: u32, record: &WearRecord, backing: &G) {
        let words = self.load(line);
        for (slot, new) in WearLine::mended(self.key, self.place(line), &words, record) {
            self.store(line, slot * 4, &new, backing);
            backing.fence();
        }
    }
}

impl LineSource for PuddleLines {
    fn key(&self) -> (u64, u32) {
        (self.key, self.puddle)
    }

    fn words(&self, line: u32) -> Option<LineWords> {
        // One page has the whole line.
        copied::load(self.line(line)?.as_ptr().expose_provenance() as u64)?;
        Some(self.load(line))
    }
}
