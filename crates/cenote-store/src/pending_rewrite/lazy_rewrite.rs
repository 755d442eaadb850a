//! The frontier: keeps the puddles that are pending, and rewrites one when a thread touches it
//! ([`crate::relocate`] has the states).
//!
//! Invariant: a puddle is mapped only after its file is the new one, durably, or its rewritten
//! image is in private memory. So an instruction that sees a byte of it, in any thread, sees
//! the whole of it rewritten; and touching it leads to pointers to further puddles, which are
//! pending until they are touched.
//!
//! A fault comes in a signal handler, which may neither allocate nor take locks. It puts a question
//! into a queue, and a thread of the store's answers ([`cenote_sys::fault_queue`]). That thread
//! takes no lock that a thread holds while it touches a pool: not the store's control lock. So it
//! makes no batch of the catalog; the next batch says what is done. Until then the header does.
//!
//! Several threads at one puddle: each asks, the first question rewrites, the others find it done.
//!
//! A rewriting that fails, because the disk is full or the file is damaged, cannot return an error
//! to a load. It is told on standard error, and the fault goes on as one that none resolves.
//! The puddle is still pending then, and as good as it was. A caller that wants an error uses
//! [`PoolHandle::finish_relocation`] or opens with [`Backend::Eager`].

use super::failed::Failed;
use super::in_place::InPlace;
use super::replace::{Image, NewFile};
use super::{FoundRewrite, look_at};
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::rewriter::{
    Backend, RelocationOptions, RewriteJob, Rewriter, Rewritten,
};
use crate::kernel::puddles::locked::locked;
use crate::kernel::puddles::pending_job::Job;
use crate::kernel::puddles::puddle::{
    DIR, PRIMARY_DIR, Puddle, file_name, make_header_of, primary_name, text,
};
use crate::kernel::puddles::stamps::{stamp_image, write_stamp};
use crate::kernel::store::Inner;
use crate::kernel::store::extensions::Extension;
use crate::kernel::superblock::poison::Poisoned;
use crate::primaries::Patches;
use crate::sealed_files::at_rest;
use cenote_atrest::view::SealedError;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError, Operation, OwnedMedium};
use cenote_sys::dual_mapping;
use cenote_sys::fault_queue::FaultQueue;
use cenote_sys::memory;
use cenote_sys::signals;
use cenote_sys::userfaultfd::FirstTouch;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, Ordering};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use zerocopy::IntoBytes;

/// A puddle that is pending; it lives until the store is dropped, after the worker has gone home.
#[derive(Clone, Copy, Debug)]
struct Waiting(NonNull<Puddle>);

// SAFETY: the pointer is to a `Puddle`, which is `Sync` and outlives the frontier's thread.
unsafe impl Send for Waiting {}

/// The right to rewrite, which one thread has at a time.
struct Turn<'a> {
    frontier: &'a LazyRewrite,
    _guard: MutexGuard<'a, ()>,
}

impl<'a> Turn<'a> {
    fn take(frontier: &'a LazyRewrite) -> Self {
        let _guard = locked(&frontier.turn);
        frontier.turn_of.store(signals::thread_number(), Ordering::Relaxed);
        Self { frontier, _guard }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.frontier.turn_of.store(0, Ordering::Relaxed);
    }
}

/// What an open store has of relocation. It does not keep the store open.
#[derive(Debug)]
pub(crate) struct LazyRewrite {
    pub(crate) medium: OwnedMedium,
    pub(crate) store: Uuid,
    pub(crate) writable: bool,
    /// Memory of the simulated medium is compared with what it mapped.
    simulated: bool,
    pub(crate) options: RelocationOptions,
    poisoned: Arc<Poisoned>,
    /// One puddle at a time is rewritten.
    turn: Mutex<()>,
    /// The number of the thread that has the turn, 0 if none has.
    turn_of: AtomicI32,
    queue: FaultQueue,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// Where first touches wait, if that is the backend and the system has it; `None` where it has
    /// not.
    touch: OnceLock<Option<FirstTouch>>,
    toucher: Mutex<Option<JoinHandle<()>>>,
    /// By address. They stay when they are done, because several threads may have asked about one,
    /// and go when the store gives the puddle up.
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    /// Rewritten, and the catalog does not say so yet.
    done: Mutex<Vec<Uuid>>,
    sum: Mutex<Rewritten>,
    /// Recovered puddles in private memory, in a store that is open for reading at a distance:
    /// their images are made of these, and not of their files.
    pub(crate) held: Mutex<BTreeMap<Uuid, Image>>,
    /// What the journal lays over protected puddles in such a store.
    pub(crate) patches: OnceLock<Patches>,
}

impl LazyRewrite {
    pub(crate) fn new(
        medium: OwnedMedium,
        store: Uuid,
        (writable, simulated): (bool, bool),
        options: RelocationOptions,
        poisoned: Arc<Poisoned>,
    ) -> Arc<Self> {
        Arc::new(Self {
            medium,
            store,
            writable,
            simulated,
            options,
            poisoned,
            turn: Mutex::default(),
            turn_of: AtomicI32::new(0),
            queue: FaultQueue::default(),
            worker: Mutex::default(),
            touch: OnceLock::new(),
            toucher: Mutex::default(),
            waiting: Mutex::default(),
            done: Mutex::default(),
            sum: Mutex::default(),
            held: Mutex::default(),
            patches: OnceLock::new(),
        })
    }

    /// Whether puddles that are pending are rewritten when their pool is opened: by choice, or
    /// because there is no thread to answer faults.
    pub(crate) fn is_eager(&self) -> bool {
        self.options.backend == Backend::Eager || locked(&self.worker).is_none()
    }

    /// Lets faults in `puddle` come here.
    pub(crate) fn expect(self: &Arc<Self>, puddle: NonNull<Puddle>) {
        // SAFETY: puddles live until the store is dropped.
        let addr = unsafe { puddle.as_ref() }.addr();
        locked(&self.waiting).insert(addr, Waiting(puddle));
        let mut worker = locked(&self.worker);
        if worker.is_none() {
            let frontier = Arc::clone(self);
            let named = std::thread::Builder::new().name("cenote-relocate".into());
            *worker = named.spawn(move || frontier.queue.serve(|addr| frontier.answer(addr))).ok();
        }
        drop(worker);
        if self.options.backend == Backend::Userfault && !self.simulated {
            // SAFETY: as above.
            self.watch(unsafe { puddle.as_ref() });
        }
    }

    /// Lets touches wait, also those inside system calls. A process that may not have userfaultfd
    /// is better off with the signal, which needs no thread.
    fn touch(&self) -> Option<&FirstTouch> {
        let open = || FirstTouch::open().ok().filter(FirstTouch::helps_system_calls);
        self.touch.get_or_init(open).as_ref()
    }

    /// Lets first touches of a puddle wait. What cannot be watched is left to the signal handler.
    fn watch(self: &Arc<Self>, puddle: &Puddle) {
        let Some(touch) = self.touch() else { return };
        let mut toucher = locked(&self.toucher);
        if toucher.is_none() {
            let frontier = Arc::clone(self);
            let named = std::thread::Builder::new().name("cenote-touch".into());
            *toucher = named.spawn(move || frontier.serve_touches()).ok();
        }
        if toucher.is_some() {
            // SAFETY: the puddle's own range, where nothing is mapped: it is pending.
            let _ = unsafe { touch.watch(puddle.addr() as usize, puddle.size() as usize) };
        }
    }

    fn serve_touches(&self) {
        let Some(Some(touch)) = self.touch.get() else { return };
        touch.serve(|address| {
            let waiting = locked(&self.waiting);
            let found = waiting.range(..=address as u64).next_back();
            // SAFETY: puddles live until the store is dropped, which ends this thread first.
            let found = found.map(|(_, Waiting(puddle))| unsafe { puddle.as_ref() });
            drop(waiting);
            let at = address as u64;
            let Some(puddle) = found.filter(|puddle| at - puddle.addr() < puddle.size()) else {
                // No puddle is pending there any more: the waiting thread looks again.
                touch.wake(address & !(PAGE_SIZE as usize - 1), PAGE_SIZE as usize);
                return;
            };
            let (addr, len) = (puddle.addr() as usize, puddle.size() as usize);
            if !self.answer(puddle.addr()) {
                // A waiting thread gets a fault that no resolver resolves, and not zeros; but not
                // if another thread has mapped the puddle meanwhile.
                puddle.while_absent(|| {
                    // SAFETY: the puddle's own range, in which there is nothing but the watch.
                    let _ = unsafe { memory::unmap_to_reserved(addr, len) };
                });
            }
            touch.wake(addr, len);
        });
    }

    /// How puddles that are pending are rewritten here: what was asked for, or what there is
    /// instead.
    pub(crate) fn backend(&self) -> Backend {
        match self.options.backend {
            Backend::Userfault if self.simulated || self.touch().is_none() => Backend::Signal,
            chosen => chosen,
        }
    }

    /// What the fault handler does about an access to a puddle that is pending. Async-signal-safe.
    pub(crate) fn ask(&self, puddle: &Puddle) -> bool {
        // A rewriter that touches what it may not would wait for itself: its access fails instead,
        // and ends the process.
        self.turn_of.load(Ordering::Relaxed) != signals::thread_number()
            && self.queue.ask(puddle.addr())
    }

    /// Gives up a puddle, after its mapping: faults in it are not resolved any more.
    fn let_go(&self, puddle: &Puddle) {
        let addr = puddle.addr();
        let mut waiting = locked(&self.waiting);
        let is_it = |known: &Waiting| core::ptr::eq(known.0.as_ptr(), puddle);
        if !waiting.get(&addr).is_some_and(is_it) {
            return;
        }
        waiting.remove(&addr);
        if let Some(Some(touch)) = self.touch.get() {
            let (addr, len) = (addr as usize, puddle.size() as usize);
            // SAFETY: the puddle's own range, in which nothing is mapped any more and nothing will
            // be: a watch at most, which this ends.
            let _ = unsafe { memory::unmap_to_reserved(addr, len) };
            touch.wake(addr, len);
        }
    }

    /// Whether the access can succeed now.
    fn answer(&self, addr: u64) -> bool {
        let Some(Waiting(puddle)) = locked(&self.waiting).get(&addr).copied() else { return false };
        // SAFETY: puddles live until the store is dropped, which ends this thread first.
        let puddle = unsafe { puddle.as_ref() };
        let finish = || self.finish(puddle).and_then(|_| Ok(puddle.map(&self.medium)?));
        // A thread that ends here would leave the threads asleep that wait for it.
        match catch_unwind(AssertUnwindSafe(finish)) {
            Ok(Ok(mapped)) => mapped,
            Err(_) => false,
            Ok(Err(error)) => {
                cenote_sys::fault::tell(&format!(
                    "cenote: puddle {} at {:#x} cannot be rewritten: {error}; it stays pending\n",
                    puddle.uuid(),
                    puddle.addr()
                ));
                false
            }
        }
    }

    /// Sends the thread home. Faults are not resolved any more.
    fn stop(&self, forked: bool) {
        let (worker, toucher) = (locked(&self.worker).take(), locked(&self.toucher).take());
        if forked {
            // The threads are the parent's.
            core::mem::forget((worker, toucher));
            return;
        }
        if let (Some(Some(touch)), Some(toucher)) = (self.touch.get(), toucher) {
            touch.stop();
            let _ = toucher.join();
        }
        self.queue.close();
        if let Some(worker) = worker {
            let _ = worker.join();
        }
    }

    /// What rewriting has done in this session.
    pub(crate) fn sum(&self) -> Rewritten {
        locked(&self.sum).clone()
    }

    /// What a puddle that is pending holds, in memory that may be changed.
    fn image_of(&self, record: &PuddleRecord, source: &FileHandle) -> Result<Image, MediumError> {
        match locked(&self.held).get_mut(&record.uuid) {
            // A copy, because a rewriting that fails may have changed half of it.
            Some(held) => {
                let bytes = held.bytes();
                // SAFETY: the bytes of a slice.
                unsafe { Image::of_memory(bytes.as_ptr().expose_provenance(), bytes.len() as u64) }
            }
            None => Image::in_memory(source, record.size),
        }
    }

    /// Notes that a file is the new one.
    pub(crate) fn note_done(&self, puddle: Uuid) {
        locked(&self.done).push(puddle);
    }

    /// The changes of the catalog that say what is done.
    fn take_done(&self) -> Vec<Uuid> {
        core::mem::take(&mut *locked(&self.done))
    }

    /// Rewrites a puddle, if it is pending: on return its file is the new one, or its image is in
    /// place. What was done now.
    pub(crate) fn finish(&self, puddle: &Puddle) -> Result<Option<Rewritten>, StoreError> {
        let Some(job) = puddle.job().filter(|_| puddle.is_pending()) else { return Ok(None) };
        // The thread that has the turn must not touch a puddle that is pending: it would wait for
        // itself. So no signal handler of the application runs on it meanwhile.
        let _quiet = signals::Blocked::new();
        let _turn = Turn::take(self);
        if !puddle.is_pending() {
            return Ok(None);
        }
        let Some(rewriter) = &self.options.rewriter else {
            let detail = "this program cannot rewrite pointers".into();
            return Err(StoreError::NotRewritten { puddle: puddle.uuid(), detail });
        };
        if let Some(poison) = self.poisoned.get() {
            return Err(poison.error());
        }
        let pool = job.sealing().map_or("", |sealing| &sealing.pool);
        let rewritten = self.rewrite(puddle, job, &**rewriter);
        let rewritten = rewritten.map_err(|failed| self.explain(failed, puddle.uuid(), pool))?;
        self.add(&rewritten);
        Ok(Some(rewritten))
    }

    /// Adds what was done to what this session did.
    pub(crate) fn add(&self, rewritten: &Rewritten) {
        locked(&self.sum).add(rewritten);
    }

    /// Why a puddle was not rewritten, as callers are told; what ends the session's changes is
    /// noted.
    pub(crate) fn explain(&self, failed: Failed, puddle: Uuid, pool: &str) -> StoreError {
        let not_rewritten = |detail: String| StoreError::NotRewritten { puddle, detail };
        match failed {
            Failed::Medium(error) | Failed::Sealed(SealedError::Medium(error)) => {
                if error.is_failed_sync() {
                    self.poisoned.set(error.to_string().into());
                }
                StoreError::from(error)
            }
            Failed::Image(detail) => not_rewritten(detail),
            Failed::Sealed(error) => at_rest(pool, error),
            Failed::Store(error) => *error,
            Failed::Panicked => {
                let detail = format!("the rewriter panicked at puddle {puddle}");
                self.poisoned.set(detail.into());
                not_rewritten("the rewriter panicked; this session writes nothing more".into())
            }
        }
    }

    /// Makes the pointers of an image right, and its header. A panic is an error of this
    /// puddle, on any thread: no thread may be left asleep, and nothing has changed.
    fn careful(
        image: &mut [u8],
        work: &RewriteJob,
        rewriter: &dyn Rewriter,
    ) -> Result<Rewritten, Failed> {
        let rewritten = catch_unwind(AssertUnwindSafe(|| rewriter.rewrite(image, work)));
        rewritten.map_err(|_| Failed::Panicked)?.map_err(Failed::Image)
    }

    pub(crate) fn change(
        &self,
        image: &mut [u8],
        work: &RewriteJob,
        generation: u64,
        rewriter: &dyn Rewriter,
    ) -> Result<Rewritten, Failed> {
        let rewritten = Self::careful(image, work, rewriter)?;
        let header = make_header_of(&work.puddle, self.store, generation);
        // The stamp behind it is the caller's.
        if let Some(page) = image.get_mut(..size_of_val(&header)) {
            page.copy_from_slice(header.as_bytes());
        }
        Ok(rewritten)
    }

    fn rewrite(
        &self,
        puddle: &Puddle,
        job: &Job,
        rewriter: &dyn Rewriter,
    ) -> Result<Rewritten, Failed> {
        if let Some(sealing) = job.sealing() {
            return self.reseal_touched(puddle, sealing, job, rewriter);
        }
        let record = &job.work.puddle;
        let rewrite = |image: &mut [u8]| Self::careful(image, &job.work, rewriter);
        let header = make_header_of(record, self.store, job.pending.generation);
        // What is rewritten is written: no seal of the last close may pass for it.
        let mark = puddle.claim_mark();
        let change = |image: &mut [u8]| {
            let rewritten = self.change(image, &job.work, job.pending.generation, rewriter)?;
            stamp_image(image, mark);
            Ok::<_, Failed>(rewritten)
        };
        let source = FileHandle::open(&self.medium, puddle.file_name())?;
        if !self.writable {
            let mut image = self.image_of(record, &source)?;
            let rewritten = change(image.bytes())?;
            self.show(puddle, image.bytes())?;
            locked(&self.held).remove(&record.uuid);
            return Ok(rewritten);
        }
        if !(job.shadowed || job.hosting || planted(Bug::RewrittenInPlace))
            && let Some(mut own) = InPlace::begin(&source, &job.work, rewriter)?
        {
            if mark != 0 {
                write_stamp(&source, mark)?;
            }
            let rewritten = rewrite(own.bytes())?;
            own.finish(&self.medium, &header, &rewritten.holes)?;
            puddle.set_rewritten(mark);
            puddle.set_done();
            self.note_done(puddle.uuid());
            return Ok(rewritten);
        }
        let (file, primary) = (file_name(record.uuid), primary_name(record.uuid));
        let (file, primary) = ((DIR, text(&file)), (PRIMARY_DIR, text(&primary)));
        let both = job.shadowed && !planted(Bug::PrimaryNotRewritten) && {
            look_at(&self.medium, primary.1, (self.store, true), record, &job.pending)?
                != FoundRewrite::New
        };
        let first = NewFile::create(&self.medium, if both { primary } else { file }, record.size)?;
        let mut image = first.image(&source, record.size)?;
        let rewritten = change(image.bytes())?;
        if !image.in_file {
            first.write(image.bytes())?;
        }
        image.intact(source.name())?;
        if both {
            // All of a primary has its space, so that no psync finds the disk full after it has
            // committed.
            first.take_name(&[])?;
            let second = NewFile::create(&self.medium, file, record.size)?;
            second.write(image.bytes())?;
            image.intact(source.name())?;
            second.take_name(&rewritten.holes)?;
        } else {
            first.take_name(&rewritten.holes)?;
        }
        puddle.set_rewritten(mark);
        puddle.set_done();
        self.note_done(puddle.uuid());
        Ok(rewritten)
    }

    /// Puts an image into private memory at the puddle's address, to be read.
    pub(crate) fn show(&self, puddle: &Puddle, image: &[u8]) -> Result<(), MediumError> {
        let (addr, len) = (puddle.addr() as usize, image.len());
        let failed = |source| MediumError::from_io(Operation::Map, puddle.file_name(), source);
        puddle.show(|| {
            if !self.simulated {
                // As a whole, so that no thread sees half of it.
                // SAFETY: the puddle's own range, where nothing is mapped that a thread relies on.
                return unsafe { dual_mapping::map_image(addr, image) }.map_err(failed);
            }
            // SAFETY: as above; mapped as long as the image, and no other thread runs in the
            // simulation's window.
            unsafe {
                self.medium.map(
                    puddle.file_name(),
                    addr as u64,
                    len as u64,
                    MapMode::PrivateCopy,
                )?;
                let at = core::ptr::with_exposed_provenance_mut(addr);
                core::ptr::copy_nonoverlapping(image.as_ptr(), at, len);
                puddle.close_for_stores(&format!("pool {}", puddle.pool().0))
            }
        })
    }
}

impl Extension for Arc<LazyRewrite> {
    fn make_ready(&self, puddle: &Puddle) -> Result<(), StoreError> {
        self.finish(puddle).map(drop)
    }

    fn let_go(&self, puddle: &Puddle) {
        LazyRewrite::let_go(self, puddle);
    }

    fn add_records(&self, records: &mut Vec<Record>) {
        records.extend(self.take_done().into_iter().map(Record::Relocated));
    }

    fn batch_failed(&self, added: &[Record]) {
        for record in added {
            if let Record::Relocated(puddle) = record {
                self.note_done(*puddle);
            }
        }
    }

    fn stop(&self, forked: bool) {
        LazyRewrite::stop(self, forked);
    }
}

impl Inner {
    pub(crate) fn frontier(&self) -> &Arc<LazyRewrite> {
        self.parts.get()
    }
}
