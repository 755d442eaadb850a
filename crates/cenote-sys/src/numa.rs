//! Nodes of a machine with non-uniform memory: how many there are, which one a thread runs on, and
//! where memory is to be.
//!
//! # Safety argument
//!
//! The calls read and write plain integers on the stack. [`prefer`] changes where the kernel takes
//! pages from, never what memory holds; the kernel refuses ranges that are not mapped.

use std::io;

/// Nodes whose memory this process may use; 1 where the kernel does not say.
#[must_use]
pub fn nodes() -> u32 {
    if cfg!(miri) {
        return 1;
    }
    let mut mask = [0u64; WORDS];
    // SAFETY: the kernel writes as many bits of the mask as it has; no policy is asked for.
    let done = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            core::ptr::null_mut::<i32>(),
            mask.as_mut_ptr(),
            (WORDS * 64) as u64,
            core::ptr::null_mut::<u8>(),
            MEMS_ALLOWED,
        )
    };
    let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
    if done == 0 { count.max(1) } else { 1 }
}

/// `MPOL_F_MEMS_ALLOWED`: asks for the nodes that the process may use.
const MEMS_ALLOWED: u64 = 1 << 2;
/// Words of a mask of nodes: as many as any kernel has.
const WORDS: usize = 16;

/// The node that this thread runs on; 0 where it is unknown. A hint: the thread may run on another
/// one by the time the number is used.
#[must_use]
pub fn current() -> u32 {
    if cfg!(miri) {
        return 0;
    }
    let (mut cpu, mut node) = (0u32, 0u32);
    // SAFETY: the kernel writes two integers.
    let done = unsafe {
        libc::syscall(
            libc::SYS_getcpu,
            &raw mut cpu,
            &raw mut node,
            core::ptr::null_mut::<libc::c_void>(),
        )
    };
    if done == 0 { node } else { 0 }
}

/// Asks that pages of a mapped range come from a node, if it has some: pages that are touched from
/// now on. The range is widened to whole pages.
///
/// # Safety
/// The range is mapped, and its owner lets this caller choose where its pages come from.
///
/// # Errors
/// The kernel's.
pub unsafe fn prefer(addr: u64, len: u64, node: u32) -> io::Result<()> {
    let mut mask = [0u64; WORDS];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    *word |= 1 << (node % 64);
    let page = 4096;
    let start = addr / page * page;
    let end = (addr + len).next_multiple_of(page);
    // SAFETY: the mask has as many bits as is said; the caller answers for the range.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            end - start,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            (WORDS * 64) as u64,
            0u32,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node that a page lies on.
///
/// # Safety
/// `addr` lies in a page that is mapped.
///
/// # Errors
/// The kernel's; `NotFound`: the page was never touched.
pub unsafe fn node_of(addr: u64) -> io::Result<u32> {
    let page = core::ptr::with_exposed_provenance_mut::<libc::c_void>(addr as usize);
    let mut status = -1i32;
    // SAFETY: one page is asked about and none is moved: there are no target nodes. The kernel
    // writes one number.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1u64,
            &raw const page,
            core::ptr::null::<i32>(),
            &raw mut status,
            0,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(status).map_err(|_| io::Error::from_raw_os_error(-status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_touched_lies_on_a_node_and_another_on_none() {
        let region = crate::memory::anonymous(16 << 20).expect("memory");
        let first = region.as_ptr().expose_provenance() as u64;
        // SAFETY: the first byte of this test's own memory.
        unsafe { region.as_ptr().write_volatile(1) };
        // SAFETY: pages of that memory. The second one is no neighbour, even if pages are large.
        let nodes = [0, 12 << 20].map(|at| unsafe { node_of(first + at) });
        let [Ok(_), Err(error)] = &nodes else {
            // A sandbox may forbid the call, and a kernel may be built without it.
            let code = nodes[0].as_ref().err().and_then(io::Error::raw_os_error);
            assert!(code == Some(libc::EPERM) || code == Some(libc::ENOSYS), "{nodes:?}");
            return;
        };
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_thread_runs_on_a_node_whose_memory_can_be_asked_for() {
        assert!(nodes() >= 1);
        let memory = vec![1u8; 1 << 16];
        // SAFETY: memory of this test's own.
        let asked = unsafe { prefer(memory.as_ptr().addr() as u64, 1 << 16, current()) };
        // A sandbox may forbid the call, and a kernel may be built without it.
        if let Err(error) = asked {
            let code = error.raw_os_error();
            assert!(code == Some(libc::EPERM) || code == Some(libc::ENOSYS), "{error}");
        }
        assert!(memory.iter().all(|&byte| byte == 1));
        // SAFETY: nothing is asked of a node that no kernel has.
        assert!(unsafe { prefer(memory.as_ptr().addr() as u64, 1, 1 << 20) }.is_err());
    }
}
