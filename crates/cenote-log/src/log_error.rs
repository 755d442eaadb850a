//! Why an entry could not be written.

use cenote_layout::error_kind::ErrorKind;

/// Why an entry could not be written. The log is as it was before, unless it is lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The log is full and could not grow.
    #[error("the log is full and cannot grow: {0}")]
    Grow(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The head segment is not a log that can be written.
    #[error("the log cannot be written: {0}")]
    NotWritable(String),
    /// A page of the log, or of another one of its session, was lost. The transaction stays in the
    /// log as far as that is there, for the next opener.
    #[error(
        "a page of a log was lost while the store was open: its file was cut short, or its disk \
         fails"
    )]
    Lost,
}

impl LogError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Grow(_) => ErrorKind::Full,
            Self::NotWritable(_) => ErrorKind::Damaged,
            Self::Lost => ErrorKind::Ended,
        }
    }
}
