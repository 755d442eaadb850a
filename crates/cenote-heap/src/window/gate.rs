//! The gate that each store into a pool passes while a second window of it lives, and what is kept
//! behind it.
//!
//! **No byte that a window's readers may look at changes before each live window of the pool has
//! kept its page.** Pages are kept in groups of [`GROUP`] bytes: a group in one call costs about
//! half of single pages. A bit says that a group is kept; it is set behind the call that keeps it.
//!
//! | who stores | what passes the gate |
//! | --- | --- |
//! | a transaction that logs a range, or defers a write | the range, before it is logged |
//! | a transaction that allocates a block | the word of its mark, before it is logged |
//! | a transaction that frees a block | the word of its mark, and all of the block |
//! | commit, abort | nothing: they store where these steps have been |
//! | the heap, into descriptors or tables | nothing: the window has kept all of them |
//! | the heap, into free blocks; a transaction, into a fresh one | nothing, see below |
//!
//! *Free blocks.* A block that was free when the window began has no mark in it, so no reader looks
//! at its bytes. One that was allocated then and is free now was freed since, and kept whole by
//! that. So nothing is kept for fresh blocks, links of free ones, and space that a trim gives back.
//!
//! If a group cannot be kept, the step fails before it logs or stores anything.

use super::error::{SnapshotError, SnapshotHolder};
use cenote_medium::planted::{Bug, WindowBug, planted};
use cenote_store::PoolWindow;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// Bytes that are kept at a time.
pub const GROUP: u64 = 16 << 10;

/// Live windows of this process.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LIVE: RwLock<Vec<Arc<Kept>>> = RwLock::new(Vec::new());

fn live() -> RwLockReadGuard<'static, Vec<Arc<Kept>>> {
    LIVE.read().unwrap_or_else(PoisonError::into_inner)
}

/// How many bytes of old pages the windows of a pool may keep, and keep.
#[derive(Debug)]
pub struct SnapshotLimit {
    /// Most bytes.
    pub limit: AtomicU64,
    /// Bytes now.
    pub bytes: AtomicU64,
}

impl SnapshotLimit {
    /// The limit of a pool for which none was chosen.
    pub const DEFAULT: u64 = 1 << 30;
}

impl Default for SnapshotLimit {
    fn default() -> Self {
        Self { limit: AtomicU64::new(Self::DEFAULT), bytes: AtomicU64::new(0) }
    }
}

/// A snapshot that looks through a window.
#[derive(Clone, Debug)]
struct Holder {
    number: u64,
    thread: String,
    since: Instant,
}

/// What a window keeps.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) window: PoolWindow,
    pool: String,
    /// Addresses from the first puddle to the last.
    range: Range<u64>,
    /// A bit for each group from the first puddle on.
    groups: Box<[AtomicU64]>,
    bytes: AtomicU64,
    /// A writer has come since the window began.
    stale: AtomicBool,
    limit: Arc<SnapshotLimit>,
    holders: Mutex<Vec<Holder>>,
}

/// Whether a test says that the kernel has no memory.
fn fails() -> bool {
    planted(Bug::Window(WindowBug::CopyFails))
        || planted(Bug::Window(WindowBug::CopyFailureIgnored))
}

/// Whether a second window lives in this process. One relaxed load.
#[inline]
#[must_use]
pub fn is_live() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// A range of a pool is about to be changed: keeps its pages in the live windows of that pool.
///
/// # Errors
/// [`SnapshotError::Full`], [`SnapshotError::Copy`]. Nothing may be stored there then.
#[cold]
pub fn before_store(addr: u64, len: u64) -> Result<(), SnapshotError> {
    let all = live();
    all.iter().try_for_each(|kept| kept.keep(addr, len, &all))
}

/// A number for each snapshot of the process.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Kept {
    pub(super) fn new(window: PoolWindow, pool: &str, limit: &Arc<SnapshotLimit>) -> Self {
        let puddles = window.puddles();
        let (first, last) = (puddles.first(), puddles.last());
        let range = first.map_or(0, |(of, _)| of.start / GROUP * GROUP)
            ..last.map_or(0, |(of, _)| of.end.next_multiple_of(GROUP));
        let words = ((range.end - range.start) / GROUP).div_ceil(64) as usize;
        Self {
            window,
            pool: pool.to_string(),
            range,
            groups: crate::traced::zeroed_words(words),
            bytes: AtomicU64::new(0),
            stale: AtomicBool::new(false),
            limit: Arc::clone(limit),
            holders: Mutex::default(),
        }
    }

    /// From now on the gate keeps pages in it.
    pub(super) fn begin(self: &Arc<Self>) {
        LIVE.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(self));
        COUNT.fetch_add(1, Ordering::SeqCst);
    }

    /// The opposite. When this returns, no thread keeps pages in it any more.
    pub(super) fn end(self: &Arc<Self>) {
        COUNT.fetch_sub(1, Ordering::SeqCst);
        let mut live = LIVE.write().unwrap_or_else(PoisonError::into_inner);
        live.retain(|other| !Arc::ptr_eq(other, self));
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    pub(super) fn set_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(&self, number: u64) {
        let thread = std::thread::current();
        let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), |n| format!("`{n}`"));
        self.holders().push(Holder { number, thread: name, since: Instant::now() });
    }

    pub(super) fn let_go(&self, number: u64) {
        self.holders().retain(|holder| holder.number != number);
    }

    /// One of its snapshots.
    pub(super) fn holder(&self, number: u64) -> Option<SnapshotHolder> {
        self.named(&self.holders().iter().find(|holder| holder.number == number)?.clone())
    }

    fn named(&self, Holder { thread, since, .. }: &Holder) -> Option<SnapshotHolder> {
        let (thread, bytes) = (thread.clone(), self.bytes());
        Some(SnapshotHolder { thread, age: since.elapsed(), bytes })
    }

    /// The oldest snapshot of the same pool.
    pub(super) fn oldest(&self, all: &[Arc<Self>]) -> SnapshotHolder {
        let same = all.iter().filter(|other| Arc::ptr_eq(&other.limit, &self.limit));
        let mut oldest: Option<(Instant, Option<SnapshotHolder>)> = None;
        for kept in same {
            for holder in kept.holders().iter() {
                if oldest.as_ref().is_none_or(|(since, _)| holder.since < *since) {
                    oldest = Some((holder.since, kept.named(holder)));
                }
            }
        }
        let none = SnapshotHolder {
            thread: "(being taken)".to_string(),
            age: Duration::ZERO,
            bytes: self.bytes(),
        };
        oldest.and_then(|(_, holder)| holder).unwrap_or(none)
    }

    fn word(&self, group: u64) -> Option<(&AtomicU64, u64)> {
        Some((self.groups.get((group / 64) as usize)?, 1 << (group % 64)))
    }

    fn is_kept(&self, group: u64) -> bool {
        self.word(group).is_none_or(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Keeps the pages of a range, if it lies in a puddle of the window.
    pub(super) fn keep(&self, addr: u64, len: u64, all: &[Arc<Self>]) -> Result<(), SnapshotError> {
        let end = addr.saturating_add(len.max(1));
        if addr < self.range.start || addr >= self.range.end {
            return Ok(());
        }
        let group = |addr: u64| (addr - self.range.start) / GROUP;
        let last = if planted(Bug::Window(WindowBug::NeighbourMissed)) { addr } else { end - 1 };
        let (mut at, behind) = (group(addr), group(last.min(self.range.end - 1)) + 1);
        while at < behind {
            if self.is_kept(at) {
                at += 1;
                continue;
            }
            let mut past = at + 1;
            while past < behind && !self.is_kept(past) {
                past += 1;
            }
            self.keep_groups(at..past, all)?;
            at = past;
        }
        Ok(())
    }

    /// Keeps groups of which none is.
    #[cold]
    fn keep_groups(&self, groups: Range<u64>, all: &[Arc<Self>]) -> Result<(), SnapshotError> {
        let start = |group: u64| self.range.start + group * GROUP;
        let whole = start(groups.start)..start(groups.end);
        for (puddle, _) in self.window.puddles() {
            let part = whole.start.max(puddle.start)..whole.end.min(puddle.end);
            if part.start >= part.end {
                continue;
            }
            let len = part.end - part.start;
            self.count(len, all)?;
            if planted(Bug::Window(WindowBug::NotKept)) {
                continue;
            }
            let addr = part.start;
            let copied = match fails() {
                true => Err(io::ErrorKind::OutOfMemory.into()),
                false => self.window.keep(part),
            };
            copied.map_err(|source| {
                self.bytes.fetch_sub(len, Ordering::Relaxed);
                self.limit.bytes.fetch_sub(len, Ordering::Relaxed);
                let (pool, oldest) = (self.pool.clone(), self.oldest(all));
                SnapshotError::Copy { pool, addr, source, oldest }
            })?;
        }
        for group in groups {
            if let Some((word, bit)) = self.word(group) {
                word.fetch_or(bit, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Counts bytes that are going to be kept, if they may be.
    fn count(&self, len: u64, all: &[Arc<Self>]) -> Result<(), SnapshotError> {
        let SnapshotLimit { limit, bytes } = &*self.limit;
        let (limit, before) = (limit.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed));
        let is_full = before.saturating_add(len) > limit;
        if is_full && !planted(Bug::Window(WindowBug::LimitIgnored)) {
            let (pool, oldest) = (self.pool.clone(), self.oldest(all));
            return Err(SnapshotError::Full { pool, limit, bytes: before, oldest });
        }
        bytes.fetch_add(len, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.limit.bytes.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}
