//! Where a log gets further segments from.

use crate::body::Body;
use core::sync::atomic::AtomicBool;
use std::sync::Arc;

/// Where a log gets further segments from.
pub trait SegmentSource: Send {
    /// The address of the puddle, and the body, of segment `number` (from 1) of the log: formatted
    /// with [`crate::format_segment`] and listed in the log space, durably.
    ///
    /// # Errors
    /// What kept it from having one: a full disk, say.
    fn segment(
        &mut self,
        number: u32,
    ) -> Result<(u64, Body), Box<dyn std::error::Error + Send + Sync>>;

    /// Whether stores of this session may have gone nowhere, those of an abort among them. Then a
    /// transaction stays in its log, for the next opener to roll back.
    fn is_halted(&self) -> bool {
        false
    }

    /// Says that a mapped page of a log of the session was lost, and that memory without a file has
    /// taken its place. It is set before an access to that memory can succeed. Asked for once, when
    /// the log is attached.
    fn lost(&self) -> Arc<AtomicBool> {
        Arc::default()
    }
}
