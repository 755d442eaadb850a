//! Stores for tests, on memory where there is some.

#![allow(dead_code, reason = "not every test uses everything")]

use cenote::{MediumOptions, Pool, RealMedium, Store};
use cenote_store::{FormatOptions, OpenOptions};
use std::path::Path;
use std::sync::Arc;

/// A directory that is removed in the end.
pub(crate) fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
        .expect("a directory")
}

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

/// Nothing leaked, nothing dangling.
pub(crate) fn assert_sound(pool: &Pool) {
    let report = pool.check().expect("a report");
    assert!(report.is_sound(), "{report:?}");
}

/// A number from a seed that changes.
pub(crate) fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let x = *seed ^ (*seed >> 33);
    x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 17
}
