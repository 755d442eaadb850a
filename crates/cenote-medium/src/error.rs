//! Errors of media: what failed, on which file, and what to do.
//!
//! An error is built without allocating: [`Medium::map`](crate::Medium::map) may fail inside a
//! signal handler. That is why names are kept inline ([`FileName`]) and why system errors are kept
//! as numbers inside [`io::Error`].

use crate::planted::{Bug, planted};
use cenote_layout::error_kind::ErrorKind;
use cenote_sys::mappings::{self, Full};
use core::fmt;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// What was being done when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Finding out whether a file exists, its length or what it is.
    Examine,
    /// Reading by position.
    Read,
    /// Writing by position.
    Write,
    /// Creating a file and taking its space.
    Create,
    /// Changing the length of a file.
    Truncate,
    /// Giving space of a file back.
    Release,
    /// Taking space for a part of a file that has none.
    Ensure,
    /// Waiting until a file is durable.
    Sync,
    /// Waiting until a directory is durable.
    SyncDirectory,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
    /// Listing a directory.
    List,
    /// Creating a directory.
    MakeDirectory,
    /// Locking a file.
    Lock,
    /// Reserving or releasing address space.
    Reserve,
    /// Mapping a file into memory.
    Map,
    /// Taking a mapping away.
    Unmap,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Examine => "examine",
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::Truncate => "change the length of",
            Self::Release => "give back space of",
            Self::Ensure => "take space for",
            Self::Sync => "sync",
            Self::SyncDirectory => "sync the directory",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::List => "list the directory",
            Self::MakeDirectory => "create the directory",
            Self::Lock => "lock the file",
            Self::Reserve => "reserve address space for",
            Self::Map => "map",
            Self::Unmap => "unmap",
        })
    }
}

/// Bytes of the longest name of a file of a medium, its directory included.
pub const NAME_LEN_MAX: usize = 63;

/// The name of a file relative to its medium, kept inline so that it can be made in a signal
/// handler.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileName {
    bytes: [u8; NAME_LEN_MAX],
    len: u8,
}

impl FileName {
    /// The name as far as it fits; a longer one is cut at a character boundary.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut len = name.len().min(NAME_LEN_MAX);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        let mut bytes = [0; NAME_LEN_MAX];
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        // `len` is at most NAME_LEN_MAX, which fits.
        Self { bytes, len: len as u8 }
    }

    /// Checks that a name can be that of a file of a store, and nothing outside it: one to
    /// [`NAME_LEN_MAX`] bytes, parts of ASCII letters, digits, `.`, `-` and `_` with single `/`
    /// between them, no part `.` or `..`.
    ///
    /// # Errors
    /// [`MediumError::BadName`].
    pub fn check(op: Operation, name: &str) -> Result<(), MediumError> {
        let part_is_good = |part: &str| {
            !matches!(part, "" | "." | "..")
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        };
        if name.len() <= NAME_LEN_MAX && name.split('/').all(part_is_good) {
            Ok(())
        } else {
            Err(MediumError::BadName { op, name: Self::new(name) })
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or("?")
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.len == 0 { "the store directory" } else { self.as_str() })
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// An operation on a medium failed. Names are relative to the directory of the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediumError {
    /// The directory of the store cannot be opened or created.
    #[error("cannot open the directory {}: {source}; {advice}", path.display())]
    Open {
        /// The directory as the caller named it.
        path: PathBuf,
        /// What the caller can do.
        advice: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such file.
    #[error("cannot {op} {name}: there is no such file")]
    NotFound {
        /// What was being done.
        op: Operation,
        /// The file that is missing.
        name: FileName,
    },
    /// A file to be created exists.
    #[error(
        "cannot {op} {name}: it exists already; remove it, or open the store instead of creating it"
    )]
    Exists {
        /// What was being done.
        op: Operation,
        /// The file that exists.
        name: FileName,
    },
    /// The file system, or the quota of the user, has no space left. What was begun has been
    /// undone.
    #[error(
        "cannot {op} {name}: no space{} ({source}); free some space or raise the quota",
        for_bytes(*.needed_bytes)
    )]
    NoSpace {
        /// What was being done.
        op: Operation,
        /// The file that needed space.
        name: FileName,
        /// Bytes that were asked for; 0: not known.
        needed_bytes: u64,
        /// What the system said: `ENOSPC` or `EDQUOT`.
        source: io::Error,
    },
    /// The user may not do this.
    #[error(
        "cannot {op} {name}: permission denied (os error {}); check owner and mode of the store's \
         files",
        source.raw_os_error().unwrap_or_default()
    )]
    Denied {
        /// What was being done.
        op: Operation,
        /// The file concerned.
        name: FileName,
        /// What the system said: `EACCES` or `EPERM`.
        source: io::Error,
    },
    /// The medium was opened read-only, or its file system is mounted so.
    #[error(
        "cannot {op} {name}: the medium is read-only; open the store read-only, or make its \
         directory writable"
    )]
    ReadOnly {
        /// What was being done.
        op: Operation,
        /// The file concerned.
        name: FileName,
    },
    /// A file is shorter than what was to be mapped. It is not mapped: touching the end would be a
    /// `SIGBUS`.
    #[error(
        "cannot {op} {name}: it has {found_bytes} bytes where {needed_bytes} are needed; it was \
         truncated or copied incompletely: restore the whole store from one copy"
    )]
    Truncated {
        /// What was being done.
        op: Operation,
        /// The file that is too short.
        name: FileName,
        /// Bytes that were asked for.
        needed_bytes: u64,
        /// Bytes that the file has.
        found_bytes: u64,
    },
    /// The name cannot be that of a file of a store: empty, too long, absolute, or with `..` in it.
    #[error("cannot {op} {name:?}: not a name that a file of a store can have")]
    BadName {
        /// What was being done.
        op: Operation,
        /// The name, as far as it fits.
        name: FileName,
    },
    /// What is there under that name is not a regular file.
    #[error("cannot {op} {name}: it is not a regular file")]
    NotAFile {
        /// What was being done.
        op: Operation,
        /// The name.
        name: FileName,
    },
    /// A range of addresses or bytes that is not page-aligned, overflows, or lies outside every
    /// reserved window.
    #[error("cannot {op} {name} at {addr:#x}, {len} bytes: {reason}")]
    BadRange {
        /// What was being done.
        op: Operation,
        /// The file concerned.
        name: FileName,
        /// First address, or offset in the file.
        addr: u64,
        /// Bytes of the range.
        len: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The addresses of the window are taken in this process.
    #[error(
        "the store's window {base:#x}..{:#x} is not free in this process ({source}); close the \
         store that uses it, or relocate this one",
        base.saturating_add(*len)
    )]
    WindowTaken {
        /// First address of the window.
        base: u64,
        /// Bytes of the window.
        len: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The lock file is locked through this process; opening it again would drop the lock.
    #[error("cannot {op} {name}: this process holds a lock on it")]
    Locked {
        /// What was being done.
        op: Operation,
        /// The lock file.
        name: FileName,
    },
    /// An earlier sync through this medium failed. Earlier writes may be lost although later syncs
    /// seem to work, so none is reported as a success.
    #[error(
        "cannot {op} {name}: an earlier sync failed and what it covered may be lost; close the \
         store, check the device, and open it again"
    )]
    SyncFailedBefore {
        /// What was being done.
        op: Operation,
        /// The file concerned.
        name: FileName,
    },
    /// The process has nearly as many mappings as the kernel allows. Nothing was mapped.
    #[error("cannot {op} {name}: {source}")]
    Mappings {
        /// What was being done.
        op: Operation,
        /// The file concerned.
        name: FileName,
        /// How many there are, and may be.
        source: Full,
    },
    /// A file of an open store has been replaced, or was written by another session. Nothing was
    /// written.
    #[error("{name} is not as this session left it: {detail}; close the store, and open it again")]
    Replaced {
        /// The file concerned.
        name: FileName,
        /// What is there instead.
        detail: &'static str,
    },
    /// A file of a store has several names, so that two stores may write it. Nothing was written.
    #[error(
        "{name} has {links} names (hard links), and what is written under one shows under all; \
         copy it to a new name and rename the copy over {name}, or remove the other names, and \
         open the store again"
    )]
    Linked {
        /// The file concerned.
        name: FileName,
        /// Names that lead to it.
        links: u64,
    },
    /// A new file would be this process's, in a store of another user. That user could not open it
    /// afterwards. It was not made.
    #[error(
        "cannot {op} {name}: it would belong to user {us}, the store to user {owner}, and this \
         process may not give files away: run it as user {owner}"
    )]
    NotGiven {
        /// What was being done.
        op: Operation,
        /// The file concerned.
        name: FileName,
        /// The owner of the store's directory.
        owner: u32,
        /// The user of this process.
        us: u32,
    },
    /// Anything else that the system reported: an `EIO`, for example.
    #[error("cannot {op} {name}: {source}{}", advice(source))]
    Io {
        /// What was being done.
        op: Operation,
        /// The file concerned.
        name: FileName,
        /// What the system said.
        source: io::Error,
    },
}

/// Mappings that a file in a window takes: itself, the rest of the window, and a second address.
const MAPPINGS_A_FILE: u64 = 4;

/// What to do about what the system said, where that is known.
fn advice(source: &io::Error) -> &'static str {
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::IO) => "; look at the disk, and for the cause in the kernel's log (dmesg)",
        Some(Errno::MFILE) => "; let this process have more descriptors (ulimit -n)",
        Some(Errno::NFILE | Errno::NOBUFS) => "; the system has too many files open: close some",
        Some(Errno::NOMEM) => "; free some memory, or raise the limit (ulimit -v)",
        Some(Errno::STALE) => "; the file system was unmounted or exported anew: mount it again",
        _ => "",
    }
}

impl MediumError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Open { source, .. } | Self::Io { source, .. } => ErrorKind::of_system(source),
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::Exists,
            Self::NoSpace { .. } | Self::Mappings { .. } => ErrorKind::Full,
            Self::Denied { .. } | Self::ReadOnly { .. } | Self::NotGiven { .. } => {
                ErrorKind::Denied
            }
            Self::Truncated { .. } | Self::NotAFile { .. } | Self::Linked { .. } => {
                ErrorKind::Damaged
            }
            Self::BadName { .. } | Self::BadRange { .. } => ErrorKind::Misuse,
            Self::WindowTaken { .. } | Self::Locked { .. } => ErrorKind::Busy,
            Self::SyncFailedBefore { .. } | Self::Replaced { .. } => ErrorKind::Ended,
        }
    }

    /// Sorts what the system reported into the typed errors. Does not allocate.
    #[must_use]
    pub fn from_io(op: Operation, name: &str, source: io::Error) -> Self {
        let name = FileName::new(name);
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { op, name },
            io::ErrorKind::AlreadyExists => Self::Exists { op, name },
            io::ErrorKind::PermissionDenied => Self::Denied { op, name, source },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { op, name },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { op, name, needed_bytes: 0, source }
            }
            _ => Self::Io { op, name, source },
        }
    }

    /// Whether a file can be mapped without taking mappings that the program needs for itself:
    /// asked before the first step, so that nothing is half mapped.
    ///
    /// # Errors
    /// [`MediumError::Mappings`].
    pub fn room_to_map(name: &str) -> Result<(), Self> {
        let (op, name) = (Operation::Map, FileName::new(name));
        mappings::room(MAPPINGS_A_FILE).map_err(|source| Self::Mappings { op, name, source })
    }

    /// What was being done to a file or a directory.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        match self {
            Self::Open { .. }
            | Self::WindowTaken { .. }
            | Self::Replaced { .. }
            | Self::Linked { .. } => None,
            Self::NotFound { op, .. }
            | Self::Exists { op, .. }
            | Self::NoSpace { op, .. }
            | Self::Denied { op, .. }
            | Self::ReadOnly { op, .. }
            | Self::Truncated { op, .. }
            | Self::BadName { op, .. }
            | Self::NotAFile { op, .. }
            | Self::BadRange { op, .. }
            | Self::Locked { op, .. }
            | Self::SyncFailedBefore { op, .. }
            | Self::Mappings { op, .. }
            | Self::NotGiven { op, .. }
            | Self::Io { op, .. } => Some(*op),
        }
    }

    /// Whether a sync failed: then what is on the medium is not known, and nothing may be
    /// acknowledged any more. Why it failed does not matter: a file system that went read-only
    /// after an error says `EROFS` where a full one says `ENOSPC`.
    #[must_use]
    pub fn is_failed_sync(&self) -> bool {
        matches!(self.operation(), Some(Operation::Sync | Operation::SyncDirectory))
    }

    /// Whether the process, or the system, lacked something at that moment: descriptors, memory,
    /// mappings, or a call that a signal did not interrupt. Such an error says nothing of the file:
    /// the same call may work when it is made again.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        let passing = |error: &io::Error| {
            let names = [
                Errno::MFILE,
                Errno::NFILE,
                Errno::NOMEM,
                Errno::INTR,
                Errno::AGAIN,
                Errno::NOBUFS,
            ];
            error.kind() == io::ErrorKind::OutOfMemory
                || error
                    .raw_os_error()
                    .is_some_and(|raw| names.iter().any(|errno| errno.raw_os_error() == raw))
        };
        !planted(Bug::ErrorIsDamage)
            && (matches!(self, Self::Mappings { .. }) || self.io_error().is_some_and(passing))
    }

    /// Whether a file or a directory is missing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::NotFound { .. } => true,
            Self::Open { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// Whether space was lacking.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }

    /// What the system said, where it said something.
    #[must_use]
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            Self::Open { source, .. }
            | Self::NoSpace { source, .. }
            | Self::Denied { source, .. }
            | Self::WindowTaken { source, .. }
            | Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// How much space was lacking, where that is known.
fn for_bytes(needed: u64) -> String {
    if needed == 0 { " is left".into() } else { format!(" for {needed} bytes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_at_a_character_and_never_panic() {
        let long = "é".repeat(100);
        let name = FileName::new(&long);
        assert_eq!(name.as_str(), "é".repeat(31));
        assert_eq!(FileName::new("superblock").as_str(), "superblock");
        assert_eq!(FileName::new("").to_string(), "the store directory");
    }

    #[test]
    fn no_name_leads_out_of_the_store() {
        let check = |name: &str| FileName::check(Operation::Read, name);
        for good in [
            "superblock",
            "catalog.0",
            "puddles/0123456789abcdef0123456789abcdef",
            "a/b_c-d",
            "...",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        let long = "x".repeat(NAME_LEN_MAX + 1);
        for bad in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "a/",
            "a\0b",
            "a b",
            "é",
            long.as_str(),
        ] {
            assert!(matches!(check(bad), Err(MediumError::BadName { .. })), "{bad:?}");
        }
    }

    #[test]
    fn system_errors_are_sorted_by_what_to_do_about_them() {
        let of = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            MediumError::from_io(Operation::Write, "superblock", source)
        };
        assert!(of(28).is_no_space(), "ENOSPC");
        assert!(of(122).is_no_space(), "EDQUOT");
        assert!(of(2).is_not_found(), "ENOENT");
        assert!(matches!(of(13), MediumError::Denied { .. }), "EACCES");
        assert!(matches!(of(30), MediumError::ReadOnly { .. }), "EROFS");
        assert!(matches!(of(5), MediumError::Io { .. }), "EIO");
        assert!(of(5).to_string().starts_with("cannot write superblock: "));
    }

    #[test]
    fn a_failed_sync_is_one_whatever_the_system_says() {
        let of =
            |op, errno| MediumError::from_io(op, "journal", io::Error::from_raw_os_error(errno));
        for errno in [1, 2, 5, 9, 13, 17, 24, 28, 30, 122] {
            for op in [Operation::Sync, Operation::SyncDirectory] {
                assert!(of(op, errno).is_failed_sync(), "{op} {errno}");
            }
            assert!(!of(Operation::Write, errno).is_failed_sync(), "{errno}");
        }
        let name = FileName::new("journal");
        assert!(MediumError::SyncFailedBefore { op: Operation::Sync, name }.is_failed_sync());
    }
}
