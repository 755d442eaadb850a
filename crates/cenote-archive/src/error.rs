//! Why an archive is not written or not believed. Each says what and where: `at` counts bytes from
//! the start of the archive.

use cenote_layout::error_kind::ErrorKind;
use cenote_layout::header::HeaderError;
use std::io;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The stream failed.
    #[error("cannot {what} the archive, at byte {at}: {source}")]
    Io {
        /// "read" or "write".
        what: &'static str,
        /// Where.
        at: u64,
        /// Why.
        source: io::Error,
    },
    /// The first bytes are no header of an archive that this release understands.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The stream ends before the archive does.
    #[error("the archive is cut short: it ends at byte {at}, in {inside}: get the whole file")]
    Truncated {
        /// Bytes that there were.
        at: u64,
        /// What was being read.
        inside: &'static str,
    },
    /// There is more than the archive.
    #[error(
        "the file has further bytes after the archive, from byte {at} on: it is not one archive"
    )]
    Trailing {
        /// Where the archive ends.
        at: u64,
    },
    /// Bytes are not those that were written.
    #[error("the archive is damaged at byte {at}: {detail}")]
    Damaged {
        /// Start of the section.
        at: u64,
        /// What does not fit.
        detail: &'static str,
    },
    /// Whole sections, and not those that belong here.
    #[error("no release writes such an archive: at byte {at}: {detail}")]
    Order {
        /// Start of the section.
        at: u64,
        /// What does not belong here.
        detail: &'static str,
    },
    /// A section that a later release may know.
    #[error(
        "the archive has a section of kind {kind} at byte {at}, which this release does not know: \
         use a newer release"
    )]
    UnknownSection {
        /// Its kind.
        kind: u32,
        /// Where it starts.
        at: u64,
    },
    /// The manifest cannot be.
    #[error("the archive's manifest is invalid: {what}: {detail}")]
    Manifest {
        /// Which entry.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// Packed in a way that this program was built without.
    #[error(
        "the archive is compressed with Zstandard, and this program is built without it: build \
         with feature \"zstd\""
    )]
    NoZstd,
    /// The manifest is larger than any reader takes.
    #[error(
        "the archive's manifest has {len} bytes, of at most {max}: take fewer pools into one \
         archive"
    )]
    ManifestLen {
        /// Bytes.
        len: u64,
        /// Most bytes.
        max: u64,
    },
    /// A chunk that cannot be in this archive.
    #[error(
        "chunk at byte {at} of the archive: {len} bytes at {offset:#x} of puddle {puddle}: {detail}"
    )]
    Chunk {
        /// Where its section starts.
        at: u64,
        /// Number of the puddle's entry.
        puddle: u32,
        /// Where it would lie.
        offset: u64,
        /// Its bytes.
        len: u64,
        /// What is wrong.
        detail: &'static str,
    },
}

impl ArchiveError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => ErrorKind::of_system(source),
            Self::Header(error) => error.kind(),
            Self::Truncated { .. }
            | Self::Trailing { .. }
            | Self::Damaged { .. }
            | Self::Order { .. }
            | Self::Manifest { .. }
            | Self::Chunk { .. } => ErrorKind::Damaged,
            Self::UnknownSection { .. } | Self::NoZstd => ErrorKind::Unsupported,
            Self::ManifestLen { .. } => ErrorKind::Misuse,
        }
    }

    pub(crate) fn manifest(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Manifest { what: what.into(), detail: detail.into() }
    }
}
