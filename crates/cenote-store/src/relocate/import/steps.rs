//! Steps 2 and 3 of an import: writes what its files say, and the batch that commits.

use super::plan::{ImportPlan, free_names, new_types};
use super::{Import, refused};
use crate::kernel::interface::error::StoreError;
use crate::kernel::puddles::puddle::{
    DIR, PRIMARY_DIR, first_page, make_header, primary_name, text,
};
use crate::kernel::store::Inner;
use crate::manifest::{ImportPool, ImportPuddle, Imported, ImportedPool};
use crate::pending_rewrite::replace::copy;
use cenote_layout::PAGE_SIZE;
use cenote_layout::at_rest::AtRestHeader;
use cenote_layout::catalog::{
    AtRest, HeapKind, PendingRewriteRecord, PoolMode, PoolRecord, PuddleRecord, Record,
};
use cenote_layout::header::{read, seal};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::outline::HeapOutline;
use cenote_layout::puddle::COMPAT_SHARES_BLOCKS;
use cenote_layout::superblock::{INCOMPAT_POOLS_AT_REST, INCOMPAT_SEALED_AS, heap_feature};
use cenote_medium::FileHandle;
use cenote_medium::planted::{Bug, LoggedBug, planted};

impl Import {
    /// The pool of a slot.
    fn pool_of(&self, number: usize) -> &ImportPool {
        &self.manifest.pools[self.slots[number].pool]
    }

    fn old(&self, number: usize) -> ImportPuddle {
        let slot = &self.slots[number];
        self.manifest.pools[slot.pool].puddles[slot.puddle]
    }

    /// Step 2.
    pub(super) fn prepare(&mut self, plan: &ImportPlan) -> Result<(), StoreError> {
        let store = self.store.clone();
        let inner = store.inner();
        let failed = |error| inner.failed(error);
        let mut shadowed = false;
        for (number, record) in plan.records.iter().enumerate() {
            let pool = self.pool_of(number);
            let said = match plan.pending(pool) {
                Some(_) => PuddleRecord { addr: self.old(number).old_addr, ..*record },
                None => *record,
            };
            let file = FileHandle::open(&inner.medium, &self.slots[number].file).map_err(failed)?;
            let mut header = make_header(&said, inner.uuid);
            if self.shared.contains(&number) {
                header.prefix.compat |= COMPAT_SHARES_BLOCKS;
                seal(&mut header);
            }
            let sealed = pool.at_rest != AtRest::None;
            let page = first_page(&header, inner.stamps.made(sealed));
            file.write_at(0, &page).map_err(failed)?;
            if sealed {
                check_protection(&file, record.size, self.old(number).identity, pool)?;
            } else if let Some(outline) = HeapOutline::new(record.size, true)
                .filter(|_| record.index == 0 && has_members(pool))
            {
                // Members that the archive names do not have this pool open.
                let members = outline.members();
                let none = vec![0; (members.end - members.start) as usize];
                file.write_at(members.start, &none).map_err(failed)?;
            }
            if self.pool_of(number).mode == PoolMode::Shadowed && !sealed {
                shadowed = true;
                let primary = primary_name(record.uuid);
                inner.make_primary(&said)?;
                self.made.insert(text(&primary).into());
                let primary = FileHandle::open(&inner.medium, text(&primary)).map_err(failed)?;
                copy(&file, &primary, PAGE_SIZE, record.size).map_err(failed)?;
                inner.medium.sync(primary.name()).map_err(failed)?;
            }
            if !planted(Bug::ImportNotSynced) {
                inner.medium.sync(file.name()).map_err(failed)?;
            }
        }
        if shadowed {
            inner.medium.sync_dir(PRIMARY_DIR).map_err(failed)?;
        }
        inner.medium.sync_dir(DIR).map_err(failed)
    }

    /// Step 3.
    pub(super) fn register(&mut self, plan: &ImportPlan) -> Result<Imported, StoreError> {
        let store = self.store.clone();
        let inner = store.inner();
        let mut control = inner.begin_write("import a pool")?;
        free_names(&control, &self.manifest)?;
        let mut records = new_types(&control, &self.manifest)?;
        if let (Some((client, token)), Some(pool)) = (self.by, plan.pools.first().copied()) {
            records.extend(control.introduce(client)?);
            if !planted(Bug::ImportNotRemembered) {
                records.push(Record::PoolMade { client, token, pool });
            }
        }
        if self.manifest.pools.iter().any(|pool| pool.mode == PoolMode::Shadowed) {
            // Before the pool, so that there is none without a journal.
            inner.pool_journal(&mut control)?;
        }
        let mut imported = Imported::default();
        for (pool, id) in self.manifest.pools.iter().zip(&plan.pools) {
            let unsaid = planted(Bug::Logged(LoggedBug::ImportUnsaid));
            let feature = heap_feature(pool.heap);
            if feature != 0 && !unsaid {
                inner.announce(&mut control, feature)?;
            }
            if pool.at_rest != AtRest::None {
                inner.announce(&mut control, INCOMPAT_POOLS_AT_REST | INCOMPAT_SEALED_AS)?;
            }
            records.extend(self.pool_records(inner, pool, *id));
            records.extend(inner.protected_from_now(&mut control, *id, pool.protect)?);
            imported.pools.push(self.imported(plan, pool, *id));
        }
        for record in &plan.records {
            inner.announce_role(&mut control, record.role)?;
        }
        records.extend(plan.records.iter().map(|record| Record::Puddle(*record)));
        records.extend(self.pending_records(plan));
        inner.commit(&mut control, &records)?;
        self.made.clear();
        if let Some((client, _)) = self.by {
            control.introduced(client);
        }
        Ok(imported)
    }

    /// What the catalog says of an imported pool.
    fn pool_records(&self, inner: &Inner, pool: &ImportPool, id: PoolId) -> Vec<Record> {
        let mut records = vec![Record::Pool(PoolRecord {
            id,
            name: pool.name.clone(),
            mode: pool.mode,
            heap: pool.heap,
            puddle_size: pool.puddle_size,
            size_max: pool.size_max,
            uid: self.uid,
            gid: self.gid,
            permissions: pool.permissions,
            created_at_s: inner.medium.now_s(),
        })];
        if pool.at_rest != AtRest::None {
            records.push(Record::PoolAtRest(id, pool.at_rest));
        }
        if pool.torn && !planted(Bug::TornNotCopied) {
            records.push(Record::PoolTorn(id));
        }
        // It is not as a pool is when it is created.
        records.push(Record::PoolUsed(id));
        records
    }

    /// What the caller learns of an imported pool.
    fn imported(&self, plan: &ImportPlan, pool: &ImportPool, id: PoolId) -> ImportedPool {
        let own = plan.records.iter().filter(|record| record.pool == id);
        let moved = own.zip(&pool.puddles).any(|(record, old)| record.addr != old.old_addr);
        let pending = plan.pending(pool).map_or(0, |_| pool.puddles.len() as u64);
        let of_pool =
            |slot: &&usize| plan.records.get(**slot).is_some_and(|record| record.pool == id);
        let shared = self.shared.iter().filter(of_pool).count() as u64;
        ImportedPool { id, name: pool.name.clone(), moved, pending, shared }
    }

    /// Where the puddles went, and which of them are pending.
    fn pending_records(&self, plan: &ImportPlan) -> Vec<Record> {
        let Some(moved) = &plan.relocation else { return Vec::new() };
        let mut records = vec![Record::Relocation(moved.clone())];
        for (number, record) in
            plan.records.iter().enumerate().filter(|_| !planted(Bug::ImportNotPending))
        {
            let (pool, old, puddle) = (self.pool_of(number), self.old(number), record.uuid);
            if plan.pending(pool).is_none() {
                continue;
            }
            let (relocation, from) = (moved.id, old.old_addr);
            records.push(Record::PendingRewrite(PendingRewriteRecord {
                puddle,
                relocation,
                from,
                generation: 2,
            }));
            if pool.at_rest != AtRest::None && !planted(Bug::SealedAsForgotten) {
                records.push(Record::SealedAs { puddle, identity: old.identity });
            }
        }
        records
    }
}

/// Whether a root puddle names the processes that have the pool open: that of a traced heap does.
fn has_members(pool: &ImportPool) -> bool {
    pool.heap == HeapKind::Traced || planted(Bug::Logged(LoggedBug::MembersCleared))
}

/// Refuses a file whose protection is not the one that the manifest says.
fn check_protection(
    file: &FileHandle,
    size: u64,
    identity: Uuid,
    pool: &ImportPool,
) -> Result<(), StoreError> {
    let mut bytes = [0; size_of::<AtRestHeader>()];
    file.read_exact_at(size, &mut bytes)?;
    let not_it = |detail: String| {
        refused(format!("a puddle of pool \"{}\" is another one: {detail}", pool.name))
    };
    let header: AtRestHeader = read(&bytes, true).map_err(|error| not_it(error.to_string()))?;
    let mode = pool.at_rest.mode();
    if header.object != identity {
        return Err(not_it(format!("it is sealed as {}, not as {identity}", header.object)));
    }
    if header.mode != mode as u32 {
        return Err(not_it(format!("its protection is not \"{mode}\"")));
    }
    if header.pages != (size - PAGE_SIZE) / PAGE_SIZE {
        return Err(not_it(format!("its protection is of {} pages", header.pages)));
    }
    Ok(())
}
