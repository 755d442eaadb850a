//! The raw interface: addresses, bytes and promises. For other languages, for collections, and for
//! measuring what the safe interface adds. Nothing here takes a lock on a pool: a program that
//! shares data between threads or processes brings its own. Nor does a backup ([`Store::backup`],
//! or one of the daemon that keeps the store) wait for raw transactions: make none while it runs.

use crate::error::{Error, Result};
use crate::local;
use crate::session::{Store, refuse_unusable};
use crate::thread_log::Active;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

pub use cenote_heap::{Block, Heap, Mark};
pub use cenote_tx::{Transaction, TxContext, TxError};

/// A raw transaction of this thread; dropped without [`RawTx::commit`] it aborts. See
/// [`Transaction`] for its steps.
#[derive(Debug)]
pub struct RawTx<'s> {
    /// A log that lives has its context, so this is there.
    transaction: Option<Transaction<'s>>,
    active: Active<'s>,
    _not_send: PhantomData<*const ()>,
}

/// Two words are passed in registers. With a third one, begin and commit took 14 ns more.
const _: () = assert!(size_of::<RawTx<'_>>() == 2 * size_of::<usize>());

/// Begins a transaction of this thread on a store: a function call, nothing is written.
///
/// # Errors
/// [`Error::WouldDeadlock`] if the thread is in a transaction already; [`Error::Store`] if the
/// thread has no log yet and cannot get one, or the process is a fork.
///
/// # Safety
/// The transaction is not forgotten, nor kept in a thread-local variable until its thread ends.
/// Data that it changes is not changed by others before it has ended. While leaks are looked for
/// ([`Store::reclaim_in_background`]), data are changed under the lock of their pool: in
/// [`crate::Pool::write`], or while no other thread uses the pool. It changes no pool that is
/// protected at rest, whose values its log would write to a file: for those there is
/// [`begin_hidden`].
#[inline]
pub unsafe fn begin(store: &Store) -> Result<RawTx<'_>> {
    // SAFETY: the caller's.
    unsafe { begin_in(store, false) }
}

/// The same for pools that are protected at rest: what it logs goes into memory without a file.
///
/// # Errors
/// As [`begin`].
///
/// # Safety
/// As [`begin`], but that it changes no other pools: a crash would find half of it in those.
pub unsafe fn begin_hidden(store: &Store) -> Result<RawTx<'_>> {
    // SAFETY: the caller's.
    unsafe { begin_in(store, true) }
}

/// # Safety
/// As the two above.
#[inline(always)]
unsafe fn begin_in(store: &Store, hidden: bool) -> Result<RawTx<'_>> {
    let inner = &*store.inner;
    refuse_unusable(&inner.store)?;
    let log = local::thread_log(inner, hidden)?;
    // SAFETY: the log is this thread's, and lives as long as the store.
    let Some(active) = (unsafe { Active::new(log) }) else { return Err(in_transaction()) };
    // SAFETY: `active` makes this the only user of the context; the caller promises not to forget
    // the transaction.
    let transaction = unsafe { (*log.as_ptr()).context.as_mut().map(|context| context.begin()) };
    Ok(RawTx { transaction, active, _not_send: PhantomData })
}

#[cold]
#[inline(never)]
fn failed(error: TxError) -> Error {
    error.into()
}

#[cold]
#[inline(never)]
fn in_transaction() -> Error {
    Error::WouldDeadlock { pool: String::from("(raw)"), by: "a transaction" }
}

impl RawTx<'_> {
    /// Commits; see [`Transaction::commit`].
    ///
    /// # Errors
    /// [`Error::Tx`]; [`Error::Store`] if the store acknowledges nothing any more.
    #[inline(always)]
    pub fn commit(self) -> Result<()> {
        // An error drops `active`, after the transaction.
        let Self { transaction, active, .. } = self;
        if let Some(transaction) = transaction {
            transaction.commit().map_err(failed)?;
        }
        refuse_unusable(active.store())
    }

    /// Aborts.
    pub fn abort(self) {
        drop(self);
    }
}

impl<'s> Deref for RawTx<'s> {
    type Target = Transaction<'s>;

    #[inline]
    fn deref(&self) -> &Transaction<'s> {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a raw transaction is there until it is ended by value"),
        }
    }
}

impl<'s> DerefMut for RawTx<'s> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Transaction<'s> {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a raw transaction is there until it is ended by value"),
        }
    }
}

impl Store {
    /// Makes what this thread's last transaction on the store did durable to the last byte of its
    /// log; see [`TxContext::quiesce`].
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in a transaction.
    pub fn quiesce(&self) -> Result<()> {
        self.inner.refuse_forked()?;
        let log = local::thread_log(&self.inner, false)?;
        // SAFETY: as in `begin`.
        let Some(_active) = (unsafe { Active::new(log) }) else { return Err(in_transaction()) };
        // SAFETY: as in `begin`.
        if let Some(context) = unsafe { (*log.as_ptr()).context.as_mut() } {
            context.quiesce();
        }
        Ok(())
    }
}
