//! Pools that are protected at rest, with lists whose nodes hold a word that is found wherever it
//! lies in plain text.

use cenote::{
    Access, AtRest, Keyring, Locking, MasterKey, OpenOptions, Persist, Pool, PoolMode, PoolOptions,
    Ptr, Reader, Result, Store, field,
};
use cenote_testkit::directories::files;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const PROTECTED: [AtRest; 4] =
    [AtRest::Integrity, AtRest::Encryption, AtRest::EncryptionIntegrity, AtRest::Authenticated];
/// Those in which a page that was changed is found.
pub(crate) const CHECKED: [AtRest; 3] =
    [AtRest::Integrity, AtRest::EncryptionIntegrity, AtRest::Authenticated];

pub(crate) fn key(number: u8) -> Arc<Keyring> {
    let mut bytes: [u8; 32] = core::array::from_fn(|i| number ^ (i as u8).wrapping_mul(29));
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).unwrap();
    Arc::new(Keyring::new(key).locking(Locking::IfPossible))
}

/// The key that goes with a mode.
pub(crate) fn key_for(at_rest: AtRest, number: u8) -> Option<Arc<Keyring>> {
    at_rest.mode().has_key().then(|| key(number))
}

pub(crate) fn options(at_rest: AtRest, key: Option<Arc<Keyring>>) -> PoolOptions {
    PoolOptions {
        mode: PoolMode::Shadowed,
        puddle_size: 256 << 10,
        at_rest,
        key,
        ..PoolOptions::default()
    }
}

/// A word that no program text, header or hash has by chance: a page of them is found wherever it
/// lies as it is.
pub(crate) const WORD: u64 = 0x5eed_c0de_7a11_ba5e;

#[derive(Persist)]
#[persist(name = "at_rest::Node")]
pub(crate) struct Node {
    number: u64,
    next: Option<Ptr<Node>>,
    pub(crate) words: [u64; 60],
}

impl Node {
    pub(crate) fn next(&self) -> Option<Ptr<Node>> {
        self.next
    }
}

/// A list of `count` nodes, the last first.
pub(crate) fn push(pool: &Pool, from: u64, to: u64) {
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
pub(crate) fn touch(pool: &Pool) {
    pool.write(|tx| -> Result<()> {
        let node = tx.root_in::<Node>(pool, 0)?.unwrap();
        let number = tx.get(node)?.number;
        tx.get_mut(node)?.words = [WORD; 60];
        tx.set(node, field!(Node, number), number)
    })
    .unwrap();
}

pub(crate) fn count(pool: &Pool) -> u64 {
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

/// The files in which the word is, eight bytes at any place.
pub(crate) fn with_word(dir: &Path) -> Vec<PathBuf> {
    let found = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(8).any(|window| window == WORD.to_le_bytes())
    };
    files(dir).into_iter().filter(found).collect()
}

pub(crate) fn opened(dir: &Path, access: Access, key: Option<Arc<Keyring>>) -> Store {
    Store::open_with(dir, &OpenOptions { access, key, ..OpenOptions::default() }).unwrap()
}

/// The file of a pool's root puddle.
pub(crate) fn root_file(store: &Store, dir: &Path, pool: &str) -> PathBuf {
    let id = store.pools().into_iter().find(|info| info.record.name == pool).unwrap().record.id;
    let puddles = store.puddle_records();
    let root = puddles.iter().find(|puddle| puddle.pool == id && puddle.index == 0).unwrap();
    dir.join("puddles").join(root.uuid.to_string().replace('-', ""))
}

/// A closed store with a pool of 300 nodes, and the pool's root file.
pub(crate) fn closed(dir: &Path, at_rest: AtRest) -> PathBuf {
    let store = Store::open(dir).unwrap();
    let pool = store.create_pool("p", &options(at_rest, key_for(at_rest, 1))).unwrap();
    push(&pool, 0, 300);
    drop(pool);
    let file = root_file(&store, dir, "p");
    store.close().unwrap();
    file
}
