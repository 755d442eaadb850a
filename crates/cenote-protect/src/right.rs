//! What may be done with a page.

use cenote_sys::memory::Access;

/// What may be done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Right {
    /// Every access faults.
    Nothing = 0,
    /// Stores fault.
    Read = 1,
    /// Loads and stores go through.
    Write = 2,
}

impl Right {
    pub(crate) fn access(self) -> Option<Access> {
        match self {
            Self::Nothing => None,
            Self::Read => Some(Access::ReadOnly),
            Self::Write => Some(Access::ReadWrite),
        }
    }

    pub(crate) fn of(code: u8) -> Self {
        match code {
            0 => Self::Nothing,
            1 => Self::Read,
            _ => Self::Write,
        }
    }
}
