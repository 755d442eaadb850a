//! The poison of a store: why it acknowledges nothing more.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::lost_page::{LostLog, LostPage};
use cenote_sys::fork_guard;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What no process has for a token.
const NO_TOKEN: u64 = u64::MAX;

/// Set once, by the first cause.
#[derive(Debug)]
pub(crate) struct Poisoned {
    /// The token of the process that opened the store; another once there is a cause. So one
    /// comparison asks for causes and for forks.
    usable: AtomicU64,
    /// The same, but that it stays what it is until a page of a log is lost.
    readable: AtomicU64,
    cause: OnceLock<Poison>,
    lost_log: OnceLock<LostLog>,
    log_is_lost: Arc<AtomicBool>,
    opener: u64,
}

impl Default for Poisoned {
    fn default() -> Self {
        let opener = fork_guard::token();
        Self {
            usable: AtomicU64::new(opener),
            readable: AtomicU64::new(opener),
            cause: OnceLock::new(),
            lost_log: OnceLock::new(),
            log_is_lost: Arc::default(),
            opener,
        }
    }
}

impl Poisoned {
    /// The first cause stays. May be called in a signal handler, with a cause that allocates
    /// nothing.
    pub(crate) fn set(&self, cause: Poison) {
        if let Poison::LostLog(lost) = cause {
            // Noted also behind an earlier cause.
            let _ = self.lost_log.set(lost);
            self.log_is_lost.store(true, Ordering::Release);
            self.readable.store(NO_TOKEN, Ordering::Release);
        }
        let _ = self.cause.set(cause);
        self.usable.store(NO_TOKEN, Ordering::Release);
    }

    /// The cause.
    pub(crate) fn get(&self) -> Option<&Poison> {
        self.cause.get()
    }

    /// Fails if there is a cause, or if this process is a fork of the store's opener. A fork's
    /// token is 0, or one of its own.
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<(), StoreError> {
        if fork_guard::current() == self.usable.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.why_unusable())
    }

    /// Set when a page of a log of this session is lost.
    pub(crate) fn log_is_lost(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.log_is_lost)
    }

    /// Fails if a page of a log was lost: then a transaction may be half done in memory. Fails in a
    /// fork, too.
    #[inline]
    pub(crate) fn check_readable(&self) -> Result<(), StoreError> {
        if fork_guard::current() == self.readable.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.why_unreadable())
    }

    #[cold]
    #[inline(never)]
    fn why_unreadable(&self) -> StoreError {
        match self.lost_log.get() {
            Some(lost) if fork_guard::is_current(self.opener) => StoreError::LogLost(*lost),
            _ => StoreError::Forked,
        }
    }

    #[cold]
    #[inline(never)]
    fn why_unusable(&self) -> StoreError {
        match self.get() {
            Some(poison) if fork_guard::is_current(self.opener) => poison.error(),
            _ => StoreError::Forked,
        }
    }
}

/// A cause. One of a lost page is made in a signal handler, and allocates nothing.
#[derive(Clone, Debug)]
pub(crate) enum Poison {
    /// What failed.
    Failed(String),
    /// A page of the metadata of a heap was lost ([`crate::kernel::puddles::lost`]).
    Lost(LostPage),
    /// A page of a log was lost ([`crate::kernel::store::watch`]).
    LostLog(LostLog),
}

impl Poison {
    /// What every operation that writes says.
    #[cold]
    pub(crate) fn error(&self) -> StoreError {
        match self {
            Self::Failed(reason) => StoreError::Poisoned { reason: reason.clone() },
            Self::Lost(lost) => StoreError::MetadataLost(*lost),
            Self::LostLog(lost) => StoreError::LogLost(*lost),
        }
    }
}

impl From<String> for Poison {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(reason) => f.write_str(reason),
            Self::Lost(lost) => lost.fmt(f),
            Self::LostLog(lost) => lost.fmt(f),
        }
    }
}
