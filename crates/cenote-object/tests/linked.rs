//! An object whose file has two names is written by no store.

use crate::common::window_base;
use cenote_medium::{MediumError, MediumOptions, RealMedium};
use cenote_object::{ObjectError, ObjectOptions, Objects, ObjectsOptions, Permission, Store};
use cenote_store::{FormatOptions, OpenOptions, StoreError};
use std::path::Path;
use std::sync::Arc;

const LEN: u64 = 16 << 10;

fn open(dir: &Path) -> (Store, Objects) {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    let objects = Objects::open(&store, &ObjectsOptions::default()).expect("objects");
    (store, objects)
}

#[test]
fn an_object_whose_file_has_two_names_is_not_attached() {
    let dir = tempfile::tempdir().expect("a directory");
    let medium = Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
    let format =
        FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid: None };
    cenote_store::format(medium, &format).expect("format");
    let (store, objects) = open(dir.path());
    let options = ObjectOptions { permissions: 0o600, ..ObjectOptions::default() };
    objects.pcreate_with("o", LEN, None, &options).expect("created");
    drop(objects);
    store.close().expect("closed");
    let names: Vec<_> = std::fs::read_dir(dir.path().join("puddles")).expect("puddles").collect();
    let names: Vec<_> = names.into_iter().map(|entry| entry.expect("an entry").path()).collect();
    let link = |path: &std::path::PathBuf| dir.path().join(path.file_name().expect("a name"));
    names.iter().for_each(|path| std::fs::hard_link(path, link(path)).expect("linked"));
    let (store, objects) = open(dir.path());
    let refused = objects.attach("o", Permission::ReadWrite, None);
    let linked = |error: &ObjectError| {
        matches!(
            error,
            ObjectError::Store(StoreError::Medium(MediumError::Linked { links: 2, .. }))
        ) || matches!(error, ObjectError::Medium(MediumError::Linked { links: 2, .. }))
    };
    assert!(refused.as_ref().is_err_and(linked), "{refused:?}");
    names.iter().for_each(|path| std::fs::remove_file(link(path)).expect("removed"));
    // Nothing of the refusal stays.
    let mut object = objects.attach("o", Permission::ReadWrite, None).expect("attached");
    object.as_mut_slice().expect("writable").fill(7);
    object.psync().expect("psynced");
    object.detach().expect("detached");
    drop(objects);
    store.close().expect("closed");
}
