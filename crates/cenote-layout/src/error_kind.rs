//! The kinds of errors: each says what a program can do. All errors of Cenote have one.
//!
//! An error's variant says what happened, and its message what to do about it. A program that goes
//! on by itself needs less: whether to wait, to make room, to restore or to stop. That is the kind.
//! Kinds and their codes stay as they are; variants come and go between releases.

use core::fmt;

/// What a program can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call cannot work, now or later: a wrong argument, a pointer to a freed value, a handle
    /// that is open for reading. Change the program.
    Misuse,
    /// There is no such store, pool, object, root or file. Make it, or check the name.
    NotFound,
    /// It is there already. Open it, or take another name.
    Exists,
    /// The user, or the key, may not do this. Ask the owner, or give the right key.
    Denied,
    /// Another thread or process has what is needed, or freed blocks wait. Try again later.
    Busy,
    /// No room: the disk, the pool's limit, the window, a log, mappings. Make room, then try again.
    Full,
    /// Bytes on the medium are damaged, missing, torn or of another moment. Look (`cenote check`),
    /// and restore.
    Damaged,
    /// The session has ended: nothing that it does counts any more. Close the store, and open it
    /// again.
    Ended,
    /// Something begun earlier has to be finished first, or was done and its end is open. The
    /// message says what was done and what to call.
    Unfinished,
    /// This build, release, medium, mode or kind of heap cannot do it. Use another.
    Unsupported,
    /// The system reports something else: an I/O error, say. Look at the medium.
    Io,
    /// The program itself broke it off.
    Aborted,
}

impl ErrorKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Misuse,
        Self::NotFound,
        Self::Exists,
        Self::Denied,
        Self::Busy,
        Self::Full,
        Self::Damaged,
        Self::Ended,
        Self::Unfinished,
        Self::Unsupported,
        Self::Io,
        Self::Aborted,
    ];

    /// A word for logs and other programs. It stays the same in all releases.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Misuse => "misuse",
            Self::NotFound => "not-found",
            Self::Exists => "exists",
            Self::Denied => "denied",
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Damaged => "damaged",
            Self::Ended => "ended",
            Self::Unfinished => "unfinished",
            Self::Unsupported => "unsupported",
            Self::Io => "io",
            Self::Aborted => "aborted",
        }
    }

    /// The kind of this code, if a release knows it.
    #[must_use]
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Whether the same call may work later, without a change of the program or of data: another
    /// thread, process or user has to do something first.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        matches!(self, Self::Busy | Self::Full)
    }

    /// The kind of what the system said.
    #[must_use]
    pub fn of_system(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Of;
        // Of the process and of the system: too many open files. A loop of links.
        const EMFILE: i32 = 24;
        const ENFILE: i32 = 23;
        const ELOOP: i32 = 40;
        match error.raw_os_error() {
            Some(EMFILE | ENFILE) => return Self::Full,
            Some(ELOOP) => return Self::Misuse,
            _ => {}
        }
        match error.kind() {
            Of::NotFound => Self::NotFound,
            Of::AlreadyExists => Self::Exists,
            Of::PermissionDenied | Of::ReadOnlyFilesystem => Self::Denied,
            Of::WouldBlock | Of::ResourceBusy | Of::TimedOut => Self::Busy,
            Of::StorageFull | Of::QuotaExceeded | Of::OutOfMemory | Of::FileTooLarge => Self::Full,
            Of::NotADirectory | Of::InvalidFilename => Self::Misuse,
            Of::Unsupported => Self::Unsupported,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_differ_and_are_words_of_a_shell() {
        let codes: HashSet<&str> = ErrorKind::ALL.map(ErrorKind::code).into();
        assert_eq!(codes.len(), ErrorKind::ALL.len());
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::of_code(kind.code()), Some(kind));
        }
        assert_eq!(ErrorKind::of_code("other"), None);
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        assert!(codes.iter().all(|code| code.bytes().all(is_plain)));
    }

    #[test]
    fn what_the_system_says_has_a_kind() {
        let of = |number| ErrorKind::of_system(&std::io::Error::from_raw_os_error(number));
        let (enoent, eacces, eagain, eio, enospc, edquot) = (2, 13, 11, 5, 28, 122);
        let (emfile, efbig, enotdir, eloop) = (24, 27, 20, 40);
        assert_eq!([of(emfile), of(efbig)], [ErrorKind::Full; 2]);
        assert_eq!([of(enotdir), of(eloop)], [ErrorKind::Misuse; 2]);
        assert_eq!(of(enoent), ErrorKind::NotFound);
        assert_eq!(of(eacces), ErrorKind::Denied);
        assert_eq!(of(eagain), ErrorKind::Busy);
        assert_eq!(of(eio), ErrorKind::Io);
        assert_eq!([of(enospc), of(edquot)], [ErrorKind::Full; 2]);
    }
}
