//! How a command ends: the exit statuses, and the one line that says why.

use cenote_medium::MediumError;
use cenote_store::{FormatError, OpenError, StoreError};
use std::fmt;

/// Something was found: damage, a leak, a difference.
pub(crate) const FOUND: u8 = 1;
/// The command line makes no sense, or a question was answered with no.
pub(crate) const USAGE: u8 = 2;
/// It cannot be done: not a store, no permission, no space, an error of the medium.
pub(crate) const FAILED: u8 = 3;
/// Another process uses the store.
pub(crate) const IN_USE: u8 = 4;
/// `rekey`: the new key is the key, and something failed after that.
pub(crate) const UNFINISHED: u8 = 5;
/// Stopped by a signal.
pub(crate) const INTERRUPTED: u8 = 130;

/// What `--help` says about them.
pub(crate) const EXIT_HELP: &str = "\
Exit status:
    0  done, and nothing is wrong
    1  something was found: damage, a leak, a difference
    2  wrong arguments, or a question was not answered with yes
    3  it cannot be done: not a store, no permission, no space, an I/O error
    4  another process uses the store
    5  rekey: done, the new key opens it and the old one does not; then something failed
  130  stopped by Ctrl-C; the store is usable";

/// What a command that has worked found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// Something is: it has been said on standard output.
    Found,
}

impl Verdict {
    /// `Found` if so.
    pub(crate) fn found(found: bool) -> Self {
        if found { Self::Found } else { Self::Clean }
    }
}

/// Why a command has not worked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// [`USAGE`].
    Usage(String),
    /// [`FAILED`].
    Failed(String),
    /// [`IN_USE`].
    InUse(String),
    /// [`UNFINISHED`].
    Unfinished(String),
    /// [`INTERRUPTED`].
    Interrupted(String),
    /// Whoever read the output has gone. No error.
    Pipe,
}

impl Failure {
    /// A failure with the message of any error.
    pub(crate) fn failed(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// The exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Failed(_) => FAILED,
            Self::InUse(_) => IN_USE,
            Self::Unfinished(_) => UNFINISHED,
            Self::Interrupted(_) => INTERRUPTED,
            Self::Pipe => 0,
        }
    }

    /// The message, as one line.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Usage(text)
            | Self::Failed(text)
            | Self::InUse(text)
            | Self::Unfinished(text)
            | Self::Interrupted(text) => Some(text.lines().map(str::trim).collect::<Vec<_>>().join("; ")),
            Self::Pipe => None,
        }
    }
}

/// Closes a store in which the work is done: an error of that says so.
pub(crate) fn closed<E: Into<Failure>>(closed: Result<(), E>) -> Result<(), Failure> {
    closed.map_err(|error| match error.into() {
        Failure::Failed(why) => Failure::Failed(format!(
            "done, but the store was not closed: {why}: the next to open it recovers it"
        )),
        other => other,
    })
}

impl From<std::io::Error> for Failure {
    /// Of standard output.
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::Pipe;
        }
        Self::Failed(format!("cannot write the output: {error}: check where it is redirected to"))
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Locked { path, holder, waited, .. } => {
                let waited = if waited.is_zero() || waited.as_millis() < 100 {
                    String::new()
                } else {
                    format!(", also after {:.1} s", waited.as_secs_f64())
                };
                Self::InUse(format!(
                    "{path} is in use by {holder}{waited}: end that, or wait with --wait SECONDS"
                ))
            }
            // Its advice is for programs.
            OpenError::NotAStore { path } => Self::Failed(format!(
                "{path} is not a store: it has no file \"superblock\": check the path, or make a store with \
                 `cenote format {path}`"
            )),
            // Nor is what they say about policies, which are for programs that open stores.
            OpenError::ReadOnlyMedium { path } => Self::Failed(format!(
                "{path} cannot be written: it is mounted read-only, or this user may not write to it: make it writable, or only look (ls, \
                 info, check, dump, stats)"
            )),
            OpenError::Catalog { path, damage } => Self::Failed(format!(
                "{path}: the catalog is damaged in both files: {}: look with `cenote check {path}`; restore the whole store from one \
                 copy (`cenote backup` makes one), or copy its pools out with `cenote export`",
                listed(&damage)
            )),
            OpenError::CatalogRolledBack { path, found, at_least } => Self::Failed(format!(
                "{path}: both files of the catalog were rolled back: they end with batch {found}, and there was a batch {at_least}: \
                 look with `cenote check {path}`, and restore the whole store from one copy"
            )),
            error @ (OpenError::CopyOfOpen { .. } | OpenError::Guests { .. }) => {
                Self::InUse(error.to_string())
            }
            OpenError::Copied { path } => Self::Failed(format!(
                "{path} is a copy of a store that was not closed, or was put back from one: its files are of \
                 different moments: use a copy that `cenote backup` made, or open it with --accept-copy, which \
                 checks every pool"
            )),
            error => Self::failed(error),
        }
    }
}

/// The first few of a list.
fn listed(damage: &[cenote_store::Damage]) -> String {
    let mut text = damage.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if damage.len() > 3 {
        text += &format!("; and {} more", damage.len() - 3);
    }
    text
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Locked { .. } => Self::InUse(error.to_string()),
            FormatError::NoWindow { len } => Self::Failed(format!(
                "no {} of address space are free for the window: choose a smaller --window-size, or raise the limit \
                 (ulimit -v)",
                crate::units::bytes(len)
            )),
            error => Self::failed(error),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::PoolDamaged { name, damage } => Self::Failed(format!(
                "pool \"{name}\" is damaged: {}; or remove the pool with `cenote rm`",
                listed(&damage)
            )),
            StoreError::PoolLogDamaged { name, damage } => Self::Failed(format!(
                "pool \"{name}\" may hold half a transaction, because a log is set aside: {}: see `cenote logs list`, then `cenote logs apply` \
                 or `cenote logs discard`",
                listed(&damage)
            )),
            StoreError::PoolNotCovered { name } => Self::Failed(format!(
                "pool \"{name}\" was open for writing when power failed, at durability level process, which does not cover that: look \
                 with `cenote check`; a program has to decide whether to use it (PowerLossPolicy)"
            )),
            StoreError::PoolTorn { name } => Self::Failed(format!(
                "pool \"{name}\" may hold half a transaction, because logs were discarded: restore it from \
                 a backup or an archive, remove it with `cenote rm`, or answer for it by `cenote logs \
                 declare-whole`"
            )),
            error => Self::failed(error),
        }
    }
}

impl From<cenote_object::ObjectError> for Failure {
    fn from(error: cenote_object::ObjectError) -> Self {
        match error {
            cenote_object::ObjectError::Busy { .. } => Self::InUse(error.to_string()),
            error => Self::failed(error),
        }
    }
}

impl From<MediumError> for Failure {
    fn from(error: MediumError) -> Self {
        Self::failed(error)
    }
}

impl From<cenote::Error> for Failure {
    fn from(error: cenote::Error) -> Self {
        match error {
            cenote::Error::Open(error) => error.into(),
            cenote::Error::Format(error) => error.into(),
            cenote::Error::Store(error) => error.into(),
            cenote::Error::Ship(cenote::ShipError::Store(error)) => error.into(),
            cenote::Error::Ship(cenote::ShipError::Stopped) => {
                Self::Interrupted("stopped; nothing was kept".into())
            }
            error => Self::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_an_error_says() {
        let failure = Failure::Failed("first\n   second\r\nthird".into());
        assert_eq!(failure.message().as_deref(), Some("first; second; third"));
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((failure.status(), failure.message()), (0, None));
    }
}
