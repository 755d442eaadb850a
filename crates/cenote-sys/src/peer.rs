//! Identifies the process at the other end of a UNIX-domain socket, and tells when it ends.
//!
//! The kernel noted the peer's credentials when it connected; nothing that the peer says enters
//! into them. A process number alone is not enough: the peer may have ended, and its number may be
//! another's. So the process is held by a *pidfd*, from the socket itself where the kernel gives
//! one (`SO_PEERPIDFD`, Linux 6.5), which names the process that connected and no other. Elsewhere
//! it is opened by number, and a caller that relies on it asks first whether the socket is still
//! connected.
//!
//! # Safety argument
//!
//! `getsockopt` is given a buffer and its true length, and what it wrote is used as far as it says
//! that it wrote.

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Most supplementary groups that are asked for; a process of more is known by the first ones.
const GROUPS_MAX: usize = 4096;

/// The process at the other end.
#[derive(Debug)]
pub struct Peer {
    /// Its number, in this process's namespace.
    pub pid: u32,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
    /// The process.
    pub process: OwnedFd,
}

/// The process that connected `socket`.
///
/// # Errors
/// What the kernel says; `ESRCH` if that process is gone.
pub fn of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let credentials = credentials_of(socket)?;
    let Some(pid) = rustix::process::Pid::from_raw(credentials.pid) else {
        // Of another namespace: this process cannot see when it ends.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    };
    let process = match pidfd_of(socket) {
        Ok(process) => process,
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?
        }
        Err(error) => return Err(error),
    };
    Ok(Peer {
        pid: pid.as_raw_nonzero().get().cast_unsigned(),
        uid: credentials.uid,
        gid: credentials.gid,
        groups: groups_of(socket)?,
        process,
    })
}

/// Whether [`of`] says by this error that the process cannot be seen from here: it is gone, or in
/// another process namespace.
#[must_use]
pub fn is_unseen(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// Holds a process that is known by number and start time. `None`: it has ended.
///
/// # Errors
/// What the kernel says of `pidfd_open`.
pub fn process(pid: u32, start_ticks: u64) -> io::Result<Option<OwnedFd>> {
    let Some(number) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return Ok(None);
    };
    let held = match rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()) {
        Ok(held) => held,
        Err(Errno::SRCH) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    // Asked after it is held: if it is this one now, it was when it was opened.
    Ok(crate::process::is_alive(pid, start_ticks).then_some(held))
}

/// Whether the process has ended: all of its threads.
#[must_use]
pub fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1))
}

/// Whether the other end of a connected socket is closed. What it sent before may wait to be read.
#[must_use]
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1))
}

fn credentials_of(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: buffer and length are those of `credentials`, of which every value is one.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            core::ptr::from_mut(&mut credentials).cast(),
            &mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(credentials)
}

fn pidfd_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `SO_PEERPIDFD`: the C library's header does not have it everywhere.
    const PEER_PIDFD: i32 = 77;
    let mut fd: i32 = -1;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: buffer and length are those of `fd`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PEER_PIDFD,
            core::ptr::from_mut(&mut fd).cast(),
            &mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for us just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn groups_of(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut len = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: buffer and length are those of `groups`.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if done == 0 {
            groups.truncate(len as usize / size_of::<u32>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || groups.len() >= GROUPS_MAX {
            return Err(error);
        }
        groups.resize(GROUPS_MAX, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (ours, _theirs) = UnixStream::pair().expect("pair");
        let peer = of(ours.as_fd()).expect("peer");
        assert_eq!((peer.pid, peer.uid), (crate::process::pid(), crate::process::uid()));
        assert_eq!(peer.gid, crate::process::gid());
        assert!(!has_ended(peer.process.as_fd()));
    }

    #[test]
    fn an_end_has_hung_up_when_the_last_descriptor_of_it_is_closed() {
        use std::io::Write;
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        theirs.write_all(b"to be read").expect("write");
        let copy = theirs.try_clone().expect("clone");
        drop(theirs);
        assert!(!has_hung_up(ours.as_fd()));
        drop(copy);
        assert!(has_hung_up(ours.as_fd()));
    }

    #[test]
    fn a_child_ends_once_and_is_known_by_its_start() {
        let mut child =
            std::process::Command::new("sleep").arg("100").spawn().expect("start sleep");
        let ticks = crate::process::start_ticks(child.id()).expect("start time");
        assert!(
            process(child.id(), ticks + 1).expect("open").is_none(),
            "another one of that number"
        );
        let held = process(child.id(), ticks).expect("open").expect("it lives");
        assert!(!has_ended(held.as_fd()));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(has_ended(held.as_fd()));
        assert!(process(child.id(), ticks).expect("open").is_none());
        assert!(process(0, 1).expect("none").is_none());
    }
}
