//! Refuses manifests that no store may take.

use super::refused;
use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::pool_rules::{check_heap, check_size, why_no_name};
use crate::manifest::ImportManifest;
use cenote_layout::SLOT_SIZE;
use cenote_layout::catalog::{AtRest, PoolMode, RELOCATION_MOVES_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// Addresses of programs lie below this.
const ADDRESS_END: u64 = 1 << 47;

/// Checks what does not depend on the store. Manifests come from archives, so nothing in them is
/// believed.
pub(super) fn check(manifest: &ImportManifest) -> Result<(), StoreError> {
    let count: usize = manifest.pools.iter().map(|pool| pool.puddles.len()).sum();
    if manifest.pools.is_empty() {
        return Err(refused("there is no pool to import"));
    }
    if count > RELOCATION_MOVES_MAX || manifest.pools.len() > RELOCATION_MOVES_MAX {
        return Err(refused(format!(
            "it has {count} puddles, and at most {RELOCATION_MOVES_MAX} are imported together: \
             import fewer pools at once"
        )));
    }
    let (mut names, mut numbers, mut ranges) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
    for pool in &manifest.pools {
        let name = || pool.name.chars().take(80).collect::<String>();
        why_no_name(&pool.name).map_err(|reason| StoreError::PoolName { name: name(), reason })?;
        if !names.insert(&pool.name) || !numbers.insert(pool.old_id) {
            return Err(refused(format!("pool \"{}\" is in it twice, by name or number", name())));
        }
        if pool.at_rest != AtRest::None && pool.mode != PoolMode::Shadowed {
            return Err(StoreError::Protected { name: name(), what: "a pool in direct mode" });
        }
        if pool.puddles.is_empty() {
            return Err(refused(format!("pool \"{}\" has no puddle", name())));
        }
        let mut sum = 0u64;
        for (index, puddle) in pool.puddles.iter().enumerate() {
            check_size(puddle.size, index == 0)?;
            sum = sum.saturating_add(puddle.size);
            let end = puddle.old_addr.checked_add(puddle.size).filter(|end| *end <= ADDRESS_END);
            if puddle.old_addr == 0 || !puddle.old_addr.is_multiple_of(SLOT_SIZE) || end.is_none() {
                return Err(refused(format!(
                    "a puddle has the address {:#x}, where none can be",
                    puddle.old_addr
                )));
            }
            if ranges.insert(puddle.old_addr, end.unwrap_or(0)).is_some() {
                return Err(refused(format!("two puddles are at {:#x}", puddle.old_addr)));
            }
            if pool.at_rest != AtRest::None && puddle.identity.is_nil() {
                return Err(refused(format!(
                    "pool \"{}\" is protected, and the identity of a puddle is missing",
                    name()
                )));
            }
            if pool.at_rest.stored_len(puddle.size).is_none() {
                return Err(refused(format!(
                    "a puddle of {} bytes is longer than any can be",
                    puddle.size
                )));
            }
        }
        check_size(pool.puddle_size, true)?;
        check_heap(&pool.name, pool.heap, pool.puddle_size)?;
        pool.refuse_protection()?;
        if sum > pool.size_max {
            return Err(StoreError::PoolFull {
                name: name(),
                wanted: 0,
                used: sum,
                size_max: pool.size_max,
            });
        }
    }
    let ends = ranges.values().zip(ranges.keys().skip(1));
    if let Some((_, addr)) = ends.into_iter().find(|(end, next)| end > next) {
        return Err(refused(format!("the puddle at {addr:#x} overlaps another")));
    }
    Ok(())
}
