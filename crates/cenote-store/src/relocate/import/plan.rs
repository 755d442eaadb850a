//! Plans an import into this store: addresses, numbers, and which puddles are pending.

use super::Import;
use super::place::place;
use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::mismatch::TypeMismatch;
use crate::kernel::store::{Control, Inner};
use crate::manifest::{ImportManifest, ImportPool};
use crate::relocate::neighbours::add_neighbours;
use cenote_layout::catalog::{AtRest, MoveRecord, PuddleRecord, Record, RelocationRecord};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::pointer::PointerKind;
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;
use std::collections::BTreeMap;

/// What an import comes to, when its addresses are known.
pub(super) struct ImportPlan {
    pub(super) records: Vec<PuddleRecord>,
    pub(super) pools: Vec<PoolId>,
    pub(super) relocation: Option<RelocationRecord>,
    /// Whether it concerns the pools that are not protected, too.
    pub(super) all_pending: bool,
}

impl ImportPlan {
    /// What the puddles of a pool need, if they are pending.
    pub(super) fn pending(&self, pool: &ImportPool) -> Option<&RelocationRecord> {
        let pending = self.all_pending || pool.at_rest != AtRest::None;
        self.relocation.as_ref().filter(|_| pending)
    }
}

impl Import {
    /// Takes addresses and numbers; only this process knows of it.
    pub(super) fn plan(
        &self,
        control: &mut Control,
        roles: &[Role],
    ) -> Result<ImportPlan, StoreError> {
        let inner = self.store.inner();
        free_names(control, &self.manifest)?;
        let mut space = control.space.clone();
        let (mut records, mut moves, mut pools) = (Vec::new(), Vec::new(), Vec::new());
        let mut ids = self.ids.iter().zip(roles);
        for (number, pool) in self.manifest.pools.iter().enumerate() {
            let addrs =
                place(&mut space, &pool.puddles).ok_or_else(|| no_room(inner, control, pool))?;
            let id = PoolId(control.catalog.state.next_pool + number as u64);
            pools.push(id);
            for (index, (addr, old)) in addrs.into_iter().zip(&pool.puddles).enumerate() {
                let next = ids.next().map(|(uuid, role)| (*uuid, *role));
                let (uuid, role) = next.unwrap_or((Uuid::NIL, Role::Heap));
                let (index, size) = (index as u32, old.size);
                records.push(PuddleRecord { uuid, pool: id, role, index, addr, size });
                if addr != old.old_addr {
                    moves.push(MoveRecord { from: old.old_addr, to: addr, size });
                }
            }
        }
        if !moves.is_empty() {
            let all = self.manifest.pools.iter().flat_map(|pool| &pool.puddles);
            add_neighbours(&mut moves, all.map(|puddle| (puddle.old_addr, puddle.size)));
        }
        let renumbered: Vec<(PoolId, PoolId)> = self
            .manifest
            .pools
            .iter()
            .map(|pool| pool.old_id)
            .zip(pools.iter().copied())
            .filter(|(old, new)| old != new)
            .collect();
        let all_pending = !moves.is_empty()
            || !renumbered.is_empty() && self.manifest.types.iter().any(says_numbers);
        let protected = self.manifest.pools.iter().any(|pool| pool.at_rest != AtRest::None);
        let relocation = match all_pending || protected {
            true => Some(RelocationRecord { id: inner.random_uuid()?, moves, pools: renumbered }),
            false => None,
        };
        control.space = space;
        control.catalog.state.next_pool += self.manifest.pools.len() as u64;
        Ok(ImportPlan { records, pools, relocation, all_pending })
    }
}

pub(super) fn no_room(inner: &Inner, control: &Control, pool: &ImportPool) -> StoreError {
    StoreError::WindowFull {
        wanted: pool.puddles.iter().map(|puddle| puddle.size).sum(),
        window_len: inner.window.len(),
        free: control.space.free_bytes(),
    }
}

/// Whether values of a type may say the number of a pool.
pub(in crate::relocate) fn says_numbers(record: &TypeRecord) -> bool {
    let says = |kind| matches!(kind, PointerKind::REGION | PointerKind::HEAP);
    record.pointers.iter().any(|pointer| says(pointer.kind))
}

/// The types of a manifest that the store does not know yet.
pub(super) fn new_types(
    control: &Control,
    manifest: &ImportManifest,
) -> Result<Vec<Record>, StoreError> {
    let mut new: BTreeMap<TypeId, &TypeRecord> = BTreeMap::new();
    for offered in &manifest.types {
        offered.check()?;
        let known = control.catalog.state.types.get(&offered.id).map(|known| &**known);
        match known.or_else(|| new.get(&offered.id).copied()) {
            Some(known) if known == offered => {}
            Some(known) => {
                return Err(Box::new(TypeMismatch {
                    known: known.clone(),
                    offered: offered.clone(),
                })
                .into());
            }
            None => {
                new.insert(offered.id, offered);
            }
        }
    }
    Ok(new.into_values().cloned().map(Record::Type).collect())
}

pub(super) fn free_names(control: &Control, manifest: &ImportManifest) -> Result<(), StoreError> {
    match manifest.pools.iter().find(|pool| control.catalog.state.names.contains_key(&pool.name)) {
        Some(pool) => Err(StoreError::PoolExists { name: pool.name.clone() }),
        None => Ok(()),
    }
}
