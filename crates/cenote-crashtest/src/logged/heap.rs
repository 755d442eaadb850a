//! A logged heap of sub-heaps, in eight puddles. The root puddle has room for the metadata of two
//! sub-heaps; the third has a puddle of metadata.

use super::backing::{SimBacking, window_len};
use super::{Do, Held, SMALL, Subject, TransactionEnd, text};
use cenote_heap::Backing;
use cenote_heap::logged::{HeapLog, LoggedHeap, LoggedOptions};
use cenote_layout::id::TypeId;
use cenote_medium::sim::SimMedium;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

const SIZES: &[u64] = &[128 << 10, PUDDLE, PUDDLE, PUDDLE, PUDDLE, PUDDLE, PUDDLE, PUDDLE];
const PUDDLE: u64 = 64 << 10;
const SUB_HEAPS: u32 = 3;
/// The largest block of a data puddle.
const LARGEST: u64 = 32 << 10;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

fn options() -> LoggedOptions {
    let (sub_heaps, cpu) = (SUB_HEAPS, || CPU.get());
    LoggedOptions { sub_heaps, lanes: 2, tickets: 0, levels: 1, cpu, ..LoggedOptions::default() }
}

/// A heap of up to three sub-heaps.
pub struct WholeHeap {
    heap: LoggedHeap<Arc<SimBacking>>,
    backing: Arc<SimBacking>,
}

impl std::fmt::Debug for WholeHeap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WholeHeap").finish_non_exhaustive()
    }
}

impl Subject for WholeHeap {
    const WINDOW_LEN: u64 = window_len(SIZES.len() as u64);

    fn create(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String> {
        let backing = Arc::new(SimBacking::new(sim, base, SIZES, 1)?);
        let heap = LoggedHeap::create(Arc::clone(&backing), &options()).map_err(text)?;
        Ok(Self { heap, backing })
    }

    fn open(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String> {
        let backing = Arc::new(SimBacking::new(sim, base, SIZES, 1)?);
        let opened = LoggedHeap::open(Arc::clone(&backing), &options());
        let (heap, _) = opened.map_err(|error| format!("open: {error}"))?;
        Ok(Self { heap, backing })
    }

    fn sync(&self) -> Result<(), String> {
        self.backing.sync()
    }

    fn held(&self) -> Result<Held, String> {
        let mut all = Held::new();
        for (number, sub) in self.heap.sub_heaps() {
            let report = sub.check();
            if let Some(damage) = report.damage.first() {
                return Err(format!("check of sub-heap {number} finds: {damage}"));
            }
            all.extend(report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))));
        }
        Ok(all)
    }

    fn play(
        &self,
        steps: &[Do],
        kind: u64,
        done: &mut dyn FnMut(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        CPU.set(0);
        // A process that dies does not end its transaction.
        let mut log = ManuallyDrop::new(self.heap.log());
        for (kind, &step) in (kind + 1..).zip(steps) {
            self.step(&mut log, TypeId(kind), step)?;
            done(self)?;
        }
        drop(ManuallyDrop::into_inner(log));
        Ok(())
    }

    fn go_on(&self, mut found: Held, _: u64) -> Result<(), String> {
        for (cpu, size) in [(0, 64), (1, 1000), (2, 200), (0, 300)] {
            CPU.set(cpu);
            if let Ok(block) = self.heap.alloc(size, 1, TypeId(900)) {
                found.insert(block.addr, (block.size, 900));
            }
        }
        if self.held()? != found {
            return Err(format!("afterwards {:x?} are allocated, not {found:x?}", self.held()?));
        }
        for &addr in found.keys() {
            self.heap.free(addr).map_err(|error| format!("afterwards: {error}"))?;
        }
        let mut count = 0;
        while self.heap.alloc(LARGEST, 1, TypeId(1)).is_ok() {
            count += 1;
        }
        // Every puddle is taken and of use: each of data has one of these blocks.
        let stats = self.heap.stats().map_err(text)?;
        let parts: u64 = stats.iter().map(|(_, stats)| u64::from(stats.parts)).sum();
        let data: u64 = stats.iter().map(|(_, stats)| stats.data_bytes).sum();
        let metadata = 1 + u64::from(stats.len() == 3);
        let expected = (data / (PUDDLE - 4096), SIZES.len() as u64, SIZES.len());
        match (count, metadata + parts, self.backing.extents().len()) {
            found if found == expected => Ok(()),
            found => Err(format!("largest blocks, puddles: {found:?}, not {expected:?}")),
        }
    }
}

impl WholeHeap {
    fn nth(&self, number: usize) -> Result<u64, String> {
        self.held()?.keys().nth(number).copied().ok_or("no such block".into())
    }

    fn step(
        &self,
        log: &mut HeapLog<'_, Arc<SimBacking>>,
        kind: TypeId,
        step: Do,
    ) -> Result<(), String> {
        let heap = &self.heap;
        match step {
            Do::Cpu(cpu) => CPU.set(cpu),
            Do::Alloc(size) => drop(heap.alloc(size, 1, kind).map_err(text)?),
            Do::Many(count, size) => {
                for _ in 0..count {
                    heap.alloc(size, 1, SMALL).map_err(text)?;
                }
            }
            Do::Small(size) => drop(heap.alloc(size, 1, SMALL).map_err(text)?),
            Do::FreeSmall => {
                let held = self.held()?;
                let first = held.iter().find(|(_, (_, kind))| *kind == SMALL.0);
                let (addr, _) = first.ok_or("no small block")?;
                heap.free(*addr).map_err(text)?;
            }
            Do::Free(number) => heap.free(self.nth(number)?).map_err(text)?,
            Do::Fill => while heap.alloc(64, 1, kind).is_ok() {},
            Do::FreeAll => {
                for addr in self.held()?.into_keys() {
                    heap.free(addr).map_err(text)?;
                }
            }
            Do::Compact => {
                for (_, sub) in heap.sub_heaps() {
                    sub.compact().map_err(text)?;
                }
            }
            Do::NearGrowth => {
                for _ in 1..allocations_until_growth()? {
                    heap.alloc(256, 1, kind).map_err(text)?;
                }
            }
            Do::Aligned(..) | Do::Pass(_) => return Err("a step of a wear heap".into()),
            Do::Transaction(..) => return Err("a heap's transactions are across".into()),
            Do::Across(allocs, frees, end) => {
                let frees: Result<Vec<u64>, String> =
                    frees.iter().map(|&number| self.nth(number)).collect();
                for addr in frees? {
                    log.free(addr).map_err(text)?;
                }
                for (i, &(cpu, size)) in allocs.iter().enumerate() {
                    CPU.set(cpu);
                    let is_last = end == TransactionEnd::WithLast && i + 1 == allocs.len();
                    log.alloc(size, 1, kind, is_last).map_err(text)?;
                }
                match end {
                    TransactionEnd::Commit => log.commit().map_err(text)?,
                    TransactionEnd::Abort => log.abort().map_err(text)?,
                    TransactionEnd::WithLast => {}
                }
            }
        }
        Ok(())
    }
}

/// Blocks of 256 bytes up to the one whose record needs another level.
fn allocations_until_growth() -> Result<u32, String> {
    let memory = cenote_heap::MemoryOptions { puddle_size: 64 << 10, ..Default::default() };
    let backing = cenote_heap::MemoryBacking::new(memory);
    let heap = LoggedHeap::create(backing, &options()).map_err(text)?;
    let mut count = 0;
    while heap.stats().map_err(text)?.first().is_none_or(|(_, stats)| stats.levels == 1) {
        heap.alloc(256, 1, TypeId(1)).map_err(text)?;
        count += 1;
    }
    Ok(count)
}
