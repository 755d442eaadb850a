//! Files of control data that a disk does not give back: the catalog's two files make up for each
//! other, and a journal that cannot be read costs the pools that need it.

use crate::at_rest::count;
use crate::recovery_errors::{COMMITTED, check, crashed};
use cenote::{Access, OpenOptions, Result, Store};
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, Image, SimMedium};
use cenote_medium::{Medium, Operation};
use std::sync::Arc;

const FILES: [&str; 3] = ["catalog.0", "catalog.1", "journal.pools"];

/// The image of a store that was closed.
fn closed() -> Result<Image> {
    let sim = SimMedium::from_image(&crashed(CrashKind::Process));
    let store = Store::open_on(sim.clone() as Arc<dyn Medium>, &OpenOptions::default())?;
    for name in ["direct", "shadowed"] {
        assert_eq!(count(&store.pool(name)?), COMMITTED);
    }
    store.close()?;
    Ok(sim.image_now(CrashKind::Process))
}

/// Opens a store one of whose files cannot be read; it is left open. Then all is read again.
fn without(base: &Image, file: &str, access: Access) -> Result<()> {
    let sim = SimMedium::from_image_unrecorded(base);
    let reads = FaultPoint::Operation(Operation::Read);
    sim.inject(Fault::once(reads, 0, FaultEffect::Io).on(file).repeating());
    let store = Store::open_on(
        sim.clone() as Arc<dyn Medium>,
        &OpenOptions { access, ..OpenOptions::default() },
    )?;
    assert!(sim.fault_hits() > 0, "{file}");
    assert_eq!(count(&store.pool_with("direct", access)?), COMMITTED, "{file}");
    let shadowed = store.pool_with("shadowed", access);
    match file.starts_with("catalog") {
        true => assert_eq!(count(&shadowed?), COMMITTED, "{file}"),
        // A reader of a closed store needs no journal.
        false if access.writes() => assert!(shadowed.is_err(), "{file}"),
        false => drop(shadowed),
    }
    store.abandon();
    sim.clear_faults();
    check(&sim.image_now(CrashKind::Process), CrashKind::Process, file).unwrap();
    Ok(())
}

/// A session dies between its two copies of the superblock; the next one, which finds that a log's
/// file is away, at any moment of its open; then a copy is lost. Opens that are refused.
fn half_open(bug: Bug) -> Result<(u64, Vec<String>)> {
    let base = closed()?;
    let sim = SimMedium::from_image(&base);
    let store = Store::open_on(sim.clone() as Arc<dyn Medium>, &OpenOptions::default())?;
    let records = store.puddle_records();
    let logs = records.iter().filter(|puddle| puddle.role == Role::Log);
    let mut names = logs.map(|log| {
        let hex: String = log.uuid.to_hex().iter().map(|byte| char::from(*byte)).collect();
        format!("puddles/{hex}")
    });
    let log = names.find(|log| base.file(log).is_some()).expect("a log");
    store.abandon();
    let changed = |image: &Image| image.file("superblock") != base.file("superblock");
    let mut moments = (0..=sim.trace_len()).map(|events| sim.state_after(events).image_latest());
    let mut half = moments.find(changed).expect("it says that it is open");
    assert!(half.remove(&log));
    let sim = SimMedium::from_image(&half);
    plant(bug);
    let opened = Store::open_on(sim.clone() as Arc<dyn Medium>, &OpenOptions::default());
    plant(Bug::None);
    opened?.abandon();
    let (mut tried, mut refused) = (0, Vec::new());
    for (events, page) in (0..=sim.trace_len()).flat_map(|events| [(events, 0), (events, 1)]) {
        let mut image = sim.state_after(events).image_latest();
        assert!(image.flip_bit("superblock", page * 4096 + 200, 0));
        let sim = SimMedium::from_image_unrecorded(&image);
        tried += 1;
        match Store::open_on(sim as Arc<dyn Medium>, &OpenOptions::default()) {
            Ok(store) => store.abandon(),
            Err(error) => refused.push(format!("event {events}, copy {page}: {error}")),
        }
    }
    Ok((tried, refused))
}

#[test]
fn a_copy_that_is_lost_after_two_sessions_died_while_they_opened_costs_nothing() -> Result<()> {
    let (tried, refused) = half_open(Bug::None)?;
    assert!(tried > 20 && refused.is_empty(), "{tried}: {refused:#?}");
    assert!(!half_open(Bug::OtherCopyClean)?.1.is_empty());
    Ok(())
}

#[test]
fn a_file_of_control_data_that_cannot_be_read_costs_no_pool_that_does_without_it() -> Result<()> {
    for base in [closed()?, crashed(CrashKind::Process)] {
        for file in FILES {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                without(&base, file, access)?;
            }
            plant(Bug::UnreadableNotRead);
            let refused = without(&base, file, Access::ReadWrite);
            plant(Bug::None);
            assert!(refused.is_err(), "{file}");
        }
    }
    Ok(())
}
