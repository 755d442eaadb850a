//! The list of blocks that are owned no more and wait to be freed ([`cenote_layout::frees`] draws
//! it), and the steps that free them.
//!
//! # Invariants
//!
//! 1. *One owner.* A block of an owned type is owned by one edge, or by one word of the list: by a
//!    head, or by an edge of a block that waits. Each step moves words and makes none.
//! 2. *No space.* A step allocates nothing: words go where others were. So a full pool can be
//!    emptied. The list itself is made before the first block that is owned.
//! 3. *Edge 0 leads to the next block.* What a waiting block owns by edge 0 is the rest of the
//!    list behind it.
//!
//! # States and steps
//!
//! Each step is part of a transaction. **The commit of that transaction commits the step**: a crash
//! leaves the list as it was before, or as it is after, and the next opener goes on there. P is the
//! block of the last head, `e` an edge of it behind edge 0.
//!
//! | P | step |
//! | --- | --- |
//! | `e` owns a block C that owns nothing | C is freed, `e` emptied |
//! | `e` owns a block C that owns more | C goes behind P: the words rotate, see below |
//! | edge 0 alone owns | P is freed; its edge 0 becomes the head |
//!
//! C goes behind P: `e` gets what C's edge 0 owns, that gets what P's edge 0 owns, and that C.
//!
//! Each block goes behind another one once and is freed once, so the steps end, in proportion to
//! the blocks, without a stack. In a list of single links each block is the head once.
//!
//! *Disowning* a block that owns others makes it a head. If all heads are in use, it goes before
//! the last one: the end of its chain of edges 0, which is looked for, gets that head.
//!
//! Pointers that a program kept lead to waiting blocks until these are freed. A transaction may
//! change their edges by such a pointer. That moves words by the same rules, so the invariants
//! hold; a block that it puts there is found, because all edges are looked at before P is freed.

use crate::error::{Error, Result};
use crate::names::{directory, find};
use crate::open_pool::PoolInner;
use crate::persist::{LayoutBuilder, Persist};
use crate::ptr::Ptr;
use crate::reader::Reader;
use crate::tx::Tx;
use crate::tx_roots::set_bytes;
use cenote_heap::{FreeError, Heap};
use cenote_layout::frees::{FREES_ROOT, FREES_TYPE, HEADS};
use cenote_layout::heap::RootEntry;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{PointerField, TypeRecord};
use cenote_medium::planted::{Bug, OwnedBug, planted};
use cenote_tx::TxError;
use core::mem::offset_of;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most steps of one transaction.
const STEPS_MAX: u64 = 64;
/// Most words that a step logs, and the block that it frees.
const STEP_ENTRIES: u64 = 5;
/// Steps for each block that a transaction allocates, frees or disowns.
const STEPS_EACH: u64 = 2;

/// A transaction has done its steps.
const STEPS_DONE: u64 = u64::MAX;

/// The list.
#[repr(C)]
struct Frees {
    len: u64,
    cursor: u64,
    heads: [u64; HEADS],
}

const _: () = assert!(size_of::<Frees>() == 4096);

// SAFETY: every field and pointer is described where it is, any bytes are a value, and the name
// belongs to this crate.
unsafe impl Persist for Frees {
    const TYPE_ID: TypeId = TypeId::of_name(FREES_TYPE);
    const OWNS: bool = true;

    fn type_name() -> String {
        FREES_TYPE.to_string()
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.field::<u64>("len", offset_of!(Self, len));
        layout.field::<u64>("cursor", offset_of!(Self, cursor));
        layout.field::<[u64; HEADS]>("heads", offset_of!(Self, heads));
        layout.untyped_owning_pointers(offset_of!(Self, heads), HEADS);
    }
}

/// Addresses of the words of a list.
#[derive(Clone, Copy)]
pub(crate) struct ListPlace(u64);

impl ListPlace {
    fn len_at(self) -> u64 {
        self.0 + offset_of!(Frees, len) as u64
    }

    fn cursor_at(self) -> u64 {
        self.0 + offset_of!(Frees, cursor) as u64
    }

    fn head_at(self, number: u64) -> u64 {
        self.0 + offset_of!(Frees, heads) as u64 + number * 8
    }
}

/// An edge of a block: its number, its place, and what stands there.
#[derive(Clone, Copy)]
pub(crate) struct EdgeWord {
    pub(crate) number: u64,
    pub(crate) at: u64,
    pub(crate) word: u64,
}

/// The owning edges of a block, by the pointer map of its type.
pub(crate) struct Edges<'p> {
    pool: &'p PoolInner,
    record: Arc<TypeRecord>,
    block: u64,
    values: u64,
    /// Edges of a value, whether they are there or not.
    per_value: u64,
}

fn owning(field: &&PointerField) -> bool {
    field.kind == PointerKind::OWNED
}

impl<'p> Edges<'p> {
    /// `None`: values of its type own nothing.
    ///
    /// # Errors
    /// No block begins there.
    pub(crate) fn of(pool: &'p PoolInner, addr: u64) -> Result<Option<Self>> {
        let block = pool.heap.find(addr).map_err(TxError::from)?;
        let Some(record) = record_of(pool, block.type_id)? else { return Ok(None) };
        if !record.owns() || record.check().is_err() {
            return Ok(None);
        }
        let values = match record.repeats {
            true => block.size / record.size.max(1),
            false => u64::from(block.size >= record.size),
        };
        let per_value = record.pointers.iter().filter(owning).map(|field| field.count).sum();
        Ok(Some(Self { pool, record, block: addr, values, per_value }))
    }

    /// As [`Edges::of`]; what is no block owns nothing.
    fn unless_gone(pool: &'p PoolInner, addr: u64) -> Result<Option<Self>> {
        match Self::of(pool, addr) {
            Err(error) if is_gone(&error) => Ok(None),
            edges => edges,
        }
    }

    /// The first edge that is there, from number `from` on, whose word is as wanted.
    ///
    /// # Errors
    /// A page cannot be had.
    pub(crate) fn find(&self, from: u64, wanted: impl Fn(u64) -> bool) -> Result<Option<EdgeWord>> {
        for value in from / self.per_value.max(1)..self.values {
            let base = self.block + value * self.record.size;
            let mut first = value * self.per_value;
            for field in self.record.pointers.iter().filter(owning) {
                let begin = from.saturating_sub(first);
                if begin < field.count && self.is_there(field, base)? {
                    for k in begin..field.count {
                        let at = base + field.offset + k * field.stride;
                        let word = load(self.pool, at)?;
                        if wanted(word) {
                            return Ok(Some(EdgeWord { number: first + k, at, word }));
                        }
                    }
                }
                first += field.count;
            }
        }
        Ok(None)
    }

    /// The first edges of the value that begins at an address, and whether others follow behind
    /// those of a value.
    pub(crate) fn number_at(&self, addr: u64) -> (u64, bool) {
        let value = match self.record.repeats {
            true => (addr - self.block) / self.record.size.max(1),
            false => 0,
        };
        (value * self.per_value, self.record.repeats)
    }

    /// Edge 0, whatever it owns.
    fn first(&self) -> Result<Option<EdgeWord>> {
        self.find(0, |_| true)
    }

    fn is_there(&self, field: &PointerField, value: u64) -> Result<bool> {
        for condition in &field.conditions {
            let (at, len) = (value + condition.offset, usize::from(condition.size));
            self.pool.readable(at, len)?;
            // SAFETY: a tag in a live value, which has no padding; it can be read, and no thread
            // changes it while the pool is held.
            let tag = unsafe {
                core::slice::from_raw_parts(with_exposed_provenance::<u8>(at as usize), len)
            };
            if !condition.is_tag(tag) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether it says that there is no block, or none that can be freed ever.
fn is_gone(error: &Error) -> bool {
    use FreeError::{
        Damaged, DamagedHeader, InsideBlock, NotABlock, NotAllocated, NotInHeap, OtherPool,
    };
    match error {
        Error::Tx(TxError::AlreadyFreed { .. }) => true,
        Error::Tx(TxError::Free(why)) => matches!(
            why,
            Damaged { .. }
                | DamagedHeader { .. }
                | InsideBlock { .. }
                | NotABlock { .. }
                | NotAllocated { .. }
                | NotInHeap { .. }
                | OtherPool { .. }
        ),
        _ => false,
    }
}

/// A type as the store knows it, also if another process has registered it since.
fn record_of(pool: &PoolInner, id: TypeId) -> Result<Option<Arc<TypeRecord>>> {
    let store = &pool.store.store;
    let known = store.type_record(id);
    if known.is_none() && store.is_connected() {
        store.learn_types()?;
        return Ok(store.type_record(id));
    }
    Ok(known)
}

/// The word of an edge, or of a list, in a live block of a pool that is held.
pub(crate) fn load(pool: &PoolInner, at: u64) -> Result<u64> {
    pool.readable(at, size_of::<u64>())?;
    // SAFETY: an aligned word of a live block, which has a value there; it can be read, and no
    // thread changes it while the pool is held.
    Ok(unsafe { with_exposed_provenance::<u64>(at as usize).read() })
}

/// What a transaction freed.
pub(crate) struct FreedSome {
    /// Blocks.
    pub(crate) freed: u64,
    /// Whether none waits.
    pub(crate) is_empty: bool,
}

/// What one step did.
enum StepDone {
    Freed,
    Moved,
    Empty,
}

impl<'p> Tx<'p> {
    /// Logs words of live blocks that this transaction holds, with one fence.
    pub(crate) fn log_words(&mut self, words: &[u64]) -> Result<()> {
        let ranges: Vec<_> = words.iter().map(|at| range_of(*at)).collect();
        // SAFETY: words of live blocks in pools of this transaction.
        Ok(unsafe { self.raw_mut().add_all(&ranges) }?)
    }

    /// Stores a word.
    ///
    /// # Safety
    /// It was logged, and an edge or a word of the list is there; nothing is borrowed from the
    /// transaction.
    pub(crate) unsafe fn store_word(&mut self, at: u64, word: u64) {
        // SAFETY: the caller's.
        unsafe { with_exposed_provenance_mut::<u64>(at as usize).write(word) };
    }

    /// A block loses its owner: it is freed, or waits for that. The caller empties the edge, which
    /// is logged.
    ///
    /// # Errors
    /// No block begins there; the log is full. Nothing has changed then.
    pub(crate) fn disown(&mut self, pool: &'p PoolInner, addr: u64) -> Result<()> {
        *self.disowned_mut() += 1;
        let edges = Edges::of(pool, addr)?;
        let owns = match &edges {
            Some(edges) => edges.find(0, |word| word != 0)?.is_some(),
            None => false,
        };
        if !owns {
            // SAFETY: a live block of a pool of this transaction, whose only owner is emptied.
            return unsafe { self.free_in(pool, addr) };
        }
        let list = self.make_frees(pool)?;
        let len = load(pool, list.len_at())?.min(HEADS as u64);
        if len < HEADS as u64 {
            let words = [list.head_at(len), list.len_at(), list.cursor_at()];
            self.log_words(&words)?;
            // SAFETY: logged just now.
            unsafe {
                self.store_word(words[0], addr);
                self.store_word(words[1], len + 1);
                self.store_word(words[2], 0);
            }
        } else {
            self.put_before(pool, list, addr)?;
        }
        pool.frees.due.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Puts a block before the last head, whose number is the highest.
    fn put_before(&mut self, pool: &'p PoolInner, list: ListPlace, addr: u64) -> Result<()> {
        let last = list.head_at(HEADS as u64 - 1);
        let before = load(pool, last)?;
        let mut at = addr;
        let end = loop {
            let edge = match Edges::of(pool, at)? {
                Some(edges) => edges.first()?,
                None => None,
            };
            let Some(edge) = edge else {
                return Err(dangling(at));
            };
            // A block that cannot be the next one is freed here.
            let next = match edge.word {
                0 => None,
                word => Edges::of(pool, word)?,
            };
            let goes_on = match &next {
                Some(next) => next.first()?.is_some(),
                None => false,
            };
            if !goes_on {
                break edge;
            }
            at = edge.word;
        };
        self.log_words(&[end.at, last, list.cursor_at()])?;
        if end.word != 0 {
            // SAFETY: a live block, whose only owner is the edge that is stored to below.
            unsafe { self.free_in(pool, end.word)? };
        }
        // SAFETY: logged just now.
        unsafe {
            self.store_word(end.at, before);
            self.store_word(last, addr);
            self.store_word(list.cursor_at(), 0);
        }
        Ok(())
    }

    /// The list of a pool, if there is one.
    fn frees(&self, pool: &PoolInner) -> Result<Option<ListPlace>> {
        let at = pool.frees.at.load(Ordering::Relaxed);
        if at != 0 && pool.is_live::<Frees>(at) {
            return Ok(Some(ListPlace(at)));
        }
        let Some(directory) = directory(pool)? else { return Ok(None) };
        let Some(found) = find(self, directory, FREES_ROOT.as_bytes())? else { return Ok(None) };
        let target: RootEntry = self.get(found.entry)?.target.into();
        pool.know::<Frees>()?;
        if target.type_id != Frees::TYPE_ID || !pool.is_live::<Frees>(target.addr) {
            return Err(dangling(target.addr));
        }
        pool.frees.at.store(target.addr, Ordering::Relaxed);
        Ok(Some(ListPlace(target.addr)))
    }

    /// The list of a pool, which is made if there is none.
    ///
    /// # Errors
    /// The pool or the log is full.
    #[cold]
    fn make_frees_cold(&mut self, pool: &'p PoolInner) -> Result<ListPlace> {
        let value = Frees { len: 0, cursor: 0, heads: [0; HEADS] };
        let fresh: Ptr<Frees> = self.alloc_covered(pool, value)?;
        let entry = RootEntry { addr: fresh.addr(), type_id: Frees::TYPE_ID };
        if let Err(error) = set_bytes(self, pool, FREES_ROOT.as_bytes(), entry) {
            return Err(self.give_back(fresh, error));
        }
        Ok(ListPlace(fresh.addr()))
    }

    /// See [`Tx::make_frees_cold`].
    pub(crate) fn make_frees(&mut self, pool: &'p PoolInner) -> Result<ListPlace> {
        match self.frees(pool)? {
            Some(list) => Ok(list),
            None => self.make_frees_cold(pool),
        }
    }

    /// Does steps, as many as one transaction may.
    pub(crate) fn free_some(&mut self) -> Result<FreedSome> {
        *self.disowned_mut() = STEPS_DONE;
        let room = self.raw_mut().log_room() / STEP_ENTRIES;
        self.run_steps(self.first_pool(), STEPS_MAX.min(room).max(1))
    }

    /// Does steps in proportion to what the transaction allocated, freed and disowned. A step that
    /// fails changes nothing, and ends them: the transaction commits without it.
    #[cold]
    #[inline(never)]
    pub(crate) fn free_in_proportion(&mut self) {
        let disowned = core::mem::replace(self.disowned_mut(), STEPS_DONE);
        if disowned == STEPS_DONE || planted(Bug::Owned(OwnedBug::NotInProportion)) {
            return;
        }
        let done = self.raw_mut().allocated() as u64 + self.raw_mut().freed() as u64 + disowned;
        // They take no room that the commit needs, and no further segment.
        let room = (self.raw_mut().log_room() / STEP_ENTRIES).saturating_sub(1);
        let covered = self.covered();
        for pool in covered.all() {
            let steps = done.saturating_mul(STEPS_EACH).min(STEPS_MAX).min(room);
            if steps != 0 && pool.frees.is_due() {
                // The next one tries again.
                let _ = self.run_steps(pool, steps);
            }
        }
    }

    fn run_steps(&mut self, pool: &'p PoolInner, steps: u64) -> Result<FreedSome> {
        let mut freed = 0;
        let Some(list) = self.frees(pool)? else {
            pool.frees.due.store(false, Ordering::Relaxed);
            return Ok(FreedSome { freed, is_empty: true });
        };
        // Before the first step: what this transaction empties is full again if it aborts.
        if load(pool, list.len_at())? == 0 && pool.handle.member().is_none() {
            pool.frees.due.store(false, Ordering::Relaxed);
        }
        for _ in 0..steps {
            match self.step(pool, list)? {
                StepDone::Freed => freed += 1,
                StepDone::Moved => {}
                StepDone::Empty => return Ok(FreedSome { freed, is_empty: true }),
            }
        }
        Ok(FreedSome { freed, is_empty: false })
    }

    /// One step: see the front page. All that can fail comes before the first store.
    fn step(&mut self, pool: &'p PoolInner, list: ListPlace) -> Result<StepDone> {
        let len = load(pool, list.len_at())?.min(HEADS as u64);
        let Some(last) = len.checked_sub(1) else { return Ok(StepDone::Empty) };
        let head = load(pool, list.head_at(last))?;
        // One that is no block any more was freed by a program that had a right to it, or by
        // none: there is nothing to be freed.
        let edges = Edges::unless_gone(pool, head)?;
        let zero = match &edges {
            Some(edges) => edges.first()?,
            None => None,
        };
        let (Some(edges), Some(zero)) = (edges, zero) else {
            return self.free_head(pool, list, (last, head), 0);
        };
        let cursor = load(pool, list.cursor_at())?.max(zero.number + 1);
        let behind = edges.find(cursor, |word| word != 0)?;
        let behind = match behind {
            // The cursor is a hint.
            None if !planted(Bug::Owned(OwnedBug::CursorBelieved)) => {
                edges.find(zero.number + 1, |word| word != 0)?
            }
            found => found,
        };
        match behind {
            Some(edge) => self.free_child(pool, list, zero, edge),
            None => self.free_head(pool, list, (last, head), zero.word),
        }
    }

    /// What `edge` of the last head's block owns is freed, or goes behind that block.
    fn free_child(
        &mut self,
        pool: &'p PoolInner,
        list: ListPlace,
        zero: EdgeWord,
        edge: EdgeWord,
    ) -> Result<StepDone> {
        let child = edge.word;
        let its_zero = match Edges::unless_gone(pool, child)? {
            Some(edges) if edges.find(0, |word| word != 0)?.is_some() => edges.first()?,
            _ => None,
        };
        let cursor = list.cursor_at();
        let Some(its_zero) = its_zero else {
            self.log_and_free(pool, &[edge.at, cursor], child)?;
            // SAFETY: logged just now.
            unsafe {
                self.store_word(edge.at, 0);
                self.store_word(cursor, edge.number + 1);
            }
            return Ok(StepDone::Freed);
        };
        self.log_words(&[edge.at, its_zero.at, zero.at, cursor])?;
        // SAFETY: logged just now.
        unsafe {
            self.store_word(edge.at, its_zero.word);
            if !planted(Bug::Owned(OwnedBug::RestForgotten)) {
                self.store_word(its_zero.at, zero.word);
            }
            self.store_word(zero.at, child);
            self.store_word(cursor, edge.number);
        }
        Ok(StepDone::Moved)
    }

    /// The last head's block is freed; `next` comes in its place.
    fn free_head(
        &mut self,
        pool: &'p PoolInner,
        list: ListPlace,
        (last, head): (u64, u64),
        next: u64,
    ) -> Result<StepDone> {
        let (head_at, len_at) = (list.head_at(last), list.len_at());
        let words = [head_at, list.cursor_at(), len_at];
        // A length that stays need not be logged.
        self.log_and_free(pool, &words[..if next == 0 { 3 } else { 2 }], head)?;
        // SAFETY: logged just now.
        unsafe {
            self.store_word(head_at, next);
            self.store_word(list.cursor_at(), 0);
            if next == 0 {
                self.store_word(len_at, last);
            }
        }
        Ok(StepDone::Freed)
    }

    /// Logs words and frees a block that one of them leads to, with one fence. One that is no block
    /// is left alone.
    fn log_and_free(&mut self, pool: &'p PoolInner, words: &[u64], addr: u64) -> Result<()> {
        if planted(Bug::Owned(OwnedBug::StepNotLogged)) {
            // SAFETY: as below.
            return unsafe { self.free_in(pool, addr) };
        }
        let ranges: Vec<_> = words.iter().map(|at| range_of(*at)).collect();
        // SAFETY: words of live blocks of this transaction's pools. The block is live, or an error
        // says that it is not; nothing leads to it but the word that is stored to next.
        match unsafe { self.free_logged_in(pool, addr, &ranges) } {
            Err(error) if is_gone(&error) => Ok(()),
            done => done,
        }
    }
}

fn range_of(at: u64) -> (*const u8, usize) {
    (with_exposed_provenance(at as usize), size_of::<u64>())
}

#[cold]
fn dangling(addr: u64) -> Error {
    crate::error::dangling(addr, Frees::type_name)
}
