//! Errors of a sub-heap. After any of them nothing has changed.

use crate::error::FreeError;
pub use crate::logged_error::{AllocRefused, Damage, LogFull, LoggedError, SubHeapError};

/// Why a block is not freed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FreeRefused {
    /// The address is no allocated block of this sub-heap.
    #[error(transparent)]
    NoBlock(#[from] FreeError),
    /// A transaction allocated the block, or frees it when it commits.
    #[error("the block at {addr:#x} belongs to a transaction that runs: free it there")]
    InTransaction {
        /// The address.
        addr: u64,
    },
    /// No log of the block's sub-heap has room for the free.
    #[error(transparent)]
    LogFull(#[from] LogFull),
    /// The metadata are damaged.
    #[error(transparent)]
    Damaged(#[from] Damage),
}

/// Why a plan of a change came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No list has a free block of the class or a larger one.
    NoBlock,
    /// All slots are taken where the record of the block at this unit may lie.
    NoSlot(u64),
    /// The metadata are damaged.
    Damaged(Damage),
}

impl Fault {
    /// Damage of a cell.
    pub(crate) const fn cell(cell: u64, what: &'static str) -> Self {
        Self::Damaged(Damage { offset: cell * cenote_layout::logged::CELL_SIZE, what })
    }

    /// The damage; what a free meets besides is none of the others.
    pub(crate) fn damage(self) -> Damage {
        match self {
            Self::Damaged(damage) => damage,
            Self::NoBlock | Self::NoSlot(_) => Damage { offset: 0, what: "a free needs space" },
        }
    }
}
