//! The first 48 bytes of every header, and the checks that come before anything else is believed.

use crate::error_kind::ErrorKind;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Format version that this release writes. A store with a higher one is refused.
pub const FORMAT_VERSION: u32 = 1;

/// Feature bits that this release understands in every header, per mask. None is defined yet.
pub const KNOWN_COMPAT: u64 = 0;
/// Bits that forbid writing to programs that do not know them.
pub const KNOWN_RO_COMPAT: u64 = 0;
/// Bits that forbid even reading to programs that do not know them.
pub const KNOWN_INCOMPAT: u64 = 0;

/// The start of every header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HeaderPrefix {
    /// Says what kind of header this is; see the constants beside each kind.
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`] of the writer.
    pub version: u32,
    /// Bytes of the whole header.
    pub header_len: u32,
    /// Features that old programs may ignore.
    pub compat: u64,
    /// Features that old programs may read past but not write.
    pub ro_compat: u64,
    /// Features without which nothing can be understood.
    pub incompat: u64,
    /// XXH3-64 of the header with this field zero.
    pub checksum: u64,
}

const _: () = assert!(size_of::<HeaderPrefix>() == 48);
const _: () = assert!(core::mem::offset_of!(HeaderPrefix, checksum) == 40);

/// Why a header is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("{what} is cut short: {found} of {expected} bytes")]
    Truncated {
        /// Which header.
        what: &'static str,
        /// Bytes that were there.
        found: u64,
        /// Bytes that there should be.
        expected: u64,
    },
    /// The magic number is another one.
    #[error("{what} has the wrong magic number {found}: this is no {what}")]
    Magic {
        /// Which header.
        what: &'static str,
        /// What stands there.
        found: MagicText,
    },
    /// Written by a later release.
    #[error(
        "{what} was made by a newer release: it has format version {found}, and this release \
         understands up to {known}: use a newer release"
    )]
    Version {
        /// Which header.
        what: &'static str,
        /// Version on media.
        found: u32,
        /// Highest version that is understood.
        known: u32,
    },
    /// An incompatible feature is not known to this release.
    #[error(
        "{what} was made by a newer release: it uses incompatible features {unknown:#x} that this \
         release does not know: use a newer release"
    )]
    Incompatible {
        /// Which header.
        what: &'static str,
        /// The unknown bits.
        unknown: u64,
    },
    /// A feature is not known to this release that forbids writing.
    #[error(
        "{what} was made by a newer release: it uses features {unknown:#x} that this release can \
         only read past: open it read-only, or use a newer release"
    )]
    ReadOnly {
        /// Which header.
        what: &'static str,
        /// The unknown bits.
        unknown: u64,
    },
    /// Bytes that this release keeps zero are set, and the checksum fits.
    #[error(
        "{what} was made by a newer release: it uses bytes that this release keeps zero: \
         use a newer release"
    )]
    Reserved {
        /// Which header.
        what: &'static str,
    },
    /// The bytes are not those that were written.
    #[error("{what} is damaged: checksum {found:#018x}, computed {computed:#018x}")]
    Checksum {
        /// Which header.
        what: &'static str,
        /// Checksum on media.
        found: u64,
        /// Checksum of what is there.
        computed: u64,
    },
    /// A field has a value that cannot be, although the checksum fits.
    #[error("{what} has an impossible {field}: {value:#x}")]
    Field {
        /// Which header.
        what: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl HeaderError {
    /// What a program can do about it.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        if self.is_newer() { ErrorKind::Unsupported } else { ErrorKind::Damaged }
    }

    /// Whether the header is whole, and a newer release wrote it. Anything else is damage.
    #[must_use]
    pub const fn is_newer(&self) -> bool {
        use HeaderError::{Incompatible, ReadOnly, Reserved, Version};
        matches!(self, Version { .. } | Incompatible { .. } | ReadOnly { .. } | Reserved { .. })
    }
}

/// Eight bytes shown as text where they are text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MagicText(pub [u8; 8]);

impl fmt::Debug for MagicText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// As text, or as the bytes where they are none.
impl fmt::Display for MagicText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return fmt::Debug::fmt(self, f);
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl HeaderPrefix {
    /// The prefix that this release writes; the checksum is filled in by [`seal`].
    #[must_use]
    pub const fn new(magic: [u8; 8], header_len: u32) -> Self {
        Self {
            magic,
            version: FORMAT_VERSION,
            header_len,
            compat: 0,
            ro_compat: 0,
            incompat: 0,
            checksum: 0,
        }
    }
}

/// A header of some kind: a [`HeaderPrefix`] and what follows.
pub trait Header: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// What it is called in messages.
    const NAME: &'static str;
    /// Its magic number.
    const MAGIC: [u8; 8];
    /// Its checksum's seed.
    const SEED: u64;
    /// Incompatible features that this release understands in headers of this kind.
    const KNOWN_INCOMPAT: u64 = KNOWN_INCOMPAT;

    /// Checks the fields that follow the prefix; called after the checksum fits.
    ///
    /// # Errors
    /// [`HeaderError::Field`] for a value that cannot be.
    fn check_fields(&self) -> Result<(), HeaderError>;
}

/// Fills in the checksum of a header: the last thing to do before it is written.
pub fn seal<H: Header>(header: &mut H) {
    let bytes = header.as_mut_bytes();
    bytes[40..48].fill(0);
    let sum = crate::checksum::checksum(H::SEED, bytes);
    bytes[40..48].copy_from_slice(&sum.to_le_bytes());
}

/// Reads a header from the start of `bytes`, believing nothing before it is checked: length, magic,
/// version, incompatible features, checksum, fields, in this order, so that the message names the
/// first cause.
///
/// `writing` also refuses read-only-compatible features that are not known.
///
/// # Errors
/// The first check that fails.
pub fn read<H: Header>(bytes: &[u8], writing: bool) -> Result<H, HeaderError> {
    let what = H::NAME;
    let Ok((header, _)) = H::read_from_prefix(bytes) else {
        return Err(HeaderError::Truncated {
            what,
            found: bytes.len() as u64,
            expected: size_of::<H>() as u64,
        });
    };
    let (prefix, _) = HeaderPrefix::read_from_prefix(header.as_bytes())
        .map_err(|_| HeaderError::Truncated { what, found: size_of::<H>() as u64, expected: 48 })?;
    if prefix.magic != H::MAGIC {
        return Err(HeaderError::Magic { what, found: MagicText(prefix.magic) });
    }
    let mut copy = header;
    seal(&mut copy);
    let (computed, _) = HeaderPrefix::read_from_prefix(copy.as_bytes())
        .map_err(|_| HeaderError::Truncated { what, found: size_of::<H>() as u64, expected: 48 })?;
    let sum_fits = computed.checksum == prefix.checksum;
    if prefix.version > FORMAT_VERSION && (sum_fits || fits_longer::<H>(bytes, &prefix)) {
        return Err(HeaderError::Version { what, found: prefix.version, known: FORMAT_VERSION });
    }
    if !sum_fits {
        return Err(HeaderError::Checksum {
            what,
            found: prefix.checksum,
            computed: computed.checksum,
        });
    }
    if prefix.incompat & !H::KNOWN_INCOMPAT != 0 {
        return Err(HeaderError::Incompatible {
            what,
            unknown: prefix.incompat & !H::KNOWN_INCOMPAT,
        });
    }
    if writing && prefix.ro_compat & !KNOWN_RO_COMPAT != 0 {
        return Err(HeaderError::ReadOnly { what, unknown: prefix.ro_compat & !KNOWN_RO_COMPAT });
    }
    if prefix.version == 0 {
        return Err(HeaderError::Field { what, field: "version", value: 0 });
    }
    if prefix.header_len as usize != size_of::<H>() {
        return Err(HeaderError::Field {
            what,
            field: "header_len",
            value: u64::from(prefix.header_len),
        });
    }
    header.check_fields()?;
    Ok(header)
}

/// Whether the checksum fits a header of another length: in every version it covers the bytes that
/// the prefix names, with its own field zero.
#[cold]
fn fits_longer<H: Header>(bytes: &[u8], prefix: &HeaderPrefix) -> bool {
    let Some(bytes) = bytes.get(..prefix.header_len as usize).filter(|bytes| bytes.len() >= 48)
    else {
        return false;
    };
    let mut copy = bytes.to_vec();
    copy[40..48].fill(0);
    crate::checksum::checksum(H::SEED, &copy) == prefix.checksum
}
