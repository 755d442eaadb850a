//! [`SimMedium`]: making simulations, taking crash states from them, planting faults.
//!
//! Invariant: a test's questions leave the simulation as it is. Only planted faults and a request
//! to forget history change it.

use super::content::WORD;
use super::crash::{CrashKind, CrashState, Image};
use super::explore::{Explorer, Limits, Visited};
use super::fault::{Fault, FaultEffect, FaultPoint};
use super::live::{History, LineWrites, Live};
use super::model::{Binding, Event, MediumModel};
use super::options::{Origin, SimOptions};
use super::random::{Random, mix};
use crate::{Durability, SimHook, SimSlot};
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::Uuid;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A medium in memory that records what is done to it; see the [module](super).
pub struct SimMedium {
    pub(super) slot: SimSlot,
    pub(super) core: Arc<Core>,
}

/// What the hook table and the lock guards share with the medium.
pub(super) struct Core {
    pub(super) options: SimOptions,
    /// Whether events are recorded now; never without `options.record`.
    recording: AtomicBool,
    /// Memory is left in the window for the next simulation, see [`super::window`].
    pub(super) keeps_memory: bool,
    live: Mutex<Live>,
}

impl Core {
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether flushes and fences are, at some time, worth looking at.
    pub(super) fn hookable(&self) -> bool {
        self.options.record
            && (self.options.durability == Durability::Power || self.options.process_with_hooks)
    }

    /// Whether they are now.
    fn hooked(&self) -> bool {
        self.hookable() && self.recording.load(Ordering::Relaxed)
    }
}

impl SimHook for Core {
    fn flush(&self, ptr: *const u8, len: usize) {
        if self.hooked() {
            let mut live = self.live();
            if live.fault(FaultPoint::Flush, "").is_none() {
                live.flushed(ptr.addr() as u64, len as u64, true);
            }
        }
    }

    fn fence(&self) {
        if self.hooked() {
            let mut live = self.live();
            if live.fault(FaultPoint::Fence, "").is_none() {
                live.fenced();
            }
        }
    }

    fn write_back(&self, ptr: *const u8) {
        if self.hooked() {
            self.live().written_back(ptr.addr() as u64);
        }
    }

    unsafe fn stream(&self, dst: *mut u8, src: *const u8, len: usize) {
        for at in (0..len).step_by(WORD) {
            // SAFETY: the caller promises both ranges, and that `dst` is aligned; the last word may
            // not reach beyond the end because `len` is a multiple of 8.
            unsafe {
                let word = src.add(at).cast::<u64>().read_unaligned();
                dst.add(at).cast::<u64>().write_volatile(word);
            }
        }
        if self.hooked() && len > 0 {
            let mut live = self.live();
            if live.fault(FaultPoint::Stream, "").is_none() {
                live.flushed(dst.addr() as u64, len as u64, false);
            }
        }
    }
}

impl SimMedium {
    /// An empty medium: a directory with nothing in it.
    ///
    /// # Panics
    /// If [`SIM_SLOTS`](crate::SIM_SLOTS) simulations are alive already.
    #[must_use]
    pub fn new(options: SimOptions) -> Arc<Self> {
        let boot = Uuid::from_random_bytes(Random::new(mix(options.seed)).bytes16());
        Self::start(Live::new(&BTreeMap::new(), Origin { options, boot, mounting: 1 }))
    }

    /// The medium that the next opener finds after a crash: the image's files, no mappings, no
    /// locks; the boot id of before if only the process died. It records a history of its own, so
    /// that crashes of the recovery can be made.
    ///
    /// # Panics
    /// If [`SIM_SLOTS`](crate::SIM_SLOTS) simulations are alive already.
    #[must_use]
    pub fn from_image(image: &Image) -> Arc<Self> {
        Self::start(Live::new(&image.entries, image.next_origin()))
    }

    /// The same, but the history begins with [`SimMedium::resume`]; what happens before costs next
    /// to nothing. Memory is left in the window for the next simulation (and found there), so
    /// that a stray access to a puddle that is mapped no more does not fault.
    ///
    /// # Panics
    /// If [`SIM_SLOTS`](crate::SIM_SLOTS) simulations are alive already.
    #[must_use]
    pub fn from_image_paused(image: &Image) -> Arc<Self> {
        let mut live = Live::new(&image.entries, image.next_origin());
        (live.recording, live.keeps_memory) = (false, true);
        Self::start(live)
    }

    /// Begins the history of a medium that was made by [`SimMedium::from_image_paused`]: with what
    /// `from` says is durable and undecided, or with everything durable. False, and no history,
    /// if `from` is not what a process sees now.
    #[must_use]
    pub fn resume(&self, from: Option<&Snapshot>) -> bool {
        let begun = self.core.live().resume(from.map(|snapshot| &snapshot.model));
        self.core.recording.store(begun && self.core.options.record, Ordering::Relaxed);
        begun
    }

    /// The durable and the undecided bytes of now. The history of another simulation, which has
    /// come to the same place, can begin with them.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut history = self.core.live().history();
        history.advance_to(usize::MAX);
        Snapshot { model: history.into_model() }
    }

    /// Says that what is stored from now on will not be asked for: taking the simulation down costs
    /// less then.
    pub fn stop_looking(&self) {
        self.core.live().blind = true;
    }

    /// Goes through the crash states one after the other, each at the cost of one event.
    #[must_use]
    pub fn walk(&self) -> Walk {
        Walk { history: self.core.live().history(), started: false, power: true }
    }

    /// [`SimMedium::walk`] for crashes of processes alone: the states have no units, which makes
    /// them cheaper by half.
    #[must_use]
    pub fn walk_of_processes(&self) -> Walk {
        Walk { history: self.core.live().history(), started: false, power: false }
    }

    /// The same without a history: for the many images whose recovery is looked at and not crashed
    /// again.
    ///
    /// # Panics
    /// If [`SIM_SLOTS`](crate::SIM_SLOTS) simulations are alive already.
    #[must_use]
    pub fn from_image_unrecorded(image: &Image) -> Arc<Self> {
        let mut origin = image.next_origin();
        origin.options.record = false;
        Self::start(Live::new(&image.entries, origin))
    }

    fn start(live: Live) -> Arc<Self> {
        let core = Arc::new(Core {
            options: live.origin.options,
            recording: AtomicBool::new(live.recording),
            keeps_memory: live.keeps_memory,
            live: Mutex::new(live),
        });
        let hook: Arc<dyn SimHook> = Arc::<Core>::clone(&core);
        let slot = SimSlot::take(hook)
            .expect("too many simulated media are alive in this process: drop some");
        Arc::new(Self { slot, core })
    }

    /// How it was set up. After a crash the seed is another one.
    #[must_use]
    pub fn options(&self) -> SimOptions {
        self.core.options
    }

    /// Number of events so far. Events are numbered from 0; stores since the last event count as
    /// one.
    #[must_use]
    pub fn trace_len(&self) -> usize {
        self.core.live().trace_len()
    }

    /// Number of moments at which a crash can be made: before the first event and after each.
    #[must_use]
    pub fn crash_points(&self) -> usize {
        self.trace_len() + 1
    }

    /// The states that a crash may leave after the first `events` events (or all, if there are
    /// fewer). Costs as much as the history before it is long: [`SimMedium::explore`] walks many
    /// states at the cost of one.
    #[must_use]
    pub fn state_after(&self, events: usize) -> CrashState {
        let mut history = self.core.live().history();
        history.advance_to(events);
        history.state()
    }

    /// What a crash now may leave.
    #[must_use]
    pub fn state_now(&self) -> CrashState {
        self.state_after(usize::MAX)
    }

    /// The files as they are, after a crash of this kind that lost nothing. Works without a history
    /// too.
    #[must_use]
    pub fn image_now(&self, kind: CrashKind) -> Image {
        self.core.live().image(kind)
    }

    /// Calls `f` with images of the crash states in `range` (numbers of events that have happened,
    /// as for [`SimMedium::state_after`]), as `limits` say. The simulation is not locked
    /// meanwhile; what `f` or others do to it is not seen.
    ///
    /// A state is not enumerated if the next one has all its images and is enumerated exhaustively.
    pub fn explore(
        &self,
        range: impl RangeBounds<usize>,
        limits: Limits,
        mut f: impl FnMut(&CrashState, Image),
    ) -> Visited {
        let mut history = self.core.live().history();
        let first = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let last = match range.end_bound() {
            Bound::Included(last) => Some(*last),
            Bound::Excluded(end) => end.checked_sub(1),
            Bound::Unbounded => Some(usize::MAX),
        };
        let Some(last) = last.map(|last| last.min(history.len())).filter(|last| first <= *last)
        else {
            return Visited::default();
        };
        let mut explorer = Explorer::new(limits);
        let mut held: Option<CrashState> = None;
        for events in first..=last {
            history.advance_to(events);
            let state = history.state();
            let contained = |held: &CrashState| {
                state.images() <= limits.exhaustive_images() && held.note() == state.note()
            };
            if let Some(before) = held.take() {
                explorer.visit_part(&before, contained(&before), &mut |image| f(&before, image));
            }
            if history.next_only_adds() && events < last {
                held = Some(state);
            } else {
                explorer.visit(&state, &mut |image| f(&state, image));
            }
        }
        explorer.visited()
    }

    /// Adds a moment at which a crash can be made, with a name for messages.
    pub fn crash_point(&self, label: &str) {
        self.core.live().record(Event::Point(label.into()));
    }

    /// Tells the history what a test's oracle knows at this moment, say the number of operations
    /// that have been acknowledged: see [`CrashState::note`] and [`Image::note`].
    pub fn note(&self, note: u64) {
        self.core.live().record(Event::Note(note));
    }

    /// Forgets the history so far; what it left undecided stays so. Events count from 0 again.
    pub fn forget_trace(&self) {
        self.core.live().forget();
    }

    /// Plants a fault that is told. See [`SimMedium::fault_hits`].
    ///
    /// # Panics
    /// For [`FaultEffect::Drop`], which is a lie: [`SimMedium::inject_lie`].
    pub fn inject(&self, fault: Fault) {
        assert!(fault.effect != FaultEffect::Drop, "a lie takes `inject_lie`");
        self.core.live().faults.plant(fault);
    }

    /// Plants a fault of any kind.
    ///
    /// # Safety
    /// Users of the medium believe that it did what it says. After a lie, bytes that a store, or
    /// the next opener of its files, takes for a value need be none.
    pub unsafe fn inject_lie(&self, fault: Fault) {
        self.core.live().faults.plant(fault);
    }

    /// Takes out the faults that have not happened yet, and the repeating ones.
    pub fn clear_faults(&self) {
        self.core.live().faults.clear();
    }

    /// Number of calls that a fault has hit.
    #[must_use]
    pub fn fault_hits(&self) -> u64 {
        self.core.live().faults.hits
    }

    /// Words that were stored through mappings into pages that have no space
    /// ([`Medium::release`](crate::Medium::release)): on a full disk each would end the process
    /// with `SIGBUS`. Holes are kept over a crash.
    #[must_use]
    pub fn stores_into_holes(&self) -> u64 {
        let mut live = self.core.live();
        live.observe();
        live.hole_stores
    }

    /// Counts from now on which lines of files are written back through mappings.
    pub fn count_line_writes(&self) {
        let mut live = self.core.live();
        live.observe();
        live.line_writes = Some(LineWrites::default());
    }

    /// The lines that flushes and streams have written back since the last call: name of the file
    /// and number of the line in it, as often as that was. A flush of a line that has not changed
    /// since the flush before writes nothing. At level `process`, which flushes nothing: the lines
    /// that have changed since the last call.
    #[must_use]
    pub fn take_line_writes(&self) -> Vec<(String, u64)> {
        let mut live = self.core.live();
        live.observe();
        let is_power = live.origin.options.durability == Durability::Power;
        if let Some(writes) = live.line_writes.as_mut().filter(|_| !is_power) {
            writes.all_written();
        }
        let written = live.line_writes.as_mut().map(|writes| core::mem::take(&mut writes.written));
        let written = written.unwrap_or_default().into_iter();
        written.map(|(inode, line)| (live.name_of(inode), line)).collect()
    }

    /// Bytes of a file that have no space; 0 if there is no such file.
    #[must_use]
    pub fn hole_bytes(&self, name: &str) -> u64 {
        let live = self.core.live();
        let Some(Binding::File(inode)) = live.names.get(name) else { return 0 };
        live.files.get(inode).map_or(0, |file| file.holes.len() as u64 * PAGE_SIZE)
    }

    /// Inverts a bit of a file, also in memory and on the medium. Returns whether there is such a
    /// byte.
    ///
    /// # Safety
    /// No reference leads to the byte, and no user of a mapping of the file relies on it.
    pub unsafe fn flip_bit(&self, name: &str, offset: u64, bit: u8) -> bool {
        let mut live = self.core.live();
        live.observe();
        let Some(&Binding::File(inode)) = live.names.get(name) else { return false };
        let Some(file) = live.files.get_mut(&inode).filter(|file| offset < file.len) else {
            return false;
        };
        Arc::make_mut(&mut file.content).flip(offset, bit);
        let mut byte = [0];
        file.content.read(offset, &mut byte);
        live.write_through(inode, offset, &byte);
        live.record(Event::FlipBit { inode, offset, bit });
        true
    }
}

/// The durable and the undecided bytes at one moment; see [`SimMedium::snapshot`].
#[derive(Clone)]
pub struct Snapshot {
    model: MediumModel,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} files)", self.model.files.len())
    }
}

/// The crash states of a history in order; see [`SimMedium::walk`].
pub struct Walk {
    history: History,
    started: bool,
    /// Whether states have what a loss of power decides.
    power: bool,
}

impl Walk {
    /// Whether every image of the state that was given last is also one of the next state, to the
    /// same requirements.
    #[must_use]
    pub fn next_only_adds(&self) -> bool {
        self.history.next_only_adds()
    }
}

impl Iterator for Walk {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        if self.started && !self.history.step() {
            return None;
        }
        self.started = true;
        Some(if self.power { self.history.state() } else { self.history.state_of_processes() })
    }
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Walk({} events)", self.history.len())
    }
}

impl fmt::Debug for SimMedium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimMedium({:?}, {:?})", self.slot, self.core.options)
    }
}
