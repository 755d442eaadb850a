//! Every collection against its counterpart in std: random operations in transactions that commit,
//! abort or panic, and reopened stores. All collections lie in one pool, to find stray writes.

use crate::common::{assert_sound, directory, pool};
use cenote::{Error, Persist, Pool, Reader, Tx};
use cenote_collections::{
    BTreeMap, ForwardList, HashMap, InlineStr, List, String, Vec, btree, hash,
};
use proptest::prelude::*;
use std::collections::{BTreeMap as StdBTreeMap, HashMap as StdHashMap, LinkedList, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    ListPushBack(u64),
    ListPushFront(u64),
    ListPopBack,
    ListPopFront,
    ListSplitAppend(prop::sample::Index, u64),
    ListRetain(u64),
    ListCursor(prop::sample::Index, u8, u64),
    ListIterMut(u64, bool),
    ListFrom(StdVec<u64>),
    ForwardPushBack(u64),
    ForwardPushFront(u64),
    ForwardPop,
    ForwardRetain(u64),
    ForwardAppend(StdVec<u64>),
    ForwardCursor(prop::sample::Index, bool, u64),
    ForwardIterMut(u64),
    TreeInsert(u16, u64),
    TreeRemove(u16),
    TreeGetMut(u16, u64),
    TreePop(bool),
    TreeEntry(u16, u8, u64),
    TreeEdge(bool, bool, u64),
    TreeIterMut(u16, u16, u64),
    TreeRetain(u16),
    TreeFill(u16, u16),
    WordInsert(std::string::String, u32),
    WordRemove(std::string::String),
    HashInsert(u16, u64),
    HashRemove(u16),
    HashGetMut(u16, u64),
    HashEntry(u16, u8, u64),
    HashIterMut(u64),
    HashRetain(u16),
    HashFill(u16, u16),
    VecPush(u32),
    VecPop,
    VecInsert(prop::sample::Index, u32),
    VecRemove(prop::sample::Index, bool),
    VecExtend(StdVec<u32>),
    VecTruncate(prop::sample::Index),
    VecRetain(u32),
    VecSort,
    VecIterMut(u32),
    TextPush(std::string::String),
    TextPop,
    Clear(u8),
}

fn op() -> impl Strategy<Value = Op> {
    use Op::*;
    let index = any::<prop::sample::Index>;
    let key = || 0u16..400;
    let word = || "[a-dö]{0,5}";
    prop_oneof![
        1 => any::<u64>().prop_map(ListPushBack),
        1 => any::<u64>().prop_map(ListPushFront),
        1 => Just(ListPopBack),
        1 => Just(ListPopFront),
        1 => (index(), any::<u64>()).prop_map(|(i, v)| ListSplitAppend(i, v)),
        1 => (2u64..9).prop_map(ListRetain),
        1 => (index(), 0u8..4, any::<u64>()).prop_map(|(i, k, v)| ListCursor(i, k, v)),
        1 => (1u64..9, any::<bool>()).prop_map(|(n, back)| ListIterMut(n, back)),
        1 => prop::collection::vec(any::<u64>(), 0..4).prop_map(ListFrom),
        1 => any::<u64>().prop_map(ForwardPushBack),
        1 => any::<u64>().prop_map(ForwardPushFront),
        1 => Just(ForwardPop),
        1 => (2u64..9).prop_map(ForwardRetain),
        1 => prop::collection::vec(any::<u64>(), 0..4).prop_map(ForwardAppend),
        1 => (index(), any::<bool>(), any::<u64>()).prop_map(|(i, k, v)| ForwardCursor(i, k, v)),
        1 => any::<u64>().prop_map(ForwardIterMut),
        4 => (key(), any::<u64>()).prop_map(|(k, v)| TreeInsert(k, v)),
        4 => key().prop_map(TreeRemove),
        1 => (key(), any::<u64>()).prop_map(|(k, v)| TreeGetMut(k, v)),
        1 => any::<bool>().prop_map(TreePop),
        4 => (key(), 0u8..6, any::<u64>()).prop_map(|(k, kind, v)| TreeEntry(k, kind, v)),
        1 => any::<(bool, bool, u64)>().prop_map(|(last, remove, v)| TreeEdge(last, remove, v)),
        1 => (key(), 0u16..300, any::<u64>()).prop_map(|(k, n, v)| TreeIterMut(k, n, v)),
        1 => (2u16..9).prop_map(TreeRetain),
        2 => (key(), 1u16..120).prop_map(|(k, n)| TreeFill(k, n)),
        2 => (word(), any::<u32>()).prop_map(|(k, v)| WordInsert(k, v)),
        1 => word().prop_map(WordRemove),
        4 => (key(), any::<u64>()).prop_map(|(k, v)| HashInsert(k, v)),
        4 => key().prop_map(HashRemove),
        1 => (key(), any::<u64>()).prop_map(|(k, v)| HashGetMut(k, v)),
        4 => (key(), 0u8..6, any::<u64>()).prop_map(|(k, kind, v)| HashEntry(k, kind, v)),
        1 => any::<u64>().prop_map(HashIterMut),
        1 => (2u16..9).prop_map(HashRetain),
        2 => (key(), 1u16..120).prop_map(|(k, n)| HashFill(k, n)),
        3 => any::<u32>().prop_map(VecPush),
        1 => Just(VecPop),
        1 => (index(), any::<u32>()).prop_map(|(i, v)| VecInsert(i, v)),
        1 => (index(), any::<bool>()).prop_map(|(i, s)| VecRemove(i, s)),
        1 => prop::collection::vec(any::<u32>(), 0..40).prop_map(VecExtend),
        1 => index().prop_map(VecTruncate),
        1 => (2u32..9).prop_map(VecRetain),
        1 => Just(VecSort),
        1 => any::<u32>().prop_map(VecIterMut),
        1 => "[a-zö€]{0,12}".prop_map(TextPush),
        1 => Just(TextPop),
        1 => (0u8..24).prop_map(Clear),
    ]
}

/// Does the same to both; what operations return is compared as well.
fn apply(tx: &mut Tx<'_>, all: All, model: &mut Model, op: Op) -> cenote::Result<()> {
    match op {
        Op::ListPushBack(v) => {
            all.list.push_back(tx, v)?;
            model.list.push_back(v);
        }
        Op::ListPushFront(v) => {
            all.list.push_front(tx, v)?;
            model.list.push_front(v);
        }
        Op::ListPopBack => assert_eq!(all.list.pop_back(tx)?, model.list.pop_back()),
        Op::ListPopFront => assert_eq!(all.list.pop_front(tx)?, model.list.pop_front()),
        Op::ListSplitAppend(at, v) => {
            let at = at.index(model.list.len() + 1);
            let rest = all.list.split_off(tx, at)?;
            let mut model_rest = model.list.split_off(at);
            assert!(rest.iter(tx)?.eq(model_rest.iter()));
            rest.push_front(tx, v)?;
            model_rest.push_front(v);
            rest.append(tx, all.list)?;
            model_rest.append(&mut model.list);
            all.list.append(tx, rest)?;
            model.list.append(&mut model_rest);
            all.list.append(tx, all.list)?;
            rest.destroy(tx)?;
        }
        Op::ListRetain(n) => {
            all.list.retain(tx, |v| v % n != 0)?;
            model.list = model.list.iter().copied().filter(|v| v % n != 0).collect();
        }
        Op::ListCursor(at, kind, v) => {
            let at = at.index(model.list.len() + 1);
            let mut values: StdVec<u64> = model.list.iter().copied().collect();
            let mut cursor = all.list.cursor_front_mut(tx)?;
            for _ in 0..at {
                cursor.move_next();
            }
            assert_eq!(cursor.index(), (at < values.len()).then_some(at));
            assert_eq!(cursor.current(), values.get(at));
            match kind {
                0 => {
                    cursor.insert_before(v)?;
                    values.insert(at, v);
                    cursor.move_prev();
                    assert_eq!((cursor.current(), cursor.index()), (Some(&v), Some(at)));
                }
                1 => {
                    cursor.insert_after(v)?;
                    values.insert(if at == values.len() { 0 } else { at + 1 }, v);
                    cursor.move_next();
                    assert_eq!(cursor.current(), Some(&v));
                }
                2 => {
                    let removed = cursor.remove_current()?;
                    assert_eq!(removed, (at < values.len()).then(|| values.remove(at)));
                    assert_eq!(cursor.current(), values.get(at));
                }
                _ => {
                    if let Some(place) = cursor.current_mut()? {
                        *place = v;
                        values[at] = v;
                    }
                }
            }
            model.list = values.into_iter().collect();
        }
        Op::ListIterMut(n, back) => {
            let mut change = |v: &mut u64| *v = v.wrapping_mul(n);
            match back {
                true => all.list.iter_mut(tx)?.rev().step_by(2).for_each(&mut change),
                false => all.list.iter_mut(tx)?.for_each(&mut change),
            }
            match back {
                true => model.list.iter_mut().rev().step_by(2).for_each(&mut change),
                false => model.list.iter_mut().for_each(&mut change),
            }
            if model.list.len() > 1 {
                let mut both = all.list.iter_mut(tx)?;
                assert_eq!(both.len(), model.list.len());
                let (first, last) = (both.next().expect("two"), both.next_back().expect("two"));
                std::mem::swap(first, last);
                let mut both = model.list.iter_mut();
                let (first, last) = (both.next().expect("two"), both.next_back().expect("two"));
                std::mem::swap(first, last);
            }
        }
        Op::ListFrom(values) => {
            let other = List::from_iter(tx, values.iter().copied())?;
            assert!(other.iter(tx)?.eq(&values));
            all.list.append(tx, other)?;
            model.list.extend(values);
            other.destroy(tx)?;
        }
        Op::ForwardPushBack(v) => {
            all.forward.push_back(tx, v)?;
            model.forward.push_back(v);
        }
        Op::ForwardPushFront(v) => {
            all.forward.push_front(tx, v)?;
            model.forward.push_front(v);
        }
        Op::ForwardPop => assert_eq!(all.forward.pop_front(tx)?, model.forward.pop_front()),
        Op::ForwardRetain(n) => {
            all.forward.retain(tx, |v| v % n != 0)?;
            model.forward.retain(|v| v % n != 0);
        }
        Op::ForwardAppend(values) => {
            let other = ForwardList::new(tx)?;
            other.extend(tx, values.iter().copied())?;
            all.forward.append(tx, other)?;
            model.forward.extend(values);
            assert!(other.is_empty(tx)?);
            other.destroy(tx)?;
        }
        Op::ForwardCursor(at, insert, v) => {
            let at = at.index(model.forward.len() + 1);
            let mut cursor = all.forward.cursor_mut(tx)?;
            for _ in 0..at {
                assert!(cursor.move_next());
            }
            assert_eq!(cursor.current(), at.checked_sub(1).and_then(|at| model.forward.get(at)));
            if insert {
                cursor.insert_after(v)?;
                model.forward.insert(at, v);
            } else {
                assert_eq!(cursor.remove_next()?, model.forward.remove(at));
            }
        }
        Op::ForwardIterMut(n) => {
            all.forward.iter_mut(tx)?.skip(1).for_each(|v| *v ^= n);
            model.forward.iter_mut().skip(1).for_each(|v| *v ^= n);
        }
        Op::TreeInsert(k, v) => assert_eq!(all.tree.insert(tx, k, v)?, model.tree.insert(k, v)),
        Op::TreeRemove(k) => {
            assert_eq!(all.tree.remove_entry(tx, &k)?, model.tree.remove_entry(&k))
        }
        Op::TreeGetMut(k, v) => {
            let place = all.tree.get_mut(tx, &k)?;
            assert_eq!(place.as_deref(), model.tree.get(&k));
            if let Some(place) = place {
                *place = v;
                model.tree.insert(k, v);
            }
        }
        Op::TreePop(true) => assert_eq!(all.tree.pop_last(tx)?, model.tree.pop_last()),
        Op::TreePop(false) => assert_eq!(all.tree.pop_first(tx)?, model.tree.pop_first()),
        Op::TreeEntry(k, kind, v) => match kind {
            0 => {
                let place = all.tree.entry(tx, k)?.or_insert(v)?;
                let model = model.tree.entry(k).or_insert(v);
                assert_eq!(place, model);
                (*place, *model) = (v ^ 1, v ^ 1);
            }
            1 => {
                let place = all.tree.entry(tx, k)?.and_modify(|old| *old ^= v)?.or_default()?;
                let model = model.tree.entry(k).and_modify(|old| *old ^= v).or_default();
                assert_eq!(place, model);
            }
            2 => {
                // A value that takes the transaction to be made, and a map that changes meanwhile,
                // even at this key.
                let place = all.tree.entry(tx, k)?.or_try_insert_with(|tx| {
                    all.tree.extend(tx, (k..k + 20).map(|k| (k, 2)))?;
                    Ok(v)
                })?;
                if !model.tree.contains_key(&k) {
                    model.tree.extend((k..k + 20).map(|k| (k, 2)));
                    model.tree.insert(k, v);
                }
                assert_eq!(Some(&*place), model.tree.get(&k));
            }
            _ => match (all.tree.entry(tx, k)?, model.tree.entry(k)) {
                (
                    btree::Entry::Vacant(entry),
                    std::collections::btree_map::Entry::Vacant(model),
                ) => {
                    assert_eq!(entry.key(), model.key());
                    match kind {
                        3 => assert_eq!(entry.into_key(), k),
                        _ => {
                            assert_eq!(*entry.insert(v)?, v);
                            model.insert(v);
                        }
                    }
                }
                (
                    btree::Entry::Occupied(mut entry),
                    std::collections::btree_map::Entry::Occupied(mut model),
                ) => {
                    assert_eq!((entry.key(), entry.get()), (model.key(), model.get()));
                    match kind {
                        3 => assert_eq!(entry.insert(v)?, model.insert(v)),
                        4 => assert_eq!(entry.remove_entry()?, model.remove_entry()),
                        _ => {
                            *entry.get_mut()? = v;
                            assert_eq!(entry.remove()?, v);
                            model.remove();
                        }
                    }
                }
                (entry, model) => panic!("{entry:?} and {model:?}"),
            },
        },
        Op::TreeEdge(last, remove, v) => {
            let entry = if last { all.tree.last_entry(tx)? } else { all.tree.first_entry(tx)? };
            let edge = if last { model.tree.last_entry() } else { model.tree.first_entry() };
            match (entry, edge) {
                (Some(entry), Some(model)) if remove => {
                    assert_eq!(entry.remove_entry()?, model.remove_entry())
                }
                (Some(entry), Some(model)) => {
                    *entry.into_mut()? = v;
                    *model.into_mut() = v;
                }
                (entry, model) => assert!(entry.is_none() && model.is_none()),
            }
        }
        Op::TreeIterMut(from, n, v) => {
            let change =
                |(k, value): (&u16, &mut u64)| *value = value.wrapping_add(v ^ u64::from(*k));
            all.tree.range_mut(tx, from..from + n)?.for_each(change);
            model.tree.range_mut(from..from + n).for_each(change);
            all.tree.range_mut(tx, ..=from)?.take(9).for_each(change);
            model.tree.range_mut(..=from).take(9).for_each(change);
            let values = all.tree.values_mut(tx)?;
            assert_eq!(values.len(), model.tree.len());
            // All of them at once: no two are one.
            let values: StdVec<&mut u64> = values.collect();
            values.into_iter().zip(0..).for_each(|(value, i)| *value = value.wrapping_add(i));
            model.tree.values_mut().zip(0..).for_each(|(value, i)| *value = value.wrapping_add(i));
        }
        Op::TreeRetain(n) => {
            all.tree.retain(tx, |k, _| k % n != 0)?;
            model.tree.retain(|k, _| k % n != 0);
        }
        Op::TreeFill(from, n) => {
            all.tree.extend(tx, (from..from + n).map(|k| (k, 1)))?;
            model.tree.extend((from..from + n).map(|k| (k, 1)));
        }
        Op::WordInsert(k, v) => {
            let key = InlineStr::try_from(k.as_str()).expect("short");
            assert_eq!(all.words.insert(tx, key, v)?, model.words.insert(k, v));
        }
        Op::WordRemove(k) => assert_eq!(all.words.remove(tx, k.as_str())?, model.words.remove(&k)),
        Op::HashInsert(k, v) => assert_eq!(all.hash.insert(tx, k, v)?, model.hash.insert(k, v)),
        Op::HashRemove(k) => {
            assert_eq!(all.hash.remove_entry(tx, &k)?, model.hash.remove_entry(&k))
        }
        Op::HashGetMut(k, v) => {
            let place = all.hash.get_mut(tx, &k)?;
            assert_eq!(place.as_deref(), model.hash.get(&k));
            if let Some(place) = place {
                *place = v;
                model.hash.insert(k, v);
            }
        }
        Op::HashEntry(k, kind, v) => match kind {
            0 => {
                let place = all.hash.entry(tx, k)?.or_insert(v)?;
                let model = model.hash.entry(k).or_insert(v);
                assert_eq!(place, model);
                (*place, *model) = (v ^ 1, v ^ 1);
            }
            1 => {
                let place = all.hash.entry(tx, k)?.and_modify(|old| *old ^= v)?.or_default()?;
                let model = model.hash.entry(k).and_modify(|old| *old ^= v).or_default();
                assert_eq!(place, model);
            }
            2 => {
                // A value that takes the transaction to be made, and a map that changes meanwhile,
                // even at this key.
                let place = all.hash.entry(tx, k)?.or_try_insert_with(|tx| {
                    all.hash.extend(tx, (k..k + 20).map(|k| (k, 2)))?;
                    Ok(v)
                })?;
                if !model.hash.contains_key(&k) {
                    model.hash.extend((k..k + 20).map(|k| (k, 2)));
                    model.hash.insert(k, v);
                }
                assert_eq!(Some(&*place), model.hash.get(&k));
            }
            _ => match (all.hash.entry(tx, k)?, model.hash.entry(k)) {
                (hash::Entry::Vacant(entry), std::collections::hash_map::Entry::Vacant(model)) => {
                    assert_eq!(entry.key(), model.key());
                    match kind {
                        3 => assert_eq!(entry.into_key(), k),
                        _ => {
                            assert_eq!(*entry.insert(v)?, v);
                            model.insert(v);
                        }
                    }
                }
                (
                    hash::Entry::Occupied(mut entry),
                    std::collections::hash_map::Entry::Occupied(mut model),
                ) => {
                    assert_eq!((entry.key(), entry.get()), (model.key(), model.get()));
                    match kind {
                        3 => assert_eq!(entry.insert(v)?, model.insert(v)),
                        4 => assert_eq!(entry.remove_entry()?, model.remove_entry()),
                        _ => {
                            *entry.get_mut()? = v;
                            assert_eq!(entry.remove()?, v);
                            model.remove();
                        }
                    }
                }
                (entry, model) => panic!("{entry:?} and {model:?}"),
            },
        },
        Op::HashIterMut(v) => {
            let entries = all.hash.iter_mut(tx)?;
            assert_eq!(entries.len(), model.hash.len());
            let entries: StdVec<(&u16, &mut u64)> = entries.collect();
            entries
                .into_iter()
                .for_each(|(k, value)| *value = value.wrapping_add(v ^ u64::from(*k)));
            model
                .hash
                .iter_mut()
                .for_each(|(k, value)| *value = value.wrapping_add(v ^ u64::from(*k)));
            assert_eq!(all.hash.values_mut(tx)?.count(), model.hash.len());
        }
        Op::HashRetain(n) => {
            all.hash.retain(tx, |k, _| k % n != 0)?;
            model.hash.retain(|k, _| k % n != 0);
        }
        Op::HashFill(from, n) => {
            all.hash.extend(tx, (from..from + n).map(|k| (k, 1)))?;
            model.hash.extend((from..from + n).map(|k| (k, 1)));
        }
        Op::VecPush(v) => {
            all.vec.push(tx, v)?;
            model.vec.push(v);
        }
        Op::VecPop => assert_eq!(all.vec.pop(tx)?, model.vec.pop()),
        Op::VecInsert(at, v) => {
            let at = at.index(model.vec.len() + 1);
            all.vec.insert(tx, at, v)?;
            model.vec.insert(at, v);
        }
        Op::VecRemove(at, swap) => {
            let at = at.index(model.vec.len() + 1);
            let removed = if swap { all.vec.swap_remove(tx, at) } else { all.vec.remove(tx, at) };
            match removed {
                Ok(v) if swap => assert_eq!(v, model.vec.swap_remove(at)),
                Ok(v) => assert_eq!(v, model.vec.remove(at)),
                Err(Error::OutOfBounds { .. }) => assert_eq!(at, model.vec.len()),
                Err(error) => return Err(error),
            }
        }
        Op::VecExtend(values) => {
            all.vec.extend_from_slice(tx, &values)?;
            all.vec.extend(tx, values.iter().copied())?;
            model.vec.extend_from_slice(&values);
            model.vec.extend(values);
        }
        Op::VecTruncate(len) => {
            let len = len.index(model.vec.len() + 1);
            all.vec.truncate(tx, len)?;
            model.vec.truncate(len);
        }
        Op::VecRetain(n) => {
            all.vec.retain(tx, |v| v % n != 0)?;
            model.vec.retain(|v| v % n != 0);
        }
        Op::VecSort => {
            all.vec.as_mut_slice(tx)?.sort_unstable();
            model.vec.sort_unstable();
        }
        Op::VecIterMut(v) => {
            all.vec.iter_mut(tx)?.rev().step_by(3).for_each(|value| *value ^= v);
            model.vec.iter_mut().rev().step_by(3).for_each(|value| *value ^= v);
            let ends = [all.vec.first_mut(tx)?.copied(), all.vec.last_mut(tx)?.copied()];
            assert_eq!(ends, [model.vec.first().copied(), model.vec.last().copied()]);
        }
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
        assert_eq!(all.hash.get(reader, &start)?, model.hash.get(&start));
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2000, ..Default::default() })]

    #[test]
    fn collections_do_what_those_of_std_do(
        history in prop::collection::vec((prop::collection::vec(op(), 0..24), end()), 1..24)
    ) {
        let directory = directory();
        let mut store = pool(directory.path());
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
                store = pool(directory.path());
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
        prop_assert_eq!(store.stats().unwrap().blocks, 0, "all is given back");
    }
}
