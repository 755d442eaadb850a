//! Opens an image as the next daemon or program does, and compares it with what may be found.

use super::{HALF, KnownClients, Shadowed, client, file_in, hosting, options, text, words};
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::Uuid;
use cenote_medium::sim::{CrashKind, Image, SimMedium};
use cenote_medium::{Durability, Medium};
use cenote_store::{Access, Damage, PoolHandle, Store, StoreError};
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::IntoBytes;

pub(super) struct Check {
    pub(super) level: Durability,
    pub(super) alive: bool,
}

impl Check {
    /// Whether open pools may be torn.
    pub(super) fn loses(&self, image: &Image) -> bool {
        self.level == Durability::Process && image.kind() == CrashKind::Power
    }

    /// The next open of an image, and what it finds; `lost` if pools may have been torn before,
    /// `power` if that had failed, `lives` if clients that were this process live on.
    pub(super) fn image(
        &self,
        image: &Image,
        may: &[KnownClients],
        (lost, power): (bool, bool),
        lives: bool,
    ) -> Result<(), String> {
        let sim = SimMedium::from_image_unrecorded(image);
        let lost = (lost || self.loses(image), power || image.kind() == CrashKind::Power);
        let lives = lives && image.kind() == CrashKind::Process;
        let opens = if self.alive { hosting() } else { options() };
        let (store, report) = Store::open(sim.clone(), opens).map_err(|e| format!("open: {e}"))?;
        let mut damage = report.damage;
        if lives {
            damage.extend(end_clients(&store, may)?);
        }
        let found = may.iter().map(|known| self.fits(&sim, &store, &damage, known, lost));
        let mut why = Vec::new();
        for fits in found {
            match fits {
                Ok(()) => why.clear(),
                Err(what) => {
                    why.push(what);
                    continue;
                }
            }
            break;
        }
        if !why.is_empty() {
            return Err(why.join("; or "));
        }
        let files = sim.list("puddles").map_err(text)?.len() as u64;
        if files != store.info().puddles {
            return Err(format!("{files} puddle files, {} records", store.info().puddles));
        }
        let undecided = !store.undecided_logs().map_err(text)?.is_empty();
        let puddles = shadowed_puddles(&store)?;
        let closed = match self.alive {
            true => store.end_hosting().map(|()| drop(store)),
            false => store.close(),
        };
        closed.map_err(|e| format!("close: {e}"))?;
        for (uuid, size) in puddles {
            let [primary, shadow] =
                ["primary", "puddles"].map(|dir| words(&sim, &file_in(dir, uuid), size));
            if primary? != shadow? {
                return Err(format!("after a close the shadow of {uuid} is not its primary"));
            }
        }
        open_again(sim, undecided)
    }

    /// Whether a store is as this says.
    fn fits(
        &self,
        sim: &SimMedium,
        store: &Store,
        damage: &[Damage],
        known: &KnownClients,
        (lost, power): (bool, bool),
    ) -> Result<(), String> {
        let names: BTreeSet<String> =
            store.pools().into_iter().map(|pool| pool.record.name).collect();
        if !names.iter().map(String::as_str).eq(known.pools.keys().copied()) {
            return Err(format!("the pools are {names:?}"));
        }
        let aside = known.pools.values().any(|pool| pool.aside);
        if damage.is_empty() == aside && !lost {
            return Err(format!(
                "a log is {}set aside: {damage:?}",
                if aside { "not " } else { "" }
            ));
        }
        let due = store.pools_due();
        for (name, pool) in &known.pools {
            let handle = match store.open_pool(name, Access::ReadOnly) {
                Err(StoreError::PoolNotCovered { .. }) if lost && pool.leased => continue,
                other => other.map_err(|e| format!("pool {name}: {e}"))?,
            };
            if handle.is_torn() != pool.torn {
                return Err(format!("pool {name} is {}torn", if pool.torn { "not " } else { "" }));
            }
            let puddle = handle.puddles().pop().ok_or("no puddle")?;
            if let Some(Shadowed { stored, before, psynced }) = pool.shadowed {
                let found = words(sim, &file_in("puddles", puddle.uuid()), puddle.size())?;
                let may = if power { [psynced; 2] } else { [stored, before] };
                if !found.iter().all(|word| may.contains(word)) {
                    return Err(format!(
                        "pool {name} holds {found:?}, not {may:?}; power lost: {power}"
                    ));
                }
                continue;
            }
            let mut words = [0u64; 2];
            let name_of = format!("puddles/{}", String::from_utf8_lossy(&puddle.uuid().to_hex()));
            sim.read_at(&name_of, puddle.size() - 16, words.as_mut_bytes()).map_err(text)?;
            let value = pool.value + if pool.aside && pool.half { HALF } else { 0 };
            // A log that is set aside says nothing of how far its transaction had come on the
            // medium.
            let half = pool.aside && pool.half;
            if words != [value; 2]
                && !(half && words.iter().all(|w| *w == value || *w + HALF == value))
            {
                return Err(format!("pool {name} holds {words:x?}, not {value:x}"));
            }
            if pool.due && !due.contains(&handle.id()) {
                return Err(format!("pool {name} is not to be traced"));
            }
            drop(handle);
            let writable = store.open_pool(name, Access::ReadWrite);
            if matches!(writable, Err(StoreError::PoolLogDamaged { .. })) != pool.aside {
                return Err(format!("pool {name} for writing: {writable:?}"));
            }
        }
        Ok(())
    }
}

/// Clients that live are known; they end here, without a goodbye. Returns what is wrong with their
/// logs.
fn end_clients(store: &Store, may: &[KnownClients]) -> Result<Vec<Damage>, String> {
    let mut damage = Vec::new();
    let there: BTreeSet<Uuid> =
        store.hosted_clients().iter().map(|hosted_client| hosted_client.client).collect();
    let known = |k: &KnownClients| {
        k.hosted_clients.keys().all(|hosted_client| {
            there.contains(&client(*hosted_client)) || k.pools.values().any(|p| p.aside)
        })
    };
    if !may.iter().any(known) {
        return Err(format!("clients that live are not known: {there:?}, {may:?}"));
    }
    for hosted_client in there {
        damage.extend(
            store.client_end(hosted_client, false).map_err(|e| format!("end: {e}"))?.damage,
        );
    }
    Ok(damage)
}

/// Identity and size of the puddles of pools in shadowed mode.
fn shadowed_puddles(store: &Store) -> Result<Vec<(Uuid, u64)>, String> {
    let shadowed = store.pools().into_iter().filter(|pool| pool.record.mode == PoolMode::Shadowed);
    let shadowed: Vec<PoolHandle> = shadowed
        .map(|pool| store.open_pool(&pool.record.name, Access::ReadWrite).map_err(text))
        .collect::<Result<_, _>>()?;
    let puddles = shadowed
        .iter()
        .flat_map(PoolHandle::puddles)
        .map(|puddle| (puddle.uuid(), puddle.size()))
        .collect();
    Ok(puddles)
}

/// A store that was closed opens clean; its only damage is of logs that nothing was decided about.
fn open_again(sim: Arc<SimMedium>, undecided: bool) -> Result<(), String> {
    let (store, report) = Store::open(sim, options()).map_err(|e| format!("open again: {e}"))?;
    let logs = report.damage.iter().all(|damage| matches!(damage, Damage::Log { .. }));
    let fine = report.clean
        && report.orphans_removed == 0
        && logs
        && report.damage.is_empty() != undecided;
    store.abandon();
    if fine { Ok(()) } else { Err(format!("the second open finds {report:?}")) }
}
