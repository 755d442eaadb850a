//! Where a thread was when it faulted, for a handler that says where a store came from.
//!
//! A handler has some KiB of stack, which is too little for an unwinder. So the stack of the thread
//! is searched for words that are return addresses of the program: they lie in its code, behind a
//! call. Frames that have ended may have left some, so a report may name functions that are not
//! under way any more. None that is under way, in the part that is searched, is left out, but those
//! of shared libraries.

use crate::bytes::copy_by_kernel;
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the stack that are searched, and that are read at a time.
const SEARCHED: usize = 64 << 10;
const STEP: usize = 256;

/// Bytes of the longest call.
const LONGEST_CALL: usize = 7;

/// Where the program's own file is loaded, and its code.
static BASE: AtomicUsize = AtomicUsize::new(0);
static CODE_FROM: AtomicUsize = AtomicUsize::new(0);
static CODE_TO: AtomicUsize = AtomicUsize::new(0);

/// Learns where the program's code lies. Not for signal handlers; [`calls`] finds nothing before.
pub fn learn_program() {
    if cfg!(miri) || CODE_TO.load(Ordering::Acquire) != 0 {
        return;
    }
    // SAFETY: `first` has the signature that is asked for, and needs no argument.
    unsafe { libc::dl_iterate_phdr(Some(first), core::ptr::null_mut()) };
}

/// The first object is the program.
unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader's own record, of which it says how many headers it has.
    let (info, headers) = unsafe {
        let info = &*info;
        (info, core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    let base = info.dlpi_addr as usize;
    let is_code = |header: &&libc::Elf64_Phdr| {
        let both = libc::PF_X | libc::PF_R;
        header.p_type == libc::PT_LOAD && header.p_flags & both == both
    };
    if let Some(code) = headers.iter().find(is_code) {
        let from = base + code.p_vaddr as usize;
        BASE.store(base, Ordering::Relaxed);
        CODE_FROM.store(from, Ordering::Relaxed);
        CODE_TO.store(from + code.p_memsz as usize, Ordering::Release);
    }
    1
}

fn code() -> Range<usize> {
    let to = CODE_TO.load(Ordering::Acquire);
    CODE_FROM.load(Ordering::Relaxed)..to
}

/// Whether a call ends before an address of the program's code.
fn is_behind_call(address: usize) -> bool {
    let code = code();
    if !code.contains(&address) || address - code.start < LONGEST_CALL {
        return false;
    }
    let at = core::ptr::with_exposed_provenance::<[u8; LONGEST_CALL]>(address - LONGEST_CALL);
    // SAFETY: bytes of the program's code, which is mapped for reading and does not change.
    let before = unsafe { at.read_unaligned() };
    // `call rel32`; or `call r/m64`, whose second byte has 2 in the middle, of 2 to 7 bytes.
    let indirect = |len: usize| {
        let at = before.len() - len;
        before[at] == 0xff && before[at + 1] >> 3 & 7 == 2
    };
    before[2] == 0xe8 || (2..=7).any(indirect)
}

/// Calls `found` with addresses in the program's file: of the instruction at `at`, and of returns
/// from the calls that led there, the innermost first, as the stack from `stack` on has them; at
/// most `most`. Async-signal-safe.
pub fn calls(at: usize, stack: usize, most: usize, found: &mut dyn FnMut(usize)) {
    let (base, mut left) = (BASE.load(Ordering::Relaxed), most);
    let mut tell = |address: usize| {
        if left != 0 {
            left -= 1;
            found(address - base);
        }
        left != 0
    };
    if code().contains(&at) {
        tell(at);
    }
    let stack = stack.next_multiple_of(size_of::<usize>());
    let mut part = [0u8; STEP];
    for from in (stack..stack.saturating_add(SEARCHED)).step_by(STEP) {
        // Beyond its end there may be nothing.
        if stack == 0 || copy_by_kernel(from, &mut part).is_err() {
            return;
        }
        for word in part.chunks_exact(size_of::<usize>()) {
            let word = usize::from_ne_bytes(word.try_into().unwrap_or_default());
            if is_behind_call(word) && !tell(word) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls itself so often, and then finds its own returns from here on.
    #[inline(never)]
    fn deeper(levels: u32, found: &mut Vec<usize>) -> usize {
        let here = 0usize;
        if levels == 0 {
            let at = core::hint::black_box(&raw const here).addr();
            calls(0, at, 64, &mut |address| found.push(address));
            return here;
        }
        let deep = deeper(levels - 1, found);
        core::hint::black_box(deep) + core::hint::black_box(&here)
    }

    #[test]
    fn each_call_that_is_under_way_is_found() {
        if cfg!(miri) || !cfg!(target_arch = "x86_64") {
            return;
        }
        learn_program();
        let mut found = Vec::new();
        deeper(9, &mut found);
        let most = found.iter().map(|at| found.iter().filter(|other| *other == at).count()).max();
        assert!(most >= Some(8), "the same call, again and again: {found:x?}");
        let mut few = 0;
        calls(0, (&raw const few).addr(), 1, &mut |_| few += 1);
        assert_eq!(few, 1);
        calls(0, 0, 9, &mut |_| few += 1);
        assert_eq!(few, 1, "there is no stack");
    }
}
