//! Objects of a copy of an open store: sealed ones are verified before their bytes are given out,
//! of others nothing is known.

use crate::common::{the_key, window_base};
use cenote_atrest::Mode;
use cenote_medium::{MediumOptions, RealMedium};
use cenote_object::{
    Blocks, ObjectError, ObjectOptions, Objects, ObjectsOptions, Permission, Store,
};
use cenote_store::{
    CopyPolicy, FormatOptions, OpenError, OpenOptions, PowerLossPolicy, StoreError,
};
use cenote_testkit::directories;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LEN: u64 = 64 << 10;

fn open(dir: &Path, options: OpenOptions) -> Result<(Store, Objects), OpenError> {
    let medium = Arc::new(RealMedium::open(dir, &MediumOptions::default()).expect("medium"));
    let (store, _) = Store::open(medium, options)?;
    let objects = Objects::open(&store, &ObjectsOptions::default()).expect("objects");
    Ok((store, objects))
}

fn accepting(power_loss: PowerLossPolicy) -> OpenOptions {
    OpenOptions { copy: CopyPolicy::CheckAndOpen, power_loss, ..OpenOptions::default() }
}

/// A copy that was made while a session had the store open.
fn copy_of_open(keep: &Path) -> PathBuf {
    let dir = keep.join("store");
    std::fs::create_dir(&dir).expect("made");
    let medium = Arc::new(RealMedium::open(&dir, &MediumOptions::default()).expect("medium"));
    let format =
        FormatOptions { window_base: Some(window_base()), window_len: 64 << 20, uuid: None };
    cenote_store::format(medium, &format).expect("format");
    let (store, objects) = open(&dir, OpenOptions::default()).expect("a new store");
    for (name, at_rest) in [("plain", Mode::None), ("sealed", Mode::Authenticated)] {
        let key = at_rest.has_key().then(the_key);
        let options = ObjectOptions { at_rest, permissions: 0o600 };
        objects.pcreate_with(name, LEN, key, &options).expect("created");
        let mut object = objects.attach(name, Permission::ReadWrite, key).expect("attached");
        object.as_mut_slice().expect("writable").fill(7);
        object.psync().expect("psynced");
        object.detach().expect("detached");
    }
    objects.checkpoint().expect("checkpoint");
    let copy = keep.join("copy");
    directories::copy(&dir, &copy);
    drop(objects);
    store.close().expect("closed");
    copy
}

fn not_covered<T: std::fmt::Debug>(result: Result<T, ObjectError>) {
    assert!(matches!(result, Err(ObjectError::NotCovered { .. })), "{result:?}");
}

#[test]
fn objects_of_a_copy_of_an_open_store_are_checked_or_refused() {
    let keep = tempfile::tempdir().expect("a directory");
    let copy = copy_of_open(keep.path());
    assert!(matches!(open(&copy, OpenOptions::default()), Err(OpenError::Copied { .. })));
    {
        let (_store, objects) = open(&copy, accepting(PowerLossPolicy::Refuse)).expect("accepted");
        for permission in [Permission::Read, Permission::ReadWrite] {
            not_covered(objects.attach("plain", permission, None));
        }
        not_covered(objects.snapshot("plain", &keep.path().join("snapshot"), Blocks::Copied));
        // A snapshot is made without the key.
        let snapshot =
            |name: &str| objects.snapshot("sealed", &keep.path().join(name), Blocks::Copied);
        assert!(matches!(snapshot("early"), Err(ObjectError::Unverified { .. })));
        let object =
            objects.attach("sealed", Permission::ReadWrite, Some(the_key())).expect("whole");
        let mut bytes = [0; 16];
        object.read_at(LEN - 16, &mut bytes).expect("verified");
        assert_eq!(bytes, [7; 16]);
        object.detach().expect("detached");
        snapshot("late").expect("verified");
        // What this session makes needs no check.
        objects.pcreate("made", LEN, None, 0o600).expect("created");
        objects
            .attach("made", Permission::Read, None)
            .expect("attached")
            .detach()
            .expect("detached");
        objects.pdestroy("made", None).expect("destroyed");
    }
    // It stays a copy as long as an object is left that was not checked.
    assert!(matches!(open(&copy, OpenOptions::default()), Err(OpenError::Copied { .. })));
    {
        let (store, objects) = open(&copy, accepting(PowerLossPolicy::AsIs)).expect("accepted");
        objects
            .attach("plain", Permission::Read, None)
            .expect("as it is")
            .detach()
            .expect("detached");
        assert!(store.is_unchecked_copy());
        let sealed = objects.attach("sealed", Permission::Read, Some(the_key())).expect("whole");
        sealed.detach().expect("detached");
        assert!(!store.is_unchecked_copy());
    }
    let (_store, objects) = open(&copy, OpenOptions::default()).expect("a store as any other");
    objects.attach("plain", Permission::Read, None).expect("attached").detach().expect("detached");
}

/// A page of another moment, wherever it lies, is found before any byte is given out.
#[test]
fn a_torn_page_of_a_sealed_object_in_a_copy_is_found_when_the_object_is_attached() {
    let keep = tempfile::tempdir().expect("a directory");
    let copy = copy_of_open(keep.path());
    let file = {
        let (_store, objects) = open(&copy, accepting(PowerLossPolicy::Refuse)).expect("accepted");
        let info = objects.info("sealed").expect("known").object;
        (copy.join(info.file()), info.data_offset())
    };
    let medium =
        std::fs::OpenOptions::new().read(true).write(true).open(&file.0).expect("the file");
    for page in 0..LEN / 4096 {
        let at = file.1 + page * 4096 + 100;
        let mut byte = [0];
        medium.read_exact_at(&mut byte, at).expect("read");
        medium.write_all_at(&[byte[0] ^ 1], at).expect("written");
        let (_store, objects) = open(&copy, accepting(PowerLossPolicy::Refuse)).expect("accepted");
        for permission in [Permission::Read, Permission::ReadWrite] {
            let found = objects.attach("sealed", permission, Some(the_key()));
            let damaged = matches!(
                &found,
                Err(ObjectError::Store(StoreError::ObjectDamaged { detail, .. }))
                    if detail.starts_with(&format!("page {page}:"))
            );
            assert!(damaged, "page {page}: {found:?}");
        }
        drop(objects);
        medium.write_all_at(&byte, at).expect("written");
    }
}
