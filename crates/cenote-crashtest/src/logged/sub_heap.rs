//! One sub-heap in two files.

use super::backing::{SimBacking, window_len};
use super::{Do, Held, SMALL, Subject, TransactionEnd, text};
use cenote_heap::logged::{MicroLog, Region, SubHeap, SubHeapPlace};
use cenote_heap::{Backing, MemoryBacking, MemoryOptions};
use cenote_layout::id::TypeId;
use cenote_layout::logged::SubHeapGeometry;
use cenote_medium::sim::SimMedium;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Bytes of the data.
pub const DATA_LEN: u64 = 16 << 10;
const LANES: u32 = 2;
const LEVELS: u32 = SubHeapGeometry::levels_for(DATA_LEN);
const METADATA_LEN: u64 = match SubHeapGeometry::new(LANES, 0, LEVELS) {
    Some(geometry) => geometry.metadata_len,
    None => 0,
};
const SIZES: &[u64] = &[DATA_LEN, METADATA_LEN];

/// One sub-heap.
pub struct OneSubHeap {
    heap: SubHeap<Arc<SimBacking>>,
    backing: Arc<SimBacking>,
}

impl std::fmt::Debug for OneSubHeap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneSubHeap").finish_non_exhaustive()
    }
}

fn place(backing: &SimBacking) -> SubHeapPlace {
    let region = |extent: &cenote_heap::Extent| {
        let (puddle, base) = (extent.index, extent.addr);
        Region { puddle, base, from: 0, len: extent.size }
    };
    let extents = backing.extents();
    SubHeapPlace { data: region(&extents[0]), metadata: region(&extents[1]) }
}

impl Subject for OneSubHeap {
    const WINDOW_LEN: u64 = window_len(2);

    fn create(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String> {
        let backing = Arc::new(SimBacking::new(sim, base, SIZES, 2)?);
        let place = place(&backing);
        // SAFETY: the backing maps both regions, which nothing else uses; new files are zeros.
        let heap = unsafe { SubHeap::format(Arc::clone(&backing), &place, 0, LANES) };
        Ok(Self { heap: heap.map_err(text)?, backing })
    }

    fn open(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String> {
        let backing = Arc::new(SimBacking::new(sim, base, SIZES, 2)?);
        let place = place(&backing);
        // SAFETY: the backing maps both regions, and nothing else uses them.
        let opened = unsafe { SubHeap::open(Arc::clone(&backing), &place.metadata) };
        let (heap, _) = opened.map_err(|error| format!("open: {error}"))?;
        Ok(Self { heap, backing })
    }

    fn sync(&self) -> Result<(), String> {
        self.backing.sync()
    }

    fn held(&self) -> Result<Held, String> {
        held(&self.heap)
    }

    fn play(
        &self,
        steps: &[Do],
        kind: u64,
        done: &mut dyn FnMut(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let log = self.heap.micro_log().map_err(text)?;
        // A process that dies does not end its transaction.
        let mut run = ManuallyDrop::new(Run { heap: &self.heap, log, kind });
        for &step in steps {
            run.step(step).map_err(|error| format!("{step:?}: {error}"))?;
            done(self)?;
        }
        drop(ManuallyDrop::into_inner(run));
        Ok(())
    }

    fn go_on(&self, found: Held, hash: u64) -> Result<(), String> {
        go_on(&self.heap, found, hash)
    }
}

type Heap = SubHeap<Arc<SimBacking>>;

fn held(heap: &Heap) -> Result<Held, String> {
    let report = heap.check();
    match report.damage.first() {
        Some(damage) => Err(format!("check finds: {damage}")),
        None => Ok(report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))).collect()),
    }
}

/// A heap at work.
struct Run<'a> {
    heap: &'a Heap,
    log: MicroLog<'a, Arc<SimBacking>>,
    kind: u64,
}

impl Run<'_> {
    fn step(&mut self, step: Do) -> Result<(), String> {
        self.kind += 1;
        let kind = TypeId(self.kind);
        let nth = |heap: &Heap, number: usize| -> Result<u64, String> {
            held(heap)?.keys().nth(number).copied().ok_or("no such block".into())
        };
        match step {
            Do::Alloc(size) => drop(self.heap.alloc_apart(size, 1, kind).map_err(text)?),
            Do::Many(count, size) => {
                for _ in 0..count {
                    self.heap.alloc(size, 1, SMALL).map_err(text)?;
                }
            }
            Do::Small(size) => drop(self.heap.alloc(size, 1, SMALL).map_err(text)?),
            Do::FreeSmall => {
                let held = held(self.heap)?;
                let first = held.iter().find(|(_, (_, kind))| *kind == SMALL.0);
                let (addr, _) = first.ok_or("no small block")?;
                self.heap.free(*addr).map_err(text)?;
            }
            Do::Free(number) => self.heap.free(nth(self.heap, number)?).map_err(text)?,
            Do::Fill => while self.heap.alloc_apart(64, 1, kind).is_ok() {},
            Do::NearGrowth => {
                self.heap.alloc_apart(8192, 1, kind).map_err(text)?;
                for _ in 1..allocations_until_growth()? {
                    self.heap.alloc_apart(64, 1, kind).map_err(text)?;
                }
            }
            Do::FreeAll => {
                for addr in held(self.heap)?.into_keys() {
                    self.heap.free(addr).map_err(text)?;
                }
            }
            Do::Compact => drop(self.heap.compact().map_err(text)?),
            Do::Aligned(..) | Do::Pass(_) => return Err("a step of a wear heap".into()),
            Do::Cpu(_) | Do::Across(..) => return Err("one sub-heap has no CPUs".into()),
            Do::Transaction(sizes, frees, end) => {
                let frees: Result<Vec<u64>, String> =
                    frees.iter().map(|&number| nth(self.heap, number)).collect();
                for addr in frees? {
                    self.log.free(addr).map_err(text)?;
                }
                for (i, &size) in sizes.iter().enumerate() {
                    let is_last = end == TransactionEnd::WithLast && i + 1 == sizes.len();
                    self.log.alloc(size, 1, kind, is_last).map_err(text)?;
                }
                match end {
                    TransactionEnd::Commit => self.log.commit().map_err(text)?,
                    TransactionEnd::Abort => self.log.abort().map_err(text)?,
                    TransactionEnd::WithLast => {}
                }
            }
        }
        Ok(())
    }
}

/// Blocks of 64 bytes, after one of 8 KiB, up to the one whose record needs another level.
fn allocations_until_growth() -> Result<u32, String> {
    let len = METADATA_LEN;
    let backing = MemoryBacking::new(MemoryOptions::default());
    let base = backing.take(len).map_err(text)?.addr;
    let metadata = Region { puddle: 1, base, from: 0, len };
    let base = backing.extents()[0].addr;
    let place = SubHeapPlace { data: Region { puddle: 0, base, from: 0, len: DATA_LEN }, metadata };
    // SAFETY: two puddles of memory of this function's own, which the sub-heap keeps.
    let heap = unsafe { SubHeap::format(backing, &place, 0, LANES) }.map_err(text)?;
    heap.alloc_apart(8192, 1, TypeId(1)).map_err(text)?;
    let mut count = 0;
    while heap.stats().map_err(text)?.levels == 1 {
        heap.alloc_apart(64, 1, TypeId(1)).map_err(text)?;
        count += 1;
    }
    Ok(count)
}

/// Allocates beside what is there; of some images, all that there is.
fn go_on(heap: &Heap, mut found: Held, hash: u64) -> Result<(), String> {
    let mut new = Vec::new();
    for (size, kind) in [(64, 900), (1000, 901), (200, 902)] {
        if let Ok(block) = heap.alloc_apart(size, 1, TypeId(kind)) {
            found.insert(block.addr, (block.size, kind));
            new.push(block.addr);
        }
    }
    for size in [32, 16] {
        if let Ok(block) = heap.alloc(size, 1, TypeId(5)) {
            found.insert(block.addr, (block.size, 5));
        }
    }
    if held(heap)? != found {
        return Err(format!("afterwards {:x?} are allocated, not {found:x?}", held(heap)?));
    }
    if !hash.is_multiple_of(8) {
        return Ok(());
    }
    for &addr in found.keys() {
        heap.free(addr).map_err(|e| format!("afterwards: {e}"))?;
    }
    let whole = heap.alloc_apart(DATA_LEN, 1, TypeId(1)).map_err(|e| format!("all of it: {e}"))?;
    heap.free(whole.addr).map_err(text)?;
    let mut count = 0;
    while heap.alloc_apart(64, 1, TypeId(1)).is_ok() {
        count += 1;
    }
    match (count, held(heap)?.len()) {
        (256, 256) => Ok(()),
        other => Err(format!("{other:?} smallest blocks instead of 256")),
    }
}
