//! A queue of jobs that survives `kill -9`: each job's result is counted once, however often the
//! worker is killed.
//!
//! ```sh
//! cargo run --example jobs -- STORE add 1000
//! cargo run --example jobs -- STORE work     # kill it at any time, and run it again
//! cargo run --example jobs -- STORE show
//! ```
//!
//! What it shows: to take a job, to count its result and to remove it is one transaction, so a
//! crash leaves the job waiting or done. Work that takes long is done outside of transactions: a
//! transaction that only notes the job as begun lets the next worker find it.
//!
//! The states of a job:
//!
//! 1. *waiting*: in the list;
//! 2. *begun*: the root's `begun`, and no longer in the list;
//! 3. *done*: nowhere, and counted in `done` and `sum`.

use cenote::{Persist, Pool, Ptr, Reader, Store, Tx};
use cenote_collections::List;
use cenote_examples::{Outcome, finish, usage};

#[derive(Persist, Clone, Copy)]
struct Job {
    number: u64,
}

/// The root.
#[derive(Persist)]
struct Queue {
    waiting: List<Job>,
    begun: Option<Ptr<Job>>,
    /// Jobs that were ever added.
    added: u64,
    done: u64,
    /// Of the results of all that are done.
    sum: u64,
}

/// The queue of the pool, which the first call makes.
fn queue(tx: &mut Tx<'_>) -> cenote::Result<Ptr<Queue>> {
    if let Some(queue) = tx.root::<Queue>()? {
        return Ok(queue);
    }
    let waiting = List::new(tx)?;
    let queue = tx.alloc(Queue { waiting, begun: None, added: 0, done: 0, sum: 0 })?;
    tx.set_root(queue)?;
    Ok(queue)
}

/// Adds jobs: all of them, or none.
fn add(pool: &Pool, count: u64) -> cenote::Result<()> {
    pool.write(|tx| {
        let queue = queue(tx)?;
        let (waiting, first) = (tx.get(queue)?.waiting, tx.get(queue)?.added);
        waiting.extend(tx, (first..first + count).map(|number| Job { number }))?;
        tx.get_mut(queue)?.added = first + count;
        Ok(())
    })
}

/// The job that a worker before has begun, or the next one of the list, which it notes as begun.
fn begin(pool: &Pool) -> cenote::Result<Option<Job>> {
    pool.write(|tx| {
        let queue = queue(tx)?;
        if let Some(begun) = tx.get(queue)?.begun {
            return Ok(Some(*tx.get(begun)?));
        }
        let waiting = tx.get(queue)?.waiting;
        let Some(job) = waiting.pop_front(tx)? else { return Ok(None) };
        let begun = tx.alloc(job)?;
        tx.get_mut(queue)?.begun = Some(begun);
        Ok(Some(job))
    })
}

/// Counts the result of the job that is begun, and removes it.
fn end(pool: &Pool, result: u64) -> cenote::Result<()> {
    pool.write(|tx| {
        let queue = queue(tx)?;
        let queue = tx.get_mut(queue)?;
        queue.done += 1;
        queue.sum += result;
        if let Some(job) = queue.begun.take() {
            tx.free(job)?;
        }
        Ok(())
    })
}

/// The work: so many steps of the Collatz sequence from this number to 1.
fn steps(job: Job) -> u64 {
    let (mut number, mut steps) = (job.number + 1, 0);
    while number != 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        steps += 1;
    }
    steps
}

fn work(pool: &Pool) -> cenote::Result<()> {
    while let Some(job) = begin(pool)? {
        end(pool, steps(job))?;
    }
    Ok(())
}

fn show(pool: &Pool) -> cenote::Result<()> {
    let view = pool.read()?;
    let Some(queue) = view.root::<Queue>()? else {
        println!("no jobs");
        return Ok(());
    };
    let queue = view.get(queue)?;
    let waiting = queue.waiting.len(&view)?;
    let begun = u64::from(queue.begun.is_some());
    println!("{waiting} waiting, {begun} begun, {} done, sum {}", queue.done, queue.sum);
    Ok(())
}

fn run(arguments: &[String]) -> Outcome<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [store, ref command @ ..] = words[..] else {
        return usage("jobs -- STORE add COUNT | work | show");
    };
    match command[..] {
        ["add", count] => {
            let count = count.parse().map_err(|_| format!("{count:?} is no number of jobs"))?;
            add(&Store::open(store)?.pool("jobs")?, count)?;
        }
        ["work"] => work(&Store::open(store)?.pool("jobs")?)?,
        ["show"] => show(&Store::open(store)?.pool("jobs")?)?,
        _ => return usage("jobs -- STORE add COUNT | work | show"),
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    finish(run)
}
