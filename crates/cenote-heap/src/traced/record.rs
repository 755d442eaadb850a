//! Copies blocks as they are before a change: the barrier of [`super::reclaim`].
//!
//! Invariant: from the moment at which recording begins until it ends, no byte of a block of the
//! snapshot is changed or given to another owner before a copy of it is in `old`, or has been taken
//! out by the tracer. A block's snapshot is copied once, at the first change, whole (a large block:
//! the superblock that is changed, and 8 bytes to either side, because a packed pointer may lie
//! across the border). So the tracer may read a block at any time: either no thread has changed it,
//! or the copy says what stood there, and what the tracer reads beside that is more, never less.
//!
//! | the change is in | copied |
//! | --- | --- |
//! | a block of the snapshot | once, as above |
//! | a puddle that is not adopted yet | the range, each time, and a word to either side |
//! | a block or a puddle that is newer than the snapshot | nothing |
//! | a root | nothing: roots were copied when recording began |
//!
//! Order: the copy comes before the change, in the thread that changes. Everything here is under
//! the recorder's lock; it is taken after every other lock of heap and store, and nothing is waited
//! for while it is held.

use super::adopt::{Holds, contents};
use super::claims::{Claim, classify};
use super::superblock::PuddleHeap;
use super::trace::{Content, Marking, Old, TraceRoot, content_of};
use crate::backing::Extent;
use crate::class::{blocks_per_superblock, class_size};
use crate::copied::load;
use crate::trace::Types;
use cenote_layout::heap::SUPERBLOCK_SIZE;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, planted};
use cenote_protect::Attention;
use cenote_sys::bytes::load_word;
use cenote_sys::fork_guard;
use cenote_sys::process_lock::ProcessLock;
use core::ops::Range;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Bytes of copies that the tracer has not looked at yet. More, and the reclaim gives up.
const OLD_BYTES_MAX: u64 = 256 << 20;

/// Recorders of this process.
static RECORDING: AtomicUsize = AtomicUsize::new(0);
static RECORDERS: ProcessLock<Vec<(Arc<Recorder>, Attention)>> = ProcessLock::new(Vec::new());

/// What a heap keeps of a reclaim.
#[derive(Debug, Default)]
pub(crate) struct ReclaimSlot {
    pub(super) recorder: RwLock<Option<Arc<Recorder>>>,
    pub(super) progress: Mutex<Option<ReclaimPhase>>,
}

impl ReclaimSlot {
    pub(super) fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How far a reclaim has come; there is none before [`crate::Reclaim::prepare_reclaim`] is done.
pub(super) struct ReclaimPhase {
    pub(super) marking: Marking,
    pub(super) rooted: bool,
    /// Leaks are condemned, and so many of them are not given back yet: candidates are those.
    pub(super) condemned: Option<u64>,
    /// Where giving back goes on: address of a puddle, its superblock, word of that.
    pub(super) at: (u64, usize, usize),
}

impl core::fmt::Debug for ReclaimPhase {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReclaimPhase").field("at", &self.at).finish_non_exhaustive()
    }
}

/// Whether a reclaim is under way in this process: then [`before_change`] has to be called before a
/// range of a pool is changed. One relaxed load.
#[inline(always)]
#[must_use]
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed) != 0
}

/// A range of a pool is about to be changed in place. Transactions call it themselves; code that
/// changes data of a pool by other means while [`is_recording`] calls it first. Ranges of pools
/// that no reclaim looks at, and of blocks that are younger than it, cost a look-up.
///
/// # Safety
/// The range is readable, and no thread writes to it during the call.
#[cold]
#[inline(never)]
pub unsafe fn before_change(addr: u64, len: u64) {
    let process = fork_guard::current();
    let is_own =
        |recorder: &&Arc<Recorder>| recorder.process == process || planted(Bug::RecorderInherited);
    for recorder in RECORDERS.lock().iter().map(|(recorder, _)| recorder).filter(is_own) {
        // SAFETY: the caller of this function keeps the range readable and unwritten meanwhile.
        unsafe { recorder.change(addr, addr.saturating_add(len)) };
    }
}

/// The blocks of a puddle that were allocated when it was adopted.
pub(super) struct Snapshot {
    base: u64,
    pub(super) ordinal: usize,
    pub(super) claims: Vec<Claim>,
    /// Where in `allocated` and `copied` the words of each superblock begin; one more at the end.
    first: Vec<u32>,
    /// Bit for each block: candidates, until they are freed.
    allocated: Vec<u64>,
    /// Bit for each block, and each superblock of a large one, that is copied.
    copied: Vec<u64>,
}

impl Snapshot {
    /// No thread uses the puddle meanwhile, or allocates and frees in it.
    fn of(puddle: &PuddleHeap) -> Result<Self, (u64, &'static str)> {
        let claims = classify(puddle);
        let holds = contents(puddle);
        let (mut first, mut allocated) = (Vec::with_capacity(claims.len() + 1), Vec::new());
        for (number, (claim, holds)) in claims.iter().zip(&holds).enumerate() {
            first.push(allocated.len() as u32);
            let number = number as u32;
            match (*claim, *holds) {
                (_, Holds::Damaged(reason)) => return Err((puddle.address(number), reason)),
                (Claim::Small { class, .. }, Holds::Small { .. } | Holds::Quarantined { .. }) => {
                    let all = puddle.class_marks(number, class);
                    let words = blocks_per_superblock(class).div_ceil(64) as usize;
                    allocated.extend((0..words).map(|word| puddle.allocated_bits(all, word)));
                }
                (Claim::Large { .. }, Holds::Large { .. }) => allocated.push(1),
                (Claim::Tail { .. }, Holds::Tail) => allocated.push(0),
                _ => {}
            }
        }
        first.push(allocated.len() as u32);
        let copied = vec![0; allocated.len()];
        Ok(Self { base: puddle.base, ordinal: puddle.ordinal, claims, first, allocated, copied })
    }

    fn address(&self, number: usize) -> u64 {
        self.base + number as u64 * SUPERBLOCK_SIZE
    }

    /// Words of bits of a superblock: none if it held no block.
    pub(super) fn words(&self, number: usize) -> core::ops::Range<usize> {
        self.first[number] as usize..self.first[number + 1] as usize
    }

    pub(super) fn allocated(&self, word: usize) -> u64 {
        self.allocated[word]
    }

    /// The candidates of a word are these.
    pub(super) fn set(&mut self, word: usize, bits: u64) {
        self.allocated[word] = bits;
    }

    pub(super) fn forget(&mut self, word: usize, bits: u64) {
        self.allocated[word] &= !bits;
    }

    /// Claims the copy of block `index` of a superblock: false if it is not of the snapshot, or
    /// copied.
    fn claim(&mut self, number: usize, index: usize) -> bool {
        let words = self.words(number);
        let (word, bit) = (words.start + index / 64, 1 << (index % 64));
        if word >= words.end || self.allocated[word] & bit == 0 || self.copied[word] & bit != 0 {
            return false;
        }
        self.copied[word] |= bit;
        true
    }

    /// Ranges to be copied before `[start, end)`, which lies in the puddle, is changed.
    fn change(&mut self, start: u64, end: u64, kinds: &Kinds, out: &mut Vec<(u64, u64)>) {
        let number = |addr: u64| ((addr - self.base) / SUPERBLOCK_SIZE) as usize;
        for number in number(start)..=number(end - 1) {
            let at = self.address(number);
            let (from, to) = (start.max(at), end.min(at + SUPERBLOCK_SIZE));
            match self.claims.get(number).copied() {
                Some(Claim::Small { class, type_id }) if kinds.of(type_id) != Content::Nothing => {
                    let size = class_size(class);
                    for index in (from - at) / size..=(to - 1 - at) / size {
                        if self.claim(number, index as usize) {
                            out.push((at + index * size, at + (index + 1) * size));
                        }
                    }
                }
                Some(Claim::Large { .. }) => self.change_large(number, number, kinds, out),
                Some(Claim::Tail { distance, .. }) => {
                    self.change_large(number, number - distance as usize, kinds, out);
                }
                _ => {}
            }
        }
    }

    /// Superblock `number` of the large block that begins at superblock `head` is about to be
    /// changed.
    fn change_large(
        &mut self,
        number: usize,
        head: usize,
        kinds: &Kinds,
        out: &mut Vec<(u64, u64)>,
    ) {
        let Some(Claim::Large { bytes, type_id, .. }) = self.claims.get(head).copied() else {
            return;
        };
        let (first, word) = (self.words(head), self.words(number));
        if first.is_empty() || word.is_empty() || self.allocated[first.start] & 1 == 0 {
            return;
        }
        let (start, end) = (self.address(head), self.address(head) + bytes);
        match kinds.of(type_id) {
            Content::Nothing => {}
            Content::Whole => {
                if self.copied[first.start] & 1 == 0 {
                    self.copied[first.start] |= 1;
                    out.push((start, end));
                }
            }
            Content::Parts => {
                if self.copied[word.start] & 1 == 0 {
                    self.copied[word.start] |= 1;
                    let at = self.address(number);
                    out.push((start.max(at - 8), end.min(at + SUPERBLOCK_SIZE + 8)));
                }
            }
        }
    }

    /// The block that begins at `addr` is freed: no candidate any more.
    fn freed(&mut self, addr: u64, kinds: &Kinds, out: &mut Vec<(u64, u64)>) {
        let number = ((addr - self.base) / SUPERBLOCK_SIZE) as usize;
        let (index, size) = match self.claims.get(number).copied() {
            Some(Claim::Small { class, .. }) => {
                ((addr - self.address(number)) / class_size(class), class_size(class))
            }
            Some(Claim::Large { bytes, .. }) => (0, bytes),
            _ => return,
        };
        let end = addr + size;
        self.change(addr, end.min(self.address(self.claims.len())), kinds, out);
        let word = self.words(number).start + index as usize / 64;
        if self.words(number).contains(&word) {
            self.forget(word, 1 << (index % 64));
        }
    }
}

/// How blocks of each type are copied.
#[derive(Default)]
struct Kinds(HashMap<TypeId, Content>);

impl Kinds {
    fn of(&self, type_id: TypeId) -> Content {
        self.0.get(&type_id).copied().unwrap_or(Content::Parts)
    }
}

/// A puddle that was there when recording began, or has come since.
pub(super) struct KnownPuddle {
    size: u64,
    /// Once it is adopted.
    pub(super) snapshot: Option<Snapshot>,
}

pub(super) struct RecordingState {
    /// By address.
    pub(super) puddles: BTreeMap<u64, KnownPuddle>,
    kinds: Kinds,
    old: VecDeque<Old>,
    old_bytes: u64,
    /// Copies that were ever made.
    pub(super) made: u64,
    /// More copies than there is room for were made: they are gone.
    pub(super) overrun: bool,
    /// Where the heap is damaged, and how.
    pub(super) damage: Option<(u64, &'static str)>,
}

/// Records the changes of one heap.
pub(crate) struct Recorder {
    /// The token of the process that reclaims. A forked child inherits the recorder, perhaps with
    /// its lock held by a thread that the child does not have: the child does not look at it.
    process: u64,
    pub(super) types: Arc<dyn Types + Send + Sync>,
    /// As they were at the beginning.
    pub(super) roots: Vec<TraceRoot>,
    state: Mutex<RecordingState>,
}

impl core::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    pub(super) fn new(
        types: Arc<dyn Types + Send + Sync>,
        roots: Vec<TraceRoot>,
        extents: &[Extent],
    ) -> Self {
        let known =
            |extent: &Extent| (extent.addr, KnownPuddle { size: extent.size, snapshot: None });
        let state = RecordingState {
            puddles: extents.iter().map(known).collect(),
            kinds: Kinds::default(),
            old: VecDeque::new(),
            old_bytes: 0,
            made: 0,
            overrun: false,
            damage: None,
        };
        Self { process: fork_guard::token(), types, roots, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RecordingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on changes are recorded.
    pub(super) fn start(self: &Arc<Self>) {
        RECORDERS.lock().push((Arc::clone(self), Attention::begin()));
        RECORDING.fetch_add(1, Ordering::SeqCst);
        // A process that begins to use a pool after the caller has seen that none did sees that
        // changes are recorded.
        fence(Ordering::SeqCst);
    }

    pub(super) fn stop(self: &Arc<Self>) {
        let mut recorders = RECORDERS.lock();
        if let Some(at) = recorders.iter().position(|(other, _)| Arc::ptr_eq(other, self)) {
            drop(recorders.swap_remove(at));
            RECORDING.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A puddle was adopted, or is adopted already; no thread has allocated or freed in it since
    /// recording began.
    pub(super) fn adopted(&self, puddle: &PuddleHeap) {
        let snapshot = Snapshot::of(puddle);
        let mut state = self.lock();
        match snapshot {
            Ok(snapshot) => {
                for claim in &snapshot.claims {
                    if let Claim::Small { type_id, .. } | Claim::Large { type_id, .. } = *claim {
                        let kind = || content_of(&*self.types, type_id);
                        state.kinds.0.entry(type_id).or_insert_with(kind);
                    }
                }
                let size = snapshot.claims.len() as u64 * SUPERBLOCK_SIZE;
                let known = state
                    .puddles
                    .entry(puddle.base)
                    .or_insert(KnownPuddle { size, snapshot: None });
                known.snapshot.get_or_insert(snapshot);
            }
            Err(damage) => state.damage = Some(damage),
        }
    }

    /// # Safety
    /// The range is readable.
    unsafe fn change(&self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut state = self.lock();
        let RecordingState { puddles, kinds, .. } = &mut *state;
        let (mut ranges, mut unknown) = (Vec::new(), Vec::new());
        // Puddles that begin before the end of the range; the last one first.
        for (&base, known) in puddles.range_mut(..end).rev() {
            let (from, to) = (start.max(base), end.min(base + known.size));
            if from >= to {
                break;
            }
            match &mut known.snapshot {
                Some(snapshot) => snapshot.change(from, to, kinds, &mut ranges),
                None => unknown.push((from & !7, to.next_multiple_of(8), base..base + known.size)),
            }
        }
        // SAFETY: blocks and roots of puddles that are mapped, and words of the caller's range.
        unsafe {
            state.keep(&ranges);
            unknown.into_iter().for_each(|(from, to, puddle)| state.keep_range(from, to, puddle));
        }
    }

    /// The allocated block that begins at `addr` is about to be freed.
    pub(super) fn freed(&self, addr: u64) {
        let mut state = self.lock();
        let RecordingState { puddles, kinds, .. } = &mut *state;
        let mut ranges = Vec::new();
        if let Some((&base, known)) = puddles.range_mut(..=addr).next_back()
            && addr < base + known.size
            && let Some(snapshot) = &mut known.snapshot
        {
            snapshot.freed(addr, kinds, &mut ranges);
        }
        // SAFETY: blocks of puddles that are mapped.
        unsafe { state.keep(&ranges) };
    }

    /// A copy that the tracer has not looked at.
    pub(super) fn take(&self) -> Option<Old> {
        let mut state = self.lock();
        let old = state.old.pop_front()?;
        state.old_bytes -= old.bytes.len() as u64;
        Some(old)
    }

    /// Whether there are copies that the tracer has not seen; how many were made so far.
    pub(super) fn pending(&self) -> (bool, u64) {
        let state = self.lock();
        (!state.old.is_empty(), state.made)
    }
}

impl RecordingState {
    /// Whether there are copies that the tracer has not seen.
    pub(super) fn is_waiting(&self) -> bool {
        !self.old.is_empty()
    }

    /// # Safety
    /// The ranges are readable; they begin and end at multiples of 8.
    unsafe fn keep(&mut self, ranges: &[(u64, u64)]) {
        for &(from, to) in ranges {
            // SAFETY: the caller's.
            unsafe { self.keep_range(from, to, 0..0) };
        }
    }

    /// Copies a range, and the words around it that lie in `puddle`: of a pointer of two words,
    /// perhaps one alone is changed.
    ///
    /// # Safety
    /// The range is readable; it begins and ends at multiples of 8. The puddle is mapped.
    unsafe fn keep_range(&mut self, from: u64, to: u64, puddle: Range<u64>) {
        self.made += 1;
        if self.overrun {
            return;
        }
        let word = |addr: u64| {
            // SAFETY: an aligned word of a range that is readable, padding or not; what another
            // thread may write meanwhile is a word.
            unsafe { load_word(with_exposed_provenance(addr as usize)) }
        };
        let bytes: Box<[u8]> =
            (from..to).step_by(8).flat_map(|addr| word(addr).to_le_bytes()).collect();
        let around = [from.wrapping_sub(8), to]
            .map(|addr| if puddle.contains(&addr) { load(addr) } else { None });
        self.old_bytes += to - from;
        self.old.push_back(Old { addr: from, bytes, around });
        if self.old_bytes > OLD_BYTES_MAX {
            self.overrun = true;
            self.old = VecDeque::new();
            self.old_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_medium::planted::plant;
    use core::sync::atomic::AtomicBool;

    pub(super) fn recorder() -> Arc<Recorder> {
        Arc::new(Recorder::new(Arc::new(HashMap::new()), Vec::new(), &[]))
    }

    /// Runs `body` in a forked child. Whether it ends within three seconds, without a panic.
    fn ends_in_child(body: impl FnOnce()) -> bool {
        // SAFETY: the child allocates, which the C library keeps working, takes the locks that this
        // test is about, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a system call.
            unsafe { libc::alarm(3) };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            // SAFETY: leaves the child without anything of the test harness.
            unsafe { libc::_exit(i32::from(!ended)) }
        }
        let mut status = 0;
        // SAFETY: a system call with a pointer to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    /// What a child with a store of its own does: it changes something, and reclaims.
    fn change_and_reclaim() {
        // The child opened a store: its guard is armed.
        let _ = fork_guard::token();
        let word = 0u64;
        // SAFETY: a local.
        unsafe { before_change(core::ptr::from_ref(&word).expose_provenance() as u64, 8) };
        let own = recorder();
        own.start();
        own.stop();
    }

    #[test]
    fn a_child_waits_for_no_reclaim_that_begins_or_ends_or_records_in_its_parent() {
        assert_eq!(children_that_end(40), 40);
    }

    #[test]
    fn a_child_that_waits_for_a_recorder_of_its_parent_is_found() {
        plant(Bug::RecorderInherited);
        let ended = children_that_end(1);
        plant(Bug::None);
        assert_eq!(ended, 0);
    }

    /// Of so many forked children those that end, until one does not.
    fn children_that_end(forks: usize) -> usize {
        let stop = AtomicBool::new(false);
        let recording = recorder();
        recording.start();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let own = recorder();
                    own.start();
                    own.stop();
                }
            });
            // Another thread records when the process forks.
            let recorded = recording.lock();
            let ended = (0..forks).take_while(|_| ends_in_child(change_and_reclaim)).count();
            stop.store(true, Ordering::Relaxed);
            drop(recorded);
            recording.stop();
            ended
        })
    }
}
