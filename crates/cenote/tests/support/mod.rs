//! What several tests share: directories in memory, hashes of stores, a limit on waiting.
#![allow(dead_code, unreachable_pub)] // each test program uses its own part

use cenote_layout::puddle::STAMP_AT;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

mod mounted;

pub use mounted::Mounted;

/// A directory that goes away with the test: in memory if there is a place for that.
pub fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let builder = tempfile::Builder::new().prefix("cenote-test-").to_owned();
    if memory.is_dir() { builder.tempdir_in(memory) } else { builder.tempdir() }.unwrap()
}

/// Hash of every file below a directory, by name.
pub fn hashes(directory: &Path) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    let mut waiting = vec![directory.to_path_buf()];
    while let Some(at) = waiting.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
                continue;
            }
            let mut hasher = DefaultHasher::new();
            std::fs::read(&path).unwrap().hash(&mut hasher);
            out.insert(
                path.strip_prefix(directory).unwrap().display().to_string(),
                hasher.finish(),
            );
        }
    }
    out
}

/// Runs `test` on a thread of its own, and fails if it has not ended after `seconds`.
pub fn within<R: Send + 'static>(seconds: u64, test: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = test();
        let _ = done.send(());
        result
    });
    if ended.recv_timeout(Duration::from_secs(seconds)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("still waiting after {seconds} s");
    }
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

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
