//! A sub-heap of the logged heap, crashed everywhere, on a simulated medium without a store.
//!
//! A *script* is a list of [`Do`]. Crash points are flushes, fences, file operations, and the steps
//! between stores that the heap's own code names ([`cenote_medium::planted::reach`]).
//!
//! **Oracle.** After every action the allocated blocks are noted. A crash between two actions must
//! leave the blocks of one side, exactly; an action that was acknowledged stays. Besides: `check`
//! finds nothing; new blocks lie on no old one; all that is free can be allocated, as one block and
//! as smallest blocks; no store goes where the file has no space. The same holds for a crash of the
//! recovery, and for a loss of power after a recovery from the death of a process.

use crate::explore::guarded;
use cenote_heap::logged::{MicroLog, Place, SubHeap};
use cenote_heap::{Backing, BackingError, Extent, MemoryBacking, MemoryOptions};
use cenote_layout::id::TypeId;
use cenote_layout::logged::SubHeapGeometry;
use cenote_medium::planted::{Bug, plant, watch};
use cenote_medium::sim::{CrashState, Explorer, Image, Limits, SimMedium, SimOptions, Walk};
use cenote_medium::{Durability, MapMode, Medium, OwnedMedium, Persistence};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;

/// Bytes of the data region.
pub const DATA_LEN: u64 = 16 << 10;
const LANES: u32 = 2;
const DATA: &str = "puddles/data";
const METADATA: &str = "puddles/metadata";
/// From the window's start to the metadata.
const METADATA_AT: u64 = 2 << 20;
const WINDOW_LEN: u64 = 4 << 20;

/// One thing that a program does. Blocks are numbered by address among those that are allocated.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// Allocates a block.
    Alloc(u64),
    /// Frees the block with a number.
    Free(usize),
    /// Allocates blocks of 64 bytes until none is left.
    Fill,
    /// Frees all blocks.
    FreeAll,
    /// Allocates one block of 8 KiB, then blocks of 64 bytes until one more lets the table grow.
    NearGrowth,
    /// Merges what can be, and gives empty levels back.
    Compact,
    /// A transaction: allocations, frees by number, and its end.
    Transaction(&'static [u64], &'static [usize], End),
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By a commit.
    Commit,
    /// By its last allocation.
    WithLast,
    /// By an abort.
    Abort,
}

/// What is done before the crashes, and what is crashed.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Preparation.
    pub before: &'static [Do],
    /// What is crashed everywhere.
    pub crashed: &'static [Do],
}

/// Allocated blocks: address, and size and type.
type Held = BTreeMap<u64, (u64, u64)>;

/// The two files of a sub-heap as its backing.
struct SimBacking {
    medium: OwnedMedium,
    persistence: Persistence,
    base: u64,
    place: Place,
    slots: [AtomicPtr<()>; 2],
}

impl SimBacking {
    /// Maps the files; makes them if they are not there.
    fn new(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String> {
        let geometry = SubHeapGeometry::new(DATA_LEN, LANES).ok_or("no geometry")?;
        let medium: Arc<dyn Medium> = Arc::<SimMedium>::clone(sim);
        // SAFETY: this rig owns the files of its simulation; it changes a file only through its
        // mapping, and by giving back space that the sub-heap does not use.
        let medium = unsafe { OwnedMedium::new(medium) };
        let place = Place {
            data: base,
            data_len: DATA_LEN,
            metadata: base + METADATA_AT,
            metadata_len: geometry.metadata_len,
        };
        if !medium.exists(METADATA).map_err(text)? {
            medium.make_dir("puddles").map_err(text)?;
            medium.create(DATA, DATA_LEN).map_err(text)?;
            medium.create(METADATA, place.metadata_len).map_err(text)?;
        }
        medium.reserve_window(base, WINDOW_LEN).map_err(text)?;
        // SAFETY: the window was reserved by the line above, and nothing is mapped there.
        unsafe {
            medium.map(DATA, place.data, DATA_LEN, MapMode::ReadWrite).map_err(text)?;
            medium
                .map(METADATA, place.metadata, place.metadata_len, MapMode::ReadWrite)
                .map_err(text)?;
        }
        let persistence = medium.persistence(sim.options().durability);
        let slots = Default::default();
        Ok(Self { medium, persistence, base, place, slots })
    }

    /// File and offset of an address.
    fn file(&self, addr: u64) -> (&'static str, u64) {
        match addr.checked_sub(self.place.metadata) {
            Some(offset) => (METADATA, offset),
            None => (DATA, addr - self.place.data),
        }
    }
}

fn backing_error(doing: &'static str) -> impl Fn(cenote_medium::MediumError) -> BackingError {
    move |error| BackingError::Store { doing, source: Box::new(error) }
}

// SAFETY: both files are mapped as long as the simulation lives, of which this has a reference.
unsafe impl Backing for SimBacking {
    fn extents(&self) -> Vec<Extent> {
        let Place { data, data_len, metadata, metadata_len } = self.place;
        vec![
            Extent { index: 0, addr: data, size: data_len },
            Extent { index: 1, addr: metadata, size: metadata_len },
        ]
    }

    fn map(&self, _: &Extent) -> Result<(), BackingError> {
        Ok(())
    }

    fn take(&self, size: u64) -> Result<Extent, BackingError> {
        Err(BackingError::Limit { requested: size, bytes: DATA_LEN, size_max: DATA_LEN })
    }

    fn slot(&self, addr: u64) -> Option<&AtomicPtr<()>> {
        let index = addr.checked_sub(self.base)? / METADATA_AT;
        self.slots.get(usize::try_from(index).ok()?)
    }

    fn is_foreign(&self, _: u64) -> bool {
        false
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn puddle_size(&self) -> u64 {
        DATA_LEN
    }

    fn size_max(&self) -> u64 {
        DATA_LEN
    }

    unsafe fn release(&self, addr: u64, len: u64) -> Result<bool, BackingError> {
        let (file, offset) = self.file(addr);
        // SAFETY: the caller's promise that nothing uses the range.
        unsafe { self.medium.release(file, offset, len) }
            .map_err(backing_error("giving back space"))
    }

    fn ensure(&self, addr: u64, len: u64) -> Result<(), BackingError> {
        let (file, offset) = self.file(addr);
        self.medium.ensure(file, offset, len).map_err(backing_error("taking space"))?;
        self.medium.sync(file).map_err(backing_error("taking space"))
    }

    fn is_power(&self) -> bool {
        self.persistence.is_power()
    }

    unsafe fn flush(&self, start: *const u8, len: usize) {
        // SAFETY: the caller's promise that the range is mapped.
        unsafe { self.persistence.flush(start, len) }
    }

    fn fence(&self) {
        self.persistence.fence();
    }
}

type Heap = SubHeap<SimBacking>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn open(sim: &Arc<SimMedium>, base: u64) -> Result<Heap, String> {
    let backing = SimBacking::new(sim, base)?;
    let place = backing.place;
    // SAFETY: the backing maps both regions, and nothing else uses them.
    Ok(unsafe { SubHeap::open(backing, &place) }.map_err(|e| format!("open: {e}"))?.0)
}

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
    log: MicroLog<'a, SimBacking>,
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
            Do::Alloc(size) => drop(self.heap.alloc(size, 1, kind).map_err(text)?),
            Do::Free(number) => self.heap.free(nth(self.heap, number)?).map_err(text)?,
            Do::Fill => while self.heap.alloc(64, 1, kind).is_ok() {},
            Do::NearGrowth => {
                self.heap.alloc(8192, 1, kind).map_err(text)?;
                for _ in 1..allocations_until_growth()? {
                    self.heap.alloc(64, 1, kind).map_err(text)?;
                }
            }
            Do::FreeAll => {
                for addr in held(self.heap)?.into_keys() {
                    self.heap.free(addr).map_err(text)?;
                }
            }
            Do::Compact => drop(self.heap.compact().map_err(text)?),
            Do::Transaction(sizes, frees, end) => {
                let frees: Result<Vec<u64>, String> =
                    frees.iter().map(|&number| nth(self.heap, number)).collect();
                for addr in frees? {
                    self.log.free(addr).map_err(text)?;
                }
                for (i, &size) in sizes.iter().enumerate() {
                    let is_last = end == End::WithLast && i + 1 == sizes.len();
                    self.log.alloc(size, 1, kind, is_last).map_err(text)?;
                }
                match end {
                    End::Commit => self.log.commit().map_err(text)?,
                    End::Abort => self.log.abort().map_err(text)?,
                    End::WithLast => {}
                }
            }
        }
        Ok(())
    }
}

/// Blocks of 64 bytes, after one of 8 KiB, up to the one whose record needs another level.
fn allocations_until_growth() -> Result<u32, String> {
    let metadata_len = SubHeapGeometry::new(DATA_LEN, LANES).ok_or("no geometry")?.metadata_len;
    let backing = MemoryBacking::new(MemoryOptions::default());
    let metadata = backing.take(metadata_len).map_err(text)?.addr;
    let place =
        Place { data: backing.extents()[0].addr, data_len: DATA_LEN, metadata, metadata_len };
    // SAFETY: two puddles of memory of this function's own, which the sub-heap keeps.
    let heap = unsafe { SubHeap::format(backing, &place, 0, LANES) }.map_err(text)?;
    heap.alloc(8192, 1, TypeId(1)).map_err(text)?;
    let mut count = 0;
    while heap.stats().map_err(text)?.levels == 1 {
        heap.alloc(64, 1, TypeId(1)).map_err(text)?;
        count += 1;
    }
    Ok(count)
}

/// Which part of a run a bug is planted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The run that is crashed.
    Running,
    /// Recoveries.
    Recovering,
}

/// What was visited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Crash points.
    pub points: u64,
    /// Images recovered and checked.
    pub images: u64,
    /// Recoveries that were crashed.
    pub recoveries: u64,
    /// Images of those.
    pub recovery_images: u64,
}

/// Makes a sub-heap and plays what comes before the crashes. The history begins with what follows.
fn prepared(script: &Script, level: Durability, base: u64) -> Result<Arc<SimMedium>, String> {
    let sim = SimMedium::new(SimOptions::new(level));
    let backing = SimBacking::new(&sim, base)?;
    let (place, medium) = (backing.place, backing.medium.clone());
    // SAFETY: the backing maps both regions, which nothing else uses; new files are zeros.
    let heap = unsafe { SubHeap::format(backing, &place, 0, LANES) }.map_err(text)?;
    let mut run = Run { heap: &heap, log: heap.micro_log().map_err(text)?, kind: 0 };
    script.before.iter().try_for_each(|&step| run.step(step))?;
    drop(run);
    drop(heap);
    for file in [DATA, METADATA] {
        medium.sync(file).map_err(text)?;
    }
    medium.sync_dir("puddles").map_err(text)?;
    medium.sync_dir("").map_err(text)?;
    sim.forget_trace();
    Ok(sim)
}

/// The heap that `prepared` left, whose files are mapped already.
fn resumed(sim: &Arc<SimMedium>, base: u64) -> Result<Heap, String> {
    // SAFETY: the sub-heap that was there is dropped, and nothing else uses the window.
    unsafe { sim.release_window(base, WINDOW_LEN) }.map_err(text)?;
    open(sim, base)
}

/// Calls a function with a watcher that makes each step a crash point. Not at `power`: what a
/// crash leaves there between two flushes, the model of the medium knows without it.
fn watched<T>(sim: &Arc<SimMedium>, act: impl FnOnce() -> T) -> T {
    if sim.options().durability == Durability::Power {
        return act();
    }
    let points = Arc::clone(sim);
    watch(Some(Box::new(move |step| points.crash_point(&format!("{step:?}")))));
    let done = act();
    watch(None);
    done
}

/// Runs a script and checks every crash of its second part; one image in `recovery_every` has its
/// recovery crashed as well.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(
    script: &Script,
    level: Durability,
    base: u64,
    (bug, when): (Bug, When),
    recovery_every: u64,
) -> Result<Tally, String> {
    let sim = prepared(script, level, base)?;
    let heap = resumed(&sim, base)?;
    let mut states = vec![held(&heap)?];
    sim.note(0);
    plant(if when == When::Running { bug } else { Bug::None });
    let played = watched(&sim, || -> Result<(), String> {
        let mut run = Run { heap: &heap, log: heap.micro_log().map_err(text)?, kind: 100 };
        for &step in script.crashed {
            run.step(step)?;
            states.push(held(&heap)?);
            sim.note(states.len() as u64 - 1);
        }
        Ok(())
    });
    plant(Bug::None);
    played?;
    if sim.stores_into_holes() != 0 {
        return Err("a store where the file has no space, while running".into());
    }
    drop(heap);
    plant(if when == When::Recovering { bug } else { Bug::None });
    let mut check = Check { level, base, recovery_every, tally: Tally::default() };
    let checked = check.all(&sim, &states);
    plant(Bug::None);
    checked.map(|()| check.tally)
}

struct Check {
    level: Durability,
    base: u64,
    recovery_every: u64,
    tally: Tally,
}

impl Check {
    fn all(&mut self, sim: &Arc<SimMedium>, states: &[Held]) -> Result<(), String> {
        // SAFETY: the sub-heap is dropped; images are mapped in the same window.
        unsafe { sim.release_window(self.base, WINDOW_LEN) }.map_err(text)?;
        let limits = Limits { exhaustive_units: 8, samples: 48, ..self.limits() };
        let mut explorer = Explorer::new(limits);
        let mut walk = self.walk(sim);
        while let Some(state) = self.next(&mut walk) {
            self.tally.points += 1;
            let note = state.note() as usize;
            let Some(before) = states.get(note) else { continue };
            let after = states.get(note + 1).unwrap_or(before);
            let mut result = Ok(());
            explorer.visit(&state, &mut |image| {
                if result.is_ok() {
                    result = self.image(&state, &image, before, after);
                }
            });
            result?;
        }
        Ok(())
    }

    fn walk(&self, sim: &SimMedium) -> Walk {
        if self.level == Durability::Power { sim.walk() } else { sim.walk_of_processes() }
    }

    /// The next state, without those whose images are all images of the one that follows.
    fn next(&self, walk: &mut Walk) -> Option<CrashState> {
        loop {
            let state = walk.next()?;
            if self.level == Durability::Process || !walk.next_only_adds() {
                return Some(state);
            }
        }
    }

    fn limits(&self) -> Limits {
        Limits { power: self.level == Durability::Power, ..Limits::default() }
    }

    fn image(
        &mut self,
        state: &CrashState,
        image: &Image,
        before: &Held,
        after: &Held,
    ) -> Result<(), String> {
        self.tally.images += 1;
        let place = |what| format!("at {:?}, {:?} crash: {what}", state.label(), image.kind());
        guarded(|| verify(image, self.base, before, after)).map_err(place)?;
        if self.recovery_every != 0 && image.hash().is_multiple_of(self.recovery_every) {
            self.recovery(image, before, after).map_err(place)?;
        }
        Ok(())
    }

    /// Crashes the recovery from an image at each of its moments, and recovers again.
    fn recovery(&mut self, image: &Image, before: &Held, after: &Held) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        let heap = watched(&sim, || open(&sim, self.base))?;
        drop(heap);
        // SAFETY: the sub-heap is dropped; images are mapped in the same window.
        unsafe { sim.release_window(self.base, WINDOW_LEN) }.map_err(text)?;
        self.tally.recoveries += 1;
        let mut explorer =
            Explorer::new(Limits { exhaustive_units: 5, samples: 8, ..self.limits() });
        let mut walk = self.walk(&sim);
        while let Some(state) = self.next(&mut walk) {
            let mut result = Ok(());
            explorer.visit(&state, &mut |again| {
                if result.is_ok() {
                    self.tally.recovery_images += 1;
                    result = guarded(|| verify(&again, self.base, before, after));
                }
            });
            result
                .map_err(|what| format!("crash of the recovery at {:?}: {what}", state.label()))?;
        }
        Ok(())
    }
}

/// What the next opener finds, and that it can go on.
fn verify(image: &Image, base: u64, before: &Held, after: &Held) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let heap = open(&sim, base)?;
    let found = held(&heap)?;
    if &found != before && &found != after {
        return Err(format!("{found:x?} are allocated, not {before:x?} or {after:x?}"));
    }
    go_on(&heap, found, image.hash())?;
    drop(heap);
    match sim.stores_into_holes() {
        0 => Ok(()),
        count => Err(format!("{count} stores where the file has no space")),
    }
}

/// Allocates beside what is there; of some images, all that there is.
fn go_on(heap: &Heap, mut found: Held, hash: u64) -> Result<(), String> {
    let mut new = Vec::new();
    for (size, kind) in [(64, 900), (1000, 901), (200, 902)] {
        if let Ok(block) = heap.alloc(size, 1, TypeId(kind)) {
            found.insert(block.addr, (block.size, kind));
            new.push(block.addr);
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
    let whole = heap.alloc(DATA_LEN, 1, TypeId(1)).map_err(|e| format!("all of it: {e}"))?;
    heap.free(whole.addr).map_err(text)?;
    let mut count = 0;
    while heap.alloc(64, 1, TypeId(1)).is_ok() {
        count += 1;
    }
    match (count, held(heap)?.len()) {
        (256, 256) => Ok(()),
        other => Err(format!("{other:?} smallest blocks instead of 256")),
    }
}

/// A process dies at each step of the second part of a script, power stays, and the next process
/// opens the sub-heap; then power is lost. What that process saw must be there.
///
/// # Errors
/// The first thing that does not hold.
pub fn die_and_lose_power(script: &Script, base: u64, bug: Bug) -> Result<u64, String> {
    for dies_at in 0.. {
        let sim = prepared(script, Durability::Power, base)?;
        let heap = resumed(&sim, base)?;
        let left = Rc::new(Cell::new(dies_at));
        let count = Rc::clone(&left);
        watch(Some(Box::new(move |step| match count.get() {
            0 => std::panic::resume_unwind(Box::new(step)),
            left => count.set(left - 1),
        })));
        let lived = catch_unwind(AssertUnwindSafe(|| -> Result<(), String> {
            let log = heap.micro_log().map_err(text)?;
            let mut run = std::mem::ManuallyDrop::new(Run { heap: &heap, log, kind: 100 });
            script.crashed.iter().try_for_each(|&step| run.step(step))
        }));
        watch(None);
        if let Ok(done) = lived {
            return done.map(|()| dies_at);
        }
        drop(heap);
        plant(bug);
        let seen = resumed(&sim, base).and_then(|heap| held(&heap));
        plant(Bug::None);
        let seen = seen?;
        // SAFETY: the sub-heap is dropped; images are mapped in the same window.
        unsafe { sim.release_window(base, WINDOW_LEN) }.map_err(text)?;
        let mut result = Ok(());
        let limits =
            Limits { exhaustive_units: 6, samples: 16, process: false, ..Limits::default() };
        Explorer::new(limits).visit(&sim.state_now(), &mut |image| {
            if result.is_ok() {
                result = guarded(|| verify(&image, base, &seen, &seen));
            }
        });
        result.map_err(|what| format!("died at step {dies_at}, then lost power: {what}"))?;
    }
    Ok(0)
}
