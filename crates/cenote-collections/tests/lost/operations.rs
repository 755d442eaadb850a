//! Every operation of every collection, by number, with its answer as text.

use cenote::{Persist, Ptr, Reader, Result, Tx, field};
use cenote_collections::{BTreeMap, ForwardList, HashMap, List, String, Vec, list};
use std::fmt::Debug;
use std::string::String as Text;

/// Elements of each collection. Those of `wide` are longer than a page, those of `tree` such that
/// nodes lie in two.
const COUNT: u64 = 60;

type Broad = [u64; 40];

#[derive(Persist, Clone, Copy)]
#[persist(name = "lost::All")]
pub(crate) struct All {
    list: List<u64>,
    wide: List<[u64; 600]>,
    forward: ForwardList<Broad>,
    tree: BTreeMap<u64, Broad>,
    hash: HashMap<u64, Broad>,
    small: BTreeMap<u64, u64>,
    vec: Vec<u64>,
    text: String,
    chain: Option<Ptr<Link>>,
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "lost::Link")]
pub(crate) struct Link {
    number: [u64; 100],
    next: Option<Ptr<Link>>,
}

impl All {
    pub(crate) fn list_of<'r>(&self, r: &'r impl Reader) -> Result<list::Iter<'r, u64>> {
        self.list.iter(r)
    }

    pub(crate) fn last(&self, r: &impl Reader) -> Result<Option<u64>> {
        Ok(self.list.back(r)?.copied())
    }

    /// Where the list's last element lies.
    pub(crate) fn last_of_list(&self, r: &impl Reader) -> u64 {
        core::ptr::from_ref(self.list.back(r).expect("readable").expect("an element")).addr() as u64
    }

    pub(crate) fn pop_front(&self, tx: &mut Tx<'_>) -> Result<Option<u64>> {
        self.list.pop_front(tx)
    }
}

pub(crate) fn fill(tx: &mut Tx<'_>) -> Result<()> {
    let broad = |number| [number; 40];
    let mut chain = None;
    for number in 0..20 {
        chain = Some(tx.alloc(Link { number: [number; 100], next: chain })?);
    }
    let hash = HashMap::with_hash_key(tx, [3, 4])?;
    hash.extend(tx, (0..COUNT).map(|n| (n, broad(n))))?;
    let text = String::new(tx)?;
    text.push_str(tx, &"äb".repeat(3000))?;
    let all = All {
        list: List::from_iter(tx, 0..300)?,
        wide: List::from_iter(tx, (0..5).map(|n| [n; 600]))?,
        forward: ForwardList::from_iter(tx, (0..COUNT).map(broad))?,
        tree: BTreeMap::from_iter(tx, (0..2 * COUNT).map(|n| (n, broad(n))))?,
        hash,
        small: BTreeMap::from_iter(tx, (0..500).map(|n| (n, n)))?,
        vec: Vec::from_iter(tx, 0..1500)?,
        text,
        chain,
    };
    let root = tx.alloc(all)?;
    tx.set_root(root)?;
    tx.set_named_root("named", Some(root))
}

/// As text what an iterator yields, and how long it said it would be.
fn said<T: Debug>(iter: impl Iterator<Item = T>) -> Text {
    let hint = iter.size_hint().1;
    let all: std::vec::Vec<T> = iter.collect();
    format!("{hint:?} {all:?}")
}

fn text(answer: impl Debug) -> Text {
    format!("{answer:?}")
}

/// Operation `number` that reads; `None` if there are not so many.
pub(crate) fn reads(r: &impl Reader, all: &All, number: usize) -> Option<Result<Text>> {
    let All { list, wide, forward, tree, hash, small, vec, text: string, .. } = *all;
    Some(match number {
        0 => list.iter(r).map(said),
        1 => list.iter(r).map(|iter| said(iter.rev())),
        2 => list.len(r).map(text),
        3 => list.front(r).map(text),
        4 => list.back(r).map(text),
        5 => list.contains(r, &250).map(text),
        6 => list.contains(r, &9999).map(text),
        7 => wide.iter(r).map(said),
        8 => wide.iter(r).map(|iter| said(iter.rev())),
        9 => wide.front(r).map(text),
        10 => wide.back(r).map(text),
        11 => forward.iter(r).map(said),
        12 => forward.front(r).map(text),
        13 => forward.back(r).map(text),
        14 => forward.contains(r, &[50; 40]).map(text),
        15 => tree.iter(r).map(said),
        16 => tree.iter(r).map(|iter| said(iter.rev())),
        17 => tree.get(r, &70).map(text),
        18 => tree.get(r, &7777).map(text),
        19 => tree.contains_key(r, &33).map(text),
        20 => tree.first_key_value(r).map(text),
        21 => tree.last_key_value(r).map(text),
        22 => tree.range(r, 20..90).map(said),
        23 => tree.range(r, 20..90).map(|range| said(range.rev())),
        24 => tree.keys(r).map(said),
        25 => tree.values(r).map(|values| said(values.rev())),
        26 => hash.iter(r).map(said),
        27 => hash.get(r, &17).map(text),
        28 => hash.contains_key(r, &7777).map(text),
        29 => hash.keys(r).map(said),
        30 => hash.values(r).map(said),
        31 => small.iter(r).map(said),
        32 => small.get(r, &321).map(text),
        33 => small.range(r, 100..=400).map(|range| said(range.rev())),
        34 => vec.as_slice(r).map(text),
        35 => vec.iter(r).map(said),
        36 => vec.get(r, 700).map(text),
        37 => vec.first(r).map(text),
        38 => vec.last(r).map(text),
        39 => vec.get(r, 5000).map(text),
        40 => string.as_str(r).map(text),
        41 => string.len(r).map(text),
        42 => chain(r, all),
        43 => r.named_root::<All>("named").map(text),
        44 => r.named_roots().map(|roots| text(roots.len())),
        45 => tree.get_key_value(r, &119).map(text),
        46 => hash.get_key_value(r, &59).map(text),
        47 => small.iter(r).map(|iter| text(iter.count())),
        48 => hash.iter(r).map(|iter| said(iter.clone())),
        49 => list.iter(r).map(|mut iter| text((iter.nth(7), iter.next_back(), iter.len()))),
        _ => return None,
    })
}

fn chain(r: &impl Reader, all: &All) -> Result<Text> {
    let (mut next, mut sum) = (all.chain, 0);
    while let Some(link) = next {
        let link = r.get(link)?;
        sum += link.number.iter().sum::<u64>();
        next = link.next;
    }
    Ok(text(sum))
}

/// Operation `number` that changes something; `None` if there are not so many.
pub(crate) fn changes(tx: &mut Tx<'_>, all: &All, number: usize) -> Option<Result<Text>> {
    match number {
        0..30 => Some(change_lists(tx, all, number)),
        30..70 => Some(change_maps(tx, all, number - 30)),
        70..100 => Some(change_others(tx, all, number - 70)),
        _ => None,
    }
}

fn change_lists(tx: &mut Tx<'_>, all: &All, number: usize) -> Result<Text> {
    let All { list, wide, forward, .. } = *all;
    Ok(match number {
        0 => text(list.push_back(tx, 7)?),
        1 => text(list.push_front(tx, 7)?),
        2 => text(list.pop_back(tx)?),
        3 => text(list.pop_front(tx)?),
        4 => text(list.front_mut(tx)?),
        5 => text(list.back_mut(tx)?),
        6 => said(list.iter_mut(tx)?),
        7 => said(list.iter_mut(tx)?.rev()),
        8 => text(list.retain(tx, |n| n % 3 != 0)?),
        9 => text(list.clear(tx)?),
        10 => text(list.destroy(tx)?),
        11 => {
            let other = list.split_off(tx, 100)?;
            said(other.iter(tx)?) + &said(list.iter(tx)?)
        }
        12 => {
            let other = list.split_off(tx, 250)?;
            list.append(tx, other)?;
            said(list.iter(tx)?)
        }
        13 => {
            let mut cursor = list.cursor_front_mut(tx)?;
            (0..40).for_each(|_| cursor.move_next());
            let current = text(cursor.current());
            cursor.insert_before(1)?;
            cursor.insert_after(2)?;
            text((current, cursor.remove_current()?, cursor.current_mut()?))
        }
        14 => {
            let mut cursor = list.cursor_back_mut(tx)?;
            (0..140).for_each(|_| cursor.move_prev());
            text((cursor.index(), cursor.current().copied(), cursor.remove_current()?))
        }
        15 => text(wide.push_back(tx, [9; 600])?),
        16 => text(wide.pop_front(tx)?),
        17 => text(wide.pop_back(tx)?),
        18 => said(wide.iter_mut(tx)?),
        19 => text(wide.clear(tx)?),
        20 => text(forward.push_front(tx, [1; 40])?),
        21 => text(forward.push_back(tx, [1; 40])?),
        22 => text(forward.pop_front(tx)?),
        23 => said(forward.iter_mut(tx)?),
        24 => text(forward.retain(tx, |n| n[0] % 2 == 0)?) + &said(forward.iter(tx)?),
        25 => text(forward.destroy(tx)?),
        26 => text(forward.front_mut(tx)?),
        27 => {
            let mut cursor = forward.cursor_mut(tx)?;
            while cursor.move_next() && cursor.current().is_some_and(|n| n[0] < 30) {}
            cursor.insert_after([5; 40])?;
            text((cursor.current().copied(), cursor.peek_next().copied(), cursor.remove_next()?))
        }
        28 => {
            let other = ForwardList::from_iter(tx, [[1; 40], [2; 40]])?;
            forward.append(tx, other)?;
            said(forward.iter(tx)?)
        }
        _ => said(List::from_iter(tx, (0..400u64).map(|n| [n; 30]))?.iter(tx)?),
    })
}

fn change_maps(tx: &mut Tx<'_>, all: &All, number: usize) -> Result<Text> {
    let All { tree, .. } = *all;
    let broad = |number| [number; 40];
    Ok(match number {
        0 => text(tree.insert(tx, 1000, broad(1))?),
        1 => text(tree.insert(tx, 45, broad(1))?),
        2 => text(tree.remove(tx, &60)?),
        3 => text(tree.remove_entry(tx, &7777)?),
        4 => text(tree.pop_first(tx)?),
        5 => text(tree.pop_last(tx)?),
        6 => text(tree.get_mut(tx, &88)?),
        7 => text(tree.retain(tx, |key, _| key % 4 == 0)?) + &said(tree.iter(tx)?),
        8 => said(tree.iter_mut(tx)?),
        9 => said(tree.range_mut(tx, 10..100)?),
        10 => said(tree.values_mut(tx)?),
        11 => text(tree.clear(tx)?),
        12 => text(tree.destroy(tx)?),
        13 => text(tree.entry(tx, 5)?.or_insert(broad(2))?),
        14 => text(tree.entry(tx, 505)?.or_insert(broad(2))?),
        15 => text(tree.first_entry(tx)?.map(|entry| entry.remove()).transpose()?),
        16 => text(tree.last_entry(tx)?.map(|entry| *entry.get())),
        _ => change_hash_maps(tx, all, number)?,
    })
}

fn change_hash_maps(tx: &mut Tx<'_>, all: &All, number: usize) -> Result<Text> {
    let All { tree, hash, small, .. } = *all;
    let broad = |number| [number; 40];
    Ok(match number {
        17 => text(hash.insert(tx, 1000, broad(1))?),
        18 => text(hash.insert(tx, 45, broad(1))?),
        19 => text(hash.remove(tx, &30)?),
        20 => text(hash.remove_entry(tx, &7777)?),
        21 => text(hash.get_mut(tx, &3)?),
        22 => {
            hash.retain(tx, |key, _| key % 4 == 0)?;
            said(hash.iter(tx)?)
        }
        23 => said(hash.iter_mut(tx)?),
        24 => said(hash.values_mut(tx)?),
        25 => text(hash.clear(tx)?),
        26 => text(hash.destroy(tx)?),
        27 => text(hash.entry(tx, 5)?.or_insert(broad(2))?),
        28 => text(hash.entry(tx, 505)?.or_insert(broad(2))?),
        29 => {
            hash.extend(tx, (2000..2100).map(|n| (n, broad(n))))?;
            said(hash.iter(tx)?)
        }
        30 => {
            small.extend(tx, (600..700).map(|n| (n, n)))?;
            said(small.iter(tx)?)
        }
        31 => {
            for key in 100..300 {
                small.remove(tx, &key)?;
            }
            said(small.iter(tx)?)
        }
        32 => {
            for key in (0..500).step_by(2) {
                small.insert(tx, key, 1)?;
            }
            said(small.iter(tx)?)
        }
        33 => said(small.iter_mut(tx)?),
        34 => text(small.clear(tx)?),
        35 => said(BTreeMap::from_iter(tx, (0..300u64).map(|n| (n, n)))?.iter(tx)?),
        36 => {
            for key in 0..50 {
                hash.remove(tx, &key)?;
            }
            said(hash.iter(tx)?)
        }
        37 => {
            for key in (100..300).rev() {
                tree.insert(tx, key, broad(key))?;
            }
            said(tree.iter(tx)?)
        }
        _ => text(HashMap::with_hash_key(tx, [1, 2])?.insert(tx, 1u64, 2u64)?),
    })
}

fn change_others(tx: &mut Tx<'_>, all: &All, number: usize) -> Result<Text> {
    let All { vec, text: string, chain, .. } = *all;
    Ok(match number {
        0 => text(vec.push(tx, 1)?),
        1 => text(vec.pop(tx)?),
        2 => text(vec.insert(tx, 600, 5)?),
        3 => text(vec.remove(tx, 900)?),
        4 => text(vec.swap_remove(tx, 3)?),
        5 => text(vec.swap(tx, 10, 1400)?),
        6 => text(vec.replace(tx, 800, 3)?),
        7 => text(vec.get_mut(tx, 100)?),
        8 => text(vec.first_mut(tx)?),
        9 => text(vec.last_mut(tx)?),
        10 => text(vec.as_mut_slice(tx)?),
        11 => said(vec.iter_mut(tx)?),
        12 => text(vec.truncate(tx, 20)?),
        13 => text(vec.retain(tx, |n| n % 2 == 0)?) + &said(vec.iter(tx)?),
        14 => text(vec.clear(tx)?),
        15 => text(vec.destroy(tx)?),
        16 => text(vec.reserve(tx, 10_000)?),
        17 => text(vec.extend_from_slice(tx, &[1; 2000])?) + &said(vec.iter(tx)?),
        18 => text(string.push_str(tx, "nach")?),
        19 => text(string.pop(tx)?),
        20 => text(string.truncate(tx, 9)?),
        21 => text(string.clear(tx)?),
        22 => text(string.destroy(tx)?),
        23 => {
            let link = chain.expect("a chain");
            tx.set(link, field!(Link, next), None)?;
            text(tx.get(link)?.next)
        }
        24 => text(tx.get_mut(chain.expect("a chain"))?.number),
        25 => text(tx.free(chain.expect("a chain"))?),
        26 => {
            for number in 0..200 {
                tx.alloc(Link { number: [number; 100], next: None })?;
            }
            text(())
        }
        27 => {
            tx.set_named_root("other", chain)?;
            text(tx.named_roots()?.len())
        }
        28 => text(tx.remove_named_root("named")?),
        _ => text(Vec::from_iter(tx, 0..5000u64)?.as_slice(tx)?),
    })
}
