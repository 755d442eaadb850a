//! Spare puddles (PUD-11): where they come from, what taking one costs, and that nothing of a
//! removed pool is left in one.

use crate::common::{Dir, pool_options, small};
use cenote_layout::header::read;
use cenote_layout::puddle::{PuddleHeader, Role};
use cenote_medium::sim::{self, Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, Operation};
use cenote_store::{
    Access, Damage, OpenOptions, PoolHandle, PoolOptions, Store, StoreError, format,
};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A pool of the root puddle and one of 1 MiB, every page of them written to.
fn filled(store: &Store, name: &str) -> PoolHandle {
    store.create_pool(name, &pool_options()).unwrap();
    let pool = store.open_pool(name, Access::ReadWrite).unwrap();
    pool.take_puddle(MIB).unwrap();
    for puddle in pool.puddles() {
        for at in (puddle.body_addr()..puddle.body_addr() + puddle.body_len()).step_by(4096) {
            // SAFETY: inside a puddle that is mapped for writing.
            unsafe { *(at as *mut u64) = 0xdead };
        }
    }
    pool
}

fn is_zero(pool: &PoolHandle) -> bool {
    pool.puddles().iter().all(|puddle| {
        pool.store().ensure_mapped(puddle).unwrap();
        let len = puddle.body_len() as usize;
        // SAFETY: just mapped, and no code writes to it.
        let body = unsafe { core::slice::from_raw_parts(puddle.body_addr() as *const u8, len) };
        body.iter().all(|&byte| byte == 0)
    })
}

fn simulated(options: OpenOptions) -> (Arc<SimMedium>, Store) {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    format(sim.clone(), &small()).unwrap();
    let (store, _) = Store::open(sim.clone(), options).unwrap();
    (sim, store)
}

#[test]
fn puddles_of_a_removed_pool_are_taken_by_the_next_one_and_hold_zeros() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let size = pool_options().puddle_size;
    let old = filled(&store, "old");
    let (files, free) =
        (old.puddles().iter().map(|p| p.uuid()).collect::<Vec<_>>(), store.info().window_free);
    drop(old);
    store.remove_pool("old").unwrap();
    let info = store.info();
    assert_eq!((info.spare_puddles, info.spare_bytes, info.pools), (2, size + MIB, 0));
    assert_eq!(info.window_free, free, "spares keep their addresses");

    store.create_pool("new", &pool_options()).unwrap();
    let pool = store.open_pool("new", Access::ReadWrite).unwrap();
    pool.take_puddle(MIB).unwrap();
    assert_eq!(pool.puddles().iter().map(|p| p.uuid()).collect::<Vec<_>>(), files);
    assert_eq!((store.info().spare_puddles, store.info().window_free), (0, free));
    assert!(is_zero(&pool));
    drop(pool);
    store.close().unwrap();

    let (store, report) = dir.open();
    assert!(report.damage.is_empty() && report.clean, "{report:?}");
    assert!(is_zero(&store.open_pool("new", Access::ReadWrite).unwrap()));
}

#[test]
fn taking_a_spare_makes_no_file_and_neither_lists_nor_syncs_the_directory() {
    let (sim, store) = simulated(OpenOptions::default());
    drop(filled(&store, "old"));
    store.remove_pool("old").unwrap();
    store.create_pool("other", &PoolOptions { puddle_size: 2 * MIB, ..pool_options() }).unwrap();
    let pool = store.open_pool("other", Access::ReadWrite).unwrap();
    for op in [
        Operation::Create,
        Operation::Remove,
        Operation::SyncDirectory,
        Operation::List,
        Operation::Truncate,
    ] {
        sim.inject(Fault::once(FaultPoint::Operation(op), 0, FaultEffect::Io));
    }
    pool.take_puddle(MIB).unwrap();
    assert_eq!((sim.fault_hits(), store.info().spare_puddles), (0, 1));
    // The same without a spare makes a file, and fails here.
    assert!(pool.take_puddle(MIB).is_err());
    assert_eq!(sim.fault_hits(), 1);
}

#[test]
fn a_puddle_made_ahead_is_what_growth_takes_and_a_close_names_it() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let files = || std::fs::read_dir(dir.file("puddles")).unwrap().count();
    pool.expect_puddle(MIB);
    pool.expect_puddle(2 * MIB);
    let taken = pool.take_puddle(MIB).unwrap().uuid();
    assert_eq!(
        (files(), store.info().spare_puddles),
        (2, 0),
        "one is made ahead at a time, and taken"
    );
    pool.expect_puddle(MIB);
    let puddles = store.info().puddles;
    drop(pool);
    store.close().unwrap();
    assert_eq!(files(), 3);

    let (store, report) = dir.open();
    assert_eq!((report.orphans_removed, store.info().spare_puddles), (0, 1));
    assert_eq!(store.info().puddles, puddles + 1);
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    assert_ne!(pool.take_puddle(MIB).unwrap().uuid(), taken);
    assert_eq!((files(), store.info().spare_puddles), (3, 0));
    assert!(is_zero(&pool));
    pool.expect_puddle(MIB);
    store.clone().abandon();
    drop((pool, store));
    let (store, report) = dir.open();
    assert_eq!(
        (report.orphans_removed, store.info().spare_puddles),
        (1, 0),
        "without a close it is an orphan"
    );
}

#[test]
fn taking_what_was_made_ahead_is_one_batch_of_the_catalog() {
    let (sim, store) = simulated(OpenOptions::default());
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    // Both files of the catalog, each written once and synced once, after one look at the
    // superblock (the fence); and the file's stamp. Nothing else is asked of the medium but the
    // mapping.
    let budget = [(Operation::Write, 3), (Operation::Sync, 2), (Operation::Read, 1)];
    let others =
        [Operation::Create, Operation::Examine, Operation::Remove, Operation::SyncDirectory];
    for ahead in [true, false] {
        if ahead {
            pool.expect_puddle(MIB);
        }
        let faults = budget.into_iter().chain(others.map(|op| (op, 0)));
        faults.for_each(|(op, skip)| {
            sim.inject(Fault::once(FaultPoint::Operation(op), skip, FaultEffect::Io))
        });
        // The same without one made ahead makes a file, and fails here.
        assert_eq!((pool.take_puddle(MIB).is_ok(), sim.fault_hits() > 0), (ahead, !ahead));
        sim.clear_faults();
    }
}

#[test]
fn what_was_made_ahead_for_one_pool_is_given_to_another_as_its_own() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let pools = ["a", "b"].map(|name| {
        store.create_pool(name, &pool_options()).unwrap();
        store.open_pool(name, Access::ReadWrite).unwrap()
    });
    pools[0].expect_puddle(MIB);
    let taken = pools[1].take_puddle(MIB).unwrap().uuid();
    // A second one, for a pool that has its own by then.
    pools[0].expect_puddle(2 * MIB);
    pools[0].take_puddle(MIB).unwrap();
    pools[0].take_puddle(2 * MIB).unwrap();
    assert!(pools.iter().all(is_zero));
    drop(pools);
    store.close().unwrap();
    let (store, report) = dir.open();
    assert!(report.damage.is_empty() && report.orphans_removed == 0, "{report:?}");
    let pool = store.open_pool("b", Access::ReadWrite).unwrap();
    assert!(pool.puddles().iter().any(|puddle| puddle.uuid() == taken));
    assert!(is_zero(&pool) && is_zero(&store.open_pool("a", Access::ReadWrite).unwrap()));
}

#[test]
fn spares_are_bounded_and_none_are_kept_where_none_are_wanted() {
    let dir = Dir::formatted();
    let bound = pool_options().puddle_size + MIB / 2;
    let (store, _) =
        dir.try_open(OpenOptions { spare_bytes_max: bound, ..OpenOptions::default() }).unwrap();
    drop(filled(&store, "old"));
    store.remove_pool("old").unwrap();
    assert_eq!(store.info().spare_bytes, pool_options().puddle_size, "the larger one is too much");
    store.create_pool("p", &PoolOptions { puddle_size: 2 * MIB, ..pool_options() }).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    pool.expect_puddle(MIB);
    drop(pool);
    store.close().unwrap();
    let (store, _) =
        dir.try_open(OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() }).unwrap();
    assert_eq!(store.info().spare_puddles, 1);
    // What is there is taken all the same.
    store.create_pool("q", &pool_options()).unwrap();
    store.remove_pool("q").unwrap();
    assert_eq!(store.info().spare_puddles, 0);
}

#[test]
fn a_full_window_or_disk_takes_the_spares_before_anything_fails() {
    let (sim, store) = simulated(OpenOptions::default());
    drop(filled(&store, "old"));
    store.remove_pool("old").unwrap();
    let all = store.info().window_free + 4 * MIB; // two slots of 2 MiB
    let options = PoolOptions { puddle_size: all, ..pool_options() };
    store.refuse_new_pool("all", &options).unwrap();
    store.create_pool("all", &options).unwrap();
    assert_eq!((store.info().spare_puddles, sim.list("puddles").unwrap().len()), (0, 1));
    store.remove_pool("all").unwrap();
    assert_eq!(store.info().spare_puddles, 0, "it is too large to be kept");

    drop(filled(&store, "old"));
    store.remove_pool("old").unwrap();
    sim.inject(Fault::once(FaultPoint::Operation(Operation::Create), 0, FaultEffect::NoSpace));
    store.create_pool("other", &PoolOptions { puddle_size: 2 * MIB, ..pool_options() }).unwrap();
    assert_eq!((sim.fault_hits(), store.info().spare_puddles), (1, 0));
}

#[test]
fn what_fails_while_a_spare_is_made_fails_nothing_else() {
    let (sim, store) = simulated(OpenOptions::default());
    drop(filled(&store, "old"));
    // After the catalog's two.
    sim.inject(Fault::once(FaultPoint::Operation(Operation::Write), 2, FaultEffect::NoSpace));
    store.remove_pool("old").unwrap();
    assert_eq!((sim.fault_hits(), store.info().spare_puddles), (1, 2));
    store.create_pool("new", &pool_options()).unwrap();
    let pool = store.open_pool("new", Access::ReadWrite).unwrap();
    pool.take_puddle(MIB).unwrap();
    assert!(is_zero(&pool), "it was cleared when it was taken");
    sim.inject(Fault::once(FaultPoint::Operation(Operation::Create), 0, FaultEffect::NoSpace));
    pool.expect_puddle(MIB);
    assert_eq!(sim.fault_hits(), 2);
    pool.take_puddle(MIB).unwrap();
}

#[test]
fn a_spare_whose_file_is_gone_or_short_costs_nothing_but_itself() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let old = filled(&store, "old");
    let names: Vec<String> = old
        .puddles()
        .iter()
        .map(|p| p.uuid().to_hex().iter().map(|b| char::from(*b)).collect())
        .collect();
    drop(old);
    store.remove_pool("old").unwrap();
    store.close().unwrap();
    let path = |name: &String| dir.file("puddles").join(name);
    std::fs::remove_file(path(&names[0])).unwrap();
    std::fs::File::options().write(true).open(path(&names[1])).unwrap().set_len(4096).unwrap();
    {
        let (store, report) = dir.try_open(OpenOptions::read_only()).unwrap();
        assert_eq!((report.damage.len(), store.info().spare_puddles), (1, 2));
    }
    let (store, report) = dir.open();
    assert!(
        matches!(
            &report.damage[..],
            [Damage::Puddle { detail, .. }] if detail.contains("nothing was in it")
        ),
        "{:?}",
        report.damage
    );
    assert_eq!(store.info().spare_puddles, 1);
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    pool.take_puddle(MIB).unwrap();
    assert!(is_zero(&pool));
    assert_eq!((store.info().spare_puddles, path(&names[1]).exists()), (0, false));
    drop(pool);
    store.close().unwrap();
    assert!(dir.open().1.damage.is_empty());
}

#[test]
fn a_read_only_open_leaves_spares_as_they_are() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    drop(filled(&store, "old"));
    store.remove_pool("old").unwrap();
    store.close().unwrap();
    let before = dir.contents();
    let headers = before
        .iter()
        .filter(|(name, _)| name.starts_with("puddles/"))
        .map(|(_, bytes)| Role::from_u32(read::<PuddleHeader>(bytes, false).unwrap().role));
    assert_eq!(headers.collect::<Vec<_>>(), [Some(Role::Spare); 2]);
    let (store, _) = dir.try_open(OpenOptions::read_only()).unwrap();
    assert_eq!(store.info().spare_puddles, 2);
    assert!(matches!(store.create_pool("p", &pool_options()), Err(StoreError::ReadOnly { .. })));
    drop(store);
    assert_eq!(dir.contents(), before);
}

#[test]
fn a_crash_of_the_machine_leaves_spares_that_hold_nothing() {
    let (sim, store) = simulated(OpenOptions::default());
    drop(filled(&store, "old"));
    store.remove_pool("old").unwrap();
    let image = sim.image_now(sim::CrashKind::Power);
    store.abandon();
    let (store, report) =
        Store::open(SimMedium::from_image(&image), OpenOptions::default()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert_eq!(store.info().spare_puddles, 2);
    store.create_pool("new", &pool_options()).unwrap();
    let pool = store.open_pool("new", Access::ReadWrite).unwrap();
    pool.take_puddle(MIB).unwrap();
    assert!(is_zero(&pool));
}
