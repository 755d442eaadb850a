//! Descriptors that a service manager has opened for this process: `LISTEN_FDS` and `LISTEN_PID`,
//! as systemd passes sockets.
//!
//! They are numbered from 3 on. The environment says how many, and for which process: a child that
//! has inherited the environment is not meant.
//!
//! # Safety argument
//!
//! A number becomes an owned descriptor if the environment says that it was opened for this very
//! process, and the kernel says that it is open. That happens once in a process's life: the second
//! call returns nothing, so that no descriptor has two owners. It has to happen before the program
//! opens anything, which only the caller can know; so [`take`] is unsafe.

use rustix::io::FdFlags;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of the first one.
const FIRST: RawFd = 3;
/// More than a service of ours is ever passed.
const MOST: i32 = 64;

/// Why what the environment says is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassedError {
    /// A variable does not say a number that makes sense.
    #[error(
        "the environment variable {name} is {value:?}, which is no valid number of descriptors or \
         of a process: start the service by its manager (systemd), or without LISTEN_PID and \
         LISTEN_FDS"
    )]
    Variable {
        /// Its name.
        name: &'static str,
        /// What it says.
        value: String,
    },
    /// A descriptor that should have been passed is not there.
    #[error(
        "descriptor {fd} is not open, although LISTEN_FDS says that the service manager passed it: \
         start the service by its manager (systemd), or without LISTEN_PID and LISTEN_FDS"
    )]
    Closed {
        /// Its number.
        fd: RawFd,
    },
}

/// How many descriptors the environment says were passed to the process `own`.
fn said(own: u32, pid: Option<&str>, count: Option<&str>) -> Result<i32, PassedError> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(0) };
    let wrong = |name, value: &str| PassedError::Variable { name, value: value.into() };
    let pid: u32 = pid.parse().map_err(|_| wrong("LISTEN_PID", pid))?;
    if pid != own {
        return Ok(0);
    }
    match count.parse() {
        Ok(count) if (0..=MOST).contains(&count) => Ok(count),
        _ => Err(wrong("LISTEN_FDS", count)),
    }
}

/// The descriptors that were passed to this process; none if none were, or if they have been taken.
/// They are closed in programs that this one starts.
///
/// # Safety
/// Nothing in this process uses descriptors of these numbers as its own: it is called before
/// anything else is opened.
///
/// # Errors
/// [`PassedError`].
pub unsafe fn take() -> Result<Vec<OwnedFd>, PassedError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let (pid, count) = (variable("LISTEN_PID"), variable("LISTEN_FDS"));
    let count = said(crate::process::pid(), pid.as_deref(), count.as_deref())?;
    if count == 0 || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let mut passed = Vec::new();
    for fd in FIRST..FIRST + count {
        // SAFETY: only asked about; if nothing is open there the kernel says so.
        let there = unsafe { BorrowedFd::borrow_raw(fd) };
        rustix::io::fcntl_setfd(there, FdFlags::CLOEXEC).map_err(|_| PassedError::Closed { fd })?;
        // SAFETY: open, and passed to this process, which takes it once; the caller promises that
        // no other part of the process owns it.
        passed.push(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_for_the_process_that_the_environment_names() {
        assert_eq!(said(7, None, None), Ok(0));
        assert_eq!(said(7, Some("7"), None), Ok(0));
        assert_eq!(said(7, Some("8"), Some("1")), Ok(0), "another process's");
        assert_eq!(said(7, Some("7"), Some("2")), Ok(2));
        for (pid, count) in [("x", "1"), ("", "1"), ("7", "-1"), ("7", "65"), ("7", "1x")] {
            assert!(said(7, Some(pid), Some(count)).is_err(), "{pid} {count}");
        }
    }

    #[test]
    fn a_process_that_was_passed_nothing_takes_nothing() {
        // SAFETY: the test's environment names no descriptors, or those of another process.
        assert!(unsafe { take() }.is_ok_and(|taken| taken.is_empty()));
    }
}
