//! Logs: a transaction writes them before it changes data, and any process that may write the data
//! recovers from them after a crash (PUD-2, PUD-4).
//!
//! [`writer`] appends entries and moves the sequence range. [`scan`] reads a log and believes
//! nothing. [`mod@replay`] decides what a crash interrupted, and rolls back or forward. Replay
//! knows addresses, bytes and bits; it knows no transaction's meaning, no types and no application.
//! So any program can recover any other's data.
//!
//! [`cenote_layout::log`] has the format, `cenote-tx` the protocol of commit with its states.

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
