//! Grants pools to clients ([`super`], "A grant").

use crate::credentials::Credentials;
use crate::kernel::interface::error::{BY_DAEMON, StoreError};
use crate::kernel::interface::options::Access;
use crate::kernel::interface::report::{Damage, PoolStart, concerns};
use crate::kernel::pools::pool_rules::{find, start_of};
use crate::kernel::store::{Control, Inner, Store};
use crate::write_protection::refuse_hosted;
use cenote_layout::catalog::{LeaseRecord, PoolMode, PoolRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::superblock::ORIGIN_COPY;
use cenote_medium::planted::{Bug, planted};

/// A pool that was granted.
#[derive(Clone, Debug)]
pub struct PoolGrant {
    /// What the catalog says.
    pub record: PoolRecord,
    /// How the client finds it.
    pub start: PoolStart,
    /// Whether its heap must be traced first.
    pub trace_due: bool,
    /// Why its values may not be what its transactions made them.
    pub doubts: Vec<String>,
    /// What this client's process is called, if it shares the pool.
    pub member: Option<u64>,
    /// How many types the store knows.
    pub types: u64,
}

/// A pool that a client asks for.
struct Wanted<'a> {
    client: Uuid,
    name: &'a str,
    access: Access,
    id: PoolId,
    record: PoolRecord,
}

impl Store {
    /// Grants a client a pool, for reading or for writing, until the client ends. A lease is
    /// recorded; its puddles can be asked for.
    ///
    /// # Errors
    /// [`StoreError::Permission`]; [`StoreError::PoolBusy`]; as [`Store::open_pool`] for pools that
    /// are damaged or not covered.
    pub fn client_open(
        &self,
        client: Uuid,
        credentials: &Credentials,
        name: &str,
        access: Access,
    ) -> Result<PoolGrant, StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("grant a pool")?;
        let wanted = Wanted::permitted(&control, client, credentials, (name, access))?;
        wanted.refuse_unready(&control)?;
        wanted.refuse_busy(&control)?;
        wanted.refuse_pending(&control)?;
        wanted.check_files(inner, &control)?;
        let doubts = concerns(&control.damage, wanted.id);
        if access.writes() && !doubts.is_empty() {
            return Err(StoreError::PoolLogDamaged { name: name.into(), damage: doubts });
        }
        if access.writes() && wanted.is_shadowed() {
            inner.pool_journal(&mut control)?;
        }
        let trace_due = control.catalog.state.trace_due.contains(&wanted.id);
        let start = start_of(&control, wanted.id);
        wanted.record_lease(inner, &mut control)?;
        if access.writes() {
            inner.make_ahead(&mut control, wanted.id, wanted.record.puddle_size);
        }
        let types = control.catalog.state.types.len() as u64;
        let doubts = doubts.iter().map(ToString::to_string).collect();
        let member = match access {
            Access::Shared => Some(control.name_of(client)?),
            Access::ReadOnly | Access::ReadWrite => None,
        };
        Ok(PoolGrant { record: wanted.record, start, trace_due, doubts, member, types })
    }
}

impl<'a> Wanted<'a> {
    /// The pool, if it is there for clients at all and these credentials allow this access.
    fn permitted(
        control: &Control,
        client: Uuid,
        credentials: &Credentials,
        (name, access): (&'a str, Access),
    ) -> Result<Self, StoreError> {
        let id = find(control, name)?;
        let state = &control.catalog.state;
        let Some(record) = state.pools.get(&id).cloned() else {
            return Err(StoreError::PoolUnknown { name: name.into() });
        };
        if state.is_protected(id) {
            return Err(StoreError::Protected {
                name: name.into(),
                what: "a pool that a daemon keeps",
            });
        }
        refuse_hosted(name, state.data_protection(id))?;
        if !credentials.allow(&record, access) {
            let what = if access.writes() { "written" } else { "read" };
            return Err(StoreError::Permission { name: name.into(), what });
        }
        let wanted = Self { client, name, access, id, record };
        if wanted.is_shadowed() && access == Access::Shared {
            return Err(not_shared(name));
        }
        Ok(wanted)
    }

    fn is_shadowed(&self) -> bool {
        self.record.mode == PoolMode::Shadowed
    }

    /// Refuses a pool if its values may not be whole, or if a reader cannot use its heap yet.
    fn refuse_unready(&self, control: &Control) -> Result<(), StoreError> {
        let (state, id, name) = (&control.catalog.state, &self.id, self.name);
        if state.not_covered.contains(id) {
            return Err(StoreError::PoolNotCovered { name: name.into() });
        }
        if state.torn.contains(id) {
            return Err(StoreError::PoolTorn { name: name.into() });
        }
        if control.superblock.origin == ORIGIN_COPY && !control.checked_pools.contains(id) {
            let what =
                format!("pool \"{name}\" is of a copy of an open store, and was not checked since");
            return Err(StoreError::NotHosted { what });
        }
        if state.trace_due.contains(id) && !self.access.writes() {
            let what = format!(
                "pool \"{name}\" needs recovery by tracing, after a loss of power: open it for \
                 writing once, or"
            );
            return Err(StoreError::NotHosted { what });
        }
        Ok(())
    }

    /// Refuses a pool that the daemon uses itself, or that another client has in a way that
    /// excludes this one.
    fn refuse_busy(&self, control: &Control) -> Result<(), StoreError> {
        let (state, id, name) = (&control.catalog.state, self.id, self.name);
        if control.pools.contains_key(&id) || control.held().exclude(id, self.access) {
            return Err(StoreError::PoolBusy { name: name.into(), by: BY_DAEMON.into() });
        }
        // After a loss of power one of its future sharers traces it, alone.
        let trace_due = state.trace_due.contains(&id);
        let excludes = |other: Uuid, writes: bool| match self.access {
            Access::ReadOnly => writes,
            Access::ReadWrite => true,
            Access::Shared => trace_due || !state.shared.contains(&(other, id)),
        };
        let holder = state.leases.iter().find(|((other, pool), writes)| {
            *pool == id
                && *other != self.client
                && excludes(*other, **writes)
                && control.hosted().contains_key(other)
        });
        let Some(((other, _), _)) = holder else { return Ok(()) };
        let hosted = control.hosted().get(other);
        let by = hosted
            .map_or_else(String::new, |hosted| format!("process {}", hosted.hosted_client.pid));
        Err(StoreError::PoolBusy { name: name.into(), by })
    }

    /// Refuses a pool that has moved and is not rewritten yet.
    fn refuse_pending(&self, control: &Control) -> Result<(), StoreError> {
        let state = &control.catalog.state;
        let puddles = state.puddles_of(self.id);
        let pending = puddles.iter().filter(|p| state.pending.contains_key(&p.uuid)).count() as u64;
        if pending > 0 && !planted(Bug::GrantedWhilePending) {
            return Err(StoreError::RelocationPending { name: self.name.into(), puddles: pending });
        }
        Ok(())
    }

    /// Refuses a pool with a damaged file, or without one.
    fn check_files(&self, inner: &Inner, control: &Control) -> Result<(), StoreError> {
        let state = &control.catalog.state;
        let puddles = state.puddles_of(self.id);
        let mut damage: Vec<Damage> = Vec::new();
        for (expected, puddle) in puddles.iter().enumerate() {
            let problem = match puddle.index as usize == expected {
                true => match inner.check_file(state, puddle)? {
                    None if self.is_shadowed() => inner.check_primary(state, puddle)?,
                    problem => problem,
                },
                false => Some("the catalog has no record of one before it".into()),
            };
            let (uuid, pool, index) = (puddle.uuid, self.id, puddle.index);
            damage.extend(problem.map(|detail| Damage::Puddle { uuid, pool, index, detail }));
        }
        if !damage.is_empty() || puddles.is_empty() {
            return Err(StoreError::PoolDamaged { name: self.name.into(), damage });
        }
        Ok(())
    }

    /// Records what the client may do with the pool, unless a record says so.
    fn record_lease(&self, inner: &Inner, control: &mut Control) -> Result<(), StoreError> {
        let (client, pool, writable) = (self.client, self.id, self.access.writes());
        let state = &control.catalog.state;
        let held = state.leases.get(&(client, pool)).copied();
        let shared = state.shared.contains(&(client, pool));
        let used = state.used.contains(&pool);
        let (more, lease) = match self.access {
            Access::Shared => (!shared, Record::LeaseShared { client, pool }),
            Access::ReadOnly => {
                (held.is_none(), Record::Lease(LeaseRecord { client, pool, writable }))
            }
            Access::ReadWrite => (
                held != Some(true) || shared,
                Record::Lease(LeaseRecord { client, pool, writable }),
            ),
        };
        if !more {
            return Ok(());
        }
        let mut records = control.introduce(client)?;
        records.push(lease);
        if writable && !used {
            records.push(Record::PoolUsed(pool));
        }
        if planted(Bug::GrantNotRecorded) {
            records.iter().for_each(|record| control.catalog.state.apply(record));
        } else {
            inner.commit(control, &records)?;
        }
        control.introduced(client);
        Ok(())
    }
}

fn not_shared(name: &str) -> StoreError {
    let detail = format!(
        "pool \"{name}\" is in shadowed mode, whose psyncs need a moment without a writer, and \
         processes that share a pool have no such moment: open it with Access::ReadWrite in one \
         process"
    );
    StoreError::Refused { kind: ErrorKind::Unsupported, detail }
}
