//! Seals the pages of a view for a psync; the crate's front page has the order.
//!
//! **Rekey** wraps the data key anew, and puts the header's lines into the journal as a record of
//! its own. Written in place it would be undone by recovery, which may apply an older record with
//! the old header. Its cost does not depend on the size.

use crate::crypto::{Change, HEADER_LEN, Keyring, PAGE_LEN, Protection, SealedPage};
use crate::view::{SealedError, Source, View};
use cenote_journal::{Changes, Pages, Primary};
use cenote_layout::PAGE_SIZE;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::secret::wipe_bytes;
use zerocopy::IntoBytes;

/// Pages that are sealed at once.
const BATCH: usize = 16;
/// Nodes of the tree that are remembered between psyncs: 32 MiB.
const REMEMBERED_MAX: usize = 1 << 16;

/// Copies of pages before they are sealed. A copy that is not sealed is wiped.
struct Scratch(Vec<u8>);

impl Drop for Scratch {
    fn drop(&mut self) {
        wipe_bytes(&mut self.0);
    }
}

/// Seals pages, whose plain contents `copy_out` gives from an offset on, and adds what a record has
/// to hold to `changes`, as of primary number `object`: all but the header ([`seal_header`]).
/// `None`: nothing differs.
///
/// # Errors
/// The primary or the tree cannot be read, or the tree is damaged; no random bytes. The added
/// changes are incomplete.
pub fn seal(
    view: &View,
    object: u32,
    pages: &[Pages],
    copy_out: &mut dyn FnMut(u64, &mut [u8]),
    primary: &Primary<'_>,
    changes: &mut Changes,
) -> Result<Option<Change>, SealedError> {
    let (protection, source, what) = (view.protection(), view.source(), view.what());
    let mut sealed: Vec<SealedPage> = Vec::new();
    let mut scratch = Scratch(vec![0u8; BATCH * PAGE_LEN]);
    for range in pages {
        let mut at = range.start;
        while at < range.end {
            let count = (range.end - at).min(BATCH as u64);
            let copy = &mut scratch.0[..count as usize * PAGE_LEN];
            copy_out(at * PAGE_SIZE, copy);
            let mut batch = Vec::with_capacity(BATCH);
            for (page, bytes) in (at..).zip(copy.as_chunks_mut::<PAGE_LEN>().0) {
                let made = if planted(Bug::PlainJournalled) {
                    let plain = *bytes;
                    protection.seal(page, &plain, &mut [0; PAGE_LEN])
                } else {
                    protection.seal_in_place(page, bytes)
                };
                batch.push(made.map_err(|fault| SealedError::page(what, fault))?);
            }
            if protection.mode().has_side() {
                (at..)
                    .zip(copy.chunks_exact(PAGE_LEN))
                    .for_each(|(page, bytes)| changes.add_whole_page(object, page, bytes));
                sealed.append(&mut batch);
            } else {
                changes.add_copy_noting(object, at, copy, primary, |page| {
                    sealed.push(batch[(page - at) as usize]);
                })?;
            }
            at += count;
        }
    }
    // What was copied is sealed by now.
    scratch.0.clear();
    if sealed.is_empty() {
        return Ok(None);
    }
    for page in &sealed {
        if let Some(side) = &page.side {
            changes.add_lines(
                object,
                source.line(source.regions.side_of(page.page)),
                side.as_bytes(),
            );
        }
    }
    let change =
        protection.prepare(&sealed, source).map_err(|error| SealedError::at_rest(what, error))?;
    for node in &change.nodes {
        changes.add_lines(object, source.line(source.regions.tree + node.offset), &node.bytes[..]);
    }
    Ok(Some(change))
}

/// Adds the header of a change to what a record has to hold, as of primary number `object`: the
/// last step, because a pool's root puddle has the others' headers in its own.
///
/// # Errors
/// None but a planted one.
pub fn seal_header(
    view: &View,
    object: u32,
    change: &Change,
    changes: &mut Changes,
) -> Result<(), SealedError> {
    let (source, Some(header)) = (view.source(), &change.header) else { return Ok(()) };
    if planted(Bug::AtRestHeaderApart) {
        source.file.write_at(source.data_at + source.span, header)?;
    } else {
        changes.add_lines(object, source.line(0), header);
    }
    Ok(())
}

/// After a change was committed and applied: forgets what can be read again.
pub fn settle(view: &View) {
    if let Some(tree) = view.protection().tree()
        && tree.remembered() > REMEMBERED_MAX
    {
        tree.trim();
    }
}

/// The record that puts sealed pages under another key: the header with their data key, wrapped
/// anew. As of primary number 0.
///
/// # Errors
/// There is no key to be changed; no random bytes.
pub fn rekey(
    what: &str,
    protection: &Protection,
    source: &Source,
    new: &Keyring,
) -> Result<(Changes, [u8; HEADER_LEN]), SealedError> {
    let header = protection.rekey(new).map_err(|error| SealedError::at_rest(what, error))?;
    let mut changes = Changes::default();
    changes.add_lines(0, source.line(0), &header);
    Ok((changes, header))
}
