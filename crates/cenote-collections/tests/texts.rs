//! Texts of any length: as keys of a map, and owned by values of collections.

use crate::common::{directory, pool};
use cenote::ptr::FieldOffset;
use cenote::{Error, Owned, OwnedStr, Persist, Pool, Reader, Result, Store, field};
use cenote_collections::{BTreeMap, ForwardList, InlineStr, List, TextMap, Vec as PersistentVec};
use std::collections as std_collections;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

type Model = std_collections::HashMap<String, (u64, String)>;

fn are_same(view: &impl Reader, map: TextMap<(u64, OwnedStr)>, model: &Model) -> Result<()> {
    assert_eq!(map.len(view)?, model.len());
    let mut count = 0;
    map.for_each(view, |key, (number, text)| {
        count += 1;
        assert_eq!(model.get(key), Some(&(*number, text.as_str(view)?.to_string())));
        Ok(())
    })?;
    assert_eq!(count, model.len());
    for (key, (number, _)) in model {
        assert_eq!(map.get(view, key)?.map(|(number, _)| number), Some(number));
    }
    assert!(!map.contains_key(view, "none")?);
    Ok(())
}

/// A map of texts of which one in `mask + 1` has another hash.
fn texts(mask: u64, steps: u64) -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let map = pool.write(|tx| -> Result<_> {
        let map = TextMap::<(u64, OwnedStr)>::with_mask(tx, mask)?;
        map.insert(tx, "the first owner", (0, OwnedStr::EMPTY))?;
        map.clear(tx)?;
        let root = tx.alloc(map)?;
        tx.set_root(root)?;
        Ok(map)
    })?;
    pool.finish_frees()?;
    let blocks = pool.stats()?.blocks;
    let (mut model, mut random) = (Model::new(), Random(23));
    for step in 0..steps {
        let number = random.below(40);
        let key = format!("{}{number}", "long/".repeat(number as usize * 7));
        let there = model.contains_key(&key);
        match random.below(7) {
            0..=2 => {
                let is_new = pool.write(|tx| map.insert(tx, &key, (step, OwnedStr::EMPTY)))?;
                assert_eq!(is_new, !there);
                model.insert(key.clone(), (step, String::new()));
            }
            3 => {
                assert_eq!(pool.write(|tx| map.remove(tx, &key))?, there);
                model.remove(&key);
            }
            4 => {
                let text = format!("text {step}");
                let field = field!((u64, OwnedStr), 1);
                let put = pool.write(|tx| map.put_owned(tx, &key, field, &text))?;
                assert_eq!(put.is_some(), there);
                if let Some((_, old)) = model.get_mut(&key) {
                    *old = text;
                }
            }
            5 => {
                let field = field!((u64, OwnedStr), 0);
                assert_eq!(pool.write(|tx| map.set(tx, &key, field, step))?, there);
                if let Some((old, _)) = model.get_mut(&key) {
                    *old = step;
                }
            }
            _ => {
                let field = field!((u64, OwnedStr), 1);
                let freed = pool.write(|tx| map.free_owned(tx, &key, field))?;
                assert_eq!(freed, model.get(&key).is_some_and(|(_, text)| !text.is_empty()));
                if let Some((_, text)) = model.get_mut(&key) {
                    text.clear();
                }
            }
        }
        are_same(&pool.read()?, map, &model)?;
    }
    assert!(pool.check()?.is_sound() && model.len() > 9);
    pool.write(|tx| map.clear(tx))?;
    pool.finish_frees()?;
    assert!(pool.stats()?.blocks <= blocks && map.is_empty(&pool.read()?)?);
    pool.write(|tx| -> Result<()> {
        map.destroy(tx)?;
        assert!(matches!(map.get(tx, "a"), Err(Error::Dangling { .. })));
        tx.set_root_at::<TextMap<(u64, OwnedStr)>>(0, None)
    })?;
    Ok(())
}

#[test]
fn texts_of_any_length_are_keys_also_where_their_hashes_are_one() -> Result<()> {
    texts(u64::MAX, 400)?;
    texts(3, 400)?;
    texts(0, 200)
}

#[test]
fn an_abort_brings_back_the_entry_of_a_text() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let long = "a path/".repeat(500);
    let map = pool.write(|tx| -> Result<_> {
        let map = TextMap::<u64>::new(tx)?;
        map.insert(tx, &long, 7)?;
        Ok(map)
    })?;
    for op in 0..4 {
        let aborted = pool.write(|tx| -> Result<()> {
            match op {
                0 => assert!(map.remove(tx, &long)?),
                1 => assert!(!map.insert(tx, &long, 8)?),
                2 => map.clear(tx)?,
                _ => map.destroy(tx)?,
            }
            Err(Error::OutOfBounds { index: 0, len: 0 })
        });
        assert!(aborted.is_err());
        let view = pool.read()?;
        assert_eq!((map.get(&view, &long)?, map.len(&view)?), (Some(&7), 1));
    }
    Ok(())
}

#[derive(Persist)]
#[persist(name = "texts::Contact")]
struct Contact {
    name: OwnedStr,
    first: Owned<Phone>,
}

#[derive(Persist)]
#[persist(name = "texts::Phone", owned)]
struct Phone {
    number: OwnedStr,
    next: Owned<Phone>,
}

#[test]
fn one_line_removes_a_contact_with_its_texts_and_lists() -> Result<()> {
    let directory = directory();
    let pool = pool(directory.path());
    let contacts = pool.write(BTreeMap::<InlineStr<15>, Contact>::new)?;
    // The list of blocks that wait is made by the first owner.
    pool.write(|tx| -> Result<()> {
        let contact = Contact { name: OwnedStr::EMPTY, first: Owned::EMPTY };
        contacts.insert(tx, InlineStr::truncated("x"), contact)?;
        contacts.put_owned(tx, "x", field!(Contact, name), "the first")?;
        contacts.clear(tx)
    })?;
    let empty = pool.stats()?.blocks;
    pool.write(|tx| -> Result<()> {
        for name in ["ada", "bob", "eve"] {
            let contact = Contact { name: OwnedStr::EMPTY, first: Owned::EMPTY };
            contacts.insert(tx, InlineStr::truncated(name), contact)?;
            contacts.put_owned(tx, name, field!(Contact, name), "a name, or a URL")?;
            let phone = || Phone { number: OwnedStr::EMPTY, next: Owned::EMPTY };
            let first = contacts.put_owned(tx, name, field!(Contact, first), phone())?;
            let first = first.expect("inserted");
            tx.put_owned(first, field!(Phone, number), "36000")?;
            tx.put_owned(first, field!(Phone, next), phone())?;
        }
        Ok(())
    })?;
    let blocks = pool.stats()?.blocks;
    pool.write(|tx| contacts.remove(tx, "ada").map(|_| ()))?;
    pool.finish_frees()?;
    assert_eq!(pool.stats()?.blocks, blocks - 4, "a name, two phones, a number");
    let view = pool.read()?;
    let bob = contacts.get(&view, "bob")?.expect("inserted");
    assert_eq!(bob.name.as_str(&view)?, "a name, or a URL");
    drop(view);
    pool.write(|tx| contacts.clear(tx))?;
    pool.finish_frees()?;
    assert_eq!(pool.stats()?.blocks, empty);
    // An owned type is a value like others, where it is not in a block of its own.
    let phones = pool.write(|tx| -> Result<_> {
        let phones = PersistentVec::<Plain>::new(tx)?;
        phones.extend(tx, (0..20).map(|value| Plain { value }))?;
        Ok(phones)
    })?;
    assert_eq!(phones.get(&pool.read()?, 7)?.map(|plain| plain.value), Some(7));
    pool.write(|tx| phones.destroy(tx))
}

#[derive(Persist)]
#[persist(name = "texts::Plain", owned)]
struct Plain {
    value: u64,
}

#[test]
fn elements_that_own_move_within_their_pool_alone() -> Result<()> {
    let directory = directory();
    let store = Store::open(directory.path())?;
    let (here, there) = (store.pool("here")?, store.pool("there")?);
    let made = |pool: &Pool| {
        pool.write(|tx| -> Result<_> {
            let (list, forward) = (List::new(tx)?, ForwardList::new(tx)?);
            list.push_back(tx, OwnedStr::EMPTY)?;
            list.cursor_front_mut(tx)?.put_owned(FieldOffset::whole(), "of a list")?;
            forward.push_back(tx, OwnedStr::EMPTY)?;
            let mut cursor = forward.cursor_mut(tx)?;
            cursor.move_next();
            cursor.put_owned(FieldOffset::whole(), "of another")?;
            Ok((list, forward))
        })
    };
    let ((list, forward), (other_list, other_forward)) = (made(&here)?, made(&there)?);
    store.write(&[&here, &there], |tx| -> Result<()> {
        assert!(matches!(list.append(tx, other_list), Err(Error::OtherPool { .. })));
        assert!(matches!(forward.append(tx, other_forward), Err(Error::OtherPool { .. })));
        Ok(())
    })?;
    let (more, further) = made(&here)?;
    here.write(|tx| -> Result<()> {
        list.append(tx, more)?;
        forward.append(tx, further)
    })?;
    let (view, other) = (here.read()?, there.read()?);
    for text in list.iter(&view)? {
        assert_eq!(text.as_str(&view)?, "of a list");
    }
    for text in forward.iter(&view)? {
        assert_eq!(text.as_str(&view)?, "of another");
    }
    assert_eq!((list.len(&view)?, forward.len(&view)?), (2, 2));
    assert_eq!(other_list.front(&other)?.expect("one").as_str(&other)?, "of a list");
    assert_eq!(other_forward.front(&other)?.expect("one").as_str(&other)?, "of another");
    Ok(())
}
