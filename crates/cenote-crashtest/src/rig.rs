//! A store on a simulated medium, and a history that is run on it operation by operation.
//!
//! Opening, pools, tracing and checks go through the crate that users name. Transactions go through
//! the raw one, with contexts of the rig's own: so one thread can have several logs, and the
//! history stays deterministic.

mod strategy;

pub use strategy::{Strategy, Write};

use crate::data::{
    BIG_WRITTEN, Big, Model, Node, Other, Root, SLOTS, WIDE, WIDE_WRITTEN, WORDS_WRITTEN,
    block_colour, next_colour, observe, value_of, wide_at_first, words_of,
};
use crate::history::Op;
use cenote::raw::Heap;
use cenote::{
    FormatOptions, HeapKind, OpenOptions, Persist, Pool, PoolOptions, Reader, Store, Uuid,
};
use cenote_log::{Body, LogWriter, SegmentSource};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_tx::{LogGroup, Transaction, TxContext};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The smallest log puddle: 1,920 bytes for the entries of one transaction before it goes on in
/// another.
pub const SMALL_LOG: u64 = 8 << 10;
/// Names of the two pools.
pub const POOLS: [&str; 2] = ["a", "b"];
/// Bytes of a window.
pub const WINDOW_LEN: u64 = 64 << 20;

/// The window of a worker: windows of different workers do not overlap.
#[must_use]
pub fn window_base(worker: usize) -> u64 {
    0x3000_0000_0000 + worker as u64 * WINDOW_LEN
}

/// Options of every open.
#[must_use]
pub fn open_options() -> OpenOptions {
    // What spare puddles add to growth is crashed in `updates`.
    OpenOptions { log_puddle_size: SMALL_LOG, spare_bytes_max: 0, ..OpenOptions::default() }
}

/// Options of the pools: `superblocks` of 64 KiB besides the one with metadata.
#[must_use]
pub fn pool_options(superblocks: u64) -> PoolOptions {
    PoolOptions { puddle_size: (1 + superblocks) << 16, ..PoolOptions::default() }
}

/// Keeps this thread, and those that it starts, on one processor: so a logged heap has one
/// sub-heap, and the same calls get the same addresses.
///
/// # Errors
/// The system refuses.
pub fn stay_on_one_processor() -> Result<(), String> {
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A store with two pools, their root objects and one attached node, cleanly closed; every history
/// starts from it. Pointers in the data lead to the node and to the places of two that were freed.
///
/// # Errors
/// Whatever went wrong.
pub fn base_image(level: Durability, window_base: u64, heap: HeapKind) -> Result<Image, String> {
    let sim = SimMedium::new(SimOptions::new(level));
    let medium: Arc<dyn Medium> = sim.clone();
    let options = FormatOptions {
        window_base: Some(window_base),
        window_len: WINDOW_LEN,
        uuid: Some(Uuid::from_random_bytes([7; 16])),
    };
    cenote_store::format(medium.clone(), &options).map_err(text)?;
    let store = Store::open_on(medium, &open_options()).map_err(text)?;
    let options = |superblocks| PoolOptions { heap, ..pool_options(superblocks) };
    let a = store.create_pool(POOLS[0], &options(2)).map_err(text)?;
    let b = store.create_pool(POOLS[1], &options(1)).map_err(text)?;
    let gone = a
        .write(|tx| -> cenote::Result<_> {
            let node = tx.alloc(Node { value: 1, twin: !1 })?;
            let gone =
                [tx.alloc(Node { value: 2, twin: !2 })?, tx.alloc(Node { value: 3, twin: !3 })?];
            let mut slots = [None; SLOTS];
            slots[0] = Some(node);
            let stale = [Some(node), Some(gone[0]), Some(gone[1])];
            let root = tx.alloc(Root {
                slots,
                bigs: [None; 2],
                words: [0; 11],
                wide: wide_at_first(),
                stale,
            })?;
            tx.set_root(root)?;
            Ok(gone)
        })
        .map_err(text)?;
    a.write(|tx| gone.into_iter().try_for_each(|node| tx.free(node))).map_err(text)?;
    b.write(|tx| -> cenote::Result<()> {
        let other = tx.alloc(Other { word: 0 })?;
        tx.set_root(other)
    })
    .map_err(text)?;
    drop((a, b));
    store.close().map_err(text)?;
    Ok(sim.image_now(CrashKind::Process))
}

/// Gets a log's further segments from the store.
pub(crate) struct Segments {
    pub(crate) store: cenote_store::Store,
    pub(crate) log_id: u64,
}

impl SegmentSource for Segments {
    fn segment(
        &mut self,
        number: u32,
    ) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.store.grow_log(self.log_id, number)?)
    }
}

/// Where the blocks of the model are.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    slots: [u64; SLOTS],
    bigs: [u64; 2],
}

/// What the second thread is to do; the result comes back.
type Job = Box<dyn FnOnce() -> Result<(), String> + Send>;
type Done = std::thread::Result<Result<(), String>>;

/// What a rig needs of its process, used again by the next rig of the thread: the same history then
/// is the same, to the address of its volatile data and the number of its second thread.
#[derive(Default)]
struct Volatile {
    /// Volatile data of the program, changed by every "set".
    note: Box<u64>,
    second: Option<Second>,
}

thread_local! {
    static SPARE: RefCell<Vec<Volatile>> = const { RefCell::new(Vec::new()) };
}

/// A thread that does one thing after the other while its owner waits.
struct Second {
    jobs: Option<Sender<Job>>,
    results: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Second {
    fn start() -> Self {
        let (jobs, received) = channel::<Job>();
        let (done, results) = channel();
        let thread = std::thread::spawn(move || {
            for job in received {
                if done.send(catch_unwind(AssertUnwindSafe(job))).is_err() {
                    break;
                }
            }
        });
        Self { jobs: Some(jobs), results, thread: Some(thread) }
    }

    /// Runs `job` there and waits for it.
    fn run<'a>(&mut self, job: impl FnOnce() -> Result<(), String> + Send + 'a) -> Done {
        let job: Box<dyn FnOnce() -> Result<(), String> + Send + 'a> = Box::new(job);
        // SAFETY: the job is over when this function returns: either its result has come, or the
        // thread is gone.
        let job = unsafe {
            std::mem::transmute::<Box<dyn FnOnce() -> Result<(), String> + Send + 'a>, Job>(job)
        };
        let gone = || Ok(Err("the second thread is gone".to_owned()));
        match self.jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => self.results.recv().unwrap_or_else(|_| gone()),
            _ => gone(),
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A history in progress.
pub struct Rig {
    /// Used by the transactions: the note, and the thread of the second log.
    volatile: Volatile,
    /// Ended before `contexts` goes; it borrows the last-used one.
    transaction: Option<Transaction<'static>>,
    #[expect(clippy::vec_box, reason = "the transaction borrows one of them: they must not move")]
    contexts: Vec<Box<TxContext>>,
    group: Arc<LogGroup>,
    strategy: Strategy,
    /// Transactions begun.
    begun: usize,
    root: *mut Root,
    other: *mut Other,
    note_saved: u64,
    committed: (Model, Places),
    working: (Model, Places),
    a: Pool,
    #[allow(dead_code, reason = "keeps the second pool open")]
    b: Pool,
    store: Store,
    /// The medium.
    pub sim: Arc<SimMedium>,
}

impl Rig {
    /// Opens the store of `image`, of [`base_image`] or as a crash left it.
    ///
    /// # Errors
    /// Whatever went wrong.
    pub fn start(image: &Image, strategy: Strategy) -> Result<Self, String> {
        Self::start_on(SimMedium::from_image(image), strategy)
    }

    /// The same, without a history as yet: see [`SimMedium::from_image_paused`].
    ///
    /// # Errors
    /// Whatever went wrong.
    pub fn start_paused(image: &Image, strategy: Strategy) -> Result<Self, String> {
        Self::start_on(SimMedium::from_image_paused(image), strategy)
    }

    fn start_on(sim: Arc<SimMedium>, strategy: Strategy) -> Result<Self, String> {
        let store = Store::open_on(sim.clone(), &open_options()).map_err(text)?;
        let [a, b] = [store.pool(POOLS[0]).map_err(text)?, store.pool(POOLS[1]).map_err(text)?];
        let (model, _) = observe(&a, &b)?;
        let (root, places) = {
            let view = a.read().map_err(text)?;
            let root = view.root::<Root>().map_err(text)?.ok_or("no root")?;
            let value = view.get(root).map_err(text)?;
            let slots = std::array::from_fn(|i| value.slots[i].map_or(0, |node| node.addr()));
            (
                root,
                Places {
                    slots,
                    bigs: std::array::from_fn(|i| value.bigs[i].map_or(0, |big| big.addr())),
                },
            )
        };
        let other = b.read().map_err(text)?.root::<Other>().map_err(text)?.ok_or("no root")?;
        let mut volatile = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        *volatile.note = 0;
        let mut rig = Self {
            volatile,
            transaction: None,
            contexts: Vec::new(),
            group: LogGroup::new(),
            strategy,
            begun: 0,
            root: root.as_ptr(),
            other: other.as_ptr(),
            note_saved: 0,
            committed: (model.clone(), places),
            working: (model, places),
            a,
            b,
            store,
            sim,
        };
        rig.add_context()?;
        Ok(rig)
    }

    fn add_context(&mut self) -> Result<(), String> {
        // SAFETY: of the store itself only logs are asked for; transactions on them keep the rules
        // of raw ones.
        let store = unsafe { self.store.as_raw() };
        let lease = store.acquire_log().map_err(text)?;
        let source = Box::new(Segments { store: store.clone(), log_id: lease.log_id() });
        // SAFETY: log puddles stay mapped until the store is dropped, which `self` does after its
        // contexts; a leased log has no other user, and all logs of the process are in the
        // group.
        let context = unsafe {
            let mut writer =
                LogWriter::attach(lease.body(), store.persistence(), source).map_err(text)?;
            if self.strategy.wrap {
                writer.skip_to_last_base();
            }
            TxContext::new(writer, self.group.clone())
        };
        self.contexts.push(Box::new(context));
        Ok(())
    }

    /// Does one operation, and returns when it has been acknowledged. Transactions of the second
    /// log run in a thread of their own: a fence covers only what its thread has flushed. `bug`
    /// is planted meanwhile.
    ///
    /// # Errors
    /// Whatever went wrong: nothing may.
    pub fn step(&mut self, op: Op, bug: Bug) -> Result<(), String> {
        let running = usize::from(self.transaction.is_none());
        if self.strategy.logs < 2 || (self.begun + running) % 2 == 1 {
            plant(bug);
            let result = self.step_here(op);
            plant(Bug::None);
            return result;
        }
        struct Borrowed<'a>(&'a mut Rig);
        // SAFETY: this thread waits until the other one has done with the rig.
        unsafe impl Send for Borrowed<'_> {}
        let mut second = self.volatile.second.take().unwrap_or_else(Second::start);
        let borrowed = Borrowed(self);
        let run = move || {
            let borrowed = borrowed;
            plant(bug);
            borrowed.0.step_here(op)
        };
        let done = second.run(run);
        self.volatile.second = Some(second);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn step_here(&mut self, op: Op) -> Result<(), String> {
        if self.transaction.is_none() {
            if self.begun == 1 && self.contexts.len() < self.strategy.logs {
                self.add_context()?;
            }
            let number = self.begun % self.contexts.len();
            let context: *mut TxContext = &raw mut *self.contexts[number];
            // SAFETY: boxed, so it stays where it is; used by nothing but the transaction until
            // that has ended, which `crash` and `drop` see to.
            self.transaction = Some(unsafe { (*context).begin() });
            self.begun += 1;
        }
        match op {
            Op::Alloc => self.alloc(),
            Op::Free => self.free(),
            Op::Set => self.set(),
            Op::Grow => self.grow(),
            Op::Other => {
                let value =
                    value_of(next_colour(self.committed.0.other >> 12, self.working.0.other >> 12));
                self.working.0.other = value;
                // SAFETY: the root object of the second pool, which is open for writing.
                let word = unsafe { &raw mut (*self.other).word };
                self.store_word(word, value, false)
            }
            Op::Commit => self.commit(),
            Op::Abort => self.abort(),
        }
    }

    fn parts(&mut self) -> Result<(&mut Transaction<'static>, &dyn Heap), String> {
        match &mut self.transaction {
            // SAFETY: one thread, which writes a value into every block before it is attached.
            Some(transaction) => Ok((transaction, unsafe { self.a.raw_heap() })),
            None => Err("no transaction".into()),
        }
    }

    /// Overwrites a word, in place or deferred.
    fn store_word(&mut self, word: *mut u64, value: u64, deferred: bool) -> Result<(), String> {
        let (tx, _) = self.parts()?;
        // SAFETY: words of root objects, in pools that are open for writing, and changed by this
        // thread only.
        unsafe {
            if deferred {
                tx.set(word.cast(), (&raw const value).cast(), 8).map_err(text)
            } else {
                tx.add(word.cast(), 8).map_err(text)?;
                word.write(value);
                Ok(())
            }
        }
    }

    /// Colours of all blocks that are attached, or were when the transaction began.
    fn used(&self) -> Vec<u64> {
        let models = [&self.working.0, &self.committed.0];
        let values = models.into_iter().flat_map(|m| m.slots.iter().chain(&m.bigs).flatten());
        values.map(|value| value >> 12).collect()
    }

    fn alloc(&mut self) -> Result<(), String> {
        let slot = self.working.0.slots.iter().position(Option::is_none).ok_or("no free slot")?;
        let deferred = self.strategy.write == Write::Redo;
        let used = self.used();
        let (tx, heap) = self.parts()?;
        // SAFETY: the heap outlives the transaction; a fresh block of the type's size.
        let (addr, value) = unsafe {
            let block = tx.alloc(heap, size_of::<Node>() as u64, 8, Node::TYPE_ID).map_err(text)?;
            let block = block.cast::<Node>();
            let value = value_of(block_colour((*block.as_ptr()).value >> 12, &used));
            block.write(Node { value, twin: !value });
            (block.as_ptr() as u64, value)
        };
        if self.working.1.slots.contains(&addr) || self.committed.1.slots.contains(&addr) {
            return Err(format!("the block at {addr:#x} is given out although it is in use"));
        }
        self.working.0.slots[slot] = Some(value);
        self.working.1.slots[slot] = addr;
        // SAFETY: a field of the root object.
        let word = unsafe { (&raw mut (*self.root).slots).cast::<u64>().add(slot) };
        self.store_word(word, addr, deferred)
    }

    fn free(&mut self) -> Result<(), String> {
        let deferred = self.strategy.write == Write::Redo;
        let (model, places) = &mut self.working;
        let (word, addr) = if let Some(slot) = model.slots.iter().rposition(Option::is_some) {
            model.slots[slot] = None;
            // SAFETY: a field of the root object.
            let word = unsafe { (&raw mut (*self.root).slots).cast::<u64>().add(slot) };
            (word, std::mem::take(&mut places.slots[slot]))
        } else {
            let slot = model.bigs.iter().rposition(Option::is_some).ok_or("nothing attached")?;
            model.bigs[slot] = None;
            // SAFETY: as above.
            let word = unsafe { (&raw mut (*self.root).bigs).cast::<u64>().add(slot) };
            (word, std::mem::take(&mut places.bigs[slot]))
        };
        self.store_word(word, 0, deferred)?;
        let (tx, heap) = self.parts()?;
        // SAFETY: the heap outlives the transaction; nothing uses the block after it is detached.
        unsafe { tx.free(heap, addr) }.map_err(text)
    }

    fn set(&mut self) -> Result<(), String> {
        let write = self.strategy.write;
        let colour = next_colour(self.committed.0.words[0] >> 12, self.working.0.words[0] >> 12);
        let (value, words) = (value_of(colour), words_of(colour));
        let note = &raw mut *self.volatile.note;
        let (tx, _) = self.parts()?;
        // SAFETY: the note is boxed and lives as long as the rig.
        unsafe {
            tx.add_volatile(note.cast(), 8).map_err(text)?;
            note.write(value);
        }
        self.working.0.words = words;
        for (i, value) in words.into_iter().enumerate() {
            let deferred = write == Write::Redo || (write == Write::Hybrid && i == 1);
            // SAFETY: a field of the root object.
            let word = unsafe { (&raw mut (*self.root).words).cast::<u64>().add(WORDS_WRITTEN[i]) };
            self.store_word(word, value, deferred)?;
        }
        if !self.strategy.wide {
            return Ok(());
        }
        self.working.0.wide = [value; 3];
        // SAFETY: a field of the root object, logged whole or deferred before it is written.
        unsafe {
            let wide = (&raw mut (*self.root).wide).cast::<u64>();
            let (tx, _) = self.parts()?;
            if write == Write::Redo {
                let mut new = wide_at_first();
                WIDE_WRITTEN.iter().for_each(|&word| new[word] = value);
                tx.set(wide.cast(), new.as_ptr().cast(), 8 * WIDE).map_err(text)
            } else {
                tx.add(wide.cast(), 8 * WIDE).map_err(text)?;
                WIDE_WRITTEN.iter().for_each(|&word| wide.add(word).write(value));
                Ok(())
            }
        }
    }

    fn grow(&mut self) -> Result<(), String> {
        let slot = self.working.0.bigs.iter().position(Option::is_none).ok_or("no free slot")?;
        let deferred = self.strategy.write == Write::Redo;
        let used = self.used();
        let (tx, heap) = self.parts()?;
        // SAFETY: the heap outlives the transaction; a fresh block of the type's size, of which
        // three words are written (the others are whatever was there, which is a value of
        // the type).
        let (addr, value) = unsafe {
            let block = tx.alloc(heap, size_of::<Big>() as u64, 8, Big::TYPE_ID).map_err(text)?;
            let value = value_of(block_colour(block.cast::<u64>().read() >> 12, &used));
            BIG_WRITTEN.iter().for_each(|&word| block.cast::<u64>().add(word).write(value));
            (block.as_ptr() as u64, value)
        };
        self.working.0.bigs[slot] = Some(value);
        self.working.1.bigs[slot] = addr;
        // SAFETY: a field of the root object.
        let word = unsafe { (&raw mut (*self.root).bigs).cast::<u64>().add(slot) };
        self.store_word(word, addr, deferred)
    }

    fn commit(&mut self) -> Result<(), String> {
        self.transaction.take().ok_or("no transaction")?.commit().map_err(text)?;
        self.committed = self.working.clone();
        self.note_saved = *self.volatile.note;
        Ok(())
    }

    fn abort(&mut self) -> Result<(), String> {
        self.transaction.take().ok_or("no transaction")?.abort();
        self.working = self.committed.clone();
        let note = *self.volatile.note;
        if note != self.note_saved {
            return Err(format!(
                "abort left {note:#x} in volatile data, not {:#x}",
                self.note_saved
            ));
        }
        Ok(())
    }

    /// What is acknowledged.
    #[must_use]
    pub fn committed(&self) -> &Model {
        &self.committed.0
    }

    /// What a commit now would acknowledge.
    #[must_use]
    pub fn working(&self) -> &Model {
        &self.working.0
    }

    /// Where the running program finds the data, with no transaction in progress: must be what is
    /// acknowledged.
    ///
    /// # Errors
    /// What is wrong.
    pub fn observe(&self) -> Result<Model, String> {
        if self.transaction.is_some() {
            return Ok(self.working.0.clone());
        }
        crate::data::observe(&self.a, &self.b).map(|(model, _)| model)
    }

    /// Stops as a crash does: nothing of the process happens any more. The history stays in the
    /// medium.
    pub fn crash(mut self) -> Arc<SimMedium> {
        // No abort: the transaction is forgotten, and then no code uses its context.
        std::mem::forget(self.transaction.take());
        self.sim.clone()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        std::mem::forget(self.transaction.take());
        self.sim.stop_looking();
        self.contexts.clear();
        self.store.clone().abandon();
        SPARE.with_borrow_mut(|spare| spare.push(std::mem::take(&mut self.volatile)));
    }
}
