//! Archiving (PUD-9; Puddles paper, 4.2): brings pools in their in-memory form out of a store into
//! an archive, and from there into a store.
//!
//! Invariants:
//!
//! * **Export** reads files and changes none. It takes only pools that no process has open and
//!   whose files need no replay, tracing or rewriting. The file of an archive gets its name only
//!   when it is whole and on the disk.
//! * **Import** puts everything into files that no record names, checks everything, syncs, and then
//!   makes one batch of the catalog. An import that ends before that leaves the store as it was.
//! * Neither runs code of the application: both learn types and pointers from descriptors and
//!   pointer maps.

mod error;
mod export;
mod file;
mod import;
mod scan;
mod values;

pub use cenote_archive::{ArchiveError, ArchiveReader, Codec, LeftEntry, Manifest, Totals};
pub use error::ArchivingError;
pub use export::{ExportOptions, Exported, export};
pub use file::{Exclusive, to_file};
pub use import::{
    ImportOptions, ImportedArchive, Inspected, ProgramTypes, Unpacked, inspect, unpack,
};
pub use values::{Stale, check_values, values_in};

/// How far an export or an import has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchivingProgress {
    /// Bytes of puddles that are done.
    pub done: u64,
    /// Bytes of all puddles.
    pub of: u64,
}

/// Hears how far it has come, and says whether to go on. It must not call the store.
pub type OnArchiving<'a> = &'a mut dyn FnMut(ArchivingProgress) -> core::ops::ControlFlow<()>;

/// Tells how far it has come, and hears whether to go on.
fn tell(progress: &mut Option<OnArchiving<'_>>, done: u64, of: u64) -> Result<(), ArchivingError> {
    match progress.as_mut().map(|progress| progress(ArchivingProgress { done, of })) {
        Some(core::ops::ControlFlow::Break(())) => Err(ArchivingError::Stopped),
        _ => Ok(()),
    }
}
