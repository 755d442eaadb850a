//! The interface for the code that corrects the pointers of a puddle, in the layer that knows
//! heaps, and when it is called. [`crate::relocate`] has the states.

use super::error::StoreError;
use super::pool_blocks::{PoolBlocks, ReadPuddle};
use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_layout::id::TypeId;
use cenote_layout::moves::Moves;
use cenote_layout::types::TypeRecord;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Registered types, by id.
pub type TypeTable = BTreeMap<TypeId, Arc<TypeRecord>>;

/// Makes the pointers of a puddle right.
///
/// # Safety
/// What it makes of an image is believed, by safe code too. It changes words that are pointers, or
/// roots, and no other byte; each leads afterwards to where its target is now, by the job's moves,
/// or stays as it was. [`Rewriter::repeatable`] names no stretch where that is not so.
pub unsafe trait Rewriter: Send + Sync + core::fmt::Debug {
    /// Rewrites the image of a heap puddle, its header page excepted. May look at nothing but what
    /// it is given, and touch no memory of a store: it runs while a thread waits at a fault.
    ///
    /// # Errors
    /// Why the image is no puddle's; it is not used then.
    fn rewrite(&self, image: &mut [u8], job: &RewriteJob) -> Result<Rewritten, String>;

    /// Stretches of the image in which [`Rewriter::rewrite`] may change words, if it may run again
    /// over an image in which any of these words are new already and the others old, and makes of
    /// it what it makes of one that is old. Then the puddle is rewritten in its file. `None`: that
    /// is not so, or not known. As pure as [`Rewriter::rewrite`].
    fn repeatable(&self, image: &[u8], job: &RewriteJob) -> Option<Vec<(u64, u64)>> {
        let _ = (image, job);
        None
    }

    /// How many bytes from its start on both of them read of an image before they know where blocks
    /// are.
    fn described(&self, job: &RewriteJob) -> u64 {
        job.puddle.size
    }

    /// The blocks of a pool whose puddles do not describe their own, as the next opener of its heap
    /// finds them. `heap` is its kind, `puddles` are all of the pool, by number; `read` reads what
    /// they hold. As pure as [`Rewriter::rewrite`] besides.
    ///
    /// # Errors
    /// What `read` says. In the answer: why there can be no opener.
    fn blocks(
        &self,
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadPuddle<'_>,
    ) -> Result<Result<PoolBlocks, String>, StoreError> {
        let _ = (heap, puddles, read);
        Ok(Err("this program knows no heap of that kind".into()))
    }

    /// The numbers of the puddles that hold metadata and nothing else, of such a pool, as far as
    /// its metadata can be read: their role is [`cenote_layout::puddle::Role::Metadata`]. As pure
    /// as [`Rewriter::rewrite`] besides.
    ///
    /// # Errors
    /// What `read` says.
    fn metadata_puddles(
        &self,
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadPuddle<'_>,
    ) -> Result<Vec<u32>, StoreError> {
        let _ = (heap, puddles, read);
        Ok(Vec::new())
    }
}

/// What is to be done to one puddle.
#[derive(Debug)]
pub struct RewriteJob {
    /// The puddle, with its new address.
    pub puddle: PuddleRecord,
    /// The kind of its pool's heap.
    pub heap: HeapKind,
    /// The address for which its contents are right.
    pub from: u64,
    /// Where everything went.
    pub moves: Arc<Moves>,
    /// The store's types.
    pub types: Arc<TypeTable>,
    /// Whether blocks are rewritten without a look at their marks: tracing decides later which are
    /// allocated, and may take any of them.
    pub all_blocks: bool,
    /// The allocated blocks of the pool; `None`: the puddle describes its own.
    pub blocks: Option<Arc<PoolBlocks>>,
}

/// What was done to one puddle, or to several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// Blocks that were looked at.
    pub blocks: u64,
    /// Native pointers that have another value now, roots included.
    pub native: u64,
    /// Off-holders.
    pub relative: u64,
    /// Region pointers and heap pointers.
    pub region: u64,
    /// Words that may be pointers to what has moved, by their type or in blocks without one, and
    /// were kept as they are: a program that knows their meaning can rewrite them.
    pub kept: u64,
    /// Address of the first of these words, now; 0 if there is none.
    pub first_kept: u64,
    /// Off-holders and region pointers that cannot say where their target is now: they were kept.
    pub out_of_reach: u64,
    /// Superblocks whose description is damaged; their bytes were kept.
    pub damaged: u64,
    /// Offset and bytes of parts of the file that need no space.
    pub holes: Vec<(u64, u64)>,
}

impl Rewritten {
    /// Adds what was done to another puddle; holes, which are places in one file, are forgotten.
    pub fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.native += other.native;
        self.relative += other.relative;
        self.region += other.region;
        self.kept += other.kept;
        if self.first_kept == 0 {
            self.first_kept = other.first_kept;
        }
        self.out_of_reach += other.out_of_reach;
        self.damaged += other.damaged;
        self.holes.clear();
    }

    /// What was done since `before`, which the same store said earlier.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            blocks: self.blocks.saturating_sub(before.blocks),
            native: self.native.saturating_sub(before.native),
            relative: self.relative.saturating_sub(before.relative),
            region: self.region.saturating_sub(before.region),
            kept: self.kept.saturating_sub(before.kept),
            first_kept: if before.first_kept == 0 { self.first_kept } else { 0 },
            out_of_reach: self.out_of_reach.saturating_sub(before.out_of_reach),
            damaged: self.damaged.saturating_sub(before.damaged),
            holes: Vec::new(),
        }
    }

    /// Whether every pointer is right now, as far as its type tells.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.kept == 0 && self.out_of_reach == 0 && self.damaged == 0
    }
}

/// When puddles that are pending are rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Backend {
    /// When they are first touched: a signal handler hands the fault to a thread. A system call
    /// that is given an address in a puddle that no thread has touched fails with `EFAULT`, as it
    /// does with any puddle that is not mapped yet: read a byte of it first, or call
    /// [`crate::Store::ensure_mapped`].
    #[default]
    Signal,
    /// At the first touch, also by a system call: the kernel lets the thread wait (userfaultfd).
    /// System calls wait too, where the process may have that; if it may not, or there is no
    /// userfaultfd, as [`Backend::Signal`] ([`crate::Store::relocation_backend`] says which).
    Userfault,
    /// When their pool is opened, all of them, before the handle is given out.
    Eager,
}

/// How a session rewrites.
#[derive(Clone, Debug, Default)]
pub struct RelocationOptions {
    /// What finds pointers. `None`: pools with puddles that are pending are not opened.
    pub rewriter: Option<Arc<dyn Rewriter>>,
    /// When.
    pub backend: Backend,
}

/// How far [`crate::PoolHandle::finish_relocation`] has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelocationProgress {
    /// Puddles that are done.
    pub puddles: u64,
    /// All that were pending.
    pub puddles_total: u64,
    /// Bytes of those that are done.
    pub bytes: u64,
    /// Bytes of all.
    pub bytes_total: u64,
}
