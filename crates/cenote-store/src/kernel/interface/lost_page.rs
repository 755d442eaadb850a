//! Names the page of a heap's metadata, or of a log, that was lost.

use cenote_layout::id::{PoolId, Uuid};

/// A page of the metadata of a pool's heap that was lost while the store was open.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "page {page} of puddle {puddle} (number {index} of pool number {}), of the metadata of its \
     heap, was lost while the store was open: its file was cut short, or its disk fails; the \
     store acknowledges nothing more: close it, check the medium, open it again",
    pool.0
)]
pub struct LostPage {
    /// The pool.
    pub pool: PoolId,
    /// The puddle.
    pub puddle: Uuid,
    /// Its number in the pool.
    pub index: u32,
    /// The page, of 4096 bytes from the start of the puddle's file.
    pub page: u64,
}

/// A page of a log, or of a log space, of this session that was lost while the store was open.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "page {page} of log {puddle} was lost while the store was open: its file was cut short, or its \
     disk fails; the store acknowledges nothing more, and refuses to read values, because a \
     transaction may be half done: close it, check the medium, open it again"
)]
pub struct LostLog {
    /// The puddle with the log.
    pub puddle: Uuid,
    /// The page, of 4096 bytes from the start of the puddle's file.
    pub page: u64,
}
