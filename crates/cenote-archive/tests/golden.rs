//! Archives of every released version stay readable, byte for byte the same: one of each is kept in
//! `tests/golden`. To add that of a new version, run the test with `CENOTE_GOLDEN=write`; a file
//! that is there already is never written again.

use crate::common::{chunks, manifest, read, write};
use cenote_archive::Codec;
use std::path::PathBuf;

fn golden(name: &str, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name);
    if std::env::var("CENOTE_GOLDEN").as_deref() == Ok("write") && !path.exists() {
        std::fs::write(&path, make()).expect("it can be written");
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_ours(bytes: &[u8]) {
    let (found, data) = read(bytes).expect("it is whole");
    assert_eq!(found, manifest());
    let wanted: Vec<_> = chunks().into_iter().map(|(p, o, b)| (p as usize, o, b)).collect();
    assert_eq!(data, wanted);
}

#[test]
fn version_1_is_read_and_written_as_it_was() {
    let bytes = golden("version-1.cenote", || write(&manifest(), Codec::None));
    is_ours(&bytes);
    assert!(
        bytes == write(&manifest(), Codec::None),
        "the same manifest and chunks give other bytes"
    );
}

/// Not compared with what is written: another release of the library may pack better.
#[cfg(feature = "zstd")]
#[test]
fn version_1_packed_is_read() {
    is_ours(&golden("version-1-zstd.cenote", || write(&manifest(), Codec::Zstd)));
}
