//! Pools that are protected at rest, on a real directory: no plaintext in any file, the last psync after every crash, keys, damage, what is refused.

use crate::support::underneath;
use cenote::{
    Access, AtRest, AtRestError, CrashKind, Error, Keyring, Locking, MasterKey, OpenOptions, Persist, Pool,
    PoolMode, PoolOptions, PoolStart, Ptr, Reader, Result, Store, field,
};
use cenote_store::StoreError;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const PROTECTED: [AtRest; 4] =
    [AtRest::Integrity, AtRest::Encryption, AtRest::EncryptionIntegrity, AtRest::Authenticated];
/// Those in which a page that was changed is found.
const CHECKED: [AtRest; 3] = [AtRest::Integrity, AtRest::EncryptionIntegrity, AtRest::Authenticated];

fn key(number: u8) -> Arc<Keyring> {
    let mut bytes: [u8; 32] = core::array::from_fn(|i| number ^ (i as u8).wrapping_mul(29));
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).unwrap();
    Arc::new(Keyring::new(key).locking(Locking::IfPossible))
}

/// The key that goes with a mode.
fn key_for(at_rest: AtRest, number: u8) -> Option<Arc<Keyring>> {
    at_rest.mode().has_key().then(|| key(number))
}

fn options(at_rest: AtRest, key: Option<Arc<Keyring>>) -> PoolOptions {
    PoolOptions { mode: PoolMode::Shadowed, puddle_size: 256 << 10, at_rest, key, ..PoolOptions::default() }
}

/// A word that no program text, header or hash has by chance: a page of them is found wherever it lies as it is.
const WORD: u64 = 0x5eed_c0de_7a11_ba5e;

#[derive(Persist)]
#[persist(name = "at_rest::Node")]
struct Node {
    number: u64,
    next: Option<Ptr<Node>>,
    words: [u64; 60],
}

/// A list of `count` nodes, the last first.
fn push(pool: &Pool, from: u64, to: u64) {
    for number in from..to {
        pool.write(|tx| -> Result<()> {
            let next = tx.root_in::<Node>(pool, 0)?;
            let node = tx.alloc_in(pool, Node { number, next, words: [WORD; 60] })?;
            tx.set_root(node)
        })
        .unwrap();
    }
}

/// Changes a value in place, so that what it was goes into a log.
fn touch(pool: &Pool) {
    pool.write(|tx| -> Result<()> {
        let node = tx.root_in::<Node>(pool, 0)?.unwrap();
        let number = tx.get(node)?.number;
        tx.get_mut(node)?.words = [WORD; 60];
        tx.set(node, field!(Node, number), number)
    })
    .unwrap();
}

fn count(pool: &Pool) -> u64 {
    let view = pool.read().unwrap();
    let (mut at, mut expected) = (view.root::<Node>().unwrap(), None);
    let mut count = 0;
    while let Some(node) = at {
        let node = view.get(node).unwrap();
        assert!(expected.is_none_or(|number| number == node.number), "{}", node.number);
        assert!(node.words == [WORD; 60]);
        expected = node.number.checked_sub(1);
        (at, count) = (node.next, count + 1);
    }
    count
}

/// Every file below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { out.extend(files(&path)) } else { out.push(path) }
    }
    out
}

/// The files in which the word is, eight bytes at any place.
fn with_word(dir: &Path) -> Vec<PathBuf> {
    let found = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(8).any(|window| window == WORD.to_le_bytes())
    };
    files(dir).into_iter().filter(found).collect()
}

fn opened(dir: &Path, access: Access, key: Option<Arc<Keyring>>) -> Store {
    Store::open_with(dir, &OpenOptions { access, key, ..OpenOptions::default() }).unwrap()
}

#[test]
fn plaintext_is_in_no_file_while_running_after_a_psync_a_close_and_a_crash() {
    for at_rest in PROTECTED {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let pool = store.create_pool("p", &options(at_rest, key_for(at_rest, 1))).unwrap();
        assert_eq!(pool.at_rest(), at_rest);
        let clear = |when: &str| {
            let found = with_word(dir.path());
            // Integrity hides nothing: the pages lie there as they are, once they are psynced, and in no log before.
            match (at_rest, when) {
                (AtRest::Integrity, "running") => assert!(found.is_empty(), "{found:?}"),
                (AtRest::Integrity, _) => assert!(!found.is_empty(), "the search finds nothing at all"),
                _ => assert!(found.is_empty(), "{at_rest:?}, {when}: {found:?}"),
            }
        };
        push(&pool, 0, 500);
        touch(&pool);
        clear("running");
        let psync = pool.psync().unwrap();
        assert!(psync.pages > 50, "{psync:?}");
        clear("psynced");
        push(&pool, 500, 600);
        touch(&pool);
        clear("going on");
        drop(pool);
        store.abandon();
        clear("crashed");
        let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
        let pool = store.pool("p").unwrap();
        assert_eq!(count(&pool), 500, "{at_rest:?}: the last psync");
        assert_eq!(store.report().restored.len(), 1);
        push(&pool, 500, 700);
        drop(pool);
        store.close().unwrap();
        clear("closed");
        let store = opened(dir.path(), Access::ReadOnly, key_for(at_rest, 1));
        assert!(store.report().clean);
        assert_eq!(count(&store.pool_with("p", Access::ReadOnly).unwrap()), 700);
    }
}
