//! Touches mapped memory: a page that cannot be had is an error of the touch, and no signal.
//!
//! A load from a mapping has no way to fail. Where a file was cut short, a disk cannot be read, or
//! a sealed page does not pass its check, the process gets SIGBUS. The library touches what media
//! may have damaged through this module before it loads it. A touch is two instructions:
//!
//! ```text
//!     test dword ptr [place], MARK     loads 4 bytes, changes flags, and clears the carry
//!     jc   lost                        never taken: the carry is clear
//! ```
//!
//! When the `test` faults and no resolver of [`crate::fault`] makes the access possible, the
//! handler sets the carry and goes on behind the `test`: at the jump, which is taken now. Before
//! the library writes a fresh block it does the same by an `and` instead of the `test`.
//!
//! Nothing is mapped in the place of the page: no thread ever reads bytes that the page does not
//! hold. A resolver asks [`crate::fault::is_peek`], to leave such a page as it is.
//!
//! # What it answers for
//!
//! Pages at the moment of the touch. A page that was had once is still there later, unless another
//! program cuts the file short meanwhile, or the kernel drops the page and cannot read it again:
//! the next plain load is SIGBUS then, as any load from a mapping.
//!
//! Only ranges that are registered with [`crate::fault`] are covered. On other processors than
//! x86-64, and under Miri, these are plain loads.
//!
//! # Why no table of addresses
//!
//! The handler knows a touch by its own bytes. A table in a section of its own would save the jump,
//! but a linker may drop its entries, and each copy of this crate in a process would have another
//! table. A handler of any copy knows the touches of all copies.
//!
//! # Safety argument
//!
//! The handler changes a thread's registers only if the instruction at which the thread stands is
//! a `test` or `and` of 4 bytes of memory and `MARK`, with a jump on carry behind it. A compiler
//! makes no such jump, because both clear the carry. The block of assembly says that it changes
//! flags, and names the label that it jumps to. It counts as one that writes memory, so that no
//! load moves from behind it to before it.

use crate::memory;
use core::ops::Range;

/// What a touch tests against: a number of no meaning.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const MARK: u32 = 0x1e3c_6753;

/// Whether the 4 bytes at `addr`, which is a multiple of 4, can be read.
///
/// # Safety
/// The address lies in a mapping or a reservation of the caller's.
#[inline(always)]
#[must_use]
pub unsafe fn touch(addr: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: a load whose value is used by nothing; a fault is answered by the handler.
        unsafe {
            core::arch::asm!(
                "test dword ptr [{at}], {mark}",
                "jc {lost}",
                at = in(reg) addr,
                mark = const MARK,
                lost = label { return false },
                options(nostack)
            );
        }
        true
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

/// Whether the 4 bytes at `addr`, which is a multiple of 4, can be written. Changes them.
///
/// # Safety
/// As [`touch`]; and nothing else uses them.
#[inline(always)]
#[must_use]
pub unsafe fn claim(addr: usize) -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // SAFETY: a store to bytes that the caller has for itself; a fault is answered by the
        // handler.
        unsafe {
            core::arch::asm!(
                "and dword ptr [{at}], {mark}",
                "jc {lost}",
                at = in(reg) addr,
                mark = const MARK,
                lost = label { return false },
                options(nostack)
            );
        }
        true
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = addr;
        true
    }
}

/// Where to touch for the byte at `addr`.
#[inline(always)]
const fn touched(addr: usize) -> usize {
    addr & !3
}

/// Any 8 bytes at `addr`; `None` if they cannot be read.
///
/// # Safety
/// As [`touch`]. A concurrent store is one of a whole aligned word, and so is this load then.
#[inline(always)]
#[must_use]
pub unsafe fn word(addr: usize) -> Option<u64> {
    // SAFETY: handed on to the caller.
    unsafe {
        is_readable(addr, size_of::<u64>())
            .then(|| crate::bytes::load_word(core::ptr::with_exposed_provenance(addr)))
    }
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
        if !unsafe { touch(touched(at)) } {
            return Some(at);
        }
        at = (at & !(page - 1)).checked_add(page)?;
    }
    None
}

/// The first address of a range from which a page cannot be written. Changes bytes of each page.
///
/// # Safety
/// As [`claim`], for the range, which begins at a multiple of 4 and has 4 bytes, if any.
#[inline(always)]
#[must_use]
pub unsafe fn unwritable(range: Range<usize>) -> Option<usize> {
    let mut at = range.start;
    while at < range.end {
        // SAFETY: handed on to the caller: the start of the range or of a page.
        if !unsafe { claim(at) } {
            return Some(at);
        }
        at = (at & !(PAGE - 1)).checked_add(PAGE)?;
    }
    None
}

/// Pages of no machine are smaller.
const PAGE: usize = 4096;

/// Whether a value can be read: as [`lost`], for what mostly lies in one page.
///
/// # Safety
/// As [`touch`], for the `len` bytes.
#[inline(always)]
#[must_use]
pub unsafe fn is_readable(addr: usize, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    // SAFETY: handed on to the caller; the 4 bytes are in the page of the first.
    unsafe {
        touch(touched(addr))
            && (addr % PAGE + len <= PAGE || lost(addr..addr.saturating_add(len)).is_none())
    }
}

/// Whether the thread whose context this is stands at a touch, which has faulted at `addr`.
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

/// Goes on behind the touch at which the thread stands, and says there that it failed.
///
/// # Safety
/// As [`is_at`]. The handler returns then.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn give_up(context: *mut core::ffi::c_void) -> bool {
    const CARRY: i64 = 1;
    // SAFETY: handed on to the caller.
    let Some(length) = (unsafe { length_at(context) }) else { return false };
    // SAFETY: the kernel passes a valid context to the handler, which is this thread's alone.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_EFL as usize] |= CARRY;
    registers[libc::REG_RIP as usize] += length as i64;
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

/// Bytes of the longest touch, and of what of the jump tells that it is one.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const TOUCH_MAX: usize = 14;

/// Bytes of the instruction at which the thread stands, if it is that of a touch.
///
/// # Safety
/// As [`is_at`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn length_at(context: *mut core::ffi::c_void) -> Option<usize> {
    // SAFETY: handed on to the caller.
    let at = unsafe { instruction_at(context) };
    let mut code = [0u8; TOUCH_MAX];
    if at % PAGE > PAGE - TOUCH_MAX {
        // Behind a short touch at the end of the last page of code nothing need be mapped.
        let here = PAGE - at % PAGE;
        if crate::bytes::copy_by_kernel(at, &mut code).is_err() {
            crate::bytes::copy_by_kernel(at, &mut code[..here]).ok()?;
        }
    } else {
        // SAFETY: code of the page in which the thread executes. Code can be read, unless a program
        // has made it so that it cannot; such a program has no code of this module there.
        code = unsafe { core::ptr::with_exposed_provenance::<[u8; TOUCH_MAX]>(at).read_volatile() };
    }
    touch_length(&code)
}

/// Bytes of the instruction that `code` begins with, if it and what follows are a touch: perhaps a
/// REX prefix, `f7 /0` (`test`) or `81 /4` (`and`), perhaps an index byte and a displacement,
/// [`MARK`], and `jc`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn touch_length(code: &[u8; TOUCH_MAX]) -> Option<usize> {
    let prefix = usize::from(code[0] & 0xf0 == 0x40);
    let [opcode, form] = code[prefix..prefix + 2] else { return None };
    let (mode, register, base) = (form >> 6, form >> 3 & 7, form & 7);
    let index = usize::from(base == 4);
    let displacement = match mode {
        0 if base == 5 || base == 4 && code[prefix + 2] & 7 == 5 => return None,
        0 => 0,
        1 => 1,
        2 => 4,
        _ => return None,
    };
    let mark = prefix + 2 + index + displacement;
    let is_touch = matches!((opcode, register), (0xf7, 0) | (0x81, 4))
        && code.get(mark..mark + 4)? == MARK.to_le_bytes()
        && matches!(code.get(mark + 4..)?, [0x72, ..] | [0x0f, 0x82, ..]);
    is_touch.then_some(mark + 4)
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

    /// Notes the address, and makes no page. `asked` is the `AtomicUsize` of one [`cut_short`].
    unsafe fn nothing(asked: *const (), addr: usize) -> bool {
        assert!(fault::is_peek());
        // SAFETY: `cut_short` passes it, and keeps it while it is registered.
        unsafe { &*asked.cast::<AtomicUsize>() }.store(addr, Ordering::Relaxed);
        false
    }

    /// Four pages of a file of six, of which the first is there: the others are behind its end, and
    /// the last is not accessible. The test gets the first address, and the last one that the
    /// resolver was asked about.
    fn cut_short(test: impl FnOnce(usize, &AtomicUsize)) {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(PAGE as u64).expect("a length");
        let base = memory::reserve_anywhere(5 * PAGE, PAGE).expect("address space");
        // SAFETY: our own reservation.
        unsafe {
            memory::map_file(file.as_fd(), base, 4 * PAGE, Access::ReadWrite, Sharing::Shared)
        }
        .expect("map");
        let asked = AtomicUsize::new(0);
        // SAFETY: the resolver does nothing but note, in what lives as long as the registration.
        let registered =
            unsafe { fault::register(base, 5 * PAGE, nothing, ptr::from_ref(&asked).cast()) }
                .expect("registered");
        test(base, &asked);
        drop(registered);
        // SAFETY: our own reservation.
        unsafe { memory::release(base, 5 * PAGE) }.expect("release");
    }

    #[test]
    fn a_page_that_cannot_be_had_is_an_answer_for_every_thread() {
        cut_short(|base, asked| {
            // SAFETY: our own mapping.
            unsafe {
                assert!(touch(base + 8));
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
                            let read = unsafe {
                                (touch(base + page * PAGE), word(base + page * PAGE + 8))
                            };
                            assert_eq!(read, (false, None), "page {page}");
                            // SAFETY: our own mapping.
                            assert!(unsafe { touch(base + round / 4 * 4) });
                        }
                    });
                }
            });
            assert!(asked.load(Ordering::Relaxed) >= base + PAGE, "resolvers come first");
            // Nothing has come in the place of the pages.
            let mut page = [0; PAGE];
            assert!(crate::bytes::copy_by_kernel(base + PAGE, &mut page).is_err());
        });
    }

    #[test]
    fn registers_are_what_they_were_but_for_the_answer() {
        cut_short(|base, _| {
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

    /// One touch by each register that an address can be in, as the assembler makes it.
    macro_rules! touch_by {
        ($($register:literal)+) => {
            [$({
                let at: usize;
                // SAFETY: jumps over a touch, which is not executed, and takes its address.
                unsafe {
                    core::arch::asm!(
                        "lea {at}, [rip + 2f]",
                        "jmp 3f",
                        "2:",
                        concat!("test dword ptr [", $register, "], {mark}"),
                        "jc 3f",
                        ".fill 16, 1, 0x90",
                        "3:",
                        at = out(reg) at,
                        mark = const MARK
                    );
                }
                // SAFETY: code of this function, which is longer.
                unsafe { ptr::with_exposed_provenance::<[u8; TOUCH_MAX]>(at).read_volatile() }
            }),+]
        };
    }

    #[test]
    fn a_touch_is_known_by_whatever_register_has_the_address() {
        let all = touch_by!(
            "rax" "rbx" "rcx" "rdx" "rsi" "rdi" "rbp" "rsp" "r8" "r9" "r10" "r11" "r12" "r13" "r14"
            "r15" "rax + 8" "rbp + 4096" "r12 + 4096" "rax + 8*rcx" "r13 + 8*r9 + 8"
        );
        for code in &all {
            let length = touch_length(code).expect("a touch");
            assert!((6..=12).contains(&length) && matches!(code[length], 0x72 | 0x0f), "{code:x?}");
            // Any other number, and any other jump, is the program's own.
            for at in 0..length + 1 {
                let mut other = *code;
                other[at] ^= 0x10;
                let is_other = touch_length(&other).is_none_or(|other| other == length);
                assert!(is_other, "{other:x?}");
                assert!(at + 4 < length || at == length || touch_length(&other).is_none());
            }
            let mut other = *code;
            other[length] = 0x77;
            assert_eq!(touch_length(&other), None);
        }
    }
}
