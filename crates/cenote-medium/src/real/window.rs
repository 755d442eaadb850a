//! Windows of address space and the mappings in them.
//!
//! A mapping replaces all that lies at its address. That is sound only inside address space that
//! this medium reserved for it, so every range is first looked up in a fixed table of windows. The
//! table is read with atomic loads only, because [`map`] runs in signal handlers.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use cenote_layout::PAGE_SIZE;
use cenote_sys::memory::{self, Access, ReserveError, Sharing};
use rustix::fs::OFlags;

use crate::{FileName, FileWord, MapMode, MediumError, Operation};

use super::files::{Files, write_open};

/// Windows that one medium can have at once; a store has one.
const WINDOWS_MAX: usize = 16;

/// Reserved windows: base 0 is a free entry.
#[derive(Debug, Default)]
pub(super) struct Windows {
    entries: [RealWindow; WINDOWS_MAX],
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct RealWindow {
    base: AtomicU64,
    len: AtomicU64,
}

fn bad_range(op: Operation, name: &str, addr: u64, len: u64, reason: &'static str) -> MediumError {
    MediumError::BadRange { op, name: FileName::new(name), addr, len, reason }
}

/// How a file is mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) mode: MapMode,
    /// A mapping of which flushed lines are durable.
    pub(super) synchronous: bool,
    /// What is written into the file before.
    pub(super) word: Option<FileWord>,
}

impl Windows {
    /// Checks a range: whole pages, inside one window. Returns it as the sizes of this machine.
    fn check(
        &self,
        op: Operation,
        name: &str,
        addr: u64,
        len: u64,
    ) -> Result<(usize, usize), MediumError> {
        let bad = |reason| bad_range(op, name, addr, len, reason);
        if !addr.is_multiple_of(PAGE_SIZE) || !len.is_multiple_of(PAGE_SIZE) || len == 0 {
            return Err(bad(
                "address and length must be multiples of 4096 bytes, and the length not zero",
            ));
        }
        let end = addr
            .checked_add(len)
            .ok_or_else(|| bad("the range is longer than the address space"))?;
        let inside = self.entries.iter().any(|window| {
            let base = window.base.load(Ordering::Acquire);
            base != 0
                && addr >= base
                && end <= base.saturating_add(window.len.load(Ordering::Relaxed))
        });
        if !inside {
            return Err(bad("the range lies in no window that this medium has reserved"));
        }
        Ok((addr as usize, len as usize))
    }

    pub(super) fn reserve(&self, base: u64, len: u64) -> Result<(), MediumError> {
        let bad = |reason| bad_range(Operation::Reserve, "", base, len, reason);
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(window) =
            self.entries.iter().find(|window| window.base.load(Ordering::Relaxed) == 0)
        else {
            return Err(bad("this medium has reserved as many windows as it can; release one"));
        };
        memory::reserve(base as usize, len as usize).map_err(|error| match error {
            ReserveError::Range { .. } => {
                bad("base and length must be multiples of the page size and not zero, and the end \
                 must not overflow")
            }
            ReserveError::System { source, .. } => MediumError::WindowTaken { base, len, source },
            _ => {
                let source = std::io::ErrorKind::AddrInUse.into();
                MediumError::WindowTaken { base, len, source }
            }
        })?;
        window.len.store(len, Ordering::Relaxed);
        window.base.store(base, Ordering::Release);
        Ok(())
    }

    pub(super) fn release(&self, base: u64, len: u64) -> Result<(), MediumError> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |window: &&RealWindow| {
            base != 0
                && window.base.load(Ordering::Relaxed) == base
                && window.len.load(Ordering::Relaxed) == len
        };
        let Some(window) = self.entries.iter().find(same) else {
            return Err(bad_range(
                Operation::Reserve,
                "",
                base,
                len,
                "this medium has reserved no such window",
            ));
        };
        window.base.store(0, Ordering::Release);
        // SAFETY: the window was reserved by this medium, whole; the caller that releases it uses
        // no pointer into it any more (the contract of `Medium`).
        unsafe { memory::release(base as usize, len as usize) }
            .map_err(|source| MediumError::from_io(Operation::Reserve, "", source))
    }

    /// Maps a file; see [`Medium::map_written`](crate::Medium::map_written). Called from signal
    /// handlers: no allocation, no lock.
    pub(super) fn map(
        &self,
        files: &Files,
        name: &str,
        addr: u64,
        len: u64,
        how: How,
    ) -> Result<(), MediumError> {
        let op = Operation::Map;
        // Before anything is opened.
        self.check(op, name, addr, len)?;
        let flags = if how.mode.is_shared_writable() { OFlags::RDWR } else { OFlags::RDONLY };
        let (file, found_bytes) = files.open_for_mapping(name, flags)?;
        self.map_file((&file, found_bytes), name, addr, len, how)
    }

    /// The same for a file that is open, and has `found_bytes`.
    pub(super) fn map_file(
        &self,
        (file, found_bytes): (&File, u64),
        name: &str,
        addr: u64,
        len: u64,
        How { mode, synchronous, word }: How,
    ) -> Result<(), MediumError> {
        let op = Operation::Map;
        let (at, size) = self.check(op, name, addr, len)?;
        let shared = if synchronous { Sharing::SharedSync } else { Sharing::Shared };
        let (access, sharing) = match mode {
            MapMode::ReadWrite => (Access::ReadWrite, shared),
            MapMode::Tracked => (Access::ReadOnly, shared),
            MapMode::ReadOnly => (Access::ReadOnly, Sharing::Shared),
            MapMode::PrivateCopy => (Access::ReadWrite, Sharing::Private),
        };
        if found_bytes < len {
            return Err(MediumError::Truncated {
                op,
                name: FileName::new(name),
                needed_bytes: len,
                found_bytes,
            });
        }
        if let Some(word) = word {
            write_open(file, name, word.offset, &word.value.to_le_bytes())?;
        }
        // SAFETY: the range lies in a window that this medium reserved, and the caller of
        // `Medium::map` promises that no thread relies on what was mapped before.
        unsafe { memory::map_file(file.as_fd(), at, size, access, sharing) }
            .map_err(|source| MediumError::from_io(op, name, source))
    }

    pub(super) fn unmap(&self, addr: u64, len: u64) -> Result<(), MediumError> {
        let (at, size) = self.check(Operation::Unmap, "", addr, len)?;
        // SAFETY: as in `map`.
        unsafe { memory::unmap_to_reserved(at, size) }
            .map_err(|source| MediumError::from_io(Operation::Unmap, "", source))
    }
}
