//! Errors of protected objects, as distinct as cryptography allows. It does not distinguish
//!
//! * a damaged page from an earlier one that was put back, in modes without a tag for each page
//!   (neither hash is the current one);
//! * a page of another object from noise, in authenticated mode (another object has another key);
//! * an accident from an attacker who changed page, tree and header together, in modes without a
//!   key.

use cenote_layout::at_rest::{Mode, NodeId};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::header::HeaderError;
use cenote_layout::id::Uuid;
use std::io;

/// Why an object's protection cannot be created, opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtRestError {
    /// The header is not believed: cut short, damaged, of a newer release, or impossible.
    #[error("object {object}: {source}; restore the whole store from one copy")]
    Header {
        /// The object that was asked for.
        object: Uuid,
        /// What is wrong.
        source: HeaderError,
    },
    /// The header is whole, and of another object.
    #[error(
        "object {expected}: the protection header is that of object {found}: files were swapped; \
         restore the whole store from one copy"
    )]
    OtherObject {
        /// The object that was asked for.
        expected: Uuid,
        /// The one that the header names.
        found: Uuid,
    },
    /// The object is protected in another way than the caller demands.
    #[error("object {object} has protection \"{found}\", and \"{expected}\" was asked for")]
    WrongMode {
        /// The object.
        object: Uuid,
        /// What the caller demands.
        expected: Mode,
        /// What the header says.
        found: Mode,
    },
    /// The object has another number of pages than the caller says.
    #[error(
        "object {object}: its protection covers {found} pages, the object has {expected}: \
         one of them was swapped; restore the whole store from one copy"
    )]
    WrongSize {
        /// The object.
        object: Uuid,
        /// Pages of the object.
        expected: u64,
        /// Pages that the header covers.
        found: u64,
    },
    /// The header is this object's, and was made for another name, length or place than the catalog
    /// says.
    #[error(
        "object {object}: its protection was made for another name, length or address: records of \
         the catalog were swapped or changed; restore the whole store from one copy"
    )]
    Misplaced {
        /// The object.
        object: Uuid,
    },
    /// The header is whole, and not the one that the store's last psync of it left.
    #[error(
        "object {object}: its protection is not the one that the store's journal lists: its file \
         or the journal was put back; restore the whole store from one copy"
    )]
    NotListed {
        /// The object.
        object: Uuid,
    },
    /// The mode needs a key, and none was given.
    #[error("object {object} has protection \"{mode}\": give its key")]
    NoKey {
        /// The object.
        object: Uuid,
        /// Its mode.
        mode: Mode,
    },
    /// A key was given, and the object is under none: an attacker may have replaced it by another.
    #[error(
        "object {object} has protection \"{mode}\", which has no key, and one was given: it may \
         have been replaced; open it without a key if that is meant"
    )]
    KeyNotUsed {
        /// The object.
        object: Uuid,
        /// Its mode.
        mode: Mode,
    },
    /// A passphrase was given for an object under a key, or the other way round.
    #[error(
        "object {object} is protected by {}, and {} was given",
        kind(*.passphrase),
        kind(!*.passphrase)
    )]
    WrongKeyKind {
        /// The object.
        object: Uuid,
        /// Whether the object is under a passphrase.
        passphrase: bool,
    },
    /// The key is not the one that the object is under.
    #[error("object {object}: this is not its key; give the right key")]
    WrongKey {
        /// The object.
        object: Uuid,
    },
    /// The key is right. The data key under it was changed, and the header's checksum made to fit.
    #[error(
        "object {object}: the key is right, but the data key under it was tampered with; \
         restore the whole store from one copy"
    )]
    WrappedKey {
        /// The object.
        object: Uuid,
    },
    /// The key is right. Something else in the header was changed, and its checksum made to fit.
    #[error(
        "object {object}: the key is right, but the header was tampered with; restore the whole \
         store from one copy"
    )]
    Forged {
        /// The object.
        object: Uuid,
    },
    /// The object is whole, and older than what the caller knows of.
    #[error("object {object} was rolled back: {what} is {found}, and was {expected} before")]
    RolledBack {
        /// The object.
        object: Uuid,
        /// What is older.
        what: &'static str,
        /// What the header says.
        found: u64,
        /// What the caller's anchor says.
        expected: u64,
    },
    /// The object is of the generation that the caller knows, with other contents: two histories.
    #[error(
        "object {object} is not the one that the anchor was taken of: generation {generation} has \
         another root"
    )]
    Forked {
        /// The object.
        object: Uuid,
        /// The generation of both.
        generation: u64,
    },
    /// More pages than the format allows.
    #[error("object {object}: {pages} pages are more than the format allows (2^40)")]
    TooLarge {
        /// The object.
        object: Uuid,
        /// Pages asked for.
        pages: u64,
    },
    /// The mode has no key to change.
    #[error("object {object} has protection \"{mode}\", which has no key")]
    NothingToRekey {
        /// The object.
        object: Uuid,
        /// Its mode.
        mode: Mode,
    },
    /// A change was prepared on what is no longer the current state. Prepare it again.
    #[error(
        "object {object}: the change was prepared at generation {prepared}, and the object is at \
         {current}; prepare it again"
    )]
    Stale {
        /// The object.
        object: Uuid,
        /// Generation that it was prepared on.
        prepared: u64,
        /// Generation that the object is at.
        current: u64,
    },
    /// A page could not be put under the tree.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The caller's key is none.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No memory for secrets, or no random bytes.
    #[error("object {object}: {what}: {source}")]
    System {
        /// The object.
        object: Uuid,
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl AtRestError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Header { source, .. } => source.kind(),
            Self::OtherObject { .. }
            | Self::WrongSize { .. }
            | Self::Misplaced { .. }
            | Self::NotListed { .. }
            | Self::WrappedKey { .. }
            | Self::Forged { .. }
            | Self::RolledBack { .. }
            | Self::Forked { .. } => ErrorKind::Damaged,
            Self::NoKey { .. }
            | Self::KeyNotUsed { .. }
            | Self::WrongKeyKind { .. }
            | Self::WrongKey { .. } => ErrorKind::Denied,
            Self::WrongMode { .. } | Self::TooLarge { .. } | Self::NothingToRekey { .. } => {
                ErrorKind::Misuse
            }
            Self::Stale { .. } => ErrorKind::Busy,
            Self::Page(error) => error.fault.kind(),
            Self::Key(error) => error.kind(),
            Self::System { source, .. } => ErrorKind::of_system(source),
        }
    }
}

impl KeyError {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotBuilt => ErrorKind::Unsupported,
            Self::File { .. } | Self::Weak | Self::PassphraseLen { .. } | Self::Argon2 { .. } => {
                ErrorKind::Misuse
            }
            Self::System { source, .. } => ErrorKind::of_system(source),
        }
    }
}

impl PageFault {
    /// What a program can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Damaged
            | Self::SideDamaged
            | Self::RolledBack
            | Self::Moved { .. }
            | Self::Node { .. }
            | Self::NodeRead { .. }
            | Self::NoSide => ErrorKind::Damaged,
            Self::OutOfRange { .. } => ErrorKind::Misuse,
            Self::Random(source) => ErrorKind::of_system(source),
            Self::Cipher => ErrorKind::Io,
        }
    }
}

fn kind(passphrase: bool) -> &'static str {
    if passphrase { "a passphrase" } else { "a key" }
}

/// Why a key or passphrase cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The program was built without the ciphers.
    #[error(
        "this program was built without ciphers, so it takes no key; build it with the feature \
         `at-rest` of the crate `cenote`"
    )]
    NotBuilt,
    /// A key file must hold 32 bytes, or 64 hexadecimal digits.
    #[error(
        "a key file holds 32 bytes or 64 hexadecimal digits; this one holds neither ({len} bytes)"
    )]
    File {
        /// Bytes of the file.
        len: usize,
    },
    /// All bytes of a key are the same.
    #[error("a key of 32 equal bytes is no key; make one with `head -c 32 /dev/urandom`")]
    Weak,
    /// An empty passphrase, or one that is too long.
    #[error("a passphrase has 1 to {max} bytes; this one has {len}")]
    PassphraseLen {
        /// Its bytes.
        len: usize,
        /// Most bytes.
        max: usize,
    },
    /// Argon2's parameters are out of bounds.
    #[error("Argon2 cannot run with {memory_kib} KiB, {passes} passes and {lanes} lanes: {reason}")]
    Argon2 {
        /// Memory asked for.
        memory_kib: u32,
        /// Passes asked for.
        passes: u32,
        /// Lanes asked for.
        lanes: u32,
        /// What is wrong.
        reason: String,
    },
    /// No memory that can be locked, or no random bytes.
    #[error(
        "{what}: {source}; raise the limit of locked memory (ulimit -l), or allow keys in memory \
         that may be swapped"
    )]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// Why a data key cannot be had.
#[derive(Debug)]
#[cfg_attr(not(feature = "ciphers"), expect(dead_code, reason = "no key can be made"))]
pub(crate) enum UnwrapError {
    /// The caller's key is another one.
    WrongKey,
    /// The key is right and the wrapped key is not what was written.
    Tampered,
    /// No memory.
    System(io::Error),
}

/// Why one page cannot be sealed, opened or verified. The other pages are not concerned, except
/// where [`PageFault::Node`] says so.
#[derive(Debug, thiserror::Error)]
#[error("object {object}, page {page}: {fault}")]
pub struct PageError {
    /// The object.
    pub object: Uuid,
    /// The page's number in the object.
    pub page: u64,
    /// What is wrong.
    pub fault: PageFault,
}

/// What is wrong with a page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageFault {
    /// The page's bytes are not those that were sealed: changed, moved here from elsewhere, or (in
    /// modes without side data) put back from earlier.
    #[error("its bytes are not those that were last written")]
    Damaged,
    /// The side data is not the current one, and does not fit the page either.
    #[error("its nonce and tag are not those that were last written")]
    SideDamaged,
    /// Page and side data belong together and to this page, and are older than the last that was
    /// committed.
    #[error("it was rolled back to an earlier state")]
    RolledBack,
    /// Page and side data are authentic, and those of another page of this object.
    #[error("it is page {from} of this object, moved here")]
    Moved {
        /// Where they belong.
        from: u64,
    },
    /// A node of the tree above the page is damaged or rolled back: nothing can be said about the
    /// pages below it.
    #[error(
        "the hash tree's node {} of level {} is not what was last written; pages {first} to \
         {last} cannot be verified",
        node.index,
        node.level
    )]
    Node {
        /// The node.
        node: NodeId,
        /// First page below it.
        first: u64,
        /// Last page below it.
        last: u64,
    },
    /// A node of the tree could not be read.
    #[error("the hash tree's node {} of level {} cannot be read: {source}", node.index, node.level)]
    NodeRead {
        /// The node.
        node: NodeId,
        /// What the system says.
        source: io::Error,
    },
    /// The object has no such page.
    #[error("the object has only {pages} pages")]
    OutOfRange {
        /// Pages of the object.
        pages: u64,
    },
    /// The mode has side data for each page, and it was not given.
    #[error("this mode keeps a nonce and a tag for each page: give them")]
    NoSide,
    /// No random bytes for a nonce.
    #[error("no random bytes for a nonce: {0}")]
    Random(io::Error),
    /// The cipher library has no memory.
    #[error("no memory to encrypt or decrypt it; close other programs and try again")]
    Cipher,
}
