//! A workload whose live size is constant, for a while: does memory grow?
//!
//! Threads replace blocks at random, at level `process`, in the pool of a store that no other
//! process uses. Sizes: nine of ten from 16 bytes to 1 KiB, nine of a hundred up to 16 KiB, one of
//! a hundred up to 256 KiB, evenly by magnitude. Blocks are in *hands*, two for each thread; a
//! thread takes the hand that waited longest, replaces some thousand random blocks of it, lets
//! blocks go or adds some until the hand holds its share of the live bytes, and puts it back. So
//! threads free blocks of others all the time. All blocks are stamped and checked, and a word is
//! written in each of their pages, as their owners would.
//!
//! *Live* is bytes of blocks, each rounded up to its class: what an allocator with these classes
//! needs and no less. At regular times the figure compares with it what the pool's puddles take in
//! the file system (`file`) and what of them is resident in this process (`resident`), logs and
//! control files of the store included. A trim in each second gives free superblocks
//! back to the file system, as `Pool::trim_by` does, and the store keeps no spare puddle. The rows
//! give median, least and greatest of the samples after the first quarter of the time; `runs` is
//! their number. At the end the heap's own count of allocated bytes must be exactly what is held.
//!
//! The rows, with their units:
//!
//! * `file`, `resident`: of live: 1 is ideal.
//! * `file_growth`: space at each sample as a part of that at the first that counts: 1 is no
//!   growth.
//! * `rounding`: live as a part of the bytes that were asked for, at the end.
//! * `replace`: million allocations a second, each with a free, between samples.

use crate::allocator::{Fault, Numbers, StampedBlock, give, take, verdict};
use crate::case::Failure;
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::Settings;
use crate::random::Random;
use crate::runner::Row;
use crate::traced::Traced;
use cenote::Durability;
use cenote_heap::class::block_size;
use cenote_heap::{Inspect as _, Trim as _};
use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "steady",
    title: "memory of a workload whose live size is constant",
    body: Body::Report(report),
};

/// Seconds, if nothing else is asked for.
pub const SECONDS: u64 = 20;

/// Live MiB, if nothing else is asked for.
pub const LIVE_MIB: u64 = 256;

/// Time between two trims: what was freed since the last one goes back to the file system.
const TRIM_EVERY: Duration = Duration::from_secs(1);

/// Times at which space is looked at.
const SAMPLES: u32 = 24;

/// Blocks that a thread replaces before it takes another hand.
const REPLACED: u64 = 4096;

/// Bytes of a block as the heap rounds them.
fn rounded(size: usize) -> u64 {
    block_size(size as u64, 16).unwrap_or(size as u64)
}

fn random_size(random: &mut Random) -> usize {
    let (low, high) = match random.below(100) {
        0 => (14, 18),
        1..=9 => (10, 14),
        _ => (4, 10),
    };
    // Evenly by magnitude: a random power of two, and a random size from there to the next.
    let base = 1usize << (low + random.below(high - low));
    (base + random.below(base)).next_multiple_of(8)
}

/// Blocks that one thread works on at a time.
#[derive(Debug, Default)]
struct Hand {
    held: Vec<StampedBlock>,
    live: u64,
    /// Bytes that were asked for.
    asked: u64,
}

/// What one thread brings along.
struct Worker<'a> {
    traced: &'a Traced,
    random: Random,
    numbers: Numbers,
    wrong: u64,
    /// Blocks allocated since this was last looked at.
    added: u64,
}

impl Worker<'_> {
    fn new(traced: &Traced, index: u32) -> Worker<'_> {
        Worker {
            traced,
            random: Random::new(index.into()),
            numbers: Numbers::of_thread(index),
            wrong: 0,
            added: 0,
        }
    }

    fn add(&mut self, hand: &mut Hand) -> Result<(), Fault> {
        let size = random_size(&mut self.random);
        let held = take(self.traced, size, &mut self.numbers)?;
        held.touch();
        hand.held.push(held);
        hand.live += rounded(size);
        hand.asked += size as u64;
        self.added += 1;
        Ok(())
    }

    fn remove(&mut self, hand: &mut Hand) {
        if hand.held.is_empty() {
            return;
        }
        let held = hand.held.swap_remove(self.random.below(hand.held.len()));
        hand.live -= rounded(held.size());
        hand.asked -= held.size() as u64;
        // SAFETY: taken by some worker, and in no hand any more.
        self.wrong |= unsafe { give(self.traced, held) };
    }

    /// Replaces some blocks; afterwards the hand is within one block of its share.
    fn play(&mut self, hand: &mut Hand, share: u64, replaced: u64) -> Result<(), Fault> {
        for _ in 0..replaced {
            self.remove(hand);
            self.add(hand)?;
            while hand.live > share {
                self.remove(hand);
            }
            while hand.live < share {
                self.add(hand)?;
            }
        }
        Ok(())
    }
}

/// Hands that no thread works on, and what all threads did.
struct HandTable {
    hands: Mutex<VecDeque<Hand>>,
    stop: AtomicBool,
    added: AtomicU64,
}

impl HandTable {
    fn hands(&self) -> std::sync::MutexGuard<'_, VecDeque<Hand>> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, worker: &mut Worker<'_>, share: u64) -> Result<(), Fault> {
        while !self.stop.load(Ordering::Relaxed) {
            // There are more hands than threads, so one is always free.
            let Some(mut hand) = self.hands().pop_front() else { continue };
            let played = worker.play(&mut hand, share, REPLACED);
            self.hands().push_back(hand);
            played?;
            self.added.fetch_add(core::mem::take(&mut worker.added), Ordering::Relaxed);
        }
        verdict(worker.wrong)
    }
}

fn report(settings: &Settings, filter: &Filter, _runs: usize, out: &mut dyn Write) -> Rows {
    let traced = Traced::open(settings, Durability::Process)?;
    let seconds = settings.seconds.unwrap_or(if settings.quick { 1 } else { SECONDS });
    let live_mib = settings.live_mib.unwrap_or(if settings.quick { 16 } else { LIVE_MIB });
    let mut rows = Vec::new();
    let threads = settings.threads().into_iter().max().unwrap_or(1);
    let (samples, rounding) =
        run(&traced, threads, live_mib << 20, Duration::from_secs(seconds), out)?;
    let counted: Vec<&Space> = samples.iter().skip(samples.len() / 4).collect();
    let first = counted.first().map_or(1, |space| space.file.max(1)) as f64;
    let mut row = |row: &str, unit, value: &dyn Fn(&Space) -> f64| {
        if filter.admits(row, "cenote", traced.level) {
            let values = counted.iter().map(|space| value(space)).collect();
            rows.push(Row::of_values(
                FIGURE.name,
                row.into(),
                ("cenote", traced.level, threads),
                unit,
                values,
            ));
        }
    };
    row("file", "of live", &|space| space.file as f64 / space.live as f64);
    row("resident", "of live", &|space| space.resident as f64 / space.live as f64);
    row("file_growth", "of first", &|space| space.file as f64 / first);
    row("rounding", "of asked", &|_| rounding);
    row("replace", "Mpairs/s", &|space| space.millions);
    Ok(rows)
}

/// What is taken at one moment.
#[derive(Clone, Copy, Debug)]
struct Space {
    live: u64,
    file: u64,
    resident: u64,
    /// Million pairs a second since the sample before.
    millions: f64,
}

/// What was taken at each sample, and live bytes as a part of those asked for.
fn run(
    traced: &Traced,
    threads: u32,
    live: u64,
    length: Duration,
    out: &mut dyn Write,
) -> Result<(Vec<Space>, f64), Failure> {
    let hands = threads * 2;
    let share = live / u64::from(hands);
    let table = HandTable {
        hands: Mutex::default(),
        stop: AtomicBool::new(false),
        added: AtomicU64::new(0),
    };
    let mut dealer = Worker::new(traced, threads);
    for _ in 0..hands {
        let mut hand = Hand::default();
        dealer.play(&mut hand, share, 1)?;
        table.hands().push_back(hand);
    }
    writeln!(
        out,
        "  {:>8} {:>10} {:>10} {:>10} {:>12}",
        "s", "live MiB", "file", "resident", "Mpairs/s"
    )?;
    let samples = std::thread::scope(|scope| -> Result<Vec<Space>, Failure> {
        let running: Vec<_> = (0..threads)
            .map(|index| {
                let table = &table;
                scope.spawn(move || table.work(&mut Worker::new(traced, index), share))
            })
            .collect();
        let mut samples = Vec::new();
        let result = watch(&table, traced, live, length, &mut samples, out);
        table.stop.store(true, Ordering::Relaxed);
        for thread in running {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        result.map(|()| samples)
    })?;
    let mut hands = table.hands();
    let held: u64 = hands.iter().map(|hand| hand.live).sum();
    let asked: u64 = hands.iter().map(|hand| hand.asked).sum();
    let counted = traced.heap.stats()?.block_bytes;
    if counted != held {
        return Err(format!("the heap counts {counted} allocated bytes, {held} are held").into());
    }
    for hand in hands.iter_mut() {
        while !hand.held.is_empty() {
            dealer.remove(hand);
        }
    }
    verdict(dealer.wrong)?;
    Ok((samples, held as f64 / asked.max(1) as f64))
}

fn watch(
    table: &HandTable,
    traced: &Traced,
    live: u64,
    length: Duration,
    samples: &mut Vec<Space>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut before = (Duration::ZERO, 0);
    for sample in 1..=SAMPLES {
        let due = length * sample / SAMPLES;
        loop {
            let left = due.saturating_sub(begin.elapsed());
            std::thread::sleep(left.min(TRIM_EVERY));
            traced.heap.trim()?;
            if left <= TRIM_EVERY {
                break;
            }
        }
        let now = (begin.elapsed(), table.added.load(Ordering::Relaxed));
        let space = Space {
            live,
            file: file_bytes(traced.path())?,
            resident: resident_bytes(traced.path())?,
            millions: (now.1 - before.1) as f64 / (now.0 - before.0).as_secs_f64() / 1e6,
        };
        before = now;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            out,
            "  {:>8.1} {:>10.1} {:>10.1} {:>10.1} {:>12.2}",
            now.0.as_secs_f64(),
            mib(live),
            mib(space.file),
            mib(space.resident),
            space.millions
        )?;
        samples.push(space);
    }
    Ok(())
}

/// Bytes that the files below a directory take in the file system.
fn file_bytes(directory: &Path) -> Result<u64, Failure> {
    let mut sum = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let found = entry.metadata()?;
        sum += if found.is_dir() { file_bytes(&entry.path())? } else { found.blocks() * 512 };
    }
    Ok(sum)
}

/// Bytes of files below a directory that are mapped into this process and resident.
fn resident_bytes(directory: &Path) -> Result<u64, Failure> {
    let maps = std::fs::read_to_string("/proc/self/smaps")?;
    Ok(resident_in(&maps, &directory.display().to_string()))
}

/// The sum of `Rss` over mappings of files whose path begins with `directory`.
fn resident_in(maps: &str, directory: &str) -> u64 {
    let (mut sum, mut ours) = (0, false);
    for line in maps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let kib = kib.trim().trim_end_matches("kB").trim_end().parse::<u64>().unwrap_or(0);
            sum += if ours { kib << 10 } else { 0 };
        } else if line
            .as_bytes()
            .first()
            .is_some_and(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase())
        {
            ours = line.find('/').is_some_and(|at| line[at..].starts_with(directory));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_mappings_count_as_resident() {
        let maps = "1000-3000 rw-s 00000000 00:19 12   /dev/shm/x/puddles/01\n\
                    Size:  8 kB\nRss:   4 kB\n\
                    3000-5000 rw-p 00000000 00:00 0\nRss:  8 kB\n\
                    a000-b000 rw-s 00000000 00:19 13   /dev/shm/x/puddles/02\nRss:  12 kB\n\
                    c000-d000 rw-s 00000000 00:19 14   /dev/shm/y/puddles/02\nRss:  16 kB\n";
        assert_eq!(resident_in(maps, "/dev/shm/x"), 16 << 10);
    }

    #[test]
    fn sizes_are_mostly_small_and_within_their_range() {
        let mut random = Random::new(1);
        let sizes: Vec<usize> = (0..100_000).map(|_| random_size(&mut random)).collect();
        let among = |from, to| sizes.iter().filter(|&&size| (from..to).contains(&size)).count();
        assert_eq!(among(16, (256 << 10) + 1), sizes.len());
        assert!((88_000..92_000).contains(&among(16, 1024)), "{}", among(16, 1024));
        assert!((800..1200).contains(&among(16385, 1 << 20)), "{}", among(16385, 1 << 20));
    }

    #[test]
    fn a_hand_stays_at_its_share_and_the_heap_counts_the_same() {
        let traced = Traced::open(&Settings::default(), Durability::Process).expect("a store");
        let samples = run(&traced, 2, 4 << 20, Duration::from_millis(240), &mut std::io::sink());
        let (samples, rounding) = samples.expect("the heap's count is what is held");
        assert!((1.0..2.0).contains(&rounding), "{rounding}");
        assert_eq!(samples.len(), SAMPLES as usize);
        assert!(
            samples.iter().all(|space| space.file >= space.live && space.resident > 0),
            "{samples:?}"
        );
    }
}
