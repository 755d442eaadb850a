//! Tells through which mounting of a file system a file is reached.
//!
//! The page cache of a file system lives as long as its superblock in the kernel: from the first
//! mounting of the device to the last unmounting. Pages that were not written back at its end may
//! be lost: a disk was pulled, a network disk was gone, or a file system shut itself down. So two
//! sessions share a page cache only within one such life, also under one boot.
//!
//! The name of a life is the inode of the directory that the file system has in sysfs
//! (`/sys/fs/ext4/sda1`). It is made with the superblock and goes with it; sysfs numbers its nodes
//! one up, 64 bits wide, and uses no number again within a boot. There is one sysfs for all
//! namespaces, so a bind mount, and another container, see the same number: an identity of the
//! *mount* (`STATX_MNT_ID_UNIQUE`) would differ there. A device's sequence number (`diskseq`) says
//! that a disk was pulled, and not that a file system was mounted anew on the same disk.
//!
//! Where the directory is comes from the file system itself (`FS_IOC_GETFSSYSFSPATH`, Linux 6.9),
//! or from its family and the name of its device (ext4, XFS, F2FS). File systems without such a
//! directory have no name: memory, networks, FUSE, overlays; nor has any where `/sys` is not there.
//!
//! # Safety argument
//!
//! The ioctl fills a structure of the kernel's own layout, 129 bytes, which outlives the call.

use crate::filesystem::{self, FsKind};
use crate::probe::ioctl;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// `struct fs_sysfs_path`: a length, and a name of at most 128 bytes.
#[repr(C)]
struct SysfsPath {
    len: u8,
    name: [u8; 128],
}

/// `statfs` says this of sysfs.
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// The mounting through which an open file is reached, never 0; `None`: the system does not say.
///
/// # Errors
/// The system would say, and the process lacks what it takes to ask (descriptors, memory), or was
/// interrupted. That is no answer: a caller that took it for "not known" would miss a disk that was
/// gone.
pub fn of(file: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let within = match told(file) {
        Some(path) => Some(path),
        None => guessed(file)?,
    };
    let Some(within) = within else { return Ok(None) };
    let path = Path::new("/sys/fs").join(within);
    let Some(dir) = there(std::fs::File::open(&path))? else { return Ok(None) };
    let inode = rustix::fs::fstat(&dir)?.st_ino;
    let sysfs = filesystem::kind(dir.as_fd())? == FsKind::Other(SYSFS_MAGIC);
    Ok((sysfs && inode != 0).then_some(inode))
}

/// `None` for what is not there, or not to be seen.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound, PermissionDenied};
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error)
            if matches!(
                error.kind(),
                NotFound | NotADirectory | PermissionDenied | InvalidInput
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What the file system says.
fn told(file: BorrowedFd<'_>) -> Option<PathBuf> {
    let mut path = SysfsPath { len: 0, name: [0; 128] };
    let opcode = rustix::ioctl::opcode::read::<SysfsPath>(0x15, 1);
    // SAFETY: the structure that this ioctl writes; file systems without it leave it alone.
    unsafe { ioctl(&file.as_raw_fd(), opcode.into(), (&raw mut path).cast()) }.ok()?;
    let name = core::str::from_utf8(path.name.get(..usize::from(path.len))?).ok()?;
    let plain =
        !name.is_empty() && !name.starts_with('/') && !name.split('/').any(|part| part == "..");
    plain.then(|| PathBuf::from(name))
}

/// What it was before it said so.
fn guessed(file: BorrowedFd<'_>) -> io::Result<Option<PathBuf>> {
    let family = match filesystem::kind(file)? {
        FsKind::Ext => "ext4",
        FsKind::Xfs => "xfs",
        FsKind::F2fs => "f2fs",
        _ => return Ok(None),
    };
    let device = rustix::fs::fstat(file)?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = there(std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")))?;
    Ok(link.and_then(|link| Some(Path::new(family).join(link.file_name()?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_and_what_is_guessed_agree_and_stay() {
        let mut known = 0;
        for place in [std::env::temp_dir(), PathBuf::from("."), PathBuf::from("/dev/shm")] {
            let Ok(dir) = std::fs::File::open(&place) else { continue };
            let (told, guessed) = (told(dir.as_fd()), guessed(dir.as_fd()).expect("asked"));
            let first = of(dir.as_fd()).expect("asked");
            println!("{}: {told:?} {guessed:?} {first:?}", place.display());
            if let (Some(told), Some(guessed)) = (&told, &guessed) {
                assert_eq!(told, guessed, "{}", place.display());
            }
            assert_eq!(of(dir.as_fd()).expect("asked"), first);
            known += u32::from(first.is_some());
        }
        println!("{known} of 3 places have a name");
    }
}
