//! Memory whose first access waits for a thread: userfaultfd, for pages that are not there.
//!
//! A range of a reservation is *watched*. An access to it sleeps until a thread has mapped
//! something else in its place and calls [`FirstTouch::wake`]; then the access is tried again, and
//! finds the new mapping. The access may be an instruction of the program or, where the process has
//! the right, one of the kernel inside a system call. Nothing is ever filled in through userfaultfd
//! itself: it only makes accesses wait.
//!
//! # Safety argument
//!
//! A range that is watched is readable and writable memory to the kernel, but has no page, and gets
//! none but by the thread: its registration comes before the permission. The caller answers for the
//! range being a reservation of its own. Mapping over a watched range ends its registration. When
//! this value is dropped the kernel wakes all waiting accesses; ranges that are still there are
//! plain zeros from then on, so the caller takes them away before.

use crate::memory::{self, Access};
use crate::probe::{Availability, Missing, UserfaultfdMode, handshake, ioctl, open_userfaultfd};
use linux_raw_sys::general as raw;
use linux_raw_sys::general::{uffdio_range, uffdio_register};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use std::io;
use std::os::fd::OwnedFd;

/// Bytes of a message of the kernel's; byte 0 is its kind, bytes 16 to 23 the address.
const MESSAGE_LEN: usize = 32;

/// Watched ranges, and the thread's way to hear of touches.
#[derive(Debug)]
pub struct FirstTouch {
    fd: OwnedFd,
    stop: OwnedFd,
    mode: UserfaultfdMode,
}

impl FirstTouch {
    /// For no range yet.
    ///
    /// # Errors
    /// The reason why there is none: a container or the kernel refuses.
    pub fn open() -> Availability<Self> {
        let (fd, mode) = open_userfaultfd()?;
        handshake(&fd, 0).map_err(|e| Missing::failed("userfaultfd refuses", &e))?;
        // Without it the kernel does not let one wait for two things.
        fcntl_setfl(&fd, OFlags::NONBLOCK)
            .map_err(|e| Missing::failed("userfaultfd refuses", &e.into()))?;
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Missing::failed("eventfd", &e.into()))?;
        Ok(Self { fd, stop, mode })
    }

    /// Whether touches inside system calls wait as well; if not, such a call fails with `EFAULT`.
    #[must_use]
    pub fn helps_system_calls(&self) -> bool {
        self.mode == UserfaultfdMode::Full
    }

    /// Makes accesses to `[addr, addr + len)` wait, until something is mapped over the range and
    /// [`FirstTouch::wake`] is called.
    ///
    /// # Errors
    /// What the kernel says; the range is as it was.
    ///
    /// # Safety
    /// The range lies in a reservation of the caller's, and nothing is mapped there.
    pub unsafe fn watch(&self, addr: usize, len: usize) -> io::Result<()> {
        let mut register = uffdio_register {
            range: uffdio_range { start: addr as u64, len: len as u64 },
            mode: u64::from(raw::UFFDIO_REGISTER_MODE_MISSING),
            ioctls: 0,
        };
        // SAFETY: the structure that this ioctl reads and writes; the range is the caller's.
        unsafe {
            ioctl(
                &self.fd,
                linux_raw_sys::ioctl::UFFDIO_REGISTER.into(),
                (&raw mut register).cast(),
            )?;
            memory::protect(addr, len, Some(Access::ReadWrite))
        }
    }

    /// Ends the waiting of accesses to `[addr, addr + len)`.
    pub fn wake(&self, addr: usize, len: usize) {
        let mut range = uffdio_range { start: addr as u64, len: len as u64 };
        // SAFETY: the structure that this ioctl reads; waking changes no memory, and an access that
        // is woken too early waits again.
        let _ = unsafe {
            ioctl(&self.fd, linux_raw_sys::ioctl::UFFDIO_WAKE.into(), (&raw mut range).cast())
        };
    }

    /// Receives accesses until [`FirstTouch::stop`]; the thread runs this. `touched` gets an
    /// address, maps something there, and wakes.
    pub fn serve(&self, mut touched: impl FnMut(usize)) {
        // A handler on this thread that touched what is watched would wait for it.
        crate::signals::block_all();
        loop {
            let mut both =
                [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            // Interrupted or woken: looked at again in all cases.
            let _ = poll(&mut both, None);
            if !both[1].revents().is_empty() {
                return;
            }
            let mut message = [0u8; MESSAGE_LEN];
            while let Ok(MESSAGE_LEN) = rustix::io::read(&self.fd, &mut message) {
                let address =
                    message[16..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                if u32::from(message[0]) == raw::UFFD_EVENT_PAGEFAULT {
                    touched(address as usize);
                }
            }
        }
    }

    /// Ends [`FirstTouch::serve`].
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_touches_first_waits_until_something_is_there() {
        const LEN: usize = 16 * 4096;
        let touch = match FirstTouch::open() {
            Ok(touch) => touch,
            Err(missing) => return println!("skipped: {missing}"),
        };
        let base = memory::reserve_anywhere(LEN, 4096).expect("address space");
        // SAFETY: our own reservation.
        unsafe { touch.watch(base, LEN) }.expect("watched");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                touch.serve(|address| {
                    assert!(address - base < LEN);
                    let image = vec![7u8; LEN];
                    // SAFETY: our own reservation, in which nothing but the watch is.
                    unsafe { crate::dual_mapping::map_image(base, &image) }.expect("mapped");
                    touch.wake(base, LEN);
                });
            });
            let touching: Vec<_> = (0..4)
                .map(|n| {
                    scope.spawn(move || {
                        let at = std::ptr::with_exposed_provenance::<u8>(base + n * 4096);
                        // SAFETY: readable when the thread has answered, until the end of the
                        // scope.
                        assert_eq!(unsafe { at.read_volatile() }, 7);
                    })
                })
                .collect();
            touching.into_iter().for_each(|thread| thread.join().expect("read"));
            touch.stop();
        });
        // SAFETY: our own reservation, no longer used.
        unsafe { memory::release(base, LEN) }.expect("released");
    }
}
