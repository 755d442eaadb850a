//! The interface below a heap: puddles that are mapped, more of them on request, and a way to make
//! stores durable.
//!
//! The seam between heap and store. It keeps the heap testable without files, and lets a checker
//! drive it.

use cenote_layout::pointer::RegionAddress;
use cenote_protect::StoreNotes;
use core::ops::Range;
use core::sync::atomic::AtomicPtr;
use std::io;
use std::sync::Arc;

/// Why there is no more memory under the heap.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// The pool would grow beyond its limit.
    #[error(
        "the pool has {bytes} bytes and may have {size_max}: a puddle of {requested} more does not \
         fit; free something or raise the limit"
    )]
    Limit {
        /// Bytes of the puddle that was asked for.
        requested: u64,
        /// Bytes of all puddles.
        bytes: u64,
        /// Most bytes of the pool.
        size_max: u64,
    },
    /// The store says no: no space, an error of the medium, a poisoned store.
    #[error("{doing} failed: {source}")]
    Store {
        /// What was tried.
        doing: &'static str,
        /// The store's own words.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// One heap puddle of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its number in the pool; 0 is the root puddle.
    pub index: u32,
    /// Its address, a multiple of 2 MiB.
    pub addr: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// The memory under one heap.
///
/// # Safety
/// Once `map` succeeded, the bytes of a extent are mapped (writable if `is_writable`) at `addr` for
/// as long as the `Backing` lives, are used by none but this heap and those it gave blocks to, and
/// `slot` answers for every address in them. A slot is null when the heap is opened.
///
/// If there is a `sharing`, "this heap" is that of all members: each has the same bytes mapped
/// shared, at the same addresses, in one coherent memory. `extents` and `slot` know a puddle that
/// any member took as soon as its `take` has returned there; slots are each process's own. What
/// [`Sharing`] asks holds.
pub unsafe trait Backing: Send + Sync + 'static {
    /// All heap puddles of the pool, in order of their numbers.
    fn extents(&self) -> Vec<Extent>;

    /// Makes a puddle accessible, if it is not.
    ///
    /// # Errors
    /// It cannot be mapped.
    fn map(&self, extent: &Extent) -> Result<(), BackingError>;

    /// Told that the first `bytes` of an extent are metadata, which no program reads.
    fn note_metadata(&self, extent: &Extent, bytes: u64) {
        let _ = (extent, bytes);
    }

    /// Adds a puddle of `size` bytes (a multiple of 64 KiB) or more, zero filled after its header
    /// space, mapped and durable.
    ///
    /// # Errors
    /// The pool's limit, no space, or an error of the medium. The pool is as before.
    fn take(&self, size: u64) -> Result<Extent, BackingError>;

    /// As [`Backing::take`], a puddle for metadata alone, and recorded as one.
    ///
    /// # Errors
    /// As [`Backing::take`].
    fn take_for_metadata(&self, size: u64) -> Result<Extent, BackingError> {
        self.take(size)
    }

    /// Whether a puddle is recorded as one for metadata alone; `None`: no puddle here is recorded
    /// as one or the other.
    fn is_for_metadata(&self, extent: &Extent) -> Option<bool> {
        let _ = extent;
        None
    }

    /// Told that the pool will ask for a puddle of `size` bytes next, so that one can be made ready
    /// meanwhile. Does not wait.
    fn expect(&self, size: u64) {
        let _ = size;
    }

    /// Where the heap's own data for the puddle that contains `addr` hang; `None` if no heap puddle
    /// of *this* pool does. Constant time, without locks.
    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>>;

    /// Whether `addr` is in a puddle of another pool.
    fn is_foreign(&self, addr: u64) -> bool;

    /// How this process and others have the pool open for writing together; `None`: there is one
    /// process. Always the same answer.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }

    /// The address that a region pointer leads to, in this pool or another of its store; `None` if
    /// the store has no such puddle, or the offset is beyond its end.
    fn region(&self, region: &RegionAddress) -> Option<u64> {
        let _ = region;
        None
    }

    /// The inverse: pool, puddle and offset of an address, in this pool or another of its store;
    /// `None` if no puddle is there, or none says where it is.
    fn place(&self, addr: u64) -> Option<RegionAddress> {
        let _ = addr;
        None
    }

    /// The error for a page of the pool that cannot be read: the heap found that out at `addr`.
    fn unreadable(&self, addr: u64) -> BackingError {
        let source = format!("the page at {addr:#x} cannot be read").into();
        BackingError::Store { doing: "reading a puddle", source }
    }

    /// Whether what was done may be acknowledged: no page of metadata was lost meanwhile, say.
    /// Asked before what no later step takes back.
    ///
    /// # Errors
    /// Why nothing may be acknowledged.
    fn usable(&self) -> Result<(), BackingError> {
        Ok(())
    }

    /// Whether the pool is open for writing.
    fn is_writable(&self) -> bool;

    /// What messages call the pool.
    fn name(&self) -> String {
        "without a name".into()
    }

    /// Whether each extent is one file that is mapped shared and writable, so that a second
    /// mapping shows the same bytes.
    fn can_map_twice(&self) -> bool {
        false
    }

    /// What is to be told of stores through a second mapping of the extent at `addr`; `None`:
    /// nothing has to know of them. Then a page is loaded from, where the extent is mapped, before
    /// it is stored into.
    ///
    /// # Errors
    /// They have to be noted, and cannot be.
    fn store_notes(&self, addr: u64) -> io::Result<Option<StoreNotes>> {
        let _ = addr;
        Ok(None)
    }

    /// Whether pages that the heap does not use can lose all access: only the heap, and programs
    /// that it gave blocks to, read the extents where they are mapped.
    fn can_close_off(&self) -> bool {
        true
    }

    /// Told that `len` bytes at `addr`, whole pages of one extent that is mapped, are data: only
    /// transactions store there. Before the first block of them is given out.
    ///
    /// # Errors
    /// They are to be protected, and cannot be. Nothing has changed.
    fn begin_data(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        let _ = (addr, len);
        Ok(())
    }

    /// Takes [`Backing::begin_data`] back for the extent at `addr`, if it was called: nothing is
    /// given out there, or the heap ends.
    fn end_data(&self, addr: u64) {
        let _ = addr;
    }

    /// The addresses that all extents lie in, those to come too, if the metadata of a traced heap
    /// are to be guarded by second mappings; then [`Backing::can_map_twice`].
    fn guarded_window(&self) -> Option<Range<usize>> {
        None
    }

    /// Bytes of the pool's first puddle.
    fn puddle_size(&self) -> u64;

    /// Most bytes of all puddles of the pool.
    fn size_max(&self) -> u64;

    /// Gives the space of `len` bytes at `addr`, whole pages in one extent, back to the system.
    /// They read as zeros then, and no thread stores into them before [`Backing::ensure`]. `false`:
    /// that cannot be done here, and nothing has changed.
    ///
    /// # Safety
    /// No thread uses the range, or needs what is in it.
    ///
    /// # Errors
    /// The medium reports an error. Part of the range may have been given back.
    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, BackingError> {
        let _ = (addr, len);
        Ok(false)
    }

    /// Whether [`Backing::release`] can give anything back here. What says "no" is never told of
    /// space that no thread needs.
    fn releases(&self) -> bool {
        true
    }

    /// Takes space for those parts of a range that have none, for good at the durability level:
    /// stores into the range cannot fail any more. Bytes stay as they are.
    ///
    /// # Errors
    /// No space, or an error of the medium.
    fn ensure(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        let _ = (addr, len);
        Ok(())
    }

    /// Whether the durability level covers a loss of power, so that flush and fence count.
    fn is_power(&self) -> bool {
        true
    }

    /// Begins to write the lines of a range back, if the durability level asks for that.
    ///
    /// # Safety
    /// The range is mapped memory of this pool.
    unsafe fn flush(&self, start: *const u8, len: usize);

    /// Waits until what was flushed is durable, if the durability level asks for that.
    fn fence(&self);
}

// SAFETY: every answer is that of the backing that the pointer leads to, which lives as long.
unsafe impl<G: Backing> Backing for Arc<G> {
    fn extents(&self) -> Vec<Extent> {
        (**self).extents()
    }

    fn map(&self, extent: &Extent) -> Result<(), BackingError> {
        (**self).map(extent)
    }

    fn note_metadata(&self, extent: &Extent, bytes: u64) {
        (**self).note_metadata(extent, bytes);
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        (**self).take(size)
    }

    fn take_for_metadata(&self, size: u64) -> Result<Extent, BackingError> {
        (**self).take_for_metadata(size)
    }

    fn is_for_metadata(&self, extent: &Extent) -> Option<bool> {
        (**self).is_for_metadata(extent)
    }

    fn expect(&self, size: u64) {
        (**self).expect(size);
    }

    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        (**self).slot(addr)
    }

    fn is_foreign(&self, addr: u64) -> bool {
        (**self).is_foreign(addr)
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        (**self).sharing()
    }

    fn region(&self, region: &RegionAddress) -> Option<u64> {
        (**self).region(region)
    }

    fn place(&self, addr: u64) -> Option<RegionAddress> {
        (**self).place(addr)
    }

    fn unreadable(&self, addr: u64) -> BackingError {
        (**self).unreadable(addr)
    }

    fn usable(&self) -> Result<(), BackingError> {
        (**self).usable()
    }

    fn name(&self) -> String {
        (**self).name()
    }

    fn can_map_twice(&self) -> bool {
        (**self).can_map_twice()
    }

    fn store_notes(&self, addr: u64) -> io::Result<Option<StoreNotes>> {
        (**self).store_notes(addr)
    }

    fn can_close_off(&self) -> bool {
        (**self).can_close_off()
    }

    fn begin_data(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        (**self).begin_data(addr, len)
    }

    fn end_data(&self, addr: u64) {
        (**self).end_data(addr);
    }

    fn guarded_window(&self) -> Option<Range<usize>> {
        (**self).guarded_window()
    }

    fn is_writable(&self) -> bool {
        (**self).is_writable()
    }

    fn puddle_size(&self) -> u64 {
        (**self).puddle_size()
    }

    fn size_max(&self) -> u64 {
        (**self).size_max()
    }

    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, BackingError> {
        // SAFETY: the caller's promise is the same.
        unsafe { (**self).release(addr, len) }
    }

    fn releases(&self) -> bool {
        (**self).releases()
    }

    fn ensure(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        (**self).ensure(addr, len)
    }

    fn is_power(&self) -> bool {
        (**self).is_power()
    }

    unsafe fn flush(&self, start: *const u8, len: usize) {
        // SAFETY: the caller's promise is the same.
        unsafe { (**self).flush(start, len) }
    }

    fn fence(&self) {
        (**self).fence();
    }
}

/// Several processes on one pool: their identities, which of them live, and a lock between them.
///
/// A [`Backing`] that has one promises: two members never have the same identity in one epoch, also
/// one after the other; `lives` is right; the lock excludes.
pub trait Sharing: Send + Sync {
    /// Names the boot of the machine, and the store: another one after each boot. Never 0. What
    /// stands in the mapping under another epoch means nothing.
    fn epoch(&self) -> u64;

    /// This member's identity: neither 0 nor `u64::MAX`, bit 31 clear; say, process number and
    /// start time.
    fn me(&self) -> u64;

    /// Whether that member may still write to the mapping, or has left a log that was not replayed
    /// yet. "No" is certain, and for ever. Often asked, for all members in turn, but never on a
    /// fast path.
    fn lives(&self, who: u64) -> bool;

    /// The same answer as `!lives`, or why it is not known, or why it will stay so: what the dead
    /// one left cannot be dealt with.
    ///
    /// # Errors
    /// As said.
    fn has_ended(&self, who: u64) -> Result<bool, BackingError> {
        Ok(!self.lives(who))
    }

    /// That the words which members share, locks among them, are those of all members, and not
    /// memory of this process in the place of a page that was lost.
    ///
    /// # Errors
    /// They are not.
    fn intact(&self) -> Result<(), BackingError> {
        Ok(())
    }

    /// Waits for the pool's lock. It lets go of itself when its holder dies. Only one thread of
    /// this process comes here at a time.
    ///
    /// # Errors
    /// It cannot be had.
    fn lock(&self) -> Result<(), BackingError>;

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// As `lock`.
    fn try_lock(&self) -> Result<bool, BackingError>;

    /// Lets go of the lock.
    fn unlock(&self);
}
