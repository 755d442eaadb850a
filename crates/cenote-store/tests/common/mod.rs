//! What the tests of the store share: directories on tmpfs, small stores, and hashes of all files.
#![allow(dead_code, unreachable_pub)] // each test program uses its own part

use cenote_layout::id::Uuid;
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_store::{FormatOptions, OpenError, OpenOptions, OpenReport, PoolOptions, Store, format};
use cenote_testkit::directories;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory on tmpfs that goes away with the test.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Self {
        Self(directories::directory())
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }

    pub fn medium(&self) -> Arc<dyn Medium> {
        real(&self.path())
    }

    /// A formatted store with a window of its own in this test program.
    pub fn formatted() -> Self {
        let dir = Self::new();
        format(dir.medium(), &small()).unwrap();
        dir
    }

    pub fn open(&self) -> (Store, OpenReport) {
        Store::open(self.medium(), OpenOptions::default()).unwrap()
    }

    pub fn try_open(&self, options: OpenOptions) -> Result<(Store, OpenReport), OpenError> {
        Store::open(self.medium(), options)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Contents of every file below the directory.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        directories::named_contents(&self.path())
    }

    /// Changes one file in place.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = self.file(name);
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
    }
}

pub fn real(path: &Path) -> Arc<dyn Medium> {
    let options = MediumOptions { create: true, ..MediumOptions::default() };
    Arc::new(RealMedium::open(path, &options).unwrap())
}

pub fn real_read_only(path: &Path) -> Arc<dyn Medium> {
    let options = MediumOptions { read_only: true, ..MediumOptions::default() };
    Arc::new(RealMedium::open(path, &options).unwrap())
}

/// Every store of a test program gets a window of its own, so that tests can run side by side.
pub fn small() -> FormatOptions {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let process = u64::from(std::process::id()) % 64;
    FormatOptions {
        window_base: Some(0x3000_0000_0000 + (process * 256 + number) * (1 << 30)),
        window_len: 256 << 20,
        uuid: Some(Uuid::from_random_bytes([number as u8 + 1; 16])),
    }
}

pub fn pool_options() -> PoolOptions {
    PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() }
}
