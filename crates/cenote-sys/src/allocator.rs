//! Sets the C library's allocator up for a program of many threads.
//!
//! # Safety argument
//!
//! `mallopt` is given two numbers. It takes the allocator's own lock, and changes what later
//! allocations do.

/// Has all threads of this process allocate from at most so many arenas. The C library would make
/// up to eight for each processor, and a thousand threads that allocate a little each would keep
/// something in all of them: memory that grows with the machine. False: the C library has no such
/// setting.
#[cfg(target_env = "gnu")]
#[must_use]
pub fn limit_arenas(most: u8) -> bool {
    // SAFETY: two numbers.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, i32::from(most.max(1))) == 1 }
}

/// As above, where it is another library: false.
#[cfg(not(target_env = "gnu"))]
#[must_use]
pub fn limit_arenas(_most: u8) -> bool {
    false
}
