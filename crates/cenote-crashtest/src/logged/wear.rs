//! A wear heap in three puddles, with a clock that the script sets, and the count of its writes.

use super::backing::{SimBacking, window_len};
use super::{Do, Held, SMALL, Subject, text};
use cenote_heap::AllocError;
use cenote_heap::wear::{WearClock, WearHeap, WearOptions};
use cenote_layout::LINE_SIZE;
use cenote_layout::id::TypeId;
use cenote_medium::Medium;
use cenote_medium::sim::SimMedium;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

const SIZES: &[u64] = &[32 << 10, 64 << 10, 64 << 10];
/// Chunks of the three puddles, and the lines of each.
const CHUNKS: u64 = 3 + 29 + 29;
const CHUNK_LINES: u64 = 32;
/// Milliseconds that a freed block waits.
pub const WAIT_MS: u32 = 100;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(1_700_000_000_000) };
}

fn options() -> WearOptions {
    let clock = WearClock::new(|| NOW_MS.get());
    WearOptions { wait_ms: WAIT_MS, chunk_log: 11, key: 99, clock, ..WearOptions::default() }
}

/// A wear heap.
pub struct WholeWear {
    heap: WearHeap<Arc<SimBacking>>,
    backing: Arc<SimBacking>,
}

impl std::fmt::Debug for WholeWear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WholeWear").finish_non_exhaustive()
    }
}

impl WholeWear {
    fn nth(&self, number: usize) -> Result<u64, String> {
        self.held()?.keys().nth(number).copied().ok_or("no such block".into())
    }

    fn step(&self, kind: TypeId, step: Do) -> Result<(), String> {
        let heap = &self.heap;
        match step {
            Do::Alloc(size) => drop(heap.alloc(size, 8, kind).map_err(text)?),
            Do::Small(size) => drop(heap.alloc(size, 8, SMALL).map_err(text)?),
            Do::Aligned(size, align) => drop(heap.alloc(size, align, kind).map_err(text)?),
            Do::Many(count, size) => {
                for _ in 0..count {
                    heap.alloc(size, 8, kind).map_err(text)?;
                }
            }
            Do::Free(number) => heap.free(self.nth(number)?).map_err(text)?,
            Do::Fill => while heap.alloc(64, 8, kind).is_ok() {},
            Do::FreeAll => {
                for addr in self.held()?.into_keys() {
                    heap.free(addr).map_err(text)?;
                }
            }
            Do::Pass(ms) => NOW_MS.set(NOW_MS.get() + ms),
            _ => return Err("no step of a wear heap".into()),
        }
        Ok(())
    }
}

impl Subject for WholeWear {
    const WINDOW_LEN: u64 = window_len(SIZES.len() as u64);

    fn create(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String> {
        let backing = Arc::new(SimBacking::new(sim, base, SIZES, 1)?);
        let heap = WearHeap::create(Arc::clone(&backing), &options()).map_err(text)?;
        Ok(Self { heap, backing })
    }

    fn open(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String> {
        let backing = Arc::new(SimBacking::new(sim, base, SIZES, 1)?);
        let opened = WearHeap::open(Arc::clone(&backing), &options());
        let heap = opened.map_err(|error| format!("open: {error}"))?;
        Ok(Self { heap, backing })
    }

    fn sync(&self) -> Result<(), String> {
        self.backing.sync()
    }

    fn held(&self) -> Result<Held, String> {
        let report = self.heap.check();
        if let Some(damage) = report.damage.first() {
            return Err(format!("check finds: {damage}"));
        }
        Ok(report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))).collect())
    }

    fn play(
        &self,
        steps: &[Do],
        kind: u64,
        done: &mut dyn FnMut(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        for (kind, &step) in (kind + 1..).zip(steps) {
            self.step(TypeId(kind), step)?;
            done(self)?;
        }
        Ok(())
    }

    fn go_on(&self, mut found: Held, hash: u64) -> Result<(), String> {
        let now = NOW_MS.get();
        NOW_MS.set(now + 1000);
        for (size, align) in [(64, 8), (1000, 8), (200, 256), (300, 8)] {
            if let Ok(block) = self.heap.alloc(size, align, TypeId(900)) {
                found.insert(block.addr, (block.size, 900));
            }
        }
        if self.held()? != found {
            return Err(format!("afterwards {:x?} are allocated, not {found:x?}", self.held()?));
        }
        for &addr in found.keys() {
            self.heap.free(addr).map_err(|error| format!("afterwards: {error}"))?;
        }
        if !hash.is_multiple_of(4) {
            NOW_MS.set(now);
            return Ok(());
        }
        // All lines can be given out.
        let (mut lines, mut last) = (0, 0);
        loop {
            match self.heap.alloc(64, 8, TypeId(1)) {
                Ok(block) if block.addr == last => return Err("a block twice".into()),
                Ok(block) => {
                    (lines, last) = (lines + block.size / LINE_SIZE + 1, block.addr);
                }
                Err(AllocError::Waits { .. }) => NOW_MS.set(NOW_MS.get() + 101),
                Err(_) => break,
            }
        }
        NOW_MS.set(now);
        match lines {
            lines if lines == CHUNKS * CHUNK_LINES => Ok(()),
            lines => Err(format!("{lines} lines, not {}", CHUNKS * CHUNK_LINES)),
        }
    }
}

/// When each line of the heap was written, as the medium counts it.
#[derive(Clone, Debug, Default)]
pub struct LineCounts {
    writes: BTreeMap<(String, u64), Vec<u64>>,
}

impl LineCounts {
    /// Plays random operations on a heap, sessions after sessions; the program writes nothing. Says
    /// when each line was written.
    ///
    /// # Errors
    /// What went wrong.
    pub fn of(sim: &Arc<SimMedium>, base: u64, seed: u64, steps: u32) -> Result<Self, String> {
        let (mut seed, mut counts) = (seed, Self::default());
        let mut subject = WholeWear::create(sim, base)?;
        sim.count_line_writes();
        let mut blocks = Vec::new();
        for _ in 0..steps {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let random = seed >> 33;
            let heap = &subject.heap;
            match random % 16 {
                0 => NOW_MS.set(NOW_MS.get() + random / 16 % 150),
                1 if random / 16 % 8 == 0 => {
                    drop(subject);
                    // SAFETY: the subject is dropped, and nothing else uses the window.
                    unsafe { sim.release_window(base, WholeWear::WINDOW_LEN) }.map_err(text)?;
                    subject = WholeWear::open(sim, base)?;
                }
                2..=7 if !blocks.is_empty() => {
                    let at = random as usize / 16 % blocks.len();
                    heap.free(blocks.swap_remove(at)).map_err(text)?;
                }
                8 => {
                    let aligned = heap.alloc(random / 16 % 500, 64 << (random / 16 % 4), SMALL);
                    blocks.extend(aligned.ok().map(|block| block.addr));
                }
                _ => {
                    let size = if random % 5 == 0 { 1900 } else { random / 16 % 400 };
                    blocks.extend(heap.alloc(size, 8, SMALL).ok().map(|block| block.addr));
                }
            }
            counts.add(sim);
        }
        Ok(counts)
    }

    fn add(&mut self, sim: &SimMedium) {
        let written = sim.take_line_writes();
        for place in written.into_iter().filter(|(file, _)| file.starts_with("puddles/")) {
            self.writes.entry(place).or_default().push(NOW_MS.get());
        }
    }

    /// Lines that were written, and writes.
    #[must_use]
    pub fn totals(&self) -> (usize, usize) {
        (self.writes.len(), self.writes.values().map(Vec::len).sum())
    }

    /// The lines that were written more than twice within the time that a block waits, and when.
    #[must_use]
    pub fn too_often(&self) -> Vec<(&(String, u64), &Vec<u64>)> {
        let close = |times: &[u64]| times.windows(3).any(|of| of[2] - of[0] <= u64::from(WAIT_MS));
        self.writes.iter().filter(|(_, times)| close(times)).collect()
    }
}
