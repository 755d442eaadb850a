//! One of two copies of a superblock, or one of two headers of a journal, is damaged. That costs
//! nothing where all else is whole, and hides no file that was put back.

use crate::catalog_ties::{Session, Step};
use crate::common::{protect, window_base};
use cenote_medium::Durability;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_object::Mode;
use cenote_store::Access;
use std::sync::Arc;

/// Both copies and both headers lie in the first two pages.
fn damaged(image: &Image, file: &str, page: u64) -> Image {
    let mut image = image.clone();
    assert!(image.flip_bit(file, page * 4096 + 200, 0));
    image
}

use Step::{Chmod, Close, Die, Object, Pool};

const STEPS: [Step; 11] = [
    Object("a"),
    Pool("q"),
    Die,
    Object("a"),
    Chmod("a"),
    Close,
    Pool("q"),
    Close,
    Object("a"),
    Pool("p"),
    Die,
];

/// Every moment with one copy of its superblock damaged: what is not served as it was.
fn every_lost_copy() -> Result<u64, String> {
    let session = Session::run(Mode::Authenticated, &STEPS);
    let mut count = 0;
    for (number, (moment, state)) in session.moments.iter().zip(&session.states).enumerate() {
        for page in 0..2 {
            let image = damaged(moment, "superblock", page);
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let found = crate::catalog_ties::seen(&image, access);
                let found = found
                    .map_err(|why| format!("moment {number}, copy {page}, {access:?}: {why}"))?;
                if found != *state {
                    return Err(format!(
                        "moment {number}, copy {page}, {access:?}: {found:#?} is served"
                    ));
                }
                count += 1;
            }
        }
    }
    protect(Mode::None);
    Ok(count)
}

#[test]
fn a_copy_of_the_superblock_that_is_lost_at_any_moment_costs_nothing() {
    let count = every_lost_copy().unwrap_or_else(|why| panic!("{why}"));
    assert!(count > 40, "{count}");
}

#[test]
fn a_lost_copy_that_is_forgotten_is_found() {
    plant(Bug::LostCopyForgotten);
    let found = every_lost_copy();
    plant(Bug::None);
    protect(Mode::None);
    let found = found.expect_err("the bug was not found");
    assert!(found.contains("superblock was put back"), "{found}");
}

/// How a session ended that was killed right after it opened the store, in another boot than the
/// session before, and of whose superblock this copy is lost: what the next session says.
fn ending(copy: u64) -> Option<cenote_store::CrashKind> {
    let opened = |sim: &Arc<SimMedium>| {
        let options = cenote_store::OpenOptions { spare_bytes_max: 0, ..Default::default() };
        cenote_store::Store::open(sim.clone(), options).expect("opened")
    };
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let format = cenote_store::FormatOptions {
        window_base: Some(window_base()),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(sim.clone(), &format).expect("formatted");
    opened(&sim).0.close().expect("closed");
    let sim = SimMedium::from_image(&sim.image_now(CrashKind::Power));
    opened(&sim).0.abandon();
    let sim = SimMedium::from_image(&damaged(&sim.image_now(CrashKind::Process), FILE, copy));
    let (store, report) = opened(&sim);
    store.close().expect("closed");
    report.crash
}

const FILE: &str = "superblock";

#[test]
fn a_copy_that_a_killed_session_loses_tells_no_other_session_or_boot() {
    let process = Some(cenote_store::CrashKind::Process);
    assert_eq!([0, 1].map(ending), [process; 2]);
    plant(Bug::OpenSaidOnce);
    let found = [0, 1].map(ending);
    plant(Bug::None);
    assert!(found.contains(&process) && found != [process; 2], "{found:?}");
}

/// Journals of every moment, with a header damaged, beside the last moment's superblock and
/// catalog, and with the things of their moment or of the last one. How many were refused.
fn every_lost_header(steps: &[Step]) -> Result<[u64; 2], String> {
    let session = Session::run(Mode::Authenticated, steps);
    let (last, mut counts) = (session.moments.len() - 1, [0; 2]);
    for older in 0..last {
        let things: Vec<String> = session.differing(older, last).into_iter().flatten().collect();
        let things: Vec<&String> =
            things.iter().filter(|name| name.starts_with("puddles/")).collect();
        // None, each, and all.
        let mut sets: Vec<&[&String]> = things.chunks(1).collect();
        sets.extend([&[][..], &things]);
        for (number, journal) in
            ["journal", "journal.pools"].iter().flat_map(|name| [(0, name), (1, name)])
        {
            for set in &sets {
                let journal = (*journal).to_owned();
                let image = session.mixed(last, older, set.iter().copied().chain([&journal]));
                if image.file(&journal).is_none() {
                    continue;
                }
                let image = damaged(&image, &journal, number);
                for access in [Access::ReadOnly, Access::ReadWrite] {
                    let refused = session.judge(&image, access).map_err(|what| {
                        format!("{journal} of {older}, header {number}, {access:?}: {what}")
                    })?;
                    counts[0] += u64::from(refused);
                    counts[1] += 1;
                }
            }
        }
    }
    protect(Mode::None);
    Ok(counts)
}

const CLOSED: [[Step; 4]; 2] =
    [[Object("a"), Pool("q"), Object("a"), Close], [Pool("q"), Object("a"), Pool("q"), Close]];

#[test]
fn a_header_that_is_lost_in_a_closed_store_hides_no_journal_that_was_put_back() {
    for steps in CLOSED {
        let [refused, of] = every_lost_header(&steps).unwrap_or_else(|what| panic!("{what}"));
        println!("{refused} of {of} are refused");
        assert!(refused > of / 3 && refused < of, "{refused} of {of}");
    }
}

#[test]
fn a_lost_header_whose_records_are_not_looked_at_is_found() {
    plant(Bug::LostHeaderAccepted);
    let found = CLOSED.iter().try_for_each(|steps| every_lost_header(steps).map(drop));
    plant(Bug::None);
    protect(Mode::None);
    println!("{}", found.expect_err("the bug was not found"));
}
