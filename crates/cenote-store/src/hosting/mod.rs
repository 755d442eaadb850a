//! Admits clients, grants them puddles, and ends them (PUD-1, PUD-2; Puddles paper, 3.2, 4.1, 4.3,
//! 4.6). A *hosted client*, here a client for short, is a session of another process in a store
//! that this process has open.
//!
//! A daemon opens a store with [`OpenOptions::hosting`](crate::OpenOptions) and *admits* clients.
//! It gives them puddles, which it does not map itself. When a client has ended, it replays the
//! client's logs, by the code that recovers a store at open.
//!
//! What holds at any time:
//!
//! * before a client has a puddle of a pool, a lease record says so; before its first puddle, a
//!   client record names its process. So the next opener knows which processes may be writing, and
//!   what their logs may change;
//! * a pool has one client that writes it, or any number that share it and write, or any number
//!   that read it;
//! * a puddle that a client could write never goes to another client under another name: it is not
//!   recycled, neither as a log nor as a spare one;
//! * logs are replayed only when the client's process has ended; the caller knows when.
//!
//! # Updates in several steps
//!
//! **A grant.** One batch has the lease (and the client record, if it is the first): **it
//! commits**. Only then descriptors go to the client.
//!
//! **A grant to share.** The same, and the record says that others may have the pool too. If a
//! client that has a pool alone asks to share it, one more record **commits** that. From then on it
//! uses the pool as one of several; its mappings stay.
//!
//! **A log space.** (1) A puddle's file is made with the log space's header in it, and synced: an
//! orphan. (2) One batch names puddle and client: **it commits**. A log's puddle is named, and the
//! client lists it.
//!
//! **The end of a client.** (1) Its logs are replayed, which is idempotent, while other clients
//! work on. (2) One batch ends its leases, removes it and its log puddles, and gives this process
//! the leases on what the client could write, as those bytes are in the page cache still: **it
//! commits the recovery**. (3) The files of the logs are removed: orphans. A client with a log that
//! failed its checks stays in the catalog with its leases and logs, and its pools are reported; one
//! batch takes its client record, because it is no process any more.

// A daemon and any other program that opens the store after a crash of it need what is here: who
// may be writing, and which logs are to be replayed (decision 584).
mod copies;
mod end;
mod grant;
mod growth;
mod logs;
mod objects;
pub(crate) mod pool_pins;
mod psync;
pub(crate) mod sessions;

use crate::credentials::{Credentials, bad_permissions};
use crate::hosting::sessions::HostedSession;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::PoolOptions;
use crate::kernel::interface::report::concerns;
use crate::kernel::pools::pool_rules::find;
use crate::kernel::store::{Inner, Store};
use cenote_layout::catalog::{HostedClientRecord, PuddleRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use std::collections::BTreeSet;

pub use copies::ClientSource;
pub use end::ClientEnd;
pub use grant::PoolGrant;

impl Store {
    /// Admits a client: a process that the caller knows to live. Nothing is recorded before it is
    /// given something.
    ///
    /// # Errors
    /// The store is not open for hosting; there is such a client.
    pub fn admit(&self, hosted_client: HostedClientRecord) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("admit a client")?;
        inner.refuse_unless_hosting()?;
        let (client, state) = (hosted_client.client, &control.catalog.state);
        // Nor one that has ended and left something, which would be this one's then.
        let known = state.clients.contains_key(&client)
            || state.hosted_clients.contains_key(&client)
            || state.leases.keys().any(|(holder, _)| *holder == client)
            || state.object_leases.keys().any(|(holder, _)| *holder == client);
        if known || client == control.client || control.hosted().contains_key(&client) {
            return Err(StoreError::Refused {
                kind: ErrorKind::Exists,
                detail: format!("there is a session {} already", hosted_client.client),
            });
        }
        control.hosted_mut().insert(
            hosted_client.client,
            HostedSession { hosted_client, recorded: false, logs: BTreeSet::new(), ending: false },
        );
        Ok(())
    }

    /// The clients that are there, and after an open the living ones of an earlier daemon.
    #[must_use]
    pub fn hosted_clients(&self) -> Vec<HostedClientRecord> {
        self.inner().control().hosted().values().map(|hosted| hosted.hosted_client).collect()
    }

    /// Ends hosting, and with it this process's use of the store, also by its other handles. The
    /// store is closed if no client is there, and left to the next daemon otherwise.
    ///
    /// # Errors
    /// [`StoreError::Hosting`]: clients are there. An error of the medium: the next open recovers.
    pub fn end_hosting(&self) -> Result<(), StoreError> {
        self.inner().refuse_unless_hosting()?;
        self.inner().shut_down()
    }

    /// Whether a client was given anything, so that its end has to be waited for.
    #[must_use]
    pub fn client_has_anything(&self, client: Uuid) -> bool {
        self.inner().control().hosted().get(&client).is_some_and(|hosted| hosted.recorded)
    }

    /// Creates a pool that belongs to a client's user and group. Asked again with the token of the
    /// client's last request that made a pool, because the answer was lost, it says which that was.
    ///
    /// # Errors
    /// As [`Store::create_pool`]; it is to be in shadowed mode.
    pub fn client_create(
        &self,
        by: (Uuid, Uuid),
        credentials: &Credentials,
        name: &str,
        options: &PoolOptions,
    ) -> Result<PoolId, StoreError> {
        self.create_pool_for(name, options, (credentials.uid, credentials.gid), Some(by))
    }

    /// Clients that have a pool. A caller that wants the pool may have to wait for the end of those
    /// whose processes have ended.
    #[must_use]
    pub fn client_holders(&self, pool: PoolId) -> Vec<Uuid> {
        let control = self.inner().control();
        let holders = control.catalog.state.leases.keys().filter(|(_, of)| *of == pool);
        holders
            .map(|(client, _)| *client)
            .filter(|client| control.hosted().contains_key(client))
            .collect()
    }

    /// Whose a pool is.
    #[must_use]
    pub fn owner_of(&self, pool: PoolId) -> Option<u32> {
        self.inner().control().catalog.state.pools.get(&pool).map(|pool| pool.uid)
    }

    /// The puddles of a user and their bytes: of its pools and objects, and of the logs of its
    /// processes.
    #[must_use]
    pub fn use_of(&self, uid: u32) -> (u64, u64) {
        let control = self.inner().control();
        let state = &control.catalog.state;
        let logs: BTreeSet<Uuid> = control
            .hosted()
            .values()
            .filter(|hosted| hosted.hosted_client.uid == uid)
            .flat_map(|hosted| hosted.logs.iter().copied())
            .collect();
        let his = |puddle: &&PuddleRecord| match puddle.role {
            Role::Heap | Role::Metadata => {
                state.pools.get(&puddle.pool).is_some_and(|pool| pool.uid == uid)
            }
            Role::Object => state.objects.get(&puddle.uuid).is_some_and(|object| object.uid == uid),
            _ => logs.contains(&puddle.uuid),
        };
        let sizes = state.puddles.values().filter(his).map(|puddle| puddle.size);
        sizes.fold((0, 0), |(puddles, bytes), size| (puddles + 1, bytes + size))
    }

    /// Whether a client's last request that made pools had this token.
    #[must_use]
    pub fn client_has_made(&self, client: Uuid, token: Uuid) -> bool {
        let control = self.inner().control();
        control.catalog.state.made.get(&client).is_some_and(|(known, _)| *known == token)
    }

    /// The number of a pool of this name.
    ///
    /// # Errors
    /// [`StoreError::PoolUnknown`].
    pub fn pool_id(&self, name: &str) -> Result<PoolId, StoreError> {
        find(&self.inner().control(), name)
    }

    /// The processes that have a client's pool, by name. Processes that have ended, and whose logs
    /// are not replayed, are among them.
    ///
    /// # Errors
    /// The client does not have the pool.
    pub fn client_members(
        &self,
        client: Uuid,
        pool: PoolId,
    ) -> Result<crate::daemon_api::MemberList, StoreError> {
        let control = self.inner().control();
        control.lease_of(client, pool)?;
        let holders = control.catalog.state.leases.keys().filter(|(_, of)| *of == pool);
        let living = holders.filter_map(|(client, _)| control.name_of(*client).ok()).collect();
        let doubts = concerns(&control.damage, pool).iter().map(ToString::to_string).collect();
        Ok(crate::daemon_api::MemberList { living, doubts })
    }

    /// Removes a pool for a client that owns it; the client itself may have it, and no longer use
    /// it.
    ///
    /// # Errors
    /// As [`Store::remove_pool`]; the client is not its owner, or another client has it.
    pub fn client_remove(
        &self,
        client: Uuid,
        credentials: &Credentials,
        name: &str,
    ) -> Result<(), StoreError> {
        self.remove_pool_of(name, Some((client, credentials)))
    }

    /// Changes a pool's owner, group or mode, durably. Clients that have the pool open keep it.
    ///
    /// # Errors
    /// There is no such pool; the caller is not its owner, or gives it away without being the
    /// superuser; bits beyond 0o777.
    pub fn set_permissions(
        &self,
        credentials: &Credentials,
        name: &str,
        change: crate::credentials::PermissionChange,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        if let Some(connection) = inner.connection() {
            inner.check_usable()?;
            connection.daemon.set_permissions(name, change)?;
            return self.learn_pools();
        }
        let mut control = inner.begin_write("change permissions")?;
        let id = find(&control, name)?;
        let Some(mut record) = control.catalog.state.pools.get(&id).cloned() else {
            return Err(StoreError::PoolUnknown { name: name.into() });
        };
        if !credentials.own(&record) || !credentials.may_give(&change, (record.uid, record.gid)) {
            return Err(StoreError::Permission {
                name: name.into(),
                what: "given other permissions",
            });
        }
        if let Some(bits) = change.permissions.filter(|bits| bits & !0o777 != 0) {
            return Err(bad_permissions(bits));
        }
        record.uid = change.uid.unwrap_or(record.uid);
        record.gid = change.gid.unwrap_or(record.gid);
        record.permissions = change.permissions.unwrap_or(record.permissions);
        inner.commit(&mut control, &[Record::Pool(record)])
    }
}

impl Inner {
    /// Fails in a store whose opener did not promise what functions for clients rely on
    /// ([`crate::Hosting`]). Those that name a client need no call: none is admitted then.
    pub(crate) fn refuse_unless_hosting(&self) -> Result<(), StoreError> {
        if self.options.hosting.is_some() {
            return Ok(());
        }
        let detail = "the store was not opened to serve clients (OpenOptions::hosting)";
        Err(StoreError::Refused { kind: ErrorKind::Misuse, detail: detail.into() })
    }
}
