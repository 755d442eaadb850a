//! Objects that go away, move or come back between a look at them and what follows.

use crate::running::{
    OBJECTS, create, is_refusal, key, open, prepare, small_journal, stamp_of, store_stamp,
};
use cenote_medium::planted::{Bug, Step, plant, watch};
use cenote_object::{Attached, Blocks, ObjectError, Permission};
use cenote_testkit::directories::directory;
use std::sync::{Arc, Mutex};

/// Calls `once` at the moment between looking an object up and attaching or removing it.
fn in_between(once: impl FnOnce() + Send + 'static) {
    let mut once = Some(once);
    watch(Some(Box::new(move |step| {
        if step == Step::ObjectLookedUp
            && let Some(once) = once.take()
        {
            // What it calls has steps itself: on a thread that has no watcher.
            std::thread::spawn(once).join().expect("no panic");
        }
    })));
}

/// The object that got the addresses of another one.
type Successor = Arc<Mutex<Option<Attached>>>;

/// Another object has the addresses that the first one had when it was looked up. `true`: the
/// attachment shows what it should, or is refused.
fn attaches_late(permission: Permission, read_meanwhile: bool, bug: Bug) -> bool {
    let outer = directory();
    let dir = outer.path().join("store");
    std::fs::create_dir(&dir).expect("a directory");
    prepare(&dir);
    let (_store, objects) = open(&dir, &small_journal());
    let path = outer.path().join("snapshot");
    let name = "sealed";
    objects.snapshot(name, &path, Blocks::Copied).expect("a snapshot");
    let first = objects.info(name).expect("there").object;
    let (meanwhile, taken) = (objects.clone(), Successor::default());
    let (keep, len) = (Arc::clone(&taken), first.record.data_len);
    let readers = Arc::new(Mutex::new(None));
    let reads = Arc::clone(&readers);
    in_between(move || {
        meanwhile.pdestroy(name, None).expect("removed");
        meanwhile.pcreate("other", len, None, 0o600).expect("created");
        let mut attached =
            meanwhile.attach("other", Permission::ReadWrite, None).expect("attached");
        store_stamp(&mut attached, 77, 1).expect("writable");
        *keep.lock().expect("no panic") = Some(attached);
        meanwhile.restore(&path, None).expect("restored");
        if read_meanwhile {
            let reader = meanwhile.attach(name, Permission::Read, Some(&key(1)));
            *reads.lock().expect("no panic") = Some(reader.expect("attached"));
        }
    });
    plant(bug);
    let late = objects.attach(name, permission, Some(&key(1)));
    watch(None);
    plant(Bug::None);
    let other = taken.lock().expect("no panic").take().expect("the step was reached");
    assert_eq!(other.addr(), first.data_addr(), "it has the addresses of the first");
    match late {
        Err(error) => assert!(is_refusal(&error), "{error:?}"),
        Ok(late) if late.addr() == other.addr() => {
            // One mapping lies over the other: neither is given back.
            std::mem::forget((late, other));
            return false;
        }
        Ok(late) => assert_eq!(stamp_of(late.as_slice(), name), 0),
    }
    assert_eq!(stamp_of(other.as_slice(), "other"), 77);
    let found =
        objects.attach(name, Permission::Read, Some(&key(1))).expect("attached where it is now");
    assert_eq!(stamp_of(found.as_slice(), name), 0);
    true
}

#[test]
fn an_object_that_moved_since_it_was_looked_up_is_not_attached_over_another() {
    for (permission, read_meanwhile) in
        [(Permission::Read, false), (Permission::Read, true), (Permission::ReadWrite, false)]
    {
        let what = format!("{permission:?}, {read_meanwhile}");
        assert!(attaches_late(permission, read_meanwhile, Bug::None), "{what}");
        let bug = Bug::ObjectNotLookedUpAgain;
        assert!(!attaches_late(permission, read_meanwhile, bug), "{what}: {bug:?} was not found");
    }
}

/// An object is removed and another of its name attached, after a removal has looked it up.
/// `true`: that one stays.
fn removes_late(bug: Bug) -> bool {
    let outer = directory();
    prepare(outer.path());
    let (_store, objects) = open(outer.path(), &small_journal());
    let (meanwhile, taken) = (objects.clone(), Successor::default());
    let keep = Arc::clone(&taken);
    in_between(move || {
        meanwhile.pdestroy("plain", None).expect("removed");
        create(&meanwhile, "plain", &key(1)).expect("created");
        let attached = meanwhile.attach("plain", Permission::ReadWrite, None).expect("attached");
        *keep.lock().expect("no panic") = Some(attached);
    });
    plant(bug);
    let late = objects.pdestroy("plain", None);
    watch(None);
    plant(Bug::None);
    let attached = taken.lock().expect("no panic").take().expect("the step was reached");
    let there = objects.info("plain").is_ok();
    assert_eq!(there, late.is_err(), "{late:?}");
    drop(attached);
    there
}

#[test]
fn an_object_of_the_same_name_is_not_removed_while_it_is_attached() {
    assert!(removes_late(Bug::None));
    assert!(!removes_late(Bug::ObjectNotLookedUpAgain), "the bug was not found");
}

/// An object is restored by one thread, and psynced, while another is about to restore it. `true`:
/// the other is refused, and what was psynced is there.
fn restores_late(bug: Bug) -> bool {
    let outer = directory();
    let dir = outer.path().join("store");
    std::fs::create_dir(&dir).expect("a directory");
    prepare(&dir);
    let path = outer.path().join("snapshot");
    let name = "sealed";
    {
        let (_store, objects) = open(&dir, &small_journal());
        objects.snapshot(name, &path, Blocks::Copied).expect("a snapshot");
        objects.pdestroy(name, None).expect("removed");
        let (meanwhile, from) = (objects.clone(), path.clone());
        in_between(move || {
            meanwhile.restore(&from, None).expect("restored");
            let mut object =
                meanwhile.attach(name, Permission::ReadWrite, Some(&key(1))).expect("attached");
            store_stamp(&mut object, 5, 1).expect("writable");
            object.psync().expect("psynced");
        });
        plant(bug);
        let late = objects.restore(&path, None);
        watch(None);
        plant(Bug::None);
        let late = late.expect_err("it is there");
        assert!(is_refusal(&late), "{late}");
        if objects.attach(name, Permission::ReadWrite, Some(&key(1))).is_err() {
            return false;
        }
    }
    let (_store, objects) = open(&dir, &small_journal());
    let found = objects.attach(name, Permission::Read, Some(&key(1)));
    found.is_ok_and(|found| stamp_of(found.as_slice(), name) == 5)
}

#[test]
fn an_object_that_another_thread_restored_stays_what_it_psynced() {
    assert!(restores_late(Bug::None));
    assert!(!restores_late(Bug::ObjectNotLookedUpAgain), "the bug was not found");
}

/// An object is away while its file is looked at, and there again before the failure is judged.
/// `true`: each call finds it.
fn away_for_a_moment(bug: Bug) -> bool {
    let outer = directory();
    let dir = outer.path().join("store");
    std::fs::create_dir(&dir).expect("a directory");
    prepare(&dir);
    let (_store, objects) = open(&dir, &small_journal());
    let name = "sealed";
    let path = outer.path().join("snapshot");
    objects.snapshot(name, &path, Blocks::Copied).expect("a snapshot");
    let away = |mut before: usize, look: &dyn Fn() -> Result<(), ObjectError>| {
        let (meanwhile, from) = (objects.clone(), path.clone());
        let mut turn = 0;
        watch(Some(Box::new(move |step| {
            let (meanwhile, from) = (meanwhile.clone(), from.clone());
            if step == Step::ObjectLookedUp && before > 0 {
                before -= 1;
                return;
            }
            let act: Box<dyn FnOnce() + Send> = match (turn, step) {
                (0, Step::ObjectLookedUp) => {
                    Box::new(move || meanwhile.pdestroy(name, None).expect("removed"))
                }
                (1, Step::ObjectLookFailed) => {
                    Box::new(move || drop(meanwhile.restore(&from, None).expect("restored")))
                }
                _ => return,
            };
            turn += 1;
            std::thread::spawn(act).join().expect("no panic");
        })));
        plant(bug);
        let found = look();
        plant(Bug::None);
        watch(None);
        found.is_ok()
    };
    // Two are looked at before it.
    let listed = away(2, &|| {
        let names: Vec<_> =
            objects.list()?.into_iter().map(|info| info.object.record.name).collect();
        assert_eq!(names.len(), OBJECTS.len(), "{names:?}");
        Ok(())
    });
    let known = away(0, &|| objects.info(name).map(drop));
    let attached = away(0, &|| objects.attach(name, Permission::Read, Some(&key(1))).map(drop));
    let copied = away(0, &|| {
        let copy = outer.path().join("copy");
        let _ = std::fs::remove_file(&copy);
        objects.snapshot(name, &copy, Blocks::Copied).map(drop)
    });
    let rekeyed = away(0, &|| objects.rekey(name, &key(1), &key(1)).map(drop));
    println!("{bug:?}: {listed} {known} {attached} {copied} {rekeyed}");
    listed && known && attached && copied && rekeyed
}

#[test]
fn an_object_that_was_away_for_a_moment_is_found() {
    assert!(away_for_a_moment(Bug::None));
    assert!(!away_for_a_moment(Bug::ObjectNotLookedUpAgain), "the bug was not found");
}
