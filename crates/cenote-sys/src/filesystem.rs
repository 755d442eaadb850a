//! Which kind of file system a file lies on, and whether it is on DAX.
//!
//! The kind decides how stores are made durable and which warnings a medium gives; it comes from
//! the magic number that `statfs` reports. Unknown numbers are kept, so that a report can name
//! them.
//!
//! # Safety argument
//!
//! No `unsafe` code.

use core::fmt;
use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};
use std::io;
use std::os::fd::BorrowedFd;

/// A family of file systems that Cenote treats alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum FsKind {
    /// Memory that is lost with the power, page by page, swappable.
    Tmpfs,
    /// ext2, ext3 or ext4.
    Ext,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// ZFS on Linux.
    Zfs,
    /// F2FS.
    F2fs,
    /// A union of other file systems, as containers have.
    Overlay,
    /// A network file system: NFS.
    Nfs,
    /// A network file system: CIFS, SMB.
    Cifs,
    /// A process behind it: anything, including network file systems.
    Fuse,
    /// A network file system: Ceph.
    Ceph,
    /// A network file system: 9P, as virtual machines have.
    NinePfs,
    /// Memory in huge pages.
    Hugetlbfs,
    /// Memory that is never swapped and has no limit.
    Ramfs,
    /// Some other, by its magic number.
    Other(u64),
}

impl FsKind {
    /// The kind with this magic number.
    #[must_use]
    pub const fn from_magic(magic: u64) -> Self {
        // Numbers of the kernel's magic.h, and of file systems outside of it. Some kernels extend
        // the sign of those with the top bit set.
        match magic & 0xffff_ffff {
            0x0102_1994 => Self::Tmpfs,
            0xef53 => Self::Ext,
            0x5846_5342 => Self::Xfs,
            0x9123_683e => Self::Btrfs,
            0x2fc1_2fc1 => Self::Zfs,
            0xf2f5_2010 => Self::F2fs,
            0x794c_7630 => Self::Overlay,
            0x6969 => Self::Nfs,
            0xff53_4d42 | 0xfe53_4d42 | 0x517b => Self::Cifs,
            0x6573_5546 => Self::Fuse,
            0x00c3_6400 => Self::Ceph,
            0x0102_1997 => Self::NinePfs,
            0x9584_58f6 => Self::Hugetlbfs,
            0x8584_58f6 => Self::Ramfs,
            _ => Self::Other(magic),
        }
    }

    /// Whether other machines may change the files, and locks and mappings may not hold between
    /// machines. False for FUSE, which does not tell.
    #[must_use]
    pub const fn is_network(self) -> bool {
        matches!(self, Self::Nfs | Self::Cifs | Self::Ceph | Self::NinePfs)
    }

    /// Whether files live in memory only and are gone when the machine stops.
    #[must_use]
    pub const fn is_memory(self) -> bool {
        matches!(self, Self::Tmpfs | Self::Ramfs | Self::Hugetlbfs)
    }
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tmpfs => "tmpfs",
            Self::Ext => "ext2/3/4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Zfs => "zfs",
            Self::F2fs => "f2fs",
            Self::Overlay => "overlay",
            Self::Nfs => "nfs",
            Self::Cifs => "cifs",
            Self::Fuse => "fuse",
            Self::Ceph => "ceph",
            Self::NinePfs => "9p",
            Self::Hugetlbfs => "hugetlbfs",
            Self::Ramfs => "ramfs",
            Self::Other(magic) => return write!(f, "file system {magic:#x}"),
        })
    }
}

/// The kind of file system that an open file or directory lies on.
///
/// # Errors
/// What `fstatfs` says.
pub fn kind(fd: BorrowedFd<'_>) -> io::Result<FsKind> {
    let stat = fstatfs(fd)?;
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)]
    // the field's type differs between architectures
    Ok(FsKind::from_magic(stat.f_type as u64))
}

/// Bytes that this process may still take on the file system of an open file or directory.
///
/// # Errors
/// What `fstatfs` says.
pub fn available_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = fstatfs(fd)?;
    let block = u64::try_from(stat.f_bsize).unwrap_or(0);
    Ok(stat.f_bavail.saturating_mul(block))
}

/// Whether the file bypasses the page cache (`STATX_ATTR_DAX`). Necessary for
/// [`crate::memory::Sharing::SharedSync`], not sufficient: virtio-pmem says yes and refuses the
/// mapping. False also where the kernel does not tell.
///
/// # Errors
/// What `statx` says.
pub fn is_dax(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const STATX_ATTR_DAX: u64 = 0x0020_0000;
    let stat = statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    Ok((stat.stx_attributes.bits() & stat.stx_attributes_mask.bits() & STATX_ATTR_DAX) != 0)
}

/// Lets the device begin with what was written to a part of a file. It waits for nothing and
/// promises nothing: a sync does, and tells what went wrong.
pub fn start_writing(file: &std::fs::File, offset: u64, len: u64) {
    use std::os::fd::AsRawFd;
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: a descriptor that is open, and numbers. The answer is only a hint that was not taken.
    let _ = unsafe {
        libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE)
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_memfd_is_tmpfs_without_dax() {
        let fd = rustix::fs::memfd_create(c"cenote-test", rustix::fs::MemfdFlags::CLOEXEC)
            .expect("memfd");
        assert_eq!(kind(fd.as_fd()).expect("fstatfs"), FsKind::Tmpfs);
        assert!(!is_dax(fd.as_fd()).expect("statx"));
        assert!(kind(fd.as_fd()).expect("fstatfs").is_memory());
    }

    #[test]
    fn a_directory_has_a_kind_and_space() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let fd = std::fs::File::open(dir.path()).expect("open");
        let kind = kind(fd.as_fd()).expect("fstatfs");
        assert!(!kind.to_string().is_empty());
        assert!(available_bytes(fd.as_fd()).expect("fstatfs") > 0);
    }

    #[test]
    fn proc_is_another_kind_and_keeps_its_number() {
        let fd = std::fs::File::open("/proc").expect("the test needs /proc");
        assert_eq!(kind(fd.as_fd()).expect("fstatfs"), FsKind::Other(0x9fa0));
        assert_eq!(FsKind::Other(0x9fa0).to_string(), "file system 0x9fa0");
    }

    #[test]
    fn numbers_with_an_extended_sign_are_known() {
        assert_eq!(FsKind::from_magic(0xffff_ffff_ff53_4d42), FsKind::Cifs);
        assert_eq!(FsKind::from_magic(0xffff_ffff_9123_683e), FsKind::Btrfs);
        assert!(FsKind::Nfs.is_network() && FsKind::NinePfs.is_network());
        assert!(!FsKind::Ext.is_network() && !FsKind::Overlay.is_network());
    }
}
