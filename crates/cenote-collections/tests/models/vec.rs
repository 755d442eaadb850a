//! A vector against its counterpart.

use cenote::{Error, Tx};
use cenote_collections::Vec;
use proptest::prelude::*;
use std::vec::Vec as StdVec;

#[derive(Clone, Debug)]
pub(super) enum Op {
    Push(u32),
    Pop,
    Insert(prop::sample::Index, u32),
    Remove(prop::sample::Index, bool),
    Extend(StdVec<u32>),
    Truncate(prop::sample::Index),
    Retain(u32),
    Sort,
    IterMut(u32),
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => any::<u32>().prop_map(Op::Push),
        1 => Just(Op::Pop),
        1 => (index(), any::<u32>()).prop_map(|(i, v)| Op::Insert(i, v)),
        1 => (index(), any::<bool>()).prop_map(|(i, s)| Op::Remove(i, s)),
        1 => prop::collection::vec(any::<u32>(), 0..40).prop_map(Op::Extend),
        1 => index().prop_map(Op::Truncate),
        1 => (2u32..9).prop_map(Op::Retain),
        1 => Just(Op::Sort),
        1 => any::<u32>().prop_map(Op::IterMut),
    ]
}

/// Does the same to both; what operations return is compared as well.
pub(super) fn apply(
    tx: &mut Tx<'_>,
    vec: Vec<u32>,
    model: &mut StdVec<u32>,
    op: Op,
) -> cenote::Result<()> {
    match op {
        Op::Push(v) => {
            vec.push(tx, v)?;
            model.push(v);
        }
        Op::Pop => assert_eq!(vec.pop(tx)?, model.pop()),
        Op::Insert(at, v) => {
            let at = at.index(model.len() + 1);
            vec.insert(tx, at, v)?;
            model.insert(at, v);
        }
        Op::Remove(at, swap) => {
            let at = at.index(model.len() + 1);
            let removed = if swap { vec.swap_remove(tx, at) } else { vec.remove(tx, at) };
            match removed {
                Ok(v) if swap => assert_eq!(v, model.swap_remove(at)),
                Ok(v) => assert_eq!(v, model.remove(at)),
                Err(Error::OutOfBounds { .. }) => assert_eq!(at, model.len()),
                Err(error) => return Err(error),
            }
        }
        Op::Extend(values) => {
            vec.extend_from_slice(tx, &values)?;
            vec.extend(tx, values.iter().copied())?;
            model.extend_from_slice(&values);
            model.extend(values);
        }
        Op::Truncate(len) => {
            let len = len.index(model.len() + 1);
            vec.truncate(tx, len)?;
            model.truncate(len);
        }
        Op::Retain(n) => {
            vec.retain(tx, |v| v % n != 0)?;
            model.retain(|v| v % n != 0);
        }
        Op::Sort => {
            vec.as_mut_slice(tx)?.sort_unstable();
            model.sort_unstable();
        }
        Op::IterMut(v) => {
            vec.iter_mut(tx)?.rev().step_by(3).for_each(|value| *value ^= v);
            model.iter_mut().rev().step_by(3).for_each(|value| *value ^= v);
            let ends = [vec.first_mut(tx)?.copied(), vec.last_mut(tx)?.copied()];
            assert_eq!(ends, [model.first().copied(), model.last().copied()]);
        }
    }
    Ok(())
}
