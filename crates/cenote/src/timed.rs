//! Transactions and views that wait for a limited time, or not at all.

use crate::error::{Error, Result};
use crate::open_pool::Pool;
use crate::tx::Tx;
use crate::view::View;
use crate::wait_limit::Limited;
use core::time::Duration;

impl Pool {
    /// As [`Pool::write`], but does not wait for views and transactions of other threads and
    /// processes.
    ///
    /// ```
    /// # use cenote::{ErrorKind, Store};
    /// # fn main() -> cenote::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let pool = Store::open(directory.path())?.pool("p")?;
    /// match pool.try_write(|tx| tx.alloc(1u64)) {
    ///     Ok(number) => println!("{number:?}"),
    ///     Err(error) if error.kind() == ErrorKind::Busy => println!("later"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFree`], [`Error::StoreBusy`]; else as [`Pool::write`].
    pub fn try_write<R, E: From<Error>>(
        &self,
        body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_timeout(Duration::ZERO, body)
    }

    /// As [`Pool::write`], but waits for `timeout` at most until the transaction begins. `body`
    /// takes as long as it takes. A thread's first transaction in a daemon's store asks the daemon
    /// for a log, and waits for the answer.
    ///
    /// # Errors
    /// [`Error::NotFree`], [`Error::StoreBusy`]; else as [`Pool::write`].
    pub fn write_timeout<R, E: From<Error>>(
        &self,
        timeout: Duration,
        body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        let limited = Limited::new(timeout);
        self.write(|tx| {
            drop(limited);
            body(tx)
        })
    }

    /// As [`Pool::read`], but does not wait for a transaction.
    ///
    /// # Errors
    /// [`Error::NotFree`], also if one waits to begin; else as [`Pool::read`].
    pub fn try_read(&self) -> Result<View<'_>> {
        self.read_timeout(Duration::ZERO)
    }

    /// As [`Pool::read`], but waits for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::NotFree`]; else as [`Pool::read`].
    pub fn read_timeout(&self, timeout: Duration) -> Result<View<'_>> {
        let _limited = Limited::new(timeout);
        self.read()
    }
}
