//! Protects pages that stay open after a psync against stores again, in a thread that no program
//! waits for.
//!
//! To protect a page costs microseconds, most of a psync of scattered pages: each is a mapping that
//! is split or joined, or a range of addresses whose translations are forgotten. So a psync leaves
//! the pages that it has committed *open*: they are writable, and no store into them is noted. A
//! thread closes them afterwards. Meanwhile the program may have stored into them. Therefore:
//!
//! 1. A page is closed: its note is taken (`Mprotect`), and it is protected. When that call
//!    returns, every later store is noted.
//! 2. **Then** it is compared with what was committed. If it is equal, no store has to be
//!    remembered: earlier stores are committed, and later stores are noted. If it is not equal, or
//!    cannot be compared, it is *in doubt*, and the next psync looks at it.
//!
//! Invariant: a page that differs from what was committed last is open, noted, in doubt, or waits
//! in the queue (then it is open). A psync empties the queue first, and then looks at all pages
//! that are open, noted or in doubt.
//!
//! *Nothing is committed meanwhile.* A psync of the object goes through [`WriteProtector::finish`]
//! before it looks at anything, which returns when no page is being closed. So a page is compared
//! with the contents that the psync committed that queued it. They are read from the file, with
//! committed lines that are not in the file yet laid over (`cenote-journal`, `apply.rs`).
//!
//! *Nothing here reads the shadow.* Safe code may hold a `&mut [u8]` of it while the thread works.
//! The kernel copies the pages of a closed range (`bytes::copy_by_kernel`), and the copy is
//! compared. A store during the copying faults, because the page is closed; the fault notes the
//! page before it opens it. So a copy that has some of that store may come to either result: the
//! next psync looks at the page in any case. A kernel that refuses to copy leaves the range in
//! doubt.
//!
//! *Hot pages* are not closed: a page that changed in three psyncs, one after the other, most
//! likely changes before the fourth, and closing it costs a fault. Every psync compares hot pages,
//! and closes those that have not changed.
//!
//! *A few ranges are closed at once*, by the psync itself, because waking a thread takes as long.
//! No thread stores during a psync, so that needs no comparison.

use cenote_journal::Pages;
use cenote_layout::PAGE_SIZE;
use cenote_medium::planted::{Bug, planted};
use cenote_protect::Tracked;
use cenote_sys::bytes::copy_by_kernel;
use cenote_sys::mappings::{self, Fineness};
use cenote_sys::pagemap::Pagemap;
use core::fmt;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

const PAGE: usize = PAGE_SIZE as usize;
/// Pages that are closed and compared in one step.
const BATCH: u64 = 16;
/// Ranges that a psync closes by itself.
const AT_ONCE: usize = 4;
/// How long a thread without work stays: a program may have thousands of objects attached.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

/// How a page is protected.
#[derive(Clone, Debug)]
pub(crate) enum Close {
    /// The range is registered with userfaultfd.
    WriteProtect,
    /// A handler of faults notes pages there.
    Mprotect(Arc<Tracked>),
}

/// Reads what was committed last, from a place in the data on. `false`: it cannot be read.
pub(crate) type Committed = Box<dyn Fn(u64, &mut [u8]) -> bool + Send + Sync>;

/// Closes the pages of one shadow.
pub(crate) struct WriteProtector {
    work: Arc<Work>,
    thread: Option<JoinHandle<()>>,
    tools: Tools,
    /// Pages that the last psync changed, and of them those that the one before it did, too.
    changed: Vec<Pages>,
    warm: Vec<Pages>,
}

struct Work {
    base: usize,
    close: Close,
    committed: Committed,
    state: Mutex<ProtectorState>,
    moved: Condvar,
}

#[derive(Default)]
struct ProtectorState {
    queue: VecDeque<Pages>,
    doubt: Vec<Pages>,
    /// Batches that are being closed.
    busy: u32,
    /// The thread takes what comes into the queue.
    alive: bool,
    stop: bool,
}

/// What one thread needs for closing.
#[derive(Default)]
struct Tools {
    pagemap: Option<Pagemap>,
    committed: Vec<u8>,
    shadow: Vec<u8>,
}

impl fmt::Debug for WriteProtector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteProtector({:?})", self.work.close)
    }
}

impl WriteProtector {
    /// For the shadow at `base`.
    ///
    /// # Safety
    /// The shadow is a private mapping, in which nothing but stores happens, and stays until this
    /// is dropped.
    pub(crate) unsafe fn new(base: usize, close: Close, committed: Committed) -> Self {
        let (state, moved) = (Mutex::default(), Condvar::new());
        Self {
            work: Arc::new(Work { base, close, committed, state, moved }),
            thread: None,
            tools: Tools::default(),
            changed: Vec::new(),
            warm: Vec::new(),
        }
    }

    /// Sees to it that nothing waits for being closed, helping the thread, and adds what is in
    /// doubt to `pages`.
    pub(crate) fn finish(&mut self, pages: &mut Vec<Pages>) {
        let mut state = self.work.lock();
        loop {
            state = match self.work.step(state, &mut self.tools) {
                Ok(state) => state,
                Err(state) if state.busy > 0 => self.work.wait(state),
                Err(mut state) => return pages.append(&mut state.doubt),
            };
        }
    }

    /// What a psync looked at is committed; of that, `changed` had changed. Both in order, no page
    /// twice. No thread has stored since.
    pub(crate) fn committed(&mut self, seen: &[Pages], changed: Vec<Pages>) {
        let hot = intersection(&changed, &self.warm);
        self.warm = intersection(&changed, &self.changed);
        self.changed = changed;
        let cold = difference(seen, &hot);
        if cold.len() > AT_ONCE {
            // Before the thread is looked for: it does not end while something waits. If there is
            // none, the next psync closes them.
            self.work.lock().queue.extend(cold);
            self.start();
            self.work.moved.notify_all();
            return;
        }
        for range in cold {
            // What cannot be closed stays open.
            let _ = self.work.close(range, &mut self.tools);
        }
    }

    /// Sees to it that there is a thread.
    fn start(&mut self) {
        if core::mem::replace(&mut self.work.lock().alive, true) {
            return;
        }
        // It had nothing to do for a while.
        self.thread.take().map(JoinHandle::join);
        let work = Arc::clone(&self.work);
        let named = std::thread::Builder::new().name("cenote-close".into());
        self.thread = named.spawn(move || work.run()).ok();
        self.work.lock().alive = self.thread.is_some();
    }
}

impl Drop for WriteProtector {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.work.lock().stop = true;
        self.work.moved.notify_all();
        let _ = thread.join();
    }
}

type Locked<'a> = MutexGuard<'a, ProtectorState>;

impl Work {
    fn lock(&self) -> Locked<'_> {
        // Pages of a thread that panicked are open or in doubt only if the thread came that far: it
        // cannot panic in between.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: Locked<'a>) -> Locked<'a> {
        self.moved.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut tools = Tools::default();
        let mut state = self.lock();
        while !state.stop {
            state = match self.step(state, &mut tools) {
                Ok(state) => state,
                Err(state) => {
                    let waited = self.moved.wait_timeout(state, IDLE);
                    let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() && state.queue.is_empty() {
                        state.alive = false;
                        return;
                    }
                    state
                }
            };
        }
    }

    /// Closes the next batch. `Err`: nothing waits.
    fn step<'a>(
        &'a self,
        mut state: Locked<'a>,
        tools: &mut Tools,
    ) -> Result<Locked<'a>, Locked<'a>> {
        let Some(mut range) = state.queue.pop_front() else { return Err(state) };
        let behind = range.start.saturating_add(BATCH);
        if behind < range.end {
            state.queue.push_front(behind..range.end);
            range.end = behind;
        }
        self.widen(&mut range, &mut state.queue);
        state.busy += 1;
        drop(state);
        let mut doubt = Vec::new();
        match self.close(range.clone(), tools) {
            Ok(()) => self.compare(range, tools, &mut doubt),
            // Open still, perhaps only some of them.
            Err(_) => doubt.push(range),
        }
        let mut state = self.lock();
        state.busy -= 1;
        state.doubt.append(&mut doubt);
        if state.busy == 0 && state.queue.is_empty() {
            self.moved.notify_all();
        }
        Ok(state)
    }

    /// Where the process has many mappings, all chunks of a range are closed at once, so that they
    /// become fewer, and with them what else of these chunks waits.
    fn widen(&self, range: &mut Pages, queue: &mut VecDeque<Pages>) {
        let Close::Mprotect(tracked) = &self.close else { return };
        if mappings::fineness() == Fineness::Page {
            return;
        }
        *range = tracked.notes().chunks_of(range);
        while let Some(next) = queue.front_mut().filter(|next| range.contains(&next.start)) {
            if next.end > range.end {
                next.start = range.end;
                return;
            }
            queue.pop_front();
        }
    }

    fn close(&self, range: Pages, tools: &mut Tools) -> io::Result<()> {
        match &self.close {
            Close::WriteProtect => {
                let pagemap = match &mut tools.pagemap {
                    Some(pagemap) => pagemap,
                    none => none.insert(Pagemap::open()?),
                };
                let at = self.base + range.start as usize * PAGE;
                pagemap.written(at, (range.end - range.start) as usize * PAGE, |_| {})
            }
            Close::Mprotect(tracked) => {
                tracked.notes().take_some(range.clone());
                // SAFETY: part of the shadow, by the promise of `new`; the handler of faults gives
                // writing back.
                unsafe { tracked.protect(range.clone()) }
                    .inspect_err(|_| tracked.notes().note(range))
            }
        }
    }

    /// Adds pages of a closed range that are not what was committed.
    fn compare(&self, range: Pages, tools: &mut Tools, doubt: &mut Vec<Pages>) {
        if planted(Bug::ClosedNotCompared) {
            return;
        }
        let (committed, shadow) = (&mut tools.committed, &mut tools.shadow);
        let len = (range.end - range.start) as usize * PAGE;
        committed.resize(len, 0);
        shadow.resize(len, 0);
        let at = self.base + range.start as usize * PAGE;
        if !(self.committed)(range.start * PAGE_SIZE, committed)
            || copy_by_kernel(at, shadow).is_err()
        {
            return doubt.push(range);
        }
        for (page, (committed, shadow)) in
            range.zip(committed.chunks_exact(PAGE).zip(shadow.chunks_exact(PAGE)))
        {
            if committed != shadow {
                doubt.push(page..page + 1);
            }
        }
    }
}

/// Pages that are in both. Each is in order, and has no page twice.
fn intersection(one: &[Pages], other: &[Pages]) -> Vec<Pages> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut both = Vec::new();
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        let (from, to) = (a.start.max(b.start), a.end.min(b.end));
        if from < to {
            both.push(from..to);
        }
        if a.end <= b.end {
            one.next()
        } else {
            other.next()
        };
    }
    both
}

/// Pages of `one` that are not in `other`. Each is in order, and has no page twice.
fn difference(one: &[Pages], other: &[Pages]) -> Vec<Pages> {
    let mut left = Vec::new();
    let mut other = other.iter().peekable();
    for range in one {
        let mut from = range.start;
        while let Some(without) = other.peek().filter(|without| without.start < range.end) {
            if from < without.start {
                left.push(from..without.start);
            }
            from = from.max(without.end);
            if without.end > range.end {
                break;
            }
            other.next();
        }
        if from < range.end {
            left.push(from..range.end);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_medium::planted::plant;
    use cenote_protect::dirty_bitmap::DirtyBitmap;
    use cenote_sys::{fault, memory};

    fn pages(of: &[Pages]) -> Vec<u64> {
        of.iter().cloned().flatten().collect()
    }

    #[test]
    fn sets_of_pages_are_cut_and_subtracted() {
        let mut random = 7u64;
        for _ in 0..2000 {
            let mut set = || {
                let mut set: Vec<Pages> = Vec::new();
                let mut at = 0;
                while at < 40 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let (gap, len) = ((random >> 40) % 7 + 1, (random >> 50) % 9 + 1);
                    set.push(at + gap..at + gap + len);
                    at += gap + len;
                }
                set
            };
            let (one, other) = (set(), set());
            let (a, b) = (pages(&one), pages(&other));
            let both: Vec<u64> = a.iter().copied().filter(|page| b.contains(page)).collect();
            let left: Vec<u64> = a.iter().copied().filter(|page| !b.contains(page)).collect();
            assert_eq!(pages(&intersection(&one, &other)), both, "{one:?} {other:?}");
            assert_eq!(pages(&difference(&one, &other)), left, "{one:?} {other:?}");
        }
    }

    /// Resolver of faults.
    ///
    /// # Safety
    /// As of `fault::register`.
    unsafe fn allow(context: *const (), address: usize) -> bool {
        // SAFETY: registered with what outlive the registration.
        unsafe { (*context.cast::<Tracked>()).allow(address) }
    }

    const COUNT: usize = 64;

    /// Memory whose stores are noted, and what counts as committed of it: zeros.
    fn with_protector(test: impl FnOnce(&mut WriteProtector, &DirtyBitmap, &dyn Fn(usize, u8))) {
        let base = memory::reserve_anywhere(COUNT * PAGE, PAGE).expect("address space");
        // SAFETY: our own reservation.
        unsafe { memory::map_anonymous(base, COUNT * PAGE) }.expect("memory");
        let tracked = Arc::new(Tracked::new(base..base + COUNT * PAGE, "object \"x\""));
        // SAFETY: the notes outlive the registration; the resolver keeps the rules of resolvers.
        let registered =
            unsafe { fault::register(base, COUNT * PAGE, allow, Arc::as_ptr(&tracked).cast()) };
        let registered = registered.expect("registered");
        // SAFETY: our own memory; the resolver gives writing back.
        unsafe { tracked.protect(0..COUNT as u64) }.expect("protected");
        let committed: Committed = Box::new(|_, bytes| {
            bytes.fill(0);
            true
        });
        // SAFETY: our own memory, until the end of this function.
        let mut protector =
            unsafe { WriteProtector::new(base, Close::Mprotect(Arc::clone(&tracked)), committed) };
        let store = |page: usize, value: u8| {
            // SAFETY: our own memory.
            unsafe {
                core::ptr::with_exposed_provenance_mut::<u8>(base + page * PAGE + 9)
                    .write_volatile(value)
            }
        };
        test(&mut protector, tracked.notes(), &store);
        drop((protector, registered));
        // SAFETY: our own reservation.
        unsafe { memory::release(base, COUNT * PAGE) }.expect("released");
    }

    fn found(protector: &mut WriteProtector, notes: &DirtyBitmap) -> Vec<u64> {
        let mut found = Vec::new();
        protector.finish(&mut found);
        notes.look(&mut found);
        crate::dirty::normalise(&mut found);
        pages(&found)
    }

    /// Every other page: more ranges than are closed at once.
    fn scattered() -> Vec<Pages> {
        (0..COUNT as u64).step_by(2).map(|page| page..page + 1).collect()
    }

    #[test]
    fn a_store_into_an_open_page_is_in_doubt_and_one_into_a_closed_page_is_noted() {
        with_protector(|protector, notes, store| {
            let seen = scattered();
            pages(&seen).iter().for_each(|page| store(*page as usize, 0));
            assert_eq!(found(protector, notes), pages(&seen));
            protector.committed(&seen, Vec::new());
            // Now, while the thread works or before it begins.
            store(62, 1);
            store(3, 1);
            assert_eq!(found(protector, notes), [3, 62]);
            store(4, 1);
            assert_eq!(found(protector, notes)[..2], [3, 4]);
        });
    }

    #[test]
    fn a_page_that_is_closed_and_believed_unchanged_is_found() {
        let found_with = |bug: Bug| {
            let mut all = Vec::new();
            with_protector(|protector, notes, store| {
                store(5, 0);
                // Queued, and no thread takes it.
                protector.work.lock().queue.push_back(5..6);
                store(5, 1);
                plant(bug);
                all = found(protector, notes);
                plant(Bug::None);
            });
            all
        };
        assert_eq!(found_with(Bug::None), [5]);
        assert_eq!(found_with(Bug::ClosedNotCompared), [0u64; 0], "the bug was not found");
    }

    #[test]
    fn a_few_ranges_are_closed_at_once_and_hot_pages_are_not() {
        with_protector(|protector, notes, store| {
            let changed = vec![1..3, 8..9];
            for psync in 0..3 {
                [1, 2, 8].into_iter().for_each(|page| store(page, 0));
                assert_eq!(found(protector, notes), [1, 2, 8]);
                protector.committed(&changed, changed.clone());
                let open = if psync < 2 { vec![] } else { vec![1, 2, 8] };
                assert_eq!(found(protector, notes), open, "{psync}");
            }
            assert!(protector.thread.is_none());
            // Seen and not changed: it is cold.
            protector.committed(&changed, changed[..1].to_vec());
            assert_eq!(found(protector, notes), [1, 2]);
        });
    }

    #[test]
    fn each_store_while_pages_are_closed_is_found() {
        with_protector(|protector, notes, store| {
            let seen = scattered();
            for round in 0..200u64 {
                pages(&seen).iter().for_each(|page| store(*page as usize, 0));
                found(protector, notes);
                protector.committed(&seen, Vec::new());
                let mut stored = Vec::new();
                for step in 0..8 {
                    let page = (round * 31 + step * 14) % COUNT as u64 / 2 * 2;
                    store(page as usize, 1 + step as u8);
                    stored.push(page);
                }
                let found = found(protector, notes);
                assert!(stored.iter().all(|page| found.contains(page)), "{stored:?} {found:?}");
            }
        });
    }

    #[test]
    fn a_thread_without_work_ends_and_another_takes_its_place() {
        with_protector(|protector, notes, store| {
            let seen = scattered();
            for _ in 0..3 {
                pages(&seen).iter().for_each(|page| store(*page as usize, 0));
                assert_eq!(found(protector, notes), pages(&seen));
                protector.committed(&seen, Vec::new());
                while protector.work.lock().alive {
                    std::thread::sleep(IDLE);
                }
                assert_eq!(found(protector, notes), [0u64; 0], "all of it was closed");
            }
        });
    }

    /// Of pages that cannot be compared, or not be closed, each is looked at again.
    #[test]
    fn what_cannot_be_compared_or_closed_is_in_doubt() {
        with_protector(|protector, notes, store| {
            let work = Arc::get_mut(&mut protector.work).expect("no thread yet");
            work.committed = Box::new(|offset, bytes| {
                bytes.fill(0);
                offset != 6 * PAGE_SIZE
            });
            let take = |protector: &mut WriteProtector, pages: Pages| {
                protector.work.lock().queue.push_back(pages);
                assert!(protector.work.step(protector.work.lock(), &mut protector.tools).is_ok());
            };
            [4, 6].into_iter().for_each(|page| store(page, 0));
            take(protector, 4..5);
            take(protector, 6..7);
            assert_eq!(found(protector, notes), [6]);
            // What is no page cannot be protected.
            let work = Arc::get_mut(&mut protector.work).expect("no thread yet");
            let beside = work.base + 1..work.base + 1 + COUNT * PAGE;
            work.close = Close::Mprotect(Arc::new(Tracked::new(beside, "object \"x\"")));
            take(protector, 8..9);
            assert_eq!(found(protector, notes), [8]);
        });
    }
}
