//! Reads of mapped memory that may fail: a page that cannot be had is an error of the reader, and no signal.
//!
//! A load from a mapping has no way to fail. Where a file was cut short, a disk cannot be read, or a sealed page does
//! not pass its check, the process gets SIGBUS. Code of this library that reads what media may have damaged runs inside
//! [`read`]. When one of its loads faults and no resolver of [`crate::fault`] makes the access possible, the handler
//!
//! 1. records the page;
//! 2. maps a page of zeros there, a *stand-in*, and lets the load run again.
//!
//! At the end [`read`] takes every stand-in away: the pages are inaccessible from then on. It answers with the pages, and
//! its caller believes nothing that the body has read.
//!
//! # Rules for the body
//!
//! * It changes nothing that others see by what it has read: it may have read zeros. It stores into no page of the range.
//! * Nobody else reads pages of the range by plain loads at the time that could be unreadable: a stand-in is there for all.
//! * Threads that it starts enter through [`Reading::here`], taken before they start.
//!
//! # Safety argument
//!
//! The table has a place for each thread inside [`read`], with the thread's number and its process's token
//! ([`crate::fork_guard`]). The handler of a thread looks for that thread's own places only. They are filled and emptied
//! by that thread, outside handlers, so what a handler finds holds still while it runs; the record behind it lives until
//! the place is emptied, because [`Entered`] borrows it or owns a share of it.

use crate::memory::{self, Access};
use crate::{fault, fork_guard};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

/// Threads that may be inside at once; more wait.
const PLACES: usize = 128;
/// Pages of one reading that are stood in for. What faults beyond that goes on as a fault.
const PAGES_MAX: usize = 4096;

struct Place {
    /// 0: free.
    thread: AtomicU32,
    token: AtomicU64,
    /// Later ones lie inside earlier ones of the same thread.
    order: AtomicU64,
    record: AtomicPtr<Record>,
}

static TABLE: [Place; PLACES] = [const {
    Place {
        thread: AtomicU32::new(0),
        token: AtomicU64::new(0),
        order: AtomicU64::new(0),
        record: AtomicPtr::new(ptr::null_mut()),
    }
}; PLACES];

static ORDER: AtomicU64 = AtomicU64::new(1);

/// What one reading found, shared by its threads.
struct Record {
    range: Range<usize>,
    count: AtomicUsize,
    pages: Box<[AtomicUsize]>,
}

impl Record {
    fn add(&self, page: usize) -> bool {
        let place = self.pages.get(self.count.fetch_add(1, Ordering::Relaxed));
        place.inspect(|place| place.store(page, Ordering::Relaxed)).is_some()
    }
}

/// A reading under way, for its further threads.
#[derive(Clone)]
pub struct Reading(Option<Arc<Record>>);

impl Reading {
    /// That of this thread, if it is inside one.
    #[must_use]
    pub fn here() -> Self {
        let Some(record) = innermost() else { return Self(None) };
        // SAFETY: this thread's place holds a share of the record, which came from an `Arc`; this is a further one.
        Self(Some(unsafe {
            Arc::increment_strong_count(record);
            Arc::from_raw(record)
        }))
    }

    /// This thread takes part until what is returned is dropped.
    #[must_use]
    pub fn enter(&self) -> Entered {
        let Some(record) = &self.0 else {
            return Entered { place: None, _not_send: core::marker::PhantomData };
        };
        let thread = number_of_thread();
        let place = loop {
            let free = |place: &&Place| {
                place.thread.compare_exchange(0, u32::MAX, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            match TABLE.iter().find(free) {
                Some(place) => break place,
                None => std::thread::yield_now(),
            }
        };
        place.token.store(fork_guard::token(), Ordering::Relaxed);
        place.order.store(ORDER.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        place.record.store(Arc::into_raw(Arc::clone(record)).cast_mut(), Ordering::Relaxed);
        place.thread.store(thread, Ordering::Release);
        Entered { place: Some(place), _not_send: core::marker::PhantomData }
    }
}

/// This thread takes part in a reading.
#[must_use]
pub struct Entered {
    place: Option<&'static Place>,
    _not_send: core::marker::PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let record = place.record.swap(ptr::null_mut(), Ordering::Relaxed);
        place.thread.store(0, Ordering::Release);
        // SAFETY: the share that `enter` put there.
        drop(unsafe { Arc::from_raw(record) });
    }
}

fn number_of_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// The record of the innermost reading of this thread. Async-signal-safe.
fn innermost() -> Option<*const Record> {
    let (thread, token) = (number_of_thread(), fork_guard::current());
    let mine = |place: &&Place| {
        place.thread.load(Ordering::Acquire) == thread && place.token.load(Ordering::Relaxed) == token
    };
    let last = TABLE.iter().filter(mine).max_by_key(|place| place.order.load(Ordering::Relaxed))?;
    let record = last.record.load(Ordering::Relaxed).cast_const();
    (!record.is_null()).then_some(record)
}

/// For resolvers: notes that the page at `address` cannot be had, if this thread is inside a reading of it. `true`: the
/// resolver makes a page of zeros accessible there, for loads. It becomes inaccessible when the reading ends.
#[must_use]
pub fn note(address: usize) -> bool {
    let Some(record) = innermost() else { return false };
    // SAFETY: this thread's place has a share of it, and is emptied by this thread only.
    let record = unsafe { &*record };
    record.range.contains(&address) && record.add(address & !(memory::page_bytes() - 1))
}

/// What the fault handler does when no resolver helps. Async-signal-safe.
pub(crate) fn stand_in(address: usize) -> bool {
    if !note(address) {
        return false;
    }
    let page = memory::page_bytes();
    // SAFETY: the range of the reading is the caller's, and nobody uses what cannot be read.
    unsafe { memory::map_anonymous(address & !(page - 1), page) }.is_ok()
}

/// Runs `body`, whose loads from `range` cannot end the process. `Err`: the first bytes of pages that could not be had,
/// in order; what `body` said is not to be believed.
///
/// Faults are resolved only after something was registered with [`fault`], which a store does.
///
/// # Safety
/// `range` is reserved by the caller, and `body` keeps the rules of this module.
pub unsafe fn read<R>(range: Range<usize>, body: impl FnOnce() -> R) -> Result<R, Vec<usize>> {
    let pages = (0..PAGES_MAX).map(|_| AtomicUsize::new(0)).collect();
    let record = Arc::new(Record { range, count: AtomicUsize::new(0), pages });
    let entered = Reading(Some(Arc::clone(&record))).enter();
    let result = body();
    drop(entered);
    let count = record.count.load(Ordering::Relaxed).min(PAGES_MAX);
    if count == 0 {
        return Ok(result);
    }
    let mut found: Vec<usize> =
        record.pages[..count].iter().map(|page| page.load(Ordering::Relaxed)).collect();
    found.sort_unstable();
    found.dedup();
    for page in &found {
        // SAFETY: a stand-in, which nobody but the body has used; what cannot be closed stays zeros.
        let _ = unsafe { memory::protect(*page, memory::page_bytes(), None::<Access>) };
    }
    fault::note_revocation();
    Err(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Sharing;
    use std::os::fd::AsFd;

    const PAGE: usize = 4096;

    unsafe fn nothing(_: *const (), _: usize) -> bool {
        false
    }

    /// Four pages of a file that ends behind the first; faults come to the handler.
    fn cut_short(test: impl FnOnce(usize)) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(PAGE as u64).expect("a length");
        let base = memory::reserve_anywhere(4 * PAGE, PAGE).expect("address space");
        // SAFETY: our own reservation.
        unsafe { memory::map_file(file.as_fd(), base, 4 * PAGE, Access::ReadWrite, Sharing::Shared) }
            .expect("map");
        // SAFETY: the resolver does nothing.
        let registered =
            unsafe { fault::register(base, 4 * PAGE, nothing, ptr::null()) }.expect("registered");
        test(base);
        drop(registered);
        // SAFETY: our own reservation.
        unsafe { memory::release(base, 4 * PAGE) }.expect("release");
    }

    fn load(addr: usize) -> u8 {
        // SAFETY: mapped by the tests; a load that faults is what they are about.
        unsafe { ptr::with_exposed_provenance::<u8>(addr).read_volatile() }
    }

    #[test]
    fn pages_that_cannot_be_had_are_told_and_the_thread_goes_on() {
        cut_short(|base| {
            let range = base..base + 4 * PAGE;
            // SAFETY: our own memory, which nobody else reads.
            let whole = unsafe { read(range.clone(), || load(base + 9)) };
            assert_eq!(whole, Ok(0));
            // SAFETY: as the one before: our own memory, which nobody else reads.
            let read = unsafe {
                read(range, || {
                    let reading = Reading::here();
                    // A thread of the body's, and one reading inside another.
                    std::thread::scope(|scope| {
                        let reading = &reading;
                        scope.spawn(move || {
                            let _entered = reading.enter();
                            load(base + 3 * PAGE)
                        });
                    });
                    let inner = read(base..base + 4 * PAGE, || load(base + 2 * PAGE));
                    (load(base + PAGE + 5), load(base + PAGE + 7), inner)
                })
            };
            assert_eq!(read, Err(vec![base + PAGE, base + 3 * PAGE]));
            // The stand-ins are gone: nobody takes their zeros for what the pages hold.
            let mut page = [0; PAGE];
            assert!(crate::bytes::copy_by_kernel(base + PAGE, &mut page).is_err());
            assert!(crate::bytes::copy_by_kernel(base, &mut page).is_ok());
        });
    }

    #[test]
    fn outside_its_range_and_in_other_threads_nothing_stands_in() {
        cut_short(|base| {
            // SAFETY: our own memory, of which nothing is read.
            let asked = unsafe {
                read(base..base + 2 * PAGE, || {
                    let elsewhere = std::thread::scope(|scope| scope.spawn(|| note(base)).join());
                    (note(base + 2 * PAGE), elsewhere.expect("no panic"), note(base + PAGE))
                })
            };
            assert_eq!(asked, Err(vec![base + PAGE]));
            assert!(!note(base + PAGE), "the reading is over");
        });
    }
}
