//! What this crate gives a program that has no `unsafe`: each function is in a list here, so that
//! one more is a decision. None gives a way to what is mapped.
//!
//! The lists say what each type is for. The sources are read, because a test cannot ask the
//! compiler which functions a type has.

use std::collections::BTreeMap;
use std::path::Path;

/// Handles of the store: questions, and letting go of it.
const HANDLE: &str = "open close abandon check_usable uuid info durability is_writable \
    is_connected is_unchecked_copy damage objects object";

/// Objects: all but `open`, `store` and the questions enter the table of attachments before they
/// touch an object's file or its record.
const OBJECTS: &str = "open store recovery pcreate pcreate_with rekey pdestroy attach attach_with \
    set_mode set_owner list info checkpoint journal_figures abandon";

/// Objects into files and out of them: they enter the same table.
const SNAPSHOTS: &str = "snapshot snapshot_while snapshot_on restore restore_as";

/// An attached object: slices that borrow from it, psyncs by `&mut`, and questions.
const ATTACHED: &str = "name info found permission mechanism protection load anchor check_anchor \
    verify read_at addr len as_ptr as_slice as_mut_slice snapshot detach";

/// An attached object's psync.
const PSYNC: &str = "psync";

/// Clients' objects: safe because [`cenote_object::Host::of`] is not.
const HOST: &str = "create_for destroy_for attach_for detach_for psync_for listed";

/// Types through which a program would reach what is mapped.
const NEVER: [&str; 8] = [
    "&Store",
    "cenote_store::Store",
    "OwnedMedium",
    "FileHandle",
    "dyn DaemonApi",
    "PoolHandle",
    "Journal>",
    "TracedHeap",
];

/// Public functions of a source file: name, whether it asks for `unsafe`, and its signature.
fn functions(file: &str) -> BTreeMap<String, (bool, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path).expect("a source file");
    let mut found = BTreeMap::new();
    for (at, _) in text.match_indices("\n    pub ") {
        let signature: String = text[at..].split(" {\n").next().unwrap_or_default().into();
        let Some((before, rest)) = signature.split_once("fn ") else { continue };
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        if ["pub", "pub const", "pub unsafe"].contains(&before.trim()) {
            found.insert(name.to_owned(), (before.contains("unsafe"), signature.clone()));
        }
    }
    found
}

#[test]
fn every_safe_function_is_known_and_gives_no_way_to_what_is_mapped() {
    for (file, known) in [
        ("cenote-store/src/handle.rs", HANDLE),
        ("cenote-object/src/objects.rs", OBJECTS),
        ("cenote-object/src/snapshots.rs", SNAPSHOTS),
        ("cenote-object/src/attached.rs", ATTACHED),
        ("cenote-object/src/psync.rs", PSYNC),
        ("cenote-object/src/hosted.rs", HOST),
    ] {
        let functions = functions(file);
        let mut safe: Vec<&str> =
            functions.iter().filter(|(_, (asks, _))| !asks).map(|(name, _)| &**name).collect();
        let mut known: Vec<&str> = known.split_whitespace().collect();
        safe.sort_unstable();
        known.sort_unstable();
        assert_eq!(
            safe, known,
            "{file}: decide about it, then put it into the list or take it out"
        );
        for (name, (asks, signature)) in &functions {
            let answer = signature.split_once("->").map_or("", |(_, answer)| answer);
            let never = NEVER.iter().find(|never| answer.contains(**never));
            assert!(*asks || never.is_none(), "{file}: {name} gives out {never:?}: {signature}");
        }
    }
}

/// What of lower crates is named here: data, keys and errors, and of stores the handle alone.
#[test]
fn no_type_of_lower_crates_that_changes_a_store_is_named_here() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let text = std::fs::read_to_string(path).expect("the crate's front page");
    let statements = text.split("\npub use cenote_").skip(1);
    let named: Vec<String> = statements
        .filter_map(|statement| statement.split_once(';'))
        .map(|(named, _)| named.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        named,
        [
            "atrest::view::Verified",
            "atrest::{ Anchor, Argon2Params, AtRestError, KeyError, Keyring, MasterKey, Mode, \
             PageFault, }",
            "layout::object::ObjectState",
            "store::{Handle as Store, ObjectInfo, Rekeyed}",
            "sys::secret::Locking",
        ]
    );
}
