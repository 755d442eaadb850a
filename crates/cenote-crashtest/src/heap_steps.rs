//! Steps of the heap, crashed everywhere: superblocks that are taken and change hands, refill,
//! spill, large blocks, growth, trim; and the recovery from each.
//!
//! A *script* is a list of [`Do`]; what comes before the crashed part only prepares. Crash points
//! are flushes, fences, file operations, and the steps between stores that the heap's own code
//! names ([`cenote_medium::planted::reach`]), which is where a killed process stops.
//!
//! **Oracle.** What a program holds is the blocks that are allocated, and the chains of them that
//! roots lead to. After every action it is noted. An image between two actions must hold what both
//! sides have, and nothing that neither has:
//!
//! * after a crash of the process: allocated blocks are at least those of both sides and at most
//!   those of either;
//! * after a loss of power (tracing): allocated blocks are exactly those that the roots lead to,
//!   which are those of one side;
//! * in both: contents are whole, no descriptor is damaged, nothing is left in caches; every free
//!   block is found by an allocation before the heap grows; new blocks overlap no others; no store
//!   goes where the file has no space.

use crate::explore::{ExploreTally, ExploreWhen, guarded, name_image};
use crate::rig::{SMALL_LOG, WINDOW_LEN};
use crate::tier::Sampled;
use crate::units::{Grain, Images, Reach};
use cenote_heap::{Heap, Inspect as _, PoolBacking, Trace, TracedHeap, Trim as _};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{PointerField, RECORD_VERSION, TypeRecord};
use cenote_medium::planted::{Bug, plant, watch};
use cenote_medium::sim::{CrashKind, CrashState, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Persistence};
use cenote_store::{Access, FormatOptions, OpenOptions, PoolHandle, PoolOptions, Store};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

/// One thing that a program does. Types are numbers from 1 to [`TYPES`].
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// Allocates `count` blocks of `size` bytes, links each to the one before, makes them durable,
    /// and sets root `slot` to the last.
    Chain {
        /// The root.
        slot: u16,
        /// Blocks.
        count: u64,
        /// Bytes of each.
        size: u64,
        /// Their type.
        kind: u64,
    },
    /// Clears root `slot`, and frees the blocks that it led to.
    Cut(u16),
    /// Gives free space back to the file.
    Trim,
}

/// Number of types.
pub const TYPES: u64 = 6;

/// A script: what prepares, and what is crashed.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Bytes of the pool's first puddle.
    pub puddle_size: u64,
    /// Done before.
    pub before: &'static [Do],
    /// Crashed at every moment.
    pub crashed: &'static [Do],
}

/// What a program has at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct HeldByProgram {
    /// Address, bytes and type of each allocated block.
    blocks: BTreeMap<u64, (u64, u64)>,
    /// What each root leads to, the last of the chain first.
    roots: BTreeMap<u16, Vec<u64>>,
}

/// What a block of a chain says beside its link.
fn stamp(slot: u16, from_end: usize) -> u64 {
    0xce00_0000_0000_0000 | u64::from(slot) << 32 | from_end as u64
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn pointer(addr: u64) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

fn read(addr: u64) -> u64 {
    // SAFETY: a word of an allocated block of a heap that is open (the callers').
    unsafe { pointer(addr).read_volatile() }
}

fn write(addr: u64, value: u64) {
    // SAFETY: as for `read`; no other code uses the block.
    unsafe { pointer(addr).write_volatile(value) }
}

fn types() -> HashMap<TypeId, Arc<TypeRecord>> {
    let record = |id: u64| TypeRecord {
        version: RECORD_VERSION,
        id: TypeId(id),
        name: format!("crashtest::Kind{id}"),
        size: 16,
        align: 8,
        repeats: false,
        pointers: vec![PointerField {
            offset: 0,
            stride: 8,
            count: 1,
            kind: PointerKind::NATIVE,
            tag_mask: 0,
            target: TypeId::UNTYPED,
            conditions: Vec::new(),
        }],
        fields: Vec::new(),
        variants: Vec::new(),
    };
    (1..=TYPES).map(|id| (TypeId(id), Arc::new(record(id)))).collect()
}

fn open_store(sim: &Arc<SimMedium>) -> Result<Store, String> {
    let options = OpenOptions { log_puddle_size: SMALL_LOG, ..OpenOptions::default() };
    Ok(Store::open(sim.clone(), options).map_err(text)?.0)
}

/// Opens the heap as an application does: traced, if power failed.
fn open_heap(store: &Store) -> Result<(PoolHandle, TracedHeap), String> {
    let pool = store.open_pool("p", Access::ReadWrite).map_err(text)?;
    // SAFETY: the store is on a simulated medium, and nothing else opens its pools.
    let heap = TracedHeap::open(unsafe { PoolBacking::of(pool.clone()) }).map_err(text)?;
    if pool.trace_due() {
        let report = heap.recover(&types(), &[]).map_err(text)?;
        if !report.damage.is_empty() || report.trace.faults != 0 {
            return Err(format!("recovery finds {report:?}"));
        }
        // SAFETY: traced just now.
        unsafe { pool.trace_done() }.map_err(text)?;
    }
    Ok((pool, heap))
}

/// A script in progress.
struct Run<'a> {
    sim: &'a SimMedium,
    heap: &'a TracedHeap,
    persistence: Persistence,
    held: HeldByProgram,
    /// After each action.
    states: Vec<HeldByProgram>,
    /// Blocks are filled with ones.
    fill: bool,
}

impl Run<'_> {
    fn noted(&mut self) {
        self.states.push(self.held.clone());
        self.sim.note(self.states.len() as u64 - 1);
    }

    fn step(&mut self, step: Do) -> Result<(), String> {
        match step {
            Do::Chain { slot, count, size, kind } => {
                let mut chain = Vec::new();
                for number in 0..count {
                    let block = self.heap.alloc(size, 16, TypeId(kind)).map_err(text)?;
                    let addr = block.addr.as_ptr() as u64;
                    self.held.blocks.insert(addr, (block.size, kind));
                    if self.fill {
                        (addr..addr + block.size).step_by(8).for_each(|at| write(at, u64::MAX));
                    }
                    write(addr, chain.last().copied().unwrap_or(0));
                    write(addr + 8, stamp(slot, number as usize));
                    let len = if self.fill { block.size as usize } else { 16 };
                    // SAFETY: the block that was just allocated.
                    unsafe { self.persistence.persist(block.addr.as_ptr(), len) };
                    chain.push(addr);
                    self.noted();
                }
                let head = chain.last().copied().unwrap_or(0);
                self.heap.set_root(slot, head, TypeId(kind)).map_err(text)?;
                chain.reverse();
                self.held.roots.insert(slot, chain);
                self.noted();
            }
            Do::Cut(slot) => {
                let chain = self.held.roots.remove(&slot).ok_or("no such chain")?;
                self.heap.set_root(slot, 0, TypeId::UNTYPED).map_err(text)?;
                self.noted();
                for addr in chain {
                    self.heap.free(addr).map_err(text)?;
                    self.held.blocks.remove(&addr);
                    self.noted();
                }
            }
            Do::Trim => {
                self.heap.trim().map_err(text)?;
                self.noted();
            }
        }
        Ok(())
    }

    /// What a heap in use says of itself.
    fn look(&self) -> Result<(), String> {
        let report = self.heap.check(Some(&types())).map_err(text)?;
        if !report.is_sound() || !report.damage.is_empty() {
            return Err(format!("while running: {report:?}"));
        }
        match self.sim.stores_into_holes() {
            0 => Ok(()),
            count => Err(format!("while running: {count} stores where the file has no space")),
        }
    }
}

/// Runs a script and checks every crash of its second part; those of `recoveries` have their
/// recovery crashed as well.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(
    script: &Script,
    level: Durability,
    window: u64,
    bug: (Bug, ExploreWhen),
    recoveries: Sampled,
) -> Result<ExploreTally, String> {
    let began = Instant::now();
    let sim = SimMedium::new(SimOptions::new(level));
    let format = FormatOptions {
        window_base: Some(window),
        window_len: WINDOW_LEN,
        ..FormatOptions::default()
    };
    cenote_store::format(sim.clone(), &format).map_err(text)?;
    plant(if bug.1 == ExploreWhen::Recovering { Bug::None } else { bug.0 });
    let states = play(script, &sim);
    plant(Bug::None);
    watch(None);
    let states = states?;
    let mut check =
        Check { level, recoveries, seen: HashSet::new(), tally: ExploreTally::default() };
    check.tally.histories = 1;
    plant(if bug.1 == ExploreWhen::Running { Bug::None } else { bug.0 });
    // The state before the first event belongs to what went before.
    let walk = if level == Durability::Power { sim.walk() } else { sim.walk_of_processes() };
    let result = walk.skip(1).try_for_each(|state| {
        let done = state.note() as usize;
        let Some(before) = states.get(done) else { return Ok(()) };
        check.state(&state, before, states.get(done + 1).unwrap_or(before))
    });
    plant(Bug::None);
    watch(None);
    result?;
    check.tally.took = began.elapsed();
    Ok(check.tally)
}

/// What was visited, in words.
#[must_use]
pub fn told(tally: &ExploreTally) -> String {
    format!(
        "{} crash points ({} with every subset; up to {} units), {} images recovered and checked, \
         {} the same as one of those; {} recoveries crashed at {} points, {} \
         images recovered again; {:.1?}",
        tally.points,
        tally.exhausted,
        tally.units_max,
        tally.images,
        tally.duplicates,
        tally.recoveries,
        tally.recovery_points,
        tally.recovery_images,
        tally.took
    )
}

/// Plays a script; the medium remembers what is to be crashed. What was held after each of its
/// actions.
fn play(script: &Script, sim: &Arc<SimMedium>) -> Result<Vec<HeldByProgram>, String> {
    let store = open_store(sim)?;
    let options = PoolOptions {
        puddle_size: script.puddle_size,
        size_max: 16 << 20,
        ..PoolOptions::default()
    };
    store.create_pool("p", &options).map_err(text)?;
    let (pool, heap) = open_heap(&store)?;
    let persistence = store.persistence();
    let mut run = Run {
        sim,
        heap: &heap,
        persistence,
        held: HeldByProgram::default(),
        states: Vec::new(),
        fill: true,
    };
    let mut result = script.before.iter().try_for_each(|&step| run.step(step));
    run.fill = false;
    run.states = vec![run.held.clone()];
    sim.note(0);
    sim.forget_trace();
    if result.is_ok() {
        let watched = Arc::clone(sim);
        watch(Some(Box::new(move |step| watched.crash_point(&format!("{step:?}")))));
        result = script.crashed.iter().try_for_each(|&step| run.step(step));
        watch(None);
        sim.crash_point("done");
        // What is left of the heap's own life is not looked at.
        sim.note(u64::MAX);
    }
    let result = result.and_then(|()| run.look());
    let states = run.states;
    drop((heap, pool));
    store.abandon();
    result.map(|()| states)
}

struct Check {
    level: Durability,
    recoveries: Sampled,
    seen: HashSet<(u64, u64)>,
    tally: ExploreTally,
}

impl Check {
    fn state(
        &mut self,
        state: &CrashState,
        before: &HeldByProgram,
        after: &HeldByProgram,
    ) -> Result<(), String> {
        let mut requirement = DefaultHasher::new();
        (before, after).hash(&mut requirement);
        let requirement = requirement.finish();
        let mut result = Ok(());
        let reach = Reach { grain: Grain::Unmarked, exhaustive: 12, samples: 64 };
        let images = Images::of(state, reach, self.level == Durability::Power);
        let mut check = |image: Image| {
            let hash = image.hash();
            if !self.seen.insert((hash, requirement)) {
                self.tally.duplicates += 1;
                return true;
            }
            self.tally.images += 1;
            let power = image.kind() == CrashKind::Power;
            result = guarded(|| verify(&image, before, after, power))
                .and_then(|()| match self.recoveries.takes(hash) {
                    true => self.recovery(&image, before, after),
                    false => Ok(()),
                })
                .map_err(|what| format!("{what}\n{}", describe(state, &image)));
            result.is_ok()
        };
        if check(state.image_process()) {
            images.visit(state, &mut check);
        }
        self.tally.points += 1;
        self.tally.exhausted += u64::from(images.exhausted);
        if self.level == Durability::Power {
            self.tally.units_max = self.tally.units_max.max(images.units);
        }
        result
    }

    /// Crashes the recovery from an image at each of its moments, and recovers again.
    fn recovery(
        &mut self,
        image: &Image,
        before: &HeldByProgram,
        after: &HeldByProgram,
    ) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        let watched = Arc::clone(&sim);
        watch(Some(Box::new(move |step| watched.crash_point(&format!("{step:?}")))));
        let recovered = open_store(&sim).and_then(|store| {
            let (pool, heap) = open_heap(&store)?;
            // Puddles are looked at when they are needed: all of them, here.
            heap.stats().map_err(text)?;
            drop((heap, pool));
            store.abandon();
            Ok(())
        });
        watch(None);
        recovered?;
        self.tally.recoveries += 1;
        let reach = Reach { grain: Grain::Unmarked, exhaustive: 5, samples: 8 };
        let mut seen = HashSet::new();
        let walk =
            if self.level == Durability::Power { sim.walk() } else { sim.walk_of_processes() };
        for state in walk.skip(1) {
            self.tally.recovery_points += 1;
            let mut result = Ok(());
            let mut check = |again: Image| {
                if seen.insert(again.hash()) {
                    self.tally.recovery_images += 1;
                    // The next opener finds marks that were traced, or traces: power failed
                    // once.
                    let power =
                        [image, &again].iter().any(|image| image.kind() == CrashKind::Power);
                    result = guarded(|| verify(&again, before, after, power)).map_err(|what| {
                        format!("crash of the recovery: {what}\n{}", describe(&state, &again))
                    });
                }
                result.is_ok()
            };
            if check(state.image_process()) {
                Images::of(&state, reach, self.level == Durability::Power)
                    .visit(&state, &mut check);
            }
            result?;
        }
        Ok(())
    }
}

fn describe(state: &CrashState, image: &Image) -> String {
    let (at, units) = (state.label().unwrap_or("the beginning"), name_image(state, image));
    let lines: Vec<&str> = units.lines().take(40).collect();
    format!("  at \"{at}\"\n{}", lines.join("\n"))
}

/// What the next opener finds, and that it can go on. `power`: power has failed since the script
/// began.
fn verify(
    image: &Image,
    before: &HeldByProgram,
    after: &HeldByProgram,
    power: bool,
) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let store = open_store(&sim).map_err(|e| format!("open: {e}"))?;
    let (pool, heap) = open_heap(&store)?;
    let found = look(&heap, before, after, power)?;
    go_on(&sim, &heap, &found, image.hash())?;
    drop((heap, pool));
    store.abandon();
    Ok(())
}

/// Compares what is there with what may be. Returns start and end of all allocated blocks.
fn look(
    heap: &TracedHeap,
    before: &HeldByProgram,
    after: &HeldByProgram,
    power: bool,
) -> Result<Vec<(u64, u64)>, String> {
    let mut reached = BTreeSet::new();
    let slots: BTreeSet<u16> = before.roots.keys().chain(after.roots.keys()).copied().collect();
    for slot in slots {
        let root = heap.root(slot).map_err(text)?.addr;
        let (old, new) = (before.roots.get(&slot), after.roots.get(&slot));
        let leads = |chain: Option<&Vec<u64>>| chain.and_then(|c| c.first()).copied().unwrap_or(0);
        if root != leads(old) && root != leads(new) && (old == new || root != 0) {
            return Err(format!(
                "root {slot} leads to {root:#x}, not to {:#x} or {:#x}",
                leads(old),
                leads(new)
            ));
        }
        let (mut at, mut number) = (root, old.or(new).map_or(0, Vec::len));
        while at != 0 {
            number = number.checked_sub(1).ok_or("a chain is too long")?;
            let block = heap.find(at).map_err(|e| format!("root {slot}: {e}"))?;
            let expected = before.blocks.get(&at).or(after.blocks.get(&at));
            if expected != Some(&(block.size, block.type_id.0)) {
                return Err(format!("root {slot}: {block:?} instead of {expected:x?}"));
            }
            if read(at + 8) != stamp(slot, number) {
                return Err(format!("root {slot}: the block at {at:#x} says {:#x}", read(at + 8)));
            }
            reached.insert(at);
            at = read(at);
        }
    }
    let mut found = BTreeMap::new();
    heap.walk(&mut |block| {
        found.insert(block.addr, (block.size, block.type_id.0));
    })
    .map_err(text)?;
    for (addr, block) in &found {
        if before.blocks.get(addr) != Some(block) && after.blocks.get(addr) != Some(block) {
            return Err(format!("a block at {addr:#x} ({block:x?}) of neither state"));
        }
        if power && !reached.contains(addr) {
            return Err(format!("the block at {addr:#x} is not reachable, and was not freed"));
        }
    }
    for (addr, block) in before.blocks.iter().filter(|(addr, b)| after.blocks.get(addr) == Some(b))
    {
        if !power && found.get(addr) != Some(block) {
            return Err(format!("the block at {addr:#x} ({block:x?}) is lost"));
        }
    }
    check(heap)?;
    Ok(found.into_iter().map(|(addr, (size, _))| (addr, addr + size)).collect())
}

/// The heap's own check finds nothing, and its superblocks add up.
fn check(heap: &TracedHeap) -> Result<(), String> {
    let report = heap.check(Some(&types())).map_err(text)?;
    let stats = &report.stats;
    if report.damage.iter().any(|damage| damage.lost)
        || !report.miscounted.is_empty()
        || report.unallocated_blocks != 0
        || report.trace.as_ref().is_some_and(|trace| trace.faults != 0)
        || (stats.cached_blocks, stats.damaged_superblocks) != (0, 0)
    {
        return Err(format!("check finds {report:?}"));
    }
    let sum = stats.free_superblocks
        + stats.small_superblocks
        + stats.large_superblocks
        + stats.metadata_superblocks;
    if sum != stats.superblocks {
        return Err(format!("{sum} of {} superblocks are known", stats.superblocks));
    }
    Ok(())
}

/// Allocates beside what is there.
fn go_on(
    sim: &SimMedium,
    heap: &TracedHeap,
    found: &[(u64, u64)],
    hash: u64,
) -> Result<(), String> {
    let mut all = found.to_vec();
    let mut new = Vec::new();
    let mut alloc = |size: u64, kind: u64| -> Result<u64, String> {
        let block = heap.alloc(size, 16, TypeId(kind)).map_err(|e| format!("afterwards: {e}"))?;
        let (start, end) = (block.addr.as_ptr() as u64, block.addr.as_ptr() as u64 + block.size);
        if let Some(other) = all.iter().find(|(at, past)| *at < end && start < *past) {
            return Err(format!("a new block at {start:#x} lies on {other:x?}"));
        }
        all.push((start, end));
        new.push(start);
        for at in [start, start + 8, end - 8] {
            write(at, u64::MAX);
        }
        Ok(start)
    };
    // On some: all that is free is found before the heap grows.
    if hash.is_multiple_of(8) {
        let stats = heap.stats().map_err(text)?;
        let same =
            |bin: &&cenote_heap::BinStats| (bin.type_id, bin.block_size) == (TypeId(1), 8192);
        let beside = stats.bins.iter().find(same).map_or(0, |bin| bin.capacity - bin.blocks);
        for _ in 0..stats.free_superblocks * 8 + beside {
            alloc(8192, 1)?;
        }
        let puddles = heap.stats().map_err(text)?.puddles;
        if puddles != stats.puddles {
            return Err(format!(
                "{puddles} puddles instead of {}: free blocks were not found",
                stats.puddles
            ));
        }
    }
    for (i, size) in [130_000, 65_536, 64, 16, 8192, 1000].into_iter().enumerate() {
        for kind in [1, 2 + i as u64 % (TYPES - 1)] {
            alloc(size, kind)?;
        }
    }
    if sim.stores_into_holes() != 0 {
        return Err(format!("{} stores where the file has no space", sim.stores_into_holes()));
    }
    for &addr in &new {
        heap.free(addr).map_err(|e| format!("afterwards: {e}"))?;
    }
    let blocks = heap.stats().map_err(text)?.blocks;
    if blocks == found.len() as u64 {
        return Ok(());
    }
    Err(format!("{blocks} blocks in the end, not {}", found.len()))
}
