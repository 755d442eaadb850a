//! Sealed pages and their regions, read from the primary, and protections opened over them.

use crate::crypto::binding;
use crate::crypto::tree::{Digest, Node, NodeSource};
use crate::crypto::{Expect, HEADER_LEN, Keyring, Mode, Protection};
use crate::view::SealedError;
use cenote_journal::{Journal, Rooted};
use cenote_layout::at_rest::{NodeId, Regions};
use cenote_layout::id::Uuid;
use cenote_layout::{LINE_SIZE, PAGE_SIZE};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use std::io;
use std::sync::Arc;

/// Bytes that recovery could not write, to be laid over a primary, each with its offset in the
/// data.
pub type Patches = Vec<(u64, Vec<u8>)>;

/// Reads sealed pages, their side data and the tree: from the primary, with the bytes that recovery
/// could not write laid over it.
#[derive(Debug)]
pub struct Source {
    pub(crate) file: Arc<FileHandle>,
    pub(crate) data_at: u64,
    pub(crate) span: u64,
    pub(crate) regions: Regions,
    /// What a psync of this session has committed may not be in the file yet.
    journal: Option<Arc<Journal>>,
    object: Uuid,
    patches: Patches,
}

impl Source {
    /// Reads `pages` sealed pages that begin at `data_at` of a file, known to its journal as `id`.
    /// The last psyncs of this session may be in the journal alone. `None`: no file has so many
    /// pages.
    #[must_use]
    pub fn new(
        mode: Mode,
        pages: u64,
        (id, file, data_at): (Uuid, Arc<FileHandle>, u64),
        journal: Option<Arc<Journal>>,
        patches: Patches,
    ) -> Option<Self> {
        let regions = Regions::new(mode, pages)?;
        Some(Self {
            file,
            data_at,
            span: pages.checked_mul(PAGE_SIZE)?,
            regions,
            journal,
            object: id,
            patches,
        })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Arc<FileHandle> {
        &self.file
    }

    /// Reads bytes, counted from the start of the data.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediumError> {
        match &self.journal {
            Some(journal) => {
                journal.primary(self.object, &self.file, self.data_at).read(offset, bytes)?
            }
            None => self.file.read_exact_at(self.data_at + offset, bytes)?,
        }
        let end = offset + bytes.len() as u64;
        for (at, patch) in &self.patches {
            let (from, to) = ((*at).max(offset), (at + patch.len() as u64).min(end));
            if from < to {
                bytes[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&patch[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }

    /// Reads sealed pages.
    ///
    /// # Errors
    /// The medium.
    pub fn read_pages(&self, first: u64, sealed: &mut [u8]) -> Result<(), MediumError> {
        self.read(first * PAGE_SIZE, sealed)
    }

    /// Reads side data of pages, in modes that have it.
    ///
    /// # Errors
    /// The medium.
    pub fn read_sides(&self, first: u64, sides: &mut [u8]) -> Result<(), MediumError> {
        self.read(self.span + self.regions.side_of(first), sides)
    }

    fn read_header(&self) -> Result<[u8; HEADER_LEN], MediumError> {
        let mut header = [0; HEADER_LEN];
        self.read(self.span, &mut header)?;
        Ok(header)
    }

    /// Whether the file has this header.
    #[must_use]
    pub fn header_is(&self, header: &[u8; HEADER_LEN]) -> bool {
        self.read_header().is_ok_and(|found| found == *header)
    }

    /// The line of an offset in the regions.
    pub(crate) fn line(&self, offset: u64) -> u64 {
        (self.span + offset) / LINE_SIZE
    }
}

impl NodeSource for Source {
    fn read_node(&self, _: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()> {
        self.read(self.span + self.regions.tree + offset, bytes)
            .map_err(|error| io::Error::other(error.to_string()))
    }
}

/// The entry that a journal lists for a primary with this protection and `span` bytes of sealed
/// pages. Modes without a tree have headers that no psync changes: they are in no list.
#[must_use]
pub fn rooted(mode: Mode, span: u64) -> Option<Rooted> {
    mode.has_tree().then_some(Rooted { at: span, root: binding::root })
}

/// Compares a protection with what the journal lists.
///
/// # Errors
/// It is another.
pub fn check_listed(
    what: &str,
    protection: &Protection,
    listed: Option<Digest>,
) -> Result<(), SealedError> {
    if planted(Bug::RootsIgnored) {
        return Ok(());
    }
    protection.check_listed(listed).map_err(|error| SealedError::at_rest(what, error))
}

/// Opens the protection that a source has, bound to what the catalog says
/// ([`crate::binding`]): the key is checked, and no page is read.
///
/// # Errors
/// No key, a wrong one, or one that is not needed; a header that is not this one's, or made for
/// another name or place.
pub fn open(
    what: &str,
    mode: Mode,
    source: &Source,
    (binding, key): (Digest, Option<&Keyring>),
) -> Result<Protection, SealedError> {
    let expect = Expect { binding: Some(binding), ..Expect::of(source.object) };
    open_by(what, mode, source, expect, key)
}

/// The same of a file that is a copy, and still sealed as what it was copied from: what that was
/// bound to is not known here.
///
/// # Errors
/// As [`open`].
pub fn open_as(
    what: &str,
    mode: Mode,
    source: &Source,
    (identity, key): (Uuid, Option<&Keyring>),
) -> Result<Protection, SealedError> {
    open_by(what, mode, source, Expect::of(identity), key)
}

fn open_by(
    what: &str,
    mode: Mode,
    source: &Source,
    mut expect: Expect<'_>,
    key: Option<&Keyring>,
) -> Result<Protection, SealedError> {
    let header = source.read_header()?;
    (expect.pages, expect.mode) = (Some(source.span / PAGE_SIZE), Some(mode));
    expect.binding = expect.binding.filter(|_| !planted(Bug::BindingIgnored));
    Protection::open(&header, &expect, key).map_err(|error| SealedError::at_rest(what, error))
}
