//! Transactions on a wear heap, crashed everywhere: a store's logs, which know no heaps, and their
//! replay. The heap lies in a pool of a store that is open for it alone.
//!
//! **Oracle.** The allocated blocks are noted after every transaction. A crash between two leaves
//! exactly the blocks of one side; `check` finds nothing; new blocks lie on no old one. The same
//! holds for a crash of the recovery.

use crate::explore::guarded;
use crate::logged::{Do, Held, LoggedTally, LoggedWhen, Script, TransactionEnd, WAIT_MS};
use crate::rig::{SMALL_LOG, Segments, WINDOW_LEN};
use cenote_heap::wear::{WearClock, WearHeap, WearOptions};
use cenote_heap::{Heap, PoolBacking};
use cenote_layout::PAGE_SIZE;
use cenote_layout::header::Header;
use cenote_layout::id::TypeId;
use cenote_layout::wear::WearHeader;
use cenote_log::LogWriter;
use cenote_medium::planted::{Bug, plant, watch};
use cenote_medium::sim::{CrashState, Explorer, Image, Limits, SimMedium, SimOptions, Walk};
use cenote_medium::{Durability, Medium};
use cenote_store::{Access, FormatOptions, OpenOptions, PoolHandle, PoolOptions, Store};
use cenote_tx::{LogGroup, TxContext};
use std::cell::Cell;
use std::sync::Arc;

type PoolHeap = WearHeap<PoolBacking>;

thread_local! {
    static NOW_MS: Cell<u64> = const { Cell::new(1_700_000_000_000) };
}

fn options() -> WearOptions {
    let clock = WearClock::new(|| NOW_MS.get());
    WearOptions { wait_ms: WAIT_MS, chunk_log: 12, key: 77, clock, ..WearOptions::default() }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn open_store(sim: &Arc<SimMedium>) -> Result<(Store, PoolHandle), String> {
    let options =
        OpenOptions { log_puddle_size: SMALL_LOG, spare_bytes_max: 0, ..OpenOptions::default() };
    let store = Store::open(sim.clone(), options).map_err(text)?.0;
    let found = store.open_pool("p", Access::ReadWrite);
    let pool = match found {
        Ok(pool) => pool,
        Err(_) => {
            let options = PoolOptions { puddle_size: 128 << 10, ..PoolOptions::default() };
            store.create_pool("p", &options).map_err(text)?;
            store.open_pool("p", Access::ReadWrite).map_err(text)?
        }
    };
    Ok((store, pool))
}

fn open_heap(pool: &PoolHandle) -> Result<PoolHeap, String> {
    // SAFETY: the store is on a simulated medium, and nothing else opens its pools.
    let backing = unsafe { PoolBacking::of(pool.clone()) };
    WearHeap::open(backing, &options()).map_err(text)
}

/// A store, its pool's heap, and a log.
struct Session {
    context: TxContext,
    heap: PoolHeap,
    pool: PoolHandle,
    store: Store,
}

impl Session {
    fn new(store: Store, pool: PoolHandle, heap: PoolHeap) -> Result<Self, String> {
        let lease = store.acquire_log().map_err(text)?;
        let source = Box::new(Segments { store: store.clone(), log_id: lease.log_id() });
        // SAFETY: log puddles stay mapped until the store is dropped, after the context; a leased
        // log has no other user, and it is the only one.
        let context = unsafe {
            let writer = LogWriter::attach(lease.body(), store.persistence(), source);
            TxContext::new(writer.map_err(text)?, LogGroup::new())
        };
        Ok(Self { context, heap, pool, store })
    }

    /// Ends as a process that dies.
    fn end(self) {
        let Self { context, heap, pool, store } = self;
        drop((context, heap, pool));
        store.abandon();
    }

    fn nth(&self, number: usize) -> Result<u64, String> {
        held(&self.heap)?.keys().nth(number).copied().ok_or("no such block".into())
    }

    fn step(&mut self, kind: TypeId, step: Do) -> Result<(), String> {
        match step {
            Do::Alloc(size) => drop(self.heap.alloc(size, 8, kind).map_err(text)?),
            Do::Free(number) => self.heap.free(self.nth(number)?).map_err(text)?,
            Do::Pass(ms) => NOW_MS.set(NOW_MS.get() + ms),
            Do::Transaction(allocs, frees, end) => {
                let frees: Result<Vec<u64>, String> = frees.iter().map(|&n| self.nth(n)).collect();
                self.transaction(kind, allocs, &frees?, end)?;
            }
            _ => return Err("no step of a wear heap in a pool".into()),
        }
        Ok(())
    }

    fn transaction(
        &mut self,
        kind: TypeId,
        allocs: &[u64],
        frees: &[u64],
        end: TransactionEnd,
    ) -> Result<(), String> {
        let heap: &dyn Heap = &self.heap;
        // SAFETY: blocks of this heap alone are used, whose pool is open for writing.
        let mut tx = unsafe { self.context.begin() };
        let mut last = 0;
        for &size in allocs {
            let align = if size == 512 { 512 } else { 8 };
            // SAFETY: the heap outlives the transaction; the pool is open for writing.
            last = unsafe { tx.alloc(heap, size, align, kind) }.map_err(text)?.as_ptr() as u64;
        }
        for &addr in frees {
            // SAFETY: as above, and nothing uses the block.
            unsafe { tx.free(heap, addr) }.map_err(text)?;
        }
        match end {
            TransactionEnd::Commit => tx.commit().map_err(text)?,
            TransactionEnd::Abort => tx.abort(),
            // What it allocated last is freed again.
            TransactionEnd::WithLast => {
                // SAFETY: as above.
                unsafe { tx.free(heap, last) }.map_err(text)?;
                tx.commit().map_err(text)?;
            }
        }
        Ok(())
    }
}

fn held(heap: &PoolHeap) -> Result<Held, String> {
    let report = heap.check();
    match report.damage.first() {
        Some(damage) => Err(format!("check finds: {damage}")),
        None => Ok(report.blocks.iter().map(|b| (b.addr, (b.size, b.type_id.0))).collect()),
    }
}

fn prepared(level: Durability, window: u64) -> Result<(Arc<SimMedium>, Session), String> {
    let sim = SimMedium::new(SimOptions::new(level));
    let format = FormatOptions {
        window_base: Some(window),
        window_len: WINDOW_LEN,
        ..FormatOptions::default()
    };
    cenote_store::format(sim.clone(), &format).map_err(text)?;
    let (store, pool) = open_store(&sim)?;
    // SAFETY: as in `open_heap`.
    let backing = unsafe { PoolBacking::of(pool.clone()) };
    let heap = WearHeap::create(backing, &options()).map_err(text)?;
    Ok((sim, Session::new(store, pool, heap)?))
}

/// Runs a script and checks every crash of its second part; one image in `recovery_every` has its
/// recovery crashed as well.
///
/// # Errors
/// The first thing that does not hold.
pub fn run_in_pool(
    script: &Script,
    level: Durability,
    window: u64,
    (bug, when): (Bug, LoggedWhen),
    recovery_every: u64,
) -> Result<LoggedTally, String> {
    let (sim, mut session) = prepared(level, window)?;
    for (kind, &step) in (1..).zip(script.before) {
        session.step(TypeId(kind), step)?;
    }
    let mut states = vec![held(&session.heap)?];
    sim.forget_trace();
    sim.note(0);
    plant(if when == LoggedWhen::Running { bug } else { Bug::None });
    if level == Durability::Process {
        let points = Arc::clone(&sim);
        watch(Some(Box::new(move |step| points.crash_point(&format!("{step:?}")))));
    }
    let played = (100..).zip(script.crashed).try_for_each(|(kind, &step)| {
        session.step(TypeId(kind), step)?;
        states.push(held(&session.heap)?);
        sim.note(states.len() as u64 - 1);
        Ok::<(), String>(())
    });
    watch(None);
    plant(Bug::None);
    played?;
    sim.crash_point("done");
    sim.note(u64::MAX);
    session.end();
    plant(if when == LoggedWhen::Recovering { bug } else { Bug::None });
    let mut check = CheckPool { level, recovery_every, tally: LoggedTally::default() };
    let checked = check.all(&sim, &states);
    plant(Bug::None);
    checked.map(|()| check.tally)
}

struct CheckPool {
    level: Durability,
    recovery_every: u64,
    tally: LoggedTally,
}

impl CheckPool {
    fn walk(&self, sim: &SimMedium) -> Walk {
        if self.level == Durability::Power { sim.walk() } else { sim.walk_of_processes() }
    }

    fn limits(&self, exhaustive_units: u32, samples: u32) -> Limits {
        let power = self.level == Durability::Power;
        Limits { exhaustive_units, samples, power, ..Limits::default() }
    }

    fn all(&mut self, sim: &Arc<SimMedium>, states: &[Held]) -> Result<(), String> {
        let mut explorer = Explorer::new(self.limits(7, 24));
        for state in self.walk(sim).skip(1) {
            let note = state.note() as usize;
            let Some(before) = states.get(note) else { continue };
            self.tally.points += 1;
            let after = states.get(note + 1).unwrap_or(before);
            let mut result = Ok(());
            explorer.visit(&state, &mut |image| {
                if result.is_ok() {
                    result = self.image(&state, &image, (before, after));
                }
            });
            result?;
        }
        Ok(())
    }

    fn image(
        &mut self,
        state: &CrashState,
        image: &Image,
        sides: (&Held, &Held),
    ) -> Result<(), String> {
        self.tally.images += 1;
        let place = |what| format!("at {:?}, {:?} crash: {what}", state.label(), image.kind());
        guarded(|| verify(image, sides)).map_err(place)?;
        if self.recovery_every != 0 && image.hash().is_multiple_of(self.recovery_every) {
            self.recovery(image, sides).map_err(place)?;
        }
        Ok(())
    }

    fn recovery(&mut self, image: &Image, sides: (&Held, &Held)) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        let (store, pool) = open_store(&sim)?;
        let heap = open_heap(&pool)?;
        held(&heap)?;
        drop((heap, pool));
        store.abandon();
        self.tally.recoveries += 1;
        let mut explorer = Explorer::new(self.limits(5, 6));
        for state in self.walk(&sim).skip(1) {
            let mut result = Ok(());
            explorer.visit(&state, &mut |again| {
                if result.is_ok() {
                    self.tally.recovery_images += 1;
                    result = guarded(|| verify(&again, sides));
                }
            });
            result
                .map_err(|what| format!("crash of the recovery at {:?}: {what}", state.label()))?;
        }
        Ok(())
    }
}

/// What the next opener finds, and that it can go on.
fn verify(image: &Image, (before, after): (&Held, &Held)) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, pool) = open_store(&sim)?;
    let heap = open_heap(&pool)?;
    let mut found = held(&heap)?;
    if &found != before && &found != after {
        return Err(format!("{found:x?} are allocated, not {before:x?} or {after:x?}"));
    }
    let now = NOW_MS.replace(NOW_MS.get() + 1000);
    for size in [64, 1000, 200, 2000] {
        let block = heap.alloc(size, 8, TypeId(900)).map_err(text)?;
        found.insert(block.addr, (block.size, 900));
    }
    NOW_MS.set(now);
    if held(&heap)? != found {
        return Err(format!("afterwards {:x?} are allocated, not {found:x?}", held(&heap)?));
    }
    for &addr in found.keys() {
        heap.free(addr).map_err(|error| format!("afterwards: {error}"))?;
    }
    drop((heap, pool));
    store.abandon();
    Ok(())
}

/// How often the lines of the pool's heap are written by random transactions: the times, by line.
///
/// # Errors
/// What went wrong.
pub fn lines_in_pool(
    level: Durability,
    window: u64,
    seed: u64,
    steps: u32,
) -> Result<Vec<Vec<u64>>, String> {
    let (sim, mut session) = prepared(level, window)?;
    let puddle = heap_file(&sim)?;
    sim.count_line_writes();
    let mut times = std::collections::BTreeMap::<u64, Vec<u64>>::new();
    let mut seed = seed;
    for step in 0..steps {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = seed >> 33;
        NOW_MS.set(NOW_MS.get() + random % 40);
        let blocks = held(&session.heap)?.len();
        let sizes: [&[u64]; 4] = [&[64], &[300, 64], &[1000], &[512, 100, 100]];
        let allocs = sizes[random as usize / 64 % 4];
        let frees: Vec<usize> =
            if blocks > 6 { vec![random as usize / 512 % blocks] } else { Vec::new() };
        let frees: Result<Vec<u64>, String> = frees.iter().map(|&n| session.nth(n)).collect();
        let end = match random / 256 % 4 {
            0 => TransactionEnd::Abort,
            1 => TransactionEnd::WithLast,
            _ => TransactionEnd::Commit,
        };
        let kind = TypeId(u64::from(step) + 1);
        let allocs = if blocks > 60 { &[] } else { allocs };
        let end = if allocs.is_empty() { TransactionEnd::Commit } else { end };
        session.transaction(kind, allocs, &frees?, end)?;
        let written = sim.take_line_writes().into_iter().filter(|(file, _)| *file == puddle);
        written.for_each(|(_, line)| times.entry(line).or_default().push(NOW_MS.get()));
    }
    session.end();
    Ok(times.into_values().collect())
}

/// The name of the file that has the heap's header.
fn heap_file(sim: &SimMedium) -> Result<String, String> {
    let names = sim.list("puddles").map_err(text)?;
    let names = names.into_iter().map(|name| format!("puddles/{name}"));
    let has_heap = |name: &String| {
        let mut bytes = [0; 8];
        let read = sim.read_at(name, PAGE_SIZE, &mut bytes);
        read.is_ok_and(|count| count == bytes.len()) && bytes == WearHeader::MAGIC
    };
    names.into_iter().find(has_heap).ok_or("no file with the heap".into())
}
