//! Copies, moves and imports pools for a daemon's clients, by the code that does it in an embedded
//! store.
//!
//! An embedded store opens a pool before it copies or moves it: then no other process writes the
//! pool, its puddles are verified, and moved ones are rewritten. A store that hosts maps no pool:
//! it reads files that clients can cut short. A *hold* does here what opening does there. It is
//! memory of this process, and says of a pool:
//!
//! * *copied*: while the hold lasts, no client is granted the pool for writing, and no operation
//!   removes or moves it. Clients that read it may be there, and may come.
//! * *moved*: no client has the pool, and none is granted it.
//!
//! Nothing on the medium depends on a hold. A daemon that dies under one leaves what an embedded
//! store leaves at the same step of a clone, an import or a rewriting ([`crate::relocate`],
//! import.rs, moving.rs): orphans, or all of it.
//!
//! # Who rewrites
//!
//! Pointers of a pool that has moved are rewritten here, all of them, **before the pool is
//! granted**, and not by the client when it touches a puddle:
//!
//! * A client that reads has descriptors for reading. It could rewrite in memory of its own, but
//!   then two clients would have two images of one pool, and the file would stay pending for ever.
//! * A client that writes could store into its mapping, but one that is killed in the middle would
//!   leave half of a puddle. A whole rewriting takes a new file under the old name, and names are
//!   the daemon's.
//! * If a daemon rewrote one puddle while clients have others mapped, their threads would wait in a
//!   fault for its socket.
//!
//! So a pending puddle was never mapped since it moved, as in an embedded store. The rewriter sees
//! bytes that clients have written, and nothing else: it gets a private image, so changes of the
//! file meanwhile do no harm.
//!
//! # An import
//!
//! A client reads the archive, and sends a manifest and pieces of puddles. The daemon makes the
//! files, under identities that no client hears of before the end, and gives no descriptor of them
//! away: so no client can change a puddle behind its verification, and no client has a file of an
//! import that failed. States and commit are those of import.rs; **the batch that makes the pools
//! also says which request of the client made them, and commits both**, so a client that asks again
//! because the answer was lost is told what there is ([`Store::client_made`]).

use crate::credentials::{Credentials, bad_permissions};
use crate::hosting::pool_pins::Hold;
use crate::kernel::interface::error::{BY_DAEMON, StoreError};
use crate::kernel::interface::options::Access;
use crate::kernel::interface::report::Damage;
use crate::kernel::interface::rewriter::Rewritten;
use crate::kernel::pools::pool_rules::find;
use crate::kernel::puddles::puddle::{file_name, primary_name, text};
use crate::kernel::puddles::verify::verify_stamped;
use crate::kernel::store::{Control, Inner, Store};
use crate::manifest::{ImportManifest, Imported, ImportedPool, QuiescentPool};
use crate::pending_rewrite::Needs;
use crate::relocate::import::Import;
use crate::relocate::moving::refuse_doubtful;
use crate::write_protection::refuse_hosted;
use cenote_layout::catalog::{AtRest, DataProtection, PoolMode, PoolRecord, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_medium::{MediumError, Operation};
use std::collections::BTreeMap;

/// A hold; dropped without the control lock.
#[derive(Debug)]
struct PoolHold {
    store: Store,
    pool: PoolId,
}

impl Drop for PoolHold {
    fn drop(&mut self) {
        self.store.inner().control().held_mut().end(self.pool);
    }
}

/// A pool to be copied: a client may read it, and no operation changes it as long as this value
/// lives.
#[derive(Debug)]
pub struct ClientSource {
    pool: QuiescentPool,
    _held: PoolHold,
}

impl ClientSource {
    /// Its puddles.
    #[must_use]
    pub fn puddles(&self) -> u64 {
        self.pool.puddles.len() as u64
    }

    /// Bytes of those.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pool.puddles.iter().map(|(puddle, _)| puddle.size).sum()
    }
}

impl Store {
    /// Whether a pool is held, so that a client that wants it may wait for that.
    #[must_use]
    pub fn is_held(&self, name: &str) -> bool {
        let control = self.inner().control();
        find(&control, name).is_ok_and(|id| control.held().any(id))
    }

    /// Rewrites what is pending of a pool, for a client that may read it, so that it can be
    /// granted. Nothing to do for most.
    ///
    /// # Errors
    /// [`StoreError::Permission`]; [`StoreError::PoolBusy`]: the daemon rewrites the pool for
    /// another client; a puddle that cannot be rewritten: what was done stays done.
    pub fn client_finish(
        &self,
        credentials: &Credentials,
        name: &str,
    ) -> Result<Rewritten, StoreError> {
        let inner = self.inner();
        inner.refuse_unless_hosting()?;
        let (_held, pending) = {
            let mut control = inner.begin_write("rewrite a pool that has moved")?;
            inner.record_done(&mut control)?;
            let (id, _) = control.readable(credentials, name)?;
            let state = &control.catalog.state;
            if state.is_protected(id) {
                // It is not granted, and a process that has its key rewrites it.
                return Ok(Rewritten::default());
            }
            let mut pending = state.puddles_of(id);
            pending.retain(|puddle| state.pending.contains_key(&puddle.uuid));
            if pending.is_empty() {
                return Ok(Rewritten::default());
            }
            if inner.options.relocation.rewriter.is_none() {
                return Err(StoreError::RelocationPending {
                    name: name.into(),
                    puddles: pending.len() as u64,
                });
            }
            (control.hold(self, (id, name), Hold::Moved)?, pending)
        };
        let mut fresh = Vec::new();
        let rewritten = inner.rewrite_unmapped(&pending, &mut fresh);
        let mut control = inner.control();
        for record in &fresh {
            inner.forget_unmapped(&mut control, record);
        }
        let rewritten = rewritten?;
        inner.check_poisoned()?;
        inner.record_done(&mut control)?;
        drop(control);
        Ok(rewritten)
    }

    /// Holds a pool that a client may read, to be copied: no client writes it, nothing about it is
    /// in doubt, and no puddle of it is pending.
    ///
    /// # Errors
    /// [`StoreError::Permission`]; [`StoreError::PoolBusy`]: a client writes it, or it is being
    /// moved; [`StoreError::RelocationPending`]: [`Store::client_finish`] comes first; as
    /// [`Store::quiescent_pool`].
    pub fn client_source(
        &self,
        credentials: &Credentials,
        name: &str,
    ) -> Result<ClientSource, StoreError> {
        let inner = self.inner();
        inner.refuse_unless_hosting()?;
        self.refuse_protected(name, "a copy of a pool that a daemon keeps")?;
        let (held, record, torn, puddles) = {
            let mut control = inner.begin_write("copy a pool")?;
            let (id, record) = control.readable(credentials, name)?;
            let state = &control.catalog.state;
            let writes = |((holder, pool), writes): (&(Uuid, PoolId), &bool)| {
                (*pool == id && *writes).then(|| control.hosted().get(holder)).flatten()
            };
            if let Some(writer) = state.leases.iter().find_map(writes) {
                let by = format!("process {}", writer.pid());
                return Err(StoreError::PoolBusy { name: name.into(), by });
            }
            refuse_doubtful(&control, id, name)?;
            let puddles = state.puddles_of(id);
            let pending =
                puddles.iter().filter(|puddle| state.pending.contains_key(&puddle.uuid)).count()
                    as u64;
            if pending > 0 {
                return Err(StoreError::RelocationPending { name: name.into(), puddles: pending });
            }
            let torn = state.torn.contains(&id);
            (control.hold(self, (id, name), Hold::Copied(1))?, record, torn, puddles)
        };
        self.verify_files(&record, &puddles)?;
        inner.refuse_damaged_heap(&inner.control(), record.id)?;
        let named = |puddle: PuddleRecord| (puddle, text(&file_name(puddle.uuid)).to_owned());
        let pool = QuiescentPool {
            record,
            at_rest: AtRest::None,
            protect: DataProtection::None,
            torn,
            puddles: puddles.into_iter().map(named).collect(),
        };
        Ok(ClientSource { pool, _held: held })
    }

    /// Looks at the files of a pool.
    fn verify_files(&self, pool: &PoolRecord, puddles: &[PuddleRecord]) -> Result<(), StoreError> {
        let inner = self.inner();
        let stamps: Vec<_> = {
            let control = inner.control();
            puddles.iter().map(|puddle| inner.expected(&control.catalog.state, puddle)).collect()
        };
        let mut damage = Vec::new();
        for (expected, (puddle, stamp)) in puddles.iter().zip(stamps).enumerate() {
            let check =
                |name: &str| verify_stamped(&inner.medium, name, puddle, inner.uuid, true, stamp);
            let mut problem = match puddle.index as usize == expected {
                true => check(text(&file_name(puddle.uuid)))?,
                false => Some("the catalog has no record of one before it".into()),
            };
            if problem.is_none() && pool.mode == PoolMode::Shadowed {
                problem = check(text(&primary_name(puddle.uuid)))?;
            }
            let (uuid, pool, index) = (puddle.uuid, puddle.pool, puddle.index);
            damage.extend(problem.map(|detail| Damage::Puddle { uuid, pool, index, detail }));
        }
        if damage.is_empty() && !puddles.is_empty() {
            return Ok(());
        }
        Err(StoreError::PoolDamaged { name: pool.name.clone(), damage })
    }

    /// Copies a pool that is held, for a client whose the copy will be.
    ///
    /// # Errors
    /// As [`Store::clone_pool`]. There is no copy then.
    pub fn client_clone(
        &self,
        source: ClientSource,
        (client, token): (Uuid, Uuid),
        credentials: &Credentials,
        copy_name: &str,
    ) -> Result<Imported, StoreError> {
        let owner = (credentials.uid, credentials.gid);
        let copy = self.copy_of(&source.pool, copy_name, false, owner)?;
        // SAFETY: a copy of a pool that is held, so that nothing writes it, byte by byte.
        let made = unsafe { copy.commit_for(client, token) };
        // Not before the batch: a pool that moved meanwhile would leave the copy's pointers behind.
        drop(source);
        made
    }

    /// Gives a pool that a client may write addresses that are chosen afresh. No client, not even
    /// this one, may have any pool of the store: all of them may point into it.
    ///
    /// # Errors
    /// [`StoreError::Permission`]; [`StoreError::PoolHeld`] with the first pool that a client has;
    /// as [`Store::randomize_pool`]. Nothing has moved then.
    ///
    /// On success, what was left of earlier moves and had to be rewritten first.
    pub fn client_randomize(
        &self,
        credentials: &Credentials,
        name: &str,
    ) -> Result<Rewritten, StoreError> {
        let inner = self.inner();
        inner.refuse_unless_hosting()?;
        let pools: Vec<PoolRecord> = {
            let control = inner.begin_write("move a pool")?;
            let id = find(&control, name)?;
            let state = &control.catalog.state;
            if state.pools.get(&id).is_some_and(|pool| !credentials.allow(pool, Access::ReadWrite))
            {
                return Err(StoreError::Permission { name: name.into(), what: "written" });
            }
            // Told before the work of rewriting; what counts is asked again with the move.
            for pool in state.pools.values() {
                if let Some(by) = control.holder_of(pool.id, None) {
                    return Err(StoreError::PoolHeld { name: pool.name.clone(), by });
                }
            }
            state.pools.values().cloned().collect()
        };
        // The daemon does this itself: a client that may write one pool moves it, and the pointers
        // in all others follow it.
        let daemon = Credentials { uid: 0, gid: 0, groups: Vec::new() };
        let mut sum = Rewritten::default();
        for pool in &pools {
            self.refuse_protected(
                &pool.name,
                "a move of a pool that a daemon keeps, or of one beside it,",
            )?;
            sum.add(&self.client_finish(&daemon, &pool.name)?);
            let puddles = inner.control().catalog.state.puddles_of(pool.id);
            self.verify_files(pool, &puddles)?;
            inner.refuse_damaged_heap(&inner.control(), pool.id)?;
        }
        self.move_pool(name)?;
        Ok(sum)
    }

    /// Begins to import pools that will be a client's. They count as the client's doing only with
    /// [`Import::commit_for`].
    ///
    /// # Errors
    /// As [`Store::begin_import`]; permission bits that are none; the disk has no room.
    pub fn client_begin_import(
        &self,
        credentials: &Credentials,
        manifest: ImportManifest,
    ) -> Result<Import, StoreError> {
        self.inner().refuse_unless_hosting()?;
        self.check_for_client(&manifest)?;
        self.begin_import_for(manifest, (credentials.uid, credentials.gid))
    }

    /// Checks what [`Store::client_begin_import`] checks.
    ///
    /// # Errors
    /// As that.
    pub fn client_check_import(&self, manifest: &ImportManifest) -> Result<(), StoreError> {
        self.check_import(manifest)?;
        self.check_for_client(manifest)
    }

    /// What is checked for a client besides.
    fn check_for_client(&self, manifest: &ImportManifest) -> Result<(), StoreError> {
        if let Some(pool) = manifest.pools.iter().find(|pool| pool.permissions & !0o777 != 0) {
            return Err(bad_permissions(pool.permissions));
        }
        if manifest.disk_bytes() > self.inner().medium.free_bytes() {
            let full = std::io::ErrorKind::StorageFull.into();
            return Err(
                MediumError::from_io(Operation::Create, "the puddles of an import", full).into()
            );
        }
        Ok(())
    }

    /// The pools that a client's request of that token has made, if that was its last one that made
    /// pools: as many as it says.
    #[must_use]
    pub fn client_made(&self, client: Uuid, token: Uuid, pools: u64) -> Option<Imported> {
        let control = self.inner().control();
        let state = &control.catalog.state;
        let (_, first) = state.made.get(&client).filter(|(known, _)| *known == token)?;
        // A client may name any number: what is not there ends this before anything is counted.
        let mut made = BTreeMap::new();
        for number in 0..pools {
            let record = state.pools.get(&PoolId(first.0.checked_add(number)?))?;
            let (id, name) = (record.id, record.name.clone());
            made.insert(id, ImportedPool { id, name, moved: false, pending: 0, shared: 0 });
        }
        for (uuid, pending) in &state.pending {
            let Some(puddle) = state.puddles.get(uuid) else { continue };
            if let Some(pool) = made.get_mut(&puddle.pool) {
                pool.pending += 1;
                pool.moved |= puddle.addr != pending.from;
            }
        }
        Some(Imported { pools: made.into_values().collect() })
    }
}

impl Control {
    /// A pool that a client may read.
    fn readable(
        &self,
        credentials: &Credentials,
        name: &str,
    ) -> Result<(PoolId, PoolRecord), StoreError> {
        let id = find(self, name)?;
        refuse_hosted(name, self.catalog.state.data_protection(id))?;
        match self.catalog.state.pools.get(&id) {
            Some(pool) if credentials.allow(pool, Access::ReadOnly) => Ok((id, pool.clone())),
            Some(_) => Err(StoreError::Permission { name: name.into(), what: "read" }),
            None => Err(StoreError::PoolUnknown { name: name.into() }),
        }
    }

    fn hold(
        &mut self,
        store: &Store,
        (id, name): (PoolId, &str),
        hold: Hold,
    ) -> Result<PoolHold, StoreError> {
        match self.held_mut().add(id, hold) {
            true => Ok(PoolHold { store: store.clone(), pool: id }),
            false => Err(StoreError::PoolBusy { name: name.into(), by: BY_DAEMON.into() }),
        }
    }
}

impl Inner {
    /// Rewrites puddles that no process has mapped or maps before this returns. `fresh` gets those
    /// that this made known.
    fn rewrite_unmapped(
        &self,
        pending: &[PuddleRecord],
        fresh: &mut Vec<PuddleRecord>,
    ) -> Result<Rewritten, StoreError> {
        let mut puddles = Vec::with_capacity(pending.len());
        {
            let mut control = self.begin_write("rewrite a pool that has moved")?;
            let mut needs = Needs::default();
            for record in pending {
                let Some(of) = control.catalog.state.pending.get(&record.uuid).copied() else {
                    continue;
                };
                let known = control.puddles.contains_key(&record.uuid);
                if let Some(detail) = self.mark_pending(&mut control, record, of, &mut needs)? {
                    let (uuid, pool, index) = (record.uuid, record.pool, record.index);
                    return Err(StoreError::PuddleDamaged(Damage::Puddle {
                        uuid,
                        pool,
                        index,
                        detail,
                    }));
                }
                if let Some(puddle) = control.puddles.get(&record.uuid) {
                    if !known {
                        fresh.push(*record);
                    }
                    puddles.push(*puddle);
                }
            }
        }
        let mut sum = Rewritten::default();
        for puddle in puddles {
            // SAFETY: puddles live until the store is dropped, and those in `fresh` until the
            // caller forgets them.
            if let Some(rewritten) = self.frontier().finish(unsafe { puddle.as_ref() })? {
                sum.add(&rewritten);
            }
        }
        Ok(sum)
    }

    /// Forgets a puddle that [`Inner::rewrite_unmapped`] made known, under a hold that keeps others
    /// from it: a daemon may live long, and nothing of it is needed any more.
    fn forget_unmapped(&self, control: &mut Control, record: &PuddleRecord) {
        let Some(puddle) = control.puddles.remove(&record.uuid) else { return };
        // SAFETY: it is freed below.
        if unsafe { puddle.as_ref() }.is_marked() {
            self.stamps.note_marked(record.uuid);
        }
        // SAFETY: made by `Box::leak` in `own`, for the holder of the hold alone: in no slot of the
        // window, among those whose faults are waited for, or mapped.
        drop(unsafe { Box::from_raw(puddle.as_ptr()) });
    }
}
