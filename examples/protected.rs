//! Passwords in a pool that is encrypted and checked at rest.
//!
//! ```sh
//! head -c 32 /dev/urandom > KEY
//! cargo run --example protected -- STORE KEY set mail "correct horse"
//! cargo run --example protected -- STORE KEY get mail
//! ```
//!
//! What it shows: a pool that is made under a key and opened with it; a psync, before which nothing
//! is in the files; what another key and a changed file get: an error, and no value.

use cenote::{
    Access, AtRest, Keyring, Locking, MasterKey, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader,
    Store, Tx,
};
use cenote_collections::{HashMap, InlineStr};
use cenote_examples::{Outcome, finish, usage};
use std::sync::Arc;

const POOL: &str = "passwords";

type Name = InlineStr<63>;
type Password = InlineStr<127>;

/// The root.
#[derive(Persist)]
struct Passwords {
    by_name: HashMap<Name, Password>,
}

/// The pool under the key of a file. The first call makes it.
fn open(store: &str, key_file: &str) -> Outcome<Pool> {
    let mut key = std::fs::read(key_file).map_err(|error| format!("{key_file}: {error}"))?;
    let key = Arc::new(Keyring::new(MasterKey::from_key_file(&mut key, Locking::IfPossible)?));
    let store = Store::open(store)?;
    if store.pools().iter().any(|pool| pool.record.name == POOL) {
        return Ok(store.pool_with_key(POOL, Access::ReadWrite, &key)?);
    }
    let options = PoolOptions {
        mode: PoolMode::Shadowed,
        at_rest: AtRest::Authenticated,
        key: Some(key),
        ..PoolOptions::default()
    };
    Ok(store.create_pool(POOL, &options)?)
}

/// The passwords of the pool, which the first call makes.
fn passwords(tx: &mut Tx<'_>) -> cenote::Result<Ptr<Passwords>> {
    if let Some(passwords) = tx.root::<Passwords>()? {
        return Ok(passwords);
    }
    let by_name = HashMap::new(tx)?;
    let passwords = tx.alloc(Passwords { by_name })?;
    tx.set_root(passwords)?;
    Ok(passwords)
}

fn set(pool: &Pool, name: &str, password: &str) -> Outcome<()> {
    let (name, password) = (Name::try_from(name)?, Password::try_from(password)?);
    pool.write(|tx| {
        let passwords = passwords(tx)?;
        let by_name = tx.get(passwords)?.by_name;
        by_name.insert(tx, name, password).map(drop)
    })?;
    // A crash takes such a pool back to its last psync.
    pool.psync()?;
    Ok(())
}

fn print(pool: &Pool, name: &str) -> Outcome<()> {
    let view = pool.read()?;
    let passwords = view.root::<Passwords>()?.ok_or("there is no password yet")?;
    match view.get(passwords)?.by_name.get(&view, name)? {
        Some(password) => {
            println!("{password}");
            Ok(())
        }
        None => Err(format!("no password {name:?}").into()),
    }
}

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [store, key, "set", name, password] => set(&open(store, key)?, name, password),
        [store, key, "get", name] => print(&open(store, key)?, name),
        _ => usage("protected -- STORE KEY set NAME PASSWORD | get NAME"),
    }
}

fn main() -> std::process::ExitCode {
    finish(run)
}
