//! Connects to a store that a daemon keeps (PUD-1): the client's side.
//!
//! The daemon has the catalog, the files and the lock. The client has a [`DaemonApi`], which asks
//! the daemon; the descriptors that the daemon granted, as the files of a [`GrantedMedium`]; and a
//! *mirror*: a catalog in memory with what the daemon told the client about the store. So all
//! callers read one and the same [`crate::Store`], and only operations that change the catalog
//! come by here.
//!
//! **A change of the mirror follows the daemon's answer**: what the daemon has not granted is in no
//! mirror, and what it has granted stands in its catalog, durably, before the client hears of it.
//! So replay never needs the mirror, which dies with the client.
//!
//! Puddles are mapped when they are granted, not when they are touched, because their descriptors
//! are closed then. The client writes to no file by name, takes no lock, and neither opens nor
//! closes the store: a client that closes tells the daemon, which checks for itself that the
//! client's logs hold nothing.

use crate::daemon_api::{DaemonApi, Grant, Granted};
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::Access;
use crate::kernel::interface::report::{Damage, PoolStart};
use crate::kernel::pools::heap_puddle::NewPuddle;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::puddles::puddle::{Puddle, file_name, primary_name};
use crate::kernel::store::pool_core::PoolCore;
use crate::kernel::store::{Control, Inner, Remote, Store};
use cenote_layout::catalog::{ClientRecord, LeaseRecord, PoolMode, PuddleRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;
use cenote_log::CrashKind;
use cenote_medium::{GrantedMedium, MapMode};
use core::any::Any;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

/// What a connected store has beside an embedded one.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) daemon: Box<dyn DaemonApi>,
    files: Arc<GrantedMedium>,
    /// Bytes and puddles of pools, as the daemon listed them.
    pub(crate) listed: Mutex<BTreeMap<PoolId, (u64, u64)>>,
    /// Puddles of a pool that came with the one that was asked for, to be read next. A thread holds
    /// this lock while it opens such a file: one thread at a time admits the file's name.
    pub(crate) ahead: Mutex<Vec<Granted>>,
}

impl Store {
    /// The daemon that keeps the store, if one does.
    ///
    /// # Safety
    /// The caller sends no request that takes away what this process uses: a pool or an object that
    /// is open here is not removed, detached or moved, a pool is said to be traced only when it was
    /// ([`crate::PoolHandle::trace_done`]), registered types are as their records say, and
    /// [`DaemonApi::goodbye`] is the last request of a store that nothing uses.
    #[must_use]
    pub unsafe fn daemon(&self) -> Option<&dyn DaemonApi> {
        self.own_daemon()
    }

    /// [`Store::daemon`], for this crate, which keeps its contract at each use.
    pub(crate) fn own_daemon(&self) -> Option<&dyn DaemonApi> {
        self.inner().connection().map(|connection| &*connection.daemon)
    }

    /// Takes a file that the daemon handed over, under its name in the store, until it is mapped or
    /// [`Store::dismiss`]ed.
    ///
    /// # Errors
    /// A name that no file has.
    ///
    /// # Safety
    /// It is the file of that name in the daemon's store. What is mapped of it next is believed.
    pub unsafe fn admit_file(&self, name: &str, file: File) -> Result<(), StoreError> {
        match self.inner().connection() {
            Some(connection) => Ok(connection.files.admit(name, file)?),
            None => Ok(()),
        }
    }

    /// Forgets such a file.
    ///
    /// # Safety
    /// The caller admitted it, and nothing is about to map it. Another thread may have admitted a
    /// file of the same name; only one of them maps it.
    pub unsafe fn dismiss(&self, name: &str) {
        if let Some(connection) = self.inner().connection() {
            connection.files.dismiss(name);
        }
    }
}

impl Remote for Connection {
    fn register_types(&self, types: &[&TypeRecord]) -> Result<(), StoreError> {
        self.daemon.register_types(types)
    }

    fn trace_done(&self, pool: PoolId) -> Result<(), StoreError> {
        self.daemon.trace_done(pool)
    }

    fn ensure_space(&self, pool: PoolId, addr: u64, len: u64) -> Result<(), StoreError> {
        self.daemon.ensure_space(pool, addr, len)
    }

    fn log_puddle(
        &self,
        inner: &Inner,
        control: &mut Control,
        role: Role,
        size: u64,
    ) -> Result<PuddleRecord, StoreError> {
        inner.granted_log(self, control, role, size)
    }
}

impl Connection {
    pub(crate) fn new(daemon: Box<dyn DaemonApi>, files: Arc<GrantedMedium>) -> Self {
        Self { daemon, files, listed: Mutex::default(), ahead: Mutex::default() }
    }

    /// Has both files of each puddle of a pool in shadowed mode, to be read, until they are
    /// dismissed by these names.
    pub(crate) fn admit_files_of(&self, pool: PoolId) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        let shadows = self
            .daemon
            .puddles_from(pool, 0)?
            .into_iter()
            .map(|one| (file_name(one.record.uuid), one));
        let primaries = self.daemon.primaries_from(pool, 0)?.into_iter();
        for (name, granted) in
            shadows.chain(primaries.map(|one| (primary_name(one.record.uuid), one)))
        {
            self.files.admit(crate::kernel::puddles::puddle::text(&name), granted.file)?;
            names.push(crate::kernel::puddles::puddle::text(&name).to_owned());
        }
        Ok(names)
    }

    pub(crate) fn dismiss(&self, name: &str) {
        self.files.dismiss(name);
    }

    /// Makes a granted file the one that its puddle maps next.
    fn admit(&self, granted: Granted) -> Result<PuddleRecord, StoreError> {
        let name = file_name(granted.record.uuid);
        self.files.admit(crate::kernel::puddles::puddle::text(&name), granted.file)?;
        Ok(granted.record)
    }
}

impl Store {
    /// Whether a daemon keeps the store, and this process is a client.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.inner().is_client()
    }

    /// Takes over what types the daemon knows: other clients register some. Nothing to do in an
    /// embedded store.
    ///
    /// # Errors
    /// The daemon cannot be asked.
    pub fn learn_types(&self) -> Result<(), StoreError> {
        let Some(connection) = self.inner().connection() else { return Ok(()) };
        let types = connection.daemon.types()?;
        let mut control = self.inner().control();
        for record in types {
            record.check()?;
            control.catalog.state.apply(&Record::Type(record));
        }
        Ok(())
    }

    /// Takes over what pools there are. Those that this process has open stay as they are.
    pub(crate) fn learn_pools(&self) -> Result<(), StoreError> {
        let Some(connection) = self.inner().connection() else { return Ok(()) };
        let listed = connection.daemon.pools()?;
        let mut control = self.inner().control();
        let open: Vec<PoolId> = control.pools.keys().copied().collect();
        let gone: Vec<PoolId> = control.catalog.state.pools.keys().copied().collect();
        for pool in gone
            .into_iter()
            .filter(|pool| !open.contains(pool) && listed.iter().all(|l| l.record.id != *pool))
        {
            control.catalog.state.apply(&Record::PoolRemoved(pool));
        }
        let mut sums = connection.listed.lock().unwrap_or_else(PoisonError::into_inner);
        sums.clear();
        for pool in listed {
            sums.insert(pool.record.id, (pool.bytes, pool.puddles));
            control.catalog.state.apply(&Record::Pool(pool.record));
        }
        Ok(())
    }

    /// [`Store::open_pool`] of a client: asks for a grant, maps what was granted, and makes it
    /// findable.
    pub(crate) fn open_granted(
        &self,
        connection: &Connection,
        name: &str,
        access: Access,
    ) -> Result<PoolHandle, StoreError> {
        let inner = self.inner();
        let mut control = inner.control();
        inner.check_poisoned()?;
        let known = control
            .catalog
            .state
            .names
            .get(name)
            .and_then(|id| control.pools.get(id))
            .map(Arc::clone);
        if let Some(core) = known
            && let Some(writable) = control.is_enough(&core, access)
        {
            return Ok(PoolHandle::new(core, self.clone(), writable));
        }
        let grant = connection.daemon.open_pool(name, access)?;
        let id = grant.record.id;
        if control.catalog.state.types.len() as u64 != grant.types {
            for record in connection.daemon.types()? {
                record.check()?;
                control.catalog.state.apply(&Record::Type(record));
            }
        }
        let writable = access.writes() || grant.member.is_some();
        control.note_grant(&grant, writable);
        note_doubts(&mut control, id, grant.doubts);
        let shadowed = grant.record.mode == PoolMode::Shadowed;
        let mode = match (writable, shadowed) {
            (false, _) => MapMode::ReadOnly,
            (true, false) => MapMode::ReadWrite,
            (true, true) => MapMode::Tracked,
        };
        let mut records = Vec::with_capacity(grant.puddles.len());
        for granted in grant.puddles {
            records.push(inner.admit_granted(connection, &mut control, granted)?);
        }
        if writable && shadowed {
            // Before anything can be stored into: pages are noted from the first on, and those that
            // the dead have left are looked for.
            if grant.start == PoolStart::Dirty(CrashKind::Process) {
                control.dirty.insert(id, CrashKind::Process);
            }
            inner.shadow_of(&mut control, id)?;
        }
        let mut puddles = Vec::with_capacity(records.len());
        for record in records {
            puddles.push(inner.map_admitted(connection, &mut control, record, mode)?);
        }
        let core = match control.pools.get(&id) {
            Some(core) => {
                core.set_puddles(puddles);
                Arc::clone(core)
            }
            None => Arc::new(PoolCore::granted(grant.record, puddles, grant.start)),
        };
        if let Some(me) = grant.member {
            core.share(me);
        }
        control.pools.insert(id, Arc::clone(&core));
        Ok(PoolHandle::new(core, self.clone(), writable))
    }

    /// [`PoolHandle::learn_puddles`] of a client.
    pub(crate) fn learn_puddles_of(
        &self,
        connection: &Connection,
        core: &PoolCore,
    ) -> Result<(), StoreError> {
        let (inner, id) = (self.inner(), core.record().id);
        let mut control = inner.control();
        inner.check_usable()?;
        let first = control.catalog.state.puddles_of(id).last().map_or(0, |last| last.index + 1);
        for granted in connection.daemon.puddles_from(id, first)? {
            let puddle =
                inner.map_granted(connection, &mut control, granted, MapMode::ReadWrite)?;
            core.add_puddle(puddle);
        }
        Ok(())
    }

    /// [`PoolHandle::take_puddle`] of a client: what the daemon granted, mapped.
    pub(crate) fn take_granted(
        &self,
        connection: &Connection,
        control: &mut Control,
        NewPuddle { pool, index, size, role }: NewPuddle,
    ) -> Result<PuddleRecord, StoreError> {
        let granted = connection.daemon.take_puddle(pool, index, size, role)?;
        self.inner().admit_granted(connection, control, granted)
    }
}

impl Control {
    /// Whether a pool that this client has open may be written by another handle, if that is all
    /// that this access needs; the daemon is asked otherwise.
    fn is_enough(&mut self, core: &Arc<PoolCore>, access: Access) -> Option<bool> {
        let lease = (self.client, core.record().id);
        let held = self.catalog.state.leases.get(&lease).copied();
        // The list and the caller have references: no other has the pool, and it becomes shared.
        let alone = Arc::strong_count(core) <= 2;
        let becomes = access == Access::Shared && !core.is_shared() && alone;
        if (held == Some(true) && !becomes) || !access.writes() {
            // What others write can be looked at only as one of them.
            return Some(access.writes() || core.is_shared());
        }
        if becomes {
            // From now on the daemon is asked which pools this client has, also if this fails.
            self.catalog.state.leases.remove(&lease);
        }
        None
    }

    /// The daemon has granted this client a pool.
    fn note_grant(&mut self, grant: &Grant, writable: bool) {
        let (client, pool) = (self.client, grant.record.id);
        let state = &mut self.catalog.state;
        state.apply(&Record::Pool(grant.record.clone()));
        state.apply(&Record::Lease(LeaseRecord { client, pool, writable }));
        state.apply(&Record::PoolUsed(pool));
        if grant.trace_due {
            state.apply(&Record::TraceDue(pool));
        }
    }
}

/// Notes why a pool's values may not be what its transactions made them.
pub(crate) fn note_doubts(control: &mut Control, pool: PoolId, doubts: Vec<String>) {
    control
        .damage
        .retain(|damage| !matches!(damage, Damage::Log { pools, .. } if pools.contains(&pool)));
    control.damage.extend(doubts.into_iter().map(|detail| Damage::Log {
        client: Uuid::NIL,
        log_id: 0,
        puddle: Uuid::NIL,
        detail,
        pools: vec![pool],
    }));
}

impl Inner {
    /// The connection to the daemon that keeps the store, if one does.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        let remote = self.remote.as_deref()?;
        (remote as &dyn Any).downcast_ref()
    }

    /// Maps a puddle of a pool that was granted, and makes it findable.
    fn map_granted(
        &self,
        connection: &Connection,
        control: &mut Control,
        granted: Granted,
        mode: MapMode,
    ) -> Result<NonNull<Puddle>, StoreError> {
        let record = self.admit_granted(connection, control, granted)?;
        self.map_admitted(connection, control, record, mode)
    }

    /// Takes a puddle over that was granted, and has its file.
    fn admit_granted(
        &self,
        connection: &Connection,
        control: &mut Control,
        granted: Granted,
    ) -> Result<PuddleRecord, StoreError> {
        let record = connection.admit(granted)?;
        check_granted(control, &record, (self.window.base(), self.window.len()))?;
        control.space.occupy(record.addr, record.size);
        control.catalog.state.apply(&Record::Puddle(record));
        Ok(record)
    }

    /// Maps it, and makes it findable.
    fn map_admitted(
        &self,
        connection: &Connection,
        control: &mut Control,
        record: PuddleRecord,
        mode: MapMode,
    ) -> Result<NonNull<Puddle>, StoreError> {
        let puddle = self.own(control, record, mode);
        // SAFETY: puddles live until the store is dropped; the range was checked to lie in the
        // window, beside all others.
        unsafe {
            puddle.as_ref().set_mode(&self.medium, mode)?;
            puddle.as_ref().map(&self.medium)?;
            self.window.insert(puddle.as_ref());
        }
        connection.files.dismiss(crate::kernel::puddles::puddle::text(&file_name(record.uuid)));
        Ok(puddle)
    }

    /// A puddle for logs, from the daemon. The log space comes with its header.
    fn granted_log(
        &self,
        connection: &Connection,
        control: &mut Control,
        role: Role,
        size: u64,
    ) -> Result<PuddleRecord, StoreError> {
        let granted = connection.daemon.log_puddle(role, size)?;
        let record = self.admit_granted(connection, control, granted)?;
        if role == Role::LogSpace {
            let client = control.client;
            control
                .catalog
                .state
                .apply(&Record::Client(ClientRecord { client, log_space: record.uuid }));
        }
        Ok(record)
    }
}

/// Refuses a record that no daemon in its senses sends: outside the window, or over another puddle.
fn check_granted(
    control: &Control,
    record: &PuddleRecord,
    (base, len): (u64, u64),
) -> Result<(), StoreError> {
    let end = record.addr.checked_add(record.size);
    let inside = record.addr >= base && end.is_some_and(|end| end <= base + len);
    let aligned = record.addr.is_multiple_of(cenote_layout::SLOT_SIZE)
        && record.size.is_multiple_of(cenote_layout::PAGE_SIZE)
        && record.size != 0;
    let other = control.catalog.state.puddles.values().find(|other| {
        other.uuid != record.uuid
            && record.addr
                < other.addr.saturating_add(other.size.next_multiple_of(cenote_layout::SLOT_SIZE))
            && other.addr < end.unwrap_or(u64::MAX)
    });
    // Where a removed puddle was, another may come; one that is mapped here stays.
    let mapped = other.is_some_and(|other| control.puddles.contains_key(&other.uuid));
    if inside && aligned && !mapped {
        return Ok(());
    }
    let detail =
        format!("it granted an invalid puddle of {} bytes at {:#x}", record.size, record.addr);
    Err(StoreError::Refused { kind: ErrorKind::Io, detail })
}
