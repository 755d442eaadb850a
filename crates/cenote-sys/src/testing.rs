//! Helpers of this crate's own tests: code that runs in a forked child.
//!
//! # Safety argument
//!
//! A child of a threaded process may call only what does not depend on locks that other threads
//! held at the fork. The tests' bodies do system calls and atomics, allocate next to nothing (the C
//! library's allocator and the standard library keep working after `fork`), and leave by `_exit`.

/// A child process that is killed and reaped with its handle.
pub(crate) struct Child(libc::pid_t);

impl Child {
    pub(crate) fn pid(&self) -> u32 {
        self.0.cast_unsigned()
    }

    /// Kills with SIGKILL and waits until it is gone.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// The raw wait status.
    pub(crate) fn wait(self) -> i32 {
        let status = wait(self.0);
        core::mem::forget(self);
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a system call on our own child, which has not been reaped.
        let _ = unsafe { libc::kill(self.0, libc::SIGKILL) };
        let _ = wait(self.0);
    }
}

fn wait(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: a system call with a pointer to a local.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        assert_eq!(
            std::io::Error::last_os_error().kind(),
            std::io::ErrorKind::Interrupted,
            "waitpid"
        );
    }
    status
}

/// Runs `body` in a forked child, which then ends with status 0.
pub(crate) fn spawn_child(body: impl FnOnce()) -> Child {
    // SAFETY: see the module's argument.
    match unsafe { libc::fork() } {
        0 => {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err();
            // SAFETY: leaves the child without running anything else of the test harness.
            unsafe { libc::_exit(if panicked { 101 } else { 0 }) }
        }
        pid if pid > 0 => Child(pid),
        _ => panic!("fork: {}", std::io::Error::last_os_error()),
    }
}

/// Runs `body` in a forked child and returns what it returns, 0 to 100.
pub(crate) fn in_child(body: impl FnOnce() -> i32) -> i32 {
    let status = spawn_child(|| {
        let code = body();
        // SAFETY: leaves the child at once.
        unsafe { libc::_exit(code) }
    })
    .wait();
    assert!(libc::WIFEXITED(status), "the child died of signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}
