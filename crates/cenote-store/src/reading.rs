//! Reads pages of a pool's memory that may be lost: an error, and no signal (`cenote_sys::peek`).
//!
//! | page | why it cannot be had | the error |
//! | --- | --- | --- |
//! | of a protected pool | it fails its check | [`StoreError::Sealed`], with the page |
//! | behind the end of a file | the file was cut short | [`StoreError::Unreadable`] |
//! | of a disk that fails | `EIO` | [`StoreError::Unreadable`] |

use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::puddles::puddle::{DATA_AT, Puddle};
use crate::sealed_files::at_rest;
use cenote_layout::PAGE_SIZE;
use cenote_layout::id::Uuid;

/// Pages of a protected puddle that are loaded at once.
const LOADED_AT_ONCE: u64 = 512;

impl PoolHandle {
    /// Loads every page of a protected pool, and sees that no file of another is shorter than its
    /// puddle: before something that cannot go on from half of the pool.
    ///
    /// # Errors
    /// The first page that cannot be had.
    pub fn ensure_readable(&self) -> Result<(), StoreError> {
        for puddle in self.puddles().into_iter().filter(|puddle| !puddle.is_refused()) {
            self.store().ensure_mapped(puddle)?;
            match puddle.view() {
                Some(view) => {
                    for from in (0..view.pages()).step_by(LOADED_AT_ONCE as usize) {
                        view.load(from..view.pages().min(from + LOADED_AT_ONCE))
                            .map_err(|error| at_rest(self.name(), error))?;
                    }
                }
                None => self.refuse_short(puddle)?,
            }
        }
        Ok(())
    }

    /// A daemon's client has no file to ask; a fault tells it.
    fn refuse_short(&self, puddle: &Puddle) -> Result<(), StoreError> {
        let inner = self.store().inner();
        if inner.is_client() {
            return Ok(());
        }
        let len = inner.medium.len(puddle.file_name())?;
        if len >= puddle.size() {
            return Ok(());
        }
        Err(self.of_page(puddle, len / PAGE_SIZE, (puddle.size() - len).div_ceil(PAGE_SIZE)))
    }

    /// The error for a page that cannot be read: [`cenote_sys::peek`] said so of `addr`.
    #[cold]
    #[must_use]
    pub fn unreadable(&self, addr: u64) -> StoreError {
        let Some(puddle) = self.store().puddle_of(addr) else {
            let pool = self.name().to_owned();
            return StoreError::Unreadable { pool, puddle: Uuid::NIL, index: 0, page: 0, count: 1 };
        };
        let page = (addr - puddle.addr()) / PAGE_SIZE;
        if let Some(view) = puddle.view()
            && let Some(page) = page.checked_sub(DATA_AT / PAGE_SIZE)
            && let Err(error) = view.load(page..page + 1)
        {
            return at_rest(self.name(), error);
        }
        self.of_page(puddle, page, 1)
    }

    fn of_page(&self, puddle: &Puddle, page: u64, count: u64) -> StoreError {
        let (puddle, index) = (puddle.uuid(), puddle.index());
        StoreError::Unreadable { pool: self.name().into(), puddle, index, page, count }
    }
}
