//! A process that calls `exec` goes on as another program, under the same number and start time.
//! What the program before had of the daemon is taken back at once, as if that had been killed.

use crate::common::{Actor, Counter, Daemon, add, count, listen, make_counter, say};
use cenote::{Access, Pool, Reader, Store};
use cenote_medium::planted::{Bug, plant};
use cenote_object::{Objects, ObjectsOptions, Permission};
use cenote_testkit::time::until;
use cenote_testkit::{environment, random};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the first image of a process has when it calls `exec`.
const HELD: [&str; 6] = ["nothing", "write", "read", "share", "share-write", "share-read"];

fn exec(image: &str) -> ! {
    let error = Command::new(std::env::current_exe().expect("this program"))
        .args(["common::a_child_plays_its_role", "--exact", "--nocapture", "--quiet"])
        .env("CENOTED_ROLE", image)
        .exec();
    panic!("exec: {error}");
}

fn objects_of(store: &Store) -> Objects {
    Objects::open(&store.handle(), &ObjectsOptions::default()).expect("objects")
}

/// Says so, waits for a word, and goes on as the second image, from wherever the caller is.
fn hold_and_exec() {
    say("holding");
    listen();
    exec("second-image");
}

/// A child, first image: has something, and calls `exec` within it.
pub(crate) fn first(socket: &Path, held: &str) {
    let store = Store::connect(socket).expect("connect");
    let open = |access| store.pool_with("numbers", access).expect("pool");
    match held {
        "write" | "share-write" => {
            let pool = open(if held == "write" { Access::ReadWrite } else { Access::Shared });
            let _ = pool.write(|tx| -> cenote::Result<()> {
                let at = tx.root::<Counter>()?.expect("a counter");
                tx.get_mut(at)?.count = 77;
                tx.alloc(crate::common::Item { number: 1, next: None })?;
                hold_and_exec();
                Ok(())
            });
        }
        "read" | "share-read" => {
            let pool = open(if held == "read" { Access::ReadOnly } else { Access::Shared });
            let view = pool.read().expect("read");
            hold_and_exec();
            drop(view);
        }
        "share" => {
            let pool = open(Access::Shared);
            hold_and_exec();
            drop(pool);
        }
        "object" => {
            let objects = objects_of(&store);
            let mut image = objects.attach("image", Permission::ReadWrite, None).expect("attach");
            image.as_mut_slice().expect("for writing")[0] = 77;
            hold_and_exec();
            drop(image);
        }
        _ => hold_and_exec(),
    }
}

/// A child, second image: uses the pool as any other process does.
pub(crate) fn second(socket: &Path) {
    say("second");
    while let Some((access, _)) = listen().split_once(' ') {
        let access = if access == "share" { Access::Shared } else { Access::ReadWrite };
        let store = Store::connect(socket).expect("connect");
        let pool =
            store.pool_with("numbers", access).expect("what the image before had is given back");
        let added = add(&pool);
        say(&format!("{added} {}", count(&pool)));
    }
}

fn daemon_with_counter() -> Daemon {
    let daemon = Daemon::start(&[]);
    make_counter(&daemon.connect().pool("numbers").expect("pool"));
    daemon
}

/// A process whose first image had `held`, and which goes on as its second.
fn executed(daemon: &Daemon, held: &str) -> Actor {
    let mut actor = Actor::start(&format!("first-image {held}"), daemon);
    assert_eq!(actor.hear(), "holding", "{held}");
    actor.tell("go on");
    assert_eq!(actor.hear(), "second", "{held}");
    actor
}

#[test]
fn what_a_process_had_before_exec_is_given_to_others_while_it_lives() {
    for held in HELD {
        let daemon = daemon_with_counter();
        let actor = executed(&daemon, held);
        let store = daemon.connect();
        // At once: the client that asks waits for the end of the one that is about to end.
        let pool = store.pool("numbers").unwrap_or_else(|error| panic!("{held}: {error}"));
        assert_eq!((count(&pool), add(&pool)), (0, 1), "{held}");
        assert_eq!(pool.check().expect("check").leaked_blocks, 0, "{held}");
        daemon.wait_until("the first image is forgotten", |stat| stat.sessions == 2);
        let recovered = if held.contains("write") { 1 } else { 0 };
        assert!(daemon.stat().recoveries >= recovered, "{held}");
        assert!(actor.ends(), "{held}");
    }
}

#[test]
fn the_next_image_of_a_process_is_given_what_the_one_before_had() {
    for held in HELD {
        for access in ["alone", "share"] {
            let daemon = daemon_with_counter();
            let mut actor = executed(&daemon, held);
            for round in 1..=2 {
                actor.tell(&format!("{access} {round}"));
                assert_eq!(actor.hear(), format!("{round} {round}"), "{held}, {access}");
            }
            assert!(actor.ends());
        }
    }
}

#[test]
fn locks_of_a_shared_pool_are_taken_over_from_an_image_that_is_gone() {
    for held in ["share", "share-write", "share-read"] {
        let daemon = daemon_with_counter();
        let store = daemon.connect();
        let pool = store.pool_with("numbers", Access::Shared).expect("pool");
        let mut actor = executed(&daemon, held);
        // Here, and by the second image, which has the number and start time of the first.
        let added = std::thread::scope(|scope| {
            let adds = scope.spawn(|| add(&pool));
            until("the lock of an image that is gone", 20, || adds.is_finished().then_some(()));
            adds.join().expect("added")
        });
        assert_eq!((added, count(&pool)), (1, 1), "{held}");
        actor.tell("share 1");
        assert_eq!(actor.hear(), "2 2", "{held}");
        assert_eq!((add(&pool), count(&pool)), (3, 3), "{held}");
        assert!(actor.ends());
        assert_eq!(pool.check().expect("check").leaked_blocks, 0, "{held}");
    }
}

/// Whether the lock of an image that is gone is taken over within two seconds.
fn is_taken_over(bug: Bug) -> bool {
    let daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = store.pool_with("numbers", Access::Shared).expect("pool");
    let actor = executed(&daemon, "share-write");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            plant(bug);
            add(&pool);
            plant(Bug::None);
            done.store(true, Ordering::SeqCst);
        });
        let end = Instant::now() + Duration::from_secs(2);
        while !done.load(Ordering::SeqCst) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        let taken = done.load(Ordering::SeqCst);
        // The end of the process is noticed in any case.
        actor.kill();
        taken
    })
}

#[test]
fn an_image_that_is_taken_for_its_process_is_noticed() {
    assert!(is_taken_over(Bug::None));
    assert!(!is_taken_over(Bug::ImageTakenForProcess));
}

#[test]
fn an_object_of_an_image_that_is_gone_is_attached_by_others() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    objects.pcreate("image", 1 << 16, None, 0o600).expect("create");
    let actor = executed(&daemon, "object");
    let image = objects.attach("image", Permission::ReadWrite, None).expect("attach");
    assert_eq!(image.as_slice()[0], 0, "what was not psynced is gone");
    assert!(actor.ends());
}

/// A child: shares, counts on, and calls `exec` from another thread at some moment of that.
pub(crate) fn count_and_exec(socket: &Path) {
    let wait_us = environment::number("CENOTED_EXEC_US", 0);
    let store = Store::connect(socket).expect("connect");
    let pool: Pool = store.pool_with("numbers", Access::Shared).expect("pool");
    add(&pool);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_micros(wait_us));
        exec("second-image");
    });
    loop {
        add(&pool);
    }
}

/// Processes call `exec` at any moment, some are killed soon after, and now and then the daemon
/// is: nothing of a transaction is half there, and no lock and no block stays taken.
#[test]
fn images_end_at_any_moment_and_leave_whole_transactions() {
    let mut daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = store.pool_with("numbers", Access::Shared).expect("pool");
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..16 {
        let wait_us = (random::next(&mut seed) & 0x1fff).to_string();
        let mut actor =
            Actor::start_with("count-and-exec", &daemon, &[("CENOTED_EXEC_US", &wait_us)]);
        assert_eq!(actor.hear(), "second");
        if round % 8 == 5 {
            daemon.kill();
            daemon.restart();
        }
        let before = count(&pool);
        match round % 4 {
            // Its second image shares the pool beside the end of its first.
            0 | 1 => {
                actor.tell("share 1");
                assert_eq!(actor.hear(), format!("{0} {0}", before + 1), "seed {seed:#x}");
                assert!(actor.ends());
            }
            2 => actor.kill(),
            _ => assert!(actor.ends()),
        }
        assert_eq!(count(&pool) + 1, add(&pool), "round {round}, seed {seed:#x}");
    }
    assert_eq!(pool.check().expect("check").leaked_blocks, 0);
}

/// A program that starts others has them inherit nothing, and its session goes on.
#[test]
fn a_client_that_starts_programs_keeps_what_it_has() {
    let daemon = daemon_with_counter();
    let store = daemon.connect();
    let pool = store.pool("numbers").expect("pool");
    for round in 1..=8 {
        pool.write(|tx| -> cenote::Result<()> {
            let at = tx.root::<Counter>()?.expect("a counter");
            tx.get_mut(at)?.count = 77;
            assert!(Command::new("true").status().expect("start").success());
            Err(cenote::Error::Aborted("on purpose".into()))
        })
        .expect_err("given up");
        assert_eq!(add(&pool), round);
    }
    assert_eq!((daemon.stat().sessions, daemon.stat().recoveries), (2, 0));
    let mut other = Actor::start("reader", &daemon);
    assert!(other.hear().starts_with("refused"), "another process was granted the pool");
    assert!(other.ends());
}
