//! Where Cenote is measured: a fresh store in a temporary directory, by default on `/dev/shm`, at
//! one level.
//!
//! At `power` the medium is told to flush and fence as if it were persistent memory, which
//! `/dev/shm` is not: that is how persistent memory is emulated where there is none, for Cenote and
//! for its peers alike.

use crate::case::{Failure, POWER, PROCESS};
use cenote::{
    Access, Durability, FormatOptions, Medium, MediumOptions, OpenOptions, Pool, PoolOptions,
    RealMedium, Store,
};
use cenote_heap::PoolBacking;
use cenote_medium::MediumKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// What to measure, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Parent of the temporary directories.
    pub directory: PathBuf,
    /// Whether sizes are small, to see that everything runs.
    pub quick: bool,
    /// Numbers of threads of the rows that have several. Empty: 1, 2, and powers of two up to the
    /// number of processors.
    pub threads: Vec<u32>,
    /// Length of an allocator's run as a part of the paper's. `None`: as long as any other run.
    pub scale: Option<f64>,
    /// Seconds of a workload that goes on for a while. `None`: the figure's own number.
    pub seconds: Option<u64>,
    /// MiB of live blocks of such a workload. `None`: the figure's own number.
    pub live_mib: Option<u64>,
    /// Objects of a pool. `None`: the figure's own number.
    pub objects: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        let shm = Path::new("/dev/shm");
        let directory = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        Self {
            directory,
            quick: false,
            threads: Vec::new(),
            scale: None,
            seconds: None,
            live_mib: None,
            objects: None,
        }
    }
}

impl Settings {
    /// The numbers of threads to measure.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        if !self.threads.is_empty() {
            return self.threads.clone();
        }
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        (0..16).map(|shift| 1 << shift).filter(|&n| n <= processors.max(2)).collect()
    }

    /// A fresh temporary directory, removed when it is dropped.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn temporary(&self) -> Result<tempfile::TempDir, Failure> {
        let made = tempfile::Builder::new().prefix("cenote-bench.").tempdir_in(&self.directory);
        made.map_err(|error| {
            format!("no directory in {}: {error}", self.directory.display()).into()
        })
    }
}

/// A directory as the medium of a store that works at this level.
///
/// # Errors
/// It cannot be opened.
pub fn medium(path: &Path, durability: Durability) -> Result<Arc<dyn Medium>, Failure> {
    let options = MediumOptions {
        create: true,
        force_power: durability == Durability::Power,
        ..MediumOptions::default()
    };
    Ok(Arc::new(RealMedium::open(path, &options)?))
}

/// Bytes of a store's window, if nothing else is asked for.
#[must_use]
pub fn window_len() -> u64 {
    FormatOptions::default().window_len
}

/// Makes a store at this level in a directory, with a pool `bench`: what a heap is made on.
///
/// # Errors
/// It cannot be made or opened.
pub fn new_backing(
    directory: &Path,
    durability: Durability,
    pool: &PoolOptions,
    window_len: u64,
) -> Result<PoolBacking, Failure> {
    let medium = medium(directory, durability)?;
    let format = FormatOptions { window_len, ..FormatOptions::default() };
    cenote_store::format(medium.clone(), &format)?;
    let store = open_store(medium, durability)?;
    store.create_pool("bench", pool)?;
    // SAFETY: the store is this benchmark's own, and nothing else opens the pool.
    Ok(unsafe { PoolBacking::of(store.open_pool("bench", Access::ReadWrite)?) })
}

/// Opens the store of [`new_backing`], without spare puddles.
///
/// # Errors
/// It cannot be opened.
pub fn open_store(
    medium: Arc<dyn Medium>,
    durability: Durability,
) -> Result<cenote_store::Store, Failure> {
    let options =
        OpenOptions { durability: Some(durability), spare_bytes_max: 0, ..OpenOptions::default() };
    Ok(cenote_store::Store::open(medium, options)?.0)
}

/// The level that a store in the directory of temporary stores has by itself: `process` on tmpfs,
/// where nothing has to be synced, else `power`.
///
/// # Errors
/// There is no such directory.
pub fn level_of(settings: &Settings) -> Result<&'static str, Failure> {
    let directory = settings.temporary()?;
    let kind = medium(directory.path(), Durability::Process)?.describe().kind;
    Ok(if kind == MediumKind::Tmpfs { PROCESS } else { POWER })
}

/// A store at one level, with one pool.
#[derive(Debug)]
pub struct BenchPlace {
    /// The pool; closed before the store.
    pub pool: Pool,
    /// The store.
    pub store: Store,
    /// `process` or `power`.
    pub level: &'static str,
    _directory: tempfile::TempDir,
}

impl BenchPlace {
    /// Makes and opens a store at this level.
    ///
    /// # Errors
    /// What keeps it from being opened.
    pub fn open(settings: &Settings, durability: Durability) -> Result<Self, Failure> {
        Self::of(settings, durability, None)
    }

    /// The same, with a pool like this.
    ///
    /// # Errors
    /// As [`BenchPlace::open`].
    pub fn open_with(
        settings: &Settings,
        durability: Durability,
        options: &PoolOptions,
    ) -> Result<Self, Failure> {
        Self::of(settings, durability, Some(options))
    }

    fn of(
        settings: &Settings,
        durability: Durability,
        options: Option<&PoolOptions>,
    ) -> Result<Self, Failure> {
        let directory = settings.temporary()?;
        let medium = medium(directory.path(), durability)?;
        cenote_store::format(medium.clone(), &FormatOptions::default())?;
        let store = Store::open_on(
            medium,
            &OpenOptions { durability: Some(durability), ..OpenOptions::default() },
        )?;
        let pool = match options {
            Some(options) => store.create_pool("bench", options)?,
            None => store.pool("bench")?,
        };
        let level = match durability {
            Durability::Process => PROCESS,
            Durability::Power => POWER,
        };
        Ok(Self { pool, store, level, _directory: directory })
    }

    /// One store at each level.
    ///
    /// # Errors
    /// As [`BenchPlace::open`].
    pub fn both(settings: &Settings) -> Result<[Rc<Self>; 2], Failure> {
        Ok([
            Rc::new(Self::open(settings, Durability::Process)?),
            Rc::new(Self::open(settings, Durability::Power)?),
        ])
    }
}
