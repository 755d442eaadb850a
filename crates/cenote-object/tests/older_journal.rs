//! A journal, or a superblock, that was put back, of any session and moment: it is refused, and
//! nothing is replayed. Every copy that sessions leave behind is put in the place of the
//! last one.

use crate::common::{
    Reach, State, Step, When, World, base_image, bytes_of, contents, explore, options, own,
};
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium};
use cenote_object::{ObjectError, Objects, ObjectsOptions, Store};
use cenote_store::{Damage, OpenError, OpenOptions, StoreError};
use std::sync::Arc;

const HALF: u64 = 16384;
/// Sessions of a history. The last one closes the store, or dies.
const SESSIONS: u8 = 4;

/// A file's copy, and the session that it is of.
type Copy = (u8, Vec<u8>);

/// What a history leaves: the medium, copies of its journal and superblock at every moment, and
/// what the objects hold.
struct Past {
    image: Image,
    journals: Vec<Copy>,
    superblocks: Vec<Copy>,
    state: State,
}

fn past(closed: bool) -> Past {
    let sim = SimMedium::from_image_unrecorded(&base_image(HALF));
    let (mut journals, mut superblocks) = (Vec::new(), Vec::new());
    let mut state = Vec::new();
    for session in 0..SESSIONS {
        let mut note = |session| {
            journals.push((session, sim.read("journal").expect("a journal")));
            superblocks.push((session, sim.read("superblock").expect("a superblock")));
        };
        let mut world = World::open(&sim, HALF).expect("open");
        note(session);
        for round in 0..3 {
            for object in 0..2 {
                let at = usize::from(round) * 8;
                let value = 1 + session * 16 + round * 2 + object;
                let object = &mut world.attached[usize::from(object)];
                object.as_mut_slice().expect("writable")[at..at + 40].fill(value);
                object.psync().expect("psync");
                note(session);
            }
        }
        state = world.attached.iter().map(|object| bytes_of(object).expect("read")).collect();
        match closed || session + 1 < SESSIONS {
            true => world.close().expect("close"),
            false => world.die(),
        }
        note(session + u8::from(closed || session + 1 < SESSIONS));
    }
    Past { image: sim.image_now(CrashKind::Process), journals, superblocks, state }
}

/// The medium with one file as it was, or `None` if that is as it is.
fn with(image: &Image, name: &str, bytes: &[u8]) -> Option<Arc<SimMedium>> {
    let sim = SimMedium::from_image_unrecorded(image);
    if sim.read(name).expect("read") == bytes {
        return None;
    }
    own(&*sim).truncate(name, bytes.len() as u64).expect("truncate");
    own(&*sim).write_at(name, 0, bytes).expect("write");
    Some(sim)
}

/// Opens for reading: the objects, or the error; and whether a damaged journal is reported.
fn looked(sim: &Arc<SimMedium>) -> (Result<State, ObjectError>, bool) {
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, report) =
        Store::open(medium, OpenOptions::read_only()).expect("the store itself opens");
    let told = report.damage.iter().any(|damage| matches!(damage, Damage::Journal { .. }));
    let objects = Objects::open(&store, &options(HALF));
    (objects.map(|objects| contents(&objects).expect("contents")), told)
}

fn is_refusal(error: &ObjectError) -> bool {
    matches!(error, ObjectError::Store(StoreError::JournalRolledBack { .. }))
}

/// Puts every copy of the journal back. Returns how many were refused.
fn put_back(past: &Past, closed: bool) -> Result<u64, String> {
    let mut refused = 0;
    for (session, bytes) in &past.journals {
        // Of the session that died the superblock knows the epoch, and no moment.
        let hidden = !closed && *session + 1 == SESSIONS;
        let Some(sim) = with(&past.image, "journal", bytes) else { continue };
        let (seen, told) = looked(&sim);
        match seen {
            Err(error) if is_refusal(&error) && told => {}
            Ok(_) if hidden && !told => continue,
            other => {
                return Err(format!("session {session}, read only: {other:?}, reported: {told}"));
            }
        }
        let before = files(&sim);
        let medium: Arc<dyn Medium> = sim.clone();
        let (store, _) =
            Store::open(medium, OpenOptions::default()).expect("the store itself opens");
        let opened = Objects::open(&store, &options(HALF));
        store.abandon();
        match opened {
            Err(error) if is_refusal(&error) => refused += 1,
            other => return Err(format!("session {session}: {other:?}")),
        }
        if files(&sim) != before {
            return Err(format!("session {session}: something was replayed"));
        }
    }
    Ok(refused)
}

/// The journal and the files of the objects.
fn files(sim: &Arc<SimMedium>) -> Vec<Vec<u8>> {
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) = Store::open(medium, OpenOptions::read_only()).expect("open");
    let mut files: Vec<_> =
        store.objects().iter().map(|info| sim.read(&info.file()).expect("read")).collect();
    files.push(sim.read("journal").expect("read"));
    files
}

#[test]
fn every_older_journal_is_refused_and_nothing_of_it_is_replayed() {
    for closed in [true, false] {
        let past = past(closed);
        let refused =
            put_back(&past, closed).unwrap_or_else(|error| panic!("closed {closed}: {error}"));
        assert!(refused > 15, "{refused} copies were refused");
    }
}

#[test]
fn a_journal_that_was_put_back_and_is_replayed_is_found() {
    let past = past(true);
    plant(Bug::OlderJournalAccepted);
    let found = put_back(&past, true);
    plant(Bug::None);
    println!("{}", found.expect_err("the bug was not found"));
}

/// Sessions that open the journal, use it, and die or close.
const STEPS: [Step; 8] = [
    Step::Write(0, 0, 64, 1),
    Step::Psync(0),
    Step::Die,
    Step::Write(1, 0, 100, 2),
    Step::Psync(1),
    Step::Reopen,
    Step::Write(0, 8192, 8, 3),
    Step::Psync(0),
];

#[test]
fn every_crash_of_opening_and_closing_leaves_a_journal_that_the_superblock_allows() {
    let (tally, violation) = explore(&STEPS, HALF, Reach::default(), Bug::None, When::Running);
    assert_eq!(violation, None, "{tally:?}");
    assert!(tally.images > 100 && tally.recovery_images > 100, "{tally:?}");
}

#[test]
fn a_superblock_that_names_an_epoch_before_the_journal_has_it_is_found() {
    let (_, violation) =
        explore(&STEPS, HALF, Reach::default(), Bug::JournalNamedEarly, When::Running);
    let violation = violation.expect("the bug was not found");
    assert!(violation.contains("put back"), "{violation}");
}

#[test]
fn an_older_superblock_is_refused_or_costs_a_recovery_and_loses_nothing() {
    for closed in [true, false] {
        let past = past(closed);
        let mut refused = 0;
        for (session, bytes) in &past.superblocks {
            let Some(sim) = with(&past.image, "superblock", bytes) else { continue };
            let medium: Arc<dyn Medium> = sim.clone();
            match Store::open(medium, OpenOptions::read_only()) {
                Err(OpenError::SuperblockRolledBack { .. }) => {
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("session {session}: {error}"),
                Ok(opened) => drop(opened),
            }
            match looked(&sim).0 {
                Ok(state) => assert_eq!(state, past.state, "session {session}, closed {closed}"),
                Err(error) => {
                    assert!(is_refusal(&error), "session {session}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused >= 3, "{refused} copies were refused");
    }
}

#[test]
fn an_accepted_damaged_journal_gives_the_primaries_and_a_journal_that_is_newer_than_all() {
    let past = past(true);
    let (_, first) = &past.journals[1];
    let sim = with(&past.image, "journal", first).expect("it was another one");
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let accepting = ObjectsOptions { accept_damaged_journal: true, ..options(HALF) };
    let objects = Objects::open(&store, &accepting).expect("accepted");
    assert_eq!(contents(&objects).expect("contents"), past.state);
    drop(objects);
    store.close().expect("close");
    // From now on this is the journal, and the others are as old as they were.
    let now = sim.image_now(CrashKind::Process);
    assert_eq!(looked(&SimMedium::from_image_unrecorded(&now)).0.expect("open"), past.state);
    let past = Past { image: now, ..past };
    assert!(put_back(&past, true).expect("refused") > 15);
}
