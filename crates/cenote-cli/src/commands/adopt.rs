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
//!
//! With `--remove-torn` a session before that removes what it does not find whole, one batch for
//! each, and ends: the next one finds the logs of pools that are gone, and drops them. A crash in
//! between leaves a copy with fewer pools. Things that do not open stay, and the copy stays
//! unchecked: their key is missing, or an error says nothing about them.

use super::damage;
use super::given_up::objects_to_change;
use crate::cli::{Adopt, ChangedStore};
use crate::copies;
use crate::failure::{Failure, Verdict, closed, word};
use crate::opening;
use crate::output::{Out, a_user_is_there, asked};
use cenote::{Access, Error, PoolId, Store};
use cenote_object::{ObjectError, Objects, Permission};
use cenote_store::{Damage, StoreError};
use serde_json::json;

pub(crate) fn run(arguments: &Adopt, out: &mut Out) -> Result<Verdict, Failure> {
    if arguments.remove_torn {
        remove_torn(arguments, out)?;
    }
    let store = match arguments.of_one_moment {
        true => opening::to_adopt_as_it_is(&arguments.store)?,
        false => opening::to_adopt(&arguments.store)?,
    };
    let path = arguments.store.dir.display().to_string();
    if !store.handle().is_unchecked_copy() {
        out.line(format_args!(
            "{path} opens as a store already, so nothing was changed, and its contents were not \
             checked: to check them, run `cenote check {path}`"
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
    let objects = objects_to_change(&store, &arguments.store, &[], out)?;
    let left = not_whole(&store, &arguments.store, &objects)?;
    drop(objects);
    if left.is_empty() {
        // Of a store without pools nothing else says that all are checked.
        // SAFETY: it notes a pool that is not there as checked; all others were.
        unsafe { store.as_raw() }.pool_is_checked(PoolId(0)).map_err(cenote::Error::from)?;
    }
    let adopted = !store.handle().is_unchecked_copy();
    for one in &left {
        let (subject, why) = (one.subject(), &one.why);
        // Most reasons begin with the name.
        let said =
            if why.starts_with(&subject) { why.clone() } else { format!("{subject}: {why}") };
        out.line(format_args!("{} {said}", out.bad("not whole:")))?;
    }
    if adopted {
        out.line(format_args!(
            "{} {path} is adopted: it opens like any other store",
            out.good("done:")
        ))?;
    } else {
        let next = match left.iter().any(|one| one.is_torn) {
            true => copies::ways_out(&path),
            false => format!("fix this, then run `cenote adopt {}` again", word(&path)),
        };
        out.line(format_args!("{path} is still an unchecked copy: {next}"))?;
    }
    let damage = if adopted { store.damaged_files()? } else { Vec::new() };
    let damaged = tell_damage(&store, &damage, &path, out)?;
    let listed: Vec<_> = left
        .iter()
        .map(|one| json!({ "kind": one.kind, "name": one.name, "error": one.why }))
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

/// What was not found whole.
struct Left {
    kind: &'static str,
    name: String,
    why: String,
    /// It may be torn, or is damaged. Of others nothing is known.
    is_torn: bool,
}

impl Left {
    fn new(kind: &'static str, name: String, is_torn: bool, failure: Failure) -> Self {
        let why = failure.message().unwrap_or_default();
        // Which commands lead on is said once, of all.
        let why = match (kind, is_torn) {
            ("pool", true) if why.contains("may be torn") => {
                "it was open for writing when the store was copied, and may be torn".into()
            }
            ("object", true) if why.contains("nothing shows") => {
                "nothing shows whether it was written while the store was copied".into()
            }
            _ => why,
        };
        Self { kind, name, why, is_torn }
    }

    fn subject(&self) -> String {
        format!("{} \"{}\"", self.kind, self.name)
    }
}

/// Opens all, and says of what is not found whole why.
fn not_whole(store: &Store, dir: &ChangedStore, objects: &Objects) -> Result<Vec<Left>, Failure> {
    let mut left = Vec::new();
    let place = Some(&*dir.dir);
    let torn = store.torn_pools();
    for pool in store.pools() {
        let name = pool.record.name;
        if torn.contains(&name) {
            // A session that opens a store as it is would hand it out.
            let torn = StoreError::PoolTorn { name: name.clone() };
            left.push(Left::new("pool", name, true, Failure::from(torn).in_store(place)));
        } else if let Err(error) = store.pool_with(&name, Access::ReadWrite) {
            let is_torn = is_torn_pool(&error);
            left.push(Left::new("pool", name, is_torn, Failure::from(error).in_store(place)));
        }
    }
    let key = crate::keys::given(&dir.key)?;
    for object in store.handle().objects() {
        let key = key.as_ref().filter(|_| object.record.at_rest.mode().has_key());
        let name = object.record.name;
        if let Err(error) = objects.attach(&name, Permission::Read, key) {
            let is_torn = is_torn_object(&error);
            left.push(Left::new("object", name, is_torn, Failure::from(error).in_store(place)));
        }
    }
    Ok(left)
}

fn is_torn_pool(error: &Error) -> bool {
    matches!(
        error,
        Error::NotWhole { .. }
            | Error::InvalidValues { .. }
            | Error::Store(
                StoreError::PoolNotCovered { .. }
                    | StoreError::PoolTorn { .. }
                    | StoreError::PoolDamaged { .. }
                    | StoreError::PoolLogDamaged { .. }
            )
    )
}

fn is_torn_object(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::NotCovered { .. }
            | ObjectError::PageDamaged { .. }
            | ObjectError::PrimaryDamaged { .. }
            | ObjectError::Store(StoreError::ObjectDamaged { .. })
    )
}

/// Asks, unless that was answered on the command line.
fn confirm(arguments: &Adopt, torn: &[Left]) -> Result<(), Failure> {
    let what = torn.iter().map(Left::subject).collect::<Vec<_>>().join(" and ");
    if arguments.yes {
        return Ok(());
    }
    if !a_user_is_there() {
        return Err(Failure::Usage(format!(
            "{what} was not removed: there is no terminal to ask on: give --yes"
        )));
    }
    match asked(&format!("remove {what}, for good?"))? {
        true => Ok(()),
        false => Err(Failure::Usage(format!("{what} was not removed: the answer was not yes"))),
    }
}

/// Removes what may be torn of a copy, in a session of its own.
fn remove_torn(arguments: &Adopt, out: &mut Out) -> Result<(), Failure> {
    let store = opening::to_adopt(&arguments.store)?;
    if !store.handle().is_unchecked_copy() {
        return Ok(());
    }
    let objects = objects_to_change(&store, &arguments.store, &[], out)?;
    let mut torn = not_whole(&store, &arguments.store, &objects)?;
    torn.retain(|one| one.is_torn);
    if !torn.is_empty() {
        confirm(arguments, &torn)?;
    }
    for one in &torn {
        match one.kind {
            "pool" => store.remove_pool(&one.name)?,
            _ => objects.pdestroy(&one.name, None)?,
        }
        out.line(format_args!("{} {}: {}", out.warn("removed:"), one.subject(), one.why))?;
    }
    drop(objects);
    closed(store.close())
}
