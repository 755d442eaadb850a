//! Texts and bytes of any length that values own: they come and go with the value, and what damage
//! leaves of them is an error.

use crate::support::directory;
use crate::values::{find, put_at};
use cenote::ptr::FieldOffset;
use cenote::{
    Error, HeapKind, Owned, OwnedBytes, OwnedStr, Persist, Pool, PoolOptions, Ptr, Reader, Result,
    Store, field,
};

#[derive(Persist)]
#[persist(name = "owned_texts::Contact")]
struct Contact {
    name: OwnedStr,
    photo: OwnedBytes,
    first: Owned<Note>,
}

#[derive(Persist)]
#[persist(name = "owned_texts::Note", owned)]
struct Note {
    text: OwnedStr,
    next: Owned<Note>,
}

fn contact() -> Contact {
    Contact { name: OwnedStr::EMPTY, photo: OwnedBytes::default(), first: Owned::EMPTY }
}

fn pool_of(store: &Store, heap: HeapKind) -> Result<Pool> {
    store.create_pool("p", &PoolOptions { heap, ..PoolOptions::default() })
}

/// A contact of a root, and how many blocks there are without it.
fn made(pool: &Pool) -> Result<(Ptr<Contact>, u64)> {
    pool.write(|tx| -> Result<()> {
        let first = tx.alloc(contact())?;
        tx.put_owned(first, field!(Contact, name), "a list of frees is made")?;
        tx.free(first)
    })?;
    pool.finish_frees()?;
    let blocks = pool.stats()?.blocks;
    let contact = pool.write(|tx| -> Result<_> {
        let contact = tx.alloc(contact())?;
        tx.set_root(contact)?;
        Ok(contact)
    })?;
    Ok((contact, blocks))
}

#[test]
fn texts_of_each_length_are_there_until_their_value_goes() -> Result<()> {
    for heap in [HeapKind::Traced, HeapKind::Logged, HeapKind::Wear { wait_ms: 0 }] {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = pool_of(&store, heap)?;
        let (contact, blocks) = made(&pool)?;
        let (name, photo) = (field!(Contact, name), field!(Contact, photo));
        for len in [1, 7, 8, 9, 55, 56, 57, 1000, 4096, 65_536, 300_000] {
            let text: String = "aö€x".chars().cycle().take(len).collect();
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            pool.write(|tx| -> Result<()> {
                tx.put_owned(contact, name, &text)?;
                tx.put_owned(contact, photo, &bytes)
            })?;
            let view = pool.read()?;
            assert_eq!(view.get(contact)?.name.as_str(&view)?, text);
            assert_eq!(view.get(contact)?.photo.as_slice(&view)?, bytes);
            drop(view);
            assert_eq!(pool.stats()?.blocks, blocks + 3, "the texts before it are free");
            assert!(pool.check()?.is_sound());
        }
        // An abort brings back what was there.
        let long = pool
            .read()
            .map(|view| -> Result<usize> { Ok(view.get(contact)?.name.as_str(&view)?.len()) })??;
        let aborted = pool.write(|tx| -> Result<()> {
            tx.put_owned(contact, name, "short")?;
            assert!(tx.free_owned(contact, photo)?);
            Err(Error::OutOfBounds { index: 0, len: 0 })
        });
        assert!(aborted.is_err());
        let view = pool.read()?;
        assert_eq!(view.get(contact)?.name.as_str(&view)?.len(), long);
        assert!(!view.get(contact)?.photo.is_empty());
        drop(view);
        pool.write(|tx| -> Result<()> {
            assert!(tx.free_owned(contact, name)? && !tx.free_owned(contact, name)?);
            tx.put_owned(contact, photo, &[])?;
            assert!(tx.get(contact)?.name.is_empty() && tx.get(contact)?.photo.is_empty());
            Ok(())
        })?;
        assert_eq!(pool.stats()?.blocks, blocks + 1);
    }
    Ok(())
}

#[test]
fn one_line_frees_a_contact_with_its_texts_and_lists() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = pool_of(&store, HeapKind::Traced)?;
    let (contact, blocks) = made(&pool)?;
    pool.write(|tx| -> Result<()> {
        tx.put_owned(contact, field!(Contact, name), "Ada")?;
        tx.put_owned(contact, field!(Contact, photo), &[7; 999])?;
        for n in 0..100 {
            let mut rest = tx.take_owned(contact, field!(Contact, first))?;
            let note = Note { text: OwnedStr::EMPTY, next: Owned::EMPTY };
            let note = rest.tx().put_owned(contact, field!(Contact, first), note)?;
            rest.put(note, field!(Note, next))?;
            drop(rest);
            tx.put_owned(note, field!(Note, text), &format!("note {n}"))?;
        }
        Ok(())
    })?;
    assert_eq!(pool.stats()?.blocks, blocks + 203);
    let mut kept = Vec::new();
    {
        let view = pool.read()?;
        let mut next = view.get(contact)?.first.get();
        while let Some(note) = next {
            kept.push(note);
            next = view.get(note)?.next.get();
        }
    }
    pool.write(|tx| -> Result<()> {
        tx.free(contact)?;
        tx.set_root_at::<Contact>(0, None)
    })?;
    // While notes wait, a kept pointer shows a text of one of them, or says that it is none.
    let (mut texts, mut rounds) = (0, 0);
    while pool.check()?.values.is_some_and(|values| values.waiting > 0) {
        let view = pool.read()?;
        for note in kept.iter().filter_map(|note| view.get(*note).ok()) {
            match note.text.as_str(&view) {
                Ok(text) => assert!(text.starts_with("note ") || text.is_empty(), "{text}"),
                Err(error) => assert!(matches!(error, Error::Dangling { .. }), "{error}"),
            }
            texts += 1;
        }
        drop(view);
        rounds += 1;
        pool.write(|tx| tx.alloc(0_u64).and_then(|number| tx.free(number)))?;
    }
    assert!(texts > 100 && rounds > 10, "{texts} {rounds}");
    pool.finish_frees()?;
    assert_eq!(pool.stats()?.blocks, blocks);
    assert!(pool.check()?.is_sound());
    Ok(())
}

#[test]
fn a_damaged_text_is_an_error_and_no_text() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = pool_of(&store, HeapKind::Traced)?;
    let (contact, _) = made(&pool)?;
    pool.write(|tx| tx.put_owned(contact, field!(Contact, name), "find-me-in-files, ada"))?;
    drop(pool);
    store.close()?;
    let (file, at) = find(dir.path(), *b"find-me-in-files");
    for (bytes, what) in [
        (u64::MAX.to_le_bytes(), "OutOfBounds"),
        ((1_u64 << 40).to_le_bytes(), "OutOfBounds"),
        (64_u64.to_le_bytes(), "text"),
    ] {
        let before = put_at(&file, at - 8, &bytes);
        let pool = Store::open(dir.path())?.pool("p")?;
        let view = pool.read()?;
        let read = view.get(contact)?.name.as_str(&view);
        match what {
            "text" => assert!(matches!(&read, Err(Error::OutOfBounds { .. }) | Ok(_))),
            _ => assert!(matches!(&read, Err(Error::OutOfBounds { .. })), "{read:?}"),
        }
        drop(view);
        drop(pool);
        put_at(&file, at - 8, &before);
    }
    put_at(&file, at + 3, &[0xff]);
    let pool = Store::open(dir.path())?.pool("p")?;
    let view = pool.read()?;
    let read = view.get(contact)?.name.as_str(&view);
    assert!(matches!(read, Err(Error::CharBoundary { index: 3 })), "{read:?}");
    Ok(())
}

#[test]
fn a_value_that_is_a_text_has_itself_as_its_field() -> Result<()> {
    let dir = directory();
    let pool = pool_of(&Store::open(dir.path())?, HeapKind::Traced)?;
    pool.write(|tx| -> Result<()> {
        let text = tx.alloc(OwnedStr::EMPTY)?;
        tx.put_owned(text, FieldOffset::whole(), "itself")?;
        assert_eq!(tx.get(text)?.as_str(tx)?, "itself");
        let pair = tx.alloc((7_u8, OwnedStr::EMPTY))?;
        tx.put_owned(pair, field!((u8, OwnedStr), 1), "in a pair")?;
        assert_eq!(tx.get(pair)?.1.as_str(tx)?, "in a pair");
        tx.free(pair)?;
        tx.free(text)
    })?;
    pool.finish_frees()?;
    assert!(pool.check()?.is_sound());
    Ok(())
}
