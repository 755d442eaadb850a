//! The lock between the processes that share a pool ([`cenote_store::Access::Shared`]), as threads
//! of this process take it.
//!
//! **Invariant.** *While a transaction covers a shared pool, no thread of any process has a view or
//! another transaction of it; while a view lives, no thread has a transaction.* Two locks keep it,
//! in this order:
//!
//! | lock | excludes | taken and given back |
//! | --- | --- | --- |
//! | the pool's own | threads of this process | by each thread |
//! | [`Exclusion`] | other processes | by each writing thread; by the first reader and the last |
//!
//! So safe code means the same in a shared pool as in one of its own. If a process dies, the daemon
//! rolls its transaction back before another process takes its lock over, and the next holder finds
//! what the last commit left. If the daemon cannot do that (a log is set aside), no process gets
//! the lock any more, and every transaction and view says why. A process whose store is poisoned
//! keeps the lock of the transaction that it was in, until it has ended.
//!
//! **A waiting thread holds nothing that others wait for**, as far as this module decides: a
//! transaction over several pools takes the locks between processes all or none ([`turns`]). A
//! thread that has a view does not wait for a writer of a pool that this process reads already: the
//! writer waits for this process in any case. A thread that has other pools does not wait for ever
//! ([`crate::patience`]).

use crate::error::{Error, Result};
use crate::open_pool::PoolInner;
use crate::patience::patience;
use crate::readers::Readers;
use crate::session::refuse_unusable;
use crate::viewed::is_any_viewed_here;
use cenote_heap::{Exclusion, OpenError, Shared};
use cenote_medium::planted::{Bug, planted};
use cenote_store::Store;
use std::sync::PoisonError;
use std::time::Instant;

/// How long a reader leaves the way to a writer of another process, where others of its own read
/// already.
const COURTESY: core::time::Duration = core::time::Duration::from_millis(100);

/// This process writes.
#[derive(Debug)]
pub(crate) struct WriteTurn<'p>(Exclusion<'p>, &'p Store);

impl Drop for WriteTurn<'_> {
    /// Where the store is poisoned, the transaction may have stayed in its log, which is replayed
    /// when this process has ended. No other process works on the pool before that.
    fn drop(&mut self) {
        if self.1.check_usable().is_ok() || planted(Bug::LostTurnGivenBack) {
            self.0.end_write();
        }
    }
}

/// A thread of this process reads.
#[derive(Debug)]
pub(crate) struct ReadTurn<'p> {
    readers: &'p Readers,
    exclusion: Exclusion<'p>,
}

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        let mut count = self.readers.locked();
        *count -= 1;
        if *count == 0 {
            self.exclusion.end_read();
            self.readers.none.notify_all();
        }
    }
}

impl PoolInner {
    /// The locks between the processes that write the pool; `None`: this process alone has it.
    #[inline]
    pub(crate) fn exclusion(&self) -> Option<Exclusion<'_>> {
        self.heap.can::<dyn Shared>()?.exclusion()
    }

    /// Fails if the store acknowledges nothing more: then the transaction that this thread has
    /// waited for may stay in its log.
    #[inline]
    pub(crate) fn refuse_left(&self) -> Result<()> {
        if planted(Bug::LostNotAskedAgain) { Ok(()) } else { refuse_unusable(&self.store.store) }
    }

    /// Waits until no other process reads or writes. The caller has the pool's own lock. `None`:
    /// there are no others.
    #[inline]
    pub(crate) fn write_turn(&self) -> Result<Option<WriteTurn<'_>>> {
        match self.exclusion() {
            None => Ok(None),
            Some(exclusion) => self.wait_to_write(exclusion).map(Some),
        }
    }

    #[cold]
    fn wait_to_write<'p>(&'p self, exclusion: Exclusion<'p>) -> Result<WriteTurn<'p>> {
        let taken = exclusion.write(patience(true)).map_err(|error| self.not_recovered(error))?;
        let _ = self.in_time(taken)?;
        self.after(WriteTurn(exclusion, &self.store.store))
    }

    /// The same without waiting; `Err(None)`: others have it.
    fn try_write_turn<'p>(
        &'p self,
        exclusion: Exclusion<'p>,
    ) -> core::result::Result<WriteTurn<'p>, Option<Error>> {
        match exclusion.try_write() {
            Ok(Some(_)) => self.after(WriteTurn(exclusion, &self.store.store)).map_err(Some),
            Ok(None) => Err(None),
            Err(error) => Err(Some(self.not_recovered(error))),
        }
    }

    /// Waits until no other process writes. The caller has the pool's own lock. `None`: there are
    /// no others.
    #[inline]
    pub(crate) fn read_turn(&self) -> Result<Option<ReadTurn<'_>>> {
        match self.exclusion() {
            None => Ok(None),
            Some(exclusion) => self.wait_to_read(exclusion).map(Some),
        }
    }

    #[cold]
    fn wait_to_read<'p>(&'p self, exclusion: Exclusion<'p>) -> Result<ReadTurn<'p>> {
        // This process may have kept the lock, and would wait for itself.
        refuse_unusable(&self.store.store)?;
        let (readers, until) = (&self.readers, patience(false));
        let mut count = self.in_time(readers.locked_until(until))?;
        // Others write too: they would wait for ever if there is always some thread here that
        // reads. But not for long: the process that wants it may have died.
        if *count > 0 && exclusion.is_wanted() && !is_any_viewed_here() {
            let busy = |count: &mut usize| *count > 0 && exclusion.is_wanted();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let courtesy = left.map_or(COURTESY, |left| left.min(COURTESY));
            let waited = readers.none.wait_timeout_while(count, courtesy, busy);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
            if left.is_some_and(|left| left <= COURTESY) && busy(&mut count) {
                return self.in_time(None);
            }
        }
        if *count == 0 {
            let taken = exclusion.read(until).map_err(|error| self.not_recovered(error))?;
            let _ = self.in_time(taken)?;
        }
        *count += 1;
        drop(count);
        self.after(ReadTurn { readers, exclusion })
    }

    /// The same without waiting for another process; `Err(None)`: one writes, or waits to.
    pub(crate) fn try_read_turn(
        &self,
    ) -> core::result::Result<Option<ReadTurn<'_>>, Option<Error>> {
        let Some(exclusion) = self.exclusion() else { return Ok(None) };
        // Its holder may be waiting for another process.
        let Ok(mut count) = self.readers.count.try_lock() else { return Err(None) };
        if *count == 0 && !exclusion.try_read() {
            return Err(None);
        }
        *count += 1;
        drop(count);
        self.after(ReadTurn { readers: &self.readers, exclusion }).map(Some).map_err(Some)
    }

    /// What others have made of the pool since is here too.
    fn after<T>(&self, turn: T) -> Result<T> {
        if let Some(shared) = self.heap.can::<dyn Shared>() {
            shared.catch_up()?;
        }
        Ok(turn)
    }

    /// Why the lock is not taken over from a dead process.
    fn not_recovered(&self, error: OpenError) -> Error {
        if let Err(error) = refuse_unusable(&self.store.store) {
            return error;
        }
        let why = self.handle.doubts();
        match why.is_empty() {
            true => error.into(),
            false => Error::NotWhole { pool: self.handle.name().to_string(), why },
        }
    }
}

/// Waits for several pools that the caller has locked in this process. It never waits for one while
/// it holds another.
pub(crate) fn turns<'p>(pools: &[&'p PoolInner]) -> Result<Vec<WriteTurn<'p>>> {
    let shared: Vec<(&'p PoolInner, Exclusion<'p>)> =
        pools.iter().filter_map(|pool| Some((*pool, pool.exclusion()?))).collect();
    let mut awaited = 0;
    'again: while let Some((first, exclusion)) = shared.get(awaited) {
        let mut turns = vec![first.wait_to_write(*exclusion)?];
        for (at, (pool, exclusion)) in shared.iter().enumerate().filter(|(at, _)| *at != awaited) {
            match pool.try_write_turn(*exclusion) {
                Ok(turn) => turns.push(turn),
                Err(None) => {
                    awaited = at;
                    continue 'again;
                }
                Err(Some(error)) => return Err(error),
            }
        }
        return Ok(turns);
    }
    Ok(Vec::new())
}
