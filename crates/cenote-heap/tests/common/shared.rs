//! One pool that several processes have open: files on memory, mapped at one address by all. What a
//! daemon will do for a store, in small: it says who lives, it has a lock, and it replays what a
//! dead process had begun.

use cenote_heap::{
    Backing, BackingError, Block, Cancelled, Extent, Heap as _, Sharing, Taking, TracedHeap,
};
use cenote_layout::id::TypeId;
use cenote_sys::memory::{Access, Sharing as Mapping, map_file, map_file_at, release, reserve};
use cenote_sys::process;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const SLOT: u64 = 2 << 20;
const SLOTS: usize = 256;
const WINDOW: u64 = SLOT * SLOTS as u64;
const CONTROL: u64 = 1 << 20;
/// Where pools lie: far from where the system puts things.
const BASE: u64 = 0x2100_0000_0000;
pub const WORKERS: usize = 8;
pub const KEPT: usize = 256;
/// Marks identities of members that the test plays itself.
const PLAYED: u64 = 1 << 63;

/// What all processes see besides the pool.
#[repr(C)]
pub struct Control {
    pub size_max: AtomicU64,
    pub puddle_size: AtomicU64,
    extents: AtomicU64,
    extent: [[AtomicU64; 2]; SLOTS],
    /// Start of the puddle that covers each slot.
    starts: [AtomicU64; SLOTS],
    /// Whether played member `n` lives.
    played: [AtomicU64; 128],
    pub workers: [Worker; WORKERS],
    pub stop: AtomicU64,
    /// 1: a process stands at the step where it is to be killed. 2: it never came there.
    pub reached: AtomicU64,
}

/// What one process has: its blocks, and a log of one entry.
#[repr(C)]
pub struct Worker {
    /// Whose log this is; 0 once it was replayed.
    pub who: AtomicU64,
    /// The block that is being allocated or freed, and its mark.
    addr: AtomicU64,
    word: AtomicU64,
    mask: AtomicU64,
    /// Lowest bit set: given to the main process.
    pub blocks: [AtomicU64; KEPT],
    pub operations: AtomicU64,
}

impl Worker {
    fn begin(&self, block: &Block) {
        self.word.store(block.mark.word.as_ptr() as u64, Ordering::Release);
        self.mask.store(block.mark.mask, Ordering::Release);
        self.addr.store(block.addr.as_ptr() as u64, Ordering::Release);
    }

    fn end(&self) {
        self.addr.store(0, Ordering::Release);
    }

    fn has(&self, addr: u64) -> bool {
        self.blocks.iter().any(|b| b.load(Ordering::Acquire) & !1 == addr)
    }

    /// Allocates a block for place `at`, as a transaction does: the log first, then the mark, then
    /// the block is reachable.
    pub fn alloc(
        &self,
        heap: &TracedHeap<SharedBacking>,
        at: usize,
        size: u64,
        type_id: TypeId,
    ) -> bool {
        let before = |block: &Block| -> Result<Taking, Cancelled> {
            self.begin(block);
            Ok(Taking::Allocated)
        };
        let Ok(block) = heap.alloc_inline(size, 16, type_id, before) else {
            self.end();
            return false;
        };
        let addr = block.addr.as_ptr() as u64;
        super::write(addr, 0, addr ^ self.stamp());
        super::write(addr, block.size - 8, !addr ^ self.stamp());
        self.blocks[at].store(addr, Ordering::Release);
        self.end();
        true
    }

    fn stamp(&self) -> u64 {
        std::ptr::from_ref(self) as u64 % CONTROL
    }

    /// That the block has its owner's stamps.
    pub fn verify(&self, addr: u64, size: u64) {
        let fits = super::read(addr, 0) == addr ^ self.stamp()
            && super::read(addr, size - 8) == !addr ^ self.stamp();
        assert!(fits, "block {addr:#x} of {size} bytes has another owner's stamp");
    }

    /// Frees the block of place `at`, in two steps.
    pub fn free(&self, heap: &TracedHeap<SharedBacking>, at: usize) {
        let addr = self.blocks[at].load(Ordering::Acquire);
        let block = heap.find(addr).unwrap();
        self.verify(addr, block.size);
        self.begin(&block);
        self.blocks[at].store(0, Ordering::Release);
        super::write(addr, 0, 0);
        heap.clear_mark(&block);
        self.end();
        heap.release(&block);
    }

    /// What a daemon does when it finds the process dead: what was not finished is taken back, or
    /// done. Then the process counts as dead.
    pub fn replay(&self) {
        let addr = self.addr.load(Ordering::Acquire);
        if addr != 0 && !self.has(addr) {
            let word = self.word.load(Ordering::Acquire) as usize;
            // SAFETY: a word of marks in the pool, mapped at the same place here.
            let word = unsafe { &*with_exposed_provenance::<AtomicU64>(word) };
            word.fetch_and(!self.mask.load(Ordering::Acquire), Ordering::AcqRel);
        }
        self.end();
        self.who.store(0, Ordering::Release);
    }
}

/// A pool's files; removed by the process that made them.
pub struct Files {
    pub path: PathBuf,
    pub base: u64,
    pool: Arc<Mapped>,
    _dir: Option<tempfile::TempDir>,
}

impl Files {
    pub fn new(puddle_size: u64, size_max: u64) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let place = if Path::new("/dev/shm").is_dir() {
            PathBuf::from("/dev/shm")
        } else {
            std::env::temp_dir()
        };
        let dir = tempfile::tempdir_in(place).unwrap();
        let path = dir.path().join("pool");
        let file = File::create_new(&path).unwrap();
        file.set_len(CONTROL + WINDOW).unwrap();
        let base = BASE + NUMBER.fetch_add(1, Ordering::Relaxed) * 4 * WINDOW;
        let pool = Mapped::new(&path, base);
        let files = Self { path, base, pool, _dir: Some(dir) };
        let first = SharedBacking::open(&files, 0);
        first.control().puddle_size.store(puddle_size, Ordering::Relaxed);
        first.control().size_max.store(size_max, Ordering::Relaxed);
        first.take(puddle_size).unwrap();
        files
    }

    /// What another process made.
    pub fn found(path: &str, base: u64) -> Self {
        let path = PathBuf::from(path);
        Self { pool: Mapped::new(&path, base), path, base, _dir: None }
    }

    /// A member of this process with an identity of its own.
    pub fn played(&self, number: u64) -> SharedBacking {
        let backing = SharedBacking::open(self, PLAYED | number);
        backing.control().played[number as usize].store(1, Ordering::Release);
        backing
    }

    /// This process.
    pub fn real(&self) -> SharedBacking {
        let pid = process::pid();
        SharedBacking::open(self, process::start_ticks(pid).unwrap() << 22 | u64::from(pid))
    }
}

#[derive(Debug)]
pub struct SharedBacking {
    /// The pool's mapping: one for all members of a process.
    pool: Arc<Mapped>,
    lock: File,
    slots: Box<[AtomicPtr<()>]>,
    pub who: u64,
}

#[derive(Debug)]
struct Mapped {
    base: u64,
    control: u64,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: reserved in `new`, and not used any more.
        unsafe {
            release(self.base as usize, WINDOW as usize).unwrap();
            release(self.control as usize, CONTROL as usize).unwrap();
        }
    }
}

impl Mapped {
    fn new(path: &Path, base: u64) -> Arc<Self> {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let control = base + WINDOW;
        reserve(base as usize, WINDOW as usize).unwrap();
        reserve(control as usize, CONTROL as usize).unwrap();
        let (fd, access, sharing) = (file.as_fd(), Access::ReadWrite, Mapping::Shared);
        // SAFETY: just reserved.
        unsafe {
            map_file(fd, control as usize, CONTROL as usize, access, sharing).unwrap();
            map_file_at(fd, CONTROL, base as usize, WINDOW as usize, access, sharing).unwrap();
        }
        Arc::new(Self { base, control })
    }
}

impl SharedBacking {
    fn open(files: &Files, who: u64) -> Self {
        // A file description of its own: the lock is its.
        let lock = File::options().read(true).write(true).open(&files.path).unwrap();
        let slots = (0..SLOTS).map(|_| AtomicPtr::new(null_mut())).collect();
        Self { pool: Arc::clone(&files.pool), lock, slots, who }
    }

    pub fn control(&self) -> &Control {
        const { assert!(size_of::<Control>() as u64 <= CONTROL) };
        // SAFETY: mapped in `Mapped::new` as long as `self` lives; all of it is atomics.
        unsafe { &*with_exposed_provenance_mut::<Control>(self.pool.control as usize) }
    }

    /// A played member dies.
    pub fn kill(&self) {
        self.control().played[(self.who & !PLAYED) as usize].store(0, Ordering::Release);
    }

    /// Space for a range of the window, or none.
    fn allocate(&self, flags: FallocateFlags, addr: u64, len: u64) -> Result<(), BackingError> {
        rustix::fs::fallocate(&self.lock, flags, CONTROL + (addr - self.pool.base), len)
            .map_err(|e| BackingError::Store { doing: "allocating space", source: Box::new(e) })
    }

    fn at(&self, addr: u64) -> Option<usize> {
        let at = addr.wrapping_sub(self.pool.base) / SLOT;
        let start = self.control().starts.get(at as usize)?.load(Ordering::Acquire);
        (start != 0).then(|| ((start - self.pool.base) / SLOT) as usize)
    }
}

// SAFETY: the window is mapped as long as any backing of it lives, at one address in all processes;
// puddles are disjoint parts of it; `slot` and `extents` answer from the table that all share.
// Slots are each backing's own.
unsafe impl Backing for SharedBacking {
    fn extents(&self) -> Vec<Extent> {
        let control = self.control();
        let extent = |i: usize| Extent {
            index: i as u32,
            addr: control.extent[i][0].load(Ordering::Relaxed),
            size: control.extent[i][1].load(Ordering::Relaxed),
        };
        (0..control.extents.load(Ordering::Acquire) as usize).map(extent).collect()
    }

    fn map(&self, _: &Extent) -> Result<(), BackingError> {
        Ok(())
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        let (control, extents) = (self.control(), self.extents());
        let bytes: u64 = extents.iter().map(|p| p.size).sum();
        let size_max = self.size_max();
        let addr =
            extents.last().map_or(self.pool.base, |p| (p.addr + p.size).next_multiple_of(SLOT));
        let end = (addr + size - self.pool.base).next_multiple_of(SLOT);
        if bytes + size > size_max || end > WINDOW {
            return Err(BackingError::Limit { requested: size, bytes, size_max });
        }
        for at in (addr - self.pool.base) / SLOT..end / SLOT {
            control.starts[at as usize].store(addr, Ordering::Release);
        }
        let extent = Extent { index: extents.len() as u32, addr, size };
        control.extent[extents.len()][0].store(addr, Ordering::Relaxed);
        control.extent[extents.len()][1].store(size, Ordering::Relaxed);
        control.extents.store(extents.len() as u64 + 1, Ordering::Release);
        Ok(extent)
    }

    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        self.slots.get(self.at(addr)?)
    }

    fn is_foreign(&self, _: u64) -> bool {
        false
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        Some(self)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn puddle_size(&self) -> u64 {
        self.control().puddle_size.load(Ordering::Relaxed)
    }

    fn size_max(&self) -> u64 {
        self.control().size_max.load(Ordering::Relaxed)
    }

    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, BackingError> {
        self.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, addr, len)
            .map(|()| true)
    }

    fn ensure(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        self.allocate(FallocateFlags::KEEP_SIZE, addr, len)
    }

    fn is_power(&self) -> bool {
        false
    }

    unsafe fn flush(&self, _: *const u8, _: usize) {}

    fn fence(&self) {}
}

impl Sharing for SharedBacking {
    fn epoch(&self) -> u64 {
        u64::from_le_bytes(process::boot_id().unwrap()[..8].try_into().unwrap()) | 1
    }

    fn me(&self) -> u64 {
        self.who
    }

    fn lives(&self, who: u64) -> bool {
        if who & PLAYED != 0 {
            let number = (who & !PLAYED) as usize;
            return self
                .control()
                .played
                .get(number)
                .is_some_and(|p| p.load(Ordering::Acquire) != 0);
        }
        let unfinished =
            self.control().workers.iter().any(|w| w.who.load(Ordering::Acquire) == who);
        unfinished || process::is_alive((who & 0x3f_ffff) as u32, who >> 22)
    }

    fn lock(&self) -> Result<(), BackingError> {
        self.lock.lock().map_err(|e| BackingError::Store { doing: "locking", source: e.into() })
    }

    fn try_lock(&self) -> Result<bool, BackingError> {
        match self.lock.try_lock() {
            Ok(()) => Ok(true),
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(e) => Err(BackingError::Store { doing: "locking", source: e.to_string().into() }),
        }
    }

    fn unlock(&self) {
        self.lock.unlock().unwrap();
    }
}
