//! How a command ends: the exit statuses, and the one line that says why.

use std::fmt;
use std::path::Path;

/// Stands for the store in the commands that a message names, until [`Failure::in_store`] knows it.
/// No name has this character.
pub(crate) const STORE: char = '\u{e000}';

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
    /// [`FAILED`], by the medium under a store, which names its files only.
    Medium(String),
    /// [`IN_USE`].
    InUse(String),
    /// [`UNFINISHED`].
    Unfinished(String),
    /// [`INTERRUPTED`].
    Interrupted(String),
    /// The reader of the output has gone. No error.
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
            Self::Failed(_) | Self::Medium(_) => FAILED,
            Self::InUse(_) => IN_USE,
            Self::Unfinished(_) => UNFINISHED,
            Self::Interrupted(_) => INTERRUPTED,
            Self::Pipe => 0,
        }
    }

    /// Names the store whose medium it is, and in the commands to be said next.
    pub(crate) fn in_store(self, dir: Option<&Path>) -> Self {
        let Some(dir) = dir else { return self };
        let name = |text: String| text.replace(STORE, &word(&dir.display().to_string()));
        match self {
            Self::Medium(text) => Self::Failed(format!("{}: {}", dir.display(), name(text))),
            Self::Failed(text) => Self::Failed(name(text)),
            Self::InUse(text) => Self::InUse(name(text)),
            other => other,
        }
    }

    /// The same, with something said before it.
    pub(crate) fn after(self, said: &str) -> Self {
        match self {
            Self::Failed(text) => Self::Failed(format!("{said}: {text}")),
            Self::Medium(text) => Self::Medium(format!("{said}: {text}")),
            Self::InUse(text) => Self::InUse(format!("{said}: {text}")),
            other => other,
        }
    }

    /// The message, as one line.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Self::Usage(text)
            | Self::Failed(text)
            | Self::Medium(text)
            | Self::InUse(text)
            | Self::Unfinished(text)
            | Self::Interrupted(text) => {
                let line = text.lines().map(str::trim).collect::<Vec<_>>().join("; ");
                Some(line.replace(STORE, "STORE"))
            }
            Self::Pipe => None,
        }
    }
}

/// A name as a word of a command line that a shell reads.
pub(crate) fn word(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,".contains(&byte);
    match !name.is_empty() && name.bytes().all(|byte| is_plain(byte) || !byte.is_ascii()) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', "'\\''")),
    }
}

/// Closes a store in which the work is done: an error of that says so.
pub(crate) fn closed<E: Into<Failure>>(closed: Result<(), E>) -> Result<(), Failure> {
    closed.map_err(|error| match error.into() {
        Failure::Failed(why) | Failure::Medium(why) => Failure::Failed(format!(
            "done, but the store was not closed: {why}: the next process that opens it recovers it"
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
        Self::Failed(format!("cannot write the output: {error}: check where standard output goes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_even_if_an_error_has_several() {
        let failure = Failure::Failed("first\n   second\r\nthird".into());
        assert_eq!(failure.message().as_deref(), Some("first; second; third"));
    }

    #[test]
    fn commands_that_are_to_be_said_next_name_the_store() {
        let failure = || Failure::Failed(format!("say `cenote ls {STORE}`"));
        let said = |failure: Failure| failure.message().unwrap_or_default();
        assert_eq!(said(failure().in_store(Some(Path::new("a b")))), "say `cenote ls 'a b'`");
        assert_eq!(said(failure().in_store(Some(Path::new("/x/y")))), "say `cenote ls /x/y`");
        assert_eq!(said(failure()), "say `cenote ls STORE`");
        assert_eq!(word("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((failure.status(), failure.message()), (0, None));
    }
}
