//! Failure-atomic transactions (PUD-5): after a crash all of a transaction's stores are there, or
//! none.
//!
//! A [`TxContext`] binds one thread to one log; [`TxContext::begin`] gives a [`Transaction`]. This
//! is the raw interface, for other languages and for the layers above: it takes addresses and
//! trusts its caller about them. Crate `cenote` is the safe one.
//!
//! As in the paper, a transaction belongs to one thread and brings no isolation. Threads that share
//! data take a lock, and hold it until commit or abort has returned. One transaction may write to
//! any pools of its store.
//!
//! # Commit, and how few fences it takes
//!
//! At `process` no instruction is spent on durability. A log entry is stored before the data that
//! it covers, and the range moves on after the data. A process that dies leaves memory as its last
//! store left it.
//!
//! At `power`, with U calls of [`Transaction::add`] and any number of redo entries:
//!
//! | strategy | when | fences |
//! | --- | --- | --- |
//! | *sealed, lazy* | the store uses no other log, and few bytes are covered | U + 1 |
//! | *sealed* | there are redo entries | U + 2 (lazy) or U + 3 |
//! | *marked* | otherwise | U + 2 |
//!
//! One fence is added if the last entry of a block that is taken or freed has not been fenced when
//! commit begins: see *Marks of allocation*.
//!
//! **Sealed.** Contents (all that is undo-logged or freshly allocated) are flushed. A *seal* is
//! appended: a count and checksum of the entries, and a hash of those contents. One fence makes
//! both durable, in any order. **That is the commit**: if recovery finds a whole seal and memory
//! that hashes to it, the transaction is complete; otherwise recovery rolls back. Then redo entries
//! are applied, flushed and fenced. At last the range moves on.
//!
//! **Marked.** Contents are flushed and fenced; the 8-byte store of the range commits, and is
//! fenced.
//!
//! **Lazy.** After a sealed commit the store that moves the range on is flushed, but not fenced.
//! Until it is durable, a loss of power makes recovery compare memory with the seal again, so
//! nothing that the seal covers may change before. This log is the only one, so the next change
//! belongs to its next transaction. That one's first fence comes before its first change in place,
//! and also makes the range durable. *Before* its first fence the next transaction writes
//!
//! * log entries, which go to the other half of the log (further segments have no halves, but the
//!   jump that leads there is fenced before anything is written there);
//! * freshly allocated blocks and their marks. The seal does not cover them: a covered block that
//!   the sealed transaction freed makes it fence before the block is given back.
//!
//! When a second log comes into use, every pending range is made durable first ([`group`]).
//!
//! # Marks of allocation
//!
//! After a loss of power, marks are believed: a block is allocated if it is reached *and* marked.
//! So a dangling pointer never makes a value of a free block, in which an uncommitted transaction
//! may have written in part. At `power`, this holds at every moment:
//!
//! > What the medium may have of a block's mark (any of its undecided values) says "allocated" if
//! > and only if the last transaction that was committed left the block allocated; or a durable
//! > entry of a log that is not finished names the mark, and replay of that log makes it so.
//!
//! The states of a mark, and the steps that keep the rule:
//!
//! | step | the mark in memory | on the medium | after a loss of power |
//! | --- | --- | --- | --- |
//! | free, cached, held | not "allocated" | not "allocated" | free |
//! | `alloc`: entry streamed, then the mark | TAKEN | not "allocated" | free |
//! | commit, 1: all entries durable | TAKEN | not "allocated" | free |
//! | commit, 2: stored and flushed | ALLOCATED | either | (a) |
//! | commit, 3: **the fence that commits** | ALLOCATED | ALLOCATED | (b) |
//! | `free`: entry streamed | ALLOCATED | ALLOCATED | allocated |
//! | commit, 1: all entries durable | ALLOCATED | ALLOCATED | allocated |
//! | commit, 2: stored and flushed | HELD | either | (c) |
//! | commit, 3: **the fence that commits** | HELD | HELD | (d) |
//! | given out again, after the range is stored | CACHED, TAKEN | not "allocated" | free |
//! | abort | TAKEN, then HELD | not "allocated" | free; no mark was cleared |
//!
//! * (a) The entry is durable: rolled back, the block is free. Sealed and forward, it is allocated.
//! * (b) Sealed: allocated. Marked: free, until the range has moved.
//! * (c) The entry is durable: rolled back, the block is allocated. Forward, it is free.
//! * (d) Sealed: free. Marked: allocated, until the range has moved.
//!
//! *Commit, 1* is a fence of its own only if an entry is not durable yet. In the usual order
//! (allocate, write, attach) the undo entry of the link has fenced it, so an insert in a list takes
//! two fences. A transaction takes one more if it takes or frees something after its last fence, or
//! logs nothing in place. A block that a transaction takes *and* frees changes nothing on the
//! medium and needs none.
//!
//! *Nothing fails between 2 and 3*: room for the seal is taken before. So abort never finds a mark
//! that commit has changed.
//!
//! *Marks are not under the seal.* A whole seal that fits means "committed", whether the marks are
//! there or not: replay forward writes them, and flushes them before the range moves on. So a
//! mark's place may change between a lazy commit and the fence that makes its range durable: a
//! block that it freed is given out (TAKEN), or its superblock becomes another's, with data where
//! the mark was. Replay clears the mark once more. That is safe, because no transaction that has
//! written there since is durable: its first fence would have made the range durable too.
//!
//! *Other logs.* Marks are durable when commit returns, so no other transaction, of any log, that
//! links or frees a block sees a mark that is not durable. If one log frees a block, another takes
//! it, and power is lost: the first one's mark was durable as "not allocated" before the place was
//! given out, and the second one's says "allocated" only once its entry is durable.
//!
//! *Repeated recovery.* Replay writes marks before the range moves on, forward in the order of
//! entries, back in reverse. Both end the same however often they begin (a block taken and freed by
//! one transaction ends free in both). Tracing and reclaim only clear marks of blocks that nothing
//! leads to, and make that durable before a place is given out.
//!
//! *After a crash of processes* memory is as the last store left it. TAKEN is free to the next
//! opener; replay has written all marks that an unfinished log names before.
//!
//! At `process` a mark is set in one step, and nothing is flushed: no loss of power is covered.

mod abort;
mod commit;
pub mod context;
mod give_back;
pub mod group;
mod lines;
mod marks;
pub mod ranges;
mod transaction;

pub use context::{TxContext, TxError};
pub use group::LogGroup;
pub use transaction::Transaction;
