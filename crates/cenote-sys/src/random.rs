//! Random bytes from the kernel.

use rustix::rand::GetRandomFlags;
use std::io::{self, Read};

/// Fills `bytes` with random bytes from the kernel.
///
/// # Errors
/// Neither the system call nor `/dev/urandom` works.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::rand::getrandom(&mut *rest, GetRandomFlags::empty()) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return std::fs::File::open("/dev/urandom")?.read_exact(rest),
        }
    }
    Ok(())
}
