//! Recovery at open, on the simulated medium: logs are replayed before anybody sees data, within
//! what their owner could write.

use crate::common::{pool_options, small};
use cenote_layout::log::EntryKind;
use cenote_layout::log_space::LogSpaceEntry;
use cenote_log::{Body, LogWriter, Outcome, SegmentSource};
use cenote_medium::sim::{self, Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, Operation};
use cenote_store::{
    Access, CrashKind, Damage, OpenOptions, OpenReport, PoolHandle, PowerLossPolicy, Store,
    StoreError, format,
};
use cenote_testkit::child;
use std::sync::Arc;
use zerocopy::FromBytes as _;

const SMALL_LOGS: u64 = 16 << 10;

pub(crate) fn options() -> OpenOptions {
    OpenOptions { log_puddle_size: SMALL_LOGS, ..OpenOptions::default() }
}

pub(crate) fn as_medium(sim: &Arc<SimMedium>) -> Arc<dyn Medium> {
    let medium: Arc<dyn Medium> = sim.clone();
    medium
}

pub(crate) fn open(sim: &Arc<SimMedium>, options: OpenOptions) -> (Store, OpenReport) {
    Store::open(as_medium(sim), options).unwrap()
}

/// A fresh store at this level, with pool "p" open, its first word 1, closed once so that this is
/// durable.
pub(crate) fn prepared(durability: Durability) -> (Arc<SimMedium>, Store, PoolHandle) {
    let sim = SimMedium::new(SimOptions::new(durability));
    format(as_medium(&sim), &small()).unwrap();
    let (store, _) = open(&sim, options());
    store.create_pool("p", &pool_options()).unwrap();
    store.create_pool("idle", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    set(word(&pool, 0), 1);
    drop(pool);
    store.close().unwrap();
    let (store, _) = open(&sim, options());
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    (sim, store, pool)
}

/// Address of a word of the root puddle, each in a line of its own.
pub(crate) fn word(pool: &PoolHandle, index: u64) -> u64 {
    pool.root_puddle().unwrap().body_addr() + index * 64
}

pub(crate) fn get(addr: u64) -> u64 {
    // SAFETY: tests pass addresses in puddles that are mapped.
    unsafe { *(addr as *const u64) }
}

fn set(addr: u64, value: u64) {
    // SAFETY: tests pass addresses in puddles that are mapped for writing.
    unsafe { *(addr as *mut u64) = value }
}

struct Segments(Store, u64);

impl SegmentSource for Segments {
    fn segment(
        &mut self,
        number: u32,
    ) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.grow_log(self.1, number)?)
    }
}

/// Takes a log and writes undo entries for `words`, then changes them to `value`; neither commits
/// nor gives the log back.
pub(crate) fn half_a_transaction(
    store: &Store,
    pool: &PoolHandle,
    words: std::ops::Range<u64>,
    value: u64,
) {
    let lease = store.acquire_log().unwrap();
    let source = Box::new(Segments(store.clone(), lease.log_id()));
    // SAFETY: the log is ours and mapped until the store is dropped, which the writer does not
    // outlive.
    let mut writer =
        unsafe { LogWriter::attach(lease.body(), store.persistence(), source) }.unwrap();
    for index in words {
        let addr = word(pool, index);
        // SAFETY: eight bytes of the puddle.
        unsafe { writer.append(EntryKind::Undo, addr, 8, addr as *const u8) }.unwrap();
        writer.fence();
        set(addr, value);
    }
}

/// Crashes and gives what the next opener finds.
pub(crate) fn crash(
    sim: &SimMedium,
    store: Store,
    pool: PoolHandle,
    kind: sim::CrashKind,
) -> Arc<SimMedium> {
    let image = match kind {
        sim::CrashKind::Process => sim.state_now().image_process(),
        _ => sim.state_now().image_latest(),
    };
    drop(pool);
    store.abandon();
    SimMedium::from_image(&image)
}

#[test]
fn half_a_transaction_is_rolled_back_by_the_next_opener() {
    for durability in [Durability::Process, Durability::Power] {
        let (sim, store, pool) = prepared(durability);
        half_a_transaction(&store, &pool, 0..3, 99);
        let next = crash(&sim, store, pool, sim::CrashKind::Process);
        let (store, report) = open(&next, options());
        assert_eq!(report.crash, Some(CrashKind::Process));
        assert!(
            !report.clean && report.damage.is_empty() && report.not_covered.is_empty(),
            "{report:?}"
        );
        assert!(matches!(
            report.logs[..],
            [cenote_store::LogReport { outcome: Outcome::RolledBack { entries: 3 }, .. }]
        ));
        let pool = store.open_pool("p", Access::ReadWrite).unwrap();
        assert_eq!([0, 1, 2].map(|i| get(word(&pool, i))), [1, 0, 0]);
        // The log puddles of the dead are used again.
        let puddles = store.info().puddles;
        let lease = store.acquire_log().unwrap();
        assert_eq!(store.info().puddles, puddles);
        store.release_log(lease);
        drop(pool);
        store.close().unwrap();
        let (_, report) = open(&next, options());
        assert!(report.clean && report.logs.is_empty(), "{report:?}");
    }
}

/// Where the entries of log spaces lie that name a segment, and in which file.
fn entries(sim: &SimMedium) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for name in sim.list("puddles").unwrap() {
        let name = format!("puddles/{name}");
        let bytes = sim.read(&name).unwrap();
        for at in (0..bytes.len()).step_by(size_of::<LogSpaceEntry>()) {
            if LogSpaceEntry::read_from_prefix(&bytes[at..]).unwrap().0.is_valid() {
                found.push((name.clone(), at as u64));
            }
        }
    }
    found
}

#[test]
fn no_flipped_bit_of_a_log_spaces_entry_hides_the_log() {
    let (sim, store, pool) = prepared(Durability::Process);
    half_a_transaction(&store, &pool, 0..3, 99);
    let next = crash(&sim, store, pool, sim::CrashKind::Process);
    let image = next.image_now(sim::CrashKind::Process);
    let (file, at) = match &entries(&next)[..] {
        [one] => one.clone(),
        other => panic!("one log has one entry: {other:?}"),
    };
    drop(next);
    let (mut replayed, mut named) = (0, 0);
    for bit in 0..size_of::<LogSpaceEntry>() as u64 * 8 {
        let sim = SimMedium::from_image(&image);
        // SAFETY: the store is closed: nothing of it is mapped.
        assert!(unsafe { sim.flip_bit(&file, at + bit / 8, (bit % 8) as u8) });
        let (store, report) = open(&sim, options());
        let reader = || store.open_pool("p", Access::ReadOnly).unwrap();
        let words = || [0, 1, 2].map(|i| get(word(&reader(), i)));
        match (&report.logs[..], &report.damage[..]) {
            ([log], []) => {
                assert_eq!(log.outcome, Outcome::RolledBack { entries: 3 }, "bit {bit}");
                assert_eq!(words(), [1, 0, 0], "bit {bit}");
                store.open_pool("p", Access::ReadWrite).unwrap();
                replayed += 1;
            }
            ([], [Damage::LogSpace { pools, .. } | Damage::Log { pools, .. }]) => {
                assert_eq!(pools.len(), 1, "bit {bit}");
                let refused = store.open_pool("p", Access::ReadWrite);
                assert!(
                    matches!(refused, Err(StoreError::PoolLogDamaged { .. })),
                    "bit {bit}: {refused:?}"
                );
                named += 1;
            }
            _ => panic!("bit {bit}: {report:?}"),
        }
        store.abandon();
    }
    assert_eq!(
        (replayed, named),
        (1, 511),
        "the state is made up for by the checksum; the rest is damage"
    );
}

#[test]
fn a_log_space_entry_that_is_gone_before_another_is_damage() {
    let (sim, store, pool) = prepared(Durability::Process);
    half_a_transaction(&store, &pool, 0..3, 99);
    let another = store.acquire_log().unwrap();
    store.release_log(another);
    let next = crash(&sim, store, pool, sim::CrashKind::Process);
    let found = entries(&next);
    assert_eq!(found.len(), 2);
    // SAFETY: no store is open on this medium.
    unsafe { next.write_at(&found[0].0, found[0].1, &[0; size_of::<LogSpaceEntry>()]) }.unwrap();
    let (_, report) = open(&next, options());
    assert!(
        matches!(
            &report.damage[..],
            [Damage::LogSpace { detail, .. }] if detail.contains("entry 0 is damaged")
        ),
        "{report:?}"
    );
}

#[test]
fn a_transaction_over_several_segments_is_rolled_back_whole() {
    let (sim, store, pool) = prepared(Durability::Power);
    half_a_transaction(&store, &pool, 0..1500, 7);
    let next = crash(&sim, store, pool, sim::CrashKind::Power);
    let (store, report) = open(&next, options());
    assert_eq!(report.crash, Some(CrashKind::Power));
    assert!(report.damage.is_empty() && report.not_covered.is_empty(), "{report:?}");
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    assert_eq!(get(word(&pool, 0)), 1);
    assert!((1..1500).all(|i| get(word(&pool, i)) == 0));
    drop(pool);
}

#[test]
fn a_read_only_open_replays_in_private_and_changes_nothing() {
    let (sim, store, pool) = prepared(Durability::Process);
    half_a_transaction(&store, &pool, 0..3, 99);
    let next = crash(&sim, store, pool, sim::CrashKind::Process);
    let before = next.image_now(sim::CrashKind::Process).hash();
    let (store, report) = open(&next, OpenOptions { access: Access::ReadOnly, ..options() });
    assert!(matches!(report.logs[0].outcome, Outcome::RolledBack { entries: 3 }));
    let pool = store.open_pool("p", Access::ReadOnly).unwrap();
    assert_eq!([0, 1, 2].map(|i| get(word(&pool, i))), [1, 0, 0]);
    drop(pool);
    store.close().unwrap();
    assert_eq!(next.image_now(sim::CrashKind::Process).hash(), before, "a read-only open wrote");
    // The next writer still has it to do.
    let (_, report) = open(&next, options());
    assert!(matches!(report.logs[0].outcome, Outcome::RolledBack { entries: 3 }));
}

#[test]
fn a_log_that_names_what_its_owner_could_not_write_is_set_aside_and_its_pools_stay_readable() {
    let (sim, store, pool) = prepared(Durability::Process);
    let idle = store.open_pool("idle", Access::ReadOnly).unwrap();
    let foreign = word(&idle, 0);
    let lease = store.acquire_log().unwrap();
    let source = Box::new(Segments(store.clone(), lease.log_id()));
    // SAFETY: as in `half_a_transaction`.
    let mut writer =
        unsafe { LogWriter::attach(lease.body(), store.persistence(), source) }.unwrap();
    let evil = 666u64;
    for addr in [word(&pool, 0), foreign] {
        // SAFETY: `evil` is eight readable bytes.
        unsafe { writer.append(EntryKind::Undo, addr, 8, (&raw const evil).cast()) }.unwrap();
    }
    writer.fence();
    drop((writer, idle));
    let mut next = crash(&sim, store, pool, sim::CrashKind::Process);
    for round in 0..3 {
        let (store, report) = open(&next, options());
        assert!(
            matches!(report.damage[..], [Damage::Log { .. }]),
            "round {round}: {:?}",
            report.damage
        );
        match store.open_pool("p", Access::ReadWrite).unwrap_err() {
            StoreError::PoolLogDamaged { damage, .. } => assert_eq!(damage.len(), 1),
            other => panic!("{other}"),
        }
        let pool = store.open_pool("p", Access::ReadOnly).unwrap();
        assert_eq!(get(word(&pool, 0)), 1, "nothing of a damaged log is applied");
        drop(pool);
        let idle = store.open_pool("idle", Access::ReadWrite).unwrap();
        assert_eq!(get(word(&idle, 0)), 0);
        let lease = store.acquire_log().unwrap();
        store.release_log(lease);
        drop(idle);
        if round == 2 {
            store.remove_pool("p").unwrap();
        }
        store.close().unwrap();
        next = SimMedium::from_image(&next.image_now(sim::CrashKind::Process));
    }
    let (store, report) = open(&next, options());
    assert_eq!(store.info().clients, 0, "a log that concerns no pool is given up");
    assert!(store.pools().len() == 1, "{report:?}");
}

#[test]
fn a_log_that_needs_a_missing_puddle_waits_for_it() {
    let (sim, store, pool) = prepared(Durability::Process);
    half_a_transaction(&store, &pool, 0..3, 99);
    let root = pool.root_puddle().unwrap().uuid();
    let next = crash(&sim, store, pool, sim::CrashKind::Process);
    let mut image = next.image_now(sim::CrashKind::Process);
    let name = image.names().into_iter().find(|n| n.contains(&hex(root))).unwrap();
    let contents = image.file(&name).unwrap();
    image.remove(&name);
    let without = SimMedium::from_image(&image);
    let (store, report) = open(&without, options());
    assert!(report.damage.iter().any(|d| matches!(d, Damage::Log { .. })), "{:?}", report.damage);
    store.close().unwrap();
    let mut image = without.image_now(sim::CrashKind::Process);
    image.set_file(&name, &contents);
    let restored = SimMedium::from_image(&image);
    let (store, report) = open(&restored, options());
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    assert!(matches!(report.logs[0].outcome, Outcome::RolledBack { entries: 3 }));
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    assert_eq!(get(word(&pool, 0)), 1);
}

fn hex(uuid: cenote_layout::id::Uuid) -> String {
    uuid.to_hex().iter().map(|b| char::from(*b)).collect()
}

#[test]
fn what_a_loss_of_power_may_have_torn_opens_only_as_the_caller_chose_and_that_is_remembered() {
    let (sim, store, pool) = prepared(Durability::Process);
    half_a_transaction(&store, &pool, 0..3, 99);
    let next = crash(&sim, store, pool, sim::CrashKind::Power);
    let policy = |power_loss| OpenOptions { power_loss, ..options() };
    for round in 0..2 {
        let (store, report) = open(&next, policy(PowerLossPolicy::Refuse));
        assert_eq!(report.not_covered.len(), 1, "round {round}: {report:?}");
        assert_eq!(report.not_covered[0].1, "p");
        for access in [Access::ReadOnly, Access::ReadWrite] {
            assert!(matches!(store.open_pool("p", access), Err(StoreError::PoolNotCovered { .. })));
        }
        store.open_pool("idle", Access::ReadWrite).unwrap();
        store.close().unwrap();
        let (store, _) = open(&next, policy(PowerLossPolicy::ReadOnly));
        assert!(!store.open_pool("p", Access::ReadWrite).unwrap().is_writable());
        store.close().unwrap();
    }
    let (store, report) = open(&next, policy(PowerLossPolicy::AsIs));
    assert_eq!(report.not_covered.len(), 1, "named once more: {report:?}");
    assert!(store.open_pool("p", Access::ReadWrite).unwrap().is_writable());
    store.close().unwrap();
    let (store, report) = open(&next, policy(PowerLossPolicy::Refuse));
    assert!(report.not_covered.is_empty() && report.damage.is_empty(), "{report:?}");
    assert!(store.open_pool("p", Access::ReadWrite).unwrap().is_writable());
    assert_eq!(store.info().clients, 0);
}

#[test]
fn a_clean_close_covers_a_loss_of_power_at_either_level() {
    for durability in [Durability::Process, Durability::Power] {
        let (sim, store, pool) = prepared(durability);
        set(word(&pool, 0), 42);
        drop(pool);
        store.close().unwrap();
        let next = SimMedium::from_image(&sim.state_now().image_oldest());
        let (store, report) = open(&next, options());
        assert!(report.clean && report.not_covered.is_empty(), "{report:?}");
        let pool = store.open_pool("p", Access::ReadOnly).unwrap();
        assert_eq!(get(word(&pool, 0)), 42);
    }
}

#[test]
fn pages_of_a_crashed_session_are_synced_by_the_close_of_the_one_that_recovered_it() {
    let (sim, store, pool) = prepared(Durability::Process);
    set(word(&pool, 5), 55);
    let next = crash(&sim, store, pool, sim::CrashKind::Process);
    // The recovering session never opens the pool.
    open(&next, options()).0.close().unwrap();
    let last = SimMedium::from_image(&next.state_now().image_oldest());
    let (store, report) = open(&last, options());
    assert!(report.clean, "{report:?}");
    let pool = store.open_pool("p", Access::ReadOnly).unwrap();
    assert_eq!(get(word(&pool, 5)), 55);
}

#[test]
fn raising_the_level_after_a_crash_makes_what_was_stored_below_it_durable() {
    let (sim, store, pool) = prepared(Durability::Power);
    drop(pool);
    store.close().unwrap();
    let (store, _) = open(&sim, OpenOptions { durability: Some(Durability::Process), ..options() });
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    set(word(&pool, 5), 55);
    // What the process leaves is in caches still, so the same medium goes on.
    drop(pool);
    store.abandon();
    let (store, report) = open(&sim, options());
    assert_eq!((report.crash, store.durability()), (Some(CrashKind::Process), Durability::Power));
    // Power fails, and whatever was not made durable is lost.
    let last = SimMedium::from_image(&sim.state_now().image_oldest());
    store.abandon();
    let (store, report) = open(&last, options());
    assert_eq!(report.crash, Some(CrashKind::Power));
    assert!(report.not_covered.is_empty(), "{report:?}");
    let pool = store.open_pool("p", Access::ReadOnly).unwrap();
    assert_eq!(get(word(&pool, 5)), 55);
}

#[test]
fn a_full_disk_is_an_error_of_the_call_and_changes_nothing() {
    let (sim, store, pool) = prepared(Durability::Power);
    for skip in 0..30 {
        let (pools, puddles, batch) =
            (store.pools().len(), pool.puddles().len(), store.info().catalog_batch);
        for what in 0..2 {
            sim.inject(Fault::once(FaultPoint::AnyOperation, skip, FaultEffect::NoSpace));
            let hits = sim.fault_hits();
            let result = match what {
                0 => store.create_pool("new", &pool_options()).map(drop),
                _ => pool.take_puddle(256 << 10).map(drop),
            };
            let hit = sim.fault_hits() > hits;
            sim.clear_faults();
            if let Err(error) = result {
                assert!(hit && error.is_no_space(), "{error}");
                assert_eq!(
                    (store.pools().len(), pool.puddles().len()),
                    (pools, puddles),
                    "{error}"
                );
                if store.info().poisoned.is_some() {
                    return; // a sync said so: see the next test
                }
                assert_eq!(store.info().catalog_batch, batch);
                continue;
            }
            assert!(what == 1 || store.remove_pool("new").is_ok());
            if !hit {
                return;
            }
        }
    }
}

#[test]
fn after_a_failed_sync_nothing_more_is_acknowledged_and_the_store_does_not_count_as_closed() {
    for (operation, name) in [
        (Operation::Sync, "catalog.0"),
        (Operation::Sync, "catalog.1"),
        (Operation::Sync, "puddles/"),
        (Operation::SyncDirectory, ""),
    ] {
        let (sim, store, pool) = prepared(Durability::Power);
        sim.inject(Fault::once(FaultPoint::Operation(operation), 0, FaultEffect::Io).on(name));
        assert!(store.create_pool("new", &pool_options()).is_err(), "{operation} {name}");
        sim.clear_faults();
        assert!(store.info().poisoned.is_some());
        for _ in 0..2 {
            assert!(matches!(
                store.create_pool("other", &pool_options()),
                Err(StoreError::Poisoned { .. })
            ));
            assert!(matches!(store.acquire_log(), Err(StoreError::Poisoned { .. })));
            assert!(matches!(pool.take_puddle(256 << 10), Err(StoreError::Poisoned { .. })));
            assert!(matches!(store.check_usable(), Err(StoreError::Poisoned { .. })));
        }
        drop(pool);
        assert!(matches!(store.close(), Err(StoreError::Poisoned { .. })));
        let (_, report) = open(&sim, options());
        assert!(!report.clean && report.damage.is_empty(), "{report:?}");
    }
}

#[test]
fn every_failing_operation_of_an_open_is_an_error_and_the_next_open_works() {
    for skip in 0.. {
        let (sim, store, pool) = prepared(Durability::Power);
        half_a_transaction(&store, &pool, 0..2, 9);
        let next = crash(&sim, store, pool, sim::CrashKind::Power);
        next.inject(Fault::once(FaultPoint::AnyOperation, skip, FaultEffect::Io));
        let failed =
            Store::open(as_medium(&next), options()).map(|(store, _)| store.abandon()).is_err();
        let hit = next.fault_hits() > 0;
        next.clear_faults();
        let (store, report) = open(&next, options());
        assert!(report.damage.is_empty(), "skip {skip}: {:?}", report.damage);
        let pool = store.open_pool("p", Access::ReadWrite).unwrap();
        assert_eq!([0, 1].map(|i| get(word(&pool, i))), [1, 0], "skip {skip}");
        drop(pool);
        if !hit {
            assert!(!failed);
            assert!(skip > 5);
            return;
        }
    }
}

#[test]
fn half_a_transaction_of_a_killed_process_is_undone_by_writers_and_for_readers() {
    const TEST: &str =
        "recovery::half_a_transaction_of_a_killed_process_is_undone_by_writers_and_for_readers";
    if let Some((_, path)) = child::task() {
        let (store, _) = Store::open(crate::common::real(&path), options()).unwrap();
        let pool = store.open_pool("p", Access::ReadWrite).unwrap();
        half_a_transaction(&store, &pool, 0..200, 99);
        std::process::abort();
    }
    let dir = crate::common::Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    (0..200).for_each(|i| set(word(&pool, i), i));
    drop(pool);
    store.close().unwrap();
    let (status, said) = child::ended(&mut child::with_task(TEST, "die", &dir.path()));
    assert!(!status.success(), "{said}");
    let before = dir.contents();
    for access in [Access::ReadOnly, Access::ReadOnly, Access::ReadWrite] {
        let (store, report) = dir.try_open(OpenOptions { access, ..options() }).unwrap();
        assert_eq!(report.crash, Some(CrashKind::Process));
        assert!(
            matches!(report.logs[0].outcome, Outcome::RolledBack { entries: 200 }),
            "{report:?}"
        );
        let pool = store.open_pool("p", access).unwrap();
        assert!((0..200).all(|i| get(word(&pool, i)) == i));
        drop(pool);
        store.close().unwrap();
        assert_eq!(before == dir.contents(), access == Access::ReadOnly);
    }
    assert!(dir.open().1.clean);
}
