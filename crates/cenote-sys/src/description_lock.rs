//! Locks that belong to an open file description: they hold until that is closed, also when the
//! process opens and closes other descriptors of the file.
//!
//! Record locks ([`crate::record_lock`]) name their holder, and are lost when the process closes
//! *any* descriptor of the file. These are the other way round:
//! * closing another descriptor of the file does not drop them;
//! * two descriptions exclude each other, also within one process;
//! * the kernel does not say which process holds one.
//!
//! A regular file is locked by `fcntl(F_OFD_SETLK)`, whose exclusive kind asks for a descriptor
//! open for writing. A directory, which cannot be opened so, is locked by `flock`.
//!
//! # Forks
//!
//! A forked child has its parent's descriptions, and would keep the locks after the parent's end.
//! So every lock's descriptor is in a list, and a fork handler closes them in the child. Opening,
//! locking and listing happen under a flag that the handler waits for before a fork, so that no
//! child gets a descriptor that is not listed. What this does not reach:
//! * `vfork`, `posix_spawn` and a raw `clone` run no handlers. A child that executes a program
//!   closes the descriptors then (`O_CLOEXEC`); one that does not keeps the locks until it ends.
//!   That costs waiting, and lets no other process in.
//! * An owner that lets go unlocks before it closes, so no child's copy of a descriptor keeps
//!   anything.
//!
//! # Safety argument
//!
//! `libc::fcntl` reads one `flock` structure that lives across the call. The fork handler stores to
//! atomics, calls `close` and nothing else, which a child of a process with threads may. Nodes of
//! the list are leaked, so references to them stay valid. A descriptor is closed once, by
//! the thread that swaps -1 into its node.

use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Once;

use crate::fork_guard;
use crate::record_lock::RecordLockKind;

/// What is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// A regular file, by `fcntl(F_OFD_SETLK)`.
    File,
    /// A directory, by `flock`.
    Directory,
}

/// One descriptor of the list; -1: free.
struct DescriptorNode {
    fd: AtomicI32,
    next: *const DescriptorNode,
}

/// Nodes are only added, at the head.
static HEAD: AtomicPtr<DescriptorNode> = AtomicPtr::new(ptr::null_mut());
/// Set while a descriptor is opened and listed, and around a fork.
static BUSY: AtomicBool = AtomicBool::new(false);
/// How often a fork yields to the thread that is listing. A signal handler that forks in the middle
/// of that must not wait for ever.
const YIELDS_MAX: u32 = 100_000;

std::thread_local! {
    /// This thread set [`BUSY`] before its fork.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}

fn try_busy() -> bool {
    BUSY.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

extern "C" fn before_fork() {
    let mut yields = 0;
    let mut mine = try_busy();
    while !mine && yields < YIELDS_MAX {
        std::thread::yield_now();
        yields += 1;
        mine = try_busy();
    }
    FORKS.set(mine);
}

extern "C" fn after_fork_in_parent() {
    if FORKS.replace(false) {
        BUSY.store(false, Ordering::Release);
    }
}

extern "C" fn after_fork_in_child() {
    for node in nodes() {
        close(node);
    }
    FORKS.set(false);
    BUSY.store(false, Ordering::Release);
}

fn nodes() -> impl Iterator<Item = &'static DescriptorNode> {
    // SAFETY: null, or a node that was leaked.
    let mut at = unsafe { HEAD.load(Ordering::Acquire).as_ref() };
    core::iter::from_fn(move || {
        let node = at?;
        // SAFETY: null, or a node that was leaked; `next` is written before the node is published
        // and never again.
        at = unsafe { node.next.as_ref() };
        Some(node)
    })
}

/// Keeps forks, and other threads that list, out.
struct Listing;

impl Listing {
    fn begin() -> Self {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: plain functions without arguments that live as long as the program.
            let _ = unsafe {
                libc::pthread_atfork(
                    Some(before_fork),
                    Some(after_fork_in_parent),
                    Some(after_fork_in_child),
                )
            };
        });
        while !try_busy() {
            std::thread::yield_now();
        }
        Self
    }

    fn list(&self, fd: OwnedFd) -> &'static DescriptorNode {
        let fd = fd.into_raw_fd();
        if let Some(node) = nodes().find(|node| node.fd.load(Ordering::Acquire) < 0) {
            node.fd.store(fd, Ordering::Release);
            return node;
        }
        let next = HEAD.load(Ordering::Acquire);
        let node: &'static DescriptorNode =
            Box::leak(Box::new(DescriptorNode { fd: AtomicI32::new(fd), next }));
        HEAD.store(ptr::from_ref(node).cast_mut(), Ordering::Release);
        node
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// A lock that is held until this value is dropped, or its process ends.
pub struct DescriptionLock {
    node: &'static DescriptorNode,
    scope: Scope,
    /// The process that took it; a forked child's copy of this value does nothing.
    token: u64,
}

// SAFETY: the node is shared and atomic, and lives for ever.
unsafe impl Send for DescriptionLock {}
// SAFETY: nothing in it changes but the atomic in the node.
unsafe impl Sync for DescriptionLock {}

impl core::fmt::Debug for DescriptionLock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DescriptionLock").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl DescriptionLock {
    /// Locks, without waiting, the file that `open` opens for this lock alone; `None`: another
    /// description holds a lock that excludes this one. `open` must set `O_CLOEXEC`, and must not
    /// fork.
    ///
    /// # Errors
    /// What `open` says; what the system says of the lock.
    pub fn try_take(
        scope: Scope,
        kind: RecordLockKind,
        open: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> io::Result<Option<Self>> {
        let token = fork_guard::token();
        let listing = Listing::begin();
        let fd = open()?;
        let taken = match scope {
            Scope::File => set_lock(&fd, kind)?,
            Scope::Directory => set_flock(&fd, kind)?,
        };
        Ok(taken.then(|| Self { node: listing.list(fd), scope, token }))
    }

    /// The descriptor that holds the lock.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.node.fd.load(Ordering::Acquire);
        let mine = fork_guard::is_current(self.token) && fd >= 0;
        // SAFETY: listed by this value, in this process, and closed only by its destructor.
        mine.then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl Drop for DescriptionLock {
    fn drop(&mut self) {
        if self.fd().is_none() {
            return; // a forked child, which has closed it
        }
        // Unlocked before it is out of the list: a child that is forked now and keeps the
        // descriptor keeps no lock.
        let fd = self.node.fd.load(Ordering::Acquire);
        let _ = match self.scope {
            Scope::File => change_lock(fd, libc::F_UNLCK).map(drop),
            Scope::Directory => {
                // SAFETY: open until it is closed below.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                flock(fd, FlockOperation::Unlock).map_err(io::Error::from)
            }
        };
        close(self.node);
    }
}

/// A descriptor that is closed when this value is dropped, and in forked children.
pub struct NotForked {
    node: &'static DescriptorNode,
    token: u64,
}

// SAFETY: the node is shared and atomic, and lives for ever.
unsafe impl Send for NotForked {}
// SAFETY: nothing in it changes but the atomic in the node.
unsafe impl Sync for NotForked {}

impl NotForked {
    /// Keeps a descriptor so.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        let token = fork_guard::token();
        Self { node: Listing::begin().list(fd), token }
    }
}

impl core::fmt::Debug for NotForked {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("NotForked").finish_non_exhaustive()
    }
}

impl Drop for NotForked {
    fn drop(&mut self) {
        if fork_guard::is_current(self.token) {
            close(self.node);
        }
    }
}

/// Takes a descriptor out of the list, and closes it.
fn close(node: &DescriptorNode) {
    let fd = node.fd.swap(-1, Ordering::AcqRel);
    if fd >= 0 {
        // SAFETY: a descriptor that only the list's value used; swapped out, so closed once.
        let _ = unsafe { libc::close(fd) };
    }
}

fn set_flock(fd: &OwnedFd, kind: RecordLockKind) -> io::Result<bool> {
    let operation = match kind {
        RecordLockKind::Shared => FlockOperation::NonBlockingLockShared,
        RecordLockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match flock(fd, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn set_lock(fd: &OwnedFd, kind: RecordLockKind) -> io::Result<bool> {
    let wanted = match kind {
        RecordLockKind::Shared => libc::F_RDLCK,
        RecordLockKind::Exclusive => libc::F_WRLCK,
    };
    change_lock(fd.as_raw_fd(), wanted)
}

/// Changes the lock over the whole file; `false`: another description has one that excludes it.
fn change_lock(fd: i32, wanted: i32) -> io::Result<bool> {
    // SAFETY: a structure of integers, for which zeros are values.
    let mut range: libc::flock = unsafe { core::mem::zeroed() };
    // Constants of one digit.
    range.l_type = wanted as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    loop {
        // SAFETY: the structure lives across the call, which only reads it; a descriptor that is
        // not open is an error.
        if unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const range) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
            Some(libc::EINTR) => {}
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_child, spawn_child};
    use std::fs::{File, OpenOptions};
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn take(path: &Path, scope: Scope, kind: RecordLockKind) -> Option<DescriptionLock> {
        let open = || match scope {
            Scope::File => Ok(OpenOptions::new().read(true).write(true).open(path)?.into()),
            Scope::Directory => Ok(File::open(path)?.into()),
        };
        DescriptionLock::try_take(scope, kind, open).expect("locks work here")
    }

    fn both(test: impl Fn(&Path, Scope)) {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::write(dir.path().join("file"), b"x").expect("file");
        test(&dir.path().join("file"), Scope::File);
        test(dir.path(), Scope::Directory);
    }

    #[test]
    fn closing_another_descriptor_does_not_drop_the_lock() {
        both(|path, scope| {
            let held = take(path, scope, RecordLockKind::Exclusive).expect("free");
            drop(File::open(path).expect("open"));
            assert!(take(path, scope, RecordLockKind::Shared).is_none(), "{scope:?}");
            assert_eq!(
                in_child(|| i32::from(take(path, scope, RecordLockKind::Shared).is_some())),
                0,
                "{scope:?}"
            );
            drop(held);
            assert!(take(path, scope, RecordLockKind::Exclusive).is_some(), "{scope:?}");
        });
    }

    #[test]
    fn shared_ones_go_together_and_exclude_exclusive_ones() {
        both(|path, scope| {
            let first = take(path, scope, RecordLockKind::Shared).expect("free");
            let second = take(path, scope, RecordLockKind::Shared).expect("shared");
            assert!(take(path, scope, RecordLockKind::Exclusive).is_none());
            drop((first, second));
            assert!(take(path, scope, RecordLockKind::Exclusive).is_some());
        });
    }

    #[test]
    fn a_descriptor_is_closed_in_a_forked_child_and_when_it_is_dropped() {
        let (reader, writer) = std::io::pipe().expect("pipe");
        let kept = NotForked::new(writer.into());
        let child = spawn_child(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        drop(kept);
        // The child lives, and has no copy: the pipe has ended.
        assert_eq!(std::io::read_to_string(reader).expect("its end"), "");
        child.kill();
    }

    #[test]
    fn a_forked_child_keeps_nothing_and_drops_nothing() {
        both(|path, scope| {
            let held = take(path, scope, RecordLockKind::Exclusive).expect("free");
            let child = spawn_child(|| {
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            // A child that drops its copy of the value does not unlock its parent's.
            assert_eq!(
                in_child(|| {
                    drop(DescriptionLock { node: held.node, scope: held.scope, token: held.token });
                    i32::from(take(path, scope, RecordLockKind::Shared).is_some())
                }),
                0
            );
            assert!(take(path, scope, RecordLockKind::Shared).is_none());
            // While the first child lives the lock is free as soon as its owner lets go.
            drop(held);
            assert!(take(path, scope, RecordLockKind::Exclusive).is_some(), "{scope:?}");
            child.kill();
        });
    }

    #[test]
    fn a_killed_owner_leaves_no_lock_though_its_child_lives() {
        both(|path, scope| {
            let owner = spawn_child(|| {
                // The parent, which looks again and again, may have it at that moment.
                let _held = loop {
                    if let Some(held) = take(path, scope, RecordLockKind::Exclusive) {
                        break held;
                    }
                };
                // SAFETY: the child of a child sleeps and ends.
                if unsafe { libc::fork() } == 0 {
                    std::thread::sleep(Duration::from_secs(20));
                    // SAFETY: ends this process at once.
                    unsafe { libc::_exit(0) };
                }
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            let end = Instant::now() + Duration::from_secs(10);
            while take(path, scope, RecordLockKind::Shared).is_some() {
                assert!(Instant::now() < end, "the owner never took the lock");
                std::thread::sleep(Duration::from_millis(1));
            }
            // Give the owner time to fork.
            std::thread::sleep(Duration::from_millis(200));
            owner.kill();
            assert!(
                take(path, scope, RecordLockKind::Exclusive).is_some(),
                "{scope:?}: the grandchild has it"
            );
        });
    }
}
