//! A limit on waiting, so that a deadlock is a failure.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Runs `test` on a thread of its own, and fails if it has not ended after `seconds`.
pub fn within<R: Send + 'static>(seconds: u64, test: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        let result = test();
        let _ = done.send(());
        result
    });
    if ended.recv_timeout(Duration::from_secs(seconds)) == Err(RecvTimeoutError::Timeout) {
        panic!("still waiting after {seconds} s");
    }
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Asks again and again until there is an answer, and fails if there is none after `seconds`.
pub fn until<R>(what: &str, seconds: u64, mut done: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(done) = done() {
            return done;
        }
        assert!(Instant::now() < end, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
