//! The job of rewriting a pending puddle: the steps, and its files ([`crate::relocate`]).

use crate::kernel::interface::rewriter::RewriteJob;
use cenote_atrest::tree::Digest;
use cenote_atrest::{Keyring, Mode};
use cenote_journal::Journal;
use cenote_layout::catalog::PendingRewriteRecord;
use cenote_layout::id::Uuid;
use std::sync::Arc;

/// What is to be done to a puddle, and to which files.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: RewriteJob,
    pub(crate) pending: PendingRewriteRecord,
    /// It has a primary as well.
    pub(crate) shadowed: bool,
    /// Of a protected pool: how it is sealed.
    pub(crate) sealing: Option<Sealing>,
    /// A client that had the pool before it moved may have its file mapped still, or a descriptor
    /// of it, and could cut it short or store into it meanwhile: never in its file then. A new
    /// file is the store's alone.
    pub(crate) hosting: bool,
}

/// What it takes to open a puddle that is pending, and to seal it anew.
#[derive(Debug)]
pub(crate) struct Sealing {
    /// The pool's name, for messages.
    pub(crate) pool: String,
    pub(crate) mode: Mode,
    /// Under which identity the file is sealed.
    pub(crate) identity: Uuid,
    pub(crate) keys: Arc<PoolKeys>,
    pub(crate) journal: Option<Arc<Journal>>,
    /// What stands for it in its pool's list, now and after it is sealed anew.
    pub(crate) entry: Option<Digest>,
}

/// The keys of all puddles of a pool but the root; none in modes without keys.
#[derive(Debug, Default)]
pub(crate) struct PoolKeys {
    /// Of those that are sealed as their own.
    pub(crate) own: Option<Keyring>,
    /// Of those that are still sealed as what they were copied from, or as before they moved.
    pub(crate) before: Option<Keyring>,
}

/// Mode and keys of an open protected pool, for new puddles and for further openers.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) mode: Mode,
    pub(crate) keys: Arc<PoolKeys>,
}
