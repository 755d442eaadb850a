//! Directories in a store's directory that are held: names in them are looked up from them.
//!
//! A lock on a directory ([`super::hold::hold_dir`]) is a lock on an inode. Another directory may
//! be mounted over its name later, perhaps another store's. So from the lock on, names in the
//! directory are looked up from a descriptor of what was locked, as all others are from a
//! descriptor of the store's own directory. A program that mounts something into an open store
//! changes nothing for it.
//!
//! The descriptors are opened with `O_PATH`: they keep no lock, in this process or in a forked
//! child. A look-up takes no lock and no memory, because the fault handler opens files. An entry
//! is never changed: of two for one name the later one counts, where a store was closed, its
//! directory replaced, and it is opened again by the same medium.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::planted::{Bug, planted};
use crate::{FileName, MediumError, Operation};

type Result<T> = core::result::Result<T, MediumError>;

/// A store has two such directories.
const HELD_MAX: usize = 8;

/// One directory.
#[derive(Debug)]
struct HeldDirectory {
    name: FileName,
    dir: OwnedFd,
}

/// Those of one store directory.
#[derive(Debug, Default)]
pub(super) struct Beneath([OnceLock<HeldDirectory>; HELD_MAX]);

impl Beneath {
    fn find(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let held = self.0.iter().filter_map(OnceLock::get);
        let last = held.filter(|held| held.name.as_str() == name).last()?;
        (!planted(Bug::MountFollowed)).then(|| last.dir.as_fd())
    }

    /// Where a file is looked up, by which name there; `top` is the store's own directory.
    pub(super) fn at<'a, 'n>(
        &'a self,
        top: BorrowedFd<'a>,
        name: &'n str,
    ) -> (BorrowedFd<'a>, &'n str) {
        let held = name.split_once('/').and_then(|(dir, file)| Some((self.find(dir)?, file)));
        held.unwrap_or((top, name))
    }

    /// The same of a directory; `""` is the store's own.
    pub(super) fn at_dir<'a, 'n>(
        &'a self,
        top: BorrowedFd<'a>,
        name: &'n str,
    ) -> (BorrowedFd<'a>, &'n str) {
        match self.find(name) {
            Some(dir) => (dir, "."),
            None if name.is_empty() => (top, "."),
            None => self.at(top, name),
        }
    }

    /// Names in this directory are looked up from `dir` from now on.
    ///
    /// # Errors
    /// The directory that has the name was replaced too often since the medium was opened.
    pub(super) fn keep(&self, name: &str, dir: OwnedFd) -> Result<()> {
        let is_same = |known: BorrowedFd<'_>| -> rustix::io::Result<bool> {
            let (known, new) = (rustix::fs::fstat(known)?, rustix::fs::fstat(&dir)?);
            Ok((known.st_dev, known.st_ino) == (new.st_dev, new.st_ino))
        };
        let failed =
            |errno: Errno| MediumError::from_io(Operation::Lock, name, std::io::Error::from(errno));
        if let Some(known) = self.find(name)
            && is_same(known).map_err(failed)?
        {
            return Ok(());
        }
        let mut new = HeldDirectory { name: FileName::new(name), dir };
        for slot in &self.0 {
            match slot.set(new) {
                Ok(()) => return Ok(()),
                Err(kept) => new = kept,
            }
        }
        let detail = "other directories had its name too often; open the store anew";
        Err(MediumError::Replaced { name: new.name, detail })
    }
}

/// Opens a regular file and tells its length. Does not allocate (short paths are copied to the
/// stack), does not block on what is not a regular file, and does not follow a link.
pub(super) fn open_regular(
    (dir, path): (BorrowedFd<'_>, &str),
    op: Operation,
    name: &str,
    flags: OFlags,
) -> Result<(File, u64)> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let not_a_file = || MediumError::NotAFile { op, name: FileName::new(name) };
    let fd = rustix::fs::openat(dir, path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP | Errno::ISDIR | Errno::NXIO => not_a_file(),
        errno => MediumError::from_io(op, name, errno.into()),
    })?;
    let stat =
        rustix::fs::fstat(&fd).map_err(|errno| MediumError::from_io(op, name, errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_a_file());
    }
    Ok((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0)))
}
