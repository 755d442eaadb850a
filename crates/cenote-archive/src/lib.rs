//! Writes and reads archives: pools in one stream of bytes (PUD-9). [`cenote_layout::archive`]
//! describes the bytes.
//!
//! Invariants:
//!
//! * **A stream.** [`ArchiveWriter`] and [`ArchiveReader`] go from front to back and never seek.
//!   Both ends may be a pipe.
//! * **Nothing is believed.** Every number is checked before it is used. A number that cannot be is
//!   an [`ArchiveError`] that says where. [`Manifest::check`] holds of every manifest that a caller
//!   gets: identities, names, numbers and addresses are given once; puddles lie in the window of
//!   their store and do not overlap; pointer maps stay inside their types. Chunks are whole pages
//!   of puddle bodies, in order, each once.
//! * **Bounded memory.** A reader holds the manifest, whose encoded entries take at most
//!   [`MANIFEST_LEN_MAX`], and one chunk of at most [`CHUNK_LEN_MAX`]; of a packed chunk, both
//!   forms. A chunk's header says how long it is unpacked, and no more bytes are written.
//! * **All or nothing.** An archive is whole only when [`ArchiveReader::next_chunk`] has returned
//!   `None`: each section has the checksum of the one before, and the last section counts them.
//!   Until then a caller keeps what it has read where it can drop it.
//!
//! # What a later release reads
//!
//! The header has a version and three feature masks, as all headers do. A later release reads every
//! version before it; an archive of each release is kept as a test. Each novelty gets a bit:
//!
//! | novelty | bit | older readers |
//! | --- | --- | --- |
//! | an entry of a new kind | an incompatible feature | refuse the archive and name the feature |
//! | a section that a reader can do without | the flag [`FLAG_SKIP`] | skip the section |
//!
//! There is no `unsafe` code.
//!
//! [`MANIFEST_LEN_MAX`]: cenote_layout::archive::MANIFEST_LEN_MAX
//! [`CHUNK_LEN_MAX`]: cenote_layout::archive::CHUNK_LEN_MAX
//! [`FLAG_SKIP`]: cenote_layout::archive::FLAG_SKIP

#![forbid(unsafe_code)]

mod codec;
mod error;
mod manifest;
mod reader;
mod writer;

pub use cenote_layout::archive::{Codec, LeftEntry, PoolEntry, PuddleEntry, Totals};
pub use codec::is_built as codec_is_built;
pub use error::ArchiveError;
pub use manifest::Manifest;
pub use reader::{ArchiveReader, ArchiveStep, Chunk};
pub use writer::ArchiveWriter;
