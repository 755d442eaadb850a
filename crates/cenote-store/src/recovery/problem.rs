//! A problem of a file that recovery needs, told apart from errors of the medium that say nothing
//! of it ([`super`], "Errors of the medium").

use crate::kernel::puddles::verify::about_file;
use cenote_layout::id::Uuid;
use cenote_medium::MediumError;

/// Why recovery cannot use a log, a log space or a puddle.
pub(super) enum Problem {
    /// Damage in its file, or an error of this file: it waits, and its pools with it.
    File(String),
    /// An error that says nothing of the file: recovery fails.
    Medium(MediumError),
}

impl From<MediumError> for Problem {
    fn from(error: MediumError) -> Self {
        about_file(error).map_or_else(Self::Medium, Self::File)
    }
}

impl From<String> for Problem {
    fn from(detail: String) -> Self {
        Self::File(detail)
    }
}

impl From<&str> for Problem {
    fn from(detail: &str) -> Self {
        Self::File(detail.to_owned())
    }
}

/// The error of the medium, if it is one; what is wrong with the file otherwise.
pub(super) fn sorted<T>(found: Result<T, Problem>) -> Result<Result<T, String>, MediumError> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(Problem::File(detail)) => Ok(Err(detail)),
        Err(Problem::Medium(error)) => Err(error),
    }
}

/// Why what was read is not believed, and what was written is not relied on.
pub(super) fn lost_page(puddle: Uuid, page: u64) -> String {
    format!(
        "page {page} of puddle {puddle} was lost while it was read: its file was cut short, or its \
         disk fails"
    )
}
