//! A pool's puddles, mapped a second time and privately: what a snapshot of the pool reads.
//!
//! [`PoolHandle::private_window`] maps each heap puddle at one distance from its address. Pages
//! show the pool until [`PoolWindow::keep`] has the kernel copy them. Nothing of it is on media:
//! after a crash there is no trace of it.
//!
//! Invariant: the pool's handle is kept, so none of its puddles is taken away, and no file of them
//! is removed, moved or rewritten while the window lives.

use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::pool::PoolHandle;
use cenote_layout::PAGE_SIZE;
use cenote_sys::private_window::PrivateWindow;
use core::ops::Range;
use std::io;
use std::os::fd::AsFd;

/// Why a pool has no second window.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateWindowError {
    /// Pools of this kind have none.
    #[error("{why}; {instead}")]
    Refused {
        /// Why not.
        why: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// A puddle cannot be mapped.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// The kernel refused.
    #[error("mapping the pool's files a second time failed: {0}")]
    System(#[from] io::Error),
}

impl From<StoreError> for PrivateWindowError {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

/// The second window of a pool.
#[derive(Debug)]
pub struct PoolWindow {
    window: PrivateWindow,
    /// Addresses of the puddles, rising, and their indices in the pool.
    puddles: Vec<(Range<u64>, u32)>,
    /// Keeps the puddles.
    _pool: PoolHandle,
}

impl PoolHandle {
    /// Maps the pool's puddles a second time, each whole.
    ///
    /// # Errors
    /// The pool's mode or its store has no such window; what the kernel and the store say.
    ///
    /// # Safety
    /// The caller changes no byte at the second addresses, and reads there what it keeps alone, or
    /// what is not changed meanwhile.
    pub unsafe fn private_window(&self) -> Result<PoolWindow, PrivateWindowError> {
        let refused = |why, instead| Err(PrivateWindowError::Refused { why, instead });
        if self.store().is_connected() {
            return refused(
                "a daemon keeps the store, and other processes may write the pool",
                "read through a view",
            );
        }
        if !self.is_writable() {
            return refused(
                "the pool is open for reading only, so no transaction runs in this process",
                "read through a view",
            );
        }
        let mut puddles = Vec::new();
        for puddle in self.puddles() {
            self.store().ensure_mapped(puddle)?;
            if puddle.memory().is_some() || !puddle.is_writable() {
                return refused(
                    "the pool is protected at rest, so its pages are in no file",
                    "read through a view",
                );
            }
            puddles.push(puddle);
        }
        puddles.sort_by_key(|puddle| puddle.addr());
        let (Some(first), Some(last)) = (puddles.first(), puddles.last()) else {
            return refused("the pool has no puddle", "check it");
        };
        let range = first.addr() as usize..(last.addr() + last.size()) as usize;
        let window = PrivateWindow::new(range, puddles.len() as u64)?;
        for puddle in &puddles {
            let inner = self.store().inner();
            let file = inner.medium.descriptor(puddle.file_name());
            let Some(file) = file.map_err(StoreError::from)? else {
                return refused(
                    "the medium has no files that the kernel could map privately",
                    "read through a view",
                );
            };
            // SAFETY: the window's own place, which nothing uses yet.
            unsafe { window.map(file.as_fd(), puddle.addr() as usize, puddle.size() as usize) }?;
        }
        let puddles = puddles.iter().map(|p| (p.addr()..p.addr() + p.size(), p.index())).collect();
        Ok(PoolWindow { window, puddles, _pool: self.clone() })
    }
}

impl PoolWindow {
    /// What is to be added to an address of the pool, wrapping around.
    #[must_use]
    #[inline]
    pub const fn distance(&self) -> u64 {
        self.window.distance() as u64
    }

    /// Addresses of the pool's puddles as they were when the window was made, rising, and their
    /// indices in the pool.
    #[must_use]
    pub fn puddles(&self) -> &[(Range<u64>, u32)] {
        &self.puddles
    }

    /// Keeps the pages of a range of one puddle's addresses.
    ///
    /// # Errors
    /// As [`PrivateWindow::keep`].
    pub fn keep(&self, range: Range<u64>) -> io::Result<()> {
        let from = range.start / PAGE_SIZE * PAGE_SIZE;
        let to = range.end.next_multiple_of(PAGE_SIZE);
        self.window.keep(from as usize, to.saturating_sub(from) as usize)
    }
}
