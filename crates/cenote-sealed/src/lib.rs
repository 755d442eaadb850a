//! Memory whose file is sealed: pages that appear, verified and decrypted, when they are first
//! touched (PMO-7, PMO-8, PMO-9), and what a psync of them puts into a record. Objects that are
//! protected at rest use it, and the puddles of pools that are.
//!
//! A *sealed file* holds, from some offset on, pages as [`cenote_atrest`] seals them, and behind
//! them the regions of the protection: header, side data, tree. [`Source`] reads it, with what is
//! committed and not yet written laid over it; [`View`] is the memory; [`seal`] is what a psync
//! does to the pages that were stored into; [`verify`] looks at every page.
//!
//! # A psync of sealed pages
//!
//! What a record holds differs from that of plain pages: pages are sealed in the copy that is taken
//! of them, and the record has the sealed pages' lines, their side data, the nodes of the tree
//! above them, and the header with the new root, all as lines of one file. So **the sync of the
//! journal that commits a psync commits all of it**, in the same single flush of the device, and
//! recovery needs no key: it copies lines.
//!
//! 1. Pages that were stored into are copied and sealed. With XTS, or without encryption, lines are
//!    compared with the primary: what is equal is sealed to what is there. In authenticated mode a
//!    page has a new nonce each time, and is written whole.
//! 2. [`cenote_atrest::Protection::prepare`] works out nodes and header. It changes nothing, so
//!    that a psync that fails leaves nothing behind.
//! 3. The record is appended, and made durable.
//! 4. [`cenote_atrest::Protection::commit`]: from now on pages are checked against the new root.
//!    Before that they are checked against the old one, by nodes that are still those of the
//!    primary.
//! 5. The record is applied, later. What is read from the primary until then is read with the
//!    record laid over it.
//!
//! Plaintext is in this process's memory and nowhere else: sealed is what the copy becomes before
//! it is compared, journalled or written.

mod anew;
mod error;
mod fault_worker;
mod sealing;
mod source;
mod verify;
mod view;

pub use anew::{WriteAt, open_all, seal_all};
pub use error::SealedError;
pub use sealing::{rekey, seal, seal_header, settle};
pub use source::{Patches, Source, check_listed, open, open_as, rooted};
pub use verify::{Verified, check_one, verify, verify_all};
pub use view::View;
