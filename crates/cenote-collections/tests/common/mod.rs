//! Stores for tests, on memory where there is some.

#![allow(dead_code, reason = "not every test uses everything")]

use cenote::{DataProtection, HeapKind, MediumOptions, Pool, PoolOptions, RealMedium, Store};
use cenote_store::{FormatOptions, OpenOptions};
use std::path::Path;
use std::sync::Arc;

pub(crate) use cenote_testkit::directories::directory;
pub(crate) use cenote_testkit::random::next as random;

/// The one pool of the tests.
pub(crate) fn pool(path: &Path) -> Pool {
    Store::open(path).expect("a store").pool("test").expect("a pool")
}

/// The same with flushes and fences as on persistent memory.
pub(crate) fn power_pool(path: &Path) -> Pool {
    let options = MediumOptions { create: true, force_power: true, ..MediumOptions::default() };
    let medium: Arc<RealMedium> = Arc::new(RealMedium::open(path, &options).expect("a medium"));
    cenote_store::format(medium.clone(), &FormatOptions::default()).expect("a format");
    Store::open_on(medium, &OpenOptions::default()).expect("a store").pool("test").expect("a pool")
}

/// The same with write-protected data, whose pages close as soon as they may.
pub(crate) fn protected_pool(path: &Path) -> Pool {
    let store = Store::open(path).expect("a store");
    let (heap, protect) = (HeapKind::Logged, DataProtection::Deferred { wait_ms: 0 });
    match store.pools().is_empty() {
        true => store.create_pool("test", &PoolOptions { heap, protect, ..PoolOptions::default() }),
        false => store.pool("test"),
    }
    .expect("a pool")
}

/// Nothing leaked, nothing dangling.
pub(crate) fn assert_sound(pool: &Pool) {
    let report = pool.check().expect("a report");
    assert!(report.is_sound(), "{report:?}");
}
