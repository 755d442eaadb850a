//! The list of a journal's protected primaries: for each the *root*, a digest of the header of its
//! protection as the last psync left it. One state of all of them, so that one primary's file that
//! was put back among newer ones is found.
//!
//! The list lies behind the journal's halves, and the journal's header says where, with a checksum:
//! a header whose list is not whole is not whole itself. A list that changed is written where the
//! newest header's does not lie, and then the header: **one sync commits both**, or leaves the
//! header and the list before.
//!
//! # States
//!
//! A psync changes a root by the record that changes the header of the protection: nothing else is
//! written, and nothing more is synced. The list in memory follows when the record is applied, and
//! the list in the file when the header is written: at a trim, and when a session begins.
//!
//! | after a crash | the list in the file | what counts |
//! | --- | --- | --- |
//! | no record behind the trim point changes a primary | its root | the list |
//! | some do | that, or a later one | the last of these records, which recovery applies |
//!
//! *A list may hold roots of records behind the trim point*: each is of a record that was durable,
//! because only durable records are applied. Recovery finds that record again and takes its header.
//!
//! *A primary that was never psynced is in no list*; one that is removed leaves it in memory, and
//! in the file when a session begins.

use cenote_layout::PAGE_SIZE;
use cenote_layout::checksum::{checksum, seed};
use cenote_layout::id::Uuid;
use cenote_layout::object::{JournalHeader, RootEntry};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// A digest of the header of a primary's protection.
pub type Root = [u8; 32];

/// Bytes of a protection's header.
pub const ROOT_HEADER_LEN: usize = 512;

/// Where a protected primary has the header that its root is made of.
#[derive(Clone, Copy, Debug)]
pub struct Rooted {
    /// Bytes from the start of its data.
    pub at: u64,
    /// The root of such a header. `None`: no psync has written it.
    pub root: fn(&[u8; ROOT_HEADER_LEN]) -> Option<Root>,
}

/// Roots by primary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots(BTreeMap<Uuid, Root>);

impl Roots {
    /// The root of a primary.
    #[must_use]
    pub fn get(&self, id: Uuid) -> Option<Root> {
        self.0.get(&id).copied()
    }

    /// Notes a root. Whether that changes anything.
    pub fn set(&mut self, id: Uuid, root: Option<Root>) -> bool {
        match root {
            Some(root) => self.0.insert(id, root) != Some(root),
            None => self.0.remove(&id).is_some(),
        }
    }

    /// Keeps the primaries that are there.
    pub fn retain(&mut self, is_there: impl Fn(Uuid) -> bool) {
        self.0.retain(|id, _| is_there(*id));
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * size_of::<RootEntry>());
        for (id, root) in &self.0 {
            bytes.extend_from_slice(RootEntry { id: *id, root: *root }.as_bytes());
        }
        bytes
    }

    /// Writes the list, if it is not the one that `header` has: beside that one. `header` names it
    /// then; it is to be written next, and one sync covers both.
    pub(crate) fn write(
        &self,
        file: &FileHandle,
        header: &mut JournalHeader,
    ) -> Result<(), MediumError> {
        let bytes = self.to_bytes();
        let (len, sum) = (bytes.len() as u64, checksum(seed::JOURNAL_ROOTS, &bytes));
        if bytes.is_empty() {
            (header.roots_at, header.roots_len, header.roots_sum) = (0, 0, 0);
            return Ok(());
        }
        if (header.roots_len, header.roots_sum) == (len, sum) {
            return Ok(());
        }
        let (_, end) = header.half(1);
        let at = match header.roots_len {
            0 => end,
            _ if planted(Bug::RootsInPlace) => header.roots_at,
            _ if header.roots_at >= end + len => end,
            before => (header.roots_at + before).next_multiple_of(PAGE_SIZE),
        };
        file.write_in_pieces(at, &bytes)?;
        (header.roots_at, header.roots_len, header.roots_sum) = (at, len, sum);
        Ok(())
    }

    /// The list that a header names. `None`: it is not whole.
    pub(crate) fn read(
        file: &FileHandle,
        header: &JournalHeader,
    ) -> Result<Option<Self>, MediumError> {
        if header.roots_len == 0 {
            return Ok(Some(Self::default()));
        }
        if file.len_bytes()? < header.roots_at.saturating_add(header.roots_len) {
            return Ok(None);
        }
        let mut bytes = vec![0; header.roots_len as usize];
        file.read_exact_at(header.roots_at, &mut bytes)?;
        if checksum(seed::JOURNAL_ROOTS, &bytes) != header.roots_sum {
            return Ok(None);
        }
        let entries = bytes.chunks_exact(size_of::<RootEntry>());
        let entries = entries.filter_map(|bytes| RootEntry::read_from_bytes(bytes).ok());
        Ok(Some(Self(entries.map(|entry| (entry.id, entry.root)).collect())))
    }
}
