//! `cenote verify` and `cenote rekey`: protected pools and objects, without a look at what is in
//! them.

use super::damage;
use super::object::{to_change, to_look};
use super::protected;
use crate::advice::at_rest;
use crate::at_rest_modes::name_of;
use crate::cli::{Rekey, Verify};
use crate::failure::{Failure, Verdict};
use crate::keys;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::plural;
use cenote::{Error, Store};
use cenote_object::{Keyring, Mode, ObjectError, Objects, Permission};
use cenote_store::{AtRestError, Damage, StoreError};
use serde_json::json;

pub(crate) fn run(arguments: &Verify, out: &mut Out) -> Result<Verdict, Failure> {
    let stop = Stop::install();
    let key = keys::given(&arguments.store.key)?;
    let (store, objects) = to_look(&arguments.store)?;
    // Their files may be missing.
    let objects_there = store.handle().objects();
    let is_object = |name: &str| objects_there.iter().any(|object| object.record.name == name);
    let is_pool = |name: &str| store.pools().iter().any(|pool| pool.record.name == name);
    let (named, pools): (Vec<&String>, Vec<&String>) =
        arguments.names.iter().partition(|name| is_object(name));
    if let Some(name) = pools.iter().find(|name| !is_pool(name)) {
        return Err(unknown(name));
    }
    let mut looked = Looked { out, stop, damaged: 0, locked: Vec::new(), looked: false };
    looked.files(&store, &arguments.names)?;
    let all = arguments.names.is_empty();
    for pool in store.pools().iter().filter(|pool| all && pool.at_rest.mode() != Mode::None) {
        looked.each(&pool.record.name, &arguments.names, |looked, name| {
            looked.at_pool(&store, name)
        })?;
    }
    for name in pools {
        looked.each(name, &arguments.names, |looked, name| looked.at_pool(&store, name))?;
    }
    for object in
        objects_there.iter().filter(|info| all && info.record.at_rest.mode() != Mode::None)
    {
        let name = &object.record.name;
        looked.each(name, &arguments.names, |looked, name| {
            looked.at_object(&objects, name, key.as_ref())
        })?;
    }
    for name in named {
        looked.each(name, &arguments.names, |looked, name| {
            looked.at_object(&objects, name, key.as_ref())
        })?;
    }
    if !looked.looked {
        let out = &mut *looked.out;
        out.line(format_args!(
            "{} no pool and no object of this store is protected at rest, so no page has a check \
             that damage would fail; `cenote check` looks at headers, heaps and journals",
            out.warn("nothing is covered:")
        ))?;
        out.object(&json!({ "covered": false, "pages": 0, "damaged": [] }))?;
    }
    match looked.locked.first() {
        Some(first) if looked.damaged == 0 => {
            let more = looked.locked.len() - 1;
            let more = if more == 0 { String::new() } else { format!("; and {more} more") };
            Err(Failure::Failed(format!("{first}{more}")))
        }
        _ => Ok(Verdict::found(looked.damaged > 0)),
    }
}

/// Of a name that neither a pool nor an object has.
fn unknown(name: &str) -> Failure {
    Failure::Failed(format!(
        "there is no pool and no object \"{name}\" in this store: see `cenote ls` and `cenote \
         object ls`"
    ))
}

struct Looked<'a> {
    out: &'a mut Out,
    stop: Stop,
    damaged: u64,
    /// Objects and pools whose key was not given, or not theirs.
    locked: Vec<String>,
    /// A pool or an object had its turn.
    looked: bool,
}

/// Pages that fail their check: in which part, its number, and what is wrong.
type Pages = Vec<(Option<u32>, u64, String)>;

/// Told pages done and pages altogether; whether to go on.
type Progress<'p> = &'p mut dyn FnMut(u64, u64) -> bool;

impl Looked<'_> {
    /// A thing that cannot be read is reported and counts as damaged. Then the next one follows.
    fn each(
        &mut self,
        name: &str,
        named: &[String],
        look: impl FnOnce(&mut Self, &str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.looked = true;
        self.stop.check()?;
        match look(self, name) {
            Err(failure)
                if named.len() == 1
                    || matches!(failure, Failure::Pipe | Failure::Interrupted(_)) =>
            {
                Err(failure)
            }
            Err(failure) => {
                let message = failure.message().unwrap_or_default();
                self.out.line(format_args!("{} \"{name}\": {message}", self.out.bad("failed:")))?;
                self.out.object(&json!({ "name": name, "error": message }))?;
                self.damaged += 1;
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Damage of files, which no page's check covers: of what was named, or else of all; and what
    /// may concern any of it.
    fn files(&mut self, store: &Store, named: &[String]) -> Result<(), Failure> {
        for damage in damage::of(store)? {
            let subject = match &damage {
                Damage::Object { name, .. } => Some(name.clone()),
                damage => damage::pool_of(store, damage),
            };
            if !named.is_empty() && subject.is_some_and(|name| !named.contains(&name)) {
                continue;
            }
            let text = damage::text(store, &damage);
            self.out.wrong("damaged", &text)?;
            self.out.object(&json!({ "error": text }))?;
            self.damaged += 1;
        }
        Ok(())
    }

    fn at_pool(&mut self, store: &Store, name: &str) -> Result<(), Failure> {
        let known = store.pools().into_iter().find(|pool| pool.record.name == name);
        let mode = known.map_or(Mode::None, |pool| pool.at_rest.mode());
        let found = match self.with_bar(name, |progress| store.verify_pool(name, progress))? {
            Err(Error::Store(StoreError::AtRest { source, .. }))
                if protected::lacks_key(&source) =>
            {
                return self.tell_locked("pool", name, &source);
            }
            found => found?,
        };
        let pages = found.iter().map(|puddle| puddle.found.pages).sum();
        let covered = found.iter().all(|puddle| puddle.found.covered) && !found.is_empty();
        let mut damaged = Pages::new();
        for puddle in found {
            let pages = puddle.found.damaged.into_iter();
            damaged.extend(pages.map(|(page, what)| (Some(puddle.index), page, what)));
        }
        self.tell(("pool", name, mode), covered, pages, damaged)
    }

    fn at_object(
        &mut self,
        objects: &Objects,
        name: &str,
        key: Option<&Keyring>,
    ) -> Result<(), Failure> {
        let mode = objects.info(name)?.object.record.at_rest.mode();
        // Given once for many: objects without a key are verified beside those that have one.
        let object = match objects.attach(name, Permission::Read, key.filter(|_| mode.has_key())) {
            Err(ObjectError::AtRest { source, .. }) if protected::lacks_key(&source) => {
                return self.tell_locked("object", name, &source);
            }
            attached => attached?,
        };
        let found = self.with_bar(name, |progress| object.verify(progress))?;
        let damaged = found.damaged.into_iter().map(|(page, what)| (None, page, what)).collect();
        self.tell(("object", name, mode), found.covered, found.pages, damaged)
    }

    /// What a look finds, unless the user stops it.
    fn with_bar<R>(
        &mut self,
        name: &str,
        look: impl FnOnce(Progress<'_>) -> R,
    ) -> Result<R, Failure> {
        let bar = progress::bar(0, "verifying", self.out.is_json());
        let found = look(&mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
            bar.set_message(format!("pages of {name}"));
            !self.stop.is_set()
        });
        bar.finish_and_clear();
        self.stop.check()?;
        Ok(found)
    }

    /// It was not verified: without its key no damage can be found.
    fn tell_locked(&mut self, kind: &str, name: &str, why: &AtRestError) -> Result<(), Failure> {
        let why = at_rest(why);
        let text = format!("{kind} \"{name}\": {why}");
        self.out.line(format_args!("{} {text}", self.out.warn("not verified:")))?;
        self.locked.push(text);
        self.out.object(&json!({ kind: name, "locked": true, "error": why }))
    }

    fn tell(
        &mut self,
        (kind, name, mode): (&str, &str, Mode),
        covered: bool,
        pages: u64,
        damaged: Pages,
    ) -> Result<(), Failure> {
        let out = &mut *self.out;
        for (puddle, page, what) in &damaged {
            let place = puddle.map_or_else(String::new, |puddle| format!("puddle {puddle} of "));
            out.line(format_args!(
                "{} page {page} of {place}{kind} \"{name}\": {what}",
                out.bad("damaged:")
            ))?;
        }
        let (checked, wrong) = (plural(pages, "page"), damaged.len() as u64);
        match (covered, wrong) {
            (false, _) => out.line(format_args!(
                "{} {kind} \"{name}\" has protection \"{}\", which cannot tell damage from data",
                out.warn("not verified:"),
                name_of(mode)
            ))?,
            (true, 0) => {
                out.line(format_args!("{} {checked} of {kind} \"{name}\"", out.good("whole:")))?
            }
            (true, _) if pages == 0 => {
                out.line(format_args!("no page of {kind} \"{name}\" could be verified"))?
            }
            (true, _) => {
                out.line(format_args!("{wrong} of {checked} of {kind} \"{name}\" are damaged"))?
            }
        }
        let listed: Vec<_> = damaged
            .iter()
            .map(|(puddle, page, what)| json!({ "puddle": puddle, "page": page, "what": what }))
            .collect();
        out.object(&json!({
            kind: name,
            "at_rest": name_of(mode),
            "covered": covered,
            "pages": pages,
            "damaged": listed,
        }))?;
        self.damaged += wrong;
        Ok(())
    }
}

pub(crate) fn rekey(arguments: &Rekey, out: &mut Out) -> Result<Verdict, Failure> {
    let old = keys::given(&arguments.store.key)?;
    let old = old.ok_or_else(|| {
        Failure::Usage("name its key with --key-file or --passphrase-file".into())
    })?;
    let new = keys::from_files(
        arguments.new_key_file.as_deref(),
        arguments.new_passphrase_file.as_deref(),
    )?;
    let new = new.ok_or_else(|| {
        Failure::Usage("name the new key with --new-key-file or --new-passphrase-file".into())
    })?;
    let (store, objects) = to_change(&arguments.store, out)?;
    let name = &arguments.name;
    let is_pool =
        store.pools().iter().any(|pool| pool.record.name == *name) && objects.info(name).is_err();
    let kind = if is_pool { "pool" } else { "object" };
    if !is_pool && objects.info(name).is_err() {
        return Err(unknown(name));
    }
    // An error up to here says that the old key is its key.
    let failed = match is_pool {
        true => store.rekey_pool(name, &old, &new)?.unfinished().map(ToString::to_string),
        false => objects.rekey(name, &old, &new)?.unfinished().map(ToString::to_string),
    };
    drop(objects);
    // From here on the new key is its key, also if something fails.
    let failed = failed.or(store.close().err().map(|error| error.to_string()));
    let said =
        out.line(format_args!("{} {kind} \"{name}\" is under the new key", out.good("done:")));
    let said = said
        .and_then(|()| out.object(&json!({ kind: name, "rekeyed": true, "failed_after": failed })));
    let failed = failed.or(said.err().and_then(|error| error.message()));
    match failed {
        None => Ok(Verdict::Clean),
        Some(error) => Err(Failure::Unfinished(format!(
            "{kind} \"{name}\" is under the new key, and then: {error}: open the store again, with \
             the new key"
        ))),
    }
}
