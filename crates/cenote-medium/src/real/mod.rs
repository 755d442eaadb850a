//! Makes a directory of this machine a medium: [`RealMedium`], which holds a descriptor of the
//! directory.
//!
//! | module | does |
//! | --- | --- |
//! | `detect` | finds out once, at open, what the directory lies on |
//! | `files` | reaches files relative to the descriptor |
//! | `beneath` | reaches files relative to that of a directory in it that is held |
//! | `window` | maps files, only inside windows that the medium reserved |
//! | `lock` | locks the store against other processes and openers, and names the holder |
//! | `hold` | locks that nothing this process does to the files drops |

mod beneath;
mod detect;
mod files;
mod granted;
mod hold;
mod lock;
mod owner;
mod window;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use cenote_layout::id::Uuid;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

use crate::{
    Durability, FileId, FileStat, FileWord, LockGuard, LockHolder, LockKind, MapMode, Medium,
    MediumError, MediumInfo, MediumKind, Persistence,
};

pub(crate) use files::write_open;
pub use granted::GrantedMedium;

use detect::Detected;
use files::Files;
use window::{How, Windows};

type Result<T> = core::result::Result<T, MediumError>;

/// How a directory is opened as a medium. The default: it exists, and may be written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediumOptions {
    /// Create the directory if it is missing; its parent must exist.
    pub create: bool,
    /// Never write anything.
    pub read_only: bool,
    /// Flush and fence as if this were persistent memory: to measure, or where it is (CXL, NVDIMM)
    /// and the file system does not tell. Nothing becomes safer by it; [`Medium::describe`]
    /// says so.
    pub force_power: bool,
}

/// A directory of this machine.
#[derive(Debug)]
pub struct RealMedium {
    path: PathBuf,
    files: Files,
    windows: Windows,
    detected: Detected,
    mounting: u64,
}

impl RealMedium {
    /// Opens a directory as a medium and finds out what it lies on.
    ///
    /// # Errors
    /// [`MediumError::Open`] if there is no such directory, or it cannot be created or read.
    pub fn open(path: impl AsRef<Path>, options: &MediumOptions) -> Result<Self> {
        let path = path.as_ref();
        if options.create && !options.read_only {
            create_directory(path)?;
        }
        let failed = |source: io::Error| open_error(path, source);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir: OwnedFd =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let mounted = rustix::fs::fstatvfs(&dir).map_err(|errno| failed(errno.into()))?;
        learn_boot_id().map_err(failed)?;
        let writable = !options.read_only && !mounted.f_flag.contains(StatVfsMountFlags::RDONLY);
        let detected =
            detect::detect(dir.as_fd(), writable, options.force_power).map_err(failed)?;
        // The directory stays open, so the file system stays mounted.
        let mounting = cenote_sys::mounting::of(dir.as_fd()).map_err(failed)?.unwrap_or(0);
        let files = Files::new(
            dir,
            writable,
            detected.kind != MediumKind::Tmpfs,
            matches!(detected.kind, MediumKind::Network | MediumKind::Overlay),
        );
        Ok(Self { path: path.to_owned(), files, windows: Windows::default(), detected, mounting })
    }
}

/// Creates a directory that is missing, durably.
fn create_directory(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            let advice = "it cannot be made: check owner and mode of the directory above it";
            return Err(MediumError::Open { path: path.to_owned(), advice, source });
        }
        Err(error) => return Err(open_error(path, error)),
    }
    // `foo` has the parent "", which is the current directory.
    let parent =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A parent that may be searched and not read cannot be synced: the directory is there all the
    // same.
    match File::open(parent) {
        Ok(parent) => parent.sync_all().or_else(|error| match error.kind() {
            io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => Ok(()),
            _ => Err(open_error(path, error)),
        }),
        Err(_) => Ok(()),
    }
}

fn open_error(path: &Path, source: io::Error) -> MediumError {
    let advice = match source.kind() {
        io::ErrorKind::NotFound => "create the store with `cenote format`, or check the path",
        io::ErrorKind::NotADirectory => "a store is a directory: name the directory itself",
        io::ErrorKind::PermissionDenied => {
            "check owner and mode of the directory and of those above it"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is mounted read-only: open the store read-only"
        }
        _ => "check the path and the file system that it lies on",
    };
    MediumError::Open { path: path.to_owned(), advice, source }
}

static BOOT_ID: OnceLock<Uuid> = OnceLock::new();

/// Reads the boot's id before a store is looked at. An error that may pass (no descriptor, no
/// memory, an I/O error) is an error: a store that was left open would be taken for one that lost
/// power. Where the system has no such id the answer is random.
fn learn_boot_id() -> io::Result<()> {
    use io::ErrorKind::{InvalidData, NotFound, PermissionDenied};
    if BOOT_ID.get().is_some() {
        return Ok(());
    }
    match cenote_sys::process::boot_id() {
        Ok(id) => drop(BOOT_ID.set(Uuid(id))),
        Err(error) if matches!(error.kind(), NotFound | PermissionDenied | InvalidData) => {
            let _ = boot_id();
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The boot of the machine, read once. Where the system has none: random, so that it equals none
/// that was recorded, and the store takes the safe side (power may have failed).
fn boot_id() -> Uuid {
    *BOOT_ID.get_or_init(|| {
        let id = cenote_sys::process::boot_id().or_else(|_| cenote_sys::process::random_bytes16());
        Uuid(id.unwrap_or_else(|_| clock_bytes()))
    })
}

/// The last resort for an identity that is not repeated.
fn clock_bytes() -> [u8; 16] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() ^ (u128::from(cenote_sys::process::pid()) << 96)).to_le_bytes()
}

// SAFETY: what is said to be mapped is mapped, inside windows that `windows` reserved and at no
// other address.
unsafe impl Medium for RealMedium {
    fn describe(&self) -> MediumInfo {
        MediumInfo {
            path: self.path.display().to_string(),
            kind: self.detected.kind,
            fs: self.detected.fs.clone(),
            durability: self.detected.durability,
            note: self.detected.note.clone(),
        }
    }

    fn persistence(&self, level: Durability) -> Persistence {
        match level {
            Durability::Process => Persistence::PROCESS,
            Durability::Power => self.detected.power,
        }
    }

    fn read_only(&self) -> bool {
        !self.files.writable()
    }

    fn boot_id(&self) -> Uuid {
        boot_id()
    }

    fn mounting(&self) -> u64 {
        self.mounting
    }

    fn now_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    fn exists(&self, name: &str) -> Result<bool> {
        self.files.exists(name)
    }

    fn len(&self, name: &str) -> Result<u64> {
        self.files.stat(name).map(|stat| stat.len_bytes)
    }

    fn stat(&self, name: &str) -> Result<FileStat> {
        self.files.stat(name)
    }

    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.files.read_at(name, offset, buf)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.files.read(name)
    }

    unsafe fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        self.files.write_at(name, offset, data)
    }

    fn create(&self, name: &str, len_bytes: u64) -> Result<()> {
        self.files.create(name, len_bytes)
    }

    unsafe fn truncate(&self, name: &str, len_bytes: u64) -> Result<()> {
        self.files.truncate(name, len_bytes)
    }

    unsafe fn clear(&self, name: &str) -> Result<()> {
        self.files.clear(name)
    }

    fn free_bytes(&self) -> u64 {
        self.files.free_bytes()
    }

    unsafe fn release(&self, name: &str, offset: u64, len: u64) -> Result<bool> {
        self.files.release(name, offset, len)
    }

    fn ensure(&self, name: &str, offset: u64, len: u64) -> Result<()> {
        self.files.ensure(name, offset, len)
    }

    fn sync(&self, name: &str) -> Result<()> {
        self.files.sync(name)
    }

    unsafe fn descriptor(&self, name: &str) -> Result<Option<File>> {
        self.files.descriptor(name).map(Some)
    }

    unsafe fn grant(&self, name: &str, writable: bool) -> Result<Option<File>> {
        self.files.grant(name, writable).map(Some)
    }

    fn sync_descriptor(&self, name: &str, file: &File) -> Result<()> {
        self.files.sync_descriptor(name, file)
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.files.sync_dir(dir)
    }

    unsafe fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.files.rename(from, to)
    }

    unsafe fn remove(&self, name: &str) -> Result<()> {
        self.files.remove(name)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.files.list(dir)
    }

    fn make_dir(&self, name: &str) -> Result<()> {
        self.files.make_dir(name)
    }

    fn lock(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<LockGuard, LockHolder>> {
        self.files.lock(name, kind)
    }

    fn hold(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<(LockGuard, FileId), LockHolder>> {
        self.files.hold(name, kind)
    }

    fn hold_dir(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<Option<LockGuard>, LockHolder>> {
        self.files.hold_dir(name, kind)
    }

    fn is_mounted(&self, dir: &str) -> Result<bool> {
        self.files.is_mounted(dir)
    }

    fn file_id(&self, name: &str) -> Result<FileId> {
        self.files.file_id(name)
    }

    fn is_byte_held(&self, name: &str, at: u64) -> Result<bool> {
        self.files.is_byte_held(name, at)
    }

    fn reserve_window(&self, base: u64, len: u64) -> Result<()> {
        self.windows.reserve(base, len)
    }

    unsafe fn release_window(&self, base: u64, len: u64) -> Result<()> {
        self.windows.release(base, len)
    }

    unsafe fn map_written(
        &self,
        name: &str,
        addr: u64,
        len: u64,
        mode: MapMode,
        word: Option<FileWord>,
    ) -> Result<()> {
        let how = How { mode, synchronous: self.detected.kind == MediumKind::Dax, word };
        self.windows.map(&self.files, name, addr, len, how)
    }

    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()> {
        self.windows.unmap(addr, len)
    }
}
