//! Looks at a pool for its opener: which of its puddles are sound, and what is wrong with others.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::options::DamagePolicy;
use crate::kernel::interface::report::Damage;
use crate::kernel::pools::pool_rules::{lost_record, start_of};
use crate::kernel::puddles::opaque_part::OpaquePart;
use crate::kernel::puddles::puddle::{Puddle, file_name, primary_name, text};
use crate::kernel::store::pool_core::PoolCore;
use crate::kernel::store::{Control, Inner, Store};
use crate::pending_rewrite::Needs;
use crate::pending_rewrite::reseal::SealedFile;
use crate::sealed_files::show_view;
use crate::sealed_parts::SealedPool;
use cenote_atrest::Keyring;
use cenote_layout::catalog::{AtRest, PoolMode, PoolRecord, PuddleRecord};
use cenote_layout::id::PoolId;
use cenote_medium::MapMode;
use core::ptr::NonNull;
use std::sync::Arc;

/// A pool that is looked at.
struct Looked<'a> {
    record: &'a PoolRecord,
    protection: AtRest,
    /// Puddles in which nothing is wrong.
    sound: Vec<PuddleRecord>,
    damage: Vec<Damage>,
}

impl Looked<'_> {
    fn add_damage(&mut self, puddle: &PuddleRecord, detail: String) {
        let (uuid, index) = (puddle.uuid, puddle.index);
        self.damage.push(Damage::Puddle { uuid, pool: self.record.id, index, detail });
    }
}

impl Store {
    /// Looks at every puddle of a pool and makes the sound ones findable, read-only for now.
    pub(crate) fn make_core(
        &self,
        control: &mut Control,
        id: PoolId,
        key: Option<&Keyring>,
    ) -> Result<Arc<PoolCore>, StoreError> {
        let inner = self.inner();
        let Some(record) = control.catalog.state.pools.get(&id).cloned() else {
            return Err(StoreError::PoolUnknown { name: id.to_string() });
        };
        let records = control.catalog.state.puddles_of(id);
        if inner.writable && records.iter().any(|puddle| control.kept().contains_key(&puddle.uuid))
        {
            // Brings back what psyncs say of files that are whole again.
            inner.pool_journal(control)?;
        }
        let of_no_record = |damage: &&Damage| {
            matches!(damage, Damage::Puddle { uuid, pool, .. }
                if *pool == id && !control.catalog.state.puddles.contains_key(uuid))
        };
        let damage = control.damage.iter().filter(of_no_record).cloned().collect();
        let pending =
            records.iter().filter(|p| control.catalog.state.pending.contains_key(&p.uuid));
        let pending = pending.count() as u64;
        if pending > 0 && inner.options.relocation.rewriter.is_none() {
            return Err(StoreError::RelocationPending { name: record.name, puddles: pending });
        }
        let protection = control.catalog.state.at_rest(id);
        let mut looked = Looked { record: &record, protection, sound: Vec::new(), damage };
        inner.look_at_all(control, records, &mut looked)?;
        if pending > 0
            && protection != AtRest::None
            && !looked.damage.is_empty()
            && inner.options.damage == DamagePolicy::Refuse
        {
            // Its root puddle is not sealed anew before all of it is there: the window may move
            // again as long as all of the pool is pending.
            return Err(StoreError::PoolDamaged {
                name: record.name.clone(),
                damage: looked.damage,
            });
        }
        let part = match protection {
            AtRest::None => OpaquePart::default(),
            _ => OpaquePart::of(inner.unseal_all(control, &mut looked, key)?),
        };
        let Looked { sound, damage, .. } = looked;
        let puddles = inner.make_findable(control, sound)?;
        let start = start_of(control, id);
        Ok(Arc::new(PoolCore::opened(record, puddles, start, damage, part)))
    }
}

impl Inner {
    /// Opens the protection of a pool's sound puddles, and shows their memory.
    fn unseal_all(
        &self,
        control: &mut Control,
        looked: &mut Looked<'_>,
        key: Option<&Keyring>,
    ) -> Result<SealedPool, StoreError> {
        let name = &looked.record.name;
        let all = self.unseal(control, name, (&looked.sound, looked.protection.mode()), key)?;
        if let (true, Some(detail), Some(root)) =
            (looked.damage.is_empty(), all.not_listed, looked.sound.first().copied())
        {
            looked.add_damage(&root, detail);
        }
        looked.sound.clear();
        for opened in all.puddles {
            match opened {
                Ok((ready, opened)) => {
                    looked.sound.push(ready);
                    let puddle = self.own(control, ready, MapMode::ReadOnly);
                    let Some(opened) = opened else { continue };
                    // SAFETY: puddles live until the store is dropped.
                    let puddle = unsafe { puddle.as_ref() };
                    show_view(&self.medium, name, puddle, opened, false)?;
                }
                Err((lost, detail)) => looked.add_damage(&lost, detail),
            }
        }
        Ok(all.sealed)
    }

    /// Sorts the puddles of a pool, in index order, into sound and damaged ones.
    fn look_at_all(
        &self,
        control: &mut Control,
        records: Vec<PuddleRecord>,
        looked: &mut Looked<'_>,
    ) -> Result<(), StoreError> {
        let mut needs = Needs::default();
        let mut expected = 0;
        for puddle in records {
            while expected < puddle.index {
                looked.damage.push(lost_record(looked.record.id, expected));
                expected += 1;
            }
            expected = puddle.index + 1;
            match self.problem_of(control, &puddle, looked, &mut needs)? {
                None => looked.sound.push(puddle),
                Some(detail) => looked.add_damage(&puddle, detail),
            }
        }
        if expected == 0 {
            looked.damage.push(lost_record(looked.record.id, 0));
        }
        Ok(())
    }

    /// What is wrong with the files of a puddle.
    fn problem_of(
        &self,
        control: &mut Control,
        puddle: &PuddleRecord,
        looked: &Looked<'_>,
        needs: &mut Needs,
    ) -> Result<Option<String>, StoreError> {
        // SAFETY: puddles live until the store is dropped.
        let known = control.puddles.get(&puddle.uuid).map(|known| unsafe { known.as_ref() });
        let by_primary = known.is_some_and(Puddle::shows_primary);
        let mut problem = None;
        let pending = control.catalog.state.pending.get(&puddle.uuid).copied();
        if looked.protection != AtRest::None {
            if let SealedFile::Damaged(detail) =
                self.look_at_sealed(control, puddle, looked.protection)?
            {
                problem = Some(detail);
            }
        } else if let Some(pending) = pending {
            problem = self.mark_pending(control, puddle, pending, needs)?;
            if problem.is_none() && !by_primary {
                let name = file_name(puddle.uuid);
                problem = self.check_stamp(&control.catalog.state, puddle, text(&name))?;
            }
            if problem.is_none() && looked.record.mode == PoolMode::Shadowed {
                let name = primary_name(puddle.uuid);
                problem = self.check_stamp(&control.catalog.state, puddle, text(&name))?;
            }
        } else if !by_primary {
            problem = self.check_file(&control.catalog.state, puddle)?;
        }
        problem = problem.or_else(|| control.kept_problem(puddle.uuid, self.writable));
        if pending.is_none()
            && problem.is_none()
            && looked.record.mode == PoolMode::Shadowed
            && looked.protection == AtRest::None
            && (by_primary || self.writable)
        {
            problem = self.check_primary(&control.catalog.state, puddle)?;
        }
        Ok(problem)
    }

    /// Puts puddles into the window's table, read-only.
    fn make_findable(
        &self,
        control: &mut Control,
        sound: Vec<PuddleRecord>,
    ) -> Result<Vec<NonNull<Puddle>>, StoreError> {
        let mut puddles = Vec::with_capacity(sound.len());
        for record in sound {
            let puddle = self.own(control, record, MapMode::ReadOnly);
            // SAFETY: it lives until the store is dropped; `CatalogState::check` saw to its range.
            unsafe {
                if self.writable {
                    // Recovery had it writable. (In a read-only open its private pages hold what
                    // was replayed.)
                    puddle
                        .as_ref()
                        .set_mode(&self.medium, MapMode::ReadOnly)
                        .map_err(|e| self.failed(e))?;
                }
                self.window.insert(puddle.as_ref());
            }
            puddles.push(puddle);
        }
        Ok(puddles)
    }
}
