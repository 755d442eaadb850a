//! Locks on a store that no closing of other descriptors drops: on the store's directories, and on
//! its superblock.
//!
//! `lock.rs` has a record lock on the file `lock`, which names its holder and has a trap: any code
//! of the process that opens and closes that file drops it. The locks here belong to descriptors
//! that nothing else has ([`cenote_sys::description_lock`]). What they exclude:
//!
//! * The *directory* is one inode for every path, symbolic link and bind mount that leads to it,
//!   also if the files in it change. Where its file system has no locks on directories, there is
//!   none.
//! * The *superblock* is one inode for every directory that it is linked into.
//! * The directories of *puddles* and *primaries* are one inode each for every store that they are
//!   mounted into ([`hold_dir`]). Each costs two opens and a lock, or an open if it is missing.
//!   What is mounted over one later is not looked at (`beneath`).
//!
//! A name may be given to another file between opening and locking; so the name is looked up again
//! under the lock, and all begins anew if it leads elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use cenote_sys::description_lock::{DescriptionLock, Scope};
use cenote_sys::held_byte;
use cenote_sys::record_lock::RecordLockKind;
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::planted::{Bug, planted};
use crate::{FileId, FileName, LockGuard, LockHolder, LockKind, MediumError, Operation};

type Result<T> = core::result::Result<T, MediumError>;

/// How often a name is looked up that leads elsewhere each time.
const ATTEMPTS: usize = 16;

/// See [`Medium::hold`](crate::Medium::hold).
pub(super) fn hold(
    at: (BorrowedFd<'_>, &str),
    name: &str,
    kind: LockKind,
) -> Result<core::result::Result<(LockGuard, FileId), LockHolder>> {
    let op = Operation::Lock;
    if planted(Bug::StoreNotHeld) {
        return Ok(Ok((LockGuard::new(()), file_id(at, name)?)));
    }
    let kind = in_system(kind);
    let scope = if name.is_empty() { Scope::Directory } else { Scope::File };
    for _ in 0..ATTEMPTS {
        let taken = DescriptionLock::try_take(scope, kind, || open(at, kind));
        let lock = match taken {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(Err(unknown("its directory or its superblock"))),
            Err(error) if scope == Scope::Directory && has_no_locks(&error) => {
                return Ok(Ok((LockGuard::new(()), file_id(at, name)?)));
            }
            Err(source) => return Err(MediumError::from_io(op, name, source)),
        };
        let failed = |errno: Errno| MediumError::from_io(op, name, errno.into());
        let Some(fd) = lock.fd() else { return Err(failed(Errno::BADF)) };
        let stat = rustix::fs::fstat(fd).map_err(failed)?;
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        if scope == Scope::Directory || file_id(at, name)? == id {
            return Ok(Ok((LockGuard::new(lock), id)));
        }
    }
    Ok(Err(unknown("its directory or its superblock")))
}

/// See [`Medium::hold_dir`](crate::Medium::hold_dir). `keep` gets what names in it are looked up
/// from.
pub(super) fn hold_dir(
    dir: BorrowedFd<'_>,
    name: &str,
    kind: LockKind,
    keep: impl FnOnce(OwnedFd) -> Result<()>,
) -> Result<core::result::Result<Option<LockGuard>, LockHolder>> {
    let op = Operation::Lock;
    FileName::check(op, name)?;
    if planted(Bug::StoreNotHeld) || planted(Bug::DirectoriesNotHeld) {
        let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        return Ok(Ok(found.then(|| LockGuard::new(()))));
    }
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let found = match rustix::fs::openat(dir, name, flags | OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Ok(None)),
        found => found.map_err(|errno| MediumError::from_io(op, name, errno.into()))?,
    };
    let open = || Ok(rustix::fs::openat(&found, ".", flags | OFlags::RDONLY, Mode::empty())?);
    match DescriptionLock::try_take(Scope::Directory, in_system(kind), open) {
        Ok(Some(lock)) => {
            keep(found)?;
            Ok(Ok(Some(LockGuard::new(lock))))
        }
        Ok(None) => Ok(Err(unknown(&format!(
            "its directory \"{name}\", which may be another store's too (a bind mount)"
        )))),
        Err(error) if has_no_locks(&error) => {
            keep(found)?;
            Ok(Ok(Some(LockGuard::new(()))))
        }
        Err(source) => Err(MediumError::from_io(op, name, source)),
    }
}

fn in_system(kind: LockKind) -> RecordLockKind {
    match kind {
        LockKind::Shared => RecordLockKind::Shared,
        LockKind::Exclusive => RecordLockKind::Exclusive,
    }
}

/// See [`Medium::file_id`](crate::Medium::file_id).
pub(super) fn file_id((dir, path): (BorrowedFd<'_>, &str), name: &str) -> Result<FileId> {
    let op = Operation::Examine;
    let found = if name.is_empty() {
        rustix::fs::fstat(dir)
    } else {
        FileName::check(op, name)?;
        rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW)
    };
    let stat = found.map_err(|errno| MediumError::from_io(op, name, errno.into()))?;
    Ok(FileId { device: stat.st_dev, inode: stat.st_ino })
}

/// See [`Medium::is_mounted`](crate::Medium::is_mounted).
pub(super) fn is_mounted((dir, path): (BorrowedFd<'_>, &str), name: &str) -> Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(dir, path, flags, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        // A kernel of before cannot tell.
        Err(Errno::NOSYS) => Ok(false),
        Err(errno) => Err(MediumError::from_io(Operation::Examine, name, errno.into())),
    }
}

/// See [`Medium::is_byte_held`](crate::Medium::is_byte_held).
pub(super) fn is_byte_held(place: (BorrowedFd<'_>, &str), name: &str, at: u64) -> Result<bool> {
    let op = Operation::Lock;
    FileName::check(op, name)?;
    let file = match open(place, RecordLockKind::Shared) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(MediumError::from_io(op, name, source)),
    };
    match held_byte::is_held(file.as_fd(), at) {
        Ok(held) => Ok(held),
        Err(error) if has_no_locks(&error) => Ok(false),
        Err(source) => Err(MediumError::from_io(op, name, source)),
    }
}

fn open((dir, name): (BorrowedFd<'_>, &str), kind: RecordLockKind) -> io::Result<OwnedFd> {
    let (path, flags) = match (name, kind) {
        ("", _) => (".", OFlags::RDONLY | OFlags::DIRECTORY),
        (name, RecordLockKind::Shared) => (name, OFlags::RDONLY),
        (name, RecordLockKind::Exclusive) => (name, OFlags::RDWR),
    };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::openat(dir, path, flags, Mode::empty())?)
}

/// Whether a file system says so that it does not lock directories: one of another machine turns
/// `flock` into record locks, which ask for a descriptor open for writing.
fn has_no_locks(error: &io::Error) -> bool {
    let none =
        [Errno::BADF, Errno::OPNOTSUPP, Errno::NOSYS, Errno::NOLCK, Errno::INVAL, Errno::ISDIR];
    none.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn unknown(what: &str) -> LockHolder {
    LockHolder { pid: None, text: format!("a process that holds {what}") }
}
