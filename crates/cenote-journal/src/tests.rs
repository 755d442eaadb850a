//! What becomes of a journal when calls to its medium fail.

use crate::{
    ApplyTarget, Changes, Draft, Guard, Home, Journal, JournalError, Roots, Settings, Stopped, Tie,
    scan,
};
use cenote_layout::id::Uuid;
use cenote_layout::object::LineRun;
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Durability, FileHandle, Operation, OwnedMedium};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const STORE: Uuid = Uuid([9; 16]);
const EFFECTS: [FaultEffect; 3] = [FaultEffect::Io, FaultEffect::NoSpace, FaultEffect::ReadOnly];

/// A simulated medium whose files a test may change.
pub(crate) fn own(medium: Arc<SimMedium>) -> OwnedMedium {
    // SAFETY: nothing maps the files of these simulations.
    unsafe { OwnedMedium::new(medium) }
}

/// Stops as soon as it is poisoned.
#[derive(Debug, Default)]
struct Told(OnceLock<String>);

impl Guard for Told {
    fn check(&self) -> Result<(), Stopped> {
        self.0.get().map_or(Ok(()), |reason| Err(Stopped::Poisoned(reason.clone())))
    }

    fn poison(&self, reason: &str) {
        let _ = self.0.set(reason.to_owned());
    }
}

/// A journal whose thread is its caller, and one primary for all ids.
struct Rig {
    sim: Arc<SimMedium>,
    told: Arc<Told>,
    journal: Journal,
    file: Arc<FileHandle>,
}

impl Rig {
    fn new(half_len: u64) -> Self {
        let sim = SimMedium::new(SimOptions::new(Durability::Process));
        let medium = own(sim.clone());
        let told = Arc::new(Told::default());
        let guard: Arc<dyn Guard> = told.clone();
        let home = Home {
            medium: medium.clone(),
            store: STORE,
            name: "journal",
            guard,
            session: 0,
            tie: Tie::default(),
        };
        let settings = Settings { half_len_max: 1 << 20, syncs: true, background: false };
        let journal =
            Journal::create(home, half_len, (1, Roots::default()), settings).expect("a journal");
        medium.create("p", 1 << 20).expect("a file");
        medium.sync("p").expect("its length");
        medium.sync_dir("").expect("names");
        let file = Arc::new(FileHandle::open(&medium, "p").expect("it is there"));
        Self { sim, told, journal, file }
    }

    /// Psyncs lines of a value, as of `ids` primaries.
    fn psync(
        &self,
        ids: usize,
        first_line: u64,
        lines: u32,
        value: u8,
    ) -> Result<(), JournalError> {
        let mut changes = Changes::default();
        changes.runs.push(LineRun { object: 0, lines, first_line });
        changes.data.resize(lines as usize * 64, value);
        let ids: Vec<Uuid> = (0..ids).map(id).collect();
        let ticket = self.journal.append(&Draft::new(&ids, &changes).expect("a record"))?;
        self.journal.make_durable(&ticket)?;
        let target = |id: &Uuid| ApplyTarget {
            id: *id,
            file: Arc::clone(&self.file),
            data_offset: 0,
            rooted: None,
        };
        self.journal.apply_later(ticket, changes, ids.iter().map(target).collect())
    }

    fn is_poisoned(&self) -> bool {
        self.told.check().is_err()
    }

    /// What the primary holds after a loss of power that takes all that it can, and recovery.
    fn recovered(&self) -> Vec<u8> {
        let image = self.sim.state_now().image_oldest();
        let medium = own(SimMedium::from_image_unrecorded(&image));
        let mut bytes = medium.read("p").expect("read");
        let journal = FileHandle::open(&medium, "journal").expect("it is there");
        let scan = scan(&journal, STORE, true).expect("read").expect("believed");
        assert_eq!(scan.damage, None);
        for record in &scan.records {
            let data = record.read_data(&journal).expect("read");
            let lay = |_, offset: u64, new: &[u8]| {
                bytes[offset as usize..][..new.len()].copy_from_slice(new);
                Ok::<_, ()>(())
            };
            record.for_each_run(&data, lay).expect("laid over");
        }
        bytes
    }
}

fn id(number: usize) -> Uuid {
    Uuid((number as u128 + 1).to_le_bytes())
}

#[test]
fn a_sync_that_fails_poisons_whatever_the_system_says() {
    for effect in EFFECTS {
        let rig = Rig::new(16 << 10);
        rig.sim
            .inject(Fault::once(FaultPoint::Operation(Operation::Sync), 0, effect).on("journal"));
        assert!(rig.psync(1, 0, 1, 1).is_err(), "{effect:?}");
        assert!(rig.is_poisoned(), "{effect:?}");
    }
}

/// Every call of a psync for which the journal has to grow fails once. What is acknowledged
/// afterwards survives.
#[test]
fn however_growth_fails_what_is_acknowledged_later_survives() {
    for effect in EFFECTS {
        let (mut failed, mut poisoned) = (0, 0);
        for skip in 0.. {
            let rig = Rig::new(16 << 10);
            let mut expected = vec![0; 1 << 20];
            let mut psync = |first_line: u64, lines: u32, value| {
                let result = rig.psync(1, first_line, lines, value);
                if result.is_ok() {
                    expected[first_line as usize * 64..][..lines as usize * 64].fill(value);
                }
                result
            };
            psync(0, 1, 1).expect("it fits");
            rig.sim.inject(Fault::once(FaultPoint::AnyOperation, skip, effect));
            let grown = psync(64, 1000, 2);
            rig.sim.clear_faults();
            let hit = rig.sim.fault_hits() > 0;
            if rig.is_poisoned() {
                poisoned += 1;
                psync(1, 1, 3).expect_err("nothing is acknowledged any more");
            } else {
                failed += u64::from(grown.is_err());
                // Into what is left of one half, and into the other.
                (1..7).for_each(|line| psync(line, 1, 3).expect("the fault is gone"));
            }
            let found = rig.recovered();
            let differs = (0..1 << 14).find(|line| found[line * 64] != expected[line * 64]);
            // What failed and was not taken back may be there.
            let differs = differs.filter(|line| grown.is_ok() || *line < 64);
            assert_eq!(differs, None, "{effect:?} of call {skip}: {grown:?}");
            if !hit {
                assert!(
                    grown.is_ok() && failed > 5 && poisoned > 2,
                    "{effect:?}: {failed} {poisoned}"
                );
                break;
            }
        }
    }
}

/// More primaries than stay open are synced early. They are, and the header cannot be written,
/// which no caller needs yet.
#[test]
fn a_psync_that_is_committed_does_not_fail_for_an_early_trim() {
    const MANY: usize = 600;
    for effect in EFFECTS {
        let header =
            || Fault::once(FaultPoint::Operation(Operation::Write), 0, effect).on("journal");
        // A caller that needs the file itself.
        let rig = Rig::new(64 << 10);
        rig.psync(MANY, 0, 1, 1).expect("psynced");
        rig.sim.inject(header());
        rig.journal.settle(id(0)).expect("it is in the file");
        assert_eq!(rig.sim.fault_hits(), 1);
        assert!(!rig.is_poisoned());
        assert_eq!(rig.recovered()[0], 1);
        // A caller that psyncs, and finds too much waiting: the first psync is alone in its half.
        let rig = Rig::new(64 << 10);
        rig.psync(2 * MANY, 0, 600, 1).expect("psynced");
        let mut changes = Changes::default();
        changes.runs.push(LineRun { object: 0, lines: 1, first_line: 1000 });
        changes.data.resize(64, 2);
        let ids: Vec<Uuid> = (0..MANY).map(id).collect();
        let ticket =
            rig.journal.append(&Draft::new(&ids, &changes).expect("a record")).expect("appended");
        assert_eq!(ticket.half(), 1);
        rig.journal.make_durable(&ticket).expect("durable");
        rig.sim.inject(header());
        let targets = ids.iter().map(|id| ApplyTarget {
            id: *id,
            file: Arc::clone(&rig.file),
            data_offset: 0,
            rooted: None,
        });
        rig.journal.apply_later(ticket, changes, targets.collect()).expect("committed");
        assert_eq!(rig.sim.fault_hits(), 1);
        assert!(!rig.is_poisoned());
        // The next caller that needs the half does what is left.
        for value in 3..9 {
            rig.psync(MANY, 0, 600, value).expect("psynced");
            assert_eq!(
                rig.recovered()[..601 * 64],
                [[value; 64].repeat(600), vec![0; 64]].concat()
            );
        }
        rig.journal.checkpoint().expect("nothing is in the way");
        assert_eq!(rig.recovered()[1000 * 64], 2);
    }
}

/// Not if one of the primaries cannot be synced.
#[test]
fn a_primary_that_cannot_be_synced_early_poisons() {
    for effect in EFFECTS {
        let rig = Rig::new(64 << 10);
        rig.psync(600, 0, 1, 1).expect("psynced");
        rig.sim.inject(Fault::once(FaultPoint::Operation(Operation::Sync), 0, effect).on("p"));
        rig.journal.settle(id(0)).expect_err("what it holds is not known");
        assert!(rig.is_poisoned(), "{effect:?}");
    }
}

/// The thread goes on after a header that could not be written.
#[test]
fn the_thread_of_a_journal_outlives_an_error_that_does_not_poison() {
    let rig = Rig::new(16 << 10);
    let eventually = |done: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !done() && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        done()
    };
    // The first half is full, and the header says nothing of that yet.
    (0..2).for_each(|value| rig.psync(1, 0, 150, value).expect("psynced"));
    let header = Fault::once(FaultPoint::Operation(Operation::Write), 0, FaultEffect::NoSpace);
    rig.sim.inject(header.on("journal"));
    std::thread::scope(|scope| {
        scope.spawn(|| rig.journal.work_in_background());
        let tried = eventually(&|| rig.sim.fault_hits() == 1);
        rig.psync(1, 0, 1, 3).expect("psynced");
        let applied = eventually(&|| !rig.journal.is_behind(id(0)));
        rig.journal.stop();
        assert!(tried && applied, "{tried} {applied}");
    });
    assert!(!rig.is_poisoned());
}

/// The newest header of a journal, its list, and whether it is the only one.
fn newest(sim: &Arc<SimMedium>) -> crate::file::Whole {
    let medium = own(SimMedium::from_image_unrecorded(&sim.image_now(CrashKind::Process)));
    let file = FileHandle::open(&medium, "journal").expect("it is there");
    crate::file::read_header(&file, STORE, false).expect("read").expect("whole")
}

#[test]
fn a_list_that_is_damaged_takes_its_header_along_and_leaves_the_one_before() {
    let rig = Rig::new(8192);
    for number in 1..200 {
        // Longer and shorter lists, so that places of lists are used again.
        let of = id(number % 90);
        rig.journal.expect_root(of, (number < 120).then_some([number as u8; 32])).expect("written");
        let whole = newest(&rig.sim);
        assert!(
            !whole.alone && whole.roots.get(of) == (number < 120).then_some([number as u8; 32])
        );
        if whole.header.roots_len == 0 {
            continue;
        }
        // The last byte of the list is another one.
        let mut image = rig.sim.image_now(CrashKind::Process);
        let at = whole.header.roots_at + whole.header.roots_len - 1;
        assert!(image.flip_bit("journal", at, 0), "{at}");
        let before = newest(&SimMedium::from_image_unrecorded(&image));
        assert!(
            before.alone && before.header.generation + 1 == whole.header.generation,
            "{number}"
        );
    }
}
