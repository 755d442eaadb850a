//! Every collection against its counterpart in std: random operations in transactions that commit,
//! abort or panic, and reopened stores. All collections lie in one pool, to find stray writes.

mod forward_list;
mod hash;
mod list;
mod tree;
mod vec;

use crate::common::{assert_sound, directory, pool, protected_pool};
use cenote::{Error, Persist, Pool, Reader, Tx};
use cenote_collections::{BTreeMap, ForwardList, HashMap, InlineStr, List, String, Vec};
use cenote_testkit::environment::rounds;
use proptest::prelude::*;
use std::collections::{BTreeMap as StdBTreeMap, HashMap as StdHashMap, LinkedList, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::vec::Vec as StdVec;

#[derive(Persist, Clone, Copy)]
struct All {
    list: List<u64>,
    forward: ForwardList<u64>,
    tree: BTreeMap<u16, u64>,
    words: BTreeMap<InlineStr<23>, u32>,
    hash: HashMap<u16, u64>,
    vec: Vec<u32>,
    text: String,
}

#[derive(Clone, Default, Debug, PartialEq)]
struct Model {
    list: LinkedList<u64>,
    forward: VecDeque<u64>,
    tree: StdBTreeMap<u16, u64>,
    words: StdBTreeMap<std::string::String, u32>,
    hash: StdHashMap<u16, u64>,
    vec: StdVec<u32>,
    text: std::string::String,
}

#[derive(Clone, Debug)]
enum Op {
    List(list::Op),
    Forward(forward_list::Op),
    Tree(tree::Op),
    WordInsert(std::string::String, u32),
    WordRemove(std::string::String),
    Hash(hash::Op),
    Vec(vec::Op),
    TextPush(std::string::String),
    TextPop,
    Clear(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let word = || "[a-dö]{0,5}";
    prop_oneof![
        9 => list::op().prop_map(Op::List),
        7 => forward_list::op().prop_map(Op::Forward),
        19 => tree::op().prop_map(Op::Tree),
        2 => (word(), any::<u32>()).prop_map(|(k, v)| Op::WordInsert(k, v)),
        1 => word().prop_map(Op::WordRemove),
        17 => hash::op().prop_map(Op::Hash),
        11 => vec::op().prop_map(Op::Vec),
        1 => "[a-zö€]{0,12}".prop_map(Op::TextPush),
        1 => Just(Op::TextPop),
        1 => (0u8..24).prop_map(Op::Clear),
    ]
}

/// Does the same to both; what operations return is compared as well.
fn apply(tx: &mut Tx<'_>, all: All, model: &mut Model, op: Op) -> cenote::Result<()> {
    match op {
        Op::List(op) => list::apply(tx, all.list, &mut model.list, op)?,
        Op::Forward(op) => forward_list::apply(tx, all.forward, &mut model.forward, op)?,
        Op::Tree(op) => tree::apply(tx, all.tree, &mut model.tree, op)?,
        Op::Hash(op) => hash::apply(tx, all.hash, &mut model.hash, op)?,
        Op::Vec(op) => vec::apply(tx, all.vec, &mut model.vec, op)?,
        Op::WordInsert(k, v) => {
            let key = InlineStr::try_from(k.as_str()).expect("short");
            assert_eq!(all.words.insert(tx, key, v)?, model.words.insert(k, v));
        }
        Op::WordRemove(k) => assert_eq!(all.words.remove(tx, k.as_str())?, model.words.remove(&k)),
        Op::TextPush(text) => {
            all.text.push_str(tx, &text)?;
            all.text.push(tx, '€')?;
            model.text.push_str(&text);
            model.text.push('€');
        }
        Op::TextPop => assert_eq!(all.text.pop(tx)?, model.text.pop()),
        Op::Clear(which) => match which {
            0 => {
                all.list.clear(tx)?;
                model.list.clear();
            }
            1 => {
                all.forward.clear(tx)?;
                model.forward.clear();
            }
            2 => {
                all.tree.clear(tx)?;
                model.tree.clear();
            }
            3 => {
                all.hash.clear(tx)?;
                model.hash.clear();
            }
            4 => {
                all.vec.clear(tx)?;
                model.vec.clear();
            }
            5 => {
                all.text.clear(tx)?;
                model.text.clear();
            }
            _ => {}
        },
    }
    Ok(())
}

/// Everything that can be read is what the model says.
fn compare(reader: &impl Reader, all: All, model: &Model) -> cenote::Result<()> {
    assert_eq!(all.list.len(reader)?, model.list.len());
    assert!(all.list.iter(reader)?.eq(model.list.iter()));
    assert!(all.list.iter(reader)?.rev().eq(model.list.iter().rev()));
    assert_eq!(
        (all.list.front(reader)?, all.list.back(reader)?),
        (model.list.front(), model.list.back())
    );

    assert!(all.forward.iter(reader)?.eq(model.forward.iter()));
    assert_eq!(all.forward.len(reader)?, model.forward.len());
    assert_eq!(
        (all.forward.front(reader)?, all.forward.back(reader)?),
        (model.forward.front(), model.forward.back())
    );

    compare_trees(reader, all, model)?;
    for key in (0..520).step_by(47) {
        assert_eq!(all.hash.get(reader, &key)?, model.hash.get(&key));
    }
    assert!(
        all.words
            .iter(reader)?
            .map(|(k, v)| (k.as_str(), v))
            .eq(model.words.iter().map(|(k, v)| (k.as_str(), v)))
    );
    for word in ["", "a", "öö"] {
        assert_eq!(all.words.get(reader, word)?, model.words.get(word));
    }

    assert_eq!(all.hash.len(reader)?, model.hash.len());
    let entries: StdHashMap<u16, u64> = all.hash.iter(reader)?.map(|(&k, &v)| (k, v)).collect();
    assert_eq!(all.hash.iter(reader)?.count(), model.hash.len(), "each entry once");
    assert_eq!(entries, model.hash);
    for (k, v) in &model.hash {
        assert_eq!(all.hash.get(reader, k)?, Some(v));
    }

    assert_eq!(all.vec.as_slice(reader)?, model.vec);
    assert_eq!(all.vec.get(reader, model.vec.len())?, None);
    assert_eq!(all.text.as_str(reader)?, model.text);
    Ok(())
}

fn compare_trees(reader: &impl Reader, all: All, model: &Model) -> cenote::Result<()> {
    assert_eq!(all.tree.len(reader)?, model.tree.len());
    assert!(all.tree.iter(reader)?.eq(model.tree.iter()));
    assert!(all.tree.iter(reader)?.rev().eq(model.tree.iter().rev()));
    assert!(
        all.tree.keys(reader)?.eq(model.tree.keys())
            && all.tree.values(reader)?.eq(model.tree.values())
    );
    assert_eq!(all.tree.first_key_value(reader)?, model.tree.first_key_value());
    assert_eq!(all.tree.last_key_value(reader)?, model.tree.last_key_value());
    for start in (0..520).step_by(47) {
        assert_eq!(all.tree.get(reader, &start)?, model.tree.get(&start));
        for len in [0, 1, 30, 400] {
            let end = start + len;
            assert!(all.tree.range(reader, start..end)?.eq(model.tree.range(start..end)));
            assert!(
                all.tree.range(reader, start..=end)?.rev().eq(model.tree.range(start..=end).rev())
            );
        }
        assert!(all.tree.range(reader, ..start)?.eq(model.tree.range(..start)));
        assert!(all.tree.range(reader, start..)?.rev().eq(model.tree.range(start..).rev()));
        let mut both = all.tree.range(reader, start..)?;
        let mut model_both = model.tree.range(start..);
        loop {
            assert_eq!(both.next(), model_both.next());
            let next = both.next_back();
            assert_eq!(next, model_both.next_back());
            if next.is_none() {
                break;
            }
        }
    }
    Ok(())
}

fn create(pool: &Pool) -> cenote::Result<All> {
    pool.write(|tx| {
        let all = All {
            list: List::new(tx)?,
            forward: ForwardList::new(tx)?,
            tree: BTreeMap::new(tx)?,
            words: BTreeMap::new(tx)?,
            hash: HashMap::new(tx)?,
            vec: Vec::new(tx)?,
            text: String::new(tx)?,
        };
        let root = tx.alloc(all)?;
        tx.set_root(root)?;
        Ok(all)
    })
}

fn destroy(pool: &Pool, all: All) -> cenote::Result<()> {
    pool.write(|tx| -> cenote::Result<()> {
        all.list.destroy(tx)?;
        all.forward.destroy(tx)?;
        all.tree.destroy(tx)?;
        all.words.destroy(tx)?;
        all.hash.destroy(tx)?;
        all.vec.destroy(tx)?;
        all.text.destroy(tx)?;
        let root = tx.root::<All>()?.expect("the root");
        tx.set_root_at::<All>(0, None)?;
        tx.free(root)
    })
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Commit,
    Abort,
    Panic,
    Reopen,
}

fn end() -> impl Strategy<Value = End> {
    use End::{Abort, Commit, Panic, Reopen};
    prop_oneof![6 => Just(Commit), 2 => Just(Abort), 1 => Just(Panic), 1 => Just(Reopen)]
}

type History = StdVec<(StdVec<Op>, End)>;

fn history() -> impl Strategy<Value = History> {
    prop::collection::vec((prop::collection::vec(op(), 0..24), end()), 1..24)
}

/// Runs a history in a pool that `open` makes, and opens again.
fn agrees(history: History, open: fn(&Path) -> Pool) {
    let directory = directory();
    let mut store = open(directory.path());
    let mut all = create(&store).unwrap();
    let mut model = Model::default();
    for (ops, end) in history {
        let mut changed = model.clone();
        let result = catch_unwind(AssertUnwindSafe(|| {
            store.write(|tx| {
                for op in ops {
                    apply(tx, all, &mut changed, op)?;
                }
                compare(tx, all, &changed)?;
                match end {
                    End::Abort => Err(Error::Aborted("asked for".into())),
                    End::Panic => std::panic::resume_unwind(Box::new("asked for")),
                    _ => Ok(()),
                }
            })
        }));
        match (result, end) {
            (Ok(Ok(())), End::Commit | End::Reopen) => model = changed,
            (Ok(Err(Error::Aborted(_))), End::Abort) => {}
            (Err(payload), End::Panic) if payload.is::<&str>() => {}
            (Err(payload), _) => std::panic::resume_unwind(payload),
            (result, end) => panic!("{result:?} for {end:?}"),
        }
        if matches!(end, End::Reopen) {
            drop(store);
            store = open(directory.path());
            let view = store.read().unwrap();
            all = *view.get(view.root::<All>().unwrap().expect("the root")).unwrap();
        }
        let view = store.read().unwrap();
        compare(&view, all, &model).unwrap();
        drop(view);
    }
    assert_sound(&store);
    destroy(&store, all).unwrap();
    assert_sound(&store);
    assert_eq!(store.stats().unwrap().blocks, 0, "all is given back");
}

fn config(cases: u64) -> ProptestConfig {
    let cases = rounds(cases) as u32;
    ProptestConfig { cases, max_shrink_iters: 2000, ..Default::default() }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn collections_do_what_those_of_std_do(history in history()) {
        agrees(history, pool);
    }
}

proptest! {
    #![proptest_config(config(60))]

    /// Each store that was not announced would end the process.
    #[test]
    fn and_in_a_pool_whose_data_are_write_protected(history in history()) {
        agrees(history, protected_pool);
    }
}
