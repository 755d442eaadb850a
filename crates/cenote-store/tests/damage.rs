//! What is damaged is named; what is not stays usable; nothing is made worse.

use crate::common::{Dir, pool_options};
use cenote_layout::id::PoolId;
use cenote_store::{Access, Damage, DamagePolicy, OpenError, OpenOptions, StoreError};

/// A store with pools "good" and "bad", the latter of three puddles with the numbers 0, 1 and 2 in
/// their bodies. Returns the file of each puddle of "bad".
fn two_pools() -> (Dir, Vec<String>) {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let mut files = Vec::new();
    for name in ["good", "bad"] {
        store.create_pool(name, &pool_options()).unwrap();
        let pool = store.open_pool(name, Access::ReadWrite).unwrap();
        for _ in 0..2 {
            pool.take_puddle(256 << 10).unwrap();
        }
        for puddle in pool.puddles() {
            // SAFETY: in the puddle, mapped for writing.
            unsafe { *(puddle.body_addr() as *mut u64) = u64::from(puddle.index()) };
            if name == "bad" {
                let hex: String = puddle.uuid().to_hex().iter().map(|b| char::from(*b)).collect();
                files.push(format!("puddles/{hex}"));
            }
        }
    }
    store.close().unwrap();
    (dir, files)
}

fn policy(damage: DamagePolicy) -> OpenOptions {
    OpenOptions { damage, ..OpenOptions::default() }
}

fn expect_bad_pool(dir: &Dir, index: u32, what: &str) {
    let (store, _) = dir.open();
    let pool = store.open_pool("good", Access::ReadWrite).unwrap();
    assert!(pool.is_writable(), "damage elsewhere does not concern this pool");
    drop(pool);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        match store.open_pool("bad", access).unwrap_err() {
            StoreError::PoolDamaged { damage, .. } => {
                assert_eq!(damage.len(), 1, "{damage:?}");
                assert!(
                    matches!(&damage[0], Damage::Puddle { index: i, .. } if *i == index),
                    "{damage:?}"
                );
                assert!(damage[0].to_string().contains(what), "{}", damage[0]);
            }
            other => panic!("{other}"),
        }
    }
    store.close().unwrap();
    for damage in [DamagePolicy::ReadOnly, DamagePolicy::SkipDamaged] {
        let (store, _) = dir.try_open(policy(damage)).unwrap();
        let pool = store.open_pool("bad", Access::ReadWrite).unwrap();
        assert!(!pool.is_writable() && pool.damage().len() == 1);
        let found: Vec<u64> = pool
            .puddles()
            .iter()
            // SAFETY: open for reading; the fault maps it.
            .map(|p| unsafe { *(p.body_addr() as *const u64) })
            .collect();
        let expected: Vec<u64> = (0..3).filter(|i| *i != u64::from(index)).collect();
        assert_eq!(found, expected);
        drop(pool);
        store.close().unwrap();
    }
}

#[test]
fn a_missing_puddle_costs_its_pool_only() {
    let (dir, files) = two_pools();
    std::fs::remove_file(dir.file(&files[1])).unwrap();
    let (store, report) = dir.open();
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    assert!(report.damage[0].to_string().contains("missing"), "{}", report.damage[0]);
    store.close().unwrap();
    expect_bad_pool(&dir, 1, "missing");
}

#[test]
fn a_truncated_puddle_costs_its_pool_only() {
    let (dir, files) = two_pools();
    dir.edit(&files[2], |bytes| bytes.truncate(100 << 10));
    expect_bad_pool(&dir, 2, "truncated");
    dir.edit(&files[2], |bytes| bytes.clear());
    expect_bad_pool(&dir, 2, "truncated");
}

#[test]
fn a_resized_puddle_costs_its_pool_only() {
    let (dir, files) = two_pools();
    dir.edit(&files[0], |bytes| bytes.resize(512 << 10, 0));
    expect_bad_pool(&dir, 0, "longer");
}

#[test]
fn a_damaged_or_foreign_puddle_header_costs_its_pool_only() {
    let (dir, files) = two_pools();
    dir.edit(&files[1], |bytes| bytes[80] ^= 4);
    expect_bad_pool(&dir, 1, "checksum");
    let other = std::fs::read(dir.file(&files[0])).unwrap();
    std::fs::write(dir.file(&files[1]), other).unwrap();
    expect_bad_pool(&dir, 1, "another puddle");
}

#[test]
fn a_damaged_pool_can_be_removed() {
    let (dir, files) = two_pools();
    std::fs::remove_file(dir.file(&files[1])).unwrap();
    let (store, _) = dir.open();
    store.remove_pool("bad").unwrap();
    store.close().unwrap();
    let (_, report) = dir.open();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

#[test]
fn damage_in_one_catalog_file_is_named_read_around_and_repaired() {
    let (dir, _) = two_pools();
    let whole = dir.contents();
    for file in ["catalog.0", "catalog.1"] {
        let damages: [fn(&mut Vec<u8>); 4] = [
            |b| b[300] ^= 1,
            |b| b.truncate(200),
            |b| b.clear(),
            |b| b.iter_mut().skip(100).take(300).for_each(|b| *b = 0xff),
        ];
        for (i, damage) in damages.iter().enumerate() {
            dir.edit(file, damage);
            let before = dir.contents();
            let (store, report) = dir.try_open(OpenOptions::read_only()).unwrap();
            assert!(!report.damage.is_empty(), "{file} {i}");
            assert_eq!(store.pools().len(), 2);
            store.close().unwrap();
            assert_eq!(before, dir.contents(), "a read-only open repaired something");
            let (store, report) = dir.open();
            assert_eq!(report.catalog_files_repaired, 1, "{file} {i}: {report:?}");
            assert!(report.damage.iter().all(|d| !d.is_lost()));
            assert_eq!(store.pools().len(), 2);
            store.close().unwrap();
            for name in ["catalog.0", "catalog.1"] {
                assert_eq!(dir.contents()[name], whole[name]);
            }
        }
        std::fs::remove_file(dir.file(file)).unwrap();
        dir.open().0.close().unwrap();
        assert_eq!(dir.contents()[file], whole[file]);
    }
}

#[test]
fn a_batch_lost_in_both_catalog_files_is_refused_or_skipped_and_never_costs_more() {
    let (dir, files) = two_pools();
    // The batch that created pool "bad": find its name.
    for file in ["catalog.0", "catalog.1"] {
        dir.edit(file, |bytes| {
            let at = bytes.windows(3).position(|w| w == b"bad").unwrap();
            bytes[at] = b'B';
        });
    }
    let before = dir.contents();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = dir.try_open(OpenOptions { access, ..OpenOptions::default() }).unwrap_err();
        assert!(matches!(error, OpenError::Catalog { .. }), "{error}");
        assert!(error.to_string().contains("batch"), "{error}");
    }
    let (store, report) = dir.try_open(policy(DamagePolicy::ReadOnly)).unwrap();
    assert!(report.demoted && !store.is_writable());
    store.open_pool("good", Access::ReadOnly).unwrap();
    assert!(store.close().is_ok());
    assert_eq!(before, dir.contents());

    let (store, report) = dir.try_open(policy(DamagePolicy::SkipDamaged)).unwrap();
    assert!(
        report.damage.iter().any(|d| matches!(d, Damage::Orphan { .. })),
        "{:?}",
        report.damage
    );
    let pool = store.open_pool("good", Access::ReadWrite).unwrap();
    assert!(matches!(
        store.open_pool("bad", Access::ReadOnly),
        Err(StoreError::PoolUnknown { .. })
    ));
    // Nothing new lands on top of what the lost records named.
    let id = store.create_pool("new", &pool_options()).unwrap();
    assert!(id > PoolId(2), "{id}");
    pool.take_puddle(256 << 10).unwrap();
    drop(pool);
    store.close().unwrap();
    for file in &files {
        assert_eq!(
            dir.contents().get(file),
            before.get(file),
            "a file that a lost record named was touched"
        );
    }
    // It is still refused by default, and what was added is there.
    assert!(matches!(dir.try_open(OpenOptions::default()), Err(OpenError::Catalog { .. })));
    let (store, _) = dir.try_open(policy(DamagePolicy::SkipDamaged)).unwrap();
    assert_eq!(store.open_pool("good", Access::ReadOnly).unwrap().puddles().len(), 4);
    store.open_pool("new", Access::ReadWrite).unwrap();
}

#[test]
fn orphans_of_interrupted_creations_are_removed_and_foreign_files_are_not() {
    let (dir, _) = two_pools();
    let orphan = format!("puddles/{}", "ab".repeat(16));
    std::fs::write(dir.file(&orphan), [0; 4096]).unwrap();
    std::fs::write(dir.file("puddles/README"), "mine").unwrap();
    std::fs::write(dir.file("catalog.0.new"), "half").unwrap();
    let before = dir.contents();
    dir.try_open(OpenOptions::read_only()).unwrap();
    assert_eq!(before, dir.contents());
    let (_, report) = dir.open();
    assert_eq!(report.orphans_removed, 1);
    let after = dir.contents();
    assert!(!after.contains_key(&orphan) && !after.contains_key("catalog.0.new"));
    assert!(after.contains_key("puddles/README"));
}
