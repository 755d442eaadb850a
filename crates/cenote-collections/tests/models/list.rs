//! A doubly linked list against its counterpart.

use cenote::Tx;
use cenote_collections::List;
use proptest::prelude::*;
use std::collections::LinkedList;
use std::vec::Vec as StdVec;

#[derive(Clone, Debug)]
pub(super) enum Op {
    PushBack(u64),
    PushFront(u64),
    PopBack,
    PopFront,
    SplitAppend(prop::sample::Index, u64),
    Retain(u64),
    Cursor(prop::sample::Index, u8, u64),
    IterMut(u64, bool),
    From(StdVec<u64>),
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        1 => any::<u64>().prop_map(Op::PushBack),
        1 => any::<u64>().prop_map(Op::PushFront),
        1 => Just(Op::PopBack),
        1 => Just(Op::PopFront),
        1 => (index(), any::<u64>()).prop_map(|(i, v)| Op::SplitAppend(i, v)),
        1 => (2u64..9).prop_map(Op::Retain),
        1 => (index(), 0u8..4, any::<u64>()).prop_map(|(i, k, v)| Op::Cursor(i, k, v)),
        1 => (1u64..9, any::<bool>()).prop_map(|(n, back)| Op::IterMut(n, back)),
        1 => prop::collection::vec(any::<u64>(), 0..4).prop_map(Op::From),
    ]
}

/// Does the same to both; what operations return is compared as well.
pub(super) fn apply(
    tx: &mut Tx<'_>,
    list: List<u64>,
    model: &mut LinkedList<u64>,
    op: Op,
) -> cenote::Result<()> {
    match op {
        Op::PushBack(v) => {
            list.push_back(tx, v)?;
            model.push_back(v);
        }
        Op::PushFront(v) => {
            list.push_front(tx, v)?;
            model.push_front(v);
        }
        Op::PopBack => assert_eq!(list.pop_back(tx)?, model.pop_back()),
        Op::PopFront => assert_eq!(list.pop_front(tx)?, model.pop_front()),
        Op::SplitAppend(at, v) => {
            let at = at.index(model.len() + 1);
            let rest = list.split_off(tx, at)?;
            let mut model_rest = model.split_off(at);
            assert!(rest.iter(tx)?.eq(model_rest.iter()));
            rest.push_front(tx, v)?;
            model_rest.push_front(v);
            rest.append(tx, list)?;
            model_rest.append(model);
            list.append(tx, rest)?;
            model.append(&mut model_rest);
            list.append(tx, list)?;
            rest.destroy(tx)?;
        }
        Op::Retain(n) => {
            list.retain(tx, |v| v % n != 0)?;
            *model = model.iter().copied().filter(|v| v % n != 0).collect();
        }
        Op::IterMut(n, back) => {
            let mut change = |v: &mut u64| *v = v.wrapping_mul(n);
            match back {
                true => list.iter_mut(tx)?.rev().step_by(2).for_each(&mut change),
                false => list.iter_mut(tx)?.for_each(&mut change),
            }
            match back {
                true => model.iter_mut().rev().step_by(2).for_each(&mut change),
                false => model.iter_mut().for_each(&mut change),
            }
            if model.len() > 1 {
                let mut both = list.iter_mut(tx)?;
                assert_eq!(both.len(), model.len());
                let (first, last) = (both.next().expect("two"), both.next_back().expect("two"));
                std::mem::swap(first, last);
                let mut both = model.iter_mut();
                let (first, last) = (both.next().expect("two"), both.next_back().expect("two"));
                std::mem::swap(first, last);
            }
        }
        Op::From(values) => {
            let other = List::from_iter(tx, values.iter().copied())?;
            assert!(other.iter(tx)?.eq(&values));
            list.append(tx, other)?;
            model.extend(values);
            other.destroy(tx)?;
        }
        Op::Cursor(at, kind, v) => {
            at_cursor(tx, list, model, (at.index(model.len() + 1), kind, v))?
        }
    }
    Ok(())
}

/// Moves a cursor to a place, and inserts, removes or changes there.
fn at_cursor(
    tx: &mut Tx<'_>,
    list: List<u64>,
    model: &mut LinkedList<u64>,
    (at, kind, v): (usize, u8, u64),
) -> cenote::Result<()> {
    let mut values: StdVec<u64> = model.iter().copied().collect();
    let mut cursor = list.cursor_front_mut(tx)?;
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
    *model = values.into_iter().collect();
    Ok(())
}
