//! Relocates pools: gives puddles other addresses, and has the pointers in them rewritten (PUD-8;
//! Puddles paper, 3.3 and 4.2).
//!
//! The store records where puddles went and which of them are pending; it has no code that finds
//! pointers. A [`Rewriter`], from the layer of heaps, changes an image of one puddle. Without one,
//! a pool with pending puddles is not opened.
//!
//! # What the catalog says
//!
//! One [`RelocationRecord`](cenote_layout::catalog::RelocationRecord) for puddles that moved
//! together: old ranges, new addresses, new numbers of pools. One
//! [`PendingRewriteRecord`](cenote_layout::catalog::PendingRewriteRecord) for each puddle that is
//! still to be rewritten. Both come in the batch that made the move: an import, a clone (import.rs)
//! or a new choice of addresses (moving.rs). Nothing in that batch depends on how many pointers
//! there are.
//!
//! **A pending puddle was never mapped since it moved.** So no log and no psync says anything about
//! it, and recovery need not look at it. It holds because mapping refuses a pending puddle, and all
//! code that makes one accessible rewrites it first (`pending_rewrite`, lazy_rewrite.rs).
//!
//! Module `pending_rewrite` says how one puddle is rewritten, and which code reads a pending one.

mod client;
pub(crate) mod import;
pub(crate) mod moving;
mod neighbours;
mod remote;
mod what_keeps;
pub(crate) mod window;

pub use import::Import;

pub use crate::kernel::interface::pool_blocks::{BlockRun, PoolBlocks, ReadPuddle};
pub use crate::kernel::interface::rewriter::{
    Backend, RelocationOptions, RelocationProgress, RewriteJob, Rewriter, Rewritten, TypeTable,
};
pub use crate::manifest::{
    ImportManifest, ImportPool, ImportPuddle, ImportSlot, Imported, ImportedPool, QuiescentPool,
};
