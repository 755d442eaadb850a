//! Memory whose file is sealed (PMO-7, PMO-8, PMO-9): pages appear, verified and decrypted, when
//! they are first touched, and a psync seals them into a record. Objects and pools that are
//! protected at rest use it.
//!
//! A *sealed file* holds, from some offset on, pages as a [`Protection`](crate::Protection) seals
//! them, and behind them the regions of the protection: header, side data, tree.
//!
//! | part | does |
//! | --- | --- |
//! | [`Source`] | reads the file, with what is committed and not yet written laid over it |
//! | [`View`] | is the memory |
//! | [`seal`] | seals the pages that were stored into, for a psync |
//! | [`verify`] | checks every page |
//!
//! # A psync of sealed pages
//!
//! The record holds the lines of the sealed pages, their side data, the nodes of the tree above
//! them, and the header with the new root, all as lines of one file. So **the sync of the journal
//! that commits a psync commits all of it**, in the same single flush of the device. Recovery needs
//! no key: it copies lines.
//!
//! 1. Pages that were stored into are copied, and sealed in the copy. With XTS, or without
//!    encryption, lines are compared with the primary: equal lines are sealed to equal bytes. In
//!    authenticated mode a page has a new nonce each time, and is written whole.
//! 2. [`crate::Protection::prepare`] computes nodes and header. It changes nothing, so a psync that
//!    fails leaves nothing behind.
//! 3. The record is appended, and made durable.
//! 4. [`crate::Protection::commit`]: from now on pages are checked against the new root. Before
//!    that they are checked against the old one, by nodes that are still those of the primary.
//! 5. The record is applied, later. Until then, reads of the primary lay the record over it.
//!
//! Plaintext is in this process's memory only: the copy is sealed before it is compared, journalled
//! or written.

mod anew;
mod error;
mod fault_worker;
mod memory;
mod sealing;
mod source;
mod verify;

pub use anew::{WriteAt, open_all, seal_all};
pub use error::SealedError;
pub use memory::View;
pub use sealing::{rekey, seal, seal_header, settle};
pub use source::{Patches, Source, check_listed, open, open_as, rooted};
pub use verify::{Verified, check_one, verify, verify_all};
