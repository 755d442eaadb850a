//! `cenote adopt`: a copy of a store that was not closed becomes a store of its own.
//!
//! 1. The command opens the store for writing, as with `--accept-copy`.
//! 2. It opens every pool and every object, which checks each.
//! 3. **If all are whole, the next copy of the superblock commits that**
//!    (`cenote_store::Store::pool_is_checked`). From then on the store opens without
//!    `--accept-copy`. If a pool or an object may be torn, the command names it, removes nothing,
//!    and the store stays a copy.
//! 4. It looks at the files that no pool and no object of the store needed: a journal of pools that
//!    cannot be used makes the status 1.
//!
//! With `--of-one-moment` the operator says that no process had the store open while it was copied.
//! Then recovery replays the logs of pools that were in use, and one batch turns their mark "not
//! covered" into "torn" (`cenote_store::PowerLossPolicy::AsIs`). For each pool one more batch
//! declares it whole, and the superblock commits as above. A crash in between leaves torn pools,
//! which `cenote logs declare-whole` is for.

use super::damage;
use super::given_up::objects_to_change;
use crate::cli::{Adopt, ChangedStore};
use crate::failure::{Failure, Verdict, closed};
use crate::opening;
use crate::output::Out;
use cenote::{Access, PoolId, Store};
use cenote_object::Permission;
use cenote_store::Damage;
use serde_json::json;

pub(crate) fn run(arguments: &Adopt, out: &mut Out) -> Result<Verdict, Failure> {
    let store = match arguments.of_one_moment {
        true => opening::to_adopt_as_it_is(&arguments.store)?,
        false => opening::to_adopt(&arguments.store)?,
    };
    let path = arguments.store.dir.display().to_string();
    if !store.handle().is_unchecked_copy() {
        out.line(format_args!(
            "{path} is a store of its own already: nothing was changed, and the contents of pools \
             and objects were not checked: `cenote check {path}` does that"
        ))?;
        let damaged = tell_damage(&store, &damage::of(&store)?, &path, out)?;
        out.object(&json!({ "path": path, "adopted": false, "left": [], "damage": damaged }))?;
        closed(store.close())?;
        return Ok(Verdict::found(!damaged.is_empty()));
    }
    if arguments.of_one_moment {
        for (_, name) in &store.report().not_covered {
            // SAFETY: this command reads no value; the operator answers for the pool, as
            // `cenote adopt --help` says.
            unsafe { store.declare_whole(name) }?;
        }
    }
    let left = not_whole(&store, &arguments.store, out)?;
    if left.is_empty() {
        // Of a store without pools nothing else says that all are checked.
        // SAFETY: it notes a pool that is not there as checked; all others were.
        unsafe { store.as_raw() }.pool_is_checked(PoolId(0)).map_err(cenote::Error::from)?;
    }
    let adopted = !store.handle().is_unchecked_copy();
    for (kind, name, why) in &left {
        let subject = format!("{kind} \"{name}\"");
        // Most reasons begin with the name.
        let said =
            if why.starts_with(&subject) { why.clone() } else { format!("{subject}: {why}") };
        out.line(format_args!("{} {said}", out.bad("not whole:")))?;
    }
    if adopted {
        out.line(format_args!(
            "{} {path} is a store of its own, and opens as one",
            out.good("done:")
        ))?;
    } else {
        out.line(format_args!(
            "{path} stays an unchecked copy: if no process had the store open while it was \
             copied, say `cenote adopt {path} --of-one-moment`; else remove what is not whole \
             (`cenote rm`, `cenote object rm`, with --accept-copy), and say `cenote adopt` again; \
             `cenote export` copies out what is whole"
        ))?;
    }
    let damage = if adopted { store.damaged_files()? } else { Vec::new() };
    let damaged = tell_damage(&store, &damage, &path, out)?;
    let listed: Vec<_> = left
        .iter()
        .map(|(kind, name, why)| json!({ "kind": kind, "name": name, "error": why }))
        .collect();
    out.object(&json!({ "path": path, "adopted": adopted, "left": listed, "damage": damaged }))?;
    closed(store.close())?;
    Ok(Verdict::found(!adopted || !damaged.is_empty()))
}

/// Says what is damaged: what opening the store found, or files that a later command needs, as the
/// journal of pools when no pool uses it.
fn tell_damage(
    store: &Store,
    damage: &[Damage],
    path: &str,
    out: &mut Out,
) -> Result<Vec<String>, Failure> {
    let said: Vec<String> = damage.iter().map(|damage| damage::text(store, damage)).collect();
    for text in &said {
        out.line(format_args!("{} {text}", out.bad("damaged:")))?;
    }
    if damage.iter().any(|damage| matches!(damage, Damage::Journal { .. })) {
        out.line(format_args!(
            "the next command that needs the journal of pools makes a new one with \
             --give-up-journal: `cenote create {path} NAME --mode shadowed --give-up-journal`"
        ))?;
    }
    Ok(said)
}

/// Opens all, and says of what is not found whole why: kind, name, reason.
fn not_whole(
    store: &Store,
    dir: &ChangedStore,
    out: &mut Out,
) -> Result<Vec<(&'static str, String, String)>, Failure> {
    let mut left = Vec::new();
    let text = |failure: Failure| failure.message().unwrap_or_default();
    let torn = store.torn_pools();
    for pool in store.pools() {
        if torn.contains(&pool.record.name) {
            // A session that opens a store as it is would hand it out.
            let torn = cenote_store::StoreError::PoolTorn { name: pool.record.name.clone() };
            left.push(("pool", pool.record.name, text(torn.into())));
        } else if let Err(error) = store.pool_with(&pool.record.name, Access::ReadWrite) {
            left.push(("pool", pool.record.name, text(error.into())));
        }
    }
    let key = crate::keys::given(&dir.key)?;
    let objects = objects_to_change(store, dir, &[], out)?;
    for object in store.handle().objects() {
        let key = key.as_ref().filter(|_| object.record.at_rest.mode().has_key());
        if let Err(error) = objects.attach(&object.record.name, Permission::Read, key) {
            left.push(("object", object.record.name, text(error.into())));
        }
    }
    Ok(left)
}
