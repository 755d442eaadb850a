//! Record locks (`fcntl`) over a whole file, which tell the processes that have a store open.
//!
//! POSIX record locks, because they
//! * vanish when their process dies, however it dies;
//! * are not inherited by a forked child (`flock` and open-file-description locks are);
//! * name their holder's process.
//!
//! What comes with them, and what callers must see to:
//! * they belong to the *process*: a second lock of one process on the same file always succeeds,
//!   so locks within a process need a registry of their own;
//! * closing *any* descriptor of the file in the process drops them: open the lock file once, and
//!   close it last.
//!
//! # Safety argument
//!
//! No `unsafe` code.

use core::fmt;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use std::io;
use std::os::fd::BorrowedFd;

/// What a lock excludes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RecordLockKind {
    /// Excludes exclusive locks. The descriptor must be open for reading.
    Shared,
    /// Excludes every other lock. The descriptor must be open for writing.
    Exclusive,
}

/// The process that holds a lock which stands in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct HolderPid(
    /// The process number; `None` where the kernel cannot say: another machine (network file
    /// systems), another process namespace, or a holder that let go meanwhile.
    pub Option<u32>,
);

impl fmt::Display for HolderPid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("an unknown process"),
        }
    }
}

/// How often a lock is tried again if its holder lets go between the refusal and the question for
/// the holder.
const ATTEMPTS: usize = 8;

/// Takes the lock, or changes the one that this process has, without waiting. `Ok(Err(holder))`:
/// another process has it.
///
/// # Errors
/// `EBADF` if the descriptor is not open for what `kind` needs; `ENOLCK` where the file system has
/// no locks or no more of them; otherwise what the system call says.
pub fn try_lock(fd: BorrowedFd<'_>, kind: RecordLockKind) -> io::Result<Result<(), HolderPid>> {
    let (operation, typ) = match kind {
        RecordLockKind::Shared => (FlockOperation::NonBlockingLockShared, FlockType::ReadLock),
        RecordLockKind::Exclusive => {
            (FlockOperation::NonBlockingLockExclusive, FlockType::WriteLock)
        }
    };
    for _ in 0..ATTEMPTS {
        match fcntl_lock(fd, operation) {
            Ok(()) => return Ok(Ok(())),
            // POSIX allows either for a lock that another process holds.
            Err(Errno::AGAIN | Errno::ACCESS) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if let Some(holder) = fcntl_getlk(fd, &Flock::from(typ))? {
            let pid = holder.pid.map(|pid| pid.as_raw_nonzero().get());
            return Ok(Err(HolderPid(pid.and_then(|pid| u32::try_from(pid).ok()))));
        }
    }
    Ok(Err(HolderPid(None)))
}

/// Drops this process's lock on the file; nothing if it has none.
///
/// # Errors
/// What the system call says.
pub fn unlock(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_lock(fd, FlockOperation::NonBlockingUnlock)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::in_child;
    use std::os::fd::AsFd;

    fn in_child_try(fd: BorrowedFd<'_>, kind: RecordLockKind) -> i32 {
        let parent = crate::process::pid();
        in_child(|| match try_lock(fd, kind) {
            Ok(Ok(())) => 0,
            Ok(Err(HolderPid(Some(pid)))) if pid == parent => 1,
            Ok(Err(_)) => 2,
            Err(_) => 3,
        })
    }

    #[test]
    fn a_lock_excludes_a_child_and_names_the_holder() {
        let file = tempfile::tempfile().expect("temporary file");
        let fd = file.as_fd();
        assert_eq!(try_lock(fd, RecordLockKind::Exclusive).expect("lock"), Ok(()));
        // The child has the very descriptor, and still does not have the lock.
        assert_eq!(in_child_try(fd, RecordLockKind::Exclusive), 1);
        assert_eq!(in_child_try(fd, RecordLockKind::Shared), 1);
        unlock(fd).expect("unlock");
        assert_eq!(in_child_try(fd, RecordLockKind::Exclusive), 0);
    }

    #[test]
    fn shared_locks_go_together_and_exclude_exclusive_ones() {
        let file = tempfile::tempfile().expect("temporary file");
        let fd = file.as_fd();
        assert_eq!(try_lock(fd, RecordLockKind::Shared).expect("lock"), Ok(()));
        assert_eq!(in_child_try(fd, RecordLockKind::Shared), 0);
        assert_eq!(in_child_try(fd, RecordLockKind::Exclusive), 1);
    }

    #[test]
    fn a_killed_holder_leaves_no_lock() {
        let file = tempfile::tempfile().expect("temporary file");
        let fd = file.as_fd();
        let holder = crate::testing::spawn_child(|| {
            // The parent, which looks whether the lock is taken, may have it for a moment.
            while !matches!(try_lock(fd, RecordLockKind::Exclusive), Ok(Ok(()))) {
                std::thread::yield_now();
            }
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        });
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while try_lock(fd, RecordLockKind::Shared).expect("lock")
            != Err(HolderPid(Some(holder.pid())))
        {
            unlock(fd).expect("unlock");
            assert!(std::time::Instant::now() < end, "the child never took the lock");
            std::thread::yield_now();
        }
        holder.kill();
        assert_eq!(try_lock(fd, RecordLockKind::Exclusive).expect("lock"), Ok(()));
    }

    #[test]
    fn a_descriptor_of_the_wrong_kind_is_an_error_and_not_a_holder() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let reader = std::fs::File::open(file.path()).expect("open");
        let error = try_lock(reader.as_fd(), RecordLockKind::Exclusive)
            .expect_err("an exclusive lock needs writing");
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
    }
}
