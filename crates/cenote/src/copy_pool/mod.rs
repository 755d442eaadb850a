//! Copies of pools into pools of another kind of heap, or of the same: [`Store::copy_pool`].
//!
//! A clone has the bytes of its original, so it has the same heap. A copy is made block by block:
//! what the source's roots lead to is allocated in the new pool, and pointers into the source
//! become pointers to the copies. Pointers to other pools stay. Leaks are not copied: no root of
//! the new pool could lead to them.
//!
//! The source is only read. A *table* in the new pool ([`crate::copying`]) says which block has
//! which copy. It is also the queue of copies whose pointers are to be written, so nothing grows in
//! memory with the pool. Everything is done by ordinary transactions, each of which takes only so
//! many blocks. A crash at any moment leaves one of these states:
//!
//! * *made*: an empty pool. A transaction makes the work header, with the source's roots in it, and
//!   sets root 1023: **its commit begins** *copying*.
//! * *copying*, with n blocks found and m of them scanned. Transactions allocate copies of what
//!   roots or pointers lead to, with pointers into the source zero, and enter them: n rises. They
//!   write the pointers of entries from m on: m rises when all pointers of an entry are there. When
//!   m = n they set roots, some at a time. **The commit of each leaves this state again.** The last
//!   one says that the source is not needed: **its commit begins** *clearing*.
//! * *clearing*: transactions free parts of the table, and the words that lead to them. The last
//!   one sets root 1023 to what it is in the source, and frees the rest: **its commit finishes**
//!   the copy.
//!
//! A pool in the state *copying* or *clearing* is opened by this module alone: root 1023 leads to
//! the work header. The next call goes on from the state that it finds. In state *made* the pool is
//! an empty pool, as any other; a call fills each empty pool, so it goes on too.
//!
//! **A source that changes.** One call holds a view of the source from its beginning to its end, so
//! all that it reads is of one moment. A call that goes on after another one compares first, under
//! its own view: the source's roots with those in the header, and each block with its copy, pointer
//! by pointer. Then all copies are as this call would have made them, and so the whole copy is of
//! one moment too. What differs is [`CopyRefused::Changed`].
//!
//! **Pools in shadowed mode** are psynced on the way and at the end. A loss of power takes the copy
//! back to a psync, which is one of the states above.

mod blocks;
mod compare;
mod pointers;
mod run;
mod scan;
mod table;

use crate::checking::refuse_within;
use crate::error::Result;
use crate::frames::covered_here;
use crate::session::Store;
use cenote_layout::catalog::HeapKind;
use cenote_layout::id::PoolId;
use cenote_store::{PoolOptions, StoreError};
use core::fmt;
use core::ops::ControlFlow;

#[cfg(doc)]
use crate::copy_refused::CopyRefused;

/// What a copy is, and how it is made; see [`Store::copy_pool`].
#[non_exhaustive]
pub struct CopyOptions<'a> {
    /// What the new pool is. If it is there already, its heap must be of this kind, and its key
    /// this one; the rest says nothing then.
    pub pool: PoolOptions,
    /// Blocks that one transaction allocates, at most. 256 by default.
    pub batch: usize,
    /// Called between transactions. If it breaks, the copy ends with
    /// [`CopyRefused::Stopped`](crate::CopyRefused::Stopped).
    pub progress: Option<&'a mut OnCopyProgress<'a>>,
}

/// Hears how far a copy has come, and may stop it.
pub type OnCopyProgress<'a> = dyn FnMut(&CopyProgress) -> ControlFlow<()> + 'a;

impl CopyOptions<'_> {
    /// A copy that is such a pool.
    #[must_use]
    pub fn new(pool: PoolOptions) -> Self {
        Self { pool, batch: 256, progress: None }
    }
}

impl fmt::Debug for CopyOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("CopyOptions");
        shown.field("pool", &self.pool).field("batch", &self.batch).finish_non_exhaustive()
    }
}

/// What a copy is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyPhase {
    /// It compares the source with what an earlier call copied.
    Comparing,
    /// It copies.
    #[default]
    Copying,
    /// It frees what it needed.
    Clearing,
}

/// How far a copy has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// What it is doing.
    pub phase: CopyPhase,
    /// Blocks that this phase is done with.
    pub blocks: u64,
    /// Blocks that were found so far.
    pub found: u64,
}

/// A copy that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopiedPool {
    /// Its number.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Its heap.
    pub heap: HeapKind,
    /// Blocks that were copied.
    pub blocks: u64,
    /// Their usable bytes in the source.
    pub bytes: u64,
    /// Whether an earlier call had begun it.
    pub resumed: bool,
}

/// Source and copy, for messages.
#[derive(Clone, Copy, Debug)]
struct Names<'a> {
    from: &'a str,
    pool: &'a str,
}

impl Store {
    /// Makes a pool that holds what the roots of another one lead to, with a heap of another kind
    /// or of the same. Pointers into the source become pointers to the copies, pointers to other
    /// pools stay, and roots have the same numbers and names. What no root leads to is not copied.
    ///
    /// The source is only read; writers of it wait until the call returns. If the call ends early,
    /// by a crash or an error, the new pool is an unfinished copy. To open it is
    /// [`CopyRefused::Unfinished`](crate::CopyRefused::Unfinished), and the same call goes on, in
    /// any process; [`Store::remove_pool`] removes it. A call that goes on compares the source with
    /// what was copied: if the source has changed, it is refused. The copy needs space for a table
    /// meanwhile, up to 32 bytes for each block.
    ///
    /// `to` is the name of no pool, of an unfinished copy, or of an empty pool.
    ///
    /// ```
    /// # use cenote::{CopyOptions, HeapKind, PoolOptions, Reader, Store};
    /// # fn main() -> cenote::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = Store::open(dir.path())?;
    /// store.pool("traced")?.write(|tx| -> cenote::Result<()> {
    ///     let value = tx.alloc(7u64)?;
    ///     tx.set_root(value)
    /// })?;
    /// let options = PoolOptions { heap: HeapKind::Logged, ..PoolOptions::default() };
    /// store.copy_pool("traced", "logged", CopyOptions::new(options))?;
    /// let copy = store.pool("logged")?;
    /// let view = copy.read()?;
    /// let value = view.root::<u64>()?.expect("copied");
    /// assert_eq!(*view.get(value)?, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Copy`](crate::Error::Copy) says what cannot be copied, or why a copy cannot go on;
    /// [`Error::Store`](crate::Error::Store) if a pool `to` is there and not empty, and as of
    /// [`Store::create_pool`]; [`Error::Tx`](crate::Error::Tx) if there is no more space;
    /// [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) in a transaction of this thread. The
    /// source is unchanged, and what was copied stays for the next call.
    pub fn copy_pool(&self, from: &str, to: &str, options: CopyOptions<'_>) -> Result<CopiedPool> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, to)?;
        if let Some(pool) = covered_here(|_| true) {
            return Err(crate::Error::WouldDeadlock { pool, by: "a transaction" });
        }
        if from == to {
            return Err(StoreError::PoolExists { name: to.into() }.into());
        }
        run::copy(&self.inner, Names { from, pool: to }, options)
    }
}
