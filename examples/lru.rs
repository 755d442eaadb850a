//! A cache that keeps the entries used last, and is warm after a restart.
//!
//! ```sh
//! cargo run --example lru -- STORE put page "some text"
//! cargo run --example lru -- STORE get page
//! cargo run --example lru -- STORE ls        # from the one used last
//! ```
//!
//! What it shows: a map and a list of the program's own that share their entries. An entry is
//! linked into the list by plain pointers, so that it moves to the front in constant time.

use cenote::{Persist, Pool, Ptr, Reader, Store, Tx};
use cenote_collections::{HashMap, InlineStr, String as Text};
use cenote_examples::{Outcome, finish, usage};

/// Most entries of the cache.
const CAPACITY: usize = 100;

type Key = InlineStr<63>;

#[derive(Persist)]
struct Entry {
    key: Key,
    value: Text,
    newer: Option<Ptr<Entry>>,
    older: Option<Ptr<Entry>>,
}

/// The root.
#[derive(Persist)]
struct Cache {
    entries: HashMap<Key, Ptr<Entry>>,
    newest: Option<Ptr<Entry>>,
    oldest: Option<Ptr<Entry>>,
}

/// The cache of the pool, which the first call makes.
fn cache(tx: &mut Tx<'_>) -> cenote::Result<Ptr<Cache>> {
    if let Some(cache) = tx.root::<Cache>()? {
        return Ok(cache);
    }
    let entries = HashMap::new(tx)?;
    let cache = tx.alloc(Cache { entries, newest: None, oldest: None })?;
    tx.set_root(cache)?;
    Ok(cache)
}

/// Takes an entry out of the list.
fn unlink(tx: &mut Tx<'_>, cache: Ptr<Cache>, entry: Ptr<Entry>) -> cenote::Result<()> {
    let (newer, older) = (tx.get(entry)?.newer, tx.get(entry)?.older);
    match newer {
        Some(newer) => tx.get_mut(newer)?.older = older,
        None => tx.get_mut(cache)?.newest = older,
    }
    match older {
        Some(older) => tx.get_mut(older)?.newer = newer,
        None => tx.get_mut(cache)?.oldest = newer,
    }
    Ok(())
}

/// Puts an entry that is in no list to the front.
fn link_newest(tx: &mut Tx<'_>, cache: Ptr<Cache>, entry: Ptr<Entry>) -> cenote::Result<()> {
    let before = tx.get(cache)?.newest;
    let links = tx.get_mut(entry)?;
    (links.newer, links.older) = (None, before);
    match before {
        Some(before) => tx.get_mut(before)?.newer = Some(entry),
        None => tx.get_mut(cache)?.oldest = Some(entry),
    }
    tx.get_mut(cache)?.newest = Some(entry);
    Ok(())
}

/// Frees an entry, also of the map.
fn remove(tx: &mut Tx<'_>, cache: Ptr<Cache>, entry: Ptr<Entry>) -> cenote::Result<()> {
    unlink(tx, cache, entry)?;
    let (key, value) = (tx.get(entry)?.key, tx.get(entry)?.value);
    let entries = tx.get(cache)?.entries;
    entries.remove(tx, key.as_str())?;
    value.destroy(tx)?;
    tx.free(entry)
}

/// Puts a value under a key. The entry that was not used for longest makes room.
fn put(pool: &Pool, key: &str, value: &str) -> Outcome<()> {
    let key = Key::try_from(key)?;
    pool.write(|tx| {
        let cache = cache(tx)?;
        let entries = tx.get(cache)?.entries;
        if let Some(old) = entries.get(tx, key.as_str())?.copied() {
            remove(tx, cache, old)?;
        }
        if entries.len(tx)? >= CAPACITY {
            let oldest = tx.get(cache)?.oldest.ok_or("a full cache has an oldest entry")?;
            remove(tx, cache, oldest)?;
        }
        let value = Text::from_str(tx, value)?;
        let entry = tx.alloc(Entry { key, value, newer: None, older: None })?;
        entries.insert(tx, key, entry)?;
        Ok(link_newest(tx, cache, entry)?)
    })
}

/// The value of a key, whose entry is the one used last now.
fn get(pool: &Pool, key: &str) -> cenote::Result<Option<String>> {
    pool.write(|tx| {
        let cache = cache(tx)?;
        let entries = tx.get(cache)?.entries;
        let Some(entry) = entries.get(tx, key)?.copied() else { return Ok(None) };
        unlink(tx, cache, entry)?;
        link_newest(tx, cache, entry)?;
        let value = tx.get(entry)?.value;
        Ok(Some(value.as_str(tx)?.to_owned()))
    })
}

/// Prints all keys, from the one used last.
fn list(pool: &Pool) -> cenote::Result<()> {
    let view = pool.read()?;
    let Some(cache) = view.root::<Cache>()? else { return Ok(()) };
    let mut next = view.get(cache)?.newest;
    while let Some(entry) = next {
        let entry = view.get(entry)?;
        println!("{}", entry.key);
        next = entry.older;
    }
    Ok(())
}

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [store, ref command @ ..] = words[..] else {
        return usage("lru -- STORE put KEY VALUE | get KEY | ls");
    };
    match command[..] {
        ["put", key, value] => put(&Store::open(store)?.pool("cache")?, key, value),
        ["get", key] => match get(&Store::open(store)?.pool("cache")?, key)? {
            Some(value) => {
                println!("{value}");
                Ok(())
            }
            None => Err(format!("{key:?} is not in the cache").into()),
        },
        ["ls"] => Ok(list(&Store::open(store)?.pool("cache")?)?),
        _ => usage("lru -- STORE put KEY VALUE | get KEY | ls"),
    }
}

fn main() -> std::process::ExitCode {
    finish(run)
}
