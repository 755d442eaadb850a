//! Contacts with two indexes: by name, and by tag.
//!
//! ```sh
//! cargo run --example contacts -- STORE add "Ada Lovelace" 36000 friend london
//! cargo run --example contacts -- STORE find "Ada"
//! cargo run --example contacts -- STORE tag friend
//! cargo run --example contacts -- STORE rm "Ada Lovelace"
//! ```
//!
//! What it shows: a root that is made once and found again; a value that two collections point to;
//! several changes that become one, because they are in one transaction.

use cenote::{Persist, Pool, Ptr, Reader, Store, Tx};
use cenote_collections::{BTreeMap, InlineStr, List, String as Text};
use cenote_examples::{Outcome, finish, usage};
use std::ops::Bound;

const USAGE: &str = "contacts -- STORE add NAME PHONE [TAG ...] | find PREFIX | tag TAG | rm NAME";

type Name = InlineStr<63>;
type Tag = InlineStr<23>;

#[derive(Persist)]
struct Contact {
    name: Name,
    phone: Text,
    tags: List<Tag>,
}

/// The root. Both maps lead to the same contacts.
#[derive(Persist)]
struct Book {
    by_name: BTreeMap<Name, Ptr<Contact>>,
    by_tag: BTreeMap<Tag, BTreeMap<Name, Ptr<Contact>>>,
}

/// The book of the pool, which the first call makes.
fn book(tx: &mut Tx<'_>) -> cenote::Result<Ptr<Book>> {
    if let Some(book) = tx.root::<Book>()? {
        return Ok(book);
    }
    let (by_name, by_tag) = (BTreeMap::new(tx)?, BTreeMap::new(tx)?);
    let book = tx.alloc(Book { by_name, by_tag })?;
    tx.set_root(book)?;
    Ok(book)
}

/// Adds a contact, or replaces the one of that name.
fn add(pool: &Pool, name: &str, phone: &str, tags: &[String]) -> Outcome<()> {
    let name = Name::try_from(name)?;
    let tags = tags.iter().map(|tag| Tag::try_from(tag.as_str())).collect::<Result<Vec<_>, _>>()?;
    pool.write(|tx| {
        remove_in(tx, &name)?;
        let book = book(tx)?;
        let phone = Text::from_str(tx, phone)?;
        let own = List::from_iter(tx, tags.iter().copied())?;
        let contact = tx.alloc(Contact { name, phone, tags: own })?;
        let (by_name, by_tag) = (tx.get(book)?.by_name, tx.get(book)?.by_tag);
        by_name.insert(tx, name, contact)?;
        for tag in &tags {
            let tagged = by_tag.entry(tx, *tag)?.or_try_insert_with(BTreeMap::new)?;
            let tagged = *tagged;
            tagged.insert(tx, name, contact)?;
        }
        Ok(())
    })
}

/// Removes a contact from both indexes, and frees it with what it has. Whether there was one.
fn remove_in(tx: &mut Tx<'_>, name: &str) -> cenote::Result<bool> {
    let book = book(tx)?;
    let (by_name, by_tag) = (tx.get(book)?.by_name, tx.get(book)?.by_tag);
    let Some(contact) = by_name.remove(tx, name)? else { return Ok(false) };
    let (phone, tags) = (tx.get(contact)?.phone, tx.get(contact)?.tags);
    for tag in tags.iter(tx)?.copied().collect::<Vec<Tag>>() {
        if let Some(tagged) = by_tag.get(tx, tag.as_str())?.copied() {
            tagged.remove(tx, name)?;
            if tagged.is_empty(tx)? {
                by_tag.remove(tx, tag.as_str())?;
                tagged.destroy(tx)?;
            }
        }
    }
    phone.destroy(tx)?;
    tags.destroy(tx)?;
    tx.free(contact)?;
    Ok(true)
}

fn print(reader: &impl Reader, contact: Ptr<Contact>) -> cenote::Result<()> {
    let contact = reader.get(contact)?;
    let tags: Vec<&str> = contact.tags.iter(reader)?.map(InlineStr::as_str).collect();
    println!("{}: {} ({})", contact.name, contact.phone.as_str(reader)?, tags.join(", "));
    Ok(())
}

/// Prints all contacts whose names begin so.
fn find(pool: &Pool, prefix: &str) -> Outcome<()> {
    let view = pool.read()?;
    let Some(book) = view.root::<Book>()? else { return Ok(()) };
    let from = (Bound::Included(prefix), Bound::Unbounded);
    for (name, contact) in view.get(book)?.by_name.range::<str>(&view, from)? {
        if !name.starts_with(prefix) {
            break;
        }
        print(&view, *contact)?;
    }
    Ok(())
}

/// Prints all contacts that have the tag.
fn tagged(pool: &Pool, tag: &str) -> Outcome<()> {
    let view = pool.read()?;
    let Some(book) = view.root::<Book>()? else { return Ok(()) };
    if let Some(contacts) = view.get(book)?.by_tag.get(&view, tag)? {
        for contact in contacts.values(&view)? {
            print(&view, *contact)?;
        }
    }
    Ok(())
}

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [store, command, name, ..] = words[..] else {
        return usage(USAGE);
    };
    let pool = Store::open(store)?.pool("contacts")?;
    match (command, &words[3..]) {
        ("add", [phone, ..]) => add(&pool, name, phone, &arguments[4..]),
        ("find", []) => find(&pool, name),
        ("tag", []) => tagged(&pool, name),
        ("rm", []) => match pool.write(|tx| remove_in(tx, name))? {
            true => Ok(()),
            false => Err(format!("no contact {name:?}").into()),
        },
        _ => usage(USAGE),
    }
}

fn main() -> std::process::ExitCode {
    finish(run)
}
