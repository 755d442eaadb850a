//! A crash at any moment of a session, of a format, or of a recovery leaves a store that opens, on
//! the simulated medium.

use crate::common::{pool_options, small};
use crate::recovery::{as_medium, crash, get, half_a_transaction, open, options, prepared, word};
use cenote_medium::Durability;
use cenote_medium::sim::{self, Image, Limits, SimMedium, SimOptions};
use cenote_store::{Access, OpenOptions, PowerLossPolicy, Store, format};

/// Opens an image, checks what must hold whenever a crash came, and closes; returns the names of
/// the pools.
fn check(image: &Image, context: &str) -> Vec<String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let options = OpenOptions { power_loss: PowerLossPolicy::AsIs, ..options() };
    let (store, report) = match Store::open(as_medium(&sim), options.clone()) {
        Ok(opened) => opened,
        Err(error) => panic!("{context}: {error}"),
    };
    assert!(report.damage.iter().all(|d| !d.is_lost()), "{context}: {:?}", report.damage);
    let mut names = Vec::new();
    for pool in store.pools() {
        let handle = store.open_pool(&pool.record.name, Access::ReadWrite).unwrap();
        assert_eq!(handle.puddles().len() as u64, pool.puddles, "{context}");
        names.push(pool.record.name);
    }
    store.create_pool("probe", &pool_options()).unwrap();
    store.close().unwrap();
    let (store, report) = Store::open(as_medium(&sim), options).unwrap();
    assert!(
        report.clean && report.damage.is_empty() && report.orphans_removed == 0,
        "{context}: {report:?}"
    );
    drop(store);
    names
}

#[test]
fn a_crash_at_any_moment_of_a_session_leaves_a_store_that_opens_with_all_that_was_acknowledged() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    format(as_medium(&sim), &small()).unwrap();
    sim.forget_trace();
    let acknowledged = |note| sim.note(note);
    let (store, _) = open(&sim, options());
    store.create_pool("one", &pool_options()).unwrap();
    acknowledged(1);
    let pool = store.open_pool("one", Access::ReadWrite).unwrap();
    pool.take_puddle(256 << 10).unwrap();
    let lease = store.acquire_log().unwrap();
    store.grow_log(lease.log_id(), 1).unwrap();
    store.release_log(lease);
    store.create_pool("two", &pool_options()).unwrap();
    acknowledged(2);
    drop(pool);
    store.remove_pool("one").unwrap();
    acknowledged(3);
    store.close().unwrap();
    let limits = Limits { exhaustive_units: 5, samples: 6, seed: 7, process: true, power: true };
    let mut images = 0;
    sim.explore(.., limits, |state, image| {
        let context =
            format!("event {} note {} picks {:?}", state.event(), state.note(), image.picks());
        let names = check(&image, &context);
        let has = |name: &str| names.iter().any(|n| n == name);
        match image.note() {
            0 => {}
            1 => assert!(has("one"), "{context}"),
            2 => assert!(has("two"), "{context}"),
            _ => assert!(has("two") && !has("one"), "{context}"),
        }
        images += 1;
    });
    assert!(images > 100, "{images}");
}

#[test]
fn a_crash_at_any_moment_of_format_leaves_a_store_or_something_that_can_be_formatted() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let options = small();
    format(as_medium(&sim), &options).unwrap();
    sim.note(1);
    let limits = Limits { exhaustive_units: 6, samples: 10, seed: 3, process: true, power: true };
    sim.explore(.., limits, |state, image| {
        let next = SimMedium::from_image_unrecorded(&image);
        let opened = Store::open(as_medium(&next), OpenOptions::default());
        if let Err(error) = opened {
            assert_eq!(image.note(), 0, "acknowledged, but {error}");
            format(as_medium(&next), &options)
                .unwrap_or_else(|e| panic!("event {}: {e}", state.event()));
            Store::open(as_medium(&next), OpenOptions::default()).unwrap();
        }
    });
}

#[test]
fn a_crash_at_any_moment_of_a_recovery_is_recovered_by_the_next() {
    let (sim, store, pool) = prepared(Durability::Power);
    half_a_transaction(&store, &pool, 0..3, 99);
    let next = crash(&sim, store, pool, sim::CrashKind::Power);
    let (store, _) = open(&next, options());
    store.abandon();
    let limits = Limits { exhaustive_units: 5, samples: 8, seed: 5, process: true, power: true };
    let visited = next.explore(.., limits, |state, image| {
        let last = SimMedium::from_image_unrecorded(&image);
        let (store, report) = open(&last, options());
        assert!(
            report.damage.iter().all(|d| !d.is_lost()),
            "event {}: {:?}",
            state.event(),
            report.damage
        );
        assert!(report.not_covered.is_empty());
        let pool = store.open_pool("p", Access::ReadWrite).unwrap();
        assert_eq!([0, 1, 2].map(|i| get(word(&pool, i))), [1, 0, 0], "event {}", state.event());
    });
    assert!(visited.images > 20, "{visited:?}");
}
