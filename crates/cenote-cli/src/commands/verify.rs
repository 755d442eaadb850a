//! `cenote verify` and `cenote rekey`: protected objects, without a look at what is in them.

use super::keys;
use super::object::{to_change, to_look};
use crate::cli::{Rekey, Verify};
use crate::failure::{Failure, Verdict};
use crate::output::Out;
use crate::progress;
use crate::units::plural;
use cenote_object::{Mode, Permission};
use serde_json::json;

pub(crate) fn run(arguments: &Verify, out: &mut Out) -> Result<Verdict, Failure> {
    let key = keys::given(&arguments.key)?;
    let (_store, objects) = to_look(&arguments.store)?;
    let mut infos = Vec::new();
    if arguments.objects.is_empty() {
        infos = objects.list()?;
        infos.retain(|info| info.object.record.at_rest.mode() != Mode::None);
    }
    for name in &arguments.objects {
        infos.push(objects.info(name)?);
    }
    let mut damaged = 0;
    for info in &infos {
        let name = &info.object.record.name;
        let mode = info.object.record.at_rest.mode();
        // Given once for many: objects without a key are verified beside those that have one.
        let key = key.as_ref().filter(|_| mode.has_key());
        let object = objects.attach(name, Permission::Read, key)?;
        let bar = progress::bar(0, "verifying", out.is_json());
        let found = object.verify(&mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
            bar.set_message(format!("pages of {name}"));
            true
        });
        bar.finish_and_clear();
        for (page, what) in &found.damaged {
            out.line(format_args!("{} page {page} of object \"{name}\": {what}", out.bad("damaged:")))?;
        }
        let (checked, wrong) = (plural(found.pages, "page"), found.damaged.len() as u64);
        match (found.covered, wrong) {
            (false, _) => out.line(format_args!(
                "{} object \"{name}\" has protection \"{}\", which cannot tell damage from data",
                out.warn("not verified:"),
                keys::name_of(mode)
            ))?,
            (true, 0) => out.line(format_args!("{} {checked} of object \"{name}\"", out.good("whole:")))?,
            (true, _) => out.line(format_args!("{wrong} of {checked} of object \"{name}\" are damaged"))?,
        }
        let pages: Vec<_> =
            found.damaged.iter().map(|(page, what)| json!({ "page": page, "what": what })).collect();
        out.object(&json!({
            "object": name, "at_rest": keys::name_of(mode), "covered": found.covered, "pages": found.pages,
            "damaged": pages,
        }))?;
        damaged += wrong;
    }
    Ok(Verdict::found(damaged > 0))
}

pub(crate) fn rekey(arguments: &Rekey, out: &mut Out) -> Result<Verdict, Failure> {
    let old = keys::given(&arguments.key)?;
    let old =
        old.ok_or_else(|| Failure::Usage("name its key with --key-file or --passphrase-file".into()))?;
    let new = keys::from_files(arguments.new_key_file.as_deref(), arguments.new_passphrase_file.as_deref())?;
    let new = new.ok_or_else(|| {
        Failure::Usage("name the new key with --new-key-file or --new-passphrase-file".into())
    })?;
    let (store, objects) = to_change(&arguments.store)?;
    objects.rekey(&arguments.object, &old, &new)?;
    drop(objects);
    store.close()?;
    out.line(format_args!("{} object \"{}\" is under the new key", out.good("done:"), arguments.object))?;
    out.object(&json!({ "object": arguments.object, "rekeyed": true }))?;
    Ok(Verdict::Clean)
}
