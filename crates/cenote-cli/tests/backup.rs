//! `cenote backup`: a copy that opens, or none, whenever it is killed or interrupted.

use crate::common::{cenote, empty, run};
use cenote::{Persist, Ptr, Reader as _};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

#[derive(Persist)]
#[persist(name = "backup::Block")]
struct Block {
    next: Option<Ptr<Self>>,
    words: [u64; 16 << 10],
}

/// Blocks of the pool: 8 MiB.
const BLOCKS: u64 = 64;

fn fill(store: &Path) {
    let store = cenote::Store::open(store).expect("a store");
    let pool = store.create_pool("much", &cenote::PoolOptions::default()).expect("a pool");
    for number in 0..BLOCKS {
        pool.write(|tx| -> cenote::Result<()> {
            let next = tx.root::<Block>()?;
            let block = tx.alloc(Block { next, words: [number + 1; 16 << 10] })?;
            tx.set_root(block)
        })
        .expect("written");
    }
    drop(pool);
    store.close().expect("closed");
}

/// All blocks are there.
fn whole(store: &Path) {
    let store = cenote::Store::open_with(store, &cenote::OpenOptions::default()).expect("opens");
    assert!(store.report().clean && !store.report().copied, "{:?}", store.report());
    let pool = store.pool("much").expect("the pool");
    assert!(pool.check().expect("checked").is_sound());
    let view = pool.read().expect("whole");
    let (mut at, mut left) = (view.root::<Block>().expect("typed"), BLOCKS);
    while let Some(block) = at {
        let block = view.get(block).expect("a block");
        assert!(block.words.iter().all(|word| *word == left));
        (at, left) = (block.next, left - 1);
    }
    assert_eq!(left, 0);
}

fn unfinished(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the directory").flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".copy."))
        })
        .collect()
}

#[test]
fn a_backup_that_is_killed_or_interrupted_leaves_no_target_or_a_whole_one() {
    let fixture = empty();
    fill(&fixture.store);
    let dir = fixture.store.parent().expect("a parent").to_owned();
    let target = dir.join("copy");
    let mut left = 0;
    for round in 0..16u64 {
        let signal = if round % 2 == 0 { Signal::KILL } else { Signal::INT };
        let before = unfinished(&dir);
        let mut backup = cenote()
            .arg("backup")
            .args([&fixture.store, &target])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("begun");
        std::thread::sleep(Duration::from_millis(2 + round * 4));
        let _ = kill_process(Pid::from_child(&backup), signal);
        let status = backup.wait().expect("ended");
        // One that ended before it began to look has not removed what an earlier one left.
        for path in unfinished(&dir).into_iter().filter(|path| !before.contains(path)) {
            assert_eq!(signal, Signal::KILL, "something is left: {path:?}");
            // It is no store, unless nothing was missing but its name.
            let opened = cenote::Store::open_with(&path, &cenote::OpenOptions::default());
            if opened.is_ok_and(|store| store.close().is_ok()) {
                whole(&path);
            }
            left += 1;
        }
        if status.success() {
            assert!(target.exists());
        }
        if target.exists() {
            whole(&target);
            std::fs::remove_dir_all(&target).expect("removed");
        }
    }
    println!("{left} directories were left by kills");
    run([Path::new("backup"), &fixture.store, &target]).exits(0);
    assert!(unfinished(&dir).is_empty());
    whole(&target);
    whole(&fixture.store);
}

/// A backup under `strace`, with a fault where `injection` says; what it says, and the calls of
/// `traced`, in order, if it left any. `None`: there is no `strace` here.
fn under_strace(
    [store, target]: [&Path; 2],
    traced: &str,
    injection: Option<&str>,
) -> Option<(crate::common::Ran, Vec<String>)> {
    let log = store.with_file_name("calls");
    let mut command = std::process::Command::new("strace");
    command.args(["-f", "-qq", "-e", "signal=none", "-o"]).arg(&log).args(["-e", traced]);
    if let Some(injection) = injection {
        command.args(["-e", injection]);
    }
    let plain = cenote();
    command
        .arg(plain.get_program())
        .envs(plain.get_envs().filter_map(|(name, to)| Some((name, to?))));
    let ran: crate::common::Ran = command.arg("backup").args([store, target]).output().ok()?.into();
    if ran.err.starts_with("strace:") {
        return None;
    }
    let calls = std::fs::read_to_string(&log).expect("the calls");
    Some((ran, calls.lines().map(String::from).collect()))
}

/// Whether a line of `strace` is of this call.
fn is(line: &str, call: &str) -> bool {
    line.contains(&format!(" {call}("))
}

const NO_STRACE: &str = "skipped: there is no strace, or it may not trace";

#[test]
fn a_copy_whose_name_is_not_synced_is_told_as_made() {
    let fixture = empty();
    fill(&fixture.store);
    let target = fixture.store.with_file_name("copy");
    let files = [&*fixture.store, &*target];
    let Some((ran, calls)) = under_strace(files, "trace=fsync,rename", None) else {
        return println!("{NO_STRACE}");
    };
    ran.exits(0);
    // The first sync behind the renaming is the parent's.
    let renamed = calls.iter().position(|line| is(line, "rename")).expect("it is renamed");
    let syncs = calls[..renamed].iter().filter(|line| is(line, "fsync")).count();
    assert!(calls[renamed..].iter().any(|line| is(line, "fsync")), "{calls:?}");
    std::fs::remove_dir_all(&target).expect("removed");
    let injection = format!("inject=fsync:error=EIO:when={}", syncs + 1);
    let (ran, _) = under_strace(files, "trace=fsync,rename", Some(&injection)).expect("as before");
    let ran = ran.complains(3, &["done, but", "loss of power", "copy is complete"]);
    assert!(!ran.out.contains("done:"), "{}", ran.out);
    whole(&target);
    whole(&fixture.store);
    assert!(unfinished(fixture.dir.path()).is_empty());
}

/// At each call that asks for space: an error that says so, no copy, and the store is as it was.
#[test]
fn a_disk_that_is_full_in_the_middle_of_a_backup_leaves_the_store_and_no_copy() {
    const SPACE: [&str; 5] = ["pwrite64", "fallocate", "ftruncate", "mkdir", "rename"];
    let fixture = empty();
    {
        let store = cenote::Store::open(&fixture.store).expect("a store");
        let options =
            cenote::PoolOptions { puddle_size: 192 << 10, ..cenote::PoolOptions::default() };
        let pool = store.create_pool("much", &options).expect("a pool");
        pool.write(|tx| -> cenote::Result<()> {
            let block = tx.alloc(7_u64)?;
            tx.set_root(block)
        })
        .expect("written");
        drop(pool);
        store.close().expect("closed");
    }
    let target = fixture.store.with_file_name("copy");
    let files = [&*fixture.store, &*target];
    let traced = format!("trace={}", SPACE.join(","));
    let Some((ran, calls)) = under_strace(files, &traced, None) else {
        return println!("{NO_STRACE}");
    };
    ran.exits(0);
    std::fs::remove_dir_all(&target).expect("removed");
    let mut refused = 0;
    for name in SPACE {
        let count = calls.iter().filter(|line| is(line, name)).count();
        // Opening and closing the store ask for space, too: only that is said then.
        for number in 1..=count {
            let injection = format!("inject={name}:error=ENOSPC:when={number}");
            let (ran, _) = under_strace(files, &traced, Some(&injection)).expect("as before");
            assert!(
                matches!(ran.status, Some(0 | 3)),
                "{injection}: {:?}: {}",
                ran.status,
                ran.err
            );
            let is_made = ran.status == Some(0) || ran.err.contains("done, but");
            assert_eq!(target.exists(), is_made, "{injection}: {}", ran.err);
            assert!(unfinished(fixture.dir.path()).is_empty(), "{injection}");
            refused += u64::from(!is_made);
            for store in [&fixture.store, &target].into_iter().take(1 + usize::from(is_made)) {
                let store = cenote::Store::open_with(store, &cenote::OpenOptions::default())
                    .expect("opens");
                let pool = store.pool("much").expect("the pool");
                assert!(pool.check().expect("checked").is_sound(), "{injection}");
                let view = pool.read().expect("whole");
                let root = view.root::<u64>().expect("typed").expect("there");
                assert_eq!(*view.get(root).expect("a number"), 7, "{injection}");
            }
            if is_made {
                std::fs::remove_dir_all(&target).expect("removed");
            }
        }
    }
    assert!(refused > 10, "{refused} of {} faults", calls.len());
}
