//! How puddles are read that no heap uses: in files, in an archive, or sealed.

use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::puddle::header_space;

/// Bytes that are read at a time.
const STEP: u64 = 1 << 20;

/// Reads what a puddle holds, from an offset on.
pub type ReadImage<'a, E> = &'a mut dyn FnMut(&PuddleRecord, u64, &mut [u8]) -> Result<(), E>;

/// Whether the puddles have nothing in their bodies, but for the page of the heap's header: a pool
/// in shadowed mode that was never psynced has no heap yet.
pub(crate) fn is_empty<E>(puddles: &[PuddleRecord], read: ReadImage<'_, E>) -> Result<bool, E> {
    let mut bytes = vec![0; STEP as usize];
    for puddle in puddles {
        let header = if puddle.index == 0 { PAGE_SIZE } else { 0 };
        let mut at = header_space(puddle.size) + header;
        while at < puddle.size {
            let bytes = &mut bytes[..STEP.min(puddle.size - at) as usize];
            read(puddle, at, bytes)?;
            if bytes.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += bytes.len() as u64;
        }
    }
    Ok(true)
}
