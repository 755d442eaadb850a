//! Rewrites a puddle in its own file, where doing it twice is as doing it once.
//!
//! A second file of a puddle costs space for all of it and the time to take that space, however few
//! words change. It is needed where a crash can leave some words new and others old, and no reader
//! can tell which. But where no puddle came to an address at which one of those that moved has
//! been, a native pointer itself tells: one that leads to an old place is old, and one that leads
//! to a new place stays as it is when it is sent through the moves again. Then the puddle needs no
//! log and no copy. Invariant: nothing maps the puddle before state 4. States:
//!
//! 1. *Old*: the catalog says pending, the header has the old address and generation.
//! 2. Words of the file are changed, each by one store of 8 bytes, and synced. The header is as it
//!    was, so the puddle is pending and not mapped: the next thread that touches it rewrites it
//!    again, in this way or by a new file, with the same result.
//! 3. The header is written, with the new address and generation, and **its sync commits**.
//! 4. *New*, as with a new file.
//!
//! A header of which a loss of power left some words new and others old counts as old
//! ([`is_begun`]): which two headers it can be a mixture of is known.
//!
//! Not in this way: what the rewriter does not call repeatable (off-holders, numbers of pools,
//! something that came to where something else was); files in shadowed mode, of which there are
//! two; files that share blocks, because they are to have their own before they are mapped; files
//! of a store that a daemon keeps, because a client that had the pool before it moved may have the
//! file still, and cut it short under the mapping.

use super::failed::Failed;
use super::replace::Image;
use crate::kernel::interface::rewriter::{RewriteJob, Rewriter};
use cenote_layout::PAGE_SIZE;
use cenote_layout::header::read;
use cenote_layout::puddle::{COMPAT_SHARES_BLOCKS, PuddleHeader};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError, OwnedMedium};
use std::panic::{AssertUnwindSafe, catch_unwind};
use zerocopy::IntoBytes;

/// A puddle's file that is about to be rewritten.
#[derive(Debug)]
pub(crate) struct InPlace<'a> {
    file: &'a FileHandle,
    image: Image,
    /// Where words may change.
    stretches: Vec<(u64, u64)>,
}

impl<'a> InPlace<'a> {
    /// Looks whether it can be done so. `None`: it cannot, and nothing has changed.
    pub(crate) fn begin(
        file: &'a FileHandle,
        job: &RewriteJob,
        rewriter: &dyn Rewriter,
    ) -> Result<Option<Self>, Failed> {
        let len = job.puddle.size;
        if file.len_bytes()? < len {
            // The other way says so.
            return Ok(None);
        }
        let mut image = Image::itself(file, len)?;
        let described = rewriter.described(job).max(PAGE_SIZE).min(len);
        if !image.can_be_read(file, 0, described)? {
            return Ok(None);
        }
        let header = read::<PuddleHeader>(image.bytes(), true);
        let shares = |header: &PuddleHeader| header.prefix.compat & COMPAT_SHARES_BLOCKS != 0;
        if header.as_ref().is_ok_and(shares) && !planted(Bug::SharedInPlace) {
            return Ok(None);
        }
        let asked = catch_unwind(AssertUnwindSafe(|| rewriter.repeatable(image.bytes(), job)));
        let Some(mut stretches) = asked.map_err(|_| Failed::Panicked)? else { return Ok(None) };
        stretches.retain_mut(|(from, to)| {
            *to = len.min(*to);
            from < to
        });
        // Stores cannot find the disk full then (holes have no space), and loads no page that
        // cannot be read.
        let mut at = described;
        for stretch in &stretches {
            if !image.can_be_stored(*stretch) || !image.can_be_read(file, at, stretch.0)? {
                return Ok(None);
            }
            at = at.max(stretch.1);
        }
        if !image.can_be_read(file, at, len)? {
            return Ok(None);
        }
        Ok(Some(Self { file, image, stretches }))
    }

    /// What is to be changed, in the stretches that the rewriter has named.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.image.bytes()
    }

    /// Steps 2 and 3, when the words are changed. The parts in `holes` need no space.
    pub(crate) fn finish(
        self,
        medium: &OwnedMedium,
        header: &PuddleHeader,
        holes: &[(u64, u64)],
    ) -> Result<(), MediumError> {
        let Self { file, mut image, stretches } = self;
        let early = planted(Bug::InPlaceHeaderEarly);
        if early {
            file.write_at(0, header.as_bytes())?;
        }
        if !image.in_file {
            for (from, to) in stretches {
                file.write_at(from, &image.bytes()[from as usize..to as usize])?;
            }
        }
        // Else words that are old stay so, behind a header that says new.
        image.intact(file.name())?;
        drop(image);
        for (offset, len) in holes {
            // SAFETY: a puddle that is pending is not mapped, and no value lies in these parts.
            let _ = unsafe { medium.release(file.name(), *offset, *len) };
        }
        if early {
            return file.sync();
        }
        file.sync()?;
        file.write_at(0, header.as_bytes())?;
        if planted(Bug::InPlaceNotDurable) { Ok(()) } else { file.sync() }
    }
}

/// Whether a crash can have left this page while the second of these headers was written over the
/// first: each word is that of one of them.
pub(crate) fn is_begun(page: &[u8], old: &PuddleHeader, new: &PuddleHeader) -> bool {
    let words = page
        .chunks_exact(8)
        .zip(old.as_bytes().chunks_exact(8))
        .zip(new.as_bytes().chunks_exact(8));
    page.len() as u64 == PAGE_SIZE
        && words.into_iter().all(|((word, old), new)| word == old || word == new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::puddles::puddle::make_header_of;
    use cenote_layout::catalog::PuddleRecord;
    use cenote_layout::id::{PoolId, Uuid};
    use cenote_layout::puddle::Role;

    #[test]
    fn every_mixture_of_two_headers_is_one_that_was_begun_and_nothing_else_is() {
        let record = |addr| PuddleRecord {
            uuid: Uuid([7; 16]),
            pool: PoolId(3),
            role: Role::Heap,
            index: 2,
            addr,
            size: 0x20_0000,
        };
        let header = |addr, generation| make_header_of(&record(addr), Uuid([9; 16]), generation);
        let (old, new) = (header(0x100_0000_0000, 1), header(0x200_0000_0000, 2));
        let differ: Vec<usize> = (0..old.as_bytes().len() / 8)
            .filter(|word| old.as_bytes()[word * 8..][..8] != new.as_bytes()[word * 8..][..8])
            .collect();
        assert_eq!(differ.len(), 3, "checksum, address, generation");
        // The stamp is no part of the header, and may be anything.
        let with_stamp = |header: &PuddleHeader| [header.as_bytes(), &[0x5A; 8]].concat();
        for mixture in 0..8 {
            let mut page = with_stamp(&old);
            for (_, word) in differ.iter().enumerate().filter(|(bit, _)| mixture >> bit & 1 == 1) {
                page[word * 8..][..8].copy_from_slice(&new.as_bytes()[word * 8..][..8]);
            }
            assert!(is_begun(&page, &old, &new), "{mixture:#b}");
            for at in (0..old.as_bytes().len()).step_by(3) {
                page[at] ^= 0x40;
                assert!(!is_begun(&page, &old, &new), "{mixture:#b}, byte {at}");
                page[at] ^= 0x40;
            }
        }
        assert!(!is_begun(old.as_bytes(), &old, &new), "cut short");
    }
}
