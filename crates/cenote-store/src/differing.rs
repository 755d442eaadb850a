//! Finds the pages in which a shadow and its primary differ.

use cenote_layout::PAGE_SIZE;
use cenote_layout::puddle::STAMP_AT;
use cenote_medium::{FileHandle, MediumError};

/// Bytes that are compared at once.
const STEP: u64 = 64 << 10;

/// Calls `f` with number and contents, in the primary, of every page in which the two differ.
pub(crate) fn compare(
    shadow: &FileHandle,
    primary: &FileHandle,
    len: u64,
    mut f: impl FnMut(u64, &[u8]) -> Result<(), MediumError>,
) -> Result<(), MediumError> {
    let mut ours = vec![0; STEP as usize];
    let mut theirs = vec![0; STEP as usize];
    let mut at = 0;
    while at < len {
        let step = (len - at).min(STEP) as usize;
        shadow.read_exact_at(at, &mut ours[..step])?;
        primary.read_exact_at(at, &mut theirs[..step])?;
        if at == 0 {
            // Stamps differ as they may.
            let stamp = STAMP_AT as usize..PAGE_SIZE as usize;
            ours[stamp.clone()].copy_from_slice(&theirs[stamp]);
        }
        if ours[..step] != theirs[..step] {
            let pages = ours[..step]
                .chunks(PAGE_SIZE as usize)
                .zip(theirs[..step].chunks(PAGE_SIZE as usize));
            for (page, (_, theirs)) in
                (at / PAGE_SIZE..).zip(pages).filter(|(_, (ours, theirs))| ours != theirs)
            {
                f(page, theirs)?;
            }
        }
        at += step as u64;
    }
    Ok(())
}
