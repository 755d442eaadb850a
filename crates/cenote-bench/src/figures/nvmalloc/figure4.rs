//! NVMalloc, Figure 4: writes by line of 64 bytes, by allocator.
//!
//! 100,000 operations, half allocations and half frees of random blocks in random order; sizes from
//! 10 bytes to 4 KiB (`10B-4KB`) or to 256 bytes (`10B-256B`), evenly. The program writes each
//! block once, all of it. Each store of the allocator into the memory that its blocks come from is
//! counted ([`crate::stores`]), by line; stores that follow each other in one line count once. Each
//! system is a process of its own.
//!
//! Rows, of each range of sizes: `total` (writes), `lines` (that were written), and of these lines
//! `mean`, `p99`, `p99.9`, `max` writes of a line; `heap` (writes without those of the program);
//! `of_glibc` and `of_uncached`: `total` as a part of that of these systems. The numbers are those
//! of one run: they are counts, and the same in each.
//!
//! | system | what it is |
//! | --- | --- |
//! | `glibc` | the C library's malloc; neither its arena nor the table of its cache count |
//! | `glibc, uncached` | the same without its cache of each thread, which the paper's had not |
//! | `wear` | the wear heap; blocks wait for 100 ms |
//! | `wear-0` | the same without a wait |
//!
//! The clock of the wear heap goes by operations, 1 us each: about what one takes where stores are
//! not counted. (The paper's authors let blocks wait longer, for the same reason.)

use super::writes::{self, LineWrites, TABLE_LINES, counted, heap_of_glibc, run_child};
use crate::allocator::Allocator;
use crate::case::{Failure, NO_LEVEL, PROCESS};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::Settings;
use crate::random::Random;
use crate::runner::Row;
use crate::stores::{self, LineCounts};
use crate::wear::Wear;
use cenote::Durability;
use cenote_heap::wear::WearClock;
use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "nvmalloc-figure4",
    title: "NVMalloc, Figure 4: writes by line of 64 bytes, by allocator",
    body: Body::Report(report),
};

/// First argument of a child.
pub const CHILD: &str = "--count-writes";

/// Names of the ranges of sizes, and their greatest.
const SIZES: [(&str, usize); 2] = [("10B-4KB", 4096), ("10B-256B", 256)];

/// Least bytes of a block.
const SIZE_MIN: usize = 10;

/// Operations of the paper.
const OPERATIONS: u64 = 100_000;

/// Bytes of the wear heap's puddle: all of the blocks lie there.
const PUDDLE: u64 = 256 << 20;

/// What makes the C library's malloc do without its cache.
const UNCACHED: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

/// Names of the systems, their levels, and how long blocks wait.
const SYSTEMS: [(&str, &str, u32); 4] = [
    ("glibc", NO_LEVEL, 0),
    ("glibc, uncached", NO_LEVEL, 0),
    ("wear", PROCESS, 100),
    ("wear-0", PROCESS, 0),
];

/// Blocks that are held.
pub type Held = Vec<*mut u8>;

/// Does a workload with an allocator.
type RunBy = fn(&Workload, &mut Held) -> Result<(), Failure>;

/// An allocator whose blocks lie in memory that the C library's malloc has.
static OTHER: OnceLock<RunBy> = OnceLock::new();

/// The C library's malloc takes part from now on.
pub fn join_by(glibc: RunBy) {
    let _ = OTHER.set(glibc);
}

/// Operations so far.
static DONE: AtomicU64 = AtomicU64::new(0);

/// What is done with an allocator.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    size_max: usize,
    operations: u64,
}

impl Workload {
    /// Room for all blocks. Made before the heap of the C library has room for it, so that it lies
    /// elsewhere.
    fn held(&self) -> Held {
        Vec::with_capacity((self.operations as usize).max(1 << 17))
    }

    /// Does it. What the program writes into blocks is counted, but not written.
    ///
    /// # Errors
    /// No memory, or a block that could not be freed.
    pub fn run<A: Allocator>(&self, heap: &A, held: &mut Held) -> Result<(), Failure> {
        let mut random = Random::new(4);
        for _ in 0..self.operations {
            DONE.fetch_add(1, Ordering::Relaxed);
            if random.below(2) == 0 && !held.is_empty() {
                let block = held.swap_remove(random.below(held.len()));
                // SAFETY: allocated below, and not held any more.
                if !unsafe { heap.free(block) } {
                    return Err("a block could not be freed".into());
                }
                continue;
            }
            let size = SIZE_MIN + random.below(self.size_max - SIZE_MIN + 1);
            let block = heap.alloc(size);
            if block.is_null() {
                return Err(format!("no block of {size} bytes").into());
            }
            stores::wrote(block.addr()..block.addr() + size);
            held.push(block);
        }
        Ok(())
    }

    /// Writes of the program alone, if no line has two blocks: what no allocator goes below.
    fn least_writes(&self) -> u64 {
        let mut random = Random::new(4);
        let (mut live, mut lines) = (0usize, 0);
        for _ in 0..self.operations {
            if random.below(2) == 0 && live > 0 {
                random.below(live);
                live -= 1;
                continue;
            }
            let size = SIZE_MIN + random.below(self.size_max - SIZE_MIN + 1);
            lines += size.div_ceil(stores::LINE);
            live += 1;
        }
        lines as u64
    }
}

/// What a child does: arguments are [`CHILD`], the system, its blocks' time, the greatest size,
/// operations, a directory.
pub fn child(arguments: &[String]) -> ExitCode {
    writes::child(|| {
        let [_, system, wait_ms, size_max, operations, directory] = arguments else {
            return Err(format!("{CHILD} is only for this program itself").into());
        };
        if system == KNOWN {
            return known_stores();
        }
        let workload = Workload { size_max: size_max.parse()?, operations: operations.parse()? };
        let mut held = workload.held();
        if system.starts_with("glibc") {
            let run = OTHER.get().ok_or("the C library's malloc does not take part")?;
            let (range, counts) = heap_of_glibc()?;
            // SAFETY: the C library's heap, all but its first page; no system call writes there
            // while blocks are allocated and freed, and only malloc extends it.
            return unsafe { counted((range, TABLE_LINES), counts, || run(&workload, &mut held)) };
        }
        let settings = Settings { directory: directory.into(), ..Settings::default() };
        let clock = WearClock::new(|| 1_000_000 + DONE.load(Ordering::Relaxed) / 1000);
        let options = (wait_ms.parse()?, PUDDLE);
        let wear = Wear::open_by(&settings, Durability::Process, options, clock)?;
        let first = wear.first.addr as usize;
        let range = first..first + wear.first.size as usize;
        let counts = LineCounts::of(range.len());
        // SAFETY: the pool's puddle, which is mapped until the process ends, and which the heap
        // alone writes.
        unsafe { counted((range, 0), counts, || workload.run(&*wear, &mut held)) }
    })
}

/// A system of which it is known what it stores.
const KNOWN: &str = "known";

/// Ten lines three times, each time by two stores that follow each other; then one store into two
/// pages.
fn known_stores() -> Result<LineWrites, Failure> {
    const PAGE: usize = 4096;
    let memory = vec![0u8; 4 * PAGE].leak();
    let begin = memory.as_mut_ptr().map_addr(|addr| addr.next_multiple_of(PAGE));
    let range = begin.addr()..begin.addr() + 2 * PAGE;
    let counts = LineCounts::of(range.len());
    // SAFETY: two pages of leaked memory, which nothing else uses. The stores below lie there.
    unsafe {
        counted((range, 0), counts, || {
            for line in (0..30).map(|store| store % 10) {
                begin.add(line * stores::LINE).write_volatile(1);
                begin.add(line * stores::LINE + 8).cast::<u64>().write_volatile(2);
            }
            begin.add(PAGE - 4).cast::<u64>().write_unaligned(std::hint::black_box(3));
            Ok(())
        })
    }
}

fn report(settings: &Settings, filter: &Filter, _: usize, out: &mut dyn Write) -> Rows {
    let operations = if settings.quick { 500 } else { OPERATIONS };
    let mut rows = Vec::new();
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        writeln!(out, "  skipped: stores are counted on x86-64 alone")?;
        return Ok(rows);
    }
    for (sizes, size_max) in SIZES {
        let least = Workload { size_max, operations }.least_writes();
        let mut all: Vec<(&str, &str, LineWrites)> = Vec::new();
        for (system, level, wait_ms) in SYSTEMS {
            let directory = settings.temporary()?;
            let place = directory.path().to_string_lossy();
            let numbers = [wait_ms.to_string(), size_max.to_string(), operations.to_string()];
            let [wait_ms, size_max, operations] = &numbers;
            let variables = if system == "glibc, uncached" { &[UNCACHED][..] } else { &[] };
            let arguments = [CHILD, system, wait_ms, size_max, operations, &*place];
            let counted = run_child(&arguments, variables)?;
            writeln!(out, "  {sizes}, {system}: {} writes", counted.total())?;
            all.push((system, level, counted));
        }
        let [glibc, uncached] = [0, 1].map(|number| all[number].2.total() as f64);
        for (system, level, counted) in &all {
            let total = counted.total() as f64;
            let row = |name: &str, unit, value| {
                let row = format!("{name} {sizes}");
                Row::of_values(FIGURE.name, row, (*system, *level, 1), unit, vec![value])
            };
            let mut of = counted.rows(FIGURE.name, sizes, (*system, *level));
            of.push(row("heap", "writes", total - least as f64));
            of.push(row("of_glibc", "parts", total / glibc));
            of.push(row("of_uncached", "parts", total / uncached));
            rows.extend(of.into_iter().filter(|row| filter.admits(&row.row, system, level)));
        }
    }
    Ok(rows)
}
