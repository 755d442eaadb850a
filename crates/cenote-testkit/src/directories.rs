//! Scratch directories, and what files of a directory hold.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A directory in `CENOTE_TEST_DIR`, else in memory, where there is a place for that. It is removed
/// when it is dropped.
#[must_use]
pub fn directory() -> TempDir {
    let place = std::env::var_os("CENOTE_TEST_DIR").unwrap_or("/dev/shm".into());
    let builder = tempfile::Builder::new().prefix("cenote-test-").to_owned();
    let there = Path::new(&place).is_dir();
    let made = if there { builder.tempdir_in(place) } else { builder.tempdir() };
    made.expect("a directory")
}

/// Every file below a directory, in the order of paths.
#[must_use]
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let (mut files, mut waiting) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(at) = waiting.pop() {
        for entry in std::fs::read_dir(at).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { waiting.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    files
}

/// Every file below a directory with its bytes.
#[must_use]
pub fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("a readable file");
        (path, bytes)
    };
    files(directory).into_iter().map(read).collect()
}

/// Every file below a directory with its bytes, by its path from there.
#[must_use]
pub fn named_contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let named = |(path, bytes): (PathBuf, Vec<u8>)| (name_in(directory, &path), bytes);
    contents(directory).into_iter().map(named).collect()
}

/// The path of a file from a directory above it.
fn name_in(directory: &Path, path: &Path) -> String {
    path.strip_prefix(directory).expect("it is below").display().to_string()
}

/// A hash of every file below a directory, by its path from there.
#[must_use]
pub fn hashes(directory: &Path) -> BTreeMap<String, u64> {
    let hash = |path: PathBuf| {
        let mut hasher = DefaultHasher::new();
        std::fs::read(&path).expect("a readable file").hash(&mut hasher);
        (name_in(directory, &path), hasher.finish())
    };
    files(directory).into_iter().map(hash).collect()
}

/// Copies a directory with all that files have but their inodes, by `cp -a`.
pub fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
    assert!(done.success(), "cp -a {} {}", from.display(), to.display());
}
