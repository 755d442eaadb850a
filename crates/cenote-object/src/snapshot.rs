//! Snapshots: an object as its last psync left it, in one file outside the store, and the way back.
//!
//! # What a snapshot holds
//!
//! The object's file followed by a trailer (`cenote_layout::snapshot`). A psync returns when its
//! record is durable, so the snapshot waits until all records are in the primary. No psync runs
//! while it is made: [`crate::Attached::snapshot`] borrows what `psync` needs alone, and
//! [`crate::Objects::snapshot`] keeps others from attaching. So the primary has the state of the
//! last psync. In a store that is open read-only, committed records that recovery could not write
//! to the primary are written over the copy. The copy is read back and summed up, also where it
//! shares the primary's blocks.
//!
//! Sealed pages are copied as they are, with tree, tags and header: a snapshot is protected as its
//! object is, and opens with the key that the object had then. Digests, tags and the encryption
//! itself contain the object's identity, so a restored protected object has the identity of the one
//! that the snapshot is of, and while that one is there it is refused.
//!
//! # Making one
//!
//! 1. The file is created, and must not be there.
//! 2. Contents.
//! 3. The trailer, with the contents' sum.
//! 4. **The file's sync commits.**
//! 5. Its directory is synced: then the snapshot is acknowledged.
//!
//! An error removes the file.
//!
//! | a crash | leaves | a restore |
//! | --- | --- | --- |
//! | before 1 is durable | nothing, or an empty file | is refused: no trailer |
//! | in 2, 3 or 4 | parts of the file, perhaps torn | is refused: no trailer, or a wrong sum |
//! | | or all of it | succeeds |
//! | after 4, before 5 | the file, whole, or no name for it | succeeds, or finds no file |
//! | after 5 | the file, whole | succeeds |
//!
//! None of this changes the store. The store does not remove the file that a crash leaves: the
//! caller does.
//!
//! # What binds a protected snapshot
//!
//! * *Identity, mode, number of pages* are in the protection's header. Every restore compares them
//!   with the trailer.
//! * *Name, length, store* are in the header's binding. Each attachment compares it with the
//!   catalog. A restore under another name, or from another store, compares it with the trailer
//!   before it makes a new binding.
//! * *Contents* are in tree and tags. They are compared when a page is touched.
//! * *Age* is in nothing: a snapshot may be of any age, and anchors tell.
//!
//! Headers, tree and tags are under the object's key, if it has one.
//!
//! So a snapshot whose trailer says another name, length, store or identity than it was taken with
//! is refused by the restore that has the key, or else by the attach of the object. The name of the
//! *file* binds nothing: [`Restored::of`] says of which object the file was. An object whose own
//! file was put back is found before a snapshot of it is made: it is not the one that the journal
//! lists. In a mode without a key all of this finds exchanged files, and not an attacker who
//! computes sums anew.
//!
//! # Restoring
//!
//! 1. The trailer is read and checked. Nothing is touched for a file that has none.
//! 2. If the identity is kept: the journal is trimmed, so that no record of the object that had
//!    this identity before is ever applied again. (Recovery skips records of an object that is
//!    gone; it would not skip those of one that is there again.) No other thread restores this
//!    identity meanwhile.
//! 3. `Store::restore_object`: a file that no record names is made, filled, summed up and synced,
//!    and **the catalog's batch commits**.
//!
//! | a crash | leaves | recovery |
//! | --- | --- | --- |
//! | before 2 | nothing | nothing |
//! | in or after 2 | a journal in which nothing is needed | nothing |
//! | in 3, before the batch is durable | a file that no record names | it is removed |
//! | after it | the object, whole: its file was durable before | nothing |
//!
//! A restored object always takes space of its own. An object of which a snapshot shares blocks
//! does not have all of its own any more: until the snapshot is removed, a psync may find the disk
//! full after it has committed, when it writes the primary, which poisons the store and loses
//! nothing ([`ObjectError::NotCopied`]). [`Blocks::Copied`] avoids that.

use crate::at_rest;
use crate::error::ObjectError;
use crate::shared::Shared;
use cenote_layout::PAGE_SIZE;
use cenote_layout::header::{HeaderPrefix, read, seal};
use cenote_layout::id::Uuid;
use cenote_layout::snapshot::{SNAPSHOT_PIECE_LEN, SnapshotSum, SnapshotTrailer};
use cenote_medium::planted::{Bug, Step, planted, reach};
use cenote_medium::{FileHandle, Medium, MediumError};
use cenote_store::ObjectInfo;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use zerocopy::IntoBytes;

/// Bytes of the trailer.
const TRAILER_LEN: u64 = size_of::<SnapshotTrailer>() as u64;

/// Where a snapshot's blocks come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Blocks {
    /// The object's, shared until one of the two changes, where the file system can do that; else
    /// copied.
    #[default]
    SharedIfPossible,
    /// Always copied.
    Copied,
}

/// A snapshot that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes of its file.
    pub bytes: u64,
    /// Whether it shares the object's blocks.
    pub shared: bool,
}

/// An object that was made again.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The object.
    pub object: ObjectInfo,
    /// The address that its data had, if it has another now: pointers into it that are stored
    /// somewhere, also in itself, do not hold.
    pub moved_from: Option<u64>,
    /// What the snapshot was of.
    pub of: SnapshotOf,
}

/// What a snapshot says that it is of. Of a protected one that was restored with its key it is
/// proved, but for the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOf {
    /// The store.
    pub store: Uuid,
    /// The object's identity.
    pub object: Uuid,
    /// Its name.
    pub name: String,
    /// When it was taken, in seconds since 1970.
    pub taken_at_s: u64,
}

/// A new file outside the store that a snapshot is written to.
trait SnapshotTarget {
    /// Makes it, empty.
    fn create(&mut self) -> io::Result<()>;
    /// Makes it the same as `primary` by sharing blocks, if it can.
    fn share(&self, primary: &FileHandle) -> bool;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    /// Makes its name durable.
    fn sync_name(&self) -> io::Result<()>;
    fn remove(&mut self);
}

/// A file by its path.
struct AtPath<'a> {
    path: &'a Path,
    file: Option<File>,
    goes_on: &'a dyn Fn() -> bool,
}

impl AtPath<'_> {
    /// The file, while the caller wants it.
    fn file(&self) -> io::Result<&File> {
        if !(self.goes_on)() {
            return Err(io::Error::other("stopped"));
        }
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl SnapshotTarget for AtPath<'_> {
    fn create(&mut self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        self.file =
            Some(options.read(true).write(true).create_new(true).mode(0o600).open(self.path)?);
        Ok(())
    }

    fn share(&self, primary: &FileHandle) -> bool {
        self.file().is_ok_and(|file| primary.share_blocks_with(file))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file()?.set_len(len)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(bytes, offset)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file()?.read_exact_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file()?.sync_all()
    }

    fn sync_name(&self) -> io::Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn remove(&mut self) {
        let _ = std::fs::remove_file(self.path);
    }
}

/// A file of a medium, in the directory itself.
struct OnMedium<'a> {
    medium: &'a dyn Medium,
    name: &'a str,
}

/// A medium's error as an error of a file.
fn plain(error: MediumError) -> io::Error {
    match error.is_no_space() {
        true => io::Error::new(io::ErrorKind::StorageFull, error),
        false => io::Error::other(error),
    }
}

impl SnapshotTarget for OnMedium<'_> {
    fn create(&mut self) -> io::Result<()> {
        self.medium.create(self.name, 0).map_err(plain)
    }

    fn share(&self, _: &FileHandle) -> bool {
        false
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // SAFETY: the file that `create` has made; nothing maps it.
        unsafe { self.medium.truncate(self.name, len) }.map_err(plain)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the file that `create` has made; nothing maps it.
        unsafe { self.medium.write_at(self.name, offset, bytes) }.map_err(plain)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self.medium.read_at(self.name, offset, bytes).map_err(plain)? {
            got if got == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.medium.sync(self.name).map_err(plain)
    }

    fn sync_name(&self) -> io::Result<()> {
        self.medium.sync_dir("").map_err(plain)
    }

    fn remove(&mut self) {
        // SAFETY: the file that `create` has made; nothing maps it.
        let _ = unsafe { self.medium.remove(self.name) };
    }
}

pub(crate) fn file_error(what: &'static str, path: &Path) -> impl Fn(io::Error) -> ObjectError {
    move |source| ObjectError::File { what, file: path.display().to_string(), source }
}

/// Goes through the pieces of the first `size` bytes, and gives their sum.
pub(crate) fn sum_pieces(
    size: u64,
    mut piece: impl FnMut(u64, &mut [u8]) -> Result<(), ObjectError>,
) -> Result<u64, ObjectError> {
    let mut buffer = vec![0; SNAPSHOT_PIECE_LEN.min(size as usize)];
    let (mut at, mut sum) = (0, SnapshotSum::default());
    while at < size {
        let bytes = &mut buffer[..(size - at).min(SNAPSHOT_PIECE_LEN as u64) as usize];
        piece(at, bytes)?;
        sum.add(bytes);
        at += bytes.len() as u64;
    }
    Ok(sum.value())
}

/// Makes a snapshot of an object, unless `goes_on` says no. No psync of it runs meanwhile.
pub(crate) fn take(
    shared: &Shared,
    info: &ObjectInfo,
    path: &Path,
    blocks: Blocks,
    goes_on: &dyn Fn() -> bool,
) -> Result<Snapshot, ObjectError> {
    take_to(shared, info, &mut AtPath { path, file: None, goes_on }, path, blocks)
}

/// The same into a new file of a medium.
pub(crate) fn take_on(
    shared: &Shared,
    info: &ObjectInfo,
    medium: &dyn Medium,
    name: &str,
) -> Result<Snapshot, ObjectError> {
    take_to(shared, info, &mut OnMedium { medium, name }, Path::new(name), Blocks::Copied)
}

/// Steps 1 to 5. Errors name `path`.
fn take_to(
    shared: &Shared,
    info: &ObjectInfo,
    target: &mut dyn SnapshotTarget,
    path: &Path,
    blocks: Blocks,
) -> Result<Snapshot, ObjectError> {
    let failed = file_error("make", path);
    reach(Step::SnapshotBegun);
    let primary = FileHandle::open(shared.files(), &info.file())?;
    if !planted(Bug::SnapshotUnlisted) {
        at_rest::check_file(shared, info, &primary)?;
    }
    target.create().map_err(&failed)?;
    let made = write(shared, info, &primary, &*target, blocks, &failed).and_then(|made| {
        if !planted(Bug::SnapshotNameNotSynced) {
            target.sync_name().map_err(&failed)?;
        }
        Ok(made)
    });
    if made.is_err() {
        target.remove();
    }
    made
}

fn write(
    shared: &Shared,
    info: &ObjectInfo,
    primary: &FileHandle,
    file: &dyn SnapshotTarget,
    blocks: Blocks,
    failed: &impl Fn(io::Error) -> ObjectError,
) -> Result<Snapshot, ObjectError> {
    let size = info.size;
    let shares = blocks == Blocks::SharedIfPossible && file.share(primary);
    if !shares {
        file.set_len(size).map_err(failed)?;
        sum_pieces(size, |at, bytes| {
            primary.read_exact_at(at, bytes)?;
            // What is zero stays a hole.
            let page = PAGE_SIZE as usize;
            let Some(from) = bytes.iter().position(|byte| *byte != 0) else { return Ok(()) };
            let to = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(from) + 1;
            let (from, to) = (from / page * page, to.next_multiple_of(page).min(bytes.len()));
            file.write(at + from as u64, &bytes[from..to]).map_err(failed)
        })?;
    }
    for (offset, bytes) in shared.patches(info.id()).into_iter().flatten() {
        file.write(info.data_offset() + offset, bytes).map_err(failed)?;
    }
    let sum = sum_pieces(size, |at, bytes| file.read(at, bytes).map_err(failed))?;
    let mut trailer = SnapshotTrailer {
        prefix: HeaderPrefix::new(*b"CENOSNAP", TRAILER_LEN as u32),
        object: info.id(),
        store: shared.store.uuid(),
        addr: info.addr,
        size,
        data_len: info.record.data_len,
        taken_at_s: shared.store.medium().now_s(),
        sum,
        at_rest: info.record.at_rest.mode() as u32,
        permissions: info.record.permissions,
        name_len: info.record.name.len() as u32,
        reserved0: 0,
        name: [0; 256],
        reserved: [0; 120],
    };
    let name = info.record.name.as_bytes();
    if let Some(place) = trailer.name.get_mut(..name.len()) {
        place.copy_from_slice(name);
    }
    seal(&mut trailer);
    file.write(size, trailer.as_bytes()).map_err(failed)?;
    if !planted(Bug::SnapshotNotSynced) {
        file.sync().map_err(failed)?;
    }
    Ok(Snapshot { bytes: size + TRAILER_LEN, shared: shares })
}

/// Opens a snapshot and reads its trailer; its contents are not looked at.
pub(crate) fn open(path: &Path) -> Result<(File, SnapshotTrailer), ObjectError> {
    let failed = file_error("read", path);
    let wrong = |detail: String| ObjectError::Snapshot { file: path.display().to_string(), detail };
    // Opening what is no file may wait for ever.
    if !std::fs::metadata(path).map_err(&failed)?.is_file() {
        return Err(wrong("it is no file".into()));
    }
    let file = File::open(path).map_err(&failed)?;
    let len = file.metadata().map_err(&failed)?.len();
    let Some(size) = len.checked_sub(TRAILER_LEN) else {
        return Err(wrong("it is no snapshot, or was cut short".into()));
    };
    let mut bytes = [0; TRAILER_LEN as usize];
    file.read_exact_at(&mut bytes, size).map_err(&failed)?;
    let trailer = read::<SnapshotTrailer>(&bytes, false)
        .map_err(|error| wrong(format!("it is no snapshot, or was cut short: {error}")))?;
    if trailer.size != size {
        let whole = trailer.size.saturating_add(TRAILER_LEN);
        return Err(wrong(format!("it has {len} bytes instead of {whole}")));
    }
    Ok((file, trailer))
}
