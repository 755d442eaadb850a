//! Location independence (PUD-8; Puddles paper, 3.3 and 4.2): finds the pointers of a puddle that
//! has moved, by pointer maps alone, and makes them right.
//!
//! | part | decides |
//! | --- | --- |
//! | `cenote_store::relocate` | where puddles went, and which of them are pending; how a |
//! | | rewritten puddle replaces the old one so that every crash leaves one of the two |
//! | this crate | which words are pointers, and their new values |
//!
//! The work is a function over the bytes of one puddle, the store's types and the table of moves
//! ([`image`]); where blocks and roots lie, the heap says ([`cenote_heap::PoolImages`]), by the
//! puddle or by a list of the pool's blocks. No layout of a heap is known here. The store calls it,
//! as [`PointerRewriter`], when a thread touches a pending puddle. No application's code is
//! involved.
//! `OpenOptions::relocation` has the rewriter; crate `cenote` sets it.
//!
//! [`cenote_store::Store::begin_import`] takes foreign puddles in,
//! [`cenote_store::Store::clone_pool`] copies inside a store, and
//! [`cenote_store::Store::randomize_pool`] gives new addresses.
//!
//! # What is rewritten
//!
//! * **Native pointers**, with or without tag bits, wherever a type's pointer map has one: in
//!   arrays and in the variant of an enum that is there; to the start of a block, into one, one
//!   past its end; to any pool of the same import. One to a pool that did not move stays.
//! * **Off-holders** whose place and target moved by different distances. The others are right
//!   already.
//! * **Region pointers** and **heap pointers** to pools that have another number.
//! * **Roots** of the pool, the numbered ones, through which the named ones are found.
//!
//! # What cannot be
//!
//! Words that may be pointers or numbers, which only a program can tell: in blocks without a type,
//! and where a type says that a word *may* be a pointer (`PointerKind::PERHAPS`, for types with a
//! filter function). To change a number would corrupt data, so these words stay. Those that look
//! like pointers to what moved are counted
//! ([`Rewritten::kept`](cenote_store::relocate::Rewritten)). Use a pool with such words where a
//! program corrects them, or import it where its addresses are free.

pub mod archiving;
pub mod image;

use cenote_heap::PoolImages;
use cenote_layout::catalog::{HeapKind, PuddleRecord};
use cenote_store::StoreError;
use cenote_store::relocate::{
    Backend, PoolBlocks, ReadPuddle, RelocationOptions, RewriteJob, Rewriter, Rewritten,
};
use std::sync::Arc;

pub use cenote_store::relocate::{
    Import, ImportManifest, ImportPool, ImportPuddle, ImportSlot, Imported, ImportedPool,
    QuiescentPool,
};

/// Finds pointers by the store's pointer maps: what [`RelocationOptions::rewriter`] is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PointerRewriter;

// SAFETY: `image` changes the words that the types' pointer maps name, by the job's moves, and no
// others.
unsafe impl Rewriter for PointerRewriter {
    fn rewrite(&self, image: &mut [u8], job: &RewriteJob) -> Result<Rewritten, String> {
        image::rewrite(image, job)
    }

    fn repeatable(&self, image: &[u8], job: &RewriteJob) -> Option<Vec<(u64, u64)>> {
        image::repeatable(image, job)
    }

    fn described(&self, job: &RewriteJob) -> u64 {
        PoolImages::described(job.heap, &job.puddle)
    }

    fn blocks(
        &self,
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadPuddle<'_>,
    ) -> Result<Result<PoolBlocks, String>, StoreError> {
        let found = PoolImages::blocks(heap, puddles, read)?;
        Ok(found.map(Option::unwrap_or_default))
    }

    fn metadata_puddles(
        &self,
        heap: HeapKind,
        puddles: &[PuddleRecord],
        read: ReadPuddle<'_>,
    ) -> Result<Vec<u32>, StoreError> {
        PoolImages::metadata_puddles(heap, puddles, read)
    }
}

/// Options of a session that rewrites puddles when `backend` says.
#[must_use]
pub fn options(backend: Backend) -> RelocationOptions {
    RelocationOptions { rewriter: Some(Arc::new(PointerRewriter)), backend }
}
