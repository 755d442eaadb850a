//! One store has one writer, whatever a program does to the store's files: a writer does something
//! to its own files, and other openers try to come in.
//!
//! The generator is exhaustive: each operation on each file, alone and after `lock` was removed,
//! and operations on the whole directory; each crossed with an opener for writing, for reading, for
//! serving clients, and one that formats. The writer goes on meanwhile, and what it was told is
//! committed is there afterwards.

mod child;

use crate::support::directory;
use cenote::{Access, CopyPolicy, Error, OpenOptions, PowerLossPolicy, Reader, Result, Store};
use cenote_layout::header;
use cenote_layout::superblock::Superblock;
use cenote_medium::planted::{Bug, plant};
use cenote_store::{OpenError, StoreError};
use cenote_testkit::directories;
use child::{
    CHILD, Counter, Operation, add, busy, counter, execute, openers, start, value, writer,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zerocopy::{FromBytes, IntoBytes};

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = what.split(' ').collect();
    match words[..] {
        ["writer", dir, operation, file] => writer(Path::new(dir), operation, file).unwrap(),
        ["openers", dir] => openers(Path::new(dir)),
        ["busy", dir] => busy(Path::new(dir)).unwrap(),
        ["execute", dir, program] => execute(Path::new(dir), program).unwrap(),
        _ => panic!("{what}"),
    }
}

/// One case: what is wrong with it.
fn case(operation: &str, files: &str, seen_from: &dyn Fn(&Path) -> PathBuf) -> Vec<String> {
    let keep = directory();
    let dir = keep.path().join("store");
    drop(Store::open(&dir).unwrap());
    let mut wrong = Vec::new();
    let mut writer = start(&format!("writer {} {operation} {files}", dir.display()));
    if writer.hear().as_deref() != Some("ready") {
        return vec!["the writer did not begin".into()];
    }
    let mut openers = start(&format!("openers {}", seen_from(&dir).display()));
    loop {
        match openers.hear() {
            None => wrong.push("an opener died".into()),
            Some(text) if text == "done" => {}
            Some(text) => {
                if text.contains("came in") {
                    wrong.push(text);
                }
                continue;
            }
        }
        break;
    }
    writer.go_on();
    let Some(end) = writer.hear() else { return vec!["the writer died".into()] };
    drop(writer);
    let loses = operation != "None"
        && files.split('+').any(|file| Operation::parse(operation).loses(file) && (file != "lock"));
    if loses {
        return wrong;
    }
    if end != "6 ok ok" {
        wrong.push(format!("the writer was disturbed: {end}"));
    }
    let linked = keep.path().join("linked");
    if linked.exists() {
        // As long as another directory shares its files it is written by neither.
        match Store::open(&dir) {
            Err(Error::Open(OpenError::Medium { source, .. }))
                if matches!(*source, cenote_medium::MediumError::Linked { .. }) => {}
            other => wrong.push(format!("with links: {other:?}")),
        }
        fs::remove_dir_all(&linked).unwrap();
    }
    match Store::open(&dir).and_then(|store| Ok((value(&store)?, store.report().damage.len()))) {
        Ok((6, 0)) => {}
        other => wrong.push(format!("afterwards: {other:?}")),
    }
    wrong
}

#[test]
fn nothing_that_a_program_does_to_its_files_lets_a_second_one_in() {
    let mut wrong = Vec::new();
    let same = |dir: &Path| dir.to_path_buf();
    for operation in Operation::ALL {
        for file in ["lock", "superblock", "catalog.0", "catalog.1", "puddle"] {
            for files in [file.to_owned(), format!("lock+{file}")] {
                if files == "lock+lock" {
                    continue;
                }
                let name = format!("{operation:?}");
                let found = case(&name, &files, &same);
                wrong.extend(found.into_iter().map(|what| format!("{name} of {files}: {what}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn copy_of(dir: &Path, name: &str) -> PathBuf {
    let copy = dir.with_file_name(name);
    directories::copy(dir, &copy);
    copy
}

fn with(copy: CopyPolicy, access: Access) -> OpenOptions {
    OpenOptions { copy, access, power_loss: PowerLossPolicy::ReadOnly, ..OpenOptions::default() }
}

#[test]
fn a_copy_of_a_store_that_is_written_is_refused_while_its_writer_lives_and_checked_afterwards() {
    let keep = directory();
    let dir = keep.path().join("store");
    let store = Store::open(&dir).unwrap();
    // A pool that is not in use is whole in every copy.
    let idle = store.pool("idle").unwrap();
    let idle_counter = counter(&idle).unwrap();
    assert_eq!(add(&idle, idle_counter).unwrap(), 1);
    drop((idle, store));
    let mut writer = start(&format!("busy {}", dir.display()));
    assert_eq!(writer.hear().as_deref(), Some("ready"));
    let copies: Vec<PathBuf> =
        (0..25).map(|number| copy_of(&dir, &format!("copy{number}"))).collect();
    for copy in &copies {
        for policy in [CopyPolicy::Refuse, CopyPolicy::CheckAndOpen] {
            for access in [Access::ReadWrite, Access::ReadOnly] {
                let opened = Store::open_with(copy, &with(policy, access));
                let Err(Error::Open(OpenError::CopyOfOpen { pid, .. })) = opened else {
                    panic!("{policy:?} {access:?}: {opened:?}")
                };
                assert_eq!(pid, writer.pid());
            }
        }
    }
    writer.kill();
    for copy in &copies {
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let refused = Store::open_with(copy, &with(CopyPolicy::Refuse, access));
            assert!(
                matches!(refused, Err(Error::Open(OpenError::Copied { .. }))),
                "{access:?}: {refused:?}"
            );
        }
        // Whatever was copied when: an error or damage is named, and no value is shown that was
        // not checked.
        for _ in 0..2 {
            let Ok(store) =
                Store::open_with(copy, &with(CopyPolicy::CheckAndOpen, Access::ReadWrite))
            else {
                continue;
            };
            assert!(store.report().copied);
            if let Ok(pool) = store.pool("p") {
                assert!(matches!(
                    pool.read(),
                    Err(Error::Store(StoreError::PoolNotCovered { .. }))
                ));
            }
            let idle = store.pool("idle").unwrap();
            let view = idle.read().unwrap();
            let root = view.root::<Counter>().unwrap().expect("the counter");
            assert_eq!(view.get(root).unwrap().value, 1);
        }
        // It stays a copy as long as a pool is left that it may have torn.
        assert!(Store::open_with(copy, &with(CopyPolicy::Refuse, Access::ReadWrite)).is_err());
    }
    // The original needs no policy.
    let store = Store::open(&dir).unwrap();
    assert!(!store.report().copied && store.report().damage.is_empty());
    assert!(value(&store).unwrap() > 0);
}

#[test]
fn an_opener_that_executes_another_program_keeps_nothing() {
    for program in ["sleeps", "opens"] {
        let keep = directory();
        let dir = keep.path().join("store");
        drop(Store::open(&dir).unwrap());
        let mut opener = start(&format!("execute {} {program}", dir.display()));
        assert_eq!(opener.hear().as_deref(), Some("ready"));
        let copy = copy_of(&dir, "copy");
        let accepted = with(CopyPolicy::CheckAndOpen, Access::ReadWrite);
        let opened = Store::open_with(&copy, &accepted);
        assert!(matches!(opened, Err(Error::Open(OpenError::CopyOfOpen { .. }))), "{opened:?}");
        opener.go_on();
        // Under the same number, started at the same time.
        assert_eq!(opener.hear().as_deref(), Some("there"), "{program}");
        let opened = Store::open_with(&copy, &OpenOptions::default());
        assert!(
            matches!(opened, Err(Error::Open(OpenError::Copied { .. }))),
            "{program}: {opened:?}"
        );
        let opened = Store::open_with(&copy, &accepted);
        assert!(opened.as_ref().is_ok_and(|store| store.report().copied), "{program}: {opened:?}");
        drop(opened);
        let store = Store::open(&dir).unwrap();
        assert!(!store.report().copied);
        assert_eq!(value(&store).unwrap(), 1, "{program}");
    }
}

/// What a session says that writes a journal's header after its store was replaced, and whether the
/// header has changed.
fn header_after(bug: Bug) -> (Result<()>, bool) {
    use std::os::unix::fs::FileExt;
    let keep = directory();
    let dir = keep.path().join("store");
    let store = Store::open(&dir).unwrap();
    let options = cenote::PoolOptions { mode: cenote::PoolMode::Shadowed, ..Default::default() };
    let pool = store.create_pool("s", &options).unwrap();
    let counter = counter(&pool).unwrap();
    let journal = fs::File::open(dir.join("journal.pools")).unwrap();
    let headers = || {
        let mut bytes = [0; 8192];
        journal.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    let before = headers();
    Operation::Replace.run(&dir.join("superblock"));
    plant(bug);
    // A backup leaves nothing in the journal, and says so in its header.
    let psynced = add(&pool, counter).and_then(|_| pool.psync());
    let backed_up = psynced.and_then(|_| store.backup(keep.path().join("copy"))).map(drop);
    let changed = headers() != before;
    drop((pool, store));
    plant(Bug::None);
    (backed_up, changed)
}

#[test]
fn a_journal_of_a_store_that_was_replaced_gets_no_header() {
    let (made, changed) = header_after(Bug::None);
    assert!(matches!(made, Err(Error::Store(StoreError::Fenced { .. }))), "{made:?}");
    assert!(!changed);
    let (made, changed) = header_after(Bug::InodeNotCompared);
    assert!(made.is_ok() && changed, "{made:?} {changed}");
}

#[test]
fn a_copy_becomes_a_store_as_any_other_when_every_pool_was_found_whole() -> Result<()> {
    let keep = directory();
    let dir = keep.path().join("store");
    {
        let store = Store::open(&dir)?;
        let pool = store.pool("p")?;
        let counter = counter(&pool)?;
        add(&pool, counter)?;
    }
    let store = Store::open(&dir)?;
    // Open, and no pool is in use.
    let copy = copy_of(&dir, "copy");
    let held = Store::open_with(&copy, &with(CopyPolicy::CheckAndOpen, Access::ReadWrite));
    let Err(Error::Open(OpenError::CopyOfOpen { pid, .. })) = held else { panic!("{held:?}") };
    assert_eq!(pid, std::process::id(), "this process has the original open");
    store.close()?;
    let refused = Store::open_with(&copy, &OpenOptions::default());
    assert!(matches!(refused, Err(Error::Open(OpenError::Copied { .. }))), "{refused:?}");
    let store = Store::open_with(&copy, &with(CopyPolicy::CheckAndOpen, Access::ReadWrite))?;
    assert!(store.report().copied);
    assert_eq!(value(&store)?, 1);
    store.close()?;
    let store = Store::open(&copy)?;
    assert!(!store.report().copied);
    assert_eq!(value(&store)?, 1);
    store.close()?;
    // Closed stores are copied and moved at will.
    let closed = copy_of(&copy, "closed");
    let moved = closed.with_file_name("moved");
    fs::rename(&closed, &moved).unwrap();
    assert_eq!(value(&Store::open(&moved)?)?, 1);
    Ok(())
}

#[test]
fn a_store_that_was_not_closed_opens_where_it_was_under_any_boot_and_name() -> Result<()> {
    let keep = directory();
    let dir = keep.path().join("store");
    drop(Store::open(&dir)?);
    let mut writer = start(&format!("writer {} None lock", dir.display()));
    assert_eq!(writer.hear().as_deref(), Some("ready"));
    writer.kill();
    // Its directory has another name, and another boot (whose devices have other numbers) opens it.
    let moved = dir.with_file_name("moved");
    fs::rename(&dir, &moved).unwrap();
    edit_superblock(&moved, |block| {
        block.boot_id = cenote::Uuid([7; 16]);
        block.device += 1;
    });
    let options = OpenOptions { power_loss: PowerLossPolicy::ReadOnly, ..OpenOptions::default() };
    let store = Store::open_with(&moved, &options)?;
    assert!(!store.report().copied);
    assert_eq!(store.report().crash, Some(cenote::CrashKind::Power));
    Ok(())
}

/// Changes both copies of a superblock in place.
fn edit_superblock(dir: &Path, change: impl Fn(&mut Superblock)) {
    let path = dir.join("superblock");
    let mut bytes = fs::read(&path).unwrap();
    for copy in bytes.chunks_exact_mut(4096) {
        let mut block = Superblock::read_from_bytes(copy).unwrap();
        change(&mut block);
        header::seal(&mut block);
        copy.copy_from_slice(block.as_bytes());
    }
    fs::write(&path, bytes).unwrap();
}

/// Opens a store, does something to its files, and makes a pool; what that said, and what an open
/// afterwards knows of the pool.
fn made_after(act: impl Fn(&Path), bug: Bug) -> (Result<()>, bool) {
    let keep = directory();
    let dir = keep.path().join("store");
    let store = Store::open(&dir).unwrap();
    store.pool("p").unwrap();
    act(&dir);
    plant(bug);
    let made = store.add_pool("q", &cenote::PoolOptions::default()).map(drop);
    let poisoned = store.pool("r").is_err();
    plant(Bug::None);
    assert_eq!(made.is_err(), poisoned, "a store that was fenced stays so");
    drop(store);
    let known = Store::open_with(&dir, &with(CopyPolicy::CheckAndOpen, Access::ReadWrite))
        .is_ok_and(|store| store.pools().iter().any(|pool| pool.record.name == "q"));
    (made, known)
}

/// What it is called, and what it does to a store.
type Act = (&'static str, fn(&Path));

/// What fences a session: another session's superblock, in its inode and in another, and catalog
/// files that are not its own.
const FENCING: [Act; 5] = [
    ("superblock of another session", |dir| edit_superblock(dir, |block| block.client.0[0] ^= 1)),
    ("superblock that is garbage", |dir| fs::write(dir.join("superblock"), [0xAA; 8192]).unwrap()),
    ("superblock replaced", |dir| Operation::Replace.run(&dir.join("superblock"))),
    ("catalog.0 replaced", |dir| Operation::Replace.run(&dir.join("catalog.0"))),
    ("catalog.1 removed", |dir| Operation::Remove.run(&dir.join("catalog.1"))),
];

#[test]
fn a_session_whose_store_was_replaced_acknowledges_nothing_more() {
    for (what, act) in FENCING {
        let (made, _) = made_after(act, Bug::None);
        assert!(matches!(made, Err(Error::Store(StoreError::Fenced { .. }))), "{what}: {made:?}");
    }
    let (made, known) = made_after(|_| {}, Bug::None);
    assert!(made.is_ok() && known);
}

#[test]
fn planted_a_session_that_does_not_look_writes_on() {
    let (made, _) = made_after(FENCING[0].1, Bug::FenceNotChecked);
    assert!(made.is_ok(), "{made:?}");
    let both: fn(&Path) = |dir| {
        Operation::Replace.run(&dir.join("catalog.0"));
        Operation::Replace.run(&dir.join("catalog.1"));
    };
    let (made, known) = made_after(both, Bug::InodeNotCompared);
    assert!(made.is_ok() && !known, "a pool was acknowledged and is lost: {made:?} {known}");
}

#[test]
fn planted_without_its_locks_a_second_writer_comes_in() {
    let keep = directory();
    let dir = keep.path().join("store");
    let open = || Store::open_with(&dir, &OpenOptions::default());
    plant(Bug::StoreNotHeld);
    drop(Store::open(&dir).unwrap());
    let first = open().unwrap();
    fs::remove_file(dir.join("lock")).unwrap();
    let second = open();
    plant(Bug::None);
    assert!(second.is_ok(), "{second:?}");
    // The fence stops the first one before it writes control data.
    let pool = first.add_pool("q", &cenote::PoolOptions::default());
    assert!(matches!(pool, Err(Error::Store(StoreError::Fenced { .. }))), "{pool:?}");
    drop((pool, first, second));
    let first = open().unwrap();
    fs::remove_file(dir.join("lock")).unwrap();
    let second = open();
    assert!(matches!(second, Err(Error::Open(OpenError::Locked { .. }))), "{second:?}");
    drop(first);
}

#[test]
fn planted_a_copy_that_is_not_recognised_opens() {
    let keep = directory();
    let dir = keep.path().join("store");
    let store = Store::open(&dir).unwrap();
    let copy = copy_of(&dir, "copy");
    drop(store);
    plant(Bug::CopyNotRecognised);
    let opened = Store::open_with(&copy, &OpenOptions::read_only());
    plant(Bug::None);
    assert!(opened.is_ok(), "{opened:?}");
    drop(opened);
    assert!(Store::open_with(&copy, &OpenOptions::read_only()).is_err());
}

#[test]
fn another_path_to_the_store_is_the_same_store() {
    let mut wrong = Vec::new();
    let mut try_path = |what: &str, seen_from: &dyn Fn(&Path) -> PathBuf| {
        for files in ["lock", "lock+lock"] {
            // Without the file `lock` the record lock keeps no opener out.
            let operation = if files == "lock" { "None" } else { "Remove" };
            let found = case(operation, "lock", seen_from);
            wrong.extend(found.into_iter().map(|found| format!("{what}, {operation}: {found}")));
        }
    };
    try_path("symlink", &|dir| {
        let link = dir.with_file_name("link");
        std::os::unix::fs::symlink(dir, &link).unwrap();
        link
    });
    try_path("renamed and linked", &|dir| {
        fs::rename(dir, dir.with_file_name("moved")).unwrap();
        std::os::unix::fs::symlink("moved", dir).unwrap();
        dir.with_file_name("moved")
    });
    try_path("hard links in another directory", &|dir| {
        let other = dir.with_file_name("linked");
        let done = Command::new("cp").arg("-al").arg(dir).arg(&other).status().unwrap();
        assert!(done.success());
        other
    });
    try_path("a copy", &|dir| copy_of(dir, "other"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_bind_mount_of_the_store_is_the_same_store() {
    let keep = directory();
    let dir = keep.path().join("store");
    let mounted = keep.path().join("mounted");
    drop(Store::open(&dir).unwrap());
    fs::create_dir(&mounted).unwrap();
    let bound =
        Command::new("mount").arg("--bind").arg(&dir).arg(&mounted).stderr(Stdio::null()).status();
    if !bound.is_ok_and(|status| status.success()) {
        return println!("skipped: this user may not bind mounts");
    }
    let store = Store::open_with(&dir, &OpenOptions::default()).unwrap();
    fs::remove_file(dir.join("lock")).unwrap();
    let mut openers = start(&format!("openers {}", mounted.display()));
    let mut came_in = Vec::new();
    while let Some(text) = openers.hear() {
        came_in.extend(text.contains("came in").then_some(text));
    }
    drop(store);
    assert!(Command::new("umount").arg(&mounted).status().unwrap().success());
    assert!(came_in.is_empty(), "{came_in:?}");
}
