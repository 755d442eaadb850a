//! Admits guests, grants them puddles, and ends them. A guest is a session of another process in a
//! store that this process has open (PUD-1, PUD-2; Puddles paper, 3.2, 4.1, 4.3, 4.6).
//!
//! A daemon opens a store with [`OpenOptions::hosting`](crate::OpenOptions) and *admits* guests. It
//! gives them puddles, which it does not map itself, and when a guest has ended it replays the
//! guest's logs, by the same code that recovers a store at open.
//!
//! What holds at any time:
//!
//! * before a guest has a puddle of a pool, a lease record says so, and with the first one a guest
//!   record says which process it is: the next opener knows which processes may be writing, and
//!   what their logs may change;
//! * a pool has one guest that writes it, or any number that share it, all writing, or any number
//!   that read it;
//! * a puddle that a guest could write never comes to another guest under another name: it is not
//!   recycled, neither as a log nor as a spare one;
//! * logs are replayed only when the guest's process has ended, which is for the caller to know.
//!
//! # Updates in several steps
//!
//! **A grant.** One batch has the lease (and the guest record, if it is the first): **it commits**.
//! Only then descriptors are given away.
//!
//! **A grant to share.** The same, and the record says that others may have the pool too. A guest
//! that has a pool alone, and asks to share it, has one record more: **it commits**. From then on
//! it uses the pool as one of several; what it has mapped stays as it is.
//!
//! **A log space.** (1) a puddle's file is made, with the log space's header in it, synced: an
//! orphan; (2) one batch names puddle and client: **it commits**. A log's puddle is named without
//! being listed: the guest does that.
//!
//! **The end of a guest.** (1) its logs are replayed, which is idempotent, while other guests' work
//! goes on; (2) one batch ends its leases, removes it and its log puddles, and gives this process
//! the leases on what the guest could write, as its bytes are in the page cache still: **it commits
//! the recovery**; (3) the files of the logs are removed: orphans. A guest with a log that failed
//! its checks stays in the catalog as a client, with its leases and logs, and its pools are
//! reported; one batch takes its guest record: it is no process any more.

use crate::credentials::{Credentials, bad_permissions};
use crate::hosted::Hosted;
use crate::kernel::error::{BY_DAEMON, StoreError};
use crate::kernel::logs::{LOG_SPACE_SIZE, SEGMENT_SIZE_MAX, capacity_of, space_header};
use crate::kernel::options::{Access, PoolOptions};
use crate::kernel::pool_rules::{check_size, find, start_of};
use crate::kernel::puddle::{file_name, primary_name, text};
use crate::kernel::report::{Damage, LogReport, OpenReport, PoolStart, concerns};
use crate::kernel::store::{Control, Inner, Store};
use crate::recovery::recover_guest;
use cenote_journal::{Delivered, JournalError, Limits, ParcelError, Target, distinct};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{
    ClientRecord, GuestRecord, LeaseRecord, PoolMode, PoolRecord, PuddleRecord, Record,
};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{Role, header_space};
use cenote_layout::superblock::ORIGIN_COPY;
use cenote_log::{CrashKind, Outcome};
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MediumError, Operation};
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, PoisonError};
use zerocopy::IntoBytes;

/// Most bytes that one psync of a guest may come to: they are in the daemon's memory.
const PARCEL_LEN_MAX: u64 = 1 << 30;
/// Most puddles of one such psync: more than a message can name.
const PSYNC_PUDDLES_MAX: usize = 4096;
/// Most log puddles of one guest: as many as its log space has room for, and the log space.
const LOGS_MAX: usize = 1024;

/// A pool that was granted.
#[derive(Clone, Debug)]
pub struct PoolGrant {
    /// What the catalog says.
    pub record: PoolRecord,
    /// How the guest finds it.
    pub start: PoolStart,
    /// Whether its heap must be traced first.
    pub trace_due: bool,
    /// Why its values may not be what its transactions made them.
    pub doubts: Vec<String>,
    /// What this guest's process is called, if it shares the pool.
    pub member: Option<u64>,
    /// How many types the store knows.
    pub types: u64,
}

/// What the end of a guest was.
#[derive(Clone, Debug)]
pub struct GuestEnd {
    /// Its logs, and what became of them.
    pub logs: Vec<LogReport>,
    /// Logs that were set aside.
    pub damage: Vec<Damage>,
}

impl Store {
    /// Admits a guest: a process that the caller knows to live. Nothing is recorded before it is
    /// given something.
    ///
    /// # Errors
    /// The store is not open for hosting; there is such a guest.
    pub fn admit(&self, guest: GuestRecord) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("admit a client")?;
        inner.refuse_unless_hosting()?;
        let (client, state) = (guest.client, &control.catalog.state);
        // Nor one that has ended and left something, which would be this one's then.
        let known = state.clients.contains_key(&client)
            || state.guests.contains_key(&client)
            || state.leases.keys().any(|(holder, _)| *holder == client)
            || state.object_leases.keys().any(|(holder, _)| *holder == client);
        if known || client == control.client || control.hosted().contains_key(&client) {
            return Err(StoreError::Refused {
                detail: format!("there is a session {} already", guest.client),
            });
        }
        control.hosted_mut().insert(
            guest.client,
            Hosted { guest, recorded: false, logs: BTreeSet::new(), ending: false },
        );
        Ok(())
    }

    /// The guests that are there, and after an open the living ones of an earlier daemon.
    #[must_use]
    pub fn guests(&self) -> Vec<GuestRecord> {
        self.inner().control().hosted().values().map(|hosted| hosted.guest).collect()
    }

    /// Ends hosting, and with it this process's use of the store, also by its other handles. The
    /// store is closed if no guest is there, and left to the next daemon otherwise.
    ///
    /// # Errors
    /// [`StoreError::Hosting`]: guests are there. An error of the medium: the next open recovers.
    pub fn end_hosting(&self) -> Result<(), StoreError> {
        self.inner().refuse_unless_hosting()?;
        self.inner().shut_down()
    }

    /// Whether a guest was given anything, so that its end has to be waited for.
    #[must_use]
    pub fn guest_has_anything(&self, client: Uuid) -> bool {
        self.inner().control().hosted().get(&client).is_some_and(|hosted| hosted.recorded)
    }

    /// Creates a pool that belongs to a guest's user and group. Asked again with the token of the
    /// guest's last request that made a pool, because the answer was lost, it says which that was.
    ///
    /// # Errors
    /// As [`Store::create_pool`]; it is to be in shadowed mode.
    pub fn guest_create(
        &self,
        by: (Uuid, Uuid),
        credentials: &Credentials,
        name: &str,
        options: &PoolOptions,
    ) -> Result<PoolId, StoreError> {
        self.create_pool_for(name, options, (credentials.uid, credentials.gid), Some(by))
    }

    /// Grants a guest a pool, for reading or for writing, until the guest ends. A lease is
    /// recorded; its puddles can be asked for.
    ///
    /// # Errors
    /// [`StoreError::Permission`]; [`StoreError::PoolBusy`]; as [`Store::open_pool`] for pools that
    /// are damaged or not covered.
    pub fn guest_open(
        &self,
        client: Uuid,
        credentials: &Credentials,
        name: &str,
        access: Access,
    ) -> Result<PoolGrant, StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("grant a pool")?;
        let writable = access.writes();
        let id = find(&control, name)?;
        let Some(record) = control.catalog.state.pools.get(&id).cloned() else {
            return Err(StoreError::PoolUnknown { name: name.into() });
        };
        if control.catalog.state.is_protected(id) {
            return Err(StoreError::Protected {
                name: name.into(),
                what: "a pool that a daemon keeps",
            });
        }
        if !credentials.allow(&record, access) {
            let what = if writable { "written" } else { "read" };
            return Err(StoreError::Permission { name: name.into(), what });
        }
        let shadowed = record.mode == PoolMode::Shadowed;
        if shadowed && access == Access::Shared {
            return Err(not_shared(name));
        }
        let state = &control.catalog.state;
        if state.not_covered.contains(&id) {
            return Err(StoreError::PoolNotCovered { name: name.into() });
        }
        if state.torn.contains(&id) {
            return Err(StoreError::PoolTorn { name: name.into() });
        }
        if control.superblock.origin == ORIGIN_COPY && !control.checked_pools.contains(&id) {
            let what =
                format!("pool \"{name}\" is of a copy of an open store, and was not checked since");
            return Err(StoreError::NotHosted { what });
        }
        let trace_due = state.trace_due.contains(&id);
        if trace_due && !writable {
            let what = format!(
                "pool \"{name}\" must be traced after a loss of power: open it for writing once, or"
            );
            return Err(StoreError::NotHosted { what });
        }
        if control.pools.contains_key(&id) || control.held().exclude(id, access) {
            return Err(StoreError::PoolBusy { name: name.into(), by: BY_DAEMON.into() });
        }
        // After a loss of power one of those who will share it traces it, alone.
        let excludes = |other: Uuid, writes: bool| match access {
            Access::ReadOnly => writes,
            Access::ReadWrite => true,
            Access::Shared => trace_due || !state.shared.contains(&(other, id)),
        };
        let holder = state.leases.iter().find(|((other, pool), writes)| {
            *pool == id
                && *other != client
                && excludes(*other, **writes)
                && control.hosted().contains_key(other)
        });
        if let Some(((other, _), _)) = holder {
            let by = control
                .hosted()
                .get(other)
                .map_or_else(String::new, |h| format!("process {}", h.guest.pid));
            return Err(StoreError::PoolBusy { name: name.into(), by });
        }
        let due =
            state.puddles_of(id).iter().filter(|p| state.due.contains_key(&p.uuid)).count() as u64;
        if due > 0 && !planted(Bug::GrantedWhileDue) {
            return Err(StoreError::RelocationDue { name: name.into(), puddles: due });
        }
        let held = state.leases.get(&(client, id)).copied();
        let shared = state.shared.contains(&(client, id));
        let used = state.used.contains(&id);
        let puddles = state.puddles_of(id);
        let mut damage: Vec<Damage> = Vec::new();
        for (expected, puddle) in puddles.iter().enumerate() {
            let problem = match puddle.index as usize == expected {
                true => match inner.check_file(&control.catalog.state, puddle)? {
                    None if shadowed => inner.check_primary(&control.catalog.state, puddle)?,
                    problem => problem,
                },
                false => Some("the catalog has no record of one before it".into()),
            };
            let (uuid, index) = (puddle.uuid, puddle.index);
            damage.extend(problem.map(|detail| Damage::Puddle { uuid, pool: id, index, detail }));
        }
        if !damage.is_empty() || puddles.is_empty() {
            return Err(StoreError::PoolDamaged { name: name.into(), damage });
        }
        let doubts = concerns(&control.damage, id);
        if writable && !doubts.is_empty() {
            return Err(StoreError::PoolLogDamaged { name: name.into(), damage: doubts });
        }
        if writable && shadowed {
            inner.pool_journal(&mut control)?;
        }
        let start = start_of(&control, id);
        let share = access == Access::Shared;
        let more = match access {
            Access::ReadOnly => held.is_none(),
            Access::ReadWrite => held != Some(true) || shared,
            Access::Shared => !shared,
        };
        if more {
            let mut records = control.introduce(client)?;
            records.push(match share {
                true => Record::LeaseShared { client, pool: id },
                false => Record::Lease(LeaseRecord { client, pool: id, writable }),
            });
            if writable && !used {
                records.push(Record::PoolUsed(id));
            }
            if planted(Bug::GrantNotRecorded) {
                records.iter().for_each(|record| control.catalog.state.apply(record));
            } else {
                inner.commit(&mut control, &records)?;
            }
            control.introduced(client);
        }
        if writable {
            inner.make_ahead(&mut control, id, record.puddle_size);
        }
        let types = control.catalog.state.types.len() as u64;
        let doubts = doubts.iter().map(ToString::to_string).collect();
        let member = match share {
            true => Some(control.name_of(client)?),
            false => None,
        };
        Ok(PoolGrant { record, start, trace_due, doubts, member, types })
    }

    /// Guests that have a pool. A caller that wants the pool may have to wait for the end of those
    /// whose processes have ended.
    #[must_use]
    pub fn guest_holders(&self, pool: PoolId) -> Vec<Uuid> {
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

    /// What a user has in the store, in puddles and their bytes: pools and objects that belong to
    /// it, and logs of its processes that are there.
    #[must_use]
    pub fn use_of(&self, uid: u32) -> (u64, u64) {
        let control = self.inner().control();
        let state = &control.catalog.state;
        let logs: BTreeSet<Uuid> = control
            .hosted()
            .values()
            .filter(|hosted| hosted.guest.uid == uid)
            .flat_map(|hosted| hosted.logs.iter().copied())
            .collect();
        let his = |puddle: &&PuddleRecord| match puddle.role {
            Role::Heap => state.pools.get(&puddle.pool).is_some_and(|pool| pool.uid == uid),
            Role::Object => state.objects.get(&puddle.uuid).is_some_and(|object| object.uid == uid),
            _ => logs.contains(&puddle.uuid),
        };
        let sizes = state.puddles.values().filter(his).map(|puddle| puddle.size);
        sizes.fold((0, 0), |(puddles, bytes), size| (puddles + 1, bytes + size))
    }

    /// Whether a guest's last request that made pools had this token.
    #[must_use]
    pub fn guest_has_made(&self, client: Uuid, token: Uuid) -> bool {
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

    /// Who has a pool that a guest has: the processes by name, those whose end is not done with
    /// among them.
    ///
    /// # Errors
    /// The guest does not have the pool.
    pub fn guest_members(
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

    /// Puddles of a pool that a guest has, in index order, from `first` on, at most `most`; and
    /// whether it may write them.
    ///
    /// # Errors
    /// The guest does not have the pool.
    pub fn guest_puddles(
        &self,
        client: Uuid,
        pool: PoolId,
        first: u32,
        most: usize,
    ) -> Result<(Vec<PuddleRecord>, bool), StoreError> {
        let control = self.inner().control();
        let writable = control.lease_of(client, pool)?;
        let mut puddles = control.catalog.state.puddles_of(pool);
        puddles.retain(|puddle| puddle.index >= first && puddle.role == Role::Heap);
        puddles.truncate(most);
        Ok((puddles, writable))
    }

    /// A descriptor of a puddle's file, to be given away.
    ///
    /// # Errors
    /// The medium has no descriptors, or reports an error.
    ///
    /// # Safety
    /// The descriptor goes to a process that holds the lease for the puddle's pool, of this kind.
    /// What is written through it changes memory wherever the puddle is mapped.
    pub unsafe fn grant_file(
        &self,
        puddle: &PuddleRecord,
        writable: bool,
    ) -> Result<File, StoreError> {
        if writable {
            self.inner().mark_granted(puddle)?;
        }
        self.grant_named(text(&file_name(puddle.uuid)), writable)
    }

    pub(crate) fn grant_named(&self, name: &str, writable: bool) -> Result<File, StoreError> {
        let none = || {
            MediumError::from_io(Operation::Examine, name, std::io::ErrorKind::Unsupported.into())
        };
        Ok(self.inner().medium.grant(name, writable)?.ok_or_else(none)?)
    }

    /// Lets a pool that a guest writes grow by a puddle of `size` bytes; with a descriptor to be
    /// given away, if the puddle was made ahead.
    ///
    /// # Errors
    /// As [`crate::PoolHandle::take_puddle`]; the guest does not have the pool for writing.
    pub fn guest_take(
        &self,
        client: Uuid,
        pool: PoolId,
        size: u64,
    ) -> Result<(PuddleRecord, Option<File>), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("let a pool grow")?;
        let record = control.writes(client, pool, "let it grow")?;
        let existing = control.catalog.state.puddles_of(pool);
        let used: u64 = existing.iter().map(|p| p.size).sum();
        let index = existing.last().map_or(0, |p| p.index + 1);
        check_size(size, index == 0)?;
        if used.checked_add(size).is_none_or(|total| total > record.size_max) {
            return Err(StoreError::PoolFull {
                name: record.name,
                wanted: size,
                used,
                size_max: record.size_max,
            });
        }
        let shadowed = record.mode == PoolMode::Shadowed;
        // A file that was made ahead, to be given away, is marked.
        inner.add_heap_puddle(&mut control, (pool, index, size), shadowed, &[])
    }

    /// Has the next puddle of a pool that a guest writes made ahead, as
    /// [`crate::PoolHandle::expect_puddle`]: for after the guest has its answer.
    pub fn guest_expect(&self, client: Uuid, pool: PoolId, size: u64) {
        let inner = self.inner();
        if let Ok(mut control) = inner.begin_write("let a pool grow")
            && control.writes(client, pool, "let it grow").is_ok()
        {
            inner.make_ahead(&mut control, pool, size);
        }
    }

    /// Removes a pool for a guest that owns it; the guest itself may have it, and no longer use it.
    ///
    /// # Errors
    /// As [`Store::remove_pool`]; the guest is not its owner, or another guest has it.
    pub fn guest_remove(
        &self,
        client: Uuid,
        credentials: &Credentials,
        name: &str,
    ) -> Result<(), StoreError> {
        self.remove_pool_of(name, Some((client, credentials)))
    }

    /// The primary of a puddle in shadowed mode, to be given away for reading. All that its last
    /// psync left is in it.
    ///
    /// # Errors
    /// The guest does not write its pool, or that is in direct mode; what is committed cannot be
    /// brought there.
    pub fn guest_primary(&self, client: Uuid, puddle: &PuddleRecord) -> Result<File, StoreError> {
        let journal = {
            let mut control = self.inner().control();
            let record = control.writes(client, puddle.pool, "look at its last psync")?;
            if record.mode != PoolMode::Shadowed {
                return Err(StoreError::NotShadowed { name: record.name });
            }
            Arc::clone(self.inner().pool_journal(&mut control)?)
        };
        journal.settle(puddle.uuid)?;
        self.grant_named(text(&primary_name(puddle.uuid)), false)
    }

    /// Psyncs puddles of pools in shadowed mode that a guest writes: one record, whatever pools
    /// they are of. Other guests go on meanwhile.
    ///
    /// # Errors
    /// The guest does not write a pool, or that is in direct mode; the parcel makes no sense; as of
    /// any psync.
    pub fn guest_psync(
        &self,
        client: Uuid,
        puddles: &[Uuid],
        (parcel, runs): (&File, u32),
    ) -> Result<crate::Psync, StoreError> {
        let inner = self.inner();
        distinct(puddles, PSYNC_PUDDLES_MAX).map_err(of_parcel)?;
        let (journal, records) = {
            let mut control = inner.begin_write("psync for a client")?;
            let mut records = Vec::with_capacity(puddles.len());
            for uuid in puddles {
                let known = control.catalog.state.puddles.get(uuid);
                let Some(puddle) = known.filter(|puddle| puddle.role == Role::Heap) else {
                    return Err(StoreError::Refused {
                        detail: format!("there is no puddle {uuid}"),
                    });
                };
                let record = control.writes(client, puddle.pool, "psync it")?;
                if record.mode != PoolMode::Shadowed {
                    return Err(StoreError::NotShadowed { name: record.name });
                }
                records.push(*puddle);
            }
            (Arc::clone(inner.pool_journal(&mut control)?), records)
        };
        // The files are opened after all puddles are known to be this guest's. No operation removes
        // them: the guest has the pools until it ends, which comes after this.
        let mut targets = Vec::with_capacity(records.len());
        for puddle in records {
            let file = Arc::new(FileHandle::open(&inner.medium, text(&primary_name(puddle.uuid)))?);
            inner.mark_primary(puddle.uuid, &file)?;
            // The header is the store's.
            let limits = Limits { from: PAGE_SIZE, len: puddle.size, lines: false };
            targets.push((Target { id: puddle.uuid, file, data_offset: 0, rooted: None }, limits));
        }
        let done =
            journal.psync_parcel(targets, parcel, runs, PARCEL_LEN_MAX).map_err(of_parcel)?;
        let Delivered { seq, pages, data_bytes, journal_bytes } = done;
        Ok(crate::Psync { seq, pages, data_bytes, journal_bytes, ..crate::Psync::default() })
    }

    /// Takes space for a part of a puddle of a pool that a guest writes.
    ///
    /// # Errors
    /// As [`crate::PoolHandle::ensure_space`]; the guest does not have the pool for writing.
    pub fn guest_ensure(
        &self,
        client: Uuid,
        pool: PoolId,
        addr: u64,
        len: u64,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        let control = inner.begin_write("take space")?;
        control.writes(client, pool, "take space for it")?;
        let holds = |p: &&PuddleRecord| {
            let body = p.addr + header_space(p.size);
            p.pool == pool
                && addr >= body
                && addr.checked_add(len).is_some_and(|end| end <= p.addr + p.size)
        };
        let Some(puddle) = control.catalog.state.puddles.values().find(holds) else {
            return Err(StoreError::Refused {
                detail: format!("{len} bytes at {addr:#x} are in no puddle of the pool"),
            });
        };
        let name = file_name(puddle.uuid);
        inner
            .medium
            .ensure(text(&name), addr - puddle.addr, len)
            .map_err(|error| inner.failed(error))
    }

    /// Records that a guest has traced a pool that it writes.
    ///
    /// # Errors
    /// The guest does not have the pool for writing; an error of the medium.
    pub fn guest_traced(&self, client: Uuid, pool: PoolId) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("recover a pool")?;
        control.writes(client, pool, "recover it")?;
        inner.commit(&mut control, &[Record::Traced(pool)])
    }

    /// Gives a guest a puddle for a log, or its log space, which is made the first time.
    ///
    /// # Errors
    /// No such guest; more logs than a log space lists; a size that no log has; no space.
    pub fn guest_log(
        &self,
        client: Uuid,
        role: Role,
        size: u64,
    ) -> Result<PuddleRecord, StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("give a client a log")?;
        let logs = control.hosted().get(&client).ok_or(StoreError::NoGuest { client })?.logs.len();
        if let (Role::LogSpace, Some(space)) = (role, control.catalog.state.clients.get(&client))
            && let Some(puddle) = control.catalog.state.puddles.get(space)
        {
            return Ok(*puddle);
        }
        if logs >= LOGS_MAX {
            return Err(StoreError::TooManyLogs { logs: logs as u64 });
        }
        let mut records = control.introduce(client)?;
        let size = if role == Role::LogSpace { LOG_SPACE_SIZE } else { size };
        let sizes = 8192..=SEGMENT_SIZE_MAX;
        if !sizes.contains(&size) || !size.is_multiple_of(cenote_layout::PAGE_SIZE) {
            return Err(StoreError::PuddleSize { size, reason: "a log's has 8 KiB to 64 MiB" });
        }
        let record = inner.new_puddle(&mut control, PoolId(0), role, 0, size)?;
        if role == Role::LogSpace {
            let head = header_space(size);
            let header = space_header(client, capacity_of(size - head));
            let name = file_name(record.uuid);
            let written =
                inner.medium.write_at(text(&name), head, header.as_bytes()).and_then(|()| {
                    match planted(Bug::LogSpaceNotSynced) {
                        true => Ok(()),
                        false => inner.medium.sync(text(&name)),
                    }
                });
            if let Err(error) = written {
                let _ = inner.medium.remove(text(&name));
                control.space.give_back(record.addr, record.size);
                return Err(inner.failed(error));
            }
            records.push(Record::Client(ClientRecord { client, log_space: record.uuid }));
        }
        inner.commit_new_puddle(&mut control, &record, &records)?;
        control.introduced(client);
        if let Some(hosted) = control.hosted_mut().get_mut(&client) {
            hosted.logs.insert(record.uuid);
        }
        Ok(record)
    }

    /// Ends a guest whose process has ended (`well`: after a goodbye, and it will not touch its
    /// mappings again): replays its logs, and ends its leases.
    ///
    /// # Errors
    /// No such guest; an error of the medium, after which the guest is there still and this can be
    /// repeated.
    pub fn guest_end(&self, client: Uuid, well: bool) -> Result<GuestEnd, StoreError> {
        let inner = self.inner();
        let mut apart = {
            let mut control = inner.begin_write("end a client")?;
            let Some(hosted) =
                control.hosted_mut().get_mut(&client).filter(|hosted| !hosted.ending)
            else {
                return Err(StoreError::NoGuest { client });
            };
            if !hosted.recorded {
                control.hosted_mut().remove(&client);
                return Ok(GuestEnd { logs: Vec::new(), damage: Vec::new() });
            }
            hosted.ending = true;
            control.apart(inner, client)
        };
        let mut report = OpenReport::default();
        // Other guests go on, however large its logs are: none is granted what this guest has, so
        // nothing that is recorded about it changes meanwhile.
        let recovered = {
            let _replaying = inner.replaying.lock().unwrap_or_else(PoisonError::into_inner);
            recover_guest(inner, &mut apart, client, &mut report)
        };
        let mut guard = inner.begin_write("end a client")?;
        let control = &mut *guard;
        // Nothing of it is used any more.
        control.bury(apart, recovered.is_ok());
        let Some(hosted) = control.hosted_mut().get_mut(&client) else {
            return Err(StoreError::NoGuest { client });
        };
        hosted.ending = false;
        let known = hosted.logs.clone();
        let listed = recovered.map_err(|error| inner.failed(error))?;
        let known = known.iter().filter_map(|uuid| control.catalog.state.puddles.get(uuid));
        let mut logs: Vec<PuddleRecord> = known.copied().collect();
        let pools = control.catalog.state.writable_pools(client);
        let done = listed.is_some();
        // Of a guest that an earlier daemon admitted, its log space is all that is known otherwise.
        for puddle in listed.into_iter().flatten() {
            if logs.iter().all(|known| known.uuid != puddle.uuid) {
                logs.push(puddle);
            }
        }
        let idle = done && report.logs.iter().all(|log| log.outcome == Outcome::Idle);
        if done {
            let mut records = vec![Record::LeasesEnded(client), Record::ClientRemoved(client)];
            let us = control.client;
            let keep = |pool: &PoolId| {
                Record::Lease(LeaseRecord { client: us, pool: *pool, writable: true })
            };
            if !planted(Bug::GuestLeaseNotInherited) {
                records.extend(pools.iter().map(keep));
            }
            records.extend(logs.iter().map(|puddle| Record::PuddleRemoved(puddle.uuid)));
            if planted(Bug::GuestLogsRemovedEarly) {
                logs.iter()
                    .for_each(|puddle| drop(inner.medium.remove(text(&file_name(puddle.uuid)))));
            }
            inner.commit(control, &records)?;
            for puddle in &logs {
                inner.forget(control, puddle);
                let _ = inner.medium.remove(text(&file_name(puddle.uuid)));
            }
        } else {
            let records = control.catalog.state.process_ended(client);
            inner.commit(control, &records)?;
        }
        for pool in pools {
            if well && idle {
                control.dirty.remove(&pool);
            } else {
                control.dirty.insert(pool, CrashKind::Process);
                // No note of this process has what it stored: the next psync compares all pages.
                inner.forget_parts(pool);
            }
        }
        control.damage.extend(report.damage.iter().cloned());
        control.hosted_mut().remove(&client);
        Ok(GuestEnd { logs: report.logs, damage: report.damage })
    }

    /// Changes a pool's owner, group or mode, durably. Those who have the pool open keep it.
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
            connection.keeper.set_permissions(name, change)?;
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

fn of_parcel(error: ParcelError) -> StoreError {
    match error {
        ParcelError::TooLarge { limit } => StoreError::PsyncTooLarge { needed: limit + 1, limit },
        ParcelError::Medium(error) => error.into(),
        ParcelError::Journal(JournalError::NotCopied { name, source }) => {
            StoreError::NotCopied { name, source }
        }
        ParcelError::Journal(error) => error.into(),
        other => StoreError::Refused { detail: other.to_string() },
    }
}

fn not_shared(name: &str) -> StoreError {
    let detail = format!(
        "pool \"{name}\" is in shadowed mode, whose psyncs need a moment without a writer, \
         and processes that share a pool have none together: open it with Access::ReadWrite in one \
         of them"
    );
    StoreError::Refused { detail }
}

impl Control {
    /// The record of a pool that a guest writes.
    fn writes(
        &self,
        client: Uuid,
        pool: PoolId,
        what: &'static str,
    ) -> Result<PoolRecord, StoreError> {
        let writable = self.lease_of(client, pool)?;
        let Some(record) = self.catalog.state.pools.get(&pool) else {
            return Err(StoreError::PoolUnknown { name: pool.to_string() });
        };
        // Of one that shared it with this guest, and has ended.
        let damage = concerns(&self.damage, pool);
        if !damage.is_empty() {
            return Err(StoreError::PoolLogDamaged { name: record.name.clone(), damage });
        }
        if writable {
            return Ok(record.clone());
        }
        Err(StoreError::PoolReadOnly { name: record.name.clone(), what })
    }
}

impl Inner {
    /// Fails in a store whose opener did not promise what functions for guests rely on
    /// ([`crate::Hosting`]). Those that name a guest need no call: none is admitted then.
    pub(crate) fn refuse_unless_hosting(&self) -> Result<(), StoreError> {
        if self.options.hosting.is_some() {
            return Ok(());
        }
        let detail = "the store was not opened to serve guests (OpenOptions::hosting)";
        Err(StoreError::Refused { detail: detail.into() })
    }
}
