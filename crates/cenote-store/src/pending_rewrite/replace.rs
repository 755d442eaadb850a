//! Makes the new file of a puddle that is rewritten: steps 2 and 3 of [`crate::relocate`].
//!
//! Invariant: until [`NewFile::take_name`] the file has a name that no record leads to, and
//! dropping the value removes it.
//!
//! The data of the old file is read into the mapping of the new one, where the file system says
//! that there is data, and rewritten there. So the system copies a puddle once, and parts without
//! data cost nothing. The whole file has its space before the first byte; the system is asked for
//! the pages before anything is stored into them. Where it refuses, and on media without
//! descriptors, the image is put together in memory and written, so that a lack of space is an
//! error and no signal.

use super::image_memory::ImageMemory;
use crate::kernel::puddles::puddle::{DIR, file_name, primary_name, text};
use cenote_layout::PAGE_SIZE;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError, Operation, OwnedMedium};
use cenote_sys::memory;

/// Bytes that are looked at, and written, at once.
const STEP: usize = 64 << 10;

/// A puddle's image, which is this value's alone.
#[derive(Debug)]
pub(crate) struct Image {
    region: ImageMemory,
    len: usize,
    /// It is the contents of the new file, and needs no writing.
    pub(crate) in_file: bool,
}

impl Image {
    /// What a file holds, in memory.
    pub(crate) fn in_memory(source: &FileHandle, len: u64) -> Result<Self, MediumError> {
        let region = memory::anonymous(len as usize)
            .map_err(|error| MediumError::from_io(Operation::Read, source.name(), error))?;
        let region = ImageMemory::of_memory(region);
        let mut image = Self { region, len: len as usize, in_file: false };
        image.fill(source, &data(source, len)?)?;
        Ok(image)
    }

    /// A copy of memory.
    ///
    /// # Safety
    /// `len` bytes from `addr` on are mapped and readable, and no thread stores into them
    /// meanwhile.
    pub(crate) unsafe fn of_memory(addr: usize, len: u64) -> Result<Self, MediumError> {
        let region = memory::anonymous(len as usize)
            .map_err(|error| MediumError::from_io(Operation::Read, "memory", error))?;
        let region = ImageMemory::of_memory(region);
        let mut image = Self { region, len: len as usize, in_file: false };
        let at = core::ptr::with_exposed_provenance::<u8>(addr);
        // SAFETY: readable and unchanging by the caller's promise; the image is new memory and no
        // part of it.
        image.bytes().copy_from_slice(unsafe { core::slice::from_raw_parts(at, len as usize) });
        Ok(image)
    }

    /// The file itself, to be changed; or what it holds, in memory, if the system does not map it.
    pub(crate) fn itself(file: &FileHandle, len: u64) -> Result<Self, MediumError> {
        // SAFETY: a puddle that is pending: no process has mapped it, and only the thread that has
        // the turn writes it.
        let region = unsafe { file.whole(len as usize) };
        let Some(region) = region.and_then(ImageMemory::of_file) else {
            return Self::in_memory(file, len);
        };
        Ok(Self { region, len: len as usize, in_file: true })
    }

    /// Makes what the file has between two offsets such that loads from it cannot fail; whether
    /// that could be.
    pub(crate) fn can_be_read(
        &self,
        file: &FileHandle,
        from: u64,
        to: u64,
    ) -> Result<bool, MediumError> {
        if !self.in_file {
            return Ok(true);
        }
        let mut stretches =
            stretches(file, from / PAGE_SIZE * PAGE_SIZE, to.next_multiple_of(PAGE_SIZE))?
                .into_iter();
        Ok(stretches.all(|(from, to)| {
            self.region.memory().populate_to_read(from as usize, (to - from) as usize).is_ok()
        }))
    }

    /// The same for stores.
    pub(crate) fn can_be_stored(&self, (from, to): (u64, u64)) -> bool {
        !self.in_file || self.region.memory().populate(from as usize, (to - from) as usize).is_ok()
    }

    /// The same in another file of that length, of zeros, that no other code opens. `None`: stores
    /// there may find no space, or the medium has no descriptors.
    fn in_file(
        source: &FileHandle,
        target: &FileHandle,
        len: u64,
    ) -> Result<Option<Self>, MediumError> {
        // SAFETY: a new file under a name that no other code opens, made as long as this.
        let region = unsafe { target.whole(len as usize) };
        let Some(region) = region.and_then(ImageMemory::of_file) else { return Ok(None) };
        let mut image = Self { region, len: len as usize, in_file: true };
        let stretches = data(source, len)?;
        let header = core::iter::once(&(0, PAGE_SIZE));
        let mut pages = header.chain(&stretches);
        if pages.any(|(from, to)| {
            image.region.memory().populate(*from as usize, (to - from) as usize).is_err()
        }) {
            return Ok(None);
        }
        image.fill(source, &stretches)?;
        Ok(Some(image))
    }

    /// Fails if a page of the file was lost while the image was used.
    pub(crate) fn intact(&self, name: &str) -> Result<(), MediumError> {
        self.region.intact(name)
    }

    fn fill(&mut self, source: &FileHandle, stretches: &[(u64, u64)]) -> Result<(), MediumError> {
        let bytes = self.bytes();
        let mut stretches = stretches.iter();
        stretches.try_for_each(|(from, to)| {
            source.read_exact_at(*from, &mut bytes[*from as usize..*to as usize])
        })
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: memory of this value's alone, as long as that says: zeros, or a file's that no
        // other code writes.
        unsafe { core::slice::from_raw_parts_mut(self.region.memory().as_ptr(), self.len) }
    }
}

/// Where the first `len` bytes of a file may not be zero.
fn data(source: &FileHandle, len: u64) -> Result<Vec<(u64, u64)>, MediumError> {
    stretches(source, 0, len)
}

/// The same between two offsets.
fn stretches(source: &FileHandle, from: u64, to: u64) -> Result<Vec<(u64, u64)>, MediumError> {
    let (mut stretches, mut at) = (Vec::new(), from);
    while let Some(stretch) = source.next_data(at, to)? {
        stretches.push(stretch);
        at = stretch.1;
    }
    Ok(stretches)
}

/// A file that is to take another's name; see the module.
#[derive(Debug)]
pub(crate) struct NewFile<'a> {
    medium: &'a OwnedMedium,
    dir: &'static str,
    /// The name that it is to take.
    name: &'a str,
    /// Its name until `take_name`.
    fresh: String,
}

impl<'a> NewFile<'a> {
    /// Makes a file of zeros, with its space taken.
    pub(crate) fn create(
        medium: &'a OwnedMedium,
        (dir, name): (&'static str, &'a str),
        len: u64,
    ) -> Result<Self, MediumError> {
        if planted(Bug::RewrittenInPlace) {
            return Ok(Self { medium, dir, name, fresh: name.to_owned() });
        }
        let fresh = medium.random_uuid()?;
        let fresh = if dir == DIR { file_name(fresh) } else { primary_name(fresh) };
        medium.create(text(&fresh), len)?;
        Ok(Self { medium, dir, name, fresh: text(&fresh).to_owned() })
    }

    /// The contents of `source`, to be changed: in this file; or in memory, if that is not
    /// possible, and then they are to be written.
    pub(crate) fn image(&self, source: &FileHandle, len: u64) -> Result<Image, MediumError> {
        let target = self.open()?;
        let in_file = if self.is_named() { None } else { Image::in_file(source, &target, len)? };
        in_file.map_or_else(|| Image::in_memory(source, len), Ok)
    }

    /// The file, to be written.
    pub(crate) fn open(&self) -> Result<FileHandle, MediumError> {
        FileHandle::open(self.medium, &self.fresh)
    }

    fn is_named(&self) -> bool {
        self.fresh == self.name
    }

    /// Writes what is not zero.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), MediumError> {
        write_sparse(&self.open()?, 0, bytes)
    }

    /// Gives it its name, durably, in place of the file that has it: **the renaming commits**. The
    /// parts in `holes` need no space.
    pub(crate) fn take_name(mut self, holes: &[(u64, u64)]) -> Result<(), MediumError> {
        for (offset, len) in holes.iter().filter(|_| !self.is_named()) {
            // SAFETY: a file that no other code opens; no value lies in these parts.
            let _ = unsafe { self.medium.release(&self.fresh, *offset, *len) };
        }
        let unsynced = planted(Bug::RewrittenNotSynced);
        if !unsynced {
            self.medium.sync(&self.fresh)?;
        }
        if self.is_named() {
            return Ok(());
        }
        self.medium.rename(&self.fresh, self.name)?;
        self.name.clone_into(&mut self.fresh);
        if unsynced || planted(Bug::RenameNotSynced) {
            return Ok(());
        }
        self.medium.sync_dir(self.dir)
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_named() {
            // If this fails too it is an orphan, which the next writable open removes.
            let _ = self.medium.remove(&self.fresh);
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    let (head, words, tail) = zerocopy_words(bytes);
    head.iter().chain(tail).all(|byte| *byte == 0) && words.iter().all(|word| *word == 0)
}

/// The words of a slice, and the bytes before and behind them.
fn zerocopy_words(bytes: &[u8]) -> (&[u8], &[u64], &[u8]) {
    // SAFETY: any bytes are a `u64`.
    unsafe { bytes.align_to::<u64>() }
}

/// Writes what is not zero of `bytes` into a file of zeros.
pub(crate) fn write_sparse(
    file: &FileHandle,
    offset: u64,
    bytes: &[u8],
) -> Result<(), MediumError> {
    let mut from = None;
    let mut at = 0;
    for chunk in bytes.chunks(STEP).chain([&[][..]]) {
        if chunk.is_empty() || is_zero(chunk) {
            if let Some(from) = from.take() {
                file.write_at(offset + from as u64, &bytes[from..at])?;
            }
        } else if from.is_none() {
            from = Some(at);
        }
        at += chunk.len();
    }
    Ok(())
}

/// Copies what `from..to` of a file has into a file of zeros.
pub(crate) fn copy(
    source: &FileHandle,
    target: &FileHandle,
    from: u64,
    to: u64,
) -> Result<(), MediumError> {
    let mut buffer = vec![0; (to - from).min(1 << 20) as usize];
    let mut at = from;
    while let Some((from, end)) = source.next_data(at, to)? {
        let bytes = &mut buffer[..(end - from).min(1 << 20) as usize];
        source.read_exact_at(from, bytes)?;
        write_sparse(target, from, bytes)?;
        at = from + bytes.len() as u64;
    }
    Ok(())
}
