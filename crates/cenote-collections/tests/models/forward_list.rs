//! A singly linked list against its counterpart.

use cenote::Tx;
use cenote_collections::ForwardList;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec as StdVec;

#[derive(Clone, Debug)]
pub(super) enum Op {
    PushBack(u64),
    PushFront(u64),
    Pop,
    Retain(u64),
    Append(StdVec<u64>),
    Cursor(prop::sample::Index, bool, u64),
    IterMut(u64),
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        1 => any::<u64>().prop_map(Op::PushBack),
        1 => any::<u64>().prop_map(Op::PushFront),
        1 => Just(Op::Pop),
        1 => (2u64..9).prop_map(Op::Retain),
        1 => prop::collection::vec(any::<u64>(), 0..4).prop_map(Op::Append),
        1 => (index(), any::<bool>(), any::<u64>()).prop_map(|(i, k, v)| Op::Cursor(i, k, v)),
        1 => any::<u64>().prop_map(Op::IterMut),
    ]
}

/// Does the same to both; what operations return is compared as well.
pub(super) fn apply(
    tx: &mut Tx<'_>,
    forward: ForwardList<u64>,
    model: &mut VecDeque<u64>,
    op: Op,
) -> cenote::Result<()> {
    match op {
        Op::PushBack(v) => {
            forward.push_back(tx, v)?;
            model.push_back(v);
        }
        Op::PushFront(v) => {
            forward.push_front(tx, v)?;
            model.push_front(v);
        }
        Op::Pop => assert_eq!(forward.pop_front(tx)?, model.pop_front()),
        Op::Retain(n) => {
            forward.retain(tx, |v| v % n != 0)?;
            model.retain(|v| v % n != 0);
        }
        Op::Append(values) => {
            let other = ForwardList::new(tx)?;
            other.extend(tx, values.iter().copied())?;
            forward.append(tx, other)?;
            model.extend(values);
            assert!(other.is_empty(tx)?);
            other.destroy(tx)?;
        }
        Op::Cursor(at, insert, v) => {
            let at = at.index(model.len() + 1);
            let mut cursor = forward.cursor_mut(tx)?;
            for _ in 0..at {
                assert!(cursor.move_next());
            }
            assert_eq!(cursor.current(), at.checked_sub(1).and_then(|at| model.get(at)));
            if insert {
                cursor.insert_after(v)?;
                model.insert(at, v);
            } else {
                assert_eq!(cursor.remove_next()?, model.remove(at));
            }
        }
        Op::IterMut(n) => {
            forward.iter_mut(tx)?.skip(1).for_each(|v| *v ^= n);
            model.iter_mut().skip(1).for_each(|v| *v ^= n);
        }
    }
    Ok(())
}
