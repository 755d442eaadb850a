//! Mixtures of files of one session that crashed: both journals are in use, and every file is taken
//! as it was at one moment or another. What is served is a state that the store had, or nothing is.
//!
//! Each step of the session is one psync, of the object or of a pool. The medium is kept as it is
//! after each step: a *moment*. The psyncs follow each other, so the states of the store are those
//! of the moments, and no other.

use crate::common::{key, options, protect, raw};
use crate::mixtures::{CHECKED, fill, made_with, seen};
use cenote_layout::header::seal;
use cenote_layout::object::JournalHeader;
use cenote_layout::superblock::{ORIGIN_COPY, ORIGIN_OWN, Superblock};
use cenote_medium::Operation;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, Image, Limits, SimMedium};
use cenote_object::{Mode, Objects, ObjectsOptions, Permission, Store};
use cenote_store::{Access, CopyPolicy, OpenOptions};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// What a step psyncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Object,
    Pool(&'static str),
    /// The journal of objects is brought into the files, and trimmed.
    Trim,
    /// The process dies, and the next one opens the store.
    Die,
}

const P: Step = Step::Pool("p");
const Q: Step = Step::Pool("q");
/// Halves that are seldom, or often, written anew.
const LARGE: u64 = 1 << 16;
const SMALL: u64 = 16384;
/// A record of the larger pool fits, and the journal need not grow.
const MEDIUM: u64 = 1 << 15;

/// Opens for writing. Only the open that makes a journal chooses the length of its halves.
fn open_with(sim: &Arc<SimMedium>, half_len: u64) -> Result<(Store, Objects), String> {
    let opening = OpenOptions { journal_half_len: half_len, ..OpenOptions::default() };
    let (store, _) = Store::open(sim.clone(), opening).map_err(|error| error.to_string())?;
    let objects = Objects::open(&store, &options(half_len)).map_err(|error| error.to_string())?;
    Ok((store, objects))
}

/// A session whose moments are kept.
struct Session {
    mode: Mode,
    moments: Vec<Image>,
    /// Of which process each is.
    processes: Vec<u8>,
    /// What the store serves at each moment.
    states: Vec<Vec<u8>>,
}

/// Runs the steps; each writes a value of its own. Calls `moment` before the first and after each.
fn run(sim: &Arc<SimMedium>, half_len: u64, steps: &[Step], mut moment: impl FnMut(u8)) {
    let (mut value, mut process) = (0, 0);
    for steps in steps.split(|step| *step == Step::Die) {
        let (store, objects) = open_with(sim, half_len).expect("open");
        let mut object = objects.attach("a", Permission::ReadWrite, key()).expect("attached");
        let open = |name| raw(&store).open_pool_with(name, Access::ReadWrite, key()).expect("open");
        let pools = ["p", "q"].map(open);
        moment(process);
        for step in steps {
            value += 1;
            match step {
                Step::Pool(name) => fill(&pools[usize::from(*name == "q")], value),
                Step::Trim => objects.checkpoint().expect("trimmed"),
                _ => {
                    object.as_mut_slice().expect("writable").fill(value);
                    object.psync().expect("psync");
                }
            }
            moment(process);
        }
        process += 1;
        objects.abandon();
        store.abandon();
    }
}

impl Session {
    fn run(mode: Mode, half_len: u64, steps: &[Step]) -> Self {
        let base = made_with(mode, half_len);
        let sim = SimMedium::from_image_unrecorded(&base);
        let (mut moments, mut processes) = (Vec::new(), Vec::new());
        run(&sim, half_len, steps, |process| {
            moments.push(sim.image_now(CrashKind::Process));
            processes.push(process);
        });
        let whole = |image: &Image| seen(image, Access::ReadOnly).expect("a moment of the store");
        let states = moments.iter().map(whole).collect();
        Self { mode, moments, processes, states }
    }

    /// Files in which two moments differ.
    fn differing(&self, one: usize, other: usize) -> Vec<String> {
        let (one, other) = (&self.moments[one], &self.moments[other]);
        let mut names = one.names();
        names.extend(other.names());
        names.sort_unstable();
        names.dedup();
        names.retain(|name| one.file(name) != other.file(name));
        names
    }

    /// One moment with some files of another.
    fn mixed(&self, newer: usize, older: usize, back: &[&String]) -> Image {
        let mut image = self.moments[newer].clone();
        for name in back {
            match self.moments[older].file(name) {
                Some(bytes) => image.set_file(name, &bytes),
                None => drop(image.remove(name)),
            }
        }
        image
    }

    /// Opens the image. Whether it was refused, or why it is no state that the store had.
    fn judge(&self, image: &Image, access: Access) -> Result<bool, String> {
        match seen(image, access) {
            Err(_) => Ok(true),
            Ok(all) if self.states.contains(&all) => Ok(false),
            Ok(all) => Err(format!("{all:?} is served")),
        }
    }

    /// Every mixture of two moments, file by file. How many were refused, and of how many.
    fn every_mixture(&self) -> Result<[u64; 2], String> {
        let mut counts = [0; 2];
        for newer in 0..self.moments.len() {
            for older in 0..newer {
                let files = self.differing(older, newer);
                let one_process = self.processes[older] == self.processes[newer];
                assert!(files.len() <= 9 || !one_process, "{files:?}");
                if files.len() > 9 {
                    continue;
                }
                for mask in 1..(1u32 << files.len()) - 1 {
                    let back: Vec<&String> = (0..)
                        .zip(&files)
                        .filter(|(i, _)| mask >> i & 1 == 1)
                        .map(|(_, name)| name)
                        .collect();
                    let access = if mask % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
                    let refused =
                        self.judge(&self.mixed(newer, older, &back), access).map_err(|what| {
                            format!(
                                "{}, {access:?}, of {older} in {newer} {back:?}: {what}",
                                self.mode
                            )
                        })?;
                    counts[0] += u64::from(refused);
                    counts[1] += 1;
                }
            }
        }
        Ok(counts)
    }
}

impl Session {
    /// Mixtures in which each file is of one of three moments. How many were refused.
    fn random_mixtures(&self, seed: u64, count: u64) -> Result<u64, String> {
        let mut state = seed;
        let mut next = |of: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % of as u64) as usize
        };
        let mut names: Vec<String> = self.moments.iter().flat_map(Image::names).collect();
        names.sort_unstable();
        names.dedup();
        let mut refused = 0;
        for number in 0..count {
            let few = [0; 3].map(|_| next(self.moments.len()));
            let mut image = self.moments[few[0]].clone();
            let mut taken = Vec::new();
            for name in &names {
                let of = few[next(few.len())];
                taken.push((name, of));
                match self.moments[of].file(name) {
                    Some(bytes) => image.set_file(name, &bytes),
                    None => drop(image.remove(name)),
                }
            }
            let access = if number % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
            let judged = self.judge(&image, access);
            refused += u64::from(
                judged.map_err(|what| format!("{}, {access:?}, {taken:?}: {what}", self.mode))?,
            );
        }
        Ok(refused)
    }
}

const STEPS: [Step; 12] = [
    Step::Object,
    P,
    Q,
    Step::Object,
    Step::Trim,
    Step::Object,
    P,
    Step::Trim,
    Step::Die,
    P,
    Step::Object,
    Q,
];

#[test]
fn every_mixture_of_moments_of_one_session_is_refused_or_a_state_of_the_store() {
    for mode in CHECKED {
        for half_len in [LARGE, SMALL] {
            let session = Session::run(mode, half_len, &STEPS);
            let [refused, of] = session.every_mixture().unwrap_or_else(|error| panic!("{error}"));
            println!("{mode}: {refused} of {of} mixtures are refused");
            assert!(refused > of / 3 && of > 30, "{mode}: {refused} of {of}");
            let refused = session.random_mixtures(7, 400).unwrap_or_else(|error| panic!("{error}"));
            println!("{mode}: {refused} of 400 mixtures of three moments are refused");
            assert!((100..390).contains(&refused), "{mode}: {refused}");
        }
    }
    protect(Mode::None);
}

#[test]
fn journals_that_are_not_compared_with_each_other_are_found() {
    let session = Session::run(Mode::Authenticated, LARGE, &STEPS);
    plant(Bug::TieIgnored);
    let found = session.every_mixture();
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}

/// What recovery makes of an image: the last state that was acknowledged, or the next.
fn recovered(image: &Image, states: &[Vec<u8>], access: Access) -> Result<(), String> {
    let acknowledged = image.note() as usize;
    let found = seen(image, access).map_err(|error| format!("note {acknowledged}: {error}"))?;
    let next = (acknowledged + 1).min(states.len() - 1);
    match states[acknowledged..=next].contains(&found) {
        true => Ok(()),
        false => Err(format!("note {acknowledged}: {found:?} is served")),
    }
}

/// Every crash of a session with both journals, and of its recovery.
fn crashes(mode: Mode, half_len: u64, steps: &[Step]) -> Result<[u64; 2], String> {
    let states = Session::run(mode, half_len, steps).states;
    let sim = SimMedium::from_image(&made_with(mode, half_len));
    let mut notes = 0;
    run(&sim, half_len, steps, |_| {
        sim.note(notes);
        notes += 1;
    });
    let limits = Limits { exhaustive_units: 3, samples: 4, ..Limits::default() };
    let (mut counts, mut violation) = ([0; 2], Ok(()));
    sim.explore(.., limits, |crash, image| {
        if violation.is_err() {
            return;
        }
        counts[0] += 1;
        let access = if counts[0] % 5 == 0 { Access::ReadOnly } else { Access::ReadWrite };
        let mut found = recovered(&image, &states, access);
        if found.is_ok() && counts[0] % 40 == 0 {
            let again = SimMedium::from_image(&image);
            again.note(image.note());
            if let Ok((store, objects)) = open_with(&again, half_len) {
                objects.abandon();
                store.abandon();
            }
            again.explore(.., limits, |_, inner| {
                counts[1] += 1;
                if found.is_ok() && inner.note() == image.note() {
                    found = recovered(&inner, &states, Access::ReadWrite);
                }
            });
        }
        violation = found.map_err(|what| format!("{mode}, event {}: {what}", crash.event()));
    });
    protect(Mode::None);
    violation.map(|()| counts)
}

#[test]
fn no_crash_of_a_session_with_both_journals_is_taken_for_a_mixture() {
    let steps = [Step::Object, P, Step::Object, Q, P, Step::Object];
    let [images, recovering] =
        crashes(Mode::Integrity, SMALL, &steps).unwrap_or_else(|e| panic!("{e}"));
    println!("{images} images, {recovering} of recovery");
    assert!(images > 80 && recovering > 50, "{images} {recovering}");
}

/// An image in which the journal of objects lacks a record that that of pools names.
fn put_back() -> (Session, Image) {
    let session = Session::run(Mode::Authenticated, LARGE, &[Step::Object, P]);
    let files = session.differing(0, 1);
    let image = session.mixed(2, 0, &files.iter().collect::<Vec<_>>());
    let refused = seen(&image, Access::ReadWrite).expect_err("a mixture");
    assert!(refused.contains("put back") && refused.contains("journal.pools says"), "{refused}");
    (session, image)
}

/// One session that psyncs the object and a pool and dies; the next one opens as always.
fn goes_on(sim: &Arc<SimMedium>, opening: OpenOptions, accepting: &ObjectsOptions) {
    let (store, _) = Store::open(sim.clone(), opening).expect("open");
    let objects = Objects::open(&store, accepting).expect("accepted");
    let mut object = objects.attach("still", Permission::ReadWrite, key()).expect("attached");
    object.as_mut_slice().expect("writable").fill(77);
    object.psync().expect("psync");
    fill(&raw(&store).open_pool_with("q", Access::ReadWrite, key()).expect("open"), 78);
    objects.abandon();
    store.abandon();
}

#[test]
fn a_journal_that_is_accepted_goes_on_behind_every_number_that_the_other_names() {
    let (_, image) = put_back();
    let sim = SimMedium::from_image_unrecorded(&image);
    let accepting = ObjectsOptions { accept_damaged_journal: true, ..options(LARGE) };
    goes_on(&sim, OpenOptions::default(), &accepting);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let served =
            seen(&sim.image_now(CrashKind::Process), access).expect("a store as any other");
        assert_eq!(served[4], 78);
    }
    protect(Mode::None);
}

/// Sets what the superblock says of where its files are from.
fn from(image: &Image, origin: u64) -> Image {
    let mut image = image.clone();
    let mut bytes = image.file("superblock").expect("it is there");
    for copy in bytes.chunks_mut(4096) {
        let mut block = Superblock::read_from_bytes(copy).expect("a superblock");
        block.origin = origin;
        seal(&mut block);
        copy.copy_from_slice(block.as_bytes());
    }
    image.set_file("superblock", &bytes);
    image
}

#[test]
fn files_of_different_moments_that_the_caller_accepts_are_not_compared_later_either() {
    let (_, image) = put_back();
    let copy = from(&image, ORIGIN_COPY);
    let sim = SimMedium::from_image_unrecorded(&copy);
    let opening = OpenOptions { copy: CopyPolicy::CheckAndOpen, ..OpenOptions::default() };
    goes_on(&sim, opening, &options(LARGE));
    let later = from(&sim.image_now(CrashKind::Process), ORIGIN_OWN);
    let served = seen(&later, Access::ReadWrite).expect("a store as any other");
    assert_eq!(served[4], 78);
    protect(Mode::None);
}

/// Flips a bit of a journal's newest header.
fn without_newest_header(image: &Image, journal: &str) -> Image {
    let mut image = image.clone();
    let bytes = image.file(journal).expect("it is there");
    let generation = |slot: usize| {
        JournalHeader::read_from_prefix(&bytes[slot * 4096..])
            .map_or(0, |(header, _)| header.generation)
    };
    let newest = if generation(1) > generation(0) { 4096 } else { 0 };
    assert!(image.flip_bit(journal, newest + 200, 0));
    image
}

/// In every moment of a session the newest header of a journal is damaged, and any of the things'
/// files are put back to one of the first moments. How many were refused, and of how many; or what
/// is served that is no state of the store.
fn damaged_lists(journal: &str, steps: &[Step]) -> Result<[u64; 2], String> {
    let session = Session::run(Mode::Authenticated, MEDIUM, steps);
    let mut counts = [0; 2];
    for newer in 0..session.moments.len() {
        for older in 0..newer.min(2) {
            let mut files = session.differing(older, newer);
            files.retain(|name| name.starts_with("puddles/"));
            for mask in 0..1u32 << files.len() {
                let back: Vec<&String> = (0..)
                    .zip(&files)
                    .filter(|(i, _)| mask >> i & 1 == 1)
                    .map(|(_, name)| name)
                    .collect();
                let image = without_newest_header(&session.mixed(newer, older, &back), journal);
                let access = if mask % 2 == 0 { Access::ReadOnly } else { Access::ReadWrite };
                let refused = session.judge(&image, access).map_err(|what| {
                    format!("{journal}, {access:?}, of {older} in {newer} {back:?}: {what}")
                })?;
                counts[0] += u64::from(refused);
                counts[1] += 1;
            }
        }
    }
    protect(Mode::None);
    Ok(counts)
}

/// Halves of the pools' journal are written anew again and again, and pool "p" is in none of its
/// later records.
const REUSING: [Step; 15] = [P, Q, Q, Q, Q, Q, Q, Q, Q, Q, Q, Q, Q, Q, Q];

#[test]
fn a_list_that_is_lost_with_its_header_hides_no_file_that_was_put_back() {
    let [refused, of] =
        damaged_lists("journal.pools", &REUSING).unwrap_or_else(|error| panic!("{error}"));
    println!("{refused} of {of} are refused");
    assert!(refused > of / 4 && refused < of, "{refused} of {of}");
}

#[test]
fn a_lost_list_that_is_accepted_is_found() {
    plant(Bug::LostListAccepted);
    let found = damaged_lists("journal.pools", &REUSING);
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
    let served = lost_list_of_objects(Bug::LostListAccepted, false);
    assert_eq!(served, Ok([0, 3]), "the bug was not found");
}

/// Object "a" is psynced, the journal trimmed, object "still" psynced. The newest header is
/// damaged, and the file of "a" may be put back.
fn without_list(puts_back: bool) -> Image {
    let sim = SimMedium::from_image_unrecorded(&made_with(Mode::Authenticated, LARGE));
    let (store, objects) = open_with(&sim, LARGE).expect("open");
    let file = store.object("a").expect("there").file();
    let psync = |name, value| {
        let mut object = objects.attach(name, Permission::ReadWrite, key()).expect("attached");
        object.as_mut_slice().expect("writable").fill(value);
        object.psync().expect("psync");
    };
    let before = sim.image_now(CrashKind::Process).file(&file).expect("it is there");
    psync("a", 2);
    objects.checkpoint().expect("trimmed");
    psync("still", 3);
    objects.abandon();
    store.abandon();
    drop(objects);
    let mut image = without_newest_header(&sim.image_now(CrashKind::Process), "journal");
    if puts_back {
        image.set_file(&file, &before);
    }
    image
}

/// What is served of both objects.
fn served_of(
    store: &Store,
    asked: &ObjectsOptions,
) -> Result<Result<[u8; 2], String>, cenote_object::ObjectError> {
    Objects::open(store, asked).map(|objects| {
        let of = |name| -> Result<u8, String> {
            let object =
                objects.attach(name, Permission::Read, key()).map_err(|error| error.to_string())?;
            Ok(crate::common::bytes_of(&object)?[0])
        };
        let served = [of("a")?, of("still")?];
        objects.abandon();
        Ok(served)
    })
}

/// What is served of both, if the file of "a" is put back.
fn lost_list_of_objects(bug: Bug, accept_damaged_journal: bool) -> Result<[u8; 2], String> {
    let image = without_list(true);
    plant(bug);
    let sim = SimMedium::from_image_unrecorded(&image);
    let (store, _) = Store::open(sim.clone(), OpenOptions::default()).expect("open");
    let asked = ObjectsOptions { accept_damaged_journal, ..options(LARGE) };
    let served =
        served_of(&store, &asked).map_err(|error| error.to_string()).and_then(|served| served);
    plant(Bug::None);
    store.abandon();
    protect(Mode::None);
    served
}

/// The list is lost, which the caller accepts, and each read of the open in turn fails once, for
/// want of a descriptor. How many opens failed; what was served that is not what was psynced.
fn lost_list_and_no_descriptor(bug: Bug) -> Result<u64, String> {
    const EMFILE: i32 = 24;
    let image = without_list(false);
    let asked = ObjectsOptions { accept_damaged_journal: true, ..options(LARGE) };
    let (mut failed, mut wrong) = (0, Vec::new());
    for skip in 0.. {
        let sim = SimMedium::from_image_unrecorded(&image);
        let (store, _) = Store::open(sim.clone(), OpenOptions::default()).expect("open");
        let before = sim.fault_hits();
        sim.inject(Fault::once(
            FaultPoint::Operation(Operation::Read),
            skip,
            FaultEffect::Errno(EMFILE),
        ));
        plant(bug);
        let opened = Objects::open(&store, &asked);
        plant(Bug::None);
        let hit = sim.fault_hits() > before;
        sim.clear_faults();
        failed += u64::from(opened.is_err());
        drop(opened);
        let served = served_of(&store, &asked).expect("nothing fails any more");
        if served != Ok([2, 3]) {
            wrong.push(format!("read {skip}: {served:?}"));
        }
        store.abandon();
        if !hit {
            break;
        }
    }
    protect(Mode::None);
    if wrong.is_empty() { Ok(failed) } else { Err(wrong.join("\n")) }
}

#[test]
fn a_descriptor_that_lacks_when_a_list_is_made_anew_costs_no_object() {
    let failed = lost_list_and_no_descriptor(Bug::None).unwrap_or_else(|error| panic!("{error}"));
    assert!(failed > 2, "{failed}");
    println!(
        "{}",
        lost_list_and_no_descriptor(Bug::ErrorIsDamage).expect_err("the bug was not found")
    );
}

#[test]
fn objects_whose_list_is_lost_are_refused_until_the_caller_accepts_them() {
    let refused =
        lost_list_of_objects(Bug::None, false).expect_err("nothing says how old they are");
    assert!(refused.contains("list of the states"), "{refused}");
    assert_eq!(lost_list_of_objects(Bug::None, true), Ok([0, 3]));
}
