//! Goes back to the last psync of pools whose shadows are void ([`crate::shadow`] has the states).

use crate::differing::compare;
use crate::kernel::catalog::CatalogState;
use crate::kernel::catalog::journals::{JournalOf, readable};
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::{Damage, OpenReport, RestoredPool};
use crate::kernel::puddles::puddle::{
    DIR, MappingKind, Puddle, create_file, file_name, pool_named, primary_name, text,
};
use crate::kernel::puddles::verify::{about_file, of_file, verify_file};
use crate::kernel::store::{Control, Inner};
use crate::pending_rewrite::FoundRewrite;
use crate::pending_rewrite::reseal::SealedFile;
use crate::primaries::{JOURNAL, Patches, check_run, of_shadowed_pool};
use cenote_journal::{Roots, scan};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::{AtRest, PendingRewriteRecord, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_log::CrashKind;
use cenote_medium::planted::{Bug, planted};
use cenote_medium::{FileHandle, MapMode, MediumError, Operation};
use cenote_sys::bytes::store_by_kernel;
use core::ptr::NonNull;
use std::collections::BTreeSet;

/// Brings the shadows of `pools` to the last psync. Returns the pools where that cannot be done,
/// whose damage is reported; the next open tries again.
pub(crate) fn restore(
    inner: &Inner,
    control: &mut Control,
    pools: &BTreeSet<PoolId>,
    report: &mut OpenReport,
) -> Result<BTreeSet<PoolId>, MediumError> {
    if pools.is_empty() {
        return Ok(BTreeSet::new());
    }
    let read = if inner.writable {
        inner.pool_journal(control).map(|_| Patches::new())
    } else {
        past(inner, control).map(|(patches, _)| patches)
    };
    let patches = match read {
        Ok(patches) => patches,
        Err(StoreError::Medium(error)) => return Err(error),
        Err(error) => {
            let detail = match error {
                StoreError::JournalDamaged { file, detail } => format!("{file}: {detail}"),
                error => error.to_string(),
            };
            report.damage.push(Damage::Journal { detail, pools: pools.iter().copied().collect() });
            return Ok(pools.clone());
        }
    };
    let mut failed = BTreeSet::new();
    for pool in pools {
        match restore_one(inner, control, *pool, &patches)? {
            Ok(restored) => {
                // What is wrong with a shadow does not count any more.
                let known = &control.catalog.state.puddles;
                let is_its =
                    |uuid: &Uuid| known.get(uuid).is_some_and(|record| record.pool == *pool);
                report.damage.retain(
                    |damage| !matches!(damage, Damage::Puddle { uuid, .. } if is_its(uuid)),
                );
                report.restored.push(restored);
            }
            Err(problems) => {
                report.damage.extend(problems);
                failed.insert(*pool);
            }
        }
    }
    Ok(failed)
}

/// What cannot be brought back of a puddle.
fn lost(record: &PuddleRecord, detail: String) -> Damage {
    Damage::Puddle {
        uuid: record.uuid,
        pool: record.pool,
        index: record.index,
        detail: format!("its last psync cannot be brought back: {detail}"),
    }
}

/// One pool: what was done, or what is wrong with its puddles.
fn restore_one(
    inner: &Inner,
    control: &mut Control,
    pool: PoolId,
    patches: &Patches,
) -> Result<Result<RestoredPool, Vec<Damage>>, MediumError> {
    let puddles = control.catalog.state.puddles_of(pool);
    let at_rest = control.catalog.state.at_rest(pool);
    let mut problems = Vec::new();
    for record in &puddles {
        problems.extend(problem_of(inner, control, record, at_rest)?.map(|why| lost(record, why)));
    }
    if !problems.is_empty() {
        return Ok(Err(problems));
    }
    let mut pages = 0;
    // Of a protected pool the primaries are all that there is, and are read page by page.
    for record in puddles.iter().filter(|_| at_rest == AtRest::None) {
        let pending = control.catalog.state.pending.get(&record.uuid).copied();
        let copied = match inner.writable {
            true => copy_primary(inner, record, pending.as_ref()),
            false => map_primary(inner, control, record, patches.get(&record.uuid)).map(|()| 0),
        };
        match copied {
            Ok(copied) => pages += copied,
            Err(error) => problems.push(lost(record, about_file(error)?)),
        }
    }
    if !problems.is_empty() {
        return Ok(Err(problems));
    }
    let known = control.catalog.state.pools.get(&pool);
    let name = known.map_or_else(String::new, |known| known.name.clone());
    Ok(Ok(RestoredPool { pool, name, pages }))
}

/// Why a puddle's primary is not what its last psync left.
fn problem_of(
    inner: &Inner,
    control: &mut Control,
    record: &PuddleRecord,
    at_rest: AtRest,
) -> Result<Option<String>, MediumError> {
    if let Some(problem) = control.kept_problem(record.uuid, inner.writable) {
        return Ok(Some(problem));
    }
    if at_rest != AtRest::None {
        return of_file(inner.look_at_sealed(control, record, at_rest).map(SealedFile::damage));
    }
    let state = &control.catalog.state;
    of_file(match state.pending.get(&record.uuid) {
        None => inner.check_primary(state, record),
        Some(pending) => {
            inner.look_at(primary_name(record.uuid), record, pending).map(FoundRewrite::damage)
        }
    })
}

/// Makes a shadow what its primary is; returns the pages that were not.
fn copy_primary(
    inner: &Inner,
    record: &PuddleRecord,
    pending: Option<&PendingRewriteRecord>,
) -> Result<u64, MediumError> {
    if planted(Bug::ShadowNotRestored) {
        return Ok(0);
    }
    let name = file_name(record.uuid);
    let name = text(&name);
    match inner.medium.len(name) {
        Ok(len) if len == record.size => {}
        // It was synced when it was made, so this is damage; but nothing that it held counts.
        Ok(_) => inner.medium.truncate(name, record.size)?,
        Err(error) if error.is_not_found() => create_file(&inner.medium, record, inner.uuid)?,
        Err(error) => return Err(error),
    }
    let primary = FileHandle::open(&inner.medium, text(&primary_name(record.uuid)))?;
    let shadow = FileHandle::open(&inner.medium, name)?;
    let mut written = 0;
    compare(&shadow, &primary, record.size, |page, theirs| {
        written += 1;
        shadow.write_at(page * PAGE_SIZE, theirs)
    })?;
    inner.stamps.mark_anew(&shadow, record.uuid)?;
    // Descriptors are as the psync left them, and may not know of space that was given back after
    // it.
    inner.medium.ensure(name, 0, record.size)?;
    let good = match pending {
        None => verify_file(&inner.medium, record, inner.uuid, true)?.is_none(),
        Some(pending) => !matches!(
            inner.look_at(file_name(record.uuid), record, pending)?,
            FoundRewrite::Damaged(_)
        ),
    };
    if !good {
        return Err(MediumError::from_io(
            Operation::Write,
            name,
            std::io::Error::other("what was written is not what is read"),
        ));
    }
    inner.medium.sync_dir(DIR)?;
    Ok(written)
}

impl Inner {
    /// The same for a store that may have no psync yet.
    pub(crate) fn patches_if_any(&self, control: &Control) -> Result<Patches, StoreError> {
        Ok(self.past_if_any(control)?.0)
    }

    /// The same, with the roots of protected primaries before that.
    pub(crate) fn past_if_any(
        &self,
        control: &Control,
    ) -> Result<(Patches, Option<Roots>), StoreError> {
        if self.medium.exists(JOURNAL)? { past(self, control) } else { Ok(Default::default()) }
    }
}

/// Reads the journal without changing a file.
fn past(inner: &Inner, control: &Control) -> Result<(Patches, Option<Roots>), StoreError> {
    let file = match FileHandle::open(&inner.medium, JOURNAL) {
        Err(error) if error.is_not_found() => {
            let detail = "the file is missing".into();
            return Err(StoreError::JournalDamaged { file: JOURNAL, detail });
        }
        opened => readable(opened)?,
    };
    let scan = match readable(scan(&file, inner.uuid, false))? {
        Ok(cenote_journal::JournalScan { damage: Some(detail), .. }) | Err(detail) => {
            return Err(StoreError::JournalDamaged { file: JOURNAL, detail });
        }
        Ok(scan) => scan,
    };
    inner.check_journal(control, JournalOf::Pools, &scan.found())?;
    inner.check_list(&control.catalog.state, &scan)?;
    let mut patches = control.kept_patches();
    for record in &scan.records {
        let data = record.read_data(&file)?;
        record.for_each_run(&data, |id, offset, bytes| -> Result<(), StoreError> {
            let Some(puddle) = of_shadowed_pool(&control.catalog.state, id) else { return Ok(()) };
            let at_rest = control.catalog.state.at_rest(puddle.pool);
            check_run(record.header.seq, puddle, at_rest, offset, bytes.len())?;
            patches.entry(id).or_default().push((offset, bytes.to_vec()));
            Ok(())
        })?;
    }
    Ok((patches, scan.roots))
}

/// Maps a primary at its puddle's address, privately, with the journal laid over it.
fn map_primary(
    inner: &Inner,
    control: &mut Control,
    record: &PuddleRecord,
    patches: Option<&Vec<(u64, Vec<u8>)>>,
) -> Result<(), MediumError> {
    let addr = record.addr.wrapping_add(inner.window.distance());
    let here = PuddleRecord { addr, ..*record };
    let puddle = Box::leak(Box::new(Puddle::new(here, MapMode::PrivateCopy, MappingKind::Primary)));
    control.puddles.insert(record.uuid, NonNull::from(&*puddle));
    if let Some(pending) = control.catalog.state.pending.get(&record.uuid)
        && inner.look_at(primary_name(record.uuid), record, pending)? != FoundRewrite::New
    {
        // It is rewritten from this file when it is touched, with kept psyncs laid over it.
        return inner.frontier().hold_patched(record, puddle.file_name(), patches);
    }
    puddle.map(&inner.medium)?;
    for (offset, bytes) in patches.into_iter().flatten() {
        // SAFETY: mapped just now, private and writable; `check_run` saw to the range; no code has
        // a reference yet.
        unsafe { store_by_kernel((addr + offset) as usize, bytes) }
            .map_err(|error| MediumError::from_io(Operation::Read, puddle.file_name(), error))?;
    }
    let pool = pool_named(&control.catalog.state, record.pool);
    // SAFETY: the puddle's own range, mapped by this store; nothing writes to it any more.
    unsafe { puddle.close_for_stores(&pool) }
}

/// Pools in shadowed mode whose shadows are void: power failed while they were leased for writing,
/// or failed before and they could not be restored.
pub(crate) fn void(state: &CatalogState, crash: Option<CrashKind>) -> BTreeSet<PoolId> {
    let mut void = BTreeSet::new();
    if crash == Some(CrashKind::Power) {
        void.extend(
            state.leases.iter().filter(|(_, writable)| **writable).map(|((_, pool), _)| *pool),
        );
    }
    void.extend(state.not_covered.iter().copied());
    void.retain(|pool| state.is_shadowed(*pool));
    if crash.is_some() && !planted(Bug::ProtectedNotVoid) {
        // Their shadows went with their process, after an exit or a crash.
        let leased =
            state.leases.iter().filter(|(_, writable)| **writable).map(|((_, pool), _)| *pool);
        void.extend(leased.filter(|pool| state.is_protected(*pool)));
    }
    void
}
