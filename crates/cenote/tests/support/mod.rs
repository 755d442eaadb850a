//! What several tests share of stores; what is of no store is in `cenote-testkit`.
#![allow(dead_code, unreachable_pub)] // each test program uses its own part

use cenote_layout::puddle::STAMP_AT;
use std::collections::BTreeMap;
use std::path::Path;

mod mounted;

pub use cenote_testkit::directories::{directory, hashes};
pub use cenote_testkit::time::within;
pub use mounted::Mounted;

/// The store underneath, of which these tests ask what no user may.
pub fn underneath(store: &cenote::Store) -> &cenote_store::Store {
    // SAFETY: callers register types as they are, or see that they are refused; logs are taken and
    // given back; heaps are not touched.
    unsafe { store.as_raw() }
}

/// The bytes of a pool's puddle files, by name, without stamps.
pub fn contents(dir: &Path, store: &cenote::Store, name: &str) -> BTreeMap<String, Vec<u8>> {
    let id = store.pools().iter().find(|pool| pool.record.name == name).unwrap().record.id;
    let files = store.puddle_records().into_iter().filter(|p| p.pool == id);
    files
        .map(|p| {
            let name = format!("puddles/{}", String::from_utf8_lossy(&p.uuid.to_hex()));
            let mut bytes = std::fs::read(dir.join(&name)).unwrap();
            // A close seals it.
            bytes[STAMP_AT as usize..][..8].fill(0);
            (name, bytes)
        })
        .collect()
}
