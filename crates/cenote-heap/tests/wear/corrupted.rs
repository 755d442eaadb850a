//! Random damage of headers: each is found or harmless, no new block lies on one that a program
//! has, and nothing is lost but the blocks whose headers were changed.
//!
//! One heap is made, with blocks of all states, and with headers of earlier times inside blocks. A
//! trial puts its bytes back, damages one range of bytes, opens the heap, and compares. A number
//! says what a trial does. `CENOTE_WEAR_TRIALS` says how many there are.

use super::{Bench, Heap, LINE, byte, next};
use cenote_heap::wear::{WearHeap, WearReport};
use cenote_heap::{AllocError, Backing};
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, WearBug, plant};
use cenote_testkit::random::mix;
use std::collections::{BTreeMap, BTreeSet};

/// The bytes of a puddle.
struct Copied {
    addr: u64,
    bytes: Vec<u8>,
}

/// The heap that is damaged.
struct Victim {
    bench: Bench,
    puddles: Vec<Copied>,
    /// Address, size and type of allocated blocks.
    held: BTreeMap<u64, (u64, u64)>,
    /// Addresses of the headers of all blocks, free ones too, and of segments.
    headers: Vec<u64>,
}

fn read(addr: u64, len: u64) -> Vec<u8> {
    // SAFETY: bytes of the backing's memory, which no thread changes meanwhile.
    (addr..addr + len).map(|at| unsafe { byte(at).read_volatile() }).collect()
}

fn write(addr: u64, bytes: &[u8]) {
    // SAFETY: as for `read`.
    unsafe { byte(addr).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
}

fn held(report: &WearReport) -> BTreeMap<u64, (u64, u64)> {
    report.blocks.iter().map(|block| (block.addr, (block.size, block.type_id.0))).collect()
}

impl Victim {
    /// A heap of two puddles with about a hundred blocks.
    fn new(seed: u64) -> Self {
        let bench = Bench::with_puddles(64 << 10, 128 << 10);
        let heap = bench.create();
        let (mut seed, mut mine) = (seed, Vec::<(u64, u64)>::new());
        for step in 0..1500u64 {
            let random = next(&mut seed);
            if mine.len() > 90 || (random % 8 < 3 && mine.len() > 30) {
                let (addr, _) = mine.swap_remove(random as usize / 8 % mine.len());
                heap.free(addr).expect("allocated");
            } else if let Ok(block) =
                heap.alloc(random / 8 % (64 << (random % 6)), 8, TypeId(1 + step % 5))
            {
                mine.push((block.addr, block.size));
                // Both ends: headers of an earlier time stay between them.
                write(block.addr, &[0xee; 16]);
                write(block.addr + block.size - 16, &[0xdd; 16]);
            }
            bench.pass(random % 16);
        }
        let report = heap.check();
        assert_eq!(report.damage, []);
        assert!(report.stats.waiting_blocks > 3 && report.stats.free_bytes > 4096);
        let headers = heap.header_addresses();
        drop(heap);
        let copied = |extent: cenote_heap::Extent| Copied {
            addr: extent.addr,
            bytes: read(extent.addr, extent.size),
        };
        let puddles = bench.memory.extents().into_iter().map(copied).collect();
        Self { puddles, held: held(&report), headers, bench }
    }

    fn restore(&self) {
        self.puddles.iter().for_each(|puddle| write(puddle.addr, &puddle.bytes));
    }

    fn bytes_at(&self, addr: u64, len: u64) -> &[u8] {
        let inside = |puddle: &&Copied| {
            (puddle.addr..puddle.addr + puddle.bytes.len() as u64).contains(&addr)
        };
        let puddle = self.puddles.iter().find(inside).expect("a puddle");
        let from = (addr - puddle.addr) as usize;
        &puddle.bytes[from..(from + len as usize).min(puddle.bytes.len())]
    }

    /// Damages a range, and returns the headers that it has changed.
    fn damage(&self, seed: &mut u64) -> BTreeSet<u64> {
        let pick = |seed: &mut u64| self.headers[next(seed) as usize % self.headers.len()];
        let header = pick(seed);
        let random = next(seed);
        let (at, bytes) = match random % 11 {
            // Flipped bits.
            0 | 1 => {
                let mut line = self.bytes_at(header, LINE).to_vec();
                for _ in 0..=random / 16 % 3 {
                    let bit = next(seed) as usize % 512;
                    line[bit / 8] ^= 1 << (bit % 8);
                }
                (header, line)
            }
            // A byte, a word, a slot of any value.
            2 => (header + random / 16 % LINE, vec![(random >> 24) as u8]),
            3 => (
                header + random / 16 % 8 * 8,
                random.wrapping_mul(0x9e37_79b9).to_le_bytes().to_vec(),
            ),
            4 => (header + random / 16 % 2 * 32, (0..32).map(|_| next(seed) as u8).collect()),
            // Zeros, ones.
            5 => (header + random / 16 % 8 * 8, vec![0; 8 * (1 + (random / 256 % 8) as usize)]),
            6 => (header, vec![0; LINE as usize]),
            7 => (header, vec![0xff; LINE as usize]),
            // Another header, or one that moved.
            8 => (header, self.bytes_at(pick(seed), LINE).to_vec()),
            9 => (header + 8, self.bytes_at(header, LINE - 8).to_vec()),
            // An overflow or an underflow of a block, by up to some hundred bytes.
            _ => {
                let len = 1 + random / 16 % 300;
                let at = if (random / 8).is_multiple_of(2) {
                    header
                } else {
                    header + LINE - len.min(LINE)
                };
                (at, vec![0x41; len as usize])
            }
        };
        let room = self.bytes_at(at, bytes.len() as u64).len();
        let before = self.bytes_at(at, room as u64);
        let changed: BTreeSet<u64> = (0..room)
            .filter(|&i| before[i] != bytes[i])
            .map(|i| (at + i as u64) / LINE * LINE)
            .collect();
        write(at, &bytes[..room]);
        self.headers.iter().copied().filter(|header| changed.contains(header)).collect()
    }

    /// One trial; says what does not hold.
    fn trial(&self, number: u64) -> Result<bool, String> {
        self.restore();
        let mut seed = mix(number);
        let changed = self.damage(&mut seed);
        let now = self.bench.now();
        self.bench.pass(2000);
        let heap = WearHeap::open(self.bench.memory.clone(), &self.bench.options());
        let heap = heap.map_err(|error| error.to_string())?;
        let result = self.compare(&heap, &changed).and_then(|()| self.fill(&heap));
        drop(heap);
        self.bench.set_now(now);
        result.map(|()| !changed.is_empty())
    }

    /// All blocks whose headers were not changed are there, and all others are reported.
    fn compare(&self, heap: &Heap, changed: &BTreeSet<u64>) -> Result<(), String> {
        let report = heap.check();
        let found = held(&report);
        let out_of_use =
            |addr: u64| report.damage.iter().any(|d| (d.addr..d.addr + d.bytes).contains(&addr));
        for (addr, block) in &self.held {
            let is_changed = changed.contains(&(addr - LINE));
            match found.get(addr) {
                Some(there) if there == block => {}
                None if is_changed && out_of_use(addr - LINE) => {}
                other => {
                    let was = if is_changed { "changed" } else { "not changed" };
                    return Err(format!("{addr:#x} {block:x?}, {was}: {other:x?}; {report:x?}"));
                }
            }
        }
        match found.keys().find(|addr| !self.held.contains_key(addr)) {
            Some(addr) => Err(format!("a block at {addr:#x} that was none")),
            None => Ok(()),
        }
    }

    /// All that can be allocated lies beside all that is held.
    fn fill(&self, heap: &Heap) -> Result<(), String> {
        loop {
            let block = match heap.alloc(64, 8, TypeId(99)) {
                Ok(block) => block,
                Err(AllocError::Waits { .. }) => {
                    self.bench.pass(2000);
                    continue;
                }
                Err(_) => return Ok(()),
            };
            let (from, end) = (block.addr - LINE, block.addr + block.size);
            let before = self.held.range(..end).next_back();
            if let Some((addr, (size, _))) = before.filter(|(addr, (size, _))| *addr + size > from)
            {
                return Err(format!("{from:#x}..{end:#x} lies on {addr:#x}, {size:#x} bytes"));
            }
        }
    }
}

fn trials(seed: u64, count: u64) -> Result<u64, String> {
    let victim = Victim::new(seed);
    victim.bench.memory.refuse_growth(true);
    let mut changed = 0;
    for number in seed..seed + count {
        let done = victim.trial(number).map_err(|what| format!("trial {number}: {what}"))?;
        changed += u64::from(done);
    }
    Ok(changed)
}

#[test]
fn every_damage_is_found_or_harmless_and_no_block_overlaps() {
    let count = std::env::var("CENOTE_WEAR_TRIALS").map_or(3000, |n| n.parse().expect("a number"));
    let seeds = [11, 2_000_000_011, 4_000_000_011];
    let changed = seeds.map(|seed| trials(seed, count / 3).unwrap_or_else(|what| panic!("{what}")));
    println!("{count} trials, {} of which changed headers", changed.iter().sum::<u64>());
    assert!(changed.iter().sum::<u64>() > count / 2);
}

#[test]
fn headers_of_an_earlier_time_that_are_believed_are_found() {
    plant(Bug::Wear(WearBug::FreeHeaderBelieved));
    let found = trials(11, 2000);
    plant(Bug::None);
    println!("{:?}: {}", WearBug::FreeHeaderBelieved, found.expect_err("the bug"));
}
