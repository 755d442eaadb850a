//! Handles of every collection, kept while the collections leak, and what may be seen through them.

use cenote::{Persist, Pool, Result, Store, Tx, View};
use cenote_collections as persistent;
use std::fmt::Debug;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use cenote_testkit::directories::directory;

/// Elements of each collection.
pub(crate) const LEN: u64 = 300;
/// Headers of each kind before the kept one: they fill a superblock, so that a kept header has a
/// higher address than its nodes.
const FILLERS: u64 = 2100;

/// One handle of each kind.
#[derive(Clone, Copy, Debug, Persist)]
pub(crate) struct Kept {
    pub(crate) list: persistent::List<u64>,
    pub(crate) forward: persistent::ForwardList<u64>,
    pub(crate) ordered: persistent::BTreeMap<u64, u64>,
    pub(crate) hashed: persistent::HashMap<u64, u64>,
    pub(crate) vector: persistent::Vec<u64>,
    pub(crate) text: persistent::String,
}

/// A type that is no collection's, of a size that nodes have too.
#[derive(Persist)]
pub(crate) struct Other<const WORDS: usize> {
    words: [u64; WORDS],
}

/// What an [`Other`] says in each word: no pointer, no length, no element.
const POISON: u64 = 0x4141_4141_4141_4140;

/// One test at a time: a store that is opened again needs its window.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn open(dir: &Path) -> (Store, Pool) {
    let store = Store::open(dir).expect("a store");
    let pool = store.pool("p").expect("a pool");
    // All puddles are mapped: a signal handler that maps them needs more stack without
    // optimisation.
    pool.stats().expect("counts");
    (store, pool)
}

/// Element `index` of the collections of `seed`.
fn value(seed: u64, index: u64) -> u64 {
    (seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn empty(tx: &mut Tx<'_>) -> Result<Kept> {
    Ok(Kept {
        list: persistent::List::new(tx)?,
        forward: persistent::ForwardList::new(tx)?,
        ordered: persistent::BTreeMap::new(tx)?,
        hashed: persistent::HashMap::new(tx)?,
        vector: persistent::Vec::new(tx)?,
        text: persistent::String::new(tx)?,
    })
}

fn fill(tx: &mut Tx<'_>, kept: &Kept, seed: u64, len: u64) -> Result<()> {
    for index in 0..len {
        let value = value(seed, index);
        kept.list.push_back(tx, value)?;
        kept.forward.push_back(tx, value)?;
        kept.ordered.insert(tx, index, value)?;
        kept.hashed.insert(tx, index, value)?;
        kept.vector.push(tx, value)?;
        kept.text.push_str(tx, &format!("{value:020}"))?;
    }
    Ok(())
}

/// Collections that nothing leads to, with their headers behind their nodes if `fillers`.
pub(crate) fn leak(pool: &Pool, seed: u64, fillers: bool) -> Kept {
    let made = pool.write(|tx| -> Result<Kept> {
        if fillers {
            // Nodes take the lower superblocks.
            let first = empty(tx)?;
            fill(tx, &first, seed, 1)?;
            (0..FILLERS).try_for_each(|_| empty(tx).map(drop))?;
        }
        empty(tx)
    });
    let kept = made.expect("headers");
    pool.write(|tx| fill(tx, &kept, seed, LEN)).expect("elements");
    kept
}

/// Takes what is free for values of another type, whose superblocks are found by size.
pub(crate) fn reuse(pool: &Pool) {
    pool.trim().expect("trimmed");
    fn many<const WORDS: usize>(tx: &mut Tx<'_>) -> Result<()> {
        (0..400).try_for_each(|_| tx.alloc(Other { words: [POISON; WORDS] }).map(drop))
    }
    let done = pool.write(|tx| -> Result<()> {
        many::<2>(tx)?;
        many::<3>(tx)?;
        many::<4>(tx)?;
        many::<8>(tx)?;
        many::<16>(tx)?;
        many::<64>(tx)
    });
    done.expect("other values");
}

/// What one read through a handle gave: an error, or elements with their addresses.
type Elements = Result<Vec<(u64, u64)>>;

fn address<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

/// Reads all that the handles lead to.
fn read(view: &View<'_>, kept: &Kept) -> [(&'static str, Elements); 6] {
    let pairs = |(key, value): (&u64, &u64)| (*key, *value, address(value));
    let plain = |value: &u64| (*value, address(value));
    let hashed = kept.hashed.iter(view).map(|all| {
        let mut all: Vec<_> = all.map(pairs).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, value, at)| (value, at)).collect()
    });
    let text = kept.text.as_str(view).map(|text| {
        let part =
            |index: usize| text.get(index * 20..index * 20 + 20).and_then(|s| s.parse().ok());
        let at = |index: usize| text.as_ptr() as u64 + index as u64 * 20;
        (0..text.len() / 20).map(|index| (part(index).unwrap_or(0), at(index))).collect()
    });
    [
        ("List", kept.list.iter(view).map(|all| all.map(plain).collect())),
        ("ForwardList", kept.forward.iter(view).map(|all| all.map(plain).collect())),
        (
            "BTreeMap",
            kept.ordered
                .iter(view)
                .map(|all| all.map(pairs).map(|(_, value, at)| (value, at)).collect()),
        ),
        ("HashMap", hashed),
        ("Vec", kept.vector.as_slice(view).map(|all| all.iter().map(plain).collect())),
        ("String", text),
    ]
}

/// Which of the handles lead to a collection. Fails if one leads to a collection that is not whole:
/// with an element that is not what was written, or that lies in no allocated block.
pub(crate) fn survey(pool: &Pool, kept: &Kept, seed: u64) -> std::result::Result<usize, String> {
    let view = pool.read().expect("a view");
    let mut live = 0;
    for (kind, elements) in read(&view, kept) {
        let Ok(elements) = elements else { continue };
        live += 1;
        for (index, &(found, at)) in elements.iter().enumerate() {
            if pool.heap().owner(at).is_none() {
                return Err(format!(
                    "{kind}: the header is live, element {index} at {at:#x} is free"
                ));
            }
            if found != value(seed, index as u64) {
                return Err(format!("{kind}: element {index} is {found:#x}"));
            }
        }
        if elements.len() as u64 != LEN {
            return Err(format!("{kind}: {} elements", elements.len()));
        }
    }
    Ok(live)
}

/// The same where a header's place may belong to a later collection of its kind: each handle leads
/// to nothing, or to a collection of one of `seeds`, of 0, 1 or [`LEN`] elements.
pub(crate) fn survey_any(pool: &Pool, kept: &Kept, seeds: u64) -> std::result::Result<(), String> {
    let view = pool.read().expect("a view");
    for (kind, elements) in read(&view, kept) {
        let Ok(elements) = elements else { continue };
        if let Some((_, at)) = elements.iter().find(|(_, at)| pool.heap().owner(*at).is_none()) {
            return Err(format!("{kind}: the header is live, the element at {at:#x} is free"));
        }
        let is_of = |seed: u64| {
            (0..).zip(&elements).all(|(index, (found, _))| *found == value(seed, index))
        };
        if ![0, 1, LEN].contains(&(elements.len() as u64)) || !(0..seeds).any(is_of) {
            return Err(format!(
                "{kind}: {} elements of no collection that was made",
                elements.len()
            ));
        }
    }
    Ok(())
}
