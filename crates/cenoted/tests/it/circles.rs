//! Threads of several processes that have a pool each and want the other's: none waits for ever.

use crate::common::{Actor, Daemon, add, listen, make_counter, say};
use cenote::{Access, Error, Pool, Result, Store};
use cenote_medium::planted::{Bug, plant};
use std::path::Path;
use std::time::{Duration, Instant};

/// How a thread has the one pool, and wants the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// It has a view, and wants a transaction.
    ViewFirst,
    /// It is in a transaction, and wants a view.
    WriteFirst,
}

use Order::{ViewFirst, WriteFirst};

fn open(store: &Store) -> [Pool; 2] {
    ["p", "q"].map(|name| store.pool_with(name, Access::Shared).expect("a shared pool"))
}

/// Has one pool, calls `met`, and wants the other one.
fn circle(has: &Pool, wants: &Pool, order: Order, met: impl FnOnce()) -> Result<()> {
    match order {
        ViewFirst => {
            let view = has.read()?;
            met();
            let done = wants.write(|_| Ok(()));
            view.finish()?;
            done
        }
        WriteFirst => has.write(|_| {
            met();
            wants.read()?.finish()
        }),
    }
}

/// A child: has `q`, and wants `p`.
pub(crate) fn obey(socket: &Path) {
    let [p, q] = open(&Store::connect(socket).expect("connect"));
    say("open");
    loop {
        let order = match listen().as_str() {
            "view" => ViewFirst,
            "write" => WriteFirst,
            "planted" => {
                plant(Bug::PatienceWithoutEnd);
                ViewFirst
            }
            _ => return,
        };
        let met = || {
            say("has");
            listen();
        };
        say(match circle(&q, &p, order, met) {
            Ok(()) => "done",
            Err(Error::WaitedLong { pool, .. }) if pool == "p" => "late",
            Err(error) => panic!("{error}"),
        });
    }
}

fn daemon() -> (Daemon, Store, [Pool; 2], Actor) {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    for name in ["p", "q"] {
        make_counter(&store.pool(name).expect("a pool"));
    }
    let pools = open(&store);
    let mut other = Actor::start("circler", &daemon);
    assert_eq!(other.hear(), "open");
    (daemon, store, pools, other)
}

#[test]
fn a_circle_over_two_processes_ends_with_an_error_that_says_what_to_do() {
    let (_daemon, _store, [p, q], mut other) = daemon();
    for (order, told) in [(ViewFirst, "view"), (WriteFirst, "write")] {
        let begun = Instant::now();
        other.tell(told);
        assert_eq!(other.hear(), "has");
        let done = circle(&p, &q, order, || {
            other.tell("go on");
            // So that the other one is the first to give up.
            std::thread::sleep(Duration::from_secs(2));
        });
        let here = match &done {
            Ok(()) => "done",
            Err(Error::WaitedLong { pool, .. }) if pool == "q" => "late",
            Err(error) => panic!("{error}"),
        };
        let there = other.hear();
        assert!([here, &there].contains(&"late"), "{order:?}: {here} and {there}");
        if let Err(late) = done {
            assert!(late.to_string().contains("end those and try again"), "{late}");
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        // Both pools go on.
        assert!(add(&p) > 0 && add(&q) > 0);
    }
    assert!(other.ends());
}

/// A thread that has nothing waits as long as it takes.
#[test]
fn a_thread_without_a_pool_waits_longer_than_one_that_has_some() {
    let (_daemon, _store, [_p, q], mut other) = daemon();
    other.tell("write");
    assert_eq!(other.hear(), "has");
    // And not at all, or for a time, if it says so.
    let short = Duration::from_millis(50);
    let is_busy =
        |done: Result<()>| matches!(done, Err(Error::NotFree { pool, .. }) if pool == "q");
    assert!(is_busy(q.try_write(|_| Ok(()))) && is_busy(q.try_read().map(drop)));
    assert!(is_busy(q.write_timeout(short, |_| Ok(()))));
    assert!(is_busy(q.read_timeout(short).map(drop)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| add(&q));
        std::thread::sleep(Duration::from_secs(12));
        assert!(!waits.is_finished());
        other.tell("go on");
        assert_eq!(other.hear(), "done");
        assert_eq!(waits.join().expect("counted"), 1);
    });
}

#[test]
fn a_circle_over_two_processes_that_waits_without_end_is_found() {
    let (_daemon, _store, [p, q], mut other) = daemon();
    other.tell("planted");
    assert_eq!(other.hear(), "has");
    std::thread::scope(|scope| {
        let (has, met) = std::sync::mpsc::channel();
        let waits = scope.spawn(move || {
            plant(Bug::PatienceWithoutEnd);
            circle(&p, &q, ViewFirst, || has.send(()).expect("it is heard"))
        });
        // Not before both have one: the other one would get this one's.
        met.recv().expect("it has a view");
        other.tell("go on");
        std::thread::sleep(Duration::from_secs(15));
        let ended = waits.is_finished();
        // Its end is the only way out.
        other.kill();
        assert!(!ended);
        waits.join().expect("no panic").expect("done");
    });
}
