//! The pools of a store: listing, creating, removing, opening (PUD-10; Puddles paper, 3.1 and 4.4).
//!
//! # Updates in several steps
//!
//! **Create a pool.** (1) the root puddle's file is made and synced: an orphan, or a spare puddle
//! is prepared ([`crate::kernel::pools::spare`]); (2) one batch names pool and puddle: **the
//! catalog's batch commits**; (3) nothing else. In shadowed mode the primary's file is made after
//! the puddle's, with the same contents: an orphan until (2).
//!
//! **Remove a pool.** (1) one batch takes pool and puddles out, some of which become spare: **the
//! catalog's batch commits**; (2) the files of those are made zeros, the others are removed, the
//! directory synced. Files that a crash leaves are orphans, and go at the next writable open.

use crate::credentials::{Credentials, bad_permissions};
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::{Access, DamagePolicy, PoolOptions, PowerLossPolicy};
use crate::kernel::interface::report::{Damage, PoolStart, concerns};
use crate::kernel::pools::heap_puddle::NewPuddle;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::pools::pool_rules::{check_heap, check_size, find, start_of, why_no_name};
use crate::kernel::puddles::puddle::{DIR, file_name, text};
use crate::kernel::store::{Control, Inner, Store};
use crate::write_protection::refuse_hosted;
use cenote_atrest::Keyring;
use cenote_layout::catalog::{AtRest, DataProtection, PoolMode, PoolRecord, PuddleRecord, Record};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::superblock::{INCOMPAT_POOLS_AT_REST, heap_feature};
use cenote_medium::planted::{Bug, planted};
use core::ops::ControlFlow;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

/// A pool as the store's list has it.
#[derive(Clone, Debug)]
pub struct PoolInfo {
    /// What the catalog says.
    pub record: PoolRecord,
    /// How it is protected at rest.
    pub at_rest: AtRest,
    /// How its data are write-protected. As far as a daemon's client knows, never.
    pub protect: DataProtection,
    /// Bytes of its puddles.
    pub bytes: u64,
    /// Number of its puddles.
    pub puddles: u64,
    /// Whether this process has it open.
    pub opened: bool,
    /// How this session found it.
    pub start: PoolStart,
    /// Puddles that moved with the pool and are still to be rewritten, as far as the catalog
    /// knows.
    pub pending: u64,
}

/// Refuses names that would be trouble in messages and on command lines.
fn check_name(name: &str) -> Result<(), StoreError> {
    why_no_name(name)
        .map_err(|reason| StoreError::PoolName { name: name.chars().take(80).collect(), reason })
}

/// Refuses pools that can be in no store.
fn check_new_pool(name: &str, options: &PoolOptions) -> Result<(), StoreError> {
    check_name(name)?;
    check_size(options.puddle_size, true)?;
    check_heap(name, options.heap, options.puddle_size)?;
    if options.key.is_some() && !options.at_rest.mode().has_key() {
        return Err(StoreError::NotProtected { name: name.into() });
    }
    if options.at_rest != AtRest::None && options.mode != PoolMode::Shadowed {
        return Err(StoreError::Protected { name: name.into(), what: "a pool in direct mode" });
    }
    options.protectable(name).refuse(options.protect)?;
    if options.permissions & !0o777 != 0 {
        return Err(bad_permissions(options.permissions));
    }
    if options.size_max < options.puddle_size {
        return Err(StoreError::PoolFull {
            name: name.into(),
            wanted: options.puddle_size,
            used: 0,
            size_max: options.size_max,
        });
    }
    Ok(())
}

impl Store {
    /// All pools, by number.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolInfo> {
        let mut sums: std::collections::BTreeMap<PoolId, (u64, u64)> = Default::default();
        if let Some(connection) = self.inner().connection() {
            // Where the daemon does not answer, what it said last.
            let _ = self.learn_pools();
            sums = connection.listed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        }
        let control = self.inner().control();
        let state = &control.catalog.state;
        for puddle in state.puddles.values().filter(|_| !self.is_connected()) {
            let sum = sums.entry(puddle.pool).or_default();
            *sum = (sum.0 + puddle.size, sum.1 + 1);
        }
        let mut pending: std::collections::BTreeMap<PoolId, u64> = Default::default();
        for puddle in state.pending.keys().filter_map(|uuid| state.puddles.get(uuid)) {
            *pending.entry(puddle.pool).or_default() += 1;
        }
        let info = |record: &PoolRecord| {
            let (bytes, puddles) = sums.get(&record.id).copied().unwrap_or_default();
            let opened =
                control.pools.get(&record.id).is_some_and(|core| Arc::strong_count(core) > 1);
            let start = control
                .pools
                .get(&record.id)
                .map_or_else(|| start_of(&control, record.id), |core| core.start());
            let pending = pending.get(&record.id).copied().unwrap_or_default();
            let (at_rest, protect) = (state.at_rest(record.id), state.data_protection(record.id));
            let record = record.clone();
            PoolInfo { at_rest, protect, record, bytes, puddles, opened, start, pending }
        };
        state.pools.values().map(info).collect()
    }

    /// The pools whose heaps must compute again which blocks are allocated; see
    /// [`PoolHandle::trace_due`].
    #[must_use]
    pub fn pools_due(&self) -> Vec<PoolId> {
        self.inner().control().catalog.state.trace_due.iter().copied().collect()
    }

    /// Creates a pool with its root puddle. It is durable on return; open it with
    /// [`Store::open_pool`].
    ///
    /// # Errors
    /// A bad or taken name, a size that no puddle can have or that does not fit, a full disk.
    /// Nothing has changed then.
    pub fn create_pool(&self, name: &str, options: &PoolOptions) -> Result<PoolId, StoreError> {
        check_new_pool(name, options)?;
        self.refuse_unprotected(name, options.at_rest.mode())?;
        let inner = self.inner();
        if let Some(connection) = inner.connection() {
            inner.check_usable()?;
            if options.at_rest != AtRest::None {
                return Err(StoreError::Protected {
                    name: name.into(),
                    what: "a pool that a daemon keeps",
                });
            }
            refuse_hosted(name, options.protect)?;
            let id = connection.daemon.create_pool(name, options)?;
            self.learn_pools()?;
            return Ok(id);
        }
        self.create_pool_for(name, options, crate::credentials::us(), None)
    }

    /// The same for the user and the group that the pool is to belong to; `by`: at the request of a
    /// client, with a token of its choice. A client that repeats the token of its last request that
    /// made a pool gets that pool. **The batch that makes the pool says so too, and commits both.**
    pub(crate) fn create_pool_for(
        &self,
        name: &str,
        options: &PoolOptions,
        (uid, gid): (u32, u32),
        by: Option<(Uuid, Uuid)>,
    ) -> Result<PoolId, StoreError> {
        check_new_pool(name, options)?;
        let inner = self.inner();
        let mut control = inner.begin_write("create a pool")?;
        let mut records = match by {
            Some((client, _)) => control.introduce(client)?,
            None => Vec::new(),
        };
        if let Some((client, token)) = by
            && let Some((known, pool)) = control.catalog.state.made.get(&client)
            && *known == token
        {
            return Ok(*pool);
        }
        if control.catalog.state.names.contains_key(name) {
            return Err(StoreError::PoolExists { name: name.into() });
        }
        let id = PoolId(control.catalog.state.next_pool);
        let pool = PoolRecord {
            id,
            name: name.into(),
            mode: options.mode,
            heap: options.heap,
            puddle_size: options.puddle_size,
            size_max: options.size_max,
            uid,
            gid,
            permissions: options.permissions,
            created_at_s: inner.medium.now_s(),
        };
        let feature = heap_feature(options.heap);
        if feature != 0 {
            // Before the pool, so that no older release meets one.
            inner.announce(&mut control, feature)?;
        }
        let shadowed = options.mode == PoolMode::Shadowed;
        let place = NewPuddle::root(id, options.puddle_size);
        if options.at_rest != AtRest::None {
            inner.pool_journal(&mut control)?;
            inner.announce(&mut control, INCOMPAT_POOLS_AT_REST)?;
            let with = [Record::Pool(pool), Record::PoolAtRest(id, options.at_rest)];
            let protection = (name, options.at_rest.mode(), options.key.as_deref());
            inner.add_sealed_puddle(&mut control, place, protection, &with)?;
            return Ok(id);
        }
        if shadowed {
            // Before the pool, so that there is none without a journal.
            inner.pool_journal(&mut control)?;
        }
        records.push(Record::Pool(pool));
        records.extend(inner.protected_from_now(&mut control, id, options.protect)?);
        let made = by.map(|(client, token)| Record::PoolMade { client, token, pool: id });
        if !planted(Bug::PoolMadeApart) {
            records.extend(made.clone());
        }
        inner.add_heap_puddle(&mut control, place, shadowed, &records)?;
        if planted(Bug::PoolMadeApart) {
            inner.commit(&mut control, made.as_slice())?;
        }
        if let Some((client, _)) = by {
            control.introduced(client);
        }
        Ok(id)
    }

    /// Fails as [`Store::create_pool`] would, as far as that can be told without making anything;
    /// for dry runs.
    ///
    /// # Errors
    /// A bad or taken name, a size that no puddle can have, no room in the window.
    pub fn refuse_new_pool(&self, name: &str, options: &PoolOptions) -> Result<(), StoreError> {
        check_new_pool(name, options)?;
        let control = self.inner().control();
        if control.catalog.state.names.contains_key(name) {
            return Err(StoreError::PoolExists { name: name.into() });
        }
        let mut space = control.space.clone();
        for spare in control.catalog.state.puddles.values().filter(|p| p.role == Role::Spare) {
            space.give_back(spare.addr, spare.size);
        }
        if !space.has_room(options.puddle_size) {
            return Err(StoreError::WindowFull {
                wanted: options.puddle_size,
                window_len: self.inner().window.len(),
                free: control.space.free_bytes(),
            });
        }
        Ok(())
    }

    /// Removes a pool and everything in it, durably. Pointers into it from other pools dangle.
    ///
    /// # Errors
    /// The name is not known, or the pool is open.
    pub fn remove_pool(&self, name: &str) -> Result<(), StoreError> {
        self.remove_pool_of(name, None)
    }

    /// The same, though this client has it.
    pub(crate) fn remove_pool_of(
        &self,
        name: &str,
        hosted_client: Option<(Uuid, &Credentials)>,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("remove a pool")?;
        let id = find(&control, name)?;
        if control.pools.get(&id).is_some_and(|core| Arc::strong_count(core) > 1) {
            return Err(StoreError::PoolInUse { name: name.into() });
        }
        inner.settle_logs(&control)?;
        if let Some(connection) = inner.connection() {
            connection.daemon.remove_pool(name)?;
        }
        control.refuse_removal(id, name, hosted_client)?;
        let puddles = control.catalog.state.puddles_of(id);
        let shadowed = control.catalog.state.is_shadowed(id);
        // The journal of psyncs may speak of puddles in shadowed mode: their identities are not
        // used again.
        let kept = if shadowed { BTreeSet::new() } else { inner.kept_as_spare(&control, &puddles) };
        let gone = |p: &PuddleRecord| match kept.contains(&p.uuid) {
            true => Inner::spare_record(p),
            false => Record::PuddleRemoved(p.uuid),
        };
        let mut records: Vec<Record> = puddles.iter().map(gone).collect();
        records.push(Record::PoolRemoved(id));
        inner.commit(&mut control, &records)?;
        control.pools.remove(&id);
        control
            .damage
            .retain(|damage| !matches!(damage, Damage::Puddle { pool, .. } if *pool == id));
        // Before the files go that psyncs are still to be written into.
        let forgotten = match shadowed && !inner.is_client() {
            true => inner.forget_shadow(&mut control, id, &puddles),
            false => Ok(()),
        };
        inner.remove_files(&mut control, &puddles, &kept);
        if inner.is_client() {
            return Ok(());
        }
        forgotten?;
        inner.medium.sync_dir(DIR).map_err(|error| inner.failed(error))
    }

    /// Opens a pool. For writing, a lease is recorded before anything is mapped. Only the root
    /// puddle is mapped; the others follow when they are touched. Of a pool that has moved, a
    /// puddle's pointers are rewritten before it is mapped ([`crate::relocate`]).
    ///
    /// The handle may be read-only although writing was asked for, if a policy says so: see
    /// [`PoolHandle::is_writable`].
    ///
    /// # Errors
    /// The name is not known; the store is open read-only; the pool is damaged, or not covered, and
    /// the policy is to refuse; a log that concerns it is set aside and writing is wanted; it
    /// has moved, and cannot be rewritten.
    pub fn open_pool(&self, name: &str, access: Access) -> Result<PoolHandle, StoreError> {
        self.open_pool_with(name, access, None)
    }

    /// The same for a pool that is protected at rest under this key; without one it is that of the
    /// store's options.
    ///
    /// # Errors
    /// As [`Store::open_pool`]. [`StoreError::AtRest`]: there is no key, or not the right one, or
    /// the root puddle's file is not the pool's; [`StoreError::NotProtected`]: a key was given,
    /// and the pool is not protected.
    pub fn open_pool_with(
        &self,
        name: &str,
        access: Access,
        key: Option<&Keyring>,
    ) -> Result<PoolHandle, StoreError> {
        let handle = self.open_as_it_is(name, access, key)?;
        if self.inner().frontier().is_eager() && handle.pending_rewrites() > 0 {
            handle.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
        }
        Ok(handle)
    }

    fn open_as_it_is(
        &self,
        name: &str,
        access: Access,
        key: Option<&Keyring>,
    ) -> Result<PoolHandle, StoreError> {
        let inner = self.inner();
        inner.check_usable()?;
        if access.writes() && !inner.writable {
            return Err(StoreError::ReadOnly { what: "open a pool for writing" });
        }
        if let Some(connection) = inner.connection() {
            // A daemon grants no pools that are protected. A caller with a key for this one would
            // believe that it is.
            return match key {
                Some(_) => Err(StoreError::NotProtected { name: name.into() }),
                None => self.open_granted(connection, name, access),
            };
        }
        let mut control = inner.control();
        let id = find(&control, name)?;
        let covered = inner.covered_for_writing(&control, id, name)?;
        let mut writable = access.writes() && covered;
        let mode = control.catalog.state.at_rest(id).mode();
        if key.is_some() && !mode.has_key() {
            return Err(StoreError::NotProtected { name: name.into() });
        }
        self.refuse_unprotected(name, mode)?;
        let key = key.or(inner.options.key.as_deref()).filter(|_| mode.has_key());
        let core = match control.pools.get(&id) {
            Some(core) => {
                let core = Arc::clone(core);
                inner.check_key(&mut control, &core, key)?;
                core
            }
            None => self.make_core(&mut control, id, key)?,
        };
        if !core.damage().is_empty() {
            if inner.options.damage == DamagePolicy::Refuse {
                let damage = core.damage().to_vec();
                return Err(StoreError::PoolDamaged { name: name.into(), damage });
            }
            writable = false;
        }
        if writable {
            inner.begin_writing(&mut control, id, name)?;
        }
        let handle = PoolHandle::new(core, self.clone(), writable);
        for puddle in handle.puddles() {
            if writable {
                puddle
                    .set_mode(&inner.medium, puddle.writable_mode())
                    .map_err(|e| inner.failed(e))?;
            }
            if puddle.index() == 0 || inner.eager {
                inner.make_accessible(puddle)?;
            }
        }
        control.pools.insert(id, handle.share_core());
        Ok(handle)
    }
}

impl Control {
    /// Refuses to remove a pool that another client has, or that `hosted_client` has and does not
    /// own, or that is being copied or moved.
    fn refuse_removal(
        &self,
        id: PoolId,
        name: &str,
        hosted_client: Option<(Uuid, &Credentials)>,
    ) -> Result<(), StoreError> {
        if let Some((client, credentials)) = hosted_client {
            if !self.hosted().contains_key(&client) {
                return Err(StoreError::NoClient { client });
            }
            if self.catalog.state.pools.get(&id).is_some_and(|pool| !credentials.own(pool)) {
                return Err(StoreError::Permission { name: name.into(), what: "removed" });
            }
        }
        let us = hosted_client.map(|(client, _)| client);
        if let Some(by) = self.holder_of(id, us) {
            return Err(StoreError::PoolHeld { name: name.into(), by });
        }
        Ok(())
    }
}

impl Inner {
    /// Removes the files of a removed pool's puddles, but cleans those that are `kept` as spare
    /// ones. A client forgets them, and its daemon has removed them.
    fn remove_files(&self, control: &mut Control, puddles: &[PuddleRecord], kept: &BTreeSet<Uuid>) {
        for record in puddles {
            if kept.contains(&record.uuid) {
                if self.let_go(control, record) {
                    self.clean_spare(record);
                }
                continue;
            }
            self.forget(control, record);
            if self.is_client() {
                continue;
            }
            // Left over files are orphans; the next writable open removes them.
            let _ = self.medium.remove(text(&file_name(record.uuid)));
        }
    }

    /// Whether a pool may be written although a loss of power may have torn it, by the policy for
    /// that. Refuses it if the policy does.
    fn covered_for_writing(
        &self,
        control: &Control,
        id: PoolId,
        name: &str,
    ) -> Result<bool, StoreError> {
        let state = &control.catalog.state;
        if !state.not_covered.contains(&id) {
            return Ok(true);
        }
        match self.options.power_loss_of(name) {
            PowerLossPolicy::Refuse => {
                let damage = concerns(&control.damage, id);
                if state.is_shadowed(id) && !damage.is_empty() {
                    // Its last psync is there and cannot be brought back now: say why.
                    return Err(StoreError::PoolDamaged { name: name.into(), damage });
                }
                Err(StoreError::PoolNotCovered { name: name.into() })
            }
            PowerLossPolicy::ReadOnly => Ok(false),
            // Recovery has taken the pool out of the set if it could write; else it is read-only
            // anyway.
            PowerLossPolicy::AsIs => Ok(true),
        }
    }

    /// Records that this session writes a pool. Refuses one that an undecided log is about.
    fn begin_writing(
        &self,
        control: &mut Control,
        id: PoolId,
        name: &str,
    ) -> Result<(), StoreError> {
        let of_logs =
            |damage: &Damage| matches!(damage, Damage::Log { .. } | Damage::LogSpace { .. });
        let damage: Vec<Damage> =
            concerns(&control.damage, id).into_iter().filter(of_logs).collect();
        if !damage.is_empty() {
            return Err(StoreError::PoolLogDamaged { name: name.into(), damage });
        }
        self.check_poisoned()?;
        if control.catalog.state.is_shadowed(id) {
            self.shadow_of(control, id)?;
        }
        self.lease_writable(control, id)
    }
}
