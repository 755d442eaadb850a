//! Operations for which the log has room in part, in transactions that commit all the same: a bug
//! is planted that lets them (`half_done` has what happens without it).
//!
//! A block that was allocated and could not be given back stays. A stale handle may name it. So no
//! block that a handle can name holds links to nodes of another collection before the last step
//! that can fail: what a stale handle destroys is nothing of a live collection.

use cenote::{
    Durability, FormatOptions, OpenOptions, Persist, Pool, PoolOptions, Ptr, Store, Tx, field,
};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, String, Vec as PVec};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Medium, Operation};
use std::sync::Arc;

const WORDS: usize = 4096;
/// Of each collection.
const COUNT: u64 = 40;
/// Lines of the log that are left to an operation, at most.
const LEFT: usize = 6;

#[derive(Persist)]
#[persist(name = "full_log::Filler")]
struct Filler {
    words: [u64; WORDS],
}

/// One of each, with what they hold.
#[derive(Clone, Copy)]
struct All {
    list: List<u64>,
    forward: ForwardList<u64>,
    vec: PVec<u64>,
    text: String,
    tree: BTreeMap<u64, u64>,
    hash: HashMap<u64, u64>,
}

impl All {
    fn empty(tx: &mut Tx<'_>) -> cenote::Result<Self> {
        Ok(Self {
            list: List::new(tx)?,
            forward: ForwardList::new(tx)?,
            vec: PVec::new(tx)?,
            text: String::new(tx)?,
            tree: BTreeMap::new(tx)?,
            hash: HashMap::new(tx)?,
        })
    }

    fn full(tx: &mut Tx<'_>) -> cenote::Result<Self> {
        let pairs = || (0..COUNT).map(|n| (n, n));
        Ok(Self {
            list: List::from_iter(tx, 0..COUNT)?,
            forward: ForwardList::from_iter(tx, 0..COUNT)?,
            vec: PVec::from_iter(tx, 0..COUNT)?,
            text: String::from_str(tx, &"text".repeat(COUNT as usize))?,
            tree: BTreeMap::from_iter(tx, pairs())?,
            hash: HashMap::from_iter(tx, pairs())?,
        })
    }

    /// Destroys those whose handles are alive; how many.
    fn destroy(self, tx: &mut Tx<'_>) -> usize {
        [
            self.list.destroy(tx),
            self.forward.destroy(tx),
            self.vec.destroy(tx),
            self.text.destroy(tx),
            self.tree.destroy(tx),
            self.hash.destroy(tx),
        ]
        .into_iter()
        .filter(Result::is_ok)
        .count()
    }

    /// All elements, by reading.
    fn sum(self, pool: &Pool) -> cenote::Result<u64> {
        let view = pool.read()?;
        let mut sum = self.list.iter(&view)?.sum::<u64>();
        sum += self.forward.iter(&view)?.sum::<u64>();
        sum += self.vec.as_slice(&view)?.iter().sum::<u64>();
        sum += self.text.as_str(&view)?.len() as u64;
        sum += self.tree.values(&view)?.sum::<u64>();
        sum += self.hash.values(&view)?.sum::<u64>();
        Ok(sum)
    }
}

/// An operation whose error is ignored. It changes nothing of what is read of `all`, or takes away
/// what it says.
type Operate = fn(&mut Tx<'_>, All) -> cenote::Result<()>;

const OPERATIONS: [(&str, Operate); 9] = [
    ("split at the front", |tx, all| all.list.split_off(tx, 0).map(drop)),
    ("split", |tx, all| all.list.split_off(tx, 7).map(drop)),
    ("split at the end", |tx, all| all.list.split_off(tx, COUNT as usize).map(drop)),
    ("a list", |tx, _| List::from_iter(tx, 0..COUNT).map(drop)),
    ("a forward list", |tx, _| ForwardList::from_iter(tx, 0..COUNT).map(drop)),
    ("a vector", |tx, _| PVec::from_iter(tx, 0..COUNT).map(drop)),
    ("a text", |tx, _| String::from_str(tx, "a text").map(drop)),
    ("a tree", |tx, _| BTreeMap::from_iter(tx, (0..COUNT).map(|n| (n, n))).map(drop)),
    ("a map", |tx, _| HashMap::from_iter(tx, (0..COUNT).map(|n| (n, n))).map(drop)),
];

/// A pool whose log cannot grow.
fn pool() -> cenote::Result<(Pool, Ptr<Filler>)> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions { window_len: 1 << 30, ..FormatOptions::default() };
    cenote_store::format(medium.clone(), &format)?;
    let options = OpenOptions { log_puddle_size: 8 << 10, ..OpenOptions::default() };
    let store = Store::open_on(medium, &options)?;
    let pool = store
        .create_pool("p", &PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() })?;
    let filler = pool.write(|tx| tx.alloc(Filler { words: [0; WORDS] }))?;
    // Superblocks of all types are taken.
    for _ in 0..2 {
        let all = pool.write(All::full)?;
        pool.write(|tx| -> cenote::Result<_> {
            assert_eq!(all.destroy(tx), 6);
            Ok(())
        })?;
    }
    let full = FaultPoint::Operation(Operation::Create);
    sim.inject(Fault::once(full, 0, FaultEffect::NoSpace).repeating());
    Ok((pool, filler))
}

/// Changes words until so many lines of the log are taken, or it is full; how many.
fn fill(tx: &mut Tx<'_>, filler: Ptr<Filler>, lines: usize) -> usize {
    let word = |at| field!(Filler, words).element(at).expect("a word");
    (0..lines.min(WORDS)).take_while(|at| tx.set(filler, word(*at), 1).is_ok()).count()
}

#[test]
fn what_a_full_log_leaves_of_an_operation_is_nothing_of_a_live_collection() -> cenote::Result<()> {
    let (pool, filler) = pool()?;
    plant(Bug::HalfDoneCommitted);
    let mut room = 0;
    let aborted = pool.write(|tx| -> cenote::Result<()> {
        room = fill(tx, filler, usize::MAX);
        Err(cenote::Error::Pools)
    });
    assert!(aborted.is_err() && room > LEFT && room < WORDS, "{room} lines");
    let (mut refused, mut done, mut alive) = (0, 0, 0);
    for (what, operate) in OPERATIONS {
        for left in 0..LEFT {
            let all = pool.write(All::full)?;
            // Handles of collections that are gone: the next headers are at their places.
            let stale = pool.write(All::empty)?;
            pool.write(|tx| -> cenote::Result<()> {
                assert_eq!(stale.destroy(tx), 6);
                Ok(())
            })?;
            let before = all.sum(&pool)?;
            let committed = pool.write(|tx| -> cenote::Result<bool> {
                assert_eq!(fill(tx, filler, room - left), room - left);
                Ok(operate(tx, all).is_ok())
            });
            match committed {
                Ok(true) => done += 1,
                Ok(false) => refused += 1,
                Err(_) => continue,
            }
            let after = all.sum(&pool)?;
            alive += pool.write(|tx| -> cenote::Result<usize> { Ok(stale.destroy(tx)) })?;
            assert_eq!(all.sum(&pool)?, after, "{what}, {left} lines left: {before} before");
            let gone = pool.write(|tx| -> cenote::Result<usize> { Ok(all.destroy(tx)) })?;
            assert_eq!(gone, 6, "{what}, {left} lines left");
            assert!(pool.check()?.dangling.is_empty(), "{what}, {left} lines left");
        }
    }
    plant(Bug::None);
    println!("{done} done, {refused} refused, {alive} stale handles were alive");
    assert!(done > 5 && refused > 20 && alive > 5, "{done}, {refused}, {alive}");
    Ok(())
}
