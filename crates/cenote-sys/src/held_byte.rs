//! Holds a byte of a file by an *open file description*, which shows other processes that its owner
//! still runs.
//!
//! The lock is on a byte, which need not be there, and belongs to the description: to all copies of
//! one descriptor, in all processes. The kernel ends it when the last copy is closed, by any means:
//! a call, `exec` where the descriptor closes on that, the end of a process. So a process that
//! gives the only copy to another one can ask, also after a restart, whether that process still has
//! it.
//!
//! # Safety argument
//!
//! `fcntl` is given a `flock` that lives during the call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Has the description that `fd` belongs to hold the byte at `at`, beside others that hold it.
/// False: this file has no such locks.
///
/// # Errors
/// What the system call says.
pub fn hold(fd: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    match lock(fd, libc::F_OFD_SETLK, libc::F_RDLCK, at) {
        Ok(_) => Ok(true),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Whether another description of the file holds the byte at `at`.
///
/// # Errors
/// What the system call says: this file has no such locks.
pub fn is_held(fd: BorrowedFd<'_>, at: u64) -> io::Result<bool> {
    Ok(lock(fd, libc::F_OFD_GETLK, libc::F_WRLCK, at)? != libc::F_UNLCK)
}

fn lock(fd: BorrowedFd<'_>, command: i32, kind: i32, at: u64) -> io::Result<i32> {
    let Ok(at) = libc::off_t::try_from(at) else { return Err(io::ErrorKind::InvalidInput.into()) };
    let whence = libc::SEEK_SET as libc::c_short;
    let kind = kind as libc::c_short;
    let mut range = libc::flock { l_type: kind, l_whence: whence, l_start: at, l_len: 1, l_pid: 0 };
    loop {
        // SAFETY: These commands take `range`, which lives until the call is back.
        if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut range) } != -1 {
            return Ok(i32::from(range.l_type));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn a_byte_is_held_until_the_last_copy_of_its_descriptor_is_closed() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let judge = file.reopen().expect("open");
        let held = |at| is_held(judge.as_fd(), at).expect("asked");
        // For reading only, beyond the end.
        let holder = File::open(file.path()).expect("open");
        assert!(hold(holder.as_fd(), 1 << 61).expect("hold"));
        assert!(held(1 << 61) && !held((1 << 61) + 1) && !held(0));
        let other = File::open(file.path()).expect("open");
        assert!(hold(other.as_fd(), 1 << 61).expect("hold beside"));
        drop(other);
        let copy = holder.try_clone().expect("clone");
        drop(holder);
        // Nor does closing any other descriptor of the file change that.
        drop(File::open(file.path()).expect("open"));
        assert!(held(1 << 61), "a copy is there");
        drop(copy);
        assert!(!held(1 << 61));
        assert!(hold(judge.as_fd(), u64::MAX).is_err());
    }

    #[test]
    fn programs_that_are_started_do_not_keep_it() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let holder = File::open(file.path()).expect("open");
        assert!(hold(holder.as_fd(), 7).expect("hold"));
        let mut child =
            std::process::Command::new("sleep").arg("100").spawn().expect("start sleep");
        drop(holder);
        let judge = file.reopen().expect("open");
        let held = || is_held(judge.as_fd(), 7).expect("asked");
        // The child closes its copy when it begins to run the program, which need not be yet.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while held() && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        let held = held();
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(!held);
    }
}
