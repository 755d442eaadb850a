//! Protected pools, and objects, as `check` looks at them: every page that a hash tree covers, and
//! what an attach reads. What cannot be looked at without a key is said, and is no damage.

use super::findings::Findings;
use super::object;
use crate::advice::at_rest;
use crate::at_rest_modes::name_of;
use crate::failure::Failure;
use crate::output::Out;
use crate::progress;
use crate::stop::Stop;
use crate::units::{bytes, plural};
use cenote::{AtRestError, Error, Keyring, Store};
use cenote_object::{Mode, ObjectError, Objects, Permission};
use cenote_store::{Damage, ObjectInfo, StoreError};
use serde_json::{Value, json};

/// What is said about one pool or object.
pub(crate) struct Said {
    pub(crate) text: String,
    /// It was looked at.
    pub(crate) checked: bool,
    pub(crate) json: Value,
}

/// What is said of a pool whose key is not here: nothing is wrong then.
pub(crate) fn locked_pool(error: &Error, mode: Mode) -> Option<String> {
    match error {
        Error::Store(StoreError::AtRest { source, .. }) if lacks_key(source) => {
            Some(locked(source, mode))
        }
        _ => None,
    }
}

pub(crate) fn lacks_key(error: &AtRestError) -> bool {
    matches!(
        error,
        AtRestError::NoKey { .. } | AtRestError::WrongKey { .. } | AtRestError::WrongKeyKind { .. }
    )
}

/// What is protected and was not looked at, and why.
fn locked(error: &AtRestError, mode: Mode) -> String {
    match error {
        AtRestError::NoKey { .. } => format!(
            "protected ({}): not verified without its key: give it with --key-file or \
             --passphrase-file",
            name_of(mode)
        ),
        error => format!("protected ({}): not verified: {}", name_of(mode), at_rest(error)),
    }
}

/// Adds the pages of a protected pool that fail their check.
pub(crate) fn pages_of_pool(
    store: &Store,
    name: &str,
    findings: &mut Findings,
    stop: &Stop,
) -> cenote::Result<()> {
    for puddle in store.verify_pool(name, &mut |_, _| !stop.is_set())? {
        for (page, what) in puddle.found.damaged {
            let text = format!("page {page} of puddle {}: {what}", puddle.index);
            findings.add("page", Some(name), None, text);
        }
    }
    Ok(())
}

/// Looks at all objects, and at their journal. `damage` is found already.
pub(crate) fn objects(
    store: &Store,
    (key, damage): (Option<&Keyring>, &[Damage]),
    findings: &mut Findings,
    out: &Out,
) -> Vec<Said> {
    let list = store.handle().objects();
    // Its opener reads the journal, also if the objects are gone.
    let objects = match object::objects_of(store) {
        Ok(objects) => objects,
        Err(failure) => {
            findings.add("journal", None, None, failure.message().unwrap_or_default());
            return Vec::new();
        }
    };
    let bar = progress::bar(list.len() as u64, "checking objects", out.is_json());
    let look = |info: &ObjectInfo| {
        bar.set_message(info.record.name.clone());
        let said = one(&objects, info, (key, damage), findings);
        bar.inc(1);
        said
    };
    let all = list.iter().map(look).collect();
    bar.finish_and_clear();
    all
}

fn one(
    objects: &Objects,
    info: &ObjectInfo,
    (key, known): (Option<&Keyring>, &[Damage]),
    findings: &mut Findings,
) -> Said {
    let (name, mode) = (&info.record.name, info.record.at_rest.mode());
    let size = bytes(info.record.data_len);
    let said = |text: String, checked, pages: u64, locked: bool| Said {
        text: format!("object \"{name}\": {text}"),
        checked,
        json: json!({
            "object": name, "at_rest": name_of(mode), "checked": checked, "pages": pages,
            "locked": locked,
        }),
    };
    let attached = objects.attach(name, Permission::Read, key.filter(|_| mode.has_key()));
    let found = match attached {
        Ok(object) => object.verify(&mut |_, _| true),
        Err(ObjectError::AtRest { source, .. }) if lacks_key(&source) => {
            return said(locked(&source, mode), false, 0, true);
        }
        Err(ObjectError::Denied { .. }) => {
            return said("not looked at: this user may not read it".into(), false, 0, false);
        }
        Err(error) => {
            let is_known = known
                .iter()
                .any(|damage| matches!(damage, Damage::Object { name: of, .. } if of == name));
            if !is_known {
                findings.add(
                    "object",
                    None,
                    None,
                    Failure::from(error).message().unwrap_or_default(),
                );
            }
            return said("cannot be attached".into(), false, 0, false);
        }
    };
    for (page, what) in &found.damaged {
        findings.add("page", None, None, format!("page {page} of object \"{name}\": {what}"));
    }
    let text = match found.covered {
        true => format!("{size}, {} verified", plural(found.pages, "page")),
        false => {
            format!("{size}; protection \"{}\" does not cover its values", name_of(mode))
        }
    };
    said(text, true, if found.covered { found.pages } else { 0 }, false)
}
