//! Logs: what a transaction writes before it changes data, and how any process that may write the
//! data recovers from it after a crash (PUD-2, PUD-4).
//!
//! [`writer`] appends entries and moves the sequence range; [`scan`] reads a log, believing
//! nothing; [`mod@replay`] decides what a crash interrupted and rolls back or forward. Replay knows
//! addresses, bytes and bits, and nothing of transactions' meaning, types or applications: that is
//! what lets any program recover any other's data.
//!
//! The format is in [`cenote_layout::log`]; the protocol of commit, with its states, in
//! `cenote-tx`.

pub mod body;
mod damage;
mod entry_checksum;
mod line;
mod log_error;
pub mod replay;
pub mod scan;
mod source;
pub mod writer;

pub use body::{Body, format_segment};
pub use damage::{CrashKind, LogDamage, Refusal};
pub use log_error::LogError;
pub use replay::{Outcome, ReplayTarget, replay};
pub use scan::{LogSummary, inspect};
pub use source::SegmentSource;
pub use writer::LogWriter;
