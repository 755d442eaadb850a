//! A hash map against its counterpart.

use cenote::Tx;
use cenote_collections::{HashMap, hash};
use proptest::prelude::*;
use std::collections::HashMap as StdHashMap;
use std::vec::Vec as StdVec;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Insert(u16, u64),
    Remove(u16),
    GetMut(u16, u64),
    Entry(u16, u8, u64),
    IterMut(u64),
    Retain(u16),
    Fill(u16, u16),
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let key = || 0u16..400;
    prop_oneof![
        4 => (key(), any::<u64>()).prop_map(|(k, v)| Op::Insert(k, v)),
        4 => key().prop_map(Op::Remove),
        1 => (key(), any::<u64>()).prop_map(|(k, v)| Op::GetMut(k, v)),
        4 => (key(), 0u8..6, any::<u64>()).prop_map(|(k, kind, v)| Op::Entry(k, kind, v)),
        1 => any::<u64>().prop_map(Op::IterMut),
        1 => (2u16..9).prop_map(Op::Retain),
        2 => (key(), 1u16..120).prop_map(|(k, n)| Op::Fill(k, n)),
    ]
}

/// Does the same to both; what operations return is compared as well.
pub(super) fn apply(
    tx: &mut Tx<'_>,
    hash: HashMap<u16, u64>,
    model: &mut StdHashMap<u16, u64>,
    op: Op,
) -> cenote::Result<()> {
    match op {
        Op::Insert(k, v) => assert_eq!(hash.insert(tx, k, v)?, model.insert(k, v)),
        Op::Remove(k) => {
            assert_eq!(hash.remove_entry(tx, &k)?, model.remove_entry(&k))
        }
        Op::GetMut(k, v) => {
            let place = hash.get_mut(tx, &k)?;
            assert_eq!(place.as_deref(), model.get(&k));
            if let Some(place) = place {
                *place = v;
                model.insert(k, v);
            }
        }
        Op::IterMut(v) => {
            let entries = hash.iter_mut(tx)?;
            assert_eq!(entries.len(), model.len());
            let entries: StdVec<(&u16, &mut u64)> = entries.collect();
            entries
                .into_iter()
                .for_each(|(k, value)| *value = value.wrapping_add(v ^ u64::from(*k)));
            model.iter_mut().for_each(|(k, value)| *value = value.wrapping_add(v ^ u64::from(*k)));
            assert_eq!(hash.values_mut(tx)?.count(), model.len());
        }
        Op::Retain(n) => {
            hash.retain(tx, |k, _| k % n != 0)?;
            model.retain(|k, _| k % n != 0);
        }
        Op::Fill(from, n) => {
            hash.extend(tx, (from..from + n).map(|k| (k, 1)))?;
            model.extend((from..from + n).map(|k| (k, 1)));
        }
        Op::Entry(k, kind, v) => at_entry(tx, hash, model, (k, kind, v))?,
    }
    Ok(())
}

/// Uses the entry of a key.
fn at_entry(
    tx: &mut Tx<'_>,
    hash: HashMap<u16, u64>,
    model: &mut StdHashMap<u16, u64>,
    (k, kind, v): (u16, u8, u64),
) -> cenote::Result<()> {
    match kind {
        0 => {
            let place = hash.entry(tx, k)?.or_insert(v)?;
            let model = model.entry(k).or_insert(v);
            assert_eq!(place, model);
            (*place, *model) = (v ^ 1, v ^ 1);
        }
        1 => {
            let place = hash.entry(tx, k)?.and_modify(|old| *old ^= v)?.or_default()?;
            let model = model.entry(k).and_modify(|old| *old ^= v).or_default();
            assert_eq!(place, model);
        }
        2 => {
            // A value that takes the transaction to be made, and a map that changes meanwhile,
            // even at this key.
            let place = hash.entry(tx, k)?.or_try_insert_with(|tx| {
                hash.extend(tx, (k..k + 20).map(|k| (k, 2)))?;
                Ok(v)
            })?;
            if !model.contains_key(&k) {
                model.extend((k..k + 20).map(|k| (k, 2)));
                model.insert(k, v);
            }
            assert_eq!(Some(&*place), model.get(&k));
        }
        _ => match (hash.entry(tx, k)?, model.entry(k)) {
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
    }
    Ok(())
}
