//! Two programs that share a pool through the daemon: one sends texts, the other receives them.
//!
//! ```sh
//! cargo run -p cenoted -- --store STORE --socket SOCKET &
//! cargo run --example two_processes -- SOCKET receive 2 &
//! cargo run --example two_processes -- SOCKET send "hello"
//! cargo run --example two_processes -- SOCKET send "and good-bye"
//! ```
//!
//! What it shows: `Store::connect` in place of `Store::open` is all that differs; both programs
//! map the same memory, and a transaction sends no message. If one of them is killed inside a
//! transaction, the daemon undoes that, and the other goes on.

use cenote::{Access, Persist, Pool, PoolOptions, Reader, Store};
use cenote_collections::{List, String as Text};
use cenote_examples::{Outcome, finish, usage};
use std::time::Duration;

const POOL: &str = "texts";
/// How often a receiver looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The root.
#[derive(Persist)]
struct Channel {
    texts: List<Text>,
}

/// The pool, shared for writing. The program that comes first makes it.
fn open(store: &Store) -> cenote::Result<Pool> {
    if !store.pools().iter().any(|pool| pool.record.name == POOL) {
        match store.add_pool(POOL, &PoolOptions::default()) {
            Ok(_) => (),
            // The other program was faster.
            Err(_) if store.pools().iter().any(|pool| pool.record.name == POOL) => (),
            Err(error) => return Err(error),
        }
    }
    let pool = store.pool_with(POOL, Access::Shared)?;
    pool.write(|tx| {
        if tx.root::<Channel>()?.is_none() {
            let texts = List::new(tx)?;
            let channel = tx.alloc(Channel { texts })?;
            tx.set_root(channel)?;
        }
        Ok::<_, cenote::Error>(())
    })?;
    Ok(pool)
}

fn send(pool: &Pool, text: &str) -> Outcome<()> {
    pool.write(|tx| {
        let channel = tx.root::<Channel>()?.ok_or("the channel is made when the pool is opened")?;
        let text = Text::from_str(tx, text)?;
        let texts = tx.get(channel)?.texts;
        Ok(texts.push_back(tx, text)?)
    })
}

/// Takes the oldest text out, if there is one.
fn receive(pool: &Pool) -> Outcome<Option<String>> {
    pool.write(|tx| {
        let channel = tx.root::<Channel>()?.ok_or("the channel is made when the pool is opened")?;
        let texts = tx.get(channel)?.texts;
        let Some(text) = texts.pop_front(tx)? else { return Ok(None) };
        let received = text.as_str(tx)?.to_owned();
        text.destroy(tx)?;
        Ok(Some(received))
    })
}

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [socket, "send", text] => send(&open(&Store::connect(socket)?)?, text),
        [socket, "receive", count] => {
            let pool = open(&Store::connect(socket)?)?;
            for _ in 0..count.parse::<u64>()? {
                let text = loop {
                    match receive(&pool)? {
                        Some(text) => break text,
                        None => std::thread::sleep(PAUSE),
                    }
                };
                println!("{text}");
            }
            Ok(())
        }
        _ => usage("two_processes -- SOCKET send TEXT | receive COUNT"),
    }
}

fn main() -> std::process::ExitCode {
    finish(run)
}
