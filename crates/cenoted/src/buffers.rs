//! Buffers for messages that threads are reading.

use std::sync::{Mutex, PoisonError};

use cenote_proto::MESSAGE_LEN_MAX;

/// As many buffers as threads read at once, however many connections there are. One for each
/// connection would be most of the daemon's memory, once each has sent one long message.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

/// Buffers that are kept.
const BUFFERS_MAX: usize = 8;

impl Buffers {
    /// Calls `work` with a buffer of the longest message.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = kept().pop();
        let mut buffer = ready.unwrap_or_else(|| vec![0; MESSAGE_LEN_MAX]);
        let done = work(&mut buffer);
        let mut kept = kept();
        if kept.len() < BUFFERS_MAX {
            kept.push(buffer);
        }
        done
    }
}
