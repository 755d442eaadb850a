//! Lists the damage of a store, for all commands: the findings of the open, and damage of files
//! that an open to look does not read.

use crate::advice::damage_text;
use crate::failure::{Failure, Verdict};
use crate::output::Out;
use cenote::Store;
use cenote_store::Damage;
use serde_json::json;

/// Why a pool counts as torn for good, until an operator declares it whole.
pub(crate) const TORN: &str = "logs were discarded, or a journal was given up: it may hold half a \
                               transaction or half a psync";

/// Whether some of it was read from a second copy, which is whole.
pub(crate) fn second_copy(damage: &[Damage]) -> bool {
    let copied = |damage: &Damage| {
        matches!(damage, Damage::Superblock { .. } | Damage::Catalog { .. }) && !damage.is_lost()
    };
    damage.iter().any(copied)
}

/// What is wrong with the journal of objects, which their opener reads.
pub(crate) fn of_objects(store: &Store) -> Option<String> {
    super::object::objects_of(store).err()?.message()
}

/// All of it, each once.
pub(crate) fn of(store: &Store) -> Result<Vec<Damage>, Failure> {
    let mut all = store.report().damage.clone();
    for damage in store.damaged_files()? {
        if !all.contains(&damage) {
            all.push(damage);
        }
    }
    Ok(all)
}

/// The name of the first pool that is touched by it, if the catalog has one.
pub(crate) fn pool_of(store: &Store, damage: &Damage) -> Option<String> {
    let touched = damage.pools();
    let pool = store.pools().into_iter().find(|pool| touched.contains(&pool.record.id));
    pool.map(|pool| pool.record.name)
}

/// With the names of pools instead of their numbers.
pub(crate) fn text(store: &Store, damage: &Damage) -> String {
    let names = |ids: &[cenote::PoolId]| {
        let pools = store.pools();
        let named = pools.iter().filter(|pool| ids.contains(&pool.record.id));
        let names: Vec<String> = named.map(|pool| format!("\"{}\"", pool.record.name)).collect();
        match names.len() {
            0 => "no pool is affected".into(),
            1 => format!("concerns pool {}", names[0]),
            _ => format!("concerns pools {}", names.join(", ")),
        }
    };
    match damage {
        Damage::Puddle { .. } => match pool_of(store, damage) {
            Some(name) => format!("pool \"{name}\": {}", damage_text(damage)),
            None => damage.to_string(),
        },
        Damage::LogSpace { client, puddle, detail, pools } => {
            format!("log space {puddle} of client {client}: {detail}; {}", names(pools))
        }
        Damage::Log { client, log_id, puddle, detail, pools } => format!(
            "log {log_id:016x} of client {client} (puddle {puddle}): {detail}; {}",
            names(pools)
        ),
        Damage::Journal { detail, pools } => {
            format!("journal of psyncs: {detail}; {}", names(pools))
        }
        damage => damage.to_string(),
    }
}

/// Says what is lost: of these pools, and what may concern any. Damage that a second copy makes
/// good is for `check` and `info`.
pub(crate) fn tell_lost(
    store: &Store,
    pools: &[String],
    out: &mut Out,
) -> Result<Verdict, Failure> {
    let mut verdict = Verdict::Clean;
    for damage in of(store)?.iter().filter(|damage| damage.is_lost()) {
        if pool_of(store, damage).is_some_and(|name| !pools.contains(&name)) {
            continue;
        }
        let text = text(store, damage);
        out.wrong("damaged", &text)?;
        out.object(&json!({ "damage": text }))?;
        verdict = Verdict::Found;
    }
    Ok(verdict)
}
