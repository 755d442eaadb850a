//! The logged heap and the wear heap, crashed everywhere, on a simulated medium without a store.
//!
//! A *script* is a list of [`Do`]. Crash points are flushes, fences, file operations, and the steps
//! between stores that the heap's own code names ([`cenote_medium::planted::reach`]).
//!
//! **Oracle.** The allocated blocks are noted after every action. A crash between two actions
//! leaves exactly the blocks of one side; an acknowledged action stays. Besides, `check` finds
//! nothing, new blocks lie on no old one, all that is free can be allocated (as one block and as
//! smallest blocks), and no store goes where the file has no space. The same holds for a crash of
//! the recovery, and for a loss of power after a recovery from the death of a process.
//!
//! [`OneSubHeap`], [`WholeHeap`] and [`WholeWear`] are crashed; `backing` has the files under them.

use crate::explore::guarded;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, plant, watch};
use cenote_medium::sim::{CrashState, Explorer, Image, Limits, SimMedium, SimOptions, Walk};
use cenote_medium::{Durability, Medium};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

mod backing;
mod heap;
mod sub_heap;
mod wear;

pub use heap::WholeHeap;
pub use sub_heap::{DATA_LEN, OneSubHeap};
pub use wear::{LineCounts, WAIT_MS, WholeWear};

/// One thing that a program does. Blocks are numbered by address among those that are allocated.
#[derive(Clone, Copy, Debug)]
pub enum Do {
    /// Allocates a block; of one sub-heap, a block that no slab has.
    Alloc(u64),
    /// Allocates a block, in a slab if it is small; all of one type.
    Small(u64),
    /// So many of those.
    Many(u32, u64),
    /// Frees the first of those.
    FreeSmall,
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
    Transaction(&'static [u64], &'static [usize], TransactionEnd),
    /// Allocates a block at a multiple of so many bytes, in a wear heap.
    Aligned(u64, u64),
    /// So many milliseconds pass, for a wear heap.
    Pass(u64),
    /// Goes on on another CPU.
    Cpu(u32),
    /// A transaction over sub-heaps: CPUs and sizes of allocations, frees by number, and its end.
    Across(&'static [(u32, u64)], &'static [usize], TransactionEnd),
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
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

/// The type of blocks that share slabs.
const SMALL: TypeId = TypeId(5);

/// Allocated blocks: address, and size and type.
pub type Held = BTreeMap<u64, (u64, u64)>;

/// What is crashed.
pub trait Subject: Sized {
    /// Bytes of the address space that it takes.
    const WINDOW_LEN: u64;

    /// Makes one in files of its own.
    ///
    /// # Errors
    /// What went wrong.
    fn create(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String>;

    /// Opens what is there.
    ///
    /// # Errors
    /// What went wrong.
    fn open(sim: &Arc<SimMedium>, base: u64) -> Result<Self, String>;

    /// Makes all files durable, after a preparation.
    ///
    /// # Errors
    /// What went wrong.
    fn sync(&self) -> Result<(), String>;

    /// What is allocated.
    ///
    /// # Errors
    /// What a check finds.
    fn held(&self) -> Result<Held, String>;

    /// Plays steps; types of blocks count from `kind` on. Calls `done` after each.
    ///
    /// # Errors
    /// What went wrong.
    fn play(
        &self,
        steps: &[Do],
        kind: u64,
        done: &mut dyn FnMut(&Self) -> Result<(), String>,
    ) -> Result<(), String>;

    /// Allocates beside what is there; of some images, all that there is.
    ///
    /// # Errors
    /// What went wrong.
    fn go_on(&self, found: Held, hash: u64) -> Result<(), String>;
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Which part of a run a bug is planted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoggedWhen {
    /// The run that is crashed.
    Running,
    /// Recoveries.
    Recovering,
}

/// What was visited.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoggedTally {
    /// Crash points.
    pub points: u64,
    /// Images recovered and checked.
    pub images: u64,
    /// Recoveries that were crashed.
    pub recoveries: u64,
    /// Images of those.
    pub recovery_images: u64,
}

/// Makes a subject and plays what comes before the crashes. The history begins with what follows.
fn prepared<S: Subject>(
    script: &Script,
    level: Durability,
    base: u64,
) -> Result<Arc<SimMedium>, String> {
    let sim = SimMedium::new(SimOptions::new(level));
    let subject = S::create(&sim, base)?;
    subject.play(script.before, 0, &mut |_| Ok(()))?;
    subject.sync()?;
    drop(subject);
    sim.forget_trace();
    Ok(sim)
}

/// The subject that `prepared` left, whose files are mapped already.
fn resumed<S: Subject>(sim: &Arc<SimMedium>, base: u64) -> Result<S, String> {
    // SAFETY: the subject that was there is dropped, and nothing else uses the window.
    unsafe { sim.release_window(base, S::WINDOW_LEN) }.map_err(text)?;
    S::open(sim, base)
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
pub fn run<S: Subject>(
    script: &Script,
    level: Durability,
    base: u64,
    (bug, when): (Bug, LoggedWhen),
    recovery_every: u64,
) -> Result<LoggedTally, String> {
    let sim = prepared::<S>(script, level, base)?;
    let heap: S = resumed(&sim, base)?;
    let mut states = vec![heap.held()?];
    sim.note(0);
    plant(if when == LoggedWhen::Running { bug } else { Bug::None });
    let played = watched(&sim, || {
        heap.play(script.crashed, 100, &mut |heap| {
            states.push(heap.held()?);
            sim.note(states.len() as u64 - 1);
            Ok(())
        })
    });
    plant(Bug::None);
    played?;
    if sim.stores_into_holes() != 0 {
        return Err("a store where the file has no space, while running".into());
    }
    drop(heap);
    plant(if when == LoggedWhen::Recovering { bug } else { Bug::None });
    let mut check = Check { level, base, recovery_every, tally: LoggedTally::default() };
    let checked = check.all::<S>(&sim, &states);
    plant(Bug::None);
    checked.map(|()| check.tally)
}

struct Check {
    level: Durability,
    base: u64,
    recovery_every: u64,
    tally: LoggedTally,
}

impl Check {
    fn all<S: Subject>(&mut self, sim: &Arc<SimMedium>, states: &[Held]) -> Result<(), String> {
        // SAFETY: the subject is dropped; images are mapped in the same window.
        unsafe { sim.release_window(self.base, S::WINDOW_LEN) }.map_err(text)?;
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
                    result = self.image::<S>(&state, &image, before, after);
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

    fn image<S: Subject>(
        &mut self,
        state: &CrashState,
        image: &Image,
        before: &Held,
        after: &Held,
    ) -> Result<(), String> {
        self.tally.images += 1;
        let place = |what| format!("at {:?}, {:?} crash: {what}", state.label(), image.kind());
        guarded(|| verify::<S>(image, self.base, before, after)).map_err(place)?;
        if self.recovery_every != 0 && image.hash().is_multiple_of(self.recovery_every) {
            self.recovery::<S>(image, before, after).map_err(place)?;
        }
        Ok(())
    }

    /// Crashes the recovery from an image at each of its moments, and recovers again.
    fn recovery<S: Subject>(
        &mut self,
        image: &Image,
        before: &Held,
        after: &Held,
    ) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        let heap = watched(&sim, || S::open(&sim, self.base))?;
        drop(heap);
        // SAFETY: the subject is dropped; images are mapped in the same window.
        unsafe { sim.release_window(self.base, S::WINDOW_LEN) }.map_err(text)?;
        self.tally.recoveries += 1;
        let mut explorer =
            Explorer::new(Limits { exhaustive_units: 5, samples: 8, ..self.limits() });
        let mut walk = self.walk(&sim);
        while let Some(state) = self.next(&mut walk) {
            let mut result = Ok(());
            explorer.visit(&state, &mut |again| {
                if result.is_ok() {
                    self.tally.recovery_images += 1;
                    result = guarded(|| verify::<S>(&again, self.base, before, after));
                }
            });
            result
                .map_err(|what| format!("crash of the recovery at {:?}: {what}", state.label()))?;
        }
        Ok(())
    }
}

/// What the next opener finds, and that it can go on.
fn verify<S: Subject>(image: &Image, base: u64, before: &Held, after: &Held) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let heap = S::open(&sim, base)?;
    let found = heap.held()?;
    if &found != before && &found != after {
        return Err(format!("{found:x?} are allocated, not {before:x?} or {after:x?}"));
    }
    heap.go_on(found, image.hash())?;
    drop(heap);
    match sim.stores_into_holes() {
        0 => Ok(()),
        count => Err(format!("{count} stores where the file has no space")),
    }
}

/// A process dies at each step of the second part of a script, power stays, and the next process
/// opens the sub-heap; then power is lost. What that process saw must be there.
///
/// # Errors
/// The first thing that does not hold.
pub fn die_and_lose_power<S: Subject>(script: &Script, base: u64, bug: Bug) -> Result<u64, String> {
    for dies_at in 0.. {
        let sim = prepared::<S>(script, Durability::Power, base)?;
        let heap: S = resumed(&sim, base)?;
        let left = Rc::new(Cell::new(dies_at));
        let count = Rc::clone(&left);
        watch(Some(Box::new(move |step| match count.get() {
            0 => std::panic::resume_unwind(Box::new(step)),
            left => count.set(left - 1),
        })));
        let lived =
            catch_unwind(AssertUnwindSafe(|| heap.play(script.crashed, 100, &mut |_| Ok(()))));
        watch(None);
        if let Ok(done) = lived {
            return done.map(|()| dies_at);
        }
        drop(heap);
        plant(bug);
        let seen = resumed::<S>(&sim, base).and_then(|heap| heap.held());
        plant(Bug::None);
        let place = |what| format!("died at step {dies_at}, then lost power: {what}");
        lose_power::<S>(&sim, base, &seen?).map_err(place)?;
        // The next process also goes on, where the first one was.
        plant(bug);
        let next = S::open(&sim, base).and_then(|heap| {
            heap.play(&[Do::Small(32), Do::Free(0)], 300, &mut |_| Ok(()))?;
            heap.held()
        });
        plant(Bug::None);
        lose_power::<S>(&sim, base, &next?).map_err(place)?;
    }
    Ok(0)
}

/// Loses power now, in all ways: what was seen must be there. Nothing has the files mapped.
fn lose_power<S: Subject>(sim: &Arc<SimMedium>, base: u64, seen: &Held) -> Result<(), String> {
    // SAFETY: the subject is dropped; images are mapped in the same window.
    unsafe { sim.release_window(base, S::WINDOW_LEN) }.map_err(text)?;
    let mut result = Ok(());
    let limits = Limits { exhaustive_units: 6, samples: 16, process: false, ..Limits::default() };
    Explorer::new(limits).visit(&sim.state_now(), &mut |image| {
        if result.is_ok() {
            result = guarded(|| verify::<S>(&image, base, seen, seen));
        }
    });
    result
}
