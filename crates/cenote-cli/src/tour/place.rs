//! Where a tour's store lies: a directory that was named, or a temporary one that goes when the
//! tour ends.

use super::index::{self, POOL};
use crate::failure::Failure;
use cenote::{Access, Medium as _, MediumOptions, OpenOptions, RealMedium, Store};
use std::cell::Cell;
use std::path::{Path, PathBuf};

/// The place of a tour. A temporary one is removed on drop, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct TourPlace {
    /// The temporary directory, if one was made.
    temporary: Option<PathBuf>,
    store: PathBuf,
    kept: Cell<bool>,
    /// Words that an earlier tour has indexed.
    indexed: u64,
}

impl TourPlace {
    /// Takes the named directory, or makes one: in memory if possible, because the tour is about
    /// crashes of processes.
    pub(crate) fn take(named: Option<&Path>, keep: bool, text: u64) -> Result<Self, Failure> {
        if let Some(store) = named {
            let indexed = if store.join("superblock").exists() { earlier(store, text)? } else { 0 };
            return Ok(Self {
                temporary: None,
                store: store.to_owned(),
                kept: Cell::new(true),
                indexed,
            });
        }
        let mut failed = None;
        for base in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
            match make_temporary(&base) {
                Ok(dir) => {
                    let store = dir.join("store");
                    return Ok(Self {
                        temporary: Some(dir),
                        store,
                        kept: Cell::new(keep),
                        indexed: 0,
                    });
                }
                Err(error) => failed = Some((base, error)),
            }
        }
        let (base, error) =
            failed.unwrap_or_else(|| (PathBuf::new(), std::io::ErrorKind::NotFound.into()));
        Err(Failure::Failed(format!(
            "cannot make a temporary directory in {}: {error}: name a directory with --store",
            base.display()
        )))
    }

    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    pub(crate) fn indexed(&self) -> u64 {
        self.indexed
    }

    /// Whether it stays when the tour ends.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.get()
    }

    /// Keeps it, for the user to look at.
    pub(crate) fn keep(&self) {
        self.kept.set(true);
    }

    /// Keeps it because of a failure, whose message then says where it is.
    pub(crate) fn keep_for(&self, failure: Failure) -> Failure {
        match failure {
            // If there is anything to keep.
            Failure::Failed(text) if self.store.join("superblock").exists() => {
                self.keep();
                Failure::Failed(format!("{text}; the store is kept: {}", self.store.display()))
            }
            other => other,
        }
    }

    /// Where it lies and what that gives.
    pub(crate) fn describe(&self) -> Result<String, Failure> {
        let parent =
            self.store.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let existing = if self.store.is_dir() { &self.store } else { parent };
        let info = RealMedium::open(existing, &MediumOptions::default())?.describe();
        let more = match self.indexed {
            0 => String::new(),
            n => format!("; {} words of it are indexed already", crate::units::count(n)),
        };
        Ok(format!("{} ({}, durability {}){more}", self.store.display(), info.fs, info.durability))
    }
}

impl Drop for TourPlace {
    fn drop(&mut self) {
        if let (Some(dir), false) = (&self.temporary, self.kept.get()) {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// How far an earlier tour came with the same text in this store.
fn earlier(store: &Path, text: u64) -> Result<u64, Failure> {
    let shown = store.display();
    let opened = Store::open_with(
        store,
        &OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() },
    )?;
    if !opened.pools().iter().any(|pool| pool.record.name == POOL) {
        return Ok(0);
    }
    let pool = opened.pool_with(POOL, Access::ReadOnly)?;
    match index::progress(&pool)? {
        None => Ok(0),
        Some(progress) if progress.text == text => Ok(progress.next),
        Some(_) => Err(Failure::Failed(format!(
            "{shown} holds the index of another text: name that text, or remove it with \
             `cenote rm {shown} {POOL}`"
        ))),
    }
}

/// A directory that no other program has.
fn make_temporary(base: &Path) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let random = cenote_sys::process::random_bytes16()?;
    let name: String = random.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let dir = base.join(format!("cenote-tour-{name}"));
    std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
    Ok(dir)
}
