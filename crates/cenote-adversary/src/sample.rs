//! A small store with something of each kind, and what can be said of one by looking at it: its
//! *digest*.

use crate::child;
use crate::round::{Outcome, Trouble, found, require};
use cenote::{
    Access, AtRest, Keyring, Locking, MasterKey, OpenOptions, Persist, Pool, PoolMode, PoolOptions,
    Ptr, Reader, RealMedium, Result, Store,
};
use cenote_fuzz::Random;
use cenote_object::{Objects, ObjectsOptions, Permission};
use cenote_store::OpenError;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The pools: name, mode, protection.
pub(crate) const POOLS: [(&str, PoolMode, AtRest); 6] = [
    ("direct", PoolMode::Direct, AtRest::None),
    ("shadow", PoolMode::Shadowed, AtRest::None),
    ("checked", PoolMode::Shadowed, AtRest::Integrity),
    ("secret", PoolMode::Shadowed, AtRest::Encryption),
    ("both", PoolMode::Shadowed, AtRest::EncryptionIntegrity),
    ("sealed", PoolMode::Shadowed, AtRest::Authenticated),
];
/// The objects; the second is protected.
pub(crate) const OBJECTS: [&str; 2] = ["plain", "box"];
/// Bytes of each object.
pub(crate) const OBJECT_LEN: usize = 64 << 10;
/// Nodes of the list in each pool.
const NODES: u64 = 40;
/// More than any list has.
const LINKS_MAX: u64 = 100_000;
const KEYS: [&[u8; 32]; 2] =
    [b"a key of thirty-two bytes, known", b"another key, just as well known."];

#[derive(Persist)]
#[persist(name = "adversary::Link")]
struct Link {
    number: u64,
    next: Option<Ptr<Link>>,
    words: [u64; 30],
}

/// One of the keys that harnesses use.
pub(crate) fn key(number: usize) -> Outcome<Arc<Keyring>> {
    let mut bytes = *KEYS[number];
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible)?;
    Ok(Arc::new(Keyring::new(key).locking(Locking::IfPossible)))
}

fn words(number: u64) -> [u64; 30] {
    let mut random = Random(number);
    core::array::from_fn(|_| random.next_word())
}

/// Makes the store, `dir/store`; and beside it key files `key0` and `key1`, `data` for an object,
/// archives `direct.archive` and `sealed.archive`, and the `snapshot` of an object.
pub(crate) fn make(dir: &Path, seed: u64) -> Outcome {
    let at = dir.join("store");
    child::format(&at)?;
    let options =
        OpenOptions { journal_half_len: 64 << 10, spare_bytes_max: 0, ..OpenOptions::default() };
    let store = Store::open_with(&at, &options)?;
    for (name, mode, at_rest) in POOLS {
        let key = if at_rest.mode().has_key() { Some(key(0)?) } else { None };
        let options =
            PoolOptions { mode, at_rest, key, puddle_size: 192 << 10, ..PoolOptions::default() };
        let pool = store.create_pool(name, &options)?;
        fill(&pool, seed)?;
        if mode == PoolMode::Shadowed {
            pool.psync()?;
        }
    }
    store.close()?;
    make_objects(&at, seed)?;
    for (number, key) in KEYS.iter().enumerate() {
        std::fs::write(dir.join(format!("key{number}")), key)?;
    }
    std::fs::write(dir.join("data"), data(!seed))?;
    for line in [
        "export {s} direct {d}/direct.archive",
        "export {s} sealed {d}/sealed.archive",
        "snapshot {s} plain {d}/snapshot --copy",
    ] {
        let ran = child::run(&mut child::cenote_line(line, dir), dir, child::LIMIT)?;
        require(ran.code == Some(0), || format!("{line}: {ran:?}"))?;
    }
    Ok(())
}

fn fill(pool: &Pool, seed: u64) -> Outcome {
    (0..NODES).try_for_each(|number| push(pool, seed ^ number))
}

/// Puts one node before the first.
pub(crate) fn push(pool: &Pool, number: u64) -> Outcome {
    Ok(pool.write(|tx| -> Result<()> {
        let next = tx.root::<Link>()?;
        let link = tx.alloc(Link { number, next, words: words(number) })?;
        tx.set_root(link)
    })?)
}

/// What an object is filled with.
fn data(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..OBJECT_LEN / 8).flat_map(|_| random.next_word().to_le_bytes()).collect()
}

pub(crate) fn open_objects(at: &Path, options: OpenOptions) -> Outcome<Objects> {
    let read_only = options.access == Access::ReadOnly;
    let medium = RealMedium::open(at, &cenote::MediumOptions { read_only, ..Default::default() })?;
    let (store, _) = cenote_object::Store::open(Arc::new(medium), options)?;
    Ok(Objects::open(&store, &ObjectsOptions { half_len: 64 << 10, ..ObjectsOptions::default() })?)
}

fn make_objects(at: &Path, seed: u64) -> Outcome {
    let objects = open_objects(at, OpenOptions::default())?;
    for (name, key) in OBJECTS.iter().zip([None, Some(key(0)?)]) {
        objects.pcreate(name, OBJECT_LEN as u64, key.as_deref(), 0o600)?;
        let mut object = objects.attach(name, Permission::ReadWrite, key.as_deref())?;
        object.as_mut_slice()?.copy_from_slice(&data(seed));
        object.psync()?;
        object.detach()?;
    }
    let store = objects.store();
    drop(objects);
    Ok(store.close()?)
}

/// What is in a store, each part by name: a pool, an object. A part that could not be read says
/// why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    /// Without addresses, which may differ from one run to the next.
    pub(crate) parts: BTreeMap<String, String>,
    /// Where the pools' lists begin.
    pub(crate) addresses: BTreeMap<String, u64>,
}

/// Looks at a store. Opened for writing it is recovered first, and closed again. No store yet: no
/// parts but that.
pub(crate) fn digest(at: &Path, access: Access) -> Outcome<Digest> {
    let mut digest = Digest::default();
    let options = OpenOptions { access, ..OpenOptions::default() };
    let store = match Store::open_with(at, &options) {
        Err(cenote::Error::Open(
            OpenError::NotAStore { .. } | OpenError::FormatInterrupted { .. },
        )) => None,
        Err(_) if !at.exists() => None,
        store => Some(store?),
    };
    let Some(store) = store else {
        digest.parts.insert("store".into(), "none".into());
        return Ok(digest);
    };
    for damage in &store.report().damage {
        digest.parts.insert(format!("damage {damage}"), String::new());
    }
    for info in store.pools() {
        let (name, record) = (info.record.name.clone(), &info.record);
        let what = pool_digest(&store, &name, access, &mut digest);
        let what = what.unwrap_or_else(|error| format!("error {error}"));
        let part = format!("{:?} {:?} {:o}: {what}", record.mode, info.at_rest, record.permissions);
        digest.parts.insert(format!("pool {name}"), part);
    }
    store.close()?;
    let objects = open_objects(at, options)?;
    for info in objects.list()? {
        let name = &info.object.record.name;
        let what = object_digest(&objects, name).unwrap_or_else(|error| format!("error {error}"));
        digest.parts.insert(format!("object {name}"), what);
    }
    let store = objects.store();
    drop(objects);
    store.close()?;
    Ok(digest)
}

/// Tries without a key, and with each.
fn with_keys<T>(
    mut open: impl FnMut(Option<&Keyring>) -> std::result::Result<T, String>,
) -> Result<(T, usize), String> {
    let mut first = String::new();
    for number in 0..=KEYS.len() {
        let key = number.checked_sub(1).and_then(|number| key(number).ok());
        match open(key.as_deref()) {
            Ok(opened) => return Ok((opened, number)),
            Err(error) if first.is_empty() || number == 1 => first = error,
            Err(_) => {}
        }
    }
    Err(first)
}

fn pool_digest(
    store: &Store,
    name: &str,
    access: Access,
    digest: &mut Digest,
) -> Result<String, String> {
    let (pool, key) = with_keys(|key| {
        let opened = match key {
            None => store.pool_with(name, access),
            Some(key) => store.pool_with_key(name, access, key),
        };
        opened.map_err(|error| error.to_string())
    })?;
    let list = || -> Result<(u64, u64, u64)> {
        let view = pool.read()?;
        let mut at = view.root::<Link>()?;
        let (address, mut count, mut sum) = (at.map_or(0, |at| at.addr()), 0, 0u64);
        while let Some(link) = at {
            let link = view.get(link)?;
            (count, at) = (count + 1, link.next);
            sum = link
                .words
                .iter()
                .fold(sum.rotate_left(1) ^ link.number, |sum, word| sum.rotate_left(1) ^ word);
            // Links that a mutation leads in a circle.
            if count > LINKS_MAX {
                break;
            }
        }
        Ok((address, count, sum))
    };
    let (address, count, sum) = list().map_err(|error| error.to_string())?;
    digest.addresses.insert(name.into(), address);
    Ok(format!("key {key}, {count} links, sum {sum:x}"))
}

fn object_digest(objects: &Objects, name: &str) -> Result<String, String> {
    let (object, key) = with_keys(|key| {
        objects.attach(name, Permission::Read, key).map_err(|error| error.to_string())
    })?;
    let mut bytes = vec![0; object.len() as usize];
    object.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
    let sum = cenote_layout::checksum::checksum(0, &bytes);
    Ok(format!("key {key}, {} bytes, sum {sum:x}", bytes.len()))
}

/// A child: `STORE ACCESS FILE`, writes the digest to the file.
pub(crate) fn digest_role(args: &[String]) -> Outcome {
    let access = if args[1] == "r" { Access::ReadOnly } else { Access::ReadWrite };
    let digest = digest(Path::new(&args[0]), access)?;
    let mut text = String::new();
    for (name, what) in &digest.parts {
        text += &format!("{}\t{}\n", line(name), line(what));
    }
    for (name, address) in &digest.addresses {
        text += &format!("at {}\t{address}\n", line(name));
    }
    Ok(std::fs::write(&args[2], text)?)
}

fn line(text: &str) -> String {
    text.replace(['\n', '\t'], " ")
}

/// The digest, made by a child, which may die of it. `Err`: how it ended.
pub(crate) fn digest_by_child(
    dir: &Path,
    at: &Path,
    access: Access,
) -> Outcome<Result<Digest, child::Ended>> {
    let file = dir.join("digest");
    let access = if access == Access::ReadOnly { "r" } else { "w" };
    let mut command = child::role("digest", &[&at, &access, &file])?;
    let ended = child::run(&mut command, dir, child::LIMIT)?;
    if ended.code != Some(0) {
        return Ok(Err(ended));
    }
    let mut digest = Digest::default();
    for text in std::fs::read_to_string(&file)?.lines() {
        let Some((name, what)) = text.split_once('\t') else {
            return found(format!("no line: {text:?}"));
        };
        match name.strip_prefix("at ") {
            Some(name) => {
                digest.addresses.insert(name.into(), what.parse().unwrap_or_default());
            }
            None => drop(digest.parts.insert(name.into(), what.into())),
        }
    }
    Ok(Ok(digest))
}

/// The same where it must work.
pub(crate) fn digest_of(dir: &Path, at: &Path) -> Outcome<Digest> {
    match digest_by_child(dir, at, Access::ReadWrite)? {
        Ok(digest) => Ok(digest),
        Err(ended) => Err(Trouble::Found(format!("the store is not opened: {ended:?}"))),
    }
}
