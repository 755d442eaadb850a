//! The stamp of a session is written into a file before the file is mapped, by a call: an error of
//! the device or of space is an error, where a store into the mapping would end the process. The
//! files of a backup have stamps too.

use crate::common::{Dir, pool_options, small};
use cenote_layout::puddle::{STAMP_AT, is_era};
use cenote_medium::sim::{Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, Operation};
use cenote_store::{Access, BackedUp, OpenOptions, PoolMode, PoolOptions, Store, format};

fn stamp(sim: &SimMedium, file: &str) -> u64 {
    let mut stamp = [0; 8];
    assert_eq!(sim.read_at(file, STAMP_AT, &mut stamp).expect("read"), 8);
    u64::from_le_bytes(stamp)
}

#[test]
fn a_stamp_that_cannot_be_written_is_an_error_and_the_next_attempt_writes_it() {
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        for effect in [FaultEffect::Io, FaultEffect::NoSpace] {
            let sim = SimMedium::new(SimOptions::new(Durability::Process));
            format(sim.clone(), &small()).expect("formatted");
            let open = || Store::open(sim.clone(), OpenOptions::default()).expect("opened").0;
            let store = open();
            store.create_pool("p", &PoolOptions { mode, ..pool_options() }).expect("created");
            store.close().expect("closed");
            let store = open();
            let file = sim.list("puddles").expect("listed").remove(0);
            let file = format!("puddles/{file}");
            let closed = stamp(&sim, &file);
            let point = FaultPoint::Operation(Operation::Write);
            sim.inject(Fault::once(point, 0, effect).on(&file));
            let error = store.open_pool("p", Access::ReadWrite).expect_err("no stamp").to_string();
            assert!(error.contains(&file), "{error}");
            assert_eq!((sim.fault_hits(), stamp(&sim, &file)), (1, closed));
            sim.clear_faults();
            drop(store.open_pool("p", Access::ReadWrite).expect("a second attempt"));
            let opened = stamp(&sim, &file);
            assert!(opened != 0 && is_era(opened), "{opened:#x}");
            store.close().expect("closed");
            assert!(!is_era(stamp(&sim, &file)), "sealed");
        }
    }
}

/// What a backup takes for damaged gets no stamp in the copy, and is refused there for good. So a
/// read that fails once is no damage.
#[test]
fn a_read_that_fails_once_in_a_backup_costs_no_pool_of_the_copy() {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    format(sim.clone(), &small()).expect("formatted");
    let open = || Store::open(sim.clone(), OpenOptions::default()).expect("opened").0;
    let store = open();
    store.create_pool("p", &pool_options()).expect("created");
    store.close().expect("closed");
    let file = format!("puddles/{}", sim.list("puddles").expect("listed")[0]);
    let (store, to) = (open(), Dir::new());
    let mut backup = store.begin_backup(&to.path()).expect("begun");
    backup.copy_ahead(&mut |_, _| true).expect("copied");
    let read = FaultPoint::Operation(Operation::Read);
    sim.inject(Fault::once(read, 0, FaultEffect::Io).on(&file));
    backup.copy_held().expect("held");
    assert_eq!(sim.fault_hits(), 1);
    let report = backup.finish().and_then(BackedUp::durable).expect("finished");
    store.close().expect("closed");
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    let copy = to.open().0;
    drop(copy.open_pool("p", Access::ReadOnly).expect("whole"));
    copy.close().expect("closed");
}
