//! What a program can do about the errors of objects.

use crate::error::ObjectError;
use cenote_layout::error_kind::ErrorKind;

impl ObjectError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Medium(error) => error.kind(),
            Self::AtRest { source, .. } => source.kind(),
            Self::Memory { source, .. } | Self::Scan { source, .. } | Self::File { source, .. } => {
                ErrorKind::of_system(source)
            }
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Denied { .. } | Self::NotProtected { .. } => ErrorKind::Denied,
            Self::PageDamaged { .. }
            | Self::NotCovered { .. }
            | Self::JournalDamaged { .. }
            | Self::PrimaryDamaged { .. }
            | Self::Snapshot { .. } => ErrorKind::Damaged,
            Self::Unverified { .. } | Self::NotCopied { .. } => ErrorKind::Unfinished,
            Self::StillThere { .. } => ErrorKind::Exists,
            Self::Mechanism { .. } => ErrorKind::Unsupported,
            Self::PsyncTooLarge { .. } => ErrorKind::Full,
            Self::Abandoned => ErrorKind::Ended,
            Self::ReadOnly { .. } | Self::Range { .. } | Self::NotTogether | Self::Options(_) => {
                ErrorKind::Misuse
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_store::StoreError;

    #[test]
    fn an_object_that_is_not_there_and_one_that_is_busy_differ() {
        let name = || "page".to_owned();
        let unknown = ObjectError::from(StoreError::ObjectUnknown { name: name() });
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        let busy = ObjectError::Busy { name: name(), what: "writing", pid: 7 };
        assert!(busy.kind() == ErrorKind::Busy && busy.kind().may_pass());
        let disk = std::io::Error::from_raw_os_error(28);
        let full = ObjectError::File { what: "make", file: name(), source: disk };
        assert_eq!(full.kind(), ErrorKind::Full);
    }
}
