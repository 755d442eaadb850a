//! Protection keys of memory (x86-64, `pkey_alloc`): rights that each thread has of its own.
//!
//! A page has a key. A register of the thread (PKRU) has two bits for each key: no access, no
//! stores. The process has one key here ([`Key::of_process`]). A thread that has not opened it has
//! no access: one that was there before the key was, because the kernel begins each register with
//! no access to all keys but 0; a later one, because it begins with its maker's, and no thread is
//! made while the key is open; a signal handler, because it begins as the kernel has it, and the
//! interrupted code gets its own register back at the end.
//!
//! The kernel looks at the register too when a system call of the thread copies into such a page,
//! which fails with `EFAULT`; not when a process writes memory by `/proc`.
//!
//! # Safety argument
//!
//! `wrpkru` changes the rights of this thread to pages with a key, and no byte. It is executed only
//! if the kernel has given a key, so the processor knows it.

use core::marker::PhantomData;
use std::io;
use std::sync::OnceLock;

/// A key of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u32);

/// What a thread's register was. It stays in its thread.
///
/// ```compile_fail
/// fn is_send<T: Send>() {}
/// is_send::<cenote_sys::protection_keys::Before>();
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "the key stays open until it is given back"]
pub struct Before(u32, PhantomData<*const ()>);

impl Key {
    /// The key of this process; `None`: the processor or the kernel has none, or no more. Always
    /// the same answer.
    #[must_use]
    pub fn of_process() -> Option<Self> {
        static KEY: OnceLock<Option<Key>> = OnceLock::new();
        *KEY.get_or_init(|| kernel::allocate().map(Self))
    }

    /// Gives pages this key, readable and writable for threads that open it.
    ///
    /// # Errors
    /// What the kernel says.
    ///
    /// # Safety
    /// The range is the caller's, and all code that uses it opens the key.
    pub(crate) unsafe fn assign(self, addr: usize, len: usize) -> io::Result<()> {
        // SAFETY: handed on to the caller.
        unsafe { kernel::assign(self.0, addr, len) }
    }

    /// Opens pages of the key for this thread.
    #[inline]
    pub fn open(self) -> Before {
        let before = kernel::register();
        kernel::set_register(before & !(3 << (2 * self.0)));
        Before(before, PhantomData)
    }

    /// Takes [`Key::open`] back.
    #[inline]
    pub fn close(self, before: Before) {
        let bits = 3 << (2 * self.0);
        kernel::set_register(kernel::register() & !bits | before.0 & bits);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod kernel {
    use std::io;

    pub(super) fn allocate() -> Option<u32> {
        const NO_ACCESS: libc::c_ulong = 1;
        // SAFETY: takes a key that no page has, and changes this thread's right to it.
        let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as libc::c_ulong, NO_ACCESS) };
        u32::try_from(key).ok().filter(|key| (1..16).contains(key))
    }

    /// # Safety
    /// As [`super::Key::assign`].
    pub(super) unsafe fn assign(key: u32, addr: usize, len: usize) -> io::Result<()> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: handed on to the caller.
        let done = unsafe { libc::syscall(libc::SYS_pkey_mprotect, addr, len, rights, key) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[inline]
    pub(super) fn register() -> u32 {
        let value: u32;
        // SAFETY: there is a key, so the processor has the instruction; it reads a register.
        unsafe {
            core::arch::asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _,
                options(nomem, nostack, preserves_flags));
        }
        value
    }

    #[inline]
    pub(super) fn set_register(value: u32) {
        // SAFETY: there is a key, so the processor has the instruction; it changes this thread's
        // rights to pages with keys. No access moves over it: it may touch memory, as the compiler
        // sees it.
        unsafe {
            core::arch::asm!("wrpkru", in("eax") value, in("ecx") 0, in("edx") 0,
                options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod kernel {
    use std::io;

    pub(super) fn allocate() -> Option<u32> {
        None
    }

    /// # Safety
    /// None: it does nothing.
    pub(super) unsafe fn assign(_: u32, _: usize, _: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn register() -> u32 {
        0
    }

    pub(super) fn set_register(_: u32) {}
}
