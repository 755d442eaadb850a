//! Whose new files are.
//!
//! The superuser may open a store of another user. Files that it makes there would be its own, with
//! a mode that keeps the store's owner out. So a new file or directory gets owner and group of the
//! store's directory, before anything leads to it, if this process may set them. If it may not:
//!
//! | process | store | a new file |
//! | --- | --- | --- |
//! | superuser without that right (a container, a network file system) | any | is refused |
//! | any other | its superblock is another user's | is refused |
//! | any other | new, or its own, in a directory of another user | is its own |

use crate::{FileName, MediumError, Operation};
use rustix::fs::{AtFlags, Gid, Stat, Uid};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// The file that says whose a store is.
const SUPERBLOCK: &str = "superblock";

/// Owner and group of a store's directory, if they are not those of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner(Option<(u32, u32)>);

/// User and group that this process makes files as.
fn own() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

impl Owner {
    /// Whose files in this directory are.
    pub(super) fn of(dir: BorrowedFd<'_>) -> Self {
        let found = rustix::fs::fstat(dir).map(|stat| (stat.st_uid, stat.st_gid)).ok();
        Self(found.filter(|found| *found != own()))
    }

    /// Gives a file to the store's owner that this process has just made.
    pub(super) fn give(
        self,
        op: Operation,
        name: &str,
        file: &File,
        dir: BorrowedFd<'_>,
    ) -> Result<(), MediumError> {
        // A file system may have one owner for all of its files.
        let is_theirs = |stat: Stat| Some((stat.st_uid, stat.st_gid)) == self.0;
        if self.0.is_none() || rustix::fs::fstat(file.as_fd()).is_ok_and(is_theirs) {
            return Ok(());
        }
        self.settle(op, name, dir, |uid, gid| rustix::fs::fchown(file.as_fd(), uid, gid))
    }

    /// The same of a directory, by its name in `at`. One that is not given is removed.
    pub(super) fn give_dir(
        self,
        (at, path): (BorrowedFd<'_>, &str),
        name: &str,
        dir: BorrowedFd<'_>,
    ) -> Result<(), MediumError> {
        let set = |uid, gid| rustix::fs::chownat(at, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
        let given = self.settle(Operation::MakeDirectory, name, dir, set);
        if given.is_err() {
            let _ = rustix::fs::unlinkat(at, path, AtFlags::REMOVEDIR);
        }
        given
    }

    fn settle(
        self,
        op: Operation,
        name: &str,
        dir: BorrowedFd<'_>,
        set: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> Result<(), MediumError> {
        let (us, Some((owner, group))) = (own().0, self.0) else { return Ok(()) };
        let uid = (us != owner).then(|| Uid::from_raw(owner));
        match set(uid, Some(Gid::from_raw(group))) {
            Err(Errno::PERM | Errno::INVAL | Errno::ACCESS) => {}
            done => return done.map_err(|errno| MediumError::from_io(op, name, errno.into())),
        }
        // Its group is a favour only: the owner can open the file.
        if uid.is_none() || (us != 0 && !is_of_another(dir, us)) {
            return Ok(());
        }
        Err(MediumError::NotGiven { op, name: FileName::new(name), owner, us })
    }
}

/// Whether there is a store already, of another user.
fn is_of_another(dir: BorrowedFd<'_>, us: u32) -> bool {
    rustix::fs::statat(dir, SUPERBLOCK, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| stat.st_uid != us)
}
