//! Maps memory over a sealed file: pages appear, verified and decrypted, when they are first
//! touched (PMO-9), and are noted when they are first stored into (PMO-5).
//!
//! # States of a page
//!
//! * *Closed:* nothing is there, no access. A load or store faults; the worker fills the page, and
//!   opens it for loads.
//! * *Loaded:* the page as it was last psynced. A store faults; the page is noted, and opened for
//!   stores.
//! * *Written:* the page as the program has it. A psync takes the note and closes it for stores.
//! * *Broken:* the page failed its check. Every access is SIGBUS, after a message.
//!
//! # Invariants
//!
//! * A page is open only if it was verified and decrypted as a whole: it is filled through the
//!   alias ([`DualMapping`]), and only then opened.
//! * A page that may be written is noted (the argument of `cenote_protect::dirty_bitmap`).
//! * Code that stores through another mapping of the memory has loaded from the page before, and
//!   notes it after the store ([`View::store_notes`]).
//! * The memory has no file and no name, and is not in core dumps: plaintext is in memory only. It
//!   goes with the process, so **what was not psynced is gone after SIGKILL**, as for an object
//!   without protection. It is not locked, because limits on locked memory are far below the size
//!   of objects: a machine that swaps should encrypt its swap space.
//!
//! # Which thread fills pages
//!
//! Reading, hashing and decrypting need more stack than a signal handler has.
//!
//! | thread | fills pages |
//! | --- | --- |
//! | the faulting one, where it has an alternate stack ([`alt_stack`]) | in the handler |
//! | any other | by this view's *worker* ([`FaultWorker`]), for which the handler waits |
//!
//! Both take the lock of filling, those of the protection and those of the medium, and allocate. No
//! thread that holds one of these locks touches the object: this module copies through the alias,
//! and protection and medium get copies.
//!
//! A page behind a loaded one brings its neighbours along, up to 16: a thread that goes through an
//! object in order pays for one fault in 16 pages. An object of at most 8 pages is filled as a
//! whole. A store into a closed page is one fault: the page is opened for stores, its neighbours
//! for loads.
//!
//! *A small object* (8 pages; 32 where a page need not be hashed) is whole from the beginning. Its
//! pages are filled before any code gets the memory, which then needs no alias, no handler and no
//! worker. A psync opens the last psynced pages and compares. If one page cannot be filled, the
//! object is treated as a large one: the other pages can be read, and a touch of the bad one names
//! its number.
//!
//! The kernel resolves no such fault for itself. A `write` of pages that were not touched yet, and
//! a `read` into pages that were not stored into, fail with `EFAULT`. [`View::load`] opens pages
//! beforehand; a `read` needs a buffer of its own.
//!
//! Pages are opened one by one, and each may cost the kernel a mapping. When the process has many
//! (`cenote_sys::mappings`), or the kernel refuses one more, the 2 MiB around the page are filled
//! and opened as a whole; if that is too much, the whole object.

mod broken;
mod filling;
mod rights;

use crate::crypto::{Mode, PAGE_LEN, Protection};
use crate::view::fault_worker::{FaultWorker, Filled};
use crate::view::{SealedError, Source};
use cenote_journal::Pages;
use cenote_layout::at_rest::SIDE_LEN;
use cenote_protect::dirty_bitmap::DirtyBitmap;
use cenote_protect::{Owner, RangeKind, Right, StoreNotes};
use cenote_sys::alt_stack;
use cenote_sys::bytes::settle;
use cenote_sys::dual_mapping::{self, DualMapping};
use cenote_sys::fault::{self, Registration};
use cenote_sys::mappings::{self, Fineness};
use cenote_sys::memory;
use cenote_sys::secret::wipe_bytes;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use rights::PageStates;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages that are filled at once: those of one node of the tree.
const RUN: u64 = 16;
/// Most pages of an object that one fault fills as a whole: without hashes, all of them cost what
/// one fault costs.
const SMALL: u64 = 8;
/// The same where no page is hashed as a whole.
const SMALL_UNHASHED: u64 = 32;
/// Pages that are opened at once when the kernel refuses a further mapping.
const CHUNK: u64 = 512;

/// The memory over one sealed file; until it is dropped or stopped, which must be before its
/// addresses are unmapped.
pub struct View {
    /// Given back before the worker is.
    registration: Option<Registration>,
    /// Whether it had one: then no thread asks any more once that is given back, and the worker
    /// can serve another view.
    registered: bool,
    inner: Arc<ViewInner>,
}

/// What handlers, worker and callers share.
pub(crate) struct ViewInner {
    what: String,
    protection: Protection,
    source: Source,
    /// Where pages are filled that are not open; none of an object that was filled before it was
    /// given out.
    twin: Option<DualMapping>,
    base: usize,
    pages: u64,
    /// Set with the lock of filling held: nothing is filled or opened any more.
    stopped: AtomicBool,
    /// The states of its pages, and their rights.
    owner: Owner<PageStates>,
    /// None where nothing is closed.
    worker: Option<Arc<FaultWorker>>,
    /// Sealed pages on their way, and the lock of filling.
    filling: Mutex<Box<[u8]>>,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:?}, {})", self.inner.what, self.inner.protection.mode())
    }
}

/// Resolver of faults in a view.
///
/// # Safety
/// `context` is the [`ViewInner`] that was registered.
unsafe fn resolve(context: *const (), address: usize) -> bool {
    // SAFETY: the view keeps it until after the registration is gone.
    unsafe { &*context.cast::<ViewInner>() }.resolve(address)
}

impl View {
    /// Makes as many bytes from `base` on as the protection has pages for the memory, closed.
    /// Faults there come to it, until it is dropped: it takes a place in the
    /// table of [`cenote_sys::fault`].
    ///
    /// # Errors
    /// No memory, no thread, no place in that table.
    ///
    /// # Safety
    /// The range is the caller's, lies in a reservation, and nothing uses what is mapped there; it
    /// stays the view's until that is dropped.
    pub unsafe fn new(
        what: &str,
        protection: Protection,
        source: Source,
        base: usize,
        writable: bool,
    ) -> Result<Self, SealedError> {
        // SAFETY: handed on to the caller.
        let whole = unsafe { ViewInner::whole(what, protection, source, base, writable) };
        match whole {
            Ok(inner) => Ok(Self { registration: None, registered: true, inner: Arc::new(inner) }),
            // SAFETY: handed on to the caller.
            Err(parts) => unsafe { Self::closed(what, parts.0, parts.1, base, writable) },
        }
    }

    /// The same, and the pages are closed however few they are.
    ///
    /// # Errors
    /// As [`View::new`].
    ///
    /// # Safety
    /// As [`View::new`].
    pub unsafe fn closed(
        what: &str,
        protection: Protection,
        source: Source,
        base: usize,
        writable: bool,
    ) -> Result<Self, SealedError> {
        // SAFETY: handed on to the caller.
        let mut view = unsafe { Self::unregistered(what, protection, source, base, writable) }?;
        let span = view.inner.pages as usize * PAGE_LEN;
        // SAFETY: `resolve` keeps the rules: it uses atomics, changes protections, and fills pages
        // on a stack of its own or asks the queue. The context outlives the registration,
        // which is dropped first.
        let registered =
            unsafe { fault::register(base, span, resolve, Arc::as_ptr(&view.inner).cast()) };
        view.registration = Some(registered.map_err(|error| {
            let source = io::Error::other(error.to_string());
            SealedError::Memory { what: what.into(), source }
        })?);
        view.registered = true;
        Ok(view)
    }

    /// The same for a caller that has a resolver for the range, and calls [`View::resolve`] there.
    ///
    /// # Errors
    /// No memory, no thread.
    ///
    /// # Safety
    /// As [`View::new`].
    pub unsafe fn unregistered(
        what: &str,
        protection: Protection,
        source: Source,
        base: usize,
        writable: bool,
    ) -> Result<Self, SealedError> {
        let failed = |source| SealedError::Memory { what: what.into(), source };
        if memory::page_bytes() != PAGE_LEN {
            return Err(failed(io::Error::other("pages of this machine do not have 4096 bytes")));
        }
        let pages = protection.pages();
        let span = pages as usize * PAGE_LEN;
        // SAFETY: handed on to the caller.
        let twin = unsafe { DualMapping::map(base, span) }.map_err(failed)?;
        let worker = FaultWorker::find().map_err(failed)?;
        let closed = (Some(twin), Some(Arc::clone(&worker)));
        let inner = Arc::new(ViewInner::new(what, protection, source, base, writable, closed));
        worker.serve(Some(Arc::clone(&inner) as Arc<dyn Filled>));
        alt_stack::prepare();
        Ok(Self { registration: None, registered: false, inner })
    }

    /// Resolves a fault at `address`, which is in this memory. True: the access can be tried again.
    /// For handlers of faults in this memory: see [`alt_stack`] for what that allows.
    #[must_use]
    pub fn resolve(&self, address: usize) -> bool {
        self.inner.resolve(address)
    }

    /// Calls `f` if the page of `address` was given up because it fails its check, and keeps other
    /// threads from calling theirs meanwhile. `false` if it was not. For handlers of faults, as
    /// [`View::resolve`].
    #[must_use]
    pub fn while_broken(&self, address: usize, f: impl FnOnce() -> bool) -> bool {
        self.inner.while_broken(address, f)
    }

    /// From now on stores are allowed.
    pub fn allow_stores(&self) {
        self.inner.states().writable.store(true, Ordering::Release);
    }

    /// Ends the worker: pages that are not open stay closed, and a touch of one is a fault that no
    /// thread resolves.
    pub fn stop(&self) {
        // A thread that fills a page on its own has done so, or will not.
        let filling = self.inner.lock();
        self.inner.stopped.store(true, Ordering::Release);
        drop(filling);
        self.inner.owner.retire();
        if let Some(worker) = &self.inner.worker {
            worker.end();
        }
    }

    /// Its protection.
    #[must_use]
    pub fn protection(&self) -> &Protection {
        &self.inner.protection
    }

    /// What its pages are read from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.inner.source
    }

    /// Fills and opens pages.
    ///
    /// # Errors
    /// The first that fails its check, or cannot be read.
    pub fn load(&self, pages: Pages) -> Result<(), SealedError> {
        self.inner.load(pages)
    }

    /// Copies bytes out, from pages that are loaded.
    ///
    /// # Safety
    /// The bytes lie in the view, and no thread stores there meanwhile.
    pub unsafe fn copy_out(&self, offset: u64, bytes: &mut [u8]) {
        self.inner.copy_out(offset, bytes);
    }

    /// Adds the pages that were stored into since the last call to `pages`. No thread stores
    /// meanwhile.
    ///
    /// # Errors
    /// What the system says; what was added counts all the same.
    pub fn collect(&self, pages: &mut Vec<Pages>) -> io::Result<()> {
        let known = pages.len();
        self.inner.states().written.take(pages);
        if self.inner.twin.is_none() {
            self.inner.collect_changed(pages);
            return Ok(());
        }
        let taken = &pages[known..];
        taken.iter().try_for_each(|range| self.inner.open(range.clone(), Right::Read)).inspect_err(
            |_| {
                // The one that failed, and all behind it, may be written still.
                taken.iter().for_each(|range| self.inner.states().written.note(range.clone()));
            },
        )
    }
}

impl View {
    /// Notes pages again that [`View::collect`] returned, because nothing came of that. They are
    /// closed for stores, which costs a fault more.
    pub fn note(&self, pages: Pages) {
        self.inner.states().written.note(pages);
    }

    /// The notes of stores, for code that stores through another mapping of this memory, into pages
    /// that it has loaded from before: no other page is filled. `None`: nothing is noted here.
    #[must_use]
    pub fn store_notes(&self) -> Option<StoreNotes> {
        let notes = || StoreNotes::new(self.inner.base, Arc::clone(&self.inner.states().written));
        self.inner.twin.as_ref().map(|_| notes())
    }

    /// Pages that were stored into since the last [`View::collect`]; while others store, about.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.inner.states().written.count()
    }

    /// Whether pages that were stored into are found by comparing, because faults tell of none.
    #[must_use]
    pub fn compares(&self) -> bool {
        self.inner.twin.is_none()
    }

    /// Its pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.inner.pages
    }

    /// What it is the memory of, for messages.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.inner.what
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Waits for handlers: after this no handler asks.
        drop(self.registration.take());
        self.inner.owner.retire();
        match (&self.inner.worker, self.registered) {
            (Some(worker), true) => FaultWorker::leave(Arc::clone(worker)),
            _ => self.stop(),
        }
    }
}

impl ViewInner {
    fn new(
        what: &str,
        protection: Protection,
        source: Source,
        base: usize,
        writable: bool,
        (twin, worker): (Option<DualMapping>, Option<Arc<FaultWorker>>),
    ) -> Self {
        let pages = protection.pages();
        let span = pages as usize * PAGE_LEN;
        let states = PageStates {
            loaded: DirtyBitmap::new(span),
            broken: DirtyBitmap::new(span),
            written: Arc::new(DirtyBitmap::new(span)),
            writable: AtomicBool::new(writable),
            is_whole: twin.is_none(),
        };
        let filling = vec![0; RUN as usize * (PAGE_LEN + SIDE_LEN)].into_boxed_slice();
        Self {
            what: what.into(),
            protection,
            source,
            twin,
            base,
            pages,
            stopped: AtomicBool::new(false),
            owner: Owner::new(base..base + span, RangeKind::Sealed, what, states),
            worker,
            filling: Mutex::new(filling),
        }
    }

    /// An object whose pages are all there from the beginning. If it is too large for that, or one
    /// of them cannot be filled, what it was to be made of.
    ///
    /// # Safety
    /// As [`View::new`].
    unsafe fn whole(
        what: &str,
        protection: Protection,
        source: Source,
        base: usize,
        writable: bool,
    ) -> Result<Self, Box<(Protection, Source)>> {
        let most = match protection.mode() {
            Mode::Encryption | Mode::Authenticated => SMALL_UNHASHED,
            _ => SMALL,
        };
        if protection.pages() > most || memory::page_bytes() != PAGE_LEN {
            return Err(Box::new((protection, source)));
        }
        let inner = Self::new(what, protection, source, base, writable, (None, None));
        let span = inner.pages as usize * PAGE_LEN;
        // SAFETY: the caller's range, which no other code has.
        let made = unsafe { dual_mapping::map_alone(base, span) }.is_ok()
            && inner.fill_closed(0..inner.pages).is_ok()
            && (writable || inner.open(0..inner.pages, Right::Read).is_ok());
        if made {
            inner.states().loaded.note(0..inner.pages);
            return Ok(inner);
        }
        // What was filled goes with the mapping, which the next one replaces.
        Err(Box::new((inner.protection, inner.source)))
    }

    /// The first byte of where pages are filled and copied: always readable.
    fn alias(&self) -> *mut u8 {
        self.twin
            .as_ref()
            .map_or(core::ptr::with_exposed_provenance_mut(self.base), DualMapping::alias)
    }

    /// See [`View::copy_out`].
    fn copy_out(&self, offset: u64, bytes: &mut [u8]) {
        debug_assert!(offset + bytes.len() as u64 <= self.pages * PAGE_LEN as u64);
        // SAFETY: inside the alias, which is always readable; what others store meanwhile the
        // caller answers for. The copy takes padding along, and `bytes`, which is the caller's
        // alone, is settled then.
        unsafe {
            let from = self.alias().add(offset as usize);
            core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
            settle(bytes.as_mut_ptr(), bytes.len());
        }
    }

    /// Adds pages that are not what was psynced last, or of which that cannot be said. No thread
    /// stores meanwhile.
    fn collect_changed(&self, changed: &mut Vec<Pages>) {
        let (mut plain, mut here) = ([0; PAGE_LEN], [0; PAGE_LEN]);
        let opened = self.each_sealed(0..self.pages, |page, sealed, side| {
            let opened = self.protection.sealer().open(page, sealed, side, &mut plain);
            self.copy_out(page * PAGE_LEN as u64, &mut here);
            if opened.is_err() || plain != here {
                changed.push(page..page + 1);
            }
            Ok(())
        });
        wipe_bytes(&mut plain);
        wipe_bytes(&mut here);
        if opened.is_err() {
            changed.push(0..self.pages);
        }
    }

    /// What a fault handler does; see [`alt_stack`].
    fn resolve(&self, address: usize) -> bool {
        let page = (address.wrapping_sub(self.base) / PAGE_LEN) as u64;
        if page >= self.pages || self.states().broken.has(page) || self.is_stopped() {
            return false;
        }
        let Some(worker) = &self.worker else { return false };
        let queue = &worker.queue;
        if !self.states().loaded.has(page) {
            let filled =
                alt_stack::run(|| self.answer(page << 1)).unwrap_or_else(|| queue.ask(page << 1));
            // What is wrong is met when the access is tried again.
            if !(filled
                && self.is_writable()
                && self.states().loaded.has(page)
                && fault::is_store())
            {
                return filled;
            }
        }
        // Loaded: a store, or a load that another thread's came before. A reader's store is tried
        // again, and given up by the handler.
        if !self.is_writable() {
            return true;
        }
        let fine = mappings::fineness() == Fineness::Page && self.let_write(page..page + 1);
        if fine || !self.owner.is_denied(page) {
            return fine || queue.ask(page << 1 | 1);
        }
        // Another owner denies stores, and perhaps loads; no filling of pages around gives them.
        !fault::is_store() && self.owner.right_of(page) != Right::Nothing
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn is_writable(&self) -> bool {
        self.states().writable.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn states(&self) -> &PageStates {
        self.owner.rights()
    }

    /// Opens pages, or closes them for stores; what other owners of them deny they keep denying.
    fn open(&self, pages: Pages, right: Right) -> io::Result<()> {
        // SAFETY: this view's own range. What is taken away from writers is stores, which the
        // resolver gives back.
        unsafe { self.owner.set(pages, right) }.map(drop)
    }

    /// Lets loaded pages be written, and notes them before and after: see
    /// `cenote_protect::dirty_bitmap`.
    /// Async-signal-safe.
    fn let_write(&self, pages: Pages) -> bool {
        let many = pages.end - pages.start > 1;
        // SAFETY: as in `open`.
        let open = || unsafe { self.owner.set(pages.clone(), Right::Write) };
        // Where another owner denies one of many, its fault comes again and tells.
        self.states().written.while_opening(pages.clone(), open).is_ok_and(|all| all || many)
    }
}
