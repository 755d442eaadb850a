//! A pool with one of everything that a copy has to find, and what is in it.

use cenote::{
    Access, AtRest, Error, HeapKind, Keyring, Locking, MasterKey, OpenOptions, Persist, Pool,
    PoolMode, PoolOptions, Ptr, Reader, RegionPtr, RelPtr, Result, Store, View, field,
};
use cenote_collections as persistent;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A node of a ring, which leads to its neighbours in each way that there is.
#[derive(Persist)]
#[persist(name = "copies::Ring")]
pub(super) struct Ring {
    pub(super) number: u64,
    pub(super) next: Option<Ptr<Ring>>,
    near: RelPtr<Ring>,
    far: RegionPtr<Ring>,
    /// A value of another pool.
    away: Option<Ptr<u64>>,
    away_far: RegionPtr<u64>,
    choice: Choice,
}

/// Links that are there in one variant only; the bytes of another look like one.
#[derive(Persist, Clone, Copy)]
#[persist(name = "copies::Choice")]
#[repr(u8)]
enum Choice {
    Nothing,
    Number(u64),
    Link(Ptr<Ring>),
}

/// 24 bytes: arrays of them leave an end in blocks of most sizes.
#[derive(Persist, Clone, Copy)]
#[persist(name = "copies::Item")]
struct Item {
    number: u64,
    ring: Option<Ptr<Ring>>,
    flag: bool,
}

#[derive(Persist)]
#[persist(name = "copies::Root")]
pub(super) struct Root {
    list: persistent::List<u64>,
    forward: persistent::ForwardList<u64>,
    ordered: persistent::BTreeMap<u64, u64>,
    hashed: persistent::HashMap<u64, persistent::String>,
    items: persistent::Vec<Item>,
    text: persistent::String,
    ring: Ptr<Ring>,
    large: Ptr<Large>,
}

/// Larger than a superblock, with a pointer at its end.
#[derive(Persist)]
#[persist(name = "copies::Large")]
struct Large {
    words: [u64; 12_000],
    ring: Option<Ptr<Ring>>,
}

/// What a pool holds, without addresses of its own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents {
    list: Vec<u64>,
    forward: Vec<u64>,
    ordered: Vec<(u64, u64)>,
    hashed: BTreeMap<u64, String>,
    items: Vec<(u64, Option<u64>, bool)>,
    text: String,
    ring: Vec<[u64; 6]>,
    large: (u64, u64),
    named: Vec<(String, u64)>,
    numbered: Vec<(u16, u64)>,
}

/// Values in each collection, and nodes of the ring.
pub(super) const COUNT: u64 = 200;

pub(super) fn key() -> Arc<Keyring> {
    let mut bytes: [u8; 32] = core::array::from_fn(|at| 7 + at as u8 * 3);
    let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
    Arc::new(Keyring::new(key).locking(Locking::IfPossible))
}

pub(super) fn opened(path: &Path) -> Store {
    let options =
        OpenOptions { key: Some(key()), accept_unprotected: true, ..OpenOptions::default() };
    Store::open_with(path, &options).expect("a store")
}

/// A new store with a pool for values that others lead to.
pub(super) fn formatted(path: &Path) -> Store {
    drop(Store::open(path).expect("a new store"));
    let store = opened(path);
    drop(store.create_pool("other", &PoolOptions::default()).expect("the other pool"));
    store
}

/// How a pool keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Direct,
    Shadowed,
    Protected,
}

pub(super) fn options(heap: HeapKind, kept: Kept) -> PoolOptions {
    let mode = if kept == Kept::Direct { PoolMode::Direct } else { PoolMode::Shadowed };
    let protected = kept == Kept::Protected;
    PoolOptions {
        heap,
        mode,
        at_rest: if protected { AtRest::Authenticated } else { AtRest::None },
        key: protected.then(key),
        ..PoolOptions::default()
    }
}

/// Fills a pool; each value is in a transaction of its own, as programs do.
pub(super) fn fill(store: &Store, pool: &Pool, count: u64) -> Result<()> {
    let other = store.pool("other")?;
    let away = other.write(|tx| {
        let away = tx.alloc(4711u64)?;
        tx.set_root(away)?;
        Ok::<_, Error>(away)
    })?;
    let away_far = other.read()?.region_ptr(away)?;
    let ring = make_ring(pool, away, away_far, count)?;
    pool.write(|tx| {
        let large = tx.alloc(Large { words: [3; 12_000], ring: Some(ring) })?;
        let root = Root {
            list: persistent::List::new(tx)?,
            forward: persistent::ForwardList::new(tx)?,
            ordered: persistent::BTreeMap::new(tx)?,
            hashed: persistent::HashMap::new(tx)?,
            items: persistent::Vec::new(tx)?,
            text: persistent::String::new(tx)?,
            ring,
            large,
        };
        let root = tx.alloc(root)?;
        tx.set_root(root)?;
        tx.set_named_root("the ring", Some(ring))?;
        let named = tx.alloc(1u64)?;
        tx.set_named_root("away", Some(named))?;
        let last = tx.alloc(1023u64)?;
        tx.set_root_at(1023, Some(last))?;
        tx.set_root_at(500, Some(ring))
    })?;
    for number in 0..count {
        pool.write(|tx| {
            let root = tx.root::<Root>()?.expect("set");
            let Root { list, forward, ordered, hashed, items, text, .. } = *tx.get(root)?;
            list.push_back(tx, number)?;
            forward.push_front(tx, number * 2)?;
            ordered.insert(tx, number * 7919 % 1000, number)?;
            let value = persistent::String::from_str(tx, &format!("value {number}"))?;
            if let Some(old) = hashed.insert(tx, number * 31, value)? {
                old.destroy(tx)?;
            }
            let ring = number.is_multiple_of(3).then_some(ring);
            items.push(tx, Item { number, ring, flag: number.is_multiple_of(2) })?;
            text.push_str(tx, &format!("{number}, "))
        })?;
    }
    Ok(())
}

fn make_ring(
    pool: &Pool,
    away: Ptr<u64>,
    away_far: RegionPtr<u64>,
    count: u64,
) -> Result<Ptr<Ring>> {
    let mut nodes = Vec::new();
    for number in 0..count {
        nodes.push(pool.write(|tx| {
            let choice = Choice::Number(nodes.last().map_or(0, |last: &Ptr<Ring>| last.addr()));
            let node = Ring {
                number,
                next: None,
                near: RelPtr::NULL,
                far: RegionPtr::NULL,
                away: Some(away),
                away_far,
                choice: if number.is_multiple_of(3) { choice } else { Choice::Nothing },
            };
            let node = tx.alloc(node)?;
            // What a transaction holds survives until it is in the ring.
            tx.set_root_at(900, Some(node))?;
            Ok::<_, Error>(node)
        })?);
    }
    let all = nodes.len();
    for (at, node) in nodes.iter().enumerate() {
        pool.write(|tx| {
            let (next, before) = (nodes[(at + 1) % all], nodes[(at + all - 1) % all]);
            let far = tx.region_ptr(nodes[(at + 7) % all])?;
            tx.set(*node, field!(Ring, next), Some(next))?;
            tx.set(*node, field!(Ring, far), far)?;
            tx.set_rel(*node, field!(Ring, near), Some(before))?;
            if at % 3 == 1 {
                tx.set(*node, field!(Ring, choice), Choice::Link(nodes[at / 2]))?;
            }
            Ok::<_, Error>(())
        })?;
    }
    pool.write(|tx| tx.set_root_at::<Ring>(900, None))?;
    Ok(nodes[0])
}

/// What a pool holds.
pub(super) fn contents(store: &Store, pool: &Pool) -> Result<Contents> {
    let other = store.pool_with("other", Access::ReadOnly)?;
    let (view, beside) = (pool.read()?, other.read()?);
    let root = view.get(view.root::<Root>()?.expect("a root"))?;
    let name = |name: &str| -> Result<(String, u64)> {
        Ok((name.into(), *view.get(view.named_root::<u64>(name)?.expect("named"))?))
    };
    let ring = view.named_root::<Ring>("the ring")?.expect("named");
    assert_eq!(ring.addr(), root.ring.addr());
    let large = view.get(root.large)?;
    let hashed = root.hashed.iter(&view)?.map(|(key, text)| Ok((*key, text.as_str(&view)?.into())));
    let items = root.items.as_slice(&view)?.iter().map(|item| {
        let ring = item.ring.map(|ring| view.get(ring).map(|ring| ring.number)).transpose()?;
        Ok((item.number, ring, item.flag))
    });
    let numbered = |index: u16, value: u64| (index, value);
    let contents = Contents {
        list: root.list.iter(&view)?.copied().collect(),
        forward: root.forward.iter(&view)?.copied().collect(),
        ordered: root.ordered.iter(&view)?.map(|(key, value)| (*key, *value)).collect(),
        hashed: hashed.collect::<Result<_>>()?,
        items: items.collect::<Result<_>>()?,
        text: root.text.as_str(&view)?.into(),
        ring: ring_of(&view, &beside, root.ring)?,
        large: (large.words.iter().sum(), view.get(large.ring.expect("set"))?.number),
        named: vec![name("away")?],
        numbered: vec![
            numbered(1023, *view.get(view.root_at::<u64>(1023)?.expect("set"))?),
            numbered(500, view.get(view.root_at::<Ring>(500)?.expect("set"))?.number),
        ],
    };
    view.finish()?;
    Ok(contents)
}

/// What each node of the ring leads to, by its numbers; all lie in the pool of the view.
fn ring_of(view: &View<'_>, beside: &View<'_>, first: Ptr<Ring>) -> Result<Vec<[u64; 6]>> {
    let number = |to: Option<Ptr<Ring>>| -> Result<u64> {
        to.map_or(Ok(u64::MAX), |to| Ok(view.get(to)?.number))
    };
    let (mut found, mut at) = (Vec::new(), first);
    loop {
        let node = view.get(at)?;
        let away = *beside.get(node.away.expect("set"))?;
        let away_far = *beside.get(beside.resolve(node.away_far)?.expect("set"))?;
        let choice = match node.choice {
            Choice::Nothing => 1 << 60,
            // The address of a node of the source: no pointer, so it stays.
            Choice::Number(number) => number,
            Choice::Link(to) => number(Some(to))?,
        };
        let far = number(view.resolve(node.far)?)?;
        found.push([node.number, number(node.near.get())?, far, away, away_far, choice]);
        at = node.next.expect("a ring");
        if at.addr() == first.addr() {
            return Ok(found);
        }
    }
}
