//! Copies bytes of blocks before they are judged: padding has the value that memory has, and a page
//! that cannot be had ends no program.

use cenote_sys::peek;

/// Makes `copy` the `len` bytes from `addr` on, which lie in an allocated block; padding has the
/// value that memory has. `false`: a page of them cannot be had.
pub(crate) fn copy_into(addr: u64, len: u64, copy: &mut Vec<u8>) -> bool {
    copy.clear();
    let first = addr & !7;
    // A superblock, or a run of them, is made of whole words: so the last one is in it, too.
    for at in (first..addr + len).step_by(8) {
        let Some(word) = load(at) else { return false };
        copy.extend_from_slice(&word.to_le_bytes());
    }
    copy.drain(..(addr - first) as usize);
    copy.truncate(len as usize);
    true
}

/// The word at `addr`, in a block, or in a header before one. It may be a pointer, padding, or half
/// of one value and half of the next. `None`: its page cannot be had.
#[inline(always)]
pub(crate) fn load(addr: u64) -> Option<u64> {
    // SAFETY: the word lies in a block or header (the caller saw to that), which are mapped.
    unsafe { peek::word(addr as usize) }
}
