//! Two journals of one store, and a model of its catalog: every order of few steps, and long random
//! ones. What a crash leaves is never refused, and what passes of three moments, one for each, is a
//! state that the store had.

use crate::tests::own;
use crate::{
    ApplyTarget, Changes, Draft, Guard, Home, Journal, Roots, Settings, Stopped, TIED, Ticket, Tie,
    scan,
};
use cenote_layout::id::Uuid;
use cenote_layout::object::LineRun;
use cenote_medium::planted::{Bug, plant, planted};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, FileHandle, OwnedMedium};
use std::sync::Arc;

const STORE: Uuid = Uuid([9; 16]);
const NAMES: [&str; 2] = ["journal", "journal.pools"];
const CATALOG: usize = 2;
const CATALOG_FILE: &str = "catalog";
/// Bytes of a batch: which records it names.
const BATCH_LEN: usize = 16;

#[derive(Debug)]
struct Healthy;

impl Guard for Healthy {
    fn check(&self) -> Result<(), Stopped> {
        Ok(())
    }

    fn poison(&self, reason: &str) {
        panic!("{reason}");
    }
}

/// A step of a history, of one journal or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A record of so many pages.
    Append(usize, u32),
    /// All records so far are made durable, and brought to the primary.
    Sync(usize),
    Trim(usize),
    /// A batch of the catalog is written.
    Batch,
    /// The batches are durable.
    SyncBatch,
    /// The process dies. The next one opens the journals of which this says so.
    Die([bool; 2]),
}

/// When a record was appended, and when it was durable.
type Interval = (usize, Option<usize>);

struct Rig {
    sim: Arc<SimMedium>,
    medium: OwnedMedium,
    primary: Arc<FileHandle>,
    journals: [Option<Journal>; 2],
    ties: [Tie; TIED],
    pending: [Vec<(Ticket, Changes)>; 2],
    /// Records of the journals, and batches.
    entries: [Vec<Interval>; TIED],
    moments: Vec<Moment>,
}

/// Where one of the three ends: its last entry, and what it names of the two others.
#[derive(Clone, Copy, Debug)]
struct End {
    last: u64,
    names: [u64; 2],
}

/// What there is after a step.
struct Moment {
    /// After a crash of the process, and after a loss of power that takes all it can.
    ends: [[End; TIED]; 2],
    /// Entries that were durable.
    durable: [usize; TIED],
}

fn ends(image: &Image) -> [End; TIED] {
    let medium = own(SimMedium::from_image_unrecorded(image));
    let journals = NAMES.map(|name| {
        let file = FileHandle::open(&medium, name).expect("it is there");
        let scan = scan(&file, STORE, true).expect("read").expect("believed");
        assert_eq!(scan.damage, None);
        let found = scan.found();
        End { last: found.last, names: found.names }
    });
    [journals[0], journals[1], end_of_catalog(&image.file(CATALOG_FILE).expect("a catalog"))]
}

/// Batches are of one length, and whole where one follows that is not empty.
fn end_of_catalog(bytes: &[u8]) -> End {
    let mut end = End { last: 0, names: [0; 2] };
    for batch in bytes.chunks_exact(BATCH_LEN).take_while(|batch| batch[7] == 0x80) {
        let word = |at: usize| u64::from_le_bytes(batch[at..at + 8].try_into().expect("8 bytes"));
        end = End { last: end.last + 1, names: [word(0) & !(0x80 << 56), word(8)] };
    }
    end
}

fn is_refused(ends: &[End; TIED]) -> bool {
    let [first, second, catalog] = ends;
    let lacks = |end: &End, (one, of_one): (&End, usize), (other, of_other): (&End, usize)| {
        end.last < one.names[of_one].max(other.names[of_other])
    };
    lacks(first, (second, 0), (catalog, 0))
        || lacks(second, (first, 0), (catalog, 1))
        || lacks(catalog, (first, 1), (second, 1))
}

impl Rig {
    fn new(half_len: u64) -> Self {
        let sim = SimMedium::new(SimOptions::new(Durability::Process));
        let medium = own(sim.clone());
        medium.create("p", 1 << 20).expect("a file");
        let primary = Arc::new(FileHandle::open(&medium, "p").expect("it is there"));
        medium.create(CATALOG_FILE, 1 << 12).expect("a file");
        medium.sync_dir("").expect("names");
        let ties = Tie::all();
        let settings = Settings { half_len_max: 1 << 20, syncs: true, background: false };
        let journals = [0, 1].map(|of| {
            let home = Self::home(&medium, of, &ties);
            Some(
                Journal::create(home, half_len, (1, Roots::default()), settings)
                    .expect("a journal"),
            )
        });
        let (pending, entries) = (Default::default(), Default::default());
        let moments = Vec::new();
        let mut rig = Self { sim, medium, primary, journals, ties, pending, entries, moments };
        rig.note();
        rig
    }

    fn home(medium: &OwnedMedium, of: usize, ties: &[Tie; TIED]) -> Home {
        let (medium, guard) = (medium.clone(), Arc::new(Healthy));
        Home { medium, store: STORE, name: NAMES[of], guard, session: 0, tie: ties[of].clone() }
    }

    /// A session begins, as `cenote_store::journals` has it.
    fn open(&mut self, which: [bool; 2]) {
        self.ties = Tie::all();
        let ties = self.ties.clone();
        let catalog = FileHandle::open(&self.medium, CATALOG_FILE).expect("it is there");
        let mut bytes = vec![0; 1 << 12];
        catalog.read_exact_at(0, &mut bytes).expect("read");
        let end = end_of_catalog(&bytes);
        ties[CATALOG].names(end.names);
        catalog.sync().expect("synced");
        ties[CATALOG].reached(end.last);
        let scans = [0, 1].map(|of: usize| {
            let file = Arc::new(FileHandle::open(&self.medium, NAMES[of]).expect("it is there"));
            let scan = scan(&file, STORE, true).expect("read").expect("believed");
            ties[of].names(scan.found().names);
            file.sync().expect("synced");
            ties[of].reached(scan.last_seq());
            (file, scan)
        });
        let settings = Settings { half_len_max: 1 << 20, syncs: true, background: false };
        for (of, (file, scan)) in scans.into_iter().enumerate() {
            assert!(scan.last_seq() >= ties[of].named().0, "a crash of the process is refused");
            let home = || Self::home(&self.medium, of, &ties);
            let resume = || Journal::resume(home(), file, (&scan, Roots::default()), settings);
            self.journals[of] = which[of].then(|| resume().expect("resumed"));
        }
    }

    fn durable(&self) -> [usize; TIED] {
        [0, 1, 2].map(|of| self.entries[of].iter().filter(|(_, over)| over.is_some()).count())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Append(of, pages) => {
                let Some(journal) = &self.journals[of] else { return };
                let mut changes = Changes::default();
                let lines = pages * 64 - 8;
                changes.runs.push(LineRun { object: 0, lines, first_line: 0 });
                changes.data.resize(lines as usize * 64, 1);
                let ids = [Uuid([1; 16])];
                let ticket =
                    journal.append(&Draft::new(&ids, &changes).expect("a record")).expect("room");
                self.entries[of].push((self.moments.len(), None));
                assert_eq!(ticket.seq as usize, self.entries[of].len(), "numbers go on");
                self.pending[of].push((ticket, changes));
            }
            Step::Sync(of) => self.sync(of),
            Step::Trim(of) => {
                if let Some(journal) = &self.journals[of] {
                    journal.checkpoint().expect("trimmed");
                }
            }
            Step::Batch => {
                let at = (self.entries[CATALOG].len() * BATCH_LEN) as u64;
                let [first, second] = self.ties[CATALOG].to_name();
                let batch = [(first | 0x80 << 56).to_le_bytes(), second.to_le_bytes()].concat();
                let file = FileHandle::open(&self.medium, CATALOG_FILE).expect("it is there");
                file.write_at(at, &batch).expect("written");
                self.entries[CATALOG].push((self.moments.len(), None));
                if planted(Bug::TieEarly) {
                    self.ties[CATALOG].reached(self.entries[CATALOG].len() as u64);
                }
            }
            Step::SyncBatch => {
                let file = FileHandle::open(&self.medium, CATALOG_FILE).expect("it is there");
                file.sync().expect("synced");
                self.ties[CATALOG].reached(self.entries[CATALOG].len() as u64);
                let now = self.moments.len();
                for (_, over) in &mut self.entries[CATALOG] {
                    over.get_or_insert(now);
                }
            }
            Step::Die(which) => {
                self.pending = Default::default();
                self.journals = Default::default();
                self.open(which);
                // A crash of the process loses nothing, and what was read was synced.
                self.all_durable();
            }
        }
        for of in [0, 1] {
            let durable = self.journals[of].as_ref().map_or(0, |journal| journal.durable_seq());
            let now = self.moments.len();
            for (_, over) in self.entries[of].iter_mut().take(durable as usize) {
                over.get_or_insert(now);
            }
        }
        self.note();
    }

    fn all_durable(&mut self) {
        let now = self.moments.len();
        for (_, over) in self.entries.iter_mut().flatten() {
            over.get_or_insert(now);
        }
    }

    /// As callers of psyncs do.
    fn sync(&mut self, of: usize) {
        let Some(journal) = &self.journals[of] else { return };
        for (ticket, changes) in self.pending[of].drain(..) {
            journal.make_durable(&ticket).expect("durable");
            let file = Arc::clone(&self.primary);
            let target = ApplyTarget { id: Uuid([1; 16]), file, data_offset: 0, rooted: None };
            journal.apply_later(ticket, changes, vec![target]).expect("queued");
        }
    }

    fn note(&mut self) {
        let images = [self.sim.image_now(CrashKind::Process), self.sim.state_now().image_oldest()];
        let (ends, durable) = (images.map(|image| ends(&image)), self.durable());
        self.moments.push(Moment { ends, durable });
    }

    /// No crash at the newest moment is refused, whichever writes of the three files arrive.
    fn crashes_pass(&self) -> Result<(), String> {
        let Some(Moment { ends, durable }) = self.moments.last() else { return Ok(()) };
        for which in 0..8usize {
            let kinds: [End; TIED] = core::array::from_fn(|of| ends[which >> of & 1][of]);
            let lost =
                kinds.iter().zip(durable).any(|(end, durable)| (end.last as usize) < *durable);
            if is_refused(&kinds) || lost {
                return Err(format!("crash {which}: {kinds:?}, durable were {durable:?}"));
            }
        }
        Ok(())
    }

    /// Every three moments are refused, or a state that the store had. How many were refused.
    fn mixtures(&self) -> Result<u64, String> {
        let mut refused = 0;
        let count = self.moments.len();
        for number in 0..count.pow(TIED as u32) {
            let of = |place: u32| &self.moments[number / count.pow(place) % count];
            let taken: [End; TIED] = core::array::from_fn(|which| of(which as u32).ends[0][which]);
            if is_refused(&taken) {
                refused += 1;
            } else if !self.is_a_state(taken.map(|end| end.last as usize)) {
                return Err(format!(
                    "of moments, {number} of {count}: {taken:?}, {:?}",
                    self.entries
                ));
            }
        }
        Ok(refused)
    }

    /// Whether some order of the psyncs has exactly these first: none that is missing was over
    /// before one that is there began.
    fn is_a_state(&self, last: [usize; TIED]) -> bool {
        let missing = (0..TIED).flat_map(|of| self.entries[of].iter().skip(last[of]));
        let mut over = missing.filter_map(|(_, over)| *over);
        let there = (0..TIED).flat_map(|of| self.entries[of].iter().take(last[of]));
        let begun = there.map(|(begun, _)| *begun).max();
        over.all(|over| begun.is_none_or(|begun| begun <= over))
    }

    fn run(steps: &[Step], half_len: u64) -> Result<(Self, u64), String> {
        let mut rig = Self::new(half_len);
        for step in steps {
            rig.step(*step);
            rig.crashes_pass().map_err(|what| format!("{steps:?}: {what}"))?;
        }
        let refused = rig.mixtures().map_err(|what| format!("{steps:?}: {what}"))?;
        Ok((rig, refused))
    }
}

/// Every history of so many steps, but those with steps that do nothing.
fn every(len: u32, of: &[Step]) -> Result<[u64; 2], String> {
    let mut counts = [0; 2];
    for number in 0..of.len().pow(len) {
        let steps: Vec<Step> =
            (0..len).map(|place| of[number / of.len().pow(place) % of.len()]).collect();
        let idle = |(at, step): (usize, &Step)| match step {
            Step::Sync(which) | Step::Trim(which) => {
                let touches = |step: &&Step| match step {
                    Step::Append(of, _) | Step::Sync(of) | Step::Trim(of) => of == which,
                    _ => false,
                };
                let before = steps[..at].iter().rev().find(touches);
                !matches!(
                    (before, step),
                    (Some(Step::Append(..)), _) | (Some(Step::Sync(_)), Step::Trim(_))
                )
            }
            Step::SyncBatch => {
                let ours = |step: &&Step| matches!(step, Step::Batch | Step::SyncBatch);
                !matches!(steps[..at].iter().rev().find(ours), Some(Step::Batch))
            }
            _ => false,
        };
        if steps.iter().enumerate().any(idle) {
            continue;
        }
        counts[0] += 1;
        counts[1] += Rig::run(&steps, 16384)?.1;
    }
    Ok(counts)
}

use Step::{Append, Batch, Die, Sync, SyncBatch, Trim};

const STEPS: [Step; 6] = [Append(0, 1), Sync(0), Trim(0), Append(1, 1), Sync(1), Trim(1)];
const WITH_BATCHES: [Step; 7] =
    [Append(0, 1), Sync(0), Trim(0), Batch, SyncBatch, Append(1, 1), Sync(1)];

#[test]
fn whatever_two_journals_do_no_crash_is_refused_and_what_passes_is_a_state_of_the_store() {
    let [histories, refused] = every(5, &STEPS).unwrap_or_else(|error| panic!("{error}"));
    println!("{histories} histories, {refused} pairs of moments are refused");
    assert!(histories > 500 && refused > 600, "{histories} {refused}");
}

#[test]
fn whatever_the_catalog_and_journals_do_no_crash_is_refused_and_each_is_a_state() {
    let [histories, refused] = every(5, &WITH_BATCHES).unwrap_or_else(|error| panic!("{error}"));
    println!("{histories} histories, {refused} mixtures of three moments are refused");
    assert!(histories > 1000 && refused > 10_000, "{histories} {refused}");
}

/// Sessions, of which some open one of the journals only.
#[test]
fn journals_of_sessions_that_died_are_tied_whichever_of_them_the_next_one_opens() {
    let both = [Append(0, 1), Sync(0), Append(1, 1), Sync(1)];
    let dying = [Die([true; 2]), Die([true, false]), Die([false, true])];
    let with_batches = [&both[..2], &[Batch, SyncBatch], &dying[..2]].concat();
    for steps in [[&both[..], &dying].concat(), with_batches] {
        let [histories, refused] = every(4, &steps).unwrap_or_else(|error| panic!("{error}"));
        println!("{histories} histories, {refused} mixtures of three moments are refused");
        // All of four steps: with batches there are six kinds of steps, and not seven.
        assert!(histories > 400 && refused > 1000, "{histories} {refused}");
    }
}

/// Halves that are used again, and journals that grow.
#[test]
fn long_histories_keep_what_short_ones_keep() {
    let (mut pairs, mut grown) = (0, 0);
    for seed in 1..40u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut next = |of: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % of
        };
        let steps: Vec<Step> = (0..24)
            .map(|_| {
                let of = next(2) as usize;
                match next(13) {
                    10 => Batch,
                    11 | 12 => SyncBatch,
                    0..4 => Append(of, 1 + u32::from(next(12) == 0) * 4),
                    4..8 => Sync(of),
                    8 => Trim(of),
                    _ => Die([[true, true], [true, false], [false, true]][next(3) as usize]),
                }
            })
            .collect();
        // A record that finds no room waits for psyncs that no thread goes on with.
        let steps = with_room(&steps);
        let (rig, refused) =
            Rig::run(&steps, 8192).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        pairs += refused;
        let half_len = |journal: &Journal| journal.figures().0 > 8192 * 3;
        grown += rig.journals.iter().flatten().filter(|journal| half_len(journal)).count();
    }
    assert!(pairs > 2000 && grown > 3, "{pairs} {grown}");
}

/// The steps, with a sync before each record behind another.
fn with_room(steps: &[Step]) -> Vec<Step> {
    let mut all = Vec::new();
    let mut waits = [0; 2];
    for step in steps {
        if let Append(of, pages) = step {
            if waits[*of] > 0 && (*pages > 1 || waits[*of] > 1) {
                all.push(Sync(*of));
                waits[*of] = 0;
            }
            waits[*of] += 1;
        }
        match step {
            Sync(of) => waits[*of] = 0,
            Die(_) => waits = [0; 2],
            _ => {}
        }
        all.push(*step);
    }
    all
}

fn caught(bug: Bug, len: u32, steps: &[Step]) -> String {
    plant(bug);
    let found = every(len, steps);
    plant(Bug::None);
    found.expect_err("the bug was not found")
}

#[test]
fn a_record_that_names_what_is_not_durable_is_found() {
    let found = caught(Bug::TieEarly, 3, &STEPS);
    assert!(found.contains("crash"), "{found}");
    let found = caught(Bug::TieEarly, 3, &[Batch, SyncBatch, Append(0, 1), Sync(0)]);
    assert!(found.contains("crash"), "{found}");
}

#[test]
fn a_header_that_forgets_what_records_named_is_found() {
    let found =
        caught(Bug::TieNotInHeader, 5, &[Append(0, 1), Sync(0), Append(1, 1), Die([false, true])]);
    assert!(found.contains("moments"), "{found}");
    let found = caught(Bug::TieNotInHeader, 5, &[Append(0, 1), Batch, SyncBatch, Die([true; 2])]);
    assert!(found.contains("moments"), "{found}");
}
