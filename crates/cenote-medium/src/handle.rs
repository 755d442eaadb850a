//! A file that stays open, for callers that read and write it often.
//!
//! On a real medium the handle has a descriptor of its own, and each call is one system call; a
//! failed write-back is reported to it because it was open when that failed. A medium without
//! descriptors gets the same calls by name, so that the simulated medium sees, and can fail, every
//! one of them.
//!
//! A handle writes, so the owner of the files opens it.

use crate::{FileId, FileName, MediumError, Operation, OwnedMedium};
use cenote_layout::PAGE_SIZE;
use cenote_sys::filesystem::start_writing;
use cenote_sys::memory::{self, OwnedRegion};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

type Result<T> = core::result::Result<T, MediumError>;

/// An open file of a medium. It must not be the lock file, nor be renamed while the handle lives
/// but by [`FileHandle::rename`].
#[derive(Debug)]
pub struct FileHandle {
    medium: OwnedMedium,
    name: String,
    file: Option<File>,
}

impl FileHandle {
    /// Opens a file that exists: for reading, and for writing if the medium is writable.
    ///
    /// # Errors
    /// As [`Medium::read_at`](crate::Medium::read_at): there is no such file, or it may not be
    /// opened.
    pub fn open(medium: &OwnedMedium, name: &str) -> Result<Self> {
        let file = medium.descriptor(name)?;
        if file.is_none() && !medium.exists(name)? {
            return Err(MediumError::NotFound {
                op: Operation::Examine,
                name: FileName::new(name),
            });
        }
        Ok(Self { medium: medium.clone(), name: name.to_owned(), file })
    }

    /// Gives the file another name, replacing `to` atomically if it exists, and goes with it: it
    /// need not be opened under its new name, which might fail when the file has it already.
    ///
    /// # Errors
    /// As [`Medium::rename`](crate::Medium::rename).
    pub fn rename(&mut self, to: &str) -> Result<()> {
        self.medium.rename(&self.name, to)?;
        to.clone_into(&mut self.name);
        Ok(())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// As [`Medium::len`](crate::Medium::len).
    pub fn len_bytes(&self) -> Result<u64> {
        match &self.file {
            None => self.medium.len(&self.name),
            Some(file) => match file.metadata() {
                Ok(metadata) => Ok(metadata.len()),
                Err(source) => Err(MediumError::from_io(Operation::Examine, &self.name, source)),
            },
        }
    }

    /// Which file it is, under any name.
    ///
    /// # Errors
    /// What the system says about the file.
    pub fn id(&self) -> Result<FileId> {
        let Some(file) = &self.file else { return self.medium.file_id(&self.name) };
        match file.metadata() {
            Ok(metadata) => Ok(FileId { device: metadata.dev(), inode: metadata.ino() }),
            Err(source) => Err(MediumError::from_io(Operation::Examine, &self.name, source)),
        }
    }

    /// Reads from `offset` until `buf` is full or the file ends; returns the bytes read.
    ///
    /// # Errors
    /// As [`Medium::read_at`](crate::Medium::read_at).
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(file) = &self.file else { return self.medium.read_at(&self.name, offset, buf) };
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(MediumError::from_io(Operation::Read, &self.name, source));
                }
            }
        }
        Ok(done)
    }

    /// Reads exactly as many bytes as `buf` has.
    ///
    /// # Errors
    /// As [`FileHandle::read_at`]; [`MediumError::Truncated`] if the file ends before that.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let got = self.read_at(offset, buf)?;
        if got == buf.len() {
            return Ok(());
        }
        Err(MediumError::Truncated {
            op: Operation::Read,
            name: FileName::new(&self.name),
            needed_bytes: offset.saturating_add(buf.len() as u64),
            found_bytes: offset.saturating_add(got as u64),
        })
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// As [`Medium::write_at`](crate::Medium::write_at); part of it may be written.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        match &self.file {
            None => self.medium.write_at(&self.name, offset, data),
            Some(file) => crate::real::write_open(file, &self.name, offset, data),
        }
    }

    /// The same in pieces that end at multiples of 64 KiB. The kernel keeps what one call writes in
    /// units as large as that, up to 2 MiB, and a later call that writes a page of such a unit
    /// goes through all its blocks, which takes it thirty times as long. For files that are written
    /// here and there afterwards.
    ///
    /// # Errors
    /// As [`FileHandle::write_at`].
    pub fn write_in_pieces(&self, offset: u64, data: &[u8]) -> Result<()> {
        const PIECE: u64 = 64 << 10;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(((PIECE - at % PIECE) as usize).min(rest.len()));
            self.write_at(at, piece)?;
            at += piece.len() as u64;
            rest = behind;
        }
        Ok(())
    }

    /// Lets the device begin with the whole pages of a part that was written, so that it works
    /// beside the caller. Nothing is durable before [`FileHandle::sync`], which also tells what
    /// went wrong.
    pub fn start_writing(&self, offset: u64, len: u64) {
        let end = (offset.saturating_add(len)) / PAGE_SIZE * PAGE_SIZE;
        if let (Some(file), Some(start)) = (&self.file, offset.checked_next_multiple_of(PAGE_SIZE))
            && start < end
        {
            start_writing(file, start, end - start);
        }
    }

    /// Makes an empty file, also outside the store, the same as this one by sharing its blocks
    /// (`FICLONE`). `false`: the file system, or the place of `target`, does not allow that, and
    /// `target` is still empty. Later stores into one file do not show in the other, and may need
    /// space that the file had taken before.
    #[must_use]
    pub fn share_blocks_with(&self, target: &File) -> bool {
        self.file.as_ref().is_some_and(|file| rustix::fs::ioctl_ficlone(target, file).is_ok())
    }

    /// The next stretch of whole pages from `at` on, before `end`, that may not be zero: by what
    /// the file system says, where there is one that can tell. `None`: there is no more.
    ///
    /// # Errors
    /// What the system says about the file.
    pub fn next_data(&self, at: u64, end: u64) -> Result<Option<(u64, u64)>> {
        if at >= end {
            return Ok(None);
        }
        let Some(file) = &self.file else { return Ok(Some((at, end))) };
        let failed = |errno: Errno| MediumError::from_io(Operation::Read, &self.name, errno.into());
        let from = match seek(file, SeekFrom::Data(at)) {
            Ok(from) => from / PAGE_SIZE * PAGE_SIZE,
            Err(Errno::NXIO) => return Ok(None),
            // A file system that cannot tell.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, end))),
            Err(errno) => return Err(failed(errno)),
        };
        let from = from.max(at);
        if from >= end {
            return Ok(None);
        }
        let to = seek(file, SeekFrom::Hole(from)).map_err(failed)?;
        // A hole that begins inside a page is behind it.
        Ok(Some((from, to.next_multiple_of(PAGE_SIZE).max(from + PAGE_SIZE).min(end))))
    }

    /// Whether the file takes less space than it has bytes.
    ///
    /// # Errors
    /// What the system says about the file.
    pub fn has_holes(&self) -> Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        match file.metadata() {
            Ok(metadata) => Ok(metadata.blocks().saturating_mul(512) < metadata.len()),
            Err(source) => Err(MediumError::from_io(Operation::Examine, &self.name, source)),
        }
    }

    /// The first `len` bytes of the file as memory of this process: what is stored goes into the
    /// file. `None`: the medium has no descriptors, or the system does not map it.
    ///
    /// # Safety
    /// The file has that many bytes, and no other program writes it or makes it shorter while the
    /// region lives.
    #[must_use]
    pub unsafe fn whole(&self, len: usize) -> Option<OwnedRegion> {
        let file = self.file.as_ref()?;
        // SAFETY: handed on to the caller.
        unsafe { memory::whole_file(file.as_fd(), len) }.ok()
    }

    /// Waits until what was written to the file, by whomever, survives loss of power.
    ///
    /// # Errors
    /// As [`Medium::sync`](crate::Medium::sync): nothing is known then about what was written since
    /// the last one.
    pub fn sync(&self) -> Result<()> {
        match &self.file {
            None => self.medium.sync(&self.name),
            Some(file) => self.medium.sync_descriptor(&self.name, file),
        }
    }
}
