//! PMDK's libpmemobj, told to take tmpfs for persistent memory (`PMEM_IS_PMEM_FORCE=1`): it flushes
//! and fences as on such memory, as Cenote does at level `power`.
//!
//! The loops are in C (`libpmemobj.c`), with the library's macros; the calls from here are one a
//! batch. The pool is a file of 1 GiB in a temporary directory of the benchmark.

use crate::Allocator;
use crate::case::{Case, Failure, POWER, Sample, Stopwatch};
use crate::figures::allocators::{self, prodcon};
use crate::figures::figure1::{list_len, tree_height};
use crate::figures::poseidon::{self, On};
use crate::figures::poseidon3::{HEAP_BYTES, Victim};
use crate::figures::puddles_table3::{BATCH, RANGES};
use crate::figures::{Figure, list_tail};
use crate::place::Settings;
use std::ffi::{CStr, CString, c_char, c_int};
use std::hint::black_box;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use tempfile::TempDir;

/// Its name in the rows.
pub const SYSTEM: &str = "libpmemobj";

/// Bytes of the pool file.
const POOL_SIZE: u64 = 1 << 30;

#[repr(C)]
struct Opaque([u8; 0]);

/// `PMEMoid`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Oid {
    pool: u64,
    offset: u64,
}

unsafe extern "C" {
    fn peer_force_pmem();
    fn peer_error() -> *const c_char;
    fn peer_open(path: *const c_char, size: u64) -> *mut Opaque;
    fn peer_close(peer: *mut Opaque);
    fn peer_tx_nop(peer: *mut Opaque, count: u64) -> c_int;
    fn peer_tx_add_8(peer: *mut Opaque, count: u64) -> c_int;
    fn peer_tx_add_8_of_64(peer: *mut Opaque, count: u64) -> c_int;
    fn peer_tx_add_4096(peer: *mut Opaque, count: u64) -> c_int;
    fn peer_tx_add_4096_unwritten(peer: *mut Opaque, count: u64) -> c_int;
    fn peer_malloc(peer: *mut Opaque, count: u64, size: u64, blocks: *mut Oid) -> c_int;
    fn peer_free(peer: *mut Opaque, count: u64, blocks: *mut Oid) -> c_int;
    fn peer_malloc_free(peer: *mut Opaque, count: u64, size: u64) -> c_int;
    fn peer_insert(peer: *mut Opaque, count: u64) -> c_int;
    fn peer_empty(peer: *mut Opaque) -> c_int;
    fn peer_build_list(peer: *mut Opaque, len: u64, blocks: *mut Oid) -> c_int;
    fn peer_build_tree(peer: *mut Opaque, height: u32, blocks: *mut Oid) -> c_int;
    fn peer_free_all(count: u64, blocks: *mut Oid);
    fn peer_sum_list(first: *const Oid) -> u64;
    fn peer_sum_tree(first: *const Oid) -> u64;
    fn peer_block_alloc(peer: *mut Opaque, size: u64) -> *mut u8;
    fn peer_block_free(peer: *mut Opaque, address: *mut u8);
}

/// Sets `PMEM_IS_PMEM_FORCE`. To be called before anything else, while the process has one thread.
pub fn force_persistent_memory() {
    // SAFETY: `main` calls this first: no other thread reads the environment.
    unsafe { peer_force_pmem() }
}

/// An open pool.
struct Peer {
    handle: *mut Opaque,
    _directory: TempDir,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: opened by `peer_open`, closed once.
        unsafe { peer_close(self.handle) }
    }
}

pub(crate) fn error() -> Failure {
    // SAFETY: the library returns a string that stays until this thread's next call.
    let text = unsafe { CStr::from_ptr(peer_error()) };
    format!("{SYSTEM}: {}", text.to_string_lossy()).into()
}

pub(crate) fn checked(result: c_int) -> Result<(), Failure> {
    if result == 0 { Ok(()) } else { Err(error()) }
}

impl Peer {
    fn open(settings: &Settings) -> Result<Rc<Self>, Failure> {
        Self::of_size(settings, POOL_SIZE).map(Rc::new)
    }

    fn of_size(settings: &Settings, size: u64) -> Result<Self, Failure> {
        let directory = settings.temporary()?;
        let path = CString::new(directory.path().join("pool").as_os_str().as_bytes())?;
        // SAFETY: a path that ends with a zero byte.
        let handle = unsafe { peer_open(path.as_ptr(), size) };
        if handle.is_null() { Err(error()) } else { Ok(Self { handle, _directory: directory }) }
    }
}

/// A pool as an allocator: the calls that are atomic by themselves, without transactions.
struct Atomic(Peer);

// SAFETY: the library allows these calls from any thread; the directory is only removed when the
// pool is dropped.
unsafe impl Send for Atomic {}
// SAFETY: as above.
unsafe impl Sync for Atomic {}

// SAFETY: an object is at least `size` bytes of the pool's mapping, at a multiple of 16, until it
// is freed.
unsafe impl Allocator for Atomic {
    #[inline(always)]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: an open pool.
        unsafe { peer_block_alloc(self.0.handle, size as u64) }
    }

    #[inline(always)]
    unsafe fn free(&self, block: *mut u8) -> bool {
        // SAFETY: a block of this pool, as the caller promises.
        unsafe { peer_block_free(self.0.handle, block) };
        true
    }
}

/// The library's part in the figure of attacks.
pub const VICTIMS: &[Victim] = &[Victim { system: SYSTEM, open: victim }];

fn victim(directory: &Path) -> Result<Arc<dyn Allocator>, Failure> {
    let settings = Settings { directory: directory.to_owned(), ..Settings::default() };
    Ok(Arc::new(Atomic(Peer::of_size(&settings, HEAP_BYTES)?)))
}

/// The library's cases of a figure; none for those that are about Cenote alone.
///
/// # Errors
/// The pool cannot be made.
pub fn cases(figure: &Figure, settings: &Settings) -> Result<Vec<Case>, Failure> {
    match figure.name {
        "puddles-table3" => puddles_table3(&Peer::open(settings)?),
        "figure1" => figure1(&Peer::open(settings)?, settings),
        "list-tail" => insert(&Peer::open(settings)?),
        "allocators" => {
            // Room for what a scaled run of producer and consumer can have on the way, 128 bytes an
            // object.
            let more =
                settings.scale.map_or(0.0, |scale| scale * prodcon::OBJECTS as f64 * 128.0) as u64;
            let pool = Arc::new(Atomic(Peer::of_size(settings, POOL_SIZE + more)?));
            Ok(allocators::cases_of(&pool, SYSTEM, POWER, settings))
        }
        "poseidon6" | "poseidon7" | "poseidon8" | "poseidon9" => {
            let pool = Peer::of_size(settings, POOL_SIZE + poseidon_bytes(figure, settings))?;
            let allocator = Arc::new(Atomic(pool));
            let on = On { allocator, system: SYSTEM, level: POWER, counted: false };
            Ok(poseidon::cases_of(figure.name, &on, settings))
        }
        _ => Ok(Vec::new()),
    }
}

/// What a figure of Poseidon's holds at once beside small blocks.
fn poseidon_bytes(figure: &Figure, settings: &Settings) -> u64 {
    let threads = settings.threads.iter().copied().max().unwrap_or(16);
    match figure.name {
        // A block of each thread, and as much for what the library does not find again at once.
        "poseidon8" => 2 * u64::from(threads) * poseidon::solvers::cache_bytes(settings) as u64,
        // Two trees: 128 bytes for each value, and less for nodes.
        "poseidon9" => 2 * 256 * poseidon::ycsb::keys(settings),
        _ => 0,
    }
}

fn case(row: &'static str, work: impl FnMut(u64) -> Result<Sample, Failure> + 'static) -> Case {
    Case::new(row, SYSTEM, POWER, work).uncounted()
}

type Loop = unsafe extern "C" fn(*mut Opaque, u64) -> c_int;

/// A case whose loop does `operations` operations a turn.
fn simple(peer: &Rc<Peer>, row: &'static str, operations: u64, turns: Loop) -> Case {
    let peer = peer.clone();
    case(row, move |count| {
        let count = count.div_ceil(operations);
        let mut watch = Stopwatch::new();
        // SAFETY: an open pool.
        checked(watch.time(count * operations, || unsafe { turns(peer.handle, count) }))?;
        Ok(watch.sample())
    })
}

fn puddles_table3(peer: &Rc<Peer>) -> Result<Vec<Case>, Failure> {
    Ok(vec![
        simple(peer, "tx_nop", 1, peer_tx_nop),
        simple(peer, "tx_add_8", 1, peer_tx_add_8),
        simple(peer, "tx_add_8_of_64", RANGES as u64, peer_tx_add_8_of_64),
        simple(peer, "tx_add_4096", 1, peer_tx_add_4096),
        simple(peer, "tx_add_4096_unwritten", 1, peer_tx_add_4096_unwritten),
        malloc(peer, "malloc_8", 8),
        malloc(peer, "malloc_4096", 4096),
        malloc_free(peer, "malloc_free_8", 8),
        malloc_free(peer, "malloc_free_4096", 4096),
    ])
}

fn malloc(peer: &Rc<Peer>, row: &'static str, size: u64) -> Case {
    let peer = peer.clone();
    let mut blocks = vec![Oid::default(); BATCH];
    case(row, move |count| {
        let mut watch = Stopwatch::new();
        while watch.operations() < count {
            let batch = (count - watch.operations()).min(BATCH as u64);
            let place = blocks.as_mut_ptr();
            // SAFETY: an open pool and room for `batch` blocks, which are then freed once.
            unsafe {
                checked(watch.time(batch, || peer_malloc(peer.handle, batch, size, place)))?;
                checked(peer_free(peer.handle, batch, place))?;
            }
        }
        Ok(watch.sample())
    })
}

fn malloc_free(peer: &Rc<Peer>, row: &'static str, size: u64) -> Case {
    let peer = peer.clone();
    case(row, move |count| {
        let mut watch = Stopwatch::new();
        // SAFETY: an open pool.
        checked(watch.time(count, || unsafe { peer_malloc_free(peer.handle, count, size) }))?;
        Ok(watch.sample())
    })
}

fn insert(peer: &Rc<Peer>) -> Result<Vec<Case>, Failure> {
    let peer = peer.clone();
    Ok(vec![case("insert", move |count| {
        let mut watch = Stopwatch::new();
        while watch.operations() < count {
            let batch = (count - watch.operations()).min(list_tail::LEN_MAX);
            // SAFETY: an open pool.
            unsafe {
                checked(watch.time(batch, || peer_insert(peer.handle, batch)))?;
                checked(peer_empty(peer.handle))?;
            }
        }
        Ok(watch.sample())
    })])
}

/// A structure of Figure 1; freed when it is dropped.
struct Built {
    blocks: Vec<Oid>,
    _peer: Rc<Peer>,
}

impl Drop for Built {
    fn drop(&mut self) {
        // SAFETY: blocks of a pool that is still open, each freed once.
        unsafe { peer_free_all(self.blocks.len() as u64, self.blocks.as_mut_ptr()) }
    }
}

#[derive(Clone, Copy)]
enum Shape {
    List(u64),
    Tree(u32),
}

impl Shape {
    fn nodes(self) -> u64 {
        match self {
            Self::List(len) => len,
            Self::Tree(height) => (1 << height) - 1,
        }
    }

    fn build(self, peer: &Rc<Peer>, watch: &mut Stopwatch) -> Result<Built, Failure> {
        let mut blocks = vec![Oid::default(); self.nodes() as usize];
        let place = blocks.as_mut_ptr();
        // SAFETY: an open pool, and room for all nodes.
        let result = watch.time(self.nodes(), || unsafe {
            match self {
                Self::List(len) => peer_build_list(peer.handle, len, place),
                Self::Tree(height) => peer_build_tree(peer.handle, height, place),
            }
        });
        checked(result)?;
        Ok(Built { blocks, _peer: peer.clone() })
    }

    fn sum(self, built: &Built) -> u64 {
        let first = black_box(built.blocks.as_ptr());
        // SAFETY: the first block of a structure that is there.
        unsafe {
            match self {
                Self::List(_) => peer_sum_list(first),
                Self::Tree(_) => peer_sum_tree(first),
            }
        }
    }
}

fn figure1(peer: &Rc<Peer>, settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for (create, traverse, shape) in [
        ("list_create", "list_traverse", Shape::List(list_len(settings))),
        ("tree_create", "tree_traverse", Shape::Tree(tree_height(settings))),
    ] {
        let here = peer.clone();
        cases.push(case(create, move |count| {
            let mut watch = Stopwatch::new();
            while watch.operations() < count {
                drop(shape.build(&here, &mut watch)?);
            }
            Ok(watch.sample())
        }));
        let built = shape.build(peer, &mut Stopwatch::new())?;
        cases.push(case(traverse, move |count| {
            let rounds = count.div_ceil(shape.nodes());
            let mut watch = Stopwatch::new();
            watch.time(rounds * shape.nodes(), || {
                for _ in 0..rounds {
                    black_box(shape.sum(&built));
                }
            });
            Ok(watch.sample())
        }));
    }
    Ok(cases)
}
