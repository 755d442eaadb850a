//! Runs histories and looks at the crashes of them.
//!
//! Every history is a node of the tree of histories: of each only the crash points of its *last*
//! operation are looked at, because those of the others belong to its prefixes, which are histories
//! too. What leads there is run without a history; what it left undecided was noted when the prefix
//! itself was looked at, and the run must come to the same bytes.
//!
//! # What is merged
//!
//! Every history is run, whatever state it comes to: what a process keeps in its own memory (caches
//! of the allocator, what a transaction has logged) is nothing that this crate could compare.
//! Merged are *crash states*: what a crash leaves is bytes, recovery is a function of them, and two
//! images with the same canonical form ([`crate::canon`]) to which the same is allowed need one
//! recovery. Each is recovered once. Of the others, those that differ in bytes from the one that
//! was recovered, one in [`ExplorePlan::merged_every`] is recovered all the same, and must be found
//! to hold the same data in the same places. What a new puddle holds and all else are merged apart
//! ([`crate::canon`], 8).
//!
//! # Crashes of recoveries
//!
//! Of every *shape* of what replay finds (kind of the crash, stages of logs, which kinds of entries
//! there are and which is last, whether a seal fits: see [`crate::canon::Canonical::shape`]), and
//! of everything that the open looks at before (superblock, catalog, log spaces, names), one
//! recovery is recorded, and crashed at each of its events as histories are. What such a crash
//! leaves is checked unless it is known: its canonical form, or else both halves of it, namely what
//! the open looks at together with that shape, and what replay and tracing look at. The halves are
//! independent: the open reads neither logs nor heaps, and replay and tracing learn from it only
//! which logs and pools there are, and what kind of crash it was.

use crate::canon::{Context, canonical};
use crate::data::Model;
use crate::history::{History, Op};
pub use crate::plan::{ExplorePlan, ExploreTally, ExploreWhen, Recoveries, Violation};
use crate::rig::{Rig, base_image, stay_on_one_processor, window_base};
use crate::units::{Grain, Images, Reach};
use crate::verify::{open, verify};
use crate::visits::Visits;
use cenote::HeapKind;
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, CrashState, Image, SimMedium, Snapshot};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Runs a plan; stops at the first violation.
pub fn run(plan: &ExplorePlan) -> (ExploreTally, Option<Violation>) {
    let began = Instant::now();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let total = Mutex::new((ExploreTally::default(), None));
    std::thread::scope(|scope| {
        for _ in 0..plan.threads {
            let (next, stop, total) = (&next, &stop, &total);
            scope.spawn(move || {
                let mut work = Worker {
                    plan,
                    tally: ExploreTally::default(),
                    known: CheckedImages::default(),
                    stop,
                };
                let violation = work.run(window(), next);
                if violation.is_some() {
                    stop.store(true, Ordering::Relaxed);
                }
                let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                total.0.add(&work.tally);
                total.1 = total.1.take().or(violation);
            });
        }
    });
    let (mut tally, violation) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.took = began.elapsed();
    (tally, violation)
}

/// A window that no other worker of the process has, also of plans that run side by side.
fn window() -> u64 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    window_base(NEXT.fetch_add(1, Ordering::Relaxed) % 4096)
}

/// What a worker has checked.
#[derive(Default)]
struct CheckedImages {
    /// Canonical form and requirement; what was found, and the bytes of the image.
    whole: HashMap<(u64, u64), (u64, u64)>,
    /// What replay and tracing look at, and requirement.
    data: HashSet<(u64, u64)>,
    /// All but what new puddles hold, and requirement.
    rest: HashSet<(u64, u64, u64)>,
    /// What new puddles hold, what the open looks at, and the shape of what replay is to do.
    new: HashSet<(u64, u64, u64)>,
    /// What the open looks at, and the shape of what replay is to do.
    open: HashSet<(u64, u64)>,
    /// Shapes of recoveries that were crashed, and what the open looked at in them.
    shapes: HashSet<u64>,
    stores: HashSet<u64>,
}

/// A history, and what was undecided after it.
struct Prefix {
    ops: Vec<Op>,
    after: Snapshot,
}

/// What the images of one state are compared with.
struct About<'a> {
    state: &'a CrashState,
    context: &'a Context,
    allowed: &'a [&'a Model],
    /// Hash of what is allowed.
    requirement: u64,
    /// What the next session does.
    again: &'a History,
}

struct Worker<'a> {
    plan: &'a ExplorePlan,
    tally: ExploreTally,
    known: CheckedImages,
    stop: &'a AtomicBool,
}

/// What is allowed to be found when the first `n` operations were acknowledged.
struct Oracle {
    /// Acknowledged after each number of operations.
    committed: Vec<Model>,
}

impl Oracle {
    fn allowed(&self, acknowledged: usize) -> Vec<&Model> {
        let now = &self.committed[acknowledged];
        match self.committed.get(acknowledged + 1) {
            Some(next) if next != now => vec![now, next],
            _ => vec![now],
        }
    }
}

impl Worker<'_> {
    fn run(&mut self, window: u64, next: &AtomicUsize) -> Option<Violation> {
        if self.plan.heap == HeapKind::Logged
            && let Err(what) = stay_on_one_processor()
        {
            return Some(Violation { history: History(Vec::new()), what });
        }
        let base = match base_image(self.plan.level, window, self.plan.heap) {
            Ok(base) => base,
            Err(what) => return Some(Violation { history: History(Vec::new()), what }),
        };
        let mut prefixes = Vec::new();
        self.recovering();
        while !self.stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(history) = self.plan.histories.get(number) else { break };
            // A bug may well make an assertion fail: that counts.
            let result =
                catch_unwind(AssertUnwindSafe(|| self.history(&base, number, &mut prefixes)));
            let what = match result {
                Ok(Ok(())) => continue,
                Ok(Err(what)) => what,
                Err(panic) => format!("panic: {}", panic_text(&*panic)),
            };
            plant(Bug::None);
            return Some(Violation { history: history.clone(), what });
        }
        plant(Bug::None);
        None
    }

    fn recovering(&self) {
        let (bug, when) = self.plan.bug;
        plant(if when == ExploreWhen::Running { Bug::None } else { bug });
    }

    fn history(
        &mut self,
        base: &Image,
        number: usize,
        prefixes: &mut Vec<Prefix>,
    ) -> Result<(), String> {
        let history = &self.plan.histories[number];
        self.tally.histories += 1;
        plant(Bug::None);
        let played = if self.plan.all_operations {
            self.play(base, history)
        } else {
            let goes_on =
                self.plan.histories.get(number + 1).is_some_and(|h| h.0.starts_with(&history.0));
            self.play_last(base, history, goes_on, prefixes)
        };
        self.recovering();
        let (sim, oracle) = played?;
        let again = History::parse(["sCs", "pXsC", "sCpC", "sXs"][history.0.len() % 4]);
        let length = history.0.len();
        let reach =
            self.plan.reach.iter().find(|(up_to, _)| *up_to >= length).or(self.plan.reach.last());
        let reach = reach.ok_or("a plan without reach")?.1;
        self.tally.fault_hits += sim.fault_hits();
        let mut states =
            Visits::new(&sim, reach, self.plan.level == Durability::Power, length as u64);
        while let Some((state, images)) = states.next() {
            let allowed = oracle.allowed(state.note() as usize);
            self.state(&state, &images, &allowed, &again)?;
        }
        Ok(())
    }

    /// Runs one operation, with the bug that is planted while histories run.
    fn step(
        &self,
        rig: &mut Rig,
        oracle: &mut Oracle,
        number: usize,
        op: Op,
    ) -> Result<(), String> {
        let (bug, when) = self.plan.bug;
        let bug = if when == ExploreWhen::Recovering { Bug::None } else { bug };
        let expected =
            if op == Op::Commit { rig.working().clone() } else { rig.committed().clone() };
        rig.step(op, bug).map_err(|e| format!("operation {number}: {e}"))?;
        oracle.committed.push(expected);
        Ok(())
    }

    /// Compares what the running program sees with what it should.
    fn running(rig: &Rig) -> Result<(), String> {
        let found = rig.observe().map_err(|e| format!("while running: {e}"))?;
        if found == *rig.working() {
            return Ok(());
        }
        Err(format!("while running: the data are {found:x?}, not {:x?}", rig.working()))
    }

    /// Runs a history; the medium remembers all of its events.
    fn play(&self, base: &Image, history: &History) -> Result<(Arc<SimMedium>, Oracle), String> {
        let mut rig = Rig::start(base, self.plan.strategy)?;
        let mut oracle = Oracle { committed: vec![rig.committed().clone()] };
        rig.sim.note(0);
        rig.sim.forget_trace();
        if let Some(fault) = &self.plan.fault {
            // SAFETY: what the simulation holds is compared as numbers, and no value is believed.
            unsafe { rig.sim.inject_lie(fault.clone()) };
        }
        for (number, &op) in history.0.iter().enumerate() {
            self.step(&mut rig, &mut oracle, number, op)?;
            rig.sim.note(number as u64 + 1);
        }
        rig.sim.clear_faults();
        Self::running(&rig)?;
        rig.sim.note(u64::MAX);
        Ok((rig.crash(), oracle))
    }

    /// Runs a history; the medium remembers the events of its last operation, which begin with what
    /// its prefix left undecided. `goes_on`: what it leaves undecided itself is added to
    /// `prefixes`.
    fn play_last(
        &self,
        base: &Image,
        history: &History,
        goes_on: bool,
        prefixes: &mut Vec<Prefix>,
    ) -> Result<(Arc<SimMedium>, Oracle), String> {
        let last = history.0.len() - 1;
        let before = &history.0[..last];
        while prefixes.last().is_some_and(|p| !before.starts_with(&p.ops)) {
            prefixes.pop();
        }
        // A history of a sample has no neighbour that went before.
        let done = prefixes.last().map_or(0, |p| p.ops.len() + 1);
        for length in done..=last {
            let (rig, _) = self.play_to(base, &before[..length], prefixes.last())?;
            prefixes.push(Prefix { ops: before[..length].to_vec(), after: rig.sim.snapshot() });
            rig.crash();
        }
        let (mut rig, mut oracle) = self.play_to(base, before, prefixes.last())?;
        self.step(&mut rig, &mut oracle, last, history.0[last])?;
        rig.sim.note(last as u64 + 1);
        if goes_on {
            prefixes.push(Prefix { ops: history.0.clone(), after: rig.sim.snapshot() });
        }
        Self::running(&rig)?;
        rig.sim.note(u64::MAX);
        Ok((rig.crash(), oracle))
    }

    /// Runs `ops`, of which the medium remembers those that come after `known`; where there is
    /// nothing known, all from the open on.
    fn play_to(
        &self,
        base: &Image,
        ops: &[Op],
        known: Option<&Prefix>,
    ) -> Result<(Rig, Oracle), String> {
        let mut rig = match known {
            Some(_) => Rig::start_paused(base, self.plan.strategy)?,
            None => Rig::start(base, self.plan.strategy)?,
        };
        let mut oracle = Oracle { committed: vec![rig.committed().clone()] };
        for number in 0..=ops.len() {
            if known.is_some_and(|known| known.ops.len() == number)
                && !rig.sim.resume(known.map(|known| &known.after))
            {
                return Err(
                    "the same operations came to other bytes: this rig is not deterministic".into(),
                );
            }
            if known.is_none_or(|known| known.ops.len() <= number) {
                rig.sim.note(number as u64);
            }
            if let Some(&op) = ops.get(number) {
                self.step(&mut rig, &mut oracle, number, op)?;
            }
        }
        rig.sim.forget_trace();
        Ok((rig, oracle))
    }

    /// Looks at the crash of the process at one moment, and at the losses of power that `images`
    /// names.
    fn state(
        &mut self,
        state: &CrashState,
        images: &Images,
        allowed: &[&Model],
        again: &History,
    ) -> Result<(), String> {
        let requirement = requirement(allowed);
        let context = &images.context;
        let about = About { state, context, allowed, requirement, again };
        let mut result = self.image(state.image_process(), &about);
        self.tally.points += 1;
        self.tally.units_max = self.tally.units_max.max(images.units);
        let small = self.plan.level == Durability::Process || images.units <= 12;
        self.tally.small += u64::from(small);
        self.tally.exhausted += u64::from(images.exhausted);
        self.tally.small_sampled += u64::from(small && !images.exhausted);
        if result.is_ok() {
            images.visit(state, &mut |image| {
                result = self.image(image, &about);
                result.is_ok()
            });
        }
        result
    }

    /// Looks at one image.
    fn image(&mut self, image: Image, about: &About<'_>) -> Result<(), String> {
        let &About { state, context, allowed, requirement, again } = about;
        self.tally.visited += 1;
        let image = image.at_event(0);
        let form = canonical(&image, context);
        let bytes = image.hash();
        let named = |what: String| format!("{what}\n{}", name_image(state, &image));
        if let Some(&(found, first)) = self.known.whole.get(&(form.whole, requirement)) {
            self.tally.duplicates += 1;
            let every = self.plan.merged_every;
            if every == 0 || bytes == first || !bytes.is_multiple_of(every) {
                return Ok(());
            }
            self.tally.compared += 1;
            let again = guarded(|| verify(&image, allowed, false)).map_err(named)?;
            if again != found {
                return Err(named(
                    "recovered to other data or other blocks than an image that was taken for its \
                     equal"
                        .into(),
                ));
            }
            return Ok(());
        }
        if !context.new.is_empty() {
            let rest = !self.known.rest.insert((form.data, form.store, requirement));
            let new = !self.known.new.insert((form.new, form.store, form.shape));
            if rest && new {
                self.tally.halves += 1;
                return Ok(());
            }
        }
        self.tally.images += 1;
        let thorough =
            self.plan.thorough_every != 0 && bytes.is_multiple_of(self.plan.thorough_every);
        let found = guarded(|| verify(&image, allowed, thorough)).map_err(named)?;
        self.known.whole.insert((form.whole, requirement), (found, bytes));
        self.known.data.insert((form.data, requirement));
        self.known.open.insert((form.store, form.shape));
        let crash = match self.plan.recoveries {
            Recoveries::None => false,
            Recoveries::Shapes => {
                let shape = self.known.shapes.insert(form.shape);
                self.known.stores.insert(form.store) || shape
            }
            Recoveries::All => true,
        };
        if crash {
            self.recovery(&image, allowed, requirement).map_err(named)?;
        }
        if self.plan.again_every != 0 && bytes.is_multiple_of(self.plan.again_every) {
            let mut tally = self.tally;
            let checked = guarded(|| self.session(&image, again, &mut tally));
            self.tally = tally;
            checked.map_err(|what| named(format!("next session, history {again}: {what}")))?;
        }
        Ok(())
    }

    /// Goes on with what an image was recovered to, and crashes that.
    fn session(
        &self,
        image: &Image,
        history: &History,
        tally: &mut ExploreTally,
    ) -> Result<(), String> {
        tally.sessions += 1;
        let (sim, oracle) = self.play(image, history)?;
        let reach = Reach { grain: Grain::Classes, exhaustive: 5, samples: 4 };
        let mut seen = HashSet::new();
        let power = self.plan.level == Durability::Power;
        let mut states = Visits::new(&sim, reach, power, history.0.len() as u64);
        while let Some((state, images)) = states.next() {
            let allowed = oracle.allowed(state.note() as usize);
            let mut result = Ok(());
            let mut check = |again: Image| {
                if seen.insert((again.hash(), state.note())) {
                    tally.session_images += 1;
                    result = guarded(|| verify(&again, &allowed, false).map(|_| ()))
                        .map_err(|what| format!("{what}\n{}", name_image(&state, &again)));
                }
                result.is_ok()
            };
            if check(state.image_process()) {
                images.visit(&state, &mut check);
            }
            result?;
        }
        Ok(())
    }

    /// Crashes the recovery of an image at each of its events; whatever that leaves must be
    /// recovered to the same.
    fn recovery(
        &mut self,
        image: &Image,
        allowed: &[&Model],
        requirement: u64,
    ) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        let (store, a, b) = open(&sim)?;
        sim.note(1);
        drop((a, b));
        store.abandon();
        self.tally.recoveries += 1;
        let reach = Reach { grain: Grain::Classes, exhaustive: 12, samples: 4 };
        let context = Context::default();
        let mut states = Visits::new(&sim, reach, self.plan.level == Durability::Power, 0);
        while let Some((state, images)) = states.next() {
            self.tally.recovery_points += 1;
            self.tally.recovery_exhausted += u64::from(images.exhausted);
            let mut result = Ok(());
            let mut check = |again: Image| {
                let again = again.at_event(0);
                self.tally.recovery_visited += 1;
                let form = canonical(&again, &context);
                let known = &mut self.known;
                let whole = known.whole.contains_key(&(form.whole, requirement));
                // Both are asked, and noted.
                let data = !known.data.insert((form.data, requirement));
                let open = !known.open.insert((form.store, form.shape));
                if whole || (data && open) {
                    return true;
                }
                self.tally.recovery_images += 1;
                match guarded(|| verify(&again, allowed, false)) {
                    Ok(found) => {
                        known.whole.insert((form.whole, requirement), (found, again.hash()));
                    }
                    Err(what) => {
                        let name = name_image(&state, &again);
                        result = Err(format!("crash of the recovery: {what}\n{name}"));
                    }
                }
                result.is_ok()
            };
            if check(state.image_process()) {
                images.visit(&state, &mut check);
            }
            result?;
        }
        Ok(())
    }
}

/// A number for what is allowed.
fn requirement(allowed: &[&Model]) -> u64 {
    let mut requirement = DefaultHasher::new();
    allowed.hash(&mut requirement);
    requirement.finish()
}

/// A panic is a finding as any other.
pub(crate) fn guarded<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(panic) => Err(format!("panic: {}", panic_text(&*panic))),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

/// Says which image of a state this is.
pub(crate) fn name_image(state: &CrashState, image: &Image) -> String {
    let kind = match image.kind() {
        CrashKind::Process => "crash of the process",
        CrashKind::Power => "loss of power",
    };
    let mut out =
        format!("  {kind} after event {}, {} operations acknowledged", state.event(), state.note());
    if image.kind() == CrashKind::Power {
        for (unit, pick) in image.picks().iter().enumerate() {
            let fate = if *pick == 0 { "lost    " } else { "survived" };
            out.push_str(&format!("\n  {fate} {}", state.describe(unit)));
        }
    }
    out
}
