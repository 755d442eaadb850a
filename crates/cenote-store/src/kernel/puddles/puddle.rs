//! Keeps what an open store knows of a puddle, and maps it.
//!
//! Invariant: a [`Puddle`] stays at its address in memory until the store is dropped, so that
//! references to it can be taken without locks. Its mapping state is one word:
//!
//! ```text
//! ABSENT -> MAPPING -> MAPPED      the first thread that needs it maps it; other threads wait
//!              |-----> ABSENT      mapping failed; the next thread tries again and gets the error
//! REFUSED                          damaged, or removed: never mapped
//! ```
//!
//! A thread needs a puddle in a fault or in `ensure_mapped`. In shadowed mode a puddle is mapped so
//! that the first store into a page faults, and the page is noted: see [`crate::psync`].

mod data_guard;
mod mark;
mod rights;
mod turn;

pub(crate) use rights::pool_named;

use crate::kernel::puddles::lost::MetadataPages;
use crate::kernel::puddles::notice::Notice;
use crate::kernel::puddles::own_memory::OwnMemory;
use crate::kernel::puddles::pending_job::Job;
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::header::{self, HeaderPrefix};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{INCOMPAT_MARKS_APART, PuddleHeader, Role, header_space};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{MapMode, MediumError, OwnedMedium};
use cenote_sys::alt_stack;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;
use zerocopy::IntoBytes;

/// Where the sealed pages begin: behind the header page.
pub(crate) const DATA_AT: u64 = PAGE_SIZE;
/// The directory of puddle files.
pub(crate) const DIR: &str = "puddles";
/// The directory of the primaries of puddles in shadowed mode, under the same names.
pub(crate) const PRIMARY_DIR: &str = "primary";

/// In [`Puddle::mark`]: eras are even.
const MARKED: u64 = 1;
const ABSENT: u32 = 0;
const MAPPING: u32 = 1;
const MAPPED: u32 = 2;
const REFUSED: u32 = 3;

/// A fixed-size region of a store: one file, one range of addresses.
#[derive(Debug)]
pub struct Puddle {
    record: PuddleRecord,
    /// `puddles/<32 hex digits>`, or `primary/...` if the primary is mapped.
    name: [u8; 40],
    kind: MappingKind,
    /// Of one in a protected pool that is open.
    memory: OnceLock<Box<dyn OwnMemory>>,
    owners: rights::Owners,
    state: AtomicU32,
    mode: AtomicU8,
    heap_slot: AtomicPtr<()>,
    /// Which of its pages are metadata: [`MetadataPages::encode`].
    metadata: AtomicU64,
    /// The stamp that its file gets when it is mapped for writing
    /// ([`crate::kernel::puddles::stamps`]); 0: none; with [`MARKED`]: it may have it.
    mark: AtomicU64,
    /// Its file has it.
    is_stamped: AtomicBool,
    /// Its file is still that of another address; what is to be done about it is in `job`. Never
    /// mapped as long as it is so.
    pending: AtomicBool,
    job: OnceLock<Job>,
    pub(crate) notice: Notice,
}

/// What a puddle's mapping shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingKind {
    /// Its file, which is all that there is.
    Direct,
    /// Its file, which is the shadow of a primary.
    Shadow,
    /// The primary, to be looked at.
    Primary,
    /// Memory without a file; its file is sealed ([`crate::sealed`]).
    Sealed,
}

impl Puddle {
    pub(crate) fn new(record: PuddleRecord, mode: MapMode, kind: MappingKind) -> Self {
        Self {
            record,
            name: if kind == MappingKind::Primary {
                primary_name(record.uuid)
            } else {
                file_name(record.uuid)
            },
            kind,
            memory: OnceLock::new(),
            owners: rights::Owners::default(),
            state: AtomicU32::new(ABSENT),
            mode: AtomicU8::new(encode_mode(mode)),
            heap_slot: AtomicPtr::new(core::ptr::null_mut()),
            metadata: AtomicU64::new(MetadataPages::Traced.encode()),
            mark: AtomicU64::new(0),
            is_stamped: AtomicBool::new(false),
            pending: AtomicBool::new(false),
            job: OnceLock::new(),
            notice: Notice::default(),
        }
    }

    /// It is to be rewritten before it is mapped. Said before it can be found; Explanations of
    /// faults name `pool`.
    pub(crate) fn set_pending(&self, job: Job, pool: &str) {
        if self.job.set(job).is_ok() {
            self.wait_for_rewriting(pool);
            self.pending.store(true, Ordering::Release);
        }
    }

    /// Whether it is still to be rewritten, at the first touch ([`crate::relocate`]).
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// What is to be done, or was, if it has moved.
    pub(crate) fn job(&self) -> Option<&Job> {
        self.job.get()
    }

    /// Its file has been rewritten.
    pub(crate) fn set_done(&self) {
        self.owners.end_pending();
        self.pending.store(false, Ordering::Release);
    }

    /// Shows memory in place of the file, for reading only: `fill` maps it at the puddle's address,
    /// where nothing may be mapped now.
    pub(crate) fn show(
        &self,
        fill: impl FnOnce() -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        if !self.is_mine_to_map() {
            return Ok(());
        }
        self.owners.end_pending();
        let filled = fill();
        if filled.is_ok() {
            self.set_done();
        }
        self.state.store(if filled.is_ok() { MAPPED } else { ABSENT }, Ordering::Release);
        filled
    }

    /// Its memory, if that shows no file and is there: its pool is protected and open.
    pub(crate) fn memory(&self) -> Option<&dyn OwnMemory> {
        self.memory.get().map(|memory| &**memory)
    }

    /// Gives a puddle of a protected pool its memory, which `make` maps; nothing to do if it has
    /// that.
    pub(crate) fn give_memory<E>(
        &self,
        make: impl FnOnce() -> Result<Box<dyn OwnMemory>, E>,
    ) -> Result<(), E> {
        // The caller holds the control lock or has the turn to rewrite: no other thread makes one.
        // But a first touch that failed may be about to unmap what it has mapped there.
        if self.memory.get().is_some() || !self.is_mine_to_map() {
            return Ok(());
        }
        self.owners.end_pending();
        let made = make().map(|memory| drop(self.memory.set(memory)));
        self.state.store(if made.is_ok() { MAPPED } else { ABSENT }, Ordering::Release);
        made
    }

    /// Takes the turn to map what is absent, or waits for its thread; `false`: it is mapped.
    fn is_mine_to_map(&self) -> bool {
        while let Err(state) =
            self.state.compare_exchange(ABSENT, MAPPING, Ordering::AcqRel, Ordering::Acquire)
        {
            if state != MAPPING {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// What the catalog says of it.
    pub(crate) fn record(&self) -> &PuddleRecord {
        &self.record
    }

    /// Its identity, and the name of its file.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.record.uuid
    }

    /// First address, a multiple of 2 MiB.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.record.addr
    }

    /// Bytes, header included.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u64 {
        self.record.size
    }

    /// Its pool; 0 for logs and log spaces.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.record.pool
    }

    /// What it is for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.record.role
    }

    /// Its number in its pool; 0 is the root puddle.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u32 {
        self.record.index
    }

    /// For the heap's volatile data about this puddle. Null at first; the heap that sets it frees
    /// it.
    ///
    /// # Safety
    /// Only the heap that the pool is open with stores anything here: what it finds, it takes for
    /// its own.
    #[inline]
    #[must_use]
    pub unsafe fn heap_slot(&self) -> &AtomicPtr<()> {
        &self.heap_slot
    }

    /// Notes which pages of the puddle are metadata, which are replaced by memory if they are lost.
    /// Those of a traced heap, if nothing is noted.
    pub fn note_metadata(&self, pages: MetadataPages) {
        self.metadata.store(pages.encode(), Ordering::Release);
    }

    /// See [`Puddle::note_metadata`].
    pub(crate) fn metadata_pages(&self) -> MetadataPages {
        MetadataPages::decode(self.metadata.load(Ordering::Acquire))
    }

    /// Address of the body: what follows the header space.
    #[must_use]
    pub fn body_addr(&self) -> u64 {
        self.record.addr + header_space(self.record.size)
    }

    /// Bytes of the body.
    #[must_use]
    pub fn body_len(&self) -> u64 {
        self.record.size - header_space(self.record.size)
    }

    /// Whether it is mapped now.
    #[inline]
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.state.load(Ordering::Acquire) == MAPPED
    }

    /// Whether it is damaged or gone and can never be mapped.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.state.load(Ordering::Acquire) == REFUSED
    }

    /// Whether stores into it are allowed once it is mapped.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.mode().is_shared_writable()
    }

    /// Whether its mapping shows the primary.
    pub(crate) fn shows_primary(&self) -> bool {
        self.kind == MappingKind::Primary
    }

    /// How it is mapped for writing.
    pub(crate) fn writable_mode(&self) -> MapMode {
        if matches!(self.kind, MappingKind::Shadow | MappingKind::Sealed) {
            MapMode::Tracked
        } else {
            MapMode::ReadWrite
        }
    }

    /// Resolves a fault at `address`, which is in this puddle. Whether the access can succeed now.
    pub(crate) fn resolve(&self, medium: &OwnedMedium, address: usize) -> bool {
        if self.kind == MappingKind::Sealed {
            let sealed = (self.record.addr + DATA_AT) as usize;
            return address >= sealed
                && self.memory().is_some_and(|memory| memory.resolve(address));
        }
        if self.is_mapped() && self.is_refused_store(address) {
            return false;
        }
        if self.is_mapped()
            && self.mode() == MapMode::Tracked
            && let Some(tracked) = self.owners.tracked.get()
        {
            // SAFETY: the puddle's mapping, in which stores are allowed. That a store is meant is
            // not known here: it may be a load that faulted while another thread mapped
            // the puddle, which costs a note too many.
            return unsafe { tracked.allow(address) };
        }
        // Opening and mapping a file takes more stack than a handler has: without optimisation, all
        // of it.
        let map = || matches!(self.map(medium), Ok(true));
        alt_stack::run(map).unwrap_or_else(map)
    }

    pub(crate) fn file_name(&self) -> &str {
        core::str::from_utf8(&self.name).unwrap_or_default()
    }

    pub(crate) fn mode(&self) -> MapMode {
        decode_mode(self.mode.load(Ordering::Acquire))
    }

    /// Maps it if it is not mapped. Allocates nothing and takes no lock but waits while another
    /// thread maps it: may be called by the fault handler. `Ok(false)`: it is refused, or still
    /// to be rewritten.
    pub(crate) fn map(&self, medium: &OwnedMedium) -> Result<bool, MediumError> {
        if self.is_pending() && !planted(Bug::PendingPuddleMapped) {
            return Ok(false);
        }
        loop {
            match self.state.compare_exchange(ABSENT, MAPPING, Ordering::AcqRel, Ordering::Acquire)
            {
                // Its file is not what is to be seen there.
                Ok(_) if self.kind == MappingKind::Sealed => {
                    self.state.store(ABSENT, Ordering::Release);
                    return Ok(false);
                }
                Ok(_) => {
                    let mode = self.mode();
                    // SAFETY: the puddle's own range, where nothing is mapped: the state says so.
                    let result = unsafe { self.map_stamped(medium, mode) };
                    self.state
                        .store(if result.is_ok() { MAPPED } else { ABSENT }, Ordering::Release);
                    return result.map(|()| true);
                }
                Err(MAPPED) => return Ok(true),
                Err(REFUSED) => return Ok(false),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Takes the mapping away; threads that touch the puddle meanwhile wait in the fault handler
    /// and map it again.
    pub(crate) fn unmap(&self, medium: &OwnedMedium) -> Result<(), MediumError> {
        self.unmap_to(medium, ABSENT)
    }

    /// Takes the mapping away for good.
    pub(crate) fn refuse(&self, medium: &OwnedMedium) -> Result<(), MediumError> {
        let refused = self.unmap_to(medium, REFUSED);
        if refused.is_ok() {
            self.owners.retire();
        }
        refused
    }

    fn unmap_to(&self, medium: &OwnedMedium, next: u32) -> Result<(), MediumError> {
        if let Some(memory) = self.memory() {
            memory.stop();
        }
        loop {
            match self.state.compare_exchange(MAPPED, MAPPING, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    // SAFETY: callers unmap what no thread uses: recovery its own mappings, removal
                    // those of a pool that is not open.
                    let result = unsafe { medium.unmap(self.addr(), self.size()) };
                    self.state.store(if result.is_ok() { next } else { MAPPED }, Ordering::Release);
                    return result;
                }
                Err(ABSENT) => {
                    if self
                        .state
                        .compare_exchange(ABSENT, next, Ordering::AcqRel, Ordering::Acquire)
                        .is_ok()
                    {
                        return Ok(());
                    }
                }
                Err(REFUSED) => return Ok(()),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Changes how it is mapped, now and later.
    pub(crate) fn set_mode(&self, medium: &OwnedMedium, mode: MapMode) -> Result<(), MediumError> {
        if self.mode() == mode {
            return Ok(());
        }
        if self.kind == MappingKind::Sealed {
            // In this order: a thread that gives it its memory just now reads the mode after that.
            self.mode.store(encode_mode(mode), Ordering::SeqCst);
            if let Some(memory) = self.memory().filter(|_| mode.is_shared_writable()) {
                memory.allow_stores();
            }
            return Ok(());
        }
        // In state MAPPING all through: a thread that touches the puddle meanwhile waits, and does
        // not map it the old way in between.
        loop {
            if self
                .state
                .compare_exchange(MAPPED, MAPPING, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                // SAFETY: the same pages come back at once, with the access that is now wanted; a
                // thread that touches them in between waits.
                if let Err(error) = unsafe { medium.unmap(self.addr(), self.size()) } {
                    self.state.store(MAPPED, Ordering::Release);
                    return Err(error);
                }
                self.mode.store(encode_mode(mode), Ordering::Release);
                // SAFETY: nothing is mapped there since the line above.
                let mapped = unsafe { self.map_stamped(medium, mode) };
                self.state.store(if mapped.is_ok() { MAPPED } else { ABSENT }, Ordering::Release);
                return mapped;
            }
            match self.state.compare_exchange(ABSENT, MAPPING, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => {
                    self.mode.store(encode_mode(mode), Ordering::Release);
                    self.state.store(ABSENT, Ordering::Release);
                    return Ok(());
                }
                Err(REFUSED) => return Ok(()),
                Err(_) => std::thread::yield_now(),
            }
        }
    }
}

const fn encode_mode(mode: MapMode) -> u8 {
    match mode {
        MapMode::ReadWrite => 0,
        MapMode::ReadOnly => 1,
        MapMode::PrivateCopy => 2,
        MapMode::Tracked => 3,
    }
}

const fn decode_mode(byte: u8) -> MapMode {
    match byte {
        0 => MapMode::ReadWrite,
        1 => MapMode::ReadOnly,
        3 => MapMode::Tracked,
        _ => MapMode::PrivateCopy,
    }
}

/// Length of the name of a puddle's file or primary.
pub(crate) const NAME_LEN: usize = 40;

/// The name of a puddle's file.
pub(crate) fn file_name(uuid: Uuid) -> [u8; NAME_LEN] {
    let mut name = *b"puddles/00000000000000000000000000000000";
    name[8..].copy_from_slice(&uuid.to_hex());
    name
}

/// The name of a puddle's primary.
pub(crate) fn primary_name(uuid: Uuid) -> [u8; NAME_LEN] {
    let mut name = *b"primary/00000000000000000000000000000000";
    name[8..].copy_from_slice(&uuid.to_hex());
    name
}

/// A file's name as a text.
pub(crate) fn text(name: &[u8; NAME_LEN]) -> &str {
    core::str::from_utf8(name).unwrap_or_default()
}

/// The header of a new puddle.
pub(crate) fn make_header(record: &PuddleRecord, store: Uuid) -> PuddleHeader {
    make_header_of(record, store, 1)
}

/// The header of a puddle of some generation.
pub(crate) fn make_header_of(record: &PuddleRecord, store: Uuid, generation: u64) -> PuddleHeader {
    let mut header = PuddleHeader {
        prefix: HeaderPrefix::new(*b"CENPUDDL", size_of::<PuddleHeader>() as u32),
        uuid: record.uuid,
        store,
        addr: record.addr,
        size: record.size,
        pool: record.pool,
        role: record.role as u32,
        index: record.index,
        generation,
        reserved: [0; 3968],
    };
    if record.role.is_of_pool() {
        header.prefix.incompat = INCOMPAT_MARKS_APART;
    }
    header::seal(&mut header);
    header
}

/// Creates a puddle's file: space taken, header written, durable. The file is an orphan until a
/// record names it; on failure it is removed again.
pub(crate) fn create_file(
    medium: &OwnedMedium,
    record: &PuddleRecord,
    store: Uuid,
) -> Result<(), MediumError> {
    create_stamped(medium, record, store, 0)
}

/// The same with a stamp.
pub(crate) fn create_stamped(
    medium: &OwnedMedium,
    record: &PuddleRecord,
    store: Uuid,
    stamp: u64,
) -> Result<(), MediumError> {
    let page = new_page(record, store, stamp);
    create_whole(medium, text(&file_name(record.uuid)), DIR, record.size, &[(0, &page)])
}

/// What a new puddle's file begins with. Not on the stack of what writes it.
#[inline(never)]
fn new_page(record: &PuddleRecord, store: Uuid, stamp: u64) -> Vec<u8> {
    first_page(&make_header(record, store), stamp)
}

/// What a puddle's file begins with.
pub(crate) fn first_page(header: &PuddleHeader, stamp: u64) -> Vec<u8> {
    [header.as_bytes(), &stamp.to_le_bytes()].concat()
}

/// The same for the primary, in its directory, which is there ([`Inner::hold_primaries`]).
pub(crate) fn create_primary(
    medium: &OwnedMedium,
    record: &PuddleRecord,
    store: Uuid,
) -> Result<(), MediumError> {
    let page = new_page(record, store, 0);
    create_whole(medium, text(&primary_name(record.uuid)), PRIMARY_DIR, record.size, &[(0, &page)])
}

/// Creates a file of `len` bytes, its space taken, that holds `parts` at their offsets and zeros
/// otherwise; durable. On failure it is removed again.
pub(crate) fn create_whole(
    medium: &OwnedMedium,
    name: &str,
    dir: &str,
    len: u64,
    parts: &[(u64, &[u8])],
) -> Result<(), MediumError> {
    medium.create(name, len)?;
    let mut written = parts.iter().map(|(offset, bytes)| medium.write_at(name, *offset, bytes));
    let done = written
        .find(Result::is_err)
        .unwrap_or(Ok(()))
        .and_then(|()| medium.sync(name))
        .and_then(|()| medium.sync_dir(dir));
    if done.is_err() {
        let _ = medium.remove(name);
    }
    done
}
