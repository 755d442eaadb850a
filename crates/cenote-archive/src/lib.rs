//! Archives: pools in one stream of bytes (PUD-9). The bytes are described in
//! [`cenote_layout::archive`]; here they are written and read.
//!
//! Invariants:
//!
//! * **A stream.** [`ArchiveWriter`] writes and [`ArchiveReader`] reads from front to back, with no
//!   seek, so that both ends may be a pipe.
//! * **Nothing is believed.** An archive comes from anywhere. Every number is checked before it is
//!   used; what cannot be is an [`ArchiveError`] that says where. [`Manifest::check`] holds of
//!   every manifest that is handed out: identities, names, numbers and addresses are each given
//!   once, puddles lie in the window that they were in and do not overlap, pointer maps stay inside
//!   their types. Chunks are whole pages of puddle bodies, in order, each once.
//! * **Bounded memory.** A reader holds the manifest, whose encoded entries are at most
//!   [`MANIFEST_LEN_MAX`], one chunk of at most [`CHUNK_LEN_MAX`], and that again if it is packed.
//!   What a packed chunk becomes is known before it is unpacked, and not a byte more is written.
//! * **All or nothing.** An archive is whole only when [`ArchiveReader::next_chunk`] has returned
//!   `None`: sections are chained by their checksums, and the last one counts them. A caller that
//!   keeps something of an archive before that keeps it where it can be dropped.
//!
//! # What a later release reads
//!
//! The header has the version and the three feature masks of all headers here. A later release
//! reads every version before it; an archive of each release is kept as a test. What is new gets a
//! bit: entries of a new kind an incompatible one, so that a release that would not understand the
//! pool refuses it by name; sections that can be done without the flag [`FLAG_SKIP`], and older
//! readers go past them.
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
