//! Second windows of a pool: what snapshots read while writers go on.
//!
//! A window begins between two transactions and shows the pool as it is then, at one distance from
//! the pool's addresses. It maps the pool's files privately ([`cenote_store::PoolWindow`]), and the
//! [`gate`] has each page kept before its first change. So the bytes that a reader sees, and their
//! addresses, stay as they are, and no reader looks for versions.
//!
//! **The window's own metadata say what is alive.** Of a traced heap descriptors are kept at once
//! (a thousandth of the pool), and marks before they change. [`Window::is_live`] reads them as
//! [`PuddleHeap::is_live`](crate::PuddleHeap::is_live) reads those of the pool. Puddles that are
//! younger than the window do not belong to it. A logged heap has all its metadata kept at once and
//! is opened a second time in the window ([`backing`]); a wear heap has no windows.
//!
//! Nothing of a window is on media. A crash ends it, and recovery knows nothing of it.

mod backing;
mod error;
pub mod gate;

use crate::error::RootError;
use crate::heap::Heap as _;
use crate::logged::{LoggedHeap, LoggedOptions};
use crate::pool_heap::PoolHeap;
use crate::roots;
use crate::traced::{PuddleHeap, PuddleLines};
use backing::WindowBacking;
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{RootEntry, RootSlot};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, WindowBug, planted};
use cenote_protect::Attention;
use cenote_store::{PoolHandle, PoolWindow};
use core::ptr::NonNull;
use std::sync::Arc;

pub use error::{SnapshotError, SnapshotHolder};
use gate::Kept;
pub use gate::SnapshotLimit;

/// A pool as it was between two transactions.
#[derive(Debug)]
pub struct Window {
    /// For each 2 MiB from the base, the number of the puddle in `puddles`, and one more; 0: none.
    slots: Box<[u32]>,
    /// Of a traced heap.
    puddles: Vec<PuddleLines>,
    /// A logged heap. It ends before the mappings.
    logged: Option<LoggedHeap<WindowBacking>>,
    distance: u64,
    /// Start of the first puddle.
    base: u64,
    kept: Arc<Kept>,
    /// Where the numbered roots lie.
    roots: Roots,
    _attention: Attention,
}

/// The slots of the roots, in the window.
#[derive(Debug)]
struct Roots(NonNull<RootSlot>);

// SAFETY: the places are in the window's mapping, which lives as long as the window, and are read
// alone: by atomic loads, or where no thread stores.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Begins a window of a pool.
    ///
    /// # Errors
    /// The pool can have none; it cannot be mapped; what is kept at once is more than the limit.
    ///
    /// # Safety
    /// No transaction runs in the pool during the call, and the heap is the pool's.
    pub unsafe fn begin(
        pool: &PoolHandle,
        heap: &PoolHeap,
        limit: &Arc<SnapshotLimit>,
    ) -> Result<Self, SnapshotError> {
        let name = || pool.name().to_string();
        let refused = |why, instead| Err(SnapshotError::Refused { pool: name(), why, instead });
        if matches!(heap, PoolHeap::Wear(_)) {
            return refused("it has a wear heap", "read through a view");
        }
        // SAFETY: the window is read, and kept page by page.
        let mapped = unsafe { pool.private_window() };
        let mapped = mapped
            .map_err(|source| SnapshotError::Map { pool: name(), source: Box::new(source) })?;
        let Ok(root) = heap.root_slot(0) else {
            return refused("its root puddle is damaged", "check it");
        };
        let distance = mapped.distance();
        let root = root.as_ptr().map_addr(|addr| addr.wrapping_add(distance as usize));
        let roots = Roots(NonNull::new(root).unwrap_or(NonNull::dangling()));
        let Some((puddles, metadata)) = places(heap, &mapped) else {
            return refused("one of its puddles is damaged", "check it");
        };
        let backing = WindowBacking::new(pool, &mapped);
        let slots = slots_of(&mapped);
        let base = mapped.puddles().first().map_or(0, |(of, _)| of.start);
        let kept = Arc::new(Kept::new(mapped, pool.name(), limit));
        kept.begin();
        let (logged, _attention) = (None, Attention::begin());
        let mut this = Self { slots, puddles, logged, distance, base, kept, roots, _attention };
        if !planted(Bug::Window(WindowBug::DescriptorsNotKept)) {
            for (from, len) in metadata {
                this.kept.keep(from, len, &[])?;
            }
        }
        if matches!(heap, PoolHeap::Logged(_)) {
            let options = LoggedOptions::for_pool(pool.record().puddle_size);
            let options = LoggedOptions { sub_heaps: 1, ..options };
            match LoggedHeap::open_pool(backing, &options) {
                Ok(heap) => this.logged = Some(heap),
                Err(_) => return refused("its metadata are damaged", "check it"),
            }
        }
        Ok(this)
    }

    /// What is to be added to an address of the pool, wrapping around.
    #[inline]
    #[must_use]
    pub const fn distance(&self) -> u64 {
        self.distance
    }

    /// The address in the pool, of one that lies in the window; the same one, of any other.
    #[inline]
    #[must_use]
    pub fn home(&self, addr: u64) -> u64 {
        let there = addr.wrapping_sub(self.distance);
        if there.wrapping_sub(self.base) < self.slots.len() as u64 * SLOT_SIZE {
            there
        } else {
            addr
        }
    }

    /// The lines of the puddle that holds an address.
    #[inline]
    fn lines(&self, addr: u64) -> Option<&PuddleLines> {
        let slot = *self.slots.get((addr.wrapping_sub(self.base) / SLOT_SIZE) as usize)?;
        self.puddles.get(slot.wrapping_sub(1) as usize)
    }

    /// Whether a block of a type was allocated when the window began, and begins at this address of
    /// the pool.
    #[inline]
    #[must_use]
    pub fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        match self.lines(addr) {
            // SAFETY: the puddle is mapped at the distance as long as the window lives.
            Some(lines) => unsafe {
                lines.live(addr.wrapping_add(self.distance), type_id).is_some()
            },
            None => self.is_live_logged(addr, type_id),
        }
    }

    /// The same of a logged heap.
    #[inline(never)]
    fn is_live_logged(&self, addr: u64, type_id: TypeId) -> bool {
        let Some(heap) = &self.logged else { return false };
        heap.is_live(addr.wrapping_add(self.distance), type_id)
    }

    /// The usable bytes of such a block.
    #[must_use]
    pub fn live_size(&self, addr: u64, type_id: TypeId) -> Option<u64> {
        let there = addr.wrapping_add(self.distance);
        if let Some(heap) = &self.logged {
            let block = heap.find(there).ok().filter(|block| block.type_id == type_id);
            return block.map(|block| block.size);
        }
        // SAFETY: as in `is_live`.
        unsafe { self.lines(addr)?.live_size(there, type_id) }
    }

    /// What root `index` held when the window began.
    ///
    /// # Errors
    /// There is no such root; it is damaged.
    pub fn root(&self, index: u16) -> Result<RootEntry, RootError> {
        if u64::from(index) >= cenote_layout::heap::ROOT_COUNT {
            return Err(RootError::Index { index });
        }
        // SAFETY: one of the slots, which lie in the window's mapping.
        roots::read(index, unsafe { self.roots.0.add(usize::from(index)) })
    }

    /// Whether a writer has come since the window began.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.kept.is_stale() && !planted(Bug::Window(WindowBug::StaleShared))
    }

    /// A writer comes.
    pub fn set_stale(&self) {
        self.kept.set_stale();
    }

    /// Bytes of old pages that it keeps.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.kept.bytes()
    }

    /// A snapshot of this thread looks through it from now on. Returns its number.
    #[must_use]
    pub fn hold(&self) -> u64 {
        let number = gate::next_number();
        self.kept.hold(number);
        number
    }

    /// The snapshot looks through it no more.
    pub fn let_go(&self, number: u64) {
        self.kept.let_go(number);
    }

    /// What errors say of a snapshot.
    #[must_use]
    pub fn holder(&self, number: u64) -> Option<SnapshotHolder> {
        self.kept.holder(number)
    }

    /// The oldest snapshot that looks through it.
    #[must_use]
    pub fn oldest(&self) -> SnapshotHolder {
        self.kept.oldest(core::slice::from_ref(&self.kept))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.kept.end();
    }
}

/// Of a traced heap the places of all puddles at the distance; and where metadata lie that are kept
/// at once. All puddles are attached, so that descriptors say what this session believes.
#[allow(clippy::type_complexity, reason = "two lists")]
fn places(heap: &PoolHeap, window: &PoolWindow) -> Option<(Vec<PuddleLines>, Vec<(u64, u64)>)> {
    let heap = match heap {
        PoolHeap::Traced(heap) => heap,
        PoolHeap::Logged(heap) => return Some((Vec::new(), heap.metadata())),
        PoolHeap::Wear(_) => return None,
    };
    let puddles = window.puddles().iter().map(|(of, _)| heap.touch(of.start).ok());
    let place = |puddle: &PuddleHeap| puddle.place().at_distance(window.distance());
    puddles.map(|puddle| puddle.map(|puddle| (place(puddle), puddle.descriptors()))).collect()
}

/// See [`Window::slots`].
fn slots_of(window: &PoolWindow) -> Box<[u32]> {
    let puddles = window.puddles();
    let (base, end) = match (puddles.first(), puddles.last()) {
        (Some((first, _)), Some((last, _))) => (first.start, last.end),
        _ => (0, 0),
    };
    let mut slots = vec![0; (end - base).div_ceil(SLOT_SIZE) as usize].into_boxed_slice();
    for (number, (of, _)) in (1..).zip(puddles) {
        let first = ((of.start - base) / SLOT_SIZE) as usize;
        let count = (of.end - of.start).div_ceil(SLOT_SIZE) as usize;
        slots[first..first + count].fill(number);
    }
    slots
}
