//! Locks on a store: within a process, between processes, and after a death.

use std::path::Path;

use cenote_medium::{LockKind, Medium, MediumError, MediumOptions, OwnedMedium, RealMedium};
use cenote_testkit::child::{Talking, again, say};

const DIR_VARIABLE: &str = "CENOTE_TEST_LOCK_DIR";

/// A medium whose files a test may change.
fn own<'a>(medium: &'a (dyn Medium + 'static)) -> OwnedMedium<&'a (dyn Medium + 'static)> {
    // SAFETY: nothing is mapped.
    unsafe { OwnedMedium::new(medium) }
}

fn open(path: &Path) -> RealMedium {
    RealMedium::open(path, &MediumOptions::default()).expect("open the medium")
}

/// Not a test by itself: the other process. Locks the directory it is told, says so, and waits to
/// be killed.
#[test]
fn other_process() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else { return };
    let medium = open(Path::new(&dir));
    match medium.lock("lock", LockKind::Exclusive).expect("lock") {
        Ok(guard) => {
            std::mem::forget(guard);
            say("locked");
        }
        Err(holder) => say(format!("refused {:?}", holder.pid)),
    }
    std::thread::sleep(std::time::Duration::from_secs(600));
}

/// Another process that tried to lock `dir`, and its answer.
fn spawn(dir: &Path) -> (Talking, String) {
    let mut child = Talking::start(again("other_process").env(DIR_VARIABLE, dir));
    let answer = child.hear().expect("an answer");
    (child, answer)
}

#[test]
fn a_second_exclusive_lock_in_this_process_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let (first, second) = (open(dir.path()), open(dir.path()));
    let guard = first.lock("lock", LockKind::Exclusive).expect("lock").expect("free");
    for kind in [LockKind::Exclusive, LockKind::Shared] {
        let holder = second.lock("lock", kind).expect("lock").expect_err("held");
        assert_eq!(holder.pid, Some(std::process::id()));
        assert!(holder.text.starts_with("this process"), "{holder}");
    }
    drop(guard);
    second.lock("lock", LockKind::Exclusive).expect("lock").expect("free again");
}

#[test]
fn readers_share_and_exclude_a_writer() {
    let dir = tempfile::tempdir().expect("directory");
    let (first, second) = (open(dir.path()), open(dir.path()));
    let one = first.lock("lock", LockKind::Shared).expect("lock").expect("free");
    let two = second.lock("lock", LockKind::Shared).expect("lock").expect("shared");
    first.lock("lock", LockKind::Exclusive).expect("lock").expect_err("two readers");
    drop(one);
    first.lock("lock", LockKind::Exclusive).expect("lock").expect_err("one reader");
    let (mut child, answer) = spawn(dir.path());
    assert_eq!(
        answer,
        format!("refused Some({})", std::process::id()),
        "one reader still holds it"
    );
    child.kill();
    drop(two);
    first.lock("lock", LockKind::Exclusive).expect("lock").expect("no holder");
}

#[test]
fn another_process_is_refused_and_named_and_its_death_frees_the_lock() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    let (mut child, answer) = spawn(dir.path());
    assert_eq!(answer, "locked");
    let holder =
        medium.lock("lock", LockKind::Exclusive).expect("lock").expect_err("held by the child");
    assert_eq!(holder.pid, Some(child.pid()));
    assert!(holder.text.contains(&format!("process {} (", child.pid())), "{holder}");
    child.kill();
    medium.lock("lock", LockKind::Exclusive).expect("lock").expect("the dead hold no lock");
}

#[test]
fn nothing_that_this_process_does_with_the_medium_drops_the_lock() {
    let dir = tempfile::tempdir().expect("directory");
    let (first, second) = (open(dir.path()), open(dir.path()));
    // The descriptor of a file that was written would be kept, and closed later.
    first.create("lock", 4096).expect("create");
    let guard = first.lock("lock", LockKind::Exclusive).expect("lock").expect("free");
    for medium in [&first, &second] {
        for result in [
            medium.read("lock").map(drop),
            medium.read_at("lock", 0, &mut [0]).map(drop),
            own(medium).write_at("lock", 0, b"x"),
            own(medium).truncate("lock", 0),
            medium.sync("lock"),
        ] {
            assert!(matches!(result, Err(MediumError::Locked { .. })), "{result:?}");
        }
        assert_eq!(medium.len("lock").expect("len"), 4096);
        assert!(medium.exists("lock").expect("exists"));
        medium.list("").expect("list");
        medium.lock("lock", LockKind::Exclusive).expect("lock").expect_err("held");
    }
    drop(second);
    let (mut child, answer) = spawn(dir.path());
    assert_eq!(answer, format!("refused Some({})", std::process::id()));
    child.kill();
    drop(guard);
    first.read("lock").expect("free to be read again");
}

#[test]
fn a_read_only_medium_takes_shared_locks_only_and_creates_no_lock_file() {
    let dir = tempfile::tempdir().expect("directory");
    let read_only = MediumOptions { read_only: true, ..MediumOptions::default() };
    let reader = RealMedium::open(dir.path(), &read_only).expect("open");
    assert!(reader.lock("lock", LockKind::Shared).is_err_and(|error| error.is_not_found()));
    drop(open(dir.path()).lock("lock", LockKind::Exclusive).expect("lock").expect("free"));
    assert!(matches!(reader.lock("lock", LockKind::Exclusive), Err(MediumError::ReadOnly { .. })));
    reader.lock("lock", LockKind::Shared).expect("lock").expect("free");
}
