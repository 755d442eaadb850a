//! The file of a puddle of a protected pool, and the memory that shows it.

use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::own_memory::OwnMemory;
use crate::kernel::puddles::puddle::{DATA_AT, Puddle, file_name, text};
use crate::kernel::puddles::verify::verify_len;
use crate::kernel::store::Inner;
use cenote_atrest::Protection;
use cenote_atrest::binding::{self, BoundPuddle};
use cenote_atrest::tree::Digest;
use cenote_atrest::view::{SealedError, Source, View};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, PuddleRecord};
use cenote_layout::id::Uuid;
use cenote_medium::{MapMode, MediumError, Operation, OwnedMedium};
use cenote_sys::memory;
use std::os::fd::AsFd;

/// Pages of a puddle that are sealed.
pub(crate) fn pages_of(record: &PuddleRecord) -> u64 {
    record.size.saturating_sub(DATA_AT) / PAGE_SIZE
}

/// Bytes of a puddle's file; `None` for a size that no puddle has.
pub(crate) fn file_len(record: &PuddleRecord, at_rest: AtRest) -> Option<u64> {
    at_rest.stored_len(record.size)
}

/// A puddle as messages name it.
pub(crate) fn named(pool: &str, record: &PuddleRecord) -> String {
    format!("puddle {} of pool \"{pool}\"", record.index)
}

/// What a puddle's protection is bound to.
pub(crate) fn binding_of(store: Uuid, name: &str, record: &PuddleRecord) -> Digest {
    let PuddleRecord { pool, index, addr, size, .. } = *record;
    binding::of_puddle(&BoundPuddle { store, pool: pool.0, name, index, addr, size })
}

/// What is wrong with a pool's protection or key.
pub(crate) fn at_rest(pool: &str, error: SealedError) -> StoreError {
    match error {
        SealedError::Medium(error) => error.into(),
        SealedError::AtRest { source, .. } => StoreError::AtRest { name: pool.into(), source },
        error => StoreError::Sealed { name: pool.into(), source: Box::new(error) },
    }
}

/// A puddle whose key fits.
pub(crate) struct Opened {
    pub(crate) record: PuddleRecord,
    pub(crate) protection: Protection,
    pub(crate) source: Source,
}

/// Gives a puddle its memory, beside the header page of its file. At no moment is anything else to
/// be seen there: threads may touch the puddle meanwhile, and wait.
pub(crate) fn show_view(
    medium: &OwnedMedium,
    pool: &str,
    puddle: &Puddle,
    opened: Opened,
    writable: bool,
) -> Result<(), StoreError> {
    puddle.give_memory(|| {
        let (name, addr) = (puddle.file_name(), puddle.addr() as usize);
        match medium.descriptor(name)? {
            Some(file) => {
                // SAFETY: the puddle's own range, where nothing is mapped: its state says so.
                unsafe {
                    memory::map_file(
                        file.as_fd(),
                        addr,
                        DATA_AT as usize,
                        memory::Access::ReadOnly,
                        memory::Sharing::Private,
                    )
                }
                .map_err(|error| MediumError::from_io(Operation::Map, name, error))?;
            }
            // The simulation compares stores with what it has mapped; it has no other processes.
            None => {
                let (addr, size) = (puddle.addr(), puddle.size());
                // SAFETY: the puddle's own range of the window, in which nothing is mapped yet.
                unsafe { medium.map(name, addr, size, MapMode::PrivateCopy) }?
            }
        }
        let (what, base) = (named(pool, &opened.record), addr + DATA_AT as usize);
        // SAFETY: the puddle's own range, given to no caller yet; the view is stopped before the
        // puddle is unmapped.
        let view =
            unsafe { View::unregistered(&what, opened.protection, opened.source, base, writable) };
        view.map(|view| Box::new(view) as Box<dyn OwnMemory>)
            .map_err(|error| at_rest(pool, error))
            .inspect_err(|_| {
                // SAFETY: mapped above; the view is gone.
                let _ = unsafe { medium.unmap(puddle.addr(), puddle.size()) };
            })
    })
}

impl Inner {
    /// Looks for damage in the file of a puddle of a protected pool; it does not look at sealed
    /// pages.
    pub(crate) fn verify_sealed(
        &self,
        record: &PuddleRecord,
        protection: AtRest,
    ) -> Result<Option<String>, MediumError> {
        let Some(len) = file_len(record, protection) else {
            return Ok(Some("the catalog gives it a size that no puddle has".into()));
        };
        verify_len(
            &self.medium,
            text(&file_name(record.uuid)),
            (record, len),
            self.uuid,
            self.writable,
        )
    }
}
