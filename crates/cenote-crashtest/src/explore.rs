//! Runs histories and looks at the crashes of them, with several threads.
//!
//! Every history is a node of the tree of histories: of each only the crash points of its *last* operation are looked at, because those of the
//! others belong to its prefixes, which are histories too. An image is checked once for each set of states that are allowed to be in it.

use crate::data::Model;
use crate::history::{History, Op};
use crate::rig::{Rig, Strategy, base_image, window_base};
use crate::units::{Reach, images};
use crate::verify::{open, verify};
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, CrashState, Fault, Image, SimMedium};
use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is looked at, and how closely.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Durability level of the medium.
    pub level: Durability,
    /// How histories write.
    pub strategy: Strategy,
    /// The histories.
    pub histories: Vec<History>,
    /// How far states of histories are enumerated, by the number of their operations: the first whose number is not smaller counts.
    pub reach: Vec<(usize, Reach)>,
    /// Crashes of the recovery are looked at too: of all images of histories of so many operations ...
    pub recovery_depth: usize,
    /// ... and of one image in so many of the others; 0: of none.
    pub recovery_every: u64,
    /// One image in so many is also written to, closed and opened again.
    pub thorough_every: u64,
    /// On one image in so many another session runs a short history, which is crashed everywhere too; 0: on none.
    pub again_every: u64,
    /// A bug that is planted, and where.
    pub bug: (Bug, When),
    /// A fault of the medium, from the first operation of a history on.
    pub fault: Option<Fault>,
    /// Look at the crash points of all operations, not only of the last: for single histories.
    pub all_operations: bool,
    /// Threads.
    pub threads: usize,
}

/// In which part of a history a bug is planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// While the history runs; recovery is sound.
    Running,
    /// While an image is recovered.
    Recovering,
    /// All the time.
    Both,
}

/// What a run has visited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Histories.
    pub histories: u64,
    /// Moments at which a crash was made.
    pub points: u64,
    /// Of them, those of which all combinations of units were visited.
    pub exhausted: u64,
    /// Images that were recovered and checked.
    pub images: u64,
    /// Images that had been checked before.
    pub duplicates: u64,
    /// Units, or groups, of the largest state.
    pub units_max: usize,
    /// Recoveries whose own crash points were looked at.
    pub recoveries: u64,
    /// Images of crashes of recoveries, checked.
    pub recovery_images: u64,
    /// Images on which another session went on and was crashed.
    pub sessions: u64,
    /// Images of crashes of those, checked.
    pub session_images: u64,
    /// Calls that a planted fault hit.
    pub fault_hits: u64,
    /// Time it took.
    pub took: Duration,
}

impl Tally {
    /// Adds what another thread or run has visited.
    pub fn add(&mut self, other: &Self) {
        self.histories += other.histories;
        self.points += other.points;
        self.exhausted += other.exhausted;
        self.images += other.images;
        self.duplicates += other.duplicates;
        self.units_max = self.units_max.max(other.units_max);
        self.recoveries += other.recoveries;
        self.recovery_images += other.recovery_images;
        self.sessions += other.sessions;
        self.session_images += other.session_images;
        self.fault_hits += other.fault_hits;
        self.took += other.took;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} histories, {} crash points ({} exhausted, others sampled; up to {} units), {} images checked, {} seen before, \
             {} recoveries crashed with {} images, {} times another session crashed with {} images, {:.1?}",
            self.histories,
            self.points,
            self.exhausted,
            self.units_max,
            self.images,
            self.duplicates,
            self.recoveries,
            self.recovery_images,
            self.sessions,
            self.session_images,
            self.took
        )
    }
}

/// A crash after which something does not hold.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The history.
    pub history: History,
    /// What happened, and in which image.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "history {}: {}", self.history, self.what)
    }
}

/// Runs a plan; stops at the first violation.
pub fn run(plan: &Plan) -> (Tally, Option<Violation>) {
    let began = Instant::now();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let total = Mutex::new((Tally::default(), None));
    std::thread::scope(|scope| {
        for worker in 0..plan.threads {
            let (next, stop, total) = (&next, &stop, &total);
            scope.spawn(move || {
                let mut work = Worker { plan, tally: Tally::default(), seen: HashSet::new(), stop };
                let violation = work.run(window(worker), next);
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
fn window(worker: usize) -> u64 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let _ = worker;
    window_base(NEXT.fetch_add(1, Ordering::Relaxed) % 4096)
}

struct Worker<'a> {
    plan: &'a Plan,
    tally: Tally,
    seen: HashSet<(u64, u64)>,
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
        let base = match base_image(self.plan.level, window) {
            Ok(base) => base,
            Err(what) => return Some(Violation { history: History(Vec::new()), what }),
        };
        self.recovering();
        while !self.stop.load(Ordering::Relaxed) {
            let Some(history) = self.plan.histories.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            // A bug may well make an assertion fail: that counts.
            let result = catch_unwind(AssertUnwindSafe(|| self.history(&base, history)));
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
        plant(if when == When::Running { Bug::None } else { bug });
    }

    fn history(&mut self, base: &Image, history: &History) -> Result<(), String> {
        self.tally.histories += 1;
        plant(Bug::None);
        let played = self.play(base, history, self.plan.all_operations);
        self.recovering();
        let (sim, oracle) = played?;
        let again = History::parse(["sCs", "pXsC", "sCpC", "sXs"][history.0.len() % 4]);
        let length = history.0.len();
        let reach = self.plan.reach.iter().find(|(up_to, _)| *up_to >= length).or(self.plan.reach.last());
        let reach = reach.ok_or("a plan without reach")?.1;
        let every = if length <= self.plan.recovery_depth { 1 } else { self.plan.recovery_every };
        self.tally.fault_hits += sim.fault_hits();
        for event in 1..=sim.trace_len() {
            let state = sim.state_after(event);
            if state.note() > length as u64 {
                break; // the rig is being taken down
            }
            let allowed = oracle.allowed(state.note() as usize);
            self.state(&state, &allowed, reach, every, &again)?;
        }
        Ok(())
    }

    /// Runs a history; the events that are to be looked at are what the medium remembers.
    fn play(&self, base: &Image, history: &History, whole: bool) -> Result<(Arc<SimMedium>, Oracle), String> {
        let mut rig = Rig::start(base, self.plan.strategy)?;
        let mut oracle = Oracle { committed: vec![rig.committed().clone()] };
        rig.sim.note(0);
        rig.sim.forget_trace();
        if let Some(fault) = &self.plan.fault {
            rig.sim.inject(fault.clone());
        }
        let (bug, when) = self.plan.bug;
        let bug = if when == When::Recovering { Bug::None } else { bug };
        let last = history.0.len() - 1;
        for (number, &op) in history.0.iter().enumerate() {
            if number == last && !whole {
                rig.sim.forget_trace();
            }
            let expected = if op == Op::Commit { rig.working().clone() } else { rig.committed().clone() };
            rig.step(op, bug).map_err(|e| format!("operation {number}: {e}"))?;
            oracle.committed.push(expected);
            rig.sim.note(number as u64 + 1);
        }
        rig.sim.clear_faults();
        let found = rig.observe().map_err(|e| format!("while running: {e}"))?;
        if found != *rig.working() {
            return Err(format!("while running: the data are {found:x?}, not {:x?}", rig.working()));
        }
        rig.sim.note(u64::MAX);
        Ok((rig.crash(), oracle))
    }

    fn state(
        &mut self,
        state: &CrashState,
        allowed: &[&Model],
        reach: Reach,
        every: u64,
        again: &History,
    ) -> Result<(), String> {
        let mut requirement = DefaultHasher::new();
        allowed.hash(&mut requirement);
        let requirement = requirement.finish();
        let mut result = Ok(());
        let power = self.plan.level == Durability::Power;
        let mut tally = self.tally;
        let seen = images(state, reach, power, &mut |image| {
            let hash = image.hash();
            if !self.seen.insert((hash, requirement)) {
                tally.duplicates += 1;
                return true;
            }
            tally.images += 1;
            let thorough = self.plan.thorough_every != 0 && hash.is_multiple_of(self.plan.thorough_every);
            let crash_recovery = every != 0 && hash.is_multiple_of(every);
            let checked = guarded(|| verify(&image, allowed, thorough)).and_then(|()| {
                if crash_recovery { self.recovery(&image, allowed, &mut tally) } else { Ok(()) }
            });
            let goes_on = self.plan.again_every != 0 && hash.is_multiple_of(self.plan.again_every);
            let checked = checked.and_then(|()| {
                if !goes_on {
                    return Ok(());
                }
                let checked = guarded(|| self.session(&image, again, &mut tally));
                checked.map_err(|what| format!("next session, history {again}: {what}"))
            });
            result = checked.map_err(|what| format!("{what}\n{}", name_image(state, &image)));
            result.is_ok()
        });
        tally.points += 1;
        tally.exhausted += u64::from(seen.exhausted);
        tally.units_max = tally.units_max.max(seen.units);
        self.tally = tally;
        result
    }

    /// Goes on with what an image was recovered to, and crashes that.
    fn session(&self, image: &Image, history: &History, tally: &mut Tally) -> Result<(), String> {
        tally.sessions += 1;
        let (sim, oracle) = self.play(image, history, true)?;
        let reach = Reach { grain: crate::units::Grain::Grouped, exhaustive: 5, samples: 4 };
        let mut seen = HashSet::new();
        for event in 1..=sim.trace_len() {
            let state = sim.state_after(event);
            if state.note() > history.0.len() as u64 {
                break;
            }
            let allowed = oracle.allowed(state.note() as usize);
            let mut result = Ok(());
            images(&state, reach, self.plan.level == Durability::Power, &mut |again| {
                if seen.insert((again.hash(), state.note())) {
                    tally.session_images += 1;
                    result = guarded(|| verify(&again, &allowed, false))
                        .map_err(|what| format!("{what}\n{}", name_image(&state, &again)));
                }
                result.is_ok()
            });
            result?;
        }
        Ok(())
    }

    /// Crashes the recovery of an image at each of its events; whatever that leaves must be recovered to the same.
    fn recovery(&self, image: &Image, allowed: &[&Model], tally: &mut Tally) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        let opened = open(&sim)?;
        let (store, a, b) = opened;
        drop((a, b));
        let events = sim.trace_len();
        store.abandon();
        tally.recoveries += 1;
        let reach = Reach { grain: crate::units::Grain::Grouped, exhaustive: 5, samples: 4 };
        let mut seen = HashSet::new();
        for event in 1..=events {
            let state = sim.state_after(event);
            let mut result = Ok(());
            images(&state, reach, self.plan.level == Durability::Power, &mut |again| {
                if !seen.insert(again.hash()) {
                    return true;
                }
                tally.recovery_images += 1;
                let checked = guarded(|| verify(&again, allowed, false));
                result = checked
                    .map_err(|what| format!("crash of the recovery: {what}\n{}", name_image(&state, &again)));
                result.is_ok()
            });
            result?;
        }
        Ok(())
    }
}

/// A panic is a finding as any other.
pub(crate) fn guarded(f: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
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
    let mut out = format!("  {kind} after event {}, {} operations acknowledged", state.event(), state.note());
    if image.kind() == CrashKind::Power {
        for (unit, pick) in image.picks().iter().enumerate() {
            let fate = if *pick == 0 { "lost    " } else { "survived" };
            out.push_str(&format!("\n  {fate} {}", state.describe(unit)));
        }
    }
    out
}
