//! The frontier: puddles that are due, and how one is rewritten when somebody touches it ([`crate::relocate`] has the states).
//!
//! Invariant: a puddle is mapped only after its file is the new one, durably, or its rewritten image is in private memory. So whoever sees a byte of it sees the
//! whole of it rewritten, from any thread, by any instruction; and touching it leads to pointers to further puddles, which are due until they are touched.
//!
//! A fault comes in a signal handler, which may neither allocate nor take locks. It asks at a desk, and a thread of the store's answers ([`cenote_sys::desk`]). That thread takes no lock
//! that anybody holds while touching a pool: not the store's control lock. So it makes no batch of the catalog; what is done is noted, and the next batch says it. Until then
//! the header does.
//!
//! Several threads at one puddle: each asks, the first question rewrites, the others find it done.
//!
//! A rewriting that fails, because the disk is full or the file is damaged, cannot return an error to a load. It is told on standard error, and the fault goes on as one that nobody resolves.
//! Nothing has changed then. Who wants an error calls [`PoolHandle::finish_relocation`] or opens with [`Backend::Eager`](super::Backend).

use super::{
    Backend, Found, RelocationOptions, RelocationProgress, RewriteJob, Rewriter, Rewritten, look_at,
};
use crate::error::StoreError;
use crate::pool::PoolHandle;
use crate::puddle::{DIR, PRIMARY_DIR, Puddle, file_name, make_header_of, primary_name, text};
use crate::shadow::locked;
use crate::store::{Control, Inner, is_sync};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{DueRecord, Record};
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, Medium, MediumError, Operation};
use cenote_sys::desk::Desk;
use cenote_sys::memory::{self, Access, OwnedRegion};
use cenote_sys::touch::FirstTouch;
use cenote_sys::twin;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use zerocopy::IntoBytes;

/// Bytes that are looked at, and written, at once.
const STEP: usize = 64 << 10;

/// What is to be done to a puddle, and to which files.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: RewriteJob,
    pub(crate) due: DueRecord,
    /// It has a primary as well.
    pub(crate) shadowed: bool,
}

/// A puddle that is due; it lives until the store is dropped, after the clerk has gone home.
#[derive(Clone, Copy, Debug)]
struct Waiting(NonNull<Puddle>);

// SAFETY: the pointer is to a `Puddle`, which is `Sync` and outlives the frontier's thread.
unsafe impl Send for Waiting {}

/// What an open store has of relocation. It does not keep the store open.
#[derive(Debug)]
pub(crate) struct Frontier {
    medium: Arc<dyn Medium>,
    store: Uuid,
    writable: bool,
    /// Memory of the simulated medium is compared with what it mapped.
    simulated: bool,
    pub(crate) options: RelocationOptions,
    poisoned: Arc<OnceLock<String>>,
    /// One puddle at a time is rewritten.
    turn: Mutex<()>,
    desk: Desk,
    clerk: Mutex<Option<JoinHandle<()>>>,
    /// Where first touches wait, if that is the backend and the system has it; `None` where it has not.
    touch: OnceLock<Option<FirstTouch>>,
    toucher: Mutex<Option<JoinHandle<()>>>,
    /// By address. They stay when they are done: several threads may have asked about one.
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    /// Rewritten, and the catalog does not say so yet.
    done: Mutex<Vec<Uuid>>,
    sum: Mutex<Rewritten>,
}

impl Frontier {
    pub(crate) fn new(
        medium: Arc<dyn Medium>,
        store: Uuid,
        (writable, simulated): (bool, bool),
        options: RelocationOptions,
        poisoned: Arc<OnceLock<String>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            medium,
            store,
            writable,
            simulated,
            options,
            poisoned,
            turn: Mutex::default(),
            desk: Desk::default(),
            clerk: Mutex::default(),
            touch: OnceLock::new(),
            toucher: Mutex::default(),
            waiting: Mutex::default(),
            done: Mutex::default(),
            sum: Mutex::default(),
        })
    }

    /// Whether puddles that are due are rewritten when their pool is opened: by choice, or because there is no thread to answer faults.
    pub(crate) fn is_eager(&self) -> bool {
        self.options.backend == Backend::Eager || locked(&self.clerk).is_none()
    }

    /// Lets faults in `puddle` come here.
    pub(crate) fn expect(self: &Arc<Self>, puddle: NonNull<Puddle>) {
        // SAFETY: puddles live until the store is dropped.
        let addr = unsafe { puddle.as_ref() }.addr();
        locked(&self.waiting).insert(addr, Waiting(puddle));
        let mut clerk = locked(&self.clerk);
        if clerk.is_none() {
            let frontier = Arc::clone(self);
            let named = std::thread::Builder::new().name("cenote-relocate".into());
            *clerk = named.spawn(move || frontier.desk.serve(|addr| frontier.answer(addr))).ok();
        }
        drop(clerk);
        if self.options.backend == Backend::Userfault && !self.simulated {
            // SAFETY: as above.
            self.watch(unsafe { puddle.as_ref() });
        }
    }

    /// Lets first touches of a puddle wait. What cannot be watched is left to the signal handler.
    fn watch(self: &Arc<Self>, puddle: &Puddle) {
        let Some(touch) = self.touch.get_or_init(|| FirstTouch::open().ok()) else { return };
        let mut toucher = locked(&self.toucher);
        if toucher.is_none() {
            let frontier = Arc::clone(self);
            let named = std::thread::Builder::new().name("cenote-touch".into());
            *toucher = named.spawn(move || frontier.serve_touches()).ok();
        }
        if toucher.is_some() {
            // SAFETY: the puddle's own range, where nothing is mapped: it is due.
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
                // Nobody's any more: who waits looks again.
                touch.wake(address & !(PAGE_SIZE as usize - 1), PAGE_SIZE as usize);
                return;
            };
            let (addr, len) = (puddle.addr() as usize, puddle.size() as usize);
            if !self.answer(puddle.addr()) {
                // Whoever waits gets a fault that nobody resolves, and not zeros. Not if somebody has mapped it meanwhile.
                puddle.while_absent(|| {
                    // SAFETY: the puddle's own range, in which there is nothing but the watch.
                    let _ = unsafe { memory::unmap_to_reserved(addr, len) };
                });
            }
            touch.wake(addr, len);
        });
    }

    /// How puddles that are due are rewritten here: what was asked for, or what there is instead.
    pub(crate) fn backend(&self) -> Backend {
        match self.options.backend {
            Backend::Userfault
                if self.simulated || self.touch.get_or_init(|| FirstTouch::open().ok()).is_none() =>
            {
                Backend::Signal
            }
            chosen => chosen,
        }
    }

    /// What the fault handler does about an access to a puddle that is due. Async-signal-safe.
    pub(crate) fn ask(&self, puddle: &Puddle) -> bool {
        self.desk.ask(puddle.addr())
    }

    /// Whether the access can succeed now.
    fn answer(&self, addr: u64) -> bool {
        let Some(Waiting(puddle)) = locked(&self.waiting).get(&addr).copied() else { return false };
        // SAFETY: puddles live until the store is dropped, which ends this thread first.
        let puddle = unsafe { puddle.as_ref() };
        let mapped = self.finish(puddle).and_then(|_| Ok(puddle.map(&*self.medium)?));
        match mapped {
            Ok(mapped) => mapped,
            Err(error) => {
                cenote_sys::fault::tell(&format!(
                    "cenote: puddle {} at {:#x} cannot be made ready: {error}; nothing was changed\n",
                    puddle.uuid(),
                    puddle.addr()
                ));
                false
            }
        }
    }

    /// Sends the thread home. Faults are not resolved any more.
    pub(crate) fn stop(&self, forked: bool) {
        let (clerk, toucher) = (locked(&self.clerk).take(), locked(&self.toucher).take());
        if forked {
            // The threads are the parent's.
            core::mem::forget((clerk, toucher));
            return;
        }
        if let (Some(Some(touch)), Some(toucher)) = (self.touch.get(), toucher) {
            touch.stop();
            let _ = toucher.join();
        }
        self.desk.close();
        if let Some(clerk) = clerk {
            let _ = clerk.join();
        }
    }

    /// What rewriting has done in this session.
    pub(crate) fn sum(&self) -> Rewritten {
        locked(&self.sum).clone()
    }

    /// Notes that a file is the new one.
    pub(crate) fn note_done(&self, puddle: Uuid) {
        locked(&self.done).push(puddle);
    }

    /// The changes of the catalog that say what is done.
    pub(crate) fn take_done(&self) -> Vec<Uuid> {
        core::mem::take(&mut *locked(&self.done))
    }

    /// Rewrites a puddle, if it is due: on return its file is the new one, or its image is in place. What was done now.
    pub(crate) fn finish(&self, puddle: &Puddle) -> Result<Option<Rewritten>, StoreError> {
        let Some(job) = puddle.job().filter(|_| puddle.is_due()) else { return Ok(None) };
        let _turn = locked(&self.turn);
        if !puddle.is_due() {
            return Ok(None);
        }
        let failed = |detail: String| StoreError::NotRewritten { puddle: puddle.uuid(), detail };
        let Some(rewriter) = &self.options.rewriter else {
            return Err(failed("this program cannot rewrite pointers".into()));
        };
        let rewritten = self.rewrite(puddle, job, &**rewriter).map_err(|error| match error {
            Failed::Medium(error) => {
                if is_sync(&error) {
                    let _ = self.poisoned.set(error.to_string());
                }
                StoreError::from(error)
            }
            Failed::Image(detail) => failed(detail),
        })?;
        locked(&self.sum).add(&rewritten);
        Ok(Some(rewritten))
    }

    fn rewrite(&self, puddle: &Puddle, job: &Job, rewriter: &dyn Rewriter) -> Result<Rewritten, Failed> {
        let record = &job.work.puddle;
        let region = self.read(puddle.file_name(), record.size)?;
        // SAFETY: the region is this function's alone, as long as that says, zeroed or read from the file.
        let image = unsafe { core::slice::from_raw_parts_mut(region.as_ptr(), record.size as usize) };
        let rewritten = rewriter.rewrite(image, &job.work).map_err(Failed::Image)?;
        let header = make_header_of(record, self.store, job.due.generation);
        if let Some(page) = image.get_mut(..PAGE_SIZE as usize) {
            page.copy_from_slice(header.as_bytes());
        }
        if !self.writable {
            self.show(puddle, image)?;
            return Ok(rewritten);
        }
        if job.shadowed && !planted(Bug::PrimaryNotRewritten) {
            let primary = primary_name(record.uuid);
            let (found, name) = (
                look_at(&*self.medium, text(&primary), (self.store, true), record, &job.due)?,
                text(&primary),
            );
            if found != Found::New {
                // All of a primary has its space, so that no psync finds the disk full after it has committed.
                self.replace(name, PRIMARY_DIR, image, &[])?;
            }
        }
        self.replace(text(&file_name(record.uuid)), DIR, image, &rewritten.holes)?;
        puddle.set_done();
        self.note_done(puddle.uuid());
        drop(region);
        Ok(rewritten)
    }

    fn read(&self, name: &str, size: u64) -> Result<OwnedRegion, Failed> {
        let region = memory::anonymous(size as usize)
            .map_err(|source| MediumError::from_io(Operation::Read, name, source))?;
        // SAFETY: fresh memory of this function, zeroed, as long as that says.
        let image = unsafe { core::slice::from_raw_parts_mut(region.as_ptr(), size as usize) };
        FileHandle::open(&self.medium, name)?.read_exact_at(0, image)?;
        Ok(region)
    }

    /// Steps 2 and 3 of [`crate::relocate`], for one file.
    fn replace(&self, name: &str, dir: &str, image: &[u8], holes: &[(u64, u64)]) -> Result<(), MediumError> {
        if planted(Bug::RewrittenInPlace) {
            self.write(name, image)?;
            return self.medium.sync(name);
        }
        let fresh = self.medium.random_uuid()?;
        let fresh = if dir == DIR { file_name(fresh) } else { primary_name(fresh) };
        let fresh = text(&fresh);
        self.medium.create(fresh, image.len() as u64)?;
        let made = self.write(fresh, image).and_then(|()| {
            for (offset, len) in holes {
                // SAFETY: a file that is mapped nowhere; what lies in these parts is nobody's.
                let _ = unsafe { self.medium.release(fresh, *offset, *len) };
            }
            if planted(Bug::RewrittenNotSynced) {
                return self.medium.rename(fresh, name);
            }
            self.medium.sync(fresh)?;
            self.medium.rename(fresh, name)
        });
        if let Err(error) = made {
            let _ = self.medium.remove(fresh);
            return Err(error);
        }
        if planted(Bug::RenameNotSynced) {
            return Ok(());
        }
        self.medium.sync_dir(dir)
    }

    /// Writes what is not zero.
    fn write(&self, name: &str, image: &[u8]) -> Result<(), MediumError> {
        write_sparse(&FileHandle::open(&self.medium, name)?, 0, image)
    }

    /// Puts an image into private memory at the puddle's address, to be read.
    fn show(&self, puddle: &Puddle, image: &[u8]) -> Result<(), MediumError> {
        let (addr, len) = (puddle.addr() as usize, image.len());
        let failed = |source| MediumError::from_io(Operation::Map, puddle.file_name(), source);
        puddle.show(|| {
            if !self.simulated {
                // As a whole, so that no thread sees half of it.
                // SAFETY: the puddle's own range, where nothing is mapped that anybody relies on.
                return unsafe { twin::map_image(addr, image) }.map_err(failed);
            }
            // SAFETY: as above; mapped as long as the image, and nobody else runs in the simulation's window.
            unsafe {
                self.medium.map(puddle.file_name(), addr as u64, len as u64, MapMode::PrivateCopy)?;
                let at = core::ptr::with_exposed_provenance_mut(addr);
                core::ptr::copy_nonoverlapping(image.as_ptr(), at, len);
                memory::protect(addr, len, Some(Access::ReadOnly)).map_err(failed)
            }
        })
    }
}

/// Why a puddle was not rewritten.
enum Failed {
    Medium(MediumError),
    Image(String),
}

impl From<MediumError> for Failed {
    fn from(error: MediumError) -> Self {
        Self::Medium(error)
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (head, words, tail) = zerocopy_words(bytes);
    head.iter().chain(tail).all(|byte| *byte == 0) && words.iter().all(|word| *word == 0)
}

/// The words of a slice, and the bytes before and behind them.
fn zerocopy_words(bytes: &[u8]) -> (&[u8], &[u64], &[u8]) {
    // SAFETY: any bytes are a `u64`.
    unsafe { bytes.align_to::<u64>() }
}

/// Writes what is not zero of `bytes` into a file of zeros.
pub(crate) fn write_sparse(file: &FileHandle, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
    let mut from = None;
    let mut at = 0;
    for chunk in bytes.chunks(STEP).chain([&[][..]]) {
        if chunk.is_empty() || is_zero(chunk) {
            if let Some(from) = from.take() {
                file.write_at(offset + from as u64, &bytes[from..at])?;
            }
        } else if from.is_none() {
            from = Some(at);
        }
        at += chunk.len();
    }
    Ok(())
}

impl Inner {
    /// Maps a puddle; rewrites it before, if it is due. `Ok(false)`: it is refused. Not for the fault handler.
    pub(crate) fn make_accessible(&self, puddle: &Puddle) -> Result<bool, StoreError> {
        if puddle.is_due() && !planted(Bug::DuePuddleMapped) {
            self.frontier.finish(puddle)?;
        }
        Ok(puddle.map(&*self.medium)?)
    }

    /// Says in the catalog what is done, if anything is.
    pub(crate) fn record_done(&self, control: &mut Control) -> Result<(), StoreError> {
        self.commit(control, &[])
    }

    /// The records that say what is done; they come back if the batch fails.
    pub(crate) fn with_done(&self, records: &[Record]) -> (Vec<Record>, Vec<Uuid>) {
        let done = self.frontier.take_done();
        let all = done.iter().map(|puddle| Record::Relocated(*puddle)).chain(records.iter().cloned());
        (all.collect(), done)
    }
}

impl PoolHandle {
    /// Puddles of the pool that are still to be rewritten, each when it is first touched.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.puddles().iter().filter(|puddle| puddle.is_due()).count() as u64
    }

    /// Rewrites all puddles of the pool that are due, now, and says so in the catalog. `progress` is told before each, and at the end. Where the store is open
    /// read-only, the rewritten puddles are memory of this process.
    ///
    /// # Errors
    /// The first puddle that cannot be rewritten, and why: no space for a second file of it, damage. It and those behind it are as they were.
    pub fn finish_relocation(
        &self,
        progress: &mut dyn FnMut(RelocationProgress),
    ) -> Result<Rewritten, StoreError> {
        let inner = self.store().inner();
        inner.check_usable()?;
        let due: Vec<&Puddle> = self.puddles().into_iter().filter(|puddle| puddle.is_due()).collect();
        let mut sum = Rewritten::default();
        let mut told = RelocationProgress {
            puddles: 0,
            puddles_total: due.len() as u64,
            bytes: 0,
            bytes_total: due.iter().map(|puddle| puddle.size()).sum(),
        };
        for puddle in due {
            progress(told);
            if let Some(rewritten) = inner.frontier.finish(puddle)? {
                sum.add(&rewritten);
            }
            told.puddles += 1;
            told.bytes += puddle.size();
        }
        if told.puddles > 0 {
            progress(told);
        }
        if inner.writable {
            inner.check_poisoned()?;
            inner.record_done(&mut inner.control())?;
        }
        Ok(sum)
    }
}
