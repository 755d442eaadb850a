//! Sessions that use the objects, a pool, both or neither, one after another, each of which closes
//! the store or dies. A session that does not use a journal changes nothing about it: what was
//! psynced before is served afterwards, and a journal that is refused is refused afterwards.

use crate::common::{key, options, protect, raw};
use crate::mixtures::{fill, made_with, seen};
use cenote_medium::planted::{Bug, plant};

use cenote_medium::sim::{CrashKind, Image, SimMedium};
use cenote_object::{Mode, Objects, Permission, Store};
use cenote_store::{Access, OpenOptions};
use std::sync::Arc;

/// What a session psyncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Session {
    object: bool,
    pool: bool,
    closes: bool,
}

/// All of them.
fn every_session() -> impl Iterator<Item = Session> {
    (0..8u8).map(|bits| Session {
        object: bits & 1 != 0,
        pool: bits & 2 != 0,
        closes: bits & 4 != 0,
    })
}

const HALF: u64 = 16384;

/// A store after a session, and what it serves.
#[derive(Clone)]
struct Moment {
    image: Image,
    values: Vec<u8>,
}

impl Session {
    /// Runs, and tells of every moment. An error: the store, or what the session uses, is refused.
    fn run(
        self,
        sim: &Arc<SimMedium>,
        value: u8,
        mut moment: impl FnMut(bool, bool),
    ) -> Result<(), String> {
        let opening = OpenOptions { journal_half_len: HALF, ..OpenOptions::default() };
        let (store, _) = Store::open(sim.clone(), opening).map_err(|error| error.to_string())?;
        let done = self.works(&store, value, &mut moment);
        match self.closes {
            true => store.close().map_err(|error| error.to_string())?,
            false => store.abandon(),
        }
        moment(done.is_ok() && self.object, done.is_ok() && self.pool);
        done
    }

    fn works(
        self,
        store: &Store,
        value: u8,
        moment: &mut impl FnMut(bool, bool),
    ) -> Result<(), String> {
        moment(false, false);
        if self.pool {
            let pool = raw(store).open_pool_with("p", Access::ReadWrite, key());
            let pool = pool.map_err(|error| error.to_string())?;
            // The second one needs the first one trimmed.
            fill(&pool, 200);
            fill(&pool, value);
            moment(false, true);
        }
        if self.object {
            let objects =
                Objects::open(store, &options(HALF)).map_err(|error| error.to_string())?;
            let object = objects.attach("a", Permission::ReadWrite, key());
            let mut object = object.map_err(|error| error.to_string())?;
            for value in [200, value] {
                objects.checkpoint().expect("trimmed");
                object.as_mut_slice().expect("writable").fill(value);
                object.psync().expect("psync");
            }
            moment(true, self.pool);
            if !self.closes {
                objects.abandon();
            }
        }
        Ok(())
    }

    /// The moments of this session after those of others.
    fn goes_on(self, past: &[Moment], value: u8) -> Vec<Moment> {
        let last = past.last().expect("a moment");
        let sim = SimMedium::from_image_unrecorded(&last.image);
        let mut past = past.to_vec();
        let before = last.values.clone();
        let ran = self.run(&sim, value, |object, pool| {
            let mut values = before.clone();
            if object {
                values[0] = value;
            }
            if pool {
                values[1..4].fill(value);
            }
            past.push(Moment { image: sim.image_now(CrashKind::Process), values });
        });
        ran.expect("nothing is wrong with the store");
        past
    }
}

/// A closed store that has psynced everything once.
fn begun(mode: Mode) -> Vec<Moment> {
    let image = made_with(mode, HALF);
    let values = seen(&image, Access::ReadOnly).expect("whole");
    let all = Session { object: true, pool: true, closes: true };
    all.goes_on(&[Moment { image, values }], 1)
}

/// Every history of this many sessions; what it leaves is served. How many there were.
fn every_history(past: &[Moment], of: &mut Vec<Session>, depth: usize) -> Result<u64, String> {
    let last = past.last().expect("a moment");
    for access in [Access::ReadOnly, Access::ReadWrite] {
        match seen(&last.image, access) {
            Ok(values) if values == last.values => {}
            other => {
                return Err(format!("{of:?}, {access:?}: {other:?}, and not {:?}", last.values));
            }
        }
    }
    if depth == 0 {
        return Ok(1);
    }
    let mut count = 0;
    for session in every_session() {
        of.push(session);
        let value = 1 + of.len() as u8;
        count += every_history(&session.goes_on(&past[past.len() - 1..], value), of, depth - 1)?;
        of.pop();
    }
    Ok(count)
}

#[test]
fn what_was_psynced_is_served_after_any_later_sessions() {
    for mode in [Mode::None, Mode::Integrity, Mode::Authenticated] {
        assert_eq!(every_history(&begun(mode), &mut Vec::new(), 2), Ok(64), "{mode}");
    }
    protect(Mode::None);
}

#[test]
fn what_was_psynced_is_served_after_any_of_many_longer_histories() {
    for seed in 1..9u64 {
        let (mut state, mut past, mut of) = (seed, begun(Mode::None), Vec::new());
        for value in 2..8 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let session = every_session().nth((state >> 61) as usize).expect("one of 8");
            of.push(session);
            past = session.goes_on(&past[past.len() - 1..], value);
            every_history(&past, &mut of, 0).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
    protect(Mode::None);
}

/// Sessions that do not use a file, and may come before the one that does.
fn strangers(file: &str) -> Vec<Vec<Session>> {
    let nothing = [false, true].map(|closes| Session { object: false, pool: false, closes });
    let mut all: Vec<Vec<Session>> = nothing.map(|session| vec![session]).into();
    all.push(vec![nothing[1]; 4]);
    all.push(vec![nothing[0], nothing[0], nothing[1], nothing[0]]);
    for closes in [false, true] {
        let (object, pool) = (file == "journal.pools", file == "journal");
        if object || pool {
            all.push(vec![Session { object, pool, closes }]);
            all.push(vec![Session { object, pool, closes }, nothing[usize::from(!closes)]]);
        }
    }
    all
}

/// Puts every file of every moment back into the last one, and compares what is served, or refused,
/// before and after sessions of strangers. How many were refused, and of how many.
fn put_back(past: &[Moment], counts: &mut [u64; 2]) -> Result<(), String> {
    let last = &past.last().expect("a moment").image;
    for (number, moment) in past.iter().enumerate() {
        for file in ["journal", "journal.pools", "superblock"] {
            let Some(bytes) =
                moment.image.file(file).filter(|bytes| last.file(file).as_ref() != Some(bytes))
            else {
                continue;
            };
            let mut image = last.clone();
            image.set_file(file, &bytes);
            let before = seen(&image, Access::ReadOnly);
            for sessions in strangers(file) {
                let sim = SimMedium::from_image_unrecorded(&image);
                let mut wrote = [false; 2];
                for session in &sessions {
                    // A store, or a close, that is refused leaves what the next one refuses too.
                    let _ = session.run(&sim, 100, |object, pool| {
                        wrote = [wrote[0] | object, wrote[1] | pool]
                    });
                }
                let after = seen(&sim.image_now(CrashKind::Process), Access::ReadOnly);
                let expected = before.clone().map(|mut values| {
                    if wrote[0] {
                        values[0] = 100;
                    }
                    if wrote[1] {
                        values[1..4].fill(100);
                    }
                    values
                });
                counts[0] += u64::from(before.is_err());
                counts[1] += 1;
                if expected.is_ok() != after.is_ok() || expected.is_ok() && expected != after {
                    return Err(format!(
                        "{file} of moment {number} of {}, then {sessions:?}: {before:?} before, \
                         {after:?} after",
                        past.len()
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The same for every history of this many sessions.
fn every_put_back(past: &[Moment], of: &mut Vec<Session>, depth: u32) -> Result<[u64; 2], String> {
    let mut counts = [0; 2];
    if depth == 0 {
        put_back(past, &mut counts).map_err(|error| format!("{of:?}: {error}"))?;
        return Ok(counts);
    }
    for session in every_session() {
        of.push(session);
        let value = 1 + of.len() as u8;
        let more = every_put_back(&session.goes_on(past, value), of, depth - 1)?;
        counts = [counts[0] + more[0], counts[1] + more[1]];
        of.pop();
    }
    Ok(counts)
}

/// Runs with a planted bug, which is to be found.
fn found_with(bug: Bug, look: impl FnOnce() -> Result<(), String>) {
    plant(bug);
    let found = look();
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}

#[test]
fn a_close_that_settles_a_journal_that_its_session_has_not_opened_is_found() {
    let past = begun(Mode::None);
    found_with(Bug::SettledByStranger, || every_history(&past, &mut Vec::new(), 2).map(drop));
}

#[test]
fn a_superblock_that_was_put_back_and_is_forgotten_to_be_is_found() {
    let past = begun(Mode::None);
    found_with(Bug::RefusalForgotten, || every_put_back(&past, &mut Vec::new(), 1).map(drop));
}

#[test]
fn what_is_refused_or_served_stays_so_after_sessions_that_do_not_use_it() {
    let [refused, of] =
        every_put_back(&begun(Mode::None), &mut Vec::new(), 1).unwrap_or_else(|e| panic!("{e}"));
    println!("{refused} of {of} are refused");
    // What a session without objects leaves of one that died, and what a few longer ones leave.
    for seed in 1..5usize {
        let (past, mut of) = (begun(Mode::None), Vec::new());
        let past = [seed, seed + 3, 1].into_iter().fold(past, |past, number| {
            of.push(every_session().nth(number % 8).expect("one of 8"));
            of[of.len() - 1].goes_on(&past, of.len() as u8 + 1)
        });
        put_back(&past, &mut [0; 2]).unwrap_or_else(|error| panic!("{of:?}: {error}"));
    }
    assert!(refused > of / 4 && refused < of, "{refused} of {of}");
    protect(Mode::None);
}
