//! The objects of a store that is changed, although some of them, or their journal, cannot be used.

use crate::cli::ChangedStore;
use crate::failure::Failure;
use crate::output::Out;
use cenote::Store;
use cenote_object::{ObjectError, Objects, ObjectsOptions};
use cenote_store::StoreError;
use serde_json::json;

/// What `--give-up-journal` costs.
const COST: &str = "may hold half a psync, or be as an earlier one left them";

/// The objects of a store. Those that are to be removed may be damaged, so that nothing can be
/// opened while they are there: they go first. A journal that cannot be used is given up if the
/// operator says so; then the command names the objects.
pub(crate) fn objects_to_change(
    store: &Store,
    dir: &ChangedStore,
    removed: &[(u64, String)],
    out: &mut Out,
) -> Result<Objects, Failure> {
    let mut options = ObjectsOptions::default();
    loop {
        let error = match Objects::open(&store.handle(), &options) {
            Ok(objects) => return Ok(objects),
            Err(error) => error,
        };
        match (&error, of_journal(&error)) {
            (ObjectError::PrimaryDamaged { name, .. }, _)
                if removed.iter().any(|(_, other)| other == name) =>
            {
                // SAFETY: no process has the object attached: this process alone writes the store,
                // and here its objects could not be opened.
                unsafe { store.as_raw().remove_object(name) }?;
            }
            (_, Some(_)) if !dir.give_up_journal => return Err(offered(error)),
            (_, Some(detail)) if !options.accept_damaged_journal => {
                tell(store, detail, out)?;
                options.accept_damaged_journal = true;
            }
            _ => return Err(error.into()),
        }
    }
}

/// What is wrong with the journal of objects, if that is the error.
fn of_journal(error: &ObjectError) -> Option<&str> {
    match error {
        ObjectError::JournalDamaged { detail }
        | ObjectError::Store(
            StoreError::JournalRolledBack { detail, .. }
            | StoreError::JournalDamaged { detail, .. },
        ) => Some(detail),
        _ => None,
    }
}

/// The error of a command that has the option.
fn offered(error: ObjectError) -> Failure {
    match Failure::from(error) {
        Failure::Failed(text) => Failure::Failed(format!(
            "{text}, or give it up with --give-up-journal: objects {COST} then"
        )),
        other => other,
    }
}

/// Names the objects whose psyncs are given up.
fn tell(store: &Store, detail: &str, out: &mut Out) -> Result<(), Failure> {
    let names: Vec<String> =
        store.handle().objects().into_iter().map(|object| object.record.name).collect();
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let said = match quoted.len() {
        0 => "there are no objects".into(),
        _ => format!("these objects {COST}: {}", quoted.join(", ")),
    };
    out.line(format_args!("{} the journal of objects: {detail}; {said}", out.bad("given up:")))?;
    out.object(&json!({ "given_up": "journal", "error": detail, "objects": names }))
}
