//! `cenote backup`: a copy that opens, or none, whenever it is killed or interrupted.

mod common;

use cenote::{Persist, Ptr, Reader as _};
use common::{cenote, empty, run};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

#[derive(Persist)]
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
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".copy.")))
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
        for path in unfinished(&dir) {
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
