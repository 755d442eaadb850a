//! The pools of a store that are open in this process, by name.

use crate::announced::describe_strays;
use crate::checking::Checking;
use crate::copying;
use crate::error::{Error, Result};
use crate::extensions::Extension;
use crate::open_pool::{Listing, OpenList, PoolInner, PoolWatcher};
use crate::session::Inner;
use crate::tracing::trace_due_pools;
use cenote_store::{Access, Keyring};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::ThreadId;

/// The open pools of a store.
pub(crate) fn pools_of(store: &Inner) -> &OpenPools {
    store.extensions.get()
}

/// With what right a pool is opened.
#[derive(Clone, Copy)]
pub(crate) enum Authority<'k> {
    /// The caller shows its key, or that of the store's options if there is none.
    Key(Option<&'k Keyring>),
    /// This crate looks at all pools: one that is open needs no key again.
    Internal,
    /// As [`Authority::Key`], for a copy of another pool that is to be filled: it may be held, by
    /// this thread, and unfinished.
    Copying(Option<&'k Keyring>),
}

/// The pools of a store that are open, by name.
///
/// A pool whose last handle is being dropped stays listed until its heap and its lease on the pool
/// are gone; a thread that wants to open it again waits for that.
pub(crate) struct OpenPools {
    list: Mutex<OpenList>,
    /// Names of pools that are read from their files, once for each reading thread. Looked at and
    /// changed with the list held.
    held: Mutex<Vec<(String, ThreadId)>>,
    gone: Condvar,
    watchers: Vec<Arc<dyn PoolWatcher>>,
}

/// Keeps pools from being opened, by this process, as long as it lives: a thread that wants one of
/// them waits.
pub(crate) struct HeldPools<'a> {
    pools: &'a OpenPools,
    names: Vec<String>,
    /// Of the process that holds them.
    token: u64,
}

impl Drop for HeldPools<'_> {
    fn drop(&mut self) {
        if !cenote_sys::fork_guard::is_current(self.token) {
            return;
        }
        let list = self.pools.locked();
        let mut held = self.pools.held.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            if let Some(at) = held.iter().position(|(other, _)| other == name) {
                held.swap_remove(at);
            }
        }
        drop(held);
        drop(list);
        self.pools.gone.notify_all();
    }
}

impl Extension for OpenPools {}

impl OpenPools {
    /// None is open. `watchers` hear of those that will be.
    pub(crate) fn new(watchers: Vec<Arc<dyn PoolWatcher>>) -> Self {
        Self { list: Mutex::default(), held: Mutex::default(), gone: Condvar::new(), watchers }
    }

    /// The list, which no thread changes as long as it is held.
    pub(crate) fn locked(&self) -> std::sync::MutexGuard<'_, OpenList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something while no pool that `concerns` is being closed, and none is opened. Those that
    /// are open are for the store to refuse.
    pub(crate) fn while_closed<R>(
        &self,
        concerns: impl Fn(&str) -> bool,
        work: impl FnOnce() -> R,
    ) -> R {
        let mut list = self.locked();
        while list.iter().any(|(name, pool)| concerns(name) && pool.strong_count() == 0) {
            list = self.gone.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        let done = work();
        drop(list);
        done
    }

    pub(crate) fn find_or_open(
        &self,
        store: &Arc<Inner>,
        name: &str,
        access: Access,
        by: Authority<'_>,
    ) -> Result<Arc<PoolInner>> {
        store.refuse_forked()?;
        // Tracing, and looking at values, call the program's code.
        let within = Checking::begin(store, name)?;
        // Dropped after all locks.
        let found = self.find_or_open_within(store, name, access, by);
        drop(within);
        let (pool, is_new) = found?;
        if !matches!(by, Authority::Copying(_)) {
            copying::refuse_unfinished(&pool)?;
        }
        if is_new {
            self.watchers.iter().for_each(|watcher| watcher.listed(store, &pool));
        }
        Ok(pool)
    }

    /// The pool, and whether it was opened now.
    fn find_or_open_within(
        &self,
        store: &Arc<Inner>,
        name: &str,
        access: Access,
        by: Authority<'_>,
    ) -> Result<(Arc<PoolInner>, bool)> {
        let (key, is_copying) = match by {
            Authority::Key(key) => (key, false),
            Authority::Internal => (None, false),
            Authority::Copying(key) => (key, true),
        };
        // Dropped after the lock: if one of these is the last handle, dropping it takes the lock.
        let mut others = Vec::new();
        let mut list = self.locked();
        loop {
            let mut dying = !is_copying && self.is_held(name)?;
            for (_, pool) in list.iter().filter(|(listed, _)| listed == name) {
                match pool.upgrade() {
                    // One that a policy made read-only will not become writable by asking again.
                    Some(pool) if access == Access::ReadOnly || pool.wanted.writes() => {
                        // Every opener has to give the key.
                        if matches!(by, Authority::Key(_)) && (pool.hidden || key.is_some()) {
                            drop(store.store.open_pool_with(name, Access::ReadOnly, key)?);
                        }
                        return Ok((pool, false));
                    }
                    Some(pool) => others.push(pool),
                    None => dying = true,
                }
            }
            if !dying {
                break;
            }
            list = self.gone.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        // Before the first pool is in use, so that no thread changes what is traced.
        let traced = trace_due_pools(store, &list);
        let pool = match PoolInner::open(store.clone(), name, access, key) {
            Err(Error::TraceDue { .. }) if traced.is_ok() && store.store.is_connected() => {
                // A daemon's client learns of it with the grant.
                let traced = trace_due_pools(store, &list);
                match PoolInner::open(store.clone(), name, access, key) {
                    Err(due @ Error::TraceDue { .. }) => return Err(traced.err().unwrap_or(due)),
                    pool => pool?,
                }
            }
            Err(Error::TraceDue { pool }) => {
                return Err(traced.err().unwrap_or(Error::TraceDue { pool }));
            }
            pool => pool?,
        };
        let pool =
            pool.listed(Box::new(OpenListing { store: store.clone(), name: name.to_string() }));
        describe_strays(&pool);
        self.watchers.iter().for_each(|watcher| watcher.opened(&pool));
        list.push((name.to_string(), Arc::downgrade(&pool)));
        Ok((pool, true))
    }

    /// Whether a pool is open, or is being closed.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.locked().iter().any(|(listed, _)| listed == name)
    }

    /// See [`HeldPools`]. Waits for those that are being closed; pools that are open stay open.
    pub(crate) fn hold(&self, names: Vec<String>) -> HeldPools<'_> {
        let mut list = self.locked();
        while list.iter().any(|(name, pool)| names.contains(name) && pool.strong_count() == 0) {
            list = self.gone.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        let by = std::thread::current().id();
        let named = names.iter().map(|name| (name.clone(), by));
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        drop(list);
        HeldPools { pools: self, names, token: cenote_sys::fork_guard::token() }
    }

    /// Keeps those of `names` closed that are not open for writing. `None`: one is being closed, or
    /// is open and not among those that the caller has looked at.
    pub(crate) fn hold_closed(
        &self,
        names: &[String],
        open: &[Arc<PoolInner>],
    ) -> Option<HeldPools<'_>> {
        let list = self.locked();
        let listed = |(name, _): &&(String, Weak<PoolInner>)| names.contains(name);
        let known = |(_, pool): &(String, Weak<PoolInner>)| {
            pool.strong_count() > 0 && open.iter().any(|open| core::ptr::eq(pool.as_ptr(), &**open))
        };
        if !list.iter().filter(listed).all(known) {
            return None;
        }
        let written =
            |name: &str| open.iter().any(|pool| pool.handle.is_writable() && pool.is_named(name));
        let names: Vec<String> = names.iter().filter(|name| !written(name)).cloned().collect();
        let by = std::thread::current().id();
        let named = names.iter().map(|name| (name.clone(), by));
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        drop(list);
        Some(HeldPools { pools: self, names, token: cenote_sys::fork_guard::token() })
    }

    /// Whether the name is held: by another thread, which is waited for.
    fn is_held(&self, name: &str) -> Result<bool> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let here = std::thread::current().id();
        if held.iter().any(|(other, by)| other == name && *by == here) {
            return Err(Error::WouldDeadlock { pool: name.into(), by: "an export" });
        }
        Ok(held.iter().any(|(other, _)| other == name))
    }
}

/// Takes a pool out of its store's list when it is dropped.
struct OpenListing {
    store: Arc<Inner>,
    name: String,
}

impl Listing for OpenListing {
    fn closing(&self, pool: &PoolInner) {
        pools_of(&self.store).watchers.iter().for_each(|watcher| watcher.closing(pool));
    }
}

impl Drop for OpenListing {
    fn drop(&mut self) {
        let pools = pools_of(&self.store);
        let mut list = pools.locked();
        // Of one name there is one, or one for reading whose heap kept a second from being opened.
        list.retain(|(listed, pool)| *listed != self.name || pool.strong_count() > 0);
        drop(list);
        pools.gone.notify_all();
    }
}
