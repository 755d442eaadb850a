//! [`AutoTrim`]: a thread that gives free space of a pool back to the file system, once in each
//! interval ([`Pool::trim`]).
//!
//! A heap keeps the space of superblocks that became free, for the next allocation that needs one.
//! After a peak, or with large blocks of many sizes that come and go, a pool is then larger in the
//! file system than its values. A trim in intervals bounds that by what one interval frees. It
//! costs taking space again for what is used again: one system call for each run of superblocks,
//! and at level `power` a sync of the file. So a program has to ask for it.

use crate::background::{Background, Job};
use crate::error::{Error, Result};
use crate::open_pool::Pool;
use core::ops::ControlFlow;
use std::time::Duration;

impl Pool {
    /// Gives free space back to the file system from now on, once in each interval of `every`,
    /// until the answer is dropped. Transactions go on meanwhile, and none waits.
    ///
    /// # Errors
    /// As [`Pool::trim`], which is done once at the start; [`Error::Policy`] for an interval of
    /// less than a millisecond, or if the system gives no thread.
    pub fn trim_by(&self, every: Duration) -> Result<AutoTrim> {
        AutoTrim::start(self, every)
    }
}

/// What an [`AutoTrim`] has done, its first trim included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimFigures {
    /// Trims.
    pub trims: u64,
    /// Bytes that they gave back; a superblock that was used in between counts each time.
    pub released_bytes: u64,
    /// Trims that failed. The next one tries again.
    pub failures: u64,
}

/// Trims a pool by itself until it is dropped. It keeps the pool open.
#[derive(Debug)]
#[must_use = "the pool is trimmed by itself only while this lives"]
pub struct AutoTrim(Background<TrimFigures>);

impl AutoTrim {
    fn start(pool: &Pool, every: Duration) -> Result<Self> {
        if every < Duration::from_millis(1) {
            return Err(Error::Policy("the interval is less than a millisecond: set a longer one"));
        }
        // Says at once what would fail each time.
        let first = pool.trim()?;
        let figures = TrimFigures {
            trims: 1,
            released_bytes: first.released_bytes,
            ..TrimFigures::default()
        };
        Ok(Self(Background::start(pool, "cenote-trim", figures, Some(Trims { every }))?))
    }

    /// What it has done so far.
    #[must_use]
    pub fn figures(&self) -> TrimFigures {
        self.0.figures()
    }

    /// Ends the thread. Returns the error of its newest trim, if that failed.
    ///
    /// # Errors
    /// That failure. [`Error::WouldDeadlock`] in code that a check calls: the thread ends soon
    /// after the check, and what it came to is not heard.
    pub fn stop(mut self) -> Result<()> {
        self.0.end()?;
        self.0.failure()
    }
}

struct Trims {
    every: Duration,
}

impl Job for Trims {
    type Figures = TrimFigures;

    fn rest(&self) -> Duration {
        self.every
    }

    fn turn(
        &mut self,
        pool: &Pool,
        figures: &mut TrimFigures,
        ends: &dyn Fn() -> bool,
    ) -> Result<bool> {
        // A trim of a large pool ends early when it is told to end.
        let trimmed = pool.trim_with(&mut |_| match ends() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let report = trimmed.inspect_err(|_| figures.failures += 1)?;
        figures.trims += 1;
        figures.released_bytes += report.released_bytes;
        Ok(true)
    }
}
