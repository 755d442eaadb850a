//! Fencing: a session writes control data only while the superblock on the medium is the one that
//! it read or wrote.
//!
//! Locks keep a second writer out ([`cenote_medium::Medium::hold`]). The fence finds what locks do
//! not: a program that puts other files in the place of the store's, or other bytes into them, and
//! media whose locks do not work.
//!
//! States of a session:
//!
//! | state | when | effect |
//! | --- | --- | --- |
//! | *unfenced* | every check finds the newest copy as this session left it, in its inode | none |
//! | *fenced*, for good | from the first check that does not | the store is poisoned |
//!
//! A check comes before each batch of the catalog, each copy of the superblock, each file that
//! takes the place of one of the catalog's, and each header of a journal. It is one `fstatat` and
//! one `pread`; a batch takes two `fstatat` more, for its two files. Another program may act
//! between a check and the write that follows. The write then goes to an inode that this session
//! opened before the check, by a descriptor, so it reaches no file of another store.
//!
//! Stores into mappings and records of journals are not checked: they go to inodes that this
//! session opened, and no other session opens these while its locks are held.

use crate::kernel::superblock::origin::StorePlace;
use crate::kernel::superblock::poison::Poisoned;
use crate::kernel::superblock::{self, Copies, FILE};
use cenote_layout::superblock::Superblock;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, FileId, FileName, MediumError, OwnedMedium};
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// What this session knows of the superblock.
#[derive(Debug)]
struct KnownSuperblock {
    /// The newest copy, as this session read or wrote it.
    newest: Box<[u8]>,
    generation: u64,
    /// A later one, whose write failed. The medium may have all of it, or a part.
    tried: Option<Box<[u8]>>,
}

/// The superblock of a store that this session may write.
#[derive(Debug)]
pub(crate) struct Fence {
    medium: OwnedMedium,
    file: FileHandle,
    id: FileId,
    known: Mutex<KnownSuperblock>,
    poisoned: Arc<Poisoned>,
}

impl KnownSuperblock {
    fn of(newest: &Superblock) -> Self {
        Self { newest: newest.as_bytes().into(), generation: newest.generation, tried: None }
    }
}

impl Fence {
    /// For a session that holds the superblock `id` and has read `block` from it.
    fn new(
        medium: &OwnedMedium,
        id: FileId,
        block: &Superblock,
        poisoned: &Arc<Poisoned>,
    ) -> Result<Self, MediumError> {
        Ok(Self {
            medium: medium.clone(),
            file: FileHandle::open(medium, FILE)?,
            id,
            known: Mutex::new(KnownSuperblock::of(block)),
            poisoned: Arc::clone(poisoned),
        })
    }

    /// The same for a session that may write before it says "open". Where a session died between
    /// its two copies, the other one says "clean" still, and would be believed if the newer one
    /// were lost: it says "open", too, before anything else is written.
    pub(crate) fn begin(
        medium: &OwnedMedium,
        (site, half_open): (StorePlace, bool),
        (block, poisoned): (&mut Superblock, &Arc<Poisoned>),
    ) -> Result<Self, MediumError> {
        let fence = Self::new(medium, site.superblock, block, poisoned)?;
        if half_open && !planted(Bug::OtherCopyClean) {
            fence.store_next(block)?;
        }
        Ok(fence)
    }

    /// Fails, and poisons the store, unless the superblock is as this session left it.
    pub(crate) fn check(&self) -> Result<(), MediumError> {
        self.check_named(FILE, self.id)?;
        if planted(Bug::FenceNotChecked) {
            return Ok(());
        }
        let Copies { bytes: [first, second], unread } =
            superblock::read_copies(|at, copy| self.file.read_at(at, copy))?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = &*known.newest;
        let other = match (first == newest, second == newest) {
            (true, _) => &*second,
            (_, true) => &*first,
            _ => {
                // Of a copy that cannot be read now it is not known.
                let other = "its newest copy is not the one that this session left";
                return Err(unread.unwrap_or_else(|| self.fenced(FILE, other)));
            }
        };
        if superblock::is_later(other, known.generation) && known.tried.as_deref() != Some(other) {
            return Err(self.fenced(FILE, "it names another session"));
        }
        Ok(())
    }

    /// Fails, and poisons the store, unless `name` still leads to the file `id`, which this session
    /// opened.
    pub(crate) fn check_named(&self, name: &str, id: FileId) -> Result<(), MediumError> {
        if planted(Bug::InodeNotCompared) {
            return Ok(());
        }
        match self.medium.file_id(name) {
            Ok(found) if found == id => Ok(()),
            Ok(_) => Err(self.fenced(name, "another file has its name")),
            Err(error) if error.is_not_found() => Err(self.fenced(name, "it is not there")),
            Err(error) => Err(error),
        }
    }

    fn fenced(&self, name: &str, detail: &'static str) -> MediumError {
        let error = MediumError::Replaced { name: FileName::new(name), detail };
        self.poisoned.set(error.to_string().into());
        error
    }

    /// Writes `block` as the next generation over the older copy.
    ///
    /// States: the newest copy whole and unchanged, the other one torn; then both whole, the new
    /// one believed. **The sync commits.**
    pub(crate) fn store_next(&self, block: &mut Superblock) -> Result<(), MediumError> {
        self.check()?;
        let next = superblock::next(block);
        let place = next.generation + u64::from(planted(Bug::SuperblockSameCopy));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.tried = Some(next.as_bytes().into());
        self.file.write_at(superblock::copy_offset(place), next.as_bytes())?;
        self.file.sync()?;
        *known = KnownSuperblock::of(&next);
        drop(known);
        *block = next;
        Ok(())
    }
}
