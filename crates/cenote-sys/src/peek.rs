//! Loads of mapped memory that may fail: a page that cannot be had is an answer, and no signal.
//!
//! A load from a mapping has no way to fail. Where a file was cut short, a disk cannot be read, or
//! a sealed page does not pass its check, the process gets SIGBUS. The library reads what media may
//! have damaged through this module. A load here is one instruction behind a *tag*, a no-operation
//! that the fault handler knows. When it faults and no resolver of [`crate::fault`] makes the
//! access possible, the handler
//!
//! 1. finds the tag before the instruction, which says how long the instruction is;
//! 2. sets the register that says "failed", and goes on behind the instruction.
//!
//! Nothing is mapped in the place of the page: no thread ever reads bytes that the page does not
//! hold. A resolver asks [`crate::fault::is_peek`], to leave such a page as it is.
//!
//! # What it answers for
//!
//! Pages at the moment of the load. A page that was had once is still there later, unless another
//! program cuts the file short meanwhile, or the kernel drops the page and cannot read it again:
//! the next plain load is SIGBUS then, as any load from a mapping.
//!
//! Only ranges that are registered with [`crate::fault`] are covered. On other processors than
//! x86-64, and under Miri, these are plain loads.
//!
//! # Safety argument
//!
//! The handler changes a thread's registers only if the instruction at which the thread stands is
//! behind a tag. Tags stand in the code of this module's functions alone, each before a load whose
//! "failed" is in `ecx`; the block of assembly says that it writes `ecx`. A fault that is no load
//! of this module's meets eight bytes of a tag before its instruction only if these are the
//! program's own no-operation with this number in it.

use crate::memory;
use core::ops::Range;

/// The first bytes of a tag: a no-operation of eight bytes, whose operand is the length of the next
/// instruction and this number.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TAG: [u8; 7] = [0x0f, 0x1f, 0x84, 0x00, 0x67, 0x3c, 0x9e];

/// A tagged load: the instruction, its outputs, and whether it failed.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! tagged {
    ($load:literal, $at:expr, $value:ident: $class:ident) => {{
        let failed: u32;
        core::arch::asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00, 0x67, 0x3c, 0x9e, 3f - 2f",
            concat!("2: ", $load),
            "3:",
            inout("ecx") 0u32 => failed,
            at = in(reg) $at,
            value = out($class) $value,
            options(nostack, preserves_flags, readonly)
        );
        failed == 0
    }};
}

/// Whether the byte at `addr` can be read.
///
/// # Safety
/// The address lies in a mapping or a reservation of the caller's.
#[inline(always)]
#[must_use]
pub unsafe fn touch(addr: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let _value: u32;
        // SAFETY: a load whose value is used by nothing; a fault is answered by the handler.
        unsafe { tagged!("movzx {value:e}, byte ptr [{at}]", addr, _value: reg) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: mapped by the caller's promise; here a fault is a signal.
        let _ = unsafe {
            let at = core::ptr::with_exposed_provenance::<core::mem::MaybeUninit<u8>>(addr);
            at.read_volatile()
        };
        true
    }
}

/// The 8 bytes at `addr`, whatever they are; `None` if they cannot be read.
///
/// # Safety
/// As [`touch`]. A concurrent store is one of a whole aligned word, and so is this load then.
#[inline(always)]
#[must_use]
pub unsafe fn word(addr: usize) -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let word: u64;
        // SAFETY: one load, which changes nothing; a fault is answered by the handler.
        let had = unsafe { tagged!("mov {value}, qword ptr [{at}]", addr, word: reg) };
        had.then_some(word)
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: handed on to the caller.
    Some(unsafe { crate::bytes::load_word(core::ptr::with_exposed_provenance(addr)) })
}

/// The first address of a range from which a page cannot be read; `None`: all of it can.
///
/// # Safety
/// As [`touch`], for the range.
#[must_use]
pub unsafe fn lost(range: Range<usize>) -> Option<usize> {
    let page = memory::page_bytes();
    let mut at = range.start;
    while at < range.end {
        // SAFETY: handed on to the caller.
        if !unsafe { touch(at) } {
            return Some(at);
        }
        at = (at & !(page - 1)).checked_add(page)?;
    }
    None
}

/// Whether a value can be read: as [`lost`], for what mostly lies in one page.
///
/// # Safety
/// As [`touch`], for the `len` bytes.
#[inline(always)]
#[must_use]
pub unsafe fn is_readable(addr: usize, len: usize) -> bool {
    /// Pages of no machine are smaller.
    const PAGE: usize = 4096;
    if len == 0 {
        return true;
    }
    // SAFETY: handed on to the caller.
    unsafe { touch(addr) && (addr % PAGE + len <= PAGE || lost(addr..addr.saturating_add(len)).is_none()) }
}

/// Whether the thread whose context this is stands at a load of this module, which has faulted at
/// `addr`.
///
/// # Safety
/// The signal handler of a fault calls it, with the context that it was given.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn is_at(context: *mut core::ffi::c_void, addr: usize) -> bool {
    // SAFETY: handed on to the caller.
    let instruction = unsafe { instruction_at(context) };
    // Else it is the instruction itself that cannot be read. SAFETY: handed on to the caller.
    instruction != addr && unsafe { length_at(context) }.is_some()
}

/// Goes on behind the load at which the thread stands, and says there that it failed.
///
/// # Safety
/// As [`is_at`]. The handler returns then.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn give_up(context: *mut core::ffi::c_void) -> bool {
    // SAFETY: handed on to the caller.
    let Some(length) = (unsafe { length_at(context) }) else { return false };
    // SAFETY: the kernel passes a valid context to the handler, which is this thread's alone.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_RCX as usize] = 1;
    registers[libc::REG_RIP as usize] += length;
    true
}

/// Where the thread stands.
///
/// # Safety
/// As [`is_at`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn instruction_at(context: *mut core::ffi::c_void) -> usize {
    // SAFETY: the kernel passes a valid context to the handler.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_RIP as usize].cast_unsigned() as usize
}

/// Bytes of the tagged load at which the thread stands.
///
/// # Safety
/// As [`is_at`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn length_at(context: *mut core::ffi::c_void) -> Option<i64> {
    // SAFETY: handed on to the caller.
    let at = unsafe { instruction_at(context) };
    // An instruction at the start of a page has no tag before it that is surely mapped.
    let mut tag = [0u8; 8];
    let start = at.checked_sub(tag.len())?;
    if start / 4096 != at / 4096 {
        crate::bytes::copy_by_kernel(start, &mut tag).ok()?;
    } else {
        // SAFETY: code of the page in which the thread executes. Code can be read, unless a program
        // has made it so that it cannot; such a program has no code of this module there.
        tag = unsafe { core::ptr::with_exposed_provenance::<[u8; 8]>(start).read_volatile() };
    }
    let length = tag[7];
    (tag[..7] == TAG && (1..16).contains(&length)).then_some(i64::from(length))
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn is_at(_: *mut core::ffi::c_void, _: usize) -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) unsafe fn give_up(_: *mut core::ffi::c_void) -> bool {
    false
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    use crate::fault;
    use crate::memory::{Access, Sharing};
    use core::ptr;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::os::fd::AsFd;

    const PAGE: usize = 4096;
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    unsafe fn nothing(_: *const (), addr: usize) -> bool {
        assert!(fault::is_peek());
        ASKED.store(addr, Ordering::Relaxed);
        false
    }

    /// Four pages of a file of six, of which the first is there: the others are behind its end, and
    /// the last is not accessible.
    fn cut_short(test: impl FnOnce(usize)) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(PAGE as u64).expect("a length");
        let base = memory::reserve_anywhere(5 * PAGE, PAGE).expect("address space");
        // SAFETY: our own reservation.
        unsafe { memory::map_file(file.as_fd(), base, 4 * PAGE, Access::ReadWrite, Sharing::Shared) }
            .expect("map");
        // SAFETY: the resolver does nothing but note.
        let registered =
            unsafe { fault::register(base, 5 * PAGE, nothing, ptr::null()) }.expect("registered");
        test(base);
        drop(registered);
        // SAFETY: our own reservation.
        unsafe { memory::release(base, 5 * PAGE) }.expect("release");
    }

    #[test]
    fn a_page_that_cannot_be_had_is_an_answer_for_every_thread() {
        cut_short(|base| {
            // SAFETY: our own mapping.
            unsafe {
                assert!(touch(base + 9));
                let at = ptr::with_exposed_provenance_mut::<u64>(base + 16);
                at.write(0x0123_4567_89ab_cdef);
                assert_eq!(word(base + 16), Some(0x0123_4567_89ab_cdef));
                assert_eq!(word(base + 17), Some(0x0001_2345_6789_abcd));
                // A load that begins in a page that is there and ends in one that is not.
                assert_eq!(word(base + PAGE - 4), None);
                assert!(is_readable(base + 100, PAGE - 100));
                assert!(!is_readable(base + 100, PAGE - 99));
                assert_eq!(lost(base..base + PAGE), None);
                assert_eq!(lost(base + 5..base + 3 * PAGE), Some(base + PAGE));
            }
            std::thread::scope(|scope| {
                for thread in 0..4usize {
                    scope.spawn(move || {
                        for round in 0..500usize {
                            let page = 1 + (round + thread) % 4;
                            // SAFETY: our own mapping and reservation.
                            let read = unsafe { (touch(base + page * PAGE), word(base + page * PAGE + 8)) };
                            assert_eq!(read, (false, None), "page {page}");
                            // SAFETY: our own mapping.
                            assert!(unsafe { touch(base + round) });
                        }
                    });
                }
            });
            assert!(ASKED.load(Ordering::Relaxed) >= base + PAGE, "resolvers come first");
            // Nothing has come in the place of the pages.
            let mut page = [0; PAGE];
            assert!(crate::bytes::copy_by_kernel(base + PAGE, &mut page).is_err());
        });
    }

    #[test]
    fn registers_are_what_they_were_but_for_the_answer() {
        cut_short(|base| {
            let mut sum = [0u64; 12];
            for round in 0..1000u64 {
                let there = round % 3 != 0;
                // SAFETY: our own mapping.
                let read = unsafe { word(base + if there { 0 } else { 2 * PAGE }) };
                assert_eq!(read.is_some(), there);
                sum.iter_mut().enumerate().for_each(|(i, sum)| *sum += round ^ i as u64);
            }
            let expected = |i: u64| (0..1000u64).map(|round| round ^ i).sum::<u64>();
            assert!((0..12).all(|i| sum[i as usize] == expected(i)));
        });
    }
}
