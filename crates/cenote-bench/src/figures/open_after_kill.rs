//! Opening a pool whose writer was killed.
//!
//! A child fills a pool with a list of N objects of 64 bytes, 1,000 in a transaction, and goes on
//! pushing and popping, a transaction each, until it is killed by SIGKILL at a random moment. Then
//! this process, which has mapped nothing of it, opens the store and the pool and allocates: all
//! that stands between a crash and the first use. Each run has a child and a store of its own;
//! levels take turns.
//!
//! Unit: milliseconds. Rows, with N as an ending:
//!
//! | row | what is timed |
//! | --- | --- |
//! | `store` | opening the store: locks, catalog, replay of the child's log |
//! | `pool` | opening the pool |
//! | `first` | the first transaction: allocate an object, write it |
//! | `total` | all three |
//!
//! Afterwards, outside the time, the list is followed for a while, and must be as the child's last
//! commit left it.

use crate::case::{Failure, POWER, PROCESS};
use crate::figures::figure::{Body, Figure, Rows};
use crate::filter::Filter;
use crate::place::{self, Settings};
use crate::random::Random;
use crate::runner::Row;
use cenote::{
    Access, CrashKind, Durability, FormatOptions, OpenOptions, Persist, Pool, Ptr, Reader, Store,
    field,
};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "open-after-kill",
    title: "opening a pool after SIGKILL",
    body: Body::Report(report),
};

/// Objects, if nothing else is asked for.
pub const OBJECTS: u64 = 1_000_000;

/// First argument of a child.
pub const CHILD: &str = "--fill-until-killed";

/// What a child says when it has all objects.
const READY: &str = "ready";

/// A child ends by itself after this long.
const CHILD_AGE_MAX: Duration = Duration::from_secs(120);

#[derive(Persist, Clone, Copy)]
#[persist(name = "cenote-bench::KillNode")]
#[repr(C, align(64))]
struct Node {
    /// Its place in the list, counted from the end.
    number: u64,
    next: Option<Ptr<Node>>,
    filling: [u64; 6],
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "cenote-bench::KillList")]
#[repr(C)]
struct List {
    first: Option<Ptr<Node>>,
    len: u64,
}

const PARTS: [&str; 4] = ["store", "pool", "first", "total"];

fn report(settings: &Settings, filter: &Filter, runs: usize, out: &mut dyn Write) -> Rows {
    let objects = settings.objects.unwrap_or(if settings.quick { 10_000 } else { OBJECTS });
    let levels = [(PROCESS, Durability::Process), (POWER, Durability::Power)];
    let mut times: [[Vec<f64>; 4]; 2] = Default::default();
    let mut random = Random::new(objects);
    for run in 0..runs {
        for (i, (level, durability)) in levels.into_iter().enumerate() {
            if !filter.admits_level(level) {
                continue;
            }
            let directory = settings.temporary()?;
            let delay = Duration::from_micros(random.below(10_000) as u64);
            let parts = once(directory.path(), durability, objects, delay)
                .map_err(|error| format!("{} run {run} at {level}: {error}", FIGURE.name))?;
            let [store, pool, first, total] = parts;
            writeln!(
                out,
                "  {objects} objects, {level}: store {store:.2} ms, pool {pool:.2}, first \
                 {first:.3}, total {total:.2}"
            )?;
            for (times, part) in times[i].iter_mut().zip(parts) {
                times.push(part);
            }
        }
    }
    let mut rows = Vec::new();
    for (part, name) in PARTS.into_iter().enumerate() {
        for (i, (level, _)) in levels.into_iter().enumerate() {
            let values = core::mem::take(&mut times[i][part]);
            if !values.is_empty() && filter.admits(name, "cenote", level) {
                let row = format!("{name}_{objects}");
                rows.push(Row::of_values(FIGURE.name, row, ("cenote", level, 1), "ms", values));
            }
        }
    }
    Ok(rows)
}

/// A child that is killed at the latest when this is dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Gone already, perhaps; then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Milliseconds of the parts.
fn once(
    directory: &Path,
    durability: Durability,
    objects: u64,
    delay: Duration,
) -> Result<[f64; 4], Failure> {
    let power = durability == Durability::Power;
    let child = Command::new(std::env::current_exe()?)
        .args([CHILD, if power { POWER } else { PROCESS }, &objects.to_string()])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut child = Killed(child);
    let mut line = String::new();
    if let Some(output) = child.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim_end() != READY {
        return Err("the child ended before it had filled the pool; its message is above".into());
    }
    std::thread::sleep(delay);
    drop(child);

    let begin = Instant::now();
    let medium = place::medium(directory, durability)?;
    let options = OpenOptions { durability: Some(durability), ..OpenOptions::default() };
    let store = Store::open_on(medium, &options)?;
    let store_open = begin.elapsed();
    let pool = store.pool_with("bench", Access::ReadWrite)?;
    let pool_open = begin.elapsed();
    let fresh =
        pool.write(|tx| tx.alloc(Node { number: u64::MAX, next: None, filling: [0; 6] }))?;
    let all = begin.elapsed();

    if store.report().crash != Some(CrashKind::Process) {
        return Err(format!(
            "the store says {:?} of a writer that was killed",
            store.report().crash
        )
        .into());
    }
    verify(&pool, fresh, objects)?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok([ms(store_open), ms(pool_open - store_open), ms(all - pool_open), ms(all)])
}

/// Looks at the list that the child has left.
fn verify(pool: &Pool, fresh: Ptr<Node>, objects: u64) -> Result<(), Failure> {
    let view = pool.read()?;
    let Some(list) = view.root::<List>()? else { return Err("the pool has no root".into()) };
    let List { first, len } = *view.get(list)?;
    let (mut next, mut number) = (first, len);
    for _ in 0..10_000 {
        let Some(node) = next else { break };
        let found = *view.get(node)?;
        number = number.wrapping_sub(1);
        if found.number != number || node == fresh {
            return Err(format!("object {number} of {len} is number {}", found.number).into());
        }
        next = found.next;
    }
    if len < objects || (next.is_none() && number != 0) {
        return Err(format!(
            "a list of {len} objects, of which {number} are missing; {objects} were made"
        )
        .into());
    }
    Ok(())
}

/// What a child does: arguments are [`CHILD`], level, number of objects, directory. Never returns
/// 0.
pub fn child(arguments: &[String]) -> ExitCode {
    match fill(arguments) {
        Ok(()) => eprintln!("this process was not killed within {} s", CHILD_AGE_MAX.as_secs()),
        Err(error) => eprintln!("{error}"),
    }
    ExitCode::FAILURE
}

fn fill(arguments: &[String]) -> Result<(), Failure> {
    let [_, level, objects, directory] = arguments else {
        return Err(format!("{CHILD} is only for this program itself").into());
    };
    let durability = if level == POWER { Durability::Power } else { Durability::Process };
    let objects: u64 = objects.parse()?;
    let medium = place::medium(Path::new(directory), durability)?;
    cenote_store::format(medium.clone(), &FormatOptions::default())?;
    let options = OpenOptions { durability: Some(durability), ..OpenOptions::default() };
    let store = Store::open_on(medium, &options)?;
    let pool = store.pool("bench")?;
    let list = pool.write(|tx| -> cenote::Result<Ptr<List>> {
        let list = tx.alloc(List { first: None, len: 0 })?;
        tx.set_root(list)?;
        Ok(list)
    })?;
    let mut made = 0;
    while made < objects {
        let some = (objects - made).min(1000);
        push(&pool, list, some)?;
        made += some;
    }
    println!("{READY}");
    let (begin, mut random) = (Instant::now(), Random::new(made));
    while begin.elapsed() < CHILD_AGE_MAX {
        // Never below what was promised.
        if made > objects && random.below(2) == 0 {
            pop(&pool, list)?;
            made -= 1;
        } else {
            push(&pool, list, 1)?;
            made += 1;
        }
    }
    Ok(())
}

fn push(pool: &Pool, list: Ptr<List>, some: u64) -> cenote::Result<()> {
    pool.write(|tx| {
        let List { mut first, len } = *tx.get(list)?;
        for number in len..len + some {
            first = Some(tx.alloc(Node { number, next: first, filling: [number; 6] })?);
        }
        *tx.get_mut(list)? = List { first, len: len + some };
        Ok(())
    })
}

fn pop(pool: &Pool, list: Ptr<List>) -> cenote::Result<()> {
    pool.write(|tx| {
        let List { first, len } = *tx.get(list)?;
        if let Some(node) = first {
            let next = tx.get(node)?.next;
            tx.set(list, field!(List, first), next)?;
            tx.set(list, field!(List, len), len - 1)?;
            tx.free(node)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_not_as_it_was_is_noticed() {
        let place =
            crate::BenchPlace::open(&Settings::default(), Durability::Process).expect("a store");
        let list = place.pool.write(|tx| -> cenote::Result<Ptr<List>> {
            let list = tx.alloc(List { first: None, len: 0 })?;
            tx.set_root(list)?;
            Ok(list)
        });
        let list = list.expect("a list");
        let fresh =
            || place.pool.write(|tx| tx.alloc(Node { number: 0, next: None, filling: [0; 6] }));
        push(&place.pool, list, 50).expect("objects");
        pop(&place.pool, list).expect("one less");
        verify(&place.pool, fresh().expect("an object"), 49).expect("49 objects are there");
        verify(&place.pool, fresh().expect("an object"), 50).expect_err("one is missing");
        place.pool.write(|tx| tx.set(list, field!(List, len), 60)).expect("another length");
        verify(&place.pool, fresh().expect("an object"), 49).expect_err("the numbers do not fit");
    }
}
