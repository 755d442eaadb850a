//! Failure-atomic transactions (PUD-5): all of a transaction's stores are there after a crash, or none.
//!
//! A [`TxContext`] binds one thread to one log; [`TxContext::begin`] gives a [`Transaction`]. This is the raw interface, for other
//! languages and for the layers above: it takes addresses and trusts its caller about them. The safe one is crate `cenote`.
//!
//! Like the paper's, transactions are of one thread and bring no isolation: whoever shares data takes a lock, and holds it until
//! commit or abort has returned. One transaction may write to any pools of its store.
//!
//! # Commit, and how few fences it takes
//!
//! At `process` no instruction is spent on durability: a log entry is stored before the data that it covers, the range moves on after
//! the data, and a process that dies leaves memory as its last store left it.
//!
//! At `power`, with U calls of [`Transaction::add`] and any number of redo entries:
//!
//! | strategy | when | fences |
//! | --- | --- | --- |
//! | *sealed, lazy* | the log is the only one in use in its store, and few bytes are covered | U + 1 |
//! | *sealed* | there are redo entries | U + 2 (lazy) or U + 3 |
//! | *marked* | otherwise | U + 2 |
//!
//! **Sealed.** Contents (everything undo-logged or freshly allocated) are flushed, and a *seal* is appended, which carries a count and
//! checksum of the entries and a hash of those contents; one fence makes both durable, in whatever order. That is the
//! commit: recovery finds a whole seal and memory that hashes to it and knows that the transaction is complete, or finds anything else and rolls back. Then redo
//! entries are applied, flushed and fenced. At last the range moves on.
//!
//! **Marked.** Contents are flushed and fenced; the 8-byte store of the range commits, and is fenced.
//!
//! **Lazy.** After a sealed commit the store that moves the range on is flushed, but not fenced. Until it is durable, a loss of power
//! makes recovery compare memory with the seal again, so nothing that the seal covers may change before. It cannot: this log is the only one,
//! so the next change belongs to its next transaction, and its first fence (which comes before the first change in place)
//! also makes the range durable. What the next transaction does *before* its first fence is: write log entries, which go to the other half of the log (further segments have no halves, but the
//! jump that leads there is fenced before anything is written there); and write to
//! freshly allocated blocks, which are not covered, because a covered block that this transaction freed makes it fence before the block is given back.
//! When a second log comes into use, every pending range is made durable first ([`group`]).

pub mod context;
pub mod group;
pub mod ranges;
mod transaction;

pub use context::{TxContext, TxError};
pub use group::LogGroup;
pub use transaction::Transaction;
