//! The undo log of a sub-heap (POS-6): makes a change, or takes back what a crash left of one.
//!
//! Change number `n` has its record in half `n % 2`. Steps, and what a crash after each leaves:
//!
//! 1. The record is stored: number, old contents of all cells, checksum. *Torn or whole, and no
//!    cell has changed: undoing changes nothing.*
//! 2. Flush, **fence**: the record is durable before the first cell changes.
//! 3. The cells are stored. *The record is whole and has no seal: undone.*
//! 4. **The seal is stored: this store truncates the log and commits the change.** Flush,
//!    **fence**. At level `process` stores are executed in order, so the store commits. At `power`
//!    words reach memory in any order: the seal is a hash over the new contents of all cells, and
//!    counts only if they are there. It is durable, with the cells, when the fence returns. *A seal
//!    that fits: made. One that does not: undone.*
//! 5. The word of the last step says the change's number, without a flush. *Made.*
//!
//! So a change takes two fences, and a step of a slab one ([`super::step`]). No other store marks
//! the log empty: a record whose seal fits is truncated. The next record goes into the other half.
//! So one half always holds a whole record: of the last change, or of the one before. The one
//! before is sealed, and no later change has touched its cells. If steps have touched them, its
//! seal is the one for stores in order.
//!
//! **Recovery** looks at the whole record with the highest number:
//!
//! | its seal | the other half | what recovery does |
//! | --- | --- | --- |
//! | fits | anything | flushes record and cells, fences |
//! | fits, if one bit of a cell is another | anything | stores that cell; the same |
//! | does not, and the word of the last step names this change | anything | refuses: damage |
//! | does not | the record before, whole; or zeros, if this is the first | undoes it |
//! | does not | neither | refuses: a damaged record |
//! | is damaged | anything | refuses: a damaged seal |
//!
//! *Damage and crash are told apart.* The word names a change only after its fence. So a named
//! change without a fitting seal is damage, not a crash. Undoing it would take back an acknowledged
//! change, and each later step in its cells. The word may be lost with power, as nothing flushes
//! it; then it names an earlier change, or none, and damage of the seal passes for a crash. A word
//! that names a change behind the last whole record shows that the record of that one is damaged.
//! Nothing needs it, and the number is used again: recovery clears it in the word first, durably.
//!
//! A seal that does not fit has three causes:
//!
//! * it is zero: the change has no seal yet;
//! * it is the change's own: power was lost before the cells were durable;
//! * it is that of the record before in its half: power was lost before the header was durable, so
//!   no cell has changed.
//!
//! Any other word is damage.
//!
//! A process may die between a store and its flush, and the next opener sees the store. So recovery
//! makes durable what it relies on: a change whose seal fits, and the record of one that it undoes.
//!
//! The other half may be torn only while a later record is written, and that begins after the seal
//! of this one is durable. Undoing stores the old contents, flushes, fences, and then stores the
//! seal for stores in order. A crash before that seal is durable leaves a record whose seal does
//! not fit: the next recovery undoes it again, to the same contents. Nothing is traced, and what
//! recovery reads does not grow with the heap.

use super::cells::{Metadata, Writer};
use super::change::Change;
use super::error::Damage;
use super::step;
use crate::backing::Backing;
use cenote_layout::LINE_SIZE;
use cenote_layout::logged::{
    CELL_SIZE, LastStep, RawCell, SlabRecord, UNDO_CELLS_MAX, UNDO_ENTRY_SIZE, UNDO_HALF_SIZE,
    UNDO_HEADER_SIZE, UNDO_OFFSET, is_seal, seal_in_order, seal_of_contents, undo_check,
};
use cenote_medium::planted::{Bug, LoggedBug, Step, planted, reach};
use zerocopy::IntoBytes;

/// Words of a record's header: check, sequence, count, seal, 4 that are 0.
const HEADER_WORDS: usize = (UNDO_HEADER_SIZE / 8) as usize;
const ENTRY_WORDS: usize = (UNDO_ENTRY_SIZE / 8) as usize;
const CHECK: usize = 0;
const SEQUENCE: usize = 1;
const COUNT: usize = 2;
const SEAL: usize = 3;

/// Where the record of a change begins.
const fn half_of(sequence: u64) -> u64 {
    UNDO_OFFSET + sequence % 2 * UNDO_HALF_SIZE
}

/// The undo log in use.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    /// Number of the last change.
    sequence: u64,
    /// Its cells, as long as its seal is a hash over them.
    sealed: Vec<u64>,
    /// What the word of the last step says.
    last_step: LastStep,
    /// A record in the making.
    record: Vec<u64>,
    /// New contents of cells, for a seal.
    contents: Vec<RawCell>,
}

impl Undo {
    /// Makes a change: all of it is there when this returns, durable at the medium's level.
    ///
    /// # Errors
    /// A page of the metadata was lost, before or meanwhile. The store may have gone nowhere, so
    /// the next step of the protocol is not made. A crash could leave the same. No change follows.
    pub(crate) fn commit<G: Backing>(
        &mut self,
        writer: &Writer<'_, G>,
        change: &Change,
    ) -> Result<(), Damage> {
        let cells = change.cells();
        match cells {
            [] => return Ok(()),
            [one] if SlabRecord::is_step(one.old, one.new) => {
                self.step(writer, one.cell, one.new);
                return Ok(());
            }
            _ => {}
        }
        writer.intact()?;
        self.sequence += 1;
        let sequence = self.sequence;
        let half = half_of(if planted(Bug::UndoHalvesNotSwapped) { 0 } else { sequence });
        self.record.clear();
        self.record.extend([0, sequence, cells.len() as u64, 0, 0, 0, 0, 0]);
        for planned in cells {
            self.record.push(planned.cell);
            self.record.extend(planned.old);
        }
        self.record[CHECK] = undo_check(self.record[SEQUENCE..].as_bytes());
        writer.store_all(half, &self.record);
        reach(Step::UndoRecorded);
        writer.flush(half, self.record.len() as u64 * 8);
        if !planted(Bug::UndoRecordNotFenced) {
            writer.fence();
        }
        writer.intact()?;
        let seal = if writer.is_power() {
            self.contents.clear();
            self.contents.extend(cells.iter().map(|planned| planned.new));
            seal_of_contents(sequence, &self.contents)
        } else {
            seal_in_order(sequence)
        };
        if planted(Bug::SealedEarly) {
            writer.store(half + SEAL as u64 * 8, seal);
        }
        for planned in cells {
            writer.store_cell(planned.cell, planned.new);
            reach(Step::CellStored);
        }
        if !planted(Bug::CellsNotFlushed) {
            for (i, planned) in cells.iter().enumerate() {
                let line = |cell: u64| cell * CELL_SIZE / LINE_SIZE;
                let later = &cells[i + 1..];
                if !later.iter().any(|other| line(other.cell) == line(planned.cell)) {
                    writer.flush_cell(planned.cell);
                }
            }
        }
        writer.intact()?;
        writer.store(half + SEAL as u64 * 8, seal);
        writer.flush(half, LINE_SIZE);
        if planted(Bug::Logged(LoggedBug::ChangeToldEarly)) {
            self.tell(writer, self.last_step.cell.into());
        }
        reach(Step::ChangeSealed);
        writer.fence();
        self.tell(writer, self.last_step.cell.into());
        self.sealed.clear();
        if writer.is_power() {
            self.sealed.extend(cells.iter().map(|planned| planned.cell));
        }
        Ok(())
    }

    /// Says in the word of the last step which cell that has, and that the last change is made,
    /// which is durable.
    #[inline]
    fn tell<G: Backing>(&mut self, writer: &Writer<'_, G>, cell: u64) {
        let step = LastStep::after(cell, self.sequence);
        if self.last_step != step {
            step::announce(writer, step);
            self.last_step = step;
        }
    }

    /// Makes a step of a slab, durable when this returns at the medium's level.
    #[inline]
    pub(crate) fn step<G: Backing>(&mut self, writer: &Writer<'_, G>, cell: u64, new: RawCell) {
        if !self.sealed.is_empty() && !planted(Bug::Logged(LoggedBug::StepOverSeal)) {
            self.close(writer, cell);
        }
        self.tell(writer, cell);
        step::make(writer, cell, new);
    }

    /// Replaces the seal of the last change, which is durable, by one that fits any later contents
    /// of its cells. It is durable with the step that follows, or before it, if that changes one of
    /// those cells.
    #[cold]
    fn close<G: Backing>(&mut self, writer: &Writer<'_, G>, next: u64) {
        let half = half_of(self.sequence);
        writer.store(half + SEAL as u64 * 8, seal_in_order(self.sequence));
        writer.flush(half, LINE_SIZE);
        reach(Step::ChangeSealed);
        // Both seals say "made", until a cell of that change is another.
        let is_covered = self.sealed.contains(&next);
        if is_covered && !planted(Bug::Logged(LoggedBug::ClosingNotFenced)) {
            writer.fence();
        }
        self.sealed.clear();
    }

    /// Whether a crash broke off a change that [`Undo::recover`] would take back.
    pub(crate) fn is_unfinished(meta: &Metadata) -> bool {
        let halves = [Half::read(meta, 0), Half::read(meta, 1)];
        let whole = halves.iter().filter_map(|half| match half {
            Half::Whole(record) => Some(record),
            Half::Zero | Half::Torn => None,
        });
        let last = whole.max_by_key(|record| record.sequence);
        let is_closed = |state| matches!(state, ChangeState::Made | ChangeState::Damaged { .. });
        last.is_some_and(|record| !is_closed(record.state(meta)))
    }

    /// The undo log after a crash, or after none. Says whether a change was undone.
    pub(crate) fn recover<G: Backing>(
        meta: &Metadata,
        writer: &Writer<'_, G>,
    ) -> Result<(Self, bool), Damage> {
        // The fence of what follows makes it durable.
        step::flush_last(meta, writer);
        let halves = [Half::read(meta, 0), Half::read(meta, 1)];
        let (last, other) = match &halves {
            [Half::Whole(a), Half::Whole(b)] if a.sequence > b.sequence => (a, &halves[1]),
            [_, Half::Whole(b)] => (b, &halves[0]),
            [Half::Whole(a), _] => (a, &halves[1]),
            // The first change of all was being recorded, in the second half.
            [Half::Zero, _] => {
                Self::forget_later(meta, writer, 0);
                return Ok((Self::default(), false));
            }
            [Half::Torn, _] => {
                return Err(Damage { offset: half_of(0), what: "no undo record is whole" });
            }
        };
        Self::forget_later(meta, writer, last.sequence);
        let last_step = step::last(meta);
        let mut undo = Self { sequence: last.sequence, last_step, ..Self::default() };
        match last.state(meta) {
            ChangeState::BrokenOff if !planted(Bug::ChangeNotUndone) => {}
            ChangeState::Damaged { what } => {
                let offset = half_of(last.sequence) + SEAL as u64 * 8;
                return Err(Damage { offset, what });
            }
            state => {
                if let ChangeState::OneBitOff { cell, new } = state {
                    writer.store_cell(cell, new);
                }
                last.settle(writer);
                if last.seal != seal_in_order(last.sequence) {
                    undo.sealed = last.cells.iter().map(|&(cell, _)| cell).collect();
                }
                return Ok((undo, false));
            }
        }
        let is_before = match other {
            Half::Whole(before) => before.sequence + 1 == last.sequence,
            Half::Zero => last.sequence == 1,
            Half::Torn => planted(Bug::UndoCheckIgnored),
        };
        if !is_before {
            let what = "the undo record beside that of an unfinished change does not fit";
            return Err(Damage { offset: half_of(last.sequence + 1), what });
        }
        last.undo(meta, writer)?;
        Ok((undo, true))
    }

    /// Clears the change in the word of the last step, if that has no record any more.
    fn forget_later<G: Backing>(meta: &Metadata, writer: &Writer<'_, G>, sequence: u64) {
        if step::last(meta).is_later_than(sequence) && writer.may_store() {
            step::forget_change(meta, writer);
        }
    }
}

/// What one half of the log holds.
#[derive(Debug)]
enum Half {
    Zero,
    Torn,
    Whole(Record),
}

/// What became of a change whose record is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeState {
    /// Its seal fits.
    Made,
    /// A crash came before its seal, or before its cells were durable.
    BrokenOff,
    /// Its seal fits if one bit of a cell is another: a loss of power kept the last word, or
    /// damage flipped the bit. Either way it may be made.
    OneBitOff {
        /// The cell.
        cell: u64,
        /// What it holds then.
        new: RawCell,
    },
    /// No program and no crash leaves this.
    Damaged {
        /// What is damaged.
        what: &'static str,
    },
}

/// A whole record.
#[derive(Debug)]
struct Record {
    sequence: u64,
    seal: u64,
    cells: Vec<(u64, RawCell)>,
}

impl Half {
    fn read(meta: &Metadata, half: u64) -> Self {
        let at = half_of(half);
        let mut words: Vec<u64> = (0..HEADER_WORDS as u64).map(|i| meta.word(at + i * 8)).collect();
        if words.iter().all(|&word| word == 0) {
            return Self::Zero;
        }
        let (sequence, count) = (words[SEQUENCE], words[COUNT]);
        if count > UNDO_CELLS_MAX as u64 || sequence % 2 != half {
            return Self::Torn;
        }
        let seal = std::mem::take(&mut words[SEAL]);
        let past = HEADER_WORDS as u64 + count * ENTRY_WORDS as u64;
        words.extend((HEADER_WORDS as u64..past).map(|i| meta.word(at + i * 8)));
        let is_whole = undo_check(words[SEQUENCE..].as_bytes()) == words[CHECK];
        if !is_whole && !planted(Bug::UndoCheckIgnored) {
            return Self::Torn;
        }
        let cells = words[HEADER_WORDS..]
            .chunks_exact(ENTRY_WORDS)
            .map(|entry| (entry[0], [entry[1], entry[2], entry[3], entry[4]]))
            .collect();
        Self::Whole(Record { sequence, seal, cells })
    }
}

impl Record {
    /// What became of the change.
    fn state(&self, meta: &Metadata) -> ChangeState {
        let is_told = step::last(meta).says_made(self.sequence)
            && !planted(Bug::Logged(LoggedBug::MadeChangeUndone));
        match self.state_by_seal(meta) {
            ChangeState::BrokenOff if is_told => {
                ChangeState::Damaged { what: "the last change was made, and its seal is another" }
            }
            state => state,
        }
    }

    fn state_by_seal(&self, meta: &Metadata) -> ChangeState {
        let (sequence, seal) = (self.sequence, self.seal);
        if seal == seal_in_order(sequence) || seal != 0 && planted(Bug::ChangeSealBelieved) {
            return ChangeState::Made;
        }
        if is_seal(sequence, seal) {
            let contents: Vec<RawCell> =
                self.cells.iter().map(|&(cell, _)| meta.cell(cell)).collect();
            return match seal == seal_of_contents(sequence, &contents) {
                true => ChangeState::Made,
                false => self.one_bit_off(contents).unwrap_or(ChangeState::BrokenOff),
            };
        }
        let is_of_before = sequence.checked_sub(2).is_some_and(|before| is_seal(before, seal));
        match seal == 0 || is_of_before || planted(Bug::Logged(LoggedBug::SealDamageUndone)) {
            true => ChangeState::BrokenOff,
            false => ChangeState::Damaged { what: "the seal of the last change" },
        }
    }

    /// Looks for the one bit of the cells with which the seal fits.
    #[cold]
    fn one_bit_off(&self, mut contents: Vec<RawCell>) -> Option<ChangeState> {
        if planted(Bug::Logged(LoggedBug::FlippedBitUndone)) {
            return None;
        }
        for (i, &(cell, _)) in self.cells.iter().enumerate() {
            for bit in 0..CELL_SIZE as usize * 8 {
                contents[i][bit / 64] ^= 1 << (bit % 64);
                if self.seal == seal_of_contents(self.sequence, &contents) {
                    return Some(ChangeState::OneBitOff { cell, new: contents[i] });
                }
                contents[i][bit / 64] ^= 1 << (bit % 64);
            }
        }
        None
    }

    /// Makes the change durable: the process that made it may have died before it did so, and
    /// another one relies on it from now on.
    fn settle<G: Backing>(&self, writer: &Writer<'_, G>) {
        if planted(Bug::SealNotSettled) {
            return;
        }
        self.flush(writer);
        self.cells.iter().for_each(|&(cell, _)| writer.flush_cell(cell));
        writer.fence();
    }

    /// Flushes the record.
    fn flush<G: Backing>(&self, writer: &Writer<'_, G>) {
        let len = UNDO_HEADER_SIZE + self.cells.len() as u64 * UNDO_ENTRY_SIZE;
        writer.flush(half_of(self.sequence), len);
    }

    /// Takes the change back.
    fn undo<G: Backing>(&self, meta: &Metadata, writer: &Writer<'_, G>) -> Result<(), Damage> {
        let half = half_of(self.sequence);
        let may_change = |cell| meta.geometry.is_changeable(cell) && meta.has(cell);
        if let Some((cell, _)) = self.cells.iter().find(|(cell, _)| !may_change(*cell)) {
            let what = "an undo entry names a cell that no change may have";
            return Err(Damage { offset: cell.saturating_mul(CELL_SIZE), what });
        }
        // The next change overwrites the other half, so this record is durable before that.
        self.flush(writer);
        for &(cell, old) in &self.cells {
            writer.store_cell(cell, old);
            writer.flush_cell(cell);
            reach(Step::CellUndone);
        }
        if !planted(Bug::UndoneNotFenced) {
            writer.fence();
        }
        writer.store(half + SEAL as u64 * 8, seal_in_order(self.sequence));
        writer.flush(half, LINE_SIZE);
        writer.fence();
        Ok(())
    }
}
