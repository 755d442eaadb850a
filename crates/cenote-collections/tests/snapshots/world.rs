//! A pool with one of each collection, a model of it from the standard library, and random
//! transactions that change both.

use cenote::{Error, Owned, OwnedStr, Persist, Pool, Ptr, Reader, Result, Tx, field};
use cenote_collections::{
    BTreeMap, BTreeSet, BinaryHeap, ForwardList, HashMap, HashSet, List,
    String as PersistentString, TextMap, Vec as PersistentVec, VecDeque,
};
use std::collections::{BTreeMap as StdMap, BTreeSet as StdSet, VecDeque as StdDeque};

pub(super) const KEYS: u64 = 300;

#[derive(Persist)]
#[persist(name = "snapshots::Note")]
pub(super) struct Note {
    number: u64,
    text: OwnedStr,
    further: Owned<Part>,
}

#[derive(Persist)]
#[persist(name = "snapshots::Part", owned)]
pub(super) struct Part {
    numbers: [u64; 40],
}

/// A value that is larger than a page and than a group of pages.
#[derive(Persist)]
#[persist(name = "snapshots::Large")]
pub(super) struct Large {
    numbers: [u64; 4000],
}

#[derive(Persist)]
#[persist(name = "snapshots::World")]
pub(super) struct World {
    commit: u64,
    tree: BTreeMap<u64, u64>,
    hash: HashMap<u64, u64>,
    set: BTreeSet<u64>,
    hash_set: HashSet<u64>,
    vec: PersistentVec<u64>,
    deque: VecDeque<u64>,
    list: List<u64>,
    forward: ForwardList<u64>,
    heap: BinaryHeap<u64>,
    text: PersistentString,
    texts: TextMap<u64>,
    notes: PersistentVec<Ptr<Note>>,
    large: Ptr<Large>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) commit: u64,
    tree: StdMap<u64, u64>,
    hash: StdMap<u64, u64>,
    set: StdSet<u64>,
    hash_set: StdSet<u64>,
    vec: Vec<u64>,
    deque: StdDeque<u64>,
    list: Vec<u64>,
    forward: Vec<u64>,
    heap: Vec<u64>,
    text: String,
    texts: StdMap<String, u64>,
    notes: Vec<(u64, String, Option<u64>)>,
    large: Vec<u64>,
    named: Option<u64>,
}

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

pub(super) fn make(pool: &Pool) -> Result<(Ptr<World>, Model)> {
    let world = pool.write(|tx| -> Result<_> {
        let world = World {
            commit: 0,
            tree: BTreeMap::new(tx)?,
            hash: HashMap::new(tx)?,
            set: BTreeSet::new(tx)?,
            hash_set: HashSet::new(tx)?,
            vec: PersistentVec::new(tx)?,
            deque: VecDeque::new(tx)?,
            list: List::new(tx)?,
            forward: ForwardList::new(tx)?,
            heap: BinaryHeap::new(tx)?,
            text: PersistentString::new(tx)?,
            texts: TextMap::new(tx)?,
            notes: PersistentVec::new(tx)?,
            large: tx.alloc(Large { numbers: [0; 4000] })?,
        };
        let world = tx.alloc(world)?;
        tx.set_root(world)?;
        Ok(world)
    })?;
    Ok((world, Model { large: vec![0; 4000], ..Model::default() }))
}

/// All that a reader finds.
pub(super) fn look<R: Reader>(reader: &R) -> Result<Model> {
    let world = reader.root::<World>()?.expect("the world");
    let world = reader.get(world)?;
    let of = |(key, value): (&u64, &u64)| (*key, *value);
    let mut model = Model {
        commit: world.commit,
        tree: world.tree.iter(reader)?.map(of).collect(),
        hash: world.hash.iter(reader)?.map(of).collect(),
        set: world.set.iter(reader)?.copied().collect(),
        hash_set: world.hash_set.iter(reader)?.copied().collect(),
        vec: world.vec.as_slice(reader)?.to_vec(),
        deque: world.deque.iter(reader)?.copied().collect(),
        list: world.list.iter(reader)?.copied().collect(),
        forward: world.forward.iter(reader)?.copied().collect(),
        heap: world.heap.iter(reader)?.copied().collect(),
        text: world.text.as_str(reader)?.to_string(),
        large: reader.get(world.large)?.numbers.to_vec(),
        named: match reader.named_root::<Large>("named")? {
            Some(named) => Some(reader.get(named)?.numbers[17]),
            None => None,
        },
        ..Model::default()
    };
    model.heap.sort_unstable();
    world.texts.for_each(reader, |text, number| {
        model.texts.insert(text.to_string(), *number);
        Ok(())
    })?;
    for note in world.notes.iter(reader)? {
        let note = reader.get(*note)?;
        let part = match note.further.get() {
            Some(part) => Some(reader.get(part)?.numbers[39]),
            None => None,
        };
        model.notes.push((note.number, note.text.as_str(reader)?.to_string(), part));
    }
    ask(reader, world, &model)?;
    Ok(model)
}

/// What is asked for one by one agrees with what was listed.
fn ask<R: Reader>(reader: &R, world: &World, model: &Model) -> Result<()> {
    for key in (0..KEYS).step_by(7) {
        assert_eq!(world.tree.get(reader, &key)?, model.tree.get(&key));
        assert_eq!(world.hash.get(reader, &key)?, model.hash.get(&key));
        assert_eq!(world.set.contains(reader, &key)?, model.set.contains(&key));
        assert_eq!(world.hash_set.contains(reader, &key)?, model.hash_set.contains(&key));
        let text = text_of(key);
        assert_eq!(world.texts.get(reader, &text)?, model.texts.get(&text));
        let (at, range) = (key as usize, world.tree.range(reader, key..key + 9)?);
        assert!(
            range.map(|(a, b)| (*a, *b)).eq(model.tree.range(key..key + 9).map(|(a, b)| (*a, *b)))
        );
        assert_eq!(world.vec.get(reader, at)?, model.vec.get(at));
        assert_eq!(world.deque.get(reader, at)?, model.deque.get(at));
    }
    assert_eq!(world.list.front(reader)?, model.list.first());
    assert_eq!(world.list.back(reader)?, model.list.last());
    assert!(world.list.iter(reader)?.rev().eq(model.list.iter().rev()));
    assert!(world.tree.iter(reader)?.rev().map(|(key, _)| key).eq(model.tree.keys().rev()));
    assert_eq!(world.forward.back(reader)?, model.forward.last());
    assert_eq!(world.heap.peek(reader)?, model.heap.last());
    if let Some(last) = model.list.last() {
        assert!(world.list.contains(reader, last)?);
    }
    assert_eq!(world.forward.contains(reader, &u64::MAX)?, model.forward.contains(&u64::MAX));
    Ok(())
}

fn text_of(key: u64) -> String {
    format!("text number {key} {}", "x".repeat(key as usize % 50))
}

/// One change of both.
fn step(tx: &mut Tx<'_>, world: Ptr<World>, model: &mut Model, random: &mut Random) -> Result<()> {
    let (key, value) = (random.below(KEYS), random.below(u64::MAX >> 34));
    let World { tree, hash, set, hash_set, .. } = *tx.get(world)?;
    match random.below(9) {
        0 | 1 => {
            tree.insert(tx, key, value)?;
            model.tree.insert(key, value);
        }
        2 => {
            tree.remove(tx, &key)?;
            model.tree.remove(&key);
        }
        3 | 4 => {
            hash.insert(tx, key, value)?;
            model.hash.insert(key, value);
        }
        5 => {
            hash.remove(tx, &key)?;
            model.hash.remove(&key);
        }
        6 => {
            set.insert(tx, key)?;
            hash_set.remove(tx, &key)?;
            model.set.insert(key);
            model.hash_set.remove(&key);
        }
        7 => {
            set.remove(tx, &key)?;
            hash_set.insert(tx, key)?;
            model.set.remove(&key);
            model.hash_set.insert(key);
        }
        _ => return in_rows(tx, world, model, (random, value)),
    }
    Ok(())
}

/// A change of vectors, lists and queues.
fn in_rows(
    tx: &mut Tx<'_>,
    world: Ptr<World>,
    model: &mut Model,
    (random, value): (&mut Random, u64),
) -> Result<()> {
    let World { vec, deque, list, forward, heap, .. } = *tx.get(world)?;
    match random.below(7) {
        0 => {
            vec.push(tx, value)?;
            model.vec.push(value);
        }
        1 => assert_eq!(vec.pop(tx)?, model.vec.pop()),
        2 => {
            deque.push_back(tx, value)?;
            model.deque.push_back(value);
            if model.deque.len() > 40 {
                assert_eq!(deque.pop_front(tx)?, model.deque.pop_front());
            }
        }
        3 => {
            list.push_front(tx, value)?;
            model.list.insert(0, value);
            if model.list.len() > 40 {
                assert_eq!(list.pop_back(tx)?, model.list.pop());
            }
        }
        4 => {
            forward.push_back(tx, value)?;
            model.forward.push(value);
            if model.forward.len() > 40 {
                assert_eq!(forward.pop_front(tx)?, Some(model.forward.remove(0)));
            }
        }
        5 => {
            heap.push(tx, value)?;
            model.heap.push(value);
            model.heap.sort_unstable();
            if model.heap.len() > 40 {
                assert_eq!(heap.pop(tx)?, model.heap.pop());
            }
        }
        _ => return in_texts(tx, world, model, (random, value)),
    }
    Ok(())
}

/// A change of texts, values that own, and roots.
fn in_texts(
    tx: &mut Tx<'_>,
    world: Ptr<World>,
    model: &mut Model,
    (random, value): (&mut Random, u64),
) -> Result<()> {
    let World { text, texts, notes, large, .. } = *tx.get(world)?;
    let name = text_of(value % KEYS);
    match random.below(6) {
        0 => {
            text.push_str(tx, &name)?;
            model.text += &name;
            if model.text.len() > 2000 {
                text.clear(tx)?;
                model.text.clear();
            }
        }
        1 => {
            texts.insert(tx, &name, value)?;
            model.texts.insert(name, value);
        }
        2 => {
            texts.remove(tx, &name)?;
            model.texts.remove(&name);
        }
        3 => {
            let note =
                tx.alloc(Note { number: value, text: OwnedStr::EMPTY, further: Owned::EMPTY })?;
            tx.put_owned(note, field!(Note, text), &name)?;
            let has_part = value % 2 == 0;
            if has_part {
                tx.put_owned(note, field!(Note, further), Part { numbers: [value; 40] })?;
            }
            notes.push(tx, note)?;
            model.notes.push((value, name, has_part.then_some(value)));
        }
        4 => {
            if let Some(note) = notes.pop(tx)? {
                tx.free(note)?;
                model.notes.pop();
            }
        }
        _ => {
            let at = value as usize % 3999;
            tx.get_mut(large)?.numbers[at] = value;
            let new = tx.alloc(Large { numbers: [value; 4000] })?;
            if let Some(old) = tx.named_root::<Large>("named")? {
                tx.free(old)?;
            }
            tx.set_named_root("named", Some(new))?;
            model.large[at] = value;
            model.named = Some(value);
        }
    }
    Ok(())
}

/// A transaction of some changes, which aborts sometimes. The model of the last commit afterwards.
pub(super) fn turn(
    pool: &Pool,
    world: Ptr<World>,
    model: &Model,
    random: &mut Random,
) -> Result<Model> {
    let (mut next, aborts) = (model.clone(), random.below(5) == 0);
    let done = pool.write(|tx| -> Result<()> {
        for _ in 0..=random.below(24) {
            step(tx, world, &mut next, random)?;
        }
        next.commit += 1;
        tx.set(world, field!(World, commit), next.commit)?;
        if aborts { Err(Error::Aborted("by chance".into())) } else { Ok(()) }
    });
    match done {
        Ok(()) => Ok(next),
        Err(Error::Aborted(_)) => Ok(model.clone()),
        Err(error) => Err(error),
    }
}
