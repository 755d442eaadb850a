//! The interface of a medium: a directory of control files and puddle files that can be mapped.

use core::fmt;
use std::any::Any;

use cenote_layout::id::Uuid;

use crate::planted::{Bug, planted};
use crate::{Durability, FileName, MediumError, Persistence};

type Result<T> = core::result::Result<T, MediumError>;

/// What kind of storage a medium is, as far as durability depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MediumKind {
    /// Persistent memory mapped directly: the file system accepted a synchronous mapping
    /// (`MAP_SYNC`).
    Dax,
    /// Memory of this machine: tmpfs or ramfs. Gone after a reboot.
    Tmpfs,
    /// A file system behind the page cache: ext4 or xfs on an SSD.
    Ordinary,
    /// A file system of another machine, or of a user-space server.
    Network,
    /// An overlay: the root file system of a container.
    Overlay,
    /// The simulated medium of the crash tests.
    Simulated,
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dax => "dax",
            Self::Tmpfs => "tmpfs",
            Self::Ordinary => "ordinary",
            Self::Network => "network",
            Self::Overlay => "overlay",
            Self::Simulated => "simulated",
        })
    }
}

/// What a medium is and what it gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediumInfo {
    /// The directory, as the caller named it.
    pub path: String,
    /// The kind of storage.
    pub kind: MediumKind,
    /// The file system, as `mount` names it.
    pub fs: String,
    /// The level that a commit into a direct mapping reaches here.
    pub durability: Durability,
    /// A sentence or two for the user: why this level, and what it means.
    pub note: String,
}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapMode {
    /// Shared and writable: stores go into the file. On DAX the mapping is synchronous
    /// (`MAP_SYNC`).
    ReadWrite,
    /// Shared and not writable.
    ReadOnly,
    /// Private and writable: stores stay in this process (copy on write) and the file is opened for
    /// reading only. A read-only open replays logs into such a mapping.
    PrivateCopy,
    /// Shared, for stores that are asked for page by page: mapped without write permission, but
    /// such that [`cenote_sys::memory::protect`] can give it. Stores go into the file then. A
    /// first store to a page faults.
    Tracked,
}

impl MapMode {
    /// Whether stores go into the file.
    #[must_use]
    pub const fn is_shared_writable(self) -> bool {
        matches!(self, Self::ReadWrite | Self::Tracked)
    }
}

/// How a file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Any number of holders, none of them exclusive: read-only opens.
    Shared,
    /// One holder.
    Exclusive,
}

/// The holder of a lock that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The process, where the system tells: not across machines or PID namespaces.
    pub pid: Option<u32>,
    /// The holder in words, ready to end the sentence "the store is in use by …".
    pub text: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Which file or directory a name leads to: two names that lead to one have one identity, and a
/// copy has another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The file system that it lies on, as the kernel numbers it until the next boot.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

impl FileId {
    /// Of a medium whose files have no identity.
    pub const UNKNOWN: Self = Self { device: 0, inode: 0 };
}

/// A word of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileWord {
    /// Its offset, a multiple of 8.
    pub offset: u64,
    /// What it is to be.
    pub value: u64,
}

/// What is known of a file without opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// Its length.
    pub len_bytes: u64,
    /// Names that lead to it: hard links.
    pub links: u64,
}

impl FileStat {
    /// Refuses a file that is to be written and has several names ([`MediumError::Linked`]).
    ///
    /// Two stores that share a file by links have two names of it. The later of two writers sees
    /// both, whenever the link was made, because the first writer's name stays. A file that a
    /// program *moves* out of an open store has one name: that is not seen here.
    ///
    /// # Errors
    /// [`MediumError::Linked`].
    pub fn refuse_links(self, name: &str) -> Result<Self> {
        match self.links > 1 && !planted(Bug::LinksAccepted) {
            true => Err(MediumError::Linked { name: FileName::new(name), links: self.links }),
            false => Ok(self),
        }
    }
}

/// A lock that is held until this value is dropped or the process ends. A forked child does not
/// inherit it.
pub struct LockGuard(
    #[expect(dead_code, reason = "held for its destructor")] Box<dyn Any + Send + Sync>,
);

impl LockGuard {
    /// Wraps the medium's own guard, whose destructor releases the lock.
    #[must_use]
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Box::new(guard))
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LockGuard")
    }
}

/// A directory of control files and puddle files, real or simulated.
///
/// Names are relative to the directory: `superblock`, `catalog.0`, `puddles/<32 hex digits>`; at
/// most [`FileName`](crate::FileName)'s length, ASCII letters, digits, `.`, `-` and `_`, with `/`
/// between directory and file. `""` names the directory itself where a directory is wanted. Every
/// method returns [`MediumError`], typed by what the caller can do about it, and none of them
/// panics on what the system does.
///
/// Files: what was written is durable after [`sync`](Medium::sync) of the file; that a file was
/// created, renamed or removed is durable after [`sync_dir`](Medium::sync_dir) of its directory.
/// After a failed sync nothing is known about what was written since the one before: the caller
/// must not acknowledge anything any more.
///
/// Memory: the pages of a mapping are reached only through raw pointers; the code that follows one
/// has to know that the range is mapped and stays mapped. So the methods that change what is mapped
/// are unsafe: a program that has kept a medium under a store must not pull pages from under the
/// store's references. The window belongs to the store that reserved it, and no method touches
/// addresses outside windows that this medium reserved.
///
/// Contents: what is mapped changes with its file, and a store relies on files that it has not
/// mapped yet. So the methods that change what a file holds, change which file has a name, or hand
/// out a descriptor to write through are unsafe too. *Their contract:* no byte changes that is
/// mapped and that a reference leads to, and none that another part of this process takes for
/// unchanged, as an open store takes all of its files. The owner of a directory's files keeps it;
/// [`OwnedMedium`](crate::OwnedMedium) is how it says so once. Changes of the files by other
/// processes and by `std::fs` are outside: no type can prevent them.
///
/// # Safety
/// Callers rely on what an implementation says for the validity of memory: that a mapping that
/// succeeded is there, as long as it should be, shows the file, and that nothing else is mapped or
/// unmapped.
pub unsafe trait Medium: Send + Sync + fmt::Debug {
    /// What this medium is and what it gives.
    fn describe(&self) -> MediumInfo;

    /// The lines of files that were written back through mappings since they are counted: name of
    /// the file, number of the line of 64 bytes in it, and how often. `None`: this medium does not
    /// count them, or not now.
    fn line_writes(&self) -> Option<Vec<(String, u64, u64)>> {
        None
    }

    /// How stores into mappings of this medium are made durable at `level`. Asking for a level that
    /// the medium does not reach gives the instructions of that level all the same:
    /// [`describe`](Medium::describe) tells what they are worth here.
    fn persistence(&self, level: Durability) -> Persistence;

    /// Whether the medium can only be read, because it was opened so or its file system is mounted
    /// so.
    fn read_only(&self) -> bool;

    /// Identity of this boot of the machine. Another one than a store recorded means that memory
    /// and page cache were lost in between. Where the system does not tell, a fresh random one,
    /// which never equals a recorded one.
    fn boot_id(&self) -> Uuid;

    /// Which mounting of its file system the medium is reached through
    /// ([`cenote_sys::mounting`]); 0: the system does not say. Another one than a store recorded
    /// means, as another boot does, that the page cache was lost in between.
    fn mounting(&self) -> u64 {
        0
    }

    /// Seconds since 1970, for time stamps in records.
    fn now_s(&self) -> u64;

    /// A fresh identifier. A simulated medium draws it from its seed, so that histories repeat.
    fn random_uuid(&self) -> Result<Uuid> {
        let bytes = cenote_sys::process::random_bytes16()
            .map_err(|source| MediumError::from_io(crate::Operation::Examine, "", source))?;
        Ok(Uuid::from_random_bytes(bytes))
    }

    /// Whether there is a file or directory of that name.
    fn exists(&self, name: &str) -> Result<bool>;

    /// Bytes of a file.
    fn len(&self, name: &str) -> Result<u64>;

    /// What is known of a file without opening it. On media without links each file has one name.
    fn stat(&self, name: &str) -> Result<FileStat> {
        Ok(FileStat { len_bytes: self.len(name)?, links: 1 })
    }

    /// Reads from `offset` until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, name: &str, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Reads a whole file; one of more than 1 GiB is [`MediumError::BadRange`].
    fn read(&self, name: &str) -> Result<Vec<u8>>;

    /// Writes all of `data` at `offset` of a file that exists; the file grows if it must.
    ///
    /// # Safety
    /// The trait's contract for contents, for what `data` covers.
    unsafe fn write_at(&self, name: &str, offset: u64, data: &[u8]) -> Result<()>;

    /// Creates a file of `len_bytes` zeros and takes its space. If there is no space the error is
    /// [`MediumError::NoSpace`] and the file is gone again; if there is such a file,
    /// [`MediumError::Exists`].
    fn create(&self, name: &str, len_bytes: u64) -> Result<()>;

    /// Sets the length of a file; what is added reads as zeros and has no space taken.
    ///
    /// # Safety
    /// The trait's contract for contents, for what is cut off; what is cut off is not mapped.
    unsafe fn truncate(&self, name: &str, len_bytes: u64) -> Result<()>;

    /// Makes a whole file zeros in place, with its space taken, so that nothing of what was in it
    /// can be read any more. The length stays. Nothing may be mapped of it. After an error the
    /// file holds zeros, what it held, or both, and may have lost its space.
    ///
    /// # Safety
    /// The trait's contract for contents, for the whole file.
    unsafe fn clear(&self, name: &str) -> Result<()>;

    /// Bytes that new files can still take, as far as the system tells; `u64::MAX` where it does
    /// not.
    fn free_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Gives the space of `len` bytes from `offset` on back to the file system; both are multiples
    /// of the page size, and the range lies in the file, whose length stays. The range is a *hole*
    /// then: it reads as zeros, also where it is mapped, and a store into it takes space again, or
    /// ends the process with `SIGBUS` if there is none; so [`ensure`](Medium::ensure) comes before
    /// the next store. `false`: the file system cannot do that, and nothing has changed. A loss of
    /// power before the next sync may leave any of the old bytes.
    ///
    /// # Safety
    /// No thread uses what is mapped of the range any more.
    unsafe fn release(&self, name: &str, offset: u64, len: u64) -> Result<bool> {
        let _ = (name, offset, len);
        Ok(false)
    }

    /// Takes space for all holes in a range, so that stores into it cannot fail; a range as in
    /// [`release`](Medium::release). Bytes stay as they are. That the space is there after a loss
    /// of power is certain after the next sync of the file. If there is no space the error is
    /// [`MediumError::NoSpace`].
    fn ensure(&self, name: &str, offset: u64, len: u64) -> Result<()> {
        let _ = (name, offset, len);
        Ok(())
    }

    /// Waits until what was written to the file, also through mappings, survives loss of power, as
    /// far as the medium can do that.
    fn sync(&self, name: &str) -> Result<()>;

    /// A descriptor of a file, for [`FileHandle`](crate::FileHandle); `None` where files have none.
    ///
    /// # Safety
    /// Bytes that are written through the descriptor keep the trait's contract for contents.
    unsafe fn descriptor(&self, name: &str) -> Result<Option<std::fs::File>> {
        let _ = name;
        Ok(None)
    }

    /// A descriptor of a file to be handed to another process, with no more rights than to read it,
    /// or to read and write it. `None` where files have none.
    ///
    /// # Safety
    /// Bytes that this process writes through the descriptor keep the trait's contract for
    /// contents.
    unsafe fn grant(&self, name: &str, writable: bool) -> Result<Option<std::fs::File>> {
        let _ = (name, writable);
        Ok(None)
    }

    /// As [`sync`](Medium::sync), through a descriptor from [`descriptor`](Medium::descriptor), so
    /// that it fails too if what was written since that was opened could not be written back.
    fn sync_descriptor(&self, name: &str, file: &std::fs::File) -> Result<()> {
        let _ = file;
        self.sync(name)
    }

    /// Waits until creations, renames and removals in a directory (`""` or `puddles`) survive loss
    /// of power.
    fn sync_dir(&self, dir: &str) -> Result<()>;

    /// Renames a file, replacing `to` atomically if it exists.
    ///
    /// # Safety
    /// The trait's contract for contents, for both names.
    unsafe fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes a file.
    ///
    /// # Safety
    /// The trait's contract for contents: no part of this process expects the file to be there, as
    /// openers do of a lock's.
    unsafe fn remove(&self, name: &str) -> Result<()>;

    /// Names of what is in a directory, sorted, without `.` and `..`. Names that no file of a store
    /// can have are listed too: the caller may want to report them.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// Creates a directory.
    fn make_dir(&self, name: &str) -> Result<()>;

    /// Tries to lock a file, without waiting. A writable medium creates the file if it is missing.
    /// `Ok(Err(holder))` if another holder has a lock that excludes this one: another process,
    /// or this process by another guard. While it is locked the file can be neither read nor
    /// written through a medium of this process ([`MediumError::Locked`]): the lock would be
    /// lost. Keep it empty.
    fn lock(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<LockGuard, LockHolder>>;

    /// Tries to hold a file that exists, or the store's directory (`""`), without waiting: by a
    /// lock that belongs to a descriptor of its own. Other than after [`lock`](Medium::lock) the
    /// file may be read and written meanwhile, and nothing that this process opens and closes drops
    /// the lock. Gives the identity of what is held, which was there under that name after the lock
    /// was taken.
    fn hold(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<(LockGuard, FileId), LockHolder>> {
        let _ = kind;
        Ok(Ok((LockGuard::new(()), self.file_id(name)?)))
    }

    /// As [`hold`](Medium::hold), of a directory in the store, for three system calls: which one it
    /// is is not told. `Ok(Ok(None))`: it is missing. Where its file system does not lock
    /// directories, the guard holds nothing. From then on names in it are looked up in the
    /// directory that had its name then, also if another one is mounted there later.
    fn hold_dir(
        &self,
        name: &str,
        kind: LockKind,
    ) -> Result<core::result::Result<Option<LockGuard>, LockHolder>> {
        let _ = kind;
        Ok(Ok(self.exists(name)?.then(|| LockGuard::new(()))))
    }

    /// Whether a directory in the store is the root of a mount: another one may be mounted there.
    fn is_mounted(&self, dir: &str) -> Result<bool> {
        let _ = dir;
        Ok(false)
    }

    /// Which file or directory (`""`: the store's own) has that name now; [`FileId::UNKNOWN`] where
    /// files have no identity.
    fn file_id(&self, name: &str) -> Result<FileId> {
        let _ = name;
        Ok(FileId::UNKNOWN)
    }

    /// Whether any process holds the byte at `at` of a file by
    /// [`held_byte`](cenote_sys::held_byte), in any container or namespace. False where there is no
    /// such file, or its file system has no such locks.
    fn is_byte_held(&self, name: &str, at: u64) -> Result<bool> {
        let _ = (name, at);
        Ok(false)
    }

    /// Reserves the addresses `base..base + len` for mappings, without access and without memory.
    fn reserve_window(&self, base: u64, len: u64) -> Result<()>;

    /// Gives back a window and every mapping in it.
    ///
    /// # Safety
    /// No thread uses what is mapped in it any more.
    unsafe fn release_window(&self, base: u64, len: u64) -> Result<()>;

    /// Maps the first `len` bytes of a file at `addr`, inside a reserved window; both are multiples
    /// of the page size. A shorter file is [`MediumError::Truncated`] and is not mapped.
    ///
    /// May be called from a signal handler that interrupted ordinary code: it does not allocate,
    /// takes no lock, and returns errors that were built without allocating.
    ///
    /// # Safety
    /// No thread relies on what is mapped in the range now: it is replaced.
    unsafe fn map(&self, name: &str, addr: u64, len: u64, mode: MapMode) -> Result<()> {
        // SAFETY: the same contract.
        unsafe { self.map_written(name, addr, len, mode, None) }
    }

    /// The same, but the word is written into the file first, by a call and not by a store: an
    /// error of the device or of space is an error here. For mappings that may be written. The word
    /// may be there although the file was not mapped.
    ///
    /// # Safety
    /// As [`Medium::map`]; and the trait's contract for contents, for the word.
    unsafe fn map_written(
        &self,
        name: &str,
        addr: u64,
        len: u64,
        mode: MapMode,
        word: Option<FileWord>,
    ) -> Result<()>;

    /// Takes the mappings in a range away; the range is reserved again. Stores into it remain in
    /// the files.
    ///
    /// # Safety
    /// No thread uses what is mapped there any more.
    unsafe fn unmap(&self, addr: u64, len: u64) -> Result<()>;
}
