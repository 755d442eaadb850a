//! Files of a store directory, by names relative to its descriptor.
//!
//! Every name is opened with `openat` and follows no link: the store stays the one that was opened,
//! also when paths above it change. Names in a directory that is held are opened from that one
//! (`beneath`).
//!
//! The kernel reports a failed write-back once: to descriptors that were open when it failed, or to
//! the next one that is opened, unless it forgot the inode meanwhile. So the descriptor that wrote
//! a file is kept until a `sync` of that file, and the sync goes through it: no error in between is
//! lost. Once a sync failed, every later one fails: the kernel may have thrown away what it could
//! not write, and would report success.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cenote_layout::PAGE_SIZE;
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::{FileId, FileName, FileStat, LockGuard, LockHolder, LockKind, MediumError, Operation};

use super::beneath::{Beneath, open_regular};
use super::lock;
use super::owner::Owner;

type Result<T> = core::result::Result<T, MediumError>;

/// Permissions of new directories, before the user's umask.
pub(super) const DIR_MODE: u32 = 0o777;
/// Descriptors kept for files that were written and not synced. Further ones are opened again by
/// their sync, and rely on the kernel to remember an error.
const UNSYNCED_MAX: usize = 64;
/// Bytes of the longest file that is read as a whole: far more than a control file has.
const READ_LEN_MAX: u64 = 1 << 30;
/// Bytes that one `fallocate` takes: short enough that a signal, which makes tmpfs begin again,
/// does not stop it.
const ALLOCATE_CHUNK: u64 = 64 << 20;
/// How often signals may interrupt it without progress, each time at half as many bytes.
const INTERRUPTIONS_MAX: u32 = 1000;

/// The files of one store directory.
#[derive(Debug)]
pub(super) struct Files {
    dir: OwnedFd,
    /// Directories in it that were held.
    beneath: Beneath,
    /// Whose new files are.
    owner: Owner,
    writable: bool,
    /// Whether a sync means anything here: not on tmpfs.
    keeps_unsynced: bool,
    /// Whether the file system may refuse to sync a directory: network file systems do.
    forgives_dir_sync: bool,
    unsynced: Mutex<HashMap<String, Arc<File>>>,
    sync_failed: AtomicBool,
    /// The lock file of this medium, for [`Files::open_for_mapping`], which cannot ask the table
    /// of locks.
    lock_name: OnceLock<FileName>,
}

impl Files {
    pub(super) fn new(
        dir: OwnedFd,
        writable: bool,
        keeps_unsynced: bool,
        forgives_dir_sync: bool,
    ) -> Self {
        Self {
            owner: Owner::of(dir.as_fd()),
            dir,
            beneath: Beneath::default(),
            writable,
            keeps_unsynced,
            forgives_dir_sync,
            unsynced: Mutex::default(),
            sync_failed: AtomicBool::new(false),
            lock_name: OnceLock::new(),
        }
    }

    pub(super) fn writable(&self) -> bool {
        self.writable
    }

    fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// Where a file is looked up, by which name there.
    fn at<'n>(&self, name: &'n str) -> (BorrowedFd<'_>, &'n str) {
        self.beneath.at(self.dir(), name)
    }

    fn unsynced(&self) -> MutexGuard<'_, HashMap<String, Arc<File>>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_unsynced(&self, name: &str, file: &Arc<File>) {
        let mut unsynced = self.unsynced();
        if self.keeps_unsynced && (unsynced.len() < UNSYNCED_MAX || unsynced.contains_key(name)) {
            unsynced.insert(name.to_owned(), Arc::clone(file));
        }
    }

    fn may_write(&self, op: Operation, name: &str) -> Result<()> {
        if self.writable {
            Ok(())
        } else {
            Err(MediumError::ReadOnly { op, name: FileName::new(name) })
        }
    }

    /// Opens a regular file that exists.
    fn open(&self, op: Operation, name: &str, flags: OFlags) -> Result<File> {
        FileName::check(op, name)?;
        lock::refuse_if_locked(self.at(name), op, name)?;
        open_regular(self.at(name), op, name, flags).map(|(file, _)| file)
    }

    /// Opens a file and tells its length, without allocating and without a lock: for signal
    /// handlers.
    pub(super) fn open_for_mapping(&self, name: &str, flags: OFlags) -> Result<(File, u64)> {
        let op = Operation::Map;
        FileName::check(op, name)?;
        if flags.contains(OFlags::RDWR) {
            self.may_write(op, name)?;
        }
        if self.lock_name.get().is_some_and(|lock| lock.as_str() == name) {
            return Err(MediumError::Locked { op, name: FileName::new(name) });
        }
        open_regular(self.at(name), op, name, flags)
    }

    pub(super) fn exists(&self, name: &str) -> Result<bool> {
        let op = Operation::Examine;
        FileName::check(op, name)?;
        let (dir, path) = self.at(name);
        match rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(MediumError::from_io(op, name, errno.into())),
        }
    }

    pub(super) fn stat(&self, name: &str) -> Result<FileStat> {
        let op = Operation::Examine;
        FileName::check(op, name)?;
        let (dir, path) = self.at(name);
        let stat = rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| MediumError::from_io(op, name, errno.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(MediumError::NotAFile { op, name: FileName::new(name) });
        }
        #[allow(clippy::useless_conversion, reason = "it has 32 bits on other processors")]
        let links = u64::from(stat.st_nlink);
        Ok(FileStat { len_bytes: u64::try_from(stat.st_size).unwrap_or(0), links })
    }

    pub(super) fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let op = Operation::Read;
        let file = self.open(op, name, OFlags::RDONLY)?;
        check_end(op, name, offset, buf.len())?;
        read_until_full(&file, offset, buf).map_err(|source| MediumError::from_io(op, name, source))
    }

    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let op = Operation::Read;
        let file = self.open(op, name, OFlags::RDONLY)?;
        let failed = |source| MediumError::from_io(op, name, source);
        let len = file.metadata().map_err(failed)?.len();
        let mut bytes = Vec::new();
        // A damaged or hostile file may claim any length: that is an error, and neither an abort
        // nor the end of memory.
        if len > READ_LEN_MAX {
            let reason = "the file is longer than a control file can be; it is damaged, or not of \
                          this store";
            return Err(MediumError::BadRange {
                op,
                name: FileName::new(name),
                addr: 0,
                len,
                reason,
            });
        }
        let room = len as usize;
        bytes.try_reserve_exact(room).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        bytes.resize(room, 0);
        let got = read_until_full(&file, 0, &mut bytes).map_err(failed)?;
        bytes.truncate(got);
        Ok(bytes)
    }

    pub(super) fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        let op = Operation::Write;
        self.may_write(op, name)?;
        FileName::check(op, name)?;
        check_end(op, name, offset, data.len())?;
        let kept = self.unsynced().get(name).cloned();
        let file = match kept {
            Some(file) => file,
            None => {
                let file = Arc::new(self.open(op, name, OFlags::RDWR)?);
                // Kept before the write: a sync that comes after the write finds it.
                self.keep_unsynced(name, &file);
                file
            }
        };
        write_open(&file, name, offset, data)
    }

    pub(super) fn create(&self, name: &str, len_bytes: u64) -> Result<()> {
        let op = Operation::Create;
        self.may_write(op, name)?;
        FileName::check(op, name)?;
        let failed = |source| failed_for_space(op, name, len_bytes, source);
        check_size_limit(len_bytes).map_err(failed)?;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let (dir, path) = self.at(name);
        let file = rustix::fs::openat(dir, path, flags, Mode::from_raw_mode(lock::FILE_MODE))
            .map(File::from)
            .map_err(|errno| failed(errno.into()))?;
        let given = self.owner.give(op, name, &file, self.dir());
        if let Err(error) = given.and_then(|()| take_space(&file, len_bytes).map_err(failed)) {
            drop(file);
            // If this fails too the file stays, without a record that names it; the first error
            // matters.
            let _ = rustix::fs::unlinkat(dir, path, AtFlags::empty());
            return Err(error);
        }
        if len_bytes != 0 {
            // An empty file has nothing that a write-back could lose; and a lock file must not be
            // kept open.
            self.keep_unsynced(name, &Arc::new(file));
        }
        Ok(())
    }

    pub(super) fn truncate(&self, name: &str, len_bytes: u64) -> Result<()> {
        let op = Operation::Truncate;
        self.may_write(op, name)?;
        let failed = |source| failed_for_space(op, name, len_bytes, source);
        let file = Arc::new(self.open(op, name, OFlags::RDWR)?);
        check_size_limit(len_bytes).map_err(failed)?;
        file.set_len(len_bytes).map_err(failed)?;
        if !self.unsynced().contains_key(name) {
            self.keep_unsynced(name, &file);
        }
        Ok(())
    }

    pub(super) fn clear(&self, name: &str) -> Result<()> {
        let op = Operation::Write;
        self.may_write(op, name)?;
        let len_bytes = self.stat(name)?.len_bytes;
        let failed = |source| failed_for_space(op, name, len_bytes, source);
        let file = Arc::new(self.open(op, name, OFlags::RDWR)?);
        if len_bytes != 0 {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&*file, hole, 0, len_bytes) {
                Ok(()) => take_space(&file, len_bytes).map_err(failed)?,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    write_zeros(&file, 0, len_bytes).map_err(failed)?
                }
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        if !self.unsynced().contains_key(name) {
            self.keep_unsynced(name, &file);
        }
        Ok(())
    }

    pub(super) fn free_bytes(&self) -> u64 {
        rustix::fs::fstatvfs(&self.dir)
            .map_or(u64::MAX, |found| found.f_bavail.saturating_mul(found.f_frsize))
    }

    pub(super) fn release(&self, name: &str, offset: u64, len: u64) -> Result<bool> {
        let op = Operation::Release;
        self.may_write(op, name)?;
        let file = self.open(op, name, OFlags::RDWR)?;
        check_pages(op, name, offset, len, &file)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match allocate(&file, flags, offset, len) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(MediumError::from_io(op, name, errno.into())),
        }
    }

    pub(super) fn ensure(&self, name: &str, offset: u64, len: u64) -> Result<()> {
        let op = Operation::Ensure;
        self.may_write(op, name)?;
        let file = self.open(op, name, OFlags::RDWR)?;
        check_pages(op, name, offset, len, &file)?;
        match allocate(&file, FallocateFlags::KEEP_SIZE, offset, len) {
            // Where space cannot be taken so, none can be given back either: there are no holes.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(failed_for_space(op, name, len, errno.into())),
        }
    }

    pub(super) fn sync(&self, name: &str) -> Result<()> {
        let op = Operation::Sync;
        FileName::check(op, name)?;
        // Taken out first: what is written from here on is for the next sync.
        let kept = self.unsynced().remove(name);
        let file = match kept {
            Some(file) => file,
            None => Arc::new(self.open(op, name, OFlags::RDONLY)?),
        };
        self.finish_sync(op, name, file.sync_data())
    }

    pub(super) fn descriptor(&self, name: &str) -> Result<File> {
        let flags = if self.writable { OFlags::RDWR } else { OFlags::RDONLY };
        self.open(Operation::Examine, name, flags)
    }

    /// A descriptor that is given away: never kept, so that nothing of it is shared with ours.
    pub(super) fn grant(&self, name: &str, writable: bool) -> Result<File> {
        let op = Operation::Examine;
        if writable {
            self.may_write(op, name)?;
        }
        self.open(op, name, if writable { OFlags::RDWR } else { OFlags::RDONLY })
    }

    pub(super) fn sync_descriptor(&self, name: &str, file: &File) -> Result<()> {
        self.finish_sync(Operation::Sync, name, file.sync_data())
    }

    /// Makes a failed sync stick, and fails one that seems to have succeeded after it.
    fn finish_sync(&self, op: Operation, name: &str, result: io::Result<()>) -> Result<()> {
        if let Err(source) = result {
            self.sync_failed.store(true, Ordering::SeqCst);
            return Err(MediumError::from_io(op, name, source));
        }
        if self.sync_failed.load(Ordering::SeqCst) {
            return Err(MediumError::SyncFailedBefore { op, name: FileName::new(name) });
        }
        Ok(())
    }

    pub(super) fn sync_dir(&self, dir: &str) -> Result<()> {
        let op = Operation::SyncDirectory;
        let fd = self.open_dir(op, dir)?;
        let result = match rustix::fs::fsync(&fd) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) if self.forgives_dir_sync => Ok(()),
            result => result.map_err(io::Error::from),
        };
        self.finish_sync(op, dir, result)
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let op = Operation::Rename;
        self.may_write(op, from)?;
        FileName::check(op, from)?;
        FileName::check(op, to)?;
        let (old, new) = (self.at(from), self.at(to));
        rustix::fs::renameat(old.0, old.1, new.0, new.1)
            .map_err(|errno| MediumError::from_io(op, from, errno.into()))?;
        let mut unsynced = self.unsynced();
        unsynced.remove(to);
        if let Some(file) = unsynced.remove(from) {
            unsynced.insert(to.to_owned(), file);
        }
        Ok(())
    }

    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let op = Operation::Remove;
        self.may_write(op, name)?;
        FileName::check(op, name)?;
        let (dir, path) = self.at(name);
        rustix::fs::unlinkat(dir, path, AtFlags::empty())
            .map_err(|errno| MediumError::from_io(op, name, errno.into()))?;
        self.unsynced().remove(name);
        Ok(())
    }

    pub(super) fn list(&self, dir: &str) -> Result<Vec<String>> {
        let op = Operation::List;
        let failed = |errno: Errno| MediumError::from_io(op, dir, errno.into());
        let fd = self.open_dir(op, dir)?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                names.push(name.to_string_lossy().into_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn make_dir(&self, name: &str) -> Result<()> {
        let op = Operation::MakeDirectory;
        self.may_write(op, name)?;
        FileName::check(op, name)?;
        let (dir, path) = self.at(name);
        rustix::fs::mkdirat(dir, path, Mode::from_raw_mode(DIR_MODE))
            .map_err(|errno| MediumError::from_io(op, name, errno.into()))?;
        self.owner.give_dir((dir, path), name, self.dir())
    }

    pub(super) fn lock(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<LockGuard, LockHolder>> {
        // A descriptor kept for a sync would drop the lock when it is closed.
        self.unsynced().remove(name);
        let made = |file: &File| self.owner.give(Operation::Lock, name, file, self.dir());
        let locked = lock::lock(self.at(name), name, (kind, self.writable), made)?;
        if locked.is_ok() {
            self.lock_name.get_or_init(|| FileName::new(name));
        }
        Ok(locked)
    }

    pub(super) fn hold(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<(LockGuard, FileId), LockHolder>> {
        super::hold::hold(self.at(name), name, kind)
    }

    pub(super) fn hold_dir(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<Option<LockGuard>, LockHolder>> {
        super::hold::hold_dir(self.dir(), name, kind, |dir| self.beneath.keep(name, dir))
    }

    pub(super) fn is_mounted(&self, dir: &str) -> Result<bool> {
        super::hold::is_mounted(self.beneath.at_dir(self.dir(), dir), dir)
    }

    pub(super) fn file_id(&self, name: &str) -> Result<FileId> {
        super::hold::file_id(self.at(name), name)
    }

    pub(super) fn is_byte_held(&self, name: &str, at: u64) -> Result<bool> {
        super::hold::is_byte_held(self.at(name), name, at)
    }

    /// A fresh descriptor of a directory; `""` is the store's own.
    fn open_dir(&self, op: Operation, dir: &str) -> Result<OwnedFd> {
        if !dir.is_empty() {
            FileName::check(op, dir)?;
        }
        let (top, path) = self.beneath.at_dir(self.dir(), dir);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(top, path, flags, Mode::empty())
            .map_err(|errno| MediumError::from_io(op, dir, errno.into()))
    }
}

/// Writes all of `data` into a file that is open. Beyond what this process may write to a file that
/// is an error, and no signal.
pub(crate) fn write_open(file: &File, name: &str, offset: u64, data: &[u8]) -> Result<()> {
    let op = Operation::Write;
    let end = check_end(op, name, offset, data.len())?;
    let failed = |source| failed_for_space(op, name, data.len() as u64, source);
    check_size_limit(end).map_err(failed)?;
    file.write_all_at(data, offset).map_err(failed)
}

/// Takes the space of the first `len_bytes` of an empty file, which then read as zeros.
fn take_space(file: &File, len_bytes: u64) -> io::Result<()> {
    match allocate(file, FallocateFlags::empty(), 0, len_bytes) {
        Ok(()) => Ok(()),
        // What was taken before is written once more, which changes nothing.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, 0, len_bytes),
        Err(errno) => Err(errno.into()),
    }
}

/// `fallocate` in steps, each repeated when a signal interrupts it.
fn allocate(
    file: &File,
    flags: FallocateFlags,
    offset: u64,
    len: u64,
) -> core::result::Result<(), Errno> {
    in_steps(len, |at, step| rustix::fs::fallocate(file, flags, offset + at, step))
}

/// Calls `take` for parts of `len` bytes in order. A part that is interrupted is taken in smaller
/// ones; without progress that ends with the error.
fn in_steps(
    len: u64,
    mut take: impl FnMut(u64, u64) -> core::result::Result<(), Errno>,
) -> core::result::Result<(), Errno> {
    let (mut done, mut chunk, mut interruptions) = (0, ALLOCATE_CHUNK, 0);
    while done < len {
        let step = chunk.min(len - done);
        match take(done, step) {
            Ok(()) => (done, interruptions) = (done + step, 0),
            Err(Errno::INTR) if interruptions < INTERRUPTIONS_MAX => {
                interruptions += 1;
                chunk = (chunk / 2).max(PAGE_SIZE);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Refuses a range that is not made of whole pages of the file.
fn check_pages(op: Operation, name: &str, offset: u64, len: u64, file: &File) -> Result<()> {
    let size = file.metadata().map_err(|source| MediumError::from_io(op, name, source))?.len();
    let whole = offset.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && len != 0;
    if whole && offset.checked_add(len).is_some_and(|end| end <= size) {
        return Ok(());
    }
    let reason = "the range is not made of whole pages of the file";
    Err(MediumError::BadRange { op, name: FileName::new(name), addr: offset, len, reason })
}

/// Takes space where the file system has no `fallocate`, by writing.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0u8; 1 << 20];
    let mut done = from;
    while done < to {
        let step = (to - done).min(zeros.len() as u64);
        file.write_all_at(&zeros[..step as usize], done)?;
        done += step;
    }
    Ok(())
}

fn read_until_full(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The end of a range of a file, if it has one.
fn check_end(op: Operation, name: &str, offset: u64, len: usize) -> Result<u64> {
    match offset.checked_add(len as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(end),
        _ => Err(MediumError::BadRange {
            op,
            name: FileName::new(name),
            addr: offset,
            len: len as u64,
            reason: "the range ends beyond what a file can hold",
        }),
    }
}

/// A length that the process may not give a file is an error here; to the system it would be a
/// reason to send `SIGXFSZ`, which ends the process.
fn check_size_limit(len_bytes: u64) -> io::Result<()> {
    let limit =
        rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    if len_bytes > limit || i64::try_from(len_bytes).is_err() {
        return Err(Errno::FBIG.into());
    }
    Ok(())
}

/// An error that carries the number of bytes for which there was no space.
fn failed_for_space(
    op: Operation,
    name: &str,
    wanted_bytes: u64,
    source: io::Error,
) -> MediumError {
    match MediumError::from_io(op, name, source) {
        MediumError::NoSpace { op, name, source, .. } => {
            MediumError::NoSpace { op, name, needed_bytes: wanted_bytes, source }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
