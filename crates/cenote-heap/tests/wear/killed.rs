//! Processes with threads on a wear heap in a file, killed at any moment. A second file has what
//! each thread has been told: it is the oracle.

use cenote_heap::wear::{WearClock, WearHeap, WearOptions};
use cenote_heap::{AllocError, Backing, BackingError, Extent};
use cenote_layout::id::TypeId;
use cenote_testkit::child::again;
use cenote_testkit::random::{mix, next};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::ptr::{null_mut, with_exposed_provenance};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

const HEAP_LEN: u64 = 2 << 20;
const THREADS: usize = 3;
const KEPT: usize = 128;

/// What a thread has been told. The order of its stores is that of the operations.
#[repr(C)]
struct ThreadOracle {
    /// What it is about to do: 0, an allocation (1), or the free of a block (its place, and 2).
    intent: AtomicU64,
    operations: AtomicU64,
    /// Offset in the heap, and size; offset 0: none.
    blocks: [[AtomicU64; 2]; KEPT],
}

/// A file that is mapped, shared.
struct Mapped {
    addr: u64,
    len: u64,
}

impl Mapped {
    fn of(path: &Path, len: u64) -> Self {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.expect("a file");
        file.set_len(len).expect("space");
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice; the file is the test's own.
        let addr = unsafe { mmap(null_mut(), len as usize, prot, MapFlags::SHARED, &file, 0) };
        Self { addr: addr.expect("a mapping").expose_provenance() as u64, len }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let addr = std::ptr::with_exposed_provenance_mut(self.addr as usize);
        // SAFETY: the mapping is this value's, and nothing refers to it any more.
        let _ = unsafe { munmap(addr, self.len as usize) };
    }
}

struct FileBacking {
    file: Mapped,
    slot: AtomicPtr<()>,
}

// SAFETY: the file is mapped as long as this lives, one heap of one process uses it at a time, and
// all addresses in it have the same slot.
unsafe impl Backing for FileBacking {
    fn extents(&self) -> Vec<Extent> {
        vec![Extent { index: 0, addr: self.file.addr, size: self.file.len }]
    }

    fn map(&self, _: &Extent) -> Result<(), BackingError> {
        Ok(())
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        let bytes = self.file.len;
        Err(BackingError::Limit { requested: size, bytes, size_max: bytes })
    }

    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        (addr.wrapping_sub(self.file.addr) < self.file.len).then_some(&self.slot)
    }

    fn is_foreign(&self, _: u64) -> bool {
        false
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn puddle_size(&self) -> u64 {
        self.file.len
    }

    fn size_max(&self) -> u64 {
        self.file.len
    }

    unsafe fn flush(&self, _: *const u8, _: usize) {}

    fn fence(&self) {}
}

type Heap = WearHeap<FileBacking>;

fn open(directory: &Path, create: bool) -> (Heap, u64) {
    let file = Mapped::of(&directory.join("heap"), HEAP_LEN);
    let addr = file.addr;
    let backing = FileBacking { slot: AtomicPtr::new(null_mut()), file };
    let clock = WearClock::default();
    let options = WearOptions { wait_ms: 2, chunk_log: 14, clock, ..WearOptions::default() };
    let heap = match create {
        true => WearHeap::create(backing, &options),
        false => WearHeap::open(backing, &options),
    };
    (heap.expect("a heap"), addr)
}

fn oracle(mapped: &Mapped) -> &[ThreadOracle; THREADS] {
    // SAFETY: the file has that size, and all accesses are atomic; the mapping outlives the borrow.
    unsafe { &*with_exposed_provenance(mapped.addr as usize) }
}

fn oracle_file(directory: &Path) -> Mapped {
    Mapped::of(&directory.join("oracle"), size_of::<[ThreadOracle; THREADS]>() as u64)
}

fn stamps(addr: u64, size: u64) -> [*mut u64; 2] {
    [addr, addr + size - 8].map(|at| std::ptr::with_exposed_provenance_mut(at as usize))
}

fn work(heap: &Heap, base: u64, mine: &ThreadOracle, seed: u64) {
    let mut seed = seed;
    loop {
        let random = next(&mut seed);
        let place = random as usize % KEPT;
        let [offset, size] = &mine.blocks[place];
        let at = offset.load(Ordering::Acquire);
        if at != 0 {
            mine.intent.store(place as u64 + 2, Ordering::Release);
            heap.free(base + at).expect("allocated");
            offset.store(0, Ordering::Release);
        } else {
            mine.intent.store(1, Ordering::Release);
            let align = 8 << (random / 256 % 6);
            match heap.alloc(random / 4096 % 2000, align, TypeId(5)) {
                Ok(block) => {
                    let stamp = mix(block.addr - base);
                    // SAFETY: two words of a block of this thread.
                    stamps(block.addr, block.size).into_iter().for_each(|at| unsafe {
                        at.write_volatile(stamp);
                    });
                    size.store(block.size, Ordering::Release);
                    offset.store(block.addr - base, Ordering::Release);
                }
                Err(AllocError::Full { .. } | AllocError::Waits { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        mine.intent.store(0, Ordering::Release);
        mine.operations.fetch_add(1, Ordering::Relaxed);
    }
}

/// Not a test by itself: the process that is killed.
#[test]
fn child() {
    let Some(directory) = std::env::var_os("WEAR_KILLED") else { return };
    let seed: u64 = std::env::var("WEAR_SEED").unwrap().parse().unwrap();
    let directory = Path::new(&directory);
    let (heap, base) = open(directory, false);
    let mapped = oracle_file(directory);
    let oracle = oracle(&mapped);
    std::thread::scope(|scope| {
        for (mine, number) in oracle.iter().zip(0..) {
            let heap = &heap;
            scope.spawn(move || work(heap, base, mine, mix(seed + number)));
        }
    });
}

/// The blocks are those that the threads were told, up to the operation that each was about to do.
fn compare(heap: &Heap, base: u64, oracle: &[ThreadOracle; THREADS]) -> u64 {
    let report = heap.check();
    assert_eq!(report.damage, []);
    let mut found: BTreeMap<u64, u64> =
        report.blocks.iter().map(|block| (block.addr - base, block.size)).collect();
    let mut about = 0;
    for mine in oracle {
        let intent = mine.intent.swap(0, Ordering::Relaxed);
        about += u64::from(intent == 1);
        for (place, [offset, size]) in (2..).zip(&mine.blocks) {
            let (at, size) = (offset.load(Ordering::Relaxed), size.load(Ordering::Relaxed));
            match found.remove(&at) {
                _ if at == 0 => {}
                // Freed, perhaps, and another thread was given it and has not stamped it yet.
                Some(_) if intent == place => {}
                Some(there) => {
                    assert_eq!(there, size);
                    // SAFETY: two words of an allocated block, which no thread changes.
                    let said = stamps(base + at, size).map(|at| unsafe { at.read_volatile() });
                    assert_eq!(said, [mix(at); 2], "{at:#x}");
                }
                None => {
                    assert_eq!(intent, place, "the block at {at:#x} is lost");
                    offset.store(0, Ordering::Relaxed);
                }
            }
        }
    }
    assert!(found.len() as u64 <= about, "{found:x?} are of no thread");
    // What a thread was about to be told.
    found.keys().for_each(|at| heap.free(base + at).expect("allocated"));
    oracle.iter().map(|mine| mine.operations.load(Ordering::Relaxed)).sum()
}

#[test]
fn what_threads_were_told_is_there_when_their_process_is_killed() {
    let rounds = std::env::var("CENOTE_WEAR_KILLS").map_or(12, |n| n.parse().expect("a number"));
    let directory = tempfile::tempdir().expect("a directory");
    drop(open(directory.path(), true));
    let mapped = oracle_file(directory.path());
    let mut operations = 0;
    for round in 0..rounds {
        let mut command = again("wear::killed::child");
        command.env("WEAR_KILLED", directory.path()).env("WEAR_SEED", format!("{}", round * 1000));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        let began = oracle(&mapped)[0].operations.load(Ordering::Relaxed);
        while oracle(&mapped)[0].operations.load(Ordering::Relaxed) == began {
            assert!(child.try_wait().expect("a child").is_none(), "the child has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(mix(round) % 20_000));
        child.kill().expect("a child");
        child.wait().expect("a child");
        let (heap, base) = open(directory.path(), false);
        operations = compare(&heap, base, oracle(&mapped));
    }
    println!("{rounds} kills, {operations} operations");
    assert!(operations > rounds * 50);
}
