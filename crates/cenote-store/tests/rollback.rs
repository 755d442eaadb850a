//! Control data that is whole by itself and not what it should be: rolled back, or about files that
//! are gone.

use crate::common::{Dir, pool_options};
use cenote_log::CrashKind;
use cenote_store::{Access, Damage, DamagePolicy, OpenError, OpenOptions, PoolStart};

const CATALOGS: [&str; 2] = ["catalog.0", "catalog.1"];

fn policy(damage: DamagePolicy) -> OpenOptions {
    OpenOptions { damage, ..OpenOptions::default() }
}

/// A store that was closed with pool "a", and once more with pools "a" and "b"; and both files of
/// the catalog as they were after the first time.
fn two_sessions() -> (Dir, [Vec<u8>; 2]) {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("a", &pool_options()).unwrap();
    store.close().unwrap();
    let older = CATALOGS.map(|name| dir.contents()[name].clone());
    let (store, _) = dir.open();
    store.create_pool("b", &pool_options()).unwrap();
    store.close().unwrap();
    (dir, older)
}

fn roll_back(dir: &Dir, older: &[Vec<u8>; 2]) {
    for (name, contents) in CATALOGS.iter().zip(older) {
        std::fs::write(dir.file(name), contents).unwrap();
    }
}

#[test]
fn both_catalog_files_rolled_back_together_are_noticed_and_left_alone() {
    let (dir, older) = two_sessions();
    let newer = CATALOGS.map(|name| dir.contents()[name].clone());
    roll_back(&dir, &older);
    let before = dir.contents();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let error = dir.try_open(OpenOptions { access, ..OpenOptions::default() }).unwrap_err();
        let OpenError::CatalogRolledBack { found, at_least, .. } = error else { panic!("{error}") };
        assert!(found < at_least, "{found} {at_least}");
        assert!(error.to_string().contains(&format!("batch {at_least}")), "{error}");
    }
    assert_eq!(dir.contents(), before, "a failed open changed the medium");

    // What is left can be looked at, and every pool is doubtful: what is gone may have been about
    // it.
    let (store, report) = dir.try_open(policy(DamagePolicy::ReadOnly)).unwrap();
    assert!(report.demoted && report.damage.iter().any(Damage::is_lost), "{report:?}");
    let pool = store.open_pool("a", Access::ReadOnly).unwrap();
    assert!(
        pool.doubts().iter().any(|doubt| matches!(doubt, Damage::Catalog { .. })),
        "{:?}",
        pool.doubts()
    );
    drop(pool);
    store.close().unwrap();
    assert_eq!(dir.contents(), before);

    // The files of the pool that the catalog has forgotten are kept, and so is the knowledge that
    // something is missing.
    let (store, _) = dir.try_open(policy(DamagePolicy::SkipDamaged)).unwrap();
    store.create_pool("c", &pool_options()).unwrap();
    store.close().unwrap();
    assert!(matches!(dir.try_open(OpenOptions::default()), Err(OpenError::Catalog { .. })));
    let kept = before.keys().filter(|name| name.starts_with("puddles/"));
    assert!(
        kept.clone().count() >= 2 && kept.clone().all(|name| dir.contents().contains_key(name))
    );

    // Put right, as if nothing had been.
    roll_back(&dir, &newer);
    for (name, contents) in before.iter().filter(|(name, _)| *name == "superblock") {
        std::fs::write(dir.file(name), contents).unwrap();
    }
    assert_eq!(dir.open().0.pools().len(), 2);
}

#[test]
fn a_crash_after_a_change_of_the_catalog_is_no_rollback() {
    let (dir, older) = two_sessions();
    // A session that ends without closing has appended to the catalog what no superblock has seen.
    let (store, _) = dir.open();
    store.create_pool("c", &pool_options()).unwrap();
    store.abandon();
    let (store, report) = dir.open();
    assert!(report.damage.is_empty() && store.pools().len() == 3, "{report:?}");
    store.abandon();
    // This open has: nothing older passes any more, although no session closed the store.
    roll_back(&dir, &older);
    assert!(matches!(
        dir.try_open(OpenOptions::default()),
        Err(OpenError::CatalogRolledBack { .. })
    ));
}

#[test]
fn one_catalog_file_rolled_back_is_put_right_from_the_other() {
    let (dir, older) = two_sessions();
    std::fs::write(dir.file("catalog.0"), &older[0]).unwrap();
    let (store, report) = dir.open();
    assert!(
        report.damage.iter().all(|damage| !damage.is_lost()) && store.pools().len() == 2,
        "{report:?}"
    );
}

/// A store with a log puddle that no session uses any more, and its file.
fn with_spare_log() -> (Dir, String) {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let lease = store.acquire_log().unwrap();
    let addr = lease.addr();
    store.release_log(lease);
    let record = store.puddle_records().into_iter().find(|record| record.addr == addr).unwrap();
    store.close().unwrap();
    let hex: String = record.uuid.to_hex().iter().map(|b| char::from(*b)).collect();
    (dir, format!("puddles/{hex}"))
}

#[test]
fn a_missing_log_puddle_that_no_session_uses_is_reported_once_and_its_room_used_again() {
    let (dir, file) = with_spare_log();
    std::fs::remove_file(dir.file(&file)).unwrap();
    // Who only reads can only say so.
    for _ in 0..2 {
        let (store, report) = dir.try_open(OpenOptions::read_only()).unwrap();
        assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
        store.close().unwrap();
    }
    let (store, report) = dir.open();
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    let text = report.damage[0].to_string();
    assert!(text.contains("missing") && text.contains("record was removed"), "{text}");
    let free = store.info().window_free;
    let lease = store.acquire_log().unwrap();
    assert!(store.info().window_free < free, "a new log takes room");
    store.release_log(lease);
    store.close().unwrap();
    let (store, report) = dir.open();
    assert!(report.clean && report.damage.is_empty(), "{:?}", report.damage);
    store.close().unwrap();
}

#[test]
fn a_missing_log_puddle_that_is_in_use_stays_damage() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    drop(store.open_pool("p", Access::ReadWrite).unwrap());
    let lease = store.acquire_log().unwrap();
    let record =
        store.puddle_records().into_iter().find(|record| record.addr == lease.addr()).unwrap();
    store.abandon();
    let hex: String = record.uuid.to_hex().iter().map(|b| char::from(*b)).collect();
    std::fs::remove_file(dir.file(&format!("puddles/{hex}"))).unwrap();
    for _ in 0..2 {
        let (store, report) = dir.open();
        assert!(
            report.damage.iter().any(|damage| matches!(damage, Damage::Log { .. })),
            "{:?}",
            report.damage
        );
        let pool = store.open_pool("p", Access::ReadOnly).unwrap();
        assert!(pool.doubts().iter().any(|doubt| matches!(doubt, Damage::Log { .. })));
        assert_eq!(pool.start(), PoolStart::Dirty(CrashKind::Process));
        drop(pool);
        store.close().unwrap();
    }
}

#[test]
fn a_pool_is_found_fresh_clean_or_dirty() {
    let dir = Dir::formatted();
    let start = |name: &str, access| {
        let (store, _) = dir.try_open(OpenOptions { access, ..OpenOptions::default() }).unwrap();
        let listed = store.pools().into_iter().find(|pool| pool.record.name == name).unwrap().start;
        let pool = store.open_pool(name, access).unwrap();
        let found = pool.start();
        assert_eq!(listed, found);
        drop(pool);
        let again = store.open_pool(name, access).unwrap();
        assert_eq!(again.start(), found, "it stays what the session has found");
        drop(again);
        store.close().unwrap();
        found
    };
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    store.create_pool("idle", &pool_options()).unwrap();
    store.close().unwrap();
    assert_eq!(
        start("p", Access::ReadOnly),
        PoolStart::Fresh,
        "created by another process, and read"
    );
    assert_eq!(
        start("p", Access::ReadWrite),
        PoolStart::Fresh,
        "opened for writing for the first time"
    );
    assert_eq!(start("p", Access::ReadOnly), PoolStart::Clean);
    assert_eq!(start("p", Access::ReadWrite), PoolStart::Clean);
    let (store, _) = dir.open();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    store.clone().abandon();
    drop((pool, store));
    // A reader recovers nothing on the medium: the next opener finds the same.
    assert_eq!(start("p", Access::ReadOnly), PoolStart::Dirty(CrashKind::Process));
    assert_eq!(
        start("idle", Access::ReadOnly),
        PoolStart::Fresh,
        "a crash of others does not make it dirty"
    );
    assert_eq!(start("p", Access::ReadWrite), PoolStart::Dirty(CrashKind::Process));
    assert_eq!(start("p", Access::ReadWrite), PoolStart::Clean);
}
