//! All pages of a sealed file, opened at once and sealed anew as another's, or as the same one's
//! after they were changed as a whole.
//!
//! A puddle that is sealed anew has a data key of its own ([`Protection::create_after`]). So
//! nothing is ever sealed twice under one key, also with crashes and copies in between. Plaintext
//! is in the memory that the caller gives, and in no file: what [`seal_all`] hands out is sealed.

use crate::crypto::tree::{Node, NodeSource};
use crate::crypto::{Change, PAGE_LEN, Protection, SealedPage, is_never_written};
use crate::view::{SealedError, Source};
use cenote_layout::PAGE_SIZE;
use cenote_layout::at_rest::{NodeId, PageSide, SIDE_LEN};
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, planted};
use std::io;
use zerocopy::{FromBytes, IntoBytes};

/// Pages that are read, and sealed, at once.
const BATCH: usize = 16;

/// Verifies and opens every page into `plain`, which is zeros and as long as the pages. Returns
/// which of them were ever written; the others are zeros.
///
/// # Errors
/// The first page that fails its check, or cannot be read.
pub fn open_all(
    what: &str,
    protection: &Protection,
    source: &Source,
    plain: &mut [u8],
) -> Result<Vec<bool>, SealedError> {
    let has_side = protection.mode().has_side();
    let (mut sealed, mut sides) = (vec![0u8; BATCH * PAGE_LEN], [0u8; BATCH * SIDE_LEN]);
    let mut written = Vec::with_capacity(protection.pages() as usize);
    for (batch, plain) in plain.chunks_mut(BATCH * PAGE_LEN).enumerate() {
        let (first, count) = ((batch * BATCH) as u64, plain.len() / PAGE_LEN);
        let (sealed, sides) = (&mut sealed[..count * PAGE_LEN], &mut sides[..count * SIDE_LEN]);
        source.read_pages(first, sealed)?;
        if has_side {
            source.read_sides(first, sides)?;
        }
        let pages = sealed.as_chunks::<PAGE_LEN>().0.iter().zip(sides.as_chunks::<SIDE_LEN>().0);
        for ((page, plain), (sealed, side)) in (first..).zip(plain.as_chunks_mut().0).zip(pages) {
            let side = has_side.then(|| PageSide::read_from_bytes(side).ok()).flatten();
            let opened = protection.open_page(page, sealed, side.as_ref(), source, plain);
            opened.map_err(|fault| SealedError::page(what, fault))?;
            written.push(!is_never_written(sealed, side.as_ref()));
        }
    }
    Ok(written)
}

/// Takes bytes, and where they belong.
pub type WriteAt<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), MediumError>;

/// A tree of which nothing was ever written.
struct Empty;

impl NodeSource for Empty {
    fn read_node(&self, _: NodeId, _: u64, bytes: &mut Node) -> io::Result<()> {
        bytes.fill(0);
        Ok(())
    }
}

/// Seals what `plain` holds by a protection under which nothing was sealed yet, and hands out all
/// that a file of zeros has to hold, as offsets in its data and bytes: pages, side data, tree and
/// header. Pages that are zeros and were never `written` stay so. When the file has its name, the
/// change is to be committed to the protection.
///
/// # Errors
/// What `write` says; no random bytes.
pub fn seal_all(
    what: &str,
    protection: &Protection,
    (plain, written): (&[u8], &[bool]),
    write: WriteAt<'_>,
) -> Result<Change, SealedError> {
    let (regions, span) = (protection.regions(), plain.len() as u64);
    let mut sealed = vec![0u8; BATCH * PAGE_LEN];
    let mut made: Vec<SealedPage> = Vec::new();
    for (batch, plain) in plain.chunks(BATCH * PAGE_LEN).enumerate() {
        let first = batch * BATCH;
        let sealed = &mut sealed[..plain.len()];
        let mut sides = [0u8; BATCH * SIDE_LEN];
        let before = made.len();
        for (i, plain) in plain.as_chunks::<PAGE_LEN>().0.iter().enumerate() {
            let to = &mut sealed.as_chunks_mut::<PAGE_LEN>().0[i];
            if !written.get(first + i).copied().unwrap_or(true)
                && plain.iter().all(|byte| *byte == 0)
            {
                to.fill(0);
                continue;
            }
            let page = protection.seal((first + i) as u64, plain, to);
            let page = page.map_err(|fault| SealedError::page(what, fault))?;
            if let Some(side) = &page.side {
                sides[i * SIDE_LEN..][..SIDE_LEN].copy_from_slice(side.as_bytes());
            }
            if planted(Bug::ResealedInPlain) {
                to.copy_from_slice(plain);
            }
            made.push(page);
        }
        if made.len() == before {
            continue;
        }
        write(first as u64 * PAGE_SIZE, sealed)?;
        if protection.mode().has_side() {
            let count = plain.len() / PAGE_LEN;
            write(span + regions.side_of(first as u64), &sides[..count * SIDE_LEN])?;
        }
    }
    let change = protection
        .prepare_anew(&made, &Empty)
        .map_err(|error| SealedError::at_rest(what, error))?;
    // Nodes that lie side by side are written at once.
    let mut nodes: Vec<_> = change.nodes.iter().collect();
    nodes.sort_unstable_by_key(|node| node.offset);
    let mut run: (u64, Vec<u8>) = (0, Vec::new());
    for node in nodes {
        if run.0 + run.1.len() as u64 != node.offset || run.1.len() >= BATCH * PAGE_LEN {
            flush(&mut run, span + regions.tree, write)?;
            run.0 = node.offset;
        }
        run.1.extend_from_slice(&node.bytes[..]);
    }
    flush(&mut run, span + regions.tree, write)?;
    write(span, &change.header.unwrap_or_else(|| protection.header()))?;
    Ok(change)
}

fn flush(run: &mut (u64, Vec<u8>), base: u64, write: WriteAt<'_>) -> Result<(), MediumError> {
    if !run.1.is_empty() {
        write(base + run.0, &run.1)?;
        run.1.clear();
    }
    Ok(())
}
