//! Every operation of every collection, with a log or a pool that has room for a part of it, down
//! to each step. The program ignores the error and commits. Then the operation has done nothing, or
//! a part that its documentation names, and no block leaked; or the transaction was aborted.

use cenote::Owned;
use cenote::ptr::FieldOffset;
use cenote::{
    Durability, Error, ExportOptions, FormatOptions, ImportOptions, OpenOptions, Persist, Pool,
    PoolOptions, Ptr, Reader, Result, Store, Tx, field,
};
use cenote_collections::{
    BTreeMap, BinaryHeap, ForwardList, HashMap, List, String, Vec as PVec, VecDeque,
};
use cenote_medium::planted::{Bug, plant, refuse};
use cenote_medium::sim::{Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Medium, Operation};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const WORDS: usize = 512;
/// Of each collection but the maps.
const COUNT: u64 = 40;
/// The tree has two levels of inner nodes; all its leaves and most of its nodes are full.
const TREE: u64 = 15 * 15 + 15;
/// The next entry takes the first bucket that has no segment.
const HASH: u64 = 128 * 7 / 2;

#[derive(Persist)]
#[persist(name = "half_done::Filler")]
struct Filler {
    words: [u64; WORDS],
}

/// One of each.
#[derive(Persist, Clone, Copy)]
#[persist(name = "half_done::All")]
struct All {
    list: List<u64>,
    forward: ForwardList<u64>,
    vec: PVec<u64>,
    text: String,
    tree: BTreeMap<u64, u64>,
    hash: HashMap<u64, u64>,
    small: BTreeMap<u64, u64>,
    few: HashMap<u64, u64>,
    empty: List<u64>,
    queue: BinaryHeap<u64>,
    ring: VecDeque<u64>,
    owners: BTreeMap<u64, Owned<Leaf>>,
    shelf: PVec<Owned<Leaf>>,
    filler: Ptr<Filler>,
}

/// What an entry owns.
#[derive(Persist)]
#[persist(name = "half_done::Leaf", owned)]
struct Leaf {
    value: u64,
    below: Owned<Leaf>,
}

/// Gives an entry two blocks.
fn own(tx: &mut Tx<'_>, all: &All, key: u64) -> Result<()> {
    let leaf = |value| Leaf { value, below: Owned::EMPTY };
    all.owners.insert(tx, key, Owned::EMPTY)?;
    if let Some(top) = all.owners.put_owned(tx, &key, FieldOffset::whole(), leaf(key))? {
        tx.put_owned(top, field!(Leaf, below), leaf(key + 1))?;
    }
    all.shelf.push(tx, Owned::EMPTY)?;
    let top = all.shelf.put_owned(tx, key as usize, FieldOffset::whole(), leaf(key))?;
    tx.put_owned(top, field!(Leaf, below), leaf(key + 2)).map(drop)
}

/// The values of two blocks.
fn owned(reader: &impl Reader, top: &Owned<Leaf>) -> Result<[u64; 2]> {
    let Some(top) = top.get() else { return Ok([0, 0]) };
    let leaf = reader.get(top)?;
    let below = leaf.below.get().map(|below| Ok::<_, Error>(reader.get(below)?.value));
    Ok([leaf.value, below.transpose()?.unwrap_or_default()])
}

impl All {
    fn make(pool: &Pool) -> Result<Self> {
        let all = pool.write(|tx| -> Result<Self> {
            let all = Self {
                list: List::from_iter(tx, 0..COUNT)?,
                forward: ForwardList::from_iter(tx, 0..COUNT)?,
                vec: PVec::from_iter(tx, 0..COUNT)?,
                text: String::from_str(tx, &"text".repeat(COUNT as usize))?,
                tree: BTreeMap::new(tx)?,
                hash: HashMap::with_hash_key(tx, [3, 4])?,
                small: BTreeMap::from_iter(tx, (0..4).map(|n| (n, n)))?,
                few: HashMap::with_hash_key(tx, [5, 6])?,
                empty: List::new(tx)?,
                queue: BinaryHeap::from_iter(tx, 0..COUNT)?,
                ring: VecDeque::from_iter(tx, 0..16)?,
                owners: BTreeMap::new(tx)?,
                shelf: PVec::new(tx)?,
                filler: tx.alloc(Filler { words: [0; WORDS] })?,
            };
            let root = tx.alloc(all)?;
            tx.set_root(root)?;
            Ok(all)
        })?;
        pool.write(|tx| each(0..20, |key| own(tx, &all, key)))?;
        pool.write(|tx| all.tree.extend(tx, (0..TREE).map(|n| (n, n))))?;
        pool.write(|tx| all.hash.extend(tx, (0..HASH).map(|n| (n, n))))?;
        Ok(all)
    }

    /// All that they hold, read in every way that there is, and compared.
    fn contents(self, reader: &impl Reader) -> Result<Vec<Vec<u64>>> {
        fn pairs<'a>(all: impl Iterator<Item = (&'a u64, &'a u64)>) -> Vec<u64> {
            all.flat_map(|(key, value)| [*key, *value]).collect()
        }
        let list: Vec<u64> = self.list.iter(reader)?.copied().collect();
        let mut back: Vec<u64> = self.list.iter(reader)?.rev().copied().collect();
        back.reverse();
        assert_eq!((&list, list.len()), (&back, self.list.len(reader)?));
        let forward: Vec<u64> = self.forward.iter(reader)?.copied().collect();
        assert_eq!(forward.len(), self.forward.len(reader)?);
        let vec = self.vec.as_slice(reader)?.to_vec();
        let text = self.text.as_str(reader)?.bytes().map(u64::from).collect();
        let mut all = vec![list, forward, vec, text];
        for tree in [self.tree, self.small] {
            let entries = pairs(tree.iter(reader)?);
            let mut back = pairs(tree.iter(reader)?.rev().map(|(key, value)| (value, key)));
            back.reverse();
            assert_eq!((&entries, entries.len()), (&back, 2 * tree.len(reader)?));
            for pair in entries.chunks(2) {
                assert_eq!(tree.get(reader, &pair[0])?, Some(&pair[1]));
            }
            all.push(entries);
        }
        for hash in [self.hash, self.few] {
            let entries = pairs(hash.iter(reader)?);
            assert_eq!(entries.len(), 2 * hash.len(reader)?);
            for pair in entries.chunks(2) {
                assert_eq!(hash.get(reader, &pair[0])?, Some(&pair[1]));
            }
            all.push(entries);
        }
        all.push(self.empty.iter(reader)?.copied().collect());
        all.push(self.queue.iter(reader)?.copied().collect());
        all.push(self.ring.iter(reader)?.copied().collect());
        let entries = self.owners.iter(reader)?.map(|(key, top)| {
            let [value, below] = owned(reader, top)?;
            Ok([*key, value, below])
        });
        all.push(entries.collect::<Result<Vec<_>>>()?.concat());
        let shelf = self.shelf.iter(reader)?.map(|top| owned(reader, top));
        all.push(shelf.collect::<Result<Vec<_>>>()?.concat());
        all.push(reader.named_roots()?.iter().map(|root| root.addr).collect());
        Ok(all)
    }
}

type Operate = fn(&mut Tx<'_>, All) -> Result<()>;

fn each(keys: impl IntoIterator<Item = u64>, mut act: impl FnMut(u64) -> Result<()>) -> Result<()> {
    keys.into_iter().try_for_each(&mut act)
}

const SEQUENCES: &[(&str, Operate)] = &[
    ("List::push_back", |tx, all| all.list.push_back(tx, 7)),
    ("List::push_front", |tx, all| all.list.push_front(tx, 7)),
    ("List::push_back of the first", |tx, all| all.empty.push_back(tx, 7)),
    ("List::pop_back", |tx, all| all.list.pop_back(tx).map(drop)),
    ("List::pop_front", |tx, all| all.list.pop_front(tx).map(drop)),
    ("List::append", |tx, all| all.empty.append(tx, all.list)),
    ("List::split_off", |tx, all| all.list.split_off(tx, 7).map(drop)),
    ("List::split_off at the end", |tx, all| all.list.split_off(tx, 40).map(drop)),
    ("List::extend", |tx, all| all.list.extend(tx, 0..9)),
    ("List::retain", |tx, all| all.list.retain(tx, |n| n % 5 != 0)),
    ("List::iter_mut", |tx, all| all.list.iter_mut(tx).map(drop)),
    ("List::from_iter", |tx, _| List::from_iter(tx, 0..9).map(drop)),
    ("List::clear", |tx, all| all.list.clear(tx)),
    ("List::destroy", |tx, all| all.list.destroy(tx)),
    ("List::destroy of none", |tx, all| all.empty.destroy(tx)),
    ("list::CursorMut", |tx, all| {
        let mut cursor = all.list.cursor_front_mut(tx)?;
        (0..9).for_each(|_| cursor.move_next());
        cursor.insert_before(1)?;
        cursor.insert_after(2)?;
        cursor.remove_current().map(drop)
    }),
    ("ForwardList::push_back", |tx, all| all.forward.push_back(tx, 7)),
    ("ForwardList::push_front", |tx, all| all.forward.push_front(tx, 7)),
    ("ForwardList::pop_front", |tx, all| all.forward.pop_front(tx).map(drop)),
    ("ForwardList::retain", |tx, all| all.forward.retain(tx, |n| n % 5 != 0)),
    ("ForwardList::from_iter", |tx, _| ForwardList::from_iter(tx, 0..9).map(drop)),
    ("ForwardList::append", |tx, all| {
        let other = ForwardList::from_iter(tx, 0..3)?;
        tx.all_or_abort(|tx| all.forward.append(tx, other).and_then(|()| other.destroy(tx)))
    }),
    ("ForwardList::clear", |tx, all| all.forward.clear(tx)),
    ("ForwardList::destroy", |tx, all| all.forward.destroy(tx)),
    ("Vec::push", |tx, all| all.vec.extend(tx, 0..30)),
    ("Vec::pop", |tx, all| all.vec.pop(tx).map(drop)),
    ("Vec::insert", |tx, all| all.vec.insert(tx, 3, 7)),
    ("Vec::remove", |tx, all| all.vec.remove(tx, 3).map(drop)),
    ("Vec::swap_remove", |tx, all| all.vec.swap_remove(tx, 3).map(drop)),
    ("Vec::extend_from_slice", |tx, all| all.vec.extend_from_slice(tx, &[7; 50])),
    ("Vec::reserve", |tx, all| all.vec.reserve(tx, 100)),
    ("Vec::with_capacity", |tx, _| PVec::<u64>::with_capacity(tx, 40).map(drop)),
    ("Vec::from_iter", |tx, _| PVec::from_iter(tx, 0..30).map(drop)),
    ("Vec::retain", |tx, all| all.vec.retain(tx, |n| n % 5 != 0)),
    ("Vec::truncate", |tx, all| all.vec.truncate(tx, 3)),
    ("Vec::clear", |tx, all| all.vec.clear(tx)),
    ("Vec::destroy", |tx, all| all.vec.destroy(tx)),
    ("BinaryHeap::push", |tx, all| all.queue.push(tx, 77)),
    ("BinaryHeap::pop", |tx, all| all.queue.pop(tx).map(drop)),
    ("BinaryHeap::from_iter", |tx, _| BinaryHeap::from_iter(tx, 0..20u64).map(drop)),
    ("VecDeque::push_back", |tx, all| all.ring.push_back(tx, 7)),
    ("VecDeque::push_front", |tx, all| all.ring.push_front(tx, 7)),
    ("VecDeque::pop_back", |tx, all| all.ring.pop_back(tx).map(drop)),
    ("VecDeque::pop_front", |tx, all| all.ring.pop_front(tx).map(drop)),
    ("VecDeque::from_iter", |tx, _| VecDeque::from_iter(tx, 0..20u64).map(drop)),
    ("VecDeque::clear", |tx, all| all.ring.clear(tx)),
    ("VecDeque::destroy", |tx, all| all.ring.destroy(tx)),
    ("Vec::remove of an owner", |tx, all| all.shelf.remove(tx, 3).map(|_| ())),
    ("Vec::replace of an owner", |tx, all| all.shelf.replace(tx, 3, Owned::EMPTY).map(|_| ())),
    ("Vec::truncate of owners", |tx, all| all.shelf.truncate(tx, 3)),
    ("Vec::clear of owners", |tx, all| all.shelf.clear(tx)),
    ("String::from_str", |tx, _| String::from_str(tx, "a text").map(drop)),
    ("String::push_str", |tx, all| all.text.push_str(tx, &"more".repeat(40))),
    ("String::destroy", |tx, all| all.text.destroy(tx)),
];

const MAPS: &[(&str, Operate)] = &[
    ("BTreeMap::insert in front", |tx, all| {
        each(1000..1020, |n| all.tree.insert(tx, n, n).map(drop))
    }),
    ("BTreeMap::insert", |tx, all| all.tree.insert(tx, 1000, 7).map(drop)),
    ("BTreeMap::insert of the first", |tx, _| BTreeMap::from_iter(tx, [(1u64, 2u64)]).map(drop)),
    ("BTreeMap::remove", |tx, all| each(0..40, |n| all.tree.remove(tx, &n).map(drop))),
    ("BTreeMap::remove down to none", |tx, all| each(0..4, |n| all.small.remove(tx, &n).map(drop))),
    ("BTreeMap::pop_last", |tx, all| each(0..40, |_| all.tree.pop_last(tx).map(drop))),
    ("BTreeMap::retain", |tx, all| all.tree.retain(tx, |n, _| n % 8 == 0)),
    ("BTreeMap::from_iter", |tx, _| BTreeMap::from_iter(tx, (0..40u64).map(|n| (n, n))).map(drop)),
    ("BTreeMap::from_sorted", |tx, _| {
        BTreeMap::from_sorted(tx, (0..40u64).map(|n| (n, n))).map(drop)
    }),
    ("BTreeMap::remove of owners", |tx, all| each(0..9, |n| all.owners.remove(tx, &n).map(|_| ()))),
    ("BTreeMap::insert over an owner", |tx, all| {
        all.owners.insert(tx, 3, Owned::EMPTY).map(|_| ())
    }),
    ("BTreeMap::clear of owners", |tx, all| all.owners.clear(tx)),
    ("BTreeMap::clear", |tx, all| all.tree.clear(tx)),
    ("BTreeMap::destroy", |tx, all| all.tree.destroy(tx)),
    ("BTreeMap::destroy of few", |tx, all| all.small.destroy(tx)),
    ("BTreeMap::iter_mut", |tx, all| all.tree.iter_mut(tx).map(drop)),
    ("btree::Entry::or_try_insert_with", |tx, all| {
        let entry = all.tree.entry(tx, 1000)?;
        entry.or_try_insert_with(|tx| Ok(tx.alloc(7u64)?.addr())).map(drop)
    }),
    ("HashMap::insert", |tx, all| all.hash.insert(tx, 1000, 7).map(drop)),
    ("HashMap::insert of many", |tx, all| {
        each(1000..1040, |n| all.hash.insert(tx, n, n).map(drop))
    }),
    ("HashMap::insert of the first", |tx, all| all.few.insert(tx, 1, 1).map(drop)),
    ("HashMap::remove", |tx, all| each(0..40, |n| all.hash.remove(tx, &n).map(drop))),
    ("HashMap::retain", |tx, all| all.hash.retain(tx, |n, _| n % 3 == 0)),
    ("HashMap::from_iter", |tx, _| HashMap::from_iter(tx, (0..20u64).map(|n| (n, n))).map(drop)),
    ("HashMap::clear", |tx, all| all.hash.clear(tx)),
    ("HashMap::destroy", |tx, all| all.hash.destroy(tx)),
    ("HashMap::destroy of none", |tx, all| all.few.destroy(tx)),
    ("hash::Entry::or_try_insert_with", |tx, all| {
        let entry = all.few.entry(tx, 1000)?;
        entry.or_try_insert_with(|tx| Ok(tx.alloc(7u64)?.addr())).map(drop)
    }),
    ("Tx::set_named_root", |tx, all| tx.set_named_root("name", Some(all.filler))),
    ("Tx::remove_named_root", |tx, all| {
        tx.set_named_root("name", Some(all.filler))?;
        tx.remove_named_root("name").map(drop)
    }),
];

/// A store whose log and pool cannot grow any more, and how many lines a transaction's log has.
struct FullStore {
    store: Store,
    /// It is none while it is exported.
    pool: Option<Pool>,
    all: All,
    lines: usize,
}

fn store() -> Result<(Arc<SimMedium>, Store)> {
    let record = SimOptions { record: false, ..SimOptions::new(Durability::Process) };
    let sim = SimMedium::new(record);
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions { window_len: 1 << 30, ..FormatOptions::default() };
    cenote_store::format(medium.clone(), &format)?;
    let options = OpenOptions { log_puddle_size: 8 << 10, ..OpenOptions::default() };
    Ok((sim, Store::open_on(medium, &options)?))
}

impl FullStore {
    fn new() -> Result<Self> {
        let (sim, store) = store()?;
        let options = PoolOptions { puddle_size: 4 << 20, ..PoolOptions::default() };
        let pool = store.create_pool("p", &options)?;
        let all = All::make(&pool)?;
        drop(pool);
        // The next session's log has no further segments.
        store.close()?;
        let medium: Arc<dyn Medium> = sim.clone();
        let options = OpenOptions { log_puddle_size: 8 << 10, ..OpenOptions::default() };
        let store = Store::open_on(medium, &options)?;
        let pool = store.pool("p")?;
        pool.write(|tx| tx.set(all.filler, field!(Filler, words).element(0).expect("a word"), 0))?;
        let full = FaultPoint::Operation(Operation::Create);
        sim.inject(Fault::once(full, 0, FaultEffect::NoSpace).repeating());
        let mut lines = 0;
        let counted = pool.write(|tx| -> Result<()> {
            lines = fill(tx, all.filler, usize::MAX);
            Err(given_up())
        });
        assert!(counted.is_err() && lines > 40 && lines < WORDS, "{lines} lines");
        Ok(Self { store, pool: Some(pool), all, lines })
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("open")
    }

    fn contents(&self) -> Result<Vec<Vec<u64>>> {
        self.all.contents(&self.pool().read()?)
    }

    /// An archive of the pool is imported and read.
    fn archive(&mut self) -> Result<()> {
        self.pool = None;
        let (archive, _) = self.store.export(&["p"], Vec::new(), ExportOptions::default())?;
        self.pool = Some(self.store.pool("p")?);
        let (_sim, other) = store()?;
        other.import(archive.as_slice(), ImportOptions::default())?;
        let pool = other.pool("p")?;
        let view = pool.read()?;
        let all = *view.get(view.root::<All>()?.expect("a root"))?;
        let (mut theirs, mut ours) = (all.contents(&view)?, self.contents()?);
        // Addresses.
        theirs.pop();
        ours.pop();
        assert_eq!(theirs, ours);
        Ok(())
    }
}

fn given_up() -> Error {
    Error::Aborted("it is done".into())
}

/// Changes words until so many lines of the log are taken, or it is full; how many.
fn fill(tx: &mut Tx<'_>, filler: Ptr<Filler>, lines: usize) -> usize {
    let word = |at| field!(Filler, words).element(at).expect("a word");
    (0..lines.min(WORDS)).take_while(|at| tx.set(filler, word(*at), 1).is_ok()).count()
}

/// What there is too little of.
#[derive(Clone, Copy, Debug)]
enum Scarce {
    /// Lines of the log.
    Lines(usize),
    /// Blocks of the pool.
    Blocks(u64),
}

#[derive(Default, Debug)]
struct Seen {
    /// Operations that failed in a transaction that committed.
    committed: u32,
    /// Operations that left a part of what they do, as documented.
    partly: u32,
    aborted: u32,
    archived: u32,
}

/// Runs an operation with so much room, ignores its error, and commits. Whether there was room.
fn run(
    place: &mut FullStore,
    (what, operate): (&str, Operate),
    scarce: Scarce,
    seen: &mut Seen,
) -> bool {
    let before = place.contents().expect("whole");
    let (all, lines) = (place.all, place.lines);
    let mut failed = None;
    let ended = place.pool().write(|tx| -> Result<()> {
        match scarce {
            Scarce::Lines(left) => {
                assert_eq!(fill(tx, all.filler, lines - left), lines - left);
            }
            Scarce::Blocks(left) => refuse(Some(left)),
        }
        failed = operate(tx, all).err();
        refuse(None);
        if failed.is_some() { Ok(()) } else { Err(given_up()) }
    });
    let Some(error) = failed else { return true };
    let about = format!("{what}, {scarce:?}: {error}");
    assert!(matches!(error, Error::Tx(_) | Error::NoRoom { .. }), "{about}");
    let report = place.pool().check().expect("a report");
    assert!(report.is_sound() && report.dangling.is_empty(), "{about}: {report:?}");
    let after = place.contents().expect("whole");
    match ended {
        Ok(()) => seen.committed += 1,
        Err(Error::HalfDone { .. }) => {
            seen.aborted += 1;
            assert_eq!(after, before, "{about}");
        }
        Err(other) => panic!("{about}: {other}"),
    }
    if after != before {
        seen.partly += 1;
    }
    if after != before || seen.committed % 40 == 1 && ended.is_ok() {
        place.archive().unwrap_or_else(|error| panic!("{about}: {error}"));
        seen.archived += 1;
    }
    if after != before {
        *place = FullStore::new().expect("another");
    }
    false
}

fn every(operations: &[(&str, Operate)]) -> Seen {
    let mut seen = Seen::default();
    let mut place = FullStore::new().expect("a store");
    for &operation in operations {
        // Each step at first, and then some.
        let some = (0..place.lines).filter(|left| *left < 9 || left % 11 == 0);
        for left in some {
            if run(&mut place, operation, Scarce::Lines(left), &mut seen) {
                break;
            }
        }
        for left in 0..8 {
            if run(&mut place, operation, Scarce::Blocks(left), &mut seen) {
                break;
            }
        }
    }
    println!("{seen:?}");
    seen
}

#[test]
fn operations_of_sequences_that_fail_half_way_change_nothing_or_abort() {
    let seen = every(SEQUENCES);
    assert!(seen.committed > 60 && seen.aborted > 60 && seen.partly > 5, "{seen:?}");
}

#[test]
fn operations_of_maps_and_names_that_fail_half_way_change_nothing_or_abort() {
    let seen = every(MAPS);
    assert!(seen.committed > 40 && seen.aborted > 40 && seen.partly > 5, "{seen:?}");
}

#[test]
fn elements_on_their_way_to_a_pool_that_is_full_are_where_they_were() -> Result<()> {
    let (_sim, store) = store()?;
    let (from, to) = (store.pool("from")?, store.pool("to")?);
    let lists = |pool: &Pool| {
        pool.write(|tx| -> Result<_> {
            Ok((List::from_iter(tx, 0..9u64)?, ForwardList::from_iter(tx, 0..9u64)?))
        })
    };
    let ((list, forward), (other_list, other_forward)) = (lists(&from)?, lists(&to)?);
    for left in 0..9 {
        let ended = store.write(&[&from, &to], |tx| -> Result<()> {
            refuse(Some(left));
            assert!(matches!(other_list.append(tx, list), Err(Error::NoRoom { .. })));
            refuse(Some(left));
            assert!(matches!(other_forward.append(tx, forward), Err(Error::NoRoom { .. })));
            refuse(None);
            Ok(())
        });
        assert!(matches!(ended, Err(Error::HalfDone { .. })), "{left}: {ended:?}");
        let (from, to) = (from.read()?, to.read()?);
        assert!(list.iter(&from)?.copied().eq(0..9) && other_list.iter(&to)?.copied().eq(0..9));
        assert!(forward.iter(&from)?.copied().eq(0..9));
        assert!(other_forward.iter(&to)?.copied().eq(0..9));
    }
    Ok(())
}

fn is_found(bug: Bug) -> bool {
    plant(bug);
    let found = catch_unwind(AssertUnwindSafe(|| every(SEQUENCES))).expect_err("found");
    plant(Bug::None);
    refuse(None);
    let said = found.downcast_ref::<std::string::String>().expect("a text");
    said.contains("leaked_blocks")
}

#[test]
fn a_transaction_that_commits_what_is_half_done_is_found() {
    assert!(is_found(Bug::HalfDoneCommitted));
}

#[test]
fn an_operation_that_keeps_its_blocks_when_it_fails_is_found() {
    assert!(is_found(Bug::FailedKeepsBlocks));
}
