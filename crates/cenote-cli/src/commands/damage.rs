//! What is damaged in a store, for every command that says so: what opening it found, and the files
//! that an open to look does not read.

use crate::failure::{Failure, Verdict};
use crate::output::Out;
use cenote::Store;
use cenote_store::Damage;
use serde_json::json;

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

/// The name of the first pool that is touched by it, if the store knows one.
pub(crate) fn pool_of(store: &Store, damage: &Damage) -> Option<String> {
    let touched = damage.pools();
    let pool = store.pools().into_iter().find(|pool| touched.contains(&pool.record.id));
    pool.map(|pool| pool.record.name)
}

/// With the pool's name.
pub(crate) fn text(store: &Store, damage: &Damage) -> String {
    match (damage, pool_of(store, damage)) {
        (Damage::Puddle { .. }, Some(name)) => format!("pool \"{name}\": {damage}"),
        _ => damage.to_string(),
    }
}

/// Says what is lost: of these pools, and what may concern any. Damage that a second copy makes
/// good is for `check` and `info`.
pub(crate) fn tell_lost(store: &Store, pools: &[String], out: &mut Out) -> Result<Verdict, Failure> {
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
