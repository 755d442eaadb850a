//! The job of rewriting a pending puddle: the steps, and its files ([`crate::relocate`]).

use crate::kernel::interface::rewriter::RewriteJob;
use crate::kernel::puddles::opaque_part::OpaquePart;
use cenote_layout::catalog::PendingRewriteRecord;

/// What is to be done to a puddle, and to which files.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: RewriteJob,
    pub(crate) pending: PendingRewriteRecord,
    /// It has a primary as well.
    pub(crate) shadowed: bool,
    /// What else the rewriter has to know of the puddle.
    pub(crate) part: OpaquePart,
    /// A client that had the pool before it moved may have its file mapped still, or a descriptor
    /// of it, and could cut it short or store into it meanwhile: never in its file then. A new
    /// file is the store's alone.
    pub(crate) hosting: bool,
}
