//! An ordered map against its counterpart.

use cenote::Tx;
use cenote_collections::{BTreeMap, btree};
use proptest::prelude::*;
use std::collections::BTreeMap as StdBTreeMap;
use std::vec::Vec as StdVec;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Insert(u16, u64),
    Remove(u16),
    GetMut(u16, u64),
    Pop(bool),
    Entry(u16, u8, u64),
    Edge(bool, bool, u64),
    IterMut(u16, u16, u64),
    Retain(u16),
    Fill(u16, u16),
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let key = || 0u16..400;
    prop_oneof![
        4 => (key(), any::<u64>()).prop_map(|(k, v)| Op::Insert(k, v)),
        4 => key().prop_map(Op::Remove),
        1 => (key(), any::<u64>()).prop_map(|(k, v)| Op::GetMut(k, v)),
        1 => any::<bool>().prop_map(Op::Pop),
        4 => (key(), 0u8..6, any::<u64>()).prop_map(|(k, kind, v)| Op::Entry(k, kind, v)),
        1 => any::<(bool, bool, u64)>().prop_map(|(last, remove, v)| Op::Edge(last, remove, v)),
        1 => (key(), 0u16..300, any::<u64>()).prop_map(|(k, n, v)| Op::IterMut(k, n, v)),
        1 => (2u16..9).prop_map(Op::Retain),
        2 => (key(), 1u16..120).prop_map(|(k, n)| Op::Fill(k, n)),
    ]
}

/// Does the same to both; what operations return is compared as well.
pub(super) fn apply(
    tx: &mut Tx<'_>,
    tree: BTreeMap<u16, u64>,
    model: &mut StdBTreeMap<u16, u64>,
    op: Op,
) -> cenote::Result<()> {
    match op {
        Op::Insert(k, v) => assert_eq!(tree.insert(tx, k, v)?, model.insert(k, v)),
        Op::Remove(k) => {
            assert_eq!(tree.remove_entry(tx, &k)?, model.remove_entry(&k))
        }
        Op::GetMut(k, v) => {
            let place = tree.get_mut(tx, &k)?;
            assert_eq!(place.as_deref(), model.get(&k));
            if let Some(place) = place {
                *place = v;
                model.insert(k, v);
            }
        }
        Op::Pop(true) => assert_eq!(tree.pop_last(tx)?, model.pop_last()),
        Op::Pop(false) => assert_eq!(tree.pop_first(tx)?, model.pop_first()),
        Op::IterMut(from, n, v) => {
            let change =
                |(k, value): (&u16, &mut u64)| *value = value.wrapping_add(v ^ u64::from(*k));
            tree.range_mut(tx, from..from + n)?.for_each(change);
            model.range_mut(from..from + n).for_each(change);
            tree.range_mut(tx, ..=from)?.take(9).for_each(change);
            model.range_mut(..=from).take(9).for_each(change);
            let values = tree.values_mut(tx)?;
            assert_eq!(values.len(), model.len());
            // All of them at once: no two are one.
            let values: StdVec<&mut u64> = values.collect();
            values.into_iter().zip(0..).for_each(|(value, i)| *value = value.wrapping_add(i));
            model.values_mut().zip(0..).for_each(|(value, i)| *value = value.wrapping_add(i));
        }
        Op::Retain(n) => {
            tree.retain(tx, |k, _| k % n != 0)?;
            model.retain(|k, _| k % n != 0);
        }
        Op::Fill(from, n) => {
            tree.extend(tx, (from..from + n).map(|k| (k, 1)))?;
            model.extend((from..from + n).map(|k| (k, 1)));
        }
        Op::Entry(k, kind, v) => at_entry(tx, tree, model, (k, kind, v))?,
        Op::Edge(last, remove, v) => at_edge(tx, tree, model, (last, remove, v))?,
    }
    Ok(())
}

/// Uses the entry of a key.
fn at_entry(
    tx: &mut Tx<'_>,
    tree: BTreeMap<u16, u64>,
    model: &mut StdBTreeMap<u16, u64>,
    (k, kind, v): (u16, u8, u64),
) -> cenote::Result<()> {
    match kind {
        0 => {
            let place = tree.entry(tx, k)?.or_insert(v)?;
            let model = model.entry(k).or_insert(v);
            assert_eq!(place, model);
            (*place, *model) = (v ^ 1, v ^ 1);
        }
        1 => {
            let place = tree.entry(tx, k)?.and_modify(|old| *old ^= v)?.or_default()?;
            let model = model.entry(k).and_modify(|old| *old ^= v).or_default();
            assert_eq!(place, model);
        }
        2 => {
            // A value that takes the transaction to be made, and a map that changes meanwhile,
            // even at this key.
            let place = tree.entry(tx, k)?.or_try_insert_with(|tx| {
                tree.extend(tx, (k..k + 20).map(|k| (k, 2)))?;
                Ok(v)
            })?;
            if !model.contains_key(&k) {
                model.extend((k..k + 20).map(|k| (k, 2)));
                model.insert(k, v);
            }
            assert_eq!(Some(&*place), model.get(&k));
        }
        _ => match (tree.entry(tx, k)?, model.entry(k)) {
            (btree::Entry::Vacant(entry), std::collections::btree_map::Entry::Vacant(model)) => {
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
    }
    Ok(())
}

/// Uses the first or the last entry.
fn at_edge(
    tx: &mut Tx<'_>,
    tree: BTreeMap<u16, u64>,
    model: &mut StdBTreeMap<u16, u64>,
    (last, remove, v): (bool, bool, u64),
) -> cenote::Result<()> {
    let entry = if last { tree.last_entry(tx)? } else { tree.first_entry(tx)? };
    let edge = if last { model.last_entry() } else { model.first_entry() };
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
    Ok(())
}
