//! The process that is killed: it indexes words, and acknowledges each commit.
//!
//! It reads the text from standard input. An acknowledgement is 8 bytes on standard output: the
//! number of words that are indexed. It writes one at its start, when it has found the last commit,
//! and one after every commit. The index must never lose an acknowledged word. A builder that is to
//! be killed waits for that before the text ends (`--hold`).

use super::{index, text};
use crate::cli::TourBuild;
use crate::failure::{Failure, Verdict};
use cenote::Store;
use std::io::{Read as _, Write as _};

pub(crate) fn run(arguments: &TourBuild) -> Result<Verdict, Failure> {
    die_with(arguments.parent)?;
    let mut normal = String::new();
    std::io::stdin()
        .read_to_string(&mut normal)
        .map_err(|e| Failure::Failed(format!("the builder cannot read the text: {e}")))?;
    let words = text::words(&normal);

    let store = Store::open(&arguments.store)?;
    let pool = store.pool(index::POOL)?;
    let progress = index::begin(&pool, text::fingerprint(&normal))?;
    let mut next = usize::try_from(progress.next).unwrap_or(usize::MAX);
    acknowledge(progress.next)?;
    let batch = usize::try_from(arguments.batch).unwrap_or(1).max(1);
    let hold = arguments.hold.and_then(|words| usize::try_from(words).ok()).unwrap_or(usize::MAX);
    while let Some(rest) = words.get(next..).filter(|rest| !rest.is_empty()) {
        if next >= hold {
            // The signal ends it.
            loop {
                std::thread::park();
            }
        }
        let done = index::add(&pool, &rest[..batch.min(rest.len()).min(hold - next)])?;
        acknowledge(done)?;
        next = usize::try_from(done).unwrap_or(usize::MAX);
    }
    drop(pool);
    store.close()?;
    Ok(Verdict::Clean)
}

/// One write of 8 bytes is whole or not there: pipes keep writes of this size together.
fn acknowledge(words: u64) -> Result<(), Failure> {
    let mut pipe = std::io::stdout().lock();
    pipe.write_all(&words.to_le_bytes())?;
    Ok(pipe.flush()?)
}

/// Asks the kernel to kill this process when `parent` ends.
fn die_with(parent: u32) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| Failure::Failed(format!("the builder cannot be tied to its parent: {e}")))?;
    // It may have ended just before.
    let now = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    if now == parent {
        Ok(())
    } else {
        Err(Failure::Failed("the builder is run by `cenote tour` only: use that".into()))
    }
}
