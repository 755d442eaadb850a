//! Accepted copies of an open store: a pool that a daemon made and no client has written holds
//! nothing of two moments.

use crate::common::window_base;
use cenote_layout::puddle::STAMP_AT;
use cenote_layout::superblock::Superblock;
use cenote_medium::planted::{Bug, plant};
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_store::{CopyPolicy, FormatOptions, Hosting, OpenOptions, PoolMode, PoolOptions, Store};
use cenote_testkit::directories;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromBytes;

fn medium(dir: &Path) -> Arc<dyn Medium> {
    Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"))
}

/// Makes a pool of files that have the mark of the session, as those have that a daemon made ahead.
/// With a word in the last page of each, if it is `written`.
fn make(store: &Store, dir: &Path, mode: PoolMode, written: bool) {
    let superblock = std::fs::read(dir.join("superblock")).expect("read");
    let (block, _) = Superblock::read_from_prefix(&superblock).expect("a copy");
    assert!(block.era != 0);
    let options = PoolOptions { mode, puddle_size: 256 << 10, ..PoolOptions::default() };
    let pool = store.create_pool(&format!("{mode:?}, {written}"), &options).expect("made");
    for puddle in store.puddle_records().into_iter().filter(|puddle| puddle.pool == pool) {
        let hex: String = puddle.uuid.to_hex().iter().map(|byte| char::from(*byte)).collect();
        let file = dir.join("puddles").join(hex);
        let file = std::fs::File::options().write(true).open(file).expect("opened");
        file.write_all_at(&block.era.to_le_bytes(), STAMP_AT).expect("marked");
        if written {
            file.write_all_at(&[1], puddle.size - 8).expect("written");
        }
    }
}

/// Names of the pools that count as torn in an accepted copy of a daemon's open store.
fn torn(bug: Bug) -> Vec<String> {
    let keep = tempfile::tempdir().expect("a directory");
    let (dir, copy) = (keep.path().join("store"), keep.path().join("copy"));
    std::fs::create_dir(&dir).expect("made");
    let format =
        FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid: None };
    cenote_store::format(medium(&dir), &format).expect("format");
    // SAFETY: this process opens no pool and attaches no object.
    let hosting = Some(unsafe { Hosting::new() });
    let options = OpenOptions { hosting, spare_bytes_max: 0, ..OpenOptions::default() };
    let (store, _) = Store::open(medium(&dir), options).expect("a new store");
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        make(&store, &dir, mode, false);
        make(&store, &dir, mode, true);
    }
    store.abandon();
    directories::copy(&dir, &copy);
    let accept = OpenOptions { copy: CopyPolicy::CheckAndOpen, ..OpenOptions::default() };
    plant(bug);
    let opened = Store::open(medium(&copy), accept);
    plant(Bug::None);
    let (store, report) = opened.expect("accepted");
    assert!(report.copied);
    store.abandon();
    report.not_covered.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn a_pool_that_a_daemon_made_and_no_client_has_written_is_whole_in_an_accepted_copy() {
    let mut found = torn(Bug::None);
    found.sort();
    assert_eq!(found, ["Direct, true", "Shadowed, true"]);
    assert_eq!(torn(Bug::UntouchedNotRead), [""; 0]);
}
