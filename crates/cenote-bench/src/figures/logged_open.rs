//! Opening a logged heap whose user was killed, and what its table costs, by the number of blocks.
//!
//! A child makes a store with a logged heap, allocates N blocks of 256 bytes, and measures pairs of
//! a free and an allocation at random places. Each block has a record of its own in the table;
//! smaller ones share one, as slots of slabs. Then it frees and allocates until it is killed by
//! SIGKILL at a random moment. This process, which has mapped nothing of it, opens the store, the
//! pool and the heap, and allocates. The next child goes on with the same heap, so each run is the
//! opening after another kill. Levels take turns.
//!
//! Rows, with N as an ending:
//!
//! | row | unit | what |
//! | --- | --- | --- |
//! | `store`, `heap` | ms | opening the store; opening pool and heap |
//! | `first`, `total` | ms | the first allocation; all three |
//! | `probes` | slots | slots of the table that a pair looks at |
//! | `pair` | ns | a pair, with whatever of the table is not in the caches |
//!
//! `total_64GiB` has N blocks of 10^6 and, in each of 16 sub-heaps, 4 blocks of 1 GiB, whose pages
//! the child has given back to the file system: a heap of 64 GiB in sparse files.

use crate::case::{Failure, POWER, PROCESS};
use crate::figures::figure::{Body, Figure, Rows};
use crate::figures::open_after_kill::Killed;
use crate::filter::Filter;
use crate::place::{self, Settings};
use crate::random::Random;
use crate::runner::Row;
use cenote::{Access, Durability, PoolOptions, TypeId};
use cenote_heap::logged::{LoggedHeap, LoggedOptions};
use cenote_heap::{Backing as _, PoolBacking};
use cenote_layout::catalog::HeapKind;
use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "logged-open",
    title: "opening a logged heap after SIGKILL, and its table",
    body: Body::Report(report),
};

/// First argument of a child.
pub const CHILD: &str = "--use-logged-heap-until-killed";

/// What a child says first, when it has all blocks.
const READY: &str = "ready";

/// A child ends by itself after this long.
const CHILD_AGE_MAX: Duration = Duration::from_secs(300);

/// Pairs that a child measures.
const PAIRS: u64 = 20_000;

/// Bytes of a small block, the smallest that no slab has, and of a large one.
const SMALL: u64 = 256;
const LARGE: u64 = 1 << 30;

/// Bytes of the window of the store with the large heap.
const WINDOW: u64 = 256 << 30;

/// Sub-heaps of the large heap, and large blocks of each.
const SUB_HEAPS: u32 = 16;
const LARGE_EACH: u32 = 4;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

/// A heap that is measured.
#[derive(Clone, Copy, Debug)]
struct Size {
    blocks: u64,
    is_large: bool,
}

impl Size {
    fn name(self) -> String {
        if self.is_large { "64GiB".into() } else { self.blocks.to_string() }
    }
}

fn sizes(settings: &Settings) -> Vec<Size> {
    let small = |blocks| Size { blocks, is_large: false };
    match (settings.objects, settings.quick) {
        (Some(blocks), _) => vec![small(blocks)],
        (None, true) => vec![small(10_000)],
        (None, false) => {
            let large = Size { blocks: 1_000_000, is_large: true };
            vec![small(10_000), small(1_000_000), small(10_000_000), large]
        }
    }
}

const PARTS: [(&str, &str); 6] = [
    ("store", "ms"),
    ("heap", "ms"),
    ("first", "ms"),
    ("total", "ms"),
    ("probes", "slots"),
    ("pair", "ns"),
];

const LEVELS: [(&str, Durability); 2] =
    [(PROCESS, Durability::Process), (POWER, Durability::Power)];

fn report(settings: &Settings, filter: &Filter, runs: usize, out: &mut dyn Write) -> Rows {
    let mut rows = Vec::new();
    for size in sizes(settings) {
        let name = size.name();
        let wanted =
            |part: &str, level: &str| filter.admits(&format!("{part}_{name}"), "logged", level);
        for (level, durability) in LEVELS {
            if !PARTS.iter().any(|(part, _)| wanted(part, level)) {
                continue;
            }
            let directory = settings.temporary()?;
            let mut times: [Vec<f64>; 6] = Default::default();
            let mut random = Random::new(size.blocks);
            for _ in 0..runs {
                let delay = Duration::from_micros(random.below(10_000) as u64);
                let parts = once(directory.path(), durability, size, delay)?;
                times.iter_mut().zip(parts).for_each(|(times, part)| times.push(part));
            }
            let measured = PARTS.into_iter().zip(times);
            for ((part, unit), times) in measured.filter(|((part, _), _)| wanted(part, level)) {
                let row = format!("{part}_{name}");
                let row = Row::of_values(FIGURE.name, row, ("logged", level, 1), unit, times);
                writeln!(out, "  {}, {level}: {:.3} {unit}", row.row, row.median)?;
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// One opening after a kill: the parts, in the order of [`PARTS`].
fn once(
    directory: &Path,
    durability: Durability,
    size: Size,
    delay: Duration,
) -> Result<[f64; 6], Failure> {
    let level = if durability == Durability::Power { POWER } else { PROCESS };
    let child = Command::new(std::env::current_exe()?)
        .args([CHILD, level, &size.blocks.to_string(), &size.is_large.to_string()])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut child = Killed(child);
    let mut line = String::new();
    if let Some(output) = child.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let mut said = line.split_whitespace();
    let ready = said.next() == Some(READY);
    let mut number = || said.next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    let (probes, pair) = (number(), number());
    if !ready {
        return Err("the child ended before it had all blocks; its message is above".into());
    }
    std::thread::sleep(delay);
    drop(child);

    let begin = Instant::now();
    let store = place::open_store(place::medium(directory, durability)?, durability)?;
    let store_open = begin.elapsed();
    // SAFETY: the store is this benchmark's own, and nothing else opens the pool.
    let backing = unsafe { PoolBacking::of(store.open_pool("bench", Access::ReadWrite)?) };
    let (heap, _) = LoggedHeap::open(backing, &LoggedOptions::default())?;
    let heap_open = begin.elapsed();
    let fresh = heap.alloc(SMALL, 16, TypeId::UNTYPED)?;
    let all = begin.elapsed();

    heap.free(fresh.addr)?;
    verify(&heap, size)?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let opened = [ms(store_open), ms(heap_open - store_open), ms(all - heap_open), ms(all)];
    let [store, heap, first, total] = opened;
    Ok([store, heap, first, total, probes, pair])
}

/// Looks at what the child has left.
fn verify(heap: &LoggedHeap<PoolBacking>, size: Size) -> Result<(), Failure> {
    let (mut blocks, mut bytes) = (0, 0);
    for (_, stats) in heap.stats()? {
        blocks += stats.blocks;
        bytes += stats.data_bytes;
    }
    let large = if size.is_large { u64::from(SUB_HEAPS * LARGE_EACH) } else { 0 };
    // The child was killed between a free and an allocation, or not.
    if blocks.abs_diff(size.blocks + large) > 1 || bytes < large * LARGE {
        return Err(format!("{blocks} blocks in {bytes} bytes are there, not as made").into());
    }
    if size.blocks <= 10_000 {
        for (number, sub_heap) in heap.sub_heaps() {
            let damage = sub_heap.check().damage;
            if !damage.is_empty() {
                return Err(format!("sub-heap {number}: {damage:?}").into());
            }
        }
    }
    Ok(())
}

/// What a child does: arguments are [`CHILD`], level, number of blocks, whether the heap is large,
/// and directory. Never returns 0.
pub fn child(arguments: &[String]) -> ExitCode {
    match fill(arguments) {
        Ok(()) => eprintln!("this process was not killed within {} s", CHILD_AGE_MAX.as_secs()),
        Err(error) => eprintln!("{error}"),
    }
    ExitCode::FAILURE
}

fn fill(arguments: &[String]) -> Result<(), Failure> {
    let [_, level, blocks, is_large, directory] = arguments else {
        return Err(format!("{CHILD} is only for this program itself").into());
    };
    let durability = if level == POWER { Durability::Power } else { Durability::Process };
    let size = Size { blocks: blocks.parse()?, is_large: is_large == "true" };
    let (heap, mut held) = open_filled(Path::new(directory), durability, size)?;

    let before = probes(&heap)?;
    let mut random = Random::new(size.blocks);
    let began = Instant::now();
    (0..PAIRS).try_for_each(|_| replace(&heap, &mut held, &mut random))?;
    let pair = began.elapsed().as_nanos() as f64 / PAIRS as f64;
    println!("{READY} {} {pair}", (probes(&heap)? - before) as f64 / PAIRS as f64);
    while began.elapsed() < CHILD_AGE_MAX {
        replace(&heap, &mut held, &mut random)?;
    }
    Ok(())
}

/// Frees one of the small blocks and allocates another, on some CPU.
fn replace(
    heap: &LoggedHeap<PoolBacking>,
    held: &mut [u64],
    random: &mut Random,
) -> Result<(), Failure> {
    CPU.set(random.below(SUB_HEAPS as usize) as u32);
    let at = random.below(held.len());
    heap.free(held[at])?;
    held[at] = heap.alloc(SMALL, 16, TypeId::UNTYPED)?.addr;
    Ok(())
}

/// Slots that all sub-heaps have looked at.
fn probes(heap: &LoggedHeap<PoolBacking>) -> Result<u64, Failure> {
    Ok(heap.stats()?.iter().map(|(_, stats)| stats.probes).sum())
}

/// The heap, which is made and filled if it is not there, and its small blocks.
fn open_filled(
    directory: &Path,
    durability: Durability,
    size: Size,
) -> Result<(LoggedHeap<PoolBacking>, Vec<u64>), Failure> {
    let sub_heaps = if size.is_large { SUB_HEAPS } else { 1 };
    let options = LoggedOptions { sub_heaps, cpu: || CPU.get(), ..LoggedOptions::default() };
    if directory.read_dir()?.next().is_some() {
        let store = place::open_store(place::medium(directory, durability)?, durability)?;
        // SAFETY: the store is this benchmark's own, and nothing else opens the pool.
        let backing = unsafe { PoolBacking::of(store.open_pool("bench", Access::ReadWrite)?) };
        let heap = LoggedHeap::open(backing, &options)?.0;
        let held = small_blocks(&heap, size.blocks)?;
        return Ok((heap, held));
    }
    let window_len = if size.is_large { WINDOW } else { place::window_len() };
    let pool = PoolOptions { heap: HeapKind::Logged, ..PoolOptions::default() };
    let backing = place::new_backing(directory, durability, &pool, window_len)?;
    let heap = LoggedHeap::create(backing.clone(), &options)?;
    if size.is_large {
        for number in 0..SUB_HEAPS * LARGE_EACH {
            CPU.set(number % SUB_HEAPS);
            let block = heap.alloc(LARGE, 16, TypeId::UNTYPED)?;
            // SAFETY: the block was allocated for this, and nothing is stored in it.
            if !unsafe { backing.release(block.addr, block.size) }? {
                return Err("the file system has no sparse files".into());
            }
        }
    }
    let fill = (0..size.blocks).map(|number| {
        CPU.set((number % u64::from(SUB_HEAPS)) as u32);
        Ok(heap.alloc(SMALL, 16, TypeId::UNTYPED)?.addr)
    });
    let held = fill.collect::<Result<Vec<u64>, Failure>>()?;
    Ok((heap, held))
}

/// The small blocks of a heap, in random order: the sub-heaps' reports name them. The one that a
/// kill has left freed is allocated again.
fn small_blocks(heap: &LoggedHeap<PoolBacking>, blocks: u64) -> Result<Vec<u64>, Failure> {
    let mut held = Vec::new();
    for (_, sub_heap) in heap.sub_heaps() {
        let report = sub_heap.check();
        held.extend(report.blocks.iter().filter(|block| block.size == SMALL).map(|b| b.addr));
    }
    while (held.len() as u64) < blocks {
        held.push(heap.alloc(SMALL, 16, TypeId::UNTYPED)?.addr);
    }
    Random::new(blocks).shuffle(&mut held);
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_that_lost_blocks_is_noticed() {
        let directory = tempfile::tempdir().expect("a directory");
        let size = Size { blocks: 100, is_large: false };
        let (heap, held) =
            open_filled(directory.path(), Durability::Process, size).expect("a heap");
        verify(&heap, size).expect("all are there");
        heap.free(held[0]).expect("allocated");
        verify(&heap, size).expect("one is being replaced");
        heap.free(held[1]).expect("allocated");
        verify(&heap, size).expect_err("two are missing");
        drop(heap);
        let (heap, held) =
            open_filled(directory.path(), Durability::Process, size).expect("a heap");
        assert_eq!(held.len(), 100);
        verify(&heap, size).expect("what was missing was allocated again");
    }
}
