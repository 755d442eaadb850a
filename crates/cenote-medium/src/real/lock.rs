//! Locks on a store, between processes and within one.
//!
//! Between processes: POSIX record locks, which the kernel drops when their process dies, which a
//! forked child does not inherit, and which name their holder. They have two traps. A process never
//! conflicts with itself, so a table of this process's locks, by device and inode, refuses a second
//! one. And closing *any* descriptor of the file drops them, so nothing in this process may open a
//! locked file: the table is asked before every open, by name and then by inode.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use cenote_sys::process_lock::{ProcessGuard, ProcessLock};
use cenote_sys::record_lock::{self, HolderPid, RecordLockKind};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::{FileName, LockGuard, LockHolder, LockKind, MediumError, Operation};

/// Permissions of new files, before the user's umask.
pub(super) const FILE_MODE: u32 = 0o666;

/// A file locked by this process, once however many guards share it.
struct HeldFile {
    device: u64,
    inode: u64,
    /// The last part of its name: spares a system call for every open of another file.
    name: String,
    kind: LockKind,
    guards: usize,
    /// The process that took it: a forked child inherits this table, and none of the locks.
    pid: u32,
    file: File,
}

static HELD: ProcessLock<Vec<HeldFile>> = ProcessLock::new(Vec::new());

/// Locked by this process; entries of a parent are closed and forgotten (in a child that frees only
/// descriptors).
fn held() -> ProcessGuard<Vec<HeldFile>> {
    let mut held = HELD.lock();
    let pid = cenote_sys::process::pid();
    held.retain(|entry| entry.pid == pid);
    held
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Device and inode of a name, without opening it. `None` if there is nothing.
fn identity(
    (dir, path): (BorrowedFd<'_>, &str),
    op: Operation,
    name: &str,
) -> Result<Option<(u64, u64)>, MediumError> {
    match rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some((stat.st_dev, stat.st_ino))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => Err(MediumError::from_io(op, name, errno.into())),
    }
}

/// Refuses to let a file be opened that this process has locked.
pub(super) fn refuse_if_locked(
    at: (BorrowedFd<'_>, &str),
    op: Operation,
    name: &str,
) -> Result<(), MediumError> {
    let held = held();
    if !held.iter().any(|entry| entry.name == last_part(name)) {
        return Ok(());
    }
    let found = identity(at, op, name)?;
    if held.iter().any(|entry| found == Some((entry.device, entry.inode))) {
        return Err(MediumError::Locked { op, name: FileName::new(name) });
    }
    Ok(())
}

/// Locks a file of a directory; see [`Medium::lock`](crate::Medium::lock).
pub(super) fn lock(
    at: (BorrowedFd<'_>, &str),
    name: &str,
    (kind, writable): (LockKind, bool),
    made: impl Fn(&File) -> Result<(), MediumError>,
) -> Result<Result<LockGuard, LockHolder>, MediumError> {
    let op = Operation::Lock;
    FileName::check(op, name)?;
    if kind == LockKind::Exclusive && !writable {
        return Err(MediumError::ReadOnly { op, name: FileName::new(name) });
    }
    // Held throughout, so that no two threads open the file at once: the one that fails would close
    // it.
    let mut held = held();
    let found = identity(at, op, name)?;
    if let Some(entry) = held.iter_mut().find(|entry| found == Some((entry.device, entry.inode))) {
        if entry.kind == LockKind::Exclusive || kind == LockKind::Exclusive {
            return Ok(Err(this_process(entry.kind)));
        }
        entry.guards += 1;
        return Ok(Ok(LockGuard::new(Guard {
            device: entry.device,
            inode: entry.inode,
            pid: entry.pid,
        })));
    }

    let mut flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    flags |= match kind {
        LockKind::Exclusive => OFlags::RDWR,
        LockKind::Shared => OFlags::RDONLY,
    };
    if writable {
        flags |= OFlags::CREATE;
    }
    let file = rustix::fs::openat(at.0, at.1, flags, Mode::from_raw_mode(FILE_MODE))
        .map(File::from)
        .map_err(|errno| MediumError::from_io(op, name, errno.into()))?;
    let stat =
        rustix::fs::fstat(&file).map_err(|errno| MediumError::from_io(op, name, errno.into()))?;
    if found.is_none() {
        made(&file)?;
    }
    let sys_kind = match kind {
        LockKind::Shared => RecordLockKind::Shared,
        LockKind::Exclusive => RecordLockKind::Exclusive,
    };
    match record_lock::try_lock(file.as_fd(), sys_kind) {
        Ok(Ok(())) => {}
        Ok(Err(holder)) => return Ok(Err(other_process(holder))),
        Err(source) => return Err(MediumError::from_io(op, name, source)),
    }
    let (device, inode, pid) = (stat.st_dev, stat.st_ino, cenote_sys::process::pid());
    held.push(HeldFile {
        device,
        inode,
        name: last_part(name).to_owned(),
        kind,
        guards: 1,
        pid,
        file,
    });
    Ok(Ok(LockGuard::new(Guard { device, inode, pid })))
}

/// One holder of an entry of the table.
struct Guard {
    device: u64,
    inode: u64,
    pid: u32,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if cenote_sys::process::pid() != self.pid {
            // A forked child: the lock is its parent's, and the table may have been forked while it
            // was held.
            return;
        }
        let mut held = held();
        let same = |entry: &HeldFile| (entry.device, entry.inode) == (self.device, self.inode);
        let Some(at) = held.iter().position(same) else { return };
        held[at].guards -= 1;
        if held[at].guards == 0 {
            let entry = held.swap_remove(at);
            // Closing drops the lock in any case.
            let _ = record_lock::unlock(entry.file.as_fd());
            drop(entry);
        }
    }
}

fn this_process(kind: LockKind) -> LockHolder {
    let pid = cenote_sys::process::pid();
    let how = match kind {
        LockKind::Exclusive => "which has it open for writing already",
        LockKind::Shared => {
            "a handle of which has it open for reading, and keeps writers out until it is dropped"
        }
    };
    LockHolder { pid: Some(pid), text: format!("this process ({pid}), {how}") }
}

fn other_process(HolderPid(pid): HolderPid) -> LockHolder {
    let text = match pid {
        Some(pid) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("process {pid} ({})", name.trim().escape_debug()),
            Err(_) => format!("process {pid}"),
        },
        None => {
            "a process that this one cannot see: of another container or another machine".to_owned()
        }
    };
    LockHolder { pid, text }
}
