//! NVMalloc, Table 2: fragmentation and time of allocations and frees in a ratio.
//!
//! 10^6 operations (`--scale X`: that part of them; else a fifth), of which one is a free for each
//! 3 (2, 1) allocations, in random order, of random blocks. Sizes: 16 (the paper: 10) bytes to
//! 4 KiB, evenly. Each block is stamped and compared. Each run is a process of its own, so that no
//! allocator begins with what another use has left. The rows, for each ratio:
//!
//! * `total 1:3`: the part of its memory, in percent, that an allocator does not have for live
//!   bytes at the end. Its memory is all pages of 4 KiB in which a block has ever been: the same
//!   count for all systems. (Pages that one gave back to the kernel count too.)
//! * `external 1:3`: the part of the same memory that is in free blocks, as the allocator itself
//!   says: `mallinfo2` without the block at the top, or the heap's counts. mimalloc does not say.
//! * `time 1:3`: nanoseconds an operation.
//!
//! Systems: `glibc`, `mimalloc`, and the wear heap: `wear-0`, whose blocks do not wait, as in the
//! paper's table, and `wear`, whose blocks wait for 100 ms.

use crate::allocator::{Allocator, Fault, Numbers, SIZE_MIN, give, take, verdict};
use crate::case::{Failure, POWER, PROCESS};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::Settings;
use crate::random::Random;
use crate::runner::Row;
use crate::wear::Wear;
use cenote::Durability;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "nvmalloc-table2",
    title: "NVMalloc, Table 2: fragmentation and time of allocations and frees in a ratio",
    body: Body::Report(report),
};

/// First argument of a child.
pub const CHILD: &str = "--fragment";

/// Names of the ratios, and allocations for each free.
const RATIOS: [(&str, usize); 3] = [("1:3", 3), ("1:2", 2), ("1:1", 1)];

/// Operations of the paper.
const OPERATIONS: f64 = 1e6;

/// Most bytes of a block.
const SIZE_MAX: usize = 4096;

const PAGE: usize = 4096;

/// A system that is measured.
#[derive(Clone, Copy, Debug)]
pub struct Fragmenting {
    /// Its name in the rows.
    pub system: &'static str,
    /// Its level.
    pub level: &'static str,
    /// Makes its allocator, and does so many allocations for each free, so many operations in all.
    pub run: fn(&Settings, usize, usize) -> Result<Fragments, Failure>,
}

/// Heaps of this project.
const OURS: [Fragmenting; 4] = [
    Fragmenting { system: "wear-0", level: PROCESS, run: wear::<false, 0> },
    Fragmenting { system: "wear-0", level: POWER, run: wear::<true, 0> },
    Fragmenting { system: "wear", level: PROCESS, run: wear::<false, 100> },
    Fragmenting { system: "wear", level: POWER, run: wear::<true, 100> },
];

fn wear<const POWERED: bool, const WAIT_MS: u32>(
    settings: &Settings,
    allocations: usize,
    operations: usize,
) -> Result<Fragments, Failure> {
    let level = if POWERED { Durability::Power } else { Durability::Process };
    let wear = Wear::open(settings, level, WAIT_MS)?;
    let free_bytes = || {
        let stats = wear.heap.stats();
        Some(stats.free_bytes + stats.waiting_bytes)
    };
    Ok(play(&*wear, free_bytes, allocations, operations)?)
}

static OTHERS: OnceLock<&'static [Fragmenting]> = OnceLock::new();

/// Other systems that take part from now on.
pub fn join_by(others: &'static [Fragmenting]) {
    let _ = OTHERS.set(others);
}

fn systems() -> impl Iterator<Item = Fragmenting> {
    OTHERS.get().copied().unwrap_or_default().iter().copied().chain(OURS)
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fragments {
    /// Nanoseconds an operation.
    pub ns: f64,
    /// Bytes of live blocks that were asked for.
    pub live: u64,
    /// Bytes of pages in which a block has been.
    pub pages: u64,
    /// Bytes of free blocks, if the allocator says so.
    pub free: Option<u64>,
}

impl Fragments {
    fn total(&self) -> f64 {
        100.0 * (1.0 - self.live as f64 / self.pages.max(1) as f64)
    }

    fn external(&self) -> Option<f64> {
        self.free.map(|free| 100.0 * free as f64 / self.pages.max(1) as f64)
    }
}

/// Does `operations` operations, with a free for each `allocations` allocations. `free_bytes` says
/// how many bytes the allocator has in free blocks, if it knows.
///
/// # Errors
/// No memory, or a block that is not as it should be.
pub fn play<A: Allocator>(
    heap: &A,
    free_bytes: impl Fn() -> Option<u64>,
    allocations: usize,
    operations: usize,
) -> Result<Fragments, Fault> {
    let free_before = free_bytes();
    let (mut random, mut numbers) = (Random::new(5), Numbers::of_thread(0));
    let mut held = Vec::with_capacity(operations);
    // Of each block first and last page.
    let mut places: Vec<(usize, usize)> = Vec::with_capacity(operations);
    let mut wrong = 0;
    let begin = Instant::now();
    for _ in 0..operations {
        if random.below(allocations + 1) == 0 && !held.is_empty() {
            let block = held.swap_remove(random.below(held.len()));
            // SAFETY: taken below, and not held any more.
            wrong |= unsafe { give(heap, block) };
            continue;
        }
        let size = SIZE_MIN + random.below(SIZE_MAX - SIZE_MIN + 1);
        let block = take(heap, size, &mut numbers)?;
        places.push((block.addr() / PAGE, (block.addr() + size - 1) / PAGE));
        held.push(block);
    }
    let ns = begin.elapsed().as_nanos() as f64 / operations as f64;
    verdict(wrong)?;
    let free = free_bytes().map(|free| free.saturating_sub(free_before.unwrap_or(0)));
    let live = held.iter().map(|block| block.size() as u64).sum();
    let mut pages: Vec<usize> = places.iter().flat_map(|&(first, last)| [first, last]).collect();
    pages.sort_unstable();
    pages.dedup();
    Ok(Fragments { ns, live, pages: (pages.len() * PAGE) as u64, free })
}

/// What a child does: arguments are [`CHILD`], the system, its level, allocations for each free,
/// operations, a directory.
pub fn child(arguments: &[String]) -> ExitCode {
    let ran = || -> Result<Fragments, Failure> {
        let [_, system, level, allocations, operations, directory] = arguments else {
            return Err(format!("{CHILD} is only for this program itself").into());
        };
        let found = systems().find(|of| of.system == system && of.level == level);
        let found = found.ok_or_else(|| format!("there is no system {system}"))?;
        let directory = Path::new(directory).to_path_buf();
        let settings = Settings { directory, ..Settings::default() };
        (found.run)(&settings, allocations.parse()?, operations.parse()?)
    };
    match ran() {
        Ok(Fragments { ns, live, pages, free }) => {
            let free = free.map_or("-".into(), |free| free.to_string());
            println!("{ns} {live} {pages} {free}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    of: &Fragmenting,
    allocations: usize,
    operations: usize,
    directory: &Path,
) -> Result<Fragments, Failure> {
    let ran = Command::new(std::env::current_exe()?)
        .args([CHILD, of.system, of.level, &allocations.to_string(), &operations.to_string()])
        .arg(directory)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let words: Vec<&str> = said.split_whitespace().collect();
    let &[ns, live, pages, free] = &words[..] else {
        return Err(format!("{}: {}", of.system, String::from_utf8_lossy(&ran.stderr)).into());
    };
    Ok(Fragments {
        ns: ns.parse()?,
        live: live.parse()?,
        pages: pages.parse()?,
        free: free.parse().ok(),
    })
}

fn report(settings: &Settings, filter: &Filter, runs: usize, out: &mut dyn Write) -> Rows {
    let scale = settings.scale.unwrap_or(if settings.quick { 0.003 } else { 0.2 });
    let operations = (OPERATIONS * scale) as usize;
    let directory = settings.temporary()?;
    let mut rows = Vec::new();
    for (ratio, allocations) in RATIOS {
        let wanted = |of: &Fragmenting| {
            ["total", "external", "time"]
                .iter()
                .any(|row| filter.admits(&format!("{row} {ratio}"), of.system, of.level))
        };
        let all: Vec<Fragmenting> = systems().filter(wanted).collect();
        let mut ran: Vec<Vec<Fragments>> = vec![Vec::new(); all.len()];
        // In turns, another one first each time.
        for turn in 0..runs * all.len() {
            let number = (turn + turn / all.len()) % all.len();
            ran[number].push(run(&all[number], allocations, operations, directory.path())?);
        }
        writeln!(out, "  {ratio}: {} systems, {operations} operations", all.len())?;
        for (of, ran) in all.iter().zip(ran) {
            let mut row = |name: &str, unit, values: Vec<f64>| {
                let row = format!("{name} {ratio}");
                if !values.is_empty() && filter.admits(&row, of.system, of.level) {
                    let system = (of.system, of.level, 1);
                    rows.push(Row::of_values(FIGURE.name, row, system, unit, values));
                }
            };
            row("total", "%", ran.iter().map(Fragments::total).collect());
            row("external", "%", ran.iter().filter_map(Fragments::external).collect());
            row("time", "ns", ran.iter().map(|fragments| fragments.ns).collect());
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::testing::Arena;

    #[test]
    fn what_is_live_and_where_it_was_is_counted() {
        let arena = Arena::default();
        let ran = play(&arena, || None, 3, 4000).expect("there is memory");
        let (taken, freed) = arena.counts();
        assert!((2800..3200).contains(&taken) && taken + freed == 4000, "{taken} {freed}");
        // 2,056 bytes a block.
        let live = (taken - freed) * 2056;
        assert!(ran.live.abs_diff(live) < live / 10, "{ran:?}, {live}");
        // Nothing was used again, so a third of what was taken is free.
        assert!((25.0..45.0).contains(&ran.total()) && ran.external().is_none(), "{ran:?}");
        let half = Fragments { ns: 1.0, live: 50, pages: 100, free: Some(20) };
        assert_eq!((half.total(), half.external()), (50.0, Some(20.0)));
    }

    #[test]
    fn a_wear_heap_without_a_wait_uses_free_blocks_again() {
        let settings = Settings { quick: true, ..Settings::default() };
        let ran = wear::<false, 0>(&settings, 1, 6000).expect("a store");
        let waiting = wear::<false, 60_000>(&settings, 1, 6000).expect("a store");
        assert!(waiting.pages > 5 * ran.pages, "{ran:?} {waiting:?}");
        assert!(waiting.external() > Some(80.0), "{waiting:?}");
        assert!(ran.total() >= ran.external().expect("it says so"), "{ran:?}");
    }

    #[test]
    fn a_damaged_block_is_found() {
        let arena = Arena { scribbles: true, ..Arena::default() };
        assert_eq!(play(&arena, || None, 1, 500), Err(Fault::Wrong));
    }
}
